"""What every kind of input is turned into before it is tokenised."""

from typing import NamedTuple


class Document(NamedTuple):
    """One text and the human label it came with."""

    source: str
    text: str
