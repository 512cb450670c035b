"""Models: the paper's sizes, Hugging Face's own loss, padding that leaves no trace."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from dograph.errors import ConfigError
from dograph.models.build import build_model, load_model, preset_config, require_folder
from dograph.models.presets import PRESETS
from dograph.train.checkpoint import restore_model, save_model

# Published counts: the recipe's for GPT-2 (true vocabulary 50257, 512 positions), TinyLlama's and
# Llama-3.2-3B's public ones for LLaMA with their own vocabularies.
SIZES = {
    "proxy-1m": (50432, 27.133e6),  # RegMix's: 1.3M and two vocabularies of 50,432
    "gpt2-proxy": (50257, 81.5e6),
    "gpt2-mini": (50257, 124.0e6),
    "gpt2-small": (50257, 209.1e6),
    "gpt2-medium": (50257, 294.2e6),
    "llama-1.1b": (32000, 1100.0e6),
    "llama-3.2-3b": (128256, 3212.7e6),
}


@pytest.mark.parametrize("preset", SIZES)
def test_presets_have_the_published_sizes(preset):
    vocab_size, expected = SIZES[preset]
    config = preset_config(preset, vocab_size=vocab_size, seq_len=512, dropout=0.0)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert model.num_parameters() == pytest.approx(expected, rel=1e-3)


@pytest.fixture(params=["tiny", "llama-tiny"])
def small(request):
    return build_model(request.param, vocab_size=1000, seq_len=64, dropout=0.0, seed=0)


def test_loss_is_hugging_faces_own(small, tmp_path):
    """Per-sample means, averaged, equal the loss that the saved model gives when loaded anew."""
    token_BT = torch.randint(0, 1000, (5, 64), generator=torch.Generator().manual_seed(0))
    save_model(small, tmp_path, None)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.vocab_size == 1000
    assert loaded.config._attn_implementation == "sdpa"  # ours stays out of the checkpoint
    for row in range(5):
        expected = loaded(token_BT[row : row + 1], labels=token_BT[row : row + 1]).loss
        assert torch.allclose(small(token_BT)[row], expected, rtol=1e-5)


def test_padded_rows_get_no_gradient_and_no_say(small):
    token_BT = torch.randint(0, 1000, (2, 64))
    before = small(token_BT).detach()
    small(token_BT).sum().backward()
    head = small.model.get_output_embeddings()
    assert len(head.weight) == 1024
    assert head.weight.grad[1000:].abs().max() == 0
    with torch.no_grad():
        head.weight[1000:] = 50.0
    assert torch.equal(small(token_BT).detach(), before)


def test_save_and_restore_is_exact_when_width_equals_the_padded_vocabulary(tmp_path):
    """A vocabulary of 60 pads to 64, the width of `tiny`: only embeddings may be trimmed."""
    first = build_model("tiny", vocab_size=60, seq_len=16, dropout=0.0, seed=0)
    second = build_model("tiny", vocab_size=60, seq_len=16, dropout=0.0, seed=1)
    save_model(first, tmp_path, None)
    restore_model(second, tmp_path)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_seed_decides_the_weights_and_nothing_else_does():
    torch.manual_seed(123)
    state = torch.random.get_rng_state()
    first = build_model("tiny", vocab_size=100, seq_len=16, dropout=0.0, seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(321)
    second = build_model("tiny", vocab_size=100, seq_len=16, dropout=0.0, seed=3)
    other = build_model("tiny", vocab_size=100, seq_len=16, dropout=0.0, seed=4)
    pairs = list(zip(first.parameters(), second.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)


def test_any_causal_lm_by_path(tmp_path):
    made = build_model("llama-tiny", vocab_size=300, seq_len=16, dropout=0.0, seed=0)
    save_model(made, tmp_path, None)
    token_BT = torch.randint(0, 300, (2, 16))
    kept = load_model(str(tmp_path), vocab_size=300, seed=0, pretrained=True)
    fresh = load_model(str(tmp_path), vocab_size=300, seed=9, pretrained=False)
    assert torch.allclose(kept(token_BT), made(token_BT))
    assert not torch.allclose(fresh(token_BT), made(token_BT))
    with pytest.raises(ConfigError, match="vocabulary of 300, smaller than the corpus' 301"):
        load_model(str(tmp_path), vocab_size=301, seed=0, pretrained=True)
    with pytest.raises(ConfigError, match=r"there is no folder .*nowhere; give a run"):
        load_model(str(tmp_path / "nowhere"), vocab_size=300, seed=0, pretrained=True)


def test_a_folder_that_is_not_there_is_no_name_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name in ("runs/nowhere", "./nowhere", "a/b/c", "/nowhere"):
        with pytest.raises(ConfigError, match=f"there is no folder {name}"):
            require_folder(name)
    for name in ("gpt2", "openai-community/gpt2", "runs"):
        require_folder(name)


def test_unknown_preset_names_the_nearest():
    with pytest.raises(ConfigError, match='did you mean "gpt2-small"'):
        preset_config("gpt2-smal", vocab_size=10, seq_len=8, dropout=0.0)
    assert {"gpt2-small", "gpt2-medium", "llama-1.1b", "llama-3.2-3b"} <= set(PRESETS)
