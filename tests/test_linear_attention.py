"Mixers with a state, counted a second time: per token, by hand; and shared out."
import dataclasses
from dataclasses import replace

import pytest

from mixers import SYSTEM, TRAINED, b, close, e, flop, l, model_with, operations
from transformer_perf import Model, Parallel, estimate, search
from transformer_perf.blocks import MLP, Attention, Block, Experts, Nothing
from transformer_perf.interop import Job, export
from transformer_perf.iteration import job_of, settled
from transformer_perf.linear_attention import (
    Beside, GatedConv, GatedDeltaNet, KimiDelta, Lightning, Mamba, Mamba2)
from transformer_perf.models import as_model
from transformer_perf.parameters import Costs, Parameters
from transformer_perf.modules import count
from transformer_perf.advice import sensitivity
from transformer_perf.systems import as_system
from transformer_perf.timeline import PLACES, memory_at, own_stages

SMALL = dict(heads=8, key=16, value=24, chunk=32, conv=3)
MIXERS = {
    'gated delta': GatedDeltaNet(**SMALL, key_heads=4), 'kimi delta': KimiDelta(**SMALL),
    'kimi delta, low rank': KimiDelta(**SMALL, rank=12), 'mamba': Mamba2(**SMALL, key_groups=4),
    'lightning': Lightning(heads=8, key=16, value=24, chunk=32)}
K, V, H, C, w = 8 * 16, 8 * 24, 8, 32, 3
LESS = 4 * 16   # keys of Gated DeltaNet's four heads, or of Mamba's four groups
PARAMETERS = {   # of a layer: product in, convolution, vectors, norm, product out
    'gated delta': e * (2 * LESS + 2 * V + 2 * H) + w * (2 * LESS + V) + 2 * H + 24 + V * e,
    'kimi delta': e * (3 * K + 2 * V + H) + w * (2 * K + V) + H + K + 24 + V * e,
    'kimi delta, low rank': e * (2 * K + V + H + 2 * 12) + 12 * (K + V) + w * (2 * K + V)
                            + H + K + 24 + V * e,
    'mamba': e * (2 * V + 2 * LESS + H) + (w + 1) * (V + 2 * LESS) + 3 * H + V + V * e,
    'lightning': e * (2 * K + 2 * V) + V + V * e}
FORWARD = {   # FLOP of a token in the scan
    'gated delta': H * (6 * 16 * 24 + C * (5.25 * 16 + 4 * 24) + C**2 / 2),
    'kimi delta': H * (6 * 16 * 24 + C * (4.5 * 16 + 4 * 24) + C**2 / 2),
    'mamba': 4 * V * 16 + 2 * C * LESS + V * (C + 64),
    'lightning': H * (2 * C * (16 + 24) + 4 * 16 * 24)}
BACKWARD = {
    'gated delta': H * (16 * 16 * 24 + C * (18 * 16 + 10 * 24) + 4 * C**2),
    'kimi delta': H * (16 * 16 * 24 + C * (11 * 16 + 10 * 24) + 4 * C**2),
    'mamba': 10 * V * 16 + 6 * C * LESS + 3 * V * (C + 64),
    'lightning': 2 * FORWARD['lightning']}
FORWARD['kimi delta, low rank'], BACKWARD['kimi delta, low rank'] = (
    FORWARD['kimi delta'], BACKWARD['kimi delta'])


@pytest.mark.parametrize('name', MIXERS)
def test_parameters_by_hand(name):
    "The matrices, the convolution, vectors and the norm of heads; one norm of the stream."
    assert model_with(MIXERS[name]).parameters == 2 * (PARAMETERS[name] + e)


@pytest.mark.parametrize('name', MIXERS)
def test_scan_by_formula(name):
    "FLOP of a token as published kernels count them; by tokens and samples; shared by tp."
    for tp in (1, 2, 4):
        op = operations(MIXERS[name], tp=tp)['scan']
        assert close(flop(op.forward) * tp, b * l * FORWARD[name])
        assert close(flop(op.backward) * tp, b * l * BACKWARD[name])
        assert op.forward.fused and op.backward.fused


