"""How a run begins: anew in its own directory, or where it stopped."""

from pathlib import Path

from dograph.training.config import RunConfig
from dograph.training.environment import describe_environment
from dograph.training.run_dir import RunDirectory
from dograph.training.trainer import Trainer
from dograph.training.world import World


def start_run(config: RunConfig, world: World) -> Trainer:
    """A new run. Its directory appears once everything the settings name has been found."""
    run = RunDirectory(Path(config.run))
    run.refuse_existing()
    trainer = Trainer(config, run, world)
    trainer.begin()
    world.barrier()
    if world.is_main:
        run.create(config, describe_environment())
    world.barrier()
    return trainer


def resume_run(config: RunConfig, world: World) -> Trainer:
    """A run that stopped, at its newest checkpoint."""
    run = RunDirectory.open(Path(config.run))
    if world.is_main:
        run.lock()
    trainer = Trainer(config, run, world)
    trainer.resume()
    return trainer
