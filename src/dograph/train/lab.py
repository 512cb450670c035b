"""What the plan of a run that begins may ask: facts about its corpus and its budget, no proxies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError
from dograph.mixers.base import Proxy, ProxyResult
from dograph.train.assembly import planned_parameters


@dataclass(frozen=True, slots=True)
class CorpusLab:
    """Facts that a plan without proxies is made from."""

    tokens: Mapping[str, int]
    strata: Mapping[str, int]
    budget: int
    steps: int
    method: str  # the mixer's name
    size: Callable[[], int]  # a model's shape takes a moment to make, and few ask for it

    @property
    def proxy_steps(self) -> int:
        return self.steps  # it makes none

    @property
    def parameters(self) -> int:
        return self.size()

    def train(self, proxies: Sequence[Proxy]) -> list[ProxyResult]:
        """A run that has begun makes no proxies: its plan is made before, by `dograph plan`."""
        raise ConfigError(
            f"mixer.name={self.method} needs a plan of {len(proxies)} proxy runs; make it first "
            f"with `dograph plan {self.method} --out mixture.yaml`, then train with "
            "mixer.name=static mixer.file=mixture.yaml"
        )


def open_lab(config: RunConfig, corpus: Corpus) -> CorpusLab:
    strata = {stratum.entry.stratum: stratum.entry.tokens for stratum in corpus.train}
    return CorpusLab(
        tokens=corpus.tokens_by_source(),
        strata=strata,
        budget=config.tokens,
        steps=config.train.steps,
        method=config.mixer.name,
        size=lambda: planned_parameters(config, corpus),
    )
