"""Time, memory and the fastest parallelization of a transformer's training on a GPU system."""
__version__ = "0.1.0"

import importlib
import importlib.util

HOMES = {'Model': 'models', 'System': 'systems', 'Assumptions': 'estimates',
         'Software': 'software', 'Parallel': 'iteration', 'Job': 'interop.tables',
         'estimate': 'iteration', 'search': 'execution'}
__all__ = list(HOMES)


def __getattr__(name):
    "Public names, and modules, imported when first asked for: the command line starts at once."
    place = f'{__name__}.{HOMES.get(name, name)}'
    if importlib.util.find_spec(place) is None:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    module = importlib.import_module(place)
    return getattr(module, name) if name in HOMES else module


def __dir__(): return [*globals(), *__all__]
