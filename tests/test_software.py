"Training software by name: what it costs and chooses, at every door the same."
import dataclasses
import json
import math
import re
import shlex
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

from transformer_perf import Model, Parallel, Software, estimate, search
from transformer_perf.advice import fits, improve, plan, sensitivity, why_not
from transformer_perf.cli import main
from transformer_perf.choices import GRAPHED, graphed, launched
from transformer_perf.estimates import CHOICES, Assumptions, Group, Product, as_assumptions
from transformer_perf.interop import as_job, export
from transformer_perf.iteration import hides_as_usual
from transformer_perf.kernels import priced_collective, product_time, send_seconds
from transformer_perf.parameters import changed, read_calibration
from transformer_perf.schedules import chunks_in, chunks_of, dealt_with_norm, layout_of
from transformer_perf.validation.runs import run_jobs
from transformer_perf.software import (
    as_software, known_besides, known_software, run_by, software_table)
from transformer_perf.systems import as_system
from transformer_perf.validation import predict, published

CALIBRATED = as_assumptions('calibrated')
LAYOUT = Parallel(tp=4, pp=4, dp=2)
ABOUT = 'llama3.1_8B', LAYOUT, 'H100-80GB', 64
HOST = ('host_layer', 'host_wrapped', 'host_experts', 'host_micro_batch')


def seconds(*how, **more): return estimate(*ABOUT, *how, **more).stats['iteration_s']


def answer(capsys, *texts):
    "What a command says in JSON."
    with pytest.raises(SystemExit, match='0'): main([*map(str, texts), '--format', 'json'])
    return json.loads(capsys.readouterr().out)


# records

@pytest.mark.parametrize('name', known_software())
def test_every_record_has_a_source_and_can_be_run(name):
    s = as_software(name)
    assert s.released and len(s.source) > 40 and set(s.knobs) <= {*CHOICES, 'layout'}
    assert {*(s.chooses or {})} <= {f.name for f in dataclasses.fields(Assumptions)}
    one = estimate(*ABOUT, 'calibrated', name)
    assert one.assumptions.software == s and one.assumptions.measured.stack == name
    for choice in {*s.chosen(4)} & {*CHOICES}:
        if (value := s.chosen(4)[choice]) is None: continue
        assert getattr(one.parallel, choice) == value


@pytest.mark.parametrize('pp, stage', [(1, 3), (4, 2)])
def test_torchtitan_keeps_weights_in_a_pipeline(pp, stage):
    "Unless told, in an estimate, a table and a file alike."
    ask = lambda zero, a='calibrated': estimate(
        'llama3.1_8B', Parallel(tp=2, pp=pp, dp=8, zero_stage=zero), 'H100-80GB', 64, a,
        'torchtitan' if a == 'calibrated' else None)
    usual = ask(None)
    assert usual.parallel.zero_stage == stage and usual.stats == ask(stage).stats
    told = dataclasses.replace(as_assumptions('calibrated', 'torchtitan'), zero_stage=0)
    assert ask(None, told).parallel.zero_stage == 0
    file = {'parallelism.pipeline_parallel_degree': pp, 'parallelism.tensor_parallel_degree': 2,
            'parallelism.data_parallel_shard_degree': 8, 'training.local_batch_size': 8}
    assert as_job(file).parallel.zero_stage == stage
    row = dict(gpu='H100-80GB', gpus_per_node=8, nic_GBps_per_gpu=50, n_gpus=16 * pp, dp=8, tp=2,
               pp=pp, layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=128256,
               gated_mlp=1, seq_len=8192, micro_batch=1, global_batch=64, recompute='none',
               software='torchtitan')
    predicted = predict(pd.DataFrame([row, row | {'zero_stage': stage}])).predicted_iteration_s
    assert predicted[0] == predicted[1]


def test_what_a_software_chooses_in_pipelines_is_a_choice():
    for wrong in ({'zero_stge': 2}, {'zero_stage': 7}):
        record = {'name': 'x', 'chooses': {'zero_stage': 3}, 'in_pipelines': wrong}
        with pytest.raises(ValueError, match='zero_st'): estimate(*ABOUT, 'calibrated', record)


def test_what_is_chosen_of_so_many_stages():
    software = as_software({'name': 'x', 'chooses': {'zero_stage': 3, 'dp_overlap': True},
                            'in_pipelines': {'zero_stage': 1}})
    alone, stages = software.chosen(1), software.chosen(2)
    assert (alone['zero_stage'], stages['zero_stage']) == (3, 1)
    assert alone['dp_overlap'] is stages['dp_overlap'] is True


@pytest.mark.parametrize('stage', range(4))
def test_what_deepspeed_hides_depends_on_the_stage(stage):
    "Unless told, messages of ZeRO-3 hide and no others: in an estimate, a search and a table."
    def ask(**said):
        p = Parallel(dp=64, zero_stage=stage, **said)
        return estimate('llama3.1_8B', p, 'H100-80GB', 512, software='DeepSpeed')
    usual, hidden, shown = ask(), ask(dp_overlap=True), ask(dp_overlap=False)
    assert hidden.stats['dp_comm_s'] < shown.stats['dp_comm_s']
    assert usual.stats == (hidden if stage == 3 else shown).stats
    assert usual.parallel.dp_overlap is (stage == 3)
    alone = {'tp': 1, 'pp': 1, 'micro_batch': 1}
    found = search('llama3.1_8B', 64, 'H100-80GB', 512, software='DeepSpeed', fixed=alone, k=1,
                   zero_stages=stage, recompute='none', fits_by='point')
    for row in found.itertuples():
        assert row.dp_overlap == (stage == 3)
        assert math.isclose(row.iteration_s, usual.stats['iteration_s'])
    row = dict(gpu='H100-80GB', gpus_per_node=8, nic_GBps_per_gpu=50, n_gpus=64, dp=64, tp=1, pp=1,
               layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=128256, gated_mlp=1,
               seq_len=8192, micro_batch=1, global_batch=512, recompute='none', zero_stage=stage,
               software='DeepSpeed')
    predicted = predict(pd.DataFrame([row])).predicted_iteration_s[0]
    assert math.isclose(predicted, usual.stats['iteration_s'])


