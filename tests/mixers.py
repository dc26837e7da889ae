"Layers of nothing but a mixer, for the tests that count mixers a second time."
import math

from transformer_perf import Assumptions, Model, Parallel
from transformer_perf.blocks import Block, Nothing
from transformer_perf.estimates import AS_TRAINED, MENDED_SLIPS
from transformer_perf.iteration import job_of, settled
from transformer_perf.systems import as_system

TRAINED = Assumptions(**MENDED_SLIPS | AS_TRAINED)
SYSTEM = as_system('H200')
b, l, e = 2, 256, 96   # samples, tokens of a sample, width of the stream


def model_with(mixer, depth=2):
    "Layers of nothing but a mixer, without words."
    block = Block(mixer, Nothing(), 'none', 'rmsnorm')
    return Model(l, e, 8, depth, layers=((block, depth),))


def operations(mixer, assumptions=TRAINED, **layout):  # dict of Operation
    "What one GPU does in a layer."
    alone = dict(nvlink_tp=1, nvlink_cp=1, nvlink_pp=1, nvlink_dp=1)
    p = Parallel(micro_batch=b, **alone | layout)
    a = assumptions
    job = job_of(vars(settled(p, SYSTEM, a)), model_with(mixer), SYSTEM, 24, a)
    return {op.name: op for op in job.operations}


def flop(work): return sum(2 * p.times * p.batch * p.m * p.n * p.k for p in work.all_products)
def close(x, y, rel=1e-12): return math.isclose(x, y, rel_tol=rel)
