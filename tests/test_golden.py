"The `paper` assumptions reproduce the published figures to 1e-9."
import dataclasses
import inspect
import json
import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from transformer_perf import Assumptions, Parallel, estimate, modules
from transformer_perf.estimates import collective_time
from transformer_perf.execution import execute_1d, execute_2d, execute_seqp, paper_statistics
from transformer_perf.modules import model_figures
from transformer_perf.systems import as_system

GOLDEN = Path(os.environ.get('TRANSFORMER_PERF_GOLDEN', Path(__file__).parent / 'golden'))
TOLERANCE = 1e-9
EXECUTE = {'1d': execute_1d, '2d': execute_2d, '2d-seqp': execute_seqp}


def table(name): return pd.read_csv(GOLDEN / f'{name}.csv')


def same(ours, golden, what):
    assert math.isclose(ours, golden, rel_tol=TOLERANCE, abs_tol=1e-15), f'{what}: {ours} is not {golden}'


def check_candidates(found, rows):
    "Every golden row is among the candidates found, with all its figures, and the throughput at its rank is its own."
    named = {}
    for throughput, memory, config, stats in found:
        named[tuple(sorted(config.items())) + tuple((key, stats[key]) for key in sorted(stats) if key.startswith('nv_'))] = config, stats
    for row in rows:
        golden = {key: value for key, value in row.items() if value == value}
        throughput, memory, config, stats = found[int(golden['rank'])]
        same(throughput, golden['throughput'], 'throughput')
        key = tuple(sorted((key, int(golden[key])) for key in config)) + tuple((key, int(golden[key])) for key in sorted(stats) if key.startswith('nv_'))
        assert key in named, f'{key} is not among the best {len(found)}'
        for name, value in named[key][1].items(): same(value, golden[name], name)


def runs(name, *columns):
    t = table(name)
    return [pytest.param(*(key if isinstance(key, tuple) else (key,)), own, id='-'.join(map(str, key))) for key, own in t.groupby(list(columns), sort=False)]


@pytest.mark.parametrize('strategy, model, gpu, nvlink_size, own', runs('published', 'strategy', 'model', 'gpu', 'nvlink_size'))
def test_published_searches(strategy, model, gpu, nvlink_size, own):
    counts = [2**i for i in range(2, 15)]
    found = dict(zip(counts, EXECUTE[strategy](model, counts, 4096, as_system(gpu, nvlink_size))))
    feasible = own[own.feasible].astype({'n_gpus': int}) if own.feasible.any() else own[own.feasible]
    assert [n for n in counts if found[n]] == sorted(set(feasible.n_gpus))
    for n, rows in feasible.groupby('n_gpus'): check_candidates(found[n], rows.to_dict('records'))


@pytest.mark.parametrize('tag, strategy, gpu, nvlink_size, n_gpus, batch, own', runs('searches', 'tag', 'strategy', 'gpu', 'nvlink_size', 'n_gpus', 'global_batch_size'))
def test_further_searches(tag, strategy, gpu, nvlink_size, n_gpus, batch, own):
    model = {key: int(own[key].iloc[0]) for key in ('l', 'e', 'f', 'h', 'depth')}
    found, = EXECUTE[strategy](model, [n_gpus], batch, dict(vars(as_system(gpu, nvlink_size))))
    check_candidates(found, own.to_dict('records'))


def test_totals():
    for row in table('totals').itertuples():
        system = dataclasses.replace(as_system(row.gpu, row.nvlink_size), summa_nb=row.summa_nb)
        parallel = Parallel(row.strategy, row.tp1, row.tp2, row.pp, row.dp, row.mbs, None, 1, row.nv_tp1, row.nv_tp2, row.nv_pp, row.nv_dp)
        model = dict(l=row.l, e=row.e, h=row.h, f=row.f, depth=row.depth)
        stats = paper_statistics(estimate(model, parallel, system, row.global_batch_size, Assumptions(dp_overlap=row.dp_overlap)).stats)
        for key, value in stats.items(): same(value, getattr(row, key), key)


