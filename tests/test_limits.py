"""Files, commands and questions at their limits: refused in one line, soon, and in little memory.

What an answer must be, test_fuzz.py says.
"""
import contextlib
import gzip
import io
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from once import asked_once
from test_fuzz import LOG, RUNS, SYSTEM, contract, pick, pytestmark, tries  # noqa: F401

from transformer_perf import Parallel, advice, estimate, search
from transformer_perf.cli import COMMANDS, exports, run_command
from transformer_perf.choices import RECOMPUTE
from transformer_perf.inputs import naming, read_bytes
from transformer_perf.parameters import Parameters, changed
from transformer_perf.results import read_table
from transformer_perf.sweeps import run_configs, sweep
from transformer_perf.systems import System, as_system
from transformer_perf.validation import read_inputs


# files

HEAD, ROW = (','.join(map(str, row)) for row in (RUNS.columns, RUNS.iloc[0]))
HOSTILE = {
    'open.json': '[' * 4_000_000, 'deep.json': '{"a":' * 800_000, 'long.json': ' ' * 5_000_000,
    'empties.json': '{"a":[' + '{"":0},' * 580_000 + '0]}', 'digits.json': '9' * 4_000_000,
    'escape.json': '{"name": "\x1b[2J", "l": 1}', 'number.json': '{"l": 1e999, "e": NaN}',
    'commas.csv': ',' * 64_000_000, 'wide.csv': ',' * 900_000, 'lines.csv': '\n' * 16_000_000,
    'quotes.csv': '"' * 16_000_000, 'cells.csv': 'a,b\n' + '1,2\n' * 600_000,
    'text.csv': 'a\n' + 'x1\n' * 900_000, 'two.csv': 'a,a\n1,2\n', 'row.csv': 'a\n1,2\n',
    'systems.csv': f'{HEAD}\n' + '\n'.join(
        ROW.replace(',25.0,', f',{nic}.5,') for nic in range(1, 30_000)),
    'ranks.txt': 'Rank 1 ' * 2_000_000, 'lines.txt': '\n' * 15_900_000,
    'short.txt': 'all_reduce_perf' + '\n.' * 7_900_000, 'names.txt': 'all_reduce_perf\n' * 990_000,
    'words.txt': 'Out of bounds values ' * 700_000, 'tags.txt': ('[' + '1' * 9000 + '\n') * 1700,
    'layers.json': '{"l":8,"e":8,"h":1,"depth":2147483647,"window":4,"full_attention_every":2}',
    'ahead.json': '{"l":8,"e":8,"h":1,"depth":8,"vocab":9,"mtp_layers":2147483647}',
    'sparse.json': json.dumps(dict(
        model_type='qwen3_moe', num_hidden_layers=9999, hidden_size=64, num_attention_heads=4,
        num_key_value_heads=4, head_dim=16, intermediate_size=128, moe_intermediate_size=64,
        num_experts=8, num_experts_per_tok=9, decoder_sparse_step=1, vocab_size=99,
        max_position_embeddings=64, mlp_only_layers=[*range(5000, 9999)])),
    'dots.toml': 'a' + '.a' * 60_000 + '=1', 'tables.toml': '[a' + '.a' * 60_000 + ']',
    'inline.toml': 'x={a' + '.a' * 60_000 + '=1}',
    'steps.log': 'step:1' * 2_000_000, 'steps2.log': 'step: 1 tps' * 1_000_000,
    'times.log': 'elapsed time per iteration (ms)' + 'iteration 1' * 1_000_000,
    'rows.txt': LOG + '\n'.join([line for line in LOG.splitlines() if '1048576' in line] * 100_000)}
READER = '''
import sys, time
from transformer_perf.interop import as_job, read_log, read_profile
from transformer_perf.models import as_model
from transformer_perf.results import read_table
from transformer_perf.scaling import read_nccl_log
from transformer_perf.validation import predict, read_runs
peak = lambda: int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) / 1000
read = {'.toml': as_job, '.log': read_log, '.trace': read_profile, '.parquet': read_table,
        '.json': as_model, '.csv': lambda path: predict(read_runs(path)), '.txt': read_nccl_log}
print(peak())
for path in sys.argv[1:]:
    start = time.process_time()
    try: read[path[path.rindex('.'):]](path)
    except ValueError as error: print(peak(), time.process_time() - start, ascii(str(error)))
'''


