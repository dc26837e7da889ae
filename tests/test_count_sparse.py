"Attention to some of the keys, counted a second time: by hand, and pair by pair."
from dataclasses import replace

import numpy as np
import pytest

from mixers import SYSTEM, TRAINED, b, close, e, flop, l, model_with, operations
from transformer_perf import Model, Parallel, estimate, search
from transformer_perf.blocks import MLP, Attention, Block, LatentAttention
from transformer_perf.models import as_model
from transformer_perf.sparse_attention import BlockSparse, IndexedAttention

a, K = 8, 32
LATENT = dict(heads=a, width=24, value=16, latent=40, rope=8, query_latent=48)
HI, dI = 4, 12
INDEXED = IndexedAttention(**LATENT, kv_heads=1, index_heads=HI, index_width=dI, chosen=K)
BLOCKS = BlockSparse(a, 4, 12, 12, block=16, chosen=4)
WAYS = replace(BLOCKS, reads_means=True, recent=24)
MIXERS = {'indexed': INDEXED, 'no own index': replace(INDEXED, own_index=False),
          'blocks': BLOCKS, 'ways': WAYS}


def pairs_of(most):
    "Pairs of a query and a key of one sequence, counted: all before a token, at most so many."
    return sum(min(i + .5, most) for i in range(l))


def pairs_formula(most):
    "As windows are counted: a corner of the first tokens sees fewer."
    return l * most * (1 - most / l / 2)


def test_parameters_by_hand():
    index = 48 * HI * dI + e * (dI + HI) + 2 * dI
    latent = (e * 48 + 48 + 48 * a * 24 + e * (40 + 8) + 40 + 40 * a * (16 + 16) + a * 16 * e)
    attention = e * (a + 2 * 4) * 12 + a * 12 * e
    for name, own in {'indexed': latent + index, 'no own index': latent, 'blocks': attention,
                      'ways': attention + e * 3 * a}.items():
        assert model_with(MIXERS[name]).parameters == 2 * (own + e), name


def test_dense_latent_attention_has_the_same_weights():
    dense = LatentAttention(**LATENT, kv_heads=a)
    same = model_with(replace(INDEXED, own_index=False))
    assert same.parameters == model_with(dense).parameters
    up = {name: op for name, op in operations(dense).items() if name == 'kv-up'}['kv-up']
    absorbed = [operations(INDEXED)[name] for name in ('absorb-q', 'absorb-v')]
    for way in ('forward', 'backward'):
        assert close(flop(getattr(up, way)), sum(flop(getattr(op, way)) for op in absorbed))


def test_flop_of_chosen_keys():
    "Latents of all heads; five products backward; and of the loss scores and two gradients."
    chosen, every = b * pairs_formula(K), b * pairs_formula(l)
    for tp in (1, 2, 4):
        own = operations(INDEXED, tp=tp)
        kernel, scores, loss = (own[name] for name in ('fusedla', 'index-scores', 'index-loss'))
        assert close(flop(kernel.forward) * tp, chosen * 2 * a * (48 + 40))
        assert close(flop(kernel.backward) * tp, chosen * 2 * a * (3 * 48 + 2 * 40))
        assert close(flop(scores.forward), every * 2 * HI * dI)   # on each GPU of tp
        assert not scores.backward.products and not loss.forward.products
        # of each pair and head: cut off below 0, weighed, added
        assert close(scores.forward.vector, 3e-12 * every * HI)
        read = b * l * (HI * dI + HI + dI) + 2 * every   # and scores in 32 bits, written
        assert close(scores.forward.operands, read) and scores.forward.launches == 1
        # read again to choose; a place has 4 bytes
        assert close(scores.forward.nbytes, 2e-9 * (2 * every + 2 * b * l * K))
        assert close(flop(loss.backward), chosen * (2 * a / tp * 48 + 2 * 2 * HI * dI))
        moved = b * l * (48 * a / tp + 3 * HI * dI) + 4 * chosen   # queries, and scores both ways
        assert close(loss.backward.operands, moved) and loss.backward.launches == 2
        summed, *keys = loss.backward.messages
        assert (summed.kind, summed.group) == ('allreduce', 'tp')
        assert close(1 + summed.volume, 1 + 4e-9 * chosen * (tp > 1))
        assert not any(m.volume for m in keys)
        assert flop(own['index-q'].backward) == flop(own['index-q'].forward)   # no input's gradient
    assert abs(pairs_formula(K) / pairs_of(K) - 1) < .01


