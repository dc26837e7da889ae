"What figures rest on: runs that are known are counted by hand, and their errors make the interval."
import dataclasses
import itertools
import math

import numpy as np
import pytest

from transformer_perf import Assumptions, Model, Parallel, estimate, search
from transformer_perf.blocks import Experts, gpt_block
from transformer_perf.estimates import AS_TRAINED, MENDED_SLIPS, as_assumptions
from transformer_perf.execution import KIND
from transformer_perf.iteration import (
    changes_something, evidence_of_rows, experts_to_share, out_of_reach, readable, says_nothing)
from transformer_perf.parameters import (
    Calibration, Costs, Evidence, Kernels, Parameters, checked_interval, interval,
    read_calibration, untested_longer)
from transformer_perf.models import as_model
from transformer_perf.systems import as_system
from transformer_perf.validation import published
from transformer_perf.validation.calibration import (
    choices_in, evidence_with, reached_in, seen_by_stack)
from transformer_perf.validation.runs import clean, stack_of

MODEL = Model(1024, 512, 8, 12, mlp_dim=1536, vocab=4096, name='small')
EXPERTS = dataclasses.replace(MODEL, experts=8, experts_per_token=2, expert_dim=256)
SYSTEM = as_system('H100-80GB', 8)


def run(runs, gpu='H100', stack='NeMo', model='dense', precision='bf16'):
    return dict(runs=runs, gpu=gpu, stack=stack, model=model, precision=precision)


KNOWN = Evidence(
    runs=[run(6), run(2, precision='fp8'), run(4, stack='Other'), run(5, gpu='H200')],
    seen={'zero_stage': [1], 'recompute': ['none', 'full'], 'schedule': ['1f1b']},
    intervals={'half held out': {'dense': (-.1, .2), 'waiting': (-.2, .3), 'experts': (-.3, .4)},
               'never seen': {'dense': (-.4, .5), 'waiting': (-.5, .6), 'experts': (-.6, .7)},
               'unnamed': {'dense': (-.7, .8), 'waiting': (-.8, .9), 'experts': (-.9, .95)}})


def asked(layout, model=MODEL, system=SYSTEM, stack='NeMo', known=KNOWN, **software):
    "An estimate by parameters of which these runs are known."
    measured = Parameters('Hopper', stack, Kernels(), software=Costs(**software), evidence=known)
    a = Assumptions(**MENDED_SLIPS | AS_TRAINED, measured=measured)
    return estimate(model, Parallel(micro_batch=2, **layout), system, 64, a)


RESTS = [   # a question, what it rests on, and the interval of its kind
    ({}, 'measured: 6 runs of NeMo on H100, dense, bf16', ('half held out', 'dense', 1)),
    (dict(precision='fp8'), 'near: only 2 runs of NeMo on H100, dense, fp8',
     ('never seen', 'dense', 1)),
    (dict(precision='fp8-block'), 'near: 8 runs of NeMo on H100, none of them dense, fp8-block',
     ('never seen', 'dense', 1)),
    (dict(dp=2, zero_stage=3), 'extrapolated: no run with zero_stage 3 was fitted to',
     ('never seen', 'dense', 1.5)),
    (dict(recompute='full:3'), 'measured: 6 runs', ('half held out', 'dense', 1)),
    (dict(recompute='mlp'), 'extrapolated: no run with recompute mlp',
     ('never seen', 'dense', 1.5)),
    (dict(zero_stage=3), 'measured: 6 runs', ('half held out', 'dense', 1)),   # of one copy
    (dict(stack='any', precision='fp8'), 'near: 2 runs of NeMo on H100, dense, fp8',
     ('unnamed', 'dense', 1)),
    (dict(pp=2, schedule='zb-h1'), 'extrapolated: no run with schedule zb-h1',
     ('never seen', 'dense', 1.5))]


