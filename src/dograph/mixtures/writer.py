"""A table of runs written in our long form, so that it can be fitted again, by anybody."""

import csv
import io
import math
from collections.abc import Iterable
from pathlib import Path

from dograph.files import write_text
from dograph.mixtures.long import COLUMNS
from dograph.mixtures.tables import MixtureTable


def write_table(table: MixtureTable, mixtures: Path, losses: Path) -> None:
    """Two CSV files; a loss that is missing has no line. Numbers are written in full."""
    weights = (
        (run, source, weight)
        for run, weight_S in zip(table.runs, table.weight_NS.tolist(), strict=True)
        for source, weight in zip(table.sources, weight_S, strict=True)
    )
    write_text(mixtures, _csv(COLUMNS["mixtures"], weights))
    measured = (
        (run, target, loss)
        for run, loss_V in zip(table.runs, table.loss_NV.tolist(), strict=True)
        for target, loss in zip(table.targets, loss_V, strict=True)
        if not math.isnan(loss)
    )
    write_text(losses, _csv(COLUMNS["losses"], measured))


def _csv(header: tuple[str, ...], rows: Iterable[tuple[str, str, float]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