SSD = {   # numbers of 16 bits, of a token: what Mamba-2's kernels read and write (ssd_combined.py)
    'sums of decays': (H, 2 * H, 2 * H), 'new in states': (V, LESS, 4 * H, 2 * V * 16 / C),
    'states handed on': (2 * V * 16 / C, V * 16 / C), 'scores': (LESS, LESS, 2 * 4 * C),
    'what is read': (2 * 4 * C, V, LESS, V * 16 / C, 4 * H, V)}


def test_numbers_moved_by_the_scan():
    "Of a token and head, each operand of each kernel once; three times as many backward."
    delta = 7 * 16 + 6 * 24 + 2 * C + 2 * 16 * 24 / C
    by_hand = {'gated delta': 8 * delta, 'kimi delta': 8 * (delta + 10 * 16),
               'lightning': 2 * K + 2 * V, 'mamba': sum(map(sum, SSD.values()))}
    for name, moved in by_hand.items():
        op = operations(MIXERS[name])['scan']
        assert close(op.forward.operands, b * l * moved)
        assert close(op.backward.operands, 3 * b * l * moved)


@pytest.mark.parametrize('tp', [1, 2, 4])
def test_what_is_kept(tp):
    "Bytes of a token, by operation; GPUs of tp share heads, and what goes in by tokens."
    T = 1e-9 * b * l / tp
    kept = {name: {op.name: op.activations / T for op in operations(mixer, tp=tp).values()}
            for name, mixer in MIXERS.items()}
    for name, own in kept.items():
        assert close(own['state-in'], 2 * e) and close(own['state-out'], 2 * V), name
        assert close(own['gated-norm'], 4 * V + 4 * H)
    scans = {'gated delta': 2 * (2 * LESS + V) + 2 * C * H + 11 * H + 8 * 4,
             'kimi delta': 2 * (3 * K + V) + 4 * C * H, 'mamba': 0,
             'lightning': 2 * (2 * K + V)}
    for name, there in scans.items(): assert close(1 + kept[name]['scan'], 1 + there), name
    gates = kept['kimi delta, low rank']['gates-up']   # 12 numbers for decays, and 12 for gates
    assert close(gates, tp * 2 * (12 + 12)), 'each GPU keeps those of all tokens'
    convs = {'gated delta': 2 * LESS + V, 'kimi delta': 2 * K + V,
             'mamba': 2 * V + 2 * LESS + H, 'lightning': 2 * K + V}
    for name, there in convs.items(): assert close(kept[name]['short-conv'], 2 * there)


@pytest.mark.parametrize('name', MIXERS)
def test_context_parallelism_passes_states(name):
    "Each GPU's states, in 32 bits; nothing that grows with the sequence but the own tokens' work."
    mixer = MIXERS[name]
    matrices = 16 * (16 + 24) if mixer.transition else 16 * 24
    for tp, cp in ((1, 1), (1, 2), (1, 4), (2, 4), (2, 8)):
        own = operations(mixer, tp=tp, cp=cp, strategy='2d-seqp')
        for work in (own['scan'].forward, own['scan'].backward):
            sent, = work.messages
            assert (sent.kind, sent.group) == ('allgather', 'cp')
            assert close(1 + sent.volume, 1 + 4e-9 * b * H / tp * matrices * cp * (cp > 1))
        tail, = own['short-conv'].forward.messages
        channels = mixer.channels(1) / tp
        passed = 2e-9 * b * max(mixer.conv - 1, 0) * channels * (cp > 1)
        assert close(1 + tail.volume * (cp - 1) / cp, 1 + passed)
        again = H * mixer.transition * (cp > 1)   # a pass each way for what is handed on
        T, scan = b * l / tp / cp, own['scan']
        work = FORWARD[name] + again * 4 * 16 * (16 + 24)
        assert close(flop(scan.forward), T * work)
        # backward results add to the gradient of a state, which has the width of values
        work = BACKWARD[name] + again * (4 * 16 * (16 + 24) + 2 * 16 * 24)
        assert close(flop(scan.backward), T * work)
        # k, w and u are read again; q, k, w and the gradients of o and u
        alone = operations(mixer)['scan'].forward.operands / b / l
        assert close(scan.forward.operands, T * (alone + again * (2 * 16 + 24)))
        assert close(scan.backward.operands, T * (3 * alone + again * (3 * 16 + 2 * 24)))


