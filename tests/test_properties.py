"Properties that hold for any model, system and configuration."
import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from transformer_perf import Assumptions, Model, Parallel, estimate, search
from transformer_perf import layers
from transformer_perf.estimates import COLLECTIVES, Group, as_assumptions, collective_time
from transformer_perf.execution import COMPONENTS, GROUPS, MEMORY_PARTS, PLACES
from transformer_perf.kernels import Job, iteration_seconds, layer_seconds, stage_memory
from transformer_perf.modules import STRATEGIES, Shape, layer_cost
from transformer_perf.systems import as_system

few = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
powers = lambda most: st.sampled_from([2**i for i in range(most + 1)])

models = st.builds(lambda l, q, h, depth, wide: Model(l, q * h, h, depth, wide * q * h), st.sampled_from([128, 384, 512, 2048]), st.sampled_from([64, 96, 128]),
                   st.sampled_from([2, 4, 6, 8]), st.sampled_from([1, 2, 4, 6]), st.sampled_from([2, 4]))
gpus = st.sampled_from(['A100', 'H200', 'B200'])
domains = st.sampled_from([1, 2, 4, 6, 8])
names = st.sampled_from(list(STRATEGIES))
presets = st.sampled_from(['paper', 'corrected'])


def loose(assumptions, **changes):
    "Assumptions that allow the small models of these tests to be shared out."
    return dataclasses.replace(as_assumptions(assumptions), least_features=16, least_panel=64, **changes)


# an array of configurations costs what its elements cost

@few
@given(st.lists(st.tuples(powers(4), powers(3), powers(3), powers(3)), min_size=1, max_size=6), names, presets)
def test_array_is_elementwise(points, strategy, preset):
    b, m1, m2, nb = (np.array(column) for column in zip(*points))
    if strategy == '1d': m2 = np.ones_like(m2)
    system, assumptions = as_system('H200'), loose(preset)
    cost = lambda b, m1, m2, nb: layer_cost(strategy, Shape(b, 2048, 1024, 4096, 16, m1, m2, nb), {'tp1': Group(m1, m1), 'tp2': Group(m2, 1)}, system, assumptions)
    together = cost(b, m1, m2, nb)
    for i, point in enumerate(zip(b, m1, m2, nb)):
        alone = cost(*map(int, point))
        for name, column, value in zip(together._fields, together, alone): assert math.isclose(np.broadcast_to(column, b.shape)[i], value, rel_tol=1e-12), name


@few
@given(st.sampled_from(COLLECTIVES + ('p2p',)), st.lists(st.tuples(powers(10), powers(6), st.floats(0, 10)), min_size=1), presets)
def test_collectives_elementwise(kind, points, preset):
    n, t, volume = (np.array(column) for column in zip(*((n, min(n, t), v) for n, t, v in points)))
    system, assumptions = as_system('B200'), loose(preset)
    for i, seconds in enumerate(collective_time(kind, volume, n, t, system, assumptions)):
        assert seconds == collective_time(kind, float(volume[i]), int(n[i]), int(t[i]), system, assumptions) >= 0


def test_counts_never_wrap_around():
    huge = np.array([2**31])
    op = layers.linear('x', huge, huge, huge, huge)
    assert math.isclose(op.forward.matrix[0], 1e-12 * 2.0**(4 * 31 + 1), rel_tol=1e-6)


# the fast search is the exhaustive one

