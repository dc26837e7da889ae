"Rows of tables and logs as runs: what they say counts, and what they do not is said."
import dataclasses
import functools
import json
import re

import numpy as np
import pandas as pd
import pytest

from thorough import first_of
from transformer_perf import Parallel, estimate
from transformer_perf.cli import main
from transformer_perf.estimates import as_assumptions
from transformer_perf.interop import Job, as_job, export
from transformer_perf.models import HUB, Model, as_model, with_length
from transformer_perf.parameters import read_calibration, value_of
from transformer_perf.schedules import SCHEDULES
from transformer_perf.validation.runs import (
    batches_of, candidates_priced, cells_of_model, clean, run_jobs, slips_in)
from transformer_perf.systems import as_system
from transformer_perf.validation.predictions import PREDICTED as PRICED
from transformer_perf.validation import calibrate, picked, predict, published, scoreboard
from transformer_perf.validation.calibration import run_of_log, told_by

from measured import RUNS, row_of


def test_empty_cells_are_said():
    row = row_of('megatron-2022-22B-full')
    assert 'micro_batch' not in predict(row).assumed.item()
    empty = row.assign(recompute=None, tp_overlap=np.nan, micro_batch=np.nan, dp=np.nan)
    said = predict(empty).assumed.item()
    for word in ('recompute=', 'tp_overlap=0', 'micro_batch=', 'dp=1'): assert word in said


MODERN = {'model': 'qwen3-30b-a3b', 'layers': 48, 'hidden': 2048, 'ffn': np.nan, 'heads': 32,
          'kv_heads': 4., 'head_dim': 128, 'vocab': 151936, 'gated_mlp': 1, 'experts': 128,
          'experts_per_token': 8, 'moe_ffn': 768, 'ep': 8, 'etp': 1, 'precision': 'fp8',
          'tp': 1, 'pp': 1, 'cp': 1, 'dp': 16, 'n_gpus': 16, 'vp': np.nan, 'micro_batch': 1,
          'global_batch': 512, 'seq_len': 4096, 'gpu': 'H100', 'framework': 'Megatron-Bridge'}


def test_a_row_of_today():
    "Experts, precisions, sharding: columns of today's tables."
    row = pd.DataFrame([MODERN]).reindex(columns=[*RUNS.columns, *MODERN.keys() - set(RUNS)])
    row = row.drop(columns='source')
    found = predict(pd.concat([row, row.assign(precision='bf16'), row.assign(moe_ffn=np.nan),
                               row.assign(gpu='MI300X')], ignore_index=True))
    assert found.reason[0] == '' and found.trust[0].startswith('measured')
    assert found.predicted_iteration_s[0] < found.predicted_iteration_s[1]
    assert 'belong together' in found.reason[2] and np.isnan(found.predicted_iteration_s[2])
    assert found.reason[3] == '' and found.trust[3].startswith('extrapolated: no kernel of CDNA 3')


# clean tables

SAID = dict(MODERN, framework='Megatron-Bridge', version='NeMo container 25.09', gpu='GB200',
            precision_detail='MXFP8 blocks of 32', recompute='selective',
            recompute_detail='modules=layernorm+moe_act', id='x-ep8', ep=np.nan,
            other_flags='hybridep; moe_a2a_overlap=True; token drop; tied embeddings')
TEXTS = ['framework', 'version', 'precision_detail', 'recompute_detail', 'id', 'other_flags',
         'model']


def said_table(*changes):
    rows = [SAID | change for change in changes]
    return pd.DataFrame(rows).reindex(columns=list(dict.fromkeys((*RUNS.columns, *SAID))))


