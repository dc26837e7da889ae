"""What the host's memory holds instead of the GPU's, and what bringing it there takes, by hand."""
import math
from dataclasses import replace

import pytest

from test_cli import good
from transformer_perf import Parallel, estimate, search
from transformer_perf.advice import fits, improve, why_not
from transformer_perf.choices import KEEPS, offload_said, offloaded
from transformer_perf.estimates import PRESETS, as_assumptions
from transformer_perf.interop import Job, as_job, export
from transformer_perf.models import NAMED, Model
from transformer_perf.systems import as_system

H100, DENSE, P = as_system('H100-80GB'), 'llama3.1_8B', NAMED['llama3.1_8B'].parameters / 1e9
LINK, STEP = 64 * .8, 76.8 * .5   # GB/s that copies and a CPU's step reach
EVERY = (*PRESETS, 'calibrated')


def close(a, b, rel=1e-9): return math.isclose(a, b, rel_tol=rel)


def stats(preset='corrected', batch=64, system=H100, model=DENSE, **layout):
    return estimate(model, Parallel(**layout), system, batch, preset).stats


def on_gpus(preset, model=DENSE):
    "Parameters that a preset counts, in billions: words only where it says so."
    return stats(preset, model=model)['weights_GB'] / 2


# an optimizer's states

@pytest.mark.parametrize('preset', EVERY)
@pytest.mark.parametrize('share', [.25, .5, 1])
def test_states_and_a_step_on_the_host(preset, share):
    "12 bytes of a parameter leave, 16 come; 4 go down and 2 up, and the CPU moves 30."
    there = dict(tp=2, dp=4)
    with_it = stats(preset, **there, offload=f'optimizer:{share}' if share < 1 else 'optimizer')
    none, number = stats(preset, **there), on_gpus(preset) / 8
    assert close(with_it['optimizer_GB'], (1 - share) * none['optimizer_GB'], 1e-9) or share == 1
    assert with_it['optimizer_GB'] == (1 - share) * none['optimizer_GB']
    assert close(with_it['host_GB'], share * 16 * number, 2e-4)   # all but norms are shared out
    assert close(none['memory_GB'] - with_it['memory_GB'], share * 12 * number, 2e-4)
    cpu = share * number * ((4 + 2) / LINK + 30 / STEP)
    gpu = share * 26 * number / 3350   # at the least
    more = with_it['other_s'] - none['other_s']
    assert cpu - 3 * gpu <= more <= cpu * (1 + 2e-4) if preset == 'calibrated' else close(
        more, cpu, 2e-4)
    same = 'compute_s', 'dp_comm_s', 'weights_GB', 'gradients_GB', 'activations_GB'
    assert all(with_it[name] == none[name] for name in same)


def test_gradients_go_down_each_time_where_they_are_shared_out():
    "ZeRO-2: none stays but the unit on its way; 2 bytes of each micro-batch, behind its layers."
    there = dict(dp=8, zero_stage=2, dp_overlap=False)
    none, number = stats(**there), on_gpus('corrected') / 8
    with_it = stats(**there, offload='optimizer')
    assert none['gradients_GB'] > 0 == with_it['gradients_GB']
    assert close(with_it['dp_comm_s'] - none['dp_comm_s'], 8 * 2 * number / LINK, 1e-9)
    assert close(with_it['other_s'] - none['other_s'], number * (2 / LINK + 30 / STEP), 1e-9)
    hidden = stats(**there | {'dp_overlap': True}, offload='optimizer')
    assert hidden['dp_comm_s'] < with_it['dp_comm_s'] / 5


def test_weights_come_for_each_pass():
    "ZeRO-3: a GPU's share comes to be gathered, twice a micro-batch."
    there = dict(dp=8, zero_stage=3, dp_overlap=False)
    none, number = stats(**there), on_gpus('corrected') / 8
    with_it = stats(**there, offload='weights')
    assert close(none['weights_GB'] - with_it['weights_GB'], 2 * number)
    assert close(with_it['host_GB'], 2 * number)
    assert close(with_it['dp_comm_s'] - none['dp_comm_s'], 2 * 8 * 2 * number / LINK)
    once = stats(**there, offload='weights', reshard_after_forward=False)['dp_comm_s']
    assert close(once - stats(**there, reshard_after_forward=False)['dp_comm_s'],
                 8 * 2 * number / LINK)
    both = stats(**there, offload='optimizer+weights')
    assert close(both['other_s'] - none['other_s'], number * 30 / STEP)   # nothing goes up
    assert close(both['host_GB'], 18 * number)


