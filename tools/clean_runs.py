"""Give a table of measured runs columns for what decides, beside those of its source.

`python tools/clean_runs.py RUNS.csv nbs/data/runs.csv`; cells that say something stay as they are
written.
"""
import sys

from transformer_perf.inputs import read_csv, write_whole
from transformer_perf.validation.runs import clean


def write_clean(measured, path):
    "A CSV file of runs, cleaned, as another one."
    write_whole(path, clean(read_csv(measured, dtype=str)).to_csv(index=False))


if __name__ == '__main__':
    if len(sys.argv) != 3: sys.exit(f'usage: python {sys.argv[0]} RUNS.csv FILE')
    write_clean(*sys.argv[1:])
