"""Samples to tensors: memory-mapped slices, the next step read ahead on one thread."""

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from dograph.data.corpus import Corpus
from dograph.data.sampler import Sampler
from dograph.types import Batch, SampleIds


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
        index = {source: i for i, source in enumerate(corpus.sources)}
        self.source_S = np.array([index[s.entry.source] for s in sampler.strata])
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
