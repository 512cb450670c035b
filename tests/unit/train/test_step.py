"""The step against a loop that anybody would write by hand."""

import math
from dataclasses import replace

import pytest
import torch

from corpora import write_corpus
from dograph.config import resolve_config
from dograph.data.corpus import Corpus
from dograph.data.loader import Loader
from dograph.errors import ConfigError
from dograph.mixers.base import Mixer
from dograph.mixers.registry import build_mixer
from dograph.train.assembly import CorpusLab, open_model, open_sampler
from dograph.train.distributed import World
from dograph.train.step import TrainStep, build_optimizer

CPU = World(rank=0, size=1, device=torch.device("cpu"))


class ByLoss(Mixer):
    """Weigh by a softmax of the loss: differs per sample, needs the world batch."""

    needs = frozenset({"loss", "source"})

    def weigh(self, signals):
        assert signals.source_B is not None
        return torch.softmax(signals.loss_B * 3, dim=0)


@pytest.fixture
def corpus(tmp_path):
    return Corpus(write_corpus(tmp_path / "corpus"))


def make(corpus, mixer, *overrides):
    config = resolve_config(
        None,
        [
            f"data.corpus={corpus.directory}",
            "data.seq_len=32",
            "model.preset=tiny",
            "train.batch_size=10",
            "train.steps=20",
            "optim.warmup_steps=3",
            "optim.lr=1e-3",
            "optim.lr_end=1e-4",
            *overrides,
        ],
    )
    model = open_model(config, corpus)
    sampler = open_sampler(config, corpus)
    sampler.remix(0, mixer.plan(CorpusLab(config, corpus)), "plan")
    step = TrainStep(config, CPU, model, build_optimizer(model, config.optim), mixer)
    return step, Loader(corpus, sampler), model


