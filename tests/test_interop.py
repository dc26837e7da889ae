"Formats that people have: configurations of Hugging Face, jobs of frameworks, their logs."
import copy
import dataclasses
import gzip
import itertools
import json
import operator
import os
import random
import re
import shlex
import time
import tomllib
import types
from pathlib import Path

import pandas as pd
import pytest
from thorough import examples
from frameworks import torchtitan_file
from hypothesis import given, strategies as st

from transformer_perf import Parallel, estimate, search
from transformer_perf import cli
from transformer_perf.cli import main
from transformer_perf.configs import FAMILIES, FOREIGN, foreign_keys
from transformer_perf.estimates import CHOICES, RECIPES
from transformer_perf.interop import (
    FORMATS, Job, as_job, export, no_difference, read_log, read_products, read_profile)
from transformer_perf.interop.writing import facts_of, meaning
from transformer_perf.interop.texts import flat, parse_yaml
from transformer_perf.models import NAMED, as_model, with_length
from transformer_perf.schedules import chunks_in, chunks_of
from transformer_perf.software import as_software
from transformer_perf.systems import as_system

HERE = Path(__file__).parent / 'data' / 'hf_configs'   # as their owners published them


def refused(ask, *args, **given):
    "The error of one line that a question ends with."
    with pytest.raises(ValueError, match='.') as caught: ask(*args, **given)
    message = str(caught.value)
    assert message.isprintable() and len(message) < 300
    return message


# models

PUBLISHED = {'Meta-Llama-3.1-8B': 8_030_261_248, 'Meta-Llama-3.1-70B': 70_553_706_496,
             'Mixtral-8x7B-v0.1': 46_702_792_704, 'Qwen3-0.6B': 596_049_920,
             'Qwen3-30B-A3B': 30_532_122_624, 'Qwen3-32B': 32_762_123_264,
             'DeepSeek-V3': 671_026_419_200, 'Nemotron-H-56B-Base-8K': 56_324_350_464,
             'gpt2-xl': 1_557_611_200}
FOREIGN_FILES = {'DeepSeek-V4-Flash': 'compress_ratios', 'gemma-4-26B-A4B': 'attention_k_eq_v',
                 'Qwen3.5-397B-A17B': 'vision_config; give its text_config alone'}
AS_NAMED = {'Meta-Llama-3.1-8B': 'llama3.1_8B', 'Meta-Llama-3.1-70B': 'llama3.1_70B',
            'Mixtral-8x7B-v0.1': 'mixtral_8x7B', 'Qwen3-30B-A3B': 'qwen3_30B_A3B',
            'Qwen3-32B': 'qwen3_32B', 'DeepSeek-V3': 'deepseek_v3'}


@pytest.mark.parametrize('name', PUBLISHED)
def test_real_files(name):
    "The parameters published, in the main model; and the sizes that are known by name."
    m = as_model(str(HERE / f'{name}.json'))
    assert m.name == name
    assert dataclasses.replace(m, mtp_layers=0).parameters == PUBLISHED[name]
    if name not in AS_NAMED: return
    known = NAMED[AS_NAMED[name]]
    assert dataclasses.replace(known, name=name, seq_len=m.seq_len, train_samples=None) == m


@pytest.mark.parametrize('name', FOREIGN_FILES)
def test_what_no_field_says(name):
    assert FOREIGN_FILES[name] in refused(as_model, str(HERE / f'{name}.json'))


def test_every_file_is_read_or_refused():
    assert {*PUBLISHED, *FOREIGN_FILES} == {path.stem for path in HERE.glob('*.json')}


def of(kind, e, depth, heads, mlp, vocab, **more):
    "A config.json with the keys of most families."
    return {'model_type': kind, 'hidden_size': e, 'num_hidden_layers': depth, 'vocab_size': vocab,
            'num_attention_heads': heads, 'intermediate_size': mlp,
            'max_position_embeddings': 4096} | more


def gpt2(e, depth, heads, **more):
    return {'model_type': 'gpt2', 'n_embd': e, 'n_layer': depth, 'n_head': heads, 'n_inner': None,
            'n_positions': 1024, 'vocab_size': 50257, 'activation_function': 'gelu_new', **more}


def kv(heads, head_dim=None): return {'num_key_value_heads': heads, 'head_dim': head_dim}


MLA = dict(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
FILES = [   # parameters that owners publish, and sizes of their files
    (124_439_808, gpt2(768, 12, 12)), (1_557_611_200, gpt2(1600, 48, 25)),
    (20_554_567_680, of('gpt_neox', 6144, 44, 64, 24576, 50432, hidden_act='gelu_fast')),
    (1_414_647_808, of('gpt_neox', 2048, 24, 16, 8192, 50304, hidden_act='gelu')),
    (6_738_415_616, of('llama', 4096, 32, 32, 11008, 32000)),
    (7_241_732_096, of('mistral', 4096, 32, 32, 14336, 32000, sliding_window=4096, **kv(8))),
    (494_032_768, of('qwen2', 896, 24, 14, 4864, 151936, tie_word_embeddings=True, **kv(2),
                     use_sliding_window=False, sliding_window=32768, max_window_layers=21)),
    (7_615_616_512, of('qwen2', 3584, 28, 28, 18944, 152064, **kv(4))),
    (14_315_784_192, of('qwen2_moe', 2048, 24, 16, 5632, 151936, num_experts=60,
                        num_experts_per_tok=4, moe_intermediate_size=1408,
                        shared_expert_intermediate_size=5632, **kv(16))),
    (2_506_172_416, of('gemma', 2048, 18, 8, 16384, 256000, **kv(1, 256))),
    (8_537_680_896, of('gemma', 3072, 28, 16, 24576, 256000, **kv(16, 256))),
    (2_614_341_888, of('gemma2', 2304, 26, 8, 9216, 256000, sliding_window=4096, **kv(4, 256),
                       hidden_activation='gelu_pytorch_tanh', hidden_act='gelu_pytorch_tanh')),
    (9_241_705_984, of('gemma2', 3584, 42, 16, 14336, 256000, sliding_window=4096, **kv(8, 256))),
    (27_227_128_320, of('gemma2', 4608, 46, 32, 36864, 256000, sliding_window=4096,
                        **kv(16, 128))),
    (999_885_952, of('gemma3_text', 1152, 26, 4, 6912, 262144, sliding_window=512,
                     sliding_window_pattern=6, **kv(1, 256))),
    (15_706_484_224, of('deepseek_v2', 2048, 27, 16, 10944, 102400, n_routed_experts=64,
                        num_experts_per_tok=6, n_shared_experts=2, moe_intermediate_size=1408,
                        first_k_dense_replace=1, q_lora_rank=None, **MLA)),
    (7_833_409_536, of('mimo', 4096, 36, 32, 11008, 151680, num_nextn_predict_layers=1, **kv(8))),
    (2_779_683_840, of('phi', 2560, 32, 32, 10240, 51200, hidden_act='gelu_new')),
    (3_821_079_552, of('phi3', 3072, 32, 32, 8192, 32064, sliding_window=2047)),
    (41_873_153_344, of('phimoe', 4096, 32, 32, 6400, 32064, num_local_experts=16,
                        num_experts_per_tok=2, attention_bias=True, lm_head_bias=True,
                        sliding_window=131072, **kv(8))),
    (1_235_814_400, of('llama', 2048, 16, 32, 8192, 128256, tie_word_embeddings=True, **kv(8, 64))),
    (23_572_403_200, of('mistral', 5120, 40, 32, 32768, 131072, sliding_window=None,
                        **kv(8, 128))),
    (14_659_507_200, of('phi3', 5120, 40, 40, 17920, 100352, sliding_window=None, **kv(10))),
    (268_098_176, of('gemma3_text', 640, 18, 4, 2048, 262144, sliding_window=512,
                     layer_types=(['sliding_attention'] * 5 + ['full_attention']) * 3,
                     **kv(1, 256))),
    (480_154_875_392, of('qwen3_moe', 6144, 62, 96, 8192, 151936, num_experts=160,
                         num_experts_per_tok=8, moe_intermediate_size=2560, decoder_sparse_step=1,
                         mlp_only_layers=[], shared_expert_intermediate_size=0, **kv(8, 128))),
    (228_689_764_864, of('minimax_m2', 3072, 62, 48, 1536, 200064, num_local_experts=256,
                         num_experts_per_tok=8, attn_type_list=[1] * 62, **kv(8, 128))),
    (6_888_095_744, of('olmo', 4096, 32, 32, 11008, 50304)),
    (1_176_764_416, of('olmo', 2048, 16, 16, 8192, 50304, tie_word_embeddings=True)),
    (7_298_617_344, of('olmo2', 4096, 32, 32, 11008, 100352)),
    (6_919_161_856, of('olmoe', 2048, 16, 16, 1024, 50304, num_experts=64, num_experts_per_tok=8)),
    (3_030_371_328, of('starcoder2', 3072, 30, 24, 12288, 49152, hidden_act='gelu_pytorch_tanh',
                       **kv(2))),
    (34_980_831_232, of('cohere', 8192, 40, 64, 22528, 256000)),
    (8_170_848_256, of('granite', 4096, 40, 32, 12800, 49155, tie_word_embeddings=True, **kv(8))),
    (36_151_104_512, of('seed_oss', 5120, 64, 80, 27648, 155136, **kv(8, 128))),
    (9_400_279_040, of('glm4', 4096, 40, 32, 13696, 151552, **kv(2, 128)))]
HYBRIDS = [   # Granite's is its 4.0-H-Micro, with the words of its owners
    (9_780_235_392, of('bamba', 4096, 32, 32, 14336, 128256, attn_layer_indices=[9, 18, 27],
                       **kv(8), mamba_n_heads=128, mamba_d_head='auto', mamba_expand=2,
                       mamba_n_groups=1, mamba_d_state=128, mamba_d_conv=4,
                       mamba_chunk_size=256)),
    (3_191_396_096, of('granitemoehybrid', 2048, 40, 32, 8192, 100352, **kv(8),
                       num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=8192,
                       tie_word_embeddings=True, mamba_n_heads=64, mamba_d_head=64,
                       mamba_n_groups=1, mamba_d_state=128, mamba_d_conv=4, mamba_expand=2,
                       mamba_chunk_size=256, layer_types=(
                           ['mamba'] * 5 + ['attention'] + ['mamba'] * 4) * 4))]
CHUNKS = of('llama4_text', 5120, 48, 40, 8192, 202048, **kv(8, 128), num_local_experts=16,
            num_experts_per_tok=1, intermediate_size_mlp=16384, attention_chunk_size=8192)
NEO = {'model_type': 'gpt_neo', 'hidden_size': 2048, 'num_layers': 24, 'num_heads': 16,
       'vocab_size': 50257, 'max_position_embeddings': 2048, 'window_size': 256,
       'attention_types': [[['global', 'local'], 12]], 'activation_function': 'gelu_new'}
OPT = {'model_type': 'opt', 'hidden_size': 768, 'num_hidden_layers': 12, 'ffn_dim': 3072,
       'num_attention_heads': 12, 'vocab_size': 50272, 'max_position_embeddings': 2048,
       'activation_function': 'relu', 'word_embed_proj_dim': 768}
SHAPED = [   # published, or counted by transformers 5.23
    (125_239_296, OPT), (1_315_575_808, NEO), (107_769_861_120, CHUNKS),
    (1_637_964_550, {'model_type': 'ctrl', 'n_embd': 1280, 'n_layer': 48, 'n_head': 16,
                     'dff': 8192, 'vocab_size': 246534, 'n_positions': 256}),
    (6_979_596_352, of('apertus', 4096, 32, 32, 14336, 131072, hidden_act='xielu')),
    (308_778_780_864, of(
        'mimo_v2_flash', 4096, 48, 64, 16384, 152576, **kv(4, 192), v_head_dim=128,
        n_routed_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048,
        sliding_window=129, mlp_layer_types=['dense'] + ['sparse'] * 47,
        layer_types=['full_attention'] + (['sliding_attention'] * 4 + ['full_attention']
                                          + ['sliding_attention']) * 7
        + ['sliding_attention'] * 4 + ['full_attention'])),
    (33_189_975_808, of(
        'laguna', 2048, 40, 48, 8192, 100352, **kv(8, 128), num_experts=256,
        num_experts_per_tok=8, moe_intermediate_size=512, shared_expert_intermediate_size=512,
        layer_types=['full_attention'] * 40, mlp_layer_types=['dense'] + ['sparse'] * 39)),
    (8_514_961_408, of(
        'falcon_h1', 4096, 32, 32, 14336, 128000, **kv(8), mamba_d_ssm=1024, mamba_n_heads=128,
        mamba_n_groups=1, mamba_d_state=256, mamba_d_conv=4, mamba_expand=2,
        mamba_chunk_size=256))]
ROUTED = dict(num_experts=8, num_experts_per_tok=2)
SAID = [   # keys whose word counts, or that a file leaves out; by transformers 5.24
    (7_272_665_088, of('falcon_mamba', 4096, 64, 1, 8192, 65024, expand=16, state_size=16,
                       conv_kernel=4, time_step_rank=256, tie_word_embeddings=False)),
    (6_329_984, of('cohere2_moe', 128, 4, 4, 256, 1000, **ROUTED, num_key_value_heads=2,
                   layer_types=['full_attention'] * 4, prefix_dense_intermediate_size=5000,
                   mlp_layer_types=['dense', 'dense', 'sparse', 'sparse'],
                   sliding_window=9)),
    (4_757_943_040, of('laguna', 2048, 6, 48, 8192, 100352, **kv(8, 128), num_experts=256,
                       num_experts_per_tok=8, moe_intermediate_size=512, gating='per-element',
                       shared_expert_intermediate_size=512, layer_types=['full_attention'] * 6)),
    (1_095_056, of('flint', 128, 4, 4, 256, 1000, **ROUTED, **kv(2, 32), moe_intermediate_size=64,
           shared_expert_intermediate_size=64, sliding_window=9,
           layer_types=['sliding_attention'] * 4)),
    (719_008, of('granite_swa', 128, 4, 8, 256, 1000, sliding_window=9,
           layer_types=['sliding_attention'] * 4)),
    (1_961_088, of('internlm3', 128, 4, 8, 256, 1000)),
    (3_796_096, of('iquestcoder', 128, 4, 16, 256, 1000)),
    (913_536, of('hyperclovax', 128, 4, 8, 256, 1000)),
    (2_476_008, of('kolibri1', 128, 5, 4, 256, 1000, **ROUTED, **kv(2, 32),
                   moe_intermediate_size=64, sliding_window=9)),
    (1_200_360, of('xlm-roberta-xl', 128, 4, 8, 256, 1000)),
    (1_182_464, of('gpt_bigcode', 128, 4, 8, 256, 1000, num_key_value_heads=1, multi_query=False,
           n_inner=256) | {'intermediate_size': None})]
GLM = dict(num_experts_per_tok=8, n_shared_experts=1, attention_bias=True, **kv(8, 128))
GLM_FILES = [
    (110_468_824_832, of('glm4_moe', 4096, 46, 96, 10944, 151552, n_routed_experts=128,
                         moe_intermediate_size=1408, first_k_dense_replace=1, use_qk_norm=False,
                         num_nextn_predict_layers=1, **GLM)),
    (358_337_791_296, of('glm4_moe', 5120, 92, 96, 12288, 151552, n_routed_experts=160,
                         moe_intermediate_size=1536, first_k_dense_replace=3, use_qk_norm=True,
                         num_nextn_predict_layers=1, **GLM))]


@pytest.mark.parametrize('published, given', FILES + HYBRIDS + SHAPED + SAID,
                         ids=lambda x: str(x)[:40])
def test_parameters_of_files(published, given): assert as_model(given).parameters == published


@pytest.mark.parametrize('published, given', [   # in all: with the encoder of pictures
    (4_300_079_472, dict(hidden_size=2560, intermediate_size=10240, num_hidden_layers=34)),
    (12_187_325_040, dict(hidden_size=3840, intermediate_size=15360, num_hidden_layers=48,
                          num_attention_heads=16, num_key_value_heads=8))])
def test_files_of_gemma_3_leave_out_what_its_4b_has(published, given):
    encoder, its_width = 416_866_032, 1152
    m = as_model({'model_type': 'gemma3_text', 'sliding_window': 1024} | given)
    assert m.parameters + encoder + its_width * (m.embed_dim + 1) == published
    assert (m.seq_len, m.head_dim) == (131_072, 256)


@pytest.mark.parametrize('published, given', GLM_FILES)
def test_files_with_layers_of_mtp(published, given):
    "They store embedding and output layer once more, for the layer of multi-token prediction."
    m = as_model(given)
    assert m.mtp_layers == 1 and m.parameters + 2 * m.vocab * m.embed_dim == published


def test_layers_of_other_shapes():
    "What layers of Llama 4, MiMo-V2 and GPT-Neo see, and what no field says."
    found = [[block.mixer for block, number in as_model(file).blocks for _ in range(number)]
             for _, file in SHAPED]
    assert [m.chunk for m in found[2]] == [8192, 8192, 8192, None] * 12
    assert [m.window for m in found[1]] == [None, 256] * 12
    assert {(m.kv_heads, m.value, m.window, m.sinks) for m in found[5]} == {
        (4, 128, None, False), (8, 128, 129, True)}
    maverick = as_model(CHUNKS | dict(num_local_experts=128, interleave_moe_layer_step=2))
    assert round(maverick.parameters / 1e9) == 401   # "400B"
    for file, change in ((OPT, {'word_embed_proj_dim': 512}),
                         (OPT, {'do_layer_norm_before': False}), (
                             SHAPED[6][1], {'num_attention_heads_per_layer': [48] * 39 + [64]})):
        assert 'no field of a Model says' in refused(as_model, file | change)
    assert 'attention_layers' in refused(as_model, NEO | {'attention_types': [[['global'], 3]]})
    assert 'no_rope_layers=True' in refused(as_model, CHUNKS | {'no_rope_layers': True})
    assert 'no field of a Model says' in refused(
        as_model, SHAPED[6][1] | {'num_attention_heads_per_layer': [[48]]})
    both = SHAPED[6][1] | dict(   # windows by a rule, experts by none
        sliding_window=8, layer_types=['sliding_attention', 'full_attention'] * 20,
        mlp_layer_types=['sparse', 'dense', 'dense', 'sparse'] * 10)
    assert [block.mixer.window for block, _ in as_model(both).blocks[:4]] == [8, None, 8, None]
    lfm2 = of('lfm2', 64, 2, 4, 96, 100, conv_L_cache=3, layer_types=['conv', 'full_attention'],
              block_ffn_dim_multiplier=[1], **kv(4))
    assert 'block_ffn_dim_multiplier=[1] must be a number' in refused(as_model, lfm2)
    for runs in ([1, 3], [[['global'], 'x']], [[['global'], 10**12]]):
        assert 'must be [kinds, times]' in refused(as_model, NEO | {'attention_types': runs})


def test_a_file_in_its_folder(tmp_path):
    "A folder is named for its model; five keys of another library are none of ours."
    folder = tmp_path / 'Qwen3-32B'
    folder.mkdir()
    (folder / 'config.json').write_text((HERE / 'Qwen3-32B.json').read_text())
    assert as_model(folder) == as_model(str(folder)) == as_model(str(folder / 'config.json'))
    assert as_model(folder).name == 'Qwen3-32B'
    assert 'cannot be read' in refused(as_model, str(tmp_path))


def test_new_and_old_keys_say_the_same():
    "Those of transformers 5 beside those of 4."
    old = of('gpt_oss', 64, 4, 4, 64, 100, num_local_experts=4, num_experts_per_tok=2,
             sliding_window=8, torch_dtype='bfloat16', rope_theta=1e4, **kv(2, 16))
    new = {key: x for key, x in old.items() if key not in ('torch_dtype', 'rope_theta')} | {
        'dtype': 'bfloat16', 'rope_parameters': {'rope_theta': 1e4, 'rope_type': 'default'},
        'layer_types': ['sliding_attention', 'full_attention'] * 2}
    assert as_model(old) == as_model(new)
    old = of('glm4_moe', 64, 4, 4, 64, 100, n_routed_experts=4, num_experts_per_tok=2, **kv(2, 16),
             n_shared_experts=1, moe_intermediate_size=32, first_k_dense_replace=1)
    new = old | {'mlp_layer_types': ['dense'] + ['sparse'] * 3}
    assert as_model(old) == as_model(new)
    assert 'lists 2 layers, num_hidden_layers=4' in refused(
        as_model, new | {'mlp_layer_types': ['dense', 'sparse']})
    assert 'mlp_layer_types contradicts first_k_dense_replace' in refused(
        as_model, new | {'first_k_dense_replace': 2})


TINY = of('llama', 64, 2, 4, 96, 100)


@pytest.mark.parametrize('change, says', [
    (dict(model_type='rwkv5'), "unknown model_type 'rwkv5'"), (dict(num_hidden_layers=None),
    'num_hidden_layers=None must be'), (dict(hidden_act='selu'), "unknown hidden_act 'selu'"),
    (dict(kv_lora_rank=8), 'kv_lora_rank=8 has no meaning in a llama'),
    (dict(num_experts=8), 'num_experts=8 has no meaning in a llama'),
    (dict(num_hidden_layers=10**8), 'must be a whole number from 1 to 10000'),
    (dict(tie_word_embeddings='yes'), "tie_word_embeddings='yes' must be true or false"),
    (dict(num_key_value_heads=3), 'must be divisible by kv_heads=3'),
    (dict(num_attention_heads=[4, 4]), 'must be a whole number'),
    (dict(text_config=[1]), 'text_config='), (dict(architectures='Llama'), 'architectures='),
    (dict(model_type=['llama']), 'unknown model_type'),
    (dict(text_config=TINY, tie_word_embeddings=True), None),
    (dict(text_config=TINY | dict(tie_word_embeddings=False), tie_word_embeddings=True),
     'contradicts'),
    (dict(layer_types='full_attention'), 'layer_types='),
    (dict(layer_types=['sliding_attention'] * 2), 'no sliding_window is in use')])
def test_files_that_say_wrong(change, says):
    if says is None: assert as_model(TINY | change).tied_embeddings; return
    assert says in refused(as_model, TINY | change)


@pytest.mark.parametrize('key', [key for keys in FOREIGN.values() for key in keys.split()])
def test_foreign_keys_are_named(key):
    "Where they say something; not where they say that there is no such thing."
    key = key.replace('*', 'size')
    assert key in refused(as_model, TINY | {key: 4})
    for nothing in (None, False, 0, [], {}): assert as_model(TINY | {key: nothing}).parameters > 0
    assert foreign_keys({'hidden_size': 3, key: True}) == [key]


WORTHLESS = [None, True, -1, 0, 1.5, 'x', [], [1], {}, {'a': 1}, 10**400, ['full_attention'] * 9]


@examples(150)
@given(st.sampled_from([given for _, given in FILES + HYBRIDS + SHAPED]), st.data())
def test_spoiled_files(file, data):
    "A model, or one line."
    names = data.draw(st.lists(st.sampled_from([*file, 'layer_types', 'mlp_layer_types',
        'moe_layer_freq', 'mlp_only_layers', 'topk_method', 'architectures', 'text_config',
        'use_sliding_window', 'sliding_window_pattern', 'attn_type_list']), max_size=3))
    file = file | {name: data.draw(st.sampled_from(WORTHLESS)) for name in names}
    try: assert as_model(file).parameters > 0
    except ValueError as error: assert str(error).isprintable() and len(str(error)) < 300


# the same counts by the library itself, where it is installed

def some_file(kind, r):  # dict
    "A small random file of a family."
    heads, depth, half = r.choice([2, 4, 8]), r.choice([1, 2, 3, 4, 7]), lambda: r.random() < .5
    flags = ('attention_bias', 'mlp_bias', 'tie_word_embeddings', 'use_qk_norm', 'use_bias',
             'lm_head_bias', 'qkv_bias', 'use_qkv_bias', 'use_sliding_window')
    file = of(kind, 16 * heads, depth, heads, r.choice([32, 48]), r.choice([64, 100]),
              **{name: half() for name in flags if half()}, pad_token_id=0,
              **kv(r.choice([1, 2]), r.choice([8, 16])), sliding_window=r.choice([None, 4]),
              max_window_layers=r.choice([0, depth]), num_experts_per_tok=2, n_group=1,
              topk_group=1, moe_intermediate_size=24, n_shared_experts=r.choice([1, 2]),
              shared_expert_intermediate_size=40, first_k_dense_replace=r.choice([0, 1, 2]),
              mlp_only_layers=r.choice([[], [0]]), q_lora_rank=r.choice([None, 12]),
              **{name: 8 for name in MLA}, num_local_experts=4, num_experts=4, n_routed_experts=4)
    renamed = {'hidden_size': 'n_embd', 'num_hidden_layers': 'n_layer', 'intermediate_size':
               'n_inner', 'num_attention_heads': 'n_head', 'max_position_embeddings': 'n_positions'}
    if kind in ('exaone4', 'cwm', 'exaone_moe', 'kolibri1', 'flint', 'vaultgemma', 'laguna',
                'mimo_v2_flash'): file['sliding_window'] = 4   # without, their own code fails
    if kind in ('deepseek_v32', 'glm_moe_dsa'): file['q_lora_rank'] = 12
    if kind == 'internlm3':
        file = {name: x for name, x in file.items() if not name.endswith('bias')}
    if kind in ('minimax', 'nemotron_h'): file['sliding_window'] = None
    if kind == 'olmo_hybrid': file['num_hidden_layers'] = 4
    if kind in ('bamba', 'granitemoehybrid'): file |= dict(mamba_n_heads=2 * heads, mamba_d_head=16)
    if kind == 'mamba2': file |= dict(num_heads=2 * heads, head_dim=16, n_groups=2)
    if kind not in ('gpt2', 'gptj'): return file
    return {renamed.get(name, name): value for name, value in file.items()}


@pytest.mark.parametrize('kind', FAMILIES)
def test_parameters_as_transformers_counts_them(kind):
    os.environ['TRANSFORMERS_VERBOSITY'] = 'error'
    torch, transformers = map(pytest.importorskip, ('torch', 'transformers'))
    if kind not in transformers.CONFIG_MAPPING: pytest.skip('not in this transformers')
    cls = transformers.CONFIG_MAPPING[kind]
    fields, compared = cls.__dataclass_fields__, 0
    for seed in range(8):
        file = some_file(kind, random.Random(seed))
        config = cls(**{name: x for name, x in file.items() if name in fields})
        with torch.device('meta'): model = transformers.AutoModelForCausalLM.from_config(config)
        buffers = [b for name, b in model.named_buffers() if 'correction_bias' in name]
        theirs = sum(x.numel() for x in {*model.parameters(), *buffers})
        try: m = as_model(json.loads(json.dumps(config.to_dict())))
        except ValueError as error: assert ' says ' in str(error); continue
        assert dataclasses.replace(m, mtp_layers=0).parameters == theirs, file
        compared += 1
    assert compared


def test_encoders():
    "BERT of its owners; each token sees all, unless it is made a decoder."
    bert = of('bert', 768, 12, 12, 3072, 30522, hidden_act='gelu', type_vocab_size=2) | {
        'max_position_embeddings': 512}
    m = as_model(bert)
    assert m.parameters == 109_514_298 and not m.causal
    assert as_model(bert | {'is_decoder': True}).causal
    for change in ({'position_embedding_type': 'relative_key'}, {'tie_word_embeddings': False}):
        assert 'no field of a Model says' in refused(as_model, bert | change)


def test_all_causal_types_of_transformers():
    "Every type whose defaults the library builds is read exactly, or refused in one line."
    for name in ('torch', 'transformers'): pytest.importorskip(name)
    import meta_configs
    found = meta_configs.all_compared()
    names = [meta_configs.verdict(theirs, ours) for theirs, ours, _ in found.values()]
    assert 'misread' not in names
    assert names.count('exact') >= min(90, len(names) // 2)   # an older library has fewer
    for theirs, ours, line in found.values():
        if theirs and ours is None: assert line.isprintable() and len(line) < 300


# jobs

def back(text, name):  # Job
    "What a text that `export` wrote says."
    if name == 'megatron': return as_job(text)
    return as_job(json.loads(text) if name in ('json', 'deepspeed') else parse_yaml(text, name))


def said(job, name):
    "The text of a job, or None where a line says why there is none."
    try: return export(job, name)
    except ValueError as error:
        assert str(error).isprintable() and len(str(error)) < 300 and 'said in' in str(error)


pick = st.sampled_from
sizes = st.fixed_dictionaries(
    dict(tp=pick([1, 2, 8]), cp=pick([1, 1, 2]), pp=pick([1, 1, 2, 4]), dp=pick([1, 2, 32]),
         micro_batch=pick([1, 2])),
    optional=dict(
        zero_stage=pick([0, 1, 2, 3]), recompute=pick(['none', 'scores', 'selective', 'full']),
        virtual_stages=pick([1, 2, 5]), sequence_sharded=st.booleans(), nvlink_tp=pick([1, 2]),
        context=pick(['allgather', 'ring']), dp_overlap=st.booleans(), tp_overlap=st.booleans(),
        schedule=pick(['1f1b', '1f1b', 'gpipe', 'zb-h1', 'zb-v', 'dualpipe-v']),
        reduce_each=st.booleans(), strategy=pick([None, None, '2d'])))
KNOWN_MODELS = [None, *NAMED.values(), *(as_model(file) for _, file in FILES)]


@st.composite
def jobs(draw):  # Job
    "Any job."
    sizes_drawn = draw(sizes)
    if sizes_drawn.get('schedule') in ('zb-v', 'dualpipe-v'): sizes_drawn['virtual_stages'] = 2
    p, m = Parallel(**sizes_drawn), draw(pick(KNOWN_MODELS))
    batch = draw(pick([None, p.dp * p.micro_batch * 20]))
    l = m.seq_len if m else draw(pick([None, 4096]))
    return Job(p, m, batch, draw(pick([p.n_gpus, p.n_gpus, None])), l)


@examples(150)
@given(jobs(), pick(['json', *FORMATS]))
def test_out_and_in_again(job, name):
    "A job that is said is understood as it was meant; and what was understood is said again."
    text = said(job, name)
    if text is None: assert name != 'json'; return
    again = back(text, name)
    if name == 'json': assert again == job
    own, idle = facts_of(again), no_difference(job.parallel, job.model)
    for row in FORMATS[name].rows if name in FORMATS else ():
        fact = row.fact
        if row.where or fact in idle or fact not in (*CHOICES, 'tp', 'cp', 'pp', 'micro_batch'):
            continue
        meant = getattr(job.parallel, fact)
        assert meant is None or own[fact] == meant, (fact, text)
    text = export(again, name)
    assert back(text, name) == again
    assert export(back(text, name), name) == text


OWN_JOB = {'format': 'transformer_perf.job', 'version': 1, 'model': 'llama3.1_8B'}


@pytest.mark.parametrize('said, told, n_gpus, dp', [
    (dict(parallel={'tp': 2, 'dp': 4}), None, 8, 4), (dict(parallel={'tp': 2, 'dp': 4}), 8, 8, 4),
    (dict(parallel={'tp': 2}), 8, 8, 4), (dict(parallel={'tp': 2}, n_gpus=8), None, 8, 4),
    (dict(parallel={'tp': 2}), None, None, 1),
    (dict(parallel={'tp': 2, 'dp': 1}, n_gpus=None), None, None, 1),   # as it is written
    (dict(parallel={'tp': 2, 'dp': 1}, n_gpus=None), 8, 8, 4)])
def test_gpus_of_our_own_json(said, told, n_gpus, dp):
    "As of every other format: copies that are said make GPUs, and GPUs that are told make copies."
    job = as_job(OWN_JOB | said, told)
    assert (job.n_gpus, job.parallel.dp) == (n_gpus, dp)


def test_gpus_that_our_own_json_contradicts():
    assert refused(as_job, OWN_JOB | {'parallel': {'tp': 2}}, 9) == (
        'n_gpus=9 must be divisible by the 2 GPUs of tp=2')
    assert refused(as_job, OWN_JOB | {'parallel': {'tp': 2, 'dp': 4}}, 16) == (
        'n_gpus=16 contradicts dp=4: a copy has 2 GPUs')


ONE_STAGE = {name for name, format in FORMATS.items()
             if (None, 'zero_stage') in [row[:2] for row in format.rows]}


@pytest.mark.parametrize('name', FORMATS)
def test_every_choice_has_a_row(name):
    "So that nothing of a configuration is dropped in silence."
    facts = {row.fact for row in FORMATS[name].rows} | {'zero_stage', 'dp_overlap', 'recompute',
        'virtual_stages', 'schedule', 'micro_batch', 'sequence_sharded'}
    if 'graph_impl' in facts: facts |= {'cuda_graphs'}   # said by two flags
    assert {*CHOICES, 'tp', 'cp', 'pp'} <= facts
    if name in ONE_STAGE: return   # it refuses the job below
    job = Job(Parallel(tp=2, dp=4, zero_stage=3), global_batch=8, n_gpus=8, seq_len=64)
    for field, x in (('reduce_each', False), ('strategy', '2d')):
        changed = dataclasses.replace(job, parallel=dataclasses.replace(job.parallel, **{field: x}))
        if (field, name) == ('reduce_each', 'accelerate'):
            assert f'{field}={x} (the script that trains' in export(changed, name); continue
        assert f'{field}={x!r} cannot be said in {name}' in refused(export, changed, name)


@pytest.mark.parametrize('name', [name for name in FORMATS if name not in ONE_STAGE])
@pytest.mark.parametrize('stage', [0, 2, 3])
def test_memory_is_that_of_the_job(name, stage):
    "Gradients too are shared out in stages 2 and 3, whichever format says so."
    m = NAMED['llama3.1_70B']
    p = Parallel(dp=64, zero_stage=stage, recompute='full', dp_overlap=True)
    text = export(Job(p, m, 256, 64, m.seq_len), name)
    again = dataclasses.replace(back(text, name).parallel, recompute='full', dp_overlap=True)
    one, two = (estimate(m, q, 'H100-80GB', 256, assumptions='corrected').stats for q in (p, again))
    assert {n: two[n] for n in one if n.startswith('memory')} == {
        n: x for n, x in one.items() if n.startswith('memory')}
    assert one['iteration_s'] == two['iteration_s']
    assert ('sync_each_batch=True' in text) == (name == 'accelerate' and stage == 3)
    once = Job(p, m, 64, 64, m.seq_len)   # nothing is added up
    assert 'sync_each_batch' not in export(once, name)


def test_gradients_in_a_pipeline_of_torchtitan():
    "PyTorch reduces those of FSDP after the last micro-batch, and a job must agree to that."
    given = {'parallelism': {'pipeline_parallel_degree': 2, 'data_parallel_shard_degree': 8}}
    p = as_job(given).parallel
    assert (p.zero_stage, p.reduce_each) == (2, False)
    job = Job(Parallel(pp=2, dp=8, zero_stage=2), None, 64, 16, 4096)
    assert 'reduce_each=True cannot be said in torchtitan' in refused(export, job, 'torchtitan')
    job = dataclasses.replace(job, parallel=dataclasses.replace(job.parallel, reduce_each=False))
    assert back(export(job, 'torchtitan'), 'torchtitan').parallel.reduce_each is False


UNEVEN = [('llama3.1_405B', 16, 4), ('llama3.1_405B', 16, None), ('deepseek_v3', 16, 2),
          ('deepseek_v3', 8, 1), ('llama3.1_70B', 8, 3)]


@pytest.mark.parametrize('name, pp, v', UNEVEN)
def test_uneven_stages_are_written(name, pp, v):
    "Megatron-LM asserts that layers divide, unless each chunk is told; and takes one flag of two."
    m = NAMED[name]
    p = Parallel(tp=8, pp=pp, virtual_stages=v, dp=2, sequence_sharded=True, zero_stage=1)
    text = export(Job(p, m, 64, p.n_gpus, m.seq_len), 'megatron')
    again = as_job(text).parallel
    assert again.layout.count('m') == (m.mtp_layers > 0) and again.virtual_stages == (v or 1)
    assert 'virtual' not in text and as_job(export(as_job(text), 'megatron')).parallel == again
    bare = dataclasses.replace(again, layout=None, virtual_stages=v)
    one, two = (estimate(m, q, 'H100-80GB', 64, 'calibrated') for q in (bare, again))
    assert one.timeline.equals(two.timeline) and one.stats == two.stats


def test_even_stages_need_no_layout():
    m = NAMED['llama3.1_70B']
    job = Job(Parallel(pp=4, virtual_stages=5), m, 64, 4, m.seq_len)
    text = export(job, 'megatron')
    assert '--num-virtual-stages-per-pipeline-rank 5' in text and 'layout' not in text
    many = dataclasses.replace(job, parallel=Parallel(pp=4, virtual_stages=30))
    assert 'depth=80 in 120 chunks cannot be said' in refused(export, many, 'megatron')


LLAMA = ('python pretrain_gpt.py --num-layers {} --hidden-size 4096 --num-attention-heads 32 '
         '--seq-length 4096 --micro-batch-size 1 --pipeline-model-parallel-size 4 {}')


@pytest.mark.parametrize('layers, flags, dealt', [   # counted by hand
    (30, '--decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7',
     [7, 8, 8, 7]),
    (31, '--decoder-last-pipeline-num-layers 7', [8, 8, 8, 7]),
    (31, '--account-for-embedding-in-pipeline-split', [7, 8, 8, 8]),
    (30, '--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split',
     [7, 8, 8, 7]),
    (28, '--decoder-first-pipeline-num-layers 4 --num-virtual-stages-per-pipeline-rank 2',
     [2, 4, 4, 4, 2, 4, 4, 4]),
    (31, '--account-for-loss-in-pipeline-split --num-virtual-stages-per-pipeline-rank 2',
     [4, 4, 4, 4, 4, 4, 4, 3])])
def test_uneven_stages_are_read(layers, flags, dealt):
    p = as_job(LLAMA.format(layers, flags)).parallel
    chunks = chunks_in(p.layout) if p.layout else chunks_of(layers, len(dealt))
    assert [chunk.count('t') for chunk in chunks] == dealt
    assert p.virtual_stages == len(dealt) // 4


@pytest.mark.parametrize('layers, flags, says', [
    (32, '--decoder-first-pipeline-num-layers 7', 'leaves 25 layers for 3 stages'),
    (32, '--account-for-loss-in-pipeline-split', 'must be divisible by 4'),
    (31, '--decoder-last-pipeline-num-layers 7 --num-virtual-stages-per-pipeline-rank 2',
     'stages of 7 to 8 layers must be divisible by virtual_stages=2'),
    (32, '--decoder-last-pipeline-num-layers 8 --account-for-loss-in-pipeline-split',
     'contradicts'),
    (32, '--decoder-last-pipeline-num-layers 8 --pipeline-model-parallel-layout E|t*32||L',
     'contradicts')])
def test_stages_that_megatron_refuses(layers, flags, says):
    assert says in refused(as_job, LLAMA.format(layers, flags))


ASSUMED = {   # flags -> what they say of a job
    '--fp8-param-gather': {'fp8_parameters': True},
    '--first-last-layers-bf16': {'bf16_ends': 1},
    '--first-last-layers-bf16 --num-layers-at-start-in-bf16 2 --num-layers-at-end-in-bf16 2':
        {'bf16_ends': 2},
    '--attention-backend unfused': {'flash_attention': False},
    '--attention-backend fused': {'flash_attention': True},
    '--use-flash-attn': {'flash_attention': True},
    '--num-experts 8 --moe-expert-capacity-factor 1.25': {'capacity_factor': 1.25},
    '--num-experts 8 --moe-expert-capacity-factor -1': None, '--bf16': None}


@pytest.mark.parametrize('flags', ASSUMED)
def test_what_flags_say_beside_a_layout(flags):
    job = as_job(LLAMA.format(32, flags))
    assert job.assumes == ASSUMED[flags]
    assert not any(key in flags for key, _ in job.ignored)


IN_32 = 'trains in 32 bits'


@pytest.mark.parametrize('given, told', [   # keys of a format, or flags
    ('', '--bf16'), ('--bf16', None), ('--fp16', None), ('--fp8-format hybrid', None),
    ({'train_batch_size': 8}, 'bf16.enabled'),
    ({'train_batch_size': 8, 'bf16': {'enabled': False}}, 'bf16.enabled'),
    ({'train_batch_size': 8, 'bf16': {'enabled': 'auto'}}, None),
    ({'train_batch_size': 8, 'fp16': {'enabled': True}}, None),
    ({'distributed_type': 'FSDP', 'mixed_precision': 'no'}, 'mixed_precision'),
    ({'distributed_type': 'FSDP', 'mixed_precision': False}, 'mixed_precision'),
    ({'distributed_type': 'FSDP'}, 'mixed_precision'),
    ({'distributed_type': 'FSDP', 'mixed_precision': 'bf16'}, None)], ids=str)
def test_jobs_in_32_bits_are_told_of(given, told):
    job = as_job(LLAMA.format(32, given) if isinstance(given, str) else given)
    assert [key for key, why in job.ignored if IN_32 in why] == ([told] if told else [])
    assert (job.parallel.precision or 'bf16') in ('bf16', 'fp8')


WORDLESS = {   # format -> precisions that it has no word for, and refuses
    'megatron': set(), 'deepspeed': RECIPES.keys() - {'bf16'},
    'accelerate': RECIPES.keys() - {'bf16', 'fp8'},   # its `mixed_precision` takes four words
    'torchtitan': set()}


@pytest.mark.parametrize('precision', RECIPES)
@pytest.mark.parametrize('name', WORDLESS)
def test_a_precision_is_written_in_words_that_are_read(name, precision):
    "Or left to another place, or refused."
    text = said(job_of(dp=8, precision=precision), name)
    assert (text is None) == (precision in WORDLESS[name])
    if text is None: return
    elsewhere = name == 'torchtitan' and f'precision={precision} (its converters)' in text
    assert elsewhere or (back(text, name).parallel.precision or 'bf16') == precision
    if name == 'accelerate': assert parse_yaml(text, 'x')['mixed_precision'] in ('bf16', 'fp8')


def test_accelerate_knows_few_precisions():
    with pytest.raises(ValueError, match="unknown mixed_precision 'nvfp4'; known: no, fp16, bf16"):
        as_job({'distributed_type': 'FSDP', 'mixed_precision': 'nvfp4'})


@pytest.mark.parametrize('words, context', [
    ('a2a', 'ulysses'), ('all_gather', 'allgather'), ('allgather', 'allgather'),
    ('a2a+p2p', 'ulysses+ring'), ('p2p p2p', 'ring'), ('', 'ring')])
def test_ways_that_keys_travel(words, context):
    flags = f'--context-parallel-size 2 --cp-comm-type {words}' if words else ''
    job = as_job(LLAMA.format(32, flags))
    assert job.parallel.context == context
    if context == 'ulysses+ring': return   # its flag asks for sizes, which nobody knows
    written = export(job, 'megatron')
    word = {'ulysses': 'a2a', 'allgather': 'all_gather'}.get(context)
    assert (f'--cp-comm-type {word}' in written) == (word is not None)
    assert as_job(written).parallel.context == context


def test_layers_whose_keys_travel_unlike():
    says = refused(as_job, LLAMA.format(32, '--cp-comm-type p2p a2a'))
    assert 'must be one way for all layers' in says


def test_slips_of_the_pen_are_told():
    flags = '--tensor-model-paralel-size 8 --sequence_parallel --save /tmp/x --shiny 1'
    told = dict(as_job(LLAMA.format(32, flags)).ignored)
    assert told['--tensor-model-paralel-size'].endswith(
        'did you mean --tensor-model-parallel-size?')
    assert told['--sequence_parallel'].endswith('did you mean --sequence-parallel?')
    assert told['--shiny'] == 'not known here' and told['--save'].startswith('changes neither')


@pytest.mark.parametrize('flags, why', [
    ('--num-experts 8 --expert-model-parallel-size 4 --overlap-moe-expert-parallel-comm',
     'in a pipeline it needs virtual_stages'),
    ('--recompute-granularity full --cuda-graph-impl local --cuda-graph-modules attn',
     'graphs of layers take none in full'), ('', None)])
def test_what_megatron_refuses_is_told(flags, why):
    told = [words for _, words in as_job(LLAMA.format(32, flags)).ignored if 'refuses' in words]
    assert told == ([] if why is None else [f'Megatron-LM refuses it: {why}; priced even so'])
    dense = as_job(LLAMA.format(32, '--overlap-moe-expert-parallel-comm'))
    assert 'does nothing' in dict(dense.ignored)['--overlap-moe-expert-parallel-comm']


@pytest.mark.parametrize('flags, recompute', [
    ('--checkpoint-activations --checkpoint-num-layers 1', 'full'),
    ('--activations-checkpoint-method uniform', 'full'),
    ('--activations-checkpoint-method block --activations-checkpoint-num-layers 2', 'full:2'),
    ('--recompute-method uniform', 'none')])
def test_recompute_as_it_was_called(flags, recompute):
    assert as_job(LLAMA.format(32, flags)).parallel.recompute == recompute


@pytest.mark.parametrize('switch, offload', [(True, 'activations:4'), (False, 'none')])
def test_a_recipe_switches_offloading(switch, offload):
    given = parse_yaml(BRIDGE, 'x')
    given['model'] |= {'cpu_offloading': switch, 'cpu_offloading_num_layers': 4}
    assert as_job(given, 32).parallel.offload == offload


def test_accelerate_leaves_all_to_another_file(tmp_path):
    "Which is read, with the GPUs of the first; where it is not there, an error."
    job, other = tmp_path / 'job.yaml', tmp_path / 'ds.json'
    job.write_text('distributed_type: DEEPSPEED\nnum_processes: 16\n'
                   'deepspeed_config: {deepspeed_config_file: ds.json}\n')
    assert "'ds.json' is not there" in refused(as_job, job)
    other.write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}, '
                     '"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}')
    found = as_job(job)
    p = found.parallel
    assert (p.zero_stage, p.dp, p.micro_batch, found.global_batch) == (3, 16, 2, 128)
    assert 'give the job as a path' in refused(as_job, parse_yaml(job.read_text(), 'x'))


