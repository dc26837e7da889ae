"The panels: as pure functions, as widgets that are moved at random, at the terminal, and in a real browser."
import csv
import dataclasses
import io
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from transformer_perf import panels
from transformer_perf.panels import PANELS, CollectivesState, LayerState, Panel, Panels, RooflineState, SearchState, SweepState, page, shown_or_why

COMMAND = str(Path(sys.executable).parent / 'transformer-perf')
CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')


def run(line, folder):
    done = subprocess.run([COMMAND, *shlex.split(line)[1:]], capture_output=True, text=True, timeout=60, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def call(text):
    "What the Python call of a panel gives: the value of its last expression, and its variables."
    *lines, last = text.split('\n')
    names = {}
    exec('\n'.join(lines), names)
    if re.match(r'\w+ = ', last):
        exec(last, names)
        return names
    return eval(last, names)


# --- random moves ---

def moved_about(State, moves):
    "Move random controls to random options; after each move everything on the page is of the panel's state."
    panel = Panel(State())
    for which, option in moves:
        control = list(panel.controls.values())[which % len(panel.controls)]
        control.value = control.options[option % len(control.options)][1]
        for name, own in panel.controls.items():
            assert own.value == getattr(panel.state, name) and own.value in [value for _, value in own.options]
    assert panel.output.value == page(panel.state, shown_or_why(panel.state))
    assert 'Traceback' not in panel.output.value
    return panel


MOVES = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=5)


@settings(max_examples=25, deadline=None)
@given(MOVES)
def test_any_moves_of_the_layer_panel(moves):
    panel = moved_about(LayerState, moves)
    stats = panel.state.estimate.stats
    assert f'One iteration: {panels.short(stats["iteration_s"])} s' in panel.output.value  # its options are always possible, so there is a picture
    assert f'Memory: {stats["memory_GB"]:.1f} of' in panel.output.value
    assert ('GB too much' in panel.output.value) == (not panel.state.estimate.fits)


@settings(max_examples=15, deadline=None)
@given(MOVES)
def test_any_moves_of_the_search_panel(moves):
    panel = moved_about(SearchState, moves)
    found = panel.state.found
    assert (panels.candidate_name(found.iloc[0]) if len(found) else 'No configuration of') in panel.output.value


@settings(max_examples=8, deadline=None)
@given(MOVES)
def test_any_moves_of_the_roofline_panel(moves): moved_about(RooflineState, moves)


@settings(max_examples=10, deadline=None)
@given(MOVES)
def test_any_moves_of_the_collectives_panel(moves): moved_about(CollectivesState, moves)


@settings(max_examples=5, deadline=None)
@given(st.sampled_from(panels.SWEPT), st.sampled_from(('none', 'hbm_capacity', 'nvlink_size')), st.sampled_from(('gpt3', 'vit_era5')), st.sampled_from((16, 512)))
def test_any_sweep(vary, second, model, n_gpus):
    panel = Panel(SweepState(doublings=1, model=model, n_gpus=n_gpus))
    panel.controls['vary'].value = vary
    if second in [value for _, value in panel.controls['second'].options]: panel.controls['second'].value = second
    assert panel.state.vary != panel.state.second
    assert panel.output.value == page(panel.state, shown_or_why(panel.state)) and 'not possible' not in panel.output.value


