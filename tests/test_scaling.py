"The characterization model: hand counts, limits, inverses, and nccl-tests logs, good and broken."
import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from thorough import examples
from transformer_perf import Assumptions, Model, Parallel, estimate, scaling, search
from transformer_perf.estimates import collective_time
from transformer_perf.scaling import (
    STAGES, STUDIED, TURNS, Efficiency, Fractions, Network, Sizes, achieved_rate, activation_GB,
    compute_time, dispatch_of_share, dispatch_share, efficiency_behind, first_stage, gpus_needed,
    network_of_logs, network_of_system, parameters, parse_nccl_log, predict_scaling,
    published_network, rank_in, read_nccl_log, sent_GB, speedup, stage_memory, stage_sent_GB,
    system_time, training_TFLOP, weights_GB, zero_table)
from transformer_perf.models import as_model
from transformer_perf.systems import as_system

DATA = Path(__file__).parent / 'data'  # logs written by hand in the format of nccl-tests
few = examples(40)
sizes = st.builds(
    lambda l, q, h, depth: Model(l, q * h, h, depth),
    st.sampled_from([128, 1024, 8192]), st.sampled_from([64, 96]), st.integers(1, 64),
    st.integers(1, 100))


# hand counts

def test_estimates_by_hand():
    one = Model(seq_len=10, embed_dim=4, heads=2, depth=3)
    assert parameters(one) == 12 * 16 * 3 == 576
    assert math.isclose(training_TFLOP(one, 2), 2 * (72 * 10 * 16 + 12 * 100 * 4) * 3 * 1e-12)
    assert math.isclose(activation_GB(one, 2), 2 * (34 * 10 * 4 + 5 * 2 * 100) * 3 * 1e-9)


def test_bytes_by_hand():
    "Bytes per parameter: all-reduce 4 (1 - 1/p), the others 2 (1 - 1/p)."
    for kind, bytes_each in dict(allreduce=4, allgather=2, reducescatter=2, reduce=2).items():
        assert math.isclose(sent_GB(kind, 2 * 5., 8), bytes_each * (1 - 1 / 8) * 5.)
    assert [round(stage_sent_GB(stage, 2., 2**40), 6) for stage in range(4)] == [4, 6, 4, 6]


def test_memory_by_hand():
    model, p = STUDIED['1.3B'], 16
    P = parameters(model) * 1e-9
    each = [round(sum(stage_memory(model, 0, stage, p)) / P, 9) for stage in range(4)]
    assert each == [16, 4 + 12 / p, 2 + 14 / p, 16 / p]
    memory = stage_memory(model, 3, 2, p, Assumptions(optimizer_bytes=2.))
    assert memory == (2 * P, 2 * P / p, 4 * P / p, activation_GB(model, 3))


def test_compute_time_by_hand():
    assert math.isclose(compute_time(100., 200.), 0.5 / (0.83 * 0.735))
    assert compute_time(100., 200., Fractions(1, 1)) == 0.5
    assert achieved_rate(as_system('polaris'), Assumptions(flops_efficiency=0.5)) == 156


def test_published_table_of_models():
    TFLOP = [round(training_TFLOP(m, 1), 1) for m in STUDIED.values()]
    assert TFLOP == pytest.approx([0.6, 8.2, 16.5, 41.2, 79.9, 114.4], abs=0.05)
    nominal = np.array([0.125, 1.3, 2.7, 6.7, 13, 18.4])
    memory = activation_GB(Sizes.of(STUDIED.values()), 2) + 2 * nominal
    assert memory == pytest.approx([2.4, 12.1, 21.7, 33.3, 57.0, 74.0], abs=0.15)


# an array is its elements

@few
@given(st.lists(sizes, min_size=1, max_size=4), st.integers(1, 8), st.sampled_from([1, 8, 512]),
       st.floats(1, 200))
