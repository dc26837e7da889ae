"""The pages of the documentation site, as text: their order, the notebooks as read, and the API.

Nothing here needs Sphinx; `python docs/build.py` does the rest.
"""
import ast
import copy
import functools
import inspect
import io
import json
import re
import textwrap
import tokenize
from pathlib import Path
from typing import NamedTuple

from cells import NOTEBOOKS, ROOT, cells_of, directives, without_directives
from play import hero

PACKAGE = ROOT / 'transformer_perf'

# The order of nbs/README.md and of the site, its sidebar and its links: a caption, and its pages.
# A pattern (it begins with a digit) stands for the notebooks whose names begin so; anything else is
# a page of docs/ or the API. A notebook's number is its place: the tens are the part it is of. A
# letter may follow (91a): it belongs to the number before it.
PLAY = [('Play', ['run', 'play'])]   # first: what one can do before reading
COURSE = [
    ('One layer on one GPU', ['0']),
    ('Many GPUs', ['1']),
    ('Long sequences, experts, precision', ['2']),
    ('Schedules and the search', ['3']),
    ('The optimum', ['4']),
    ('What real stacks add', ['5']),
    ('Claims', ['6']),
    ('Plan a run', ['7[0-4]']),
]
REFERENCE = [
    ('Panels', ['7[5-9]', '80']),
    ('Models, parameters, pictures', ['8[1-6]']),
    ('How iterations are priced and searched', ['8[78]']),
    ('Runs and files', ['89', '9[0-4]']),
    ('Command line and API', ['9[5-9]', 'api/index']),
    ('How to', ['howto_add_a_system', 'howto_add_an_operation', 'howto_add_a_block',
                'howto_add_an_optimizer', 'howto_add_a_strategy', 'howto_add_a_schedule',
                'howto_add_a_precision', 'howto_add_a_software', 'howto_add_a_job_format',
                'howto_add_a_chapter']),
    ('For teachers', ['teaching']),
    ('Words and sources', ['glossary', 'references']),
]
ORDER = PLAY + COURSE + REFERENCE


def is_pattern(entry):
    "Whether an entry of the order stands for notebooks, not for a page of another name."
    return entry[0].isdigit()


def places_of(entries, left):
    "The pages that entries stand for; the notebooks among them are taken from those left."
    found = []
    for entry in entries:
        own = sorted(s for s in left if re.match(entry, s)) if is_pattern(entry) else [entry]
        left.difference_update(own)
        found += own
    return found


def contents(stems):  # list of (caption, pages)
    "The order of the site, given the notebooks that exist; one that it does not know is an error."
    left = {*stems} - {'index'}
    found = [(caption, places_of(entries, left)) for caption, entries in ORDER]
    for stem in sorted(left):
        raise ValueError(f'{stem}.ipynb has no place in the order of the site (COURSE or REFERENCE '
                         'in tools/pages.py)')
    return [(caption, pages) for caption, pages in found if pages]


def toctree(entries, caption='', options=()):
    "A table of contents for Sphinx."
    lines = [f':{option}:' for option in options]
    if caption: lines.insert(0, f':caption: {caption}')
    return '\n'.join(['```{toctree}', *lines, '', *entries, '```'])


def opening(stem):  # (title, the line under it)
    "How a notebook opens."
    cells = cells_of(ROOT / 'nbs' / f'{stem}.ipynb')
    title = next(cell for cell in cells if cell['cell_type'] == 'markdown')
    first = ''.join(title['source']).splitlines()
    return [line.lstrip('#> ') for line in first if line.strip()][:2]


def numbered(stem):
    "A page by its title; a notebook with the number that other pages call it by."
    number = re.match(r'\d\d[a-z]?(?=_)', stem)
    return f'{number[0]} {opening(stem)[0]}' if number else stem


def title_of(stem):
    "A page in the table of contents."
    return stem if numbered(stem) == stem else f'{numbered(stem)} <{stem}>'


