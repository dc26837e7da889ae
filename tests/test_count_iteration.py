"""An iteration by hand: from the rows of one layer to every part of its time and its memory.

The rows themselves test_count_layers.py counts, the prices of messages test_count_prices.py.
"""
import dataclasses
import functools
import itertools
import math
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from thorough import first_of
from test_count_schedules import walk

from transformer_perf import (
    Assumptions, Model, Parallel, estimate, execution, iteration, modules, search, timeline)
from transformer_perf.blocks import MLP, CountedJob, Layouts, gpt_block
from transformer_perf.choices import launched
from transformer_perf.estimates import AS_TRAINED, CHOICES, MENDED_SLIPS, Group, Product, Work
from transformer_perf.kernels import pricer_of
from transformer_perf.models import NAMED, as_model, with_length
from transformer_perf.parameters import Costs, NetworkShares, Parameters
from transformer_perf.schedules import played
from transformer_perf.systems import as_system
from transformer_perf.timeline import TIMES, memory_on_ranks, priced_estimate

SYSTEM = as_system('H100-80GB', 8)
PAPER = Assumptions()
TRAINED = Assumptions(**MENDED_SLIPS | AS_TRAINED)
COSTLY = Costs(   # everything costs something
    host_layer=4e-4, host_wrapped=3e-4, host_experts=2e-3, host_tp=.1, host_sharpness=2.5,
    host_micro_batch=1e-3, iteration_constant=.01, straggler=.02, loss_traffic=40.,
    optimizer_traffic=33., gradient_bytes=4., gradient_held=4., logit_held=7., wrapped=True,
    gradients_apart=.5, framework_GB=.3, nccl_GB=.4, context_GB=.6, fragments=.05,
    p2p_exposed=.5)
MEASURED = dataclasses.replace(TRAINED, measured=Parameters('Hopper', software=COSTLY))
b, l, e, h, f, V, depth = 2, 1024, 512, 8, 1536, 4096, 12
MODEL = Model(l, e, h, depth, mlp_dim=f, vocab=V, tied_embeddings=True, name='small')


def close(x, y, rel=1e-9): return math.isclose(x, y, rel_tol=rel, abs_tol=1e-18)


def case(a=TRAINED, model=MODEL, batch=64, **layout):
    "An estimate of micro-batches of two, its pricer, and its layers' sums."
    one = estimate(model, Parallel(micro_batch=b, **layout), SYSTEM, batch, a)
    return one, pricer_of(SYSTEM, one.assumptions), one.layers


def summed(table, part): return table[f't_fwd_{part}'].sum() + table[f't_bwd_{part}'].sum()


# the ends of the model

def passes(pricer, there, back, sent):  # s
    "Work of both directions, and all-reduces of so many GB."
    busy = sum(pricer.busy(work).total for work in (there, back))
    return busy + sum(pricer.collective('allreduce', GB, group) for GB, group in sent)


def ends_by_hand(pricer, tp, cp, place, loss_traffic=52.):  # (s of the first, of the last stage)
    "Words are looked up; after the last layer a norm, a product with every word, and the loss."
    T, own, group = b * l / cp, b * l / cp / tp, Group(tp, place)
    look = Work(nbytes=4e-9 * own * e, launches=3)
    whole = 2e-9 * T * e
    first = passes(pricer, look, look, [(whole, group)])
    x = own * e
    last = passes(pricer, Work(vector=9e-12 * x, nbytes=4e-9 * x, launches=1),
                  Work(vector=12e-12 * x, nbytes=8e-9 * x, launches=2), [])
    loss = (1e-9 * loss_traffic * T * V / tp + 6e-9 * x) / 2
    last += passes(
        pricer, Work((Product(T, V / tp, e),), nbytes=loss, launches=5),
        Work((Product(T, e, V / tp), Product(V / tp, e, T)), nbytes=loss, launches=4),
        [(whole, group)] + [(4e-9 * T, group)] * 3)
    return first, last + pricer.collective('allgather', whole, group)   # of the sharded rows


# time

@pytest.mark.parametrize('layout', [
    dict(tp=2, pp=2, nvlink_tp=2, nvlink_pp=1), dict(tp=4, cp=2, pp=3, nvlink_tp=4, nvlink_pp=1),
    dict(tp=2, pp=4, virtual_stages=3, nvlink_tp=2, nvlink_pp=4),
    dict(cp=2, pp=1, nvlink_cp=2, nvlink_pp=1)])
def test_time_without_software(layout):
    "Layers, messages between stages, and the bubble of 1F1B; the slower end sets the pace."
    one, pricer, table = case(nvlink_dp=1, **dict(nvlink_cp=1) | layout)
    tp, cp, pp, v = (layout.get(name, 1) for name in ('tp', 'cp', 'pp', 'virtual_stages'))
    N, L, s = 64 // b, depth / pp, one.stats
    first, last = ends_by_hand(pricer, tp, cp, layout.get('nvlink_tp', 1))
    own = first + last if pp == 1 else max(first, last)
    link = pricer.send(2e-9 * b * l / cp / tp * e, layout['nvlink_pp'] == pp) * (pp > 1)
    assert close(s['compute_s'], N * (L * summed(table, 'comp') + own))
    assert close(s['exposed_memory_s'], N * L * summed(table, 'mem'))
    assert close(s['tp_comm_s'], N * L * summed(table, 'comm'))
    assert close(s['pp_comm_s'], N * 2 * v * link)
    stage = L * table.t.sum() + 2 * v * link
    idle = (pp - 1) * stage + (first + last - own) * (pp > 1)
    if v > 1:   # no formula: the ends make two chunks longer than the others
        F, B = (np.full(pp * v, L / v * table[way].sum() + link) for way in ('t_fwd', 't_bwd'))
        for chunk, end in ((0, first), (-1, last)): F[chunk] += end / 3; B[chunk] += end * 2 / 3
        idle = played('1f1b', pp, v, N, F, B, 0.).total - N * (stage + own)
    assert close(s['bubble_s'], idle, 1e-7 if v > 1 else 1e-9)
    flop = table.flops_fwd.sum() + table.flops_bwd.sum()
    assert close(s['TFLOP_per_gpu'], N * L * flop)
    words = pricer.send(2e-9 * V / tp * e, False) * (pp > 1)   # the gradient of a shared table
    if layout['nvlink_pp'] == pp > 1: words = pricer.send(2e-9 * V / tp * e, True)
    assert close(s['other_s'], words)


def test_every_micro_batch_and_layer_counts_once():
    "Twice the batch is twice the work; of a pipeline each stage has its share."
    once, twice = (case(batch=n, tp=2, pp=2)[0].stats for n in (64, 128))
    for part in ('compute_s', 'exposed_memory_s', 'tp_comm_s', 'pp_comm_s', 'TFLOP_per_gpu',
                 'model_TFLOP_per_gpu', 'executed_TFLOP_per_gpu'):
        assert close(twice[part], 2 * once[part])
    assert twice['bubble_s'] == once['bubble_s'] and once['samples_per_s'] * once[
        'iteration_s'] == pytest.approx(64)


def test_what_is_computed_again():
    "In full: a forward pass more, with its messages; of the core: its operation alone."
    plain, _, table = case(tp=2, nvlink_tp=2)
    full, core = (case(tp=2, nvlink_tp=2, recompute=name)[0] for name in ('full', 'selective'))
    N = 64 // b
    again = {'full': table, 'core': table[table.layer == 'fusedla']}
    for one, rows in ((full, again['full']), (core, again['core'])):
        for part, name in (('comp', 'compute_s'), ('mem', 'exposed_memory_s'),
                           ('comm', 'tp_comm_s')):
            more = one.stats[name] - plain.stats[name]
            assert math.isclose(more, N * depth * rows[f't_fwd_{part}'].sum(), rel_tol=1e-6,
                                abs_tol=1e-12)
        assert close(one.layers.t_bwd.sum(), table.t_bwd.sum() + rows.t_fwd.sum())
    some = case(tp=2, nvlink_tp=2, recompute='full:3')[0].stats
    share = (some['compute_s'] - plain.stats['compute_s']) / (
        full.stats['compute_s'] - plain.stats['compute_s'])
    assert close(share, 3 / depth, 1e-6)


@pytest.mark.parametrize('recompute', ['none', 'full'])
def test_what_the_host_costs(recompute):
    """The longer of GPU and host, rounded; more where modules are wrapped, and for each doubling.

    A layer that is computed again is launched again."""
    layout, full = dict(tp=4, pp=2, nvlink_tp=4, nvlink_pp=2), int(recompute == 'full')
    (one, pricer, _), (_, _, table) = case(MEASURED, **layout, recompute=recompute), case(
        MEASURED, **layout)
    N, L, n, s = 64 // b, depth / 2, 8, one.stats
    host = (4e-4 + 3e-4) * (1 + .1 * 2)
    longer = lambda gpu: (gpu**2.5 + host**2.5)**(1 / 2.5)
    F, B = longer(table.t_fwd.sum()), longer(table.t_bwd.sum())
    wait = (1 + full) * (F - table.t_fwd.sum()) + B - table.t_bwd.sum()
    assert wait > .01 * table.t.sum()
    layer, compute = (1 + full) * F + B, summed(table, 'comp') + full * table.t_fwd_comp.sum()
    first, last = ends_by_hand(pricer, 4, 1, 4, loss_traffic=40.)
    own = max(first, last)
    sent = 2 * pricer.send(2e-9 * b * l / 4 * e, True)
    assert close(s['compute_s'], N * (L * compute + own))
    assert close(s['pp_comm_s'], N * sent)
    stage = L * layer + 1e-3 + sent
    assert close(s['bubble_s'], stage + first + last - own)
    slow = .02 * math.sqrt(2 * math.log(n)) * (L * layer + sent + 1e-3 + own)
    # weights, gradient and states of a parameter, against 24 + 4 + 2 bytes
    weights = 1e-9 * table.weights_mem.sum() * 1e9 * L + 2e-9 * (e * V / 4 + 2 * e)
    moved = 33 * (24 + 4 + 2) / (24 + 4 + 2) / 2 * weights
    step = pricer.busy(Work(nbytes=moved)).total + .01
    words = pricer.send(4e-9 * V / 4 * e, True)   # their gradients, in 32 bits
    assert close(s['other_s'], N * (L * wait + 1e-3 + slow) + step + words, 1e-6)


def test_a_dispatcher_that_sorts_spares_the_host():
    "Only the share `host_sorted` is left of what a layer with experts costs more."
    experts = dataclasses.replace(MODEL, experts=8, experts_per_token=2, expert_dim=256)
    less = dataclasses.replace(COSTLY, host_sorted=.6, host_experts=.5)   # far above the kernels
    a = dataclasses.replace(TRAINED, measured=Parameters('Hopper', software=less))
    wait = [estimate(experts, Parallel(dp=4, ep=4, micro_batch=b, dispatcher=way), SYSTEM, 64,
                     a).stats['iteration_s'] for way in ('once', 'once_sorted')]
    N, layers = 64 // b // 4, 2 * depth   # there and back
    spread = 1 + .02 * math.sqrt(2 * math.log(4))
    assert close(wait[0] - wait[1], N * layers * .4 * .5 * spread, 1e-3)


@pytest.mark.parametrize('way', ['alltoall', 'allgather', 'once', 'once_sorted'])
def test_no_dispatcher_matters_where_nobody_shares_experts(way):
    seconds = {estimate('qwen3_30B_A3B', Parallel(dp=16, ep=1, dispatcher=name), 'GB200-NVL72', 64,
                        software='Megatron-Core').stats['iteration_s']
               for name in ('alltoall', way)}
    assert len(seconds) == 1


