"Schedules against their definitions: orders, times, layouts, memory."
import dataclasses
import itertools
import re

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from thorough import examples
from transformer_perf import Model, Parallel, estimate, search, timeline
from transformer_perf.estimates import as_assumptions
from transformer_perf.iteration import played_estimate
from transformer_perf.schedules import (
    NEVER, SCHEDULES, check_layout, check_schedule, chunk_sums, chunks_in, chunks_of, dealt_alike,
    ends_counted_in, formula_holds, heaviest, held_chunks, layout_of, memory_over_time, most_held,
    most_saved, on_ranks, passes_of, peaks, played, possible, program, step_end_times, time_played,
    total_time)

few = examples(30)
pick = st.sampled_from
seconds = st.floats(.1, 10)


@st.composite
def cases(draw, names=tuple(SCHEDULES)):  # name, p, v, N
    "A schedule that is possible."
    name = draw(pick(names))
    s, p = SCHEDULES[name], draw(pick([2, 4, 6]))
    return name, p, s.chunks or draw(pick([1, 2, 3])), 2 * p * draw(pick([1, 2]))


def costs_of(chunks): return st.lists(st.tuples(*[seconds] * 3), min_size=chunks, max_size=chunks)


@st.composite
def unequal(draw, names=tuple(SCHEDULES)):  # name, p, v, N, F, B, W
    "A schedule with chunks of any length."
    case = draw(cases(names))
    return *case, *map(np.array, zip(*draw(costs_of(case[1] * case[2]))))


# layouts

letters = st.tuples(st.lists(st.integers(0, 7), min_size=1, max_size=9), st.integers(0, 2))


def chunks_from(counts, more):
    "Chunks of so many layers each."
    chunks = ['t' * count for count in counts]
    chunks[-1] += 'm' * more + 'L'
    return ['E' + chunks[0], *chunks[1:]]


@few
@given(letters)
def test_layouts_read_back(letters):
    chunks = chunks_from(*letters)
    written = '|'.join(chunks)
    assert chunks_in(written) == chunks_in(layout_of(chunks)) == chunks
    assert len(layout_of(chunks)) <= len(written)


@given(st.integers(0, 5), st.integers(1, 30), st.integers(0, 4))
def test_layouts_repeat(inside, times, after):
    layout = f'Et*{inside}|(t,t|)*{times}t*{after},L'
    assert chunks_in(layout) == ['E' + 't' * inside, *['tt'] * times, 't' * after + 'L']


@given(st.text('EtmL|*()0123456789, x', max_size=30))
def test_any_text_is_a_layout_or_an_error(text):
    try: chunks = chunks_in(text)
    except ValueError as error: assert '\n' not in str(error) and len(str(error)) < 300
    else: assert chunks_in(layout_of(chunks)) == chunks


def test_a_layout_is_checked():
    chunks = chunks_in('Et*3|(tt|)*30mL')
    assert check_layout(chunks, 16, 63, 1) == check_layout(chunks, 16, 63, 1) == 2
    for p, depth, more in ((5, 63, 1), (16, 62, 1), (16, 63, 0)):
        with pytest.raises(ValueError, match=re.escape("layout='Ettt|(tt|)*30mL'")):
            check_layout(chunks, p, depth, more)
    with pytest.raises(ValueError, match='has 2 chunks for each of pp=16 ranks, not'):
        estimate(Model(64, 64, 4, 63, mtp_layers=1, vocab=64), Parallel(
            pp=16, virtual_stages=1, layout='Et*3|(tt|)*30mL'), 'H100-80GB', 16, 'corrected')
    with pytest.raises(ValueError, match='must be of type str'): chunks_in(3)
    for wrong in ('', 'tL', 'EttL|t', 'ELt', 'EEtL', 'E((t|)*2|)*2L', 'EtmtL', 'Et*2*3L', 'Et*L'):
        with pytest.raises(ValueError, match='layout='): chunks_in(wrong)


@pytest.mark.parametrize('v, more', [
    (2, {}), (1, dict(pp=4)), (4, dict(pp=1)), (2, dict(schedule='zb-v')),
    (2, dict(schedule='dualpipe-v'))])
