"""Whatever is asked, the answer is good, or one line says why there is none.

Good: its figures are finite, none is negative, and they add up. One line: a ValueError of fewer
than 300 characters that print. The inputs are drawn by hypothesis, the same in every run.
"""
import contextlib
import copy
import dataclasses
import io
import json
import math
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, strategies as st

from thorough import examples, first_of
from transformer_perf import Assumptions, Model, Parallel, System, estimate, execution, search
from transformer_perf import advice, iteration, modules, parameters, scaling, systems, validation
from transformer_perf.advice import planning, sensitivities
from transformer_perf.advice.neighbours import case_of, steps_of
from transformer_perf.inputs import quoted, read_json
from transformer_perf.estimates import as_assumptions
from transformer_perf.timeline import COMPONENTS, MEMORY_PARTS
from transformer_perf.iteration import Estimate
from transformer_perf.interop import as_job
from transformer_perf.interop.logs import steps_table
from transformer_perf.interop.own import OWN
from transformer_perf.models import as_model
from transformer_perf.software import as_software
from transformer_perf.systems import as_system, systems_folder
from transformer_perf.validation import measuring, predictions

# what pandas 4 and the next NumPy will refuse
pytestmark = [pytest.mark.filterwarnings('ignore::RuntimeWarning'),
              pytest.mark.filterwarnings('ignore::UserWarning'),
              pytest.mark.filterwarnings('error::FutureWarning'),
              pytest.mark.filterwarnings('error::DeprecationWarning')]   # Pandas4Warning is one
quick = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.large_base_example]


def tries(number):
    return examples(number, derandomize=True, database=None, suppress_health_check=quick)


nan, inf = math.nan, math.inf
ODD = [0, -1, True, None, '', 'x', '8', 1.5, 1e308, -1e308, 5e-324, 1e-30, nan, inf, -inf, 10**400,
       -10**400, 2**31, 2**31 + 1, 2**63, 1j, [], [1], [1, 2], [[1], [2, 3]], (), {}, {'a': 1}, {1},
       b'1', object(), len, range(3), np.array([]), np.array(3), np.array([1, 2, 3]),
       np.ones((2, 2)), np.array(['a']), np.array([nan]), np.array([-1.]), np.float32(2),
       np.int8(-4), np.bool_(True), np.datetime64('2020'), pd.NA, pd.NaT, pd.Series([1, 2]),
       pd.DataFrame({'a': [1]}), '[/red]', 'a\nb', '\x1b[31mred', '\0', 'x' * 10**6, '$\\frac{',
       'missing.json', '/dev/zero', '/dev/zero.json', '/tmp', Path('x.json'), '1d', '2d', 'gpt3']
odd = st.one_of(st.sampled_from(ODD), st.integers(-9, 10**6), st.floats(), st.text(max_size=9))
pick = st.sampled_from


@st.composite
def spoiled(draw, valid, most=2):  # dict
    "Arguments that are right but for some."
    names = draw(st.lists(pick(list(valid)), max_size=most, unique=True)) if valid else []
    return valid | {name: draw(odd) for name in names}


def numbers(x):  # list of float
    "Every number in an answer; an empty cell of a table is none."
    if isinstance(x, Estimate): return numbers([x.stats, x.layers])
    if isinstance(x, (pd.DataFrame, pd.Series)):
        return pd.DataFrame(x).select_dtypes('number').stack().dropna().tolist()
    if isinstance(x, dict): return numbers(list(x.values()))
    if isinstance(x, (list, tuple)): return [number for part in x for number in numbers(part)]
    if isinstance(x, (int, float, np.ndarray, np.number)): return np.ravel(x).astype(float).tolist()
    return []


def contract(ask, *args, **given):
    "The answer, checked; None where one line says why there is none."
    start = time.process_time()
    try: answer = ask(*args, **given)
    except ValueError as error:
        assert str(error) and str(error).isprintable() and len(str(error)) < 300, repr(error)
        return None
    finally: assert time.process_time() - start < 10
    assert all(math.isfinite(x) and x >= 0 for x in numbers(answer)), answer
    for row in [answer.stats] if isinstance(answer, Estimate) else rows_of(answer): adds_up(row)
    return answer


