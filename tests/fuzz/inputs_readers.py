"""Text and tokens in every format that `data prepare` reads."""

import random
import struct
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

from fuzz import bases
from fuzz.harness import command, damaged, register
from text_inputs import COMPRESS, lines, read_back, text

TEXTS = [text(n, 20) for n in range(30)]
# Kinds whose content is protected by a checksum: what is accepted is what was written.
CHECKED = ("a.jsonl.gz", "a.jsonl.xz", "a.jsonl.zst")
Case = tuple[str, int, str]


def megatron(documents: list[list[int]]) -> tuple[bytes, bytes]:
    """NAME.bin and NAME.idx, written by the book."""
    lengths = [len(one) for one in documents]
    offsets = np.cumsum([0, *lengths[:-1]]) * 2
    index = b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, 8)
    index += struct.pack("<QQ", len(documents), len(documents) + 1)
    index += np.array(lengths, "<i4").tobytes() + offsets.astype("<i8").tobytes()
    index += np.arange(len(documents) + 1, dtype="<i8").tobytes()
    return np.concatenate(documents).astype("<u2").tobytes(), index


@cache
def inputs() -> dict[str, dict[str, bytes]]:
    """Good files by kind: the first one of a kind is damaged, or the second."""
    content = lines([{"text": one, "meta": {"name": "web"}} for one in TEXTS])
    table = pyarrow.table({"text": TEXTS, "n": list(range(len(TEXTS)))})
    path = bases.folder() / "a.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=10, write_page_checksum=True)
    rng = np.random.default_rng(5)
    tokens = [[*rng.integers(1, 250, 40).tolist(), 0] for _ in range(30)]
    flat, index = megatron(tokens)
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(flat) // 2
    kinds = {f"a.jsonl{suffix}": {"": pack(content)} for suffix, pack in COMPRESS.items()}
    kinds |= {"a.parquet": {"": path.read_bytes()}}
    kinds |= {"texts": {f"web/{n}.txt": one.encode() for n, one in enumerate(TEXTS[:8])}}
    kinds |= {"a.bin": {"": flat, "a.idx": index}, "n.bin": {"": flat}}
    kinds |= {"llmc.bin": {"": header.tobytes() + flat}}
    return kinds


def cases(rng: random.Random) -> Case:
    """A kind of input, a seed of the damage, what is done with bad records."""
    return rng.choice(list(inputs())), rng.getrandbits(32), rng.choice(("refuse", "repair"))


def prepare(case: Case, folder: Path) -> None:
    kind, seed, bad_records = case
    rng = random.Random(seed)
    files = dict(inputs()[kind])
    which = rng.choice(list(files))
    files[which] = damaged(rng, files[which])
    for name, content in files.items():
        path = folder / (kind if not name else f"texts/{name}" if kind == "texts" else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    options = ["--eot", 0, "--vocab-size", 300] if kind.endswith("bin") else []
    if not options:
        options = ["--tokenizer", bases.tokenizer(), "--bad-records", bad_records]
    ending = command("data", "prepare", folder / kind, "--out", "out", "--workers", 1, *options)
    if ending.code == 0:
        command("data", "verify", "out", allowed=(0,))
        if "--tokenizer" in options:
            kept = [one for texts in read_back(folder / "out").values() for one in texts]
            if kind in CHECKED and bad_records == "refuse":
                assert set(kept) <= set(TEXTS), "damaged text was accepted"
        else:
            check_tokens(folder / "out")


def check_tokens(out: Path) -> None:
    """Every token of the corpus can be read: none is outside of the vocabulary."""
    from dograph.data.corpus import Corpus

    corpus = Corpus(out)
    for stratum in (*corpus.train, *corpus.validation):
        assert len(stratum.documents) == stratum.entry.documents
        for block in range(stratum.num_blocks(16)):
            stratum.read_block(block, 16)


register("readers", cases, prepare, share=4)
