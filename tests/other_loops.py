"""The same training in Lightning, in accelerate and by hand; also run by torchrun as a script.

    torchrun --nproc-per-node 2 tests/other_loops.py CORPUS FOLDER

Shapes: B samples, T tokens.
"""

import logging
import os
import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

import lightning
from accelerate import Accelerator
from lightning.pytorch.callbacks import ModelCheckpoint
from torchdata.stateful_dataloader import StatefulDataLoader

from dograph import CorpusDataset, DoGraph, Mixture, MixtureSampler, Sketcher
from dograph.integrations.lightning import attach
from trainers import DIM, LENGTH, RATE, build, losses, parameters

STEPS, BATCH, SAVED = 14, 8, 11  # domains are known from step 10 on
MODES = ("full", "twopass", "head")

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
warnings.filterwarnings("ignore", message=".*deprecated.*")


class Kept(DoGraph):
    """Keeps the weights of every step."""

    def __init__(self, recipe="safe"):
        super().__init__(
            recipe, num_domains=3, warmup_steps=1, objective={"name": "precision", "q": 4.0}
        )
        self.given = []

    def weigh(self, signals):
        self.given.append(super().weigh(signals))
        return self.given[-1]


def open_loader(corpus, rank=0, world_size=1):
    dataset = CorpusDataset(corpus, seq_len=LENGTH)
    mixture = Mixture({"alpha": 0.5, "beta": 0.25, "gamma": 0.25})
    sampler = MixtureSampler(
        dataset, mixture, batch_size=BATCH, steps=STEPS, rank=rank, world_size=world_size
    )
    return StatefulDataLoader(dataset, sampler.local_batch_size, sampler=sampler)


class Module(lightning.LightningModule):
    """Keeps the gradient of every step."""

    def __init__(self, seed=0, **options):
        super().__init__()
        self.model, self.gradients = build(seed=seed, **options), []

    def training_step(self, batch, batch_idx):
        token_BT = batch["input_ids"]
        return losses(self.model(token_BT).logits, token_BT)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=RATE)

    def on_before_optimizer_step(self, optimizer):
        self.gradients.append({n: p.grad.clone() for n, p in self.model.named_parameters()})


def make_trainer(**settings):
    settings = {
        "max_steps": STEPS,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": "callbacks" in settings,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "use_distributed_sampler": False,
        **settings,
    }
    return lightning.Trainer(**settings)


def fit(corpus, folder=None, *, mode="full", resume=None, seed=0, **settings):
    """A module trained by Lightning, and its mixer; with a checkpoint in `folder`."""
    if folder is not None:
        saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=SAVED, save_top_k=-1)
        settings["callbacks"] = [saving]
    module, mixer, trainer = Module(seed), Kept(), make_trainer(**settings)
    attach(trainer, module.model, mixer, mode=mode, dim=DIM)
    trainer.fit(
        module, open_loader(corpus, trainer.global_rank, trainer.world_size), ckpt_path=resume
    )
    return module, mixer


def accelerated(corpus, folder=None, *, resume=False, seed=0):
    """A model trained in a loop of accelerate, with the gradients and weights of every step."""
    accelerator, model, mixer = Accelerator(cpu=True), build(seed=seed), Kept()
    loader = open_loader(corpus, accelerator.process_index, accelerator.num_processes)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    sketcher, gradients = Sketcher(wrapped, dim=DIM), []
    accelerator.register_for_checkpointing(mixer, loader.sampler)
    if resume:
        accelerator.load_state(str(folder))
    for step, batch in enumerate(loader, start=loader.sampler.next_step):
        token_BT = batch["input_ids"]
        with sketcher.record(token_BT, step):
            sketcher.backward(losses(wrapped(token_BT).logits, token_BT), mixer)
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 == SAVED and folder is not None and not resume:
            accelerator.save_state(str(folder))
    return model, mixer, gradients


def by_hand(corpus, mode="full"):
    """The same without any library: a gradient per sample, and an ordinary weighted backward."""
    model, mixer = build(), Kept()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    sketcher, gradients = Sketcher(model, mode="reference", dim=DIM), []
    if mode == "head":
        sketcher = Sketcher(model, mode="head", dim=DIM)
    for step, batch in enumerate(open_loader(corpus)):
        token_BT = batch["input_ids"]
        with sketcher.record(token_BT, step):
            weight_B = mixer.weigh(sketcher.signals(losses(model(token_BT).logits, token_BT)))
        (weight_B * losses(model(token_BT).logits, token_BT)).sum().backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()
    return model, mixer, gradients


def main(corpus, folder):
    """On every rank: each loop, and from its checkpoint again; rank 0 writes what was found."""
    world = int(os.environ["WORLD_SIZE"])
    found = {}
    for mode in MODES:
        saved = folder / mode
        settings = {"mode": mode, "devices": world, "strategy": "ddp"}
        module, mixer = fit(corpus, saved, **settings)
        found[mode] = parameters(module.model), mixer.given, module.gradients
        path = saved / f"step={SAVED}.ckpt"
        module, mixer = fit(corpus, resume=path, seed=5, **settings)
        found[f"{mode}, resumed"] = parameters(module.model), mixer.given, module.gradients
    model, mixer, gradients = accelerated(corpus, folder / "accelerate")
    found["accelerate"] = parameters(model), mixer.given, gradients
    model, mixer, gradients = accelerated(corpus, folder / "accelerate", resume=True, seed=5)
    found["accelerate, resumed"] = parameters(model), mixer.given, gradients
    if torch.distributed.get_rank() == 0:
        torch.save(found, folder / "found.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
