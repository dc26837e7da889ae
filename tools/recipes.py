"""Where a search ranks published configurations: of each job, the fastest that was measured.

`python tools/recipes.py RUNS.csv` prints how many are recovered, in some minutes. Sharing,
micro-batch, virtual stages and recompute are open; what the software decides is held as published.
"""
import dataclasses
import sys

import pandas as pd

from transformer_perf.estimates import GROUP_COLUMNS, as_assumptions
from transformer_perf.execution import practice, search
from transformer_perf.iteration import rank_seconds
from transformer_perf.validation import predict, read_runs, recipe_score
from transformer_perf.validation.predictions import features_of, source_of
from transformer_perf.validation.runs import (
    assumptions_for, at_row, batches_of, candidates_priced, clean, facts_of_runs, fastest_that_fits,
    holds, model_at, precision_of, recipe_records, row_name, texts)

SWEEPS = ('vtrain-multi', 'vtrain-single', 'simumax-b200', 'mcore-goldens', 'aleph-alpha',
          'aleph-alpha-old-kernels', 'bloom', 'nanotron', 'internevo')   # no one's choice
HELD = ('precision', 'cuda_graphs', 'dispatcher', 'ep_overlap', 'dp_overlap', 'tp_overlap',
        'zero_stage', 'dp_replicate')                # what a row's software decides


def tried_by(row):  # dict: choice -> values
    "All that the software of one clean run had to choose from, where that is less than today."
    x, found = facts_of_runs(row), {}
    for record in recipe_records():
        if 'tries' in record and holds(record, x).all(): found |= record['tries']
    return found


def asked_of(model, own, tried):  # dict of arguments of `search`
    "What a search holds as a recipe has it, and what it tries: all that such software had."
    held = {name: [own[name]] for name in HELD} | {'tp_overlap': [bool(own['tp_overlap'])]}
    if own['tp'] == 1: held['tp_overlap'] = [True]   # who publishes, tunes
    usual = practice(model)
    parts = tried.get('recompute', [*usual['recompute'], 'selective'])
    held['recompute'] = list(dict.fromkeys([*parts, own['recompute']]))
    held['virtual_stages'] = sorted({*usual['virtual_stages'], own['virtual_stages']})
    return held | {name: tried[name] for name in ('tp', 'pp', 'cp') if name in tried}


def recipe_found(row, assumptions, k):  # (own, free, alone)
    """What a published configuration is, and two searches: all that is open, and itself alone.

    `row` is a clean table of one row; `own` has its columns of a search."""
    batch, = batches_of(row)
    first, _ = fastest_that_fits(batch, candidates_priced(batch, assumptions))
    own, model = at_row(batch.t, first[0]), model_at(batch, first[0])
    tried = tried_by(row)
    asked = asked_of(model, own, tried)
    itself = {name: own[name] for name in GROUP_COLUMNS} | {
        name: [own[name]] for name in ('recompute', 'virtual_stages')}
    its_stack = assumptions_for(batch, assumptions)
    uneven = model.depth % (own['pp'] * own['virtual_stages']) > 0 or 'uneven_stages' in tried
    dealt = dataclasses.replace(its_stack, uneven_stages=its_stack.uneven_stages and uneven)
    about = model, int(row.n_gpus.iloc[0]), batch.system, int(row.global_batch.iloc[0])
    free = search(*about, k=k, assumptions=dealt, **asked)
    alone = search(*about, k=k, assumptions=its_stack, **asked | itself)
    return own, free, alone


SHOWN_OF_RECIPE = dict(tp='tp', cp='cp', pp='pp', dp='dp', ep='ep', micro_batch='mb',
                       virtual_stages='v', recompute=' ')
WITHIN = .05   # of the first choice: recovered


def named_choice(own):  # str
    "A configuration in a few letters."
    shown = ((word, own[name]) for name, word in SHOWN_OF_RECIPE.items())
    return ' '.join(f'{word}{x}'.strip() for word, x in shown if x not in (1, 'none'))


def why_missed(own, best):  # str
    "What a recipe does that our first choice does not."
    if own['recompute'] != best.recompute: return 'recompute'
    if own['virtual_stages'] != best.virtual_stages and own['pp'] == best.pp:
        return 'virtual stages'
    if any(own[name] != best[name] for name in ('tp', 'cp', 'pp', 'ep')): return 'sharing'
    return 'micro-batch'


JOB = ('gpu', 'n_gpus', 'layers', 'hidden', 'ffn', 'experts', 'seq_len', 'global_batch')


def recipes(
    df,                        # DataFrame of runs, as in predict
    assumptions='calibrated',  # as in predict
    k=20,                      # configurations of a search that a recipe may rank among
):  # DataFrame, a row per job: the rank of its published configuration, and how much slower
    "Where a search ranks published configurations: of each job, the fastest that was measured."
    assumptions, rows = as_assumptions(assumptions), []
    predicted = predict(df[~source_of(df).isin(SWEEPS)].reset_index(drop=True), assumptions)
    predicted = predicted.dropna(subset=['predicted_iteration_s', 'iteration_s'])
    there = [name for name in JOB if name in predicted]
    precision = precision_of(clean(predicted))
    job = source_of(predicted) + ' ' + precision + ' ' + texts(predicted, *there)
    for i in predicted.groupby(job, sort=False).iteration_s.idxmin():
        row = predicted.loc[[i]].drop(columns=[c for c in predicted if c.startswith('predicted_')])
        one = clean(row)
        copies_alone = 'tp' in tried_by(one)   # software that has none of tp, pp, cp
        rows.append({'job': row_name(row, 0), 'source': source_of(row).iloc[0],
                     'software': 'copies alone' if copies_alone else 'any',
                     **features_of(one).iloc[0],
                     **ranked(*recipe_found(one, assumptions, k), predicted.loc[i])})
    return pd.DataFrame(rows)


def ranked(own, free, alone, row):  # dict
    "A recipe beside our first choice; `row`: what was predicted of it."
    if not len(free): return {'why': 'nothing fits'}
    best = free.iloc[0]
    found = {'published': named_choice(own), 'first choice': named_choice(best)}
    if not len(alone) and row.predicted_memory_bound_GB > free.priced_on.hbm_capacity:
        return found | {'why': 'does not fit by our bound'}
    # a chunk that is only an end of the model is more than a search tries, not more than a price
    seconds = ranked = row.predicted_iteration_s
    if len(alone): seconds, ranked = alone.iteration_s.iloc[0], rank_seconds(alone.iloc[0])
    slower = max(seconds / best.iteration_s - 1, 0.)
    ahead = rank_seconds(free) < ranked * (1 - 1e-6)
    why = '' if slower <= WITHIN else why_missed(own, best)
    return found | {'slower %': round(100 * slower, 1), 'rank': 1 + int(ahead.sum()), 'why': why}


def main():
    if len(sys.argv) != 2: sys.exit(f'usage: python {sys.argv[0]} RUNS.csv')
    print(recipe_score(recipes(read_runs(sys.argv[1]))).to_string(index=False))


if __name__ == '__main__': main()