@pytest.mark.parametrize('given, message', [
    ('Nemmo', "did you mean 'NeMo'"), ({'name': 'x', 'knws': {}}, "field of Software 'knws'"),
    ({'name': 'x', 'knows': {'clok': 1}}, "unknown parameter 'clok'"), ({}, "lacks 'name'"),
    ({'name': 'x', 'knows_on': {'Hoper': {}}}, "architecture 'Hoper'"), (7, 'unknown software 7'),
    ({'name': 'x', 'chooses': {'tp_ovrlap': True}}, "tp_ovrlap"),
    ({'name': 'x', 'takes': {'zero_stage': 1}}, '^zero_stage of takes=1 must be of type list'),
    ({'name': 'x', 'knows': {'wrapped': 3}}, 'wrapped=3'), ('none.json', 'none.json')])
def test_records_that_are_none(given, message):
    with pytest.raises(ValueError, match=message) as error: estimate(*ABOUT, 'calibrated', given)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('preset', ['paper', 'corrected'])
def test_costs_are_measured_or_there_are_none(preset):
    with pytest.raises(ValueError, match='needs measured prices'): seconds(preset, 'NeMo')


def test_fitted_costs_where_there_are_runs_else_what_is_known():
    sets, hopper, ampere = CALIBRATED.measured.sets, as_system('H100-80GB'), as_system('A100')
    of = lambda name, system: run_by(CALIBRATED, name).on(system).measured
    assert of('NeMo', hopper).software == sets['Hopper/NeMo'].software
    assert of('NeMo', hopper).kernels == sets['Hopper/NeMo'].kernels
    known = as_software('NeMo').known_on('Ampere')
    assert known == {'wrapped': True, 'gradient_bytes': 2, 'gradient_held': 2,
                     'accumulate_traffic': 2}
    assert of('NeMo', ampere) == dataclasses.replace(
        changed(sets['Ampere/any'], known), stack='NeMo')
    nobody = dataclasses.replace(as_software('NeMo'), stack='any')
    assert of(nobody, hopper).software == changed(sets['Hopper/any'], known).software
    assert as_software('NeMo').known_on('Blackwell')['attention_share'] == .85


def test_what_a_configuration_says_comes_first():
    loud = dataclasses.replace(LAYOUT, tp_overlap=False)
    quiet, said = (estimate('llama3.1_8B', p, 'H100-80GB', 64, 'calibrated', 'NeMo')
                   for p in (LAYOUT, loud))
    assert quiet.parallel.tp_overlap and not said.parallel.tp_overlap
    assert quiet.stats['tp_comm_s'] < said.stats['tp_comm_s']


def test_fp8_weights_by_precision():
    "NeMo gathers weights in FP8, tensorwise, and in no other precision; Megatron-Bridge in MXFP8."
    def gathered(name, precision):
        p = Parallel(dp=64, zero_stage=3, precision=precision, dp_overlap=False)
        one = estimate('llama3.1_8B', p, 'B200-180GB', 64, 'calibrated',
                       dataclasses.replace(as_software(name), stack='any'))
        return one.stats['dp_comm_s']
    assert gathered('NeMo', 'fp8') < .8 * gathered('NeMo', 'bf16')
    assert math.isclose(gathered('NeMo', 'mxfp8'), gathered('NeMo', 'bf16'), rel_tol=.02)
    assert gathered('Megatron-Bridge', 'mxfp8') < .8 * gathered('Megatron-Bridge', 'bf16')


def test_plain_software_has_the_costs_of_plain_software():
    sets, hopper = CALIBRATED.measured.sets, as_system('H100-80GB')
    plain = sets['Hopper/plain']
    assert plain.kernels.product_share < .95 * sets['Hopper/any'].kernels.product_share
    for name in ('plain', 'BLOOM', 'GPT-NeoX', 'PaddleNLP', 'eager'):
        own = run_by(CALIBRATED, name).on(hopper).measured
        assert own.stack == name and own.kernels == plain.kernels
        assert own.software.host_layer == plain.software.host_layer
    tuned, plain = (estimate(*ABOUT, 'calibrated', name) for name in ('NeMo', 'plain'))
    assert not plain.parallel.tp_overlap and not plain.parallel.dp_overlap
    assert plain.stats['iteration_s'] > 1.1 * tuned.stats['iteration_s']
    assert plain.notes[0].startswith('Evidence: of the GPU only: 195 runs on H100, dense, bf16')
    assert plain.notes[0].endswith('and none of the software plain.')


def test_fitted_on_are_generations_with_runs_of_a_software_itself():
    measured = CALIBRATED.measured
    on = software_table(measured).set_index('software')['fitted on']
    assert on['NeMo'] == 'Hopper, Blackwell' and on['torchtitan'] == 'Ampere, Hopper'
    for name in ('plain', 'tuned', 'torchtitan 0.3', 'GPT-NeoX'): assert on[name] == ''
    for name in on[on != ''].index: assert measured.evidence.count(stack=name) > 0
    assert 'Hopper/plain' in measured.sets   # costs, but of the runs of others


