"""The batches of `dograph bench`, from random tokens."""

import tempfile
from pathlib import Path

import torch

from dograph.bench.arms import open_batches, open_corpus


def batches_of(options):
    with tempfile.TemporaryDirectory() as folder:
        corpus = open_corpus(options, Path(folder))
        return open_batches(options, corpus, torch.device("cpu"))
