"""Tables of a comparison on a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dograph.compare.findings import Findings, MethodFindings
from dograph.progress import duration
from dograph.stats import METRICS

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
    budget = "FLOPs" if findings.budget == "compute" else "training tokens"
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
    made = []
    for title, heads, cells in shown:
        rows = [[name, *cells(method)] for name, method in named.items()]
        made.append(TextTable(title, ("method", *heads), rows, heads is LOSS_COLUMNS))
    return made


def equal_time_table(findings: Findings) -> TextTable | None:
    """Every method at equal tokens and at equal time; None without --match time."""
    if findings.budget != "time":
        return None
    title = f"{findings.baseline} and each method at equal time, mean loss in nats"
    shown = [m for m in findings.methods if m.differences or m.label == findings.baseline]
    rows = [[_name(method), *_time_cells(method)] for method in shown]
    return TextTable(title, ("method", *TIME_COLUMNS), rows, only_first_folds=True)


def _name(method: MethodFindings) -> str:
    star = "*" if method.one_plan_for_all_seeds and len(method.cells) > 1 else ""
    fitted = "/".join(sorted({plan.surrogate for plan in method.plans if plan.surrogate}))
    star += f" ({fitted})" if fitted else ""
    failed = len(method.failed)
    return f"{method.label}{star}" + (f" ({failed} failed)" if failed else "")


LOSS_COLUMNS = ("mean", "difference [95 %]", "text [95 %]", "p", "claim", *METRICS[1:])
TIME_COLUMNS = (
    "lr",
    "equal tokens",
    "equal time [95 %]",
    "p",
    "claim",
    "steps worth",
    "time taken",
)
COSTS = ("needs", "proxies", "steps", "FLOPs", "plan", "time", "plan", "memory")
COST_COLUMNS = (*COSTS, "most repeated source")


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


def _time_cells(method: MethodFindings) -> list[str]:
    shown = [f"{method.own.get('optim', {}).get('lr', ''):}"]
    tokens = method.differences.mean if method.differences else None
    shown.append(f"{tokens.mean:+.4f}" if tokens and tokens.seeds else "")
    if (own := method.equal_time) is None:
        return [*shown, *[""] * 5]
    if (found := own.differences.get("mean")) is None:
        shown += ["-", "", ""]
    else:
        p_holm = "" if found.p_holm is None else f"{found.p_holm:.3f}"
        claim = found.claim if found.is_claimed else ""
        shown += [found.estimate.text("+.4f"), p_holm, claim]
    worth = "-"
    if own.worth is not None:  # as in `1.07`, or at which end of the measured range it lies
        sign = "<" if own.worth <= 1 else ">" if own.worth >= own.most else ""
        worth = f"{sign}{own.worth:.3f}"
    return [*shown, worth, f"{own.time:.3f}"]


def _cost_cells(method: MethodFindings) -> list[str]:
    flops, seconds, most = method.flops, method.seconds, method.most_epochs
    return [
        ", ".join(method.needs),
        str(sum(plan.proxies for plan in method.plans) or ""),  # of all, if seeds have their own
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