def test_texts_become_columns_once():
    "A clean table needs no text any more, stays as it is, and predicts the same."
    table = said_table({}, {'recompute': 'full', 'recompute_detail': 'num_layers=5'}, {
        'framework': 'NeMo', 'version': '25.05', 'model': 'deepseek-v3', 'recompute': np.nan,
        'recompute_detail': np.nan, 'precision': 'fp8', 'precision_detail': 'blocks',
        'other_flags': 'pp_layout=E' + 't' * 48 + 'L'})
    rows = clean(table)
    assert list(rows.software) == ['Megatron-Bridge', 'Megatron-Bridge', 'NeMo']
    assert list(rows.recompute) == ['layernorm+moe_act', 'full:5', 'core_attn']
    assert list(rows.precision) == ['mxfp8', 'mxfp8', 'fp8-block']
    assert list(rows.cuda_graphs.fillna('')) == ['iteration', 'iteration', '']
    assert list(rows.dispatcher.fillna('')) == ['once_sorted', 'once_sorted', '']
    assert list(rows.ep) == [8] * 3
    assert list(rows.layout.fillna('')) == ['', '', 'E' + 't' * 48 + 'L']
    for name in ('ep_overlap', 'capacity_factor', 'tied_embeddings'):
        assert list(rows[name].fillna(0)) == [1, 1, 0], name
    pd.testing.assert_frame_equal(clean(rows), rows)
    wanted = [f'predicted_{name}' for name in PRICED]
    found = [predict(each)[wanted] for each in (table, rows, rows.drop(columns=TEXTS))]
    assert found[0].notna().all(axis=None)
    for other in found[1:]: pd.testing.assert_frame_equal(other, found[0], check_exact=True)


@pytest.mark.parametrize('flags, column, value', [
    ("cuda_graph_impl=transformer_engine; cuda_graph_scope=['attn', 'moe_router']", 'cuda_graphs',
     'attn+moe_router'),
    ('cuda_graph_impl=transformer_engine; cuda_graph_scope=mlp', 'cuda_graphs', 'mlp'),
    ('cuda_graph_impl=none; cuda_graph_scope=full_iteration', 'cuda_graphs', 'none'),
    ('cuda_graph of a layer', 'cuda_graphs', 'attn+mlp'),
    ('HybridEP 32 SMs, 64-token chunks', 'dispatcher', 'once_sorted'),
    ('TE + DeepEP', 'dispatcher', 'once'),
    ('alltoall dispatcher', 'dispatcher', 'alltoall'), ('EP A2A overlap on', 'ep_overlap', 1),
    ('EP overlap on', 'ep_overlap', 1), ('EP overlap off', 'ep_overlap', None)])
def test_flags_are_read_however_they_are_written(flags, column, value):
    found = clean(said_table({'other_flags': flags, 'version': '26.04'}))[column].item()
    assert found == value if value is not None else pd.isna(found)


@pytest.mark.parametrize('about, software', [
    ({'framework': 'AA-Scaling', 'other_flags': 'kernel flash_attention2 + RMS kernel'}, 'Scaling'),
    ({'framework': 'AA-Scaling', 'other_flags': 'kernel flash_attention2'}, 'eager Scaling'),
    ({'framework': 'AA-Scaling', 'other_flags': 'kernel torch'}, 'eager Scaling'),
    ({'framework': 'AA-Scaling', 'other_flags': 'kernel fused'},
     'partly eager Scaling'),
    ({'framework': 'a stack that nobody knows'}, 'plain'), ({'framework': np.nan}, np.nan),
    ({'framework': np.nan, 'source': 'a report that names no software'}, np.nan),
    ({'framework': 'NeMo'}, 'NeMo'), ({'framework': 'NeMo AutoModel'}, 'NeMo AutoModel'),
    ({'framework': 'NeMo', 'source': 'mlcommons/training_results_v5.1'}, 'MLPerf'),
    ({'framework': 'Megatron-LM', 'source': 'FlagPerf, training'}, 'plain')])
def test_a_run_is_of_the_software_that_its_table_names(about, software):
    found = clean(said_table({'other_flags': np.nan, **about})).software.item()
    assert found == software or pd.isna(found) and pd.isna(software)


def test_the_network_of_a_node_is_no_network_of_a_gpu():
    "No A100 ever had a NIC of 400 Gb/s of its own."
    row = said_table({
        'framework': 'fms-fsdp', 'source': 'foundation-model-stack/fms-fsdp README.md',
        'other_flags': 'interconnect printed 400Gbps', 'nic_GBps_per_gpu': np.nan})
    assert clean(row).nic_GBps_per_gpu.item() == 400 / 8 / 8