@pytest.mark.parametrize('tp, cp', [(1, 2), (2, 2), (2, 4), (1, 8)])
@pytest.mark.parametrize('name', ['gated delta', 'mamba'])
def test_megatron_exchanges_heads_of_states_for_tokens(name, tp, cp):
    """All that goes in of a GPU's tokens, and what comes out (Megatron-LM @ d98e8a64,
    ssm/gated_delta_net/gdn.py:175; ssm/mamba_context_parallel.py:140-211); no state is passed on.

    Of Mamba's keys and queries each GPU gets those of a group, also where groups are fewer."""
    known = replace(TRAINED, measured=Parameters('Hopper', software=Costs(exchanges_states=True)))
    layout = dict(tp=tp, cp=cp, strategy='2d-seqp')
    own, alone = operations(MIXERS[name], known, **layout), operations(MIXERS[name], known, tp=tp)
    copies = max(1, cp * tp / 4) if name == 'mamba' else 1   # of four groups
    beside = {'gated delta': 2 * LESS + 2 * V + 2 * H, 'mamba': 2 * V + 2 * LESS * copies + H}
    for work in (own['scan'].forward, own['scan'].backward):
        sent, = work.messages
        assert (sent.kind, sent.group) == ('alltoall', 'cp')
        assert close(sent.volume, 2e-9 * b * l / cp * (beside[name] + V) / tp)
        assert not any(x.volume for x in own['short-conv'].forward.messages)
    for way in ('forward', 'backward'):   # as much as if nobody shared the sequence, shared out
        both = [getattr(x['scan'], way) for x in (own, alone)]
        assert close(cp * flop(both[0]), flop(both[1]))
        assert close(cp * both[0].operands, both[1].operands)


def test_heads_that_are_exchanged_must_be_enough():
    model = replace(as_model('nemotron_h_8B'), seq_len=65536)
    layout = Parallel(tp=8, cp=32)   # 16 heads of states on a GPU
    with pytest.raises(ValueError, match='heads with a state on a GPU=16 must be divisible by cp'):
        estimate(model, layout, 'H100-80GB', 1, software='Megatron-Core')
    assert estimate(model, layout, 'H100-80GB', 1, software='torchtitan').stats['iteration_s'] > 0


@pytest.mark.parametrize('mixer, tp, says', [
    (MIXERS['gated delta'], 8, 'key_heads=4 must be divisible by tp=8'),
    (MIXERS['mamba'], 8, 'key_groups=4 must be divisible by tp=8'),
    (MIXERS['lightning'], 16, 'heads with a state=8 must be divisible by tp=16')])
def test_what_cannot_be_shared(mixer, tp, says):
    with pytest.raises(ValueError, match=says):
        estimate(model_with(mixer), Parallel(tp=tp), 'H200', 16)


@pytest.mark.parametrize('name', MIXERS)
def test_memory_and_searches(name):
    "All parameters are held, under tensor parallelism by parts; a search finds a layout."
    model = replace(model_with(MIXERS[name], 4), vocab=640, seq_len=1024)
    one = estimate(model, Parallel(), 'H200', 8, TRAINED).stats
    assert one['weights_GB'] == pytest.approx(2e-9 * model.parameters, rel=1e-12)
    for preset in ('paper', 'corrected', 'calibrated'):
        best = search(model, 8, 'H200', 8, k=1, assumptions=preset)
        assert best.iteration_s.iloc[0] > 0


