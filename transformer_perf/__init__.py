"""Time, memory and the fastest parallelization of a transformer's training on a GPU system."""
__version__ = "0.1.0"

import importlib

HOMES = {'Model': 'models', 'System': 'systems', 'Assumptions': 'estimates',
         'Software': 'software', 'Parallel': 'iteration', 'Job': 'interop.tables',
         'estimate': 'iteration', 'search': 'execution'}
__all__ = list(HOMES)


def __getattr__(name):
    "The public names, imported when they are first asked for: the command line starts at once."
    if name not in HOMES: raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(f'{__name__}.{HOMES[name]}'), name)


def __dir__(): return [*globals(), *__all__]