@pytest.mark.parametrize('preset', ['corrected', 'calibrated'])
def test_weights_from_the_host_are_somewhere_while_they_are_used(preset):
    "Of a single GPU too, and of experts of which there is one copy: as many units as of several."
    held = lambda **more: stats(preset, 16, zero_stage=3, offload='weights', **more)['weights_GB']
    for again in (True, False):
        one, several = (held(dp=dp, reshard_after_forward=again) for dp in (1, 8))
        assert close(one, several)
    assert close(held(dp=1, reshard_after_forward=False), 2 * on_gpus(preset))
    experts = Model(2048, 4096, 32, 4, gated_mlp=True, experts=8, experts_per_token=2,
                    expert_dim=14336)
    one, several = (held(model=experts, dp=16, ep=8, dp_replicate=R) for R in (2, 1))
    assert close(one, several)


def test_tables_come_whether_they_train_or_not():
    "Twice as many words bring as much more from the host where only adapters of layers train."
    def came(vocab, adapters):
        model = replace(NAMED[DENSE], vocab=vocab)
        none, there = (stats('calibrated', model=model, dp=8, zero_stage=3, dp_overlap=False,
                             adapters=adapters, offload=what)['dp_comm_s']
                       for what in ('none', 'weights'))
        return there - none
    some, all_train = (came(2 * 128256, name) - came(128256, name) for name in ('lora:16', 'none'))
    assert all_train > 0 and close(some, all_train, 1e-6)


def test_a_share_whose_master_the_host_has_is_there_in_16_bits():
    "Whoever gathers copies of 32-bit masters has no other share; a CPU's step sends it up."
    a = as_assumptions('calibrated', 'torchtitan')
    weights = lambda offload: stats(a, dp=8, zero_stage=3, offload=offload)['weights_GB']
    share = 2 * P / 8
    assert close(weights('optimizer') - weights('none'), share, 1e-4)
    assert close(weights('optimizer:0.25') - weights('none'), share / 4, 1e-4)
    assert weights('optimizer+weights') == weights('none')


@pytest.mark.parametrize('dp', [2, 8])
def test_masters_come_in_32_bits_where_there_is_no_other_share(dp):
    "PyTorch's FSDP casts a share when it has come from the host, which has no copy in 16 bits."
    a, number = as_assumptions('calibrated', 'torchtitan'), P / dp
    def asked(offload):
        return stats(a, 8 * dp, dp=dp, zero_stage=3, dp_overlap=False, offload=offload)
    none, both = asked('none'), asked('optimizer+weights')
    gathers, reductions = 2 * 8 * 4 * number, 8 * 4 * number
    assert close(both['dp_comm_s'] - none['dp_comm_s'], (gathers + reductions) / LINK, 1e-4)
    assert close(both['host_GB'], 16 * number, 1e-4)   # and gradients
    weights = asked('weights')   # the GPU has the masters
    assert close(weights['dp_comm_s'] - none['dp_comm_s'], gathers / 2 / LINK, 1e-4)
    assert close(weights['host_GB'], 2 * number, 1e-4)


def test_a_muon_takes_no_steps_there_and_lion_fewer_bytes():
    with pytest.raises(ValueError, match='no steps of muon'):
        stats(dp=8, optimizer='muon', offload='optimizer')
    lion, adam = (stats(dp=8, optimizer=name, offload='optimizer') for name in ('lion', 'adam'))
    assert close((adam['host_GB'] - lion['host_GB']) / adam['host_GB'], 4 / 16)


# activations

@pytest.mark.parametrize('preset', EVERY)
def test_layers_wait_for_the_link_only_where_it_is_slower(preset):
    "A layer's GB over the link, beside its forward pass and beside its backward pass."
    there = dict(tp=2, dp=2)
    one = estimate(DENSE, Parallel(**there), H100, 64, preset)
    with_it = stats(preset, **there, offload='activations')
    layers, N = one.model.depth, 32
    copy = with_it['host_GB'] / layers / LINK
    kernels = one.layers[['t_fwd', 't_bwd']].sum()
    waits = sum(max(copy - t, 0) for t in kernels)
    more = (with_it['exposed_memory_s'] - one.stats['exposed_memory_s']) / N / layers
    assert 0 < more <= waits * (1 + 1e-9)
    if preset != 'calibrated': assert close(more, waits)   # else the host's launches hide some
    few = stats(preset, **there, offload='activations:4')
    assert few['exposed_memory_s'] == one.stats['exposed_memory_s']   # behind eight times as much
    assert close(few['host_GB'], with_it['host_GB'] / 8)
    fast = replace(H100, host_bandwidth=1e6)
    assert stats(preset, system=fast, **there, offload='activations')['iteration_s'] == (
        one.stats['iteration_s'])


