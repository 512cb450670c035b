"""A mixer inside transformers' Trainer, beside the same training written out by hand.

Shapes: B samples, T tokens, V vocabulary.
"""

import logging

import pytest
import torch
import torch.nn.functional as F
from transformers import TrainerCallback

from dograph.errors import ConfigError
from dograph.integrations.hf import attach
from dograph.mixers.base import Mixer
from dograph.mixers.dograph import DoGraph
from dograph.sketch.head import head_projection, sketched_cross_entropy
from dograph.sketch.projection import Projection
from dograph.sketch.sketcher import Sketcher
from dograph.train.watch import SampleWatch
from dograph.types import Signals
from trainers import (
    BATCH,
    DIM,
    RATE,
    ROWS,
    STEPS,
    Collator,
    Softest,
    build,
    dograph,
    furthest,
    losses,
    make,
    parameters,
    rows,
    stacked,
)


def by_hand(model, mixer, steps, *, mode):
    """The same training without a Trainer: `steps` of micro-batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    sketcher = Sketcher(model, mode="reference", dim=DIM)
    sides = head_projection(model.lm_head.weight, Projection(dim=DIM))
    weights = []
    for step, micro in enumerate(steps):
        num, seen, given = sum(len(batch["labels"]) for batch in micro), [], []
        for batch in micro:
            token_BT, label_BT = batch["input_ids"], batch["labels"]
            if mode == "head":
                hidden_BTD = model.transformer(token_BT).last_hidden_state
                target_BT = F.pad(label_BT[:, 1:], (0, 1), value=-100)
                sketch_BK = sketched_cross_entropy(
                    hidden_BTD, model.lm_head.weight, target_BT, sides
                )[1].detach()
                norm_B = sketch_BK.norm(dim=1)
            else:
                with sketcher.record(token_BT, step):
                    sketch = sketcher.sketch(losses(model(token_BT).logits, label_BT))
                sketch_BK, norm_B = sketch.sketch_BK, sketch.block_norm_B
            signals = Signals(
                step=step, num_samples=len(token_BT), sketch_BK=sketch_BK, block_norm_B=norm_B
            )
            one = len(micro) == 1
            weight_B = mixer.weigh(signals) if one else mixer.weigh_lagged(signals, num)
            (weight_B * losses(model(token_BT).logits, label_BT)).sum().backward()
            seen.append(signals)
            given.append(weight_B)
        if len(micro) > 1:
            whole = Signals(
                step=step,
                num_samples=num,
                sketch_BK=torch.cat([signals.sketch_BK for signals in seen]),
                block_norm_B=torch.cat([signals.block_norm_B for signals in seen]),
            )
            mixer.observe(whole, torch.cat(given))
        weights.append(torch.cat(given))
        optimizer.step()
        optimizer.zero_grad()
    return weights


@pytest.mark.parametrize("mode", ["twopass", "head"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_training_is_that_of_a_loop_by_hand(tmp_path, accumulation, mode):
    """Nothing is divided by the micro-batches, a short batch at an epoch's end included."""
    collator, model = Collator(), build()
    trainer = make(tmp_path, model, collator=collator, gradient_accumulation_steps=accumulation)
    attach(trainer, dograph(), mode=mode, dim=DIM)
    trainer.train()
    epoch = -(-ROWS // BATCH)  # batches
    starts = [
        start
        for first in range(0, len(collator.batches), epoch)
        for start in range(first, first + epoch, accumulation)
    ]
    steps = [collator.batches[start : start + accumulation] for start in starts[:STEPS]]
    assert {len(batch["labels"]) for batch in steps[epoch // accumulation - 1]} >= {2}
    other = build()
    weights = by_hand(other, dograph(), steps, mode=mode)
    assert furthest(parameters(model), parameters(other)) < 1e-6
    assert all(torch.allclose(w, torch.full_like(w, 1 / len(w))) for w in weights[:10])
    assert max((len(w) * w - 1).abs().max() for w in weights[10:]) > 0.05


@pytest.mark.parametrize(("asked", "expected"), [(None, 2), (0, 0), (5, 5)])
def test_a_warm_up_in_steps_is_kept(tmp_path, asked, expected):
    """None: the share of the run that `warmup` says."""
    mixer = DoGraph("safe", num_domains=3, warmup_ratio=1.0, warmup_steps=asked)
    trainer = make(tmp_path, max_steps=2)
    attach(trainer, mixer, mode="head", dim=DIM)
    trainer.train()
    assert mixer.warmup_steps == expected


def test_any_mixer_that_weighs_by_losses(tmp_path):
    """The gradient that the optimizer gets is that of the weighted sum; nobody else is asked."""

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model, **_):
            self.gradient = {name: p.grad.clone() for name, p in model.named_parameters()}

    collator, mixer, keep = Collator(), Softest(), Keep()
    trainer = make(tmp_path, collator=collator, max_steps=1)
    trainer.add_callback(keep)
    attach(trainer, mixer)
    trainer.train()
    model, batch = build(), collator.batches[0]
    loss_B = losses(model(batch["input_ids"]).logits, batch["labels"])
    weight_B = torch.softmax(-5 * loss_B.detach(), dim=0)
    assert torch.allclose(mixer.given[0], weight_B)
    assert weight_B.max() > 1.2 * weight_B.min()
    (weight_B * loss_B).sum().backward()
    assert furthest(keep.gradient, {n: p.grad for n, p in model.named_parameters()}) < 1e-6


def test_natural_weights_under_accumulation(tmp_path):
    """A mixer that needs nothing: every sample counts 1/N, unlike the Trainer's mean of tokens."""
    collator, model = Collator(), build()
    trainer = make(tmp_path, collator=collator, gradient_accumulation_steps=3, max_steps=3)
    attach(trainer, Mixer())
    trainer.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(3):
        micro = collator.batches[3 * step : 3 * step + 3]
        batch = {name: torch.cat([one[name] for one in micro]) for name in micro[0]}
        losses(model(batch["input_ids"]).logits, batch["labels"]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert furthest(parameters(trainer.model), parameters(model)) < 1e-6


def test_an_all_padding_row_has_loss_0_and_a_weight(tmp_path):
    mixer = Softest()
    trainer = make(tmp_path, max_steps=1, per_device_train_batch_size=ROWS)
    attach(trainer, mixer)
    trainer.train()
    (weight_B,) = mixer.given
    assert weight_B.isfinite().all()
    assert weight_B.sum().item() == pytest.approx(1)
    assert weight_B.max() > 0.99  # a loss of 0 is the easiest


def test_evaluation_is_the_trainers_own(tmp_path):
    trainer = make(tmp_path, eval_strategy="steps", eval_steps=STEPS, label_names=["labels"])
    attach(trainer, dograph(), dim=DIM)
    trainer.train()
    (during,) = [log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log]
    plain = make(tmp_path, trainer.model, label_names=["labels"]).evaluate()["eval_loss"]
    assert during == trainer.evaluate()["eval_loss"] == plain


def test_the_report_is_logged_beside_the_loss(tmp_path):
    def with_source(batch):
        return {**stacked(batch), "source": torch.tensor([row["source"] for row in batch])}

    trainer = make(tmp_path, collator=with_source, logging_steps=1)
    attach(trainer, dograph(), dim=DIM, sources="source", source_names=list("abcd"))
    trainer.train()
    history = trainer.state.log_history
    own = [log for log in history if "loss" in log]
    ours = [log for log in history if "loss/unweighted" in log]
    assert (
        [log["step"] for log in own] == [log["step"] for log in ours] == list(range(1, STEPS + 1))
    )
    assert 0 <= ours[-1]["domains/nmi"] <= 1
    assert 1 <= ours[-1]["domains/number"] <= 3
    assert {name for name in ours[-1] if name.startswith("domains/")} == {
        *("domains/number", "domains/nmi", "domains/batch_nmi", "domains/purity")
    }
    assert {"weights/effective_samples", "weights/entropy_nats"} <= ours[-1].keys()
    assert any("noise/scale_samples" in log for log in ours)
    assert any("noise/a/scale_samples" in log for log in ours)
    assert all(isinstance(value, float | int) for log in ours for value in log.values())
    apart = [
        abs(mine["loss/unweighted"] - theirs["loss"])
        for mine, theirs in zip(ours, own, strict=True)
    ]
    assert max(apart[:10]) < 1e-5  # equal weights until there are domains
    assert max(apart[10:]) > 1e-3


@pytest.mark.parametrize("accumulation", [1, 2])
def test_samples_are_watched_under_their_ids(tmp_path, accumulation):
    """With a mixer that needs no sketches; an epoch's last batches are smaller."""

    def with_index(batch):
        return {**stacked(batch), "index": torch.tensor([row["source"] for row in batch])}

    trainer = make(tmp_path, collator=with_index, gradient_accumulation_steps=accumulation)
    watch, seen = SampleWatch(), []
    attach(trainer, Mixer(), mode="head", dim=DIM, watch=watch, ids="index")
    trainer.train()
    assert [step.step for step in watch.ring] == list(range(STEPS))
    for step in watch.ring:
        assert len(step.ids) == len(step.table_B3) == len(step.flagged_B)
        assert float(step.table_B3[:, 1].sum()) == pytest.approx(1, abs=1e-3)
        seen += step.ids.tolist()
    assert set(seen) == {0, 1, 2, 3}
    with pytest.raises(ConfigError, match="cannot skip"):
        attach(make(tmp_path), Mixer(), watch=SampleWatch(skips=True))


def test_lagged_weights_are_said_once(tmp_path, caplog):
    trainer = make(tmp_path, gradient_accumulation_steps=2, max_steps=3)
    attach(trainer, dograph(), dim=DIM)
    with caplog.at_level(logging.INFO, logger="dograph"):
        trainer.train()
    assert ["lagged" in record.message for record in caplog.records] == [True]


class Looking(Mixer):
    """Weighs by the norms of sketches, and keeps them."""

    needs = frozenset({"sketch"})

    def __init__(self):
        self.seen = []

    def weigh(self, signals):
        self.seen.append(signals.sketch_BK)
        return torch.softmax(signals.sketch_BK.norm(dim=1), dim=0)


@pytest.mark.parametrize("mode", ["twopass", "head"])
def test_sketches_under_activation_checkpointing_and_bfloat16(tmp_path, mode):
    """Layers that run again in each backward, and layers that round to 8 bits."""
    found = {}
    for name in (None, "gradient_checkpointing", "bf16"):
        mixer, settings = Looking(), {} if name is None else {name: True}
        trainer = make(tmp_path, max_steps=2, **settings)
        attach(trainer, mixer, mode=mode, dim=DIM)
        trainer.train()
        found[name] = mixer.seen, parameters(trainer.model)
    sketches, plain = found[None]
    for again, first in zip(found["gradient_checkpointing"][0], sketches, strict=True):
        assert torch.equal(again, first)
    assert furthest(found["gradient_checkpointing"][1], plain) == 0.0
    for rounded, first in zip(found["bf16"][0], sketches, strict=True):
        assert 1e-4 < (rounded - first).norm() / first.norm() < 0.03
    assert 0 < furthest(found["bf16"][1], plain) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["twopass", "head"])
def test_compiled(tmp_path, mode):
    """One graph, the same numbers: the second backward finds what the forward kept."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    settings = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    runs = [make(tmp_path, dataset=rows(32), **extra) for extra in ({}, settings)]
    for trainer in runs:
        attach(trainer, dograph(), mode=mode, dim=DIM)
        trainer.train()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert furthest(*(parameters(trainer.model) for trainer in runs)) < 1e-6


def test_the_warmup_is_a_share_of_the_trainers_steps(tmp_path):
    mixer, trainer = DoGraph("safe", warmup_ratio=0.5), make(tmp_path, max_steps=6)
    attach(trainer, mixer, dim=DIM)
    trainer.train()
    assert mixer.warmup_steps == 3
