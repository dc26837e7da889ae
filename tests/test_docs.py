"""What can be said about the documentation without building it.

Its order, pages, links, glossary, how-tos and exercises; `python docs/build.py` builds and checks
the rest.
"""
import ast
import contextlib
import dataclasses
import importlib.util
import io
import json
import re
import shlex

import pytest

import notebooks
import pages
from transformer_perf import Assumptions, Model, Parallel, System, estimate, search
from transformer_perf.cli import COMMANDS, main
from transformer_perf.estimates import RECIPES
from transformer_perf.modules import STRATEGIES, model_figures
from transformer_perf.schedules import SCHEDULES

DOCS = notebooks.ROOT / 'docs'
TEXTS = sorted(DOCS.glob('*.md'))
HOWTOS = [path for path in TEXTS if path.name.startswith('howto_')]
EXERCISES = [path for path in notebooks.NOTEBOOKS if path.name.startswith('4')]
STEMS = [path.stem for path in notebooks.NOTEBOOKS]


def cells(path, kind): return [c for c in notebooks.cells_of(path) if c['cell_type'] == kind]
def sources(path, kind): return [''.join(cell['source']) for cell in cells(path, kind)]
def listed(stems): return [page for _, found in pages.contents(stems) for page in found]
def has_number(page): return bool(re.match(r'\d\d[a-z]?_', page))


# order

def test_every_notebook_has_one_place():
    found = listed(STEMS)
    assert len(set(found)) == len(found)
    assert {*STEMS} - {'index'} == {*filter(has_number, found)}
    others = {page for page in found if not has_number(page)}
    assert {path.stem for path in TEXTS} == others - {'api/index'}


def test_order_of_pages():
    known = ['11_cli', '90_inputs', '10_validation', '30_reach', '21_figures', '20_slips',
             '09_scaling', '07b_panels', '07_plots', '08_sweeps', '06b_paper_names',
             '06_execution', '02b_kernels', '02_estimates', '40_exercise']
    assert listed(known)[:15] == [
        '02_estimates', '02b_kernels', '06_execution', '20_slips', '21_figures', '07_plots',
        '07b_panels', '08_sweeps', '09_scaling', '30_reach', '10_validation', '11_cli',
        '40_exercise', '06b_paper_names', '90_inputs']
    assert listed(known)[15:17] == ['api/index', 'glossary'] and listed(known)[-1] == 'references'
    with pytest.raises(ValueError, match='99_other.ipynb has 0 places'): listed(['99_other'])


def test_titles_carry_numbers():
    for path in notebooks.NOTEBOOKS:
        number, title = path.stem.partition('_')[0], pages.title_of(path.stem)
        if has_number(path.stem): assert re.fullmatch(rf'{number} \S.* <{path.stem}>', title)
    assert pages.title_of('glossary') == 'glossary'


# pages

def code(source, **more):
    return {'cell_type': 'code', 'id': 'c', 'metadata': {}, 'source': source, 'outputs': [],
            'execution_count': None, **more}


def page_of(folder, *after, **metadata):
    "How a small notebook is read: its title, and some cells."
    title = {'cell_type': 'markdown', 'id': 't', 'metadata': {}, 'source': '# Title\n> Line.'}
    nb = {'cells': [title, *after], 'metadata': metadata, 'nbformat': 4, 'nbformat_minor': 5}
    (folder / '00_models.ipynb').write_text(json.dumps(nb))
    return pages.page(folder / '00_models.ipynb')


def test_a_page_shows_what_is_to_be_read(tmp_path):
    printed = [{'output_type': 'stream', 'name': 'stdout', 'text': 'kept'}]
    state = {'application/vnd.jupyter.widget-state+json': {'state': {}}}
    page = page_of(
        tmp_path, code('#| default_exp models'), code('#| hide\nsecret = 1'),
        code('#| export\nx = 1'), code('#| echo: false\n1 + 1', outputs=printed),
        code('#| export\n#| code-fold: true\ny = 2'), widgets=state)
    title, exported, picture, plumbing = page['cells']
    assert title['source'].startswith('# Title\n> Line.\n')
    assert 'api/models.md' in title['source']
    assert '_static/notebooks/00_models.ipynb' in title['source']
    assert exported['source'] == 'x = 1' and exported['metadata']['tags'] == []
    assert picture['metadata']['tags'] == ['remove-input']
    assert picture['outputs'][0]['text'] == 'kept'
    assert plumbing['metadata']['tags'] == ['hide-input'] and plumbing['source'] == 'y = 2'
    assert page['metadata']['widgets'] == state


def test_a_page_leads_to_every_module_that_it_adds_to():
    page = pages.page(notebooks.ROOT / 'nbs' / '06b_paper_names.ipynb')
    links = page['cells'][0]['source']
    for module in ('modules', 'execution'): assert f'(api/{module}.md)' in links


