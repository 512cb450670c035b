"""The model under test, and the tokenizer it was trained with."""

from pathlib import Path
from typing import Any, Literal

import torch

from dograph.errors import ConfigError
from dograph.eval.encoding import Encoder
from dograph.eval.likelihood import Scorer
from dograph.models.loss import PerSampleLoss

Precision = Literal["float32", "bfloat16"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
POSITIONS = 2048  # where a model does not say how many it has, as in the harness


def open_scorer(
    name: str,
    *,
    device: torch.device,
    dtype: Precision,
    batch_size: int,
    max_length: int | None = None,
    trained_length: int | None = None,
    end_of_text: int | None = None,
) -> Scorer:
    """A folder saved by save_pretrained, or a name of the hub, ready to score.

    It is shown `max_length` tokens at once; where that is not given, as many as it was trained
    on, for positions beyond are as good as noise; where that is not known, all its positions.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would tear our own progress line
    tokenizer = _tokenizer(name)
    try:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=DTYPES[dtype])
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{name} could not be loaded: {error}. Give a run, a folder saved by save_pretrained, "
            "or a Hugging Face name"
        ) from error
    positions = getattr(model.config, "max_position_embeddings", None) or POSITIONS
    if max_length is not None and not 2 <= max_length <= positions:
        raise ConfigError(f"--max-length {max_length}, but {name} has {positions} positions")
    return Scorer(
        model=PerSampleLoss(model.to(device).eval(), model.config.vocab_size),
        encoder=Encoder.of(tokenizer, end_of_text),
        max_length=max_length or min(trained_length or positions, positions),
        batch_size=batch_size,
    )


def _tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    if Path(name).is_dir() and not list(Path(name).glob("tokenizer*")):
        raise ConfigError(
            f"{name} has no tokenizer, so it cannot be asked anything; put its tokenizer.json "
            "there. A run has one where its corpus was prepared from text or with --tokenizer"
        )
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the tokenizer of {name} could not be loaded: {error}") from error