def test_activations_are_somewhere():
    "What the GPU keeps less is what the host holds, but for two layers on their way."
    for pp, v in ((1, 1), (4, 1), (4, 2)):
        there = dict(tp=2, pp=pp, virtual_stages=v)
        none, with_it = stats(**there), stats(**there, offload='activations')
        assert with_it['activations_GB'] == 0   # the published model has no working memory
        assert close(none['activations_GB'], with_it['host_GB'])
    one = estimate(DENSE, Parallel(tp=2), H100, 64)
    less = stats('calibrated', tp=2, offload='activations')
    saved = one.stats['activations_GB'] - less['activations_GB']
    assert close(saved, less['host_GB'] - 2 * one.layers.activation_buffer.sum())


@pytest.mark.parametrize('rate', [20, 64, 200, 400, 2000])
@pytest.mark.parametrize('micro_batch', [1, 4])
def test_activations_and_weights_come_over_one_link(rate, micro_batch):
    "Behind a forward pass activations leave and weights come; behind a backward pass both come."
    system = replace(H100, host_bandwidth=rate)
    there = dict(dp=1, zero_stage=3, micro_batch=micro_batch)
    layer = estimate(DENSE, Parallel(**there), system, 8, 'corrected').layers
    weights, kept = (layer[name].sum() / (rate * .8)
                     for name in ('weights_mem', 'activation_buffer'))
    passes = 32 * 8 // micro_batch   # of layers
    forward, backward = (max(layer[name].sum(), kept) for name in ('t_fwd', 't_bwd'))
    waits = max(weights - forward, 0) + max(kept + weights - backward, 0)
    both = stats(batch=8, system=system, **there, offload='weights+activations')
    assert close(both['dp_comm_s'], 2 * weights + (passes - 1) * waits)
    assert both['iteration_s'] > passes * (2 * weights + kept)   # all that comes
    once = stats(batch=8, system=system, **there, offload='weights+activations',
                 reshard_after_forward=False)
    assert close(once['dp_comm_s'], weights + (passes - 1) * max(weights - forward, 0))


def test_modules_are_parts_of_a_layer():
    "Of Llama in 16 bits and s*b*h/tp as one: norms keep 2 each, a product its input."
    m, whole = NAMED[DENSE], as_assumptions('calibrated')
    unit = 2 * m.seq_len * m.embed_dim / 2 * 1e-9 * m.depth   # GB of all layers
    of = lambda parts: stats(whole, tp=2, offload=parts, batch=1)['host_GB'] / unit
    grouped = (m.heads + 2 * m.kv_heads) / m.heads + 2 / m.embed_dim * m.heads   # two a row
    assert close(of('attn_norm'), 1) and close(of('mlp_norm'), 1) and close(of('attn_proj'), 1)
    assert close(of('core_attn'), grouped)
    assert close(of('attn_norm+core_attn+attn_proj'), of('attn_norm') + of('core_attn') + 1)
    every = of('+'.join(KEEPS))
    assert every < of('activations')   # the MLP of a dense layer is none of them
    assert of('core_attn+moe_act') == of('core_attn')
    routed = lambda parts: stats(whole, model='mixtral_8x7B', tp=2, ep=2, batch=1, offload=parts)
    assert routed('moe_act')['host_GB'] > routed('expert_fc1')['host_GB'] > 0


def test_what_is_computed_again_goes_nowhere():
    full, none = (stats(tp=2, recompute=again, offload='activations')['host_GB']
                  for again in ('full', 'none'))
    m = NAMED[DENSE]
    assert close(full, m.depth * 2e-9 * m.seq_len * m.embed_dim / 2) and full < none / 10
    part = stats(tp=2, recompute='layernorm', offload='qkv_linear')
    assert part['host_GB'] == 0   # its input is made again


