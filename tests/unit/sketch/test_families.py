"""Families of Hugging Face models, tiny and random, in float64 against one backward a sample.

`in_double` keeps their norms and routers from rounding to float32 on the way.

Shapes: B samples, T tokens.
"""

import importlib.util
from typing import Any

import pytest
import torch
import transformers

from model_zoo import LENGTH
from verdicts import EXACT, MODES, REFUSED, VOCABULARY, in_double, randomised, some_tokens, verdict

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 2 * LENGTH,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "use_cache": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2_NAMES = {
    "vocab_size": VOCABULARY,
    "n_positions": LENGTH,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "use_cache": False,
    "bos_token_id": None,
    "eos_token_id": None,
}
EXPERTS = {
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 12,
    "decoder_sparse_step": 1,
}
# What a family's configuration calls otherwise, or needs besides.
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {},
    "Qwen2": {},
    "Qwen3": {},
    "Gemma": {},
    "Gemma2": {"query_pre_attn_scalar": 8, "sliding_window": 4},
    "Gemma3": {"query_pre_attn_scalar": 8, "sliding_window": 4},
    "Olmo2": {},
    "Olmo3": {"sliding_window": 4},
    "Granite": {"logits_scaling": 2.0, "residual_multiplier": 0.7, "embedding_multiplier": 3.0},
    "Glm4": {"partial_rotary_factor": 0.5},
    "Cohere": {"logit_scale": 0.25, "use_qk_norm": True},
    "Phi": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "partial_rotary_factor": 0.5},
    "Phi3": {"resid_pdrop": 0.0, "embd_pdrop": 0.0},
    "SmolLM3": {},
    "StableLm": {"partial_rotary_factor": 0.5, "qk_layernorm": True},
    "GPTNeoX": {"rotary_pct": 0.5},
    "OPT": {"ffn_dim": 24, "dropout": 0.0, "word_embed_proj_dim": 16, "pad_token_id": 1},
    "GPT2": GPT2_NAMES,
    "GPTJ": {**GPT2_NAMES, "rotary_dim": 4},
    "Bloom": {"n_layer": 2, "n_head": 2},
    "Falcon": {
        "new_decoder_architecture": False,
        "multi_query": True,
        "alibi": False,
        "bias": True,
    },
}
SPARSE: dict[str, dict[str, Any]] = {
    "Mixtral": EXPERTS,
    "Qwen2Moe": EXPERTS,
    "Qwen3Moe": EXPERTS,
    "DeepseekV3": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 12,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
        "num_key_value_heads": 2,
    },
}
# The most different: a table that scales and norms by 1 + weight; norms after; positions that
# begin at 2; logits and norms of heads scaled; ALiBi; weights the other way round and tied.
FAST = ("Gemma3", "Olmo2", "OPT", "Cohere", "Bloom", "GPT2")


def family(name: str) -> torch.nn.Module:
    """A model with nothing at its default; twins when it is called again."""
    own = {**FAMILIES, **SPARSE}[name]
    given = own if name in ("GPT2", "GPTJ") else COMMON | own
    if name == "Falcon":  # it has a property of that name
        given = {key: value for key, value in given.items() if key != "head_dim"}
    config = getattr(transformers, f"{name}{'Text' if name == 'Gemma3' else ''}Config")(**given)
    config._attn_implementation = config._experts_implementation = "eager"
    kind = f"{name}LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
    return randomised(getattr(transformers, kind)(config)).double()


def judged(name: str, mode: str, **options: Any) -> Any:
    with in_double():
        return verdict(lambda: family(name), mode, **options)


def cases(names: Any, fast: tuple[str, ...] = ()) -> list[Any]:
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", cases(FAMILIES, FAST))
def test_full_is_exact(name):
    """Gradient and sketch; nothing but positions of an odd kind may stay out of the sketch."""
    got = judged(name, "full", steps=2)
    assert got.kind == EXACT, str(got)
    assert sum(got.outside.values()) < 0.15, got.outside


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["exact", "topdown", "head", "twopass"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_mode_is_exact(name, mode):
    """Mode head must find the output layer of each family by itself."""
    got = judged(name, mode)
    assert got.kind == EXACT, str(got)
    if mode == "twopass":
        assert got.sketch_error < 1e-9 or got.warned


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["full", "exact"])
@pytest.mark.parametrize("name", FAMILIES)
def test_as_many_tokens_as_samples(name, mode):
    """No axis may be taken for another; no false alarm either."""
    got = judged(name, mode, token_BT=some_tokens(6, 6))
    assert got.kind == EXACT, str(got)


@pytest.mark.parametrize("name", cases(SPARSE, ("Mixtral",)))
@pytest.mark.parametrize("mode", MODES)
def test_mixtures_of_experts(name, mode):
    """Experts see some tokens of all samples: exact or refused in full; head and twopass run."""
    got = judged(name, mode)
    assert got.kind in ((EXACT,) if mode in ("head", "twopass") else (EXACT, REFUSED)), str(got)


def mamba() -> torch.nn.Module:
    config = transformers.MambaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        state_size=4,
        num_hidden_layers=2,
        conv_kernel=3,
        expand=2,
        time_step_rank=4,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return randomised(transformers.MambaForCausalLM(config)).double()


@pytest.mark.parametrize("mode", MODES)
def test_mamba(mode):
    """Weights of its layers are used past them: exact or refused, and a sketch that says so."""
    with in_double():
        got = verdict(mamba, mode)
    assert got.kind in (EXACT, REFUSED), str(got)
    if mode == "twopass" and got.kind == EXACT:
        assert got.sketch_error < 1e-9 or got.warned


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["Llama", "Gemma3", "GPT2", "Olmo2", "OPT"])
def test_no_false_alarm_in_single_precision(name, mode):
    """Rounding of the norms and of the model itself stays below the check's tolerance."""
    got = verdict(lambda: family(name).float(), mode, tolerance=1e-4)
    assert got.kind == EXACT, str(got)


HAS_PEFT = importlib.util.find_spec("peft") is not None


def with_adapters(*targets: str) -> torch.nn.Module:
    import peft

    config = peft.LoraConfig(r=2, lora_alpha=4, lora_dropout=0.0, target_modules=list(targets))
    return randomised(peft.get_peft_model(family("Llama"), config)).double()


@pytest.mark.skipif(not HAS_PEFT, reason="needs peft")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("targets", [("q_proj", "up_proj"), ("q_proj", "lm_head")])
def test_adapters_of_peft(mode, targets):
    with in_double():
        got = verdict(lambda: with_adapters(*targets), mode)
    assert got.kind == (REFUSED if mode == "head" else EXACT), str(got)
