"""dograph compare as users run it: processes, a kill in the middle, a cell made again."""

import json
import os
import shlex
import signal

import pytest
from processes import SETTINGS, rows, run, start, wait_until

from corpora import write_corpus

pytestmark = pytest.mark.slow

RUN = (*SETTINGS, "train.steps=30", "probe.rows=0", "train.device=cpu")
METHODS = ("--mixers", "uniform,unimax", "--seeds", "2", "--workers", "2")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    write_corpus(folder / "corpus")
    return folder


def arguments(place, out):
    corpus = f"data.corpus={place / 'corpus'}"
    return ["compare", *RUN, corpus, *METHODS, "--out", str(place / out)]


def findings(place, out):
    return json.loads((place / out / "compare.json").read_text())


@pytest.fixture(scope="module")
def whole(place):
    out, err = run(*arguments(place, "whole"))
    return out, err, findings(place, "whole")


def finished(place, out):
    return sorted(path.parent.name for path in (place / out).glob("cells/*/result.json"))


def test_a_table_and_files(place, whole):
    out, err, found = whole
    assert "validation loss in nats, mean of 2 seeds" in out
    assert "no claim is made: 2 seeds" in out
    assert max(map(len, out.splitlines()[:20])) <= 100
    assert "6/6 cells" in err
    assert len(found["cells"]) == 6
    assert {cell["error"] for cell in found["cells"]} == {None}
    assert out.rstrip().endswith(f"page: {place}/whole/page.html")
    assert (place / "whole" / "page.html").is_file()


def test_ctrl_c_and_a_kill_in_the_middle_cost_nothing(place, whole):
    """Stopped after a cell, killed with its workers after another; the command ends as if left."""
    process = start(*arguments(place, "killed"))
    assert wait_until(lambda: finished(place, "killed"), process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=280)
    assert process.returncode == 128 + signal.SIGINT
    assert "the same command goes on" in err
    stopped = len(finished(place, "killed"))
    process = start(*arguments(place, "killed"))
    assert wait_until(lambda: len(finished(place, "killed")) > stopped, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = finished(place, "killed")
    assert stopped < len(before) < 6
    stamps = {
        name: (place / "killed" / "cells" / name / "result.json").stat().st_mtime_ns
        for name in before
    }
    run(*arguments(place, "killed"))
    for name, stamp in stamps.items():
        file = place / "killed" / "cells" / name / "result.json"
        assert file.stat().st_mtime_ns == stamp
    for here, there in zip(findings(place, "killed")["cells"], whole[2]["cells"], strict=True):
        assert here["losses"] == there["losses"]
        assert here["epochs"] == there["epochs"]
    ours, theirs = (findings(place, out)["methods"][1] for out in ("killed", "whole"))
    assert ours["differences"] == theirs["differences"]


def test_the_printed_command_makes_a_cell_again(place, whole):
    cell = whole[2]["cells"][-1]
    assert cell["command"] in whole[0].replace("\n", " ")
    setting, *words = shlex.split(cell["command"])
    assert (setting, words[0]) == ("OMP_NUM_THREADS=1", "dograph")
    elsewhere = place / "elsewhere"
    run(*[word.replace("ELSEWHERE", str(elsewhere)) for word in words[1:]])
    there = place / "whole" / "cells" / cell["label"]
    assert rows(elsewhere) == rows(there)
    for file in ("validation.jsonl", "weights.jsonl", "model/model.safetensors"):
        assert (elsewhere / file).read_bytes() == (there / file).read_bytes()


def test_other_settings_in_the_same_folder_are_refused(place, whole):
    _, err = run(*arguments(place, "whole"), "optim.lr=0.5", code=2)
    assert "optim.lr: 0.002 stored, 0.5 requested" in err


def test_a_failing_cell_is_named_and_the_exit_says_so(place):
    changed = [
        "uniform,bad=doremi-proxy" if word == "uniform,unimax" else word  # it has no reference
        for word in arguments(place, "failing")
    ]
    out, err = run(*changed, "train.steps=5", code=1)
    assert "bad (2 failed)" in out
    assert "names no reference model" in err
    assert len(finished(place, "failing")) == 4


def test_a_misspelt_source_is_told_before_any_cell(place):
    changed = [
        "uniform,bad=static[weights={nowhere: 1.0}]" if word == "uniform,unimax" else word
        for word in arguments(place, "misspelt")
    ]
    _, err = run(*changed, code=2)
    assert 'names "nowhere", which is not in the corpus; allowed: alpha, beta, gamma' in err
    assert not (place / "misspelt").exists()


def test_a_dry_run_tells_what_it_would_cost(place):
    out, _ = run(*arguments(place, "dry"), "--dry-run")
    assert "6 cells: 3 methods x 2 seeds (0, 1)" in out
    assert not (place / "dry").exists()
