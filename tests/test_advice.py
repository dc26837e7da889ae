"What to change about a job: advice agrees with estimates, and is never for the worse."
import contextlib
import dataclasses
import itertools
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from thorough import examples, first_of
from frameworks import torchtitan_file
from test_cli import bad, good, has
from transformer_perf import Model, Parallel, estimate, search
from transformer_perf.advice import neighbours as neighbours_of
from transformer_perf.advice.neighbours import (
    Step, after_step, case_of, held_by_ranks, in_short, pairs_of, steps_of)
from transformer_perf.advice import fits, improve, why_not
from transformer_perf.advice.answers import neighbours, worthwhile
from transformer_perf.estimates import as_assumptions
from transformer_perf.interop import as_job, export, job_asked
from transformer_perf.iteration import settled
from transformer_perf.models import as_model
from transformer_perf.modules import reduces_each
from transformer_perf.packing import packing
from transformer_perf.schedules import chunks_in, chunks_of, layout_of
from transformer_perf.systems import as_system
from transformer_perf.timeline import PLACES, priced_estimate, slowest_in_words

SCRIPT = '''torchrun --nproc-per-node 8 --nnodes 16 pretrain_gpt.py \\
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 \\
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \\
    --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm \\
    --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 128256 \\
    --position-embedding-type rope --seq-length 8192 --max-position-embeddings 8192 \\
    --micro-batch-size 1 --global-batch-size 256 --bf16 --use-distributed-optimizer \\
    --overlap-grad-reduce --overlap-param-gather --recompute-granularity full \\
    --recompute-method uniform --recompute-num-layers 5
'''

SMALL = dict(embed_dim=1024, heads=16, seq_len=2048, vocab=32000)
MODELS = [
    dataclasses.replace(as_model('gpt3'), name='dense', depth=12, **SMALL),
    dataclasses.replace(as_model('mixtral_8x7B'), name='experts', depth=9, **SMALL, mlp_dim=4096,
                        kv_heads=8, head_dim=64, expert_dim=2048)]


FEW = examples(12)


@st.composite
def cases(draw):
    "A configuration that runs, on few GPUs with little memory or much."
    p = Parallel(tp=draw(st.sampled_from([1, 2, 4])), cp=draw(st.sampled_from([1, 2])),
                 pp=draw(st.sampled_from([1, 2, 4])), dp=draw(st.sampled_from([1, 2, 8])),
                 micro_batch=draw(st.sampled_from([1, 2])),
                 zero_stage=draw(st.sampled_from([0, 1, 2, 3])),
                 virtual_stages=draw(st.sampled_from([1, 2])),
                 recompute=draw(st.sampled_from(['none', 'full'])))
    preset = draw(st.sampled_from(['corrected', 'calibrated']))
    model, system = (draw(st.sampled_from(x)) for x in (MODELS, ['A100', 'H200-141GB']))
    about = model, p, system, 64, preset
    try: estimate(*about)
    except ValueError: assume(False)
    return about


# every neighbour

@examples(5)
@given(cases())
def test_a_table_of_neighbours_is_their_estimates(about):
    "The same rows can run; where stages are alike, in the same time and memory."
    case = case_of(*about)
    steps = steps_of(case, () if about[2] == 'A100' else ('fp8',))   # it has none
    found = neighbours(case, steps)
    for step, seconds, GB in zip(steps, found.seconds, found.GB):
        p = after_step(case.parallel, step.to)
        assert p.n_gpus == case.parallel.n_gpus
        try: new = case.estimate(p)
        except ValueError: assert np.isinf(seconds), step; continue
        ours, its_own = (seconds, GB), (new.stats['iteration_s'], new.needed)
        if ours == pytest.approx(its_own, rel=1e-9): continue
        assert any('played' in note for note in new.notes), (step, ours, its_own)