def test_keys_of_deepspeed_in_a_file_of_accelerate_are_a_job_of_deepspeed(tmp_path):
    "As those of another file are: messages hide as its ZeRO stage has it, checkpoints are open."
    one, other = tmp_path / 'inline.yaml', tmp_path / 'beside.yaml'
    head = 'distributed_type: DEEPSPEED\nnum_processes: 16\nmixed_precision: bf16\n'
    one.write_text(head + 'deepspeed_config: {zero_stage: 2, gradient_accumulation_steps: 4}\n')
    other.write_text(head + 'deepspeed_config: {deepspeed_config_file: ds.json}\n')
    (tmp_path / 'ds.json').write_text(json.dumps({
        'zero_optimization': {'stage': 2}, 'bf16': {'enabled': True},
        'gradient_accumulation_steps': 4}))
    jobs = [as_job(file, global_batch=64) for file in (one, other)]
    assert {job.software.name for job in jobs} == {'DeepSpeed'}
    assert [job.parallel.recompute for job in jobs] == [None, None]
    first, second = (estimate('llama3.1_8B', job.parallel, 'H100-80GB', 64, software=job.software)
                     for job in jobs)
    assert first.stats['iteration_s'] == second.stats['iteration_s']
    mega = as_job({'distributed_type': 'MEGATRON_LM', 'num_processes': 8})
    assert mega.software.name == 'Megatron-Core'


def test_sections_of_other_kinds_of_accelerate_do_nothing():
    "As where a file was changed from one kind to another: it is told, and the rest holds."
    sections = {'deepspeed_config': {'zero_stage': 3, 'offload_optimizer_device': 'cpu'},
                'fsdp_config': {'fsdp_activation_checkpointing': True},
                'megatron_lm_config': {'megatron_lm_pp_degree': 2}}
    head = {'num_processes': 8, 'mixed_precision': 'bf16', 'distributed_type': 'MULTI_GPU'}
    job = as_job(head | sections)
    assert job == as_job(head)
    told = {key for key, why in job.ignored if why.startswith('does nothing without distributed')}
    assert {key.partition('.')[0] for key in told} == sections.keys()
    assert as_job(head | sections | {'distributed_type': 'MEGATRON_LM'}).parallel.pp == 2


@pytest.mark.parametrize('p, key', [
    (Parallel(tp=2, pp=2, dp=2, micro_batch=2), 'megatron_lm_config.megatron_lm_num_micro_batches'),
    (Parallel(dp=8, micro_batch=2, zero_stage=2), 'deepspeed_config.gradient_accumulation_steps')])
def test_accelerate_is_told_how_often_gradients_are_added_up(p, key):
    "Where its file says it: Megatron-LM has one micro-batch unless told, DeepSpeed one step."
    text = export(Job(p, as_model('llama3.1_8B'), 64, 8, 8192), 'accelerate')
    times = 64 // (p.dp * p.micro_batch)
    assert flat(parse_yaml(text, 'x'))[key] == times
    assert as_job(parse_yaml(text, 'x'), global_batch=64).parallel.micro_batch == 2


def test_sequences_that_deepspeed_shares_out_in_accelerate():
    "Heads are exchanged among so many GPUs, beside which copies are counted."
    given = {'distributed_type': 'DEEPSPEED', 'num_processes': 8, 'mixed_precision': 'bf16',
             'deepspeed_config': {'zero_stage': 3}, 'parallelism_config': {
                 'parallelism_config_dp_shard_size': 2, 'parallelism_config_sp_size': 4}}
    p = as_job(given).parallel
    assert (p.cp, p.context, p.dp, p.zero_stage) == (4, 'ulysses', 2, 3)


def test_configs_as_their_owners_wrote_them():
    "Without keys that the library has numbers for."
    gpt2 = dict(model_type='gpt2', n_ctx=1024, n_embd=768, n_head=12, n_layer=12,
                n_positions=1024, vocab_size=50257, activation_function='gelu_new')
    assert as_model(gpt2).parameters == 124_439_808
    falcon = dict(model_type='falcon', alibi=False, bias=False, hidden_size=4544,
                  multi_query=True, new_decoder_architecture=False, num_attention_heads=71,
                  num_hidden_layers=32, parallel_attn=True, vocab_size=65024)
    assert as_model(falcon).parameters == 6_921_720_704


@pytest.mark.parametrize('key, of_one', [
    ('use_parallel_residual', of('gpt_neox', 512, 2, 8, 2048, 1000, hidden_act='gelu')),
    ('parallel_attn', dict(model_type='falcon', alibi=False, bias=False, hidden_size=512,
                           num_attention_heads=8, num_hidden_layers=2, vocab_size=1000))])
def test_halves_side_by_side_are_read(key, of_one):
    "What files that leave it out have, too."
    for said, read in (({}, True), ({key: True}, True), ({key: False}, False)):
        assert as_model({**of_one, **said}).side_by_side == read
    if 'falcon' not in of_one.values(): return
    large = as_model({**of_one, 'new_decoder_architecture': True, 'num_kv_heads': 2})
    assert large.side_by_side and large.layer_norms == 2


@pytest.mark.parametrize('precision', ['bf16', 'fp8', 'fp8-block'])
@pytest.mark.parametrize('assumes', [
    {'fp8_parameters': True}, {'bf16_ends': 2}, {'flash_attention': False},
    {'capacity_factor': 1.5}, {'expert_imbalance': 1.2, 'fp8_dispatch': True}], ids=str)
def test_what_holds_beside_a_layout_is_written(precision, assumes):
    "As flags that are read again, or as a note; at every other door as a note."
    p = Parallel(dp=8, ep=8, zero_stage=1, precision=precision)
    m = NAMED['mixtral_8x7B']
    job = Job(p, m, 64, 8, m.seq_len, assumes=assumes)
    one = estimate(m, p, 'H100-80GB', 64, job.assumptions('calibrated', 'Megatron-Core'))
    text = export(one, 'megatron')
    again, low = as_job(text), precision != 'bf16'
    told = {name: x for name, x in assumes.items() if low or name == 'capacity_factor'
            or not name.startswith(('fp8', 'bf16'))}
    noted = {'expert_imbalance', 'fp8_dispatch'}
    assert (again.assumes or {}) == {name: x for name, x in told.items() if name not in noted}
    for name in noted & {*assumes}: assert f'# set elsewhere: {name}={assumes[name]}' in text
    assumed = again.assumptions('calibrated', 'Megatron-Core')
    two = estimate(again.model, again.parallel, 'H100-80GB', 64, assumed)
    assert one.stats['iteration_s'] == two.stats['iteration_s'] or noted & {*assumes}
    other = export(dataclasses.replace(job, parallel=Parallel(dp=8, zero_stage=1)), 'deepspeed')
    for name in assumes: assert (name in other) == (not name.startswith('fp8_par'))


def test_software_that_gathers_in_8_bits_is_written():
    "What a software chooses is a flag of another; whole copies take none."
    job = job_of('llama3.1_8B', dp=8, zero_stage=1, precision='fp8')
    gathers = dataclasses.replace(job, software='Megatron-Bridge')
    assert '--fp8-param-gather' in export(gathers, 'megatron')
    assert '--fp8-param-gather' not in export(job, 'megatron')
    whole = dataclasses.replace(gathers, parallel=dataclasses.replace(job.parallel, zero_stage=0))
    assert 'fp8_parameters=True with zero_stage=0 cannot be said' in refused(
        export, whole, 'megatron')


@pytest.mark.parametrize('name', [
    name for name, m in NAMED.items() if name != 'vit_era5' and not m.layers])
def test_models_as_flags(name):
    "Every model that fields describe, but one that is not causal, or has two shapes of biases."
    m = NAMED[name]
    job = Job(Parallel(tp=2), m, 16, 2, m.seq_len)
    text = export(job, 'megatron')
    assert meaning(as_job(text).model) == meaning(m)
    assert as_job(text).model.parameters == m.parameters


def test_experts_as_megatron_takes_them():
    "A bias of the router goes with sigmoids only; the products of experts are grouped."
    for name in ('deepseek_v3', 'mixtral_8x7B', 'llama3.1_8B'):
        m = NAMED[name]
        text = export(Job(Parallel(tp=2), m, 16, 2, m.seq_len), 'megatron')
        assert ('--moe-router-score-function sigmoid' in text) == m.router_bias
        assert ('--moe-router-enable-expert-bias' in text) == m.router_bias
        assert ('--moe-grouped-gemm' in text) == bool(m.experts)
        limit = '--moe-router-num-groups 8 --moe-router-group-topk 4'
        assert (limit in ' '.join(text.replace('\\', '').split())) == (name == 'deepseek_v3')
        assert as_job(text).model.router_groups == m.router_groups
        assert not [key for key, _ in as_job(text).ignored if key.startswith('--moe')]
    assert NAMED['deepseek_v3'].router_bias


