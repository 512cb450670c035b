"""dograph export: a mixture as the configuration text of another trainer."""

from collections.abc import Mapping
from pathlib import Path

from dograph.cli.console import argument, option, require_writable, say, warn
from dograph.errors import ConfigError


def export(
    mixture: str | None = argument(None, "a mixture file, a published mixture, or a run"),
    to: str = option("yaml", "hf, olmo-core, megatron, yaml, json"),
    place: list[str] | None = option(None, "NAME=PATH or NAME=hf:DATASET of a source; repeatable"),
    corpus: Path | None = option(None, "a prepared corpus, whose names of sources are used"),
    out: Path | None = option(None, "a file to write to (default: standard output)"),
) -> None:
    """Write a mixture as the configuration of another trainer.

    \b
    dograph export                              list the published mixtures
    dograph export mixture.yaml --to olmo-core --place C4=/data/c4
    dograph export runs/demo --to hf            the last mixture of a run
    dograph export regmix-pile --to megatron --out blend.sh

    Trainers count weights in different units (tokens, samples, documents): the output and
    docs/mixtures.md say which.
    """  # noqa: D301
    from dograph.data.corpus import Corpus
    from dograph.files import write_text
    from dograph.mixtures.export import export_mixture
    from dograph.mixtures.file import find_mixture

    if mixture is None:
        if to != "yaml" or place or corpus or out:
            raise ConfigError(
                "name a mixture file, a run or a published mixture; dograph export, without "
                "arguments, lists the published ones"
            )
        _print_presets()
        return
    if out is not None and out.exists() and out.resolve() == Path(mixture).resolve():
        raise ConfigError(
            f"--out {out} is the mixture itself, whose provenance would be lost; name another file"
        )
    if Path(mixture).is_dir():
        weights: Mapping[str, float] = _last_weights(Path(mixture))
    else:  # a published one under the names of the corpus, if one is given
        file, notes = find_mixture(mixture, Corpus(corpus).sources if corpus is not None else None)
        warn(notes)
        weights = file.weights
    places: dict[str, str] = {}
    for pair in place or []:
        name, _, value = pair.partition("=")
        if not (name and value):
            raise ConfigError(f'--place takes NAME=VALUE, got "{pair}"')
        if name in places:
            raise ConfigError(f'--place names "{name}" twice; give it once')
        places[name] = value
    text = export_mixture(to, weights, places)
    if out is None:
        print(text, end="")
        return
    require_writable(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, text)
    say(f"{out} is written")


def _print_presets() -> None:
    from dograph.mixtures.file import PRESETS
    from dograph.types import Mixture

    for preset in PRESETS.values():
        origin = preset.provenance
        tokenizer = origin.tokenizer_name and f"tokenizer {origin.tokenizer_name}"
        lines = [preset.name, origin.made_by, origin.published, tokenizer, origin.note]
        print("\n  ".join(str(line) for line in lines if line is not None))
        for name, weight in Mixture.normalised(preset.weights).weights.items():
            print(f"    {weight:.4f}  {name}")


def _last_weights(run: Path) -> dict[str, float]:
    """The mixture over sources in force at the end of a run."""
    from dograph.eval.recorded import replayed
    from dograph.records import Skipped
    from dograph.train.run_dir import RunDirectory

    directory, skipped = RunDirectory.open(run), Skipped()
    if not directory.weights_file.is_file():
        raise ConfigError(f"{run} has no {directory.weights_file.name} yet; train it first")
    corpus, sampler = replayed(directory, skipped)
    if not sampler.log.entries:
        why = "".join(f" ({text})" for text in skipped.warnings())
        raise ConfigError(f"{directory.weights_file} has no mixture{why}; give a mixture file")
    warn(skipped.warnings())
    last = sampler.log.entries[-1]
    return dict.fromkeys(corpus.sources, 0.0) | sampler.by_source(last.weight_S)