@pytest.mark.parametrize('model', ['llama3.1_8B', 'qwen3_30B_A3B', 'deepseek_v3'])
@pytest.mark.parametrize('system', ['A100-80GB', 'H100-80GB', 'B200-180GB'])
def test_without_a_name_nothing_is_faster_than_both_ends(model, system):
    for layout in (Parallel(dp=8), Parallel(tp=8, pp=4, dp=4)):
        one, *ends = (estimate(model, layout, system, 128, 'calibrated', name).stats['iteration_s']
                      for name in (None, 'tuned', 'plain'))
        assert one >= min(ends) * (1 - 1e-9)


@pytest.mark.parametrize('gpu', ['A100-80GB', 'H100-80GB', 'B200-180GB'])
def test_modules_are_wrapped_but_in_software_of_before(gpu):
    "Transformer Engine's or FSDP's in stacks of today, on every GPU alike; bare in 2022's loops."
    wrapped = lambda a: a.on(as_system(gpu)).costs.wrapped
    assert wrapped(CALIBRATED)
    bare = [name for name in known_software() if not wrapped(run_by(CALIBRATED, name))]
    assert bare == ['Megatron-LM', 'Megatron-DeepSpeed', 'Transformers']


def test_a_published_run_of_plain_software_is_priced_so():
    "What its table does not say is as its software has it: nothing hides."
    row = published().drop(columns='software').iloc[[0]]
    row = row.assign(source='', framework='nanotron', tp=2, pp=1, cp=1, dp=8, n_gpus=16, vp=1,
                     zero_stage=1, global_batch=64, micro_batch=1, recompute='full',
                     tp_overlap=np.nan, dp_overlap=np.nan, sequence_parallel=np.nan)
    (_, job, _), = run_jobs(row)[0]
    assert job.software == as_software('nanotron') and not job.parallel.tp_overlap
    (_, other, _), = run_jobs(row.assign(framework='NeMo'))[0]
    assert other.parallel.tp_overlap and other.parallel.dp_overlap
    (_, told, _), = run_jobs(row.assign(tp_overlap=1.))[0]
    assert told.parallel.tp_overlap   # what the table says comes first


# what code does, by hand

MODEL, PAIR, STREAM = 'llama3.1_8B', as_system('H100-80GB'), 2 * 8192 * 4096 / 1e9   # GB
OPEN = {'sequence_sharded': False, 'tp_overlap': False, 'dp_overlap': False}


def with_facts(layout, batch=4, chooses=OPEN, **knows):
    "An estimate in software of which this much is known, and in software of which nothing is."
    record = lambda knows: {'name': 'mine', 'like': 'any', 'knows': knows, 'chooses': chooses}
    layout = Parallel(micro_batch=1, **layout)
    return [estimate(MODEL, layout, PAIR, batch, 'calibrated', record(own)) for own in (knows, {})]


def collective(one, kind, GB, *group):
    return float(priced_collective(kind, GB, Group(*group), PAIR, one.assumptions.measured))


def test_a_gate_apart_sums_up_its_gradient():
    "One more all-reduce of the stream for each of 32 layers and 4 micro-batches."
    own, other = with_facts({'tp': 8}, gate_apart=True)
    more = own.stats['tp_comm_s'] - other.stats['tp_comm_s']
    assert math.isclose(more, 4 * 32 * collective(own, 'allreduce', STREAM, 8, 8), rel_tol=1e-9)
    took = {estimate('gpt3', Parallel(tp=8, pp=8), PAIR, 8, 'calibrated', {
        'name': 'mine', 'like': 'any', 'knows': {'gate_apart': apart}, 'chooses': OPEN})
        .stats['tp_comm_s'] for apart in (True, False)}   # GPT-3 has no gate
    assert len(took) == 1


def test_whole_logits():
    "Every GPU holds 8192 x 128256 logits, not an eighth; one all-gather instead of three sums."
    own, other = with_facts({'tp': 8}, whole_logits=True)
    held, words = own.assumptions.costs.logit_held, 8192 * 128256
    more = own.stats['activations_GB'] - other.stats['activations_GB']
    assert math.isclose(more, held * words * 7 / 8 / 1e9, rel_tol=1e-9)
    sent = (collective(own, 'allgather', 2 * words / 1e9, 8, 8)
            - 3 * collective(own, 'allreduce', 4 * 8192 / 1e9, 8, 8))
    loss = own.assumptions.costs.loss_traffic * words * 7 / 8 / (
        PAIR.hbm_bandwidth * 1e9 * own.assumptions.measured.kernels.vector_bandwidth)
    took = own.stats['iteration_s'] - other.stats['iteration_s']
    waits = 1 + own.assumptions.costs.straggler * math.sqrt(2 * math.log(8))
    assert math.isclose(took, 4 * (sent + loss) * waits, rel_tol=1e-6)


def test_a_whole_boundary():
    "All rows to each GPU of the next stage; else an eighth, and the rest gathered there."
    own, other = with_facts({'tp': 8, 'pp': 2}, whole_boundary=True)
    send = lambda GB: float(send_seconds(GB, False, PAIR, own.assumptions.measured))
    assert math.isclose(own.stats['pp_comm_s'], 4 * 2 * send(STREAM), rel_tol=1e-9)
    there = send(STREAM / 8) + collective(own, 'allgather', STREAM, 8, 8)
    assert math.isclose(other.stats['pp_comm_s'], 4 * 2 * there, rel_tol=1e-9)


def test_gathers_that_nothing_hides():
    "Of 32 layers' gathers one shows anyhow; here all do."
    hides = OPEN | {'dp_overlap': True}
    own, other = with_facts({'dp': 16}, 64, hides, gathers_shown=True, dp_exposed=0.)
    _, idle = with_facts({'dp': 16}, 64, hides, dp_exposed=0.)
    gather = collective(own, 'allgather', weights_GB(own), 16, 8)
    bare = with_facts({'dp': 16}, 64, hides, dp_exposed=0.)[0].stats['dp_comm_s']
    assert math.isclose(own.stats['dp_comm_s'] - bare, gather * 31 / 32, rel_tol=1e-9)
    assert other.stats == idle.stats


