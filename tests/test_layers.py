"Layers of today's models: every parameter, product and message against a second count."
import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from thorough import examples
from transformer_perf import Model, estimate, search
from transformer_perf.choices import recomputed_parts
from transformer_perf.estimates import CHOICES, Group, as_assumptions, counted, exchanged
from transformer_perf.timeline import (
    GROUPS, PLACES, distinct_stages, job_of, mean_layer, stages_of, statistics)
from transformer_perf.iteration import Parallel
from transformer_perf.kernels import pricer_of
from transformer_perf.blocks import (
    MLP, Attention, Block, domains_met, end_operations, expert_copies, expert_groups,
    heads_swapped, places_met)
from transformer_perf.linear_attention import Beside, GatedDeltaNet
from transformer_perf.modules import count, ends_GB, full_share, layer_cost, layer_memory
from transformer_perf.models import NAMED
from transformer_perf.systems import as_system

H100 = as_system('H100-80GB')
CALIBRATED = as_assumptions('calibrated').on(H100)
few = examples(40)


def test_layers_computed_again_in_full_are_a_share_of_a_stage():
    for layers in (1, 4, np.array([1, 2, 4, 40])):
        for asked in (1, 3, 40):
            share = full_share(f'full:{asked}', layers)
            assert np.allclose(share, np.minimum(asked, layers) / layers)
    assert full_share('full', 4) == 1 and full_share('none', 4) == full_share('selective', 4) == 0


def test_heads_swapped_in_each_row_of_a_table():
    "All of cp exchange them, or those of a domain; in a ring alone none, beside such rows, too."
    table = SimpleNamespace(context=np.array(['ring', 'allgather', 'ulysses', 'ulysses+ring']),
                            nvlink_cp=4, cp=8)
    mixer = SimpleNamespace(own_kv=lambda job: 8.)
    assert heads_swapped(table, mixer).tolist() == [1, 1, 8, 4]


def job(model, a=CALIBRATED, **given):
    t = dict(dict.fromkeys(('micro_batch', 'tp', 'cp', 'pp', 'dp'), 1), **given)
    return job_of(t, NAMED.get(model, model), H100, 64, a)


def weights_of(j):
    "Numbers of weights of the whole model on one GPU."
    j = count(j)
    (stage, *_) = stages_of(j)
    of = mean_layer(j.stored, stage.layers)
    layers = sum(stage.layers) * (of.weights + of.routed)
    return (layers + ends_GB(j.weights, 1., 1.)) / j.layouts.units.element


@pytest.mark.parametrize('name', NAMED)
def test_every_parameter_has_an_operation(name):
    "What the operations of all layers hold is what the model's own table counts."
    assert math.isclose(weights_of(job(name)), NAMED[name].parameters, rel_tol=1e-12)


LATENT = dict(kv_lora_rank=16, q_lora_rank=24, qk_nope_head_dim=8, qk_rope_head_dim=4,
              v_head_dim=10)

@pytest.mark.parametrize('more', [LATENT, {'mtp_layers': 2}], ids=['latents', 'ahead'])
def test_only_what_the_table_says_has_a_bias(more):
    "A model like GPT has biases, and what it has besides has none."
    model = Model(256, 64, 8, 2, mlp_dim=96, vocab=64, **more)
    assert model.bias_kind == 'all'
    assert math.isclose(weights_of(job(model)), model.parameters, rel_tol=1e-12)


some = lambda *values: st.sampled_from((None, *values))

