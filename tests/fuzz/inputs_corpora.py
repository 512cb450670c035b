"""Damaged corpora: `data verify` sees every change, and no run starts on what has changed."""

import random
import shutil
from functools import cache
from pathlib import Path

import numpy as np

from dograph.data.digests import DIGESTS
from fuzz import bases
from fuzz.harness import command, register

LARGE_TOKENS = 400_000  # more than the pages that are sampled at every start
Case = tuple[str, str, int]


@cache
def tokens_elsewhere() -> Path:
    """A corpus over a token file of another tool, which stays outside of its folder."""
    place = bases.folder() / "elsewhere"
    place.mkdir()
    token_N = np.random.default_rng(3).integers(0, 500, LARGE_TOKENS).astype(np.uint16)
    token_N[::97] = 0
    token_N.tofile(place / "tokens.bin")
    command(
        *("data", "prepare", place / "tokens.bin", "--out", place / "corpus"),
        *("--eot", 0, "--vocab-size", 500),
        allowed=(0,),
    )
    return place


def files(rng: random.Random) -> Case:
    kind = "large" if rng.random() < 0.2 else "small"
    base = bases.corpus() if kind == "small" else tokens_elsewhere()
    return kind, rng.choice(bases.files_of(base)), rng.getrandbits(32)


def read_corpus(case: Case, folder: Path) -> None:
    kind, name, seed = case
    if kind == "large":  # in place, because the manifest has the absolute name of the tokens
        base = tokens_elsewhere()
        before = (base / name).read_bytes()
        try:
            is_changed = bases.damage(base / name, seed)
            verify(base / "corpus", is_changed)
        finally:
            (base / name).write_bytes(before)
        return
    corpus = bases.copied(bases.corpus(), folder / "corpus")
    is_lost = (
        seed % 20 == 0 and name != DIGESTS
    )  # runs start without it, as on older versions' corpora
    if is_lost:
        (corpus / name).unlink()
    is_changed = is_lost or bases.damage(corpus / name, seed)
    verify(corpus, is_changed)
    if seed % 4 == 0:
        run = shutil.copytree(bases.stopped_run(), folder / "run", symlinks=True)
        config = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(config.replace(str(bases.corpus()), str(corpus)))
        ending = command("train", "--resume", run, allowed=(2,) if is_changed else (0,))
        assert not is_changed or str(corpus) in ending.err


def verify(corpus: Path, is_changed: bool) -> None:
    command("data", "verify", corpus, allowed=(1, 2) if is_changed else (0,))


register("corpora", files, read_corpus, share=3)
