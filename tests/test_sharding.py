"Sharded data parallelism, optimizer states and the memory bound, by hand counts and properties."
import dataclasses
import itertools
import math

import pytest

from thorough import first_of
from transformer_perf import Model, Parallel, estimate, search, timeline
from transformer_perf.estimates import Group, as_assumptions, collective_time
from transformer_perf.iteration import rank_seconds
from transformer_perf.kernels import pricer_of
from transformer_perf.models import as_model
from transformer_perf.modules import Layouts, UnitWeights, data_parallel_time, model_figures
from transformer_perf.systems import as_system

SMALL = Model(2048, 4096, 32, 32)
PRESETS = ('paper', 'corrected', 'calibrated')


def close(a, b, rel=1e-9): return math.isclose(a, b, rel_tol=rel, abs_tol=1e-15)


def figures(model=SMALL, preset='corrected', system='H100-80GB', batch=512, parallel=None,
            **changes):
    "The figures of one configuration under some assumptions."
    a = dataclasses.replace(as_assumptions(preset), **changes)
    return estimate(model, Parallel(**(parallel or {})), system, batch, a).stats


# shared out

@pytest.mark.parametrize('ep, experts', [(1, 8), (4, 2), (8, 1)])
def test_what_a_gpu_holds_of_weights_whose_masters_are_shared_out(ep, experts):
    "Two layers of 16-bit copies, made when they are wanted: of experts that no GPU shares, too."
    found = estimate('mixtral_8x7B', Parallel(dp=8, ep=ep, zero_stage=3), 'H200-141GB', 64,
                     software='torchtitan').stats['weights_GB']
    width, keys = 4096, 1024
    layer = (2 * width * (width + keys) + 2 * width + 8 * width   # attention, norms, router
             + experts * 3 * width * 14336)
    assert close(found, 2 * 2e-9 * layer)


# optimizer states

ADAM = {   # bytes of a parameter: gradient, master, moment -> all, with 2 of the weight
    'fp32': ((4, 4, 4), 18), 'no whole weight beside the 16-bit one': ((4, 2, 4), 16),
    'bf16 moments': ((4, 2, 2), 12), 'fp8 moments': ((4, 4, 1 + 4 / 2048), 12 + 8 / 2048),
    '16-bit gradients': ((2, 4, 4), 16), 'DeepSpeed, gradients of both kinds': ((6, 4, 4), 20)}


@pytest.mark.parametrize('preset', PRESETS)
@pytest.mark.parametrize('kind', ADAM)
def test_bytes_of_a_parameter(kind, preset):
    "One GPU: 2 bytes a weight, and what the optimizer adds; over n copies the states are shared."
    (gradient, master, moment), total = ADAM[kind]
    changes = dict(gradient_held=gradient, master_bytes=master, moment_bytes=moment,
                   vocabulary=False)
    a = as_assumptions(preset).on(as_system('H100-80GB'))
    parameters = model_figures(SMALL, assumptions=a)['parameters_B']
    parts = ('weights_GB', 'gradients_GB', 'optimizer_GB')
    for n in (1, 8):
        found = figures(preset=preset, parallel=dict(dp=n), **changes)
        expected = 2 + gradient + (total - 2 - gradient) / n
        assert close(sum(found[part] for part in parts), expected * parameters)


def test_states_as_a_multiple_of_weights():
    "The name of the published model."
    plain, given, less = (figures(**changes)['optimizer_GB'] for changes in (
        {}, {'optimizer_bytes': 6.}, {'optimizer_bytes': 3., 'moment_bytes': 1.}))
    assert plain == given == 2 * less


def test_a_step_moves_its_states():
    "30 bytes a parameter with fp32 states, 20 with bf16 moments beside halves of the weights."
    other = lambda **changes: figures(
        preset='calibrated', system='A100-80GB', parallel=dict(tp=8), batch=1, **changes)['other_s']
    usual, none = other(), other(optimizer_bytes=0.)
    halved = other(master_bytes=2., moment_bytes=2.)
    assert close((usual - halved) / (usual - none), (30 - 20) / (30 - 6), 1e-6)
    assert figures()['other_s'] == figures(moment_bytes=1.)['other_s'] == 0   # not in the paper


# the upper bound of the memory