@pytest.mark.parametrize('kind, changes, groups', [
    ('deepseek_v3', {}, (8, 4)), ('deepseek_v3', dict(n_group=1, topk_group=1), (None, None)),
    ('deepseek_v3', dict(topk_group=8), (None, None)),
    ('deepseek_v2', {}, (None, None)), ('deepseek_v2', dict(topk_method='greedy'), (None, None)),
    ('deepseek_v2', dict(topk_method='group_limited_greedy'), (8, 4))])
def test_groups_that_a_router_chooses(kind, changes, groups):
    "A limit to all groups is none, and DeepSeek-V2 has one where its file says how it chooses."
    file = dict(
        model_type=kind, hidden_size=256, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=512, vocab_size=1024, q_lora_rank=None, kv_lora_rank=64,
        qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32, n_routed_experts=64,
        num_experts_per_tok=4, n_shared_experts=1, moe_intermediate_size=64, n_group=8,
        first_k_dense_replace=0, moe_layer_freq=1,
        topk_group=4, max_position_embeddings=1024) | changes
    model = as_model(file)
    assert (model.router_groups, model.router_groups_per_token) == groups


@pytest.mark.parametrize('tp, flags, rows', [
    (1, '--vocab-size 50257', 50304), (2, '--vocab-size 50257', 50432),
    (8, '--vocab-size 128256', 129024), (8, '--vocab-size 129024', 129024),
    (8, '--vocab-size 128256 --make-vocab-size-divisible-by 32', 128256),
    (2, '--vocab-size 50257 --padded-vocab-size 50304', 50304)])
def test_megatron_fills_tables_of_words_up(tp, flags, rows):
    """As megatron/training/vocab_utils.py of Megatron-LM @ 2026-08-22 does: the next multiple of
    128 on each GPU, unless told otherwise. What is written comes back as it was."""
    job = as_job(f'{LAUNCH} --global-batch-size 64 --num-layers 2 --hidden-size 512 --bf16 '
                 '--seq-length 1024 --num-attention-heads 8 '
                 f'--tensor-model-parallel-size {tp} {flags}')
    assert job.model.vocab == rows
    assert as_job(export(job, 'megatron')).model == job.model


def test_a_vocabulary_that_megatron_fills_up_is_told():
    "Rows that no power of two from 8 on divides cannot stay as they are."
    model = dataclasses.replace(as_model('gpt3'), vocab=50257)
    text = export(estimate(model, Parallel(dp=8), 'H100-80GB', 8), 'megatron')
    assert 'vocab=50257 (the tokenizer: embedding tables are filled up)' in text
    assert '--make-vocab-size-divisible-by' not in text and as_job(text).model.vocab == 50304
    llama = export(estimate('llama3.1_8B', Parallel(tp=8), 'H100-80GB', 8), 'megatron')
    assert '--make-vocab-size-divisible-by 32' in llama and 'vocab=' not in llama


@pytest.mark.parametrize('flags, fusion, more', [
    ('', None, 0), ('--cross-entropy-loss-fusion', 'native', 4),
    ('--cross-entropy-loss-fusion --cross-entropy-fusion-impl te', 'te', 0),
    ('--cross-entropy-fusion-impl te', None, 0)])
def test_what_fuses_the_loss_decides_what_is_held_of_logits(flags, fusion, more):
    """Unfused, Megatron-LM holds 6 bytes of a logit at once: 2, and 4 of its softmax. Its compiled
    loss has logits in 32 bits besides; Transformer Engine's 2, and 4 of its gradient."""
    job = as_job(f'{LAUNCH} --global-batch-size 64 --num-layers 2 --hidden-size 512 --bf16 '
                 f'--seq-length 1024 --num-attention-heads 8 --vocab-size 51200 {flags}')
    idle = {key for key, why in job.ignored if 'does nothing' in why}
    assert idle == ({'--cross-entropy-fusion-impl'} if flags and not fusion else set())
    assert job.loss_fusion == fusion and as_job(export(job, 'megatron')).loss_fusion == fusion
    assert json.loads(export(job)).get('loss_fusion') == fusion
    held = [estimate(job.model, job.parallel, 'H100-80GB', 64, own.assumptions('calibrated'))
            for own in (job, dataclasses.replace(job, loss_fusion=None))]
    GB = held[0].stats['memory_GB'] - held[1].stats['memory_GB']
    assert GB == pytest.approx(more * 2 * 1024 * 51200 / 1e9, abs=1e-9)
    if fusion == 'native': assert 'native' in export(held[0])   # an estimate knows it by its bytes
    assert not fusion or f'loss_fusion={fusion}' in export(job, 'deepspeed')


@pytest.mark.parametrize('said, tp, more', [
    (None, 2, 0), (False, 2, 0), (True, 2, 1), (True, 1, 0)])
def test_a_loss_that_is_not_parallel_holds_the_logits_of_all_words(said, tp, more):
    "torchtitan's `disable_loss_parallel`, which its releases of 2026 no longer have."
    keys = {'training': {'seq_len': 8192, 'local_batch_size': 1}, 'parallelism': {
        'tensor_parallel_degree': tp, 'data_parallel_shard_degree': 4,
        'disable_loss_parallel': said}}
    job = as_job(keys)
    assert job.whole_logits == (said or None) and not [k for k, _ in job.ignored if 'loss' in k]
    ask = lambda own: estimate('llama3.1_8B', own.parallel, 'H100-80GB', own.global_batch,
                               own.assumptions('calibrated'))
    one, usual = ask(job), ask(dataclasses.replace(job, whole_logits=None))
    bytes_held = usual.assumptions.costs.logit_held
    assert one.stats['memory_GB'] - usual.stats['memory_GB'] == pytest.approx(
        more * bytes_held * 8192 * 128256 / tp / 1e9, abs=1e-9)
    assert (one.stats['iteration_s'] > usual.stats['iteration_s']) == bool(more)
    assert as_job(json.loads(export(one))).whole_logits == (said or None)
    assert ("whole_logits=True (the model's code)" in export(one, 'torchtitan')) == bool(more)


@pytest.mark.parametrize('said, stage, slower', [
    (None, 1, False), (True, 1, False), (False, 1, True), (False, 2, True), (False, 3, True),
    (False, 0, False)])
def test_gradients_that_are_not_scattered_are_summed_up_whole(said, stage, slower):
    "DeepSpeed's `reduce_scatter`, in each stage that shares something out."
    job = as_job({'train_micro_batch_size_per_gpu': 1, 'gradient_accumulation_steps': 1,
                  'bf16': {'enabled': True},
                  'zero_optimization': {'stage': stage, 'reduce_scatter': said}}, n_gpus=8)
    key = 'zero_optimization.reduce_scatter'
    why = 'does nothing without stage 1 or more' if (said, stage) == (False, 0) else None
    assert dict(job.ignored).get(key) == why and job.reduces_whole == (slower or None)
    ask = lambda own: estimate('llama3.1_8B', own.parallel, 'H100-80GB', 8,
                               own.assumptions('calibrated'))
    one, usual = ask(job), ask(dataclasses.replace(job, reduces_whole=None))
    assert (one.stats['iteration_s'] > usual.stats['iteration_s']) == slower
    assert as_job(json.loads(export(one))).reduces_whole == (slower or None)
    assert ('reduce_scatter": false' in export(one, 'deepspeed')) == slower
    assert as_job(json.loads(export(one, 'deepspeed'))).reduces_whole == (slower or None)
    if slower: assert 'reduces_whole=True cannot be said' in refused(export, one, 'accelerate')


def test_a_loss_that_nothing_known_fuses_is_refused():
    with pytest.raises(ValueError, match="unknown loss_fusion 'apex'; known: native, te"):
        Job(Parallel(), loss_fusion='apex')


@pytest.mark.parametrize('flags, rows', [
    ('--tokenizer-type GPT2BPETokenizer', 50432), ('--tokenizer-type TikTokenizer', 131072),
    ('--tokenizer-type GPTSentencePieceTokenizer --tokenizer-model x.model', None),
    ('--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Llama-3.1-8B', 128256),
    ('--tokenizer-type HuggingFaceTokenizer --tokenizer-model /data/Qwen3-4B', 152064),
    ('--tokenizer-type HuggingFaceTokenizer --tokenizer-model acme/unheard-of', None),
    ('--tokenizer-type Llama3Tokenizer --tokenizer-model meta-llama/Llama-3.1-405B', 128256),
    ('--tokenizer-type HuggingFaceTokenizer --tokenizer-model $WHERE', None),
    ('--tokenizer-type GPT2BPETokenizer --vocab-size 32000', 32000)])
def test_a_vocabulary_that_is_not_said_is_that_of_its_tokenizer(flags, rows):
    "Filled up for two GPUs; where the tokenizer is not known no vocabulary is counted."
    job = as_job(f'{FLAGS} --num-layers 2 --hidden-size 512 --bf16 --seq-length 1024 '
                 f'--num-attention-heads 8 {flags}')
    assert job.model.vocab == rows
    said = dict(job.ignored).get('--vocab-size', '')
    told = '' if '--vocab-size' in flags else 'by its tokenizer' if rows else 'no vocabulary'
    assert told in said and bool(said) == bool(told)


def test_megatron_limits_groups_by_both_flags():
    flags = (LAUNCH + '--global-batch-size 64 --num-layers 2 --hidden-size 512 --seq-length 1024 '
             '--num-attention-heads 8 --num-experts 16 --moe-router-topk 4 '
             '--moe-router-num-groups 8')
    assert as_job(flags).model.router_groups is None
    limited = as_job(flags + ' --moe-router-group-topk 2').model
    assert (limited.router_groups, limited.router_groups_per_token) == (8, 2)


def test_rows_of_a_search():
    found = search('gpt3', 512, 'H200', 512, k=3, assumptions='corrected')
    for _, row in found.iterrows():
        text = export(row, 'megatron', 'gpt3', 512)
        job = as_job(text)
        assert (job.n_gpus, job.global_batch, job.model.depth) == (512, 512, 96)
        assert job.parallel.tp == row.tp and '# set elsewhere: nvlink_tp=' in text
    one = estimate('llama3.1_8B', Parallel(tp=2, dp=4, zero_stage=3), 'H100-80GB', 8,
                   assumptions='corrected')
    job = back(export(one, 'torchtitan'), 'torchtitan')
    assert (job.parallel.tp, job.parallel.zero_stage, job.global_batch) == (2, 3, 8)
    assert as_job(json.loads(export(one))).parallel == one.parallel


LAUNCH = 'torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --micro-batch-size 2 '
FLAGS = LAUNCH + '--global-batch-size 64 --tensor-model-parallel-size 2 '
SAYS = [
    ('--sequence-parallel', dict(sequence_sharded=True)), ('', dict(sequence_sharded=False)),
    ('--use-distributed-optimizer', dict(zero_stage=1)), ('', dict(zero_stage=0)),
    ('--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params',
     dict(zero_stage=3)), ('--use-torch-fsdp2', dict(zero_stage=3)),
    ('--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward',
     dict(zero_stage=3, reshard_after_forward=False, dp_overlap=True)),
    ('--torch-fsdp2-no-reshard-after-forward', dict(zero_stage=0, reshard_after_forward=True)),
    ('--zero-stage 3', dict(zero_stage=3, reduce_each=None)),
    ('--zero-stage 1', dict(zero_stage=1, reduce_each=None)),
    ('--recompute-granularity full --recompute-method uniform --recompute-num-layers 1',
     dict(recompute='full')), ('--recompute-granularity=selective', dict(recompute='selective')),
    ('--recompute-granularity selective --recompute-modules mlp', dict(recompute='mlp')),
    ('--context-parallel-size 2 --cp-comm-type p2p', dict(cp=2, context='ring', dp=4)),
    ('--context-parallel-size 2 --cp-comm-type all_gather', dict(context='allgather')),
    ('--num-virtual-stages-per-pipeline-rank 4 --pipeline-model-parallel-size 2',
     dict(virtual_stages=4, pp=2, dp=4)), ('--tp-comm-overlap', dict(tp_overlap=True)),
    ('--overlap-grad-reduce', dict(dp_overlap=True))]


@pytest.mark.parametrize('flags, fields', SAYS)
def test_flags_of_megatron(flags, fields):
    p = as_job(FLAGS + flags).parallel
    for name, x in fields.items(): assert getattr(p, name) == x


@pytest.mark.parametrize('flags, fused', [
    ('--transformer-impl local', False), ('--transformer-impl transformer_engine', None),
    ('--transformer-impl local --use-flash-attn', True), ('--attention-backend unfused', False)])
def test_whose_modules_keep_the_scores_of_attention(flags, fused):
    assert (as_job(FLAGS + flags).assumes or {}).get('flash_attention') is fused


@pytest.mark.parametrize('e, width', [(1024, 2688), (1536, 4096), (4096, 10880), (8192, 21824)])
def test_the_usual_width_of_a_gated_mlp(e, width):
    "Megatron-LM: two thirds of 4 e, down to a multiple of 64; of any other MLP 4 e."
    sizes = (f'--num-layers 2 --hidden-size {e} --num-attention-heads 8 --seq-length 1024 '
             '--max-position-embeddings 1024 ')
    for flags, expected in (('--swiglu', width), ('', 4 * e), ('--squared-relu', 4 * e),
                            ('--swiglu --ffn-hidden-size 1000', 1000)):
        assert as_job(FLAGS + sizes + flags).model.mlp_dim == expected
    assert width % 64 == 0 and width <= 8 * e / 3 < width + 64


@pytest.mark.parametrize('stage', [0, 1, 3])
@pytest.mark.parametrize('overlap', [True, False])
def test_weights_are_gathered_behind_something_where_they_are_shared_out(stage, overlap):
    "Megatron-LM refuses --overlap-param-gather without a distributed optimizer."
    p = Parallel(tp=2, dp=4, zero_stage=stage, dp_overlap=overlap)
    job = Job(p, NAMED['llama3.1_8B'], 16, 8, 8192)
    text = export(job, 'megatron')
    assert ('--overlap-param-gather' in text) == (overlap and stage > 0)
    assert ('--overlap-grad-reduce' in text) == overlap
    again = as_job(text)
    assert (again.parallel.zero_stage, again.parallel.dp_overlap) == (stage, overlap)
    assert not [key for key, _ in again.ignored if 'overlap' in key]


@pytest.mark.parametrize('said, every', [
    ('4', 4), ('[1,1,1,0]*2', 4), ('([1,0]*4)', 2), ('[0]*8', 1), ('[1]*8', None)])
def test_which_layers_attend_to_all(said, every):
    sizes = '--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 256 '
    flags = f'{FLAGS}{sizes}--window-size 128,0 '
    m = as_job(f'{flags}--window-attn-skip-freq "{said}" ').model
    assert (m.window, m.full_attention_every) == (128, every)
    says = 'no rule of a Model says which layers'
    for other in ('[0,1]*4', '[1,1,0]+[1]*5+[0]'):
        assert says in refused(as_job, f'{flags}--window-attn-skip-freq "{other}" ')


def test_what_is_ignored_says_why():
    job = as_job(FLAGS + '--lr 1e-4 --expert-model-parallel-size 8 --cpu-offloading-weights '
                 '--bf16 --shiny-new-flag --recompute-granularity selective --recompute-modules '
                 'core_attn moe_act --num-query-groups 4')
    assert dict(job.ignored) == {
        '--lr': 'changes neither time nor memory here',
        '--cpu-offloading-weights': 'not modelled yet: this of offloading',
        '--shiny-new-flag': 'not known here',
        '--hidden-dropout': 'absent: Megatron-LM then drops 0.1; priced like the runs behind its '
                            'prices'}
    assert (job.parallel.ep, job.parallel.precision) == (8, 'bf16')
    assert job.parallel.recompute == 'core_attn+moe_act'


def test_precisions_of_megatron():
    for flags, precision in (('', None), ('--bf16 --fp8-format hybrid', 'fp8'),
                             ('--fp8-format e4m3 --fp8-recipe blockwise', 'fp8-block'),
                             ('--fp8-format e4m3 --fp8-recipe mxfp8', 'mxfp8'),
                             ('--fp4-format e2m1', 'nvfp4')):
        job = as_job(FLAGS + flags)
        assert job.parallel.precision == precision
        assert as_job(export(job, 'megatron')).parallel.precision in (precision, 'bf16')
    assert '--fp8-format' in refused(as_job, FLAGS + '--fp8-format hybrid --fp4-format e2m1')


def test_some_layers_computed_again():
    job = as_job(FLAGS + '--recompute-granularity full --recompute-method block '
                 '--recompute-num-layers 4')
    assert job.parallel.recompute == 'full:4'
    assert as_job(export(job, 'megatron')).parallel.recompute == 'full:4'
    uniform = FLAGS + '--recompute-granularity full --recompute-method uniform '
    for n, why in ((1, None), (5, 'not modelled yet: 5 layers that keep one input')):
        job = as_job(uniform + f'--recompute-num-layers {n}')
        assert job.parallel.recompute == 'full'
        assert dict(job.ignored).get('--recompute-num-layers', 'None').startswith(str(why))
    idle = as_job(FLAGS + '--recompute-activations --recompute-num-layers 4')
    assert 'does nothing without' in dict(idle.ignored)['--recompute-num-layers']


WRONG = [
    (FLAGS + '--bf16 --fp16', '--fp16', '--bf16'),
    (FLAGS + '--tensor-model-parallel-size 4', 'is given twice', "'2' and '4'"),
    (FLAGS + '--pipeline-model-parallel-size 3', '--nnodes * --nproc_per_node=16', '-size=3'),
    (FLAGS + '--use-megatron-fsdp --use-torch-fsdp2', '--use-megatron-fsdp', '--use-torch-fsdp2'),
    (FLAGS.replace('64', '60'), '--global-batch-size=60', '--micro-batch-size=2'),
    (FLAGS + '--num-layers 8', '--num-layers is given', 'seq_len is not'),
    (FLAGS + '--num-layers-per-virtual-pipeline-stage 3', '--num-layers', '=3'),
    (FLAGS + '--moe-latent-size 64', '--moe-latent-size', 'no field of a Model'),
    (LLAMA.format(4, '--num-experts 8 --moe-layer-freq "([0]*4)"'), '--moe-layer-freq',
     'which layers have experts'),
    (FLAGS + "--moe-expert-capacity-factor ''", '--moe-expert-capacity-factor', 'a number'),
    ({'num_layers': 4, 'hidden_size': 64, 'cp_comm_type': []}, '--cp-comm-type=[]', 'one way'),
    ({'num_layers': 4, 'hidden_size': 64, 'pipeline_model_parallel_layout': []},
     '--pipeline-model-parallel-layout=[]', 'no part'),
    ({'parallelism': {'module_fqns_per_model_part': []}}, 'per_model_part must name', 'all layers'),
    (FLAGS + '--tp-comm-overlap no', '--tp-comm-overlap', 'true or false'),
    (FLAGS + '--context-parallel-size two', "--context-parallel-size='two'", 'whole number'),
    (FLAGS + '--context-parallel-size $X', '--context-parallel-size', 'does not say'),
    ('echo --hello', 'no commands', 'Megatron-LM'), (FLAGS + '"', 'not closed', ''),
    ({'train_batch_size': 10, 'train_micro_batch_size_per_gpu': 4,
      'gradient_accumulation_steps': 1}, 'train_batch_size=10', '_per_gpu=4'),
    ({'bf16': {'enabled': True}, 'fp16': {'enabled': True}, 'zero_optimization': {}},
     'fp16.enabled', 'bf16.enabled'),
    ({'zero_optimization': {'stage': 4}}, 'zero_stage=4', ''),
    ({'distributed_type': 'FSDP', 'num_processes': 8, 'parallelism_config': {
        'parallelism_config_dp_shard_size': 3}}, 'num_processes=8', 'dp_shard_size=3'),
    ({'distributed_type': 'TPU'}, "'TPU'", ''), ({'distributed_type': 'NO', 'num_processes': 2},
     'distributed_type', 'num_processes=2'),
    ({'training': {'num_tokens_per_microbatch_per_dp_rank': 100, 'max_context_length': 64}},
     'per_dp_rank=100', 'max_context_length=64'),
    ({'training': {'local_batch_size': 3, 'global_batch_size': 8},
      'parallelism': {'data_parallel_shard_degree': 2}}, 'global_batch_size=8', 'local_batch_size'),
    ({'parallelism': {'pipeline_parallel_schedule': 'LoopedBFS'}}, "'LoopedBFS'", ''),
    ({'tp': 2}, 'has no keys of', ''),
    ({'model_type': 'qwen3', 'hidden_size': 64, 'num_hidden_layers': 2, 'vocab_size': 10},
     'is a config of Hugging Face', '--model'),
    ({'format': 'x'}, "format='x'", 'transformer_perf.job'),
    (3, 'job must be a path', '')]


@pytest.mark.parametrize('job, one, other', WRONG, ids=range(len(WRONG)))
def test_contradictions_name_both(job, one, other):
    message = refused(as_job, job)
    assert one in message and other in message, message


def test_deepspeed_with_auto():
    "The product of the batch gives the copies; what is auto is left open."
    given = {'train_batch_size': 256, 'train_micro_batch_size_per_gpu': 2, 'optimizer': {
        'type': 'AdamW', 'params': {'lr': 'auto'}}, 'gradient_accumulation_steps': 4,
        'zero_optimization': {'stage': 3, 'overlap_comm': True, 'offload_param': {'device': 'cpu'},
                              'reduce_bucket_size': 'auto'}, 'fp16': {'enabled': 'auto'}}
    job = as_job(given)
    assert (job.n_gpus, job.parallel.dp, job.parallel.zero_stage) == (32, 32, 3)
    assert job.parallel.offload == 'weights'
    assert "'auto'" in dict(job.ignored)['fp16.enabled']
    auto = given | {'train_batch_size': 'auto', 'train_micro_batch_size_per_gpu': 'auto'}
    job = as_job(auto, n_gpus=16)
    assert (job.n_gpus, job.parallel.dp, job.global_batch) == (16, 16, None)


def test_files_of_accelerate():
    "As `accelerate config` writes them, in its first and its second version of FSDP."
    given = {'compute_environment': 'LOCAL_MACHINE', 'distributed_type': 'FSDP', 'num_machines': 2,
             'num_processes': 16, 'mixed_precision': 'bf16', 'downcast_bf16': False,
             'fsdp_config': {'fsdp_sharding_strategy': 'SHARD_GRAD_OP',
                             'fsdp_offload_params': False}}
    job = as_job(given)
    assert (job.n_gpus, job.parallel.dp, job.parallel.zero_stage) == (16, 16, 3)
    assert job.parallel.reshard_after_forward is False   # as PyTorch has that strategy
    assert 'fsdp_config.fsdp_offload_params' not in dict(job.ignored)
    two = given | {'fsdp_config': {'fsdp_version': 2, 'fsdp_reshard_after_forward': True,
                                   'fsdp_activation_checkpointing': True},
                   'parallelism_config': {'parallelism_config_dp_shard_size': 4,
                                          'parallelism_config_tp_size': 2,
                                          'parallelism_config_cp_size': 2}}
    p = as_job(two).parallel
    assert (p.tp, p.cp, p.dp, p.zero_stage, p.recompute) == (2, 2, 4, 3, 'full')
    hybrid = given | {'fsdp_config': {'fsdp_sharding_strategy': 'HYBRID_SHARD'}}
    p = as_job(hybrid).parallel   # shared out inside a machine
    assert (p.dp, p.dp_replicate, p.zero_stage) == (16, 2, 3)
    mega = {'distributed_type': 'MEGATRON_LM', 'num_processes': 16, 'megatron_lm_config': {
        'megatron_lm_tp_degree': 2, 'megatron_lm_pp_degree': 4,
        'megatron_lm_use_distributed_optimizer': True}}
    p = as_job(mega).parallel
    assert (p.tp, p.pp, p.dp, p.zero_stage, p.sequence_sharded) == (2, 4, 2, 1, False)


def fsdp_job(**said):
    "Of 16 GPUs on two machines, by Accelerate."
    return as_job({'distributed_type': 'FSDP', 'num_processes': 16, 'num_machines': 2,
                   'fsdp_config': {f'fsdp_{name}': x for name, x in said.items()}})


@pytest.mark.parametrize('said, replicas, again, unread', [
    (dict(version=2, reshard_after_forward='no'), 1, False, ''),
    (dict(version=2, reshard_after_forward='On'), 1, True, ''),
    (dict(version=2, reshard_after_forward=0), 1, False, ''),
    (dict(version=2, sharding_strategy='HYBRID_SHARD'), 1, True, 'sharding_strategy'),
    (dict(version=2, sharding_strategy='no_shard', reshard_after_forward=False), 1, False,
     'sharding_strategy'),
    (dict(sharding_strategy='hybrid_shard'), 2, True, ''),
    (dict(reshard_after_forward='HYBRID_SHARD_ZERO2'), 2, False, ''),
    (dict(sharding_strategy='SHARD_GRAD_OP', reshard_after_forward=True), 1, False,
     'reshard_after_forward'),
    (dict(reshard_after_forward=False), 1, True, 'reshard_after_forward')], ids=str)
def test_what_each_version_of_fsdp_reads(said, replicas, again, unread):
    "As its plugin has it (utils/dataclasses.py, __post_init__)."
    job = fsdp_job(**said)
    p, version = job.parallel, said.get('version', 1)
    assert (p.zero_stage, p.dp_replicate, p.reshard_after_forward) == (3, replicas, again)
    found = [(key, why) for key, why in job.ignored if 'does not read' in why]
    assert [key for key, _ in found] == ([f'fsdp_config.fsdp_{unread}'] if unread else [])
    assert all(f'FSDP {version} does not read it' in why for _, why in found)


@pytest.mark.parametrize('said', [
    dict(version=2, reshard_after_forward='maybe'), dict(reshard_after_forward='maybe'),
    dict(version=2, reshard_after_forward='FULL_SHARD'), dict(version=2, sharding_strategy='maybe'),
    dict(sharding_strategy='maybe'), dict(version=3)], ids=str)
def test_what_no_version_of_fsdp_reads_is_refused(said):
    message = refused(fsdp_job, **said)
    name, value = list(said.items())[-1]
    assert f'fsdp_{name}' in message and str(value) in message


def test_recipes_of_old_and_new(tmp_path):
    "The TOML of torchtitan's first years and the fields of today."
    old = tmp_path / 'llama3_70b.toml'
    old.write_text('[training]\nlocal_batch_size = 2\nseq_len = 8192\nsteps = 10\n'
                   '[parallelism]\ndata_parallel_shard_degree = 32\ntensor_parallel_degree = 8\n'
                   '[activation_checkpoint]\nmode = "full"\n')
    new = {'training.num_tokens_per_microbatch_per_dp_rank': 16384,
           'training.max_context_length': 8192, 'parallelism.data_parallel_shard_degree': 32,
           'parallelism.tensor_parallel_degree': 8, 'activation_checkpoint': 'FullAC.Config'}
    one, two = as_job(old), as_job(new)
    assert (one.software.name, two.software.name) == ('torchtitan 0.2', 'torchtitan 0.3')
    same = dataclasses.replace(one.parallel, cuda_graphs='iteration')   # which no TOML has
    assert dataclasses.replace(one, parallel=same, software=two.software) == two
    assert (one.n_gpus, one.global_batch, one.parallel.zero_stage) == (256, 64, 3)
    interleaved = new | {'parallelism.pipeline_parallel_degree': 4,
                         'parallelism.pipeline_parallel_schedule': 'interleaved1f1b'}
    p = as_job(interleaved).parallel
    assert (p.virtual_stages, p.zero_stage, p.micro_batch) == (2, 2, 1)


