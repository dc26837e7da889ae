"Elasticities: what they add up to, what they say of neighbours, and the question turned round."
import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thorough import examples, first_of
from test_cli import bad, good, has, run
from transformer_perf import Assumptions, Model, Parallel, estimate, search
from transformer_perf.advice.sensitivities import closing_in, tornado
from transformer_perf.advice import needed, sensitivity
from transformer_perf.models import as_model
from transformer_perf.systems import as_system
from transformer_perf.timeline import PLACES

LAYOUT = Parallel(tp=4, pp=8, dp=16)
RATES = ['matrix_flops_fp16', 'vector_flops_fp32', 'vector_flops_fp16', 'hbm_bandwidth',
         'nvlink_bandwidth', 'ib_bandwidth']
IDEAL = dataclasses.replace(as_system('A100'), nvlink_latency=0., ib_latency=0.)


def of(*args, **options): return sensitivity(*args, **options).set_index('field')


@examples(10)
@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]))
def test_rates_add_up_where_nothing_waits(tp, pp, micro_batch):
    layout = Parallel(tp=tp, pp=pp, dp=8, micro_batch=micro_batch)
    found = of('gpt3', layout, IDEAL, 1024, Assumptions(launch_time=0.)).elasticity
    assert found[RATES].sum() == pytest.approx(-1, abs=1e-3)
    assert found['nvlink_eff'] == pytest.approx(found['nvlink_bandwidth'], abs=1e-6)


@pytest.mark.parametrize('assumptions', ['corrected', 'calibrated'])
def test_rates_only_help_and_latencies_only_hurt(assumptions):
    found = of('gpt3', LAYOUT, 'A100', 1024, assumptions)
    own = found[found.of == 'system']
    slow = own.index.str.endswith('_latency')
    assert (own.elasticity[~slow] <= 1e-9).all() and (own.elasticity[slow] >= 0).all()
    faster = own.at_low_s >= own.at_high_s
    assert faster[~slow].all() and (own.at_low_s <= own.at_high_s)[slow].all()
    if assumptions == 'corrected': assert -1 <= own.elasticity[RATES].sum() < 0
    assert (own.memory_elasticity == 0).all()   # a system changes no memory


@pytest.mark.parametrize('assumptions, schedule', [
    ('corrected', {}), ('calibrated', {'schedule': 'zb-v'}), ('calibrated', {'virtual_stages': 3})])
def test_halves_and_doubles_are_estimates(assumptions, schedule):
    layout = dataclasses.replace(LAYOUT, **schedule)
    found = of('gpt3', layout, 'A100', 1024, assumptions)
    one = estimate('gpt3', layout, 'A100', 1024, assumptions)
    for field in ('hbm_bandwidth', 'ib_bandwidth', 'nvlink_latency'):
        assert found.base_s[field] == pytest.approx(one.stats['iteration_s'], rel=1e-12)
        for column, factor in (('at_low_s', .5), ('at_high_s', 2)):
            system = dataclasses.replace(one.system, **{field: factor * getattr(one.system, field)})
            again = estimate('gpt3', layout, system, 1024, assumptions).stats['iteration_s']
            assert found[column][field] == pytest.approx(again, rel=1e-12)
    deep = dataclasses.replace(one.model, depth=192)
    again = estimate(deep, one.parallel, one.system, 1024, assumptions)
    assert found.at_high_s['depth'] == again.stats['iteration_s']


@pytest.mark.parametrize('preset', first_of(2, ['calibrated', 'paper', 'corrected']))
def test_a_placement_left_open_is_chosen_anew_and_one_that_is_given_stays(preset):
    "On a faster network another placement is best: what `estimate` says of the changed system."
    about, open_to = ('vit_era5', 'B200', 256, preset), Parallel('2d', tp=4, cp=4, dp=32)
    one = estimate(about[0], open_to, *about[1:])
    apart = {}
    for layout in (open_to, one.parallel):
        found = of(about[0], layout, *about[1:])
        for row in found[found.of == 'system'].drop('hbm_capacity').itertuples():
            for value, seconds in ((row.low, row.at_low_s), (row.high, row.at_high_s)):
                system = dataclasses.replace(one.system, **{row.Index: value})
                again = estimate(about[0], layout, system, *about[2:]).stats['iteration_s']
                assert seconds == pytest.approx(again, rel=1e-12), row.Index
        apart[layout] = found.at_high_s['nic_factor']
        asked = needed('nic_factor', about[0], layout, *about[1:], ratio=.9)
        if asked.value is None: continue
        system = dataclasses.replace(one.system, nic_factor=asked.value)
        again = estimate(about[0], layout, system, *about[2:]).stats['iteration_s']
        assert again == pytest.approx(asked.target_s, rel=1e-3)
    ratio = apart[one.parallel] / apart[open_to]
    assert ratio == 1 if preset == 'calibrated' else ratio > 1.4


