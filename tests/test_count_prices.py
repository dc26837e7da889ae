"""Prices by a second count: each formula again for one kernel or message, in plain numbers.

What the notebooks say in words, tile by tile and step by step; the package has it for arrays.
"""
import dataclasses
import itertools
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from thorough import first_of
from transformer_perf import estimates, kernels, measured_kernels as single
from transformer_perf.estimates import (
    AttentionKernel, Group, Message, Product, Roofline, Work, as_assumptions)
from transformer_perf.kernels import LEAST_ROWS_TOLD_APART, Measured, pricer_of
from transformer_perf.parameters import Costs, Kernels, NetworkShares, Parameters, read_calibration
from transformer_perf.systems import Units, as_system, system_names

import fit_kernels

FITS = single.read_fits()
MULTIPROCESSORS = {'Ampere': 108, 'Hopper': 132, 'Blackwell': 148}   # of A100, H100, B200
CACHES = {'Ampere': 40e6, 'Hopper': 50e6, 'Blackwell': 126e6}        # bytes


def close(x, y, rel=1e-9): return math.isclose(float(x), float(y), rel_tol=rel, abs_tol=1e-18)


def draws(*ranges, times=12):  # lists of whole numbers
    "Sizes drawn evenly in their logarithm, the same in every run."
    rng = np.random.default_rng(7)
    low, high = np.log([*zip(*ranges)])
    return np.exp(rng.uniform(low, high, (times, len(ranges)))).round().astype(int).tolist()


def smooth_most(x, y, sharpness):
    "The norm of two times: max(x, y) where one is much longer."
    longer, other = max(x, y), min(x, y)
    return longer * (1 + (other / longer)**sharpness)**(1 / sharpness) if longer else 0.


def smooth_least(times, sharpness):
    "The same the other way round: of n equal times each is taken for n^(1/sharpness) less."
    first, *others = sorted(times)
    return first / (1 + sum((first / t)**sharpness for t in others))**(1 / sharpness)


# kernels

def rate_of(precision, system):  # FLOP/s of one multiprocessor
    name = {'bf16': 'fp16', 'fp8': 'fp8', 'fp8_block': 'fp8', 'nvfp4': 'fp4'}[precision]
    return 1e12 * getattr(system, f'matrix_flops_{name}') / MULTIPROCESSORS[system.architecture]


def rounds_of(tiles, system, whole):
    "Full waves, and of the last one a share that is waited for."
    part = tiles / MULTIPROCESSORS[system.architecture]
    return max(1., (1 - whole) * part + whole * math.ceil(part))


def late(seconds, fit):
    "Under the power limit a kernel that runs long slows down."
    x = (seconds / fit.after)**fit.onset
    return seconds * (1 + fit.drop * x / (1 + x))


def product_by_hand(m, n, k, system, fit, precision, batch=1):  # s
    shares = {(256, 128): 1, (128, 256): 1, (128, 128): fit.square, (256, 256): fit.paired,
              (128, 64): fit.small, (64, 64): .75 * fit.small}
    times = []
    for (high, wide), share in shares.items():
        tiles = batch * math.ceil(m / high) * math.ceil(n / wide)
        flop = 2 * high * wide * (k + fit.ramp)
        tile = flop / (rate_of(precision, system) * fit.rate * share)
        times.append(rounds_of(tiles, system, fit.whole) * tile)
    compute = late(smooth_least(times, fit.choice), fit)
    size = {'bf16': 2, 'fp8': 1, 'fp8_block': 1, 'nvfp4': 9 / 16}[precision]
    nbytes = batch * (size * (m * k + k * n) + 2 * m * n * fit.writes)
    memory = nbytes / (1e9 * system.hbm_bandwidth * fit.bandwidth)
    before = fit.prepare * batch * m * k / (.85e9 * system.hbm_bandwidth)
    return smooth_most(smooth_most(compute, memory, fit.overlap) + before + fit.launch, fit.host, 6)


def attention_by_hand(batch, seq, heads, kv, width, value, keys, seen, backward, cached, system,
                      fit):  # s
    "Tiles of 128 queries walk along the keys that they see."
    mean, rates = (width + value) / 2, [(d, getattr(fit, f'head_{d}')) for d in
                                        (64, 128, 192, 256, 512)]
    share = rates[0][1] if mean <= 64 else rates[-1][1]
    for (low, x), (high, y) in itertools.pairwise(rates):
        if low <= mean <= high: share = x + (y - x) * (mean - low) / (high - low)
    flop = 2 * (3 * width + 2 * value) if backward else 2 * (width + value)
    if backward: share *= fit.backward
    a_key = 128 * flop / (rate_of('bf16', system) * share)
    tiles = batch * heads * math.ceil(seq / 128) / MULTIPROCESSORS[system.architecture]
    tiles = (1 - fit.whole) * tiles + fit.whole * math.ceil(tiles)
    met = keys * seen + (64 if seen < 1 else 0)   # half a tile is computed beyond the diagonal
    longest = min(keys, 2 * keys * seen + 128)   # of the keys that a tile sees
    compute = max(tiles * a_key * (met + fit.ramp), a_key * (longest + fit.ramp))
    moved = batch * mean * (fit.cache * kv * keys * cached + fit.query * heads * seq)
    return late(compute, fit) + moved / (1e9 * system.hbm_bandwidth) + fit.launch


def grouped_by_hand(groups, rows, n, k, system, fit, precision, padded):  # s
    shares = {(16, 128): fit.rows_16, (32, 128): fit.rows_32, (64, 128): fit.rows_64,
              (128, 128): fit.rows_128, (128, 256): 1, (256, 128): 1}
    size = {'bf16': 2, 'fp8': 1, 'fp8_block': 1, 'nvfp4': 9 / 16}[precision]
    weights, times = size * n * k, []
    fill = (weights / (fit.cache * CACHES[system.architecture]))**4
    for (high, wide), share in shares.items():
        tall = math.ceil(rows * padded / high)
        tile = 2 * high * wide * (k + fit.ramp) / (rate_of(precision, system) * fit.rate * share)
        compute = rounds_of(groups * tall * math.ceil(n / wide), system, fit.whole) * tile
        read = groups * weights * (1 + (tall - 1) * fill / (1 + fill))
        nbytes = read + groups * rows * (size * k + 2 * n)
        memory = nbytes / (1e9 * system.hbm_bandwidth * fit.bandwidth)
        times.append(smooth_most(compute, memory, fit.overlap))
    return smooth_least(times, 25)


