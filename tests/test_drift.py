"""What is derived from the notebooks is up to date, and so is what says which version this is.

Run `python tools/notebooks.py` where it is not. (Stored outputs are checked cell by cell, in
conftest.py.)
"""
import ast
import importlib
import json
import re
import subprocess
import sys
from configparser import ConfigParser

import pytest

import notebooks
import pages
import transformer_perf
from execnb.nbio import dict2nb, nb2dict

def is_made(path):
    "Whether a module is made from a notebook, by its path."
    return path.rpartition('/')[2] not in ('__init__.py', '__main__.py', '_modidx.py')


EVERY = {path.relative_to(pages.PACKAGE).as_posix(): path.read_text()
         for path in pages.PACKAGE.rglob('*.py')}
MODULES = {path: text for path, text in EVERY.items() if is_made(path)}


def text_of(name): return (notebooks.ROOT / name).read_text()


def test_modules_are_exported():
    exported = {path: text for path, text in notebooks.exported().items() if is_made(path)}
    assert MODULES.keys() == exported.keys()
    for name, text in MODULES.items(): assert text == exported[name], f'{name} is stale'


def test_what_was_imported_is_forgotten_when_modules_are_written_anew():
    "Or notebooks would run on the package as it was, and store what it said."
    code = ('import nbdev; nbdev.nbdev_export = lambda: None\n'
            'import sys, notebooks, transformer_perf.blocks\n'
            'notebooks.export()\n'
            "print([name for name in sys.modules if name.startswith('transformer_perf')])")
    done = subprocess.run([sys.executable, '-c', code], check=True, capture_output=True, text=True,
                          cwd=notebooks.ROOT / 'tools')
    assert done.stdout == '[]\n'


def test_readme():
    assert text_of('README.md') == notebooks.readme()
    assert text_of('nbs/README.md') == pages.reading_order()


def test_readme_names_what_ci_runs():
    "The install and test commands stand in the README exactly as .ci/run runs them."
    readme, ci = text_of('README.md'), text_of('.ci/run')
    use, work_on = "pip install . && transformer-perf search", "pip install -e '.[dev]' && pytest"
    for command in (use, work_on):
        assert f'\n{command}\n' in readme and f'\n{command}\n' in ci
    assert '\npytest --thorough -m thorough\n' in ci   # what the second leaves out


def test_what_nbdev_cleans_is_clean():
    "Whoever installs nbdev's hooks gets no diff."
    from nbdev.clean import clean_nb
    keys = dict(allowed_metadata_keys=['widgets'],
                allowed_cell_metadata_keys=['jp-MarkdownHeadingCollapsed', 'jupyter'])
    for path in notebooks.NOTEBOOKS:
        stored = path.read_text(encoding='utf-8')
        nb = dict2nb(json.loads(stored))
        clean_nb(nb, clear_all=False, **keys)
        assert notebooks.as_stored(nb2dict(nb)) == stored, path.name


def test_notebooks_are_clean():
    for path in notebooks.NOTEBOOKS:
        cells = notebooks.cells_of(path)
        assert len({cell['id'] for cell in cells}) == len(cells)
        assert all(cell.get('execution_count') is None for cell in cells)
        still_open = [cell['id'] for cell in cells if notebooks.closed(cell) != cell]
        assert not still_open, f'{path.name}: folded on its page, open in JupyterLab'


def test_public_functions_are_documented():
    for name, text in MODULES.items():
        for node in pages.tree_of(text).body:
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)): continue
            if len(node.body) > 2 and not node.name.startswith('_'):
                assert ast.get_docstring(node), f'{name}: {node.name} has no docstring'


def test_one_version():
    settings = ConfigParser()
    settings.read(notebooks.ROOT / 'settings.ini', encoding='utf-8')
    assert transformer_perf.__version__ == settings['DEFAULT']['version']


def test_changes_are_written_down():
    "The newest entry is this version's, or the one to come; it says something."
    entry = re.search(r'^## (.+)\n+([^\n#].*)', text_of('CHANGELOG.md'), re.MULTILINE)
    assert entry and entry[1].split()[0] in ('Unreleased', transformer_perf.__version__)


def test_every_command_is_in_the_table_of_its_chapter():
    from transformer_perf.cli import COMMANDS
    first = next(''.join(cell['source']) for cell in notebooks.cells_of(
        notebooks.ROOT / 'nbs' / '95_cli.ipynb') if '| command |' in ''.join(cell['source']))
    rows = ' '.join(line.split('|')[1] for line in first.splitlines() if line.startswith('| `tr'))
    assert set(re.findall(r'`(?:transformer-perf )?([a-z-]+)`', rows)) == COMMANDS.keys()


MOVED = {   # room -> names that stood in it once
    'iteration': ('TIMES', 'Memory', 'PipelineStage', 'Times', 'bubble_time', 'figures', 'job_of',
                  'memory_at', 'memory_bound', 'memory_of', 'slowest_stage', 'stages_of',
                  'statistics', 'update_time'),
    'execution': ('MEMORY_PARTS', 'Parallel', 'Times', 'estimate', 'figures')}


@pytest.mark.parametrize('room', MOVED)
def test_names_are_found_where_they_stood(room):
    known = vars(importlib.import_module(f'transformer_perf.{room}'))
    assert [name for name in MOVED[room] if name not in known] == []
