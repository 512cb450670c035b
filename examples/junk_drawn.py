"""How much unmarked junk the runs of `make demo` drew, and what the watch flagged.

    python examples/junk_drawn.py runs/demo-natural runs/demo-trusted

The corpus `junk` is the demo corpus with a third of its training documents spoilt. No run sees
which: only this script does, to compare with what the runs did by themselves.
"""

import sys
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dograph.data.embedded import JUNK, junk_documents
from dograph.eval.recorded import samples_of_step
from dograph.records import read_lines
from dograph.train.run_dir import RunDirectory
from dograph.train.watch import TIMES, watched_row

Kinds = Counter[str | None]  # samples that start in each kind of junk; None: in clean text


def drawn(path: Path, kinds: list[str | None]) -> tuple[Kinds, Kinds]:
    """The samples of a run, and those among them that were flagged."""
    run, every, flagged = RunDirectory.open(path), Kinds(), Kinds()
    rows = read_lines(run.watch_file, watched_row) if run.watch_file.is_file() else ()
    watched = {row["step"]: row["samples"] for row in rows}
    for step in range(1, run.config().train.steps + 1):
        found = [kinds[int(str(row["line"])) - 1] for row in samples_of_step(path, step)]
        every.update(found)
        large = [own["sample"] for own in watched.get(step, ()) if own["norm"] > TIMES]
        flagged.update(found[sample] for sample in large)
    return every, flagged


def shares(counts: Kinds) -> list[str]:
    """Of each kind of junk, and of all together."""
    total = max(counts.total(), 1)
    return [f"{counts[kind] / total:.1%}" for kind in JUNK] + [f"{1 - counts[None] / total:.1%}"]


def main() -> None:
    kinds = [kind for _, _, kind in junk_documents("junk")]
    table = Table("junk in", *JUNK, "all junk", "samples", title="Who drew how much junk?")
    for name in sys.argv[1:]:
        every, flagged = drawn(Path(name), kinds)
        table.add_row(Path(name).name, *shares(every), str(every.total()))
        if flagged:
            table.add_row("  flagged there", *shares(flagged), str(flagged.total()))
    Console().print(table)


if __name__ == "__main__":
    main()
