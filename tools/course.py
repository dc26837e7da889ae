"""Exercises for a class: what students and teachers get, and grades.

`python tools/course.py hand-out FOLDER` writes FOLDER/student and FOLDER/teacher.
`python tools/course.py grade FILLED.ipynb ...` prints points for each step, and a grade; with
`-o GRADES.csv` it writes them to a table, too.

Everything is made from the exercises as they stand in nbs/. Of what comes back only the cells with
blanks are read, and run in our own copy of the notebook, so that checks and numbers are ours.
"""
import argparse
import ast
import contextlib
import io
import json
import multiprocessing
import os
import re
import sys
import tempfile
import textwrap
import warnings
from pathlib import Path
from typing import NamedTuple

from notebooks import (
    NOTEBOOKS, ROOT, Notebook, as_stored, cells_of, clean, directives, first_blank, is_exercise,
    without_directives, write_whole)

EXERCISES = {path.stem: path for path in NOTEBOOKS if is_exercise(path)}
GRADES = {90: 'A', 80: 'B', 70: 'C', 60: 'D', 0: 'F'}   # from so many per cent on
PATIENCE, OPENING = 120, 300   # s that a step may take, and what stands before the first
KEY = 'transformer_perf_exercise'   # of a hand-out's metadata: the exercise that it is


# what an exercise is made of

class Step(NamedTuple):
    "A blank, and what fills it."
    cell: str       # id of the cell
    points: int
    solution: str


def source_of(cell): return ''.join(cell['source'])


def is_code(cell): return cell['cell_type'] == 'code'


def is_blank(cell): return 'eval: false' in directives(source_of(cell))


def is_folded(cell): return 'code-fold: true' in directives(source_of(cell))


def points_of(cell):
    "What a blank is worth: its directive `#| points: ...`."
    return next(int(word.removeprefix('points: ')) for word in directives(source_of(cell))
                if word.startswith('points: '))


def parts_of(stem):  # (cells up to the solutions, list of Step)
    "The exercise as it is read, and its steps."
    cells = cells_of(EXERCISES[stem])
    end = [source_of(cell) for cell in cells].index('## Solutions')
    asked, filling = ([cell for cell in part if is_code(cell) and is_blank(cell)]
                      for part in (cells[:end], cells[end:]))
    steps = [Step(blank['id'], points_of(blank), without_directives(source_of(solution)))
             for blank, solution in zip(asked, filling, strict=True)]
    return cells[:end], steps


# what students get

SOLUTIONS = 'The solutions are the folded last section.'
ANOTHER = r'Another `seed` is another \w+: change it and run the notebook again\.'
ASKED = ('{} points in all. Only the cells with a `...` are read when it is graded, so keep '
         'everything of yours in them.')
NAME = '''from transformer_perf.exercises import run_packed, seed_of

name = ...   # yours, in quotes'''
SEED = 'seed = seed_of(name)   # other names, other numbers'
PACKED = "run_packed('''\n{}\n''', globals())   # {}"


def packed(source):
    "Code of which nothing can be read, in lines."
    from transformer_perf import exercises
    return '\n'.join(textwrap.wrap(exercises.hidden_code(source), 99, break_on_hyphens=False))


def is_check(source): return bool(re.search('^# check$', source, re.MULTILINE))


def is_hidden(cell): return cell['cell_type'] == 'raw' or 'hide' in directives(source_of(cell))


def given_away(paragraph):
    "Whether a paragraph says what was to be found."
    return paragraph.startswith(('**Answer', '**Takeaway'))


def headed(text, steps):
    "Text with the points of each step in its heading."
    def with_points(heading):
        number = int(heading[1])
        if number > len(steps): return heading[0]   # a section that asks for nothing
        return f'{heading[0]} ({steps[number - 1].points} points)'
    return re.sub(r'^## (\d+)\. .*$', with_points, text, flags=re.MULTILINE)


