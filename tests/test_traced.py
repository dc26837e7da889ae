"Numbers that remember: every figure can be taken apart, and its parts give it again."
import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings, strategies as st

from transformer_perf import Model, Parallel, estimate, search
from transformer_perf.estimates import as_assumptions
from transformer_perf.iteration import traced_figures
from transformer_perf.systems import as_system
from transformer_perf.traced import (
    Explanation, Leaf, Trace, Traced, computed_again, core, one_step, remembered, run)

PRESETS = ('paper', 'corrected', 'calibrated')
NUMPY = {**vars(np), 'max': np.maximum, 'min': np.minimum}
few = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck),
               phases=(Phase.generate,))   # a counterexample is small enough as it is
pick = st.sampled_from


def close(a, b, rel=1e-12): return math.isclose(a, b, rel_tol=rel, abs_tol=1e-300)


# what a tree says

def steps(explanation, *more):
    "Every line of an explanation, and of more figures, once."
    todo, found = [explanation.number, *more], {}
    while todo:
        step = explanation.step(todo.pop())
        if id(step.end) in found: continue
        found[id(step.end)] = step
        todo += step.inputs.values()
    return list(found.values())


def leaves(found):
    "The names and owners of what was given, in any of the figures."
    ends = [step.end for step in steps(found)]
    return {(x.leaf.name, x.leaf.owner) for x in ends if isinstance(x, Traced) and x.leaf}


def is_whole(step):
    "Whether a line names a function that counts as one step."
    todo = [step.end]
    while todo:
        x = todo.pop()
        if hasattr(core(x.function), 'uses'): return True
        todo += [y for arg in x.args if isinstance(arg, Traced) and not arg.leaf
                 for y in [arg] if y.call is step.end.call]
    return False


def wrong_lines(found, *more):
    "Formulas that do not give the value of their line from the values that they name."
    wrong = []
    for step in steps(found, *more):
        if not step.inputs or is_whole(step): continue
        values = {name: x.value for name, x in step.inputs.items()}
        got = eval(step.formula, NUMPY, values)
        if not np.allclose(got, step.value, rtol=1e-12, atol=1e-300): wrong.append(step.formula)
    return wrong


def all_again(found, changes=None):  # dict: figure -> value
    "All figures computed again, what they share once."
    return computed_again(Traced(None, Trace(), dict, args=(found,)), changes)


def check(one):
    "Every figure of an estimate has a history, which gives it again."
    found, trace = traced_figures(one)
    assert found.keys() == one.stats.keys()
    again = all_again(found)
    for name, x in found.items():
        if not isinstance(x, Traced):   # nothing is sent, so nothing was computed
            assert x == 0 == one.stats[name] and name in ('dp_comm_s', 'other_s'), name
            continue
        assert close(float(x.value), one.stats[name]), name
        assert close(float(again[name]), one.stats[name]), name
    return found, trace


# every column, every preset, every kind of model

KINDS = {
    'dense': ('gpt3', dict(tp=4, pp=8, dp=4), 'A100-80GB'),
    'summa': ('gpt3', dict(strategy='2d', tp=4, cp=2, pp=2, dp=2), 'A100-80GB'),
    'zero3': ('llama3.1_8B', dict(tp=2, dp=8, zero_stage=3, dp_replicate=2), 'H100-80GB'),
    'context': ('llama3.1_8B', dict(tp=2, cp=4, pp=2, dp=2, context='ulysses'), 'H100-80GB'),
    'zero bubble': ('gpt3', dict(tp=4, pp=8, dp=2, schedule='zb-v'), 'A100-80GB'),
    'experts': ('mixtral_8x7B', dict(tp=2, pp=4, dp=8, ep=8, zero_stage=2), 'H100-80GB'),
    'latent': ('deepseek_v3', dict(pp=1, dp=64, ep=64, micro_batch=1), 'H100-80GB'),
    'windows': ('gpt_oss_120B', dict(pp=4, dp=8, ep=8), 'B200-180GB'),
    'interleaved': ('gpt3', dict(tp=8, pp=4, dp=2, virtual_stages=2, recompute='full:1',
                                 precision='fp8'), 'H100-80GB')}
SLOW = ('latent', 'windows')   # whose lines are not all calculated


@pytest.mark.parametrize('preset, kind', [
    ('paper', 'dense'), ('corrected', 'dense'), ('corrected', 'experts'),
    *(('calibrated', kind) for kind in KINDS)])
def test_every_figure_has_a_history(kind, preset):
    model, layout, system = KINDS[kind]
    one = estimate(model, Parallel(**layout), system, 256, preset)
    found, trace = check(one)
    more = [] if kind in SLOW else [found['memory_bound_GB'], found['hfu']]
    assert not wrong_lines(Explanation('iteration_s', found['iteration_s'], trace.sources), *more)


