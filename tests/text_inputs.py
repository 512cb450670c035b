"""Inputs for preparing, and a reader of prepared corpora that shares no code with the package."""

import gzip
import hashlib
import json
import lzma
from pathlib import Path

import numpy as np
import zstandard
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from dograph.data.corpus import Split
from dograph.data.inputs import Input, PrepareOptions, Resolver
from dograph.data.pipeline import Prepared
from dograph.data.pipeline import prepare as prepare_corpus

COMPRESS = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "größer",
    "数学",
    "naïve",
    "line\nbreak",
    "tab\tstop",
    "🙂",
    "zero",
]


def text(number: int, words: int = 12) -> str:
    """A text that no other number has."""
    rng = np.random.default_rng(number)
    return f"{number}: " + " ".join(WORDS[i] for i in rng.integers(len(WORDS), size=words))


def lines(records: list[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def write_jsonl(path: Path, texts: list[str], **fields: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = lines([{"text": text, **fields} for text in texts])
    path.write_bytes(COMPRESS[path.suffix if path.suffix in COMPRESS else ""](content))
    return path


def write_tokenizer(path: Path, eot: str = "<|endoftext|>", vocab_size: int = 300) -> Path:
    """A small byte-level BPE, made with the library alone."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[eot],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text(n) for n in range(50)], trainer)
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path


def resolve(spec: str, split: Split, *, labelled: bool) -> list[Input]:
    """The inputs that one argument stands for."""
    return list(Resolver(labelled).find(spec, split))


def prepare(out: Path, *inputs: object, **options: object) -> Prepared:
    return prepare_corpus(
        PrepareOptions(inputs=tuple(str(entry) for entry in inputs), out=out, **options)
    )


def read_back(directory: Path) -> dict[tuple[str, str], list[str]]:
    """Every text of a corpus by (split, source), decoded; checks digests, counts and ends."""
    manifest = json.loads((directory / "manifest.json").read_text())
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    eot = manifest["tokenizer"]["eot_id"]
    found: dict[tuple[str, str], list[str]] = {}
    for split in ("train", "validation"):
        for entry in manifest[split]:
            tokens = np.fromfile(directory / entry["file"], dtype=entry["dtype"])
            documents = np.load(directory / entry["documents_file"])
            assert hashlib.sha256(tokens.tobytes()).hexdigest() == entry["sha256"]
            assert (len(tokens), len(documents)) == (entry["tokens"], entry["documents"])
            assert documents["end"][-1] == len(tokens)
            pieces = np.split(tokens, documents["end"][:-1])
            assert all(piece[-1] == eot for piece in pieces)
            texts = [
                tokenizer.decode(piece[:-1].tolist(), skip_special_tokens=False) for piece in pieces
            ]
            assert sum(len(text.encode()) for text in texts) == entry["bytes"]
            found.setdefault((split, entry["source"]), []).extend(texts)
    return found


def origins(directory: Path, split: str = "train") -> dict[str, list[tuple[str, int]]]:
    """Of every document its input and record, by source."""
    manifest = json.loads((directory / "manifest.json").read_text())
    return {
        entry["source"]: [
            (manifest["inputs"][document["input"]], int(document["record"]))
            for document in np.load(directory / entry["documents_file"])
        ]
        for entry in manifest[split]
    }


def files_of(directory: Path) -> dict[str, str]:
    """Digest of every file of a folder, by name."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
