"""Downstream scores (`dograph eval`) and what a step costs (`dograph bench`), for a page."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dograph.errors import ConfigError
from dograph.report.content import Arm, Bench, Benchmarks
from dograph.report.intervals import Estimate, over_seeds
from dograph.report.reading import EVALUATION, read_json

NORMAL = 1.96
AVERAGE = "average"


def benchmarks_of(runs: Sequence[tuple[Path, str]]) -> Benchmarks | None:
    """Scores by group; over seeds where a group has several, else over the tasks' items."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path, group in runs:
        if record := read_json(path / EVALUATION):
            found.setdefault(group, []).append(record)
    if not found:
        return None
    every = [record for own in found.values() for record in own]
    tasks = list(dict.fromkeys(task for record in every for task in record["tasks"]))
    chance = {task: record["tasks"][task]["chance"] for record in every for task in record["tasks"]}
    notes = list(dict.fromkeys(note for record in every for note in record["notes"]))
    notes += items_asked(every)
    rows = [(group, _scores(own, tasks)) for group, own in found.items()]
    chance[AVERAGE] = every[0]["average"]["chance"]
    return Benchmarks([*tasks, AVERAGE], chance, rows, notes)


def items_asked(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line where some task was not asked in full (`--limit`): few items tell little."""
    short: dict[str, str] = {}
    for record in records:
        for name, task in record["tasks"].items():
            if "available" in task and task["items"] < task["available"]:
                short.setdefault(name, f"{name} {task['items']:,} of {task['available']:,}")
    return [f"items asked, of those there are: {', '.join(short.values())}"] if short else []


def _scores(records: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> dict[str, Estimate]:
    scores = {}
    for task in [*tasks, AVERAGE]:
        own = [score for record in records if (score := _score(record, task)) is not None]
        if own:
            one = own[0]
            scores[task] = one if len(own) == 1 else over_seeds([score.value for score in own])
    return scores


def _score(record: Mapping[str, Any], task: str) -> Estimate | None:
    """acc_norm where the task has one, as in the paper, with 1.96 standard errors of its items."""
    if task == AVERAGE:
        told = record["average"]
    elif task in record["tasks"]:
        told = record["tasks"][task][record["tasks"][task]["primary"]]
    else:
        return None
    value, error = told["value"], told["se"]
    if error is None or not math.isfinite(error):
        return Estimate(value)
    return Estimate(value, value - NORMAL * error, value + NORMAL * error)


def bench_of(path: Path) -> Bench:
    """The arms of one bench.json that were measured."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        options, device = found["options"], found["device"]["name"]
        shape = f"{options['batch']} x {options['seq_len']}, {options['dtype']}"
        arms = [_arm(name, arm) for name, arm in found["arms"].items() if "ms" in arm]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"--bench {path} is no file of `dograph bench`; make one with: dograph bench"
        ) from error
    return Bench(f"{options['model']}, {shape}, {device}", arms)


def _arm(name: str, arm: Mapping[str, Any]) -> Arm:
    ratio, floor = arm.get("ratio"), arm.get("floor_ms")
    plain = arm.get("plain_ms")
    return Arm(
        name=name,
        ms=arm["ms"]["median"],
        over_plain=Estimate(ratio["median"], ratio["low"], ratio["high"]) if ratio else None,
        extra_ms=arm["ms"]["median"] - plain["median"] if plain else None,
        floor_ms=floor["total"] if floor else None,
        floor_ratio=arm.get("floor_ratio"),
        peak_bytes=arm.get("peak_bytes"),
    )
