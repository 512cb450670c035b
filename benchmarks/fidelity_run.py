"""The run whose model is looked at: plain training through the trainer, a stretch at a time."""

import argparse
import time
from pathlib import Path

from torch import Tensor

from dograph.config import resolve_config
from dograph.data.loader import Loader
from dograph.data.pipeline import ensure_corpus
from dograph.train.assembly import open_sampler
from dograph.train.distributed import World
from dograph.train.trainer import Trainer, start_run
from dograph.types import Mixture

BEGUN = time.perf_counter()


def fresh_batches(trainer: Trainer, num_batches: int) -> list[Tensor]:
    """The batches that the run would draw after its last step."""
    sampler = open_sampler(trainer.config, trainer.corpus)
    tokens = {name: float(n) for name, n in trainer.corpus.tokens_by_source().items()}
    sampler.remix(0, Mixture.normalised(tokens), reason="plan")
    loader, last = Loader(trainer.corpus, sampler), trainer.config.train.steps
    drawn = [loader.load(last + i, ahead=False) for i in range(num_batches)]
    loader.close()
    return [batch.token_BT.to(trainer.world.device) for batch in drawn]


def open_trainer(args: argparse.Namespace, folder: Path, world: World) -> Trainer:
    steps = max(args.steps, *args.at, 1)
    config = resolve_config(
        None,
        [
            f"data.corpus={ensure_corpus(args.corpus)}",
            f"data.seq_len={args.seq_len}",
            f"model.preset={args.preset}",
            "mixer.name=natural",
            f"train.steps={steps}",
            f"train.batch_size={args.batch}",
            f"train.device={args.device}",
            f"train.dtype={args.dtype}",
            f"train.compile={args.compile}",
            "optim.lr=5e-4",
            "optim.lr_end=1e-4",
            f"optim.warmup_steps={min(250, steps // 4)}",
            f"seed={args.seed}",
            f"run={folder / 'run'}",
        ],
    )
    trainer = start_run(config, world)
    trainer.files.open(0)
    return trainer


def train_to(trainer: Trainer, loader: Loader, step: int) -> None:
    every = trainer.config.log.every
    while trainer.done < step:
        record = trainer.advance(loader)
        if trainer.done % every == 0:
            trainer.write_metrics()  # also stops a run that went astray
        if trainer.done % (10 * every) == 0 or trainer.done == step:
            say(f"step {trainer.done}: training loss {float(record.loss_B.mean()):.3f} nats")


def say(text: str) -> None:
    print(f"{time.perf_counter() - BEGUN:6.1f} s  {text}", flush=True)
