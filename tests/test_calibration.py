"Parameters fitted to measured runs, kernels and messages: that nothing is guessed."
import contextlib
import dataclasses
import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest

from thorough import first_of
from transformer_perf import Assumptions, Parallel, estimate
from transformer_perf.cli import doubts_about, error_after
from transformer_perf.estimates import Product, as_assumptions
from transformer_perf.interop import as_job, export
from transformer_perf.kernels import product_time
from transformer_perf.modules import count
from transformer_perf.timeline import job_of_estimate
from transformer_perf.parameters import PARAMETER_PARTS, changed, limits, read_calibration, value_of
from transformer_perf.validation.runs import batches_of, candidates_priced, clean
from transformer_perf.systems import as_system
from transformer_perf.validation.predictions import fitted
from transformer_perf.validation import calibrate, predict, with_sets
from transformer_perf.validation import calibration
from transformer_perf.validation.calibration import (
    COUNTED_PARAMETERS, KERNELS, calibrate_kernels, calibrate_network, domains_of, kernel_seconds,
    predict_collectives, products_table, published_collectives, run_of_log)

from measured import RUNS, of_table


def mean_error(tests, *parameters):
    "Mean error of collectives."
    return (predict_collectives(tests, *parameters).predicted_us / tests.us - 1).abs().mean()


def test_collectives():
    tests = published_collectives()
    assert mean_error(tests) < .10
    apart = tests.gpus // tests.gpus_per_node == 16
    assert mean_error(tests[apart], calibrate_network(tests[~apart])) < .15


def test_fitted_parameters_are_within_bounds():
    table = fitted()
    assert (table.low <= table.value + 1e-9).all() and (table.value <= table.high + 1e-9).all()


BOUNDED = [f'{part}.{field.name}' for part, kind in PARAMETER_PARTS.items()
           for field in dataclasses.fields(kind) if field.metadata]


@pytest.mark.parametrize('name', BOUNDED)
def test_shipped_parameters_are_within_bounds(name):
    low, high, _ = limits(name)
    for parameters in read_calibration().sets.values():
        value = value_of(parameters, name)
        assert low - 1e-9 <= value <= high + 1e-9, parameters.name


def test_calibration_finds_what_made_the_data(tmp_path):
    shipped, far = read_calibration().sets['Hopper/Megatron-Core'], (-.0365, 5.1e-4)
    made = {name: value_of(shipped, name) + more
            for name, more in zip(('clock', 'host_layer'), far)}
    truth = changed(shipped, made)
    runs = of_table('mcore-h100').assign(vp=1., micro_batch=1.)
    runs['iteration_s'] = predict(runs, with_sets(truth)).predicted_iteration_s
    fit = calibrate(runs, free=tuple(made))
    few = fit.table.value   # five runs are drawn to what is usual
    np.testing.assert_allclose(few, list(made.values()), rtol=.015)
    many = calibrate(pd.concat([runs] * 20, ignore_index=True), free=tuple(made)).table.value
    np.testing.assert_allclose(many, list(made.values()), rtol=1e-3)
    before = {name: value_of(shipped, name) for name in made}
    for one, true, name in zip(few, made.values(), made):
        assert min(before[name], true) < one < max(before[name], true)
    file = tmp_path / 'mine.json'
    fit.save(file)
    again = predict(runs, str(file)).predicted_iteration_s
    assert again.tolist() == fit.runs.predicted_iteration_s.tolist()
    assert json.loads(file.read_text())['fitted'][0]['parameter'] == 'clock'


def measured_with(values):  # Parameters
    return changed(as_assumptions('calibrated').on(as_system('H100-80GB')).measured, values)


def numbers_of(x):  # yields what a count holds, but the assumptions that it was made under
    if isinstance(x, np.ndarray): yield str(x.tolist())
    elif isinstance(x, (tuple, list)): yield from itertools.chain(*map(numbers_of, x))
    elif isinstance(x, dict): yield from numbers_of([*x.items()])
    elif not hasattr(x, '__dict__') or callable(x): yield x
    elif not isinstance(x, Assumptions): yield from numbers_of(vars(x))


