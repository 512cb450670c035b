"""Building the parts of a run from its configuration: model, sampler, facts for the plan."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dograph.config import MixerConfig, RunConfig, TrainConfig
from dograph.data.corpus import Corpus
from dograph.data.sampler import Sampler, skipped_blocks
from dograph.errors import ConfigError
from dograph.mixers.base import Proxy, ProxyResult
from dograph.mixers.fixed import inlined, mixture_notes
from dograph.mixers.registry import mixer_class
from dograph.mixtures.file import RunFacts
from dograph.models.build import build_model, load_model
from dograph.models.loss import PerSampleLoss
from dograph.types import Schedule


def settled(config: RunConfig) -> RunConfig:
    """The configuration made self-contained, so that it repeats the run.

    Mixture files become weights, existing paths become absolute (Hugging Face names stay), and the
    mixer writes out defaults that later versions may change.
    """

    def absolute(name: str) -> str:
        return str(Path(name).resolve()) if Path(name).exists() else name

    name, options, model = config.mixer.name, config.mixer.options, config.model
    kind = mixer_class(name)
    options = kind.settled(inlined(options) if kind.reads_mixtures else options)
    if isinstance(reference := options.get("reference"), str):
        options["reference"] = absolute(reference)
    if model.path is not None:
        model = model.model_copy(update={"path": absolute(model.path)})
    return config.model_copy(update={"mixer": MixerConfig(name=name, **options), "model": model})


def with_steps(config: RunConfig, steps: int, done: int) -> TrainConfig:
    """The settings of a run that has made `done` steps and is to have another `train.steps`."""
    train, made = config.train, config.batches.counted(done)
    if steps == train.steps:
        return train
    if steps <= made:
        raise ConfigError(f"train.steps={steps}: the run has made {made:.10g}; give more than that")
    before = [(until, length) for until, length in train.extended if until < done]
    if done:
        before.append((done, config.batches_at(done - 1).samples // config.batches.reference))
    return train.model_copy(update={"steps": steps, "extended": before})


def forked_sizes(old: Schedule, new: Schedule, tokens: int) -> Schedule:
    """The schedule of a fork after `tokens` tokens: those drawn by the old one, then the new."""
    before, after = ([(0, own)] if isinstance(own, int) else own for own in (old, new))
    now = [size for first, size in after if first <= tokens][-1]
    past = [(first, size) for first, size in before if first < tokens]
    return [*past, (tokens, now), *(own for own in after if own[0] > tokens)]


def open_model(config: RunConfig, corpus: Corpus) -> PerSampleLoss:
    own, known = config.model, {"vocab_size": corpus.vocab_size, "seed": config.seed}
    known["seq_len"] = config.data.seq_len
    if own.path is not None:
        return load_model(own.path, pretrained=own.pretrained, **known)
    assert own.preset is not None
    return build_model(own.preset, dropout=own.dropout, **known)


def open_shape(config: RunConfig, corpus: Corpus) -> PerSampleLoss:
    """The run's model on the meta device: names and shapes without memory."""
    shape_only = config.model.model_copy(update={"pretrained": False})
    with torch.device("meta"):
        return open_model(config.model_copy(update={"model": shape_only}), corpus)


def inner_parameters(model: Any) -> int:
    """Number of parameters of a Hugging Face model without embeddings and output layer."""
    outer = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    outer |= {id(p) for p in model.get_output_embeddings().parameters()}
    return sum(p.numel() for p in model.parameters() if id(p) not in outer)


def open_sampler(config: RunConfig, corpus: Corpus) -> Sampler:
    sizes, seq_len = config.batches, config.data.seq_len
    sampler = Sampler(corpus.train, seq_len=seq_len, batch_size=sizes, seed=config.seed)
    sampler.skip(skipped_blocks(corpus, config.data.skip, seq_len))
    return sampler


class CorpusLab:
    """The lab of a run that starts: facts about its corpus and budget, no proxies."""

    def __init__(self, config: RunConfig, corpus: Corpus, step: int = 0) -> None:
        self.target, self.corpus = config, corpus
        self.tokens: Mapping[str, int] = corpus.tokens_by_source()
        self.strata: Mapping[str, int] = {s.entry.stratum: s.entry.tokens for s in corpus.train}
        batches = config.batches_at(step)
        self.steps, self.budget = batches.steps, batches.samples * config.data.seq_len
        self.proxy_steps = self.steps  # there are none

    @property
    def scores(self) -> Mapping[str, float]:
        """Read from the corpus only when needed."""
        return self.corpus.scores()

    @property
    def parameters(self) -> int:
        """Of the run's model; computed when needed, as building its shape takes a moment."""
        return inner_parameters(open_shape(self.target, self.corpus).model)

    def train(self, proxies: Sequence[Proxy]) -> list[ProxyResult]:
        """Refused: proxies are trained before the run, by `dograph plan`."""
        method = self.target.mixer.name
        raise ConfigError(
            f"mixer.name={method} needs a plan of {len(proxies)} proxy runs; make it first with "
            f"`dograph plan {method} --out mixture.yaml`, then train with mixer.name=static "
            "mixer.file=mixture.yaml"
        )


def facts_of(config: RunConfig, corpus: Corpus) -> RunFacts:
    """The facts that a mixture's provenance is compared with."""
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


def mixture_warnings(config: RunConfig, corpus: Corpus) -> list[str]:
    """Warnings about mixtures that were made for another corpus or run, one line each."""
    reads = mixer_class(config.mixer.name).reads_mixtures
    return mixture_notes(config.mixer.options, facts_of(config, corpus)) if reads else []
