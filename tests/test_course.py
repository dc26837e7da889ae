"""Exercises as hand-outs: what students and teachers get, what wrong answers are told, grades."""
import ast
import itertools
import json
import marshal
import pickle
import re
import sys

import matplotlib.pyplot as plt
import pytest

import course
import transformer_perf
from once import asked_once
from thorough import first_of, thorough
from transformer_perf import exercises
from transformer_perf.exercises import NotYet, called_on_ranks, run_packed, seed_of

EACH = pytest.mark.parametrize('stem', course.EXERCISES)
ON_RANKS = '19_exercise_four_ranks'   # each of its answers starts processes
GRADED = pytest.mark.parametrize('stem', [
    *(stem for stem in course.EXERCISES if stem != ON_RANKS), *thorough(ON_RANKS)])


def has_seed(stem): return 'seed = 0' in map(course.source_of, course.parts_of(stem)[0])


DRAWN = [*filter(has_seed, course.EXERCISES)]   # whose numbers differ from reader to reader


def steps_of(stem): return course.parts_of(stem)[1]


def number(stem): return stem.partition('_')[0]


def graded(stem, answers, seed=7):  # list: what is wrong with each step
    "Grade answers, step -> code, in this process; our solutions stand for the others."
    steps, found = steps_of(stem), []
    code = {step.cell: answers.get(i, step.solution) for i, step in enumerate(steps, 1)}
    course.graded_steps(stem, seed, code, {}, found.append)
    return found[1:]


@pytest.fixture(scope='module', autouse=True)
def ranks_asked_once():
    "Ranks are started once for the same functions of the same data."
    start, known = exercises.called_on_ranks, {}

    def on_ranks(step, function, given, helpers=()):
        codes = [marshal.dumps(f.__code__) for f in (function, *helpers)]
        asked = step, *codes, pickle.dumps(given)
        if asked not in known: known[asked] = start(step, function, given, helpers)
        return known[asked]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exercises, 'called_on_ranks', on_ranks)
        yield


@pytest.fixture(scope='module', autouse=True)
def estimated_once():
    "Every round of answers asks for the same estimates as the one before it."
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformer_perf, 'estimate', asked_once(transformer_perf.estimate))
        yield


def sources(nb, kind): return [cell['source'] for cell in nb['cells'] if cell['cell_type'] == kind]


# blanks and solutions

@EACH
def test_solutions_fill_their_blanks(stem):
    steps, cells = steps_of(stem), {cell['id']: cell for cell in course.parts_of(stem)[0]}
    assert len(steps) >= 3
    for step in steps:
        blank = course.without_directives(course.source_of(cells[step.cell]))
        assert '...' in blank and '...' not in step.solution
        assert course.assigned(blank) <= course.assigned(step.solution)
        assert 1 <= step.points <= 5


@GRADED
def test_blanks_are_told_by_number(stem):
    "Whoever leaves a blank as it is is told which, in a sentence, by the check below it."
    cells = {cell['id']: cell for cell in course.parts_of(stem)[0]}
    blanks = {i: course.source_of(cells[step.cell]) for i, step in enumerate(steps_of(stem), 1)}
    for i, said in enumerate(graded(stem, blanks), 1):
        assert said.startswith(f'Step {i} is still blank')


@pytest.mark.parametrize('stem', first_of(
    5, [*(stem for stem in DRAWN if stem != ON_RANKS), ON_RANKS]))
def test_solutions_hold_for_other_numbers(stem):
    "Than those of the notebook's own test, and of the tests of blanks and of wrong answers."
    assert not any(graded(stem, {}, 1))
    assert not plt.get_fignums()   # and no picture stays open


# what is handed out

