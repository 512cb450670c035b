"""Mode head of the Trainer: models whose logits are not their output layer's are refused.

Shapes: B samples, T tokens, D width, V vocabulary.
"""

import pytest
import torch
from torch import nn
from transformers import GPT2LMHeadModel

from dograph.errors import ConfigError
from dograph.integrations.hf import attach
from trainers import (
    AFTER_THE_HEAD,
    DIM,
    build,
    dograph,
    furthest,
    make,
    parameters,
    stacked,
    tiny_model,
)

REFUSED = r"changes the logits after its output layer .* Use mode twopass"


@pytest.mark.parametrize("family", AFTER_THE_HEAD)
def test_a_cap_or_a_factor_is_refused_before_the_first_update(tmp_path, family):
    """By what the model does: no name of a setting has to be known."""
    model = tiny_model(family)
    before, trainer = parameters(model), make(tmp_path, model, max_steps=1)
    attach(trainer, dograph(), mode="head", dim=DIM)
    with pytest.raises(ConfigError, match=REFUSED):
        trainer.train()
    assert furthest(parameters(model), before) == 0
    assert {"forward"}.isdisjoint(model.__dict__.keys() | model.lm_head.__dict__.keys())


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_models_with_a_plain_output_layer(tmp_path, family):
    model = tiny_model(family)
    before, trainer = parameters(model), make(tmp_path, model, max_steps=2)
    attach(trainer, dograph(), mode="head", dim=DIM)
    trainer.train()
    assert furthest(parameters(model), before) > 1e-4


class Capping(GPT2LMHeadModel):
    """Halves its logits from the third call on, in one of several ways."""

    calls = 0

    def forward(self, *args, **kwargs):
        self.calls += 1
        outputs = super().forward(*args, **kwargs)
        if self.calls < 3:
            return outputs
        if self.how == "in place":
            outputs.logits.mul_(0.5)
        elif self.how == "copy":
            outputs.logits = outputs.logits / 2
        elif self.how == "slice":
            outputs.logits = outputs.logits[:, :]
        else:
            return outputs.to_tuple()
        return outputs


@pytest.mark.parametrize("how", ["in place", "copy", "slice", "tuple"])
def test_every_step_is_checked(tmp_path, how):
    model = Capping(build().config)
    model.how = how
    trainer = make(tmp_path, model)
    attach(trainer, dograph(), mode="head", dim=DIM)
    with pytest.raises(ConfigError, match=REFUSED):
        trainer.train()
    assert (model.calls, trainer.state.global_step) == (3, 2)


class Adapted(nn.Module):
    """What peft puts in the place of a linear layer."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer, self.low = base_layer, nn.Linear(32, 2, bias=False)

    @property
    def weight(self):
        return self.base_layer.weight

    def forward(self, hidden_BTD):
        return self.base_layer(hidden_BTD)


class Packed(nn.Linear):
    """What libraries of quantised weights put there."""

    def forward(self, hidden_BTD):
        return super().forward(hidden_BTD)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (lambda: Adapted(nn.Linear(32, 61, bias=False)), r"is Adapted; .*\(LoRA\)"),
        (lambda: Packed(32, 61, bias=False), "is Packed; mode head needs an nn.Linear"),
        (lambda: nn.Linear(32, 61), "is an nn.Linear with a bias"),
        (lambda: nn.Linear(32, 61, bias=False).requires_grad_(False), "is frozen, so it has no"),
    ],
)
def test_output_layers_that_cannot_be_sketched(tmp_path, layer, said):
    model = build()
    model.lm_head = layer()
    with pytest.raises(ConfigError, match=said):
        attach(make(tmp_path, model), dograph(), mode="head")


@pytest.mark.parametrize("wrong", [-1, 61])
def test_labels_outside_the_vocabulary(tmp_path, wrong):
    def spoilt(batch):
        given = stacked(batch)
        given["labels"][1, 3] = wrong
        return given

    trainer = make(tmp_path, collator=spoilt)
    attach(trainer, dograph(), mode="head", dim=DIM)
    said = rf"targets \(labels\) have \[{wrong}\], .* 0\.\.60 nor ignore_index=-100"
    with pytest.raises(ConfigError, match=said):
        trainer.train()
    assert torch.equal(trainer.model.lm_head.weight, build().lm_head.weight)
