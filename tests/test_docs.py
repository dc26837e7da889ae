"""What can be said about the documentation without building it.

Its order, pages, links, glossary, how-tos and exercises; `python docs/build.py` builds and checks
the rest.
"""
import ast
import base64
import contextlib
import dataclasses
import functools
import importlib.util
import io
import itertools
import json
import re
import shlex
import sys
from configparser import ConfigParser

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.figure import Figure

from thorough import first_of
import notebooks
import pages
import pictures
from transformer_perf import Assumptions, Model, Parallel, System, estimate, plots, search
from transformer_perf.cli import COMMANDS, main
from transformer_perf.estimates import OPTIMIZERS, RECIPES
from transformer_perf.interop import FORMATS
from transformer_perf.modules import STRATEGIES, model_figures
from transformer_perf.schedules import SCHEDULES

DOCS = notebooks.ROOT / 'docs'
TEXTS = sorted(DOCS.glob('*.md'))
HOWTOS = [path for path in TEXTS if path.name.startswith('howto_')]
EXERCISES = [path for path in notebooks.NOTEBOOKS if '_exercise_' in path.name]
STEMS = [path.stem for path in notebooks.NOTEBOOKS]


def cells(path, kind): return [c for c in notebooks.cells_of(path) if c['cell_type'] == kind]
def sources(path, kind): return [''.join(cell['source']) for cell in cells(path, kind)]
def listed(stems): return [page for _, found in pages.contents(stems) for page in found]
def has_number(page): return bool(re.match(r'\d\d[a-z]?_', page))


# chapters

MOST_READ = 40   # cells of a chapter that stand open
FOLDED = {'export', 'exporti', 'hide', 'echo: false', 'code-fold: true'}


CHAPTERS = [stem for caption, found in pages.contents(STEMS) for stem in found
            if caption in dict(pages.COURSE) and '_exercise_' not in stem]
TOLD = CHAPTERS[:CHAPTERS.index('70_plan_a_run') + 1]   # from one question to the next


@pytest.mark.parametrize('stem', CHAPTERS)
def test_a_chapter_is_read_in_one_go(stem):
    path = notebooks.ROOT / 'nbs' / f'{stem}.ipynb'
    hidden = [source for source in sources(path, 'code')
              if FOLDED & {*notebooks.directives(source)} or 'default_exp' in source]
    assert len(notebooks.cells_of(path)) - len(hidden) <= MOST_READ


@pytest.mark.parametrize('stem, following', [*itertools.pairwise(TOLD)], ids=TOLD[:-1])
def test_a_chapter_leads_to_the_next(stem, following):
    "At the end of what is told, in words that are not folded as an answer is."
    *_, last = sources(notebooks.ROOT / 'nbs' / f'{stem}.ipynb', 'markdown')
    assert f']({following}.ipynb)' in last and not last.startswith('**Answer.**')


# order

def test_every_notebook_has_one_place():
    found = listed(STEMS)
    assert len(set(found)) == len(found)
    assert {*STEMS} - {'index'} == {*filter(has_number, found)}
    others = {page for page in found if not has_number(page)}
    assert {path.stem for path in TEXTS} == others - {'api/index'}


def test_order_of_pages():
    known = ['95_cli', '53_validation', '96_paper_names', '32_execution', '00_models', '03_layers']
    found = listed(known)
    assert [page for page in found if has_number(page)] == sorted(known)
    assert found[-1] == 'references' and 'api/index' in found
    with pytest.raises(ValueError, match='other.ipynb has no place'): listed(['other'])


def test_numbers_are_the_reading_order():
    "`ls nbs` is the course, then what is looked up; nbs/README.md and the site follow it."
    listing = pages.reading_order()
    linked = re.findall(r'^\| \[.*\]\((\w+)\.ipynb\)', listing, re.MULTILINE)
    numbered = sorted(filter(has_number, STEMS))
    assert linked == [page for page in listed(STEMS) if has_number(page)] == numbered
    numbers = [stem.partition('_')[0] for stem in numbered]
    assert len({*numbers}) == len(numbers)
    for before, after in itertools.pairwise(numbers):   # no gaps but between parts
        step = int(after[:2]) - int(before[:2])   # 91a and 91b follow 91
        assert step == (len(after) == 2) or after.endswith('0'), f'no gap after {before}: {after}'


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


