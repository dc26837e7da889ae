"Cases that repeat a check over many more inputs: run with `pytest --thorough`, as .ci/run does."
import pytest
from hypothesis import settings

run_of_all = False   # whether this is a thorough run: conftest.py says so
PARAMETER = type(pytest.param(0))


def as_parameter(case):
    "Values of `parametrize`, one or a tuple a case, or what `pytest.param` has made of them."
    if isinstance(case, PARAMETER): return case
    return pytest.param(*case) if isinstance(case, tuple) else pytest.param(case)


def thorough(*cases):  # list of parameters
    "Cases that only a thorough run takes."
    found = [as_parameter(case) for case in cases]
    return [pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.thorough])
            for case in found]


def first_of(number, cases):  # list of parameters
    "Of some cases the first are always run, the others in a thorough run."
    cases = [as_parameter(case) for case in cases]
    return [*cases[:number], *thorough(*cases[number:])]


def examples(number, always=None, **how):  # a decorator
    """So many examples that hypothesis makes, in a thorough run; always the first of them.

    These are a third, but three at least. How: further settings."""
    if always is None: always = max(-(-number // 3), 3)
    tried = settings(max_examples=number if run_of_all else always, deadline=None, **how)
    if not run_of_all: return tried
    return lambda test: pytest.mark.thorough(tried(test))
