"""What a search, a plan and advice offer: each kind of layout once, and only what can be run."""
import dataclasses
import functools
import json
import re

import numpy as np
import pandas as pd
import pytest

from frameworks import torchtitan_file
from thorough import first_of
from transformer_perf import Parallel, estimate, search
from transformer_perf.advice import fits, improve, plan, why_not
from transformer_perf.advice.neighbours import case_of, steps_of
from transformer_perf.cli import run_command
from transformer_perf.estimates import CHOICES, RECIPES, Recipe, as_assumptions, peak_rate
from transformer_perf.execution import KIND
from transformer_perf.interop import Job, as_job, export
from transformer_perf.iteration import readable
from transformer_perf.kernels import MEASURED_AT
from transformer_perf.models import Model, as_model
from transformer_perf.schedules import SCHEDULES
from transformer_perf.software import Software, as_software, known_software
from transformer_perf.systems import GPU_VARIANTS, PRECISIONS, as_system
from transformer_perf.timeline import PLACES
from transformer_perf.validation import predict
from transformer_perf.validation.runs import RUN_COLUMNS, sheet_of_run

ABOUT = 'llama3.1_8B', 64, 'H100-80GB', 256


def test_each_kind_of_layout_once():
    "The fastest of each way to group the GPUs, as all rows of a longer search have them."
    first = search(*ABOUT, k=600).drop_duplicates([*KIND])
    found = search(*ABOUT, k=8, kind=KIND)
    assert len(found) == 8 and not found.duplicated([*KIND]).any()
    assert found['rank'].tolist() == [*range(1, 9)]
    pd.testing.assert_frame_equal(found[[*KIND]], first[[*KIND]].iloc[:8].reset_index(drop=True),
                                  check_dtype=False)
    assert (found.likely_s.to_numpy() <= first.likely_s.to_numpy()[:8] * (1 + 1e-9)).all()
    with pytest.raises(ValueError, match='column'): search(*ABOUT, kind='tq')


def test_the_command_shows_kinds(capsys):
    words = ['search', ABOUT[0], '--gpus', '64', '--global-batch', '256', '--format', 'json']
    def shown(*more):
        assert run_command([*words, *more]) == 0
        return pd.DataFrame(json.loads(capsys.readouterr().out)['found'])
    assert not shown().duplicated([*KIND]).any()
    both = shown('--recompute', 'none,full', '--top', '60')   # asked about: both are shown
    assert not both.duplicated([*KIND, 'recompute']).any()
    assert set(both.recompute) == {'none', 'full'}


def test_the_fastest_tested_layout_is_named_even_if_it_is_not_shown():
    "Where the first is untested: all others take longer by more than its rank makes of it."
    about = 'llama3.1_405B', 512, 'H100-80GB', 16   # samples
    few = search(*about, k=1)
    assert few.evidence[0].startswith('extrapolated: no run with')
    note, = few.notes
    more = search(*about, k=2000)
    tested = more[~more.evidence.str.startswith('extrapolated')].iloc[0]
    slower = tested.iteration_s / more.iteration_s[0] - 1
    assert tested.likely_s > more.likely_s[0] and slower > .25
    assert f'is not among those shown, tp {tested.tp}' in note
    assert note.endswith(f'{slower:.1%} slower.')
    assert f'is rank {tested["rank"]}, tp {tested.tp}' in more.notes[0]
    assert not search('llama3.1_8B', 64, 'MI300X', 256, k=3).notes
    # the tested ones fit by formula, and do not when they are played
    assert not search('llama3.1_405B', 96, 'H100-80GB', 1536, k=1).notes


@pytest.mark.parametrize('name, stages', first_of(2, [
    ('torchtitan', {2, 3}), (None, {1}), ('Megatron-Core', {1, 2, 3}), ('nanotron', {1})]))
def test_stages_that_the_software_offers_are_tried(name, stages):
    "In pipelines by those that share gradients out by themselves; what is asked for, alone."
    found = search(*ABOUT, k=600, software=name)
    assert set(found.zero_stage[found.dp * found.cp > 1]) == stages
    staged = {2, 3} if name == 'torchtitan' else {1}
    assert set(found.zero_stage[found.pp > 1]) <= staged
    assert set(search(*ABOUT, k=20, software=name, zero_stages=[1]).zero_stage) == {1}
    best = search(*ABOUT, k=1, software=name, zero_stages=sorted(stages)).iteration_s[0]
    assert found.iteration_s[0] <= best * (1 + 1e-9)


@pytest.mark.parametrize('name, stage', [('DeepSpeed', 3), ('llm-foundry', 2)])
def test_more_to_consider_is_never_slower(name, stage):
    "With the host's memory considered too, the software's ZeRO stages were once forgotten."
    about = 'llama3.1_8B', 8, 'H100-80GB', 32
    few, more = (search(*about, k=1, software=name, **choices).iloc[0]
                 for choices in ({}, {'offload': ['none', 'optimizer:0.5']}))
    assert few.zero_stage == stage and more.iteration_s == few.iteration_s


def test_a_pipeline_of_torchtitan_keeps_its_weights():
    "As its default has it (ZeRO 2): a search once knew ZeRO 3 alone."
    about = 'llama3.1_405B', 512, 'H100-80GB', 512
    best, third = (search(*about, k=1, software='torchtitan', zero_stages=stages).iloc[0]
                   for stages in (None, 3))
    assert best.pp > 1 and best.zero_stage == 2
    assert best.iteration_s < .95 * third.iteration_s
    model, _, *others = about
    assert why_not(model, Parallel.from_row(best), *others, software='torchtitan').is_best


@pytest.mark.parametrize('software', ['DeepSpeed', 'GPT-NeoX', 'Colossal-AI'])
def test_pipelines_that_refuse_zero_2_and_3_get_none(software):
    "DeepSpeed asserts so; a search for ZeRO 3 has no stages unless pp is named."
    found = search(*ABOUT, k=20, software=software, zero_stages=[1, 3])
    assert set(found.pp[found.zero_stage == 3]) == {1}
    assert found.pp[found.zero_stage == 1].max() > 1
    alone = search(*ABOUT, k=1, software=software, zero_stages=3)
    assert 'pp 1 with zero_stage 3' in ' '.join(alone.notes)
    named = search(*ABOUT, k=1, software=software, zero_stages=3, fixed={'pp': [2]})
    assert named.pp[0] == 2


def test_no_step_leads_to_a_pipeline_that_refuses_its_zero_stage():
    p = Parallel(tp=2, pp=2, dp=16, zero_stage=3)
    model, _, *others = ABOUT
    asked = lambda p: why_not(model, p, *others, software='DeepSpeed').excluded
    assert 'DeepSpeed knows zero_stage 0 or 1 in pipelines, not 3' in asked(p)
    assert not any('pipelines' in why for why in asked(dataclasses.replace(p, zero_stage=1)))
    for own in (dataclasses.replace(p, pp=1, dp=32), dataclasses.replace(p, zero_stage=1)):
        case = case_of(model, own, *others, 'calibrated', 'DeepSpeed')
        steps = [s.to for s in steps_of(case)]
        assert steps and not any(
            (to.get('pp') or own.pp) > 1 and to.get('zero_stage', own.zero_stage) in (2, 3)
            for to in steps)


