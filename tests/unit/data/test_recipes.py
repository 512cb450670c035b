"""The paper's two corpora: the tables, and what is printed beside them."""

import re
from pathlib import Path

import pytest

from dograph.cli.data import composition, print_composition
from dograph.data.inputs import RECIPES
from text_inputs import lines, prepare, read_back, text, write_tokenizer

SHARED = Path(__file__).parents[4] / "shared"
needs_shared = pytest.mark.skipif(
    not (SHARED / "paper" / "dograph.tex").is_file(), reason="the shared folder is not there"
)


@pytest.mark.shared
@needs_shared
def test_the_tables_are_the_papers():
    paper = (SHARED / "paper" / "dograph.tex").read_text()
    shares = re.findall(r"^ +([A-Z][\w ]+?) +& ([\d.]+)\\% *\\\\$", paper, re.MULTILINE)
    table = RECIPES["slimpajama-6b"].table
    assert sorted(float(share) for _, share in shares) == sorted(table.values())
    for name, share in shares:
        key = name.replace(" ", "").lower().removesuffix("s")
        assert table[next(s for s in table if key in s.lower())] == float(share)
    pile = re.findall(r"^(\\rowcolor\{rowgray\} )?([^&\n]+?) & ([\d.]+) GiB", paper, re.MULTILINE)
    kept = {name.replace(" ", "").lower(): float(size) for grey, name, size in pile if not grey}
    assert len(pile) == 22
    assert len(kept) == 17
    ours = RECIPES["pile"].table
    assert {name.replace(" ", "").lower(): size for name, size in ours.items()} == kept


def test_shares_are_among_the_sources_of_the_table():
    for recipe in RECIPES.values():
        assert sum(recipe.shares().values()) == pytest.approx(1)
    assert RECIPES["pile"].shares()["Pile-CC"] == pytest.approx(227.12 / 940.83, abs=1e-5)
    assert RECIPES["slimpajama-6b"].shares()["RedPajamaC4"] == pytest.approx(0.287)


def test_the_pile_leaves_out_what_is_no_longer_available(tmp_path, capsys):
    tokenizer = str(write_tokenizer(tmp_path / "tokenizer.json"))
    names = ["Pile-CC", "Books3", "Wikipedia (en)", "Books3", "YoutubeSubtitles", "Pile-CC"]
    records = [{"text": text(n), "meta": {"pile_set_name": name}} for n, name in enumerate(names)]
    (tmp_path / "00.jsonl").write_bytes(lines(records))
    options = {"recipe": "pile", "tokenizer": tokenizer, "validation_fraction": 0}
    manifest = prepare(tmp_path / "out", tmp_path / "00.jsonl", **options).manifest
    assert read_back(tmp_path / "out") == {
        ("train", "Pile-CC"): [text(0), text(5)],
        ("train", "Wikipedia (en)"): [text(2)],
    }
    assert manifest.repairs == {"excluded: Books3": 2, "excluded: YoutubeSubtitles": 1}
    rows = {row.source: row for row in composition(manifest)}
    size = [len(text(n).encode()) for n in (0, 5, 2)]
    assert rows["Pile-CC"].share == pytest.approx((size[0] + size[1]) / sum(size))
    assert rows["Pile-CC"].paper_share == RECIPES["pile"].shares()["Pile-CC"]
    print_composition(manifest)
    head, absent = "in the paper's table, but not in this corpus: ", capsys.readouterr().out
    absent = next(line for line in absent.splitlines() if line.startswith(head))
    absent = absent.removeprefix(head).split(", ")
    assert len(absent) == 15
    assert "EuroParl" in absent


def test_slimpajama_takes_its_sources_from_the_label(tmp_path):
    tokenizer = str(write_tokenizer(tmp_path / "tokenizer.json"))
    names = ["RedPajamaC4", "RedPajamaBook", "RedPajamaC4", "RedPajamaBook", "SomethingNew"]
    records = [
        {"text": text(n), "meta": {"redpajama_set_name": name}} for n, name in enumerate(names)
    ]
    (tmp_path / "any.jsonl").write_bytes(lines(records))
    options = {"recipe": "slimpajama-6b", "tokenizer": tokenizer, "validation_fraction": 0}
    manifest = prepare(tmp_path / "out", tmp_path / "any.jsonl", **options).manifest
    rows = {row.source: row for row in composition(manifest)}
    assert {name: row.documents for name, row in rows.items()} == {
        "RedPajamaC4": 2,
        "RedPajamaBook": 2,
        "SomethingNew": 1,
    }
    assert rows["RedPajamaC4"].paper_share == pytest.approx(0.287)
    assert rows["SomethingNew"].paper_share is None


@pytest.mark.shared
@pytest.mark.skipif(
    not (SHARED / "data" / "slimpajama-mini").is_dir(), reason="the shared folder is not there"
)
def test_token_counts_agree_with_those_published_with_the_corpus(tmp_path):
    """The published counts leave the end of text out; ours adds one token a document."""
    readme = (SHARED / "data" / "slimpajama-mini" / "README.md").read_text()
    published = {
        cells[1]: (int(cells[7]), int(cells[9].replace(",", "")))
        for cells in (
            [cell.strip() for cell in line.split("|")]
            for line in readme.splitlines()
            if re.match(r"\| RedPajama\w+ \| \d+ \| [\d.]+ \| [\d.]+%", line)
        )
    }
    assert len(published) == 7
    names = ("RedPajamaWikipedia", "RedPajamaStackExchange")
    folder = SHARED / "data" / "slimpajama-mini" / "validation"
    options = {
        "tokenizer": str(SHARED / "data" / "gpt2-tokenizer" / "tokenizer.json"),
        "recipe": "slimpajama-6b",
        "validation_fraction": 0,
    }
    inputs = [folder / f"{name}.jsonl.xz" for name in names]
    manifest = prepare(tmp_path / "out", *inputs, **options).manifest
    for row in composition(manifest):
        assert (row.documents, row.tokens - row.documents) == published[row.source]
    assert manifest.tokenizer.eot_id == 50256
    assert manifest.train[0].dtype == "uint16"