def test_blocks_computed_again_of_which_a_table_says_no_number():
    """What `selective` is in fms-fsdp (policies/ac_handler.py:11): a share of whole blocks. It ran,
    so it fitted: with no more than it needs, in quarters."""
    sizes = dict(layers=80, hidden=8192, ffn=28672, heads=64, kv_heads=8, vocab=32000,
                 seq_len=4096, gated_mlp=1, tp=1, pp=1, cp=1, dp=96, n_gpus=96, micro_batch=2,
                 global_batch=192, zero_stage=3, gpu='H100-80GB', gpus_per_node=8,
                 framework='fms-fsdp', recompute='selective', id='fms')
    def found(**changes): return predict(pd.DataFrame([sizes | changes])).iloc[0]
    told = ['none', 'full:20', 'full:40', 'full:60', 'full']
    seconds = [found(recompute=name).predicted_iteration_s for name in told]
    GB = [found(recompute=name).predicted_memory_GB for name in told]
    assert GB[2] > 1.2 * 84.9 > 84.9 > GB[3]
    assert found().predicted_iteration_s == seconds[3] and found().predicted_memory_GB == GB[3]
    small = dict(layers=16, global_batch=192)   # all of it fits
    plain, again = (found(**small, recompute=name) for name in ('none', 'selective'))
    assert plain.predicted_iteration_s == again.predicted_iteration_s


def test_the_router_of_deepseek_v3_goes_to_few_nodes():
    "As its config.json says; another model's to any, unless a table says it."
    table, columns = said_table({'model': 'kimi-k2'}), ['router_groups', 'router_groups_per_token']
    deepseek = clean(table.assign(model='deepseek-v3'))
    assert [*deepseek[columns].iloc[0]] == [8, 4] and clean(table)[columns].isna().all(axis=None)
    said = clean(table.assign(router_groups=4, router_groups_per_token=2))
    assert [*said[columns].iloc[0]] == [4, 2]
    row = deepseek.assign(experts=256, experts_per_token=8, ep=64, n_gpus=64, dp=64, tp=1, pp=1,
                          dispatcher='once', gpu='H100', gpus_per_node=8, precision='bf16')
    free = row.assign(model='other', **dict.fromkeys(columns, np.nan))
    limited, any_node = (predict(x).predicted_tp_comm_s.item() for x in (row, free))
    assert limited < .9 * any_node


def test_what_a_table_says_counts_before_its_recipe():
    silent, loud = said_table({'recompute': np.nan}, {'recompute': 'none'}).drop(
        columns='recompute_detail').pipe(lambda t: (t.iloc[[0]], t.iloc[[1]]))
    silent, loud = (clean(t.assign(gpu='H100', model='deepseek-v3')) for t in (silent, loud))
    assert silent.recompute.item() == 'mla_up_proj+mlp' and loud.recompute.item() == 'none'
    late = clean(said_table({'version': '26.02', 'model': 'qwen3-30b'}))
    assert late.cuda_graphs.isna().all() and clean(late.assign(release=25.09)).cuda_graphs.all()


@pytest.mark.parametrize('name, known', [
    ('NVIDIA A100-SXM4-80GB', 'A100-80GB'), ('A100', 'A100-80GB'),   # a study's has that name
    ('NVIDIA H100 80GB HBM3', 'H100')])
def test_a_gpu_may_be_called_as_people_and_drivers_do(name, known):
    "It is taken for the one that records of recipes know; that is said."
    row = row_of('megatron-2022-22B-full')
    found, same = predict(row.assign(gpu=name)), predict(row.assign(gpu=known))
    assert found.gpu.item() == name and clean(row.assign(gpu=name)).gpu.item() == known
    for column in ('predicted_iteration_s', 'iteration_high_s', 'trust'):
        assert found[column].item() == same[column].item()
    assert found.assumed.item() == f'{same.assumed.item()}, gpu={known}'
    assert 'gpu=' not in same.assumed.item()
    one = predict(row.assign(gpu=name), system='A100')
    assert 'gpu=' not in one.assumed.item()