def test_the_bound_is_the_estimate_and_three_named_parts():
    a = as_assumptions('calibrated').on(as_system('H100-80GB'))
    for layout, groups in (({}, 0), ({'dp': 8}, 1), ({'tp': 2, 'cp': 2, 'pp': 2, 'dp': 2}, 4)):
        found, w = figures(preset='calibrated', parallel=layout), a.costs
        unseen = .08 * found['activations_GB'] + groups * 392 * 2**20 / 1e9 + 551 * 2**20 / 1e9
        assert close(found['memory_bound_GB'], found['memory_GB'] + unseen, 1e-4)   # figures in MB
        tight = dataclasses.replace(w, fragments=0., nccl_GB=0., context_GB=0.)
        none = figures(parallel=layout, measured=dataclasses.replace(a.measured, software=tight))
        assert none['memory_bound_GB'] == none['memory_GB']


def test_a_search_goes_by_the_bound():
    "Llama 3.1 70B at 5120 tokens: by the estimate the first choice leaves 3 GB of 85, too few."
    model = dataclasses.replace(as_model('llama3.1_70B'), seq_len=5120)
    ask = lambda preset, **more: search(model, 1024, 'H100-80GB', 1024, '1d', assumptions=preset,
                                        recompute='none', virtual_stages=1, **more)
    by_bound, by_point = ask('calibrated'), ask('calibrated', fits_by='point')
    assert (by_bound.memory_bound_GB <= 84.9).all() and set(by_bound.fits_by) == {'bound'}
    assert by_point.memory_GB[0] > 82 and by_point.memory_bound_GB[0] > 84.9
    assert by_point.iteration_s[0] < by_bound.iteration_s[0]
    assert set(ask('paper').fits_by) == set(ask('corrected').fits_by) == {'point'}
    with pytest.raises(ValueError, match="unknown fits_by 'all'"): ask('paper', fits_by='all')


def test_an_estimate_says_by_which_it_fits():
    model = dataclasses.replace(as_model('llama3.1_70B'), seq_len=5120)
    layout = Parallel(tp=4, pp=2, dp=128)
    a = as_assumptions('calibrated')
    bound, point = (estimate(model, layout, 'H100-80GB', 1024, dataclasses.replace(a, fits_by=by))
                    for by in ('bound', 'point'))
    assert point.fits and not bound.fits
    assert bound.needed == bound.stats['memory_bound_GB'] and 'at most 86.2' in bound.summary
    assert 'at most GB' in bound._repr_html_() and 'at most' not in point._repr_html_()


# what copies share out

def memory(preset='corrected', model=SMALL, system='H100-80GB', layout=None, **changes):
    "Weights, gradients and optimizer states in bytes a parameter of the layers and tables."
    a = dataclasses.replace(as_assumptions(preset), **changes)
    found = estimate(model, Parallel(**(layout or {})), system, 512, a).stats
    return [found[part] for part in ('weights_GB', 'gradients_GB', 'optimizer_GB')]


@pytest.mark.parametrize('n', [8, 64, 512])
def test_formulas_of_deepspeed(n):
    "Stage 2: 2 P + 18 P / n; stage 3: 18 P / n + 4 bytes of the largest unit."
    P = memory()[0] / 2
    largest = P / SMALL.depth
    second = memory(layout={'dp': n, 'zero_stage': 2}, gradient_held=6.)
    assert close(sum(second), 2 * P + 18 * P / n)
    third = memory(layout={'dp': n, 'zero_stage': 3}, gradient_held=4., zero_gathered=1,
                   working_memory=True)
    assert close(sum(third), 18 * P / n + 4 * largest)


@pytest.mark.parametrize('preset', PRESETS)
def test_states_of_all_gpus_add_up(preset):
    "What a stage shares out is once in each replica; what it does not, on every GPU."
    alone = memory(preset, working_memory=False)
    for stage in range(4):
        for replicas in (1, 2, 8):
            layout = {'dp': 64, 'zero_stage': stage, 'dp_replicate': replicas}
            held = memory(preset, layout=layout, working_memory=False, zero_gathered=1)
            times = replicas if stage else 64
            unit = 0 if stage < 3 else 64 * (held[0] - alone[0] * times / 64)
            for i, (one, whole) in enumerate(zip(held, alone)):
                shared_out = stage >= 3 - i
                extra = unit if i == 0 else 0
                assert close(64 * one, whole * (times if shared_out else 64) + extra)
            if stage == 3: assert close(unit / 64, alone[0] / SMALL.depth)