def brute_force(model, n, system, batch, strategy, assumptions):
    "Every candidate by plain loops over the definitions, priced one by one."
    a, s, found = assumptions, STRATEGIES[strategy], []
    divisors = lambda x: [c for c in range(1, x + 1) if x % c == 0]
    for tp1, tp2 in itertools.product(divisors(n), divisors(n) if strategy != '1d' else [1]):
        if n % (tp1 * tp2) or model.heads % tp1 or model.embed_dim % tp1: continue
        if (3 if strategy == '1d' else 1) * model.embed_dim // tp1 < a.least_features: continue
        if strategy != '1d' and model.seq_len // tp2 < a.least_features: continue
        if strategy == '2d' and model.embed_dim % tp2: continue
        start = max(tp1, tp2)
        if strategy != '2d': panels = [1]
        elif model.embed_dim / start < a.least_panel: panels = [start]
        else: panels = [p for i in range(40) if i < math.log2(model.embed_dim // start) for p in [start * 2**i] if model.embed_dim % p == 0 and model.embed_dim // p >= a.least_panel]
        for pp in divisors(model.depth):
            if n % (tp1 * tp2 * pp) or min(n // (tp1 * tp2), model.depth) % pp: continue
            dp = n // (tp1 * tp2 * pp)
            if batch % dp: continue
            groups = tp1, tp2, pp, dp
            places = [groups] if n <= system.nvlink_size else [p for p in itertools.product(*map(divisors, groups)) if math.prod(p) == system.nvlink_size]
            shards = {'1d': tp1, '2d-seqp': tp1 * tp2, '2d': tp2}[strategy]
            for b, nb, place in itertools.product(divisors(batch // dp), panels, places):
                if b * model.seq_len % shards: continue
                stats = estimate(model, Parallel(strategy, *groups, b, nb, None, *place), system, batch, assumptions).stats
                if stats['memory_GB'] <= system.hbm_capacity: found.append(stats['iteration_s'])
    return sorted(found)


@settings(few, max_examples=25)
@given(models, st.sampled_from([1, 2, 4, 6, 8, 12, 16]), gpus, domains, st.sampled_from([4, 6, 8]), names, presets, st.floats(0.0, 1.0))
def test_search_is_exhaustive(model, n, gpu, nvlink_size, batch, strategy, preset, tightness):
    assumptions = loose(preset)
    system = dataclasses.replace(as_system(gpu, nvlink_size), hbm_capacity=0.02 + tightness * 2)
    expected = brute_force(model, n, system, batch, strategy, assumptions)
    found = search(model, n, system, batch, strategy, k=len(expected) + 5, assumptions=assumptions)
    np.testing.assert_allclose(found.iteration_s, expected, rtol=1e-12)
    assert (n in found.reasons) == (not expected)
    top = search(model, n, system, batch, strategy, k=3, assumptions=assumptions)
    np.testing.assert_allclose(top.iteration_s, expected[:3], rtol=1e-12)


def test_search_in_blocks(monkeypatch):
    from transformer_perf import execution
    whole = search('gpt3_1T', [256, 2048], 'B200', strategy='all', k=20)
    monkeypatch.setattr(execution, 'BLOCK', 100)
    in_blocks = search('gpt3_1T', [256, 2048], 'B200', strategy='all', k=20)
    assert len(whole) == 40 and whole.equals(in_blocks)


# what a result says about itself

@few
@given(models, st.sampled_from([2, 8, 12]), gpus, domains, names, presets)
def test_components_add_up(model, n, gpu, nvlink_size, strategy, preset):
    found = search(model, n, as_system(gpu, nvlink_size), 24, strategy, assumptions=loose(preset))
    np.testing.assert_allclose(found[list(COMPONENTS)].sum(axis=1), found.iteration_s, rtol=1e-12)
    np.testing.assert_allclose(found[list(MEMORY_PARTS)].sum(axis=1), found.memory_GB, rtol=1e-12)
    np.testing.assert_allclose(found.samples_per_s * found.iteration_s, 24, rtol=1e-12)
    for row in found.itertuples():
        again = estimate(model, Parallel.from_row(row._asdict()), as_system(gpu, nvlink_size), 24, loose(preset))
        assert math.isclose(again.stats['iteration_s'], row.iteration_s, rel_tol=1e-12)
        assert math.isclose(again.layers.t.sum(), (row.compute_s + row.exposed_memory_s + row.tp_comm_s) / (model.depth // row.pp * (24 // row.dp // row.micro_batch)), rel_tol=1e-9)


@few
@given(models, names, presets)
def test_recompute_trades_time_for_memory(model, strategy, preset):
    options = dict(system='H200', global_batch=8)
    plain, again = (estimate(model, Parallel(strategy), assumptions=loose(preset, flash_attention=False, attention_recompute=r), **options) for r in (False, True))
    assert again.stats['iteration_s'] > plain.stats['iteration_s'] and again.stats['memory_GB'] < plain.stats['memory_GB']
    assert math.isclose(sum(again.stats[c] for c in COMPONENTS), again.stats['iteration_s'], rel_tol=1e-12)


@few
@given(models, st.sampled_from([8, 12]), gpus, domains, names, presets)
def test_zero_trades_memory_for_messages(model, n, gpu, nvlink_size, strategy, preset):
    system = as_system(gpu, nvlink_size)
    for row in search(model, n, system, 24, strategy, k=5, assumptions=loose(preset)).itertuples():
        at = lambda stage: estimate(model, dataclasses.replace(Parallel.from_row(row._asdict()), zero_stage=stage), system, 24, loose(preset)).stats
        stages = [at(stage) for stage in range(4)]
        assert math.isclose(stages[1]['iteration_s'], row.iteration_s, rel_tol=1e-12)
        for lower, higher in zip(stages, stages[1:]): assert higher['memory_GB'] <= lower['memory_GB'] * (1 + 1e-12)
        for lower, higher in zip(stages[1:], stages[2:]): assert higher['iteration_s'] >= lower['iteration_s'] * (1 - 1e-12)


def test_search_over_zero_stages():
    together = search('gpt3', 512, as_system('H200'), 512, k=5, zero_stages=[1, 3])
    apart = [search('gpt3', 512, as_system('H200'), 512, k=5, assumptions=dataclasses.replace(Assumptions(), zero_stage=stage)) for stage in (1, 3)]
    expected = sorted(s for found in apart for s in found.iteration_s)[:5]
    assert together.iteration_s.tolist() == expected and set(together.zero_stage) <= {1, 3}
    with pytest.raises(ValueError, match='zero_stage=4 must be'): search('gpt3', 512, 'H200', zero_stages=[4])


# better hardware is never slower, and a world twice as fast is twice as fast

def optimum(model, n, system, strategy, assumptions):
    found = search(model, n, system, 24, strategy, k=1, assumptions=assumptions)
    return found.iteration_s[0] if len(found) else math.inf


BETTER = ['matrix_flops_fp16', 'vector_flops_fp16', 'hbm_bandwidth', 'hbm_capacity', 'nvlink_bandwidth', 'ib_bandwidth', 'nic_factor']

@few
@given(models, st.sampled_from([2, 8, 12, 48]), gpus, domains, names, presets, st.sampled_from(BETTER), st.floats(1, 10))
def test_better_hardware_is_never_slower(model, n, gpu, nvlink_size, strategy, preset, field, factor):
    system = dataclasses.replace(as_system(gpu, nvlink_size), hbm_capacity=1.)
    better = dataclasses.replace(system, **{field: getattr(system, field) * factor})
    assert optimum(model, n, better, strategy, loose(preset)) <= optimum(model, n, system, strategy, loose(preset)) * (1 + 1e-12)


@few
@given(models, st.sampled_from([2, 8, 12, 48]), gpus, domains, names, presets)
def test_doubling_everything_keeps_ratios(model, n, gpu, nvlink_size, strategy, preset):
    system = as_system(gpu, nvlink_size)
    rates = ['matrix_flops_fp16', 'vector_flops_fp16', 'hbm_bandwidth', 'nvlink_bandwidth', 'ib_bandwidth']
    fast = dataclasses.replace(system, **{f: getattr(system, f) * 2 for f in rates}, nvlink_latency=system.nvlink_latency / 2, ib_latency=system.ib_latency / 2)
    slow_found, fast_found = (search(model, n, s, 24, strategy, k=5, assumptions=loose(preset, launch_time=t)) for s, t in ((system, 20e-6), (fast, 10e-6)))
    np.testing.assert_allclose(slow_found.iteration_s, fast_found.iteration_s * 2, rtol=1e-12)
    assert slow_found[[*GROUPS, *PLACES]].equals(fast_found[[*GROUPS, *PLACES]])


# any number of GPUs, any batch

@pytest.mark.parametrize('n, batch', [(1, 1), (3, 3), (1000, 1000), (1536, 1536), (720720, 720720), (2**20, 2**20), (999983, 4096), (2**31, 2**31)])
def test_scales(n, batch):
    for strategy in STRATEGIES:
        found = search('gpt3_1T', n, as_system('B200-next', 8), batch, strategy)
        assert len(found) or found.reasons[n]
        assert (found[list(GROUPS)].prod(axis=1) == n).all() and (found.iteration_s > 0).all()


def test_system_fields_may_be_arrays():
    "A sweep over imagined hardware is one computation."
    system = as_system('H200')
    bandwidth = np.array([[500.], [4800.], [16000.]])
    cost = lambda s: layer_cost('1d', Shape(np.array([1, 2]), 2048, 25600, 102400, 160, np.array([4, 8])), {'tp1': Group(np.array([4, 8]), np.array([4, 8]))}, s, Assumptions())
    together = cost(dataclasses.replace(system, hbm_bandwidth=bandwidth))
    for i, value in enumerate(bandwidth[:, 0]):
        np.testing.assert_allclose(together.forward[i], cost(dataclasses.replace(system, hbm_bandwidth=value)).forward, rtol=1e-12)


# the calibrated model obeys the same laws

llamas = st.builds(lambda l, q, kv, group, depth, vocab, gated: Model(l, q * kv * group, kv * group, depth, kv_heads=kv, vocab=vocab, gated_mlp=gated),
                   st.sampled_from([512, 2048]), st.sampled_from([64, 128]), st.sampled_from([2, 4]), st.sampled_from([1, 2]), st.sampled_from([4, 12]), st.sampled_from([None, 32000]), st.booleans())
measured = st.sampled_from(['A100', 'H200', 'B200'])
sharing = st.sampled_from(['1d', '2d-seqp'])


@settings(few, max_examples=10)
@given(llamas, st.sampled_from([1, 4, 8]), measured, domains, sharing, st.sampled_from(['none', 'selective', 'full']), st.floats(0.0, 1.0))
def test_calibrated_search_is_exhaustive(model, n, gpu, nvlink_size, strategy, recompute, tightness):
    assumptions = loose('calibrated', recompute=recompute)
    system = dataclasses.replace(as_system(gpu, nvlink_size), hbm_capacity=0.2 + tightness * 4)
    expected = brute_force(model, n, system, 8, strategy, assumptions)
    found = search(model, n, system, 8, strategy, k=len(expected) + 5, assumptions=assumptions)
    np.testing.assert_allclose(found.iteration_s, expected, rtol=1e-12)
    np.testing.assert_allclose(found[list(COMPONENTS)].sum(axis=1), found.iteration_s, rtol=1e-12)
    np.testing.assert_allclose(found[list(MEMORY_PARTS)].sum(axis=1), found.memory_GB, rtol=1e-12)
    assert (found[list(COMPONENTS)] >= -1e-15).all(axis=None)


@few
@given(st.lists(st.tuples(powers(3), powers(3), powers(3), powers(5), st.booleans(), st.booleans(), st.sampled_from(['none', 'selective', 'full']), st.sampled_from([0, 1])), min_size=1, max_size=6), llamas, measured)
def test_calibrated_array_is_elementwise(points, model, gpu):
    columns = dict(zip(('tp', 'pp', 'cp', 'dp', 'sequence_sharded', 'fused_attention', 'recompute', 'zero_stage'), map(np.array, zip(*points))))
    recompute = columns.pop('recompute')
    system, kernels = as_system(gpu), as_assumptions('calibrated').kernels.of(as_system(gpu))
    sizes = dict(seq_len=model.seq_len, embed_dim=model.embed_dim, mlp_dim=model.mlp_dim, heads=model.heads, kv_heads=model.kv_heads, vocab=model.vocab or 0, gated_mlp=model.gated_mlp, causal=True,
                 depth=model.depth, micro_batch=2, micro_batches=16)
    def cost(**c):
        job = Job(**sizes, **c)
        return [*iteration_seconds(job, layer_seconds(job, system, kernels), system, kernels), *stage_memory(job, kernels)]
    together = cost(**columns, selective=recompute == 'selective', full=recompute == 'full')
    for i in range(len(points)):
        alone = cost(**{name: column[i] for name, column in columns.items()}, selective=recompute[i] == 'selective', full=recompute[i] == 'full')
        for a, b in zip(together, alone): assert math.isclose(np.broadcast_to(a, len(points))[i], b, rel_tol=1e-9, abs_tol=1e-15)


@few
@given(llamas, measured, sharing, st.booleans())
def test_calibrated_recompute_trades_time_for_memory(model, gpu, strategy, fused):
    plain, again = (estimate(model, Parallel(strategy, micro_batch=2, recompute=r), gpu, 8, loose('calibrated', flash_attention=fused)).stats for r in ('none', 'full'))
    assert again['iteration_s'] > plain['iteration_s'] and again['memory_GB'] < plain['memory_GB'] and again['activations_GB'] < plain['activations_GB']
    core = estimate(model, Parallel(strategy, micro_batch=2, recompute='selective'), gpu, 8, loose('calibrated', flash_attention=fused)).stats
    assert plain['iteration_s'] < core['iteration_s'] < again['iteration_s']


@few
@given(measured, st.sampled_from([2, 4]), st.sampled_from([2, 3, 6]), st.sampled_from([8, 32]))
def test_virtual_stages_shrink_the_bubble(gpu, pp, virtual_stages, batch):
    model = Model(2048, 2048, 16, 24, vocab=32000)
    plain, interleaved = (estimate(model, Parallel(pp=pp, virtual_stages=v), gpu, batch, 'calibrated').stats for v in (1, virtual_stages))
    assert interleaved['bubble_s'] < plain['bubble_s'] and interleaved['activations_GB'] >= plain['activations_GB']
    assert math.isclose(interleaved['compute_s'], plain['compute_s'], rel_tol=1e-12)


def test_search_over_calibrated_choices():
    options = dict(model='gpt3', n_gpus=512, system='H200', global_batch=512, k=5, assumptions='calibrated')
    together = search(**options, recompute=['none', 'full'], virtual_stages=[1, 2, 4])
    apart = [search(**{**options, 'assumptions': dataclasses.replace(as_assumptions('calibrated'), recompute=r, virtual_stages=v)}) for r in ('none', 'full') for v in (1, 2, 4)]
    assert together.iteration_s.tolist() == sorted(s for found in apart for s in found.iteration_s)[:5]
    for row in together.itertuples(): assert math.isclose(estimate('gpt3', Parallel.from_row(row._asdict()), 'H200', 512, 'calibrated').stats['iteration_s'], row.iteration_s, rel_tol=1e-12)


def test_grouped_queries_and_gates_count():
    plain = Model(4096, 4096, 32, 8, vocab=32000)
    figure = lambda **changes: estimate(dataclasses.replace(plain, **changes), Parallel(), 'H200', 1, 'calibrated').stats
    assert figure(kv_heads=4)['weights_GB'] < figure()['weights_GB'] < figure(gated_mlp=True)['weights_GB']
    assert figure(causal=False)['compute_s'] > figure()['compute_s'] and figure(vocab=128000)['other_s'] > figure()['other_s']
    paper = lambda **changes: estimate(dataclasses.replace(plain, **changes), Parallel(), 'H200', 1).stats
    assert paper(kv_heads=4, gated_mlp=True, vocab=None, causal=False) == paper()   # the paper's model knows none of them


@few
@given(llamas, measured, domains)
def test_calibrated_messages_cost(model, gpu, nvlink_size):
    figure = lambda parallel, **changes: estimate(model, parallel, as_system(gpu, nvlink_size), 16, loose('calibrated', **changes)).stats
    context, copies = Parallel('2d-seqp', tp2=4), Parallel(dp=4)
    assert figure(context, context_gather=True)['tp_comm_s'] >= figure(context)['tp_comm_s'] and figure(context, context_gather=True)['memory_GB'] > figure(context)['memory_GB']
    assert figure(copies, reduce_each=True)['dp_comm_s'] > figure(copies)['dp_comm_s'] < figure(copies, dp_overlap=False)['dp_comm_s']
    assert figure(Parallel(tp1=2))['tp_comm_s'] > figure(Parallel(tp1=2), tp_overlap=True)['tp_comm_s'] > 0
    assert figure(Parallel(pp=4))['bubble_s'] > figure(Parallel(pp=4), zero_bubble=True)['bubble_s'] >= 0