def test_paragraphs_are_folded_and_tables_are_not():
    assert max(map(len, pages.folded('word ' * 100).split('\n'))) <= 88
    table = 'a  b ' * 50
    assert pages.folded(table) == table


def test_links_lead_somewhere():
    texts = {path: '\n'.join(sources(path, 'markdown')) for path in notebooks.NOTEBOOKS}
    texts |= {path: path.read_text() for path in TEXTS}
    links = {f'{path.name}: {link}': link for path, text in texts.items()
             for link in re.findall(r'\]\(([^)\s]+)\)', text)}
    leads = lambda link: link.startswith(('https://', 'http://')) or any(
        (folder / link).exists() for folder in (notebooks.ROOT / 'nbs', DOCS))
    dead = [where for where, link in links.items() if not leads(link)]
    assert not dead, f'these lead nowhere: {dead}'


@pytest.fixture
def build():
    "docs/build.py as a module."
    spec = importlib.util.spec_from_file_location('docs_build', DOCS / 'build.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GOOD = ('<p id="here"><a href="#here">x</a><a href="https://arxiv.org">paper</a>'
        '<img src="data:image/png;base64,x">')
BAD = ('<script src="https://cdn.org/x.js"></script><a href="gone.html">x</a>'
       '<a href="good.html#there">x</a><link rel="stylesheet" href="//cdn.org/x.css">')
BAD_STYLE = '@import "https://cdn.org/y.css"; a { background: url(//cdn.org/z.png) }'


def test_site_check_finds_faults(build, tmp_path):
    (tmp_path / 'good.html').write_text(GOOD)
    assert build.check_site(tmp_path) == []
    (tmp_path / 'bad.html').write_text(BAD)
    (tmp_path / 'bad.css').write_text(BAD_STYLE)
    assert len(build.check_site(tmp_path)) == 6


def test_build_says_that_npm_is_missing(build, tmp_path, monkeypatch):
    build.PACKAGES = tmp_path / 'none'
    monkeypatch.setenv('PATH', str(tmp_path))
    with pytest.raises(SystemExit, match='npm is missing'): build.vendor()


# API

def test_api_has_every_public_function():
    api = pages.api()
    for name, text in pages.modules().items():
        for node in ast.parse(text).body:
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)): continue
            there = re.search(rf'\}} {node.name}\b', api[f'api/{name}.md'])
            assert there or node.name.startswith('_'), f'{name}.{node.name}'


@pytest.mark.parametrize('module, line', [
    ('layers', '| `b`, `l`, `e` |  | the input (b, l, e), whole |\n'),
    ('execution', '**Returns:** SearchResult: a DataFrame, one row per candidate, best first\n'),
    ('iteration', '| `tp` | `1` | GPUs that share heads and features |\n'),
    ('iteration', '| `nvlink_dp` | `None` |'),
    ('iteration', '{py:classmethod} from_row(row)\n'),
    ('iteration', '{py:property} fits\n'),
    ('parameters', '| `nic_share` | `0.7` | of the NIC rate; from 0.5 to 0.95 ('),
    ('index', '- {py:obj}`~transformer_perf.iteration.Parallel`\n')])
def test_api_says(module, line): assert line in pages.api()[f'api/{module}.md']


def test_api_has_every_field():
    api, columns = pages.api()['api/iteration.md'], dataclasses.fields(Parallel)
    table = api.partition('} Parallel(')[2].partition('| --- ')[2].partition('\n\n')[0]
    assert re.findall(r'^\| `(\w+)`', table, re.MULTILINE) == [field.name for field in columns]


def test_api_has_every_command_and_option():
    text = pages.api()['api/cli.md']
    for name, command in COMMANDS.items():
        own = text.partition(f'\n## transformer-perf {name}\n')[2].partition('\n## ')[0]
        assert command.run.__doc__.splitlines()[0] in own
        for option in command.options: assert f'| `{option.flags[0]}`' in own, option.flags
    assert '| `--top` | `10` | configurations to show for each number of GPUs |\n' in text


# glossary and references

def glossary():
    "The rows of the glossary: first column (a symbol or a term), and all code names."
    lines = [line for line in (DOCS / 'glossary.md').read_text().splitlines()
             if line.startswith('|') and '---' not in line]
    rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]
    return [row for row in rows if row[0] not in ('symbol', 'term')]


def symbols(cell):
    "The symbols that formulas list."
    parts = [part for found in re.findall(r'\$([^$]+)\$', cell) for part in found.split(',')]
    return [re.sub(r'\\text|[{}\\\s]', '', part) for part in parts]