SENSELESS = [
    ({'gpu': 'V100'}, 'gpu must be one of'),
    ({'n_gpus': 7}, 'n_gpus must be tp'),
    ({'tp': 7, 'n_gpus': 7}, 'tp must divide heads'),
    ({'recompute': 'some'}, 'recompute must be'),
    ({'layers': np.nan}, 'layers is missing'),
    ({'hidden': 'wide'}, 'hidden is missing or no number'),
    ({'micro_batch': 3.}, 'micro_batch must divide'),
    ({'zero_stage': 4}, 'zero_stage must be 0, 1, 2 or 3'),
    ({'pp': 50, 'n_gpus': 400}, 'pp must be at most layers'),
    ({'vp': 500.}, 'vp times pp must be at most layers'),
    ({'nic_GBps_per_gpu': 0.}, 'nic_GBps_per_gpu must be from 1e-6'),
    ({'heads': 2.5}, 'heads must be a whole number'),
    ({'layout': 'Etx'}, 'layout must be chunks'), ({'cuda_graphs': 'atn'}, 'cuda_graphs must be'),
    ({'layout': 'E|' + 't' * 48 + '|L', 'pp': 2, 'n_gpus': 16}, 'as many chunks in each stage'),
    ({'layout': 'Et*4|t*4L', 'pp': 2, 'n_gpus': 16}, 'and all layers'),
    ({'layout': 'Et*24|t*24L', 'pp': 2, 'n_gpus': 16, 'mtp_layers': 1}, 'and all layers'),
    ({'dispatcher': 'post'}, 'dispatcher must be one of'), ({'qk_norm': 2}, 'must be 0 or 1'),
    ({'kv_lora_rank': 512, 'qk_rope': 64, 'v_head': 128}, 'kv_lora_rank needs qk_nope'),
    ({'q_lora_rank': 512}, 'q_lora_rank needs kv_lora_rank'),
    ({'mtp_layers': 1, 'vocab': np.nan}, 'mtp_layers needs vocab'),
    ({'shared_expert_ffn': 512}, 'shared_expert_ffn needs experts'),
    ({'capacity_factor': -1.}, 'capacity_factor must be from')]


def senseless(change): return row_of('megatron-2022-22B-full').astype(object).assign(**change)


@functools.cache
def among_others():   # what is predicted of them, and of a row with sense: the last
    rows = [senseless(change) for change, _ in SENSELESS]
    return predict(pd.concat([*rows, row_of('megatron-2022-175B-full')], ignore_index=True))


@pytest.mark.parametrize('change, reason', SENSELESS)
def test_a_row_that_makes_no_sense_has_a_reason(change, reason):
    found = among_others().iloc[SENSELESS.index((change, reason))]
    assert reason in found.reason and np.isnan(found.predicted_iteration_s)
    right = among_others().iloc[-1]
    assert right.reason == '' and right.predicted_iteration_s > 0


@pytest.mark.parametrize('change', [   # the last is refused once it is a job
    SENSELESS[0][0], SENSELESS[-1][0], {'hidden': 6145, 'head_dim': 96}])
def test_nothing_is_fitted_to_a_row_that_makes_no_sense(change):
    two = pd.concat([senseless(change), row_of('megatron-2022-175B-full')], ignore_index=True)
    with pytest.raises(ValueError, match='row megatron-2022-22B-full'): calibrate(two)


def test_a_table_without_rows_is_told(tmp_path, capsys):
    (tmp_path / 'runs.csv').write_text(','.join(RUNS) + '\n')
    for asked in (['validate'], ['calibrate', '--system', 'H200', '-o', str(tmp_path / 'x.json')]):
        with pytest.raises(SystemExit, match='2'): main([*asked, str(tmp_path / 'runs.csv')])
        assert capsys.readouterr().err.endswith(': has no rows\n')


def test_labels_of_rows_may_be_the_same():
    "As those of tables that were put one below the other."
    small, large = row_of('megatron-2022-22B-full'), row_of('megatron-2022-175B-full')
    rows = pd.concat([small, small.assign(qk_norm=1), large.assign(qk_norm=1)], ignore_index=True)
    found, twice = predict(rows), predict(rows.set_axis([0, 0, 0]))
    assert twice.predicted_iteration_s.tolist() == found.predicted_iteration_s.tolist()


def test_a_text_of_no_length_is_an_empty_cell():
    "As a table has them that was read without NaN."
    rows = row_of('megatron-2022-22B-full').astype(object)
    blank = rows.where(rows.notna(), '').assign(vp='', experts='', precision='', memory_GB='')
    expected = predict(rows.assign(vp=np.nan, precision=np.nan))
    found = predict(blank)
    assert found.reason.item() == '' and found.assumed.item() == expected.assumed.item()
    assert found.predicted_iteration_s.item() == expected.predicted_iteration_s.item()
    assert len(scoreboard(blank, ('paper',))) == 1


