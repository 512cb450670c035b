"""Mixture files: what goes in comes out, and what does not fit the run is told."""

import dataclasses
import os

import numpy as np
import pytest
import yaml

from dograph.errors import ConfigError
from dograph.mixtures.file import (
    MixtureFile,
    Provenance,
    RunFacts,
    mismatches,
    read_mixture_file,
    write_mixture,
)

PROVENANCE = Provenance(
    method="regmix",
    made_by="dograph 0.1.0",
    corpus="c" * 64,
    tokenizer="a" * 64,
    tokenizer_name="bpe",
    vocab_size=4096,
    seq_len=128,
    proxy={"model": "tiny", "parameters": 1000, "steps": 50, "number": 64},
    target_tokens=1_000_000,
    seeds=[0, 1],
    settings={"surrogate": "ridge", "top_k": 8},
    command="dograph plan regmix",
)
FACTS = RunFacts(
    sources=["C4", "Book"],
    corpus="c" * 64,
    tokenizer="a" * 64,
    tokenizer_name="bpe",
    vocab_size=4096,
    seq_len=128,
    tokens=1_000_000,
)


def test_round_trip_keeps_every_bit(tmp_path):
    weights = {"C4": 1 / 3, "Bücher: 'x'": 2 / 3 - 1e-17, "no": 1e-17, "3": 0.0}
    findings = {"r": np.float64(0.1), "top": np.arange(3), "nested": {"ok": np.bool_(True), "n": 4}}
    file = MixtureFile(weights=weights, provenance=PROVENANCE, findings=findings)
    path = tmp_path / "new" / "mixture.yaml"
    write_mixture(path, file)
    back = read_mixture_file(path)
    assert back.weights == weights
    assert list(back.weights) == list(weights)
    assert back.provenance == PROVENANCE
    assert back.findings == {"r": 0.1, "top": [0, 1, 2], "nested": {"ok": True, "n": 4}}
    assert list(yaml.safe_load(path.read_text())) == ["weights", "provenance", "findings"]
    assert os.listdir(path.parent) == ["mixture.yaml"]


def test_numpy_weights_are_written_as_numbers(tmp_path):
    path = tmp_path / "m.yaml"
    write_mixture(path, MixtureFile(weights={"a": np.float64(0.25), "b": np.float64(0.75)}))
    assert path.read_text() == "weights:\n  a: 0.25\n  b: 0.75\n"


def test_what_a_file_cannot_hold_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"findings\.path holds PosixPath"):
        write_mixture(
            tmp_path / "m.yaml", MixtureFile(weights={"a": 1.0}, findings={"path": tmp_path})
        )
    with pytest.raises(ValueError, match="sum to 1"):
        MixtureFile(weights={"a": 0.5})
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_mixture(tmp_path / "file" / "m.yaml", MixtureFile(weights={"a": 1.0}))


def test_old_files_have_weights_alone(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text("weights: {a: 1, b: 3}\nmethod: by hand\n")
    file = read_mixture_file(path)
    assert file == MixtureFile(weights={"a": 0.25, "b": 0.75})
    assert file.mixture.weights == {"a": 0.25, "b": 0.75}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("weights: {a: 1}\nprovenance: {made_by: me}", r"provenance\.method: Field required"),
        ("weights: {a: 1}\nprovenance: 3", "must be a mapping with at least a `method`"),
        ("weights: {a: 1}\nprovenance: {method: x, seq_len: long}", r"provenance\.seq_len"),
        ("weights: {a: 1}\nfindings: [1]", "findings must be a mapping"),
        ("weights: {no: 1}", "quote the name"),
    ],
)
def test_bad_files_are_refused_with_the_place(tmp_path, content, message):
    path = tmp_path / "m.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message) as error:
        read_mixture_file(path)
    assert str(path) in str(error.value)


def test_keys_of_a_later_version_are_kept_and_named(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text("weights: {C4: 1}\nprovenance: {method: x, made_by: dograph 9, tokeniser: y}\n")
    file = read_mixture_file(path)
    (warning,) = mismatches(file.provenance, FACTS)
    assert "provenance.tokeniser" in warning
    assert "dograph 9" in warning
    assert 'did you mean "tokenizer"' in warning
    write_mixture(path, file)
    assert yaml.safe_load(path.read_text())["provenance"]["tokeniser"] == "y"


def test_nothing_to_say_where_all_fits():
    assert mismatches(PROVENANCE, FACTS, {"C4": 0.5, "Book": 0.5}) == []
    assert mismatches(PROVENANCE, FACTS, {"C4/0": 0.25, "C4/1": 0.25, "Book": 0.5}) == []
    assert mismatches(None, FACTS) == []
    assert mismatches(Provenance(method="x", made_by="y"), FACTS) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": "b" * 64}, "another tokenizer: bpe (4096 tokens), here bpe (4096 tokens)"),
        ({"seq_len": 256}, "samples of 128 tokens, here data.seq_len=256"),
        ({"corpus": "d" * 64}, "note: the mixture was made on another corpus"),
        ({"tokens": 4_000_001}, "planned for 1e+06 training tokens, this run has 4e+06"),
        ({"tokens": 249_999}, "planned for 1e+06 training tokens"),
        ({"sources": ["C4", "Book", "Wiki"]}, "does not name Wiki: not drawn"),
    ],
)
def test_each_mismatch_is_one_line(changes, message):
    facts = dataclasses.replace(FACTS, **changes)
    (warning,) = mismatches(PROVENANCE, facts, {"C4": 0.5, "Book": 0.5})
    assert message in warning
    assert "\n" not in warning


@pytest.mark.parametrize("tokens", [250_000, 4_000_000])
def test_a_budget_within_the_factor_is_no_mismatch(tokens):
    assert mismatches(PROVENANCE, dataclasses.replace(FACTS, tokens=tokens)) == []


@pytest.mark.parametrize(
    ("name", "vocab_size", "says"),
    [
        ("openai-community/gpt2", 50257, None),
        ("GPT-2", 50257, None),
        ("llama", 50257, "what may be another tokenizer"),
        ("gpt2", 32000, "made with another tokenizer"),
    ],
)
def test_tokenizers_without_content_are_compared_by_name_and_size(name, vocab_size, says):
    provenance = Provenance(method="x", made_by="y", tokenizer_name="gpt2", vocab_size=50257)
    facts = dataclasses.replace(FACTS, tokenizer_name=name, vocab_size=vocab_size)
    found = mismatches(provenance, facts)
    assert (says in found[0]) if says else not found
    assert len(found) == bool(says)


def test_regmixs_own_configuration_is_read(tmp_path):
    """As its scripts write it: a prior, or a mixture of a run."""
    file = tmp_path / "n1.yaml"
    file.write_text(
        "train:\n  train_the_pile_arxiv: 0.3\n  train_the_pile_pile_cc: 0.9\n"
        "valid:\n  valid_the_pile_arxiv: 1.0\nseed: 42\ntemperature: 0.5\nmodel_name: tiny\n"
    )
    assert read_mixture_file(file).weights == pytest.approx({"arxiv": 0.25, "pile_cc": 0.75})
    file.write_text("train:\n  train_the_pile_unzip_arxiv: 1\n  train_code: 1\n")
    assert set(read_mixture_file(file).weights) == {"arxiv", "code"}
    file.write_text("train: {train_code: 1}\nweights: {arxiv: 1}\n")
    assert set(read_mixture_file(file).weights) == {"arxiv"}
    file.write_text("train: [arxiv]\n")
    with pytest.raises(ConfigError, match="has no `weights`"):
        read_mixture_file(file)
