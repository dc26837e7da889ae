"""What each operation of a layer counts, by hand: FLOP, bytes, messages, weights, what is kept.

A GPU that does a FLOP in a picosecond and moves a byte in a nanosecond, with no launches, tells all
of these in the table of an estimate's layers.
"""
import dataclasses
import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest

from transformer_perf import (
    Assumptions, Model, Parallel, blocks, estimate, estimates, layers, modules)
from transformer_perf.choices import graphed, recomputed_parts
from transformer_perf.estimates import AS_TRAINED, MENDED_SLIPS, Group, Roofline, Work, exchanged
from transformer_perf.linear_attention import Beside, GatedConv, Mamba2
from transformer_perf.parameters import Costs, Parameters
from transformer_perf.timeline import job_of
from transformer_perf.iteration import settled
from transformer_perf.systems import Units, as_system

MATRIX, VECTOR, MEMORY = 1000., 8., 50.   # TFLOP/s, TFLOP/s, GB/s
SYSTEM = dataclasses.replace(as_system('H200', 8), matrix_flops_fp16=MATRIX,
                             matrix_flops_fp8=MATRIX, vector_flops_fp16=VECTOR,
                             hbm_bandwidth=MEMORY)
BARE = dict(launch_time=0., flops_efficiency=1.)
PAPER = Assumptions(**BARE)
TRAINED = Assumptions(**BARE | MENDED_SLIPS | AS_TRAINED)
b, l, e, h, f = 3, 64, 48, 4, 160   # samples, tokens, widths as the paper has them
q = e // h
GPT = Model(l, e, h, 2, mlp_dim=f, name='gpt')
LLAMA = dataclasses.replace(GPT, gated_mlp=True, kv_heads=2, qk_norm=True)
CONV = dataclasses.replace(GPT, layers=((blocks.Block(GatedConv(channels=e), blocks.MLP(f)), 2),))
MAMBA = Mamba2(heads=4, key=8, value=q, chunk=16, key_groups=2)
BOTH_MIXERS = dataclasses.replace(LLAMA, layers=((blocks.Block(
    Beside(heads=blocks.Attention(h, 2, q, q), state=MAMBA), blocks.MLP(f, gated=True)), 2),))
n, k, w = 8, 2, 40   # experts, of a token, their width
EXPERTS = dataclasses.replace(GPT, gated_mlp=True, experts=n, experts_per_token=k, expert_dim=w)
SHARED = dataclasses.replace(EXPERTS, shared_expert_dim=20, shared_expert_gate=True,
                             router_bias=True)
LATENT = dataclasses.replace(GPT, gated_mlp=True, kv_lora_rank=16, q_lora_rank=24,
                             qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=10)


class Pass(NamedTuple):
    "One pass: FLOP on matrix and vector units, bytes moved, bytes of messages by kind."
    matrix: float = 0.
    vector: float = 0.
    moved: float = 0.
    sent: tuple = ()   # (kind, bytes), and a group of GPUs that is not the kind's own

    def __add__(self, other): return Pass(*(x + y for x, y in zip(self, other)))


class Row(NamedTuple):
    "One operation: its passes, bytes of its weights, and bytes kept."
    there: Pass
    back: Pass
    weights: float = 0.
    kept: float = 0.

    def sends(self, there=(), back=()):
        "The same with messages."
        return self._replace(there=self.there._replace(sent=tuple(there)),
                             back=self.back._replace(sent=tuple(back)))


# an operation, in numbers

def matmul(rows, columns, inner, batch=1, adds=0):  # Pass
    "Every number of a result is `inner` products and a sum of them; 16 bits in and out."
    flop = batch * rows * columns * (inner + inner - 1 + adds)
    return Pass(flop, 0, 2 * batch * (rows * inner + inner * columns + rows * columns))


def product(rows, inputs, outputs, kept, batch=1, adds=0, biased=0, more=0):  # Row
    "A product with a weight, and with its bias's gradient a kernel that reads what comes back."
    back = (matmul(rows, inputs, outputs, batch)
            + matmul(inputs, outputs, rows, batch, adds=adds))
    back += Pass(moved=2 * batch * rows * outputs * biased)
    return Row(matmul(rows, outputs, inputs, batch), back,
               2 * (batch * (inputs * outputs + outputs * biased) + more), kept)


def elementwise(x, flop, bytes_, weights=0, kept=0):  # Row
    "So many FLOP and bytes of each of x numbers, there and back."
    passes = [Pass(0, flop[i] * x, bytes_[i] * x) for i in (0, 1)]
    return Row(*passes, weights, kept)


def fused_norm(rows, width, vectors=2, learned=None):
    learned = width if learned is None else learned
    return elementwise(rows * width, (9, 12), (4, 8), 2 * vectors * learned, 2 * rows * width)


def residual(rows, width):
    "Reads two, writes one, and a mask of a byte."
    return elementwise(rows * width, (2, 2), (7, 5), kept=rows * width)


def activation(x, gated):
    "GELU is 8 FLOP and its gradient 13; a gate is one more input."
    return elementwise(x, (8 + gated, 13 + 2 * gated),
                       (2 * (2 + gated), 2 * (3 + 2 * gated)), kept=2 * (1 + gated) * x)


def fused_core(heads, kv, rows, width, value, seen, keeps_output):  # Row, of b samples
    "Attention in one kernel: products stay on the chip, scores are computed twice."
    pairs, all_rows = b * heads * rows * l * seen, b * heads * rows
    scores = pairs * (2 * width - 1)
    chosen = all_rows * value * (2 * l - 1) * seen
    softmax = 2 * pairs + (pairs - all_rows) + pairs            # and dropout
    softmax_back = 3 * pairs + (pairs - all_rows) + pairs
    back = (scores + pairs * (2 * value - 1)                    # scores, and their gradients
            + all_rows * width * (2 * l - 1) * seen             # of queries
            + b * heads * l * (width + value) * (2 * rows - 1) * seen)   # of keys and values
    queries, keys = all_rows * (width + value), b * kv * l * (width + value)
    there = Pass(scores + chosen, softmax, 2 * (queries + all_rows + keys))
    own_keys = b * kv * rows * (width + value)
    back = Pass(back, softmax + softmax_back,
                2 * (2 * queries + 2 * all_rows + keys + own_keys))
    kept = all_rows * width + own_keys + all_rows * (2 + value * keeps_output)
    return Row(there, back, 0, 2 * kept)


def ring(row, heads, kv, T, width, merged, cp=2):  # Row
    "Keys and values go round, and back with gradients; each step merges numbers, 12 bytes each."
    keys, once = 2 * b * kv * l * width, (cp - 1) * 12 * T * merged
    there, back = Pass(moved=once * heads), Pass(moved=once * (heads + 2 * kv))
    row = row._replace(there=row.there + there, back=row.back + back)
    return row.sends([('ring', keys)], [('ring', 2 * keys)])


# layers

class Way(NamedTuple):
    "How products have their inputs: half of the rows a GPU, or all of them; in 16 bits, or 8."
    T: float             # tokens of the products
    whole: bool = False
    low: bool = False    # 8 bits

    @property
    def own(self): return self.T if self.whole else self.T / 2

    def column(self, outputs, biased=0):  # Row: a share of the input is kept, and gathered again
        full, low = 2 * self.T * e, 2 * self.T * e / (1 + self.low)
        op = self.in_bits(product(self.T, e, outputs, 2 * self.own * e, adds=1, biased=biased),
                          self.T * e, self.T * outputs)
        if self.whole: return op.sends(back=[('allreduce', full)])
        return op.sends([('allgather', low)], [('allgather', low), ('reducescatter', full)])

    def row(self, inputs, biased=0):  # Row
        full, low = 2 * self.T * e, 2 * self.T * e / (1 + self.low)
        op = self.in_bits(product(self.T, inputs, e, 2 * self.T * inputs, adds=1),
                          self.T * inputs, self.T * e)
        rows = self.T if self.whole else self.own   # a bias is added after the messages
        op = op._replace(back=op.back + Pass(moved=2 * rows * e * biased),
                         weights=op.weights + 2 * e * biased)
        if self.whole: return op.sends([('allreduce', full)])
        return op.sends([('reducescatter', full)], [('allgather', low)])

    def in_bits(self, op, x, y):
        "In 8 bits: 4 bytes to cast a number of the input, and of what comes back; half is kept."
        if not self.low: return op
        return op._replace(there=op.there + Pass(moved=4 * x), back=op.back + Pass(moved=4 * y),
                           kept=op.kept / 2)


def trained_mlp(way, width, gated, biased):
    return {'fc1': way.column(width * (1 + gated), biased),
            'act1': activation(way.T * width, gated), 'fc2': way.row(width, biased)}


def trained_attention(way, core, qkv, value, biased, vectors):
    first = {} if qkv is None else {'qkv': way.column(qkv, biased)}
    return first | core | {'vproj': way.row(value, biased), 'dpr_v': residual(way.own, e),
                           'ln2': fused_norm(way.own, e, vectors)}


def ends(own, vectors): return {'dpr2': residual(own, e), 'ln1': fused_norm(own, e, vectors)}


def transposed(T, width): return elementwise(T * width, (0, 0), (12, 12))


def fused(heads, kv, rows, width=q, value=q, T=None, tp=2, seen=.5, swapped=False, keeps=0):
    "Queries, keys and values laid out, then the core with its ring; or all rows of fewer heads."
    layout = transposed(T, (2 * h * width + h * value) / 3 / tp)
    if swapped:
        core = fused_core(heads / 2, kv / 2, 2 * rows, width, value, seen, keeps)
        once = [('alltoall', 2 * T * (width + value) * (heads + kv), 'cp')]
        return {'layout': layout, 'fusedla': core.sends(once, once)}
    core = fused_core(heads, kv, rows, width, value, seen, keeps)
    return {'layout': layout,
            'fusedla': ring(core, heads, kv, T, width + value, value, round(l / rows))}


def gpt_trained(seen=.5, swapped=False, cp=2, **how):
    "tp 2 and cp 2: half of the heads, half of the rows."
    way = Way(b * l / cp, **how)
    keeps = how.get('low', 0)   # its output, beside the copy in 8 bits that the product saves
    core = fused(h / 2, h / 2, l / cp, T=way.T, seen=seen, swapped=swapped, keeps=keeps)
    return {**trained_attention(way, core, 3 * e / 2, e / 2, 1, 2),
            **trained_mlp(way, f / 2, 0, 1), **ends(way.own, 2)}


