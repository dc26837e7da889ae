"The pictures show the published figures, say what their axes are, and refuse what cannot be drawn."
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from matplotlib.figure import Figure
from test_fuzz import contract, spoiled, spoiled_table, tries

from transformer_perf import search
from transformer_perf.timeline import COMPONENTS
from transformer_perf.models import as_model
from transformer_perf.plots import (
    PLACED, TIME_PARTS, against_gpus, communication, configurations, heat_map, look_of,
    micro_batches, placements, timeline, training_days)
from transformer_perf.sweeps import PAPER_GPUS, paper_systems, sweep
from transformer_perf.systems import as_system

GOLDEN = Path(os.environ.get('TRANSFORMER_PERF_GOLDEN', Path(__file__).parent / 'golden'))
OUTPUTS = Path(__file__).parent.parent / 'outputs'
published = pd.read_csv(GOLDEN / 'published.csv')
published = published[published.feasible & (published['rank'] == 0)]


def optima(strategy, model, gpu, nvlink_size):
    "The published optima of one run, by number of GPUs."
    p = published
    own = p[(p.strategy == strategy) & (p.model == model) & (p.gpu == gpu)]
    return own[own.nvlink_size == nvlink_size].sort_values('n_gpus')


def drawn(ax):  # dict: name -> (x, y)
    "The named lines of a picture."
    named = [line for line in ax.lines if not line.get_label().startswith('_')]
    return {line.get_label(): line.get_data() for line in named}


@pytest.mark.parametrize('model, strategy', [
    ('gpt3_1T', '1d'), ('vit_era5', '2d-seqp'), ('vit_era5', '2d')])
def test_training_days_are_the_published(model, strategy):
    table = pd.read_csv(OUTPUTS / f'exec_{strategy}_{model}.csv')   # test_sweeps: as of today
    table = table[table['rank'] == 1].reset_index(drop=True)
    table['days'] = training_days(table)
    lines = drawn(against_gpus(table, 'days', 'training time (days)', perfect=-1).axes[0])
    assert set(lines) == set(paper_systems())
    for name, (x, y) in lines.items():
        gpu, size = name.split('-NVS')
        golden = optima(strategy, model, gpu, int(size))
        assert list(x) == golden.n_gpus.tolist()
        days = as_model(model).train_samples / golden.throughput / 86400
        np.testing.assert_allclose(y, days, rtol=1e-9)


FRACTIONS = ('comp', 'mem', 'tp_comm', 'dp_comm', 'pp_comm', 'bubble')


def lengths(ax):  # list of str
    "What stands above the columns."
    return [text.get_text() for text in ax.texts if text.get_position()[1] > 100]


def sizes(ax):  # dict: name of a row -> what stands in it
    "The table under the columns."
    names = [label.get_text() for label in ax.get_yticklabels()]
    return {name: [text.get_text() for text in ax.texts if text.get_position()[1] == y]
            for y, name in enumerate(names)}


@pytest.mark.parametrize('strategy, model, gpu, size', [
    ('1d', 'gpt3_1T', 'B200', 8), ('2d-seqp', 'vit_era5', 'H200', 64),
    ('2d', 'gpt3_1T', 'A100', 4)])
def test_configurations_are_the_published(strategy, model, gpu, size):
    golden = optima(strategy, model, gpu, size)
    found = search(model, PAPER_GPUS, as_system(gpu, size), 4096, strategy, 1, 'paper')
    figure = configurations(found)
    top, low = figure.axes
    shares = {bars.get_label(): [bar.get_height() for bar in bars] for bars in top.containers}
    for name, column in zip(COMPONENTS.values(), FRACTIONS):
        percent = golden[f'{column}_frac'] * 100
        np.testing.assert_allclose(shares[name], percent, rtol=1e-9, atol=1e-12)
    found_s = [float(words.replace(',', '')) for words in lengths(top)]
    np.testing.assert_allclose(found_s, golden.t, rtol=5e-3)   # three digits of it
    expected = {'micro-batches': 4096 / golden.dp / golden.mbs, 'DP': golden.dp, 'PP': golden.pp,
                'memory (GB)': golden.mem}
    if strategy == '1d': expected |= {'TP': golden.tp}
    else: expected |= {'TP': golden.tp1, 'CP': golden.tp2}
    written = sizes(low)
    assert written.keys() == expected.keys()
    for name, own in expected.items(): assert written[name] == [f'{size:,.0f}' for size in own]