def test_without_cp_both_strategies_rest_on_the_same_runs():
    "'2d-seqp' is '1d' then, as a search that names it calls it."
    known = {'software': 'Megatron-Core', 'k': 200}   # whose runs have no cp
    one, two = (search(*ABOUT, strategy, **known) for strategy in ('1d', '2d-seqp'))
    alone = two[two.cp == 1].reset_index(drop=True)
    assert len(alone) and not alone.evidence.str.contains('2d-seqp').any()
    both = one.merge(alone, on=[*KIND, *PLACES, 'recompute', 'virtual_stages', 'micro_batch',
                                'zero_stage'])
    assert len(both) > 10
    for name in ('evidence', 'likely_s', 'iteration_low_s', 'iteration_high_s'):
        assert (both[f'{name}_x'] == both[f'{name}_y']).all(), name


def test_what_a_software_takes():
    s = as_software('nanotron')
    assert s.offers('zero_stage', 1) and not s.offers('zero_stage', 3)
    assert not s.offers('schedule', 'zb-h1') and as_software({'name': 'x'}).offers('schedule', 'x')
    for s in known_software().values():
        assert set(s.takes or {}) <= {*s.knobs, 'tp', 'cp', 'pp', 'ep', 'schedule'}
        assert set((s.takes or {}).get('schedule', ())) <= {*SCHEDULES}
    with pytest.raises(ValueError, match='takes'): as_software({'name': 'x', 'takes': {'a': 1}})


@pytest.mark.parametrize('name, ways', [
    ('Megatron-LM', ['none', 'selective', 'full:16']), ('PaddleNLP', ['none', 'selective']),
    ('InternEvo', ['none', 'full:16']), ('Colossal-AI', ['none', 'full:16']),
    ('DeepSpeed', ['none'])])
def test_advice_on_recompute_is_what_the_software_offers(name, ways):
    "Norms, MLPs and activations apart are modules of today's Megatron alone."
    case = case_of('llama3.1_8B', Parallel(dp=8, recompute='full'), 'A100-80GB', 64, 'calibrated',
                   name)
    advised = {step.to['recompute'] for step in steps_of(case) if 'recompute' in step.to}
    assert advised == {*ways}


@pytest.mark.parametrize('software, layout, told', [
    ('Transformers', dict(tp=8), 'Transformers knows tp 1, not 8'),
    ('DeepSpeed', dict(cp=2, dp=4), 'DeepSpeed knows cp 1, not 2'),
    ('DeepSpeed', dict(dp=8, recompute='layernorm'),
     'DeepSpeed knows recompute none or full, not layernorm'),
    ('Megatron-Core', dict(pp=2, tp=4, schedule='zb-h1'),
     'Megatron-Core knows schedule 1f1b, not zb-h1')])
def test_what_a_software_does_not_know_is_told(software, layout, told):
    "It is priced, a note says it, and it is a reason why not."
    about = 'llama3.1_8B', Parallel(**layout), 'H100-80GB', 64
    one, found = estimate(*about, software=software), why_not(*about, software=software)
    assert f'{told}.' in one.notes and told in found.excluded and told in found.summary
    alike = dataclasses.replace(about[1], tp=1, cp=1, pp=1, dp=8, schedule=None,
                                recompute=None)
    other = estimate('llama3.1_8B', alike, *about[2:], software=software)
    assert not any(' knows ' in note for note in other.notes)


def test_why_not_says_a_thing_once(capsys):
    assert run_command(['why-not', '--model', 'llama3.1_8B', '--tp', '8', '--global-batch', '8',
                     '--software', 'Transformers']) == 1
    out = ' '.join(capsys.readouterr().out.split())
    assert out.count('Transformers knows tp 1, not 8') == 1
    assert 'a search tries is possible: 1d, 2d-seqp: the smallest of 1' in out


@pytest.mark.parametrize('name, held', [('fms-fsdp', ['tp', 'cp', 'pp']), ('GPT-NeoX', ['cp']),
                                        ('nanotron', ['virtual_stages'])])
def test_a_search_keeps_to_what_a_software_can_do(name, held):
    "What is asked for is priced, whoever may run it; the note is of what the software held."
    found, of_all = search(*ABOUT, k=600, software=name), search(*ABOUT, k=600)
    assert (found[held] == 1).all(axis=None) and (of_all[held] > 1).any().all()
    assert any(f'Held at what {name} can do' in note for note in found.notes) == ('cp' in held)
    asked = search(*ABOUT, software=name, fixed={'tp': 2}, cp=2)
    assert len(asked) and (asked[['tp', 'cp']] == 2).all(axis=None)
    assert not any('cp' in note for note in asked.notes)


def test_an_odd_batch_takes_about_as_long_as_an_even_one():
    "61 samples took three times as long as 60: all but micro-batches of one were left out."
    odd, even = (search('qwen3_30B_A3B', 1024, 'GB300-NVL72', batch, k=1) for batch in (61, 60))
    assert odd.iteration_s[0] < 1.3 * even.iteration_s[0] and odd.micro_batch[0] == 61


@pytest.mark.parametrize('n_gpus', [1, 8])
def test_a_search_says_where_more_gpus_do_not_help(n_gpus):
    "Software that keeps all of a model on each GPU: what it says to do instead does find some."
    about, to_do = ('llama3.1_8B', n_gpus, 'H100-80GB', 64), 'keeps all of a model on each GPU'
    found = search(*about, software='Transformers')
    assert not len(found) and 'GB over' in found.reasons[n_gpus]
    assert any(to_do in note and 'DeepSpeed' in note and 'zero_stage 3' in note
               for note in found.notes)
    others = [dict(software='DeepSpeed'), dict(software='Transformers', zero_stage=3)]
    for way in others:
        other = search('llama3.1_8B', 8, *about[2:], **way)
        assert len(other) and not any(to_do in note for note in other.notes)
    unshared = search(*about, software='fms-fsdp', zero_stage=0)
    assert not len(unshared) and not any(to_do in note for note in unshared.notes)   # as asked


@pytest.mark.parametrize('system, name, batch', first_of(4, [
    ('A100-80GB', 'torchtitan', 64), ('H100-80GB', 'torchtitan', 256),
    ('A100-80GB', 'torchtitan 0.3', 256), ('H100-80GB', 'DeepSpeed', 256),
    ('H100-80GB', 'torchtitan', 64), ('A100-80GB', 'torchtitan', 256),
    ('H100-80GB', 'torchtitan 0.3', 256), ('A100-80GB', 'DeepSpeed', 256)]))
def test_what_a_search_finds_can_be_told_its_software(system, name, batch):
    found = search('llama3.1_70B', 64, system, batch, software=name)
    best = estimate('llama3.1_70B', Parallel.from_row(found.iloc[0]), system, batch, software=name)
    assert export(best, name.lower().removesuffix(' 0.3'))
    staged = found[(found.pp > 1) & (found.zero_stage > 1)]
    assert not staged.reduce_each.any()


def test_a_pipeline_of_torchtitan_reduces_once():
    "PyTorch sums up the gradients of its micro-batches first; a plain loop reduces each."
    layout = Parallel(tp=8, pp=4, dp=2, zero_stage=3, virtual_stages=1, micro_batch=1)
    about = 'llama3.1_70B', layout, 'H100-80GB', 64
    own, other = (estimate(*about, software=name).stats for name in ('torchtitan', 'plain'))
    asked = estimate(*about[:1], dataclasses.replace(layout, reduce_each=True), *about[2:],
                     software='torchtitan').stats
    assert own['dp_comm_s'] < asked['dp_comm_s'] and own['gradients_GB'] > asked['gradients_GB']
    assert other['dp_comm_s'] > own['dp_comm_s']


