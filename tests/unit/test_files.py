"""Durable files: whole after a crash, and the old ones where a write fails."""

import os

import pytest

from disk_calls import DiskCalls
from dograph.files import write_bytes, write_json


def test_content_is_on_disk_before_the_name_and_the_name_before_it_returns(tmp_path, monkeypatch):
    disk = DiskCalls(monkeypatch)
    write_json(tmp_path / "file.json", {"a": "ä"})
    disk.assert_outlasts_a_crash(tmp_path / "file.json")
    assert (tmp_path / "file.json").read_bytes() == '{\n  "a": "ä"\n}\n'.encode()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, call):
    write_bytes(tmp_path / "file", b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left"):
        write_bytes(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"
