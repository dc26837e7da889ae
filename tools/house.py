"""The house on a page: who imports whom, as a Mermaid diagram from the modules' own text.

`python tools/house.py` writes it into CONTRIBUTING.md; a test holds it there.
"""
import ast
import functools
import graphlib
import re

import pages
from notebooks import ROOT, write_whole

ROOMS = pages.rooms()                           # dict: name with dots -> text
WINGS = {name.partition('.')[0] for name in ROOMS if '.' in name}   # folders
ABOVE = ('plots', 'sweeps', 'results', 'ranks', 'scaling', 'packing', 'exercises', 'cli')


def package_of(room):  # list of names
    "Where a module's relative imports start."
    parts = ['transformer_perf', *room.split('.')]
    return parts if room in WINGS else parts[:-1]


@functools.cache
def imported(room):  # set of str: what a module imports, by full names
    "With what it asks the package for, as `perf.systems.as_system`, which imports it then."
    found = set()
    for node in ast.walk(pages.tree_of(ROOMS[room])):
        if isinstance(node, ast.Import): found |= {alias.name for alias in node.names}
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith('perf.'):
            found.add(ast.unparse(node).replace('perf', 'transformer_perf', 1))
        if not isinstance(node, ast.ImportFrom): continue
        start = package_of(room)
        parts = start[:len(start) - node.level + 1] if node.level else []
        if node.module: parts = [*parts, node.module]
        found |= {'.'.join([*parts, alias.name]) for alias in node.names}
    return found


def room_of(name):  # name of a room, or None
    "Where what is imported stands; a name of the public face leads to the module where it lives."
    first, *parts = name.split('.')
    if first != 'transformer_perf' or not parts: return None
    parts[:1] = pages.public_names().get(parts[0], parts[0]).split('.')
    known = ('.'.join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((room for room in known if room in ROOMS), None)


def arrows():  # dict: room -> rooms of ours that it imports
    return {room: {room_of(name) for name in imported(room)} - {None} for room in ROOMS}


def between_wings(found):  # dict: room or wing -> those that it imports
    "The same with each wing as one."
    whole = {}
    for room, others in found.items():
        own = room.partition('.')[0]
        whole.setdefault(own, set()).update(other.partition('.')[0] for other in others)
    return {own: others - {own} for own, others in whole.items()}


def floors(found):  # list of rooms, each after all that it imports
    return [*graphlib.TopologicalSorter({room: sorted(found[room]) for room in sorted(found)}
                                        ).static_order()]


def below(found):  # dict: room -> all that it rests on
    whole = {}
    for room in floors(found):
        whole[room] = found[room].union(*(whole[other] for other in found[room]))
    return whole


def direct(found):  # dict: room -> rooms
    "Only the arrows that do not follow from others."
    whole = below(found)
    return {room: {other for other in own if not any(other in whole[third] for third in own)}
            for room, own in found.items()}


def node(room):  # str
    "A wing by its name, a room with the numbers of the notebooks that define it."
    if room in WINGS: return f'{room}[[{room}]]'
    numbers = dict.fromkeys(re.findall(r'^# %% \.\./nbs/(\w+?)_', ROOMS[room], re.MULTILINE))
    return f'{room}["{room} ({", ".join(numbers)})"]'


def diagram():  # str
    "The core, and what stands above it; a wing is a folder, drawn as one."
    every = between_wings(arrows())
    found, order = direct(every), [*reversed(floors(every))]
    core = [room for room in order if room not in WINGS and room not in ABOVE]
    lines = ['```mermaid', 'flowchart TD', *(f'    {node(room)}' for room in order
                                             if room not in core),
             '    subgraph core-rooms [core]', *(f'        {node(room)}' for room in core),
              '    end']
    lines += [f'    {room} --> {" & ".join(sorted(found[room]))}' for room in order if found[room]]
    return '\n'.join([*lines, '```'])


def with_diagram(text):  # str
    "CONTRIBUTING.md with the diagram of today."
    return re.sub(r'```mermaid\n.*?```', lambda _: diagram(), text, flags=re.DOTALL)


if __name__ == '__main__':
    path = ROOT / 'CONTRIBUTING.md'
    write_whole(path, with_diagram(path.read_text(encoding='utf-8')))
