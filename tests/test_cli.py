"The command line, as a user runs it; mostly without the start of a process for each question."
import contextlib
import csv
import functools
import io
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import transformer_perf
from thorough import first_of
from frameworks import torchtitan_file
from transformer_perf import Parallel, search
from transformer_perf.cli import CHOSEN, COMMANDS, LAYOUT, amount, main, schema_text
from transformer_perf.execution import KIND
from transformer_perf.interop import as_job
from transformer_perf.models import as_model
from transformer_perf.systems import systems_folder
from transformer_perf.validation import published, table_of

COMMAND = str(Path(sys.executable).parent / 'transformer-perf')


def process(*args):
    return subprocess.run([COMMAND, *map(str, args)], capture_output=True, text=True, timeout=60,
                          check=False)


def run(*args, cwd='.'):
    "What a process says and how it ends, without starting one; a warning is a fault here."
    with (contextlib.chdir(cwd), warnings.catch_warnings(), pytest.raises(SystemExit) as end,
          contextlib.redirect_stdout(io.StringIO()) as out,
          contextlib.redirect_stderr(io.StringIO()) as err):
        warnings.simplefilter('error')
        main(map(str, args))
    return subprocess.CompletedProcess(args, end.value.code, out.getvalue(), err.getvalue())


def good(*args, code=0, **options):
    done = run(*args, **options)
    assert done.returncode == code, done.stderr
    return done.stdout


def bad(*args, **options):
    done = run(*args, **options)
    assert done.returncode == 2 and not done.stdout and 'Traceback' not in done.stderr
    assert done.stderr.count('\n') == 1 and len(done.stderr) < 320
    return done.stderr


def has(text, *words):
    for word in words: assert word in text, word


JOB = ('--model', 'gpt3_1T', '--system', 'H200', '--global-batch', 4096)   # the paper's
PAPER, CORRECTED = ((*JOB, '--assumptions', name) for name in ('paper', 'corrected'))


@pytest.mark.parametrize('code, args', first_of(3, [
    (0, ('search', *PAPER, '--gpus', 2048)), (1, ('search', '--gpus', 64)),
    (2, ('search', '--system', 'H20')), (0, ('systems', '--format', 'json')), (0, ())]))
def test_a_process_says_what_is_asked_of_here(code, args):
    "The other tests need no process for each question."
    there, here = process(*args), run(*args)
    assert there.returncode == here.returncode == code
    assert (there.stdout, there.stderr) == (here.stdout, here.stderr)


def test_search_prints_a_table_and_a_paragraph():
    text = good('search', *PAPER, '--gpus', 2048)
    has(text, 'rank', 'samples/s', 'iteration', 'NVLink', 'compute', 'bubble', '105.4',
        '124.6 / 141', '3,689 candidates', 'gpt3_1T on 2048 H200 GPUs', 'Evidence: published model')
    assert '…' not in text and '\x1b' not in text
    assert 'its slips mended' in good('search', *CORRECTED, '--gpus', 2048)


def test_a_search_says_first_what_no_gpu_has():
    "That nothing fits, too, was once the answer about products that the GPU has no units for."
    for gpu, precision, lacks in (('A100-80GB', 'fp8', 'fp8'), ('H100-80GB', 'nvfp4', 'fp4'),
                                  ('H100-80GB', 'mxfp8', 'fp4')):
        has(bad('search', '--gpus', 8, '--system', gpu, '--precision', precision),
            f'has no matrix_flops_{lacks}')


@pytest.mark.parametrize('gpu, precision, why', [
    ('A100-80GB', 'fp8', 'no matrix unit of Ampere GPUs multiplies floats of 8 bits'),
    ('A100-80GB', 'mxfp8', 'no matrix unit of Ampere GPUs multiplies floats of 8 bits'),
    ('H100-80GB', 'nvfp4', 'no matrix unit of Hopper GPUs multiplies floats of 4 bits'),
    ('B200', 'fp8', 'its source does not give one; known of B200-180GB')])
def test_a_figure_that_no_source_could_give(gpu, precision, why):
    "That no GPU of a generation has such units is no gap of a source."
    has(bad('explain', '--dp', 8, '--system', gpu, '--precision', precision), why)


def test_a_search_says_what_takes_as_long_in_other_software():
    "Which of several is meant; and that messages of experts do not hide by themselves."
    def note(*asked):
        text = good(*asked, '--global-batch', 64)
        return ' '.join(text.split()).partition('No software is named: ')[2]
    dense = ('search', '--model', 'llama3.1_8B', '--top', 1, '--gpus')
    assert note(*dense, 16).startswith('the same takes')
    assert note(*dense, '32,16').startswith('the first on 32 GPUs takes')
    experts = ('explain', '--model', 'qwen3_30B_A3B', '--dp', 64, '--ep')
    has(note(*experts, 8), '(messages hide behind compute, but those of experts: ',
        ' s with ep_overlap), ')
    for hidden in ((8, '--ep-overlap', 'yes'), (1,)):
        assert '(messages hide behind compute), ' in note(*experts, *hidden)


def test_plain_software_that_is_faster_is_told_why():
    "A single micro-batch hides few gradients, and plain software has half their bytes."
    words = good('explain', '--model', 'gpt3', '--tp', 8, '--cp', 2, '--dp', 16, '--global-batch',
                 16)
    said = ' '.join(words.split()).partition('No software is named: ')[2]
    tuned, plain = map(float, re.findall(r'([0-9.]+) s in (?:tuned|plain)', said))
    assert plain < tuned and 'faster here: its gradients, in 16 bits, are half the bytes.' in said
    slower = ' '.join(good('explain', '--model', 'llama3.1_8B', '--dp', 8).split())
    assert 'gradients in 16 bits).' in slower and 'faster here' not in slower


def test_documents_are_described_once(tmp_path):
    file = tmp_path / 'lengths.txt'
    file.write_text('100 400 2000')
    asked = 'explain', '--model', 'llama3.1_8B', '--dp', 8, '--global-batch', 64, '--lengths', file
    for words in (good(*asked), json.dumps(json.loads(good(*asked, '--format', 'json'))['notes'])):
        assert ' '.join(words.split()).count('3 documents of 100 to 2,000 tokens') == 1


def explained(*args): return json.loads(good('explain', *args, '--format', 'json'))


def job_written(folder, *args):
    "A file of our own JSON that `explain` writes."
    path = folder / 'job.json'
    good('explain', *args, '--export', 'json', '-o', path)
    return path


@pytest.mark.parametrize('groups, more', [
    (('--tp', 8, '--dp', 2), ()), (('--tp', 2, '--dp', 8), ()),
    (('--tp', 4, '--dp', 4), ('--nvlink-size', 4)),
    (('--tp', 4, '--dp', 4), ('--system', 'GB200-NVL72'))])
def test_a_placement_is_of_the_groups_and_the_system_of_a_job(tmp_path, groups, more):
    "Once tp=8 stayed 4 to a domain; with tp=2 and with smaller domains there was no answer."
    about = '--model', 'llama3.1_8B', '--global-batch', 64
    file = job_written(tmp_path, *about, '--tp', 4, '--dp', 4)
    found = explained('--job', file, *groups[:2], *more)   # as many GPUs
    assert found['stats'] == explained(*about, *groups, *more)['stats']


def test_a_strategy_that_is_said_holds(tmp_path):
    "The published 2D layer is another with one GPU of cp, too; with other groups it follows them."
    about = '--model', 'gpt3', '--tp', 4, '--global-batch', 16, '--assumptions', 'paper'
    file = job_written(tmp_path, *about, '--strategy', '2d-seqp')
    priced = lambda *more: explained(*about, *more)['stats']
    again = explained('--job', file, '--assumptions', 'paper')['stats']
    assert again == priced('--strategy', '2d-seqp') != priced()
    found = explained('--job', file, '--cp', 2, '--dp', 1, '--assumptions', 'paper')
    assert found['stats'] == priced('--cp', 2)
    plain = job_written(tmp_path, *about, '--cp', 2)
    assert explained('--job', plain, '--cp', 1, '--dp', 1, '--assumptions', 'paper')['stats'] == (
        priced())