ABOVE_THE_ORDER = '''<!-- made by tools/notebooks.py -->

# Reading order

The course runs from a single layer on a single GPU to the plan of a run; its exercises are inside
it. What comes after it is for looking things up. Each chapter opens with its question; a third
column names the module that it defines, or part of it:
'''


def defined_by():  # dict: stem of a notebook -> list of modules
    "Which modules a notebook defines, or parts of them."
    found = {}
    for name, text in rooms().items():
        if is_door(text): continue
        for stem in notebooks_of(text): found.setdefault(stem, []).append(f'`{name}`')
    return found


def reading_order():
    "The notebooks in their order, as nbs/README.md: the course, then what is looked up."
    known = dict(contents([path.stem for path in NOTEBOOKS]))
    lines, defined = [ABOVE_THE_ORDER], defined_by()
    for part, entries in (('The course', COURSE), ('To look things up', REFERENCE)):
        lines += [f'## {part}', '']
        for caption, _ in entries:
            stems = [*filter(is_pattern, known.get(caption, ()))]
            if not stems: continue
            rows = [(f'[{numbered(stem)}]({stem}.ipynb)', opening(stem)[1]) for stem in stems]
            if {*stems} & {*defined}:
                rows = [(*row, ', '.join(defined.get(stem, ())))
                        for stem, row in zip(stems, rows)]
            empty = [''] * (len(rows[0]) - 1)
            table = [(caption, *empty), ['---'] * len(rows[0]), *rows]
            lines += [*(f'| {" | ".join(row)} |' for row in table), '']
    return '\n'.join(lines).rstrip() + '\n'


def toctrees():
    "The tables of contents that the first page holds."
    captioned = [('', ['Start here <self>']), *contents([path.stem for path in NOTEBOOKS])]
    trees = [toctree(map(title_of, pages), caption, ['hidden']) for caption, pages in captioned]
    return '\n\n'.join(trees)


# notebooks as they are read

TAGS = {  # directive -> tag that MyST-NB knows
    'echo: false': 'remove-input',     # only what a cell shows is read
    'code-fold: true': 'hide-input',   # code unfolds where it is clicked on
}


def folded(line):
    "A line of printed text, broken if it is a paragraph; tables stay as wide as they are."
    return line if '  ' in line or '─' in line else textwrap.fill(line, 120)


def is_plumbing(source):
    "Whether code only imports, or only checks what it is given: nothing to read at first."
    try: body = ast.parse(source).body
    except SyntaxError: return False   # a command of the shell
    checks = lambda node: isinstance(node, ast.FunctionDef) and node.name.startswith('check')
    return bool(body) and (all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in body)
                           or all(map(checks, body)))


def answer_folded(text):
    "Markdown as it is read: what begins with **Answer** unfolds where it is clicked on."
    found = re.fullmatch(r'\*\*(Answers?)[.:]?\*\*[.:]?\s*(.+)', text.strip(), re.DOTALL)
    if not found: return text
    return f'<details><summary>{found[1]}</summary>\n\n{found[2]}\n\n</details>'


def tags_of(cell, words, source):  # list of str
    "The tags of a code cell: those that it has, and what its directives and its code ask for."
    asked = [TAGS[word] for word in words if word in TAGS]
    closed = cell['metadata'].get('jupyter', {}).get('source_hidden', False)   # in JupyterLab
    if not asked and (closed or is_plumbing(source)): asked = ['hide-input']
    return [*cell['metadata'].get('tags', []), *asked]


def told(words, name):  # str
    "What the directives `fig-cap: ...`, `fig-alt: ...` or another say, line after line."
    return ' '.join(word.partition(': ')[2] for word in words if word.startswith(f'{name}: '))


def figure_of(words):  # dict: metadata that MyST-NB knows
    "The caption of a cell's picture, its text for who cannot see it, and a class (site.css)."
    caption, alt, looks = (told(words, f'fig-{name}') for name in ('cap', 'alt', 'class'))
    if not caption: return {}
    image = {'alt': alt} | ({'classes': looks} if looks else {})
    return {'mystnb': {'figure': {'caption': caption}, 'image': image}}


