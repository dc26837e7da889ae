"Sweeps: the same bytes however they were computed, whatever happened on the way."
import dataclasses
import itertools
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from thorough import examples, first_of
from test_cli import bad, good, has
from transformer_perf import search, sweeps
from transformer_perf.models import as_model
from transformer_perf.results import STUDY, read_table
from transformer_perf.sweeps import (
    PAPER_MODELS, VARIANTS, Shards, packed_result, run_configs, run_task, sweep, tasks_of)
from transformer_perf.systems import as_system

BIN = Path(sys.executable).parent
COMMAND = str(BIN / 'transformer-perf')
SMALL = ['run-configs', '--systems', 'A100-NVS8,B200-NVS64', '--gpus', '256,1024',
         '--parallel-strat', '1d,2d-seqp']   # four tasks
ROOT = Path(__file__).parent.parent
needs_mpi = pytest.mark.skipif(
    not (BIN / 'mpiexec').exists(),
    reason='no mpiexec beside this Python: pip install mpi4py mpich')


def run(args, **options):
    args = [str(a) for a in args]
    options = dict(capture_output=True, text=True, timeout=120) | options
    return subprocess.run(args, check=False, **options)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp('undisturbed')
    good(*SMALL, '--folder', folder)
    return contents(folder)


def test_a_sweep_is_its_searches():
    vary = {'seq_len': [2048, 8192], 'nvlink_size': [4, 8], 'global_batch': [512]}
    table = sweep(['gpt3', 'vit_era5'], {'B200-NVS8': as_system('B200', 8)}, [256, 1024],
                  ['1d', '2d-seqp'], k=2, vary=vary, global_batch=4096, assumptions='corrected')
    assert len(table) == 2 * 2 * 2 * 2 * 2 * 2
    for key, own in table.groupby(['model', 'seq_len', 'nvlink_size', 'strategy', 'n_gpus']):
        model, seq_len, nvlink_size, strategy, n = key
        model = dataclasses.replace(as_model(model), seq_len=seq_len)
        expected = search(model, n, as_system('B200', nvlink_size), 512, strategy, k=2,
                          assumptions='corrected')
        own = own[list(expected)].reset_index(drop=True)
        pd.testing.assert_frame_equal(own, pd.DataFrame(expected))


def test_a_point_does_not_depend_on_the_others():
    "Kernels that were not measured are those of the system that is varied, at each of its points."
    def at_1300(rates):
        found = sweep(['gpt3'], {'x': 'MI300X'}, [64], ['1d'], vary={'matrix_flops_fp16': rates})
        return found.iteration_s[found.matrix_flops_fp16 == 1300].item()
    assert at_1300([1300]) == at_1300([1300, 1600]) == at_1300([1300, 2000, 2400])


@pytest.mark.parametrize('options', [
    (), ('--recompute', 'none,full', '--precision', 'fp8', '--fixed', 'tp=4,8', '--fixed', 'cp=1'),
    ('--job', 'job.json')])
def test_the_command_sweeps_as_it_searches(tmp_path, options):
    about = '--gpus', 64, '--global-batch', 128, '--model', 'llama3.1_70B', *options
    job = good('explain', '--model', 'llama3.1_70B', '--tp', 8, '--pp', 4, '--dp', 2,
               '--export', 'json')
    (tmp_path / 'job.json').write_text(job)
    good('sweep', '--system', 'H100-80GB', *about, '-o', 'x.csv', cwd=tmp_path)
    found, = json.loads(good('search', '--system', 'H100-80GB', *about, '--top', 1, '--format',
                             'json', cwd=tmp_path))['found']
    swept, = pd.read_csv(tmp_path / 'x.csv').to_dict('records')
    for name, x in found.items():
        assert swept[name] == (pytest.approx(x, rel=1e-12) if isinstance(x, float) else x), name


def test_a_sweep_holds_and_compares_what_a_search_does():
    held = {'tp': [2, 4], 'pp': 1, 'recompute': ['none', 'full'], 'zero_stage': [3]}
    found = sweep(['llama3.1_8B'], ['H100-80GB'], [16], ['1d'], 64, k=40, **held)
    expected = search('llama3.1_8B', 16, 'H100-80GB', 64, '1d', k=40, **held)
    assert {*found.recompute} == {'none', 'full'} and {*found.tp} == {2, 4}
    assert found.iteration_s.tolist() == expected.iteration_s.tolist()


