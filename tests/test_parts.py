"A study as a dataset: every worker writes parts of its own, and whatever happens no row is lost."
import dataclasses
import itertools
import json
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from thorough import first_of
from test_cli import bad, good, has
from test_sweeps import BIN, COMMAND, heeded, needs_mpi, run  # noqa: F401

from transformer_perf import Model, search
from transformer_perf.estimates import as_assumptions
from transformer_perf.inputs import differing
from transformer_perf.ranks import MOST_DEALT, rounds_of_tasks
from transformer_perf.results import STUDY, parts_in, read_table
from transformer_perf.sweeps import (
    VARIANTS, in_a_row, left_to_do, pieces_of, sweep, tasks_of, variants_for, write_sweep)
from transformer_perf.systems import as_system

dataset = pytest.importorskip('pyarrow.dataset')
VARY = ['--vary', 'hbm_bandwidth=500:16000:40', '--vary', 'hbm_capacity=20:900:40']
WORDS = ['sweep', '--model', 'gpt3', '--systems', 'B200-NVS8', '--gpus', '64,512',
         '--assumptions', 'corrected', *VARY]


@pytest.fixture(scope='module')
def whole(tmp_path_factory):  # the same study as one table
    path = tmp_path_factory.mktemp('whole') / 'x.parquet'
    good(*WORDS, '-o', path)
    return read_table(path)


def check(folder, whole):
    "The dataset is the table: as we read it, and as pyarrow does."
    pd.testing.assert_frame_equal(read_table(folder), whole)
    found = dataset.dataset(folder).to_table().to_pandas()
    pd.testing.assert_frame_equal(found, whole, check_dtype=False)
    spans = [*parts_in(folder)]
    assert [first for first, _ in spans] == [0, *(last + 1 for _, last in spans[:-1])]
    assert json.loads((folder / STUDY).read_text())['complete'] is True
    assert {path.name.lstrip('_')[:4] for path in folder.iterdir()} <= {'part', 'stud'}


@pytest.mark.parametrize('workers', first_of(1, [2, 1]))
def test_workers_write_their_own_parts(whole, tmp_path, workers):
    good(*WORDS, '-o', tmp_path / 'x', '--workers', workers)
    check(tmp_path / 'x', whole)
    assert len(parts_in(tmp_path / 'x')) >= workers


@needs_mpi
@pytest.mark.parametrize('n', first_of(1, [2, 4]))
def test_ranks_write_their_own_parts(whole, tmp_path, n):
    done = run([BIN / 'mpiexec', '-n', n, COMMAND, *WORDS, '-o', tmp_path / 'x'])
    assert (done.returncode, done.stdout) == (0, f'{tmp_path / "x"}\n'), done.stderr
    check(tmp_path / 'x', whole)