def rows_of(answer):
    "The rows of a search."
    return answer.to_dict('records') if isinstance(answer, execution.SearchResult) else []


def adds_up(row):
    for total, parts in (('iteration_s', COMPONENTS), ('memory_GB', MEMORY_PARTS)):
        assert row[total] > 0 and math.isclose(sum(row[part] for part in parts), row[total])
        assert all(0 <= row[part] / row[total] <= 1 + 1e-12 for part in parts)


# what things are

PRESETS = pick(['paper', 'corrected', 'calibrated'])
MODEL = dict(seq_len=2048, embed_dim=1024, heads=16, depth=8, mlp_dim=4096, train_samples=1e6,
             name='m', kv_heads=4, vocab=32000, gated_mlp=True, causal=True)
SYSTEM = read_json(systems_folder() / 'A100-80GB.json') | dict(name='A100-80GB')
LAYOUT = {f.name: f.default for f in dataclasses.fields(Parallel)} | dict(tp=2, pp=2, dp=2)


def defaults(cls): return {f.name: f.default for f in dataclasses.fields(cls)}


CLASSES = {Model: MODEL, System: SYSTEM, Parallel: LAYOUT, scaling.Fractions: {},
           scaling.Sizes: dict(seq_len=1, embed_dim=1, heads=1, depth=1),
           **{cls: defaults(cls) for cls in (Assumptions, *parameters.PARAMETER_PARTS.values())}}


@pytest.mark.parametrize('cls', CLASSES, ids=lambda cls: cls.__name__)
@tries(60)
@given(data=st.data(), name=st.text(max_size=9), value=odd)
def test_classes(cls, data, name, value):
    contract(cls, **data.draw(spoiled(CLASSES[cls])))
    contract(cls, **CLASSES[cls], **({} if name in CLASSES[cls] else {name: value}))


@tries(100)
@given(odd, odd, odd, spoiled(MODEL), spoiled(SYSTEM))
def test_forms(model, system, assumptions, fields, figures):
    for form in (model, fields): contract(as_model, form)
    for form in (model, assumptions, {'training': model}): contract(as_job, form)
    for form in (system, figures): contract(as_system, form)
    contract(estimate, 'gpt3', Parallel(), 'H200', 8, assumptions)
    contract(parameters.read_calibration, model)


class Unspeakable:
    def __repr__(self): raise RuntimeError


def test_what_cannot_even_be_quoted():
    assert quoted(Unspeakable()) == 'a Unspeakable'
    for ask in (as_model, as_system, parameters.limits): assert contract(ask, Unspeakable()) is None


# estimate and search

@tries(250)
@given(spoiled(MODEL), spoiled(LAYOUT), spoiled(SYSTEM), PRESETS, st.data())
def test_estimate(model, layout, system, preset, data):
    given = dict(model=model, system=system, global_batch=64, assumptions=preset)
    parallel = contract(Parallel, **layout)
    contract(estimate, parallel=parallel, **data.draw(spoiled(given, 1)))


@tries(100)
@given(st.data(), pick(list(parameters.PARAMETER_PARTS)), spoiled(defaults(Assumptions)))
def test_estimate_with_measured_parameters(data, part, changes):
    cls = parameters.PARAMETER_PARTS[part]
    values = contract(cls, **data.draw(spoiled(defaults(cls))))
    measured = None if values is None else parameters.Parameters(**{part: values})
    contract(lambda: estimate(MODEL, Parallel(tp=2, cp=2, pp=2, dp=2), SYSTEM, 8,
                              dataclasses.replace(Assumptions.corrected(), measured=measured)))
    contract(lambda: estimate(MODEL, Parallel(tp=2, pp=2), SYSTEM, 8, Assumptions(**changes)))


ASKED = dict(model=MODEL, n_gpus=[8, 12], system='A100-80GB', global_batch=24, strategy='all', k=3,
             assumptions='corrected', fixed={'tp1': [1, 2]}, zero_stages=[0, 1],
             recompute=['none', 'full'], virtual_stages=1, sequence_sharded=True)