def test_a_missing_column_is_named():
    with pytest.raises(ValueError, match="lacks the column 'seq_len'"):
        predict(RUNS.drop(columns='seq_len'))


@pytest.mark.parametrize('software, about', first_of(2, [
    ('torchtitan', dict(pp=2, dp=16, ep=8, recompute='full')),   # its micro-batch stays
    ('GPT-NeoX', dict(tp=4, pp=4, dp=2)),                        # without fused attention
    ('Megatron-LM', dict(tp=4, pp=2, dp=4, reduce_each=False)),  # as its stage has it
    ('torchtitan', dict(dp=32, zero_stage=3, dp_replicate=4, reduce_each=True)),
    ('Megatron-LM', dict(tp=2, dp=16, zero_stage=1, dp_replicate=4))]), ids=str)
def test_a_log_is_predicted_as_its_job(software, about, tmp_path):
    "Whatever its software chooses."
    model = 'qwen3_30B_A3B' if 'ep' in about else 'llama3.1_8B'
    one = estimate(model, Parallel(**about), 'H100-80GB', 64, software=software)
    (tmp_path / 'j.json').write_text(export(one, 'json'))
    line = 'iteration {}/ 9 | elapsed time per iteration (ms): 9000.0 | global batch size: 64 |'
    (tmp_path / 'train.log').write_text('\n'.join(map(line.format, range(3))))
    row = predict(run_of_log(tmp_path / 'train.log', tmp_path / 'j.json'), system='H100-80GB')
    found = row.predicted_iteration_s[0], row.predicted_memory_GB[0]
    assert found == pytest.approx((one.stats['iteration_s'], one.stats['memory_GB']), rel=1e-9)


def test_the_first_step_of_all_ranks_warms_up(tmp_path):
    "Whichever of them printed it; only steps of training count."
    line = ('[rank{}]: step: {}  loss: 9.1  memory: 40.00GiB(50.4%)  tps: {}  tflops: 1.0  '
            'mfu: 1.00%')
    lines = [line.format(rank, *figures) for figures in ((1, 100), (10, 2000), (20, 2500))
             for rank in range(8)]
    lines.append('validate step: 10  loss: 9.0  memory: 40.00GiB(50.4%)  tps: 9,000')
    (tmp_path / 'train.log').write_text('\n'.join(lines))
    job = Job(Parallel(dp=8), as_model('llama3.1_8B'), 64, 8, 8192)
    run = run_of_log(tmp_path / 'train.log', job)
    assert run.iteration_s[0] == pytest.approx(8 * 8192 * (1 / 2000 + 1 / 2500) / 2)


@pytest.mark.parametrize('said', [
    dict(schedule='zb-h1'), dict(schedule='zb-v'), dict(offload='optimizer'),
    dict(optimizer='muon'), dict(cp=2, context='ulysses'), dict(adapters='lora:16'),
    dict(reduce_each=True), dict(zero_stage=3, reduce_each=False),
    dict(zero_stage=3, reshard_after_forward=False)], ids=str)
def test_a_row_and_a_log_have_the_choices_of_their_job(said, tmp_path):
    "In columns of their names: they were passed over, and logs of such jobs refused."
    p = Parallel(tp=2, pp=2, dp=4, micro_batch=1, recompute='none', **said)
    if not SCHEDULES[p.schedule or '1f1b'].chunks: p = dataclasses.replace(p, virtual_stages=1)
    model = as_model('llama3.1_8B')
    one = estimate(model, p, 'H100-80GB', 64, software='NeMo').stats
    row = dict(software='NeMo', tp=2, pp=2, dp=4, layers=32, hidden=4096, ffn=14336, heads=32,
               kv_heads=8, vocab=128256, seq_len=8192, micro_batch=1, global_batch=64,
               recompute='none', activation='silu', tied_embeddings=0)
    if p.schedule != 'zb-v': row['vp'] = 1   # which has parts of its own
    given = {c: int(x) if isinstance(x, bool) else x for c, x in said.items()}
    line = 'iteration {}/ 9 | elapsed time per iteration (ms): 9000.0 | global batch size: 64 |'
    (tmp_path / 'train.log').write_text('\n'.join(map(line.format, range(3))))
    job = Job(p, model, 64, p.n_gpus, software='NeMo')
    for runs in (pd.DataFrame([row | given]), run_of_log(tmp_path / 'train.log', job)):
        found = predict(runs, system='H100-80GB').iloc[0]
        assert found.predicted_iteration_s == pytest.approx(one['iteration_s'], rel=1e-12)
        assert found.predicted_memory_GB == pytest.approx(one['memory_GB'], rel=1e-12)