def test_totals_from_tables():
    "The same, put together by hand from the tables of the modules, as users of the paper's code do."
    families = {'1d': ('mlp_1d', 'sa_1d'), '2d-seqp': ('mlp_seqp', 'sa_seqp'), '2d': ('mlp_2d', 'sa_2d_seqp')}
    for row in table('totals').itertuples():
        system = dataclasses.replace(as_system(row.gpu, row.nvlink_size), summa_nb=row.summa_nb)
        one = row.strategy == '1d'
        groups = dict(parallelism={'m': row.tp1} if one else {'m1': row.tp1, 'm2': row.tp2}, topology={'t': row.nv_tp1} if one else {'t1': row.nv_tp1, 't2': row.nv_tp2})
        mlp, attention = (getattr(modules, name) for name in families[row.strategy])
        mlp = mlp(row.mbs, row.l, row.e, row.f, system=system, **groups)
        attention = attention(row.mbs, row.l, row.e, row.h, flash_attention=True, system=system, **groups)
        copies, placed = (row.tp2, row.nv_tp2) if row.strategy == '2d-seqp' else (1, 1)
        micro_batches = row.global_batch_size // row.dp // row.mbs
        dp = modules.dataparallel([mlp, attention], row.depth // row.pp, row.dp * copies, row.nv_dp * placed, row.dp_overlap, system)
        pp = modules.pipelineparallel([mlp, attention], micro_batches, mlp.activation_buffer[mlp.name == 'ln1'].item(), row.pp, row.nv_pp, False, system)
        from transformer_perf.execution import totals
        (t, mem), stats = totals(mlp, attention, dp, pp, row.depth, row.pp, row.dp, micro_batches, m2=copies)
        for key, value in stats.items(): same(value, getattr(row, key), key)


@pytest.mark.parametrize('module, own', runs('layers', 'module'))
def test_layers(module, own):
    name = module.replace('_noflash', '').replace('_recompute', '')
    function, one = getattr(modules, name), '1d' in name
    keys = ['gpu', 'nvlink_size', 'summa_nb', 'b', 'm1', 'm2', 't1', 't2', 'l', 'e', 'f', 'h']
    for at, rows in own.groupby(keys, sort=False):
        c = dict(zip(keys, at))
        system = dataclasses.replace(as_system(c['gpu'], c['nvlink_size']), summa_nb=c['summa_nb'])
        options = {}
        if 'flash_attention' in inspect.signature(function).parameters: options['flash_attention'] = module == name
        if module.endswith('recompute'): options['attention_recompute'] = True
        found = function(c['b'], c['l'], c['e'], c['f'] if name.startswith('mlp') else c['h'], system=system, **options,
                         parallelism={'m': c['m1']} if one else {'m1': c['m1'], 'm2': c['m2']}, topology={'t': c['t1']} if one else {'t1': c['t1'], 't2': c['t2']})
        assert list(found.columns) == ['name', *own.columns[own.columns.get_loc('layer') + 1:]]
        assert list(found.name) == list(rows.layer)
        for column in found.columns[1:]:
            for ours, golden in zip(found[column], rows[column], strict=True):
                golden = json.loads(golden) if isinstance(golden, str) and golden[0] in '[0123456789' else golden
                if isinstance(ours, str) or (isinstance(ours, list) and isinstance(ours[0], str)): assert ours == golden
                else:
                    for x, y in zip(np.atleast_1d(ours), np.atleast_1d(golden), strict=True): same(float(x), float(y), f'{at} {column}')


def test_collectives():
    for (gpu, nvlink_size, nic_factor, kind), own in table('comm').groupby(['gpu', 'nvlink_size', 'nic_factor', 'kind']):
        system = dataclasses.replace(as_system(gpu, nvlink_size), nic_factor=nic_factor)
        np.testing.assert_allclose(collective_time(kind, own.volume_gb.values, own.n_gpus.values, own.topology.values, system), own.t_comm.values, rtol=TOLERANCE, atol=1e-18)


def test_model_figures():
    found = model_figures('gpt3_1T', 'H200')
    same(found['parameters_B'], 1006.665728, 'parameters')
    same(found['PFLOP_per_sample'], 12.569785006994787, 'FLOP')
    same(found['mlp_to_attention'], 1.9074197861849107, 'MLP to attention')
