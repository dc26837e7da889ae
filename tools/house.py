"""The house on a page: who imports whom, as a Mermaid diagram from the modules' own text.

`python tools/house.py` writes it into CONTRIBUTING.md; a test holds it there.
"""
import ast
import functools
import graphlib
import re

import pages
from notebooks import ROOT, write_whole

WINGS = {   # rooms beside each other; all others are the core, below them
    'files': ('interop', 'scripts', 'traces', 'results'),
    'advice': ('advice', 'plan', 'sensitivity'),
    'studies': ('plots', 'sweeps', 'ranks', 'scaling', 'packing'),
    'evidence': ('runs', 'memory_runs', 'validation', 'measure'),
    'panels': ('drawing', 'panel_states', 'layer_panel', 'search_panel', 'chart_panels', 'panels'),
    'doors': ('panel_server', 'exercises', 'cli'),
}
MODULES = {path.stem: path.read_text(encoding='utf-8') for path in pages.PACKAGE.glob('*.py')
           if not path.stem.startswith('_')}


@functools.cache
def imported(text):  # set of str: what a module imports, by full names
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import): found |= {alias.name for alias in node.names}
        if not isinstance(node, ast.ImportFrom): continue
        parts = ['transformer_perf'] * bool(node.level) + [node.module] * bool(node.module)
        found |= {'.'.join([*parts, alias.name]) for alias in node.names}
    return found


@functools.cache
def arrows():  # dict: module -> modules of ours that it imports
    "Who imports whom; a name of the public face leads to the module where it lives."
    homes, found = pages.public_names(), {}
    for module, text in MODULES.items():
        own = [name.split('.')[1:] for name in imported(text)
               if name.split('.')[0] == 'transformer_perf']
        found[module] = {homes.get(parts[0], parts[0]) for parts in own if parts} & MODULES.keys()
    return found


def floors(found):  # list of modules, each after all that it imports
    return [*graphlib.TopologicalSorter({room: sorted(found[room]) for room in sorted(found)}
                                        ).static_order()]


def below(found):  # dict: module -> all that it rests on
    whole = {}
    for room in floors(found):
        whole[room] = found[room].union(*(whole[other] for other in found[room]))
    return whole


def direct(found):  # dict: module -> modules
    "Only the arrows that do not follow from others."
    whole = below(found)
    return {room: {other for other in own if not any(other in whole[third] for third in own)}
            for room, own in found.items()}


def diagram():  # str
    "The core and its wings; an arrow leads to what a room imports."
    every = arrows()
    found, order, wings = direct(every), floors(every), {'core': (), **WINGS}
    inside = {room for rooms in wings.values() for room in rooms}
    wings['core'] = [room for room in order if room not in inside]
    lines = ['```mermaid', 'flowchart TD']
    for wing, rooms in reversed(wings.items()):
        own = [room for room in reversed(order) if room in rooms]
        lines += [f'    subgraph {wing}-wing [{wing}]', *(f'        {room}' for room in own),
                  '    end']
    lines += [f'    {room} --> {" & ".join(sorted(found[room]))}'
              for room in reversed(order) if found[room]]
    return '\n'.join([*lines, '```'])


def with_diagram(text):  # str
    "CONTRIBUTING.md with the diagram of today."
    return re.sub(r'```mermaid\n.*?```', lambda _: diagram(), text, flags=re.DOTALL)


if __name__ == '__main__':
    path = ROOT / 'CONTRIBUTING.md'
    write_whole(path, with_diagram(path.read_text(encoding='utf-8')))
