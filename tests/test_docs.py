"What can be said about the documentation without building it: its order, pages, links, glossary, how-tos and exercises. `python docs/build.py` builds and checks the rest."
import ast
import contextlib
import dataclasses
import importlib.util
import io
import json
import re
import shlex

import pytest
from typer.testing import CliRunner

import notebooks
import pages
from transformer_perf import Assumptions, Model, Parallel, System, estimate, search
from transformer_perf.cli import app
from transformer_perf.modules import STRATEGIES, model_figures

DOCS = notebooks.ROOT / 'docs'
HOWTOS = sorted(DOCS.glob('howto_*.md'))
EXERCISES = [path for path in notebooks.NOTEBOOKS if path.name.startswith('4')]


def cells(path, kind): return [cell for cell in json.loads(path.read_text())['cells'] if cell['cell_type'] == kind]
def sources(path, kind): return [''.join(cell['source']) for cell in cells(path, kind)]


# order

def test_every_notebook_has_one_place():
    listed = [page for _, found in pages.contents([path.stem for path in notebooks.NOTEBOOKS]) for page in found]
    assert len(set(listed)) == len(listed)
    assert {path.stem for path in notebooks.NOTEBOOKS} - {'index'} == {page for page in listed if re.match(r'\d\db?_', page)}
    assert {path.stem for path in DOCS.glob('*.md')} == {page for page in listed if not re.match(r'\d\db?_', page)} - {'api/index'}


def test_order_takes_notebooks_to_come():
    listed = [page for _, found in pages.contents(['11_cli', '10_validation', '30_reach', '21_figures', '20_slips', '09_scaling', '07_panels', '06_plots', '08_sweeps', '05_execution']) for page in found]
    assert listed[:10] == ['05_execution', '20_slips', '21_figures', '06_plots', '07_panels', '08_sweeps', '09_scaling', '30_reach', '10_validation', '11_cli']
    assert listed[10:12] == ['api/index', 'glossary'] and listed[-1] == 'references'
    with pytest.raises(ValueError, match='99_other.ipynb has 0 places'): pages.contents(['99_other'])


# pages

def test_a_page_shows_what_is_to_be_read(tmp_path):
    code = lambda source, **more: dict(cell_type='code', id='c', metadata={}, source=source, outputs=[], execution_count=None, **more)
    shown = dict(code('#| echo: false\n1 + 1'), outputs=[dict(output_type='stream', name='stdout', text='kept')])
    state = {'application/vnd.jupyter.widget-state+json': {'state': {}}}
    nb = dict(cells=[dict(cell_type='markdown', id='t', metadata={}, source='# Title\n> Line.'), code('#| default_exp models'), code('#| hide\nsecret = 1'), code('#| export\nx = 1'), shown],
              metadata={'widgets': state}, nbformat=4, nbformat_minor=5)
    (tmp_path / '00_models.ipynb').write_text(json.dumps(nb))
    page = pages.page(tmp_path / '00_models.ipynb')
    title, exported, picture = page['cells']
    assert title['source'].startswith('# Title\n> Line.\n') and 'api/models.md' in title['source'] and '_static/notebooks/00_models.ipynb' in title['source']
    assert exported['source'] == 'x = 1' and exported['metadata']['tags'] == []
    assert picture['metadata']['tags'] == ['remove-input'] and picture['outputs'][0]['text'] == 'kept'
    assert page['metadata']['widgets'] == state


def test_paragraphs_are_folded_and_tables_are_not():
    assert max(map(len, pages.folded('word ' * 100).split('\n'))) <= 88
    table = 'a  b ' * 50
    assert pages.folded(table) == table


def test_links_lead_somewhere():
    texts = {path: '\n'.join(sources(path, 'markdown')) for path in notebooks.NOTEBOOKS} | {path: path.read_text() for path in DOCS.glob('*.md')}
    for path, text in texts.items():
        for link in re.findall(r'\]\(([^)\s]+)\)', text):
            if re.match(r'https?://', link): continue
            assert (notebooks.ROOT / 'nbs' / link).exists() or (DOCS / link).exists(), f'{path.name}: {link} leads nowhere'


def test_site_check_finds_faults(tmp_path):
    spec = importlib.util.spec_from_file_location('docs_build', DOCS / 'build.py')
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    (tmp_path / 'good.html').write_text('<p id="here"><a href="#here">x</a><a href="https://arxiv.org">paper</a><img src="data:image/png;base64,x">')
    assert build.check_site(tmp_path) == []
    (tmp_path / 'bad.html').write_text('<script src="https://cdn.org/x.js"></script><a href="gone.html">x</a><a href="good.html#there">x</a><link rel="stylesheet" href="//cdn.org/x.css">')
    (tmp_path / 'bad.css').write_text('@import "https://cdn.org/y.css"; a { background: url(//cdn.org/z.png) }')
    assert len(build.check_site(tmp_path)) == 6
    build.PACKAGES = tmp_path / 'none'
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit, match='npm is missing'):
        patch.setenv('PATH', str(tmp_path))
        build.vendor()


# API