def test_half_a_layer():
    "A layer without one half has one norm, and costs what the other half costs."
    mlp = Block(Nothing(), MLP(200), 'none', 'rmsnorm')
    model = Model(l, e, 8, 2, layers=((mlp, 2),))
    assert model.parameters == 2 * (2 * e * 200 + e) and Nothing() == Nothing()
    assert hash(Nothing()) == hash(Nothing()) and Nothing() != MLP(8)
    both = Block(MIXERS['mamba'], MLP(200), 'none', 'rmsnorm')
    together = dataclasses.replace(model, layers=((both, 2),)).parameters
    assert together == model.parameters + model_with(MIXERS['mamba']).parameters


@pytest.mark.parametrize('said', [{}, {'norm': 'rmsnorm'}, {'biases': 'none'}])
def test_a_layer_without_an_mlp_says_its_family(said):
    "Its norms and biases follow the MLP: of Llama without one they would become GPT's."
    with pytest.raises(ValueError, match='must say its biases and its norm'):
        Block(MIXERS['mamba'], Nothing(), **said)


def test_kernels_between():
    "A convolution reads and writes each channel; the norm reads what was read and its gate."
    for name, mixer in MIXERS.items():
        for tp in (1, 2):
            own, T = operations(mixer, tp=tp), b * l
            x, taps = T * mixer.channels(1) / tp, mixer.conv
            conv, norm = own['short-conv'], own['gated-norm']
            assert close(conv.forward.nbytes, 4e-9 * x) and close(conv.backward.nbytes, 6e-9 * x)
            assert close(conv.forward.vector, 1e-12 * (2 * taps + 5) * x), name
            assert close(conv.backward.vector, 2e-12 * (2 * taps + 5) * x)
            y = T * V / tp
            assert close(norm.forward.nbytes, 6e-9 * y) and close(norm.backward.nbytes, 1e-8 * y)
            assert close(norm.forward.vector, 14e-12 * y)
            assert close(norm.backward.vector, 22e-12 * y)
            passes = [(op.forward.launches, op.backward.launches) for op in (conv, norm)]
            assert passes == [(1, 2), (1, 2)]


@pytest.mark.parametrize('name', MIXERS)
def test_gpus_share_the_weights(name):
    "Those of tp have all together, but what each has: norms of a head, and narrow products."
    mixer = MIXERS[name]
    held = lambda tp: sum(op.weights for op in operations(mixer, tp=tp).values())
    rank = getattr(mixer, 'rank', None) or 0
    norms = e + (0 if name in ('mamba', 'lightning') else 24)
    assert close(2 * held(2), held(1) + 2e-9 * (norms + 2 * e * rank))


def test_layers_are_no_sizes():
    "Sizes that blocks say are not varied; and our own JSON has no blocks."
    model = replace(model_with(MIXERS['mamba']), vocab=640)
    varied = sensitivity(model, Parallel(), 'H200', 8)
    assert {*varied.field[varied['of'] == 'model']} == {'seq_len', 'embed_dim', 'vocab'}
    with pytest.raises(ValueError, match='layers=.* cannot be said in json'):
        export(Job(Parallel(), model, 8, 1, 256), 'json')


# mixers whose scan has no products

D, N, R = 192, 16, 12
PLAIN = {'mamba': Mamba(channels=D, key=N, rank=R), 'jamba': Mamba(channels=D, key=N, rank=R,
                                                                  normed=True),
         'convolution': GatedConv(channels=e, conv=3)}


