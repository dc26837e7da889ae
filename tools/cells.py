"The notebooks as they are stored: where they are, their cells, and what stands on top of these."
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / 'nbs').glob('*.ipynb'))


def cells_of(path):
    "The cells of a notebook as it is stored."
    return json.loads(Path(path).read_text(encoding='utf-8'))['cells']


def directives(source):
    "The `#| ...` lines at the top of a code cell."
    return [line[2:].strip() for line in source.splitlines() if line.startswith('#|')]


def without_directives(source):
    "A code cell as it is read."
    return '\n'.join(line for line in source.splitlines() if not line.startswith('#|'))
