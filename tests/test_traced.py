"Every figure can be taken apart: each formula gives its line, down to what was given."
import dataclasses
import json
import math
import operator
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, strategies as st

from thorough import examples, first_of
from transformer_perf import Model, Parallel, estimate, kernels, search
from transformer_perf.estimates import AttentionKernel, Group, Product, as_assumptions
from transformer_perf.explained import figures_told
from transformer_perf.parameters import Costs
from transformer_perf.quantities import Quantity, named, plain, stacked_column, told
from transformer_perf.schedules import SCHEDULES
from transformer_perf.systems import PHYSICAL
from transformer_perf.traced import Explanation, leaves_of

PRESETS = ('paper', 'corrected', 'calibrated')
few = examples(8, suppress_health_check=list(HealthCheck),
               phases=(Phase.generate,))   # a counterexample is small enough as it is
pick = st.sampled_from


def close(a, b, rel=1e-12): return math.isclose(a, b, rel_tol=rel, abs_tol=1e-300)


# what a tree says

def below(*figures):
    "Every quantity below some figures, and these."
    todo, found = [*figures], {}
    while todo:
        x = todo.pop()
        if id(x) in found: continue
        found[id(x)] = x
        todo += x.inputs
    return list(found.values())


def leaves(*figures):
    "Names and owners of what was given."
    return {(x.name, x.source) for x in below(*figures) if not x.formula and not x.inputs}


def names_for(one):
    "What formulas may name beside their inputs: functions, and what these are told about."
    schedule = SCHEDULES[one.parallel.schedule]
    priced = ('product_time', 'attention_time', 'priced_collective', 'priced_exchange',
              'send_seconds')
    return {**vars(math), 'max': max, 'min': min, 'Group': Group, 'Product': Product,
            'AttentionKernel': AttentionKernel, 'idle': schedule.idle, 'saved': schedule.saved,
            'system': one.system, 'parameters': one.assumptions.measured,
            **{name: getattr(kernels, name) for name in priced}}


def wrong_lines(one, *figures):
    "Formulas that do not give the value of their line from the values that they name."
    known, wrong = names_for(one), []
    for x in below(*figures):
        if not x.formula: continue
        got = eval(x.formula, known, {y.name: y.value for y in x.inputs})
        rounding = 1e-15 * max((abs(y.value) for y in x.inputs), default=0.)   # of a difference
        if abs(got - x.value) > max(1e-12 * abs(x.value), rounding):
            wrong.append((x.name, x.formula, got, x.value))
    return wrong


def check(one):
    "Every figure of an estimate is told, and every line is right."
    found = figures_told(one)
    assert found.keys() == one.stats.keys()
    for name, x in found.items(): assert close(x.value, one.stats[name]), name
    assert not wrong_lines(one, *found.values())
    return found


@pytest.mark.parametrize('batch, layout', [
    (1, {}), (4, {}), (2, dict(micro_batch=2, recompute='full')), (4, dict(dp=2)),
    (8, dict(tp=2, pp=2, dp=2))])
def test_autocast_is_told(batch, layout):
    "Gradients made anew, casts, a stream in 32 bits; and what a rank holds has the same peak."
    one = estimate('llama3.1_8B', Parallel(**layout), 'H100-80GB', batch, 'calibrated',
                   'Transformers')
    check(one)
    assert close(one.memory_over_time.memory_GB.max(), one.stats['memory_GB'])


# every column, every preset, every kind of model

