"The panels: as pure functions, as widgets moved at random, and at the terminal."
import contextlib
import csv
import dataclasses
import functools
import io
import itertools
import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from thorough import examples, first_of
from frameworks import torchtitan_file
from test_cli import bad, good, has
from transformer_perf import execution, search
from transformer_perf.blocks import STRATEGIES
from transformer_perf.cli import main
from transformer_perf.estimates import FITS_BY, counted
from transformer_perf.iteration import rank_seconds
from transformer_perf.interop import as_job, export
from transformer_perf.iteration import Parallel, estimate, short
from transformer_perf.models import as_model, with_length
from transformer_perf.panels import (
    PANELS, CollectivesState, LayerState, Panel, Panels, RooflineState, SearchState, SweepState,
    charts as chart_panels, drawing, layer as layer_panel, page as panels, search as search_panel,
    server as panel_server, states as panel_states)
from transformer_perf.panels.page import pieces, shown_or_why
from transformer_perf.panels.states import question_of
from transformer_perf.systems import as_system
from transformer_perf.timeline import PLACES, components

HAS_VOILA = find_spec('voila') is not None   # to import it takes seconds


def run(line, folder): return good(*shlex.split(line)[1:], cwd=folder)


def call(text):
    "What a panel's Python call gives: the value of its last expression, and its variables."
    *lines, last = text.split('\n')
    names = {}
    exec('\n'.join(lines), names)  # noqa: S102
    if re.match(r'\w+ = ', last):
        exec(last, names)  # noqa: S102
        return names
    return eval(last, names)


SMALL_SEARCH = SearchState(model='llama3.1_8B', n_gpus=16, global_batch=64)   # quicker
SMALL = {'search': SMALL_SEARCH, 'sweep': SweepState(doublings=1)}


def first_state(name):
    "What a panel opens with; a small search, a sweep of few points."
    return SMALL.get(name) or PANELS[name]()


def first_panel(name): return Panel(first_state(name))


@functools.cache
def looked_at(name): return first_panel(name)   # and never moved


class DrawnOnce(Panel):
    "A panel that draws what it shows of a state when it first comes there."
    def __init__(self, state):
        self.drawn = {}
        super().__init__(state)

    def pieces(self):
        key = self.state, self.ghost, self.pinned
        if key not in self.drawn: self.drawn[key] = [*super().pieces()]
        return self.drawn[key]


# --- random moves ---


def moved_about(state, moves):
    "Move random controls to random options; after each move all on the page is of the state."
    panel = Panel(state)
    for which, option in moves:
        some = [own for own in panel.controls.values() if hasattr(own, 'options')]
        control = some[which % len(some)]
        control.value = control.options[option % len(control.options)][1]
        for name, own in panel.controls.items():
            assert own.value == getattr(panel.state, name)
            assert name == 'own' or own.value in [value for _, value in own.options]
    shown, none = panel.page(), 'This is not possible: '
    assert panel.output.value == shown or none in shown and none in panel.output.value
    assert 'Traceback' not in panel.output.value
    return panel


MOVES = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=5)


@examples(5)
@given(MOVES)
def test_any_moves_of_the_layer_panel(moves):
    panel = moved_about(LayerState(), moves)
    text = panel.output.value
    if 'no configuration of' in text: return   # a batch of 1 on 1024 GPUs
    result = panel.state.estimate
    assert f'One iteration: {short(result.stats["iteration_s"])} s' in text
    assert f'Memory: {result.needed:.1f} of' in text
    assert ('GB too much' in text) == (not result.fits)
    assert result.fits or 'helps most' not in text
    figure = panel.state.show().figure
    assert np.isclose(white_share(figure), result.stats['bubble_s'] / result.stats['iteration_s'],
                      atol=1e-3)


@pytest.mark.thorough
@settings(max_examples=5, deadline=None)
@given(MOVES)
def test_any_moves_of_the_search_panel(moves):
    panel = moved_about(SMALL_SEARCH, moves)
    found = panel.state.found
    words = search_panel.candidate_name(found.iloc[0]) if len(found) else 'No configuration of'
    assert words in panel.output.value


@pytest.mark.thorough
@settings(max_examples=3, deadline=None)
@given(MOVES)
def test_any_moves_of_the_roofline_panel(moves): moved_about(RooflineState(), moves)


@pytest.mark.thorough
@settings(max_examples=4, deadline=None)
@given(MOVES)
def test_any_moves_of_the_collectives_panel(moves): moved_about(CollectivesState(), moves)


@settings(max_examples=2, deadline=None)
@given(st.sampled_from(chart_panels.SWEPT),
       st.sampled_from(('none', 'hbm_capacity', 'nvlink_size')),
       st.sampled_from(('gpt3', 'vit_era5')), st.sampled_from((16, 512)))
def test_any_sweep(vary, second, model, n_gpus):
    panel = Panel(SweepState(doublings=1, model=model, n_gpus=n_gpus))
    panel.controls['vary'].value = vary
    if second in [value for _, value in panel.controls['second'].options]:
        panel.controls['second'].value = second
    assert panel.state.vary != panel.state.second
    assert panel.output.value == panel.page()
    assert 'not possible' not in panel.output.value


@pytest.mark.parametrize('state', first_of(
    1, [CollectivesState(), RooflineState(), LayerState(), SMALL_SEARCH]),
                         ids=lambda state: type(state).__name__)
