"""Corpora with given tokens in given documents, and a way to read all of them back."""

import hashlib

import numpy as np

from dograph.data.corpus import (
    DOCUMENT_DTYPE,
    Manifest,
    StratumEntry,
    StratumTokens,
    TokenizerEntry,
)
from dograph.rng import stream


def write_split(directory, split, source, token_lists, num_bytes=None):
    """A token file and a document file, as a finished corpus has them."""
    documents = np.zeros(len(token_lists), DOCUMENT_DTYPE)
    documents["end"] = np.cumsum([len(tokens) for tokens in token_lists])
    documents["record"] = np.arange(len(token_lists)) * 10
    np.save(directory / f"{source}.{split}.npy", documents)
    content = np.concatenate([np.asarray(t, dtype=np.uint16) for t in token_lists]).tobytes()
    (directory / f"{source}.{split}.bin").write_bytes(content)
    return StratumEntry(
        source=source,
        stratum=source,
        file=f"{source}.{split}.bin",
        dtype="uint16",
        tokens=len(content) // 2,
        documents=len(token_lists),
        bytes=num_bytes,
        sha256=hashlib.sha256(content).hexdigest(),
        documents_file=f"{source}.{split}.npy",
    )


def write_manifest(directory, train, validation=(), tokenizer=None, vocab_size=1000):
    tokenizer = tokenizer or TokenizerEntry(
        name="none", file=None, sha256=None, vocab_size=vocab_size, eot_id=None
    )
    manifest = Manifest(
        tokenizer=tokenizer,
        inputs=["input"],
        train=list(train),
        validation=list(validation),
        made_by="test",
    )
    manifest.write(directory)
    return manifest


def span(stratum, document):
    """The first token of a document in its stratum, and one past its last."""
    end_D = stratum.documents["end"]
    return int(end_D[document - 1]) if document else 0, int(end_D[document])


def documents_of(directory, entries):
    """(record, tokens) of every document, by stratum."""
    found = {}
    for entry in entries:
        stratum = StratumTokens(directory, entry)
        found[entry.stratum] = [
            (int(record), tuple(stratum.token_N[slice(*span(stratum, index))].tolist()))
            for index, record in enumerate(stratum.documents["record"])
        ]
    return found


def random_tokens(num_documents, seed=0):
    rng = stream(seed, "random tokens")
    return [rng.integers(0, 500, rng.integers(1, 60)).tolist() for _ in range(num_documents)]
