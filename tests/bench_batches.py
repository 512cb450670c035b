"""Batches of random tokens for the arms of benchmarks.rivals."""

import numpy as np
import torch

from dograph.rng import stream
from dograph.types import Batch, SampleIds


def batches_of(options):
    num, length = options.run.train.batch_size, options.run.data.seq_len

    def batch(step):
        draw = stream(0, "tokens of a test", step)
        token_BT = torch.from_numpy(draw.integers(options.vocab_size, size=(num, length)))
        ids = SampleIds(*[np.zeros(num, dtype=np.int64)] * 5)
        return Batch(token_BT=token_BT, source_B=torch.zeros(num, dtype=torch.int64), ids=ids)

    return batch
