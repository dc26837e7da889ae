"""The pages of the documentation site, as text: their order, the notebooks as read, and the API.

Nothing here needs Sphinx; `python docs/build.py` does the rest.
"""
import ast
import copy
import inspect
import io
import json
import re
import textwrap
import tokenize
from pathlib import Path
from typing import NamedTuple

from notebooks import NOTEBOOKS, ROOT, cells_of, directives, without_directives

PACKAGE = ROOT / 'transformer_perf'

# The order of the site: a caption, and its pages. A pattern stands for the notebooks whose names
# begin so; anything else is a page of docs/ or the API.
ORDER = [
    ('The model', ['0[0-4]b?_|02c_', '01c_', '0(5b?|6)_']),
    ('Studies', ['2\\d_']),
    ("Today's models and layouts", ['3[1-9]_']),
    ('Pictures and panels', ['07b?_']),
    ('Many searches', ['08_']),
    ('Characterization', ['09_', '30_']),
    ('Measured runs', ['10_']),
    ('Command line', ['11_']),
    ('Files of frameworks', ['12_']),
    ('Exercises', ['4\\d_']),
    ('Reference', ['06[bc]_', '90b?_', 'api/index', 'glossary']),
    ('How to', ['howto_add_a_system', 'howto_add_an_operation', 'howto_add_a_strategy',
                'howto_add_a_schedule', 'howto_add_a_precision']),
    ('Sources', ['references']),
]


def places_of(patterns, stems):
    "The pages that patterns stand for."
    found = []
    for pattern in patterns:
        is_name = not pattern.endswith('_')
        found += [pattern] if is_name else sorted(s for s in stems if re.match(pattern, s))
    return found


def contents(stems):  # list of (caption, pages)
    "The order of the site, given the notebooks that exist; one that it does not know is an error."
    found = [(caption, places_of(patterns, stems)) for caption, patterns in ORDER]
    listed = [page for _, pages in found for page in pages]
    for stem in stems:
        if stem != 'index' and listed.count(stem) != 1:
            raise ValueError(f'{stem}.ipynb has {listed.count(stem)} places in the order of the '
                             'site (ORDER in tools/pages.py), not one')
    return [(caption, pages) for caption, pages in found if pages]


def toctree(entries, caption='', options=()):
    "A table of contents for Sphinx."
    lines = [f':caption: {caption}'] * bool(caption) + [f':{option}:' for option in options]
    return '\n'.join(['```{toctree}', *lines, '', *entries, '```'])


def title_of(stem):
    "A page in the table of contents: notebooks with the number that other pages call them by."
    number = re.match(r'(\d\d[a-z]?)_', stem)
    if not number: return stem
    first = ''.join(cells_of(ROOT / 'nbs' / f'{stem}.ipynb')[0]['source'])
    return f'{number[1]} {first.splitlines()[0].removeprefix("# ")} <{stem}>'


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
    return line if '  ' in line or '─' in line else textwrap.fill(line, 88)


def shown_cell(cell):
    "A cell as it is read, or None where it is hidden."
    if cell['cell_type'] != 'code': return {**cell, 'source': ''.join(cell['source'])}
    words = directives(''.join(cell['source']))
    if 'hide' in words or any(word.startswith('default_exp') for word in words): return None
    tags = [*cell['metadata'].get('tags', []), *(TAGS[word] for word in words if word in TAGS)]
    for output in cell['outputs']:
        if output['output_type'] != 'stream': continue
        output['text'] = '\n'.join(map(folded, ''.join(output['text']).split('\n')))
    return {**cell, 'metadata': {**cell['metadata'], 'tags': tags},
            'source': without_directives(''.join(cell['source']))}


def modules_of(cells):  # (module or None, others)
    "The module that a notebook defines, if it does, and those that it adds to."
    words = [word.split() for cell in cells for word in directives(''.join(cell['source']))]
    named = lambda directive: [word[1] for word in words if word[0] == directive and word[1:]]
    return next(iter(named('default_exp')), None), list(dict.fromkeys(named('export')))


def source_links(stem, module, others):
    "Where a page's notebook is, and its modules."
    source = f'_modules/transformer_perf/{module}.html'
    links = [f'<a href="_static/notebooks/{stem}.ipynb" download>the notebook</a>']
    if module:
        links += [f'<a href="{source}">the module that it defines</a>',
                  f'[its functions](api/{module}.md)']
    links += [f'[functions of {name}](api/{name}.md)' for name in others]
    return f'\n\n{{.source-links}}\nSource: {", ".join(links)}.'


def page(path):  # dict: the notebook to show
    "A notebook as it is read: outputs, no hidden cells, no directives, links to its source."
    nb, stem = json.loads(Path(path).read_text(encoding='utf-8')), Path(path).stem
    cells = [cell for cell in map(shown_cell, nb['cells']) if cell]
    cells[0]['source'] += source_links(stem, *modules_of(nb['cells']))
    if stem == 'index':
        cells.append({'cell_type': 'markdown', 'id': 'contents', 'metadata': {},
                      'source': toctrees()})
    highlighted = {'name': 'python', 'pygments_lexer': 'ipython3'}   # `!command` too
    return {**nb, 'cells': cells, 'metadata': {**nb['metadata'], 'language_info': highlighted}}


# the API, from the modules' own text: signatures, and the comment beside each parameter

class Row(NamedTuple):
    "A line of a table of parameters, fields or options."
    names: list
    default: str
    meaning: str


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
    method = copy.deepcopy(method)
    del method.args.args[0]
    return method


def class_page(node, notes):  # list of lines
    "One class with its fields and its public methods."
    rows = fields(node, notes)
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
    own = re.findall(r'File to edit: \.\./nbs/(\w+)\.ipynb', text)
    return list(dict.fromkeys(own + re.findall(r'^# %% \.\./nbs/(\w+)\.ipynb', text, re.MULTILINE)))


def module_page(module, text):
    "The page of one module."
    tree, notes = ast.parse(text), comments(text)
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


def modules():  # dict: name -> text
    "The modules that notebooks define, in the order of the notebooks."
    texts = {path.stem: path.read_text(encoding='utf-8') for path in PACKAGE.glob('*.py')}
    order = sorted((notebooks_of(text)[0], name) for name, text in texts.items()
                   if 'File to edit' in text)
    return {name: texts[name] for _, name in order}


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
        *(f'| [{name}]({name}.md) | {ast.get_docstring(ast.parse(text))} |'
          for name, text in texts.items()), '', toctree(texts, options=['hidden'])])


def api():  # dict: path below docs -> text
    "The pages of the API: one for each module, and a list of them."
    texts = modules()
    pages = {f'api/{name}.md': module_page(name, text) for name, text in texts.items()}
    return {**pages, 'api/index.md': index_page(texts)}
