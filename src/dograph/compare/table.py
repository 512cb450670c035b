"""The tables that a terminal shows: losses, what they cost, and losses by source."""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dograph.compare.findings import Findings
from dograph.progress import duration

SOURCES_ACROSS = 5  # columns of the table by source that fit beside each other


def tables(findings: Findings) -> list[Table]:
    return [losses_table(findings), cost_table(findings), *source_tables(findings)]


def losses_table(findings: Findings) -> Table:
    """A row a method: the four figures, and the difference of the mean to the baseline."""
    seeds = len(findings["seeds"])
    budget = "training tokens" if findings["budget"] == "tokens" else "FLOPs"
    table = _table(f"validation loss in nats, mean of {seeds} seeds; equal {budget}")
    for name in ("method", "mean", "difference [95 %]", "text [95 %]", "p", "", "natural", "worst"):
        left = name in ("method", "")
        table.add_column(
            name, justify="left" if left else "right", no_wrap=name != "method", overflow="fold"
        )
    table.add_column("gap", justify="right", no_wrap=True)
    for method in findings["methods"]:
        told = method.get("differences", {}).get("mean")
        figures = [_loss(method, name) for name in ("mean", "natural", "worst", "gap")]
        table.add_row(_name(method), figures[0], *_difference(told), *figures[1:])
    return table


def cost_table(findings: Findings) -> Table:
    """A row a method: steps, FLOPs and time with plans and sketches, memory, repeats."""
    table = _table("what it took, plans and sketches counted (a run's mean; memory: most)")
    for name in ("method", "steps", "FLOPs", "plan", "time", "plan", "memory"):
        table.add_column(name, justify="left" if name == "method" else "right", overflow="fold")
    table.add_column("most repeated source", justify="left")
    for method in findings["methods"]:
        flops, seconds = method["flops"], method.get("seconds")
        most = method.get("most_epochs")
        table.add_row(
            _name(method),
            " ".join(f"{steps:,}" for steps in method["steps"]),
            f"{flops['total']:.3g}",
            f"{flops['plan'] / flops['total']:.0%}" if flops["plan"] else "",
            duration(seconds["total"]) if seconds else "",
            duration(seconds["plan"]) if seconds and seconds["plan"] else "",
            f"{method['peak_bytes'] / 2**30:.2f} GiB" if seconds else "",
            f"{most['source']} {most['epochs']:.2f} x" if most else "",
        )
    return table


def source_tables(findings: Findings) -> list[Table]:
    """Methods down, sources across; under each loss its difference to the baseline."""
    sources = next((list(m["sources"]) for m in findings["methods"] if "sources" in m), [])
    found = []
    for first in range(0, len(sources), SOURCES_ACROSS):
        part = sources[first : first + SOURCES_ACROSS]
        table = _table("loss by source, and its difference (! claimed, by Holm over this table)")
        table.add_column("method", overflow="fold")
        for source in part:
            table.add_column(source, justify="right")
        for method in findings["methods"]:
            table.add_row(_name(method), *(_by_source(method, source) for source in part))
        found.append(table)
    return found


def _by_source(method: Mapping[str, Any], source: str) -> str:
    if "sources" not in method:
        return "-"
    loss = f"{method['sources'][source]['mean']:.4f}"
    told = method.get("differences", {}).get("sources", {}).get(source)
    if told is None:
        return loss
    mark = "!" if told["claim"] in ("lower", "higher") else ""
    return f"{loss} {told['mean']:+.4f}{mark}"


def _table(title: str) -> Table:
    return Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")


def _name(method: Mapping[str, Any]) -> str:
    star = "*" if method["one_plan_for_all_seeds"] and len(method["cells"]) > 1 else ""
    failed = len(method["failed"])
    return f"{method['label']}{star}" + (f" ({failed} failed)" if failed else "")


def _loss(method: Mapping[str, Any], name: str) -> str:
    return f"{method['losses'][name]['mean']:.4f}" if "losses" in method else "-"


def _difference(told: Mapping[str, Any] | None) -> list[str]:
    if told is None or not told["seeds"]:
        return ["", "", "", ""]
    p_holm = told["p_holm"]
    said = told["claim"] if told["claim"] in ("lower", "higher") else ""
    return [
        f"{told['mean']:+.4f} {_interval(told['interval'])}".strip(),
        _interval(told["over_items"]),
        "" if p_holm is None else f"{p_holm:.3f}",
        said,
    ]


def _interval(pair: Mapping[str, float] | None) -> str:
    return "" if pair is None else f"[{pair['low']:+.3f},{pair['high']:+.3f}]"
