"Predictions against measured runs: how wrong they may be."
import dataclasses
import functools
import itertools
import json
import math
import os

import numpy as np
import pandas as pd
import pytest

from thorough import first_of
from transformer_perf import Parallel, estimate
from transformer_perf.cli import main
from transformer_perf.estimates import as_assumptions
from transformer_perf.interop import as_job, export
from transformer_perf.timeline import COMPONENTS
from transformer_perf.parameters import read_calibration, value_of
from transformer_perf.validation.runs import clean, run_jobs
from transformer_perf.validation.predictions import never_seen, source_of
from transformer_perf.validation import (
    of_values, picked, predict, record, scoreboard, shipped_record, table_of, with_sets)

import recipes
from measured import RUNS, row_of
from fit import half_of

MUST = {'megatron-2022': .03, 'megatron-2021': .04, 'mcore-h100': .09, 'simumax-b200': .06,
        'vtrain-multi': .09, 'vtrain-single': .07, 'dgxc-benchmarking': .08, 'llm-foundry': .08,
        'megatron-bridge': .12, 'torchtitan': .12}   # most that a source's mean error may be
JUDGED = {   # most of others, as a fit without them says
    'aleph-alpha': .12, 'aleph-alpha-old-kernels': .12, 'bloom': .12, 'fms-fsdp': .09,
    'internevo': .09, 'mlperf-gpt3': .06, 'mlperf-8b': .27, 'nanotron': .20, 'automodel': .21,
    'gpu-recipes': .21, 'megatron-bridge-skills': .26, 'mcore-goldens': .37}
SHIP = {'megatron-2022', 'megatron-2021', 'mcore-h100', 'simumax-b200'}
BULK = os.environ.get('TRANSFORMER_PERF_RUNS')  # a CSV file with more measured runs, as vTrain's
PRESETS = pytest.mark.parametrize('preset', ['paper', 'corrected', 'calibrated'])


@functools.cache
def predictions(preset='calibrated'): return predict(RUNS, preset)   # nobody changes them


def errors(seconds):
    "Mean error of each table."
    return (seconds / RUNS.iteration_s - 1).abs().groupby(table_of(RUNS)).mean()


@pytest.mark.thorough
def test_texts_may_be_those_of_pyarrow():
    "As pandas 3 stores them where it is installed."
    pytest.importorskip('pandas', '3')
    pytest.importorskip('pyarrow')
    with pd.option_context('mode.string_storage', 'pyarrow'):
        runs = RUNS.astype({name: 'str' for name in RUNS if RUNS[name].dtype == 'str'})
        found = predict(runs)
    assert runs.id.dtype.storage == 'pyarrow' != RUNS.id.dtype.storage
    assert found.astype(object).equals(predictions().astype(object))


# how wrong

@functools.cache
def half_held_out():
    "Each half predicted by what the stacks taught in the other one."
    half, values = half_of(RUNS), shipped_record('halves')
    found = [predict(RUNS[half == i], with_sets(of_values(values[i]))) for i in range(2)]
    return pd.concat(found).sort_index().predicted_iteration_s


PREDICTED = {'tuned': lambda: predictions().predicted_iteration_s, 'half': half_held_out}


@pytest.mark.parametrize('kind', PREDICTED)
@pytest.mark.parametrize('table', sorted(SHIP))
def test_errors_of_the_published_tables(kind, table):
    found = errors(PREDICTED[kind]())
    assert set(found.index) == SHIP
    assert found[table] <= MUST[table]


def test_sources_never_seen():
    "The headline: what a fit without a source says of it, as of unknown software."
    found = errors(never_seen(RUNS))
    assert set(found.index) == SHIP and (found < .16).all()
    recorded_ones = record('errors').set_index('source')['never seen %']
    for table, error in found.items():
        assert math.isclose(100 * error, recorded_ones[table], abs_tol=.06), table


def test_peak_memory():
    own = table_of(RUNS) == 'simumax-b200'
    assert (predictions().predicted_memory_GB / RUNS.memory_GB - 1)[own].abs().mean() < .01


@pytest.mark.parametrize('kind', PREDICTED)
@pytest.mark.parametrize('source', MUST)
def test_recorded_errors(kind, source):
    table = record('errors').set_index('source')
    column = {'tuned': 'tuned on %', 'half': 'half held out %'}[kind]
    assert set(table.index) == {*MUST, *JUDGED}
    assert table.loc[source, column] <= 100 * MUST[source]


@pytest.mark.parametrize('source', JUDGED)
def test_recorded_errors_of_other_sources(source):
    one = record('errors').set_index('source').loc[source]
    assert one['never seen %'] <= 100 * JUDGED[source]
    assert one['never seen, inside %'] >= 60 or one.runs < 5


