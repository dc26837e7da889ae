"""What must hold of the prices of single kernels, whatever their shape.

With TRANSFORMER_PERF_KERNELS set to the folder of the measured tables, all of them are predicted.
"""
import dataclasses
import math
import os
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_perf import measured_kernels as kernels
from transformer_perf.estimates import Product, as_assumptions
from transformer_perf.kernels import product_fit, product_time, sustained_clock
from transformer_perf.parameters import read_calibration
from transformer_perf.systems import SHEETS, as_system, gpu_of
from transformer_perf.measured_kernels import predict_kernels

import fit_kernels

BULK = os.environ.get('TRANSFORMER_PERF_KERNELS')
MUST = {'gemm': .07, 'attention': .10, 'moe': .15}   # mean errors of unseen shapes
FITS = kernels.read_fits()
EACH_FIT = pytest.mark.parametrize('kind, name', [(k, n) for k, own in FITS.items() for n in own])
side = st.integers(1, 2**17)


def known(kind, name):
    "The data sheet, the parameters and the precision of a set."
    gpu, _, precision = name.split('/')
    return dict(system=kernels.sheet_of(gpu), fit=FITS[kind][name]), precision


def seconds_of(kind, name, scale=1, **more):
    "A kernel of middling size, or one so many times larger."
    own, precision = known(kind, name)
    if kind == 'products':
        return kernels.product_seconds(2048 * scale, 4096, 4096, precision=precision, **own)
    if kind == 'attention':
        return kernels.attention_seconds(2 * scale, 4096, 32, 8, 128, **own, **more)
    if kind == 'experts':
        return kernels.expert_seconds(2048 * scale, 4096, 1536, 8, 128, 4, precision=precision,
                                      **own, **more)
    if kind == 'domains':
        return kernels.domain_seconds(name.split('/')[1], .01 * scale, 4, **own)
    nodes = 2 if 'far' in name else 1
    return kernels.exchange_seconds(4096 * scale, 7168, 8, 8 * nodes, nodes, 20, **own)


# every set of parameters

@EACH_FIT
def test_parameters_lie_within_their_bounds(kind, name):
    fit = FITS[kind][name]
    for field in dataclasses.fields(fit):
        low, high = field.metadata['low'], field.metadata['high']
        slack = 1e-3 * (high - low)   # values are rounded
        assert low - slack <= getattr(fit, field.name) <= high + slack, field.name


@EACH_FIT
def test_times_are_positive_and_grow(kind, name):
    once, more = seconds_of(kind, name), seconds_of(kind, name, scale=8)
    assert 1e-6 < once < .1
    assert once < more < 20 * once


@EACH_FIT
def test_arrays_of_any_shape(kind, name):
    scales = np.array([[1.], [2.], [8.]])
    found = seconds_of(kind, name, scale=scales)
    assert found.shape == (3, 1)
    assert found[2, 0] == pytest.approx(float(seconds_of(kind, name, scale=8.)), rel=1e-12)


@pytest.mark.parametrize('name', FITS['products'])
def test_no_product_beats_its_data_sheet(name):
    own, precision = known('products', name)
    m, n, k = (2. ** np.arange(10, 17)).reshape(-1, 1, 1), 8192, np.array([1024., 8192, 65536])
    rate = 2 * m * n * k / kernels.product_seconds(m, n, k, precision=precision, **own)
    assert rate.max() < own['system'].matrix_flops(kernels.PEAK_FORMATS[precision]) * 1e12


@given(m=side, n=side, k=side, more=st.integers(2, 16))
@settings(max_examples=60)
def test_more_of_a_product_takes_longer(m, n, k, more):
    "But for the edge of a wave, and for the choice among tiles."
    own, precision = known('products', 'H100/trtllm/bf16')
    once = kernels.product_seconds(m, n, k, precision=precision, **own)
    for larger in ((m * more, n, k), (m, n * more, k), (m, n, k * more)):
        assert kernels.product_seconds(*larger, precision=precision, **own) > .98 * once


