"""Mixtures known before training, with equal sample weights: uniform, static, scheduled, UniMax."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from dograph.config import Options
from dograph.errors import ConfigError, did_you_mean
from dograph.mixers.base import Lab, Mixer
from dograph.mixtures import file as mixture_file
from dograph.types import Mixture, Signals

STAGE_KEYS = ("weights", "provenance")
SAMPLINGS = ("uniform", "natural")


class Uniform(Mixer):
    """Equal weight for every source, however large."""

    def plan(self, lab: Lab) -> Mixture:
        return sampling_mixture("uniform", lab.tokens)


class Static(Mixer):
    """Weights, a mixture file, or the name of a published mixture.

    Sources that are left out are not drawn. `provenance` says where weights come from; a mixture
    file has its own.
    """

    reads_mixtures: ClassVar[bool] = True

    def __init__(
        self,
        file: str | None = None,
        weights: Mapping[str, float] | None = None,
        preset: str | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        if sum(given is not None for given in (file, weights, preset)) != 1:
            raise ConfigError(
                "the static mixer needs one of mixer.file (a mixture file), mixer.weights (source: "
                "weight) and mixer.preset (a published mixture, list: dograph export), and "
                f"one alone; got file={file!r}, weights={weights!r}, preset={preset!r}"
            )
        if provenance is not None and weights is None:
            raise ConfigError("mixer.provenance goes with mixer.weights; files and presets have it")
        self.preset = mixture_file.find_preset(preset) if preset is not None else None
        self.mixture: Mixture | None = None
        self.provenance = self.preset.provenance if self.preset else None
        if file is not None:
            self.mixture, self.provenance = stage(file, "mixer.file")
        elif weights is not None:
            self.mixture = mixture_file.as_mixture(weights, "mixer.weights")
            self.provenance = mixture_file.as_provenance(provenance, "mixer.provenance")

    def plan(self, lab: Lab) -> Mixture:
        if self.preset is not None:
            return self.preset.fit(list(lab.tokens))[0]
        assert self.mixture is not None
        return self.mixture


class Scheduled(Mixer):
    """A mixture by step, of the reference batch size: each stage applies until the next."""

    reads_mixtures: ClassVar[bool] = True

    def __init__(self, stages: Mapping[int | str, Mapping[str, Any] | str] | None = None) -> None:
        if not isinstance(stages, Mapping):
            raise ConfigError(f"mixer.stages must be a mapping of step: mixture, got {stages!r}")
        self.stages: dict[int, Mixture] = {}
        for key, given in stages.items():
            name = f"mixer.stages.{key}"
            if not str(key).isdecimal():
                raise ConfigError(f"{name}: the key of a stage is its first step, got {key!r}")
            self.stages[int(key)], _ = stage(given, name)
        if 0 not in self.stages:
            raise ConfigError(
                f"mixer.stages needs a mixture for step 0; it has steps {sorted(stages)}"
            )

    def plan(self, lab: Lab) -> Mixture:
        return self.stages[0]

    def remix(self, signals: Signals) -> Mixture | None:
        before, after = signals.counted or (signals.step, signals.step + 1)
        begun = [step for step in self.stages if before < step <= after]
        return self.stages[max(begun)] if begun else None

    def schedule(self) -> Mapping[int, Mixture]:
        return self.stages

    def refuses_edits(self) -> None:
        """An edit applies until the next stage."""


class UniMaxOptions(Options, owner="unimax"):
    max_epochs: float = Field(4.0, gt=0)


class UniMax(Mixer):
    """As uniform as `max_epochs` repeats allow (Chung et al. 2023, Algorithm 1).

    From the smallest source up, each takes an equal share of the budget that is left, but no more
    than `max_epochs` times its own tokens.
    """

    def __init__(self, max_epochs: float = 4.0) -> None:
        self.options = UniMaxOptions(max_epochs=max_epochs)

    def plan(self, lab: Lab) -> Mixture:
        left, most = float(lab.budget), self.options.max_epochs
        share: dict[str, float] = {}
        ascending = sorted(lab.tokens, key=lambda name: (lab.tokens[name], name))
        for done, name in enumerate(ascending):
            share[name] = min(left / (len(ascending) - done), most * lab.tokens[name])
            left -= share[name]
        return Mixture.normalised({name: share[name] for name in lab.tokens})


def mixture_notes(options: Mapping[str, Any], facts: mixture_file.RunFacts) -> list[str]:
    """Warnings about mixtures in a mixer's options that were made for another corpus or run."""
    notes: list[str] = []
    if isinstance(name := options.get("preset"), str):
        preset = mixture_file.find_preset(name)
        own = mixture_file.mismatches(preset.provenance, facts) + preset.fit(list(facts.sources))[1]
        notes += [f"mixer.preset={name}: {note}" for note in own]
    sampling, stages = options.get("sampling"), options.get("stages")
    places: dict[str, Any] = {
        "mixer.file": options.get("file"),
        "mixer.sampling": None if sampling in SAMPLINGS else sampling,
        "mixer": {key: options[key] for key in STAGE_KEYS if key in options},
    }
    if isinstance(stages, Mapping):
        places |= {f"mixer.stages.{step}": part for step, part in stages.items()}
    for where, given in places.items():
        if isinstance(given, Mapping) and given.get("provenance") is None:
            continue  # weights that were written by hand for this run
        if given is not None:
            mixture, provenance = stage(given, where)
            shown = f"{where}={given}" if isinstance(given, str) else where
            own = mixture_file.mismatches(provenance, facts, mixture.weights)
            notes += [f"{shown}: {note}" for note in own]
    return notes


