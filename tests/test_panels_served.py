"The panels as they are served: who may see them, how they end, and what a real browser shows."
import dataclasses
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from test_cli import bad, has
from test_panels import call
from transformer_perf.iteration import short
from transformer_perf.panels import PANELS, LayerState, SearchState, search as search_panel

COMMAND = str(Path(sys.executable).parent / 'transformer-perf')
HAS_VOILA = find_spec('voila') is not None   # to import it takes seconds



# the server

def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


STRICT = """from transformer_perf.panels import server as panel_server
panel_server.MOST_PAGES = 2
panel_server.CULLED.update(cull_idle_timeout=2, cull_interval=1)
panel_server.serve({port})"""
CULLED_AFTER = 3   # s, at the latest


@pytest.fixture(scope='module')
def heard(tmp_path_factory): return tmp_path_factory.mktemp('browser') / 'heard'


def begin(name, heard):  # Popen
    "Begin one of the servers below, which prints its address when it is up."
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
    port, environment = str(free_port()), os.environ.copy()
    command = [COMMAND, 'panels', '--no-browser', '--port', port]
    if name == 'strict':
        command = [sys.executable, '-c', STRICT.format(port=port)]
        browser = heard.with_name('browser')
        browser.write_text(f'#!/bin/sh\necho "$@" > {heard}.part; mv {heard}.part {heard}')
        browser.chmod(0o700)
        environment['BROWSER'] = f'{browser} %s &'
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.fixture(scope='module', autouse=True)
def begun(request, heard):
    "The servers that are asked for, by name: begun with the first test, they are up when needed."
    asked = {name for item in request.session.items if item.path == request.path
             for name in item.fixturenames}
    found = {name: begin(name, heard) for name in ('server', 'strict')
             if HAS_VOILA and name in asked}
    yield found
    for process in found.values(): process.kill()


def address_of(begun, name):  # yields (process, address)
    "A server that was begun and the address that it prints; when it is told to end, it does."
    if name not in begun: pytest.skip('voila is not installed')
    yield begun[name], begun[name].stdout.readline().split()[4]
    begun[name].terminate()
    assert begun[name].wait(15) == 0


@pytest.fixture(scope='module')
def server(begun):
    "The panels, as the command serves them: a process and its address."
    yield from address_of(begun, 'server')


@pytest.fixture(scope='module')
def strict(begun):
    "A server with room for two pages, culled after 2 s; its browser notes what it is told."
    yield from address_of(begun, 'strict')


def kernels(process):
    "The kernels of a server."
    return [own for own in psutil.process_iter(['ppid', 'cmdline']) if own.info['ppid'] ==
            process.pid and 'ipykernel_launcher' in (own.info['cmdline'] or ())]


def until(true, seconds=15):
    "Wait until something is true."
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def ask(url, path=None, method='GET', **headers):
    "What a server answers, as (status, headers, text); and the connection, still open."
    port = urlsplit(url).port
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
    connection.putrequest(method, urlsplit(url).path if path is None else path, skip_host=True)
    for name, value in ({'Host': f'127.0.0.1:{port}'} | headers).items():
        connection.putheader(name.replace('_', '-'), value)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read().decode(), connection


UPGRADE = {'Connection': 'Upgrade', 'Upgrade': 'websocket', 'Sec_WebSocket_Version': '13',
           'Sec_WebSocket_Key': 'dGhlIHNhbXBsZSBub25jZQ=='}
HIDDEN = ('', 'voila/static/voila.js', 'voila/templates/lab/static/index.css', 'login',
          'api/kernels/0-0-0-0-0', 'api/kernels/0-0-0-0-0/channels')


def guarded(headers):
    "Whether the browser is told to show an answer in no frame, to guess nothing, to tell nobody."
    policy = headers['Content-Security-Policy']
    return ("frame-ancestors 'none'" in policy and headers['X-Frame-Options'] == 'DENY'
            and headers['X-Content-Type-Options'] == 'nosniff'
            and headers['Referrer-Policy'] == 'same-origin'
            and headers['Cross-Origin-Resource-Policy'] == 'same-origin')