def gated_trained():
    "A gate for each number that attention gives: half of qkv's width more, and a kernel."
    T, own = b * l / 2, b * l / 4
    core = fused(h / 2, h / 2, l / 2, T=T)
    gate = elementwise(T * e / 2, (5, 10), (6, 10), kept=2 * 2 * T * e / 2)   # both factors
    return {**trained_attention(Way(T), core | {'gate': gate}, 4 * e / 2, e / 2, 1, 2),
            **trained_mlp(Way(T), f / 2, 0, 1), **ends(own, 2)}


def llama_trained(whole=False):
    "Grouped queries, norms of heads or of all features of a GPU, a gate, no biases."
    T, own, kv = b * l / 2, b * l / 4, 1
    normed = fused_norm(T * (h / 2 + kv), q, 1, learned=(h / 2 + kv) * q if whole else 2 * q)
    core = {'qk-norm': normed} | fused(h / 2, kv, l / 2, T=T)
    return {**trained_attention(Way(T), core, e / 2 + 2 * q, e / 2, 0, 1),
            **trained_mlp(Way(T), f / 2, 1, 0), **ends(own, 1)}


def latent_trained():
    "Latents of 24 and 16, keys of 8 + 4, values of 10."
    T, own, stream = b * l / 2, b * l / 4, 2
    gather = lambda width: ([('allgather', stream * T * width)],
                            [('reducescatter', stream * T * width)])
    core = {
        'q-down': product(own, e, 24, 2 * own * e, adds=1),
        'q-norm': fused_norm(own, 24, 1).sends(*gather(24)),
        'kv-down': product(own, e, 20, 0, adds=1),   # its input is kept already
        'kv-norm': fused_norm(own, 16, 1).sends(*gather(20)),
        'q-up': product(T, 24, h / 2 * 12, 2 * own * 24, adds=1).sends(
            back=[('allgather', 2 * T * 24)]),
        'kv-up': product(T, 16, h / 2 * 18, 2 * own * 16, adds=1).sends(
            back=[('allgather', 2 * T * 16)]),
        **fused(h / 2, h / 2, l / 2, 12, 10, T)}
    return {**trained_attention(Way(T), core, None, h / 2 * 10, 0, 1),
            **trained_mlp(Way(T), f / 2, 1, 0), **ends(own, 1)}


def weighed_bias(rows, width):  # Row
    "Bytes that each kernel of PyTorch reads and writes, of a number of the result."
    weighed, added, joined, narrowed = 4, 2 + 4 + 4, 4 + 4, 4 + 2
    widened, joined_back, weighed_back, summed = 2 + 4, 2 + 2, 4 + 4, 4
    there = weighed + added + joined + narrowed
    back = widened + narrowed + joined_back + 2 * (weighed_back + summed)   # of bias and weight
    return elementwise(rows * width, (0, 0), (there, back))