def test_a_row_says_what_was_asked_where_its_software_does_otherwise():
    "MaxText captures whole iterations: a row that does not has to say so."
    assert search(*ABOUT, k=1, software='MaxText').cuda_graphs[0] == 'iteration'
    row = search(*ABOUT, k=1, software='MaxText', cuda_graphs='none').iloc[0]
    model, _, *others = ABOUT
    one = estimate(model, Parallel.from_row(row), *others, software='MaxText')
    assert one.parallel.cuda_graphs == row.cuda_graphs == 'none'
    assert one.stats['iteration_s'] == pytest.approx(row.iteration_s, rel=1e-9)


@pytest.mark.parametrize('model, assumptions', [
    ('nemotron_h_8B', 'corrected'), ('llama3.1_8B', 'calibrated')])
def test_a_row_has_the_FLOP_of_its_placement(model, assumptions):
    "Which heads cp exchanges depends on its place; a row had the FLOP of none, and so its HFU."
    about = 'H100-80GB', 32, assumptions
    p = Parallel(cp=4, dp=4, context='ulysses+ring', micro_batch=2,
                 nvlink_tp=1, nvlink_cp=4, nvlink_pp=1, nvlink_dp=2)
    one = estimate(model, p, *about).stats
    fixed = {name: getattr(p, name) for name in ('tp', 'cp', 'pp', 'dp', 'micro_batch', *PLACES)}
    row = search(model, 16, *about[:2], '2d-seqp', 1, assumptions, fixed, context='ulysses+ring',
                 recompute='none', virtual_stages=1).iloc[0]
    for name in one: assert row[name] == pytest.approx(one[name], rel=1e-12), name


def test_what_a_software_does_by_itself_was_measured_with_its_runs():
    "That gradients of a pipeline are summed up first is no news, whether it is said or not."
    about = 'llama3.1_70B', 'H100-80GB', 64
    staged = Parallel(tp=8, pp=4, dp=2, virtual_stages=1, zero_stage=3)
    evidence_of = lambda often: estimate(
        about[0], dataclasses.replace(staged, reduce_each=often), *about[1:],
        software='torchtitan').notes[0]
    assert evidence_of(False) == evidence_of(None) and 'reduce_each' not in evidence_of(None)
    assert 'no run with reduce_each True' in evidence_of(True)
    found = search(about[0], 64, *about[1:], software='torchtitan', pp=4)
    assert not found.evidence.str.contains('reduce_each').any()


@pytest.mark.parametrize('name', ['torchtitan', 'Megatron-LM'])
@pytest.mark.parametrize('often', [True, False])
def test_a_row_says_when_its_gradients_are_reduced(name, often):
    "With stages, torchtitan sums them up first unless it is told otherwise."
    about = 'llama3.1_70B', 'H100-80GB', 64
    row = search(about[0], 64, *about[1:], k=1, software=name, zero_stages=3, pp=4,
                 reduce_each=often).iloc[0]
    one = estimate(about[0], Parallel.from_row(row), *about[1:], software=name).stats
    assert one['iteration_s'] == pytest.approx(row.iteration_s, rel=1e-9)
    assert one['memory_GB'] == pytest.approx(row.memory_GB, rel=1e-9)


def test_advice_keeps_to_what_a_software_can_do():
    def turned(name, zero_stage=3):   # which columns of a layout its advice tries to change
        layout = Parallel(dp=8, zero_stage=zero_stage, recompute='full')
        case = case_of('mixtral_8x7B', layout, 'H100-80GB', 64, 'calibrated', name)
        return {column for step in steps_of(case) for column in step.to}
    groups = {'tp', 'cp', 'pp', 'ep'}
    assert groups <= turned(None) and not groups & turned('fms-fsdp')
    assert groups & turned('GPT-NeoX', 1) == groups - {'cp'} and 'recompute' in turned('GPT-NeoX')
    assert groups & turned('GPT-NeoX') == groups - {'cp', 'pp'}   # its pipelines refuse ZeRO 3


@pytest.mark.parametrize('given, says', [
    ({'knobs': ['recompte']}, "unknown choice 'recompte'; did you mean 'recompute'?"),
    ({'takes_in_pipelines': {'tpp': [1]}}, "unknown choice 'tpp'"),
    ({'takes_in_pipelines': {'zero_stage': [7]}}, 'zero_stage=7'),
    ({'takes': {'tpp': [1]}}, "unknown choice 'tpp'; did you mean 'tp'?"),
    ({'takes': {'tp': ['1']}}, "tp that mine takes='1' must be a whole number"),
    ({'takes': {'cp': [0]}}, 'cp that mine takes=0 must be a whole number'),
    ({'takes': {'recompute': ['none', 'ful:N']}}, "unknown recompute 'ful:1'"),
    ({'like': 'torchtitn'}, "unknown software to be like 'torchtitn'; did you mean 'torchtitan'?")])