@pytest.mark.parametrize('about, fields', first_of(2, [   # by matrix_eff; two kinds of layers
    (('llama3.1_8B', Parallel(tp=8, dp=4), 'MI300X', 64), ['matrix_eff']),
    (('gpt_oss_120B', Parallel(dp=8, ep=8, offload='activations'), 'H100-80GB', 64), RATES[:4]),
    (('deepseek_v3', Parallel(dp=64, ep=64, offload='moe_act'), 'H100-80GB', 256), RATES[:4])]))
def test_every_field_is_estimated(about, fields):
    found = of(*about, factor=1.1)
    assert np.isfinite(found.elasticity[found.of == 'system']).all()
    model, layout, name, batch = about
    for field in fields:
        system = as_system(name)
        faster = dataclasses.replace(system, **{field: getattr(system, field) * 1.1})
        seconds = estimate(model, layout, faster, batch).stats['iteration_s']
        assert found.at_high_s[field] == pytest.approx(seconds, rel=1e-9), field


def test_what_is_needed_is_estimated():
    "The bandwidth that is enough by all figures is enough by the schedule as it is played."
    layout = dataclasses.replace(LAYOUT, schedule='zb-v', tp=8)
    one = estimate('gpt3', layout, 'A100', 1024, 'calibrated')
    asked = needed('matrix_flops_fp16', 'gpt3', layout, 'A100', 1024, 'calibrated', ratio=.8)
    assert asked.target_s == pytest.approx(.8 * one.stats['iteration_s'], rel=1e-12)
    system = dataclasses.replace(one.system, matrix_flops_fp16=asked.value)
    again = estimate('gpt3', one.parallel, system, 1024, 'calibrated').stats['iteration_s']
    assert again == pytest.approx(asked.target_s, rel=1e-4)


def test_sizes_that_cannot_be_are_left_open():
    found = of('gpt3', Parallel(tp=32, dp=4, pp=4), 'A100', 1024)
    assert np.isnan(found.at_low_s['heads']) and np.isfinite(found.elasticity['heads'])


def test_a_model_whose_sizes_neither_halve_nor_double():
    odd = Model(seq_len=1024, embed_dim=640, heads=5, kv_heads=5, depth=4, mlp_dim=2560)
    found = of(odd, Parallel(), 'H200', 8)
    assert np.isnan(found.elasticity['kv_heads']) and np.isfinite(found.elasticity['heads'])


def test_chosen_anew():
    best = Parallel.from_row(search('gpt3', 512, 'A100', 1024, k=1,
                                    assumptions='corrected').iloc[0])
    found = of('gpt3', best, 'A100', 1024, 'corrected', again=True)
    own = found[found.of == 'system']
    np.testing.assert_allclose(own.best_s, own.base_s)
    for column in ('at_low_s', 'at_high_s'):
        feasible = own.index != 'hbm_capacity'   # the best fits; half the memory may not hold it
        assert (own[f'best_{column}'] <= own[column] * (1 + 1e-9))[feasible].all()
    system = dataclasses.replace(as_system('A100'), hbm_capacity=40.)
    half = search('gpt3', 512, system, 1024, k=1, assumptions='corrected').iteration_s[0]
    assert own.best_at_low_s['hbm_capacity'] == pytest.approx(half, rel=1e-12)


def test_half_the_memory_may_not_hold_a_configuration():
    "Then it has no time there, and the others keep theirs; twice the memory may hold what is not."
    one = estimate('gpt3', LAYOUT, 'A100', 1024, 'calibrated')
    for spare, low in ((2.1, one.stats['iteration_s']), (1.9, np.inf)):
        system = dataclasses.replace(as_system('A100'), hbm_capacity=spare * one.needed)
        found = of('gpt3', LAYOUT, system, 1024)
        row = found.loc['hbm_capacity']
        assert row.at_low_s == pytest.approx(low) and row.at_high_s == row.base_s
        assert row.elasticity == 0 and np.isfinite(found.drop('hbm_capacity').at_high_s).any()
        assert np.isfinite(found[found.of == 'system'].drop('hbm_capacity').at_low_s).all()
        names = [text.get_text() for text in tornado(found).axes[0].get_yticklabels()]
        assert 'hbm_capacity' not in names and 'matrix_flops_fp16' in names
    small = dataclasses.replace(as_system('A100'), hbm_capacity=.6 * one.needed)
    row = of('gpt3', LAYOUT, small, 1024).loc['hbm_capacity']
    assert row.at_low_s == np.inf and row.at_high_s == row.base_s


