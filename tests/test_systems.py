"""The catalogue of systems, its prices, and how the wiring of a domain is priced."""
import dataclasses
import json
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_perf import Parallel, estimate, search
from transformer_perf.estimates import (
    COLLECTIVES, SENT_ONCE, Group, Roofline, as_assumptions, peak_rate)
from transformer_perf.execution import dispatchers_on
from transformer_perf.kernels import Measured, pricer_of
from transformer_perf.measured_kernels import closest
from transformer_perf.parameters import Generation, Parameters, generations, read_calibration
from transformer_perf.sweeps import sweep
from transformer_perf.systems import (
    PHYSICAL, REQUIRED, UNIT_OF, System, as_system, gpu_of, price_per_gpu_hour, read_prices,
    sheet_of, sheets_of, system_names, system_of_gpu, systems_folder,
    systems_table)
from transformer_perf.validation import predict

PAPER = {'A100', 'H200', 'B200', 'B200-next', 'polaris', 'tg40', 'tg80'}   # of published studies
SOLD = [name for name in system_names() if name not in PAPER]
EACH = pytest.mark.parametrize('name', system_names())
WITHOUT_FP4 = {'Ampere', 'Hopper', 'CDNA 3', 'Gaudi 3', 'TPU v5p', 'TPU v6e'}
OPTIONAL = [field for field in UNIT_OF if field not in REQUIRED]


def refused(call, *words):
    "The one line with which something is refused."
    with pytest.raises(ValueError) as error: call()
    text = str(error.value)
    assert '\n' not in text and len(text) < 300
    for word in words: assert word in text
    return text


# the catalogue

def test_the_catalogue_has_what_it_should():
    assert set(SOLD) >= {   # a new one needs no line here
        'A100-80GB', 'H100-80GB', 'H200-141GB', 'B200-180GB', 'B300', 'GB200-NVL72', 'GB300-NVL72',
        'MI300X', 'MI325X', 'MI355X', 'Gaudi3', 'TPU-v5p', 'TPU-v6e', 'TPU-v7x'}


@EACH
def test_figures_are_plausible(name):
    s = as_system(name)
    assert 100 < s.matrix_flops_fp16 < 5000 and s.vector_flops_fp32 <= s.vector_flops_fp16
    assert 3 < s.matrix_flops_fp16 / s.vector_flops_fp16 < 200
    assert 1000 < s.hbm_bandwidth <= 22000 and 30 < s.hbm_capacity < 400
    assert 1 < s.hbm_bandwidth / s.nvlink_bandwidth < 20
    assert 3 < s.nvlink_bandwidth / (s.ib_bandwidth * s.nic_factor) < 150   # an H800: 4
    assert 1e-7 < s.nvlink_latency <= s.ib_latency < 1e-4
    assert s.source and s.architecture


@pytest.mark.parametrize('name', SOLD)
def test_parts_as_sold(name):
    s = as_system(name)
    assert s.date and re.fullmatch(r'20\d\d-\d\d-\d\d', s.date)
    assert s.accelerator
    ridge = s.matrix_flops_fp16 * 1000 / s.hbm_bandwidth
    assert 140 < ridge < 600
    if s.power: assert 300 <= s.power <= 1500 and 0.5 < s.matrix_flops_fp16 / s.power < 3
    if s.server_power: assert 1.1 < s.server_power / s.power < 2.1
    if s.host_bandwidth: assert 10 < s.host_bandwidth < s.nvlink_bandwidth


@pytest.mark.parametrize('name', SOLD)
def test_each_halving_of_the_bits_doubles_the_rate_or_does_nothing(name):
    "But for Rubin, which gives more of its area to 8 bits and less."
    s = as_system(name)
    bf16, fp8, fp4 = s.matrix_flops_fp16, s.matrix_flops_fp8, s.matrix_flops_fp4
    once = name in ('Gaudi3', 'TPU-v5p', 'TPU-v6e')
    times = 1 if once else 4.375 if s.architecture == 'Rubin' else 2
    if fp8: assert fp8 / bf16 == pytest.approx(times, rel=.001)
    if fp4: assert fp4 / fp8 == pytest.approx(3 if name in ('B300', 'GB300-NVL72') else 2, rel=.05)
    if s.architecture in WITHOUT_FP4: assert fp4 is None