@pytest.mark.parametrize('wrong, says', [
    ({'recompute': 'nothing'}, "unknown recompute 'nothing'"), ({'tpp': 2}, "unknown choice 'tpp'"),
    ({'precision': 'fp9'}, "unknown precision 'fp9'; did you mean 'fp8'?")])
def test_choices_of_a_sweep_are_checked_before_anything_is_written(tmp_path, wrong, says):
    with pytest.raises(ValueError) as error:
        sweeps.write_sweep(tmp_path / 'parts', ['gpt3'], ['A100'], [64], **wrong)
    assert str(error.value).startswith(says) and not [*tmp_path.iterdir()]


def test_a_sweep_of_many_systems_is_their_searches():
    "As many are played of each, however many there are: at 698 GB the second is the fastest."
    system = dataclasses.replace(as_system('B200', 8), hbm_bandwidth=8589.44)
    capacities = np.linspace(20, 900, 512)
    table = sweep(['gpt3'], {'B200': system}, [64], ['1d'], vary={'hbm_capacity': capacities})
    own = table.set_index('hbm_capacity').iteration_s
    for GB in capacities[[30, 150, 250, 394, 511]]:
        alone = search('gpt3', 64, dataclasses.replace(system, hbm_capacity=GB), 2048, '1d', k=1)
        assert own[GB] == alone.iteration_s[0]


def test_a_sweep_says_what_it_rests_on():
    for assumptions, evidence in (('paper', 'published model'), ('calibrated', 'near: 195 runs')):
        table = sweep(['gpt3'], {'H100': 'H100-80GB'}, [64], ['1d'], assumptions=assumptions,
                      global_batch=4096)
        assert table.evidence.str.startswith(evidence).all() and len(table)


@pytest.mark.parametrize('factors', first_of(1, [[.5, 1, 1.05, 2], [1], [1, 2]]))
def test_each_point_of_a_sweep_rests_on_its_own_rates(factors):
    "Of a GPU that is as it is sold, runs are known, whatever is imagined beside it."
    system = as_system('B200-180GB')
    rates = [system.hbm_bandwidth * factor for factor in factors]
    table = sweep(['llama3.1_8B'], {'B200': system}, [8, 64], ['1d'], k=2, global_batch=64,
                  vary={'hbm_bandwidth': rates}).set_index('hbm_bandwidth')
    for rate, factor in zip(rates, factors):
        alone = search('llama3.1_8B', [8, 64], dataclasses.replace(system, hbm_bandwidth=rate),
                       64, '1d', k=2)
        for c in ('evidence', 'iteration_low_s', 'iteration_high_s'):
            assert table.loc[[rate], c].tolist() == alone[c].tolist()
        assert alone.evidence.str.startswith('near').all() == (abs(factor - 1) < .1)


@pytest.mark.parametrize('wrong, says', [
    (dict(models=[]), 'models=[] must name at least one'),
    (dict(systems={}), 'systems={} must name at least one'),
    (dict(n_gpus=[]), 'n_gpus=[] must name at least one'),
    (dict(strategies=['3d']), "unknown strategy '3d'"),
    (dict(vary={'hbm_bandwidth': []}), 'hbm_bandwidth=[] must be a list of at least one value')])
def test_an_empty_product_is_refused(wrong, says):
    product = dict(models=['gpt3'], systems={'H200': 'H200'}, n_gpus=[64], strategies=['1d'])
    with pytest.raises(ValueError) as error: tasks_of(**{**product, **wrong})
    assert says in str(error.value) and '\n' not in str(error.value)


def test_tasks_cut_a_grid_into_pieces():
    vary = {'hbm_bandwidth': np.arange(1., 41), 'seq_len': [64, 128],
            'ib_eff': np.arange(1., 31) / 30}
    tasks = tasks_of(['gpt3'], {'H200': 'H200'}, [64], ['1d', '2d'], vary=vary,
                     global_batch=4096, assumptions='corrected')
    pieces = [len(task.varied['ib_eff']) for task in tasks]
    assert pieces == [VARIANTS, VARIANTS, 1200 - 2 * VARIANTS] * 4
    points = {(t.strategy, t.varied['seq_len'], a, b) for t in tasks
              for a, b in zip(t.varied['hbm_bandwidth'], t.varied['ib_eff'])}
    assert len(points) == 2 * 2 * 1200