def test_what_no_layout_has_is_no_knob(given, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        as_assumptions('calibrated', {'name': 'mine', **given})


def test_what_was_not_measured_is_no_library_and_no_rate(monkeypatch):
    "A slip of the pen took another library's prices, unnoticed; a rate was a KeyError."
    ask = lambda **more: estimate('llama3.1_8B', Parallel(dp=8, **more.pop('p', {})), 'H100-80GB',
                                  8, 'calibrated', **more)
    mine = {'name': 'mine', 'knows': {'attention_library': 'FlashAttention-9'}}
    with pytest.raises(ValueError, match="unknown attention_library 'FlashAttention-9'"):
        ask(software=mine)
    monkeypatch.setitem(RECIPES, 'int8', Recipe('int8', 1, 4, 2))
    with pytest.raises(ValueError, match="unknown rate of a precision 'int8'"):
        ask(p={'precision': 'int8'})
    monkeypatch.setitem(PRECISIONS, 'int8', 'matrix_flops_fp8')
    monkeypatch.setitem(RECIPES, 'int8', Recipe('int8', 1, 4, 2, one_scale=True))
    h100 = as_system('H100-80GB')
    assert peak_rate('int8', h100) == h100.matrix_flops_fp8
    with pytest.raises(ValueError, match='A100-80GB.* has no matrix_flops_fp8'):
        peak_rate('int8', as_system('A100-80GB'))
    with pytest.raises(ValueError, match="unknown rate of a precision 'int8'; known: bf16, fp8"):
        ask(p={'precision': 'int8'})
    monkeypatch.setitem(MEASURED_AT, 'int8', 'fp8')
    assert ask(p={'precision': 'int8'}).stats == ask(p={'precision': 'fp8'}).stats


def test_a_number_of_layers_is_one_value():
    s = as_software('fms-fsdp')
    assert s.offers('recompute', 'full:3') and not as_software('nanotron').offers(
        'recompute', 'full:3')
    assert not s.offers('recompute', 'mlp') and as_software('NeMo').offers('recompute', 'mlp')


@pytest.mark.parametrize('flavor', ['8B', 'mine'])   # of a depth that is known, or is not
def test_what_a_job_is_read_as_is_no_choice_that_its_software_lacks(flavor):
    "torchtitan computes again every second product unless told, which no choice of ours is."
    job = as_job({'model': {'name': 'llama3', 'flavor': flavor}, 'training': {'seq_len': 8192},
                  'parallelism': {'data_parallel_shard_degree': 8},
                  'activation_checkpoint': {'mode': 'selective'}})
    assert job.parallel.recompute in ('full:16', 'selective') and job.software.knobs
    asked = 'llama3.1_8B', job.parallel, 'H100-80GB', 64, job.assumptions('calibrated')
    assert not any(' knows ' in note for note in estimate(*asked).notes)
    assert ' knows ' not in str(why_not(*asked).excluded)
    assert not as_software('torchtitan 0.3').offers('recompute', 'full:15')


def test_a_file_of_deepspeed_may_share_sequences_out():
    job = as_job({'train_batch_size': 64, 'train_micro_batch_size_per_gpu': 1,
                  'gradient_accumulation_steps': 8, 'sequence_parallel_size': 4,
                  'zero_optimization': {'stage': 3}})
    assert (job.parallel.cp, job.parallel.context, job.software.name) == (4, 'ulysses', 'DeepSpeed')
    asked = 'llama3.1_8B', job.parallel, 'H100-80GB', 64, job.assumptions('calibrated')
    assert not any(' knows ' in note for note in estimate(*asked).notes)


def test_experts_share_the_sequence_out_whatever_software_usually_does():
    "No other way of tensor parallelism is known of them, so nobody needs to say it."
    p = Parallel(tp=2, dp=4, ep=4, zero_stage=1)
    one = estimate('mixtral_8x7B', p, 'H100-80GB', 64, software='plain')
    assert one.parallel.sequence_sharded
    said = dataclasses.replace(p, sequence_sharded=True)
    assert one.stats == estimate('mixtral_8x7B', said, 'H100-80GB', 64, software='plain').stats
    with pytest.raises(ValueError, match='needs sequence_sharded=True'):
        estimate('mixtral_8x7B', dataclasses.replace(p, sequence_sharded=False), 'H100-80GB', 64)
    dense = estimate('llama3.1_8B', Parallel(tp=2, dp=4), 'H100-80GB', 64, software='plain')
    assert not dense.parallel.sequence_sharded
    found = search('mixtral_8x7B', 64, 'H100-80GB', 256, k=300, software='plain')
    assert (found.sequence_sharded == (found.tp > 1)).all() and (found.tp > 1).any()


MEGATRON = '''torchrun --nproc-per-node 8 --nnodes 8 pretrain_gpt.py --num-layers 32 \\
  --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 \\
  --ffn-hidden-size 14336 --swiglu --normalization RMSNorm --disable-bias-linear \\
  --untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 128256 \\
  --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 256 \\
  --tensor-model-parallel-size 4 --pipeline-model-parallel-size 8 --bf16 --sequence-parallel \\
  --use-distributed-optimizer
'''


@pytest.mark.parametrize('job, name', [
    (as_job(MEGATRON), 'megatron'),
    (dataclasses.replace(as_job(MEGATRON), software='torchtitan', parallel=Parallel(
        tp=4, pp=8, dp=2, zero_stage=2, reduce_each=False)), 'torchtitan')])
def test_improvements_can_be_told_to_the_framework_of_the_job(job, name):
    assert export(job, name)
    unnamed = dataclasses.replace(job, software=None)
    for what in (improve(job, system='H100-80GB', k=60), improve(
            unnamed, system='H100-80GB', k=60, assumptions='corrected')):   # ranked by time alone
        own = what.estimate.assumptions.software
        sayable = []
        for change in (*what.changes, *filter(None, [what.pair])):
            try: sayable.append(bool(export(change.estimate, name)))
            except ValueError: sayable.append(False)
        assert len(sayable) > 5 and all(sayable) == (own is not None)   # zb-h1, where none is named
    given = {c for s in what.changes for c in s.to if c in CHOICES}
    assert 'schedule' in given


@pytest.mark.parametrize('software', ['torchtitan', 'torchtitan 0.3'])
def test_no_improvement_is_what_the_trainer_refuses(software):
    "torchtitan has no pipelines for a table that is shared; of either release that is known."
    tied = dataclasses.replace(as_model('llama3.1_8B'), tied_embeddings=True)
    stages = []
    for model in (tied, 'llama3.1_8B'):
        found = improve(model, Parallel(tp=8, dp=4), 'H100-80GB', 64, software=software, k=20)
        stages.append({change.estimate.parallel.pp for change in found.changes})
    assert stages == [{1}, {1, 2}]


def test_a_plan_has_the_best_of_each_system_and_each_layout_once():
    about = dict(tokens=1e11, global_batch=256)
    found = plan('llama3.1_8B', [32, 64], ['H200', 'H100-80GB', 'A100'], **about)
    answers = found.answers
    for name in ('H200', 'H100-80GB', 'A100'):
        own = answers[answers.system == name]
        alone = plan('llama3.1_8B', [32, 64], name, **about).row('fastest')
        row = found.row('fastest' if name == 'H200' else f'fastest on {name}')
        assert row.system == name and row.days == alone.days == own.days.min()
    others = found.rows[found.rows.answers == '']
    kind = ['system', 'n_gpus', *KIND, 'recompute']
    assert not others.duplicated(kind).any() and len(others) > 5


def test_gpus_that_share_no_experts_are_refused():
    "A search holds ep as `estimate` does: a dense model has nothing to share."
    none = search('llama3.1_8B', 8, 'H100-80GB', 64, k=2, ep=[8])
    assert not len(none) and list(none.reasons) == [8]
    some = search('llama3.1_8B', 8, 'H100-80GB', 64, k=2, ep=[1, 8])
    alone = search('llama3.1_8B', 8, 'H100-80GB', 64, k=2)
    assert some.iteration_s.tolist() == alone.iteration_s.tolist() and set(some.ep) == {1}


def test_whose_knobs_were_tried_is_said():
    "Transformers offers no ZeRO-3 by itself; what is missing has a digit."
    layout, system = Parallel(dp=256, recompute='full'), as_system('GB200-NVL72')
    about = 'llama3.1_8B', layout, system, 1024
    room = estimate(*about, software='Transformers').needed - .03
    small = 'llama3.1_8B', layout, dataclasses.replace(system, hbm_capacity=room), 1024
    found = fits(*small, software='Transformers')
    assert not found.fits and 'knobs that Transformers offers' in found.summary
    by = float(re.search(r'NOT fit, by (\S+) GB', found.summary)[1])
    assert by == pytest.approx(.03, rel=1e-3)


@pytest.mark.parametrize('tp, said', first_of(1, [(2, True), (8, False)]))
def test_a_best_that_takes_longer_is_explained(tp, said, capsys):
    "Twice the layers do not fit as they are laid out; what is chosen anew fits, and takes longer."
    assert not run_command(['sensitivity', '--model', 'llama3.1_8B', '--tp', str(tp), '--dp',
                            str(8 // tp), '--global-batch', '64', '--again', '--format', 'json'])
    answer = json.loads(capsys.readouterr().out)
    depth = next(row for row in answer['rows'] if row['field'] == 'depth')
    told = any('Where the best takes longer' in note for note in answer['notes'])
    assert (depth['best_at_high_s'] > depth['at_high_s']) == said == told
    assert any('No software is named: the same takes' in note for note in answer['notes'])
    twice = dataclasses.replace(as_model('llama3.1_8B'), depth=64)
    assert estimate(twice, Parallel(tp=tp, dp=8 // tp), 'H100-80GB', 64).fits != said


@functools.cache
def rows_of_software():   # (name, pp) -> what is predicted of its row: all in one table
    def row(name, pp):
        cannot = name is not None and not known_software()[name].offers('virtual_stages', 2)
        return dict.fromkeys(RUN_COLUMNS) | dict(
            software=name, gpu='H100-80GB', gpus_per_node=8, layers=32, hidden=4096, ffn=14336,
            heads=32, kv_heads=8, vocab=128256, seq_len=8192, gated_mlp=1, n_gpus=64, tp=4, pp=pp,
            vp=None if cannot else 1, dp=16 // pp, cp=1, micro_batch=1, global_batch=64,
            recompute='full')
    asked = [(name, pp) for name in (None, *known_software()) for pp in (1, 4)]
    told = predict(pd.DataFrame([row(*each) for each in asked]))
    return {each: told.iloc[i] for i, each in enumerate(asked)}


@pytest.mark.parametrize('name', [None, *known_software()])
@pytest.mark.parametrize('pp', [1, 4])
def test_a_row_of_a_software_is_its_estimate(name, pp):
    """What a table leaves open the software chooses, as it does where a layout leaves it open: also
    which layers its stages have, and that it does not interleave them, if it cannot."""
    told = rows_of_software()[name, pp]
    assert not told.reason
    model = Model(8192, 4096, 32, 32, 14336, kv_heads=8, vocab=128256, gated_mlp=True)
    hidden = {'dp_overlap': True} if name == 'Megatron-Core' else {}   # in all published runs
    layout = Parallel(tp=4, pp=pp, dp=16 // pp, recompute='full', **hidden)
    one = estimate(model, layout, 'H100-80GB', 64, software=name).stats
    assert told.predicted_iteration_s == pytest.approx(one['iteration_s'], rel=1e-12)
    assert told.predicted_memory_GB == pytest.approx(one['memory_GB'], rel=1e-12)
    for c in ('iteration_low_s', 'iteration_high_s'):
        assert told[c] == pytest.approx(one[c], rel=1e-12)


NEEDED = dict(gpu='H100', layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=128256,
              seq_len=8192, n_gpus=64, global_batch=64, micro_batch=1, recompute='full')


def row_told(system=None, **cells):
    return predict(pd.DataFrame([NEEDED | cells]), system=system).iloc[0]


RESTING = [
    ({}, {}), (dict(tp=2, cp=2), dict(tp=2, cp=2, dp=16)),
    (dict(tp=16), dict(tp=16, dp=4)), (dict(cuda_graphs='attn+mlp'), dict(cuda_graphs='attn+mlp')),
    (dict(zero_stage=3, fsdp_shard=8), dict(zero_stage=3, dp_replicate=8)),
    (dict(zero_stage=1, fsdp_shard=8), dict(zero_stage=1, dp_replicate=8)),
    (dict(recompute='mlp'), dict(recompute='mlp'))]


@pytest.mark.parametrize('name', first_of(2, [None, 'torchtitan', 'PaddleNLP', 'NeMo']))
def test_a_row_rests_on_what_its_estimate_rests_on(name):
    "What no run had widens the interval of a row, too; so does software that nobody names."
    model = Model(8192, 4096, 32, 32, 14336, kv_heads=8, vocab=128256, gated_mlp=True)
    table = predict(pd.DataFrame([NEEDED | cells | {'software': name} for cells, _ in RESTING]))
    for i, (_, layout) in enumerate(RESTING):
        told = table.iloc[i]
        one = estimate(model, Parallel(**dict(dp=64, recompute='full') | layout), 'H100-80GB', 64,
                       software=name)
        assert f'Evidence: {told.trust}.' in one.notes, layout
        for c in ('iteration_low_s', 'iteration_high_s'):
            assert told[c] == pytest.approx(one.stats[c], rel=1e-12), layout


@pytest.mark.parametrize('stage', [1, 2, 3])
def test_a_row_of_hybrid_sharding_is_its_estimate(stage):
    "With ZeRO 1 it was that of all copies; so was one of more GPUs than there are, or of three."
    model = Model(8192, 4096, 32, 32, 14336, kv_heads=8, vocab=128256, gated_mlp=True)
    told = row_told(zero_stage=stage, fsdp_shard=8)
    one = estimate(model, Parallel(dp=64, recompute='full', zero_stage=stage, dp_replicate=8),
                   'H100-80GB', 64).stats
    assert told.predicted_iteration_s == pytest.approx(one['iteration_s'], rel=1e-12)
    assert told.predicted_memory_GB == pytest.approx(one['memory_GB'], rel=1e-12)
    for shard in (3, 128):
        refused = row_told(zero_stage=stage, fsdp_shard=shard)
        assert refused.reason == 'fsdp_shard must divide dp * cp'


@pytest.mark.parametrize('groups', [
    dict(dp=6), dict(tp=2, dp=6), dict(dp=3), dict(tp=4, dp=3), dict(cp=2, dp=6), dict(dp=24)])
def test_a_row_lies_as_its_estimate_does(groups):
    "Six GPUs share a node of eight; in a table of runs only two of them once did."
    model = Model(8192, 4096, 32, 32, 14336, kv_heads=8, vocab=128256, gated_mlp=True)
    layout = Parallel(**groups, recompute='full')
    told = row_told(**groups, n_gpus=layout.n_gpus, global_batch=48)
    one = estimate(model, layout, 'H100-80GB', 48).stats
    assert told.predicted_iteration_s == pytest.approx(one['iteration_s'], rel=1e-12)
    assert told.predicted_memory_GB == pytest.approx(one['memory_GB'], rel=1e-12)


def test_a_system_of_its_own_name_has_the_runs_of_its_gpus():
    mine = dataclasses.replace(as_system('H100-80GB'), name='mine', accelerator='H100')
    told = row_told(mine, software='torchtitan', gpu=None)
    assert told.trust == row_told(software='torchtitan').trust
    assert told.trust.startswith('near: only 3 runs of torchtitan on H100')


def test_variants_of_gpus_that_runs_were_measured_on():
    about = 'llama3.1_8B', Parallel(dp=64, recompute='full', zero_stage=3)
    for gpu in GPU_VARIANTS:
        note = estimate(*about, sheet_of_run(gpu), 64, software='llm-foundry').notes[0]
        assert note.startswith('Evidence: measured')


@pytest.mark.parametrize('graphs', ['mlp', 'attn+moe_router', 'iteration'])
def test_graphs_that_runs_were_measured_with(graphs):
    one = estimate('mixtral_8x7B', Parallel(dp=64, ep=8, cuda_graphs=graphs), 'H100-80GB', 64)
    assert one.notes[0].startswith('Evidence: near')


def test_software_of_which_nothing_is_known_is_as_good_as_unnamed():
    own, none = row_told(software='of our own'), row_told()
    assert own.trust.endswith('none of the software of our own')
    for c in ('iteration_low_s', 'iteration_high_s'): assert own[c] == none[c]


def test_what_a_software_chooses_is_not_what_it_costs():
    "DeepSpeed runs a model's own code: its interval is that of unnamed software."
    about = 'llama3.1_8B', Parallel(tp=2, dp=4), 'A100-80GB', 64
    def interval(software):
        s = estimate(*about, software=software).stats
        return [s[f'iteration_{end}_s'] / s['iteration_s'] for end in ('low', 'high')]
    none = interval(None)
    for given in ('DeepSpeed', 'Primus', {'name': 'mine', 'chooses': {'tp_overlap': False}}):
        assert np.allclose(interval(given), none)
    for given in ('GPT-NeoX', 'MaxText', {'name': 'mine', 'like': 'plain'}):
        low, high = interval(given)
        assert none[0] < low < high < none[1]


@pytest.mark.parametrize('name, told', [('Megatron-LM', True), ('Megatron-Core', False)])
def test_a_name_of_an_old_release_is_told(name, told):
    "Megatron-LM is that of 23.04; tables of runs, and scripts, mean Megatron-Core by that name."
    about = 'llama3.1_8B', Parallel(dp=8, recompute='full'), 'H100-80GB', 64
    words = 'Megatron-LM is as of 23.04: for what goes by this name today take Megatron-Core.'
    every = (estimate(*about, software=name).notes, search(about[0], 8, *about[2:], software=name,
             k=1).notes, why_not(*about, software=name).estimate.notes)
    for notes in every: assert (words in notes) == told
    for s in known_software().values():
        assert s.followed_by in (None, *(known_software().keys() - {s.name}))


def test_the_layout_that_runs_came_near_has_its_experts_told():
    """With 2 GPUs for 128 experts each holds more than in any run; a table says how tokens travel
    where it is not usual."""
    found = search('qwen3_30B_A3B', 16, 'H100-80GB', 512, k=300, ep=[2, 8],
                   software='Megatron-Bridge')
    note, = (note for note in found.notes if 'untested' in note)
    assert (found.ep[0], found.ep[found.iteration_s.idxmin()]) == (8, 2) and ', ep 2, takes' in note
    near = search('qwen3_30B_A3B', 16, 'H100-80GB', 512, k=3, software='Megatron-Bridge', ep=8)
    assert set(near.dispatcher) == {'once_sorted'}
    assert 'once_sorted' in readable(near, as_system('H100-80GB')).to_string()


SPELLINGS = {'TorchTitan': 'torchtitan', ' deepspeed': 'DeepSpeed', 'paddle': 'PaddleNLP',
             'megatron-core': 'Megatron-Core', 'MEGATRON-LM': 'Megatron-LM', 'NEMO': 'NeMo'}


def test_software_is_known_however_it_is_spelled():
    tables = [predict(pd.DataFrame([NEEDED | dict(software=each) for each in names]))
              for names in (SPELLINGS, SPELLINGS.values())]
    told, own = (t[['predicted_iteration_s', 'predicted_memory_GB', 'iteration_low_s', 'trust']]
                 for t in tables)
    pd.testing.assert_frame_equal(told, own, check_exact=True)
    assert tables[0].software.tolist() == [*SPELLINGS] and told.predicted_iteration_s.notna().all()


def test_a_table_needs_what_may_not_be_empty():
    "Columns that are not there are as empty ones; what is taken for them is said."
    told = row_told(software='torchtitan')
    row = dict.fromkeys(RUN_COLUMNS) | NEEDED | dict(software='torchtitan')
    full = predict(pd.DataFrame([row]))
    same = ['predicted_iteration_s', 'predicted_memory_GB', 'reason', 'assumed', 'trust']
    assert told[same].tolist() == full[same].iloc[0].tolist()
    said = told.assumed.split(', ')
    assert {'tp=1', 'gated_mlp=1', 'zero_stage=3', 'flash_attention=1'} <= {*said}
    assert 'dispatcher' not in told.assumed
    experts = row_told(ffn=None, experts=8, experts_per_token=2, moe_ffn=14336, ep=8)
    assert {'dispatcher=alltoall', 'ep_overlap=0'} <= {*experts.assumed.split(', ')}


def test_a_misspelt_column_is_told(tmp_path, capsys):
    "Of what counts as empty, a reader learns why; a column of one's own is nobody's slip."
    row = {name: x for name, x in NEEDED.items() if name not in ('recompute', 'n_gpus')}
    row |= {'recompte': 'full', 'n_gpu': 64, 'remark': 'x', 'dp': 64}
    told = predict(pd.DataFrame([row])).assumed.item()
    assert "recompute=none" in told and "column 'recompte' is not read (is it 'recompute'?)" in told
    assert "(is it 'n_gpus'?)" in told and 'remark' not in told
    assert 'is not read' not in row_told(recompute='full').assumed
    pd.DataFrame([row | {'iteration_s': 3.}]).to_csv(tmp_path / 'mine.csv', index=False)
    assert run_command(['validate', str(tmp_path / 'mine.csv')]) in (None, 0)
    told = ' '.join(capsys.readouterr().out.split())
    assert "mine.csv: column 'recompte' is not read" in told and 'n_gpus' in told


@pytest.mark.parametrize('precision, known', [
    ('BF16', True), ('fp16', True), ('fp8-block', True), (None, True), ('tf32', False),
    ('fp32', False), ('int8', False)])
def test_a_row_of_another_precision_is_none_in_16_bits(precision, known):
    told = row_told(precision=precision)
    assert ('precision must be one of' in told.reason) != known
    assert (told.predicted_iteration_s > 0) == known


@pytest.mark.parametrize('offload, stages', first_of(1, [
    (['none', 'optimizer+weights'], {1, 3}), ('weights', {3}), ('optimizer', {1})]))
def test_a_search_gives_the_host_what_zero_3_alone_gives_it(offload, stages):
    "It once left weights on the host out without a word, and blamed the heads and the layers."
    about = 'llama3.1_8B', 16, 'H100-80GB', 64
    found = search(*about, k=2000, offload=offload)
    assert set(found.zero_stage) == stages
    assert (found.zero_stage[found.offload.str.contains('weights')] == 3).all()
    if 'none' in offload: assert set(found.offload) == set(offload)
    both = search(*about, k=2000, offload=offload, zero_stages=[3])   # asked: no other stage
    assert set(both.zero_stage) == {3}
    third = found[found.zero_stage == 3].iteration_s.min()
    if 3 in stages: assert third == both[both.offload.isin(found.offload[
        found.zero_stage == 3])].iteration_s.min()


def test_every_door_gives_the_host_what_zero_3_alone_gives_it(capsys):
    "A layout that leaves the stage open, too: an estimate refused what a search found."
    one = search('llama3.1_8B', 8, 'H100-80GB', 64, offload='weights', k=1).iloc[0]
    p = dataclasses.replace(Parallel.from_row(one), zero_stage=None)
    known = estimate('llama3.1_8B', p, 'H100-80GB', 64)
    assert known.parallel.zero_stage == 3
    assert known.stats['iteration_s'] == one.iteration_s
    words = ['explain', 'llama3.1_8B', '--dp', '8', '--global-batch', '64', '--offload', 'weights']
    assert run_command([*words, '--format', 'json']) == 0
    assert json.loads(capsys.readouterr().out)['parallel']['zero_stage'] == 3
    job = Job(Parallel(dp=8, offload='weights'), None, 64, 8)
    assert as_job(json.loads(export(job, 'deepspeed')), 8).parallel.zero_stage == 3
    with pytest.raises(ValueError, match='zero_stage=3, not 1'):
        estimate('llama3.1_8B', dataclasses.replace(p, zero_stage=1), 'H100-80GB', 64)


@pytest.mark.parametrize('chooses, groups, stages', [
    ({'virtual_stages': 2}, dict(tp=8, dp=8), 1), ({'virtual_stages': 2}, dict(pp=4, dp=16), 2),
    ({'virtual_stages': 2}, dict(pp=4, dp=16, schedule='gpipe'), 1),
    ({'schedule': 'zb-v'}, dict(pp=4, dp=16), 2),
    ({'schedule': 'zb-v', 'virtual_stages': 3}, dict(pp=4, dp=16, schedule='1f1b'), 3)])
def test_parts_of_stages_that_a_software_chooses_are_there_where_they_can_be(
        chooses, groups, stages):
    "A stage alone has no parts, and some schedules have a number of their own."
    s = Software('mine', chooses=chooses)
    p = Parallel(**groups, recompute='full')
    one = estimate('llama3.1_8B', p, 'H100-80GB', 192, software=s)
    assert one.parallel.virtual_stages == stages
    sizes = {name: getattr(p, name) for name in ('tp', 'cp', 'pp', 'dp', 'micro_batch')}
    found = search('llama3.1_8B', 64, 'H100-80GB', 192, software=s, fixed=sizes, k=1,
                   schedule=one.parallel.schedule, virtual_stages=stages, recompute='full')
    assert found.iteration_s[0] == one.stats['iteration_s']


def test_a_model_that_only_the_host_has_room_for_is_found():
    found = search('llama3.1_70B', 8, 'H100-80GB', 64, offload=['none', 'optimizer+weights'])
    assert set(found.offload) == {'optimizer+weights'} and set(found.zero_stage) == {3}


@pytest.mark.parametrize('asked, told', [
    (dict(zero_stages=1, offload='weights'), 'weights are on the host with zero_stage=3, not 1'),
    (dict(optimizer='muon', offload='optimizer'), 'a CPU takes no steps of muon'),
    (dict(dp_replicate=7), 'dp=64 must be divisible by dp_replicate=7'),
    (dict(schedule='dualpipe', virtual_stages=4), 'dualpipe needs virtual_stages=1'),
    (dict(fixed={'tp': 1, 'pp': 1, 'cp': 1}), 'none can run')])
def test_why_a_search_finds_nothing_is_what_was_asked(asked, told):
    "Once it said that no groups of GPUs divide the heads, whatever it was."
    if 'fixed' in asked: asked, told = asked | {'dp_replicate': 128}, 'dp_replicate=128'
    found = search('llama3.1_8B', 64, 'H100-80GB', 256, **asked)
    assert not len(found) and told in found.reasons[64]
    assert 'no numbers' not in found.reasons[64]


def test_why_nothing_groups_so_many_gpus():
    "Which may be what a software holds, or a number of GPUs: stages need not divide layers here."
    ask = lambda n, batch, **more: search('llama3.1_8B', n, 'H100-80GB', batch, **more).reasons[n]
    held = ask(512, 256, software='fms-fsdp')
    assert 'the batch of 256, with at most 32 stages; held: tp 1, cp 1, pp 1' in held
    assert 'tp, cp, pp and dp GPUs multiply to 1000 and divide the heads, the tokens and' in ask(
        1000, 256)
    even = ask(1000, 256, strategy='1d', assumptions='corrected')
    assert 'the heads, the layers and the batch of 256' in even
    thin = search(Model(1024, 512, 8, 12), 64, 'H100-80GB', 8, '2d-seqp', fixed={'tp': 8})
    thin = thin.reasons[64]
    assert 'that multiply to 64 leave each at least 128 features and tokens' in thin


@pytest.mark.parametrize('fixed, told', [
    (dict(tp=8, cp=1, panels=4), 'nothing that a search tries has panels 4: panels begin at '),
    (dict(tp=8, cp=1, nvlink_tp=1, nvlink_dp=1), '64 GPUs; held: nvlink_tp 1, nvlink_dp 1')])
def test_what_is_held_besides_groups_is_told(fixed, told):
    "Such groups there are: once features and tokens were said to be too few."
    fixed = fixed | {'pp': 1, 'dp': 8}
    found = search('nemotron4_340B', 64, 'H200-141GB', 8, '2d', assumptions='corrected',
                   fixed=fixed)
    assert not len(found) and told in found.reasons[64] and 'features' not in found.reasons[64]
    assert estimate('nemotron4_340B', Parallel('2d', **fixed), 'H200-141GB', 8, 'corrected').stats


def test_the_best_is_not_sought_among_layouts():
    "DeepSeek's own, computed again in full, is faster than what a search deals; that is said."
    model = as_model('deepseek_v3')
    p = Parallel(pp=8, dp=32, ep=32, zero_stage=1, precision='fp8-block', dispatcher='once',
                 layout='Et*3|(tt|)*29m|L')
    about = model, p, 'H100-80GB', 512   # few micro-batches: two chunks a rank help
    found, own = why_not(*about), fits(*about)
    assert own.changes[0].estimate.stats['iteration_s'] < found.best.stats['iteration_s']
    assert 'and its own, but not its layout: `improve`' in found.summary
    plain = why_not(model, dataclasses.replace(p, layout=None, virtual_stages=1), *about[2:])
    assert 'and its own: `improve`' in plain.summary


TORCHTITAN_FILE = torchtitan_file(
    data_parallel_replicate_degree=2, data_parallel_shard_degree=-1, tensor_parallel_degree='{tp}',
    context_parallel_degree='{cp}', pipeline_parallel_degree='{pp}')
MEGATRON_FILE = '''torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py \\
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 8192 \\
  --max-position-embeddings 8192 --vocab-size 64000 --micro-batch-size 1 --global-batch-size 256 \\
  --num-experts 8 --moe-router-topk 2 --moe-token-dispatcher-type alltoall --bf16 \\
  --sequence-parallel --use-distributed-optimizer --tensor-model-parallel-size {tp} \\
  --context-parallel-size {cp} --pipeline-model-parallel-size {pp}
'''
GROUPS_IN_FILE = dict(tp=2, cp=1, pp=1)


@pytest.mark.parametrize('kind, text', [('toml', TORCHTITAN_FILE), ('sh', MEGATRON_FILE)])
@pytest.mark.parametrize('changes', [{'pp': 4}, {'tp': 4}, {'cp': 2}, {'tp': 1, 'pp': 2}])
def test_a_group_beside_a_file_is_as_the_file_would_say_it(kind, text, changes, tmp_path, capsys):
    "What its program derives of its groups follows: stages of ZeRO, layouts, experts' groups."
    (tmp_path / f'job.{kind}').write_text(text.format(**GROUPS_IN_FILE))
    (tmp_path / f'other.{kind}').write_text(text.format(**GROUPS_IN_FILE | changes))
    dp = 64 // np.prod([*(GROUPS_IN_FILE | changes).values()])
    options = [word for name, n in changes.items() for word in (f'--{name}', str(n))]
    def answered(name, *options):
        words = ['explain', '--job', str(tmp_path / f'{name}.{kind}'), '--dp', str(dp)]
        assert run_command([*words, *options, '--format', 'json']) == 0
        return json.loads(capsys.readouterr().out)
    beside, inside = answered('job', *options), answered('other')
    assert beside['parallel'] == inside['parallel']
    assert beside['stats'] == inside['stats']


BLOCKS_FILE = '''torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py \\
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 8192 --bf16 \\
  --max-position-embeddings 8192 --vocab-size 64000 --micro-batch-size 1 --global-batch-size 256 \\
  --sequence-parallel --use-distributed-optimizer --tensor-model-parallel-size 2 \\
  --recompute-granularity full --recompute-method block --recompute-num-layers 1 \\
  --pipeline-model-parallel-size {pp} --num-layers-per-virtual-pipeline-stage {layers}
'''
SHARDED_FILE = '''
[model]
name = "llama3"
flavor = "8B"
[training]
seq_len = 8192
local_batch_size = 4
[parallelism]
data_parallel_shard_degree = {shard}
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_layers_per_stage = {layers}
'''


@pytest.mark.parametrize('kind, text, own, other, options', [
    ('sh', BLOCKS_FILE, dict(nodes=8, pp=4, layers=2), dict(layers=4), ['--virtual-stages', 2]),
    ('sh', BLOCKS_FILE, dict(nodes=8, pp=4, layers=2), dict(nodes=4), ['--dp', 4]),
    ('sh', BLOCKS_FILE, dict(nodes=8, pp=4, layers=2), dict(nodes=2, pp=2),
     ['--pp', 2, '--dp', 4]),
    ('toml', SHARDED_FILE, dict(shard=8, layers=9), dict(shard=4), ['--dp', 4]),
    ('toml', SHARDED_FILE, dict(shard=8, layers=9), dict(layers=6), ['--virtual-stages', 3])])
def test_copies_and_parts_of_a_stage_beside_a_file_are_as_it_would_say_them(
        kind, text, own, other, options, tmp_path, capsys):
    "Layers computed again in each part, the batch of all copies, layers dealt to parts."
    def answered(name, values, *options):
        path = tmp_path / f'{name}.{kind}'
        path.write_text(text.format(**values))
        assert run_command(['explain', '--job', str(path), *options, '--format', 'json']) == 0
        return json.loads(capsys.readouterr().out)
    beside = answered('job', own, *map(str, options))
    inside = answered('other', own | other)
    assert beside['parallel'] == inside['parallel']
    assert (beside['global_batch'], beside['stats']) == (inside['global_batch'], inside['stats'])
    assert beside['parallel'] != answered('job', own)['parallel']


@pytest.mark.parametrize('here, there', [(1, 3), (3, 1), (2, 3)])
def test_another_zero_stage_is_as_the_file_would_say_it(here, there, tmp_path, capsys):
    "Of DeepSpeed messages hide at stage 3 alone, unless told; a search once shared no gradients."
    def file_of(stage):
        path = tmp_path / f'{stage}.json'
        batch = dict(train_batch_size=512, train_micro_batch_size_per_gpu=1)
        more = dict(gradient_accumulation_steps=8, bf16={'enabled': True})
        path.write_text(json.dumps({**batch, **more, 'zero_optimization': {'stage': stage}}))
        return path
    def answered(command, stage, *options):
        words = [command, '--job', str(file_of(stage)), '--model', 'llama3.1_8B', *options]
        run_command([*words, '--format', 'json'])
        return json.loads(capsys.readouterr().out)
    said = '--zero-stage', str(there)
    inside = answered('explain', there)['stats']
    assert answered('explain', here, *said)['stats'] == inside
    again = tmp_path / 'again.json'
    for name in 'deepspeed', 'json':   # written back, it is as open as it was
        about = ['explain', '--model', 'llama3.1_8B', '--job']
        run_command([*about, str(file_of(here)), '--export', name, '-o', str(again)])
        run_command([*about, str(again), *said, '--format', 'json'])
        assert json.loads(capsys.readouterr().out)['stats'] == inside
    assert answered('search', here, *said)['found'] == answered('search', there, *said)['found']
    case = case_of('llama3.1_8B', as_job(file_of(here)).parallel, 'H100-80GB', 512, 'calibrated',
                   'DeepSpeed', as_job(file_of(here)))
    step, = (s for s in steps_of(case) if s.to.get('zero_stage') == there)
    turned = case.estimate(dataclasses.replace(case.parallel, **step.to)).stats
    assert turned['iteration_s'] == pytest.approx(inside['iteration_s'], rel=1e-12)
    for preset in ('calibrated', 'corrected'):   # a plan once kept to what hides at its own stage
        asked = *said, '--assumptions', preset, '--gpus', '64'
        best = answered('search', here, *asked)['found'][0]['iteration_s']
        plans = answered('plan', here, *asked, '--tokens', '1T')['answers']
        assert best in [row['iteration_s'] for row in plans]
    improved = answered('improve', here, '--top', '20')['changes']
    told = [x['iteration_s'] for x in improved if x['to'] == step.to]
    assert told in ([], [pytest.approx(inside['iteration_s'])])


@pytest.mark.parametrize('overlap', [False, True])
@pytest.mark.parametrize('preset', ['calibrated', 'corrected'])
def test_what_a_file_says_of_overlap_holds_at_another_zero_stage(
        overlap, preset, tmp_path, capsys):
    "Off was once taken for what is usual at stage 1, so that it was on at stage 3."
    about = 'llama3.1_8B', 'H100-80GB', 512, preset
    def file_of(stage):
        zero = {'stage': stage, 'overlap_comm': overlap}
        return {'train_batch_size': 512, 'train_micro_batch_size_per_gpu': 1,
                'gradient_accumulation_steps': 8, 'zero_optimization': zero}
    here, path = as_job(file_of(1)), tmp_path / 'here.json'
    layout = dataclasses.replace(here.parallel, zero_stage=3)
    assert layout.dp_overlap is overlap
    software = 'DeepSpeed' if preset == 'calibrated' else None
    told = estimate(about[0], layout, *about[1:], software).stats['iteration_s']
    path.write_text(json.dumps(file_of(1)))
    run_command(['explain', '--job', str(path), '--model', about[0], '--assumptions', preset,
                 '--export', 'deepspeed'])
    written = capsys.readouterr().out, export(here, 'deepspeed'), export(here, 'json')
    for text in path.read_text(), *written:
        path.write_text(text)
        def answered(command, *options):
            words = command, '--job', str(path), '--model', about[0], '--assumptions', preset
            run_command([*words, *options, '--format', 'json'])
            return json.loads(capsys.readouterr().out)
        found = answered('explain', '--zero-stage', '3')
        assert found['stats']['iteration_s'] == told
        rows = answered('search', '--zero-stage', '1,3', '--gpus', '64')['found']
        assert {row['dp_overlap'] for row in rows} == {overlap}
    case = case_of(about[0], here.parallel, *about[1:], software, here)
    step, = (s for s in steps_of(case) if s.to.get('zero_stage') == 3)
    turned = case.estimate(dataclasses.replace(case.parallel, **step.to)).stats
    assert turned['iteration_s'] == pytest.approx(told, rel=1e-12)


def test_a_plan_asks_what_must_fit_as_a_search_does(capsys):
    "Qwen3 32B on 16 H100: what fits by the estimate alone is faster than what surely does."
    def fastest(command, *more):
        words = [command, '--model', 'qwen3_32B', '--gpus', '16', '--global-batch', '64', *more]
        assert run_command([*words, '--format', 'json']) == 0
        answer = json.loads(capsys.readouterr().out)
        return (answer['found'] if command == 'search' else answer['answers'])[0]['iteration_s']
    point, bound = (fastest('search', '--fits-by', by) for by in ('point', 'bound'))
    assert point < bound
    for by, seconds in ('point', point), ('bound', bound):
        assert fastest('plan', '--tokens', '1T', '--fits-by', by) == seconds


def test_what_a_job_says_of_its_gradients_holds_at_another_zero_stage(tmp_path, capsys):
    "Said, it is no consequence of the stage, though it is usual there; it was once left open."
    stats = []
    for name, stage, options in ('here', 1, ['--zero-stage', '3']), ('there', 3, []):
        layout = dict(dp=64, zero_stage=stage, reduce_each=False)
        path = tmp_path / f'{name}.json'
        job = Job(Parallel(**layout), as_model('llama3.1_8B'), 512, 64)
        path.write_text(export(job, 'json'))
        assert run_command(['explain', '--job', str(path), *options, '--format', 'json']) == 0
        stats.append(json.loads(capsys.readouterr().out)['stats'])
    assert stats[0] == stats[1]
