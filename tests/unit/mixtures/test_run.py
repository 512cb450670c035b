"""Exports to libraries that can be installed: their text is run, and draws are counted."""

import json

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