def weights_GB(one): return one.stats['weights_GB']


def test_gradients_summed_up_whole():
    own, other = with_facts({'dp': 16}, 64, reduces_whole=True)
    GB = weights_GB(own) * own.assumptions.costs.gradient_bytes / 2
    whole, parts = (collective(own, kind, GB, 16, 8) for kind in ('allreduce', 'reducescatter'))
    assert math.isclose(own.stats['dp_comm_s'] - other.stats['dp_comm_s'], whole - parts,
                        rel_tol=1e-9)


@pytest.mark.parametrize('dp', [1, 2])
def test_buckets_of_gradients(dp):
    own, other = with_facts({'dp': dp}, bucket_bytes=2.)
    more = own.stats['gradients_GB'] - other.stats['gradients_GB']
    assert math.isclose(more, weights_GB(own) * (dp > 1), rel_tol=1e-9, abs_tol=1e-12)


def test_products_in_4_bits_are_as_fast_as_transformer_engine_measured():
    "A B300, a stream of 4096, an MLP of 16384, 31 x 512 tokens: 3.55 times as fast as in bf16."
    system, h, f, T = as_system('GB300-NVL72'), 4096, 16384, 31 * 512
    parameters = CALIBRATED.on(system).measured
    shapes = [(T, 3 * h, h), (T, h, h), (T, f, h), (T, h, f)]
    shapes += [(m, k, n) for m, n, k in shapes] + [(n, k, m) for m, n, k in shapes]
    took = {name: sum(float(product_time(Product(*shape, precision=name), system, parameters))
                      for shape in shapes) for name in ('bf16', 'nvfp4')}
    assert math.isclose(took['bf16'] / took['nvfp4'], 3.55, rel_tol=.02)


@pytest.mark.parametrize('layers, stages, layout', [
    (4, 2, 'Ettt|tL'), (40, 2, 'E' + 't' * 21 + '|' + 't' * 19 + 'L'),
    (40, 4, '|'.join(['E' + 't' * 10, 't' * 11, 't' * 11, 't' * 8 + 'L'])),
    (80, 8, '|'.join(['E' + 't' * 10, 't' * 11, 't' * 11, *['t' * 10] * 4, 't' * 8 + 'L']))])
def test_ends_dealt_as_layers(layers, stages, layout):
    "Embedding, layers, norm and output are so many units, dealt out evenly; the first get more."
    assert '|'.join(dealt_with_norm(layers, stages)) == layout


# (layers, hidden, MLP's width) of runs of nanotron, and the layouts that their stages had: Hugging
# Face, Ultra-Scale Playbook, plots of its benchmark; build_model of nanotron/models/base.py
@pytest.mark.parametrize('depth, hidden, width, layouts', [
    (16, 2048, 8192, ['Et*11|t*5L', 'Et*6|t*5|t*5|L']),
    (32, 4096, 14336, ['Et*18|t*14L', 'Et*9|t*9|t*8|t*6L', 'Et*5|t*4|t*4|t*5|t*4|t*4|t*4|t*2L']),
    (80, 8192, 28672, ['Et*41|t*39L', 'Et*21|t*20|t*20|t*19L'])])
def test_nanotron_weighs_layers_and_output(depth, hidden, width, layouts):
    "An estimate that names it has the stages of its runs, as a layout says them."
    model = Model(name='of the benchmark', seq_len=4096, embed_dim=hidden, heads=hidden // 64,
                  depth=depth, mlp_dim=width, gated_mlp=True, vocab=131072, tied_embeddings=False)
    for layout in layouts:
        own = Parallel(pp=layout.count('|') + 1)
        said = dataclasses.replace(own, layout=layout)
        one, same = (estimate(model, p, 'H100-80GB', 32, software='nanotron') for p in (own, said))
        for figure in ('iteration_s', 'memory_GB'):
            assert one.stats[figure] == same.stats[figure], layout
        _, written = export(one, 'megatron').split('--pipeline-model-parallel-layout ')
        assert chunks_in(*shlex.split(written)) == chunks_in(layout)


def test_who_deals_ends_as_layers_does_so_at_every_door():
    "As a layout that is written out says; in a search, too."
    asked = 'llama3.1_8B', 'A100-80GB', 512
    def took(layout=None, software='Scaling', **more):
        p = Parallel(tp=2, pp=4, dp=8, micro_batch=1, layout=layout, **more)
        return estimate(asked[0], p, *asked[1:], software=software).stats
    one, written = took(), took('Et*8|t*9|t*9|t*6L')
    assert math.isclose(one['iteration_s'], written['iteration_s'], rel_tol=1e-12)
    assert one['memory_GB'] == written['memory_GB']
    assert one['iteration_s'] != took(layout_of(chunks_of(32, 4)))['iteration_s']
    found = search(asked[0], 64, *asked[1:], software='Scaling', fixed={'pp': 4}, k=3)
    for _, row in found.iterrows():
        again = estimate(asked[0], Parallel.from_row(row), *asked[1:], software='Scaling')
        assert math.isclose(again.stats['iteration_s'], row.iteration_s, rel_tol=1e-9)