def test_arrays_are_elementwise(models, samples, gpus, capacity):
    many = Sizes.of(models)
    for count in (parameters, lambda m: training_TFLOP(m, samples),
                  lambda m: activation_GB(m, samples),
                  lambda m: first_stage(m, samples, gpus, capacity),
                  lambda m: gpus_needed(m, samples, 1, capacity),
                  lambda m: sum(stage_memory(m, samples, 2, gpus))):
        np.testing.assert_allclose(count(many), [count(m) for m in models], rtol=1e-12)
    n = np.array([1, 2, 8, 64, 1000])
    for stage in range(4):
        one_by_one = [stage_sent_GB(stage, 3., int(k)) for k in n]
        np.testing.assert_allclose(stage_sent_GB(stage, 3., n), one_by_one)
    kept = lambda stage, gpus: sum(stage_memory(models[0], samples, stage, gpus))
    one_by_one = [[kept(stage, int(k)) for k in n] for stage in range(4)]
    np.testing.assert_allclose(kept(np.arange(4)[:, None], n), one_by_one)


def test_sizes_do_not_overflow():
    huge = Sizes(*(np.array([2**31]) for _ in range(4)))
    assert math.isclose(parameters(huge)[0], 12 * 2.0**93)
    assert math.isclose(activation_GB(huge, 1)[0], (34 * 2.0**93 + 5 * 2.0**124) * 1e-9)
    assert training_TFLOP(huge, 1)[0] > 0


# which stage fits, against a search by hand

@few
@given(sizes, st.integers(1, 4), st.sampled_from([1., 4., 16., 40., 80.]))
def test_gpus_needed_is_the_least(model, samples, capacity):
    kept = lambda stage, p: sum(stage_memory(model, samples, stage, p))
    fits = lambda stage, p: kept(stage, p) <= capacity * (1 + 1e-12)
    needs = [gpus_needed(model, samples, stage, capacity) for stage in range(4)]
    for stage, need in enumerate(needs):
        if np.isfinite(need): assert fits(stage, need)
        else: assert not fits(stage, 1e15)
        if 1 < need < np.inf: assert kept(stage, need - 1) > capacity
    for p in (1, 7, 64):
        enough = [stage for stage, need in enumerate(needs) if need <= p]
        first = first_stage(model, samples, p, capacity)
        assert first == enough[0] if enough else math.isnan(first)


@few
@given(sizes, st.integers(2, 1024))
def test_stages_keep_less_and_less(model, p):
    kept = [sum(stage_memory(model, 1, stage, p)) for stage in range(4)]
    assert kept == sorted(kept, reverse=True) and kept[0] > kept[3]
    assert all(gpus_needed(model, 1, s, 40.) >= gpus_needed(model, 1, s + 1, 40.) for s in range(3))


# dispatch

@few
@given(st.floats(1e-6, 10), st.floats(0.01, 0.99))
def test_dispatch_share_and_back(kernels, share):
    assert math.isclose(dispatch_share(kernels, dispatch_of_share(kernels, share)), share)
    assert dispatch_share(2 * kernels, 1.) < dispatch_share(kernels, 1.) < 1


# efficiency

def lists(values, n, **options): return st.lists(values, min_size=n, max_size=n, **options)


tables = st.integers(1, 6).flatmap(lambda n: st.tuples(
    lists(st.integers(1, 5000), n, unique=True).map(sorted), lists(st.floats(0.01, 1.5), n)))

@few
@given(tables, st.integers(1, 2**20))
def test_efficiency_reads_its_table(table, n):
    gpus, values = table
    efficiency = Efficiency(tuple(gpus), tuple(values))
    np.testing.assert_allclose(efficiency(np.array(gpus)), values)
    assert efficiency(1) == values[0] or gpus[0] == 1
    steepest = -math.log(min(values[-1] / values[-2], 1)) if len(gpus) > 1 else 0.
    fall = steepest / math.log(gpus[-1] / gpus[-2]) if steepest else 0.   # a power of the GPUs
    left = lambda n: values[-1] * max(n / gpus[-1], 1) ** -fall
    for g in (n, *(gpus[-1] * 2**i for i in range(4))):
        if left(g) < 1e-20:   # too steep a table for so many
            with pytest.raises(ValueError, match='on so many GPUs'): efficiency(g)
        elif g >= gpus[-1]: assert math.isclose(efficiency(g), left(g), rel_tol=1e-9)
        else: assert 0 < efficiency(g) <= max(values) * (1 + 1e-12)