def symbols_of_tables(source):
    "The symbols of the notation tables of a Markdown cell."
    found, in_table = [], False
    for line in source.splitlines():
        in_table = line.startswith('|') and (in_table or line.startswith('| symbol'))
        if in_table: found += symbols(line.split('|')[1])
    return found


def test_glossary_has_every_symbol_once():
    known = [symbol for row in glossary() for symbol in symbols(row[0])]
    assert len(set(known)) == len(known)
    found = {symbol: path.name for path in notebooks.NOTEBOOKS
             for source in sources(path, 'markdown') for symbol in symbols_of_tables(source)}
    assert len(found) > 20
    missing = {symbol: where for symbol, where in found.items() if symbol not in known}
    assert not missing, f'docs/glossary.md lacks {missing}'


def test_glossary_has_every_name_once():
    names = [name for row in glossary() if len(row) == 4 for name in re.findall(r'`(\w+)`', row[1])]
    terms = [term for row in glossary() if len(row) == 2 for term in row[0].split(', ')]
    assert len(set(names)) == len(names) and len(set(terms)) == len(terms)
    one = estimate('gpt3', Parallel(tp=8), 'H200', global_batch=64)
    kinds = (Model, System, Parallel, Assumptions)
    wanted = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    wanted |= {*search('gpt3', 1024, 'H200').columns, *one.layers.columns, *model_figures('gpt3')}
    missing = wanted - {*names} - {'name', 'layer'}
    assert not missing, f'docs/glossary.md lacks {missing}'


def test_references_has_every_paper():
    number = r'ar[Xx]iv[ .:/\w]*?(\d{4}\.\d{5})'
    cited = {found: path.name for path in [*notebooks.NOTEBOOKS, *TEXTS]
             for found in re.findall(number, path.read_text())}
    assert len(cited) > 2
    references = (DOCS / 'references.md').read_text()
    missing = {number: where for number, where in cited.items() if number not in references}
    assert not missing, f'docs/references.md lacks {missing}'


# code that is read: how-tos and exercises

def execute(source, names, name):
    "Run code as a reader would type it; what it prints."
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(source, name, 'exec'), names)  # noqa: S102 -- the project's own text
    return out.getvalue()


def command(line):
    "Run a command of ours in this process; what it prints."
    with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit) as end:
        main(shlex.split(line)[1:])
    assert not end.value.code, line
    return out.getvalue()


def lines(text): return [line.rstrip() for line in text.splitlines()]


@pytest.fixture
def own_tables():
    "Strategies, schedules and precisions that a how-to adds are taken away again."
    before = [(table, dict(table)) for table in (STRATEGIES, SCHEDULES, RECIPES)]
    yield
    for table, rows in before:
        table.clear()
        table.update(rows)


@pytest.mark.usefixtures('own_tables')
@pytest.mark.parametrize('path', HOWTOS, ids=lambda path: path.stem)
def test_howto(path, tmp_path, monkeypatch):
    "What a how-to says to type works, and prints what it says."
    monkeypatch.chdir(tmp_path)
    names, printed, ran = {'__name__': path.stem}, '', 0
    for language, block in re.findall(r'```(\w+)\n(.*?)```', path.read_text(), re.DOTALL):
        if language == 'python': printed, ran = execute(block, names, path.name), ran + 1
        elif language == 'bash': command(block)
        else: assert lines(printed) == lines(block)
    assert ran >= 2


REFUSALS = (AssertionError, AttributeError, TypeError, ValueError)   # of a `...` left as it is


def is_blank(source): return 'eval: false' in notebooks.directives(source)


@pytest.mark.parametrize('path', EXERCISES, ids=lambda path: path.stem)
def test_exercise_solutions_are_hidden(path):
    code = cells(path, 'code')
    blanks = [i for i, cell in enumerate(code) if is_blank(''.join(cell['source']))]
    assert len(blanks) >= 5
    for solution in (code[i + 1] for i in blanks):
        assert 'hide' in notebooks.directives(''.join(solution['source'])), 'one follows each blank'
        assert solution['metadata'] == {'jupyter': {'source_hidden': True}}, 'folded in Jupyter'
    assert all('A solution' not in cell['source'] for cell in pages.page(path)['cells'])


@pytest.mark.parametrize('path', EXERCISES, ids=lambda path: path.stem)
def test_exercise_checks_refuse_a_blank(path):
    "Whoever leaves a blank as it is is told so by the check below it."
    seen = [s for s in sources(path, 'code') if 'echo: false' not in notebooks.directives(s)]
    blanks, names = [i for i, source in enumerate(seen) if is_blank(source)], {}
    for i, source in enumerate(seen):
        if i not in blanks:
            execute(source, names, path.name)
            continue
        left, until = dict(names), next((j for j in blanks if j > i), len(seen))
        with pytest.raises(REFUSALS):
            for each in seen[i:until]: execute(each, left, path.name)
