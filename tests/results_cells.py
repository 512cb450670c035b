"""Cells of benchmarks.evidence by hand, and rows of the tables made of them."""

from typing import Any

SHARES = {"a": 0.75, "b": 0.25}


def cell(arm: str, seed: int, a: float, b: float, **more: Any) -> dict[str, Any]:
    summed = {"mean": (a + b) / 2, "natural": 0.75 * a + 0.25 * b, "worst": max(a, b), "gap": 0.0}
    losses = {"a": a, "b": b}
    common = {"table": "uniform", "steps": 700, "preset": "gpt2-mini", "effective": [48.0, 47.0]}
    return common | {"arm": arm, "seed": seed, "losses": losses, "summaries": summed} | more


def row_of(lines: list[str], arm: str) -> list[str]:
    line = next(line for line in lines if line.startswith(f"| {arm} |"))
    return [part.strip() for part in line.strip("|").split("|")]
