"""Small corpora written by hand, so that tests of reading and training do not rest on preparing."""

import hashlib
from pathlib import Path

import numpy as np

from dograph.data.corpus import DOCUMENT_DTYPE, Manifest, StratumEntry, TokenizerEntry

SIZES = {"alpha": 6000, "beta": 3000, "gamma": 1000}


def write_corpus(
    directory: Path,
    sizes: dict[str, int] | None = None,
    *,
    vocab: int = 100,
    strata: int = 1,
    document_tokens: int = 37,
) -> Path:
    """Sources that prefer different tokens, cut into documents of `document_tokens`."""
    sizes = sizes or SIZES
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    splits: dict[str, list[StratumEntry]] = {"train": [], "validation": []}
    for index, (source, tokens) in enumerate(sizes.items()):
        center = (index + 1) * vocab / (len(sizes) + 1)
        for split, count in (("train", tokens), ("validation", max(tokens // 4, 200))):
            for k in range(strata):
                name = source if strata == 1 else f"{source}/{k}"
                drawn = rng.normal(center, vocab / 8, count).clip(1, vocab - 1).astype(np.uint16)
                drawn[document_tokens - 1 :: document_tokens] = 0
                stem = f"{split}-{name.replace('/', '.')}"
                drawn.tofile(directory / f"{stem}.bin")
                ends = [*range(document_tokens, count, document_tokens), count]
                documents = np.zeros(len(ends), dtype=DOCUMENT_DTYPE)
                documents["end"], documents["record"] = ends, np.arange(len(ends))
                documents["input"] = index
                np.save(directory / f"{stem}.docs.npy", documents)
                splits[split].append(
                    StratumEntry(
                        source=source,
                        stratum=name,
                        file=f"{stem}.bin",
                        dtype="uint16",
                        tokens=count,
                        documents=len(ends),
                        bytes=count * 4,
                        sha256=hashlib.sha256(drawn.tobytes()).hexdigest(),
                        documents_file=f"{stem}.docs.npy",
                    )
                )
    Manifest(
        tokenizer=TokenizerEntry(name="none", file=None, sha256=None, vocab_size=vocab, eot_id=0),
        inputs=[f"{source}.jsonl" for source in sizes],
        made_by="tests",
        **splits,
    ).write(directory)
    return directory