# published

def test_13_billion_parameters_on_one_v100():
    """ZeRO-Offload (arXiv 2101.06840, table 2 and figure 7): 13 B on one V100 of 32 GB, where
    PyTorch has room for 1.4 B. Its 13 B: 65 layers, 4096 wide; sequences of 1024, checkpoints."""
    v100 = replace(as_system('A100-80GB'), name='V100', matrix_flops_fp16=125., hbm_capacity=32.,
                   hbm_bandwidth=900., host_bandwidth=16., host_memory_bandwidth=256 / 16,
                   host_capacity=1500.)
    gpt = Model(1024, 4096, 32, 65, vocab=50304, tied_embeddings=True)
    assert 13e9 < gpt.parameters < 13.4e9
    p = Parallel(zero_stage=2, recompute='full', offload='optimizer')
    one = estimate(gpt, p, v100, 8, 'calibrated')
    assert one.stats['memory_GB'] < 32 < one.stats['memory_GB'] * 1.15   # little is left
    assert one.stats['weights_GB'] > .75 * one.stats['memory_GB']
    assert 200 < one.stats['host_GB'] < 220   # 16 bytes of each
    alone = replace(p, offload='none')
    assert estimate(gpt, alone, v100, 8, 'calibrated').stats['memory_GB'] > 7 * 32
    small = [estimate(replace(gpt, embed_dim=1920, heads=16, depth=depth), alone, v100, 8,
                      'calibrated').stats['memory_GB'] for depth in (20, 40)]
    assert small[0] < 32 < small[1]   # 1.0 B and 1.9 B


def test_a_cpu_updates_a_billion_parameters_in_a_fifth_of_a_second():
    "ZeRO-Offload, table 4: 0.22 s for 1 B and 2.57 s for 10 B on the host of a DGX-2 (256 GB/s)."
    for billions, measured in ((1, .22), (10, 2.57)):
        assert abs(billions * 30 / (256 * .5) / measured - 1) < .1


# what is asked for

@pytest.mark.parametrize('asked, why', [
    ('optim', "did you mean 'optimizer'"), ('optimizer:2', 'at most 1'), ('optimizer:0', 'above 0'),
    ('none+weights', 'stands alone'), ('weights:1', 'no amount'), ('activations:x', 'layers in'),
    ('optimizer+optimizer', 'said twice'), ('activations+moe_act', 'a part of them'),
    ('', 'offload='), (3, 'offload=3')])
def test_mistakes(asked, why):
    with pytest.raises(ValueError, match=why) as error: stats(dp=8, offload=asked)
    assert '\n' not in str(error.value)


def test_a_share_keeps_its_digits():
    for share in ('0.000000001', '0.00001', '0.1234567', '0.5'):
        asked = Parallel(dp=8, offload=f'optimizer:{share}')
        assert asked.offload == f'optimizer:{share}' == replace(asked).offload
    assert Parallel(offload='optimizer:1.0').offload == 'optimizer'


def test_the_host_must_be_known_and_have_room():
    with pytest.raises(ValueError, match="'MI300X' has no host_memory_bandwidth"):
        stats(system='MI300X', offload='optimizer')
    assert stats(system='MI300X', offload='activations')['host_GB'] > 0   # its link is known
    with pytest.raises(ValueError, match="'A100' has no host_bandwidth"):
        stats(system='A100', offload='activations')
    with pytest.raises(ValueError, match='no host_bandwidth'):
        search(DENSE, 8, 'A100', 64, offload=['none', 'activations'])
    small = replace(H100, host_capacity=10.)
    one = estimate(DENSE, Parallel(dp=8, offload='optimizer'), small, 64, 'corrected')
    assert not one.fits and 'MORE than its 10 GB' in one.summary
    assert one.stats['memory_GB'] < 80
    found = search(DENSE, 8, small, 64, offload='optimizer', fixed={'dp': 8}, recompute='full')
    assert not len(found) and 'host' in found.reasons[8]
    asked = DENSE, one.parallel, small, 64, 'corrected'
    lacks = f'its host would hold {one.stats["host_GB"]:.1f} of 10 GB for each GPU'
    assert f'does NOT fit, for {lacks}' in fits(*asked).summary
    assert lacks in improve(*asked).summary and why_not(*asked).excluded == (lacks,)


