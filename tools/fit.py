"""Fit the parameters that ship to published runs, with all folds, and write them.

`python tools/fit.py RUNS.csv nbs/data/calibrated.json [MORE.csv]`; nothing is fitted to MORE, runs
of other software and by other hands: with them the intervals are judged. Tables of progress go to
standard error.
"""
import dataclasses
import hashlib
import json
import sys
from typing import NamedTuple

import numpy as np
import pandas as pd

from transformer_perf.inputs import as_numbers, read_json, write_whole
from transformer_perf.estimates import Assumptions
from transformer_perf.parameters import (
    KINDS_OF_RUN, Calibration, as_flat, changed, generations, limits, read_calibration, value_of)
from transformer_perf.iteration import kind_of_run
from transformer_perf.software import known_software
from transformer_perf.validation.runs import (
    assumptions_for, batches_of, clean, column_of, measured_column, sheet_of_run, stack_of, texts)
from transformer_perf.validation import (
    of_values, picked, predict, read_runs, recipe_score, table_of, with_sets)
from transformer_perf.validation.predictions import (
    ERRORS_OF_OTHERS, TOO_LARGE, but_tests, features_of, never_seen, source_of)
from transformer_perf.validation.calibration import (
    PROTOCOL, CalibrationResult, Entry, calibrate_network, entries_of, evidence_of, feasible,
    layout_understood, least_squares_within, published_collectives, residuals_of, seen_by_stack,
    seen_in, sets_with, table_of_fit)

from recipes import recipes


FREE = ('clock@Ampere', 'clock@Hopper', 'clock@Blackwell', 'host_layer', 'host_wrapped',
        'host_experts', 'host_tp', 'host_micro_batch', 'ep_exposed', 'dp_exposed',
        'unit_exposed')   # of all alike

PRIOR = {   # what is likely before any run is seen, and how far it may be off: 70 launches of 11 us
    'host_layer': (.8e-3, 2e-4), 'host_wrapped': (.5e-3, 3e-4), 'host_micro_batch': (1e-3, 5e-4),
    'ep_exposed': (.25, .2), 'product_share': (.9, .1),
    'dp_exposed': (.25, .2)}   # NCCL takes up to 32 multiprocessors of 132 while it sends

FREE_OF_STACK = {   # how far a stack may be
    'product_share': .025, 'host_layer': 3e-4, 'host_experts': 1e-3}

FREE_OF_SHARED = {'unit_exposed': .1}   # of a stack that shares out weights, more than others

SHARES = 'torchtitan', 'llm-foundry'

LEAST_RUNS = 4     # of a stack with values of its own


def kinds_of_runs(df):  # Series of str
    "With experts; or dense, with or without much waiting for the host by our count."
    experts = as_numbers(df['experts']).notna() if 'experts' in df else False
    kinds = kind_of_run(experts, df.predicted_other_s, df.predicted_iteration_s)
    return pd.Series(kinds, df.index)


class Tangent(NamedTuple):
    "How the logarithm of predicted over measured depends on parameters, near some values."
    entries: list           # of Entry
    values: np.ndarray
    logs: np.ndarray        # of each run, in the order of the runs
    slopes: np.ndarray      # (runs, parameters)


def tangent_of(residuals, order, entries, values, owner):  # Tangent
    "Slopes by differences; entries of one name, which share no run, are moved together."
    base, slopes = residuals(values), np.zeros((len(order), len(entries)))
    for name in dict.fromkeys(e.name for e in entries):
        which = [i for i, e in enumerate(entries) if e.name == name]
        step = np.array([.02 * (e.high - e.low) * (i in which) for i, e in enumerate(entries)])
        step = np.where(values + step > [e.high for e in entries], -step, step)
        change = residuals(values + step) - base
        for i in which:
            slopes[:, i] = np.where(np.isin(owner, entries[i].sets), change / step[i], 0)
    back = np.argsort(order)
    return Tangent(entries, values, base[back], slopes[back])


