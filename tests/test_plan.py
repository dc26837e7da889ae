"A plan: what fails, what is on the front, what a budget buys, and the command."
import csv
import dataclasses
import io
import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from test_cli import bad, good, has, run
from once import asked_once
from thorough import first_of, thorough
from transformer_perf import Parallel, advice, estimate, search
from transformer_perf.estimates import as_assumptions
from transformer_perf.interop import as_job, export
from transformer_perf.iteration import short
from transformer_perf.models import NAMED
from transformer_perf.advice.planning import (
    ANSWERS, BEARABLE, LEVELS, checkpoint_GB, daly_interval, goodput, on_front, operated)
from transformer_perf.advice import ClusterOperation, plan, planning
from transformer_perf.systems import as_system

H100 = 'H100-80GB'
BATCH = 4 * 2**20   # tokens


@pytest.fixture(scope='module')
def small(): return plan('llama3.1_8B', [64, 256], H100, tokens=1e12, batch_tokens=BATCH)


@pytest.fixture(scope='module', autouse=True)
def planned_once():
    "A command that writes the same plan in another form plans nothing anew."
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advice, 'plan', asked_once(advice.plan))
        yield


# what fails

TIMES = st.floats(1e-2, 1e5)


def young_interval(save, mtbf):
    "To first order (Young 1974)."
    return np.sqrt(2 * save * mtbf)


@given(TIMES, TIMES, TIMES)
def test_dalys_interval_beats_its_neighbours(save, mtbf, restart):
    save = min(save, mtbf / 20)
    best = daly_interval(save, mtbf)
    share = goodput(best, save, mtbf, restart)
    for factor in (.7, 1.4): assert share >= goodput(factor * best, save, mtbf, restart)
    assert share >= goodput(young_interval(save, mtbf), save, mtbf, restart) * (1 - 1e-9)


@given(TIMES, TIMES)
def test_daly_is_young_where_saves_are_short(save, mtbf):
    mtbf = max(mtbf, 1e6 * save)
    assert daly_interval(save, mtbf) == pytest.approx(young_interval(save, mtbf), rel=2e-3)


@given(TIMES, TIMES, TIMES, TIMES)
def test_goodput_is_a_share_that_failures_lower(interval, save, mtbf, restart):
    share = goodput(interval, save, mtbf, restart)
    assert 0 <= share < 1
    assert share <= goodput(interval, save, 2 * mtbf, restart) <= interval / (interval + save)
    assert share <= goodput(interval, save, mtbf, restart / 2)


