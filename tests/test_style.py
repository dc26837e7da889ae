"How code looks: the linter has nothing to say, lines are short, imports point one way."
import ast
import graphlib
import re
import subprocess
import sys

import pytest

import house
import notebooks
import pages
from transformer_perf.parameters import generations

WIDTH = 100   # characters of a line
CHECKED = ('nbs', 'transformer_perf', 'tests', 'tools', 'docs', 'conftest.py', 'setup.py')
MODULES = pages.rooms()
EACH = pytest.mark.parametrize('path', notebooks.NOTEBOOKS, ids=lambda path: path.stem)


def code_of(path):  # list of (id of a cell, its code as it is read)
    "The code cells of a notebook."
    return [(cell['id'], notebooks.without_directives(''.join(cell['source'])))
            for cell in notebooks.cells_of(path) if cell['cell_type'] == 'code']


# facts

def test_facts_of_generations_stand_in_their_file():
    "No module tells Ampere from Hopper; one only says which of them is meant unless another is."
    naming = [(module, text) for module, text in MODULES.items()
              if any(name in text for name in generations())]
    nodes = ((module, node) for module, text in naming for node in ast.walk(parsed(text)))
    said = {(module, word) for module, node in nodes   # {'Ampere': 1}, dict(Ampere=1)
            for word in (getattr(node, 'value', None), getattr(node, 'arg', None))
            if isinstance(word, str) and word in generations()}
    assert said == {('parameters', 'Ampere')}


# lines

def test_linter_is_silent():
    done = subprocess.run(
        [sys.executable, '-m', 'ruff', 'check', '--no-cache', '--output-format=concise', *CHECKED],
        check=False, cwd=notebooks.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f'ruff check says:\n{done.stdout}{done.stderr}'


def wide_lines(text, where):  # list of str
    "Lines of more than 100 characters, and where they are."
    return [f'{where}: {line}' for line in text.splitlines() if len(line) > WIDTH]


@EACH
def test_lines_of_notebooks_are_short(path):
    wide = [line for cell, source in code_of(path) for line in wide_lines(source, f'cell {cell}')]
    assert not wide, '\n'.join(wide)


@pytest.mark.parametrize('module', sorted(MODULES))
def test_lines_of_modules_are_short(module):
    "But for the list of names that nbdev writes as it likes."
    text = re.sub(r'^__all__ = \[.*?\]$', '', MODULES[module], flags=re.DOTALL | re.MULTILINE)
    wide = wide_lines(text, module)
    assert not wide, '\n'.join(wide)


# habits

def python_files():  # list of (where, source)
    "All our code: notebooks, of which modules are made, modules made by hand, tests and tools."
    cells = [(f'{path.stem}, cell {cell}', source) for path in notebooks.NOTEBOOKS
             for cell, source in code_of(path) if not source.lstrip().startswith('%')]
    folders = [path for name in ('tests', 'tools', 'docs') for path in
               sorted((notebooks.ROOT / name).glob('*.py'))]
    by_hand = [(module, text) for module, text in MODULES.items() if pages.is_door(text)]
    return [*by_hand, *cells, *((path.name, path.read_text()) for path in folders)]


def is_flag(node):
    "Whether an expression is a truth by its form."
    return (isinstance(node, (ast.Compare, ast.BoolOp))
            or isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
            or isinstance(node, ast.Call) and ast.unparse(node.func) in ('bool', 'any', 'all'))


def is_words_or_list(node):
    return (isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple))
            or isinstance(node, ast.Constant) and isinstance(node.value, str))


def parsed(source):  # a tree; of a cell with a command of the shell an empty one
    try: return pages.tree_of(source)
    except SyntaxError: return ast.Module([], [])


MULTIPLIED = re.compile(   # words or a list by a truth: what stands on both sides of the star
    r'''["'\])](\s|\\|#.*)*\*(\s|\\|#.*)*(\(|bool\b|any\b|all\b)''')


def test_a_choice_is_written_as_one():
    "`' more' if known else ''`, not `' more' * bool(known)`."
    found = [(where, ast.unparse(node)) for where, source in python_files()
             if MULTIPLIED.search(source) for node in ast.walk(parsed(source))
             if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
             and is_words_or_list(node.left) and is_flag(node.right)]
    assert not found


# names

def defined_in(module):  # set
    "What a module defines for all that stands in it: functions, classes and values."
    body = parsed(MODULES[module]).body
    found = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    found |= {name.id for target in targets for name in ast.walk(target)
              if isinstance(name, ast.Name)}
    return {name for name in found if not name.startswith('__')}


def test_one_name_has_one_meaning():
    "A name that is looked for is found once, whichever room asks for it."
    rooms = {}
    for module in MODULES:
        for name in defined_in(module): rooms.setdefault(name, []).append(module)
    assert len(rooms) > 2000
    assert not {name: own for name, own in rooms.items() if len(own) > 1}


# imports

CORE = {   # each rests on all that it needs, and on no wing
    'inputs', 'quantities', 'systems', 'parameters', 'software', 'schedules', 'choices',
    'estimates', 'measured_kernels', 'kernels', 'layers', 'blocks', 'linear_attention',
    'sparse_attention', 'configs', 'lengths', 'models', 'modules', 'timeline', 'traced',
    'explained', 'iteration', 'execution'}


def test_arrows_point_down():
    found = house.arrows()
    graphlib.TopologicalSorter(found).prepare()   # no room imports another in a circle
    wings = house.between_wings(found)
    graphlib.TopologicalSorter(wings).prepare()   # nor a wing
    assert set(wings) - {*house.WINGS, *house.ABOVE} == CORE
    for room in CORE: assert found[room] <= CORE, f'{room} imports what is above it'
    assert not [room for room in found if 'cli' in found[room]], 'the command line is on top'


def test_the_diagram_is_of_today():
    "`python tools/house.py` draws it anew; what follows from other arrows is not drawn."
    text = (notebooks.ROOT / 'CONTRIBUTING.md').read_text()
    assert house.diagram() in text and house.with_diagram(text) == text
    found = house.between_wings(house.arrows())
    drawn = {room: set() for room in found} | {
        room: set(below.split(' & '))
        for room, below in re.findall(r'^    (\w+) --> (.+)$', house.diagram(), re.MULTILINE)}
    assert all(drawn[room] <= found[room] for room in found)
    assert house.below(drawn) == house.below(found)


def test_what_the_house_names_is_in_its_room():
    "CONTRIBUTING.md says where `timeline.must_fit_GB` is decided; a wing's rooms it only names."
    text = (notebooks.ROOT / 'CONTRIBUTING.md').read_text()
    said = {(room, name) for room, name in re.findall(r'`(\w+)\.(\w+)`', text)
            if room in MODULES and f'{room}.{name}' not in MODULES}
    assert len(said) > 10
    lost = [f'{room}.{name}' for room, name in said if name not in defined_in(room)]
    assert not lost, f'CONTRIBUTING.md names what is not there: {lost}'


def test_the_package_needs_no_tools_of_ours():
    for module in MODULES:
        roots = {name.split('.')[0] for name in house.imported(module)}
        assert not roots & {'nbdev', 'fastcore', 'execnb', 'typer', 'rich'}, module
