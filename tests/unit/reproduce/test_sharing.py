"""Artefacts in a folder that holds more, or other things, than they are asked for."""

import json
from dataclasses import replace

import pytest

from artefact_runs import TINY
from corpora import write_corpus
from dograph.errors import ConfigError, RunError
from dograph.eval.evaluate import EvalRequest
from dograph.reproduce import session
from dograph.reproduce.artefacts import Wanted, build_asks, find_artefact
from lab_runs import Here, imports_frozen

pytestmark = pytest.mark.slow

WIDE = "natural,plan=compare_mixers:Scout"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    with imports_frozen():
        yield write_corpus(tmp_path_factory.mktemp("sharing") / "corpus")


@pytest.fixture(scope="module")
def folder(corpus, tmp_path_factory):
    """Three methods and two seeds, one of them planned."""
    out = tmp_path_factory.mktemp("shared") / "out"
    made(asked(corpus, out, "validation-loss", WIDE, "2"))
    return out


def asked(corpus, out, name, methods, seeds, settings=TINY):
    return Wanted(
        artefact=find_artefact(name),
        settings=(*settings, f"data.corpus={corpus}"),
        seeds=seeds,
        methods=methods,
        proxy=("train.steps=1",) if "plan=" in methods else (),
        out=out,
        lab=out.parent / "lab",
    )


def made(wanted):
    """What is shown, what is told of it, what was trained, and what was said."""
    pool, said, asks = Here(), [], build_asks(wanted)
    studies = session.train(wanted, asks, pool, said.append)
    outcome = session.finish(studies, EvalRequest(), wanted.folder, lambda *_: None)
    trained = [job.label for job in pool.asked if job.label != "scout"]
    return outcome, trained, said


def read(folder, name):
    return json.loads((folder / name).read_text())


def compared(folder):
    """Every cell of compare.json, and its rows by method."""
    found = read(folder, "compare.json")
    return {cell["label"] for cell in found["cells"]}, {m["label"]: m for m in found["methods"]}


def test_fewer_rows_and_seeds_are_shown_and_nothing_is_lost(corpus, folder):
    before = read(folder, "ask.json")
    outcome, trained, said = made(asked(corpus, folder, "objectives", "natural", "1"))
    assert trained == []
    assert not [line for line in said if "plan" in line]
    assert [row[0] for row in outcome.tables[0].rows] == ["natural", "uniform"]
    assert outcome.data["methods"]["natural"]["loss_nats"]["seeds"] == 1
    assert read(folder, "reproduce.json")["artefacts"]["objectives"]["seeds"] == [10]
    assert read(folder, "ask.json") == before
    assert compared(folder)[0] == {"uniform-s10", "natural-s10"}
    assert len(list((folder / "cells").glob("*/result.json"))) == 6
    assert set(read(folder, "reproduce.json")["artefacts"]) == {"validation-loss", "objectives"}


def test_the_newest_table_of_a_name_is_stored(corpus, folder):
    stored = read(folder, "reproduce.json")["artefacts"]["validation-loss"]
    outcome, trained, _ = made(asked(corpus, folder, "validation-loss", "natural", "2"))
    assert (trained, len(outcome.tables[0].rows)) == ([], 2)
    newest = read(folder, "reproduce.json")["artefacts"]["validation-loss"]
    assert list(newest["mixers"]) == ["uniform", "natural"]
    _, trained, _ = made(asked(corpus, folder, "validation-loss", WIDE, "2"))
    again = read(folder, "reproduce.json")["artefacts"]["validation-loss"]
    assert (trained, again["results"]) == ([], stored["results"])


def test_only_what_is_asked_is_trained_beside_what_is_there(corpus, folder):
    """Other methods on another seed: the gaps between are left."""
    outcome, trained, _ = made(asked(corpus, folder, "objectives", "dynamic-loss", "12,"))
    assert trained == ["uniform-s12", "dynamic-loss-s12"]
    assert [row[0] for row in outcome.tables[0].rows] == ["uniform", "dynamic-loss"]
    cells, rows = compared(folder)
    assert cells == {"uniform-s12", "dynamic-loss-s12"}
    assert rows["dynamic-loss"]["differences"]["mean"]["seeds"] == 1
    ask = read(folder, "ask.json")
    assert list(ask["methods"]) == ["uniform", "natural", "plan", "dynamic-loss"]
    assert ask["seeds"] == [10, 11, 12]


def test_other_settings_are_still_refused(corpus, folder):
    longer = (*TINY, "train.steps=3")
    with pytest.raises(RunError, match=r"train.steps: 2 stored, 3 requested"):
        made(asked(corpus, folder, "objectives", "natural", "1", settings=longer))
    with pytest.raises(RunError, match=r"methods.natural.mixer.name: natural stored, unimax"):
        made(asked(corpus, folder, "objectives", "natural=unimax", "1"))


def test_a_method_that_cannot_be_built_any_more_stays_in_the_record(corpus, folder):
    ask = read(folder, "ask.json")
    ask["methods"]["gone"] = {"mixer": {"name": "no_such_module:Mixer"}, "sketch": {}}
    (folder / "ask.json").write_text(json.dumps(ask))
    _, trained, _ = made(asked(corpus, folder, "objectives", "natural", "1"))
    assert trained == []
    assert "natural" in compared(folder)[1]
    assert "gone" in read(folder, "ask.json")["methods"]


def test_rows_too_few_to_be_apart_are_told_before_training(corpus, tmp_path):
    """Three sources share ten rows as 4, 3, 3; eleven as 4, 4, 3."""

    def check(rows):
        wanted = asked(corpus, tmp_path / "out", "clusters", "dograph", "1")
        wanted = replace(wanted, settings=(*wanted.settings, f"probe.rows={rows}"))
        session.check(wanted, build_asks(wanted)[""], EvalRequest(), lambda *_: None)

    check(11)
    with pytest.raises(ConfigError, match=r"probe.rows=10 on .*two sources need 4 each"):
        check(10)
    assert not (tmp_path / "out").exists()