@pytest.mark.parametrize('system', ['H100-80GB', 'MI300X'])   # room is known, and is not
def test_what_the_host_holds_is_told(system):
    found = search(DENSE, 8, system, 64, offload='activations', k=1)
    text = good('search', DENSE, '--gpus', 8, '--system', system, '--global-batch', 64,
                '--offload', 'activations', '--top', 1)
    assert f'The host holds {found.host_GB.item():.1f} GB for each GPU' in ' '.join(text.split())


def test_the_same_choice_has_one_name():
    same = ('weights+optimizer:1.0', 'optimizer+weights')
    assert len({Parallel(zero_stage=3, offload=words).offload for words in same}) == 1
    assert offloaded('activations').activations == math.inf


def test_amounts_are_said_and_read():
    "Layers, or a share; all of a part where nothing is said, so that this is said no more."
    for words, field, amount in (
            ('activations:3', 'activations', 3), ('activations:10000', 'activations', 10_000),
            ('optimizer:.25', 'optimizer', .25), ('optimizer', 'optimizer', 1),
            ('optimizer:1', 'optimizer', 1), ('weights', 'weights', 1)):
        assert getattr(offloaded(words), field) == amount
        again = offload_said({field: amount})
        assert offloaded(again) == offloaded(words)
        assert (':' in again) == (amount != 1), again
    assert offload_said({'activations': math.inf}) == 'activations'
    for words in ('activations:10001', 'activations:0', 'optimizer:1.1', 'optimizer:0',
                  'weights:1'):
        with pytest.raises(ValueError): offloaded(words)
    assert offloaded('core_attn+moe_act').operations == (*KEEPS['core_attn'], *KEEPS['moe_act'])


def test_a_search_finds_what_an_estimate_says_of_layers_of_several_kinds():
    "Each kind waits for its own copies, over a slow link."
    model, slow = replace(NAMED['deepseek_v3'], depth=8), replace(H100, host_bandwidth=20.)
    for row in search(model, 64, slow, 128, k=3, offload='activations').itertuples():
        one = estimate(model, Parallel.from_row(row._asdict()), slow, 128)
        assert close(one.stats['iteration_s'], row.iteration_s)


def test_a_search_takes_it_only_when_asked():
    assert 'offload' not in search(DENSE, 8, H100, 64, k=3)
    found = search(DENSE, 1, H100, 64, k=9, zero_stages=[1, 2],
                   offload=['none', 'optimizer', 'optimizer+activations'])
    assert not len(search(DENSE, 1, H100, 64)) and {*found.zero_stage} == {1, 2}
    for _, row in found.iterrows():
        one = estimate(DENSE, Parallel.from_row(row), H100, 64)
        assert close(one.stats['iteration_s'], row.iteration_s) and one.fits
        assert close(one.stats['host_GB'], row.host_GB)
        assert row.evidence.startswith('extrapolated: no run with offload')


def test_advice_takes_it_where_nothing_else_helps():
    "8 B of parameters need 18 bytes each: no change of a single GPU helps."
    found = fits(DENSE, Parallel(), H100, 16)
    assert not found.fits and 'offload none -> optimizer' in found.summary
    assert all('offload' in change.words and change.estimate.fits for change in found.changes)
    wide = fits(DENSE, Parallel(dp=8, zero_stage=1, micro_batch=8), H100, 64)
    assert not wide.fits and not any('offload' in change.words for change in wide.changes)
    assert not any('offload' in c.words for c in improve(DENSE, Parallel(dp=4), H100, 16).changes)
    asked = improve(DENSE, Parallel(), H100, 16, offload='optimizer:0.5')
    assert asked.tried > improve(DENSE, Parallel(), H100, 16).tried
    assert not fits(DENSE, Parallel(), 'A100', 16).changes   # whose host nobody knows


# files

FLAGS = ('--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 '
         '--use-distributed-optimizer --bf16 ')


@pytest.mark.parametrize('flags, offload', [
    ('--optimizer-cpu-offload', 'optimizer'),
    ('--optimizer-cpu-offload --optimizer-offload-fraction 0.5', 'optimizer:0.5'),
    ('--cpu-offloading-num-layers 4', 'activations:4'),
    ('--fine-grained-activation-offloading --offload-modules moe_act core_attn',
     'core_attn+moe_act'),
    ('--optimizer-cpu-offload --fine-grained-activation-offloading --offload-modules attn_norm',
     'optimizer+attn_norm'), ('--cpu-offloading-num-layers 0', 'none'), ('', 'none')])
