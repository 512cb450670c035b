"""dograph train: from a corpus to a model and a run directory."""

import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dograph.cli import console
from dograph.cli.console import argument, ensured, option, print_table, say, warn
from dograph.errors import ConfigError, require
from dograph.progress import duration

if TYPE_CHECKING:
    from dograph.config import RunConfig
    from dograph.train.run_dir import RunDirectory

    Parent = tuple[RunDirectory, int, list[str]]  # of a fork: its step, and the settings given

# Settings that may change when a run is resumed: all but train.steps leave its numbers alone.
RESUMABLE = ("log", "checkpoint", "train.device", "train.shard", "train.steps")


def train(
    settings: list[str] | None = argument(None, "YAML file or preset; settings", console.CONFIG),
    resume: Path | None = option(None, "continue this run exactly where it stopped"),
    mixture: str | None = option(None, "with --resume: a mixture file or preset, from now on"),
    strict: bool = option(False, "with --resume: refuse a damaged checkpoint", "--strict"),
    fork: Path | None = option(None, "start a new run from a checkpoint of this one"),
    at: int | None = option(None, "with --fork: the step of the checkpoint (default: newest)"),
    print_config: bool = option(False, "print all settings and stop", "--print-config"),
    dry_run: bool = option(False, "estimate memory, tokens, epochs and time; stop", "--dry-run"),
) -> None:
    """Train a language model on a prepared corpus.

    Without arguments: the embedded demo corpus and a small GPT-2, minutes on a laptop CPU.

    \b
    dograph train                                        the demo
    dograph train mixer.name=uniform run=runs/uniform    the same, equal weight per source
    dograph train recipe.yaml train.steps=200            your settings, one of them changed
    dograph train paper-gpt2-small data.corpus=data/spj  the recipe of the paper
    dograph train recipe.yaml --dry-run                  the cost
    dograph train --resume runs/demo                     continue after Ctrl-C, a kill or a crash
    dograph train --resume runs/demo --mixture new.yaml  continue with another mixture
    dograph train --resume runs/demo train.steps=400     train longer
    dograph train --fork runs/demo run=runs/b optim.lr=1e-4  a new run from its last checkpoint
    torchrun --nproc-per-node 8 -m dograph train recipe.yaml

    All settings and presets: docs/configuration.md. Settings of a run: --print-config.
    """  # noqa: D301
    from dograph.mixers.registry import require_mixer
    from dograph.train.run_dir import RunDirectory

    if mixture is not None and resume is None:
        raise ConfigError(
            f"--mixture {mixture} is for resuming: dograph train --resume RUN --mixture "
            f"{mixture}. For a new run: mixer.name=static mixer.file={mixture}"
        )
    if mixture is not None and (print_config or dry_run):
        raise ConfigError("--mixture changes a run; leave out --print-config and --dry-run")
    if (strict and resume is None) or (at is not None and fork is None) or (fork and resume):
        raise ConfigError("--strict is for --resume and --at for --fork; give one of these two")
    config, parent = _configured(resume, fork, at, settings or [])
    require_mixer(config.mixer.name)  # before torch is imported and a corpus prepared
    # torch, the corpus and the model take seconds to load
    is_main = os.environ.get("RANK", "0") == "0"
    if is_main and not print_config:
        what = f"forecast of {config.run}" if dry_run else config.run
        steps = "resuming" if resume else f"{config.batches.steps} steps"
        say(f"{what}: {steps} on {config.data.corpus}, mixer {config.mixer.name}; loading")
    is_new = not (resume or fork or print_config or dry_run)
    with RunDirectory(Path(config.run)).loading() if is_main and is_new else nullcontext():
        _check(config)
        if print_config:
            print(config.dump(), end="")
        elif dry_run:
            _print_forecast(config)
        elif number := _run(config, parent, mixture, is_new=is_new, strict=strict):
            sys.exit(128 + number)


def _configured(
    resume: Path | None, fork: Path | None, at: int | None, settings: list[str]
) -> tuple["RunConfig", "Parent | None"]:
    """The configuration of the run, and of a fork the checkpoint that it starts from."""
    from dograph.config import resolve_config

    if resume is not None:
        return _resumed(resume, settings), None
    if fork is not None:
        return _forked(fork, at, settings)
    return resolve_config(*console.split_settings(settings)), None


def _check(config: "RunConfig") -> None:
    """Refuse what a run would refuse once its corpus is prepared and its model loaded."""
    from dograph.mixers.registry import build_mixer, require_compatible
    from dograph.models.build import preset_config
    from dograph.sketch.projection import Projection

    mixer, sketch = build_mixer(config.mixer.name, config.mixer.options), config.sketch
    require_compatible(config, mixer, int(os.environ.get("WORLD_SIZE", "1")))
    for sink in config.log.sinks:
        require(sink, sink)
    if (preset := config.model.preset) is not None:
        length, dropout = config.data.seq_len, config.model.dropout
        preset_config(preset, vocab_size=2, seq_len=length, dropout=dropout)
    if "sketch" in mixer.needs or config.train.on_spike is not None:
        refresh = mixer.refresh(sketch.refresh)
        Projection(dim=sketch.dim, kind=sketch.projection, seed=config.seed, refresh=refresh)


def _resumed(run: Path, settings: list[str]) -> "RunConfig":
    """The run's own configuration, with changes that do not affect its numbers."""
    from dograph.config import merge, parse_config, parse_override
    from dograph.train.run_dir import RunDirectory

    values = RunDirectory.open(run).config().model_dump(mode="json")
    for setting in settings:
        name = setting.partition("=")[0]
        if not any(name == allowed or name.startswith(f"{allowed}.") for allowed in RESUMABLE):
            raise ConfigError(
                f'"{setting}" cannot change when a run is resumed: its numbers would no longer be '
                f"those of one run. Allowed: {', '.join(RESUMABLE)}. For other changes start a new "
                f"run from its checkpoint: dograph train --fork {run} run=NEW {setting}"
            )
    changes = merge({}, *(parse_override(setting) for setting in settings))
    return parse_config(merge(values, changes, {"run": str(run)}), str(run), changes)


