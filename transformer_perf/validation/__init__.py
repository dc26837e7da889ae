"""Predictions beside measured runs, and the fit of what the model knows to runs and kernels."""
from .calibration import as_shipped_names, calibrate, calibrate_inputs, read_inputs
from .predictions import (
    of_values, picked, predict, recipe_score, record, scoreboard, shipped_record,
    table_of, with_sets)
from .runs import published, read_runs, slips_in

__all__ = ['as_shipped_names', 'calibrate', 'calibrate_inputs', 'of_values', 'picked', 'predict',
           'published', 'read_inputs', 'read_runs', 'recipe_score', 'record',
           'scoreboard', 'shipped_record', 'slips_in', 'table_of', 'with_sets']
