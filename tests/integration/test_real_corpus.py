"""Real text in SlimPajama's schema, GPT-2's tokenizer, some training: as a new user would."""

import json
import lzma
from itertools import islice
from pathlib import Path

import pytest
from processes import rows, run

SHARED = Path(__file__).parents[3] / "shared" / "data"
# Documents taken of the large sources, a tenth of them or so; the others are whole.
FIRST = {"RedPajamaCommonCrawl": 2500, "RedPajamaC4": 2000, "RedPajamaGithub": 200}
SOURCES = {
    f"RedPajama{name}"
    for name in ("ArXiv", "Book", "C4", "CommonCrawl", "Github", "StackExchange", "Wikipedia")
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not SHARED.is_dir(), reason=f"there is no real text at {SHARED}"),
]


@pytest.fixture
def text(tmp_path):
    """A folder of real text, and the bytes of text in each of its sources."""
    num_bytes = {}
    for part in ("train", "validation"):
        (tmp_path / "text" / part).mkdir(parents=True)
        for source in SOURCES:
            name = Path(part) / f"{source}.jsonl.xz"
            limit = FIRST.get(source) if part == "train" else None
            with lzma.open(SHARED / "slimpajama-mini" / name) as file:
                lines = list(islice(file, limit))
            with lzma.open(tmp_path / "text" / name, "wb", preset=0) as file:
                file.writelines(lines)
            if part == "train":
                num_bytes[source] = sum(len(json.loads(x)["text"].encode()) for x in lines)
    return tmp_path / "text", num_bytes


def test_prepared_and_trained(tmp_path, text):
    folder, num_bytes = text
    tokenizer = str(SHARED / "gpt2-tokenizer" / "tokenizer.json")
    options = ("--recipe", "slimpajama-6b", "--tokenizer", tokenizer)
    out, _ = run(
        "data", "prepare", str(folder), *options, "--out", str(tmp_path / "corpus"), seconds=700
    )
    table = {row.split()[0]: row for row in out.splitlines() if row.startswith("RedPajama")}
    assert table.keys() == SOURCES
    for source, size in num_bytes.items():
        assert f"{100 * size / sum(num_bytes.values()):.1f} %" in table[source]
    manifest = json.loads((tmp_path / "corpus" / "manifest.json").read_text())
    entries = {entry["source"]: entry for entry in manifest["train"]}
    assert {name: entries[name]["documents"] for name in FIRST} == FIRST
    arxiv = entries["RedPajamaArXiv"]
    # The corpus' own README: 1,735,302 tokens in 386 documents, one end-of-text each on top.
    assert (arxiv["documents"], arxiv["tokens"]) == (386, 1_735_302 + 386)
    assert {e["source"] for e in manifest["validation"]} == SOURCES

    settings = ["model.preset=tiny", "train.steps=40", "train.batch_size=8", "data.seq_len=64"]
    settings += ["eval.every=20", "eval.max_samples_per_source=8"]
    where = [f"data.corpus={tmp_path / 'corpus'}", f"run={tmp_path / 'run'}"]
    out, _ = run("train", *where, *settings, seconds=700)
    assert all(source in out for source in SOURCES)
    losses = [
        row["valid/mean/loss_nats"] for row in rows(tmp_path / "run") if "valid/mean/ppl" in row
    ]
    assert losses[-1] < losses[0] - 0.3
    last = rows(tmp_path / "run")[-1]
    assert all(f"valid/{source}/bits_per_byte" in last for source in SOURCES)
