"""The numbers that the pages `play` and `run` draw and compute with, as docs/_static/play.js reads
them.

Everything is from the package's own functions, under the preset `corrected`; the map can also look
up what a search finds under `calibrated`. Nothing here needs Sphinx. `python docs/build.py` writes
it into the site.
"""
import dataclasses
import itertools
import json
from functools import cache

import numpy as np

from transformer_perf import Parallel, estimate, search
from transformer_perf.iteration import divisors
from transformer_perf.models import as_model
from transformer_perf.systems import as_system
from transformer_perf.timeline import TIMES, counted_and_priced

from drawings import MEANINGS

MODELS = ('gpt3', 'gpt3_1T', 'llama3.1_70B')
SYSTEMS = ('A100-80GB', 'H100-80GB', 'H200-141GB', 'B200-180GB', 'GB200-NVL72')
TENSOR, SIZES = (1, 2, 4, 8), (1, 2, 4)   # tp, and samples of a micro-batch
RECOMPUTE = ('none', 'selective', 'full')
MAPPED = tuple(itertools.product(MODELS, SYSTEMS))
BATCH, GPUS = 1024, (64, 512, 4096)       # of the map
STAGES, CHUNKS = (1, 2, 4, 8, 16, 32), (1, 2, 4)
ROOM = 1e6   # GB, for all that a map shows
HERO = dict(model='gpt3', system='H200-141GB', global_batch=32)   # the first page's picture
HERO_PARALLEL = Parallel(tp=8, pp=8, dp=2)


def system_figures(name):  # dict
    "What the formulas of rings and of the roofline need of a system."
    s = as_system(name)
    fast = s.link_among(s.nvlink_size)   # through switches: the same among fewer
    return {'nvlink_size': s.nvlink_size, 'in_domain': divisors(s.nvlink_size).tolist(),
            'fast': fast.bandwidth, 'fast_latency': fast.latency, 'slow': s.network.bandwidth,
            'slow_latency': s.network.latency, 'nics': s.nic_factor,
            'matrix': s.matrix_flops_fp16, 'hbm': s.hbm_bandwidth, 'capacity': s.hbm_capacity}


def alone(model, system='H200', size=1, **choices):  # Estimate
    "One micro-batch of so many samples through all layers, on the GPUs of tp."
    return estimate(model, Parallel(micro_batch=size, **choices), system, size, 'corrected')


def layer_figures(name):  # dict
    "What a GPU holds of one layer at each tp: GB of weights, and of activations of a sample."
    model = as_model(name)
    kept = lambda tp, again: alone(model, tp=tp, recompute=again).stats['activations_GB']
    layer = {tp: {'weights': alone(model, tp=tp).stats['weights_GB'] / model.depth,
                  'activations': {again: kept(tp, again) / model.depth for again in RECOMPUTE}}
             for tp in TENSOR}
    return {'depth': model.depth, 'tokens': model.seq_len, 'layer': layer,
            'TFLOP': model.flops_per_token('megatron') / 1e12}


def times_of(model, system, again):  # list of rows, of each tp those of each number of samples
    "Of one layer and micro-batch: s of compute, memory traffic, messages, both passes; GB sent."
    one = alone(model, system, recompute=again)
    tp, size = (x.ravel() for x in np.meshgrid(TENSOR, SIZES, indexing='ij'))
    table = vars(one.parallel) | {'tp': tp, 'nvlink_tp': tp, 'micro_batch': size}
    work, _, (cost,), _ = counted_and_priced(table, one.model, one.system, max(SIZES),
                                             one.assumptions)
    figures = (cost.compute, cost.memory, cost.comm, cost.forward, cost.backward,
               work.beside.boundary)
    columns = np.array([np.broadcast_to(x, len(table['tp'])) for x in figures])
    return [[float(f'{x:.12g}') for x in row] for row in columns.T]


def times_by_size(model, system):  # dict: tp, samples, recompute -> the times of a layer
    rows = {again: iter(times_of(model, system, again)) for again in RECOMPUTE}
    return {tp: {size: {again: next(own) for again, own in rows.items()} for size in SIZES}
            for tp in TENSOR}


