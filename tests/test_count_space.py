"The space of a search, counted by plain loops; and candidates as users of the paper ask for them."
import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from thorough import first_of
from transformer_perf import Assumptions, Model, Parallel, estimate, execution, iteration, search
from transformer_perf.estimates import as_assumptions
from transformer_perf.execution import (
    factors, micro_batch_size_candidates, nv_candidates_1d, nv_candidates_2d, pp_candidates,
    questions, search_subject, summa_nb_candidates, tp1d_candidates)
from transformer_perf.iteration import gap
from transformer_perf.models import as_model
from transformer_perf.systems import PHYSICAL, as_system


def of(n): return [d for d in range(1, n + 1) if n % d == 0]


# the paper's names

@pytest.mark.parametrize('n', [1, 2, 12, 97, 360, 1024])
def test_factors(n): assert factors(n) == of(n)


@pytest.mark.parametrize('n, heads, embed', [(16, 12, 64), (24, 16, 96), (64, 160, 25600),
                                             (9, 6, 6)])
def test_groups_of_tp(n, heads, embed):
    both = [d for d in of(n) if heads % d == 0 and embed % d == 0]
    assert tp1d_candidates(n, heads, embed) == both


@pytest.mark.parametrize('n, tp, depth', [(64, 4, 48), (96, 2, 96), (8, 8, 4), (60, 5, 36)])
def test_stages(n, tp, depth):
    left = n // tp
    assert pp_candidates(n, tp, depth) == [
        p for p in of(depth) if left % p == 0 and min(left, depth) % p == 0]


@pytest.mark.parametrize('batch, tp, pp, dp, l', [(64, 4, 2, 8, 2048), (96, 8, 1, 2, 36),
                                                  (6, 4, 1, 3, 2)])
