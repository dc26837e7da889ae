"How code looks: the linter has nothing to say, lines are short, imports point one way."
import ast
import graphlib
import re
import subprocess
import sys

import pytest

import notebooks
import pages

WIDTH = 100   # characters of a line
CHECKED = ('nbs', 'transformer_perf', 'tests', 'tools', 'docs', 'conftest.py', 'setup.py')
MODULES = {path.stem: path.read_text() for path in pages.PACKAGE.glob('*.py')
           if path.stem not in ('__init__', '_modidx')}
EACH = pytest.mark.parametrize('path', notebooks.NOTEBOOKS, ids=lambda path: path.stem)


def code_of(path):  # list of (id of a cell, its code as it is read)
    "The code cells of a notebook."
    return [(cell['id'], notebooks.without_directives(''.join(cell['source'])))
            for cell in notebooks.cells_of(path) if cell['cell_type'] == 'code']


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


# imports

def imported(text):  # set of dotted names
    "What a module imports, anywhere in it."
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import): found |= {alias.name for alias in node.names}
        if not isinstance(node, ast.ImportFrom): continue
        parts = ['transformer_perf'] * bool(node.level) + [node.module] * bool(node.module)
        found |= {'.'.join([*parts, alias.name]) for alias in node.names}
    return found


def arrows():  # dict: module -> modules of ours that it imports
    "Who imports whom; a name of the public face leads to the module where it lives."
    homes, found = pages.public_names(), {}
    for module, text in MODULES.items():
        own = [name.split('.')[1:] for name in imported(text)
               if name.split('.')[0] == 'transformer_perf']
        found[module] = {homes.get(parts[0], parts[0]) for parts in own if parts} & MODULES.keys()
    return found


def house():  # list of modules, the lowest first
    "The floors of the house, as CONTRIBUTING.md lists them; above are rooms beside each other."
    text = (notebooks.ROOT / 'CONTRIBUTING.md').read_text()
    told = re.search(r'Imports point down this list only: (.*?); then one room each', text)
    return re.findall(r'`(\w+)`', told[1])


def test_arrows_point_down():
    floors, found = house(), arrows()
    assert len(floors) == 19 and set(floors) < set(MODULES)
    for i, module in enumerate(floors):
        assert found[module] <= set(floors[:i]), f'{module} imports what is above it'
    assert not [module for module in found if 'cli' in found[module]], 'the command line is on top'
    graphlib.TopologicalSorter(found).prepare()   # no room imports another in a circle


def test_the_package_needs_no_tools_of_ours():
    for module, text in MODULES.items():
        roots = {name.split('.')[0] for name in imported(text)}
        assert not roots & {'nbdev', 'fastcore', 'execnb', 'typer', 'rich'}, module
