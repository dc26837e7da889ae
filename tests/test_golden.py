"The `paper` assumptions reproduce the published figures to 1e-9."
import dataclasses
import inspect
import itertools
import json
import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from thorough import first_of, thorough
from transformer_perf import Assumptions, Parallel, estimate, modules
from transformer_perf.estimates import collective_time
from transformer_perf.execution import (
    execute_1d, execute_2d, execute_seqp, paper_statistics, totals)
from transformer_perf.modules import model_figures
from transformer_perf.sweeps import PAPER_MODELS, paper_systems, sweep
from transformer_perf.systems import as_system
from transformer_perf.timeline import GROUPS, PLACES

GOLDEN = Path(os.environ.get('TRANSFORMER_PERF_GOLDEN', Path(__file__).parent / 'golden'))
TOLERANCE = 1e-9
EXECUTE = {'1d': execute_1d, '2d': execute_2d, '2d-seqp': execute_seqp}


def table(name): return pd.read_csv(GOLDEN / f'{name}.csv')


def same(ours, golden, what):
    close = math.isclose(ours, golden, rel_tol=TOLERANCE, abs_tol=1e-15)
    assert close, f'{what}: {ours} is not {golden}'


def runs(name, *columns):
    "The rows of a table, a test for each of its runs."
    groups = table(name).groupby(list(columns), sort=False)
    return [pytest.param(*key, own, id='-'.join(map(str, key))) for key, own in groups]


def system_of(row, **fields):
    "The system of a golden row."
    return dataclasses.replace(as_system(row.gpu, row.nvlink_size), **fields)


# searches

def placement(stats): return tuple((k, stats[k]) for k in sorted(stats) if k.startswith('nv_'))


def check_candidates(found, rows):
    """Every golden row is among the candidates found, with all its figures.

    And the throughput at its rank is its own."""
    named = {(*sorted(config.items()), *placement(stats)): stats for _, _, config, stats in found}
    for row in rows:
        golden = {key: value for key, value in row.items() if not pd.isna(value)}
        throughput, _, config, stats = found[int(golden['rank'])]
        same(throughput, golden['throughput'], 'throughput')
        whole = {key: int(golden[key]) for key in (*config, *dict(placement(stats)))}
        key = (*sorted((name, whole[name]) for name in config), *placement(whole))
        assert key in named, f'{key} is not among the best {len(found)}'
        for name, value in named[key].items(): same(value, golden[name], name)


def a_third_always(cases):
    "Of the systems of each strategy and model every GPU once, and every size of a domain once."
    order = [sorted({case.values[i] for case in cases}) for i in range(4)]
    at = lambda case: sum(known.index(x) for known, x in zip(order, case.values))
    always = [case for case in cases if at(case) % 3 == 0]
    return always + thorough(*(case for case in cases if at(case) % 3))


@pytest.mark.parametrize('strategy, model, gpu, nvlink_size, own', a_third_always(runs(
    'published', 'strategy', 'model', 'gpu', 'nvlink_size')))
def test_published_searches(strategy, model, gpu, nvlink_size, own):
    counts = [2**i for i in range(2, 15)]
    lists = EXECUTE[strategy](model, counts, 4096, as_system(gpu, nvlink_size))
    found = dict(zip(counts, lists, strict=True))
    feasible = own[own.feasible]
    assert [n for n in counts if found[n]] == sorted(set(feasible.n_gpus.astype(int)))
    rows = sorted(feasible.to_dict('records'), key=lambda row: row['n_gpus'])
    for n, of_count in itertools.groupby(rows, key=lambda row: row['n_gpus']):
        check_candidates(found[int(n)], of_count)


@pytest.mark.thorough
@pytest.mark.parametrize('slip, others', [   # those that the flag says nothing about
    ('allreduce_doubled', ['1d', '2d-seqp']), ('norm_shards_features', ['1d', '2d-seqp']),
    ('bias_rows_sharded', ['2d', '2d-seqp']), ('gather_backward', ['2d'])])
def test_what_a_slip_does_not_concern_stays(slip, others):
    "On 512 GPUs the best of other strategies: their layouts, placements and times."
    presets = Assumptions.paper(), dataclasses.replace(Assumptions.paper(), **{slip: True})
    old, new = (sweep(PAPER_MODELS, paper_systems(), 512, others, assumptions=a, global_batch=4096)
                for a in presets)
    laid_out = ['model', 'system', 'strategy', *GROUPS, 'micro_batch', 'panels', *PLACES]
    assert len(new) > 15 and new[laid_out].equals(old[laid_out])
    np.testing.assert_allclose(new.iteration_s, old.iteration_s, rtol=1e-9)


@pytest.mark.parametrize('tag, strategy, gpu, nvlink_size, n_gpus, batch, own', runs(
    'searches', 'tag', 'strategy', 'gpu', 'nvlink_size', 'n_gpus', 'global_batch_size'))
def test_further_searches(tag, strategy, gpu, nvlink_size, n_gpus, batch, own):
    model = {key: int(own[key].iloc[0]) for key in ('l', 'e', 'f', 'h', 'depth')}
    found, = EXECUTE[strategy](model, [n_gpus], batch, dict(vars(as_system(gpu, nvlink_size))))
    check_candidates(found, own.to_dict('records'))


# whole configurations

TOTALS = [pytest.param(row, id=f'row {row.Index}') for row in table('totals').itertuples()]


