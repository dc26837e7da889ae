"""What trains beside weights that do not: two narrow matrices, by hand."""
import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from transformer_perf import Parallel, estimate, search
from transformer_perf.blocks import end_operations
from transformer_perf.choices import NF4, adapted
from transformer_perf.estimates import PRESETS, Group, as_assumptions
from transformer_perf.interop import Job, as_job, export
from transformer_perf.kernels import pricer_of
from transformer_perf.models import NAMED, Model
from transformer_perf.advice.planning import checkpoint_GB
from transformer_perf.systems import as_system
from transformer_perf.timeline import job_of_estimate

H100, DENSE = as_system('H100-80GB'), 'llama3.1_8B'
M = NAMED[DENSE]
EVERY = (*PRESETS, 'calibrated')


def close(a, b, rel=1e-9): return math.isclose(a, b, rel_tol=rel)


def of(adapters='none', preset='calibrated', model=DENSE, batch=64, **layout):
    return estimate(model, Parallel(adapters=adapters, **layout), H100, batch, preset)


@pytest.mark.parametrize('preset', EVERY)
@pytest.mark.parametrize('where, number', [
    ('', 41_943_040), (':attention', 13_631_488), (':mlp', 28_311_552)])
def test_parameters_of_adapters(preset, where, number):
    """Llama 3 8B with rank 16 beside all seven products: 41,943,040, as PEFT says.

    Of attention 16 * (3 * 4096 + 4096 + 2 * 1024 + 2 * 4096), of the MLP 16 * 3 * (4096 + 14336),
    in 32 layers."""
    by_hand = {':attention': 16 * (3 * 4096 + 6144 + 8192), ':mlp': 16 * 3 * (4096 + 14336)}
    assert 32 * by_hand.get(where, sum(by_hand.values())) == number
    stats = of(f'lora:16{where}', preset).stats
    held = 4 if preset == 'calibrated' else 2   # bytes of a gradient
    assert close(stats['gradients_GB'], held * 1e-9 * number)
    assert close(stats['optimizer_GB'], 12e-9 * number)
    assert close(stats['weights_GB'], of(preset=preset).stats['weights_GB'] + 2e-9 * number)
    assert close(of(f'lora:32{where}', preset).stats['optimizer_GB'], 24e-9 * number)


def test_layers_that_keep_a_state_have_no_adapters():
    "Of Nemotron-H's 52 layers four have attention, and 24 an MLP of two products."
    m = NAMED['nemotron_h_8B']
    q, kv, e = 32 * 128, 8 * 128, m.embed_dim
    of_attention = 4 * 16 * (3 * e + q + 2 * kv + q + e)
    of_mlp = 24 * 16 * 2 * (e + m.mlp_dim)
    trained = of('lora:16', model='nemotron_h_8B').stats['optimizer_GB'] / 12e-9
    assert close(trained, of_attention + of_mlp)


@pytest.mark.parametrize('adapters, asking', [
    ('none', 'qkv fc1'), ('lora:16', 'qkv fc1'), ('lora:16:attention', 'qkv'),
    ('qlora:16:mlp', 'fc1'), ('frozen:mlp', 'qkv'), ('frozen:attention', 'fc1')])
def test_inputs_are_gathered_again_for_gradients_of_weights(adapters, asking):
    "And of adapters; a weight that stays as it is needs no input, so none is sent."
    table = of(adapters, tp=4).layers.set_index('layer')
    for name in ('qkv', 'fc1'):
        kinds, GB = table.comm_bwd_type[name], 2e-9 * M.seq_len * M.embed_dim
        assert ('allgather' in kinds) == (name in asking.split())
        assert 'reducescatter' in kinds   # the gradient of the input
        assert all(close(x, GB) for x in np.atleast_1d(table.comm_bwd[name]))


@pytest.mark.parametrize('adapters, products', [
    ('none', 2), ('frozen:mlp', 2), ('frozen:attention', 1)])
def test_absorbed_products_are_frozen_with_their_attention(adapters, products):
    "Backward a product that trains has two, of its input and its weight, and a frozen one has one."
    layout = Parallel(dp=8, ep=8, adapters=adapters)
    table = estimate('deepseek_v3.2', layout, 'H100-80GB', 8).layers.set_index('layer')
    for name in ('q-up', 'absorb-q', 'absorb-v'):
        assert table.flops_bwd[name] / table.flops_fwd[name] == pytest.approx(products, rel=.01)