@pytest.mark.parametrize('name, more, model', [
    ('swiglu', {}, ('silu', True)), ('squaredrelu', {}, ('squared_relu', False)),
    ('gelu', {}, ('gelu', False)), ('gelu', {'gated_linear_unit': True}, ('gelu', True))])
def test_words_of_core_in_a_yaml_of_arguments(name, more, model):
    "Its activation and its groups of heads hold, whatever flags stand beside (yaml_arguments.py)."
    core = {'num_layers': 24, 'hidden_size': 1024, 'num_attention_heads': 16,
            'gated_linear_unit': False, 'activation_func': name}
    beside = {'swiglu': True, 'squared_relu': False, 'group_query_attention': False, 'bf16': True,
              'seq_length': 4096}
    for groups in (None, 4):
        m = as_job({'language_model': core | {'num_query_groups': groups} | more} | beside).model
        assert (m.activation, m.gated_mlp) == model
        assert m.kv_heads == groups
    refused(as_job, {'language_model': core | {
        'activation_func': 'squaredrelu', 'gated_linear_unit': True}} | beside)
    flags = {'num-layers': 24, 'hidden-size': 1024, 'num-attention-heads': 16, 'seq-length': 64}
    assert as_job(flags | {'num-query-groups': None}).model.kv_heads is None


@pytest.mark.parametrize('keys, precision', [
    ({'--fp8-format': 'hybrid'}, 'fp8'), ({'--fp8': False}, 'bf16'), ({'--fp8': 'none'}, 'bf16'),
    ({'--fp8-hybrid': True}, 'fp8'), ({'--fp8-e4m3': True}, 'fp8'), ({'--fp4': 'e2m1'}, 'nvfp4')])
def test_words_for_eight_bits(keys, precision):
    "As flags of today and of 2023 have them; what is off is off, and another word is none."
    assert as_job(keys | {'--bf16': True, '--seq-length': 64}).parallel.precision == precision
    assert "'e5m2'" in refused(as_job, {'--bf16': True, '--seq-length': 64, '--fp8-format': 'e5m2'})


@pytest.mark.parametrize('libyaml', [True, False])
def test_yaml_of_arguments(tmp_path, monkeypatch, libyaml):
    "Flat or in sections, with dashes or without; references to other parts are not followed."
    if not libyaml: monkeypatch.delattr('yaml.CSafeLoader')
    file = tmp_path / 'model_config.yaml'
    file.write_text('ENV_VARS: {A: 1}\nMODEL_ARGS:\n  --num-layers: 12\n  --hidden-size: 512\n'
                    '  --num-attention-heads: 8\n  --seq-length: 1024\n  --swiglu: true\n'
                    '  --tensor-model-parallel-size: 2\n  --bf16: true\n')
    job = as_job(file)
    assert (job.model.depth, job.model.gated_mlp, job.parallel.tp) == (12, True, 2)
    nested = {'language_model': {'num_layers': 12, 'hidden_size': 512, 'num_attention_heads': 8,
              'num_query_groups': 4}, 'seq_length': 1024, 'tensor_model_parallel_size': 2}
    assert as_job(nested).model.kv_heads == 4
    for text, why in [('a: &x [1]\nb: *x', 'refers to another part'), ('a: 1\na: 2', 'twice'),
                      ('- 1', 'must hold keys and values'), ('{' * 5000, 'not valid YAML'),
                      ('!!python/object/apply:os.system [ls]', 'not valid YAML'),
                      *((f'a: !!{x}', 'not valid') for x in ('timestamp x', 'bool x', "int ''")),
                      ('a: {b: 1, b: 2}', "'b' stands there twice"), ('1: 1\n0x1: 1', 'twice'),
                      ('? [1]\n: 2', "unhashable type: 'list'"), ('<<: {a: 1}', 'not valid')]:
        file.write_text(text)
        assert why in refused(as_job, file)


def test_nothing_in_a_script_is_run(tmp_path):
    there = tmp_path / 'there'
    script = f'X=$(touch {there})\n`touch {there}`\ntouch {there}\n{FLAGS} --lr $(touch {there})'
    assert as_job(script).parallel.tp == 2 and not there.exists()


TRAIN = 'python t.py --micro-batch-size 2 --tensor-model-parallel-size'
CONDITIONS = f"""
D=fp8; A=(--lr 1); T=2
if [[ $D == bf16 ]]; then T=1; else T=4; fi
if [ 8 -gt 4 ]
then
  if [ -n "$D" ]; then A+=(--bf16); fi
else
  {TRAIN} 2
fi
{TRAIN} $T ${{A[@]}}"""
SCRIPTS = [   # each with four GPUs for tensors
    CONDITIONS,
    'A=(--tensor-model-parallel-size 4)\nA+=(--micro-batch-size 2)\npython t.py ${A[@]}',
    'T=4\nA="--tensor-model-parallel-size $T \\\n --micro-batch-size 2"\npython t.py $A',
    f"bash -c '{TRAIN} 4'", f'N=2; T=$((N * 2))\n{TRAIN}=$T | tee x',
    f"cat <<EOF > hosts\nit's here\nEOF\n{TRAIN} 4 > log 2>&1 &",
    f'if [ "$1" = big ]; then\n L=4\nelse\n L=4\nfi\n{TRAIN} ${{TP:-4}} --lr $L',
    f'T=${{T:-"4"}}\n{TRAIN} $T', f'{TRAIN} "${{T:-"4"}}"', f': ${{T:=4}}\n{TRAIN} $T',
    f': "${{T:="4"}}"; {TRAIN} ${{T}}', f'{TRAIN} ${{A:-${{B:-4}}}}',
    f'{TRAIN} ${{1:-4}}', f'{TRAIN} ${{10:-4}}',
    f'export T=4 U=8\n{TRAIN} $T', f'U=8 T=4\nA=1 {TRAIN} $T', f"U='$T'; T=4\n{TRAIN} $T --lr $U",
    f'A=8B\ncase $A in\n "7B") T=1 ;;\n 8B|9B) T=4; U=1 ;;\n *) T=2 ;;\nesac\n{TRAIN} $T',
    f'case "$1" in\n x) T=4 ;;\n *) T=4 ;;\nesac\n{TRAIN} $T',
    f'T=4; [ $T = 1 ] && T=2\n[[ $T == 4 ]] || T=3\n[ $T = 5 ] && {{ T=6; T=7; }}\n{TRAIN} $T',
    f'T=4; A=1\nif [ $T -eq 4 ] && [ $A = 2 ]; then T=8; fi\n{TRAIN} $T',
    f'if [ -z "$T" ]; then T=4; fi\n{TRAIN} $T', f'[ -z "$T" ] && T=4; {TRAIN} $T',
    f'if [ $X = 1 ]; then T=4; elif [ $X = 2 ]; then T=4; else T=4; fi\n{TRAIN} $T',
    f'T=4\nwhile [[ $# -gt 0 ]]; do case $1 in --tp) T=$2; shift;; esac; done\n{TRAIN} $T',
    f'f() {{\n local T=4\n {TRAIN} $T\n}}\nfunction usage {{\n echo "f"\n}}\nf',
    f'if [ $X = 1 ]; then\n {TRAIN} 4\nelse\n srun {TRAIN} 4\nfi',
    f'T=4 # it is "4"\n(cd x; {TRAIN} $T) 2>&1 >"log $T" |& tee x',
    f'A=(--tp x)\nA+=" --y"; A=("${{A[@]}}" # not "y\n 4)\n{TRAIN} $((8 / 2)) ${{A[@]}}']


@pytest.mark.parametrize('script', SCRIPTS, ids=range(len(SCRIPTS)))
def test_scripts(script): assert as_job(script + '\n').parallel.tp == 4


NEEDS = '--tensor-model-parallel-size needs '
UNKNOWN = [   # what is told of it
    (f'\n{TRAIN} \\\n $T', f"line 3: {NEEDS}'$T', which the script does not say"),
    (f'T=1\nT=$(nproc)\n{TRAIN} $T', f"line 2: {NEEDS}'$(nproc)'"),
    (f'A=(\n 1\n $T)\n{TRAIN} ${{A[1]}}', f"line 3: {NEEDS}'$T'"),
    (f'T=2\nif [ $X = 1 ]; then\n T=4\nfi\n{TRAIN} $T', f"line 2: {NEEDS}'4 or 2 (if [ $X = 1 ]"),
    (f'T=2\ncase $1 in a) T=4;; esac\n{TRAIN} $T', f"line 2: {NEEDS}'4 or 2 (case $1 in"),
    (f'for T in 1 2; do\n{TRAIN} $T\ndone', f"line 1: {NEEDS}'for T in 1 2'"),
    (f'T=2\nwhile read x; do T=$((T * 2)); done\n{TRAIN} $T', f"line 2: {NEEDS}'4 or 2 (while"),
    (f'T=2\nlet T=T*2\n{TRAIN} $T', f"line 2: {NEEDS}'let T=T*2'"),
    (f'T=2\n(( T += 2 ))\n{TRAIN} $T', f"line 2: {NEEDS}'(( T += 2 ))'"),
    (f'T=2\nread -r T\n{TRAIN} $T', f"line 2: {NEEDS}'read -r T'"),
    (f'T=(1 2)\nT[0]=8\n{TRAIN} $T', f"line 2: {NEEDS}'T[0]=8'"),
    (f'select T in 1 2; do\n{TRAIN} $T\ndone', f"line 1: {NEEDS}'for T in 1 2'"),
    (f'A=tp-4\n{TRAIN} ${{A##*-}}', f"line 2: {NEEDS}'${{A##*-}}'"),
    (f'[ $X = 1 ] && T=4\n{TRAIN} $T', f"line 1: {NEEDS}'nothing or 4"),
    ('A=1\nB="x', 'line 2: a quote or bracket is not closed'),
    ('A=1\n\nB=(x', 'line 3: a quote or bracket is not closed'),
    (f'run() {{\nT=${{1:-2}}\n{TRAIN} $T\n}}\nrun 8', "line 5: what a function is called with"),
    (f'{TRAIN} 4\n{TRAIN} 2', '2 commands here have flags of Megatron-LM, not one: lines 1, 2'),
    (f'cat > x.sh <<EOF\nsrun {TRAIN} 4\nEOF\nsbatch x.sh', 'line 2 is in none that is read'),
    ('if [ x ]; then ' * 60 + TRAIN, 'nested too deep')]


@pytest.mark.parametrize('script, says', UNKNOWN, ids=range(len(UNKNOWN)))
def test_what_is_not_known_has_a_line(script, says): assert says in refused(as_job, script + '\n')


@pytest.mark.parametrize('flag', [
    '--train-iters', '--train-samples', '--ckpt-format', '--max-position-embeddings'])
def test_what_is_not_known_and_not_needed_is_told(flag):
    "A script was refused for the length of its training; what a vocabulary needs is told, too."
    read = as_job(f'{TRAIN} 4 {flag} $((N / 2))\n')
    assert read.parallel.tp == 4
    assert (flag, 'not used: $((N / 2)), which the script does not say') in read.ignored
    assert as_job(f'{TRAIN} 4\n') == dataclasses.replace(
        read, ignored=tuple(pair for pair in read.ignored if pair[0] != flag))


@pytest.mark.parametrize('others, told', [
    ([], None), ([1], 'line 2'), ([1, 2], 'lines 2, 3'), ([1] * 5, 'lines 2, 3, 4, 5, ...')])
def test_a_command_that_is_not_read_is_told(others, told, tmp_path):
    "Of several commands that with the most flags is read; it once was so without a word."
    script = tmp_path / 'train.sh'
    lines = [f'{TRAIN} {8 * n}' for n in others]
    script.write_text('\n'.join(['set -e', *lines, f'{TRAIN} 2 --recompute-activations', 'wait\n']))
    job = as_job(script)
    assert (job.parallel.tp, job.parallel.recompute) == (2, 'selective')
    why = f'not read: the command of line {len(lines) + 2} has more flags of Megatron-LM'
    found = [pair for pair in job.ignored if 'not read' in pair[1]]
    assert found == ([(told, why)] if told else [])



def test_a_branch_is_told_only_where_flags_differ():
    "Both branches by their flags and the line that decides; other values are no matter."
    often = ('if [ $X = 1 ]; then\n A=(--bf16 {})\n L=1; P=a\nelse\n A=(--bf16)\n L=2; P=b\nfi\n'
             + TRAIN + ' 4 ${{A[@]}} --lr $L --save $P\n')
    job = as_job(often.format('--sequence-parallel'))
    assert job.parallel.precision == 'bf16' and not job.parallel.sequence_sharded
    assert [key for key, _ in job.ignored] == [
        '--lr', '--save', '--hidden-dropout',
        'line 1: --sequence-parallel or nothing (if [ $X = 1 ]; then)']
    assert [key for key, _ in as_job(often.format('')).ignored] == [
        '--lr', '--save', '--hidden-dropout']


def test_slurm_sets_what_its_head_says():
    head = '#SBATCH --nodes=4\n#SBATCH --ntasks-per-node 8\n'
    for nodes in ('$SLURM_NNODES', '${SLURM_NNODES:-1}', '${SLURM_JOB_NUM_NODES}'):
        script = f'srun torchrun --nnodes {nodes} --nproc_per_node 8 {TRAIN.split(" ", 1)[1]} 4\n'
        assert as_job(head + script).n_gpus == 32
    assert as_job(head + f'srun {TRAIN} 4\n').n_gpus == 32


def test_steps_tell_samples_at_once():
    "Of a batch and how often a part of it is added up; DeepSpeed works a batch alone at once."
    given = {'train_batch_size': 64, 'gradient_accumulation_steps': 4, 'bf16': {'enabled': True}}
    assert as_job(given, 8).parallel.micro_batch == 2
    why = dict(as_job(given).ignored)['gradient_accumulation_steps']
    assert why == 'tells samples at once only beside the batch and the GPUs'
    assert as_job(given | {'train_micro_batch_size_per_gpu': 4}, 4).parallel.micro_batch == 4
    assert 'must be divisible by 4 steps of 2 copies' in refused(
        as_job, given | {'train_batch_size': 60}, 2)
    del given['gradient_accumulation_steps']
    assert as_job(given, 8).parallel.micro_batch == 8 and len(as_job(given).ignored) == 1


@pytest.mark.parametrize('head, each, gpus', [
    ('--gpus-per-node=8', '$SLURM_GPUS_ON_NODE', 32), ('--gres=gpu:8', '$SLURM_GPUS_ON_NODE', 32),
    ('--gres=gpu:h100:8', '$SLURM_GPUS_ON_NODE', 32), ('--gpus-per-node=h100:8', 'gpu', 32),
    ('--gres=gpu:8', '$(nvidia-smi -L | wc -l)', 32), ('--exclusive', '$UNKNOWN', None),
    ('--exclusive', '8', 32)])
def test_one_task_of_slurm_starts_a_process_for_each_gpu(head, each, gpus):
    head = f'#SBATCH -N 4\n#SBATCH --ntasks-per-node=1\n#SBATCH {head}\n'
    flags = TRAIN.split(' ', 1)[1]
    script = f'srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node={each} {flags} 4\n'
    assert as_job(head + script).n_gpus == gpus


def test_branches_that_start_other_numbers_of_gpus_leave_them_open():
    both = ('if [ $X = 1 ]; then\n torchrun --nproc_per_node {} t.py {}\n'
            'else\n srun -n {} {} 4\nfi\n')
    flags = TRAIN.split(' ', 2)[2] + ' 4'
    assert as_job(both.format(8, flags, 8, TRAIN)).n_gpus == 8
    assert as_job(both.format(8, flags, 16, TRAIN)).n_gpus is None


CRUMBS = ['$', '{', '}', '((', '))', '(', ')', '"', "'", '\\', '`', '#', '\n', ' ', ';', '|', '&',
          '<', '>', '=', 'A', 'if', 'fi', 'do', 'then ', 'case ', 'esac', ';;', '--tp', '[@]', ':-',
          '<<E', '1', '+', '\0', '-c']


@examples(150)
@given(st.lists(pick([*CRUMBS, FLAGS]), max_size=30), st.text(max_size=9))
def test_any_text(crumbs, more):
    "A job, or one line; never a surprise."
    for text in (''.join(crumbs) + more + '\n', FLAGS + ''.join(crumbs)):
        try: assert isinstance(as_job(text), Job)
        except ValueError as error: assert str(error).isprintable() and len(str(error)) < 300


@examples(150)
@given(st.data(), pick(list(FORMATS)))
def test_any_dict(data, name):
    keys = [row.key for row in FORMATS[name].rows if row.key]
    given = data.draw(st.dictionaries(pick([*keys, 'x', 'fsdp_config', 'training']), pick(
        [*WORTHLESS, 2, 4, 'FSDP', 'none', 'auto', 'full', 'FULL_SHARD', '1F1B', [1, 2], 'p2p']),
        max_size=8))
    try: assert isinstance(as_job(given), Job)
    except ValueError as error: assert str(error).isprintable() and len(str(error)) < 300


PRIMUS = """modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: ${MODEL:small}.yaml
    overrides:
      seq_length: ${LENGTH:4096}
      tensor_model_parallel_size: ${TP:2}
      micro_batch_size: 2
      shiny: 1
"""
BRIDGE = """_target_: megatron.bridge.training.config.ConfigContainer
comm_overlap: {overlap_grad_reduce: null, tp_comm_overlap: true}
dataset: {sequence_length: 4096}
ddp: {overlap_grad_reduce: true, overlap_param_gather: true, use_distributed_optimizer: true}
mixed_precision: bf16_with_fp8_current_scaling_mixed
model:
  activation_func: {_call_: false, _target_: torch.nn.functional.silu}
  gated_linear_unit: true
  autocast_dtype: &id001
    _call_: false
    _target_: torch.bfloat16
  params_dtype: *id001
  add_bias_linear: false
  hidden_dropout: 0.0
  attention_dropout: 0.0
  hidden_size: 4096
  num_layers: 32
  num_attention_heads: 32
  num_query_groups: 8
  ffn_hidden_size: 14336
  normalization: RMSNorm
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  seq_length: 4096
  max_position_embeddings: 131072
  tensor_model_parallel_size: 4
  tp_comm_overlap: false
  sequence_parallel: true
  vocab_size: 128256
optimizer: {optimizer: adam, bf16: true, overlap_param_gather: false}
peft: null
train: {global_batch_size: 512, micro_batch_size: 1}
"""
NEMO = """_target_: nemo.collections.llm.api.pretrain
data: {_target_: x, global_batch_size: 512, micro_batch_size: 1, seq_length: 8192}
model: {_target_: y, config: {_target_: Llama31Config70B}}
optim: {config: {optimizer: adam, use_distributed_optimizer: true}}
trainer:
  devices: 8
  num_nodes: 4
  plugins: {_target_: z, precision: bf16-mixed}
  strategy:
    pipeline_model_parallel_size: 4
    sequence_parallel: true
    tensor_model_parallel_size: 4
    ddp: {overlap_grad_reduce: true, overlap_param_gather: true}
"""


NAMED_PRECISIONS = {   # a name of Megatron-Bridge -> (precision, weights gathered so, ends in 16)
    'bf16_mixed': ('bf16', None, None), 'bf16-mixed': ('bf16', None, None),
    'bf16_with_fp8_delayed_scaling_mixed': ('fp8', True, None),
    'bf16_with_fp8_current_scaling_mixed': ('fp8', True, 1),
    'nemotron_h_bf16_with_fp8_current_scaling_mixed': ('fp8', True, 2),
    'nanov2_bf16_with_fp8_current_scaling_mixed': ('fp8-block', True, 2),
    'bf16_with_fp8_subchannel_scaling_mixed': ('fp8-block', False, None),
    'bf16_with_mxfp8_mixed': ('mxfp8', True, None), 'bf16_with_nvfp4_mixed': ('nvfp4', None, None)}


@pytest.mark.parametrize('name', NAMED_PRECISIONS)
def test_what_a_precision_of_bridge_stands_for(name):
    job = as_job(parse_yaml(BRIDGE.replace('bf16_with_fp8_current_scaling_mixed', name), 'x'), 32)
    said = [(job.assumes or {}).get(key) for key in ('fp8_parameters', 'bf16_ends')]
    assert (job.parallel.precision, *said) == NAMED_PRECISIONS[name]


@pytest.mark.parametrize('model, tokenizer, rows', [
    ({}, {}, 128256), ({'should_pad_vocab': True}, {}, 128512),
    ({'vocab_size': None}, {'tokenizer_type': 'NullTokenizer', 'vocab_size': 32000}, 32256),
    ({'vocab_size': None}, {'tokenizer_type': 'HuggingFaceTokenizer',
                            'tokenizer_model': 'meta-llama/Llama-2-7b'}, 32256),
    ({}, {'tokenizer_type': 'NullTokenizer', 'vocab_size': 32000}, 128256)])
def test_a_recipe_fills_tables_of_words_up_where_it_says_so(model, tokenizer, rows):
    """vocab_size of a model is that of its tables (model.py of Megatron-Bridge) unless
    should_pad_vocab; where it is not said, the tokenizer's is filled up."""
    given = parse_yaml(BRIDGE, 'x')
    given['model'] |= model
    given['tokenizer'] = tokenizer
    assert as_job(given, 32).model.vocab == rows


def test_a_layout_as_lists():
    "As recipes of Megatron-Bridge have it; what is no kind of layer is refused."
    parts = [['embedding', *['decoder'] * 15], ['decoder'] * 16, ['decoder', 'loss']]
    given = parse_yaml(BRIDGE, 'x')
    given['model'] |= {'pipeline_model_parallel_size': 3, 'pipeline_model_parallel_layout': parts}
    assert as_job(given, 24).parallel.layout == 'Et*15|t*16|tL'
    parts[0][0] = 'encoder'
    assert 'did you mean' in refused(as_job, given, 24)
    given['model']['pipeline_model_parallel_layout'] = []
    assert 'names no part of a pipeline' in refused(as_job, given, 24)
    nothing = {'parallelism': {'module_fqns_per_model_part': []}, 'model': {'name': 'llama3'}}
    assert 'must name all layers once' in refused(as_job, nothing)


@pytest.mark.parametrize('name', ['llama3.1_8B', 'nemotron3_nano_30B_A3B', 'deepseek_v3.2'])
def test_what_samples_are_packed_of_is_said(name):
    "Beside a model that only its name can say as well; a path in a job is no list of lengths."
    m = dataclasses.replace(as_model(name), documents={1024: 2, 512: 1})
    job = Job(Parallel(dp=8), m, 64, 8, m.seq_len)
    said = json.loads(export(job, 'json'))
    assert said['documents'] == {'512': 1, '1024': 2}
    assert as_job(said).model == m
    assert 'must be of type dict' in refused(as_job, said | {'documents': 'lengths.txt'})
    assert 'need a model' in refused(as_job, said | {'model': None})


@pytest.mark.parametrize('name', ['minimax_text_01', 'nemotron3_nano_30B_A3B'])
@pytest.mark.parametrize('samples', [1234.5, None])
def test_how_long_a_model_is_trained_is_said_beside_its_name(name, samples):
    "Where its name alone can say its layers: a plan for other tokens was refused. Its length, too."
    m = dataclasses.replace(as_model(name), seq_len=16384, train_samples=samples)
    for seq_len in (None, m.seq_len):
        said = json.loads(export(Job(Parallel(dp=8), m, 64, 8, seq_len), 'json'))
        assert said['model'] == name and as_job(said).model == m
    as_long = with_length(as_model(name), 16384)   # as many tokens
    said = json.loads(export(Job(Parallel(dp=8), as_long, 64, 8), 'json'))
    assert 'train_samples' not in said and as_job(said).model == as_long
    assert 'need a model' in refused(as_job, said | {'model': None, 'train_samples': 5})
    assert 'train_samples=-1' in refused(as_job, said | {'train_samples': -1})


def test_what_every_script_says_and_nothing_hangs_on_is_known():
    flags = ('--rotary-base 500000 --use-mcore-models --norm-epsilon 1e-5 --manual-gc '
             '--manual-gc-interval 5 --accumulate-allreduce-grads-in-fp32 --clip-grad 1.0')
    ignored = dict(as_job(f'python pretrain_gpt.py --bf16 --micro-batch-size 1 {flags}').ignored)
    for key in filter(lambda word: word.startswith('--'), flags.split()):
        assert ignored[key] == 'changes neither time nor memory here', key


def test_what_of_deepspeed_would_count_is_named():
    given = {'train_batch_size': 64, 'bf16': {'enabled': True},
             'sparse_attention': {'mode': 'fixed'}, 'flops_profiler': {'enabled': True}}
    ignored = dict(as_job(given, 8).ignored)
    assert ignored['sparse_attention.mode'].startswith('not modelled yet: sparse')
    assert ignored['flops_profiler.enabled'] == 'changes neither time nor memory here'


def test_copies_of_deepspeed_share_a_sequence():
    "As Megatron-DeepSpeed's flag: GPUs of cp, not copies, which were too many."
    given = {'train_batch_size': 8, 'bf16': {'enabled': True}, 'sequence_parallel_size': 2}
    job = as_job(given, 8)
    assert (job.parallel.cp, job.parallel.dp, job.parallel.context) == (2, 4, 'ulysses')
    assert job.parallel.micro_batch == 2 and 'sequence_parallel_size' not in dict(job.ignored)
    told = as_job(given, 8, cp=4).parallel
    assert (told.cp, told.dp, told.context) == (4, 2, 'ulysses')
    alone = as_job(given | {'sequence_parallel_size': 1}, 8).parallel
    assert (alone.cp, alone.dp, alone.context) == (1, 8, None)


def test_iterations_are_samples():
    "Of so many iterations, where the batch is known; samples that are said count."
    flags = ('--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 '
             '--max-position-embeddings 1024 --micro-batch-size 1 --bf16 ')
    def asked(more): return as_job(f'torchrun --nproc-per-node 8 pretrain_gpt.py {flags}{more}')
    assert asked('--global-batch-size 64 --train-iters 500').model.train_samples == 64 * 500
    both = asked('--global-batch-size 64 --train-iters 500 --train-samples 77')
    assert both.model.train_samples == 77
    follows = asked('--train-iters 500')   # from samples at once on eight GPUs
    assert (follows.global_batch, follows.model.train_samples) == (8, 8 * 500)
    assert '--train-iters' not in dict(follows.ignored)
    unknown = as_job(f'{flags}--train-iters 500')
    assert unknown.global_batch is unknown.model.train_samples is None
    why = 'not used: the samples of an iteration are not said'
    assert ('--train-iters', why) in unknown.ignored
    training = {'local_batch_size': 2, 'global_batch_size': 32, 'seq_len': 8192, 'steps': 1000}
    titan = as_job({'training': training, 'model': {'name': 'llama3', 'flavor': '8B'}}, 8)
    assert titan.model.train_samples == 32_000
    del training['global_batch_size']
    titan = as_job({'training': training, 'model': {'name': 'llama3', 'flavor': '8B'}}, 8)
    assert (titan.global_batch, titan.model.train_samples) == (16, 16_000)