PHYSICAL = ['hbm_bandwidth', 'hbm_capacity', 'matrix_flops_fp16', 'ib_bandwidth', 'element_size',
            'mask_element_size', 'nvlink_latency', 'nic_factor']


@examples(5)
@given(st.lists(st.sampled_from(PHYSICAL), min_size=1, max_size=3, unique=True),
       st.lists(st.floats(0.3, 3), min_size=1, max_size=4, unique=True),
       st.sampled_from(['1d', '2d-seqp', '2d']))
def test_varied_as_arrays_is_one_by_one(fields, factors, strategy):
    system = as_system('H200', 8)
    vary = {f: [getattr(system, f) * x for x in factors] for f in fields}
    table = sweep(['gpt3_1T'], {'x': system}, [512], [strategy], vary=vary,
                  global_batch=4096, assumptions='corrected')
    found = table.set_index(fields).iteration_s.to_dict()
    for point in itertools.product(*vary.values()):
        changed = dataclasses.replace(system, **dict(zip(fields, point)))
        alone = search('gpt3_1T', 512, changed, strategy=strategy, k=1,
                       global_batch=4096, assumptions='corrected')
        key = tuple(point) if len(point) > 1 else point[0]
        assert (key in found) == bool(len(alone))
        if len(alone): assert np.isclose(found[key], alone.iteration_s[0], rtol=1e-12)


@pytest.mark.parametrize('field', first_of(
    2, ['element_size', 'flops_units', 'mask_element_size']))
def test_units_are_varied_at_measured_prices(field):
    "Stages that are played hold what their own system counts."
    system = as_system('B200')
    values = [getattr(system, field) * x for x in (.5, 1, 2)]
    found = sweep(['llama3.1_70B'], {'x': system}, [64], ['1d'], vary={field: values},
                  global_batch=64)
    for value, row in zip(values, found.itertuples(), strict=True):
        alone = search('llama3.1_70B', 64, dataclasses.replace(system, **{field: value}), 64,
                       '1d', 1)
        assert (row.iteration_s, row.memory_GB) == (alone.iteration_s[0], alone.memory_GB[0])


@pytest.mark.parametrize('factors', first_of(1, [[.5, 1, 2], [1]]))
@pytest.mark.parametrize('model, field, assumptions', first_of(2, [   # with layers of two kinds
    ('deepseek_v3', 'ib_bandwidth', 'corrected'), ('gpt_oss_120B', 'hbm_bandwidth', 'calibrated'),
    ('deepseek_v3', 'ib_bandwidth', 'calibrated'), ('gpt_oss_120B', 'hbm_bandwidth', 'corrected')]))
def test_varied_with_unlike_layers(model, field, assumptions, factors):
    system = as_system('H100-80GB')
    vary = {field: [getattr(system, field) * x for x in factors]}
    found = sweep([model], {'x': system}, [512], ['1d'], assumptions=assumptions, vary=vary,
                  global_batch=4096)
    for value, seconds in zip(found[field], found.iteration_s, strict=True):
        changed = dataclasses.replace(system, **{field: value})
        alone, = search(model, 512, changed, 4096, '1d', 1, assumptions).iteration_s
        assert np.isclose(seconds, alone, rtol=1e-9)
    assert found[field].tolist() == vary[field]


def test_files_of_a_study_are_of_a_software(tmp_path):
    "As the command has it: `software` of `search`."
    small = dict(l=256, e=1024, h=16, depth=8, name='small')
    about = dict(systems={'H200': 'H200'}, n_gpus=[8], global_batch=16, assumptions='calibrated')
    plain = run_configs([small], ['1d'], **about, folder=tmp_path, software='plain')
    table = pd.read_csv(next(path for path in plain if path.suffix == '.csv'))
    found = search(small, 8, 'H200', 16, '1d', software='plain')
    assert list(table.iteration_s) == pytest.approx(list(found.iteration_s))
    with pytest.raises(ValueError, match='needs measured prices'):
        run_configs([small], ['1d'], **about | {'assumptions': 'paper'}, software='plain')



