"""From finished cells to what the tables say: JSON values throughout.

Shapes: N seeds, S sources, n blocks of a source, R resamples.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dograph.compare.arms import Ask
from dograph.compare.cells import Cell, Planned, Plans
from dograph.data.corpus import Corpus
from dograph.plan.jobs import Result
from dograph.stats import (
    LEAST_SEEDS,
    METRICS,
    Blocks,
    Estimate,
    Interval,
    claim,
    holm,
    paired_difference,
    percentile_interval,
    resample,
    summaries,
)
from dograph.train.distributed import describe_environment
from dograph.train.metrics import read_metrics
from dograph.train.run_dir import RunDirectory

# Each method against the baseline: over seeds and over validation text, figure by figure.
#
# Holm's correction is over the rows of a table: for the summaries, each column of the main table is
# a family of one test for each method; the table by source is one family of all its cells.


@dataclass(frozen=True, slots=True)
class Runs:
    """One run's losses: by source, summed up, and block by block (predictions, losses)."""

    losses: Mapping[str, float]
    summaries: Mapping[str, float]
    blocks: Mapping[str, tuple[np.ndarray, np.ndarray]]


BySeed = Mapping[int, Runs]


def contrasts(
    runs: Mapping[str, BySeed], baseline: str, others: Sequence[str], tokens: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """For each of `others`: differences of the summaries and of every source."""
    seeds = {label: [seed for seed in runs[label] if seed in runs[baseline]] for label in others}
    sources = next((list(run.losses) for own in runs.values() for run in own.values()), [])
    over_text = {
        label: _resampled(runs[baseline], runs[label], seeds[label], sources) for label in others
    }
    share_S = np.array([float(tokens[source]) for source in sources])
    found: dict[str, dict[str, Any]] = {label: {"sources": {}} for label in others}

    tests = {
        (label, metric): _over_seeds(runs, baseline, label, seeds[label], metric, len(others))
        for metric in METRICS
        for label in others
    }
    for metric in METRICS:
        adjusted = holm([tests[label, metric].p_value for label in others])
        for label, p_holm in zip(others, adjusted, strict=True):
            text = over_text[label]
            figure = None if text is None else summaries(text, share_S)[metric]
            interval = None if figure is None else percentile_interval(figure, 1, 0)
            found[label][metric] = _told(tests[label, metric], p_holm, interval)

    family = len(others) * len(sources)
    by_source = {
        (label, source): _over_seeds(runs, baseline, label, seeds[label], source, family)
        for label in others
        for source in sources
    }
    adjusted = holm([test.p_value for test in by_source.values()])
    for ((label, source), test), p_holm in zip(by_source.items(), adjusted, strict=True):
        text = over_text[label]
        figure = None if text is None else text[..., sources.index(source)]
        interval = None if figure is None else percentile_interval(figure, 1, 0)
        found[label]["sources"][source] = _told(test, p_holm, interval)
    return found


def _over_seeds(
    runs: Mapping[str, BySeed],
    baseline: str,
    label: str,
    seeds: Sequence[int],
    name: str,
    family: int,
) -> Estimate:
    """`name` is a summary's or a source's; no source has the name of a summary."""

    def value(run: Runs) -> float:
        return run.summaries[name] if name in METRICS else run.losses[name]

    own, base = ({seed: value(runs[of][seed]) for seed in seeds} for of in (label, baseline))
    return paired_difference(own, base, family)


def _resampled(
    baseline: BySeed, method: BySeed, seeds: Sequence[int], sources: Sequence[str]
) -> np.ndarray | None:
    """Both methods on the same resampled blocks; None where a run has none on disk."""
    pair = [[own[seed] for seed in seeds] for own in (baseline, method)]
    if not seeds or any(set(run.blocks) != set(sources) for own in pair for run in own):
        return None
    blocks_of = {}
    for source in sources:
        predictions = pair[0][0].blocks[source][0]
        assert all(
            np.array_equal(run.blocks[source][0], predictions) for own in pair for run in own
        ), "runs of one comparison read the same blocks"
        loss_MNn = np.array([[run.blocks[source][1] for run in own] for own in pair])
        blocks_of[source] = Blocks(predictions, np.moveaxis(loss_MNn, -1, 0))
    return resample(blocks_of)


def _told(test: Estimate, p_holm: float | None, over_text: Interval | None) -> dict[str, Any]:
    return test.record() | {
        "p": test.p_value,
        "p_holm": p_holm,
        "over_items": over_text and asdict(over_text),
        "claim": claim(test, p_holm),
    }


# What a reader of the tables must know, a line each.


def notes_of(findings: Mapping[str, Any]) -> list[str]:
    """Lines to print under the tables."""
    notes = [_pairing(findings), _claims(findings)]
    methods = findings["methods"]
    shared = [m["label"] for m in methods if m["one_plan_for_all_seeds"]]
    if shared and len(findings["seeds"]) > 1:
        notes.append(
            f"one plan serves all seeds of {', '.join(shared)} (marked *): their intervals do not "
            "hold how much the plan itself varies; --replan makes one for each seed"
        )
    if any(method["plans"] for method in methods):
        notes.append(
            "FLOPs and time hold the plan's proxies in full, for each run: what training once costs"
        )
    if findings["budget"] == "compute":
        notes.append(
            "equal compute: every run has the FLOPs of the dearest at train.steps="
            f"{findings['config']['train']['steps']}; the learning rate is stretched to its steps"
        )
    notes += _epochs(findings)
    notes += [f"failed: {error}" for error in findings["failures"].values()]
    return notes


def _pairing(findings: Mapping[str, Any]) -> str:
    return (
        f"differences are to {findings['baseline']}, seed by seed; [ ] is their 95 % t interval "
        "over seeds, and text the 95 % bootstrap interval over validation blocks of these runs"
    )


def _claims(findings: Mapping[str, Any]) -> str:
    number = len(findings["seeds"])
    if number < LEAST_SEEDS:
        return (
            f"no claim is made: {number} seed{'s' if number > 1 else ''}, and a claim needs "
            f"{LEAST_SEEDS}; the same command with --seeds {LEAST_SEEDS} adds what is missing"
        )
    return "p is Holm's, over the rows; lower and higher are claimed where it is at most 0.05"


def _epochs(findings: Mapping[str, Any]) -> list[str]:
    most = findings["config"]["data"]["warn_epochs"]
    found = []
    for method in findings["methods"]:
        over = {n: e for n, e in method.get("epochs", {}).items() if e > most}
        if over:
            named = ", ".join(f"{name} {times:.1f} times" for name, times in over.items())
            found.append(
                f"warning: {method['label']} read through {named}, more than "
                f"data.warn_epochs={most:g}"
            )
    return found


Findings = dict[str, Any]
FORMAT, VERSION = "dograph-compare", 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What cells came to, by label."""

    results: dict[str, Result]
    failures: dict[str, str]


def find(
    ask: Ask, corpus: Corpus, plans: Plans, cells: Sequence[Cell], outcome: Outcome
) -> Findings:
    """Everything: per cell, per method, per source; differences, intervals, costs, versions."""
    tokens = corpus.tokens_by_source()
    rows = [_cell_row(cell, outcome, plans, tokens) for cell in cells]
    methods = []
    for method in ask.methods:
        own = [row for row in rows if row["method"] == method.label]
        planned = [plan for key, plan in plans.made.items() if key[0] == method.label]
        methods.append(_method_row(method.label, dict(method.mixer), own, planned))
    _add_contrasts(ask, methods, rows, tokens)
    findings = {
        "format": FORMAT,
        "version": VERSION,
        "command": ask.command,
        "budget": ask.budget,
        "baseline": ask.methods[0].label,
        "seeds": list(ask.seeds),
        "replan": ask.replan,
        "config": ask.config.model_dump(mode="json"),
        "proxy": None if ask.proxy is None else ask.proxy.model_dump(mode="json"),
        "corpus": {
            "folder": str(corpus.directory),
            "digest": corpus.digest,
            "tokens": tokens,
        },
        "environment": describe_environment(),
        "methods": methods,
        "cells": rows,
        "failures": outcome.failures,
    }
    return findings | {"notes": notes_of(findings)}


def _cell_row(
    cell: Cell, outcome: Outcome, plans: Plans, tokens: Mapping[str, int]
) -> dict[str, Any]:
    plan, result = (
        plans.made.get(plans.key(cell.method, cell.seed)),
        outcome.results.get(cell.label),
    )
    row: dict[str, Any] = {
        "label": cell.label,
        "method": cell.method,
        "seed": cell.seed,
        "run": cell.config.run,
        "command": cell.command,
        "steps": cell.config.train.steps,
        "tokens": cell.config.tokens,
        "flops": {
            "train": cell.flops,
            "plan": cell.price.plan,
            "total": cell.flops + cell.price.plan,
        },
        "error": outcome.failures.get(cell.label),
    }
    if result is None:
        return row
    loss_S = np.array([result.losses[source] for source in result.losses])
    share_S = np.array([float(tokens[source]) for source in result.losses])
    planning = plan.seconds if plan is not None else 0.0
    total = result.seconds + planning
    return row | {
        "seconds": {"train": result.seconds, "plan": planning, "total": total},
        "peak_bytes": result.peak_bytes,
        "losses": dict(result.losses),
        "summaries": {name: float(value) for name, value in summaries(loss_S, share_S).items()},
        "epochs": dict(result.epochs),
        "curve": [[step, dict(losses)] for step, losses in result.curve],
    }


def _method_row(
    label: str, mixer: Mapping[str, Any], cells: Sequence[dict[str, Any]], plans: Sequence[Planned]
) -> dict[str, Any]:
    done = [cell for cell in cells if cell["error"] is None]
    row: dict[str, Any] = {
        "label": label,
        "mixer": dict(mixer),
        "cells": [cell["label"] for cell in cells],
        "failed": [cell["label"] for cell in cells if cell["error"] is not None],
        "plans": [plan.record() for plan in plans],
        "one_plan_for_all_seeds": len(plans) == 1 and plans[0].seed is None,
        "steps": sorted({cell["steps"] for cell in cells}),
        "tokens": sorted({cell["tokens"] for cell in cells}),
        "flops": {
            part: _mean([cell["flops"][part] for cell in cells])
            for part in ("train", "plan", "total")
        },
    }
    if not done:
        return row
    sources = list(done[0]["losses"])
    epochs = {name: max(cell["epochs"][name] for cell in done) for name in done[0]["epochs"]}
    most = max(epochs, key=lambda name: epochs[name])
    return row | {
        "seconds": {
            part: _mean([cell["seconds"][part] for cell in done])
            for part in ("train", "plan", "total")
        },
        "peak_bytes": max(cell["peak_bytes"] for cell in done),
        "losses": {name: _spread([c["summaries"][name] for c in done]) for name in METRICS},
        "sources": {name: _spread([c["losses"][name] for c in done]) for name in sources},
        "epochs": epochs,
        "most_epochs": {"source": most, "epochs": epochs[most]},
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _spread(values: Sequence[float]) -> dict[str, Any]:
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"mean": _mean(values), "deviation": deviation, "seeds": len(values)}


def _add_contrasts(
    ask: Ask,
    methods: Sequence[dict[str, Any]],
    cells: Sequence[dict[str, Any]],
    tokens: Mapping[str, int],
) -> None:
    """Give every method but the baseline its differences to it."""
    runs = {
        method["label"]: {
            cell["seed"]: _runs_of(cell)
            for cell in cells
            if cell["method"] == method["label"] and cell["error"] is None
        }
        for method in methods
    }
    others = [method for method in methods if method["label"] != ask.methods[0].label]
    found = contrasts(runs, ask.methods[0].label, [m["label"] for m in others], tokens)
    for method in others:
        method["differences"] = found[method["label"]]


def _runs_of(cell: Mapping[str, Any]) -> Runs:
    """A cell's losses by source, and by block where the run has kept them."""
    rows: list[Any] = read_metrics(RunDirectory(Path(cell["run"])).validation_file)
    blocks = {
        row["source"]: (np.array(row["predictions"], float), np.array(row["loss_nats"]))
        for row in rows
    }
    return Runs(cell["losses"], cell["summaries"], blocks)


def as_json(findings: Findings) -> str:
    """JSON that every reader takes: what is not finite is null."""
    return json.dumps(_finite(findings), indent=2, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