def test_plain_steps_equal_a_bare_loop(corpus):
    """Hugging Face's own loss, torch's AdamW and schedule, by hand: 20 steps."""
    step, loader, _ = make(corpus, Mixer())
    bare = open_model(step.config, corpus).model
    groups = [
        {"params": [p for p in bare.parameters() if p.ndim >= 2], "weight_decay": 0.01},
        {"params": [p for p in bare.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), eps=1e-8)
    for n in range(20):
        batch = loader.load(n)
        record = step(batch, n)
        logits = bare(batch.token_BT).logits[..., :100]
        flat = logits[:, :-1].reshape(-1, 100)
        loss = torch.nn.functional.cross_entropy(flat, batch.token_BT[:, 1:].reshape(-1))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(bare.parameters(), 1.0)
        lr = 1e-7 + (1e-3 - 1e-7) * n / 3
        if n >= 3:
            lr = 1e-4 + 9e-4 * (1 + math.cos(math.pi * (n - 3) / 16)) / 2
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        optimizer.zero_grad()
        assert record.loss_B.mean().item() == pytest.approx(loss.item(), rel=1e-5)
        assert record.grad_norm.item() == pytest.approx(norm.item(), rel=1e-4)
        assert record.lr == pytest.approx(lr, rel=1e-9)


@pytest.mark.parametrize("mixer", [Mixer(), ByLoss()], ids=["plain", "by_loss"])
@pytest.mark.parametrize("micro", [1, 3, 4])
def test_micro_batches_change_nothing(corpus, mixer, micro):
    whole, loader, _ = make(corpus, mixer)
    parts, _, _ = make(corpus, mixer, f"train.micro_batch_size={micro}")
    for n in range(6):
        batch = loader.load(n)
        one, many = whole(batch, n), parts(batch, n)
        assert torch.allclose(one.loss_B, many.loss_B, rtol=1e-5)
        assert torch.allclose(one.weight_B, many.weight_B, rtol=1e-4)
        assert one.grad_norm.item() == pytest.approx(many.grad_norm.item(), rel=1e-4)


def test_gradient_is_that_of_the_weighted_loss(corpus):
    step, loader, model = make(corpus, ByLoss())
    batch = loader.load(0)
    weight_B, loss_B, _ = step.backward(batch, 0)
    taken = [p.grad.clone() for p in model.parameters()]
    assert torch.allclose(weight_B, torch.softmax(loss_B * 3, dim=0))
    model.zero_grad()
    for i in range(10):  # one backward a sample: the slow way
        (weight_B[i] * model(batch.token_BT[i : i + 1])[0]).backward()
    for got, p in zip(taken, model.parameters(), strict=True):
        assert torch.allclose(got, p.grad, rtol=1e-4, atol=1e-7)


def test_dropout_depends_on_seed_and_step_alone(corpus):
    runs = []
    for noise in (1, 2):
        step, loader, _ = make(corpus, Mixer(), "model.dropout=0.2")
        step.model.train()
        losses = []
        for n in range(3):
            torch.manual_seed(noise * 100 + n)
            losses.append(step(loader.load(n), n).loss_B)
        runs.append(torch.stack(losses))
    assert torch.equal(*runs)


def test_dropout_differs_between_steps_and_micro_batches(corpus):
    """One sample, ten times a step, with weights that stand still."""
    still = ("optim.lr=1e-12", "optim.lr_start=0", "optim.lr_end=0", "train.micro_batch_size=1")
    step, loader, model = make(corpus, Mixer(), "model.dropout=0.2", *still)
    model.train()
    batch = loader.load(0, ahead=False)
    batch = replace(batch, token_BT=batch.token_BT[:1].expand(10, -1))
    first_B, again_B, next_B = (step(batch, n).loss_B for n in (0, 0, 1))
    assert torch.allclose(first_B, again_B, rtol=1e-6)
    assert len(torch.cat([first_B, next_B]).unique()) == 20


@pytest.mark.parametrize("where", ["both", "loss", "gradient"])
def test_a_non_finite_step_updates_nothing_from_then_on(corpus, where):
    step, loader, model = make(corpus, Mixer())
    step(loader.load(0), 0)
    before = [p.clone() for p in model.parameters()]
    embedding = model.model.get_input_embeddings().weight
    if where == "both":
        handle = model.register_forward_hook(lambda *args: args[2] * torch.nan)
    elif where == "loss":  # of a token that had no odds at all
        handle = model.register_forward_hook(lambda *args: args[2] + torch.inf)
    else:
        handle = embedding.register_hook(lambda grad: grad * torch.inf)
    assert step(loader.load(1), 1).halted.item() == 1
    handle.remove()
    assert step(loader.load(2), 2).halted.item() == 1  # sticky: a later good step must not hide it
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


class Seer(Mixer):
    needs = frozenset({"loss", "tomorrow"})


def test_signals_that_no_step_computes_are_refused():
    with pytest.raises(ConfigError, match=r"\['tomorrow'\], which no step computes"):
        build_mixer(f"{__name__}:Seer", {})


class Unnormalised(ByLoss):
    def weigh(self, signals):
        return signals.loss_B


def test_weights_that_do_not_sum_to_1_are_refused_before_the_first_update(corpus):
    step, loader, model = make(corpus, Unnormalised())
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(ConfigError, match=r"weights of Unnormalised sum to .* not to 1"):
        step(loader.load(0), 0)
    assert all(map(torch.equal, before, model.parameters()))


def test_activation_checkpointing_and_bfloat16_keep_the_loss(corpus):
    plain, loader, _ = make(corpus, Mixer())
    saving, _, model = make(corpus, Mixer())
    model.model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    half, _, _ = make(corpus, Mixer(), "train.dtype=bfloat16")
    for n in range(3):
        batch = loader.load(n)
        a, b, c = plain(batch, n), saving(batch, n), half(batch, n)
        assert torch.allclose(a.loss_B, b.loss_B, rtol=1e-6)
        assert torch.allclose(a.loss_B, c.loss_B, rtol=2e-2)
        assert c.loss_B.dtype == torch.float32
