"""Fit the prices of single kernels that ship to tables of measured kernels, and write them.

`python tools/fit_kernels.py FOLDER`, with kernels_gemm.csv.gz, kernels_attention.csv.gz,
kernels_moe.csv.gz and kernels_other.csv.gz, takes a quarter of an hour. It writes
nbs/data/kernels.json, and the samples of the tables that travel with the package.
"""
import dataclasses
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from transformer_perf.inputs import write_whole
from transformer_perf.measured_kernels import (
    KERNEL_FITS, TABLES, price_of, published_kernels, rows_by_parameters, rows_by_pricing)
from transformer_perf.parameters import generations, measured_folder
from transformer_perf.systems import sheet_of

SOURCE = ('NVIDIA, ai-dynamo/aiconfigurator @ 095f58a51c (Apache-2.0), half of the rows of its '
          'tables with products of 1024 and more; FlashAttention: figures of Dao-AILab; cuDNN: '
          'NVIDIA, cudnn-frontend (measured_training.csv)')

FITTED = ('collective', 'moe_a2a', 'attention')   # kinds of the mixed table with enough rows

STARTS = {   # where the fits of a kind start, besides its defaults
    'products': ({'paired': .9, 'rate': .7, 'whole': .2, 'ramp': 30., 'after': 3e-4, 'onset': 3.},
                 {'host': 1e-4, 'whole': .9, 'drop': .3}),
    'attention': ({'after': 3e-4, 'onset': 3., 'drop': .3},),
    'experts': ({'away': .95, 'tuned': .4}, {'away': 1., 'touched': 0., 'cache': 3., 'whole': .2}),
    'domains': ({'third': 6e-5, 'first_share': .1}, {'second_share': .3, 'third': 2e-5})}

NOISE = {'experts': .1}                  # scale of a kind whose measurements scatter more
PULL = {'domains': .02}                  # of each parameter to its default

FOLDS = {'domains': 5, 'exchanges': 5}   # a few sizes only: a fifth is held out, five times

SAMPLE = 3   # percent of the shapes are in no fit; some of them travel with the package

SHOWN = {    # rows that pictures show
    'gemm': 'm == 2048 and k == 8192 and framework == "TRTLLM"',
    'attention': 'batch_size == 1 and num_heads == 64 and head_dim == 128 and '
                 'sys in ("h100_sxm", "b200_sxm")',
    'moe': 'hidden_size == 7168 and num_experts == 256 and kernel_source == "deepgemm" and '
           'sys == "b200_sxm"'}

EACH = {'gemm': 6, 'attention': 12, 'moe': 2}   # rows of each set that travel and are in no fit


def fit_shares(
    cls, price,          # one of KINDS; parameters -> s
    seconds, weights=1., # measured
    starts=({},),        # parameters that a fit starts from, besides the defaults
    pull=.004,           # of each parameter to its default
    scale=.05,           # relative error from which a measurement counts as wild
):  # an object of the class
    "Parameters fitted to measured times, within their bounds."
    fields = dataclasses.fields(cls)
    low = np.array([field.metadata['low'] for field in fields])
    high = np.array([field.metadata['high'] for field in fields])
    pull *= np.sqrt(max(len(seconds), 200))

    def in_cube(start):
        values = np.array([start.get(field.name, field.default) for field in fields], float)
        return (values - low) / (high - low)

    def residuals(place):
        values = low + place * (high - low)
        fit = SimpleNamespace(**{field.name: x for field, x in zip(fields, values)})
        off = np.log(price(fit)) - np.log(seconds)
        return np.append(weights * off, pull * (place - in_cube({})))

    found = [least_squares(residuals, np.clip(in_cube(start), .01, .99), bounds=(0, 1),
                           loss='soft_l1', f_scale=scale, diff_step=1e-3, x_scale=.2, max_nfev=60)
             for start in starts]
    best = min(found, key=lambda one: one.cost)
    return cls(*(float(f'{x:.4g}') for x in low + best.x * (high - low)))


def shape_of(to_price):  # whole numbers
    "A number for each shape, the same in every table."
    shape = pd.DataFrame({c: to_price.numbers[c] for c in sorted(to_price.numbers)}).astype(float)
    return pd.util.hash_pandas_object(shape, index=False).to_numpy()


def fit_rows(df, to_price, rows, name, seconds, weights):  # parameters
    "The parameters of one set."
    return fit_shares(
        KERNEL_FITS[to_price.kind], price_of(df, to_price, rows, name), seconds[rows],
        weights[rows], starts=({}, *STARTS.get(to_price.kind, ())),
        pull=PULL.get(to_price.kind, .004), scale=NOISE.get(to_price.kind, .05))


def error_of(df, to_price, rows, name, fit, seconds):  # array
    "Relative errors of one set."
    return price_of(df, to_price, rows, name)(fit) / seconds[rows] - 1


