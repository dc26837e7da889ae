"""The numbers that the page `play` draws and computes with, as docs/_static/play.js reads them.

Everything is from the package's own functions, under the preset `corrected`; nothing here needs
Sphinx. `python docs/build.py` writes it into the site.
"""
import json
from dataclasses import replace
from functools import cache

from transformer_perf import Parallel, estimate, search
from transformer_perf.timeline import TIMES
from transformer_perf.iteration import divisors
from transformer_perf.models import as_model
from transformer_perf.systems import as_system

MODELS = ('gpt3', 'gpt3_1T', 'llama3.1_70B')
SYSTEMS = ('A100-80GB', 'H100-80GB', 'H200-141GB', 'B200-180GB', 'GB200-NVL72')
MAPPED = ('A100-80GB', 'H200-141GB', 'GB200-NVL72')   # of the maps
GPUS, BATCH = (64, 512, 4096), 1024                   # of the maps
ENOUGH = 1e6                                          # GB: all configurations fit, and are priced
CELL = ('tp', 'pp', 'dp', 'micro_batch', 'nvlink_tp', 'nvlink_pp', 'nvlink_dp', 'iteration_s',
        'memory_GB', *TIMES[:-1])                     # a cell of a map: these columns of a search
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


def layer_figures(name):  # dict
    "What a GPU holds of one layer at each tp: GB of weights, and of activations of a micro-batch."
    model, found = as_model(name), {}
    for tp in (1, 2, 4, 8):
        one = estimate(model, Parallel(tp=tp), 'H200', 1, 'corrected').stats
        found[tp] = [one[part] / model.depth for part in ('weights_GB', 'activations_GB')]
    return {'depth': model.depth, 'layer': found}


def cell_of(rows, capacity):
    "Of the ways to run one tp and pp, the fastest that fits, or the smallest."
    fitting = rows[rows.memory_GB <= capacity]
    best = rows.loc[rows.memory_GB.idxmin()] if fitting.empty else fitting.iloc[0]
    return [float(f'{best[column]:.6g}') for column in CELL]


def map_of(model, system, n_gpus):  # list of cells
    "Every tp x pp x dp of a job, each at its best micro-batch and placement."
    s = as_system(system)
    found = search(model, n_gpus, replace(s, hbm_capacity=ENOUGH), global_batch=BATCH, k=10_000,
                   fixed={'micro_batch': [1, 2, 4]}, assumptions='corrected')
    return [cell_of(rows, s.hbm_capacity) for _, rows in found.groupby(['tp', 'pp'])]


def maps():  # dict: model, system, GPUs -> cells
    return {model: {system: {n: map_of(model, system, n) for n in GPUS} for system in MAPPED}
            for model in MODELS}


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
            'models': {name: layer_figures(name) for name in MODELS},
            'batch': BATCH, 'cell': CELL, 'maps': maps(), 'hero': hero()}


@cache
def script():
    "The data as a script: a page that is opened as a file may load scripts, but not data."
    return f'window.PLAY = {json.dumps(data(), separators=(",", ":"))};\n'