def test_arithmetic_of_a_frozen_product():
    "4 m n of 6 a token, and 6 r (m + n) for the adapter; attention's core stays."
    whole, some = (of(adapters, 'corrected', batch=1) for adapters in ('none', 'lora:16'))
    flop = lambda one: one.stats['executed_TFLOP_per_gpu'] * 1e12 / M.seq_len
    in_layers = (whole.stats['weights_GB'] / 2e-9) - 32 * 2 * 4096   # without norms
    assert close(flop(whole) - flop(some), 2 * in_layers - 6 * 41_943_040, 1e-3)
    rank = flop(of('lora:32', 'corrected', batch=1)) - flop(some)
    assert close(rank, 6 * 41_943_040, 1e-3)
    model = [one.stats['model_TFLOP_per_gpu'] * 1e12 / M.seq_len for one in (whole, some)]
    words = 128_256 * 4096   # of the output layer, which model FLOP count under every preset
    assert close(model[0] - model[1], 2 * (in_layers + words), 1e-3)


def test_flop_of_llama_70b_as_published():
    """Megatron-Bridge, 26.06: Llama 3 70B, 710 TFLOP/s at 1,638 tokens/s of full fine-tuning are
    433 GFLOP a token; 735 at 2,643 with LoRA are 278, two thirds of the products' 417."""
    model = replace(NAMED['llama3.1_70B'], seq_len=4096)
    each = lambda adapters: (of(adapters, model=model, tp=2, pp=4, batch=32).stats[
        'model_TFLOP_per_gpu'] * 8e3 / 32 / 4096)
    assert close(each('none'), 710e3 / 1638, 2e-3)
    core = each('none') - 3 * (each('none') - each('lora:16'))   # what has no weights
    assert close(each('lora:16') - core, 735e3 / 2643, 2e-3) and core < .04 * each('none')


def test_inputs_that_no_gradient_wants():
    "Without an adapter, the MLP keeps neither of its products' inputs; the rest stays."
    unit = 2e-9 * M.seq_len * 32   # GB of a number for each token, in all layers
    kept = lambda adapters, **more: of(adapters, tp=1, batch=1, **more).stats['activations_GB']
    all_of = kept('lora:16')
    saved = all_of - kept('lora:16:attention')
    ranks = 16 * 3 + 16   # fc1's and fc2's narrow results (gate and values apart)
    assert close(saved, unit * (M.embed_dim + M.mlp_dim + ranks - 16), 1e-6)
    more, output = all_of - kept('none'), unit / 32 * M.embed_dim   # whose input no gradient wants
    assert close(more, unit * 16 * 7 - output, 1e-6)   # seven adapters' own


FROZEN = {'attention': 4096 * (4096 + 2048) + 4096**2, 'mlp': 3 * 4096 * 14336}   # of a layer


@pytest.mark.parametrize('preset', EVERY)
@pytest.mark.parametrize('part', FROZEN)
def test_frozen_parts_by_hand(part, preset):
    "Weights stay; gradients, states, their messages and two of six FLOP go, of this part alone."
    whole, some = (of(adapters, preset, dp=2).stats for adapters in ('none', f'frozen:{part}'))
    still = 32 * FROZEN[part]
    assert close(some['weights_GB'], whole['weights_GB'])
    held = 4 if preset == 'calibrated' else 2   # bytes of a gradient
    assert close(whole['gradients_GB'] - some['gradients_GB'], held * 1e-9 * still)
    assert close(whole['optimizer_GB'] - some['optimizer_GB'], 12e-9 * still / 2)   # two copies
    flop = 1e12 * (whole['model_TFLOP_per_gpu'] - some['model_TFLOP_per_gpu'])
    assert close(flop, 2 * still * M.seq_len * 32, 1e-9)   # samples of a GPU
    assert some['dp_comm_s'] < whole['dp_comm_s'] and some['iteration_s'] < whole['iteration_s']


