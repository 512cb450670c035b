"""Whole runs of a tiny model on several ranks, with DDP or in shards, stopped and resumed."""

import shutil
from dataclasses import replace

import torch

from dograph.config import resolve_config
from dograph.errors import NonFiniteError
from dograph.mixers.base import Mixer
from dograph.train.checkpoint import MOMENTS, model_tensors
from dograph.train.run_dir import RunDirectory
from dograph.train.trainer import resume_run, start_run

STEPS, STOP = 6, 4
SETTINGS = (
    "data.seq_len=16",
    "model.preset=tiny",
    f"train.steps={STEPS}",
    "train.batch_size=9",
    "optim.warmup_steps=2",
    "optim.clip_norm=0.5",  # below the norm of most steps
    "eval.every=3",
    "eval.max_samples_per_source=5",
    "checkpoint.every=3",
    "checkpoint.keep=9",
    "log.every=2",
    "sketch.dim=64",
    "probe.rows=6",
    "probe.at=[0.0, 0.5, 1.0]",
)
SHARD = "train.shard=true"
# Nine samples: five on the first of two ranks, in three micro-batches, and four, in two by DDP.
MICRO = "train.micro_batch_size=2"
DOGRAPH = ("mixer.name=dograph", "mixer.num_domains=3")
RUNS = {
    "natural": ("mixer.name=natural", MICRO),
    "losses": ("mixer.name=group-dro", MICRO),
    "twopass": (*DOGRAPH, "sketch.mode=twopass"),
    "two sweeps": (*DOGRAPH, "sketch.mode=twopass", MICRO, "train.activation_checkpointing=true"),
    "lagged": (
        "mixer.name=dograph",
        "mixer.recipe=safe",
        "mixer.scope=period",
        "mixer.period_steps=2",
        "mixer.num_domains=3",
        "mixer.warmup_ratio=0",
        "sketch.mode=twopass",
        "sketch.accumulation=lagged",
        "model.preset=llama-tiny",
        MICRO,
    ),
    "head": (*DOGRAPH, "sketch.mode=head", MICRO),
}
RESUMED = ("two sweeps",)
STOPPED = 15  # by a SIGTERM


class Poison(Mixer):
    """The first rank's weights are not numbers in the third step."""

    needs = frozenset({"loss"})

    def weigh(self, signals):
        weight_B = torch.full_like(signals.loss_B, 1 / len(signals.loss_B))
        weight_B[0] *= float("nan") if signals.step == 2 else 1.0
        return weight_B


def begin(world, corpus, folder, *overrides):
    place = (f"data.corpus={corpus}", f"run={folder}")
    return start_run(resolve_config(None, [*place, *SETTINGS, *overrides]), world)


def finish(trainer, asked=0):
    assert trainer.train() == asked
    trainer.run.unlock()


def train_all(world, corpus, folder, *overrides):
    for name, run in RUNS.items():
        finish(begin(world, corpus, folder / name, *run, *overrides))


def train_one_shard(world, corpus, folder):
    """FSDP2 with all of the model on one rank."""
    train_all(replace(world, shards=True), corpus, folder, SHARD)


def train_until_stopped(world, corpus, folder, *overrides):
    for name in RESUMED:
        trainer = begin(world, corpus, folder / name, *RUNS[name], *overrides)
        trainer.stop_asked = lambda _, trainer=trainer: STOPPED if trainer.done == STOP else 0
        finish(trainer, STOPPED)


def go_on(world, stopped, folder, **train):
    """Resume copies of stopped runs, with other settings of `train` perhaps."""
    for name in RESUMED:
        if world.is_main:
            shutil.copytree(stopped / name, folder / name, symlinks=True)
        world.barrier()
        config = RunDirectory.open(folder / name).config()
        changed = {"train": config.train.model_copy(update=train), "run": str(folder / name)}
        finish(resume_run(config.model_copy(update=changed), world))


def not_finite(world, corpus, folder, *overrides):
    """What a run says whose gradient is not finite, and the weights that it is left with."""
    settings = ("mixer.name=sharded_runs:Poison", "checkpoint.every=2", *overrides)
    trainer = begin(world, corpus, folder, *settings)
    try:
        trainer.train()
    except NonFiniteError as error:
        trainer.run.unlock()
        return str(error), model_tensors(trainer.state.model, keep=True), held(trainer.state)
    raise AssertionError("the run went on")


def held(state):
    """Numbers of weights and moments that this rank holds."""
    moments = [state.optimizer.state[p][m] for p in state.model.parameters() for m in MOMENTS]
    return [
        sum(tensor.to_local().numel() for tensor in tensors)
        for tensors in (state.model.parameters(), moments)
    ]


def train_whole(world, corpus, folder):
    """What two ranks do with DDP, in one start of theirs."""
    train_all(world, corpus, folder / "DDP")
    train_until_stopped(world, corpus, folder / "stopped DDP")


def train_sharded(world, corpus, folder):
    """What they do in shards, afterwards."""
    train_all(world, corpus, folder / "shards", SHARD)
    train_until_stopped(world, corpus, folder / "stopped shards", SHARD)
    go_on(world, folder / "stopped shards", folder / "shards again")
    go_on(world, folder / "stopped shards", folder / "shards, then DDP", shard=False)
    go_on(world, folder / "stopped DDP", folder / "DDP, then shards", shard=True)
    return not_finite(world, corpus, folder / "not finite", SHARD)
