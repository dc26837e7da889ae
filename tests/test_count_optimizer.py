"""What a step of an optimizer keeps, computes and gathers, counted by hand."""
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_perf import Parallel, estimate, search
from transformer_perf.advice.planning import checkpoint_GB
from transformer_perf.estimates import (
    NEWTON_SCHULZ, OPTIMIZERS, Group, Matrix, Message, Optimizer, Roofline, Work, as_assumptions,
    orthogonalized, parts_gathered, tells_matrices)
from transformer_perf.interop import Job, as_job, export
from transformer_perf.timeline import busiest_share, job_of
from transformer_perf.models import NAMED
from transformer_perf.parameters import Costs, Parameters
from transformer_perf.systems import as_system

H200, CORRECTED = as_system('H200', 8), as_assumptions('corrected')
DENSE, ROUTED = 'llama3.1_8B', 'mixtral_8x7B'
NAMES = 'adam', 'muon', 'lion', 'sgd'


def close(a, b, rel=1e-9): return math.isclose(a, b, rel_tol=rel)


def operations(name, **layout):
    "Those of every layer of a model."
    t = dict(dict.fromkeys(('micro_batch', 'tp', 'cp', 'pp', 'dp'), 1), **layout)
    job = job_of(t, NAMED[name], H200, 64, replace(CORRECTED, fused_kernels=True))
    (kind,) = job.kinds
    return kind.operations


def matrices(name, **layout):
    "(routed, Matrix, GB here) of every layer of a model."
    return [(op.routed, x, op.in_matrices) for op in operations(name, **layout)
            for x in op.matrices]


@settings(max_examples=40, deadline=None)
@given(*[st.integers(1, 2**14)] * 2, st.integers(1, 64))
def test_newton_schulz_by_hand(rows, columns, number):
    "20 m^2 n + 10 m^3 FLOP of an m x n matrix, m the shorter side (within one term of each sum)."
    m, n = min(rows, columns), max(rows, columns)
    work = orthogonalized(Matrix(rows, columns, number), 1.)
    whole = number * (20 * m**2 * n + 10 * m**3)
    terms = number * NEWTON_SCHULZ * (2 * m**2 + m * n)
    assert sum(p.flop for p in work.products) == whole - terms
    assert orthogonalized(Matrix(columns, rows, number), 1.).products == work.products
    assert not work.messages   # all of it is there


