"""Panels of controls: a layer, a search, charts; one page shows them all."""
from .charts import CollectivesState, RooflineState, SweepState
from .layer import LayerState
from .page import (
    PANELS, Panel, Panels, addressed, assumed_besides, bench_panels, opened_at, state_of)
from .search import SearchState

__all__ = ['PANELS', 'CollectivesState', 'LayerState', 'Panel', 'Panels', 'RooflineState',
           'SearchState', 'SweepState', 'addressed', 'assumed_besides', 'bench_panels', 'opened_at', 'state_of']
