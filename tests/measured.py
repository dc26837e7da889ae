"The published runs, for the tests that compare with them."
from transformer_perf.validation import published, table_of

RUNS = published()


def of_table(name): return RUNS[table_of(RUNS) == name]
def row_of(name): return RUNS[RUNS.id == name]