@pytest.mark.parametrize('reshard', [True, False])
@pytest.mark.parametrize('low', [True, False])
def test_copies_in_8_bits_that_are_thrown_away_are_made_again(low, reshard):
    "In each pass of each micro-batch the one that it needs: 2 bytes read, 1 written; else once."
    a = dataclasses.replace(TRAINED, fp8_parameters=low)
    layout = dict(dp=8, zero_stage=3, reshard_after_forward=reshard, precision='fp8')
    parts = {}
    for batch in (16 * b, 64 * b):
        layer = estimate(MODEL, Parallel(micro_batch=b, **layout), SYSTEM, batch, a)
        parts[batch // 8 // b] = layer.stats['other_s']
    GB = layer.layers.weights_mem.sum() * depth / 2   # numbers, in thousand millions
    each = 2 * (2 + 1) * GB / SYSTEM.hbm_bandwidth if reshard and not low else 0.
    assert parts[8] - parts[2] == pytest.approx(6 * each, rel=1e-6, abs=1e-12)


def test_ends_in_16_bits_may_meet():
    "Then all layers are in 16 bits, and of one kind."
    a, layout = dataclasses.replace(TRAINED, bf16_ends=2), dict(pp=2, dp=2)
    four = dataclasses.replace(MODEL, depth=4)
    low, plain = (case(a, four, precision=precision, **layout)[0].stats['iteration_s']
                  for precision in ('fp8', 'bf16'))
    assert close(low, plain, 1e-3)   # but for the cast of what is gathered
    assert len(search(four, 4, SYSTEM, 64, assumptions=a, precision='fp8'))


@pytest.mark.parametrize('software', ['torchtitan', 'Megatron-Core'])
@pytest.mark.parametrize('precision', ['bf16', 'fp8'])
def test_a_copy_that_is_alone_shares_nothing_out(software, precision):
    "Whatever its ZeRO stage."
    found = [estimate('llama3.1_8B', Parallel(tp=4, precision=precision, zero_stage=stage,
                                              recompute='full'),
                      'H100-80GB', 4, software=software).stats for stage in (0, 1, 2, 3)]
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize('tied, ahead', [(True, 0), (True, 1), (False, 0), (False, 1)])
def test_words_on_two_stages_exchange_gradients(tied, ahead):
    "In 32 bits; multi-token prediction has an embedding on the last stage, too, whoever is tied."
    model = dataclasses.replace(MODEL, tied_embeddings=tied, mtp_layers=ahead)
    a, fast = dataclasses.replace(TRAINED, gradient_held=4.), dataclasses.replace(
        SYSTEM, nvlink_bandwidth=9e5)   # nothing else of a step knows the link
    step = [estimate(model, Parallel(pp=2, dp=4, micro_batch=b), system, 64, a).stats['other_s']
            for system in (SYSTEM, fast)]
    sent = [pricer_of(system, a).send(4e-9 * V * e, True) for system in (SYSTEM, fast)]
    assert close(step[0] - step[1], (sent[0] - sent[1]) * (tied or ahead > 0), 1e-6)


def test_keys_and_values_of_unlike_width_are_gathered():
    "Of latent attention a key has 192 features and a value 128, in each of 128 heads."
    model = with_length(NAMED['deepseek_v3'], 131072)
    layout = dict(cp=16, pp=16, dp=4, ep=64, recompute='full')
    GB = [estimate(model, Parallel(context=way, **layout), 'H200-141GB', 64,
                   software='Megatron-Core').stats['activations_GB']
          for way in ('allgather', 'ring')]
    others = 131072 * 15 / 16
    assert close(GB[0] - GB[1], 2e-9 * others * 128 * (192 + 128), 1e-6)


@pytest.mark.parametrize('etp', [1, 2])
@pytest.mark.parametrize('recompute', ['none', 'full', 'moe'])
def test_tokens_that_are_gathered_for_experts_are_held(recompute, etp):
    "Those of all GPUs that share the experts, whole; of an all-to-all only what experts work on."
    layout = dict(tp=2, dp=16, ep=16 // etp, etp=etp, recompute=recompute)
    GB = [estimate('qwen3_30B_A3B', Parallel(dispatcher=way, **layout), 'H100-80GB', 64,
                   software='Megatron-Core').stats['activations_GB']
          for way in ('allgather', 'alltoall')]
    assert close(GB[0] - GB[1], 15 * 2e-9 * 4096 / 2 * 2048, 1e-6)


@pytest.mark.parametrize('cp, dp, several', [(1, 1, False), (2, 1, True), (1, 2, True)])
def test_buckets_of_gradients_are_of_all_copies(cp, dp, several):
    "Those of cp sum up the same weights."
    one = estimate('llama3.1_8B', Parallel(cp=cp, dp=dp), 'H100-80GB', 2, software='nanotron')
    costs = one.assumptions.measured.software
    held = costs.gradient_held + costs.bucket_bytes * several
    assert close(one.stats['gradients_GB'], held * 1e-9 * NAMED['llama3.1_8B'].parameters, 1e-3)


@pytest.mark.parametrize('software, held', [
    ('torchtitan', 16), ('fms-fsdp', 16), ('Megatron-Core', 18)])
def test_bytes_of_a_parameter_that_all_share(software, held):
    "FSDP's own shard is the 32-bit copy: 4, 8 of Adam and a gradient of 4; Megatron's has 2 more."
    GB = [estimate('llama3.1_70B', Parallel(dp=n, recompute='full', zero_stage=3), 'H100-80GB', n,
                   software=software).stats['memory_GB'] for n in (64, 128)]
    shares = 1e-9 * NAMED['llama3.1_70B'].parameters / 128
    assert close((GB[0] - GB[1]) / shares, held, 1e-6)


def test_what_graphs_take_from_the_host():
    "Half of a layer each for attention and MLP; its experts in parts, or whole, but never twice."
    left = lambda graphs: [float(launched(graphs, part)) for part in (0, 1, 2)]
    for graphs, shares in (('none', (1, 1, 1)), ('attn', (.5, 1, 1)), ('attn+mlp', (0, 1, 1)),
                           ('moe_router', (1, .8, 1)), ('moe_router+moe_preprocess', (1, .6, 1)),
                           ('moe', (1, 0, 1)), ('moe+moe_router', (1, 0, 1)),
                           ('attn+moe_router', (.5, .8, 1)), ('iteration', (0, 0, 0))):
        assert left(graphs) == pytest.approx(shares, abs=1e-15), graphs
    column = np.array(['none', 'attn+mlp', 'attn'])
    assert launched(column, 0).tolist() == [1, 0, .5]


@pytest.mark.parametrize('graphs, own, routed', [   # s of a layer, and of its experts
    ('none', 7e-4, 2e-3), ('attn', 3.5e-4, 2e-3), ('attn+mlp', 0, 2e-3),
    ('moe_router', 7e-4, 1.6e-3), ('iteration', 0, 0)])
@pytest.mark.parametrize('tp', [1, 4])
@pytest.mark.parametrize('experts', [False, True])
def test_what_the_host_takes_of_a_layer(graphs, own, routed, tp, experts):
    "All of it is waited for where kernels take no time; with as long ones, a power mean of both."
    layouts = priced_estimate(case(MEASURED, tp=tp, cuda_graphs=graphs)[0]).work.layouts
    host = (own + routed * experts) * (1 + .1 * math.log2(tp))
    for passes in (1., 2.):
        assert close(modules.host_wait(0., layouts, experts, passes), passes * host)
    assert close(modules.host_wait(host, layouts, experts), host * (2**(1 / 2.5) - 1))


@pytest.mark.parametrize('precision', ['bf16', 'fp8'])
@pytest.mark.parametrize('changes, moved', [   # bytes of a parameter, both ways
    ({}, 2 * 12 + 4 + 2), (dict(master_bytes=2.), 2 * 10 + 4 + 2 * 2),
    (dict(moment_bytes=2., gradient_held=2.), 2 * 8 + 2 + 2)])
@pytest.mark.parametrize('stage', [0, 1])
def test_a_step_by_hand(precision, changes, moved, stage):
    "States, gradient and weight of a GPU's share, as often as software does; weights cast anew."
    software = Costs(optimizer_traffic=33., gradient_held=4., iteration_constant=.02)
    a = dataclasses.replace(TRAINED, **changes, measured=Parameters('Hopper', software=software))
    one, pricer, table = case(a, dp=8, zero_stage=stage, precision=precision)
    weights = depth * table.weights_mem.sum() + 2e-9 * e * (V + 2)
    nbytes = weights / 2 * 33 * moved / (24 + 4 + 2) / (8 if stage else 1)
    if precision == 'fp8': nbytes += 4 * depth * table.weights_mem.sum() / 2
    assert close(one.stats['other_s'], pricer.busy(Work(nbytes=nbytes)).total + .02)


def test_what_does_not_train_is_cast_wherever_the_rest_is():
    "ZeRO-3 casts what it gathers in each pass: 2 bytes read and 1 written, of every weight alike."
    one, *_ = case(dp=8, zero_stage=3, precision='fp8', adapters='frozen:mlp')
    layouts = priced_estimate(one).work.layouts
    kinds = dict(weights=2., routed=3., frozen=5., frozen_routed=7.)   # GB in 16 bits
    held = modules.Stored(**kinds, activations=0., recomputed=0.)
    for name, size in kinds.items():
        rest = held._replace(**{name: 0.})
        cast = timeline.cast_GB(layouts, held) - timeline.cast_GB(layouts, rest)
        passes = 2 * 64 / (8 * b)
        assert close(cast, passes * 3 * size / 2), name


def test_the_step_of_the_stage_with_most_weights():
    "A stage of the loss alone sets the pace, and has no layer's weights."
    wide = dataclasses.replace(MODEL, vocab=64 * V)
    software = Costs(optimizer_traffic=33., gradient_held=4.)
    a, found = dataclasses.replace(TRAINED, bundled_messages=False, measured=Parameters(
        'Hopper', software=software)), {}
    for layout in ('Et*6|t*6|L', 'Et*6|t*6L'):
        one, pricer, table = case(
            a, wide, pp=layout.count('|') + 1, dp=2, layout=layout, zero_stage=0)
        found[layout] = one
    priced = timeline.priced_estimate(found['Et*6|t*6|L'])
    assert timeline.slowest_stage(priced).layers == 0
    layer = table.weights_mem.sum()
    words, norm = 2e-9 * e * 64 * V, 4e-9 * e
    reduced, ends = (pricer.collective('allreduce', GB, Group(2, 2))
                     for GB in (layer, words + norm))
    seen = reduced + 5 * max(reduced - table.t_bwd.sum(), 0) + ends
    moved = (6 * layer + words + norm) / 2 * 33
    step = pricer.busy(Work(nbytes=moved)).total + pricer.send(2 * words, True)
    for one in found.values():
        assert close(one.stats['dp_comm_s'], seen) and close(one.stats['other_s'], step)


def test_gradients_that_go_to_the_host_whole():
    "With ZeRO-0 each GPU's host has all of them, after each micro-batch if they are reduced then."
    seen = [estimate('llama3.1_8B', Parallel(
        dp=8, zero_stage=0, reduce_each=each, offload='optimizer', dp_overlap=False,
        micro_batch=1), 'H100-80GB', 8 * N).stats['dp_comm_s']
        for each, N in ((True, 2), (True, 6), (False, 2))]
    system, a = as_system('H100-80GB'), Assumptions()
    one = estimate('llama3.1_8B', Parallel(dp=8, offload='optimizer'), system, 8)
    a = one.assumptions
    GB = 1e-9 * NAMED['llama3.1_8B'].parameters * a.costs.gradient_bytes
    copied = GB / (system.host_bandwidth * a.host_link_share)
    assert close(seen[1] - seen[0], 4 * (seen[2] + copied), 1e-3)


# all messages, in bytes

NEVER_NEAR = dataclasses.replace(   # each GPU alone in its domain, at 1 GB/s: a second is a GB
    SYSTEM, nvlink_size=1, ib_bandwidth=1., ib_eff=1., ib_latency=0.,
    matrix_flops_fp16=1e12, vector_flops_fp16=1e12, hbm_bandwidth=1e12)   # nothing else takes time
SMALL = Model(l, e, h, 4, mlp_dim=f, gated_mlp=True, kv_heads=4)
WITH_EXPERTS = dataclasses.replace(SMALL, experts=16, experts_per_token=2, expert_dim=256,
                                   shared_expert_dim=128)


def of_ring(n): return (n - 1) / n   # what a GPU sends of a tensor that n gather or reduce


def sent_in_layers(p, experts):  # bytes of a micro-batch, in a layer
    "Four and six turns of the stream with shared sequences, else four sums; keys; tokens."
    rows = b * l / p['cp']
    stream, turns = 2 * rows * e, 10 if p['sequence_sharded'] else 2 * 4
    keys, queries = 2 * 64 * max(4, p['tp']) / p['tp'], 64 * h / p['tp']   # of a token
    cores = {'ring': 3 * 2 * b * l * keys, 'allgather': 3 * 2 * b * l * keys,
             'ulysses': 2 * 2 * rows * (keys + 2 * queries)}
    sent = turns * stream * of_ring(p['tp']) + cores[p['context']] * of_ring(p['cp'])
    if not experts: return sent
    tokens, all_of = 2 * rows / p['tp'] * e, p['ep'] * p['etp']   # each of them to two experts
    if p['dispatcher'] == 'allgather': return sent + 4 * tokens * (all_of - 1)
    return sent + 4 * 2 * tokens * (of_ring(p['ep']) + p['etp'] - 1)


def sent_by_copies(p, experts, N):  # bytes, all layers
    "Gradients and weights of 16 bits; experts have the copies that do not share them."
    heads = 64 * (h + 2 * max(4, p['tp'])) + 64 * h
    ffn = 3 * (128 if experts else f)
    dense = e * (heads + ffn) / p['tp'] + 2 * e + 16 * e * experts
    routed = 3 * e * 256 * 16 / p['ep'] / p['etp'] * experts
    turns = {0: 2, 1: 2, 2: N + 1, 3: 3 * N}[p['zero_stage']]
    copies = p['cp'] * p['dp']
    among = copies * p['tp'] // (p['ep'] * p['etp']) if experts else 1
    return 4 * 2 * turns * (dense * of_ring(copies) + routed * of_ring(among))


LAYOUTS = [(1, 2, 4, dict(context='ring')), (2, 1, 4, dict(zero_stage=0)),
           (4, 2, 2, dict(context='allgather', zero_stage=2)), (2, 2, 2, dict(context='ulysses')),
           (8, 1, 2, dict(zero_stage=3)), (2, 2, 4, dict(zero_stage=3))]
DENSE = [(*layout, None) for layout in [*LAYOUTS, (4, 2, 2, dict(sequence_sharded=False))]]
FOLDED = dict(ep=4), dict(ep=2, etp=2), dict(ep=2, etp=2, dispatcher='allgather')


@pytest.mark.parametrize('tp, cp, dp, more, folded', [
    *DENSE, *((*layout, folded) for layout in LAYOUTS for folded in FOLDED)])
def test_every_byte_that_a_gpu_sends(tp, cp, dp, more, folded):
    "In two micro-batches, between GPUs that share layers, and between copies; nothing hides."
    usual = dict(context='ring', zero_stage=1, sequence_sharded=True, ep=1, etp=1,
                 dispatcher='alltoall')
    p, N = usual | dict(tp=tp, cp=cp, dp=dp) | more | (folded or {}), 2
    layout = Parallel(micro_batch=b, dp_overlap=False, **p)
    a = dataclasses.replace(TRAINED, launch_time=0.)
    one = estimate(WITH_EXPERTS if folded else SMALL, layout, NEVER_NEAR, N * b * dp, a).stats
    assert close(1e9 * one['tp_comm_s'], 4 * N * sent_in_layers(p, bool(folded)), 1e-6)
    assert close(1e9 * one['dp_comm_s'], sent_by_copies(p, bool(folded), N))


# messages between copies

@pytest.mark.parametrize('stage', [0, 1, 2, 3])
@pytest.mark.parametrize('overlap, low', [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize('bundled', [False, True])
@pytest.mark.parametrize('pp, near', [(1, 1), (2, 1), (2, 2)])
def test_messages_of_copies(stage, overlap, low, bundled, pp, near):
    """Layer by layer behind the layers; a table by itself, which nothing hides; weights in 8 bits.

    Or all in one message, unless weights are shared out: a layer's part of it behind each layer.
    With DualPipe two ranks have the same two halves, each of half of their micro-batches."""
    layout = dict(tp=2, dp=8, cp=2, nvlink_tp=2, nvlink_dp=2, nvlink_cp=1, nvlink_pp=near, pp=pp,
                  schedule='dualpipe' if pp == 2 else '1f1b')
    a = dataclasses.replace(TRAINED, fp8_parameters=low, bundled_messages=bundled)
    if low: layout |= dict(precision='fp8')
    one, pricer, table = case(a, zero_stage=stage, dp_overlap=overlap, **layout)
    group, N = Group(16 * pp, 2 * near), 64 // 8 // b / pp
    pieces = depth if bundled and stage < 3 else 1
    take = lambda kind, GB: pricer.collective(kind, GB * pieces, group) / pieces
    def shown(t, layer, number):
        return t + max(t - layer, 0) * (number - 1) if overlap else t * number
    def of(GB, number, words=0.):
        """Gathered before, reduced after: each time with ZeRO-2 and 3, and again for the way back.

        The embedding stays in 16 bits."""
        gathers, reduces = (N if stage == 3 else 1), (N if stage > 1 else 1)
        there = back = 0.
        F, B = table.t_fwd.sum(), table.t_bwd.sum()
        if stage == 0: return shown(take('allreduce', GB + words), B, number)
        t = take('allgather', GB / (1 + low) + words)
        there = shown(t, F, number * gathers)
        if stage == 3:
            back += shown(t, B, number * N)
            B = max(B - t, 0)
        back += shown(take('reducescatter', GB + words), B, number * reduces)
        return there + back
    ends = 2e-9 * (e * V / 2 + 2 * e)   # one table for both ends, and the last norm
    layer = table.weights_mem.sum()
    apart = of(layer, depth) + of(0., 1, ends) if pieces == 1 else of(layer, depth, ends / depth)
    assert close(one.stats['dp_comm_s'], apart, 1e-7)


def test_messages_of_published_copies():
    "One all-gather and one reduce-scatter of a layer's weights show, and what exceeds a layer."
    one, pricer, table = case(PAPER, tp=2, dp=8, nvlink_tp=2, nvlink_dp=2, nvlink_pp=1)
    GB, group, seen = table.weights_mem.sum(), Group(8, 2), 0.
    for kind, layer in (('allgather', table.t_fwd.sum()), ('reducescatter', table.t_bwd.sum())):
        t = pricer.collective(kind, GB, group)
        seen += t + max(t - layer, 0) * (depth - 1)
    assert close(one.stats['dp_comm_s'], seen)


def test_several_messages_behind_the_same_layers():
    "The first shows whole; others as far as a layer, less what hides behind it already, is short."
    for layer, first, second, N, M in itertools.product((.5, 3., 9.), (1., 4.), (2., 6.), (1, 5),
                                                        (1, 3)):
        hand = first + (N - 1) * max(first - layer, 0)
        left = max(layer - first, 0)
        hand += second + (M - 1) * max(second - left, 0)
        layout = Layouts(zero_stage=3, dp_overlap=True)
        shown = modules.messages_in_turn(layout, layer, (first, N), (0., 7), (second, M))
        assert close(shown, hand)
        layout = Layouts(zero_stage=3, dp_overlap=False)
        whole = N * first + M * second
        assert close(modules.messages_in_turn(layout, layer, (first, N), (second, M)), whole)


@pytest.mark.parametrize('stage, share', [(0, .1), (1, .1), (2, .1), (3, .3)])
def test_messages_hide_as_far_as_software_lets_them(stage, share):
    "Of what could hide a share shows: one of units that are gathered, one of other messages."
    software = dataclasses.replace(COSTLY, dp_exposed=.1, unit_exposed=.3)
    a = dataclasses.replace(TRAINED, measured=Parameters('Hopper', software=software))
    layout = Layouts(zero_stage=stage, dp_overlap=True, assumptions=a)
    for t, layer, N in ((2., 3., 5), (2., 1.5, 5), (2., 0., 5), (2., 3., 1)):
        could_hide = (N - 1) * min(t, layer)
        assert close(modules.exposed_time(layout, t, layer, N), N * t - (1 - share) * could_hide)


@pytest.mark.parametrize('pp, stage, each, pieces, chunks, last', [
    (4, 2, None, 8, 2, 4), (4, 3, None, 8, 1, 8), (4, 3, None, 1, 2, 1), (4, 3, True, 8, 2, 1),
    (4, 1, None, 8, 2, 1), (1, 3, None, 8, 1, 1)])
def test_the_last_chunk_of_sharded_pipelines_reduces_behind_nothing(pp, stage, each, pieces,
                                                                    chunks, last):
    "Where gradients wait for the last backward pass of a chunk; elsewhere only the first unit's."
    software = dataclasses.replace(COSTLY, sums_in_pipelines=True)
    a = dataclasses.replace(TRAINED, measured=Parameters('Hopper', software=software))
    layout = Layouts(pp=pp, zero_stage=stage, reduce_each=each, virtual_stages=chunks,
                     assumptions=a)
    assert modules.units_reduced_last(layout, pieces) == last


def test_units_reduced_last_of_many_layouts():
    "Each as if alone: of those that reduce often only the first unit's show."
    software = dataclasses.replace(COSTLY, sums_in_pipelines=True)
    a = dataclasses.replace(TRAINED, measured=Parameters('Hopper', software=software))
    layout = Layouts(pp=np.array([4, 4, 1]), zero_stage=np.array([1, 3, 3]), assumptions=a)
    assert modules.units_reduced_last(layout, 8).tolist() == [1, 8, 1]


@pytest.mark.parametrize('tp, near', [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_groups_share_the_cards_of_a_domain(tp, near):
    "Copies of several shards in a domain with few cards get less of them each."
    system = dataclasses.replace(SYSTEM, nic_factor=.5)
    network = Parameters('Hopper', network=NetworkShares(groups_share=.4), software=COSTLY)
    a = dataclasses.replace(TRAINED, measured=network, vocabulary=False, bundled_messages=False)
    layout = Parallel(micro_batch=b, tp=tp, dp=8, nvlink_tp=tp, nvlink_dp=near, dp_overlap=False)
    one = estimate(MODEL, layout, system, 64, a)
    pricer, GB = pricer_of(system, one.assumptions), one.layers.weights_mem.sum()
    group = Group(8, near, tp > 1 and near > 1)
    hand = depth * (pricer.collective('allgather', GB, group)
                    + pricer.collective('reducescatter', 2 * GB, group))   # of 4 bytes
    assert close(one.stats['dp_comm_s'], hand)
    alone = pricer.collective('allgather', GB, group._replace(crowded=False))
    assert (alone < pricer.collective('allgather', GB, group)) == group.crowded


def test_slow_and_fast_links_of_a_pipeline():
    "The published mean forgets slow links; mended, each has its own; as trained, the slowest."
    volume, L = 2e-9 * b * l / 2 * e, 64 // b
    for a, place, hand in (
            (PAPER, 2, lambda near, far: 2 * near / 3), (PAPER, 4, lambda near, far: near),
            (PAPER, 1, lambda near, far: far),
            (dataclasses.replace(PAPER, slow_pipeline_links=True), 2,
             lambda near, far: (2 * near + far) / 3),
            (dataclasses.replace(PAPER, slowest_link=True), 2, lambda near, far: far),
            (dataclasses.replace(PAPER, slowest_link=True), 4, lambda near, far: near),
            (dataclasses.replace(PAPER, pp_overlap=True), 2, lambda near, far: 0)):
        one, pricer, _ = case(a, tp=2, pp=4, nvlink_tp=2, nvlink_pp=place)
        each = hand(pricer.send(volume, True), pricer.send(volume, False))
        assert close(one.stats['pp_comm_s'], 2 * L * each), (a, place)


def test_without_shared_sequences_a_stage_gathers():
    one, pricer, _ = case(tp=2, pp=2, nvlink_tp=2, nvlink_pp=1, sequence_sharded=False)
    link = pricer.send(2e-9 * b * l / 2 * e, False)
    gathered = pricer.collective('allgather', 2e-9 * b * l * e, Group(2, 2))
    assert close(one.stats['pp_comm_s'], 64 // b * 2 * (link + gathered))


# memory

def memory_by_hand(table, tp, cp, rank, pp, N, last=None, shards=1, zero=1,
                   keys=False, gated=False, software=COSTLY):
    "(weights, gradients, states, activations) of one rank of a 1F1B pipeline."
    T, last = b * l / cp, (rank == pp - 1 if last is None else last)
    first = rank == 0
    L, w = depth / pp, table.weights_mem.sum()
    table_GB, norm = 2e-9 * V / tp * e, 2e-9 * (2 - gated) * e
    both = first and last
    weights = L * w + table_GB * (first + last - both) + norm * last
    kept = min(N, pp - rank) * L * table.activation_buffer.sum()
    gathered = 4e-9 * T * e * (tp > 1)                 # an input and its gradient, whole
    others = 4e-9 * T * max(h / tp, 1) * (e / h) * (cp - 1) * keys
    matrices = (V / tp * e) * (first or last) + (1 + gated) * e * f / tp * last
    apart = 2e-9 * software.gradients_apart * matrices
    logits = 1e-9 * software.logit_held * T * V / tp * last
    inputs = (2 + 2) * 1e-9 * T / tp * e * last        # of the last norm, and of the last product
    held = software.gradient_held / 2
    return (weights, weights * held / (shards if zero > 1 else 1), weights * 6 / shards,
            kept + gathered + others + apart + logits + inputs + software.framework_GB)


PARTS = ('weights_GB', 'gradients_GB', 'optimizer_GB', 'activations_GB')


@pytest.mark.parametrize('gated', [False, True])
@pytest.mark.parametrize('pp, N', [(1, 32), (2, 32), (4, 32), (4, 2)])
def test_memory_of_a_pipeline(pp, N, gated):
    "The fullest rank: the first keeps most micro-batches, the last has the logits."
    model = dataclasses.replace(MODEL, gated_mlp=gated)
    one, _, table = case(MEASURED, model, batch=N * b, tp=2, pp=pp)
    ranks = [memory_by_hand(table, 2, 1, rank, pp, N, gated=gated) for rank in range(pp)]
    fullest = max(ranks, key=sum)
    for part, GB in zip(PARTS, fullest): assert close(one.stats[part], GB), part
    assert close(one.stats['memory_GB'], sum(fullest))


@pytest.mark.parametrize('pp', [1, 2])
@pytest.mark.parametrize('words', [16, 4096])
def test_a_layer_runs_again_when_the_loss_is_done(words, pp):
    "Logits are gone by then: the last rank holds them, or all of a layer that runs again."
    model = dataclasses.replace(MODEL, vocab=words)
    rank = []
    for recompute in ('none', 'full'):
        one, _, table = case(MEASURED, model, tp=2, pp=pp, recompute=recompute)
        rank.append(memory_on_ranks(priced_estimate(one).work)[1].activations[-1])
    layer = table.activation_buffer.sum() - 2e-9 * b * l / 2 * e   # all but its input
    logits = 1e-9 * COSTLY.logit_held * b * l * words / 2 + 4e-9 * b * l / 2 * e   # and inputs
    assert (logits > layer) == (words > 16)
    assert close(rank[1] - rank[0], max(layer - logits, 0), 1e-9)


def test_losses_that_wait_keep_their_softmax():
    "Of multi-token prediction and of GPipe all are known before the first gradient: 4 bytes each."
    def last_rank(model=MODEL, N=8, pp=2, **more):
        one, _, _ = case(MEASURED, model, batch=N * b, tp=2, pp=pp, **more)
        work = priced_estimate(one).work
        return memory_on_ranks(work)[1].activations[-1]   # beside what layers keep
    logits, own = 1e-9 * b * l * V / 2, 2e-9 * b * l / 2 * e   # a number of the stream each
    joined = 2 + 2 + 1   # of both streams, and their norms'; of another last norm
    ahead = dataclasses.replace(MODEL, mtp_layers=2)
    assert close(last_rank(ahead) - last_rank(), 2 * (4 * logits + (joined + 1) * own), 1e-9)
    assert close(last_rank(schedule='gpipe') - last_rank(), 7 * (4 * logits + 2 * own), 1e-9)
    both = last_rank(ahead, schedule='gpipe') - last_rank()
    products = 8 * (2 + 2 * (joined + 1)) - 2   # numbers that wait, of a token
    assert close(both, 4 * (8 * 3 - 1) * logits + products * own, 1e-9)   # 3 losses of each
    alone = [case(MEASURED, batch=8 * b, tp=2, schedule=name)[0].stats['activations_GB']
             for name in ('1f1b', 'gpipe')]
    assert close(*alone)   # one rank has nothing to wait for


def test_keys_of_all_gpus_are_held():
    "Gathered: those of every other GPU of cp, both keys and values; a ring holds none."
    for tp, cp in ((2, 2), (1, 4), (8, 2)):
        held = [case(MEASURED, tp=tp, cp=cp, context=context)[0].stats['activations_GB']
                for context in ('allgather', 'ring')]
        others = l * (cp - 1) / cp          # tokens of a sample on other GPUs
        GB = 2e-9 * 2 * b * others * h / tp * e / h
        assert close(held[0] - held[1], GB, 1e-6)
        one, _, table = case(MEASURED, tp=tp, cp=cp, context='allgather')
        hand = memory_by_hand(table, tp, cp, 0, 1, 32, keys=True, shards=cp)
        for part, x in zip(PARTS, hand): assert close(one.stats[part], x), part


@pytest.mark.parametrize('groups', [
    {}, dict(tp=2), dict(tp=2, pp=2), dict(dp=2), dict(cp=2, dp=4), dict(dp=4, ep=4),
    dict(tp=2, dp=2, ep=4), dict(tp=2, cp=2, pp=2, dp=2, ep=8)])
def test_the_bound_counts_each_group_that_talks(groups):
    "NCCL's buffers of tp, cp, pp, dp, and of the GPUs that share experts."
    model = MODEL if 'ep' not in groups else dataclasses.replace(
        MODEL, experts=8, experts_per_token=2, expert_dim=256)
    s = case(MEASURED, model, **groups)[0].stats
    talking = len([n for n in groups.values() if n > 1])
    hand = .05 * s['activations_GB'] + .4 * talking + .6
    assert close(s['memory_bound_GB'] - s['memory_GB'], hand, 1e-7)


@pytest.mark.parametrize('dp', [2, 8])
def test_what_copies_share_out(dp):
    "ZeRO 1: states; 2: and gradients, of which a layer is whole; 3: and weights but for two units."
    for stage in (0, 1, 2, 3):
        one, _, table = case(MEASURED, batch=256, dp=dp, zero_stage=stage)
        weights, gradients, states, kept = memory_by_hand(table, 1, 1, 0, 1, 128 // dp)
        layer, words = table.weights_mem.sum(), 2e-9 * V * e
        largest, ends = max(layer, words), weights - depth * layer
        share = lambda GB, least, stage=stage: GB / dp if stage >= least else GB
        hand = [share(weights, 3), share(gradients, 2), share(states, 1), kept]
        if stage > 1: hand[1] += 4 / 2 * largest      # fp32, on their way
        if stage > 2: hand[0] += max(2 * layer, min(words, ends) + layer)
        for part, GB in zip(PARTS, hand): assert close(one.stats[part], GB, 1e-6), (stage, part)


# gradients of weights, which nothing waits for

@pytest.mark.parametrize('a', [PAPER, dataclasses.replace(MEASURED, measured=Parameters('Hopper'))])
def test_what_can_wait(a):
    "In zero-bubble schedules the products that make gradients of weights are passes of their own."
    one, pricer, table = case(dataclasses.replace(a, vocabulary=False), batch=6 * b, tp=2, pp=3,
                              schedule='zb-h1', nvlink_tp=2, nvlink_pp=1)
    T, adds, late = b * l, a.fused_kernels, 0.
    for inputs, outputs in ((e, 3 * e / 2), (e / 2, e), (e, f / 2), (f / 2, e)):
        first = Product(T, inputs, outputs)
        both = first, Product(outputs, inputs, T, adds=adds)
        late += pricer.busy(Work(both)).total - pricer.busy(Work((first,))).total
    sent, L, t = 2 * pricer.send(2e-9 * b * l / 2 * e, False), depth / 3, one.timeline
    expected = {'F': L * table.t_fwd.sum() + sent / 2,
                'B': L * (table.t_bwd.sum() - late) + sent / 2, 'W': L * late}
    for kind, seconds in expected.items():
        rows = t[t.kind == kind]
        assert len(rows) == 3 * 6
        assert np.allclose(rows.end_s - rows.start_s, seconds, rtol=1e-9), kind


def test_messages_hide_behind_no_product_that_waits():
    "Behind the gradient of the inputs alone, where that of the weights comes later."
    a = dataclasses.replace(MEASURED, measured=Parameters('Hopper'), vocabulary=False)
    layout = dict(batch=6 * b, tp=2, pp=3, nvlink_tp=2, nvlink_pp=1, tp_overlap=True,
                  sequence_sharded=True)
    one, pricer, table = case(a, schedule='zb-h1', **layout)
    rows, more = table.set_index('layer'), 0.
    for name, inputs, outputs in (('qkv', e, 3 * e / 2), ('vproj', e / 2, e), ('fc1', e, f / 2),
                                  ('fc2', f / 2, e)):
        own, first = rows.loc[name], Product(b * l, inputs, outputs)
        both = first, Product(outputs, inputs, b * l, adds=True)
        late = pricer.busy(Work(both)).total - pricer.busy(Work((first,))).total
        busy = own.t_bwd_comp + own.t_bwd_mem
        kinds = ['allgather', 'reducescatter'] if name in ('qkv', 'fc1') else ['allgather']
        whole = sum(pricer.collective(kind, 2e-9 * b * l * e, Group(2, 2)) for kind in kinds)
        shown = [max(.3 * whole, whole - seconds) for seconds in (busy, busy - late)]
        assert close(own.t_bwd_comm, shown[0])
        more += shown[1] - shown[0]
    usual, *_ = case(a, schedule='1f1b', **layout)
    moved = one.stats['tp_comm_s'] - usual.stats['tp_comm_s']
    assert more > 0 and close(moved, 6 * depth / 3 * more)
    assert close(one.stats['compute_s'], usual.stats['compute_s'])


@pytest.mark.parametrize('again, more', [('none', 0), ('mlp', 3), ('layernorm', 2)])
def test_what_can_wait_is_launched_by_itself(again, more):
    """Each of two steps waits for its share of the launches; both together wait longer than one.

    Where no step is apart, the whole pass waits at once."""
    a = dataclasses.replace(MEASURED, vocabulary=False)
    layout = dict(batch=6 * b, tp=2, pp=3, recompute=again, nvlink_tp=2, nvlink_pp=1)
    one, pricer, table = case(a, schedule='zb-h1', **layout)
    rows, late = table.set_index('layer'), 0.
    for inputs, outputs in ((e, 3 * e / 2), (e / 2, e), (e, f / 2), (f / 2, e)):
        first = Product(b * l, inputs, outputs)
        both = first, Product(outputs, inputs, b * l, adds=True)
        late += pricer.busy(Work(both)).total - pricer.busy(Work((first,))).total
    host, passes, share = (4e-4 + 3e-4) * 1.1, 1 + more / len(rows), 4 / (len(rows) + 4)
    longer = lambda gpu, host: (gpu**2.5 + host**2.5)**(1 / 2.5)
    whole = longer(table.t_bwd.sum(), host * passes)
    first = longer(table.t_bwd.sum() - late, host * passes * (1 - share))
    last = longer(late, host * passes * share)
    assert whole < first + last
    sent, L, t = one.stats['pp_comm_s'] / 6 + 1e-3, depth / 3, one.timeline
    expected = {'F': L * longer(table.t_fwd.sum(), host) + sent / 2, 'B': L * first + sent / 2,
                'W': L * last}
    for kind, seconds in expected.items():
        found = t[t.kind == kind]
        assert np.allclose(found.end_s - found.start_s, seconds, rtol=1e-9), kind
    usual, *_ = case(a, schedule='1f1b', **layout)
    more = 6 * L * (first + last - whole)
    assert close(one.stats['compute_s'], usual.stats['compute_s'])
    slack = 1 + one.assumptions.measured.software.straggler * math.sqrt(2 * math.log(6))
    assert close(one.stats['other_s'] - usual.stats['other_s'], more * slack, rel=1e-6)


def test_messages_that_show_leave_the_host_less_to_wait_for():
    "Where gradients of weights come later, what no longer hides behind them fills the first step."
    a = dataclasses.replace(MEASURED, vocabulary=False)
    one, pricer, table = case(a, batch=6 * b, tp=2, pp=3, nvlink_tp=2, nvlink_pp=1,
                              tp_overlap=True, sequence_sharded=True, schedule='zb-h1')
    rows, late, shown = table.set_index('layer'), 0., 0.
    for name, inputs, outputs in (('qkv', e, 3 * e / 2), ('vproj', e / 2, e), ('fc1', e, f / 2),
                                  ('fc2', f / 2, e)):
        own, first = rows.loc[name], Product(b * l, inputs, outputs)
        both = first, Product(outputs, inputs, b * l, adds=True)
        apart = pricer.busy(Work(both)).total - pricer.busy(Work((first,))).total
        kinds = ['allgather', 'reducescatter'] if name in ('qkv', 'fc1') else ['allgather']
        whole = sum(pricer.collective(kind, 2e-9 * b * l * e, Group(2, 2)) for kind in kinds)
        before = own.t_bwd_comp + own.t_bwd_mem - apart
        late, shown = late + apart, shown + max(.3 * whole, whole - before) - own.t_bwd_comm
    host = (4e-4 + 3e-4) * 1.1 * (1 - 4 / (len(rows) + 4))
    busy = table.t_bwd.sum() - late + shown
    steps = one.timeline[one.timeline.kind == 'B']
    expected = depth / 3 * (busy**2.5 + host**2.5)**(1 / 2.5) + one.stats['pp_comm_s'] / 12 + 5e-4
    assert shown > 1e-6
    assert np.allclose(steps.end_s - steps.start_s, expected, rtol=1e-9)


# both ends on one rank, and ends that some have

@pytest.mark.parametrize('schedule, held', [('zb-v', 1), ('dualpipe', 2), ('dualpipe-v', 1)])
def test_both_ends_on_a_rank(schedule, held):
    "A rank that holds them has each whole; two ranks that both do have half of the work each."
    one, pricer, table = case(tp=2, pp=2, schedule=schedule, nvlink_tp=2, nvlink_pp=1)
    hand = depth / 2 * summed(table, 'comp') + sum(ends_by_hand(pricer, 2, 1, 2)) / held
    assert close(one.stats['compute_s'], 64 // b * hand)


def test_models_with_words_and_without():
    "As columns each has its own ends; where a vocabulary does not count there are none."
    pricer = pricer_of(SYSTEM, TRAINED)
    block = ((gpt_block(e, h, f), depth),)
    job = lambda vocab: CountedJob(seq_len=l, embed_dim=e, blocks=block, depth=depth, vocab=vocab,
                            micro_batch=b, assumptions=TRAINED)
    ends_of = lambda vocab: modules.prices_of(modules.count(job(vocab)), pricer).ends
    together = ends_of(np.array([0, V, 2 * V]))
    for i, vocab in enumerate((0, V, 2 * V)):
        for both, own in zip(together, ends_of(vocab)):
            assert close(both[i], own) and bool(own) == bool(vocab)


# who shares what

@pytest.mark.parametrize('dp, near', [(16, 4), (16, 1), (8, 8), (64, 8)])
@pytest.mark.parametrize('replicas', [1, 2, 4, 8])
def test_who_shares_weights_out(dp, near, replicas):
    "Neighbours share them out; GPUs of the same number in their groups hold the same share."
    domain = [rank // near for rank in range(dp)]
    size = dp // replicas
    own, same = range(size), range(0, dp, size)
    inside = lambda ranks: sum(domain[rank] == 0 for rank in ranks)
    layout = Layouts(zero_stage=3, dp_replicate=replicas)
    def groups(layout):
        copies = Group(dp, near)
        return modules.sharing_group(layout, copies), modules.replica_group(layout, copies)
    assert groups(layout) == (Group(size, inside(own)), Group(replicas, inside(same)))
    assert groups(layout._replace(zero_stage=0)) == (Group(dp, near), Group())


@pytest.mark.parametrize('with_experts', [False, True])
def test_who_has_copies(with_experts):
    "GPUs by name: the stage and the part of each weight, and of each expert, that it holds."
    for tp, cp, dp, ep, etp, both in itertools.product((1, 2), (1, 2), (1, 2), (1, 2, 4), (1, 2),
                                                       (False, True)):
        gpus = [*itertools.product(range(tp), range(cp), range(dp))]
        if len(gpus) % (ep * etp): continue
        weights = [rank[0] for rank in gpus] * (1 + both)
        experts = [i % (ep * etp) for i in range(len(gpus))]
        several = lambda held: len(held) > len(set(held))
        row = dict(tp=tp, cp=cp, dp=dp, ep=ep, etp=etp, strategy='2d-seqp',
                   schedule='dualpipe' if both else '1f1b')
        hand = several(weights) or (with_experts and several(experts))
        assert bool(iteration.has_copies(row, with_experts)) == hand


@pytest.mark.parametrize('layout', ['Ett|ttt|tttt|tttL', 'Ettt|ttt|ttt|tttL', 'Etttt|tttt|tt|ttL',
                                    'Et|ttttt|t|tttttL', 'Ettt|tttt|tttt|tL'])
@pytest.mark.parametrize('vocabulary', [False, True])
def test_no_stage_is_overlooked(layout, vocabulary):
    "The fullest and the slowest of all stages, one by one."
    a = dataclasses.replace(MEASURED, vocabulary=vocabulary)
    one, _, _ = case(a, tp=2, pp=4, layout=layout, nvlink_tp=2, nvlink_pp=1)
    priced = timeline.priced_estimate(one)
    work, (cost,), ends = priced.work, priced.layers, priced.ends
    stages = timeline.stages_in_order(work.pattern, 4, 1, '1f1b', layout)
    assert [sum(stage.layers) for stage in stages] == [x.count('t') for x in layout.split('|')]
    fullest = max((timeline.memory_at(work, stage) for stage in stages), key=sum)
    assert close(sum(timeline.memory_of(work)), sum(fullest))
    layers, each = [sum(stage.layers) for stage in stages], cost.forward + cost.backward
    busy = [own * each + stage.first * ends[0] + stage.last * ends[1]
            for own, stage in zip(layers, stages)]
    slowest = timeline.slowest_stage(priced)
    assert close(slowest.busy, max(busy)) and slowest.layers == layers[int(np.argmax(busy))]
    layers_of = lambda pace: pace.layers
    stages = timeline.costs_of_unlike_stages(priced, slowest)
    assert timeline.longest_of(stages, layers_of) == max(layers)


@pytest.mark.parametrize('layout, ranks', [
    ('Ett|tt|tt|ttL', [0, 3]),             # others have no end, and no more layers than the first
    ('Ett|ttt|tt|tttL', [0, 1, 3]), ('Ett|ttt|ttt|ttL', [0, 1, 3]),
    ('Et|tt|ttt|tL', [0, 1, 2, 3]),        # the third has more, of fewer micro-batches
    ('Etttt|tt|ttt|L', [0, 3]), ('Ettt|t|tttt|t|tttt|tL', [0, 2, 5])])
def test_stages_that_hold_no_more_than_an_earlier_one_are_not_asked_for(layout, ranks):
    one, _, _ = case(model=dataclasses.replace(MODEL, depth=layout.count('t')))
    pattern = timeline.priced_estimate(one).work.pattern
    pipeline = pattern, layout.count('|') + 1, 1, '1f1b', layout
    assert [stage.rank for stage in timeline.distinct_stages(*pipeline)] == ranks


@pytest.mark.parametrize('layout', ['Ettt|t|tt|tL', 'Et|tttt|t|tL', 'E|t|t|tL', 'Ettt||t|L'])
def test_the_longest_and_the_shortest_chunk(layout):
    "Over the mean of a rank's own: ranks take turns, chunk by chunk."
    chunks = [part.count('t') for part in layout.split('|')]
    one, _, _ = case(model=dataclasses.replace(MODEL, depth=sum(chunks)))
    pattern = timeline.priced_estimate(one).work.pattern
    for p in (1, 2, 4):
        v = 4 // p
        for stage in timeline.stages_in_order(pattern, p, v, '1f1b', layout):
            own = chunks[stage.rank::p]
            mean = sum(own) / v
            if not mean: continue
            assert close(stage.widest, max(own) / mean)
            assert close(stage.narrowest, min(own) / mean)


def test_the_slowest_of_many_gpus():
    "The largest of n normal values, for all GPUs of the job."
    for sizes in ((1, 1, 1, 2), (2, 3, 5, 7), (8, 1, 4, 16)):
        p = Layouts(**dict(zip(('tp', 'cp', 'pp', 'dp'), sizes)), assumptions=MEASURED)
        hand = .02 * math.sqrt(2 * math.log(math.prod(sizes)))
        assert close(timeline.straggling(p), hand)


# stages of unequal layers

def kept_and_played(name, layers, first, last, F, B, more, N, kept):
    "(s, GB of each rank) of a 1F1B pipeline whose ranks hold so many layers, step by step."
    p = len(layers)
    end = [first, *[0] * (p - 2), last]
    cost = {'F': [n * F + x / 3 + more / 2 for n, x in zip(layers, end)],
            'B': [n * B + 2 * x / 3 + more / 2 for n, x in zip(layers, end)]}
    total, most = walk(name, p, 1, N, cost)
    return total, [n * x * kept for n, x in zip(layers, most)]


@pytest.mark.parametrize('N', [3, 8, 40])
@pytest.mark.parametrize('layers', [(7, 5), (2, 5, 4, 1), (3, 3, 3, 3)])
def test_unequal_stages_by_hand(layers, N):
    "The schedule is played, and the fullest rank is found."
    p, layout = len(layers), 'E' + '|'.join(f't*{n}' for n in layers) + 'L'
    one, pricer, table = case(batch=N * b, tp=2, pp=p, layout=layout, nvlink_tp=2, nvlink_cp=1,
                              nvlink_pp=p, nvlink_dp=1)
    first, last = ends_by_hand(pricer, 2, 1, 2)
    sent = 2 * pricer.send(2e-9 * b * l / 2 * e, True)
    total, kept = kept_and_played('1f1b', layers, first, last, table.t_fwd.sum(),
                                  table.t_bwd.sum(), sent, N, table.activation_buffer.sum())
    parts = ('compute_s', 'exposed_memory_s', 'tp_comm_s', 'pp_comm_s', 'bubble_s')
    assert close(sum(one.stats[part] for part in parts), total)
    w, words, found = table.weights_mem.sum(), 2e-9 * V / 2 * e, []
    for rank, GB in enumerate(kept):
        at_end = rank == p - 1
        weights = layers[rank] * w + words * (rank in (0, p - 1)) + 4e-9 * e * at_end
        logits = 1e-9 * 10 * b * l * V / 2 * at_end
        found.append((weights, weights, 6 * weights, GB + 4e-9 * b * l * e + logits))
    for part, x in zip(PARTS, max(found, key=sum)): assert close(one.stats[part], x), part


def test_a_longer_chunk_sets_the_pace():
    "Twelve layers on five ranks: as the rule deals them, and as a layout says them."
    ask = lambda **more: case(tp=2, pp=5, nvlink_tp=2, **more)
    (dealt, _, table), (told, _, _) = ask(), ask(layout='Ett|t*3|t*3|t*3|tL')
    assert dealt.stats == told.stats
    assert close(dealt.stats['compute_s'], 64 // b * 3 * summed(table, 'comp'))


@pytest.mark.parametrize('schedule, held', [('1f1b', 2), ('zb-v', 2), ('dualpipe', 4)])
def test_layers_of_two_kinds_on_a_rank(schedule, held):
    "One dense layer, then seven with experts: the fullest rank has experts in all of its layers."
    model = dataclasses.replace(MODEL, depth=8, experts=8, experts_per_token=2,
                                expert_dim=1024, dense_layers_first=1)
    a = dataclasses.replace(TRAINED, vocabulary=False)
    one, _, table = case(a, model, pp=4, dp=2, ep=2, schedule=schedule)
    assert 'router' in set(table.layer)
    assert close(one.stats['weights_GB'], held * table.weights_mem.sum())   # both ways: twice


# placements

def test_the_fastest_placement_is_taken():
    "Of all that fit into a domain, one by one; a place that is given stays."
    groups, system = dict(tp=4, cp=2, pp=2, dp=4), dataclasses.replace(SYSTEM, nvlink_size=8)
    places = [f'nvlink_{name}' for name in groups]
    of = lambda n: [d for d in range(1, n + 1) if n % d == 0]
    anywhere = dataclasses.replace(TRAINED, placed_by_rank=False)
    ask = lambda **more: estimate(MODEL, Parallel(**groups, **more), system, 64, anywhere)
    times = {}
    for inside in itertools.product(*map(of, groups.values())):
        if math.prod(inside) > 8: continue
        times[inside] = ask(**dict(zip(places, inside))).stats['iteration_s']
    best = ask()
    assert best.stats['iteration_s'] == min(times.values())
    assert times[tuple(getattr(best.parallel, place) for place in places)] == min(times.values())
    held = ask(nvlink_tp=2)
    assert held.parallel.nvlink_tp == 2
    assert held.stats['iteration_s'] == min(t for inside, t in times.items() if inside[0] == 2)
    assert len(times) > 20


@pytest.mark.parametrize('n, tp', [(12, 4), (12, 6), (20, 4), (20, 2), (28, 4), (36, 4), (24, 8)])
def test_a_last_domain_that_is_not_full(n, tp):
    "Neighbours stay together on nodes of 8: three times 4 of 12 GPUs are as much alike as 6 twice."
    layout, system = dict(tp=tp, dp=n // tp), dataclasses.replace(SYSTEM, nvlink_size=8)
    model = dataclasses.replace(MODEL, seq_len=1536, heads=24, embed_dim=768)
    ask = lambda a, **more: estimate(model, Parallel(**layout, **more), system, n, a)
    assert ask('calibrated').parallel.nvlink_tp == tp
    found = search(model, n, system, n, '1d', assumptions='corrected', micro_batch=1, **layout)
    one = ask('corrected')
    assert close(found.iteration_s.min(), one.stats['iteration_s'])
    assert close(ask('corrected', nvlink_tp=tp).stats['iteration_s'], one.stats['iteration_s'])


def test_the_first_groups_choose_how_much_of_a_domain_is_used():
    "Of several sizes the one with most of tp together; where those have as much, most of cp."
    rooms, sizes = (12, 8, 6), [*itertools.product((1, 2, 4, 6, 8), repeat=4)]
    def inside(room, of_groups):
        found = []
        for size in of_groups:
            found.append(math.gcd(size, room))
            room //= found[-1]
        return tuple(found)
    by_hand = [max(inside(room, of_groups) for room in rooms) for of_groups in sizes]
    order = ('tp', 'cp', 'dp', 'pp')
    places = timeline.placed_by_rank(dict(zip(order, np.transpose(sizes))), rooms)
    assert [*zip(*(places[f'nvlink_{group}'].tolist() for group in order))] == by_hand
    assert inside(12, (4, 8, 1, 1)) < inside(8, (4, 8, 1, 1)) == (4, 2, 1, 1)   # not the largest


@pytest.mark.parametrize('size', [4, 8, 64])
@pytest.mark.parametrize('preset', ['paper', 'corrected'])
def test_an_estimate_places_as_a_search_does(preset, size):
    """Whole groups where all GPUs fit into a domain, else as fills it: the published rule.

    Under slip E3 a domain that is not filled would have more links that cost nothing."""
    layout, system = dict(tp=2, pp=6, dp=2), dataclasses.replace(SYSTEM, nvlink_size=size)
    one = estimate(MODEL, Parallel(**layout), system, 8, preset)
    found = search(MODEL, 24, system, 8, '1d', assumptions=preset, micro_batch=1, **layout)
    assert close(found.iteration_s.min(), one.stats['iteration_s'])
    inside = [getattr(one.parallel, f'nvlink_{name}') for name in layout]
    assert math.prod(inside) == {4: 4, 8: 8, 64: 24}[size]


def test_a_domain_need_not_be_filled():
    "Of 12 GPUs in a domain tp 8 uses 8: of 4 and 8 others it would wait for the network."
    layout, system = dict(tp=8, pp=2, dp=3), dataclasses.replace(SYSTEM, nvlink_size=12)
    one = estimate(MODEL, Parallel(**layout), system, 24, 'corrected')
    assert one.parallel.nvlink_tp == 8
    filled = estimate(MODEL, Parallel(**layout, nvlink_tp=4), system, 24, 'corrected')
    assert one.stats['iteration_s'] < filled.stats['iteration_s']


# what must divide what

RULES = [   # a layout that breaks one rule, what is said; and one that does not
    (dict(tp=3), 'heads=8 must be divisible by tp=3', dict(tp=4)),
    (dict(pp=5), 'depth=12 must be divisible by pp=5', dict(pp=6)),
    (dict(dp=3), 'global_batch=64 must be divisible by dp=3', dict(dp=4)),
    (dict(dp=8, micro_batch=3), 'global_batch/dp=8 must be divisible by micro_batch=3',
     dict(dp=8, micro_batch=4)),
    (dict(dp=8, dp_replicate=3), 'dp=8 must be divisible by dp_replicate=3',
     dict(dp=8, dp_replicate=2)),
    (dict(cp=3), 'seq_len=1024 must be divisible by cp=3', dict(cp=4)),
    (dict(strategy='2d', tp=2, cp=2, panels=3), 'embed_dim=512 must be divisible by panels=3',
     dict(strategy='2d', tp=2, cp=2, panels=4)),
    (dict(ep=2), 'ep=2 and etp=1 share out experts', {}),
    (dict(pp=2, virtual_stages=4), 'schedule=1f1b needs', dict(pp=2, virtual_stages=3)),
    (dict(tp=4, nvlink_tp=3), 'tp=4 must be divisible by the 3', dict(tp=4, nvlink_tp=2)),
    (dict(tp=4, dp=4, nvlink_tp=4, nvlink_dp=4), '16 GPUs placed in one NVLink domain',
     dict(tp=4, dp=4, nvlink_tp=4, nvlink_dp=2)),
    (dict(pp=2, layout='Et*6|t*6L', virtual_stages=2), 'not virtual_stages=2',
     dict(pp=2, layout='Et*6|t*6L'))]


@pytest.mark.parametrize('wrong, says, right', RULES, ids=[says[:24] for _, says, _ in RULES])
def test_each_rule_by_itself(wrong, says, right):
    a = dataclasses.replace(TRAINED, uneven_stages=False)
    ask = lambda layout: estimate(MODEL, Parallel(**layout), SYSTEM, 64, a)
    with pytest.raises(ValueError) as error: ask(wrong)
    assert says in str(error.value)
    assert ask(right).stats['iteration_s'] > 0


def test_rules_of_experts():
    "Of sixteen GPUs four share the experts; four copies of each make two replicas, or four."
    model = dataclasses.replace(MODEL, experts=8, experts_per_token=2, expert_dim=256)
    ask = lambda **layout: estimate(model, Parallel(**layout), SYSTEM, 64, TRAINED)
    for layout, says in (
            (dict(tp=2, dp=8, ep=4, dp_replicate=8),
             'copies of an expert=4 must be divisible by dp_replicate=8'),
            (dict(dp=8, ep=3), 'experts=8 must be divisible by ep=3'),
            (dict(dp=8, ep=2, etp=3), 'expert_dim=256 must be divisible by etp=3'),
            (dict(tp=2, ep=4), 'tp*cp*dp=2 must be divisible by ep*etp=4'),
            (dict(dp=4, ep=4, etp=2), 'tp*cp*dp=4 must be divisible by ep*etp=8'),
            (dict(tp=2, sequence_sharded=False), 'tp=2 with experts needs sequence_sharded=True')):
        with pytest.raises(ValueError) as error: ask(**layout)
        assert says in str(error.value)
    for layout in (dict(tp=2, dp=8, ep=4, dp_replicate=4), dict(dp=8, ep=8), dict(tp=2, ep=2),
                   dict(tp=2, cp=2, dp=2, ep=4, etp=2)):
        assert ask(**layout).stats['iteration_s'] > 0


@pytest.mark.parametrize('tp', [1, 2, 4])
def test_experts_beside_tp_take_shards_of_sequences_whatever_is_usual(tp):
    whole = dataclasses.replace(TRAINED, sequence_sharded=False)
    experts = dataclasses.replace(MODEL, experts=8, experts_per_token=2, expert_dim=256)
    sharded = lambda model: estimate(model, Parallel(tp=tp), SYSTEM, 64, whole).parallel
    assert sharded(experts).sequence_sharded == (tp > 1)
    assert not sharded(MODEL).sequence_sharded


@pytest.mark.parametrize('by', ['bound', 'point'])
def test_the_fullest_rank_is_the_one_that_needs_most(by):
    "What two ranks hold differs by what they need: groups and contexts cost both as much."
    layout = Layouts(tp=2, pp=4, assumptions=dataclasses.replace(MEASURED, fits_by=by))
    few, many = timeline.Memory(9., 3., 2., 1.), timeline.Memory(5., 3., 2., 4.9)
    full, need = ([of(layout, held) for held in (few, many)]
                  for of in (timeline.fullness, timeline.must_fit_GB))
    assert close(full[1] - full[0], need[1] - need[0])
    assert (full[1] > full[0]) == (by == 'bound')


def test_only_a_grid_has_panels():
    panels = lambda **layout: case(PAPER, **layout)[0].parallel.panels
    assert panels(tp=2) == panels(tp=2, cp=2, strategy='2d-seqp') == 1
    assert panels(tp=2, cp=2, strategy='2d') == SYSTEM.summa_nb > 1


# in words

def test_other_software_is_told_of_where_none_is_named():
    "As two estimates of it; of prices that are not the calibrated ones nothing is said."
    layout, model = Parallel(dp=8), 'llama3.1_8B'
    ask = lambda *a, **more: estimate(model, layout, SYSTEM, 64, *a, **more)
    said = iteration.tuned_and_plain(ask('calibrated'))
    plain = ask('calibrated', software='plain')
    tuned, took = (ask('calibrated', software=name).stats['iteration_s']
                   for name in ('tuned', 'plain'))
    assert f'{took:.4g} s in plain' in said and ('faster here' in said) == (took < tuned)
    assert not iteration.tuned_and_plain(plain)
    assert not iteration.tuned_and_plain(ask('corrected'))


@pytest.mark.parametrize('layout, shown', [
    (dict(dp=4), False), (dict(dp=4, ep=4), True), (dict(dp=4, ep=2, etp=2), True),
    (dict(tp=2, dp=2, etp=4), True), (dict(dp=4, ep=4, ep_overlap=True), False)])
def test_messages_of_experts_that_tuned_software_shows_are_told_of(layout, shown):
    one = estimate('mixtral_8x7B', Parallel(**layout), SYSTEM, 64)
    said = iteration.tuned_and_plain(one)
    assert ('but those of experts' in said) == shown
    if not shown: return
    hidden = Parallel(**layout, ep_overlap=True)
    took = estimate('mixtral_8x7B', hidden, SYSTEM, 64, software='tuned').stats['iteration_s']
    assert f'experts: {iteration.short(took)} s with ep_overlap), ' in said


def numbers_in(text, pattern): return [float(x.replace(',', '')) for x in re.search(
    pattern, text).groups()]


@pytest.mark.parametrize('layout', [dict(tp=2, pp=2, dp=2), dict(tp=4, cp=2), dict(dp=16)])
def test_a_summary_says_the_figures(layout):
    one = case(dataclasses.replace(TRAINED, fits_by='point'), batch=64, **layout)[0]
    s, words, N = one.stats, one.summary, one.parallel.n_gpus
    near = lambda pattern, *expected: [
        pytest.approx(x, rel=1e-3) for x in expected] == numbers_in(words, pattern)
    assert near(r'on (\d+) H100', N) and f'in micro-batches of {b};' in words
    assert near(r': ([\d.,]+) samples/s, ([\d.,]+) s for an iteration of (\d+) samples',
                64 / s['iteration_s'], s['iteration_s'], 64)
    assert near(r'Memory: ([\d.]+) GB, of which ([\d.]+) GB',
                round(s['memory_GB'], 1), round(max(s[part] for part in PARTS), 1))
    assert near(r'MFU ([\d.]+)%', round(100 * s['mfu'], 1))
    times = {name: 100 * x / s['iteration_s'] for name, x in s.items()
             if name in ('exposed_memory_s', 'tp_comm_s', 'dp_comm_s', 'pp_comm_s', 'bubble_s')}
    first, second = sorted(times.values())[:-3:-1]
    assert near(r'Arithmetic takes ([\d.]+)%', round(100 * s['compute_s'] / s['iteration_s'], 1))
    found = re.findall(r'\(([\d.]+)%\)', words)
    assert [float(x) for x in found] == [round(first, 1), round(second, 1)]
    copies, stages = one.parallel.dp, one.parallel.pp
    assert f' by {stages} pipeline stage{"s" if stages > 1 else ""}, ' in words
    assert ('the batch by 1 copy ' if copies == 1 else f'the batch by {copies} copies ') in words
    assert ('within' in words) == (s['memory_GB'] <= 80) == one.fits


SHOWN = {   # choice: (the usual, another, its title)
    'zero_stage': (1, 0, 'ZeRO'), 'recompute': ('none', 'full', 'recompute'),
    'precision': ('bf16', 'fp8', 'precision'), 'schedule': ('1f1b', 'zb-h1', 'schedule'),
    'tp_overlap': (False, True, 'tp_overlap'), 'context': ('ring', 'allgather', 'context')}


def test_a_table_shows_the_choices_that_rows_differ_in():
    "What is usual in every row is not shown, nor what all rows share of an overlap."
    found = search(MODEL, 8, SYSTEM, 64, '1d', assumptions=TRAINED, k=3)
    usual = {name: of[0] for name, of in SHOWN.items()}
    table = found.assign(**usual, strategy='2d-seqp', tp=2, cp=2, pp=2)
    titles = lambda **changed: {*iteration.readable(table.assign(**changed), SYSTEM).columns}
    for name, (often, other, title) in SHOWN.items():
        assert title not in titles()
        assert titles(**{name: [other, often, often]}) == titles() | {title}
        of_groups = name in ('tp_overlap', 'context')
        assert titles(**{name: other}) == (titles() if of_groups else titles() | {title})
    computing = iteration.readable(found, SYSTEM)['compute']   # a share of an iteration
    assert list(computing) == [f'{100 * s / every:.1f}%' for s, every in
                                zip(found.compute_s, found.iteration_s)]


def test_assumptions_say_what_was_chosen():
    "Those of an estimate are its configuration's, whatever was assumed."
    chosen = dict(zero_stage=3, recompute='full', precision='fp8', tp_overlap=True)
    p = case(tp=2, dp=2, **chosen)[0]
    assert {name: getattr(p.assumptions, name) for name in CHOICES} == {
        name: getattr(p.parallel, name) for name in CHOICES}
    assert chosen.items() <= vars(p.assumptions).items()


@pytest.mark.parametrize('ep, etp, who', [
    (1, 1, None), (8, 1, '8'), (1, 2, '2'), (4, 2, '4 x 2')])
def test_a_layout_in_words(ep, etp, who):
    one = estimate('mixtral_8x7B', Parallel(tp=2, dp=8, pp=2, ep=ep, etp=etp), SYSTEM, 16)
    experts = '' if who is None else f'its experts by {who} GPUs, '
    assert (f'Each layer is shared by 2 GPUs (tp 2), {experts}the layers by 2 pipeline stages, the '
            'batch by 8 copies in micro-batches of 1; an NVLink domain holds tp 2') in repr(one)


@pytest.mark.parametrize('pp, v, stages', [
    (1, 1, '1 pipeline stage, '), (4, 8, '4 pipeline stages, '),   # of 32 layers
    (4, 3, '4 pipeline stages (32 layers in 12 chunks: some have fewer), ')])
def test_unlike_chunks_are_told(pp, v, stages):
    one = estimate('llama3.1_8B', Parallel(pp=pp, dp=2, virtual_stages=v), 'H100-80GB', 16)
    assert f'the layers by {stages}the batch' in repr(one)


@pytest.mark.parametrize('layout, gpus', [
    (dict(dp=4), '1 GPU'), (dict(cp=2, dp=2), '2 GPUs (cp 2)'), (dict(tp=4), '4 GPUs (tp 4)'),
    (dict(tp=8, cp=2), '16 GPUs (tp 8 x cp 2)'),
    (dict(strategy='2d', tp=8, cp=2, panels=1), '16 GPUs (2d: tp 8 x cp 2)')])
def test_who_shares_a_layer_is_said_by_name(layout, gpus):
    "`8 x 2 GPUs (2d-seqp)` left readers to guess which is which."
    words = repr(estimate('gpt3', Parallel(**layout), SYSTEM, 16))
    assert f'Each layer is shared by {gpus}, the layers' in words


@pytest.mark.parametrize('other, bubble, told', [
    (3., 2., 'other (30.0%: the host, stragglers, the optimizer) and bubble (20.0%).'),
    (1., 2., 'bubble (20.0%) and other (10.0%: the host, stragglers, the optimizer).'),
    (0., 2., 'bubble (20.0%) and TP comm (5.0%).')])
def test_times_in_words(other, bubble, told):
    "The two largest losses; and what is in the one that has no name."
    row = pd.Series(dict.fromkeys(TIMES, 0.) | {
        'compute_s': 10 - other - bubble - .5, 'tp_comm_s': .5, 'bubble_s': bubble,
        'other_s': other, 'iteration_s': 10.})
    words = iteration.time_in_words(row)
    assert words.endswith(f'the largest losses are {told}')
    assert words.startswith(f'Arithmetic takes {10 * row.compute_s:.1f}% of the time; ')


@pytest.mark.parametrize('rows, words', [
    ({}, {'tp_comm_s': 'TP comm', 'dp_comm_s': 'DP comm'}),
    (dict(ep=1, offload='none', other_s=0.), {'tp_comm_s': 'TP comm', 'dp_comm_s': 'DP comm'}),
    (dict(ep=2), {'tp_comm_s': 'TP, EP comm', 'dp_comm_s': 'DP comm'}),
    (dict(ep=np.array([1, 2])), {'tp_comm_s': 'TP, EP comm', 'dp_comm_s': 'DP comm'}),
    (dict(offload=np.array(['none', 'activations'])),
     {'tp_comm_s': 'TP comm', 'dp_comm_s': 'DP comm, host copies'}),
    (dict(other_s=np.array([0., 1e-3])), {'other_s': 'other'})])
def test_parts_are_called_after_what_is_in_them(rows, words):
    "Two GPUs that share experts are enough, and one row of a table."
    called = timeline.components(rows)
    assert words.items() <= called.items() and ('other_s' in called) == ('other_s' in words)


def test_a_rate_in_words():
    "Shares of the peak; more of it than there is has a reason."
    for mfu, recompute in itertools.product((.4, 1., 1.5), ('none', 'full')):
        row = SimpleNamespace(mfu=mfu, hfu=1.3 * mfu, recompute=recompute)
        words = iteration.rate_in_words(row, SYSTEM)
        assert f'MFU {100 * mfu:.1f}%' in words and f'{SYSTEM.matrix_flops_fp16:g} TFLOP/s' in words
        assert (f'HFU {130 * mfu:.1f}%' in words) == (recompute == 'full')
        assert ('above 100 %' in words) == (mfu > 1)
    for precision, why in ('fp8', 'fewer bits'), ('bf16', 'layers of the vocabulary'):
        row = SimpleNamespace(mfu=1.5, hfu=1.5, recompute='none', precision=precision)
        assert why in iteration.rate_in_words(row, SYSTEM)


def test_days_of_a_training_in_words():
    "Of as many samples as a model is trained on; adapters train on as many as one likes."
    model = dataclasses.replace(MODEL, train_samples=1e6)
    for adapters in ('none', 'lora:4'):
        one = estimate(model, Parallel(dp=8, adapters=adapters), SYSTEM, 64, 'calibrated')
        days = 1e6 / 64 * one.stats['iteration_s'] / 3600 / 24
        told = f'The whole training of {iteration.short(1e6)} samples would take ' \
               f'{iteration.short(days)} days.'
        assert (told in repr(one)) == ('whole training' in repr(one)) == (adapters == 'none')


def test_an_all_reduce_hides_behind_no_product():
    "Where the sequence is whole, tp_overlap changes nothing; where it is shared out, it gains."
    took = lambda **own: estimate('llama3.1_70B', Parallel(tp=8, pp=4, dp=2, **own), SYSTEM, 64,
                                  'calibrated').stats['iteration_s']
    whole = [took(sequence_sharded=False, tp_overlap=x) for x in (False, True)]
    assert whole[0] == whole[1] and took(tp_overlap=True) < took(tp_overlap=False)


@pytest.mark.parametrize('recompute', ['none', 'full'])
def test_shares_of_the_peak(recompute):
    "An iteration at the peak rate, as long as they say it would be, does the FLOP of both kinds."
    stats = case(pp=2, dp=4, recompute=recompute)[0].stats
    peak = stats['iteration_s'] * SYSTEM.matrix_flops_fp16   # TFLOP
    for share, TFLOP in (('mfu', 'model_TFLOP_per_gpu'), ('hfu', 'executed_TFLOP_per_gpu')):
        assert close(stats[share] * peak, stats[TFLOP]), share


# tables of messages, as users of the paper's code put them together

@pytest.mark.parametrize('mlp', [modules.mlp_1d, modules.mlp_seqp, modules.mlp_2d])
def test_what_a_module_lacks_divides_nothing(mlp):
    "An odd width has no even number of heads, which an MLP does not have either."
    assert mlp(1, 8, 15, 60, system=dataclasses.replace(SYSTEM, summa_nb=1)).t.sum() > 0


def test_scores_that_are_computed_again_are_not_kept():
    "Then what a module keeps is in proportion to the length, and else has its square."
    def kept(length, again):
        return modules.sa_1d(1, length, 4096, 32, {'m': 4}, {'t': 4}, attention_recompute=again,
                             system=SYSTEM).activation_buffer.sum()
    assert close(kept(4096, True), 2 * kept(2048, True))
    assert kept(4096, False) - 2 * kept(2048, False) > 32 / 4 * 2e-9 * 2048**2


@pytest.mark.parametrize('overlap', [True, False])
def test_tables_of_messages(overlap):
    "Copies gather and reduce weights; stages send; all that a table takes is in its last column."
    table = [modules.mlp_1d(1, 2048, 4096, 16384, {'m': 4}, {'t': 4}, SYSTEM),
             modules.sa_1d(1, 2048, 4096, 32, {'m': 4}, {'t': 4}, True, system=SYSTEM)]
    pricer, group = pricer_of(SYSTEM, PAPER), Group(8, 2)
    GB, F, B = (sum(part[name].sum() for part in table) for name in
                ('weights_mem', 't_fwd', 't_bwd'))
    dp = modules.dataparallel(table, 24, 8, 2, overlap, SYSTEM).iloc[0]
    for way, kind, layer in (('fwd', 'allgather', F), ('bwd', 'reducescatter', B)):
        t = pricer.collective(kind, GB, group)
        seen = t + max(t - layer, 0) * 23 if overlap else 24 * t
        assert close(dp[f't_{way}'], seen) and dp[f't_{way}_comm'] == dp[f't_{way}']
        assert close(dp[f'comm_{way}'], GB) and dp[f'comm_{way}_type'] == kind
    assert close(dp.t, dp.t_fwd + dp.t_bwd)
    pp = modules.pipelineparallel(table, 16, .02, 4, 2, system=SYSTEM).iloc[0]
    link = 2 * pricer.send(.02, True) / 3     # of three links, the published mean forgets one
    assert close(pp.t_fwd, 16 * link) and close(pp.t, 32 * link) and pp.t_bwd == pp.t_fwd
    (t, mem), stats = execution.totals(*table, pd.DataFrame([dp]), pd.DataFrame([pp]), 24, 4, 8, 16)
    assert close(t, 16 * 6 * (F + B) + dp.t + pp.t + 3 * (6 * (F + B) + 2 * link))
    kept = sum(part.activation_buffer.sum() for part in table)
    assert close(mem, 6 * (GB + GB + 6 * GB / 8 + 4 * kept))
    assert stats['t'] == t and stats['mem'] == mem
    copies_of_cp = execution.totals(*table, pd.DataFrame([dp]), pd.DataFrame([pp]), 24, 4, 4, 16, 2)
    assert copies_of_cp[0] == (t, mem)   # 4 x 2 GPUs share what 8 did
    TFLOP = sum((part.flops_fwd + part.flops_bwd).sum() for part in table)
    assert close(stats['flops_per_gpu'], 16 * 6 * TFLOP)


def rows_of_ranks(units, pp, v, schedule):  # list of lists
    "The units on each rank, one after the other: a vocabulary at both ends, layers between."
    each = (len(units) - 2) // (pp * v)
    chunks = [units[1 + i * each:1 + (i + 1) * each] for i in range(pp * v)]
    chunks[0] = units[:1] + chunks[0]
    chunks[-1] = chunks[-1] + units[-1:]
    if schedule == 'dualpipe': ranks = [sorted({i, pp - 1 - i}) for i in range(pp)]
    elif schedule == 'zb-v': ranks = [[i, 2 * pp - 1 - i] for i in range(pp)]
    else: ranks = [range(i, pp * v, pp) for i in range(pp)]
    return [[*itertools.chain(*(chunks[i] for i in rank))] for rank in ranks]


def largest_run(units, number):
    "The most that so many neighbours come to."
    return max(sum(units[i:i + number]) for i in range(max(len(units) - number, 0) + 1))


WIDTHS = {   # of MLPs, layer by layer
    'alike': [1536] * 16, 'halves': [1536] * 8 + [49152] * 8, 'in turn': [1536, 49152] * 8,
    'some': [*[512] * 4, 9216, 49152, 49152, *[512] * 3, 9216, 512, 512, 1536, 512, 9216]}


@pytest.mark.parametrize('pp, v, schedule', [
    (1, 1, '1f1b'), (2, 1, '1f1b'), (8, 1, '1f1b'), (2, 4, '1f1b'), (4, 2, 'zb-v'),
    (4, 1, 'dualpipe')])
@pytest.mark.parametrize('number', first_of(2, [2, 0, 99, 1, 3, 5]))
@pytest.mark.parametrize('widths', WIDTHS)
def test_the_largest_units_in_a_row(widths, number, pp, v, schedule):
    "Layers and embedding tables are gathered one after the other, on each rank, window by window."
    kinds = [dataclasses.replace(gpt_block(e, h), ffn=MLP(width)) for width in WIDTHS[widths]]
    model = Model(l, e, h, 16, vocab=V, layers=tuple((kind, 1) for kind in kinds))
    a = dataclasses.replace(MEASURED, zero_gathered=number)
    of = functools.partial(case, a, model, batch=16 * 8 * b, dp=8, pp=pp, virtual_stages=v,
                           schedule=schedule)
    one, _, _ = of(zero_stage=3)
    work = priced_estimate(one).work
    second = memory_on_ranks(priced_estimate(of(zero_stage=2)[0]).work)[0]   # gradients alone
    layer = lambda width: 2e-9 * (4 * e * e + 2 * e * width + 9 * e + width)   # norms, biases
    table, norm = 2e-9 * V * e, 2e-9 * 2 * e
    ranks = rows_of_ranks([table, *map(layer, WIDTHS[widths]), table], pp, v, schedule)
    memory, copies = memory_on_ranks(work)[0], 8 * (2 if schedule == 'dualpipe' else 1)
    for rank, units in enumerate(ranks):
        whole = sum(units) + norm * (units[-1] == table)
        held = min(whole, whole / copies + largest_run(units, number))
        unit = min(whole, whole / copies + largest_run(units, 1))   # in 32 bits
        assert close(memory.weights[rank], held) and close(memory.gradients[rank], 2 * unit)
        assert close(second.gradients[rank], 2 * unit)
    assert close(one.stats['memory_GB'], memory.total.max())
    if not timeline.ranks_have_unlike_chunks(work):   # a search has the same from its formula
        assert close(timeline.memory_of(work).total, memory.total.max())


@pytest.mark.parametrize('number, tables', [(0, 0), (1, 1), (2, 1), (3, 2), (4, 2)])
def test_of_two_tables_one_may_be_gathered(number, tables):
    "ZeRO-3, of a layer between two larger tables: one of these, the layer too, then all."
    model = dataclasses.replace(MODEL, depth=1, vocab=3 * V, tied_embeddings=False)
    a = dataclasses.replace(MEASURED, zero_gathered=number)
    one, _, layers = case(a, model, dp=8, zero_stage=3)
    work = priced_estimate(one).work
    layer, table, norm = layers.weights_mem.sum(), 2e-9 * 3 * V * e, 2e-9 * 2 * e
    whole = layer + 2 * table + norm
    held = min(whole, whole / 8 + tables * table + (number > 1) * layer)
    assert close(timeline.memory_of(work).weights, held)
    assert close(memory_on_ranks(work)[0].weights[0], held)


@pytest.mark.parametrize('v', [1, 2, 3])
def test_a_pass_frees_what_it_saved_while_weights_stay(v):
    "All of a stage's weights, less the activations of the chunk that has just gone back."
    a = dataclasses.replace(TRAINED, measured=Parameters(
        'Hopper', software=Costs(frees_weights=True)))
    model = Model(l // 16, e, h, depth, mlp_dim=f, name='short')
    one, _, layers = case(
        a, model, pp=2, dp=8, zero_stage=3, reduce_each=False, virtual_stages=v)
    held, saved = depth / 2 * layers.weights_mem.sum(), layers.activation_buffer.sum()
    assert close(one.stats['weights_GB'], held - depth / 2 / v * saved)


@pytest.mark.parametrize('pp, in_domain', [
    (1, 1), (2, 1), (2, 2), (4, 2), (6, 3), (8, 1), (8, 2), (8, 8)])
def test_links_between_stages_one_by_one(pp, in_domain):
    "The mean of all, or the slowest; as published, a link between domains takes nothing."
    pricer = SimpleNamespace(send=lambda GB, near: GB * (3 if near else 40))
    links = [3. if stage % in_domain else 40. for stage in range(1, pp)]
    def takes(**mended):
        a = dataclasses.replace(PAPER, pp_overlap=False, **mended)
        return modules.pipeline_time(1., pp, in_domain, pricer, a)
    mean = lambda some: sum(some) / max(len(links), 1)
    assert close(takes(slowest_link=True, slow_pipeline_links=True), max(links, default=0))
    assert close(takes(slowest_link=False, slow_pipeline_links=True), mean(links))
    published = links if in_domain == 1 else [s for s in links if s == 3]
    assert close(takes(slowest_link=False, slow_pipeline_links=False), mean(published))


def test_rows_priced_together_take_what_they_take_alone():
    "Two kinds of layers on a grid, whose products have panels, and the ends of the model."
    kinds = [dataclasses.replace(gpt_block(e, h), ffn=MLP(width)) for width in (1024, 2048)]
    model = Model(l, e, h, depth, vocab=V, layers=tuple((kind, depth // 2) for kind in kinds))
    one, pricer, _ = case(PAPER, model, strategy='2d', tp=2, cp=2, panels=4)
    work = priced_estimate(one).work
    rows = [*(layer.rows for layer in work.kinds), *work.ends]
    assert len(rows) > 1 and any(len(own.late) for own in rows)
    for own, together in zip(rows, modules.priced_rows(rows, pricer), strict=True):
        alone, = modules.priced_rows([own], pricer)
        for name in ('flops', 'sent_forward', 'sent_backward', 'sent_early', 'late'):
            assert np.array_equal(getattr(together, name), getattr(alone, name)), name
        for way in ('forward', 'backward'):
            assert all(map(np.array_equal, getattr(together, way), getattr(alone, way)))


@pytest.mark.parametrize('layout, n_gpus, words', [
    (dict(dp=8, recompute='full:40'), 8, 'full:40: all layers, for a stage has no more than 32.'),
    (dict(dp=4, pp=2, recompute='full:17'), 8,
     'full:17: all layers, for a stage has no more than 16.'),
    (dict(dp=8, recompute='full:32'), 8, ''), (dict(dp=8, recompute='full'), 8, ''),
    (dict(dp=11), 11, 'Priced as if 11 GPUs used 1 of the 8 of each NVLink domain, all alike.'),
    (dict(dp=12), 12, ''), (dict(dp=7), 7, ''), (dict(dp=15), 15, '')])   # 5 or 3 of each
def test_what_is_not_as_asked_is_said(layout, n_gpus, words):
    one = estimate('llama3.1_8B', Parallel(**layout), 'H100-80GB', 2 * n_gpus)
    said = [note for note in one.notes if 'all layers' in note or 'domain' in note]
    assert said == ([words] if words else [])


@pytest.mark.parametrize('experts', [False, True])
@pytest.mark.parametrize('choices, idle', [
    ({}, ''), (dict(recompute='full'), ''), (dict(recompute='moe_act'), 'recompute moe_act'),
    (dict(recompute='full', dispatcher='once'), 'dispatcher once'),
    (dict(cuda_graphs='moe_router', ep_overlap=True), 'cuda_graphs moe_router, ep_overlap True')])
def test_what_no_layer_has_is_told(choices, idle, experts):
    more = dict(experts=8, experts_per_token=2, expert_dim=256) if experts else {}
    one, *_ = case(MEASURED, dataclasses.replace(MODEL, **more), dp=2, **choices)
    told = f'Without effect on this model: {idle}.'
    said = [note for note in one.notes if note.startswith('Without effect')]
    assert said == ([told] if idle and not experts else [])


@pytest.mark.parametrize('sizes, layout, words', [
    (dict(vocab=50257), dict(dp=8), 'vocab 50,257'), (dict(vocab=50304), dict(dp=8), ''),
    (dict(vocab=50264), dict(tp=2, dp=4), 'vocab 25,132'),
    (dict(heads=128, embed_dim=13824, vocab=256), dict(dp=8), 'head_dim 108'),
    (dict(embed_dim=520), dict(dp=8), 'head_dim 65'), (dict(embed_dim=576), dict(dp=8), '')])
def test_sizes_that_tensor_cores_take_slowly_are_said(sizes, layout, words):
    model = dataclasses.replace(MODEL, **sizes)
    one = estimate(model, Parallel(**layout), 'H100-80GB', 16, 'calibrated')
    found = search(model, 8, 'H100-80GB', 16, assumptions='calibrated', fixed=dict(tp=1))
    said = [note for note in one.notes if 'Slower than priced' in note]
    assert len(said) == bool(words)
    assert all(f'does not divide {words}, and' in note for note in said)
    whole = bool(words) and 'tp' not in layout   # a search speaks of the model alone
    assert any('Slower than priced' in note for note in found.notes) == whole
    assert not any('Slower' in note for note in estimate(
        model, Parallel(**layout), 'H100-80GB', 16, 'paper').notes)   # its roofline knows no tiles


@pytest.mark.parametrize('recompute', ['none', 'full'])
def test_utilization_by_hand(recompute):
    "Model FLOP over what the GPUs could do, whatever is computed again."
    one, *_ = case(tp=2, pp=2, dp=2, recompute=recompute, nvlink_tp=2, nvlink_pp=1, nvlink_dp=1)
    layer = 2 * (4 * e * e + 2 * e * f) + 2 * l * e   # FLOP of a token, forward; half of the scores
    could = one.stats['iteration_s'] * 8 * SYSTEM.matrix_flops_fp16 * 1e12
    assert close(one.stats['mfu'], 64 * l * 3 * (depth * layer + 2 * e * V) / could)


def test_what_a_stage_sends_hides_while_it_waits_for_slower_ones(monkeypatch):
    "A second of messages in each of 8 micro-batches; what it sends once does not hide."
    layout = Parallel(pp=2, dp=2, zero_stage=3, micro_batch=1)
    one = estimate('llama3.1_8B', layout, 'H100-80GB', 16, 'calibrated')
    work = timeline.priced_estimate(one).work
    def second_each(work, stage, pricer): return 1. * work.layouts.micro_batches
    monkeypatch.setattr(timeline, 'reduction_time', second_each)
    def delay(waits): return float(timeline.reduction_delay(work, None, waits, None))
    assert work.layouts.micro_batches == 8
    assert delay(waits=2.) == 6 and delay(waits=8.) == delay(waits=16.) == 1


@pytest.mark.parametrize('depth, assumptions, batch, layout', [
    (16, 'paper', 256, dict(tp=2, pp=2, dp=64, ep=16, zero_stage=2, schedule='zb-v')),
    (16, 'corrected', 1024, dict(tp=4, pp=8, dp=64, ep=16, zero_stage=3, schedule='dualpipe',
                                 recompute='full')),
    (61, 'calibrated', 512, dict(pp=16, dp=16, ep=8, zero_stage=3, schedule='zb-h1',
                                 recompute='full'))])
def test_wider_dense_layers_beside_experts_take_no_less(depth, assumptions, batch, layout):
    "Though another stage sends more in each micro-batch, and waits the longer."
    def seconds(width):
        model = dataclasses.replace(as_model('deepseek_v3'), depth=depth, mlp_dim=width)
        one = estimate(model, Parallel(**layout), 'H100-80GB', batch, assumptions)
        return one.stats['iteration_s']
    found = [seconds(width) for width in (18432, 24576, 36864, 49152)]
    assert found == sorted(found)