def test_there_and_back(state):
    "A control moved elsewhere shows something else, if it matters; the first state the first page."
    panel = DrawnOnce(state)
    first, page_before = panel.state, panel.output.value
    changed = 0
    for control in panel.controls.values():
        if not hasattr(control, 'options'): continue
        others = [value for _, value in control.options if value != control.value]
        if not others: continue
        control.value = others[len(others) // 2]
        changed += panel.output.value != page_before
        panel.load(first)
        assert panel.output.value == page_before
    assert changed >= 4
    panel.drawn.clear()
    panel.load(first)
    assert panel.output.value == page_before   # drawn anew, too


def test_the_figure_is_of_the_state():
    "The numbers in the picture, in the table and in the words are those of one estimate."
    for state in (LayerState(), LayerState(strategy='2d', tp=4, cp=2, panels=8),
                  LayerState(model='vit_era5', strategy='2d-seqp', cp=4, pp=1, n_gpus=512)):
        shown, stats = state.show(), state.estimate.stats
        assert f'{stats["samples_per_s"]:.4g} samples/s' in shown.figure
        assert f'bubble {stats["bubble_s"] / stats["iteration_s"]:.1%}' in shown.figure
        assert np.isclose(shown.table.forward_ms.sum(), state.estimate.layers.t_fwd.sum() * 1000)


# --- the picture of the pipeline ---

def white_share(figure):
    "Which share of a timeline's area no coloured shape covers."
    drawn = re.search(r'<g data-part="timeline">(.*?)</g>', figure).group(1)
    sheet, *others = [(float(w), float(h)) for w, h in re.findall(
        r'<rect [^>]*width="([\d.e-]+)" height="([\d.e-]+)"', drawn)]
    shapes = [(float(w), float(h)) for w, h in re.findall(r'h([\d.e-]+)v([\d.e-]+)h-', drawn)]
    return 1 - sum(w * h for w, h in others + shapes) / (sheet[0] * sheet[1])


@pytest.mark.parametrize('state, broken', [
    (LayerState(), True), (LayerState(assumptions='paper'), True),
    (LayerState(assumptions='calibrated'), True), (LayerState(n_gpus=16, tp=4, pp=4), True),
    (LayerState(global_batch=256), False), (LayerState(pp=1), False),
    (LayerState(pp=1, n_gpus=64), True),
    (LayerState(pp=128, global_batch=64), False)])
def test_what_is_white_is_the_bubble(state, broken):
    "The white area of the pipeline is the share stated above it; what is left out shows a break."
    figure, stats = state.show().figure, state.estimate.stats
    bubble = stats['bubble_s'] / stats['iteration_s']
    assert f'bubble {bubble:.1%}' in figure
    assert np.isclose(white_share(figure), bubble, atol=1e-3)
    assert ('micro-batches of the middle left out' in figure) == broken
    assert (f'fill="{drawing.BROKEN}"' in figure) == broken


# --- the advice ---

CORRECTED = LayerState(assumptions='corrected')
GPT3 = dataclasses.replace(CORRECTED, model='gpt3', global_batch=1024, tp=8, pp=4)   # 2048 H200


def test_the_advice_does_not_follow_a_slip():
    "Stage 0 moves as much as stage 1: only the published model finds it faster, and that is said."
    words = GPT3.show().words
    assert 'The single change that helps most: tp 4 instead of 8' in words and 'ZeRO' not in words
    zero = {stage: dataclasses.replace(GPT3, zero_stage=stage).estimate.stats['iteration_s']
            for stage in (0, 1)}
    assert zero[0] > zero[1]
    published = dataclasses.replace(GPT3, assumptions='paper').show().words
    assert 'ZeRO stage 0 instead of 1' in published
    assert 'That is a slip of the published model' in published


@pytest.mark.parametrize('state', first_of(3, [
    GPT3, LayerState(strategy='2d', cp=2, panels=8), LayerState(assumptions='calibrated'),
    LayerState(), LayerState(system='A100', pp=16)]))
def test_the_advice_is_the_best_step(state):
    "No step that fits is ranked ahead of the one advised, priced one by one; as in `improve`."
    state, options = state.settle()
    steps = layer_panel.one_step(state, options, question_of(state), layer_panel.STEP_FIELDS)
    best = layer_panel.best_step(steps, state.estimate)
    run_already = rank_seconds(state.estimate.stats) > state.estimate.stats['iteration_s']
    for step in steps:
        result = step.state.estimate
        seconds = result.stats['iteration_s']
        rank = seconds if run_already else rank_seconds(result.stats)
        assert np.allclose((step.seconds, step.memory, step.ranked),
                           (seconds, result.needed, rank), rtol=1e-12)
        if result.fits: assert best.ranked <= rank
    assert best.fits and f'{short(best.seconds)} s an iteration' in state.show().words


def test_the_advice_goes_where_runs_were():
    "SUMMA would be the fastest step, but nobody timed it; as a challenge it is no better either."
    state, options = LayerState().settle()
    controls = {*layer_panel.STEP_FIELDS} - {'own'}
    steps = layer_panel.one_step(state, options, question_of(state), controls)
    fastest = min((step for step in steps if step.fits), key=lambda step: step.seconds)
    best = layer_panel.best_step(steps, state.estimate)
    assert fastest.state.strategy == '2d' and best.control == 'virtual_stages'
    assert fastest.seconds < best.seconds == best.ranked < fastest.ranked
    assert layer_panel.gain_words(state.estimate, fastest).endswith(', untested')
    assert 'untested' not in layer_panel.gain_words(state.estimate, best)


def test_a_challenge_is_not_met_where_nobody_was():
    state = LayerState(model='llama3.1_405B', system='H100-80GB', n_gpus=1024, global_batch=2048,
                       strategy='2d-seqp', tp=4, cp=4, virtual_stages=2, task='challenge')
    own = state.estimate.stats
    seconds, rank = layer_panel.optimum(layer_panel.job_alone(state))
    assert own['iteration_s'] < seconds == rank < own['likely_s']
    words = state.show().words
    assert f'Score {100 * rank / own["likely_s"]:.0f} of 100: the optimum' in words
    assert f'This one counts as {short(own["likely_s"])} s: no measured run came near' in words


@pytest.mark.parametrize('state', [
    LayerState(tp=1), LayerState(n_gpus=16, system='A100', nvlink_size=4, tp=4, pp=4)])
def test_advice_where_nothing_fits(state):
    "It says what is still too large, and recommends what leaves least to save."
    state, options = state.settle()
    words, capacity = state.show().words, as_system(state.system).hbm_capacity
    steps = layer_panel.one_step(state, options, question_of(state), layer_panel.STEP_FIELDS)
    least = min(step.memory for step in steps)
    assert not any(step.fits for step in steps) and least < state.estimate.stats['memory_GB']
    assert 'helps most' not in words and 'No single change makes it fit' in words
    assert f'{least:.1f} GB, still too large by {least - capacity:.1f} GB' in words


@pytest.mark.parametrize('given, step', [
    (dict(model='mixtral_8x7B', software='plain', system='H100-80GB', n_gpus=32, global_batch=64,
          tp=1, pp=1, ep=8, recompute='full'), dict(tp=2)),
    (dict(model='vit_era5', n_gpus=48, global_batch=256, assumptions='corrected', tp=1, pp=3,
          micro_batch=2, recompute='full', zero_stage=2, own='adapters=lora:8'),
     dict(strategy='2d'))])
def test_a_step_takes_what_its_state_takes(given, step):
    "With experts it shares out the sequence, whatever is usual; SUMMA has no adapters to step to."
    state, options = LayerState(**given).settle()
    (control, value), = step.items()
    moved, = (one for one in layer_panel.one_step(state, options, question_of(state), [control])
              if getattr(one.state, control) == value)
    try: seconds = moved.state.estimate.stats['iteration_s']
    except ValueError: seconds = np.inf
    assert moved.seconds == pytest.approx(seconds, rel=1e-9)


def test_advice_that_makes_it_fit():
    state = LayerState(system='A100', pp=16)
    assert not state.estimate.fits
    words = state.show().words
    assert 'The best single change that makes it fit' in words and 'too large' not in words


def test_nothing_to_advise():
    alone = dataclasses.replace(CORRECTED, n_gpus=1, tp=1, pp=1, recompute='full')
    assert 'No single step of a control makes it smaller.' in alone.show().words


def test_no_unfair_advice_for_summa():
    "SUMMA hides its messages by design: it is not advised before 1D hides its own, too."
    waiting, hiding = LayerState(), LayerState(own='tp_overlap=true')
    words = waiting.show().words
    assert 'helps most: messages of tp hidden behind products (type tp_overlap=true)' in words
    assert 'Assumed: the messages of tp are waited for' in words
    seconds = hiding.estimate.stats['iteration_s']
    assert f'{short(seconds)} s an iteration' in words
    assert seconds < waiting.estimate.stats['iteration_s']
    for state in (hiding, LayerState(strategy='2d', panels=8), CORRECTED):
        assert 'Assumed' not in state.show().words
    assert 'strategy 2d' not in hiding.show().words


# --- what an operation is bound by ---

def longest(op, layer, system):
    "What an operation waits for longest, worked out by hand."
    passes = [counted(work, system.units) for work in (op.forward, op.backward)]
    matrix, vector, nbytes = map(sum, zip(*passes))
    arithmetic = matrix / system.matrix_flops_fp16 + vector / system.vector_flops_fp16
    alone = {'compute': arithmetic / .8, 'memory': nbytes / system.hbm_bandwidth,
             'launch': 2 * 20e-6,
             'network': layer.t_fwd_comm + layer.t_bwd_comm}
    return max(alone, key=alone.get)


@pytest.mark.parametrize('state', [
    LayerState(), RooflineState(model='gpt3_1T'), RooflineState(seq_len=16384, micro_batch=4),
    LayerState(model='vit_era5', strategy='2d-seqp', cp=4, pp=1, n_gpus=512)],
    ids=['layer', 'roofline', 'long', 'context'])
def test_one_rule_for_what_binds(state):
    "Both panels give the answer of the estimate: whatever takes longest, each taken alone."
    state = dataclasses.replace(state, assumptions='corrected')
    table, result = state.show().table, state.estimate
    operations = layer_panel.operations_of(result)
    expected = {op.name: longest(op, layer, result.system)
                for op, layer in zip(operations, result.layers.itertuples())}
    assert dict(zip(result.layers.layer, result.layers.bound_by)) == expected
    assert [expected[name] for name in table.operation] == list(table.bound_by)


def test_a_dropout_waits_for_memory():
    table = LayerState(assumptions='paper').show().table.set_index('operation')
    assert (table.bound_by[['dpr1', 'fc2-bias', 'vproj-bias', 'act1']] == 'memory').all()
    assert table.bound_by['fc1'] == 'compute' and table.bound_by['ln1'] == 'network'


# --- the roofline's two ridges ---

@pytest.mark.parametrize('assumptions, reached', [('corrected', 164.9), ('calibrated', 201.6)])
def test_both_ridges_are_explained(assumptions, reached):
    state = RooflineState(assumptions=assumptions)
    shown, (sheet, kernels) = state.show(), chart_panels.roofs(state.estimate)
    assert np.isclose(sheet.ridge, 989.4 / 4.8)
    assert np.isclose(kernels.ridge, reached, atol=.05)   # of arithmetic more is lost
    assert f'ridge of the matrix units is at {short(sheet.ridge)} FLOP' in shown.words
    assert f'which puts it at {short(kernels.ridge)}' in shown.words
    assert f'{kernels.matrix / sheet.matrix:.0%} of the peak' in shown.words
    labels = [text.get_text() for text in shown.figure.legends[0].get_texts()]
    assert {'matrix units, data sheet', 'matrix units, reached'} <= set(labels)


# --- sweeps ---

@functools.cache
def map_of(**fields):
    shown = SweepState(doublings=1, **fields).show()
    return shown, shown.figure.axes[:2], shown.figure.axes[-1].get_ylabel()


def test_a_sweep_says_where_its_best_is_untested():
    "Domains of 8 GPUs seem to be slower than of 4: there the best has fewer tokens than any run."
    job = dict(model='llama3.1_405B', system='H100-80GB', strategy='2d-seqp', n_gpus=512)
    state = SweepState(vary='nvlink_size', **job, **{f'{name}_b': x for name, x in job.items()})
    shown = state.show()
    for name, own in shown.table.groupby('scenario'):
        untested = (own.likely_s > own.iteration_s).sum()
        assert 0 < untested < len(own) and not own.iteration_s.is_monotonic_decreasing
        assert own.likely_s.is_monotonic_decreasing
        assert f'At {untested} of {len(own)} points the best is untested' in shown.words
    assert 'untested' not in SweepState(doublings=1).show().words


def test_a_map_over_the_batch_shows_throughput():
    shown, _, colour = map_of(vary='n_gpus', second='global_batch')
    assert colour == 'samples/s'
    assert 'samples/s, most at n_gpus 4,096, global_batch 8,192' in shown.words
    assert 'least' not in shown.words
    assert not shown.figure.legends[0].get_texts()   # no `1.1 x the best` time
    assert map_of(vary='hbm_bandwidth', second='n_gpus')[2] == 'iteration (s)'
    lines = SweepState(vary='global_batch', doublings=1).show().figure
    assert lines.axes[0].get_ylabel() == 'samples/s'


@pytest.mark.parametrize('vary, second', [('n_gpus', 'global_batch'), ('hbm_bandwidth', 'n_gpus')])
def test_ticks_are_where_the_points_are(vary, second):
    _, axes, _ = map_of(vary=vary, second=second)
    for ax in axes:
        for ticks, field in ((ax.get_xticks(), vary), (ax.get_yticks(), second)):
            assert len(ticks) >= 3
            assert set(ticks) <= set(chart_panels.swept_values(SweepState(doublings=1), field))


# --- presets ---

def test_calibrated_unless_asked():
    for State in PANELS.values():
        settled, options = State().settle()
        assert settled.assumptions == 'calibrated'
        assert sorted(options['assumptions']) == ['calibrated', 'corrected', 'paper']


@pytest.mark.parametrize('name', first_of(1, PANELS))
def test_calibrated_prices_any_architecture(name, tmp_path):
    "Where its kernels were not measured those of another are taken, and an estimate says so."
    own = dataclasses.asdict(as_system('A100')) | {'architecture': 'Aurora', 'empirical': False}
    file = tmp_path / 'odd.json'
    file.write_text(json.dumps({key: value for key, value in own.items() if key != 'name'}))
    panel = first_panel(name)
    panel.moved('system', str(file))
    offered = [value for _, value in panel.controls['assumptions'].options]
    assert panel.state.assumptions == 'calibrated' and 'calibrated' in offered
    assert panel.output.value.count('<pre') == 3


def test_only_measured_prices_know_software():
    "Another preset lets go of it, and is shown."
    panel = Panel(LayerState(software='Megatron-LM'))
    panel.controls['assumptions'].value = 'corrected'
    assert panel.state.software == 'any' and 'svg' in panel.output.value


def test_calibrated_collectives_are_measured_ones():
    times = {name: CollectivesState(assumptions=name).show().table.predicted_ms
             for name in ('corrected', 'calibrated')}
    assert np.mean(np.isclose(times['corrected'], times['calibrated'], rtol=.01)) < .1


# --- what every panel has ---

@pytest.mark.parametrize('name', first_of(1, PANELS))
def test_back_and_forward(name):
    "The states of a panel are kept in order; a new one after going back drops those after it."
    panel = DrawnOnce(first_state(name))
    first, buttons = panel.state, panel.bar.buttons
    assert buttons['back'].disabled and buttons['forward'].disabled
    panel.controls['assumptions'].value = 'paper'
    panel.controls['system'].value = 'B200'
    second, third = panel.history.states[1:]
    buttons['back'].click()
    buttons['back'].click()
    assert panel.state == first and buttons['back'].disabled
    buttons['forward'].click()
    assert panel.state == second and panel.controls['assumptions'].value == 'paper'
    panel.controls['system'].value = 'H200' if second.system != 'H200' else 'A100'
    assert panel.history.states[:2] == [first, second] and third not in panel.history.states
    assert buttons['forward'].disabled


@pytest.mark.parametrize('name, control, value', first_of(1, [
    ('layer', 'tp', 16), ('collectives', 'kind', 'allreduce'), ('search', 'system', 'B200'),
    ('sweep', 'doublings', 2), ('roofline', 'micro_batch', 4)]))
def test_a_pinned_state_is_compared(name, control, value):
    "Each number of A, of B and their ratio; nothing where nothing changed; A can be unpinned."
    panel = first_panel(name)
    panel.bar.buttons['pin'].click()
    assert 'A against B.' not in panel.output.value
    before = panel.state.show().facts
    panel.controls[control].value = value
    after, text = panel.state.show().facts, panel.output.value
    assert 'A against B.' in text and 'The picture of A' in text
    changed = [key for key in before if key in after and before[key] and before[key] != after[key]]
    assert changed and all(f'{after[key] / before[key] - 1:+.1%}' in text for key in changed)
    panel.bar.buttons['pin'].click()
    assert 'A against B.' not in panel.output.value


@pytest.mark.parametrize('state', [
    LayerState(tp=16, placement=(8, 1, 1, 1), own='seq_len=8192,ib_eff=0.5', hbm_bandwidth=6000.),
    SearchState(hbm_capacity=288., candidate=2), SweepState(second='nvlink_size', doublings=1),
    RooflineState(micro_batch=4), CollectivesState(kind='allreduce')])
def test_a_state_is_said_in_three_ways(state):
    "Its address, its command and its Python call give it back."
    assert panels.addressed(panel_states.address_of(state)) == state
    _, _, name, *settings = shlex.split(panel_states.command_of(state))
    assert panels.state_of(name, settings) == state
    assert call(panels.state_call(state)).state == state.settle()[0]


@pytest.mark.parametrize('name', first_of(1, PANELS))
def test_files(name, monkeypatch):
    "The table that a CSV holds is the panel's; the picture is a PNG; a job can be launched."
    panel, made, files_of = first_panel(name), [], panels.files_of
    monkeypatch.setattr(panels, 'files_of', lambda *asked: made.append(files_of(*asked)) or made[0])
    panel.bar.buttons['files'].click()
    shown, ((files, failed),) = panel.state.show(), made
    assert all(f'download="{file}"' in panel.notes.value for file in files)
    assert all(f'{why.split(":")[0]}.' not in ' '.join(files) for why in failed)
    again = pd.read_csv(io.BytesIO(files[f'{name}.csv']))
    assert len(again) == len(shown.table) and list(again) == list(shown.table)
    assert files[f'{name}.png'].startswith(b'\x89PNG')
    if name in ('layer', 'search'):
        job = export(panel.state.job, 'megatron')
        assert files['megatron.sh'].decode() == job and 'torchrun' in job
    panel.load(dataclasses.replace(panel.state, assumptions='paper'))
    assert panel.notes.value == ''   # they were of another state


def test_own_lengths_train_on_as_many_tokens():
    "As `--seq-len` does; and the Python that is said names the same model."
    state = LayerState(model='llama3.1_8B', own='seq_len=16384')
    model, _ = panel_states.named_in(state)
    imports, said, _ = panel_states.calls_of(state)
    assert model.seq_len * model.train_samples == pytest.approx(15e12)
    assert call('\n'.join([*imports, said])) == model


def test_own_values():
    "What is typed is priced; what makes no sense is one sentence and changes nothing."
    panel = Panel(LayerState())
    panel.bar.typed.value = 'seq_len=4096 hbm_bandwidth=9600 n_gpus=1280 global_batch=5120'
    result = panel.state.estimate
    assert result.model.seq_len == 4096 and result.system.hbm_bandwidth == 9600
    assert (panel.state.n_gpus, panel.state.global_batch, panel.notes.value) == (1280, 5120, '')
    there = call(panel.state.python())
    assert there.stats == result.stats
    for text, why in (('tq=8', "unknown control 'tq'"), ('tp=x', 'must be tp=VALUE'),
                      ('tp=0', 'tp=0 must be'), ('tp=2 tp=4', 'tp is set twice'),
                      ('seq_len=-1', 'seq_len=-1'), ('nvlink_eff=2', 'nvlink_eff=2')):
        before = panel.state
        panel.bar.typed.value = text
        said = panel.notes.value + panel.output.value
        assert why in said.replace('&#x27;', "'"), text
        panel.load(before)
    panel.bar.typed.value = 'n_gpus=1537'
    assert 'The nearest that is possible: GPUs 1,537 → ' in panel.notes.value


@pytest.mark.parametrize('words, why', [
    ('layer tp=0', 'tp=0 must be a whole number from 1'), ('layer tp=2 tp=4', 'tp is set twice'),
    ('sweep vary=none', "unknown quantity to sweep 'none'"),
    ('sweep doublings=21', 'doublings=21 must be'), ('search own=abc', "unknown number 'abc'"),
    ('roofline micro_batch=-1', 'micro_batch=-1 must be'), ('collectives n_gpus=0', 'n_gpus=0'),
    ('collectives n_gpus=1', 'n_gpus=1 must be a whole number from 2')])
def test_a_setting_that_cannot_be_is_refused(words, why):
    assert why in bad('panels', *words.split())


def test_no_sharing_of_weights_is_a_setting():
    assert 'Evidence' in good('panels', 'layer', 'zero_stage=0')


def test_the_bar_before_is_dashed():
    "A move leaves the outline of the bar that was there; its width is the old time."
    panel = Panel(LayerState())
    before = panel.state.estimate.stats['iteration_s']
    panel.controls['hbm_bandwidth'].value = panel.controls['hbm_bandwidth'].options[0][1]
    assert f'before: {short(before)} s' in panel.output.value
    assert panel.state.estimate.stats['iteration_s'] > before
    assert 'before: ' not in ''.join(pieces(panel.state, panel.state.show()))


@pytest.mark.parametrize('model, assumptions', first_of(1, itertools.product(
    ['deepseek_v3', 'mixtral_8x7B', 'gpt_oss_120B'], ['calibrated', 'corrected'])))
def test_models_with_experts(model, assumptions):
    "They are offered, with their own control; what the panel shows is what the estimate says."
    panel = Panel(LayerState(assumptions=assumptions, n_gpus=512, strategy='2d'))
    panel.controls['model'].value = model
    assert panel.state.strategy == '1d' and not panel.controls['ep'].disabled
    panel.controls['ep'].value = 8
    result = panel.state.estimate
    assert result.parallel.ep == 8 and result.model.experts
    table = panel.state.show().table
    assert np.isclose(table.forward_ms.sum(), result.layers.t_fwd.sum() * 1000)
    seconds = f'One iteration: {short(result.stats["iteration_s"])} s'
    assert seconds in panel.output.value and call(panel.state.python()).stats == result.stats


def test_messages_of_experts_have_one_name():
    state = LayerState(model='deepseek_v3', system='H100-80GB', pp=16, ep=64)
    shown, parts = state.show(), components(state.estimate.row)
    assert state.estimate.parallel.ep == 64 and parts['tp_comm_s'] == 'TP, EP comm'
    assert 'Limited by TP, EP comm' in shown.tell() and 'TP, EP comm' in shown.figure
    alone = dataclasses.replace(state, ep=1).show()
    assert shown.facts.keys() == alone.facts.keys() >= {'TP, EP comm (s)'}   # side by side
    assert LayerState(assumptions='paper').show().facts.keys() == shown.facts.keys()
    assert 'TP, EP comm' not in alone.tell()
    found = search('qwen3_30B_A3B', 64, 'H100-80GB', 512)
    assert (found.ep > 1).any()
    grew = {*search_panel.why_slower(found).grew}
    assert 'TP comm' not in grew and grew <= {*components(found).values(), 'untested'}


def test_what_is_untested_is_behind_and_says_so():
    "It takes less by the count, yet nothing is slower by less than nothing; the map agrees."
    state = SearchState(model='llama3.1_405B', system='H100-80GB', n_gpus=1024, strategy='2d-seqp')
    found, shown = state.found, state.show()
    untested = found.likely_s > found.iteration_s
    assert not untested[0] and found.iteration_s[untested].min() < found.iteration_s[0]
    assert (np.diff(shown.table.slower_s) >= 0).all()
    assert set(shown.table.grew[untested]) == {'untested'}
    assert list(shown.view).index('slower by') == list(shown.view).index('likely s') + 1
    assert str(shown.figure).count(', untested') == untested.sum()
    assert f'Of the 9 others {untested.sum()} are behind mostly because no measured' in shown.words
    cells = search_panel.map_cells(state)
    first = cells[(cells.tp == found.tp[0]) & (cells.pp == found.pp[0])].iloc[0]
    fastest = cells.loc[cells.seconds.idxmin()]
    looks = [search_panel.cell_of(cell, cells.ranked.min(), 1e9) for cell in (first, fastest)]
    assert looks[0].color == search_panel.shade(1) != looks[1].color
    assert looks[1].tip.endswith(f'times the best, as {short(fastest.ranked)} s, untested')


def test_calibrated_has_an_interval():
    "Its ends are in the words of the layer and of the search panel, and drawn as a line."
    for state in (LayerState(assumptions='calibrated'), SearchState(assumptions='calibrated')):
        shown = state.show()
        row = state.found.iloc[0] if isinstance(state, SearchState) else state.estimate.stats
        low, high = (short(row[f'iteration_{end}_s']) for end in ('low', 'high'))
        assert f'four of five runs: {low} to {high} s' in shown.words
        plain = dataclasses.replace(state, assumptions='paper').show()
        assert 'data-part="interval"' in shown.figure and 'interval' not in plain.figure


@pytest.mark.parametrize('name', PANELS)
def test_every_control_has_help(name):
    panel = looked_at(name)
    told = panel.widget.children[-1].value
    for field, control in panel.controls.items():
        assert control.tooltip and control.tooltip == panel_states.HELP[field.removesuffix('_b')]
        assert panel_states.control_name(field) in told or field.endswith('_b')
    assert panels.CHAPTERS[name] in told


@pytest.mark.parametrize('name', PANELS)
def test_few_controls_before_the_picture(name):
    "Ten at most; whatever is folded or below the picture, no control is lost."
    panel = looked_at(name)
    first, *folded, page_of_panel, _ = panel.widget.children
    assert page_of_panel is panel.output and len(first.children) <= panels.MOST_CONTROLS
    assert all(row.selected_index is None for row in folded)
    later = [own for row in folded for own in row.children[0].children]
    below = [own for own in panel.output.children if own in panel.controls.values()]
    assert {*first.children, *later, *below} == {*panel.controls.values()}


def test_a_tab_is_made_when_it_is_looked_at():
    both = Panels()
    assert list(both.panels) == ['layer']
    both.widget.selected_index = list(PANELS).index('roofline')
    assert list(both.panels) == ['layer', 'roofline']
    assert both.widget.children[both.widget.selected_index].children


# --- the map ---

@pytest.mark.parametrize('state', first_of(1, [
    SearchState(map='tp x dp', system='A100'), SearchState(),
    SearchState(model='mixtral_8x7B', map='ep x pp', n_gpus=512, global_batch=1024),
    SearchState(strategy='2d-seqp', map='cp x pp', n_gpus=512),
    SearchState(assumptions='calibrated', system='B200')]))
def test_each_cell_of_the_map(state):
    "Its time is what a search of that cell alone finds; where none fits, it finds none."
    cells, names = search_panel.map_cells(state), state.map.split(' x ')
    capacity = as_system(state.system).hbm_capacity
    assert cells.ranked.min() == rank_seconds(state.found).min()
    for _, cell in cells.sample(8, random_state=1).iterrows():
        found = search_panel.found_by(state, 1, **{name: int(cell[name]) for name in names})
        assert len(found) == np.isfinite(cell.seconds)
        if len(found):
            assert np.isclose(found.iteration_s[0], cell.seconds, rtol=1e-12)
            needed = FITS_BY[found.fits_by[0]]
            assert np.isclose(found[needed][0], cell.GB, rtol=1e-12)
        assert len(found) or cell.GB > capacity


RULE = re.compile(r'button:nth-child\((\d+)\) {grid-area: (\d+) / (\d+); color: (#?\w+); '
                  r'background: (#\w+); border: (\d)px')


def test_a_cell_is_loaded():
    "A click loads its best; one where nothing fits says why and loads nothing; a second lets go."
    both = Panels()
    search, layer = both.panels['search'], both.panels['layer']
    shown = search.controls['cell']
    def click(cell):
        shown.buttons.value = cell
        shown.buttons._handle_custom_msg({'event': 'click'}, [])
    framed = lambda: [shown.buttons.options[int(rule[0]) - 1][1]
                      for rule in RULE.findall(shown.look.value) if rule[-1] != '0']
    priced = layer_panel.priced_state.cache_info().misses
    click('16 x 8')
    assert layer_panel.priced_state.cache_info().misses == priced + 1   # for both panels
    loaded = layer.state.tp, layer.state.pp
    assert loaded == (16, 8) and framed() == ['16 x 8']
    seconds = layer.state.estimate.stats['iteration_s']
    assert f'tp x pp = 16 x 8 takes {short(seconds)} s' in search.output.value
    assert search.controls['candidate'].disabled
    click('1 x 1')
    assert 'Nothing of tp x pp = 1 x 1 runs' in search.output.value.replace('&#x27;', "'")
    assert layer.state.tp == 16 and framed() == ['1 x 1']
    click('1 x 1')
    assert search.state.cell == 'none' and framed() == []
    search.bar.buttons['back'].click()
    assert search.state.cell == '1 x 1' and framed() == ['1 x 1']


@pytest.mark.parametrize('state', first_of(3, [
    SearchState(), SearchState(map='tp x dp', system='A100'), SearchState(system='A100', n_gpus=64),
    SearchState(model='mixtral_8x7B', map='ep x pp', n_gpus=512, global_batch=1024)]))
def test_the_buttons_are_the_map(state):
    "Each says the time, or what is needed in vain, of the cell whose sizes stand beside it."
    panel = Panel(SearchState())
    panel.load(state)
    shown, cells = panel.controls['cell'], search_panel.map_cells(panel.state)
    names, best = list(cells)[:2], cells.ranked.min()
    heads = {(row, column): words for row, column, words in re.findall(
        r'grid-area: (\d+) / (\d+)">(.*?)<', shown.look.value)}
    assert heads['1', '1'] == ' \\ '.join(names)
    for (_, at, across, _, color, _), (words, cell), tip, row in zip(
            RULE.findall(shown.look.value), shown.buttons.options, shown.buttons.tooltips,
            cells.itertuples(), strict=True):
        assert cell == f'{row[1]} x {row[2]}' == f'{heads[at, "1"]} x {heads["1", across]}'
        assert tip.startswith(f'{names[0]} {row[1]}, {names[1]} {row[2]}: ')
        if np.isfinite(row.seconds):
            said = f'{short(row.seconds)} s'
            assert words == said and f': {said}, {short(row.GB)} GB' in tip
            assert (color == search_panel.shade(1.)) == (row.ranked < 1.05 * best)
        else: assert 'needs' in tip and color == '#e4e4e4'


def test_a_new_map_is_few_messages(monkeypatch):
    "Other sizes, then a chosen cell: one message for each of the map's widgets that changes."
    panel, sent = Panel(SearchState()), []
    monkeypatch.setattr(panels.ipywidgets.Widget, '_send',
                        lambda own, *message, **buffers: sent.append(own))
    own = panel.controls['cell']
    for control, value, changed in (('map', 'tp x dp', [own.title, own.buttons, own.look]),
                                    ('cell', '8 x 16', [own.look])):
        sent.clear()
        panel.controls[control].value = value
        of_map = {own, own.title, own.grid, own.buttons, own.look}
        assert [widget for widget in sent if widget in of_map] == changed


def test_no_map_of_what_is_impossible(tmp_path):
    panel = Panel(SearchState())
    panel.moved('system', str(tmp_path / 'missing.json'))
    assert 'This is not possible' in panel.output.value
    assert panel.controls['cell'].layout.display == 'none'
    panel.moved('system', 'H200')
    assert panel.controls['cell'].layout.display is None


def test_after_nothing_fitted_no_bar_is_dashed():
    panel = Panel(SearchState(n_gpus=8))
    assert 'No configuration of' in panel.output.value
    panel.controls['n_gpus'].value = 2048
    assert 'svg' in panel.output.value and 'nan' not in panel.output.value


# --- the pipeline, watched ---

def player(state):
    "A panel's player, unfolded."
    watched = Panel(state).parts[0]
    watched.widget.selected_index = 0
    return watched


@pytest.mark.parametrize('state', first_of(2, [
    LayerState(virtual_stages=2), LayerState(pp=1), LayerState(),
    LayerState(pp=8, global_batch=64)]))
def test_a_moment_of_the_pipeline(state):
    "The passes that have ended, and the stages that idle, are those of the schedule."
    watched = player(state)
    for span, at in (((0, 100), 0), ((0, 100), 37), ((3, 9), 75), ((95, 100), 60), ((50, 50), 5)):
        watched.span.value, watched.at.value = span, at
        p = watched.pipeline
        passes = pd.DataFrame(drawing.passes_of_1f1b(p))
        start, end = (p.total * share / 100 for share in span)
        now = start + max(end - start, p.total / 1000) * at / panels.MOMENTS
        ended = passes[(passes.stage == 0) & (passes.end <= now + 1e-12)]
        busy = passes[(passes.start <= now + 1e-9) & (passes.end > now + 1e-9)].stage.nunique()
        said = re.search(r'ended ([\d,]+) forward and ([\d,]+) backward .*; (\d+) of',
                         watched.picture.value)
        assert [int(text.replace(',', '')) for text in said.groups()] == [
            (~ended.backward).sum(), ended.backward.sum(), p.pp - busy]


@pytest.mark.parametrize('span', [(.2, .5), (.9, 1.), (.51, .52)])
def test_a_range_of_the_pipeline(span):
    "What is white of a range, all of it drawn, is what its stages idle."
    p = drawing.Pipeline(8, 64, 1., 2., 3.)
    start, end = span = tuple(share * p.total for share in span)
    passes = pd.DataFrame(drawing.passes_of_1f1b(p))
    busy = (passes.end.clip(start, end) - passes.start.clip(start, end)).sum()
    busy += p.pp * max(end - max(start, p.seconds), 0)
    drawn = drawing.drawing(drawing.drawn_timeline(0, 0, 1000, 144, p, span=span), 1000, 200)
    assert np.isclose(white_share(drawn), 1 - busy / (p.pp * (end - start)), atol=1e-3)
    assert 'left out' not in drawn


def test_the_player_is_folded_and_follows():
    panel = Panel(LayerState())
    watched = panel.parts[0]
    assert 'svg' not in watched.picture.value   # nothing is drawn that nobody sees
    watched.widget.selected_index = 0
    assert '32 stages' in watched.picture.value
    panel.controls['pp'].value = 16
    assert '16 stages' in watched.picture.value
    panel.bar.typed.value = 'seq_len=-1'
    assert watched.picture.value == ''


def test_the_candidate_of_a_wide_search_is_loaded_whole():
    "Calibrated, a search tries recompute and interleaving too: the layer panel has both."
    state = SearchState(assumptions='calibrated')
    for rank in (1, 4):
        chosen = dataclasses.replace(state, candidate=rank).chosen()
        assert chosen.settle()[0] == chosen
        assert np.isclose(chosen.estimate.stats['iteration_s'], state.found.iteration_s[rank - 1])


# --- experiments, the challenge and a model of one's own ---

@pytest.mark.parametrize('name', first_of(
    2, [name for name, task in layer_panel.EXPERIMENTS.items() if task]))
def test_experiments_can_be_solved(name):
    "Not solved where it begins, on a possible state; some configuration reaches the goal."
    panel = Panel(LayerState())
    panel.controls['task'].value = name
    state, task = panel.state, layer_panel.EXPERIMENTS[name]
    assert all(getattr(state, key) == value for key, value in task.start.items())
    if task.seconds is None: return
    assert 'not yet' in panel.output.value
    (model, system), ways = panel_states.named_in(state), STRATEGIES
    strategies = execution.strategies_for(model)
    assert set(strategies) <= set(ways)
    found = execution.search(model, state.n_gpus, system, state.global_batch, strategies, 2000,
                          state.assumptions, zero_stages=[0, 1, 2, 3], **execution.practice(model))
    best = found[found.memory_GB < task.memory].iloc[0]
    solved = search_panel.layer_state_of(SearchState(
        **{key: getattr(state, key) for key in panel_states.HELD}), best)
    panel.load(dataclasses.replace(solved, task=name))
    assert 'solved!' in panel.output.value and best.iteration_s < task.seconds
    panel.controls['nvlink_size'].value = 64
    assert 'Put back what is not of the configuration: NVLink size' in panel.output.value


def test_the_challenge():
    "The optimum scores 100, what does not fit 0, and all else between."
    panel = Panel(LayerState(task='challenge'))
    best = execution.search('gpt3_1T', 2048, as_system('H200', 8), 4096, '1d', 1, 'corrected',
                         zero_stages=[0, 1, 2, 3], **execution.practice(as_model('gpt3_1T')))
    for state, score in ((search_panel.layer_state_of(CORRECTED, best.iloc[0]), 100),
                         (LayerState(tp=1), 0), (LayerState(tp=16), None)):
        panel.load(dataclasses.replace(state, assumptions='corrected', task='challenge'))
        said = int(re.search(r'Score (\d+)', panel.output.value)[1])
        assert said == score if score is not None else 50 < said < 100


CONFIG = {'model_type': 'llama', 'hidden_size': 2048, 'intermediate_size': 8192, 'vocab_size': 1000,
          'num_attention_heads': 16, 'num_hidden_layers': 24, 'max_position_embeddings': 4096}


def test_an_uploaded_model():
    panel = Panel(LayerState(n_gpus=64, pp=4))
    files = [{'name': '../config.json', 'content': json.dumps(CONFIG).encode()}]
    panels.load_model(panel, files)
    result = panel.state.estimate
    assert (result.model.name, result.model.embed_dim, result.model.depth) == ('uploaded', 2048, 24)
    assert 'uploaded' in panel.output.value and Path(panel.state.model).name == 'config.json'
    for content in (b'{', b'{"model_type": "bert"}'):
        panels.load_model(panel, [{'name': 'odd.json', 'content': content}])
        assert 'This is not possible' in panel.notes.value and panel.state.model != 'odd.json'
    assert panel.state.estimate.model.name == 'uploaded'


# --- memory over time ---

@pytest.mark.parametrize('state', [
    LayerState(), LayerState(pp=1), LayerState(pp=128, global_batch=64),
    LayerState(virtual_stages=2), LayerState(system='A100', pp=16)])
def test_memory_over_time(state):
    "It begins and ends with what stays; its most is the memory that is stated."
    result = state.estimate
    pipeline = layer_panel.pipeline_of(result, layer_panel.layer_table(result))
    time, kept = drawing.in_flight(pipeline)
    assert kept[-1] == 0 and (np.diff(time) >= -1e-9).all()   # rounding
    assert kept.max() == min(pipeline.pp, pipeline.micro_batches)
    store = layer_panel.store_of(result)
    assert np.isclose(store.below + store.most[1], result.needed)
    path = drawing.activation_steps(0., 1000., 100., 1., pipeline, store)
    tops = [float(corner.split(',')[1]) for corner in path.split('"')[3].split()]
    assert np.isclose(1000 - min(tops), store.most[1], atol=.1)


# --- what is impossible ---

@pytest.mark.parametrize('state, words', [
    (LayerState(n_gpus=7), 'n_gpus=7 must be divisible by tp*cp*pp=256'),
    (LayerState(tp=64, pp=1), 'heads=160 must be divisible by tp=64'),
    (LayerState(strategy='3d'), "unknown strategy '3d'"),
    (LayerState(placement=(8, 1, 2, 1)),
     '16 GPUs placed in one NVLink domain, more than its nvlink_size=8'),
    (LayerState(system='H20'), "did you mean 'H200'"),
    (LayerState(model='missing.json'), 'missing.json: cannot be read'),
    (LayerState(sort='colour'), "unknown order 'colour'"),
    (LayerState(assumptions='papr'), "unknown assumptions 'papr'; did you mean 'paper'?"),
    (RooflineState(tp=7), 'heads=96 must be divisible by tp=7'),
    (CollectivesState(kind='gossip'), "unknown collective 'gossip'"),
    (SweepState(vary='price'), "unknown quantity to sweep 'price'"),
])
def test_the_impossible_is_one_sentence(state, words):
    text = ''.join(pieces(state, shown_or_why(state)))
    assert words in text.replace('&#x27;', "'") and text.count('<p>') == 1
    assert not any(sign in text for sign in ('svg', 'img', 'Traceback'))


def test_no_stale_picture(tmp_path):
    "A model without a possibility shows a sentence and no picture, until there is one again."
    odd = tmp_path / 'odd.json'
    odd.write_text('{"l": 100, "e": 64, "h": 4, "depth": 3}')
    panel = Panel(LayerState())
    panel.controls['strategy'].value = '2d-seqp'
    assert 'svg' in panel.output.value
    panel.moved('model', str(odd))
    assert 'svg' not in panel.output.value
    assert 'This is not possible: 2d-seqp: no number of GPUs' in panel.output.value
    panel.controls['model'].value = 'gpt3'
    assert 'svg' in panel.output.value


def test_a_mistake_of_ours_is_seen():
    "Only ValueErrors are answered with a sentence; a mistake in the code raises in the handler."
    class Broken(LayerState):
        def show(self, ghost=None): raise RuntimeError('broken')
    panel = Panel(LayerState())
    with pytest.raises(RuntimeError): panel.load(Broken())
    assert 'svg' not in panel.output.value and 'our mistake' in panel.output.value


@pytest.mark.parametrize('state', first_of(2, [
    LayerState(model='gpt3', n_gpus=96), LayerState(strategy='2d', n_gpus=64), LayerState(),
    LayerState(model='vit_era5', strategy='2d-seqp', n_gpus=4096)]))
def test_only_valid_choices(state):
    settled, options = state.settle()
    for name in ('tp', 'cp', 'pp', 'micro_batch', 'panels', 'placement', 'n_gpus'):
        for value in options[name]:
            moved, _ = dataclasses.replace(settled, **{name: value}).settle()
            assert getattr(moved, name) == value and moved.estimate.stats['iteration_s'] > 0


# --- the same numbers in Python and at the terminal ---

LAYERS = [
    LayerState(),
    LayerState(model='vit_era5', system='B200', nvlink_size=64, global_batch=1024,
               assumptions='paper', strategy='2d-seqp', n_gpus=1024, tp=4, cp=4, pp=2,
               placement=(4, 4, 2, 2)),
    LayerState(strategy='2d-seqp', assumptions='calibrated'),
    LayerState(strategy='2d', n_gpus=512, tp=4, cp=2, pp=16, panels=8, zero_stage=3)]


@pytest.mark.parametrize('state', LAYERS)
def test_the_layer_panels_calls(state, tmp_path):
    table, there = state.show().table, call(state.python())
    assert np.array_equal(table.forward_ms, there.layers.t_fwd * 1000)
    assert np.array_equal(table.backward_ms, there.layers.t_bwd * 1000)
    assert there.stats == state.estimate.stats
    printed = json.loads(run(state.command_line() + ' --format json', tmp_path))
    assert printed['stats'] == there.stats


@pytest.mark.parametrize('state', [
    SearchState(), SearchState(model='gpt3', system='B200', nvlink_size=64, n_gpus=256,
                               strategy='all', global_batch=512, assumptions='paper')])
def test_the_search_panels_calls(state, tmp_path):
    times = state.show().table.iteration_s
    assert np.array_equal(times, call(state.python()).iteration_s)
    rows = csv.DictReader(io.StringIO(run(state.command_line() + ' --format csv', tmp_path)))
    assert times.tolist() == [float(row['iteration_s']) for row in rows]


@pytest.mark.parametrize('state', first_of(1, [
    SweepState(doublings=1, strategy_b='2d-seqp', model_b='gpt3'),
    SweepState(vary='hbm_bandwidth', second='nvlink_size', doublings=1, n_gpus=256, n_gpus_b=512)]))
def test_the_sweep_panels_calls(state, tmp_path):
    table, names = state.show().table, call(state.python())
    lines = state.command_line().split('\n')
    for line, (name, own) in zip(lines, table.groupby('scenario', sort=False)):
        run(line, tmp_path)
        letter = name[0].lower()
        for there in (names[letter], pd.read_csv(tmp_path / f'{letter}.csv')):
            assert np.allclose(there.iteration_s, own.iteration_s, rtol=1e-12)


def printed_table(state, folder):
    return pd.read_csv(io.StringIO(run(state.command_line() + ' --format csv', folder)))


def test_the_roofline_panels_calls(tmp_path):
    state = RooflineState(seq_len=8192, micro_batch=2, strategy='2d-seqp', cp=2)
    table, layers = state.show().table, call(state.python())
    forward = table[table['pass'] == 'forward']
    assert np.allclose(forward.ms, (layers.t_fwd_comp + layers.t_fwd_mem) * 1000)
    assert np.allclose(forward.TFLOP, layers.flops_fwd)
    assert np.allclose(printed_table(state, tmp_path).ms, table.ms)


@pytest.mark.parametrize('assumptions', ['corrected', 'calibrated'])
def test_the_collectives_panels_calls(assumptions, tmp_path):
    state = CollectivesState(kind='allreduce', n_gpus=64, assumptions=assumptions)
    table, times = state.show().table, call(state.python())
    for d, own in table.groupby('in_domain'): assert np.allclose(own.predicted_ms, times[d] * 1000)
    assert np.allclose(printed_table(state, tmp_path).predicted_ms, table.predicted_ms)
    assert table.measured_ms.notna().sum() == 19


def test_a_number_of_gpus_that_lies_in_one_way_has_no_quickest_placement():
    words = CollectivesState(n_gpus=61).show().words
    has(words, 'with 1 of 61 in a domain: there is no other placement.')
    assert 'quickest' not in words


def test_a_candidate_is_the_layer_panels_configuration():
    both = Panels()
    search, layer = both.panels['search'], both.panels['layer']
    for rank in (2, 5):
        search.controls['candidate'].value = rank
        found = search.state.found.iteration_s[rank - 1]
        assert np.isclose(layer.state.estimate.stats['iteration_s'], found, rtol=1e-12)
    search.controls['n_gpus'].value = 512
    assert layer.state.n_gpus == 512


# --- opened at a job ---

SCRIPT = """torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --num-layers 32
    --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --tensor-model-parallel-size 4
    --pipeline-model-parallel-size 2 --context-parallel-size 2 --sequence-parallel
    --micro-batch-size 1 --global-batch-size 128 --use-distributed-optimizer --bf16
    --vocab-size 32000 --cp-comm-type p2p --foo 3""".replace('\n', ' ')


def test_a_job_is_shown_as_it_is(tmp_path):
    "At the terminal and in the browser's notebook: the figures that `explain` gives of the job."
    (tmp_path / 'train.sh').write_text(SCRIPT)
    asked = '--job train.sh --system H100-80GB'
    explained = json.loads(run(f'transformer-perf explain {asked} --format json', tmp_path))
    table = json.loads(run(f'transformer-perf panels layer {asked} --format json', tmp_path))
    ms = [(row['forward_ms'], row['backward_ms']) for row in table['rows']]
    assert np.allclose(ms, [(1000 * row['t_fwd'], 1000 * row['t_bwd'])
                            for row in explained['layers']], rtol=1e-12)
    absent, unused = table['notes']
    assert absent.startswith('Not said by the job: --hidden-dropout (Megatron-LM then drops 0.1')
    assert unused == 'Not used of the job: --foo (not known here).'
    job = as_job(tmp_path / 'train.sh')
    state, notes = panels.opened_at(job.parallel, model=job.model, system='H100-80GB',
                                    software='Megatron-Core', global_batch=job.global_batch)
    assert state.estimate.stats == explained['stats'] and notes == []
    assert (state.n_gpus, state.tp, state.cp, state.pp) == (64, 4, 2, 2)
    assert state.own == ''   # all is as that software does
    assert call(state.python()).stats == explained['stats']
    assert panels.addressed(panel_states.address_of(state)) == state
    both = panels.Panels(state, table['notes'])
    assert both.panels['layer'].state == state and both.widget.selected_index == 0
    assert 'Not used of the job' in both.panels['layer'].notes.value


@pytest.mark.parametrize('told, words', [
    (dict(schedule='zb-h1', pp=4), ['The panel shows schedule zb-h1 as 1f1b.']),
    (dict(schedule='zb-h1', dp=4), []),
    (dict(tp=2, dp=8) | dict(zip(PLACES, (1, 1, 1, 8))), []),
    (dict(tp=2, dp=8) | dict(zip(PLACES, (1, 1, 1, 4))),
     ['The panel shows nvlink tp 1 as 2.'])])   # which leaves half of the domain to others
def test_what_of_a_job_cannot_be_shown(told, words):
    "A schedule is said where there is a pipeline; a placement has its control."
    state, notes = panels.opened_at(Parallel(**told), model='gpt3', nvlink_size=8)
    assert notes == words and (state.placement == (1, 1, 1, 8)) == (told.get('nvlink_dp') == 8)


@pytest.mark.parametrize('model', [
    with_length(as_model('jamba_52B'), 8192), as_model('qwen3_next_80B_A3B'),
    dataclasses.replace(as_model('llama3.1_8B'), documents=[512, 512, 4096])])
def test_a_job_of_any_model_is_shown(model, tmp_path):
    "Layers that no field says, at another length, and samples that are packed: once a traceback."
    one = estimate(model, Parallel(dp=8, zero_stage=3), 'H100-80GB', 64)
    state, notes = panels.opened_at(one.parallel, model=model, system='H100-80GB', global_batch=64)
    assert state.estimate.stats == one.stats and notes == []
    assert call(state.python()).stats == one.stats
    job = tmp_path / 'job.json'
    job.write_text(export(one))
    told = run(f'transformer-perf panels layer --job {job}', tmp_path)
    assert one.summary.partition(' (four')[0] in told


def test_weights_on_the_host_are_shown():
    "Only ZeRO 3 has them; no configuration was left to the panels."
    told = Parallel(tp=2, dp=8, zero_stage=3, offload='optimizer+weights')
    one = estimate('llama3.1_8B', told, 'H100-80GB', 64)
    state, notes = panels.opened_at(told, model='llama3.1_8B', system='H100-80GB', global_batch=64)
    assert state.estimate.stats == one.stats and notes == []
    found = SearchState('llama3.1_8B', 'H100-80GB', n_gpus=16, global_batch=64, own=state.own).found
    assert set(found.zero_stage) == {3}


def test_a_host_that_is_too_small_is_said():
    "Its GPUs have room: neither is their memory what lacks, nor fits what still asks too much."
    own = 'offload=optimizer,host_capacity=10'
    state = LayerState('llama3.1_8B', 'H100-80GB', n_gpus=8, global_batch=64, tp=8, pp=1, own=own)
    state, options = state.settle()
    words = state.show().words
    assert 'It does not fit: its host would hold 16.1 of 10 GB for each GPU. No single' in words
    assert 'GB, but still too much on its host, and' in words
    steps = layer_panel.one_step(state, options, question_of(state))
    assert [step.fits for step in steps] == [step.state.estimate.fits for step in steps]


@pytest.mark.parametrize('recompute', ['none', 'selective', 'full'])
def test_the_bars_of_operations_add_up_to_their_passes(recompute):
    "What the backward pass computes again has a bar, too."
    state, _ = LayerState('gpt3', 'A100-80GB', n_gpus=8, tp=8, pp=1, recompute=recompute).settle()
    shown = state.show()
    for way, more in (('forward', ()), ('backward', ('again',))):
        parts = [shown.table[f'{way}_{part}_ms'] for part in (*layer_panel.BOUND, *more)]
        np.testing.assert_allclose(sum(parts), shown.table[f'{way}_ms'], rtol=1e-8)
    again = shown.table.backward_again_ms
    if recompute == 'full': np.testing.assert_allclose(again, shown.table.forward_ms, rtol=1e-8)
    else: assert again.any() == (recompute == 'selective') and (again >= 0).all()
    assert ('computed again' in shown.figure) == (recompute != 'none')


def test_what_a_search_chose_besides_is_in_the_layer_panel():
    "How tokens are sent has no control: it is the state's own, in what is said and exported, too."
    asked = SearchState('nemotron3_nano_30B_A3B', 'H100-80GB', n_gpus=24, global_batch=48,
                        software='Megatron-Core')
    asked, _ = asked.settle()
    first = asked.found.iloc[0]
    assert first.dispatcher == 'once_sorted' and first.ep > 1   # which the software does not choose
    for rank, row in enumerate(asked.found.to_dict('records'), 1):
        chosen = dataclasses.replace(asked, candidate=rank).chosen()
        assert chosen.estimate.stats['iteration_s'] == pytest.approx(row['iteration_s'], rel=1e-9)
        assert chosen.estimate.parallel.dispatcher == row['dispatcher'] or row['ep'] == 1
        assert chosen.settle()[0] == chosen


def test_own_habits():
    "A search prices them too, and its calls say them."
    one, other = SearchState(own='dp_overlap=false'), SearchState()
    times = one.found.iteration_s
    assert times[0] > other.found.iteration_s[0]
    assert search_panel.map_cells(one).seconds.min() == times[0]
    assert np.array_equal(times, call(one.python()).iteration_s)
    assert not dataclasses.replace(one, candidate=1).chosen().estimate.parallel.dp_overlap
    assert 'dp_overlap=' in shown_or_why(LayerState(own='dp_overlap=maybe'))


@pytest.mark.skipif(not HAS_VOILA, reason='voila is not installed')
def test_a_file_of_ones_own_is_served(tmp_path):
    "The notebook is told the state of --model FILE, with the file's whole path."
    (tmp_path / 'small.json').write_text('{"l": 1024, "e": 1024, "h": 16, "depth": 8}')
    name = str(tmp_path / 'small.json')
    assert panels.opened_at(model=name)[0].model == name
    with contextlib.chdir(tmp_path):
        state, _ = panels.opened_at(model='small.json', seq_len=2048)
    assert state.model == name and state.estimate.model.seq_len == 2048
    told = panel_server.CELL.format(state=state, notes=['a "note"'])
    names = {}
    exec(told.rpartition('\n')[0], names)  # noqa: S102
    layer = eval(told.rpartition('\n')[2], names).panels['layer']
    assert layer.state == state and 'a &quot;note' in layer.notes.value


# --- the command ---

def test_the_terminal(tmp_path):
    text = run('transformer-perf panels collectives n_gpus=32', tmp_path)
    has(text, 'collectives: kind=allgather n_gpus=32 system=A100', 'measured')
    text = run('transformer-perf panels layer placement=8x1x1x1', tmp_path)
    has(text, 'layer: model=gpt3_1T system=H200 nvlink_size=8 global_batch=4096',
        'placement=8x1x1x1')
    none = run('transformer-perf panels search n_gpus=64', tmp_path)
    assert 'No configuration of 64 GPUs is feasible' in none
    for line, words in (('panels layr', "unknown panel 'layr'; did you mean 'layer'?"),
                        ('panels layer tp', 'must be tp=VALUE'),
                        ('panels layer n_gpus=7', 'n_gpus=7 must be divisible'),
                        ('panels search --job x.sh', 'x.sh: cannot be read'),
                        ('panels search map=tpxpp', "unknown map 'tpxpp'; did you mean 'tp x pp'"),
                        ('panels search cell=8 n_gpus=2048', "cell='8' must be two sizes"),
                        ('panels layer task=bubble', "unknown experiment 'bubble'"),
                        ('panels search --model gpt3', "--model is of the layer panel, not of"),
                        ('panels --system H100-81GB', "did you mean 'H100-80GB'")):
        has(bad(*line.split()), words)
    (tmp_path / 'train.sh').write_text('pretrain_gpt.py --num-layers 8 --hidden-size 1024 '
                                       '--num-attention-heads 8 --seq-length 512 '
                                       '--global-batch-size 8\n')
    told = bad('panels', 'search', '--job', tmp_path / 'train.sh')
    has(told, '--job is of the layer panel, not of')   # not the --model that nobody typed


def test_it_needs_its_extra_only_when_used():
    "Without ipywidgets all else works, and the command says in one line what to install."
    code = ("import sys; sys.modules['ipywidgets'] = None\nimport transformer_perf.cli as cli\n"
            "sys.argv = ['transformer-perf', 'panels']\ncli.main()")
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode == 2 and done.stderr.count('\n') == 1
    assert "pip install 'transformer_perf[panels]'" in done.stderr


@pytest.mark.thorough
def test_bench_prints_a_line_for_each_panel(monkeypatch, capsys):
    "Of each panel one move of two controls is enough here; the command ends well."
    every, taken, bench, found, asked = panels.tried, panels.latencies, panels.bench_panels, {}, []
    def of_two(moving, names):
        asked.append(len(names))
        return taken(moving, [*names][:2])
    def noted(show):
        found.update(bench(show))
        return found

    monkeypatch.setattr(panels, 'tried', lambda *args: every(*args)[:1])
    monkeypatch.setattr(panels, 'latencies', of_two)
    monkeypatch.setattr('transformer_perf.panels.bench_panels', noted)
    with pytest.raises(SystemExit) as ended: main(['panels', '--bench'])
    assert not ended.value.code
    lines = capsys.readouterr().out.splitlines()
    assert [tuple(line.split()[:2]) for line in lines] == [('panel', 'preset'), *found]
    assert all(len(times) == 2 and min(times) > 0 for times in found.values())
    least = {'layer': 10, 'map': 2, 'search': 5}
    assert all(controls >= least[panel] for (panel, _), controls in zip(found, asked))


@pytest.mark.parametrize('more', ['layer', '--model gpt3', '--format json', '-o lines.txt'])
def test_bench_takes_no_more(more):
    has(bad('panels', '--bench', *more.split()), '--bench prints a line for each panel')


def test_a_system_brings_its_own_domains():
    state = panels.state_of('layer', ['system=GB200-NVL72'])
    assert state.nvlink_size == 72
    eight = panels.state_of('layer', ['nvlink_size=8', 'system=GB200-NVL72'])
    assert eight.nvlink_size == 8 and 'nvlink_size=8' in panel_states.command_of(eight)
    assert panels.state_of('collectives', ['system=H100-80GB']).nvlink_size == 8


@pytest.mark.parametrize('flags, says', [
    ('', ''), ('--attention-backend unfused', 'flash_attention False'),
    ('--grad-reduce-in-bf16', 'gradient_held 2.0'),
    ('--fp8-format hybrid --fp8-param-gather', 'fp8_parameters True')])
def test_what_a_job_assumes_and_no_control_shows_is_said(flags, says):
    job = as_job('pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 '
                 '--seq-length 4096 --bf16 --micro-batch-size 1 --global-batch-size 64 '
                 f'--hidden-dropout 0 --attention-dropout 0 {flags}', 8)
    state, _ = panels.opened_at(job.parallel, model=job.model, system='H100-80GB')
    assert says in ''.join(panels.assumed_besides(state, job))
    assert bool(says) == bool(panels.assumed_besides(state, job))


@pytest.mark.parametrize('stage', [1, 3])
def test_the_layer_panel_opens_with_a_job_at_other_prices(stage, tmp_path):
    "Where no software is: it was refused for that of the job. What hides is as its stage has it."
    file = tmp_path / 'deepspeed.json'
    file.write_text(json.dumps({
        'train_batch_size': 512, 'train_micro_batch_size_per_gpu': 1,
        'gradient_accumulation_steps': 8, 'zero_optimization': {'stage': stage}}))
    for preset in 'calibrated', 'corrected':
        job = ('--job', file, '--model', 'llama3.1_8B', '--system', 'A100-80GB',
               '--assumptions', preset)
        shown = good('panels', 'layer', *job)
        seconds = json.loads(good('explain', *job, '--format', 'json'))['stats']['iteration_s']
        assert f'{seconds:.4g} s for an iteration' in shown


def test_the_layer_panel_opens_with_a_software(tmp_path):
    "By an option as by its control, and instead of the one that a job names; a file too."
    alone = good('panels', 'layer', '--software', 'plain')   # once of 64 H200 to a domain
    assert alone == good('panels', 'layer', 'software=plain')
    about = ['panels', 'layer', '--model', 'llama3.1_8B', '--system', 'H100-80GB']
    text = good(*about, '--software', 'Plain')
    assert text == good(*about, 'software=plain') != good(*about)
    (tmp_path / 'own.json').write_text(json.dumps({'name': 'own', 'like': 'plain'}))
    assert 'own.json' not in bad(*about, '--software', 'tuned', '--assumptions', 'paper')
    file = good(*about, '--software', 'own.json', cwd=tmp_path)
    assert file == good(*about, 'software=own.json', cwd=tmp_path)
    titan = tmp_path / 'titan.toml'
    titan.write_text(torchtitan_file(data_parallel_shard_degree=8, disable_loss_parallel='true',
                                     tensor_parallel_degree=2))
    job = ['panels', 'layer', '--job', titan, '--system', 'H100-80GB']
    text = good(*job, '--software', 'plain')
    assert text != good(*job) and 'besides: whole_logits True' in text and 'context' not in text
    assert "unknown software 'plane'" in bad(*about, '--software', 'plane')