def test_goodput_is_what_a_simulation_of_failures_finds():
    rng, interval, save, mtbf, restart = np.random.default_rng(0), 100., 7., 300., 20.
    clock, done = 0., 0
    while done < 20_000:
        failure = rng.exponential(mtbf)
        done, clock = done + int(failure // (interval + save)), clock + failure + restart
        while (again := rng.exponential(mtbf)) < restart: clock += again
    found = done * interval / clock
    assert found == pytest.approx(goodput(interval, save, mtbf, restart), rel=.02)


# rows

def test_days_money_and_energy_follow_from_the_iteration(small):
    for _, row in small.rows.iterrows():
        seconds = row.tokens / (BATCH / row.iteration_s) / row.goodput
        assert row.days == pytest.approx(seconds / 86400) and row.tokens == 1e12
        assert row.gpu_hours == pytest.approx(row.days * 24 * row.n_gpus)
        assert row.energy_MWh == pytest.approx(row.gpu_hours * 1275 * 1.3 / 1e6)
        assert row.usd == pytest.approx(row.gpu_hours * 2.99)
        assert row.usd_per_million_tokens == pytest.approx(row.usd / 1e6)   # of 1e12 tokens


def test_rows_are_estimates(small):
    for _, row in small.rows.iterrows():
        one = estimate('llama3.1_8B', Parallel.from_row(row), H100, small.global_batch,
                       'calibrated')
        assert one.stats['iteration_s'] == pytest.approx(row.iteration_s, rel=1e-9)
        assert one.stats['memory_GB'] == pytest.approx(row.memory_GB, rel=1e-9)


@pytest.mark.parametrize('n, batch', [(768, 1536), *thorough((1024, 1024))])
def test_the_fastest_of_unlike_chunks_is_that_of_a_search(n, batch):
    "By formula another one is."
    best = search('llama3.1_70B', n, 'B200', batch, k=1).iteration_s[0]
    assert plan('llama3.1_70B', n, 'B200', global_batch=batch).row().iteration_s == best


@pytest.mark.parametrize('n', [64, 256])
def test_the_fastest_is_that_of_a_search(small, n):
    best = search('llama3.1_8B', n, H100, small.global_batch, assumptions='calibrated', k=10)
    assert small.rows[small.rows.n_gpus == n].iteration_s.min() == best.iteration_s.min()


def test_answers_are_the_best_of_what_is_listed(small):
    rows = small.rows
    assert {name for names in rows.answers for name in names.split(', ')} - {''} == {
        'fastest', 'least memory', 'cheapest', 'simplest'} == {*ANSWERS} - {'fewest GPUs'}
    assert small.row('fastest').days == rows.days.min()
    assert small.row('least memory').memory_bound_GB == rows.memory_bound_GB.min()
    assert small.row('cheapest').usd == rows.usd.min()
    near = rows[rows.days <= 1.05 * rows.days.min()]
    assert small.row('simplest').knobs == near.knobs.min()
    least = rows.groupby('n_gpus').iteration_s.transform('min')
    assert (rows.iteration_s <= BEARABLE * least).all()
    left_out = f'Left out: what takes more than {BEARABLE} times as long as the fastest'
    assert any(note.startswith(left_out) for note in small.notes)


@pytest.mark.parametrize('model, n, system', first_of(1, [
    ('mixtral_8x7B', 32, 'H200-141GB'), ('llama3.1_8B', 16, H100)]))
def test_the_least_memory_is_that_of_a_long_list(model, n, system):
    "To a level of what is asked, of all that is bearable."
    found = plan(model, n, system, tokens=1e9, global_batch=64).row('least memory')
    rows = search(model, n, system, 64, k=4000)
    rows = rows[rows.iteration_s <= BEARABLE * rows.iteration_s.min()]
    assert found.memory_bound_GB <= LEVELS[0] / LEVELS[1] * rows.memory_bound_GB.min()


# the front

POINTS = st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=12)


@given(POINTS)
def test_front_holds_no_dominated_row_and_leaves_no_other_out(points):
    v, kept = np.array(points), on_front(points)
    beats = lambda x, y: (x <= y).all() and (x < y).any()
    for i, x in enumerate(v): assert kept[i] != any(beats(y, x) for y in v)
    for i, x in enumerate(v): assert kept[i] or any(beats(y, x) for y in v[kept])


def test_front_of_a_plan(small):
    front = small.front
    criteria = front[['days', 'memory_bound_GB', 'n_gpus', 'usd']].to_numpy(float)
    assert len(front) > 4 and on_front(criteria).all()
    assert {'fastest', 'least memory', 'cheapest'} <= {
        name for names in front.answers for name in names.split(', ')}


# budgets

def test_money_and_hours_buy_tokens(small):
    rich = plan('llama3.1_8B', [64, 256], H100, usd=1e5, batch_tokens=BATCH)
    np.testing.assert_allclose(rich.rows.usd, 1e5)
    assert rich.row('cheapest').tokens == rich.rows.tokens.max()
    cost = small.row('cheapest')
    assert rich.row('cheapest').tokens == pytest.approx(1e12 * 1e5 / cost.usd)
    both = plan('llama3.1_8B', 64, H100, usd=1e5, hours=10, batch_tokens=BATCH)
    np.testing.assert_allclose(both.rows.days * 24, 10)
    assert (both.rows.usd <= 1e5).all()


def test_money_or_hours_that_buy_no_iteration_are_no_answer():
    "A dollar was said to buy a hundredth of an iteration of 405B on 16,384 GPUs, in 0.07 s."
    for limit in dict(usd=.1), dict(hours=1e-4):
        found = plan('llama3.1_8B', [64, 256], H100, batch_tokens=BATCH, **limit)
        assert not len(found.rows) and len(found.reasons) == 2
        assert 'tokens are all that is bought, and an iteration has 4,194,304' in found.reasons[1]


def test_a_gpu_without_a_price_is_told_before_anything_is_searched(monkeypatch):
    "It was told after all systems had been searched: after a minute, for a large model."
    monkeypatch.setattr(planning, 'searched', None)
    with pytest.raises(ValueError, match="no price of 'H800'"):
        plan('llama3.1_8B', 64, [H100, 'H800-80GB'], usd=1e5)