def unlinked(text):
    "Text whose links to chapters are their names: a hand-out travels alone."
    return re.sub(r'\[([^\]]+)\]\((\d\d[a-z]?)_\w+\.ipynb\)', r'\1 (chapter \2)', text)


def for_students(text, steps):
    "Text without answers."
    kept = [part for part in text.split('\n\n') if not given_away(part)]
    asked = ASKED.format(sum(step.points for step in steps))
    own = re.sub(ANOTHER, 'Your name draws them.', '\n\n'.join(kept))
    return headed(unlinked(own).replace(SOLUTIONS, asked), steps)


def code_for_students(cell, opening):  # str
    "A code cell, packed if it would give anything away."
    source = without_directives(source_of(cell))
    if source == 'seed = 0': return SEED
    if is_blank(cell): return source
    if is_check(source): return PACKED.format(packed(source), 'the check of this step')
    if not is_folded(cell) or opening and 'def ' not in source: return source
    return PACKED.format(packed(source), 'your numbers' if opening else 'a picture of your answers')


def student_version(stem):  # a notebook
    "An exercise with its blanks, without solutions; its checks are packed."
    cells, steps = parts_of(stem)
    blank, found = first_blank(EXERCISES[stem]), []
    for i, cell in enumerate(cells):
        if is_hidden(cell): continue
        new = {'cell_type': cell['cell_type'], 'id': cell['id'], 'metadata': {}}
        if is_code(cell):
            kept = any('image/png' in output.get('data', {}) for output in cell['outputs'])
            new |= {'source': code_for_students(cell, i < blank), 'execution_count': None,
                    'outputs': cell['outputs'] if kept else []}
        else: new['source'] = for_students(source_of(cell), steps)
        if new['source']: found.append(new)
    return notebook_of(stem, [*found[:2], code_cell('your-name', NAME), *found[2:]])


def code_cell(name, source):
    return {'cell_type': 'code', 'id': name, 'metadata': {}, 'source': source, 'outputs': [],
            'execution_count': None}


def notebook_of(stem, cells):
    kernel = {'display_name': 'Python 3', 'language': 'python', 'name': 'python3'}
    return {'cells': cells, 'metadata': {'kernelspec': kernel, KEY: stem}, 'nbformat': 4,
            'nbformat_minor': 5}


# what teachers get

def points_table(steps):
    "What each step is worth."
    rows = [f'| {i} | {step.points} |' for i, step in enumerate(steps, 1)]
    total = sum(step.points for step in steps)
    return '\n'.join(['## Points\n', '| step | points |', '| --- | --- |', *rows,
                      f'| all | {total} |'])


def teacher_version(stem):  # a notebook
    "An exercise with its solutions in place, checks that can be read, answers and outputs."
    cells, steps = parts_of(stem)
    ran, worth = Notebook(EXERCISES[stem]), {step.cell: step.points for step in steps}
    ran.run_to(len(cells) - 1)
    found = []
    for cell, done in zip(cells, ran.nb.cells):
        if is_hidden(cell): continue
        new = {'cell_type': cell['cell_type'], 'id': cell['id'], 'metadata': {}}
        if is_code(cell):
            source = without_directives(done.source)
            if is_blank(cell): source = f'# solution, {worth[cell["id"]]} points\n{source}'
            outputs = json.loads(json.dumps(done.get('outputs', [])))
            new |= {'source': source, 'execution_count': None, 'outputs': [*map(clean, outputs)]}
        else:
            text = source_of(cell).replace(SOLUTIONS, 'With solutions, for teachers.')
            new['source'] = headed(unlinked(text), steps)
        found.append(new)
    table = {'cell_type': 'markdown', 'id': 'points', 'metadata': {},
             'source': points_table(steps)}
    return notebook_of(stem, [*found, table])