def test_speed_ups_are_the_published():
    system = {'B200-NVS8': as_system('B200', 8)}
    table = sweep(['gpt3_1T'], system, PAPER_GPUS, ['1d', '2d-seqp'], assumptions='paper',
                  global_batch=4096)
    rate = table.pivot(index='n_gpus', columns='strategy', values='samples_per_s')
    ratio = (rate['2d-seqp'] / rate['1d']).rename('speed_up').reset_index()
    ratio = ratio.assign(model='gpt3_1T', system='B200-NVS8')
    _, y = drawn(against_gpus(ratio, 'speed_up', 'speed-up', level=1).axes[0])['B200-NVS8']
    two, one = (optima(strategy, 'gpt3_1T', 'B200', 8).throughput.values
                for strategy in ('2d-seqp', '1d'))
    np.testing.assert_allclose(y, two / one, rtol=1e-9)


def test_the_best_placement_is_the_published():
    golden = optima('1d', 'gpt3_1T', 'B200', 64).iloc[-1]
    names = {'tp': 'tp', 'pp': 'pp', 'dp': 'dp', 'micro_batch': 'mbs'}
    fixed = {ours: int(golden[theirs]) for ours, theirs in names.items()}
    found = search('gpt3_1T', 16384, as_system('B200', 64), k=100, assumptions='paper', fixed=fixed,
                   global_batch=4096)
    ax, = placements(pd.DataFrame(found).assign(system='B200-NVS64')).axes
    (x, y), = [data for name, data in drawn(ax).items() if name == 'best']
    np.testing.assert_allclose(y, golden.throughput, rtol=1e-9)
    label = f'{golden.nv_tp:.0f} x {golden.nv_dp:.0f} x {golden.nv_pp:.0f}'
    assert ax.get_xticklabels()[int(x[0])].get_text() == label


searched = search('gpt3_1T', [1024, 4096], as_system('H200', 8), k=1,
                  global_batch=4096, assumptions='corrected')
swept = sweep(['gpt3_1T'], {'H200-NVS8': as_system('H200', 8)}, [1024, 4096], ['1d'],
              global_batch=4096, assumptions='corrected')
grid = pd.DataFrame([(x, y, x + y) for x in (1., 2., 4.) for y in (1., 2.)],
                    columns=['x', 'y', 'days'])
AXES = 'x', 'y', 'days', 'x (GB/s)', 'y (GB)', 'time (days)'
messages = pd.DataFrame({'operation': 'allgather', 'GPUs': '8 GPUs', 'MB': [1., 10.],
                         'measured_ms': [1., 2.], 'predicted_ms': [1., 3.]})
passes = pd.DataFrame({'rank': [0, 1, 1], 'kind': list('FFB'), 'chunk': [0, 0, 0],
                       'start_s': [0., 1., 2.], 'end_s': [1., 2., 4.]})
DRAWINGS = {
    'against_gpus': (lambda t: against_gpus(t, 'iteration_s', 'iteration (s)', perfect=-1), swept),
    'configurations': (configurations, searched),
    'placed': (lambda t: configurations(t, list('AB'), 'placement', PLACED, 'a title'), searched),
    'placements': (placements, swept),
    'heat_map': (lambda t: heat_map(t, *AXES, {'B200': (2, 2)}), grid),
    'communication': (communication, messages), 'timeline': (timeline, passes)}
UNITS = ('(s)', '(GB)', '(GB/s)', '(%)', '(days)', '(ms)', '(MB)', '(samples/s)', 'GPUs', ' x ',
         'placement', 'rank')


@pytest.mark.parametrize('name', DRAWINGS)
def test_every_axis_says_what_it_is(name):
    draw, table = DRAWINGS[name]
    figure = draw(table)
    assert isinstance(figure, Figure)
    assert not plt.get_fignums()  # pyplot knows of no figure that could leak
    labels = [label for ax in figure.axes for label in (ax.get_xlabel(), ax.get_ylabel()) if label]
    for ax in figure.axes: assert ax.get_ylabel() or ax.get_xlabel()
    assert labels and all(any(unit in label for unit in UNITS) for label in labels), labels


@pytest.mark.parametrize('name', DRAWINGS)
def test_nothing_to_draw_is_said_in_one_line(name):
    draw, table = DRAWINGS[name]
    with pytest.raises(ValueError, match='no rows') as error: draw(table.head(0))
    assert '\n' not in str(error.value)


def test_an_infeasible_search_gives_its_reason():
    why = '64 GPUs: 1d: the smallest of .* GB over the 80 GB of A100'
    found = search('vit_era5', [64], 'A100', assumptions='corrected')
    with pytest.raises(ValueError, match=why): configurations(found)
    alone = search('vit_era5', [1], 'A100', global_batch=1, assumptions='corrected')
    with pytest.raises(ValueError, match='; 1 GPU: 1d: '): configurations(alone)
    assert '<p>1 GPU: 1d: ' in alone._repr_html_()
    assert repr(alone).startswith('Empty SearchResult\n1 GPU: 1d: the smallest of ')
    assert '1 GPU' not in repr(alone[['tp', 'pp']])


NANO = {'l': 8, 'e': 8, 'h': 1, 'depth': 1, 'name': 'nano'}