def inlined(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a mixer with the content of mixture files instead of their names.

    A preset stays a name: its content is part of this package and never changes.
    """

    def read_in(path: str, *, bare: bool = True) -> dict[str, Any]:
        """`weights` and the file's `provenance`; without one, and if `bare`, only the weights."""
        file = mixture_file.read_mixture_file(Path(path))
        content: dict[str, Any] = {"weights": dict(file.weights)}
        if file.provenance is not None:
            return content | {"provenance": file.provenance.record()}
        return content["weights"] if bare else content

    inline = dict(options)
    others = {"weights", "preset", "provenance"} & set(options)  # the mixer will refuse both
    if isinstance(file := options.get("file"), str) and not others:
        del inline["file"]
        inline |= read_in(file, bare=False)
    if isinstance(stages := options.get("stages"), Mapping):
        files = {step: read_in(given) for step, given in stages.items() if isinstance(given, str)}
        inline["stages"] = {**stages, **files}
    if isinstance(sampling := options.get("sampling"), str) and _is_file(sampling):
        inline["sampling"] = read_in(sampling)
    return inline


def stage(given: Any, where: str) -> tuple[Mixture, mixture_file.Provenance | None]:
    """A mixture file, weights, or `weights` and `provenance` as in the result of `inlined`."""
    if isinstance(given, str):
        file = mixture_file.read_mixture_file(Path(given))
        return file.mixture, file.provenance
    if isinstance(given, Mapping) and isinstance(given.get("weights"), Mapping):
        if others := sorted(set(given) - set(STAGE_KEYS)):
            raise ConfigError(f"{where} may have weights and provenance, but not {others}")
        provenance = mixture_file.as_provenance(given.get("provenance"), f"{where}.provenance")
        return mixture_file.as_mixture(given["weights"], f"{where}.weights"), provenance
    return mixture_file.as_mixture(given, where), None


def _is_file(given: Any) -> bool:
    return isinstance(given, str) and Path(given).suffix in (".yaml", ".yml")


def _can_draw(sampling: Any) -> Any:
    if not (isinstance(sampling, Mapping) or sampling in SAMPLINGS or _is_file(sampling)):
        raise ConfigError(
            f"mixer.sampling={sampling!r}; {did_you_mean(str(sampling), SAMPLINGS)}; or give a "
            "mixture file (.yaml), or weights by source"
        )
    return sampling


Sampling = Annotated[Any, AfterValidator(_can_draw)]  # an option: what `sampling_mixture` takes


def sampling_mixture(sampling: Any, tokens: Mapping[str, float]) -> Mixture:
    """`uniform`: every source equally often; `natural`: by tokens; else the mixture given."""
    if sampling == "uniform":
        return Mixture.normalised(dict.fromkeys(tokens, 1.0))
    if sampling == "natural":
        return Mixture.normalised({name: float(n) for name, n in tokens.items()})
    return stage(sampling, "mixer.sampling")[0]