def test_a_table_of_words_is_a_unit():
    "Of one layer and 256,000 tokens, the embedding is the largest unit; of forty layers, a layer."
    few = Model(2048, 4096, 32, 1, vocab=256000)
    many = dataclasses.replace(few, vocab=3200, depth=40)
    changes = dict(vocabulary=True, zero_gathered=1)
    for model, largest in ((few, 256000 * 4096), (many, None)):
        whole = memory(model=model, **changes)[0]
        held = memory(model=model, layout={'dp': 512, 'zero_stage': 3}, **changes)[0]
        layer = memory(model=model, vocabulary=False)[0] / model.depth
        assert close(held, whole / 512 + (2e-9 * largest if largest else layer))


def test_each_unit_on_its_way_takes_memory():
    held = [memory(layout={'dp': 64, 'zero_stage': 3}, zero_gathered=k)[0] for k in (1, 2, 3, 40)]
    layer = memory()[0] / SMALL.depth
    assert close(held[1] - held[0], layer) and close(held[2] - held[1], layer)
    stays = memory(layout={'dp': 64, 'zero_stage': 3, 'reshard_after_forward': False})[0]
    assert held[3] == stays == memory()[0]


def test_gradients_reduced_once_are_whole_until_then():
    ask = lambda stage, each: memory(layout={'dp': 64, 'zero_stage': stage, 'reduce_each': each})[1]
    whole = memory()[1]
    for stage in (2, 3):
        assert close(64 * ask(stage, None), whole) and ask(stage, None) == ask(stage, True)
        assert ask(stage, False) == whole
    assert ask(1, None) == ask(1, False) == ask(1, True) == whole


# messages

def dp_comm(layout=None, preset='corrected', system='B200', batch=512, **changes):
    "Seconds of data-parallel messages that nothing hides."
    layout = {'dp': 64, 'dp_overlap': False, **(layout or {})}
    return figures(preset=preset, system=as_system(system, 8), batch=batch, parallel=layout,
                   **changes)['dp_comm_s']


def collective(kind, GB, n, inside): return collective_time(
    kind, GB, n, inside, as_system('B200', 8), as_assumptions('corrected'))


def test_hybrid_sharding_by_hand():
    "Eight replicas of eight shards: gathered and scattered inside, reduced among eight outside."
    L, w = SMALL.depth, memory()[0] / SMALL.depth
    for stage, N in ((1, 1), (2, 8), (3, 8)):
        layout = {'zero_stage': stage, 'dp_replicate': 8, 'nvlink_dp': 8}
        gathers = 2 * N if stage == 3 else 1
        expected = L * (gathers * collective('allgather', w, 8, 8)
                        + N * collective('reducescatter', w, 8, 8)
                        + collective('allreduce', w / 8, 8, 1))
        assert close(dp_comm(layout), expected)
    wide = {'zero_stage': 3, 'dp_replicate': 2, 'nvlink_dp': 8}   # 32 shards over four domains
    expected = L * (16 * collective('allgather', w, 32, 8)
                    + 8 * collective('reducescatter', w, 32, 8)
                    + collective('allreduce', w / 32, 2, 1))
    assert close(dp_comm(wide), expected)


@pytest.mark.parametrize('seq_len', [512, 2048, 4096, 16384])
@pytest.mark.parametrize('each', [True, False])
def test_replicas_meet_behind_the_last_micro_batch(seq_len, each):
    """Each of eight micro-batches has passes of a layer to hide its messages behind; only in the
    last one is an all-reduce among them."""
    layout = {'dp': 64, 'zero_stage': 3, 'dp_replicate': 8, 'nvlink_dp': 8, 'reduce_each': each}
    one = estimate(Model(seq_len, 4096, 32, 32), Parallel(**layout), as_system('B200', 8), 512,
                   'corrected')
    L, w, N = 32, one.layers.weights_mem.sum(), 8
    gather, scatter = collective('allgather', w, 8, 8), collective('reducescatter', w, 8, 8)
    meeting = collective('allreduce', w / 8, 8, 1)
    shown = lambda layer, *sent: max(sum(sent) - layer, 0)   # of one layer
    forward, backward = one.layers.t_fwd.sum(), one.layers.t_bwd.sum()
    before = shown(backward, gather, scatter) if each else shown(backward, gather)
    last = shown(backward, gather, scatter, meeting)
    expected = gather + (N * L - 1) * shown(forward, gather)
    expected += gather + scatter + meeting + (N - 1) * L * before + (L - 1) * last
    assert close(one.stats['dp_comm_s'], expected)


