"""Everything that is derived from the notebooks: the package, the stored outputs and README.md.

`python tools/notebooks.py` makes all three; `python tools/notebooks.py 13_iteration` runs only the
notebooks named. The tests use the same functions to see that nothing is stale.
"""
import atexit
import base64
import io
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from cells import NOTEBOOKS, ROOT, cells_of, directives, without_directives

TEXT = ('text/plain', 'text/html', 'text/markdown')  # the same on every machine; pictures are not
NOT_RUN = {'eval: false', 'slow'}   # directives of cells that are only read
FOLDED = {'hide', 'echo: false', 'code-fold: true'}   # of code that a first reader skips


def is_run(source):
    "Whether a cell is run by the tests and its outputs kept."
    return bool(source.strip()) and not NOT_RUN & set(directives(source))


def closed(cell):  # a cell of a file
    "The same, closed in JupyterLab where its page folds it or leaves it out."
    folded = cell['cell_type'] == 'code' and FOLDED & {*directives(''.join(cell['source']))}
    if not folded: return cell
    looks = cell['metadata'].get('jupyter', {}) | {'source_hidden': True}
    return cell | {'metadata': cell['metadata'] | {'jupyter': looks}}


# running

# pandas' options are the process's: what one notebook sets must not reach the next
DISPLAY = ('import pandas as pd; pd.reset_option("^display"); '
           'pd.set_option("display.width", 160, "display.max_columns", 40)')


def fresh_shell(path):
    "A shell as a notebook finds it: pictures as drawn by default, our own command first."
    here = str(Path(sys.executable).parent)   # so that `!transformer-perf` is this one
    os.environ.update(IN_TEST='1', PATH=os.pathsep.join([here, os.environ['PATH']]))
    import matplotlib
    matplotlib.rcdefaults()
    from execnb.shell import CaptureShell
    shell = CaptureShell(path)
    atexit.unregister(shell.atexit_operations)   # a second or more of collecting garbage, for each
    shell.run(DISPLAY)
    return shell


def is_exercise(path): return '_exercise_' in Path(path).stem


def is_solutions(cell): return cell.cell_type == 'markdown' and cell.source == '## Solutions'


def first_blank(path):  # index of a cell
    "Where an exercise begins to ask: what stands before it keeps its outputs, the rest has none."
    asks = lambda cell: 'eval: false' in directives(''.join(cell['source']))
    return [asks(cell) for cell in cells_of(path)].index(True)


def ships_outputs(path, index):
    "Whether the outputs of a cell are stored: in an exercise, where they give nothing away."
    return not is_exercise(path) or index < first_blank(path)


def fill(cells):
    "Put the solutions of an exercise's last section into its blanks: the first into the first."
    start = next(i for i, cell in enumerate(cells) if is_solutions(cell))
    unrun = lambda cell: cell.cell_type == 'code' and not is_run(cell.source)
    blanks, solutions = (list(filter(unrun, part)) for part in (cells[:start], cells[start:]))
    if len(blanks) != len(solutions): raise ValueError(
        f'{len(blanks)} blanks and {len(solutions)} solutions: each of both is a cell that begins '
        'with #| eval: false')
    for blank, solution in zip(blanks, solutions):
        blank.source = without_directives(solution.source)