def test_others_are_refused(server):
    "Without the token, under another name or from another site nothing is given, nothing started."
    process, url = server
    port, before, path = urlsplit(url).port, len(kernels(process)), urlsplit(url).path
    wrong = path[:-2] + ('A/' if path[-2] != 'A' else 'B/')
    refused = [ask(url, start + name, **upgrade) for start in ('/', wrong) for name in HIDDEN
               for upgrade in ({}, UPGRADE)]
    refused += [ask(url, f'/?token={path.strip("/")}')]
    foreign = [{'Host': host} for host in (f'rebound.example:{port}', '127.0.0.1', 'localhost:80')]
    foreign += [{'Origin': origin} for origin in (
        'https://site.example', f'http://127.0.0.1:{port + 1}', f'http://localhost:{port}', 'null')]
    refused += [ask(url, path + name, **headers, **upgrade) for headers in foreign
                for name in HIDDEN for upgrade in ({}, UPGRADE)]
    assert {status for status, *_ in refused} == {403}
    assert all(guarded(headers) for _, headers, *_ in refused)
    assert len(kernels(process)) == before and not any(path in text for *_, text, _ in refused)


def test_files_are_given_to_our_own_pages(server):
    "The same requests with the token, from a page of this server or from none."
    process, url = server
    for headers in ({}, {'Origin': f'http://127.0.0.1:{urlsplit(url).port}'}):
        status, told, text, _ = ask(url, urlsplit(url).path + HIDDEN[1], **headers)
        assert status == 200 and len(text) > 1000 and guarded(told)
    local = f'localhost:{urlsplit(url).port}'
    assert ask(url, urlsplit(url).path + HIDDEN[2], Host=local, Origin=f'http://{local}')[0] == 200
    assert kernels(process) == []


@pytest.mark.parametrize('name', [
    'api/contents', 'api/kernels', 'api/kernelspecs', 'api/sessions', 'api/terminals', 'tree',
    'files/panels.ipynb', 'panels.ipynb', 'voila/files/panels.ipynb', 'voila/render/panels.ipynb'])
def test_the_page_is_all_there_is(server, name):
    "Who knows the address, too, gets no other file, and starts nothing but the page."
    process, url = server
    before, path = kernels(process), urlsplit(url).path + name
    for method in ('GET', 'POST'):
        status, told, *_ = ask(url, path, method)
        if status == 302: status = ask(url, told['Location'])[0]
        assert status in (403, 404, 405) and guarded(told)
    assert kernels(process) == before


@pytest.mark.thorough
def test_the_browser_is_led_by_a_file(strict, heard):
    _, url = strict
    until(heard.exists)
    assert heard.read_text().startswith('file:///') and url not in heard.read_text()
    leads = Path(urlsplit(heard.read_text().strip()).path)
    assert f'url={url}"' in leads.read_text() and leads.parent.stat().st_mode & 0o077 == 0


@pytest.mark.thorough
def test_pages_are_limited_and_end(strict):
    """Six pages are asked for at once: two are given, four refused. The one whose websocket is
    open stays, the other ends; a websocket of another site is refused; without one both end."""
    process, url = strict
    with ThreadPoolExecutor(6) as pool: asked = list(pool.map(ask, [url] * 6))
    assert sorted(status for status, *_ in asked) == [200] * 2 + [503] * 4
    assert all(guarded(headers) for _, headers, *_ in asked)
    full = [text for status, _, text, _ in asked if status == 503]
    assert all('2 pages are open: close one' in text for text in full)
    assert len(kernels(process)) == 2
    assert sum(own.memory_info().rss for own in kernels(process)) < 600e6
    token = urlsplit(url).path.strip('/')
    assert not any(token in word for own in psutil.process_iter(['cmdline'])
                   for word in own.info['cmdline'] or ())
    page = next(text for status, _, text, _ in asked if status == 200)
    channels = f'{urlsplit(url).path}api/kernels/{re.search(r"""kernelId": "([^"]+)""", page)[1]}'
    foreign = {'Origin': 'https://site.example'} | UPGRADE
    assert ask(url, channels + '/channels', **foreign)[0] == 403
    home = {'Origin': url.removesuffix(f'/{token}/')} | UPGRADE
    status, *_, connection = ask(url, channels + '/channels', **home)
    assert status == 101
    opened = time.monotonic()
    until(lambda: len(kernels(process)) == 1)
    time.sleep(max(opened + CULLED_AFTER + .5 - time.monotonic(), 0))
    assert len(kernels(process)) == 1
    connection.close()
    until(lambda: not kernels(process))