@pytest.mark.parametrize('name', [DENSE, 'gpt3', ROUTED, 'qwen3_30B_A3B'])
@pytest.mark.parametrize('tp', [1, 4])
def test_matrices_are_all_weights_but_words_norms_and_biases(name, tp):
    "However many GPUs share a layer, its matrices are the same."
    m, found = NAMED[name], matrices(name, tp=tp, dp=4 // tp)
    in_layers = m.depth * sum(x.rows * x.columns * x.number for _, x, _ in found)
    others = m.parameters - in_layers
    words = m.vocab * m.embed_dim * (1 if m.tied_embeddings else 2)
    assert words <= others <= 1.02 * words + 2e-4 * m.parameters


def test_matrices_by_hand():
    "Queries, keys and values are three; a gate and what it gates are one; experts one each."
    e, kv, f = 4096, 1024, 14336
    sizes = lambda found: [(x.rows, x.columns, x.number) for _, x, _ in found]
    dense = [(e, e, 1), (e, kv, 1), (e, kv, 1), (e, e, 1), (e, 2 * f, 1), (f, e, 1)]
    assert sizes(matrices(DENSE, tp=8)) == dense
    shared, routed = dense[:4], [(e, 2 * f, 2), (f, e, 2)]
    assert sizes(matrices(ROUTED, dp=4, ep=4)) == [*shared, (e, 8, 1), *routed]
    assert sizes(matrices(ROUTED, dp=8, ep=4, etp=2)) == [*shared, (e, 8, 1), *routed]


@pytest.mark.parametrize('layout, gathered', [
    (dict(tp=8), {'tp': 6}), (dict(dp=8, ep=4, etp=2), {'etp': 2})])
def test_parts_are_gathered(layout, gathered):
    "Where GPUs have parts of a matrix, they bring together one moment of all of it."
    name = ROUTED if 'ep' in layout else DENSE
    found = [x for _, x, _ in matrices(name, **layout) if x.gathers[:1] and
             x.gathers[0][0] in gathered]
    (group, number), = gathered.items()
    assert len(found) == number and {x.gathers for x in found} == {((group, 1.),)}
    x = found[0]
    (message,) = orthogonalized(x, 4e-9 * x.rows * x.columns).messages
    assert message[:3] == ('allgather', 4e-9 * x.rows * x.columns, group)


@pytest.mark.parametrize('layout', [
    {}, dict(tp=4), dict(tp=2, cp=4, strategy='2d-seqp'), dict(tp=4, cp=2, strategy='2d'),
    dict(tp=2, cp=4, strategy='2d'), dict(tp=1, cp=8, strategy='2d')])
def test_gathers_bring_all_of_a_matrix(layout):
    "Each multiplies what a GPU has by the GPUs of its group; the last leaves nothing out."
    whole = lambda op: 2e-9 * sum(x.rows * x.columns * x.number for x in op.matrices)
    own = [op for op in operations('gpt3', **layout) if op.matrices]
    assert len(own) == 4
    for op in own:
        share, (gathers,) = op.in_matrices / whole(op), {x.gathers for x in op.matrices}
        for group, part in gathers:
            share *= layout.get(group, 1)
            assert close(share, part)
        assert close(share, 1)


def figures(optimizer, model=DENSE, a=CORRECTED, **layout):
    p = Parallel(**layout, optimizer=optimizer)
    return estimate(model, p, H200, 64, a).stats


@pytest.mark.parametrize('layout', [dict(tp=2), dict(dp=4), dict(dp=8, zero_stage=0),
                                    dict(pp=2, dp=2),
                                    dict(pp=2, zero_stage=0, schedule='dualpipe')])
def test_moments_that_are_kept(layout):
    "Muon keeps one of a weight in a matrix and two of others; Lion and SGD one of each."
    adam, muon, lion, sgd = (figures(name, **layout)['optimizer_GB'] for name in NAMES)
    weights = adam / 12   # parameters that a GPU has the states of, in 1e9
    assert close(lion, 8 * weights) and lion == sgd
    tp, pp = layout.get('tp', 1), layout.get('pp', 1)
    sharers = layout.get('dp', 1) if layout.get('zero_stage', 1) else 1
    stages = 2 if layout.get('schedule') == 'dualpipe' else 1   # on a rank
    held = NAMED[DENSE].depth / pp * stages / sharers * in_matrices(tp)
    assert close(adam - muon, 4 * held)


def in_matrices(tp):
    "1e9 numbers of a layer's matrices on one of tp GPUs."
    return sum(x.rows * x.columns for _, x, _ in matrices(DENSE, tp=tp)) / tp / 1e9


HYBRID = 'nemotron_h_8B'   # 24 layers of Mamba-2: 128 heads of 64 values, 8 groups of 128 keys
JOINED = 24 * 4096 * (2 * 128 * 64 + 2 * 8 * 128 + 128) / 1e9   # numbers of what they read


@pytest.mark.parametrize('layout, held', [(dict(dp=8), 1 / 8), (dict(tp=2), 1 / 2)])
def test_muon_leaves_what_mamba_reads_to_adam(layout, held):
    "Gates, values, keys, queries and decays are no one matrix: two moments, and no rounds."
    m = NAMED[HYBRID]
    adam, muon, lion, few = (figures(name, HYBRID, **layout)
                             for name in ('adam', 'muon', 'lion', 'adafactor'))
    whole = OPTIMIZERS['muon']._replace(takes_joined=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OPTIMIZERS, 'all', whole)
        every = figures('all', HYBRID, **layout)
    assert close(muon['optimizer_GB'] - every['optimizer_GB'], 4 * JOINED * held)
    kept = [x['optimizer_GB'] for x in (lion, every, muon, adam)]
    assert kept == sorted(kept)
    assert muon['other_s'] < every['other_s']
    assert few['optimizer_GB'] < 4.6 * m.parameters * held / 1e9   # to sums it is a matrix


def test_optimizer_bytes_hold_for_any():
    "The paper's multiple of the weights is what is asked for, whatever the optimizer."
    a = replace(CORRECTED, optimizer_bytes=3.)
    found = [figures(name, a=a) for name in NAMES]
    assert len({one['optimizer_GB'] for one in found}) == 1
    assert np.isclose(found[0]['optimizer_GB'], 3 * found[0]['weights_GB'], rtol=1e-9)


@pytest.mark.parametrize('layout, whole', [
    (dict(tp=2), 32 * 6), (dict(tp=2, dp=4), 48), (dict(tp=2, dp=4, zero_stage=0), 192),
    (dict(dp=64), 3), (dict(pp=32, dp=2), 3), (dict(pp=16, dp=16, micro_batch=1), 1)])
def test_a_step_takes_the_busiest_gpu(layout, whole):
    "Matrices are dealt out whole: of six in each of 32 layers the busiest of 64 copies has 3."
    took = figures('muon', **layout)['other_s'] - figures('lion', **layout)['other_s']
    tp, pricer = layout.get('tp', 1), Roofline(H200, allreduce_doubled=True)
    each = 0.
    for _, x, _ in matrices(DENSE, tp=tp):
        GB = 2e-9 * 2 * x.rows * x.columns
        work = orthogonalized(x, GB)
        moved = sum(pricer.collective(m.kind, m.volume, Group(tp, tp)) for m in work.messages)
        each += pricer.busy(work).total + moved
    assert close(took, each / 6 * whole)


@pytest.mark.parametrize('preset', ['paper', 'calibrated'])
def test_fewer_bytes_of_states(preset):
    "Beside 4 of the optimizer's own weight: 2.03 in 8 bits, 4 (m + n) / (m n) of a matrix's sums."
    adam, eight, few = (figures(name, a=as_assumptions(preset), dp=2)['optimizer_GB']
                        for name in ('adam', 'adam-8bit', 'adafactor'))
    number = adam / 12   # that a GPU has, in 1e9
    assert close(eight, (4 + 2 * (1 + 4 / 256)) * number)
    m = NAMED[DENSE]
    tables = 2 * m.vocab * m.embed_dim if preset == 'calibrated' else 0   # summed up, too
    held = (32 * in_matrices(1) + tables / 1e9) / 2
    sums = 32 / 2 * sum(x.rows + x.columns for _, x, _ in matrices(DENSE)) / 1e9
    assert close(few, 4 * number + 4 * (number - held) + 4 * sums, 1e-5)   # but for a norm
    assert sums < 1e-3 * number


@pytest.mark.parametrize('layout', [dict(dp=2), dict(tp=2, dp=2), dict(pp=2), dict(zero_stage=0)])
def test_adafactor_keeps_sums_of_tables(layout):
    "An embedding is a matrix of tokens x width: sums of its rows and columns, no other moment."
    few, lion, adam = (figures(name, a=as_assumptions('calibrated'), **layout)['optimizer_GB']
                       for name in ('adafactor', 'lion', 'adam'))
    assert 1 <= few / (adam / 3) < 1.002   # 4 bytes a parameter, as its own weight has
    assert close(lion, 2 / 3 * adam)


@pytest.mark.parametrize('name, each', [('adam', 14), ('lion', 10), ('adafactor', 6)])
def test_a_checkpoint_holds_states_of_tables(name, each):
    "Bytes of a parameter: 2 of its weight, 4 of the optimizer's own, and its moments."
    for model in (NAMED[DENSE], NAMED['gpt3']):
        GB = checkpoint_GB(model, name, 'none', as_assumptions('calibrated'))
        assert GB == pytest.approx(each * model.parameters / 1e9, rel=1e-3)


@pytest.mark.parametrize('name, of_matrix, of_vector', [
    ('adam', 30, 30), ('adam-8bit', 18 + 1 / 16, 18 + 1 / 16), ('lion', 22, 22),
    ('adafactor', 18, 22)])   # sums of a matrix come first: its gradient is read twice
def test_bytes_of_a_step(name, of_matrix, of_vector):
    "States in and out, a gradient of 4 bytes in, a weight of 2 out."
    software = Costs(optimizer_traffic=30., gradient_held=4.)
    a = replace(CORRECTED, measured=Parameters('Hopper', software=software))
    took = {one: figures(one, a=a, zero_stage=0) for one in (name, 'sgd')}
    number = took['sgd']['optimizer_GB'] / 8   # that a GPU has, in 1e9
    moved = took[name]['other_s'] / took['sgd']['other_s'] * 22 * number
    held = 32 * in_matrices(1)
    assert close(moved, of_matrix * held + of_vector * (number - held))


def test_a_rank_of_two_stages_takes_a_step_of_both():
    a = replace(CORRECTED, measured=Parameters('Hopper', software=Costs(optimizer_traffic=30.)))
    one, both = (figures('adam', a=a, pp=2, zero_stage=0, schedule=name)
                 for name in ('1f1b', 'dualpipe'))
    for name in ('other_s', 'optimizer_GB'): assert close(both[name], 2 * one[name]) and one[name]


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_no_matrix_is_cut_or_lost(number, gpus):
    busiest = busiest_share(number, gpus) * number
    assert close(busiest, round(busiest))
    assert (round(busiest) - 1) * gpus < number <= round(busiest) * gpus


@pytest.fixture
def shampoo(monkeypatch):
    "One moment of a weight, and of a matrix two factors of 32 bits with their powers."
    own = Optimizer(1, 1, beside=lambda x: 2 * (x.rows**2 + x.columns**2))
    monkeypatch.setitem(OPTIMIZERS, 'shampoo', own)


@pytest.mark.usefixtures('shampoo')
@pytest.mark.parametrize('name', [DENSE, ROUTED])
@pytest.mark.parametrize('layout, dense, routed', [   # copies of one matrix, that keep a share
    ({}, 1, 1), (dict(tp=4), 1, 4), (dict(dp=8), 8, 8), (dict(dp=8, zero_stage=0), 1, 1),
    (dict(pp=4, dp=8), 8, 8)])
def test_what_is_kept_of_matrices_as_wholes(name, layout, dense, routed):
    "GPUs that share a matrix each keep its factors; copies are dealt whole matrices."
    lion, own = (figures(one, name, **layout)['optimizer_GB'] for one in ('lion', 'shampoo'))
    each = [x.number * 2 * (x.rows**2 + x.columns**2) / (routed if of_experts else dense)
            for of_experts, x, _ in matrices(name)]
    layers = NAMED[name].depth / layout.get('pp', 1)
    assert close(own - lion, 4e-9 * layers * sum(each))
    found = estimate(name, Parallel(**layout, optimizer='shampoo'), H200, 64, CORRECTED)
    assert close(found.stats['optimizer_GB'], own)
    told = str(found.explain('optimizer_GB', 1))
    assert '+ beside' in told and f'= {own:.6g} GB' in told


@pytest.mark.parametrize('own, tells', [
    (Optimizer(2, 2), False), (Optimizer(2, 1), True), (Optimizer(1, 2), True),
    (Optimizer(1, 1, whole=lambda x, GB: Work()), True),
    (Optimizer(1, 1, beside=lambda x: 1), True), (Optimizer(1, 1, moment_bytes=1.), False)])
def test_who_treats_matrices_unlike_others(own, tells):
    assert tells_matrices(own) == tells


def test_what_an_optimizer_lists_is_checked(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, 'mine', Optimizer(1, 1, lambda x, GB: None))
    p = Parallel(dp=2, optimizer='mine')
    with pytest.raises(ValueError, match='mine: what it computes of a matrix must be a Work'):
        estimate(DENSE, p, H200, 64)
    one_by_one = Optimizer(1, 1, lambda x, GB: Work(vector=min(x.rows, x.columns)))
    monkeypatch.setitem(OPTIMIZERS, 'mine', one_by_one)
    with pytest.raises(ValueError, match='optimizer mine: .* arrays in a search: np.minimum'):
        search(DENSE, 8, H200, 64, optimizer='mine')


def test_a_step_with_experts():
    "Each copy of an expert's GPUs has its own part of them; the others are shared by all."
    took = {dp: figures('muon', ROUTED, dp=dp, ep=8)['other_s'] for dp in (8, 16, 32)}
    assert took[8] > took[16] > took[32] > 0
    alone = figures('muon', ROUTED, dp=8, ep=8)['other_s'] - figures('lion', ROUTED, dp=8,
                                                                   ep=8)['other_s']
    seconds = {True: 0., False: 0.}
    for routed, x, _ in matrices(ROUTED, dp=8, ep=8):
        seconds[routed] += Roofline(H200, allreduce_doubled=True).busy(
            orthogonalized(x, 0.)).total
    assert close(alone, 32 * (seconds[False] * 20 / 160 + seconds[True]))   # of 5 a layer 20 each


def test_a_search_compares_optimizers():
    found = search(DENSE, 16, 'H100-80GB', 64, k=4, optimizer=['adam', 'muon'],
                   fixed={'tp': 2, 'pp': 1, 'micro_batch': 1}, assumptions='corrected')
    assert set(found.optimizer) == {'adam', 'muon'}
    for _, row in found.iterrows():
        again = estimate(DENSE, Parallel.from_row(row), 'H100-80GB', 64, assumptions='corrected')
        assert close(row.iteration_s, again.stats['iteration_s'])
        assert close(row.memory_GB, again.stats['memory_GB'])
    plain = search(DENSE, 16, 'H100-80GB', 64, k=4, assumptions='corrected')
    assert 'optimizer' not in plain   # Adam is not worth a column


def halved(x, moment):   # half of what Muon computes and sends
    work = OPTIMIZERS['muon'].whole(x, moment)
    return work._replace(products=tuple(p._replace(times=p.times / 2) for p in work.products),
                         messages=tuple(m._replace(volume=m.volume / 2) for m in work.messages))


@pytest.mark.parametrize('preset', ['corrected', 'calibrated'])
def test_each_row_of_a_search_pays_for_its_own_optimizer(monkeypatch, preset):
    "Of several that take matrices as a whole, too."
    monkeypatch.setitem(OPTIMIZERS, 'half', Optimizer(2, 1, halved))
    found = search(DENSE, 16, 'H100-80GB', 64, k=12, assumptions=preset, recompute='none',
                   optimizer=['muon', 'half', 'adam'], tp=2, cp=1, pp=1, micro_batch=1)
    assert set(found.optimizer) == {'muon', 'half', 'adam'}
    for _, row in found.iterrows():
        again = estimate(DENSE, Parallel.from_row(row), 'H100-80GB', 64, preset)
        assert close(row.iteration_s, again.stats['iteration_s']), row.optimizer
    best = found.groupby('optimizer').iteration_s.min()
    assert best['adam'] < best['half'] < best['muon']


def test_moments_of_an_optimizers_own(monkeypatch):
    "Two of a byte each: whatever is assumed of the others."
    monkeypatch.setitem(OPTIMIZERS, 'adam8bit', Optimizer(2, 2, moment_bytes=1.))
    for assumed in (4., 2.):
        a = replace(as_assumptions('corrected'), moment_bytes=assumed)
        one, adam = (estimate(DENSE, Parallel(dp=16, zero_stage=0, optimizer=name), 'H200', 64, a)
                     for name in ('adam8bit', 'adam'))
        assert close(one.stats['optimizer_GB'] / one.stats['weights_GB'], (4 + 2) / 2)
        assert close(adam.stats['optimizer_GB'] / adam.stats['weights_GB'], (4 + 2 * assumed) / 2)
        assert 'state_bytes = master_bytes + 2 = 6' in repr(one.explain('optimizer_GB', 9))
    assert replace(a, optimizer='lion').state_bytes == 4 + 2


def test_a_message_is_for_gpus_that_there_are(monkeypatch):
    aside = lambda x, moment: Work(messages=(Message('allgather', moment, 'dpp'),))
    monkeypatch.setitem(OPTIMIZERS, 'aside', Optimizer(2, 1, aside))
    with pytest.raises(ValueError, match="unknown group of GPUs of a message 'dpp'"):
        estimate(DENSE, Parallel(tp=2, optimizer='aside'), 'H200', 64)


FLAGS = ('--num-layers 2 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 '
         '--max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 ')


@pytest.mark.parametrize('word, name', [('muon', 'muon'), ('dist_muon', 'muon'), ('adam', 'adam'),
                                        ('sgd', 'sgd'), ('lion', 'lion')])
def test_a_script_says_its_optimizer(word, name):
    job = as_job(f'python pretrain_gpt.py {FLAGS} --optimizer {word}')
    assert job.parallel.optimizer == name
    assert not [key for key, _ in job.ignored if 'optimizer' in key]
    assert as_job(export(job, 'megatron')).parallel.optimizer == name


@pytest.mark.parametrize('format, suffix', [('deepspeed', 'json'), ('json', 'json')])
def test_other_files_say_it_too(format, suffix, tmp_path):
    p = Parallel(dp=8, zero_stage=3, optimizer='muon')
    job = Job(p, NAMED[DENSE], 64, 8, 8192)
    (tmp_path / f'job.{suffix}').write_text(export(job, format))
    assert as_job(str(tmp_path / f'job.{suffix}'), 8).parallel.optimizer == 'muon'


def test_what_a_file_cannot_say_is_said_beside_it():
    job = Job(Parallel(dp=8, zero_stage=3, optimizer='muon'), NAMED[DENSE], 64, 8, 8192)
    assert 'optimizer=muon (the script that trains)' in export(job, 'accelerate')
    assert 'optimizer=muon (param_groups of its configuration)' in export(job, 'torchtitan')


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="unknown .*'none-such'"):
        as_job(f'python pretrain_gpt.py {FLAGS} --optimizer none-such')


def test_what_it_rests_on():
    "No run with Muon was fitted to, and the published model has Adam."
    p = Parallel(dp=8, optimizer='muon')
    words = [' '.join(estimate(DENSE, p, 'H100-80GB', 64, name).notes)
             for name in ('corrected', 'calibrated')]
    assert 'not in the published model: optimizer muon' in words[0]
    assert 'no run with optimizer muon' in words[1]
    assert np.isfinite(estimate(DENSE, p, 'H100-80GB', 64, 'calibrated').stats['iteration_s'])


def test_what_some_gpus_have_of_a_matrix_is_gathered_among_them():
    "Of 8 GB a group whose GPUs have a quarter together sends 2."
    x = Matrix(64., 32., gathers=(('tp', 1.), ('dp', .25)))
    assert [(m.kind, m.volume, m.group) for m in parts_gathered(x, 8.)] == [
        ('allgather', 8., 'tp'), ('allgather', 2., 'dp')]
