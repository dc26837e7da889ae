"Sharded data parallelism, optimizer states and the memory bound, by hand counts and properties."
import dataclasses
import math

import pytest

from transformer_perf import Model, Parallel, estimate
from transformer_perf.estimates import as_assumptions
from transformer_perf.modules import model_figures
from transformer_perf.systems import as_system

SMALL = Model(2048, 4096, 32, 32)
PRESETS = ('paper', 'corrected', 'calibrated')


def close(a, b, rel=1e-9): return math.isclose(a, b, rel_tol=rel, abs_tol=1e-15)


def figures(model=SMALL, preset='corrected', system='H100-80GB', batch=512, parallel=None,
            **changes):
    "The figures of one configuration under some assumptions."
    a = dataclasses.replace(as_assumptions(preset), **changes)
    return estimate(model, Parallel(**(parallel or {})), system, batch, a).stats


# optimizer states

ADAM = {   # bytes of a parameter: gradient, master, moment -> all, with 2 of the weight
    'fp32': ((4, 4, 4), 18), 'no whole weight beside the 16-bit one': ((4, 2, 4), 16),
    'bf16 moments': ((4, 2, 2), 12), 'fp8 moments': ((4, 4, 1 + 4 / 2048), 12 + 8 / 2048),
    '16-bit gradients': ((2, 4, 4), 16), 'DeepSpeed, gradients of both kinds': ((6, 4, 4), 20)}


@pytest.mark.parametrize('preset', PRESETS)
@pytest.mark.parametrize('kind', ADAM)
def test_bytes_of_a_parameter(kind, preset):
    "One GPU: 2 bytes a weight, and what the optimizer adds; over n copies the states are shared."
    (gradient, master, moment), total = ADAM[kind]
    changes = dict(gradient_held=gradient, master_bytes=master, moment_bytes=moment,
                   vocabulary=False)
    a = as_assumptions(preset).on(as_system('H100-80GB'))
    parameters = model_figures(SMALL, assumptions=a)['parameters_B']
    parts = ('weights_GB', 'gradients_GB', 'optimizer_GB')
    for n in (1, 8):
        found = figures(preset=preset, parallel=dict(dp=n), **changes)
        expected = 2 + gradient + (total - 2 - gradient) / n
        assert close(sum(found[part] for part in parts), expected * parameters)


def test_states_as_a_multiple_of_weights():
    "The name of the published model."
    plain, given, less = (figures(**changes)['optimizer_GB'] for changes in (
        {}, {'optimizer_bytes': 6.}, {'optimizer_bytes': 3., 'moment_bytes': 1.}))
    assert plain == given == 2 * less


def test_a_step_moves_its_states():
    "30 bytes a parameter with fp32 states, 20 with bf16 moments beside halves of the weights."
    other = lambda **changes: figures(
        preset='calibrated', system='A100-80GB', parallel=dict(tp=8), batch=1, **changes)['other_s']
    usual, none = other(), other(optimizer_bytes=0.)
    halved = other(master_bytes=2., moment_bytes=2.)
    assert close((usual - halved) / (usual - none), (30 - 20) / (30 - 6), 1e-6)
    assert figures()['other_s'] == figures(moment_bytes=1.)['other_s'] == 0   # not in the paper