def test_half_the_host_may_not_hold_what_a_configuration_keeps_there():
    about = 'llama3.1_8B', Parallel(tp=2, dp=4, offload='optimizer', zero_stage=0)
    held = estimate(*about, 'H100-80GB', 64).stats['host_GB']
    for spare, fits in ((2.1, True), (1.9, False)):
        system = dataclasses.replace(as_system('H100-80GB'), host_capacity=spare * held)
        row = of(*about, system, 64).loc['host_capacity']
        assert row.at_low_s == (row.base_s if fits else np.inf) and row.at_high_s == row.base_s
        small = dataclasses.replace(system, host_capacity=row.low)
        assert estimate(*about, small, 64).fits == fits


@pytest.mark.parametrize('model, layout, name, batch', first_of(2, [
    ('llama3.1_8B', Parallel(tp=2, dp=4, micro_batch=2), 'H100-80GB', 64),
    ('llama3.1_8B', Parallel(tp=2, dp=4, offload='optimizer', zero_stage=0), 'H100-80GB', 64),
    ('deepseek_v3', Parallel(dp=64, ep=64), 'H100-80GB', 256)]))
def test_sizes_that_do_not_fit_are_told(model, layout, name, batch):
    "As `estimate` says of each; those that cannot run neither fit nor do not."
    about = model, layout, name, batch
    found, one = of(*about), estimate(*about)
    answers = set()
    for row in found.itertuples():
        for x, seconds, fits in ((row.low, row.at_low_s, row.fits_at_low),
                                 (row.high, row.at_high_s, row.fits_at_high)):
            if np.isnan(seconds):
                assert fits is None
                continue
            m, system, own = one.model, one.system, one.global_batch
            if row.of == 'system': system = dataclasses.replace(system, **{row.Index: x})
            elif row.of == 'job': own = int(x)
            else: m = dataclasses.replace(m, **{row.Index: int(x)})
            there = estimate(m, one.parallel, system, own)
            assert fits is bool(there.fits), row.Index
            assert row.of != 'system' or np.isfinite(seconds) or not fits
            answers.add(fits)
    assert len(answers) > 1 or not one.fits


def test_the_command_names_sizes_that_do_not_fit():
    asked = ('sensitivity', 'llama3.1_8B', '--tp', 2, '--dp', 4, '--global-batch', 64)
    has(good(*asked, '--micro-batch', 2), 'not fitting in memory: seq_len 16,384, embed_dim 8192')
    has(good(*asked, '--micro-batch', 2, '--wide'), 'fits_at_high', 'yes', 'no')
    assert 'None' not in good('sensitivity', 'deepseek_v3', '--gpus', 256, '--wide')   # odd layers
    has(good('sensitivity', 'llama3.1_405B', '--tp', 8, '--global-batch', 8),
        'not fitting in memory: all other sizes of the model, and batches.')


def test_the_command_says_which_figures_measured_prices_replace():
    "That a latency has an elasticity of 0 read as if none mattered."
    asked = ('sensitivity', 'llama3.1_8B', '--tp', 2, '--dp', 4, '--global-batch', 64)
    has(' '.join(good(*asked).split()),
        'Without effect: vector_flops_fp32, vector_flops_fp16, nvlink_eff, nvlink_latency, ib_eff, '
        'ib_latency, matrix_eff. Measured prices have rates, efficiencies and latencies')
    told = ' '.join(good(*asked, '--system', 'MI300X').split())   # its products are its own
    has(told, 'ib_latency. Measured prices')
    assert 'Without effect' not in good(*COMMAND, *LAID_OUT)


# the question turned round

