"""A folder for comparisons of tiny runs, with a corpus."""

import pytest

from corpora import write_corpus
from lab_runs import imports_frozen


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    write_corpus(folder / "corpus")
    with imports_frozen():
        yield folder
