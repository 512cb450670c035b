"""DoGraph in Lightning, samples drawn by a mixture; first `dograph data prepare demo`."""

import lightning
import torch
from torch.nn.functional import cross_entropy
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from dograph import CorpusDataset, DoGraph, Mixture, MixtureSampler
from dograph.integrations.lightning import attach


class LanguageModel(lightning.LightningModule):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.model = GPT2LMHeadModel(config)

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        logits_BTV = self.model(batch["input_ids"]).logits[:, :-1]
        return cross_entropy(logits_BTV.mT, batch["input_ids"][:, 1:], reduction="none").mean(dim=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


dataset, mixture = CorpusDataset("data/demo", seq_len=64), Mixture({"code": 0.5, "tests": 0.5})
sampler = MixtureSampler(dataset, mixture, batch_size=16, steps=40)
logger = lightning.pytorch.loggers.CSVLogger("runs")
trainer = lightning.Trainer(max_steps=40, logger=logger, log_every_n_steps=5)
config = GPT2Config(vocab_size=dataset.corpus.vocab_size, n_embd=64, n_layer=2, n_head=2)
module = LanguageModel(config)
attach(trainer, module.model, DoGraph())  # the step returns one loss per sample, not their mean
trainer.fit(module, StatefulDataLoader(dataset, 16, sampler=sampler))