def settled_at(t: Tangent, first, weights, pull=None):  # (values, standard errors)
    "The values at which a tangent fits best, within their bounds; `pull`: how far from the first."
    low, high = (np.array([getattr(e, side) for e in t.entries]) for side in ('low', 'high'))
    own = weights > 0
    def residuals(values):
        found = t.logs[own] + t.slopes[own] @ (values - t.values)
        if pull is None: return found
        return np.append(found, .03 * (values - first) / pull)
    more = [] if pull is None else mean_weights(weights[own], t.slopes[own] != 0)
    found, error, _ = least_squares_within(residuals, np.clip(t.values, low, high), low, high,
                                           np.append(weights[own], more))
    return found, error


def mean_weights(weights, touches):  # array
    "What a run weighs that each parameter has a say in: so much has what is likely before."
    number = touches.sum(axis=0)
    return np.where(number, weights @ touches / np.maximum(number, 1), weights.mean())


def weights_of(source):  # array
    "Each of n rows of a source weighs n^(-3/4)."
    return source.map(source.value_counts()).to_numpy(float)**-.75


class Problem(NamedTuple):
    "Measured runs, ready to be fitted to."
    runs: pd.DataFrame
    seconds: pd.Series
    batches: list
    own: list              # the parameters of each batch
    start: Assumptions


def problem_of(runs, seconds, start):  # Problem
    "Runs as candidates that fit in memory."
    batches = [feasible(batch, start) for batch in batches_of(clean(runs))]
    own = [assumptions_for(batch, start).measured for batch in batches]
    shared = lambda k: k if k.name in start.measured.sets else dataclasses.replace(k, stack='any')
    return Problem(runs, seconds, batches, [shared(k) for k in own], start)


def of_plain(sets):  # list of Entry
    "What products of all plain software reach of others'."
    which = [name for name, k in sets.items() if is_plain(k.stack)]
    return [Entry('product_share', which, *limits('product_share'))] if which else []


def tangent_at(problem, free, sets, more=lambda sets: []):  # Tangent
    "Slopes of the logarithms at the values that sets of parameters hold."
    mine = {k.name: sets[k.name] for k in problem.own}
    entries = entries_of(free, mine, len(problem.runs)) + more(mine)
    own = [sets[k.name] for k in problem.own]
    residuals, order = residuals_of(problem.batches, own, problem.start, mine, entries,
                                    problem.seconds)
    owner = np.concatenate([np.full(len(np.unique(batch.row)), k.name)
                            for batch, k in zip(problem.batches, own)])
    values = np.array([value_of(mine[e.sets[0]], e.name) for e in entries])
    return tangent_of(residuals, order, entries, values, owner)


def tied(sets, entries, values):  # dict: name -> Parameters
    "Values given to all sets of an architecture or, without one, to all but nccl-tests."
    found = dict(sets)
    for entry, value in zip(entries, values):
        prefixes = {name.partition('/')[0] for name in entry.sets}
        for name, k in found.items():
            alone = k.stack == 'nccl-tests' or (entry.name == 'clock'
                                                and k.architecture not in prefixes)
            alone |= entry.name == 'product_share' and not is_plain(k.stack)
            if not alone: found[name] = changed(found[name], {entry.name: float(value)})
    return found


def free_of_stacks(runs, sets):  # dict: 'parameter@set' -> how far it may be from the others'
    "What each stack of an architecture may have of its own."
    found, system = {}, runs.gpu.map({gpu: sheet_of_run(gpu) for gpu in set(runs.gpu)})
    names = system.map(lambda s: s.architecture) + '/' + stack_of(clean(runs))
    experts = column_of(runs, 'experts').isin(['', 'nan'])
    for name, own in runs.groupby(names):
        if len(own) < LEAST_RUNS or name not in sets: continue
        ours = FREE_OF_STACK | (FREE_OF_SHARED if name.endswith(SHARES) else {})
        for parameter, pull in ours.items():
            dense = experts[own.index].sum() > len(own) - LEAST_RUNS
            if parameter == 'host_experts' and dense: continue
            found[f'{parameter}@{name}'] = pull
    return found