def test_short_sequences_see_all_keys():
    wide = replace(INDEXED, chosen=10 * l)
    dense = l * l / 2 * 2 * a * (48 + 40) * b
    assert close(flop(operations(wide)['fusedla'].forward), dense)


def test_context_parallelism_gathers_latents():
    "Of the whole sequence, on every GPU, whichever way the job passes keys on."
    for context in ('allgather', 'ring'):
        own = operations(INDEXED, cp=4, strategy='2d-seqp', context=context)
        for name, width in (('fusedla', 48), ('index-scores', dI)):
            sent, = own[name].forward.messages
            assert (sent.kind, sent.group) == ('allgather', 'cp')
            assert close(sent.volume, 2e-9 * b * l * width)
        for name, width in (('fusedla', 48), ('index-loss', dI)):   # keys again, and gradients
            back = [m for m in own[name].backward.messages if m.group == 'cp']
            assert [m.kind for m in back] == ['allgather', 'reducescatter']
            assert all(close(m.volume, 2e-9 * b * l * width) for m in back)
    with pytest.raises(ValueError, match='must be divisible by cp=2'):
        estimate(model_with(INDEXED), Parallel(cp=2, context='ulysses'), 'H200', 8)


def test_what_is_kept():
    "Queries in latents, latents, two sums a row and the result; of the indexer, places as well."
    T, own = 1e-9 * b * l, operations(INDEXED)
    assert close(own['fusedla'].activations, T * (2 * (a + 1) * 48 + 4 * a))
    assert close(own['absorb-q'].activations, T * 2 * a * 16)
    assert close(own['absorb-v'].activations, T * 2 * a * 40)
    for tp in (1, 2, 4):   # an optimizer of matrices has them whole: latents to all heads
        shared = operations(INDEXED, tp=tp)
        for name in ('absorb-q', 'absorb-v'):
            matrix, = shared[name].matrices
            assert (matrix.rows, matrix.columns) == (40, a * 16)
    assert close(own['index-scores'].activations, T * (2 * (HI * dI + HI + dI) + 4 * K))
    frees = dict(own['fusedla'].frees)
    assert close(frees['mla_up_proj'], T * 2 * a * 48) and close(frees['core_attn'], T * 4 * a)
    for name in ('indexed', 'blocks'):   # in 8 bits what follows keeps a copy of its own
        plain, low = (operations(MIXERS[name], precision=x)['fusedla'] for x in ('bf16', 'fp8'))
        assert close(low.activations - plain.activations, T * 2 * a * (40 if name == 'indexed'
                                                                       else 12))
    still = operations(INDEXED, adapters='lora:4:attention')   # attention's backward needs it
    assert close(still['absorb-v'].activations, own['absorb-v'].activations)


def test_what_weighs_three_ways_keeps_its_input():
    "With queries, keys and values, unless their product does not train and saves none."
    for adapters, kept in (('none', 0.), ('frozen:attention', 2e-9 * b * l * e)):
        ops = operations(WAYS, adapters=adapters)
        assert close(ops['ways'].activations, kept)
        assert close(ops['qkv'].activations, 2e-9 * b * l * e - kept)


def test_three_ways_keep_queries_keys_and_values_once():
    "Each way its two sums a row; their results are kept where they are weighed, in 8 bits, too."
    T = 1e-9 * b * l
    for precision in ('bf16', 'fp8'):
        own = operations(WAYS, precision=precision)
        assert close(own['fusedla'].activations, T * (2 * (a + 2 * 4) * 12 + 4 * a))
        for name in ('means', 'recent'): assert close(own[name].activations, T * 4 * a)
        assert close(own['block-means'].activations, T / 16 * 2 * 4 * 2 * 12)
        assert close(own['ways-summed'].activations, T * 2 * 3 * a * 12)
    kernel = operations(WAYS)['means'].forward.attention
    assert (kernel.keys, kernel.seen) == (l / 16, .5)   # of keys there is one for each block


