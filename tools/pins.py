"""Figures that must not move unnoticed: estimates, searches, and the memory of the golden cases.

A row of a table in tests/golden/pins asks a question and holds the figures that answer it.
`python tools/pins.py` answers all questions anew, stores the answers, and says which figures moved
and by how much; to add a question, add a row without answers. Only the public face is asked.
"""
import csv
import dataclasses
import math
from pathlib import Path

from transformer_perf import Assumptions, Parallel, estimate, search

FOLDER = Path(__file__).parent.parent / 'tests' / 'golden' / 'pins'
MEMORY = ('memory_GB', 'weights_GB', 'gradients_GB', 'optimizer_GB', 'activations_GB',
          'memory_bound_GB')
TIME = ('iteration_s', 'compute_s', 'exposed_memory_s', 'tp_comm_s', 'dp_comm_s', 'pp_comm_s',
        'bubble_s', 'other_s')
WORK = ('TFLOP_per_gpu', 'model_TFLOP_per_gpu', 'executed_TFLOP_per_gpu')
FIGURES = {'estimates': TIME + MEMORY + WORK, 'memory': MEMORY}   # of an estimate
TABLES = (*FIGURES, 'searches')
QUESTION = ('model', 'system', 'global_batch', 'assumptions', 'parallel', 'n_gpus', 'choices')
CLOSE = 1e-12   # figures are the same within this share: parts of time and memory, of the whole
WHOLE = {'s': 'iteration_s', 'GB': 'memory_GB'}   # unit -> the sum of its parts
SHOWN = 5       # rows of a search
USUAL = vars(Assumptions()) | {name: value for name, value in vars(Parallel()).items()
                               if value is not None}


def stored(table):  # list of dicts of texts
    "The rows of a table of pins."
    with (FOLDER / f'{table}.csv').open(newline='') as file: return list(csv.DictReader(file))


def store(table, rows):
    "Write a table of pins."
    with (FOLDER / f'{table}.csv').open('w', newline='') as file:
        writer = csv.DictWriter(file, rows[0], lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)


# questions

def value_in(text):  # a number, True, False, or the text
    "The value that a text writes down."
    if text in ('True', 'False'): return text == 'True'
    return int(text) if text.isdecimal() else text


def fields_in(text):  # dict of texts
    "The fields that a text gives: 'tp=8 schedule=zb-h1'."
    return dict(one.split('=', 1) for one in text.split())


def parallel_in(text):  # Parallel
    "A layout, from a text."
    return Parallel(**{name: value_in(value) for name, value in fields_in(text).items()})


def choices_in(text):  # dict of lists
    "The choices that a search has, from a text: 'schedule=1f1b,zb-h1 ep=1,8'."
    return {name: [value_in(value) for value in values.split(',')]
            for name, values in fields_in(text).items()}


def question_of(row):  # dict of arguments
    "What the question of a row is about."
    model = row['model']
    if '=' in model: model = {name: int(value) for name, value in fields_in(model).items()}
    return dict(model=model, system=row['system'], global_batch=int(row['global_batch']),
                assumptions=row['assumptions'])


def in_words(row):
    "The question of a row, in one line."
    return ' '.join(row[name] for name in QUESTION if name in row)


# answers

def layout_in_text(found):  # str
    "The layout of a row that a search found, but for what is usual."
    given = {f.name: found[f.name] for f in dataclasses.fields(Parallel) if f.name in found}
    return ' '.join(sorted(f'{name}={value}' for name, value in given.items()
                           if value is not None and value != USUAL.get(name)))


def answer_of_search(row):  # dict
    "The best that a search finds: of each, at its rank, layout, time and memory."
    found = search(n_gpus=int(row['n_gpus']), k=SHOWN, **question_of(row),
                   **choices_in(row['choices'])).to_dict('records')
    answer = {}
    for rank in range(1, SHOWN + 1):
        one = found[rank - 1] if rank <= len(found) else None
        answer[f'layout {rank}'] = layout_in_text(one) if one else ''
        for figure in WHOLE.values(): answer[f'{figure} {rank}'] = one[figure] if one else ''
    return answer


def answer_of(table, row):  # dict: column -> number, or text
    "What the package says today to the question of a row."
    if table == 'searches': return answer_of_search(row)
    stats = estimate(parallel=parallel_in(row['parallel']), **question_of(row)).stats
    return {name: stats[name] for name in FIGURES[table]}


# what moved

def shares_moved(old, new):  # dict: figure -> by what share
    "The figures of an estimate that moved."
    found = {}
    for name, was in old.items():
        whole = WHOLE.get(name.rpartition('_')[2], name)
        by = abs(new[name] - was) / abs(old[whole]) if new[name] != was else 0.
        if not by <= CLOSE: found[name] = by
    return found


def best_moved(old, new):  # dict: what -> by what share
    "What moved among the best of a search; which of the layouts as fast as the last stay is free."
    ranks = [rank for rank in range(1, SHOWN + 1) if old[f'layout {rank}']]
    if len(ranks) != sum(bool(new[f'layout {rank}']) for rank in range(1, SHOWN + 1)):
        return {'the number of layouts': math.inf}
    now = {new[f'layout {rank}']: new[f'memory_GB {rank}'] for rank in ranks}
    found, most = {}, max((old[f'iteration_s {rank}'] for rank in ranks), default=0.)
    for rank in ranks:
        layout, time, GB = (old[f'{name} {rank}'] for name in ('layout', *WHOLE.values()))
        found[f'iteration_s {rank}'] = abs(new[f'iteration_s {rank}'] / time - 1)
        if time < (1 - CLOSE) * most:
            found[layout] = abs(now[layout] / GB - 1) if layout in now else math.inf
    return {name: by for name, by in found.items() if not by <= CLOSE}


def as_pinned(row):  # dict: column -> number, or text
    "The figures of a row, and its layouts."
    return {name: float(text) if text and not name.startswith('layout') else text
            for name, text in row.items() if name not in QUESTION}


def moved(table, row, answer):  # dict: figure -> by what share
    "The figures of a row that are not as they were pinned."
    return (best_moved if table == 'searches' else shares_moved)(as_pinned(row), answer)


def main():
    for table in TABLES:
        rows, answers, number = stored(table), [], 0
        for row in rows:
            question = {name: row[name] for name in QUESTION if name in row}
            answer = answer_of(table, row)
            answers.append(question | answer)
            if not row.get(next(iter(answer))): continue   # the question is new
            for name, by in moved(table, row, answer).items():
                print(f'{table}: {in_words(row)}: {name} moved by {by:.2g}')
                number += 1
        store(table, answers)
        print(f'{table}: {number} figures moved, of {len(rows)} questions')


if __name__ == '__main__': main()