@few
@given(tables, st.integers(1, 4096), st.integers(1, 4096))
def test_efficiency_composes(table, g, n):
    efficiency = Efficiency(*map(tuple, table))
    assert math.isclose(efficiency.between(g, n) * efficiency.between(n, g), 1, rel_tol=1e-9)


def test_efficiency_between_rows_and_of_times():
    efficiency = Efficiency.of_times([32, 8, 128], [1.25, 1.0, 2.0])
    assert efficiency.gpus == (8, 32, 128) and efficiency.values == (1.0, 0.8, 0.5)
    assert math.isclose(efficiency(16), 0.9) and math.isclose(efficiency(512), 0.5 * 0.5 / 0.8)
    assert Efficiency.of_times([4, 8], [1., 2.], reference=8).values == (2., 1.)
    assert Efficiency((8,), (1,))(10**6) == 1


@pytest.mark.parametrize('gpus, values, says', [
    ((8, 4), (1, 1), 'must be ascending'), ((), (), 'must name at least one'),
    ((8,), (1, 2), 'needs as many values'), ((0,), (1,), 'gpus=0 must be a whole number'),
    ((8,), (-0.1,), 'efficiency=-0.1 must be a number from 1e-20'),
    ((8,), (float('nan'),), 'efficiency=nan must be a number')])
def test_efficiency_refuses(gpus, values, says):
    with pytest.raises(ValueError, match=says) as error: Efficiency(gpus, values)
    assert '\n' not in str(error.value)


# networks

@pytest.mark.parametrize('stage', range(4))
@pytest.mark.parametrize('system', ['polaris', 'tg40', 'H200'])
def test_network_of_system_is_the_collective_time(system, stage):
    model, machine, n = STUDIED['2.7B'], as_system(system), [2, 8, 64, 512]
    network = network_of_system(system, model, stage, n)
    for kind, p in itertools.product(STAGES[stage].forward + STAGES[stage].backward, n):
        pieces = p if kind == 'reduce' else 32 if stage == 3 else 1
        placed = p, math.gcd(p, machine.nvlink_size), machine, Assumptions.corrected()
        by_hand = pieces * collective_time(kind, weights_GB(model) / pieces, *placed)
        assert math.isclose(network.time(kind, weights_GB(model), p), by_hand)
    assert network.efficiency[kind](8) == 1
    assert network.time(kind, 1., 1) == 0


def test_groups_fill_nvlink_domains():
    "6 GPUs share a domain of 8; 12 take 4 of each of three."
    machine, given = as_system('tg40'), Assumptions.corrected()
    for p, t in ((6, 6), (8, 8), (12, 4), (64, 8), (7, 7), (9, 1)):
        ours = system_time('allgather', 3., p, 1, machine, given)
        assert ours == collective_time('allgather', 3., p, t, machine, given)


def test_published_efficiencies_come_back():
    for stage, kind, value in ((1, 'allreduce', 0.89), (3, 'allgather', 0.80)):
        network = published_network('gpt3', stage)
        assert math.isclose(network.time(kind, 7., 512), network.time(kind, 7., 8) / value)
    by_hand = 1 / (network.bandwidth['allgather'] * 0.80)
    assert math.isclose(network.time('allgather', 1., 512), by_hand)
    with pytest.raises(ValueError, match='unknown stage with published efficiencies 2'):
        published_network('gpt3', 2)
    with pytest.raises(ValueError, match="unknown collective of .* 'reduce'"):
        network.time('reduce', 1., 64)


def test_an_allreduce_moves_twice():
    kinds, perfect = ('allreduce', 'allgather'), Efficiency((8,), (1,))
    network = Network(dict.fromkeys(kinds, 10.), dict.fromkeys(kinds, perfect))
    assert network.time('allreduce', 5., 8) == 2 * network.time('allgather', 5., 8) == 1.


# an iteration

