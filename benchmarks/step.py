"""The trainer's step against a bare PyTorch loop on the same model.

    python -m benchmarks.step                                        two CPU threads, 4 layers x 256
    python -m benchmarks.step --device cuda --preset gpt2-mini --batch 48 --seq-len 512 \
        --dtype bfloat16 --compile --name step-h200
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import measure
from dograph.config import resolve_config
from dograph.data.pipeline import ensure_corpus
from dograph.models import presets
from dograph.train.distributed import open_world
from dograph.train.trainer import Trainer, start_run

STEPS = 10
presets.PRESETS["bench"] = presets._gpt2(layers=4, heads=4, width=256)


def open_trainer(args: argparse.Namespace, folder: Path, *overrides: str) -> Trainer:
    config = resolve_config(
        None,
        [
            f"data.corpus={ensure_corpus('demo')}",
            f"data.seq_len={args.seq_len}",
            f"model.preset={args.preset}",
            f"train.batch_size={args.batch}",
            f"train.device={args.device}",
            f"train.dtype={args.dtype}",
            f"train.compile={args.compile}",
            f"train.deterministic={args.deterministic}",
            "train.steps=100000",
            f"run={folder / 'run'}",
            *overrides,
        ],
    )
    with open_world(args.device) as world:
        trainer = start_run(config, world)
    trainer.files.open(0)
    return trainer


def trainer_arm(trainer: Trainer) -> Callable[[], None]:
    """Everything a real run does: sampler, loader, step, metrics for every source, log writes."""
    loader = trainer.open_loader()

    def step() -> None:
        record = trainer.advance(loader)
        halted = trainer.world.device.type == "cpu" and bool(record.halted)
        if trainer.done % trainer.config.log.every == 0 or halted:
            trainer.write_metrics()

    return step


def bare_arm(trainer: Trainer) -> Callable[[], None]:
    """The loop anybody would write: Hugging Face's own loss, fused AdamW, random crops."""
    from transformers import AutoModelForCausalLM

    config, device = trainer.config, trainer.world.device
    torch.manual_seed(0)
    shape = trainer.state.model.model.config
    model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100_000)
    forward: Any = torch.compile(model) if config.train.compile else model
    tokens = trainer.corpus.train[0].token_N
    rng = np.random.default_rng(0)
    half = config.train.dtype == "bfloat16"

    def step() -> None:
        starts = rng.integers(0, len(tokens) - config.data.seq_len, config.train.batch_size)
        rows = np.stack([tokens[s : s + config.data.seq_len] for s in starts]).astype(np.int64)
        token_BT = torch.from_numpy(rows)
        if device.type == "cuda":
            token_BT = token_BT.pin_memory().to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            loss = forward(input_ids=token_BT, labels=token_BT, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


def main(args: argparse.Namespace) -> None:
    if args.device == "cpu":
        torch.set_num_threads(args.threads)
    wait = torch.cuda.synchronize if args.device != "cpu" else lambda: None
    with tempfile.TemporaryDirectory() as folder:
        trainer = open_trainer(args, Path(folder))
        arms = {"trainer": trainer_arm(trainer), "bare": bare_arm(trainer)}
        for _ in range(10):
            for step in arms.values():
                step()
        wait()
        seconds = measure.interleave(arms, args.blocks, STEPS, wait)
        trainer.files.close()
    measure.write(
        args.name,
        "python -m benchmarks.step " + " ".join(sys.argv[1:]),
        {
            **{k: v for k, v in vars(args).items() if k != "name"},
            "parameters": sum(p.numel() for p in trainer.state.model.parameters()),
            "vocab": trainer.corpus.vocab_size,
            "steps_per_block": STEPS,
        },
        {
            "trainer_over_bare": measure.ratio(seconds["trainer"], seconds["bare"]),
            "trainer_seconds": measure.median_interval(seconds["trainer"]),
            "bare_seconds": measure.median_interval(seconds["bare"]),
            "target": "upper end of trainer_over_bare at most 1.04",
        },
    )


def add_shape(parser: argparse.ArgumentParser) -> None:
    """The model, the batch and the machine of a comparison."""
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--preset", default="bench")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--threads", type=int, default=2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=16)
    add_shape(parser)
    parser.add_argument("--name", default="step")
    main(parser.parse_args())