@pytest.mark.thorough
def test_refused_files_cost_little(tmp_path):
    for name, text in HOSTILE.items(): (tmp_path / name).write_text(text)
    with gzip.open(tmp_path / 'empties.trace', 'wb', 1) as file:   # 1 MB, of 240 unpacked
        file.write(b'{"traceEvents":[')
        for _ in range(80): file.write(b'{},' * 1_000_000)
    for end in ('.json', '.csv', '.txt'):
        (tmp_path / f'zero{end}').symlink_to('/dev/zero'); os.mkfifo(tmp_path / f'pipe{end}')
        (tmp_path / f'folder{end}').mkdir()
    names = sorted([*(path.name for path in tmp_path.iterdir()), 'none.csv', 'http://x.org/x.csv'])
    done = subprocess.run([sys.executable, '-c', READER, *names], capture_output=True, text=True,
                          check=True, cwd=tmp_path, timeout=60)
    before, *refused = done.stdout.splitlines()
    assert len(refused) == len(names) and 'Error' not in done.stderr, done.stderr
    for name, line in zip(names, refused):
        peak, seconds, message = line.split(' ', 2)
        assert float(peak) < float(before) + 300 and float(seconds) < 2, line
        assert len(message) < 302 and '\\n' not in message, line
        assert name in message or 'measured runs' in message, line


@pytest.mark.thorough
def test_tables_packed_tightly_cost_little(tmp_path):
    "One text that stands in every row, and rows that take no room in the file."
    parquet = pytest.importorskip('pyarrow.parquet')
    import pyarrow
    zeros = lambda n: pyarrow.array(np.zeros(n, 'i4'))
    named = lambda text, n: pyarrow.table({'a': pyarrow.DictionaryArray.from_arrays(
        zeros(n), pyarrow.array([text]))})
    parquet.write_table(named('x', 60_000_000), tmp_path / 'rows.parquet')
    parquet.write_table(named('x' * 5000, 500_000), tmp_path / 'texts.parquet')
    names = 'rows.parquet', 'texts.parquet'
    done = subprocess.run([sys.executable, '-c', READER, *names], capture_output=True, text=True,
                          check=True, cwd=tmp_path, timeout=60)
    before, *refused = done.stdout.splitlines()
    assert 'rows of 1 columns in' in refused[0] and 'its texts take more than' in refused[1]
    for line in refused:
        peak, seconds, _ = line.split(' ', 2)
        assert float(peak) < float(before) + 300 and float(seconds) < 2, line


def test_tables_of_ours_are_read_as_they_were(tmp_path):
    pytest.importorskip('pyarrow')
    table = pd.DataFrame({'model': ['a', 'b', None], 'x': [1, 2, 3], 'y': [.5, np.nan, 2.],
                          'z': [True, False, True]})
    table.to_parquet(tmp_path / 'x.parquet', index=False)
    pd.testing.assert_frame_equal(read_table(tmp_path / 'x.parquet'),
                                  pd.read_parquet(tmp_path / 'x.parquet'))


# the command line

WORDS = ['', ' ', ',', '0', '-1', '2', '8', '8,,64', '9' * 400, '1.5', 'nan', '²', '--', '[/red]',
         'a\nb', '\x1b[2J', 'x' * 10**5, 'x' * 300 + '.json', 'gpt3', 'H200', 'H200-NVS9', 'all',
         'none,full', 'yes,no', 'calibrated', 'csv', 'json', 'x=1:2:1000000000', 'seq_len=nan',
         'hbm_bandwidth=1:1e300:9', '=', 'folder', 'none/x.csv', '/dev/full', '/dev/null', 'pipe',
         '/dev/zero', 'missing.json', 'http://x.org/x.csv', '\udcff', 'runs.csv', 'out.csv']
TOLD = {'panels': ['layer'], 'validate': ['runs.csv'],
        'sweep': ['--gpus', '8', '--systems', 'H200'],
        'run-configs': ['--gpus', '8', '--systems', 'H200', '--folder', 'out']}
SPOKEN = [name for name in COMMANDS if name not in ('bench', 'measure')]   # these take long


@st.composite
def commands(draw):
    "A command and some of its options, with odd values, none or two."
    name = draw(pick(SPOKEN))
    options = [o for o in COMMANDS[name].options if o.name not in ('bench', 'published')]
    words = [name, *TOLD.get(name, [])]
    for o in draw(st.lists(pick(options), max_size=3)):
        flag = [flag for flag in [draw(pick(o.flags))] if flag.startswith('-')]
        words += flag + draw(st.lists(pick(WORDS), min_size=o.kind != 'switch', max_size=1))
    return words + draw(st.lists(st.one_of(pick(WORDS), pick(SPOKEN)), max_size=draw(pick([0, 1]))))


