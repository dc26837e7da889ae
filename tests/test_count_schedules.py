"""Orders of work against their definitions, and played by a second hand, one pass at a time."""
import itertools

import numpy as np
import pytest

from transformer_perf.schedules import (
    SCHEDULES, check_schedule, chunks_dealt, first_rows, formula_holds, most_held, most_saved,
    own_figure, passes_in_order, played, possible, total_time)

GRID = [(name, p, v, N) for name, s in SCHEDULES.items() for p in (2, 3, 4, 6) for v in (1, 2, 3)
        for N in (p, 2 * p, 2 * p + 2, 3 * p) if possible(s, p, v, N, v)]
EACH = pytest.mark.parametrize('name', SCHEDULES)


def cases_of(name): return [case for case in GRID if case[0] == name]


def place_of(name, p, rank, chunk):  # (direction, number of the chunk in the model)
    "Chunks go round the ranks; or down and up again; or both ways at once."
    if name == 'dualpipe':
        down = (chunk == 0) == (rank < p // 2)
        return ('down', rank) if down else ('up', p - 1 - rank)
    if name in ('zb-v', 'dualpipe-v') and chunk == 1: return 'down', 2 * p - 1 - rank
    return 'down', chunk * p + rank


def orders(name, p, v, N):  # list, for each rank, of steps of (kind, direction, place, micro-batch)
    "What each rank does, one after the other."
    found = []
    for rank in range(p):
        found.append([[(kind, *place_of(name, p, rank, chunk), m) for kind, chunk, m in step]
                      for step in SCHEDULES[name].steps(rank, p, v, N)])
    return found


def before(kind, way, place, m, last):
    "What a pass waits for."
    if kind == 'F': return ('F', way, place - 1, m)
    if kind == 'W': return ('B', way, place, m)
    return ('F', way, place, m) if place == last else ('B', way, place + 1, m)


def walk(name, p, v, N, cost, waits=0., late=0., overlap=0.):  # (s, most that each rank keeps)
    """Every rank does its next step as soon as what it waits for is done.

    A message takes a pass of F or B `waits`, and comes `late` to another rank."""
    todo, last = orders(name, p, v, N), p * v - 1
    done, by, clock = {}, {}, [0.] * p
    split = SCHEDULES[name].splits
    held, most = [0] * p, [0] * p
    while any(todo):
        moved = False
        for rank in range(p):
            while todo[rank]:
                step = todo[rank][0]
                need = [before(*one, last) for one in step]
                need = [x for x in need if x[2] >= 0 and x not in step]
                if any(x not in done for x in need): break
                there = [done[x] + late * (by[x] != rank) for x in need]
                start = max([clock[rank], *there])
                if len(step) > 1 and step[0][0] == 'F':   # with a backward pass
                    start -= overlap * (cost['F'][step[0][2]] + waits)
                for kind, way, place, m in step:
                    start += cost[kind][place] + waits * (kind != 'W')
                    held[rank] += (kind == 'F') - (kind == ('W' if split else 'B'))
                    most[rank] = max(most[rank], held[rank])
                for one in step: done[one], by[one] = start, rank
                clock[rank], moved = start, True
                todo[rank].pop(0)
        assert moved, 'ranks wait for each other'
    return max(clock), [x / v for x in most]


@EACH
def test_every_pass_is_done_once(name):
    "Forward and backward of every chunk and micro-batch, and the weights' where they wait."
    s = SCHEDULES[name]
    for _, p, v, N in cases_of(name):
        every = [one for rank in orders(name, p, v, N) for step in rank for one in step]
        ways, each = (('down', 'up'), N // 2) if s.both_ways else (('down',), N)
        kinds = 'FBW' if s.splits else 'FB'
        expected = set(itertools.product(kinds, ways, range(p * v), range(each)))
        assert len(every) == len(expected) and set(every) == expected


@EACH
def test_a_second_hand_takes_as_long(name):
    "Chunks of any length; and what each rank keeps at most is what the schedule says."
    rng, s = np.random.default_rng(3), SCHEDULES[name]
    for _, p, v, N in cases_of(name):
        F, B, W = rng.uniform(.5, 2, (3, p * v))
        cost = {'F': F, 'B': B, 'W': W} if s.splits else {'F': F, 'B': B + W}
        run = played(name, p, v, N, F, B, W)
        total, kept = walk(name, p, v, N, cost)
        if not s.both_ways and not s.blocks: assert most_saved(run, v, s.splits) == kept
        assert run.total == pytest.approx(total, rel=1e-12)
        run = played(name, p, v, N, F, B, W, sent=.3, exposed=.25, overlap=.4)
        assert run.total == pytest.approx(walk(name, p, v, N, cost, .075, .225, .4)[0], rel=1e-12)
        said = [np.broadcast_to(s.saved(p, v, N, rank), ()).item() for rank in range(p)]
        assert np.allclose(most_saved(run, v, s.splits), said)


@EACH
def test_losses_that_wait_for_their_gradient(name):
    "The last chunk keeps the logits of each micro-batch from its forward pass to its backward one."
    for _, p, v, N in cases_of(name):
        most = 0
        for rank in orders(name, p, v, N):
            waiting = {'down': 0, 'up': 0}
            for kind, way, place, _ in itertools.chain(*rank):
                if place < p * v - 1: continue
                waiting[way] += (kind == 'F') - (kind == 'B')
                most = max(most, *waiting.values())
        assert most == SCHEDULES[name].losses(p, N)


def chunks_summed_at_most_kept(name, p, v, N, rank):
    "Chunks with gradients of some micro-batches, not of all, when a rank keeps most."
    last = 'W' if SCHEDULES[name].splits else 'B'
    kept, back, seen = 0, {}, []
    for step in SCHEDULES[name].steps(rank, p, v, N):
        for kind, chunk, _ in step:
            kept += kind == 'F'
            back[chunk] = back.get(chunk, 0) + (kind == last)
            seen.append((kept, sum(n > 0 and (n < N or (kind, c) == (last, chunk))
                                   for c, n in back.items())))
            kept -= kind == last
    most = max(kept for kept, _ in seen)
    return max(chunks for kept, chunks in seen if kept == most)


@EACH
def test_chunks_whose_gradients_wait_for_more(name):
    "In one round of micro-batches a chunk is done before the next: pipelines of FSDP reduce then."
    s = SCHEDULES[name]
    few = [(name, p, v, N) for p in (4, 6) for v in (1, 2, 3) for N in (2, 3)
           if possible(s, p, v, N, v)]
    for _, p, v, N in [*cases_of(name), *few]:
        at_most = s.summed(p, v, N) * (1 + s.both_ways)   # of both stages of a rank
        found = [chunks_summed_at_most_kept(name, p, v, N, rank) for rank in range(p)]
        assert max(found) <= at_most
        if name == '1f1b' and N <= p: assert max(found) == at_most == 1


@EACH
def test_what_unequal_chunks_hold(name):
    "Each rank step by step: a forward pass begins to hold, the last of its backward passes frees."
    s, rng = SCHEDULES[name], np.random.default_rng(6)
    freeing = 'W' if s.splits else 'B'
    for _, p, v, N in cases_of(name):
        GB, hand = rng.uniform(.1, 3, p * v), []
        for rank in orders(name, p, v, N):
            held = most = 0.
            for step in rank:
                held += sum(GB[place] for kind, _, place, _ in step if kind == 'F')
                most = max(most, held)
                held -= sum(GB[place] for kind, _, place, _ in step if kind == freeing)
            assert abs(held) < 1e-9
            hand.append(most)
        assert np.allclose(most_held(name, p, v, N, GB), hand, rtol=1e-12)


@EACH
def test_what_a_rank_idles(name):
    "With equal chunks the formula is what the second hand finds, whichever pass is longest."
    s, rng = SCHEDULES[name], np.random.default_rng(4)
    longest = [(1., 2., .1), (1., 1.2, 3.), (3., 1., 1.), (1., 1., 1.), (1., 5., .2)]
    for _, p, v, N in cases_of(name):
        for each in [*longest, *rng.uniform(.2, 2, (2, 3))]:
            F, B, W = (np.full(p * v, x) for x in each)
            overlap = .5 * min(1, (B + W)[0] / F[0]) * s.blocks
            cost = {'F': F, 'B': B, 'W': W} if s.splits else {'F': F, 'B': B + W}
            total, _ = walk(name, p, v, N, cost, overlap=overlap)
            assert total_time(name, p, v, N, F, B, W, overlap) == pytest.approx(total, rel=1e-12)
            assert formula_holds(name, p, v, F, B, W)
            more = {'overlap': overlap} if s.blocks else {}
            idle = s.idle(p, v, N, *(v * x for x in each), **more)
            busy = N * v * (sum(each) - overlap * each[0])
            assert busy + idle == pytest.approx(total, rel=1e-12)


@EACH
def test_where_a_formula_holds(name):
    "Where it says so of unequal chunks, the second hand agrees; it says so nowhere but there."
    rng, said = np.random.default_rng(5), 0
    s = SCHEDULES[name]
    for _, p, v, N in cases_of(name):
        for i in range(6):
            F, W = np.full(p * v, 1.), np.full(p * v, .5)
            F[rng.integers(p * v) if i % 2 else -1] += rng.uniform(.1, 2)   # one is longer
            if i > 3: F = np.sort(rng.uniform(.5, 2, p * v))                # all differ
            B = 1.5 * F
            if not formula_holds(name, p, v, F, B, W): continue
            said += 1
            cost = {'F': F, 'B': B, 'W': W} if s.splits else {'F': F, 'B': B + W}
            total, _ = walk(name, p, v, N, cost)
            assert total_time(name, p, v, N, F, B, W) == pytest.approx(total, rel=1e-12)
    assert bool(said) == (s.unequal is not None)


@pytest.mark.parametrize('name', [name for name in SCHEDULES if not SCHEDULES[name].unequal])
@pytest.mark.parametrize('unit', [1e-9, 1., 1e9])
def test_equal_is_equal_in_any_unit(name, unit):
    "Chunks that differ by rounding alone are equal, whatever their times are counted in."
    for _, p, v, _ in cases_of(name):
        for more, equal in ((1e-15, True), (1e-10, False)):
            F, W = np.full(p * v, unit), np.full(p * v, 3 * unit)
            F[0] *= 1 + more
            for times in ((F, W, W), (W, F, W), (W, W, F), (F, F, W)):
                assert formula_holds(name, p, v, *times) == equal


@pytest.mark.parametrize('p, N', [(2, 6), (4, 6), (4, 16), (8, 3)])
def test_1f1b_as_written(p, N):
    "As many forward passes ahead as ranks follow, then one of each in turn."
    for rank in range(p):
        ahead = min(p - 1 - rank, N)
        text = ''.join(kind for ((kind, *_),) in SCHEDULES['1f1b'].steps(rank, p, 1, N))
        assert text == 'F' * ahead + 'FB' * (N - ahead) + 'B' * ahead


def test_interleaved_as_written():
    "Two ranks, two chunks: micro-batches in groups of two, chunk after chunk; back in reverse."
    steps = [one for (one,) in SCHEDULES['1f1b'].steps(0, 2, 2, 4)]
    ahead = [(c, m) for pair in ((0, 1), (2, 3)) for c in (0, 1) for m in pair]
    back = [(1 - c, m) for c, m in ahead]
    assert [one[1:] for one in steps if one[0] == 'F'] == ahead
    assert [one[1:] for one in steps if one[0] == 'B'] == back
    text = ''.join(one[0] for one in steps)
    assert text == 'F' * 4 + 'FB' * 4 + 'B' * 4   # 2 (p - 1 - rank) + (v - 1) p ahead
    last = ''.join(kind for ((kind, *_),) in SCHEDULES['1f1b'].steps(1, 2, 2, 4))
    assert last == 'F' * 2 + 'FB' * 6 + 'B' * 2


@pytest.mark.parametrize('name, times', [('zb-h1', 1), ('zb-h2', 2)])
def test_gradients_of_weights_fill_the_bubble(name, times):
    "H1 keeps as many micro-batches as 1F1B, H2 about twice as many; W comes times * rank late."
    for p, N in ((2, 4), (4, 9)):
        for rank in range(p):
            steps = [one for (one,) in SCHEDULES[name].steps(rank, p, 1, N)]
            text = ''.join(one[0] for one in steps)
            assert len(text) == 3 * N and text.startswith('F' * min(times * (p - 1 - rank), N))
            late = most = 0
            for kind in text:
                late += (kind == 'B') - (kind == 'W')
                most = max(most, late)
            assert most == min(times * rank + 1, N)
            for kind in 'FBW': assert [m for k, _, m in steps if k == kind] == list(range(N))


@pytest.mark.parametrize('W', [.2, .7, 1.])
@pytest.mark.parametrize('overlap', [0., .3])
def test_dualpipe_idles_as_its_authors_say(W, overlap):
    """(p / 2 - 1) (F&B + B - 3 W), both gradients in B (README of DualPipe @ 3da1bbe), where a
    forward pass is as long as an input's gradient; p / 2 + 2 passes find no partner to hide in."""
    for p in (2, 4, 8):
        run, N = played('dualpipe', p, 1, 4 * p, 1., 1., W, overlap=overlap), 4 * p
        both = 2 + W   # a block in which nothing hides
        idle = (p / 2 - 1) * (both + (1 + W) - 3 * W) + (p / 2 + 2) * overlap
        assert run.total == pytest.approx(N * (both - overlap) + idle, rel=1e-12)


def test_dualpipe_as_written():
    "A rank at the end of four; what stands together sends nothing before all of it is done."
    steps = SCHEDULES['dualpipe'].steps(0, 4, 1, 8)
    text = ' '.join(''.join(kind for kind, *_ in step) for step in steps)
    assert text == 'F F F F B W F FBW FBW BW FBW BW B W B W'


@pytest.mark.parametrize('p, N', [(2, 4), (3, 8), (4, 8), (4, 13)])
def test_zb_v_as_written(p, N):
    "Chunk 0 goes down, 1 up; as PyTorch deals them out (ScheduleZBVZeroBubble), but for late W."
    for rank in range(p):
        steps = [one for (one,) in SCHEDULES['zb-v'].steps(rank, p, 2, N)]
        text = ' '.join(f'{kind}{chunk}' for kind, chunk, _ in steps)
        to_come = N - (2 * p - 1 - rank)   # forward passes of chunk 0 after those that run ahead
        steady = 'B0 W0 F1 B1 W1'
        early = ['F0'] * (2 * (p - rank) - 1) + ['F1 F0'] * rank + ['F1 B1 W1'] * (p - rank)
        middle = [f'F0 {steady}'] * to_come + [steady] * (N - p - to_come)
        ends = ['B0 B1'] * rank + ['B0 W0'] * (p - rank)
        start = ' '.join([*early, *middle, *ends])
        assert text.startswith(start)
        late = text.removeprefix(start).split()   # what was put off
        assert sorted(late) == ['W0'] * rank + ['W1'] * rank


def test_a_figure_of_each_row_is_its_schedules():
    "A name, a column of names, or none."
    of = lambda s: s.chunks
    chunks = {name: of(s) for name, s in SCHEDULES.items()}
    names = np.array([*chunks] * 2)
    assert own_figure(names, of).tolist() == [chunks[name] for name in names]
    for name, number in chunks.items():
        assert own_figure(name, of) == own_figure(np.array(name), of) == number
    assert np.size(own_figure(names[:0], of)) <= 1


def test_which_schedules_are_possible():
    "Chunks, pairs and enough micro-batches, each by itself."
    yes = {('1f1b', 4, 1, 3, 5), ('1f1b', 4, 2, 8, 6), ('1f1b', 1, 1, 1, 1), ('gpipe', 4, 1, 1, 1),
           ('zb-h1', 4, 1, 4, 2), ('zb-h2', 4, 1, 7, 2), ('zb-v', 4, 2, 8, 2),
           ('dualpipe', 4, 1, 8, 2), ('dualpipe-v', 3, 2, 6, 4)}
    no = {('1f1b', 4, 2, 6, 6), ('1f1b', 4, 2, 8, 5), ('1f1b', 1, 2, 8, 2), ('gpipe', 4, 2, 8, 4),
          ('zb-h1', 4, 2, 8, 4), ('zb-h2', 4, 1, 6, 2), ('zb-v', 4, 1, 8, 2), ('zb-v', 4, 2, 7, 2),
          ('zb-v', 4, 2, 8, 3), ('zb-v', 1, 2, 8, 2), ('dualpipe', 3, 1, 8, 2),
          ('dualpipe', 4, 1, 7, 2), ('dualpipe', 4, 1, 9, 2), ('dualpipe-v', 4, 2, 7, 2)}
    for case, can in [*((case, True) for case in yes), *((case, False) for case in no)]:
        name, *sizes = case
        assert bool(possible(SCHEDULES[name], *sizes)) == can, case
        if can: check_schedule(name, *sizes)
        else:
            with pytest.raises(ValueError, match=f'schedule={name} needs'):
                check_schedule(name, *sizes)


@EACH
def test_passes_in_their_order(name):
    "Every pass of every rank, a row each; a rank's steps are numbered one after the other."
    for _, p, v, N in cases_of(name)[:6]:
        steps = [(rank, step) for rank in range(p) for step in SCHEDULES[name].steps(rank, p, v, N)]
        by_hand = [(rank, number, 'FBW'.index(kind), chunk, m)
                   for number, (rank, step) in enumerate(steps) for kind, chunk, m in step]
        found = passes_in_order(name, p, v, N)
        rows = zip(*(found[column] for column in ('rank', 'step', 'kind', 'chunk', 'micro_batch')))
        assert [tuple(map(int, row)) for row in rows] == by_hand


def test_where_runs_of_labels_begin():
    assert first_rows(np.array([0, 0, 1, 1, 1, 2])).tolist() == [0, 2, 5]
    assert first_rows(np.array([3, 3, 0])).tolist() == [0, 2]


@pytest.mark.parametrize('rule, few, many', [
    ('layers', ['Et', 't', 't', 'tL'], [3, 4, 4, 3]),   # the ends count where layers do not divide
    ('layers and ends', ['Et', 'tt', 't', 'L'], [3, 4, 4, 3]),
    ('layers, norm and ends', ['Et', 'tt', 't', 'L'], [4, 4, 4, 2]),
    # more than 5/4, 10/4, 15/4 of four layers and an output; or 15/4, ... of fourteen
    ('layers and output, by their matrices', ['Ett', 't', 't', 'L'], [4, 4, 4, 2])])
def test_how_layers_are_dealt(rule, few, many):
    assert chunks_dealt(rule, 4, 4) == few
    assert [chunk.count('t') for chunk in chunks_dealt(rule, 14, 4)] == many