KINDS = {
    'dense': ('gpt3', dict(tp=4, pp=8, dp=4), 'A100-80GB'),
    'summa': ('gpt3', dict(strategy='2d', tp=4, cp=2, pp=2, dp=2), 'A100-80GB'),
    'zero3': ('llama3.1_8B', dict(tp=2, dp=8, zero_stage=3, dp_replicate=2), 'H100-80GB'),
    'context': ('llama3.1_8B', dict(tp=2, cp=4, pp=2, dp=2, context='ulysses'), 'H100-80GB'),
    'ring': ('llama3.1_8B', dict(tp=2, cp=4, pp=2, dp=2, context='ring', recompute='selective'),
             'H100-80GB'),
    'whole rows': ('llama3.1_8B', dict(tp=4, pp=2, dp=2, sequence_sharded=False, tp_overlap=True),
                   'H100-80GB'),
    'zero bubble': ('gpt3', dict(tp=4, pp=8, dp=2, schedule='zb-v'), 'A100-80GB'),
    'both ways': ('gpt3', dict(tp=4, pp=8, dp=2, schedule='dualpipe'), 'A100-80GB'),
    'experts': ('mixtral_8x7B', dict(tp=2, pp=4, dp=8, ep=8, zero_stage=2), 'H100-80GB'),
    'latent': ('deepseek_v3', dict(pp=1, dp=64, ep=64, micro_batch=1), 'H100-80GB'),
    'sent once': ('deepseek_v3', dict(tp=2, dp=32, ep=8, etp=2, precision='fp8-block',
                                      dispatcher='once', tp_overlap=True), 'H100-80GB'),
    'windows': ('gpt_oss_120B', dict(pp=4, dp=8, ep=8), 'B200-180GB'),
    'graphs': ('mixtral_8x7B', dict(tp=2, pp=4, dp=8, ep=8, cuda_graphs='attn+moe_router'),
               'H100-80GB'),
    'offload': ('llama3.1_8B', dict(tp=2, dp=4, pp=2, offload='optimizer:0.5'), 'H100-80GB'),
    'offload all': ('mixtral_8x7B', dict(tp=2, dp=8, ep=8, zero_stage=3,
                                         offload='optimizer+weights'), 'H100-80GB'),
    'offload activations': ('mixtral_8x7B', dict(tp=2, pp=2, dp=2, offload='activations'),
                            'GB200-NVL72'),
    'offload parts': ('deepseek_v3', dict(pp=1, dp=64, ep=64, offload='core_attn+moe_act',
                                          recompute='layernorm'), 'H100-80GB'),
    'offload layers': ('gpt3', dict(tp=8, pp=4, dp=2, virtual_stages=2,
                                    offload='activations:3+optimizer'), 'A100-80GB'),
    'adapters': ('llama3.1_8B', dict(tp=2, pp=2, dp=2, adapters='lora:16'), 'H100-80GB'),
    'adapters, zero3': ('mixtral_8x7B', dict(dp=8, ep=8, zero_stage=3, adapters='qlora:8:mlp',
                                             offload='optimizer+weights'), 'H100-80GB'),
    'interleaved': ('gpt3', dict(tp=8, pp=4, dp=2, virtual_stages=2, recompute='full:1',
                                 precision='fp8'), 'H100-80GB')}


def estimate_of(kind, preset):
    model, layout, system = KINDS[kind]
    return estimate(model, Parallel(**layout), system, 256, preset)


@pytest.mark.parametrize('preset, kind', [
    *(('paper', kind) for kind in ('dense', 'summa', 'sent once')),
    *(('corrected', kind) for kind in ('dense', 'whole rows', 'experts')),
    *first_of(6, [('calibrated', kind) for kind in KINDS])])
def test_every_line_gives_its_value(kind, preset): check(estimate_of(kind, preset))


@pytest.mark.parametrize('recompute', ['none', 'full', 'full:1', 'layernorm'])
@pytest.mark.parametrize('layout', [dict(tp=4, pp=2, dp=2), dict(dp=8, zero_stage=3)])
def test_what_code_does_is_told(layout, recompute):
    "Every fact that a record may know of its software."
    facts = {f.name: True for f in dataclasses.fields(Costs) if isinstance(f.default, bool)}
    facts['bucket_bytes'] = 2.
    plain = {'tp_overlap': False, 'dp_overlap': False, 'sequence_sharded': False}
    p = Parallel(**layout, recompute=recompute)
    check(estimate('llama3.1_8B', p, 'H100-80GB', 64, 'calibrated', {
        'name': 'mine', 'like': 'any', 'knows': facts, 'chooses': plain}))


