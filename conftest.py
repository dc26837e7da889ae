"Every code cell of a notebook must run, with the text outputs that are stored: a test for each."
import ast
import contextlib
import functools
import gc
import os
import shlex
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import settings

sys.path[:0] = [str(Path(__file__).parent / folder) for folder in ('tools', 'tests')]
import notebooks
import thorough

# the same examples in every run; HYPOTHESIS_PROFILE=random tries others
settings.register_profile('same', derandomize=True)
settings.register_profile('random')
settings.load_profile(os.environ.get('HYPOTHESIS_PROFILE', 'same'))

os.environ.pop('PYTHONDONTWRITEBYTECODE', None)   # commands that tests start compile us once
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')   # nor start threads that no test needs
# of the format of addresses, which we hold none to: its grammar takes jsonschema seconds to read
sys.modules['rfc3987_syntax'] = None
# as where PyArrow is not installed, and a third sooner; a test of predictions takes PyArrow's
pd.options.mode.string_storage = 'python'


@pytest.hookimpl(optionalhook=True)   # without xdist nobody asks
def pytest_xdist_auto_num_workers():
    "One more than there are cores: some tests only wait for other processes."
    return os.cpu_count() + 1


def pytest_addoption(parser):
    parser.addoption('--thorough', action='store_true',
                     help='also the tests that repeat a check over many more cases')


def pytest_configure(config):
    config.addinivalue_line('markers', 'thorough: run only with --thorough')
    thorough.run_of_all = config.getoption('--thorough')   # before tests are imported


def pytest_collect_file(file_path, parent):
    if file_path.suffix == '.ipynb' and file_path.parent.name == 'nbs':
        return NotebookFile.from_parent(parent, path=file_path)


def pytest_collection_modifyitems(config, items):
    "Large files of tests first, notebooks last: these are short, so that no worker waits long."
    if not config.getoption('--thorough'):
        left_out = [item for item in items if item.get_closest_marker('thorough')]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker('thorough')]
    items.sort(key=lambda item: (item.path.suffix == '.ipynb', -item.path.stat().st_size,
                                 item.path))


def pytest_collection_finish():
    "What was collected stays to the end: garbage is looked for among the rest, and less often."
    gc.freeze()
    gc.set_threshold(100_000, 10, 50)   # a tenth of the time, where each test is looked through


def pytest_sessionfinish():
    "Nothing is left that garbage could be looked for in, five times, as pytest ends."
    gc.freeze()


DEFINES = ('def ', 'class ', 'import ', 'from ', '@')   # how such a cell begins


def only_defines(source):
    "Whether a cell can do no more than define and import."
    first = next((line for line in source.splitlines() if line and line[0] != '#'), '')
    if not first.startswith(DEFINES): return False   # without reading on: most cells
    try: body = ast.parse(notebooks.without_directives(source)).body
    except SyntaxError: return False   # a command of the shell
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    return all(isinstance(statement, kinds) for statement in body)


def tests_of(cells):  # list
    "The cells that can fail by what they show or assert; they run all that stands before them."
    own = [cell for cell in cells if cell.cell_type == 'code' and notebooks.is_run(cell.source)
           and 'default_exp' not in cell.source]
    return [cell for cell in own if cell is own[-1] or not only_defines(cell.source)]


def name_of(cell):
    "A cell's number and its first line of code."
    lines = [line for line in cell.source.splitlines() if line.strip() and not line.startswith('#')]
    return f'{cell.idx_:03d} {lines[0][:60] if lines else ""}'


def text_outputs(cell):
    return notebooks.text_of([notebooks.lasting(output) for output in cell.get('outputs', [])])


def drawn(figure):
    "Place all that a picture shows, once: its mistakes are found (drawings.watched)."
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    class Once(FigureCanvasAgg):
        asked = False
        def print_raw(self, *args, **options):   # asked again, where a layout was placed already
            if not self.asked:
                self.asked = True
                with self.get_renderer()._draw_disabled():   # no dot is set: nobody looks
                    figure.draw(self.get_renderer())
    Once(figure).print_figure(os.devnull, format='raw')
    return ''


def asked_here(shell, usual, command):
    "Our own command without the start of a process; any other, and a pipe, as usual."
    first, *words = shlex.split(shell.var_expand(command))
    if first != 'transformer-perf' or '|' in words: return usual(command)
    from transformer_perf.cli import main
    with contextlib.suppress(SystemExit): main(words)


class Tested(notebooks.Notebook):
    "A notebook of which only the texts are read."
    def new_shell(self):
        from matplotlib.figure import Figure
        shell = super().new_shell()
        shell.display_formatter.formatters['image/png'].for_type(Figure, drawn)
        shell.system = functools.partial(asked_here, shell, shell.system)
        return shell


class NotebookFile(pytest.File):
    def collect(self):
        notebook = Tested(self.path)
        for cell in tests_of(notebook.nb.cells):
            yield Cell.from_parent(self, name=name_of(cell), notebook=notebook, cell=cell)


class Cell(pytest.Item):
    def __init__(self, *, notebook, cell, **kwargs):
        super().__init__(**kwargs)
        self.notebook, self.cell, self.stored = notebook, cell, text_outputs(cell)

    def runtest(self):
        if self.notebook.broken is not None: pytest.skip(f'cell {self.notebook.broken} failed')
        self.notebook.run_to(self.cell.idx_)
        faults = self.notebook.faults[self.cell.idx_]
        assert not faults, '\n'.join(faults)
        if not notebooks.ships_outputs(self.path, self.cell.idx_): return
        stale = 'stored output is stale: run `python tools/notebooks.py`'
        assert text_outputs(self.cell) == self.stored, stale

    def repr_failure(self, excinfo, style=None):
        where = f'{self.path.name}, cell {self.cell.idx_}'
        return f'{where}:\n{self.cell.source}\n\n{excinfo.exconly()}'

    def reportinfo(self): return self.path, None, f'{self.path.name} {self.name}'


# a real browser, for the tests that look at pages

BROWSERS = ('chromium', 'chromium-browser', 'google-chrome')
QUIET = ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking',
         '--disable-component-update', '--disable-sync']


@pytest.fixture(scope='session')
def chromium():
    "What starts a browser, and how; a test that needs one is skipped where there is none."
    pytest.importorskip('playwright.sync_api', reason='playwright is not installed')
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found: pytest.skip('no Chromium is installed')
    from playwright.sync_api import sync_playwright
    with sync_playwright() as driver:
        yield driver.chromium, {'executable_path': found, 'args': QUIET}


@pytest.fixture(scope='session')
def browser(chromium):
    start, how = chromium
    browser = start.launch(**how)
    yield browser
    browser.close()
