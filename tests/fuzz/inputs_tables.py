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

ODD = ("1e300", "1e-300", "-5", "0", "3", "3.0000001", "", "1e9")
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
    if which_pair == 0 and rng.random() < 0.1:  # odd numbers that make a table nevertheless
        return files[0], odd_losses(rng, files[1]), True
    if rng.random() < 0.3:
        cells = files[which].split(b",")
        cells[rng.randrange(len(cells))] = rng.choice(VALUES).encode(errors="surrogatepass")
        files[which] = b",".join(cells)
    else:
        files[which] = damaged(rng, files[which])
    return files[0], files[1], which_pair == 0 and rng.random() < 0.1


def odd_losses(rng: random.Random, losses: bytes) -> bytes:
    """Some losses are others: huge, tiny, negative, the same, missing."""
    lines = losses.decode().splitlines()
    for number in rng.sample(range(1, len(lines)), rng.choice((1, 3, len(lines) - 1))):
        run, target, _ = lines[number].split(",")
        lines[number] = f"{run},{target},{rng.choice(ODD)}"
    return "\n".join(lines).encode()


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
