"""Mixtures from elsewhere: warned about at the start of a run, carried in its configuration."""

import pytest

from dograph.config import RunConfig
from dograph.data.corpus import Corpus, TokenizerEntry
from dograph.errors import ConfigError
from dograph.mixers.dograph import DEFAULT_RECIPE
from dograph.mixers.registry import build_mixer
from dograph.mixtures.file import MixtureFile, Provenance, write_mixture
from dograph.train.assembly import CorpusLab, facts_of, mixture_warnings, settled
from token_corpora import write_manifest, write_split


@pytest.fixture
def corpus(tmp_path):
    tokenizer = TokenizerEntry(name="bpe", file=None, sha256="a" * 64, vocab_size=99, eot_id=None)
    names = ["c4", "cc", "wiki"]
    splits = [write_split(tmp_path, "train", name, [[1] * 600]) for name in names]
    write_manifest(tmp_path, splits, tokenizer=tokenizer)
    return Corpus(tmp_path)


def config_of(corpus, name, **options):
    settings = {"data": {"corpus": str(corpus.directory), "seq_len": 32}}
    settings["train"] = {"steps": 100, "batch_size": 10}
    return RunConfig.model_validate(settings | {"mixer": {"name": name, **options}})


def test_facts(corpus):
    facts = facts_of(config_of(corpus, "natural"), corpus)
    assert (facts.sources, facts.tokenizer, facts.vocab_size) == (corpus.sources, "a" * 64, 99)
    assert (facts.seq_len, facts.tokens, facts.corpus) == (32, 32_000, corpus.digest)


def write(path, corpus, **changes):
    facts = {"corpus": corpus.digest, "tokenizer": "a" * 64, "seq_len": 32, "target_tokens": 32_000}
    provenance = Provenance(method="regmix", made_by="me", **(facts | changes))
    write_mixture(path, MixtureFile(weights={"c4": 0.5, "cc": 0.5}, provenance=provenance))
    return str(path)


def test_a_file_that_fits_but_for_a_source(tmp_path, corpus):
    file = write(tmp_path / "m.yaml", corpus)
    config = config_of(corpus, "static", file=file)
    told = [f"mixer.file={file}: the mixture does not name wiki: not drawn in this run"]
    assert mixture_warnings(config, corpus) == told


def test_a_mismatch_is_told_again_when_the_run_is_replayed(tmp_path, corpus):
    file = write(tmp_path / "m.yaml", corpus, tokenizer="b" * 64, seq_len=512)
    first = settled(config_of(corpus, "static", file=file))
    assert set(first.mixer.options) == {"weights", "provenance"}
    replayed = RunConfig.model_validate(first.model_dump(mode="json"))
    assert settled(replayed) == first
    warnings = mixture_warnings(replayed, corpus)
    assert [w.split(":")[0] for w in warnings] == ["mixer"] * 3
    assert "do not transfer between tokenizers" in warnings[0]
    assert "samples of 512 tokens, here data.seq_len=32" in warnings[1]
    mixer = build_mixer("static", replayed.mixer.options)
    assert mixer.provenance.tokenizer == "b" * 64


def test_files_of_stages_are_looked_at_too(tmp_path, corpus):
    files = [write(tmp_path / "a.yaml", corpus), write(tmp_path / "b.yaml", corpus, seq_len=64)]
    stages = {0: files[0], 50: files[1], 70: {"c4": 1}}
    config = config_of(corpus, "scheduled", stages=stages)
    assert sum("samples of 64" in w for w in mixture_warnings(config, corpus)) == 1
    replayed = settled(config)
    assert replayed.mixer.options["stages"][70] == {"c4": 1}
    warnings = [w for w in mixture_warnings(replayed, corpus) if "samples of 64" in w]
    assert warnings[0].startswith("mixer.stages.50: ")
    mixer = build_mixer("scheduled", replayed.mixer.options)
    assert [m.weights for m in mixer.schedule().values()][1] == {"c4": 0.5, "cc": 0.5}


