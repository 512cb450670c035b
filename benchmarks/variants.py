"""Variants of weighing and sampling on real text, several seeds: which is worth reporting.

    python -m benchmarks.variants CORPUS --out variants.json --tables uniform natural --seeds 0 1

`uniform` draws every source alike (the paper's protocol, judged by the mean over sources),
`natural` by tokens (judged by the natural-weighted loss). A rerun skips what the file has.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import measure
from dograph.files import write_text
from dograph.training.metrics import read_metrics
from dograph.training.presets import resolve_config
from dograph.training.start import start_run
from dograph.training.world import open_world

UNIT = ["mixer.name=dograph", "mixer.within=unit", "mixer.effective_floor=null", "mixer.warmup=0"]


def unit(q: float, *more: str) -> list[str]:
    return [*UNIT, f"mixer.objective={{name: precision, q: {q}}}", *more]


def paper(*more: str) -> list[str]:
    return ["mixer.name=dograph", "mixer.recipe=paper", *more]


OBJECTIVES = ("variance", "robust", "alignment", "precision")
SAMPLED = ["mixer.realise=sampling", "mixer.warmup=0.05"]
ARMS: dict[str, list[str]] = {
    "plain": [],
    "inverse-norm": unit(0),
    "inverse-norm, all": unit(0, "mixer.norm_from=all"),
    "unit q=-1": unit(-1),
    "unit q=-0.5": unit(-0.5),
    "unit q=0.5": unit(0.5),
    "unit q=1": unit(1),
    "unit batch q=1": unit(1, "mixer.scope=batch"),
    "unit, sampled q=1": unit(1, *SAMPLED),
    "unit, sampled q=-1": unit(-1, *SAMPLED),
    "unit, sampled alignment": [*UNIT, "mixer.objective=alignment", *SAMPLED],
    "unit, sampled robust": [*UNIT, "mixer.objective=robust", *SAMPLED],
    "unit, sampled uncertainty": [
        *UNIT,
        "mixer.objective={name: uncertainty, sigma: mean}",
        *SAMPLED,
    ],
    # The paper's analyses, on its own recipe: objectives, number of domains, scope and geometry.
    **{name: paper(f"mixer.objective={name}") for name in OBJECTIVES},
    **{f"m={m}": paper(f"mixer.num_domains={m}") for m in (7, 9, 13, 15)},
    "batch, spherical": paper("mixer.normalise=true"),
    "epoch": paper("mixer.scope=epoch"),
    "epoch, spherical": paper("mixer.scope=epoch", "mixer.normalise=true"),
    "stream, spherical": paper("mixer.scope=stream"),
    "safe": ["mixer.name=dograph"],
    "paper": paper(),
    "dynamic-loss": ["mixer.name=dynamic-loss"],
}


def overrides_of(arm: str, table: str) -> list[str]:
    if arm == "plain":
        return [f"mixer.name={table}"]
    return [*ARMS[arm], f"mixer.sampling={table}"]


def train(args: argparse.Namespace, folder: Path, arm: str, table: str, seed: int) -> Any:
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    config = resolve_config(
        None,
        [
            f"data.corpus={args.corpus}",
            "data.seq_len=512",
            f"model.preset={args.preset}",
            f"train.steps={args.steps}",
            "train.batch_size=48",
            f"train.device={args.device}",
            "train.dtype=bfloat16",
            f"train.compile={str(args.compile).lower()}",
            "optim.lr=5e-4",
            "optim.lr_end=1e-4",
            "optim.warmup_steps=100",
            "eval.every=0",
            "eval.max_blocks=128",
            "checkpoint.every=0",
            "probe.rows=0",
            f"seed={seed}",
            f"run={run}",
            *overrides_of(arm, table),
        ],
    )
    torch._dynamo.reset()
    start = time.perf_counter()
    with open_world(args.device) as world:
        trainer = start_run(config, world)
        trainer.train()
    rows = read_metrics(trainer.run.metrics_file)
    steps = [row for row in rows if "train/loss_nats" in row]
    weights = trainer.state.sampler.by_source(trainer.state.sampler.log.entries[-1].weight_S)
    return {
        "arm": arm,
        "table": table,
        "seed": seed,
        "steps": args.steps,
        "seconds": round(time.perf_counter() - start, 1),
        "valid": {
            name.split("/")[1]: round(value, 5)
            for name, value in rows[-1].items()
            if name.startswith("valid/") and name.endswith("/loss_nats")
        },
        "effective": [
            round(row["weights/effective_samples"], 1) for row in steps[9 :: len(steps) // 8]
        ],
        "mixture": {name: round(weight, 4) for name, weight in weights.items()},
        "norm_ratio": round(steps[-1].get("weights/gradient_norm_ratio", 1.0), 3),
    }


def main(args: argparse.Namespace) -> None:
    out = Path(args.out)
    cells: list[dict[str, Any]] = json.loads(out.read_text())["cells"] if out.exists() else []
    done = {(c["arm"], c["table"], c["seed"], c["steps"]) for c in cells if "error" not in c}
    wanted = [
        (arm, table, seed)
        for seed in args.seeds
        for table in args.tables
        for arm in (args.arms or ARMS)
        if (arm, table, seed, args.steps) not in done
    ]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        for arm, table, seed in wanted[args.first :: args.stride]:
            if time.perf_counter() - began > args.seconds:
                break
            try:
                cells.append(train(args, Path(name), arm, table, seed))
            except Exception as error:  # a failed cell must not cost the others
                cells.append({"arm": arm, "table": table, "seed": seed, "error": repr(error)})
            print(json.dumps(cells[-1]), flush=True)
            config = {k: v for k, v in vars(args).items() if k not in ("corpus", "out")}
            machine = measure.machine()
            write_text(
                out, json.dumps({"config": config, "machine": machine, "cells": cells}, indent=1)
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=str)
    parser.add_argument("--out", required=True)
    parser.add_argument("--tables", nargs="+", default=["uniform", "natural"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--arms", nargs="*")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--preset", default="gpt2-mini")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--stride", type=int, default=1)
    main(parser.parse_args())