def test_published_systems_are_untouched():
    "Systems of published studies have the fields that they were published with, and no others."
    for name in PAPER:
        s = as_system(name)
        assert all(getattr(s, field) is None for field in OPTIONAL)
        assert s.topology == 'switch' and s.peer_bandwidth == s.nvlink_bandwidth
    a100 = as_system('A100')
    assert (a100.matrix_flops_fp16, a100.hbm_bandwidth, a100.nvlink_size) == (312, 1555, 4)


def test_every_system_can_be_searched():
    for name in system_names():
        system = as_system(name, 8)
        found = search('gpt3', 256, system, 256, k=1, assumptions='corrected')
        assert len(found) == 1 and found.iteration_s[0] > 0, name


def test_calibrated_prices_every_system_and_says_where_nothing_was_measured():
    for name in system_names():
        one = estimate('gpt3', Parallel(tp=8), name, 8, 'calibrated')
        generation = as_system(name).architecture
        said = f'no kernel of {generation} was measured' in one.notes[0]
        assert one.stats['iteration_s'] > 0 and said == (generation not in generations())


@pytest.mark.parametrize('name', generations())
def test_a_generation_is_that_of_its_measured_gpu(name):
    known = generations()[name]
    assert known.sheet.architecture == name and known.source
    for kind, library in (('products', 'trtllm'), ('attention', known.newest_attention)):
        assert closest(kind, known.measured_gpu, library)[0].split('/')[1] == library
    sets = [k for k in read_calibration().sets.values() if k.architecture == name]
    assert sets and all(k.generation is known for k in sets)


def test_a_generation_that_is_none():
    ampere = vars(generations()['Ampere'])
    refused(lambda: Generation(**{**ampere, 'power': 0}), 'power=0 must be a number from 1e-20')
    refused(lambda: Generation(**{**ampere, 'cores': 1}), "unknown field of Generation 'cores'")
    less = {key: value for key, value in ampere.items() if key != 'cache'}
    refused(lambda: Generation(**less), "Generation lacks 'cache'")
    refused(lambda: Parameters('Volta'), "unknown architecture 'Volta'; known: Ampere, Hopper")


def test_table():
    table = systems_table()
    assert list(table.index) == system_names()
    assert {*UNIT_OF, 'topology', 'source'} <= {*table.columns}
    assert table.loc['MI300X', 'matrix_flops_fp8'] == 2614.9
    assert np.isnan(table.loc['MI300X', 'matrix_flops_fp4'])


# own systems, and what is missing

def test_optional_fields_are_optional():
    h100 = {key: value for key, value in vars(as_system('H100-80GB')).items()
            if key in REQUIRED}   # seventeen, as the how-to says
    assert len(h100) == 17
    mine = as_system(h100)
    assert mine.topology == 'switch' and mine.matrix_flops_fp8 is None
    assert as_system({**h100, 'matrix_flops_fp8': None}) == mine      # null in JSON
    for field in REQUIRED:
        less = {key: value for key, value in h100.items() if key != field}
        refused(lambda less=less: as_system(less), f"system lacks '{field}'")


@pytest.mark.parametrize('fields, words', [
    (dict(topology='ring'), "unknown topology 'ring'; known: switch, mesh, 2d-torus, 3d-torus"),
    (dict(topology='tree'), "unknown topology 'tree'"),
    (dict(topology='3d-tours'), "did you mean '3d-torus'?"),
    (dict(matrix_flops_fp8=0), 'matrix_flops_fp8=0 must be a number from 1e-20'),
    (dict(power='700 W'), "power='700 W' must be a number from 1e-20"),
    (dict(server_power=-1), 'server_power=-1 must be a number from 1e-20'),
    (dict(date=2026), 'date=2026 must be text'),
    (dict(matrix_flops_fp6=1), "did you mean 'matrix_flops_fp"),
    (dict(matrix_flops_fp16=989e12), 'TFLOP/s must be at most 1e+06: is it in another unit?'),
    (dict(element_size=2.), 'element_size=2.0 GB must be at most 1e-06: is it in another unit?'),
    (dict(flops_units=1.), 'flops_units=1.0 TFLOP must be at most 1e-06'),
    (dict(hbm_capacity=80e9), 'hbm_capacity=80000000000.0 GB must be at most 1e+06'),
    (dict(hbm_bandwidth=3.35e12), 'hbm_bandwidth=3350000000000.0 GB/s must be at most 1e+06'),
    (dict(ib_latency=5), 'ib_latency=5.0 s must be at most 1'),
    (dict(ib_latency=np.array([1e-6, 5])), 's must be at most 1'),   # one of many systems
])
def test_own_figures_are_checked(fields, words):
    refused(lambda: as_system({**vars(as_system('H100-80GB')), **fields}), words)