@pytest.mark.parametrize('model', [DENSE, 'mixtral_8x7B', 'qwen3_next_80B_A3B'])
@pytest.mark.parametrize('layout', [{}, dict(pp=2), dict(reshard_after_forward=False)])
@pytest.mark.parametrize('part', FROZEN)
def test_a_gathered_unit_has_what_trains_and_what_does_not(part, layout, model):
    "ZeRO-3 holds as many weights at once, whichever of them train: units are the same."
    whole, some = (of(adapters, 'calibrated', model, dp=8, zero_stage=3, **layout).stats
                   ['weights_GB'] for adapters in ('none', f'frozen:{part}'))
    assert close(some, whole)


def test_units_of_adapters_by_hand():
    "A layer and a table: a share of all, and the two that weigh most, one behind the other."
    rank, words = 41_943_040 / 32, 128256 * 4096   # of a layer's adapters, of a table
    layer = (M.parameters - 2 * words) / 32
    held = of('lora:16', 'calibrated', dp=8, zero_stage=3).stats['weights_GB']
    want = 2e-9 * ((M.parameters + 32 * rank) / 8 + layer + words + rank)
    assert close(held, want, 1e-5)   # but for the last norm


@pytest.mark.parametrize('adapters', ['none', 'lora:16', 'frozen:attention'])
@pytest.mark.parametrize('name, layouts', [
    (DENSE, [{}, dict(tp=8), dict(tp=16), dict(cp=2, tp=2), dict(pp=4, micro_batch=2)]),
    ('qwen3_30B_A3B', [dict(dp=8), dict(dp=8, ep=8), dict(tp=4, dp=2, ep=2, etp=4)]),
    ('deepseek_v3.2', [{}, dict(tp=2), dict(tp=16)])])
def test_model_flop_are_the_models_own(adapters, name, layouts):
    "However it is shared out, and however crowded its busiest experts are."
    model = replace(NAMED[name], seq_len=4096)
    whole = {round(float(one.stats['model_TFLOP_per_gpu']) * one.parallel.n_gpus, 6)
             for layout in layouts for crowd in (1., 2.)
             for one in [estimate(model, Parallel(adapters=adapters, **layout), H100, 32, replace(
                 as_assumptions('calibrated'), expert_imbalance=crowd))]}
    assert max(whole) - min(whole) < 1e-9 * max(whole)


@pytest.mark.parametrize('ahead', [0, 1, 2])
def test_model_flop_of_further_output_layers(ahead):
    "Each layer of multi-token prediction joins, and passes the output layer again."
    model = replace(M, mtp_layers=ahead)
    flop = [1e12 * of(adapters, model=model, batch=1).stats['model_TFLOP_per_gpu']
            for adapters in ('none', 'lora:16')]
    e, words = 4096, 128_256 * 4096
    in_layer = e * (4096 + 2 * 1024) + 4096 * e + 3 * e * 14336
    stay = (32 + ahead) * in_layer + (1 + ahead) * words + ahead * 2 * e * e
    assert close(flop[0] - flop[1], 2 * stay * M.seq_len)


# weights that stay, shared out

def copies(adapters, **more):
    "An 8B on 32 GPUs whose copies share out all: nothing hides behind anything."
    how = dict(dp=32, zero_stage=3, recompute='full', dp_overlap=False) | more
    one = estimate(DENSE, Parallel(adapters=adapters, **how), H100, 32, software='torchtitan')
    return one, pricer_of(H100, one.assumptions)


@pytest.mark.parametrize('adapters, precision', [
    ('lora:16', 'bf16'), ('lora:16', 'fp8'), ('qlora:16', 'bf16'), ('qlora:16', 'fp8')])
def test_weights_that_stay_are_gathered_with_those_that_train(adapters, precision):
    "Twice a layer in one message, in 8 bits where the others are, or 4; and the words, in 16."
    one, pricer = copies(adapters, precision=precision)
    group, rank = Group(32, 8), 16 * (3 * 4096 + 6144 + 8192 + 3 * (4096 + 14336))
    matrices, norms = 4096 * (4096 + 2048) + 4096**2 + 3 * 4096 * 14336, 2 * 4096
    low = 1 + (precision == 'fp8')
    gathered = 2e-9 * (matrices + norms + rank) / low
    if adapters == 'qlora:16': gathered = 1e-9 * (NF4 * matrices + 2 * norms + 2 * rank / low)
    words = 2e-9 * (2 * 128_256 + 1) * 4096
    of = lambda GB: 2 * pricer.collective('allgather', GB, group)
    reduced = pricer.collective('reducescatter', 4e-9 * rank, group)
    assert close(one.stats['dp_comm_s'], 32 * (of(gathered) + reduced) + of(words), 1e-6)