def test_a_placement_that_is_said_holds(tmp_path):
    about = '--model', 'llama3.1_8B', '--global-batch', 64, '--tp', 4, '--dp', 4
    file = job_written(tmp_path, *about, '--nvlink-tp', 2)
    assert explained('--job', file, '--zero-stage', 0)['parallel']['nvlink_tp'] == 2
    found = explained('--job', file, '--tp', 8, '--nvlink-tp', 4)['parallel']
    assert (found['nvlink_tp'], found['nvlink_dp']) == (4, 2)


SUMMED_UP = '--reduce-each', 'no'


def test_another_stage_reduces_gradients_as_it_does(tmp_path):
    "Not as the stage of the job did, unless that was said."
    about, third = ('--model', 'llama3.1_8B', '--dp', 8), ('--zero-stage', 3)
    each, once = (explained(*about, *third, *more)['stats'] for more in ((), SUMMED_UP))
    assert once['gradients_GB'] > 4 * each['gradients_GB']
    file, script = job_written(tmp_path, *about, '--zero-stage', 1), tmp_path / 'train.sh'
    script.write_text(good('explain', '--job', file, '--export', 'megatron'))
    assert explained('--job', file, *third)['stats'] == each
    assert explained('--job', file, *third, *SUMMED_UP)['stats'] == once
    found = explained('--job', script, '--system', 'H100-80GB', *third)['stats']
    assert found['gradients_GB'] == each['gradients_GB']
    file = job_written(tmp_path, *about, *third, *SUMMED_UP)
    assert explained('--job', file)['stats'] == once


def test_another_model_has_the_documents_of_a_job(tmp_path):
    lengths = tmp_path / 'lengths.txt'
    lengths.write_text('100 400 2000')
    packed = '--dp', 8, '--global-batch', 64, '--seq-len', 2048, '--lengths', lengths
    file = job_written(tmp_path, '--model', 'llama3.1_8B', *packed)
    found = explained('--job', file, '--model', 'gpt3')
    assert found['stats'] == explained('--model', 'gpt3', *packed)['stats']
    assert 'documents of 100 to 2,000 tokens' in ' '.join(found['notes'])


def test_of_one_there_are_not_several(tmp_path):
    lengths = tmp_path / 'lengths.txt'
    lengths.write_text('1024')
    asked = '--model', 'llama3.1_8B', '--global-batch', 1, '--seq-len', 1024
    has(good('explain', *asked, '--lengths', lengths), ', 1 sample of 1024 tokens an iteration',
        '1 document of 1,024 tokens')
    has(bad('plan', *asked, '--gpus', 1, '--tokens', 1), 'of an iteration: 1 sample of 1024')


def test_what_is_needed_says_what_it_rests_on():
    asked = ('sensitivity', '--model', 'llama3.1_8B', '--dp', 8, '--global-batch', 64,
             '--needed', 'matrix_flops_fp16', '--ratio', .9)
    has(good(*asked), 'matrix_flops_fp16 must be', 'It does not fit: ', 'Evidence: near')
    assert 'Evidence: ' in json.loads(good(*asked, '--format', 'json'))['notes'][1]


def examples_of(name):  # list of list of words
    "The commands that the help of a command shows."
    text = good(name, '--help').split('Example: ')[1].split('\n\n')[0].replace('\\\n', ' ')
    commands = [line.split() for line in text.splitlines()]
    assert all(words[:2] == ['transformer-perf', name] for words in commands)
    return [words[1:] for words in commands]


def test_the_example_of_what_is_needed_finds_it():
    said = good(*examples_of('sensitivity')[1])
    has(said, 'must be', 'times the')
    assert 'It does not fit' not in said


def test_examples_of_what_is_explained_fit():
    whole, _, figure = examples_of('explain')
    has(good(*figure), 'dp_comm_s = ')
    for asked in whole, figure[:figure.index('--figure')]:
        has(' '.join(good(*asked).split()), 'within the 84.9 GB')   # lines break anywhere


def test_formats_carry_full_precision(tmp_path):
    options = ['search', *CORRECTED, '--nvlink-size', 4, '--gpus', '512,2048', '--gpus', 4096,
               '--top', 2]
    system = {**json.loads((systems_folder() / 'H200.json').read_text()), 'nvlink_size': 4}
    expected = search('gpt3_1T', [512, 2048, 4096], system, k=2,
                      global_batch=4096, assumptions='corrected').iteration_s.tolist()
    rows = csv.DictReader(io.StringIO(good(*options, '--format', 'csv')))
    assert [float(row['iteration_s']) for row in rows] == expected
    output = tmp_path / 'found.json'
    assert good(*options, '--format', 'json', '--output', output) == ''
    assert [row['iteration_s'] for row in json.loads(output.read_text())['found']] == expected


def test_files_of_ones_own(tmp_path):
    model, system = tmp_path / 'mine.json', tmp_path / 'cluster.json'
    model.write_text('{"l": 1024, "e": 1024, "h": 16, "depth": 8}')
    system.write_text((systems_folder() / 'A100.json').read_text())
    text = good('search', '--model', model, '--system', system, '--gpus', 16, '--global-batch', 64,
                '--strategy', 'all')
    has(text, 'mine on 16 cluster GPUs')


EXPLAINED = ('explain', '--tp', 4, '--pp', 32, '--dp', 16, '--nvlink-size', 4)


def test_explain():
    has(good(*EXPLAINED, *PAPER), '102.5 samples/s', 'fusedla', 'reducescatter', 'network')
    found = json.loads(good(*EXPLAINED, *PAPER, '--format', 'json'))
    assert found['parallel']['nvlink_tp'] == 4 and len(found['layers']) == 14
    assert abs(found['stats']['samples_per_s'] / 102.463805377367 - 1) < 1e-9


def test_every_field_of_a_configuration_can_be_typed():
    names = [o.name for o in (*LAYOUT, *CHOSEN)]
    assert {*names, 'strategy'} == {*vars(Parallel())} and len({*names}) == len(names)
    for command in ('explain', 'fits', 'improve', 'why-not', 'sensitivity'):
        assert {*names} <= {o.name for o in COMMANDS[command].options}
    found = json.loads(good(
        'explain', '--model', 'deepseek_v3', '--system', 'H100-80GB', '--tp', 2, '--dp', 32,
        '--ep', 8, '--etp', 2, '--precision', 'fp8-block', '--dispatcher', 'once', '--tp-overlap',
        'yes', '--format', 'json'))['parallel']
    assert [found[name] for name in ('ep', 'etp', 'precision', 'dispatcher', 'tp_overlap')] == [
        8, 2, 'fp8-block', 'once', True]
    has(bad('explain', '--tp-overlap', 'maybe'), "unknown --tp-overlap 'maybe'")


def test_answers_say_what_they_are_about():
    "A file of Hugging Face brings its own length of samples: it is said."
    file = Path(__file__).parent / 'data' / 'hf_configs' / 'Meta-Llama-3.1-8B.json'
    about = ('2048 samples of 131072 tokens (the most that its config.json allows) an '
             'iteration')
    model = ('--model', file, '--system', 'H200')
    for command in ('explain', 'fits', 'why-not'):
        done = run(command, *model, '--tp', 8, '--cp', 8, '--pp', 2)
        title, _, _ = done.stdout.partition('\n\n')   # no wider than a table
        assert max(map(len, title.splitlines())) <= 100, done.stderr
        assert ' '.join(title.split()) == (
            f'Meta-Llama-3.1-8B, 128 H200 GPUs, 64 to an NVLink domain, {about}')
    found = good('search', *model, '--gpus', 512, '--strategy', '2d-seqp', '--top', 1)
    has(' '.join(found.split()), about)
    found = json.loads(good('explain', *model, '--format', 'json'))
    assert (found['seq_len'], found['global_batch']) == (131072, 2048)