def test_one_gpu_is_said_as_one():
    reason, = plan('llama3.1_70B', 1, H100, tokens=1e9, global_batch=1, recompute='none').reasons
    assert reason.startswith(f'1 {H100} GPU: 1d, 2d-seqp: the smallest of 1 configuration needs ')
    reason, = plan('llama3.1_8B', 1, 'B300', tokens=1e12, hours=1, global_batch=8).reasons
    assert reason.startswith('1 B300 GPU: ') and 'hours are more than 1' in reason


def test_a_limit_that_is_hardly_missed_is_told_apart(small):
    "Whoever gives what a plan has said, rounded, is not told that a number is more than itself."
    need = small.rows.days[small.rows.n_gpus == 64].min() * 24
    late = plan('llama3.1_8B', 64, H100, tokens=1e12, hours=need * (1 - 1e-6), batch_tokens=BATCH)
    reason, = late.reasons
    took, limit = (float(x.replace(',', '')) for x in re.findall(r'[\d,.]*\d', reason)[-2:])
    assert took > limit and took == pytest.approx(need, rel=1e-6)


def test_a_deadline_names_the_fewest_that_make_it(small):
    need = {n: own.days.min() * 24 for n, own in small.rows.groupby('n_gpus')}
    hours = (need[64] + need[256]) / 2
    late = plan('llama3.1_8B', [64, 256, 512], H100, tokens=1e12, hours=hours, batch_tokens=BATCH)
    assert late.row('fewest GPUs').n_gpus == 256 and late.row().n_gpus == 512
    reason, = late.reasons
    assert reason == f'64 {H100} GPUs: {short(need[64])} hours are more than {short(hours)}'
    assert (late.rows.days * 24 <= hours).all()
    never = plan('llama3.1_8B', 64, H100, tokens=1e12, hours=1, batch_tokens=BATCH)
    assert not len(never.rows) and never.reasons
    with pytest.raises(ValueError, match='nothing to choose from'): never.row()


def test_prices_can_be_replaced(tmp_path, small):
    file = tmp_path / 'vms.csv'   # as SkyPilot writes them
    file.write_text('InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Price,'
                    'SpotPrice,Region\nc5.large,2,4,,,,0.085,0.03,us\n'
                    'p5.48xlarge,192,2048,H100,8,"{\'Gpus\': 8}",48,20,us\n')
    own = plan('llama3.1_8B', [64, 256], H100, tokens=1e12, batch_tokens=BATCH, prices=str(file))
    assert own.row().usd == pytest.approx(own.row().gpu_hours * 6)
    assert own.row().usd == pytest.approx(small.row().usd * 6 / 2.99)
    table = pd.DataFrame({'AcceleratorName': ['A100'], 'AcceleratorCount': [1], 'Price': [1]})
    none = plan('llama3.1_8B', 64, H100, tokens=1e12, batch_tokens=BATCH, prices=table)
    assert none.rows.usd.isna().all() and 'no price is known' in ' '.join(none.notes)
    assert {*none.rows.answers} >= {'least memory'} and none.front.days.is_monotonic_increasing


def test_systems_are_compared():
    two = plan('llama3.1_8B', 64, [H100, 'A100-80GB'], tokens=1e12, batch_tokens=BATCH)
    assert two.row().system == H100 and {*two.rows.system} == {H100, 'A100-80GB'}


def test_operation_moves_days_alone(small):
    never = ClusterOperation(mtbf_gpu_hours=1e15)
    calm = plan('llama3.1_8B', 256, H100, tokens=1e12, batch_tokens=BATCH, operation=never)
    assert calm.row().iteration_s == small.row().iteration_s
    assert calm.row().goodput == pytest.approx(1, abs=1e-4) and calm.row().days < small.row().days


def test_intervals_are_carried_where_a_search_has_them(small):
    from transformer_perf.advice.planning import Budget, spent
    rows = small.rows.assign(iteration_low_s=.9 * small.rows.iteration_s,
                             iteration_high_s=1.2 * small.rows.iteration_s)
    found = spent(rows, as_system(H100), 2., Budget(1e12), ClusterOperation())
    np.testing.assert_allclose(found['days_low'], .9 * rows.days)
    np.testing.assert_allclose(found['days_high'], 1.2 * rows.days)
    np.testing.assert_allclose([found['tokens_low'], found['tokens_high']], 1e12)
    limited = spent(rows, as_system(H100), 2., Budget(hours=100), ClusterOperation())   # of time
    np.testing.assert_allclose([limited['days_low'], limited['days_high']], 100 / 24)
    np.testing.assert_allclose(limited['tokens_low'], limited['tokens'] / 1.2)
    np.testing.assert_allclose(limited['tokens_high'], limited['tokens'] / .9)


