"""dograph train: from a corpus to a model and a run directory."""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from dograph.cli.console import duration, ensured, open_console, split_settings
from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError
from dograph.mixers.registry import mixer_class
from dograph.train.forecast import EFFICIENCY, forecast

if TYPE_CHECKING:
    from dograph.config import RunConfig
    from dograph.train.distributed import World

# What may change when a run goes on: where it runs, and what is written when.
RESUMABLE = ("log", "checkpoint", "train.device", "train.shard")
Resumed = Annotated[Path | None, typer.Option(help="go on with this run, exactly where it stopped")]
AnotherMixture = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="with --resume: draw by this mixture file or preset from there on",
        show_default=False,
    ),
]


def train(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [NAME=VALUE]...",
            help="a YAML file or a preset, then overrides such as train.steps=200",
            show_default=False,
        ),
    ] = None,
    resume: Resumed = None,
    mixture: AnotherMixture = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="print the resolved settings and stop")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="forecast parameters, memory, tokens, repeats and time, and stop"
        ),
    ] = False,
) -> None:
    """Train a language model on a prepared corpus.

    Without arguments: the embedded demo corpus and a small GPT-2, minutes on a laptop CPU.

    \b
    dograph train                                        the demo
    dograph train mixer.name=uniform run=runs/uniform    the same, equal weight per source
    dograph train recipe.yaml train.steps=200            your settings, one of them overridden
    dograph train paper-gpt2-small data.corpus=data/spj  the paper's recipe
    dograph train recipe.yaml --dry-run                  what it would cost
    dograph train --resume runs/demo                     go on after Ctrl-C, a kill or a crash
    dograph train --resume runs/demo --mixture new.yaml  go on with another mixture
    torchrun --nproc-per-node 8 -m dograph train recipe.yaml

    Presets, settings and their meaning: dograph train --print-config, and docs/configuration.md.
    """  # noqa: D301
    from dograph.config import resolve_config

    settings = settings or []
    _check_mixture(mixture, resume, looks=print_config or dry_run)
    config = _resumed(resume, settings) if resume else resolve_config(*split_settings(settings))
    if print_config:
        print(config.dump(), end="")
        return
    from dograph.mixers.registry import require_mixer

    require_mixer(config.mixer.name)  # before torch is imported and a corpus prepared
    _announce(config, resumes=resume is not None, forecast=dry_run)
    if dry_run:
        print_forecast(config)
        return
    from dograph.train.distributed import open_world

    with open_world(config.train.device) as world:
        asked = _run(config, world, resume=resume is not None, mixture=mixture)
    if asked:
        sys.exit(128 + asked)


def _announce(config: "RunConfig", *, resumes: bool, forecast: bool = False) -> None:
    """What is about to begin: torch, the corpus and the model take seconds to load."""
    if os.environ.get("RANK", "0") == "0":
        begins = "goes on" if resumes else f"{config.train.steps} steps"
        what = f"on {config.data.corpus}, mixer {config.mixer.name}"
        begun = f"forecast of {config.run}" if forecast else config.run
        print(f"{begun}: {begins} {what}; loading", file=sys.stderr)


def _check_mixture(mixture: str | None, resume: Path | None, *, looks: bool) -> None:
    if mixture is None:
        return
    if resume is None:
        raise ConfigError(
            f"--mixture {mixture} is for a run that goes on: dograph train --resume RUN --mixture "
            f"{mixture}. A new run: mixer.name=static mixer.file={mixture}"
        )
    if looks:
        raise ConfigError(
            "--mixture changes the run; --print-config and --dry-run only look. Leave one out"
        )


def _resumed(run: Path, settings: list[str]) -> "RunConfig":
    """The run's own configuration, with such overrides as leave its numbers alone."""
    from dograph.config import merge, parse_config, parse_override
    from dograph.train.run_dir import RunDirectory

    values = RunDirectory.open(run).config().model_dump(mode="json")
    for setting in settings:
        name = setting.partition("=")[0]
        if not any(name == allowed or name.startswith(f"{allowed}.") for allowed in RESUMABLE):
            raise ConfigError(
                f'"{setting}" cannot change when a run is resumed: its numbers would no longer be '
                f"those of one run. Allowed: {', '.join(RESUMABLE)}. For another run, start anew."
            )
    changes = merge({}, *(parse_override(setting) for setting in settings))
    return parse_config(merge(values, changes, {"run": str(run)}), str(run), changes)