def test_axes_of_many_systems():
    "As many as the figures that vary in most ways have: those that vary in fewer go along."
    rates, rooms = np.array([1., 2.]), np.ones((3, 1))
    many = dataclasses.replace(as_system('H200'), hbm_bandwidth=rates, hbm_capacity=rooms)
    assert (as_system('H200').axes, many.axes) == (0, 2)
    assert many.rows(np.ones(4)).shape == (4, 1, 1)


def test_missing_figures_say_so():
    a100, mi300x = as_system('A100-80GB'), as_system('MI300X')
    assert mi300x.matrix_flops('bf16') == mi300x.matrix_flops('fp16') == 1307.4
    assert mi300x.matrix_flops('fp8') == 2614.9
    refused(lambda: a100.matrix_flops('fp8'), "'A100-80GB' has no matrix_flops_fp8")
    refused(lambda: mi300x.given('server_power'), "'MI300X' has no server_power")
    refused(lambda: mi300x.matrix_flops('fp32'), "unknown precision 'fp32'")
    refused(lambda: mi300x.given('server_powr'), "did you mean 'server_power'?")
    assert as_system('H100-80GB').given('server_power') == 1275


def test_a_sweep_may_vary_what_a_system_lacks():
    table = sweep(['gpt3'], {'A100': as_system('A100', 8)}, [256], ['1d'],
                  vary={'matrix_flops_fp8': [1000., 2000.]},
                  global_batch=4096, assumptions='corrected')
    assert {*OPTIONAL} <= {*PHYSICAL}
    assert table.matrix_flops_fp8.tolist() == [1000, 2000] and table.iteration_s.nunique() == 1


# wiring

def test_what_one_gpu_sends_to_another():
    share = {name: s.peer_bandwidth / s.nvlink_bandwidth
             for name in system_names() for s in [as_system(name)]}
    assert share.pop('TPU-v5p') == share.pop('TPU-v7x') == 1 / 6   # links in three directions
    assert share.pop('TPU-v6e') == 1 / 4
    for name in ('MI300X', 'MI325X', 'MI355X', 'Gaudi3'):
        assert share.pop(name) == pytest.approx(1 / 7, rel=1e-12)
    assert set(share.values()) == {1}


shapes = st.sampled_from(['switch', 'mesh', '2d-torus', '3d-torus'])
pricers = st.sampled_from([Roofline, lambda s: Measured(s, Parameters())])


@given(shapes, st.integers(1, 64))
def test_a_larger_group_has_no_less_bandwidth(shape, size):
    s = dataclasses.replace(as_system('MI300X', size), topology=shape)
    rates = np.array([s.bandwidth_among(n) for n in range(1, size + 1)])
    assert (np.diff(rates) >= 0).all() and (rates <= s.nvlink_bandwidth).all()
    assert rates[0] == s.peer_bandwidth
    together = s.bandwidth_among(np.arange(1, size + 1))
    np.testing.assert_array_equal(np.broadcast_to(together, rates.shape), rates)
    if shape in ('switch', 'mesh'): assert rates[-1] == pytest.approx(s.nvlink_bandwidth)