def test_notes_name_no_rank():
    "What a search says of its ranks is not said of a plan, which has none."
    asked = 'llama3.1_405B', 512, H100
    assert 'Rank' in ' '.join(search(*asked, k=30, global_batch=2048).notes)
    assert 'rank' not in ' '.join(plan(*asked, usd=5e6).notes).lower()


# mistakes

@pytest.mark.parametrize('words, options', [
    ('tokens=0 must be', dict(tokens=0)), ('hours=-1 must be', dict(hours=-1)),
    ('margin=-1 must be', dict(margin=-1)), ('operation=3 must be of type', dict(operation=3)),
    ('must be divisible by seq_len=8192', dict(batch_tokens=10**6)),
    ('none.csv: cannot be read', dict(prices='none.csv')),
    ('tokens=15 must be at least those of an iteration: 2048 samples of 8192', dict(tokens=15)),
    ("unknown choice 'zero'", dict(zero=1)), ('n_gpus=0 must be', dict(n_gpus=0))])
def test_mistakes_are_one_line(words, options):
    with pytest.raises(ValueError, match=words) as error:
        plan('llama3.1_8B', **{'n_gpus': 64, 'system': H100, **options})
    assert '\n' not in str(error.value) and len(str(error.value)) < 300


def test_a_model_of_unknown_training_needs_tokens():
    with pytest.raises(ValueError, match='say tokens, hours or usd'): plan('mixtral_8x7B', 64, H100)


@pytest.mark.parametrize('field', [f.name for f in dataclasses.fields(ClusterOperation)])
def test_operation_is_checked(field):
    with pytest.raises(ValueError, match=f'{field}=-1 must be'): ClusterOperation(**{field: -1})


def test_a_plan_says_how_what_is_untested_is_ranked():
    found = plan('llama3.1_405B', 1024, 'GB200-NVL72', tokens=1e12)
    longer = found.rows.likely_s / found.rows.iteration_s
    words = ('Some are untested: what no measured run came near counts as if it took '
             f'{longer.max() - 1:.0%} longer.')
    assert (longer == 1).any() and found.notes.count(words) == 1
    near = plan('llama3.1_8B', 64, H100, tokens=1e12, batch_tokens=BATCH)
    tested = (near.rows.likely_s == near.rows.iteration_s).all()
    assert tested != any('untested' in note for note in near.notes)


# the command

COMMAND = ('plan', '--model', 'llama3.1_8B', '--system', H100, '--gpus', '64,256',
           '--batch-tokens', BATCH)


def test_command():
    printed = good(*COMMAND, '--tokens', '1T', '--top', 99)
    text = ' '.join(printed.split())
    has(text, 'fastest', 'cheapest', 'least memory', 'simplest', 'USD per GPU-hour',
        'Evidence: ', '256 H100-80GB', 'an iteration of the fastest takes')
    assert 'No software' not in good(*COMMAND, '--tokens', '1T', '--software', 'tuned')
    found = json.loads(good(*COMMAND, '--tokens', '1T', '--format', 'json'))
    assert found['budget'] == {'tokens': 1e12, 'hours': None, 'usd': None}
    assert found['answers'][0]['days'] > 0 and len(found['front']) >= len(found['answers']) - 1
    front = printed[printed.index('What nothing beats'):]   # with the memory that it is about
    for row in found['front']: has(front, f' {row["memory_bound_GB"]:.1f} ')
    rows = list(csv.DictReader(io.StringIO(good(*COMMAND, '--tokens', '1e12', '--format', 'csv'))))
    assert float(rows[0]['days']) == found['answers'][0]['days']


def test_the_front_is_as_long_as_is_asked_for():
    "The fastest first, and how many more there are; files have them all."
    asked = (*COMMAND, '--tokens', '1T')
    rows = json.loads(good(*asked, '--format', 'json', '--top', 2))['front']
    assert len(rows) > 10
    for top in (3, 10, len(rows)):
        more = () if top == 10 else ('--top', top)   # as many as a search shows
        front = good(*asked, *more).split('What nothing beats')[1].split('Evidence')[0]
        assert front.count('micro-batch') + front.count('micro-\n') == top
        left = f'({len(rows) - top} more rows, slower: --top {len(rows)})'
        assert (left in front) == (top < len(rows)) and ('more row' in front) == (left in front)
    assert good(*asked, '--format', 'csv', '--top', 1) == good(*asked, '--format', 'csv')