@st.composite
def small_models(draw):
    kv = draw(st.sampled_from([1, 2, 4, 8]))
    sizes = dict(seq_len=256, embed_dim=64, heads=8, depth=draw(st.integers(1, 5)), mlp_dim=96,
                 vocab=64, gated_mlp=draw(st.booleans()),
                 biases=draw(some('none', 'qkv', 'attention', 'mlp', 'all')),
                 norm=draw(some('layernorm', 'rmsnorm')), tied_embeddings=draw(st.booleans()),
                 learned_positions=draw(st.booleans()), mtp_layers=draw(st.integers(0, 2)))
    if draw(st.booleans()): sizes |= dict(window=64, full_attention_every=draw(some(2, 3)))
    if draw(st.booleans()):
        sizes |= dict(kv_lora_rank=16, q_lora_rank=draw(some(24)), qk_nope_head_dim=8,
                      qk_rope_head_dim=4, v_head_dim=10)
    else: sizes |= dict(kv_heads=kv, head_dim=draw(some(4, 16)), qk_norm=draw(st.booleans()),
                        attention_sinks=draw(st.booleans()))
    if draw(st.booleans()):
        first = draw(st.integers(0, sizes['depth'] - 1))
        sizes |= dict(experts=8, experts_per_token=draw(st.integers(1, 4)), expert_dim=32,
                      router_bias=draw(st.booleans()), shared_expert_dim=draw(some(32)),
                      dense_layers_first=first)
        if sizes['shared_expert_dim']: sizes['shared_expert_gate'] = draw(st.booleans())
    return Model(**sizes)


@few
@given(small_models())
def test_parameters_of_any_model(model):
    assert math.isclose(weights_of(job(model)), model.parameters, rel_tol=1e-12)