def experts_by_hand(tokens, hidden, inner, topk, experts, ep, own, same, gated, system, fit,
                    precision):  # s
    held = experts / ep
    if same: groups, rows = min(held, topk), tokens * min(held, topk)
    else:
        rows = tokens * topk / ep
        if own: rows += fit.away * (tokens * topk * min(1, topk / ep) - rows)
        groups = held
    groups = min(groups, rows)
    more = (2**math.ceil(math.log2(tokens) - 1e-9) / tokens)**fit.tuned
    first, second = (
        grouped_by_hand(groups, rows / groups, n, k, system, fit, precision, more)
        for n, k in ((inner * (2 if gated else 1), hidden), (hidden, inner)))
    moved = rows + fit.touched * max(tokens * topk - rows, 0)
    nbytes = fit.token * tokens * hidden + moved * (fit.row * hidden + fit.inner * inner)
    return (first + second + nbytes / (.85e9 * system.hbm_bandwidth) + fit.expert * held
            + fit.launch)


def domain_by_hand(kind, volume, gpus, bandwidth, fit):  # s
    if gpus == 1: return 0.
    on_a_link = volume * (gpus - 1) / gpus * (2 if kind == 'allreduce' else 1) / bandwidth
    times = []
    for way in ('first', 'second', 'third'):
        share = getattr(fit, f'{way}_share') * math.exp(
            getattr(fit, f'{way}_growth') * math.log2(min(gpus, 8) / 8))
        wait = getattr(fit, way) + (gpus - 2) * getattr(fit, f'{way}_gpu')
        stream = on_a_link / share
        times.append(wait + stream if way == 'third' else smooth_most(wait, stream, fit.rounding))
    return smooth_least(times, fit.choice)


def exchange_by_hand(tokens, hidden, topk, gpus, nodes, units, system, fit):  # s
    expected = lambda places: places * (1 - ((places - 1) / places)**topk)
    GB = 2e-9 * tokens * hidden
    if nodes > 1:
        leave = expected(min(nodes, 4)) * (nodes - 1) / nodes
        wire = system.ib_bandwidth * system.nic_factor
    else: leave, wire = expected(gpus) * (gpus - 1) / gpus, system.nvlink_bandwidth
    stream = smooth_most(GB * leave / (wire * fit.link), GB * expected(gpus) / (units * fit.unit),
                         fit.limit)
    return smooth_most(fit.base + math.log2(nodes) * fit.doubling, stream + fit.per_token * tokens,
                       fit.overlap)


def sets_of(kind): return pytest.mark.parametrize('name', FITS[kind])


def known(kind, name):
    gpu, words, precision = name.split('/')
    return single.sheet_of(gpu), FITS[kind][name], words, precision


@sets_of('products')
def test_products(name):
    system, fit, _, precision = known('products', name)
    sizes = draws((1, 30000), (8, 30000), (8, 30000), (1, 9))
    found = single.product_seconds(*np.array(sizes).T[:3], system, fit, precision,
                                   np.array(sizes).T[3])
    for seconds, (m, n, k, batch) in zip(found, sizes):
        assert close(seconds, product_by_hand(m, n, k, system, fit, precision, batch))


@sets_of('attention')
def test_attention(name):
    system, fit, _, _ = known('attention', name)
    for batch, seq, heads, group, width in draws((1, 16), (1, 20000), (1, 8), (1, 8), (40, 600)):
        for backward, cached in itertools.product((False, True), repeat=2):
            sizes = batch, seq, heads * group, heads, width
            more = dict(backward=backward, cached=cached)
            hand = partial(attention_by_hand, *sizes, system=system, fit=fit, **more)
            found = partial(single.attention_seconds, *sizes, system, fit, **more)
            assert close(found(), hand(value=width, keys=seq, seen=.5))
            assert close(found(seen=1.), hand(value=width, keys=seq, seen=1))
            assert close(found(keys=2 * seq, seen=.3, value_dim=width / 2),
                         hand(value=width / 2, keys=2 * seq, seen=.3))


def test_attention_of_many_fits():
    "Of what each head width reaches a column: priced as one after the other."
    system, fit, _, _ = known('attention', next(iter(FITS['attention'])))
    names = [f'head_{width}' for width in single.HEADS]
    reached = np.array([[.4, .6, .5, .7, .3], [.8, .35, .6, .45, .5]])
    columns = dataclasses.replace(fit, **dict(zip(names, reached.T)))
    for head, value in (40, 40), (64, 64), (100, 60), (192, 128), (300, 300), (600, 512):
        for backward in (False, True):
            priced = partial(single.attention_seconds, 2, 3000, 8, 2, head, system,
                             value_dim=value, backward=backward)
            alone = [priced(dataclasses.replace(fit, **dict(zip(names, row)))) for row in reached]
            np.testing.assert_allclose(priced(columns), alone, rtol=1e-12)


@sets_of('attention')
def test_a_window_costs_as_much_wherever_it_stands(name):
    "Where a query sees 128 keys, 16 times the sequence takes 16 times as long, or as clocks fall."
    system, fit, _, _ = known('attention', name)
    lengths = np.array([2**16, 2**20])
    for backward in (False, True):
        short, long = single.attention_seconds(1, lengths, 8, 1, 64, system, fit, cached=False,
                                               backward=backward, seen=128 / lengths) - fit.launch
        assert 15 < long / short < 17 * (1 + fit.drop)


@sets_of('experts')
def test_experts(name):
    system, fit, _, precision = known('experts', name)
    for tokens, hidden, inner, topk, ep in draws((1, 90000), (500, 8000), (100, 8000), (1, 9),
                                                 (1, 16), times=6):
        for own, same, gated in itertools.product((False, True), repeat=3):
            args = tokens, hidden, inner, topk, 16 * ep, ep
            found = single.expert_seconds(*args, system, fit, precision, gated, own, same)
            assert close(found, experts_by_hand(*args, own, same, gated, system, fit, precision))


@sets_of('domains')
def test_domains(name):
    system, fit, kind, _ = known('domains', name)
    for kB, gpus in [*draws((1, 4e6), (2, 72)), (100, 1), (100, 2), (100, 8)]:
        found = single.domain_seconds(kind, 1e-6 * kB, gpus, system, fit)
        assert close(found, domain_by_hand(kind, 1e-6 * kB, gpus, system.nvlink_bandwidth, fit))