@pytest.mark.thorough
def test_ctrl_c_ends_all(strict):
    process, url = strict
    status, _, text, _ = ask(url)
    assert status == 200 and len(kernels(process)) == 1
    # a picture comes before the process of the page is asked for one
    assert 'One iteration' in text[text.index('<div id="first">'):text.index('id="rendered_cells"')]
    tree = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(15) == 0 and not psutil.wait_procs(tree, 5)[1]
    with socket.socket() as s: assert s.connect_ex(('127.0.0.1', urlsplit(url).port)) != 0


def test_a_port_that_cannot_be_used():
    "One line, exit code 2, and no other port instead."
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        said = {'80': 'from 1024', str(port): 'Address already in use'}
        started = {given: subprocess.Popen(
            [COMMAND, 'panels', '--no-browser', '--port', given], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True) for given in said}
        for given, process in started.items():
            out, err = process.communicate(timeout=60)
            assert process.returncode == 2 and out == '' and err.count('\n') == 1
            assert given in err and said[given] in err
    for given, words in (('99999', 'to 65535'), ('0', 'from 1024'), ('x', 'a whole number')):
        has(bad('panels', '--no-browser', '--port', given), given, words)


# --- a real browser ---

@pytest.fixture(scope='module')
def site(chromium, server): return server[1]   # the address of the panels


TABS, answered = list(PANELS), []


@pytest.fixture(scope='module')
def browser_page(browser, site):
    context = browser.new_context(viewport={'width': 1280, 'height': 1000})
    shown = context.new_page()
    shown.on('response', lambda response: answered.append(response.url))
    answered.clear()
    shown.goto(site)
    shown.wait_for_selector('.panel-layer svg', timeout=90_000)
    yield shown
    context.close()


WATCH = '''panel => { window.took = new Promise(done => {
    const page = document.querySelector(`.panel-${panel} .page`), start = {}
    const calls = () => page.querySelector('pre')?.textContent, before = calls()
    const painted = then => requestAnimationFrame(() => setTimeout(then))
    addEventListener('change', () => start.at = performance.now(), {capture: true, once: true})
    const seen = new MutationObserver(() => {
        if (!start.picture) painted(() => start.picture ||= performance.now())
        if (calls() && calls() != before) { seen.disconnect()
            painted(() => done([start.picture, performance.now()].map(at => at - start.at))) } })
    seen.observe(page, {childList: true, subtree: true, characterData: true}) }) }'''
TOOK = '''Promise.race([took, new Promise((_, fail) =>
    setTimeout(() => fail(Error('nothing new was shown')), 60_000))])'''


def move(browser_page, panel, control, option):
    "Move a control: the text of the new page; ms until something of it is seen, and all of it."
    browser_page.locator('.lm-TabBar-tab').nth(TABS.index(panel)).click()
    browser_page.wait_for_selector(f'.panel-{panel} pre')   # a tab is made when it is looked at
    box = browser_page.locator(f'.panel-{panel} .control-{control} select')
    if not box.is_visible():
        browser_page.locator(f'.panel-{panel}').get_by_text('More controls').click()
    browser_page.evaluate(WATCH, panel)
    browser_page.select_option(f'.panel-{panel} .control-{control} select', label=option)
    took = browser_page.evaluate(TOOK)
    return browser_page.locator(f'.panel-{panel} .page').inner_text(), took


