"""Tables of a comparison: on a terminal, and as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dograph.compare.findings import CellFindings, Contrast, Findings, MethodFindings
from dograph.progress import duration
from dograph.stats import METRICS

METHODS, CELLS = "methods.csv", "cells.csv"
SOURCES_ACROSS = 5  # columns of the table by source


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of text cells; rich prints it, with the first column on the left."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    only_first_folds: bool = False  # in a narrow terminal

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(f"{self.title}:")  # a title of the rich table would be folded to its width
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for number, head in enumerate(self.columns):
            side: Literal["left", "right"] = "right" if number else "left"
            whole = self.only_first_folds and number > 0
            table.add_column(escape(head), justify=side, overflow="fold", no_wrap=whole)
        for row in self.rows:
            table.add_row(*map(escape, row))
        yield table


def tables(findings: Findings) -> list[TextTable]:
    """What a terminal shows: losses, costs, and losses by source."""
    budget = "training tokens" if findings.budget == "tokens" else "FLOPs"
    title = f"validation loss in nats, mean of {len(findings.seeds)} seeds; equal {budget}"
    shown = [
        (title, LOSS_COLUMNS, _loss_cells),
        ("cost of a run with plans and sketches (means; memory: peak)", COST_COLUMNS, _cost_cells),
    ]
    sources = next((list(m.sources) for m in findings.methods if m.sources), [])
    for first in range(0, len(sources), SOURCES_ACROSS):
        part = tuple(sources[first : first + SOURCES_ACROSS])
        title = "loss by source, and its difference (! claimed, Holm over this table)"
        shown.append((title, part, partial(_source_cells, sources=part)))
    named = {_name(method): method for method in findings.methods}
    return [
        TextTable(
            title,
            ("method", *heads),
            [[name, *cells(method)] for name, method in named.items()],
            only_first_folds=heads is LOSS_COLUMNS,
        )
        for title, heads, cells in shown
    ]


def _name(method: MethodFindings) -> str:
    star = "*" if method.one_plan_for_all_seeds and len(method.cells) > 1 else ""
    failed = len(method.failed)
    return f"{method.label}{star}" + (f" ({failed} failed)" if failed else "")


LOSS_COLUMNS = ("mean", "difference [95 %]", "text [95 %]", "p", "claim", *METRICS[1:])
COST_COLUMNS = ("steps", "FLOPs", "plan", "time", "plan", "memory", "most repeated source")


def _loss_cells(method: MethodFindings) -> list[str]:
    mean, *others = (f"{method.losses[m].mean:.4f}" if method.losses else "-" for m in METRICS)
    difference = method.differences.mean if method.differences else None
    if difference is None or not difference.seeds:
        return [mean, *[""] * 4, *others]
    interval, text, p_holm = difference.interval, difference.over_items, difference.p_holm
    shown = [
        f"{difference.mean:+.4f}" + (f" {interval.text('+.3f')}" if interval else ""),
        text.text("+.3f") if text else "",
        "" if p_holm is None else f"{p_holm:.3f}",
        difference.claim if difference.is_claimed else "",
    ]
    return [mean, *shown, *others]


def _cost_cells(method: MethodFindings) -> list[str]:
    flops, seconds, most = method.flops, method.seconds, method.most_epochs
    return [
        " ".join(f"{steps:,}" for steps in method.steps),
        f"{flops.total:.3g}",
        f"{flops.plan / flops.total:.0%}" if flops.plan else "",
        duration(seconds.total) if seconds else "",
        duration(seconds.plan) if seconds and seconds.plan else "",
        f"{(method.peak_bytes or 0) / 2**30:.2f} GiB" if seconds else "",
        f"{most.source} {most.epochs:.2f} x" if most else "",
    ]


def _source_cells(method: MethodFindings, sources: Sequence[str]) -> list[str]:
    cells = []
    for source in sources:
        cell = f"{method.sources[source].mean:.4f}" if method.sources else "-"
        if method.sources and method.differences:
            contrast = method.differences.sources[source]
            cell += f" {contrast.mean:+.4f}{'!' if contrast.is_claimed else ''}"
        cells.append(cell)
    return cells


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Columns are those of all rows, in the order of their first use; None is empty."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def cell_row(cell: CellFindings) -> dict[str, Any]:
    row = {name: getattr(cell, name) for name in ("label", "method", "seed", "steps", "tokens")}
    for kind, values in (("loss_", cell.summaries), ("loss/", cell.losses)):
        row |= {f"{kind}{name}": value for name, value in values.items()}
    return row | _costs(cell) | {"command": cell.command, "error": cell.error}


def method_row(method: MethodFindings) -> dict[str, Any]:
    row: dict[str, Any] = {
        "method": method.label,
        "mixer": method.mixer["name"],
        "seeds": len(method.cells) - len(method.failed),
        "one_plan_for_all_seeds": method.one_plan_for_all_seeds,
        "steps": " ".join(map(str, method.steps)),
    }
    for name in METRICS:
        row[f"loss_{name}"] = method.losses[name].mean if method.losses else None
        if method.differences:
            row |= _difference_columns(name, method.differences[name])
    row |= {f"loss/{name}": spread.mean for name, spread in method.sources.items()}
    for name, contrast in (method.differences.sources if method.differences else {}).items():
        row |= _difference_columns(f"source/{name}", contrast)
    return row | _costs(method)


def _difference_columns(name: str, contrast: Contrast) -> dict[str, Any]:
    row: dict[str, Any] = {"": contrast.mean}
    for kind in ("interval", "simultaneous", "over_items"):
        ends = getattr(contrast, kind)
        row |= {f"_{kind}_{end}": getattr(ends, end, None) for end in ("low", "high")}
    row |= {f"_{part}": getattr(contrast, part) for part in ("p", "p_holm", "claim")}
    return {f"difference_{name}{column}": value for column, value in row.items()}


def _costs(row: CellFindings | MethodFindings) -> dict[str, Any]:
    costs: dict[str, Any] = {f"epochs/{name}": value for name, value in row.epochs.items()}
    for name, cost in (("flops", row.flops), ("seconds", row.seconds)):
        costs |= {f"{name}_{part}": value for part, value in asdict(cost).items()} if cost else {}
    return costs | {"peak_bytes": row.peak_bytes}
