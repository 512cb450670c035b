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
EOT = "<|endoftext|>"
# What tokenizers without an end-of-text in their config call it, the likeliest first.
_EOT_NAMES = (EOT, "</s>", "<|end_of_text|>", "<eos>")
_MIN_VOCAB = 257  # every byte, and the end of text
# Words whose tokens are remembered, a bounded number: the library's own 10,000 fill up within a few
# megabytes of text, and every other word is then merged anew each time it comes.
_REMEMBERED_WORDS = 1 << 16


class FoundTokenizer(NamedTuple):
    """A tokenizer.json, and the end-of-sequence token that its folder's config names."""

    content: str
    eos: str | None


def open_tokenizer(path: Path | str, name: str | None = None) -> Tokenizer:
    """A tokenizer for plain text: what looks like a special token in a document stays text.

    `name` is what the user calls it, where the path is a copy.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise CorpusError(
            f"{name or path} is not a tokenizer.json of `tokenizers`: {error}"
        ) from error
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Speed alone hangs on it: the method is not public, and not every kind of model has it.
    with suppress(AttributeError):
        tokenizer.model._resize_cache(_REMEMBERED_WORDS)
    return tokenizer


def find_tokenizer(name: str) -> FoundTokenizer:
    """The tokenizer at a path (a file, or a folder that holds one) or of that Hugging Face name."""
    file = Path(name)
    if file.is_dir():
        file /= TOKENIZER_FILE
        if not file.is_file():
            raise CorpusError(f"{name} holds no {TOKENIZER_FILE}; name a folder or file that does")
    config = file.parent / "tokenizer_config.json"
    if not file.is_file():
        if name.endswith(".json") or name.startswith((".", "/", "~")):
            raise CorpusError(
                f"there is no tokenizer at {name}; give a tokenizer.json, a name or bpe"
            )
        hub = require("huggingface_hub", "corpus")
        errors = require("huggingface_hub.errors", "corpus")
        try:
            file = Path(hub.hf_hub_download(name, TOKENIZER_FILE))
        # names that are none, no connection, no permission: each library layer raises its own
        except Exception as error:
            offline = isinstance(error, errors.LocalEntryNotFoundError)
            if isinstance(error, errors.EntryNotFoundError) and not offline:
                return _convert(name)
            raise CorpusError(
                f"cannot get the tokenizer {name!r} from the Hugging Face hub ({error}); give the "
                "path of a tokenizer.json, or bpe to train one on the corpus"
            ) from error
        with suppress(Exception):  # it is optional: common end-of-text names are tried instead
            config = Path(hub.hf_hub_download(name, config.name))
    try:
        content = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{file} is not a tokenizer.json of `tokenizers`: {error}") from error
    eos = None
    if config.is_file():
        try:
            eos = json.loads(config.read_bytes()).get("eos_token")
        except (ValueError, AttributeError) as error:
            raise CorpusError(f"{config} is damaged: {error}") from error
        eos = eos.get("content") if isinstance(eos, dict) else eos
    return FoundTokenizer(content, eos if isinstance(eos, str) else None)


def _convert(name: str) -> FoundTokenizer:
    """A tokenizer that is stored in an older form, converted by transformers."""
    transformers = require("transformers", "corpus")
    try:
        converted = transformers.AutoTokenizer.from_pretrained(name)
        return FoundTokenizer(converted.backend_tokenizer.to_str(), converted.eos_token)
    except Exception as error:
        raise CorpusError(
            f"{name!r} has no {TOKENIZER_FILE} and transformers cannot convert what it has "
            f"({error}); choose another tokenizer"
        ) from error


def train_bpe(texts: Iterable[str], vocab_size: int) -> str:
    """A byte-level BPE trained on these texts, as the content of a tokenizer.json."""
    if vocab_size < _MIN_VOCAB:
        raise ConfigError(
            f"--vocab-size must be at least {_MIN_VOCAB} (256 bytes and the end of text), "
            f"got {vocab_size}"
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
    content: str = tokenizer.to_str(pretty=True)
    return content


def end_of_text(tokenizer: Tokenizer, given: str | None, eos: str | None) -> int:
    """The id put after every document: the token asked for, or the one the tokenizer has."""
    for name in (given,) if given is not None else (eos, *_EOT_NAMES):
        token = tokenizer.token_to_id(name) if name is not None else None
        if token is not None:
            return int(token)
    if given is not None:
        raise ConfigError(f"the tokenizer has no token {given!r}; pass another with --eot TOKEN")
    raise ConfigError(
        f"the tokenizer has no end-of-text token (looked for {', '.join(_EOT_NAMES)}); "
        "say which token ends a document with --eot TOKEN"
    )


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """One more than the largest id; ids may have gaps."""
    return int(max(tokenizer.get_vocab(with_added_tokens=True).values())) + 1


def place_tokenizer(
    found: FoundTokenizer, folder: Path, name: str, eot: str | None, eot_id: int | None = None
) -> TokenizerEntry:
    """Write a tokenizer into a folder, with the end of text that is asked for or that it has."""
    path = folder / TOKENIZER_FILE
    write_text(path, found.content)
    tokenizer = open_tokenizer(path, name)
    return TokenizerEntry(
        name=name,
        file=TOKENIZER_FILE,
        sha256=sha256_of(path),
        vocab_size=vocabulary_size(tokenizer),
        eot_id=end_of_text(tokenizer, eot, found.eos) if eot_id is None else eot_id,
    )


def token_bytes(tokenizer_file: Path, eot_id: int | None) -> np.ndarray | None:
    """UTF-8 bytes of text behind each token id, (V,); None where tokens do not spell the text.

    A byte-level vocabulary spells every byte as one character, so a token has as many bytes as
    characters. The end-of-text token stands for no text.
    """
    settings = json.loads(tokenizer_file.read_bytes())
    splitter = settings.get("pre_tokenizer") or {}
    steps = [splitter, *splitter.get("pretokenizers", [])]
    byte_level = [step for step in steps if step.get("type") == "ByteLevel"]
    changes_text = any(step.get("add_prefix_space") for step in steps) or settings.get("normalizer")
    if not byte_level or changes_text:
        return None
    length = {index: len(token) for token, index in settings["model"]["vocab"].items()}
    for added in settings.get("added_tokens", []):
        length[added["id"]] = len(added["content"].encode())
    if eot_id is not None:
        length[eot_id] = 0
    bytes_V = np.zeros(max(length) + 1, dtype=np.int64)
    bytes_V[list(length)] = list(length.values())
    return bytes_V
