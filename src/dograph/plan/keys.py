"""What a run is, apart from where it lies: equal keys mean equal numbers.

Folders that settings name (a model, a reference) count by their weights and the corpus by its
tokens, so that a lab may be moved with them, and a changed one is not mistaken for the old.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.files import sha256_of
from dograph.models.files import WEIGHTS

FORMAT = 1  # raised when the same settings come to give other numbers
KEY_LENGTH = 16


def numbers_of(config: RunConfig) -> dict[str, Any]:
    """The settings that decide a run's numbers, the corpus apart."""
    values = config.model_dump(mode="json", exclude={"run", "log", "checkpoint"})
    for part, name in (
        ("train", "device"),
        ("train", "shard"),
        ("data", "corpus"),
        ("data", "warn_epochs"),
    ):
        del values[part][name]
    for part, name in (("model", "path"), ("mixer", "reference")):
        if isinstance(values[part].get(name), str):
            values[part][name] = _content(values[part][name])
    return values


def corpus_digest(corpus: Corpus) -> str:
    """Training and validation text in one string."""
    held_out = [f"{s.entry.stratum}:{s.entry.sha256}:{s.entry.dtype}" for s in corpus.validation]
    return hashlib.sha256("\n".join([corpus.digest, *held_out]).encode()).hexdigest()


def content_key(config: RunConfig, corpus: Corpus) -> str:
    """The name under which a lab keeps a run."""
    facts = {"format": FORMAT, "config": numbers_of(config), "corpus": corpus_digest(corpus)}
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:KEY_LENGTH]


def _content(name: str) -> str:
    """A model folder by its weights; a Hugging Face name by itself."""
    files = sorted(Path(name).glob("*.safetensors")) or sorted(Path(name).glob(f"model/{WEIGHTS}"))
    return "sha256:" + ",".join(sha256_of(file) for file in files) if files else name
