"""Raw records to tokens per split and source, a chunk on each thread; and the tokenizers for it.

Every record is checked first: a bad one is refused with its file and line, or repaired or skipped.
The result depends only on the records, not on how they are grouped into chunks, so the corpus is
the same for any number of workers and after any interruption.

A tokenizer is a tokenizer.json, a Hugging Face name, or a byte-level BPE trained on the corpus.
"""

import hashlib
import json
import os
from array import array
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tokenizers
from tokenizers import Tokenizer

from dograph.data.corpus import DOCUMENT_DTYPE, Split, TokenizerEntry
from dograph.data.formats import Bad, Chunk, Line, Position, RawRow, pick
from dograph.data.inputs import Input, PrepareOptions
from dograph.data.toward import TextScorer
from dograph.errors import ConfigError, CorpusError, require
from dograph.files import sha256_of, write_text
from dograph.rng import key64

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


def place_tokenizer(given: TokenizerFile, folder: Path, options: PrepareOptions) -> TokenizerEntry:
    """Write a tokenizer into a folder; --eot replaces its own end-of-text token."""
    path, eot_id = folder / TOKENIZER_FILE, options.eot_id
    write_text(path, given.content)
    tokenizer = open_tokenizer(path, options.tokenizer)
    return TokenizerEntry(
        name=options.tokenizer,
        file=TOKENIZER_FILE,
        sha256=sha256_of(path),
        vocab_size=max(tokenizer.get_vocab().values()) + 1,  # ids may have gaps
        eot_id=end_of_text(tokenizer, options.eot, given.eos) if eot_id is None else eot_id,
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


# A document during preparation: DOCUMENT_DTYPE, and two fields that finishing needs.
RAW_DOCUMENT_DTYPE = np.dtype(
    [
        *DOCUMENT_DTYPE.descr,
        ("bytes", "<u4"),  # of its text in UTF-8
        ("hash", "<u8"),  # keyed hash of its text: decides the split
    ]
)
SCORED_RAW_DTYPE = np.dtype([*RAW_DOCUMENT_DTYPE.descr, ("score", "<f4")])  # with --toward
_BOM = b"\xef\xbb\xbf"
_SNIFF_BYTES = 8192
_AHEAD = 3  # chunks in flight per thread
_PARALLELISM = "TOKENIZERS_PARALLELISM"  # read by the library whenever it encodes


def where(entry: Input, bad: Bad) -> str:
    """The file and line (or row, from 1) of a bad record."""
    line = "" if bad.record is None else f":{bad.record + 1}"
    return bad.file or f"{entry.name}{line}"


def refusal(entry: Input, bad: Bad) -> CorpusError:
    return CorpusError(
        f"{where(entry, bad)}: {bad.what}. Fix it, or pass --bad-records repair, which "
        f"{bad.repair} and counts it in the manifest"
    )


class CheckedText(NamedTuple):
    """A record that passed the checks."""

    record: int
    source: str
    text: str
    content: bytes  # the text in UTF-8
    file: str | None


class Checker:
    """Checks the records of one chunk: repairs or skips bad ones, or refuses the first."""

    def __init__(self, chunk: Chunk, entry: Input, options: PrepareOptions) -> None:
        self.chunk = chunk
        self.entry = entry
        self.fields = options.fields
        self.repair = options.bad_records == "repair"
        self.bad: list[Bad] = []

    def texts(self) -> Iterator[CheckedText]:
        """The good records, empty ones included; problems of the others are added to `bad`."""
        for record, row in enumerate(self.chunk.rows, self.chunk.first):
            parsed = self._parse(record, row.content) if isinstance(row, Line) else row
            if isinstance(parsed, RawRow):
                text, source = self._text(record, parsed), self.entry.source
                source = self._source(record, parsed) if source is None else source
                if text is not None and source is not None:
                    yield CheckedText(record, source, *text, parsed.file)

    def complain(
        self, record: int, kind: str, what: str, repair: str = "skips it", file: str | None = None
    ) -> None:
        """Note a bad record, or refuse it if bad records are not repaired."""
        self.bad.append(Bad(record, kind, what, repair, file))
        if not self.repair:
            raise refusal(self.entry, self.bad[-1])

    def _not_utf8(self, record: int, error: UnicodeError, file: str | None = None) -> None:
        what = f"invalid UTF-8 ({error})"
        self.complain(record, "invalid UTF-8", what, "puts U+FFFD in its place", file)

    def _parse(self, record: int, line: bytes) -> RawRow | None:
        if record == 0:
            line = line.removeprefix(_BOM)
        if not line.strip():
            return None
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            self._not_utf8(record, error)
            text = line.decode(errors="replace")
        try:
            value = json.loads(text)
            what = f"the line is a JSON {type(value).__name__}, not an object with fields"
        # ValueError: also for numbers of thousands of digits; RecursionError: nested too deeply
        except (ValueError, RecursionError) as error:
            value, what = None, f"broken JSON ({error})"
        if isinstance(value, dict):
            return RawRow(pick(value, self.fields.text), pick(value, self.fields.source))
        self.complain(record, "broken JSON", what)
        return None

    def _text(self, record: int, row: RawRow) -> tuple[str, bytes] | None:
        text = row.text
        if isinstance(text, bytes):
            content = text.removeprefix(_BOM) if row.file else text
            if row.file and b"\0" in content[:_SNIFF_BYTES]:
                what = "the file holds zero bytes, so it is not text"
                self.complain(record, "binary file", what, file=row.file)
                return None
            try:
                return content.decode(), content
            except UnicodeDecodeError as error:
                self._not_utf8(record, error, row.file)
                text = content.decode(errors="replace")
        if not isinstance(text, str):
            kind = "is missing or null" if text is None else f"is of type {type(text).__name__}"
            what = f"the text field {self.fields.text!r} {kind} (--text-field names another)"
            self.complain(record, "missing text", what, file=row.file)
            return None
        try:
            return text, text.encode()
        except UnicodeEncodeError as error:  # half a surrogate pair, written as a JSON escape
            self._not_utf8(record, error, row.file)
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return text, text.encode()

    def _source(self, record: int, row: RawRow) -> str | None:
        if isinstance(row.source, str) and row.source and row.source.isprintable():
            return row.source
        kind = "is missing or null" if row.source is None else f"is {row.source!r:.40}, no name"
        what = f"the source field {self.fields.source!r} {kind} (--source-field names another)"
        self.complain(record, "missing source", what, file=row.file)
        return None


@dataclass(slots=True)
class EncodedGroup:
    """The documents of a chunk that go to one split of one source."""

    split: Split
    source: str
    # an array while it grows: 4 bytes per token, unlike a list; then of the corpus' dtype
    token_N: Any = field(default_factory=lambda: array("I"))
    # finally of RAW_DOCUMENT_DTYPE or SCORED_RAW_DTYPE, ends counted from this group's first token
    document_M: Any = field(default_factory=list)
    unkept_documents: int = 0  # left out by --keep
    unkept_bytes: int = 0


class Encoded(NamedTuple):
    """A chunk, encoded."""

    input: int
    end: Position
    groups: list[EncodedGroup]
    bad: list[Bad]
    counts: Counter[str]  # bad records by kind, and documents of sources that the recipe excludes


class ChunkEncoder:
    """Turns chunks into tokens, on any number of threads."""

    scorer: TextScorer | None = None  # --toward

    def __init__(self, options: PrepareOptions, inputs: list[Input], entry: TokenizerEntry) -> None:
        self.options = options
        self.inputs = inputs
        self.entry = entry
        self.tokenizer = open_tokenizer(options.staging / TOKENIZER_FILE)
        self.threshold = hash_threshold(options.held_out(inputs))

    def __call__(self, chunk: Chunk) -> Encoded:
        """Encode a chunk; refuses its first bad record if bad records are not repaired."""
        options, entry, only = self.options, self.inputs[chunk.input], self.options.only
        checker = Checker(chunk, entry, options)
        groups: dict[tuple[Split, str], EncodedGroup] = {}

        def group_of(source: str, split: Split = entry.split) -> EncodedGroup:
            return groups.setdefault((split, source), EncodedGroup(split, source))

        counts: Counter[str] = Counter()
        texts: list[CheckedText] = []
        for text in checker.texts():
            if only is not None and text.source not in only:
                counts[f"excluded: {text.source}"] += 1
            elif not text.content:
                empty = Bad(text.record, "empty", "the text is empty", "skips it", text.file)
                checker.bad.append(empty)
                group_of(text.source)  # the source exists even if all of its texts are empty
            elif entry.split == "train" and not is_kept(text.content, options.keep, options.seed):
                group = group_of(text.source)
                group.unkept_documents += 1
                group.unkept_bytes += len(text.content)
            else:
                texts.append(text)
        scores: list[tuple[float, ...]] = [()] * len(texts)
        if self.scorer is not None and texts:
            scores = [(score,) for score in self.scorer([text.content for text in texts]).tolist()]
        encoded = self._encode(checker, texts)
        for text, ids, score in zip(texts, encoded, scores, strict=True):
            if ids is None:
                group_of(text.source)
                continue
            digest = text_hash(text.content, options.seed, "validation")
            held_out = entry.split == "train" and digest < self.threshold
            group = group_of(text.source, "validation" if held_out else entry.split)
            group.token_N.fromlist(ids)
            group.token_N.append(self.entry.eot_id)
            end, size = len(group.token_N), len(text.content)
            group.document_M.append((end, text.record, chunk.input, size, digest, *score))
        for group in groups.values():
            group.token_N = np.array(group.token_N, self.entry.token_dtype)
            dtype = SCORED_RAW_DTYPE if self.scorer else RAW_DOCUMENT_DTYPE
            group.document_M = np.array(group.document_M, dtype)
        bad = sorted([*checker.bad, *chunk.bad], key=lambda entry: entry.record or 0)
        counts.update(entry.kind for entry in bad)
        return Encoded(chunk.input, chunk.end, list(groups.values()), bad, counts)

    def _encode(self, checker: Checker, texts: list[CheckedText]) -> Iterator[list[int] | None]:
        """The tokens of each text; None for one that cannot be encoded and is skipped."""
        batch = [text.text for text in texts]
        try:
            encoded = self.tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        # the library raises bare Exceptions; encoding one by one names the record
        except Exception:
            for text in texts:
                try:
                    yield self.tokenizer.encode(text.text, add_special_tokens=False).ids
                except Exception as error:
                    what = f"the tokenizer cannot encode this text ({error}); another one may"
                    checker.complain(text.record, "not encodable", what, file=text.file)
                    yield None
        else:
            yield from (encoding.ids for encoding in encoded)


def text_hash(content: bytes, seed: int, purpose: Literal["validation", "keep"]) -> int:
    """A 64-bit hash of the text, independent for the two purposes: equal texts stay together."""
    key = key64(seed, purpose).to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, key=key).digest(), "little")


