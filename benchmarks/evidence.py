"""Train and judge what docs/results.md reports, cell by cell; a rerun skips what is there.

    python -m benchmarks.evidence CORPUS --parts sceptic online --out FOLDER --into FILE.json
        [--known FILE.json] [--benchmarks DIR]

Several processes may share FOLDER: each takes the next cell that nobody has. FILE.json is written
after every cell. With --benchmarks the first reported seed of every arm answers the nine tasks.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import measure
from benchmarks.evidence_arms import PARTS, REPORTED, Cell
from dograph.config import RunConfig, resolve_config
from dograph.data.corpus import Corpus
from dograph.eval.evaluate import EvalRequest, evaluate, find_subject
from dograph.files import write_text
from dograph.stats import summaries
from dograph.train.distributed import open_world
from dograph.train.metrics import read_metrics
from dograph.train.trainer import Trainer, start_run

CURVE_POINTS, HEALTH_POINTS = 35, 8


def configured(cell: Cell, args: argparse.Namespace, run: Path) -> RunConfig:
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
            "eval.max_blocks=128",
            "checkpoint.every=0",
            "probe.rows=0",
            f"seed={cell.seed}",
            f"run={run}",
            *cell.overrides,
        ],
    )


def trained(cell: Cell, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One cell: what it came to, and how it went."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    config = configured(cell, args, run)
    torch._dynamo.reset()
    start = time.perf_counter()
    with open_world(args.device) as world:
        trainer = start_run(config, world)
        trainer.train()
    found = {
        "table": cell.table,
        "arm": cell.arm,
        "seed": cell.seed,
        "steps": config.train.steps,
        "preset": config.model.preset,
        "seconds": round(time.perf_counter() - start, 1),
        **outcome(trainer, args.corpus),
    }
    if args.benchmarks is not None and cell.seed == REPORTED[0]:
        request = EvalRequest(
            benchmarks=args.benchmarks,
            limit=args.limit,
            batch_size=128,
            device=args.device,
            dtype="bfloat16",
        )
        scored = evaluate(find_subject(str(run)), request, None, lambda *_: None)
        found["tasks"] = scored["tasks"] | {"average": scored["average"]}
    return found


def outcome(trainer: Trainer, corpus: str) -> dict[str, Any]:
    """Losses by source and block, the training curve, health of the weights, the last mixture."""
    rows = read_metrics(trainer.run.metrics_file)
    steps = [row for row in rows if "train/loss_nats" in row]
    last = {name: value for name, value in rows[-1].items() if name.startswith("valid/")}
    tokens = Corpus(corpus).tokens_by_source()
    losses = {source: last[f"valid/{source}/loss_nats"] for source in tokens}
    summed = summaries(np.array(list(losses.values())), np.array(list(tokens.values()), float))
    health = [
        row.get("weights/effective_samples") for row in steps[:: _every(steps, HEALTH_POINTS)]
    ]
    sampler = trainer.state.sampler
    mixture = sampler.by_source(sampler.log.entries[-1].weight_S)
    seconds = [row["time/step_seconds"] for row in rows if "time/step_seconds" in row]
    blocks: list[Any] = read_metrics(trainer.run.validation_file)
    return {
        "step_ms": round(1e3 * float(np.median(seconds)), 2),
        "losses": {source: round(value, 5) for source, value in losses.items()},
        "summaries": {name: round(float(value), 5) for name, value in summed.items()},
        "blocks": {row["source"]: [round(x, 4) for x in row["loss_nats"]] for row in blocks},
        "curve": [
            [int(row["step"]), round(row["train/loss_nats"], 4)]
            for row in steps[:: _every(steps, CURVE_POINTS)]
        ],
        "effective": [None if value is None else round(value, 1) for value in health],
        "norm_ratio": round(steps[-1].get("weights/gradient_norm_ratio", 1.0), 3),
        "mixture": {name: round(weight, 4) for name, weight in mixture.items()},
    }


def _every(rows: list[Any], points: int) -> int:
    return max(len(rows) // points, 1)


def wanted(args: argparse.Namespace) -> Iterator[tuple[Cell, Path]]:
    """Cells of the parts that no file knows and no other process has taken, each taken now."""
    known = {_key(cell) for file in args.known for cell in json.loads(file.read_text())["cells"]}
    for cell in dict.fromkeys(cell for part in args.parts for cell in PARTS[part]):
        file = args.out / f"{cell.key.replace(' ', '_').replace(',', '')}.json"
        if cell.key in known or (args.arms and cell.arm not in args.arms):
            continue
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        yield cell, file


def _key(found: dict[str, Any]) -> str:
    names = ("table", "arm", "seed", "steps", "preset")
    return " ".join(str(found[name]) for name in names)


def gather(folder: Path, into: Path, config: dict[str, Any]) -> None:
    """All cells of the folder, with those that the file has already."""
    old = json.loads(into.read_text())["cells"] if into.exists() else []
    new = [json.loads(file.read_text()) for file in folder.glob("*.json") if file.stat().st_size]
    found = {_key(cell): cell for cell in [*old, *new]}
    cells = [found[key] for key in sorted(found)]
    record = {"config": config, "machine": measure.machine(), "cells": cells}
    write_text(into, json.dumps(record, separators=(",", ":")).replace('{"table"', '\n{"table"'))


def main(args: argparse.Namespace) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    names = ("device", "compile", "seq_len")
    config = {name: getattr(args, name) for name in names} | {"corpus": Corpus(args.corpus).digest}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        for cell, file in wanted(args):
            if time.perf_counter() - began > args.seconds:
                file.unlink()
                break
            try:
                found = trained(cell, args, Path(name))
            except Exception as error:  # a failed cell must not cost the others
                print(f"{cell.key}: {error!r}", flush=True)
                continue
            write_text(file, json.dumps(found))
            told = {key: found[key] for key in ("seconds", "step_ms", "summaries")}
            print(f"{cell.key}: {json.dumps(told)}", flush=True)
            gather(args.out, args.into, config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=str)
    parser.add_argument("--parts", nargs="+", choices=PARTS, required=True)
    parser.add_argument("--arms", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--known", type=Path, nargs="*", default=[])
    parser.add_argument("--benchmarks", type=Path)
    parser.add_argument("--limit", help="items of each task")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--seconds", type=float, default=540, help="no cell begins after these")
    parser.add_argument("--steps", type=int, help="instead of the cells' own: a quick look")
    parser.add_argument("--preset", help="instead of the cells' own")
    parser.add_argument("--seq-len", type=int, default=512)
    main(parser.parse_args())