class Notebook:
    "A notebook whose code cells are run in order, on demand."

    def __init__(self, path):
        from execnb.nbio import read_nb
        self.path, self.nb = Path(path), read_nb(path)
        self.shell, self.done, self.broken = None, -1, None
        self.faults = {}   # index of a cell -> what is wrong with the pictures that it shows
        if is_exercise(path): fill(self.nb.cells)

    def new_shell(self): return fresh_shell(self.path)

    def run_to(self, index):
        "Run the code cells up to one; its exception, if any, is raised."
        if self.shell is None: self.shell = self.new_shell()
        for cell in self.nb.cells[self.done + 1:index + 1]:
            self.done = cell.idx_
            if cell.cell_type == 'code' and is_run(cell.source): self._run(cell)

    def _run(self, cell):
        if self.broken is not None:
            raise RuntimeError(f'an earlier cell of {self.path.name} failed: cell {self.broken}')
        import drawings
        cell.outputs, here = [], os.getcwd()
        os.chdir(self.path.parent)
        try:
            with drawings.watched() as found: self.shell.cell(cell)
        finally: os.chdir(here)
        shows = any(PNG in output.get('data', {}) for output in cell.outputs)
        self.faults[cell.idx_] = [fault for own in found.values() for fault in own] if shows else []
        failed = self.shell.exc or traceback_in(cell.outputs)
        if failed:
            self.broken = cell.idx_
            raise failed

    def save(self):
        "Write the notebook with the outputs of this run, and no counts or machine's traces."
        stored = json.loads(self.path.read_text(encoding='utf-8'))
        for cell, ran in zip(stored['cells'], self.nb.cells):
            if cell['cell_type'] != 'code' or not is_run(''.join(cell['source'])): continue
            outputs = json.loads(json.dumps(ran.get('outputs', [])))
            shipped = ships_outputs(self.path, ran.idx_)
            kept = [clean(output) for output in outputs] if shipped else []
            cell |= {'outputs': kept, 'execution_count': None}
        stored['cells'] = list(map(closed, stored['cells']))
        write_whole(self.path, as_stored(with_widgets(stored, self.path.stem)))


def as_stored(nb):  # str
    "A notebook as a file holds it: as nbdev writes it, so that its own tools change nothing."
    return json.dumps(nb, indent=1, ensure_ascii=False, sort_keys=True) + '\n'


def traceback_in(outputs):
    "An error if a command that a cell ran printed a traceback."
    if any('Traceback (most' in text for text in text_of(outputs)):
        return RuntimeError('a command printed a traceback')


# outputs

PNG = 'image/png'
VIEW = 'application/vnd.jupyter.widget-view+json'
STATE = 'application/vnd.jupyter.widget-state+json'


def widgets_shown(stored):
    "The ids of the widgets that a notebook shows, in order."
    outputs = [output for cell in stored['cells'] for output in cell.get('outputs', [])]
    found = [o['data'][VIEW]['model_id'] for o in outputs if VIEW in o.get('data', {})]
    return list(dict.fromkeys(found))


def widget_states(shown):
    "The state of widgets and of what they consist of, in the order in which they appear."
    from ipywidgets import embed
    from ipywidgets.widgets.widget import _instances
    widgets = [_instances[model] for model in shown]
    states, order = embed.dependency_state(widgets, drop_defaults=True), list(shown)
    for model in order:   # grows on the way
        parts = re.findall(r'IPY_MODEL_(\w+)', json.dumps(states[model]))
        order += [part for part in parts if part not in order]
    return {model: states[model] for model in order}


def with_widgets(stored, stem):
    """A notebook with the state of the widgets that it shows.

    So a page without a kernel can draw them; their ids are the same in every run."""
    stored['metadata'].pop('widgets', None)
    shown = widgets_shown(stored)
    if not shown: return stored
    states = widget_states(shown)
    state = {'version_major': 2, 'version_minor': 0, 'state': states}
    stored['metadata']['widgets'] = {STATE: state}
    text = json.dumps(stored)
    for i, model in enumerate(states): text = text.replace(model, f'{stem}-{i}')
    return json.loads(text)


def clean(output):
    "An output without what changes from run to run, its picture lighter."
    if PNG in output.get('data', {}): output['data'][PNG] = lighter(''.join(output['data'][PNG]))
    return lasting(output)


def lasting(output):
    "An output without what changes from run to run."
    if 'execution_count' in output: output['execution_count'] = None
    if 'text' in output:
        lines = [line.replace('\r\n', '\n') for line in output['text']]
        output['text'] = [re.sub(r'0x[0-9a-f]{6,}', '0x...', line) for line in lines]
    return output


