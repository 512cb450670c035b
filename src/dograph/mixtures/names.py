"""Names that published mixtures and corpora give the same sources, matched by name alone.

The literature passes weights as bare lists, so the order of a loader's domains decides what they
mean. DoGE's weights for SlimPajama are in the order arxiv, book, c4, cc, github, stackexchange,
wikipedia; Sow et al.'s loader for SlimPajama-6B enumerates cc before c4, and the same list then
silently gives CommonCrawl the weight of C4. Nothing here looks at positions.
"""

from collections.abc import Iterable, Mapping

from dograph.errors import ConfigError

# For each collection: the name we use -> other spellings, in lower case, letters and digits only.
# The name itself and its spelling with a collection's prefix are understood besides.
SPELLINGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "slimpajama": {
        "ArXiv": (),
        "Book": ("books",),
        "C4": ("c4en",),
        "CommonCrawl": ("cc",),
        "Github": (),
        "StackExchange": ("stackexchanges",),
        "Wikipedia": ("wiki",),
    },
    "pile": {
        "ArXiv": (),
        "BookCorpus2": (),
        "Books3": (),
        "DM Mathematics": ("dmmath",),
        "Enron Emails": ("enron",),
        "EuroParl": (),
        "FreeLaw": (),
        "Github": (),
        "Gutenberg (PG-19)": ("gutenberg", "pg19"),
        "HackerNews": (),
        "NIH ExPorter": ("nih",),
        "OpenSubtitles": (),
        "OpenWebText2": (),
        "PhilPapers": (),
        "Pile-CC": (),
        "PubMed Abstracts": (),
        "PubMed Central": ("pmc",),
        "StackExchange": (),
        "USPTO Backgrounds": ("uspto",),
        "Ubuntu IRC": (),
        "Wikipedia (en)": ("wikipedia", "wiki"),
        "YoutubeSubtitles": ("youtube",),
    },
}
PREFIXES: Mapping[str, tuple[str, ...]] = {
    "slimpajama": ("redpajama", "slimpajama"),
    "pile": ("thepile", "trainthepile"),
}


def squash(name: str) -> str:
    """Lower case, letters and digits only: "Pile-CC" and "pile_cc" become "pilecc"."""
    return "".join(c for c in name.lower() if c.isalnum())


def canonical(name: str, collection: str) -> str | None:
    """Our name of what a corpus calls `name`; None where the collection has no such source."""
    return _TABLES[collection].get(squash(name))


def by_canonical(sources: Iterable[str], collection: str) -> dict[str, str]:
    """Our name -> the corpus' own, for those of its sources that the collection has."""
    found: dict[str, str] = {}
    for source in sources:
        ours = canonical(source, collection)
        if ours is None:
            continue
        if ours in found:
            raise ConfigError(
                f'the corpus has both "{found[ours]}" and "{source}", which are spellings of '
                f'"{ours}"; give the weights by name instead: mixer.weights, or a mixture file'
            )
        found[ours] = source
    return found


def _table(collection: str) -> dict[str, str]:
    table: dict[str, str] = {}
    for ours, others in SPELLINGS[collection].items():
        for spelling in (squash(ours), *others):
            for prefix in ("", *PREFIXES[collection]):
                assert table.setdefault(prefix + spelling, ours) == ours, spelling
    return table


_TABLES = {collection: _table(collection) for collection in SPELLINGS}