@pytest.mark.parametrize('stage', [1, 2])
def test_zero_matters_to_the_experts_of_a_hybrid(stage):
    "With one copy, where not all of tp share them."
    m = as_model('nemotron3_nano_30B_A3B')
    job = Job(Parallel(tp=2, zero_stage=stage), m, 8, 2, m.seq_len)
    assert f'zero_stage={stage} cannot be said' in refused(export, job, 'torchtitan')


def test_zero_stays_where_nobody_says_how_many_gpus_there_are():
    "Of FSDP 2, in a file without a number of GPUs: there may be copies."
    text = '''
mixed_precision: bf16
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
parallelism_config:
  parallelism_config_tp_size: 2
'''
    job = back(text, 'accelerate')
    assert job.parallel.zero_stage == 3 and job.n_gpus is None
    assert job.parallel.reshard_after_forward is False
    assert back(export(job, 'accelerate'), 'accelerate') == job


@pytest.mark.parametrize('size, flushes', [(64, 1), (128, 2), (512, 8)])
def test_torchtitan_fills_its_pipeline_for_each_batch_of_a_copy(size, flushes):
    job = as_job({'training': {'local_batch_size': 8, 'global_batch_size': size, 'seq_len': 8192},
                  'parallelism': {'data_parallel_shard_degree': 8, 'pipeline_parallel_degree': 2}})
    said = [why for _, why in job.ignored if 'flushes' in why]
    many = [f'not modelled: {flushes} flushes of the pipeline an iteration; priced as one']
    assert said == (many if flushes > 1 else [])


CALLBACK = """  callbacks:
  - {_target_: nemo.utils.exp_manager.TimingCallback}
  - {_target_: nemo.lightning.pytorch.callbacks.megatron_comm_overlap.MegatronCommOverlapCallback,
     tp_comm_overlap: true%s}
"""


@pytest.mark.parametrize('more, dp_overlap', [('', True), (', overlap_grad_reduce: false', False)])
def test_what_a_callback_of_nemo_overlaps(more, dp_overlap):
    "It says tp; messages of copies overlap unless it denies it, if they share out the optimizer."
    silent = NEMO.replace('    ddp: {overlap_grad_reduce: true, overlap_param_gather: true}\n', '')
    text = silent + CALLBACK % more
    def overlaps(text):
        p = as_job(parse_yaml(text, 'x')).parallel
        return p.tp_overlap, p.dp_overlap
    assert overlaps(silent) == (False, False) and overlaps(text) == (True, dp_overlap)
    alone = text.replace('use_distributed_optimizer: true', 'use_distributed_optimizer: false')
    assert overlaps(alone) == (True, False)


@pytest.mark.parametrize('more, dp_overlap', [('', True), ('overlap_grad_reduce: false, ', False)])
def test_what_a_section_of_bridge_overlaps(more, dp_overlap):
    "Messages of copies, whatever `ddp` says, unless it denies it or nothing is shared out."
    text = BRIDGE.replace('overlap_grad_reduce: true', 'overlap_grad_reduce: false').replace(
        'comm_overlap: {overlap_grad_reduce: null, ', f'comm_overlap: {{{more}')
    def overlaps(text): return as_job(parse_yaml(text, 'x'), 32).parallel.dp_overlap
    assert overlaps(text) == dp_overlap
    assert not overlaps(text.replace('optimizer: true', 'optimizer: false'))
    assert not overlaps(text.replace('comm_overlap:', 'nothing:'))


@pytest.mark.parametrize('ddp, precision, short', [
    ('true', None, False), ('false', None, True), ('false', 'bf16_mixed', False),
    ('true', '{bf16: true, grad_reduce_in_fp32: false}', True)])
def test_in_what_a_recipe_reduces(ddp, precision, short):
    "A precision decides, or else `ddp`; the names of precisions all say 32 bits."
    text = BRIDGE.replace('ddp: {', f'ddp: {{grad_reduce_in_fp32: {ddp}, ').replace(
        'bf16_with_fp8_current_scaling_mixed', precision or 'null')
    job = as_job(parse_yaml(text, 'x'), 32)
    assert job.gradients_in_16_bits is short
    costs = job.assumptions('calibrated').on(as_system('H100-80GB')).costs
    assert costs.gradient_held == costs.gradient_bytes == (2 if short else 4)


@pytest.mark.parametrize('more, short', [('', False), (', grad_reduce_in_fp32: false', True)])
def test_in_what_nemo_reduces(more, short):
    "Its plugin reduces in 32 bits unless it says otherwise, whatever `ddp` says."
    text = NEMO.replace('bf16-mixed', f'bf16-mixed{more}').replace(
        'ddp: {', f'ddp: {{grad_reduce_in_fp32: {str(short).lower()}, ')
    assert as_job(parse_yaml(text, 'x')).gradients_in_16_bits is short


def test_objects_in_a_recipe():
    "Of an enum its value counts; what a dump hides of an object is told, not passed over."
    given = parse_yaml(BRIDGE, 'x')
    enums = 'megatron.core.transformer.enums.'
    given['model'] |= {
        'attention_backend': {'_target_': f'{enums}AttnBackend', '_call_': True, '_args_': [3]},
        'cuda_graph_impl': 'transformer_engine', 'cuda_graph_scope': [
            {'_target_': f'{enums}CudaGraphScope', '_args_': [2], '_name_': 'attn'}],
        'pipeline_model_parallel_layout': {'_target_': 'megatron.core.x.Layout', '_call_': True},
        'params_dtype': {'_target_': 'torch.bfloat16', '_call_': False}}
    job = as_job(given, 32)
    assert job.assumes['flash_attention'] is False and job.parallel.cuda_graphs == 'attn'
    told = [key for key, why in job.ignored if why.startswith('not read: an object')]
    assert told == ['--pipeline-model-parallel-layout']


@pytest.mark.parametrize('reduce, main, short', [
    ('true', 'fp32', True), ('false', 'bf16', True), ('false', 'fp32', False)])
def test_flags_that_only_repeat_a_default(tmp_path, reduce, main, short):
    "The files that a job of Primus names say all flags; either makes gradients of 16 bits."
    more = f'grad_reduce_in_bf16: {reduce}\n      main_grads_dtype: {main}'
    job = as_job(primus(tmp_path, PRIMUS.replace('shiny: 1', more)), 8)
    assert job.gradients_in_16_bits is short


@pytest.mark.parametrize('key', ['compress_ratios: "[0, 4]"', 'hc_mult: 4', 'num_joint_layers: 19',
                                 'lfm_layer_types: [conv, full_attention]'])
def test_no_plain_decoders_of_primus(tmp_path, key):
    "DeepSeek V4, Flux and LFM2."
    with pytest.raises(ValueError, match='no field of a Model says it'):
        as_job(primus(tmp_path, PRIMUS.replace('shiny: 1', key)), 8)


def test_what_torchtitan_said_in_2024():
    "Copies stood in [training], and so did compiled kernels."
    training = {'batch_size': 8, 'seq_len': 4096, 'tensor_parallel_degree': 2, 'compile': True,
                'data_parallel_replicate_degree': 4, 'data_parallel_shard_degree': 8}
    job = as_job({'training': training}, 64)
    assert (job.parallel.tp, job.parallel.dp, job.parallel.dp_replicate) == (2, 32, 4)
    assert ('training.compile', 'not modelled yet: compiled kernels') in job.ignored
    old = {'batch_size': 8, 'seq_len': 4096, 'data_parallel_degree': 4}
    assert 'data_parallel_degree=4' in refused(as_job, {'training': old}, 8)
    assert as_job({'training': old}, 4).parallel.dp == 4


@pytest.mark.parametrize('more, release', [
    ({'model.name': 'llama3', 'job.dump_folder': 'out'}, '0.2'),
    ({'optimizer.name': 'AdamW'}, '0.2'),
    ({'parallelism.enable_async_tensor_parallel': True}, '0.2'), ({'optimizer.lr': 1e-4}, '0.3'),
    ({'model.name': 'llama3', 'training.disable_cuda_graphs': True}, '0.3')], ids=str)
def test_a_file_of_torchtitan_is_of_the_release_whose_keys_it_has(more, release):
    "0.2.0 reads TOML, holds all logits, and captures nothing; 0.3.0 has none of its sections."
    sizes = {'training.seq_len': 8192, 'training.local_batch_size': 1,
             'parallelism.data_parallel_shard_degree': 8}
    job = as_job(sizes | more)
    assert job.software.name == f'torchtitan {release}'
    captured = release == '0.3' and 'training.disable_cuda_graphs' not in more
    assert job.parallel.cuda_graphs == ('iteration' if captured else 'none')
    assert (job.software.knows['logit_held'] == 12) == (release == '0.2')


def test_the_switch_of_float8_in_2024():
    keys = {'training.seq_len': 8192, 'training.data_parallel_degree': 8}
    for on in (True, False):
        job = as_job(keys | {'float8.enable_float8_linear': on})
        assert job.parallel.precision == ('fp8' if on else 'bf16')


@pytest.mark.parametrize('steps, told, moments', [
    ('fused', False, 4), ('for-loop', True, 4), ('fused_opt_states_bf16', False, 2)])
def test_how_the_optimizer_of_torchtitan_steps(steps, told, moments):
    keys = {'training.seq_len': 8192, 'parallelism.data_parallel_shard_degree': 8}
    job = as_job(keys | {'optimizer.implementation': steps})
    assert any('one parameter at a time' in why for _, why in job.ignored) == told
    assert job.assumed['moment_bytes'] == moments
    text = export(job, 'torchtitan')
    assert back(text, 'torchtitan').assumed['moment_bytes'] == moments
    assert ('fused_opt_states_bf16' in text) == (moments == 2)


def test_flushes_of_a_pipeline_are_told_of_copies_that_follow():
    "Whether a file says how many copies share, or leaves it to the number of GPUs."
    for shard in (-1, 4):
        job = as_job({'training': {'seq_len': 8192, 'local_batch_size': 4, 'global_batch_size': 64},
                      'parallelism': {'pipeline_parallel_degree': 2,
                                      'data_parallel_shard_degree': shard}}, 8)
        assert dict(job.ignored)['training.local_batch_size'].startswith('not modelled: 4 flushes')
    alike = {'data_parallel_replicate_degree': 8, 'data_parallel_shard_degree': 1}
    assert 'shard_degree=8' not in refused(as_job, {'training': {'seq_len': 64},
                                                    'parallelism': alike}, 9).split(' * ')[0]


def dealt_in(section, **keys):  # the layout of 32 layers in four stages of torchtitan
    training = {'batch_size': 8, 'seq_len': 8192, 'data_parallel_shard_degree': 2}
    if section == 'parallelism': training |= {'data_parallel_shard_degree': None}
    degrees = {f'pipeline_parallel_{key}': x for key, x in ({'degree': 4} | keys).items()}
    return as_job({'model': {'name': 'llama3', 'flavor': '8B'}, 'training': training,
                   section: degrees}, 8).parallel.layout


def test_a_release_of_torchtitan_deals_layers_as_its_name_says():
    "Files of 2024 have as many layers in each stage, as the record of 2024-10; later ones do not."
    assert as_software('torchtitan').deals == 'layers'
    assert as_software('torchtitan 0.3').deals == 'layers and ends'
    assert dealt_in('experimental') is None
    assert dealt_in('parallelism') == 'Et*8|t*9|t*8|t*7L'
    even = dict(first_stage_less_layers=0, last_stage_less_layers=0)
    assert dealt_in('parallelism', **even) == 'Et*8|t*8|t*8|t*8L'   # or the record would deal


def test_a_job_is_written_with_the_layers_that_its_software_deals():
    "What is priced is what the file says: of 32 layers, here no stages have as many each."
    def one(software, layout=None): return estimate(
        'llama3.1_8B', Parallel(pp=4, dp=8, layout=layout), 'H100-80GB', 128, software=software)
    last = one('torchtitan 0.3')
    text = export(last, 'torchtitan')
    assert back(text, 'torchtitan').parallel.layout == 'Et*8|t*9|t*8|t*7L'
    assert text == export(one('torchtitan 0.3', 'Et*8|t*9|t*8|t*7L'), 'torchtitan')
    assert as_job(json.loads(export(last, 'json'))).parallel.layout is None   # its software says it
    assert "-layout 'Et*8|t*9|t*9|t*6L'" in export(one('Scaling'), 'megatron')
    even = flat(parse_yaml(export(one('torchtitan'), 'torchtitan'), 'x'))
    assert even['parallelism.pipeline_parallel_first_stage_less_layers'] == 0


def test_points_at_which_torchtitan_splits():
    points = ['layers.9', 'layers.18', 'layers.26']
    for section in ('experimental', 'parallelism'):
        assert dealt_in(section, split_points=points) == 'Et*9|t*9|t*8|t*6L'
        assert dealt_in(section, split_points=','.join(points)) == 'Et*9|t*9|t*8|t*6L'
    for wrong in ('layers.9,layers.4,layers.20', 'layers.9,layers.18,layers.33', 'layers.9,norm'):
        with pytest.raises(ValueError, match='split_points.* must name layers in order'):
            dealt_in('experimental', split_points=wrong)


@pytest.mark.parametrize('training, pp, samples, batch', [
    ({'seq_len': 4096}, 1, 8, 64), ({}, 1, 8, 64), ({'seq_len': 4096}, 2, 1, 64),
    ({'max_context_length': 4096}, 1, 4, 32), ({'max_context_length': 3000}, 1, 1, None),
    ({'seq_len': 4096, 'local_batch_size': 2}, 1, 2, 16)])
def test_what_a_copy_of_torchtitan_takes_at_once(training, pp, samples, batch):
    "Unless told 8 samples, or 16,384 tokens since it counts in them: once it was one sample."
    sizes = {'data_parallel_shard_degree': 8, 'pipeline_parallel_degree': pp}
    job = as_job({'training': training, 'parallelism': sizes})
    assert (job.parallel.micro_batch, job.global_batch) == (samples, batch)
    told = [key for key, why in job.ignored if 'of a copy at once' in why]
    assert len(told) == (batch is not None and 'local_batch_size' not in training)


def test_older_keys_of_deepspeed():
    "What it still takes for `offload_optimizer` and `offload_param`; a rate of learning is none."
    zero = {'stage': 3, 'cpu_offload': True, 'cpu_offload_param': True}
    given = {'train_batch_size': 64, 'zero_optimization': zero, 'bf16': {'enabled': True},
             'optimizer': {'type': 'OneBitAdam', 'params': {'lr': 1e-4, 'freeze_step': 400}}}
    job = as_job(given, 8)
    assert job.parallel.offload == 'optimizer+weights'
    told = dict(job.ignored)
    assert told['optimizer.params.lr'] == 'changes neither time nor memory here'
    assert told['optimizer.params.freeze_step'] == 'not modelled yet: messages in fewer bits'
    zero |= {'cpu_offload': False, 'cpu_offload_param': False}
    assert as_job(given, 8).parallel.offload == 'none'
    for on in (True, False):   # once a switch, of what is stage 1 today
        assert as_job(given | {'zero_optimization': on}, 8).parallel.zero_stage == on


@examples(150)
@given(st.data(), pick([PRIMUS, BRIDGE, NEMO]))
def test_any_dump(data, text):
    "Files that lean on others, and dumps, spoiled in some places: a job or a line that says why."
    given = parse_yaml(text, 'x')
    for _ in range(data.draw(st.integers(1, 3))):
        at = given
        while isinstance(at, dict) and at:
            key = data.draw(pick([*at]))
            if not isinstance(at[key], dict) or data.draw(st.booleans()):
                worthless = data.draw(pick([
                    *WORTHLESS, {}, {'_target_': 3}, {1: 2}, 8, 'bf16', '${A:8}', 'x.yaml']))
                at[data.draw(pick([key, key, 3]))] = copy.deepcopy(worthless)
                break
            at = at[key]
    try: assert isinstance(as_job(given, 8), Job)
    except ValueError as error: assert str(error).isprintable() and len(str(error)) < 300


# the parsers of frameworks: what they take, as it was written down

PARSERS = json.loads((Path(__file__).parent / 'data' / 'parsers.json').read_text())


def flags_in(text):  # dict: flag -> list of values
    words = shlex.split(text.replace('\\\n', ' '), comments=True)
    found, at = {}, None
    for word in words[words.index('pretrain_gpt.py') + 1 if 'pretrain_gpt.py' in words else 0:]:
        if re.match('--[a-z]', word): at = found.setdefault(word, [])
        elif at is not None: at.append(word)
    return found


@examples(100)
@given(jobs())
def test_flags_are_those_of_the_parser(job):
    text = said(job, 'megatron')
    for flag, values in flags_in(text or '').items():
        number, *choices = PARSERS['megatron']['flags'][flag]
        assert len(values) == number or number == '+' and values, (flag, values)
        assert not choices or {*values} <= {*choices[0]}, (flag, values)


@examples(100)
@given(jobs())
def test_fields_are_those_of_torchtitan(job):
    text = said(job, 'torchtitan')
    if text is None: return
    assert PARSERS['torchtitan']['of'].removesuffix(' (PyPI)') in text.splitlines()[0]
    for section, fields in parse_yaml(text, 'x').items():
        if section != 'activation_checkpoint':
            assert fields.keys() <= {*PARSERS['torchtitan']['fields'][section]}
        else: assert fields in PARSERS['torchtitan']['activation_checkpoint']


@examples(100)
@given(jobs(), pick(['adam', 'muon', 'lion', 'sgd']))
def test_keys_are_those_of_deepspeed(job, optimizer):
    known, layout = PARSERS['deepspeed'], dataclasses.replace(job.parallel, optimizer=optimizer)
    text = said(dataclasses.replace(job, parallel=layout), 'deepspeed')
    if text is None: return
    given = json.loads(text)
    for path in flat(given):
        section, _, name = path.rpartition('.')
        assert path == 'set elsewhere' or name in known['fields'][section], path
    own = given.get('optimizer', {'type': 'adam'})['type'].lower()
    untested = own not in known['optimizers'] and layout.zero_stage != 0
    assert untested == given.get('zero_allow_untested_optimizer', False) or not layout.zero_stage


@examples(100)
@given(jobs())
def test_keys_are_those_of_accelerate(job):
    text, known = said(job, 'accelerate'), PARSERS['accelerate']
    for path in flat(parse_yaml(text, 'x')) if text else ():
        section, _, name = path.rpartition('.')
        assert (section or name) in known['fields'], path
        assert not section or name in known['options'], path


def job_of(name='llama3.1_8B', batch=64, **sizes):  # Job
    m, p = NAMED[name], Parallel(**sizes)
    return Job(p, m, batch, p.n_gpus, m.seq_len)


def test_megatron_is_told_what_it_asserts():
    "What its parser refuses otherwise: a format of checkpoints, connections, checks, optimizers."
    sharded = export(job_of(tp=2, dp=4, zero_stage=3), 'megatron')
    assert '--ckpt-format fsdp_dtensor' in sharded and 'CONNECTIONS' not in sharded
    assert 'ckpt' not in export(job_of(dp=8, zero_stage=1), 'megatron')
    for groups in (dict(tp=2), dict(cp=2)):
        text = export(job_of(**groups, dp=4), 'megatron')
        assert '\nCUDA_DEVICE_MAX_CONNECTIONS=1 torchrun' in text and as_job(text).n_gpus == 8
        bare = export(dataclasses.replace(job_of(**groups, dp=4), n_gpus=None), 'megatron')
        assert '# set elsewhere: CUDA_DEVICE_MAX_CONNECTIONS=1 (the environment)' in bare
        new = dataclasses.replace(job_of(**groups, dp=4), system=as_system('B200'))
        assert 'CONNECTIONS' not in export(new, 'megatron')
    assert 'CONNECTIONS' not in export(job_of(dp=8), 'megatron')
    graphs = export(job_of(dp=8, cuda_graphs='iteration'), 'megatron')
    assert '--no-check-for-nan-in-loss-and-grad' in graphs
    muon = job_of(dp=8, zero_stage=3, optimizer='muon')
    assert 'its FSDP takes adam and sgd' in refused(export, muon, 'megatron')


SHARED = dict(tp=2, dp=4, sequence_sharded=True)
EXPERTS = 'mixtral_8x7B', SHARED | dict(ep=4, zero_stage=1)
REFUSED_BY_MEGATRON = [   # (model, sizes, more of them): what its own checks refuse together
    ('llama3.1_8B', SHARED, dict(tp_overlap=True, sequence_sharded=False)),
    ('llama3.1_8B', SHARED, dict(recompute='moe_act')),
    ('llama3.1_8B', SHARED, dict(recompute='layernorm+mlp_act')),
    ('llama3.1_8B', SHARED, dict(recompute='layernorm', precision='fp8')),
    ('llama3.1_8B', SHARED, dict(recompute='full', cuda_graphs='attn')),
    (*EXPERTS, dict(ep_overlap=True, pp=2)), (*EXPERTS, dict(ep_overlap=True, recompute='full')),
    (*EXPERTS, dict(ep_overlap=True, dispatcher='allgather')),
    (*EXPERTS, dict(cuda_graphs='attn+mlp')),
    ('gpt_oss_120B', SHARED | dict(ep=2, etp=1), dict(etp=2))]


@pytest.mark.parametrize('name, sizes, more', REFUSED_BY_MEGATRON, ids=str)
def test_what_megatron_refuses_together(name, sizes, more):
    assert export(job_of(name, **sizes), 'megatron')
    job = job_of(name, **sizes | more)
    assert 'cannot be said in megatron: ' in refused(export, job, 'megatron')


@pytest.mark.parametrize('vocab', [50176, 50257])   # 50257: which is filled up, as a note says
def test_what_comes_back_besides_is_refused_beside_a_note(vocab):
    "A router of linear layers with biases has one, too; that of this job has none."
    m = as_model(dict(seq_len=1024, embed_dim=1024, heads=16, depth=4, vocab=vocab, experts=8,
                      experts_per_token=2, expert_dim=512))
    job = Job(Parallel(tp=2, dp=4, ep=2, sequence_sharded=True, zero_stage=1), m, 64, 8, 1024)
    assert refused(export, job, 'megatron') == 'router_bias=False cannot be said in megatron'


@pytest.mark.parametrize('format', ['megatron', 'torchtitan'])
def test_a_job_that_says_no_length_has_that_of_its_model(format):
    silent = dataclasses.replace(job_of(tp=2, dp=4, zero_stage=3), seq_len=None)
    text = export(silent, format)
    assert text == export(dataclasses.replace(silent, seq_len=8192), format) and '8192' in text


def test_gradients_in_16_bits():
    "By a flag, or by the code of the software: half as many bytes are held and reduced."
    one = estimate('llama3.1_8B', Parallel(tp=2, dp=4), 'H100-80GB', 64, software='Megatron-Bridge')
    text = export(one, 'megatron')
    assert '--grad-reduce-in-bf16' in text
    short, long = as_job(text), as_job(text.replace('    --grad-reduce-in-bf16 \\\n', ''))
    assert (short.gradients_in_16_bits, long.gradients_in_16_bits) == (True, None)
    about = short.model, short.parallel, 'H100-80GB', 64
    stats = [estimate(*about, job.assumptions('calibrated')).stats for job in (short, long)]
    assert stats[0]['gradients_GB'] == one.stats['gradients_GB'] == stats[1]['gradients_GB'] / 2
    assert stats[0]['dp_comm_s'] < stats[1]['dp_comm_s']
    assert as_job(json.loads(export(short, 'json'))) == short
    assert as_job(text.replace('--grad-reduce-in-bf16', '--main-grads-dtype fp32')
                  ).gradients_in_16_bits is False
    layout = Parallel(dp=8, zero_stage=3, recompute='full', dp_overlap=True)
    other = estimate('llama3.1_8B', layout, 'H100-80GB', 64, software='plain')
    assert 'gradients_in_16_bits=True (the trainer)' in export(other, 'torchtitan')


@pytest.mark.parametrize('software, short, anyway', [
    (None, False, True), (None, True, False), ('Megatron-Core', False, True),
    ('Megatron-Core', True, False), ('GPT-NeoX', True, True), ('GPT-NeoX', False, False),
    ('llm-foundry', False, False)])
def test_gradients_that_a_job_says_come_back(software, short, anyway):
    "What is so anyway changes nothing: it once was added up in fewer bytes than unsaid."
    about = dict(model=as_model('llama3.1_8B'), system=as_system('H100-80GB'), global_batch=64)
    layout = Parallel(tp=2, dp=4, zero_stage=1)
    job = Job(layout, **about, software=software, gradients_in_16_bits=short)
    ask = lambda own: estimate(own.model, own.parallel, own.system, own.global_batch,
                               own.assumptions('calibrated'))
    one = ask(job)
    again = ask(as_job(json.loads(export(one))))
    assert one.stats == again.stats and one.notes == again.notes
    assert as_job(export(one, 'megatron')).gradients_in_16_bits in (None, short)
    alone = estimate('llama3.1_8B', layout, 'H100-80GB', 64, software=software)
    assert (one.stats == alone.stats) == anyway


def test_a_flag_that_is_off_is_not_written():
    "It once had the value False behind it, which Megatron-LM refuses, and so did we."
    text = export(job_of(tp=2, dp=4, zero_stage=1), 'megatron')
    job = as_job(text.replace('--bf16', '--bf16 --main-grads-dtype fp32'))
    assert job.gradients_in_16_bits is False
    text = export(job, 'megatron')
    assert 'grad' not in text and as_job(text).gradients_in_16_bits is None


AWARE = '--use-precision-aware-optimizer'


@pytest.mark.parametrize('flags, saved', [   # bytes of a weight beside its 16 bits
    ('', 12), (AWARE, 2 + 8), (f'{AWARE} --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16', 2 + 4),
    (f'{AWARE} --fp8-format hybrid --fp8-recipe delayed', 2 + 8),
    (f'{AWARE} --fp8-format hybrid --fp8-recipe mxfp8', 4 + 8),   # no lower half alone
    (f'{AWARE} --fp8-format hybrid --fp8-recipe mxfp8 --main-params-dtype fp16', 2 + 8),
    (f'{AWARE} --exp-avg-dtype bf16 --exp-avg-sq-dtype fp8', 2 + 3),
    ('--exp-avg-dtype bf16', 12), (f'{AWARE} --optimizer-cpu-offload --exp-avg-dtype bf16', 0)])
def test_states_in_fewer_bytes(flags, saved):
    "Its FusedAdam keeps what flags say, at half the width, and a step moves as much less."
    plain = export(job_of(dp=8, zero_stage=1), 'megatron')
    job = as_job(plain.rstrip() + f' {flags}\n')
    about = job.model, job.parallel, 'B200-180GB', job.global_batch
    one = estimate(*about, job.assumptions('calibrated')).stats
    usual = estimate(*about[:1], as_job(plain).parallel, *about[2:]).stats
    assert one['optimizer_GB'] == pytest.approx(usual['optimizer_GB'] * saved / 12, rel=1e-12)
    if 0 < saved < 12 and 'fp8-format' not in flags: assert one['other_s'] < usual['other_s']
    assert as_job(export(job, 'megatron')) == as_job(json.loads(export(job, 'json'))) == job
    idle = [why for key, why in job.ignored if key == '--exp-avg-dtype']
    assert idle == {12: [f'does nothing without {AWARE}'], 0: ['on the host states have 32 bits']
                    }.get(saved if 'exp' in flags else None, [])