@pytest.mark.parametrize('column, cell, must_be', [
    ('optimizer', 'adamm', 'one of adam'), ('offload', 'all', 'what the host holds'),
    ('reduce_each', 7, '0 or 1'), ('adapters', 'lora', 'what trains'), ('schedule', '1F', '1f1b')])
def test_choices_that_a_row_cannot_have_are_told(column, cell, must_be):
    row = published().head(1).assign(**{column: cell})
    assert must_be in predict(row).reason.iloc[0]


@pytest.mark.parametrize('said', [
    dict(schedule='zb-v', vp=4), dict(schedule='dualpipe', pp=3), dict(schedule='zb-h2', dp=16)])
def test_a_schedule_that_stages_cannot_follow_is_told(said):
    "Parts of stages that it does not have once ended in an IndexError."
    row = dict(gpu='H100-80GB', software='NeMo', tp=1, pp=4, dp=2, layers=24, hidden=1024, ffn=4096,
               heads=16, vocab=32000, seq_len=2048, micro_batch=1, global_batch=32, vp=1)
    assert predict(pd.DataFrame([row])).reason[0] == ''
    told = predict(pd.DataFrame([row | said])).reason[0]
    assert told == 'schedule cannot be followed with these pp, vp and micro-batches'
    for cell in ({'pp': 0}, {'dp': 0}, {'micro_batch': 0}, {'global_batch': 1e300}):
        assert predict(pd.DataFrame([row | said | cell])).reason[0]   # not an error of arithmetic


NAMED_ROW = dict(gpu='H100', n_gpus=512, tp=8, seq_len=4096, global_batch=512)


@pytest.mark.parametrize('name', first_of(4, [
    'llama3.1_8B', 'deepseek_v3', 'gpt_oss_120B', 'gpt3', 'qwen3_30B_A3B', 'mixtral_8x7B']))
def test_a_model_may_be_named_instead_of_its_sizes(name):
    "To the last digit; its own samples may be longer."
    sizes = {c: x for c, x in cells_of_model(as_model(name)).items() if x is not None}
    by_name = predict(pd.DataFrame([NAMED_ROW | {'model': name}]))
    by_size = predict(pd.DataFrame([NAMED_ROW | sizes]))
    same = [c for c in by_size if c.startswith(('predicted_', 'iteration_')) or c == 'trust']
    assert len(same) > 12 and by_name[same].equals(by_size[same])
    assert not {'kv_heads', 'vocab', 'gated_mlp'} & set(re.findall(r'(\w+)=', by_name.assumed[0]))


def test_a_model_that_columns_cannot_say_may_be_named(tmp_path):
    "Layers with a state, from a file; the run's samples, not the longest that the file allows."
    (tmp_path / 'config.json').write_text(json.dumps(HUB['jamba_52B'][0]))
    for name in (str(tmp_path / 'config.json'), str(tmp_path), 'vit_era5'):
        ((_, job, _),), reasons = run_jobs(pd.DataFrame([NAMED_ROW | {'model': name}]))
        assert not reasons.any() and job.model == with_length(as_model(name), 4096)


@pytest.mark.parametrize('said, reason', [
    ({'model': 'llama3-8b'}, "unknown model 'llama3-8b'; did you mean 'llama3.1_8B'?"),
    ({'model': 'llama3.1_8B', 'layers': 80}, "layers must be 32, as in model 'llama3.1_8B', or"),
    ({'model': 'gpt3', 'gated_mlp': 1}, 'gated_mlp must be 0, as'),
    ({'model': 'gpt3', 'experts': 8}, 'experts must be 0, as'),
    ({'model': 'llama3.1_8B', 'activation': 'gelu'}, 'activation must be silu, as'),
    ({'model': 'none.json'}, 'none.json: cannot be read (No such file or directory)'),
    ({'model': ''}, 'layers is missing or no number')])
