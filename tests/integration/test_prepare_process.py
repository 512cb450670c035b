"""Preparing as a real process: killed, interrupted, out of disk."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import wait_until

from text_inputs import files_of, lines, read_back, text, write_jsonl, write_tokenizer

# Many small chunks and a commit after each, so that a kill falls between any two of them.
PREPARE = """
import os, sys, time
from dograph.data import formats
from dograph.data import pipeline as preparation
formats.CHUNK_BYTES, formats.READ_BYTES, preparation.COMMIT_SECONDS = 20_000, 5_000, 0.0
pause, commit = float(os.environ.get("PAUSE", "0")), preparation.Preparation.commit
preparation.Preparation.commit = lambda self: (commit(self), time.sleep(pause))
sys.argv = ["dograph", "data", "prepare", *sys.argv[1:]]
from dograph.cli.main import main
main()
"""
SLOWLY = {**os.environ, "PAUSE": "0.1"}  # after every chunk: a busy test must not come too late


def start(*arguments, **keywords):
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **keywords,
    )


def run(*arguments, code=0, **keywords):
    process = start(*arguments, **keywords)
    out, err = process.communicate(timeout=280)
    assert process.returncode == code, f"exit {process.returncode}\n{out}\n{err}"
    return out, err


def chunks_done(out):
    """Documents that the journal has on record."""
    try:
        journal = json.loads((out / ".preparing" / "journal.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return 0
    return sum(output["documents"] for output in journal["outputs"])


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """About a megabyte in two forms, with a bad record and a cut one, and how to prepare it."""
    folder = tmp_path_factory.mktemp("inputs")
    tokenizer = write_tokenizer(folder / "tokenizer.json")
    web = write_jsonl(folder / "web.jsonl.xz", [text(n, 100) for n in range(600)])
    content = lines([{"text": text(n, 100)} for n in range(1000, 1500)])
    books = folder / "books.jsonl"
    books.write_bytes(content + b"{broken\n" + content[:5000])
    return web, books, "--tokenizer", tokenizer, "--bad-records", "repair", "--workers", 2


@pytest.fixture(scope="module")
def truth(tmp_path_factory, inputs):
    """What comes out when nothing goes wrong."""
    out = tmp_path_factory.mktemp("truth") / "out"
    run(*inputs, "--out", out)
    return files_of(out)


def test_killed_it_goes_on_to_the_same_corpus(tmp_path, inputs, truth):
    out = tmp_path / "out"
    process = start(*inputs, "--out", out)
    assert wait_until(lambda: chunks_done(out) >= 500, process)
    process.kill()
    process.communicate()
    assert not (out / "manifest.json").exists()
    run(*inputs, "--out", out)
    assert files_of(out) == truth
    table, _ = run(*inputs, "--out", out)
    assert "already prepared" in table


def heed_interrupts():
    """What shells start in the background ignores them, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
def test_interrupted_from_the_keyboard(tmp_path, inputs, truth):
    out = tmp_path / "out"
    process = start(
        *inputs, "--out", out, start_new_session=True, env=SLOWLY, preexec_fn=heed_interrupts
    )
    assert wait_until(lambda: chunks_done(out) >= 2, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=200)
    assert process.returncode == 130
    assert "continues where it stopped" in err
    assert "Traceback" not in err
    assert chunks_done(out) >= 2
    run(*inputs, "--out", out)
    assert files_of(out) == truth


def limit_file_size():
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))


def test_a_file_size_limit_is_met_like_a_full_disk(tmp_path, inputs, truth):
    out = tmp_path / "out"
    _, err = run(*inputs, "--out", out, code=2, preexec_fn=limit_file_size)
    assert "the disk is full" in err
    assert "MB are free" in err
    assert chunks_done(out) > 0
    run(*inputs, "--out", out)
    assert files_of(out) == truth


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 400 kB, and a way to make room on it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small file system to fill")
    yield (
        folder,
        lambda: subprocess.run(["mount", "-o", "remount,size=50m", str(folder)], check=True),
    )
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_loses_nothing(inputs, truth, small_disk):
    folder, make_room = small_disk
    _, err = run(*inputs, "--out", folder / "out", code=2)
    assert "the disk is full" in err
    assert "No space left" in err
    kept = chunks_done(folder / "out")
    assert kept > 0
    _, err = run(*inputs, "--out", folder / "out", code=2)  # still full: nothing is made worse
    assert "the disk is full" in err
    assert chunks_done(folder / "out") >= kept
    make_room()
    run(*inputs, "--out", folder / "out")
    assert files_of(folder / "out") == truth


def test_a_bad_record_is_named_without_a_traceback(tmp_path, inputs):
    strict = [argument for argument in inputs if argument not in ("--bad-records", "repair")]
    _, err = run(*strict, "--out", tmp_path / "out", code=2)
    assert f"{inputs[1]}:501: broken JSON" in err
    assert "--bad-records repair" in err
    assert "Traceback" not in err


def test_preparing_loads_no_deep_learning_library(tmp_path):
    (tmp_path / "poems").mkdir()
    (tmp_path / "poems" / "a.txt").write_text("one")
    (tmp_path / "poems" / "b.txt").write_text("two")
    code = PREPARE.replace("main()\n", "", 1).removesuffix("main()\n")
    code += "try: main()\nexcept SystemExit: pass\n"
    code += "assert not {'torch', 'transformers', 'datasets', 'pyarrow'} & set(sys.modules)\n"
    arguments = [str(tmp_path / "poems"), "--out", str(tmp_path / "out")]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, timeout=60)
    assert read_back(tmp_path / "out")


def peak_kilobytes(pid):
    """The most memory a process has had; /proc knows, getrusage mixes in what forked it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(n.split()[1]) for n in status.splitlines() if n.startswith("VmHWM")), 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """At 6 MB of text and at 18 MB."""
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    texts = [text(n, 200) for n in range(5_000)]
    peaks = []
    for copies in (1, 3):
        path = write_jsonl(tmp_path / f"{copies}.jsonl.xz", texts * copies)
        arguments = [path, "--out", tmp_path / f"out{copies}", "--tokenizer", tokenizer]
        process = subprocess.Popen(
            [sys.executable, "-m", "dograph", "data", "prepare", *arguments, "--workers", "2"],
            stdout=subprocess.DEVNULL,
        )
        peaks.append(0)
        while process.poll() is None:
            peaks[-1] = max(peaks[-1], peak_kilobytes(process.pid))
            time.sleep(0.02)
        assert process.returncode == 0
    small, large = peaks
    assert 0 < large < small + 16_000
