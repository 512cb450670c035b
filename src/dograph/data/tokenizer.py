"""Tokenizers: a tokenizer.json, a Hugging Face name, or a byte-level BPE trained on the corpus."""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers
from tokenizers import Tokenizer

from dograph.data.corpus import TokenizerEntry
from dograph.errors import ConfigError, CorpusError, require
from dograph.files import sha256_of, write_text

TOKENIZER_FILE = "tokenizer.json"
_TOKENIZER_KIND = f"{TOKENIZER_FILE} of the `tokenizers` library"
EOT = "<|endoftext|>"
# Usual names of the end-of-text token, for tokenizers whose config does not say.
_EOT_NAMES = (EOT, "</s>", "<|end_of_text|>", "<eos>")
_MIN_VOCAB = 257  # every byte, and the end of text
# The library caches the tokens of 10,000 words, which a few megabytes of text exceed; every other
# word is then merged again each time.
_CACHED_WORDS = 1 << 16


class TokenizerFile(NamedTuple):
    """The content of a tokenizer.json, and the end-of-sequence token in the config next to it."""

    content: str
    eos: str | None


def open_tokenizer(path: Path | str, name: str | None = None) -> Tokenizer:
    """A tokenizer for plain text, where special tokens stay text; errors use `name` if given."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise CorpusError(f"{name or path} is not a {_TOKENIZER_KIND}: {error}") from error
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Only speed depends on it: the method is not public, and not every kind of model has it.
    with suppress(AttributeError):
        tokenizer.model._resize_cache(_CACHED_WORDS)
    return tokenizer


def find_tokenizer(name: str) -> TokenizerFile:
    """The tokenizer at a path (a file, or a folder that holds one) or of that Hugging Face name."""
    file = Path(name) / TOKENIZER_FILE if Path(name).is_dir() else Path(name)
    config = file.parent / "tokenizer_config.json"
    if not file.is_file():
        if file != Path(name) or name.endswith(".json") or name.startswith((".", "/", "~")):
            raise CorpusError(
                f"there is no tokenizer at {name}; give a {TOKENIZER_FILE} or a folder that has "
                "one, a Hugging Face name, or bpe to train one on the corpus"
            )
        hub = require("huggingface_hub", "corpus")
        try:
            file = Path(hub.hf_hub_download(name, TOKENIZER_FILE))
        # invalid names, no connection, no permission: each library layer raises its own
        except Exception as error:
            raise CorpusError(
                f"cannot get the tokenizer {name!r} from the Hugging Face hub ({error}); give the "
                "path of a tokenizer.json, or bpe to train one on the corpus. If it has none, "
                "AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER) writes one"
            ) from error
        with suppress(Exception):  # it is optional: usual end-of-text names are tried instead
            config = Path(hub.hf_hub_download(name, config.name))
    try:
        content = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{file} is not a {_TOKENIZER_KIND}: {error}") from error
    eos = None
    if config.is_file():
        try:
            eos = json.loads(config.read_bytes()).get("eos_token")
        except (ValueError, AttributeError) as error:
            raise CorpusError(f"{config} is damaged: {error}; download it again") from error
        eos = eos.get("content") if isinstance(eos, dict) else eos
    return TokenizerFile(content, eos if isinstance(eos, str) else None)


def train_bpe(texts: Iterable[str], vocab_size: int) -> str:
    """A byte-level BPE trained on these texts, as the content of a tokenizer.json."""
    if vocab_size < _MIN_VOCAB:
        raise ConfigError(
            f"--vocab-size must be at least {_MIN_VOCAB} (bytes and end of text), got {vocab_size}"
        )
    tokenizer = Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOT],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str(pretty=True))


def end_of_text(tokenizer: Tokenizer, given: str | None, eos: str | None) -> int:
    """The id put after every document: of the given token, or of the tokenizer's own."""
    names = [name for name in (eos, *_EOT_NAMES) if name] if given is None else [given]
    for name in names:
        token = tokenizer.token_to_id(name)
        if token is not None:
            return int(token)
    raise ConfigError(
        f"the tokenizer has no end-of-text token {' or '.join(map(repr, names))}; "
        "name the token that ends a document with --eot TOKEN"
    )


def place_tokenizer(
    given: TokenizerFile, folder: Path, name: str, eot: str | None, eot_id: int | None = None
) -> TokenizerEntry:
    """Write a tokenizer into a folder; `eot` or `eot_id` replaces its own end-of-text token."""
    path = folder / TOKENIZER_FILE
    write_text(path, given.content)
    tokenizer = open_tokenizer(path, name)
    return TokenizerEntry(
        name=name,
        file=TOKENIZER_FILE,
        sha256=sha256_of(path),
        vocab_size=max(tokenizer.get_vocab().values()) + 1,  # ids may have gaps
        eot_id=end_of_text(tokenizer, eot, given.eos) if eot_id is None else eot_id,
    )


def token_bytes(tokenizer_file: Path, eot_id: int | None) -> np.ndarray | None:
    """UTF-8 bytes of text behind each token id, (V,); None if tokens do not spell the text.

    A byte-level vocabulary writes every byte as one character, so a token has as many bytes as
    characters. The end-of-text token stands for no text.
    """
    settings = json.loads(tokenizer_file.read_bytes())
    splitter = settings.get("pre_tokenizer") or {}
    steps = [splitter, *splitter.get("pretokenizers", [])]
    is_byte_level = any(step.get("type") == "ByteLevel" for step in steps)
    changes_text = any(step.get("add_prefix_space") for step in steps) or settings.get("normalizer")
    if not is_byte_level or changes_text:
        return None
    length = {index: len(token) for token, index in settings["model"]["vocab"].items()}
    length |= {t["id"]: len(t["content"].encode()) for t in settings.get("added_tokens", [])}
    if eot_id is not None:
        length[eot_id] = 0
    bytes_V = np.zeros(max(length) + 1, dtype=np.int64)
    bytes_V[list(length)] = list(length.values())
    return bytes_V
