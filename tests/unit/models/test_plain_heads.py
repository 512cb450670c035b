"""Which models' logits are the output layer of the last hidden state, found by running them."""

import copy

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GPT2LMHeadModel

from dograph.errors import ConfigError
from dograph.models.loss import HeadLoss, PerSampleLoss, logits_are_of_the_head
from trainers import AFTER_THE_HEAD, build, tiny_model

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
EXPERTS = {
    "num_experts": 2,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
PLAIN = (
    *("bloom", "falcon", "gemma", "gpt2", "gpt_neo", "gpt_neox", "gptj", "llama", "mistral"),
    *("mixtral", "olmo", "olmo2", "opt", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3"),
    *("qwen3_moe", "smollm3", "stablelm", "starcoder2"),
)
MORE = {
    "gemma": {"head_dim": 8},
    "qwen3": {"head_dim": 8},
    "gpt_neo": {"attention_types": [[["global"], 2]], "num_layers": 2},
    "gptj": {"rotary_dim": 4},
    "mixtral": EXPERTS,
    "opt": {"word_embed_proj_dim": 16, "ffn_dim": 48},
    "qwen2_moe": EXPERTS,
    "qwen3_moe": {"head_dim": 8, **EXPERTS},
}


def small(family):
    config = AutoConfig.for_model(family, **SMALL, **MORE.get(family, {}))
    return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("family", PLAIN)
def test_logits_are_the_output_layer_of_the_last_state(family):
    model = small(family).eval()
    for parameter in model.parameters():  # biases too
        torch.nn.init.normal_(parameter, std=0.2)
    token_BT = torch.arange(16).view(2, 8)
    with torch.no_grad():
        expected_BTV = model(input_ids=token_BT, use_cache=False).logits
        hidden_BTD = model.base_model(input_ids=token_BT, use_cache=False).last_hidden_state
        got_BTV = model.get_output_embeddings()(hidden_BTD)
    torch.testing.assert_close(got_BTV, expected_BTV)
    assert logits_are_of_the_head(model)
    assert logits_are_of_the_head(model.bfloat16())


@pytest.mark.parametrize("family", AFTER_THE_HEAD)
def test_a_cap_or_a_factor_after_the_output_layer(family):
    loss = PerSampleLoss(tiny_model(family), 61)
    assert not loss.has_plain_head
    with pytest.raises(ConfigError, match=r"ForCausalLM: its logits .* use mode full or twopass"):
        loss.require_plain_head()


class InPlace(GPT2LMHeadModel):
    """Returns the tensor that the output layer returned, with other numbers in it."""

    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        outputs.logits.mul_(0.5)
        return outputs


class Later(GPT2LMHeadModel):
    """The output layer does not see the last hidden state."""

    def forward(self, input_ids, **kwargs):
        outputs = self.transformer(input_ids, **kwargs)
        outputs.logits = self.lm_head(0.5 * outputs.last_hidden_state)
        return outputs


class Whole(GPT2LMHeadModel):
    """Runs as a whole only: its base model has other arguments."""

    def __init__(self, config):
        super().__init__(config)
        self.transformer.forward = lambda input_ids: None


@pytest.mark.parametrize("kind", [InPlace, Later, Whole])
def test_logits_that_only_look_plain(kind):
    assert not logits_are_of_the_head(kind(build().config))


def test_a_small_last_state_is_compared_on_its_own_scale():
    for kind, plain in ((GPT2LMHeadModel, True), (Later, False)):
        model = kind(build().config)
        model.transformer.ln_f.weight.data *= 1e-5
        assert logits_are_of_the_head(model) == plain


def test_logits_of_the_model_are_not_changed_where_padding_is_masked():
    """A model may keep them for its backward, as one that ends in tanh does."""
    logits_BTV = torch.randn(2, 3, 7, generator=torch.manual_seed(0))
    before_BTV = logits_BTV.clone()
    target_BT = torch.tensor([[1, 4, -100], [0, 2, -100]])
    loss_B = HeadLoss(nn.Identity(), 5)(logits_BTV, target_BT)
    assert torch.equal(logits_BTV, before_BTV)
    expected_B2 = -before_BTV[:, :2, :5].log_softmax(-1).gather(-1, target_BT[:, :2, None])
    torch.testing.assert_close(loss_B, expected_B2.mean(dim=(1, 2)))


class Counting(nn.Module):
    """A layer with a buffer that every call changes, in place or by a new tensor, and dropout."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()))

    def forward(self, value):
        self.calls += 1
        self.last = self.last + torch.rand(())
        return self.inner(value)


def test_the_model_and_random_numbers_stay_as_they_were():
    model = build(dropout=0.5).train()
    model.transformer.ln_f = Counting(model.transformer.ln_f)
    model.transformer.h[1].eval()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    buffers = list(model.buffers())
    torch.manual_seed(3)
    state = torch.get_rng_state()
    assert logits_are_of_the_head(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert all(a is b for a, b in zip(model.buffers(), buffers, strict=True))
    assert model.state_dict().keys() == before.keys()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert "forward" not in model.lm_head.__dict__
