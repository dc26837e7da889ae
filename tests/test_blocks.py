"""A model made of blocks gets every answer that a named one gets: nothing asks for its fields.

The twin of a named model says of its layers only what they are made of.
"""
import dataclasses

import pandas as pd
import pytest

from transformer_perf import Model, Parallel, search
from transformer_perf.advice import fits, improve, why_not
from transformer_perf.execution import practice
from transformer_perf.models import as_model
from transformer_perf.panels import strategies_for
from transformer_perf.scaling import parameters
from transformer_perf.sensitivity import needed
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


@EACH
@pytest.mark.parametrize('assumptions', ['corrected', 'calibrated'])
def test_a_search(name, assumptions):
    asked = dict(n_gpus=[64, 1024], system='H200', global_batch=1024, assumptions=assumptions)
    one, other = (search(model, **asked) for model in (name, TWINS[name]))
    same_table(one, other)
    assert (one.candidates, one.reasons) == (other.candidates, other.reasons)
    assert (other.ep > 1).any() == (name != 'llama3.1_8B')
    assert practice(TWINS[name]) == practice(as_model(name))


@EACH
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
    "Grids know what layers are made of; the estimates of the characterization do not."
    assert strategies_for(TWINS[name]) == strategies_for(as_model(name))
    with pytest.raises(ValueError, match=f'{name}: mlp_dim'): parameters(TWINS[name])
    plain = dataclasses.replace(TWINS[name], gated_mlp=False, mlp_dim=4 * TWINS[name].embed_dim)
    with pytest.raises(ValueError, match=f'{name}: its own layers are not'): parameters(plain)
    gpt3 = as_model('gpt3')
    assert parameters(dataclasses.replace(gpt3, layers=gpt3.blocks)) == parameters(gpt3)


def test_experts_of_two_kinds():
    "As many GPUs share them as divide both; what tells experts apart is no field."
    (block, depth), = TWINS['mixtral_8x7B'].blocks
    more = dataclasses.replace(block, ffn=dataclasses.replace(block.ffn, number=12))
    both = dataclasses.replace(TWINS['mixtral_8x7B'], layers=((block, 16), (more, depth - 16)))
    found = search(both, 64, 'H200', 64, k=10_000)
    assert set(found.ep) == {1, 2, 4}
