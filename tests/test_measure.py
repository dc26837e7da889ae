"""Measuring the machine at hand: for real where PyTorch is installed, its refusals everywhere."""
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from transformer_perf import Assumptions, Parallel, estimate
from transformer_perf.validation.measuring import (
    MEASURED, Machine, agreement, at_hand, attention_call, collectives, measure, planned,
    product_call, rates, system_of, timed, vector_call, write_measured)
from transformer_perf.parameters import measured_folder
from transformer_perf.systems import as_system
from transformer_perf.validation import calibrate_inputs, read_inputs
from transformer_perf.validation.calibration import calibrate_kernels, kernel_seconds
from transformer_perf.measured_kernels import predict_kernels


def torch_here(): return pytest.importorskip('torch', reason='PyTorch is not installed')


def stored(): return pd.read_csv(measured_folder() / 'measured_cpu.csv')


def test_without_torch_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, 'torch', None)
    with pytest.raises(ValueError, match=r"pip install 'transformer_perf\[measure\]'") as error:
        measure(tmp_path / 'my.json')
    assert '\n' not in str(error.value) and len(str(error.value)) < 300
    with pytest.raises(ValueError, match='name of a .json file'): measure('my.csv')
    with pytest.raises(ValueError, match='unknown system'): measure('my.json', system='H101')


def test_plan_follows_the_machine():
    kinds = lambda **more: {one.dtype for one in planned(Machine(**more))}
    assert kinds() == {'bf16', 'fp32'} and kinds(fp8=True) == {'bf16', 'fp8', 'fp32'}
    assert not collectives(Machine()) and len(collectives(Machine(gpus=2))) == 20
    small, large = (sum(one.nbytes for one in planned(Machine(memory=m))) for m in (1., 80.))
    assert small < large / 3


def test_what_fails_or_takes_too_long_is_left_out():
    class Broken:
        def __getattr__(self, name): raise RuntimeError('no such kernel\nhere')
    plan = planned(Machine())
    found = list(timed(Machine(torch=Broken()), plan, 60))
    assert len(found) == len(plan) and {more for _, _, more in found} == {'no such kernel'}
    assert {more for _, _, more in timed(Machine(), plan, -1.)} == {'no time'}
    assert not list(timed(Machine(rank=1), plan, 60)), 'kernels are measured by rank 0'
    assert agreement(Machine())(3) == 3


def test_a_gpu_that_ships_keeps_its_data_sheet(tmp_path):
    table = stored().assign(gpu='NVIDIA H100 80GB HBM3')
    machine = Machine(name='NVIDIA H100 80GB HBM3')
    system = system_of(machine, table, 'mine')
    assert system.matrix_flops_fp16 == as_system('H100-80GB').matrix_flops_fp16
    assert system.name == 'mine' and 'HBM3' in system.source
    gemm = table.dtype.eq('bf16') & table.kind.eq('gemm')
    priced = predict_kernels(table, 'other')
    assert priced.predicted_us[gemm].gt(0).all()
    other = system_of(Machine(name='CPU'), table, 'mine', 'B200-180GB')
    assert other.hbm_bandwidth == as_system('B200-180GB').hbm_bandwidth


def test_parameters_are_found_again(tmp_path):
    "A GPU that is slower than all that ship, measured as the model has it."
    table = stored().query('dtype == "bf16"').assign(gpu='L99')
    sheet = as_system('H100-80GB')
    k = calibrate_kernels(table.assign(time_us=1e3), sheet).calibration.of(sheet)
    table['time_us'] = 1e6 * kernel_seconds(table, sheet, k)
    fit = write_measured(tmp_path / 'l99.json', Machine(name='L99'), table, 'H100-80GB')
    again = read_inputs([tmp_path / 'l99.csv'])[0]
    assert list(again) == list(MEASURED)
    assert np.allclose(fit.runs.predicted_us, table.time_us, rtol=.02)
    twice = calibrate_inputs(again, None, str(tmp_path / 'l99.json'))[-1]
    assert twice.calibration.sets.keys() == fit.calibration.sets.keys()


# for real, where PyTorch is

def test_shapes_and_layouts():
    torch, machine = torch_here(), at_hand()
    for layout in ('NT', 'NN', 'TN', 'TN add'):
        call = product_call(machine, layout, 32, 48, 16, 'fp32')
        assert tuple(call().shape) == (32, 48)
    gradient = product_call(machine, 'TN add', 8, 8, 8, 'fp32')
    one, two, three = (gradient().clone() for _ in range(3))
    assert torch.allclose(three - two, two - one, atol=1e-4), 'it adds to what is there'
    for op in ('copy', 'add', 'gelu', 'layernorm'):
        assert len(vector_call(machine, op, 3)()) == 3
    assert tuple(attention_call(machine, 64, 32, False)().shape) == (1, 16, 64, 32)
    assert [tuple(x.shape) for x in attention_call(machine, 64, 32, True)()] == [
        (1, 16, 64, 32)] * 3


def test_the_machine_at_hand(tmp_path):
    torch_here()
    table, fit, _ = measure(tmp_path / 'my.json', seconds=10)
    assert list(table) == list(MEASURED) and set(table.kind) <= {'gemm', 'vector', 'attention'}
    assert table.time_us.gt(0).all() and set(rates(table).op) >= {'NT', 'copy'}
    assert len(fit.table) and {'product_share', 'vector_bandwidth'} & set(fit.table.parameter)
    system = as_system(str(tmp_path / 'my.json'))
    if not table.gpu[0].startswith('NVIDIA'): assert system.hbm_bandwidth < 4000
    mine = Assumptions.calibrated(tmp_path / 'my-calibrated.json')
    one = estimate('gpt3', Parallel(), system, 1, mine)
    assert one.stats['iteration_s'] > 0
    again = read_inputs([tmp_path / 'my.csv'])[0]
    assert len(again) == len(table)


def test_torchrun(tmp_path):
    "Two processes measure their messages; the first one writes."
    torch = torch_here()
    if not torch.distributed.is_available(): pytest.skip('PyTorch without torch.distributed')
    script = tmp_path / 'run.py'
    script.write_text('from transformer_perf.cli import main\nmain()\n')
    done = subprocess.run(
        [sys.executable, '-m', 'torch.distributed.run', '--nproc-per-node', '2', '--master-port',
         '0', '--rdzv-backend', 'c10d', '--rdzv-endpoint', 'localhost:0', str(script), 'measure',
         '-o', str(tmp_path / 'my.json'), '--seconds', '10'], capture_output=True, text=True,
        timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / 'my.csv')
    messages = table[table.kind == 'collective']
    assert len(messages) and messages.n_gpus.eq(2).all() and messages.time_us.gt(0).all()
    assert done.stdout.count('my-calibrated.json') == 1
    assert as_system(str(tmp_path / 'my.json')).nvlink_size == 2