def test_a_replica_on_each_gpu_shares_nothing():
    whole = dp_comm({'zero_stage': 0, 'nvlink_dp': 8})
    for stage in (1, 2):
        layout = {'zero_stage': stage, 'dp_replicate': 64, 'nvlink_dp': 8, 'reduce_each': False}
        assert close(dp_comm(layout), whole)
    assert dp_comm({'zero_stage': 0, 'dp_replicate': 4, 'nvlink_dp': 8}) == whole


def test_messages_saved_by_hand():
    "Kept weights save a gather for each micro-batch, gradients kept whole all scatters but one."
    L, w, N = SMALL.depth, memory()[0] / SMALL.depth, 8
    once = lambda kind: L * collective(kind, w, 64, 8)
    ask = lambda **more: dp_comm({'zero_stage': 3, 'nvlink_dp': 8, **more})
    full = N * (2 * once('allgather') + once('reducescatter'))
    assert close(ask(), full)
    assert close(ask(reshard_after_forward=False), full - N * once('allgather'))
    assert close(ask(reduce_each=False), full - (N - 1) * once('reducescatter'))


def shown_by_stage(one):  # list of (s of all passes, s of messages that show)
    "Those of each stage of a pipeline, one by one."
    priced = timeline.priced_estimate(one)
    work, pricer = priced.work, priced.pricer
    paces = [timeline.stage_cost(priced, load) for load in timeline.loads_of(priced)]
    return [(work.layouts.micro_batches * pace.busy, timeline.reduction_time(work, pace, pricer))
            for pace in paces]


def test_messages_of_the_stage_that_shows_most():
    "Experts of which there is one copy are not exchanged: the stage with dense layers shows most."
    one = estimate('deepseek_v3', Parallel(pp=8, dp=32, ep=32), 'H100-80GB', 1024)
    (_, dense), *others = shown_by_stage(one)
    assert dense > 1.2 * max(shown for _, shown in others)
    assert close(one.stats['dp_comm_s'], dense)


def test_the_step_of_the_stage_that_takes_longest():
    "Dense layers have more weights on a GPU than 4 of 256 experts, but more GPUs share them out."
    one = estimate('deepseek_v3', Parallel(pp=8, dp=64, ep=64), 'H100-80GB', 2048)
    priced = timeline.priced_estimate(one)
    dense, *others = (
        timeline.update_time(priced.work, timeline.stage_cost(priced, load), priced.pricer)
        for load in timeline.loads_of(priced))
    p, pace = priced.work.layouts, timeline.slowest_stage(priced)
    host, N = timeline.host_seconds_of_micro_batch(p), p.micro_batches
    waits = N * (pace.layers * pace.cost.wait + host)
    waits += timeline.straggling(p) * (N * (pace.busy + host) + one.stats['pp_comm_s'])
    assert max(others) > 1.05 * dense and close(one.stats['other_s'] - waits, max(others))


@pytest.mark.parametrize('preset', ['paper', 'corrected'])
def test_each_micro_batch_waits_for_the_slowest_stage(preset):
    """What a faster stage sends in each of them fits into its wait; what it sends once, as much as
    with a single one, adds."""
    model = Model(4096, 2048, 16, 16, 32768, gated_mlp=True, experts=16, experts_per_token=1,
                  expert_dim=2048, dense_layers_first=8)
    ask = lambda N, **more: estimate(model, Parallel(
        pp=2, dp=8, nvlink_dp=8, nvlink_pp=1, **more), 'H100-80GB', 8 * N, preset)
    for stage in (1, 3):
        one = ask(8, zero_stage=stage)
        (slow, shown), (fast, of_experts) = shown_by_stage(one)
        once = shown_by_stage(ask(1, zero_stage=stage))[1][1]
        assert slow > fast + of_experts and of_experts > shown
        assert close(one.stats['dp_comm_s'], of_experts if stage == 1 else max(shown, once))
    for stage in (1, 2, 3):
        each, last = (ask(8, zero_stage=stage, reduce_each=each).stats['dp_comm_s']
                      for each in (True, False))
        assert each >= last * (1 - 1e-12)


