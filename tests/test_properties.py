"Properties that hold for any model, system and configuration."
import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, strategies as st

from thorough import examples
from transformer_perf import Model, Parallel, estimate, execution, layers, search
from transformer_perf.estimates import COLLECTIVES, as_assumptions, collective_time, counted
from transformer_perf.blocks import gpt_block
from transformer_perf.execution import best_of, considered_choices, Question, search_each
from transformer_perf.timeline import COMPONENTS, MEMORY_PARTS, iteration_times, memory_of
from transformer_perf.iteration import rank_seconds, readable
from transformer_perf.kernels import pricer_of
from transformer_perf.models import sizes_of
from transformer_perf.modules import (
    STRATEGIES, CountedJob, Layouts, count, host_wait, layer_cost, prices_of)
from transformer_perf.schedules import SCHEDULES
from transformer_perf.systems import as_system

slow = [HealthCheck.too_slow, HealthCheck.filter_too_much]
few = examples(12, 6, suppress_health_check=slow)
pick = st.sampled_from


def powers(most): return pick([2**i for i in range(most + 1)])


def small_model(l, q, h, depth, wide, kv, gated, vocab):
    return Model(l, q * h, h, depth, wide * q * h, kv_heads=max(h // kv, 1), gated_mlp=gated,
                 vocab=vocab)


models = st.builds(small_model, pick([128, 384, 512, 2048]), pick([64, 96, 128]),
                   pick([2, 4, 6, 8]), pick([1, 2, 4, 6]), pick([2, 4]), pick([1, 2]),
                   st.booleans(), pick([None, 32000]))
gpus, measured = pick(['A100', 'H200', 'B200']), pick(['A100-80GB', 'H100-80GB', 'B200-180GB'])
domains, names = pick([1, 2, 4, 6, 8]), pick(list(STRATEGIES))
presets = pick(['paper', 'corrected', 'calibrated'])
recomputes = pick(['none', 'selective', 'full'])


def loose(assumptions, **changes):
    "Assumptions that allow the small models of these tests to be shared out."
    a = as_assumptions(assumptions)
    return dataclasses.replace(a, least_features=16, least_panel=64, wide_search=False,
                               placed_by_rank=False, **changes)


def of_preset(preset, gpu): return gpu if preset != 'calibrated' else {
    'A100': 'A100-80GB', 'H200': 'H100-80GB', 'B200': 'B200-180GB'}[gpu]


def close(a, b, rel=1e-12): return math.isclose(a, b, rel_tol=rel, abs_tol=1e-18)


# an array of configurations costs what its elements cost

def whole_cost(job, system):
    "Everything that a job costs, as one list of numbers."
    priced = prices_of(count(job), pricer_of(system, job.assumptions))
    times, memory = iteration_times(priced), memory_of(priced.work)
    return [*(x for cost in priced.layers for x in cost), *priced.ends, *times, *memory]


points = st.lists(st.tuples(
    powers(4), powers(3), powers(3), powers(3), powers(3), powers(2), powers(4), recomputes,
    st.booleans(), pick([0, 1, 2, 3]), pick(['ring', 'allgather']), st.booleans(),
    pick(list(SCHEDULES))),
    min_size=1, max_size=6)
COLUMNS = ('micro_batch', 'tp', 'cp', 'pp', 'panels', 'virtual_stages', 'dp', 'recompute',
           'sequence_sharded', 'zero_stage', 'context', 'tp_overlap', 'schedule')


@few
@given(points, models, names, presets, gpus, st.booleans())
def test_array_is_elementwise(points, model, strategy, preset, gpu, flash):
    system = as_system(of_preset(preset, gpu))
    a = loose(preset, flash_attention=flash).on(system)
    sizes = sizes_of(model) | {'depth': 64}
    def cost(**columns):
        if strategy == '1d': columns['cp'] = columns['cp'] * 0 + 1
        job = CountedJob(**sizes, micro_batches=16, strategy=strategy, nvlink_tp=columns['tp'],
                  assumptions=a, units=system.units, **columns)
        return whole_cost(job, system)
    together = cost(**dict(zip(COLUMNS, map(np.array, zip(*points)))))
    for i, point in enumerate(points):
        alone = cost(**dict(zip(COLUMNS, point)))
        for x, y in zip(together, alone):
            assert close(np.broadcast_to(x, len(points))[i], y, 1e-9)


@few
@given(pick(COLLECTIVES + ('p2p',)), st.lists(st.tuples(powers(10), powers(6), st.floats(0, 10)),
                                              min_size=1), pick(['paper', 'corrected']))
def test_collectives_elementwise(kind, points, preset):
    n, d, volume = (np.array(column) for column in
                    zip(*((n, min(n, d), v) for n, d, v in points)))
    system, a = as_system('B200'), loose(preset)
    for i, seconds in enumerate(collective_time(kind, volume, n, d, system, a)):
        one = collective_time(kind, float(volume[i]), int(n[i]), int(d[i]), system, a)
        assert seconds == one >= 0


def test_counts_never_wrap_around():
    huge = np.array([2**31])
    op = layers.linear('x', huge, huge, huge)
    assert close(counted(op.forward)[0][0], 1e-12 * 2.0**(3 * 31 + 1), 1e-6)
    found = search(Model(2**20, 2**15, 2**8, 2**7), [2**20], 'H200', 2**20, 'all', 3,
                   assumptions='corrected')
    assert np.isfinite(found[list(COMPONENTS)]).all(axis=None)


# the fast search is the exhaustive one

def divisors(x): return [c for c in range(1, x + 1) if x % c == 0]


def panel_counts(e, start, least):
    if e / start < least: return [start]
    steps = [start * 2**i for i in range(40) if i < math.log2(e // start)]
    return [p for p in steps if e % p == 0 and e // p >= least]


def layouts(model, n, strategy, a):
    "(tp, cp, panels) by plain loops over the definitions."
    e = model.embed_dim
    for tp, cp in itertools.product(divisors(n), divisors(n) if strategy != '1d' else [1]):
        if n % (tp * cp) or model.heads % tp or e % tp or model.mlp_dim % tp: continue
        if max(model.kv_heads, tp) % min(model.kv_heads, tp): continue
        if a.rows_shared_exactly and model.seq_len % cp: continue
        if (3 if strategy == '1d' else 1) * e // tp < a.least_features: continue
        if strategy != '1d' and model.seq_len // cp < a.least_features: continue
        if strategy == '2d' and e % cp: continue
        wide = panel_counts(e, max(tp, cp), a.least_panel) if strategy == '2d' else [1]
        yield from ((tp, cp, panels) for panels in wide)


def configurations(model, n, system, batch, strategy, a):
    "Every candidate by plain loops over the definitions."
    for tp, cp, panels in layouts(model, n, strategy, a):
        for pp in divisors(n if a.uneven_stages else model.depth):
            if n % (tp * cp * pp) or pp > model.depth: continue
            if not a.uneven_stages and min(n // (tp * cp), model.depth) % pp: continue
            dp = n // (tp * cp * pp)
            if batch % dp: continue
            groups = tp, cp, pp, dp
            fit = [d for d in divisors(n) if d <= system.nvlink_size]   # in each domain alike
            fullest = [d for d in fit if not any(e > d and e % d == 0 for e in fit)]
            if system.nvlink_size in fit: fullest = [system.nvlink_size]   # all GPUs are used
            places = [p for p in itertools.product(*map(divisors, groups))
                      if math.prod(p) in fullest]
            shards = {'1d': tp, '2d-seqp': tp * cp, '2d': cp}[strategy]
            for b, place in itertools.product(divisors(batch // dp), places):
                if b * model.seq_len % shards == 0:
                    yield Parallel(strategy, *groups, b, panels, None, *place)


def brute_force(model, n, system, batch, strategy, a):
    "Iteration times of all that fit, one by one, in the order of what ranks them."
    every = (estimate(model, p, system, batch, a)
             for p in configurations(model, n, system, batch, strategy, a))
    fitting = sorted((one.stats for one in every if one.fits), key=rank_seconds)
    return [stats['iteration_s'] for stats in fitting]


@examples(20, suppress_health_check=slow)
@example(small_model(384, 64, 6, 1, 2, 1, False, None), 12, 'A100', 8, 4, '1d', 'paper', 'none',
         0.)   # of 8, 12 GPUs use 6 or 4
@given(models, pick([1, 2, 4, 6, 8, 12, 16]), gpus, domains, pick([4, 6, 8]), names, presets,
       recomputes, st.floats(0.0, 1.0))
def test_search_is_exhaustive(model, n, gpu, size, batch, strategy, preset, recompute, tightness):
    a = loose(preset, recompute=recompute)
    system = dataclasses.replace(as_system(of_preset(preset, gpu), size),
                                 hbm_capacity=0.02 + tightness * 4 + 5 * (a.fits_by == 'bound'))
    expected = brute_force(model, n, system, batch, strategy, a)
    found = search(model, n, system, batch, strategy, k=len(expected) + 5, assumptions=a)
    np.testing.assert_allclose(found.iteration_s, expected, rtol=1e-12)
    assert (n in found.reasons) == (not expected)
    top = search(model, n, system, batch, strategy, k=3, assumptions=a)
    np.testing.assert_allclose(top.iteration_s, expected[:3], rtol=1e-12)


def unbounded(monkeypatch):
    "A search that places every configuration."
    zero = lambda f: f.layers.of_each(np.zeros((
        execution.variant_count(f.layers.priced.system), len(f.some))))
    monkeypatch.setattr(execution, 'lower_bounds', zero)


@pytest.mark.parametrize('preset, system', [('paper', 'B200'), ('corrected', 'H200'),
                                            ('calibrated', 'H100-80GB')])
def test_bounds_change_nothing(monkeypatch, preset, system):
    ask = lambda: [search(model, [256, 2048], as_system(system, 8), 4096, 'all', 20, preset)
                   for model in ('gpt3_1T', 'vit_era5')]
    bounded = ask()
    unbounded(monkeypatch)
    for with_bounds, without in zip(bounded, ask()): assert with_bounds.equals(without)


def test_bounds_change_nothing_over_variants(monkeypatch):
    bandwidth = np.geomspace(500, 16000, 7)[:, None]
    system = dataclasses.replace(as_system('B200', 8), hbm_bandwidth=bandwidth,
                                 hbm_capacity=np.linspace(60, 300, 7)[:, None])
    a = as_assumptions('corrected')
    q = Question(execution.as_model('gpt3_1T'), system, 4096, a, '2d-seqp',
                 considered_choices({}, execution.as_model('gpt3_1T'), system, a), {})
    ask = lambda: best_of(search_each((512, 4096), [q], 5), (512, 4096))
    bounded = ask()
    unbounded(monkeypatch)
    again = ask()
    assert all((bounded[name] == again[name]).all() for name in bounded)
    assert len(bounded['rank']) > 40


def test_search_in_blocks(monkeypatch):
    whole = search('gpt3_1T', [256, 2048], 'B200', strategy='all', k=20,
                   global_batch=4096, assumptions='corrected')
    monkeypatch.setattr(execution, 'ROWS_AT_A_TIME', 100)
    in_blocks = search('gpt3_1T', [256, 2048], 'B200', strategy='all', k=20,
                       global_batch=4096, assumptions='corrected')
    assert len(whole) == 40 and whole.equals(in_blocks)


def test_search_over_choices():
    asked = dict(recompute=['none', 'full'], virtual_stages=[1, 2, 4], zero_stage=[0, 1])
    a = dataclasses.replace(as_assumptions('calibrated'), wide_search=False, uneven_stages=False)
    options = dict(model='gpt3', n_gpus=512, system='H100-80GB', global_batch=512, k=6)
    together = search(**options, assumptions=a, **asked)
    apart = [search(**options, assumptions=dataclasses.replace(a, **dict(zip(asked, values))))
             for values in itertools.product(*asked.values())]
    times = sorted(s for found in apart for s in found.iteration_s)
    assert together.iteration_s.tolist() == sorted(set(times))[:6]
    for row in together.to_dict('records'):
        again = estimate('gpt3', Parallel.from_row(row), 'H100-80GB', 512, a)
        assert close(again.stats['iteration_s'], row['iteration_s'])


def test_search_over_schedules(monkeypatch):
    system = dataclasses.replace(as_system('H200'), hbm_capacity=130.)
    ask = lambda: search('gpt3_1T', 2048, system, k=300, schedule=list(SCHEDULES),
                         global_batch=4096, assumptions='corrected')
    together = ask()
    few = [name for name, s in SCHEDULES.items() if np.max(s.saved(8, 1, 64, np.arange(8))) < 64]
    assert set(together.schedule) >= {*few}   # of the others the activations do not fit
    for row in together.iloc[::23].to_dict('records'):
        again = estimate('gpt3_1T', Parallel.from_row(row), system,
                         global_batch=4096, assumptions='corrected').stats
        assert close(again['iteration_s'], row['iteration_s'])
        assert close(again['memory_GB'], row['memory_GB'])
    unbounded(monkeypatch)
    assert together.equals(ask())


# what a result says about itself

@few
@given(models, pick([2, 8, 12]), gpus, domains, names, presets, recomputes)
def test_components_add_up(model, n, gpu, size, strategy, preset, recompute):
    system, a = as_system(of_preset(preset, gpu), size), loose(preset)
    found = search(model, n, system, 24, strategy, assumptions=a, recompute=recompute)
    parts, memory = found[list(COMPONENTS)], found[list(MEMORY_PARTS)]
    np.testing.assert_allclose(parts.sum(axis=1), found.iteration_s, rtol=1e-12)
    np.testing.assert_allclose(memory.sum(axis=1), found.memory_GB, rtol=1e-12)
    np.testing.assert_allclose(found.samples_per_s * found.iteration_s, 24, rtol=1e-12)
    assert (parts >= 0).all(axis=None) and (memory >= 0).all(axis=None)
    for row in found.to_dict('records'):
        again = estimate(model, Parallel.from_row(row), system, 24, a)
        assert close(again.stats['iteration_s'], row['iteration_s'])
        if preset == 'calibrated': continue   # there the host may wait for whole layers
        passes = model.depth // row['pp'] * (24 // row['dp'] // row['micro_batch'])
        inside = row['compute_s'] + row['exposed_memory_s'] + row['tp_comm_s']
        assert close(again.layers.t.sum(), inside / passes, 1e-9)


@few
@given(models, names, presets, gpus, st.booleans())
def test_recompute_trades_time_for_memory(model, strategy, preset, gpu, flash):
    a = loose(preset, flash_attention=flash)
    none, scores, core, full = (
        estimate(model, Parallel(strategy, micro_batch=2, recompute=r), of_preset(preset, gpu), 8,
                 a).stats for r in ('none', 'scores', 'selective', 'full'))
    assert none['iteration_s'] <= scores['iteration_s'] <= core['iteration_s'] < full['iteration_s']
    kept = [one['activations_GB'] for one in (none, scores, core, full)]
    for more, less in itertools.pairwise(kept): assert less <= more * (1 + 1e-12)


@few
@given(models, pick([8, 12]), gpus, domains, names, presets)
def test_zero_trades_memory_for_messages(model, n, gpu, size, strategy, preset):
    system, a = as_system(of_preset(preset, gpu), size), loose(preset)
    for row in search(model, n, system, 24, strategy, k=5, assumptions=a).to_dict('records'):
        stages = [estimate(model, dataclasses.replace(Parallel.from_row(row), zero_stage=stage),
                           system, 24, a).stats for stage in range(4)]
        assert close(stages[1]['iteration_s'], row['iteration_s'])
        for lower, higher in itertools.pairwise(stages):
            assert higher['memory_GB'] <= lower['memory_GB'] * (1 + 1e-12)
        for lower, higher in itertools.pairwise(stages[1:]):
            assert higher['iteration_s'] >= lower['iteration_s'] * (1 - 1e-12)
        if preset == 'corrected':   # an all-reduce is a reduce-scatter and an all-gather
            assert stages[0]['dp_comm_s'] >= stages[1]['dp_comm_s'] * (1 - 1e-12)


def test_zero_stage_is_checked():
    with pytest.raises(ValueError, match='zero_stage=4 must be'):
        search('gpt3', 512, 'H200', zero_stages=[4])


# better hardware is never slower, and a world twice as fast is twice as fast

def optimum(model, n, system, strategy, assumptions):
    found = search(model, n, system, 24, strategy, k=1, assumptions=assumptions)
    return found.iteration_s[0] if len(found) else math.inf


BETTER = ['matrix_flops_fp16', 'vector_flops_fp16', 'hbm_bandwidth', 'hbm_capacity',
          'nvlink_bandwidth', 'ib_bandwidth', 'nic_factor']


@few
@given(models, pick([2, 8, 12, 48]), gpus, domains, names, presets, pick(BETTER), st.floats(1, 10))
def test_better_hardware_is_never_slower(model, n, gpu, size, strategy, preset, field, factor):
    system = dataclasses.replace(as_system(of_preset(preset, gpu), size), hbm_capacity=1.)
    better = dataclasses.replace(system, **{field: getattr(system, field) * factor})
    a = loose(preset)
    before, after = (optimum(model, n, s, strategy, a) for s in (system, better))
    assert after <= before * (1 + 1e-12)


@few
@given(models, pick([2, 8, 12]), gpus, names, pick(['paper', 'corrected']), st.floats(0.1, 10))
def test_a_faster_world_is_proportional(model, n, gpu, strategy, preset, factor):
    system = as_system(gpu, 4)
    rates = ['matrix_flops_fp16', 'vector_flops_fp16', 'hbm_bandwidth', 'nvlink_bandwidth',
             'ib_bandwidth']
    times = ['nvlink_latency', 'ib_latency']
    faster = dataclasses.replace(
        system, **{field: getattr(system, field) * factor for field in rates},
        **{field: getattr(system, field) / factor for field in times})
    a = loose(preset)
    sooner = dataclasses.replace(a, launch_time=a.launch_time / factor)
    before = optimum(model, n, system, strategy, a)
    assume(before < math.inf)
    assert close(optimum(model, n, faster, strategy, sooner) * factor, before, 1e-9)


# every option counts under every preset

@few
@given(models, presets, gpus, pick(['1d', '2d-seqp', '2d']))
def test_what_is_the_models_own_counts(model, preset, gpu, strategy):
    wide = dataclasses.replace(model, kv_heads=model.heads, gated_mlp=False)
    figure = lambda **changes: estimate(dataclasses.replace(wide, **changes), Parallel(strategy),
                                        of_preset(preset, gpu), 4, loose(preset)).stats
    assert figure(gated_mlp=True)['weights_GB'] > figure()['weights_GB']
    assert figure(gated_mlp=True)['TFLOP_per_gpu'] > figure()['TFLOP_per_gpu']
    if model.heads > 1: assert figure(kv_heads=1)['weights_GB'] < figure()['weights_GB']


def test_what_overlaps_needs_something_to_hide_behind():
    "Messages over a slow link show, however they overlap; norms are computed again without any."
    def stats(domain, **layout):
        return estimate('llama3.1_70B', Parallel(tp=8, pp=4, dp=2, **layout),
                        as_system('H100-80GB', domain), 64, 'calibrated').stats
    near, far, over = stats(8), stats(1), stats(1, tp_overlap=True)
    assert stats(8, tp_overlap=True)['iteration_s'] < near['iteration_s'] < over['iteration_s']
    hidden = far['tp_comm_s'] - over['tp_comm_s']
    assert 0 < hidden < far['compute_s'] + far['exposed_memory_s']
    again = stats(8, recompute='layernorm')
    assert math.isclose(again['tp_comm_s'], near['tp_comm_s'], rel_tol=1e-12)
    assert again['iteration_s'] > near['iteration_s']


@pytest.mark.parametrize('preset', ['corrected', 'calibrated'])
def test_what_products_read_in_8_bits_is_gathered_in_8_bits(preset):
    "Half of the gathers' bytes; what is scattered and summed stays in 16 bits."
    seen = [estimate('llama3.1_8B', Parallel(tp=8, precision=precision), 'H100-80GB', 64,
                     preset).stats['tp_comm_s'] for precision in ('bf16', 'fp8')]
    assert .5 * seen[0] < seen[1] < .9 * seen[0]


def test_host_time_grows_with_each_doubling():
    "Of the tensor-parallel GPUs, by as much: a group of 64 is no 64 times as late."
    a = as_assumptions('calibrated').on(as_system('H100-80GB'))
    one = Layouts(assumptions=a)
    alone = [host_wait(0., one._replace(tp=2**i), False) for i in range(7)]
    assert np.allclose(np.diff(alone), a.costs.host_tp * alone[0]) and alone[0] > 0


def test_a_wide_search_has_every_layout_once():
    found = {s: search('llama3.1_8B', 32, 'H100-80GB', 64, s, k=30, assumptions='calibrated')
             for s in (None, '1d', '2d-seqp')}
    both = found[None]
    assert not both.duplicated([*Parallel.__dataclass_fields__.keys() & both.columns]).any()
    assert ((both.strategy == '1d') == (both.cp == 1)).all() and set(both.strategy) == {
        '1d', '2d-seqp'}
    assert both.candidates == sum(
        search('llama3.1_8B', 32, 'H100-80GB', 64, s, k=1, assumptions='calibrated',
               **more).candidates for s, more in (('1d', {}), ('2d-seqp', {'cp': range(2, 33)})))
    assert both.iteration_s[0] == min(found[s].iteration_s[0] for s in ('1d', '2d-seqp'))


def test_a_table_shows_what_differs():
    "Choices that all rows share are not shown; one that tells two rows apart is."
    titles = lambda **choices: set(readable(search(
        'gpt3', 64, 'H200', 512, k=4, fixed={'tp': 4, 'pp': 8}, assumptions='corrected',
        **choices), as_system('H200')))
    overlaps = titles(tp_overlap=[False, True])
    assert 'tp_overlap' in overlaps and not {'schedule', 'tp_overlap', 'context'} & titles()
    assert 'schedule' in titles(schedule=['1f1b', 'zb-h1'])


def test_evidence_ignores_choices_that_change_nothing():
    say = lambda **p: estimate('llama3.1_8B', Parallel(dp=8, **p), 'H100-80GB', 64,
                               'calibrated').notes[0]
    assert say() == say(context='ulysses') == say(dispatcher='allgather')
    assert 'ulysses' in say(cp=2, context='ulysses')
    assert 'allgather' not in say(cp=2, context='allgather')   # as torchtitan ran


@few
@given(presets, gpus)
def test_vocabulary_and_mask_are_assumptions(preset, gpu):
    plain = Model(4096, 4096, 32, 8, vocab=32000)
    with_it, masked, without = (estimate(plain, Parallel(tp=4), of_preset(preset, gpu), 8, loose(
        preset, vocabulary=v, causal_mask=m)) for v, m in (
            (True, True), (False, True), (False, False)))
    assert with_it.stats['compute_s'] > masked.stats['compute_s']   # the two ends
    assert with_it.stats['weights_GB'] > masked.stats['weights_GB']
    assert masked.stats['compute_s'] < without.stats['compute_s']   # the mask's half is skipped
    assert 'Not counted' in without.notes[-1] and 'Not counted' not in with_it.notes[-1]


@few
@given(presets, gpus, domains)
def test_messages_cost(preset, gpu, size):
    model, system = Model(2048, 2048, 16, 24, vocab=32000), as_system(of_preset(preset, gpu), size)
    def figure(changes=None, **layout):
        a = loose(preset, **(changes or {}))
        return estimate(model, Parallel(**layout), system, 16, a).stats
    gather, ring = (figure(cp=4, context=c) for c in ('allgather', 'ring'))
    if preset != 'calibrated' and size >= 4:   # between domains an all-gather has more NICs
        assert gather['tp_comm_s'] >= ring['tp_comm_s']
    assert figure(tp=2)['tp_comm_s'] > figure(tp=2, tp_overlap=True)['tp_comm_s'] > 0
    each, once, bare = (figure(dp=4, reduce_each=e, dp_overlap=o)['dp_comm_s']
                        for e, o in ((True, False), (False, True), (False, False)))
    assert each > bare >= once > 0
    plain, early = (figure(pp=4, schedule=s)['bubble_s'] for s in ('1f1b', 'zb-h1'))
    assert plain > early >= 0
    less = figure(pp=4, virtual_stages=3)
    assert less['bubble_s'] < plain and less['activations_GB'] >= figure(pp=4)['activations_GB']


def test_evidence_is_said():
    say = lambda preset, **p: estimate('gpt3', Parallel(tp=8, pp=8, **p), 'H100-80GB', 512, preset)
    assert say('paper').notes[0] == 'Evidence: published model.'
    assert 'recompute full' in say('corrected', recompute='full').notes[0]
    near = 'Evidence: near: 195 runs on H100, dense, bf16, of several stacks.'
    assert say('calibrated').notes[0] == say('calibrated', zero_stage=3).notes[0] == near
    assert 'strategy 2d' in say('calibrated', strategy='2d', cp=2).notes[0]
    found = search('gpt3', 512, 'H100-80GB', 512, k=3, assumptions='calibrated', schedule='zb-h1')
    assert found.evidence.str.startswith('extrapolated: no run with schedule zb-h1').all()


def test_evidence_names_what_its_own_row_has():
    "Each row once named the experts' share of another."
    found = search('qwen3_30B_A3B', 64, 'H100-80GB', 64, k=100, assumptions='corrected')
    of_experts = found[found.ep > 1]
    assert of_experts.ep.nunique() > 2
    for row in of_experts.itertuples():
        assert row.evidence.endswith(f'ep {row.ep}') and row.zero_stage == 1


def test_intervals_are_wider_where_less_is_known():
    parallel = Parallel(tp=8, pp=8, dp=8)
    wide = {}
    for gpu, evidence in (('H100-80GB', 'near'), ('H200-141GB', 'extrapolated'),
                          ('H200', 'extrapolated')):
        row = estimate('gpt3', parallel, gpu, 512, 'calibrated').row
        assert row.iteration_low_s < row.iteration_s < row.iteration_high_s
        wide.setdefault(evidence, []).append(row.iteration_high_s / row.iteration_low_s)
        found = search('gpt3', 512, gpu, 512, k=2, assumptions='calibrated')
        assert found.evidence.str.startswith(evidence).all()
        assert (found.iteration_low_s < found.iteration_s).all()
        assert (found.iteration_s < found.iteration_high_s).all()
    assert max(wide['near']) < min(wide['extrapolated'])
    assert 'iteration_low_s' not in estimate('gpt3', parallel, 'H100-80GB', 512,
                                             assumptions='corrected').row


# any number of GPUs, any batch, any system

@pytest.mark.parametrize('n, batch', [(1, 1), (3, 3), (1000, 1000), (1536, 1536), (720720, 720720),
                                      (2**20, 2**20), (999983, 4096), (2**31, 2**31)])
def test_scales(n, batch):
    for strategy in STRATEGIES:
        found = search('gpt3_1T', n, as_system('B200-next', 8), batch, strategy,
                       assumptions='corrected')
        assert len(found) or found.reasons[n]
        together = found[['tp', 'cp', 'pp', 'dp']].prod(axis=1)
        assert (together == n).all() and (found.iteration_s > 0).all()


@pytest.mark.parametrize('preset', ['paper', 'corrected', 'calibrated'])
def test_system_fields_may_be_arrays(preset):
    "A sweep over imagined hardware is one computation."
    system, bandwidth = as_system('H100-80GB'), np.array([[500.], [4800.], [16000.]])
    a = as_assumptions(preset).on(system)
    job = CountedJob(seq_len=2048, embed_dim=25600, block=gpt_block(25600, 160),
              micro_batch=np.array([1., 2.]), tp=np.array([4, 8]), nvlink_tp=np.array([4, 8]),
              assumptions=a)
    cost = lambda s: layer_cost(job, pricer_of(s, a)).forward
    together = cost(dataclasses.replace(system, hbm_bandwidth=bandwidth))
    for i, value in enumerate(bandwidth[:, 0]):
        one = cost(dataclasses.replace(system, hbm_bandwidth=value))
        np.testing.assert_allclose(together[i], one, rtol=1e-12)


# hardware

RATES = ('matrix_flops_fp16', 'vector_flops_fp16', 'hbm_bandwidth', 'nvlink_bandwidth',
         'ib_bandwidth')


def is_no_slower(one, field, factor):
    "Whether an estimate's layout takes no longer where one rate of its system is higher."
    faster = dataclasses.replace(one.system, **{field: factor * getattr(one.system, field)})
    again = estimate(one.model, one.parallel, faster, one.global_batch, one.assumptions)
    return again.stats['iteration_s'] <= one.stats['iteration_s'] * (1 + 1e-9)


@examples(120)
@given(pick(['gpt3', 'llama3.1_8B', 'mixtral_8x7B', 'qwen3_30B_A3B']), presets,
       pick(['A100-80GB', 'H100-80GB', 'B200-180GB']), pick(list(SCHEDULES)), pick([1, 2, 4, 8]),
       pick([1, 2, 4, 8, 16]), pick([1, 2, 8]), pick([2, 4, 8, 32]), recomputes, pick(RATES),
       pick([1.02, 1.5, 3]))
def test_faster_hardware_is_never_slower(model, preset, gpu, schedule, tp, pp, dp, N, recompute,
                                         field, factor):
    p = Parallel(tp=tp, pp=pp, dp=dp, schedule=schedule, recompute=recompute)
    try: one = estimate(model, p, gpu, dp * N, preset)
    except ValueError: return
    assert is_no_slower(one, field, factor)


@pytest.mark.parametrize('gpu, layout, batch, factor', [
    ('A100-80GB', dict(tp=8, cp=2, pp=8, dp=2, schedule='zb-h1'), 8, 1.5),
    ('B200-180GB', dict(tp=2, pp=4, schedule='zb-h1'), 4, 1.2),
    ('H100-80GB', dict(tp=8, cp=2, pp=4, schedule='zb-v', recompute='selective'), 8, 1.2)])
def test_faster_memory_where_steps_of_weights_wait_for_the_host(gpu, layout, batch, factor):
    "What a step of weights gains, no other step loses."
    one = estimate('qwen3_30B_A3B', Parallel(**layout), gpu, batch, 'calibrated')
    assert is_no_slower(one, 'hbm_bandwidth', factor)


def test_faster_products_where_messages_hide_behind_them():
    "Gradients of weights that came late hid messages all the same: shorter ones, fewer of them."
    slow = dataclasses.replace(as_system('H100-80GB'), nvlink_bandwidth=75, matrix_flops_fp16=1450)
    p = Parallel(tp=8, pp=16, schedule='zb-h1', tp_overlap=True, sequence_sharded=True)
    assert is_no_slower(estimate('gpt3', p, slow, 16, 'calibrated'), 'matrix_flops_fp16', 1.1)


def test_faster_products_where_activations_come_from_the_host():
    "What a later step of weights reads comes before it: no copy hides behind what it gains."
    p = Parallel(tp=8, pp=2, schedule='zb-v', recompute='selective', offload='activations')
    assert is_no_slower(estimate('mixtral_8x7B', p, 'H800-80GB', 32, 'corrected'),
                        'matrix_flops_fp16', 2)


@pytest.mark.parametrize('field', RATES)
def test_faster_hardware_where_the_host_is_waited_for(field):
    "Gradients of weights come late, in passes of their own, which the host launches as well."
    p = Parallel(tp=4, cp=2, pp=8, ep=2, micro_batch=2, schedule='zb-h1', zero_stage=2)
    assert is_no_slower(estimate('qwen3_30B_A3B', p, 'H200', 8, 'calibrated'), field, 1.5)


def test_one_collective_and_one_message_by_hand():
    "4 GB among eight GPUs of a domain: 7/8 of them pass each link; a message crosses it whole."
    system = as_system('H100-80GB')
    fast = system.nvlink_bandwidth * system.nvlink_eff
    near = collective_time('p2p', 4., 8, 8, system)
    assert near == pytest.approx(4 / fast, rel=1e-3)
    assert collective_time('p2p', 4., 8, 1, system) > 5 * near
    gathered = collective_time('allgather', 4., 8, 8, system)
    assert gathered == pytest.approx(7 / 8 * 4 / fast, rel=1e-2)