@tries(80)
@given(spoiled(ASKED), pick(['tp', 'tp1', 'pp', 'panels', 'nvlink_dp', 'x', 1]), odd)
def test_search(asked, column, value):
    for question in (asked, ASKED | dict(fixed={column: value})):
        found = contract(search, **question)
        if found is None: continue
        assert found.candidates >= len(found) and len(found) + len(found.reasons)


SHARDS = pick([1, 2, 3, 4, 6, 8, 12])
WIDE = pick([720, 768, 1000, 1021, 1024, 1536])   # so that a sum of k terms is about k additions


@tries(80)
@given(st.lists(SHARDS, min_size=8, max_size=8), st.lists(WIDE, min_size=3, max_size=3),
       pick(['1d', '2d-seqp', '2d']), PRESETS)
def test_what_all_do_together_is_the_whole(shards, wide, strategy, preset):
    "Or an error with both numbers; with very short sequences too, no count is negative."
    (tp, cp, pp, dp, h, depth, batch, short), (l, e, f) = shards, wide
    contract(estimate, dict(l=short, e=24 * h, h=h, depth=depth),
             Parallel(strategy, tp, cp, pp, micro_batch=batch, panels=1), SYSTEM, 24, preset)
    model = contract(Model, l, e, h, depth, mlp_dim=f)
    a = dataclasses.replace(as_assumptions(preset), causal_mask=False)
    of = lambda *groups: model and contract(
        estimate, model, Parallel(strategy, *groups, panels=1), SYSTEM, batch, a)
    alone, shared = of(1, 1, 1, 1), of(tp, cp, pp, dp)
    if not (alone and shared): return
    together = shared.stats['TFLOP_per_gpu'] * shared.parallel.n_gpus
    assert together > .98 * alone.stats['TFLOP_per_gpu']


# the paper's names

BOTH = dict(b=1, l=64, e=64, parallelism={'m': 2, 'm1': 2, 'm2': 2},
            topology={'t': 2, 't1': 2, 't2': 1}, system='H200')
TABLES = [modules.mlp_1d(1, 64, 64, 256, system='H200'), modules.sa_1d(1, 64, 64, 4, system='H200')]


@pytest.mark.parametrize('name', first_of(2, [
    'mlp_2d', 'sa_seqp', 'mlp_1d', 'mlp_seqp', 'sa_1d', 'sa_2d', 'sa_2d_seqp']))
@tries(40)
@given(data=st.data(), wide=st.lists(WIDE, min_size=3, max_size=3), heads=SHARDS, m1=SHARDS,
       m2=SHARDS)
def test_modules(name, data, wide, heads, m1, m2):
    ask, (l, e, f) = getattr(modules, name), wide
    own = {'f': f} if name.startswith('mlp') else {'h': heads}
    contract(ask, **data.draw(spoiled(BOTH | own)))
    of = lambda m1, m2: contract(ask, **(BOTH | own | dict(
        l=l, e=e, system=SYSTEM | dict(summa_nb=1), topology=dict(t=1, t1=1, t2=1),
        parallelism=dict(m=m1, m1=m1, m2=m2))))
    whole, shared = of(1, 1), of(m1, m2)
    if whole is None or shared is None: return
    gpus = m1 if name.endswith('_1d') else m1 * m2
    for column, least in (('flops_fwd', .88), ('activation_buffer', .98), ('weights_mem', .98)):
        assert shared[column].sum() * gpus > least * whole[column].sum(), column


# every other function that is asked by hand: valid arguments

GPT, H200, LOG = as_model('gpt3'), as_system('H200'), (
    Path(__file__).parent / 'data' / 'nccl_all_reduce_8.txt').read_text()