@given(shapes, pricers, st.sampled_from([2, 4, 8]), st.sampled_from([*COLLECTIVES, 'ring']))
def test_wires_are_priced_by_what_they_carry(shape, pricer, n, kind):
    "A domain costs what a switch with the bandwidth of its group's links costs."
    s = dataclasses.replace(as_system('MI300X'), topology=shape)
    links = 2 if kind == 'ring' else n
    alike = dataclasses.replace(s, topology='switch', nvlink_bandwidth=s.bandwidth_among(links))
    price = lambda x, kind: pricer(x).collective(kind, 1., Group(n, n))
    kinds = [kind]   # measured all-reduces were added up by a switch: else there are two turns
    if kind == 'allreduce' and shape != 'switch' and isinstance(pricer(s), Measured):
        kinds = ['reducescatter', 'allgather']
    assert price(s, kind) == pytest.approx(sum(price(alike, x) for x in kinds), rel=1e-12)
    pair = dataclasses.replace(s, topology='switch', nvlink_bandwidth=s.peer_bandwidth)
    assert pricer(s).send(1., True) == pytest.approx(pricer(pair).send(1., True), rel=1e-12)
    assert pricer(s).send(1., False) == pricer(pair).send(1., False)


def test_a_message_in_a_mesh_takes_seven_times_as_long():
    mesh = as_system('MI300X')
    switch = dataclasses.replace(mesh, topology='switch')
    a = as_assumptions('corrected')
    messages = [pricer_of(s, a).send(1., True) - s.nvlink_latency for s in (mesh, switch)]
    assert messages[0] == pytest.approx(7 * messages[1], rel=1e-12)
    gathers = [pricer_of(s, a).collective('allgather', 1., Group(8, 8)) for s in (mesh, switch)]
    assert gathers[0] == gathers[1]
    stages = [estimate('gpt3', Parallel(pp=8), s, 64, 'corrected').stats['pp_comm_s']
              for s in (mesh, switch)]
    assert 6.5 < stages[0] / stages[1] <= 7


def test_wiring_of_array_systems():
    bandwidth = np.array([[100.], [700.]])
    s = dataclasses.replace(as_system('MI300X'), nvlink_bandwidth=bandwidth)
    np.testing.assert_allclose(s.bandwidth_among(np.array([2, 8])), [[100 / 7, 100], [100, 700]])


# prices

def test_prices_that_ship():
    table, name = read_prices()
    assert name == 'prices.csv' and table.Source.notna().all()
    assert table.Date.dropna().str.fullmatch(r'20\d\d-\d\d(-\d\d)?').all()
    each = table.Price / table.AcceleratorCount
    assert each.between(.5, 10).all()
    known = {as_system(name).accelerator for name in SOLD}
    assert set(table.AcceleratorName) <= known
    assert price_per_gpu_hour('GB200-NVL72').usd == 4.54
    assert price_per_gpu_hour('GB200-NVL72').date == '2026-03-17'
    assert 'Spheron' in price_per_gpu_hour('GB200-NVL72').source


def test_the_middle_offer_of_ones_own_prices(tmp_path):
    "A SkyPilot catalog may stand in the place of the table that ships."
    path = tmp_path / 'vms.csv'
    path.write_text('InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,'
                    'GpuInfo,SpotPrice\n'
                    'cpu,,0,4,16,0.1,eu,,\n'
                    'one,H100,1,16,200,3.00,eu,"{}",1.25\n'
                    'eight,H100,8,128,1600,16.00,eu,"{}",\n'
                    'spot,H100,2,32,400,,eu,"{}",2.00\n'
                    'dear,H100,1,16,200,9.00,us,"{}",\n')
    price = price_per_gpu_hour('H100-80GB', str(path))
    assert (price.usd, price.date, price.source) == (3, None, 'vms.csv')
    assert price == price_per_gpu_hour('H100-80GB', path)
    in_words = price_per_gpu_hour('H100-80GB', pd.read_csv(path, dtype=str))   # as text has them
    assert (in_words.usd, in_words.date) == (3, None)
    mine = {**vars(as_system('A100')), 'name': 'rented', 'accelerator': 'H100'}
    assert price_per_gpu_hour(mine, path).usd == 3
    refused(lambda: price_per_gpu_hour('MI300X', path), "vms.csv has no price of 'MI300X'")
    assert price_per_gpu_hour('B200').usd == price_per_gpu_hour('B200-180GB').usd


