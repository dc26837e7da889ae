"""Time, memory and the fastest parallelization of a transformer's training on a GPU system."""
__version__ = "0.1.0"

from transformer_perf.models import Model
from transformer_perf.systems import System
from transformer_perf.estimates import Assumptions
from transformer_perf.iteration import Parallel, estimate
from transformer_perf.execution import search

__all__ = ['Model', 'System', 'Assumptions', 'Parallel', 'estimate', 'search']
