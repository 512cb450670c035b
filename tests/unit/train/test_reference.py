"""Losses beside those of a reference model: clipped token by token, seen and never trained.

Shapes: B samples, T tokens, V vocabulary.
"""

import pytest
import torch
import torch.nn.functional as F

from corpora import write_corpus
from dograph.config import resolve_config
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError
from dograph.mixers.base import Mixer
from dograph.mixers.doge import DoGEProxy
from dograph.mixers.doremi import DoReMiProxy
from dograph.models.build import build_model
from dograph.train.checkpoint import save_model
from tiny_steps import open_steps


class Beside(Mixer):
    """Weighs by the excess; sees sketches too where asked to."""

    def __init__(self, reference, *more):
        self.reference = reference
        self.needs = frozenset({"loss", "reference_loss", *more})

    def weigh(self, signals):
        return torch.softmax(5 * signals.excess_loss_B - signals.reference_loss_B, dim=0)


def save_reference(folder, *, vocab=100, seed=9, dropout=0.3, seq_len=32):
    model = build_model("tiny", vocab_size=vocab, seq_len=seq_len, dropout=dropout, seed=seed)
    save_model(model, folder, None)
    return model


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference") / "model"
    return folder, save_reference(folder).eval()


def nll(model, token_BT):
    """Of every predicted token, from the logits, by log_softmax."""
    logits_BTV = model.model(token_BT).logits[..., :100]
    log_BTV = logits_BTV[:, :-1].log_softmax(dim=-1)
    return -log_BTV.gather(-1, token_BT[:, 1:, None])[..., 0]


@pytest.mark.parametrize("micro", [None, 2])
@pytest.mark.parametrize("more", [(), ("sketch",)], ids=["plain", "with sketches"])
def test_signals_hold_the_reference_and_the_excess(corpus, reference, micro, more):
    folder, model = reference
    mixer = Beside(str(folder), *more)
    steps = open_steps(
        corpus, f"train.micro_batch_size={micro or 'null'}", "model.dropout=0", mixer=mixer
    )
    batch = steps.loader.load(0)
    with torch.no_grad():
        own_BT, other_BT = nll(steps.model, batch.token_BT), nll(model, batch.token_BT)
    record = steps.step(batch, 0)
    seen = record.signals
    assert torch.allclose(seen.loss_B, own_BT.mean(dim=1), atol=1e-5)
    assert torch.allclose(seen.reference_loss_B, other_BT.mean(dim=1), atol=1e-5)
    excess_B = (own_BT - other_BT).clamp_min(0).mean(dim=1)
    assert torch.allclose(seen.excess_loss_B, excess_B, atol=1e-5)
    # averaging first would give something else
    assert (excess_B - (own_BT - other_BT).mean(dim=1).clamp_min(0)).abs().max() > 0.01
    assert not seen.excess_loss_B.requires_grad
    assert (seen.vocab_size, seen.lr) == (100, record.lr)


def test_the_gradient_is_that_of_the_weighted_loss_alone(corpus, reference):
    """The same with a mixer that is given the same weights and sees nothing."""
    steps = open_steps(corpus, mixer=Beside(str(reference[0])))
    taken = steps.take()

    class Given(Mixer):
        def weigh(self, signals):
            return taken.weight_B

    blind = open_steps(corpus, mixer=Given()).take()
    assert torch.allclose(taken.loss_B, blind.loss_B, rtol=1e-6)
    for name, gradient in blind.gradients.items():
        assert torch.allclose(taken.gradients[name], gradient, rtol=1e-4, atol=1e-7), name


def test_the_reference_is_neither_trained_nor_noisy(corpus, reference):
    steps = open_steps(
        corpus, "model.dropout=0.2", "optim.lr=1e-2", mixer=Beside(str(reference[0]))
    )
    held = steps.step.reference
    before = [p.clone() for p in held.parameters()]
    assert not any(p.requires_grad for p in held.parameters())
    assert not any(module.training for module in held.modules())
    batch = steps.loader.load(0)
    first = steps.step(batch, 0).signals
    second = steps.step(batch, 1).signals
    assert torch.equal(first.reference_loss_B, second.reference_loss_B)
    assert not torch.equal(first.loss_B, second.loss_B)
    assert all(torch.equal(a, b) for a, b in zip(before, held.parameters(), strict=True))
    trained = {id(p) for group in steps.step.optimizer.param_groups for p in group["params"]}
    assert not trained & {id(p) for p in held.parameters()}


def test_losses_by_token_add_up_bit_for_bit(reference):
    token_BT = torch.randint(100, (5, 17), generator=torch.Generator().manual_seed(0))
    model = reference[1]
    nll_BT = model(token_BT, per_token=True)
    assert nll_BT.shape == (5, 17)
    assert bool((nll_BT[:, -1] == 0).all())
    assert torch.equal(nll_BT.sum(dim=1) / 16, model(token_BT))
    logits_BTV = model.model(token_BT).logits[:, :-1, :100]
    flat = F.cross_entropy(
        logits_BTV.flatten(0, 1), token_BT[:, 1:].flatten(), reduction="none"
    ).view(5, 16)
    assert torch.allclose(nll_BT[:, :-1], flat, rtol=1e-5)


@pytest.mark.parametrize(
    "mixer", [Beside(None), type("Bare", (Mixer,), {"needs": {"reference_loss"}})()]
)
def test_a_reference_must_be_named(corpus, mixer):
    with pytest.raises(
        ConfigError, match="reference_loss, but names no reference model; set mixer"
    ):
        open_steps(corpus, mixer=mixer)


def test_references_that_do_not_fit(corpus, tmp_path):
    save_reference(tmp_path / "wide", vocab=164)
    with pytest.raises(
        ConfigError, match="vocabulary of 164 tokens, the model that is trained 100"
    ):
        open_steps(corpus, mixer=DoReMiProxy(reference=str(tmp_path / "wide")))
    save_reference(tmp_path / "narrow", vocab=64)
    with pytest.raises(ConfigError, match="vocabulary of 64 tokens"):
        open_steps(corpus, mixer=DoReMiProxy(reference=str(tmp_path / "narrow")))
    with pytest.raises(ConfigError, match="must be a run directory, a model folder or a Hugging"):
        open_steps(corpus, mixer=DoReMiProxy(reference=str(tmp_path / "nothing")))
    save_reference(tmp_path / "short")
    with pytest.raises(ConfigError, match=r"positions, fewer than data\.seq_len"):
        open_steps(corpus, "data.seq_len=900", mixer=DoReMiProxy(reference=str(tmp_path / "short")))


def test_a_run_is_a_reference_once_it_has_ended(corpus, tmp_path, reference):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(resolve_config(None, []).dump())
    with pytest.raises(ConfigError, match="has not ended"):
        open_steps(corpus, mixer=DoReMiProxy(reference=str(run)))
    (run / "model").symlink_to(reference[0])
    taken = open_steps(corpus, mixer=DoReMiProxy(reference=str(run))).take()
    assert float(taken.weight_B.sum()) == pytest.approx(1, abs=1e-5)


def test_doge_needs_one_projection(corpus):
    with pytest.raises(ConfigError, match=r"set sketch\.refresh=never"):
        open_steps(corpus, "sketch.refresh=20", mixer=DoGEProxy())
    steps = open_steps(corpus, "sketch.refresh=never", mixer=DoGEProxy())
    assert Corpus(corpus).sources == steps.step.mixer.names
