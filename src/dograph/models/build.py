"""Models for training: Hugging Face causal LMs with the vocabulary padded to a multiple of 64.

Padding gives the largest matmul of a step an efficient shape. Padded rows are zero and masked
before the softmax, so they get no gradient and stay zero; saving removes them, so a checkpoint
loads anywhere.
"""

from pathlib import Path
from typing import Any

import torch

from dograph.errors import ConfigError, require_known
from dograph.models.loss import PerSampleLoss
from dograph.models.presets import PRESETS
from dograph.rng import key64

PAD_TO = 64


def build_model(
    preset: str, *, vocab_size: int, seq_len: int, dropout: float, seed: int
) -> PerSampleLoss:
    """A new model of a preset; the same seed gives the same weights."""
    config = preset_config(preset, vocab_size=vocab_size, seq_len=seq_len, dropout=dropout)
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    # SDPA under a name without a mask builder, so that its causal flag is used: the builder copies
    # positions to the host in every step to look for packed sequences, which we never have. A model
    # loaded by path keeps its own attention.
    AttentionInterface.register("sdpa_plain_causal", sdpa_attention_forward)
    return _padded(_from_config(config, seed, attn_implementation="sdpa_plain_causal"))


def require_folder(name: str) -> None:
    """Refuse a folder that does not exist, before the hub is asked for it several times.

    A name on the hub has at most one slash; if its first part is a local folder, it is a path.
    """
    path = Path(name)
    local = name.startswith(("/", ".")) or len(path.parts) > 2
    local = local or (len(path.parts) == 2 and Path(path.parts[0]).is_dir())
    if local and not path.is_dir():
        raise ConfigError(
            f"there is no folder {name}; give a run, a folder saved by save_pretrained, or a "
            "Hugging Face name"
        )


def load_model(
    name: str, *, vocab_size: int, seed: int, pretrained: bool, seq_len: int = 0
) -> PerSampleLoss:
    """Any causal LM by Hugging Face name or path: with its weights, or with random ones.

    Refused if it has fewer than `vocab_size` tokens or `seq_len` positions.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would break our own progress line
    require_folder(name)
    try:
        config = AutoConfig.from_pretrained(name)
        positions = getattr(config, "max_position_embeddings", seq_len)
        fits = config.vocab_size >= vocab_size and positions >= seq_len
        if fits and pretrained:
            return _padded(AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32))
        if fits:
            return _padded(_from_config(config, seed))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f'model.path="{name}" could not be loaded: {error}. Give a folder saved by '
            f"save_pretrained, a Hugging Face name, or a preset: {', '.join(PRESETS)}"
        ) from error
    if positions < seq_len:
        raise ConfigError(
            f"{name} has {positions} positions, fewer than data.seq_len={seq_len}; set "
            f"data.seq_len to {positions} or less"
        )
    raise ConfigError(
        f"{name} has a vocabulary of {config.vocab_size}, smaller than the corpus' {vocab_size}; "
        "prepare the corpus with that model's tokenizer"
    )


def preset_config(preset: str, *, vocab_size: int, seq_len: int, dropout: float) -> Any:
    """The Hugging Face configuration of a preset."""
    require_known(preset, PRESETS, f'model.preset="{preset}" is not known')
    shape = PRESETS[preset]
    if dropout and shape.family == "llama":
        raise ConfigError(f"model.dropout={dropout}: LLaMA models have no dropout; set it to 0")
    from transformers import GPT2Config, LlamaConfig

    common: dict[str, Any] = {"vocab_size": vocab_size, "use_cache": False}
    common |= {"bos_token_id": None, "eos_token_id": None}
    if shape.family == "gpt2":
        return GPT2Config(
            n_positions=max(shape.positions, seq_len),
            n_embd=shape.width,
            n_layer=shape.layers,
            n_head=shape.heads,
            n_inner=shape.feed_forward,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout),
            **common,
        )
    return LlamaConfig(
        hidden_size=shape.width,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.positions,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=shape.tied,
        pad_token_id=None,
        **common,
    )


def _from_config(config: Any, seed: int, **options: str) -> Any:
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key64(seed, "init") >> 1)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, **options)


def _padded(model: Any) -> PerSampleLoss:
    """Resize the embeddings, tied or not, to the padded vocabulary; new rows are zero."""
    vocab_size = model.config.vocab_size
    with torch.random.fork_rng(devices=[]), torch.no_grad():  # new rows are drawn at first
        model.resize_token_embeddings(vocab_size, PAD_TO, mean_resizing=False)
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            for parameter in layer.parameters(recurse=False):
                parameter[vocab_size:] = 0
    return PerSampleLoss(model, vocab_size)