def test_micro_batches(batch, tp, pp, dp, l):
    "They divide a copy's share of the batch, and tp divides their tokens."
    assert micro_batch_size_candidates(batch, tp, pp, dp, l) == [
        m for m in of(batch // dp) if m * l % tp == 0]


@pytest.mark.parametrize('tp1, tp2, e', [(4, 2, 25600), (2, 2, 1024), (8, 4, 12288), (1, 1, 512),
                                         (4, 4, 1024)])
def test_panels(tp1, tp2, e):
    "They start at the longer side and double, while a panel is 512 wide at least."
    start, found = max(tp1, tp2), []
    for i in range(20):
        panels = start * 2**i
        if e % panels == 0 and e // panels >= 512 and 2**i < e // start: found.append(panels)
    assert summa_nb_candidates(tp1, tp2, e) == (found if e / start >= 512 else [start])


@pytest.mark.parametrize('groups, size', [((4, 2, 8, 2), 8), ((8, 1, 4, 4), 4), ((2, 2, 1, 1), 8),
                                          ((3, 2, 4, 2), 6)])
def test_placements(groups, size):
    "Every way to fill a domain; or the whole job, where it fits into one."
    ways = [groups] if math.prod(groups) <= size else [
        way for way in itertools.product(*map(of, groups)) if math.prod(way) == size]
    assert sorted(nv_candidates_2d(*groups, size)) == sorted(ways)
    tp1, _, dp, pp = groups
    one = [groups[:1] + groups[2:]] if tp1 * dp * pp <= size else [
        way for way in itertools.product(of(tp1), of(dp), of(pp)) if math.prod(way) == size]
    assert sorted(nv_candidates_1d(tp1, dp, pp, size)) == sorted(one)


# the space of a small search

MODEL = Model(1024, 512, 8, 6, mlp_dim=1536, name='small')


def layouts(n, batch, system, strategy):
    "Published: features at least 128 wide, or rows; stages that divide the layers."
    two = strategy == '2d-seqp'
    for tp, cp in itertools.product(of(n), of(n) if two else [1]):
        wide = 512 / tp if two else 3 * 512 / tp
        if n % (tp * cp) or 8 % tp or wide < 128 or two and 1024 / cp < 128: continue
        for pp in of(6):
            if n % (tp * cp * pp) or min(n // (tp * cp), 6) % pp: continue
            dp = n // (tp * cp * pp)
            if batch % dp: continue
            groups = tp, cp, pp, dp
            places = [groups] if n <= system.nvlink_size else [
                way for way in itertools.product(*map(of, groups))
                if math.prod(way) == system.nvlink_size]
            for m, place in itertools.product(of(batch // dp), places):
                if m * 1024 % (tp * cp): continue
                yield Parallel(strategy, *groups, m, None, None, *place)


@pytest.mark.parametrize('n, size, batch', [(12, 4, 24), (8, 8, 12), (48, 4, 48)])
@pytest.mark.parametrize('strategy', ['1d', '2d-seqp'])
def test_every_layout_once(n, size, batch, strategy):
    system = as_system('H200', size)
    expected = list(layouts(n, batch, system, strategy))
    found = search(MODEL, n, system, batch, strategy, k=len(expected) + 9, assumptions='paper')
    assert found.candidates == len(expected) > 10
    columns = ('tp', 'cp', 'pp', 'dp', 'micro_batch', 'nvlink_tp', 'nvlink_cp', 'nvlink_pp',
               'nvlink_dp')
    assert sorted(zip(*(found[c] for c in columns))) == sorted(
        tuple(getattr(p, c) for c in columns) for p in expected)
    for p, seconds in {tuple(row[c] for c in columns): row['iteration_s']
                       for row in found.iloc[::29].to_dict('records')}.items():
        one = estimate(MODEL, Parallel(strategy, **dict(zip(columns, p))), system, batch, 'paper')
        assert one.stats['iteration_s'] == pytest.approx(seconds, rel=1e-12)
    assert found.iteration_s.is_monotonic_increasing and found['rank'].tolist() == list(
        range(1, len(found) + 1))


def test_columns_that_are_held():
    "Under either name, one value or several; no other row is left out."
    system = as_system('H200', 8)
    ask = dict(n_gpus=16, global_batch=32, assumptions='paper', k=9999)
    whole = search(MODEL, system=system, **ask)
    for fixed, rows in (({'tp': 2}, whole.tp == 2), ({'tp1': [1, 4]}, whole.tp.isin([1, 4])),
                        ({'pp': 2, 'micro_batch': [1, 2]}, (whole.pp == 2) & (
                            whole.micro_batch <= 2)), ({'nvlink_dp': 2}, whole.nvlink_dp == 2)):
        found = search(MODEL, system=system, fixed=fixed, **ask)
        assert found.iteration_s.tolist() == whole[rows].iteration_s.tolist()
        assert found.candidates == len(found) == rows.sum() > 0


def test_why_there_is_nothing():
    "No layout, no placement or no room: each says so, with its numbers."
    tiny = Model(512, 256, 4, 2)
    ask = lambda system, n, **more: search(tiny, n, system, 7, '1d', assumptions='paper', **more)
    assert 'no numbers of tp, pp and dp GPUs multiply to 5' in ask('H200', 5).reasons[5]
    held = dict(tp=2, cp=1, panels=8)   # 7 GPUs are no groups of two
    panels = search(tiny, [7, 14], 'H200', 7, '2d', assumptions='paper', fixed=held)
    assert 'no numbers of tp, cp, pp and dp GPUs multiply to 7 ' in panels.reasons[7]
    assert panels.reasons[14].startswith('2d: nothing that a search tries has panels 8')
    assert ask('H200', 1, fixed={'panels': 4}).reasons[1].endswith('panels are of 2d alone')
    small = dict(vars(as_system('H200')), hbm_capacity=.01)
    found = ask(small, 1)
    least = estimate(tiny, Parallel(), 'H200', 7, 'paper').stats['memory_GB']
    assert f'needs {least:.1f} GB, {gap(least - .01)} GB over the 0.01 GB' in found.reasons[1]


def test_gpus_that_can_share_experts():
    "Each expert has as many as another; etp divides their width, of which 129 has no half."
    made = lambda experts: Model(512, 256, 4, 2, experts=experts, experts_per_token=2,
                                 expert_dim=129, name='odd')
    for n in (1, 8, 12, 36, 60):
        assert execution.expert_shares(made(12), n).tolist() == [d for d in of(n) if 12 % d == 0]
    t = {'n_gpus': np.array([12]), 'tp': np.array([1]), 'cp': np.array([1]), 'dp': np.array([12])}
    assert execution.with_expert_groups(t, made(9), {})['ep'].tolist() == [1, 3]
    for etp in (1, 3):
        table = execution.with_expert_groups(t, made(12), {'etp': etp})
        assert table['ep'].tolist() == [d for d in of(12) if 12 % (d * etp) == 0]
        assert table['etp'].tolist() == [etp] * len(table['ep'])


def test_what_is_counted_before_it_is_done(monkeypatch):
    "Results of each system and number of GPUs, and layers priced under each system."
    systems = dataclasses.replace(as_system('H200', 8), ib_latency=np.array([[1.], [2.], [3.]]))
    a, found, limit = as_assumptions('paper'), [], execution.check_count
    monkeypatch.setattr(execution, 'check_count', lambda *args: found.append(args))
    q = execution.Question(MODEL, systems, 32, a, '1d',
                           execution.considered_choices({}, MODEL, systems, a), {})
    fit = execution.fitting((8, 16), q)
    execution.search_each((8, 16), [q], 5)
    numbers = {(most, what): number for number, most, what in found}
    assert numbers[execution.MOST_ROWS, 'results'] == 3 * 2 * 5
    assert numbers[10 * execution.MOST_PRICED, 'configurations of systems'] == fit.fits.size > 100
    different = lambda table, *names: len({*zip(*(table[name].tolist() for name in names))})
    layers = different(fit.space.t, 'tp', 'cp', 'micro_batch')
    placed = layers * different(fit.space.places, 'nvlink_tp', 'nvlink_cp')
    assert numbers[execution.MOST_TRIED, 'layers at placements'] == placed == 21 * 4
    priced = 3 * np.shape(fit.layers.cost[0].forward)[-1]
    assert numbers[execution.MOST_PRICED, 'layers at placements'] == priced > 100
    limit(7, 7, 'cells')
    with pytest.raises(ValueError, match='7 cells are more than 6'): limit(7, 6, 'cells')


def test_no_placement_is_faster_than_its_bound():
    "And one copy without a pipeline takes, placed best, what the bound says, but for rounding."
    a, system = as_assumptions('paper'), as_system('H200', 8)
    q = execution.Question(MODEL, system, 32, a, '1d',
                           execution.considered_choices({}, MODEL, system, a), {})
    fit = execution.fitting((8, 16), q)
    space, layers = fit.placeable, fit.layers
    i, j = execution.matching_rows(space.t['grouping'], space.places['grouping'])
    seconds, = execution.seconds_of(
        execution.priced_candidates(space.at(i, j), layers, i, j))
    bounds, = execution.lower_bounds(fit)
    assert len(i) > len(bounds) and (bounds[i] <= seconds).all()
    one, = np.flatnonzero((space.t['pp'] == 1) & (space.t['dp'] == 1) & (
        space.t['micro_batch'] == 1))
    assert math.isclose(bounds[one], seconds[i == one].min(), rel_tol=2e-6)


@pytest.mark.parametrize('rows', [0, 1, 40])
def test_tables_by_loops(rows):
    "Places among equals, pairs of equals, and what is distinct, in the order of appearance."
    a, b, c = columns = np.random.default_rng(rows).integers(0, 4, (3, rows))
    each = range(rows)
    assert execution.position_in_group((a, b), c).tolist() == [
        sum((a[j], b[j]) == (a[i], b[i]) and (c[j], j) < (c[i], i) for j in each) for i in each]
    right = np.sort(b)
    assert list(zip(*execution.matching_rows(a, right))) == [
        (i, j) for i in each for j in each if a[i] == right[j]]
    far_apart = columns * 2**40   # more combinations than a number of 64 bits counts
    for every in (columns, far_apart, (a, b / 8, c.astype(str)), (c % 2,), (1 - c % 2,)):
        which, first = execution.distinct(*every)
        known = list(dict.fromkeys(zip(*every)))
        assert [known[number] for number in which] == list(zip(*every))
        assert first.tolist() == [list(zip(*every)).index(row) for row in known]


@pytest.mark.parametrize('size', [1, 8, 12, 72])
def test_ways_to_fill_a_domain(size):
    hand = [way for way in itertools.product(*[of(size)] * 4) if math.prod(way) == size]
    assert sorted(map(tuple, execution.domain_factors(size))) == hand
    for n in (1, 6, 12, 20, 36, 64, 512):   # all of it, or what no more GPUs are a multiple of
        few = [d for d in of(n) if d <= size]
        rooms = [d for d in few if all(other == d or other % d for other in few)]
        assert sorted(iteration.usable_domain_sizes(n, size)) == ([size] if size in few else rooms)


def test_the_best_so_far():
    "Whatever order candidates come in: the k least times of each variant, and whose they are."
    random, k = np.random.default_rng(3), 4
    best = execution.FastestCandidates((2, 3), k)
    times = random.permutation(240).reshape(2, 3, 40) * 1.
    for start, n in itertools.product(range(0, 40, 8), range(3)):
        rows = np.arange(start, start + 8)
        best.add(n, times[:, n, rows], np.stack([rows, 100 + rows]))
    for variant, n in itertools.product(range(2), range(3)):
        order = np.argsort(times[variant, n])[:k]
        assert best.times[variant, n].tolist() == times[variant, n, order].tolist()
        assert best.limit[variant, n] == times[variant, n, order[-1]]
        assert best.pairs[:, variant, n].tolist() == [order.tolist(), (100 + order).tolist()]


def test_the_lowest_bounds_are_placed_first():
    "Of each number of GPUs, until there are enough placements; and each variant's own lowest."
    random = np.random.default_rng(0)
    for variants, enough in itertools.product((1, 3), (1, 4, 9)):
        numbers = np.repeat([0, 1, 2], (5, 8, 1))
        placed = random.integers(1, 4, len(numbers))
        bounds = random.permutation(variants * len(numbers)).reshape(variants, -1) * 1.
        bounds[:, [3, 9]] = np.inf   # they do not fit
        expected = set()
        for n in (0, 1, 2):
            own, before = np.flatnonzero(numbers == n).tolist(), 0
            for i in sorted(own, key=lambda i: bounds[:, i].min()):
                if before < enough: expected.add(i)
                before += placed[i]
            expected |= {min(own, key=lambda i: row[i]) for row in bounds}
        expected -= {3, 9}
        space = SimpleNamespace(numbers=numbers, placed=placed)
        assert execution.first_of_each(bounds, space, enough).tolist() == sorted(expected)


@pytest.mark.parametrize('l, batch', [
    (1, 65537), (2048, 96), (4096, 96), (8192, 64), (3000, 210), (4096, 61), (4096, 34)])
def test_micro_batches_that_are_tried(l, batch):
    "In a wide search those of 16 samples or 65,536 tokens at most; else of 61 only 1 would be."
    model = Model(l, 512, 8, 4, name='any')
    for wide in (False, True):
        asked = Assumptions(wide_search=wide)
        few = [m for m in of(batch) if m <= 16 or m * l <= 65536]
        if 2 * few[-1] < max(16, 65536 // l): few = of(batch)[:len(few) + 1]
        found = execution.sizes_tried(model, batch, asked).tolist()
        assert found == (few if wide else of(batch))


@pytest.mark.parametrize('name', ['llama3.1_8B', 'deepseek_v3', 'mixtral_8x7B'])
def test_what_is_tried_by_itself_is_tried_once(name):
    for values in execution.practice(as_model(name)).values():
        assert len(values) == len(set(values))


@pytest.mark.parametrize('assumptions', ['corrected', 'calibrated'])
def test_rows_of_unequal_stages_are_estimates(assumptions):
    "Seven layers on two to four ranks: what a search says of a row, an estimate of it says."
    model = Model(1024, 512, 8, 7, vocab=4096, name='seven')
    asked = dataclasses.replace(as_assumptions(assumptions), uneven_stages=True)
    found = search(model, 8, 'H200', 32, '1d', assumptions=asked, pp=[2, 4], k=12,
                   schedule=['1f1b', 'zb-h1'])
    played = 0
    names = [f.name for f in dataclasses.fields(Parallel) if f.name in found]
    for row in found.to_dict('records'):
        one = estimate(model, Parallel(**{name: row[name] for name in names}), 'H200', 32, asked)
        played += any('played' in note for note in one.notes)
        for name in ('iteration_s', 'bubble_s', 'memory_GB', 'activations_GB'):
            assert one.stats[name] == pytest.approx(row[name], rel=1e-9), (row, name)
    assert played


@pytest.mark.parametrize('fields', [{}, {'hbm_bandwidth': 1.}, {'ib_latency': 2.},
                                    {'nic_factor': .5, 'hbm_capacity': 3.}])
def test_systems_side_by_side(fields):
    "As many as there are values of any field; each has its own, and all others as they were."
    base = as_system('H200')
    columns = {name: np.array([[x], [2 * x], [3 * x]]) for name, x in fields.items()}
    together = dataclasses.replace(base, **columns)
    assert execution.variant_count(together) == (3 if fields else 1)
    if not fields: return
    some = execution.systems_of_rows(together, np.array([2, 0, 0, 1]))
    for name in PHYSICAL:
        own = np.array([3, 1, 1, 2]) * fields[name] if name in fields else getattr(base, name)
        assert np.array_equal(getattr(some, name), own), name


@pytest.mark.parametrize('name, recompute, chunks', [
    (None, ['none', 'selective', 'full'], [1, 2, 3, 4, 5, 6, 8]),
    ('torchtitan', ['none', 'full'], [1, 2, 3, 4, 5, 6, 8]),   # whole layers or nothing
    ('nanotron', ['none', 'full'], [1])])                      # nor does it interleave
def test_a_search_tries_what_the_software_offers(name, recompute, chunks):
    tried = execution.usually_tried(as_model('llama3.1_8B'), as_system('H100-80GB'),
                                    as_assumptions('calibrated', name))
    assert tried == {'recompute': recompute, 'virtual_stages': chunks}


@pytest.mark.parametrize('software, usual, stages, besides', [
    ('Megatron-Core', 1, [1], [2, 3]), ('Megatron-Core', 1, [2], []),   # whole in pipelines
    ('Megatron-Core', 1, [1, 2], [2, 3]), ('torchtitan', 3, [2], [2]), ('torchtitan', 2, [4], [3]),
    ('nanotron', 1, [1], []), (None, 1, [1], [])])   # it offers none; nobody says what it offers
def test_a_search_tries_the_zero_stages_that_a_software_offers(software, usual, stages, besides):
    a = as_assumptions('calibrated', software)
    assert execution.stages_besides({'zero_stage': [usual]}, a, stages) == besides


@pytest.mark.parametrize('asked, says', [
    (dict(tp=2, dp=4, micro_batch=16),
     'not tp 2, dp 4: global_batch/dp=2 must be divisible by micro_batch=16'),
    (dict(tp=2, pp=4, dp=1, schedule='zb-v', virtual_stages=3),
     'not tp 2, pp 4: schedule=zb-v needs virtual_stages=2')], ids=str)
def test_what_can_never_run_is_told_with_its_groups(asked, says):
    found = search('gpt3', 8, 'GB300-NVL72', 8, **asked)
    assert not len(found) and f'none can run as asked, {says}' in found.reasons[8]


@pytest.mark.parametrize('model, software, system, tried', first_of(3, [
    ('deepseek_v3', 'Megatron-Bridge', 'H100-80GB', ['alltoall', 'once_sorted']),
    ('deepseek_v3', 'torchtitan', 'H100-80GB', ['alltoall']),        # it does not offer it
    ('llama3.1_8B', 'NeMo', 'H100-80GB', None),
    ('deepseek_v3', 'Primus', 'MI300X', None),       # nor is it written for AMD's GPUs
    ('deepseek_v3', None, 'H100-80GB', None)]))
def test_a_search_tries_how_tokens_are_sent(model, software, system, tried):
    "Once and sorted is never slower than once alone, which need not be tried besides."
    about = as_model(model), as_system(system), as_assumptions('calibrated', software)
    assert execution.usually_tried(*about).get('dispatcher') == tried
    if not tried: return
    ask = lambda *ways: search(model, 256, system, 512, k=1, assumptions=about[2],
                               dispatcher=list(ways) or None, pp=8, tp=1).iteration_s[0]
    assert ask() == ask(*tried)
    if len(tried) > 1: assert ask() == ask('alltoall', 'once', 'once_sorted') < ask('alltoall')


@pytest.mark.parametrize('kv_heads, tp, possible', [(6, 3, True), (6, 12, True), (6, 4, False),
                                                    (4, 6, False), (4, 8, True), (1, 8, True)])
def test_who_shares_keys_and_values(kv_heads, tp, possible):
    "Each GPU of tp has whole heads of them, or each of those is on as many GPUs as another."
    model = Model(seq_len=1536, embed_dim=1536, heads=24, depth=2, kv_heads=kv_heads)
    ask = lambda: estimate(model, Parallel(tp=tp), as_system('H200', 24), 8, 'corrected')
    if possible: assert ask().parallel.tp == tp
    else:
        with pytest.raises(ValueError, match='the larger of kv_heads and tp'): ask()


# what is tried or told besides

def test_the_best_that_runs_came_near_is_sought_beyond_what_is_played():
    """Where runs recomputed all layers, dozens of layouts that do not are faster than all that do.

    They are first although untested, for hardly longer are they expected to be."""
    a = as_assumptions('calibrated')
    seen = a.measured.evidence
    near = {of: {kind: (low / 10, high) for kind, (low, high) in own.items()}
            for of, own in seen.intervals.items()}
    known = dataclasses.replace(seen, seen={'recompute': ['full']}, seen_by={}, intervals=near)
    a = dataclasses.replace(a, measured=dataclasses.replace(a.measured, evidence=known))
    best, tested = (search('llama3.1_8B', 16, 'H100-80GB', 64, '1d', 1, a, {'tp': [1, 2, 4]},
                           recompute=recompute) for recompute in (['none', 'full'], 'full'))
    note, = best.notes
    slower = tested.iteration_s[0] / best.iteration_s[0] - 1
    assert 'not among those shown' in note and note.endswith(f'{slower:.1%} slower.')
    assert not tested.notes


@pytest.mark.parametrize('usual, besides, alone', [(1, [2, 3], True), (2, [3], False),
                                                   (3, [2], False)])
def test_stages_tried_besides_go_with_pipelines_where_the_usual_one_does(usual, besides, alone):
    mine = {'name': 'mine', 'like': 'any', 'chooses': {'zero_stage': usual}}
    about = execution.search_subject('llama3.1_8B', 'H100-80GB', 64, 'calibrated', None, mine)
    first, more = execution.questions(about, None, {'zero_stage': None}, None)
    assert first.considered['zero_stage'] == [usual] and not first.fixed
    assert more.considered['zero_stage'] == besides
    assert more.fixed == ({'pp': [1]} if alone else {})


@pytest.mark.parametrize('least', [1, 2, 16])
@pytest.mark.parametrize('start', [1, 4, 6])
def test_panels_double_while_they_stay_wide(start, least):
    "From one for each GPU on the larger side of the grid; none is a single feature wide."
    e, doublings = 96, 2 ** np.arange(8)
    can = execution.panel_counts_ok(e, start, doublings, least)
    wide = [d for d in doublings if e % (start * d) == 0 and e // (start * d) >= max(least, 2)]
    assert doublings[can].tolist() == wide


def test_panels_of_a_grid_that_leaves_few_features_do_not_double():
    assert execution.panel_counts_ok(96, 48, 2 ** np.arange(4), 16).tolist() == [True] + [False] * 3


def test_placements_are_refused_by_their_product(monkeypatch):
    "Each grouping may fill a domain in each way."
    t = {name: np.array([2, 4, 8]) for name in ('tp', 'cp', 'pp', 'dp')} | {
        'n_gpus': np.full(3, 64)}
    ways = np.array([[2, 1, 1, 1], [1, 2, 1, 1], [1, 1, 2, 1], [1, 1, 1, 2]])
    monkeypatch.setattr(execution, 'MOST_TRIED', 12)
    assert len(execution.with_placements(t, ways, 8)['grouping']) == 12
    monkeypatch.setattr(execution, 'MOST_TRIED', 11)
    with pytest.raises(ValueError, match='12'): execution.with_placements(t, ways, 8)


def test_places_of_one_layout_are_refused_by_their_product(monkeypatch):
    "A group of eight has four places; of two groups, those that share a domain."
    layout, system = Parallel(tp=8, dp=2, nvlink_pp=1), as_system('H200', 8)
    places = lambda: iteration.possible_places(layout, system, as_assumptions('paper'))
    assert len(places()['nvlink_tp']) > 1
    monkeypatch.setattr(iteration, 'MOST_PLACES', 3)
    with pytest.raises(ValueError, match='^4 placements are more than 3: say nvlink_tp and others'):
        places()


def test_a_candidate_under_the_papers_names():
    "Its tp are all GPUs that share a layer, tp1 the heads and tp2 the sequence."
    found = search('gpt3', 512, 'H200', 512, '2d-seqp', assumptions='paper',
                   fixed={'tp': 2, 'cp': 4}, k=1)
    row, = found.itertuples()
    throughput, memory, config, stats = execution.paper_candidate(row)
    assert (throughput, memory) == (row.samples_per_s, row.memory_GB)
    assert (config['tp'], config['tp1'], config['tp2']) == (8, 2, 4)
    assert (config['pp'], config['dp'], config['mbs']) == (row.pp, row.dp, row.micro_batch)
    assert stats['t'] == row.iteration_s and stats['nv_tp2'] == row.nvlink_cp


@pytest.mark.parametrize('fixed', [{'cp': 1}, {'cp': 2}, {}])
def test_a_row_is_named_after_what_shares_its_layers(fixed):
    "With a context of one GPU both strategies are the same, and it has the plain one's name."
    found = search('gpt3', 64, 'H100-80GB', 64, k=20, fixed=fixed)
    assert len(found) and (found.strategy == found.cp.map({1: '1d'}).fillna('2d-seqp')).all()


# in words

def shown(seconds, likely, n_gpus=8):
    "Rows of a search on as many GPUs, all of one layout."
    rows = len(seconds)
    groups = dict(tp=2, cp=1, pp=1, dp=4, ep=1, etp=1)
    return {name: np.full(rows, number) for name, number in groups.items()} | dict(
        n_gpus=np.resize(n_gpus, rows), iteration_s=np.array(seconds), likely_s=np.array(likely),
        rank=np.arange(1, rows + 1))


def test_a_faster_layout_that_is_untested_is_told():
    best = shown([10., 8., 9., 12.], [10., 12., 13.5, 18.])
    beside = lambda *rows: execution._beside_untested(best, np.array(rows), best['rank'][[*rows]])
    assert beside(0, 1, 2, 3) == (
        'Rank 2, tp 2, dp 4, takes 20.0% less by our count, but is untested: what no run came '
        'near is ranked as if it took 50% longer.')
    assert beside(0, 2).startswith('Rank 3, tp 2, dp 4, takes 10.0% less')
    assert beside(0) == beside(0, 3) == ''   # none of those shown takes less


def test_a_tested_layout_beside_a_first_that_is_not_is_told():
    best = shown([8., 8.5, 10.], [9., 9.6, 10.])
    rows = np.arange(3)
    assert execution._beside_untested(best, rows, best['rank']) == (
        'The first is untested; the fastest layout that measured runs came near is rank 3, tp 2, '
        'dp 4: 25.0% slower.')
    few = execution._beside_untested(best, rows[:2], best['rank'][:2])
    assert 'came near is not among those shown, tp 2, dp 4: 25.0% slower.' in few
    assert not execution._beside_untested(shown([8., 9.], [9., 10.]), rows[:2], rows[:2] + 1)


@pytest.mark.parametrize('likely, told', [
    ([10., 8.], False), ([12., 9.6], False), ([10., 10.], True)])   # none, all or some of them
def test_that_some_of_several_counts_are_untested_is_told(likely, told):
    best = shown([10., 8.], likely, [8, 16])
    assert execution._beside_untested(best, np.arange(2), np.ones(2)) == told * (
        'Some are untested: what no measured run came near counts as if it took 25% longer.')


def test_a_layout_that_shares_nothing_is_of_copies_alone():
    best = shown([10.], [10.])
    words = lambda **sizes: execution._sizes_in_words(
        best | {name: np.array([size]) for name, size in sizes.items()}, 0)
    assert words(ep=4, etp=2) == 'tp 2, dp 4, ep 4, etp 2'
    assert words(tp=1, dp=1) == 'copies alone'


@pytest.mark.parametrize('k, kind, rows, rank', [
    (2, ['tp'], [0, 1, 3, 5], [1, 2, 1, 2]), (1, ['tp'], [0, 3], [1, 1]),
    (None, ['tp', 'pp'], [0, 1, 2, 3, 5], [1, 2, 3, 1, 2]),
    (2, None, [0, 1, 3, 4], [1, 2, 1, 2]), (None, None, [*range(6)], [1, 2, 3, 1, 2, 3])])
def test_rows_that_are_shown(k, kind, rows, rank):
    "The first of each kind, at each number of GPUs, and how manieth it is there."
    best = dict(n_gpus=np.repeat([8, 16], 3), rank=np.tile([1, 2, 3], 2),
                tp=np.array([1, 2, 1, 4, 4, 8]), pp=np.array([1, 1, 2, 2, 2, 1]))
    found = execution._rows_shown(best, k, kind)
    assert [x.tolist() for x in found] == [rows, rank]


class Bounded:
    "Candidates in order, of which the first so many of each group are handed out, and noted."
    are_played = True

    def __init__(self, sizes):
        system = as_system('H200')
        self.fit = [SimpleNamespace(question=SimpleNamespace(system=system))]
        places = np.concatenate([np.arange(size) for size in sizes])
        self.rows = dict(search=0 * places, variant=0 * places, i=np.arange(len(places)),
                         j=0 * places, seconds=1. + places,
                         n_gpus=np.repeat(range(len(sizes)), sizes))
        self.known = {(0, 0, i): system.hbm_capacity for i in range(len(places))}
        self.asked = []

    def first(self, number):
        self.asked.append(number)
        return {name: x[self.rows['seconds'] <= number] for name, x in self.rows.items()}


@pytest.mark.parametrize('k, sizes, too_large, asked', [
    (3, (9, 9), 0, [3]), (3, (9, 2), 0, [3]), (3, (9, 9), 1, [3, 12]), (3, (50, 2), 1, [3, 12]),
    (3, (50, 0, 4), 9, [3, 12]), (3, (50, 0, 4), 10, [3, 12, 48]), (2, (3, 1), 9, [2, 8]),
    (3, (3000, 3), 997, [3, 12, 48, 192, 768, 1000]),
    (3, (3000, 3), 3000, [3, 12, 48, 192, 768, 1000])])
def test_no_more_are_played_than_are_needed(k, sizes, too_large, asked):
    "The first of each group are too large; `asked` for in turn, until k fit or none is left."
    order = Bounded(sizes)
    for i in range(min(too_large, sizes[0])): order.known[0, 0, i] *= 2
    found = execution._first_that_fit(order, k, order.known)
    fit = range(too_large, min(too_large + k, sizes[0], execution.MOST_REPLAYED))
    others = range(sizes[0], sum(sizes))
    assert found['i'].tolist() == [*fit, *others[:k]] and order.asked == asked


@pytest.mark.parametrize('seed', range(5))
@pytest.mark.parametrize('k, sizes, too_large', [
    (1, (40, 9), 0), (1, (40, 9), 5), (3, (60, 2), 0), (3, (60, 30), 4), (2, (5, 1), 9)])
def test_what_could_be_faster_is_played(monkeypatch, k, sizes, too_large, seed):
    "Once each, and nothing else; a candidate takes its bound, or up to half as much again."
    order, played = Bounded(sizes), []
    monkeypatch.setattr(execution, '_InOrder', lambda fit: order)
    monkeypatch.setattr(execution, '_fitting_when_played', lambda t, fit, known: (
        (t['n_gpus'] > 0) | (t['i'] >= too_large)))
    bound, group = order.rows['seconds'], order.rows['n_gpus']
    takes = bound * np.random.default_rng(seed).uniform(1, 1.5, len(bound))
    def play(t):
        played.extend(t['i'].tolist())
        return [*zip(execution._groups_in(t), takes[t['i']].tolist())]
    some = execution.played_until_sure(order.fit, k, play)
    assert len(played) == len({*played}) == len(some['i'])
    for at in range(len(sizes)):
        own = [i for i in np.flatnonzero(group == at) if at or i >= too_large]
        limit = max(takes[own[:k]]) if len(own) >= k else np.inf
        assert {*sorted(own, key=lambda i: takes[i])[:k]} <= {*played}
        assert {*played} & {*own} <= {i for i in own if bound[i] <= limit}


@pytest.mark.parametrize('times, wins', [(.5, True), (1, True), (1 + 1e-12, True), (1.01, False)])
def test_bounds_and_seconds_are_compared_but_for_rounding(times, wins):
    "Three of a group were asked for; the bound of the last is so many times what the k-th takes."
    limit = {(0, 8): 2., (0, 16): 3.}
    first = dict(variant=np.zeros(5, dtype=int), n_gpus=np.array([8, 8, 8, 16, 16]),
                 seconds=np.array([.7, .9, 2 * times, .1, .2]))
    assert execution._others_may_win(first, limit, 3) == wins
    assert not execution._others_may_win(first, limit, 4), 'there are no more of either'
    assert execution._others_may_win(first, {}, 3), 'none of the group was played yet'


@pytest.mark.parametrize('rows, values', [(1, 3), (7, 3), (40, 2), (5, 50)])
def test_columns_are_crossed_a_part_at_a_time(monkeypatch, rows, values):
    "A part has no more rows than are allowed at a time, or one with all its values; none is lost."
    monkeypatch.setattr(execution, 'ROWS_AT_A_TIME', 12)
    sizes = []
    def allows(t):
        sizes.append(len(t['x']))
        return t['x'] != t['y']
    found = execution.crossed({'x': np.arange(rows)}, allows, y=np.arange(values))
    assert sum(sizes) == rows * values and max(sizes) <= max(12 + values - 1, values)
    assert len(sizes) <= rows * values // 12 + 1
    pairs = [(x, y) for x in range(rows) for y in range(values) if x != y]
    assert sorted(zip(found['x'].tolist(), found['y'].tolist())) == pairs


def test_a_candidate_says_its_configuration_and_its_placement():
    about = search_subject(MODEL, as_system('H200', 8), 32, 'paper', None, None)
    q, = questions(about, '1d', {}, {})
    fit = [execution.fitting([16], q)]
    some = execution.fastest_of(fit, 30)
    table, = execution.tables_of(fit, some)
    i, j = divmod(table['candidate'], len(fit[0].placeable.places['grouping']))
    assert i.tolist() == some['i'].tolist() and j.tolist() == some['j'].tolist() and j.any()


@pytest.mark.parametrize('tried', [(1,), (1, 2), (1, 3)])
def test_what_only_zero_3_offloads_is_asked_once(tried):
    "A search that tries ZeRO-3 anyway has it already."
    q = execution.Question(MODEL, None, 32, None, '1d', {
        'offload': ['none', 'weights'], 'zero_stage': [*tried]}, {})
    more = [own.considered for own in execution._offloaded_more([q], {*tried})]
    assert more == ([] if 3 in tried else [{'offload': ['weights'], 'zero_stage': [3]}])


@pytest.mark.parametrize('ran, untested', [
    (['1d', '2d-seqp'], [0, 0]), (['1d'], [0, 1]), (['2d-seqp'], [1, 0])])
def test_a_strategy_of_no_run_is_untested(monkeypatch, ran, untested):
    "Without context parallelism it is the one of tensor parallelism alone."
    monkeypatch.setattr(execution, 'known_runs', lambda a: SimpleNamespace(seen={'strategy': ran}))
    monkeypatch.setattr(execution, 'ways_rows_untested', lambda *a: np.zeros(2, int) + a[-1])
    q = execution.Question(MODEL, None, 32, None, '2d-seqp', {}, {}, with_1d=True)
    assert execution._untested({'cp': np.array([1, 2])}, q).tolist() == untested
