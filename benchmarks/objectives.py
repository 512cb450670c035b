"""Short runs under every objective, beside natural: what each does to the loss on real text.

    python -m benchmarks.objectives CORPUS --steps 300

Same weights at the start, same samples in the same order, one seed a row: leads, not results.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import measure
from dograph.config import resolve_config
from dograph.records import read_metrics
from dograph.train.distributed import open_world
from dograph.train.trainer import start_run

PAPER = ["mixer.name=dograph", "mixer.recipe=paper"]
ARMS = {
    "natural": ["mixer.name=natural"],
    "safe": ["mixer.name=dograph"],
    "safe, within unit": ["mixer.name=dograph", "mixer.normalize_gradients=true"],
    "paper (uncertainty)": PAPER,
    "uncertainty, sigma mean": [*PAPER, "mixer.objective={name: uncertainty, sigma: mean}"],
    "variance": [*PAPER, "mixer.objective=variance"],
    "variance, weighted": [*PAPER, "mixer.objective={name: variance, variance: weighted}"],
    "robust": [*PAPER, "mixer.objective=robust"],
    "alignment": [*PAPER, "mixer.objective=alignment"],
    "precision, batch": [*PAPER, "mixer.objective=precision"],
}


def train(args: argparse.Namespace, folder: Path, overrides: list[str]) -> dict[str, Any]:
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    config = resolve_config(
        None,
        [
            f"data.corpus={args.corpus}",
            f"data.seq_len={args.seq_len}",
            f"model.preset={args.preset}",
            f"train.steps={args.steps}",
            f"train.batch_size={args.batch}",
            f"train.device={args.device}",
            f"train.dtype={args.dtype}",
            "optim.lr=5e-4",
            "optim.lr_end=1e-4",
            f"optim.warmup_steps={args.steps // 4}",
            "eval.every=0",
            "eval.max_samples_per_source=64",
            "checkpoint.every=0",
            f"seed={args.seed}",
            f"run={run}",
            *overrides,
        ],
    )
    start = time.perf_counter()
    with open_world(args.device) as world:
        trainer = start_run(config, world)
        trainer.train()
    rows = list(read_metrics(trainer.run.metrics_file))
    steps = [row for row in rows if "train/loss_nats" in row]
    whole = [row for row in steps if "weights/effective_samples" in row]  # every log.every steps
    some = whole[:: max(len(whole) // 10, 1)]
    late = [row for row in whole if row["step"] > 20]
    valid = rows[-1]
    kept = ("weights/max_relative_weight", "weights/gradient_norm_ratio", "domains/nmi")
    return {
        "seconds": time.perf_counter() - start,
        "curve": [(row["step"], round(row["train/loss_nats"], 4)) for row in steps[9::10]],
        "validation_nats": {
            name.split("/")[1]: value
            for name, value in valid.items()
            if name.startswith("valid/") and name.endswith("/loss_nats")
        },
        "effective_samples": [round(row["weights/effective_samples"], 2) for row in some],
        **{k: [round(r[k], 4) for r in some if k in r] for k in kept},
        "last_weights": [v for k, v in steps[-1].items() if k.endswith("/weight")],
        "last_shares": [v for k, v in steps[-1].items() if k.endswith("/share")],
        "step_ms": {
            k: round(sum(r.get(k, 0.0) for r in late) / len(late), 2)
            for k in steps[-1]
            if k.startswith("time/") and k.endswith("_ms")
        },
    }


def main(args: argparse.Namespace) -> None:
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for arm, overrides in ARMS.items():
            if args.arms and arm not in args.arms:
                continue
            try:
                results[arm] = train(args, Path(name), overrides)
            except Exception as error:  # a failed arm must not cost the others
                results[arm] = {"error": repr(error)}
            print(arm, json.dumps(results[arm].get("validation_nats", results[arm])), flush=True)
            measure.write(
                args.name,
                "python -m benchmarks.objectives " + " ".join(sys.argv[1:]),
                {k: v for k, v in vars(args).items() if k not in ("name", "corpus")},
                results,
                quiet=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=str)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--preset", default="gpt2-mini")
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arms", nargs="*")
    parser.add_argument("--name", default="objectives")
    main(parser.parse_args())
