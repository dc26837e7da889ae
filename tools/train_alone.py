"""Training steps on one GPU by Hugging Face's transformers: what a person without a stack runs.

`python tools/train_alone.py STEPS.csv [TRACE.json.gz]` measures the cases below, each a public
config (its number of layers may be cut), random tokens, AdamW; `--later` measures those that were
measured after the first. Both together are nbs/data/measured_steps.csv, in which
`predicted_before` was added by hand. It needs PyTorch, transformers and a GPU; `--small` tries it
on a CPU.
"""
import datetime
import gc
import json
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
import transformers

CONFIGS = Path(__file__).parents[1] / 'tests' / 'data' / 'hf_configs'
LAYERS = 'num_hidden_layers', 'n_layer'   # how configs name their depth
WARM, TIMED = 3, 6                        # steps


class Case(NamedTuple):
    "One job."
    config: str
    layers: int               # of the config's
    seq_len: int
    micro_batch: int
    micro_batches: int = 1
    weights: str = 'fp32'     # and autocast to bf16; or bf16: no other copy
    recompute: str = 'none'   # or full
    compiled: int = 0


LLAMA, QWEN, GPT2, QWEN_32B = 'Meta-Llama-3.1-8B', 'Qwen3-0.6B', 'gpt2-xl', 'Qwen3-32B'
WIDE, MIXTRAL, EXPERTS = 'Meta-Llama-3.1-70B', 'Mixtral-8x7B-v0.1', 'Qwen3-30B-A3B'
CASES = (
    Case(LLAMA, 4, 4096, 1), Case(LLAMA, 4, 4096, 2), Case(LLAMA, 4, 4096, 4),
    Case(LLAMA, 4, 2048, 1, 4), Case(LLAMA, 4, 8192, 1), Case(LLAMA, 4, 16384, 1),
    Case(LLAMA, 4, 4096, 2, weights='bf16'), Case(LLAMA, 4, 4096, 4, recompute='full'),
    Case(LLAMA, 8, 4096, 1), Case(LLAMA, 8, 4096, 2, recompute='full'),
    Case(LLAMA, 16, 4096, 1, weights='bf16'), Case(LLAMA, 32, 2048, 1, weights='bf16'),
    Case(LLAMA, 32, 4096, 1, weights='bf16', recompute='full'),
    Case(QWEN, 28, 4096, 1), Case(QWEN, 28, 4096, 2), Case(QWEN, 28, 4096, 4),
    Case(QWEN, 28, 1024, 2, 4), Case(QWEN, 28, 4096, 4, recompute='full'),
    Case(QWEN, 28, 4096, 2, weights='bf16'),
    Case(GPT2, 48, 1024, 4), Case(GPT2, 48, 1024, 8), Case(GPT2, 48, 1024, 8, weights='bf16'),
    Case(WIDE, 2, 4096, 1, weights='bf16'), Case(WIDE, 2, 4096, 2, weights='bf16'),
    Case(MIXTRAL, 2, 4096, 1, weights='bf16'), Case(MIXTRAL, 2, 4096, 4, weights='bf16'),
    Case(EXPERTS, 4, 4096, 1, weights='bf16'), Case(EXPERTS, 4, 4096, 4, weights='bf16'),
    Case(QWEN, 28, 4096, 8), Case(LLAMA, 8, 4096, 4), Case(LLAMA, 8, 8192, 2),
    Case(QWEN, 28, 4096, 2, compiled=1), Case(LLAMA, 4, 4096, 2, compiled=1))
LATER = (   # measured after what is known of this software was written down
    Case(LLAMA, 4, 2048, 2), Case(LLAMA, 2, 4096, 4), Case(LLAMA, 8, 2048, 2),
    Case(LLAMA, 8, 4096, 1, 4), Case(LLAMA, 6, 8192, 1, recompute='full'),
    Case(QWEN, 28, 2048, 1), Case(QWEN, 28, 2048, 4), Case(QWEN, 14, 8192, 1),
    Case(QWEN, 28, 8192, 2, recompute='full'), Case(QWEN, 28, 512, 8, 2),
    Case(QWEN_32B, 2, 4096, 1), Case(QWEN_32B, 2, 2048, 4), Case(WIDE, 1, 4096, 1),
    Case(WIDE, 1, 2048, 1, 4))
