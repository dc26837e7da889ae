"Samples that are packed of documents: what is computed, who waits; by hand and one by one."
import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from thorough import first_of, thorough
from transformer_perf import Parallel, cli, estimate, search
from transformer_perf.advice import fits
from transformer_perf.estimates import PRESETS, as_assumptions
from transformer_perf.interop import Job, as_job, export
from transformer_perf.lengths import Lengths, as_lengths
from transformer_perf.linear_attention import GatedDeltaNet, Lightning
from transformer_perf.models import Model, as_model
from transformer_perf.packing import (
    at_the_pace, dealt, dynamic_context, in_step, lengths_counted, packed, packing, pass_seconds,
    played_unevenly, seconds_by_length, with_documents)
from transformer_perf.sparse_attention import BlockSparse

DOCUMENTS = {128: 40, 1024: 9, 4096: 2, 8192: 1}
LLAMA = replace(as_model('llama3.1_8B'), seq_len=8192)
PACKED = replace(LLAMA, documents=DOCUMENTS)
EVERY = (*PRESETS, 'calibrated')


def close(a, b, rel=1e-9): return math.isclose(a, b, rel_tol=rel)


def every_token(seen):
    "The mean over all tokens, one by one, of the keys that the i-th of its document sees."
    tokens = [(i, L) for L, n in DOCUMENTS.items() for i in range(L) for _ in range(n)]
    return sum(seen(i) for i, _ in tokens) / len(tokens)


@pytest.mark.parametrize('window', [None, 512])
def test_pairs_of_documents(window):
    "A token sees what came before it in its document, or the latest of that."
    model = PACKED if window is None else replace(PACKED, window=window)
    whole = replace(model, documents=None)
    core = 3 * 2 * 2 * 32 * 128 * 32
    rest = whole.flops_per_token() - core * np.mean([
        min(i + .5, window or 8192) for i in range(8192)])
    by_hand = rest + core * every_token(lambda i: min(i + .5, window or 8192))
    assert close(model.flops_per_token(), by_hand, 2e-4)   # a window has half a token's corner
    if window is None: assert close(model.flops_per_token(), by_hand, 1e-9)


@pytest.mark.parametrize('preset', EVERY)
def test_only_attention_changes(preset):
    "Under every preset: nothing else of a layer takes less, and no memory."
    p = Parallel(tp=4, dp=2)
    tables = [estimate(m, p, 'H100-80GB', 16, preset) for m in (LLAMA, PACKED)]
    whole, few = (one.layers.set_index('layer').t for one in tables)
    changed = whole.index[whole != few]
    masked = preset == 'calibrated'   # the published model computes what a mask hides
    assert [*changed] == ['fusedla'] and whole.fusedla > few.fusedla
    assert masked or few.fusedla < .5 * whole.fusedla
    assert tables[0].stats['memory_GB'] == tables[1].stats['memory_GB']


def test_one_document_is_a_sample_in_one_piece():
    one = replace(LLAMA, documents=[8192])
    assert close(one.flops_per_token(), LLAMA.flops_per_token())
    for preset in EVERY:
        a, b = (estimate(m, Parallel(tp=8), 'H100-80GB', 8, preset).stats for m in (one, LLAMA))
        assert close(a['iteration_s'], b['iteration_s'])


def test_chunks_are_filled_up():
    "The delta rule's kernels take whole chunks of 64 for each document, lightning's do not."
    (block, depth), = LLAMA.blocks
    docs = {100: 1, 64: 1}
    for mixer, ratio in ((GatedDeltaNet(heads=32, key_heads=32, key=128, value=128),
                          (128 + 64) / 164), (Lightning(heads=32, key=128, value=128), 1)):
        m = replace(LLAMA, layers=((replace(block, mixer=mixer), depth),))
        flop = [estimate(x, Parallel(), 'H200', 8, 'corrected').layers.set_index('layer').loc[
            'scan', 'flops_fwd'] for x in (m, replace(m, documents=docs))]
        assert close(flop[1] / flop[0], ratio)