@pytest.mark.parametrize('field', ['matrix_flops_fp16', 'hbm_bandwidth', 'nvlink_latency'])
@pytest.mark.parametrize('ratio', [.5, .9, .999])
def test_what_is_needed_is_enough_and_no_more(field, ratio):
    one = estimate('gpt3', LAYOUT, 'A100', 1024, assumptions='corrected')
    found = needed(field, 'gpt3', one.parallel, 'A100', 1024, ratio=ratio, assumptions='corrected')
    time_with = lambda x: estimate('gpt3', one.parallel, dataclasses.replace(
        one.system, **{field: float(x)}), 1024, assumptions='corrected').stats['iteration_s']
    target = ratio * one.stats['iteration_s']
    if found.value is None:
        assert found.limit_s > target and f'no {field} is enough' in str(found)
        far = getattr(one.system, field) * (1e-6 if field == 'nvlink_latency' else 1e6)
        assert found.limit_s == pytest.approx(time_with(far))
    else:
        assert time_with(found.value) == pytest.approx(target, rel=1e-5)
        assert time_with(found.value) <= target * (1 + 1e-12)
        assert time_with((found.value + found.now) / 2) > target


@pytest.mark.parametrize('preset', ['paper', 'corrected', 'calibrated'])
def test_what_is_needed_of_a_rate_that_some_products_have(preset):
    "Only products in 8 bits ask for it: that they do so on many systems changes nothing."
    layout = Parallel(tp=2, dp=4, precision='fp8')
    about = 'llama3.1_8B', layout, 'H100-80GB', 64, preset
    found = needed('matrix_flops_fp8', *about, ratio=.95)
    faster = dataclasses.replace(as_system('H100-80GB'), matrix_flops_fp8=found.value)
    seconds = estimate('llama3.1_8B', layout, faster, 64, preset).stats['iteration_s']
    assert seconds == pytest.approx(.95 * estimate(*about).stats['iteration_s'], rel=1e-5)


@given(st.floats(1, 1e5), st.floats(.01, 100))
def test_closing_in_finds_the_edge(edge, start):
    found = closing_in(lambda x: np.where(x >= edge * start, 1., 2.), (start, 1e6 * start), 1.5)
    assert edge * start * (1 - 1e-12) <= found <= edge * start * (1 + 1e-5)
    assert closing_in(lambda x: 0 * x + 2, (start, 10 * start), 1.5) is None


def test_needed_with_the_configuration_chosen_anew():
    best = Parallel.from_row(search('gpt3', 64, 'A100', 128, k=1, assumptions='corrected').iloc[0])
    fixed, free = (needed('matrix_flops_fp16', 'gpt3', best, 'A100', 128, ratio=.7, again=again,
                          assumptions='corrected')
                   for again in (False, True))
    assert free.value <= fixed.value * (1 + 1e-5)


def test_mistakes_are_one_line():
    for words, options in (('factor=1 must be', dict(factor=1)), ('again=3 must', dict(again=3))):
        with pytest.raises(ValueError, match=words): sensitivity('gpt3', LAYOUT, 'A100', **options)
    with pytest.raises(ValueError, match="unknown figure of the system 'power'"):
        needed('power', 'gpt3', LAYOUT, 'A100', 1024)


def test_tornado_has_the_widest_on_top():
    table = sensitivity('gpt3', LAYOUT, 'A100', 1024, assumptions='corrected')
    ax = tornado(table[table.of == 'system'], most=4).axes[0]
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert len(names) == 4 and names[-1] == 'matrix_flops_fp16'


# the command

COMMAND = ('sensitivity', '--model', 'gpt3', '--system', 'A100', '--global-batch', 1024,
           '--assumptions', 'corrected')
LAID_OUT = ('--tp', 4, '--pp', 8, '--dp', 16)


def test_command():
    has(good(*COMMAND, *LAID_OUT), 'matrix_flops_fp16', 'elasticity', 'embed_dim', 'global_batch')
    rows = json.loads(good(*COMMAND, *LAID_OUT, '--format', 'json'))['rows']
    expected = sensitivity('gpt3', LAYOUT, 'A100', 1024, assumptions='corrected')
    assert [row['elasticity'] for row in rows] == expected.elasticity.tolist()
    text = good(*COMMAND, '--gpus', 512)
    has(text, 'hbm_capacity', 'A time of inf, with hbm_capacity 40: it does not fit in memory.',
        'Priced, though not fitting in memory: ')
    assert 'fit' not in good(*COMMAND, '--tp', 8, '--pp', 32, '--dp', 16)