@pytest.mark.parametrize('text, words', [
    ('AcceleratorName,Price\nH100,2\n', "lacks the column 'AcceleratorCount'"),
    ('AcceleratorName,AcceleratorCount,Price\nH100,1,cheap\n', 'a price is not a number'),
    ('AcceleratorName,AcceleratorCount,Price\nH100,1,-2\n', 'must be a number from 1e-20'),
    ('AcceleratorName,AcceleratorCount,Price\nH100,0,2\n', 'must be a number from 1e-20'),
    ('AcceleratorName,AcceleratorCount,Price\nH100,,2\n', 'must be a number from 1e-20'),
    ('AcceleratorName,AcceleratorCount,Price\n', "has no price of 'H100'"),
    ('', 'is not a table')])
def test_faulty_prices(text, words, tmp_path):
    path = tmp_path / 'mine.csv'
    path.write_text(text)
    refused(lambda: price_per_gpu_hour('H100-80GB', path), words)


def test_prices_of_unknown_systems_and_files():
    refused(lambda: price_per_gpu_hour('H1000'), "unknown system 'H1000'", 'did you mean')
    refused(lambda: price_per_gpu_hour('H200', 'no-such.csv'), 'no-such.csv', 'cannot be read')
    refused(lambda: price_per_gpu_hour('H200', 7), 'is not a path')


def test_files_are_whole():
    "Each file has exactly the fields of a System, but for its name."
    fields = {f.name for f in dataclasses.fields(System)}
    for file in systems_folder().glob('*.json'):
        found = json.loads(file.read_text())
        assert set(found) <= fields and 'name' not in found, file.name
        assert None not in found.values(), f'{file.name}: leave out what is not known'


@pytest.mark.parametrize('gpu', ['A800', 'H800'])
def test_a_gpu_with_slower_links_has_its_own_sheet(gpu):
    "A machine, or a row of a table, that says this name has not the links of the full GPU."
    own = as_system(f'{gpu}-80GB')
    assert sheet_of(gpu_of(f'NVIDIA {gpu}-SXM4-80GB')) == own and own.nvlink_bandwidth == 200
    row = dict(model='llama3.1_8B', seq_len=8192, n_gpus=16, tp=8, pp=1, micro_batch=1,
               global_batch=32, iteration_s=2.)
    found = predict(pd.DataFrame([row | {'gpu': gpu}, row | {'gpu': f'{gpu[0]}100-80GB'}]))
    assert found.reason.eq('').all()
    assert found.predicted_iteration_s[0] > 1.05 * found.predicted_iteration_s[1]


def test_memory_sold_in_GiB_is_counted_in_GB():
    "A maker's 80, 192, 256 and 288 are GiB; a program is given a little less, never more."
    for name, GiB in (('A100-80GB', 80), ('H100-80GB', 80), ('H200-141GB', 141), ('MI300X', 192),
                      ('MI325X', 256), ('MI355X', 288)):
        share = as_system(name).hbm_capacity * 1e9 / 2**30 / GiB
        assert .98 < share <= 1, (name, share)


@pytest.mark.parametrize('name, GiB', [
    ('TPU-v5p', 95.74), ('TPU-v6e', 33_550_237_696 / 2**30), ('TPU-v7x', 2 * 94.75)])
def test_a_tpu_has_what_its_programs_are_told(name, GiB):
    assert as_system(name).hbm_capacity * 1e9 / 2**30 == pytest.approx(GiB, rel=1e-3)


def test_own_table_of_prices():
    mine = pd.DataFrame({'AcceleratorName': ['B300'] * 2, 'AcceleratorCount': [8, 1],
                         'Price': [40., 6.], 'Date': ['2026-11-01', None]})
    assert price_per_gpu_hour('B300', mine) == (5, '2026-11-01', 'the price table')