def measured_seconds(df):  # array
    "What was measured; figures in TFLOP/s are turned into seconds."
    found = df.time_us.to_numpy(float) * 1e-6
    if 'kind' not in df or 'tflops' not in df: return found
    flop = 4. * df.batch * df.seq_len**2 * df.heads * df.head_dim * np.where(df.causal, .5, 1.)
    flop = flop * np.where(df.op == 'fwd+bwd', 3.5, 1.)
    flop = np.where(df.kind.str.contains('gemm'), 2. * df.m * df.n * df.k, flop)
    return np.where(np.isnan(found), flop / df.tflops / 1e12, found)


def usable(to_price, seconds):  # where a row can be fitted
    "Rows with all numbers, a time and a model."
    empty = np.any([np.isnan(x) for x in to_price.numbers.values()], axis=0)
    return (to_price.refused == '') & np.isfinite(seconds) & ~empty


def pooled(gpu):  # short name of a GPU
    "The measured GPU of a generation, all of whose collectives are fitted as one."
    known = generations().get(sheet_of(gpu).architecture)
    return known.measured_gpu if known else gpu


def fit_table(df, to_price, seconds):  # yields (name, parameters, their errors on shapes not seen)
    "Every set of a table: fitted, and scored on the shapes that another fit did not see."
    weights = np.ones(len(df))
    if to_price.kind == 'domains':
        to_price = to_price._replace(keys=to_price.keys.assign(gpu=to_price.keys.gpu.map(pooled)))
        weights[to_price.numbers['message_bytes'] < 2**20] = .4
    shape, right = shape_of(to_price), usable(to_price, seconds)
    folds = FOLDS.get(to_price.kind, 2)
    part = shape // 100 % folds
    sample = (shape % 100 < SAMPLE) & (folds == 2)
    for name, rows in rows_by_parameters(to_price):
        rows = rows[right[rows]]
        if len(rows) < 8: continue
        errors = []
        for fold in range(folds if folds > 2 else 1):
            seen, new = rows[part[rows] != fold], rows[part[rows] == fold]
            fit = fit_rows(df, to_price, seen, name, seconds, weights)
            errors.append(error_of(df, to_price, new, name, fit, seconds))
        fit = fit_rows(df, to_price, rows[~sample[rows]], name, seconds, weights)
        yield '/'.join(name), fit, np.abs(np.concatenate(errors))


def read_table(folder, kind):  # DataFrame
    "One of the tables of measured kernels."
    if kind == 'training': return published_kernels(kind)
    df = pd.read_csv(Path(folder) / f'kernels_{kind}.csv.gz', low_memory=False)
    return df[df.kind.isin(FITTED)].reset_index(drop=True) if kind == 'other' else df


def fit_tables(folder):  # dict: what kernels.json holds
    "All sets of parameters, fitted to the tables of measured kernels."
    found = {'source': SOURCE, 'errors': {}} | {kind: {} for kind in KERNEL_FITS}
    for table in TABLES:
        df = read_table(folder, table)
        seconds = measured_seconds(df)
        for rows, to_price in rows_by_pricing(df, table):
            for name, fit, errors in fit_table(df.iloc[rows], to_price, seconds[rows]):
                found[to_price.kind][name] = list(dataclasses.astuple(fit))
                found['errors'][f'{to_price.kind}/{name}'] = [
                    len(errors), round(errors.mean(), 4), round(np.median(errors), 4)]
                print(f'{to_price.kind}/{name}: {len(errors)} rows not seen, mean error '
                      f'{100 * errors.mean():.1f} %', file=sys.stderr)
    return found


def save_fits(found, path):
    "Write sets of parameters, one a line."
    text = re.sub(r'\n {3,}', ' ', json.dumps(found, indent=1))
    write_whole(path, re.sub(r'\n +\]', ']', text).replace('[ ', '[') + '\n')


def sample_of(df, kind):  # DataFrame
    "What travels with the package: rows that no fit has seen, and those of the pictures."
    (_, to_price), = rows_by_pricing(df, kind)
    new = shape_of(to_price) % 100 < SAMPLE
    place = df[new].groupby([to_price.keys[c][new] for c in to_price.keys]).cumcount()
    some = df.index.isin(place[place < EACH[kind]].index)
    shown = df.index.isin(df.query(SHOWN[kind]).index)
    columns, _ = TABLES[kind]
    return df.assign(fitted=1 - new)[shown | some].filter([*columns, 'time_us', 'fitted'])


def save_sample(folder, kind):
    "Write what travels of one table, below the line that tells its source."
    path = measured_folder() / f'measured_{kind}.csv'
    source, _, _ = path.read_text().partition('\n')
    rows = sample_of(read_table(folder, kind), kind)
    write_whole(path, f'{source}\n{rows.to_csv(index=False)}')


def main():
    if len(sys.argv) != 2: sys.exit(f'usage: python {sys.argv[0]} FOLDER')
    folder, = sys.argv[1:]
    save_fits(fit_tables(folder), measured_folder() / 'kernels.json')
    for kind in EACH: save_sample(folder, kind)


if __name__ == '__main__': main()
