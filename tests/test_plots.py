"The pictures show the published figures, say what their axes are, and refuse what cannot be drawn."
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from transformer_perf import search
from transformer_perf.execution import COMPONENTS
from transformer_perf.models import as_model
from transformer_perf.plots import PLACED, against_gpus, communication, configurations, heat_map, look_of, micro_batches, placements, training_days
from transformer_perf.sweeps import PAPER_GPUS, paper_systems, sweep
from transformer_perf.systems import as_system

GOLDEN = Path(os.environ.get('TRANSFORMER_PERF_GOLDEN', Path(__file__).parent / 'golden'))
published = pd.read_csv(GOLDEN / 'published.csv')
published = published[published.feasible & (published['rank'] == 0)]


def optima(strategy, model, gpu, nvlink_size):
    "The published optima of one run, by number of GPUs."
    p = published
    return p[(p.strategy == strategy) & (p.model == model) & (p.gpu == gpu) & (p.nvlink_size == nvlink_size)].sort_values('n_gpus')


def drawn(ax):  # dict: name -> (x, y)
    "The named lines of a picture."
    return {line.get_label(): line.get_data() for line in ax.lines if not line.get_label().startswith('_')}


@pytest.mark.parametrize('model, strategy', [('gpt3_1T', '1d'), ('vit_era5', '2d-seqp'), ('vit_era5', '2d')])
def test_training_days_are_the_published(model, strategy):
    table = sweep([model], paper_systems(), PAPER_GPUS, [strategy])
    table['days'] = training_days(table)
    lines = drawn(against_gpus(table, 'days', 'training time (days)', perfect=-1).axes[0])
    assert set(lines) == set(paper_systems())
    for name, (x, y) in lines.items():
        gpu, size = name.split('-NVS')
        golden = optima(strategy, model, gpu, int(size))
        assert list(x) == golden.n_gpus.tolist()
        np.testing.assert_allclose(y, as_model(model).train_samples / golden.throughput / 86400, rtol=1e-9)


