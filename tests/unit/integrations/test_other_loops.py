"""A mixer in Lightning and in a loop of accelerate, beside the same training written by hand."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import lightning
import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from corpora import write_corpus
from dograph import DoGraph, Sketcher
from dograph.errors import ConfigError, RunError
from dograph.integrations.lightning import attach
from dograph.mixers.base import Mixer
from dograph.mixers.fixed import Uniform
from other_loops import (
    BATCH,
    MODES,
    SAVED,
    STEPS,
    Kept,
    Module,
    accelerated,
    by_hand,
    fit,
    make_trainer,
    open_loader,
)
from trainers import DIM, VOCABULARY, build, furthest, losses, parameters


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"), vocab=VOCABULARY)


def assert_same(found, expected):
    """Gradients, weights of samples and parameters of every step, to 1e-6."""
    model, mixer, gradients = expected
    num = len(found[2])
    assert furthest(found[0], parameters(model)) < 1e-6
    for one, other in zip(found[1], mixer.given[-num:], strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-6)
    for one, other in zip(found[2], gradients[-num:], strict=True):
        assert furthest(one, other) < 1e-6
    assert (BATCH * found[1][-1] - 1).abs().max() > 0.1  # weights that are not equal


@pytest.mark.parametrize("mode", MODES)
def test_lightning_trains_as_a_loop_by_hand(corpus, mode):
    module, mixer = fit(corpus, mode=mode)
    assert_same((parameters(module.model), mixer.given, module.gradients), by_hand(corpus, mode))
    assert len(mixer.given) == STEPS
    assert {"training_step", "backward"}.isdisjoint(vars(module))


def test_accelerate_trains_as_a_loop_by_hand(corpus):
    model, mixer, gradients = accelerated(corpus)
    assert_same((parameters(model), mixer.given, gradients), by_hand(corpus))


def test_lightning_resumes_to_the_bit(corpus, tmp_path):
    """Loader, optimizer and mixer come from one checkpoint."""
    whole, _ = fit(corpus, tmp_path)
    again, mixer = fit(corpus, resume=tmp_path / f"step={SAVED}.ckpt", seed=5)
    assert len(mixer.given) == STEPS - SAVED
    assert furthest(parameters(again.model), parameters(whole.model)) == 0.0


def test_accelerate_resumes_to_the_bit(corpus, tmp_path):
    whole, *_ = accelerated(corpus, tmp_path / "saved")
    again, mixer, _ = accelerated(corpus, tmp_path / "saved", resume=True, seed=5)
    assert len(mixer.given) == STEPS - SAVED
    assert furthest(parameters(again), parameters(whole)) == 0.0


def test_a_loss_scaler_of_accelerate_stops_before_the_first_update(corpus):
    """What mixed_precision="fp16" makes on a GPU: no loss was scaled."""
    Accelerator(cpu=True)
    model, scaler = build(), torch.amp.GradScaler("cpu")
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = AcceleratedOptimizer(plain, device_placement=False, scaler=scaler)
    before, token_BT = parameters(model), next(iter(open_loader(corpus)))["input_ids"]
    sketcher = Sketcher(model, dim=DIM)
    with sketcher.record(token_BT):
        sketcher.backward(losses(model(token_BT).logits, token_BT), Kept())
    with pytest.raises(AssertionError, match="_scale is None"):
        optimizer.step()
    assert furthest(parameters(model), before) == 0


@pytest.mark.slow
def test_two_processes_train_and_resume_as_one_by_hand(corpus, tmp_path):
    """Lightning's DDP in every mode, and accelerate."""
    script = Path(__file__).parents[2] / "other_loops.py"
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [sys.executable, *launch, str(script), str(corpus), str(tmp_path)],
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=280,
    )
    found = torch.load(tmp_path / "found.pt", weights_only=False)
    for name in (*MODES, "accelerate"):
        expected = by_hand(corpus, "head" if name == "head" else "full")
        assert_same(found[name], expected)
        assert_same(found[f"{name}, resumed"], expected)
        assert len(found[f"{name}, resumed"][1]) == STEPS - SAVED
        assert furthest(found[f"{name}, resumed"][0], found[name][0]) == 0.0


class Log(lightning.pytorch.loggers.Logger):
    name, version = "kept", 0

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, metrics))

    def log_hyperparams(self, *args, **kwargs):
        pass


def test_the_log_gets_the_summary_of_the_mixer(corpus):
    log = Log()
    fit(corpus, logger=log, log_every_n_steps=5)
    rows = [(step, row) for step, row in log.rows if "loss/unweighted" in row]
    assert [step for step, _ in rows] == [5, 10]
    assert 1 < rows[-1][1]["weights/effective_samples"] <= BATCH * 1.0001
    assert all(isinstance(value, float) for _, row in rows for value in row.values())


def test_batches_of_other_forms_and_extra_outputs(corpus):
    """Tuples, sources for the mixer; the step's own results are kept."""

    class Triples(Module):
        def training_step(self, batch):  # without the index
            token_BT, target_BT, _ = batch
            loss_B = cross_entropy(self.model(token_BT).logits.mT, target_BT, reduction="none")
            return {"loss": loss_B.mean(dim=1), "own": 7}

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.outputs = outputs

    class Sourced(Mixer):
        needs = frozenset({"source"})

        def weigh(self, signals):
            self.source_B = signals.source_B
            return super().weigh(signals)

    token_BT = [batch["input_ids"] for batch in open_loader(corpus)]
    batches = [(x[:, :-1], x[:, 1:], x[:, 0] % 3) for x in token_BT]
    module, mixer, trainer = Triples(), Sourced(), make_trainer(max_steps=2)
    attach(trainer, module.model, mixer, dim=DIM, tokens=0, sources=2)
    trainer.fit(module, DataLoader(batches, batch_size=None))
    assert module.outputs["own"] == 7
    assert module.outputs["loss"].dim() == 0
    assert torch.equal(mixer.source_B, batches[1][2])
    trainer = make_trainer(max_steps=2)
    attach(trainer, module.model, mixer, dim=DIM, tokens=3, sources=2)
    with pytest.raises(ConfigError, match="the batch has no 3, only a list"):
        trainer.fit(module, DataLoader(batches, batch_size=None))


