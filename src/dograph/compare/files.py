"""What a comparison writes: all of it as JSON, a row a method and a row a cell as CSV."""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dograph.compare.findings import Findings, as_json
from dograph.files import write_text
from dograph.stats import METRICS

REPORT, METHODS, CELLS = "compare.json", "methods.csv", "cells.csv"


def write_findings(out: Path, findings: Findings) -> None:
    write_text(out / CELLS, as_csv(cell_rows(findings)))
    write_text(out / METHODS, as_csv(method_rows(findings)))
    write_text(out / REPORT, as_json(findings))


def as_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Columns are those of all rows, in the order they come up."""
    rows = list(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def cell_rows(findings: Findings) -> list[dict[str, Any]]:
    return [_cell_row(cell) for cell in findings["cells"]]


def method_rows(findings: Findings) -> list[dict[str, Any]]:
    return [_method_row(method) for method in findings["methods"]]


def _cell_row(cell: Mapping[str, Any]) -> dict[str, Any]:
    row = {name: cell[name] for name in ("label", "method", "seed", "steps", "tokens")}
    row |= {f"loss_{name}": value for name, value in cell.get("summaries", {}).items()}
    row |= {f"loss/{name}": value for name, value in cell.get("losses", {}).items()}
    row |= {f"epochs/{name}": value for name, value in cell.get("epochs", {}).items()}
    return row | _costs(cell) | {"command": cell["command"], "error": cell["error"] or ""}


def _method_row(method: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "method": method["label"],
        "mixer": method["mixer"]["name"],
        "seeds": len(method["cells"]) - len(method["failed"]),
        "one_plan_for_all_seeds": method["one_plan_for_all_seeds"],
        "steps": " ".join(map(str, method["steps"])),
    }
    for name in METRICS:
        row[f"loss_{name}"] = method.get("losses", {}).get(name, {}).get("mean", "")
        row |= _difference(name, method.get("differences", {}).get(name))
    for name, spread in method.get("sources", {}).items():
        row[f"loss/{name}"] = spread["mean"]
    for name, told in method.get("differences", {}).get("sources", {}).items():
        row |= _difference(f"source/{name}", told)
    row |= {f"epochs/{name}": value for name, value in method.get("epochs", {}).items()}
    return row | _costs(method)


def _difference(name: str, told: Mapping[str, Any] | None) -> dict[str, Any]:
    if told is None:
        return {}
    row = {f"difference_{name}": told["mean"]}
    for kind in ("interval", "simultaneous", "over_items"):
        for end in ("low", "high"):
            row[f"difference_{name}_{kind}_{end}"] = (told[kind] or {}).get(end, "")
    row[f"difference_{name}_p"] = "" if told["p"] is None else told["p"]
    row[f"difference_{name}_p_holm"] = "" if told["p_holm"] is None else told["p_holm"]
    row[f"difference_{name}_claim"] = told["claim"]
    return row


def _costs(row: Mapping[str, Any]) -> dict[str, Any]:
    costs = {f"flops_{part}": value for part, value in row["flops"].items()}
    costs |= {f"seconds_{part}": value for part, value in row.get("seconds", {}).items()}
    return costs | {"peak_bytes": row.get("peak_bytes", "")}