@pytest.mark.parametrize('layout, words, where', RESTS, ids=[words for _, words, _ in RESTS])
def test_an_interval_by_hand(layout, words, where):
    stack = layout.pop('stack', 'NeMo') if 'stack' in layout else 'NeMo'
    one = asked(layout, stack=stack)
    assert any(f'Evidence: {words}' in note for note in one.notes), one.notes
    of, kind, wider = where
    low, high = KNOWN.intervals[of][kind]
    s = one.stats
    assert math.isclose(s['iteration_low_s'], s['iteration_s'] / math.exp(wider * high))
    assert math.isclose(s['iteration_high_s'], s['iteration_s'] / math.exp(wider * low))


def test_kinds_of_runs():
    "With experts; waiting for the host where it takes more than a tenth; on another stack or GPU."
    s = asked({}, EXPERTS).stats
    assert math.isclose(s['iteration_high_s'] / s['iteration_s'], math.exp(.6))
    busy, waiting = asked({}).stats, asked({}, host_micro_batch=.05).stats
    assert busy['other_s'] < .1 * busy['iteration_s'] < waiting['other_s']
    assert math.isclose(waiting['iteration_low_s'], waiting['iteration_s'] / math.exp(.3))
    for seconds, part in ((0., False), (.5, True)):   # at the edge: more than a tenth
        one = asked({}, iteration_constant=seconds).stats
        share = one['other_s'] / one['iteration_s']
        assert (one['iteration_low_s'] < one['iteration_s'] / math.exp(.25)) == (share > .1) == part


def test_the_nearest_runs_are_named():
    says = lambda **more: ' '.join(asked({}, **more).notes)
    only = 'of the GPU only: 10 runs on H100, dense, bf16, and none of the software Third'
    assert only in says(stack='Third')
    assert 'near: 10 runs on H100, dense, bf16, of several stacks' in says(stack='any')
    none = 'of the GPU only: 12 runs on H100, none of them with experts, bf16'
    assert none + '.' in says(stack='any', model=EXPERTS)
    assert none + ', and none of the software Third.' in says(stack='Third', model=EXPERTS)
    for field in ('matrix_flops_fp16', 'hbm_bandwidth'):
        for ratio, near in ((.905, True), (1.095, True), (.895, False), (1.105, False)):
            changed = dataclasses.replace(SYSTEM, **{field: ratio * getattr(SYSTEM, field)})
            assert ('measured: 6 runs' in says(system=changed)) == near
            assert ('extrapolated: no run on a GPU of the rates' in says(system=changed)) != near


# what a choice can change, and what no run came near

def test_choices_that_can_matter():
    "Those of a group where it has two GPUs; those of copies where there are two, or a host's."
    of_groups = dict(sequence_sharded='tp', tp_overlap='tp', context='cp', schedule='pp')
    for tp, cp, pp, dp, ep, etp in itertools.product((1, 2), repeat=6):
        row = dict(tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, etp=etp, strategy='2d-seqp',
                   schedule='1f1b', zero_stage=0)
        def matters(choice, row=row, **more):
            return bool(changes_something(row | more, choice, False))
        for choice, group in of_groups.items(): assert matters(choice) == (row[group] > 1)
        assert matters('dispatcher') == matters('ep_overlap') == (ep > 1 or etp > 1)
        assert matters('recompute') and matters('precision')
        assert matters('strategy') == (cp > 1), 'else it is 1d'
        assert matters('strategy', strategy='1d') and matters('strategy', strategy='2d')
        copies = dp * cp > 1
        for stage, offload in itertools.product(range(4), ('none', 'weights')):
            own = dict(zero_stage=stage, offload=offload)
            for choice in ('zero_stage', 'reduce_each', 'dp_overlap'):
                assert matters(choice, **own) == (copies or offload == 'weights'), choice
            assert matters('reshard_after_forward', **own) == (
                stage == 3 and (copies or offload == 'weights'))
            assert matters('dp_replicate', **own) == (stage > 0 and copies)