def test_parameters_of_plain_scans():
    "In, convolution and its bias, selection, steps and their bias, decays and a skip, out."
    mamba = (2 * e * D + 5 * D + D * (R + 2 * N) + (R + 1) * D + D * N + D + D * e)
    for name, own in (('mamba', mamba), ('jamba', mamba + R + 2 * N),
                      ('convolution', 3 * e * e + 3 * e + e * e)):
        assert model_with(PLAIN[name]).parameters == 2 * (own + e), name


@pytest.mark.parametrize('name', [*MIXERS, *PLAIN])
def test_only_a_whole_layer_computes_its_scan_again(name):
    "Megatron-LM's `core_attn` is of attention: its mixers with a state have no checkpoint for it."
    model = model_with((MIXERS | PLAIN)[name])
    def priced(recompute):
        one = estimate(model, Parallel(recompute=recompute), 'H200', 8, TRAINED).stats
        return one['activations_GB'], one['executed_TFLOP_per_gpu'], one['iteration_s']
    kept, executed, _ = priced('none')
    assert priced('selective') == priced('none')
    less, more, _ = priced('full')
    assert less < kept and more > executed


def test_a_selective_scan_by_hand():
    "Channels, steps, gates and results; states in 32 bits; what is selected is added up by tp."
    T = b * l
    for tp, cp in ((1, 1), (2, 1), (4, 2)):
        own = operations(PLAIN['jamba'], tp=tp, cp=cp, strategy='2d-seqp')
        scan, chosen = own['scan'], own['state-select']
        n, d = T / cp, D / tp
        assert close(scan.forward.operands, n * (5 * d + 2 * N))
        assert close(scan.backward.operands, n * (8 * d + 6 * N))
        assert close(scan.forward.vector, 9e-12 * n * d * N) and not scan.forward.products
        assert close(scan.backward.vector, 27e-12 * n * d * N)
        assert close(scan.activations, 2e-9 * n * (4 * d + 2 * N))
        assert close(scan.weights, 2e-9 * d * (N + 1))
        sent, = scan.forward.messages
        assert close(1 + sent.volume, 1 + 2 * 4e-9 * b * d * N * cp * (cp > 1))
        for work in (chosen.forward, chosen.backward):
            message, = work.messages
            assert (message.kind, message.group) == ('allreduce', 'tp')
            assert close(1 + message.volume, 1 + 2e-9 * n * (R + 2 * N) * (tp > 1))
        assert close(flop(own['state-step'].forward), 2 * n * R * d)
        assert scan.forward.memory_speed == TRAINED.scan_speed == .33


def test_gates_of_a_short_convolution():
    x = b * l * e
    own = operations(PLAIN['convolution'])
    gate, conv = own['conv-gate'], own['short-conv']
    assert close(gate.forward.nbytes, 12e-9 * x) and close(gate.activations, 8e-9 * x)
    assert close(gate.forward.vector, 2e-12 * x) and close(gate.backward.vector, 4e-12 * x)
    assert close(gate.backward.nbytes, 20e-9 * x)   # five numbers of each gate
    assert gate.forward.launches == gate.backward.launches == 2   # a kernel for each gate
    assert close(conv.weights, 2e-9 * 3 * e) and close(flop(own['state-in'].forward), 6 * x * e)
    half = operations(PLAIN['convolution'], tp=2)   # a GPU has half of the channels
    for name in ('conv-gate', 'short-conv', 'state-in', 'state-out'):
        for way in ('forward', 'backward'):
            whole, shared = getattr(own[name], way), getattr(half[name], way)
            assert close(2 * shared.vector, whole.vector) and close(2 * flop(shared), flop(whole))
    assert close(2 * half['conv-gate'].activations, gate.activations)


