"""The pages of the documentation site, as text: which there are and in what order, the notebooks as they are read, and the API.

Nothing here needs Sphinx; `python docs/build.py` does the rest.
"""
import ast
import io
import json
import re
import textwrap
import tokenize
from pathlib import Path

from notebooks import NOTEBOOKS, ROOT, directives

# The order of the site: a caption, and its pages. A pattern stands for the notebooks whose names begin so; anything else is a page of docs/ or the API.
ORDER = [
    ('The model in six notebooks', ['0[0-5]_']),
    ('Studies', ['2\\d_']),
    ('Pictures and panels', ['06_', '07_']),
    ('Many searches', ['08_']),
    ('Characterization', ['09_', '3\\d_']),
    ('Measured runs', ['01b_', '04b_', '10_']),
    ('Command line', ['11_']),
    ('Exercises', ['4\\d_']),
    ('Reference', ['api/index', 'glossary']),
    ('How to', ['howto_add_a_system', 'howto_add_a_layer', 'howto_add_a_strategy']),
    ('Sources', ['references']),
]


def contents(stems):  # list of (caption, pages)
    "The order of the site, given the notebooks that exist; a notebook that it does not know is an error."
    found = []
    for caption, patterns in ORDER:
        pages = []
        for pattern in patterns:
            pages += sorted(stem for stem in stems if re.match(pattern, stem)) if pattern.endswith('_') else [pattern]
        if pages: found.append((caption, pages))
    listed = [page for _, pages in found for page in pages]
    for stem in stems:
        if stem != 'index' and listed.count(stem) != 1: raise ValueError(f'{stem}.ipynb has {listed.count(stem)} places in the order of the site (ORDER in tools/pages.py), not one')
    return found


def toctree(entries, caption='', options=()):
    "A table of contents for Sphinx."
    lines = [f':caption: {caption}'] * bool(caption) + [f':{option}:' for option in options]
    return '\n'.join(['```{toctree}', *lines, '', *entries, '```'])


def title_of(stem):
    "How a page is called in the table of contents: notebooks with the number that other pages call them by."
    number = re.match(r'(\d\db?)_', stem)
    if not number: return stem
    title = ''.join(json.loads((ROOT / 'nbs' / f'{stem}.ipynb').read_text(encoding='utf-8'))['cells'][0]['source']).splitlines()[0].removeprefix('# ')
    return f'{number[1]} {title} <{stem}>'


def folded(line):
    "A line of printed text, broken if it is a paragraph; tables stay as wide as they are."
    return line if '  ' in line or '─' in line else textwrap.fill(line, 88)


def page(path):  # dict: the notebook to show
    "A notebook as it is read: stored outputs, no hidden cells, no directives, links to its source."
    nb = json.loads(Path(path).read_text(encoding='utf-8'))
    cells, module = [], None
    for cell in nb['cells']:
        source = ''.join(cell['source'])
        words = directives(source) if cell['cell_type'] == 'code' else []
        module = next((word.split()[1] for word in words if word.startswith('default_exp')), module)
        if 'hide' in words or any(word.startswith('default_exp') for word in words): continue
        tags = cell['metadata'].setdefault('tags', [])
        if 'echo: false' in words: tags.append('remove-input')
        for output in cell.get('outputs', []):
            if output['output_type'] == 'stream': output['text'] = '\n'.join(map(folded, ''.join(output['text']).split('\n')))
        cells.append({**cell, 'source': '\n'.join(line for line in source.splitlines() if not line.startswith('#|')) if words else source})
    stem = Path(path).stem
    links = [f'<a href="_static/notebooks/{stem}.ipynb" download>the notebook</a>']
    if module: links += [f'<a href="_modules/transformer_perf/{module}.html">the module that it defines</a>', f'[its functions](api/{module}.md)']
    cells[0]['source'] += f'\n\n{{.source-links}}\nSource: {", ".join(links)}.'
    if stem == 'index': cells.append(dict(cell_type='markdown', metadata={}, id='contents', source='\n\n'.join(
        toctree(map(title_of, pages), caption, ['hidden']) for caption, pages in [('', ['Start here <self>']), *contents([path.stem for path in NOTEBOOKS])])))
    nb['metadata']['language_info'] = {'name': 'python', 'pygments_lexer': 'ipython3'}  # so that `!command` is highlighted
    return {**nb, 'cells': cells}


# the API, from the modules' own text: signatures, and the comment beside each parameter

def comments(text):  # dict: line number -> comment
    "The comments of a module."
    return {token.start[0]: token.string.lstrip('# ') for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT}


def help_of(annotation):
    "The help text of a command-line option, from its annotation."
    keywords = [word for call in ast.walk(annotation or ast.Constant(0)) if isinstance(call, ast.Call) for word in call.keywords if word.arg == 'help']
    return ast.literal_eval(keywords[0].value) if keywords else ''