def layer_times():  # dict: model, system, tp, samples, recompute -> the times of a layer
    return {model: {system: times_by_size(model, system) for system in SYSTEMS}
            for model in MODELS}


def candidates(model, system):  # DataFrame
    "All candidates of the maps of a model and system as a search prices them, whether they fit."
    s = as_system(system)
    found = search(
        model, [*GPUS], dataclasses.replace(s, hbm_capacity=ROOM), BATCH, '1d', k=10_000,
        fixed={'tp': [*TENSOR], 'pp': [*STAGES], 'micro_batch': [*SIZES]},
        zero_stages=[1], recompute=[*RECOMPUTE], virtual_stages=[*CHUNKS])
    return found.assign(fits=found.memory_bound_GB <= s.hbm_capacity)


def cells(found):  # DataFrame
    "Of each cell of each map the fastest that fits; where none does, the smallest."
    cell = ['n_gpus', 'recompute', 'virtual_stages', 'tp', 'pp']
    order = found.iteration_s.where(found.fits, found.memory_bound_GB)
    return (found.assign(order=order).sort_values(['fits', 'order'], ascending=[False, True])
            .drop_duplicates(cell).sort_values(cell))


def short(x, digits=3):  # a number that takes little room in a file
    x = float(f'{x:.{digits}g}')
    return int(x) if x.is_integer() else x


def maps_of(model, system):  # dict: GPUs, recompute, chunks -> a row for each cell
    "tp, pp, samples of a micro-batch, GB that must fit, s of an iteration, and of its parts."
    found = {}
    for row in cells(candidates(model, system)).itertuples():
        of_chunks = found.setdefault(row.n_gpus, {}).setdefault(row.recompute, {})
        figures = [short(row.memory_bound_GB, 4), short(row.iteration_s, 4),
                   *(short(getattr(row, name)) for name in TIMES)]
        of_chunks.setdefault(row.virtual_stages, []).append(
            [row.tp, row.pp, row.micro_batch, *figures])
    return found


@cache
def hero():  # dict
    "One configuration of a pipeline, and the best of all."
    one = estimate(parallel=HERO_PARALLEL, **HERO, assumptions='corrected')
    n_gpus, first = HERO_PARALLEL.tp * HERO_PARALLEL.pp * HERO_PARALLEL.dp, one.timeline
    took = (first.end_s - first.start_s).groupby(first.kind).first()
    ways = search(HERO['model'], n_gpus, HERO['system'], HERO['global_batch'], k=10_000,
                  assumptions='corrected')
    return {'p': HERO_PARALLEL.pp, 'N': HERO['global_batch'] // HERO_PARALLEL.dp, 'F': took['F'],
            'B': took['B'], 'n_gpus': n_gpus, 'iteration_s': one.stats['iteration_s'],
            'idle': one.stats['bubble_s'] / one.stats['iteration_s'],
            'best_s': float(ways.iteration_s.iloc[0]), 'ways': len(ways)}


def data():  # dict
    return {'systems': {name: system_figures(name) for name in SYSTEMS},
            'models': {name: layer_figures(name) for name in MODELS}, 'times': layer_times(),
            'colors': MEANINGS, 'tp': TENSOR, 'sizes': SIZES, 'recompute': RECOMPUTE,
            'batch': BATCH, 'n_gpus': GPUS, 'stages': STAGES, 'chunks': CHUNKS, 'hero': hero()}


@cache
def script():
    "The data as a script: a page that is opened as a file may load scripts, but not data."
    return f'window.PLAY = {json.dumps(data(), separators=(",", ":"))};\n'


@cache
def calibrated_script(shown=MAPPED):
    "The maps under `calibrated`, of models on systems, which a page loads after that."
    maps = {model: {} for model in MODELS}
    for model, system in shown: maps[model][system] = maps_of(model, system)
    return f'PLAY.maps = {json.dumps(maps, separators=(",", ":"))};\n'
