"Every code cell of every notebook is a test: it must run, and its text outputs must be the stored ones."
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / 'tools'))
import notebooks


def pytest_collect_file(file_path, parent):
    if file_path.suffix == '.ipynb' and file_path.parent.name == 'nbs':
        return NotebookFile.from_parent(parent, path=file_path)


class NotebookFile(pytest.File):
    def collect(self):
        notebook = notebooks.Notebook(self.path)
        for cell in notebook.nb.cells:
            if cell.cell_type == 'code' and notebooks.is_run(cell.source) and 'default_exp' not in cell.source:
                words = [line for line in cell.source.splitlines() if line.strip() and not line.startswith('#')]
                yield Cell.from_parent(self, name=f'{cell.idx_:03d} {words[0][:60] if words else ""}', notebook=notebook, cell=cell)


class Cell(pytest.Item):
    def __init__(self, *, notebook, cell, **kwargs):
        super().__init__(**kwargs)
        self.notebook, self.cell = notebook, cell
        self.stored = notebooks.text_of([notebooks.clean(o) for o in cell.get('outputs', [])])

    def runtest(self):
        if self.notebook.broken is not None: pytest.skip(f'cell {self.notebook.broken} failed')
        self.notebook.run_to(self.cell.idx_)
        now = notebooks.text_of([notebooks.clean(o) for o in self.cell.get('outputs', [])])
        assert now == self.stored, 'stored output is stale: run `python tools/notebooks.py`'

    def repr_failure(self, excinfo, style=None):
        return f'{self.path.name}, cell {self.cell.idx_}:\n{self.cell.source}\n\n{excinfo.exconly()}'

    def reportinfo(self): return self.path, None, f'{self.path.name} {self.name}'
