"""How a run begins: anew in its own directory, or where it stopped."""

from pathlib import Path

from dograph.config import MixerConfig, RunConfig
from dograph.data.corpus import Corpus
from dograph.errors import RunError
from dograph.mixers.fixed import given_mixtures, inlined
from dograph.mixers.registry import mixer_class
from dograph.mixtures.file import mismatches
from dograph.train.distributed import World, describe_environment
from dograph.train.edits import facts_of, read_offer
from dograph.train.run_dir import RunDirectory
from dograph.train.trainer import Trainer


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

    Mixture files become weights, and paths that exist become absolute; what a
    default may change later is named by the mixer.
    """
    name, options = config.mixer.name, config.mixer.options
    kind = mixer_class(name)
    options = kind.settled(inlined(options) if kind.reads_mixtures else options)
    if isinstance(reference := options.get("reference"), str):
        options["reference"] = _absolute(reference)
    model = config.model
    if model.path is not None:
        model = model.model_copy(update={"path": _absolute(model.path)})
    mixer = MixerConfig(name=name, **options)
    return config.model_copy(update={"mixer": mixer, "model": model})


def _absolute(name: str) -> str:
    """A path that exists, from the root; any other name, a hub's say, as it is."""
    return str(Path(name).resolve()) if Path(name).exists() else name


def resume_run(config: RunConfig, world: World, mixture: str | None = None) -> Trainer:
    """A run that stopped, at its newest checkpoint; from there on by another mixture, if given."""
    run = RunDirectory.open(Path(config.run))
    if world.is_main:
        run.lock()
    trainer = Trainer(config, run, world)
    if mixture is None:
        trainer.resume()
        return trainer
    offer = read_offer(mixture, facts_of(config, trainer.corpus))
    trainer.edits.check(offer.mixture, max(run.checkpoint_steps(), default=0))
    trainer.resume()
    trainer.edits.make(trainer.done, offer, "resume")
    trainer.write_weights()
    return trainer


def mixture_warnings(config: RunConfig, corpus: Corpus) -> list[str]:
    """What speaks against the mixtures that a run brings from elsewhere, one line each."""
    if not mixer_class(config.mixer.name).reads_mixtures:
        return []
    facts = facts_of(config, corpus)
    warnings: list[str] = []
    for given in given_mixtures(config.mixer.options):
        notes = given.preset.fit(corpus.sources)[1] if given.preset else []
        weights = None if given.preset else given.weights
        notes = mismatches(given.provenance, facts, weights) + notes
        warnings += [f"{given.where}: {note}" for note in notes]
    return warnings