@pytest.mark.parametrize('adapters', ['none', 'frozen:mlp', 'frozen:attention', 'lora:16'])
def test_no_iteration_is_shorter_than_its_messages(adapters):
    "They share one network: what hides behind a layer hides there once."
    slow = replace(H100, ib_bandwidth=12)
    how = dict(dp=64, zero_stage=3, adapters=adapters)
    shown, whole = (estimate('gpt3', Parallel(**how, dp_overlap=flag), slow, 64,
                             software='fms-fsdp').stats for flag in (True, False))
    assert shown['iteration_s'] > whole['dp_comm_s']


def test_experts_that_nobody_shares_are_not_held_twice():
    "Those of all GPUs together are one model: gathered are the others alone."
    model = NAMED['gpt_oss_120B']
    one = estimate(model, Parallel(dp=4, ep=4, zero_stage=3, adapters='lora:16', recompute='full'),
                   H100, 4, software='Megatron-Core')
    e, w = model.embed_dim, model.expert_dim
    routed = 2e-9 * model.experts / 4 * (3 * e * w + 2 * w + e)   # here, with their biases
    held = one.stats['weights_GB'] - model.depth * routed
    others = 2e-9 * model.parameters - 4 * model.depth * routed
    beside = 2e-9 * model.depth * 32 * 48 * (e + w)   # adapters of experts, of rank 16
    gathered = 2e-9 * model.vocab * e + others / model.depth
    assert others / 4 + beside < held < others / 4 + beside + gathered


def test_frozen_parts_keep_no_inputs():
    "The MLP's two products keep neither input; attention's keep that of the last alone."
    unit = 2e-9 * M.seq_len * 32   # GB of a number for each token, in all layers
    kept = lambda adapters: of(adapters, batch=1).stats['activations_GB']
    assert close(kept('none') - kept('frozen:mlp'), unit * (M.embed_dim + M.mlp_dim), 1e-6)
    assert close(kept('none') - kept('frozen:attention'), unit * M.embed_dim, 1e-6)


def test_a_router_keeps_what_shared_experts_do_not():
    "Both read the same numbers: frozen shared experts save none, and the router saves them."
    routed = replace(NAMED['qwen3_30B_A3B'], seq_len=4096)
    shared = replace(routed, shared_expert_dim=768)
    kept = lambda model, adapters: of(adapters, model=model, batch=8, dp=8, ep=8).stats[
        'activations_GB']
    hidden = 2e-9 * 4096 * 48 * 768   # of shared experts, in all layers
    for adapters, several in (('none', 2 + 1), ('frozen:mlp', 2)):   # before the gate, and after
        more = kept(shared, adapters) - kept(routed, adapters)
        assert close(more, several * hidden, 1e-6), adapters


@pytest.mark.parametrize('place, inputs', [   # attention's output is its own, and no copy of it
    ('', 2 * 4096 + 14336), (':attention', 4096), (':mlp', 4096 + 14336)])
def test_adapters_read_16_bits(place, inputs):
    "Beside products in 8 bits they save two bytes of a number, and the products nothing."
    unit, narrow = 1e-9 * M.seq_len * 32, 16 * {'': 7, ':attention': 4, ':mlp': 3}[place]
    kept = lambda adapters, **more: of(adapters, batch=1, **more).stats['activations_GB']
    low, high = (kept(f'lora:16{place}', precision=name) for name in ('fp8', 'bf16'))
    assert close(low, high, 1e-12)
    nothing = kept('frozen:mlp') - unit * 2 * 2 * 4096   # attention's inputs
    nothing += unit * 2 * 4096   # its output, which its kernel asks for
    nothing -= unit / 32 * 2 * 4096   # what the output reads, which only its weight would ask for
    assert close(low - nothing, 2 * unit * (inputs + narrow), 1e-6)


def test_checkpoints_of_frozen_parts():
    "Of what trains: weights in 16 bits, and 12 bytes of states."
    whole, some = (checkpoint_GB(M, 'adam', adapters, as_assumptions('calibrated'))
                   for adapters in ('none', 'frozen:mlp'))
    assert close(whole - some, 14e-9 * 32 * FROZEN['mlp'])


