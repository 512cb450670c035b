"""Inspection: sources that differ are told apart, sources that do not are not."""

import numpy as np
import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score
from transformers.utils.logging import enable_progress_bar

from corpora import write_corpus
from dograph.config import parse_config
from dograph.data.corpus import Corpus, Manifest
from dograph.eval import inspect
from dograph.eval.inspect import (
    InspectRequest,
    choose_rows,
    inspect_model,
    open_subject,
    perceived,
)
from dograph.models.build import build_model
from dograph.sketch.sketcher import Sketcher
from dograph.train.checkpoint import save_model
from dograph.train.run_dir import RunDirectory
from mmd_oracles import mmd_squared


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """alpha and twin are draws from one distribution, beta is from another, tiny is too short."""
    directory = tmp_path_factory.mktemp("corpus") / "c"
    write_corpus(directory, {"alpha": 4000, "beta": 4000, "tiny": 40}, strata=2)
    manifest = Manifest.read(directory)

    def renamed(entries):
        names = {"alpha/1": "twin", "tiny/0": "tiny"}
        kept = [e for e in entries if e.stratum not in ("beta/1", "tiny/1")]
        return [e.model_copy(update={"source": names.get(e.stratum, e.source)}) for e in kept]

    validation = [e for e in renamed(manifest.validation) if e.source != "tiny"]
    update = {"train": renamed(manifest.train), "validation": validation}
    manifest.model_copy(update=update).write(directory)
    return directory


@pytest.fixture(scope="module")
def request_(directory):
    return InspectRequest(model="tiny", corpus=directory, rows=60, domains=4, seq_len=16, seed=0)


@pytest.fixture(scope="module")
def found(request_):
    return inspect_model(request_)


def test_only_sources_that_differ_are_told_apart(found):
    pairs = {frozenset((pair.first, pair.second)): pair for pair in found.pairs}
    assert pairs[frozenset(("alpha", "beta"))].p_value == pytest.approx(0.003)  # 3 pairs / 1000
    assert pairs[frozenset(("twin", "beta"))].p_value == pytest.approx(0.003)
    same = pairs[frozenset(("alpha", "twin"))]
    assert same.p_value > 0.05
    assert abs(same.separation) < 0.02 < pairs[frozenset(("alpha", "beta"))].separation
    assert [pair.separation for pair in found.pairs] == sorted(
        (pair.separation for pair in found.pairs), reverse=True
    )
    assert "tiny is left out: 0 rows of 16 tokens (validation text)" in found.notes
    assert any("untrained" in note for note in found.notes)


@pytest.fixture(scope="module")
def sketched(request_):
    """The rows, losses and sketches again, and the sources by name."""
    corpus = Corpus(request_.corpus)
    model, seq_len, _ = open_subject(request_, corpus)
    _, blocks, _ = choose_rows(corpus, seq_len, request_)
    token_NT = torch.from_numpy(np.stack([block.tokens() for block in blocks]))
    loss_N, sketch_NK = inspect.sketched(model, token_NT, request_, lambda *_: None)
    source_N = np.array([block.stratum.entry.source for block in blocks])
    return model, blocks, source_N, loss_N, sketch_NK


def test_sketches_are_those_of_one_backward_a_row(sketched):
    model, blocks, _, loss_N, sketch_NK = sketched
    token_BT = torch.from_numpy(np.stack([block.tokens() for block in blocks[:4]]))
    sketcher = Sketcher(model, mode="reference")
    with sketcher.record(token_BT):
        loss_B = model(token_BT)
        sketch_BK = sketcher.sketch(loss_B).sketch_BK
    assert torch.allclose(loss_N[:4], loss_B, rtol=1e-5)
    assert float((sketch_NK[:4] - sketch_BK).norm() / sketch_BK.norm()) < 1e-5