def test_releases_of_torchtitan_deal_layers_otherwise():
    "The last one deals embedding and output as layers, as a layout says that is written out."
    asked = 'llama3.1_8B', 'H100-80GB', 256
    def one(software, layout=None):
        return estimate(asked[0], Parallel(tp=2, pp=4, dp=8, layout=layout), *asked[1:],
                        software=software)
    first, last = one('torchtitan'), one('torchtitan 0.3')
    note, = [note for note in first.notes if note.startswith('torchtitan is as of 2024-10')]
    assert note.endswith('take torchtitan 0.3.') and note not in last.notes
    written = one('torchtitan 0.3', 'Et*8|t*9|t*8|t*7L').stats
    assert math.isclose(last.stats['iteration_s'], written['iteration_s'], rel_tol=1e-12)
    assert last.stats['memory_GB'] == written['memory_GB']
    assert last.stats['iteration_s'] < .95 * first.stats['iteration_s']
    with pytest.raises(ValueError, match="deals 'nothing'"):
        as_assumptions('calibrated', {'name': 'mine', 'deals': 'nothing'})


@pytest.mark.parametrize('gpu', ['A100-80GB', 'H100-80GB', 'B200-180GB'])
def test_a_software_costs_what_that_is_like_which_it_is_like(gpu):
    "Where nothing of torchtitan was fitted, one that is like it costs what plain software does."
    own = {'name': 'mine', 'like': 'torchtitan', 'knows': as_software('torchtitan').knows}
    kernels = [as_assumptions('calibrated', software).on(as_system(gpu)).measured.kernels
               for software in ('torchtitan', own)]
    assert kernels[0] == kernels[1]


def test_what_a_release_publishes_is_told_where_a_job_chooses_otherwise():
    "Also by a search; and no more once it is chosen. As scripts/performance of Megatron-Bridge."
    asked = dict(global_batch=512, software='Megatron-Bridge')
    own = Parallel(ep=8, dp=8, precision='mxfp8', dispatcher='alltoall')
    one = estimate('qwen3_30B_A3B', own, 'GB300-NVL72', **asked)
    note, = [note for note in one.notes if 'publishes' in note]
    assert note == (
        'Megatron-Bridge publishes qwen3_30B_A3B on GB300 (releases from 26.08 on) with '
        'cuda_graphs iteration, not none; dispatcher once_sorted, not alltoall; ep_overlap on, '
        'not off: a job that names them is priced so.')
    chosen = dataclasses.replace(own, cuda_graphs='iteration', dispatcher='once_sorted',
                                 ep_overlap=True)
    as_published = estimate('qwen3_30B_A3B', chosen, 'GB300-NVL72', **asked)
    assert not any('publishes' in note for note in as_published.notes)
    assert as_published.stats['iteration_s'] < .5 * one.stats['iteration_s']
    found = search('qwen3_30B_A3B', 8, 'GB300-NVL72', k=1, precision='mxfp8', **asked)
    assert any('cuda_graphs iteration, not none' in note for note in found.notes)
    for elsewhere in ('H100-80GB', 'B200-180GB'):
        other = estimate('llama3.1_8B', Parallel(dp=8), elsewhere, **asked)
        assert not any('publishes' in note for note in other.notes)


def test_the_recipe_of_its_own_release_comes_before_later_ones():
    old, new = ({'when': {'model': '^gpt', 'release': limits}, 'chooses': {'recompute': chosen}}
                for limits, chosen in (({'below': 25.11}, 'full'), ({'from': 25.11}, 'none')))
    for released, recipe in (('25.09', old), ('25.11', new), ('2026', new)):
        one = Software(name='mine', released=released, recipes=(old, new))
        assert one.recipe_of('GPT_3', 'H100', 'Hopper', 'bf16') == recipe
        assert one.recipe_of('llama', 'H100', 'Hopper', 'bf16') is None


@pytest.mark.parametrize('recipe, why', [
    ('full', "recipe='full'"), ({'chooses': {}}, 'when of a recipe'),
    ({'when': {}}, 'chooses of a recipe'), ({'when': {'gpus': ['H100']}, 'chooses': {}}, "'gpus'"),
    ({'when': {'gpu': 'H100'}, 'chooses': {}}, 'gpu of a recipe'),
    ({'when': {'model': '(gpt'}, 'chooses': {}}, 'is no pattern'),
    ({'when': {'release': {'from': 'May'}}, 'chooses': {}}, 'release from'),
    ({'when': {'release': {'to': 25.09}}, 'chooses': {}}, "limit 'to'"),
    ({'when': {}, 'chooses': {'graphs': 'iteration'}}, "choice 'graphs'")])
def test_recipes_that_are_none(recipe, why):
    with pytest.raises(ValueError, match=re.escape(why)) as error:
        as_assumptions('calibrated', {'name': 'mine', 'recipes': [recipe]})
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('name, record', [
    ('nemo-25.09', 'NeMo'), ('nemo', 'NeMo'), ('MEGATRON-BRIDGE', 'Megatron-Bridge'),
    ('Torchtitan 0.3', 'torchtitan 0.3'), ('megatron-lm-23.04', 'Megatron-LM'),
    ('Hugging Face Transformers', 'Transformers'), ('mlcommons', 'MLPerf')])   # as tables say
def test_a_software_is_named_in_any_letters_and_with_its_release(name, record):
    assert as_software(name) is known_software()[record]
    p = Parallel(tp=2, dp=4)
    one, same = (estimate('llama3.1_8B', p, 'H100-80GB', 64, software=own)
                 for own in (name, record))
    assert one.stats == same.stats and one.notes == same.notes


def test_a_release_that_nobody_knows_of_is_no_other():
    with pytest.raises(ValueError, match='what is known of NeMo is as of 25.09'):
        as_software('nemo-24.01')
    with pytest.raises(ValueError, match='unknown software'): as_software('nobody-24.01')