def test_zero_table_is_its_parts():
    model, samples = STUDIED['6.7B'], 2
    table = zero_table(model, 'tg80', [1, 8, 64], samples)
    points = [[s, n] for s in range(4) for n in (1, 8, 64)]
    assert table[['stage', 'n_gpus']].to_numpy().tolist() == points
    for row in table.itertuples():
        network = network_of_system('tg80', model, row.stage, [8, 64])
        forward, backward = ([network.time(kind, weights_GB(model), row.n_gpus) for kind in kinds]
                             for kinds in STAGES[row.stage])
        assert math.isclose(row.forward_comm_s, sum(forward), abs_tol=1e-15)
        assert math.isclose(row.backward_comm_s, sum(backward), abs_tol=1e-15)
        assert math.isclose(row.memory_GB, sum(stage_memory(model, samples, row.stage, row.n_gpus)))
        assert row.fits == (row.memory_GB <= 80) == (row.gpus_needed <= row.n_gpus)
        assert math.isclose(row.samples_per_s * row.iteration_s, samples * row.n_gpus)
    assert (table.compute_s == table.compute_s[0]).all()


@pytest.mark.parametrize('said, unlike', [
    (dict(kv_heads=8, mlp_dim=2048, head_dim=64), ''), (dict(kv_heads=4), 'kv_heads=4'),
    (dict(head_dim=128), 'head_dim=128'), (dict(mlp_dim=1024), 'mlp_dim=1024'),
    (dict(window=64), 'window=64')])
def test_what_a_model_says_as_usual_is_no_difference(said, unlike):
    "The closed formulas take a model of GPT's kind, however much of it is spelled out."
    model = Model(256, 512, 8, 4, name='small', **said)
    assert scaling._unlike_gpt(model) == unlike
    if unlike:
        with pytest.raises(ValueError, match=f'small: {unlike} is more than sizes say'):
            Sizes.of([model])
    else: assert parameters(Sizes.of([model])) == [12 * 4 * 512**2]


@pytest.mark.parametrize('name', ['llama3.1_8B', 'mixtral_8x7B', 'deepseek_v3'])
def test_zero_table_takes_models_unlike_gpt(name):
    "Their weights are those of the main model: 16 bytes a parameter, then 14, 12 and all shared."
    table, model = zero_table(name, 'H200', 64, samples=3), as_model(name)
    one = estimate(model, Parallel(micro_batch=3, zero_stage=0), 'H200', 3, 'corrected')
    weights = [table[f'{part}_GB'].tolist() for part in ('weights', 'gradients', 'optimizer')]
    W = 2e-9 * parameters(model)
    np.testing.assert_allclose(weights, [[W, W, W, W / 64], [W, W, W / 64, W / 64],
                                         [6 * W, *[6 * W / 64] * 3]])
    assert model.vocab == 0 or W > one.stats['weights_GB']   # which leaves the vocabulary out
    one_TFLOP = one.stats['executed_TFLOP_per_gpu']   # a sum of k products has k - 1 additions
    assert math.isclose(training_TFLOP(model, 3), one_TFLOP, rel_tol=1e-3)
    assert (table.compute_s == table.compute_s[0]).all()


def test_more_network_is_faster():
    machines = [dataclasses.replace(as_system('polaris'), ib_bandwidth=b) for b in (12.5, 25.)]
    slow, fast = (zero_table('gpt3', machine, [64, 512]).iteration_s for machine in machines)
    assert (fast < slow).all()
    free = Network({kind: 1e20 for kind in TURNS}, {kind: Efficiency((8,), (1,)) for kind in TURNS})
    table = zero_table('gpt3', 'polaris', [64], network=free)
    np.testing.assert_allclose(table.iteration_s, table.compute_s)


@pytest.mark.parametrize('wrong, says', [
    (dict(n_gpus=0), 'n_gpus=0 must be a whole number'),
    (dict(samples=1.5), 'samples=1.5 must be a whole number'),
    (dict(stages=(4,)), 'must be 0, 1, 2 or 3'), (dict(system='polari'), "did you mean 'polaris'?"),
    (dict(assumptions='papr'), "did you mean 'paper'?")])
def test_zero_table_refuses(wrong, says):
    question = dict(model='gpt3', system='polaris', n_gpus=8) | wrong
    with pytest.raises(ValueError) as error: zero_table(**question)
    assert says in str(error.value) and '\n' not in str(error.value)


# scaling

shares, efficiencies = st.floats(0.01, 0.99), st.floats(0.01, 2)

