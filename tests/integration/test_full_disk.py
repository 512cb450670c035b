"""A disk that really fills up: the run stops in words, keeps what it has, and goes on later."""

import subprocess

import pytest
from processes import SETTINGS, rows, run

from corpora import write_corpus
from dograph.train.checkpoint import check_checkpoint
from dograph.train.run_dir import RunDirectory
from page_runs import write_run


@pytest.fixture
def small_disk(request, tmp_path):
    """A file system of 6 MiB, or of another size, where the machine lets us mount one."""
    disk, size = tmp_path / "disk", getattr(request, "param", "6m")
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let us mount a file system")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=False)


@pytest.mark.slow
def test_training_survives_a_full_disk(small_disk, tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    directory = small_disk / "run"
    arguments = [f"data.corpus={corpus}", *SETTINGS, "checkpoint.keep=9"]
    _, err = run("train", f"run={directory}", *arguments, code=2)
    assert f"dograph train --resume {directory}" in err
    assert "No space left on device" in err
    assert "Traceback" not in err
    whole = RunDirectory(directory).checkpoint_steps()
    assert whole
    for step in whole:
        check_checkpoint(RunDirectory(directory).checkpoint(step))
    subprocess.run(["mount", "-o", "remount,size=200m", str(small_disk)], check=True)
    run("train", "--resume", str(directory))
    run("train", f"run={tmp_path / 'straight'}", *arguments)
    assert rows(directory) == rows(tmp_path / "straight")


@pytest.mark.slow
@pytest.mark.parametrize("small_disk", ["8k"], indirect=True)
def test_a_disk_with_no_room_for_the_first_file_is_told_in_words(small_disk, tmp_path):
    """It is full when files are closed or flushed, which does not tell their names."""
    corpus = write_corpus(tmp_path / "corpus")
    _, err = run("train", f"run={small_disk / 'run'}", f"data.corpus={corpus}", *SETTINGS, code=2)
    assert err.endswith("No space left on device; free disk space, or name another place\n")
    shown = write_run(tmp_path / "shown")
    for option in ("--out", "--figures"):
        _, err = run("report", str(shown), option, str(small_disk / "page"), code=2)
        assert "No space left on device; free disk space" in err
        assert "Traceback" not in err