@pytest.mark.parametrize('tp, near, far', [(16, 16, 1), (16, 8, 2), (16, 4, 4), (8, 2, 4)])
@pytest.mark.parametrize('cp', [1, 2, 8])
def test_layouts_that_no_run_came_near(tp, near, far, cp):
    "A sequence cut into shorter pieces than any known run's, or more domains of tp."
    row, l = dict(tp=tp, cp=cp, nvlink_tp=near), MODEL.seq_len
    for least, most in (([256], [1]), ([128, 512], [2]), ([512, 2048], [1, 4, 2]), ([2048], [8]),
                        (None, None)):
        known = {} if least is None else {'context_tokens': least, 'tp_domains': most}
        found = out_of_reach(row, known, MODEL)
        short = bool(least) and cp > 1 and l / cp < min(least)
        assert ('a context of' in found) == short
        if short:
            assert f'a context of {l // cp:,} tokens' in found and f' {min(least):,})' in found
        assert (f'tp over {far} NVLink domains' in found) == ('NVLink' in found) == (
            bool(most) and far > max(most))


@pytest.mark.parametrize('experts, named, of', [
    (False, True, 'never seen'), (False, False, 'unnamed'), (True, True, 'never seen'),
    (True, False, 'unnamed')])
def test_an_untested_layout_is_ranked_by_how_much_further_off_its_upper_end_is(experts, named, of):
    known = as_assumptions('calibrated').measured.evidence
    kind = 'experts' if experts else 'dense'
    near, far = (interval(known, [words], [kind], np.ones(1), named)[1][0]
                 for words in ('near: some', 'extrapolated: none'))
    assert untested_longer(known, experts, named) == pytest.approx(far / near, rel=1e-12)
    assert 1.1 < far / near < 1.3 and near == pytest.approx(math.exp(-known.intervals[of][kind][0]))


@pytest.mark.parametrize('replicas, new', [(1, False), (4, False), (16, False), (32, True)])
def test_a_number_between_two_that_runs_had_is_no_new_one(replicas, new):
    "Runs had 1, 2, 12 and 16 replicas."
    row = Parallel(dp=64, zero_stage=3, dp_replicate=replicas)
    one = estimate('llama3.1_8B', row, 'H100-80GB', 64)
    assert ('dp_replicate 32' in one.notes[0]) == new
    assert (one.stats['likely_s'] > one.stats['iteration_s']) == new


@pytest.mark.parametrize('stage, new', [(0, True), (1, False), (2, True), (3, False)])
def test_a_zero_stage_between_two_that_runs_had_is_a_new_one(stage, new):
    "It is a way, not a number: for Megatron-Bridge dense models ran with 1 and 3."
    seen = as_assumptions('calibrated').on(SYSTEM).measured.evidence.seen_by['Megatron-Bridge']
    assert seen['dense']['zero_stage'] == [1, 3]
    one = asked(dict(dp=2, zero_stage=stage), known=dataclasses.replace(
        KNOWN, seen=KNOWN.seen | {'zero_stage': [1, 3]}))
    assert (f'no run with zero_stage {stage} was fitted to' in one.notes[0]) == new
    assert (one.stats['likely_s'] > one.stats['iteration_s']) == new


@pytest.mark.parametrize('tokens, new', [(2**18, ''), (2**18 + 1, '262,145'), (2**20, '1,048,576')])
def test_samples_longer_than_those_of_any_run(tokens, new):
    "Of 65,536 tokens there are five runs, of 131,072 two, of 262,144 one."
    model = dataclasses.replace(as_model('llama3.1_8B'), seq_len=tokens)
    note = estimate(model, Parallel(dp=8), 'H100-80GB', 8, software='NeMo').notes[0]
    if not new: assert note.startswith('Evidence: measured: ')
    else: assert note == (f'Evidence: extrapolated: no run with samples of {new} tokens (measured: '
                          '262,144) was fitted to.')


@pytest.mark.parametrize('layout, new', [
    (dict(dp=256, ep=256), 'ep 256 (measured: 128)'), (dict(dp=128, ep=128), ''),
    (dict(tp=32, dp=32, ep=32), 'tp 32 (measured: 16)'), (dict(tp=16, dp=64, ep=64), ''),
    (dict(pp=36, dp=64, ep=64), 'pp 36 (measured: 35)'), (dict(pp=35, dp=64, ep=64), '')], ids=str)
