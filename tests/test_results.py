"Results: the paper's own layout, read without running or trusting anything in it."
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from thorough import examples
from transformer_perf import search
from transformer_perf.results import npy_bytes, read_npy, read_table
from transformer_perf.systems import as_system


def test_npy_layout(tmp_path):
    path, system = tmp_path / 'x.npy', as_system('B200', 64)
    table = search('gpt3_1T', [256, 1024], system, strategy='1d', assumptions='paper',
                   global_batch=4096)
    path.write_bytes(npy_bytes(table, 64, [256, 1024]))
    nvs, t_max, t_min, n_gpus, configs = np.load(path, allow_pickle=True)[0]
    ours = read_npy(path)
    assert (nvs, t_max, t_min, list(n_gpus)) == (64, *ours[1:3], [256, 1024]) and configs == ours[4]
    for high, low, found in zip(t_max, t_min, configs):
        throughputs = [candidate[0] for candidate in found]
        assert throughputs == sorted(throughputs, reverse=True)
        assert (throughputs[0], throughputs[-1]) == (high, low)
        assert set(found[0][2]) == {'dp', 'tp', 'pp', 'mbs'} and len(found) == 10


def test_npy_of_what_never_fits():
    nothing = pd.DataFrame(search('vit_era5', [4, 8], 'A100',
                                  global_batch=4096, assumptions='corrected'))
    file = io.BytesIO(npy_bytes(nothing, 4, [4, 8]))
    _, t_max, t_min, n_gpus, configs = np.load(file, allow_pickle=True)[0]
    assert (t_max, t_min, list(n_gpus), configs) == ([], [], [4, 8], [[], []])


class Evil:
    def __reduce__(self): return os.system, ('touch evil-was-run',)


def test_reader_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content in (Evil(), [Evil()], {'a': np.array([Evil()], dtype=object)}):
        array = np.empty((1, 5), dtype=object)
        array[0, 2] = content
        np.save('evil.npy', array, allow_pickle=True)
        with pytest.raises(ValueError, match='not a results file'): read_npy('evil.npy')
    assert not Path('evil-was-run').exists()


GOOD = npy_bytes(pd.DataFrame(search('gpt3_1T', 1024, 'B200', k=2,
                                     global_batch=4096, assumptions='corrected')), 4, [1024])


@examples(200)
@given(st.data())
def test_reader_survives_damage(data):
    at = data.draw(st.integers(0, len(GOOD) - 1))
    cut, noise = data.draw(st.booleans()), st.binary(min_size=1, max_size=8)
    damaged = GOOD[:at] if cut else GOOD[:at] + data.draw(noise) + GOOD[at + 1:]
    path = Path(os.environ.get('TMPDIR', '/tmp')) / f'damaged-{os.getpid()}.npy'
    path.write_bytes(damaged)
    try: assert len(read_npy(path)) == 5
    except ValueError as error: assert '\n' not in str(error)
    finally: path.unlink()


def npy_file(*steps):
    "A results file whose pickle is made of these bytes."
    buffer = io.BytesIO()
    np.save(buffer, np.empty((1, 5), object), allow_pickle=True)
    header = buffer.getvalue()[:buffer.getvalue().index(b'\n') + 1]
    return header + b'\x80\x04' + b''.join(steps) + b'.'


def content(value):
    array = np.empty((1, 5), object)
    array[0, 0] = value
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def shared(depth):
    inner = [0]
    for _ in range(depth): inner = [inner] * 10
    return inner


HOSTILE = {
    'shared nested lists': lambda: content(shared(9)),
    'declared bytes': lambda: npy_file(pickle.BYTEARRAY8, (6 * 10**9).to_bytes(8, 'little')),
    'declared text': lambda: npy_file(pickle.BINUNICODE8, (6 * 10**9).to_bytes(8, 'little')),
    'many steps': lambda: npy_file(pickle.NONE * 7_000_000),
    'deep': lambda: npy_file(pickle.EMPTY_TUPLE + pickle.TUPLE1 * 200_000),
    'colliding keys': lambda: content({k * (2**61 - 1): 0 for k in range(5000)}),
    'a large number': lambda: npy_file(b'I' + b'7' * 4_000_000 + b'\n'),
    'too long': lambda: content(b'x' * 9_000_000)}
READ = """
import sys, time
from transformer_perf.results import read_npy
from transformer_perf.sweeps import peak_GB
before = peak_GB()
for path in sys.argv[1:]:
    start = time.process_time()
    try: read_npy(path)
    except ValueError as error: print(error)
    print(peak_GB() - before, time.process_time() - start)
"""


def test_hostile_files_cost_little(tmp_path):
    "Together at most 300 MB, each at most 2 s of processor time."
    paths = {name: tmp_path / f'{name}.npy' for name in HOSTILE}
    for name, path in paths.items(): path.write_bytes(HOSTILE[name]())
    limited = ['sh', '-c', 'ulimit -t 20; exec "$@"', 'sh']   # s of a processor
    done = subprocess.run([*limited, sys.executable, '-c', READ, *paths.values()],
                          capture_output=True, text=True, timeout=60, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * len(paths), done.stdout
    for name, message, figures in zip(paths, lines[::2], lines[1::2]):
        assert len(message) < 300 and str(paths[name])[:20] in message, name
        more_GB, seconds = map(float, figures.split())
        assert more_GB < 0.3 and seconds < 2, name


def test_an_empty_array_of_any_shape_is_empty(tmp_path):
    path = tmp_path / 'x.npy'
    path.write_bytes(content(np.empty((10**9, 0), object)))
    assert read_npy(path)[0].shape == (0,)


def test_a_table_that_unpacks_to_too_much(tmp_path):
    parquet = pytest.importorskip('pyarrow.parquet')
    import pyarrow
    path = tmp_path / 'x.parquet'
    parquet.write_table(pyarrow.table({'x': np.zeros(70_000_000, 'i1')}), path)
    assert path.stat().st_size < 10**6
    with pytest.raises(ValueError, match=r'70000000 rows of 1 columns in \d+ bytes are'):
        read_table(path)


def test_tables_are_local_files(tmp_path):
    for path in ('https://example.org/x.csv', 's3://x/y.parquet', tmp_path / 'x.csv', tmp_path):
        with pytest.raises(ValueError, match='cannot be read|is not an ordinary file'):
            read_table(path)
