"""Measuring the machine at hand: for real where PyTorch is installed, its refusals everywhere."""
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from transformer_perf import Assumptions, Parallel, estimate
from transformer_perf.validation.measuring import (
    MEASURED, Machine, agreement, attention_call, called_often, captured, collectives, copies,
    grouped_call, machine_at_hand, measure, planned, product_call, rates, system_of, time_of, timed,
    vector_call, write_measured)
from transformer_perf.parameters import measured_folder
from transformer_perf.systems import as_system
from transformer_perf.validation import calibrate_inputs, measuring, read_inputs
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
    assert kinds() == {'bf16', 'fp32'}
    assert kinds(fp8=True) == {'bf16', 'fp8', 'fp8_block', 'fp32'}
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


def test_a_graph_stands_for_all_calls():
    "Where it can be captured; else they are made in turn."
    class Graphs:
        def __init__(self, works): self.works, self.cuda = works, self
        def CUDAGraph(self): return self
        def graph(self, own): return self
        def __enter__(self):
            if not self.works: raise RuntimeError('cannot be captured')
        def __exit__(self, *error): self.made = made[0]
        def replay(self): made[0] += self.made
    for works in (True, False):
        made = [0]
        call = lambda made=made: made.__setitem__(0, made[0] + 1)
        run = captured(Graphs(works), call, 5)
        before = made[0]
        run()
        assert made[0] - before == 5
    made = [0]
    called_often(lambda: made.__setitem__(0, made[0] + 1), 3)()
    assert made == [3]


def test_each_sample_is_followed_by_its_rest(monkeypatch):
    "By a clock that only calls and rests move: a sample of 2 ms, then three times as long a rest."
    now, rests = [0.], []
    def work(seconds): now[0] += seconds
    def rest(seconds): rests.append(seconds); work(seconds)
    clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=rest)
    monkeypatch.setattr(measuring, 'time', clock)
    seconds, samples = time_of(lambda: work(.001), lambda: None, .06, rest=3)
    assert seconds == pytest.approx(.001, rel=1e-9)
    assert rests[-samples:] == pytest.approx([3 * .002] * samples, rel=1e-9)


def test_copies_tell_the_link_to_the_host():
    "Of a machine without a data sheet; a GPU alone copies."
    assert not copies(Machine()) and len(copies(Machine(device='cuda'))) == 6
    table = stored()
    row = dict(kind='copy', op='to host', dtype='bf16', message_bytes=2e9, time_us=5e4)
    copied = pd.concat([table, pd.DataFrame([row | dict(time_us=1e5), row])], ignore_index=True)
    system = system_of(Machine(name='L99'), copied, 'mine')
    assert system.host_bandwidth == pytest.approx(40 / Assumptions().host_link_share, rel=1e-3)
    assert system_of(Machine(name='L99'), table, 'mine').host_bandwidth is None


def test_products_of_groups_are_priced_as_training_has_them():
    "All in one kernel: so many times the work of one, or as it would be priced."
    table = pd.read_csv(measured_folder() / 'measured_h100.csv').query('kind == "grouped_gemm"')
    sheet = as_system('H100-80GB')
    k = Assumptions.calibrated().measured.of(sheet)
    errors = 1e6 * kernel_seconds(table, sheet, k) / table.time_us - 1
    assert errors.notna().all() and errors.abs().mean() < .2
    one = 1e6 * kernel_seconds(table.assign(experts=1), sheet, k)
    assert (one < table.time_us).all()
    with pytest.raises(ValueError, match='none of 9 kernels tells a parameter'):
        calibrate_kernels(table, sheet)


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
    torch, machine = torch_here(), machine_at_hand()
    for layout in ('NT', 'NN', 'TN', 'TN add'):
        call = product_call(machine, layout, 32, 48, 16, 'fp32')
        assert tuple(call().shape) == (32, 48)
    gradient = product_call(machine, 'TN add', 8, 8, 8, 'fp32')
    one, two, three = (gradient().clone() for _ in range(3))
    assert torch.allclose(three - two, two - one, atol=1e-4), 'it adds to what is there'
    for op in ('copy', 'add', 'gelu', 'layernorm'):
        assert len(vector_call(machine, op, 3)()) == 3
    assert vector_call(machine, 'adam', 3)() is None
    for kv_heads in (16, 4):
        assert tuple(attention_call(machine, 64, 32, kv_heads, False)().shape) == (1, 16, 64, 32)
        assert [x.shape[1] for x in attention_call(machine, 64, 32, kv_heads, True)()] == [
            16, kv_heads, kv_heads]
    for layout, shape in (('NT', (20, 8)), ('NN', (20, 8)), ('TN', (4, 8, 16))):
        assert tuple(grouped_call(machine, layout, 4, 5, 16, 8)().shape) == shape


def test_the_machine_at_hand(tmp_path):
    torch_here()
    table, fit, _ = measure(tmp_path / 'my.json', seconds=10)
    assert list(table) == list(MEASURED) and set(table.kind) <= {
        'gemm', 'grouped_gemm', 'vector', 'attention', 'copy'}
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