def wait_for(browser_page, selector, words):
    "Until an element contains some words."
    browser_page.wait_for_function(
        '([selector, words]) => document.querySelector(selector).textContent.includes(words)',
        arg=[selector, words], timeout=30_000)


def python_on(browser_page, panel):
    return call(browser_page.locator(f'.panel-{panel} pre').first.inner_text())


MOVED = (('nvlink_size', '64'), ('system', 'B200'), ('strategy', '2d'), ('strategy', '1d'),
         ('micro_batch', '2'), ('pp', '64'), ('assumptions', 'corrected'), ('system', 'H200'))


def test_browser_layer(browser_page, capsys):
    "Each move changes the numbers on the page to what the Python call on the page says."
    assert browser_page.locator('#first').count() == 0   # the panel stands where it stood
    for control, option in MOVED:
        text, took = move(browser_page, 'layer', control, option)
        result = python_on(browser_page, 'layer')
        seconds = f'One iteration: {short(result.stats["iteration_s"])} s'
        assert seconds in browser_page.locator('.panel-layer svg').text_content()
        assert short(result.layers.t_fwd[0] * 1000) in text and result.summary in text
        with capsys.disabled(): print(f'\nbrowser: {control} to {option}: '
                                      f'picture {took[0]:.0f} ms, page {took[1]:.0f} ms', end='')
    options = browser_page.locator('.panel-layer .control-tp option').all_inner_texts()
    assert options == list(map(str, browser_options('tp', browser_page)))


def browser_options(name, browser_page):
    "The options that the state on the page has."
    result = python_on(browser_page, 'layer')
    p, names = result.parallel, [field.name for field in dataclasses.fields(LayerState)]
    own = {field: getattr(p, field) for field in names if getattr(p, field, None) is not None}
    state = LayerState(result.model.name, result.system.name, result.system.nvlink_size,
                       result.global_batch, 'corrected', **own)
    return state.settle()[1][name]


def test_browser_search_loads_the_layer_panel(browser_page):
    text, _ = move(browser_page, 'search', 'system', 'B200')
    found = python_on(browser_page, 'search')
    assert f'{short(found.iteration_s[0])} s an iteration' in text
    browser_page.select_option('.panel-search .control-candidate select', label='3')
    wait_for(browser_page, '.panel-search .page', 'Candidate 3 is in the layer panel')
    browser_page.locator('.lm-TabBar-tab').nth(0).click()
    expected = f'One iteration: {short(found.iteration_s[2])} s'
    wait_for(browser_page, '.panel-layer svg', expected)


def test_browser_loads_a_cell_by_keyboard(browser_page):
    "Its button says what is there, and has the keyboard afterwards, too."
    move(browser_page, 'search', 'system', 'H200')
    found = search_panel.found_by(SearchState(), 1, tp=8, pp=16).iteration_s[0]
    seconds = short(found)
    cell = browser_page.locator(f'.panel-search button[title^="tp 8, pp 16: {seconds} s, "]')
    assert cell.inner_text() == f'{seconds} s'
    cell.focus()
    browser_page.keyboard.press('Enter')
    wait_for(browser_page, '.panel-search .page', f'tp x pp = 8 x 16 takes {seconds} s')
    wait_for(browser_page, '.panel-layer svg', f'One iteration: {seconds} s')
    assert browser_page.evaluate('document.activeElement.title').startswith('tp 8, pp 16: ')
    cell.click()
    browser_page.wait_for_function(
        "!document.querySelector('.panel-search .page').textContent.includes('8 x 16 takes')")


def test_browser_plays_the_pipeline(browser_page):
    "A moment moves by itself until it is stopped."
    browser_page.locator('.lm-TabBar-tab').nth(0).click()
    browser_page.get_by_text('Watch the pipeline').click()
    said = browser_page.get_by_text('the first stage has ended')
    before = said.text_content()
    browser_page.locator('.panel-layer .widget-play button').first.click()
    browser_page.wait_for_function("""before => [...document.querySelectorAll('.panel-layer p')]
        .some(e => e.textContent.includes('has ended') && e.textContent != before)""", arg=before)
    browser_page.locator('.panel-layer .widget-play button').first.click()
    browser_page.get_by_text('Watch the pipeline').click()