def test_a_preset_says_what_it_lacks(corpus):
    config = config_of(corpus, "static", preset="doge-slimpajama")
    assert settled(config).mixer.options == {"preset": "doge-slimpajama"}
    warnings = mixture_warnings(config, corpus)
    assert all(w.startswith("mixer.preset=doge-slimpajama: ") for w in warnings)
    assert "another tokenizer: gpt2 (50257 tokens), here bpe (99 tokens)" in warnings[0]
    assert "samples of 512 tokens" in warnings[1]
    assert "no ArXiv, Book, Github, StackExchange" in warnings[2]


def test_weights_by_hand_and_other_mixers_are_nobodys_business(corpus):
    assert mixture_warnings(config_of(corpus, "static", weights={"c4": 1}), corpus) == []
    assert mixture_warnings(config_of(corpus, "natural"), corpus) == []
    own = config_of(corpus, "own_domains:Quadrants", file="notes.txt")
    assert mixture_warnings(own, corpus) == []
    assert settled(own).mixer.options == {"file": "notes.txt"}


def test_paths_that_exist_become_absolute(corpus, tmp_path, monkeypatch):
    """A run's configuration replays it from any folder; a hub's name stays a name."""
    (tmp_path / "reference").mkdir()
    monkeypatch.chdir(tmp_path)
    near = settled(config_of(corpus, "doremi-proxy", reference="reference"))
    assert near.mixer.options == {"reference": str((tmp_path / "reference").resolve())}
    far = settled(config_of(corpus, "doremi-proxy", reference="gpt2"))
    assert far.mixer.options == {"reference": "gpt2"}


@pytest.mark.parametrize("name", ["dograph", "dynamic-loss"])
def test_what_a_weighing_mixer_draws_may_be_a_mixture(tmp_path, corpus, name):
    file = write(tmp_path / "m.yaml", corpus, seq_len=512)
    config = config_of(corpus, name, sampling=file)
    replayed = settled(config)
    assert set(replayed.mixer.options["sampling"]) == {"weights", "provenance"}
    (tmp_path / "m.yaml").unlink()  # the run's configuration holds it
    lab = CorpusLab(replayed, corpus)
    for sampling in (replayed.mixer.options["sampling"], {"c4": 1, "cc": 1}):
        mixer = build_mixer(name, {"sampling": sampling})
        assert dict(mixer.plan(lab).weights) == {"c4": 0.5, "cc": 0.5}
    told = mixture_warnings(replayed, corpus)
    assert told[0].startswith("mixer.sampling: ")
    assert "samples of 512 tokens" in told[0]
    for named in ("natural", "uniform"):
        plain = config_of(corpus, name, sampling=named)
        assert settled(plain).mixer.options["sampling"] == named
        assert mixture_warnings(plain, corpus) == []


@pytest.mark.parametrize("name", ["dograph", "dynamic-loss"])
def test_what_is_no_way_to_draw_is_refused(name):
    with pytest.raises(ConfigError, match=r"mixer.sampling='even'.*mixture file \(.yaml\)"):
        build_mixer(name, {"sampling": "even"})
    wrong = RunConfig.model_validate({"mixer": {"name": name, "sampling": "even"}})
    assert settled(wrong).mixer.options["sampling"] == "even"  # not taken for a file
    with pytest.raises(ConfigError, match=r"mixer.sampling=3"):
        build_mixer(name, {"sampling": 3})


def test_remixing_starts_from_a_mixture_that_leaves_a_source_out(corpus):
    config = config_of(
        corpus, "dograph", recipe="safe", apply_weights_to="sampling", sampling={"c4": 1}
    )
    mixer = build_mixer("dograph", config.mixer.options)
    mixer.plan(CorpusLab(config, corpus))
    assert mixer.remixing.first == {"c4": 1.0, "cc": 0.0, "wiki": 0.0}


def test_the_default_recipe_is_named_in_the_configuration(corpus):
    assert settled(config_of(corpus, "dograph")).mixer.options == {"recipe": DEFAULT_RECIPE}
    kept = config_of(corpus, "dograph", recipe="safe", num_domains=3)
    assert settled(kept) == kept
