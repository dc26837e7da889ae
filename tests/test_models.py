"Models: parameters as published, FLOP by formulas of others, and what every model has in common."
import dataclasses
import json
import math

import pytest
from hypothesis import assume, given, settings, strategies as st

from thorough import examples
from test_cli import good
from transformer_perf import Model, Parallel, estimate, search
from transformer_perf.blocks import gpt_block
from transformer_perf.models import (
    CONVENTIONS, HUB, NAMED, as_model, counted_once, has_experts, has_window, output_in_layers,
    parameter_table, with_length)
from transformer_perf.modules import model_figures
from transformer_perf.scaling import Sizes

GATED, TIED = dict(gated_mlp=True), dict(tied_embeddings=True)
LATENT = dict(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
QWEN2_EXPERTS = GATED | dict(biases='qkv', vocab=151936, shared_expert_gate=True)


# parameters

OTHERS = {   # not named in the package; the numbers in the files of their owners
    'gpt2': (124_439_808, Model(
        1024, 768, 12, 12, vocab=50257, learned_positions=True, **TIED)),
    'Llama 2 7B': (6_738_415_616, Model(4096, 4096, 32, 32, 11008, vocab=32000, **GATED)),
    'Mistral 7B': (7_241_732_096, Model(
        8192, 4096, 32, 32, 14336, kv_heads=8, vocab=32000, window=4096, **GATED)),
    'Qwen2 7B': (7_615_616_512, Model(
        4096, 3584, 28, 28, 18944, kv_heads=4, vocab=152064, biases='qkv', **GATED)),
    'Qwen3 0.6B': (596_049_920, Model(
        4096, 1024, 16, 28, 3072, kv_heads=8, head_dim=128, qk_norm=True, vocab=151936,
        **GATED, **TIED)),
    'Qwen1.5-MoE A2.7B': (14_315_784_192, Model(
        4096, 2048, 16, 24, experts=60, experts_per_token=4, expert_dim=1408,
        shared_expert_dim=5632, **QWEN2_EXPERTS)),
    'Qwen2 57B A14B': (57_408_658_944, Model(
        4096, 3584, 28, 28, kv_heads=4, experts=64, experts_per_token=8, expert_dim=2560,
        shared_expert_dim=20480, **QWEN2_EXPERTS)),
    'DeepSeek-V2-Lite': (15_706_484_224, Model(
        4096, 2048, 16, 27, 10944, vocab=102400, experts=64, experts_per_token=6, expert_dim=1408,
        shared_expert_dim=2816, dense_layers_first=1, **GATED, **LATENT)),
    'DeepSeek-V2': (235_741_434_880, Model(
        4096, 5120, 128, 60, 12288, vocab=102400, experts=160, experts_per_token=6,
        expert_dim=1536, shared_expert_dim=3072, dense_layers_first=1, q_lora_rank=1536, **GATED,
        **LATENT)),
    'gpt-oss-20b': (20_914_757_184, dataclasses.replace(
        NAMED['gpt_oss_120B'], depth=24, experts=32)),
}


@pytest.mark.parametrize('name', OTHERS)
def test_parameters_as_published(name):
    published, model = OTHERS[name]
    assert model.parameters == published


def test_parameters_of_palm():
    "540.35 B: arXiv 2204.02311, table 1."
    palm = Model(2048, 18432, 48, 118, 73728, head_dim=256, kv_heads=1, vocab=256000, **GATED,
                 **TIED)
    assert abs(palm.parameters / 1e9 - 540.35) < .01
    by_hand = 6 * palm.parameters + 12 * 118 * 48 * 256 * 2048
    assert math.isclose(palm.flops_per_token('palm'), by_hand, rel_tol=1e-12)


def test_parameters_of_palm_with_experts():
    "Those that a token goes to, with their biases, as it meets all the rest."
    experts = dict(experts=8, experts_per_token=2, expert_dim=40, biases='all')
    model = Model(256, 96, 8, 6, vocab=640, **experts, **TIED)
    idle = 6 * (8 - 2) * (2 * 96 * 40 + 40 + 96)   # two matrices and biases of an expert
    by_hand = 6 * (model.parameters - idle) + 12 * 6 * 96 * 256
    assert math.isclose(model.flops_per_token('palm'), by_hand, rel_tol=1e-12)


def test_an_activation_may_have_learned_numbers():
    plain = gpt_block(96, 8)
    learned = dataclasses.replace(plain, ffn=dataclasses.replace(plain.ffn, learned=2))
    few, more = (Model(128, 96, 8, 6, vocab=640, layers=((block, 6),)).parameters
                 for block in (plain, learned))
    assert more - few == 6 * 2


def test_the_output_in_layers():
    "What is multiplied with it, over a layer's matrices: an MLP with a gate, and as many keys."
    model = Model(128, 96, 6, 4, mlp_dim=200, vocab=640, gated_mlp=True, norm='rmsnorm', **TIED)
    layers = model.parameters - 640 * 96 - (2 * 4 + 1) * 96   # but for norms
    assert math.isclose(output_in_layers(model) * layers / 4, 640 * 96, rel_tol=1e-12)


def test_active_parameters_as_published():
    "In billions, as the cards round them; DeepSeek-V3's 37 leaves out the embedding table."
    billions = {'mixtral_8x7B': 12.9, 'mixtral_8x22B': 39, 'qwen3_235B_A22B': 22, 'kimi_k2': 33}
    for name, stated in billions.items():
        assert abs(NAMED[name].active_parameters / 1e9 - stated) < .5 * 10**-(stated % 1 > 0)
    m = dataclasses.replace(NAMED['deepseek_v3'], mtp_layers=0)
    words = m.vocab * m.embed_dim
    assert round((m.active_parameters - words) / 1e9) == 37


# FLOP

def megatron_flops(m):
    "Of a token, as `num_floating_point_operations` of Megatron-LM has them (written anew)."
    h, s, mtp = m.embed_dim, m.seq_len, m.mtp_layers
    matrices, layers = 3 if m.gated_mlp else 2, m.depth + mtp
    sparse = sum(has_experts(m, i) for i in range(layers))
    mlp = h * matrices * (m.mlp_dim * (layers - sparse) + sparse * (
        (m.expert_dim or 0) * (m.experts_per_token or 0) + (m.shared_expert_dim or 0)))
    if m.kv_lora_rank:
        key = m.qk_nope_head_dim + m.qk_rope_head_dim
        own = (m.q_lora_rank * (h + m.heads * key + 1)
               + m.kv_lora_rank * (h + m.heads * (m.qk_nope_head_dim + m.v_head_dim) + 1)
               + h * m.qk_rope_head_dim + m.heads * m.v_head_dim * h
               + s * m.heads * (key + m.v_head_dim) / 2)
    else:
        queries = m.heads * (m.head_dim or h // m.heads)
        keys = queries // m.heads * (m.kv_heads or m.heads)
        own = h * (2 * queries + 2 * keys) + s * queries
    return 6 * (mlp + layers * own + mtp * (3 * h + 2 * h * h) + h * m.vocab * (1 + mtp))


@pytest.mark.parametrize('name', [
    name for name, m in NAMED.items() if m.vocab and not m.layers])
def test_flops_as_megatron_reports_them(name):
    "It knows no windows: without them."
    m = dataclasses.replace(NAMED[name], window=None, full_attention_every=None)
    assert math.isclose(m.flops_per_token(), megatron_flops(m), rel_tol=1e-6)
    assert NAMED[name].flops_per_token() <= m.flops_per_token() * (1 + 1e-12)


def keys_seen(m, causal_mask):
    "Keys that a token meets, summed over the layers."
    cores = [(op.forward.attention, n) for op, n in counted_once(m, causal_mask)]
    return sum(core.seen * core.keys * n for core, n in cores if core)


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 80), st.booleans())
def test_keys_in_a_window(l, window, causal):
    "Against the mask, counted out: half a key more at most, for a token sees itself."
    m = Model(l, 8, 2, 3, window=window, causal=causal)
    seen = [sum(0 <= i - j < window for j in range(l)) for i in range(l)]
    mean, found = 3 * sum(seen) / l, keys_seen(m, causal_mask=True)
    if causal: assert mean - 1.5 - 1e-9 <= found <= mean * (1 + 1e-12)
    assert math.isclose(keys_seen(m, causal_mask=False), 3 * min(window, l))
    assert found <= 3 * min(window, l) * (1 + 1e-12)