@EACH
def test_a_students_version_has_blanks_and_no_answer(stem):
    import nbformat   # seconds: not when tests are collected
    nb, steps = course.student_version(stem), steps_of(stem)
    nbformat.validate(nbformat.from_dict(nb))
    code, text = sources(nb, 'code'), '\n'.join(sources(nb, 'markdown'))
    assert not re.search(r'Solutions|\*\*Answer|\*\*Takeaway|\.ipynb\)|eval: false', text)
    assert sum('...' in source for source in code) == len(steps) + 1   # and the name
    for i, step in enumerate(steps, 1):
        assert f'({step.points} points)' in re.search(rf'^## {i}\. .*$', text, re.MULTILINE)[0]
    assert f'{sum(step.points for step in steps)} points in all' in text   # no solutions are
    # no formula of a solution stands in code that can be read
    read = {ast.dump(node) for source in code for node in ast.walk(ast.parse(source))}
    for step in steps:
        for node in ast.walk(ast.parse(step.solution)):
            if isinstance(node, ast.Return) and not isinstance(node.value, ast.Name):
                assert ast.dump(node.value) not in read, step.solution
    outputs = [cell for cell in nb['cells'] if cell.get('outputs')]
    assert len(outputs) == 1   # the picture of the question


@EACH
def test_a_students_checks_are_ours_packed(stem):
    shown = [source for source in sources(course.student_version(stem), 'code')
             if source.startswith('run_packed')]
    checks = [course.without_directives(course.source_of(cell))
              for cell in course.parts_of(stem)[0] if '# check' in course.source_of(cell)]
    assert len(checks) >= len(steps_of(stem))
    for check in checks: assert any(course.packed(check) in source for source in shown)
    for source in shown: assert 'match' not in source and max(map(len, source.split('\n'))) < 100


@pytest.mark.parametrize('stem', first_of(1, [*course.EXERCISES][1:3]))
def test_a_teachers_version_has_solutions_points_and_outputs(stem):
    import nbformat
    nb, steps = course.teacher_version(stem), steps_of(stem)
    nbformat.validate(nbformat.from_dict(nb))
    code, text = sources(nb, 'code'), '\n'.join(sources(nb, 'markdown'))
    for step in steps: assert f'# solution, {step.points} points\n{step.solution}' in code
    assert '**Answer.**' in text and '**Takeaway.**' in text
    assert f'| all | {sum(step.points for step in steps)} |' in text
    assert any(source.startswith('# check') for source in code)
    pictures = [cell for cell in nb['cells'] for output in cell.get('outputs', [])
                if 'image/png' in output.get('data', {})]
    assert len(pictures) >= 1 and sum(bool(cell.get('outputs')) for cell in nb['cells']) >= 4


