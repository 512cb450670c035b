"""Exports to libraries that can be installed: their text is run, and draws are counted.

litdata is installed without what it asks for: tests/loaders.txt.
"""

import json
from itertools import islice

import numpy as np
import pytest

from dograph.mixtures.export import export_mixture

MIXTURE = {"C4": 0.55, "it's\n#odd": 0.3, "Book": 0.15, "none": 0.0}
DRAWN = [name for name, weight in MIXTURE.items() if weight]


def assert_drawn(counts):
    """Each count within 5 standard deviations of a multinomial's; a swap would be 20 off."""
    total = sum(counts.values())
    assert total >= 2000
    for name in DRAWN:
        weight = MIXTURE[name]
        allowed = 5 * np.sqrt(total * weight * (1 - weight))
        assert abs(counts[name] - total * weight) < allowed, (name, counts)


def test_hugging_face_datasets(tmp_path):
    pytest.importorskip("datasets")
    places = {}
    for number, name in enumerate(DRAWN):
        folder = tmp_path / f"s{number}"
        folder.mkdir()
        rows = [json.dumps({"text": f"{i}", "source": name}) + "\n" for i in range(400)]
        (folder / "part.jsonl").write_text("".join(rows))
        places[name] = str(folder if number else folder / "*.jsonl")  # both kinds of place
    made = {}
    exec(export_mixture("hf", MIXTURE, places), made)
    counts = dict.fromkeys(DRAWN, 0)
    rows = list(made["dataset"])
    for row in rows:
        counts[row["source"]] += 1
    assert_drawn(counts)
    assert len({(row["source"], row["text"]) for row in rows}) == 400 * len(DRAWN)
    assert counts["C4"] > 400 == counts["Book"]  # one repeats until the last was read through


@pytest.fixture
def chunks(tmp_path):
    """A folder of litdata chunks for each source, all of its tokens the source's number."""
    litdata = pytest.importorskip("litdata", reason="installed as the head of this file says")
    import torch
    from litdata.streaming.writer import BinaryWriter

    places = {}
    for number, name in enumerate(DRAWN):
        places[name] = str(tmp_path / f"chunks{number}")
        loader = litdata.TokensLoader(block_size=17)
        writer = BinaryWriter(places[name], chunk_bytes="1MB", item_loader=loader)
        writer[0] = torch.full((60_000,), number, dtype=torch.int)
        writer.done()
        writer.merge(1)
    return places


def count(blocks):
    counts = dict.fromkeys(DRAWN, 0)
    for block in blocks:
        assert len(block) == 17
        counts[DRAWN[int(block[0])]] += 1
    return counts


def test_litdata(chunks):
    made = {}
    exec(export_mixture("litdata", MIXTURE, chunks), made)
    assert_drawn(count(islice(made["train_dataset"](block_size=17), 3000)))