@pytest.mark.parametrize('draw, says', [
    (lambda: against_gpus(swept, 'iterations', ''),
     "unknown column 'iterations'; did you mean 'iteration_s'"),
    (lambda: configurations(searched, list('ABC')), '3 labels must be as many as the 2 rows'),
    (lambda: heat_map(grid[grid.y == 1], *AXES), '1 of y must be at least two'),
    (lambda: heat_map(grid.assign(days=np.nan), *AXES), 'days is missing at every point'),
    (lambda: heat_map(grid.assign(x=grid.x - 1), *AXES), 'x=0.0 must be a number from'),
    (lambda: communication(messages.assign(measured_ms=0.)), 'measured_ms=0.0 must be'),
    (lambda: training_days(swept, NANO), 'train_samples of nano is not known')])
def test_slips_are_answered(draw, says):
    with pytest.raises(ValueError, match=says) as error: draw()
    assert '\n' not in str(error.value)


def test_holes_of_a_map_are_hatched_not_invented():
    figure = heat_map(grid.drop(index=3), *AXES)
    assert np.ma.getmaskarray(figure.axes[0].collections[0].get_array()).sum() == 1
    assert 'nothing fits' in [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize('x, ticks', [
    (2. ** np.arange(8, 15), [2. ** i for i in range(8, 15)]),    # powers of two: the values
    (2. ** np.arange(14), [2. ** i for i in range(0, 14, 2)]),    # every second of many
    (np.geomspace(500, 16000, 28), None)])                        # else round numbers
def test_a_map_has_ticks_at_its_values(x, ticks):
    table = pd.DataFrame([(a, b, a + b) for a in x for b in (1., 2.)], columns=['x', 'y', 'days'])
    seen = heat_map(table, *AXES).axes[0].get_xticks().tolist()
    if ticks: assert seen == ticks
    else: assert {1000, 2000, 5000, 10000} <= set(seen) and not set(seen) & set(x[1:-1])


def test_lines_can_be_told_apart_without_colour():
    looks = list(look_of(paper_systems()).values())
    shapes = {(look['fillstyle'], look['marker'], look['linestyle']) for look in looks}
    assert len({look['color'] for look in looks}) == 3 and len(shapes) == 9
    groups = look_of(f'{n} GPUs' for n in (4, 8, 32, 64, 256))
    assert len({look['marker'] for look in groups.values()}) == 5
    assert list(TIME_PARTS) == list(COMPONENTS) and len(set(TIME_PARTS.values())) == len(TIME_PARTS)


def test_micro_batches_are_those_of_the_batch():
    of_batch = 4096 // searched.dp // searched.micro_batch
    assert micro_batches(searched).tolist() == of_batch.tolist()


def test_computing_needs_no_matplotlib():
    code = '''
import sys
sys.modules['matplotlib'] = None
import transformer_perf, transformer_perf.sweeps, transformer_perf.cli
print(len(transformer_perf.search('gpt3', 64, 'H200')))
'''
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert done.stdout == '10\n'


# whatever the table and the options are (test_fuzz.py says what an answer must be)

FOUND = search('gpt3', [8, 64], 'H200', 64, 'all', 2,
               assumptions='corrected').assign(model='gpt3', system='H200')
GRID = pd.DataFrame([(a, b, a + b) for a in (1., 2., 4.) for b in (1., 3.)], columns=list('abc'))
PICTURES = {
    against_gpus: (FOUND, dict(column='iteration_s', label='s', level=None)),
    configurations: (FOUND, dict(labels=None, xlabel='GPUs', title='')),
    placements: (FOUND, {}),
    timeline: (passes, dict(panels='kind')),
    heat_map: (GRID, dict(x='a', y='b', value='c', xlabel='', ylabel='', label='', marks={},
                      panels=None, contours=(1.1, 2)))}


@pytest.mark.parametrize('draw', PICTURES, ids=lambda draw: draw.__name__)
@tries(5)
@given(data=st.data())
def test_pictures(draw, data):
    table, options = PICTURES[draw]
    contract(draw, table, **data.draw(spoiled(options)))
    contract(draw, data.draw(spoiled_table(table)), **options)


@pytest.mark.thorough
def test_threads_draw_the_same_picture():
    "And leave matplotlib's style as it was. (Matplotlib itself saves one after the other.)"
    def drawn(rows): figures.append((rows, configurations(FOUND.head(rows))))
    def saved(figure):
        file = io.BytesIO()
        figure.savefig(file)
        return file.getvalue()
    figures, style = [], dict(plt.rcParams)
    threads = [threading.Thread(target=drawn, args=[rows]) for rows in (1, 4, 1, 4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    for rows in (1, 4): drawn(rows)
    pictures = {rows: {saved(figure) for n, figure in figures if n == rows} for rows in (1, 4)}
    assert len(figures) == 6 and dict(plt.rcParams) == style
    assert [len(same) for same in pictures.values()] == [1, 1]