def test_states_in_fewer_bytes_elsewhere():
    "A recipe says PyTorch's formats; other files are told what their optimizer must do."
    given = parse_yaml(BRIDGE, 'x')
    half = {'_target_': 'torch.bfloat16', '_call_': False}
    given['optimizer'] |= {'use_precision_aware_optimizer': True, 'exp_avg_dtype': half,
                           'exp_avg_sq_dtype': half, 'store_param_remainders': True}
    given['mixed_precision'] = 'bf16_mixed'
    job = as_job(given, 32)
    assert job.assumes['master_bytes'] == job.assumes['moment_bytes'] == 2
    given['optimizer']['store_param_remainders'] = False
    assert as_job(given, 32).assumed['master_bytes'] == 4
    short = dataclasses.replace(job_of(dp=8, zero_stage=1), assumes={'moment_bytes': 2.})
    assert 'moment_bytes=2.0 (the optimizer)' in export(short, 'deepspeed')
    sgd = dataclasses.replace(short, parallel=dataclasses.replace(short.parallel, optimizer='sgd'))
    assert 'it takes adam, shared out' in refused(export, sgd, 'megatron')


def test_dropout_is_trained_as_it_was_priced():
    "Megatron-LM's own default drops 0.1, which no calibrated price of it has."
    about = 'llama3.1_8B', Parallel(dp=8), 'H100-80GB', 64
    for assumptions, share in (('calibrated', '0'), ('paper', '0.1')):
        text = export(estimate(*about, assumptions), 'megatron')
        assert f'--attention-dropout {share} ' in text and f'--hidden-dropout {share} ' in text
        assert as_job(text).dropout == (share != '0')
    kept = {}
    for share in ('0', '0.1'):
        job = as_job(text.replace('--hidden-dropout 0.1', f'--hidden-dropout {share}'))
        a = job.assumptions('calibrated').on(as_system('H100-80GB'))
        assert a.costs.dropout == job.dropout == (share == '0.1') and a.measured.evidence
        kept[share] = estimate(job.model, job.parallel, 'H100-80GB', 64, a).stats['activations_GB']
    assert kept['0'] < kept['0.1']
    assert "dropout (not said: Megatron-LM's own is 0.1)" in export(job_of(dp=8), 'megatron')
    assert 'dropout=True (the model' in export(job, 'accelerate')
    assert '--hidden-dropout=2 must' in refused(as_job, FLAGS + '--hidden-dropout 2 ')


def test_experts_with_biases_and_a_clamped_gate_are_trained_as_they_were_priced():
    oss = job_of('gpt_oss_120B', dp=8, ep=8, zero_stage=1, dispatcher='once_sorted')
    text = export(oss, 'megatron')
    for flags in ('--quick-geglu', '--activation-func-clamp-value 7.0', '--glu-linear-offset 1.0',
                  '--moe-token-dispatcher-type flex', '--moe-flex-dispatcher-backend hybridep'):
        assert flags in text
    again = as_job(text)
    assert (again.model.activation, again.parallel.dispatcher) == ('clamped_silu', 'once_sorted')
    free = as_job(text.replace('--activation-func-clamp-value 7.0', ''))
    assert free.model.activation == 'gelu'
    deep = text.replace('hybridep', 'deepep')
    assert as_job(deep).parallel.dispatcher == 'once'
    older = as_job(text.replace('--moe-flex-dispatcher-backend hybridep', '--moe-enable-deepep'))
    assert older.parallel == as_job(deep).parallel and older.ignored == as_job(deep).ignored
    other = as_job(deep.replace('type flex', 'type alltoall'))
    assert other.parallel.dispatcher == 'alltoall'
    assert 'without' in dict(other.ignored)['--moe-flex-dispatcher-backend']
    assert 'must be a number' in refused(as_job, text.replace('value 7.0', 'value x'))


def test_norms_and_routers_are_those_that_were_priced():
    for name in ('deepseek_v3', 'kimi_k2'):   # norms of the latents
        text = export(job_of(name, dp=8, ep=8, zero_stage=1), 'megatron')
        assert '--qk-layernorm' in text and not as_job(text).model.qk_norm
    oss = export(job_of('gpt_oss_120B', dp=8, ep=8, zero_stage=1), 'megatron')
    assert 'sigmoid' not in oss and 'expert-bias' not in oss   # a linear layer's own bias
    assert as_job(oss).model.router_bias
    bare = oss.replace('--softmax-type learnable', '').replace('--num-experts 128', '')
    assert not as_job(bare).model.router_bias


def test_what_deepspeed_cannot_say_stands_beside_it():
    job = job_of(pp=2, dp=4, zero_stage=1, recompute='full')
    given = json.loads(export(job, 'deepspeed'))
    beside = ' '.join(given['set elsewhere'])
    assert 'pp=2 (' in beside and 'recompute=full (' in beside and 'model=llama3.1_8B (' in beside
    assert 'pp=2' in dict(as_job(given).ignored)['set elsewhere']
    for more, says in [(dict(schedule='zb-h1'), "schedule='zb-h1'"),
                       (dict(virtual_stages=2), 'virtual_stages=2'),
                       (dict(zero_stage=2), 'with pp=2')]:
        changed = dataclasses.replace(job, parallel=dataclasses.replace(job.parallel, **more))
        assert f'{says} cannot be said in deepspeed' in refused(export, changed, 'deepspeed')


REFUSED_BY_LAUNCHERS = [   # (groups, format): what its own checks refuse
    (dict(cp=2, dp=4, zero_stage=0), 'accelerate'), (dict(cp=2, dp=4, zero_stage=1), 'accelerate'),
    (dict(dp=8, dp_replicate=8, zero_stage=3), 'accelerate'),
    (dict(cp=2, dp=4, zero_stage=0), 'torchtitan'),
    (dict(dp=8, dp_replicate=8, zero_stage=3), 'torchtitan')]


@pytest.mark.parametrize('sizes, name', REFUSED_BY_LAUNCHERS, ids=str)
def test_groups_that_launchers_refuse(sizes, name):
    assert f'cannot be said in {name}' in refused(export, job_of(**sizes), name)


def test_accelerate_is_told_nothing_of_groups_that_nobody_shares():
    alone, shared = (export(job_of(context='ring', zero_stage=3, **sizes), 'accelerate')
                     for sizes in (dict(dp=8), dict(dp=4, cp=2)))
    assert 'cp_comm_strategy' in shared and 'cp_comm_strategy' not in alone
    copies, shards = (export(job_of(sequence_sharded=True, zero_stage=1, **sizes), 'accelerate')
                      for sizes in (dict(dp=8), dict(dp=4, tp=2)))
    assert 'sequence_parallelism' in shards and 'sequence_parallelism' not in copies


@pytest.mark.parametrize('name', ['accelerate', 'torchtitan'])
def test_copies_of_shards(name):
    "Hybrid sharding out and in; cp shares weights out even where there is one copy."
    hybrid = job_of(dp=8, dp_replicate=2, zero_stage=3)
    p = back(export(hybrid, name), name).parallel
    assert (p.dp, p.dp_replicate, p.zero_stage) == (8, 2, 3)
    p = back(export(job_of(cp=8, zero_stage=3), name), name).parallel
    assert (p.cp, p.dp, p.zero_stage) == (8, 1, 3)
    one = {'distributed_type': 'FSDP', 'num_processes': 8, 'fsdp_config': {'fsdp_version': 2},
           'parallelism_config': {'parallelism_config_dp_shard_size': 1,
                                  'parallelism_config_cp_size': 8}}
    other = {'parallelism': {'context_parallel_degree': 8, 'data_parallel_shard_degree': 1}}
    assert as_job(one).parallel.zero_stage == as_job(other, 8).parallel.zero_stage == 3
    alone = {'parallelism': {'data_parallel_replicate_degree': 8}}   # -1 leaves one to share
    p = as_job(alone, 8).parallel
    assert (p.dp, p.zero_stage, p.dp_replicate) == (8, 0, 1)


def test_parts_of_torchtitan():
    "Its parts by a rule, or one by one where no rule of its own deals them so."
    for name, pp, v, rule in (('llama3.1_8B', 2, 4, 4), ('llama3.1_405B', 8, 3, 'one by one'),
                              ('llama3.1_405B', 6, 3, 7), ('llama3.1_8B', 4, 12, None),
                              ('llama3.1_8B', 32, 2, None), ('llama3.1_405B', 16, 2, 'ends')):
        job = job_of(name, pp=pp, virtual_stages=v, dp=2, zero_stage=2, reduce_each=False)
        if rule is None:
            assert 'cannot be said in torchtitan' in refused(export, job, 'torchtitan'); continue
        text = export(job, 'torchtitan')
        assert (f'layers_per_stage: {rule}\n' in text) == (rule in (4, 7))
        assert ('module_fqns_per_model_part' in text) == (rule == 'one by one')
        assert (f'# set elsewhere: virtual_stages={v} (' in text) == (rule in (4, 7))
        keys = parse_yaml(text, 'x')
        own = {'name': 'llama3', 'flavor': name.partition('_')[2]}   # which the file cannot say
        again = as_job(keys | {'model': own}, job.n_gpus)
        p, depth = again.parallel, job.model.depth
        assert (again.model.depth, p.virtual_stages) == (depth, v)
        assert p.layout is None or chunks_in(p.layout) == chunks_of(depth, pp * v)
    sizes = {'pipeline_parallel_degree': 4, 'pipeline_parallel_schedule': 'Interleaved1F1B'}
    read = lambda **more: as_job({'model': {'name': 'llama3', 'flavor': '8B'}, 'training': {
        'seq_len': 64}, 'parallelism': sizes | {f'pipeline_parallel_{name}': x
                                                for name, x in more.items()}}, 8)
    even = dict(first_stage_less_layers=0, last_stage_less_layers=0)
    assert read(layers_per_stage=2, **even).parallel.virtual_stages == 4
    assert read(layers_per_stage=3).parallel.virtual_stages == 3   # of 32 layers and two ends
    says = 'cuts 32 layers into 9 parts: parallelism.pipeline_parallel_degree=4 stages must'
    assert says in refused(read, layers_per_stage=4)
    assert 'must have more than one' in refused(read, layers_per_stage=8, **even)
    assert read(**even).parallel.layout == 'Et*4|(t*4|)*6t*4L'


def test_layers_that_torchtitan_deals():
    "The ends count as layers: 34 in four parts are 9, 9, 8 and 8, and the ends have one less."
    sizes = {'pipeline_parallel_degree': 4}
    read = lambda model=None, **more: as_job({
        'model': model or {'name': 'llama3', 'flavor': '8B'}, 'training': {'seq_len': 64},
        'parallelism': sizes | more}, 8)
    layers = lambda job: [chunk.count('t') for chunk in chunks_in(job.parallel.layout)]
    assert layers(read()) == [8, 9, 8, 7]
    assert layers(read(pipeline_parallel_last_stage_less_layers=3)) == [8, 9, 9, 6]
    names = [f'layers.{i}' for i in range(32)]
    parts = [['tok_embeddings', *names[:5]], names[5:15], names[15:25],
             [*names[25:], 'norm', 'output']]
    one = read(module_fqns_per_model_part=parts)
    assert layers(one) == [5, 10, 10, 7] and one.parallel.virtual_stages == 1
    mixed = [[*parts[0], 'layers.31'], *parts[1:]]
    assert 'must name all layers once' in refused(read, module_fqns_per_model_part=mixed)
    assert "'mlp'" in refused(read, module_fqns_per_model_part=[['mlp']])
    job = job_of('llama3.1_8B', pp=4, dp=2, zero_stage=2, reduce_each=False,
                 layout='Et*5|(t*10|)*2t*7L')
    keys = parse_yaml(export(job, 'torchtitan'), 'x')
    assert keys['parallelism']['module_fqns_per_model_part'] == parts
    assert back(export(job, 'torchtitan'), 'torchtitan').parallel.layout == job.parallel.layout
    unknown = read({'name': 'llama3', 'flavor': 'own'})
    assert unknown.parallel.layout is None   # and is dealt as its software does
    key = 'parallelism.pipeline_parallel_first_stage_less_layers'
    assert key not in dict(unknown.ignored)
    told = read({'name': 'llama3', 'flavor': 'own'}, pipeline_parallel_first_stage_less_layers=0)
    assert 'embedding and output count as a layer each' in dict(told.ignored)[key]


@pytest.mark.parametrize('option, pp, recompute', [
    ('op', 1, 'full:16'), ('1', 1, 'full'), ('2', 1, 'full:16'), (5, 1, 'full:6'),
    ('2', 4, 'full:4'), ('40', 1, 'none')])
def test_every_so_many_layers_of_torchtitan(option, pp, recompute):
    "All of every second layer is computed again, not a part of each; and so of products."
    job = as_job({'model': {'name': 'llama3', 'flavor': '8B'}, 'training': {'seq_len': 64},
                  'parallelism': {'pipeline_parallel_degree': pp},
                  'activation_checkpoint': {'mode': 'selective', 'selective_ac_option': option}}, 8)
    assert job.parallel.recompute == recompute


@pytest.mark.parametrize('converters, section, precision, gathers', [
    ([], {}, 'bf16', None), (['float8'], {}, 'fp8', False), (['mx'], {}, 'mxfp8', False),
    (['float8'], {'float8': {'enable_fsdp_float8_all_gather': True}}, 'fp8', True),
    (['quantize.linear.float8'], {'quantize': {'linear': {'float8': {
        'enable_fsdp_float8_all_gather': True}}}}, 'fp8', True)])
def test_products_of_torchtitan_in_8_bits(converters, section, precision, gathers):
    given = {'model': {'name': 'llama3', 'flavor': '8B', 'converters': converters},
             'training': {'seq_len': 8192, 'local_batch_size': 1}, **section}
    job = as_job(given, 64)
    assert job.parallel.precision == precision
    assert (job.assumes or {}).get('fp8_parameters') == gathers
    experts = as_job(given | {'model': {'name': 'deepseek_v3', 'flavor': '671B',
                                        'converters': converters}}, 64)
    assert experts.parallel.precision == 'bf16'   # those of its experts stay in 16 bits
    assert any('beside experts' in why for _, why in experts.ignored) == bool(converters)
    job = dataclasses.replace(job_of('llama3.1_8B', dp=8, zero_stage=3, precision=precision),
                              assumes={'fp8_parameters': True})
    said = 'precision=' in export(job, 'torchtitan')
    assert said == (precision != 'bf16')


@pytest.mark.parametrize('stage', [0, 2, 3, None])
def test_replicas_that_do_not_divide_the_copies(stage):
    "Refused; where nobody knows how many copies there are, whoever is left shares."
    p = Parallel(dp=1, dp_replicate=2, zero_stage=stage)
    assert 'must divide the copies' in refused(export, Job(p, None, 8, 1), 'torchtitan')
    text = said(Job(p, None, 8), 'torchtitan')
    assert text is None or '_shard_degree: 0' not in text


# the real parsers, where they are installed

CALLED = {   # flags of Megatron-LM whose fields in megatron-core have another name
    '--num-experts': 'num_moe_experts', '--fp8-format': 'fp8', '--fp4-format': 'fp4',
    '--cuda-graph-modules': 'cuda_graph_scope',
    '--num-virtual-stages-per-pipeline-rank': 'virtual_pipeline_model_parallel_size'}


def core_config(text, configs):  # TransformerConfig of megatron-core
    "What Megatron-LM's `core_transformer_config_from_args` makes of flags, as far as names agree."
    flags = flags_in(text)
    latent = '--multi-latent-attention' in flags
    cls = configs.MLATransformerConfig if latent else configs.TransformerConfig
    kinds, given = {f.name: f for f in dataclasses.fields(cls)}, {}
    for flag, values in flags.items():
        name = CALLED.get(flag, flag[2:].replace('-', '_'))
        if name not in kinds: continue
        several = name in ('recompute_modules', 'offload_modules', 'cuda_graph_scope')
        read = [int(x) if re.fullmatch(r'\d+', x) else float(x) if re.fullmatch(
            r'\d*\.\d+', x) else x for x in values]
        given[name] = read if several else read[0] if read else True
    for name in ('window_size', 'moe_layer_freq'):   # which its parser reads as Python
        if isinstance(given.get(name), str): given.pop(name)
    if '--swiglu' in flags or '--quick-geglu' in flags: given['gated_linear_unit'] = True
    if '--disable-bias-linear' in flags: given['add_bias_linear'] = False
    given |= dict(pipeline_dtype=configs.torch.bfloat16, bf16=True)
    return cls(**given)


def test_megatron_core_takes_its_fields():
    "The checks that megatron-core makes of a layout and a model, for jobs of all kinds."
    configs = pytest.importorskip('megatron.core.transformer.transformer_config')
    configs.torch = pytest.importorskip('torch')
    layouts = [dict(dp=8), dict(tp=2, dp=4, sequence_sharded=True), dict(cp=2, dp=4),
               dict(tp=2, pp=4, virtual_stages=2), dict(dp=8, zero_stage=3),
               dict(dp=8, recompute='full'), dict(dp=8, recompute='selective'),
               dict(pp=4, dp=2, recompute='full:2'), dict(dp=8, cuda_graphs='attn')]
    experts = [dict(dp=8, ep=8, zero_stage=1), dict(tp=2, dp=4, ep=4, sequence_sharded=True),
               dict(dp=8, ep=4, recompute='moe_act+layernorm', dispatcher='alltoall')]
    taken = 0
    for name, m in NAMED.items():
        for sizes in layouts + (experts if m.experts else []):
            try: text = export(job_of(name, **sizes), 'megatron')
            except ValueError: continue
            found = core_config(text, configs)
            assert (found.num_layers, found.hidden_size) == (m.depth, m.embed_dim)
            assert found.tensor_model_parallel_size == sizes.get('tp', 1)
            assert (found.num_moe_experts or None) == m.experts
            assert m.kv_lora_rank or (found.num_query_groups or m.heads) == (m.kv_heads or m.heads)
            assert found.recompute_granularity == {'none': None, 'selective': 'selective'}.get(
                sizes.get('recompute', 'none').partition('+')[0], 'full' if 'full' in sizes.get(
                    'recompute', '') else 'selective')
            taken += 1
    assert taken > 80


def test_torchtitan_counts_the_same_parts():
    "Its own rule for the parts of a pipeline, for whatever we export."
    own = pytest.importorskip('torchtitan.distributed.pipeline_parallel')
    configs = pytest.importorskip('torchtitan.config.configs')
    if not hasattr(own, '_get_pipeline_metadata'): pytest.skip('another torchtitan')
    taken = 0
    for name in ('llama3.1_8B', 'llama3.1_405B', 'qwen3_32B'):
        for pp, v in itertools.product((2, 4, 6, 7, 8, 16), (1, 2, 3, 4, 5, 8)):
            job = job_of(name, pp=pp, virtual_stages=v, dp=2, zero_stage=2, reduce_each=False)
            try: keys = parse_yaml(export(job, 'torchtitan'), 'x')
            except ValueError: continue
            layers = types.SimpleNamespace(layers=[None] * job.model.depth)
            found, *_ = own._get_pipeline_metadata(
                parallel_dims=types.SimpleNamespace(pp=pp), model_config=layers,
                parallelism=configs.ParallelismConfig(**keys['parallelism']))
            assert found == pp * v
            taken += 1
    assert taken > 15


def test_torchtitan_takes_its_fields():
    configs = pytest.importorskip('torchtitan.config.configs')
    job = job_of(tp=2, pp=2, dp=4, dp_replicate=2, zero_stage=2, reduce_each=False, tp_overlap=True)
    keys = parse_yaml(export(job, 'torchtitan'), 'x')
    training = configs.TrainingConfig(**keys['training'])
    p = configs.ParallelismConfig(**keys['parallelism'])
    assert configs.CompileConfig(**keys['compile']).enable_async_tensor_parallel
    assert (training.local_batch_size, training.global_batch_size) == (16, 64)
    assert (p.data_parallel_replicate_degree, p.data_parallel_shard_degree) == (2, 2)


def test_deepspeed_takes_it():
    config = pytest.importorskip('deepspeed.runtime.zero.config')
    job = Job(Parallel(dp=8, zero_stage=3, dp_overlap=False), global_batch=64, n_gpus=8)
    text = json.loads(export(job, 'deepspeed'))
    found = config.DeepSpeedZeroConfig(**text['zero_optimization'])
    assert (int(found.stage), found.overlap_comm) == (3, False)


@pytest.mark.parametrize('stage', range(4))
def test_deepspeed_takes_the_whole_file(stage):
    "On one process, which is all that its own check of the batch finds here."
    config = pytest.importorskip('deepspeed.runtime.config')
    p = Parallel(micro_batch=2, zero_stage=stage, dp_overlap=True)
    found = config.DeepSpeedConfig(json.loads(export(Job(p, None, 64, 1), 'deepspeed')))
    assert (found.train_batch_size, found.train_micro_batch_size_per_gpu) == (64, 2)
    assert found.gradient_accumulation_steps == 32 and found.zero_optimization_stage == stage
    assert found.bfloat16_config.enabled and not found.float16_config.enabled


def test_deepspeed_shares_experts():
    auto_ep = pytest.importorskip('deepspeed.module_inject.auto_ep_config')
    keys = json.loads(export(Job(Parallel(dp=8, ep=4, zero_stage=2), n_gpus=8),
                             'deepspeed'))
    found = auto_ep.parse_autoep_config(keys['expert_parallel'])
    assert (found.enabled, found.autoep_size) == (True, 4)


@pytest.mark.parametrize('name', ['OneBitAdam', 'ZeroOneAdam', 'OneBitLamb'])
def test_messages_in_one_bit_are_told(name):
    "Whatever else the optimizer is asked."
    job = as_job({'train_batch_size': 8, 'optimizer': {'type': name}}, 8)
    assert job.parallel.optimizer == 'adam'
    assert f'messages of {name} in fewer bits' in dict(job.ignored)['optimizer.type']
    assert 'optimizer.type' not in dict(as_job(
        {'train_batch_size': 8, 'optimizer': {'type': 'AdamW'}}, 8).ignored)


def test_experts_of_deepspeed():
    "What its switch leaves off counts for nothing."
    on = {'train_batch_size': 8, 'expert_parallel': {'enabled': True, 'autoep_size': 4}}
    assert as_job(on, 8).parallel.ep == 4
    off = {'train_batch_size': 8, 'expert_parallel': {'autoep_size': 4}}
    job = as_job(off, 8)
    assert job.parallel.ep == 1
    assert ('expert_parallel.autoep_size', 'does nothing without expert_parallel.enabled') in (
        job.ignored)


@pytest.mark.parametrize('name', ['accelerate', 'megatron', 'torchtitan'])
def test_weights_that_stay_gathered_are_shared_out_at_rest(name):
    "FSDP that does not reshard after the forward pass is no ZeRO 2, which holds all weights."
    m = as_model('llama3.1_8B')
    job = Job(Parallel(dp=8, zero_stage=3, reshard_after_forward=False), m, 64, 8, m.seq_len)
    again = back(export(job, name), name)
    if name == 'torchtitan': assert again.parallel.zero_stage == 2   # which it prices just so
    else: assert (again.parallel.zero_stage, again.parallel.reshard_after_forward) == (3, False)
    one, two = (estimate(m, dataclasses.replace(p, sequence_sharded=True, tp_overlap=True),
                         'H100-80GB', 64, software='torchtitan')
                for p in (job.parallel, dataclasses.replace(
                    again.parallel, recompute=None, dp_overlap=None, reduce_each=None)))
    assert one.stats['iteration_s'] == two.stats['iteration_s']
    assert one.stats['memory_GB'] == two.stats['memory_GB']


def test_zero_2_is_said_where_weights_stay_whole():
    "In Accelerate its DeepSpeed has it; FSDP has it only of software that frees weights."
    job = job_of(dp=8, zero_stage=2, recompute='full')
    text = export(job, 'accelerate')
    assert 'DEEPSPEED' in text and 'recompute=full (' in text
    assert back(text, 'accelerate').parallel.zero_stage == 2
    assert 'cannot be said in accelerate' in refused(
        export, job_of(tp=2, dp=4, zero_stage=2), 'accelerate')
    titan = dataclasses.replace(job_of(tp=2, dp=4, zero_stage=2), software='torchtitan')
    assert back(export(titan, 'accelerate'), 'accelerate').parallel.zero_stage == 3
    why = 'its FSDP of PyTorch takes'
    for more in (dict(pp=2), dict(dp_replicate=2)):
        kept = Parallel(dp=8, zero_stage=3, reshard_after_forward=False, **more)
        assert why in refused(export, Job(kept, None, 64), 'megatron')


ADDED_UP = '''
distributed_type: DEEPSPEED
num_processes: 8
mixed_precision: bf16
deepspeed_config: {zero_stage: 3, gradient_accumulation_steps: 4}
'''


def test_samples_at_once_follow_from_a_batch_that_is_told(tmp_path, capsys):
    "Accelerate's file has steps, but no batch; a --micro-batch holds, a search has its own."
    file = tmp_path / 'accelerate.yaml'
    file.write_text(ADDED_UP)
    assert as_job(file).parallel.micro_batch == 1   # nobody knows
    job = as_job(file, global_batch=64)
    assert (job.global_batch, job.parallel.micro_batch) == (64, 2)
    assert [key for key, _ in job.ignored] == ['gradient checkpointing']
    asked = 'fits', '--job', file, '--model', 'gpt3', '--global-batch'
    def parallel(*more):
        said = ran(capsys, *asked, *more, '--format', 'json', code=1).out
        return json.loads(said)['parallel']
    assert parallel(64)['micro_batch'] == 2 and parallel(128)['micro_batch'] == 4
    assert parallel(64, '--micro-batch', 1)['micro_batch'] == 1
    assert parallel(64, '--dp', 16)['micro_batch'] == 1
    errors = ran(capsys, *asked, 60, code=2).err
    assert 'global_batch=60 contradicts deepspeed_config.gradient_accumulation_steps=4' in errors
    ran(capsys, 'search', *asked[1:], 60, '--gpus', 60)
    auto = {'train_batch_size': 'auto', 'gradient_accumulation_steps': 'auto',
            'zero_optimization': {'stage': 3}}
    assert as_job(auto, 8, global_batch=64).parallel.micro_batch == 1   # steps are not said
    assert as_job(auto | {'train_batch_size': 64}, 8).parallel.micro_batch == 8


def test_a_file_is_of_the_format_that_has_most_of_its_keys():
    "One stray key of DeepSpeed makes no file of Accelerate one of its own."
    given = {'compute_environment': 'LOCAL_MACHINE', 'distributed_type': 'FSDP',
             'num_processes': 16, 'gradient_accumulation_steps': 4}
    job = as_job(given)
    assert job.n_gpus == 16 and job.software is None
    assert dict(job.ignored)['gradient_accumulation_steps'] == 'not known here'


@pytest.mark.parametrize('gpus, machines', [(4, 1), (8, 1), (12, 3), (16, 2), (64, 8)])
def test_accelerate_starts_eight_gpus_on_a_machine(gpus, machines):
    "As a script does; which machine it is and where the first one is, each is told."
    text = export(job_of(dp=gpus, zero_stage=3), 'accelerate')
    found = parse_yaml(text, 'x')
    assert (found['num_processes'], found['num_machines']) == (gpus, machines)
    assert ('set elsewhere: machine_rank, main_process_ip' in text) == (machines > 1)
    script = export(job_of(dp=gpus), 'megatron')
    assert f'--nproc-per-node {gpus // machines} --nnodes {machines} ' in script


