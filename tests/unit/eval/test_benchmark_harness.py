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
from harness import harness_log, harness_scores
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
    encoder=PromptEncoder.of(tokenizer, 50256),
    max_length={MAX_LENGTH},
    batch_size=16,
)
documents = [read_task(t, shared / "benchmarks").limited({ITEMS}) for t in TASKS.values()]
samples = harness_log(scorer, documents)
assert set(samples) == set(TASKS)
ours = evaluate_tasks(scorer, documents, lambda *_: None)
theirs = harness_scores(documents, samples)
cut = 0
for found, our in zip(documents, ours, strict=True):
    rows, items = samples[found.task.name], found.items
    asked = [tuple(pair) for row in rows for pair in row["arguments"]]
    pairs = [pair for item in items for pair in item.pairs]
    assert asked == pairs, found.task.name
    logged = [(float(nats), bool(hit)) for row in rows for nats, hit in row["filtered_resps"]]
    scored = scorer.score(scorer.texts(items), lambda *_: None)
    for a, (nats, greedy) in zip(scored, logged, strict=True):
        assert abs(a.nats - nats) <= 1e-6 * abs(nats), (found.task.name, a, nats)
        assert a.greedy == greedy
    their = theirs[found.task.name]
    for name in ("acc", "acc_norm", "bits_per_byte", "perplexity"):
        own = getattr(our, name)
        assert (own is None) == (name not in their), (found.task.name, name)
        if own is not None:
            value, error = their[name]
            assert abs(own.value - value) <= 1e-6 * max(1, abs(value)), (found.task.name, name)
            assert abs(own.se - error) <= 1e-6 * max(1, abs(error)), (found.task.name, name)
    assert our.items == len(items)
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
        "PYTHONPATH": os.pathsep.join(sys.path),
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