def test_groups_wider_than_those_of_any_run(layout, new):
    "Of 128 GPUs that share experts there is one run, of 64 seventeen; of 35 stages one."
    one = estimate('deepseek_v3', Parallel(**layout), 'GB200-NVL72', 2048, software='NeMo')
    assert one.notes[0].startswith(f'Evidence: extrapolated: no run with {new} was fitted to.'
                                   if new else 'Evidence: near: only 3 runs of NeMo on GB200')


def test_the_widest_of_several_runs_is_told():
    known = {'tp_gpus': [4, 16, 8], 'ep_gpus': [], 'pp_stages': [2, 35]}
    row = dict(cp=1, tp=32, nvlink_tp=8, ep=512, pp=35)
    assert out_of_reach(row, known, as_model('llama3.1_8B')) == 'tp 32 (measured: 16)'


def test_samples_longer_than_the_longest_of_runs_are_told():
    model, row = as_model('llama3.1_8B'), dict(tp=1, cp=1, nvlink_tp=1)
    for tokens in (4096, 8192, 16384):
        told = 'samples of 16,384 tokens (measured: 8,192)' if tokens > 8192 else ''
        own = dataclasses.replace(model, seq_len=tokens)
        assert out_of_reach(row, {'sample_tokens': [8192, 2048]}, own) == told


@pytest.mark.parametrize('model, ep, held', [
    ('qwen3_30B_A3B', 4, 32), ('qwen3_30B_A3B', 2, 64), ('gpt_oss_120B', 1, 128),
    ('deepseek_v3', 8, 32), ('deepseek_v3', 4, 64), ('mixtral_8x7B', 1, 8), ('jamba_52B', 1, 16)])
def test_more_experts_on_a_gpu_than_in_any_run(model, ep, held):
    "Eight GPUs that share 256 of DeepSeek-V3 hold the most of all runs: 32 of a layer each."
    one = estimate(model, Parallel(dp=8, ep=ep), 'B200-180GB', 64, software='Megatron-Bridge')
    assert experts_to_share(one.model) == held * ep
    told = f'{held} experts of a layer on a GPU (measured: 32)'
    assert (told in one.notes[0]) == (held > 32) == ('experts of a layer' in one.notes[0])


def test_experts_of_the_layer_that_has_most():
    few, many = (dataclasses.replace(gpt_block(512, 8), ffn=Experts(n, 2, 256)) for n in (8, 64))
    for layers in (((few, 6), (many, 6)), ((many, 6), (few, 6))):
        model = Model(1024, 512, 8, 12, vocab=4096, layers=layers)
        assert experts_to_share(model) == 64
        for ep, told in ((2, '32 experts of a layer on a GPU (measured: 16)'), (4, '')):
            assert out_of_reach(dict(tp=1, cp=1, nvlink_tp=1, ep=ep),
                                {'experts_held': [2, 16, 4]}, model) == told
    assert experts_to_share(MODEL) == 0


def test_how_many_experts_a_gpu_held():
    "Of runs that say both numbers; where ep is not said, the fastest was taken."
    runs = clean(published()).head(3).assign(experts=[128, 256, 8], ep=[8, None, 1])
    assert reached_in(runs)['experts_held'] == [16]
    assert reached_in(runs.head(0))['experts_held'] == []
    assert max(evidence_with(runs.assign(ep=2), None)['seen']['experts_held']) == 128
    assert max(read_calibration().evidence.seen['experts_held']) == 32


def test_how_wide_the_groups_of_runs_are():
    "The widest of all; those of one's own count beside the shipped ones."
    runs = clean(published())
    found = reached_in(runs)
    widest = {name: [runs[group].max()] for name, group in
              (('tp_gpus', 'tp'), ('pp_stages', 'pp'))} | {'ep_gpus': [1]}   # none has experts
    assert {name: found[name] for name in widest} == widest
    mine = runs.head(1).assign(ep=256.)
    assert reached_in(mine)['ep_gpus'] == [256]
    assert max(evidence_with(mine, None)['seen']['ep_gpus']) == 256