@pytest.mark.parametrize('system, each', [
    ('H100-80GB', 8), ('polaris', 4), ('GB200-NVL72', 4), ('TPU-v5p', 4)])
def test_as_many_gpus_are_started_on_a_machine_as_it_has(system, each):
    "Those of a domain; of a rack's, those of one of its trays."
    job = dataclasses.replace(job_of(dp=64), system=as_system(system))
    assert f'--nproc-per-node {each} --nnodes {64 // each} ' in export(job, 'megatron')


LAUNCHED = {   # what Accelerate makes of it
    Parallel(tp=2, dp=4, zero_stage=3): dict(
        use_fsdp=True, fsdp_version=2, fsdp_reshard_after_forward=True,
        parallelism_config_tp_size=2, parallelism_config_dp_shard_size=4),
    Parallel(dp=8, zero_stage=2): dict(use_deepspeed=True, zero_stage=2),
    Parallel(dp=8, zero_stage=3, reshard_after_forward=False): dict(
        use_fsdp=True, fsdp_reshard_after_forward=False),
    Parallel(cp=2, dp=4, zero_stage=3, context='ring'): dict(
        use_fsdp=True, parallelism_config_cp_size=2,
        parallelism_config_cp_comm_strategy='alltoall'),
    Parallel(dp=8, zero_stage=0): dict(multi_gpu=True, use_fsdp=False),
    Parallel(dp=8, zero_stage=0, recompute='full'): dict(
        use_fsdp=True, fsdp_sharding_strategy='NO_SHARD'),
    Parallel(tp=2, dp=4, zero_stage=0): dict(use_megatron_lm=True, megatron_lm_tp_degree=2),
    Parallel(tp=8, zero_stage=3): dict(use_megatron_lm=True, megatron_lm_tp_degree=8),
    Parallel(dp=8, zero_stage=3, dp_replicate=2): dict(
        use_fsdp=True, parallelism_config_dp_replicate_size=2,
        parallelism_config_dp_shard_size=4),
    Parallel(dp=8, zero_stage=1): dict(use_deepspeed=True, zero_stage=1),
    Parallel(tp=2, pp=2, dp=2, zero_stage=1): dict(
        use_megatron_lm=True, megatron_lm_tp_degree=2, megatron_lm_pp_degree=2)}


@pytest.mark.parametrize('p', LAUNCHED, ids=str)
def test_accelerate_takes_it(p, tmp_path):
    "Its launcher reads the file, fills what is open, and finds nothing to refuse."
    launch = pytest.importorskip('accelerate.commands.launch')
    file = tmp_path / 'accelerate.yaml'
    file.write_text(export(Job(p, n_gpus=8), 'accelerate'))
    given = launch.launch_command_parser().parse_args(['--config_file', str(file), 'train.py'])
    found = vars(launch._validate_launch_command(given)[0])
    assert {name: found[name] for name in LAUNCHED[p]} == LAUNCHED[p]
    assert (found['num_processes'], found['mixed_precision']) == (8, 'bf16')
    shares = p.dp * p.cp > 1
    assert not shares or as_job(file).parallel.zero_stage == p.zero_stage


# what is no training of a whole decoder, and files that lean on others

DECODER = ('--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 256 '
           '--max-position-embeddings 256 --vocab-size 1000 ')


@pytest.mark.parametrize('flag, why', [
    ('--fp32-residual-connection', 'not modelled yet: a residual in 32 bits'),
    ('--no-bias-swiglu-fusion', 'not modelled yet: kernels that are not fused'),
    ('--tensor-parallel-num-weight-shards 2', 'not modelled yet: other shards'),
    ('--ckpt-fully-parallel-save', 'changes neither time nor memory here'),
    ('--no-load-optim', 'changes neither time nor memory here'),
    ('--rotary-percent 0.5', 'changes neither time nor memory here')])
def test_what_a_flag_of_megatron_would_change_is_said(flag, why):
    assert dict(as_job(FLAGS + DECODER + flag).ignored)[flag.split()[0]] == why


@pytest.mark.parametrize('flag', ['--enable-mhc-connections',
                                  '--heterogeneous-layers-config-path layers.json'])
def test_a_flag_that_makes_another_model_is_refused(flag):
    assert 'no field of a Model says it' in refused(as_job, FLAGS + DECODER + flag)


HYBRID = ('--hidden-size 8192 --num-attention-heads 64 --group-query-attention '
          '--num-query-groups 8 --kv-channels 128 --ffn-hidden-size 32768 '
          '--squared-relu --disable-bias-linear --normalization RMSNorm '
          '--untie-embeddings-and-output-weights --seq-length 8192 --position-embedding-type none '
          '--vocab-size 131072 --mamba-state-dim 256 --mamba-num-heads 256 '
          '--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec ')


def test_a_pattern_of_layers_is_that_of_its_owners_file():
    "Nemotron-H-56B as Megatron-LM is told it, and as Hugging Face has it."
    file = HERE / 'Nemotron-H-56B-Base-8K.json'
    pattern = json.loads(file.read_text())['hybrid_override_pattern']
    job = as_job(f'{FLAGS}{HYBRID} --hybrid-layer-pattern "{pattern}"')
    assert dataclasses.replace(as_model(file), name='custom') == job.model


def test_a_pattern_of_layers_says_parts_of_a_pipeline():
    text = (FLAGS + HYBRID + '--pipeline-model-parallel-size 2 --num-experts 8 '
            '--moe-router-topk 2 --moe-ffn-hidden-size 1024 --hybrid-layer-pattern "M-GE|M*|E-|M"')
    job = as_job(text)
    assert job.parallel.layout == 'Et*4|tt|tt|tL' and job.model.depth == 9
    names = [(block.mixer.name, block.ffn.name) for block, n in job.model.layers for _ in range(n)]
    nothing = 'nothing'
    assert names == [('Mamba-2', nothing), (nothing, 'MLP'), ('Gated DeltaNet', nothing),
                     (nothing, 'experts'), ('Mamba-2', nothing), ('attention', nothing),
                     (nothing, 'experts'), (nothing, 'MLP'), ('Mamba-2', nothing)]
    assert 'cannot be said in megatron' in refused(export, job, 'megatron')
    assert as_job(f'{text} --num-layers 9').model == job.model   # told twice


@pytest.mark.parametrize('flags, why', [
    (HYBRID, '--spec needs --hybrid-layer-pattern'),
    ('--hybrid-layer-pattern M*', '--hybrid-layer-pattern needs --hidden-size'),
    (HYBRID + '--hybrid-layer-pattern MX', "unknown kind of layer in --hybrid-layer-pattern 'X'"),
    (HYBRID + '--hybrid-layer-pattern MM/M', "unknown kind of layer in --hybrid-layer-pattern '/'"),
    (HYBRID + '--hybrid-override-pattern M-M*M- --num-layers 32',
     '--hybrid-override-pattern has 6 layers, but --num-layers=32'),
    (DECODER + '--spec acme.hybrid_specs gdn_hybrid_stack_spec', 'no field of a Model says it'),
    (DECODER + '--spec acme.layers spec', 'no field of a Model says it')])
def test_a_pattern_of_layers_that_says_too_little_is_refused(flags, why):
    assert why in refused(as_job, FLAGS + flags)


SPARSE = ('--num-layers 61 --hidden-size 7168 --num-attention-heads 128 --ffn-hidden-size 18432 '
          '--seq-length 131072 --vocab-size 129280 --make-vocab-size-divisible-by 8 --swiglu '
          '--normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights '
          '--position-embedding-type rope --mtp-num-layers 1 --num-experts 256 '
          '--moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-router-enable-expert-bias '
          '--moe-shared-expert-intermediate-size 2048 --moe-layer-freq "([0]*3+[1]*58)" '
          '--moe-router-num-groups 8 --moe-router-group-topk 4 --multi-latent-attention '
          '--q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 '
          '--v-head-dim 128 --qk-layernorm ')
INDEXED = ('--experimental-attention-variant dsa --dsa-indexer-n-heads 64 '
           '--dsa-indexer-head-dim 128 --dsa-indexer-topk 2048 ')
TRAINED = '--dsa-indexer-loss-coeff 0.01 --dsa-indexer-use-sparse-loss --dsa-kernel-backend cudnn '


def test_sparse_attention_is_that_of_its_owners_file():
    "DeepSeek-V3.2 as Megatron-Core is told it, and as Hugging Face has it."
    job = as_job(FLAGS + SPARSE + INDEXED + TRAINED)
    assert meaning(job.model) == meaning(NAMED['deepseek_v3.2'])
    assert not [key for key, _ in job.ignored if 'dsa' in key]
    assert as_job(FLAGS + SPARSE).model == as_job(FLAGS + SPARSE + '--dsa-indexer-topk 9').model
    assert 'cannot be said in megatron' in refused(export, job, 'megatron')


@pytest.mark.parametrize('flags, own', [
    ('', [1] * 8), ('--dsa-indexer-topk-freq 4', [1, 0, 0, 0, 1, 0, 0, 0]),
    ('--dsa-indexer-topk-freq 4 --dsa-indexer-skip-topk-offset 3', [1, 1, 1, 0, 0, 0, 1, 0])])
def test_layers_share_what_an_indexer_chose(flags, own):
    "As GLM-5's: from the third layer on every fourth has an indexer (is_dsa_skip_topk_layer)."
    job = as_job(FLAGS + DECODER + '--multi-latent-attention ' + INDEXED + flags)
    found = [block.mixer.own_index for block, n in job.model.layers for _ in range(n)]
    assert found == [bool(x) for x in own]


@pytest.mark.parametrize('flags, key, why', [
    ('', '--dsa-indexer-loss-coeff', 'an indexer that does not train'),
    ('', '--dsa-kernel-backend', 'steps of PyTorch'),
    ('--dsa-indexer-loss-coeff 0.1', '--dsa-indexer-use-sparse-loss', 'a loss of all keys'),
    ('--dsa-indexer-k-norm-fp32', '--dsa-indexer-k-norm-fp32', 'this of an indexer')])
def test_what_of_an_indexer_is_not_modelled_is_said(flags, key, why):
    assert why in dict(as_job(FLAGS + SPARSE + INDEXED + flags).ignored)[key]


@pytest.mark.parametrize('flags, why', [
    (DECODER + INDEXED, '=dsa is known with --multi-latent-attention alone'),
    (HYBRID + '--hybrid-layer-pattern M* --multi-latent-attention ' + INDEXED, 'without a pattern'),
    (SPARSE + '--experimental-attention-variant dsa', '=dsa needs --dsa-indexer-n-heads'),
    (SPARSE + INDEXED.replace('--dsa-indexer-topk 2048', ''), '=dsa needs --dsa-indexer-topk'),
    (SPARSE + '--experimental-attention-variant dsv4_hybrid', 'no field of a Model says it')])
def test_sparse_attention_that_is_not_known_is_refused(flags, why):
    assert why in refused(as_job, FLAGS + flags)


def test_latent_attention_has_its_norms():
    text = FLAGS + DECODER + '--multi-latent-attention --kv-lora-rank 512 {}\n'
    normed, bare = as_job(text.format('--qk-layernorm')), as_job(text.format(''))
    assert normed.model == bare.model and normed.model.kv_lora_rank == 512
    assert 'counted even so' in dict(bare.ignored)['--qk-layernorm']
    assert '--qk-layernorm' not in dict(normed.ignored)


def test_modules_in_any_order():
    text = FLAGS + '--recompute-granularity selective --recompute-modules {}\n'
    found = [as_job(text.format(x)) for x in ('mlp core_attn', 'core_attn mlp', '"mlp core_attn"')]
    assert {job.parallel.recompute for job in found} == {'core_attn+mlp'}
    job = job_of(dp=8, recompute='mlp+core_attn')
    assert '--recompute-modules core_attn mlp' in export(job, 'megatron')


OTHERS = [   # (program, flags): words that the refusal has
    ('pretrain_gpt.py', '--freeze-LM', 'are not trained'),
    ('pretrain_gpt.py', '--freeze-ViT', 'are not trained'),
    ('pretrain_gpt.py', '--num-image-tokens 576', 'images'),
    ('pretrain_gpt.py', '--img-h 336', 'images'), ('pretrain_gpt.py', '--skip-train', 'nothing is'),
    ('pretrain_gpt.py', '--kd', 'a teacher'), ('pretrain_gpt.py', '--perform-rl-step', 'generated'),
    ('pretrain_gpt.py', '--lora-rank 8', 'adapters'), ('pretrain_vlm.py', '', 'pretrain_vlm.py'),
    ('pretrain_t5.py', '', 'a whole decoder'),
    ('tools/run_text_generation_server.py', '', 'generates or evaluates'),
    ('examples/inference/gpt_static.py', '', 'generates or evaluates'),
    ('examples/multimodal/train.py', '', 'a whole decoder'),
    ('tools/preprocess_data.py', '', 'makes files of tokens'),
    ('tools/checkpoint_reshaping.py', '', 'makes another file of a model'),
    ('tasks/main.py', '', 'has tasks of its own'),
    ('primus/cli/main.py', '--context_parallel_size 4 --micro_batch_size 1 --num_layers 4',
     'of Primus give the YAML'),
    ('pretrain_gpt.py', '--optimizer soap', "'soap'")]


@pytest.mark.parametrize('program, flags, says', OTHERS, ids=str)
def test_what_is_no_training_of_a_decoder(program, flags, says):
    text = f'{FLAGS}{DECODER}{flags}\n'.replace('pretrain_gpt.py', program)
    assert says in refused(as_job, text)


def test_flags_of_any_trainer_are_none_of_megatron():
    text = 'torchrun --nproc_per_node 8 run_clm.py --bf16 --per_device_train_batch_size 4\n'
    assert refused(as_job, text).startswith('no commands here have flags of Megatron-LM')


def test_words_of_forks_for_deepspeed():
    "Ulysses is cp; BLOOM's GLU has its MLP's full width; 1 stands for no experts."
    read = lambda flags: as_job(f'{FLAGS}{DECODER}{flags}\n')
    shared = read('--ds-sequence-parallel-size 2 --normalization rmsnorm')
    assert (shared.parallel.cp, shared.parallel.context, shared.model.norm_kind) == (
        2, 'ulysses', 'rmsnorm')
    assert shared.parallel.dp * 2 == read('').parallel.dp
    told = as_job(f'{FLAGS}{DECODER}--ds-sequence-parallel-size 2\n', cp=4)
    assert (told.parallel.cp, told.parallel.context) == (4, 'ulysses')
    staged = read('--pipeline-model-parallel-size 2 --enable-zbh1-pipeline')
    assert staged.parallel.schedule == 'zb-h1'
    gated = read('--glu-activation geglu --embed-layernorm').model
    assert gated.gated_mlp and gated.mlp_dim == 4 * gated.embed_dim and gated.embedding_norm
    alone = '--moe-expert-parallel-size 1 --num-experts 1'
    assert read(alone).model == read('').model
    assert 'which layers have experts' in refused(read, alone.replace('1 ', '8 ') + '6')


def test_programs_in_folders_of_any_name():
    for place in ('/export/home/me', '/data/server', '$HOME/lora'):
        assert as_job(FLAGS.replace('pretrain_gpt', f'{place}/pretrain_gpt') + '\n').n_gpus == 16
    assert as_job(FLAGS + '--img-h 224 --patch-dim 16\n').n_gpus == 16   # as its parser has them


def primus(folder, text=PRIMUS):
    "A job in a clone of Primus, with files as short as can be."
    configs = folder / 'primus' / 'configs'
    for name, own in [('modules/megatron/base.yaml', 'bf16: true\nlr: 1.0'),
                      ('modules/megatron/pre_trainer.yaml',
                       'extends: [base.yaml]\nglobal_batch_size: 64\nsequence_parallel: 1'),
                      ('models/megatron/base.yaml', '{num_layers: 8, hidden_size: 512, swiglu: '
                       + 'true, hidden_dropout: 0.0, attention_dropout: 0.0}'),
                      ('models/megatron/small.yaml',
                       'extends: base.yaml\nnum_layers: 4\nnum_attention_heads: 8')]:
        (configs / name).parent.mkdir(parents=True, exist_ok=True)
        (configs / name).write_text(own)
    (folder / 'examples').mkdir(exist_ok=True)
    (folder / 'examples' / 'job.yaml').write_text(text)
    return folder / 'examples' / 'job.yaml'


def test_jobs_of_primus(tmp_path, monkeypatch):
    monkeypatch.setenv('TP', '8')   # the environment is none of ours
    job = as_job(primus(tmp_path), 8)
    m, p = job.model, job.parallel
    assert (m.depth, m.embed_dim, m.heads, m.gated_mlp) == (4, 512, 8, True)
    assert (p.tp, p.dp, p.micro_batch, p.sequence_sharded) == (2, 4, 2, True)
    assert (job.seq_len, job.global_batch, job.dropout) == (4096, 64, False)
    told = dict(job.ignored)
    assert told['--tensor-model-parallel-size'] == '${TP:2}: its default is taken'
    assert told['--shiny'] == 'not known here'
    assert told['the files that it names'] == '1 of their keys are not used'


SINKS = '''enable_primus_turbo: true
      use_turbo_attention: true
      use_sink_attention: true
      sink_sliding_window: 128'''


def test_sinks_and_their_windows_in_primus(tmp_path):
    "Its attention has windows beside sinks alone: in every second layer, unless told."
    job = lambda text: as_job(primus(tmp_path, PRIMUS.replace('shiny: 1', text)), 8)
    kept = operator.attrgetter('attention_sinks', 'window', 'full_attention_every')
    every = lambda text: kept(job(text).model)
    assert every(SINKS) == (True, 128, 2)
    assert every(SINKS + '\n      sink_window_even_layers_only: false') == (True, 128, None)
    assert every(SINKS.replace('128', '0')) == (True, None, None)
    for off in (SINKS.replace('use_sink_attention: true', 'use_sink_attention: false'),
                SINKS.replace('use_turbo_attention: true', 'use_turbo_attention: false'),
                SINKS + '\n      context_parallel_size: 2'):
        assert every(off) == (False, None, None)
    assert 'does nothing' in dict(job('use_sink_attention: true').ignored)['--use-sink-attention']
    assert 'parts of a sequence' in dict(job(SINKS + '\n      context_parallel_size: 2').ignored)[
        '--use-sink-attention']


@pytest.mark.parametrize('text, dispatcher, idle', [
    ('use_turbo_deepep: true', 'once', ()), ('turbo_sync_free_moe_stage: 2', 'once', ()),
    ('turbo_sync_free_moe_stage: 1', 'alltoall', ()), ('use_turbo_deepep: false', 'alltoall', ()),
    ('use_turbo_deepep: true\n      enable_primus_turbo: false', 'alltoall',
     ('--use-turbo-deepep',))])
def test_how_tokens_travel_in_primus(tmp_path, text, dispatcher, idle):
    "Primus-Turbo's own library goes before the dispatcher that is named (its moe_dispatcher.py)."
    turbo = '' if 'enable' in text else 'enable_primus_turbo: true\n      '
    more = f'{turbo}num_experts: 8\n      moe_token_dispatcher_type: alltoall\n      {text}'
    job = as_job(primus(tmp_path, PRIMUS.replace('shiny: 1', more)), 8)
    assert job.parallel.dispatcher == dispatcher
    assert {key for key, why in job.ignored if 'does nothing' in why} >= {*idle}
    assert ('--use-turbo-deepep' in dict(job.ignored)) == bool(idle)


LORA = 'stage: sft\n      lora:\n        enabled: true\n        dim: 16'
SOME = '\n        target_modules: '


@pytest.mark.parametrize('text, adapters', [
    (LORA, 'lora:16'), (LORA.replace('true', 'false'), 'none'),
    (f'{LORA}{SOME}[linear_qkv, linear_proj]', 'lora:16:attention'),
    (LORA.replace('stage: sft', 'stage: pretrain'), 'none')])
def test_adapters_in_primus(tmp_path, text, adapters):
    "Its trainer of SFT alone has them; all weights trained in silence."
    job = as_job(primus(tmp_path, PRIMUS.replace('shiny: 1', text)), 8)
    assert job.parallel.adapters == adapters
    assert ('lora' in dict(job.ignored)) == ('pretrain' in text)


def test_adapters_elsewhere_in_primus_are_refused(tmp_path):
    text = PRIMUS.replace('shiny: 1', f'{LORA}{SOME}[linear_qkv]')
    assert 'adapters must be at both' in refused(as_job, primus(tmp_path, text), 8)


BUBBLES = 'patch_zero_bubble: true\n      enable_zero_bubble: true'
FOLDED = BUBBLES + '\n      zero_bubble_v_schedule: true'


@pytest.mark.parametrize('text, v, schedule, told', [
    ('patch_primus_pipeline: true\n      pp_algorithm: zero-bubble', 1, 'zb-h1', ''),
    ('patch_primus_pipeline: true\n      pp_algorithm: zbv-formatted', 2, 'zb-v', ''),
    ('patch_primus_pipeline: true\n      pp_algorithm: v-half', 2, '1f1b', 'the order v-half'),
    ('pp_algorithm: zero-bubble', 1, '1f1b', 'does nothing'), (BUBBLES, 1, 'zb-h1', ''),
    (BUBBLES.replace('zero_bubble: true', 'zero_bubble: false'), 1, '1f1b', ''),
    (f'{FOLDED}\n      zero_bubble_v_schedule_mem_setup: zb', 2, 'zb-v', ''),
    (FOLDED, 2, '1f1b', 'the order v-half')])
def test_orders_of_pipelines_in_primus(tmp_path, text, v, schedule, told):
    stages = f'pipeline_model_parallel_size: 2\n      num_virtual_stages_per_pipeline_rank: {v}'
    job = as_job(primus(tmp_path, PRIMUS.replace('shiny: 1', f'{stages}\n      {text}')), 8)
    assert (job.parallel.schedule, job.parallel.virtual_stages) == (schedule, v)
    assert told in ' '.join(why for _, why in job.ignored)
    assert 'not known here' not in dict(job.ignored).values()
    alone = PRIMUS.replace('shiny: 1', text)
    assert as_job(primus(tmp_path, alone), 8).parallel.schedule == '1f1b'


def test_copies_that_are_said_are_those_of_the_gpus():
    "Megatron-LM works them out by itself; what a file says of them must agree."
    assert as_job(FLAGS + '--data-parallel-size 8').parallel.dp == 8
    assert refused(as_job, FLAGS + '--data-parallel-size 4') == (
        '--nnodes * --nproc_per_node=16 contradicts --data-parallel-size=4: a copy has 2 GPUs')
    keys = {'tensor_model_parallel_size': 2, 'data_parallel_size': 4, 'micro_batch_size': 1}
    assert (as_job(keys).n_gpus, as_job(keys, 8).parallel.dp) == (8, 4)


def test_what_follows_from_files_of_primus_is_told(tmp_path):
    "Though they name its keys: without a vocabulary none counts, and these stages are refused."
    file = primus(tmp_path)
    models = tmp_path / 'primus' / 'configs' / 'models' / 'megatron'
    (models / 'small.yaml').write_text('extends: base.yaml\nnum_layers: 5\nvocab_size: null\n'
                                       'num_attention_heads: 8\npipeline_model_parallel_size: 2')
    told = dict(as_job(file, 8).ignored)
    assert told['--vocab-size'].endswith('no vocabulary is counted')
    assert told['--num-layers'].startswith('Megatron-LM refuses it')
    assert told['the files that it names'] == '1 of their keys are not used'


def test_what_a_job_of_primus_lacks(tmp_path):
    file = primus(tmp_path)
    for text, says in [
            (PRIMUS.replace('small', 'large'), "line 5: model: 'large.yaml' is another file"),
            (PRIMUS.replace('pre_trainer.yaml', '/etc/x.yaml'), 'is not the name of a YAML file'),
            (PRIMUS.replace('framework: megatron', 'framework: maxtext'), "'maxtext' is not read"),
            (PRIMUS.replace('${LENGTH:4096}', '${LENGTH}'), '--seq-length=')]:
        file.write_text(text)
        assert says in refused(as_job, file, 8), says
    file.write_text(PRIMUS)
    loop = tmp_path / 'primus' / 'configs' / 'models' / 'megatron' / 'base.yaml'
    loop.write_text('extends: base.yaml')
    assert 'it names more than 30 files' in refused(as_job, file, 8)
    assert 'give the job as a path' in refused(as_job, parse_yaml(PRIMUS, 'x'), 8)


def test_flavours_of_torchtitan():
    given = {'model': {'name': 'llama3', 'flavor': '8B'}, 'training': {'seq_len': 4096},
             'parallelism': {'tensor_parallel_degree': 1}}
    m = as_job(given, 8).model
    assert (m.seq_len, m.parameters) == (4096, NAMED['llama3.1_8B'].parameters)
    given['model']['flavor'] = '9B'
    job = as_job(given, 8)
    assert job.model is None and 'torchtitan only' in dict(job.ignored)['model.flavor']


def test_what_recipes_print():
    "Of Megatron-Bridge the model too; NeMo leaves it to a class in Python."
    job = as_job(parse_yaml(BRIDGE, 'x'), 64)
    m, p = job.model, job.parallel
    assert dataclasses.replace(NAMED['llama3.1_8B'], seq_len=4096).parameters == m.parameters
    assert (p.tp, p.dp, p.zero_stage, p.precision, p.tp_overlap) == (4, 16, 1, 'fp8', True)
    assert (job.global_batch, job.seq_len, job.dropout) == (512, 4096, False)
    assert m.gated_mlp and m.seq_len == 4096 and job.software.name == 'Megatron-Bridge'
    lora = 'peft: {_target_: megatron.bridge.peft.lora.LoRA, %s}'
    for own, word in [('dim: 8', 'lora:8'), ('alpha: 16', 'lora:32'),
                      ('dim: 16, target_modules: [linear_proj, linear_qkv]', 'lora:16:attention'),
                      ('target_modules: [linear_fc1, linear_fc2]', 'lora:32:mlp')]:
        job = as_job(parse_yaml(BRIDGE.replace('peft: null', lora % own), 'x'), 64)
        assert job.parallel == dataclasses.replace(p, adapters=word)
        assert back(export(job, 'json'), 'json').parallel.adapters == word
        assert 'adapters' in refused(export, job, 'megatron')
    for own, says in [('target_modules: [linear_qkv]', 'linear_qkv'), ('dim: 0', 'dim'),
                      ('normalize_moe_lora: true', 'normalize')]:
        other = BRIDGE.replace('peft: null', lora % own)
        assert says in refused(as_job, parse_yaml(other, 'x'), 64)
    for old, new, says in [('peft: null', 'peft: {dim: 8}', 'peft'),
                           ('peft: null', 'peft: {_target_: a.DoRA}', 'DoRA'),
                           ('silu', 'relu', "'relu'"),
                           ('bf16_with_fp8_current_scaling', 'int4', 'int4_mixed'),
                           ('model:\n', 'model:\n  freeze_vision_model: true\n', 'not trained')]:
        assert says in refused(as_job, parse_yaml(BRIDGE.replace(old, new), 'x'), 64)
    job = as_job(parse_yaml(NEMO, 'x'))
    p = job.parallel
    assert (job.n_gpus, p.tp, p.pp, p.dp, p.zero_stage) == (32, 4, 4, 2, 1)
    assert (job.global_batch, job.seq_len, p.precision) == (512, 8192, 'bf16')


