"Results: files in the paper's own layout, and tables that are read with care."
import io

import numpy as np
import pandas as pd
import pytest

from transformer_perf import search
from transformer_perf.results import npy_bytes, read_table
from transformer_perf.systems import as_system


def test_npy_layout(tmp_path):
    path, system = tmp_path / 'x.npy', as_system('B200', 64)
    table = search('gpt3_1T', [256, 1024], system, strategy='1d', assumptions='paper',
                   global_batch=4096)
    path.write_bytes(npy_bytes(table, 64, [256, 1024]))
    nvs, t_max, t_min, n_gpus, configs = np.load(path, allow_pickle=True)[0]
    assert (nvs, list(n_gpus)) == (64, [256, 1024])
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
