"""What a disk refuses is told in a line; long work is not begun for a file that cannot be."""

import errno
import os

import pytest

from dograph.cli import main
from dograph.cli.console import require_writable
from dograph.errors import ConfigError
from dograph.files import write_text


@pytest.mark.parametrize("number", main.DISK)
def test_a_full_or_read_only_disk_is_no_traceback(monkeypatch, capsys, number):
    def refuse():
        raise OSError(number, os.strerror(number), "out/page.html")

    monkeypatch.setattr(main, "app", refuse)
    with pytest.raises(SystemExit, match="2"):
        main.main()
    assert capsys.readouterr().err.startswith(f"error: out/page.html: {os.strerror(number)}; ")


def test_other_errors_of_the_system_keep_their_traceback(monkeypatch):
    def lose():
        raise OSError(errno.EIO, "broken", "file")

    monkeypatch.setattr(main, "app", lose)
    with pytest.raises(OSError, match="broken"):
        main.main()


def test_the_first_error_of_a_write_is_the_one_told(monkeypatch, tmp_path):
    def unlink(*_, **__):
        raise OSError(errno.EROFS, "second")

    monkeypatch.setattr("pathlib.Path.unlink", unlink)
    with pytest.raises(FileNotFoundError) as found:
        write_text(tmp_path / "none" / "file", "")
    assert found.value.filename == str(tmp_path / "none" / "file")


def test_a_result_that_cannot_be_written_is_refused_first(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a folder"):
        require_writable(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be written: .*--out"):
        require_writable(tmp_path / "file" / "eval.json")
    require_writable(tmp_path / "new" / "deep" / "eval.json")
    assert [left.name for left in tmp_path.iterdir()] == ["file"]  # a mistake may still be found
