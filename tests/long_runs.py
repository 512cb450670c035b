"""Run directories as long runs leave them, written without training.

`compact` is the present form: a short row per step, and one with everything every `log.every`
steps. Otherwise every row has everything, as older versions wrote it: 3.7 KB a step. Run as a
script, `python tests/long_runs.py FOLDER STEPS [old]` writes one to measure commands on.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from corpora import write_corpus
from dograph.config import RunConfig
from dograph.data.corpus import Corpus, even_blocks
from dograph.train.distributed import World
from dograph.train.run_dir import RunDirectory
from dograph.train.trainer import Trainer

SOURCES = ("ArXiv", "Book", "C4", "CommonCrawl", "Github", "StackExchange", "Wikipedia")
DOMAINS, BATCH, SEQ_LEN, WAYPOINT = 11, 48, 16, 256
LOG, EVAL = 10, 50  # log.every and eval.every by default
TAILS = 50  # rows that differ; the steps of a row are its own
PER_DOMAIN = ("share", "weight", "samples", "gradient_norm", "mean_norm")
PLAIN = (
    "entropy_nats",
    "max_relative_weight",
    "solver_residual",
    "fallback",
    "gradient_norm_ratio",
)
TIMES = ("forward_ms", "sketch_ms", "weigh_ms", "backward_ms", "update_ms")
DIGITS = 7  # of numbers of steps and graphs in the present form


def write_long_run(folder, steps, *, compact=True, graphs=True):
    """A complete run of DoGraph with lasting domains on a small corpus; returns its folder."""
    folder = Path(folder)
    corpus = folder.parent / "corpus"
    if not corpus.is_dir():
        write_corpus(corpus, dict.fromkeys(SOURCES, 2000))
    folder.mkdir(parents=True)
    values = {
        "run": str(folder),
        "data": {"corpus": str(corpus), "seq_len": SEQ_LEN},
        "model": {"preset": "tiny"},
        "mixer": {"name": "dograph", "recipe": "safe", "num_domains": DOMAINS},
        "train": {"steps": steps, "batch_size": BATCH},
        "log": {"every": LOG},
        "eval": {"every": EVAL},
    }
    (folder / "config.yaml").write_text(RunConfig.model_validate(values).dump())
    (folder / "env.json").write_text(json.dumps({"gpus": [], "world_size": 1, "torch_threads": 1}))
    rng = np.random.default_rng(0)
    separators = (",", ":") if compact else (", ", ": ")

    def tails(make):
        """Lines with %d for their step."""
        lines = (
            json.dumps({"step": "%d"} | make(rng), separators=separators) for _ in range(TAILS)
        )
        return [line.replace('"%d"', "%d") + "\n" for line in lines]

    write_rows(folder, steps, tails, compact=compact)
    every = LOG if compact else 1
    labels = tails(lambda rng: sample_row(rng))
    with open(folder / "samples.jsonl", "w") as file:
        file.writelines(labels[n % TAILS] % n for n in range(every, steps + 1, every))
    if graphs:
        graph = tails(lambda rng: graph_row(rng, compact=compact))
        with open(folder / "graph.jsonl", "w") as file:
            file.writelines(graph[n % TAILS] % n for n in range(EVAL, steps + 1, EVAL))
    write_small_files(folder, corpus, steps)
    return folder


def write_last_checkpoint(folder):
    """That of the last step, so that the run can be resumed; its weights are not trained."""
    run = RunDirectory(folder)
    trainer = Trainer(run.config(), run, World(rank=0, size=1, device=torch.device("cpu")))
    trainer.begin()
    run.checkpoints.mkdir()
    trainer.done = trainer.config.train.steps
    trainer.save()


def write_rows(folder, steps, tails, *, compact):
    """metrics.jsonl: a validation after every EVAL steps, epochs at every LOG."""
    short = tails(lambda rng: short_row(rng)) if compact else []
    whole = tails(lambda rng: whole_row(rng, compact=compact))
    logged = tails(lambda rng: whole_row(rng, compact=compact) | logged_row(rng, compact=compact))
    valid = tails(lambda rng: valid_row(rng, compact=compact))
    with open(folder / "metrics.jsonl", "w") as file:
        for step in range(1, steps + 1):
            kind = logged if step % LOG == 0 or step == steps else short or whole
            file.write(kind[step % TAILS] % step)
            if step % EVAL == 0 or step == steps:
                file.write(valid[step % TAILS] % step)


def rounded(row):
    def short(x):
        if isinstance(x, dict):
            return rounded(x)
        return [short(one) for one in x] if isinstance(x, list) else float(f"{x:.{DIGITS}g}")

    return {name: short(value) for name, value in row.items()}


def short_row(rng):
    loss, norm = (3 + rng.random(), rng.random())
    return rounded({"train/loss_nats": loss, "optim/grad_norm": norm})


def whole_row(rng, *, compact):
    row = short_row(rng) | {"optim/lr": 0.00025}
    nats = {source: 3 + rng.random() for source in SOURCES}
    if compact:
        bits = {source: x / 4 for source, x in nats.items()}
        row |= {"train/*/loss_nats": nats, "train/*/bits_per_byte": bits}
    else:
        for source, own in nats.items():
            row |= losses(f"train/{source}", own, compact=False)
    row |= {
        "train/weighted_loss_nats": rng.random(),
        "weights/effective_samples": 20 * rng.random(),
    }
    row |= {f"weights/{name}": rng.random() for name in PLAIN}
    row |= {f"domains/{name}": rng.random() for name in ("nmi", "purity", "batch_nmi")}
    row["weights/fallback"] = 0.0
    for name in PER_DOMAIN:
        values = rng.random(DOMAINS).tolist()
        if name == "samples":
            values = [float(round(BATCH * x)) for x in values]
        per_domain = {f"domains/{j}/{name}": value for j, value in enumerate(values)}
        row |= {f"domains/{name}": values} if compact else per_domain
    row |= {f"time/{name}": 100 * rng.random() for name in TIMES}
    return rounded(row) if compact else row


def logged_row(rng, *, compact):
    row = {"time/step_seconds": rng.random(), "time/tokens_per_second": 1e5 * rng.random()}
    epochs = {source: rng.random() for source in SOURCES}
    row |= (
        {"data/*/epochs": epochs} if compact else {f"data/{s}/epochs": epochs[s] for s in SOURCES}
    )
    for end in ("scale_samples", "scale_low_samples", "scale_high_samples"):
        scales = {source: 1e3 * rng.random() for source in SOURCES}
        by_source = {f"noise/{s}/{end}": scales[s] for s in SOURCES}
        row |= {f"noise/{end}": 1e3 * rng.random()}
        row |= {} if compact else by_source  # compact rows have them with validations
    return {**(rounded(row) if compact else row), "memory/peak_bytes": 3_123_456_789}


def valid_row(rng, *, compact):
    row = {}
    for name in (*SOURCES, "mean", "natural", "worst"):
        row |= losses(f"valid/{name}", 3 + rng.random(), compact=compact)
    return row


def losses(name, nats, *, compact):
    row = {f"{name}/loss_nats": nats} | ({} if compact else {f"{name}/ppl": math.exp(nats)})
    return row | {f"{name}/bits_per_byte": nats / 4}


def sample_row(rng):
    weights = [round(x, 6) for x in rng.random(BATCH).tolist()]
    return {"weight": weights, "domain": rng.integers(0, DOMAINS, BATCH).tolist()}


def graph_row(rng, *, compact):
    names = ("share", "weight", "norm", "gradient_norm", "spread")
    nodes = []
    for j in range(DOMAINS):
        numbers = rounded({name: rng.random() for name in names})
        nodes.append({"domain": j, **numbers, "samples": 70, "sources": dict.fromkeys(SOURCES, 10)})
    pairs = [(i, j) for i in range(DOMAINS) for j in range(i + 1, DOMAINS)]
    values = np.round(rng.random((len(pairs), 2)), 7).tolist()
    edges = [
        {"first": i, "second": j, "cosine": own[0], "mmd_squared": own[1]}
        for (i, j), own in zip(pairs, values, strict=True)
    ]
    parts = {"nodes": nodes, "edges": edges}
    if not compact:
        return parts
    return {n: {name: [one[name] for one in x] for name in x[0]} for n, x in parts.items()}


def write_small_files(folder, corpus, steps):
    """The weight log, two probes and the blocks of the last validation."""
    equal = dict.fromkeys(SOURCES, 1 / len(SOURCES))
    start = dict.fromkeys(SOURCES, 0)
    with open(folder / "weights.jsonl", "w") as file:
        for step in range(0, steps, WAYPOINT):
            drawn = dict.fromkeys(SOURCES, step * BATCH // len(SOURCES))
            row = {"step": step, "reason": "waypoint" if step else "plan", "weight": equal}
            row |= {"drawn": drawn, "base_step": 0, "base_drawn": start}
            file.write(json.dumps(row) + "\n")
    with open(folder / "validation.jsonl", "w") as file:
        for source in SOURCES:
            row = {"step": steps, "source": source, "predictions": [15] * 4}
            file.write(json.dumps(row | {"loss_nats": [3.0, 3.1, 3.2, 3.3]}) + "\n")
    blocks = even_blocks(Corpus(corpus), "validation", SEQ_LEN, 42)
    places = [block.place() for block in blocks]
    source_N = [SOURCES.index(place["source"]) for place in places]
    rows = {"source": torch.tensor(source_N, dtype=torch.int32)}
    rows |= {"label": torch.arange(len(blocks), dtype=torch.int32) % DOMAINS}
    rows |= {"loss": torch.ones(len(blocks))}
    (folder / "probes").mkdir()
    for step in (0, steps):
        stem = folder / "probes" / f"step-{step:08d}"
        noise_NK = torch.randn(len(blocks), 64, generator=torch.Generator().manual_seed(step))
        save_file(rows | {"sketch": noise_NK.bfloat16()}, f"{stem}.safetensors")
        about = {"step": step, "sources": list(SOURCES), "rows": places, "domains": None}
        stem.with_suffix(".json").write_text(json.dumps(about))


if __name__ == "__main__":
    write_long_run(sys.argv[1], int(sys.argv[2]), compact="old" not in sys.argv[3:])
    write_last_checkpoint(Path(sys.argv[1]))
