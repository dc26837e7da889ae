"Schedules against their definitions: orders, times, layouts, memory."
import dataclasses
import itertools
import re

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from transformer_perf import Model, Parallel, estimate, iteration, search
from transformer_perf.estimates import as_assumptions
from transformer_perf.schedules import (
    SCHEDULES, check_layout, chunk_sums, chunks_in, chunks_of, heaviest, layout_of,
    memory_over_time, most_kept, on_ranks, passes_of, peaks, held_chunks, played, total_time)

few = settings(max_examples=30, deadline=None)
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
    with pytest.raises(ValueError, match='must be of type str'): chunks_in(3)
    for wrong in ('', 'tL', 'EttL|t', 'ELt', 'EEtL', 'E((t|)*2|)*2L', 'EtmtL', 'Et*2*3L', 'Et*L'):
        with pytest.raises(ValueError, match='layout='): chunks_in(wrong)


def torchtitan(depth, n):  # list of int
    "Its rule in a loop: the ends count as a layer each, whoever comes first takes one more."
    left, found = depth + 2, []
    for i in range(n):
        own = -(-left // (n - i))
        left -= own
        found.append(own - (i == 0) - (i == n - 1))
    return found


@given(st.integers(1, 200), st.integers(1, 64))
def test_every_layer_has_a_chunk(depth, n):
    if n > depth: return
    own = [chunk.count('t') for chunk in chunks_of(depth, n)]
    assert sum(own) == depth and len(own) == n and min(own) >= 0
    assert own == ([depth // n] * n if depth % n == 0 else torchtitan(depth, n))
    if (depth + 2) % n == 0 and depth % n:   # Megatron's: every rank the same, the ends counted
        assert {c + (i == 0) + (i == n - 1) for i, c in enumerate(own)} == {(depth + 2) // n}


def test_chunks_with_less():
    for first, last in itertools.product(range(3), range(3)):
        own = [chunk.count('t') for chunk in chunks_of(40, 5, less=(first, last))]
        assert sum(own) == 40 and own[1] - own[0] in (first, first - 1) and own[0] >= own[-1] - 2
    with pytest.raises(ValueError, match='2 layers are too few for 4 chunks'): chunks_of(2, 4, 5)


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
    start, end, free = timeline.start, timeline.end, [0.] * p
    for i, (rank, _, waits) in enumerate(zip(*timeline.program[:3])):
        when = [free[rank], *(end[j] + (1 - exposed) * sent * far for j, far in waits)]
        assert start[i] == pytest.approx(max(when))
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
    exact = N * (F + B + W - overlap * F) + s.idle(p, v, F, B, W, **hidden)
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
    kept = np.broadcast_to([s.kept(p, v, N, rank) for rank in range(p)], p)
    np.testing.assert_allclose(most_kept(played(*case), p, v, s.splits), kept)
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


@few
@given(CASES)
def test_equal_stages_are_played_as_the_formulas_say(case):
    one = priced(*case)
    s, t = one.stats, one.timeline
    inside = sum(s[c] for c in ('compute_s', 'exposed_memory_s', 'tp_comm_s', 'pp_comm_s'))
    if case[0] != 'calibrated':   # there the host, the ends and the optimizer take time too
        assert t.end_s.max() == pytest.approx(inside + s['bubble_s'], rel=1e-9)
    held = one.memory_over_time
    assert held.memory_GB.max() == pytest.approx(s['memory_GB'], rel=1e-9)
    assert not [note for note in one.notes if 'played' in note]


@few
@given(CASES, st.data())
def test_a_layout_of_equal_chunks_changes_nothing(case, data):
    v = 2 if SCHEDULES[case[1]].chunks == 2 else 1
    chunks = chunks_of(8, case[2] * v)
    one, same = priced(*case), priced(*case, layout=layout_of(chunks))
    assert same.parallel.virtual_stages == v and 'played' in same.notes[-1]
    if case[0] == 'calibrated': return   # its ends differ, of which formulas are near
    for name, x in one.stats.items(): assert same.stats[name] == pytest.approx(x, rel=1e-9)


@settings(few, max_examples=15)
@given(pick(['gpipe', '1f1b', 'zb-h1', 'zb-h2', 'zb-v', 'dualpipe', 'dualpipe-v']),
       pick([5, 6, 7, 9, 11]), pick([8, 24]))
def test_stages_that_differ(schedule, depth, batch):
    case = 'calibrated', schedule, 4, batch, 'none', depth
    s, v = SCHEDULES[schedule], max(SCHEDULES[schedule].chunks, 1)
    assume(4 * v <= depth)
    one = priced(*case)
    assert 'played' in one.notes[-1]
    by_rule = priced(*case, layout=layout_of(chunks_of(depth, 4 * v)))
    for name, x in one.stats.items(): assert by_rule.stats[name] == pytest.approx(x, rel=1e-12)
    assert one.memory_over_time.memory_GB.max() == pytest.approx(one.stats['memory_GB'])
    with pytest.MonkeyPatch.context() as patch:   # the same by the formulas
        patch.setattr(iteration, 'MOST_PLAYED', 0)
        near = priced(*case).stats
    assert near['iteration_s'] == pytest.approx(one.stats['iteration_s'], rel=.12)
    alone = not s.folded and not s.both_ways   # one chunk on a rank
    if alone: assert near['memory_GB'] == pytest.approx(one.stats['memory_GB'])
    assert near['memory_GB'] >= one.stats['memory_GB'] * (1 - 1e-9)


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
    (dict(layout='Ett|tt|tt|tL'), 'has 7 t, not depth=8'),
    (dict(layout='Ett|tt|tt|tmtL'), 'must be one E, then every t'),
    (dict(layout='Et|t|t|t|t|t|t|tL', virtual_stages=1), 'not virtual_stages=1'),
    (dict(layout='Ett|tt|tt|ttL', schedule='zb-v'), "virtual_stages=2"),
    (dict(layout=8), 'layout=8 must be')])
def test_layouts_that_do_not_fit(options, says):
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        estimate(TINY, Parallel(pp=4, **options), 'H200', 8)
    assert '\n' not in str(error.value) and len(str(error.value)) < 300


def test_uneven_stages_are_for_whoever_asks():
    odd = dataclasses.replace(TINY, depth=7)
    with pytest.raises(ValueError, match='depth=7 must be divisible by pp=4'):
        estimate(odd, Parallel(pp=4), 'H200', 8)
    with pytest.raises(ValueError, match='depth=7 must be divisible by pp=8'):
        estimate(odd, Parallel(pp=8), 'H100-80GB', 8, 'calibrated')
    one = estimate(odd, Parallel(pp=4), 'H100-80GB', 8, 'calibrated')
    assert 'played' in one.notes[-1] and one.timeline['rank'].max() == 3


def test_too_many_passes_are_not_played():
    odd = dataclasses.replace(TINY, depth=7)
    one = estimate(odd, Parallel(pp=4), 'H100-80GB', 65536, 'calibrated')
    assert '524288 passes are too many to play' in one.notes[-1]
    with pytest.raises(ValueError, match='524288 passes are more than 200000'): _ = one.timeline


def test_a_search_finds_uneven_pipelines():
    found = search('llama3.1_405B', 1024, 'H100-80GB', 512, assumptions='calibrated', k=20,
                   virtual_stages=[1, 2])
    uneven = found[126 % (found.pp * found.virtual_stages) > 0]
    assert len(uneven) and found.iteration_s.is_monotonic_increasing
    for row in uneven.iloc[::5].to_dict('records'):
        again = estimate('llama3.1_405B', Parallel.from_row(row), 'H100-80GB', 512, 'calibrated')
        assert again.stats['iteration_s'] == pytest.approx(row['iteration_s'], rel=1e-12)
        assert again.stats['memory_GB'] == pytest.approx(row['memory_GB'], rel=1e-12)
    strict = dataclasses.replace(as_assumptions('calibrated'), uneven_stages=False)
    even = search('llama3.1_405B', 1024, 'H100-80GB', 512, assumptions=strict, k=1)
    assert found.iteration_s[0] < even.iteration_s[0]


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
