"Parameters of every kind of model, counted twice: by the model, and as one GPU holds them."
import dataclasses

import pytest

from transformer_perf import Assumptions, Model, Parallel, estimate
from transformer_perf.blocks import gpt_block
from transformer_perf.estimates import AS_TRAINED, MENDED_SLIPS
from transformer_perf.iteration import gap, short
from transformer_perf.models import NAMED, parameter_table

TRAINED = Assumptions(**MENDED_SLIPS | AS_TRAINED)
PLAIN = Model(256, 96, 8, 6, mlp_dim=200, vocab=640, name='plain')
LATENT = dict(kv_lora_rank=16, q_lora_rank=24, qk_nope_head_dim=8, qk_rope_head_dim=4,
              v_head_dim=10)
EXPERTS = dict(experts=8, experts_per_token=2, expert_dim=40)
SHARED = EXPERTS | dict(shared_expert_dim=56)
VARIANTS = [
    {}, dict(vocab=None), dict(gated_mlp=True), dict(output_bias=True),
    dict(output_bias=True, tied_embeddings=True), dict(tied_embeddings=True, mtp_layers=2),
    dict(mtp_layers=1), dict(learned_positions=True), dict(output_transform=True),
    dict(embedding_norm=True, other_embeddings=5), dict(norm='rmsnorm'), dict(norm='unscaled'),
    dict(layer_norms=1), dict(layer_norms=3), dict(layer_norms=4), dict(kv_heads=2),
    dict(head_dim=20), dict(qk_norm=True), dict(qk_norm=True, kv_heads=2, qk_norm_whole=True),
    dict(attention_sinks=True), dict(window=64, full_attention_every=3), LATENT,
    LATENT | dict(q_lora_rank=None), LATENT | dict(gated_mlp=True, mtp_layers=1), EXPERTS,
    EXPERTS | dict(biases='all', moe_every=2), EXPERTS | dict(dense_layers_first=2),
    EXPERTS | dict(router_bias=True, gated_mlp=True), SHARED,
    SHARED | dict(shared_expert_gate=True, biases='none'), SHARED | LATENT,
    *(dict(biases=kind) for kind in ('none', 'qkv', 'attention', 'mlp', 'all'))]


@pytest.mark.parametrize('fields', VARIANTS, ids=lambda fields: ', '.join(fields) or 'plain')
def test_one_gpu_holds_every_parameter(fields):
    "Two bytes of each; of two stages together too, but for a table that both ends need."
    model = dataclasses.replace(PLAIN, **fields)
    one = estimate(model, Parallel(), 'H200', 8, TRAINED).stats
    assert one['weights_GB'] == pytest.approx(2e-9 * model.parameters, rel=1e-12)
    assert one['optimizer_GB'] == pytest.approx(6 * one['weights_GB'], rel=1e-12)


@pytest.mark.parametrize('name', ['gpt3', 'qwen3_32B', 'deepseek_v3', 'gpt_oss_120B'])
def test_models_by_name(name):
    one = estimate(name, Parallel(), 'H200', 8, TRAINED).stats
    assert one['weights_GB'] == pytest.approx(2e-9 * NAMED[name].parameters, rel=1e-12)


@pytest.mark.parametrize('layout', [
    dict(tp=2), dict(tp=4), dict(tp=2, dp=4, zero_stage=3), dict(tp=2, pp=2), dict(dp=8)])
def test_gpus_together_hold_every_matrix(layout):
    "Without vocabulary and norms, every number is on one GPU of tp and pp, and of ZeRO-3's copies."
    model = dataclasses.replace(PLAIN, vocab=None, norm='unscaled', gated_mlp=True, kv_heads=4)
    a = dataclasses.replace(TRAINED, zero_gathered=0)
    held = estimate(model, Parallel(**layout), 'H200', 64, a).stats['weights_GB']
    shares = layout.get('tp', 1) * layout.get('pp', 1)
    if layout.get('zero_stage') == 3: shares *= layout['dp']
    assert held * shares == pytest.approx(2e-9 * model.parameters, rel=1e-9)


@pytest.mark.parametrize('tp, ep, etp', [(1, 8, 1), (2, 4, 2), (4, 4, 4), (2, 2, 1)])
def test_experts_are_shared_out(tp, ep, etp):
    "Each GPU has its share of all experts, beside what is on every one."
    dense = dataclasses.replace(PLAIN, vocab=None, norm='unscaled', biases='none')
    model, other = (dataclasses.replace(dense, **EXPERTS | dict(expert_dim=width))
                    for width in (40, 80))   # the difference is experts alone
    held = [estimate(m, Parallel(tp=tp, dp=16 // tp, ep=ep, etp=etp), 'H200', 64, TRAINED)
            .stats['weights_GB'] for m in (model, other)]
    matrices = 2e-9 * 6 * 8 * 2 * 96 * 40   # layers, experts, two of 96 x 40 more
    assert held[1] - held[0] == pytest.approx(matrices / ep / etp, rel=1e-9)


def test_matrices_of_two_sizes_are_told_apart():
    "Where kinds of layers have the same name for two sizes, these say how large each is."
    narrow, wide = (gpt_block(96, 8, width) for width in (200, 300))
    model = dataclasses.replace(PLAIN, layers=((narrow, 4), (wide, 2)))
    found = {part.component: (part.each, part.number) for part in parameter_table(model)}
    for width, layers in ((200, 4), (300, 2)):
        assert found[f'fc1 ({96 * width:,})'] == (96 * width, layers)
    assert found['qkv'] == (3 * 96 * 96, 6)   # alike in all


def test_numbers_in_four_digits():
    assert [short(x) for x in (.00012346, 1.23456, 999.96, 9999.4)] == [
        '0.0001235', '1.235', '1000', '9999']
    assert [short(x) for x in (10000., 10400., 1234567.8, -20000.)] == [
        '10,000', '10,400', '1,234,568', '-20,000']


def test_what_is_missing_has_a_digit():
    assert [gap(GB) for GB in (12.345, .26, .052, .048, .0031, 0.)] == [
        '12.3', '0.3', '0.1', '0.05', '0.003', '0.0']
