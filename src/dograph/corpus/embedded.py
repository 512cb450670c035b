"""Corpora that need no download: prepared on first use, under data/ in the current directory."""

from pathlib import Path

from dograph.corpus.manifest import MANIFEST

EMBEDDED = ("demo", "unigram", "bigram")


def ensure_corpus(name: str) -> Path:
    """The folder of a prepared corpus; an embedded one is prepared if it is not there yet."""
    if name not in EMBEDDED:
        return Path(name).resolve()
    folder = Path("data") / name
    if not (folder / MANIFEST).is_file():
        from dograph.corpus.prepare import prepare_embedded

        prepare_embedded(name, folder)
    return folder.resolve()