WINDOWS = replace(PACKED, window=512)
INDEXED = replace(as_model('deepseek_v3.2'), seq_len=8192, documents=DOCUMENTS)
IN_BLOCKS = replace(PACKED, layers=((replace(
    LLAMA.blocks[0][0], mixer=BlockSparse(32, 8, 128, 128, block=128, chosen=4)), 32),))


KINDS = {'windows': (WINDOWS, 16), 'blocks': (IN_BLOCKS, 16), 'indexed': (INDEXED, 1024)}
IN_TURN = [*zip(KINDS, EVERY)]   # each kind and each preset once
OTHERS = [pair for pair in itertools.product(KINDS, EVERY) if pair not in IN_TURN]


@pytest.mark.parametrize('kind, preset', [*IN_TURN, *thorough(*OTHERS)])
def test_a_table_of_packed_samples_is_their_estimates(kind, preset):
    "What tokens of a document see depends on a GPU's rows of a sample: a table has several."
    model, gpus = KINDS[kind]
    found = search(model, gpus, 'H200', 2 * gpus, ['1d', '2d-seqp'], 40, preset,
                   fixed={'cp': [1, 2, 4]}, kind=['tp', 'cp'])
    assert len({*found.cp}) == 3
    for _, row in found.iterrows():
        one = estimate(model, Parallel.from_row(row), 'H200', 2 * gpus, preset)
        assert close(one.stats['iteration_s'], row.iteration_s)


def test_blocks_of_documents():
    "A query sees blocks of its own document."
    (block, depth), = LLAMA.blocks
    mixer = BlockSparse(32, 8, 128, 128, block=128, chosen=4)
    m = replace(PACKED, layers=((replace(block, mixer=mixer), depth),))
    few = sum(n * L * mixer.keys_seen(L) for L, n in DOCUMENTS.items()) / sum(
        n * L for L, n in DOCUMENTS.items())
    long = replace(m, documents=None)
    core = 3 * 2 * 2 * 32 * 128 * 32
    scores = 2 * 32 * 128 * 32 / 128   # of blocks, once; half of them before a token
    pairs = sum(n * L * L / 2 for L, n in DOCUMENTS.items()) / sum(
        n * L for L, n in DOCUMENTS.items())
    more = core * (mixer.keys_seen(8192) - few) + scores * (4096 - pairs)
    assert close(long.flops_per_token() - m.flops_per_token(), more, 1e-9)


def test_lengths_of_all_kinds(tmp_path):
    want = Lengths((3, 5), (2, 1))
    (tmp_path / 'a.txt').write_text('3 5\n3\n')
    (tmp_path / 'b.json').write_text('{"3": 2, "5": 1}')
    (tmp_path / 'd.csv').write_text('tokens,documents\n5,1\n3,2\n')
    for file in 'a.txt', 'b.json', 'd.csv': assert as_lengths(tmp_path / file) == want
    for given in ([3, 5, 3], {5: 1, 3: 2}, want, np.array([5, 3, 3])):
        assert as_lengths(given) == want
    assert close(want.mean, 11 / 3) and close(want.of_a_token, (2 * 9 + 25) / 11)
    assert want.cut(4) == Lengths((1, 3, 4), (1, 2, 1)) and want.cut(5) == want
    many = Lengths((3, 5, 12), (2, 3, 4))   # four of 12: eight pieces of 5 and four of 2
    assert many.cut(5) == Lengths((2, 3, 5), (4, 2, 3 + 8))


@pytest.mark.parametrize('given, says', [
    ([], 'none is given'), ([0], 'tokens of a document=0'), ({3: 0}, 'documents=0'),
    ([2.5], 'whole'), ('nowhere.txt', 'nowhere.txt'), (7, 'must be a list'),
    ([9000], 'must be cut to seq_len=8192'), ({'x': 1}, 'tokens of a document')])
def test_mistakes(given, says):
    with pytest.raises((ValueError, OSError), match=says) as error:
        replace(LLAMA, documents=given)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('name, text, says', [
    ('a.txt', '3 many', "a.txt: tokens of a document='many' must be a whole number"),
    ('a.csv', 'tokens\n3\n', "a.csv: lacks the column 'documents'")])