@pytest.mark.parametrize('strategy, cp', [('1d', 1), ('2d-seqp', 2), ('2d', 1), ('2d', 2)])
def test_neighbours_are_ranked_as_their_estimates(strategy, cp):
    "What no run came near is a layout's strategy, too: SUMMA."
    case = case_of('gpt3', Parallel(tp=4, pp=2, dp=4), 'H100-80GB', 64, 'calibrated')
    there = Parallel(strategy, tp=4, cp=cp, pp=2, dp=4 // cp)
    there = settled(there, case.system, case.assumptions, case.model)
    found = neighbours(case, [Step('', vars(there))])
    stats = case.estimate(there).stats
    assert found.ranked[0] == pytest.approx(stats['likely_s'], rel=1e-9)
    assert (found.ranked[0] > found.seconds[0]) == (strategy != '1d')


@pytest.mark.parametrize('preset, places', [
    ('calibrated', dict(nvlink_tp=1)), ('calibrated', dict(nvlink_tp=2, nvlink_dp=1)),
    ('paper', {}), ('paper', dict(nvlink_dp=2))])
def test_a_placement_that_is_given_in_part_is_priced_like_an_estimate(preset, places):
    "What is open is the fastest, however full a domain is: once only some ways were tried."
    p = Parallel(tp=2, pp=4, dp=8, **places)
    about = 'gpt3', p, as_system('B200', 64), 64, preset
    for change in improve(*about).changes:
        new = estimate(about[0], after_step(p, change.to), *about[2:])
        assert change.estimate.stats == pytest.approx(new.stats, rel=1e-9), change.words


def test_a_strategy_that_is_said_holds_after_a_step():
    "Kernels that are not fused make 2d-seqp with one GPU of cp another layer; it became 1d."
    p = Parallel(strategy='2d-seqp', tp=8, pp=4, dp=2, nvlink_tp=8)
    case = case_of('gpt3', p, as_system('B200', 8), 64, 'paper')
    steps = [step for step in steps_of(case) if step.knob in ('zero_stage', 'groups')]
    found = neighbours(case, steps)
    priced = [seconds for seconds in found.seconds if np.isfinite(seconds)]
    assert len(priced) > 5
    for step, seconds in zip(steps, found.seconds):
        if np.isinf(seconds): continue
        cp = step.to.get('cp', 1)
        own = dataclasses.replace(case.parallel, **step.to)   # 2d-seqp is all there is of cp > 1
        if cp == 1: assert after_step(case.parallel, step.to).strategy == '2d-seqp'
        assert seconds == pytest.approx(case.estimate(own).stats['iteration_s'], rel=1e-9)
    back = case_of('gpt3', dataclasses.replace(p, cp=2, dp=1), as_system('B200', 8), 64, 'paper')
    less = {'cp': 1, 'dp': 2}   # without cp it is what follows from that
    assert back.estimate(after_step(back.parallel, less)).parallel.strategy == '1d'


def test_another_stage_that_sets_the_pace_is_told():
    "Where experts' messages hide the last stage is slowest; its vocabulary read as their cost."
    layout = Parallel(tp=2, pp=16, dp=64, ep=16, precision='fp8-block')
    now = estimate('deepseek_v3', layout, 'H800-80GB', 15360)
    for change, told in (dict(ep_overlap=True), 'the last stage sets the pace'), (
            dict(recompute='moe_act'), ''):
        after = estimate('deepseek_v3', dataclasses.replace(layout, **change), 'H800-80GB', 15360)
        why = neighbours_of.reason(now, after)
        assert told in why if told else 'sets the pace' not in why
    for p, slowest in ((dict(pp=4), 'the last stage'), (dict(pp=1, dp=4), ''),
                       (dict(pp=4, schedule='dualpipe'), ''),
                       (dict(pp=4, layout='Et*13|t*7|t*6|t*6L'), 'the first stage'),
                       (dict(pp=4, layout='Et*6|t*13|t*7|t*6L'), 'a stage between')):
        one = estimate('llama3.1_8B', Parallel(**p), 'H100-80GB', 64)
        assert slowest_in_words(priced_estimate(one)) == slowest


def test_rounding_plays_no_schedule():
    "A table adds in another order: a change once was said to be played, its estimate not."
    one = estimate('gpt3', Parallel(tp=8, pp=4, dp=2), 'H100-80GB', 64, 'corrected')
    near = np.nextafter(one.stats['bubble_s'], 1e9)
    assert dataclasses.replace(one, stats=one.stats | {'bubble_s': near}).notes == one.notes
    layout = 'E' + 't' * 26 + '|' + 't' * 24 + '|' + 't' * 24 + '|' + 't' * 22 + 'L'
    uneven = dataclasses.replace(one.parallel, layout=layout)
    played = estimate('gpt3', uneven, 'H100-80GB', 64, 'corrected')
    assert 'Stages differ: the schedule was played.' in played.notes


def test_neighbours_of_several_layouts_are_priced_each_by_its_own():
    "Those with any once had the figures of one of them: which, the hash of a text decided."
    one = estimate('llama3.1_8B', Parallel(tp=2, pp=4, dp=2), 'H100-80GB', 64)
    dealt = [(9, 8, 8, 7), (8, 8, 8, 8), (11, 7, 7, 7), (10, 8, 7, 7), (12, 7, 7, 6)]
    texts = ['E' + '|'.join('t' * layers for layers in each) + 'L' for each in dealt]
    t = neighbours_of.table_of_steps(one.parallel, [
        neighbours_of.Step('layout', {'layout': text}) for text in [*texts, None]])
    seconds, GB, *_ = neighbours_of.prices(t, one)
    for i, text in enumerate([*texts, None]):
        layout = dataclasses.replace(one.parallel, layout=text)
        there = estimate('llama3.1_8B', layout, 'H100-80GB', 64)
        assert seconds[i] == pytest.approx(there.stats['iteration_s'], rel=1e-12)
        assert GB[i] == pytest.approx(there.needed, rel=1e-12)


@FEW
@given(cases())
def test_every_gigabyte_is_somewhere(about):
    one = estimate(*about)
    ranks = held_by_ranks(one)
    assert len(ranks) == one.parallel.pp
    assert ranks.needed_GB.max() == pytest.approx(one.needed, rel=1e-9)
    assert (ranks.drop(columns=['rank', 'from_s']) >= -1e-9).all(axis=None)


def test_the_fullest_rank_counts_what_is_wasted():
    "The last has more activations, of which some is wasted; the first holds a little more."
    model = Model(8192, 1024, 16, 8, mlp_dim=4096, vocab=17000)
    layout = Parallel(tp=2, pp=3, recompute='full')
    one = estimate(model, layout, 'H100-80GB', 32)
    ranks = held_by_ranks(one)
    held, counted = ranks.needed_GB, ranks.needed_GB - ranks.gaps_GB
    assert held[2] > held[0] > held[1] and counted[0] > counted[2]
    assert one.needed == pytest.approx(held[2], rel=1e-9)
    few = dataclasses.replace(one.system, hbm_capacity=(held[0] + held[2]) / 2)
    assert not fits(model, layout, few, 32).estimate.fits


# answers

def priced_again(about, change):
    "A change estimated from nothing, as a user would."
    return estimate(about[0], after_step(case_of(*about).parallel, change.to), *about[2:])


@FEW
@given(cases())
def test_fits_agrees_with_estimate(about):
    found, one = fits(*about), estimate(*about)
    assert found.fits == one.fits == (one.needed <= one.system.hbm_capacity)
    assert found.parts.GB.sum() == pytest.approx(one.needed, rel=1e-9)
    assert not (found.fits and found.changes) and len(found.changes) <= 3
    for change in found.changes:
        again = priced_again(about, change)
        assert again.fits
        assert again.stats['iteration_s'] == pytest.approx(change.estimate.stats['iteration_s'])


@examples(6)
@given(cases())
def test_improve_is_never_for_the_worse(about):
    found, one = improve(*about), estimate(*about)
    before = one.stats['iteration_s']
    for change in [*found.changes, *filter(None, [found.pair])]:
        again = priced_again(about, change)
        assert again.stats['iteration_s'] == pytest.approx(change.estimate.stats['iteration_s'])
        assert again.needed == pytest.approx(change.estimate.needed)
        if one.fits: assert again.fits
        if one.fits or not again.fits: assert again.stats['iteration_s'] < before
    if found.pair and found.changes and found.changes[0].estimate.fits:
        pair, single = (c.estimate.stats['iteration_s'] for c in (found.pair, found.changes[0]))
        assert pair < single
    assert found.best.fits or not one.fits


def test_what_is_worthwhile():
    "What fits and is faster by a thousandth; of a job that does not fit, whatever fits."
    one = estimate('llama3.1_8B', Parallel(tp=2, dp=8), 'H100-80GB', 64, 'calibrated')
    def like(ratio, GB=1.):
        seconds = ratio * one.stats['iteration_s']
        stats = {'iteration_s': seconds, 'likely_s': seconds, 'memory_GB': GB,
                 'memory_bound_GB': GB}
        return dataclasses.replace(one, stats=one.stats | stats)
    ratios = .5, .9985, .9995, 1., 1.0005, 2.
    asked = [worthwhile(one)(like(ratio)) for ratio in ratios]
    assert asked == [True, True, False, False, False, False] and one.fits
    assert not worthwhile(one)(like(.5, GB=86)) and worthwhile(one)(like(.5, GB=84))
    assert all(worthwhile(like(1., GB=86))(like(ratio)) for ratio in ratios)
    assert not worthwhile(like(1., GB=86))(like(.5, GB=90))
    untested = dataclasses.replace(one, stats=one.stats | {
        'iteration_s': .9 * one.stats['iteration_s'], 'likely_s': 1.1 * one.stats['iteration_s']})
    assert not worthwhile(one)(untested) and not worthwhile(untested)(one)   # 11 % longer


def test_what_makes_a_job_fit_is_ranked_as_in_a_search():
    "It does not fit, so nobody runs it: that no run had such short pieces of a sequence counts."
    found = fits('llama3.1_70B', Parallel(tp=4, cp=4, dp=4), 'H100-80GB', 64)
    ranked = [change.estimate.stats['likely_s'] for change in found.changes]
    assert not found.fits and 'a context of 2,048 tokens' in found.estimate.notes[0]
    assert len(ranked) == 3 and ranked == sorted(ranked)
    assert found.changes[0].to['cp'] == 2   # 10 % more time than the next, by the count


def test_changes_of_a_layout_that_no_run_came_near_are_ranked_by_time():
    "It is run already: that it is unknown to us is no reason against what else it could do."
    run = 'nemotron4_340B', Parallel(tp=16, pp=8, recompute='full'), 'H100-80GB', 64
    found = improve(*run)
    times = [change.estimate.stats['iteration_s'] for change in found.changes]
    assert 'tp over 2 NVLink domains' in found.estimate.notes[0] and times == sorted(times)
    assert found.changes[0].to == {'recompute': 'none'}
    of_near = improve(run[0], Parallel(tp=8, pp=16, recompute='full'), *run[2:], k=30)
    assert not any(change.estimate.parallel.tp > 8 for change in of_near.changes)


def test_a_change_that_is_behind_because_no_run_came_near_says_so():
    "All-gathers of tokens would take 21 % less by our count, but nobody timed them."
    p = Parallel(tp=2, pp=8, dp=8, ep=8, micro_batch=8, virtual_stages=5, recompute='full')
    table = improve('deepseek_v3', p, 'B200', 512, k=20).table[:-1]   # without the best of two
    untested = table.why.str.endswith(', untested')
    assert table.change[untested].tolist() == ['dispatcher alltoall -> allgather']
    assert (table.change_s.diff()[1:] < 0).tolist() == untested[1:].tolist()


def test_improve_finds_what_is_too_much():
    "A forward pass computed again for nothing: a quarter of the time."
    about = 'llama3.1_8B', Parallel(tp=2, dp=8, recompute='full'), 'H100-80GB', 64, 'calibrated'
    before, found = estimate(*about).stats['iteration_s'], improve(*about)
    times = [change.estimate.stats['iteration_s'] / before for change in found.changes]
    assert times == sorted(times) and .7 < times[0] < .85 and times[-1] < .999


@pytest.mark.parametrize('model, n, batch', [('llama3.1_8B', 64, 64), ('mixtral_8x7B', 32, 64)])
def test_the_best_is_told_so(model, n, batch):
    best = search(model, n, 'H100-80GB', batch, assumptions='calibrated', k=3)
    best = best.loc[best.iteration_s.idxmin()]
    found = why_not(model, Parallel.from_row(best), 'H100-80GB', batch)
    assert found.is_best and not found.excluded and 'It is the best' in found.summary


def test_the_best_is_what_is_likely_to_be():
    "By our count something that fits is faster, but no measured run came near it."
    about = 'llama3.1_405B', Parallel(tp=8, cp=2, pp=16, dp=4, virtual_stages=4), 'H100-80GB', 2048
    far = dataclasses.replace(about[1], tp=4, cp=4, pp=32, dp=2, virtual_stages=2)
    here, there = (estimate(about[0], p, *about[2:]) for p in (about[1], far))
    assert there.fits and there.stats['iteration_s'] < here.stats['iteration_s']
    found = why_not(*about)
    assert found.is_best and 'nothing that fits is likely to be faster' in found.summary
    by_count = search('llama3.1_70B', 256, 'H100-80GB', 256, k=1, assumptions='corrected')
    first = Parallel.from_row(by_count.iloc[0])
    found = why_not('llama3.1_70B', first, 'H100-80GB', 256, 'corrected')
    assert found.is_best and 'nothing that fits is faster' in found.summary


def test_why_not_asks_as_the_search_that_found_it():
    "DeepSpeed hides messages of ZeRO 3 unless told: they once stayed hidden with ZeRO 2, unasked."
    model = dataclasses.replace(as_model('kimi_linear_48B_A3B'), seq_len=8192)
    system = dataclasses.replace(as_system('Gaudi3', 16), hbm_capacity=512.)
    found = search(model, 16, system, 48, k=1, software='DeepSpeed').iloc[0]
    assert found.zero_stage == 3 and found.dp_overlap
    answer = why_not(model, Parallel.from_row(found), system, 48, software='DeepSpeed')
    assert answer.is_best
    assert answer.best.stats['iteration_s'] == pytest.approx(found.iteration_s, rel=1e-12)


def test_why_not_adds_up():
    found = why_not('llama3.1_8B', Parallel(tp=8, dp=8), 'H100-80GB', 64)
    assert not found.is_best
    seconds = found.table[found.table.unit == 's']
    parts, whole = seconds[seconds.what != 'iteration'], seconds[seconds.what == 'iteration']
    assert parts.more.sum() == pytest.approx(whole.more.item())
    assert whole.here.item() > whole.best.item()


def test_why_not_tells_no_choice_that_changes_nothing():
    "Of GPUs that share no layer it does not matter how they would share its sequence."
    layout = Parallel(dp=8, micro_batch=2, sequence_sharded=False, context='ring')
    found = why_not(MODELS[0], layout, 'H200-141GB', 64)
    assert not found.is_best and found.best.parallel.tp == found.best.parallel.cp == 1
    assert 'sequence_sharded' not in found.summary and 'context ring' not in found.summary


def test_why_not_names_every_rule():
    found = why_not('llama3.1_8B', Parallel(tp=3, dp=5), 'H100-80GB', 64)
    text = '; '.join(found.excluded)
    assert 'heads=32 must be divisible by tp=3' in text
    assert 'global_batch=64 must be divisible by dp=5' in text
    assert found.estimate is None and not len(found.table)


@pytest.mark.parametrize('own', [dict(adapters='lora:16'), dict(optimizer='muon'),
                                 dict(precision='fp8')])
def test_the_best_trains_the_same(own):
    "Another optimizer, other adapters or another precision would be another training."
    found = why_not('llama3.1_8B', Parallel(dp=4, tp=2, **own), 'H100-80GB', 64)
    assert found.best is not None and not found.excluded
    (name, value), = own.items()
    assert getattr(found.best.parallel, name) == value


def test_the_best_has_the_zero_stages_of_a_search():
    "A search that is not told of one tries those that the software offers."
    about = 'llama3.1_8B', Parallel(tp=2, dp=8), 'H100-80GB', 64
    best = search(about[0], 16, *about[2:], k=1, software='llm-foundry')
    assert best.zero_stage[0] != as_assumptions('calibrated', 'llm-foundry').zero_stage
    found = why_not(*about, software='llm-foundry')
    assert found.best.stats['iteration_s'] == pytest.approx(best.iteration_s[0], rel=1e-12)


def test_the_same_change_has_one_name():
    "With 40 layers a stage, computing all of 40 again is computing all again."
    found = fits('llama3.1_70B', Parallel(tp=8, dp=2), 'H100-80GB', 64)
    costs = [(c.estimate.stats['iteration_s'], c.estimate.needed) for c in found.changes]
    assert len(costs) > 1 and len({*costs}) == len(costs)


def test_groups_may_change_by_any_factor_where_one_knob_does_not_help():
    "131,072 tokens on eight GPUs: all of them share the sequence or the heads, and more."
    found = fits('llama3.1_8B', Parallel(dp=8), 'H100-80GB', 64)
    assert found.changes   # of 8,192 tokens one knob is enough
    long = dataclasses.replace(as_model('llama3.1_8B'), seq_len=131072)
    found = fits(long, Parallel(dp=8), 'H100-80GB', 64)
    assert found.changes and all(change.estimate.fits for change in found.changes)
    assert {8} & {found.changes[0].to.get(group) for group in ('tp', 'cp')}
    assert 'cheapest of the simplest changes' in found.summary


def test_a_measurement_beyond_the_peak_is_told():
    about = 'llama3.1_8B', Parallel(dp=8, recompute='full'), 'H100-80GB', 64
    hfu, took = (estimate(*about).stats[name] for name in ('hfu', 'iteration_s'))
    says = [improve(*about, measured=took * hfu / reached).summary for reached in (1.01, .99)]
    assert 'No GPU is so fast: it would be an HFU of 101%' in says[0]
    assert 'No GPU is so fast' not in says[1]


@pytest.mark.parametrize('preset', ['paper', 'corrected', 'calibrated'])
def test_the_best_known_is_what_a_search_finds(preset):
    "Under presets that do not search widely context parallelism is tried where a job has it."
    about = 'A100', 512, preset
    ask = lambda strategy: search('gpt3', 512, about[0], 512, strategy, 1, preset).iteration_s[0]
    found = why_not('gpt3', Parallel(tp=8, pp=8, dp=8), *about)
    assert found.best.stats['iteration_s'] == pytest.approx(ask(None), rel=1e-9)
    with_cp = why_not('gpt3', Parallel(tp=4, cp=2, pp=8, dp=8), *about)
    assert with_cp.best.stats['iteration_s'] == pytest.approx(ask(['1d', '2d-seqp']), rel=1e-9)
    assert 'tried strategy 1d, 2d-seqp,' in with_cp.summary
    assert ('tried strategy 1d, and' in found.summary) == (preset != 'calibrated')


def test_nothing_fits():
    found = why_not('llama3.1_405B', Parallel(), 'A100', 1)
    assert found.best is None
    has(found.summary, 'Nothing that a search tries is possible: 1d, 2d-seqp: the smallest of 1')
    assert not improve('llama3.1_405B', Parallel(), 'A100', 1).best.fits


def test_why_a_search_finds_nothing_is_said_with_why_not():
    "512 copies do not share 768 samples; that nothing fits was no reason."
    about = 'mixtral_8x22B', Parallel(pp=16, dp=32), 'H100-80GB', 768
    found = why_not(*about, software='fms-fsdp')
    assert found.best is None
    has(found.summary, 'knows pp 1, not 16', 'multiply to 512 and divide', 'the batch of 768')


def test_who_finds_no_small_change_that_fits_is_told_of_larger_ones():
    about = 'llama3.1_70B', Parallel(cp=2, pp=2, dp=32), 'A100-40GB', 32
    found = improve(*about, software='nanotron')
    assert not found.best.fits and found.summary.endswith('fits. `fits` tries larger ones, too.')
    assert fits(*about, software='nanotron').changes


def test_a_placement_that_was_given_can_be_opened():
    bad = Parallel(tp=8, dp=8, nvlink_tp=1, nvlink_cp=1, nvlink_pp=1, nvlink_dp=8)
    found = improve('llama3.1_8B', bad, 'H100-80GB', 64)
    assert 'placement left open' in found.table.change.tolist()
    assert found.table.change_s.max() < 0


@pytest.mark.parametrize('preset', ['calibrated', 'paper'])
def test_what_changes_nothing_is_no_change(preset):
    "A placement that is the one of an estimate is no step when it is left open."
    about = 'H100-80GB', 64, preset
    p = Parallel(tp=8, dp=8)
    placed = estimate('llama3.1_8B', p, *about).parallel
    left, held = (improve('llama3.1_8B', own, *about, k=40) for own in (p, placed))
    assert left.tried == held.tried == 19
    assert 'placement left open' not in held.table.change.tolist()


def test_an_opened_placement_is_told_beside_another_step():
    "But not beside groups of other sizes, whose placement is another in any case."
    bad = Parallel(tp=8, dp=8, nvlink_tp=1, nvlink_cp=1, nvlink_pp=1, nvlink_dp=8)
    case = case_of('llama3.1_8B', bad, 'H100-80GB', 64, 'calibrated', None)
    pairs = pairs_of(case, steps_of(case))
    knobs = {pair.knob for pair in pairs}
    assert 'groups and placement' not in knobs and 'groups and recompute' in knobs
    words = [in_short(case.parallel, pair.to) for pair in pairs
             if pair.knob == 'tp_overlap and placement']
    assert words == ['tp_overlap off -> on, placement left open']


def test_a_layout_goes_when_the_pipeline_changes():
    p = Parallel(tp=8, pp=2, dp=2, layout='Et*15|t*17L')
    found = improve('llama3.1_8B', p, 'H100-80GB', 64)
    assert len(found.changes) == 5
    for change in found.changes:
        kept = {'pp', 'virtual_stages', 'schedule'}.isdisjoint(change.to)
        assert (change.estimate.parallel.layout == p.layout) == kept


def test_precision_stays_unless_it_is_asked_for():
    about = 'llama3.1_8B', Parallel(tp=2, dp=4), 'H100-80GB', 64
    knobs = lambda **more: {s for c in improve(*about, k=50, **more).changes for s in c.to}
    assert 'precision' not in knobs() and 'precision' in knobs(precision='fp8')


@pytest.mark.parametrize('model, p, more, says', [
    ('qwen3_30B_A3B', dict(ep=8, dp=16), {},
     ['Asked for: precision bf16 -> fp8 (-1.4% in time, 87.1 GB, MFU 16.7%), which does not fit.']),
    ('llama3.1_8B', dict(tp=8), dict(k=1, precision=['fp8', 'bf16', 'fp8-block']),
     ['Asked for: precision bf16 -> fp8-block (', 'which comes after those shown.']),
    ('llama3.1_8B', dict(tp=8, dp=2), dict(seq_len=128), ['fp8 (', 'which is not faster.']),
    ('llama3.1_8B', dict(dp=8), dict(software='Paxml'),
     ['Not tried: precision fp8, which Paxml is not known to offer.']),
    ('llama3.1_8B', dict(strategy='2d', tp=2, cp=2, dp=2), {},
     ["Not tried: precision='fp8' with strategy 2d: SUMMA has products in 16 bits."])], ids=str)
def test_a_precision_that_was_asked_for_is_answered(model, p, more, says):
    "Also where it is none of the changes shown; of one that is shown, once."
    more = {'precision': 'fp8', **more}
    m = as_model(model)
    m = dataclasses.replace(m, seq_len=more.pop('seq_len', m.seq_len))
    found = improve(m, Parallel(**p), 'H100-80GB', 256, **more)
    for words in says: assert words in found.summary
    assert len(found.besides) == 1
    del more['precision']
    assert not improve(m, Parallel(**p), 'H100-80GB', 256, **more).besides


# measurements

def test_measured():
    about = 'llama3.1_8B', Parallel(tp=2, dp=4), 'H100-80GB', 64
    seconds = estimate(*about, 'calibrated').stats['iteration_s']
    off = improve(*about, measured=1.5 * seconds).deviation
    assert off.ratio == pytest.approx(1.5)
    gaps = off.table.would_take_s - off.table.predicted_s
    assert gaps.tolist() == pytest.approx([.5 * seconds] * len(gaps))
    assert off.table.times.is_monotonic_increasing
    assert improve(*about).deviation is None
    other_unit = improve(*about, measured=1000 * seconds).deviation
    assert other_unit.summary.endswith('more. Is it in milliseconds, or of many iterations?')
    with pytest.raises(ValueError, match='measured=-1'): improve(*about, measured=-1)
    for table, words in ((pd.DataFrame({'x': [1.]}), "lacks the column 'iteration_s'"),
                         (pd.DataFrame({'iteration_s': []}), 'has no steps'),
                         (pd.DataFrame({'iteration_s': [-1.]}), 'iteration_s=-1')):
        with pytest.raises(ValueError, match=words): improve(*about, measured=table)


def test_a_log_of_another_batch_is_no_measurement(tmp_path):
    "Its iteration is another; steps before a batch grew to that of the job do not count."
    about = 'llama3.1_8B', Parallel(tp=2, dp=4), 'H100-80GB', 64
    line = 'iteration {}/ 9 | elapsed time per iteration (ms): {} | global batch size: {} |\n'
    log = tmp_path / 'train.log'
    log.write_text(''.join(line.format(i, 1000. * batch, batch) for i, batch in enumerate(
        [16, 16, 32, 64, 64, 128, 128, 128, 128])))
    assert improve(*about, measured=log).deviation.seconds == 64
    log.write_text(line.format(1, 9., 32))
    with pytest.raises(ValueError, match='no step has the 64 samples of its job'):
        improve(*about, measured=log)


def test_a_switch_that_is_off_is_found():
    "A run that does not hide what its job says it hides."
    about = 'llama3.1_8B', Parallel(tp=8, dp=1, tp_overlap=True), 'H100-80GB', 64
    off = dataclasses.replace(about[1], tp_overlap=False)
    slow = estimate(about[0], off, *about[2:], 'calibrated').stats['iteration_s']
    found = improve(*about, measured=slow).deviation
    assert found.settings[0] == ('tp_overlap on -> off', pytest.approx(slow))


def test_what_may_fit_is_not_told_to_be_too_large():
    "Its count fits, and only what nine of ten runs need at most does not."
    about = ['llama3.1_405B', Parallel(tp=8, pp=16, dp=128, virtual_stages=4, zero_stage=2,
                                       reduce_each=False), 'H100-80GB', 2048]
    one = estimate(*about)
    assert one.stats['memory_GB'] < 84.9 < one.needed and not one.fits
    said = 'GPUs may NOT fit, by 1.3 GB: 78.8 GB, 86.2 GB at most of 84.9 GB.'
    assert said in fits(*about).summary
    assert ' It may not fit: 78.8 GB, at most 86.2 of 84.9 GB.' in improve(*about).summary
    about[1] = dataclasses.replace(about[1], zero_stage=1)
    assert 'GPUs does NOT fit, by 10.7 GB: 95.6 GB at most of 84.9 GB.' in fits(*about).summary
    assert ' It does not fit: 95.6 of 84.9 GB.' in improve(*about).summary


def test_what_was_measured_ran(tmp_path):
    "Its memory has a sentence of its own; that it does not fit, only its prediction says."
    about = 'llama3.1_8B', Parallel(dp=8), 'H100-80GB', 64
    one = estimate(*about, 'calibrated')
    log = pd.DataFrame({'iteration_s': [one.stats['iteration_s']] * 2, 'memory_GB': [70., 71.]})
    said = improve(*about, measured=log).summary
    assert 'Measured 71.0 GB, predicted 101.2 GB. llama3.1_8B on' in said
    assert '0.0% less. That is as near as predictions usually come. Measured 71.0 GB' in said
    assert f'It ran, though by its prediction it does not fit: {one.needed:.1f} of 84.9' in said
    assert f' It does not fit: {one.needed:.1f} of 84.9' in improve(*about).summary
    assert 'It ran' not in improve('llama3.1_8B', Parallel(tp=8), *about[2:], measured=9).summary


# jobs

def test_a_job_is_what_it_says():
    job = as_job(SCRIPT)
    about = job.model, job.parallel, 'H100-80GB', job.global_batch
    assert job.software.name == 'Megatron-Core'
    by_hand = fits(*about, software='Megatron-Core')
    assert fits(SCRIPT, system='H100-80GB').summary == by_hand.summary != fits(*about).summary
    other = fits(SCRIPT, system='H100-80GB', software='nanotron').estimate
    assert other.assumptions.software.name == 'nanotron'   # what is said comes first
    with pytest.raises(ValueError, match='does not say its model'):
        fits({'train_batch_size': 64, 'zero_optimization': {'stage': 3}}, system='H200')
    with pytest.raises(ValueError, match='global_batch'): fits('llama3.1_8B', Parallel(), 'H200')


# the command line

@pytest.fixture
def job(tmp_path):
    path = tmp_path / 'train.sh'
    path.write_text(SCRIPT)
    return '--job', path, '--system', 'H100-80GB'


def test_fits_command(job):
    text = good('fits', *job)
    for word in ('to spare', 'gradients', 'rank', 'MFU', 'HFU'): assert word in text
    answer = json.loads(good('fits', *job, '--pp', 2, '--dp', 8, '--recompute', 'none',
                             '--format', 'json', code=1))
    assert not answer['fits'] and len(answer['changes']) == 3 and len(answer['ranks']) == 2
    total = sum(part['GB'] for part in answer['parts'])
    assert total == pytest.approx(answer['stats']['memory_bound_GB'])
    assert all(change['fits'] and change['to'] for change in answer['changes'])


def test_improve_command(job, tmp_path):
    answer = json.loads(good('improve', *job, '--measured', 40, '--top', 3, '--format', 'json'))
    assert len(answer['changes']) == 3 and answer['deviation']['measured_s'] == 40
    assert answer['summary'].startswith('Measured 40 s')
    log = tmp_path / 'log.txt'
    log.write_text(' iteration 1/ 9 | elapsed time per iteration (ms): 90000.0 |\n'
                   ' iteration 2/ 9 | elapsed time per iteration (ms): 40000.0 |\n')
    assert 'Measured 40 s' in good('improve', *job, '--measured', log)
    rows = good('improve', *job, '--format', 'csv').splitlines()
    assert rows[0].startswith('change,iteration_s,change_s,mfu,hfu') and len(rows) == 7


def test_what_is_exported_is_better(job, tmp_path):
    path = tmp_path / 'better.sh'
    good('improve', *job, '--export', 'megatron', '-o', path)
    old, new = (as_job(text) for text in (SCRIPT, path.read_text()))
    assert new.n_gpus == old.n_gpus and new.global_batch == old.global_batch
    seconds = [estimate(j.model, j.parallel, 'H100-80GB', 256, 'calibrated').stats['iteration_s']
               for j in (old, new)]
    assert seconds[1] < seconds[0]


def test_why_not_command(job):
    answer = json.loads(good('why-not', *job, '--format', 'json'))
    assert not answer['excluded'] and answer['best']['fits'] and not answer['is_best']
    text = good('why-not', '--model', 'llama3.1_8B', '--tp', 3, '--global-batch', 64, code=1)
    assert 'heads=32 must be divisible by tp=3' in ' '.join(text.split())


@pytest.mark.parametrize('args, says', [
    (('fits', '--model', 'llama3.1_8B', '--tp', 3), 'must be divisible by tp=3'),
    (('improve', '--model', 'llama3.1_8B', '--measured', 'no.log'), 'no.log'),
    (('improve', '--model', 'llama3.1_8B', '--measured', 0), 'measured'),
    (('improve', '--model', 'llama3.1_8B', '--try-precision', 'fp9'), 'fp9'),
    (('why-not', '--sytem', 'H200'), '--system')])
def test_mistakes(args, says): has(bad(*args), says)


@pytest.mark.parametrize('system, theirs', [('H100-80GB', {'once', 'once_sorted'}),
                                            ('MI300X', set()), ('TPU-v5p', set())])
def test_a_dispatcher_is_offered_where_it_runs(system, theirs):
    case = case_of('mixtral_8x7B', Parallel(dp=8, ep=8), system, 64, 'calibrated', None)
    offered = {step.to['dispatcher'] for step in steps_of(case) if step.knob == 'dispatcher'}
    assert offered - {'allgather'} == theirs


def test_the_best_known_sends_tokens_as_the_gpus_can():
    "HybridEP is written for NVIDIA's GPUs: on others neither a search nor an answer tries it."
    found = why_not('deepseek_v3', Parallel(pp=8, dp=32, ep=32), 'MI300X', 512, software='Primus')
    best = search('deepseek_v3', 256, 'MI300X', 512, k=1, software='Primus')
    assert found.best.parallel.dispatcher == best.dispatcher[0] == 'alltoall'
    assert found.best.stats['iteration_s'] == pytest.approx(best.iteration_s[0], rel=1e-9)


@pytest.mark.parametrize('model', MODELS, ids=lambda m: m.name)
def test_what_is_allowed_is_what_an_estimate_takes(model):
    "Among ways to share 16 GPUs, those that an estimate refuses and those that it prices."
    one = estimate(model, Parallel(dp=16, nvlink_dp=8), 'H100-80GB', 48)
    rng, taken = np.random.default_rng(5), []
    for _ in range(300):
        tp, cp, pp = (int(2**rng.integers(4)) for _ in range(3))
        p = Parallel(tp=tp, cp=cp, pp=pp, dp=max(16 // (tp * cp * pp), 1),
                     micro_batch=int(rng.integers(1, 5)),
                     ep=int(2**rng.integers(4)) if model.experts else 1,
                     virtual_stages=int(rng.integers(1, 4)), nvlink_tp=int(min(tp, 8)))
        if p.n_gpus != 16: continue
        try: found = estimate(model, p, one.system, 48)
        except ValueError: found = None
        t = {name: np.array([x]) for name, x in vars(
            found.parallel if found else settled(p, one.system, one.assumptions, model)).items()}
        if not found: t |= {place: np.array([x]) for place, x in zip(PLACES, (min(tp, 8), 1, 1, 1))}
        mask = neighbours_of.allowed(t | {'strategy': p.strategy, 'layout': None}, one)
        assert bool(mask.all()) == (found is not None), p
        taken.append(found is not None)
    assert 30 < sum(taken) < len(taken) - 30


@pytest.mark.parametrize('preset', ['corrected', 'calibrated'])
@pytest.mark.parametrize('schedule', ['1f1b', 'gpipe', 'zb-v'])
def test_chunks_that_are_possible_are_those_that_an_estimate_takes(preset, schedule):
    model, p = 'llama3.1_8B', Parallel(tp=2, pp=4, dp=2, schedule=schedule)
    case, taken = case_of(model, p, 'H100-80GB', 64, preset), []
    for v in range(1, case.model.depth + 1):
        with contextlib.suppress(ValueError):
            estimate(model, dataclasses.replace(p, virtual_stages=v), 'H100-80GB', 64, preset)
            taken.append(v)
    assert neighbours_of.chunks_possible(case).tolist() == taken != []


def run_as_said(**layout):  # Case
    "Of a model with 32 layers, with no choice settled that the layout leaves open."
    return neighbours_of.Case(as_model('llama3.1_8B'), Parallel(**layout), as_system('H100-80GB'),
                              64, as_assumptions('calibrated'))


@pytest.mark.parametrize('step, follows', [
    ({'offload': 'optimizer+weights'}, {'zero_stage': 3, 'reduce_each': None}),
    ({'offload': 'optimizer'}, {}), ({'zero_stage': 2}, {'reduce_each': None}),
    ({'tp_overlap': True}, {'sequence_sharded': True}), ({'tp_overlap': False}, {}),
    ({'sequence_sharded': False}, {'tp_overlap': False}),
    ({'schedule': 'zb-v'}, {'virtual_stages': 2}), ({'schedule': 'gpipe'}, {'virtual_stages': 1}),
    ({'pp': 4, 'dp': 2}, {'layout': None, 'nvlink_dp': None, 'recompute': 'full:4'}),
    ({'pp': 1, 'dp': 8}, {'layout': None, 'nvlink_dp': None, 'recompute': 'full:16'}),
    ({'pp': 32, 'tp': 1}, {'layout': None, 'nvlink_dp': None, 'recompute': 'full:1'})], ids=str)
def test_what_follows_from_a_step(step, follows):
    case = run_as_said(dp=4, pp=2, nvlink_dp=4, layout='Et*20|t*12L', recompute='full:8')
    if 'schedule' in step: follows = follows | {'layout': None}
    assert neighbours_of.with_consequences(case, step) == step | follows


def test_two_steps_keep_the_share_that_is_computed_again_unless_one_says_it():
    "A half stays a half, whichever groups gave the GPUs."
    case = run_as_said(tp=2, dp=4, pp=2, recompute='full:20')
    def step(knob, **to): return Step(knob, neighbours_of.with_consequences(case, to))
    from_tp, from_dp = step('groups', tp=1, pp=4), step('groups', dp=2, pp=4)
    nothing = step('recompute', recompute='none')
    both = neighbours_of.steps_together(case, from_tp, from_dp).to
    assert (from_tp.to['recompute'], both['pp'], both['recompute']) == ('full:10', 8, 'full:5')
    for pair in ((from_tp, nothing), (nothing, from_tp)):
        assert neighbours_of.steps_together(case, *pair).to['recompute'] == 'none'
    assert neighbours_of.steps_together(case, nothing, nothing) is None


@pytest.mark.parametrize('pp, other, reshard', [
    (1, 2, 'default'), (2, 1, 'default'), (2, 1, 'always'), (1, 2, 'never'), (2, 4, 'default')])
def test_a_move_to_other_stages_shares_out_as_the_software_does(pp, other, reshard, tmp_path):
    "What its reader derives there, unless the file says another ZeRO stage than the usual."
    path = tmp_path / 'job.toml'
    path.write_text(torchtitan_file(
        tensor_parallel_degree=2, pipeline_parallel_degree=pp,
        fsdp_reshard_after_forward=f'"{reshard}"'))
    case = case_of(as_job(path, 64), None, 'H100-80GB', None, 'calibrated')
    steps = [step for step in steps_of(case) if step.to.get('pp') == other]
    assert steps
    sums = case.assumed.costs.sums_in_pipelines
    shares = lambda p: (p.zero_stage, reduces_each(p.reduce_each, p.zero_stage, p.pp, sums))
    for step in steps:
        new = after_step(case.parallel, step.to)
        there = as_job(path, 64, tp=new.tp, cp=new.cp, pp=new.pp).parallel
        assert shares(new) == shares(there)
    own = {'zero_stage': 3, 'reduce_each': None}   # a step of its own is what it says
    pair = neighbours_of.steps_together(case, steps[0], Step('zero_stage', own))
    assert pair.to['zero_stage'] == 3


TITAN_GROUPS = [
    dict(tensor_parallel_degree=2), dict(tensor_parallel_degree=2, pipeline_parallel_degree=4),
    dict(pipeline_parallel_degree=2, pipeline_parallel_schedule='"Interleaved1F1B"'),
    dict(pipeline_parallel_degree=2, pipeline_parallel_schedule='"ZBVZeroBubble"'),
    dict(tensor_parallel_degree=2, fsdp_reshard_after_forward='"always"'),
    dict(data_parallel_replicate_degree=2, tensor_parallel_degree=4),
    dict(context_parallel_degree=2, tensor_parallel_degree=2)]

@pytest.mark.parametrize('keys', first_of(4, TITAN_GROUPS), ids=str)
def test_a_move_from_a_file_takes_what_the_file_with_those_groups_takes(keys, tmp_path):
    "Its micro-batch, parts of a stage and layers dealt follow, as its reader has them there."
    path = tmp_path / 'job.toml'
    path.write_text(torchtitan_file(**keys))
    case, compared = case_of(as_job(path, 64), None, 'H100-80GB', None, 'calibrated'), 0
    for step in (step for step in steps_of(case) if step.knob == 'groups'):
        new = after_step(case.parallel, step.to)
        try: there = as_job(path, 64, tp=new.tp, cp=new.cp, pp=new.pp).parallel
        except ValueError: continue   # the batch of a copy is too large for so many copies
        try: rewritten = case.estimate(there)
        except ValueError:
            with pytest.raises(ValueError): case.estimate(new)
            continue
        assert case.estimate(new).stats == rewritten.stats
        compared += 1
    assert compared > 3


TITAN = {'model': {'name': 'llama3', 'flavor': '8B'}, 'parallelism': {'tensor_parallel_degree': 2}}
EXPERTS = (' --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 '
           '--num-experts 8 --expert-model-parallel-size 2 --sequence-parallel '
           '--micro-batch-size 1 --global-batch-size 64 --bf16 --world-size 16 '
           '--tensor-model-parallel-size 4')

@pytest.mark.parametrize('job, gpus, step, words', [
    (TITAN | {'training': {'seq_len': 8192, 'local_batch_size': 8}}, [16], {'tp': 4, 'dp': 4},
     'dp 8 -> 4, tp 2 -> 4 (with global_batch=64 said)'),   # its file has 32 there
    (TITAN | {'training': {'seq_len': 8192, 'local_batch_size': 8, 'global_batch_size': 64}}, [16],
     {'tp': 1, 'dp': 16}, 'tp 2 -> 1, dp 8 -> 16 (its file refuses these groups alone)'),
    (EXPERTS, [], {'tp': 2, 'dp': 8}, 'tp 4 -> 2, dp 4 -> 8, etp 4 -> 2')], ids=str)
def test_what_a_file_needs_beside_other_groups_is_told(job, gpus, step, words):
    case = case_of(as_job(job, *gpus), None, 'H100-80GB', None, 'calibrated')
    found = next(one.to for one in steps_of(case)
                 if {name: one.to.get(name) for name in step} == step)
    assert neighbours_of.in_short(case.parallel, found, case) == words


def test_other_parts_of_a_stage_are_dealt_as_the_file_deals_them(tmp_path):
    "Two stages of torchtitan have 16 layers each; cut in two, their ends count as layers."
    path = tmp_path / 'job.toml'
    path.write_text(torchtitan_file(pipeline_parallel_degree=2))
    case = case_of(as_job(path, 64), None, 'H100-80GB', None, 'calibrated')
    assert case.parallel.layout is None
    layouts = {step.to['virtual_stages']: step.to.get('layout') for step in steps_of(case)
               if step.knob in ('virtual_stages', 'schedule') and 'virtual_stages' in step.to}
    assert layouts == {1: None, 2: 'Et*8|t*9|t*8|t*7L'}


def test_the_command_moves_as_the_file_says_but_for_what_is_typed(tmp_path):
    path = tmp_path / 'job.toml'
    path.write_text(torchtitan_file(tensor_parallel_degree=2))
    def moved(*more):   # what is advised with stages
        text = good('improve', '--job', str(path), '--dp', '32', '--system', 'H100-80GB',
                    '--format', 'json', '--top', '99', *more)
        return [row['to'] for row in json.loads(text)['changes'] if row['to'].get('pp', 1) > 1]
    assert {(to['zero_stage'], to['micro_batch']) for to in moved()} == {(2, 1)}
    typed = moved('--zero-stage', '3')   # as it is in the file, where nothing says it
    assert typed and not any('zero_stage' in to for to in typed)


@pytest.mark.parametrize('pp, other, usual', [(1, 2, 3), (2, 1, 2)])
def test_a_stated_zero_stage_holds_in_other_groups(pp, other, usual):
    "One that is left open is as torchtitan has it in so many stages."
    def stages(**said):
        p = Parallel(tp=2, pp=pp, dp=8, **said)
        case = case_of('llama3.1_8B', p, 'H100-80GB', 64, 'calibrated', 'torchtitan')
        assert case.parallel.zero_stage == usual
        return {after_step(case.parallel, step.to).zero_stage for step in steps_of(case)
                if step.to.get('pp') == other}
    assert stages() == {5 - usual}
    assert stages(zero_stage=usual) == {usual}
    one = estimate('llama3.1_8B', Parallel(tp=2, pp=pp, dp=8), 'H100-80GB', 64,
                   software='torchtitan')
    for what, stage in ((one, 5 - usual), (json.loads(export(one)), usual)):   # nobody, a file
        case = case_of(what, None, 'H100-80GB', None, 'calibrated')
        assert {after_step(case.parallel, step.to).zero_stage for step in steps_of(case)
                if step.to.get('pp') == other} == {stage}


def test_ends_that_count_as_layers_do_so_in_other_stages():
    "From 8, 9, 8 and 7 layers to eight stages, and to two parts of each; without parts to none."
    p = Parallel(tp=2, pp=4, dp=4, layout='Et*8|t*9|t*8|t*7L')
    case = case_of('llama3.1_8B', p, 'H100-80GB', 64, 'calibrated')
    found = {(new.pp, new.virtual_stages): new.layout
             for step in steps_of(case) for new in [after_step(p, step.to)]
             if {'pp', 'virtual_stages'} & step.to.keys()}
    assert found[8, 1] == found[4, 2] == 'Et*4|t*5|(t*4|)*5tttL'
    assert found[2, 1] is None   # 16 and 16, as in any case
    other = dataclasses.replace(case.parallel, layout='Et*9|t*9|t*8|t*6L')   # no rule
    case = dataclasses.replace(case, parallel=other)
    assert {step.to['layout'] for step in steps_of(case) if step.to.get('pp') == 8} == {None}


def test_an_interleaved_pipeline_can_become_one_stage():
    case = case_of('llama3.1_8B', Parallel(tp=2, pp=2, dp=4, virtual_stages=2), 'H100-80GB', 64,
                   'calibrated')
    steps = [step for step in steps_of(case) if step.to.get('pp') == 1]
    assert steps
    for step in steps:
        with contextlib.suppress(ValueError): case.estimate(after_step(case.parallel, step.to))
        assert after_step(case.parallel, step.to).virtual_stages == 1


@pytest.mark.parametrize('v', [1, 2])
@pytest.mark.parametrize('vocab', [32000, 256000])
def test_layers_dealt_by_time_are_dealt_best(vocab, v):
    "Of all ways to deal eight layers to the chunks none has a faster slowest chunk."
    model = dataclasses.replace(MODELS[0], depth=8, vocab=vocab)
    case = case_of(model, Parallel(pp=2, dp=8, virtual_stages=v), 'H100-80GB', 64,
                   'calibrated')
    one = case.estimate(case.parallel)
    _, _, (cost,), ends = priced_estimate(one)
    beside = [ends[0], *[0.] * (2 * v - 2), ends[1]]
    slowest = lambda dealt: max(n * (cost.forward + cost.backward) + more
                                for n, more in zip(dealt, beside))
    even = layout_of(chunks_of(8, 2 * v))
    layout, = neighbours_of.layouts_by_time(case) or [even]
    assert (layout != even) == (vocab == 256000)
    dealt = [chunk.count('t') for chunk in chunks_in(layout)]
    assert sum(dealt) == 8 and len(dealt) == 2 * v
    every = [way for way in itertools.product(range(9), repeat=2 * v) if sum(way) == 8]
    assert slowest(dealt) == pytest.approx(min(map(slowest, every)), rel=1e-12)
    better = case.estimate(dataclasses.replace(case.parallel, layout=layout))
    assert better.stats['iteration_s'] <= one.stats['iteration_s'] * (1 + 1e-9)
    assert neighbours_of.layouts_by_time(dataclasses.replace(
        case, parallel=dataclasses.replace(case.parallel, schedule='zb-v', virtual_stages=2))) == []


@pytest.mark.parametrize('model, layout, told', [
    ('llama3.1_8B', dict(recompute='moe_act', cuda_graphs='moe_router', dispatcher='once'),
     'Without effect on this model: recompute moe_act, cuda_graphs moe_router, dispatcher once.'),
    ('qwen3_30B_A3B', dict(recompute='moe_act', cuda_graphs='moe_router', dispatcher='once'), ''),
    ('llama3.1_8B', dict(recompute='mlp', cuda_graphs='attn+moe'), ''),
    ('llama3.1_8B', dict(recompute='full:1'), '')])
@pytest.mark.parametrize('software', [None, 'SimuMax', 'Megatron-Bridge'])
def test_choices_without_effect_are_told(model, layout, told, software):
    one = estimate(model, Parallel(tp=2, dp=4, **layout), 'H100-80GB', 8, software=software)
    notes = [note for note in one.notes if note.startswith('Without effect')]
    assert notes == ([told] if told else [])
    plain = estimate(model, Parallel(tp=2, dp=4), 'H100-80GB', 8, software=software)
    assert (one.stats['iteration_s'] == plain.stats['iteration_s']) == bool(told)


def test_every_door_says_what_does_not_fit():
    layout = Parallel(dp=8)
    one = estimate('llama3.1_70B', layout, 'H100-80GB', 64)
    said = f'It does not fit: {one.needed:.1f} of 84.9 GB.'
    assert said in improve('llama3.1_70B', layout, 'H100-80GB', 64).summary
    asked = '--model', 'llama3.1_70B', '--dp', '8', '--global-batch', '64'
    assert said in ' '.join(good('sensitivity', *asked).split())
    assert 'It does not fit' not in good('sensitivity', *asked, '--tp', '8', '--pp', '4')
    documents = {1024: 100, 8192: 10}
    packed = packing('llama3.1_70B', layout, 'H100-80GB', documents, 64)
    assert f'It does not fit: {packed.even.needed:.1f} of 84.9 GB.' in repr(packed)
    small = packing('llama3.1_8B', Parallel(tp=2, dp=8), 'H100-80GB', documents, 64)
    assert small.even.fits and 'does not fit' not in repr(small)


def test_copies_to_the_host_are_no_messages_of_copies():
    one = estimate('llama3.1_8B', Parallel(zero_stage=3, offload='optimizer+weights',
                                           recompute='full'), 'H100-80GB', 4)
    assert one.stats['dp_comm_s'] > 0 and 'DP comm, host copies' in one.summary
    both = estimate('llama3.1_8B', Parallel(dp=8, zero_stage=3), 'H100-80GB', 64)
    assert 'host copies' not in both.summary
    about = 'llama3.1_8B', Parallel(dp=8, zero_stage=3, offload='optimizer+weights',
                                    micro_batch=2), 'H100-80GB', 64
    assert 'DP comm, host copies' in list(why_not(*about).table.what)
    reasons = ' '.join(improve(*about).table.why)
    assert 'host copies takes' in reasons and 'DP comm takes' not in reasons
    apart = why_not('llama3.1_8B', Parallel(tp=2, dp=4), 'H100-80GB', 64)
    assert 'DP comm' in list(apart.table.what)


@pytest.mark.parametrize('software', [None, 'Megatron-Core'])
def test_what_a_host_cannot_hold_comes_back(software):
    "The GPU has room for all of it: no change is simpler, and a first step need not go far."
    small = dataclasses.replace(as_system('H100-80GB'), host_capacity=10.)
    about = 'llama3.1_8B', Parallel(tp=8, offload='optimizer', zero_stage=1), small, 64
    asked = fits(*about, software=software)
    assert not asked.fits and 'its host would hold 16.1 of 10 GB' in asked.summary
    assert asked.changes[0].words == 'offload optimizer -> none'
    assert all(change.estimate.fits for change in asked.changes)
    better = improve(*about, software=software)
    assert better.changes[0].words == 'offload optimizer -> none' and better.best.fits
    # of many steps, those that the host has no room for are not in the way of the others
    roomy = dataclasses.replace(small, host_capacity=8.1)
    other = fits('llama3.1_8B', Parallel(tp=4, dp=2, offload='optimizer', zero_stage=0), roomy, 64)
    assert other.changes[0].words.startswith('offload optimizer -> none')


def test_a_job_on_another_system_is_placed_anew():
    "Its placement was of smaller domains; on its own system it holds."
    p, about = Parallel(tp=4, dp=4), ('H100-80GB', 64)
    job = job_asked(estimate('llama3.1_8B', p, *about))
    assert fits(job).estimate.parallel.nvlink_dp == 2
    found = fits(job, system='GB200-NVL72').estimate
    assert found.stats == estimate('llama3.1_8B', p, 'GB200-NVL72', 64).stats


def test_of_one_change_there_are_not_several():
    found = improve(Model(1024, 1024, 8, 1), Parallel(), 'H100-80GB', 1, 'corrected')
    for number, words in ((1, ' 1 change of one knob'), (2, ' 2 changes of one knob')):
        assert words in dataclasses.replace(found, tried=number).summary
