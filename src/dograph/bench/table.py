"""What was found, for a terminal."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

COLUMNS = ("ms", "over plain", "extra ms", "floor ms", "memory", "tokens/s", "MFU")
SLOW_LAUNCH = 1.05  # in a row over in turns


def arm_table(findings: dict[str, Any]) -> Table:
    """One row an arm."""
    options, device = findings["options"], findings["device"]
    table = Table(
        title=f"{options['model']}, {options['batch']} x {options['seq_len']} tokens, "
        f"{options['dtype']}, {'compiled' if options['compile'] else 'eager'}, recipe "
        f"{options['recipe']}, on {device['name']}",
        box=SIMPLE_HEAD,
        padding=(0, 1),
    )
    table.add_column("arm", no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("where it goes")
    for name, arm in findings["arms"].items():
        if "error" in arm:
            table.add_row(name, *[""] * len(COLUMNS), escape(arm["error"]))
        else:
            table.add_row(name, *_figures(name, arm), escape("; ".join(_words(arm))))
    return table


def footnotes(findings: dict[str, Any]) -> list[str]:
    """What the columns do not say."""
    device = findings["device"]
    notes = [
        f"MFU: of {device['peak_flops_per_second'] / 1e12:,.4g} TFLOP/s ({device['peak_from']})",
        "ratios of modes and hand: median of steps in turns with plain [95 % interval]; of rivals: "
        "of medians, by the sample",
    ]
    for name, arm in findings["arms"].items():
        if "ratio" in arm and "row_ms" in arm:
            slower = arm["row_ms"] / arm["ms"]["median"]
            if slower > SLOW_LAUNCH:
                notes.append(
                    f"{name}: {arm['row_ms']:.2f} ms a step in a row, {slower:.2f} times that in "
                    "turns: launching its work, or the machine's noise, holds it up"
                )
    return notes


def _figures(name: str, arm: dict[str, Any]) -> list[str]:
    ms, ratio = arm["ms"]["median"], arm.get("ratio")
    plain = arm["plain_ms"]["median"] if "plain_ms" in arm else None
    floor = arm["floor_ms"]["total"] if "floor_ms" in arm else None
    return [
        f"{ms:.2f}",
        "1" if name == "plain" else _ratio(ratio),
        "" if plain is None else f"{ms - plain:+.2f}",
        "" if floor is None else f"{floor:.2f} ({arm['floor_ratio']:.3f})",
        _memory(arm),
        f"{arm['tokens_per_second']:,.0f}",
        f"{arm['mfu']:.1%}",
    ]


def _ratio(ratio: dict[str, float] | None) -> str:
    if ratio is None:
        return ""
    if "low" not in ratio:
        return f"{ratio['median']:.3g}"
    return f"{ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def _memory(arm: dict[str, Any]) -> str:
    if arm["peak_bytes"] is None:
        return ""
    times = f" ({arm['memory_ratio']:.2f})" if "memory_ratio" in arm else ""
    return f"{arm['peak_bytes'] / 2**30:.1f} GiB{times}"


def _words(arm: dict[str, Any]) -> list[str]:
    parts = [f"{part} {ms:.2f}" for part, ms in arm.get("parts_ms", {}).items()]
    return [text for text in (", ".join(parts), arm.get("note", "")) if text]