@pytest.mark.parametrize('software', ['torchtitan', 'llm-foundry'])
@pytest.mark.parametrize('pp', [1, 2])
@pytest.mark.parametrize('N', [2, 8])
def test_fsdp_frees_weights_when_it_reduces_gradients(software, pp, N):
    "Its ZeRO-2 keeps weights for the backward pass alone; a pipeline of PyTorch's, until the last."
    if pp > 1 and software == 'llm-foundry': return   # it has none
    def ask(**layout):
        p = Parallel(dp=16, pp=pp, dp_overlap=False, **layout)
        return estimate('llama3.1_8B', p, 'H100-80GB', 16 * N, software=software)
    one = ask(zero_stage=2)
    a = one.assumptions
    pricer, group = pricer_of(one.system, a), Group(16, one.parallel.nvlink_dp)
    words = 2e-9 * 128256 * 4096
    ends = words + 2e-9 * 4096 + words * (pp == 1)
    def shown(number):
        "Layers, and what stands at the ends, so often gathered and reduced."
        units = [(32 / pp, one.layers.weights_mem.sum()), (1, ends)]
        sent = lambda kind, GB: pricer.collective(kind, GB, group)
        return number * sum(n * (sent('allgather', GB) + sent(
            'reducescatter', GB * a.costs.gradient_bytes / 2)) for n, GB in units)
    assert close(one.stats['dp_comm_s'], shown(N if pp == 1 else 1))
    kept = ask(zero_stage=3, reshard_after_forward=False)
    for name in ('iteration_s', 'memory_GB'): assert close(kept.stats[name], one.stats[name]), name


@pytest.mark.parametrize('schedule, N', [('1f1b', 2), ('1f1b', 8), ('gpipe', 8), ('zb-v', 8)])
def test_what_a_pass_gathers_in_pipelines_of_pytorch(schedule, N):
    "A forward pass frees weights, a backward pass keeps them: walked through, pass by pass."
    layout = dict(pp=2, dp=16, dp_overlap=False, schedule=schedule)
    ask = lambda **more: estimate('llama3.1_8B', Parallel(**layout, **more), 'H100-80GB', 16 * N,
                                  software='torchtitan')
    one = ask(zero_stage=3)
    for place, passes in one.timeline.sort_values('start_s').groupby('place'):
        gathered, gathers = False, 0
        for kind in passes.kind:
            gathers += not gathered
            gathered = kind != 'F'
        assert gathers == N + 1, place
    pricer, group = pricer_of(one.system, one.assumptions), Group(16, one.parallel.nvlink_dp)
    words = 2e-9 * 128256 * 4096
    ends = (words + 2e-9 * 4096) + words * (schedule == 'zb-v')
    sent = lambda GB: pricer.collective('allgather', GB, group)
    again = N * (16 * sent(one.layers.weights_mem.sum()) + sent(ends))
    kept = ask(zero_stage=3, reshard_after_forward=False)
    assert close(one.stats['dp_comm_s'], kept.stats['dp_comm_s'] + again)


@pytest.mark.parametrize('software', ['torchtitan', 'llm-foundry', 'fms-fsdp', 'InternEvo'])
def test_replicas_of_fsdp_meet_in_every_micro_batch(software):
    "PyTorch's sum gradients up whenever shards of them are reduced; others', once an iteration."
    def ask(replicas, N):
        p = Parallel(dp=64, dp_replicate=replicas, zero_stage=3, dp_overlap=False)
        return estimate('llama3.1_8B', p, 'H100-80GB', 64 * N, software=software)
    one = ask(8, 4)
    a = one.assumptions
    pricer, words = pricer_of(one.system, a), 2e-9 * 128256 * 4096
    units = [(32, one.layers.weights_mem.sum()), (1, 2 * words + 2e-9 * 4096)]
    def sent(kind, group, by=1):
        factor = a.costs.gradient_bytes / 2 if kind != 'allgather' else 1
        return sum(n * pricer.collective(kind, GB * factor / by, group) for n, GB in units)
    inside, outside = Group(8, 8), Group(8, 1)
    each = 2 * sent('allgather', inside) + sent('reducescatter', inside)
    meetings = 1 if software == 'InternEvo' else 4
    assert close(one.stats['dp_comm_s'], 4 * each + meetings * sent('allreduce', outside, 8))