def shown_cell(cell):
    "A cell as it is read, or None where it is hidden."
    text = ''.join(cell['source'])
    if cell['cell_type'] == 'raw': return None   # for nbdev
    if cell['cell_type'] != 'code':
        beside = text.replace('](../docs/', '](')   # pages and notebooks share the site's folder
        return {**cell, 'source': answer_folded(beside)}
    words, source = directives(text), without_directives(text)
    if 'hide' in words or any(word.startswith('default_exp') for word in words): return None
    for output in cell['outputs']:
        if output['output_type'] != 'stream': continue
        output['text'] = '\n'.join(map(folded, ''.join(output['text']).split('\n')))
    metadata = {**cell['metadata'], 'tags': tags_of(cell, words, source), **figure_of(words)}
    return {**cell, 'metadata': metadata, 'source': source}


def modules_of(cells):  # (module or None, others)
    "The module that a notebook defines, if it does, and those that it adds to."
    words = [word.split() for cell in cells for word in directives(''.join(cell['source']))]
    named = lambda directive: [word[1] for word in words if word[0] == directive and word[1:]]
    return next(iter(named('default_exp')), None), list(dict.fromkeys(named('export')))


def source_links(stem, module, others):
    "Where a page's notebook is, and its modules."
    source = f'_modules/transformer_perf/{(module or "").replace(".", "/")}.html'
    links = [f'<a href="_static/notebooks/{stem}.ipynb" download>the notebook</a>']
    if module:
        links += [f'<a href="{source}">the module that it defines</a>',
                  f'[its functions](api/{module}.md)']
    links += [f'[functions of {name}](api/{name}.md)' for name in others]
    return f'\n\n{{.source-links}}\nSource: {", ".join(links)}.'


DOORS = [   # name, what is behind it, page
    ('Learn', 'A course in small chapters, from one layer on one GPU to the plan of a run.',
     '00_models'),
    ('Play', 'Build your run on one page: move a control, see its time and memory.', 'run'),
    ('Use', 'The same answers in a terminal, in Python, and for your own job.', '95_cli'),
    ('Check', 'Predicted against measured runs: how far to trust a number.', '53_validation'),
]
SHORT = [   # a quarter of an hour: what to do, page
    ('build a run', 'run'), ('watch messages and a bubble', 'play'),
    ('cut a pipeline into pieces', '14_exercise_interleaving'),
    ('plan weeks of it', '70_plan_a_run')]
SCRIPTS = ('play-data', 'formulas', 'play')


def first_screen(hero):  # str; hero: the figures that tools/play.py finds
    "What the first page shows before its text: a picture that moves, a result, four doors."
    doors = '\n'.join(f'<a href="{to}.html"><b>{name}</b> {words}</a>' for name, words, to in DOORS)
    steps = ', '.join(f'<a href="{to}.html">{words}</a>' for words, to in SHORT)
    scripts = ''.join(f'<script src="_static/{name}.js"></script>' for name in SCRIPTS)
    result = (f'GPT-3 on {hero["n_gpus"]} H200 GPUs, as {hero["p"]} pipeline stages: '
              f'{hero["iteration_s"]:.2f} s an iteration, {hero["idle"]:.0%} of it waiting. '
              f'The best of {hero["ways"]} ways takes {hero["best_s"]:.2f} s.')
    return (f'<div class="hero">\n<div data-hero></div>\n<p class="result">{result}</p>\n'
            f'<p class="short">In a quarter of an hour: {steps}.</p>\n'
            f'<nav class="doors">\n{doors}\n</nav>\n</div>\n{scripts}')