@given(tokens=st.integers(1, 2**17), experts=st.integers(1, 512), topk=st.integers(1, 32))
@settings(max_examples=60)
def test_more_tokens_take_longer(tokens, experts, topk):
    own, precision = known('experts', 'B200/deepgemm/fp8_block')
    seconds = lambda t: kernels.expert_seconds(t, 4096, 1536, min(topk, experts), experts, 1,
                                               precision=precision, **own)
    assert .98 * seconds(tokens) < seconds(16 * tokens)
    assert math.isfinite(seconds(tokens)) and seconds(tokens) > 0


def test_fewer_bits_are_not_slower_in_large_products():
    for gpu, library in (('H100', 'trtllm'), ('B200', 'trtllm'), ('GB300', 'vllm')):
        times = [kernels.product_seconds(
            16384, 16384, 16384, precision=p, system=kernels.sheet_of(gpu),
            fit=kernels.closest('products', gpu, library, p)[1])
            for p in ('bf16', 'fp8', 'nvfp4')[:2 if gpu == 'H100' else 3]]
        assert times == sorted(times, reverse=True), gpu


def test_what_attention_counts():
    known_ = dict(system=kernels.sheet_of('H100'),
                  fit=kernels.closest('attention', 'H100', 'vllm_flash_attn_fa3')[1])
    call = lambda **more: kernels.attention_seconds(2, 8192, 32, 8, 128, **known_, **more)
    assert call(cached=False) < call() < call(seen=1.) < 2 * call()
    assert 2.5 * call(cached=False) < call(backward=True, cached=False) + 1e-4
    wider = kernels.attention_seconds(2, 8192, 32, np.array([1, 8, 32]), 128, **known_)
    assert (np.diff(wider) > 0).all()


def test_attention_of_training():
    "Both directions of what NVIDIA measured for training, on the GPUs that training prices."
    table = kernels.published_kernels('training')
    found = predict_kernels(table, 'training')
    assert (found.reason == '').all()
    off = (found.predicted_us / found.time_us - 1).abs().groupby([table.gpu, table.op]).mean()
    assert len(off) == 8 and off.max() < .07
    # a window is that many keys before a query; one as long as the sequence hides nothing more
    one = table[(table.window > 0) & (table.seq_len == 8192)]
    seconds = [predict_kernels(one.assign(window=w), 'training').predicted_us.to_numpy()
               for w in (512, 1024, 8192, 65536, np.nan)]
    assert (np.diff(seconds[:3], axis=0) > 0).all()
    assert (seconds[2] == seconds[3]).all() and (seconds[2] == seconds[4]).all()


@pytest.mark.parametrize('gpu, kin', [('H100', 'H200'), ('B200', 'GB200'), ('B300', 'GB300'),
                                      ('GB300', 'GB300')])
def test_training_takes_the_attention_of_its_chip(gpu, kin):
    "And long sequences are no slower by the FLOP than short ones: none of these throttled."
    library = kernels.generation_of(kernels.sheet_of(gpu)).newest_attention
    name, fit = kernels.closest('attention', gpu, library)
    assert name == f'{kin}/cuDNN-9.19/bf16'
    call = lambda seq, backward: float(kernels.attention_seconds(
        1, seq, 64, 8, 128, kernels.sheet_of(gpu), fit, cached=False, backward=backward))
    for backward in (False, True):
        assert call(65536, backward) < 4.1 * call(32768, backward) < 16.9 * call(16384, backward)


@pytest.mark.parametrize('name', ['A100-80GB', 'H100-80GB', 'B200-180GB', 'GB300-NVL72'])
def test_power_moves_the_clock_under_load(name):
    system = as_system(name)
    k = read_calibration().of(system)
    usual = dataclasses.replace(system, power=kernels.generation_of(system).power)
    at = lambda power: sustained_clock(dataclasses.replace(system, power=power), k)
    assert sustained_clock(usual, k) == at(None) == 1
    powers = np.array([[300.], [700.], [1200.], [2000.], [1e5]])
    assert (np.diff(at(powers), axis=0) >= 0).all() and at(300.) < at(700.)
    assert (k.kernels.clock * at(powers) <= 1 + 1e-12).all()   # never above the full clock
    product = Product(4096, 8192, 8192)
    halved = dataclasses.replace(usual, power=usual.power / 2)
    assert product_time(product, halved, k) > 1.2 * product_time(product, usual, k)


