"""What a mixer's plan may ask of this machine: for now, facts about the corpus and the budget."""

from collections.abc import Mapping
from dataclasses import dataclass

from dograph.corpus.corpus import Corpus
from dograph.training.config import RunConfig


@dataclass(frozen=True, slots=True)
class CorpusLab:
    """Facts that a plan without proxies is made from."""

    tokens: Mapping[str, int]
    strata: Mapping[str, int]
    budget: int
    steps: int


def open_lab(config: RunConfig, corpus: Corpus) -> CorpusLab:
    drawn = config.train.steps * config.train.batch_size * config.data.seq_len
    strata = {stratum.entry.stratum: stratum.entry.tokens for stratum in corpus.train}
    return CorpusLab(
        tokens=corpus.tokens_by_source(), strata=strata, budget=drawn, steps=config.train.steps
    )
