"""Tables of runs, damaged or with odd numbers."""

import random
from functools import cache
from pathlib import Path

import numpy as np

from dograph.mixtures.file import read_mixture_file
from dograph.mixtures.tables import read_table, write_table
from fuzz import bases
from fuzz.harness import VALUES, command, damaged, register
from planned_tables import exponential_table, regmix_files

Case = tuple[bytes, bytes, bool]


@cache
def pairs() -> list[tuple[bytes, bytes]]:
    """Files of mixtures and losses: ours and RegMix's."""
    table, _ = exponential_table(10, ["a", "b", "c"], ["a", "b"])
    ours = (bases.folder() / "mixtures.csv", bases.folder() / "losses.csv")
    write_table(table, *ours)
    (bases.folder() / "regmix").mkdir()
    regmix_files(bases.folder() / "regmix")
    theirs = (bases.folder() / "regmix" / path.name for path in ours)
    return [tuple(path.read_bytes() for path in pair) for pair in (ours, theirs)]


def tables(rng: random.Random) -> Case:
    """Two files, one of them damaged; whether a plan is made of them, or they are only read.

    Plans are made of the small tables only: a fit of 17 sources takes seconds.
    """
    which_pair = rng.randrange(2)
    files = list(pairs()[which_pair])
    which = rng.randrange(2)
    if rng.random() < 0.3:
        cells = files[which].split(b",")
        cells[rng.randrange(len(cells))] = rng.choice(VALUES).encode(errors="surrogatepass")
        files[which] = b",".join(cells)
    else:
        files[which] = damaged(rng, files[which])
    return files[0], files[1], which_pair == 0 and rng.random() < 0.2


def read(case: Case, folder: Path) -> None:
    mixtures, losses, is_planned = case
    (folder / "m.csv").write_bytes(mixtures)
    (folder / "l.csv").write_bytes(losses)
    if is_planned:
        law = ("mixing-law", "--from-table", "m.csv", "l.csv", "--out", "plan.yaml")
        if command("plan", *law).code == 0:
            weights = list(read_mixture_file(folder / "plan.yaml").weights.values())
            assert np.isfinite(weights).all()
            assert abs(sum(weights) - 1) < 1e-6
        return
    table = read_table(folder / "m.csv", folder / "l.csv")
    assert np.isfinite(table.weight_NS).all()
    assert not np.isinf(table.loss_NV).any()
    np.testing.assert_allclose(table.weight_NS.sum(1), 1)


register("tables", tables, read, share=2)