def hand_out(folder):
    "Write both versions of every exercise."
    for name, version in (('student', student_version), ('teacher', teacher_version)):
        place = Path(folder) / name
        place.mkdir(parents=True, exist_ok=True)
        for stem in EXERCISES: write_whole(place / f'{stem}.ipynb', as_stored(version(stem)))
        print(f'{len(EXERCISES)} notebooks in {place}')


# grades

class Result(NamedTuple):
    "What a filled-in notebook is worth."
    file: str
    exercise: str
    name: str
    seed: int
    steps: list   # of (points, points to be had, what is wrong)

    points = property(lambda self: sum(points for points, _, _ in self.steps))
    total = property(lambda self: sum(most for _, most, _ in self.steps))
    percent = property(lambda self: 100 * self.points / self.total)
    grade = property(lambda self: next(g for p, g in GRADES.items() if self.percent >= p))

    def __str__(self):
        lines = [f'{self.exercise}, {self.name} (seed {self.seed}): {self.file}']
        lines += [f'  step {i}: {points} of {most}' + (f'   {wrong}' if wrong else '')
                  for i, (points, most, wrong) in enumerate(self.steps, 1)]
        whole = f'{self.points} of {self.total} points, {self.percent:.0f} %: {self.grade}'
        return '\n'.join([*lines, f'  {whole}'])


def read_filled(path):  # (stem, name, dict: id of a cell -> its code)
    "What a student's notebook says, without running any of it."
    try: nb = json.loads(Path(path).read_text(encoding='utf-8'))
    except (OSError, ValueError) as error: raise ValueError(f'{path} is no notebook: {error}')
    stem = nb.get('metadata', {}).get(KEY) if isinstance(nb, dict) else None
    if stem not in EXERCISES: raise ValueError(f'{path} is no hand-out of tools/course.py')
    code = {cell.get('id') or cell['metadata'].get('id'): source_of(cell)   # Colab's place for it
            for cell in nb['cells'] if is_code(cell)}
    found = re.search(r'^name = (.+?)\s*(#.*)?$', code.get('your-name', ''), re.MULTILINE)
    try: name = ast.literal_eval(found[1]) if found else ...
    except (ValueError, SyntaxError): name = ...
    return stem, name, code


def assigned(source):  # set of names
    "What a cell defines."
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef): found.add(node.name)
        if isinstance(node, ast.Assign):
            found |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name)
                      and isinstance(name.ctx, ast.Store)}
    return found


def run_quietly(source, names):
    "Run a cell of ours or of a student's; nothing is printed, and no picture stays open."
    import matplotlib.pyplot as plt
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), \
         warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try: exec(compile(source, '<exercise>', 'exec'), names)  # noqa: S102 -- what grading is
        finally: plt.close('all')


def run_answer(source, wanted, names):
    "Run a student's cell; of what our notebook has defined it may only change what is asked for."
    before = dict(names)
    run_quietly(source, names)
    for name, value in before.items():
        if name not in wanted: names[name] = value


def wrong_with(source, step, check, names):  # str, empty where nothing is
    "What a check says of an answer."
    from transformer_perf.exercises import NotYet
    try:
        run_answer(source, assigned(step.solution), names)
        for cell in check: run_quietly(cell, names)
    except NotYet as error: return str(error)
    except AssertionError as error: return f'AssertionError: {error or "a check failed"}'
    except SystemExit: return 'the cell ends Python'
    except Exception as error:  # noqa: BLE001 -- whatever a student's code may raise
        return f'{type(error).__name__}: {error}'
    return ''


