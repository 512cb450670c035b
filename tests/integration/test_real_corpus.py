"""Real text in SlimPajama's schema, GPT-2's tokenizer, 200 steps: as a new user would."""

import json
from pathlib import Path

import pytest
from processes import rows, run

SHARED = Path(__file__).parents[3] / "shared" / "data"
SOURCES = {
    f"RedPajama{name}"
    for name in ("ArXiv", "Book", "C4", "CommonCrawl", "Github", "StackExchange", "Wikipedia")
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not SHARED.is_dir(), reason=f"there is no real text at {SHARED}"),
]


def test_prepared_and_trained_for_200_steps(tmp_path):
    out, _ = run(
        "data",
        "prepare",
        str(SHARED / "slimpajama-mini"),
        "--recipe",
        "slimpajama-6b",
        "--tokenizer",
        str(SHARED / "gpt2-tokenizer" / "tokenizer.json"),
        "--out",
        str(tmp_path / "corpus"),
        seconds=400,
    )
    assert "54.1" in out
    manifest = json.loads((tmp_path / "corpus" / "manifest.json").read_text())
    entry = next(e for e in manifest["train"] if e["source"] == "RedPajamaArXiv")
    # The corpus' own README: 1,735,302 tokens in 386 documents, one end-of-text each on top.
    assert (entry["documents"], entry["tokens"]) == (386, 1_735_302 + 386)
    assert {e["source"] for e in manifest["validation"]} == SOURCES

    settings = ["model.preset=tiny", "train.steps=200", "train.batch_size=8", "data.seq_len=64"]
    where = [f"data.corpus={tmp_path / 'corpus'}", f"run={tmp_path / 'run'}"]
    out, _ = run("train", *where, *settings, "eval.max_samples_per_source=8", seconds=900)
    assert all(source in out for source in SOURCES)
    losses = [
        row["valid/mean/loss_nats"] for row in rows(tmp_path / "run") if "valid/mean/ppl" in row
    ]
    assert losses[-1] < losses[0] - 0.3
    last = rows(tmp_path / "run")[-1]
    assert all(f"valid/{source}/bits_per_byte" in last for source in SOURCES)