ROWS = {'n_gpus': [8, 16], 'iteration_s': [1., 1.1], 'comm_s': [.1, .2]}
FUNCTIONS = {
    execution.execute_1d: dict(model='gpt3', n_gpus=[8], global_batch_size=8, system='H200'),
    execution.totals: dict(df_mlp=TABLES[0], df_sa=TABLES[1], df_dp=TABLES[0], df_pp=TABLES[0],
                           depth=8, pp=2, dp=2, number_micro_batches=4),
    execution.tp1d_candidates: dict(n=8, heads=16, embed=64),
    execution.pp_candidates: dict(n=8, tp=2, depth=8),
    execution.micro_batch_size_candidates: dict(global_batch_size=64, tp=2, pp=2, dp=2, l=128),
    execution.summa_nb_candidates: dict(tp1=2, tp2=2, embed=1024),
    execution.nv_candidates_2d: dict(tp1=2, tp2=2, dp=2, pp=2, nvs=4),
    iteration.divisors: dict(n=12), Parallel.from_row: dict(row={'tp': 2}),
    modules.dataparallel: dict(modules=TABLES, depth=8, dp=4, t_dp=2, system='H200'),
    modules.pipelineparallel: dict(modules=TABLES, number_micro_batches=4, comm_vol=.1, pp=4,
                                   t_pp=2, system='H200'),
    modules.model_figures: dict(model='gpt3', system=None, assumptions='paper'),
    scaling.parameters: dict(model=GPT), scaling.training_TFLOP: dict(model=GPT, samples=2),
    scaling.activation_GB: dict(model=GPT, samples=2),
    scaling.stage_memory: dict(model=GPT, samples=1, stage=2, gpus=8),
    scaling.sent_GB: dict(kind='allreduce', volume=1., gpus=8),
    scaling.stage_sent_GB: dict(stage=2, volume=1., gpus=8),
    scaling.compute_time: dict(TFLOP=1., rate=100.),
    scaling.dispatch_share: dict(kernels=1., dispatch=.1),
    scaling.dispatch_of_share: dict(kernels=1., share=.1),
    scaling.Efficiency.of_times: dict(gpus=[2, 8], times=[1., 2.], reference=None),
    scaling.Efficiency((8, 512), (1, .9)): dict(gpus=64),
    scaling.system_time: dict(kind='allgather', volume=1., gpus=8, pieces=2, system=H200,
                              assumptions=Assumptions()),
    scaling.published_network('gpt3', 1).time: dict(kind='allreduce', volume=1., gpus=8),
    scaling.network_of_system: dict(system='H200', model='gpt3', stage=1, n_gpus=[8, 64]),
    scaling.parse_nccl_log: dict(text=LOG, kind=None, gpus=None),
    scaling.speedup: dict(comm_share=.2, efficiency=.8),
    scaling.efficiency_behind: dict(comm_share=.2, speedup=.9)}


@pytest.mark.parametrize('ask', FUNCTIONS, ids=lambda ask: getattr(ask, '__name__', 'Efficiency'))
@tries(30)
@given(data=st.data())
def test_functions(ask, data):
    with contextlib.redirect_stdout(io.StringIO()):
        contract(ask, **data.draw(spoiled(FUNCTIONS[ask])))


@tries(100)
@given(spoiled(dict(model='gpt3', system='H200', n_gpus=[8, 64], samples=1, stages=(0, 3))),
       spoiled(ROWS), odd)
def test_scaling(asked, rows, n):
    found = contract(lambda: scaling.zero_table(**asked).drop(columns='gpus_needed'))
    if found is not None: assert found.memory_GB.gt(0).all() and found.iteration_s.gt(0).all()
    predicted = lambda *args: scaling.predict_scaling(*args).drop(columns='error')
    contract(predicted, rows, n), contract(predicted, n)


@tries(60)
@given(st.integers(0, len(LOG)), pick(['9' * 400, '\x1b', 'nan', '-', '1e999', '\n', 'N/A', '²']),
       st.integers(0, 9))
def test_damaged_logs(at, text, length):
    contract(scaling.parse_nccl_log, LOG[:at] + text + LOG[at + length:])


# advice, plans and sensitivities

@st.composite
def spoiled_table(draw, table):
    "A table with some odd cells, and perhaps the same label for all rows."
    table = table.astype(object)
    for _ in range(draw(st.integers(1, 3))):
        cell = draw(st.integers(0, len(table) - 1)), draw(st.integers(0, len(table.columns) - 1))
        table.iat[cell] = draw(odd)
    return table.set_axis([0] * len(table)) if draw(st.booleans()) else table


