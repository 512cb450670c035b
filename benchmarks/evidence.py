"""Train and judge what docs/results.md reports: cells for the machine of `dograph compare`.

    python -m benchmarks.evidence CORPUS --parts sceptic online --out FOLDER --into FILE.json
        [--workers 4] [--known FILE.json] [--benchmarks DIR]

Cells are trained side by side in --workers processes, on one GPU too. FILE.json is written after
every cell; those that it or a --known file has are not made again, and the run of a cell is
removed once it is read. After --seconds, Ctrl-C or a crash the same command goes on. With
--benchmarks the first reported seed of every arm answers the nine tasks.
"""

import argparse
import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import evidence_arms, measure
from benchmarks.evidence_arms import PARTS, REPORTED
from dograph import processes
from dograph.compare.cells import Cell
from dograph.compare.session import train_cells
from dograph.config import RunConfig, resolve_config
from dograph.data.corpus import Corpus
from dograph.data.sampler import WeightLog
from dograph.eval.evaluate import EvalRequest, evaluate, find_subject
from dograph.eval.recorded import read_validation
from dograph.files import write_text
from dograph.plan.jobs import Job, Result, Stopped
from dograph.plan.pool import Failure, LocalPool, Pool, answer
from dograph.records import read_metrics
from dograph.stats import summaries
from dograph.train.assembly import open_sampler
from dograph.train.run_dir import RunDirectory

CURVE_POINTS, HEALTH_POINTS = 35, 8
EFFECTIVE = "weights/effective_samples"
NAMES = ("table", "arm", "seed", "steps", "preset")  # of a cell


def configured(cell: evidence_arms.Cell, args: argparse.Namespace, run: Path) -> RunConfig:
    return resolve_config(
        None,
        [
            f"data.corpus={args.corpus}",
            f"data.seq_len={args.seq_len}",
            f"model.preset={args.preset or cell.preset}",
            f"train.steps={args.steps or cell.steps}",
            "train.batch_size=48",
            f"train.device={args.device}",
            "train.dtype=bfloat16",
            f"train.compile={str(args.compile).lower()}",
            "optim.lr=5e-4",
            "optim.lr_end=1e-4",
            f"optim.warmup_steps={min(100, args.steps or cell.steps)}",
            "eval.every=0",
            "eval.max_samples_per_source=128",
            "checkpoint.every=0",
            "probe.rows=0",
            f"seed={cell.seed}",
            f"run={run}",
            *cell.overrides,
        ],
    )


def outcome(run: RunDirectory, corpus: Corpus) -> dict[str, Any]:
    """Losses by source and block, the training curve, health of the weights, the last mixture."""
    rows = list(read_metrics(run.metrics_file))
    steps = [row for row in rows if "train/loss_nats" in row]
    whole = [row for row in steps if EFFECTIVE in row]  # every log.every steps, in older runs all
    last = {name: value for name, value in rows[-1].items() if name.startswith("valid/")}
    tokens = corpus.tokens_by_source()
    losses = {source: last[f"valid/{source}/loss_nats"] for source in tokens}
    summed = summaries(np.array(list(losses.values())), np.array(list(tokens.values()), float))
    health = [row[EFFECTIVE] for row in whole[:: _every(whole, HEALTH_POINTS)]]
    sampler = open_sampler(run.config(), corpus)
    log = WeightLog.load(run.weights_file, sampler.names)
    mixture = sampler.by_source(log.entries[-1].weight_S)
    seconds = [row["time/step_seconds"] for row in rows if "time/step_seconds" in row]
    blocks = read_validation(run.validation_file)
    return {
        "step_ms": round(1e3 * float(np.median(seconds)), 2),
        "losses": {source: round(value, 5) for source, value in losses.items()},
        "summaries": {name: round(float(value), 5) for name, value in summed.items()},
        "blocks": {s: [round(x, 4) for x in loss_n.tolist()] for s, (_, loss_n) in blocks.items()},
        "curve": [
            [int(row["step"]), round(row["train/loss_nats"], 4)]
            for row in steps[:: _every(steps, CURVE_POINTS)]
        ],
        "effective": [round(value, 1) for value in health],
        "norm_ratio": round(steps[-1].get("weights/gradient_norm_ratio", 1.0), 3),
        "mixture": {name: round(weight, 4) for name, weight in mixture.items()},
    }