def is_plain(stack):
    "Whether nobody tuned a software."
    known = known_software().get(stack)
    return stack == 'plain' or known is not None and known.like == 'plain'


def sets_of_runs(runs, sets):  # dict
    """Sets with one for plain software, and one for each software of runs that is like another.

    The sets of all software come last: they are the default. Their modules are wrapped, as those
    of both named ends, tuned and plain, of today are.
    """
    records, x = known_software(), clean(runs)
    like = {name: s.like for name, s in records.items() if s.like not in (None, 'any')}
    found = {name: k for name, k in sets.items() if k.stack not in (*like, 'plain')}
    there = {(sheet_of_run(gpu).architecture, name) for gpu, name in zip(x.gpu, x.software)}
    for on in generations():
        for name in ['plain', *sorted(name for other, name in there if other == on)]:
            if name != 'plain' and name not in like: continue
            start = changed(found[f'{on}/any'], known_costs(like.get(name, name), on))
            found[f'{on}/{name}'] = dataclasses.replace(start, stack=name)   # own facts: later
    last = {name: changed(k, {'wrapped': True}) for name, k in found.items() if k.stack == 'any'}
    return {name: k for name, k in found.items() if name not in last} | last


def start_of_published(runs):  # Calibration
    "The shipped sets, and one for each software of some runs, with nccl-tests' network."
    start = read_calibration()
    tests = calibrate_network(published_collectives(), start.sets['Ampere/nccl-tests'])
    shares = ('nvlink_share', 'gather_factor', 'scatter_factor', 'nic_share')   # not Perlmutter's
    hops = {name: value_of(tests, name) for name in PROTOCOL if name not in shares}
    # behind an NVSwitch all hops are quick; Perlmutter's GPUs are joined in pairs
    hops['bulk_hop'] = tests.network.quick_hop
    sets = with_facts(sets_of_runs(runs, but_tests(start.sets, hops).sets))
    return Calibration({**sets, 'Ampere/nccl-tests': tests})


def known_costs(software, architecture):  # dict: parameter -> value
    "What is known of the costs of a software by name; nothing of one that nothing is known of."
    return known_software()[software].known_on(architecture) if software in known_software() else {}


def with_facts(sets):  # dict
    "Sets with what is known of their software, before any run is seen."
    # what all software has is fitted anew anyway; messages take the wires that there are
    unseen = {'product_share': 1., 'groups_share': 1.}
    return {name: changed(k, unseen | known_costs(k.stack, k.architecture))
            for name, k in sets.items()}


def contested_rows(runs):  # DataFrame
    "The job of vTrain whose choice is wrong, best prediction first."
    own = runs[(table_of(runs) == 'vtrain-multi') & (runs.hidden == 8192)]
    columns = ['id', 'tp', 'pp', 'dp', 'micro_batch', 'iteration_s', 'predicted_iteration_s']
    return own.sort_values('predicted_iteration_s')[columns].round(4)


def prior_of(t):  # (values, how far they may be off)
    "What is likely before any run is seen; infinitely far where nothing is."
    known = [PRIOR.get(e.name, (value, np.inf)) for e, value in zip(t.entries, t.values)]
    return tuple(map(np.array, zip(*known)))


def fit_tied(problem, sets, weights):  # (sets, Tangent, values, standard errors)
    "One value of each parameter for all software."
    for _ in range(3):
        t = tangent_at(problem, FREE, sets, of_plain)
        first, pull = prior_of(t)
        values, error = settled_at(t, first, weights, pull)
        sets = tied(sets, t.entries, values)
    return sets, t, values, error


