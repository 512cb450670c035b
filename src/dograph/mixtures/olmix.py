"""Olmix's `ratios.csv` and `metrics.csv`: `run` or `run_id`, labels, then a column for each name.

The published swarms start with an unnamed index, `run`, `name` and `index`; only the run is used
to join the two files.
"""

from dograph.mixtures.sheet import Grid, Kind, Sheet
from dograph.mixtures.wide import is_unnamed, read_wide

EXAMPLE_OLMIX = (
    "Olmix:      run,name,index,wikipedia,arxiv,...          (or run_id; name, index if you like)",
    "            run,name,index,hellaswag_bpb,mmlu_bpb,...",
)
RUN_COLUMNS = ("run", "run_id", "name")
LABELS = frozenset({"run", "run_id", "name", "index"})


def recognises_olmix(header: list[str]) -> bool:
    return "run" in header or "run_id" in header or ("name" in header and "index" not in header)


def read_olmix(sheet: Sheet, kind: Kind) -> Grid:
    run = next(name for name in RUN_COLUMNS if name in sheet.header)
    labels = {
        column
        for column, name in enumerate(sheet.header)
        if name in LABELS or (column == 0 and is_unnamed(name))
    }
    return read_wide(sheet, kind, sheet.header.index(run), labels)
