"""From steps to rows of metrics.jsonl: one line a step, every number named with its unit.

`loss_nats` is the mean negative log likelihood per token, `ppl` its exponential, `bits_per_byte`
the same loss per byte of text. Per source, as the plain mean over sources (`mean`), weighted by
the sources' training tokens (`natural`), and of the worst source (`worst`).
"""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch

from dograph.mixers.dograph_report import read_together
from dograph.train.step import StepRecord
from dograph.train.stopwatch import milliseconds

Row = dict[str, float]
SUMMARIES = ("mean", "natural", "worst")


def loss_row(prefix: str, nats: float, bytes_per_token: float | None) -> Row:
    """A loss under its three names."""
    row = {f"{prefix}/loss_nats": nats, f"{prefix}/ppl": math.exp(min(nats, 700.0))}
    if bytes_per_token:
        row[f"{prefix}/bits_per_byte"] = nats / bytes_per_token / math.log(2)
    return row


def step_rows(
    records: Sequence[StepRecord], sources: list[str], bytes_per_token: Mapping[str, float | None]
) -> list[Row]:
    """One row a step. What is on the device comes over for all steps together."""
    if not records:
        return []
    loss_NB = torch.stack([record.loss_B for record in records]).double().cpu().numpy()
    weight_NB = torch.stack([record.weight_B for record in records]).double().cpu().numpy()
    norm_N = torch.stack([record.grad_norm for record in records]).tolist()
    source_NB = torch.stack([record.source_B for record in records]).cpu().numpy()
    rows = []
    for n, record in enumerate(records):
        row: Row = {"step": record.step + 1}
        row |= loss_row("train", float(loss_NB[n].mean()), None)
        for s, source in enumerate(sources):
            own_B = source_NB[n] == s
            if own_B.any():
                mean = float(loss_NB[n][own_B].mean())
                row |= loss_row(f"train/{source}", mean, bytes_per_token[source])
        row["train/weighted_loss_nats"] = float((weight_NB[n] * loss_NB[n]).sum())
        row["weights/effective_samples"] = float(1 / (weight_NB[n] ** 2).sum())
        row["optim/lr"] = record.lr
        row["optim/grad_norm"] = norm_N[n]
        rows.append(row)
    for row, reported, record in zip(rows, report_rows(records), records, strict=True):
        row |= reported | milliseconds(record.laps)
    return rows


def report_rows(records: Sequence[StepRecord]) -> list[Row]:
    """What the mixer reported, brought over in one transfer; a vector has one entry a domain.

    What it reported of single samples goes to samples.jsonl instead.
    """
    read_together(record.report for record in records)
    reports = [
        {name: value for name, value in record.report.items() if not name.startswith("samples/")}
        for record in records
    ]
    tensors = [v for report in reports for v in report.values() if isinstance(v, torch.Tensor)]
    flat = torch.cat([t.detach().reshape(-1).double() for t in tensors]).tolist() if tensors else []
    numbers = iter(flat)
    rows: list[Row] = []
    for report in reports:
        row: Row = {}
        for name, value in report.items():
            if not isinstance(value, torch.Tensor):
                row[name] = value
            elif value.dim() == 0:
                row[name] = next(numbers)
            else:
                area, _, quantity = name.partition("/")
                row |= {f"{area}/{j}/{quantity}": next(numbers) for j in range(len(value))}
        rows.append(row)
    return rows


def sample_rows(records: Sequence[StepRecord]) -> list[dict[str, Any]]:
    """Rows of samples.jsonl: what each sample counted, equal weights being 1, and its domain.

    One transfer for all records.
    """
    if not records:
        return []
    read_together(record.report for record in records)
    nowhere = torch.full_like(records[0].weight_B, -1.0)
    both_2NB = torch.stack(
        [
            torch.stack([len(record.weight_B) * record.weight_B for record in records]),
            torch.stack([_domains_of(record, nowhere) for record in records]),
        ]
    )
    weights, domains = both_2NB.tolist()
    return [
        {
            "step": record.step + 1,
            "weight": [round(weight, 6) for weight in weight_B],
            "domain": None if domain_B[0] < 0 else [int(domain) for domain in domain_B],
        }
        for record, weight_B, domain_B in zip(records, weights, domains, strict=True)
    ]


def _domains_of(record: StepRecord, nowhere: torch.Tensor) -> torch.Tensor:
    found = record.report.get("samples/domain")
    return found.to(nowhere) if isinstance(found, torch.Tensor) else nowhere


def validation_row(
    step: int,
    nats: Mapping[str, float],
    tokens: Mapping[str, int],
    bytes_per_token: Mapping[str, float | None],
) -> Row:
    """Validation losses per source and their three summaries."""
    row: Row = {"step": step}
    for source, value in nats.items():
        row |= loss_row(f"valid/{source}", value, bytes_per_token[source])
    if not nats:
        return row
    total = sum(tokens[source] for source in nats)
    natural = sum(tokens[source] * value for source, value in nats.items()) / total
    worst = max(nats, key=lambda source: nats[source])
    row |= loss_row("valid/mean", sum(nats.values()) / len(nats), None)
    row |= loss_row("valid/natural", natural, _natural_bytes(tokens, bytes_per_token, nats))
    row |= loss_row("valid/worst", nats[worst], bytes_per_token[worst])
    names = [f"valid/{source}/bits_per_byte" for source in nats]
    if all(name in row for name in names):
        row["valid/mean/bits_per_byte"] = sum(row[name] for name in names) / len(names)
    return row


def _natural_bytes(
    tokens: Mapping[str, int],
    bytes_per_token: Mapping[str, float | None],
    sources: Iterable[str],
) -> float | None:
    """Bytes of a token of all text together; None where a source's are not known."""
    size = {source: bytes_per_token[source] for source in sources}
    known = {source: value for source, value in size.items() if value}
    if len(known) < len(size):
        return None
    total = sum(tokens[source] for source in known)
    return sum(tokens[source] * value for source, value in known.items()) / total


class MetricsFile:
    """metrics.jsonl, or another like it, appended to: what is written is whole lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._file.write("".join(json.dumps(row) + "\n" for row in rows))
        self._file.flush()

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        with suppress(OSError):  # what a full disk refused was told when it was written
            self._file.close()


def read_metrics(path: Path) -> list[Row]:
    """The rows of a metrics file; a line that a kill cut short is left out."""
    rows: list[Row] = []
    if not path.is_file():
        return rows
    with open(path, encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                break
            rows.append(json.loads(line))
    return rows
