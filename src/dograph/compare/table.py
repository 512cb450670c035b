"""The tables that a terminal shows: losses, what they cost, and losses by source."""

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dograph.compare.findings import Findings, MethodFindings
from dograph.progress import duration

SOURCES_ACROSS = 5  # columns of the table by source that fit beside each other


def tables(findings: Findings) -> list[Table]:
    return [losses_table(findings), cost_table(findings), *source_tables(findings)]


def losses_table(findings: Findings) -> Table:
    """A row a method: the four figures, and the difference of the mean to the baseline."""
    seeds = len(findings.seeds)
    budget = "training tokens" if findings.budget == "tokens" else "FLOPs"
    table = _table(f"validation loss in nats, mean of {seeds} seeds; equal {budget}")
    for name in ("method", "mean", "difference [95 %]", "text [95 %]", "p", "", "natural", "worst"):
        left = name in ("method", "")
        table.add_column(
            name, justify="left" if left else "right", no_wrap=name != "method", overflow="fold"
        )
    table.add_column("gap", justify="right", no_wrap=True)
    for method in findings.methods:
        figures = [
            f"{method.losses[name].mean:.4f}" if method.losses else "-"
            for name in ("mean", "natural", "worst", "gap")
        ]
        told, differences = [""] * 4, method.differences
        if differences is not None and differences.mean.seeds:
            difference = differences.mean
            interval, text, p_holm = difference.interval, difference.over_items, difference.p_holm
            ends = "" if interval is None else f" {interval.text('+.3f')}"
            told = [
                f"{difference.mean:+.4f}{ends}",
                "" if text is None else text.text("+.3f"),
                "" if p_holm is None else f"{p_holm:.3f}",
                difference.claim if difference.is_claimed else "",
            ]
        table.add_row(_name(method), figures[0], *told, *figures[1:])
    return table


def cost_table(findings: Findings) -> Table:
    """A row a method: steps, FLOPs and time with plans and sketches, memory, repeats."""
    table = _table("what it took, plans and sketches counted (a run's mean; memory: most)")
    for name in ("method", "steps", "FLOPs", "plan", "time", "plan", "memory"):
        table.add_column(name, justify="left" if name == "method" else "right", overflow="fold")
    table.add_column("most repeated source", justify="left")
    for method in findings.methods:
        flops, seconds, most = method.flops, method.seconds, method.most_epochs
        table.add_row(
            _name(method),
            " ".join(f"{steps:,}" for steps in method.steps),
            f"{flops.total:.3g}",
            f"{flops.plan / flops.total:.0%}" if flops.plan else "",
            duration(seconds.total) if seconds else "",
            duration(seconds.plan) if seconds and seconds.plan else "",
            f"{(method.peak_bytes or 0) / 2**30:.2f} GiB" if seconds else "",
            f"{most.source} {most.epochs:.2f} x" if most else "",
        )
    return table


def source_tables(findings: Findings) -> list[Table]:
    """Methods down, sources across; beside each loss its difference to the baseline."""
    sources = next((list(m.sources) for m in findings.methods if m.sources), [])
    found = []
    for first in range(0, len(sources), SOURCES_ACROSS):
        part = sources[first : first + SOURCES_ACROSS]
        table = _table("loss by source, and its difference (! claimed, by Holm over this table)")
        table.add_column("method", overflow="fold")
        for source in part:
            table.add_column(source, justify="right")
        for method in findings.methods:
            cells = ["-"] * len(part)
            if method.sources:
                cells = [f"{method.sources[source].mean:.4f}" for source in part]
            if method.sources and method.differences is not None:
                own = [method.differences.sources[source] for source in part]
                marks = (f"{one.mean:+.4f}{'!' if one.is_claimed else ''}" for one in own)
                cells = [f"{cell} {mark}" for cell, mark in zip(cells, marks, strict=True)]
            table.add_row(_name(method), *cells)
        found.append(table)
    return found


def _table(title: str) -> Table:
    return Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")


def _name(method: MethodFindings) -> str:
    star = "*" if method.one_plan_for_all_seeds and len(method.cells) > 1 else ""
    failed = len(method.failed)
    return f"{method.label}{star}" + (f" ({failed} failed)" if failed else "")
