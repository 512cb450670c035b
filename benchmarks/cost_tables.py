"""The tables of docs/cost.md, from the committed figures.

python -m benchmarks.cost_tables           print them
python -m benchmarks.cost_tables --write   put them into docs/cost.md
"""

import argparse
import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "cost.md"
BENCHES = {
    "GPT-2, 24 layers, 48 x 512": "bench-gpt2-small-h200",
    "GPT-2, 36 layers, 48 x 512": "bench-gpt2-medium-h200",
    "LLaMA-1.1B, 2 micro-batches of 8 x 2048, lagged": "bench-llama-1.1b-h200",
}
FAITHFUL = {
    "full, K 5120": "`full`",
    "full, K 1280": "`full`, K = 1280",
    "full, K 20480": "`full`, K = 20480",
    "topdown, 1 of 24": "`topdown`, 1 block of 24",
    "topdown, 4 of 24": "`topdown`, 4 blocks",
    "topdown, 12 of 24": "`topdown`, 12 blocks",
    "head": "`head`",
    "exact, other K-means seed": "exact, another seed of K-means",
    "equal weights, labels by chance": "equal weights, labels by chance",
}
COLUMNS = {
    "distance_std": "pair distances",
    "gram_correlation": "correlation of Grams",
    "excess": "excess objective",
    "l1_paper": "L1 of weights, `paper`",
    "l1_precision": "the same, `precision`",
    "l1_paper_given": "`paper`, exact domains given",
}


def load(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def heading(*cells: str) -> list[str]:
    return [row(*cells), row(*("---" for _ in cells))]


def modes() -> list[str]:
    """Every mode beside plain, on every model."""
    lines = heading(
        *("model", "arm", "ms", "over plain [95 %]", "in a row", "floor", "memory", "tokens/s"),
        *("MFU", "weigh ms"),
    )
    for model, name in BENCHES.items():
        for arm, found in load(name)["arms"].items():
            ratio = found.get("ratio")
            over = "1" if ratio is None else "{median:.3f} [{low:.3f}, {high:.3f}]".format(**ratio)
            floor = f"{found['floor_ratio']:.3f}" if "floor_ratio" in found else ""
            memory = f"{found['peak_bytes'] / 2**30:.1f} GiB"
            if "memory_ratio" in found:
                memory += f" ({found['memory_ratio']:.2f})"
            weigh = found.get("parts_ms", {}).get("weigh")
            lines.append(
                row(
                    model if arm == "plain" else "",
                    arm,
                    f"{found['ms']['median']:.1f}",
                    over,
                    f"{found['row_ratio']:.2f}" if "row_ratio" in found else "",
                    floor,
                    memory,
                    f"{found['tokens_per_second']:,.0f}",
                    f"{found['mfu']:.1%}",
                    "" if weigh is None else f"{weigh:.2f}",
                )
            )
    return lines


def parts() -> list[str]:
    """Where the time of a step goes."""
    arms = load(BENCHES["GPT-2, 24 layers, 48 x 512"])["arms"]
    names = ["forward", "backward", "sketch", "weigh", "deferred", "update"]
    lines = heading("ms", *names)
    for arm, found in arms.items():
        spent = found["parts_ms"]
        lines.append(row(arm, *(f"{spent[n]:.1f}" if n in spent else "" for n in names)))
    return lines


def rivals() -> list[str]:
    lines = heading("what one would do instead", "ms", "over plain", "memory", "what it is")
    for arm, found in load("bench-gpt2-small-rivals-h200")["arms"].items():
        if arm != "plain":
            ms, over = f"{found['ms']['median']:,.0f}", f"{found['ratio']['median']:.1f}"
            lines.append(row(arm, ms, over, f"{found['memory_ratio']:.2f}", found["note"]))
    return lines


def solve() -> list[str]:
    """From sketches to weights, on the device."""
    lines = heading("recipe, objective, samples", "kernels, ms", "plain PyTorch, ms")
    costs = load("solve-h200")["result"]["costs"]
    for name, found in costs.items():
        what, _, which = name.rpartition(", kernels, ")
        if which == "critical":
            twin = costs[f"{what}, twins, critical"]["device_ms"]
            lines.append(row(what, f"{found['device_ms']:.2f}", f"{twin:.2f}"))
    return lines


def kernels() -> list[str]:
    """The ten kernels of `full` that take longest, before and after."""
    lines = heading("", "before", "ms", "calls", "after", "ms", "calls")
    before, after = (load(f"profile-{when}-h200")["full"] for when in ("before", "after"))
    for place, (old, new) in enumerate(zip(before["top"], after["top"], strict=True), 1):
        cells = [
            cell
            for one in (old, new)
            for cell in (f"`{short(one['name'])}`", f"{one['ms']:.2f}", f"{one['calls']:.0f}")
        ]
        lines.append(row(place, *cells))
    for name, key in (("all kernels", "device_ms"), ("launches", "launched")):
        lines.append(row(name, "", f"{before[key]:,.1f}", "", "", f"{after[key]:,.1f}", ""))
    return lines


def short(name: str) -> str:
    name = name.removeprefix("void ").replace("at::native::", "").split("<")[0].split("(")[0]
    return name[:58]


def fidelity() -> list[str]:
    steps = load("fidelity-h200")["result"]["steps"]
    lines = heading("", *(f"{title}, at {' / '.join(steps)}" for title in COLUMNS.values()))
    for key, title in FAITHFUL.items():
        cells = []
        for column in COLUMNS:
            values = [step["rows"][key].get(column) for step in steps.values()]
            known = [f"{value['median']:.3f}" for value in values if value is not None]
            cells.append(" / ".join(known))
        lines.append(row(title, *cells))
    return lines


TABLES = {
    "modes": modes,
    "parts": parts,
    "rivals": rivals,
    "solve": solve,
    "kernels": kernels,
    "fidelity": fidelity,
}


def filled(page: str) -> str:
    """The page with every table between its marks as the figures have it now."""
    for name, table in TABLES.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, _, rest = page.partition(start)
        _, _, after = rest.partition(end)
        page = before + "\n".join([start, *table(), end]) + after
    return page


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        PAGE.write_text(filled(PAGE.read_text()))
    else:
        for table in TABLES.values():
            print("\n".join(table()), end="\n\n")