def test_autocast_does_not_reach_the_weights(corpus):
    """Under bf16-mixed the model rounds, but distances between sketches do not."""
    seen = []

    class Looking(Mixer):
        needs = frozenset({"sketch"})

        def weigh(self, signals):
            seen.append((signals.sketch_BK.dtype, torch.is_autocast_enabled("cpu")))
            return super().weigh(signals)

    module, trainer = Module(), make_trainer(max_steps=2, precision="bf16-mixed")
    attach(trainer, module.model, Looking(), dim=DIM)
    trainer.fit(module, open_loader(corpus))
    assert seen == [(torch.float32, False)] * 2


class Backward(Module):
    def backward(self, loss):
        loss.backward()


class Second(Module):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(2, 2)


class Memory(Module):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.model.parameters())


class Several(Module):
    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]


class Endless(Module):
    def on_fit_start(self):
        self.trainer.fit_loop.epoch_loop.max_steps, self.trainer.fit_loop.max_epochs = -1, -1


class Mean(Module):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx).mean()


class Growing(Module):
    """Accumulates in the middle of a run."""

    def configure_callbacks(self):
        return [lightning.pytorch.callbacks.GradientAccumulationScheduler({0: 2})]


def with_manual(module):
    module.automatic_optimization = False
    return module


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (lambda: with_manual(Module()), "automatic_optimization=False; use Sketcher in it"),
        (Backward, "Backward has a backward of its own"),
        (Second, r"\['other.weight', 'other.bias'\] of Second are trained, but not part"),
        (Memory, r"optimizers \['LBFGS'\]: use one that runs"),
        (Several, "multiple optimizers is only supported with manual optimization"),
        (Endless, "the run has no end"),
        (Mean, r"one loss for each of the 8 recorded samples, got shape \(\)"),
        (Growing, "runs a second time before update 1"),
    ],
)
def test_modules_whose_updates_are_not_one_weighted_loss_are_refused(corpus, module, said):
    module, trainer = module(), make_trainer()
    before = parameters(module.model)
    attach(trainer, module.model, Kept(), dim=DIM)
    with pytest.raises((ConfigError, RuntimeError), match=said):
        trainer.fit(module, open_loader(corpus))
    assert furthest(parameters(module.model), before) == 0
    assert "training_step" not in vars(module)
    assert not any("forward" in vars(layer) for layer in module.model.modules())  # no taps left


class Referring(Mixer):
    needs = frozenset({"reference_loss"})


@pytest.mark.parametrize(
    ("settings", "mixer", "said"),
    [
        ({"accumulate_grad_batches": 2}, Kept, "accumulate_grad_batches=2: each micro-batch"),
        ({"precision": "16-true"}, Kept, "precision=16-true: sketches underflow"),
        ({"strategy": "fsdp"}, Kept, "strategy FSDPStrategy shards or moves parameters"),
        ({}, Uniform, "Uniform decides what to draw"),
        ({}, Referring, "Referring needs"),
        ({}, lambda: DoGraph(keep_source_shares=True), "needs the source of every sample"),
    ],
)
def test_trainers_and_mixers_that_do_not_fit_are_refused(monkeypatch, settings, mixer, said):
    strategy = settings.pop("strategy", None) if "strategy" in settings else None
    trainer = make_trainer(**settings)
    if strategy:  # needs a GPU to be made by the Trainer
        fsdp = lightning.pytorch.strategies.FSDPStrategy()
        monkeypatch.setattr(trainer._accelerator_connector, "strategy", fsdp)
    with pytest.raises(ConfigError, match=said):
        attach(trainer, build(), mixer())


def test_a_second_mixer_and_another_trainer_are_refused():
    trainer = make_trainer()
    attach(trainer, build(), Kept())
    with pytest.raises(ConfigError, match="has a mixer attached already"):
        attach(trainer, build(), Kept())
    scaled = make_trainer()
    plugin = lightning.pytorch.plugins.MixedPrecision("16-mixed", "cpu")
    scaled.strategy.precision_plugin = plugin
    with pytest.raises(ConfigError, match="a loss scaler does not reach the gradients"):
        attach(scaled, build(), Kept())


def test_a_checkpoint_without_the_mixer_is_refused(corpus, tmp_path):
    plain = make_trainer(max_steps=2)

    class Plain(Module):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx).mean()

    plain.fit(Plain(), open_loader(corpus))
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.raises(RunError, match="goes on at step 2, but the checkpoint has no state"):
        fit(corpus, resume=tmp_path / "plain.ckpt")


def test_both_packages_of_lightning(corpus):
    """`pytorch_lightning` is a copy with classes of its own."""
    other = pytest.importorskip("pytorch_lightning")

    module = other.LightningModule()
    module.model = build()
    module.training_step = partial(Module.training_step, module)
    module.configure_optimizers = partial(Module.configure_optimizers, module)
    trainer = other.Trainer(
        max_steps=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    mixer = Kept()
    attach(trainer, module.model, mixer, dim=DIM)
    trainer.fit(module, open_loader(corpus))
    assert len(mixer.given) == 2


def test_another_kind_of_trainer_is_refused():
    with pytest.raises(ConfigError, match="Linear is not a Trainer of lightning"):
        attach(nn.Linear(1, 1), build(), Kept())