SMALL = Model(256, 1024, 16, 8, vocab=32000, train_samples=1e6, name='small')
CASE = dict(model=SMALL, parallel=Parallel(tp=2, pp=2, dp=2), system='A100-80GB', global_batch=16,
            assumptions='calibrated')
STEPS = (' iteration 10/ 100 | elapsed time per iteration (ms): 500.0 | global batch size: 16 |'
         ' lm loss: 3.0\nstep:  1  loss:  8.1  memory:  3.1GiB(4%)  tps: 5,000  mfu: 6.5%\n')


@pytest.mark.thorough
@tries(4)
@given(spoiled(CASE), spoiled(LAYOUT), odd)
def test_advice(asked, layout, measured):
    "Also of a strategy that nobody knows, and a schedule that one stage cannot follow."
    parallel = contract(Parallel, **layout)
    moved = CASE | ({'parallel': parallel} if parallel else {})
    for case in (asked, moved):
        contract(lambda case=case: advice.fits(**case).ranks)
        contract(lambda case=case: advice.improve(**case, measured=measured, k=1).best)
        contract(lambda case=case: advice.why_not(**case).best)
    for p in (Parallel(strategy='x'), Parallel(dp=3, schedule='zb-h1')):
        contract(lambda p=p: advice.why_not(**CASE | {'parallel': p}).best)


def test_no_row_of_several_schedules_is_an_answer():
    found = contract(search, SMALL, 3, 'H200', 8, assumptions='corrected',
                     schedule=['1f1b', 'zb-h1'])
    assert len(found) == 0 and 3 in found.reasons


@pytest.mark.parametrize('x', ODD, ids=lambda x: type(x).__name__)
def test_who_runs_it_and_what_the_host_may_hold(x):
    "Lists of such, or what is no file's job, once ended in errors of Python's own."
    case = case_of(**CASE)
    contract(as_software, x)
    contract(lambda: case_of(**CASE, job=x).global_batch)
    contract(lambda: steps_of(case, offload=x) and None)
    contract(lambda: steps_of(case, offload=[x]) and None)


@pytest.mark.parametrize('x', [pd.NA, [], '', [[1]], 1j], ids=str)
def test_kinds_of_rows(x):
    contract(search, **ASKED | dict(n_gpus=8, recompute='none', kind=x))


OPERATION = defaults(planning.ClusterOperation)
PLANNED = dict(model=SMALL, n_gpus=[8], system='A100-80GB', tokens=1e9, hours=None, usd=None,
               global_batch=64, assumptions='calibrated', prices=None, margin=.05)


@tries(8)
@given(spoiled(PLANNED), spoiled(OPERATION), pick([*OPERATION]), pick([1e-20, 1e-9, 1e9, 1e20]))
def test_plans(asked, operation, name, extreme):
    "A job that fails all the time is no plan: it would take for ever."
    for fields in (operation, OPERATION | {name: extreme}):
        run = contract(planning.ClusterOperation, **fields)
        ask = lambda run=run: planning.plan(**asked, operation=run).rows
        found = contract(ask) if run else None
        assert found is None or np.isfinite(found.days.astype(float)).all()


def test_what_fails_all_the_time_has_a_reason():
    found = planning.plan(**PLANNED, operation=planning.ClusterOperation(mtbf_gpu_hours=1e-9))
    assert len(found.rows) == 0 and 'it fails so often' in found.reasons[0]


@tries(4)
@given(spoiled(CASE), pick([*sensitivities.SCALABLE, 'x']), odd, odd)
def test_sensitivities(asked, field, ratio, number):
    contract(lambda: sensitivities.sensitivity(**asked)[['value', 'base_s', 'at_low_s']])
    contract(lambda: sensitivities.needed(field, **CASE, ratio=ratio).limit_s)
    contract(lambda: sensitivities.sensitivity(**CASE, factor=number)[['value', 'base_s']])
    contract(measuring.files_at, number), contract(measuring.measure, number)