def is_picture(output): return any(kind.startswith('image/') for kind in output.get('data', {}))


def test_a_picture_has_a_caption_and_words(tmp_path):
    told = ('#| fig-cap: What it\n#| fig-cap: shows: all.\n#| fig-alt: A line.\n'
            '#| fig-class: narrow\nx.plot()')
    _, drawn = page_of(tmp_path, code(told))['cells']
    assert drawn['source'] == 'x.plot()'
    assert drawn['metadata']['mystnb'] == {
        'figure': {'caption': 'What it shows: all.'},
        'image': {'alt': 'A line.', 'classes': 'narrow'}}


@pytest.mark.parametrize('path', notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_every_picture_has_a_caption_and_words(path):
    for cell in notebooks.cells_of(path):
        text = ''.join(cell['source'])
        if cell['cell_type'] == 'markdown': assert '![](' not in text, cell['id']
        if not any(map(is_picture, cell.get('outputs', []))): continue
        words = notebooks.directives(text)
        caption, alt = (pages.told(words, name) for name in ('fig-cap', 'fig-alt'))
        assert 10 < len(caption) < 400 and 20 < len(alt) < 400 and caption != alt, cell['id']


WIDEST = 570   # CSS pixels that a phone, with 390, makes smaller and still shows legibly
WIDE = {'75_drawing', '77_layer_panel', '78_search_panel', '79_chart_panels', '80_panels'}
# the panels of an application


def ink_of(figure):
    "The pixels of a picture that are not white, two for each of a screen."
    file = io.BytesIO()
    figure.savefig(file, dpi=2 * figure.dpi)
    return pictures.ink_of(file)


@pytest.mark.parametrize('panels', first_of(1, [2, 1, 3]))
def test_panels_are_told_apart(panels):
    "A panel with its labels, a map with its colours, and a legend that stands apart."
    table = pd.DataFrame([(f'panel {i}', f'line {j}', n, 1 + j + n) for i in range(panels)
                          for j in range(3) for n in (8, 64, 512)],
                         columns=['model', 'system', 'n_gpus', 'ms'])
    curves = plots.against_gpus(table, 'ms', 'time (ms)')
    ink = ink_of(curves)
    found = pictures.windows(ink, 2)
    assert len(found) == panels + 1
    assert [a for a, *_ in found[1:]] == [b for _, b, *_ in found[:-1]]
    assert sum(ink[top:bottom, a:b].sum() for a, b, top, bottom in found) == ink.sum()
    sides = [ax.get_position().x0 * ink.shape[1] for ax in curves.axes]
    assert all(a < side < b for side, (a, b, *_) in zip(sides, found))
    table['size'] = table.system.str[-1].astype(int) + 1
    drawn = plots.heat_map(table, 'n_gpus', 'size', 'ms', '', '', 'ms', panels='model')
    assert len(pictures.windows(ink_of(drawn), 2)) == panels + 1


def test_a_list_with_long_names_is_one_panel():
    figure = Figure(figsize=(7, 4), layout='constrained')
    figure.subplots().barh([f'a run with a long name, {i}' for i in range(9)], range(9))
    assert len(pictures.windows(ink_of(figure), 2)) == 1


def test_a_page_shows_a_picture_whole_and_in_parts(tmp_path):
    figure = Figure(figsize=(8, 3), layout='constrained')
    for ax in figure.subplots(1, 2): ax.plot([1, 2])
    (tmp_path / '_images').mkdir()
    figure.savefig(tmp_path / '_images' / 'a1.png', dpi=160)
    image = '<img alt="Lines." height="240" src="_images/a1.png" width="640" />'
    narrow = image.replace('height', 'class="narrow" height')
    page = pictures.stacked(f'<p>{image}{narrow}</p>', tmp_path)
    assert page.startswith('<p><img class="whole" alt="Lines."') and page.endswith(f'{narrow}</p>')
    assert page.count('<span style') == page.count('url(_images/a1.png)') == 2
    assert '<span class="parts" role="img" aria-label="Lines.">' in page


@pytest.mark.parametrize('path', notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_phone_has_room_for_every_picture(path):
    for cell in notebooks.cells_of(path):
        for output in filter(is_picture, cell.get('outputs', [])):
            if path.stem in WIDE or 'image/png' not in output['data']: continue
            shown = output['metadata']['image/png']['width']
            ink = pictures.ink_of(io.BytesIO(base64.b64decode(output['data']['image/png'])))
            whole = pages.told(notebooks.directives(''.join(cell['source'])), 'fig-class')
            parts = [(0, ink.shape[1])] if whole else pictures.parts_of(ink, ink.shape[1] / shown)
            widest = max(b - a for a, b in parts) * shown / ink.shape[1]
            assert widest <= WIDEST, f'{cell["id"]}: {widest:.0f} pixels'


def test_plumbing_and_answers_are_folded(tmp_path):
    folds = {'import numpy as np\nfrom x import y': True, 'def check_n(n):\n    return n': True,
             'import numpy as np\nx = 1': False, 'def check_n(n): return n\ncheck_n(1)': False,
             '!transformer-perf search': False}
    answer = {'cell_type': 'markdown', 'id': 'm', 'metadata': {}, 'source': '**Answer.** Two.'}
    question = answer | {'source': '**Question.** How many?\n\n**Answer** it.'}
    cells = page_of(tmp_path, *map(code, folds), answer, question)['cells'][1:]
    assert [cell['metadata']['tags'] == ['hide-input'] for cell in cells[:-2]] == [*folds.values()]
    assert cells[-2]['source'] == '<details><summary>Answer</summary>\n\nTwo.\n\n</details>'
    assert cells[-1]['source'] == question['source']


def test_what_is_closed_in_a_notebook_is_closed_on_its_page(tmp_path):
    closed = code('#| export\nx = 1', metadata={'jupyter': {'source_hidden': True}})
    cell = page_of(tmp_path, closed)['cells'][1]
    assert cell['metadata']['tags'] == ['hide-input'] and cell['source'] == 'x = 1'


def test_the_first_page_opens_with_a_picture():
    cells = pages.page(notebooks.ROOT / 'nbs' / 'index.ipynb')['cells']
    assert 'data-hero' in cells[1]['source'] and '{toctree}' in cells[-1]['source']


def test_a_page_leads_to_every_module_that_it_adds_to():
    page = pages.page(notebooks.ROOT / 'nbs' / '96_paper_names.ipynb')
    links = page['cells'][0]['source']
    for module in ('modules', 'execution'): assert f'(api/{module}.md)' in links


def test_paragraphs_are_folded_and_tables_are_not():
    assert max(map(len, pages.folded('word ' * 100).split('\n'))) <= 120
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


@pytest.mark.parametrize('path', notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_page_leads_only_within_the_site(path):
    "The site has pages and notebooks in one folder, the repository in two."
    written = '\n'.join(cell['source'] for cell in pages.page(path)['cells']
                        if cell['cell_type'] == 'markdown')
    assert '](..' not in written


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

api = functools.cache(pages.api)


def test_api_has_every_public_function():
    for name, text in pages.modules().items():
        for node in pages.tree_of(text).body:
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)): continue
            there = re.search(rf'\}} {node.name}\b', api()[f'api/{name}.md'])
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
def test_api_says(module, line): assert line in api()[f'api/{module}.md']


def test_api_has_every_field():
    text, columns = api()['api/iteration.md'], dataclasses.fields(Parallel)
    table = text.partition('} Parallel(')[2].partition('| --- ')[2].partition('\n\n')[0]
    assert re.findall(r'^\| `(\w+)`', table, re.MULTILINE) == [field.name for field in columns]


def test_api_has_every_command_and_option():
    text = api()['api/cli.md']
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
    one = estimate('gpt3', Parallel(tp=8), 'H200', global_batch=64, assumptions='corrected')
    kinds = (Model, System, Parallel, Assumptions)
    wanted = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    found = search('gpt3', 1024, 'H200', global_batch=4096, assumptions='corrected')
    wanted |= {*found.columns, *one.layers.columns, *model_figures('gpt3')}
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


# opening a notebook

BRINGS = {'jupyterlab': {'IPython', 'jupyter_server', 'nbformat', 'tornado', 'traitlets', 'zmq'},
          'pyyaml': {'yaml'}}   # what is imported by another name than it is installed by


def test_the_extra_for_notebooks_has_what_they_import():
    settings = ConfigParser()
    settings.read(notebooks.ROOT / 'settings.ini', encoding='utf-8')
    wanted = (settings['DEFAULT'][key] for key in ('requirements', 'notebooks_requirements'))
    names = re.findall(r'(?:^|\s)([\w-]+)', ' '.join(wanted))
    measuring = 'torch'   # only where a machine is measured: the extra [measure]
    known = {*names, measuring, 'transformer_perf', 'pages', *sys.stdlib_module_names}.union(
        *(BRINGS.get(name, ()) for name in names))
    text = '\n'.join(source for path in notebooks.NOTEBOOKS for source in sources(path, 'code'))
    imports = r'^ *(?:from|import) (\w+)(?:\.\w+)*(?: import | as |$)'
    found = set(re.findall(imports, text, re.MULTILINE))
    assert {'fastcore', 'matplotlib', 'pyarrow'} <= found
    assert found <= known, f'settings.ini, notebooks_requirements: lacks {found - known}'
    folder = notebooks.ROOT / 'binder'
    assert '\n-e .[notebooks]\n' in (folder / 'requirements.txt').read_text()
    runtime = (folder / 'runtime.txt').read_text().strip().removeprefix('python-')
    least = settings['DEFAULT']['min_python']
    assert [*map(int, runtime.split('.'))] >= [*map(int, least.split('.'))]


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
    "What a how-to adds to a table of ours is taken away again."
    tables = (STRATEGIES, SCHEDULES, RECIPES, OPTIMIZERS, FORMATS)
    before = [(table, dict(table)) for table in tables]
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
    plt.close('all')   # a picture that stays open would be shown by whoever comes next
    assert ran >= 2


WHERE = re.compile(r'`(\w+)` (?:of|in) (?:`nbs/(\w+)\.ipynb`|\[[^]]+\]\((\w+)\.ipynb\))')


def test_what_a_howto_names_is_where_it_says():
    "`OPTIMIZERS` in `nbs/82g_estimates.ipynb`: a name is defined in the notebook that is given."
    said = [(path.stem, name, one or other) for path in HOWTOS
            for name, one, other in WHERE.findall(path.read_text())]
    assert len(said) >= 8
    for howto, name, stem in said:
        code = ''.join(sources(notebooks.ROOT / 'nbs' / f'{stem}.ipynb', 'code'))
        defined = rf'(?m)^ *(?:(?:def|class) {name}\b|{name}(?:: .*)? = )'
        assert re.search(defined, code), f'{howto}: no {name} in {stem}'


OF_OTHERS = {   # names of other programs
    'num_floating_point_operations', 'generate_llm_fqn_per_model_part', 'no_sync',
    'pipeline_parallel_first_stage_less_layers'}


def test_names_in_prose_are_in_code():
    "A function or a field that a notebook's text names was not renamed since; or it is another's."
    named = {name for stem in STEMS
             for text in sources(notebooks.ROOT / 'nbs' / f'{stem}.ipynb', 'markdown')
             for name in re.findall(r'`([a-z]+(?:_[a-z0-9]+)+)`', text)}
    code = [''.join(sources(path, 'code')) for path in notebooks.NOTEBOOKS]
    code += [path.read_text() for path in (notebooks.ROOT / 'nbs' / 'data').glob('*.json')]
    known = {*re.findall(r'\w+', ''.join(code))}
    assert named - known == OF_OTHERS


def is_blank(source): return 'eval: false' in notebooks.directives(source)


EACH_EXERCISE = pytest.mark.parametrize('path', EXERCISES, ids=lambda path: path.stem)


@EACH_EXERCISE
def test_exercise_ships_blank(path):
    """A picture of the question, and no output from the first blank on, which gives nothing away.

    Solutions are a last section, folded wherever it is read."""
    found = notebooks.cells_of(path)
    blank = next(i for i, cell in enumerate(found) if is_blank(''.join(cell['source'])))
    assert not [cell['id'] for cell in found[blank:] if cell.get('outputs')]
    opening = [cell for cell in found[:blank] if any(map(is_picture, cell.get('outputs', [])))]
    assert len(opening) == 1
    start = [''.join(cell['source']) for cell in found].index('## Solutions')
    assert found[start]['metadata'] == {'jp-MarkdownHeadingCollapsed': True}, 'in JupyterLab'
    for cell in found[start + 1:]: assert cell['metadata'] == {'jupyter': {'source_hidden': True}}
    for cell in pages.page(path)['cells'][start + 1 - len(found):]:
        assert cell['metadata']['tags'] == ['hide-input'], 'on the site'