def _forked(fork: Path, at: int | None, settings: list[str]) -> tuple["RunConfig", "Parent"]:
    """The configuration of a fork, and the checkpoint that it starts from."""
    from dograph.config import resolve_config
    from dograph.train.assembly import forked_sizes, with_steps
    from dograph.train.run_dir import RunDirectory

    parent = RunDirectory.open(fork)
    old, steps = parent.config(), parent.checkpoint_steps()
    step = max(steps, default=0) if at is None else at
    if step not in steps:
        raise ConfigError(
            f"{fork} has no checkpoint of step {step}, only of {steps}: one is written every "
            f"checkpoint.every={old.checkpoint.every} steps, and the newest checkpoint.keep="
            f"{old.checkpoint.keep} are kept; choose one with --at, or set these in the next run"
        )
    config = resolve_config(str(parent.config_file), settings)
    if config.model.model_copy(update={"dropout": old.model.dropout}) != old.model:
        raise ConfigError(
            "a fork has the weights of its parent: of model.*, only dropout may differ"
        )
    changes: dict[str, Any] = {"extended": with_steps(old, config.train.steps, step).extended}
    sizes = (old.train.batch_size, config.train.batch_size)
    references = (old.train.reference_batch_size, config.train.reference_batch_size)
    if references != (None, None) or not all(isinstance(size, int) for size in sizes):
        counts = [(own.batches.reference, own.data.seq_len) for own in (old, config)]
        if counts[0] != counts[1]:
            raise ConfigError(
                "a fork with a schedule of batch sizes counts the tokens of its parent: set "
                "train.reference_batch_size={} and data.seq_len={}".format(*counts[0])
            )
        if sizes[0] != sizes[1]:
            changes["batch_size"] = forked_sizes(*sizes, old.batches.drawn(step) * old.data.seq_len)
    config = config.model_copy(update={"train": config.train.model_copy(update=changes)})
    if config.batches.steps <= step:
        raise ConfigError(f"{fork} ends after step {step}; give the fork more: train.steps=N")
    return config, (parent, step, settings)


def _run(
    config: "RunConfig", parent: "Parent | None", mixture: str | None, *, is_new: bool, strict: bool
) -> int:
    """Train, and show the losses; returns the number of the signal that stopped it, or 0."""
    from dograph.cli.show import print_losses
    from dograph.train.distributed import open_world
    from dograph.train.forecast import start_warnings
    from dograph.train.trainer import fork_run, resume_run, start_run

    with open_world(config.train.device) as world:
        if world.is_main:
            ensured(config.data.corpus)
        world.barrier()
        config = console.with_corpus(config)
        if parent is not None and world.is_main:
            say(fork_run(config, *parent))
        world.barrier()
        if is_new:
            trainer = start_run(config, world)
        else:
            trainer = resume_run(config, world, mixture, strict=strict)
        run = trainer.run
        trainer.edits.listen()
        if world.is_main:
            edits = [edit for step, edit in trainer.edits.due.items() if step >= trainer.done]
            for line in (*trainer.notes, *(edit.line for edit in edits)):
                say(line)
            warn(trainer.warnings)
            warn(f"{edit.given}: {note}" for edit in edits for note in edit.notes)
            warn(start_warnings(config, trainer.corpus, trainer.state.sampler, trainer.state.mixer))
        if trainer.is_over:
            say(f"{run.path} is complete: {trainer.done} steps")
        try:
            number = trainer.train()
        finally:
            run.unlock()
        if number and world.is_main:
            say(
                f"stopped by {signal.Signals(number).name} after step {trainer.done}; nothing is "
                f"lost. To continue: dograph train --resume {run.path}"
            )
        elif world.is_main:
            if trainer.corpus.validation:
                print_losses([run.path])
            else:
                print("the corpus has no validation text, so there are no losses to show")
            print(f"run: {run.path}")
            console.print_page(run.path)
        return number


def _print_forecast(config: "RunConfig") -> None:
    """What a run would cost and draw, as tables."""
    from dograph.data.corpus import Corpus
    from dograph.mixers.registry import mixer_class
    from dograph.train.forecast import forecast

    def size(count: int) -> str:
        return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"

    costs, mixer = forecast(config, Corpus(ensured(config.data.corpus))), config.mixer
    print(f"mixer: {mixer_class(mixer.name).describe(mixer.name, mixer.options)}")
    shared = ", shared by all ranks" if config.train.shard else ""
    speed = f"{costs.flops / costs.seconds / 1e9:,.3g} GFLOP/s, measured on a layer of the model"
    facts = {
        "parameters": f"{costs.parameters:,}",
        "memory, weights and optimizer": size(costs.state_bytes) + shared,
        "memory, activations (estimate)": size(costs.activation_bytes),
        "training tokens": f"{config.tokens:,}",
        "training FLOPs": f"{costs.flops:.2e}",
        "time on this machine (estimate)": f"{duration(costs.seconds)} at {speed}",
    }
    print_table(("", ""), facts.items(), ("",), title="forecast", show_header=False)
    rows = [[s, f"{costs.weights[s]:.4f}", f"{n:.2f}"] for s, n in costs.epochs.items()]
    print_table(("source", "weight", "epochs"), rows, title=f"what {mixer.name} would draw")
    warn(costs.warnings)