def _run(config: "RunConfig", world: "World", *, resume: bool, mixture: str | None) -> int:
    from dograph.cli.console import ensured
    from dograph.cli.show import print_losses
    from dograph.train.assembly import mixture_warnings
    from dograph.train.forecast import repeat_warnings
    from dograph.train.trainer import resume_run, start_run

    if world.is_main:
        ensured(config.data.corpus)
    world.barrier()
    data = config.data.model_copy(update={"corpus": str(ensured(config.data.corpus))})
    config = config.model_copy(update={"data": data})
    trainer = resume_run(config, world, mixture) if resume else start_run(config, world)
    run = trainer.run
    trainer.edits.listen()
    if world.is_main:
        edits = [edit for step, edit in trainer.edits.due.items() if step >= trainer.done]
        for edit in edits:
            print(edit.line, file=sys.stderr)
        warnings = [f"{edit.given}: {note}" for edit in edits for note in edit.notes]
        warnings += mixture_warnings(config, trainer.corpus)
        warnings += repeat_warnings(config, trainer.state.sampler, trainer.state.mixer)
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
    if trainer.done >= config.train.steps:
        print(f"{run.path} is complete: {trainer.done} steps", file=sys.stderr)
    try:
        asked = trainer.train()
    finally:
        run.unlock()
    if not world.is_main:
        return asked
    if asked:
        name = signal.Signals(asked).name
        print(
            f"stopped by {name} after step {trainer.done}; nothing is lost. "
            f"Go on: dograph train --resume {run.path}",
            file=sys.stderr,
        )
    else:
        if trainer.corpus.validation:
            print_losses([run.path])
        else:
            print("the corpus has no validation text, so there are no losses to show")
        print(f"run: {run.path}")
        _print_page(run.path)
    return asked


def _print_page(run: Path) -> None:
    from dograph.report.render import page_at_end

    page = page_at_end(run)
    if page is not None:
        print(f"page: {page}")


# dograph train --dry-run: the forecast as tables.


def print_forecast(config: RunConfig) -> None:
    corpus = Corpus(ensured(config.data.corpus))
    costs = forecast(config, corpus)
    console = open_console()

    mixer = config.mixer
    print(f"mixer: {mixer_class(mixer.name).describe(mixer.name, mixer.options)}")
    table = Table(title="forecast", show_header=False)
    table.add_row("parameters", f"{costs.parameters:,}")
    shared = ", shared by all ranks" if config.train.shard else ""
    table.add_row("memory, weights and optimizer", _size(costs.state_bytes) + shared)
    table.add_row("memory, activations (estimate)", _size(costs.activation_bytes))
    table.add_row("training tokens", f"{costs.tokens:,}")
    table.add_row("training FLOPs", f"{costs.flops:.2e}")
    table.add_row(
        "time on this machine (estimate)",
        f"{duration(costs.seconds)} at {EFFICIENCY:.0%} of {costs.flops_per_second / 1e12:.2f} "
        "TFLOP/s measured",
    )
    console.print(table)

    sources = Table(title=f"what {config.mixer.name} would draw")
    many = any(epochs > config.data.warn_epochs for epochs in costs.epochs.values())
    for column in ("source", "weight", "times read through", *([""] if many else [])):
        sources.add_column(column, justify="left" if column in ("source", "") else "right")
    for source, weight in costs.weights.items():
        epochs = costs.epochs[source]
        note = f"more than {config.data.warn_epochs:g}" if epochs > config.data.warn_epochs else ""
        sources.add_row(source, f"{weight:.4f}", f"{epochs:.2f}", *([note] if many else []))
    console.print(sources)


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