@pytest.mark.parametrize('model, layout', first_of(3, [
    ('llama3.1_8B', dict(tp=4, pp=2, dp=4, tp_overlap=True, virtual_stages=2)),
    ('deepseek_v3', dict(tp=2, ep=16, pp=2, dp=8, ep_overlap=True, optimizer='muon')),
    ('gpt3', dict(tp=2, dp=2, adapters='lora:16', offload='optimizer')),
    ('llama3.1_8B', dict(tp=2, cp=2, pp=2, dp=2, zero_stage=2, schedule='zb-h1')),
    ('jamba_52B', dict(dp=16, ep=8, zero_stage=3)), ('gpt3', dict(tp=8, pp=8, recompute='full'))]))
def test_only_some_parameters_are_counted(model, layout):
    "A fit to the others counts once."
    a = as_assumptions('calibrated').on(as_system('H100-80GB'))
    one = estimate(model, Parallel(**layout), 'H100-80GB', 256, a)
    def counted(values):
        own = dataclasses.replace(a, measured=measured_with(values))
        return [*numbers_of(count(job_of_estimate(dataclasses.replace(one, assumptions=own))))]
    as_is = counted({})
    for name in (f.name for part in PARAMETER_PARTS.values() for f in dataclasses.fields(part)
                 if f.metadata):
        low, high, _ = limits(name)
        if name in COUNTED_PARAMETERS: continue
        for x in (low, (low + high) / 2, high):
            with contextlib.suppress(ValueError): assert counted({name: x}) == as_is, name
    assert len(as_is) > 100 and counted({'loss_traffic': 7.}) != as_is


def test_a_fit_counts_once(monkeypatch):
    "And prices as a prediction does, to the last digit; what is counted, it counts again."
    calls = []
    def counted(job):
        calls.append(job)
        return count(job)
    monkeypatch.setattr(calibration, 'count', counted)
    batches = batches_of(clean(of_table('megatron-2022')), as_system('H100-80GB'))
    start = as_assumptions('calibrated')
    for batch in batches:
        calls.clear()
        seconds_at = calibration.seconds_at_prices(batch, start)
        for values in ({}, {'clock': .8}, {'host_layer': 1e-3, 'nic_share': .5}):
            k = measured_with(values)
            asked = candidates_priced(batch, dataclasses.replace(start, measured=k))
            assert (seconds_at(k) == asked['iteration_s']).all()
        assert len(calls) == 1
        k = measured_with({'tp_exposed': .9, 'loss_traffic': 7.})
        asked = candidates_priced(batch, dataclasses.replace(start, measured=k))
        assert (seconds_at(k) == asked['iteration_s']).all() and len(calls) == 2


def test_runs_of_software_that_borrows_its_costs_teach_it():
    "Where a record has the costs of another, those fitted to runs of its own come first."
    runs = of_table('mcore-h100')[::3].assign(vp=1., micro_batch=1., software='nanotron')
    slower = predict(runs).predicted_iteration_s * 1.2
    fit = calibrate(runs.assign(iteration_s=slower))
    assert set(fit.table.sets) == {'Hopper/nanotron'}
    taught = predict(runs, with_sets(fit.calibration)).predicted_iteration_s
    assert (taught / slower - 1).abs().mean() < .06


def test_calibration_says_what_it_cannot_determine():
    "On one node the network has no say."
    own = of_table('simumax-b200')
    fit = calibrate(own[own.n_gpus == 8], free=('attention_share', 'network.nic_share'))
    found = fit.table.set_index('parameter').determined
    assert found['attention_share'] and not found['network.nic_share']


def test_calibration_refuses():
    unknown = {**vars(as_system('H100-80GB')), 'architecture': None}
    with pytest.raises(ValueError, match='unknown parameter'):
        calibrate(RUNS, free=('clok',))
    with pytest.raises(ValueError, match='no row belongs to such a set'):
        calibrate(RUNS, free=('clock@Volta',))
    with pytest.raises(ValueError, match='has no architecture, under which'):
        calibrate(RUNS[:5], system=unknown)