@tries(60)
@given(commands())
def test_commands(tmp_path_factory, words):
    folder, printed = tmp_path_factory.getbasetemp() / 'commands', io.StringIO()
    folder.mkdir(exist_ok=True), (folder / 'folder').mkdir(exist_ok=True)
    (folder / 'runs.csv').write_text(f'{HEAD}\n{ROW}\n')
    if not (folder / 'pipe').exists(): os.mkfifo(folder / 'pipe')
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        assert contract(run_command, words) in (0, 1, None)
    assert '\x1b' not in printed.getvalue() and 'nan' not in printed.getvalue().split()
    assert Path('/dev/null').is_char_device() and (folder / 'pipe').is_fifo()


MADE = ['--model', 'small.json', '--global-batch', '16']
MEANT = [   # mistakes that look like a question
    ['sensitivity', *MADE, '--gpus', '8', '--tp', '2'], ['sensitivity', *MADE, '--ratio', '.3'],
    ['explain', *MADE, '--depth', '1'], ['plan', *MADE, '--gpus', '8', '--answer', 'x'],
    ['search', *MADE, '--nvlink-size', '²'], ['sweep', '--systems', 'H200-NVS²', '-o', 'x.csv'],
    ['why-not', *MADE, '--strategy', 'x'], ['measure', '-o', '\x1b[2J.json'],
    ['calibrate', 'kernels.csv', '--system', 'H200', '-o', 'x.json', '--jobs', 'job.sh'],
    ['calibrate', 'kernels.csv', '--system', 'H200', '-o', 'x.json', '--free', 'clock'],
    ['plan', *MADE, '--gpus', '8', '--prices', 'prices.csv'],
    ['improve', '--job', 'job.sh', '--measured', 'log.txt']]
FILES = {
    'small.json': '{"seq_len": 256, "embed_dim": 1024, "heads": 16, "depth": 8, "name": "small"}',
    'kernels.csv': 'm,n,k,precision,microseconds\n4096,4096,4096,bf16,300\n',
    'prices.csv': f'AcceleratorName,AcceleratorCount,Price\nH200,8,{"9" * 400}\n',
    'log.txt': 'step:  1  loss:  8.1  memory:  1e400GiB(4%)  tps: 5,000\n',
    'job.sh': 'torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 '
              '--num-attention-heads 16 --seq-length 256 --max-position-embeddings 256 '
              '--micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 2',
    'trace.json': '{"traceEvents": [{"cat": "cpu_op", "name": [], "args": {"External id": 1}}, '
                  '{"cat": "kernel", "dur": 1e999, "args": {"External id": 1}}]}'}


def test_options_and_files_that_say_nothing_are_refused(tmp_path):
    "Not passed over: whoever wrote them meant something."
    for name, text in FILES.items(): (tmp_path / name).write_text(text)
    trace = ['calibrate', 'trace.json', '--system', 'H200', '-o', 'x.json']
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(io.StringIO()):
        for words in [*MEANT, trace]: assert contract(run_command, words) is None, words
        assert run_command(['sensitivity', '--job', 'job.sh']) == 0   # of as many GPUs as it says
    assert not (tmp_path / 'x.json').exists()


def test_a_small_file_takes_little_memory_whatever_its_bound(tmp_path):
    (tmp_path / 'small.txt').write_text('x')
    tracemalloc.start()
    try:
        assert read_bytes(tmp_path / 'small.txt', 2**30) == b'x'
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally: tracemalloc.stop()


# valid, but huge

DIVISIBLE = dict(l=15120, e=60480, h=15120, depth=15120)
FLAGS = ('sequence_sharded', 'dp_overlap', 'tp_overlap', 'reduce_each')
EVERY = dict(zero_stages=range(4), recompute=list(RECOMPUTE), virtual_stages=range(1, 9)) | {
    name: [True, False] for name in FLAGS}
SWEEP = ['sweep', '-o', 'x.csv', '--vary']
HUGE = [
    lambda: search(DIVISIBLE, 15120**2, System(**SYSTEM | dict(hbm_capacity=1e9)), 15120**2,
                   'all', assumptions='corrected'),
    lambda: search('gpt3_1T', 2**15, as_system('H200', 8), 2**15, '2d', **EVERY),
    lambda: search('gpt3', range(10**9), 'H200'), lambda: search('gpt3', 64, 'H200', k=2**31),
    lambda: estimate(dict(l=15120, e=15120**2, h=15120**2, depth=15120), Parallel(
        tp=15120, pp=15120, dp=15120), as_system('H200', 2**31), 15120, assumptions='corrected'),
    lambda: estimate(dict(l=128, e=64, h=1, depth=2**12, vocab=100),
                     Parallel(pp=2**12, schedule='zb-h1'), 'H100-80GB', 2**13),
    lambda: run_command([*SWEEP, 'hbm_bandwidth=1:2:1000000000']),
    lambda: run_command([*SWEEP, 'ib_eff=.1:1:9999', '--vary', 'nvlink_eff=.1:1:9999'])]


