"""LitGPT: a data module, since none of LitGPT's own takes a mixture.

LitGPT 0.5.13 takes any importable subclass of `litgpt.data.DataModule` as `data` of its pretrain
command; its LitData reads one folder, and TinyLlama's two have weights written into the code.
Checked with LitGPT 0.5.13's own parser and litdata 0.2.76.
"""

from collections.abc import Mapping

from dograph.mixtures.export import comments, printed
from dograph.mixtures.litdata import MEANING, streams, tables


def export_litgpt(mixture: Mapping[str, float], places: Mapping[str, str]) -> str:
    """A Python module with the data module `Mixture`."""
    head = comments(
        mixture,
        places,
        (
            """LitGPT: a data module of a mixture. Save it as mixture_data.py where you start,
            then: PYTHONPATH=. litgpt pretrain MODEL --data mixture_data.Mixture""",
            """or in the configuration: data: {class_path: mixture_data.Mixture, init_args:
            {val_path: data/validation}}""",
            MEANING,
        ),
    )
    return f"{head}{_IMPORTS}\n{tables(printed(mixture), places)}\n{_CLASS}"


_IMPORTS = """from dataclasses import dataclass, field
from typing import Optional

from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset, TokensLoader
from litgpt.data import DataModule
from litgpt.tokenizer import Tokenizer
"""

_CLASS = f'''
@dataclass
class Mixture(DataModule):
    """Draws from the folders in PLACES with WEIGHTS."""

    val_path: str = "data/validation"
    seed: int = 42
    num_workers: int = 8
    batch_size: int = field(init=False, repr=False, default=1)
    seq_length: int = field(init=False, repr=False, default=2048)

    def __post_init__(self) -> None:
        super().__init__()

    def connect(
        self,
        tokenizer: Optional[Tokenizer] = None,
        batch_size: int = 1,
        max_seq_length: Optional[int] = None,
    ) -> None:
        self.batch_size = batch_size
        self.seq_length = (max_seq_length or 2048) + 1  # the next token as well

    def train_dataloader(self) -> StreamingDataLoader:
        dataset = CombinedStreamingDataset(
{streams("self.seq_length", "self.seed", 12)}\
            weights=list(WEIGHTS.values()),
            seed=self.seed,
            iterate_over_all=False,
        )
        return self._loader(dataset)

    def val_dataloader(self) -> StreamingDataLoader:
        loader = TokensLoader(block_size=self.seq_length)
        return self._loader(StreamingDataset(self.val_path, item_loader=loader))

    def _loader(self, dataset) -> StreamingDataLoader:
        return StreamingDataLoader(
            dataset,
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            pin_memory=True,
            drop_last=True,
        )
'''
