"""DoGraph's step in each mode against a plain step of the same trainer.

    python -m benchmarks.sketch                                      two CPU threads, 4 layers x 256
    python -m benchmarks.sketch --preset demo --seq-len 128 --recipe recommended \
        --modes full head --name sketch-demo                         the demo's model and batch

Every arm is a whole step: loader, forward, sketches, domains, weights, gradient, AdamW, metrics.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks import measure
from benchmarks.step import STEPS, add_shape, open_trainer, trainer_arm

TARGETS = {"full": 1.2, "head": 1.05, "twopass": 1.8}


def main(args: argparse.Namespace) -> None:
    if args.device == "cpu":
        torch.set_num_threads(args.threads)
    wait = torch.cuda.synchronize if args.device != "cpu" else lambda: None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trainers = {"plain": open_trainer(args, folder / "plain", "mixer.name=natural")}
        for mode in args.modes:
            trainers[mode] = open_trainer(
                args,
                folder / mode,
                "mixer.name=dograph",
                f"mixer.recipe={args.recipe}",
                f"sketch.mode={mode}",
            )
        arms = {name: trainer_arm(trainer) for name, trainer in trainers.items()}
        for _ in range(12):  # stream domains are there from the eleventh step on
            for step in arms.values():
                step()
        wait()
        seconds = measure.interleave(arms, args.blocks, STEPS, wait)
        for trainer in trainers.values():
            trainer.files.close()
    measure.write(
        args.name,
        "python -m benchmarks.sketch " + " ".join(sys.argv[1:]),
        {
            **{k: v for k, v in vars(args).items() if k != "name"},
            "parameters": sum(p.numel() for p in trainers["plain"].state.model.parameters()),
            "vocab": trainers["plain"].corpus.vocab_size,
            "steps_per_block": STEPS,
        },
        {
            **{f"{m}_over_plain": measure.ratio(seconds[m], seconds["plain"]) for m in args.modes},
            "plain_seconds": measure.median_interval(seconds["plain"]),
            "target": {m: f"at most {TARGETS[m]}" for m in args.modes if m in TARGETS},
        },
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", nargs="+", default=["full", "twopass"])
    parser.add_argument("--recipe", default="safe")
    parser.add_argument("--blocks", type=int, default=12)
    add_shape(parser)
    parser.add_argument("--name", default="sketch")
    main(parser.parse_args())
