"""benchmarks.evidence on tiny cells: what it writes, and that nothing is made twice."""

import argparse
import json

import pytest
from benchmarks import evidence
from benchmarks.measure import RESULTS

from corpora import write_corpus
from dograph.plan.jobs import Stopped
from lab_runs import Here


@pytest.fixture
def args(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    return argparse.Namespace(
        corpus=str(corpus), parts=["sceptic-natural"], arms=["plain"], out=tmp_path / "out",
        into=tmp_path / "found.json", known=[], benchmarks=None, limit=None, device="cpu",
        compile=False, steps=2, preset="tiny", seq_len=16,
    )  # fmt: skip


def cells(args):
    return json.loads(args.into.read_text())["cells"]


def test_cells_are_written_one_by_one_and_made_once(args):
    with pytest.raises(Stopped):
        evidence.collect(args, Here(most=1))
    assert [cell["seed"] for cell in cells(args)] == [10]
    first = cells(args)[0]
    pool = Here()
    assert evidence.collect(args, pool) == {}
    assert pool.made == ["natural_plain_700-s11", "natural_plain_700-s12"]
    assert [cell["seed"] for cell in cells(args)] == [10, 11, 12]
    assert cells(args)[0] == first
    assert not [path for path in (args.out / "cells").iterdir() if path.is_dir()]  # read, removed
    args.known, args.into = [args.into], args.into.with_name("other.json")
    pool = Here()
    evidence.collect(args, pool)
    assert pool.made == []


def test_a_record_has_the_fields_of_the_committed_ones(args):
    evidence.collect(args, Here(most=3))
    committed = json.loads((RESULTS / "evidence-second-h200.json").read_text())
    record = json.loads(args.into.read_text())
    assert list(record) == list(committed)
    assert set(record["config"]) == set(committed["config"])
    theirs = next(c for c in committed["cells"] if c["arm"] == "plain" and "tasks" not in c)
    ours = record["cells"][0]
    assert list(ours) == list(theirs)
    assert {name: type(value) for name, value in ours.items()} == {
        name: type(value) for name, value in theirs.items()
    }
    assert sum(ours["mixture"].values()) == pytest.approx(1, abs=1e-3)
    assert set(ours["blocks"]) == set(ours["losses"]) == set(ours["mixture"])


@pytest.mark.slow
def test_a_failure_costs_no_other_cell(args, monkeypatch):
    args.arms = ["plain", "inverse-norm"]
    made = evidence.configured

    def broken(cell, *rest):
        config = made(cell, *rest)
        mixer = config.mixer.model_validate({"name": "compare_mixers:Breaks"})
        plain = (cell.arm, cell.seed) != ("inverse-norm", 11)
        return config if plain else config.model_copy(update={"mixer": mixer})

    monkeypatch.setattr(evidence, "configured", broken)
    (why,) = evidence.collect(args, Here()).items()
    assert why[0] == "natural_inverse-norm_700-s11"
    assert "this mixer breaks" in why[1]
    assert len(cells(args)) == 5