@pytest.mark.parametrize('how', first_of(1, [signal.SIGKILL, signal.SIGINT]))
def test_an_interrupted_study_continues(heeded, whole, tmp_path, how):  # noqa: F811
    folder = tmp_path / 'x'
    process = subprocess.Popen([COMMAND, *WORDS, '-o', folder], stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 30
    begun = lambda: folder.exists() and parts_in(folder)
    while not begun() and time.time() < deadline: time.sleep(.001)
    process.send_signal(how)
    error = process.communicate(timeout=30)[1]
    assert process.returncode and (how == signal.SIGKILL or 'the same command continues' in error)
    with pytest.raises(ValueError, match='is not complete'): read_table(folder)
    for path in folder.glob('.*'): path.unlink()   # what a kill leaves half-written is hidden
    torn, *_ = parts_in(folder).values()
    torn.write_bytes(torn.read_bytes()[:-7])   # as by a crash of the machine
    good(*WORDS, '-o', folder, '--workers', 2)   # by another number of workers
    check(folder, whole)


def test_a_folder_holds_one_study(tmp_path):
    folder = tmp_path / 'x'
    words = ['sweep', '--model', 'gpt3', '--systems', 'B200-NVS8', '--gpus', '64']
    good(*words, '-o', folder)
    assert good(*words, '-o', folder) == f'{folder}\n'
    has(bad(*words, '--top', 2, '-o', folder), 'holds another sweep')
    (tmp_path / 'full').mkdir()
    (tmp_path / 'full' / 'mine.txt').write_text('x')
    has(bad(*words, '-o', tmp_path / 'full'), 'is not empty, and holds no sweep')
    has(bad(*words, '-o', '/proc/none'), 'cannot be made')
    (folder / STUDY).write_text('{"complete": true, "variants": -1, "question": 1}')
    has(bad(*words, '-o', folder), 'holds another sweep')


@pytest.mark.parametrize('changed', ['model', 'system'])
def test_a_study_is_of_what_its_files_hold(changed, tmp_path):
    "A file that was edited since asks another question; the old rows are no answer to it."
    files = {'model': (Model(2048, 4096, 32, 32, name='mine'), {'depth': 64}),
             'system': (as_system('H200'), {'hbm_bandwidth': 2000})}
    def write(name, **more):
        values = {**differing(files[name][0]), **more}
        (tmp_path / f'{name}.json').write_text(json.dumps(values))
        return str(tmp_path / f'{name}.json')
    about = [write('model')], [write('system')], [8]
    assert write_sweep(tmp_path / 'x', *about) and write_sweep(tmp_path / 'x', *about)
    write(changed, **files[changed][1])
    with pytest.raises(ValueError, match='holds another sweep'): write_sweep(tmp_path / 'x', *about)


@pytest.mark.thorough
def test_two_studies_in_one_folder_at_once(whole, tmp_path):
    command = [str(x) for x in (COMMAND, *WORDS, '-o', tmp_path / 'x')]
    both = [subprocess.Popen(command), subprocess.Popen([*command, '--workers', '2'])]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    check(tmp_path / 'x', whole)


def test_points_without_rows_are_done_too(tmp_path):
    "A capacity that is too small for anything."
    about = 'gpt3', {'x': as_system('B200', 8)}, 64
    vary = {'seq_len': [2048, 4096], 'hbm_capacity': [1e-3, 1.]}
    assert write_sweep(tmp_path / 'x', *about, '1d', vary=vary)
    assert not len(read_table(tmp_path / 'x')) and left_to_do(tmp_path / 'x', 2) == []
    assert len(dataset.dataset(tmp_path / 'x').files) == 0


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 1000))
def test_blocks_shrink(number, workers):
    "All tasks, each once, in order; in a round everyone has as many, at most half of a share."
    blocks, left = [*rounds_of_tasks([*range(number)], workers)], number
    assert [*itertools.chain(*blocks)] == [*range(number)]
    for start in range(0, len(blocks), workers):
        own, share = [len(x) for x in blocks[start:start + workers]], -(-left // workers)
        assert len({*own[:-1]}) <= 1 and own[-1] <= own[0] <= min(share, MOST_DEALT)
        assert share <= 2 or own[0] <= share / 2
        left -= sum(own)
    assert len([*rounds_of_tasks(range(1998), 999)]) == 999   # dealt at once


@pytest.mark.parametrize('points, workers', [(16**5, 999), (16**5, 1), (16**5, 2), (16**5, 500),
                                             (1, 8), (1000, 999), (5000, 7)])
def test_every_worker_has_as_much(points, workers):
    each = variants_for(points, workers)
    tasks = -(-points // each)
    assert 1 <= each < 2 * VARIANTS
    rounds = -(-tasks // workers)
    assert points / each / (rounds * workers) > .85 or points < 2 * workers


def test_numbers_in_a_row():
    assert in_a_row([1, 2, 3, 5, 6, 9]) == [[1, 2, 3], [5, 6], [9]]
    cut = pieces_of({'hbm_capacity': [1, 2], 'ib_bandwidth': [3, 4]}, 3)
    assert [piece['ib_bandwidth'].tolist() for piece in cut] == [[3, 3, 4], [4]]
    assert [piece['hbm_capacity'].tolist() for piece in cut] == [[1, 2, 1], [2]]


def test_what_differs_in_capacity_alone_is_priced_once(monkeypatch):
    "And each capacity has the fastest that fits into it, as if it were searched for alone."
    from transformer_perf import execution
    asked, true = [], execution.cost_and_ends
    def counted(*args):
        asked.append(execution.variant_count(args[-1].system))
        return true(*args)
    monkeypatch.setattr(execution, 'cost_and_ends', counted)
    about = 'gpt3', {'x': as_system('B200', 8)}, 512, '1d'
    more = dict(assumptions='corrected', global_batch=512)
    capacities = [30., 60., 120., 1e3]
    vary = {'hbm_capacity': capacities, 'ib_bandwidth': [25., 100.]}
    found = sweep(*about, vary=vary, **more)
    assert set(asked) == {2} and len(found) == 8
    for own in found.to_dict('records'):
        one = {name: [own[name]] for name in vary}
        alone, = sweep(*about, vary=one, **more).to_dict('records')
        assert alone == own
    assert found[found.ib_bandwidth == 25].iteration_s.is_monotonic_decreasing
    assert found.memory_GB.nunique() > 2
    assert tasks_of(*about[:3], [about[3]], vary=vary)[0].varied['hbm_capacity'].tolist() == (
        2 * capacities) and np.isclose(found.iteration_s.min(), found.iteration_s.iloc[-1])


@pytest.mark.parametrize('model, system, n, batch, more', first_of(1, [
    ('llama3.1_70B', 'H100-80GB', 64, 64, dict(vary={'hbm_capacity': [40., 60., 80., 160.]})),
    ('llama3.1_8B', 'H100-80GB', 16, 64, dict(software='llm-foundry'))]))
def test_a_sweep_is_a_search_at_each_point(model, system, n, batch, more):
    "Where chunks differ and what fits is played on each system; and with each ZeRO stage offered."
    found = sweep(model, system, [n], ['1d', '2d-seqp'], batch, **more)
    vary, software = more.get('vary', {'hbm_capacity': [80.]}), more.get('software')
    for capacity in vary['hbm_capacity']:
        own = dataclasses.replace(as_system(system), hbm_capacity=capacity)
        best = search(model, n, own, batch, k=1, software=software).iteration_s[0]
        here = found[found.hbm_capacity == capacity] if 'vary' in more else found
        assert here.iteration_s.min() == pytest.approx(best, rel=1e-12)


def test_all_strategies_are_those_that_a_model_and_its_precision_have():
    asked = lambda *about, **more: [task.strategy for task in tasks_of(
        *about, {'x': as_system('B200', 8)}, 64, None, **more)]
    assert asked('gpt3') == ['1d', '2d-seqp', '2d']
    assert asked('mixtral_8x7B') == ['1d', '2d-seqp']
    fp8 = dataclasses.replace(as_assumptions('calibrated'), precision='fp8')
    assert asked('gpt3', assumptions=fp8) == ['1d', '2d-seqp']
    with pytest.raises(ValueError, match='fp8'): sweep('gpt3', 'B200', 64, '2d', assumptions=fp8)


def test_the_path_of_a_folder_is_a_path(tmp_path):
    assert Path('x').suffix == '' and not list(tmp_path.iterdir())
    has(bad('sweep', '-o', 'x.doc', cwd=tmp_path), 'written as .csv or .parquet')