def lighter(picture):  # str, base64
    "A PNG with a palette of 256 colours: a third of the bytes, and no difference to the eye."
    from PIL import Image
    image, found = Image.open(io.BytesIO(base64.b64decode(picture))), io.BytesIO()
    if image.mode == 'P': return picture
    dots = {'dpi': image.info['dpi']} if 'dpi' in image.info else {}
    image.convert('RGB').quantize(256, dither=Image.Dither.NONE).save(found, 'PNG', **dots)
    return base64.b64encode(found.getvalue()).decode()


def text_of(outputs):
    "What the reader of a cell's outputs reads: its text, without pictures."
    found = []
    for output in outputs:
        if output['output_type'] == 'stream': found.append(''.join(output['text']))
        data = output.get('data', {})
        found += [''.join(data[kind]) for kind in TEXT if kind in data]
    return found


# what is derived

def write_whole(path, text):
    "Write a file whole or not at all."
    folder = Path(path).parent
    with tempfile.NamedTemporaryFile('w', dir=folder, delete=False, encoding='utf-8') as file:
        file.write(text)
    os.replace(file.name, path)
    os.chmod(path, 0o644)


def exported():  # dict: path below the package -> text
    "The modules that the notebooks define, as they would be written now."
    os.environ.pop('IN_TEST', None)
    from nbdev.export import nb_export
    with tempfile.TemporaryDirectory() as folder:
        # laid out like the project, since modules name their notebook by a relative path
        nbs, package = Path(folder) / 'nbs', Path(folder) / 'transformer_perf'
        shutil.copytree(ROOT / 'nbs', nbs)
        package.mkdir()
        for path in NOTEBOOKS: nb_export(nbs / path.name, lib_path=package)
        return {path.relative_to(package).as_posix(): path.read_text(encoding='utf-8')
                for path in package.rglob('*.py')}


def as_read(cell):
    "A cell of index.ipynb as README.md shows it."
    if 'echo: false' in directives(cell.source):
        cell.metadata['transient'] = {'remove_source': True}
    cell.source = without_directives(cell.source)
    for output in cell.get('outputs', []):
        markdown = output.get('data', {}).get('text/markdown')
        if markdown is not None: output['data'] = {'text/markdown': markdown}
    return cell


def readme():
    "README.md, from index.ipynb as it is stored."
    import nbformat
    from nbconvert import MarkdownExporter
    nb = nbformat.read(ROOT / 'nbs' / 'index.ipynb', as_version=4)
    nb.cells = [as_read(cell) for cell in nb.cells if 'hide' not in directives(cell.source)]
    text, _ = MarkdownExporter().from_notebook_node(nb)
    text = text.replace('](images/', '](nbs/images/')
    text = re.sub(r'\]\((\d\d\w+)\.ipynb\)', r'](nbs/\1.ipynb)', text)
    text = re.sub(r'\n{3,}', '\n\n', text).strip()
    return f'<!-- made from nbs/index.ipynb by tools/notebooks.py -->\n\n{text}\n'


def run_whole(path):
    "Run a notebook and store its outputs."
    notebook = Notebook(path)
    try: notebook.run_to(len(notebook.nb.cells) - 1)
    except Exception as error:
        source = notebook.nb.cells[notebook.broken].source
        what = f'{path.name}, cell {notebook.broken}: {type(error).__name__}: {error}'
        raise SystemExit(f'{what}\n{source}') from error
    notebook.save()
    print('ran', path.name)


def export():
    "Write the modules; what was imported of the old ones is forgotten."
    from nbdev import nbdev_export

    from transformer_perf.sweeps import one_at_a_time
    os.environ.pop('IN_TEST', None)
    with one_at_a_time(ROOT / 'transformer_perf'): nbdev_export()   # two would mix their lines
    for name in [name for name in sys.modules if name.split('.')[0] == 'transformer_perf']:
        del sys.modules[name]


def main(names):
    "Make all that is derived, running the notebooks named, or all."
    export()
    for path in NOTEBOOKS:
        if path.stem in names or not names: run_whole(path)
    from pages import reading_order
    write_whole(ROOT / 'README.md', readme())
    write_whole(ROOT / 'nbs' / 'README.md', reading_order())


if __name__ == '__main__': main(sys.argv[1:])