def expert_layer(shared=0, ep=4, etp=2, gathered=False, crowd=1., biased=0, places=1.):
    "ep GPUs share eight experts, etp of them the features of each; tp 2, cp 2, dp 2."
    T, own = b * l / 2, b * l / 4
    core = fused(h / 2, h / 2, l / 2, T=T)
    copies, here = own * k, n / ep
    rows = copies * etp / here * crowd          # of each expert of the busiest GPU
    tokens, spread = (2 * copies * e * crowd * size for size in (1, etp))
    all_of = 2 * own * e * ep * etp
    if gathered: there, back = [('allgather', all_of, 'experts')], [
        ('reducescatter', all_of, 'experts')]
    else:
        there, back = [('alltoall', tokens)], [('alltoall', tokens)]
        if etp > 1:
            there.append(('allgather', spread, 'etp'))
            back.append(('reducescatter', spread, 'etp'))
    here_all = rows * here                      # what the products of all experts here read
    apart = together = own + places * copies + 2 * here_all   # to places, empty ones, too
    if gathered:                                # tokens with an expert here, to it; all come back
        met = own * ep * etp * (1 - math.comb(n - n // ep, k) / math.comb(n, k))
        apart, together = met + here_all, own * ep * etp + here_all
    to_copies, to_tokens = Pass(moved=2 * e * apart), Pass(moved=2 * e * together)
    scores = Pass(moved=16 * own * n)           # in 32 bits, in and out a few times
    router = product(own, e, n, 0 if shared else 2 * own * e, adds=1, more=n * shared)
    router = router._replace(there=router.there + scores, back=router.back + scores)
    act = activation(rows * here * w / etp, 1)
    if biased:   # of either half: read and written to be clamped, and again to be joined
        more = 2 * rows * here * w / etp * 2
        act = act._replace(there=act.there + Pass(moved=2 * 2 * more),
                           back=act.back + Pass(moved=(3 + 2) * more), kept=act.kept + more)
    found = {
        'router': router,
        'dispatch': Row(to_copies, to_tokens, kept=12 * copies + 4 * own * n).sends(there, back),
        'expert-fc1': product(rows, e, 2 * w / etp, 2 * here * rows * e, here, 1, biased),
        'expert-act': act,
        'expert-fc2': product(rows, w / etp, e, 2 * here * rows * w / etp, here, adds=1,
                              more=here * e * biased),
        **({'expert-bias': weighed_bias(here * rows, e)} if biased else {}),
        'combine': Row(to_tokens, to_copies).sends(back, there)}
    first, wide = Way(T).column(20), 20 / 2
    if shared: found |= {
        'shared-fc1': first._replace(weights=first.weights + 2 * e),   # and a gate
        'shared-act': activation(T * wide, 1), 'shared-fc2': Way(T).row(wide)}
    return {**trained_attention(Way(T), core, 3 * e / 2, e / 2, 0, 1), **found, **ends(own, 1)}


def published_norm(rows, width, whole=None):
    "Nine FLOP a number there; statistics of each row and both vectors are read, too."
    x = rows * width
    return Row(Pass(0, 9 * x, 4 * (x + rows + width)),
               Pass(0, 8 * x + 4 * rows * (width - 1), 2 * (5 * x + 2 * width)),
               2 * 2 * width, 2 * x)


def published_bias(rows, columns):
    x = rows * columns
    return Row(*[Pass(0, x, 2 * (x + columns))] * 2, 2 * columns)


def dropout(x): return elementwise(x, (1, 1), (5, 5), kept=x)


def attention_apart(heads, rows, fused_kernels=False):  # dict of Row
    "Logits, softmax, dropout and attend as operations of their own."
    all_rows, pairs = b * heads * rows, b * heads * rows * l
    operands = 2 * b * heads * (3 * rows * q + l * q + 2 * rows * l)
    chosen, gradient = (matmul(*sizes, b * heads).matrix for sizes in (
        (rows, q, l), (l, q, rows)))
    scores = matmul(rows, l, q, b * heads)
    sums = pairs - all_rows
    middle = {'softmax': elementwise(pairs, (4, 5), (8, 9), kept=3 * pairs)} if fused_kernels else {
        'softmax': Row(Pass(0, 2 * pairs + sums, 4 * pairs), Pass(0, 3 * pairs + sums, 6 * pairs),
                       0, 2 * pairs),
        'dpr_at': dropout(pairs)}
    return {'logits': Row(scores, Pass(chosen + gradient, 0, operands), 0, 4 * all_rows * q),
            **middle,
            'attend': Row(matmul(rows, q, l, b * heads),
                          Pass(scores.matrix + gradient, 0, operands), 0,
                          2 * pairs + 2 * all_rows * q)}


def gpt_paper(core):
    "tp 2: everything between products is shared out, too, but for the output's biases."
    T, own, stream = b * l, b * l / 2, 2 * b * l * e
    gather, scatter = [('allgather', stream)], [('reducescatter', stream)]
    wide = T * f / 2
    return {
        'qkv': product(T, e, 3 * e / 2, 2 * T * e).sends(back=scatter), **core,
        'vproj': product(T, e / 2, e, T * e).sends(scatter),
        'vproj-bias': published_bias(T, e), 'dpr_v': dropout(own * e),
        'ln2': published_norm(own, e).sends(gather, scatter),
        'fc1': product(T, e, f / 2, 2 * T * e).sends(back=scatter),
        'fc1-bias': published_bias(T, f / 2), 'act1': activation(wide, 0), 'dpr1': dropout(wide),
        'fc2': product(T, f / 2, e, 2 * wide).sends(scatter),
        'fc2-bias': published_bias(T, e), 'dpr2': dropout(own * e),
        'ln1': published_norm(own, e).sends(gather, scatter)}


def panelled(rows, inputs, outputs, panels, columns, rows_of_grid):  # Row
    "SUMMA: the sum over panels is one; each panel reads and writes its result."
    flop = 2 * rows * outputs * inputs
    once = rows * inputs + inputs * outputs          # each of the three products
    moved = 2 * (once + panels * rows * outputs)
    back = rows * inputs * (2 * outputs - 1) + inputs * outputs * (2 * rows - 1)
    x, y = 2 * rows * inputs, 2 * inputs * outputs
    return Row(Pass(flop, 0, moved), Pass(back, 0, 2 * moved), y / rows_of_grid,
               x / columns).sends(
        [('broadcast', x), ('broadcast', y)],
        [('broadcast', y), ('reduce', x), ('broadcast', x), ('reduce', y)])


def gpt_grid():
    "A grid of 2 x 2, two panels, as published: its norms are l / 2 wide (slip E2)."
    rows, own = b * l / 2, b * l / 2 * e / 2
    keys = 2 * b * h / 2 * l * 2 * q
    core = fused_core(h / 2, h / 2, l / 2, q, q, 1, 1).sends(
        [('allgather', keys)], [('allgather', keys), ('reducescatter', keys)])
    norm = published_norm(rows, l / 2).sends(
        [('allreduce', 4 * rows)], [('allreduce', 2 * (2 * e / 2 + 2 * b * l / 2))])
    wide = rows * f / 2
    return {
        'qkv': panelled(rows, e, 3 * e / 2, 2, 2, 2), 'fusedla': core,
        'vproj': panelled(rows, e, e / 2, 2, 2, 2), 'vproj-bias': published_bias(rows, e / 2),
        'dpr_v': dropout(own), 'ln2': norm, 'fc1': panelled(rows, e, f / 2, 2, 2, 2),
        'fc1-bias': published_bias(rows, f / 2), 'act1': activation(wide, 0),
        'dpr1': dropout(wide), 'fc2': panelled(rows, f, e / 2, 2, 2, 2),
        'fc2-bias': published_bias(rows, e / 2), 'dpr2': dropout(own), 'ln1': norm}


@pytest.mark.parametrize('tokens', [64, 67])
def test_rows_that_a_grid_does_not_share_evenly(tokens):
    "As published, a norm's rows are whole numbers, l / 2 wide (slip E2); so is what is handed on."
    model = dataclasses.replace(GPT, seq_len=tokens)
    for a in (PAPER, dataclasses.replace(PAPER, norm_shards_features=True)):
        job = job_at(model, a, strategy='2d', tp=2, cp=2)
        width = 24 if a.norm_shards_features else tokens // 2
        assert close(modules.boundary_of(job), 2e-9 * b * tokens / 2 * width)
        norm, = (op for op in job.operations if op.name == 'ln1')
        assert close(norm.activations, 2e-9 * b * tokens / 2 * width)
        sent, = norm.backward.messages
        assert close(sent.volume, 2e-9 * (e + b * tokens))


@pytest.mark.parametrize('tp, cp', [(1, 3), (2, 3), (4, 2), (5, 7)])
def test_a_grid_holds_every_weight_and_number_once(tp, cp):
    "Also where the GPUs of cp do not divide what a product gets."
    for inputs, outputs in ((e, f), (f, e)):
        op = layers.linear_summa('x', b, l, inputs, outputs / tp, tp, cp, 4)
        assert close(op.weights * tp * cp, 2e-9 * inputs * outputs)
        assert close(op.in_matrices * tp * cp, 2e-9 * inputs * outputs)
        assert close(op.activations * tp * cp, 2e-9 * b * l * inputs)
    kept = [make('x', b, l, q, h, tp, cp, 4).activations * tp * cp
            for make in (layers.logits_summa, layers.attend_summa)]
    scores, values = 2e-9 * b * h * l * l, 2e-9 * b * h * l * q
    assert close(kept[0], 2 * values) and close(kept[1], scores + values)
    softmax = layers.softmax_2d('x', b, h, l, tp, cp)
    assert close(softmax.activations * tp * cp, layers.softmax('x', b, h, l, l).activations)


def gpt_scores():
    "Without fused attention, but with fused kernels."
    T, own = b * l / 2, b * l / 4
    apart = attention_apart(h / 2, l / 2, fused_kernels=True)
    for name, merged in (('logits', 0), ('attend', q)):
        apart[name] = ring(apart[name], h / 2, h / 2, T, q, merged)
    core = {'layout': transposed(T, e / 2)} | apart
    return {**trained_attention(Way(T), core, 3 * e / 2, e / 2, 1, 2),
            **trained_mlp(Way(T), f / 2, 0, 1), **ends(own, 2)}


BOTH = dict(tp=2, cp=2, micro_batch=b)
FOLDED = BOTH | dict(dp=2, ep=4, etp=2)
CASES = {   # -> model, layout, assumptions, every row by hand
    'gpt, published': (GPT, dict(tp=2, micro_batch=b), PAPER, lambda: gpt_paper(
        {'fusedla': fused_core(h / 2, h / 2, l, q, q, 1, 1)})),
    'gpt, scores, published': (
        GPT, dict(tp=2, micro_batch=b), dataclasses.replace(PAPER, flash_attention=False),
        lambda: gpt_paper(attention_apart(h / 2, l))),
    'gpt on a grid, published': (
        GPT, BOTH | dict(strategy='2d', panels=2), PAPER, gpt_grid),
    'gpt': (GPT, BOTH, TRAINED, gpt_trained),
    'gpt, whole sequences': (GPT, BOTH | dict(sequence_sharded=False), TRAINED,
                             lambda: gpt_trained(whole=True)),
    'gpt, 8 bits': (GPT, BOTH | dict(precision='fp8'), TRAINED, lambda: gpt_trained(low=True)),
    'gpt, a gate on attention': (dataclasses.replace(GPT, attention_gate=True), BOTH, TRAINED,
                                 gated_trained),
    'llama': (LLAMA, BOTH, TRAINED, llama_trained),
    'llama, norms of all features': (dataclasses.replace(LLAMA, qk_norm_whole=True), BOTH, TRAINED,
                                     lambda: llama_trained(whole=True)),
    'gpt, scores': (
        GPT, BOTH, dataclasses.replace(TRAINED, flash_attention=False), gpt_scores),
    'latents': (LATENT, BOTH, TRAINED, latent_trained),
    'gpt, windows': (dataclasses.replace(GPT, window=16), BOTH, TRAINED,
                     lambda: gpt_trained(seen=1 / 4)),   # the other GPU has the first tokens
    'gpt, both sides seen': (dataclasses.replace(GPT, causal=False), BOTH, TRAINED,
                             lambda: gpt_trained(seen=1)),
    'gpt, the last GPU sees most': (GPT, BOTH, dataclasses.replace(TRAINED, zigzag=False),
                                    lambda: gpt_trained(seen=3 / 4)),
    'gpt, a ring of four': (GPT, BOTH | dict(cp=4), TRAINED, lambda: gpt_trained(cp=4)),
    'gpt, Ulysses': (GPT, BOTH | dict(context='ulysses'), TRAINED,
                     lambda: gpt_trained(swapped=True)),
    'experts': (EXPERTS, FOLDED, TRAINED, expert_layer),
    'shared experts': (SHARED, FOLDED, TRAINED, lambda: expert_layer(1)),
    'experts, whole': (EXPERTS, FOLDED | dict(etp=1, ep=2), TRAINED,
                       lambda: expert_layer(ep=2, etp=1)),
    'experts, gathered': (EXPERTS, FOLDED | dict(etp=1, ep=2, dispatcher='allgather'), TRAINED,
                          lambda: expert_layer(ep=2, etp=1, gathered=True)),
    'experts, uneven': (EXPERTS, FOLDED, dataclasses.replace(TRAINED, expert_imbalance=1.5),
                        lambda: expert_layer(crowd=1.5)),
    'experts, padded': (EXPERTS, FOLDED, dataclasses.replace(TRAINED, capacity_factor=1.25),
                        lambda: expert_layer(crowd=1.25, places=1.25)),
    'experts with biases': (
        dataclasses.replace(EXPERTS, biases='mlp', activation='clamped_silu'),
        FOLDED, TRAINED, lambda: expert_layer(biased=1))}


def close(found, expected): return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-21)


def messages(row, way):  # tuple of (kind, bytes)
    "What a row of the table says that is sent."
    kinds, volumes = row[f'comm_{way}_type'], row[f'comm_{way}']
    if isinstance(kinds, str): kinds, volumes = [kinds], [volumes]
    return [(kind, 1e9 * GB) for kind, GB in zip(kinds, volumes) if GB]


def check_pass(row, way, own, launch=0., share=1.):
    "FLOP and seconds of a pass, and its messages; `share` of the peak after a launch."
    dear = MATRIX / VECTOR if own.matrix else 1
    assert close(row[f'flops_{way}'], 1e-12 * (own.matrix + dear * own.vector))
    compute = launch + 1e-12 * (own.matrix / MATRIX + own.vector / VECTOR) / share
    memory = 1e-9 * own.moved / MEMORY
    assert close(row[f't_{way}_comp'], compute)
    assert close(row[f't_{way}_mem'], max(memory - compute, 0))
    if memory: assert close(row[f'intensity_{way}'], compute / memory)
    sent = messages(row, way)
    assert [kind for kind, _ in sent] == [kind for kind, *_ in own.sent], row
    assert all(close(x, y[1]) for (_, x), y in zip(sent, own.sent))


GROUPS = {'ring': 'cp', 'alltoall': 'ep'}   # whose messages they are; all others are of tp


def sent_by_hand(own, groups, busy, way):  # s
    "One message after the other; a ring hides behind its own steps, forward not behind the last."
    pricer, seen = Roofline(SYSTEM), 0.
    for kind, nbytes, *group in own.sent:
        where = groups[group[0] if group else GROUPS.get(kind, 'tp')]
        if kind == 'alltoall': seen += pricer.exchange(1e-9 * nbytes, None, where)
        else:
            t = pricer.collective(kind, 1e-9 * nbytes, where)
            steps = groups['cp'].size
            most = busy * (1 - 1 / steps if way == 'fwd' else 1)
            seen += max(t - most, 0) if kind == 'ring' else t
    return seen


@pytest.mark.parametrize('case', CASES)
def test_messages_of_layers_by_hand(case):
    "tp, then cp, then dp have a domain's GPUs; experts take theirs from them, etp first."
    model, layout, a, rows = CASES[case]
    if layout.get('strategy') == '2d': return   # its messages hide behind panels
    layout = layout | dict(nvlink_tp=2, nvlink_cp=1, nvlink_dp=layout.get('dp', 1), nvlink_pp=1)
    inside, ep, etp = 2 * layout.get('dp', 1), layout.get('ep', 1), layout.get('etp', 1)
    near = min(ep, inside // etp)
    groups = {'tp': Group(2, 2), 'cp': Group(layout.get('cp', 1), 1), 'ep': Group(ep, near),
              'etp': Group(etp, etp), 'experts': Group(ep * etp, near * etp)}
    table = estimate(model, Parallel(**layout), SYSTEM, 24, a).layers
    expected = rows()
    for row in table.to_dict('records'):
        hand = expected[row['layer']]
        for way, own in (('fwd', hand.there), ('bwd', hand.back)):
            busy = row[f't_{way}_comp'] + row[f't_{way}_mem']
            assert close(row[f't_{way}_comm'], sent_by_hand(own, groups, busy, way)), row
            assert close(row[f't_{way}'], busy + row[f't_{way}_comm'])


@pytest.mark.parametrize('case', CASES)
def test_layers_by_hand(case):
    model, layout, a, rows = CASES[case]
    table = estimate(model, Parallel(**layout), SYSTEM, 24, a).layers
    expected = rows()
    assert list(table.layer) == list(expected)
    for row in table.to_dict('records'):
        own = expected[row['layer']]
        check_pass(row, 'fwd', own.there)
        check_pass(row, 'bwd', own.back)
        assert close(row['weights_mem'], 1e-9 * own.weights), row['layer']
        assert close(row['weights_grad_mem'], 1e-9 * own.weights), row['layer']
        assert close(row['activation_buffer'], 1e-9 * own.kept), row['layer']


# the names of the paper's users

def scores_on_a_grid(panels):
    "2 x 2 GPUs, all heads on each: half of the rows, and of a head's width; panels of keys."
    rows, wide, n_heads, part = l / 2, q / 2, b * h, l / panels
    left, keys, scores = rows * wide, l * wide, rows * l      # numbers of a head
    panel = panels * (left + part * wide + rows * part)       # what each panel moves
    sends = lambda *messages: [(kind, 2 * n_heads * x) for kind, x in messages]
    back = scores * (2 * wide - 1), rows * wide * (2 * l - 1), keys * (2 * rows - 1)
    whole = rows * l / 2 * n_heads                            # scores that a GPU has
    sums = [('allreduce', 2 * n_heads * rows)]
    softmax = Row(Pass(0, 3 * whole - n_heads * rows, 4 * whole),
                  Pass(0, 4 * whole - n_heads * rows, 6 * whole), 0, 2 * whole)
    logits = Row(
        Pass(n_heads * scores * (2 * wide - 1), 0, 2 * n_heads * panel),
        Pass(n_heads * (back[1] + back[2]), 0, 2 * n_heads * (
            scores + keys + left + panel + (panels - 1) * left)), 0, 4 * n_heads * left)
    attend = Row(
        Pass(n_heads * 2 * left * l, 0, 2 * n_heads * panel),
        Pass(n_heads * (back[0] + back[2]), 0, 2 * n_heads * 2 * panel), 0,
        2 * whole + 2 * n_heads * left)
    return {
        'logits': logits.sends(
            sends(('broadcast', keys), ('reduce', scores)),
            sends(('broadcast', scores), ('broadcast', keys), ('broadcast', scores),
                  ('reduce', keys))),
        'softmax': softmax.sends(sums, sums), 'dpr_at': dropout(whole),
        'attend': attend.sends(
            sends(('broadcast', scores), ('broadcast', keys)),
            sends(('broadcast', keys), ('reduce', scores), ('broadcast', scores),
                  ('reduce', keys)))}


def test_whose_biases_a_gpu_has():
    "After the MLP, where it has whole rows, those of all columns; else those of its own columns."
    table = estimate(GPT, Parallel(**BOTH), SYSTEM, 24, PAPER).layers.set_index('layer')
    for name, numbers in (('vproj-bias', e / 2), ('fc1-bias', f / 2), ('fc2-bias', e)):
        assert close(table.weights_mem[name], 2e-9 * numbers), name


@pytest.mark.parametrize('panels', [1, 2, 4])
def test_scores_on_a_grid_by_hand(panels):
    "Of `sa_2d`, which computes every product of attention as SUMMA."
    expected = scores_on_a_grid(panels)
    table = modules.sa_2d(b, l, e, h, {'m1': 2, 'm2': 2}, {'t1': 2, 't2': 1},
                          dataclasses.replace(SYSTEM, summa_nb=panels))
    found = [row for row in table.to_dict('records') if row['name'] in expected]
    assert len(found) == len(expected)
    for row in found:
        own = expected[row['name']]
        for way, work in (('fwd', own.there), ('bwd', own.back)):
            check_pass(row, way, work, launch=20e-6, share=.8)
        assert row['weights_mem'] == 0 and close(row['activation_buffer'], 1e-9 * own.kept)


@pytest.mark.parametrize('columns, rows', [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_nobody_talks_alone(columns, rows):
    "On a grid of one column nothing is sent along rows, of one row nothing along columns."
    grid = columns, rows
    for op in (layers.linear_summa('x', b, l, e, f // columns, *grid, 2),
               layers.layernorm_2d('x', b, l, e, *grid), layers.softmax_2d('x', b, h, l, *grid),
               layers.logits_summa('x', b, l, q, h, *grid, 2),
               layers.attend_summa('x', b, l, q, h, *grid, 2)):
        for message in op.forward.messages + op.backward.messages:
            several = {'tp': columns, 'cp': rows}[message.group] > 1
            assert (message.volume > 0) == several and math.isfinite(message.volume), op.name


# what is computed again

LOW = dict(precision='fp8')
AGAIN = [   # model, layout, part, what is run again, and whose input or result need not be kept
    (GPT, BOTH, 'mlp', ['fc1', 'act1', 'fc2'], ['act1', 'fc2']),
    (GPT, BOTH, 'layernorm', ['ln2', 'ln1'], ['qkv', 'fc1']),
    (GPT, BOTH, 'mlp+layernorm', ['ln2', 'fc1', 'act1', 'fc2', 'ln1'],
     ['qkv', 'fc1', 'act1', 'fc2']),
    (GPT, BOTH, 'mlp_act', ['act1'], ['fc2']),
    (GPT, BOTH, 'mlp_act+layernorm', ['ln2', 'act1', 'ln1'], ['qkv', 'fc1', 'fc2']),
    (GPT, BOTH, 'mlp_act+mlp', ['fc1', 'act1', 'fc2'], ['act1', 'fc2']),
    (SHARED, FOLDED, 'moe_act', ['expert-act'], ['expert-fc2']),
    (SHARED, FOLDED, 'moe', ['router', 'dispatch', 'expert-fc1', 'expert-act', 'expert-fc2',
                             'combine', 'shared-fc1', 'shared-act', 'shared-fc2'],
     ['dispatch', 'expert-fc1', 'expert-act', 'expert-fc2', 'shared-act', 'shared-fc2']),
    (SHARED, FOLDED, 'shared_experts', ['shared-fc1', 'shared-act', 'shared-fc2'],
     ['shared-act', 'shared-fc2']),
    (EXPERTS, FOLDED, 'layernorm', ['ln2', 'ln1'], ['qkv', 'router']),
    (SHARED, FOLDED | LOW, 'moe', [
        'router', 'dispatch', 'expert-fc1', 'expert-act', 'expert-fc2', 'combine', 'shared-fc1',
        'shared-act', 'shared-fc2'],   # the router keeps their input, which a copy is made of
     ['dispatch', 'expert-fc1', 'expert-act', 'expert-fc2', 'shared-fc1', 'shared-act',
      'shared-fc2']),
    (SHARED, FOLDED | LOW, 'shared_experts', ['shared-fc1', 'shared-act', 'shared-fc2'],
     ['shared-fc1', 'shared-act', 'shared-fc2']),
    (LATENT, BOTH, 'layernorm', ['ln2', 'ln1'], ['q-down', 'fc1']),
    (dataclasses.replace(LATENT, q_lora_rank=None), BOTH, 'layernorm', ['ln2', 'ln1'],
     ['q-up', 'fc1'])]


def kept_and_rerun(model, layout, part, **changes):  # (GB of all layers, table)
    "What a GPU without a pipeline keeps for the backward pass."
    a = dataclasses.replace(TRAINED, working_memory=False, **changes)
    places = dict(nvlink_tp=2, nvlink_cp=1, nvlink_pp=1, nvlink_dp=1)
    one = estimate(model, Parallel(**layout, recompute=part, **places), SYSTEM, 24, a)
    return one.stats['activations_GB'], one.layers


@pytest.mark.parametrize('model, layout, part, rerun, freed', AGAIN,
                         ids=[f'{part}, {model.experts or ""}' for model, _, part, *_ in AGAIN])
def test_what_is_computed_again_is_not_kept(model, layout, part, rerun, freed):
    (whole, plain), (kept, again) = (kept_and_rerun(model, layout, name)
                                     for name in ('none', part))
    assert close(whole, 2 * plain.activation_buffer.sum())
    rows = plain.set_index('layer')
    assert close(whole - kept, 2 * rows.activation_buffer[freed].sum())
    longer = again.set_index('layer').t_bwd - rows.t_bwd
    for name, seconds in rows.t_fwd.items():
        assert close(longer[name], seconds * (name in rerun)), name


@pytest.mark.parametrize('part', ['moe', 'shared_experts'])
def test_what_shared_experts_read_is_not_kept_where_the_router_has_it(part):
    "Though products that run once keep all rows of it, as in the published model."
    (whole, plain), (kept, _) = (kept_and_rerun(SHARED, FOLDED, name, inputs_sharded=False)
                                 for name in ('none', part))
    freed = ['shared-fc1', 'shared-act', 'shared-fc2']
    if part == 'moe': freed += ['dispatch', 'expert-fc1', 'expert-act', 'expert-fc2']
    rows = plain.set_index('layer').activation_buffer
    assert close(whole - kept, 2 * rows[freed].sum())
    assert close(rows['shared-fc1'], 2 * rows['router'])   # of both GPUs' tokens


@pytest.mark.parametrize('flash', [True, False])
def test_queries_keys_and_values_made_again_are_not_kept(flash):
    "Of latent attention, whether its core is one kernel or several."
    whole, kept = (kept_and_rerun(LATENT, BOTH, part, flash_attention=flash)[0]
                   for part in ('none', 'mla_up_proj'))
    m = LATENT
    width = 2 * (m.qk_nope_head_dim + m.qk_rope_head_dim) + m.v_head_dim
    assert close(whole - kept, 2 * 2e-9 * b * l / 2 * h / 2 * width)


PLAIN_EXPERTS = dataclasses.replace(EXPERTS, gated_mlp=False)


@pytest.mark.parametrize('model, precision, freed', [   # bytes of a number of a hidden layer
    (EXPERTS, 'bf16', 2), (EXPERTS, 'fp8', 1), (PLAIN_EXPERTS, 'bf16', 2 + 2),
    (PLAIN_EXPERTS, 'fp8', 1 + 2),   # before it is weighed it has 16 bits
    (dataclasses.replace(EXPERTS, activation='clamped_silu'), 'bf16', 2 + 2 * 2)])
def test_nonlinearities_of_experts_computed_again(model, precision, freed):
    "What the first product gives is kept: nothing that is clamped, activated or weighed of it."
    whole, kept = (kept_and_rerun(model, FOLDED | dict(precision=precision), part)[0]
                   for part in ('none', 'moe_act'))
    assert close(whole - kept, 2 * freed * 1e-9 * b * l / 4 * k * w)


@pytest.mark.parametrize('gated, eager, freed', [   # bytes of a number of the hidden layer
    (False, False, 2), (True, False, 2), (True, True, 2 + 2)])
def test_nonlinearities_computed_again_keep_what_the_first_product_gives(gated, eager, freed):
    "Nothing that is made of it; a gate of kernels apart keeps what it multiplies, too."
    model = dataclasses.replace(GPT, gated_mlp=gated)
    costs = Costs(eager_gates=eager)
    changes = dict(measured=Parameters('Hopper', software=costs))
    whole, kept = (kept_and_rerun(model, BOTH, part, **changes)[0] for part in ('none', 'mlp_act'))
    assert close(whole - kept, 2 * freed * 1e-9 * b * l / 4 * f)


def test_parts_that_are_computed_again():
    "One of the words for usual parts, or names of parts; a word for several stands alone."
    assert recomputed_parts('selective') == ('core_attn',) and recomputed_parts('none') == ()
    assert recomputed_parts('mlp+layernorm') == ('mlp', 'layernorm')
    for wrong, meant in (('selectiv', 'selective'), ('mlp+layernrm', 'layernorm'),
                         ('ful', 'full'), ('moe_ac', 'moe_act')):
        with pytest.raises(ValueError, match=f"'{meant}'"): recomputed_parts(wrong)
    for several in ('selective+mlp', 'mlp+full', 'none+mlp'):
        with pytest.raises(ValueError): recomputed_parts(several)


def test_parts_of_which_graphs_are():
    "Of any parts of a layer, or of the whole iteration, or none."
    assert graphed('attn+moe_router') == (.5, .2, False) and graphed('attn+attn')[0] == .5
    for several in ('none+attn', 'attn+iteration', 'iteration+none'):
        with pytest.raises(ValueError, match='stands alone'): graphed(several)


def test_attention_computed_again():
    "Fused, its two sums a row go; apart, all scores; of latents queries, keys and values, too."
    rows = b * h / 2 * l / 2
    whole, kept = (kept_and_rerun(GPT, BOTH, part)[0] for part in ('none', 'core_attn'))
    assert close(whole - kept, 2 * 4e-9 * rows)
    (whole, _), (no_scores, one), (kept, two) = (
        kept_and_rerun(GPT, BOTH, part, flash_attention=False)
        for part in ('none', 'scores', 'core_attn'))
    assert close(whole - no_scores, 2 * 5e-9 * rows * l) and kept == no_scores
    assert two.t_bwd.sum() > one.t_bwd.sum()
    whole, kept = (kept_and_rerun(LATENT, BOTH, part)[0] for part in ('none', 'mla_up_proj'))
    inputs = 2e-9 * b * l / 2 * h / 2 * (12 + 12 + 10)
    assert close(whole - kept, 2 * inputs)


def test_a_layer_computed_again_keeps_its_input():
    "Of a GPU's own rows; while it runs again it holds all that it kept before."
    whole, plain = kept_and_rerun(GPT, BOTH, 'none')
    kept, again = kept_and_rerun(GPT, BOTH, 'full')
    assert close(kept, 2 * 2e-9 * b * l / 4 * e)
    assert close(again.t_bwd.sum(), plain.t_bwd.sum() + plain.t_fwd.sum())
    half, table = kept_and_rerun(GPT, BOTH, 'full:1')
    assert close(half, (whole + kept) / 2)
    assert close(table.t_bwd.sum(), plain.t_bwd.sum() + plain.t_fwd.sum() / 2)
    held = [estimate(GPT, Parallel(**BOTH, recompute=part), SYSTEM, 24, TRAINED)
            .stats['activations_GB'] for part in ('none', 'full')]
    assert close(held[0] - held[1], whole - kept - (plain.activation_buffer.sum() - kept / 2))


@pytest.mark.parametrize('part', ['full', 'mlp+moe'])
def test_the_largest_layer_that_runs_again(part):
    "One runs at a time: where they differ, the stage has room for the largest, not for their mean."
    dense = dataclasses.replace(GPT, gated_mlp=True)
    mixed = dataclasses.replace(EXPERTS, moe_every=2)
    layout = dict(tp=2, micro_batch=b)
    def while_it_runs(model):
        one = estimate(model, Parallel(**layout, recompute=part), SYSTEM, 24, TRAINED)
        return one.stats['activations_GB'] - kept_and_rerun(model, layout, part)[0]
    small, large, found = map(while_it_runs, (dense, EXPERTS, mixed))
    assert not close(small, large) and close(found, max(small, large))


# kernels that are launched

LAUNCHED = {   # (forward, backward), beside products
    'a product': (layers.linear('x', 4, 6, 8), 0, 0),
    'a product with a bias': (layers.linear('x', 4, 6, 8, biased=1.), 0, 1),   # its gradient
    'a product by a cast weight': (layers.linear('x', 4, 6, 8, cast_in=1), 1, 1),
    'a product in 8 bits': (layers.linear('x', 4, 6, 8, precision='fp8'), 1, 1),   # casts
    'a bias': (layers.bias('x', 4, 6), 1, 1),
    'no bias': (layers.bias('x', 4, 6, Units(), 0.), 0, 0),
    'gelu': (layers.gelu('x', 24), 1, 2), 'dropout': (layers.dropout('x', 24), 1, 1),
    'softmax': (layers.softmax('x', 2, 3, 4, 6), 1, 1),
    'a norm': (layers.layernorm('x', 4, 6), 1, 1),
    'a fused norm': (layers.fused_norm('x', 4, 6), 1, 2),   # gradients of rows, and of vectors
    'a norm in steps': (layers.eager_norm('x', 4, 6), 6, 10),
    'a LayerNorm of PyTorch': (layers.eager_norm('x', 4, 6, vectors=2), 1, 2),
    'a norm of 32 bits': (layers.autocast_norm('x', 4, 6, 3), 4 + 3, 11 + 3 + 2),
    'a norm of both': (layers.eager_norm('x', 4, 6, kernels=layers.EAGER_NORM_MIXED), 6, 14),
    'a LayerNorm of 32 bits': (layers.autocast_norm('x', 4, 6, 1, vectors=2), 1 + 1, 2 + 1),
    'dropout and sum, in 32 bits': (layers.autocast_add('x', 4, 6), 2, 3),
    'a sum in 32 bits': (layers.autocast_add('x', 4, 6, masked=0.), 1, 2),
    'a rotation in steps': (layers.eager_rotation('x', 24), 2 * 5, 2 * 9),   # queries and keys
    'no rotation': (layers.eager_rotation('x', 0), 0, 0),
    'a gate apart': (layers.eager_gelu('x', 24), 2, 4),
    'a GELU in steps': (layers.new_gelu('x', 24), 8, 11),
    'a GELU in steps, of 32 bits': (layers.new_gelu('x', 24, mixed=True), 10, 15),
    'results weighed in steps': (layers.eager_weighing('x', 24), 1, 3),
    'softmax in steps': (layers.eager_softmax('x', 2, 3, 4, 6, masked=0.), 4, 5),
    'dropout and sum': (layers.dropout_add('x', 4, 6), 1, 1),
    'transposes': (layers.transposes('x', 4, 6), 2, 2),
    'fused softmax': (layers.fused_softmax('x', 2, 3, 4, 6), 2, 2),   # it, and dropout
    'logits': (layers.logits('x', 2, 3, 3, 4, 6, 5), 0, 0),
    'attend': (layers.attend('x', 2, 3, 3, 4, 6, 5), 0, 0),
    'fused attention': (layers.fused_attention('x', 2, 3, 3, 4, 6, 5), 1, 2)}


@pytest.mark.parametrize('name', LAUNCHED)
def test_launches_of_operations(name):
    op, there, back = LAUNCHED[name]
    assert (op.forward.launches, op.backward.launches) == (there, back)


def test_bytes_of_kernels_of_one_step_each():
    "By hand, a number: what each kernel of PyTorch reads and writes, and what autograd keeps."
    def moved(op): return op.forward.nbytes, op.backward.nbytes
    x = 4 * 6 * 1e-9
    norm = layers.eager_norm('x', 4, 6)
    # float 6, pow 8, mean 4, times 8, cast 6, weight 4; the input in 32 bits is kept, too
    assert close(moved(norm)[0], 36 * x) and close(moved(norm)[1], 84 * x)
    assert close(norm.activations, (2 + 4) * x) and norm.frees == (('layernorm', 4 * x),)
    whole = layers.eager_norm('x', 4, 6, vectors=2)   # a LayerNorm is one kernel, and keeps less
    assert close(whole.activations, 2 * x) and moved(whole) == moved(layers.fused_norm('x', 4, 6))
    # SiLU reads and writes, the product reads both and writes; gradients of each read two more
    gate = layers.eager_gelu('x', 24)
    assert close(moved(gate)[0], (4 + 6) * x) and close(moved(gate)[1], (6 + 6 + 6) * x)
    assert close(gate.activations, 3 * 2 * x)
    # x / 2 * (1 + tanh(c (x + d x^3))): six of one number read and written, a sum and a product;
    # back through the product twice, the half, the tanh, c, d and the cube (four), and two sums
    steps = layers.new_gelu('x', 24)
    assert close(moved(steps)[0], (6 * 4 + 2 * 6) * x)
    assert close(moved(steps)[1], (2 * 6 + 4 + 6 + 4 + 4 + (4 + 4 + 6) + 2 * 6) * x)
    assert close(steps.activations, 4 * 2 * x)   # x, tanh, x / 2, 1 + tanh
    # a product; its gradients by both sides, the weights' summed over columns
    weighed = layers.eager_weighing('x', 24)
    assert close(moved(weighed)[0], 4 * x) and close(moved(weighed)[1], (4 + 6 + 2) * x)
    assert close(weighed.activations, 2 * x)
    assert close(weighed.forward.vector, 24e-12) and close(weighed.backward.vector, 3 * 24e-12)
    # q * cos + cat(-q2, q1) * sin: products 4 each, negation of a half 2, cat 4, sum 6; backward
    # the products, the negation, twice a half into zeros (2 + 2), and two sums of 6
    turned = layers.eager_rotation('x', 24)
    assert close(moved(turned)[0], 20 * x) and close(moved(turned)[1], 30 * x)
    assert turned.activations == 0
    for work in (turned.forward, turned.backward):   # of a pair four products and two sums
        assert close(work.vector, 6 * 12e-12)
    scores = layers.eager_softmax('x', 2, 3, 4, 6, masked=0.)
    s = 2 * 3 * 4 * 6 * 1e-9
    assert close(scores.forward.scores, 21 * s) and close(scores.backward.scores, 33 * s)
    assert close(scores.activations, (2 + 4) * s)
    dropped = layers.eager_softmax('x', 2, 3, 4, 6)
    assert close(dropped.forward.scores, (21 + 5) * s) and close(dropped.activations, 7 * s)


def test_a_gelu_in_steps_is_software_that_fuses_none():
    "Only where a model's code writes it so and nothing fuses it; a gate's kernel is another."
    def acts(software, **about):
        model = Model(512, 128, 8, 2, **about)
        one = estimate(model, Parallel(), 'H100-80GB', 8, 'calibrated', software)
        return one.layers.set_index('layer').loc['act1', ['activation_buffer', 't_fwd']].tolist()
    plain, steps = (acts('Transformers', activation=name) for name in ('gelu', 'gelu_new'))
    assert close(steps[0], 14 / 2 * plain[0]) and steps[1] > 5 * plain[1]
    assert acts('Megatron-Core', activation='gelu_new') == acts('Megatron-Core')
    gated = dict(gated_mlp=True)
    assert acts('Transformers', activation='gelu_new', **gated) == acts('Transformers', **gated)


def test_who_weighs_results_of_experts_saves_them():
    "A row for each copy of a token, 2 bytes a number; else what the last products read is weighed."
    def saved(model, **knows):
        software = dict(name='x', knows=knows)
        one = estimate(model, Parallel(), 'H100-80GB', 8, 'calibrated', software)
        return one.layers.set_index('layer').activation_buffer
    plain, apart = saved(EXPERTS), saved(EXPERTS, weighs_results=True)
    tokens = EXPERTS.seq_len * EXPERTS.experts_per_token
    assert close(apart['expert-weighing'], 2e-9 * tokens * EXPERTS.embed_dim)
    assert apart.drop('expert-weighing').equals(plain)   # a gate's kernel weighs, too
    without = dataclasses.replace(EXPERTS, gated_mlp=False)
    plain, apart = saved(without), saved(without, weighs_results=True)
    less = plain['expert-act'] - apart['expert-act']
    assert close(less, 2e-9 * tokens * EXPERTS.expert_dim)


@pytest.mark.parametrize('micro_batches, adds', [(1, 0), (4, .75)])
def test_launches_under_autocast(micro_batches, adds):
    "A kernel for each cast, sum and mask: there as many as back, and one for a sum of gradients."
    launched = lambda *works: [work.launches for work in works]
    product = layers.linear('x', 4, 6, 8)
    there, back = launched(product.forward, product.backward)
    cast = layers.autocast_weight(product.forward, product.backward, 48, micro_batches)
    assert launched(*cast) == [there + 1, back + 1 + adds]
    for masked in (0, 1):
        op = layers.autocast_add('x', 4, 6, masked=masked)
        assert launched(op.forward, op.backward) == [1 + masked, 2 + masked]


def test_bytes_under_autocast():
    "By hand, a number: what has 32 bits is cast to 16 by each product that reads it."
    def moved(op): return op.forward.nbytes, op.backward.nbytes
    x = 4 * 6 * 1e-9
    for products in (1, 3):
        norm = layers.autocast_norm('x', 4, 6, products)
        # square 8, mean 4, times 8, weight 8; backward 12 and 4, 8, 8, 12 and 4, 4, 8, 8, 12, 12;
        # a cast 6, and one of its gradient 6; of several gradients a sum 12
        casts = 6 * products, 6 * products + 12 * (products - 1)
        assert np.allclose(moved(norm), [(28 + casts[0]) * x, (92 + casts[1]) * x])
        copies = 2 * (products - 1)   # one is the product's own
        assert close(norm.activations, (4 + 4 + copies) * x)
        assert norm.frees == (('layernorm', norm.activations - 4 * x),)
        whole = layers.autocast_norm('x', 4, 6, products, vectors=2)   # one kernel
        assert np.allclose(moved(whole), [(8 + casts[0]) * x, (16 + casts[1]) * x])
        assert close(whole.activations, (4 + copies) * x)
    # 16 bits times a weight of 32: cast 6, 8, 4, 8, cast 6, weight 2 + 4; backward 10 and 4 of the
    # weight, 8 and a cast 6 through it, a cast 6, 8, 12 and 4, 4, 8, 8, 12, 12, a cast 6
    mixed = layers.eager_norm('x', 4, 6, kernels=layers.EAGER_NORM_MIXED)
    assert np.allclose(moved(mixed), [38 * x, 108 * x])
    # casts of x and of what the next product reads, 6 each; the half stays in 16 bits
    steps = layers.new_gelu('x', 24, mixed=True)
    assert close(moved(steps)[0], (6 + 5 * 8 + 10 + 4 + 10 + 6) * x)
    # a cast 6; both sides of the product 12, a cast 6, 10; the half 4; the tanh 12, c 8, a cast 6,
    # d 8, the cube 8, 8, 12, a cast 6; two sums of 6
    assert close(moved(steps)[1], (6 + 28 + 4 + 12 + 8 + 6 + 8 + 28 + 6 + 12) * x)
    assert close(steps.activations, (4 + 4 + 2 + 4) * x)
    # the stream and what is added to it; its gradient cast, and that of both ways summed
    assert np.allclose(moved(layers.autocast_add('x', 4, 6, masked=0.)), [10 * x, 18 * x])
    dropped = layers.autocast_add('x', 4, 6)
    assert np.allclose(moved(dropped), [15 * x, 23 * x]) and close(dropped.activations, x)
    for work in (dropped.forward, dropped.backward): assert close(work.vector, 2e-3 * x)
    # q * cos + cat(-q2, q1) * sin, cosines and sines in 32 bits: 6, 6, 12 and back to 16 bits 6
    turned = layers.eager_rotation('x', 24, steps=layers.EAGER_ROTATION_MIXED)
    assert np.allclose(moved(turned), [(6 + 2 + 4 + 6 + 12 + 6) * x, 56 * x])
    # queries in 32 bits too: twice as in 16, and a cast each way
    turned = layers.eager_rotation('x', 24, steps=layers.EAGER_ROTATION_32)
    assert np.allclose(moved(turned), [(2 * 20 + 6) * x, (2 * 30 + 6) * x])
    # of a weight: to 16 bits 6, its gradient to 32 bits 6, added 12 in all micro-batches but one
    plain, w = layers.linear('x', 4, 6, 8, batch=5), 5 * 6 * 8 * 1e-9
    for micro_batches, adds in ((1, 0), (4, 3)):
        cast = layers.linear('x', 4, 6, 8, batch=5, cast_in=micro_batches)
        more = [one - other for one, other in zip(moved(cast), moved(plain))]
        assert np.allclose(more, [6 * w, (6 + 12 * adds / micro_batches) * w])
        assert cast.weights == plain.weights


@pytest.mark.parametrize('waits', ['compute', 'memory', 'launch', 'network'])
def test_what_an_operation_waits_for(waits):
    "The longest of four, of both passes together; arithmetic is counted without its launch."
    own = dict.fromkeys(('compute', 'memory', 'launch', 'network'), 4.) | {waits: 5.}
    each = [estimates.Pass((own['compute'] + own['launch']) * share, 0., own['network'] * share,
                           own['launch'] * share, own['memory'] * share) for share in (.3, .7)]
    assert modules.bound_by(*each) == waits


def job_at(model, a=TRAINED, **layout):  # CountedJob
    "A job to count."
    alone = dict(nvlink_tp=1, nvlink_cp=1, nvlink_pp=1, nvlink_dp=1)
    given = Parallel(micro_batch=b, **alone | layout)
    return job_of(vars(settled(given, SYSTEM, a)), model, SYSTEM, 24, a)


@pytest.mark.parametrize('recompute', ['none', 'full', 'full:1', 'mlp'])
@pytest.mark.parametrize('model, dropout, spared', [
    (GPT, False, 1), (LLAMA, False, 1), (LATENT, False, 1),
    (GPT, True, 0),          # its mask is made again, of what the product gives
    (EXPERTS, False, 0)])    # what weighs results of experts takes them
def test_a_checkpoint_that_stops_early(model, dropout, spared, recompute):
    "The last product runs again with nothing: its input is the last that is saved."
    found = []
    for stops in (True, False):
        known = Parameters(software=Costs(stops_early=stops, dropout=dropout))
        job = job_at(model, dataclasses.replace(TRAINED, measured=known), recompute=recompute)
        found.append(modules.count(job).matrix)
    again = {'none': 0, 'full': 2, 'full:1': 1, 'mlp': 2}[recompute]   # of two layers
    last = b * l * (2 * model.mlp_dim - 1) * e / 1e12
    assert close(found[1] - found[0], again * spared * last) or again * spared == 0
    assert (found[1] > found[0]) == (again * spared > 0)


def half_layers(model):  # Model
    "Its mixers and its feed-forward halves as layers of their own, as in Nemotron-H."
    (block, _), nothing = model.blocks[0], blocks.Nothing()
    known = dict(biases=model.bias_kind, norm=model.norm_kind)
    one, other = (dataclasses.replace(block, **{half: nothing}, **known)
                  for half in ('ffn', 'mixer'))
    return dataclasses.replace(model, layers=((one, 1), (other, 1)), name='halves')


def test_a_checkpoint_of_half_a_layer_stops_early():
    "Each half has a last product."
    found = []
    for stops in (True, False):
        known = Parameters(software=Costs(stops_early=stops, dropout=False))
        job = job_at(half_layers(LLAMA), dataclasses.replace(TRAINED, measured=known),
                     recompute='full')
        found.append(modules.count(job).matrix)
    assert close(found[1] - found[0], b * l * ((2 * f - 1) * e + (2 * e - 1) * e) / 1e12)


@pytest.mark.parametrize('model', [LLAMA, LATENT, dataclasses.replace(SHARED, kv_heads=2),
                                   dataclasses.replace(EXPERTS, kv_heads=2)])
def test_the_norm_of_half_a_layer_is_its_own(model):
    "It gathers what its half reads whole, and is cast for the products that it has."
    sent, cast = {}, {}
    for name, m in (('whole', model), ('halves', half_layers(model))):
        kinds = job_at(m, Assumptions(**BARE | MENDED_SLIPS), tp=2).kinds
        sent[name] = sorted((x.kind, x.volume) for kind in kinds for op in kind.operations
                            for work in (op.forward, op.backward) for x in work.messages)
        known = Parameters(software=Costs(autocast=True, eager_norms=True, dropout=False))
        kinds = job_at(m, dataclasses.replace(TRAINED, measured=known)).kinds
        norms = [op for kind in kinds for op in kind.operations if op.name in ('ln1', 'ln2')]
        cast[name] = sorted(op.activations for op in norms)
    assert sent['whole'] == sent['halves'] and cast['whole'] == cast['halves']


@pytest.mark.parametrize('model, tp, numbers', [
    (dataclasses.replace(GPT, learned_positions=True), 1, 0), (GPT, 1, (4 + 4) * 12),
    (LLAMA, 1, (4 + 2) * 12), (LLAMA, 2, (2 + 1) * 12), (LATENT, 1, (4 + 1) * 4)])
def test_what_is_turned(model, tp, numbers):
    "Queries and keys of this GPU; of latent attention the part that carries the position."
    assert 'rotary' not in {op.name for op in job_at(model, tp=tp).operations}   # on the way
    eager = dataclasses.replace(TRAINED, measured=Parameters(
        software=Costs(eager_rotation=True)))
    turned, = (op for op in job_at(model, eager, tp=tp).operations if op.name == 'rotary')
    assert close(turned.forward.nbytes, 20 * b * l * numbers / 1e9)
    assert turned.forward.launches == 10 * (numbers > 0)


@pytest.mark.parametrize('model, readers', [
    (GPT, (1, 1)), (LLAMA, (3, 2)), (LATENT, (2, 2)), (EXPERTS, (3, 2)),
    (dataclasses.replace(GPT, kv_heads=2), (3, 1)), (CONV, (1, 1)), (BOTH_MIXERS, (4, 2))])
def test_what_autocast_casts(model, readers):
    "The stream's norms for each product, each matrix, the vocabulary; others ask for none."
    model = dataclasses.replace(model, vocab=96)
    known, eager = (Parameters(software=Costs(autocast=way, eager_norms=True, dropout=False))
                    for way in (True, False))
    jobs = [job_at(model, dataclasses.replace(TRAINED, measured=k)) for k in (known, eager)]
    cast, plain = ({op.name: op for op in job.operations} for job in jobs)
    n, e_bytes = jobs[0].micro_batches, 1e-9 * b * l * e
    assert n > 1
    for name, products in zip(('ln1', 'ln2'), readers):
        own = layers.autocast_norm(name, b * l, e, products, jobs[0].units,
                                   jobs[0].here.norm_vectors)
        assert cast[name].forward.nbytes == own.forward.nbytes
        assert cast[name].backward.launches == own.backward.launches
    for name in {'qkv', 'vproj', 'fc1', 'fc2', 'q-up', 'expert-fc1'} & {*cast}:
        weight = plain[name].in_matrices / 2   # 1e9 numbers
        more = [getattr(cast[name], way).nbytes - getattr(plain[name], way).nbytes
                for way in ('forward', 'backward')]
        assert np.allclose(more, [6 * weight, (6 + 12 * (n - 1) / n) * weight], rtol=1e-9)
        assert not any(p.adds for p in cast[name].backward.products), 'a kernel apart adds'
    assert close(cast['dpr2'].forward.nbytes, 10 * e_bytes)
    (look, norm, output), others = ([op for end in blocks.end_operations(job) for op in end]
                                    for job in jobs)
    assert norm.forward.launches == (5 if jobs[0].here.norm_vectors == 1 else 2)
    words = 96 * e * 1e-9
    assert close(output.forward.nbytes - others[2].forward.nbytes, 6 * words)
    assert close(look.backward.nbytes - others[0].backward.nbytes, (4 + 12 * (n - 1) / n) * words)
    held = [kept_and_rerun(model, BOTH, 'full', measured=k)[0] for k in (known, eager)]
    assert close(held[0], 2 * held[1]), 'the input of a layer is the stream'
    assert close(modules.boundary_of(jobs[0]), 2 * modules.boundary_of(jobs[1]))
    apart = dataclasses.replace(TRAINED, fused_kernels=False)
    one, two = ([op.forward.nbytes for op in job_at(
        model, dataclasses.replace(apart, measured=k)).operations] for k in (known, eager))
    assert one == two


def test_autocast_leaves_what_does_not_train():
    "Beside adapters the weights that stay are read as they are."
    def moved(autocast, adapters):
        known = Parameters(software=Costs(autocast=autocast))
        job = job_at(LLAMA, dataclasses.replace(TRAINED, measured=known), adapters=adapters)
        return {op.name: op.forward.nbytes for op in job.operations}['fc1']
    assert moved(True, 'lora:4') == moved(False, 'lora:4')
    assert moved(True, 'none') > moved(False, 'none')


@pytest.mark.parametrize('normed, forward, backward', [(False, 36, 56), (True, 46, 66)])
def test_what_is_turned_under_autocast(normed, forward, backward):
    "Queries and keys have 32 bits after norms of their own, whose weights have 32."
    known = Parameters(software=Costs(autocast=True, eager_norms=True, eager_rotation=True))
    model = dataclasses.replace(LLAMA, qk_norm=normed)
    own = {op.name: op for op in job_at(
        model, dataclasses.replace(TRAINED, measured=known)).operations}
    numbers = 1e-9 * b * l * (4 + 2) * 12
    assert close(own['rotary'].forward.nbytes, forward * numbers)
    assert close(own['rotary'].backward.nbytes, backward * numbers)
    if normed: assert close(own['qk-norm'].backward.nbytes, 108 * numbers)


def test_launches_of_experts_and_ends():
    "A router scores, picks, weighs; copies are sorted, placed and sent, both ways alike."
    job = job_at(dataclasses.replace(EXPERTS, vocab=96), dp=2, ep=2)
    own = {op.name: (op.forward.launches, op.backward.launches) for op in job.operations}
    assert own['router'] == (5, 4) and own['dispatch'] == own['combine'] == (3, 3)
    assert own['expert-fc1'] == own['expert-fc2'] == (0, 0) and own['expert-act'] == (1, 2)
    (look,), (norm, output) = blocks.end_operations(job)
    assert [(op.forward.launches, op.backward.launches) for op in (look, norm, output)] == [
        (3, 3), (1, 2), (5, 4)]


@pytest.mark.parametrize('cp', [1, 2, 4])
def test_launches_of_a_ring(cp):
    "Attention is launched for the keys of each GPU, and two kernels merge what is new."
    for context, steps in (('ring', cp), ('allgather', 1), ('ulysses', 1)):
        op, = (op for op in job_at(GPT, cp=cp, context=context).operations if op.name == 'fusedla')
        found = op.forward.launches, op.backward.launches
        assert found == (steps + 2 * (steps - 1), 2 * steps + 2 * (steps - 1))


# domains that a token's copies meet

def chosen_by(gate, number, each):  # list of tuples
    "Every choice of experts that a gate makes, each as often as others."
    if gate == 'any': return [*itertools.combinations(range(number), each)]
    return [[(token * each + i) % number for i in range(each)] for token in range(number)]


@pytest.mark.parametrize('gate, each', [('any', n) for n in (1, 2, 3, 6)] + [
    ('in turn', n) for n in (1, 2, 4, 8)])
@pytest.mark.parametrize('ep, near', [(2, 1), (4, 1), (4, 2), (8, 2), (8, 4), (8, 8)])
def test_places_that_copies_meet(ep, near, gate, each):
    "Every choice of experts, one by one: domains, and GPUs, that a token's copies go to."
    crowd = 1.5   # what the busiest GPU receives over the mean
    a = dataclasses.replace(TRAINED, experts_in_turn=gate == 'in turn', expert_imbalance=crowd)
    model = dataclasses.replace(EXPERTS, experts=8, experts_per_token=each)
    job = job_at(model, a, dp=8, ep=ep, nvlink_dp=near)
    chosen = chosen_by(gate, 8, each)
    gpus = [{expert * ep // 8 for expert in some} for some in chosen]
    met = [len({gpu // near for gpu in some}) for some in gpus]
    others = (1 - near / ep) * sum(met) / len(met)   # where a token is, is as likely anywhere
    assert math.isclose(blocks.domains_met(job, job.here.ffn), others, abs_tol=1e-15)
    sent = job._replace(dispatcher='once').operations
    message, = (op.forward.messages[0] for op in sent if op.name == 'dispatch')
    one = 2e-9 * b * l * e * crowd   # a copy of each token
    assert math.isclose(message.far, one * others, abs_tol=1e-18)   # one to each domain
    each_gpu = sum(map(len, gpus)) / len(gpus)   # and there one to each GPU
    assert math.isclose(message.volume, one * each_gpu, rel_tol=1e-12)


@pytest.mark.parametrize('ep', [1, 2, 4])
def test_who_gets_a_token_once_has_a_slice_of_its_experts(ep):
    "With features of experts shared out: GPUs of one slice gather what arrives, not its copies."
    model = dataclasses.replace(EXPERTS, experts=8, experts_per_token=6)
    gpus = [len({expert * ep // 8 for expert in some}) for some in chosen_by('any', 8, 6)]
    for way, each in (('alltoall', 6), ('once', sum(gpus) / len(gpus))):
        own = {op.name: op for op in job_at(model, dp=8, ep=ep, etp=2, dispatcher=way).operations}
        for op, kind in ((own['dispatch'], 'allgather'), (own['combine'], 'reducescatter')):
            message, = (x for x in op.forward.messages if x.group == 'etp')
            assert message.kind == kind and close(message.volume, 2 * 2e-9 * b * l * e * each)


@pytest.mark.parametrize('experts, again', [(8, True), (4, False)])
def test_what_arrives_for_one_expert_is_in_order(experts, again):
    "Copies are sorted by GPU; where they arrive, by expert, if a GPU has several of them."
    model = dataclasses.replace(EXPERTS, experts=experts, experts_per_token=2)
    dispatch, = (op for op in job_at(model, TRAINED, dp=4, ep=4).operations
                 if op.name == 'dispatch')
    vectors = b * l * (1 + 2 + 2 * 2 * again)   # read; written; what arrived read and written
    assert close(dispatch.forward.nbytes, 2e-9 * e * vectors)


def test_a_library_that_sorts_moves_the_same():
    "One call of it is two kernels: only the host has less to launch."
    apart, joined = (job_at(EXPERTS, dp=4, ep=4, dispatcher=way).operations
                     for way in ('once', 'once_sorted'))
    assert apart == joined


def test_launches_of_biases_are_those_of_each_expert():
    "Weighed and added; two products, two sums and a cast for each; and joined, and cast, once."
    model = dataclasses.replace(EXPERTS, biases='mlp')
    for ep in (1, 4):
        own = {op.name: op for op in job_at(model, dp=4, ep=ep).operations}['expert-bias']
        here = n / ep
        assert (own.forward.launches, own.backward.launches) == (2 * here + 2, 5 * here + 2)
    bare = job_at(model, dataclasses.replace(TRAINED, fused_kernels=False), dp=4).operations
    assert 'expert-bias' not in {op.name for op in bare}   # the published model has none


# norms

def test_one_norm_of_a_layer_is_the_first():
    "Attention and the MLP read the same normed rows: the second norm is not computed."
    one, two = (job_at(dataclasses.replace(GPT, layer_norms=number), tp=2).operations
                for number in (1, 2))
    for x, y in zip(one, two, strict=True):
        if x.name == 'ln2': assert (x.forward, x.backward) == (Work(), Work()) and not x.weights
        elif x.name == 'fc1': assert x._replace(activations=y.activations) == y
        elif x.name == 'vproj': assert without_messages(x) == without_messages(y)
        else: assert x == y


def without_messages(op):
    "The same, by itself on its GPU."
    return op._replace(**{way: getattr(op, way)._replace(messages=())
                          for way in ('forward', 'backward')})


@pytest.mark.parametrize('sharded', [False, True])
@pytest.mark.parametrize('model, norms', [(GPT, 1), (GPT, 2), (GPT, 4), (SHARED, 1)],
                         ids=['one norm', 'two norms', 'four norms', 'experts'])
def test_halves_side_by_side_send_one_sum(model, norms, sharded):
    "Attention's output waits for the MLP's; experts give whole rows, and a norm needs the sum."
    own = dataclasses.replace(model, layer_norms=norms, side_by_side=True)
    apart = dataclasses.replace(model, layer_norms=norms)
    ops, others = (job_at(m, tp=2, sequence_sharded=sharded).operations for m in (own, apart))
    once = model is GPT and norms <= 2
    for x, y in zip(ops, others, strict=True):
        if x.name != 'vproj' or norms == 1: assert x == y   # one norm means that they are
        sent = [m for way in (x.forward, x.backward) for m in way.messages if m.volume]
        if x.name == 'vproj': assert bool(sent) != once
        if x.name == 'fc2': assert [m.kind for m in sent] == (
            ['reducescatter', 'allgather'] if sharded else ['allreduce'])
    assert own.parameters == apart.parameters


@dataclasses.dataclass(frozen=True)
class Mixer(blocks.Half):
    "Two products, and all of its operations under names of their own."
    def operations(self, job):
        strategy, width = blocks.STRATEGIES[job.strategy], e / job.tp
        found = [strategy.column(job, 'my-in', width), strategy.row(job, 'my-out', width)]
        return found + [op._replace(name=f'my-{op.name}') for op in blocks.after_mixer(job)]


@pytest.mark.parametrize('side_by_side', [False, True])
def test_no_sum_of_halves_asks_for_names(side_by_side):
    "What a mixer gives waits for the MLP's where both halves are sent as one."
    (block, depth), = GPT.blocks
    mine = dataclasses.replace(block, mixer=Mixer(), side_by_side=side_by_side)
    own = dataclasses.replace(GPT, layers=((mine, depth),), name='mine')
    _, out, *_ = job_at(own, tp=2).operations
    assert out.name == 'my-out' and bool(out.forward.messages) != side_by_side


def test_no_checkpoint_that_stops_early_asks_for_names():
    "A layer that is a mixer alone ends in the norm of the next one."
    alone = blocks.Block(Mixer(), blocks.Nothing(), biases='none', norm='rmsnorm')
    own = dataclasses.replace(LLAMA, layers=((alone, 2),), name='mine')
    known = Parameters(software=Costs(stops_early=True, dropout=False))
    job = job_at(own, dataclasses.replace(TRAINED, measured=known), recompute='full')
    names = [op.name for op in job.operations]
    layer, = modules.count(job).kinds
    assert names[layer.spared[0]] == 'my-out' and names[-1] == 'my-ln2'
    assert len(names) - 1 not in layer.spared


def test_no_frozen_table_asks_for_its_name():
    "Nothing comes before it, so it has no backward pass; what is no table has."
    table = blocks.embedding(job_at(GPT))._replace(name='my-table')
    assert blocks.frozen(table, 2., 0.).backward == Work()
    other = table._replace(looks_up=False)
    assert blocks.frozen(other, 2., 0.).backward == table.backward != Work()


@pytest.mark.parametrize('precision, kept', [('bf16', (2, 0, 0)), ('fp8', (1, 1, 2))])
@pytest.mark.parametrize('layout', [{}, dict(tp=2), dict(tp=2, cp=2)])
def test_what_one_norm_gives_is_kept_once(precision, kept, layout):
    "Bytes of a number: one tensor for both halves; casts to 8 bits are each product's own."
    a = dataclasses.replace(TRAINED, precision=precision)
    for model, names in ((GPT, ('qkv', 'fc1')), (SHARED, ('qkv', 'shared-fc1', 'router'))):
        job = job_at(dataclasses.replace(model, layer_norms=1), a, **layout)
        own = {op.name: op for op in job.operations}
        for name, number in zip(names, kept):
            assert close(own[name].activations, 1e-9 * number * job.own * e)


@pytest.mark.parametrize('model, readers', [
    (BOTH_MIXERS, ('qkv', 'state-in', 'fc1')),
    (dataclasses.replace(GPT, layer_norms=1), ('qkv', 'fc1'))], ids=['mixers', 'halves'])
def test_products_that_read_the_same_rows_gather_them_each(model, readers):
    "By themselves, there and for the gradient of the weight; else where the norm gives the rows."
    each, once = (job_at(model, a, tp=2).operations for a in
                  (TRAINED, dataclasses.replace(TRAINED, inputs_sharded=False)))
    sent = lambda op, way: [m.kind for m in getattr(op, way).messages if m.volume]
    own = {op.name: op for op in each}
    for name in readers:
        assert sent(own[name], 'forward') == ['allgather'], name
        assert sent(own[name], 'backward') == ['allgather', 'reducescatter'], name
    gathers = lambda ops: [op.name for op in ops if 'allgather' in sent(op, 'forward')]
    assert sorted(gathers(each)) == sorted(readers)
    assert sorted(gathers(once)) == ['ln1', 'ln2']


@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('number, after', [(1, ()), (2, ()), (3, ('vproj',)),
                                           (4, ('vproj', 'fc2'))])
def test_more_norms_follow_a_half(number, after, fused):
    "The third follows attention, the fourth the MLP: each right before its sum with the stream."
    a = dataclasses.replace(TRAINED, fused_kernels=fused)
    own = job_at(dataclasses.replace(GPT, layer_norms=number), a).operations
    names = [op.name for op in own]
    plain = [op.name for op in job_at(GPT, a).operations]
    assert [name for name in names if name[-4:] != 'norm'] == plain
    for half, following in (('vproj', 'dpr1' if fused else 'dpr'), ('fc2', 'dpr2')):
        assert (f'{half}-norm' in names) == (half in after)
        if half not in after: continue
        i = names.index(f'{half}-norm')
        assert names[i - 1] == (half if fused else f'{half}-bias')
        assert close(own[i].forward.nbytes, own[names.index('ln2')].forward.nbytes)


def test_ways_to_send_tokens_in_a_column():
    "Rows of several dispatchers send what each sends by itself; who sends nothing has zeros."
    ways = ['alltoall', 'once', 'allgather', 'once_sorted']
    layout = dict(tp=2, dp=4, ep=4, etp=2, nvlink_tp=2, nvlink_dp=2)
    each = [job_at(EXPERTS, **layout, dispatcher=way) for way in ways]
    together = each[0]._replace(dispatcher=np.array(ways))
    whole = {op.name: op for op in together.operations}
    for i, job in enumerate(each):
        at = lambda x, i=i: np.broadcast_to(x, 4)[i]
        for op in job.operations:
            for way in ('forward', 'backward'):
                assert close(at(getattr(whole[op.name], way).nbytes), getattr(op, way).nbytes)
                sent = {(m.kind, m.group): m for m in getattr(op, way).messages}
                for m in getattr(whole[op.name], way).messages:
                    own = sent.get((m.kind, m.group))
                    assert close(at(m.volume), own.volume if own else 0)
                    if m.far is None: continue
                    far = exchanged(own.volume, own.far, 4, 2)[1] if own else 0
                    assert close(at(m.far), far)


@pytest.mark.parametrize('sharded', [True, False])
@pytest.mark.parametrize('whole', [True, False])
def test_messages_of_the_loss(sharded, whole):
    "Three sums of a number in 32 bits for each token; or all logits, where every GPU has them all."
    measured = Parameters(software=Costs(whole_logits=whole))
    a = dataclasses.replace(TRAINED, sequence_sharded=sharded, measured=measured)
    _, (_, op, *_) = blocks.end_operations(job_at(dataclasses.replace(GPT, vocab=96), a, tp=2))
    GB = 2e-9 * b * l
    sent = lambda work: [(m.kind, round(m.volume / GB, 9)) for m in work.messages]
    loss = [('allgather', 96)] if whole else [('allreduce', 2)] * 3
    stream = [('allgather', e)] if sharded else []
    assert op.name == 'output' and sent(op.forward) == stream + loss
    assert sent(op.backward) == [('allreduce', e)]


def test_a_token_further_ahead():
    "An embedding, two norms side by side, a product that joins, a norm; then the output once more."
    model = dataclasses.replace(GPT, vocab=96, norm='rmsnorm', mtp_layers=2)
    (first, *_), (_, output, *more) = blocks.end_operations(job_at(model))
    names = ['mtp-embedding', 'mtp-join', 'mtp-norms', 'mtp-norm', 'output']
    assert [op.name for op in more] == names * 2
    T, (look_up, join, norms, norm, again) = b * l, more[:5]
    assert look_up == first._replace(name='mtp-embedding', weights=0.)
    assert join.forward.products[0][:3] == (T, e, 2 * e)
    for op, rows in ((norms, 2 * T), (norm, T)):
        assert close(op.forward.nbytes, 4e-9 * rows * e)
        assert close(op.backward.nbytes, 8e-9 * rows * e)
        assert close(op.forward.vector, 9e-12 * rows * e)
    assert close(norms.weights, 2 * norm.weights) and close(norm.weights, 2e-9 * e)
    assert close(join.weights, 2e-9 * 2 * e * e)
    assert again == output._replace(weights=0.)


@pytest.mark.parametrize('sharded', [True, False])
def test_messages_of_a_token_further_ahead(sharded):
    """Of a layer that reads two streams on tp GPUs: both gathered, its columns gathered too.

    As any product by columns; what it gives is wanted whole (Megatron-LM gathers it), and of that
    a GPU goes on with its own rows."""
    model = dataclasses.replace(GPT, vocab=96, mtp_layers=1)
    a = dataclasses.replace(TRAINED, sequence_sharded=sharded)
    _, (_, _, words, join, *_) = blocks.end_operations(job_at(model, a, tp=2))
    GB = 2e-9 * b * l * e
    sent = lambda work: [(m.kind, round(m.volume / GB, 9)) for m in work.messages]
    assert sent(words.forward) == [('allreduce', 1)] and not words.backward.messages
    if sharded:
        assert sent(join.forward) == [('allgather', 2), ('allgather', 1)]
        assert sorted(sent(join.backward)) == [
            ('allgather', 1), ('allgather', 2), ('reducescatter', 2)]
    else:
        assert sent(join.forward) == [('allgather', 1)]
        assert sent(join.backward) == [('allreduce', 2)]


@pytest.mark.parametrize('model', [GPT, LLAMA, SHARED], ids=['gpt', 'llama', 'experts'])
def test_figures_of_a_model(model):
    "What one GPU computes of one sample, up to the second norm by attention, then by the MLP."
    table = estimate(model, Parallel(), SYSTEM, 1, PAPER).layers
    TFLOP = (table.flops_fwd + table.flops_bwd).tolist()
    first = table.layer.tolist().index('ln2') + 1
    attention, others = sum(TFLOP[:first]), sum(TFLOP[first:])
    found = modules.model_figures(model, SYSTEM, PAPER)
    assert close(found['mlp_to_attention'], others / attention)
    assert close(found['PFLOP_per_sample'], model.depth * (attention + others) / 1000)
    assert close(found['parameters_B'], model.depth * table.weights_mem.sum() / 2)
