"""From a configuration to the parts of a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.data.sampler import Sampler
from dograph.errors import ConfigError
from dograph.mixers.base import Proxy, ProxyResult
from dograph.models.build import build_model, load_model
from dograph.models.loss import PerSampleLoss


def open_model(config: RunConfig, corpus: Corpus) -> PerSampleLoss:
    if config.model.path is not None:
        model = load_model(
            config.model.path,
            vocab_size=corpus.vocab_size,
            seed=config.seed,
            pretrained=config.model.pretrained,
        )
        positions = getattr(model.model.config, "max_position_embeddings", config.data.seq_len)
        if positions < config.data.seq_len:
            raise ConfigError(
                f"data.seq_len={config.data.seq_len}, but {config.model.path} has {positions} "
                f"positions; set data.seq_len to {positions} or less"
            )
        return model
    assert config.model.preset is not None
    return build_model(
        config.model.preset,
        vocab_size=corpus.vocab_size,
        seq_len=config.data.seq_len,
        dropout=config.model.dropout,
        seed=config.seed,
    )


def open_shape(config: RunConfig, corpus: Corpus) -> PerSampleLoss:
    """The run's model without its numbers: every name and shape, no memory."""
    shape_only = config.model.model_copy(update={"pretrained": False})
    with torch.device("meta"):
        return open_model(config.model_copy(update={"model": shape_only}), corpus)


def open_sampler(config: RunConfig, corpus: Corpus) -> Sampler:
    return Sampler(
        corpus.train,
        seq_len=config.data.seq_len,
        batch_size=config.train.batch_size,
        seed=config.seed,
    )


def inner_parameters(model: Any) -> int:
    """Parameters of a Hugging Face model but for embeddings and output layer."""
    outer = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    outer |= {id(p) for p in model.get_output_embeddings().parameters()}
    return sum(p.numel() for p in model.parameters() if id(p) not in outer)


def planned_parameters(config: RunConfig, corpus: Corpus) -> int:
    """The same of a run's model, without making it."""
    return inner_parameters(open_shape(config, corpus).model)


# What the plan of a run that begins may ask: facts about its corpus and its budget, no proxies.


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