def page(path):  # dict: the notebook to show
    "A notebook as it is read: outputs, no hidden cells, no directives, links to its source."
    nb, stem = json.loads(Path(path).read_text(encoding='utf-8')), Path(path).stem
    cells = [cell for cell in map(shown_cell, nb['cells']) if cell]
    cells[0]['source'] += source_links(stem, *modules_of(nb['cells']))
    if stem == 'index':
        written = lambda name, source: {'cell_type': 'markdown', 'id': name, 'metadata': {},
                                        'source': source}
        cells.insert(1, written('first-screen', first_screen(hero())))
        cells.append(written('contents', toctrees()))
    highlighted = {'name': 'python', 'pygments_lexer': 'ipython3'}   # `!command` too
    return {**nb, 'cells': cells, 'metadata': {**nb['metadata'], 'language_info': highlighted}}


# the API, from the modules' own text: signatures, and the comment beside each parameter

class Row(NamedTuple):
    "A line of a table of parameters, fields or options."
    names: list
    default: str
    meaning: str


@functools.cache
def tree_of(text): return ast.parse(text)   # of a module, asked for by each page; never changed


@functools.cache
def comments(text):  # dict: line number -> comment
    "The comments of a module."
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0]: token.string.lstrip('# ') for token in tokens
            if token.type == tokenize.COMMENT}


def arguments(node):  # list of (ast.arg, default or None)
    "What a function takes."
    a = node.args
    plain = a.posonlyargs + a.args
    defaults = [None] * (len(plain) - len(a.defaults)) + a.defaults + a.kw_defaults
    return list(zip(plain + a.kwonlyargs, defaults))


def last_line(arg, default): return (default or arg).end_lineno


def parameters(node, notes):  # list of Row
    "What a function takes, a row for each comment: parameters that share one share a row."
    rows, before = [], None
    for arg, default in arguments(node):
        line = last_line(arg, default)
        note = notes.get(line, '') if line != node.lineno else ''
        together = line == before and note and not rows[-1].default and default is None
        if together: rows[-1].names.append(arg.arg)
        else: rows.append(Row([arg.arg], ast.unparse(default) if default else '', note))
        before = line
    return rows


def returned(node, notes):
    "The comment on what a function returns: after its parameters, before its body."
    taken = [last_line(*pair) for pair in arguments(node)]
    for line in range(node.body[0].lineno - 1, max(taken, default=node.lineno) - 1, -1):
        if line in notes and (line not in taken or line == node.lineno): return notes[line]
    return ''


def fields(node, notes):  # list of Row
    "The fields of a dataclass or a NamedTuple, with a comment or without."
    rows = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    return [field(item.target.id, item.value, notes.get(item.end_lineno, '')) for item in rows]


def field(name, value, note):  # Row
    "One field; a figure (parameters.figure) says by itself what it means and what bounds it."
    is_figure = isinstance(value, ast.Call) and ast.unparse(value.func) == 'figure'
    if not is_figure: return Row([name], ast.unparse(value) if value else '', note)
    default, low, high = map(ast.unparse, value.args[:3])
    meaning, why = map(ast.literal_eval, value.args[3:])
    return Row([name], default, f'{meaning}; from {low} to {high} ({why})')


def escaped(text):
    "Plain text in Markdown, with the names of options as code."
    for mark in '\\|$*': text = text.replace(mark, '\\' + mark)
    return re.sub(r'(?<!\S)--[\w-]+', r'`\g<0>`', text.replace('<', '&lt;'))


def as_table(rows, what):  # list of lines
    "Rows in Markdown, where they say more than names."
    if not any(row.default or row.meaning for row in rows): return []
    names = lambda row: ', '.join(f'`{name}`' for name in row.names)
    default = lambda row: f'`{row.default}`'.replace('|', '\\|') if row.default else ''
    lines = [(what, 'default', 'meaning'), ('---',) * 3,
             *((names(row), default(row), escaped(row.meaning)) for row in rows)]
    if not any(row.default for row in rows): lines = [(line[0], line[2]) for line in lines]
    return [f'| {" | ".join(line)} |' for line in lines] + ['']