@pytest.mark.skipif(not BULK, reason='TRANSFORMER_PERF_RUNS names no file')
def test_errors_of_a_file_of_runs():
    runs = pd.read_csv(BULK, low_memory=False)
    predicted, source = predict(runs), source_of(runs)
    wrong = (predicted.predicted_iteration_s / runs.iteration_s - 1).abs().groupby(source).mean()
    for name, most in MUST.items(): assert wrong[name] <= most, name
    inside = runs.iteration_s.between(predicted.iteration_low_s, predicted.iteration_high_s)
    known = predicted.predicted_iteration_s.notna() & runs.iteration_s.notna()
    assert .75 <= inside[known & source.isin([*MUST])].mean() <= .95
    regret = picked(predicted)
    print(regret.to_string())
    # all jobs but the one of 39.1 B parameters: see the notebook
    usual = (regret.table == 'vtrain-multi') & (regret.hidden != 8192)
    assert (regret[usual]['regret %'] <= 5).all()


def test_rows_held_out_are_held_out():
    "Values fitted without some rows differ from those fitted to all."
    shipped = read_calibration().sets
    without, halves = shipped_record('without'), shipped_record('halves')
    for values in [*without.values(), *halves]:
        other = of_values(values).sets
        assert any(value_of(other[name], x) != value_of(k, x) for name, k in shipped.items()
                   for x in ('clock', 'product_share'))
    assert set(half_of(RUNS)) == {0, 1}


# empty cells, intervals, trust

def test_intervals_hold_the_prediction_and_trust_names_its_evidence():
    found = predictions()
    assert (found.iteration_low_s < found.predicted_iteration_s).all()
    assert (found.predicted_iteration_s < found.iteration_high_s).all()
    assert found.trust.str.startswith('measured').all()
    unknown = predict(RUNS.drop(columns=['source', 'software']))
    assert unknown.trust.str.startswith('near').all()
    wider = lambda t: (t.iteration_high_s / t.iteration_low_s)
    assert (wider(unknown) >= wider(found) * .99).mean() > .8
    assert predictions('paper').iteration_low_s.isna().all()
    new = predict(RUNS[RUNS.gpu == 'H100-80GB'].assign(gpu='H200-141GB'))
    assert new.trust.str.startswith('extrapolated').all()


def test_the_runs_that_ship_are_clean():
    pd.testing.assert_frame_equal(clean(RUNS), RUNS)
    blind = RUNS.drop(columns='source')
    assert predict(blind).predicted_iteration_s.equals(predictions().predicted_iteration_s)


@pytest.mark.parametrize('stage, less', [(1, 2), (2, 3)])
def test_sharding_saves_memory(stage, less):
    row = row_of('mcore-h100-1.7B').assign(micro_batch=1., vp=1.)
    one, more = (predict(row.assign(zero_stage=s)).predicted_memory_GB.item()
                 for s in (stage, less))
    assert more < one


# nothing outside its bounds, nothing per row

def test_prediction_does_not_see_the_measurement():
    "Nor the name of a row, nor the order."
    expected = predictions().predicted_iteration_s
    blind = RUNS.drop(columns=['iteration_s', 'memory_GB', 'id'])
    assert predict(blind).predicted_iteration_s.tolist() == expected.tolist()
    shuffled = predict(RUNS.sample(frac=1, random_state=1)).predicted_iteration_s
    assert shuffled.sort_index().tolist() == expected.tolist()


# never a guess in silence

@PRESETS
def test_components_add_up(preset):
    found = predictions(preset)
    total = found[[f'predicted_{c}' for c in COMPONENTS]].sum(axis=1)
    np.testing.assert_allclose(total, found.predicted_iteration_s, rtol=1e-12)
    assert (found.predicted_other_s == 0).all() == (preset != 'calibrated')


@PRESETS
def test_recompute_counts_under_every_preset(preset):
    "What is computed again takes time, and need not be kept."
    rows = RUNS[(RUNS.flash_attention == 0) & RUNS.vp.notna() & RUNS.micro_batch.notna()]
    assert len(rows) >= 4
    found = [predict(rows.assign(recompute=how), preset) for how in ('none', 'selective', 'full')]
    for less, more in itertools.pairwise(found):
        assert (less.predicted_iteration_s < more.predicted_iteration_s).all()
        assert (less.predicted_memory_GB > more.predicted_memory_GB).all()


