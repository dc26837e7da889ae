"""A search finds the best of all: every configuration is tried, and those that differ told apart.

The space is spelled out here once more, in loops over the definitions, and all of it is priced,
schedules played where stages differ: no bounds, no layers that are priced once, no choices that are
left out.
"""
import dataclasses
import itertools
import math
import os
import random

import numpy as np
import pytest

from thorough import first_of, thorough
from transformer_perf import Model, Parallel, estimate, search
from transformer_perf.choices import different_names
from transformer_perf.estimates import CHOICES, FITS_BY, as_assumptions
from transformer_perf.execution import (
    MOST_REPLAYED, column_of_all, fitting, questions, search_subject)
from transformer_perf.iteration import known_runs, rank_seconds, readable, ways_untested
from transformer_perf.timeline import (
    GROUPS, PLACES, counted_and_priced, exact_figures, exact_table, iteration_times,
    least_bubble, priced_estimate)
from transformer_perf.schedules import SCHEDULES, check_schedule
from transformer_perf.systems import as_system

CASES = int(os.environ.get('TRANSFORMER_PERF_CASES', '300'))   # questions that are drawn
GPT = dict(seq_len=1024, embed_dim=1024, heads=8, depth=8, vocab=32000)
EXPERTS = dict(mlp_dim=2048, gated_mlp=True, experts=8, experts_per_token=2, expert_dim=512)
LATENT = dict(kv_lora_rank=256, q_lora_rank=512, qk_nope_head_dim=64, qk_rope_head_dim=32,
              v_head_dim=64)
MODELS = {
    'dense': Model(**GPT), 'grouped': Model(**GPT | dict(kv_heads=2, gated_mlp=True, depth=12)),
    'experts': Model(**GPT | EXPERTS | dict(kv_heads=4)),
    'shared': Model(**GPT | EXPERTS | dict(kv_heads=4, shared_expert_dim=516, depth=6)),
    'latent': Model(**GPT | EXPERTS | LATENT | dict(shared_expert_dim=512))}
ODD = dict(seq_len=1536, depth=7)   # layers that few numbers of stages divide
UNEQUAL = {
    'dense': Model(**GPT | ODD), 'narrow': Model(**GPT | ODD | dict(kv_heads=2, vocab=128000)),
    'grouped': Model(**GPT | dict(ODD, depth=11, kv_heads=2, gated_mlp=True)),
    'first': Model(**GPT | EXPERTS | dict(ODD, kv_heads=4, dense_layers_first=1)),
    'latent': Model(**GPT | EXPERTS | LATENT | dict(ODD, moe_every=2, mtp_layers=1))}
OPEN = {   # what a question may leave open
    'zero_stage': (0, 1, 2, 3), 'recompute': ('none', 'selective', 'full', 'full:1', 'mlp'),
    'virtual_stages': (1, 2, 4), 'sequence_sharded': (True, False),
    'context': ('ring', 'allgather', 'ulysses', 'ulysses+ring'), 'dp_overlap': (True, False),
    'tp_overlap': (False, True), 'schedule': tuple(SCHEDULES), 'reduce_each': (True, False),
    'reshard_after_forward': (True, False), 'dp_replicate': (1, 2, 4),
    'precision': ('bf16', 'fp8', 'fp8-block'), 'dispatcher': ('alltoall', 'allgather', 'once'),
    'ep_overlap': (False, True)}


def divisors(x): return [c for c in range(1, x + 1) if x % c == 0]


# the space, once more