@pytest.mark.parametrize('name', PLAIN)
def test_plain_scans_are_searched_and_told(name):
    model = replace(model_with(PLAIN[name], 4), vocab=640, seq_len=1024)
    one = estimate(model, Parallel(), 'H200', 8, TRAINED).stats
    assert one['weights_GB'] == pytest.approx(2e-9 * model.parameters, rel=1e-12)
    for preset in ('paper', 'corrected', 'calibrated'):
        best = search(model, 8, 'H200', 8, k=1, assumptions=preset).iloc[0]
        again = estimate(model, Parallel.from_row(best), 'H200', 8, preset)
        assert close(again.stats['iteration_s'], best.iteration_s) or abs(
            again.stats['iteration_s'] / best.iteration_s - 1) < 1e-9
        assert str(again.explain('compute_s', depth=30))


def test_a_scan_reaches_a_share_of_the_memorys_rate():
    "Under measured prices the scan takes three times as long as its traffic; nothing else moves."
    model = replace(model_with(MIXERS['gated delta']), seq_len=8192)
    table = {speed: estimate(model, Parallel(), SYSTEM, 8, replace(
        TRAINED, scan_speed=speed)).layers.set_index('layer').t for speed in (.33, 1.)}
    assert [*table[1.].index[table[1.] != table[.33]]] == ['scan']
    assert table[.33].scan > 2 * table[1.].scan


def test_bytes_of_a_hybrid_that_megatron_trained():
    """Nemotron-3.5: nightly test nemotron3_5_lightning_... of Megatron-LM at d98e8a64dd.

    88,828,608,512 bytes after a step, 173,031,964,672 at the peak, on 8 GB200: Nemotron-3-Nano and
    two layers of multi-token prediction, each attention and experts. Its words are not recorded;
    they are taken as Nemotron-3-Nano's."""
    nano = as_model('nemotron3_nano_30B_A3B')
    each = {block for block, _ in nano.layers}
    attends, routes = (next(block for block in each if test(block)) for test in (
        lambda x: isinstance(x.mixer, Attention), lambda x: isinstance(x.ffn, Experts)))
    more = ((attends, 1), (routes, 1)) * 2
    model = replace(nano, depth=56, layers=nano.layers + more)
    system = as_system('GB200-NVL72')
    a = replace(TRAINED, working_memory=False, zero_gathered=0, gradient_held=4.)
    p = settled(Parallel(dp=8, ep=8, micro_batch=2, dispatcher='once'), system, a)
    work = count(job_of(dict(vars(p), **dict.fromkeys(PLACES, 1)), model, system, 512, a))
    memory = memory_at(work, own_stages(work)[-1])
    join = 2 * (2 * 2688**2 + 3 * 2688) * (2 + 4 + 12 / 8) * 1e-9   # to the next token, and norms
    assert 88.83 < sum(memory[:3]) + join < 88.83 * 1.01
    assert .96 < (sum(memory) + join) / 173.03 < 1


def test_attention_beside_a_state():
    "All of both but one norm and one residual stream, and a sum; the state's input is attention's."
    attention, state = Attention(4, 2, 8, 8), MIXERS['mamba']
    both = Beside(heads=attention, state=state)
    alone = [model_with(m).parameters for m in (attention, state, both)]
    norms = 2 * e   # one before the mixer, in both layers
    assert alone[0] + alone[1] - norms == alone[2]
    for layout in ({}, dict(tp=2)):
        ops = [operations(m, **layout) for m in (attention, state, both)]
        assert ops[2].keys() - {'sum'} == ops[0].keys() | ops[1].keys()
        for way in ('forward', 'backward'):
            for name, op in ops[2].items():
                if name in ('sum', 'ln1', 'ln2', 'dpr_v'): continue
                assert getattr(op, way) == getattr((ops[1] | ops[0])[name], way), name
        rows = b * l / layout.get('tp', 1)
        add = ops[2]['sum'].forward   # and as much backward
        assert close(add.nbytes, 2e-9 * 3 * rows * e) and close(add.vector, 1e-12 * rows * e)
        assert add.launches == 1 and add == ops[2]['sum'].backward
        assert ops[2]['state-in'].activations == 0 < ops[1]['state-in'].activations
        still = operations(both, adapters='frozen:attention', **layout)
        assert still['qkv'].activations == 0   # then only the state's product saves it
        assert still['state-in'].activations == ops[1]['state-in'].activations
        kept, (part, freed) = still['state-in'].activations, still['state-in'].frees[0]
        assert part == 'layernorm' and close(freed, kept)   # the norm that it reads
    plain = replace(state, gate_normed=False)
    assert (model_with(state).parameters - model_with(plain).parameters
            == 2 * state.heads * state.value)
    values = 1e-9 * b * l * state.heads * state.value
    kept, one = (operations(m)['gated-norm'] for m in (state, plain))
    assert close(kept.activations, 4 * values + 4e-9 * b * l * state.heads)   # and sums in 32 bits
    assert close(one.activations, 2 * values)   # the gate is among the scan's inputs
    assert close(one.forward.nbytes, 4 * values) and close(one.backward.nbytes, 6 * values)
    assert close(one.forward.vector, 5e-3 * values) and close(one.backward.vector, 1e-2 * values)
    assert one.forward.launches == one.backward.launches == 0