@pytest.mark.thorough
def test_paper_study_in_outputs_is_current(tmp_path):
    "What is committed in outputs/ is what the command writes now."
    good('run-configs', '--folder', tmp_path, '--parallel-strat', 'all',
         '--model', ','.join(PAPER_MODELS))
    committed = sorted((ROOT / 'outputs').glob('exec_*.csv'))
    assert len(committed) == 6
    for path in committed:
        ours, theirs = pd.read_csv(tmp_path / path.name), pd.read_csv(path)
        # the last digit may differ between processors
        pd.testing.assert_frame_equal(ours, theirs, rtol=1e-12)


def test_workers_give_the_same_bytes(undisturbed, tmp_path):
    assert run([COMMAND, *SMALL, '--folder', tmp_path, '--workers', 2]).returncode == 0
    assert contents(tmp_path) == undisturbed


@needs_mpi
# fewer that compute than tasks; alone; more
@pytest.mark.parametrize('n', first_of(1, [3, 1, 6]))
def test_ranks_give_the_same_bytes(undisturbed, tmp_path, n):
    done = run([BIN / 'mpiexec', '-n', n, COMMAND, *SMALL, '--folder', tmp_path])
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path) == undisturbed
    assert sorted(done.stdout.split()) == sorted(str(tmp_path / name) for name in undisturbed)


@needs_mpi
def test_sweeps_run_on_ranks(tmp_path):
    args = ['sweep', '--systems', 'B200-NVS8', '--gpus', 512, '--assumptions', 'corrected',
            '--vary', 'hbm_capacity=48,96,192',
            '--vary', 'seq_len=2048,4096']
    good(*args, '-o', tmp_path / 'alone.csv')
    ranks = [BIN / 'mpiexec', '-n', 2, COMMAND, *args, '-o', tmp_path / 'ranks.csv']
    assert run(ranks).returncode == 0
    assert (tmp_path / 'alone.csv').read_bytes() == (tmp_path / 'ranks.csv').read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {'alone.csv', 'ranks.csv'}


FAILING = '''
import os, signal, sys
how, rank = sys.argv.pop(1), int(os.environ['PMI_RANK'])
if how == 'exit at once' and rank == 1: sys.exit(0)
from transformer_perf import cli, ranks, sweeps
if how == 'exit at once': ranks.START_PATIENCE = 1   # s, for an end that is certain
def failing(error):
    def function(*args): raise error
    return function
if rank == 1:
    if how == 'no such model': sys.argv += ['--model', 'gone.json']
    if how == 'TypeError': sweeps.tasks_of = failing(TypeError('a bug'))
    if how == 'MemoryError': sweeps.tasks_of = failing(MemoryError())
    if how == 'interrupted': sweeps.tasks_of = failing(KeyboardInterrupt())
    if how == 'in a task': sweeps.packed_result = failing(ValueError('task went wrong'))
    if how == 'bug in a task': sweeps.packed_result = failing(TypeError('a bug'))
    if how == 'killed': sweeps.packed_result = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
if rank == 0 and how == 'shard': sweeps.Shards.load = failing(ValueError('unreadable'))
cli.main()
'''
SAID = {'no such model': 'gone.json: cannot be read', 'TypeError': 'TypeError: a bug',
        'MemoryError': 'the memory of this computer is not enough', 'killed': '',
        'interrupted': 'interrupted; the same command continues', 'exit at once': '',
        'in a task': 'transformer-perf: task went wrong',
        'bug in a task': 'def function(*args): raise error',   # the line there
        'shard': 'transformer-perf: unreadable'}


@needs_mpi
@pytest.mark.parametrize('how', first_of(1, SAID))
def test_a_failing_rank_ends_the_job(undisturbed, tmp_path, how):
    "Within seconds, with its message and no half result; MPI itself would wait for ever."
    (tmp_path / 'job.py').write_text(FAILING)
    command = [sys.executable, tmp_path / 'job.py', how, *SMALL, '--folder', tmp_path / 'out']
    ranks = 3 if how in ('in a task', 'killed') else 2   # one that neither leads nor fails
    done = run([BIN / 'mpiexec', '-n', ranks, *command], timeout=60)
    assert done.returncode != 0 and SAID[how] in done.stderr
    assert ('Traceback' in done.stderr) == (how in ('TypeError', 'bug in a task'))
    written = tmp_path.glob('out/exec*')
    assert all(path.read_bytes() == undisturbed[path.name] for path in written)