def keys_counted(block, chosen):
    "Each query one by one: half of its own block, and at most so many before it."
    return sum(min(i // block, chosen - 1) * block + i % block + .5 for i in range(l)) / l


@pytest.mark.parametrize('block, chosen', [(16, 4), (32, 1), (16, 16), (64, 9), (8, 3)])
def test_keys_of_blocks(block, chosen):
    mixer = replace(BLOCKS, block=block, chosen=chosen)
    assert close(mixer.keys_seen(l), keys_counted(block, chosen))
    both_ways = replace(mixer, causal=False).keys_seen(l)
    assert both_ways == min(block * chosen, l)


@pytest.mark.parametrize('zigzag', [True, False])
@pytest.mark.parametrize('cp, context, parts', [(1, 'ring', 1), (4, 'ring', 4), (4, 'ulysses', 1)])
def test_keys_of_the_busiest_gpu(zigzag, cp, context, parts):
    "Of blocks and of the latest keys, row by row; where heads are exchanged all see the same."
    assumed = replace(TRAINED, zigzag=zigzag)
    mixer = replace(WAYS, block=4, chosen=20)
    own = operations(mixer, assumed, cp=cp, strategy='2d-seqp', context=context)
    of_blocks = [min(i // 4, 19) * 4 + i % 4 + .5 for i in range(l)]
    latest = [min(i + .5, 24) for i in range(l)]
    for name, seen in (('fusedla', of_blocks), ('recent', latest)):
        pieces = np.split(np.array(seen), parts * (1 + zigzag))
        gpus = [np.mean([pieces[i], pieces[-1 - i] if zigzag else pieces[i]])
                for i in range(parts)]
        assert close(flop(own[name].forward), b * l / cp * max(gpus) * 4 * a * 12)


@pytest.mark.parametrize('context', ['allgather', 'ring', 'ulysses'])
def test_what_is_sent_of_blocks_is_what_is_sent_of_all_keys(context):
    "Every GPU has keys and values of all blocks, for any may be the best."
    asked = dict(cp=4, strategy='2d-seqp', context=context)
    some, every = (operations(own, **asked)['fusedla'] for own in (
        BLOCKS, Attention(a, 4, 12, 12)))
    for way in ('forward', 'backward'):
        sent = [[(m.kind, m.group, m.volume) for m in getattr(op, way).messages if m.volume]
                for op in (some, every)]
        assert sent[0] == sent[1] and sent[0]


def test_flop_of_blocks():
    q, n, chosen = a * 12, l / 16, keys_counted(16, 4)
    for tp in (1, 2):
        for name in ('blocks', 'ways'):
            own = operations(MIXERS[name], tp=tp)
            assert close(flop(own['fusedla'].forward) * tp, b * l * chosen * 4 * q)
            assert close(flop(own['block-scores'].forward) * tp, b * l * n / 2 * 2 * q)
            assert not own['block-scores'].backward.products
        assert close(flop(own['means'].forward) * tp, b * l * n / 2 * 4 * q)
        assert close(flop(own['recent'].forward) * tp, b * pairs_formula(24) * 4 * q)
        summed, x = own['ways-summed'], b * l * q / tp
        assert close(summed.forward.nbytes, 8e-9 * x) and close(summed.backward.nbytes, 14e-9 * x)
        # each of three weighed and added; backward each gate's gradient, and each way's
        assert close(summed.forward.vector, 6e-12 * x) and close(summed.backward.vector, 12e-12 * x)
        assert summed.forward.launches == summed.backward.launches == 1
    means = operations(BLOCKS)['block-means'].forward
    assert close(means.nbytes, 2e-9 * b * l * 4 * 12 * (1 + 1 / 16)) and means.launches == 1
    both, scores = (operations(WAYS)[f'block-{name}'].forward for name in ('means', 'scores'))
    assert close(both.nbytes, 2 * means.nbytes)   # of values, too
    noted = 2 * b * l * 4 * 4   # 4 bytes for each block chosen by heads that share keys
    assert close(operations(WAYS)['block-scores'].activations, 2e-9 * noted)
    assert close(scores.nbytes, 2e-9 * noted) and scores.launches == 1   # and no score is written
    noted, scores = 2 * b * l * a * 4, operations(BLOCKS)['block-scores']   # or by each head
    assert close(scores.activations, 2e-9 * noted) and scores.forward.launches == 2
    assert close(scores.forward.nbytes, 2e-9 * (4 * b * a * l * n / 2 + noted))


def test_speeds_are_of_kernels_that_gather():
    "The assumption moves the sparse kernel's arithmetic, and nothing else."
    model = replace(model_with(INDEXED), seq_len=8192)
    times = []
    for speed in (1.25, 2.5):
        a = replace(TRAINED, sparse_speed=speed)
        table = estimate(model, Parallel(), SYSTEM, 8, a).layers.set_index('layer')
        times.append(table.t)
    changed = times[0].index[~np.isclose(times[0], times[1], rtol=1e-9)]
    assert [*changed] == ['fusedla'] and times[0].fusedla > times[1].fusedla


@pytest.mark.parametrize('name', MIXERS)
def test_memory_and_searches(name):
    model = replace(model_with(MIXERS[name], 4), vocab=640, seq_len=1024)
    one = estimate(model, Parallel(), 'H200', 8, TRAINED).stats
    assert one['weights_GB'] == pytest.approx(2e-9 * model.parameters, rel=1e-12)
    for preset in ('paper', 'corrected', 'calibrated'):
        best = search(model, 8, 'H200', 8, k=1, assumptions=preset)
        assert best.iteration_s.iloc[0] > 0
        row = best.iloc[0]
        again = estimate(model, Parallel.from_row(row), 'H200', 8, preset)
        assert close(again.stats['iteration_s'], row.iteration_s, 1e-9)
        assert str(again.explain('compute_s', depth=30))   # each formula gives its number


def test_model_flop_counts_once_what_has_no_gradient():
    "Scores of an indexer are computed once; all else has two gradients."
    m = model_with(INDEXED, 1)
    parts = {name: flop(op.forward) / b / l for name, op in operations(INDEXED).items()}
    total = 3 * sum(parts.values()) - 2 * parts['index-scores']
    norms = 6 * (48 + 40)   # of the latents, as Megatron-LM counts them
    assert close(m.flops_per_token(), total + norms, 1e-9)


def test_published_parameters():
    "DeepSeek-V3.2's indexer (inference/model.py): 13,959,424 in each of 61 layers."
    v32 = replace(as_model('deepseek_v3.2'), mtp_layers=0)
    assert v32.parameters == 671_026_419_200 + 61 * 13_959_424


def test_dense_blocks_are_attention():
    "With all blocks chosen, FLOP of attention, but for the scores of blocks."
    every = replace(BLOCKS, chosen=l // 16)
    plain = Attention(a, 4, 12, 12)
    assert close(flop(operations(every)['fusedla'].forward),
                 flop(operations(plain)['fusedla'].forward))
    assert model_with(every).parameters == model_with(plain).parameters
    mlp = Block(BLOCKS, MLP(64), 'none', 'rmsnorm')
    with pytest.raises(ValueError, match='block-sparse attention'):
        estimate(Model(l, e, 8, 2, layers=((mlp, 2),)), Parallel(strategy='2d'), 'H200', 8)


def test_keys_of_chunks():
    "Whole chunks of 64 and what is left of 256 - 16 tokens, counted pair by pair."
    chunked = Attention(a, 4, 12, 12, chunk=60)   # 4 chunks of 60, and 16 tokens
    pairs = sum(i % 60 + .5 for i in range(l))
    for p in ({}, dict(tp=2)):
        found, tp = operations(chunked, **p)['fusedla'].forward, p.get('tp', 1)
        counted = 2 * b * a / tp * pairs * (12 + 12)
        assert close(sum(2 * x.times * x.batch * x.m * x.n * x.k for x in found.all_products),
                     counted)
    wide, full = (operations(Attention(a, 4, 12, 12, chunk=size))['fusedla'] for size in (l, None))
    assert wide.forward == full.forward   # one chunk is all


def test_a_gate_of_a_head_and_values_of_another_width():
    "A value of 8 beside keys of 12; one gate a head: its weight, and bytes that it moves."
    plain = Attention(a, 4, 12, 8)
    gated = replace(plain, gated_output=True, gate_of_head=True)
    whole = model_with(plain).parameters
    assert whole == 2 * (e * (a * 12 + 4 * (12 + 8)) + a * 8 * e + e)
    assert model_with(gated).parameters - whole == 2 * e * a
    own, each = (operations(m)['gate'] for m in (gated, replace(gated, gate_of_head=False)))
    rows = b * l
    assert close(own.forward.nbytes, 2e-9 * rows * (2 * a * 8 + a))
    assert close(each.forward.nbytes, 2e-9 * rows * 3 * a * 8)
    assert close(each.activations - own.activations, 2e-9 * rows * (a * 8 - a), 1e-9)
    kinds = {(): plain, (a,): gated, (a * 8,): replace(gated, gate_of_head=False)}
    for gates, mixer in kinds.items():   # an optimizer of matrices has a gate's apart, and whole
        for tp in (1, 2):
            found = operations(mixer, tp=tp)['qkv'].matrices
            assert [x.rows for x in found] == [e] * len(found)
            assert [x.columns for x in found] == [a * 12, 4 * 12, 4 * 8, *gates]