def test_figures_are_those_of_the_sketches(found, sketched):
    _, _, source_N, loss_N, sketch_NK = sketched
    own = {source: torch.from_numpy(source_N == source) for source in found.rows}
    for pair in found.pairs:
        distance = mmd_squared(sketch_NK[own[pair.first]], sketch_NK[own[pair.second]], "unbiased")
        assert pair.mmd_squared == pytest.approx(float(distance), rel=1e-6)
    assert found.loss_nats == pytest.approx({s: float(loss_N[n].mean()) for s, n in own.items()})
    label_N, _ = perceived(sketch_NK, 4, 0)
    assert found.nmi == pytest.approx(normalized_mutual_info_score(source_N, label_N.numpy()))
    for node in found.graph.nodes:
        inside = source_N[label_N.numpy() == node.domain]
        assert node.sources == {s: int((inside == s).sum()) for s in set(inside)}
    common = sum(max(node.sources.values()) for node in found.graph.nodes)
    assert found.purity == pytest.approx(common / 60)


def test_examples_are_members_nearest_the_centre(found, sketched):
    _, blocks, _, _, sketch_NK = sketched
    label_N, _ = perceived(sketch_NK, 4, 0)
    unit_NK = sketch_NK.double() / sketch_NK.double().norm(dim=1, keepdim=True)
    centred_NK = unit_NK - unit_NK.mean(dim=0)
    direction_NK = centred_NK / centred_NK.norm(dim=1, keepdim=True)
    for node in found.graph.nodes:
        own = (label_N == node.domain).nonzero()[:, 0]
        cosine = torch.cosine_similarity(direction_NK[own], direction_NK[own].mean(0)[None])
        places = [blocks[n].place() for n in own[cosine.argsort(descending=True)[:3]]]
        told = [(e.source, e.document) for e in found.examples if e.domain == node.domain]
        assert told == [(place["source"], place["document"]) for place in places]
    assert all(e.text is None for e in found.examples)  # this corpus has tokens alone


def test_a_corpus_without_validation_text_shows_what_was_trained_on(directory, tmp_path, request_):
    manifest = Manifest.read(directory)
    absolute = {e.stratum: str(directory / e.file) for e in manifest.train}
    train = [
        e.model_copy(
            update={
                "file": absolute[e.stratum],
                "documents_file": str(directory / e.documents_file),
            }
        )
        for e in manifest.train
    ]
    manifest.model_copy(update={"train": train, "validation": []}).write(tmp_path)
    split, blocks, notes = choose_rows(Corpus(tmp_path), 16, request_)
    assert split == "train"
    assert len(blocks) == 60
    (note,) = notes
    assert "training text, which the model may have seen" in note


@pytest.mark.parametrize("given", ["run", "run/model", "run/checkpoints/step-00000003/model"])
@pytest.mark.parametrize(("asked", "expected"), [(None, 24), (16, 16)])
def test_rows_are_as_long_as_those_of_the_run(directory, tmp_path, given, asked, expected):
    """Positions beyond were never trained, though the model has them."""
    run = RunDirectory(tmp_path / "run")
    run.create(parse_config({"data": {"seq_len": 24, "corpus": str(directory)}}, "test"), {})
    corpus = Corpus(directory)
    sizes = {"vocab_size": corpus.vocab_size, "seq_len": 64, "dropout": 0.0, "seed": 0}
    save_model(build_model("tiny", **sizes), run.checkpoint(3) / "model", None)
    run.link_model(3)
    request = InspectRequest(model=str(tmp_path / given), corpus=directory, seq_len=asked)
    assert open_subject(request, corpus)[1] == expected


def test_a_model_is_loaded_in_silence(directory, tmp_path, capfd):
    corpus = Corpus(directory)
    model = build_model("tiny", vocab_size=corpus.vocab_size, seq_len=64, dropout=0.0, seed=0)
    save_model(model, tmp_path / "model", None)
    capfd.readouterr()
    enable_progress_bar()  # as at the start; saving turned it off
    open_subject(InspectRequest(model=str(tmp_path / "model"), corpus=directory), corpus)
    assert capfd.readouterr() == ("", "")


def test_rows_of_a_model_that_no_run_made_are_256(directory, tmp_path):
    corpus = Corpus(directory)
    model = build_model("tiny", vocab_size=corpus.vocab_size, seq_len=512, dropout=0.0, seed=0)
    save_model(model, tmp_path / "model", None)
    request = InspectRequest(model=str(tmp_path / "model"), corpus=directory)
    assert open_subject(request, corpus)[1] == 256