# what all models have in common

def some(*values): return st.one_of(st.none(), st.sampled_from(values))


sizes = st.fixed_dictionaries(
    dict(seq_len=st.sampled_from([16, 100]), embed_dim=st.sampled_from([24, 48]),
         heads=st.sampled_from([2, 4, 6]), depth=st.integers(1, 12)),
    optional=dict(
        mlp_dim=st.integers(1, 99), vocab=st.sampled_from([10, 300]), gated_mlp=st.booleans(),
        causal=st.booleans(),
        biases=some('none', 'qkv', 'attention', 'mlp', 'all'),
        norm=some('layernorm', 'rmsnorm', 'unscaled'), layer_norms=st.integers(1, 4),
        output_bias=st.booleans(), qk_norm_whole=st.booleans(),
        head_dim=some(5, 8), kv_heads=some(1, 2), qk_norm=st.booleans(),
        attention_sinks=st.booleans(), attention_gate=st.booleans(), window=some(1, 7, 200),
        full_attention_every=some(1, 2, 6), kv_lora_rank=some(4), q_lora_rank=some(3),
        qk_nope_head_dim=some(5), qk_rope_head_dim=some(2), v_head_dim=some(6),
        experts=some(1, 4), experts_per_token=some(1, 3), expert_dim=some(7),
        shared_expert_dim=some(5), shared_expert_gate=st.booleans(), router_bias=st.booleans(),
        dense_layers_first=st.integers(0, 3), moe_every=st.integers(1, 3),
        tied_embeddings=st.booleans(), learned_positions=st.booleans(),
        output_transform=st.booleans(), embedding_norm=st.booleans(),
        other_embeddings=st.integers(0, 2),
        mtp_layers=st.integers(0, 2)))