def test_what_a_record_knows_counts_whoever_has_runs_of_it():
    "Also a record of one's own under the name of software that ships and that has runs."
    shipped = known_software()['Megatron-Bridge']
    own = dataclasses.replace(shipped, knows=shipped.knows | {'gradient_bytes': 4.0})
    def seconds(software):
        layout = Parallel(tp=2, pp=2, dp=16)
        one = estimate('llama3.1_8B', layout, 'H100-80GB', 64, software=software)
        return one.stats['iteration_s']
    assert seconds(shipped) == seconds('Megatron-Bridge')
    assert seconds(own) > 1.001 * seconds(shipped)


@pytest.mark.parametrize('name, meant', [
    ('hf', 'hf transformers'), ('COLOSSALAI', 'Colossal-AI'), ('FSDP', 'fms-fsdp')])
def test_what_was_meant_is_asked_whatever_the_letters(name, meant):
    with pytest.raises(ValueError, match=f"unknown software '{name}'; did you mean '{meant}'"):
        as_software(name)


# doors

def test_every_door_prices_the_same(tmp_path, capsys):
    name, wanted = 'Megatron-Bridge', seconds('calibrated', 'Megatron-Bridge')
    assert wanted != seconds('calibrated')
    how = dict(assumptions='calibrated', software=name)
    assert fits(*ABOUT, **how).estimate.stats['iteration_s'] == wanted
    assert improve(*ABOUT, **how).estimate.stats['iteration_s'] == wanted
    assert why_not(*ABOUT, **how).estimate.stats['iteration_s'] == wanted
    assert (sensitivity(*ABOUT, **how).base_s == wanted).all()
    same = {name: x for name, x in vars(LAYOUT).items() if name in ('tp', 'pp', 'dp', 'cp')}
    asked = dict(recompute='none', virtual_stages=1, micro_batch=1, software=name, **same)
    found = search('llama3.1_8B', 32, 'H100-80GB', 64, assumptions='calibrated', **asked)
    assert math.isclose(found.iteration_s.min(), wanted, rel_tol=1e-12)
    rows = plan('llama3.1_8B', 32, 'H100-80GB', global_batch=64, tokens=1e12, **asked).rows
    assert math.isclose(rows.iteration_s.min(), wanted, rel_tol=1e-12)
    layout = ['--tp', 4, '--pp', 4, '--dp', 2, '--global-batch', 64, '--model', 'llama3.1_8B',
              '--system', 'H100-80GB', '--assumptions', 'calibrated']
    told = answer(capsys, 'explain', *layout, '--software', name)
    assert told['stats']['iteration_s'] == wanted
    mine = tmp_path / 'mine.json'
    mine.write_text(json.dumps(vars(as_software(name))))
    told = answer(capsys, 'explain', *layout, '--software', mine)
    assert told['stats']['iteration_s'] == wanted


def test_software_with_runs_of_its_own_alone():
    "A set that `calibrate` wrote for a name is known by that name, with its file only."
    shipped = read_calibration()
    own = dataclasses.replace(shipped.sets['Hopper/Megatron-Bridge'], stack='OurStack')
    ours = dataclasses.replace(shipped, sets={'Hopper/OurStack': own, **shipped.sets})
    a = dataclasses.replace(as_assumptions('calibrated'), measured=ours)
    assert seconds(a, 'OurStack') != seconds(a)
    assert as_assumptions(a, 'OurStack').on(as_system('H100-80GB')).measured.stack == 'OurStack'
    with pytest.raises(ValueError, match="unknown software 'OurStack'"):
        seconds('calibrated', 'OurStack')