# GPUs that no run is of

@pytest.mark.parametrize('rate, generation', [(100, 'Ampere'), (500, 'Ampere'), (600, 'Hopper'),
                                              (2000, 'Hopper'), (5000, 'Hopper')])
def test_an_unknown_generation_has_the_next_by_its_rate(rate, generation):
    "312 and 989 TFLOP/s: 600 is 1.9 times the one, and 1/1.6 of the other."
    own = {f'{name}/{stack}': Parameters(name, stack) for name in ('Ampere', 'Hopper')
           for stack in ('old', 'new')}
    known, other = Calibration(own), dataclasses.replace(as_system('B200'), matrix_flops_fp16=rate)
    assert known.generation_for(other) == generation
    assert known.of(other) == own[f'{generation}/new']
    assert known.of(other, 'old') == own[f'{generation}/old']
    assert known.of(SYSTEM) == own['Hopper/new'] and known.of(as_system('A100')).stack == 'new'


def test_an_unknown_generation_keeps_the_one_that_its_file_names():
    "However fast it is made, so that a faster GPU is never slower."
    known = read_calibration()
    for name in ('MI300X', 'MI355X', 'Gaudi3', 'TPU-v5p', 'TPU-v6e', 'TPU-v7x'):
        system = as_system(name)
        taken = known.generation_for(system)
        assert taken == system.priced_as
        unnamed = dataclasses.replace(system, priced_as=None)
        assert known.generation_for(unnamed) == taken   # that of the next rate
        for rate in (100, 1400, 1500, 9000):
            other = dataclasses.replace(system, matrix_flops_fp16=rate)
            assert known.generation_for(other) == taken
    typo = dataclasses.replace(system, priced_as='Hoper')
    with pytest.raises(ValueError, match="unknown generation in priced_as 'Hoper'; did you mean"):
        known.generation_for(typo)
    hopper = Calibration({'Hopper/any': known.sets['Hopper/any']})
    assert hopper.generation_for(dataclasses.replace(system, priced_as='Ampere')) == 'Hopper'


@pytest.mark.parametrize('name', ['MI300X', 'MI355X', 'Gaudi3', 'TPU-v5p', 'TPU-v6e', 'TPU-v7x'])
def test_a_faster_gpu_of_an_unknown_generation_is_faster(name):
    system, seconds = as_system(name), []
    for times in (.6, .8, 1, 1.25, 1.6, 2.5, 4):
        faster = dataclasses.replace(
            system, matrix_flops_fp16=times * system.matrix_flops_fp16)
        seconds.append(estimate('llama3.1_8B', Parallel(tp=2, dp=4), faster, 64,
                                assumptions='calibrated').stats['iteration_s'])
    assert (np.diff(seconds) < 0).all()


def test_an_interval_has_two_logarithms():
    for pair in ((-.1, .2), (.3, .3), (-10, 10)): assert checked_interval([*pair]) == pair
    for pair in ([.2, .1], [-10.1, 0], [0, 10.1], [.1], [.1, .2, .3], (.1, .2), [.1, math.inf]):
        with pytest.raises(ValueError): checked_interval(pair)


def test_runs_of_one_stack_are_called_so():
    "Those of Other are all that H200 has in fp8; with those of NeMo there are two."
    one = run(3, gpu='H200', stack='Other', precision='fp8')
    for more, words in (((), 'near: 3 runs of Other on H200, dense, fp8'),
                        ((run(1, gpu='H200', precision='fp8'),),
                         'near: 4 runs on H200, dense, fp8, of several stacks'),
                        ((run(2, gpu='H200', stack='any'),), 'near: 3 runs of Other')):
        known = dataclasses.replace(KNOWN, runs=[*KNOWN.runs, one, *more])
        assert known.trust('H200', '', 'dense', 'fp8').startswith(words)
    unnamed = dataclasses.replace(KNOWN, runs=[run(5), run(2, stack='any', precision='fp8')])
    assert unnamed.trust('H100', '', 'dense', 'fp8') == (
        'near: 2 runs of unnamed software on H100, dense, fp8')


