"""A model made of blocks gets every answer that a named one gets: nothing asks for its fields.

The twin of a named model says of its layers only what they are made of.
"""
import dataclasses
import math
import re
from functools import partial

import pandas as pd
import pytest

from thorough import first_of, thorough
from transformer_perf import Model, Parallel, estimate, search
from transformer_perf.advice import fits, improve, needed, why_not
from transformer_perf.blocks import MLP, Attention, Half, gpt_block
from transformer_perf.estimates import Operation, Product, Work, as_assumptions
from transformer_perf.execution import practice, strategies_for
from transformer_perf.kernels import pricer_of
from transformer_perf.models import as_model
from transformer_perf.scaling import Sizes, activation_GB, parameters, training_TFLOP
from transformer_perf.systems import as_system

NAMES = ('mixtral_8x7B', 'deepseek_v3', 'llama3.1_8B')
CASES = {   # a configuration that runs, and one that needs too much
    'mixtral_8x7B': (Parallel(tp=2, pp=4, dp=8, ep=4), Parallel(tp=1, pp=4, dp=16, ep=2), 256),
    'deepseek_v3': (Parallel(pp=16, dp=64, ep=32, recompute='full'),
                    Parallel(pp=8, dp=128, ep=16), 4096),
    'llama3.1_8B': (Parallel(tp=2, dp=32), Parallel(dp=64, zero_stage=0), 256)}


def twin_of(name):
    "A model that says of its layers nothing but their blocks."
    m = as_model(name)
    ends = ('mlp_dim', 'gated_mlp', 'vocab', 'tied_embeddings', 'mtp_layers')
    return Model(m.seq_len, m.embed_dim, m.heads, m.depth, name=name, layers=m.blocks,
                 train_samples=m.train_samples, **{end: getattr(m, end) for end in ends})


TWINS = {name: twin_of(name) for name in NAMES}
EACH = pytest.mark.parametrize('name', NAMES)


def same_table(one, other):
    assert list(one) == list(other)
    pd.testing.assert_frame_equal(pd.DataFrame(one), pd.DataFrame(other), check_exact=True)


@pytest.mark.parametrize('name, assumptions', first_of(3, [
    ('mixtral_8x7B', 'calibrated'), ('deepseek_v3', 'corrected'), ('llama3.1_8B', 'calibrated'),
    ('mixtral_8x7B', 'corrected'), ('deepseek_v3', 'calibrated'), ('llama3.1_8B', 'corrected')]))
def test_a_search(name, assumptions):
    asked = dict(n_gpus=[64, 1024], system='H200', global_batch=1024, assumptions=assumptions)
    one, other = (search(model, **asked) for model in (name, TWINS[name]))
    same_table(one, other)
    assert (one.candidates, one.reasons) == (other.candidates, other.reasons)
    assert (other.ep > 1).any() == (name != 'llama3.1_8B')
    assert practice(TWINS[name]) == practice(as_model(name))


@pytest.mark.parametrize('name', ['mixtral_8x7B', *thorough('llama3.1_8B', 'deepseek_v3')])
def test_advice(name):
    "What it needs, what would be faster, and why not: in the same words."
    runs, needs, batch = CASES[name]
    for p in (runs, needs):
        asked = p, 'H100-80GB', batch
        one, other = (fits(model, *asked) for model in (name, TWINS[name]))
        assert one.estimate.stats['memory_GB'] == other.estimate.stats['memory_GB']
        assert one.summary == other.summary
        one, other = (improve(model, *asked) for model in (name, TWINS[name]))
        assert one.summary == other.summary and one.tried == other.tried
        same_table(one.table, other.table)
    one, other = (why_not(model, *asked) for model in (name, TWINS[name]))
    assert one.summary == other.summary


@EACH
def test_what_would_be_needed(name):
    runs, _, batch = CASES[name]
    one, other = (needed('hbm_bandwidth', model, runs, 'H100-80GB', batch, 'calibrated', .9)
                  for model in (name, TWINS[name]))
    assert one == other


@EACH
def test_other_rooms(name):
    "Grids and the characterization know what layers are made of."
    assert strategies_for(TWINS[name]) == strategies_for(as_model(name))
    of_two = (partial(figure, samples=2) for figure in (training_TFLOP, activation_GB))
    for counted in (parameters, *of_two):
        assert counted(TWINS[name]) == counted(as_model(name))
    with pytest.raises(ValueError, match=f'{name}: .* is more than sizes say'):
        Sizes.of([TWINS[name]])
    gpt3 = as_model('gpt3')
    assert parameters(dataclasses.replace(gpt3, layers=gpt3.blocks)) == parameters(gpt3)


def test_experts_of_two_kinds():
    "As many GPUs share them as divide both; what tells experts apart is no field."
    (block, depth), = TWINS['mixtral_8x7B'].blocks
    more = dataclasses.replace(block, ffn=dataclasses.replace(block.ffn, number=12))
    both = dataclasses.replace(TWINS['mixtral_8x7B'], layers=((block, 16), (more, depth - 16)))
    found = search(both, 64, 'H200', 64, k=10_000, assumptions='corrected')
    assert set(found.ep) == {1, 2, 4}


# what a half and a model may hold

class Odd(Half):
    "What lists something else."
    def __init__(self, found): self.found = found
    def operations(self, job): return self.found


NORM = Operation('norm', Work(), Work())


@pytest.mark.parametrize('found, message', [
    ((), 'operations of Odd=() must be of type list'), (None, 'must be of type list'),
    ([NORM, [NORM]], 'a list in a list needs a star'),
    ([NORM._replace(recomputed_with='core_attn')], "recomputed_with of norm='core_attn'")])