def test_runs_name_software_that_ships_nowhere(tmp_path, capsys):
    "Its record is taken for what rows leave open; they were once those of anybody, 21 % too fast."
    pytest.importorskip('scipy')
    mine = Software('a stack of ours', like='torchtitan',
                    chooses={'zero_stage': 3, 'dp_overlap': True},
                    knows={'attention_library': 'FlashAttention-2', 'logit_held': 12.})
    file, table, fitted = (tmp_path / name for name in ('mine.json', 'runs.csv', 'fitted.json'))
    file.write_text(json.dumps(vars(mine)))
    row = dict(software=mine.name, gpu='H100-80GB', n_gpus=64, micro_batch=1, global_batch=256,
               recompute='none', layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8,
               seq_len=8192, vocab=128256)
    def seconds_of(tp):
        layout = Parallel(tp=tp, dp=64 // tp)
        return estimate('llama3.1_8B', layout, 'H100-80GB', 256, software=file).stats['iteration_s']
    took = {tp: seconds_of(tp) for tp in (1, 2)}
    runs = pd.DataFrame([{**row, 'tp': tp, 'iteration_s': 1.1 * s} for tp, s in took.items()])
    runs.to_csv(table, index=False)
    before = known_software()
    with known_besides([as_software(file)]): inside = predict(runs)
    assert known_software() == before
    assert inside.predicted_iteration_s.tolist() == pytest.approx([*took.values()], rel=1e-12)
    assert (predict(runs).predicted_iteration_s < .9 * inside.predicted_iteration_s).all()
    rows = answer(capsys, 'validate', table, '--software', file)['rows']
    told = [one['predicted_iteration_s'] for one in rows]
    assert told == pytest.approx([*took.values()], rel=1e-12)
    answer(capsys, 'calibrate', table, '--software', file, '-o', fitted, '--free', 'host_layer')
    own = read_calibration(fitted).sets['Hopper/a stack of ours']
    known = own.software.logit_held, own.software.attention_library
    assert known == (12., 'FlashAttention-2')


def test_a_record_of_the_same_name_is_no_other():
    "By name, one after the other: the second was once priced as the first."
    for stage in 1, 3:
        mine = Software('our trainer', like='torchtitan', chooses={'zero_stage': stage})
        with known_besides([mine]):
            one = estimate('llama3.1_8B', Parallel(dp=64), 'H100-80GB', 256, software=mine.name)
        assert one.parallel.zero_stage == stage


def test_a_record_of_ones_own_is_known_where_it_was_said():
    "What was asked before is as it was, and so is what another thread asks meanwhile."
    before = known_software()
    with known_besides([Software('ours')]), ThreadPoolExecutor() as threads:
        with known_besides([Software('theirs')]): assert {'ours', 'theirs'} < {*known_software()}
        assert known_software().keys() - before.keys() == {'ours'}
        assert threads.submit(known_software).result() == before


def test_the_command_lists_all(capsys):
    rows = answer(capsys, 'software')['rows']
    assert [row['software'] for row in rows] == [*known_software()]
    assert all(row['source'] and row['knobs'] for row in rows)
    for more in ([], ['--wide']):   # what has no room is named
        with pytest.raises(SystemExit, match='0'): main(['software', *more])
        text = capsys.readouterr().out
        wide = bool(more)
        assert all((', '.join(s.knobs) in text) == wide for s in known_software().values())
        assert all((s.source in text) == wide for s in known_software().values())
        assert ('(knobs, known from: --wide)' in text) != wide
    with pytest.raises(SystemExit, match='2'): main(['explain', '--software', 'Nemmo'])
    assert "did you mean 'NeMo'" in capsys.readouterr().err


def test_jobs_bring_their_software(tmp_path):
    degrees = {'tensor_parallel_degree': 8}
    titan = as_job({'parallelism': degrees, 'training': {'seq_len': 4096}})
    assert titan.software.name == 'torchtitan 0.3'
    assert as_job({'training': {'seq_len': 4096} | degrees}).software.name == 'torchtitan'
    assert as_job('pretrain_gpt.py --world-size 8').software.name == 'Megatron-Core'
    one = estimate(*ABOUT, 'calibrated', Software('mine', knows={'host_layer': .002}))
    again = as_job(json.loads(export(one)))
    assert again.software == one.assumptions.software and again.system == one.system
    repeated = estimate(again.model, again.parallel, again.system, again.global_batch,
                        again.assumptions('calibrated'))
    assert repeated.stats == one.stats


# CUDA graphs

def test_a_graph_of_the_iteration_leaves_the_host_nothing():
    free = changed(CALIBRATED.on(as_system('H100-80GB')).measured, dict.fromkeys(HOST, 0.))
    idle = dataclasses.replace(CALIBRATED, measured=free)
    graph = dataclasses.replace(LAYOUT, cuda_graphs='iteration')
    one = estimate('llama3.1_8B', graph, 'H100-80GB', 64, 'calibrated')
    assert one.stats['iteration_s'] == seconds(idle) < seconds('calibrated')
    told = one.explain('other_s', 9).as_dict()
    assert 'host_micro_batch' not in json.dumps(told)


def test_graphs_of_parts_take_their_share():
    "Half of a layer's launches are its attention's, half its MLP's; experts have their own."
    layer, experts, all_of_it = zip(*(graphed(name) for name in (
        'none', 'attn', 'attn+mlp', 'moe_router', 'moe_router+moe_preprocess', 'moe', 'iteration')))
    assert layer == (0, .5, 1, 0, 0, 0, 1) and experts == (0, 0, 0, .2, .4, 1, 1)
    assert [*all_of_it] == [False] * 6 + [True]
    assert launched('attn', 0) == .5 and launched('attn', 2) == 1 and launched('iteration', 2) == 0
    less = [estimate('mixtral_8x7B', dataclasses.replace(LAYOUT, ep=2, cuda_graphs=name),
                     'H100-80GB', 64, 'calibrated').stats['other_s'] for name in GRAPHED]
    assert len(set(less)) == 5 and min(less) == less[-1]   # two pairs are alike


def test_a_search_may_try_graphs():
    asked = dict(assumptions='calibrated', tp=4, pp=4, cp=1, recompute='none', virtual_stages=1,
                 micro_batch=1)
    found = search('llama3.1_8B', 32, 'H100-80GB', 64, **asked, cuda_graphs=['none', 'iteration'])
    best = found.groupby('cuda_graphs').iteration_s.min()
    graph = dataclasses.replace(LAYOUT, cuda_graphs='iteration')
    assert math.isclose(best['none'], seconds('calibrated'), rel_tol=1e-12)
    assert math.isclose(best['iteration'], estimate(
        'llama3.1_8B', graph, *ABOUT[2:], 'calibrated').stats['iteration_s'], rel_tol=1e-12)
    assert 'cuda_graphs' not in search('llama3.1_8B', 32, 'H100-80GB', 64, **asked)


@pytest.mark.parametrize('graphs, message', [
    ('atn', "did you mean 'attn'"), ('attn+none', 'none stands alone'), ('', 'cuda_graphs'),
    ('attn+iteration', 'iteration stands alone'), (3, 'cuda_graphs=3')])
def test_graphs_that_are_none(graphs, message):
    with pytest.raises(ValueError, match=message):
        estimate('llama3.1_8B', Parallel(cuda_graphs=graphs), 'H100-80GB', 64)


def test_a_graph_said_twice_is_one(): assert graphed('attn+attn') == graphed('attn')


def test_sets_that_ship_have_records():
    stacks = {k.stack for k in read_calibration().sets.values()} - {'any', 'nccl-tests'}
    assert stacks <= {*known_software()}


# GPUs that nobody measured

@pytest.mark.parametrize('system, generation', [
    ('MI300X', 'Hopper'), ('MI355X', 'Blackwell'), ('TPU-v5p', 'Ampere'), ('Gaudi3', 'Blackwell')])
def test_kernels_that_nobody_measured(system, generation):
    "Their data sheet is used as well as that of the generation of the nearest rate; it is said."
    p = Parallel(dp=8, recompute='full')
    sheet = dataclasses.replace(as_system(system), matrix_eff=None)   # as if no product was timed
    one = estimate('llama3.1_8B', p, sheet, 64, 'calibrated')
    assert one.assumptions.measured.architecture == generation
    assert f'no kernel of {sheet.architecture} was measured' in one.notes[0]
    twin = dataclasses.replace(sheet, architecture=generation, name='twin')
    own = estimate('llama3.1_8B', p, twin, 64, 'calibrated')
    assert own.stats['iteration_s'] == one.stats['iteration_s']
    width = {x.system.name: x.stats['iteration_high_s'] / x.stats['iteration_low_s']
             for x in (one, estimate('llama3.1_8B', p, 'H100-80GB', 64, 'calibrated'))}
    assert width[system] > width['H100-80GB']
    found = search('llama3.1_8B', 8, system, 64, assumptions='calibrated', k=1)
    assert f'no kernel of {sheet.architecture}' in found.evidence[0]


@pytest.mark.parametrize('pp', [1, 2, 4])
def test_what_is_known_without_stages_only(pp):
    "A stage of ZeRO, and how a number of layers is computed again; what is not said is no matter."
    known = {'zero_stage': [0, 1], 'recompute': ['none', 'full:N'], 'dispatcher': ['once']}
    software = as_software({'name': 'x', 'takes_in_pipelines': known})
    def unknown(**said): return software.unknown_in_pipelines(
        dict(pp=pp, zero_stage=1, recompute='full:3', dispatcher=None) | said)
    assert unknown() == []
    for said in ({'zero_stage': 3, 'recompute': 'mlp'}, {'dispatcher': 'alltoall'}):
        assert unknown(**said) == ([*said] if pp > 1 else [])
    assert as_software({'name': 'x'}).unknown_in_pipelines(dict(pp=pp, zero_stage=3)) == []


@pytest.mark.parametrize('stage', range(4))
@pytest.mark.parametrize('overlap', [False, True])
def test_what_hides_as_usual(stage, overlap):
    "Messages behind compute under ZeRO-3 alone, where a software leaves it to the stage."
    p = Parallel(dp=8, zero_stage=stage, dp_overlap=overlap)
    for said, left in (({'dp_overlap': None}, True), ({'dp_overlap': overlap}, False), ({}, False)):
        software = as_software({'name': 'x', 'chooses': said})
        assert hides_as_usual(p, software) == (left and overlap == (stage == 3))


@pytest.mark.parametrize('system', ['MI300X', 'MI325X', 'MI355X', 'Gaudi3'])
def test_the_best_product_scales_what_nobody_measured(system):
    "What a GPU's best product does not reach, training does not reach either."
    sheet, p = as_system(system), Parallel(dp=8, recompute='full')
    one = estimate('llama3.1_8B', p, sheet, 64, 'calibrated')
    generation = one.assumptions.measured.generation
    assert one.stats['mfu'] < .9 * sheet.matrix_eff
    whole = dataclasses.replace(sheet, matrix_eff=generation.sheet.matrix_eff, power=None)
    plain = dataclasses.replace(whole, matrix_eff=None)
    same, other = (estimate('llama3.1_8B', p, s, 64, 'calibrated') for s in (whole, plain))
    assert same.stats['iteration_s'] == other.stats['iteration_s']
    flop = same.stats['compute_s'] - one.stats['compute_s']   # only products and attention differ
    assert (flop > 0) == (sheet.matrix_eff > generation.sheet.matrix_eff)
    assert 'its memory and links are used as well' in one.notes[0]


def test_flash_attention_that_is_asked_for_stands():
    "Software without it unless asked is told apart, and asked for once it stays."
    unasked = estimate(*ABOUT, software='GPT-NeoX')
    fused = dataclasses.replace(as_assumptions('calibrated', 'GPT-NeoX'), flash_attention=True)
    asked = estimate(*ABOUT, fused)
    assert asked.stats['iteration_s'] < unasked.stats['iteration_s']
    assert asked.stats == estimate(*ABOUT, fused, 'GPT-NeoX').stats   # the same software again
    told = search('llama3.1_8B', 8, 'H100-80GB', 64, k=1, software='GPT-NeoX').notes
    for notes, shown in ((unasked.notes, True), (told, True), (asked.notes, False)):
        assert any('without FlashAttention' in note for note in notes) == shown
    assert not as_assumptions(fused, 'BLOOM').flash_attention   # another chooses for itself
    assert not any('FlashAttention' in note for note in estimate(*ABOUT, software='NeMo').notes)


def test_the_first_flash_attention_is_half_as_fast():
    "Megatron-LM of 2023 has it where it is asked for."
    a = as_assumptions('calibrated', 'Megatron-LM')
    def core(assumptions):  # s
        fused = dataclasses.replace(assumptions, flash_attention=True)
        one = estimate(*ABOUT[:2], 'A100-80GB', 64, fused)
        return one.layers.set_index('layer').t['fusedla']
    assert as_software('Megatron-LM').known_on('Ampere')['attention_share'] == .5
    assert 1.8 < core(a) / core(CALIBRATED) < 2.2


@pytest.mark.parametrize('theirs, ours', [('deepep', 'once'), ('hybridep', 'once_sorted')])
def test_a_library_of_dispatchers_is_known_by_what_it_does(theirs, ours):
    with pytest.raises(ValueError, match=f"'{theirs}'; here it is '{ours}'"):
        Parallel(dp=8, ep=8, dispatcher=theirs)
    assert Parallel(dp=8, ep=8, dispatcher=ours).dispatcher == ours