def test_flags_of_megatron(flags, offload):
    job = as_job(FLAGS + flags)
    assert job.parallel.offload == offload and 'ffload' not in str(job.ignored)
    text = export(job, 'megatron')
    assert as_job(text).parallel.offload == offload
    assert ('--use-precision-aware-optimizer' in text) == ('optimizer' in offload)


def test_what_files_say_and_cannot_say():
    ignored = dict(as_job(FLAGS + '--offload-modules moe_act').ignored)
    assert 'does nothing without' in ignored['--offload-modules']
    ignored = dict(as_job(FLAGS + '--fine-grained-activation-offloading --offload-modules '
                          'gdp_qkv').ignored)
    assert 'gdp_qkv' in ignored['--offload-modules']
    job = lambda **given: Job(Parallel(**given), NAMED[DENSE], 64, given.get('dp', 8), 8192)
    refused = (('megatron', dict(dp=8, zero_stage=3, offload='weights')),
               ('megatron', dict(dp=8, optimizer='lion', offload='optimizer')),
               ('megatron', dict(dp=8, zero_stage=1, recompute='full', offload='activations:2')),
               ('deepspeed', dict(dp=8, zero_stage=2, offload='optimizer:0.5')),
               ('deepspeed', dict(dp=8, zero_stage=2, offload='activations')),
               ('torchtitan', dict(dp=8, zero_stage=3, offload='optimizer')),
               ('accelerate', dict(dp=8, zero_stage=3, offload='optimizer:0.5')))
    for name, given in refused:
        with pytest.raises(ValueError, match='cannot be said'): export(job(**given), name)


@pytest.mark.parametrize('name, stage, offload', [
    ('deepspeed', 2, 'optimizer'), ('deepspeed', 3, 'optimizer+weights'),
    ('deepspeed', 3, 'optimizer:0.25'), ('deepspeed', 1, 'optimizer'),
    ('accelerate', 3, 'optimizer+weights'), ('accelerate', 2, 'optimizer'),
    ('torchtitan', 3, 'optimizer+weights')])
def test_other_formats_come_back(name, stage, offload, tmp_path):
    p = Parallel(dp=8, zero_stage=stage, offload=offload)
    text = export(Job(p, NAMED[DENSE], 64, 8, 8192), name)
    file = tmp_path / f'job{".json" if name == "deepspeed" else ".yaml"}'
    file.write_text(text)
    again = as_job(file, n_gpus=8).parallel
    assert (again.offload, again.zero_stage) == (p.offload, stage), text


def test_files_of_deepspeed():
    given = lambda device, stage, **more: as_job({
        'train_batch_size': 64, 'zero_optimization': {
            'stage': stage, 'offload_optimizer': {'device': device, 'pin_memory': True} | more}})
    assert given('cpu', 2).parallel.offload == 'optimizer'
    assert given('cpu', 3, ratio=.3).parallel.offload == 'optimizer:0.3'
    assert given('none', 3).parallel.offload == 'none'
    assert given('nvme', 3).parallel.offload == 'optimizer+nvme'
    nvme = given('nvme', 2)
    assert nvme.parallel.offload == 'none' and 'below stage' in str(nvme.ignored)
    assert 'below stage 1' in str(given('cpu', 0).ignored)
    assert 'below stage 3' in str(given('nvme', 2).ignored)


# the host's disks

DISKS = replace(H100, nvme_bandwidth=3.)


def test_states_on_disks():
    "ZeRO-Infinity: 12 bytes of a parameter are read and written; the host keeps gradients alone."
    there = dict(dp=8, zero_stage=3, dp_overlap=False)
    of = lambda offload, **more: stats('corrected', system=DISKS, **there, offload=offload, **more)
    number = on_gpus('corrected') / 8
    none, host, disks = (of(how) for how in ('none', 'optimizer', 'optimizer+nvme'))
    assert close(host['host_GB'], 16 * number) and close(disks['host_GB'], 4 * number)
    same = 'memory_GB', 'optimizer_GB', 'weights_GB', 'dp_comm_s'
    assert all(host[name] == disks[name] for name in same)
    up = 2 / LINK   # gradients go down as they are made
    assert close(host['other_s'] - none['other_s'], number * (up + 30 / STEP))
    assert close(disks['other_s'] - none['other_s'], number * (up + 24 / 3.))
    fast = stats('corrected', system=replace(H100, nvme_bandwidth=100.), **there,
                 offload='optimizer+nvme')
    assert fast['other_s'] == host['other_s']   # the CPU is slower