def made(given):  # Model or None
    "The model of some sizes; where there is none, its error is one short line."
    try: return Model(**given)
    except ValueError as error:
        assert 10 < len(str(error)) < 300 and '\n' not in str(error)
        assert any(name in str(error) for name in given)


NEIGHBOURS = (dict(kv_lora_rank=4, qk_nope_head_dim=5, qk_rope_head_dim=2, v_head_dim=6,
                   head_dim=None, kv_heads=None, qk_norm=False, attention_gate=False),
              dict(experts=4, experts_per_token=2, expert_dim=7), dict(window=7), dict(vocab=10),
              dict(heads=2, kv_heads=None))


def norm_parameters(m): return {'layernorm': 2, 'rmsnorm': 1, 'unscaled': 0}[m.norm_kind]


def attention_by_formula(m):
    "Of one layer: its matrices, biases, norms and sinks."
    e, h, norm = m.embed_dim, m.heads, norm_parameters(m)
    sinks = h * m.attention_sinks
    biased = e * (m.bias_kind in ('attention', 'all'))
    if m.kv_lora_rank:
        key, queries = m.qk_nope_head_dim + m.qk_rope_head_dim, m.q_lora_rank or 0
        down = e * (queries + m.kv_lora_rank + m.qk_rope_head_dim)
        up = (queries or e) * h * key + m.kv_lora_rank * h * (m.qk_nope_head_dim + m.v_head_dim)
        return down + up + h * m.v_head_dim * e + norm * (queries + m.kv_lora_rank) + biased + sinks
    wide, narrow = h * m.head, 2 * (m.kv_heads or h) * m.head
    biases = (wide + narrow) * (m.bias_kind not in ('none', 'mlp')) + biased
    normed = (wide + narrow // 2) if m.qk_norm_whole else 2 * m.head
    gate = (e + (m.bias_kind not in ('none', 'mlp'))) * wide * m.attention_gate
    return e * (2 * wide + narrow) + gate + biases + norm * normed * m.qk_norm + sinks


def mlp_by_formula(m, width):
    "Two matrices, or three, and their biases."
    inputs = 1 + m.gated_mlp
    biases = (inputs * width + m.embed_dim) * (m.bias_kind in ('mlp', 'all'))
    return (inputs + 1) * m.embed_dim * width + biases


def ffn_by_formula(m, layer):
    "Of one layer: an MLP; or a router, experts, those that see every token, and their gate."
    if not has_experts(m, layer): return mlp_by_formula(m, m.mlp_dim)
    routed = m.experts * (m.embed_dim + m.router_bias + mlp_by_formula(m, m.expert_dim))
    if not m.shared_expert_dim: return routed
    return (routed + mlp_by_formula(m, m.shared_expert_dim)
            + m.embed_dim * m.shared_expert_gate)


def parameters_by_formula(m):
    "A second count, from the fields of a model alone."
    e, norm, words = m.embed_dim, norm_parameters(m), (m.vocab or 0) * m.embed_dim
    layers = sum(attention_by_formula(m) + ffn_by_formula(m, i) + m.layer_norms * norm * e
                 for i in range(m.depth + m.mtp_layers))
    vectors = m.seq_len * m.learned_positions + m.other_embeddings
    norms = bool(m.vocab) + m.embedding_norm + m.output_transform
    transform = e * (e + (m.bias_kind in ('mlp', 'all'))) * m.output_transform
    ends = (words * (2 - m.tied_embeddings) + vectors * e + (m.vocab or 0) * m.output_bias
            + norms * norm * e + transform)
    return layers + ends + m.mtp_layers * (2 * e * e + 3 * norm * e)


@examples(120)
@given(sizes, st.sets(st.sampled_from(range(5))))
def test_every_model(given, more):
    m = made(given | {name: x for i in more for name, x in NEIGHBOURS[i].items()})
    assume(m)
    table = parameter_table(m)
    assert m.parameters == sum(p.each * p.number for p in table) > 0
    assert 0 < m.active_parameters <= m.parameters
    assert m.experts or m.active_parameters == m.parameters
    assert len({p.component for p in table}) == len(table)
    assert m.parameters == parameters_by_formula(m)
    assert sum(n for _, n in m.blocks) == m.depth
    half, whole = (m.flops_per_token(convention) for convention in CONVENTIONS)
    assert 0 < half <= whole
    assert eval(repr(m)) == m


@pytest.mark.parametrize('fields, own', [(HUB['nemotron_h_8B'][0], 'mine'), (
    vars(NAMED['gpt3_1T']) | {'name': None}, 'config')])
def test_a_file_names_its_model(tmp_path, fields, own):
    "Or its folder, where the file is config.json of Hugging Face, as every model's is there."
    folder = tmp_path / 'mine'
    folder.mkdir()
    text = json.dumps({name: x for name, x in fields.items() if x is not None})
    for name in ('config.json', 'other.json'): (folder / name).write_text(text)
    assert as_model(folder / 'other.json').name == 'other'
    assert as_model(folder).name == as_model(folder / 'config.json').name == own


@pytest.mark.parametrize('given, says', [
    (dict(head_dim=10), None), (dict(heads=5), 'embed_dim=48 must be divisible by heads=5'),
    (dict(LATENT, heads=5), None), (dict(LATENT, kv_heads=2), 'kv_heads=2 has no meaning with'),
    (dict(kv_lora_rank=4), 'kv_lora_rank=4 needs qk_nope_head_dim'),
    (dict(q_lora_rank=4), 'q_lora_rank=4 needs kv_lora_rank'),
    (dict(experts=4, experts_per_token=5, expert_dim=8),
     'experts_per_token=5 must be at most experts=4'),
    (dict(experts=4, experts_per_token=2, expert_dim=8, dense_layers_first=2),
     'dense_layers_first=2 and moe_every=1 leave none of depth=2 layers with experts'),
    (dict(moe_every=2), 'moe_every=2 needs experts'), (dict(mtp_layers=1), 'needs vocab'),
    (dict(shared_expert_dim=8), 'shared_expert_dim=8 needs experts'),
    (dict(other_embeddings=2), 'other_embeddings=2 needs vocab'),
    (dict(biases='some'), "unknown biases 'some'"), (dict(window=0), 'window=0 must be a whole'),
    (dict(vision_config=1), "unknown field of Model 'vision_config'")])
def test_what_cannot_be(given, says):
    make = lambda: Model(**dict(seq_len=8, embed_dim=48, heads=4, depth=2) | given)
    if says is None: assert make().parameters > 0; return
    with pytest.raises(ValueError, match=says): make()


def test_each_field_counts():
    "Parameters that one field adds, by hand."
    plain = Model(8, 48, 4, 2, vocab=10)
    added = lambda **change: dataclasses.replace(plain, **change).parameters - plain.parameters
    assert added(learned_positions=True) == 8 * 48 and added(tied_embeddings=True) == -10 * 48
    assert added(norm='rmsnorm') == -(2 * 2 + 1) * 48
    assert added(biases='attention') == -2 * (192 + 48) and added(biases='none') == -2 * 9 * 48
    assert added(biases='qkv') == -2 * (192 + 48 + 48)
    assert added(attention_gate=True, biases='none') == added(biases='none') + 2 * 48 * 48
    assert added(qk_norm=True) == 2 * 2 * 2 * 12 and added(attention_sinks=True) == 2 * 4
    assert added(kv_heads=2) == -2 * 2 * (48 + 1) * 24
    assert added(head_dim=24) == 2 * (4 * 48 * 48 + 3 * 48)
    assert added(window=3) == 0
    assert added(biases='mlp') == -2 * (3 * 48 + 48)
    assert added(norm='unscaled') == -(2 * 2 + 1) * 2 * 48 and added(layer_norms=4) == 8 * 48
    assert added(output_bias=True) == 10 and added(other_embeddings=3) == 3 * 48
    assert added(output_transform=True) == 48 * 48 + 48 + 2 * 48
    assert added(embedding_norm=True) == 2 * 48
    assert added(qk_norm=True, qk_norm_whole=True) == 2 * 2 * 2 * 48


@pytest.mark.parametrize('name', NAMED)
def test_priced(name):
    "By every way in; sizes alone, which are of layers like GPT's, name what they lack."
    for way in (lambda: estimate(name, Parallel(), 'H200', 16,
                                 assumptions='corrected'), lambda: model_figures(name),
                lambda: search(name, 64, 'H200', 64, assumptions='corrected')): way()
    m = NAMED[name]
    if not (m.experts or m.head_dim or m.kv_heads): Sizes.of([name]); return
    with pytest.raises(ValueError, match=f'^{name}: .* is more than sizes say'): Sizes.of([name])


def test_llama_is_priced_as_it_is():
    "All of its parameters are held; the model's figures leave the embedding out."
    m, p = NAMED['llama3.1_8B'], Parallel(tp=1)
    one = estimate(m, p, 'H100-80GB', 1, 'calibrated')
    assert math.isclose(one.stats['weights_GB'] / 2e-9, m.parameters, rel_tol=1e-12)
    assert math.isclose(model_figures(m)['parameters_B'] * 1e9,
                        m.parameters - 2 * m.vocab * m.embed_dim, rel_tol=1e-4)
    assert math.isclose(model_figures(m, 'H200', 'calibrated')['parameters_B'],
                        model_figures(m)['parameters_B'], rel_tol=1e-12)
    with pytest.raises(ValueError, match='measured prices are those of a system'):
        model_figures(m, assumptions='calibrated')


def test_other_lengths_train_on_as_many_tokens():
    m = NAMED['llama3.1_8B']
    long = with_length(m, 131072)
    assert long.seq_len == 131072 and long.train_samples * 131072 == pytest.approx(15e12)
    assert with_length(NAMED['mixtral_8x7B'], 64).train_samples is None
    text = json.loads(good('plan', 'llama3.1_8B', '--gpus', 64, '--global-batch', 64,
                           '--seq-len', 16384, '--format', 'json'))
    assert text['budget']['tokens'] == pytest.approx(15e12)


def test_which_layers_have_a_window():
    "Every n-th layer sees all: the n-th, twice the n-th, ...; without a period none does."
    windows = lambda **own: [has_window(Model(1024, 64, 4, 6, window=128, **own), i)
                             for i in range(6)]
    assert windows(full_attention_every=3) == [True, True, False] * 2
    assert windows(full_attention_every=2) == [True, False] * 3
    assert windows() == [True] * 6
    last = Model(1024, 64, 4, 6, window=128, full_attention_every=3)
    assert not has_window(last, 9)   # what guesses further ahead is as the last layer
    assert not has_window(Model(1024, 64, 4, 6), 0)
