"""dograph train --dry-run: the forecast as tables."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from dograph.cli.cli_console import duration, open_console
from dograph.cli.console import ensured
from dograph.config import MixerConfig, RunConfig
from dograph.data.corpus import Corpus
from dograph.mixers.dograph_options import DEFAULT_RECIPE, resolve_options
from dograph.train.forecast import EFFICIENCY, forecast


def print_forecast(config: RunConfig) -> None:
    corpus = Corpus(ensured(config.data.corpus))
    costs = forecast(config, corpus)
    console = open_console()

    print(mixer_line(config.mixer))
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


def mixer_line(mixer: MixerConfig) -> str:
    """The mixer, and of DoGraph what its recipe and options come to: domains, objective, scope."""
    given = mixer.options
    if mixer.name != "dograph":
        return f"mixer: {_with(mixer.name, given)}"
    recipe = given.pop("recipe", DEFAULT_RECIPE)
    options = resolve_options(recipe, {k: v for k, v in given.items() if k != "warmup_steps"})
    objective = options.objective
    if isinstance(objective, Mapping):
        rest = {name: value for name, value in objective.items() if name != "name"}
        objective = _with(str(objective["name"]), rest)
    return (
        f"mixer: dograph, recipe {_with(recipe, given)}: {options.num_domains} domains, "
        f"objective {objective}, scope {options.scope}"
    )


def _with(name: str, options: Mapping[str, Any]) -> str:
    told = ", ".join(f"{option}={value}" for option, value in options.items())
    return f"{name} with {told}" if told else name


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