def test_api_has_every_public_function_and_its_comments():
    api = pages.api()
    for path in (notebooks.ROOT / 'transformer_perf').glob('*.py'):
        if path.stem in ('__init__', '_modidx'): continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith('_'):
                assert re.search(rf'\}} {node.name}\b', api[f'api/{path.stem}.md']), f'{path.stem}.{node.name}'
    assert '| `b`, `l`, `e`, `f` |  | the product (b, l, e) x (e, f) |\n| `m1` | `1` | GPUs that shard f |' in api['api/layers.md']
    assert '**Returns:** SearchResult: a DataFrame, one row per candidate, best first' in api['api/execution.md']
    assert '| `tp1` | `1` | GPUs that shard heads and features |' in api['api/execution.md']
    assert '| `top` | `10` | How many configurations to show for each number of GPUs. |' in api['api/cli.md']
    assert '{py:classmethod} from_row(row)' in api['api/execution.md'] and '{py:property} fits' in api['api/execution.md']


# glossary and references

def glossary():
    "The rows of the glossary: first column (a symbol or a term), and all code names."
    rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in (DOCS / 'glossary.md').read_text().splitlines() if line.startswith('|') and '---' not in line]
    return [row for row in rows if row[0] not in ('symbol', 'term')]


def symbols(cell): return [re.sub(r'\\text|[{}\\\s]', '', part) for formula in re.findall(r'\$([^$]+)\$', cell) for part in formula.split(',')]


def test_glossary_has_every_symbol_once():
    known = [symbol for row in glossary() for symbol in symbols(row[0])]
    assert len(set(known)) == len(known)
    found = {}
    for path in notebooks.NOTEBOOKS:
        for source in sources(path, 'markdown'):
            in_table = False
            for line in source.splitlines():
                in_table = line.startswith('|') and (in_table or line.startswith('| symbol'))
                if in_table: found |= {symbol: path.name for symbol in symbols(line.split('|')[1])}
    assert len(found) > 20
    assert not (missing := {symbol: where for symbol, where in found.items() if symbol not in known}), f'docs/glossary.md lacks {missing}'


def test_glossary_has_every_name_once():
    rows = [row for row in glossary() if len(row) == 4]
    names = [name for row in rows for name in re.findall(r'`(\w+)`', row[1])]
    terms = [term for row in glossary() if len(row) == 2 for term in row[0].split(', ')]
    assert len(set(names)) == len(names) and len(set(terms)) == len(terms)
    row = estimate('gpt3', Parallel(tp1=8), 'H200', global_batch=64)
    wanted = {field.name for kind in (Model, System, Parallel, Assumptions) for field in dataclasses.fields(kind)} | {*search('gpt3', 1024, 'H200').columns, *row.layers.columns, *model_figures('gpt3')}
    assert not (missing := wanted - {*names} - {'name', 'layer'}), f'docs/glossary.md lacks {missing}'


def test_references_has_every_paper():
    cited = {number: path.name for path in [*notebooks.NOTEBOOKS, *DOCS.glob('*.md')] for number in re.findall(r'ar[Xx]iv[ .:/\w]*?(\d{4}\.\d{5})', path.read_text())}
    assert len(cited) > 2
    references = (DOCS / 'references.md').read_text()
    assert not (missing := {number: where for number, where in cited.items() if number not in references}), f'docs/references.md lacks {missing}'


# how-tos: what they say to type works, and prints what they say

@pytest.mark.parametrize('path', HOWTOS, ids=lambda path: path.stem)
def test_howto(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before, names, printed, ran = dict(STRATEGIES), {'__name__': path.stem}, '', 0
    try:
        for language, block in re.findall(r'```(\w+)\n(.*?)```', path.read_text(), re.S):
            if language == 'python':
                with contextlib.redirect_stdout(io.StringIO()) as out: exec(compile(block, path.name, 'exec'), names)
                printed, ran = out.getvalue(), ran + 1
            elif language == 'bash':
                result = CliRunner().invoke(app, shlex.split(block)[1:])
                assert result.exit_code == 0, result.output
            else: assert [line.rstrip() for line in printed.splitlines()] == [line.rstrip() for line in block.splitlines()]
    finally:
        STRATEGIES.clear()
        STRATEGIES.update(before)
    assert ran >= 2


# exercises

@pytest.mark.parametrize('path', EXERCISES, ids=lambda path: path.stem)
def test_exercise_solutions_are_hidden(path):
    code = cells(path, 'code')
    blanks = [i for i, cell in enumerate(code) if 'eval: false' in notebooks.directives(''.join(cell['source']))]
    assert len(blanks) >= 5
    for i in blanks:
        assert 'hide' in notebooks.directives(''.join(code[i + 1]['source'])), 'a solution follows each blank'
        assert code[i + 1]['metadata'] == {'jupyter': {'source_hidden': True}}, 'folded in Jupyter'
    assert all('A solution' not in ''.join(cell['source']) for cell in pages.page(path)['cells'])


@pytest.mark.parametrize('path', EXERCISES, ids=lambda path: path.stem)
def test_exercise_checks_refuse_a_blank(path, monkeypatch):
    "Whoever leaves a blank as it is is told so by the check below it."
    code = [source for source in sources(path, 'code') if 'echo: false' not in notebooks.directives(source)]
    is_blank = lambda source: 'eval: false' in notebooks.directives(source)
    names = {}
    for i, source in enumerate(code):
        if is_blank(source):
            left, here = dict(names), next((j for j in range(i + 1, len(code)) if is_blank(code[j])), len(code))
            with pytest.raises(Exception), contextlib.redirect_stdout(io.StringIO()):
                for each in code[i:here]: exec(compile(each, path.name, 'exec'), left)
        else:
            with contextlib.redirect_stdout(io.StringIO()): exec(compile(source, path.name, 'exec'), names)