def test_the_command_leaves_the_placement_of_the_best_open():
    "As the search did: with another network the best configuration is placed anew."
    best = search('gpt3', 512, 'A100', 1024, k=1, assumptions='corrected')
    placed = Parallel.from_row(best.iloc[0])
    layout = dataclasses.replace(placed, **dict.fromkeys(PLACES))
    rows = json.loads(good(*COMMAND, '--gpus', 512, '--factor', 8, '--format', 'json'))['rows']
    own = {row['field']: row for row in rows}['nic_factor']
    assert own['base_s'] == pytest.approx(best.iteration_s[0], rel=1e-12)
    system = dataclasses.replace(as_system('A100'), nic_factor=own['high'])
    anew, held = (estimate('gpt3', p, system, 1024, 'corrected') for p in (layout, placed))
    assert own['at_high_s'] == pytest.approx(anew.stats['iteration_s'], rel=1e-12)
    assert held.stats['iteration_s'] > 1.01 * own['at_high_s']


def test_command_turned_round():
    has(good(*COMMAND, *LAID_OUT, '--needed', 'matrix_flops_fp16'), 'must be 751.3 TFLOP/s, ',
        'times the 312')
    done = run(*COMMAND, *LAID_OUT, '--needed', 'ib_bandwidth')
    assert done.returncode == 1 and 'no ib_bandwidth is enough' in done.stdout
    assert run(*COMMAND, '--gpus', 1).returncode == 1


@pytest.mark.parametrize('words, args', [
    ('unknown figure', ('--needed', 'watts')),
    ('--factor says nothing with --needed', ('--needed', 'ib_bandwidth', '--factor', 3)),
    ("--factor='x' must be", ('--factor', 'x')),
    ('ratio=2.0 must be', ('--needed', 'ib_bandwidth', '--ratio', 2)),
    ('factor=1.0 must be', ('--factor', 1))])
def test_command_names_mistakes(words, args): has(bad(*COMMAND, *LAID_OUT, *args), words)


def test_the_best_of_a_figure_is_that_of_a_search():
    "Of the candidates whose schedules are played, the first."
    p = Parallel(tp=8, pp=4, dp=2, virtual_stages=4)
    found = of('llama3.1_70B', p, 'H100-80GB', 64, again=True)
    system = as_system('H100-80GB')
    for column, factor in (('best_s', 1), ('best_at_low_s', .5), ('best_at_high_s', 2)):
        own = dataclasses.replace(system, hbm_bandwidth=factor * system.hbm_bandwidth)
        best = search('llama3.1_70B', 64, own, 64, k=1).iteration_s[0]
        assert found[column]['hbm_bandwidth'] == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize('optimizer', first_of(1, ['sgd', 'adam']))
def test_what_a_search_tries_by_itself_is_not_held_for_the_best(optimizer):
    """From a layout that it found with ZeRO 2: what its software shares out usually, and besides,
    is tried for each figure anew; what it does not try is as the layout has it."""
    model = dataclasses.replace(as_model('nemotron_h_8B'), seq_len=1024)
    about = dict(global_batch=48, software='partly eager Scaling')
    ask = lambda system, **more: search(model, 16, system, k=1, **about, **more).iloc[0]
    system = as_system('MI355X')
    best = Parallel.from_row(ask(system))
    assert best.zero_stage == 2
    faster = dataclasses.replace(system, hbm_bandwidth=2 * system.hbm_bandwidth)
    layout = dataclasses.replace(best, optimizer=optimizer)
    found = of(model, layout, system, again=True, **about)
    anew = ask(faster, optimizer=optimizer)
    assert anew.zero_stage == 1 and anew.pp > best.pp
    assert found.best_at_high_s['hbm_bandwidth'] == pytest.approx(anew.iteration_s, rel=1e-12)


def test_no_part_of_the_time_of_what_does_not_fit():
    with pytest.raises(ValueError, match='nothing fits on 8 H100-80GB GPUs'):
        needed('hbm_bandwidth', 'llama3.1_405B', Parallel(tp=8), 'H100-80GB', 8, again=True)


def test_an_efficiency_that_is_complete_is_enough():
    "For all of the time; for less of it nothing is."
    system = dataclasses.replace(as_system('H100-80GB'), nvlink_eff=1.)
    about = 'nvlink_eff', 'llama3.1_8B', Parallel(tp=8), system, 8, 'corrected'
    assert needed(*about, ratio=1).value == 1 and needed(*about, ratio=.9).value is None


def test_no_size_is_halved_that_is_odd():
    found = of('deepseek_v3', Parallel(pp=4, dp=8, ep=8), 'B200-180GB', 64)
    assert np.isnan(found.low['depth']) and np.isnan(found.at_low_s['depth'])
    assert found.high['depth'] == 2 * 61 and found.low['heads'] == 64
