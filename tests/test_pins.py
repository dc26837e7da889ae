"Estimates, searches and memory are as pinned; a change on purpose re-pins: python tools/pins.py."
import pytest

import pins
from thorough import first_of

MODELS = sorted({row['model'] for row in pins.stored('estimates')})


def all_moved(table, rows):  # list of str
    "The figures of some rows that are not as pinned."
    return [f'{pins.in_words(row)}: {name} moved by {by:.2g}' for row in rows
            for name, by in pins.moved(table, row, pins.answer_of(table, row)).items()]


@pytest.mark.parametrize('model', MODELS)
def test_estimates(model):
    rows = [row for row in pins.stored('estimates') if row['model'] == model]
    assert not all_moved('estimates', rows)


def test_memory(): assert not all_moved('memory', pins.stored('memory'))


def third(first): return pins.stored('searches')[first::3]


@pytest.mark.parametrize('first', first_of(1, [2, 0, 1]))
def test_searches(first): assert not all_moved('searches', third(first))


def test_searches_that_are_always_asked_are_of_every_kind():
    kinds = lambda column, rows: {row[column] for row in rows}
    for column in ('model', 'assumptions'):
        assert kinds(column, third(2)) == kinds(column, pins.stored('searches'))


def test_a_figure_that_moves_is_seen():
    "A part of time is measured against the whole; so is a layout that a search no longer finds."
    row = pins.stored('estimates')[0]
    same = pins.as_pinned(row)
    part = same['bubble_s'] + 2e-12 * same['iteration_s']
    assert list(pins.moved('estimates', row, same | {'bubble_s': part})) == ['bubble_s']
    assert not pins.moved('estimates', row, same)
    row = pins.stored('searches')[0]
    same = pins.as_pinned(row)
    assert not pins.moved('searches', row, same)
    assert pins.moved('searches', row, same | {'layout 1': 'tp=3'})
    assert pins.moved('searches', row, same | {'layout 5': ''})