SMALL = Case(QWEN, 1, 32, 1), Case(GPT2, 1, 32, 2, 2, recompute='full')
TRACED = Case(LLAMA, 4, 4096, 1)


def model_of(case, device):
    "A model with random weights."
    cells = json.loads((CONFIGS / f'{case.config}.json').read_text())
    cells |= {name: case.layers for name in LAYERS if name in cells}
    config = transformers.AutoConfig.for_model(**cells)
    kind = torch.float32 if case.weights == 'fp32' else torch.bfloat16
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=kind).train()
    model.config.use_cache = False
    if case.recompute == 'full':
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs=dict(use_reentrant=False))
    return torch.compile(model) if case.compiled else model


def step_of(case, device):
    "A training step, ready to be called."
    model = model_of(case, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    casts = case.weights == 'fp32' and device == 'cuda'
    cast = torch.autocast(device, torch.bfloat16, enabled=casts)
    shape = case.micro_batches, case.micro_batch, case.seq_len
    tokens = torch.randint(0, 30000, shape, device=device)
    def step():
        for own in tokens:
            with cast: loss = model(input_ids=own, labels=own).loss / case.micro_batches
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return step


def seconds_of(step, wait):
    "The time of one call."
    wait()
    start = time.perf_counter()
    step()
    wait()
    return time.perf_counter() - start


def reading(device):
    "The clock in MHz and the watts of a GPU, while it works."
    if device == 'cpu': return {}
    try: return dict(MHz=torch.cuda.clock_rate(), watts=torch.cuda.power_draw() / 1e3)
    except (ImportError, RuntimeError): return {}


def measured(case, device, wait):
    "What a case takes, as cells of a row; why it failed, where it did."
    cuda = device == 'cuda'
    if cuda: torch.cuda.reset_peak_memory_stats()
    try:
        step = step_of(case, device)
        for _ in range(WARM): seconds_of(step, wait)
        times = [seconds_of(step, wait) for _ in range(TIMED)]
    except torch.OutOfMemoryError: return dict(failed='out of memory')
    for _ in range(2): step()
    found = dict(seconds=statistics.median(times), least_seconds=min(times)) | reading(device)
    wait()
    if not cuda: return found
    return found | dict(allocated_GB=torch.cuda.max_memory_allocated() / 1e9,
                        reserved_GB=torch.cuda.max_memory_reserved() / 1e9)


def row_of(case, device, wait):
    "A case and what it took, as a row."
    about = dict(gpu=torch.cuda.get_device_name() if device == 'cuda' else 'CPU',
                 version=f'torch {torch.__version__}, transformers {transformers.__version__}',
                 source=f'tools/train_alone.py, {datetime.date.today().isoformat()}')
    found = {name: float(f'{x:.5g}') if isinstance(x, float) else x
             for name, x in measured(case, device, wait).items()}
    gc.collect()
    if device == 'cuda': torch.cuda.empty_cache()
    return case._asdict() | dict(later=int(case in LATER)) | found | about


def write_trace(path, wait, device):
    "One step of a case, as PyTorch's profiler sees it."
    step = step_of(TRACED, device)
    for _ in range(WARM): step()
    wait()
    with torch.profiler.profile(record_shapes=True) as seen:
        step()
        wait()
    seen.export_chrome_trace(path)


def main(path, trace=None, cases=CASES):
    "Measures all cases; each row is written when it is known."
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    wait = torch.cuda.synchronize if device == 'cuda' else lambda: None
    torch.manual_seed(0)
    rows = []
    for case in cases:
        rows.append(row_of(case, device, wait))
        print({k: v for k, v in rows[-1].items() if k not in ('gpu', 'version', 'source')},
              flush=True)
        pd.DataFrame(rows).to_csv(path, index=False)
    if trace: write_trace(trace, wait, device)


if __name__ == '__main__':
    chosen = {'--small': SMALL, '--later': LATER}
    files = [word for word in sys.argv[1:] if word not in chosen]
    main(*files, cases=next((chosen[x] for x in sys.argv if x in chosen), CASES))
