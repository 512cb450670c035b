"""The reference model: what a sample's loss is compared with, token by token.

Shapes: b samples of a micro-batch, T tokens.
"""

from pathlib import Path

import torch
from torch import Tensor

from dograph.config import RunConfig
from dograph.errors import ConfigError
from dograph.mixers.base import Mixer
from dograph.models.build import load_model
from dograph.models.loss import PerSampleLoss, compile_regions, mean_over_predictions

ALLOWED = "a run directory, a model folder or a Hugging Face name"


class Reference:
    """The model that a sample's loss is compared with; no gradient, no dropout."""

    def __init__(self, model: PerSampleLoss) -> None:
        self.model = model.eval().requires_grad_(False)

    @torch.no_grad()
    def compare(self, token_bT: Tensor, nll_bT: Tensor) -> tuple[Tensor, Tensor]:
        """The reference's losses, and by how much `nll_bT` exceeds it in the mean over tokens.

        max(l_t - ref_t, 0), then the mean: averaging first would let tokens cancel.
        """
        reference_bT = self.model(token_bT, per_token=True)
        excess_bT = (nll_bT.detach() - reference_bT).clamp_min(0)
        return mean_over_predictions(reference_bT), mean_over_predictions(excess_bT)


def open_reference(
    config: RunConfig, mixer: Mixer, vocab_size: int, device: torch.device
) -> Reference:
    """The reference that `mixer` names, for a model of this vocabulary."""
    if (name := mixer.reference) is None:
        raise ConfigError(
            f"mixer {config.mixer.name} needs reference_loss, but names no reference model; set "
            f"mixer.reference to {ALLOWED}"
        )
    try:
        folder = Path(name)
        is_run = (folder / "config.yaml").is_file()
        if is_run and not (folder / "model").exists():
            raise ConfigError(
                f"this run has not ended, so it has no model yet; dograph train --resume {folder}"
            )
        place = str(folder / "model") if is_run else name
        model = load_model(place, vocab_size=0, seed=config.seed, pretrained=True)
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