def test_rows_of_several_systems_are_in_order():
    "By what is likely, whatever system they are of; they stood as they were found."
    found = plan('llama3.1_8B', [64, 256], [H100, 'A100-80GB'], tokens=1e12, batch_tokens=BATCH)
    assert found.rows.system.nunique() == 2
    longer = found.rows.likely_s / found.rows.iteration_s
    assert (longer * found.rows.days).is_monotonic_increasing


def test_command_ends_at_flags(tmp_path):
    args = (*COMMAND, '--tokens', '1T', '--answer', 'cheapest', '--export')
    file = tmp_path / 'train.sh'
    file.write_text(good(*args, 'megatron'))
    job = as_job(file)
    row = plan('llama3.1_8B', [64, 256], H100, tokens=1e12, batch_tokens=BATCH).row('cheapest')
    assert (job.parallel.tp, job.parallel.cp, job.parallel.pp) == (row.tp, row.cp, row.pp)
    assert job.global_batch == BATCH // 8192
    assert job.model.train_samples == 122_070_312   # 1e12 / 8192: what was planned
    model = dataclasses.replace(NAMED['llama3.1_8B'], train_samples=122_070_312.)
    one = estimate(model, Parallel.from_row(row), H100, job.global_batch)
    assert file.read_text() == export(one, 'megatron') and job.dropout is False
    own = '# set elsewhere: train_samples=1.83105e+09 (steps)'   # where no plan says it
    bought = good(*COMMAND, '--usd', 1000, '--export', 'megatron')
    assert own not in bought and '--train-samples' in bought
    assert own in good(*COMMAND, '--export', 'megatron')


def test_command_where_nothing_is_in_time():
    done = run(*COMMAND, '--tokens', '1T', '--hours', 1)
    assert done.returncode == 1 and 'hours are more than 1' in done.stdout and not done.stderr
    assert run('plan', '--model', 'gpt3', '--gpus', 1, '--tokens', '1B').returncode == 1


@pytest.mark.parametrize('words, args', [
    ("--tokens='much' must be a number", ('--tokens', 'much')),
    ("--usd='-5' must be a number", ('--usd', '-5')),
    ("--usd='1e30' must be a number from 0 to 1e+20", ('--usd', '1e30')),
    ("did you mean 'pue'", ('--operation', 'pux=2')),
    ('pue=0.5 must be', ('--operation', 'pue=0.5')),
    ('is given twice', ('--operation', 'pue=2', '--operation', 'pue=3')),
    ('cannot be read', ('--prices', 'none.csv')),
    ('both say the batch', ('--global-batch', 8)),
    ("unknown answer 'best'", ('--answer', 'best', '--export', 'megatron', '--tokens', '1T'))])
def test_command_names_mistakes(words, args): has(bad(*COMMAND, *args), words)


def test_a_checkpoint_by_way_of_the_host():
    """Llama 3.1 405B on 16,384 H100s: 347 MB of each GPU take 2.8 s into storage, 7 ms to the host.

    The next one waits for the storage, though less would be lost if it came sooner."""
    rows = pd.DataFrame({'n_gpus': [16384], 'samples_per_s': [1.]})
    model, calibrated = NAMED['llama3.1_405B'], as_assumptions('calibrated')
    of = lambda **given: operated(rows, model, ClusterOperation(**given), as_system(H100),
                                  calibrated)
    waits, copies = of(), of(checkpoint_async=True)
    GB = 405.85 * 14 / 16384
    assert math.isclose(waits['checkpoint_s'][0], GB / (2000 / 16384), rel_tol=1e-3)
    assert math.isclose(copies['checkpoint_s'][0], GB / (64 * .8), rel_tol=1e-3)
    assert copies['checkpoint_interval_s'] < waits['checkpoint_interval_s']
    assert copies['goodput'] > waits['goodput']
    slow = of(checkpoint_async=True, checkpoint_GBps=1e-4)
    assert math.isclose(slow['checkpoint_interval_s'][0], GB / 1e-4, rel_tol=1e-3)
    assert of(checkpoint_s=5.)['checkpoint_s'] == of(checkpoint_s=5., checkpoint_async=True)[
        'checkpoint_s'] == 5
    with pytest.raises(ValueError, match='no host_bandwidth'):
        operated(rows, model, ClusterOperation(checkpoint_async=True), as_system('A100'),
                 calibrated)


