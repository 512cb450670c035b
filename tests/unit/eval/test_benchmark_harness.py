"""The built-in scorer against lm-evaluation-harness itself, on real questions, offline."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[4] / "shared" / "data"
ITEMS, MAX_LENGTH = 25, 224

pytestmark = [
    pytest.mark.slow,
    pytest.mark.shared,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not (SHARED / "benchmarks").is_dir(), reason="no shared benchmarks"),
]

# In a process of its own: being offline is settled when the libraries are first imported.
CODE = f"""
import sys
import torch
from pathlib import Path
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from dograph.eval import scores
from dograph.eval.scores import PromptEncoder, Scorer, evaluate_tasks
from dograph.eval.tasks import TASKS, read_task
from dograph.models.loss import PerSampleLoss

shared = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
config = GPT2Config(
    n_positions={MAX_LENGTH}, n_embd=32, n_layer=2, n_head=2, initializer_range=0.3
)
model = GPT2LMHeadModel(config).eval()
file = str(shared / "gpt2-tokenizer" / "tokenizer.json")
tokenizer = PreTrainedTokenizerFast(tokenizer_file=file)
scorer = Scorer(
    model=PerSampleLoss(model, 50257),
    encoder=PromptEncoder(tokenizer, 50256),
    max_length={MAX_LENGTH},
    batch_size=16,
)
documents = [read_task(t, shared / "benchmarks").limited({ITEMS}) for t in TASKS.values()]
samples = scores.harness_log(scorer, documents)
scores.harness_log = lambda *_: samples  # once is slow enough
assert set(samples) == set(TASKS)
ours = evaluate_tasks(scorer, documents, "builtin", lambda *_: None)
theirs = evaluate_tasks(scorer, documents, "lm-eval", lambda *_: None)
cut = 0
for found, our, their in zip(documents, ours, theirs, strict=True):
    rows, items = samples[found.task.name], found.items
    asked = [tuple(pair) for row in rows for pair in row["arguments"]]
    pairs = [pair for item in items for pair in item.pairs]
    assert asked == pairs, found.task.name
    logged = [(float(nats), bool(hit)) for row in rows for nats, hit in row["filtered_resps"]]
    scored = scorer.score(scorer.texts(items), lambda *_: None)
    for a, (nats, greedy) in zip(scored, logged, strict=True):
        assert abs(a.nats - nats) <= 1e-6 * abs(nats), (found.task.name, a, nats)
        assert a.greedy == greedy
    for name in ("acc", "acc_norm", "bits_per_byte", "perplexity"):
        a, b = getattr(our, name), getattr(their, name)
        assert (a is None) == (b is None), (found.task.name, name)
        if a is not None:
            assert abs(a.value - b.value) <= 1e-6 * max(1, abs(b.value)), (found.task.name, name)
            assert abs(a.se - b.se) <= 1e-6 * max(1, abs(b.se)), (found.task.name, name)
    assert (our.items, our.chance, our.truncated) == (their.items, their.chance, their.truncated)
    cut += our.truncated
    print(found.task.name, our.items, our.acc.value, our.truncated)
assert cut > 0
"""


def test_the_built_in_scorer_gives_the_harness_numbers(tmp_path):
    pytest.importorskip("lm_eval")
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "nothing"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(SHARED)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=850,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) == 9
    # Documents and their caches were in a temporary folder, which is gone.
    assert not (tmp_path / "nothing" / "datasets").exists()