def test_four_bits():
    "0.5 bytes, a byte for each 64, and four for each 64 * 256 of these (arXiv 2305.14314)."
    assert close(NF4, .5 + .015625 + .000244140625)
    four, sixteen = of('qlora:16').stats, of('lora:16').stats
    in_layers = 32 * (4096 * (4096 + 2048) + 4096**2 + 3 * 4096 * 14336)
    assert close(sixteen['weights_GB'] - four['weights_GB'], (2 - NF4) * 1e-9 * in_layers)
    moved = 64 * 2 * (2 + NF4) * 1e-9 * in_layers / 3350   # read and written in both passes
    assert moved < four['iteration_s'] - sixteen['iteration_s'] < 2 * moved
    again = of('qlora:16', recompute='full').stats['iteration_s']
    more = again - of('lora:16', recompute='full').stats['iteration_s']
    assert close(more, 1.5 * (four['iteration_s'] - sixteen['iteration_s']), .05)


def test_four_bits_are_the_only_copy_of_a_weight():
    "Products in 8 bits hold two bytes of a frozen weight in 16 bits besides, none of one in 4."
    in_layers = 32 * (4096 * (4096 + 2048) + 4096**2 + 3 * 4096 * 14336)
    weights = lambda adapters, precision: of(adapters, precision=precision).stats['weights_GB']
    more = {name: weights(name, 'fp8') - weights(name, 'bf16') for name in ('lora:16', 'qlora:16')}
    assert close(more['lora:16'], 2e-9 * in_layers) and more['qlora:16'] == 0


@pytest.mark.parametrize('adapters, held', [('lora:16', 2), ('qlora:16', NF4)])
def test_an_adapted_layer_by_hand(adapters, held):
    "Each product: its input's gradient alone, and two narrow products; weights are unpacked."
    def rows(adapters):
        one = of(adapters, batch=1)
        return {op.name: op for kind in job_of_estimate(one).kinds for op in kind.operations}
    plain, some = rows('none'), rows(adapters)
    T, r, unpacked = M.seq_len, 16, 0 if held == 2 else held + 2
    for name, several in (('qkv', 3), ('vproj', 1), ('fc1', 2), ('fc2', 1)):
        old, new = plain[name], some[name]
        (_, n, m, *_), = (p[:4] for p in old.forward.products)
        narrow = [(T, r * several, m), (T, n, r)]
        assert [p[:3] for p in new.forward.products] == [(T, n, m), *narrow]
        back = [(T, m, n), (T, r, n), (T, m, r * several), (r, n, T), (m, r * several, T)]
        assert [p[:3] for p in new.backward.products] == back
        assert [p.adds for p in new.backward.products] == [False] * 3 + [True] * 2
        assert close(new.forward.nbytes, old.forward.nbytes + 1e-9 * (
            unpacked * m * n + 3 * 2 * T * n))   # what the weight says, and the sum
        assert close(new.backward.nbytes, old.backward.nbytes + 1e-9 * unpacked * m * n)
        assert new.forward.launches == old.forward.launches + 1
        assert close(new.weights, 2e-9 * (m * r * several + r * n))
        assert close(new.frozen, 1e-9 * held * m * n)
        assert sum(x.rows * x.columns for x in new.matrices) == m * r * several + r * n
        wide = 2e-9 * T * r * several
        assert close(new.activations - wide, old.activations), name


def test_gradients_pass_through_a_norm_that_stays():
    "All of its backward pass is left; of an embedding, which has nothing before it, none."
    jobs = [job_of_estimate(of(adapters)) for adapters in ('none', 'lora:16')]
    plain, some = ({op.name: op for ops in (job.kinds[0].operations, *end_operations(job))
                    for op in ops} for job in jobs)
    for name in ('ln1', 'ln2', 'embedding'):
        assert some[name].forward == plain[name].forward
        assert close(some[name].frozen, plain[name].weights) and some[name].weights == 0
    assert all(some[name].backward == plain[name].backward for name in ('ln1', 'ln2'))
    assert plain['embedding'].backward.nbytes > some['embedding'].backward.nbytes == 0