def groups_of(model, n, batch, strategy, a):
    "(tp, cp, pp, dp) by loops over the definitions."
    widest = (3 if strategy == '1d' else 1) * model.embed_dim // a.least_features
    kv = model.kv_heads or model.heads
    for tp, cp, pp in itertools.product(divisors(n), repeat=3):
        dp, rest = divmod(n, tp * cp * pp)
        if pp > model.depth or model.depth % pp and not a.uneven_stages: continue
        if rest or batch % dp or tp > widest or strategy == '1d' and cp > 1: continue
        if model.seq_len // cp < a.least_features: continue
        if model.seq_len % cp and a.rows_shared_exactly: continue
        if model.heads % tp or model.embed_dim % tp or model.mlp_dim % tp: continue
        if max(kv, tp) % min(kv, tp) or (model.shared_expert_dim or tp) % tp: continue
        yield tp, cp, pp, dp


def places_of(groups, size):
    "How many GPUs of each group share a domain: as many in each, all of it or as good as all."
    n = math.prod(groups)
    if n <= size: return [groups]
    few = [d for d in divisors(n) if d <= size]
    used = [d for d in few if not any(other > d and other % d == 0 for other in few)]
    if size in few: used = [size]
    return [p for p in itertools.product(*map(divisors, groups)) if math.prod(p) in used]


def follows(*sizes):
    "Whether a pipeline can follow a schedule."
    try: check_schedule(*sizes)
    except ValueError: return False
    return True