def signature(node):
    "The parameters of a function as they are called: without annotations."
    a = copy.deepcopy(node.args)
    every = a.posonlyargs + a.args + a.kwonlyargs + [x for x in (a.vararg, a.kwarg) if x]
    for arg in every: arg.annotation = None
    return f'({ast.unparse(a)})'


def summary_of(node):
    "The first line of a docstring."
    return (ast.get_docstring(node) or '').partition('\n')[0]


def block(fence, kind, head, lines):
    "A directive of Sphinx's Python domain."
    return [f'{fence}{{py:{kind}}} {head}', '', *lines, fence, '']


def function_page(node, notes, kind='function'):  # list of lines
    "One function, method or property."
    rows = [row for row in parameters(node, notes) if row.meaning]   # the signature has them all
    comment = returned(node, notes)
    lines = [summary_of(node), '', *as_table(rows, 'parameter')]
    if comment: lines += [f'**Returns:** {comment}', '']
    return block('::::', kind, node.name + ('' if kind == 'property' else signature(node)), lines)


def kind_of(method):
    "What Sphinx calls a method."
    decorators = [ast.unparse(d) for d in method.decorator_list]
    return next((kind for kind in ('property', 'classmethod') if kind in decorators), 'method')


def as_called(method):
    "A method without the object or the class that it belongs to."
    method = copy.copy(method)
    method.args = copy.deepcopy(method.args)
    del method.args.args[0]
    return method


@functools.cache
def rows_of_classes():  # dict: class -> its own fields, as rows
    "The fields that each class of the package declares."
    found = {}
    for text in modules().values():
        notes = comments(text)
        found |= {node.name: fields(node, notes) for node in tree_of(text).body
                  if isinstance(node, ast.ClassDef)}
    return found | {'ChoicesIfSaid': [row._replace(default='None') for row in found['Choices']]}


def all_fields(node, notes):  # list of Row
    "The fields of a class after those of the classes it is made from, as a dataclass has them."
    bases = [ast.unparse(base) for base in reversed(node.bases)]
    rows = [row for base in bases for row in rows_of_classes().get(base, [])]
    return list({row.names[0]: row for row in [*rows, *fields(node, notes)]}.values())


def class_page(node, notes):  # list of lines
    "One class with its fields and its public methods."
    rows = all_fields(node, notes)
    taken = ', '.join(row.names[0] for row in rows)
    lines = [summary_of(node), '', *as_table(rows, 'field')]
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and not item.name.startswith('_'):
            lines += function_page(as_called(item), notes, kind_of(item))
    return block(':::::', 'class', node.name + (f'({taken})' if rows else ''), lines)


# the command line, from its own table of commands

def options_of(command):  # list of Row
    "The options of a command as `--help` lists them."
    shown = lambda value: ','.join(value) if isinstance(value, list) else str(value)
    silent = (None, False, '', [])
    return [Row(list(o.flags), '' if o.default in silent else shown(o.default), o.help)
            for o in command.options]


def explanation(text):  # list of lines
    "The docstring of a command: paragraphs, and its example as it is typed."
    paragraphs, _, example = inspect.cleandoc(text).partition('\n\nExample')
    lines = escaped(paragraphs).splitlines() + ['']
    if not example: return lines
    label, _, typed = example.partition(':')
    typed = '\n    '.join(line.strip() for line in typed.strip().splitlines())
    return [*lines, f'Example{label}:', '', '```bash', typed, '```', '']


def commands_page():  # list of lines
    "Every command with its options."
    from transformer_perf.cli import COMMANDS
    lines = []
    for name, command in COMMANDS.items():
        lines += [f'## transformer-perf {name}', '', *explanation(command.run.__doc__),
                  *as_table(options_of(command), 'option')]
    return [*lines, '## In Python', '']


# all pages of the API

