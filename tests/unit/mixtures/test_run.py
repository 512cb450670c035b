"""Exports to libraries that can be installed: their text is run, and draws are counted.

litdata and LitGPT are installed without what they ask for: tests/loaders.txt.
"""

import json
import sys
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
    for number, name in enumerate([*DRAWN, "validation"]):
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
    places = {name: chunks[name] for name in DRAWN}
    made = {}
    exec(export_mixture("litdata", MIXTURE, places), made)
    assert_drawn(count(islice(made["train_dataset"](block_size=17), 3000)))


def test_litgpt(chunks, tmp_path, monkeypatch):
    """LitGPT's own command-line parser takes the data module, and its loaders serve it."""
    pytest.importorskip("litgpt", reason="installed as the head of this file says")
    jsonargparse = pytest.importorskip("jsonargparse")
    from litgpt.data import DataModule
    from litgpt.pretrain import setup

    places = {name: chunks[name] for name in DRAWN}
    (tmp_path / "mixture_data.py").write_text(export_mixture("litgpt", MIXTURE, places))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mixture_data", raising=False)
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_function_arguments(setup, as_positional=True)
    given = {"val_path": chunks["validation"], "num_workers": 0}
    config = {"class_path": "mixture_data.Mixture", "init_args": given}
    arguments = ["pythia-14m", "--data", json.dumps(config)]
    for line in (arguments, ["pythia-14m", "--data=mixture_data.Mixture", "--data.num_workers=0"]):
        data = parser.instantiate_classes(parser.parse_args(line)).data
        assert isinstance(data, DataModule)
        data.connect(tokenizer=None, batch_size=4, max_seq_length=16)
        batches = islice(data.train_dataloader(), 750)
        assert_drawn(count(block for batch in batches for block in batch))
        if line is arguments:
            assert next(iter(data.val_dataloader())).unique().tolist() == [len(DRAWN)]