@few
@given(small_models(), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]))
def test_experts_are_shared_out(model, ep, tp):
    "What the GPUs of a group hold adds up, and the products are those of one GPU."
    if not model.experts: return
    one, many = job(model), job(model, tp=tp, dp=8 * ep // tp, ep=ep)
    for a, b in zip(one.kinds, many.kinds):
        assert math.isclose(layer_memory(a).routed, layer_memory(b).routed * ep, rel_tol=1e-12)
        flop = [sum(counted(op.forward)[0] for op in kind.operations if op.routed)
                for kind in (a, b)]
        assert math.isclose(flop[0], flop[1] * tp, rel_tol=1e-9)   # tokens are shared out over tp


@pytest.mark.parametrize('name', [   # scans compute some of it twice: counted elsewhere
    name for name, m in NAMED.items() if m.vocab and not m.layers])
def test_products_are_the_model_flop(name):
    "Forward and backward, with the masks, within what a sum of k terms is less than 2 k."
    j, m = job(name), NAMED[name]
    which = count(j).pattern.which
    # fused attention computes its scores again, which model FLOP leave out
    own = lambda w: sum(p.flop for p in w.products) + (
        0 if not w.attention else sum(p.flop for p in w.attention.products[
            :4 if w.attention.backward else 2]))
    layers = [sum(own(op.forward) + own(op.backward) for op in kind.operations
                  if op.name != 'router') for kind in j.kinds]
    ends = sum(own(op.forward) + own(op.backward) for ops in end_operations(j) for op in ops)
    total = sum(layers[i] for i in which) + ends
    # four of the five products of a backward pass: exact where keys are as wide as values
    latent = .01 if m.kv_lora_rank else 0
    assert math.isclose(total / m.seq_len, m.flops_per_token(), rel_tol=2e-3 + latent)


def test_a_layer_with_experts_by_hand():
    "8 GPUs, 64 experts, 6 of them for each of 1024 tokens: DeepSeek-like, in numbers of a page."
    model = Model(1024, 256, 8, 1, mlp_dim=512, gated_mlp=True, experts=64, experts_per_token=6,
                  expert_dim=128, vocab=512)
    j = job(model, dp=8, ep=8, nvlink_dp=8)
    ops = {op.name: op for op in j.operations}
    first = ops['expert-fc1'].forward.products[0]
    assert (first.m, first.n, first.k, first.batch) == (1024 * 6 / 8, 2 * 128, 256, 8)
    (sent,) = [m for m in ops['dispatch'].forward.messages if np.any(m.volume)]
    assert (sent.kind, sent.group) == ('alltoall', 'ep')
    assert math.isclose(sent.volume, 2e-9 * 1024 * 6 * 256)
    assert expert_groups(j)['ep'] == Group(8, 8) and expert_copies(j) == Group(1, 1)
    assert math.isclose(ops['expert-fc1'].weights, 2e-9 * 8 * 256 * 256)


@pytest.mark.parametrize('precision', ['bf16', 'fp8'])
def test_an_input_of_two_products_is_kept_once(precision):
    "But where each casts it, each keeps its copy; the router stays in 16 bits."
    a = dataclasses.replace(CALIBRATED, precision=precision)
    j = job('deepseek_v3', a).kinds[-1]
    ops = {op.name: op for op in j.operations}
    numbers = [ops[name].activations / (1e-9 * j.tokens * 7168)   # bytes of each
               for name in ('q-down', 'kv-down', 'router', 'shared-fc1')]
    kept = {'bf16': [2, 0, 0, 2], 'fp8': [1, 1, 2, 1]}[precision]
    for found, expected in zip(numbers, kept): assert math.isclose(found, expected)


def test_groups_fold():
    "Experts take their GPUs from tp, cp and dp: Megatron's folding."
    j = job('qwen3_30B_A3B', tp=4, cp=2, dp=8, ep=16, etp=2, nvlink_tp=4, nvlink_cp=2)
    assert expert_groups(j) == {'etp': Group(2, 2), 'ep': Group(16, 4), 'experts': Group(32, 8)}
    assert expert_copies(j) == Group(2, 1)


def test_domains_met_by_trying():
    "Choose K of E experts again and again, and count the other domains that they live in."
    free = dataclasses.replace(NAMED['deepseek_v3'], router_groups=None,
                               router_groups_per_token=None)
    j = job(free, dp=64, ep=64, nvlink_dp=8)
    rng, met = np.random.default_rng(0), []
    for _ in range(4000): met.append(len({e // 32 for e in rng.permutation(256)[:8]} - {0}))
    assert math.isclose(domains_met(j, j.blocks[-1][0].ffn), np.mean(met), rel_tol=.02)
    once = dataclasses.replace(CALIBRATED, dispatcher='once')
    messages = [job(free, a, dp=64, ep=64, nvlink_dp=8).kinds[1].operations
                for a in (CALIBRATED, once)]
    far = [next(exchanged(m.volume, m.far, 64, 8)[1] for op in ops if op.name == 'dispatch'
                for m in op.forward.messages if m.kind == 'alltoall') for ops in messages]
    leave = 8 * 56 / 64   # of 8 copies, 7 in 8
    assert math.isclose(far[1] / far[0], domains_met(j, j.blocks[-1][0].ffn) / leave)


def chosen_in_groups(experts, groups, few, each, rng):  # array [token, expert]
    "As DeepSeek-V3's router: groups by their two best experts, then the best experts in them."
    scores = rng.normal(size=(4000, experts))
    of_groups = scores.reshape(4000, groups, -1)
    best = np.sort(of_groups, axis=-1)[..., -2:].sum(axis=-1)
    last = np.sort(best, axis=-1)[:, -few, None]   # the worst of those that are taken
    taken = np.where((best >= last)[..., None], of_groups, -np.inf).reshape(scores.shape)
    return np.argsort(-taken, axis=-1)[:, :each]


@pytest.mark.parametrize('domains', [1, 2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize('experts, groups, few, each', [(256, 8, 4, 8), (128, 4, 2, 6)])
def test_a_router_that_chooses_groups(experts, groups, few, each, domains):
    "A token goes to no more places than its groups have; to all its groups, where these are whole."
    model = dataclasses.replace(
        NAMED['deepseek_v3'], experts=experts, experts_per_token=each, router_groups=groups,
        router_groups_per_token=few)
    j = job(model, dp=64, ep=64)
    found = places_met(j, j.blocks[-1][0].ffn, domains)
    chosen = chosen_in_groups(experts, groups, few, each, np.random.default_rng(0))
    met = np.mean([len({*row}) for row in (chosen // (experts // domains)).tolist()])
    assert math.isclose(found, met, rel_tol=.01 if domains <= groups else .07)
    if domains <= groups:
        assert found <= min(few, domains)
        hit = [any(x * domains // groups == 0 for x in some)
               for some in itertools.combinations(range(groups), few)]
        assert math.isclose(found, domains * np.mean(hit))


def test_deepseek_v3_goes_to_four_nodes():
    "One of eight groups is on each of eight nodes: 3.5 others, not 4.6 as of any experts."
    j = job('deepseek_v3', dp=64, ep=64, nvlink_dp=8)
    assert math.isclose(domains_met(j, j.blocks[-1][0].ffn), 4 * 7 / 8)
    columns = job('deepseek_v3', dp=np.array([16, 64]), ep=np.array([16, 64]),
                  nvlink_dp=np.array([8, 4]))
    alone = [job('deepseek_v3', dp=n, ep=n, nvlink_dp=near) for n, near in ((16, 8), (64, 4))]
    found = domains_met(columns, columns.blocks[-1][0].ffn)
    assert np.allclose(found, [domains_met(one, one.blocks[-1][0].ffn) for one in alone])


@pytest.mark.parametrize('change, says', [
    (dict(router_groups=3), 'experts=256 must be divisible by router_groups=3'),
    (dict(router_groups_per_token=9), 'must be at most router_groups=8'),
    (dict(router_groups_per_token=None), 'router_groups=8 needs router_groups_per_token'),
    (dict(router_groups=64, router_groups_per_token=1), 'must be at most the 4 experts')])
def test_groups_that_no_router_has(change, says):
    with pytest.raises(ValueError, match=says):
        dataclasses.replace(NAMED['deepseek_v3'], **change)


@pytest.mark.parametrize('precision, share', [
    ('bf16', 1), ('fp8', .5), ('fp8-block', (1 + 4 / 128) / 2)])
def test_tokens_travel_in_8_bits(precision, share):
    "The dispatch's forward pass is halved, and its scales sent; results and gradients are not."
    sent = []
    for low in (False, True):
        a = dataclasses.replace(CALIBRATED, fp8_dispatch=low)
        j = job('deepseek_v3', a, dp=64, ep=64, precision=precision).kinds[1]
        ops = {op.name: op for op in j.operations}
        passes = [getattr(ops[name], way) for name in ('dispatch', 'combine')
                  for way in ('forward', 'backward')]
        sent.append([sum(m.volume for m in p.messages) for p in passes])
    copies = 2e-9 * 8 * 4096 * 7168   # eight experts a token
    assert np.allclose(sent[0], copies) and np.allclose(sent[1], [share * copies, *[copies] * 3])


def test_uneven_routing_costs_what_the_busiest_computes():
    skewed = dataclasses.replace(CALIBRATED, expert_imbalance=1.5)
    padded = dataclasses.replace(CALIBRATED, capacity_factor=1.25)
    rows = [next(op for op in job('mixtral_8x7B', a, dp=8, ep=8).operations
                 if op.name == 'expert-fc1').forward.products[0].m
            for a in (CALIBRATED, skewed, padded)]
    assert math.isclose(rows[1], 1.5 * rows[0]) and math.isclose(rows[2], 1.25 * rows[0])
    sent = [next(op for op in job('mixtral_8x7B', a, dp=8, ep=8).operations
                 if op.name == 'dispatch').forward.messages[0].volume for a in (CALIBRATED, skewed)]
    assert math.isclose(sent[1], 1.5 * sent[0])


@pytest.mark.parametrize('layout', [dict(dp=8), dict(dp=8, tp=2, etp=2)])
def test_no_gpu_is_busier_where_each_has_all_experts(layout):
    "Whatever a router prefers, a GPU computes the copies of its own tokens; places are padded."
    even, skewed, padded = (
        estimate('mixtral_8x7B', Parallel(**layout), H100, 64, dataclasses.replace(CALIBRATED, **a))
        for a in ({}, dict(expert_imbalance=1.5), dict(capacity_factor=1.25)))
    assert skewed.stats == even.stats
    assert padded.stats['memory_GB'] > even.stats['memory_GB']


def test_empty_places_are_sorted_and_sent_like_others():
    "Of 1.25 places for each of two copies: a token read, places written; read and written there."
    padded = dataclasses.replace(CALIBRATED, capacity_factor=1.25)
    for ep, vectors in ((1, 1 + 2 * 1.25), (4, 1 + 3 * 2 * 1.25)):
        j = job('mixtral_8x7B', padded, dp=8, ep=ep)
        own = next(op for op in j.operations if op.name == 'dispatch')
        assert math.isclose(own.forward.nbytes, 2e-9 * j.tokens * 4096 * vectors)


@pytest.mark.parametrize('stage', [1, 3])
def test_weights_in_8_bits_are_gathered_so(stage):
    "Half of the all-gather's bytes; gradients stay as they are."
    lean = dataclasses.replace(CALIBRATED, fp8_parameters=True, precision='fp8', dp_overlap=False,
                               zero_stage=stage)
    took = [estimate('llama3.1_8B', Parallel(dp=64), H100, 64, a).stats['dp_comm_s']
            for a in (dataclasses.replace(lean, fp8_parameters=False), lean)]
    assert .5 * took[0] < took[1] < .95 * took[0]


@pytest.mark.parametrize('name', ['llama3.1_8B', 'deepseek_v3', 'qwen3_30B_A3B'])
@pytest.mark.parametrize('part', ['core_attn', 'mlp', 'mlp_act', 'layernorm', 'mla_up_proj',
                                  'moe_act', 'moe', 'shared_experts', 'full',
                                  'layernorm+moe_act+mlp'])
def test_recompute_keeps_less_and_takes_longer(name, part):
    "By just what is computed again; a part that a layer does not have changes nothing."
    plain, again = (job(name, a).kinds[-1] for a in (
        CALIBRATED, dataclasses.replace(CALIBRATED, recompute=part)))
    pricer = pricer_of(H100, CALIBRATED)
    took = [layer_cost(j, pricer) for j in (plain, again)]
    kept = [layer_memory(j).activations for j in (plain, again)]
    reruns = [op for op in plain.operations
              if set(op.recomputed_with) & set(recomputed_parts(part))]
    assert took[0].forward == took[1].forward
    assert (took[1].backward > took[0].backward) == bool(reruns or part == 'full')
    assert (kept[1] < kept[0]) == bool(reruns or part == 'full') and kept[1] > 0


def test_a_stage_may_compute_some_layers_again():
    "full:4 is between nothing and all, as many layers as there are."
    gb = {name: estimate('llama3.1_8B', Parallel(pp=4, dp=2, recompute=name), H100, 64,
                         'calibrated').stats for name in ('none', 'full:2', 'full:8', 'full')}
    for figure in ('activations_GB', 'iteration_s'):
        x = [gb[name][figure] for name in gb]
        assert math.isclose(x[2], x[3]) and min(x[0], x[3]) < x[1] < max(x[0], x[3])


def test_contexts_by_hand():
    "A ring passes on all keys and values; Ulysses sends what a GPU has, once each way."
    sent = {}
    for context in ('ring', 'allgather', 'ulysses', 'ulysses+ring'):
        a = dataclasses.replace(CALIBRATED, context=context)
        j = job('llama3.1_8B', a, cp=8, nvlink_cp=4, strategy='2d-seqp')
        (core,) = [op for op in j.operations if op.name == 'fusedla']
        sent[context] = {m.kind: m.volume for m in core.forward.messages if np.any(m.volume)}
        assert core.forward.attention.heads * core.forward.attention.queries == 32 * 8192 / 8
    keys, own = 2e-9 * 8192 * 2 * 8 * 128, 2e-9 * 1024 * (2 * 32 + 2 * 8) * 128
    expected = {'ring': {'ring': keys}, 'allgather': {'allgather': keys},
                'ulysses': {'alltoall': own}, 'ulysses+ring': {'ring': keys / 4, 'alltoall': own}}
    for context, volumes in expected.items():
        assert sent[context].keys() == volumes.keys()
        for kind, GB in volumes.items(): assert math.isclose(sent[context][kind], GB)
    with pytest.raises(ValueError, match='heads of keys and values on a GPU=8 must be divisible'):
        estimate('llama3.1_8B', Parallel(cp=16, context='ulysses'), H100, 16)


def test_all_of_cp_share_the_rest_whoever_swaps_heads():
    "Attention's ways change attention's messages: not a grid's, not those of a state beside it."
    state = GatedDeltaNet(heads=8, key=16, value=24, key_heads=8)
    beside = Beside(heads=Attention(8, 8, 16, 16), state=state)
    hybrid = Model(512, 128, 8, 2, layers=((Block(beside, MLP(256), 'none', 'rmsnorm'), 2),))
    for model, strategy, names in (
            ('gpt3', '2d', ('qkv', 'vproj', 'fc1', 'fc2', 'ln1', 'ln2')),
            (hybrid, '2d-seqp', ('short-conv', 'scan'))):
        p = Parallel(strategy=strategy, tp=2, cp=4, nvlink_tp=2, nvlink_cp=2, panels=4,
                     context='allgather', optimizer='muon')
        asked = H100, 4, 'corrected'
        alone = estimate(model, p, *asked)
        seconds = alone.layers.set_index('layer')[['t_fwd_comm', 't_bwd_comm']]
        assert (seconds.loc[[*names]].t_fwd_comm > 0).all()
        for context in ('ring', 'ulysses', 'ulysses+ring'):
            one = estimate(model, dataclasses.replace(p, context=context), *asked)
            others = one.layers.set_index('layer')[['t_fwd_comm', 't_bwd_comm']]
            assert np.allclose(others.loc[[*names]], seconds.loc[[*names]], rtol=1e-12), context
            assert math.isclose(one.stats['other_s'], alone.stats['other_s'])   # Muon's gathers


def test_steps_of_a_ring_by_hand():
    "Four GPUs: three further steps, each with the kernels of the first, and two to merge."
    works = {}
    for context in ('allgather', 'ring'):
        a = dataclasses.replace(CALIBRATED, context=context)
        (core,) = [op for op in job('llama3.1_8B', a, cp=4, strategy='2d-seqp').operations
                   if op.name == 'fusedla']
        works[context] = core.forward, core.backward
    launches = {context: [w.launches for w in both] for context, both in works.items()}
    assert launches == {'allgather': [1, 2], 'ring': [1 + 3 * (1 + 2), 2 + 3 * (2 + 2)]}
    merged = [r.nbytes - g.nbytes for g, r in zip(works['allgather'], works['ring'])]
    each = 3 * 6 * 2e-9 * 2048 * 128   # GB of a head: three steps, 12 bytes of 2,048 x 128 numbers
    assert np.allclose(merged, [32 * each, (32 + 2 * 8) * each])


@pytest.mark.parametrize('n', [2, 4, 8])
@pytest.mark.parametrize('tokens', [64, 512, 4096])
def test_a_ring_played_step_by_step(n, tokens):
    "Keys are passed on as they come; a step computes when it has them and the one before is over."
    model = dataclasses.replace(NAMED['llama3.1_8B'], seq_len=n * tokens)
    one = estimate(model, Parallel(cp=n, context='ring', nvlink_cp=1), H100, 16, 'corrected')
    row = one.layers.set_index('layer').loc['fusedla']
    pricer = pricer_of(one.system, one.assumptions)
    whole = pricer.collective('ring', 2e-9 * n * tokens * 2 * 8 * 128, Group(n, 1))
    own, sent, over = row.t_fwd_comp + row.t_fwd_mem, whole / (n - 1), 0.
    for step in range(n): over = max(over, step * sent) + own / n
    assert math.isclose(row.t_fwd, over, rel_tol=1e-9)


def test_the_last_gpu_has_most_to_do_without_zigzag():
    uneven = dataclasses.replace(CALIBRATED, zigzag=False)
    seen = [next(op for op in job('llama3.1_8B', a, cp=8, strategy='2d-seqp').operations
                 if op.name == 'fusedla').forward.attention.seen for a in (CALIBRATED, uneven)]
    assert seen == [.5, 1 - 1 / 16]   # row by row the last eighth sees 15/16 of all keys


@pytest.mark.parametrize('window', [None, 3, 9, 14])
def test_what_the_last_gpu_sees_pair_by_pair(window):
    "Of a window, too; where heads are exchanged each GPU sees the same."
    l, cp, scale = 16, 4, 256   # pieces of a sequence, GPUs, tokens of a piece
    model = dataclasses.replace(NAMED['llama3.1_8B'], seq_len=l * scale,
                                window=window and window * scale)
    for context, rows in (('ring', l * scale // cp), ('ulysses', l * scale)):
        a = dataclasses.replace(CALIBRATED, zigzag=False, context=context)
        core = next(op for op in job(model, a, cp=cp, strategy='2d-seqp').operations
                    if op.name == 'fusedla')
        see = np.minimum(np.arange(l * scale) + .5, (window or l) * scale)[-rows:]
        assert math.isclose(core.forward.attention.seen, see.mean() / (l * scale), rel_tol=1e-3)


@pytest.mark.parametrize('window', [None, 128, 1000, 2048, 3000, 3900])
@pytest.mark.parametrize('cp, context', [(1, 'ring'), (2, 'ring'), (8, 'allgather'),
                                         (8, 'ulysses')])
def test_what_the_busiest_gpu_sees_in_zigzag(window, cp, context):
    "Each GPU has a piece as far from the front as another from the back; counted row by row."
    l, cut = 4096, 1 if context == 'ulysses' else cp
    model = dataclasses.replace(NAMED['llama3.1_8B'], seq_len=l, window=window)
    core = next(op for op in job(model, CALIBRATED, cp=cp, strategy='2d-seqp',
                                 context=context).operations if op.name == 'fusedla')
    pieces = np.split(np.minimum(np.arange(l) + .5, window or l), 2 * cut)
    busiest = max(np.mean([pieces[i], pieces[-1 - i]]) for i in range(cut))
    assert math.isclose(core.forward.attention.seen, busiest / l)


def test_windows():
    "gpt-oss: every second layer sees 128 tokens; on average 1 - w / 2 l of them."
    narrow, wide = job('gpt_oss_120B').kinds
    seen = [next(op for op in k.operations if op.name == 'fusedla').forward.attention.seen
            for k in (narrow, wide)]
    assert seen[1] == .5 and math.isclose(seen[0], 128 / 4096 * (1 - 128 / 8192))


@pytest.mark.parametrize('precision, kept', [('fp8', 1), ('fp8-block', 1 + 4 / 128),
                                             ('mxfp8', 1 + 1 / 32), ('nvfp4', .5625)])
def test_precision_by_hand(precision, kept):
    "Products of weights alone are faster, keep less and pay for casts."
    b200 = as_system('B200-180GB')
    j = [job('llama3.1_8B', dataclasses.replace(CALIBRATED, precision=p)).kinds[0]
         for p in ('bf16', precision)]
    ops = [{op.name: op for op in x.operations} for x in j]
    assert math.isclose(ops[1]['fc2'].activations / ops[0]['fc2'].activations, kept / 2)
    core = [x['fusedla']._replace(activations=0., frees=()) for x in ops]
    assert core[1] == core[0] and ops[1]['ln1'] == ops[0]['ln1']
    output = ops[1]['fusedla'].activations - ops[0]['fusedla'].activations   # else vproj's input
    assert math.isclose(output, ops[0]['vproj'].activations)
    assert ops[1]['fc1'].forward.nbytes > 0 == ops[0]['fc1'].forward.nbytes
    if precision == 'nvfp4': return   # no system here has its rate and measured parameters
    t = [estimate('llama3.1_8B', Parallel(dp=8, precision=p), b200, 64, 'corrected').stats
         ['iteration_s'] for p in ('bf16', precision)]
    assert .5 * t[0] < t[1] < .85 * t[0]


@pytest.mark.parametrize('preset', ['corrected', 'calibrated'])
def test_only_a_gpu_with_4_bits_scales_blocks_of_32(preset):
    for name in ('H100-80GB', 'H200-141GB', 'MI300X'):
        with pytest.raises(ValueError, match=f"mxfp8: system '{name}' has no matrix_flops_fp4"):
            estimate('llama3.1_8B', Parallel(dp=8, precision='mxfp8'), name, 64, preset)
        with pytest.raises(ValueError, match='fp8 and fp8-block need none'):
            search('llama3.1_8B', 8, name, 64, assumptions=preset, precision='mxfp8')
    for name in ('B200-180GB', 'GB300-NVL72', 'MI355X'):
        narrow, wide = (estimate('llama3.1_8B', Parallel(dp=8, precision=precision), name, 64,
                                 preset).stats['iteration_s'] for precision in ('mxfp8', 'bf16'))
        assert narrow < wide


def test_what_cannot_be():
    experts = NAMED['qwen3_30B_A3B']
    for wrong, message in (
            (dict(tp=2, sequence_sharded=False, ep=2), 'needs sequence_sharded=True'),
            (dict(ep=7, dp=7), 'experts=128 must be divisible by ep=7'),
            (dict(ep=8, dp=4), r'tp\*cp\*dp=4 must be divisible by ep\*etp=8'),
            (dict(strategy='2d', tp=2), 'SUMMA .* has no operations for experts')):
        with pytest.raises(ValueError, match=message):
            estimate(experts, Parallel(**wrong), H100, 56)
    with pytest.raises(ValueError, match='ep=2 and etp=1 share out experts'):
        estimate('llama3.1_8B', Parallel(dp=2, ep=2), H100, 8)


def test_stages_of_unequal_layers():
    "DeepSeek-V3 on one rank, or dealt to 61: three dense layers, and MTP's at the end."
    pattern = count(job('deepseek_v3')).pattern
    (one,) = distinct_stages(pattern, 1, 1, '1f1b')
    assert one.layers == (3, 59) and (one.first, one.last) == (1, 1)
    every = distinct_stages(pattern, 61, 1, '1f1b')
    assert [(s.layers, s.rank) for s in every] == [((1, 0), 0), ((0, 1), 3), ((0, 2), 60)]


@examples(8)
@given(small_models(), st.sampled_from(['corrected', 'calibrated']), st.sampled_from([4, 8]))
def test_search_is_exhaustive(model, preset, n):
    "The best of a search is the best of all configurations that `estimate` can run."
    a = dataclasses.replace(as_assumptions(preset), wide_search=False).on(H100)
    ask = lambda k: search(model, n, H100, 8, ['1d', '2d-seqp'], k=k, assumptions=a,
                           recompute=['none', 'moe_act'], context=['ring', 'ulysses'])
    rows = lambda table: [row for _, row in table.iterrows()]
    def formulas(row):   # that a search goes by
        table = {name: row[name] for name in (*GROUPS, 'ep', 'etp', *PLACES, 'strategy',
                                              'micro_batch', 'panels', *CHOICES) if name in row}
        return statistics(table, model, H100, 8, a)['iteration_s']
    every = ask(10_000)
    best = every.iloc[:0] if not len(every) else ask(1)
    if len(best): assert math.isclose(formulas(best.iloc[0]), min(map(formulas, rows(every))))


@pytest.mark.parametrize('preset, kept', [('corrected', 1), ('calibrated', 2)])
def test_a_gate_on_attention_by_hand(preset, kept):
    "Half of GPT's qkv more in weights and FLOP, a kernel, and what the sigmoid needs later."
    a = as_assumptions(preset).on(H100)
    plain = Model(1024, 256, 8, 1, vocab=512)
    with_gate = dataclasses.replace(plain, attention_gate=True)
    one, other = ({op.name: op for op in job(m, a, tp=2).operations}
                  for m in (plain, with_gate))
    assert set(other) - set(one) == {'gate'}
    qkv = [ops['qkv'].forward.products[0] for ops in (one, other)]
    assert [p.n for p in qkv] == [3 * 128, 4 * 128]
    gate, numbers = other['gate'], 1024 * 128   # tokens, features of four of eight heads
    assert math.isclose(gate.forward.nbytes, 2e-9 * 3 * numbers)
    assert math.isclose(gate.backward.nbytes, 2e-9 * 5 * numbers)
    assert math.isclose(gate.activations, 2e-9 * kept * numbers) and not gate.weights
    if preset == 'calibrated':   # in 8 bits, too: the gate's kernel reads 16
        low = job(with_gate, dataclasses.replace(a, precision='fp8'), tp=2)
        low = {op.name: op for op in low.operations}
        assert all(low[name].activations == other[name].activations for name in ('fusedla', 'gate'))
    # what attention said is kept once: by its own operation, or for the gate
    said = {name: op.activations for name, op in other.items() if name in ('fusedla', 'gate')}
    least = 2e-9 * numbers * (3 + 1 + 1)   # queries, keys, values; the gate; what attention said
    assert least < sum(said.values()) < least * 1.05
