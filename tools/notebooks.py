"""Everything that is derived from the notebooks: the package, the stored outputs and README.md.

`python tools/notebooks.py` makes all three; `python tools/notebooks.py 05_execution` runs only the notebooks named.
The tests use the same functions to see that nothing is stale.
"""
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / 'nbs').glob('*.ipynb'))
TEXT = ('text/plain', 'text/html', 'text/markdown')  # outputs that are the same on every machine; pictures are not


def directives(source):
    "The `#| ...` lines at the top of a code cell."
    return [line[2:].strip() for line in source.splitlines() if line.startswith('#|')]


def is_run(source):
    "Whether a cell is run by the tests and its outputs kept."
    return bool(source.strip()) and not {'eval: false', 'slow'} & set(directives(source))


class Notebook:
    "A notebook whose code cells are run in order, on demand."

    def __init__(self, path):
        from execnb.nbio import read_nb
        self.path, self.nb, self.shell, self.done, self.broken = Path(path), read_nb(path), None, -1, None

    def run_to(self, index):
        "Run the code cells up to one; its exception, if any, is raised."
        if self.shell is None: self.shell = self._fresh_shell()
        for cell in self.nb.cells[self.done + 1:index + 1]:
            self.done = cell.idx_
            if cell.cell_type != 'code' or not is_run(cell.source): continue
            if self.broken is not None: raise RuntimeError(f'an earlier cell of {self.path.name} failed: cell {self.broken}')
            cell.outputs = []
            here = os.getcwd()
            os.chdir(self.path.parent)
            try: self.shell.cell(cell)
            finally: os.chdir(here)
            failed = self.shell.exc or (RuntimeError('a command printed a traceback') if any('Traceback (most' in text for text in text_of(cell.outputs)) else None)
            if failed:
                self.broken = cell.idx_
                raise failed

    def _fresh_shell(self):
        os.environ.update(IN_TEST='1', PATH=str(Path(sys.executable).parent) + os.pathsep + os.environ['PATH'])  # so that `!transformer-perf` is this one
        import matplotlib
        matplotlib.rcdefaults()
        from execnb.shell import CaptureShell
        shell = CaptureShell(self.path)
        shell.run('import pandas as pd; pd.set_option("display.width", 160); pd.set_option("display.max_columns", 40)')
        return shell

    def save(self):
        "Write the notebook with the outputs of this run, and no counts or machine's traces."
        stored = json.loads(self.path.read_text(encoding='utf-8'))
        for cell, ran in zip(stored['cells'], self.nb.cells):
            if cell['cell_type'] == 'code' and is_run(''.join(cell['source'])):
                cell['outputs'], cell['execution_count'] = [clean(o) for o in json.loads(json.dumps(ran.get('outputs', [])))], None
        write_whole(self.path, json.dumps(with_widgets(stored, self.path.stem), indent=1, ensure_ascii=False) + '\n')


VIEW, STATE = 'application/vnd.jupyter.widget-view+json', 'application/vnd.jupyter.widget-state+json'


def with_widgets(stored, stem):
    "A notebook with the state of the widgets that it shows, so that a page without a kernel can draw them; their ids are the same in every run."
    stored['metadata'].pop('widgets', None)
    shown = [output['data'][VIEW]['model_id'] for cell in stored['cells'] for output in cell.get('outputs', []) if VIEW in output.get('data', {})]
    if not shown: return stored
    from ipywidgets import embed
    from ipywidgets.widgets.widget import _instances
    states = embed.dependency_state([_instances[model] for model in shown], drop_defaults=True)
    order = list(dict.fromkeys(shown))
    for model in order: order += [part for part in re.findall(r'IPY_MODEL_(\w+)', json.dumps(states[model])) if part not in order]
    stored['metadata']['widgets'] = {STATE: {'version_major': 2, 'version_minor': 0, 'state': {model: states[model] for model in order}}}
    text = json.dumps(stored)
    for i, model in enumerate(order): text = text.replace(model, f'{stem}-{i}')
    return json.loads(text)


def clean(output):
    "An output without what changes from run to run."
    if 'execution_count' in output: output['execution_count'] = None
    if 'text' in output: output['text'] = [re.sub(r'0x[0-9a-f]{6,}', '0x...', line.replace('\r\n', '\n')) for line in output['text']]
    return output


def text_of(outputs):
    "What the reader of a cell's outputs reads: its text, without pictures."
    found = []
    for output in outputs:
        if output['output_type'] == 'stream': found.append(''.join(output['text']))
        for kind, data in output.get('data', {}).items():
            if kind in TEXT: found.append(''.join(data))
    return found


def write_whole(path, text):
    "Write a file whole or not at all."
    with tempfile.NamedTemporaryFile('w', dir=Path(path).parent, delete=False, encoding='utf-8') as f: f.write(text)
    os.replace(f.name, path)
    os.chmod(path, 0o644)


def exported():  # dict: file name -> text
    "The modules that the notebooks define, as they would be written now."
    os.environ.pop('IN_TEST', None)
    from nbdev.export import nb_export
    with tempfile.TemporaryDirectory() as folder:  # laid out like the project, since modules name their notebook by a relative path
        nbs, package = Path(folder) / 'nbs', Path(folder) / 'transformer_perf'
        shutil.copytree(ROOT / 'nbs', nbs)
        package.mkdir()
        for path in NOTEBOOKS: nb_export(nbs / path.name, lib_path=package)
        return {path.name: path.read_text(encoding='utf-8') for path in package.glob('*.py')}


def readme():
    "README.md, from index.ipynb as it is stored."
    import nbformat
    from nbconvert import MarkdownExporter
    nb = nbformat.read(ROOT / 'nbs' / 'index.ipynb', as_version=4)
    nb.cells = [cell for cell in nb.cells if 'hide' not in directives(cell.source)]
    for cell in nb.cells:
        if 'echo: false' in directives(cell.source): cell.metadata['transient'] = {'remove_source': True}
        cell.source = '\n'.join(line for line in cell.source.splitlines() if not line.startswith('#|'))
        for output in cell.get('outputs', []):
            if 'text/markdown' in output.get('data', {}): output['data'] = {'text/markdown': output['data']['text/markdown']}
    text, _ = MarkdownExporter().from_notebook_node(nb)
    text = text.replace('](images/', '](nbs/images/')
    text = re.sub(r'\]\((\d\db?_\w+)\.ipynb\)', r'](nbs/\1.ipynb)', text)
    return '<!-- made from nbs/index.ipynb by tools/notebooks.py -->\n\n' + re.sub(r'\n{3,}', '\n\n', text).strip() + '\n'


def main(names):
    from nbdev import nbdev_export
    os.environ.pop('IN_TEST', None)
    nbdev_export()
    for path in NOTEBOOKS:
        if names and path.stem not in names: continue
        notebook = Notebook(path)
        try: notebook.run_to(len(notebook.nb.cells) - 1)
        except Exception as error:
            raise SystemExit(f'{path.name}, cell {notebook.broken}: {type(error).__name__}: {error}\n{notebook.nb.cells[notebook.broken].source}')
        notebook.save()
        print('ran', path.name)
    if (ROOT / 'nbs' / 'index.ipynb').exists(): write_whole(ROOT / 'README.md', readme())


if __name__ == '__main__': main(sys.argv[1:])