def hash_threshold(fraction: float) -> int:
    """This fraction of all texts has a hash below it."""
    return round(fraction * 2**64)


def is_kept(content: bytes, keep: float, seed: int) -> bool:
    """Whether --keep keeps a text; a larger fraction keeps everything that a smaller one does."""
    return keep == 1 or text_hash(content, seed, "keep") < hash_threshold(keep)


def encode_in_order(
    chunks: Iterator[Chunk], encoder: ChunkEncoder, num_threads: int
) -> Generator[Encoded, None, None]:
    """Encode chunks on threads, in order, with a bounded number of them in memory.

    The tokenizers library leaves Python to other threads while it encodes. An error of the reader
    is raised after the chunks read before it, so the first bad record in reading order is the one
    reported, and nothing read is lost.
    """
    errors: list[CorpusError] = []

    def read() -> Iterator[Chunk]:
        try:
            yield from chunks
        except CorpusError as error:
            errors.append(error)

    threads = ThreadPoolExecutor(num_threads, "dograph-encode")
    waiting: deque[Future[Encoded]] = deque()
    before = {k: v for k, v in os.environ.items() if k == _PARALLELISM}
    os.environ[_PARALLELISM] = "false"  # otherwise each chunk would use every core
    try:
        for chunk in read():
            waiting.append(threads.submit(encoder, chunk))
            if len(waiting) >= _AHEAD * num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)
        os.environ.pop(_PARALLELISM)
        os.environ.update(before)
    if errors:
        raise errors[0]
