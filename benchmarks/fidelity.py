"""How faithful the cheap modes and the projection are, on a real model as it trains.

    python -m benchmarks.fidelity --preset tiny --seq-len 64 --batch 16 --at 0 10 --batches 2
    python -m benchmarks.fidelity --corpus DIR --device cuda --compile --name fidelity-h200

A plain run (mixer natural) stops at the steps of `--at`. There the Gram of the samples' gradients
is computed exactly (float32 arithmetic, no TF32, one backward a sample, sums in float64) for some
batches that the run does not draw, the same at every stop, and each mode's sketches are compared
with it: squared distances of pairs with their common factor taken out, domains by their objective
on the exact Gram, weights by L1 distance, updates by cosine. Modes run as in training. Seeds of
the projections of `topdown` and `head` change from batch to batch.

Shapes: B samples, T tokens, K sketch, N entries of a parameter.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import fidelity_measures as measures
from benchmarks import measure
from benchmarks.fidelity_run import fresh_batches, open_trainer, say, train_to
from benchmarks.fidelity_table import print_table
from benchmarks.fidelity_weights import BEST_OF, RECIPES, REFERENCE_SEEDS, Metrics, judge_batch
from dograph.config import DEFAULT_DIM
from dograph.sketch.cover import blocks_of
from dograph.sketch.sketcher import Mode, Sketcher
from dograph.train.distributed import open_world
from dograph.train.trainer import Trainer

WIDE_ROWS = 16  # samples sketched at once in float32, whose activations are twice as large
LOOKED_AT = 4  # samples of a batch whose gradient matrices' ranks are looked at
BFLOAT16 = "bfloat16 against float32, same projection"

Judged = Future[list[tuple[str, Metrics]]]


@dataclass(frozen=True)
class Arm:
    """A way to sketch: one row of the table."""

    row: str
    mode: Mode
    half: bool
    dim: int = DEFAULT_DIM
    top_blocks: int = 4
    every_seed: bool = False  # all seeds for each batch, else one that changes with the batch


def list_arms(args: argparse.Namespace, num_blocks: int) -> list[Arm]:
    half = args.dtype == "bfloat16"
    arms = [Arm(f"full, K {dim}", "full", half, dim, every_seed=True) for dim in args.dims]
    arms += [
        Arm(f"topdown, {cut} of {num_blocks}", "topdown", half, top_blocks=cut)
        for cut in args.top_blocks
        if cut <= num_blocks
    ]
    arms.append(Arm("head", "head", half))
    if half:
        arms.append(Arm(f"full, K {DEFAULT_DIM}, float32", "full", half=False))
    return arms


class Stops:
    """What is measured of the model wherever the run stops."""

    def __init__(
        self, args: argparse.Namespace, trainer: Trainer, pool: ProcessPoolExecutor
    ) -> None:
        self.args, self.pool, self.model = args, pool, trainer.state.model
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.stack, blocks = blocks_of(self.model)
        self.num_blocks = len(blocks)
        self.arms = list_arms(args, self.num_blocks)
        self.sketchers: dict[tuple[Arm, int], Sketcher] = {}
        self.batches = fresh_batches(trainer, args.batches)
        self.seconds = dict.fromkeys(("exact", "sketches", "waiting for weights"), 0.0)

    def measure(self, done: int) -> dict[str, Any]:
        """Every batch at this step."""
        gradients: dict[str, list[float]] = {}
        judged: list[Judged] = []
        for number, token_BT in enumerate(self.batches):
            with self.timed("exact"):
                grams = self.exact(token_BT, gradients)
            with self.timed("sketches"):
                judged.append(self.submit(number, token_BT, grams))
            say(f"step {done}: batch {number + 1} of {len(self.batches)} is sketched")
        rows: dict[str, dict[str, list[float]]] = {}
        with self.timed("waiting for weights"):
            for future in judged:
                for row, metrics in future.result():
                    for name, value in metrics.items():
                        rows.setdefault(row, {}).setdefault(name, []).append(value)
        return {
            "gradients": {name: measures.summary(v) for name, v in gradients.items()},
            "rows": {
                row: {name: measures.summary(v) for name, v in metrics.items()}
                for row, metrics in rows.items()
            },
        }

    def exact(self, token_BT: Tensor, gradients: dict[str, list[float]]) -> dict[str, Tensor]:
        """Every parameter's Gram; losses, energy shares and ranks are noted in `gradients`."""

        def note(name: str, *values: float) -> None:
            gradients.setdefault(name, []).extend(values)

        def look(name: str, gradient_BN: Tensor) -> None:
            if self.is_looked_at(name):
                some = gradient_BN[:LOOKED_AT].unflatten(1, self.parameters[name].shape)
                note(f"r_eff/{name}", *measures.participation_ratio(some).tolist())
                apart = some[1:] - some[:-1]
                note(f"r_eff of differences/{name}", *measures.participation_ratio(apart).tolist())

        with sdpa_kernel(SDPBackend.MATH):  # fused kernels round float32 as they like
            grams, loss_B = measures.exact_grams(
                self.model, token_BT, self.parameters, hold=self.args.hold_gib << 30, look=look
            )
        note("loss_nats", float(loss_B.mean()))
        centred = {name: measures.centred(gram_BB) for name, gram_BB in grams.items()}
        for kind, known in (("energy", grams), ("energy of differences", centred)):
            for part, share in measures.energy_shares(known, self.part_of).items():
                note(f"{kind}/{part}", share)
            for part, share in measures.energy_shares(known, self.block_of).items():
                note(f"{kind} by block/{part}", share)
        return grams

    def submit(self, number: int, token_BT: Tensor, grams: dict[str, Tensor]) -> Judged:
        """Sketch the batch in every mode and leave the comparing to another process."""
        one = number % self.args.seeds
        sketches: list[tuple[str, np.ndarray]] = []
        pair: dict[bool, np.ndarray] = {}
        for arm in self.arms:
            for seed in range(self.args.seeds) if arm.every_seed else (one,):
                sketch_BK = self.sketch(arm, seed, token_BT)
                sketches.append((arm.row, sketch_BK))
                if arm.mode == "full" and arm.dim == DEFAULT_DIM and seed == one:
                    pair[arm.half] = sketch_BK
        for row, inside in (("the blocks", True), ("all but the blocks", False)):
            known = [g for name, g in grams.items() if (self.block_of(name) != "none") == inside]
            point_BB = measures.embedding(torch.stack(known).sum(dim=0))
            sketches.append((f"exact Gram of {row}", point_BB.numpy()))
        gram_BB = torch.stack(list(grams.values())).sum(dim=0).numpy()
        precisions = (BFLOAT16, pair[True], pair[False]) if len(pair) == 2 else None
        return self.pool.submit(judge_batch, gram_BB, sketches, number, precisions)

    def sketch(self, arm: Arm, seed: int, token_BT: Tensor) -> np.ndarray:
        if (arm, seed) not in self.sketchers:
            self.sketchers[arm, seed] = Sketcher(
                self.model, mode=arm.mode, dim=arm.dim, seed=seed, top_blocks=arm.top_blocks
            )
        sketcher, parts = self.sketchers[arm, seed], []
        for token_bT in token_BT.split(len(token_BT) if arm.half else WIDE_ROWS):
            with ExitStack() as taps:
                with torch.autocast(token_bT.device.type, torch.bfloat16, enabled=arm.half):
                    taps.enter_context(sketcher.record(token_bT, 0))
                    loss_b = self.model(token_bT)
                parts.append(sketcher.sketch(loss_b, keep=False).sketch_BK.detach().float().cpu())
        return torch.cat(parts).numpy()

    def block_of(self, name: str) -> str:
        """The number of a parameter's block, or none."""
        inside = name.startswith(f"{self.stack}.")
        return name.removeprefix(f"{self.stack}.").split(".")[0] if inside else "none"

    def part_of(self, name: str) -> str:
        """What kind of parameter it is, by Hugging Face's names for GPT-2 and LLaMA."""
        if self.parameters[name].dim() < 2:
            return "norms and biases"
        if self.block_of(name) == "none":
            return "positions" if "wpe" in name else "token embedding and head"
        return "attention" if "attn" in name else "mlp"

    def is_looked_at(self, name: str) -> bool:
        """Matrices outside the blocks, and of the first, a middle and the last block."""
        some = {"none", "0", str(self.num_blocks // 2), str(self.num_blocks - 1)}
        return self.parameters[name].dim() == 2 and self.block_of(name) in some

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - begun


def write(args: argparse.Namespace, trainer: Trainer, stops: Stops, result: dict[str, Any]) -> None:
    on_gpu = trainer.world.device.type == "cuda"
    measure.write(
        args.name,
        "python -m benchmarks.fidelity " + " ".join(sys.argv[1:]),
        {
            **{k: v for k, v in vars(args).items() if k not in ("name", "corpus")},
            "corpus": Path(args.corpus).name,
            "corpus_digest": trainer.corpus.digest,
            "parameters": sum(p.numel() for p in stops.parameters.values()),
            "vocab": trainer.corpus.vocab_size,
            "optim": trainer.config.optim.model_dump(mode="json"),
            "recipes": {n: {"recipe": r, **o} for n, (r, o) in RECIPES.items()},
            "kmeans_seeds": {"sketches": 0, "exact": REFERENCE_SEEDS, "best_of": BEST_OF},
        },
        {
            "steps": result,
            "seconds": {name: round(value, 1) for name, value in stops.seconds.items()},
            "peak_gpu_gib": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None,
        },
        quiet=True,
    )


def main(args: argparse.Namespace) -> None:
    torch.set_float32_matmul_precision("highest")
    result: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool,
        open_world(args.device) as world,
    ):
        trainer = open_trainer(args, Path(folder), world)
        loader, stops = trainer.open_loader(), Stops(args, trainer, pool)
        stops.seconds["training"] = 0.0
        for step in sorted(args.at):
            with stops.timed("training"):
                train_to(trainer, loader, step)
            # Compiled code is training's alone: samples one at a time would be compiled anew.
            with torch.compiler.set_stance("force_eager"):
                result[str(step)] = stops.measure(step)
            if world.device.type == "cuda":
                torch.cuda.empty_cache()
            write(args, trainer, stops, result)
            print_table(step, result[str(step)])
        loader.close()
        trainer.files.close()
    say(f"written to {args.name}.json; seconds: {stops.seconds}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", default="demo", help="a prepared corpus")
    parser.add_argument("--preset", default="gpt2-small")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--at", type=int, nargs="+", default=[0, 300, 1000])
    parser.add_argument("--steps", type=int, default=0, help="of the schedule, if beyond --at")
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--dims", type=int, nargs="+", default=[1280, DEFAULT_DIM, 20480])
    parser.add_argument("--seeds", type=int, default=3, help="projections of each K")
    parser.add_argument("--top-blocks", type=int, nargs="+", default=[1, 4, 8, 12])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hold-gib", type=int, default=64, help="gradients held at once")
    parser.add_argument("--workers", type=int, default=6, help="processes that compare")
    parser.add_argument("--name", default="fidelity")
    main(parser.parse_args())