# sets that are missing

def test_an_unmeasured_gpu_takes_its_generation():
    name, _ = kernels.closest('products', 'GH200', 'trtllm', 'bf16')
    assert name.split('/')[0] in ('H100', 'H200') and name.endswith('/trtllm/bf16')
    assert kernels.closest('domains', 'GB300', 'allreduce')[0] == 'B200/allreduce/bf16'
    assert kernels.closest('products', 'H100', 'my library', 'fp8')[0].startswith('H100/')


@pytest.mark.parametrize('gpu, precision, why', [
    ('A100', 'fp8', 'no products in fp8'), ('MI300X', 'bf16', 'no products in bf16'),
    ('H100', 'fp6', 'no products in fp6'), ('abacus', 'bf16', 'unknown system')])
def test_no_set_at_all(gpu, precision, why):
    with pytest.raises(ValueError, match=why) as error:
        kernels.closest('products', gpu, 'trtllm', precision)
    assert len(str(error.value)) < 300 and '\n' not in str(error.value)


# tables

@pytest.mark.parametrize('kind', MUST)
def test_errors_of_shapes_that_no_fit_has_seen(kind):
    new = kernels.published_kernels(kind).query('fitted == 0')
    found = predict_kernels(new, kind)
    assert len(new) > 80 and (found.reason == '').all()
    error = (found.predicted_us / found.time_us - 1).abs()
    assert error.mean() < MUST[kind]


def test_errors_that_the_parameters_carry():
    errors = kernels.fit_errors()
    assert len(errors) == sum(map(len, FITS.values()))
    by_kind = kernels.mean_errors(errors, 'kind')
    assert by_kind['attention'] < 10 and by_kind['experts'] < 15 and by_kind['domains'] < 12
    products = kernels.mean_errors(errors[errors.kind == 'products'], 'precision')
    assert products['bf16'] < 7 and (products < 12).all()


JUNK = (None, '', 'x', -1, 0, math.inf, math.nan, 1e300, [1], b'x', True)


def numbered(table):  # Series
    "The rows of a table of kernels, counted for each model of kernels."
    return table.groupby(table.get('kind', lambda row: 0)).cumcount()


@pytest.mark.parametrize('kind', kernels.TABLES)
def test_tables_of_anything(kind):
    "Whatever a cell holds: a finite price, or none and a reason; the rows beside it keep theirs."
    table = kernels.published_kernels(kind).astype(object)
    table = table[numbered(table) <= len(JUNK)]   # of each model one row more than there is junk
    number = numbered(table)
    sound = predict_kernels(table, kind)[number == len(JUNK)]
    assert len(sound)
    for columns in [[c] for c in kernels.TABLES[kind][0]] + [list(kernels.TABLES[kind][0])]:
        odd = table.copy()
        for column in columns:   # each kind of junk in a row of its own
            odd[column] = [JUNK[i] if i < len(JUNK) else good
                           for i, good in zip(number, odd[column])]
        found = predict_kernels(odd, kind)
        assert not (found.predicted_us < 0).any()
        assert (np.isfinite(found.predicted_us) == (found.reason == '')).all(), columns
        assert list(found.index) == list(odd.index)
        pd.testing.assert_frame_equal(found.loc[sound.index, ['predicted_us', 'reason']],
                                      sound[['predicted_us', 'reason']])
    assert len(predict_kernels(table.head(0), kind)) == 0


def test_a_table_of_another_kind():
    table = kernels.published_kernels('gemm')
    with pytest.raises(ValueError, match="unknown kind of kernel 'gem'; did you mean 'gemm'"):
        predict_kernels(table, 'gem')
    with pytest.raises(ValueError, match="lacks the column 'k'"):
        predict_kernels(table.drop(columns='k'), 'gemm')
    with pytest.raises(ValueError, match='must be a DataFrame'): predict_kernels([1], 'gemm')


