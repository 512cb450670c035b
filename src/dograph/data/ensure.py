"""Corpora that need no download: prepared on first use, under data/ in the current directory."""

from collections.abc import Callable
from pathlib import Path

from dograph.data.inputs import EMBEDDED
from dograph.data.manifest import MANIFEST
from dograph.data.options import PrepareOptions
from dograph.data.pipeline import Progress, prepare


def ensure_corpus(name: str, report: Callable[[Progress], None] = lambda _: None) -> Path:
    """The folder of a corpus; an embedded one is prepared if it is not there yet."""
    if name not in EMBEDDED:
        return Path(name).resolve()
    folder = Path("data") / name
    if not (folder / MANIFEST).is_file():
        prepare(PrepareOptions(inputs=(name,), out=folder), report)
    return folder.resolve()