def fit_stacks(problem, sets, weights):  # (sets, (Tangent, first, pulls), values, errors)
    "What each stack has of its own, drawn to what all have."
    pulls = free_of_stacks(problem.runs, sets)
    t = tangent_at(problem, list(pulls), sets)
    first, pull = t.values, np.array(list(pulls.values()))
    values, _ = settled_at(t, first, weights, pull)
    t = tangent_at(problem, list(pulls), sets_with(sets, t.entries, values))
    values, error = settled_at(t, first, weights, pull)
    sets = sets_with(sets, t.entries, values)
    return sets, (t, first, pull), values, error


def flat_changes(old, new):  # dict: name of a set -> name of a parameter -> value
    "What differs between two dicts of sets."
    found = {}
    for name, k in new.items():
        before, after = as_flat(old[name]), as_flat(k)
        found[name] = {key: after[key] for key in after if after[key] != before[key]}
    return {name: values for name, values in found.items() if values}


def fitted_rows(t, values, errors):  # list of dict
    "Fitted parameters as they are stored."
    number = lambda x: float(x) if np.isfinite(x) else None
    return [{'parameter': e.name, 'sets': e.sets, 'value': float(v), 'standard_error': number(s),
             'low': e.low, 'high': e.high,
             'determined': bool(np.isfinite(s) and s < .3 * abs(v))}
            for e, v, s in zip(t.entries, values, errors)]


def without_each(tied_at, sets, weights, source):  # dict: source -> sets without it
    "Tied values fitted without each source."
    found = {}
    for name in source.unique():
        first, pull = prior_of(tied_at)
        seen = weights * (source != name).to_numpy()
        values, _ = settled_at(tied_at, first, seen, pull)
        found[name] = tied(sets, tied_at.entries, values)
    return found


JUDGED = {'host_experts': 2e-3}   # 180 launches of 11 us, where no run with experts was seen


def without_kinds(tied_at, sets, weights, runs):  # DataFrame, a row per kind
    "How far off predictions are of a kind of run that no fit saw."
    experts = kinds_of_runs(predict(runs)).eq('experts')
    blackwell = runs.gpu.map(lambda gpu: sheet_of_run(gpu).architecture).eq('Blackwell')
    plain = stack_of(clean(runs)).map(is_plain)
    first, pull = prior_of(tied_at)
    rows = []
    for kind, own in (('on Blackwell', blackwell), ('with experts', experts),
                      ('of plain software', plain)):
        values, _ = settled_at(tied_at, first, weights * ~own.to_numpy(), pull)
        others = tied(sets, tied_at.entries, values)
        hopper = value_of(others['Hopper/any'], 'clock')   # the nearest that was seen
        instead = {'on Blackwell': {'clock': hopper}, 'with experts': JUDGED}.get(kind, {})
        everywhere = kind != 'on Blackwell'
        found = {name: changed(k, instead) for name, k in others.items()
                 if everywhere or k.architecture == 'Blackwell'}
        there = runs[own].assign(stack='')
        e = predict(there, with_sets(Calibration(others | found))).predicted_iteration_s
        e = e / measured_column(there, 'iteration_s') - 1
        rows.append({'kind': kind, 'runs': int(own.sum()),
                     'error %': round(100 * e.abs().mean(), 1),
                     'bias %': round(100 * e.mean(), 1)})
    return pd.DataFrame(rows)


def half_of(df):  # Series of int
    "Which half a run belongs to, by a hash of its id."
    return texts(df, 'id').map(lambda text: int(hashlib.md5(text.encode()).hexdigest(), 16) % 2)


def halves_apart(stacks_at, sets, weights, half):  # list of sets
    "What each stack has of its own, fitted to the other half of the runs."
    t, first, pull = stacks_at
    fits = (settled_at(t, first, weights * (half != i).to_numpy(), pull)[0] for i in range(2))
    return [sets_with(sets, t.entries, values) for values in fits]

LEVELS = {'half held out': (.08, .92), 'never seen': (.05, .95),   # few sources tell: wider
          'unnamed': (.05, .95)}


HEAVIEST = .03   # of all weight: what one run may have


