"""For every family on the list, logits are the output layer of the last hidden state."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from dograph.models.loss import PLAIN_HEADS

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


@pytest.mark.parametrize("family", sorted(PLAIN_HEADS))
def test_logits_are_the_output_layer_of_the_last_state(family):
    config = AutoConfig.for_model(family, **SMALL, **MORE.get(family, {}))
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():  # biases too
        torch.nn.init.normal_(parameter, std=0.2)
    token_BT = torch.arange(16).view(2, 8)
    with torch.no_grad():
        expected_BTV = model(input_ids=token_BT, use_cache=False).logits
        hidden_BTD = model.base_model(input_ids=token_BT, use_cache=False).last_hidden_state
        got_BTV = model.get_output_embeddings()(hidden_BTD)
    torch.testing.assert_close(got_BTV, expected_BTV)
