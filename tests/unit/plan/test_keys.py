from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from corpora import SIZES, write_corpus
from dograph.data.corpus import Corpus
from dograph.plan.jobs import content_key, corpus_digest
from lab_runs import config_of


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return Corpus(write_corpus(tmp_path_factory.mktemp("corpus") / "c"))


def key(corpus, **parts):
    return content_key(config_of(corpus.directory, **parts), corpus)


def test_a_key_is_a_short_name(corpus):
    assert len(key(corpus)) == 16
    assert int(key(corpus), 16) >= 0


@pytest.mark.parametrize(
    "parts",
    [
        {"run": "elsewhere"},
        {"log": {"every": 3}},
        {"checkpoint": {"every": 0}},
        {"train": {"device": "cpu"}},
        {"train": {"shard": True}},
        {"data": {"warn_epochs": 1.0}},
    ],
    ids=str,
)
def test_what_changes_no_number_changes_no_key(corpus, parts):
    assert key(corpus, **parts) == key(corpus)


@pytest.mark.parametrize(
    "parts",
    [
        {"seed": 1},
        {"weights": {"alpha": 1.0, "beta": 2.0, "gamma": 3.0000000000000004}},
        {"steps": 13},
        {"optim": {"lr": 1e-3}},
        {"eval": {"every": 5}},
        {"data": {"seq_len": 16}},
        {"model": {"preset": "demo"}},
        {"train": {"batch_size": 4}},
        {"train": {"micro_batch_size": 2}},
        {"train": {"dtype": "bfloat16"}},
        {"eval": {"max_samples_per_source": 5}},
        {"sketch": {"dim": 80}},
        {"optim": {"warmup_steps": 3}},
    ],
    ids=str,
)
def test_what_changes_numbers_changes_the_key(corpus, parts):
    assert key(corpus, **parts) != key(corpus)


def test_the_corpus_counts_by_its_tokens(corpus, tmp_path):
    moved = Corpus(write_corpus(tmp_path / "moved"))
    assert key(moved) == key(corpus)
    grown = Corpus(write_corpus(tmp_path / "grown", {**SIZES, "gamma": 1001}))
    assert key(grown) != key(corpus)


def test_validation_text_counts_too(corpus, tmp_path):
    other = Corpus(write_corpus(tmp_path / "other"))
    entry = other.validation[0].entry.model_copy(update={"sha256": "0" * 64})
    validation = [entry, *(s.entry for s in other.validation[1:])]
    other.manifest.model_copy(update={"validation": validation}).write(tmp_path / "other")
    changed = Corpus(tmp_path / "other")
    assert changed.digest == corpus.digest
    assert key(changed) != key(corpus)


def test_validation_numbers_of_another_width_are_others(corpus, tmp_path):
    other = Corpus(write_corpus(tmp_path / "wide"))
    entry = other.validation[0].entry
    entry = entry.model_copy(update={"dtype": "uint32" if entry.dtype != "uint32" else "uint16"})
    validation = [entry, *(s.entry for s in other.validation[1:])]
    facts = SimpleNamespace(
        digest=other.digest, validation=[SimpleNamespace(entry=e) for e in validation]
    )
    assert corpus_digest(facts) != corpus_digest(other) == corpus_digest(corpus)


def test_a_reference_counts_by_its_weights(corpus, tmp_path):
    def model(name, value):
        (tmp_path / name).mkdir()
        save_file({"w": torch.full((3,), value)}, tmp_path / name / "model.safetensors")
        mixer = {"name": "doremi-proxy", "reference": str(tmp_path / name)}
        config = config_of(corpus.directory).model_dump() | {"mixer": mixer}
        return content_key(type(config_of(corpus.directory)).model_validate(config), corpus)

    assert model("a", 1.0) == model("b", 1.0)
    assert model("c", 2.0) != model("d", 1.0)


def test_a_finished_run_as_reference_counts_by_its_model(corpus, tmp_path):
    def named(name, value):
        (tmp_path / name / "model").mkdir(parents=True)
        save_file({"w": torch.full((3,), value)}, tmp_path / name / "model" / "model.safetensors")
        mixer = {"name": "doremi-proxy", "reference": str(tmp_path / name)}
        config = config_of(corpus.directory).model_dump() | {"mixer": mixer}
        return content_key(type(config_of(corpus.directory)).model_validate(config), corpus)

    assert named("a", 1.0) == named("b", 1.0)
    assert named("c", 2.0) != named("d", 1.0)


def test_a_model_to_start_from_counts_by_its_weights(corpus, tmp_path):
    def started(name, value):
        (tmp_path / name).mkdir()
        save_file({"w": torch.full((3,), value)}, tmp_path / name / "model.safetensors")
        return key(corpus, model={"preset": None, "path": str(tmp_path / name)})

    assert started("a", 1.0) == started("b", 1.0)
    assert started("c", 2.0) != started("d", 1.0)
    hub = {"preset": None, "path": "nobody/such-a-model"}  # a name of the hub: by itself
    assert key(corpus, model=hub) != key(corpus, model={**hub, "path": "nobody/another"})