@few
@given(shares, efficiencies)
def test_speedup_and_back(share, efficiency):
    found = speedup(share, efficiency)
    assert math.isclose(efficiency_behind(share, found), efficiency, rel_tol=1e-6)
    assert math.isclose(speedup(share, 1.), 1) and math.isclose(speedup(1., efficiency), efficiency)
    assert speedup(0., efficiency) == 1
    assert found <= speedup(share, efficiency * 1.1)
    if efficiency < 0.9: assert found > speedup(min(share * 1.01, 1.), efficiency)


def test_speedup_of_arrays():
    share, efficiency = np.array([[0.1], [0.7]]), np.array([1., 0.5, 0.2])
    found = speedup(share, efficiency)
    np.testing.assert_allclose(found, [[speedup(s, e) for e in efficiency] for s in (0.1, 0.7)])
    behind = efficiency_behind(share, found)
    np.testing.assert_allclose(behind, np.broadcast_to(efficiency, (2, 3)))


@pytest.mark.parametrize('share, measured', [(0.2, 1.25), (0.2, 2.), (0., 1.)])
def test_no_network_explains(share, measured):
    with pytest.raises(ValueError, match='leaves no network'): efficiency_behind(share, measured)


@few
@given(st.floats(0.1, 10), st.floats(0.01, 10), st.lists(st.floats(0.1, 1), min_size=1, max_size=5))
def test_predict_scaling_with_the_true_efficiency_has_no_error(compute, comm, falling):
    efficiency = Efficiency(tuple(8 * 2**i for i in range(len(falling) + 1)), (1., *falling))
    n = np.array(efficiency.gpus)
    measured = pd.DataFrame({'n_gpus': n, 'comm_s': comm / efficiency(n)})
    measured['iteration_s'] = compute + measured.comm_s
    found = predict_scaling(measured.sample(frac=1, random_state=1), [12, 4096], efficiency)
    assert found.n_gpus.tolist() == sorted({*n.tolist(), 12, 4096})
    np.testing.assert_allclose(found.error.dropna(), 0, atol=1e-9)
    assert found.error.isna().sum() == 2
    throughput = found.n_gpus / 8 * found.predicted_s[0] / found.predicted_s
    np.testing.assert_allclose(found.predicted_speedup, throughput)


TWO = {'n_gpus': [8, 64], 'iteration_s': [2., 2.5], 'comm_s': [1., 1.4]}


def test_predict_scaling_does_not_peek():
    "A measured row is predicted from the others: its own communication changes nothing of it."
    table = {'n_gpus': [8, 64, 512], 'iteration_s': [2., 2.5, 3.], 'comm_s': [1., 1.4, 1.9]}
    changed = {**table, 'comm_s': [1., 1.1, 1.9]}
    first, second = (predict_scaling(t).set_index('n_gpus').predicted_s for t in (table, changed))
    assert first[64] == second[64] and first[512] != second[512]
    assert math.isclose(first[64], 1 + 1 / ((1 + 1 / 1.9) / 2))  # half way from 8 to 512
    alone = predict_scaling(TWO, [512]).set_index('n_gpus')
    assert alone.predicted_s[64] == 2. and math.isclose(alone.error[64], 2 / 2.5 - 1)
    for how in ('predicted', 'measured'):   # iterations are as long, and do more, on more GPUs
        of_rate = alone.index / 8 * 2. / alone[f'{how}_s']
        np.testing.assert_allclose(alone[f'{how}_speedup'], of_rate)
    assert alone.ideal_speedup[64] == 8 and math.isclose(alone.measured_speedup[64], 8 * 2 / 2.5)


def test_one_measured_row_needs_an_efficiency():
    row = {'n_gpus': [8], 'iteration_s': [2.], 'comm_s': [1.]}
    with pytest.raises(ValueError, match='give an efficiency'): predict_scaling(row, [64])
    halved = Efficiency((8, 64), (1, 0.5))
    assert predict_scaling(row, [64], halved).predicted_s.tolist() == [2., 3.]


@pytest.mark.parametrize('change, says', [
    ({'comm_s': [1., 3.]}, '64 GPUs: comm_s=3.0 must be below iteration_s=2.5'),
    ({'comm_s': [0., 1.]}, 'comm_s=0.0 must be a number from 1e-20'),
    ({'n_gpus': [8, 8]}, 'n_gpus=8 is measured twice'),
    ({'n_gpus': [8, 2.5]}, 'must be a whole number'),
    ({'iteration_s': [2., float('nan')]}, 'iteration_s=nan must be a number')])