def test_a_software_is_measured_where_its_own_runs_chose_the_same():
    "Others had whole recompute, and runs of models with experts count for themselves."
    own = {'NeMo': {'dense': {'zero_stage': [1], 'recompute': ['none']},
                    'with experts': {'recompute': ['full']}}}
    known = dataclasses.replace(KNOWN, seen_by=own)
    rests = lambda stack='NeMo', **layout: asked(layout, stack=stack, known=known).notes
    says = lambda notes, words: any(f'Evidence: {words}' in note for note in notes)
    such = '6 runs of NeMo on H100, dense, bf16'
    assert says(rests(), f'measured: {such}')
    assert says(rests(recompute='full'), f'near: {such}, none with recompute full.')
    assert says(rests(recompute='full', stack='Other'), 'near: only 4 runs of Other')
    assert says(rests(recompute='mlp'), 'extrapolated: no run with recompute mlp')


def test_runs_say_what_each_software_chose():
    "All together chose what the table has; one's own runs are added to those that ship."
    runs = clean(published())
    found = seen_by_stack(runs)
    every = [own for models in found.values() for own in models.values()]
    for name, values in choices_in(runs).items():
        assert {*values} == {x for own in every for x in own[name]}, name
    assert set(found) == {stack or 'any' for stack in stack_of(runs)} and len(found) > 2
    mine = runs[runs.recompute == 'full'].head(1).assign(software='mine')
    (own,) = seen_by_stack(mine)['mine'].values()
    assert own['recompute'] == ['full']
    more, shipped = evidence_with(mine, None)['seen_by'], read_calibration().evidence.seen_by
    assert more == shipped | {'mine': {'dense': own}}
    again = evidence_with(mine.assign(software='SimuMax'), None)['seen_by']['SimuMax']['dense']
    assert again['recompute'] == ['full', 'none'] != shipped['SimuMax']['dense']['recompute']


@pytest.mark.parametrize('name, kind', [
    ('nemotron_h_8B', 'Mamba-2'), ('qwen3_next_80B_A3B', 'Gated DeltaNet'), ('jamba_52B', 'Mamba'),
    ('deepseek_v3.2', 'indexed attention'), ('minimax_text_01', 'lightning attention'),
    ('llama3.1_8B', ''), ('deepseek_v3', ''), ('gpt_oss_120B', ''), ('vit_era5', '')])
def test_kinds_of_layers_that_no_run_had(name, kind):
    "No table of runs has a column for them. Eight GPUs share the experts, as in many runs."
    ep = 8 if experts_to_share(as_model(name)) else 1
    one = estimate(name, Parallel(tp=2, dp=4, ep=ep), 'H100-80GB', 8)
    low, high = (one.stats['iteration_s'] / one.stats[f'iteration_{end}_s']
                 for end in ('low', 'high'))
    words = f'extrapolated: no run with {kind}' if kind else 'near:'
    assert one.notes[0].startswith(f'Evidence: {words}')
    known = one.assumptions.measured.evidence.intervals['unnamed'].values()
    wider = 1.5 if kind else 1
    assert any(np.allclose([math.log(high), math.log(low)], [wider * x for x in pair])
               for pair in known)


@pytest.mark.parametrize('rows, told', [
    (['near'], 'near'), (['near', 'near'], 'near'),   # nothing to tell apart
    (['near', 'measured', 'near'], 'near (2 of 3 rows); measured (1 of 3 rows)')])
def test_how_many_rows_rest_on_what(rows, told):
    assert evidence_of_rows(rows) == f'Evidence: {told}.'


@pytest.mark.parametrize('zero_stage, pp, sums_in_pipelines, usual', [
    (1, 1, False, False), (1, 4, True, False), (2, 1, False, True), (2, 4, False, True),
    (2, 4, True, False), (3, 1, True, True), (3, 4, True, False)])
