"""A corpus over tokens made elsewhere: the files are used where they are, and only indexed."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import dograph
from dograph.data.document_index import write_document_index
from dograph.data.input import Input
from dograph.data.journal import (
    STAGING,
    Value,
    clear,
    fingerprint,
    read_journal,
    require_same,
)
from dograph.data.manifest import Manifest, Split, StratumEntry, TokenizerEntry
from dograph.data.megatron import open_megatron
from dograph.data.nanogpt import GPT2_EOT, document_ends, holds_token, open_nanogpt
from dograph.data.options import PrepareOptions
from dograph.data.publish import file_stems, publish
from dograph.data.token_files import Digest, TokenFile, digest
from dograph.data.tokenizer import (
    TOKENIZER_FILE,
    FoundTokenizer,
    end_of_text,
    open_tokenizer,
    token_bytes,
    vocabulary_size,
)
from dograph.data.tokens import DOCUMENT_DTYPE
from dograph.errors import ConfigError, CorpusError
from dograph.files import sha256_of, write_text

_BLOCK_DOCUMENTS = 1 << 16


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive documents of a token file that go to one split."""

    entry: Input
    number: int  # of the input
    split: Split
    file: TokenFile
    ends_D: np.ndarray  # of all documents of the file, memory-mapped
    first: int
    last: int

    @property
    def start(self) -> int:
        return int(self.ends_D[self.first - 1]) if self.first else 0

    @property
    def end(self) -> int:
        return int(self.ends_D[self.last - 1])

    def documents(self) -> Iterator[np.ndarray]:
        for first in range(self.first, self.last, _BLOCK_DOCUMENTS):
            last = min(first + _BLOCK_DOCUMENTS, self.last)
            block = np.empty(last - first, DOCUMENT_DTYPE)
            block["end"] = self.ends_D[first:last] - self.start
            block["record"] = np.arange(first, last)
            block["input"] = self.number
            yield block