def test_explain_a_figure():
    asked = (*EXPLAINED, *CORRECTED, '--figure', 'pp_comm_s')
    has(good(*asked, '--depth', 4), '1. pp_comm_s = N * sent', 'nvlink_latency = ',
        'system H200: ')
    found = json.loads(good(*asked, '--format', 'json'))
    assert found['figure'] == 'pp_comm_s' and found['tree']['formula'] == 'N * sent'


def test_the_papers_names_of_options():
    new, old = (good('explain', '--model', 'gpt3', '--dp', 4, *words) for words in (
        ('--tp', 4, '--cp', 2, '--nvlink-tp', 4, '--nvlink-cp', 2),
        ('--tp1', 4, '--tp2', 2, '--nvlink-tp1', 4, '--nvlink-tp2', 2)))
    assert new == old and '8 GPUs (tp 4 x cp 2)' in new


def test_the_package_runs_as_the_command():
    "Where the folder of commands is on no path."
    done = subprocess.run([sys.executable, '-m', 'transformer_perf', 'models'],
                          capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, good('models'), '')


@pytest.mark.parametrize('text, number', [
    ('100k', 1e5), ('100K', 1e5), ('5M', 5e6), ('5m', 5e6), ('15.6T', 15.6e12), ('1e12', 1e12)])
def test_an_amount_has_a_letter_large_or_small(text, number):
    assert amount(text, '--usd') == number
    with pytest.raises(ValueError, match='--usd'): amount(f'{text}x', '--usd')


def test_a_plan_says_when_it_compares_no_numbers_of_gpus():
    told = lambda gpus: ' '.join(good('plan', 'llama3.1_8B', '--gpus', gpus).split())
    only = 'Only one number of GPUs was asked about'
    assert only in told(64) and only not in told('32,64')


def test_lists():
    has(good('models', '--wide'), '1006.666')
    systems = good('systems')   # how much a GPU holds is asked more often than what it draws
    has(systems, 'MI300X', '(wired, GPU W, server W: --wide)')
    models = {row['name']: row for row in json.loads(good('models', '--format', 'json'))['rows']}
    names, one = models.keys(), models['deepseek_v3']
    assert {'gpt3', 'gpt3_1T', 'vit_era5'} <= names
    assert (one['experts'], one['parameters_B'], one['layers_B']) == ('8 of 256', 682.636, 669.173)
    assert round(one['parameters_B'] - one['of them MTP_B']) == 671   # as published, without
    m = as_model('llama3.1_8B')
    assert models[m.name]['model_PFLOP_per_sample'] == round(
        m.flops_per_token() * m.seq_len / 1e15, 4) == .4216
    has(good('explain', '--model', 'deepseek_v3', '--dp', 8), 'deepseek_v3')
    rows = csv.DictReader(io.StringIO(good('models', '--format', 'csv')))
    assert {row['name'] for row in rows} == names


def test_zero():
    text = good('zero', '--model', '13B', '--system', 'tg40', '--gpus', '8,64')
    assert '13B on tg40' in text and text.count('/ 40') == 8
    has(' '.join(text.split()), 'hide behind nothing, and stage 1 sends half as much again')
    rows = json.loads(good('zero', '--gpus', 64, '--format', 'json'))['rows']
    memory = [row['memory_GB'] for row in rows]
    assert [row['stage'] for row in rows] == [0, 1, 2, 3] and memory == sorted(memory, reverse=True)
    has(bad('zero', '--samples', 0), '--samples=0 must be')
    has(good('zero', 'deepseek_v3', '--system', 'H200'), 'deepseek_v3 on H200', 'never')
    text = good('zero', '--system', 'tg40', '--gpus', '60,61,64')   # of 8 they use 4, 1 and all
    has(text, 'Priced as if 61 GPUs used 1 of the 8 of each NVLink domain')
    assert text.count('Priced as if') == 1


JOBS = {
    'tt.toml': '[model]\nflavor = "70B"\n[training]\nlocal_batch_size = 2\nseq_len = 4096\n'
               '[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 8\n',
    'ds.json': '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}'}


@pytest.mark.parametrize('command, args, lacks', [
    ('fits', (), 'model: give --model'), ('explain', ('--dp', 16), 'model: give --model'),
    ('search', ('--gpus', 128), 'model: give --model'), ('zero', (), 'model: give --model'),
    ('sweep', ('-o', 'x.csv'), 'model: give --model'), ('panels', (), 'model: give --model'),
    *((name, ('--model', 'gpt3'), 'number of GPUs: give --dp')
      for name in ('explain', 'fits', 'improve', 'why-not', 'sensitivity')),
    *((name, ('--model', 'gpt3'), 'number of GPUs: give --gpus')
      for name in ('search', 'plan', 'zero')),
    *((name, ('--model', 'gpt3', '--gpus', '64,128'), 'global batch: give --global-batch')
      for name in ('search', 'plan', 'sweep', 'run-configs')),
    ('zero', ('--model', '13B', '--gpus', '8,64'), 'whole samples of a GPU: give --samples')])
def test_what_a_job_does_not_say_is_asked_for(tmp_path, command, args, lacks):
    "No default of ours stands for it."
    for name, text in JOBS.items():
        (tmp_path / name).write_text(text)
        says = bad(command, '--job', tmp_path / name, *args, cwd=tmp_path)
        has(says, f'the job does not say its {lacks}')


def test_every_command_takes_the_job_that_another_wrote(tmp_path):
    "With its system, and its strategy where that does not follow from its sizes."
    about = ('--model', 'llama3.1_8B', '--tp', 4, '--cp', 2, '--dp', 4, '--strategy', '2d',
             '--global-batch', 64)
    (tmp_path / 'j.json').write_text(good('explain', *about, '--export', 'json'))
    job, formatted = ('--job', tmp_path / 'j.json'), ('--format', 'json')
    own = json.loads(good('explain', *about, *formatted))
    again = json.loads(good('explain', *job, *formatted))
    assert again['parallel'] == own['parallel'] and again['stats'] == own['stats']
    assert json.loads(good('fits', *job, *formatted))['stats'] == own['stats']
    found = json.loads(good('plan', *job, '--gpus', 64, *formatted))
    assert {row['system'] for row in found['answers']} == {'H100-80GB'}
    has(good('sweep', *job, '--gpus', 64, '-o', 'x.csv', cwd=tmp_path), 'x.csv')
    written = good('run-configs', *job, '--gpus', 64, '--folder', 'x', cwd=tmp_path)
    has(written, 'exec_1d_llama3.1_8B')


SCRIPT = """torchrun --nproc-per-node 8 --nnodes 16 pretrain_gpt.py --num-layers 32 \\
  --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 \\
  --untie-embeddings-and-output-weights --rotary-base 1000000 --micro-batch-size 1 \\
  --global-batch-size 256 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 \\
  --hidden-dropout 0 --attention-dropout 0 --use-distributed-optimizer --bf16
"""


def test_an_option_changes_what_it_names_alone(tmp_path):
    "Another model has the samples of the job, other groups its GPUs; what is left out is told."
    (tmp_path / 'job.sh').write_text(SCRIPT)
    job = ('explain', '--job', tmp_path / 'job.sh', '--system', 'H100-80GB')
    asked = lambda *more: json.loads(good(*job, *more, '--format', 'json'))
    assert asked('--model', 'llama3.1_70B')['seq_len'] == 4096
    assert asked('--model', 'llama3.1_70B', '--seq-len', 8192)['seq_len'] == 8192
    sizes = [(asked(*more)['parallel'][group]) for more in ((), ('--tp', 4), ('--pp', 8, '--dp', 8))
             for group in ('tp', 'pp', 'dp')]
    assert sizes == [8, 4, 4, 4, 4, 8, 8, 8, 8]
    has(bad(*job, '--tp', 3), '128 GPUs of the job must be divisible by the 12 of tp, cp and pp')
    written = good(*job, '--export', 'megatron')
    has(written, '--untie-embeddings-and-output-weights')
    assert written.splitlines()[0] == '# of the job, not here: --rotary-base'