def test_browser_says_why_nothing_fits(browser_page):
    move(browser_page, 'search', 'system', 'A100')
    text, _ = move(browser_page, 'search', 'n_gpus', '64')
    assert 'No configuration of 64 GPUs is feasible' in text and 'Traceback' not in text
    assert browser_page.locator('.panel-search svg').count() == 0


def test_browser_others(browser_page):
    move(browser_page, 'sweep', 'doublings', '1')   # quicker
    text, _ = move(browser_page, 'sweep', 'vary', 'seq_len')
    assert short(python_on(browser_page, 'sweep')['b'].iteration_s.iloc[0]) in text
    text, _ = move(browser_page, 'roofline', 'micro_batch', '4')
    layers = python_on(browser_page, 'roofline')
    assert short((layers.t_fwd_comp + layers.t_fwd_mem)[0] * 1000) in text
    text, _ = move(browser_page, 'collectives', 'kind', 'allreduce')
    assert short(python_on(browser_page, 'collectives')[4][-1] * 1000) in text
    for panel in ('sweep', 'roofline', 'collectives'):
        assert browser_page.locator(f'.panel-{panel} img').count() == 1


def test_browser_by_keyboard(browser_page):
    "Pin with the space bar, move, go back with Enter: all without the mouse."
    browser_page.locator('.lm-TabBar-tab').nth(0).click()
    browser_page.locator('.panel-layer .button-pin').focus()
    browser_page.keyboard.press('Space')
    wait_for(browser_page, '.panel-layer .button-pin', 'Unpin A')
    _, took = move(browser_page, 'layer', 'zero_stage', '2')
    wait_for(browser_page, '.panel-layer .page', 'A against B. What changed: ZeRO stage 1 → 2')
    browser_page.locator('.panel-layer .button-back').focus()
    browser_page.keyboard.press('Enter')
    browser_page.wait_for_function(
        "!document.querySelector('.panel-layer .page').textContent.includes('A against B.')")
    browser_page.locator('.panel-layer .button-pin').click()
    assert took[0] <= took[1] < 5000   # something moves, however busy this computer is


def test_browser_opens_an_address(browser_page, server, site):
    """The link on a page opens its state; on a phone nothing is wider than the screen but pictures.

    A page says when it is closed or left, and its kernel ends."""
    before, page = kernels(server[0]), browser_page.context.new_page()
    page.set_viewport_size({'width': 390, 'height': 844})
    page.goto(f'{site}?panel=search&system=B200&cell=8+x+32')
    page.wait_for_selector('.panel-search svg', timeout=90_000)
    wait_for(page, '.panel-search .page', 'tp x pp = 8 x 32')
    link = page.locator('.panel-search .page a').last
    assert link.get_attribute('href') == '?panel=search&system=B200&nvlink_size=4&cell=8+x+32'
    assert page.evaluate('document.body.scrollWidth') <= 390
    ends = page.evaluate("""[...document.querySelectorAll('.panel-search .page :is(p, pre)')]
        .map(e => e.getBoundingClientRect().right)""")
    assert len(ends) > 4 and max(ends) <= 390
    assert len(kernels(server[0])) == len(before) + 1
    page.goto('about:blank')
    until(lambda: kernels(server[0]) == before, 10)  # the culler would take 30 s
    page.close()


def test_it_listens_to_this_computer_only(site):
    "Bound to 127.0.0.1: another address of this computer, even a local one, is refused."
    port = urlsplit(site).port
    with socket.socket() as s: assert s.connect_ex(('127.0.0.1', port)) == 0
    for other in {'127.0.0.2', socket.gethostbyname(socket.gethostname())} - {'127.0.0.1'}:
        with socket.socket() as s:
            s.settimeout(2)
            assert s.connect_ex((other, port)) != 0


def test_the_page_needs_nothing_from_elsewhere(browser_page, site):
    known = (site, 'data:', 'blob:')
    assert answered and all(url.startswith(known) for url in answered)
