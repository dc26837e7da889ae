"Estimates, searches and memory are as pinned; a change on purpose re-pins: python tools/pins.py."
import pytest

import pins

MODELS = sorted({row['model'] for row in pins.stored('estimates')})


def all_moved(table, rows):  # list of str
    "The figures of some rows that are not as pinned."
    return [f'{pins.in_words(row)}: {name} moved by {by:.2g}' for row in rows
            for name, by in pins.moved(table, row, pins.answer_of(table, row)).items()]


@pytest.mark.parametrize('model', MODELS)
def test_estimates(model):
    rows = [row for row in pins.stored('estimates') if row['model'] == model]
    assert not all_moved('estimates', rows)


@pytest.mark.parametrize('table', ['memory', 'searches'])
def test_other_pins(table): assert not all_moved(table, pins.stored(table))


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