def spread_of(logs, weights, levels):  # (low, high)
    "Weighted quantiles of log(predicted / measured)."
    for _ in range(20): weights = np.minimum(weights, HEAVIEST * weights.sum())
    order = np.argsort(logs)
    share = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    return [float(np.interp(level, share, logs[order])) for level in levels]


def intervals_of(df, predicted, levels='never seen'):  # dict: kind of run -> (low, high)
    "How far predictions were off, in logarithms."
    logs = np.log((predicted / df.iteration_s).to_numpy(float))
    kind, weights = kinds_of_runs(df).to_numpy(), weights_of(source_of(df))
    known, found = np.isfinite(logs), {}
    for name in KINDS_OF_RUN:
        own = known & (kind == name)
        found[name] = spread_of(logs[own if own.any() else known],
                                weights[own if own.any() else known], LEVELS[levels])
    return found


def unnamed(runs, path):  # Series of s
    "Predictions as if nobody said which software ran: of all of it, by a fit without the source."
    source, without = source_of(runs), read_json(path)['without']
    found = [predict(runs[source == name].assign(software='any', stack='any'),
                     with_sets(of_values(without[name], path))).predicted_iteration_s
             for name in source.unique()]
    return pd.concat(found).reindex(runs.index)


def coverage_of(df, predicted, intervals):  # Series of bool
    "Whether what was measured lies in the interval."
    logs = np.log((predicted / df.iteration_s).to_numpy(float))
    low, high = (kinds_of_runs(df).map({k: v[i] for k, v in intervals.items()}) for i in (0, 1))
    return pd.Series((logs >= low) & (logs <= high), df.index)


def covered_apart(df, predicted, part, levels):  # Series of bool
    "The same, each part of the runs with intervals from the others."
    found = pd.Series(False, df.index)
    for name in part.unique():
        own = part == name
        others = intervals_of(df[~own], predicted[~own], levels)
        found[own] = coverage_of(df[own], predicted[own], others)
    return found


def error_table(df, columns, covered):  # DataFrame, a row per source, in percent
    "Errors of every way to predict, by source."
    source, e = source_of(df), {name: x / df.iteration_s - 1 for name, x in columns.items()}
    by = lambda x: x.groupby(source, sort=False)
    table = pd.DataFrame({'runs': by(df.iteration_s).size()} | {
        f'{name} %': (100 * by(x.abs()).mean()).round(1) for name, x in e.items()} | {
        'bias never seen %': (100 * by(e['never seen']).mean()).round(1)} | {
        f'{name}, inside %': (100 * by(x.astype(float)).mean()).round(0)
        for name, x in covered.items()})
    table = table.reset_index(names='source')
    return table.assign(others=table.source.map(ERRORS_OF_OTHERS).fillna(''))


def residual_table(df, columns):  # DataFrame, a row per source, GPU, model and precision
    "The same in more detail."
    e = {name: (x / df.iteration_s - 1).abs() for name, x in columns.items()}
    by = features_of(clean(df)).assign(source=source_of(df), **e).groupby(
        ['source', 'gpu', 'model', 'precision'], sort=False)[list(e)]
    mean = (100 * by.mean()).round(1).add_suffix(' %')
    return mean.assign(runs=by.size()).reset_index()


def usable_runs(df):  # DataFrame
    "Runs that can be fitted to: measured, modelled, and on a GPU whose kernels are known."
    df = df[measured_column(df, 'iteration_s').notna()]
    good = predict(df).reason.isin(['', TOO_LARGE])
    return df[good].reset_index(drop=True)


def aside(table):
    "A table of progress; answers go to standard output."
    print(pd.DataFrame(table).to_string(), file=sys.stderr)


