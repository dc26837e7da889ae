"The command line, as a user runs it."
import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_perf import search
from transformer_perf.systems import systems_folder

COMMAND = str(Path(sys.executable).parent / 'transformer-perf')


def run(*args, **options): return subprocess.run([COMMAND, *map(str, args)], capture_output=True, text=True, timeout=60, **options)


def good(*args, **options):
    done = run(*args, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def bad(*args):
    done = run(*args)
    assert done.returncode == 2 and not done.stdout and 'Traceback' not in done.stderr
    return done.stderr


def test_search_prints_a_table_and_a_paragraph():
    text = good('search')
    for word in ('rank', 'samples/s', 'iteration', 'NVLink', 'compute', 'bubble', '105.4', '124.6 / 141', '3,689 candidates', 'gpt3_1T on 2048 H200 GPUs'): assert word in text
    assert '…' not in text


def test_formats_carry_full_precision(tmp_path):
    options = ['search', '--nvlink-size', 4, '--gpus', '512,2048', '--gpus', 4096, '--top', 2]
    expected = search('gpt3_1T', [512, 2048, 4096], {**json.loads((systems_folder() / 'H200.json').read_text()), 'nvlink_size': 4}, k=2)
    rows = list(csv.DictReader(io.StringIO(good(*options, '--format', 'csv'))))
    assert [float(row['iteration_s']) for row in rows] == expected.iteration_s.tolist()
    output = tmp_path / 'found.json'
    assert good(*options, '--format', 'json', '--output', output) == ''
    assert [row['iteration_s'] for row in json.loads(output.read_text())['found']] == expected.iteration_s.tolist()


def test_files_of_ones_own(tmp_path):
    model, system = tmp_path / 'mine.json', tmp_path / 'cluster.json'
    model.write_text('{"l": 1024, "e": 1024, "h": 16, "depth": 8}')
    system.write_text((systems_folder() / 'A100.json').read_text())
    text = good('search', '--model', model, '--system', system, '--gpus', 16, '--global-batch', 64, '--strategy', 'all')
    assert 'mine on 16 cluster GPUs' in text


def test_explain():
    text = good('explain', '--tp', 4, '--pp', 32, '--dp', 16, '--nvlink-size', 4)
    for word in ('102.5 samples/s', 'fusedla', 'reducescatter', 'network'): assert word in text
    found = json.loads(good('explain', '--tp', 4, '--pp', 32, '--dp', 16, '--nvlink-size', 4, '--format', 'json'))
    assert found['parallel']['nvlink_tp1'] == 4 and len(found['layers']) == 14 and abs(found['stats']['samples_per_s'] / 102.463805377367 - 1) < 1e-9


def test_lists():
    assert '1006.666' in good('models') and 'hbm_bandwidth' in good('systems')
    assert {row['name'] for row in json.loads(good('models', '--format', 'json'))} == {'gpt3', 'gpt3_1T', 'vit_era5'}


def test_zero():
    text = good('zero', '--model', '13B', '--system', 'tg40', '--gpus', '8,64')
    assert '13B on tg40' in text and text.count('/ 40') == 8
    rows = json.loads(good('zero', '--gpus', 64, '--format', 'json'))
    assert [row['stage'] for row in rows] == [0, 1, 2, 3] and [row['memory_GB'] for row in rows] == sorted((row['memory_GB'] for row in rows), reverse=True)
    assert 'samples=0 must be' in bad('zero', '--samples', 0)


def test_zero_stages_of_a_search():
    text = good('search', '--model', 'gpt3', '--gpus', 512, '--global-batch', 512, '--zero-stage', '1,3', '--top', 2)
    assert 'ZeRO' in text
    assert 'zero_stage=4 must be 0, 1, 2 or 3' in bad('search', '--zero-stage', 4)


def test_help_teaches():
    assert 'Example:' in good('search', '--help') and 'placement' in good('search', '--help') and 'explain' in good('--help')


def test_nothing_feasible_is_an_answer():
    text = good('search', '--model', 'vit_era5', '--system', 'A100', '--gpus', '64')
    assert 'no feasible configuration' in text and 'GB over the 80 GB' in text
    assert 'multiply to 7' in good('search', '--gpus', 7, '--global-batch', 4)


@pytest.mark.parametrize('args, message', [
    (['search', '--system', 'H20'], "unknown system 'H20'; did you mean 'H200'?"),
    (['search', '--model', 'gtp3'], "unknown model 'gtp3'; did you mean 'gpt3'?"),
    (['search', '--gpus', '0'], '--gpus=0 must be a whole number'),
    (['search', '--gpus', '2.5'], "--gpus='2.5' must be a whole number"),
    (['search', '--nvlink-size', '0'], 'nvlink_size=0 must be a whole number'),
    (['search', '--strategy', '3d'], "unknown strategy '3d'"),
    (['search', '--assumptions', 'corected'], "did you mean 'corrected'?"),
    (['search', '--top', '-1'], 'k=-1 must be a whole number'),
    (['search', '--global-batch', '-4'], 'global_batch=-4 must be a whole number'),
    (['search', '--model', 'missing.json'], 'missing.json: cannot be read'),
    (['search', '--output', '/no/such/folder/x.txt'], 'cannot be written'),
    (['explain', '--tp', '64'], 'heads=160 must be divisible by tp1=64'),
    (['explain', '--dp', '3'], 'global_batch=4096 must be divisible by dp=3'),
    (['explain', '--tp', '16', '--nvlink-tp', '16', '--nvlink-size', '8'], '16 GPUs placed in one NVLink domain, more than its nvlink_size=8'),
    (['explain', '--tp2', '2'], "tp2=2 must be 1 with strategy '1d'"),
])
def test_mistakes_are_one_line(args, message):
    error = bad(*args)
    assert message in error and error.count('\n') == 1


@pytest.mark.parametrize('text, message', [
    ('{"l": 2048', 'not valid JSON'), ('[1, 2]', 'must hold one JSON object'), ('{"l": 2048, "e": 64, "h": 4}', "lacks 'depth'"),
    ('{"l": -1, "e": 64, "h": 4, "depth": 2}', 'seq_len=-1'), ('{"l": 2.5, "e": 64, "h": 4, "depth": 2}', 'seq_len=2.5'),
    ('{"l": 128, "e": 64, "h": 5, "depth": 2}', 'embed_dim=64 must be divisible by heads=5'), ('{"l": 128, "e": 64, "h": 4, "dept": 2}', "did you mean 'depth'?"),
    ('{"l": NaN, "e": 64, "h": 4, "depth": 2}', 'seq_len=nan'), ('{"l": "many", "e": 64, "h": 4, "depth": 2}', "seq_len='many'"),
    ('[' * 100_000, 'not valid JSON'), (' ' * 2_000_000, 'more than the 1000000'), ('\x00\xff', 'not valid JSON'),
])
def test_broken_files(tmp_path, text, message):
    file = tmp_path / 'broken.json'
    file.write_text(text, encoding='latin-1')
    error = bad('search', '--model', file)
    assert message in error and error.count('\n') == 1


def test_a_usage_error_is_no_traceback():
    assert 'No such option' in bad('search', '--gpu', '4')
    assert 'Traceback' not in bad('serach')
