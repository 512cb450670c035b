"""The reference model: what a sample's loss is compared with, token by token.

Shapes: b samples of a micro-batch, T tokens.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dograph.config import RunConfig
from dograph.errors import ConfigError
from dograph.mixers.base import Mixer
from dograph.models.build import load_model
from dograph.models.loss import PerSampleLoss, mean_over_predictions
from dograph.models.regions import compile_regions

ALLOWED = "a run directory, a model folder or a Hugging Face name"


@runtime_checkable
class Referring(Protocol):
    """A mixer that needs `reference_loss` says which model that is of."""

    reference: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A micro-batch's losses beside those of the reference."""

    reference_loss_b: Tensor
    excess_loss_b: Tensor  # clipped at 0 token by token, then averaged


class Reference:
    """A model that is only looked at: no gradient, no dropout."""

    def __init__(self, model: PerSampleLoss) -> None:
        self.model = model.eval().requires_grad_(False)

    @torch.no_grad()
    def compare(self, token_bT: Tensor, nll_bT: Tensor) -> Comparison:
        """max(l_t - ref_t, 0), then the mean: averaging first would let tokens cancel."""
        reference_bT = self.model(token_bT, per_token=True)
        excess_bT = (nll_bT.detach() - reference_bT).clamp_min(0)
        return Comparison(mean_over_predictions(reference_bT), mean_over_predictions(excess_bT))


def open_reference(
    config: RunConfig, mixer: Mixer, vocab_size: int, device: torch.device
) -> Reference:
    """The reference that `mixer` names, for a model of this vocabulary."""
    name = mixer.reference if isinstance(mixer, Referring) else None
    if name is None:
        raise ConfigError(
            f"mixer {config.mixer.name} needs reference_loss, but names no reference model; set "
            f"mixer.reference to {ALLOWED}"
        )
    try:
        model = load_model(_folder(name), vocab_size=0, seed=config.seed, pretrained=True)
    except ConfigError as error:
        raise ConfigError(f'mixer.reference="{name}" must be {ALLOWED}: {error}') from error
    if model.vocab_size != vocab_size:
        raise ConfigError(
            f'mixer.reference="{name}" has a vocabulary of {model.vocab_size} tokens, the model '
            f"that is trained {vocab_size}; their losses can be compared only with one tokenizer: "
            "take a reference that was trained on this corpus"
        )
    positions = getattr(model.model.config, "max_position_embeddings", config.data.seq_len)
    if positions < config.data.seq_len:
        raise ConfigError(
            f'mixer.reference="{name}" has {positions} positions, fewer than '
            f"data.seq_len={config.data.seq_len}"
        )
    if config.train.compile:
        compile_regions(model)
    return Reference(model.to(device))


def _folder(name: str) -> str:
    """A run's model, where `name` is a run."""
    path = Path(name)
    if not (path / "config.yaml").is_file():
        return name
    if not (path / "model").exists():
        raise ConfigError(
            f"this run has not ended, so it has no model yet; dograph train --resume {path}"
        )
    return str(path / "model")