def test_a_model_that_is_unknown_or_contradicted_is_told(said, reason):
    row = pd.DataFrame([NAMED_ROW | said])
    assert predict(row).reason[0].startswith(reason)
    with pytest.raises(ValueError, match=re.escape(f'row 0: {reason}')):
        calibrate(row.assign(iteration_s=1.))


def test_what_was_meant_is_asked_with_one_mark(tmp_path, capsys):
    rows = [NAMED_ROW | {'model': name, 'id': name, 'iteration_s': 1.} for name in ('llama3', 'x')]
    pd.DataFrame(rows).to_csv(tmp_path / 'runs.csv')
    with pytest.raises(SystemExit): main(['validate', str(tmp_path / 'runs.csv')])
    one, other = ' '.join(capsys.readouterr().out.split()).split('llama3: ')[1].split(' x: ')
    assert one.endswith("did you mean 'llama3.1_8B'?") and other.endswith('B, ...')


def test_what_a_model_says_may_be_said_again():
    "And what a source calls its model is no name of ours where sizes are said."
    known = {c: x for c, x in cells_of_model(as_model('deepseek_v3')).items() if x is not None}
    more = {'kv_heads': 128, 'ep': 64}
    rows = [NAMED_ROW | known | more | {'model': name} for name in ('deepseek_v3', 'DeepSeek V3')]
    found = predict(pd.DataFrame(rows))
    assert not found.reason.str.contains('must be|unknown').any()
    assert found.predicted_iteration_s[0] == found.predicted_iteration_s[1]


def test_runs_of_named_models_are_fitted_to_and_compared():
    "Experts are seen to be there; layouts of one model are one job."
    rows = [NAMED_ROW | {'model': 'mixtral_8x7B', 'tp': tp} for tp in (2, 4, 8)]
    runs = pd.DataFrame(rows)
    assert 'host_experts' in told_by(pd.concat([runs, runs]))
    runs['iteration_s'] = predict(runs).predicted_iteration_s
    assert picked(predict(runs)).layers.tolist() == [32]
    table = calibrate(runs, free=['clock']).table
    assert table.value[0] == pytest.approx(value_of(
        read_calibration().sets[table.sets[0].split(', ')[0]], 'clock'), rel=1e-3)


def test_a_table_without_models_says_how_they_are_named():
    with pytest.raises(ValueError, match="without a column model, lacks the column 'layers'"):
        predict(pd.DataFrame([NAMED_ROW]))


def test_columns_of_our_own_names_that_are_not_read_are_told():
    row = published().head(1).drop(columns=['vp', 'hidden']).assign(virtual_stages=2, embed_dim=1)
    assert slips_in(row) == ["column 'virtual_stages' is not read (is it 'vp'?)",
                             "column 'embed_dim' is not read (is it 'hidden'?)"]


def logged(job, folder):
    "The run that a log of a job tells."
    line = 'iteration {}/ 9 | elapsed time per iteration (ms): 9000.0 | global batch size: 64 |'
    (folder / 'train.log').write_text('\n'.join(map(line.format, range(3))))
    return run_of_log(folder / 'train.log', job)


@pytest.mark.parametrize('said', first_of(8, [
    dict(cp=2, strategy='2d'),
    dict(assumes={'expert_imbalance': 1.3}), dict(assumes={'master_bytes': 2.}),
    dict(model=Model(512, 256, 4, 8, vocab=1000, output_bias=True))]), ids=str)
def test_a_log_of_what_no_column_says_is_no_run(said, tmp_path):
    "It would be fitted as if it ran something else."
    model, assumes = said.get('model', 'llama3.1_8B'), said.get('assumes')
    layout = {name: value for name, value in said.items() if name not in ('model', 'assumes')}
    p = Parallel(tp=2, pp=2, dp=4, **layout)
    with pytest.raises(ValueError, match='which no column of a table of runs says'):
        logged(Job(p, as_model(model), 64, p.n_gpus, assumes=assumes), tmp_path)