def graded_steps(stem, seed, code, given_up, tell):
    """Run an exercise with a student's answers; tell None first, then what is wrong with each.

    A wrong answer is replaced by ours, so that it costs its own step and no other."""
    import matplotlib
    matplotlib.use('Agg')   # before anything is drawn
    cells, steps = parts_of(stem)
    blank = first_blank(EXERCISES[stem])
    runs = [cell for i, cell in enumerate(cells) if is_code(cell) and not is_hidden(cell)
            and not (i > blank and is_folded(cell))]   # those are pictures
    sources = [f'seed = {seed}' if source_of(cell) == 'seed = 0'
               else without_directives(source_of(cell)) for cell in runs]
    starts = [i for i, cell in enumerate(runs) if is_blank(cell)]
    names = {'__name__': '__main__'}
    for source in sources[:starts[0]]: run_quietly(source, names)
    tell(None)
    for i, (step, start, end) in enumerate(zip(steps, starts, [*starts[1:], len(runs)])):
        check, answer = sources[start + 1:end], code.get(step.cell)
        before = dict(names)
        if i in given_up: wrong = given_up[i]
        elif answer is None: wrong = 'its cell is missing'
        else: wrong = wrong_with(answer, step, check, names)
        if wrong:
            names.clear()
            names.update(before)
            for source in (step.solution, *check): run_quietly(source, names)
        tell(wrong)


def in_child(stem, seed, code, given_up, pipe):
    "Grade in a process of its own, in a folder of its own."
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        graded_steps(stem, seed, code, given_up, pipe.send)


def grade(path):  # Result
    "Grade a filled-in notebook; a step that takes too long, or ends Python, is given up."
    from transformer_perf.exercises import NotYet, seed_of
    stem, name, code = read_filled(path)
    try: seed = seed_of(name)
    except NotYet: raise ValueError(f'{path} has no name in its first cell of code') from None
    steps, given_up = parts_of(stem)[1], {}
    while True:
        wrong, why = run_child(stem, seed, code, given_up)
        if why is None: break
        if len(wrong) in given_up: raise RuntimeError(f'{stem} fails with our solution, too: {why}')
        given_up[len(wrong)] = why
    found = [(0 if said else step.points, step.points, said) for step, said in zip(steps, wrong)]
    return Result(str(path), stem, name.strip(), seed, found)


def run_child(stem, seed, code, given_up):  # (what is wrong with each step; why it ended, or None)
    "What a process says of the steps, as far as it gets."
    spawn, found = multiprocessing.get_context('spawn'), []
    here, there = spawn.Pipe(False)
    child = spawn.Process(target=in_child, args=(stem, seed, code, given_up, there))
    child.start()
    there.close()
    try:
        if here.poll(OPENING): here.recv()
        while len(found) < len(parts_of(stem)[1]):
            if not here.poll(PATIENCE): return found, f'it took longer than {PATIENCE} s'
            found.append(here.recv())
    except EOFError: return found, 'its process ended'
    finally:
        child.kill()
        child.join()
    return found, None


def grade_all(paths, table):  # exit code
    "Print what each notebook is worth; write a table where one is asked for."
    import pandas as pd
    rows, failed = [], False
    for path in paths:
        try: result = grade(path)
        except ValueError as error:
            print(error, file=sys.stderr)
            failed = True
            continue
        print(result)
        points = {f'step {i}': points for i, (points, _, _) in enumerate(result.steps, 1)}
        rows.append({'file': result.file, 'exercise': result.exercise, 'name': result.name,
                     **points, 'points': result.points, 'of': result.total,
                     'grade': result.grade})
    if table: pd.DataFrame(rows).convert_dtypes().to_csv(table, index=False)
    return 2 * failed


def main(words=None):
    parser = argparse.ArgumentParser(prog='tools/course.py', description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest='command', required=True)
    out = commands.add_parser('hand-out', help='write both versions of all exercises')
    out.add_argument('folder')
    back = commands.add_parser('grade', help='points and grades of filled-in notebooks')
    back.add_argument('files', nargs='+', metavar='FILLED.ipynb')
    back.add_argument('-o', dest='table', metavar='GRADES.csv')
    asked = parser.parse_args(words)
    if asked.command == 'hand-out': return hand_out(asked.folder)
    return grade_all(asked.files, asked.table)


if __name__ == '__main__':
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