@pytest.mark.parametrize('v', [1, 2])
def test_nothing_hides_gradients_of_pytorch_after_a_chunk_s_last_backward_pass(v):
    "It reduces them one unit after the other: all of them, but for chunks that others follow."
    p = Parallel(tp=8, pp=4, dp=16, virtual_stages=v, recompute='full')
    one = estimate('llama3.1_70B', p, 'H100-80GB', 512, software='torchtitan')
    a, layer = one.assumptions, one.layers.weights_mem.sum()
    pricer, group = pricer_of(one.system, a), Group(16, 1)
    words = 2e-9 * 128256 * 8192 / 8
    assert a.costs.gradient_bytes == 4
    gather, reduce = (
        [pricer.collective(kind, GB, group) for GB in sizes] for kind, sizes in
        {'allgather': (layer, words + 2e-9 * 8192),
         'reducescatter': (2 * layer, 2 * (words + 2e-9 * 8192))}.items())
    cost, = timeline.priced_estimate(one).layers
    forward, backward = cost[:2]
    shown = lambda t, layer, whole: t * whole + (20 - whole) * (
        max(t - layer, 0) + a.costs.unit_exposed * min(t, layer))
    expected = shown(gather[0], forward, 1) + gather[1]
    expected += shown(reduce[0], backward, 20 / v) + reduce[1]
    assert math.isclose(one.stats['dp_comm_s'], expected, rel_tol=1e-6)


@pytest.mark.parametrize('recompute', ['none', 'full'])
def test_what_stays_gathered_in_pipelines_of_pytorch(recompute):
    "All weights and a micro-batch less of activations, or a few and all of them."
    ask = lambda **more: estimate('llama3.1_8B', Parallel(
        tp=2, pp=4, dp=16, recompute=recompute, **more), 'H100-80GB', 128, software='torchtitan')
    one, kept = ask(zero_stage=3).stats, ask(zero_stage=2).stats
    freed = kept['weights_GB'] - one['weights_GB']
    assert one['activations_GB'] == kept['activations_GB']
    if recompute == 'none': assert freed > .6 * kept['weights_GB']
    else: assert close(freed, 2e-9 * 8192 * 4096 / 2 * 32 / 4)   # inputs of layers


@pytest.mark.parametrize('preset', PRESETS)
@pytest.mark.parametrize('n', [8, 64, 512])
def test_weights_hide_behind_enough_tokens(preset, n):
    "What of a gather can hide does so from C / W tokens a GPU on."
    system = as_system('H100-80GB', 8)
    a = dataclasses.replace(as_assumptions(preset), zero_stage=3).on(system)
    pricer, group, depth = pricer_of(system, a), Group(n, min(n, 8)), 50
    for GB in (.1, 1.):
        gather = pricer.collective('allgather', GB, group)
        rate = GB / gather                               # GB/s that a gather reaches: W
        tokens = system.matrix_flops_fp16 * 1e3 / rate   # C / W: 2 FLOP and 2 bytes a weight
        p = Layouts(zero_stage=3, assumptions=a)
        token = 1e-3 * GB / system.matrix_flops_fp16   # s, forward
        seen = lambda T, GB=GB, p=p, token=token: data_parallel_time(
            [UnitWeights(GB, group)], token * T, 1e9, pricer, p, depth)[0]
        least = gather * (1 + a.costs.unit_exposed * (depth - 1))
        assert close(seen(tokens * 1.01), least)
        assert seen(tokens * .5) > 1.01 * least and close(seen(0.), depth * gather)


def test_copies_in_8_bits_are_those_at_hand():
    "ZeRO-3 holds what it gathered in 8 bits, too, not every layer; if it keeps layers, all."
    held = lambda precision, **more: estimate(
        'llama3.1_70B', Parallel(dp=64, zero_stage=3, precision=precision, **more), 'H100-80GB', 64,
        'calibrated').stats['weights_GB']
    layer = 2 * as_model('llama3.1_70B').parameters / 80 / 1e9   # and more: the embedding
    assert 0 < held('fp8') - held('bf16') < 2 * 2 * layer
    kept = [held(precision, reshard_after_forward=False) for precision in ('bf16', 'fp8')]
    assert 70 * layer < kept[1] - kept[0] < 80 * layer