def played_with_failures(work, save, later, mtbf, segments=20_000):
    "The share of the time that gets on, failure by failure; a checkpoint counts once it is stored."
    random, clock, ready = np.random.default_rng(0), 0., later
    failure = random.exponential(mtbf)
    for _ in range(segments):
        while failure < work + save + ready:   # nothing new is stored before it fails
            clock, ready, failure = clock + failure, later, random.exponential(mtbf)
        clock, failure, ready = clock + work + save + ready, failure - work - save - ready, 0.
    return segments * work / clock


def test_a_copy_on_the_host_is_lost_until_it_is_stored():
    "8,192 GPUs with a slow storage: what failures cost is played."
    rows = pd.DataFrame({'n_gpus': [8192], 'samples_per_s': [1.]})
    slow = ClusterOperation(checkpoint_async=True, checkpoint_GBps=4e-4, restart_s=0.,
                            mtbf_gpu_hours=2e4)
    found = {name: x[0] for name, x in operated(
        rows, NAMED['llama3.1_405B'], slow, as_system(H100), as_assumptions('calibrated')).items()}
    later = found['checkpoint_GB'] / 8192 / 4e-4 - found['checkpoint_s']
    assert math.isclose(later, found['checkpoint_interval_s'])
    played = played_with_failures(later, found['checkpoint_s'], later, found['mtbf_s'])
    assert math.isclose(found['goodput'], played, rel_tol=.01)


def test_what_a_checkpoint_holds():
    "What trains: 2 bytes of each weight, and its states as the optimizer keeps them."
    a, m = as_assumptions('calibrated'), NAMED['llama3.1_8B']
    of = lambda optimizer='adam', adapters='none': checkpoint_GB(m, optimizer, adapters, a)
    P, words = m.parameters / 1e9, 2 * 128256 * 4096 / 1e9
    norms = 65 * 4096 / 1e9
    assert math.isclose(of(), 14 * P) and math.isclose(of('lion'), 10 * P)
    assert math.isclose(of('muon'), 10 * P + 4 * (words + norms))
    assert math.isclose(of('adam-8bit'), (2 + 4 + 2 * (1 + 4 / 256)) * P)
    assert math.isclose(of(adapters='lora:16'), 14 * 41_943_040 / 1e9)   # as PEFT counts them
    tied = dataclasses.replace(m, tied_embeddings=True)
    assert math.isclose(checkpoint_GB(tied, 'adam', 'none', a), 14 * tied.parameters / 1e9)


def test_each_row_saves_what_it_keeps():
    "Fewer bytes are saved sooner, and more often; by hand for each row."
    found = plan('llama3.1_70B', 256, H100, tokens=1e12, global_batch=512,
                 optimizer=['adam', 'muon'], zero_stage=1)
    by = found.rows.groupby('optimizer').checkpoint_GB
    assert (by.nunique() == 1).all() and by.first()['muon'] < by.first()['adam']
    row = found.rows.iloc[0]
    seconds = row.checkpoint_GB / 256 / ClusterOperation().checkpoint_GBps
    assert math.isclose(row.checkpoint_s, seconds)
    told = plan('llama3.1_70B', 256, H100, tokens=1e12, global_batch=512,
                operation=ClusterOperation(checkpoint_bytes=2.)).rows.iloc[0]
    assert math.isclose(told.checkpoint_GB, 2 * NAMED['llama3.1_70B'].parameters / 1e9)


@pytest.mark.parametrize('fields, said', [
    ({}, 'checkpoints written at 0.1221 GB/s a GPU;'),
    (dict(checkpoint_GBps=2.), 'checkpoints written at 2 GB/s a GPU;'),
    (dict(checkpoint_s=30.), '30 s for a checkpoint;')])
def test_a_plan_says_what_a_checkpoint_is_taken_to_cost(fields, said):
    found = plan('llama3.1_8B', 8, H100, tokens=1e9, global_batch=64,
                 operation=ClusterOperation(**fields))
    assumed, = (note for note in found.notes if note.startswith('Assumed: '))
    assert said in assumed


def test_a_plan_without_rows_is_told_in_sentences():
    "Why, and what it rests on; no table without a row."
    found = plan('llama3.1_8B', [64], 'H100-80GB', tokens=1e12, hours=1, global_batch=1024)
    assert not len(found.rows)
    first, *notes = repr(found).splitlines()
    assert first.startswith('64 H100-80GB GPUs: ') and 'hours are more than 1' in first and notes