def parameters(node, notes, options):  # list of (names, default, comment); the comment on what is returned
    "What a function takes, a row for each comment: parameters that share one share a row."
    a = node.args
    every = a.posonlyargs + a.args
    defaults = [None] * (len(every) - len(a.defaults)) + a.defaults + a.kw_defaults
    every = [(arg, default) for arg, default in zip(every + a.kwonlyargs, defaults) if arg.arg not in ('self', 'cls')]
    lines = [(default or arg).end_lineno for arg, default in every]
    rows = []
    for i, ((arg, default), line) in enumerate(zip(every, lines)):
        kind = arg.annotation.id if isinstance(arg.annotation, ast.Name) else ''
        note = (notes.get(line, '') if line != node.lineno else '') or help_of(arg.annotation) or options.get(kind, '')
        if rows and lines[i - 1] == line != node.lineno and rows[-1][1] == '' and default is None: rows[-1] = (rows[-1][0] + [arg.arg], '', note)
        else: rows.append(([arg.arg], '' if default is None else ast.unparse(default), note))
    start = node.body[0].lineno
    return rows, next((notes[line] for line in range(start - 1, max(lines, default=node.lineno) - 1, -1) if line in notes and (line not in lines or line == node.lineno)), '')


def fields(node, notes):  # list of (names, default, comment)
    "The fields of a dataclass or a NamedTuple."
    return [([item.target.id], ast.unparse(item.value) if item.value else '', notes.get(item.end_lineno, '')) for item in node.body if isinstance(item, ast.AnnAssign)]


def as_table(rows, what):
    "Rows of (names, default, comment) in Markdown, where there is a comment; the signature above has them all."
    rows = [row for row in rows if row[2]]
    if not rows: return []
    cell = lambda text: text.replace('|', '\\|').replace('$', '\\$').replace('*', '\\*').replace('<', '&lt;')
    rows = [(what, 'default', 'meaning'), ('---',) * 3, *[(', '.join(f'`{name}`' for name in names), f'`{default}`' if default else '', cell(note)) for names, default, note in rows]]
    if not any(default for _, default, _ in rows[2:]): rows = [(names, note) for names, _, note in rows]
    return [f'| {" | ".join(row)} |' for row in rows] + ['']


def signature(node):
    "The parameters of a function as they are called: without annotations."
    copy = ast.parse(ast.unparse(node)).body[0]
    for arg in copy.args.posonlyargs + copy.args.args + copy.args.kwonlyargs + [a for a in (copy.args.vararg, copy.args.kwarg) if a]: arg.annotation = None
    copy.args.args = [arg for arg in copy.args.args if arg.arg not in ('self', 'cls')]
    return f'({ast.unparse(copy.args)})'


def described(node, notes, options, kind, name):
    "One function, class, method or property as lines of MyST."
    text = (ast.get_docstring(node) or '').replace('\n\n', '\n').splitlines()
    if isinstance(node, ast.ClassDef):
        rows, returned = fields(node, notes), ''
        head = name + (f'({", ".join(names[0] for names, _, _ in rows)})' if rows else '')
    else:
        rows, returned = parameters(node, notes, options)
        head = name + ('' if kind == 'property' else signature(node))
    fence = ':::::' if isinstance(node, ast.ClassDef) else '::::'
    lines = [f'{fence}{{py:{kind}}} {head}', '', *text[:1], '', *as_table(rows, 'field' if isinstance(node, ast.ClassDef) else 'parameter')]
    if returned: lines += [f'**Returns:** {returned}', '']
    for item in node.body if isinstance(node, ast.ClassDef) else []:
        if not isinstance(item, ast.FunctionDef) or item.name.startswith('_'): continue
        decorators = [ast.unparse(d) for d in item.decorator_list]
        lines += described(item, notes, options, 'property' if 'property' in decorators else 'classmethod' if 'classmethod' in decorators else 'method', item.name)
    return lines + [fence, '']


def api():  # dict: path below docs -> text
    "The pages of the API: one for each module, and a list of them."
    pages, summaries = {}, []
    for path in sorted((ROOT / 'transformer_perf').glob('*.py'), key=lambda path: _notebook_of(path) or ''):
        text, module, notebook = path.read_text(encoding='utf-8'), path.stem, _notebook_of(path)
        if notebook is None: continue
        tree, notes = ast.parse(text), comments(text)
        options = {node.targets[0].id: help_of(node.value) for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}
        lines = [f'# {module}', '', f'> {ast.get_docstring(tree)}', '', '{.source-links}', f'Explained in [{notebook}](../{notebook}.ipynb).', '', f'```{{py:module}} transformer_perf.{module}', '```', '']
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith('_'):
                lines += described(node, notes, options, 'class' if isinstance(node, ast.ClassDef) else 'function', node.name)
        pages[f'api/{module}.md'] = '\n'.join(lines)
        summaries.append(f'| [{module}]({module}.md) | {ast.get_docstring(tree)} |')
    face = [ast.literal_eval(node.value) for node in ast.parse((ROOT / 'transformer_perf' / '__init__.py').read_text()).body if isinstance(node, ast.Assign) and node.targets[0].id == '__all__'][0]
    homes = {name: module for module in pages for name in face if re.search(rf'\}} {name}\b', pages[module])}
    pages['api/index.md'] = '\n'.join([
        '# API', '> What can be called, module by module. Each name leads to its source.', '',
        'Most work needs six names, `from transformer_perf import ...`:', '',
        *[f'- {{py:obj}}`~transformer_perf.{homes[name][4:-3]}.{name}`' for name in face], '',
        '| module | what it does |', '| --- | --- |', *summaries, '', toctree([page[4:-3] for page in pages], options=['hidden'])])
    return pages


def _notebook_of(path):
    found = re.search(r'File to edit: \.\./nbs/(\w+)\.ipynb', path.read_text(encoding='utf-8'))
    return found and found[1]
