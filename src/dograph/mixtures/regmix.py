"""RegMix's published pair: `index`, then a column for each source or each validation loss.

Mixtures have columns `train_the_pile_<source>`, losses `metric/the_pile_<target>_val_loss`; their
earlier files and other corpora have other names after `index`, which are taken as they are.
"""

from dograph.mixtures.sheet import Grid, Kind, Sheet
from dograph.mixtures.wide import is_unnamed, read_wide

EXAMPLE_REGMIX = (
    "RegMix:     index,train_the_pile_arxiv,train_the_pile_github,...",
    "            index,metric/the_pile_arxiv_val_loss,metric/the_pile_github_val_loss,...",
)


def recognises_regmix(header: list[str]) -> bool:
    return "index" in header or is_unnamed(header[0])


def read_regmix(sheet: Sheet, kind: Kind) -> Grid:
    if "index" not in sheet.header:
        grid = read_wide(sheet, kind, 0, set())
        grid.notes.append(f"{sheet.path}: runs are named by its first column, which has no name")
        return grid
    unnamed = {0} if is_unnamed(sheet.header[0]) else set()
    return read_wide(sheet, kind, sheet.header.index("index"), unnamed)