def test_unknown_choices_are_the_best_feasible():
    row = row_of('megatron-2021-145.6B')
    found = predict(row).iloc[0]
    choices = pd.DataFrame(itertools.product([1, 2, 4, 8, 16, 32], [1, 2, 5, 10]),
                           columns=['micro_batch', 'vp'])
    every = row.drop(columns=[*choices]).merge(choices, how='cross')
    tried = predict(every)
    fits = tried.reason.isna() | (tried.reason == '')
    fits &= tried.predicted_memory_bound_GB <= 80
    interleaves = (every.vp == 1) | (2304 // 24 // every.micro_batch % 8 == 0)
    best = tried.predicted_iteration_s[(fits & interleaves).to_numpy()].min()
    assert math.isclose(found.predicted_iteration_s, best, rel_tol=1e-12)


@PRESETS
def test_predict_is_estimate(preset):
    "A row of a table of runs and the same job asked as a configuration cost the same."
    row = row_of('megatron-2022-175B-selective')
    row = row.drop(columns=['source', 'software'])   # of no known software
    found = predict(row, preset).iloc[0]
    assumptions = dataclasses.replace(as_assumptions(preset), flash_attention=False,
                                      dp_overlap=False, zero_stage=0)
    parallel = Parallel(tp=8, pp=8, virtual_stages=3, recompute='selective',
                        nvlink_tp=8, nvlink_cp=1, nvlink_pp=1, nvlink_dp=1)
    model = {'l': 2048, 'e': 12288, 'h': 96, 'depth': 96, 'vocab': 51200}
    stats = estimate(model, parallel, 'A100-80GB', 64, assumptions).stats
    for name in ('iteration_s', 'memory_GB'):
        assert math.isclose(stats[name], found[f'predicted_{name}'], rel_tol=1e-12)


# fitting

def test_scoreboard_has_every_table():
    score = scoreboard(RUNS, ('paper', 'calibrated'))
    assert score.table.tolist() == list(dict.fromkeys(table_of(RUNS)))
    assert (score['calibrated %'] < score['paper %']).all()


@pytest.mark.parametrize('said, table', [({}, 'runs'), ({'source_group': 'ours'}, 'ours')])
def test_own_runs_are_of_one_source_whatever_their_ids(said, table):
    "Those of one job are compared, though their ids begin with their layouts."
    layouts = [(1, 8), (2, 4), (4, 2)]
    runs = pd.DataFrame([
        {'id': f'tp{tp}-dp{dp}-a', 'model': 'llama3.1_8B', 'gpu': 'H100', 'n_gpus': 8, 'tp': tp,
         'dp': dp, 'global_batch': 64, 'seq_len': 8192, 'iteration_s': 5. + tp, **said}
        for tp, dp in layouts])
    score, = scoreboard(runs, ('calibrated',)).to_dict('records')
    assert (score['table'], score['runs']) == (table, 3) and 'never seen %' not in score
    choice, = picked(predict(runs)).to_dict('records')
    assert (choice['table'], choice['configurations']) == (table, 3)
    assert choice['best'] == 'tp1-dp8-a'


@functools.cache
def published_jobs():
    "Predictions of runs by their rows, and the jobs that these are."
    runs = RUNS if BULK is None else pd.read_csv(BULK, low_memory=False).head(300)
    jobs, _ = run_jobs(runs)
    assert len(jobs) > .9 * len(runs) >= 27
    return predict(runs), jobs


@pytest.mark.parametrize('first', first_of(1, range(3)))
def test_three_doors(first, tmp_path, capsys):
    "A published run is one job: as a row, as an estimate, and as a file on the command line."
    by_row, jobs = published_jobs()
    for row, job, _ in jobs[first::3]:
        seconds = by_row.predicted_iteration_s[row]
        one = estimate(job.model, job.parallel, job.system, job.global_batch,
                       job.assumptions('calibrated'))
        path = tmp_path / f'{row}.json'
        path.write_text(export(job))
        assert as_job(path) == job
        asked = ['explain', '--job', str(path), '--assumptions', 'calibrated', '--format', 'json']
        with pytest.raises(SystemExit, match='0'): main(asked)
        told = json.loads(capsys.readouterr().out)
        assert one.stats['iteration_s'] == seconds == told['stats']['iteration_s'], row


def test_where_a_recipe_ranks():
    "As recorded; and what is asked of a row alone takes what the row is predicted to take."
    rows = RUNS[RUNS.id.isin(['megatron-2021-1.7B', 'megatron-2022-22B-selective',
                              'mcore-h100-16B'])]
    found = recipes.recipes(rows).set_index('job')
    stored = shipped_record('recipes')
    stored = pd.DataFrame(stored).set_index('job').loc[found.index]
    assert found['slower %'].tolist() == stored['slower %'].tolist()
    assert found['rank'].tolist() == stored['rank'].tolist()
    assert found.loc['megatron-2021-1.7B', 'slower %'] == 0
    assert found.loc['megatron-2022-22B-selective', 'why'] == 'recompute'
    one = clean(rows[rows.id == 'mcore-h100-16B'])
    own, free, alone = recipes.recipe_found(one, as_assumptions('calibrated'), 20)
    seconds = predict(one).predicted_iteration_s.item()
    assert alone.iteration_s.iloc[0] == pytest.approx(seconds, rel=1e-9)
    slower = 100 * (seconds / free.iteration_s.iloc[0] - 1)
    assert found.loc['mcore-h100-16B', 'slower %'] == round(slower, 1)
    assert own['tp'] == 4 and set(free.tp) != {4} and set(alone.tp) == {4}