def test_fifty_thousand_rows_in_seconds():
    table = kernels.published_kernels('gemm')
    many = pd.concat([table] * (50_000 // len(table) + 1), ignore_index=True)
    start = time.process_time()
    assert (predict_kernels(many, 'gemm').predicted_us > 0).all()
    assert time.process_time() - start < 10


def test_no_scipy_unless_something_is_fitted():
    code = 'import sys, transformer_perf.measured_kernels; print("scipy" in sys.modules)'
    done = subprocess.run([sys.executable, '-c', code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == 'False'


def test_a_fit_finds_what_it_was_made_from():
    true = dataclasses.replace(kernels.ProductFit(), rate=.6, ramp=200., launch=8e-6)
    m, n, k = np.random.default_rng(0).choice(2. ** np.arange(9, 15), (3, 300))
    price = lambda fit: kernels.product_seconds(m, n, k, kernels.sheet_of('H100'), fit)
    found = fit_kernels.fit_shares(kernels.ProductFit, price, price(true))
    assert np.abs(price(found) / price(true) - 1).mean() < .01
    assert found.rate == pytest.approx(.6, rel=.03)


def test_fits_are_written_as_they_are_read(tmp_path):
    path = tmp_path / 'kernels.json'
    found = kernels.read_json(kernels.measured_folder() / 'kernels.json')
    fit_kernels.save_fits(found, path)
    assert kernels.read_fits(path) == FITS
    assert path.read_text() == (kernels.measured_folder() / 'kernels.json').read_text()


# all that was measured

@pytest.mark.skipif(not BULK, reason='TRANSFORMER_PERF_KERNELS names no folder')
@pytest.mark.parametrize('kind', kernels.TABLES)
def test_all_that_was_measured(kind):
    found = predict_kernels(fit_kernels.read_table(BULK, kind), kind)
    if kind == 'other':
        found = found[(found.kind == 'collective') & (found.message_bytes >= 2**20)]
        found = found[(found.n_nodes == 1) & found.gpu.map(gpu_of).isin(SHEETS)]
    assert (found.reason == '').all()
    error = (found.predicted_us / found.time_us - 1).abs()
    assert error.mean() < MUST.get(kind, .12)


@pytest.mark.skipif(not BULK, reason='TRANSFORMER_PERF_KERNELS names no folder')
def test_a_set_fitted_again():
    own = fit_kernels.read_table(BULK, 'gemm').query(
        'device == "NVIDIA H100 80GB HBM3" and framework == "TRTLLM" and gemm_dtype == "bfloat16"')
    (_, job), = kernels.rows_by_pricing(own, 'gemm')
    (_, found, held_out), = fit_kernels.fit_job(own, job, fit_kernels.measured_seconds(own))
    assert held_out.mean() < .045
    shipped = FITS['products']['H100/trtllm/bf16']
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(shipped), rel=.02)


@pytest.mark.skipif(not BULK, reason='TRANSFORMER_PERF_KERNELS names no folder')
def test_what_travels_is_a_sample_of_what_was_measured():
    for kind in fit_kernels.EACH:
        sample = fit_kernels.sample_of(fit_kernels.read_table(BULK, kind), kind)
        pd.testing.assert_frame_equal(
            sample.reset_index(drop=True), kernels.published_kernels(kind), check_dtype=False)


def test_products_in_four_bits_gain_more_in_training():
    "In training they take 1/3.55 of those in 16 bits, in serving 1/2.94 (generations.json)."
    costs = as_assumptions('calibrated').on(as_system('B300')).measured.kernels
    gain = {}
    for precision in ('bf16', 'nvfp4'):
        serving = kernels.closest('products', 'B300', 'trtllm', precision)[1]
        gain[precision] = product_fit('B300', precision, costs, False).rate / serving.rate
    assert gain['nvfp4'] / gain['bf16'] == pytest.approx(3.55 / 2.94, rel=.005)