def test_a_layout_says_how_many_chunks_a_rank_has(v, more):
    found = Parallel(**{'pp': 2, 'layout': 'Ett|tt|tt|ttL'} | more).virtual_stages
    assert found == v and isinstance(found, int)
    if 'schedule' in more: assert Parallel(pp=2, **more).virtual_stages == v


def torchtitan(depth, n, more=0):  # list of int
    """Its rule in a loop: the ends count as a layer each, and as two each of multi-token
    prediction, which the last chunk has; whoever comes first takes one more."""
    left, found = depth + 2 + 2 * more, []
    for i in range(n):
        own = -(-left // (n - i))
        left -= own
        found.append(own - (i == 0) - (1 + 2 * more) * (i == n - 1))
    return found


@pytest.mark.parametrize('more', [0, 1, 2])
def test_every_layer_has_a_chunk(more):
    for n in range(1, 17):
        for depth in range(n, 5 * n + 3):
            chunks = chunks_of(depth, n, more)
            own, rule = [chunk.count('t') for chunk in chunks], torchtitan(depth, n, more)
            assert sum(own) == depth and len(own) == n and min(own) >= 0
            assert chunks[-1].endswith('m' * more + 'L') and ''.join(chunks).count('m') == more
            if depth % n == 0: assert own == [depth // n] * n
            elif min(rule) >= 0: assert own == rule
            else:   # too few layers for so many to count: the other chunks have all, evenly
                each = [c + (i == 0) for i, c in enumerate(own[:-1])]
                assert own[-1] == 0 and max(each) - min(each) <= 1
            if (depth + 2) % n == 0 and depth % n and not more:   # Megatron's: alike with the ends
                assert {c + (i == 0) + (i == n - 1) for i, c in enumerate(own)} == {
                    (depth + 2) // n}


@pytest.mark.parametrize('n, each, last', [(4, 16, 13), (8, 8, 5), (16, 4, 1)])
def test_deepseek_is_dealt_as_megatron_bridge_deals_it(n, each, last):
    "Its table for 61 layers and one of multi-token prediction, with a loss of its own."
    assert chunks_of(61, n, 1) == ['E' + 't' * each, *['t' * each] * (n - 2), 't' * last + 'mL']


def test_chunks_with_less():
    for first, last in itertools.product(range(3), range(3)):
        own = [chunk.count('t') for chunk in chunks_of(40, 5, less=(first, last))]
        assert sum(own) == 40 and own[1] - own[0] in (first, first - 1) and own[0] >= own[-1] - 2
    with pytest.raises(ValueError, match='1 layers are too few for 4 chunks'): chunks_of(1, 4, 5)


@pytest.mark.parametrize('more', [0, 1])
def test_which_ends_a_layout_counts(more):
    "Read back from chunks among which layers, and so many ends, are dealt evenly."
    ways = (1, 1), (0, 1), (1, 0), (0, 0)
    for n, beyond in itertools.product(range(2, 9), range(-2, 12)):
        depth, layouts = max(n + beyond, 1), {}
        for first, last in ways:
            if first + depth + last < n: continue   # a chunk would have neither layer nor end
            items = [''] * first + ['t'] * depth + [''] * last
            chunks = [''.join(own) for own in np.array_split(items, n)]
            chunks[0], chunks[-1] = 'E' + chunks[0], chunks[-1] + 'm' * more + 'L'
            layouts[first, last] = layout_of(chunks)
        for layout in layouts.values():
            same = [way for way in ways if layouts.get(way) == layout and sum(way)]
            assert ends_counted_in(layout, depth, n, more) == (same[0] if same else None)
        for way in ways[:3]:
            usual = layouts.get(way) in (None, layout_of(chunks_of(depth, n, more)))
            assert dealt_alike(way, depth, n, more) == (None if usual else layouts[way])


def test_chunk_sums():
    chunks = chunks_in('Ett||t*3|mL')
    assert chunk_sums(chunks, [1, 2, 4, 8, 16], 100, 200, 300).tolist() == [103, 0, 28, 500]
    assert chunk_sums(chunks, 2.).tolist() == [4, 0, 6, 0]


# times

@few
@given(unequal(), st.floats(0, 3), st.floats(0, 1), st.floats(0, 1))
def test_a_timeline_is_as_early_as_can_be(case, sent, exposed, overlap):
    name, p, v, N = case[:4]
    timeline = played(*case, sent=sent, exposed=exposed, overlap=overlap)
    start, end, free, steps = timeline.start, timeline.end, [0.] * p, timeline.program
    for i, (rank, waits, fars) in enumerate(zip(steps.rank, steps.waits, steps.far)):
        when = [free[rank], *(end[j] + (1 - exposed) * sent * far
                              for j, far in zip(waits, fars) if j >= 0)]
        assert start[i] == pytest.approx(max(when)) and waits.max() < i
        free[rank] = end[i]
    t = passes_of(timeline)
    assert (t['end_s'] >= t['start_s']).all() and t['end_s'].max() == pytest.approx(timeline.total)
    both = 2 if SCHEDULES[name].both_ways else 1
    places, count = np.unique(t['place'][t['kind'] == 'F'], return_counts=True)
    assert len(places) == p * v and (count == N).all() and N % both == 0


@few
@given(unequal(), st.floats(0, 2))
def test_passes_follow_each_other(case, sent):
    "By a second way to say what waits for what: rows of the table, not numbers of steps."
    name, p, v = case[:3]
    s, t = SCHEDULES[name], passes_of(played(*case, sent=sent))
    way = t['chunk'] ^ (t['rank'] >= p // 2) if s.both_ways else 0 * t['rank']
    rows = zip(*(x.tolist() for x in (t['kind'], way, t['place'], t['micro_batch'])))
    when = dict(zip(rows, zip(*(t[name].tolist() for name in ('start_s', 'end_s', 'rank')))))
    last, near = p * v - 1, 1e-9 * t['end_s'].max()
    for (kind, way, place, m), (start, _, rank) in when.items():
        if kind == 'F': before = ('F', way, place - 1, m) if place else None
        elif kind == 'W': before = 'B', way, place, m
        else: before = ('B', way, place + 1, m) if place < last else ('F', way, place, m)
        if before is None: continue
        _, end, there = when[before]
        assert start >= end + sent * (rank != there) - near


@few
@given(cases(), seconds, seconds, seconds, st.floats(0, 1))
def test_formulas_are_exact_for_equal_chunks(case, F, B, W, share):
    name, p, v, N = case
    s, overlap = SCHEDULES[name], share * min(1, (B + W) / F) * SCHEDULES[case[0]].blocks
    found = played(*case, F / v, B / v, W / v, overlap=overlap).total
    hidden = {'overlap': overlap} if s.blocks else {}
    exact = N * (F + B + W - overlap * F) + s.idle(p, v, N, F, B, W, **hidden)
    equal = [np.full(p * v, x / v) for x in (F, B, W)]
    assert found == pytest.approx(exact, rel=1e-9)
    assert found == pytest.approx(total_time(*case, *equal, overlap=overlap), rel=1e-9)


@few
@given(unequal())
def test_unequal_chunks_are_bounded(case):
    name, p, v, N, *work = case
    total, ranks = played(*case).total, on_ranks(name, p, v, sum(work))
    own = ranks.max() / (1 + SCHEDULES[name].both_ways)
    most = total_time(name, p, v, N, *(np.full(p * v, x.max()) for x in work))
    assert N * own <= total * (1 + 1e-9) and total <= most * (1 + 1e-9)
    assert total_time(*case) >= N * own * (1 - 1e-9)


@few
@given(cases(('1f1b', 'gpipe', 'zb-h1', 'zb-h2')), seconds, seconds, seconds, st.data())
def test_the_side_of_the_bound(case, F, B, W, data):
    name, p, v, N = case
    assume(v == 1)
    length = np.array(data.draw(st.lists(seconds, min_size=p, max_size=p)))
    work = F * length, B * length, W * length
    total, formula, T = played(*case, *work).total, total_time(*case, *work), sum(work)
    if name == '1f1b': assert formula == pytest.approx(T.sum() + (N - 1) * T.max())
    if name == 'gpipe': assert formula == pytest.approx(total)
    assert total <= formula * (1 + 1e-9)


@few
@given(cases(), st.data())
def test_total_time_of_an_array(case, data):
    chunks = case[1] * case[2]
    some = [np.array(data.draw(costs_of(chunks))).T for _ in range(3)]
    together = total_time(*case, *np.stack(some, axis=1))
    for i, one in enumerate(some): assert together[i] == pytest.approx(total_time(*case, *one))


# memory

@few
@given(unequal(), st.floats(0, 3), st.floats(0, 20))
def test_what_is_kept(case, sent, fixed):
    p, s, GB = case[1], SCHEDULES[case[0]], case[4]   # any figure of each chunk
    timeline = played(*case, sent=sent)
    held = memory_over_time(timeline, s.splits, GB, fixed)
    assert held.GB.min() >= fixed - 1e-9 and len(peaks(held)) == p
    rank, most, when = heaviest(held)
    assert most == peaks(held).max() == held.GB[(held.rank == rank) & (held.time == when)].max()
    t = passes_of(timeline)
    for rank in range(p):   # what is held in all, against how long each chunk is kept
        time, GBs = held.time[held.rank == rank], held.GB[held.rank == rank]
        assert GBs[-1] == pytest.approx(fixed)
        area = ((GBs[:-1] - fixed) * np.diff(time)).sum()
        first, last = ((t['rank'] == rank) & (t['kind'] == kind)
                       for kind in ('F', 'W' if s.splits else 'B'))
        each = (GB[t['place'][last]] * t['end_s'][last]).sum()
        assert area == pytest.approx(each - (GB[t['place'][first]] * t['start_s'][first]).sum())


@few
@given(unequal(), costs_of(1))
def test_what_is_kept_does_not_depend_on_times(case, other):
    name, p, v, N, F, *_ = case
    s = SCHEDULES[name]
    some, others = (peaks(memory_over_time(played(name, p, v, N, *work), s.splits, F))
                    for work in (case[4:], other[0]))
    np.testing.assert_allclose(some, others)
    kept = np.broadcast_to([s.saved(p, v, N, rank) for rank in range(p)], p)
    np.testing.assert_allclose(most_saved(played(*case), v, s.splits), kept)
    assert (some <= kept * v * F[held_chunks(name, p, v)].max(axis=1) * (1 + 1e-9)).all()


# one configuration, played

CASES = st.tuples(pick(['paper', 'corrected', 'calibrated']), pick(list(SCHEDULES)), pick([2, 4]),
                  pick([8, 16]), pick(['none', 'full']))
TINY = Model(512, 256, 4, 8, vocab=32000, name='tiny')


def priced(preset, schedule, pp, batch, recompute, depth=8, **options):
    "An estimate of a small model; its search ignores how narrow it is."
    a = dataclasses.replace(as_assumptions(preset), least_features=16)
    p = Parallel(tp=2, pp=pp, schedule=schedule, recompute=recompute, **options)
    model = dataclasses.replace(TINY, depth=depth)
    return estimate(model, p, 'H100-80GB' if preset == 'calibrated' else 'H200', batch, a)


def by_order(one):  # (s, s)
    "What an estimate's passes take by its figures, and by its timeline."
    priced = timeline.priced_estimate(one)
    p, times = priced.work.layouts, timeline.iteration_times(priced)
    busy = timeline.slowest_stage(priced).busy + timeline.micro_batch_overhead(p, times)
    return p.micro_batches * busy + one.stats['bubble_s'], one.timeline.end_s.max()


def is_its_timeline(one):
    "Whether the time and the memory of an estimate are those of its own passes."
    said, played = by_order(one)
    assert said == pytest.approx(played, rel=1e-9)
    held = one.memory_over_time.memory_GB.max()
    assert one.stats['memory_GB'] == pytest.approx(held, rel=1e-9)


@examples(15)
@given(CASES)
def test_equal_stages_are_played_as_the_formulas_say(case):
    one = priced(*case)
    is_its_timeline(one)
    assert case[0] == 'calibrated' or not [note for note in one.notes if 'played' in note]


@examples(15)
@given(CASES, st.data())
def test_a_layout_of_equal_chunks_changes_nothing(case, data):
    v = 2 if SCHEDULES[case[1]].chunks == 2 else 1
    chunks = chunks_of(8, case[2] * v)
    one, same = priced(*case), priced(*case, layout=layout_of(chunks))
    assert same.parallel.virtual_stages == v and same.notes == one.notes
    for name, x in one.stats.items(): assert same.stats[name] == pytest.approx(x, rel=1e-9)


@examples(15)
@given(pick(list(SCHEDULES)), pick([5, 6, 7, 9, 11]), pick([8, 24, 100]))
def test_stages_that_differ(schedule, depth, batch):
    case = 'calibrated', schedule, 4, batch, 'none', depth
    v = max(SCHEDULES[schedule].chunks, 1)
    assume(4 * v <= depth)
    one = priced(*case)
    is_its_timeline(one)
    by_rule = priced(*case, layout=layout_of(chunks_of(depth, 4 * v)))
    for name, x in one.stats.items(): assert by_rule.stats[name] == pytest.approx(x, rel=1e-12)


def test_gpipe_keeps_every_micro_batch():
    p = Parallel(tp=8, pp=2, schedule='gpipe', layout='Et*17|t*15L')
    one = estimate('llama3.1_8B', p, 'H100-80GB', 128, 'calibrated')
    assert not one.fits and one.stats['memory_GB'] > 300
    is_its_timeline(one)


def test_a_rank_without_layers_computes_none_again():
    layout = 'Ettt|ttt|tt|L'
    full, none = (priced('calibrated', '1f1b', 4, 16, how, layout=layout).memory_over_time
                  .groupby('rank').memory_GB.max() for how in ('full', 'none'))
    assert full[3] == none[3] and (full[:3] < none[:3]).all()


def test_few_micro_batches_leave_bubbles_unfilled():
    "With two micro-batches, zero bubble can fill little of the waiting of 16 stages."
    one = estimate('gpt3', Parallel(pp=16, schedule='zb-h1'), 'H200', 2, assumptions='corrected')
    is_its_timeline(one)
    whole = estimate('gpt3', Parallel(pp=16), 'H200', 2,
                     assumptions='corrected').stats['iteration_s']
    assert .6 * whole < one.stats['iteration_s'] < .8 * whole


def test_ranks_alike_of_unequal_chunks_are_played():
    "Four layers on each rank, in chunks of three and one."
    uneven, even = (priced('corrected', '1f1b', 2, 8, 'none', layout=layout)
                    for layout in ('Ettt|t|t|tttL', 'Ett|tt|tt|ttL'))
    is_its_timeline(uneven)
    assert uneven.stats['iteration_s'] > 1.03 * even.stats['iteration_s']


@pytest.mark.parametrize('schedule', ['dualpipe', 'dualpipe-v', 'zb-v', '1f1b'])
def test_experts_in_every_second_layer(schedule):
    model = Model(512, 256, 4, 8, vocab=32000, experts=8, experts_per_token=2, expert_dim=512,
                  moe_every=2, name='tiny')
    p = Parallel(pp=4, schedule=schedule)
    is_its_timeline(estimate(model, p, 'H100-80GB', 16, 'calibrated'))
    if schedule == '1f1b':
        interleaved = dataclasses.replace(p, virtual_stages=2)
        is_its_timeline(estimate(model, interleaved, 'H100-80GB', 16, 'calibrated'))


def cost_of_chunks(random, chunks, kind):  # F, B, W [chunk]
    "Equal ones, nearly equal ones, some with an embedding and a loss, or any."
    work = random.uniform(.2, 1, (3, 1)) * np.ones(chunks)
    if kind == 'near': work = work * (1 + 1e-3 * random.uniform(size=(3, chunks)))
    if kind == 'ends': work[:, [0, -1]] += random.uniform(0, .5, (3, 2))
    if kind == 'any': work = work * random.uniform(.5, 1.5, (3, chunks))
    return work


@pytest.mark.parametrize('name', SCHEDULES)
def test_few_micro_batches_tell_of_many(name):
    "Time and memory of shortened orders against all of every order, played and counted."
    s, random, compared = SCHEDULES[name], np.random.default_rng(7), 0
    for p, kind in itertools.product((1, 2, 3, 4, 5, 8), ('equal', 'near', 'ends', 'any')):
        for v, N in itertools.product((s.chunks,) if s.chunks else (1, 2, 3),
                                      (1, p - 1, 2 * p, 5 * p, 6 * p + 1, 12 * p, 100)):
            if N < 1 or N > 48 and p > 4 or not possible(s, p, v, N, v): continue
            work = cost_of_chunks(random, p * v, kind)
            case, GB = (name, p, v, N, *work), random.uniform(.5, 1.5, p * v)
            whole = played(*case)
            assert time_played(*case) == pytest.approx(whole.total, rel=1e-9), case[:4]
            held = peaks(memory_over_time(whole, s.splits, GB))
            np.testing.assert_allclose(most_held(name, p, v, N, GB), held, rtol=1e-9)
            if formula_holds(name, p, v, *work):
                assert total_time(*case) == pytest.approx(whole.total, rel=1e-9), case[:4]
                compared += 1
    assert compared > 5


def moved(steps, m):  # list
    "The same steps of later micro-batches."
    return [tuple((kind, chunk, one + m) for kind, chunk, one in step) for step in steps]


PERIODIC = [name for name, s in SCHEDULES.items() if s.repeats(4, 2) < NEVER]


@pytest.mark.parametrize('name', PERIODIC)
def test_more_micro_batches_are_more_periods(name):
    "Orders of many are those of few, with the last period of the steady state again and again."
    s, more = SCHEDULES[name], 5
    for p, times in itertools.product((1, 2, 3, 4, 5, 8), (3, 4)):
        for v, rest in itertools.product((s.chunks,) if s.chunks else (1, 2, 3), (0, 1, 2)):
            few, each = times * p + rest, s.repeats(p, v)
            if p == 2 and times == 3 and s.both_ways or not possible(s, p, v, few, v): continue
            steps, period = program(name, p, v, few), each // (1 + s.both_ways)
            now, before = steps.steady
            for rank in range(p):
                cells = steps.cell[:-1][steps.rank == rank].tolist()
                last, earlier = (cells.index(x[x % p == rank].max()) for x in (now, before))
                order, many = (list(s.steps(rank, p, v, n)) for n in (few, few + more * each))
                again = [moved(order[earlier + 1:last + 1], period * (i + 1)) for i in range(more)]
                after = moved(order[last + 1:], period * more)
                assert many == [*order[:last + 1], *itertools.chain(*again), *after]


@pytest.mark.parametrize('name', PERIODIC)
def test_later_steps_wait_for_few_of_the_steady_state(name):
    "All that comes after the steady state can be played from these steps alone."
    s, random = SCHEDULES[name], np.random.default_rng(5)
    for p in (4, 6):
        v = s.chunks or 2
        steps = program(name, p, v, 4 * p)
        own, (now, _) = steps.cell[:-1], steps.steady
        stop = np.array([now[now % p == rank].max() for rank in range(p)])
        took = random.uniform(.5, 1, len(own))
        end = dict(zip(own.tolist(), step_end_times(steps, took)[own]))
        found = {cell: end[cell] for cell in now.tolist()}
        far = steps.far | (np.arange(steps.far.shape[1]) == 0)   # what else is there is over
        for i in np.flatnonzero(own > stop[steps.rank]):
            needs = steps.cell[steps.waits[i][far[i] & (steps.waits[i] >= 0)]]
            found[own[i]] = max(found[cell] for cell in needs.tolist()) + took[i]
        assert len(found) > len(now) and all(end[cell] == x for cell, x in found.items())


def test_few_micro_batches_are_played():
    "Interleaved, with an embedding and a loss at the ends: three of each rank are enough."
    work = np.full((3, 64, 2), .1)
    work[:, 0] += .01
    work[:, -1] += .02, .03
    before = program.cache_info()
    time_played('1f1b', 8, 8, 4096, *work)
    after = program.cache_info()
    assert after.hits + after.misses == before.hits + before.misses + 1


def test_a_rank_that_is_a_little_slower_makes_others_wait_late():
    "The second-longest rank sets the pace first; a straight line through two runs is off."
    F = np.array([1., .9999, .5, .5, .5, .99995, .5, .5])
    case = 8, 1, 1000, F, F, F
    for name in ('1f1b', 'zb-h1', 'zb-h2'):
        assert time_played(name, *case) == pytest.approx(played(name, *case).total, rel=1e-9)


def test_many_durations_are_played_at_once():
    random = np.random.default_rng(3)
    for name, v in (('zb-v', 2), ('1f1b', 3), ('dualpipe', 1)):
        work = random.uniform(.5, 1, (3, 4 * v, 5))
        together = time_played(name, 4, v, 40, *work)
        each = [time_played(name, 4, v, 40, *work[..., i]) for i in range(5)]
        np.testing.assert_allclose(together, each, rtol=1e-12)


def test_a_longer_stage_is_waited_for():
    case = 'corrected', '1f1b', 4, 64, 'none'
    even, odd = (priced(*case, layout=layout) for layout in (
        'Ett|tt|tt|ttL', 'Ett|ttt|t|ttL'))
    seconds = [one.stats['iteration_s'] - one.stats['bubble_s'] for one in (even, odd)]
    assert 1.4 < seconds[1] / seconds[0] < 1.5
    first = odd.memory_over_time.groupby('rank').memory_GB.max()
    assert first.idxmax() == 1   # three layers kept three times, against two kept four times


@pytest.mark.parametrize('options, says', [
    (dict(layout='Ett|tt|ttL'), 'must be divisible by pp=4'),
    (dict(layout='Et|tt|tt|tt|tL'), 'must be divisible by pp=4'),
    (dict(layout='Ett|tt|tt|tL'), 'has 7 t, not depth=8'),
    (dict(layout='Ett|tt|tt|tmtL'), 'must be one E, then every t'),
    (dict(layout='Et|t|t|t|t|t|t|tL', virtual_stages=1), 'not virtual_stages=1'),
    (dict(layout='Ett|tt|tt|ttL', schedule='zb-v'), "virtual_stages=2"),
    (dict(layout=8), 'layout=8 must be')])
def test_layouts_that_do_not_fit(options, says):
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        estimate(TINY, Parallel(pp=4, **options), 'H200', 8)
    assert '\n' not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize('about, lacks', [   # (schedule, pp, virtual stages, micro-batches, layers)
    (('1f1b', 1, 8, 8, 8), ['pp above 1']), (('1f1b', 4, 2, 6, 8), ['that divides the micro']),
    (('1f1b', 4, 3, 8, 8), ['virtual_stages that divide the 8 layers of a stage']),
    (('zb-v', 1, 2, 8, 8), ['pp above 1']),
    (('dualpipe', 3, 1, 4, 8), ['an even pp', 'at least 6 micro-batches'])])
def test_what_a_schedule_lacks_is_said(about, lacks):
    "And no more than that."
    with pytest.raises(ValueError, match='needs') as error: check_schedule(*about)
    said = str(error.value).partition(': not')[0]
    assert all(words in said for words in lacks) and said.count(' and ') <= len(lacks)
    assert ('layers of a stage' in said) == ('layers' in lacks[0])


def test_uneven_stages_are_for_whoever_asks():
    odd = dataclasses.replace(TINY, depth=7)
    with pytest.raises(ValueError, match='depth=7 must be divisible by pp=4'):
        estimate(odd, Parallel(pp=4), 'H200', 8, 'corrected')
    with pytest.raises(ValueError, match='pp=8 must be at most depth=7'):
        estimate(odd, Parallel(pp=8), 'H100-80GB', 8, 'calibrated')
    one = estimate(odd, Parallel(pp=4), 'H100-80GB', 8, 'calibrated')
    assert 'played' in one.notes[-1] and one.timeline['rank'].max() == 3


def test_too_many_passes_are_not_listed():
    odd = dataclasses.replace(TINY, depth=7)
    one = estimate(odd, Parallel(pp=4), 'H100-80GB', 65536, 'calibrated')
    with pytest.raises(ValueError, match='524288 passes are more than 200000'): _ = one.timeline


@pytest.mark.parametrize('schedule', ['zb-h1', 'zb-h2', 'dualpipe', '1f1b'])
def test_no_order_of_passes_is_faster_than_the_least(schedule):
    "Nor is it ever beyond reach: all that a rank computes is done in less than twice that."
    one = estimate(TINY, Parallel(pp=4, schedule=schedule), 'H100-80GB', 8, 'calibrated')
    priced = timeline.priced_estimate(one)
    least = timeline.least_iteration_seconds(priced, 1e-3)
    assert .5 < least / timeline.play(priced, 1e-3).end.max() < 1 + 1e-9


@pytest.mark.parametrize('schedule', ['zb-h1', 'dualpipe', 'dualpipe-v', '1f1b'])
@pytest.mark.parametrize('slow', [0, 1])
def test_an_end_of_the_model_is_waited_for(schedule, slow):
    "One that takes more than all else: its rank has it in every micro-batch, both ways together."
    one = estimate(TINY, Parallel(pp=4, schedule=schedule), 'H100-80GB', 8, 'calibrated')
    priced = timeline.priced_estimate(one)
    priced = priced._replace(ends=[0 * end + (at == slow) for at, end in enumerate(priced.ends)])
    N, ranks = priced.work.layouts.micro_batches, 2 if schedule == 'dualpipe' else 1
    least = timeline.least_iteration_seconds(priced, 0.)
    last = timeline.play(priced, 0.).end.max()
    assert N / ranks < least <= last * (1 + 1e-9)


@pytest.mark.parametrize('depth', [7, 8])
@pytest.mark.parametrize('schedule', ['1f1b', 'gpipe'])
def test_one_micro_batch_takes_no_longer_than_its_path(schedule, depth):
    "Forth through all ranks and back: the last of them has waited for all that the others do."
    model = dataclasses.replace(TINY, depth=depth)
    one = estimate(model, Parallel(pp=4, schedule=schedule), 'H100-80GB', 1, 'calibrated')
    priced = timeline.priced_estimate(one)
    least = timeline.least_iteration_seconds(priced, 1e-3)
    assert least == pytest.approx(timeline.play(priced, 1e-3).end.max(), rel=1e-9)


@pytest.mark.parametrize('layout', [dict(pp=4), dict(pp=2, virtual_stages=2)])
def test_as_many_passes_are_listed_as_are_counted(layout):
    one = estimate(TINY, Parallel(**layout), 'H200', 8, 'corrected')
    work, run = played_estimate(one)
    assert timeline.passes_in(work.layouts) == len(passes_of(run)['rank']) == 2 * 8 * 4


def test_a_search_finds_uneven_pipelines():
    found = search('llama3.1_405B', 1024, 'H100-80GB', 512, assumptions='calibrated', k=20,
                   virtual_stages=[1, 2])
    uneven = found[126 % (found.pp * found.virtual_stages) > 0]
    assert len(uneven) and found.likely_s.is_monotonic_increasing
    for row in uneven.iloc[::5].to_dict('records'):
        again = estimate('llama3.1_405B', Parallel.from_row(row), 'H100-80GB', 512, 'calibrated')
        assert again.stats['iteration_s'] == pytest.approx(row['iteration_s'], rel=1e-12)
        assert again.stats['memory_GB'] == pytest.approx(row['memory_GB'], rel=1e-12)
    strict = dataclasses.replace(as_assumptions('calibrated'), uneven_stages=False)
    any_, even = (search('llama3.1_405B', 1024, 'H100-80GB', 512, assumptions=a, k=1)
                  for a in ('calibrated', strict))
    assert 126 % (any_.pp[0] * any_.virtual_stages[0]) > 0 and any_.likely_s[0] < even.likely_s[0]


def test_layers_of_several_kinds_where_they_sit():
    "DeepSeek-V3: three dense layers, then experts, then a prediction layer on a chunk of its own."
    p = Parallel(pp=16, dp=64, ep=64, layout='Et*3|(tt|)*29m|L')
    one = estimate('deepseek_v3', p, 'H100-80GB', 4096, 'calibrated')
    t = one.timeline[one.timeline.kind == 'F']
    took = (t.end_s - t.start_s).groupby(t.place).mean()
    assert took[1:29].max() == pytest.approx(took[1:29].min()) and len(took) == 32
    assert .45 < took[30] / took[1] < .55      # one layer with experts instead of two
    assert took[0] < .6 * took[1]   # three layers without experts


def test_what_plays_best_is_found_however_few_are_asked_for():
    "Formulas alone would put five virtual stages first; played, four are faster."
    about = dict(n_gpus=16384, system='H100-80GB', global_batch=2048, assumptions='calibrated',
                 strategy='2d-seqp', fixed=dict(tp=8, cp=2, pp=16, micro_batch=1))
    one, more = (search('llama3.1_405B', k=k, **about) for k in (1, 20))
    assert len(one) == 1 and len(more) > 5
    assert one.iteration_s[0] == more.iteration_s[0] == more.iteration_s.min()
    assert one.virtual_stages[0] == 4 and list(more['rank']) == list(range(1, len(more) + 1))