@pytest.mark.parametrize('preset', first_of(1, PRESETS[::-1]))
def test_a_search_over_sharding_is_its_parts(preset):
    "Stages, replicas, what stays gathered, when gradients are reduced: at once or one by one."
    a, system = as_assumptions(preset), as_system('H100-80GB')
    asked = {'zero_stage': [0, 1, 3], 'dp_replicate': [1, 4], 'reduce_each': [True, False],
             'reshard_after_forward': [True, False]}
    ask = lambda k=6, **choices: search(SMALL, 64, system, 64, k=k, assumptions=a, **choices)
    together = ask(**asked)
    apart = [ask(**dict(zip(asked, values))) for values in itertools.product(*asked.values())]
    times = sorted({s for found in apart for s in rank_seconds(found)})
    assert sorted(set(rank_seconds(together))) == times[:rank_seconds(together).nunique()]
    for row in together.to_dict('records'):
        again = estimate(SMALL, Parallel.from_row(row), system, 64, a).stats
        assert close(again['iteration_s'], row['iteration_s'])
        assert close(again['memory_GB'], row['memory_GB'])


def test_replicas_divide_the_copies():
    with pytest.raises(ValueError, match='dp=8 must be divisible by dp_replicate=3'):
        figures(parallel={'dp': 8, 'dp_replicate': 3})
    found = search(SMALL, 64, 'H200', 64, dp_replicate=[8], zero_stage=3, k=500,
                   assumptions='corrected')
    assert len(found) and (found.dp % 8 == 0).all()


# model FLOP and executed FLOP

@pytest.mark.parametrize('preset', PRESETS)
def test_utilization_by_hand(preset):
    system, model = as_system('H100-80GB'), as_model('llama3.1_8B')
    layout = {'tp': 2, 'pp': 2, 'dp': 4}
    one = figures(model, preset, parallel=layout, batch=64)
    TFLOP = 1e-12 * 64 * 8192 * model.flops_per_token('megatron') / 16
    assert close(one['model_TFLOP_per_gpu'], TFLOP)
    assert close(one['mfu'], TFLOP / one['iteration_s'] / 989.4)
    assert close(one['hfu'] / one['mfu'], one['executed_TFLOP_per_gpu'] / TFLOP)
    assert close(system.matrix_flops_fp16, 989.4)


def test_what_is_executed_by_hand():
    "Products of the forward pass once, of the backward pass twice; scores of attention once more."
    plain = Model(4096, 4096, 32, 4, vocab=32000, biases='all')
    a = dict(preset='calibrated', parallel={'dp': 2})
    tokens, e, l = 2 * 4096, 4096, 4096   # of one GPU
    def executed(recompute='none'):
        layers = 12 * e**2 * 4 * (4 if recompute == 'full' else 3)
        scores = l / 2 * e * 4 * {'none': 2 + 5, 'selective': 4 + 5, 'full': 4 + 5}[recompute]
        return 2e-12 * tokens * (layers + scores + 3 * 32000 * e)
    for recompute in ('none', 'selective', 'full'):
        own = a | {'parallel': {'dp': 2, 'recompute': recompute}}
        found = figures(plain, batch=4, **own)['executed_TFLOP_per_gpu']
        assert close(found, executed(recompute), 1e-3)
    model = figures(plain, batch=4, **a)['model_TFLOP_per_gpu']
    assert close(model, executed() - 2e-12 * tokens * l / 2 * e * 4, 1e-3)


@pytest.mark.parametrize('preset', PRESETS)
def test_nothing_beats_the_peak(preset):
    found = search('gpt3', 512, 'H100-80GB', 512, k=20, assumptions=preset,
                   recompute=['none', 'selective', 'full'])
    assert (found.hfu < 1).all() and (found.mfu > 0).all()
    assert (found.executed_TFLOP_per_gpu >= found.model_TFLOP_per_gpu * .97).all()
    full = found[found.recompute == 'full']
    assert (full.hfu > 1.3 * full.mfu * .97).all()


def test_bundled_messages_are_a_choice_of_their_own():
    "One message pays its hops once, whatever the prices are; layer by layer each pays them."
    system, preset = as_system('H100-80GB', 8), as_assumptions('corrected')
    seen = [estimate('llama3.1_8B', Parallel(dp=64, nvlink_dp=8, dp_overlap=False), system, 64,
                     dataclasses.replace(preset, bundled_messages=flag)).stats['dp_comm_s']
            for flag in (False, True)]
    hops = system.ib_latency * (8 - 1) + system.nvlink_latency * (64 - 8)
    assert math.isclose(seen[0] - seen[1], 2 * (32 - 1) * hops, rel_tol=1e-9)   # to gather, reduce
