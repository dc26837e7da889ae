"What is derived from the notebooks is up to date: run `python tools/notebooks.py` where it is not. (Stored outputs are checked cell by cell, in conftest.py.)"
import ast
import json

import notebooks


def test_modules_are_exported():
    package = {path.name: path.read_text() for path in (notebooks.ROOT / 'transformer_perf').glob('*.py') if path.name not in ('__init__.py', '_modidx.py')}
    exported = {name: text for name, text in notebooks.exported().items() if name not in ('__init__.py', '_modidx.py')}
    assert package.keys() == exported.keys()
    for name in package: assert package[name] == exported[name], f'{name} is stale'


def test_readme():
    assert (notebooks.ROOT / 'README.md').read_text() == notebooks.readme()


def test_readme_names_what_ci_runs():
    "The install and test commands stand in the README exactly as .ci/run runs them."
    readme, ci = ((notebooks.ROOT / name).read_text() for name in ('README.md', '.ci/run'))
    for command in ("pip install . && transformer-perf search", "pip install -e '.[dev]' && pytest"):
        assert f'\n{command}\n' in readme and f'\n{command}\n' in ci


def test_notebooks_are_clean():
    for path in notebooks.NOTEBOOKS:
        cells = json.loads(path.read_text())['cells']
        assert len({cell['id'] for cell in cells}) == len(cells)
        assert all(cell.get('execution_count') is None for cell in cells)


def test_public_functions_are_documented():
    for path in (notebooks.ROOT / 'transformer_perf').glob('*.py'):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and len(node.body) > 2 and not node.name.startswith('_'):
                assert ast.get_docstring(node), f'{path.name}: {node.name} has no docstring'