def test_hand_out_writes_both(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(course, 'EXERCISES', dict(itertools.islice(course.EXERCISES.items(), 1)))
    course.main(['hand-out', str(tmp_path)])
    assert [*map(str, sorted(tmp_path.glob('*/*')))] == [
        str(tmp_path / who / '04_exercise_roofline.ipynb') for who in ('student', 'teacher')]
    assert '1 notebooks in' in capsys.readouterr().out


def test_the_page_for_teachers_lists_all_exercises():
    page = (course.ROOT / 'docs' / 'teaching.md').read_text()
    rows = re.findall(r'^\| (\d\d[a-z]?) \| .+ \| (\d+) \|$', page, re.MULTILINE)
    assert [(n, int(points)) for n, points in rows] == [
        (number(stem), sum(step.points for step in steps_of(stem))) for stem in course.EXERCISES]
    same = [number(stem) for stem in course.EXERCISES if stem not in DRAWN]
    assert f'the same for everybody: {", ".join(same)}.' in page


# what wrong answers are told: each diagnosis was once wrong, or could be

WRONG = {
    '04_exercise_roofline': {
        1: {'def ridge(s): return s.hbm_bandwidth / s.matrix_flops_fp16 / 1000': 'upside down',
            'def ridge(s): return s.matrix_flops_fp16 / s.hbm_bandwidth': '1 TFLOP/s is 1000'},
        2: {'def attainable(i, s): return min(i * s.hbm_bandwidth / 1000, s.matrix_flops_fp16)':
            "Python's min, max and if compare two numbers",
            'def attainable(i, s): return i * s.hbm_bandwidth / 1000': 'faster than the peak',
            'def attainable(i, s): return s.matrix_flops_fp16': 'memory cannot feed it',
            'def attainable(i, s): return np.minimum(i * s.hbm_bandwidth, s.matrix_flops_fp16)':
            'are GFLOP/s'},
        3: {'def square_product(s): return 1e-12 * s**3, 6e-9 * s**2': 'multiply-add',
            'def square_product(s): return 2e-12 * s**3, 4e-9 * s**2': 'two matrices are read',
            'def square_product(s): return 2e-12 * s**3, 12e-9 * s**2': 'two bytes, not four',
            'def square_product(s): return ...': 'still blank'},
        4: {'def seconds(F, B, s): return 20e-6 + np.maximum(F / .8 / s.matrix_flops_fp16, '
            'B / s.hbm_bandwidth)': 'inside the maximum, not after it',
            'def seconds(F, B, s): return 20e-6 + F / .8 / s.matrix_flops_fp16 + '
            'B / s.hbm_bandwidth': 'not the sum',
            'def seconds(F, B, s): return max(20e-6 + F / .8 / s.matrix_flops_fp16, '
            'B / s.hbm_bandwidth)': "Python's min, max and if",
            'def seconds(F, B, s): return np.maximum(20e-6 + F / s.matrix_flops_fp16, '
            'B / s.hbm_bandwidth)': '80 % of the peak'},
        5: {"def waits_for(op, s): return 'memory'": 'Print its four times'},
        6: {"doubled, gain = 'hbm_bandwidth', 1.1": 'another one does more',
            "doubled, gain = 'matrix_flops_fp16', 2": 'without all else'},
    },
    '14_exercise_interleaving': {
        1: {'def wait(W, p, N): return (p - 1) / (N + p - 1) * W': 'of the whole iteration',
            'def wait(W, p, N): return p / N * W': 'p - 1 stages',
            'def wait(W, p, N): return (p - 1) * W': 'fills once'},
        2: {'def iteration(v, W, c, p, N): return (W + c) * (1 + (p - 1) / (N * v))':
            'v times as many messages',
            'def iteration(v, W, c, p, N): return (W + v * c) * (1 + (p - 1) / N)':
            'does not shrink with v',
            'def iteration(v, W, c, p, N): return (W + v * c) / (1 - (p - 1) / (N * v))': '% off'},
        3: {'def best(W, c, p, N): return W * (p - 1) / (N * c)': 'the square of it',
            'def best(W, c, p, N): return np.sqrt(N * c / W / (p - 1))': 'upside down'},
    },
    '16_exercise_zero_memory': {
        1: {'def states(stage, n): return 2 * P / (n if stage == 3 else 1) + 2 * 2 * P / layers * '
            '(stage == 3) + 4 * P / (n if stage >= 2 else 1) + 12 * P / (n if stage else 1)':
            '2 bytes here, not 4',
            'def states(stage, n): return 2 * P / (n if stage == 3 else 1) + '
            '2 * P / (n if stage >= 2 else 1) + 12 * P / (n if stage else 1)': 'two whole layers',
            'def states(stage, n): return 16 * P': 'nothing is shared out'},
        2: {'def copies(stage): return min((n for n in sizes if states(stage, n) <= capacity), '
            'default=np.inf)': 'room too|no number of copies',
            'def copies(stage): return np.inf': 'fit'},
        3: {'def sent(stage, n): return 2 * 2 * P * (n - 1) / n': 'gathered twice',
            'def sent(stage, n): return (3 if stage == 3 else 2) * 2 * P': 'nothing to itself',
            'def sent(stage, n): return (2, 1, 1, 3)[stage] * 2 * P * (n - 1) / n':
            'who has the new weights'},
    },
    '19_exercise_four_ranks': {
        1: {'def ring_bytes(array, n): return array * (n - 1) / n': 'an all-reduce is two'},
        2: {'def data_bytes(tau, e, f, n): return 2 * ring_bytes(8 * e * f, n) * tau / 8':
            'however many tokens|off|times'},
        3: {'def data_parallel(ring, X, A, B, dY): return gradients(X, A, B, dY)[:2]':
            'its own tokens',
            'def data_parallel(ring, X, A, B, dY):\n'
            '    dA, dB, _ = gradients(X, A, B, dY)\n'
            '    return ring.allreduce(ring.allreduce(dA)) / 4, ring.allreduce(dB)':
            'bytes sent.*1.5|bytes sent'},
        4: {'def tensor_bytes(tau, e, f, n): return ring_bytes(8 * tau * e, n)':
            'a sum in each pass'},
        5: {'def tensor_parallel(ring, X, A, B, dY):\n'
            '    dA, dB, dX = gradients(X, A, B, dY)\n'
            '    return ring.allreduce(forward(X, A, B)), dX, dA, dB': 'dX.*one term of the sum',
            'def tensor_parallel(ring, X, A, B, dY): return oops': 'NameError'},
    },
    '21_exercise_context_or_tensor': {
        1: {'def tensor_GB(l, e, n): return 4 * 2e-9 * l * e / n': 'what it keeps, not',
            'def tensor_GB(l, e, n): return 4 * 2e-9 * l * e': 'nothing to itself',
            'def tensor_GB(l, e, n): return 2e-9 * l * e * (n - 1) / n': 'one of four'},
        2: {'def context_GB(l, e, h, h_kv, n): return 2 * 2e-9 * l * e * (n - 1) / n':
            'fewer heads of keys',
            'def context_GB(l, e, h, h_kv, n): return 2 * 2e-9 * l * e / h * h_kv / n':
            'what it has of them'},
        3: {'def least(P, A, C): return next((t for t in (1, 2, 4, 8) '
            'if 6 * P / t + 12 * P / 32 + A / 8 <= C), 0)': '2 bytes here, not 4|one of them fits',
            'def least(P, A, C): return 3': 'is 1, 2, 4 or 8, not 3'},
    },
    '23_exercise_experts_alltoall': {
        1: {'def dispatch_GB(tau, K, e, n): return 2e-9 * tau * K * e / n': 'one share',
            'def dispatch_GB(tau, K, e, n): return 2e-9 * tau * e * (n - 1) / n': 'K experts',
            'def dispatch_GB(tau, K, e, n): return 2e-9 * tau * K * e': 'do not travel',
            'def dispatch_GB(tau, K, e, n): return 1e-9 * tau * K * e * (n - 1) / n': 'two bytes'},
        2: {'def first(K): return K': 'both send the same'},
        3: {'def width(R, beta): return 3 * beta / (2 * R)': 'upside down',
            'def width(R, beta): return R / beta': 'three matrices, not two'},
    },
    '25b_exercise_muon': {
        1: {'def rounds(rows, columns):\n    m, n = sorted((rows, columns))\n'
            '    return 10 * m**2 * n + 5 * m**3': 'a multiply-add is two FLOP',
            'def rounds(rows, columns): return 20 * rows**2 * columns + 10 * rows**3':
            'whichever comes first',
            'def rounds(rows, columns):\n    m, n = sorted((rows, columns))\n'
            '    return 20 * n**2 * m + 10 * n**3': 'not the longer one',
            'def rounds(rows, columns):\n    m, n = sorted((rows, columns))\n'
            '    return 20 * m**2 * n': 'the square of X X.T is a product',
            'def rounds(rows, columns):\n    m, n = sorted((rows, columns))\n'
            '    return 30 * m**2 * n': 'less than the others',
            'def rounds(rows, columns):\n    m, n = sorted((rows, columns))\n'
            '    return 4 * m**2 * n + 2 * m**3': 'that is one'},
        2: {'def batch_needed(m): return 5 * m': 'not all of it',
            'def batch_needed(m): return .05 * m': 'not the batch of the rounds',
            'def batch_needed(m): return 1500 * m': '6 FLOP of each number',
            'def batch_needed(m): return 500': 'one m is left',
            'def batch_needed(m): return 1000 * m / 3': 'the square of X X.T is a product'},
        3: {'def faster(q, c): return c': 'there are only q',
            'def faster(q, c): return min(q, c)': 'one more than others',
            'def faster(q, c): return q / max(q // c, 1)': 'the busiest copy is waited for',
            'def faster(q, c): return q / (q // c)': 'your function raises.*ZeroDivision',
            'def faster(q, c): return -(-q // c)': 'how many the busiest copy has'},
    },
    '26a_exercise_state': {
        1: {'def of_state(C, d): return 2 * C * d + 2 * d * d': 'a multiply-add is two FLOP',
            'def of_state(C, d): return 4 * C * d + 2 * d * d': 'and it is added to',
            'def of_state(C, d): return 2 * C * d + 4 * d * d': 'skip no half of them',
            'def of_state(C, d): return 4 * C * (C * d + d * d)': 'not of all in a chunk',
            'def of_state(C, d): return 4 * d * d': 'the state alone'},
        2: {'def crossing(C, d): return C + d': 'half of the keys',
            'def crossing(C, d): return 4 * (C + d)': 'two products, of two FLOP',
            'def crossing(C, d): return 2 * d': 'reads its chunk besides',
            'def crossing(C, d): return 4 * d * (C + d)': 'what length has as much'},
        3: {'def tokens_that_weigh(H, kv, d): return H * d / kv / 2': 'has 4 bytes',
            'def tokens_that_weigh(H, kv, d): return 2 * H * d / kv': 'a key and a value',
            'def tokens_that_weigh(H, kv, d): return d / kv': 'every head has a state',
            'def tokens_that_weigh(H, kv, d): return d': 'fewer heads of keys',
            'def tokens_that_weigh(H, kv, d): return kv / H / d': 'upside down'},
    },
    '27a_exercise_offload': {
        1: {'def step_seconds(psi, beta_h, beta_c): return psi * max(6 / beta_h, 30 / beta_c)':
            'one after the other',
            'def step_seconds(psi, beta_h, beta_c): return psi * (4 / beta_h + 30 / beta_c)':
            'gradients of 32 bits come',
            'def step_seconds(psi, beta_h, beta_c): return psi * (6 / beta_h + 16 / beta_c)':
            'writes 14 bytes besides',
            'def step_seconds(psi, beta_h, beta_c): return psi * (30 / beta_h + 6 / beta_c)':
            'the CPU that moves 30',
            'def step_seconds(psi, beta_h, beta_c): return 36 * psi / beta_h': '30 do not',
            'def step_seconds(psi, beta_h, beta_c): return 30 * psi / beta_c': 'comes besides'},
        2: {'def tokens_needed(R, beta_h, beta_c): return R / 6e9 * (6 / beta_h + 30 / beta_c)':
            'not as long',
            'def tokens_needed(R, beta_h, beta_c): return 10 * R / 6 * (6 / beta_h + 30 / beta_c)':
            '1e9 bytes/s',
            'def tokens_needed(R, beta_h, beta_c): return 5e-9 * R * (6 / beta_h + 30 / beta_c)':
            '6 FLOP of a parameter, not 2',
            'def tokens_needed(R, beta_h, beta_c): return 1e-8 * R / 6 * 30 / beta_c':
            'crosses the link is in the step'},
        3: {'def micro_batch(R, n, beta_h): return R / (beta_h * 1e9)': 'brings its own link',
            'def micro_batch(R, n, beta_h): return R / (n * beta_h)': '1e9 bytes/s',
            'def micro_batch(R, n, beta_h): return R / (2e9 * n * beta_h)': 'has two bytes',
            'def micro_batch(R, n, beta_h): return 1e9 * n * beta_h / R': 'upside down'},
    },
    '29a_exercise_packing': {
        1: {'def of_a_token(documents):\n    return sum(L * n for L, n in documents.items()) / '
            'sum(documents.values())': 'not that of the mean token',
            'def of_a_token(documents):\n    return sum(L * L * n for L, n in documents.items()) / '
            'sum(documents.values())': 'divide by tokens',
            'def of_a_token(documents):\n    return sum(L * L for L in documents) / sum(documents)':
            'several documents of a length',
            'def of_a_token(documents): return np.mean([*documents])': 'differ in number'},
        2: {'def too_many(S, documents, core): return core * (S - of_a_token(documents))':
            'half of its piece',
            'def too_many(S, documents, core): return core * of_a_token(documents) / 2':
            'that is what there is',
            'def too_many(S, documents, core): return core * S / 2': 'all that is counted',
            'def too_many(S, documents, core):\n'
            '    mean = sum(L * n for L, n in documents.items()) / sum(documents.values())\n'
            '    return core * (S - mean) / 2': 'than the mean one'},
        3: {'def slowest(a, b, q): return 2 * a + 2 * b * np.mean(q)': 'the mean of the copies',
            'def slowest(a, b, q): return a + b * max(q)': 'two micro-batches',
            'def slowest(a, b, q): return (2 * a + b * q.reshape(4, 2).sum(axis=1)).max()':
            'two by two',
            'def slowest(a, b, q): return 2 * a + b * sum(np.sort(q)[-2:])': 'longest two',
            'def slowest(a, b, q):\n    best = b * np.sort(q)\n'
            '    return a + max(best[:4] + best[:3:-1])': 'each of two micro-batches takes a',
            'def slowest(a, b, q): return 2 * a + b * (max(q) + min(q))': 'not always the slowest'},
    },
    '33_exercise_parallelization': {
        1: {'def state_GB(tp, pp, dp):\n    W = layer_GB * model.depth / pp / tp\n'
            '    return 3 * W + 6 * W / dp': '2 bytes and not 4',
            'def state_GB(tp, pp, dp):\n    W = layer_GB * model.depth / pp / tp\n'
            '    return 8 * W / dp': 'not shared out over the copies'},
        2: {'def activations_GB(tp, pp): return saved[tp] * model.depth / pp': 'on their way'},
        3: {'fitting = ways': 'needs'},
        4: {'def bubble(tp, pp): return (pp - 1) / (4 * tp * pp + pp - 1)': 'not of the rest',
            'def bubble(tp, pp): return 1 / (4 * tp)': 'never waits'},
        5: {'mine = 8, 16, 2': 'not 128', 'mine = 8, 8, 2': 'slower than the best'},
    },
    '34_exercise_trace': {
        1: {"def busy(events): return sum(e['dur'] for e in events) / 1e6": 'no kernels',
            "def busy(events): return sum(e['dur'] for e in events if e['tid'] == 'kernels')":
            'microseconds'},
        2: {"def exposed(events): return sum(e['dur'] for e in events if e['tid'] != 'kernels') "
            '/ 1e6': 'two at once cost their time once',
            'def exposed(events): return iteration - busy(events)': 'some of it is waiting'},
        3: {'slow, times = ranks[-1] + 9, 1.': 'is none of the ranks'},
        4: {'without = 1e3': 'times what'},
        5: {'def mfu(TFLOP, seconds): return TFLOP / seconds': 'a share, not a rate'},
    },
}


def rounds(stem):  # yields dict: step -> (code, what it is told)
    "Wrong answers, one to each step at a time."
    yield from ({step: pair for step, pair in zip(WRONG[stem], row) if pair}
                for row in itertools.zip_longest(*(w.items() for w in WRONG[stem].values())))


@GRADED
def test_a_wrong_answer_is_told_why_and_costs_its_own_step_only(stem):
    steps = steps_of(stem)
    assert {*WRONG[stem]} == {*range(1, len(steps) + 1)}
    for wrong in rounds(stem):
        told = graded(stem, {step: code for step, (code, _) in wrong.items()})
        for i, said in enumerate(told, 1):
            if i not in wrong: assert said == ''
            else: assert re.search(wrong[i][1], said, re.DOTALL), f'{wrong[i][0]}: {said}'


def test_a_wrong_answer_is_wrong_whatever_was_drawn():
    "With some seeds activations change no number of copies, and the longest pair is the slowest."
    without = ('def copies(stage):\n'
               '    return min((n for n in sizes if states(stage, n) <= capacity), default=np.inf)')
    pair = 'def slowest(a, b, q): return 2 * a + b * (max(q) + min(q))'
    for seed in (11, 27, 30, 34):
        assert 'GB of activations' in graded('16_exercise_zero_memory', {2: without}, seed)[1]
        assert 'not always the slowest' in graded('29a_exercise_packing', {3: pair}, seed)[2]


def test_a_step_is_told_right_whoever_asks():
    "A correct answer in another form is correct."
    assert graded('14_exercise_interleaving', {
        1: 'def wait(W, p, N):\n    import math\n    return math.fsum([W / N] * (p - 1))',
        3: 'best = lambda W, c, p, N: (W / c / N * (p - 1)) ** .5'}) == ['', '', '']


# what a filled-in notebook may do, and what it costs

def filled_in(folder, stem, name='Ada Lovelace', **cells):  # path
    "A student's notebook with our solutions, but for some cells (by id)."
    nb = json.loads(json.dumps(course.student_version(stem)))
    answers = {step.cell: step.solution for step in steps_of(stem)} | cells
    for cell in nb['cells']:
        if cell['id'] in answers: cell['source'] = answers[cell['id']]
        if cell['id'] == 'your-name': cell['source'] = cell['source'].replace('...', repr(name))
    path = folder / 'mine.ipynb'
    path.write_text(json.dumps(nb))
    return path


def test_grades_are_printed_and_written(tmp_path, capsys):
    wrong = {'45a0000d': 'def iteration(v, W, c, p, N): return W'}
    path = filled_in(tmp_path, '14_exercise_interleaving', **wrong)
    table = tmp_path / 'grades.csv'
    assert course.main(['grade', str(path), '-o', str(table)]) == 0
    out = capsys.readouterr().out
    assert f'Ada Lovelace (seed {seed_of("Ada Lovelace")})' in out
    assert 'step 1: 2 of 2\n' in out and 'step 2: 0 of 3   Step 2 (v=1): ' in out
    assert out.endswith('step 3: 3 of 3\n  5 of 8 points, 62 %: D\n')
    assert table.read_text().splitlines()[1].endswith('Ada Lovelace,2,0,3,5,8,D')


@pytest.mark.parametrize('name, grade', [('a', 'A'), ('b', 'F')])
def test_grades_have_borders(name, grade):
    steps = [(9, 10, ''), (0, 0, '')] if name == 'a' else [(59, 100, '')]
    assert course.Result('f', 'e', name, 1, steps).grade == grade


@pytest.mark.thorough
def test_a_step_that_never_ends_or_ends_python_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(course, 'PATIENCE', 1)
    path = filled_in(tmp_path, '14_exercise_interleaving', **{
        '45a0000a': 'import os\nos._exit(0)', '45a0000d': 'while True: pass',
        '45a00010': 'raise SystemExit'})
    found = course.grade(path)
    assert [wrong for *_, wrong in found.steps] == [
        'its process ended', 'it took longer than 1 s', 'the cell ends Python']
    assert (found.points, found.total, found.grade) == (0, 8, 'F')


def test_an_answer_cannot_change_the_checks():
    cheats = 'def match(*args, **kwargs): pass\ndef wait(W, p, N): return 0\nW = 0'
    told = graded('14_exercise_interleaving', {1: cheats})
    assert told[0].startswith('Step 1 (p=') and told[1:] == ['', '']


def test_what_is_no_hand_out_is_refused(tmp_path, capsys):
    other, broken = tmp_path / 'other.ipynb', tmp_path / 'broken.ipynb'
    other.write_text('{"cells": [], "metadata": {}}')
    broken.write_text('{')
    nameless = filled_in(tmp_path, '14_exercise_interleaving', name=...)
    nameless.write_text(nameless.read_text().replace('Ellipsis', '...'))
    assert course.main(['grade', str(other), str(broken), str(nameless)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    for line, words in zip(said, ('no hand-out', 'is no notebook', 'has no name')):
        assert words in line


def test_a_missing_cell_costs_its_step(tmp_path):
    steps, found = steps_of('14_exercise_interleaving'), []
    code = {step.cell: step.solution for step in steps[1:]}
    course.graded_steps('14_exercise_interleaving', 0, code, {}, found.append)
    assert found == [None, 'its cell is missing', '', '']


# the functions behind the checks

def test_ranks_that_wait_for_each_other_are_told(monkeypatch):
    monkeypatch.setattr(exercises, 'RANKS_PATIENCE', 1)
    def lonely(ring, x): return ring.allreduce(x) if ring.rank else x
    with pytest.raises(NotYet, match='Step 5: the ranks wait for each other'):
        called_on_ranks(5, lonely, 2 * [([1., 2.],)])


def test_an_mpiexec_that_never_ends_is_given_up(monkeypatch, tmp_path):
    monkeypatch.setattr(exercises, 'RANKS_PATIENCE', .1)
    monkeypatch.setattr(sys, 'executable', str(tmp_path / 'python'))
    (tmp_path / 'mpiexec').write_text('#!/bin/sh\nexec sleep 60\n')
    (tmp_path / 'mpiexec').chmod(0o700)
    with pytest.raises(NotYet, match='Step 5: the ranks wait for each other'):
        called_on_ranks(5, lambda ring: ring.rank, 2 * [()])


def test_packed_code_runs_in_the_notebook():
    names = {'x': 2}
    assert run_packed(course.packed('y = 3 * x\ny'), names) == 6 and names['y'] == 6