@pytest.mark.parametrize('text', [
    '{}', '{"sets": 3}', '{"sets": {"a": {"speed": 1}}}', '[1]',
    '{"sets": {"a": {"architecture": "Volta"}}}'])
def test_a_broken_calibration_is_one_line(text, tmp_path):
    file = tmp_path / 'broken.json'
    file.write_text(text)
    with pytest.raises(ValueError) as error: as_assumptions(str(file))
    assert '\n' not in str(error.value)


def test_what_is_fitted_to_a_named_software_takes_effect(tmp_path):
    "Runs that name Megatron-Bridge, a tenth slower than we say: so is what their file predicts."
    p = Parallel(tp=4, pp=4, dp=2)
    ask = lambda *how: estimate('llama3.1_70B', p, 'H100-80GB', 64, *how).stats['iteration_s']
    columns = dict(gpu='H100', framework='megatron-bridge', layers=80, hidden=8192, ffn=28672,
                   heads=64, kv_heads=8, vocab=128256, seq_len=8192, gated_mlp=1, pp=4, dp=2,
                   tp=4, micro_batch=1, vp=1, recompute='none')
    rows = [columns | {'global_batch': batch} for batch in (32, 64, 128, 256)]
    runs = pd.DataFrame(rows, columns=[*RUNS.columns, 'framework'])
    runs['iteration_s'] = 1.1 * predict(runs).predicted_iteration_s
    fit = calibrate(runs)
    fit.save(path := tmp_path / 'mine.json')
    before, named = ask('calibrated', 'Megatron-Bridge'), ask(str(path), 'Megatron-Bridge')
    assert abs(named / before - 1.1) < .03 and ask(str(path)) != ask('calibrated')
    assert ask(str(path), 'NeMo') == ask('calibrated', 'NeMo')   # not what was measured


# what calibrating on one's own measurements leaves alone

LLAMA = dict(gpu='H100', layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=128256,
             seq_len=8192, gated_mlp=1, tp=2, pp=1, dp=8, micro_batch=1, vp=1, recompute='none')
ASKED = {'plain': 'H100-80GB', 'torchtitan': 'H100-80GB', 'Megatron-Core': 'B200-180GB',
         None: 'A100-80GB'}


def seconds_of_others(assumptions):  # list of s
    "The same layout in several software, on several GPUs."
    return [estimate('llama3.1_8B', Parallel(tp=2, dp=8), system, 64, assumptions, software)
            .stats['iteration_s'] for software, system in ASKED.items()]


def own_runs(factor=1., **columns):  # DataFrame
    "Five runs that take so many times what is predicted."
    rows = [LLAMA | {'global_batch': batch} for batch in (16, 32, 64, 128, 256)]
    runs = pd.DataFrame(rows, columns=[*RUNS.columns]).assign(**columns)
    return runs.assign(iteration_s=factor * predict(runs).predicted_iteration_s)


@pytest.mark.parametrize('software', first_of(1, ['torchtitan', '']))
def test_runs_as_predicted_change_nothing(software, tmp_path):
    "With a system as without: the sets of other software and other GPUs are kept."
    runs = own_runs(software=software)
    for system in (None, 'H100-80GB'):
        calibrate(runs, system=system).save(path := tmp_path / 'mine.json')
        assert np.allclose(seconds_of_others(str(path)), seconds_of_others('calibrated'), rtol=2e-3)


def test_kernels_tell_all_software_of_their_gpus(tmp_path):
    "Products of half the speed slow all software down, on that generation alone."
    system = as_system('H100-80GB')
    k = as_assumptions('calibrated').on(system).measured
    alone, m = dataclasses.replace(system, power=None), 2.**np.arange(10, 14)
    us = 2e6 * product_time(Product(m, m, m), alone, changed(k, {'clock': 1.}))
    table = pd.DataFrame(dict(m=m, n=m, k=m, precision='bf16', microseconds=us))
    calibrate_kernels(products_table(table), system).save(path := tmp_path / 'mine.json')
    slower = np.divide(seconds_of_others(str(path)), seconds_of_others('calibrated'))
    assert (slower[:2] > 1.3).all() and np.allclose(slower[2:], 1)