TORNADO = sensitivities.sensitivity(**CASE).iloc[[0, 3]]
PRICES = systems.read_prices()[0].assign(Date=2026)


@tries(5)
@given(st.data())
def test_tables_of_prices_and_sensitivities(data):
    prices = data.draw(spoiled_table(PRICES))
    contract(lambda: systems.price_per_gpu_hour('H200', prices).usd)
    assert systems.price_per_gpu_hour('H200', PRICES).date == '2026'
    bars = data.draw(st.one_of(spoiled_table(TORNADO), odd))
    contract(lambda: sensitivities.tornado(bars) and None)


@tries(80)
@given(st.integers(0, len(STEPS)), pick(['9' * 400, '\x1b', 'nan', '-', 'e999', '\n', '0.0', '²']),
       st.integers(0, 9))
def test_damaged_steps(at, text, length):
    log = STEPS[:at] + text + STEPS[at + length:]
    contract(lambda: steps_table(2 * log)), contract(steps_table, log)


def test_values_of_a_job_are_plain():
    for x in ODD:
        contract(as_job, {'format': OWN, 'version': 1, 'parallel': x, 'ignored': x})
        contract(as_job, {'num-layers': x, 'a': {'num_layers': 8}, 'seq-length': 8})
        contract(as_job, {'format': OWN, 'version': 1, 'model': 'gpt3', 'seq_len': x})
        contract(as_job, {'parallelism': {'data_parallel_shard_degree': x}})


# evidence of a file of parameters

CALIBRATED = json.loads((parameters.measured_folder() / 'calibrated.json').read_text())
BROKEN = [None, -1, 1e308, '', 'x', [], [1], [2, 1], [None, 1], [[]], {}, {'x': [0, 1]}, True,
          '\x1b[2J', 'a' * 10**4, [0, 10**400], ['a', 'b']]


@st.composite
def damaged(draw, content):
    "A dict of dicts and lists, with one part missing or odd."
    content = copy.deepcopy(content)
    at = content
    while True:
        key = draw(pick([*at] if isinstance(at, dict) else range(len(at))))
        if not at[key] or not isinstance(at[key], (dict, list)) or draw(st.booleans()): break
        at = at[key]
    if draw(st.booleans()): at[key] = draw(pick(BROKEN))
    else: del at[key]
    return content


@tries(40)
@given(damaged({name: CALIBRATED[name] for name in ('evidence', 'seen', 'intervals')}))
def test_damaged_evidence(tmp_path_factory, damage):
    path = tmp_path_factory.getbasetemp() / 'damaged.json'
    path.write_text(json.dumps({'sets': CALIBRATED['sets'], **damage}))
    contract(lambda: estimate(**CASE | {'assumptions': str(path)}))


# measured runs: cells may hold anything

RUNS = validation.published().iloc[[0, 5, 15, 29]].astype(object).reset_index(drop=True)


@pytest.mark.thorough
@tries(6)
@given(spoiled_table(RUNS), PRESETS, odd)
def test_measured_runs(runs, preset, other):
    new = [f'predicted_{part}' for part in predictions.PREDICTED]
    predicted = validation.predict(runs, preset)
    found = contract(lambda: predicted[[*new, 'reason']])
    priced = found.predicted_iteration_s.notna()
    assert (priced | (found.reason != '')).all() and len(found) == len(runs)
    parts = found[[f'predicted_{part}' for part in COMPONENTS]].sum(axis=1)
    np.testing.assert_allclose(parts[priced], found.predicted_iteration_s[priced])
    signed = ['bias %', 'worst %']
    contract(lambda: validation.scoreboard(runs, ('paper', preset)).drop(columns=signed))
    contract(lambda: validation.picked(predicted, 1)[['picked', 'best']])
    for ask in (validation.predict, validation.scoreboard, validation.picked): contract(ask, other)


@pytest.mark.thorough
@tries(5)
@given(spoiled_table(RUNS), pick([('host_layer',), 'nic_share', ODD]))
def test_calibration(runs, free):
    contract(lambda: validation.calibrate(runs, free=free).table[['low', 'high', 'value']])
