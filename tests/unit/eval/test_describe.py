"""What sets domains apart: the published formula, planted words, real samples of a written run."""

import json
import math
import re

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from typer.testing import CliRunner

from corpora import write_corpus
from dograph.cli.main import app
from dograph.data.corpus import Corpus, Manifest, even_blocks
from dograph.eval.describe import (
    EXCERPT,
    PRIOR,
    corpus_of,
    describe_domains,
    excerpt,
    log_odds_z,
    telling_words,
)
from dograph.eval.recorded import samples_of_step
from dograph.report.collect import collect, open_subjects
from dograph.train.assembly import open_sampler
from dograph.train.run_dir import RunDirectory
from dograph.types import Mixture
from page_runs import write_graphs, write_probes, write_run


def test_z_is_that_of_monroe_colaresi_and_quinn():
    """Equations 16, 19 and 22 of the paper, word by word."""
    count_MV = np.random.default_rng(0).integers(0, 9, (3, 7)).astype(float)
    for j in range(3):
        own, other = count_MV[j], count_MV.sum(axis=0) - count_MV[j]
        prior = [PRIOR * sum(count_MV[:, v]) / 3 for v in range(7)]
        for v in range(7):
            parts, variance = [], 0.0
            for y in (own, other):
                top = y[v] + prior[v]
                parts.append(math.log(top / (sum(y) + sum(prior) - top)))
                variance += 1 / top
            expected = (parts[0] - parts[1]) / math.sqrt(variance)
            assert log_odds_z(count_MV)[j, v] == pytest.approx(expected, rel=1e-12)


def test_planted_words_win_and_rare_or_repeated_ones_do_not():
    texts, labels = [], []
    for i in range(60):
        texts.append(f"the of and 12 ; {'planted' if i % 3 == 1 else 'common'} word{i}")
        labels.append(i % 3)
    texts[0] += " loud" * 500  # in one text only
    texts[3] += " rare"
    texts.append("<|endoftext|> the of and common")
    labels.append(0)
    words = telling_words(texts, labels)
    assert words[1] == ["planted"]
    assert not {"loud", "rare", "the", "endoftext", "12"} & {
        w for own in words.values() for w in own
    }


@pytest.mark.parametrize("texts", [[], ["one"], ["a a", "a"], ["", ""]])
def test_texts_without_differences_have_no_telling_words(texts):
    words = telling_words(texts, list(range(len(texts))))
    assert all(own == [] for own in words.values())
    assert len(words) == len(texts)


@pytest.mark.parametrize("seed", range(5))
def test_an_excerpt_ends_at_a_line(seed):
    rng = np.random.default_rng(seed)
    lines = ["x" * int(n) for n in rng.integers(0, 90, 40)]
    text = "\n".join(lines)
    shown = excerpt(text)
    assert shown.endswith(" …")
    assert len(shown) <= EXCERPT + 2
    whole = shown.removesuffix(" …").split("\n")
    start = text.strip("\n").split("\n")
    assert whole == start[: len(whole)]
    assert excerpt("short\n\ntext") == "short\n\ntext"
    assert excerpt("word " * 300).removesuffix(" …").endswith("word")
    assert len(excerpt("y" * 5000)) == EXCERPT + 2


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Domain 1 has every sample of one source, and each source has its own words."""
    folder = tmp_path_factory.mktemp("described")
    corpus = write_corpus(folder / "corpus")
    words = {f"word{'abcdefghij'[i // 10]} {i}": i for i in range(100)}  # ten words, and numbers
    Tokenizer(models.WordLevel(words, unk_token="worda 0")).save(str(corpus / "tokenizer.json"))
    manifest = Manifest.read(corpus)
    named = manifest.tokenizer.model_copy(update={"file": "tokenizer.json"})
    manifest.model_copy(update={"tokenizer": named}).write(corpus)
    run = write_run(folder / "run", mixer="dograph", options={"scope": "stream"}, corpus=corpus)
    sampler = open_sampler(RunDirectory(run).config(), Corpus(corpus))
    sampler.remix(0, Mixture({"alpha": 0.25, "beta": 0.5, "gamma": 0.25}), reason="plan")
    (run / "weights.jsonl").write_text(sampler.log.dump())
    domain = [int(row["source"] == "gamma") for row in samples_of_step(run, 60)]
    line = json.dumps({"step": 60, "weight": [1.0] * 8, "domain": domain})
    (run / "samples.jsonl").write_text(f"{line}\n")
    write_probes(run, corpus, at=(0, 40, 60), rows=36)
    return run


def test_rows_of_the_last_probe_are_counted(run):
    directory, corpus = RunDirectory(run), corpus_of(RunDirectory(run))
    assert describe_domains(directory, corpus, 39) == {}  # no domains at the probe of step 0
    profiles = describe_domains(directory, corpus, 50)
    rows = even_blocks(corpus, "validation", directory.config().data.seq_len, 36)
    for domain, source in ((1, "alpha"), (2, "beta"), (0, "gamma")):  # as write_probes labels them
        own = [row for row in rows if row.stratum.entry.source == source]
        found = profiles[domain]
        assert found.samples == len(own) == 12
        assert found.sources == [f"{source} 100% (33%)"]
        assert [block.place() for block in found.typical] == [row.place() for row in own[:3]]
    assert any(found.words for found in profiles.values())
    for domain, source in ((1, "alpha"), (2, "beta"), (0, "gamma")):
        for word in profiles[domain].words:
            has = {True: [], False: []}
            for row in rows:
                is_own = row.stratum.entry.source == source
                has[is_own].append(bool(re.search(rf"\b{word}\b", row.text(corpus))))
            assert np.mean(has[True]) > np.mean(has[False])


def test_without_a_corpus_or_a_probe_nothing_is_claimed(run, tmp_path):
    directory = RunDirectory(run)
    assert describe_domains(directory, None) == {}
    (run / "probes").rename(tmp_path / "kept")
    assert describe_domains(directory, corpus_of(directory)) == {}
    (tmp_path / "kept").rename(run / "probes")


@pytest.mark.parametrize("scope", ["batch", "stream"])
def test_the_last_probe_is_described_in_every_scope(run, tmp_path, scope):
    corpus = RunDirectory(run).config().data.corpus
    batch = write_run(tmp_path / "batch", mixer="dograph", options={"scope": scope}, corpus=corpus)
    write_probes(batch, corpus)
    directory = RunDirectory(batch)
    assert describe_domains(directory, corpus_of(directory), 0) == {}  # no clusters at that probe
    profiles = describe_domains(directory, corpus_of(directory))
    assert [own.samples for own in profiles.values()] == [4, 4, 4]
    assert all(len(own.typical) == 3 and len(own.sources) == 1 for own in profiles.values())


def test_show_and_the_page_have_the_words(run):
    write_graphs(run, num_domains=2)
    directory = RunDirectory(run)
    profiles = describe_domains(directory, corpus_of(directory), 60)
    assert profiles[1].name
    shown = {}
    for what in (["graph"], ["weights", "--step", "60"], ["samples", "--step", "60"]):
        found = CliRunner().invoke(app, ["show", what[0], str(run), *what[1:]])
        assert found.exit_code == 0, found.output
        shown[what[0]] = found.output
        assert "what sets domains apart" in found.output
        assert profiles[1].words[0] in found.output
    assert "domain" in shown["samples"].splitlines()[2]
    data = collect(open_subjects([run])).runs[0].domains
    assert data.names["1"] == profiles[1].name
    assert [one.name for one in data.lines[0].series][1] == f"domain 1: {profiles[1].name}"
    assert [item.title for item in data.described if getattr(item, "id", "") == "typical"]