def test_mistakes_in_a_file_name_it(name, text, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    with pytest.raises(ValueError, match=f'^{re.escape(says)}'): as_lengths(name)


def test_samples_are_full_but_for_what_fits_nowhere():
    packs = packed(as_lengths({3000: 1, 5000: 1}), 8192, 200)
    assert {*packs.tokens.tolist()} <= {6000, 8000, 3000, 5000} and len(packs.tokens) == 200
    assert packs.tokens.mean() > .9 * 8000
    small = packed(as_lengths({16: 1}), 8192, 10)
    assert (small.tokens == 8192).all() and (small.of_a_token == 16).all()
    again = packed(as_lengths(DOCUMENTS), 8192, 50, seed=1)
    assert (again.squares == packed(as_lengths(DOCUMENTS), 8192, 50, seed=1).squares).all()
    with pytest.raises(ValueError, match='more than 2,000,000'):
        packed(as_lengths([1]), 8192, 10_000)


def slow_pipeline(F, B, p):
    "1F1B as a longest path: each pass begins when its stage and its neighbour are done."
    N, end = len(F), {}
    orders = [[('F', i) for i in range(min(p - 1 - k, N))] for k in range(p)]
    for k, order in enumerate(orders):
        first = len(order)
        for i in range(N):
            if first + i < N: order.append(('F', first + i))
            order.append(('B', i))
    def finish(k, at):
        if (k, at) in end: return end[k, at]
        kind, i = orders[k][at]
        before = [finish(k, at - 1)] if at else [0.]
        if kind == 'F' and k: before.append(finish(k - 1, orders[k - 1].index(('F', i))))
        if kind == 'B' and k < p - 1: before.append(finish(k + 1, orders[k + 1].index(('B', i))))
        end[k, at] = max(before) + (F if kind == 'F' else B)[i]
        return end[k, at]
    return max(finish(k, len(orders[k]) - 1) for k in range(p))


@pytest.mark.parametrize('p', [1, 2, 3, 5])
def test_a_pipeline_of_unlike_micro_batches(p):
    "Against a longest path, written otherwise."
    rng = np.random.default_rng(p)
    F, B = rng.random((3, 9)), 2 * rng.random((3, 9))
    for i, total in enumerate(played_unevenly(F, B, p)):
        assert close(total, slow_pipeline(F[i], B[i], p))


def counts_in(priced):   # function: lengths -> what each counts as
    lengths, counted = priced
    return lambda L: np.interp(L, [0, *lengths], [0, *counted])


def test_who_waits():
    "The slowest copy: by hand, without stages, from the seconds of each micro-batch."
    p = Parallel(tp=4, dp=4)
    found = packing(PACKED, p, 'H100-80GB', global_batch=64)
    priced = lengths_counted(found.even)
    packs = packed(PACKED.documents, 8192, 64, counts_as=counts_in(priced))
    at = seconds_by_length(found.even, priced)
    each = np.array([sum(at(x / 8192)) for x in packs.squares])
    full = sum(at(packs.squares.sum() / packs.tokens.sum()))   # of an estimate, without gaps
    slowest = each.reshape(4, 16).sum(axis=1).max()
    assert close(found.as_dealt, found.even.stats['iteration_s'] + slowest - 16 * full)
    order = np.sort(each)[::-1].reshape(16, 4)
    order[1::2] = order[1::2, ::-1]
    fair = order.sum(axis=0).max()
    assert close(found.balanced, found.even.stats['iteration_s'] + fair - 16 * full)
    assert fair < slowest and found.fill > .9
    assert 'One length says' in found.summary and found.tokens_per_s > 0
    assert dealt(np.arange(8), 2, True).sum(axis=1).tolist() == [14, 14]


@pytest.mark.parametrize('replicate, step', [(1, 8), (4, 2)])
def test_who_waits_for_weights(replicate, step):
    "With ZeRO-3 the copies that share weights out gather them in every layer: none is ahead."
    p = Parallel(tp=2, dp=8, zero_stage=3, dp_replicate=replicate)
    found = packing(PACKED, p, 'H100-80GB', global_batch=64)
    priced = lengths_counted(found.even)
    packs = packed(PACKED.documents, 8192, 64, counts_as=counts_in(priced))
    at = seconds_by_length(found.even, priced)
    shown = [with_documents(found.even, [L]).stats['dp_comm_s'] / 8 for L in priced[0]]
    took = lambda x: sum(at(x)) + np.interp(x, priced[1], shown)   # weights hide behind passes
    each = np.array([took(x / 8192) for x in packs.squares]).reshape(8, 8)
    groups = [each[i:i + step].max(axis=0).sum() for i in range(0, 8, step)]
    full = 8 * took(packs.squares.sum() / packs.tokens.sum())
    assert close(found.as_dealt, found.even.stats['iteration_s'] + max(groups) - full)
    apart = packing(PACKED, replace(p, zero_stage=1, dp_replicate=1), 'H100-80GB', global_batch=64)
    waits = [x.as_dealt - x.even.stats['iteration_s'] for x in (found, apart)]
    assert waits[0] > waits[1]


def test_more_hides_behind_longer_samples():
    "Of 64 copies in step one has a sample in one piece: no slower than if all had; it was by 2 %."
    long = replace(LLAMA, seq_len=16384)
    found = packing(long, Parallel(tp=8, dp=64, zero_stage=3), 'H100-80GB',
                    {16384: 1, 512: 32}, 512)
    whole, even = (one.stats['iteration_s'] for one in (found.whole, found.even))
    assert even < .99 * whole < found.as_dealt < whole


def test_copies_in_step():
    "Those that gather weights, or send tokens, from GPUs of more than one of them."
    of = lambda **given: in_step(replace(Parallel(zero_stage=1, dp_replicate=1), **given))
    assert of(dp=16) == of(dp=16, tp=8, ep=8) == 1
    assert of(dp=16, zero_stage=3) == 16 and of(dp=16, zero_stage=3, dp_replicate=4) == 4
    assert of(dp=16, ep=8) == 8 and of(dp=16, tp=2, ep=8) == 4 and of(dp=16, tp=2, cp=4, ep=8) == 1
    assert of(dp=3, tp=2, ep=3) == 3   # a group begins within a copy
    assert at_the_pace(np.array([[1, 5], [2, 3], [4, 0], [3, 9]]), 2).tolist() == [[2, 5], [4, 9]]


@pytest.mark.parametrize('p', [Parallel(tp=8, dp=2), Parallel(tp=4, pp=2, dp=2)])
def test_gaps_attend_to_nothing(p):
    "A token of a document takes what it does in any sample, one of a gap what no attention does."
    long = replace(LLAMA, seq_len=65536)
    found = packing(long, p, 'H100-80GB', {38912: 1}, 16, 'corrected')
    of = lambda L: sum(pass_seconds(with_documents(found.even, [L])))
    gap = 2 * of(64) - of(128)   # as if documents had no length
    share, slots = 38912 / 65536, 8 + p.pp - 1
    without = slots * (1 - share) * (of(38912) - gap)
    assert close(found.fill, share) and 'alike and full' in found.summary
    for seconds in (found.as_dealt, found.balanced):
        assert close(seconds, found.even.stats['iteration_s'] - without)
    assert found.even.stats['iteration_s'] > 1.1 * found.balanced


def test_as_many_samples_as_are_asked_for():
    "Though few of the long documents, which hold most tokens, may be drawn at first."
    for seed in range(20):
        packs = packed(as_lengths({1: 99, 8192: 1}), 8192, 3, seed)
        assert len(packs.tokens) == 3 and (packs.tokens > 0).all()


def test_seconds_are_a_straight_line():
    "Between two lengths, and beyond: as an estimate of documents of that length."
    one = estimate(PACKED, Parallel(tp=8, pp=2), 'H100-80GB', 8, 'corrected')
    at = seconds_by_length(one, lengths_counted(one))
    for L in (512, 2048, 8192):
        for a, b in zip(at(L), pass_seconds(with_documents(one, [L]))):
            assert close(a, b, 1e-6)


MIXED = dict(window=1024, full_attention_every=4)


@pytest.mark.parametrize('changes, preset', [
    ({}, 'calibrated'), (dict(window=1024), 'corrected'), (MIXED, 'calibrated'),
    *thorough(({}, 'corrected'), (dict(window=1024), 'calibrated'), (MIXED, 'corrected'),
              (dict(window=4096), 'corrected'), (dict(window=4096), 'calibrated'))])
def test_what_ends_attention_ends_what_a_document_takes(changes, preset):
    "Of documents at least as long as a window few are dear: each sample as an estimate of its own."
    model = replace(LLAMA, seq_len=16384, documents={256: 60, 1024: 20, 4096: 5, 16384: 1},
                    **changes)
    p = Parallel(tp=8, dp=4)
    found = packing(model, p, 'H100-80GB', global_batch=32, assumptions=preset)
    one, each = found.even, []
    lengths, counted = priced = lengths_counted(one)
    counts_as = counts_in(priced)
    if not changes: assert np.allclose(counted, lengths, 1e-5 if preset == 'corrected' else .02)
    at = seconds_by_length(one, priced)
    for pack in ([16384], [4096] * 4, [4096, *[1024] * 12], [256] * 64, [1024] * 16):
        want = sum(pass_seconds(with_documents(one, pack)))
        got = sum(at(sum(L * counts_as(L) for L in pack) / 16384))
        each.append((want, got))
    want, got = np.transpose(each)
    spread = want.max() - want.min()
    assert np.abs(want - got).max() < .02 * spread


@pytest.mark.parametrize('tp, cp', first_of(1, [(8, 8), (8, 1), (1, 8)]))
def test_a_sample_takes_the_mean_of_what_its_documents_take(tp, cp):
    "Where every query sees a few keys, of many or of all: weighed by tokens, and as an estimate."
    S, p = 32768, Parallel(tp=tp, cp=cp, dp=64, ep=64)
    one = estimate(replace(as_model('deepseek_v3.2'), seq_len=S, documents=[S]), p, 'H100-80GB', 64)
    priced = lengths_counted(one)
    at, counts_as = seconds_by_length(one, priced), counts_in(priced)
    of = lambda pack: sum(pass_seconds(with_documents(one, pack)))
    alone = {L: of([L]) for L in (512, 1024, 4096, 8192, 16384)}
    for pack in ([512] * 64, [4096] * 8, [16384] + [512] * 32, [16384, 8192] + [1024] * 8):
        want = sum(L / S * alone[L] for L in pack)
        assert close(sum(at(sum(L * counts_as(L) for L in pack) / S)), want, 2e-3)
        assert close(want, of(pack), .01)


@pytest.mark.parametrize('tokens, step', [(96, 1), (127, 1), (128, 64), (1024, 64)])
def test_short_samples_are_priced_token_by_token(tokens, step):
    "Others in whole chunks of 64, and as half of a sample and as all of it."
    one = estimate(replace(LLAMA, seq_len=tokens), Parallel(), 'H200-141GB', 8, 'corrected')
    lengths, _ = lengths_counted(one)
    assert all(L % step == 0 for L in lengths if L not in (tokens // 2, tokens))
    assert {tokens // 2, tokens} <= {*lengths} and lengths[0] == step


def test_a_rate_of_tokens_counts_those_of_documents():
    documents = {3000: 1}   # two of them fill 6000 of 8192
    found = packing(LLAMA, Parallel(tp=4, dp=2), 'H100-80GB', documents, 16)
    assert found.fill == 6000 / 8192
    assert close(found.tokens_per_s * found.balanced, 16 * 6000)


def test_both_passes_are_all_that_a_micro_batch_takes():
    "With what stands beside the layers, in either direction."
    a = replace(as_assumptions('corrected'), vocabulary=True)
    one, two = (estimate(PACKED, Parallel(), 'H200-141GB', n, a) for n in (1, 2))
    more = two.stats['iteration_s'] - one.stats['iteration_s']
    assert close(sum(pass_seconds(one)), more, 1e-9)


def test_groups_for_each_document():
    p = Parallel(tp=2, cp=4)
    t = dynamic_context(PACKED, p, 'H100-80GB')
    tokens = {2048: 128 * 40 + 1024 * 9, 4096: 2 * 4096, 8192: 8192}
    assert [*t.cp] == [1, 2, 4]
    assert np.allclose(t.tokens, np.array([*tokens.values()]) / sum(tokens.values()))
    assert (t.together == t.together[0]).all() and t.alone[0] < t.together[0]
    short = replace(PACKED, seq_len=2048, documents={128: 40, 1024: 9})   # on GPUs of their own
    one = estimate(short, replace(p, cp=1), 'H100-80GB', 1)
    assert close(t.alone[0], 1e6 / 2048 * sum(pass_seconds(one)), 1e-9)   # s, for a million tokens
    six = dynamic_context(replace(PACKED, seq_len=12288, documents={2048: 5, 12288: 1}),
                          replace(p, cp=6), 'H100-80GB')   # no power of two: on all of them
    assert [*six.cp] == [1, 6] and close(six.tokens.sum(), 1)
    with pytest.raises(ValueError, match='need more than cp=4 GPUs of 1024'):
        dynamic_context(PACKED, p, 'H100-80GB', tokens_per_gpu=1024)
    with pytest.raises(ValueError, match='of up to 9000 tokens need more than cp=4 GPUs of 2048 '):
        dynamic_context(PACKED, p, 'H100-80GB', {9000: 1})


def test_how_far_one_length_misleads():
    "Said in percent of an iteration whose samples are dealt as they come."
    found = packing(PACKED, Parallel(tp=4, dp=2), 'H100-80GB', None, 16)
    whole, even = (one.stats['iteration_s'] for one in (found.whole, found.even))
    longer, shorter = replace(found, as_dealt=whole / 1.5), replace(found, as_dealt=2 * even)
    assert 'One length says +50% for this' in longer.summary
    for one, what in ((found.whole, ' a token'), (found.even, ' if all samples were alike')):
        tokens = 16 * PACKED.seq_len
        GFLOP = 1e3 * one.stats['model_TFLOP_per_gpu'] * one.parallel.n_gpus / tokens
        assert f' s and {GFLOP:.1f} GFLOP{what}' in found.summary
    assert 'the mean sample -50%.' in shorter.summary


def test_every_door(tmp_path, capsys):
    "Searches, advice, files and commands know the documents."
    kwargs = dict(assumptions='calibrated', fixed={'tp': 4, 'dp': 2})
    few, whole = (search(m, 8, 'H100-80GB', 16, k=1, **kwargs) for m in (PACKED, LLAMA))
    assert few.iteration_s[0] < whole.iteration_s[0]
    assert any('packed of 52 documents' in note and '`explain`, or `packing` of '
               'transformer_perf.packing, says' in note for note in few.notes)
    told = repr(packing(PACKED, Parallel(tp=4, dp=2), 'H100-80GB', None, 16))
    assert 'One length says' in told and 'taken as the mean one' not in told
    assert fits(PACKED, Parallel(tp=4, dp=2), 'H100-80GB', 16).estimate.model.documents
    job = Job(Parallel(tp=4, dp=2), PACKED, 16, 8, 8192)
    again = as_job(json.loads(export(job, 'json')))
    assert again.model == PACKED and isinstance(again.model.documents, Lengths)
    file = tmp_path / 'docs.json'
    file.write_text(json.dumps({str(L): n for L, n in DOCUMENTS.items()}))
    args = ['explain', '--model', 'llama3.1_8B', '--tp', '4', '--dp', '2', '--system',
            'H100-80GB', '--global-batch', '16', '--lengths', str(file)]
    with pytest.raises(SystemExit) as end: cli.main(args)
    assert end.value.code == 0
    text = ' '.join(capsys.readouterr().out.split())
    assert 'a token is in one of 3,' in text and 'One length says' in text
    with pytest.raises(ValueError, match='documents'): Model(64, 64, 2, 1, documents=[65])