def test_gradients_reduced_as_their_stage_has_it_say_nothing(
        zero_stage, pp, sums_in_pipelines, usual):
    "Those shared out after each micro-batch; but in PyTorch's pipelines once, as all others."
    def silent(cell):
        row = {'reduce_each': cell, 'zero_stage': zero_stage, 'pp': pp}
        return says_nothing(row, 'reduce_each', sums_in_pipelines)
    assert silent(None) and silent(usual) and not silent(not usual)


def test_rows_alike_but_for_a_group_may_rest_on_other_runs():
    "One copy shares nothing out, so its ZeRO stage says nothing; of two copies it does."
    small = Model(2048, 2048, 16, 24, vocab=50304)
    found = search(small, 2, 'H100-80GB', 8, software='NeMo', zero_stage=[3], pp=1, cp=1,
                   recompute='none')
    own = found.evidence.str
    assert {*found.dp} == {1, 2}
    assert (own.endswith('none with zero_stage 3') == (found.dp == 2)).all()
    assert (own.startswith('measured') == (found.dp == 1)).all()


@pytest.mark.parametrize('context, told', [('ring', True), ('ulysses', False)])
def test_sequences_that_the_code_of_a_model_shares_out_are_no_surprise(context, told):
    "DeepSpeed knows no cp of its own, but the way of Ulysses, which stands for it."
    p = Parallel(dp=4, cp=2, context=context)
    notes = ' '.join(estimate('llama3.1_8B', p, 'H100-80GB', 64, software='DeepSpeed').notes)
    assert ('DeepSpeed knows cp 1, not 2' in notes) == told


@pytest.mark.parametrize('name, seq_len, said, layout, new', [
    ('llama3.1_70B', 2**19, 'samples of 524,288 tokens', Parallel(tp=16), '2 NVLink domains'),
    ('nemotron_h_8B', 8192, 'Mamba-2', Parallel(cp=8, dp=2), 'a context of 1,024 tokens')])
def test_what_every_layout_has_ranks_none(name, seq_len, said, layout, new):
    """Of samples longer than any run's, or layers that none had, all layouts counted as longer: one
    that shares layers over two domains no more than one that does in a domain."""
    model = dataclasses.replace(as_model(name), seq_len=seq_len)
    for p, untested in (Parallel(tp=8, dp=2), False), (layout, True):
        one = estimate(model, p, 'H100-80GB', 16)
        assert said in one.notes[0] and (new in one.notes[0]) == untested
        assert (one.stats['likely_s'] > one.stats['iteration_s']) == untested
    first = search(model, 64, 'H100-80GB', 16, k=1, fits_by='point')
    assert first.tp[0] == first.nvlink_tp[0] and first.likely_s[0] == first.iteration_s[0]


def test_what_a_layout_chooses_hides_none_of_its_sizes():
    """With adapters, that no run has, short pieces of a sequence counted no further off than long
    ones: the first on 128 GPUs was one that a search without adapters ranks fourth."""
    found = search('llama3.1_405B', 128, 'H100-80GB', 64, kind=KIND, adapters=['lora:16'])
    longer = (found.likely_s / found.iteration_s).to_numpy()
    pieces = 8192 / found.cp
    short = ((found.cp > 1) & (pieces < 4096)).to_numpy()
    assert not short[0] and short.any() and found.iteration_s[short].min() < found.iteration_s[0]
    once = longer[0]
    assert longer[short] == pytest.approx(once ** 2) and longer[~short] == pytest.approx(once)
    told = ' '.join(map(str, found.notes))
    assert f'than the first: it is ranked as if it took {once - 1:.0%} longer' in told
    one = estimate('llama3.1_405B', Parallel.from_row(found.iloc[0]), 'H100-80GB', 64)
    assert one.stats['likely_s'] == pytest.approx(found.likely_s[0])
    assert 'likely s' in readable(found, as_system('H100-80GB'))
