"""How a run begins: anew in its own directory, or where it stopped."""

from pathlib import Path

from dograph.errors import RunError
from dograph.mixers.fixed import inlined
from dograph.training.config import MixerConfig, RunConfig
from dograph.training.environment import describe_environment
from dograph.training.run_dir import RunDirectory
from dograph.training.trainer import Trainer
from dograph.training.world import World


def start_run(config: RunConfig, world: World) -> Trainer:
    """A new run. Its directory appears once everything the settings name has been found."""
    config = settled(config)
    run = RunDirectory(Path(config.run))
    run.refuse_existing()
    trainer = Trainer(config, run, world)
    trainer.begin()
    world.barrier()
    if world.is_main:
        try:
            run.create(config, describe_environment())
        except OSError as error:
            raise RunError(f"run={config.run} cannot be made: {error.strerror}") from error
    world.barrier()
    return trainer


def settled(config: RunConfig) -> RunConfig:
    """The configuration with what lies outside it brought in, so that it replays the run.

    Mixture files become weights, and paths that exist become absolute.
    """
    mixer = MixerConfig(name=config.mixer.name, **inlined(config.mixer.options))
    model, path = config.model, config.model.path
    if path is not None and Path(path).exists():
        model = model.model_copy(update={"path": str(Path(path).resolve())})
    return config.model_copy(update={"mixer": mixer, "model": model})


def resume_run(config: RunConfig, world: World) -> Trainer:
    """A run that stopped, at its newest checkpoint."""
    run = RunDirectory.open(Path(config.run))
    if world.is_main:
        run.lock()
    trainer = Trainer(config, run, world)
    trainer.resume()
    return trainer