@pytest.mark.parametrize('config, model, ignored', [
    ('nemo.llama.Llama31Config70B', 'llama3.1_70B', None),
    ('nemo.llama.Llama31Config70B, seq_length: 8192', 'llama3.1_70B', None),
    ('nemo.llama.Llama31Config70B, num_layers: 4', None, 'not read: it says num_layers'),
    ('acme.Config', None, 'not read: it is of a class that is not known here')])
def test_a_model_of_nemo_is_that_of_its_class(config, model, ignored):
    job = as_job(parse_yaml(NEMO.replace('Llama31Config70B', config), 'x'))
    assert job.model == (model and with_length(NAMED[model], 8192))
    assert dict(job.ignored).get('model.config') == ignored


def test_choices_beside_a_model_of_nemo_are_read():
    "Its class has them as fields of the model; they were lost."
    more = (', recompute_granularity: full, recompute_method: block, recompute_num_layers: 3, '
            'cross_entropy_loss_fusion: true, cross_entropy_fusion_impl: te')
    job = as_job(parse_yaml(NEMO.replace('Config70B', f'Config70B{more}'), 'x'))
    assert (job.parallel.recompute, job.loss_fusion) == ('full:3', 'te')
    graphs = NEMO.replace('Config70B', 'Config70B, enable_cuda_graph: true')
    assert as_job(parse_yaml(graphs, 'x')).parallel.cuda_graphs == 'attn+mlp'


def test_a_run_of_nemo_is_as_long_as_it_says():
    text = NEMO.replace('Llama31Config70B', 'MixtralConfig8x7B')
    plain = as_job(parse_yaml(text, 'x'))
    long = as_job(parse_yaml(text.replace('trainer:', 'trainer:\n  max_steps: 1000'), 'x'))
    assert long.model.train_samples == 1000 * long.global_batch != plain.model.train_samples


def test_callbacks_of_nemo_that_set_fields_of_its_model_are_read():
    "moe_token_drop.py and deepep_callback.py of its lightning/pytorch/callbacks."
    text = NEMO.replace('Llama31Config70B', 'MixtralConfig8x7B').replace(
        'trainer:', 'trainer:\n  callbacks:\n  - {_target_: nemo.MegatronTokenDropCallback}\n'
        '  - {_target_: nemo.DeepEPCallback}\n  - {_target_: nemo.TimingCallback}')
    job = as_job(parse_yaml(text, 'x'))
    assert (job.parallel.dispatcher, job.assumes['capacity_factor']) == ('once', 1.)
    wider = text.replace('DropCallback', 'DropCallback, moe_expert_capacity_factor: 1.5')
    assert as_job(parse_yaml(wider, 'x')).assumes['capacity_factor'] == 1.5


def test_several_plugins_of_nemo_are_all_read():
    text = NEMO.replace('plugins: {_target_: z, precision: bf16-mixed}', 'plugins: '
                        '[{_target_: a}, {_target_: z, precision: bf16-mixed, '
                        'fp8: hybrid, grad_reduce_in_fp32: false}]')
    job = as_job(parse_yaml(text, 'x'))
    assert (job.parallel.precision, job.gradients_in_16_bits) == ('fp8', True)


def test_whose_tokens_are_taken(tmp_path, capsys):
    "The job's; where nobody says them, the first line says whose they are."
    file, hf = tmp_path / 'job.json', HERE / 'Meta-Llama-3.1-8B.json'
    about = 'explain', '--job', file, '--system', 'H100-80GB', '--dp', 8, '--model'
    def titled(*words):   # on as many lines as it needs
        return ' '.join(ran(capsys, *words).out.partition('\n\n')[0].split())
    file.write_text('{"train_batch_size": 64}')
    own = "8192 tokens (the model's own, for the job says none)"
    assert own in titled(*about, 'llama3.1_8B')
    assert '64 samples of 4096 tokens an' in titled(*about, 'llama3.1_8B', '--seq-len', 4096)
    most = '131072 tokens (the most that its config.json allows)'
    few = 'search', '--gpus', 64, '--global-batch', 64, '--system', 'H100-80GB', '--top', 1
    assert most in titled(*few, '--model', hf)
    found = json.loads(ran(capsys, *few, '--model', hf, '--format', 'json').out)
    assert 'Tokens of a sample: the most that its config.json allows.' in found['notes']
    assert 'samples of 8192 tokens an' in titled(*few, '--model', 'llama3.1_8B')


# measurements

MEGATRON_LOG = (' iteration {n:8d}/ 100 | consumed samples: 512 | elapsed time per iteration (ms): '
                '{ms:.1f} | throughput per GPU (TFLOP/s/GPU): 400.5 | global batch size: 64 | '
                'lm loss: 1.5E+00 |\n')
TITAN_LOG = ('\x1b[32m[titan] 2025-06-01 - root - INFO - \x1b[31mstep: {n:2d}  '
             '\x1b[32mloss:  7.25  \x1b[34mmemory: 40.00GiB(50.00%)  \x1b[36mtps: 5,000  '
             '\x1b[35mtflops: 350.12  \x1b[33mmfu: 35.40%\x1b[0m\n')


def test_a_log_of_torchtitan_of_2024(tmp_path):
    log = tmp_path / 'run.log'
    log.write_text(TITAN_LOG.format(n=10).replace('tps', 'wps'))
    assert read_log(log).tokens_per_s_per_gpu.tolist() == [5000]


def test_logs(tmp_path):
    "Times in s, tokens from the job, memory in GB; other lines are passed over."
    job = Job(Parallel(tp=2, dp=4), global_batch=64, n_gpus=8, seq_len=1000)
    log = tmp_path / 'run.log'
    log.write_text('starting\n' + ''.join(MEGATRON_LOG.format(n=n, ms=800.) for n in (10, 20)))
    table = read_log(log, job)
    assert table.iteration.tolist() == [10, 20] and table.iteration_s.tolist() == [.8, .8]
    assert table.tokens_per_s_per_gpu.tolist() == [10_000, 10_000]
    assert table.TFLOPs_per_gpu[0] == 400.5 and table.loss[0] == 1.5
    log.write_text(''.join(TITAN_LOG.format(n=n) for n in (1, 10)))
    table = read_log(log, job)
    assert table.iteration_s.tolist() == [1.6, 1.6] and table.mfu.round(6).tolist() == [.354] * 2
    assert abs(table.memory_GB[0] - 42.95) < .01
    assert 'iteration_s' not in read_log(log)
    refusal = refused(read_log, log, Job(Parallel()))
    assert refusal.startswith(str(log)[:20])
    assert 'its job does not say seq_len: `explain --job`' in refusal
    log.write_text('nothing here')
    assert 'has no steps' in refused(read_log, log)


@pytest.mark.parametrize('format', ['megatron', 'deepspeed', 'accelerate', 'torchtitan'])
@pytest.mark.parametrize('idle', [dict(zero_stage=3, reshard_after_forward=False),
                                  dict(zero_stage=0, dp=8, dp_replicate=2)])
def test_what_makes_no_difference_is_no_reason_to_refuse(format, idle):
    p = Parallel(**idle)
    assert export(Job(p, None, 8, p.dp, 1024), format)


def test_logs_of_jobs_without_a_batch(tmp_path):
    "Megatron-LM prints its batch; for torchtitan the job must say it."
    job = Job(Parallel(tp=2, dp=4), n_gpus=8, seq_len=1000)
    log = tmp_path / 'run.log'
    log.write_text(TITAN_LOG.format(n=1))
    assert 'does not say global_batch' in refused(read_log, log, job)
    log.write_text(MEGATRON_LOG.format(n=10, ms=800.))
    assert read_log(log, job).iteration_s.tolist() == [.8]


def test_products_take_possible_times(tmp_path):
    op = {'cat': 'cpu_op', 'name': 'aten::mm', 'args': {
        'External id': 7, 'Input Dims': [[64, 32], [32, 16]], 'Input type': ['c10::BFloat16'] * 2}}
    kernel = lambda us: {'cat': 'kernel', 'name': 'gemm', 'dur': us, 'args': {'External id': 7}}
    file = tmp_path / 'trace.json'
    def times(*durations):
        file.write_text(json.dumps({'traceEvents': [op, *map(kernel, durations)]}))
        return read_products(file).microseconds.tolist()
    assert times(10) == times(10, -5, float('inf'), True) == [10]
    assert 'no matrix products' in refused(times, -5)


def test_profiles(tmp_path):
    "Packed or not; the shapes come from the operation that launched a kernel."
    kernel = lambda name, us, n: {'ph': 'X', 'cat': 'kernel', 'name': name, 'dur': us,
                                  'args': {'External id': n}}
    op = {'ph': 'X', 'cat': 'cpu_op', 'name': 'aten::mm', 'dur': 3,
          'args': {'External id': 7, 'Input Dims': [[2, 3], [3, 4]]}}
    events = [op, kernel('gemm', 10, 7), kernel('gemm', 30, 7), kernel('norm', 60, 8), 'odd',
              {'cat': 'kernel', 'name': 'none', 'dur': 'x'}]
    file = tmp_path / 'trace.json.gz'
    file.write_bytes(gzip.compress(json.dumps({'traceEvents': events}).encode()))
    table = read_profile(file)
    assert table.kernel.tolist() == ['norm', 'gemm'] and table['count'].tolist() == [1, 2]
    assert table.shapes.tolist() == ['', '[[2, 3], [3, 4]]'] and table.share.tolist() == [.6, .4]
    assert table.mean_s.round(9).tolist() == [6e-5, 2e-5]
    for data, why in ((b'\x1f\x8bx', 'is damaged'), (b'{"traceEvents": 3}', 'has no kernels'),
                      (b'["kernel"]', 'must hold one JSON object'), (b'[]', 'has no kernels'),
                      (b'\xff"kernel"', 'is not a text file')):
        file.write_bytes(data)
        assert why in refused(read_profile, file)
    packed = gzip.compress(bytes(2**20)) * 300   # members follow one another
    file.write_bytes(packed)
    assert 'unpacked' in refused(read_profile, file)


# on the command line

def ran(capsys, *args, code=0):  # (standard output, errors)
    "What a command prints."
    with pytest.raises(SystemExit) as done: main(list(map(str, args)))
    assert done.value.code == code
    return capsys.readouterr()


def test_commands_take_these_files(tmp_path, capsys):
    "A model of Hugging Face, its folder, a job; and give one back."
    folder, script = tmp_path / 'Llama', tmp_path / 'train.sh'
    folder.mkdir()
    (folder / 'config.json').write_text((HERE / 'Meta-Llama-3.1-8B.json').read_text())
    small = ('--gpus', 16, '--global-batch', 64, '--top', 1, '--seq-len', 4096)
    out = ran(capsys, 'search', '--model', folder, '--system', 'H100-80GB', *small).out
    assert 'Llama on 16 H100-80GB GPUs' in out
    text = ran(capsys, 'search', '--model', folder, '--system', 'H100-80GB', *small, '--export',
               'megatron').out
    script.write_text(text)
    job = as_job(script)
    assert (job.n_gpus, job.seq_len, job.model.parameters) == (16, 4096, 8_030_261_248)
    found = json.loads(ran(capsys, 'explain', '--job', script, '--system', 'H100-80GB',
                           '--format', 'json').out)
    assert {name: found['parallel'][name] for name in ('tp', 'pp', 'dp', 'micro_batch')} == {
        name: getattr(job.parallel, name) for name in ('tp', 'pp', 'dp', 'micro_batch')}
    assert 'Not used of the job' not in ' '.join(found['notes'])
    changed = json.loads(ran(capsys, 'explain', '--job', script, '--recompute', 'full',
                             '--format', 'json').out)
    assert changed['parallel']['recompute'] == 'full'
    back = ran(capsys, 'explain', '--job', script, '--export', 'json').out
    assert as_job(json.loads(back)).parallel.dp == job.parallel.dp


STUDIED = (f'{FLAGS} --fp8-format hybrid --overlap-grad-reduce --foo 3 --num-layers 24 '
           '--hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --recompute-granularity '
           'full')


def test_studies_take_these_files(tmp_path, capsys):
    "What a job says holds in every study, as in a search; what it does not use is told."
    script, table, folder = (tmp_path / name for name in ('train.sh', 'map.csv', 'out'))
    script.write_text(STUDIED)
    system = ('--system', 'H100-80GB')
    found = json.loads(ran(capsys, 'sweep', '--job', script, *system, '-o', table, '--format',
                           'json').out)
    assert found['written'] == [str(table)] and '--foo' in ' '.join(found['notes'])
    row = pd.read_csv(table).iloc[0]
    assert (row.n_gpus, row.precision, row.recompute, row.dp_overlap) == (16, 'fp8', 'full', True)
    best = json.loads(ran(capsys, 'search', '--job', script, *system, '--top', 1, '--format',
                          'json').out)['found'][0]
    assert {name: best[name] for name in ('precision', 'recompute', 'iteration_s')} == {
        name: row[name] for name in ('precision', 'recompute', 'iteration_s')}
    ran(capsys, 'run-configs', '--job', script, *system, '--folder', folder, '--model',
        HERE / 'Meta-Llama-3.1-8B.json', '--seq-len', 4096)
    row = pd.read_csv(folder / 'exec_1d_Meta-Llama-3.1-8B.csv').iloc[0]
    assert (row.n_gpus, row.precision) == (16, 'fp8')
    rows = json.loads(ran(capsys, 'zero', '--job', script, *system, '--format', 'json').out)['rows']
    samples = [row['samples_per_s'] * row['iteration_s'] for row in rows]
    assert samples == pytest.approx([64] * 4) and {row['n_gpus'] for row in rows} == {16}


def test_a_job_without_its_gpus_keeps_its_stage(tmp_path, capsys):
    "DeepSpeed's file does not say how many copies share out the weights."
    file = tmp_path / 'deepspeed.json'
    file.write_text('{"train_batch_size": 64, "zero_optimization": {"stage": 3}}')
    out = ran(capsys, 'search', '--job', file, '--gpus', 16, '--model', HERE /
              'Meta-Llama-3.1-8B.json', '--seq-len', 2048, '--format', 'json').out
    assert {row['zero_stage'] for row in json.loads(out)['found']} == {3}


def test_a_recipe_in_python_is_not_run(tmp_path, capsys):
    file = tmp_path / 'recipe.py'
    file.write_text('cfg = qwen3_30b_a3b_pretrain_config(tensor_model_parallel_size=1)')
    errors = ran(capsys, 'fits', '--job', file, code=2).err
    assert ': Python is not run: give the YAML' in errors and errors.count('\n') == 1


def test_the_help_names_all_formats():
    told, = (option.help for option in cli.JOB if option.name == 'export')
    assert all(name in told for name in cli.exports())


def test_mistakes_in_files_are_one_line(tmp_path, capsys):
    script = tmp_path / 'train.sh'
    for text, says in ((FLAGS + '--bf16 --fp16', 'contradicts'), ('echo', 'no commands here')):
        script.write_text(text)
        errors = ran(capsys, 'search', '--job', script, code=2).err
        assert says in errors and errors.count('\n') == 1 and len(errors) < 320
    errors = ran(capsys, 'search', '--model', HERE / 'DeepSeek-V4-Flash.json', code=2).err
    assert 'compress_ratios' in errors
    script.write_text(FLAGS)
    errors = ran(capsys, 'search', '--job', script, '--export', 'nemo', '--model', 'gpt3', code=2)
    assert "unknown --export 'nemo'" in errors.err


COSTLY = ['<<A\n' * 60_000, 'A=x\necho ' + '$A' * 120_000, 'A=xxxxxxxxxx\n' + 'A=$A$A\n' * 40,
          'A=(\n' + 'x\n' * 120_000 + ')', 'if ' * 80_000, '"$(' * 80_000, '$((' * 80_000,
          'A=(a b)\n' + 'A=(${A[@]} ${A[@]})\n' * 40, '(' * 250_000, '`' * 250_000,
          'A+=x\n' * 50_000, 'A+=(x)\n' * 30_000, '${a:-' * 50_000, 'A=(\n' * 60_000,
          'python t.py ' + '--tensor-model-parallel-size 2 ' * 8000,
          'A=x\n' + 'A=("${A[@]}" "${A[*]}")\n' * 40 + 'B="${A[*]}${A[*]}"',
          '`$#||<<EOF' * 6000, 'A=x\n' + 'A=$A$A\n' * 14 + 'if a; then let $A; fi\n' * 9,
          'A=a[\n' + 'A=$A$A\n' * 13 + 'let $A\n' * 9]


@pytest.mark.parametrize('text', COSTLY, ids=range(len(COSTLY)))
def test_costly_scripts_cost_little(text):
    "Whatever grows is bounded: in time too."
    start = time.process_time()
    try: assert isinstance(as_job(f'{FLAGS}\n{text}\n'), Job)
    except ValueError as error: assert str(error).isprintable() and len(str(error)) < 300
    assert time.process_time() - start < 5


def test_a_script_has_a_length():
    assert 'is not read' in refused(as_job, 'x\n' * 200_000)


def test_costly_files_cost_little(tmp_path):
    file, deep = tmp_path / 'job.yaml', {}
    for text, says in (('[' * 20_000, 'not valid YAML'), ('a: 1\n' * 50_000, 'twice'),
                       ('{' * 20_000, 'not valid YAML'), ('? ' * 20_000, 'not valid YAML'),
                       ('a: [' + '1,' * 100_000, 'not valid'),
                       ('a: &a [1]\nb: [*a, *a]', 'refers to'), ('a: ' + '9' * 5000, 'not valid'),
                       ('x' * 300_000, 'has more than')):
        start = time.process_time()
        file.write_text(text)
        assert says in refused(as_job, file) and time.process_time() - start < 2, text[:9]
    for _ in range(3000): deep = {'a': deep}
    assert 'nested too deep' in refused(as_job, {'training': deep})


@pytest.mark.parametrize('said, graphs', [
    ('', 'none'), ('--cuda-graph-impl none', 'none'), ('--cuda-graph-impl local', 'attn+mlp'),
    ('--enable-cuda-graph', 'attn+mlp'), ('--cuda-graph-impl full_iteration', 'iteration'),
    ('--cuda-graph-impl transformer_engine --cuda-graph-modules attn moe_router',
     'attn+moe_router')])
def test_cuda_graphs(said, graphs):
    "What the host launches as one is read, priced, and written again."
    job = as_job(f'pretrain_gpt.py --tensor-model-parallel-size 2 --world-size 8 {said}')
    assert job.parallel.cuda_graphs == graphs
    again = as_job(export(job, 'megatron'))
    assert again.parallel.cuda_graphs == graphs
    for name in ('deepspeed', 'accelerate'):
        p = Parallel(dp=8, cuda_graphs='iteration')
        changed = Job(p, global_batch=8, n_gpus=8, seq_len=64)
        assert "cuda_graphs='iteration' cannot be said" in refused(export, changed, name)


@pytest.mark.parametrize('keys, off, graphs', [
    ({}, None, 'iteration'), ({}, True, 'none'), ({}, False, 'iteration'),
    ({'pipeline_parallel_degree': 2}, None, 'none'),
    ({'pipeline_parallel_degree': 2}, True, 'none'),
    ({'expert_parallel_degree': 2}, None, 'none'),
    ({'expert_parallel_degree': 2}, False, 'iteration')])
def test_cuda_graphs_of_torchtitan(keys, off, graphs):
    "Captured unless told otherwise, but in pipelines and with experts on several GPUs."
    training = {'seq_len': 4096, 'local_batch_size': 2, 'disable_cuda_graphs': off}
    job = as_job({'training': training, 'parallelism': {'data_parallel_shard_degree': 4} | keys})
    assert job.parallel.cuda_graphs == graphs
    absent = [why for key, why in job.ignored if key == 'training.disable_cuda_graphs']
    assert any(why.startswith('absent') for why in absent) == (off is None and graphs != 'none')
    written = flat(parse_yaml(export(job, 'torchtitan'), 'x'))
    assert written['training.disable_cuda_graphs'] == (graphs == 'none')
    assert back(export(job, 'torchtitan'), 'torchtitan').parallel.cuda_graphs == graphs


def test_torchtitan_captures_no_pipelines():
    "Its trainer asks that a pipeline says so (trainer.py, _validate_cuda_graphs)."
    keys = {'parallelism': {'pipeline_parallel_degree': 2, 'data_parallel_shard_degree': 4},
            'training': {'seq_len': 4096, 'disable_cuda_graphs': False}}
    assert 'captures no pipelines' in refused(as_job, keys)
    for p in (Parallel(pp=2, dp=4, cuda_graphs='iteration'), Parallel(dp=8, cuda_graphs='attn')):
        job = Job(p, global_batch=8, n_gpus=8, seq_len=64)
        assert f'cuda_graphs={p.cuda_graphs!r} with pp={p.pp} cannot be said in torchtitan' in (
            refused(export, job, 'torchtitan'))


@pytest.mark.parametrize('changes, sizes, says', [
    (dict(tp=16), {}, 'tp=16 with kv_heads=8 cannot be said in torchtitan: tp must divide'),
    (dict(cp=4, dp=2), dict(seq_len=8196), 'must be divisible by 8'),
    (dict(tp=2, cp=2, dp=2), dict(seq_len=8196), 'must be divisible by 8'),
    (dict(pp=2), dict(tied_embeddings=True), 'a pipeline shares no table')])
def test_what_the_trainer_of_torchtitan_refuses(changes, sizes, says):
    "It is not written; where it is read, it is priced, and the reader is told."
    model = dataclasses.replace(as_model('llama3.1_8B'), **sizes)
    p = dataclasses.replace(Parallel(zero_stage=3, reshard_after_forward=False), **changes)
    assert says in refused(export, Job(p, model, 16, p.n_gpus, model.seq_len), 'torchtitan')


def test_what_the_trainer_of_torchtitan_refuses_of_a_file():
    text = torchtitan_file(tensor_parallel_degree=16, data_parallel_shard_degree=8)
    job = as_job(flat(tomllib.loads(text)))
    assert dict(job.ignored)['tp=16 with kv_heads=8'].startswith('torchtitan refuses it')
    fine = torchtitan_file(tensor_parallel_degree=8, data_parallel_shard_degree=8)
    assert not any('refuses' in why for _, why in as_job(flat(tomllib.loads(fine))).ignored)


def test_graphs_of_what_is_not_modelled_are_named():
    job = as_job('pretrain_gpt.py --cuda-graph-impl local --cuda-graph-modules mamba attn')
    assert job.parallel.cuda_graphs == 'attn'
    assert ('--cuda-graph-modules', 'not modelled: a graph of mamba') in job.ignored


PIPELINE = ('--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --bf16 '
            '--micro-batch-size 1 --global-batch-size 64 --pipeline-model-parallel-size 4 ')


def test_layers_computed_again_are_told_of_each_part_of_a_stage():
    "Megatron-LM has so many of each TransformerBlock, which is a part; we have those of a stage."
    again = '--recompute-granularity full --recompute-method block --recompute-num-layers 2 '
    assert as_job(PIPELINE + again).parallel.recompute == 'full:2'
    parts = PIPELINE + again + '--num-layers-per-virtual-pipeline-stage 2'
    assert as_job(parts).parallel.recompute == 'full:8'   # of four parts
    laid_out = PIPELINE + again + "--pipeline-model-parallel-layout 'Et*4|(t*4|)*6t*4L'"
    assert as_job(laid_out).parallel.recompute == 'full:4'
    assert '--recompute-num-layers 2' in export(as_job(parts), 'megatron')
    assert as_job(export(as_job(parts), 'megatron')).parallel.recompute == 'full:8'
    own = as_job(parts)
    odd = dataclasses.replace(own, parallel=dataclasses.replace(own.parallel, recompute='full:6'))
    assert 'each takes as many layers' in refused(export, odd, 'megatron')


def test_ends_that_count_as_layers_are_divided_too():
    ends = ('--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split '
            '--num-layers-per-virtual-pipeline-stage 2 ')
    job = as_job(PIPELINE.replace('32 --hidden', '30 --hidden') + ends)
    assert job.parallel.virtual_stages == 4   # (30 + 2) / (4 x 2)
    assert 'must divide' in refused(as_job, PIPELINE + ends)
    uneven = PIPELINE.replace('32 --hidden', '30 --hidden')
    assert dict(as_job(uneven).ignored)['--num-layers'].startswith('Megatron-LM refuses it')
    assert '--num-layers' not in dict(as_job(PIPELINE).ignored)


def test_an_estimate_goes_out_as_it_came_in():
    "Gradients in 16 bits, and a hybrid model with samples of another length."
    flags = '--main-grads-dtype bf16 --hidden-dropout 0 --attention-dropout 0'
    short = as_job(PIPELINE + flags, 16)
    for model, parallel, assumed in (
            (short.model, short.parallel, short.assumptions('calibrated')),
            (with_length(as_model('qwen3_next_80B_A3B'), 8192), Parallel(pp=2, dp=32, ep=32),
             'calibrated')):
        one = estimate(model, parallel, 'H100-80GB', 64, assumed)
        again = as_job(json.loads(export(one)))
        two = estimate(again.model, again.parallel, 'H100-80GB', 64,
                       again.assumptions('calibrated'))
        assert two.stats == one.stats and again.model.seq_len == model.seq_len
    assert '--grad-reduce-in-bf16' in export(estimate(
        short.model, short.parallel, 'H100-80GB', 64, short.assumptions('calibrated')), 'megatron')


def test_packing_is_left_to_who_loads_the_data():
    packed = dataclasses.replace(as_model('llama3.1_8B'), documents={1024: 1})
    one = estimate(packed, Parallel(dp=8, zero_stage=3), 'H100-80GB', 64)
    for name in ('deepspeed', 'accelerate', 'torchtitan'):
        assert 'documents, of which samples are packed' in export(one, name)
    one = estimate(packed, Parallel(dp=8, zero_stage=1), 'H100-80GB', 64)
    text = export(one, 'megatron')
    assert 'documents, of which samples are packed' in text
    assert as_job(text).model.flops_per_token() > packed.flops_per_token()


@pytest.mark.parametrize('keys, said', [
    ({'train_batch_size': 8}, 'train_batch_size=8 must be divisible by 16 copies'),
    ({'train_batch_size': 8, 'train_micro_batch_size_per_gpu': 1},
     'train_batch_size=8 contradicts train_micro_batch_size_per_gpu=1 on 16 copies')])
def test_a_batch_that_copies_cannot_share_is_refused_by_what_is_said(keys, said):
    assert said in refused(as_job, keys | {'bf16': {'enabled': True}}, 16)


@pytest.mark.parametrize('section, key', [('parallelism', 'data_parallel_shard_degree'),
                                          ('training', 'global_batch_size')])
def test_torchtitan_leaves_to_minus_one_what_is_left(section, key):
    "Which no 0 is: it was divided by."
    given = {'training': {'seq_len': 4096, 'local_batch_size': 2}, 'parallelism': {}}
    assert as_job(given | {section: given[section] | {key: -1}}, 8).parallel.dp == 8
    said = refused(as_job, given | {section: given[section] | {key: 0}}, 8)
    assert f'{section}.{key}=0 must be at least 1, or -1' in said
