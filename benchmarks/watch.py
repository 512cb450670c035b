"""Planted bad documents and the watch, on a CPU: python -m benchmarks.watch

The demo corpus with 1 % of its text in documents of one to three short words that are repeated for
1,500 characters. A tiny model trains on it with equal weights (mixer natural) and train.on_spike=
warn, once in each mode: the gradients are the same up to rounding, so the modes see the same run.
A sample is planted if at least half of its tokens are of such a document, clean if none are; the
first 20 steps are left out.
"""

import argparse
import json
import random
import re
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks import measure
from dograph.config import resolve_config
from dograph.data.corpus import Corpus
from dograph.data.embedded import demo_documents
from dograph.data.inputs import PrepareOptions
from dograph.data.pipeline import prepare
from dograph.train.distributed import World
from dograph.train.trainer import start_run
from dograph.train.watch import LEAST, TIMES
from dograph.types import SampleIds

SHARE, CHARACTERS, WORDS = 0.01, 1500, 3
SETTINGS = ("model.preset=tiny", "mixer.name=natural", "train.on_spike=warn", "sketch.top_blocks=1")


def plant(folder: Path) -> tuple[Path, dict[str, set[int]]]:
    """A corpus and, by source, the lines of its planted documents."""
    rng, sources = random.Random(0), dict[str, list[str]]()
    for source, text in demo_documents():
        sources.setdefault(source, []).append(text)
    lines: dict[str, set[int]] = {}
    for source, texts in sources.items():
        some = " ".join(rng.sample(texts, min(50, len(texts))))
        words, left = re.findall(r"\b[A-Za-z]{2,6}\b", some), SHARE * sum(map(len, texts))
        rows = [(text, False) for text in texts]
        while left > 0:
            num = rng.randint(1, WORDS)
            at = rng.randrange(len(words) - num)
            gram = " ".join(words[at : at + num]) + " "
            rows.append((gram * (CHARACTERS // len(gram) + 1), True))
            left -= len(rows[-1][0])
        rng.shuffle(rows)
        text = "".join(json.dumps({"text": text}) + "\n" for text, _ in rows)
        (folder / f"{source}.jsonl").write_text(text)
        lines[source] = {i for i, (_, is_planted) in enumerate(rows) if is_planted}
    inputs = tuple(f"{source}={folder / source}.jsonl" for source in sources)
    prepare(PrepareOptions(inputs=inputs, out=folder / "corpus"))
    return folder / "corpus", lines


def planted_share(corpus: Corpus, ids: SampleIds, row: int, length: int, lines: set[int]) -> float:
    """The part of a sample's tokens that is of planted documents."""
    documents, first = corpus.train[ids.stratum_B[row]].documents, int(ids.block_B[row]) * length
    end_D, number, at = documents["end"], int(ids.document_B[row]), first
    planted = 0
    while at < first + length:
        end = min(int(end_D[number]), first + length)
        planted += (end - at) * (int(documents["record"][number]) in lines)
        at, number = end, number + 1
    return planted / length


def run(corpus: Path, lines: dict[str, set[int]], mode: str, steps: int) -> dict[str, object]:
    """One run: how well planted samples are found, and the noise scale at its end."""
    with tempfile.TemporaryDirectory() as name:
        own = [f"data.corpus={corpus}", f"run={name}/run", f"train.steps={steps}"]
        config = resolve_config(None, [*own, *SETTINGS, f"sketch.mode={mode}"])
        trainer = start_run(config, World(rank=0, size=1, device=torch.device("cpu")))
        loader, tables, planted = trainer.open_loader(), [], []
        for step in range(steps):
            ids = trainer.state.sampler.draw(step)
            watched = trainer.advance(loader).watched
            assert watched is not None
            sources = [trainer.corpus.train[s].entry.source for s in ids.stratum_B]
            given = [(trainer.corpus, ids, i, config.data.seq_len) for i in range(len(ids))]
            shares = zip(given, sources, strict=True)
            planted.append([planted_share(*own, lines[source]) for own, source in shares])
            tables.append(watched.table_B3.numpy())
        loader.close()
    ratio_NB, share_NB, loss_NB = np.moveaxis(np.stack(tables)[LEAST:], 2, 0)
    planted_NB = np.array(planted)[LEAST:]
    is_planted_NB, is_clean_NB = planted_NB >= 0.5, planted_NB == 0
    found_n, clean_n = ratio_NB[is_planted_NB], ratio_NB[is_clean_NB]
    with_N = is_planted_NB.any(axis=1)
    first_n = is_planted_NB[with_N, share_NB[with_N].argmax(axis=1)]
    return {
        "planted_samples": int(is_planted_NB.sum()),
        "clean_samples": int(is_clean_NB.sum()),
        f"recall_at_{TIMES:g}_medians": float((found_n > TIMES).mean()),
        f"false_at_{TIMES:g}_medians": float((clean_n > TIMES).mean()),
        "recall_at_half_percent_false": float((found_n > np.quantile(clean_n, 0.995)).mean()),
        "steps_with_planted": int(with_N.sum()),
        "planted_first_by_share": float(first_n.mean()),
        "auc_of_norm": float((found_n[:, None] > clean_n).mean()),
        "auc_of_loss": float((loss_NB[is_planted_NB][:, None] > loss_NB[is_clean_NB]).mean()),
        "noise": dict(trainer.noise.report()),
    }


def main(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        corpus, lines = plant(Path(name))
        modes = {mode: run(corpus, lines, mode, args.steps) for mode in args.modes}
    facts = {"steps": args.steps, "settings": SETTINGS, "planted": sum(map(len, lines.values()))}
    measure.write("watch", "python -m benchmarks.watch", facts, modes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--modes", nargs="+", default=["full", "topdown", "head"])
    main(parser.parse_args())
