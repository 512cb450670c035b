"""Samples to tensors: memory-mapped slices, the next step read ahead on one thread."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import data

from dograph.data.corpus import Corpus
from dograph.data.digests import require_unchanged
from dograph.data.sampler import Sampler, WeightLog, skipped_blocks, weight_entry
from dograph.errors import ConfigError, RunError
from dograph.types import Batch, Mixture, SampleIds


def rank_slice(num_samples: int, rank: int, world_size: int) -> slice:
    """This rank's samples of the world batch; ranks differ by at most one sample."""
    each, more = divmod(num_samples, world_size)
    start = rank * each + min(rank, more)
    return slice(start, start + each + (rank < more))


class Loader:
    """Reads the batch of any step, and the next one ahead of time."""

    def __init__(
        self,
        corpus: Corpus,
        sampler: Sampler,
        *,
        rank: int = 0,
        world_size: int = 1,
        pin: bool = False,
    ) -> None:
        self.sampler = sampler
        self.pin = pin  # in page-locked memory, from which a GPU copies without waiting
        self.rank, self.world_size = rank, world_size
        self.source_S = np.array([corpus.sources.index(source) for source in sampler.sources])
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dograph-loader")
        # with its step, and the step at which its mixture began
        self._ahead: tuple[tuple[int, int], Future[Batch]] | None = None

    def load(self, step: int, *, ahead: bool = True) -> Batch:
        """The batch of `step`; with `ahead`, step + 1 is read while the caller computes."""
        # After a change of mixture the batch that was read ahead has the wrong samples.
        wanted = (step, self.sampler.log.find(step).base_step)
        if self._ahead is not None and self._ahead[0] == wanted:
            batch = self._ahead[1].result()
        else:
            batch = self._read(self.sampler.draw(step))
        self._ahead = None
        if ahead:
            future = self._thread.submit(self._read, self.sampler.draw(step + 1))
            self._ahead = ((step + 1, self.sampler.log.find(step + 1).base_step), future)
        return batch

    def _read(self, ids: SampleIds) -> Batch:
        local = rank_slice(len(ids), self.rank, self.world_size)
        stratum_b, block_b = ids.stratum_B[local], ids.block_B[local]
        for s in set(stratum_b.tolist()):
            self.sampler.strata[s].require_whole()
        token_BT = np.empty((len(stratum_b), self.sampler.seq_len), dtype=np.int64)
        for row, (s, block) in enumerate(zip(stratum_b.tolist(), block_b.tolist(), strict=True)):
            token_BT[row] = self.sampler.strata[s].read_block(block, self.sampler.seq_len)
        token, source = torch.from_numpy(token_BT), torch.from_numpy(self.source_S[ids.stratum_B])
        if self.pin:
            token, source = token.pin_memory(), source.pin_memory()
        return Batch(token_BT=token, source_B=source, ids=ids)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)


# A corpus and a mixture for any PyTorch loader: a map-style dataset, and a sampler with a state.
#
# The sampler gives the samples of our own trainer, in its order, for the same seed and mixtures.


class CorpusDataset(data.Dataset[dict[str, "Tensor | int"]]):
    """The training blocks of a corpus: `input_ids` of `seq_len` tokens, and the index of `source`.

    Blocks are numbered stratum by stratum; `MixtureSampler` says which ones to read. Worker
    processes open the corpus again, so nothing but its name is sent to them.
    """

    def __init__(self, corpus: Corpus | Path | str, seq_len: int) -> None:
        self.corpus = corpus if isinstance(corpus, Corpus) else Corpus(corpus)
        require_unchanged(self.corpus)
        self.seq_len = seq_len
        counts = [stratum.num_blocks(seq_len) for stratum in self.corpus.train]
        self.first_S = np.cumsum([0, *counts])  # of each stratum, and the number of all blocks
        self._source_S = [self.corpus.sources.index(s.entry.source) for s in self.corpus.train]

    def __len__(self) -> int:
        return int(self.first_S[-1])

    def __getitem__(self, index: int) -> "dict[str, Tensor | int]":
        if not 0 <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        s = int(np.searchsorted(self.first_S, index, side="right")) - 1
        token_T = self.corpus.train[s].read_block(index - int(self.first_S[s]), self.seq_len)
        ids = torch.from_numpy(token_T.astype(np.int64))
        return {"input_ids": ids, "source": self._source_S[s]}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.corpus.directory, self.seq_len)


