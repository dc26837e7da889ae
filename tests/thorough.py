"Cases that repeat a check over many more inputs: run with `pytest --thorough`, as .ci/run does."
import pytest


def thorough(*cases):  # list of parameters
    "Values of `parametrize`, one or a tuple a case, that only a thorough run takes."
    as_tuple = lambda case: case if isinstance(case, tuple) else (case,)
    return [pytest.param(*as_tuple(case), marks=pytest.mark.thorough) for case in cases]


def first_of(number, cases):  # list of parameters
    "Of some cases the first are always run, the others in a thorough run."
    cases = list(cases)
    return [*cases[:number], *thorough(*cases[number:])]