@pytest.mark.parametrize('preset', ['corrected', 'calibrated'])
def test_a_played_schedule_has_a_history(preset):
    "Stages that differ: the schedule is played again from durations that remember."
    a = dataclasses.replace(as_assumptions(preset), uneven_stages=True)
    one = estimate('mixtral_8x7B', Parallel(pp=5, dp=2), 'H100-80GB', 64, a)
    assert 'played' in ' '.join(one.notes)
    found, trace = check(one)
    bubble = Explanation('bubble_s', found['bubble_s'], trace.sources)
    assert any('played(' in step.formula for step in steps(bubble))
    assert {'matrix_flops_fp16', 'embed_dim', 'pp'} <= {name for name, _ in leaves(bubble)}
    faster = dataclasses.replace(one.system, matrix_flops_fp16=1000.)
    again = estimate('mixtral_8x7B', one.parallel, faster, 64, a).stats['bubble_s']
    told = computed_again(found['bubble_s'], {'matrix_flops_fp16': 1000.})
    assert not close(one.stats['bubble_s'], again, 1e-3) and close(float(told), again, 1e-9)


def small_model(l, q, h, depth, kv, gated, vocab):
    return Model(l, q * h, h, depth, 4 * q * h, kv_heads=max(h // kv, 1), gated_mlp=gated,
                 vocab=vocab)


models = st.builds(small_model, pick([512, 2048]), pick([64, 128]), pick([4, 8]), pick([4, 8]),
                   pick([1, 2]), st.booleans(), pick([None, 32000]))
sizes = pick([1, 2, 4])


@few
@given(models, pick(PRESETS), pick(['A100-80GB', 'H100-80GB', 'B200-180GB']), st.data())
def test_leaves_give_every_figure(model, preset, system, data):
    layout = dict(tp=data.draw(sizes), cp=data.draw(sizes), pp=data.draw(sizes),
                  dp=data.draw(sizes), zero_stage=data.draw(pick([0, 1, 2, 3])),
                  recompute=data.draw(pick(['none', 'selective', 'full'])),
                  strategy=data.draw(pick([None, '2d'])), micro_batch=data.draw(pick([1, 2])))
    try: one = estimate(model, Parallel(**layout), system, 64, preset)
    except ValueError: assume(False)
    found, trace = check(one)
    name = data.draw(pick(sorted(found)))
    assert not wrong_lines(Explanation(name, found[name], trace.sources)), name


# the leaves are those that matter

MATTER = {'compute_s': {'embed_dim', 'seq_len', 'depth', 'matrix_flops_fp16', 'tp', 'pp'},
          'tp_comm_s': {'embed_dim', 'nvlink_bandwidth', 'tp'},
          'dp_comm_s': {'mlp_dim', 'dp', 'nvlink_dp'},
          'pp_comm_s': {'embed_dim', 'ib_bandwidth', 'global_batch'},
          'memory_GB': {'embed_dim', 'mlp_dim', 'depth', 'tp', 'pp'}}


@pytest.mark.parametrize('preset', PRESETS)
def test_what_matters_is_a_leaf(preset):
    one = estimate('gpt3', Parallel(tp=4, pp=8, dp=4), 'A100-80GB', 256, preset)
    found, _ = traced_figures(one)
    for figure, wanted in MATTER.items():
        names = {name for name, _ in leaves(Explanation(figure, found[figure]))}
        assert wanted <= names, (figure, wanted - names)
    owners = {owner for _, owner in leaves(Explanation('compute_s', found['compute_s']))}
    assert {'choice', 'model gpt3', 'system A100-80GB'} <= owners
    measured = {'measured Ampere/any', 'A100/trtllm/bf16'}
    assert (measured <= owners) == (preset == 'calibrated')


FIELDS = ('hbm_bandwidth', 'matrix_flops_fp16', 'nvlink_bandwidth', 'ib_bandwidth')


@pytest.mark.parametrize('preset', PRESETS)
@pytest.mark.parametrize('kind', ['dense', 'zero3', 'experts'])
def test_a_leaf_changes_figures_as_an_estimate_does(kind, preset):
    "Nothing that depends on a field has lost it on the way."
    model, layout, system = KINDS[kind]
    one = estimate(model, Parallel(**layout), system, 256, preset)
    found, _ = traced_figures(one)
    small = 1e-7   # takes no other branch; and each field changes by another factor
    changed = {field: getattr(one.system, field) * (1 + i * small)
               for i, field in enumerate(FIELDS, 1)}
    new = estimate(model, one.parallel, dataclasses.replace(one.system, **changed), 256, preset)
    for name, told in all_again(found, changed).items():
        assert close(float(told), new.stats[name], 1e-12), name


def test_an_estimate_is_not_traced():
    "Explaining leaves nothing behind."
    ask = lambda: estimate('gpt3', Parallel(tp=4, pp=8, dp=4), 'A100-80GB', 256, 'calibrated')
    before = ask()
    assert before.explain('iteration_s').number.value == before.stats['iteration_s']
    after = ask()
    assert after.stats == before.stats
    assert {type(x) for x in after.stats.values()} == {float}


# how it is told

def test_text_and_html_and_data():
    one = estimate('gpt3', Parallel(tp=4, pp=8, dp=4), 'A100-80GB', 256)
    found = one.explain('dp_comm_s', depth=2)
    text, page, data = repr(found), found._repr_html_(), found.as_dict()
    assert text.startswith('1. dp_comm_s = ') and 'two_tier_time [allgather]' in text
    assert 'system A100-80GB: Data sheet' in text and max(map(len, text.splitlines()[:-5])) < 250
    assert page.count('<details') == page.count('</details>') > 2 and '<script' not in page
    assert json.loads(json.dumps(data)) == data and len(repr(one.explain('dp_comm_s', 0))) < 2000
    assert data['tree']['unit'] == 's' and 'reduction_time' in data['tree']['function']
    assert one.explain('memory_GB').as_dict(0)['tree']['unit'] == 'GB'


def test_what_is_nothing_is_told_as_such():
    one = estimate('gpt3', Parallel(tp=4, pp=8), 'A100-80GB', 256)
    assert repr(one.explain('dp_comm_s')).startswith('dp_comm_s = 0 s')
    assert one.explain('dp_comm_s').as_dict()['tree'] == {
        'name': 'dp_comm_s', 'value': 0., 'code': '', 'unit': 's'}


def test_a_row_of_a_search_can_be_explained():
    best = search('gpt3', 64, 'A100-80GB', global_batch=64, k=1).iloc[0]
    one = estimate('gpt3', Parallel.from_row(best), 'A100-80GB', 64)
    assert close(one.explain('iteration_s').number.value, best.iteration_s)


@pytest.mark.parametrize('figure, depth, message', [
    ('iteration', 3, 'iteration_s'), ('tp', 3, 'unknown figure'), ('mfu', -1, 'depth=-1'),
    ('mfu', 'x', "depth='x'"), (None, 3, 'unknown figure None')])
def test_mistakes(figure, depth, message):
    one = estimate('gpt3', Parallel(tp=4, pp=8, dp=4), 'A100-80GB', 256)
    with pytest.raises(ValueError, match=message) as caught: one.explain(figure, depth)
    assert '\n' not in str(caught.value) and len(str(caught.value)) < 300


# the type

def number(value, name='x'): return Traced(value, Trace(), leaf=Leaf(name))


def test_comparisons_are_plain_and_what_branches_goes_on():
    x = number(3.)
    assert (x > 2) is True and bool(x) and int(x) == 3 and list(range(number(2))) == [0, 1]
    assert max(x, 1) is x and np.greater(x, 2).dtype == bool and np.ndim(x) == 0
    for y in (np.where(x > 2, x * 2, 0.)[()], np.maximum(x, 1) * 2, 2 * np.floor(x + .5),
              np.asarray(x) * 2, np.float64(2) * x, sum([x, x]), np.clip(x, 0, 5) * 2):
        assert isinstance(y, Traced) and float(y) == 6 == float(computed_again(y))
    assert isinstance(-x + abs(x), Traced) and f'{x:.1f}' == '3.0'


def test_arrays_and_the_functions_on_them():
    x = number(np.array([1., 2., 4.]))
    for y in (np.add.reduceat(x, [0, 2])[0] + 4, x.sum(), x[np.argmax(x)] + 3, np.cumsum(x)[-1],
              np.concatenate([x, x])[3:].sum(), np.stack([x, x])[1].max() + 3, sum(iter(x))):
        assert isinstance(y, Traced) and float(y) == 7 == float(computed_again(y))
    assert int(np.argmin(x)) == 0 and len(x) == 3 and x.shape == (3,)
    with pytest.raises(TypeError): len(number(1.))


def test_a_lost_history_is_a_constant():
    def doubled(x):
        "Twice a number, by a detour."
        known = float(x)
        return x + known
    trace = Trace()
    y = run(trace, doubled, Traced(2., trace, leaf=Leaf('x')))
    told = Explanation('y', y).as_dict()['tree']
    assert told['formula'] == 'x + known'
    assert {t['name']: t.get('code') for t in told['inputs']} == {'x': None, 'known': 'known'}


def test_one_step_is_run_again():
    calls = []
    @one_step()
    def halved(x):
        "Half."
        calls.append(type(x))
        return x / 2
    y = halved(number(8.))
    assert float(computed_again(y)) == 4 == halved(8) and set(calls) == {float, int}
    assert Explanation('y', y).step(y).formula == 'halved(x)'


def test_a_twin_is_what_it_was():
    system, trace = as_system('A100'), Trace()
    twin = remembered(system, trace, 'system')
    assert isinstance(twin, type(system)) and twin.name == 'A100'
    assert dataclasses.replace(twin, architecture='Hopper').hbm_bandwidth is twin.hbm_bandwidth
    assert float(twin.network.bandwidth) == system.network.bandwidth
    assert twin.hbm_bandwidth.leaf.words == 'GB/s' and trace.sources == {'system': ''}