def test_blocks_of_16_are_multiplied_by_nvidias_gpus_alone():
    "CDNA 4 scales blocks of 32, in 8 and in 4 bits; who says no architecture is believed."
    amd = as_system('MI355X')
    assert peak_rate('mxfp8', amd) == amd.matrix_flops_fp8
    with pytest.raises(ValueError, match=r"nvfp4.* of NVIDIA .*'MI355X' \(CDNA 4\)"):
        peak_rate('nvfp4', amd)
    own = dataclasses.replace(amd, architecture=None)
    assert peak_rate('nvfp4', own) == amd.matrix_flops_fp4
    assert peak_rate('nvfp4', as_system('GB200-NVL72')) > 0


def test_a_generation_of_nvidia_that_nobody_measured_is_nvidias():
    "Rubin multiplies blocks of 16, and DeepEP is written for it; AMD's have neither."
    rubin = as_system('VR200-NVL72')
    assert peak_rate('nvfp4', rubin) == rubin.matrix_flops_fp4
    took = {precision: estimate('llama3.1_8B', Parallel(dp=8, precision=precision), rubin,
                                global_batch=64).stats['iteration_s']
            for precision in ('mxfp8', 'nvfp4')}
    assert took['nvfp4'] < took['mxfp8']
    assert dispatchers_on(rubin) == dispatchers_on(as_system('GB200-NVL72'))
    assert not {*SENT_ONCE} & {*dispatchers_on(as_system('MI355X'))}


@pytest.mark.parametrize('name, sold', [('H200', 'H200-141GB (8)'), ('B200', 'B200-180GB (8)'),
                                        ('A100', 'A100-80GB (8)'), ('H100-80GB', None)])
def test_a_machine_of_a_study_is_told_from_the_one_that_is_sold(name, sold):
    "Both are called H200; 64 of one share an NVLink domain. Not told where all is a study's."
    about, layout = ('llama3.1_8B', 8, name, 64), Parallel(dp=8)
    for assumptions in ('calibrated', 'paper'):
        notes = (search(*about, k=1, assumptions=assumptions).notes,
                 estimate('llama3.1_8B', layout, name, 64, assumptions).notes)
        for found in notes:
            said = [note for note in found if 'as a study has it' in note]
            assert len(said) == (sold is not None and assumptions == 'calibrated')
            assert all(sold in note for note in said)
    own = dataclasses.replace(as_system(name), hbm_capacity=100)
    assert 'study' not in ' '.join(estimate('llama3.1_8B', layout, own, 64).notes)


@pytest.mark.parametrize('name, system', [
    ('NVIDIA H100 80GB HBM3', 'H100-80GB'), ('H100', 'H100-80GB'), ('h800', 'H800-80GB'),
    ('NVIDIA A100-SXM4-40GB', 'A100-40GB'), ('A100 SXM 80 GB', 'A100-80GB'),
    ('NVIDIA B300 SXM6 AC', 'B300'), ('B200 180GB', 'B200-180GB'), ('NVIDIA GB200', 'GB200-NVL72'),
    ('GH200', 'GH200-96GB'), ('AMD Instinct MI300X', 'MI300X'), ('mi300x', 'MI300X')])
def test_a_gpu_may_be_called_as_its_driver_does(name, system):
    assert system_of_gpu(name) == system and as_system(name) == as_system(system)


@pytest.mark.parametrize('name', [
    'NVIDIA H100 PCIe', 'NVIDIA H100 NVL', 'A100 80GB PCIe', 'H100 64GB', 'H200 96GB', 'V100', ''])
def test_another_gpu_of_that_name_is_unknown(name):
    assert system_of_gpu(name) is None
    refused(lambda: as_system(name), 'unknown system')


def test_a_machine_of_a_study_keeps_its_name():
    for name in ('A100', 'B200', 'H200'): assert as_system(name).name == name


def test_a_gpu_has_the_data_sheets_of_its_variants():
    "And of no other GPU's: an H100 with slower memory, an A100 with half of it."
    of = lambda gpu, figure: [getattr(sheet, figure) for sheet in sheets_of(gpu)]
    assert of('H100', 'hbm_bandwidth') == [as_system('H100-80GB').hbm_bandwidth, 2400]
    assert of('A100', 'hbm_capacity') == [as_system('A100-80GB').hbm_capacity, 42.4]
    assert of('B200', 'accelerator') == [as_system('B200-180GB').accelerator]