def test_predict_scaling_refuses(change, says):
    with pytest.raises(ValueError) as error: predict_scaling(TWO | change)
    assert says in str(error.value) and '\n' not in str(error.value)


# nccl-tests

def test_logs_are_read():
    log = read_nccl_log(DATA / 'nccl_all_reduce_8.txt')
    assert (log.kind, log.gpus, log.nodes, len(log.table)) == ('allreduce', 8, 2, 11)
    row = log.table.iloc[0]
    assert row.tolist() == pytest.approx([1048576e-9, 164.3e-6, 163.7e-6])
    assert math.isclose(log.time(1048576e-9), 164.3e-6) and math.isclose(log.time(1e-6), 164.3e-6)
    last = log.table.iloc[-1]
    assert math.isclose(log.time(10 * last.size_GB), 10 * last.out_of_place_s)


def log_of_results(*bandwidths):
    "Rows of results, of (GB/s, GB/s on the bus) each, as nccl-tests prints them."
    row = '{:.0f} 1 float sum -1 1000.0 {:.2f} {:.2f} 0 1000.0 {:.2f} {:.2f} 0'.format
    rows = [row(1e6 * own, own, bus, own, bus) for own, bus in bandwidths]
    return '\n'.join(['# time algbw busbw', *rows, '# end of it'])


@pytest.mark.parametrize('GB_per_s, off, taken', [
    (100., 1.009, True), (100., .991, True), (100., 1.0105, False), (100., .9895, False),
    (1.5, 1.5, False), (1., 1.5, True), (.5, 1.5, True)])   # two digits of less say too little
def test_the_bus_tells_of_which_collective_a_log_is(GB_per_s, off, taken):
    "An all-reduce of eight turns twice: 7/8 of its bytes cross each link both times."
    text = log_of_results((GB_per_s, off * GB_per_s * 2 * 7 / 8))
    if taken: assert len(parse_nccl_log(text, 'allreduce', 8).table) == 1
    else:
        with pytest.raises(ValueError, match='bus over algorithm bandwidth'):
            parse_nccl_log(text, 'allreduce', 8)


@pytest.mark.parametrize('line, told', [
    ('Rank 3 on b', (3, 'b')), ('# Rank 3 Pid 7 on b device 0', (3, 'b')), ('Rank 3 on', None),
    ('Rank 3 at b', None), ('Rank x on b', None), ('on b Rank 3', None), ('Rank', None)])
def test_what_a_line_says_of_a_rank(line, told): assert rank_in(line.split()) == told


def test_a_row_that_ends_early_is_told():
    "Two numbers at the start of a line begin a row; one does not."
    text = log_of_results((100., 175.))
    assert len(parse_nccl_log(text + '\n8\n8 x', 'allreduce', 8).table) == 1
    with pytest.raises(ValueError, match='line 4: not a whole row of results'):
        parse_nccl_log(text + '\n8 2', 'allreduce', 8)


def test_a_tagged_log_of_many_nodes():
    log = read_nccl_log(DATA / 'nccl_all_reduce_64.txt')
    assert (log.kind, log.gpus, log.nodes, len(log.table)) == ('allreduce', 64, 16, 11)


def test_an_old_log_without_operation_and_root():
    path = DATA / 'nccl_old_gather_8.txt'
    with pytest.raises(ValueError, match='names none of all_reduce_perf'): read_nccl_log(path)
    log = read_nccl_log(path, 'allgather')
    assert (log.kind, log.gpus, log.nodes, len(log.table)) == ('allgather', 8, 1, 11)
    assert log.table.out_of_place_s.iloc[-1] == pytest.approx(4108.8e-6)
    with pytest.raises(ValueError, match='bus over algorithm bandwidth'):
        read_nccl_log(path, 'allreduce')
    with pytest.raises(ValueError, match="did you mean 'allgather'"):
        read_nccl_log(path, 'algather')


@pytest.mark.parametrize('file, says', [
    ('nccl_cut.txt', r'line 23: not a whole row of results'),
    ('nccl_wrong.txt', 'found wrong results'),
    ('nccl_died.txt', 'nccl_died.txt: no row of results'),
    ('no_such_log.txt', 'cannot be read')])
