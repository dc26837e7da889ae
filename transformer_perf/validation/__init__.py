"""Predictions beside measured runs, and the fit of what the model knows to runs and kernels."""
from ..measured_kernels import predict_kernels

from .calibration import (
    as_shipped_names, calibrate, calibrate_inputs, calibrate_kernels, calibrate_network,
    check_measured, kernel_seconds, predict_collectives, published_collectives, read_inputs)
from .predictions import (
    PREDICTED, fitted, half_of, never_seen, of_values, picked, predict, recipe_score, record,
    recorded, scoreboard, shipped_record, source_of, table_of, with_sets)
from .runs import published, read_runs

__all__ = [
    'PREDICTED', 'as_shipped_names', 'calibrate', 'calibrate_inputs', 'calibrate_kernels',
    'calibrate_network', 'check_measured', 'fitted', 'half_of', 'kernel_seconds', 'never_seen',
    'of_values', 'picked', 'predict', 'predict_collectives', 'predict_kernels', 'published',
    'published_collectives', 'read_inputs', 'read_runs', 'recipe_score', 'record', 'recorded',
    'scoreboard', 'shipped_record', 'source_of', 'table_of', 'with_sets']