def test_weights_on_disks():
    "They come at the rate of the link, or of the disks if that is less, for each pass."
    there = dict(dp=8, zero_stage=3, dp_overlap=False)
    of = lambda system, offload: stats('corrected', system=system, **there, offload=offload)
    none, number = of(DISKS, 'none'), on_gpus('corrected') / 8
    disks = of(DISKS, 'weights+nvme')
    assert close(disks['dp_comm_s'] - none['dp_comm_s'], 2 * 8 * 2 * number / 3.)
    assert disks['host_GB'] == 0 and disks['weights_GB'] == of(DISKS, 'weights')['weights_GB']
    fast = replace(H100, nvme_bandwidth=100.)
    assert of(fast, 'weights+nvme')['dp_comm_s'] == of(fast, 'weights')['dp_comm_s']
    every = 'optimizer+weights+nvme'
    p = Parallel(**there, offload=every)
    for preset in EVERY:
        one = estimate(DENSE, p, DISKS, 64, preset)
        assert one.fits and str(one.explain('iteration_s', depth=30))   # formulas give the numbers
        assert str(one.explain('memory_GB', depth=30))


def test_weights_from_disks_leave_the_link_to_activations():
    "Weights from the host have what activations leave of its link, and hide less behind layers."
    fast, there = replace(H100, nvme_bandwidth=100.), dict(dp=8, zero_stage=3)
    of = lambda offload: stats(system=fast, **there, offload=offload)['dp_comm_s']
    assert of('activations+weights+nvme') == of('weights+nvme') == of('weights')
    assert of('activations+weights') > 2 * of('weights')


def test_disks_are_asked_for_by_name(tmp_path):
    with pytest.raises(ValueError, match="'H100-80GB' has no nvme_bandwidth"):
        stats(dp=8, zero_stage=3, offload='optimizer+nvme')
    with pytest.raises(ValueError, match='disks hold the optimizer or weights'):
        stats(dp=8, offload='activations+nvme')
    with pytest.raises(ValueError, match='disks hold states with zero_stage=3, not 1'):
        stats(system=DISKS, dp=8, zero_stage=1, offload='optimizer+nvme')
    with pytest.raises(ValueError, match='weights are on the host with zero_stage=3, not 1'):
        stats(dp=8, zero_stage=1, offload='weights')
    with pytest.raises(ValueError, match='a CPU takes no steps of muon'):   # the stage is right
        stats(dp=8, zero_stage=3, offload='optimizer+weights', optimizer='muon')
    unsaid, third = (stats(system=DISKS, dp=8, offload='optimizer+nvme', **said)
                     for said in ({}, {'zero_stage': 3}))
    assert unsaid == third
    small = replace(DISKS, host_capacity=100.)   # too small for 8 B of states
    helped = fits(DENSE, Parallel(), small, 16)
    assert not helped.fits and 'nvme' in helped.changes[0].words
    found = search(DENSE, 8, DISKS, 64, k=60, zero_stages=3, fixed={'dp': 8},
                   offload=['optimizer+weights', 'optimizer+weights+nvme'])
    assert {*found.offload} == {'optimizer+weights', 'optimizer+weights+nvme'}
    p = Parallel(dp=8, zero_stage=3, offload='nvme+weights+optimizer')
    text = export(Job(p, NAMED[DENSE], 64, 8, 8192), 'deepspeed')
    assert '"nvme"' in text
    file = tmp_path / 'job.json'
    file.write_text(text)
    assert as_job(file, n_gpus=8).parallel.offload == 'optimizer+weights+nvme'
    both = as_job({'train_batch_size': 64, 'zero_optimization': {
        'stage': 3, 'offload_optimizer': {'device': 'nvme'}, 'offload_param': {'device': 'cpu'}}})
    assert both.parallel.offload == 'weights' and 'nvme for one of two' in str(both.ignored)
    for name in ('megatron', 'torchtitan'):
        with pytest.raises(ValueError, match='cannot be said'):
            export(Job(p, NAMED[DENSE], 64, 8, 8192), name)