@pytest.mark.parametrize('row', TOTALS)
def test_totals(row):
    system = system_of(row, summa_nb=row.summa_nb)
    places = dict(nvlink_tp=row.nv_tp1, nvlink_cp=row.nv_tp2, nvlink_pp=row.nv_pp,
                  nvlink_dp=row.nv_dp)
    parallel = Parallel(row.strategy, tp=row.tp1, cp=row.tp2, pp=row.pp, dp=row.dp,
                        micro_batch=row.mbs, zero_stage=1, **places)
    model = dict(l=row.l, e=row.e, h=row.h, f=row.f, depth=row.depth)
    assumptions = Assumptions(dp_overlap=row.dp_overlap)
    found = estimate(model, parallel, system, row.global_batch_size, assumptions)
    for key, value in paper_statistics(found.stats).items(): same(value, getattr(row, key), key)


FAMILIES = {'1d': ('mlp_1d', 'sa_1d'), '2d-seqp': ('mlp_seqp', 'sa_seqp'),
            '2d': ('mlp_2d', 'sa_2d_seqp')}   # strategy -> functions of its modules


def groups_of(one, m1, m2, t1, t2):
    "Groups and their placement, as the functions of the modules take them."
    if one: return {'parallelism': {'m': m1}, 'topology': {'t': t1}}
    return {'parallelism': {'m1': m1, 'm2': m2}, 'topology': {'t1': t1, 't2': t2}}


@pytest.mark.parametrize('row', first_of(
    28, [row for first in range(3) for row in TOTALS[first::3]]))
def test_totals_from_tables(row):
    "The same, put together by hand from the modules' tables, as users of the paper's code do."
    system = system_of(row, summa_nb=row.summa_nb)
    mlp, attention = (getattr(modules, name) for name in FAMILIES[row.strategy])
    groups = groups_of(row.strategy == '1d', row.tp1, row.tp2, row.nv_tp1, row.nv_tp2)
    mlp = mlp(row.mbs, row.l, row.e, row.f, system=system, **groups)
    attention = attention(row.mbs, row.l, row.e, row.h, flash_attention=True, system=system,
                          **groups)
    copies, placed = (row.tp2, row.nv_tp2) if row.strategy == '2d-seqp' else (1, 1)
    micro_batches = row.global_batch_size // row.dp // row.mbs
    dp = modules.dataparallel([mlp, attention], row.depth // row.pp, row.dp * copies,
                              row.nv_dp * placed, row.dp_overlap, system)
    sent = mlp.activation_buffer[mlp.name == 'ln1'].item()
    pp = modules.pipelineparallel([mlp, attention], micro_batches, sent, row.pp, row.nv_pp, False,
                                  system)
    _, stats = totals(mlp, attention, dp, pp, row.depth, row.pp, row.dp, micro_batches, m2=copies)
    for key, value in stats.items(): same(value, getattr(row, key), key)


# operations

SETTING = ['gpu', 'nvlink_size', 'summa_nb', 'b', 'm1', 'm2', 't1', 't2', 'l', 'e', 'f', 'h']


def module_table(module, c):
    "The table of one module, named as in layers.csv, in a setting."
    name = module.replace('_noflash', '').replace('_recompute', '')
    function, options = getattr(modules, name), {}
    if 'flash_attention' in inspect.signature(function).parameters:
        options['flash_attention'] = module == name
    if module.endswith('recompute'): options['attention_recompute'] = True
    width = c.f if name.startswith('mlp') else c.h
    groups = groups_of('1d' in name, c.m1, c.m2, c.t1, c.t2)
    return function(c.b, c.l, c.e, width, system=system_of(c, summa_nb=c.summa_nb), **options,
                    **groups)


def check_cell(ours, golden, what):
    "A cell of an operation's row: words, a number, or a list of either (in JSON)."
    is_json = isinstance(golden, str) and golden[0] in '[0123456789'
    golden = json.loads(golden) if is_json else golden
    in_words = isinstance(ours, str) or (isinstance(ours, list) and isinstance(ours[0], str))
    if in_words:
        assert ours == golden, what
        return
    for x, y in zip(np.atleast_1d(ours), np.atleast_1d(golden), strict=True):
        same(float(x), float(y), what)


@pytest.mark.parametrize('module, own', runs('layers', 'module'))
def test_layers(module, own):
    columns = own.columns[own.columns.get_loc('layer') + 1:]
    for _, rows in own.groupby(SETTING, sort=False):
        setting = next(rows[SETTING].itertuples())
        found = module_table(module, setting)
        assert list(found.columns) == ['name', *columns]
        assert list(found.name) == list(rows.layer)
        for column in columns:
            for ours, golden in zip(found[column], rows[column], strict=True):
                check_cell(ours, golden, f'{setting} {column}')


def test_collectives():
    setting = ['gpu', 'nvlink_size', 'nic_factor', 'kind']
    for (gpu, nvlink_size, nic_factor, kind), own in table('comm').groupby(setting):
        system = dataclasses.replace(as_system(gpu, nvlink_size), nic_factor=nic_factor)
        found = collective_time(kind, own.volume_gb.values, own.n_gpus.values, own.topology.values,
                                system)
        np.testing.assert_allclose(found, own.t_comm.values, rtol=TOLERANCE, atol=1e-18)


def test_model_figures():
    found = model_figures('gpt3_1T', 'H200')
    same(found['parameters_B'], 1006.665728, 'parameters')
    same(found['PFLOP_per_sample'], 12.569785006994787, 'FLOP')
    same(found['mlp_to_attention'], 1.9074197861849107, 'MLP to attention')