def test_adapted_experts_by_hand():
    "Two of eight on a GPU: each has narrow matrices of its own, and no other's."
    plain, some = (
        {op.name: op for kind in job_of_estimate(of(
            adapters, 'corrected', 'mixtral_8x7B', dp=4, ep=4)).kinds for op in kind.operations}
        for adapters in ('none', 'lora:16'))
    E, rows = 2, 4 * 32768 * 2 / 8   # of the tokens of four GPUs each goes to two of eight
    for name, several, m, n in (('expert-fc1', 2, 4096, 28672), ('expert-fc2', 1, 14336, 4096)):
        old, new, wide = plain[name], some[name], 16 * several
        assert [p[:4] for p in new.forward.products[1:]] == [
            (rows, wide, m, E), (rows, n, 16, E)]
        assert close(new.weights, 2e-9 * E * (m * wide + 16 * n)) and close(new.frozen, old.weights)
        assert sum(x.rows * x.columns * x.number for x in new.matrices) == E * (m * wide + 16 * n)
        assert close(new.activations - old.activations, 2e-9 * E * rows * wide)
        assert close(new.forward.nbytes - old.forward.nbytes, 3 * 2e-9 * E * rows * n)


def test_65_billion_parameters_on_one_gpu_of_48_gb():
    """QLoRA (arXiv 2305.14314, abstract): 65 B on one GPU of 48 GB (49,140 MiB), with rank 64
    beside all products of a layer; more than 780 GB where all of it trains in 16 bits."""
    llama = Model(512, 8192, 64, 80, 22016, vocab=32000, gated_mlp=True)
    assert close(llama.parameters, 65.3e9, 1e-3)
    GB = {name: of(name, model=llama, batch=16, recompute='full').stats['memory_GB']
          for name in ('none', 'lora:64', 'qlora:64')}
    assert .9 * 49.14 * 1.048576 < GB['qlora:64'] < 49.14 * 1.048576
    assert GB['lora:64'] > 140 and GB['none'] > 780


def test_messages_are_of_what_trains():
    "Copies exchange adapters alone, but ZeRO-3 gathers all weights."
    small, large = of('lora:16', dp=8, dp_overlap=False), of(dp=8, dp_overlap=False)
    assert small.stats['dp_comm_s'] < large.stats['dp_comm_s'] / 50
    for offload in ('none', 'weights'):
        some, whole = (of(adapters, dp=8, dp_overlap=False, zero_stage=3, offload=offload,
                          preset='corrected').stats for adapters in ('lora:16', 'none'))
        assert .5 < some['dp_comm_s'] / whole['dp_comm_s'] < .85   # both gathers, no reduction
        assert some['weights_GB'] < 1.01 * whole['weights_GB']
        assert close(some.get('host_GB', 0), whole.get('host_GB', 0), .01)
    assert of('lora:16', tp=2).stats['tp_comm_s'] == of(tp=2).stats['tp_comm_s']


def test_weights_that_do_not_train_are_gathered_once_where_they_stay():
    "ZeRO-3 gathers every weight once less if it stays between the passes, trained or not."
    def saved(adapters):
        kept, freed = (of(adapters, dp=8, dp_overlap=False, zero_stage=3, preset='corrected',
                          reshard_after_forward=again).stats['dp_comm_s']
                       for again in (False, True))
        return freed - kept
    GB, link = 2e-9 * (M.parameters - 2 * 128256 * 4096) / 32, H100.nvlink   # of a layer
    again = 8 * 32 * (GB * 7 / 8 / link.bandwidth + 7 * link.latency)   # of 8 micro-batches
    assert close(saved('none'), again, 1e-5)   # the last norm is no layer's
    assert close(saved('lora:16'), saved('none'), .02)


@pytest.mark.parametrize('preset', EVERY)
def test_experts_latents_and_grids(preset):
    for model, layout in (('mixtral_8x7B', dict(ep=8, dp=8)), ('deepseek_v3', dict(ep=64, dp=64))):
        some, whole = (of(adapters, preset, model, **layout).stats
                       for adapters in ('lora:8', 'none'))
        assert 0 < some['optimizer_GB'] < whole['optimizer_GB'] / 10
        assert some['iteration_s'] < whole['iteration_s']
        assert whole['weights_GB'] < some['weights_GB'] < 1.1 * whole['weights_GB']
    with pytest.raises(ValueError, match='SUMMA has none'):
        of('lora:8', preset, 'gpt3', strategy='2d', tp=4, cp=2)