SUPER = dict(   # nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16
    model_type='nemotron_h', hidden_size=4096, num_attention_heads=32, num_key_value_heads=2,
    head_dim=128, intermediate_size=2688, vocab_size=131072, mlp_hidden_act='relu2',
    hybrid_override_pattern='MEMEMEM*' + 'EMEMEMEM*' * 2 + 'EMEMEMEMEM*' * 4 + 'EMEMEMEM*'
    + 'EMEMEMEME', mamba_num_heads=128, mamba_head_dim=64, ssm_state_size=128, n_groups=8,
    conv_kernel=4, chunk_size=128, n_routed_experts=512, num_experts_per_tok=22,
    moe_intermediate_size=2688, moe_shared_expert_intermediate_size=5376, moe_latent_size=1024,
    max_position_embeddings=8192)


def test_latent_experts():
    "Nemotron-3 Super: 120B, 12B of them active (its card); copies a quarter as wide travel."
    m = as_model(SUPER)
    layer = 512 * (4096 + 1) + 2 * 4096 * 1024 + 512 * 2 * 1024 * 2688 + 2 * 4096 * 5376 + 4096
    block = next(block for block, _ in m.blocks if isinstance(block.ffn, Experts))
    alone = replace(m, depth=1, layers=((block, 1),), vocab=None, train_samples=None)
    assert alone.parameters == layer
    assert (m.parameters, m.active_parameters) == (120_668_707_840, 12_770_237_440)
    wide = replace(block, ffn=replace(block.ffn, latent=None))
    jobs = [job_of(vars(settled(Parallel(dp=8, ep=8, etp=1, nvlink_tp=1, nvlink_cp=1, nvlink_pp=1,
        nvlink_dp=8), SYSTEM, TRAINED)), replace(
        alone, layers=((one, 1),)), SYSTEM, 8, TRAINED) for one in (block, wide)]
    narrow, whole = ({op.name: op for op in job.operations} for job in jobs)
    assert whole.keys() | {'latent-down', 'latent-up'} == narrow.keys()
    for name in ('dispatch', 'combine'):
        for way in ('forward', 'backward'):
            own, other = (getattr(ops[name], way).messages for ops in (narrow, whole))
            assert own[0].kind == 'alltoall' and own[0].volume > 0
            assert close(4 * own[0].volume, other[0].volume)
    assert close(4 * flop(narrow['expert-fc1'].forward), flop(whole['expert-fc1'].forward))
    assert close(flop(narrow['latent-up'].forward), 2 * 8192 * 1024 * 4096)
    assert narrow['latent-down'].activations == 0   # the router has its input
    assert close(narrow['latent-up'].activations, 2e-9 * 8192 * 1024)