class MixtureSampler(data.Sampler[int]):
    """Indices into a `CorpusDataset`: this rank's samples of step after step, drawn by a mixture.

    A step draws `batch_size` samples for all ranks together; this rank gets `local_batch_size` of
    them. `mixture` may be a dict of mixtures by the step at which each begins, 0 among them. `skip`
    names documents that are never drawn, as `data.skip` does.
    """

    def __init__(
        self,
        dataset: CorpusDataset,
        mixture: Mixture | Mapping[int, Mixture],
        *,
        batch_size: int,
        steps: int,
        seed: int = 0,
        skip: Sequence[str] = (),
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not (isinstance(batch_size, int) and 0 <= rank < world_size <= batch_size):
            raise ConfigError(
                f"rank={rank}, world_size={world_size} and batch_size={batch_size}: ranks count "
                "from 0 to world_size - 1, and each needs a sample of every step; raise batch_size "
                "(one number, because a loader has one size)"
            )
        self.dataset, self.steps, self.world_size = dataset, steps, world_size
        self.batch_size = batch_size
        # What decides the samples of a step besides the corpus and the mixtures.
        self._fixed = dict[str, Any](seq_len=dataset.seq_len, batch_size=batch_size, seed=seed)
        self._skip = list(skip)
        self.draws = self._open_draws()
        self._local = rank_slice(batch_size, rank, world_size)
        self.local_batch_size: int = self._local.stop - self._local.start
        self.taken = 0  # samples given to the loader, which reads ahead of the training loop
        self.mixtures: dict[int, Mixture] = {}  # by their first step
        for step, later in ({0: mixture} if isinstance(mixture, Mixture) else mixture).items():
            self.remix(step, later)
        if 0 not in self.mixtures:
            raise ConfigError(f"mixtures begin at steps {sorted(self.mixtures)}; give one for 0")

    def _open_draws(self) -> Sampler:
        draws, corpus = Sampler(self.dataset.corpus.train, **self._fixed), self.dataset.corpus
        draws.skip(skipped_blocks(corpus, self._skip, self.dataset.seq_len))
        return draws

    def __len__(self) -> int:
        return self.steps * self.local_batch_size

    def __iter__(self) -> Iterator[int]:
        """From where the sampler is: a loop over the loader goes on, it does not start again."""
        while self.taken < len(self):
            step, sample = divmod(self.taken, self.local_batch_size)
            if step in self.mixtures:
                self.draws.remix(step, self.mixtures[step], "mixture")
            ids = self.draws.draw(step)
            index_B = self.dataset.first_S[ids.stratum_B] + ids.block_B
            for index in index_B[self._local].tolist()[sample:]:
                self.taken += 1
                yield index

    @property
    def next_step(self) -> int:
        """The first step of which no sample was given to the loader."""
        return -(-self.taken // self.local_batch_size)

    def remix(self, step: int, mixture: Mixture) -> None:
        """Draw from `mixture` from `step` on. All ranks must do so with the same step."""
        if step < self.next_step:
            raise RunError(
                f"a mixture for step {step} comes too late: samples of the steps before "
                f"{self.next_step} were given to the loader; choose a step from there on"
            )
        self.draws.weights_of(mixture)  # refuses unknown names now
        self.mixtures[step] = mixture

    def state_dict(self, step: int | None = None, sample: int = 0) -> dict[str, Any]:
        """The state after `step` steps and `sample` samples of this rank; by default, as it is.

        A loader with workers reads ahead: count the steps of the loop and give them here, or use
        a StatefulDataLoader, which takes its own samples in flight into account.
        """
        if step is None:
            step, sample = divmod(self.taken, self.local_batch_size)
        if step * self.local_batch_size + sample > self.taken:
            raise RunError(
                f"step {step}, sample {sample} is ahead of the {self.taken} samples that the "
                "loader has taken; give the number of whole steps of the loop"
            )
        entries = [self.draws.log.find(step)] if self.draws.log.entries else []
        return {
            "corpus": self.dataset.corpus.digest,
            **self._fixed,
            "skip": self._skip,
            "step": step,
            "sample": sample,
            "world_size": self.world_size,
            "weights": WeightLog(self.draws.names, entries).dump(),
            "mixtures": {str(s): dict(m.weights) for s, m in self.mixtures.items() if s >= step},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a state; between steps with any number of ranks."""
        fixed = {"corpus": self.dataset.corpus.digest, "skip": self._skip, **self._fixed}
        for name, value in fixed.items():
            if (old := state.get(name, [])) != value:  # no skip in states of before
                raise RunError(f"the state has {name}={old}, not {value}; use the old one")
        if state["sample"] and state["world_size"] != self.world_size:
            raise RunError(
                f"the state is inside step {state['step']} on {state['world_size']} ranks, and "
                f"there are {self.world_size}; use as many, or a state between steps"
            )
        self.taken = state["step"] * self.local_batch_size + state["sample"]
        self.draws = self._open_draws()  # without its cache
        rows = [json.loads(line) for line in state["weights"].splitlines()]
        self.draws.log = WeightLog(self.draws.names, [weight_entry(row)[1] for row in rows])
        self.mixtures = {int(s): Mixture(weights) for s, weights in state["mixtures"].items()}