@pytest.mark.parametrize('asked, why', [
    ('lora', 'must say a rank'), ('lora:0', 'rank of adapters'), ('lora:x', 'rank of adapters'),
    ('lora:65537', 'from 1 to 65536'),
    ('none:4', 'has no rank'), ('dora:16', "did you mean 'lora'"),
    ('lora:16:attenton', "did you mean 'attention'"), ('lora:1:mlp:2', "after the place 'mlp'"),
    ('frozen', 'must say what does not train'), ('frozen:mpl', "did you mean 'mlp'")])
def test_mistakes(asked, why):
    with pytest.raises(ValueError, match=why) as error: of(asked)
    assert '\n' not in str(error.value)


def test_a_search_has_one_kind_for_all():
    found = search(DENSE, 8, H100, 64, k=3, adapters='qlora:16')
    assert {*found.adapters} == {'qlora:16'}
    for _, row in found.iterrows():
        one = estimate(DENSE, Parallel.from_row(row), H100, 64)
        assert close(one.stats['iteration_s'], row.iteration_s) and one.fits
        assert 'extrapolated: no run with adapters qlora' in row.evidence
    assert 'adapters' not in search(DENSE, 8, H100, 64, k=3)
    with pytest.raises(ValueError, match='a search has one'):
        search(DENSE, 8, H100, 64, adapters=['none', 'lora:16'])
    assert adapted('none').rank == 0


def test_files_say_none():
    job = Job(Parallel(dp=8, adapters='lora:16'), M, 64, 8, M.seq_len)
    for name in ('megatron', 'deepspeed', 'accelerate', 'torchtitan'):
        with pytest.raises(ValueError, match="adapters='lora:16' cannot be said"): export(job, name)
    assert as_job(json.loads(export(job, 'json'))).parallel.adapters == 'lora:16'
    flags = '--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 64 --bf16 '
    with pytest.raises(ValueError, match='adapters are not read'): as_job(flags + '--lora-dim 16')


def test_an_optimizer_of_matrices_takes_theirs():
    a = as_assumptions('corrected')
    muon, adam = (of('lora:16', a, optimizer=name).stats for name in ('muon', 'adam'))
    assert close(muon['optimizer_GB'], 8 / 12 * adam['optimizer_GB'])
    assert muon['other_s'] < of('none', a, optimizer='muon').stats['other_s'] / 10


@pytest.mark.parametrize('model', ['deepseek_v3', 'gpt_oss_120B'])
@pytest.mark.parametrize('adapters', ['lora:8', 'frozen:mlp'])
def test_so_it_does_where_layers_are_of_several_kinds(model, adapters):
    muon, adam = (of(adapters, 'corrected', model, dp=8, optimizer=name).stats['optimizer_GB']
                  for name in ('muon', 'adam'))
    assert 8 / 12 * adam <= muon < adam   # of what is no matrix two moments stay


def test_words_that_are_shared_do_not_train_either():
    "The layer of multi-token prediction multiplies by them once more: forward, and backward."
    for n in (0, 1):
        model = replace(NAMED['deepseek_v3'], mtp_layers=n)
        one = of('lora:16', 'calibrated', model, 8, ep=8, dp=8)
        words = [op for op in end_operations(job_of_estimate(one))[1] if op.name == 'output']
        assert [len(op.backward.products) for op in words] == [1] * (1 + n)


@pytest.mark.parametrize('adapters', ['lora:16', 'qlora:16', 'frozen:attention'])
def test_what_stands_at_the_ends_is_held_as_it_is(adapters):
    "Adapters are of layers: words, and what joins two streams, stay in 16 bits, whole."
    ends = lambda adapters: itertools.chain(*end_operations(job_of_estimate(of(
        adapters, model='deepseek_v3', batch=8, ep=8, dp=8, precision='fp8'))))
    for some, plain in zip(ends(adapters), ends('none'), strict=True):
        assert close(some.weights + some.frozen, plain.weights) and some.copies == plain.copies
        if adapters != 'frozen:attention': assert not some.weights and not some.matrices


def test_all_of_attention_is_still():
    "What DeepSeek-V3.2 absorbs are matrices of attention, and so is its indexer."
    one = of('frozen:attention', model='deepseek_v3.2', batch=8, dp=8)
    layer, *_ = job_of_estimate(one).kinds
    trains = {op.name for op in layer.operations if op.forward.products and op.weights}
    assert trains and all('fc' in name or name == 'router' for name in trains), trains