@pytest.mark.thorough
def test_two_runs_in_one_folder(undisturbed, tmp_path):
    "Both succeed, and nothing but the results is left, whoever tidies up first."
    command = [COMMAND, *SMALL, '--folder', tmp_path]
    runs = [subprocess.Popen([str(word) for word in command]) for _ in range(2)]
    assert [process.wait(timeout=120) for process in runs] == [0, 0]
    assert contents(tmp_path) == undisturbed


def test_a_shard_of_another_task_is_not_taken(tmp_path):
    one, other = tasks_of(['gpt3'], {'A100': 'A100'}, [64], ['1d', '2d-seqp'],
                          global_batch=4096, assumptions='corrected')
    shards = Shards(tmp_path)
    for task in (one, other): shards.save(task, packed_result(run_task, task))
    assert shards.load(one) != shards.load(other)
    shards.path(one).write_bytes(shards.path(other).read_bytes())
    assert shards.load(one) is None and shards.load(other)


def test_a_shard_of_other_measurements_is_not_taken(monkeypatch, tmp_path):
    "What kernels were measured to reach is part of a version, as its source is."
    ours, other = sweeps.code_digest(), tmp_path / 'data'
    shutil.copytree(sweeps.measured_folder(), other)
    monkeypatch.setattr(sweeps, 'measured_folder', lambda: other)
    assert sweeps.code_digest() == ours
    (other / 'kernels.json').write_text('{}')
    assert sweeps.code_digest() != ours


DYING = '''
import os, sys
from transformer_perf import sweeps
def task(i): os._exit(9)
if __name__ == '__main__':
    try: sweeps.run(task, [1, 2, 3], workers=2)
    except ValueError as error: sys.exit(str(error))
'''


def test_a_worker_that_dies_is_one_line(tmp_path):
    (tmp_path / 'job.py').write_text(DYING)
    done = run([sys.executable, tmp_path / 'job.py'])
    assert done.returncode == 1 and done.stderr.startswith('a worker process was ended')
    assert done.stderr.count('\n') == 1


COUNTING = '''
import os, sys, time
from pathlib import Path
import pandas as pd
from transformer_perf import sweeps
folder = Path(sys.argv[1])
def task(t):
    with open(folder / 'computed', 'a') as f: f.write(f'{t[0]}\\n')
    time.sleep(float(sys.argv[2]))
    return pd.DataFrame({'x': [t[0] / 3], 'name': ['a']})
tables = sweeps.run(task, [(i,) for i in range(6)], folder / 'partial')
sweeps.write_whole(folder / 'out.csv', pd.concat(tables).to_csv(index=False))
'''


@pytest.fixture
def heeded():
    "Ctrl-C ends what is started here, also if a shell runs the tests where it would not."
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize('how', first_of(1, [signal.SIGINT, signal.SIGKILL]))
def test_an_interrupted_run_continues(heeded, tmp_path, how):
    (tmp_path / 'job.py').write_text(COUNTING)
    command = [sys.executable, str(tmp_path / 'job.py'), str(tmp_path)]
    process = subprocess.Popen([*command, '0.4'], stderr=subprocess.DEVNULL)
    deadline = time.time() + 30
    enough = lambda: len(list(tmp_path.glob('partial/*.shard'))) >= 2
    while not enough() and time.time() < deadline: time.sleep(0.02)
    process.send_signal(how)
    assert process.wait(timeout=30) != 0
    shards = list(tmp_path.glob('partial/*.shard'))
    assert 2 <= len(shards) < 6
    shards[0].write_bytes(shards[0].read_bytes()[:-7])  # torn, as by a crash of the machine
    started = len((tmp_path / 'computed').read_text().split())
    assert run([*command, '0']).returncode == 0
    assert len((tmp_path / 'computed').read_text().split()) - started == 6 - len(shards) + 1
    expected = pd.DataFrame({'x': [i / 3 for i in range(6)], 'name': 'a'}).to_csv(index=False)
    assert (tmp_path / 'out.csv').read_text() == expected