def can_be(c, model, batch, a):
    "Whether the choices of a configuration go together."
    copies, of_experts = c['dp'], c['tp'] * c['cp'] * c['dp'] // (c['ep'] * c['etp'])
    kv = max((model.kv_heads or model.heads) // c['tp'], 1)
    if copies % c['dp_replicate'] or of_experts % c['dp_replicate']: return False
    if c['context'] == 'ulysses' and kv % c['cp']: return False
    if model.experts and c['tp'] > 1 and not c['sequence_sharded']: return False
    N, layers = batch // c['dp'] // c['micro_batch'], model.depth // c['pp']
    if a.uneven_stages and c['pp'] * c['virtual_stages'] <= model.depth:
        layers = c['virtual_stages']   # each chunk has a layer, some may have more
    return follows(c['schedule'], c['pp'], c['virtual_stages'], N, layers)


def configurations(model, n, size, batch, strategy, a, considered, etps):  # list of dict
    "Every configuration."
    found, values = [], list(itertools.product(*considered.values()))
    for groups in groups_of(model, n, batch, strategy, a):
        tp, cp, _, dp = groups
        experts = [(ep, etp) for ep in divisors(model.experts or 1) for etp in etps
                   if tp * cp * dp % (ep * etp) == 0]
        shards = tp * cp
        sizes = [b for b in divisors(batch // dp) if b * model.seq_len % shards == 0]
        for (ep, etp), b, chosen in itertools.product(experts, sizes, values):
            c = dict(zip(GROUPS, groups)) | dict(ep=ep, etp=etp, micro_batch=b)
            c |= dict(zip(considered, chosen))
            if not can_be(c, model, batch, a): continue
            found += [c | dict(zip(PLACES, place)) for place in places_of(groups, size)]
    return found


# a question, and all answers to it

class Case:
    "A small question, drawn by a seed."
    def __init__(self, seed, models, uneven):
        r = self.random = random.Random(seed)
        self.model, self.strategy = models[r.choice(list(models))], r.choice(('1d', '2d-seqp'))
        preset = as_assumptions(r.choice(('paper', 'corrected', 'corrected', 'calibrated')))
        self.assumed = dataclasses.replace(preset, wide_search=False, uneven_stages=uneven,
                                           placed_by_rank=False)
        self.n, self.batch = r.choice((2, 4, 6, 8, 8, 12)), r.choice((4, 8, 8, 12, 24))
        self.system = as_system(r.choice(('H100-80GB', 'H200-141GB', 'B200-180GB')),
                                r.choice((1, 2, 4, 8)))
        few = r.sample(list(OPEN), r.choice((1, 2, 2, 3)))
        self.opened = {name: r.sample(OPEN[name], min(len(OPEN[name]), r.choice((2, 2, 3))))
                       for name in few}
        self.etps = r.choice(([1], [1], [1, 2], [2])) if self.model.experts else [1]

    @property
    def considered(self):   # choice -> values
        a = self.assumed
        found = {name: self.opened.get(name, [getattr(a, name)]) for name in CHOICES}
        if 'virtual_stages' in self.opened: return found
        own = [SCHEDULES[name].chunks for name in found['schedule'] if SCHEDULES[name].chunks > 1]
        return found | {'virtual_stages': list(dict.fromkeys(found['virtual_stages'] + own))}

    def is_open(self, c):   # bool
        "Whether a question asks for so many parts of a stage, or the schedule has them by itself."
        asked = self.opened.get('virtual_stages', [self.assumed.virtual_stages])
        return c['virtual_stages'] in (*asked, max(SCHEDULES[c['schedule']].chunks, 1))

    def every(self):  # (s of each by which it is ranked, GB that must fit)
        "All configurations, priced as one table, their schedules played where it matters."
        a, t = self.assumed.on(self.system), self.table()
        if not t: return np.zeros((2, 0))
        stats = exact_table(t, self.model, self.system, self.batch, a)
        figures = stats['iteration_s'] * self.longer(t), stats[FITS_BY[a.fits_by]]
        return np.stack(np.broadcast_arrays(*figures, np.ones(len(t['tp'])))[:2])

    def longer(self, t):  # factor of each
        "As how much longer each configuration is ranked: one by one, by what is said of it."
        a = self.assumed.on(self.system)
        if not (known := known_runs(a)): return 1.
        experts = (self.model.experts or 1) > 1
        low, _ = known.intervals['unnamed']['experts' if experts else 'dense']
        rows = [dict(zip(t, row)) | {'strategy': self.strategy}
                for row in zip(*(x.tolist() for x in t.values() if np.ndim(x)))]
        new = [ways_untested(row, self.model, a) for row in rows]
        return np.exp(-low / 2 * np.array(new))

    def table(self):  # dict of columns; empty without configurations
        a = self.assumed.on(self.system)
        found = configurations(self.model, self.n, self.system.nvlink_size, self.batch,
                               self.strategy, a, self.considered, self.etps)
        found = [c for c in found if self.is_open(c)]
        if not found: return {}
        t = {name: np.array([c[name] for c in found]) for name in found[0]}
        return t | {'strategy': self.strategy, 'panels': 1}

    def search(self, capacity, k):
        system = dataclasses.replace(self.system, hbm_capacity=capacity)
        return search(self.model, self.n, system, self.batch, self.strategy, k,
                      self.assumed, {'etp': self.etps}, **self.opened)


def different(seconds):
    "Ascending, those that are equal but for rounding once."
    seconds = np.sort(seconds)
    return seconds[np.diff(seconds, prepend=0) > 1e-12 * seconds]


@pytest.mark.parametrize('first', first_of(4, range(0, CASES, 10)))
def test_brute_force_finds_nothing_better(first):
    "The 20 best of a search are the best of all configurations that fit, each of them once."
    for seed in range(first, first + 10):
        case = Case(seed, MODELS, uneven=False)
        seconds, GB = case.every()
        capacity = float(np.quantile(GB, case.random.uniform(.1, 1))) if len(GB) else 80.
        best = case.search(capacity, k=20)
        expected, got = different(seconds[GB <= capacity]), different(rank_seconds(best))
        known = len(got) if len(best) < 20 else len(got) - 1   # of the slowest, some may lack
        np.testing.assert_allclose(got[:known], expected[:known], rtol=1e-11, err_msg=seed)
        if len(best) < 20: assert len(got) == len(expected), seed
        if not len(best): continue
        row = best.iloc[case.random.randrange(len(best))]
        one = estimate(case.model, Parallel.from_row(row), case.system, case.batch, case.assumed)
        np.testing.assert_allclose(one.stats['iteration_s'], row.iteration_s, rtol=1e-11)
        np.testing.assert_allclose(rank_seconds(one.stats), rank_seconds(row), rtol=1e-11)


@pytest.mark.parametrize('first', first_of(1, range(0, CASES // 5, 10)))
def test_nothing_is_better_when_stages_are_unequal(first):
    """A search that plays all it finds finds the times of all configurations, each of them once.

    What fits is what fits when it is played, whatever the formulas say."""
    for seed in range(first, first + 10):
        case = Case(seed, UNEQUAL, uneven=True)
        seconds, GB = case.every()
        capacity = float(np.quantile(GB, case.random.uniform(.1, 1))) if len(GB) else 80.
        best = case.search(capacity, k=MOST_REPLAYED)
        fit = GB <= capacity
        expected, got = different(seconds[fit]), different(rank_seconds(best))
        if fit.sum() > MOST_REPLAYED: expected, got = expected[:20], got[:20]
        np.testing.assert_allclose(got, expected, rtol=1e-11, err_msg=seed)
        for k in (1, 4):   # few are played, and none of the others is faster
            few = different(rank_seconds(case.search(capacity, k)))
            np.testing.assert_allclose(few, expected[:len(few)], rtol=1e-11, err_msg=seed)
            assert len(few) or not fit.any()


@pytest.mark.parametrize('seed', first_of(8, range(16)))
def test_no_order_of_passes_is_faster_than_its_bound(seed):
    "And with equal chunks 1F1B is as fast."
    case = Case(seed, UNEQUAL, uneven=True)
    if not (found := case.table()): return
    about = case.model, case.system, case.batch, case.assumed.on(case.system)
    priced = counted_and_priced(found, *about)
    played = exact_figures(priced)['iteration_s']
    bound = iteration_times(priced, bubble_of=least_bubble).total
    assert np.all(bound <= played * (1 + 1e-12))
    alike = (found['schedule'] == '1f1b') & (case.model.depth % (
        found['pp'] * found['virtual_stages']) == 0) & (len(case.model.blocks) == 1)
    if not any(map(np.any, priced.ends)):
        np.testing.assert_allclose((bound / played)[alike], 1, rtol=1e-12)


@pytest.mark.parametrize('schedule, v, pp', [
    *((name, 1, pp) for name in ('1f1b', 'gpipe', 'zb-h1') for pp in (2, 4)),
    ('zb-v', 2, 2), ('zb-v', 2, 4), ('dualpipe', 1, 2)])
def test_the_bound_is_met_where_one_stage_is_the_slowest(schedule, v, pp):
    """One that has many words: it never waits after its first micro-batch has come.

    (In DualPipe of four ranks it waits for gradients that are computed in one go.)"""
    model = dataclasses.replace(MODELS['dense'], vocab=128000)
    p = Parallel(pp=pp, virtual_stages=v, schedule=schedule)
    told = dataclasses.replace(as_assumptions('paper'), vocabulary=True, uneven_stages=True)
    one = estimate(model, p, 'H100-80GB', 32, told)
    priced = priced_estimate(one)
    bound = iteration_times(priced, bubble_of=least_bubble).total
    assert math.isclose(bound, one.stats['iteration_s'], rel_tol=1e-12)


@pytest.mark.parametrize('about', [
    ('gpt_oss_120B', 512, 'H200', 128), *thorough((('gpt3', 512, 'B200', 1536),))])
def test_the_first_of_many_is_the_first_of_one(about):
    "However few are asked for; each was once 0.5 or 2.8 % slower than the first of a hundred."
    best = [search(*about, k=k).iteration_s[0] for k in (1, 100)]
    assert best[0] == best[1]


@pytest.mark.parametrize('zero_stages', [None, [1]])
def test_chunks_that_a_software_deals_unevenly_are_played(zero_stages):
    "With no vocabulary either: the first of one was 9 % slower, or too large, once played."
    a = dataclasses.replace(as_assumptions('calibrated', 'torchtitan 0.3'), vocabulary=False,
                            uneven_stages=False)
    best = [search('gpt3', 512, 'H100-80GB', 256, k=k, assumptions=a, zero_stages=zero_stages)
            .iteration_s[0] for k in (1, 20)]
    assert best[0] == best[1]


def test_what_counts_longer_is_shown_where_some_does_and_some_does_not():
    found = search('llama3.1_405B', 1024, 'H100-80GB', 512, k=40)
    longer = (found.likely_s / found.iteration_s).round(6)
    assert longer.nunique() == 2
    shown = lambda rows: 'likely s' in readable(rows, found.priced_on)
    assert shown(found) and not any(shown(rows) for _, rows in found.groupby(longer))


def test_what_fits_the_smallest_memory_only_when_played_is_left_open():
    "Of GPUs of 35 and 80 GB: a formula has 40 GB for what holds 32 when it is played."
    held = {'tp': 2, 'pp': 4, 'cp': 1, 'micro_batch': 1}
    choices = dict(virtual_stages=[1, 3], recompute='none')
    about = search_subject('llama3.1_8B', 'H100-80GB', 64, 'calibrated', None, None)
    asked, = questions(about, '1d', choices, held)
    def fits(capacity):
        system = dataclasses.replace(asked.system, hbm_capacity=capacity)
        found = fitting([32], asked._replace(system=system))
        return [found.some[own].tolist() for own in found.fits]
    alone = [fits(GB)[0] for GB in (35., 80.)]
    assert alone[0] and fits(np.array([[35.], [80.]])) == alone


def test_a_column_of_several_searches_has_the_rows_of_each():
    about = search_subject(MODELS['dense'], as_system('B200', 4), 16, 'corrected', None, None)
    fit = [fitting([8], asked) for asked in questions(about, 'all', {}, {})]
    rows = [(at, i) for i in (0, 1, -1) for at in range(len(fit))]
    rows = [(at, range(len(fit[at].some))[i]) for at, i in rows]
    search_of, i = map(np.array, zip(*rows))
    assert len(fit) > 1
    for name in ('tp', 'cp', 'micro_batch'):
        found = column_of_all(name, fit, {'search': search_of, 'i': i})
        assert found.tolist() == [fit[at].placeable.t[name][own] for at, own in rows]


# choices that were taken for the same

@pytest.mark.parametrize('choice', ['reduce_each', 'dp_overlap'])
def test_a_choice_left_open_is_none_besides(choice):
    "It says what one of the others says, of each layout another."
    one, two = (search('llama3.1_8B', 16, 'H100-80GB', 32, k=20, assumptions='corrected',
                       zero_stages=[1, 3], **{choice: values})
                for values in ([True, False], [True, None, False]))
    assert one.candidates == two.candidates and len(two) == 20
    assert one.iteration_s.tolist() == two.iteration_s.tolist()


def test_one_rank_needs_no_pipeline():
    "The order in which schedules are named decides nothing, also where some need a pipeline."
    model, h100 = MODELS['dense'], as_system('H100-80GB', 8)
    fastest = [search(model, 4, h100, 4, '1d', k=1, schedule=names).iteration_s[0]
               for names in (['zb-v', '1f1b'], ['1f1b', 'zb-v'], ['1f1b'])]
    assert fastest[0] == fastest[1] <= fastest[2]
    assert len(search(model, 1, h100, 4, '1d', schedule=['dualpipe', 'gpipe']))


@pytest.mark.parametrize('others', [['zb-v'], ['dualpipe', 'zb-v', 'dualpipe-v']])
def test_a_schedule_is_tried_beside_others_as_it_is_alone(others):
    "1F1B in two parts, which nobody asked for, came with schedules that have two of their own."
    about = dict(system=as_system('B200', 4), global_batch=16, strategy='1d', k=1000,
                 assumptions='corrected', fixed={'pp': [2, 4]})
    both = search(MODELS['dense'], 8, schedule=['1f1b', *others], **about)
    alone = [search(MODELS['dense'], 8, schedule=name, **about) for name in ['1f1b', *others]]
    assert set(both.virtual_stages[both.schedule == '1f1b']) == {1}
    assert len(both) == sum(map(len, alone)) and set(both.schedule) == {'1f1b', *others}
    assert both.iteration_s[0] == min(found.iteration_s[0] for found in alone)
    asked = search(MODELS['dense'], 8, schedule=['1f1b', *others], virtual_stages=[1, 2], **about)
    assert set(asked.virtual_stages[asked.schedule == '1f1b']) == {1, 2}


@pytest.mark.parametrize('name', ['gpipe', 'zb-h1', 'zb-h2'])
def test_one_rank_works_micro_batch_by_micro_batch(name):
    one, other = (estimate('gpt3', Parallel(tp=8, schedule=s), 'B200', 64,
                           assumptions='corrected') for s in (name, '1f1b'))
    assert one.stats == other.stats
    assert math.isclose(one.memory_over_time.memory_GB.max(), one.stats['memory_GB'])


def test_experts_alone_are_shared_out():
    "Without copies of the dense layers, ZeRO shares out what tp holds of experts again."
    asked = dict(fixed={'tp': 8, 'ep': 1, 'pp': 1}, zero_stages=[0, 1, 2, 3],
                 assumptions='corrected')
    found = search(MODELS['experts'], 8, as_system('B200', 8), 8, '1d', **asked)
    by_stage = found.groupby('zero_stage').memory_GB.min()
    assert list(by_stage.index) == [0, 1, 2, 3] and (np.diff(by_stage) < 0).all()
    need = by_stage[3] * 1.001
    tight = dataclasses.replace(as_system('B200', 8), hbm_capacity=need)
    found = search(MODELS['experts'], 8, tight, 8, '1d', **asked)
    assert len(found) and set(found.zero_stage) <= {2, 3}   # that of one micro-batch alone


def test_features_of_an_expert_travel_too():
    "With ep=1 and etp=2 tokens meet, and what hides their messages is worth trying."
    found = search(MODELS['experts'], 8, as_system('B200', 2), 8, '1d', k=1000,
                   fixed={'etp': 2, 'ep': 1}, ep_overlap=[False, True],
                   dispatcher=['alltoall', 'allgather'])
    assert len(found.groupby(['dispatcher', 'ep_overlap'])) == 4


def test_dense_layers_have_nothing_to_share_alone():
    "Where no weight is held twice, one ZeRO stage stands for all."
    found = search(MODELS['dense'], 4, as_system('B200', 4), 4, '1d', k=1000,
                   zero_stages=[0, 1, 2, 3])
    assert set(found.zero_stage[found.dp == 1]) == {0}
    assert set(found.zero_stage[found.dp > 1]) == {0, 1, 2, 3}


def test_nothing_is_shared_out_among_one_gpu():
    "ZeRO-3 frees no weight in 8 bits that only one GPU has."
    of = lambda **more: estimate(MODELS['dense'], Parallel(precision='fp8', **more), 'H100-80GB', 8,
                                 assumptions='corrected')
    assert of(zero_stage=3).stats['memory_GB'] == of(zero_stage=1).stats['memory_GB']
    assert of(dp=2, zero_stage=3).stats['memory_GB'] < of(dp=2, zero_stage=1).stats['memory_GB']


def test_layers_computed_again_are_a_share_of_a_stage():
    "Of one layer in full, a deep stage computes a smaller share again than a shallow one."
    ask = lambda system: search(MODELS['dense'], 4, system, 8, '1d', k=1000, recompute=['full:1'],
                                assumptions='corrected')
    b200 = as_system('B200', 4)
    every = ask(b200)
    for room in every.memory_GB:
        found = ask(dataclasses.replace(b200, hbm_capacity=room))
        assert len(found) == (every.memory_GB <= room).sum()


@pytest.mark.parametrize('fixed', first_of(1, [{'pp': [1, 2], 'tp': 1}, None]))
def test_gradients_are_added_to_those_of_micro_batches_before(fixed):
    """Under autocast a layer takes less where a copy has a single micro-batch: layouts with other
    copies once shared its price, those of several numbers of GPUs, too."""
    software = dict(name='x', knows={'autocast': True, 'gradients_anew': True})
    about = dict(system='H100-80GB', global_batch=8, k=1000, fixed=fixed, software=software)
    found = search(MODELS['dense'], [2, 8], **about)
    alone = search(MODELS['dense'], 8, **about)
    eight = found[found.n_gpus == 8]
    assert len(eight) == len(alone)
    assert np.allclose(eight.iteration_s, alone.iteration_s, rtol=1e-12)
    for _, row in found.iloc[::7].iterrows():
        one = estimate(MODELS['dense'], Parallel.from_row(row), 'H100-80GB', 8, software=software)
        assert row.iteration_s == pytest.approx(one.stats['iteration_s'], rel=1e-12)


def test_shared_experts_divide_too():
    "What a search finds, an estimate accepts: 516 features are not shared by 8."
    found = search(MODELS['shared'], 8, as_system('B200', 8), 8, '1d', k=1000)
    assert 0 < found.tp.max() < 8


@pytest.mark.parametrize('preset', ['paper', 'calibrated'])
def test_a_search_that_finds_nothing_has_the_columns_of_one_that_finds_some(preset):
    nothing, some = (search('gpt3_1T', n, 'A100', assumptions=preset) for n in (64, 4096))
    assert len(nothing) == 0 and len(some) == 10
    ranges = {'iteration_low_s', 'iteration_high_s'}   # of what was found
    assert set(some) - set(nothing) <= ranges and set(nothing) <= set(some)
    assert {name: some[name].dtype for name in nothing} == dict(nothing.dtypes)


# what frameworks run, and what was measured

def test_placements_are_those_of_ranks_unless_asked():
    question = 'llama3.1_8B', 64, 'H100-80GB', 128
    found = search(*question, k=40)
    for row in found.itertuples():
        room, inside = 8, []
        for size in (row.tp, row.cp, row.dp, row.pp):   # ranks 0 to 7 share a node
            inside.append(math.gcd(size, room))
            room //= inside[-1]
        assert inside == [row.nvlink_tp, row.nvlink_cp, row.nvlink_dp, row.nvlink_pp]
    layout = Parallel(tp=2, dp=32)
    assert estimate('llama3.1_8B', layout, 'H100-80GB', 128).parallel.nvlink_dp == 4
    across = search(*question, k=3, fixed={'tp': 2, 'nvlink_tp': 1})
    assert len(across) == 3 and set(across.nvlink_tp) == {1}
    lain = estimate('llama3.1_8B', dataclasses.replace(layout, nvlink_tp=1), 'H100-80GB', 128)
    assert lain.parallel.nvlink_tp == 1 and lain.parallel.nvlink_dp == 8


def test_a_layout_that_no_run_came_near_is_ranked_as_if_it_took_longer():
    found = search('llama3.1_405B', 512, 'H100-80GB', k=60)
    far = found.evidence.str.startswith('extrapolated')
    assert far.sum() > 20 and (~far).sum() > 20 and not far[0]
    assert found.likely_s.is_monotonic_increasing and not found.iteration_s.is_monotonic_increasing
    longer = found.likely_s / found.iteration_s
    assert (longer[~far] == 1).all() and np.allclose(longer[far], longer[far].iloc[0])
    high = found.iteration_high_s / found.iteration_s   # as much further off is the upper end
    assert longer[far].iloc[0] == pytest.approx(high[far].iloc[0] / high[0], rel=1e-12)
    row = found.loc[found.iteration_s.idxmin()]
    assert 'a context of 2,048 tokens to a GPU (measured: 4,096)' in row.evidence
    less = 1 - row.iteration_s / found.iteration_s[0]
    note, = found.notes
    assert note == (
        f'Rank {row["rank"]}, tp {row.tp}, cp {row.cp}, pp {row.pp}, dp {row.dp}, takes {less:.1%} '
        'less by our count, but is untested: what no run came near is ranked as if it took '
        f'{longer[row.name] - 1:.0%} longer.')
    shown = readable(found, as_system('H100-80GB'))
    assert (shown['likely s'] == shown['iteration s']).tolist() == (~far).tolist()
    both = search('llama3.1_405B', [512, 1024], 'H100-80GB', kind=['tp', 'cp'])
    words = ('Some are untested: what no measured run came near counts as if it took '
             f'{longer[row.name] - 1:.0%} longer.')
    assert both.notes == [words] and (both.likely_s > both.iteration_s).any()
    assert not search('llama3.1_405B', [512, 1024], 'H100-80GB', k=2).notes   # none of them is
    near = search('llama3.1_405B', 512, 'H100-80GB', fixed={'cp': [1, 2]})
    assert 'likely s' not in readable(near, as_system('H100-80GB'))   # of all rows alike
    assert not near.evidence[0].startswith('extrapolated') and not near.notes


def test_no_runs_no_rank_but_by_time():
    found = search('llama3.1_405B', 512, 'H100-80GB', assumptions='corrected', strategy='2d-seqp')
    assert 'likely_s' not in found and found.iteration_s.is_monotonic_increasing


def test_what_each_row_rests_on_is_what_its_estimate_rests_on():
    "Groups wider than those of any run, too: rows of 18 and of 42 stages differ in nothing else."
    found = search('llama3.1_405B', 2016, 'GB200-NVL72', 2016, k=40, recompute='none',
                   fixed={'pp': [18, 42], 'tp': [4, 8], 'cp': 1})
    assert set(found.pp) == {18, 42}
    for _, row in found[::5].iterrows():
        one = estimate('llama3.1_405B', Parallel.from_row(row), 'GB200-NVL72', 2016)
        assert one.notes[0] == f'Evidence: {row.evidence}.'
        assert ('pp 42 (measured: 35)' in row.evidence) == (row.pp == 42)
    wide = estimate('llama3.1_70B', Parallel(tp=16, pp=2, dp=2), 'H100-80GB', 64)
    assert 'tp over 2 NVLink domains' in wide.notes[0]


@pytest.mark.parametrize('seen', [['1d'], ['2d-seqp']])
def test_a_strategy_that_no_run_had_is_untested_where_it_is_one(seen):
    "A search tries both as one, 1d being 2d-seqp with cp=1: each row is ranked as its own."
    a = as_assumptions('calibrated')
    known = a.measured.evidence
    known = dataclasses.replace(known, seen=known.seen | {'strategy': seen})
    a = dataclasses.replace(a, measured=dataclasses.replace(a.measured, evidence=known))
    found = search('llama3.1_8B', 16, 'H100-80GB', 64, ['1d', '2d-seqp'], k=900, assumptions=a)
    assert {*found.strategy} == {'1d', '2d-seqp'} and found.strategy[0] == seen[0]
    for _, row in found[::90].iterrows():
        one = estimate('llama3.1_8B', Parallel.from_row(row), 'H100-80GB', 64, a)
        assert one.stats['likely_s'] == pytest.approx(row.likely_s, rel=1e-9)
        assert (row.likely_s > row.iteration_s) == row.evidence.startswith('extrapolated')


@pytest.mark.parametrize('number', [1, 3, 16, 17, 40])
def test_names_are_told_apart(number):
    "One by one while there are few, or else sorted: which of the different names each is."
    names = np.random.default_rng(0).choice([f'name {i}' for i in range(number)], (20, 30))
    found, which = different_names(names)
    assert sorted(found) == sorted(set(names.ravel().tolist()))
    assert (np.array(found)[which] == names).all()