@pytest.mark.parametrize('strategy, model, gpu, size', [('1d', 'gpt3_1T', 'B200', 8), ('2d-seqp', 'vit_era5', 'H200', 64), ('2d', 'gpt3_1T', 'A100', 4)])
def test_configurations_are_the_published(strategy, model, gpu, size):
    golden = optima(strategy, model, gpu, size)
    figure = configurations(search(model, PAPER_GPUS, as_system(gpu, size), strategy=strategy, k=1))
    top, low, seconds, memory = figure.axes
    shares = {bars.get_label(): [bar.get_height() for bar in bars] for bars in top.containers}
    for name, column in zip(COMPONENTS.values(), ('comp', 'mem', 'tp_comm', 'dp_comm', 'pp_comm', 'bubble')):
        np.testing.assert_allclose(shares[name], golden[f'{column}_frac'] * 100, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(drawn(seconds)['iteration time'][1], golden.t, rtol=1e-9)
    np.testing.assert_allclose(drawn(memory)['memory'][1], golden.mem, rtol=1e-9)
    sizes = {bars.get_label(): [bar.get_y() + bar.get_height() for bar in bars] for bars in low.containers}
    expected = {'micro-batches': 4096 / golden.dp / golden.mbs, 'TP n1': golden.tp if strategy == '1d' else golden.tp1, 'DP': golden.dp, 'PP': golden.pp,
                **({} if strategy == '1d' else {'TP n2': golden.tp2})}
    assert sizes.keys() == expected.keys()
    for name in expected: np.testing.assert_allclose(sizes[name], expected[name])


def test_speed_ups_are_the_published():
    table = sweep(['gpt3_1T'], {'B200-NVS8': as_system('B200', 8)}, PAPER_GPUS, ['1d', '2d-seqp'])
    rate = table.pivot(index='n_gpus', columns='strategy', values='samples_per_s')
    ratio = (rate['2d-seqp'] / rate['1d']).rename('speed_up').reset_index().assign(model='gpt3_1T', system='B200-NVS8')
    x, y = drawn(against_gpus(ratio, 'speed_up', 'speed-up', level=1).axes[0])['B200-NVS8']
    np.testing.assert_allclose(y, optima('2d-seqp', 'gpt3_1T', 'B200', 8).throughput.values / optima('1d', 'gpt3_1T', 'B200', 8).throughput.values, rtol=1e-9)


def test_the_best_placement_is_the_published():
    golden = optima('1d', 'gpt3_1T', 'B200', 64).iloc[-1]
    fixed = dict(tp1=int(golden.tp), pp=int(golden.pp), dp=int(golden.dp), micro_batch=int(golden.mbs))
    found = pd.DataFrame(search('gpt3_1T', 16384, as_system('B200', 64), k=100, fixed=fixed)).assign(system='B200-NVS64')
    ax, = placements(found).axes
    (x, y), = [data for name, data in drawn(ax).items() if name == 'best']
    np.testing.assert_allclose(y, golden.throughput, rtol=1e-9)
    assert ax.get_xticklabels()[int(x[0])].get_text() == f'{golden.nv_tp:.0f} x {golden.nv_dp:.0f} x {golden.nv_pp:.0f}'


searched = search('gpt3_1T', [1024, 4096], as_system('H200', 8), k=1)
swept = sweep(['gpt3_1T'], {'H200-NVS8': as_system('H200', 8)}, [1024, 4096], ['1d'])
grid = pd.DataFrame([(x, y, x + y) for x in (1., 2., 4.) for y in (1., 2.)], columns=['x', 'y', 'days'])
messages = pd.DataFrame({'operation': 'allgather', 'GPUs': '8 GPUs', 'MB': [1., 10.], 'measured_ms': [1., 2.], 'predicted_ms': [1., 3.]})
DRAWINGS = {
    'against_gpus': (lambda t: against_gpus(t, 'iteration_s', 'iteration (s)', perfect=-1), swept),
    'configurations': (configurations, searched),
    'placed': (lambda t: configurations(t, list('AB'), 'placement', PLACED, 'a title'), searched),
    'placements': (placements, swept),
    'heat_map': (lambda t: heat_map(t, 'x', 'y', 'days', 'x (GB/s)', 'y (GB)', 'time (days)', {'B200': (2, 2)}), grid),
    'communication': (communication, messages)}


@pytest.mark.parametrize('name', DRAWINGS)
def test_every_axis_says_what_it_is(name):
    draw, table = DRAWINGS[name]
    figure = draw(table)
    assert isinstance(figure, Figure) and not plt.get_fignums()  # pyplot knows of no figure that could leak
    labels = [label for ax in figure.axes for label in (ax.get_xlabel(), ax.get_ylabel()) if label]
    for ax in figure.axes: assert ax.get_ylabel() or ax.get_xlabel()
    units = ('(s)', '(GB)', '(GB/s)', '(%)', '(days)', '(ms)', '(MB)', '(samples/s)', 'GPUs', ' x ', 'placement')
    assert labels and all(any(unit in label for unit in units) for label in labels), labels


@pytest.mark.parametrize('name', DRAWINGS)
def test_nothing_to_draw_is_said_in_one_line(name):
    draw, table = DRAWINGS[name]
    with pytest.raises(ValueError, match='no rows') as error: draw(table.head(0))
    assert '\n' not in str(error.value)


def test_an_infeasible_search_gives_its_reason():
    with pytest.raises(ValueError, match='64 GPUs: 1d: the smallest of .* GB over the 80 GB of A100'): configurations(search('vit_era5', [64], 'A100'))


def test_slips_are_answered():
    with pytest.raises(ValueError, match="unknown column 'iterations'; did you mean 'iteration_s'"): against_gpus(swept, 'iterations', '')
    with pytest.raises(ValueError, match='3 labels must be as many as the 2 rows'): configurations(searched, list('ABC'))
    with pytest.raises(ValueError, match='1 of y must be at least two'): heat_map(grid[grid.y == 1], 'x', 'y', 'days', '', '', '')
    with pytest.raises(ValueError, match='days is missing at every point'): heat_map(grid.assign(days=np.nan), 'x', 'y', 'days', '', '', '')
    with pytest.raises(ValueError, match='train_samples of nano is not known'): training_days(swept, {'l': 8, 'e': 8, 'h': 1, 'depth': 1, 'name': 'nano'})


def test_holes_of_a_map_are_hatched_not_invented():
    figure = heat_map(grid.drop(index=3), 'x', 'y', 'days', 'x (GB)', 'y (GB)', 'time (days)')
    assert np.ma.getmaskarray(figure.axes[0].collections[0].get_array()).sum() == 1
    assert 'nothing fits' in [text.get_text() for text in figure.legends[0].get_texts()]


def test_lines_can_be_told_apart_without_colour():
    looks = list(look_of(paper_systems()).values())
    assert len({look['color'] for look in looks}) == 3 and len({(look['fillstyle'], look['marker'], look['linestyle']) for look in looks}) == 9
    assert len({look['marker'] for look in look_of(f'{n} GPUs' for n in (4, 8, 32, 64, 256)).values()}) == 5


def test_micro_batches_are_those_of_the_batch():
    assert micro_batches(searched).tolist() == (4096 // searched.dp // searched.micro_batch).tolist()


def test_computing_needs_no_matplotlib():
    code = "import sys; sys.modules['matplotlib'] = None; import transformer_perf, transformer_perf.sweeps, transformer_perf.cli; print(len(transformer_perf.search('gpt3', 64, 'H200')))"
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout == '10\n'
