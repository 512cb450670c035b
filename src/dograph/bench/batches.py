"""What the arms are fed: random tokens, or a prepared corpus as the trainer reads it.

Shapes: B samples, T tokens, V vocabulary.
"""

from collections.abc import Callable

import numpy as np
import torch

from dograph.bench.options import BenchOptions
from dograph.data.corpus import Corpus
from dograph.data.loader import Loader
from dograph.data.sampler import Sampler
from dograph.errors import ConfigError
from dograph.rng import stream
from dograph.types import Batch, Mixture, SampleIds

Batches = Callable[[int], Batch]  # by step
NUM_BATCHES = 4  # random ones that take turns


def open_batches(options: BenchOptions, device: torch.device) -> Batches:
    """The batch of every step, the same for all arms."""
    on_gpu = device.type == "cuda"
    if options.corpus is None:
        made = [random_batch(options, i, pin=on_gpu) for i in range(NUM_BATCHES)]
        return lambda step: made[step % NUM_BATCHES]
    corpus = Corpus(options.corpus)
    if corpus.vocab_size > options.vocab_size:
        raise ConfigError(
            f"{options.corpus} has a vocabulary of {corpus.vocab_size}, more than "
            f"--vocab-size {options.vocab_size}; raise that"
        )
    sampler = Sampler(
        corpus.train, seq_len=options.seq_len, batch_size=options.batch, seed=options.seed
    )
    tokens = {name: float(count) for name, count in corpus.tokens_by_source().items()}
    sampler.remix(0, Mixture.normalised(tokens), "plan")
    loader = Loader(corpus, sampler, pin=on_gpu)
    # Read before it is timed: that a loader keeps up is another question.
    drawn = [loader.load(step, ahead=False) for step in range(4 * NUM_BATCHES)]
    loader.close()
    return lambda step: drawn[step % len(drawn)]


def random_batch(options: BenchOptions, number: int, *, pin: bool) -> Batch:
    """Tokens drawn as words are, p ~ 1 / (rank + 2.7): adding rows of an embedding meets itself."""
    draw = stream(options.seed, "bench tokens", number)
    share_V = 1 / (np.arange(options.vocab_size) + 2.7)
    shape = (options.batch, options.seq_len)
    token_BT = torch.from_numpy(
        draw.choice(options.vocab_size, size=shape, p=share_V / share_V.sum())
    )
    source_B = torch.zeros(options.batch, dtype=torch.int64)
    if pin:
        token_BT, source_B = token_BT.pin_memory(), source_B.pin_memory()
    zero_B = np.zeros(options.batch, dtype=np.int64)
    ids = SampleIds(zero_B, zero_B, zero_B, zero_B, zero_B)
    return Batch(token_BT=token_BT, source_B=source_B, ids=ids)
