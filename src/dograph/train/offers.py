"""A mixture offered to a run on the way: a mixture file, or the name of a published one."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError, did_you_mean
from dograph.mixtures.file import RunFacts, mismatches, read_mixture_file
from dograph.mixtures.mixtures_published import PRESETS
from dograph.types import Mixture


@dataclass(frozen=True, slots=True)
class Offer:
    """Weights by the corpus' own names, and where they are from."""

    given: str  # the file, from the root, or the preset's name
    mixture: Mixture
    provenance: Mapping[str, Any] | None
    notes: list[str]  # what speaks against using it in this run


def read_offer(name: str, facts: RunFacts) -> Offer:
    """What `name` stands for in a run of which `facts` hold."""
    path = Path(name)
    if path.exists():
        file = read_mixture_file(path)
        notes = mismatches(file.provenance, facts, file.weights)
        record = file.provenance.record() if file.provenance else None
        return Offer(str(path.resolve()), file.mixture, record, notes)
    if name not in PRESETS:
        raise ConfigError(
            f"{name} is no mixture file and no preset; of presets, {did_you_mean(name, PRESETS)}"
        )
    preset = PRESETS[name]
    mixture, left_over = preset.fit(facts.sources)
    notes = mismatches(preset.provenance, facts) + left_over
    return Offer(name, mixture, preset.provenance.record(), notes)


def facts_of(config: RunConfig, corpus: Corpus) -> RunFacts:
    """What a mixture's provenance is compared with."""
    tokenizer = corpus.manifest.tokenizer
    return RunFacts(
        sources=corpus.sources,
        corpus=corpus.digest,
        tokenizer=tokenizer.sha256,
        tokenizer_name=tokenizer.name,
        vocab_size=tokenizer.vocab_size,
        seq_len=config.data.seq_len,
        tokens=config.tokens,
    )