def calibrate_published(measured, path, more=None):  # DataFrame
    "Fit and write the shipped parameters, and what they predict of rows that they did not see."
    runs = usable_runs(measured)
    start, seconds = with_sets(start_of_published(runs)), measured_column(runs, 'iteration_s')
    problem, weights = problem_of(runs, seconds, start), weights_of(source_of(runs))
    sets, *common = fit_tied(problem, start.measured.sets, weights)
    aside(fitted_rows(common[0], *common[1:]))
    final, stacks_at, *own = fit_stacks(problem, sets, weights)
    aside(fitted_rows(stacks_at[0], *own))
    without = {name: flat_changes(final, k) for name, k in without_each(
        common[0], sets, weights, source_of(runs)).items()}
    halves = [flat_changes(final, k) for k in halves_apart(stacks_at, sets, weights, half_of(runs))]
    table = table_of_fit(stacks_at[0].entries, *own, own[1] < 0)
    fit = CalibrationResult(Calibration(final), table, runs)
    rows = [*fitted_rows(common[0], *common[1:]), *fitted_rows(stacks_at[0], *own)]
    about = 'fitted by tools/fit.py RUNS.csv'
    kinds = without_kinds(common[0], sets, weights, runs)
    aside(kinds)
    fit.save(path, about=about, without=without, halves=halves, kinds=plain_records(kinds))
    errors = add_records(path, runs, rows, usable_runs(runs[:0] if more is None else more))
    add_choices(path, runs)
    return errors


def plain_records(table):  # list of dict
    "A table as it is stored: nothing where a cell is empty."
    return table.astype(object).where(table.notna(), None).to_dict('records')


def add_choices(path, runs):
    "Where a search ranks published configurations, written into a file of parameters."
    table = recipes(runs, path)
    aside(recipe_score(table))
    regret = picked(predict(runs, path))
    found = {'recipes': plain_records(table), 'regret': plain_records(regret)}
    write_whole(path, json.dumps(read_json(path) | found, indent=1) + '\n')


def add_records(path, runs, fitted, others):  # DataFrame, a row per source
    "What the parameters in a file predict, also of other runs, written into it."
    found = read_json(path)
    of = lambda sets, df: predict(df, with_sets(of_values(sets, path))).predicted_iteration_s
    seen, half, rows = predict(runs, path), half_of(runs), plain_records
    foreign, judged = predict(others, path), pd.concat([runs, others], ignore_index=True)
    unseen = [never_seen(runs, path), foreign.predicted_iteration_s]
    halves = pd.concat([of(found['halves'][i], runs[half == i]) for i in range(2)]).sort_index()
    columns = {'never seen': pd.concat(unseen, ignore_index=True),
               'tuned on': seen.predicted_iteration_s, 'half held out': halves}
    both = pd.concat([seen, foreign], ignore_index=True)
    covered = {'never seen': covered_apart(both, columns['never seen'], source_of(judged),
                                           'never seen'),
               'half held out': covered_apart(seen, halves, half, 'half held out')}
    errors = error_table(judged, columns, covered)
    aside(errors)
    like = layout_understood(seen.predicted_iteration_s / seen.iteration_s)
    regret = picked(seen[source_of(seen) == 'vtrain-multi'])
    found |= dict(
        errors=rows(errors), residuals=rows(residual_table(judged, columns)), fitted=fitted,
        evidence=evidence_of(clean(runs)), seen=seen_in(clean(runs[like])),
        seen_by=seen_by_stack(clean(runs[like])),
        intervals={'never seen': intervals_of(both, columns['never seen']),
                   'half held out': intervals_of(seen, halves, 'half held out'),
                   'unnamed': intervals_of(seen, unnamed(runs, path), 'unnamed')},
        contested=rows(contested_rows(seen)), regret=rows(regret))
    write_whole(path, json.dumps(found, indent=1) + '\n')
    return errors


if __name__ == '__main__':
    if len(sys.argv) < 3: sys.exit(f'usage: python {sys.argv[0]} RUNS.csv FILE [MORE.csv]')
    measured, path, *more = sys.argv[1:]
    calibrate_published(read_runs(measured), path, *map(read_runs, more))