def test_one_kernel_is_as_sure_as_any():
    "A value meets one measurement whatever it is: it is as far off as measurements usually are."
    one = pd.DataFrame(dict(m=[4096], n=[4096], k=[4096], precision='bf16', microseconds=[300.]))
    row, = calibrate_kernels(products_table(one), 'H100-80GB').table.itertuples()
    assert row.parameter == 'product_share' and row.determined
    assert .04 < row.standard_error / row.value < .06


@pytest.mark.parametrize('in_training', [False, True])
def test_products_of_a_long_run_have_its_clock(in_training):
    "Those of a trace, and those measured alone: each as priced, nothing is told."
    system = as_system('H100-80GB')
    k = as_assumptions('calibrated').on(system).measured
    m = 2.**np.arange(10, 14)
    on, own = (system, k) if in_training else (
        dataclasses.replace(system, power=None), changed(k, {'clock': 1.}))
    us = 1e6 * product_time(Product(m, 2 * m, m), on, own)
    table = pd.DataFrame(dict(m=m, n=2 * m, k=m, precision='bf16', microseconds=us))
    fit = calibrate_kernels(products_table(table, in_training), system)
    told = dict(zip(fit.table.parameter, fit.table.value))
    assert math.isclose(told['product_share'], k.kernels.product_share, rel_tol=1e-3)


def test_runs_that_are_not_understood_are_no_evidence(tmp_path):
    "Times in another unit buy no narrower interval."
    far, near = (calibrate(own_runs(factor, software='myfork')) for factor in (1000., 1.02))
    for fit, runs in ((far, 0), (near, 5)):
        fit.save(path := tmp_path / 'mine.json')
        evidence = json.loads(path.read_text())['evidence']
        assert sum(row['runs'] for row in evidence if row['stack'] == 'myfork') == runs
        said = doubts_about({'errors': [error_after(fit, 'runs')]})
        assert bool(said) == (runs == 0) and ('5 of 5 runs' in said) == bool(said)


def test_the_same_run_five_times_tells_no_more_than_one_thing():
    "What draws parameters to their start is not what was measured."
    same = own_runs(.97).iloc[[2] * 5].reset_index(drop=True)
    table = calibrate(same).table.set_index('parameter')
    assert table.determined.sum() <= 1 and not table.determined['nic_share']
    assert np.isinf(table.standard_error[~table.determined & ~table.at_bound]).all()


def test_attention_backward_alone_is_no_forward():
    "As in the tables that ship; and where nobody says what a mask hides, nothing is told."
    about = dict(kind='attention', dtype='bf16', batch=1, seq_len=8192, heads=32, kv_heads=8,
                 head_dim=128)
    rows = [about | dict(op=op, causal=causal) for op, causal in (
        ('fwd', 1), ('bwd', 1), ('fwd+bwd', 1), ('fwd', 0), ('fwd', np.nan))]
    system = as_system('H100-80GB')
    k = as_assumptions('calibrated').measured.of(system)
    table = pd.DataFrame(rows).reindex(columns=list(KERNELS))
    forward, backward, both, full, unsaid = kernel_seconds(table, system, k)
    assert forward + backward == pytest.approx(both) and 2 < backward / forward < 4
    assert 1.5 < full / forward < 2.5 and np.isnan(unsaid)


def test_a_domain_of_several_servers():
    "Sixteen servers of four GPUs are a domain of an NVL72; of an HGX each is its own."
    table = pd.DataFrame(dict(n_gpus=[64, 144, 8, 16], n_nodes=[16, 36, 2, 2]))
    assert domains_of(table, as_system('GB200-NVL72')).tolist() == [1, 2, 1, 1]
    assert domains_of(table, as_system('H100-80GB')).tolist() == [16, 36, 2, 2]