def test_the_batch_follows_from_a_job_and_its_gpus(tmp_path):
    for name, text in JOBS.items(): (tmp_path / name).write_text(text)
    options = ('--model', 'llama3.1_8B', '--format', 'json')
    for name, tp in (('tt.toml', 8), ('ds.json', 1)):
        job = ('--job', tmp_path / name, *options)
        batch = as_job(tmp_path / name, 128).global_batch
        assert batch == 2 * 128 // tp
        for asked in (('search', '--gpus', 128), ('explain', '--dp', 128 // tp)):
            found = json.loads(good(asked[0], *job, *asked[1:]))
            assert found['global_batch'] == batch
        said = json.loads(good('explain', *job, '--dp', 128 // tp, '--global-batch', 512))
        assert said['global_batch'] == 512
    json.loads(good('plan', *job, '--gpus', '16,32', '--batch-tokens', 2**21))


def test_the_search_has_the_defaults_of_python():
    "Context parallelism too where prices are calibrated, as in a plan."
    args = ('search', *SMALL[:2], '--gpus', 64, '--top', 1)
    for more, tried in ({'assumptions': 'corrected'}, '1d'), ({}, '1d, 2d-seqp'):
        expected = search('gpt3', 64, 'H100-80GB', **more).candidates
        text = good(*args, *(f'--{name}={value}' for name, value in more.items()))
        has(text, f'{expected:,} candidates considered, of strategy {tried} (--strategy all: also')
    assert good(*args, '--strategy', 'all').endswith('of strategy 1d, 2d-seqp, 2d.\n')


def test_layers_that_do_not_divide_are_told():
    told = 'layers divide evenly into no more than'
    search_of = ('search', '--gpus', 1024, '--assumptions', 'corrected', '--model')
    text = ' '.join(good(*search_of, 'llama3.1_405B', code=1).split())
    has(text, f'126 {told} 2 pipeline stages on 1024 GPUs; with --assumptions calibrated')
    text = good(*search_of, 'deepseek_v3', '--system', 'H200')
    has(' '.join(text.split()), f'61 {told} 1 pipeline stage ')
    assert told not in ' '.join(good('search').split())   # calibrated: stages may differ


SMALL = ('--model', 'gpt3', '--gpus', 512, '--global-batch', 512, '--system', 'H200')


def test_choices_of_a_search():
    has(good('search', *SMALL, '--assumptions', 'corrected', '--zero-stage', '1,3'), 'ZeRO')
    has(bad('search', '--zero-stage', 4), 'zero_stage=4 must be 0, 1, 2 or 3')
    text = good('search', *SMALL, '--assumptions', 'calibrated', '--recompute', 'none,full',
                '--virtual-stages', '1,2,4', '--sequence-sharded', 'yes,no')
    has(text, 'virtual', 'other', 'Evidence: extrapolated: H200 was fitted to 1 run only')
    text = good('search', *SMALL, '--assumptions', 'corrected', '--recompute', 'full')
    has(text, 'not in the published model: recompute full')
    has(bad('search', '--recompute', 'all'), "unknown recompute 'all'")
    has(bad('search', '--sequence-sharded', 'maybe'), "unknown --sequence-sharded 'maybe'")
    has(bad('search', '--sequence-sharded', ''), '--sequence-sharded')
    text = good('search', *SMALL, '--assumptions', 'calibrated', '--strategy', '2d', '--top', 1)
    has(text, 'extrapolated: no run with strategy 2d')
    text = good('explain', '--model', 'gpt3', '--tp', 4, '--pp', 8, '--dp', 4, '--assumptions',
                'calibrated', '--recompute', 'full', '--virtual-stages', 3)
    has(text, 'fusedla', 'reducescatter', 'other')



@pytest.mark.parametrize('typed, held', [
    (('tp=4,8', 'cp=1'), dict(tp=[4, 8], cp=1)),
    (('tp1=8', 'micro-batch=1,2', 'nvlink-tp=4'), dict(tp=8, micro_batch=[1, 2], nvlink_tp=4))])
def test_a_search_holds_sizes(typed, held):
    options = [word for size in typed for word in ('--fixed', size)]
    text = good('search', *SMALL, '--assumptions', 'corrected', *options, '--format', 'json')
    rows = json.loads(text)['found']
    kind = [*KIND, *(name for name, x in held.items() if name not in KIND and x == [1, 2])]
    expected = search('gpt3', 512, 'H200', 512, assumptions='corrected', fixed=held, kind=kind)
    assert [row['iteration_s'] for row in rows] == expected.iteration_s.tolist()
    for name, values in held.items():
        assert {row[name] for row in rows} == {*np.ravel(values).tolist()}


def test_a_search_says_what_it_held():
    has(good('search', *SMALL, '--fixed', 'tp=5', code=1), 'held: tp 5')


def test_a_plan_holds_sizes():
    text = good('plan', *SMALL, '--fixed', 'tp=4', '--fixed', 'pp=8,16', '--format', 'json')
    rows = json.loads(text)['front']
    assert {row['tp'] for row in rows} == {4} and {row['pp'] for row in rows} <= {8, 16}


@functools.cache
def rows_validated():   # list of dict, which nobody changes
    return list(csv.DictReader(io.StringIO(good('validate', '--format', 'csv'))))


def test_validate(tmp_path):
    text = good('validate', '--wide')
    has(text, 'megatron-2022', 'Calculon 3.65 %', 'never', 'paper', 'corrected')
    rows = rows_validated()
    assert len(rows) == 30
    assert all(float(row['predicted_iteration_s']) > 0 and not row['reason'] for row in rows)
    file = tmp_path / 'runs.csv'
    file.write_text('gpu,tp\nA100-80GB,1\n')
    has(bad('validate', file), "lacks the column 'layers' (and 'hidden', 'heads', 'seq_len'")
    has(bad('validate', tmp_path / 'none.csv'), 'cannot be read')


def test_validate_says_of_each_row_why_it_is_none(tmp_path):
    "Also where no column tells rows apart; of the column that was meant, its name."
    file = tmp_path / 'runs.csv'
    file.write_text('model,system,n_gpus,dp,micro_batch,global_batch,seq_len,iteration_s\n'
                    'llama3.1_8B,H100-80GB,8,8,1,64,8192,7.4\n')
    has(' '.join(good('validate', file).split()), '0: gpu must be one of H100',
        "column 'system' is not read (is it 'gpu'?)")


def test_calibrate(tmp_path):
    runs, system, output = (tmp_path / name for name in ('runs.csv', 'my.json', 'my-cal.json'))
    system.write_text((systems_folder() / 'B200-180GB.json').read_text())
    rows = [row for row in rows_validated() if row['gpu'] == 'B200']
    with open(runs, 'w', newline='') as file:
        table = csv.DictWriter(file, rows[0].keys())
        table.writeheader(); table.writerows(rows[:5])
    fit = ('calibrate', runs, '--system', system, '-o', output, '--free')
    has(good(*fit, 'clock,host_layer'), 'my-cal.json')
    has(output.read_text(), 'clock')
    found = json.loads(good('search', '--system', system, '--gpus', 64, '--model', 'gpt3',
                            '--global-batch', 64, '--assumptions', output, '--format', 'json'))
    assert found['found'] and found['found'][0]['other_s'] > 0
    assert found['found'][0]['evidence'].startswith('measured: 21 runs')   # 16 shipped, 5 more
    many = 'clock,host_layer,host_tp,straggler,host_sharpness,score_bandwidth'
    has(bad(*fit, many), 'runs cannot determine')
    has(bad(*fit, 'clok'), "did you mean 'clock'")


NCCL = """# nThread 1 nGpus 8
{ranks}
#       size count type redop root time algbw busbw #wrong time algbw busbw #wrong
     67108864 16777216 float sum -1 600.0 111.85 195.73 0 600.0 111.85 195.73 0
    268435456 67108864 float sum -1 2200.0 122.02 213.53 0 2200.0 122.02 213.53 0
"""
TRAIN = """torchrun pretrain_gpt.py --world-size 8 --tensor-model-parallel-size 2 --num-layers 16
 --micro-batch-size 1 --global-batch-size 32 --seq-length 4096 --max-position-embeddings 4096
 --hidden-size 4096 --num-attention-heads 32 --vocab-size 51200 --bf16 --sequence-parallel"""
STEP = ' iteration {} / 9 | elapsed time per iteration (ms): {} | global batch size: 32 |\n'


@pytest.fixture
def own_files(tmp_path):
    "What people have of a GPU that does not ship."
    system = json.loads((systems_folder() / 'H100-80GB.json').read_text())
    ranks = '\n'.join(f'# Rank {i} Group 0 Pid 1 on node device {i} [0] L99' for i in range(8))
    event = lambda i, cat, **more: {'cat': cat, 'name': 'aten::mm', 'args': {
        'External id': i, 'Input Dims': [[4096, 4096], [4096, 4096]],
        'Input type': ['c10::BFloat16'] * 2}, **more}
    files = {'l99.json': json.dumps(system | {
                 'matrix_flops_fp16': 500., 'matrix_flops_fp8': 1000.}),
             'all_reduce.txt': NCCL.format(ranks=ranks),
             'trace.json': json.dumps({'traceEvents': [
                 event(1, 'cpu_op'), event(1, 'kernel', dur=450.)]}),
             'products.csv': 'm,n,k,precision,microseconds\n4096,4096,4096,bf16,460\n'
                             '8192,8192,8192,fp8,1700\n',
             'train.sh': TRAIN.replace('\n', ''),
             'train.log': ''.join(STEP.format(i, x) for i, x in enumerate((9000, 2200, 2100)))}
    for name, text in files.items(): (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize('files, told', first_of(2, [
    (['trace.json', 'all_reduce.txt', 'train.log'], {'product_share', 'clock', 'domain_share'}),
    (['products.csv'], {'product_share'}), (['trace.json'], {'product_share'}),
    (['all_reduce.txt'], {'domain_share'}), (['train.log'], {'clock'})]))
def test_calibrate_from_what_people_have(own_files, files, told):
    output = own_files / 'cal.json'
    jobs = ['--jobs', own_files / 'train.sh'] if 'train.log' in files else []
    text = good('calibrate', *(own_files / name for name in files), *jobs, '--system',
                own_files / 'l99.json', '-o', output)
    has(text, 'after the fit', 'As shipped: kernels:', 'score_bandwidth', *told)
    found = json.loads(output.read_text())
    assert {row['parameter'] for row in found['fitted']} == told
    assert all(row['low'] < row['value'] < row['high'] for row in found['fitted'])
    has(good('explain', '--model', 'gpt3', '--tp', 8, '--pp', 8, '--system', own_files / 'l99.json',
             '--global-batch', 64, '--assumptions', output), 'fusedla')


def test_calibrate_refuses_in_one_line(own_files):
    of = lambda *names: ['calibrate', *(own_files / name for name in names), '-o',
                         own_files / 'cal.json']
    has(bad(*of()), 'calibrate needs files and -o FILE')
    has(bad(*of('products.csv')), 'a system must say where kernels were measured (--system)')
    untimed = own_files / 'untimed.csv'
    untimed.write_text('m,n,k,precision,seconds\n8192,8192,8192,bf16,1e-3\n')
    has(bad(*of('untimed.csv')), "the table of products lacks the column 'microseconds'")
    runs = own_files / 'runs.csv'
    runs.write_text('layers,hidden,heads,seq_len,global_batch,iteration_s\n32,4096,32,8192,64,7\n')
    has(bad(*of('runs.csv')), 'a system must say where the runs were measured, or their column gpu')
    mine = ['--system', own_files / 'l99.json']
    has(bad(*of('train.log'), *mine), '1 logs and 0 jobs')
    has(bad(*of('train.sh'), *mine, '--jobs', own_files / 'train.sh'), 'has no steps')
    odd = own_files / 'odd.csv'
    odd.write_text('m,n,k,precision,microseconds\n1,1,1,bf17,1\n')
    has(bad(*of('odd.csv'), *mine), "unknown precision 'bf17'")
    odd.write_text('m,n,k,precision,microseconds\n1,1,0,bf16,1\n')
    has(bad(*of('odd.csv'), *mine), 'row 0: k=0')
    has(bad('measure'), 'measure needs -o FILE.json')
    has(bad('measure', '-o', own_files / 'my.csv'), 'must be the name of a .json file')

# for other programs

SCHEMA = json.loads(schema_text())
ANSWERS = {   # command -> words
    'search': [*SMALL, '--top', 2], 'explain': [*EXPLAINED[1:]], 'models': [], 'systems': [],
    'software': [], 'zero': ['--gpus', '8,64'], 'validate': [], 'panels': ['collectives'],
    'sweep': [*SMALL, '--system', 'H200', '-o', 'x.csv'],
    'run-configs': [*SMALL, '--system', 'H200'],
    'calibrate': ['runs.csv', '-o', 'own.json', '--free', 'clock'],
    'plan': [*SMALL], 'sensitivity': [*EXPLAINED[1:]],
    **{name: ['--model', 'gpt3', '--tp', 8, '--pp', 8, '--dp', 2, '--global-batch', 64]
       for name in ('fits', 'improve', 'why-not')}}


@pytest.fixture(scope='module')
def schema():
    "What holds an answer to the schema."
    import jsonschema   # which takes seconds, of whoever runs these tests
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA)


@pytest.mark.parametrize('name', ANSWERS)
def test_answers_are_as_the_schema_says(name, tmp_path, schema):
    "Every command says what it is and what it answers, and to no one but its reader."
    if name == 'calibrate':
        runs = published()
        runs[table_of(runs) == 'mcore-h100'].to_csv(tmp_path / 'runs.csv', index=False)
    done = run(name, *ANSWERS[name], '--format', 'json', cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == '' and '\x1b' not in done.stdout
    found = json.loads(done.stdout)
    assert (found['schema'], found['version'], found['command']) == (
        'transformer_perf.answer', 1, name)
    schema.validate(found)
    for file in found.get('written', []): assert (tmp_path / file).stat().st_size > 0


def test_the_schema_is_strict_and_complete(schema):
    "It describes each command of today and refuses what is no answer."
    assert good('--schema') == schema_text()
    named = [case['if']['properties']['command']['const'] for case in SCHEMA['allOf']]
    assert {*ANSWERS, 'bench', 'measure'} == {*named} == COMMANDS.keys()
    for name in named: schema.check_schema(json.loads(good(name, '--schema')))
    has(bad('search', '--gpus', 8, '--schema'), '--schema stands alone')
    found = json.loads(good('search', *SMALL, '--format', 'json'))
    wrong = [found | {'version': 2}, found | {'notes': 'none'}, found | {'schema': 'x'},
             {name: x for name, x in found.items() if name != 'candidates'},
             found | {'found': [{**found['found'][0], 'tp': 0}]},
             found | {'found': [{**found['found'][0], 'iteration_s': None}]},
             {name: found[name] for name in ('schema', 'version', 'command')}]
    for answer in wrong: assert not schema.is_valid(answer)


def test_a_figure_taken_apart_is_an_answer(schema):
    found = json.loads(good(*EXPLAINED, '--figure', 'iteration_s', '--format', 'json'))
    schema.validate(found)
    assert found['tree']
    assert not schema.is_valid({name: x for name, x in found.items() if name != 'tree'})


def test_nothing_that_fits_is_json_too(schema):
    text = good('search', '--gpus', '64', '--format', 'json', code=1)
    found = json.loads(text)
    schema.validate(found)
    assert found['found'] == [] and 'GB over the 84.9 GB' in found['none']['64']
    found = json.loads(good('sensitivity', '--gpus', '64', '--format', 'json', code=1))
    schema.validate(found)
    assert found['rows'] == [] and 'GB over the 84.9 GB' in found['notes'][0]
    assert good('sensitivity', '--gpus', '64', '--format', 'csv', code=1).startswith('field,of,')


def test_a_fault_of_ours_is_no_answer():
    "1 means that nothing fits; whatever else goes wrong has a code of its own."
    script = ('from transformer_perf import cli\n'
              'cli.model_row = lambda model: 1 / 0\n'
              'cli.main(["models"])')
    done = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 70 and 'ZeroDivisionError' in done.stderr and not done.stdout


def loaded(code):  # set of str
    "The modules that a program has loaded at its end."
    more = 'import sys; print(*sys.modules, file=sys.stderr)'
    done = subprocess.run([sys.executable, '-c', f'{code}\n{more}'], capture_output=True, text=True,
                          check=True)
    return {*done.stderr.split()}


ASK = ('import contextlib\nfrom transformer_perf.cli import main\n'
       'with contextlib.suppress(SystemExit): ')
HEAVY = {'pandas', 'matplotlib', 'scipy'}


def test_what_is_not_needed_is_not_loaded():
    "So the package, its help and its lists start at once; a table of a search needs pandas."
    assert not loaded('import transformer_perf') & {*HEAVY, 'numpy'}
    assert not loaded(f'{ASK}main(["--help"])') & {*HEAVY, 'numpy'}
    assert not loaded(f'{ASK}main(["search", "--help"])') & {*HEAVY, 'numpy'}
    for listed in ('models', 'systems'): assert not loaded(f'{ASK}main(["{listed}"])') & HEAVY
    assert not loaded('from transformer_perf import Model, Parallel, System, estimate\n'
                      'estimate("gpt3", Parallel(tp=8), "H200", 64, "calibrated")') & HEAVY
    assert 'pandas' in loaded(f'{ASK}main(["search", "--gpus", "8", "--model", "llama3.1_8B"])')


def test_the_package_has_its_modules_by_name():
    "Each is imported when it is first asked for; what is none is an error, as of any module."
    asked = 'import transformer_perf as perf; perf.systems.as_system("H200")'
    found = loaded(asked)
    assert 'transformer_perf.systems' in found and 'transformer_perf.iteration' not in found
    with pytest.raises(AttributeError, match="'transformer_perf' has no attribute 'nope'"):
        transformer_perf.nope  # noqa: B018 -- to ask is what raises


def test_help_teaches():
    has(good('search', '--help'), 'Example:', 'placement', '--virtual-stages')
    has(good('--help'), 'explain', 'calibrate', 'Exit codes: 0', '--schema')
    assert good() == good('-h') == good('--help')


def test_what_is_not_tried_would_fit():
    "Of 61 GPUs nothing shares a layer: only adapters were named, and ZeRO 3 fits with all weights."
    asked = ('search', '--model', 'llama3.1_8B', '--system', 'TPU-v6e', '--gpus', 61,
             '--global-batch', 61)
    has(good(*asked, code=1), 'Not tried: --zero-stage 3')
    has(good(*asked, '--zero-stage', 3), 'ZeRO')
    alone = 'search', '--model', 'llama3.1_8B', '--system', 'TPU-v6e', '--gpus', 1
    assert '--zero-stage' not in good(*alone, '--global-batch', 1, code=1)   # it has no copies
    published = '--assumptions', 'corrected', '--zero-stage', 3   # recompute is not tried by itself
    has(good(*asked, *published, code=1), 'Not tried: --recompute full')
    has(good(*asked, *published, '--recompute', 'full'), 'full')


def test_what_cannot_fit_is_not_proposed():
    "A GPU's share of all that 405B hold is more than it has: ZeRO 3 was the first thing named."
    asked = ('search', '--model', 'llama3.1_405B', '--global-batch', 64, '--gpus')
    assert '--zero-stage 3' not in good(*asked, 64, code=1)
    has(good(*asked, 64, '--zero-stage', 3, code=1), 'no feasible configuration')
    assert 'Not tried' not in good(*asked, 8, code=1)   # nor the weights alone
    assert 'Not tried' not in good(*asked, 8, '--adapters', 'lora:16', code=1)
    alone = ('search', '--model', 'llama3.1_8B', '--global-batch', 64, '--fixed', 'tp=1',
             '--fixed', 'pp=1', '--gpus', 2)
    has(good(*alone, code=1), 'Not tried: --zero-stage 3')
    has(good(*alone, '--zero-stage', 3), 'ZeRO')


def test_nothing_feasible_is_an_answer():
    text = good('search', '--gpus', '64', code=1)
    has(' '.join(text.split()), 'no feasible configuration', 'GB over the 84.9 GB',
        "Not tried: --offload optimizer (states in the host's memory), --adapters lora:16 (few")
    few = ('search', '--model', 'gpt3', '--gpus', 4, '--system')
    text = good(*few, 'TPU-v5p', code=1)   # of whose host nothing is known
    has(' '.join(text.split()), 'Not tried: --adapters lora:16')
    assert '--offload' not in text
    all_tried = '--offload', 'optimizer', '--adapters', 'none', '--zero-stage', '1'
    assert 'Not tried' not in good(*few, 'A100-80GB', *all_tried, code=1)
    asked = [x if x != 4096 else 4 for x in CORRECTED]   # samples
    has(good('search', *asked, '--gpus', 7, code=1), 'multiply to 7')


MISTAKES = [
    (['search', '--system', 'H20'], "unknown system 'H20'; did you mean 'H200'?"),
    (['search', '--system', 'H100-81GB'], "unknown system 'H100-81GB'; did you mean 'H100-80GB'?"),
    (['search', '--model', 'gtp3'], "unknown model 'gtp3'; did you mean 'gpt3'?"),
    (['search', '--gpus', '0'], '--gpus=0 must be a whole number'),
    (['search', '--gpus', '2.5'], "--gpus='2.5' must be a whole number"),
    (['search', '--nvlink-size', '0'], '--nvlink-size=0 must be a whole number'),
    (['search', '--strategy', '3d'], "unknown strategy '3d'"),
    (['search', '--assumptions', 'corected'], "did you mean 'corrected'?"),
    (['search', '--top', '-1'], '--top=-1 must be a whole number'),
    (['search', '--global-batch', '-4'], '--global-batch=-4 must be a whole number'),
    (['search', '--model', 'missing.json'], 'missing.json: cannot be read'),
    (['search', '--output', '/no/such/folder/x.txt'], 'cannot be written'),
    (['search', '--output', '/tmp'], '/tmp: cannot be written (Is a directory)'),
    (['search', 'train.sh'], 'train.sh: is not the .json of a model; if it is a job, --job and'),
    (['search', '--gpu', '4'], "unknown option of search '--gpu'; did you mean '--gpus'?"),
    (['search', 'extra'], "unknown model 'extra'"),
    (['search', 'meta-llama/Llama-3.1-8B'],
     'one of Hugging Face is read from its config.json, the file or its folder'),
    (['search', 'gpt3', 'extra'], "search does not take 'extra'"),
    (['search', 'gpt3', '--model', 'vit_era5'],
     "takes the model 'gpt3' or --model, not both"),
    (['systems', 'extra'], "systems does not take 'extra'"),
    (['search', '--model', 'gpt3', '--model', 'vit_era5'],
     "--model is given twice: 'gpt3' and 'vit_era5'"),
    (['explain', '--tp', '8', '--tp1', '4'], "--tp is given twice: '8' and '4'"),
    (['panels', '--system', 'A100', 'layer', '--system', 'B200'],
     "--system is given twice: 'A100' and 'B200'"),
    (['search', '--tp', '8'], 'search does not take --tp: --fixed tp=VALUE holds it'),
    (['search', '--layout', 'Et|tL'], 'search does not take --layout: explain, fits, improve do'),
    (['search', '--fixed', 'tpp=8'], "unknown column 'tpp'; did you mean 'tp'?"),
    (['search', '--fixed', 'tp'], "--fixed 'tp' must be SIZE=VALUE,VALUE,..."),
    (['search', '--fixed', 'tp='], '--fixed tp names no number'),
    (['search', '--fixed', 'tp=4,0'], '--fixed tp=0 must be a whole number from 1'),
    (['search', '--fixed', 'cp=1', '--fixed', 'cp=2'], "--fixed: 'cp' is given twice"),
    (['explain', '--gpus', '8'],
     'does not take --gpus: search, run-configs, sweep do; here they are tp x cp x pp x dp'),
    (['estimate', 'gpt3'], "unknown command 'estimate'; `explain` prices one configuration"),
    (['explain', '--system', 'TPU-v5p', '--precision', 'fp8'],
     "precision=fp8 on TPU-v5p: no products in fp8 were measured on GPUs like 'A100'"),
    (['why-not', '--try-precision', 'fp8'], 'why-not does not take --try-precision: improve does'),
    (['search', '--top'], 'expected one argument'),
    (['search', '--format', 'xml'], "unknown --format 'xml'"),
    (['search', '--model', '[/red]'], "unknown model '[/red]'"),
    (['serach'], "unknown command 'serach'; did you mean 'search'?"),
    (['sweep', '--vary', 'hbm_bandwidth=inf', '-o', 'x.csv'], 'hbm_bandwidth=inf must be'),
    (['sweep', '--vary', 'seq_len=1', '--vary', 'seq_len=2', '-o', 'x.csv'], 'varied twice'),
    (['explain', '--tp', '12'], 'heads=128 must be divisible by tp=12'),
    (['explain', '--dp', '3'], 'global_batch=2048 must be divisible by dp=3'),
    (['explain', '--tp', '16', '--nvlink-tp', '16', '--nvlink-size', '8'],
     '16 GPUs placed in one NVLink domain, more than its nvlink_size=8'),
    (['explain', '--recompute', 'none,full'], '--recompute takes one value here'),
    (['explain', '--figure', 'iteration'], "unknown figure 'iteration'; did you mean"),
    (['explain', '--figure', 'mfu', '--format', 'csv'], '--format is table or json, not csv'),
    (['explain', '--figure', 'mfu', '--export', 'json'], '--figure and --export exclude'),
    (['explain', '--export', 'torchtitan', '-o', 'x.toml'],
     "--output='x.toml': --export torchtitan writes .yaml, not .toml"),
    (['search', '--export', 'megatron', '-o', 'x.JSON'], '--export megatron writes a script'),
    (['fits', '--export', 'deepspeed', '-o', 'x.yml'], '--export deepspeed writes .json'),
    (['explain', '--assumptions', systems_folder() / 'H200.json'],
     "H200.json: not a calibration (lacks 'sets')"),
]


REFUSED = {   # a file that says what no estimate takes -> (what it says, why, what mends it)
    'train.sh': ((
        'torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 2 '
        '--virtual-pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 8 '
        '--num-layers 8 --hidden-size 512 --seq-length 512 --num-attention-heads 8 '
        '--vocab-size 32000 --bf16\n'),
                 'schedule=1f1b needs virtual_stages=1', ('--virtual-stages', 1)),
    'titan.toml': (torchtitan_file(data_parallel_shard_degree=4, expert_parallel_degree=2),
                   'ep=2 and etp=1 share out experts', ('--ep', 1))}


@pytest.mark.parametrize('name', REFUSED)
def test_what_a_file_says_and_no_estimate_takes_is_said_with_its_name(name, tmp_path):
    text, why, mended = REFUSED[name]
    (tmp_path / name).write_text(text)
    for command in ('explain', 'fits', 'panels'):
        told = bad(command, '--job', name, cwd=tmp_path)
        assert told.startswith(f'transformer-perf: {name}: {why}'), command
    good('explain', '--job', name, *mended, cwd=tmp_path)
    told = bad('explain', '--job', name, *mended, '--precision', 'fp9', cwd=tmp_path)
    assert name not in told and 'fp9' in told   # which the file does not say


@pytest.mark.parametrize('args, message', MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_one_line(args, message): has(bad(*args), message)


BROKEN = [
    ('{"l": 2048', 'not valid JSON'), ('[1, 2]', 'must hold one JSON object'),
    ('{"l": 2048, "e": 64, "h": 4}', "lacks 'depth'"),
    ('{"l": -1, "e": 64, "h": 4, "depth": 2}', 'seq_len=-1'),
    ('{"l": 2.5, "e": 64, "h": 4, "depth": 2}', 'seq_len=2.5'),
    ('{"l": 128, "e": 64, "h": 5, "depth": 2}', 'embed_dim=64 must be divisible by heads=5'),
    ('{"l": 128, "e": 64, "h": 4, "dept": 2}', "did you mean 'depth'?"),
    ('{"l": NaN, "e": 64, "h": 4, "depth": 2}', 'NaN is not a number'),
    ('{"l": "many", "e": 64, "h": 4, "depth": 2}', "seq_len='many'"),
    ('{"l": 1, "l": 2}', "the key 'l' stands there twice"),
    ('{"e": 64, "h": 4, "depth": 2, "l": 1' + '0' * 400 + '}', 'seq_len=1000'),
    ('[' * 100_000, 'not valid JSON'), (' ' * 5_000_000, 'has more than'),
    ('\x00\xff', 'is not a text file'),
]


@pytest.mark.parametrize('text, message', BROKEN, ids=range(len(BROKEN)))
def test_broken_files(tmp_path, text, message):
    file = tmp_path / 'broken.json'
    file.write_text(text, encoding='latin-1')
    has(bad('search', '--model', file), message)


def test_outputs_that_are_no_files(tmp_path):
    small = 'models', '--format', 'csv'
    told = good(*small)
    for output in ('-', '/dev/stdout'): assert process(*small, '-o', output).stdout == told
    assert good(*small, '-o', '/dev/null') == ''
    assert Path('/dev/null').is_char_device()
    target, link = tmp_path / 'a.csv', tmp_path / 'b.csv'
    target.write_text('old'); target.chmod(0o600); link.symlink_to(target)
    good(*small, '-o', link)
    assert link.is_symlink() and target.stat().st_mode & 0o777 == 0o600
    assert target.read_text() == told


def test_a_full_or_closed_output_is_no_traceback():
    with open('/dev/full', 'w') as full:
        done = subprocess.run([COMMAND, 'models'], stdout=full, stderr=subprocess.PIPE, text=True,
                              check=False)
    assert done.returncode == 2 and 'No space left' in done.stderr
    assert done.stderr.count('\n') == 1
    done = subprocess.run(f'{COMMAND} systems --format json | head -c 1', shell=True,
                          capture_output=True, text=True, check=False)
    assert done.stderr == ''


@pytest.mark.parametrize('command', first_of(3, [
    (('search', 'llama3.1_405B', '--gpus', 512),), (('explain', 'gpt3', '--tp', 8, '--dp', 16),),
    (('models',),), (('fits', 'llama3.1_70B', '--tp', 8, '--pp', 2, '--dp', 8),),
    (('plan', '--gpus', 8192),)]), ids=lambda words: words[0])
def test_tables_fit_a_terminal_unless_all_columns_are_asked_for(command):
    text, wide = good(*command), good(*command, '--wide')
    assert max(map(len, text.splitlines())) <= 100 < max(map(len, wide.splitlines()))
    assert '--wide)' in text and '--wide' not in wide


def test_a_table_of_candidates_keeps_their_time():
    "However wide the rest is: it is what they are ranked by."
    text = good('search', 'deepseek_v3', '--gpus', 256, '--system', 'GB200-NVL72', '--top', 3,
                '--global-batch', 2048, '--precision', 'fp8-block,mxfp8', '--recompute',
                'layernorm+mla_up_proj+moe')
    has(text, 'mla_up_proj+', '--wide)')
    assert 'iteration' in text.split('------')[0] and 'iteration s' not in text


@pytest.mark.parametrize('limit, unknown', first_of(2, [
    ('--usd=5M', True), ('--tokens=1T', False), ('--hours=100', True)]))
def test_a_plan_tells_how_many_tokens_are_bought(limit, unknown):
    text = good('plan', 'llama3.1_8B', '--gpus', '64,128', limit, '--global-batch', 1024)
    assert ('bought' in text.split('------')[0]) == unknown


def test_a_model_needs_no_flag(tmp_path):
    question = '--gpus', 64, '--format', 'json'
    told = good('search', '--model', 'llama3.1_8B', *question)
    assert good('search', 'llama3.1_8B', *question) == told
    assert good('search', *question[:2], 'llama3.1_8B', *question[2:]) == told
    two = 'sweep', '--gpus', 64, '--systems', 'H100-80GB', '--top', 1, '--output'
    good(*two, tmp_path / 'one.csv', 'gpt3,vit_era5')
    good(*two, tmp_path / 'two.csv', '--model', 'gpt3,vit_era5')
    assert (tmp_path / 'one.csv').read_text() == (tmp_path / 'two.csv').read_text()


def test_a_command_has_a_schema_of_its_own():
    for name in ('search', 'plan', 'models'):
        own = json.loads(good(name, '--schema'))
        assert own['properties']['command'] == {'const': name} and len(own['allOf']) == 1


@pytest.mark.parametrize('command, more', [
    ('search', ('--gpus', 8)), ('plan', ('--gpus', 8, '--tokens', 1e12)),
    ('fits', ('--tp', 2, '--dp', 4)), ('improve', ('--tp', 2, '--dp', 4))])
def test_no_job_is_no_file(command, more, tmp_path):
    "Where nothing fits, the answer is told and a file of a job stays as it is."
    path = tmp_path / 'job.json'
    path.write_text('old')
    told = good(command, '--model', 'gpt3_1T', '--system', 'A100', '--global-batch', 64, *more,
                '--export', 'json', '-o', path, code=1)
    assert 'GB' in told and path.read_text() == 'old'


def test_of_adapters_no_whole_training_is_told():
    "The samples that a model names are those of its pretraining."
    asked = 'explain', 'llama3.1_8B', '--global-batch', '8'
    assert 'The whole training' in good(*asked)
    tuned = good(*asked, '--adapters', 'lora:16', '--recompute', 'full')
    assert 'The whole training' not in tuned
    assert tuned.startswith('llama3.1_8B, 1 H100-80GB GPU, 8 to')


@pytest.mark.parametrize('command', first_of(2, ['explain', 'fits', 'improve', 'sensitivity']))
def test_groups_that_a_file_contradicts_are_refused(tmp_path, command):
    "DeepSpeed asserts that its batch is that of a GPU times steps times GPUs; so do other doors."
    keys = {'train_batch_size': 64, 'train_micro_batch_size_per_gpu': 2,
            'gradient_accumulation_steps': 4, 'bf16': {'enabled': True},
            'zero_optimization': {'stage': 3}}
    (tmp_path / 'job.json').write_text(json.dumps(keys))
    job = command, '--job', tmp_path / 'job.json', '--model', 'llama3.1_8B', '--recompute', 'full'
    good(*job, '--dp', 8)
    said = 'train_batch_size=64 contradicts train_micro_batch_size_per_gpu=2'
    has(bad(*job, '--dp', 16), said, 'gradient_accumulation_steps=4 on 16 copies')
    good(*job, '--dp', 16, '--global-batch', 128)


@pytest.fixture
def titan(tmp_path):
    path = tmp_path / 'titan.toml'
    path.write_text(torchtitan_file(tensor_parallel_degree=2, pipeline_parallel_degree=4,
                                    data_parallel_shard_degree=8))
    return path


def test_a_search_from_a_file_shares_out_as_the_software_does_in_other_stages(titan):
    "In a pipeline the file has ZeRO 2 and reduces once; without one torchtitan does neither."
    asked = 'search', '--gpus', 64, '--recompute', 'none', '--top', 5, '--format', 'json'
    found = json.loads(good(*asked, '--job', titan))['found']
    alone = json.loads(good(*asked, '--model', 'llama3.1_8B', '--software', 'torchtitan 0.2',
                            '--global-batch', 256, '--virtual-stages', 1))['found']
    assert [row['iteration_s'] for row in found] == [row['iteration_s'] for row in alone]
    assert all(row['reduce_each'] for row in found if row['pp'] == 1)
    held = json.loads(good(*asked, '--job', titan, '--zero-stage', 3))['found']
    assert {row['zero_stage'] for row in held} == {3}


@pytest.mark.parametrize('trainer', ['torchtitan', 'deepspeed'])
def test_a_search_for_a_trainer_is_asked_for_by_its_software(trainer):
    "What the best of any software has is no key of this one's file: told, with what to ask."
    asked = 'search', '--model', 'llama3.1_8B', '--gpus', 8, '--export', trainer
    has(bad(*asked), f'cannot be said in {trainer}; --software {trainer} keeps to what it can do')
    file = good(*asked, '--software', trainer)
    assert 'shard_degree: 8' in file or '"stage": ' in file



def test_a_search_from_a_file_says_that_it_takes_no_graphs(tmp_path):
    "torchtitan captures iterations without stages; what is priced once is as the file has it."
    file = tmp_path / 'titan.toml'
    of_2025 = torchtitan_file(data_parallel_shard_degree=8)
    file.write_text(of_2025.replace('seq_len', 'max_context_length').replace(
        'local_batch_size = 8', 'num_tokens_per_microbatch_per_dp_rank = 65536'))
    asked = 'search', '--job', file, '--gpus', 8, '--top', 1
    without = 'Priced without CUDA graphs'
    has(good(*asked), without)
    for words in (good(*asked, '--cuda-graphs', 'iteration'), good('explain', '--job', file)):
        assert without not in words
        has(' '.join(words.split()), 'Not said by the job',
            'training.disable_cuda_graphs (CUDA graphs')
    assert 'disable_cuda_graphs' not in good(*asked)


@pytest.mark.parametrize('more, layout, parts', [
    (['--model', 'llama3.1_70B'], 'Et*20|t*21|t*20|t*19L', 1),
    (['--schedule', 'zb-v'], 'Et*4|t*5|(t*4|)*5tttL', 2),
    (['--schedule', 'zb-v', '--pp', 2], 'Et*8|t*9|t*8|t*7L', 2),
    (['--schedule', 'gpipe'], 'Et*8|t*9|t*8|t*7L', 1)], ids=str)
def test_layers_of_a_file_are_dealt_anew_for_another_model_or_schedule(titan, more, layout, parts):
    found = json.loads(good('explain', '--job', titan, *more, '--format', 'json'))['parallel']
    assert (found['layout'], found['virtual_stages']) == (layout, parts)
    own = titan.with_suffix('.json')
    own.write_text(good('explain', '--job', titan, '--layout', 'Et*9|t*9|t*8|t*6L', '--export',
                        'json'))
    has(bad('explain', '--job', own, '--model', 'llama3.1_70B'), 'has 32 t, not depth=80')


def test_what_a_script_leaves_out_is_told_and_not_added(tmp_path):
    "Weights that hide as gradients do, and dropout, whose default is Megatron-LM's own."
    script = tmp_path / 'train.sh'
    script.write_text('torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size '
                      '4096 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 '
                      '--global-batch-size 64 --bf16 --use-distributed-optimizer '
                      '--overlap-grad-reduce --vocab-size 32000\n')
    asked = ['fits', '--job', script, '--system', 'H200']
    words = ' '.join(good(*asked).split())
    assert 'Not said by the job: --overlap-param-gather (weights are taken to hide' in words
    assert 'Not used of the job' not in words
    written = good(*asked, '--export', 'megatron')
    assert '--overlap-param-gather' in written and '-dropout' not in written