def prepare_external(
    inputs: list[Input],
    options: PrepareOptions,
    found: FoundTokenizer | None,
    recorded: dict[str, Value],
    stamps: dict[str, str],
) -> Manifest:
    """Index token files, check them, and write the manifest of a corpus over them."""
    _refuse_text(inputs, options, found)
    _refuse_strata(inputs, options.strata)
    built = options.out / STAGING / "finished"
    journal = None if options.restart else read_journal(built.parent)
    if journal is not None:  # of text, half done
        require_same(journal, recorded, stamps)
    clear(built.parent)
    built.mkdir()
    meaning = _meaning(options, found, built)
    given = any(entry.split == "validation" for entry in inputs)
    fraction = 0.0 if given else options.held_out
    runs: list[_Run] = []
    eot_id = meaning.eot_id
    guessed = False
    for number, entry in enumerate(inputs):
        file, ends_D, used_eot = _open(entry, number, meaning.eot_id, built.parent)
        guessed |= used_eot is not None and meaning.eot_id is None
        eot_id = used_eot if eot_id is None else eot_id
        runs += _split(_Run(entry, number, entry.split, file, ends_D, 0, len(ends_D)), fraction)
    digests = [
        digest(run.file, run.start, run.end, meaning.vocab_size, meaning.bytes_V) for run in runs
    ]
    vocab_size = meaning.vocab_size or max(made.largest for made in digests) + 1
    entries = _entries(runs, digests, built)
    manifest = Manifest(
        tokenizer=TokenizerEntry(
            name=options.tokenizer if found else "unknown",
            file=TOKENIZER_FILE if found else None,
            sha256=sha256_of(built / TOKENIZER_FILE) if found else None,
            vocab_size=vocab_size,
            eot_id=eot_id,
        ),
        inputs=[entry.name for entry in inputs],
        train=[entry for run, entry in zip(runs, entries, strict=True) if run.split == "train"],
        validation=[e for run, e in zip(runs, entries, strict=True) if run.split != "train"],
        options={
            **recorded,
            "eot_guessed": guessed,
            "fingerprint": fingerprint(recorded, stamps),
        },
        made_by=f"dograph {dograph.__version__}",
    )
    if options.strata > 1:
        from dograph.data.strata import split_into_strata

        manifest = split_into_strata(built, manifest, options.strata, options.seed)
    publish(manifest, built, options.out)
    clear(built.parent)
    return manifest


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What is known of the token ids."""

    vocab_size: int | None
    eot_id: int | None
    bytes_V: np.ndarray | None


def _meaning(options: PrepareOptions, found: FoundTokenizer | None, built: Path) -> _Meaning:
    if found is None:
        return _Meaning(options.vocab_size, options.eot_id, None)
    write_text(built / TOKENIZER_FILE, found.content)
    tokenizer = open_tokenizer(built / TOKENIZER_FILE, options.tokenizer)
    eot_id = options.eot_id
    if eot_id is None:
        eot_id = end_of_text(tokenizer, options.eot, found.eos)
    return _Meaning(vocabulary_size(tokenizer), eot_id, token_bytes(built / TOKENIZER_FILE, eot_id))


def _refuse_text(
    inputs: list[Input], options: PrepareOptions, found: FoundTokenizer | None
) -> None:
    text = [entry.name for entry in inputs if not entry.is_tokens]
    if text:
        raise CorpusError(
            f"{text[0]} is text and {next(e.name for e in inputs if e.is_tokens)} holds tokens; "
            "prepare them as two corpora, or give the text of both"
        )
    if options.eot is not None and found is None:
        raise ConfigError("--eot names a token of --tokenizer; without one, give --eot-id")


def _refuse_strata(inputs: list[Input], strata: int) -> None:
    files = Counter((entry.split, entry.source) for entry in inputs)
    for (split, source), number in files.items():
        if strata > 1 and number > 1:
            raise ConfigError(
                f'--strata cannot divide "{source}": it lies in {number} token files ({split}), '
                "and only a source in one file can be divided; leave --strata out, make one file "
                "of them, or name each as a source with NAME=INPUT"
            )


def _open(
    entry: Input, number: int, eot_id: int | None, folder: Path
) -> tuple[TokenFile, np.ndarray, int | None]:
    """The token file, where its documents end, and the end-of-text id that told."""
    assert entry.path is not None
    if entry.kind == "megatron":
        file, blocks = open_megatron(entry.path)
    else:
        file = open_nanogpt(entry.path)
        if eot_id is None and file.dtype == "uint16" and holds_token(file, GPT2_EOT):
            eot_id = GPT2_EOT
        blocks = document_ends(file, eot_id)
    path = folder / f"{number:04d}.ends"
    with open(path, "wb") as ends:
        for block in blocks:
            ends.write(block.astype("<i8").tobytes())
    return file, np.memmap(path, "<i8", "r"), eot_id


def _split(run: _Run, fraction: float) -> list[_Run]:
    """Hold out the last documents, about `fraction` of the tokens but at least one of several."""
    if not fraction or run.last < 2:
        return [run]
    wanted = round(run.file.tokens * (1 - fraction))
    # the first document that starts at or after `wanted`, neither the first nor past the last
    cut = int(np.searchsorted(run.ends_D, wanted, side="left")) + 1
    cut = min(max(cut, 1), run.last - 1)
    return [replace(run, last=cut), replace(run, first=cut, split="validation")]


def _entries(runs: list[_Run], digests: list[Digest], built: Path) -> list[StratumEntry]:
    files = Counter((run.split, run.entry.source) for run in runs)
    stems = file_stems({run.entry.source or "" for run in runs})
    seen: Counter[tuple[Split, str]] = Counter()
    entries = []
    for run, made in zip(runs, digests, strict=True):
        source = run.entry.source or ""
        key = (run.split, source)
        # a source in several files is several strata, one a file
        several = files[key] > 1
        suffix = f".{seen[key]}" if several else ""
        name = f"{run.split}/{stems[source]}{suffix}.documents.npy"
        (built / name).parent.mkdir(exist_ok=True)
        write_document_index(built / name, run.documents(), run.last - run.first)
        entries.append(
            StratumEntry(
                source=source,
                stratum=f"{source}/{seen[key]}" if several else source,
                file=str(run.file.path.resolve()),
                dtype=run.file.dtype,
                header_bytes=run.file.header_bytes,
                first_token=run.start,
                tokens=run.end - run.start,
                documents=run.last - run.first,
                bytes=made.bytes,
                sha256=made.sha256,
                documents_file=name,
            )
        )
        seen[key] += 1
    return entries