def test_a_log_is_a_run_of_its_job(tmp_path):
    "Of its software and its batch; predicted as the job is."
    one = estimate('llama3.1_8B', Parallel(tp=2, dp=8), 'H100-80GB', 64, software='torchtitan')
    (tmp_path / 'j.json').write_text(export(one, 'json'))
    job = as_job(tmp_path / 'j.json')
    lines = [f' iteration {i}/ 9 | elapsed time per iteration (ms): {1000. * s} | '
             f'global batch size: {batch} |' for i, (s, batch) in enumerate(
                 [(9, 16), (3, 16), (5, 32), (8, 64), (8.2, 64), (8.1, 64)])]
    (tmp_path / 'train.log').write_text('\n'.join(lines))
    run = run_of_log(tmp_path / 'train.log', job)
    assert run.software[0] == 'torchtitan' and run.iteration_s[0] == pytest.approx(8.1)
    seconds = predict(run, system='H100-80GB').predicted_iteration_s[0]
    assert seconds == pytest.approx(seconds_of_others('calibrated')[1], rel=1e-9)
    (tmp_path / 'train.log').write_text('\n'.join(lines[:3]))
    with pytest.raises(ValueError, match='no step has the 64 samples of its job, but 16, 32'):
        run_of_log(tmp_path / 'train.log', job)


# GPUs none of whose kernels were measured

def runs_of_others(system, factor):  # DataFrame
    "Five runs on such GPUs, so many times as long as we say before we know of any."
    layouts = [Parallel(dp=8), Parallel(tp=2, dp=4), Parallel(dp=16), Parallel(pp=2, dp=8),
               Parallel(tp=8, dp=2)]
    rows = []
    for p in layouts:
        one = estimate('llama3.1_8B', p, system, 128)
        cells = {name: getattr(one.parallel, name) for name in ('tp', 'pp', 'dp', 'micro_batch')}
        rows.append(cells | dict(
            gpu=system, gpus_per_node=8, model='llama3.1_8B', seq_len=8192, global_batch=128,
            recompute=one.parallel.recompute))
    runs = pd.DataFrame(rows)
    return runs.assign(iteration_s=factor * predict(runs).predicted_iteration_s)


@pytest.mark.parametrize('system', first_of(1, ['MI300X', 'TPU-v5p', 'Gaudi3']))
def test_runs_on_gpus_of_other_makers_teach_those_alone(system, tmp_path):
    "They have sets of their own from then on, kept in the file; all others are as they were."
    runs = runs_of_others(system, 1.15)
    fit = calibrate(runs)
    error = (fit.runs.predicted_iteration_s / runs.iteration_s - 1).abs().mean()
    assert error < .5 * (1 - 1 / 1.15)   # a few runs move no parameter far
    file = tmp_path / 'own.json'
    fit.save(file)
    p = Parallel(tp=4, dp=4)
    before = estimate('llama3.1_8B', p, system, 128)
    after = estimate('llama3.1_8B', p, system, 128, assumptions=str(file))
    assert after.stats['iteration_s'] > 1.08 * before.stats['iteration_s']
    assert 'extrapolated' in before.notes[0] and 'no kernel' not in ' '.join(after.notes)
    for other in ('H100-80GB', 'A100-80GB', 'B200-180GB', 'MI355X'):
        if as_system(other).architecture == as_system(system).architecture: continue
        one, same = (estimate('llama3.1_8B', p, other, 128, assumptions=a).stats['iteration_s']
                     for a in ('calibrated', str(file)))
        assert one == same, other


def test_kernels_of_gpus_of_other_makers_teach_those_alone():
    "A product that takes twice as long as ours: the sets of Hopper stay as they were."
    table = products_table(pd.DataFrame([
        {'m': 8192, 'n': n, 'k': 4096, 'precision': 'bf16', 'microseconds': 1.}
        for n in (4096, 8192, 14336)]))
    system, before = as_system('MI300X'), as_assumptions('calibrated').measured
    seconds = kernel_seconds(table, system, before.of(system))
    fit = calibrate_kernels(table.assign(time_us=1.5e6 * seconds), system)
    own = fit.calibration.of(system)
    assert own.gpus == system.architecture and own.architecture == 'Hopper'
    assert kernel_seconds(table, system, own) == pytest.approx(1.5 * seconds, rel=.05)
    for name, k in before.sets.items(): assert fit.calibration.sets[name] == k