@pytest.mark.parametrize('name', first_of(1, ['qwen3_next_80B_A3B', 'vit_era5']))
def test_a_log_of_a_model_that_only_its_name_says_is_a_run(name, tmp_path):
    job = Job(Parallel(tp=2, pp=2, dp=4), as_model(name), 64, 16)
    run = logged(job, tmp_path).assign(gpu='H100')
    ((_, found, _),), reasons = run_jobs(run)
    assert (run.model[0], found.model, reasons[0]) == (name, job.model, '')


@pytest.mark.parametrize('model, assumes', [
    ('llama3.1_8B', {'flash_attention': False}), ('mixtral_8x7B', {'capacity_factor': 1.25})])
def test_a_log_has_what_is_assumed_of_its_job(model, assumes, tmp_path):
    "Where there are columns for it."
    layout = Parallel(tp=2, dp=8, recompute='none')
    job = Job(layout, as_model(model), 64, 16, as_model(model).seq_len,
              assumes=assumes)
    line = 'iteration {}/ 9 | elapsed time per iteration (ms): 9000.0 | global batch size: 64 |'
    (tmp_path / 'train.log').write_text('\n'.join(map(line.format, range(3))))
    row = predict(run_of_log(tmp_path / 'train.log', job), system='H100-80GB')
    one = estimate(job.model, job.parallel, 'H100-80GB', 64, job.assumptions('calibrated'))
    assert row.predicted_iteration_s[0] == pytest.approx(one.stats['iteration_s'], rel=1e-9)


@pytest.mark.parametrize('model, said', first_of(4, [
    ('gpt3', {}), ('deepseek_v3', {'ep': 8}),   # positions are learned; a bias of the router
    ('llama3.1_8B', {'dropout': True}),
    ('llama3.1_8B', {'assumes': {'fp8_parameters': True}, 'precision': 'fp8'}),
    ('llama3.1_8B', {'gradients_in_16_bits': True}), ('llama3.1_8B', {'dropout': False})]), ids=str)
def test_a_log_has_all_that_its_job_says(model, said, tmp_path):
    "Time and memory of its row are those of the job, and so is what a fit moves."
    layout = {name: value for name, value in said.items() if name in ('ep', 'precision')}
    about = {name: value for name, value in said.items() if name not in layout}
    m, p = as_model(model), Parallel(tp=8, dp=32, recompute='full', **layout)
    job = Job(p, m, 256, p.n_gpus, m.seq_len, 'Megatron-LM', **about)
    line = 'iteration {}/ 9 | elapsed time per iteration (ms): 9000.0 | global batch size: 256 |'
    (tmp_path / 'train.log').write_text('\n'.join(map(line.format, range(3))))
    run = run_of_log(tmp_path / 'train.log', job)
    row = predict(run, system='H100-80GB')
    one = estimate(m, p, 'H100-80GB', 256, job.assumptions('calibrated'))
    found = row.predicted_iteration_s[0], row.predicted_memory_GB[0]
    assert found == pytest.approx((one.stats['iteration_s'], one.stats['memory_GB']), rel=1e-9)
    batch, = batches_of(clean(run), as_system('H100-80GB'))
    priced = candidates_priced(batch, as_assumptions('calibrated'))
    assert priced['iteration_s'] == pytest.approx(one.stats['iteration_s'], rel=1e-9)


def test_a_log_recomputes_as_its_job_is_taken(tmp_path):
    "A file of DeepSpeed that does not say it is one job at both doors: without."
    (tmp_path / 'ds.json').write_text(json.dumps({
        'train_batch_size': 512, 'train_micro_batch_size_per_gpu': 16, 'bf16': {'enabled': True},
        'zero_optimization': {'stage': 3}}))
    job = dataclasses.replace(as_job(tmp_path / 'ds.json', 16), model=as_model('llama3.1_8B'),
                              seq_len=8192)
    line = 'iteration {}/ 9 | elapsed time per iteration (ms): 9000.0 | global batch size: 512 |'
    (tmp_path / 'train.log').write_text('\n'.join(map(line.format, range(3))))
    row = predict(run_of_log(tmp_path / 'train.log', job), system='H100-80GB')
    one = estimate(job.model, job.parallel, 'H100-80GB', 512, job.assumptions('calibrated'))
    assert row.predicted_iteration_s[0] == pytest.approx(one.stats['iteration_s'], rel=1e-9)
