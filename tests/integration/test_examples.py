"""The examples run as they stand, on one process and on two, and the two endings agree."""

import ast
import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from corpora import write_corpus

EXAMPLES = Path(__file__).parents[2] / "examples"
LONGEST = {"two_passes": 15, "one_backward": 15, "head_loop": 20}
LIBRARIES = ("accelerate_loop", "hf_trainer", "lightning_trainer")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(*names, ranks=1):
    """What the examples print, run side by side: losses and largest weights, and the domains."""
    return [read(printed) for printed in printed_by(*names, ranks=ranks)]


def printed_by(*names, ranks=1, folder=None):
    launch = TORCHRUN if ranks == 2 else ()
    processes = [
        subprocess.Popen(
            [sys.executable, *launch, str(EXAMPLES / f"{name}.py")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
        for name in names
    ]
    try:
        outputs = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, said) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, said
    return [printed for printed, _ in outputs]


def read(printed):
    steps = re.findall(r"^step (\d+) loss (\S+) most (\S+)$", printed, re.MULTILINE)
    share, weight = (
        [float(x) for x in re.findall(rf"domains/{name}: \[(.*)\]", printed)[0].split(", ")]
        for name in ("share", "weight")
    )
    losses, most = ({int(row[0]): float(row[i]) for row in steps} for i in (1, 2))
    return {"losses": losses, "most": most, "share": share, "weight": weight}


def check(found):
    losses = list(found["losses"].values())
    assert list(found["losses"]) == [10, 20, 30, 40]
    assert losses[-1] < losses[0] - 0.8  # log(64) = 4.16 at first
    assert found["most"][10] == pytest.approx(1)  # no domains yet
    assert found["most"][40] > 1.05
    assert sum(found["share"]) == pytest.approx(1, abs=2e-3)
    assert sum(found["weight"]) == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize("name", LONGEST)
def test_the_loop_to_copy_is_short(name):
    text = (EXAMPLES / f"{name}.py").read_text()
    (loop,) = re.findall(r"^ *# --- the loop\n(.*?)^ *# ---$", text, re.MULTILINE | re.DOTALL)
    assert 5 < len(loop.splitlines()) <= LONGEST[name]


@pytest.mark.parametrize("name", LIBRARIES)
def test_an_example_of_another_library_has_at_most_25_lines_of_code(name):
    text = (EXAMPLES / f"{name}.py").read_text()
    _docstring, *body = ast.parse(text).body
    code = text.splitlines()[body[0].lineno - 1 :]
    assert len([line for line in code if line.strip()]) <= 25


@pytest.mark.slow
def test_the_examples_of_other_libraries_learn(tmp_path):
    """On a corpus with the names of the demo's; transformers and accelerate with two processes."""
    write_corpus(tmp_path / "data" / "demo", {"code": 20_000, "tests": 20_000}, vocab=256)
    printed_by("lightning_trainer", folder=tmp_path)
    (path,) = (tmp_path / "runs").rglob("metrics.csv")
    rows = list(csv.DictReader(path.open()))
    found = [[float(row["loss/unweighted"]) for row in rows]]
    accelerated, trained = printed_by("accelerate_loop", "hf_trainer", ranks=2, folder=tmp_path)
    steps = re.findall(r"^step (\d+) loss (\S+)$", accelerated, re.MULTILINE)
    assert [int(step) for step, _ in steps] == list(range(1, 41))  # once, not by both processes
    found.append([float(loss) for _, loss in steps])
    found.append([float(x) for x in re.findall(r"'loss/unweighted': '?([0-9.]+)", trained)])
    for losses in found:
        assert len(losses) >= 8
        assert losses[-1] < losses[0] - 0.3  # log(256) = 5.5 at first


@pytest.mark.slow
def test_both_endings_and_the_head_learn(tmp_path):
    """Losses agree to 1e-4 only if the gradients of every step before did."""
    two_passes, one_backward, head = run("two_passes", "one_backward", "head_loop")
    for found in (two_passes, one_backward, head):
        check(found)
    assert one_backward["losses"] == pytest.approx(two_passes["losses"], abs=1e-4)
    assert one_backward["most"] == pytest.approx(two_passes["most"], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two_passes", "one_backward"])
def test_two_ranks_find_the_domains_of_one(name):
    """The same world batches, so the same domains and weights; losses are those of rank 0."""
    (alone,), (together,) = run(name), run(name, ranks=2)
    check(together)
    assert together["share"] == pytest.approx(alone["share"], abs=2e-3)
    assert together["weight"] == pytest.approx(alone["weight"], abs=2e-3)