@pytest.mark.parametrize('preset', ['corrected', 'calibrated'])
def test_a_played_schedule_is_told(preset):
    "Stages that differ."
    a = dataclasses.replace(as_assumptions(preset), uneven_stages=True)
    one = estimate('mixtral_8x7B', Parallel(pp=5, dp=2), 'H100-80GB', 64, a)
    assert 'played' in ' '.join(one.notes)
    bubble = check(one)['bubble_s']
    assert 'played' in bubble.formula
    assert {'matrix_flops_fp16', 'embed_dim', 'pp'} <= {name for name, _ in leaves(bubble)}


def small_model(l, q, h, depth, kv, gated, vocab):
    return Model(l, q * h, h, depth, 4 * q * h, kv_heads=max(h // kv, 1), gated_mlp=gated,
                 vocab=vocab)


models = st.builds(small_model, pick([512, 2048]), pick([64, 128]), pick([4, 8]), pick([4, 8]),
                   pick([1, 2]), st.booleans(), pick([None, 32000]))
sizes = pick([1, 2, 4])


@few
@given(models, pick(PRESETS), pick(['A100-80GB', 'H100-80GB', 'MI300X']), st.data())
def test_lines_of_any_configuration(model, preset, system, data):
    layout = dict(tp=data.draw(sizes), cp=data.draw(sizes), pp=data.draw(sizes),
                  dp=data.draw(sizes), zero_stage=data.draw(pick([0, 1, 2, 3])),
                  recompute=data.draw(pick(['none', 'selective', 'full'])),
                  strategy=data.draw(pick([None, '2d'])), micro_batch=data.draw(pick([1, 2])))
    try: one = estimate(model, Parallel(**layout), system, 64, preset)
    except ValueError: assume(False)
    check(one)


# the leaves are those that matter

MATTER = {'compute_s': {'embed_dim', 'seq_len', 'depth', 'matrix_flops_fp16', 'tp', 'pp'},
          'tp_comm_s': {'embed_dim', 'nvlink_bandwidth', 'tp'},
          'dp_comm_s': {'mlp_dim', 'dp', 'nvlink_dp'},
          'pp_comm_s': {'embed_dim', 'ib_bandwidth', 'global_batch'},
          'memory_GB': {'embed_dim', 'mlp_dim', 'depth', 'tp', 'pp'}}


@pytest.mark.parametrize('preset', PRESETS)
def test_what_matters_is_a_leaf(preset):
    found = figures_told(estimate_of('dense', preset))
    for figure, wanted in MATTER.items():
        names = {name for name, _ in leaves(found[figure])}
        assert wanted <= names, (figure, wanted - names)
    owners = {owner for _, owner in leaves(found['compute_s'])}
    assert {'choice', 'model gpt3', 'system A100-80GB'} <= owners
    measured = {'measured Ampere/any', 'A100/trtllm/bf16'}
    assert (measured <= owners) == (preset == 'calibrated')


@pytest.mark.parametrize('preset', first_of(1, PRESETS[::-1]))
@pytest.mark.parametrize('kind', ['dense', 'zero3', 'experts'])
def test_no_rate_has_been_forgotten(kind, preset):
    "A figure that another rate of the system changes has that rate among its leaves."
    one, found = estimate_of(kind, preset), figures_told(estimate_of(kind, preset))
    told = {figure: {name for name, _ in leaves(x)} for figure, x in found.items()}
    for field in PHYSICAL:
        value = getattr(one.system, field)
        if value is None: continue
        other = dataclasses.replace(one.system, **{field: value * .999})
        new = estimate(one.model, one.parallel, other, 256, preset).stats
        moved = {figure for figure in told if not close(new[figure], one.stats[figure], 1e-9)}
        missing = {figure for figure in moved if field not in told[figure]}
        assert not missing, (field, missing)


def test_an_estimate_is_not_changed():
    "Explaining leaves nothing behind."
    before = estimate_of('dense', 'calibrated')
    assert close(before.explain('iteration_s').number.value, before.stats['iteration_s'], 1e-15)
    after = estimate_of('dense', 'calibrated')
    assert after.stats == before.stats
    assert {type(x) for x in after.stats.values()} == {float}


# how it is told

def test_text_and_html_and_data():
    one = estimate('gpt3', Parallel(tp=4, pp=8, dp=4), 'A100-80GB', 256, assumptions='corrected')
    found = one.explain('dp_comm_s', depth=2)
    text, page, data = repr(found), found._repr_html_(), found.as_dict()
    assert text.startswith('1. dp_comm_s = ') and 'allgather' in text
    assert 'system A100-80GB: Data sheet' in text and max(map(len, text.splitlines()[:-5])) < 250
    assert page.count('<details') == page.count('</details>') > 2 and '<script' not in page
    assert json.loads(json.dumps(data)) == data and len(repr(one.explain('dp_comm_s', 0))) < 2000
    assert data['tree']['unit'] == 's' and 'reduction_time' in data['tree']['function']
    assert 'two_tier_time' in repr(one.explain('dp_comm_s', depth=4))
    assert one.explain('memory_GB').as_dict(0)['tree']['unit'] == 'GB'


def test_what_is_nothing_is_told_as_such():
    one = estimate('gpt3', Parallel(tp=4, pp=8), 'A100-80GB', 256, assumptions='corrected')
    assert repr(one.explain('dp_comm_s')).startswith('dp_comm_s = 0 s')
    tree = one.explain('dp_comm_s').as_dict()['tree']
    assert (tree['name'], tree['value'], tree['unit']) == ('dp_comm_s', 0., 's')
    assert 'inputs' not in tree


def test_a_row_of_a_search_can_be_explained():
    best = search('gpt3', 64, 'A100-80GB', global_batch=64, k=1, assumptions='corrected').iloc[0]
    one = estimate('gpt3', Parallel.from_row(best), 'A100-80GB', 64, assumptions='corrected')
    assert close(one.explain('iteration_s').number.value, best.iteration_s)


@pytest.mark.parametrize('figure, depth, message', [
    ('iteration', 3, 'iteration_s'), ('tp', 3, 'unknown figure'), ('mfu', -1, 'depth=-1'),
    ('mfu', 'x', "depth='x'"), (None, 3, 'unknown figure None')])
def test_mistakes(figure, depth, message):
    one = estimate('gpt3', Parallel(tp=4, pp=8, dp=4), 'A100-80GB', 256, assumptions='corrected')
    with pytest.raises(ValueError, match=message) as caught: one.explain(figure, depth)
    assert '\n' not in str(caught.value) and len(str(caught.value)) < 300


# the parts

x, y, z = (Quantity(name, value) for name, value in (('x', 3.), ('y', .7), ('z', 12)))
OPERATIONS = [np.add, np.subtract, np.multiply, np.true_divide, np.floor_divide, np.maximum,
              np.minimum, lambda a, b: abs_of(a)**.5 + b, lambda a, b: np.log2(abs_of(a) + 1) * b]


def abs_of(a): return np.maximum(a, -1 * a)


def applied(operation, a, b):
    "Where nothing is divided by; else their sum."
    divides = operation in (np.true_divide, np.floor_divide)
    return a + b if divides and plain(b) == 0 else operation(a, b)


numbers = pick([x, y, z, 0, 1, 2., -1.5])
formulas = st.recursive(numbers, lambda inner: st.builds(applied, pick(OPERATIONS), inner, inner))


@examples(300)
@given(formulas)
def test_a_formula_gives_its_value(found):
    "With parentheses where they are needed, and nowhere lost."
    if not isinstance(found, Quantity): return
    known = vars(math) | {'max': max, 'min': min}
    got = eval(found.formula or found.name, known, {'x': 3., 'y': .7, 'z': 12})
    assert close(got, found.value, 1e-9) or abs(got - found.value) < 1e-9
    assert {'x', 'y', 'z'} & {*re.findall(r'\b[xyz]\b', found.formula or found.name)} == {
        i.name for i in found.inputs or (found,)}


@pytest.mark.parametrize('found, formula', [
    (x - (y - z), 'x - (y - z)'), (x / (y * z), 'x / (y * z)'), (x * (y // z), 'x * (y // z)'),
    ((x + y)**2, '(x + y)**2'), (2**-x, '2**(-1 * x)'), (x * 1 + 0 + 0 * y, 'x'),
    (np.float64(2) * x, '2 * x'), (np.sqrt(x) * np.True_, 'sqrt(x)'), (1 / x**1, '1 / x'),
    (np.minimum(x + y, np.inf), 'x + y'), (np.where(x > y, x / 2, y), 'x / 2'),
    (np.gcd(z, Quantity('n', 8)), 'gcd(z, n)'), (x * 1e-12, 'x * 1e-12')])
def test_a_formula_says_what_happened(found, formula):
    assert (found.formula or found.name) == formula


def test_each_name_means_one_number():
    "Two that share a name are told apart, also where one has had to be before."
    x2, x3 = Quantity('x', 4.), Quantity('x', 5.)
    both, other = (x + x2).called('a'), x2 + x3
    assert both.formula == 'x + x_2' and [i.value for i in both.inputs] == [3., 4.]
    mixed = both * other * x
    assert mixed.formula == 'a * (x + x_2) * x_3'
    assert eval(mixed.formula, {}, {i.name: i.value for i in mixed.inputs}) == 7 * 9 * 3
    assert (x2 + x2).formula == 'x + x' and x2 == 4. and x2 != x3


def test_columns_of_quantities():
    "NumPy's functions of arrays are those of each."
    column = stacked_column([x, y, 0.])
    found = np.maximum(column * 2 - 1, 0)[:2]
    assert [one.formula for one in found] == ['max(x * 2 - 1, 0)', 'max(y * 2 - 1, 0)']
    assert np.add.accumulate(column)[-1].formula == 'x + y' and column.any()
    assert (x + np.array([1., 2.]))[1].value == 5. and (column > 1).tolist() == [True, False, False]
    assert named(column * z, 'it', 's')[0].unit == 's'


@pytest.mark.parametrize('lost', [
    float, lambda x: np.array([x], dtype=float), lambda x: np.clip(x, 0, 1), np.mean, range, list,
    np.abs, np.exp, np.floor, hash, lambda x: np.stack([x, x]), lambda x: -stacked_column([x]),
    lambda x: operator.iadd(stacked_column([x]), 1)])
def test_a_name_is_not_lost_in_silence(lost):
    "Nor kept by a cache, which would hand it to those who asked for a plain number."
    with pytest.raises((TypeError, ValueError)): lost(x)


def test_sizes_of_all_kinds_of_layers_are_leaves():
    "Whatever was asked of the model before."
    for kind, wanted in (('latent', {'heads', 'expert_dim', 'experts', 'q_lora_rank', 'depth'}),
                         ('windows', {'heads', 'head_dim', 'window', 'expert_dim', 'experts'})):
        one = estimate_of(kind, 'calibrated')
        known = {name for name, owner in leaves(figures_told(one)['iteration_s'])
                 if owner == f'model {one.model.name}'}
        assert wanted <= known, wanted - known
        assert estimate_of(kind, 'calibrated').stats == one.stats


def test_what_is_played_rests_on_sizes():
    a = dataclasses.replace(as_assumptions('corrected'), uneven_stages=True)
    one = estimate('mixtral_8x7B', Parallel(pp=5, dp=2), 'H100-80GB', 64, a)
    found = figures_told(one)
    assert all(len({y.name for y in x.inputs}) == len(x.inputs) for x in below(*found.values()))
    for figure in ('activations_GB', 'bubble_s'):
        names = {name for name, _ in leaves(found[figure])}
        assert {'embed_dim', 'seq_len', 'depth', 'pp', 'global_batch'} <= names
    assert 'depth' in {name for name, _ in leaves(found['compute_s'])}


@pytest.mark.parametrize('lengths', [{256: 10, 1024: 3}, {tokens: 1 for tokens in range(1, 4001)}])
@pytest.mark.parametrize('zigzag', [True, False])
def test_what_documents_leave_to_compute_is_one_number(lengths, zigzag):
    "With a window it once was a fault; a formula would have a term for each length."
    model = Model(4096, 1024, 16, 8, vocab=32000, window=512, documents=lengths)
    assumptions = dataclasses.replace(as_assumptions('calibrated'), zigzag=zigzag)
    one = estimate(model, Parallel(cp=2, dp=2), 'H100-80GB', 8, assumptions)
    given = {name for name, _ in leaves(check(one)['executed_TFLOP_per_gpu'])}
    assert {'window', 'cp'} <= given


@pytest.mark.parametrize('precision', ['bf16', 'fp8'])
@pytest.mark.parametrize('preset', ['corrected', 'calibrated'])
def test_ends_in_16_bits_are_told(preset, precision):
    "How many layers they are was taken for a number to calculate with: a fault."
    assumptions = dataclasses.replace(as_assumptions(preset), bf16_ends=1)
    layout = Parallel(tp=2, pp=2, precision=precision)
    check(estimate('llama3.1_8B', layout, 'H100-80GB', 8, assumptions))


def test_units_and_owners():
    "A sum of kinds has their unit; numbers of one name and different owners are two."
    one = figures_told(estimate_of('latent', 'calibrated'))
    mean = next(x for x in below(one['compute_s']) if x.name == 'compute')
    assert mean.unit == 's' and 'compute_1' in mean.formula
    both = Quantity('eff', .7, source='a') * Quantity('eff', .7, source='b')
    assert both.formula == 'eff * eff_2'
    e = (Quantity('e', 2.) + 1e-12 * Quantity('e', 3.))
    assert e.formula == 'e + 1e-12 * e_2'
    for x in below(*one.values()):
        assert len({y.name for y in x.inputs}) == len(x.inputs), (x.name, x.formula)


def test_a_function_that_is_told_serves_plain_numbers_too():
    @told('both', 'GB')
    def sum_of(a, b):
        "Of two."
        return a + b
    both = sum_of(x, 1)
    assert (both.name, both.unit, both.formula, both.words) == ('both', 'GB', 'x + 1', 'Of two.')
    assert both.source.endswith('sum_of') and sum_of(1, 2) == 3 and sum_of.__doc__ == 'Of two.'
    assert sum_of(np.arange(2), 1).tolist() == [1, 2] and sum_of(x, 0) is x   # it has a name


def test_leaves_know_whose_they_are():
    one = estimate_of('dense', 'calibrated')
    found = leaves_of(one.system, 'system')
    assert found['hbm_bandwidth'].words == 'GB/s' and found['ib_eff'].source == 'system'
    assert 'name' not in found
    assert leaves_of(one.assumptions.measured.network, 'x')['nic_share'].why.startswith('nccl')
    assert repr(Explanation(found['hbm_bandwidth'])) == 'hbm_bandwidth = 2039   GB/s [system]'


def test_what_a_configuration_says_has_words():
    "Each number of a Parallel tells what it is, whether it is its own or one of the choices."
    said = leaves_of(Parallel(tp=8, pp=4, virtual_stages=2, zero_stage=3, dp_replicate=2), 'choice')
    assert {'tp', 'virtual_stages', 'zero_stage', 'dp_replicate'} <= set(said)
    silent = [name for name, leaf in said.items() if not leaf.words]
    assert silent in ([], ['zero_stage'])   # its sentence stands above it


@pytest.mark.parametrize('name', ['llama3.1_8B', 'gpt_oss_120B'])
def test_weights_that_stay_in_a_pipeline(name):
    "Of unlike stages in FSDP's pipelines: as many as the activations of a pass leave room for."
    layout = Parallel(tp=4, pp=3, dp=4, micro_batch=4, zero_stage=3)
    check(estimate(name, layout, 'H100-80GB', 192, software='torchtitan'))