def test_what_is_no_list_of_operations(found, message):
    (full, depth), = as_model('llama3.1_8B').blocks
    layers = ((dataclasses.replace(full, ffn=Odd(found)), depth),)
    with pytest.raises(ValueError, match=re.escape(message)):
        estimate(dataclasses.replace(as_model('llama3.1_8B'), layers=layers), Parallel(), 'H200', 8)


@pytest.mark.parametrize('change, message', [
    (dict(mixer=None), 'mixer=None must be of type Half'), (dict(norm='rms'), "unknown norm 'rms'"),
    (dict(biases='some'), "unknown biases 'some'")])
def test_what_is_no_block(change, message):
    (full, _), = as_model('llama3.1_8B').blocks
    with pytest.raises(ValueError, match=message): dataclasses.replace(full, **change)


def test_a_block_of_gpt():
    "Heads share the width, and the MLP is four times as wide unless said otherwise."
    block = gpt_block(1024, 16)
    assert (block.mixer, block.ffn) == (Attention(16, 16, 64, 64), MLP(4096))
    assert gpt_block(1024, 16, 3000).ffn == MLP(3000)


def test_layers_are_blocks_and_how_many():
    llama = as_model('llama3.1_8B')
    (full, depth), = llama.blocks
    for layers in (((full, depth + 1), (full, -1)), ((full, depth - .5), (full, .5)),
                   (full,) * depth, ((None, depth),)):
        with pytest.raises(ValueError, match='layers'): dataclasses.replace(llama, layers=layers)


class Nothing(Half):
    "What forgot its operations."


def test_a_half_without_operations_is_named():
    (full, depth), = as_model('llama3.1_8B').blocks
    layers = ((dataclasses.replace(full, mixer=Nothing()), depth),)
    with pytest.raises(ValueError, match='Nothing lists no operations'):
        estimate(dataclasses.replace(as_model('llama3.1_8B'), layers=layers), Parallel(), 'H200', 8)


@dataclasses.dataclass(frozen=True)
class Around(Half):
    "Attention, kept as a field."
    heads: Half
    def operations(self, job): return self.heads.operations(job)


@dataclasses.dataclass(frozen=True)
class Made(Half):
    "Attention, made where it is needed."
    number: int
    def operations(self, job):
        return Attention(self.number, self.number, 128, 128).operations(job)


def with_mixer(mixer):
    llama = as_model('llama3.1_8B')
    (full, depth), = llama.blocks
    return dataclasses.replace(llama, layers=((dataclasses.replace(full, mixer=mixer), depth),))


@pytest.mark.parametrize('context', ['allgather', 'ring', 'ulysses', 'ulysses+ring'])
def test_a_half_around_another_needs_what_that_needs(context):
    "Groups, buffers and what must divide; a half that is no field is refused, not free."
    heads, p = Attention(32, 8, 128, 128), Parallel(cp=4, dp=2, context=context)
    ask = lambda mixer, p=p: estimate(with_mixer(mixer), p, 'H200', 8, 'calibrated').stats
    assert ask(Around(heads)) == ask(heads)
    with pytest.raises(ValueError, match='heads=32 must be divisible by tp=3'):
        ask(Around(heads), Parallel(tp=3))
    if 'ulysses' in context:
        with pytest.raises(ValueError, match="fusedla sends to 'cp_heads', which groups"):
            ask(Made(32))


@dataclasses.dataclass(frozen=True)
class Beside(Half):
    "Experts, kept as a field."
    routed: Half
    gated = True
    def operations(self, job): return self.routed.operations(job)


def test_a_half_around_experts_sends_tokens():
    mixtral = as_model('mixtral_8x7B')
    (full, depth), = mixtral.blocks
    around = dataclasses.replace(full, ffn=Beside(full.ffn))
    model = dataclasses.replace(mixtral, layers=((around, depth),))
    one, other = (estimate(m, Parallel(tp=2, pp=4, dp=8, ep=4), 'H200', 64, 'calibrated').stats
                  for m in (mixtral, model))
    assert one == other   # also in rank: that no run had layers of that name is so of all layouts
    with pytest.raises(ValueError, match='experts=8 must be divisible by ep=16'):
        estimate(model, Parallel(dp=16, ep=16), 'H200', 64)
    assert (search(model, 64, 'H200', 64, k=1).ep > 1).all()


@pytest.mark.parametrize('preset', ['corrected', 'calibrated'])
def test_a_fused_kernel_moves_only_its_operands(preset):
    "By its arithmetic, or its traffic, whichever takes longer; and is told so."
    pricer = pricer_of(as_system('H100-80GB'), as_assumptions(preset).on(as_system('H100-80GB')))
    product = Product(4096., 4096., 4096.)
    alone, fused = Work((product,)), Work((product,), operands=1e6, fused=True)
    large = fused._replace(operands=1e10)
    busy = [pricer.busy(work) for work in (alone, fused, large)]
    assert busy[2].total > 5 * busy[1].total
    if preset == 'calibrated':
        k = pricer.parameters.kernels
        by_hand = k.launch_gap + 1e-12 * product.flop / (989.4 * k.fused_share * k.clock)
        assert math.isclose(busy[1].total, by_hand, rel_tol=1e-9)
        by_hand = k.launch_gap + 2e-9 * 1e10 / (k.vector_bandwidth * pricer.system.hbm_bandwidth)
        assert math.isclose(busy[2].total, by_hand, rel_tol=1e-9)