def _every(rows: Sequence[Any], points: int) -> int:
    return max(len(rows) // points, 1)


def tasks_of(run: Path, args: argparse.Namespace) -> dict[str, Any]:
    """What the model scores on the nine tasks, and their average."""
    request = EvalRequest(
        benchmarks=args.benchmarks,
        limit=args.limit,
        batch_size=128,
        device=args.device,
        dtype="bfloat16",
    )
    scored = evaluate(find_subject(str(run)), request, None, lambda *_: None)
    tasks: dict[str, Any] = scored["tasks"] | {"average": scored["average"]}
    return tasks


def collect(args: argparse.Namespace, pool: Pool) -> dict[str, str]:
    """Make every cell that no file has, and write what each came to; failures by label."""
    corpus, known = Corpus(args.corpus), set[str]()
    for file in (*args.known, args.into):
        known |= {_key(cell) for cell in _cells(file)}
    about: dict[str, dict[str, Any]] = {}
    cells = []
    for asked in dict.fromkeys(cell for part in args.parts for cell in PARTS[part]):
        slug = re.sub(r"[^A-Za-z0-9.-]+", "_", f"{asked.table} {asked.arm} {asked.steps}")
        config = configured(asked, args, args.out / "cells" / f"{slug}-s{asked.seed}")
        cell = Cell(slug, asked.seed, config, step_flops=0.0)  # nobody asks what it costs
        values = (asked.table, asked.arm, asked.seed, config.train.steps, config.model.preset)
        found = dict(zip(NAMES, values, strict=True))
        if _key(found) not in known and (not args.arms or asked.arm in args.arms):
            about[cell.label] = found
            cells.append(cell)

    def on_done(cell: Cell, result: Result) -> None:
        run = RunDirectory(Path(cell.config.run))
        found = about[cell.label] | {"seconds": round(result.seconds, 1), **outcome(run, corpus)}
        if args.benchmarks is not None and cell.seed == REPORTED[0]:
            found["tasks"] = tasks_of(run.path, args)
        gather(args, corpus, found)
        shutil.rmtree(run.path)
        told = {key: found[key] for key in ("seconds", "step_ms", "summaries")}
        print(f"{cell.label}: {json.dumps(told)}", flush=True)

    return train_cells(cells, corpus, pool, on_done)[1]


def _key(found: Mapping[str, Any]) -> str:
    return " ".join(str(found[name]) for name in NAMES)


def _cells(file: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(file.read_text())["cells"] if file.exists() else []
    return cells


class EvidencePool(LocalPool):
    """As in `dograph compare`, but that every cell compiles anew.

    Arms are many, and what is compiled for one must not count towards the limit of another.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.module = "benchmarks.evidence"


def serve(descriptor: int) -> None:
    """What a worker process runs."""

    def fresh(job: Job) -> Result | Failure:
        torch.compiler.reset()
        return answer(job)

    with suppress(Stopped, KeyboardInterrupt):
        processes.serve(descriptor, fresh)


def gather(args: argparse.Namespace, corpus: Corpus, found: dict[str, Any]) -> None:
    """The cell beside those that the file has already."""
    config = {name: getattr(args, name) for name in ("device", "compile", "seq_len")}
    by_key = {_key(cell): cell for cell in [*_cells(args.into), found]}
    record = {
        "config": config | {"corpus": corpus.digest},
        "machine": measure.machine(),
        "cells": [by_key[key] for key in sorted(by_key)],
    }
    text = json.dumps(record, separators=(",", ":")).replace('{"table"', '\n{"table"')
    write_text(args.into, text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=str)
    parser.add_argument("--parts", nargs="+", choices=PARTS, required=True)
    parser.add_argument("--arms", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--known", type=Path, nargs="*", default=[])
    parser.add_argument("--workers", type=int, default=1, help="runs side by side")
    parser.add_argument("--benchmarks", type=Path)
    parser.add_argument("--limit", type=int, help="items of each task")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--seconds", type=float, default=540, help="after these, runs are stopped")
    parser.add_argument("--steps", type=int, help="instead of the cells' own: a quick look")
    parser.add_argument("--preset", help="instead of the cells' own")
    parser.add_argument("--seq-len", type=int, default=512)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    timer = threading.Timer(args.seconds, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    try:
        with EvidencePool(args.workers) as pool:
            for label, why in collect(args, pool).items():
                print(f"{label}: {why}", flush=True)
    except Stopped as stopped:
        print(stopped, flush=True)