@pytest.mark.parametrize('ask', HUGE, ids=range(len(HUGE)))
def test_huge_questions_are_refused_with_the_count(ask):
    limit = 'more than|must be a whole number from 1 to'
    with pytest.raises(ValueError, match=limit) as error: ask()
    assert len(str(error.value)) < 300


# what people type

MAIN = 'from transformer_perf.cli import main; main()'


def test_a_closed_output_is_an_error_of_one_line():
    for words in (['models'], ['models', '--format', 'json']):
        command = ' '.join([sys.executable, '-c', f"'{MAIN}'", *words, '>&-'])
        done = subprocess.run(command, shell=True, capture_output=True, text=True,
                              check=False)
        assert (done.returncode, done.stderr) == (
            2, 'transformer-perf: cannot write (Bad file descriptor)\n')


@pytest.mark.parametrize('words', [['models'], ['--help'], ['search', '--help']])
def test_without_docstrings(words):
    command = [sys.executable, '-OO', '-c', MAIN, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout and not done.stderr


def test_one_of_a_thing_is_as_good_as_a_list(tmp_path):
    "And what is none is refused in one line."
    system = as_system('H200', 8)
    file = tmp_path / 'my.json'
    file.write_text(json.dumps(vars(system) | {'name': 'my'}))
    assert as_system(file).name == as_system(str(file)).name == 'my'
    small = dict(l=256, e=1024, h=16, depth=8, name='small')
    asked = dict(strategies=['1d'], global_batch=16, assumptions='paper')
    one = sweep(small, 'H200', 8, **asked)
    assert one.equals(sweep([small], {'H200': as_system('H200')}, [8], **asked))
    for wrong in (dict(models='gpt3', systems=8, n_gpus=8), dict(
            models='gpt3', systems='H200', n_gpus='8'), dict(models=8, systems='H200', n_gpus=8)):
        with pytest.raises(ValueError): sweep(**wrong)
    told = dict(systems='H200', n_gpus=8, global_batch=16, folder=tmp_path / 'out')
    assert len(run_configs(small, '1d', **told)) == 2
    for models, says in [([small, small], "two models are called 'small'"),
                         ([small | dict(name='a/b')], "'a/b' cannot be part of the name")]:
        with pytest.raises(ValueError, match=says): run_configs(models, '1d', **told)
    with pytest.raises(ValueError, match='cannot be part'):
        run_configs(small, '1d', **told | dict(systems={'a/b': system}))


@pytest.mark.parametrize('name', ['product_share', 'attention_share', 'gather_factor',
                                  'scatter_factor', 'domain_share'])
def test_shares_of_a_calibration_are_bounded(name):
    with pytest.raises(ValueError, match=f'{name}=3 must be'): changed(Parameters(), {name: 3})
    assert changed(Parameters(), {name: 1.05})


def test_a_rate_above_all_has_its_reason():
    "Few layers and many words: their FLOP are in MFU, their time is not in the published model."
    small = dict(l=2048, e=1024, h=8, depth=1, vocab=512000)
    for assumptions in ('paper', 'corrected'):
        one = estimate(small, Parallel(), 'H200', 64, assumptions=assumptions)
        assert one.stats['mfu'] > 1 and 'above 100 %: it counts layers' in one.summary
    assert 'above 100' not in estimate('gpt3', Parallel(tp=8), 'H200', 64, 'paper').summary


def test_a_plan_is_exported(capsys, monkeypatch):
    monkeypatch.setattr(advice, 'plan', asked_once(advice.plan))   # of which each is a form
    words = ['plan', '--model', 'llama3.1_8B', '--gpus', '8', '--system', 'H200,H100-80GB',
             '--tokens', '1B', '--global-batch', '64', '--export']
    for name in exports():
        try: assert run_command([*words, name]) == 0 and capsys.readouterr().out.strip()
        except ValueError as error: assert f'cannot be said in {name}' in str(error)


def test_a_mistake_names_its_file_once(tmp_path):
    "Whether the reader inside names it or not, and however many wrap it."
    for inside in ('a.json: is damaged', 'is damaged'):
        with (pytest.raises(ValueError, match='^a.json: is damaged$'), naming('a.json'),
              naming('a.json')):
            raise ValueError(inside)
    trace = tmp_path / 'step.json'
    trace.write_text('{"traceEvents": [{"cat": "kernel", "name": "x", "dur": 1, "args": {}}]}')
    with pytest.raises(ValueError, match='has no matrix products') as error:
        read_inputs([trace])
    assert str(error.value).count(str(tmp_path)[:20]) == 1