@pytest.mark.parametrize('name', ['layer', 'search', 'roofline', 'collectives'])
def test_there_and_back(name):
    "Every control moved to another option shows something else, or the same where it does not matter; loading the first state again shows the first page."
    panel = Panel(PANELS[name]())
    first, page_before = panel.state, panel.output.value
    changed = 0
    for control in panel.controls.values():
        others = [value for _, value in control.options if value != control.value]
        if not others: continue
        control.value = others[len(others) // 2]
        changed += panel.output.value != page_before
        panel.load(first)
        assert panel.output.value == page_before
    assert changed >= 4


def test_the_figure_is_of_the_state():
    "The numbers in the picture, in the table and in the words are those of one estimate."
    for state in (LayerState(), LayerState(strategy='2d', tp1=4, tp2=2, panels=8), LayerState(model='vit_era5', strategy='2d-seqp', tp1=8, tp2=4, pp=1, micro_batch=1, n_gpus=512)):
        shown, stats = state.show(), state.estimate.stats
        assert f'{stats["samples_per_s"]:.4g} samples/s' in shown.figure and f'bubble {stats["bubble_s"] / stats["iteration_s"]:.1%}' in shown.figure
        assert np.isclose(shown.table.forward_ms.sum(), state.estimate.layers.t_fwd.sum() * 1000)


# --- what is impossible ---

@pytest.mark.parametrize('state, words', [
    (LayerState(n_gpus=7), 'n_gpus=7 must be divisible by tp1*tp2*pp=256'), (LayerState(tp1=64, pp=1), 'heads=160 must be divisible by tp1=64'),
    (LayerState(strategy='3d'), "unknown strategy '3d'"), (LayerState(placement=(8, 1, 2, 1)), '16 GPUs placed in one NVLink domain, more than its nvlink_size=8'),
    (LayerState(system='H20'), "did you mean 'H200'"), (LayerState(model='missing.json'), 'missing.json: cannot be read'), (LayerState(sort='colour'), "unknown order 'colour'"),
    (RooflineState(tp1=7), 'heads=96 must be divisible by tp1=7'), (CollectivesState(kind='gossip'), "unknown collective 'gossip'"), (SweepState(vary='price'), "unknown quantity to sweep 'price'"),
])
def test_the_impossible_is_one_sentence(state, words):
    text = page(state, shown_or_why(state))
    assert words in text.replace('&#x27;', "'") and text.count('<p>') == 1 and 'svg' not in text and 'img' not in text and 'Traceback' not in text


def test_no_stale_picture(tmp_path):
    "A panel whose model loses its last possibility shows a sentence and no picture, and the picture again when it can."
    odd = tmp_path / 'odd.json'
    odd.write_text('{"l": 100, "e": 64, "h": 4, "depth": 3}')
    panel = Panel(LayerState())
    panel.controls['strategy'].value = '2d-seqp'
    assert 'svg' in panel.output.value
    panel.moved('model', str(odd))
    assert 'svg' not in panel.output.value and 'This is not possible: 2d-seqp: no number of GPUs' in panel.output.value
    panel.controls['model'].value = 'gpt3'
    assert 'svg' in panel.output.value


def test_a_mistake_of_ours_is_seen():
    "Only ValueErrors are answered with a sentence; a mistake in the code raises in the handler."
    class Broken(LayerState):
        def show(self): raise RuntimeError('broken')
    panel = Panel(LayerState())
    with pytest.raises(RuntimeError): panel.load(Broken())
    assert 'svg' not in panel.output.value and 'our mistake' in panel.output.value


def test_only_valid_choices():
    for state in (LayerState(), LayerState(model='gpt3', n_gpus=96), LayerState(strategy='2d', n_gpus=64), LayerState(model='vit_era5', strategy='2d-seqp', n_gpus=4096)):
        settled, options = state.settle()
        for name in ('tp1', 'tp2', 'pp', 'micro_batch', 'panels', 'placement', 'n_gpus'):
            for value in options[name]:
                moved, _ = dataclasses.replace(settled, **{name: value}).settle()
                assert getattr(moved, name) == value and moved.estimate.stats['iteration_s'] > 0


# --- the same numbers in Python and at the terminal ---

LAYERS = [LayerState(), LayerState(model='vit_era5', system='B200', nvlink_size=64, global_batch=1024, assumptions='corrected', strategy='2d-seqp', n_gpus=1024, tp1=4, tp2=4, pp=2, placement=(4, 4, 2, 2)),
          LayerState(strategy='2d', n_gpus=512, tp1=4, tp2=2, pp=16, panels=8, zero_stage=3)]


@pytest.mark.parametrize('state', LAYERS)
def test_the_layer_panels_calls(state, tmp_path):
    table, there = state.show().table, call(state.python())
    assert np.array_equal(table.forward_ms, there.layers.t_fwd * 1000) and np.array_equal(table.backward_ms, there.layers.t_bwd * 1000)
    assert there.stats == state.estimate.stats
    assert json.loads(run(state.command_line() + ' --format json', tmp_path))['stats'] == there.stats


@pytest.mark.parametrize('state', [SearchState(), SearchState(model='gpt3', system='B200', nvlink_size=64, n_gpus=256, strategy='all', global_batch=512, assumptions='corrected')])
def test_the_search_panels_calls(state, tmp_path):
    times = state.show().table.iteration_s
    assert np.array_equal(times, call(state.python()).iteration_s)
    assert times.tolist() == [float(row['iteration_s']) for row in csv.DictReader(io.StringIO(run(state.command_line() + ' --format csv', tmp_path)))]


@pytest.mark.parametrize('state', [SweepState(vary='hbm_bandwidth', second='nvlink_size', doublings=1, n_gpus=256, n_gpus_b=512), SweepState(doublings=1, strategy_b='2d-seqp', model_b='gpt3')])
def test_the_sweep_panels_calls(state, tmp_path):
    table, names = state.show().table, call(state.python())
    for line, (name, own) in zip(state.command_line().split('\n'), table.groupby('scenario', sort=False)):
        run(line, tmp_path)
        letter = name[0].lower()
        for there in (names[letter], pd.read_csv(tmp_path / f'{letter}.csv')): assert np.allclose(there.iteration_s, own.iteration_s, rtol=1e-12)


def test_the_roofline_panels_calls(tmp_path):
    state = RooflineState(seq_len=8192, micro_batch=2, strategy='2d-seqp', tp2=2)
    table, layers = state.show().table, call(state.python())
    forward = table[table['pass'] == 'forward']
    assert np.allclose(forward.ms, (layers.t_fwd_comp + layers.t_fwd_mem) * 1000) and np.allclose(forward.TFLOP, layers.flops_fwd)
    assert np.allclose(pd.read_csv(io.StringIO(run(state.command_line() + ' --format csv', tmp_path))).ms, table.ms)


def test_the_collectives_panels_calls(tmp_path):
    state = CollectivesState(kind='allreduce', n_gpus=64)
    table, times = state.show().table, call(state.python())
    for t, own in table.groupby('in_domain'): assert np.allclose(own.predicted_ms, times[t] * 1000)
    assert np.allclose(pd.read_csv(io.StringIO(run(state.command_line() + ' --format csv', tmp_path))).predicted_ms, table.predicted_ms)
    assert table.measured_ms.notna().sum() == 19


def test_a_candidate_is_the_layer_panels_configuration():
    both = Panels()
    search, layer = both.panels['search'], both.panels['layer']
    for rank in (2, 5):
        search.controls['candidate'].value = rank
        assert np.isclose(layer.state.estimate.stats['iteration_s'], search.state.found.iteration_s[rank - 1], rtol=1e-12)
    search.controls['n_gpus'].value = 512
    assert layer.state.n_gpus == 512


# --- the command ---

def test_the_terminal(tmp_path):
    assert 'measured' in run('transformer-perf panels collectives n_gpus=32', tmp_path)
    assert 'No configuration of 64 GPUs is feasible' in run('transformer-perf panels search model=vit_era5 system=A100 n_gpus=64', tmp_path)
    for line, words in (('panels layr', "unknown panel 'layr'; did you mean 'layer'?"), ('panels layer tp1', 'must be tp1=VALUE'), ('panels layer n_gpus=7', 'n_gpus=7 must be divisible')):
        done = subprocess.run([COMMAND, *line.split()], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count('\n') == 1


def test_it_needs_its_extra_only_when_used():
    "Without ipywidgets everything else works, and the command says in one line what to install."
    code = "import sys; sys.modules['ipywidgets'] = None\nimport transformer_perf.cli as cli\nsys.argv = ['transformer-perf', 'panels']\ncli.main()"
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "pip install 'transformer_perf[panels]'" in done.stderr and done.stderr.count('\n') == 1


def test_latency(capsys):
    "From a change to the new picture: the median move within the limit (the slowest is printed: other work on this machine counts in it)."
    with capsys.disabled():
        print()
        found = panels.bench()
    for name, times in found.items():
        assert len(times) > 5 and np.median(times) <= panels.LIMITS_MS[name]


# --- a real browser ---

def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


@pytest.fixture(scope='module')
def site():
    "The panels, as the command serves them."
    pytest.importorskip('voila', reason='voila is not installed')
    pytest.importorskip('playwright.sync_api', reason='playwright is not installed')
    if not CHROMIUM: pytest.skip('no Chromium is installed')
    port = free_port()
    served = subprocess.Popen([COMMAND, 'panels', '--no-browser', '--port', str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        until = time.monotonic() + 60
        while True:
            with socket.socket() as s:
                if s.connect_ex(('127.0.0.1', port)) == 0: break
            assert served.poll() is None and time.monotonic() < until, 'voila does not answer'
            time.sleep(0.2)
        yield port
    finally:
        served.send_signal(2)  # as Ctrl-C
        try: served.wait(15)
        except subprocess.TimeoutExpired: served.kill()


@pytest.fixture(scope='module')
def browser_page(site, tmp_path_factory):
    from playwright.sync_api import sync_playwright
    flags = '--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update --disable-sync'.split()
    with sync_playwright() as driver:
        browser = driver.chromium.launch_persistent_context(tmp_path_factory.mktemp('profile'), executable_path=CHROMIUM, args=flags, headless=True, viewport={'width': 1280, 'height': 1000})
        shown = browser.new_page()
        shown.on('response', lambda response: answered.append(response.url))
        answered.clear()
        shown.goto(f'http://127.0.0.1:{site}/')
        shown.wait_for_selector('.panel-layer svg', timeout=90_000)
        yield shown
        browser.close()


TABS, answered = list(PANELS), []


def move(browser_page, panel, control, option):
    "Move a control in the browser and wait for the new page of the panel; its text, and how long that took in ms."
    browser_page.locator('.lm-TabBar-tab').nth(TABS.index(panel)).click()
    calls = browser_page.locator(f'.panel-{panel} pre').first
    before, start = calls.inner_text(), time.perf_counter()
    browser_page.select_option(f'.panel-{panel} .control-{control} select', label=option)
    browser_page.wait_for_function('([panel, before]) => { const e = document.querySelector(`.panel-${panel} pre`); return e && e.innerText != before }', arg=[panel, before], timeout=30_000)
    took = (time.perf_counter() - start) * 1000
    return browser_page.locator(f'.panel-{panel} .widget-html').inner_text(), took


def python_on(browser_page, panel): return call(browser_page.locator(f'.panel-{panel} pre').first.inner_text())


def test_browser_layer(browser_page, capsys):
    "Each move changes the numbers on the page to what the Python call on the page says."
    for control, option in (('nvlink_size', '64'), ('system', 'B200'), ('strategy', '2d'), ('strategy', '1d'), ('micro_batch', '2'), ('pp', '64'), ('system', 'H200')):
        text, took = move(browser_page, 'layer', control, option)
        result = python_on(browser_page, 'layer')
        assert f'One iteration: {panels.short(result.stats["iteration_s"])} s' in browser_page.locator('.panel-layer svg').text_content()
        assert f'{panels.short(result.layers.t_fwd[0] * 1000)}' in text and result.summary in text
        with capsys.disabled(): print(f'\nbrowser: {control} to {option}: {took:.0f} ms', end='')
    options = browser_page.locator('.panel-layer .control-tp1 option').all_inner_texts()
    assert options == list(map(str, browser_options('tp1', browser_page)))


def browser_options(name, browser_page):
    "The options that the state on the page has."
    result = python_on(browser_page, 'layer')
    p = result.parallel
    state = LayerState(result.model.name, result.system.name, result.system.nvlink_size, result.global_batch, 'paper', p.strategy, p.n_gpus, p.tp1, p.tp2, p.pp, p.micro_batch, p.panels, p.zero_stage)
    return state.settle()[1][name]


def test_browser_search_loads_the_layer_panel(browser_page):
    text, _ = move(browser_page, 'search', 'system', 'B200')
    found = python_on(browser_page, 'search')
    assert f'{panels.short(found.iteration_s[0])} s an iteration' in text
    browser_page.select_option('.panel-search .control-candidate select', label='3')
    browser_page.wait_for_function('document.querySelector(".panel-search .widget-html").innerText.includes("Candidate 3 is in the layer panel")', timeout=30_000)
    browser_page.locator('.lm-TabBar-tab').nth(0).click()
    expected = f'One iteration: {panels.short(found.iteration_s[2])} s'
    browser_page.wait_for_function('words => document.querySelector(".panel-layer svg").textContent.includes(words)', arg=expected, timeout=30_000)


def test_browser_says_why_nothing_fits(browser_page):
    move(browser_page, 'search', 'model', 'vit_era5')
    move(browser_page, 'search', 'system', 'A100')
    text, _ = move(browser_page, 'search', 'n_gpus', '64')
    assert 'No configuration of 64 GPUs is feasible' in text
    assert browser_page.locator('.panel-search svg').count() == 0 and 'Traceback' not in text


def test_browser_others(browser_page):
    text, _ = move(browser_page, 'sweep', 'vary', 'seq_len')
    assert panels.short(python_on(browser_page, 'sweep')['b'].iteration_s.iloc[0]) in text
    text, _ = move(browser_page, 'roofline', 'micro_batch', '4')
    layers = python_on(browser_page, 'roofline')
    assert panels.short((layers.t_fwd_comp + layers.t_fwd_mem)[0] * 1000) in text
    text, _ = move(browser_page, 'collectives', 'kind', 'allreduce')
    assert panels.short(python_on(browser_page, 'collectives')[4][-1] * 1000) in text
    for panel in ('sweep', 'roofline', 'collectives'): assert browser_page.locator(f'.panel-{panel} img').count() == 1


def test_it_listens_to_this_computer_only(site):
    "Bound to 127.0.0.1: another address of this computer, even a local one, is refused."
    with socket.socket() as s: assert s.connect_ex(('127.0.0.1', site)) == 0
    for other in {'127.0.0.2', socket.gethostbyname(socket.gethostname())} - {'127.0.0.1'}:
        with socket.socket() as s:
            s.settimeout(2)
            assert s.connect_ex((other, site)) != 0


def test_the_page_needs_nothing_from_elsewhere(browser_page, site):
    assert answered and all(url.startswith((f'http://127.0.0.1:{site}/', 'data:', 'blob:')) for url in answered)
