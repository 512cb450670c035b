"""Slices of a corpus for tests: some texts, the rule that keeps them, and the command."""

import hashlib
from fractions import Fraction

from typer.testing import CliRunner

from dograph.cli.main import app
from text_inputs import text

TEXTS = [text(n) for n in range(400)]


def is_kept(content, keep, seed=0):
    """The rule written out with the standard library: a keyed hash as a fraction of its range."""
    key = hashlib.blake2b(f"{seed}\x1fstr:keep".encode(), digest_size=8).digest()
    digest = hashlib.blake2b(content.encode(), digest_size=8, key=key).digest()
    return Fraction(int.from_bytes(digest, "little"), 2**64) < Fraction(keep)


def prepare_by_command(*arguments):
    result = CliRunner().invoke(app, ["data", "prepare", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result
