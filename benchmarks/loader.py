"""Sampler and loader on one core: python -m benchmarks.loader."""

import argparse
import os

import torch

from benchmarks import measure
from dograph.data.corpus import Corpus
from dograph.data.loader import Loader
from dograph.data.pipeline import ensure_corpus
from dograph.data.sampler import Sampler
from dograph.types import Mixture

STEPS = 10


def main(blocks: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    corpus = Corpus(ensure_corpus("demo"))
    result = {}
    for batch, seq_len in ((48, 512), (16, 256), (64, 2048)):
        sampler = Sampler(corpus.train, seq_len=seq_len, batch_size=batch, seed=0)
        tokens = {name: float(n) for name, n in corpus.tokens_by_source().items()}
        sampler.remix(0, Mixture.normalised(tokens), "plan")
        loader = Loader(corpus, sampler)
        step = iter(range(10**9))

        def load(loader: Loader = loader, step: object = step) -> None:
            loader.load(next(step), ahead=False)  # type: ignore[call-overload]

        load()
        seconds = measure.interleave({"load": load}, blocks, STEPS)["load"]
        rates = [batch * seq_len / s / 1e6 for s in seconds]
        result[f"{batch}x{seq_len}"] = measure.median_interval(rates)
        loader.close()
    measure.write(
        "loader",
        f"python -m benchmarks.loader --blocks {blocks}",
        {"cores": 1, "corpus": "demo", "unit": "million tokens per second"},
        {**result, "target": "at least 5 for 48x512"},
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=30)
    main(parser.parse_args().blocks)