@sets_of('exchanges')
def test_exchanges(name):
    system, fit, _, _ = known('exchanges', name)
    system = dataclasses.replace(system, nic_factor=.5)   # two GPUs to a card
    for tokens, topk, nodes in [*draws((1, 10000), (1, 9), (1, 9)), (4096, 8, 1)]:
        args = tokens, 7168, topk, 8 * nodes, nodes, 20
        assert close(single.exchange_seconds(*args, system, fit),
                     exchange_by_hand(*args, system, fit))


# messages, published

@pytest.mark.parametrize('kind', estimates.COLLECTIVES)
@pytest.mark.parametrize('doubled', [False, True])
def test_a_ring_step_by_step(kind, doubled):
    "n - 1 steps over n links; through an all-reduce twice, of which one latency may be left out."
    system = dataclasses.replace(as_system('B200', 8), nic_factor=.5)
    pricer = Roofline(system, allreduce_doubled=doubled)
    fast, slow = system.nvlink, system.network
    turns = 2 if kind == 'allreduce' else 1
    share = lambda n: (n > 1) * 1. if kind in ('broadcast', 'reduce') else (n - 1) / n
    for n, d in ((1, 1), (2, 2), (8, 8), (2, 1), (16, 1), (16, 8), (24, 2)):
        for GB in (.001, 1., 7.):
            again, moved = turns if doubled else 1, share(n) * GB
            if d == 1 or d == n:
                link = slow if d == 1 else fast
                hand = again * (moved / link.bandwidth + (n - 1) * link.latency)
            else:
                rate = min(system.nic_factor * d * slow.bandwidth, fast.bandwidth)
                steps = (n // d - 1) * slow.latency + (n - n // d) * fast.latency
                hand = turns * moved / rate + again * steps
            assert close(pricer.collective(kind, GB, Group(n, d)), hand)
    assert pricer.collective(kind, 0., Group(16, 8)) == 0


def test_a_ring_of_single_messages_has_one_nic():
    "All that a domain hands on leaves it from one GPU, as any single message; no wire is faster."
    for size in (4, 8, 64):
        system = as_system('B200', size)
        pricer, fast, slow = Roofline(system), system.nvlink, system.network
        for n, d in ((2 * size, size), (64, 2), (64, 4), (64, 1), (size, size)):
            share = 3 * (n - 1) / n
            steps = (n // d - 1) * slow.latency + (n - n // d) * fast.latency
            rate = fast.bandwidth if n == d else min(fast.bandwidth, slow.bandwidth)
            assert close(pricer.collective('ring', 3., Group(n, d)), share / rate + steps)
            crosses = pricer.send(share, False) - slow.latency
            assert n == d or pricer.collective('ring', 3., Group(n, d)) >= crosses


@pytest.mark.parametrize('system', ['MI300X', 'TPU-v6e', 'H100-80GB'])
def test_without_a_switch_an_all_reduce_is_two_turns(system):
    "Nothing adds up on the way: no bus is faster than its wires."
    system = as_system(system)
    price = pricer_of(system, as_assumptions('calibrated').on(system)).collective
    n, GB = 8, 4.
    summed, *turns = (price(kind, GB, Group(n, n)) for kind in (
        'allreduce', 'reducescatter', 'allgather'))
    if system.topology == 'switch': assert summed < .8 * sum(turns)
    else: assert close(summed, sum(turns))
    wires = system.bandwidth_among(n)
    assert system.topology == 'switch' or 2 * (n - 1) / n * GB / summed < wires


@pytest.mark.parametrize('preset', ['corrected', 'calibrated'])
def test_how_wires_are_written_changes_no_price(preset):
    "Three NICs of 25 GB/s, or one of 75."
    one = as_system('H100-80GB')
    prices = [pricer_of(system, as_assumptions(preset).on(system)) for system in (
        dataclasses.replace(one, ib_bandwidth=25., nic_factor=3.),
        dataclasses.replace(one, ib_bandwidth=75., nic_factor=1.))]
    for ask in (lambda p: p.exchange(.4, None, Group(32, 8)), lambda p: p.exchange(
            .4, .1, Group(16, 4)), lambda p: p.collective('allgather', 1., Group(32, 8))):
        assert close(*map(ask, prices))


def test_an_exchange_goes_over_both_tiers():
    for nics in (.25, 1., 4.):
        system = dataclasses.replace(as_system('H200', 8), nic_factor=nics)
        pricer, fast, slow = Roofline(system), system.nvlink, system.network
        for n, d in ((8, 8), (16, 8), (16, 1), (1, 1)):
            near, away = 1.5 * (d - 1) / n, 1.5 * (n - d) / n
            wait = (near > 0) * fast.latency + (away > 0) * slow.latency
            longer = max(near / fast.bandwidth, away / (slow.bandwidth * nics))
            assert close(pricer.exchange(1.5, None, Group(n, d)), longer + wait)
            near, away = 1.5 * (d - 1) / d, .4 * (n > d)
            wait = (near > 0) * fast.latency + (away > 0) * slow.latency
            longer = max(near / fast.bandwidth, away / (slow.bandwidth * nics))
            assert close(pricer.exchange(1.5, .4, Group(n, d)), longer + wait)
        for near, link in ((True, fast), (False, slow)):
            assert close(pricer.send(3., near), link.latency + 3 / link.bandwidth)
            assert pricer.send(0., near) == 0


def test_wires_of_a_domain():
    "Through a switch all of a GPU's links lead to any other; on a torus or a mesh, some of them."
    for topology, size, links in (('switch', 8, 1), ('mesh', 8, 7), ('mesh', 1, 1),
                                  ('2d-torus', 16, 4), ('3d-torus', 64, 6)):
        system = dataclasses.replace(as_system('H200', size), topology=topology)
        assert system.links == links
        for gpus in (1, 2, 3, 5, 8):
            share = 1 if topology == 'switch' else min(max(gpus - 1, 1), links) / links
            GB = share * system.nvlink_bandwidth
            assert close(system.bandwidth_among(gpus), GB)
            assert close(system.link_among(gpus).bandwidth, GB * system.nvlink_eff)
        assert system.peer_bandwidth == system.bandwidth_among(2)
        one_link = system.nvlink_latency + 3 / (system.peer_bandwidth * system.nvlink_eff)
        assert close(Roofline(system).send(3., True), one_link)


def test_a_roofline_by_hand():
    "Arithmetic at its share of the peak after a launch; memory alone; nothing takes no time."
    system = as_system('H200-141GB')
    work = Work((Product(512, 256, 128, 2.), Product(8, 8, 8, precision='fp8')), vector=.003,
                nbytes=2., scores=.5)
    plain, low = 2 * 512 * 256 * 255e-12, 8 * 8 * 15e-12
    arithmetic = (plain / system.matrix_flops_fp16 + low / system.matrix_flops_fp8
                  + .003 / system.vector_flops_fp16)
    numbers = 2 * (512 * 128 + 128 * 256 + 512 * 256) + 3 * 64
    memory = (2e-9 * numbers + 2.5) / system.hbm_bandwidth
    busy = Roofline(system, 1e-5, .6).busy(work)
    assert close(busy.compute, 1e-5 + arithmetic / .6) and busy.launch == 1e-5
    assert close(busy.moving, memory) and close(busy.memory, memory - busy.compute)
    slower = Roofline(system, 1e-5, .6).busy(work._replace(matrix_speed=.5, memory_speed=.25))
    assert close(slower.compute, 1e-5 + arithmetic / .5 / .6) and close(slower.moving, 4 * memory)
    nothing = Roofline(system).busy(Work())
    assert nothing.compute == nothing.memory == nothing.launch == 0


# messages and kernels, measured

NET = NetworkShares(base=3e-5, nvlink_share=.7, gather_factor=.81, scatter_factor=.9, nic_share=.71,
                    nic_alone=.83, groups_share=.6, bulk_hop=1.1e-5, bulk_far_hop=1.9e-5,
                    bulk_tree_hop=4.4e-5, tree_share=.87, quick_hop=1.7e-6, quick_far_hop=2.2e-6,
                    quick_tree_hop=2.1e-5, quick_share=.9, quick_far_share=.3, domain_share=.9)
KERNELS = Kernels(clock=.9, product_share=1.05, vector_bandwidth=.8, score_bandwidth=.5,
                  attention_share=.95, launch_gap=3e-6, accumulate_traffic=5.)
HOPPER = dataclasses.replace(as_system('H100-80GB', 8), nic_factor=.5)


def measured(system=HOPPER, **software):
    return Measured(system, Parameters('Hopper', network=NET, kernels=KERNELS,
                                       software=Costs(**software)))


def test_attention_runs_at_the_clock_and_at_its_share():
    whole, some = (kernels.attention_fit('H100', 'cuDNN', of) for of in (Kernels(), KERNELS))
    share = .9 * .95 / (Kernels().clock * Kernels().attention_share)
    for name in kernels.RATES: assert close(getattr(some, name), share * getattr(whole, name))
    assert (whole.launch, some.launch) == (Kernels().launch_gap, 3e-6)


def test_how_tokens_reached_a_measured_gpu():
    "Newer SGLang had all tokens arrive, but of three models; and DeepSeek-V3's router is its own."
    table = pd.DataFrame(
        [('sglang', 'sglang_fused_moe_triton', 'h100_sxm', 128, 4096, False, False),
         ('sglang', 'sglang_fused_moe_triton', 'h100_sxm', 8, 4096, True, False),
         ('sglang', 'sglang_fused_moe_triton', 'h100_sxm', 128, 2816, True, False),
         ('sglang', 'sglang_fused_moe_triton', 'a100_sxm', 128, 4096, True, False),
         ('vllm', 'vllm_fused_moe', 'h100_sxm', 128, 4096, True, False),
         ('sglang', 'sglang_fused_moe_triton', 'h100_sxm', 256, 7168, False, True),
         ('vllm', 'moe_monolithic', 'b200_sxm', 256, 7168, True, True),
         ('vllm', 'vllm_fused_moe', 'h100_sxm', 256, 7168, True, False),
         ('sglang', 'sglang_fused_moe_triton', 'h100_sxm', 384, 7168, False, False)],
        columns=['fw', 'kernel_source', 'sys', 'num_experts', 'hidden_size', 'own', 'same'])
    own, same = single.routing_of(table)
    assert own.tolist() == table.own.tolist() and same.tolist() == table.same.tolist()


@pytest.mark.parametrize('sharpness', [1., 4., 20.])
def test_times_that_overlap(sharpness):
    "As the second hand has it; beside nothing, and in any unit, nothing changes."
    both = single.overlapping
    for x, y in ((1., 1.), (1e-6, 3e-6), (5e-4, 2e-6)):
        assert close(both(x, y, sharpness), smooth_most(x, y, sharpness))
        assert both(x, y, sharpness) == both(y, x, sharpness)
        assert close(both(0., y, sharpness), y)
    assert both(0., 0., sharpness) == 0


def nccl(kind, GB, n, d, crowded, system=HOPPER):  # s
    "A ring, or for an all-reduce a tree, by the bulk or the quick protocol: whichever is faster."
    twice = 2 if kind == 'allreduce' else 1
    share = 1 if kind in ('broadcast', 'reduce') else (n - 1) / n
    moved, nodes = GB * twice * share, n / d
    kinds = {'allgather': .81, 'broadcast': .81, 'reducescatter': .9, 'reduce': .9}
    nvlink = system.nvlink_bandwidth * .7 * kinds.get(kind, 1)
    nics = system.ib_bandwidth * .5 * d * .71
    if d == 1: nics *= .83
    if crowded: nics *= .6
    times = []
    for hop, far, tree, near_share, far_share in ((1.1e-5, 1.9e-5, 4.4e-5, 1, 1),
                                                  (1.7e-6, 2.2e-6, 2.1e-5, .9, .3)):
        link = min(nvlink * near_share, nics * far_share)
        times.append(twice * ((nodes - 1) * far + (n - nodes) * hop) + moved / link)
        if kind == 'allreduce': times.append(
            2 * (math.log2(nodes) * tree + (d - 1) * hop) + moved / (link * .87))
    return 3e-5 + min(times)


@pytest.mark.parametrize('kind', estimates.COLLECTIVES)
def test_collectives_across_nodes(kind):
    for n, d, crowded in ((16, 8, False), (64, 8, True), (32, 1, False), (24, 2, False),
                          (2, 1, False)):
        for GB in (1e-5, .003, .01, .5, 20.):
            found = measured().collective(kind, GB, Group(n, d, crowded))
            assert close(found, nccl(kind, GB, n, d, crowded)), (n, d, GB)
    assert measured().collective(kind, 0., Group(16, 8)) == 0
    assert measured().collective(kind, 1., Group(1, 1)) == 0
    fast = dataclasses.replace(HOPPER, ib_bandwidth=9e3)   # NICs that wait for NVLink
    found = measured(fast).collective(kind, 20., Group(64, 4))
    assert close(found, nccl(kind, 20., 64, 4, False, fast))


HALF = .5   # of the NICs: the named worst case of any message between nodes
ONE_NIC = {'Megatron-DeepSpeed': .25}   # fitted on vTrain's machine: one of two NICs, in turns


@pytest.mark.parametrize('name', first_of(10, read_calibration().sets))
def test_no_fitted_constant_beats_the_wires_or_halves_them(name):
    "Large messages of every system between its nodes, however many NICs their groups share."
    parameters = read_calibration().sets[name]
    worst = HALF * ONE_NIC.get(parameters.stack, 1)
    for system in map(as_system, system_names()):
        for in_domain, nics in itertools.product({1, 2, min(system.nvlink_size, 8)}, (.5, 1.)):
            here = dataclasses.replace(system, nic_factor=nics * system.nic_factor)
            group, GB = Group(8 * in_domain, in_domain, in_domain > 1), 1e3
            wires = min(here.ib_bandwidth * here.nic_factor * in_domain,
                        here.bandwidth_among(in_domain) if in_domain > 1 else np.inf)
            moved = GB * (group.size - 1) / group.size
            for kind in ('allgather', 'reducescatter'):
                seconds = Measured(here, parameters).collective(kind, GB, group)
                assert moved / wires <= seconds <= moved / wires / worst, (system.name, group)


@pytest.mark.parametrize('name', first_of(8, read_calibration().sets))
def test_one_domain_is_never_slower_than_several(name):
    "A group that fits into one may be spread over as many as one likes, and a larger one, too."
    parameters = read_calibration().sets[name]
    for system in (as_system('GB200-NVL72'), as_system('GB300-NVL72'), as_system('H100-80GB')):
        price = Measured(system, parameters).collective
        for kind, GB in itertools.product(estimates.COLLECTIVES, (1e-3, .1, 10.)):
            for n in (4, 16, 64, 512):
                within = min(n, system.nvlink_size)
                least = price(kind, GB, Group(within, within))
                spread = [price(kind, GB, Group(n, d)) for d in (1, 2, 4, 8, 16, 32, 64)
                          if d <= min(within, n // 2)]
                assert all(seconds >= least for seconds in spread), (system.name, kind, GB, n)


def test_collectives_inside_a_domain():
    for kind, as_kind in (('allgather', 'allgather'), ('reduce', 'reducescatter'),
                          ('broadcast', 'allgather'), ('allreduce', 'allreduce')):
        _, fit = single.closest('domains', 'H100', as_kind)
        for n in (2, 4, 8):
            hand = domain_by_hand(as_kind, .3, n, HOPPER.nvlink_bandwidth * .9, fit)
            assert close(measured().collective(kind, .3, Group(n, n)), hand)


def test_a_ring_of_keys_and_single_messages():
    "A step sends a share over the slower of the links; stages send whole tensors."
    near, nic = HOPPER.nvlink_bandwidth * .7, HOPPER.ib_bandwidth * .5 * .71
    for n, d, link in ((4, 4, near), (16, 8, min(near, nic)), (4, 1, min(near, nic))):
        assert close(measured().collective('ring', 2., Group(n, d)), 2 * (n - 1) / n / link)
    assert close(measured().send(2., True), 3e-5 + 1.1e-5 + 2 / near)
    assert close(measured().send(2., False), 3e-5 + 1.9e-5 + 2 / (nic * .83))


def test_messages_of_a_pass_hide_together():
    "Behind what the pass takes, or the largest share of it that one of them may hide behind."
    hides = Message('allgather', 1., 'tp', exposed=.25, behind=1.)
    partly = Message('ring', 1., 'cp', exposed=0., behind=.5)
    never = Message('allreduce', 1., 'tp', exposed=.75)
    shown = partial(estimates.shown_of_messages, panels=None)
    for own, left in (0., 10.), (4., 6.), (8., 2.), (100., 1.5):   # of 6 s and 4 s
        assert close(shown((hides, partly), (6., 4.), own), left)
        assert close(shown((partly, never, hides), (4., 2., 6.), own), left + 1.5)
    for own, left in (0., 4.), (4., 2.), (8., 0.): assert close(shown((partly,), (4.,), own), left)


def test_exchanges_of_tokens():
    "Inside a domain as measured, of what stays; across, what leaves through a GPU's own NICs."
    _, fit = single.closest('domains', 'H100', 'alltoall')
    inside = lambda GB, d: domain_by_hand('alltoall', GB, d, HOPPER.nvlink_bandwidth * .9, fit)
    for nics in (.5, 3.):
        system = dataclasses.replace(HOPPER, nic_factor=nics)
        ask, nic = measured(system).exchange, HOPPER.ib_bandwidth * nics * .71
        across = lambda GB, nic=nic: 3e-5 + 1.9e-5 + GB / nic
        assert close(ask(.4, None, Group(8, 8)), inside(.4, 8))
        assert close(ask(.4, None, Group(32, 8)), max(inside(.4 / 4, 8), across(.4 * 24 / 32)))
        assert close(ask(.4, .01, Group(32, 8)), max(inside(.4, 8), across(.01)))
        assert close(ask(.4, None, Group(4, 1)), across(.3))
        assert close(ask(.4, None, Group(4, 2)), max(inside(.2, 2), across(.2)))
        assert close(ask(.4, .001, Group(4, 2)), max(inside(.4, 2), across(.001)))


def test_kernels_of_training():
    "Products at the lasting clock, that add gradients; elementwise kernels by bytes and gaps."
    _, fit = single.closest('products', 'H100', 'trtllm', 'bf16')
    lasting = dataclasses.replace(fit, rate=fit.rate * .9 * 1.05, prepare=0., host=0., launch=3e-6)
    adding = dataclasses.replace(lasting, writes=fit.writes + 5 / 2)
    p, system = Product(3000, 5000, 700, 2., times=3.), dataclasses.replace(HOPPER, power=None)
    once = product_by_hand(3000, 5000, 700, system, lasting, 'bf16', 2)
    summed = product_by_hand(3000, 5000, 700, system, adding, 'bf16', 2)
    pricer = measured(system)
    assert close(pricer.busy(Work((p,))).compute, 3 * once)
    assert close(pricer.busy(Work((p._replace(adds=True),))).compute, 3 * summed)
    apart = measured(system, gradients_apart=1.).busy(Work((p._replace(adds=True),))).compute
    moved = 2e-9 * 2 * 3000 * 5000 * (2 + 5 / 2)
    kernel = 3e-6 + moved / (system.hbm_bandwidth * .8)
    assert close(apart, 3 * (once + kernel))
    busy = pricer.busy(Work((p,), vector=9., nbytes=.4, scores=.3, launches=7.))
    vector = (.4 / .8 + .3 / .5) / system.hbm_bandwidth
    numbers = 3 * 2 * (3000 * 700 + 700 * 5000 + 3000 * 5000)
    assert close(busy.memory, vector + 7 * 3e-6) and close(busy.launch, (7 + 3) * 3e-6)
    assert close(busy.moving, vector + 2e-9 * numbers / .8 / system.hbm_bandwidth)


@pytest.mark.parametrize('numbers', [1e5, 1e9])
def test_a_fused_scan_is_one_kernel(numbers):
    "After one gap, the longer of its arithmetic and of what it moves; each has speeds of its own."
    some = dataclasses.replace(KERNELS, fused_share=.3)
    pricer = Measured(HOPPER, Parameters('Hopper', network=NET, kernels=some, software=Costs()))
    products = Product(300, 500, 70, 8., times=3.), Product(640, 64, 32)
    flop = 3 * 8 * 300 * 500 * (2 * 70 - 1) + 640 * 64 * (2 * 32 - 1)
    busy = pricer.busy(Work(products, fused=True, operands=numbers, matrix_speed=1.7,
                            memory_speed=.6))
    arithmetic = 1e-12 * flop / (HOPPER.matrix_flops_fp16 * .3 * .9 * 1.7)
    rate = HOPPER.hbm_bandwidth * .8
    moved = 2e-9 * numbers / (rate * .6)
    assert (moved > arithmetic) == (numbers == 1e9)
    assert close(busy.compute, 3e-6 + max(arithmetic, moved)) and close(busy.launch, 3e-6)
    assert close(busy.moving, 2e-9 * numbers / rate) and busy.memory == 0


def test_power_sets_the_clock():
    "As its 0.4th power, and never above the full clock."
    usual = {'Ampere': 400, 'Hopper': 700, 'Blackwell': 1200}
    for generation, watts in usual.items():
        parameters = Parameters(generation, kernels=KERNELS)
        for power in (.3 * watts, watts, 1.1 * watts, 9 * watts):
            system = dataclasses.replace(HOPPER, power=power, architecture=generation)
            share = min((power / watts)**.4, 1 / .9)
            assert close(kernels.sustained_clock(system, parameters), share)
        assert kernels.sustained_clock(dataclasses.replace(system, power=None), parameters) == 1


@pytest.mark.parametrize('library, cached, launch', [
    ('vllm', True, 1.), ('FA3', False, 1.), ('cuDNN-9', False, single.ON_DEVICE)])
def test_how_published_attention_ran(monkeypatch, library, cached, launch):
    "Serving writes keys and values into a cache; the GPU's own clock sees less of a launch."
    asked = []
    def seconds(backward=False, **more):
        asked.append((more['cached'], more['fit'].launch))
        return 3. if backward else 1.
    monkeypatch.setattr(single, 'attention_seconds', seconds)
    own = pd.DataFrame({'op': ['fwd', 'bwd', 'fwd+bwd'], 'causal': [0., 0., 0.]})
    took = single.published_attention_price(
        own, dict(window=np.full(3, 8.), seq=np.full(3, 8.)), None, SimpleNamespace(launch=1.),
        ('H100', library, 'bf16'))
    assert took.tolist() == [1., 3., 4.] and {*asked} == {(cached, launch)}


@pytest.mark.parametrize('passes', [1, 2, 3])
def test_passes_weigh_in_every_system_what_they_weigh_there_alone(passes):
    "A column for each of three systems; `element`: GB of a number there."
    each = [Work((Product(2**i, 8, 16),), vector=1e-6 * i) for i in range(passes)]
    elements = np.array([2e-9, 1e-9, 4e-9])
    together = estimates.stacked(each, Units(element=elements))
    for name in ('matrix', 'vector', 'nbytes'):
        alone = [getattr(estimates.stacked(each, Units(element=GB)), name) for GB in elements]
        assert np.array_equal(getattr(together, name), np.stack(alone, axis=-1)), name


@pytest.mark.parametrize('watts', [200, 500, 760, 5000])
@pytest.mark.parametrize('work', [
    Work((Product(4096, 8192, 4096),)), Work((Product(4096, 8192, 4096, adds=True),)),
    Work(attention=AttentionKernel(2, 16, 4, 3000, 6000, 128, .5))],
    ids=['product', 'adds', 'attention'])
def test_less_power_is_a_lower_clock(work, watts):
    "Of products and of attention."
    share = min((watts / 700)**.4, 1 / .9)
    lower = dataclasses.replace(KERNELS, clock=KERNELS.clock * share)
    slower, usual = (dataclasses.replace(HOPPER, power=power) for power in (watts, None))
    found, hand, full = (
        Measured(system, Parameters('Hopper', kernels=kernels)).busy(work).compute
        for system, kernels in ((slower, KERNELS), (usual, lower), (usual, KERNELS)))
    assert close(found, hand) and (found > full) == (watts < 700)


def test_attention_of_training_by_hand():
    _, fit = single.closest('attention', 'H100', 'cuDNN-9.19')
    share = .9 * .95
    fit = dataclasses.replace(fit, launch=3e-6, **{
        f'head_{d}': share * getattr(fit, f'head_{d}') for d in (64, 128, 192, 256, 512)})
    system = dataclasses.replace(HOPPER, power=None)
    for backward in (False, True):
        work = AttentionKernel(2, 16, 4, 3000, 6000, 192, .4, backward, 128)
        hand = attention_by_hand(2, 3000, 16, 4, 192, 128, 6000, .4, backward, False, system, fit)
        assert close(measured(system).busy(Work(attention=work)).compute, hand)


def test_columns_are_priced_as_rows():
    "Many rows with few that differ, in another order each: where these are, they are priced once."
    rng, pricer, rows = np.random.default_rng(1), measured(), 2 * LEAST_ROWS_TOLD_APART
    m, n = rng.choice([64, 512, 3000], rows), rng.choice([128, 7000], rows)
    k, low = rng.choice([100, 4096], rows), rng.choice(['bf16', 'fp8'], rows)
    found = pricer.busy(Work((Product(m, n, k, precision=low, times=3.),))).compute
    for i in range(0, rows, rows // 12):
        one = Product(int(m[i]), int(n[i]), int(k[i]), precision=str(low[i]), times=3.)
        assert close(found[i], pricer.busy(Work((one,))).compute)


def test_a_sum_is_the_same_however_many_columns_there_are():
    "To the last digit: one row of figures after the other."
    rows = np.random.default_rng(3).random((100, 5))
    one_by_one = np.zeros(5)
    for row in rows: one_by_one += row
    assert (estimates.added(rows) == one_by_one).all()
    for i in range(5):
        assert estimates.added(rows[:, i]) == estimates.added(rows[:, [i]])[0] == one_by_one[i]


# tables of kernels: every row by the same formulas

PRECISIONS = {'bfloat16': 'bf16', 'half': 'bf16', 'float16': 'bf16', 'fp16/bf16': 'bf16'}


def shown(kind, every):  # (row, its microseconds) of some published kernels
    found = single.predict_kernels(single.published_kernels(kind).iloc[::every], kind)
    assert (found.reason == '').all() and len(found) > 10
    return [(row, row.predicted_us * 1e-6) for row in found.itertuples()]


def set_of(kind, gpu, library, precision):
    gpu = single.gpu_of(gpu)
    precision = PRECISIONS.get(precision, precision)
    return dict(system=single.sheet_of(gpu), fit=single.closest(kind, gpu, library, precision)[1])


def test_rows_of_products():
    for row, seconds in shown('gemm', 9):
        known = set_of('products', row.device, row.framework.lower(), row.gemm_dtype)
        precision = PRECISIONS.get(row.gemm_dtype, row.gemm_dtype)
        assert close(seconds, product_by_hand(row.m, row.n, row.k, precision=precision, **known))


def test_rows_of_attention():
    "Of serving: causal, and with a cache that is written."
    for row, seconds in shown('attention', 5):
        known = set_of('attention', row.sys, row.kernel_source, row.attn_dtype)
        assert close(seconds, attention_by_hand(
            row.batch_size, row.isl, row.num_heads, row.num_key_value_heads, row.head_dim,
            row.head_dim, row.isl, .5, False, True, **known))


def test_rows_of_attention_in_training():
    "Both directions; values narrower than keys; windows; the GPU's own clock for a launch."
    table = single.published_kernels('training')
    table = table.assign(causal=np.arange(len(table)) % 5 > 0)
    found = single.predict_kernels(table, 'training')
    assert {'fwd', 'bwd'} <= set(found.op) and found.window.notna().any()
    for row in found.itertuples():
        library = row.library.split()[-1]
        known = set_of('attention', row.gpu, library, row.dtype)
        if library.startswith('cuDNN-'):
            known['fit'] = dataclasses.replace(known['fit'], launch=2e-6)
        value = row.head_dim if math.isnan(row.value_dim) else row.value_dim
        wide = 1 if math.isnan(row.window) else min(row.window / row.seq_len, 1)
        seen = wide - wide**2 / 2 if row.causal else 1
        ways = {'fwd': [False], 'bwd': [True], 'fwd+bwd': [False, True]}[row.op]
        hand = sum(attention_by_hand(
            row.batch, row.seq_len, row.heads, row.kv_heads, row.head_dim, value, row.seq_len, seen,
            backward, library.startswith('vllm'), **known) for backward in ways)
        assert close(row.predicted_us * 1e-6, hand)


def test_rows_of_experts():
    "Who measured decides which tokens arrive, and whether they go to one group of experts."
    table = single.published_kernels('moe')
    few = table[(table.hidden_size == 7168) & (table.num_experts == 256)].head(3)
    few = single.predict_kernels(few.assign(fw='sglang'), 'moe')   # which is told of no other row
    for row, seconds in [*shown('moe', 2), *((row, 1e-6 * row.predicted_us)
                                             for row in few.itertuples())]:
        known = set_of('experts', row.sys, row.kernel_source, row.moe_dtype)
        newer = row.fw == 'sglang' and 'a100' not in row.sys
        own = (not (newer and row.kernel_source == 'sglang_fused_moe_triton')
               or row.num_experts == 8 or row.hidden_size == 2816)
        grouped = newer or any(x in row.kernel_source for x in (
            'monolithic', 'fp8moe_flashinfer_cutlass'))
        same = grouped and row.hidden_size == 7168 and row.num_experts == 256
        precision = PRECISIONS.get(row.moe_dtype, row.moe_dtype)
        assert close(seconds, experts_by_hand(
            row.num_tokens, row.hidden_size, row.inter_size / row.moe_tp_size, row.topk,
            row.num_experts, row.moe_ep_size, own, same, 'nongated' not in row.kernel_source,
            precision=precision, **known))
    uneven = single.predict_kernels(table.head(2).assign(distribution='power_law'), 'moe')
    assert (uneven.reason == 'uneven routing').all() and uneven.predicted_us.isna().all()


def other(**columns):  # DataFrame
    "A row of the mixed table."
    empty = dict.fromkeys(single.TABLES['other'][0], np.nan) | dict(dtype='bf16', n_nodes=1.)
    return single.predict_kernels(pd.DataFrame([empty | columns]), 'other').iloc[0]


def test_rows_of_messages():
    for row, seconds in shown('other', 3):
        op = {'all_reduce': 'allreduce', 'all_gather': 'allgather',
              'reduce_scatter': 'reducescatter', 'alltoall': 'alltoall'}[row.op.split()[0]]
        known = set_of('domains', row.gpu, op, 'bf16')
        assert close(seconds, domain_by_hand(op, row.message_bytes / 1e9, row.n_gpus,
                                             known['system'].nvlink_bandwidth, known['fit']))
    sent = dict(kind='collective', gpu='H100', n_gpus=8., message_bytes=1e8)
    assert other(op='all_reduce', n_nodes=2., **sent).reason == 'goes between nodes'
    assert other(op='scatter', **sent).reason == 'no such collective was measured'
    assert other(kind='copy', gpu='H100').reason == 'no model of such a kernel'
    for nodes, place in ((1., 'near'), (4., 'far')):
        row = other(kind='moe_a2a', gpu='H100', op='deepep_normal_dispatch', tokens=4096., topk=8.,
                    hidden=7168., n_gpus=8 * nodes, n_nodes=nodes, library='DeepEP normal, 24 SMs')
        known = set_of('exchanges', 'H100', f'dispatch {place}', 'bf16')
        assert close(row.predicted_us * 1e-6, exchange_by_hand(
            4096, 7168, 8, 8 * nodes, nodes, 24, **known))
    row = other(kind='moe_a2a', gpu='H100', op='deepep_low_latency', tokens=1., topk=8., n_gpus=8.,
                hidden=7168., library='DeepEP normal, 24 SMs')
    assert row.reason == 'another kind of exchange'
    for precision in ('bf16', 'fp8'):
        dtype = {'bf16': 'bfloat16'}.get(precision, precision)
        name = next(name for name in FITS['experts'] if name.endswith(f'/{precision}'))
        gpu, library, _ = name.split('/')
        row = other(kind='grouped_gemm', gpu=gpu, library=library, dtype=dtype, m=384., n=1024.,
                    k=4096., experts=16.)
        known = set_of('experts', gpu, library, precision)
        hand = grouped_by_hand(16, 384, 1024, 4096, known['system'], known['fit'], precision, 1)
        assert close(row.predicted_us * 1e-6, hand + known['fit'].launch), name
    row = other(kind='gemm', gpu='H100', library='trtllm x', m=4096., n=512., k=3000.)
    known = set_of('products', 'H100', 'trtllm', 'bf16')
    hand = product_by_hand(4096, 512, 3000, precision='bf16', **known)
    assert close(row.predicted_us * 1e-6, hand)


def test_what_was_measured_in_rates():
    "TFLOP/s of attention or of a product as seconds; half of the scores where causal."
    rows = pd.DataFrame([
        dict(kind='attention', op='fwd', causal=1., batch=2., seq_len=4096., heads=16.,
             head_dim=128., tflops=500.),
        dict(kind='attention', op='fwd+bwd', causal=0., batch=2., seq_len=4096., heads=16.,
             head_dim=128., tflops=400.),
        dict(kind='gemm_max', op='x', causal=0., m=4096., n=8192., k=1000., tflops=700.),
        dict(kind='gemm', op='x', causal=0., m=1., n=1., k=1., tflops=1., time_us=17.)])
    scores = 4 * 2 * 4096**2 * 16 * 128
    assert np.allclose(fit_kernels.measured_seconds(rows), [
        scores / 2 / 500e12, 3.5 * scores / 400e12, 2 * 4096 * 8192 * 1000 / 700e12, 17e-6])


def test_a_fit_sees_what_it_may():
    "Rows with all numbers, a time and a model; scored on the half that another fit did not see."
    table = single.published_kernels('gemm').query(
        'device.str.contains("H100") and framework == "TRTLLM" and gemm_dtype == "bfloat16"')
    job, seconds = single.products_to_price(table), table.time_us.to_numpy() * 1e-6
    usable = fit_kernels.usable(job, np.where(np.arange(len(table)) % 3, seconds, np.nan))
    assert usable.tolist() == (np.arange(len(table)) % 3 > 0).tolist()
    gone = fit_kernels.usable(job._replace(refused='no model'), seconds)
    assert not np.any(gone)
    name, rows = next(iter(single.rows_by_parameters(job)))
    fit = set_of('products', 'H100', 'trtllm', 'bf16')['fit']
    errors = fit_kernels.error_of(table, job, rows, name, fit, seconds)
    hand = [product_by_hand(row.m, row.n, row.k, single.sheet_of('H100'), fit, 'bf16')
            / row.time_us / 1e-6 - 1 for row in table.itertuples()]
    assert np.allclose(errors, hand)
    found = pd.DataFrame({'kind': ['a', 'a', 'b'], 'rows': [1, 3, 5], 'mean': [.1, .2, .4]})
    assert single.mean_errors(found, 'kind').tolist() == pytest.approx([17.5, 40])


@pytest.mark.parametrize('kind', ['gemm', 'other'])
def test_who_sees_what_in_a_fit(kind, monkeypatch):
    """Of a few sizes a fifth is held out five times, and a generation is fitted as one GPU.

    Of others one half is, and the fit that ships has not seen the sample that travels with it."""
    table = single.published_kernels(kind).query('time_us > 0').reset_index(drop=True)
    (_, job), *_ = single.rows_by_pricing(table, kind)
    small, seen, shape = kind == 'other', [], fit_kernels.shape_of(job)
    monkeypatch.setattr(fit_kernels, 'fit_rows', lambda df, job, rows, name, seconds, weights: (
        seen.append((name, set(rows), weights[rows])), len(seen))[1])
    monkeypatch.setattr(fit_kernels, 'error_of', lambda df, job, rows, name, fit, seconds: np.array(
        sorted(rows)) * 1.)
    found = list(fit_kernels.fit_table(table, job, table.time_us.to_numpy() * 1e-6))
    folds, each = (5, 6) if small else (2, 2)
    assert len(seen) == each * len(found) > each and all(fit % each == 0 for _, fit, _ in found)
    for i, (name, _, errors) in enumerate(found):
        *parts, (_, whole, weights) = seen[i * each:(i + 1) * each]
        every = set().union(whole, *(rows for _, rows, _ in parts), errors.astype(int))
        new = {row for row in every if shape[row] % 100 < fit_kernels.SAMPLE and not small}
        assert whole == every - new and {name} == {'/'.join(key) for key, _, _ in parts}
        for fold, (_, rows, _) in enumerate(parts):
            assert rows == {row for row in every if shape[row] // 100 % folds != fold}
        held = [row for fold in range(len(parts)) for row in every
                if shape[row] // 100 % folds == fold]
        assert sorted(errors) == sorted(held)
        light = table.message_bytes[sorted(whole)] < 2**20 if small else 0 * weights
        assert sorted(weights) == sorted(np.where(light, .4, 1))
    names = [name.split('/')[0] for name, _, _ in found]
    if small: assert {fit_kernels.pooled(name) for name in names} == {*names}


@pytest.mark.parametrize('generation, system, measured', [
    ('Hopper', 'H200', 'H200'), ('Hopper', 'H100-80GB', 'H100'), ('Ampere', 'H200', 'A100'),
    ('Blackwell', 'H200', 'B200'), ('Hopper', 'MI300X', 'H100')])
def test_kernels_are_those_of_the_generation_that_prices(generation, system, measured):
    "A GPU's own where it was measured, unless it is priced as one of another generation."
    own = read_calibration().sets[f'{generation}/any']
    assert kernels.gpu_near(as_system(system), own) == measured


@pytest.mark.parametrize('gpu, precision, bits', [
    ('A100-80GB', 'fp8', 8), ('H100-80GB', 'nvfp4', 4)])
def test_products_in_fewer_bits_than_a_gpu_multiplies(gpu, precision, bits):
    with pytest.raises(ValueError, match=f'multiplies floats of {bits} bits'):
        estimates.peak_rate(precision, as_system(gpu))