@pytest.mark.thorough
def test_ctrl_c_says_what_to_do(heeded, tmp_path):
    args = [COMMAND, 'sweep', '--systems', 'B200-NVS8', '--gpus', '4096',
            '--vary', 'hbm_bandwidth=500:16000:400', '--vary', 'hbm_capacity=80:900:100',
            '-o', str(tmp_path / 'x.csv')]
    process = subprocess.Popen(args, stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 60
    begun = lambda: list(tmp_path.glob('.x.csv.partial/*.shard'))
    while not begun() and time.time() < deadline: time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert 'the same command continues' in error and 'Traceback' not in error
    assert not (tmp_path / 'x.csv').exists()


def test_a_full_disk_is_one_line_and_no_half_file(undisturbed, tmp_path):
    full = ['sh', '-c', 'ulimit -f 12; exec "$@"', 'sh']   # blocks of 512 bytes
    uncompiled = os.environ | {'PYTHONDONTWRITEBYTECODE': '1'}   # else half a module may be left
    done = run([*full, COMMAND, *SMALL, '--folder', tmp_path], env=uncompiled)
    assert done.returncode == 2
    assert 'cannot be written' in done.stderr and done.stderr.count('\n') == 1
    written = [path for path in tmp_path.iterdir() if path.is_file()]
    assert all(undisturbed[path.name] == path.read_bytes() for path in written)
    assert not list(tmp_path.rglob('.*.part'))
    good(*SMALL, '--folder', tmp_path)
    assert contents(tmp_path) == undisturbed


def test_parquet(undisturbed, tmp_path):
    pytest.importorskip('pyarrow')
    good(*SMALL, '--folder', tmp_path, '--table', 'parquet')
    (tmp_path / 'same.csv').write_bytes(undisturbed['exec_1d_gpt3_1T.csv'])
    one, other = (read_table(tmp_path / name) for name in ('exec_1d_gpt3_1T.parquet', 'same.csv'))
    pd.testing.assert_frame_equal(one, other, check_dtype=False, rtol=1e-14)


@pytest.mark.parametrize('command, message', [
    ('run-configs --systems A100-NVS0', "nvlink_size of 'A100-NVS0'=0 must be a whole number"),
    ('run-configs --systems A10', "did you mean 'A100'?"),
    ('run-configs --parallel-strat 3d', "unknown strategy '3d'"),
    ('run-configs --table xlsx', 'written as .csv or .parquet'),
    ('run-configs --workers 0', '--workers=0 must be'),
    ('run-configs --gpus ,', '--gpus names no number'),
    ('run-configs --folder /proc/none', 'cannot be made'),
    ('sweep -o x.csv --vary hbm_bandwith=1', "did you mean 'hbm_bandwidth'?"),
    ('sweep -o x.csv --vary hbm_bandwidth=fast', 'must be FIELD=VALUE'),
    ('sweep -o x.csv --vary hbm_bandwidth=-5', 'hbm_bandwidth=-5.0 must be a number from 0'),
    ('sweep -o x.doc', 'written as .csv or .parquet'),
    ('sweep -o x.csv --vary seq_len=2.5', 'seq_len=2.5 must be')])
def test_mistakes_are_one_line(tmp_path, command, message):
    has(bad(*command.split(), cwd=tmp_path), message)
    assert not list(tmp_path.iterdir())


# how tasks are cut, and what is timed

def test_numbers_in_a_row():
    assert sweeps.in_a_row([0, 1, 2, 4, 5, 9]) == [[0, 1, 2], [4, 5], [9]]
    assert sweeps.in_a_row([3]) == [[3]]


@pytest.mark.parametrize('points, workers', [
    (1, 4), (100, 4), (1000, 3), (1200, 1), (5000, 2), (7 * 4 * VARIANTS, 4)])
def test_few_tasks_are_cut_so_that_workers_have_as_many(points, workers):
    "The smallest tasks of which each worker has no more than of whole ones, rounded, or one."
    size = sweeps.variants_for(points, workers)
    most = workers * max(1, round(points / workers / VARIANTS))
    tasks = lambda size: math.ceil(points / size)
    assert tasks(size) <= most and (size == 1 or tasks(size - 1) > most)
    assert sweeps.variants_for(9 * workers * VARIANTS + 1, workers) == VARIANTS


@pytest.mark.parametrize('platform, GB', [('linux', .002048), ('darwin', .000002)])
def test_memory_in_the_unit_of_the_platform(monkeypatch, platform, GB):
    "Linux counts in KiB, macOS in bytes (getrusage(2) of both)."
    used = resource.struct_rusage([0, 0, 2000, *[0] * 13])
    monkeypatch.setattr(resource, 'getrusage', lambda who: used)
    monkeypatch.setattr(sweeps.sys, 'platform', platform)
    assert sweeps.peak_GB() == pytest.approx(GB, rel=1e-12)


def test_the_least_of_several_times_is_told(monkeypatch):
    "By a clock that we set: three runs of 5, 2 and 4 s, of ten candidates each."
    clock = iter([0, 5, 10, 12, 20, 24])
    monkeypatch.setattr(sweeps.time, 'perf_counter', lambda: next(clock))
    row = sweeps.bench_row('some', lambda n, more: n + more, 7, often=3, more=3)
    assert (row['what'], row['candidates'], row['seconds'], row['candidates_per_s']) == (
        'some', 10, 2, 5)


def test_what_is_timed_is_what_its_name_says(monkeypatch):
    "GPUs, models and numbers of searches, as each line names them."
    asked, said = [], []
    monkeypatch.setattr(sweeps, 'search', lambda *args, **more: asked.append((args, more)) or
                        SimpleNamespace(candidates=3))
    monkeypatch.setattr(sweeps, 'estimate', lambda *args, **more: asked.append((args, more)))
    monkeypatch.setattr(sweeps, 'sweep', lambda *args, **more: asked.append((args, more)))
    for row in sweeps.bench_rows():
        what, (args, more) = row['what'], asked[-1]
        assert str(args[0]) in what or 'searches' in what, what
        if 'estimate' in what: assert f'{args[1].n_gpus} {args[2]}' in what
        elif 'searches' not in what: assert re.search(rf'\b{args[1]:,}\b|\b{args[1]}\b', what)
        for preset in ('paper', 'calibrated'):
            if what.endswith(preset): assert more['assumptions'] == preset
        searches = sum(np.size(args[1]) for args, _ in asked)
        if 'searches' in what:
            assert str(searches) in what and {args[3] for args, _ in asked} == {4096}, what
        if 'memories' in what:
            sizes = [len(values) for values in asked[0][1]['vary'].values()]
            assert '{} x {} memories'.format(*sizes) in what
            assert row['candidates'] == 3 * np.prod(sizes) and asked[0][0][2] == [args[1]]
            assert asked[0][0][4] == args[3] == 4096, 'both of the batch of the study'
        asked.clear()
        said.append(what)
    assert len(said) == len({*said}) == 14


def test_parts_that_can_be_read(tmp_path):
    "A file of a dataset in which no rows are to be counts as whole, and half a file does not."
    pytest.importorskip('pyarrow')
    table, half, none = (tmp_path / name for name in ('1.parquet', '2.parquet', '_none.parquet'))
    pd.DataFrame({'x': [1., 2.]}).to_parquet(table)
    half.write_bytes(table.read_bytes()[:-9])
    none.touch()
    assert [sweeps._is_whole(path) for path in (table, half, none)] == [True, False, True]


def written_as(folder, *parts):
    "A folder with a file for each (first, last task, rows)."
    folder.mkdir()
    for first, last, rows in parts:
        table = pd.DataFrame({'task': range(first, first + rows)})
        sweeps.write_whole(sweeps.part_path(folder, first, last, not rows),
                           sweeps.table_bytes(table, '.parquet') if rows else b'')
    return folder


@pytest.mark.parametrize('parts, left, kept', [
    ([(0, 1, 5), (3, 3, 0), (4, 4, 2)], [2, 5], [(0, 1), (3, 3), (4, 4)]),
    ([(0, 1, 5), (1, 2, 5)], [2, 3, 4, 5], [(0, 1)]),     # the second has one of the first's
    ([(0, 1, 5), (2, 5, 1)], [], [(0, 1), (2, 5)]),
    ([(4, 5, 1), (5, 6, 1), (6, 6, 1)], [0, 1, 2, 3], [(4, 5)]), ([], [*range(6)], [])])
def test_what_parts_leave_to_do(tmp_path, parts, left, kept):
    "Of six tasks: what stands there twice, or is none of them, is removed."
    pytest.importorskip('pyarrow')
    folder = written_as(tmp_path / 'study', *parts)
    assert sweeps.left_to_do(folder, 6) == left
    assert [*sweeps.parts_in(folder)] == kept


@pytest.mark.parametrize('each, files', [
    (0, {(0, 2): 3, (5, 6): 2}), (3, {(0, 1): 2, (2, 2): 1, (5, 6): 2}),
    (9, {(0, 0): 1, (1, 1): 1, (2, 2): 1, (5, 5): 1, (6, 6): 1})])
def test_parts_are_written_after_some_seconds(monkeypatch, tmp_path, each, files):
    "And at the end of each row of tasks; `each`: s of a task, where five are enough for a part."
    pytest.importorskip('pyarrow')
    now = [0.]
    def solved(task):
        now[0] += each
        return pd.DataFrame({'task': [task]})
    monkeypatch.setattr(sweeps, 'time', SimpleNamespace(monotonic=lambda: now[0]))
    numbers, tasks = [0, 1, 2, 5, 6], [10 * i for i in range(7)]
    assert [i for i, _ in sweeps._write_parts(solved, tasks, tmp_path, numbers)] == numbers
    found = {of: pd.read_parquet(path).task.tolist()
             for of, path in sweeps.parts_in(tmp_path).items()}
    assert {of: len(rows) for of, rows in found.items()} == files
    assert [*itertools.chain(*found.values())] == [10 * i for i in numbers]


def test_a_folder_of_a_study_is_begun_once(tmp_path):
    "Whoever comes later cuts tasks as they were; in a folder of something else none is begun."
    folder = tmp_path / 'new' / 'study'
    assert sweeps.prepared(folder, 'question', 7) == sweeps.prepared(folder, 'question', 9) == 7
    with pytest.raises(ValueError, match='holds another sweep'):
        sweeps.prepared(folder, 'another', 7)
    (tmp_path / 'hidden').mkdir()
    (tmp_path / 'hidden' / '.left').touch()
    assert sweeps.prepared(tmp_path / 'hidden', 'question', 3) == 3
    with pytest.raises(ValueError, match='is not empty, and holds no sweep'):
        sweeps.prepared(tmp_path, 'question', 3)


@pytest.mark.parametrize('rank', [0, 1])
@pytest.mark.parametrize('as_parts', [False, True])
def test_one_of_several_ranks_gathers_what_they_did(monkeypatch, tmp_path, rank, as_parts):
    "Each alone in this process: the first keeps what all have done, and the others keep none."
    if as_parts: pytest.importorskip('pyarrow')
    world = SimpleNamespace(rank=rank, size=3, bcast=lambda most: most)
    monkeypatch.setattr(sweeps, 'mpi_world', lambda: world)
    monkeypatch.setattr(sweeps, 'completed', lambda do, numbers, workers: (
        one for one in ([] if rank else do(numbers))))
    folder, speeds = tmp_path / 'study', np.linspace(1000, 5000, 40)
    asked = dict(models='gpt3', systems='B200', n_gpus=[64], strategies='1d',
                 vary={'hbm_bandwidth': speeds})
    found = sweeps.write_sweep(folder, **asked) if as_parts else sweep(**asked)
    if rank:
        assert not found and not folder.exists()
        return
    table = read_table(folder) if as_parts else found
    assert table.hbm_bandwidth.tolist() == list(speeds)
    if as_parts:   # half of it for each of those who compute
        assert json.loads((folder / STUDY).read_text())['variants'] == 20
        assert [*sweeps.parts_in(folder)] == [(0, 1)]


def test_the_systems_of_the_paper_are_those_of_its_study():
    "Each named after its GPU and its NVLink domains, in the order of the rows in outputs/."
    systems = sweeps.paper_systems()
    assert list(read_table(ROOT / 'outputs/exec_1d_gpt3_1T.csv').system.unique()) == [*systems]
    for label, system in systems.items(): assert label == f'{system.name}-NVS{system.nvlink_size}'