def notebooks_of(text):  # list of names
    "The notebooks that a module is made from, its own first."
    own = re.findall(r'File to edit: [./]+/nbs/(\w+)\.ipynb', text)
    more = re.findall(r'^# %% [./]+/nbs/(\w+)\.ipynb', text, re.MULTILINE)
    return list(dict.fromkeys(own + more))


def module_page(module, text):
    "The page of one module."
    tree, notes = tree_of(text), comments(text)
    explained = ', '.join(f'[{name}](../{name}.ipynb)' for name in notebooks_of(text))
    lines = [f'# {module}', '', f'> {ast.get_docstring(tree)}', '', '{.source-links}',
             f'Explained in {explained}.', '', f'```{{py:module}} transformer_perf.{module}',
             '```', '', *(commands_page() if module == 'cli' else [])]
    for node in tree.body:
        if isinstance(node, ast.ClassDef): make = class_page
        elif isinstance(node, ast.FunctionDef): make = function_page
        else: continue
        if not node.name.startswith('_'): lines += make(node, notes)
    return '\n'.join(lines)


def rooms():  # dict: name below the package, with dots -> text
    "Every module; a wing's name is that of its door, `__init__.py`."
    paths = [path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob('*.py'))
             if path.name not in ('_modidx.py', '__main__.py')
             and path != PACKAGE / '__init__.py']
    named = lambda path: path.parent if path.name == '__init__.py' else path.with_suffix('')
    return {'.'.join(named(path).parts): (PACKAGE / path).read_text(encoding='utf-8')
            for path in paths}


def is_door(text):
    "Whether a module is written by hand, to hand on what stands in the rooms of its wing."
    return 'File to edit' not in text


def modules():  # dict: name -> text
    "The modules of the core in the order of their notebooks, then each wing behind its door."
    known, wing = rooms(), lambda name: name.partition('.')[0]
    wings = {wing(name) for name in known if '.' in name}
    place = lambda name: (wing(name) if wing(name) in wings else '', notebooks_of(known[name]))
    return {name: known[name] for name in sorted(known, key=place)}


def door_page(door, text):
    "The page of a wing: what its door hands on, and from which room."
    names = sorted((alias.name, node.module) for node in tree_of(text).body
                   if isinstance(node, ast.ImportFrom) for alias in node.names)
    title = [f'# {door}', '', f'> {ast.get_docstring(tree_of(text))}', '',
             f'`from transformer_perf.{door} import ...`:', '']
    listed = [f'- {{py:obj}}`{name} <transformer_perf.{door}.{room}.{name}>`, of '
              f'[{door}.{room}]({door}.{room}.md)' for name, room in names]
    return '\n'.join([*title, *listed, ''])


@functools.cache
def public_names():  # dict: name -> module
    "What `from transformer_perf import ...` offers, and where it lives."
    tree = ast.parse((PACKAGE / '__init__.py').read_text(encoding='utf-8'))
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    return next(ast.literal_eval(node.value) for node in assigned if node.targets[0].id == 'HOMES')


def index_page(texts):
    "The list of all modules."
    face = public_names()
    count = {6: 'six', 7: 'seven', 8: 'eight'}.get(len(face), len(face))
    return '\n'.join([
        '# API', '> What can be called, module by module. Each name leads to its source.', '',
        f'Most work needs {count} names, `from transformer_perf import ...`:', '',
        *(f'- {{py:obj}}`~transformer_perf.{home}.{name}`' for name, home in face.items()), '',
        '| module | what it does |', '| --- | --- |',
        *(f'| [{name}]({name}.md) | {ast.get_docstring(tree_of(text))} |'
          for name, text in texts.items()), '', toctree(texts, options=['hidden'])])


def api():  # dict: path below docs -> text
    "The pages of the API: one for each module, and a list of them."
    texts = modules()
    page = lambda name, text: (door_page if is_door(text) else module_page)(name, text)
    pages = {f'api/{name}.md': page(name, text) for name, text in texts.items()}
    return {**pages, 'api/index.md': index_page(texts)}