def test_broken_logs_are_refused(file, says):
    with pytest.raises(ValueError, match=says) as error: read_nccl_log(DATA / file)
    assert '\n' not in str(error.value)


GOOD = (DATA / 'nccl_all_reduce_8.txt').read_text()
NAMELESS = '\n'.join(line for line in GOOD.splitlines() if 'Rank' not in line)
OTHER = '\n# Collective test starting: all_gather_perf\n'

@pytest.mark.parametrize('text, options, says', [
    (GOOD.replace('values : 0 OK', 'values : 2 FAILED'), {}, 'the test reports FAILED'),
    (GOOD, dict(gpus=16), 'lists 8 ranks, not 16'),
    (GOOD, dict(kind='allgather'), 'all_reduce_perf is not allgather'),
    (GOOD, dict(kind='alreduce'), "did you mean 'allreduce'?"),
    (GOOD + OTHER, {}, 'holds runs of all_reduce_perf and all_gather_perf'),
    (NAMELESS, {}, 'say how many GPUs there were'),
    ('', {}, 'names none of'),
    (GOOD.replace('164.3', '-164.3'), {}, 'not a whole row'),
    (GOOD.replace('164.3', 'nan'), {}, 'not a whole row'),
    (GOOD.replace('164.3', '16.3'), {}, '1048576 bytes in 16.3 us are 64.33 GB/s, not 6.38')])
def test_bad_text_is_refused(text, options, says):
    with pytest.raises(ValueError) as error: parse_nccl_log(text, **options)
    assert says in str(error.value) and '\n' not in str(error.value)


@few
@given(st.integers(0, len(GOOD)), st.integers(0, 200))
def test_a_damaged_log_is_read_or_refused(start, length):
    "Cutting a piece out never ends in another exception, nor in a table with impossible times."
    try: log = parse_nccl_log(GOOD[:start] + GOOD[start + length:])
    except ValueError as error: assert '\n' not in str(error)
    else:  # what is read is what was there
        whole = parse_nccl_log(GOOD).table.set_index('size_GB').out_of_place_s
        for row in log.table.itertuples():
            assert row.out_of_place_s == pytest.approx(whole[row.size_GB], rel=0.01)


def test_network_of_logs():
    logs = [read_nccl_log(DATA / f'nccl_all_reduce_{n}.txt') for n in (64, 8)]
    network = network_of_logs(logs, 1.)
    assert network.bandwidth['allreduce'] == pytest.approx(2 * 1. / logs[1].time(1.))
    left = network.efficiency['allreduce']
    assert left(8) == 1 and left(64) == pytest.approx(logs[1].time(1.) / logs[0].time(1.))
    assert 0.8 < left(64) < 0.9
    for log in logs: assert math.isclose(network.time('allreduce', 1., log.gpus), log.time(1.))
    small = network_of_logs(logs, 0.002)
    assert small.efficiency['allreduce'](64) < left(64)  # small messages are latency, which grows
    with pytest.raises(ValueError, match='two logs of allreduce on 8 GPUs'):
        network_of_logs([logs[1], logs[1]], 1.)


# the systems of the study

@pytest.mark.parametrize('name, node, gpus, capacity', [
    ('polaris', 25, 4, 40), ('tg40', 200, 8, 40), ('tg80', 200, 8, 80)])
def test_systems_of_the_study(name, node, gpus, capacity):
    system = as_system(name)
    assert (system.nvlink_size, system.hbm_capacity) == (gpus, capacity)
    assert system.ib_bandwidth * system.nic_factor * system.nvlink_size == node
    assert 'Cheng' in system.source
    found = search(STUDIED['6.7B'], 64, name, 256, strategy='all', k=3, assumptions='corrected')
    assert len(found) == 3 and (found.memory_GB <= capacity).all()


def test_three_samples_keep_three_times_as_much():
    "Also of a model unlike GPT, which is counted operation by operation."
    for name in ('llama3.1_8B', 'gpt3'):
        one, three = (activation_GB(as_model(name), samples) for samples in (1, 3))
        assert three == pytest.approx(3 * one, rel=1e-12)
