"""Compressed streams: whole, joined, cut off, damaged."""

import gzip
import io
import lzma
from functools import partial

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dograph.data import formats
from dograph.data.formats import BrokenArchiveError, read_blocks
from text_inputs import COMPRESS

CONTENT = b"".join(b"line %d of a text\n" % n for n in range(30_000))
SUFFIXES = [".gz", ".xz", ".zst"]


def library_reader(suffix, content):
    """What the stock readers make of an archive, byte by byte, until they fail."""
    stream = io.BytesIO(content)
    readers = {
        ".gz": partial(gzip.GzipFile, fileobj=stream),
        ".xz": partial(lzma.LZMAFile, stream),
        ".zst": partial(zstandard.ZstdDecompressor().stream_reader, stream, read_size=1),
    }
    found = bytearray()
    with readers[suffix]() as reader:
        try:
            while piece := reader.read(1):
                found += piece
        except (EOFError, OSError, lzma.LZMAError, zstandard.ZstdError):
            pass
    return bytes(found)


def read_until_broken(path):
    """Content, and whether the end was missed."""
    found = bytearray()
    try:
        for content, _ in read_blocks(path):
            found += content
    except BrokenArchiveError:
        return bytes(found), True
    return bytes(found), False


@pytest.mark.parametrize("suffix", ["", *SUFFIXES])
@pytest.mark.parametrize("offset", [0, 1, 70_000, len(CONTENT)])
def test_content_from_any_offset(tmp_path, suffix, offset):
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(COMPRESS[suffix](CONTENT))
    blocks = list(read_blocks(path, offset))
    assert b"".join(content for content, _ in blocks) == CONTENT[offset:]
    if blocks:
        assert blocks[-1][1] == path.stat().st_size


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_streams_that_follow_each_other_are_one(tmp_path, suffix):
    path = tmp_path / f"a.jsonl{suffix}"
    padding = b"\0" * 8 if suffix == ".xz" else b""
    path.write_bytes(COMPRESS[suffix](CONTENT) + padding + COMPRESS[suffix](b"more\n"))
    assert read_until_broken(path) == (CONTENT + b"more\n", False)


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_cut_archive_gives_all_that_can_be_read(tmp_path_factory, suffix, data):
    text = CONTENT[:20_000]
    whole = COMPRESS[suffix](text)
    cut = data.draw(st.integers(1, len(whole) - 1))
    path = tmp_path_factory.mktemp("cut") / f"a.jsonl{suffix}"
    path.write_bytes(whole[:cut])
    found, broken = read_until_broken(path)
    assert broken
    assert text.startswith(found)
    assert len(found) >= len(library_reader(suffix, whole[:cut]))


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_damaged_archive_is_noticed_or_harmless(tmp_path_factory, suffix, data):
    whole = bytearray(COMPRESS[suffix](CONTENT[:20_000]))
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        whole[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("damaged") / f"a.jsonl{suffix}"
    path.write_bytes(whole)
    found, broken = read_until_broken(path)  # anything but BrokenArchiveError fails here
    # a checksum guards the content; a few header bytes (name, time, dates) say nothing of it
    assert broken or found == CONTENT[:20_000]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_garbage_after_an_archive_is_noticed(tmp_path, suffix):
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(COMPRESS[suffix](CONTENT) + b"garbage")
    assert read_until_broken(path) == (CONTENT, True)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_blocks_stay_small_however_well_the_archive_is_packed(tmp_path, suffix):
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(COMPRESS[suffix](b"a" * 50_000_000))
    sizes = [len(content) for content, _ in read_blocks(path)]
    assert sum(sizes) == 50_000_000
    assert max(sizes) <= formats.READ_BYTES
