"""Run directories written by hand, as a trainer would leave them, and a corpus of hostile text."""

import json

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from corpora import write_corpus
from dograph.config import RunConfig
from dograph.data.corpus import Corpus, Manifest, even_blocks

SOURCES = ("alpha", "beta", "gamma")
SEQ_LEN = 16
HOSTILE = (
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 2</script>",
    '"><img src=x onerror="window.hacked = 3">',
    "<!--<script>",
    "'; window.hacked = 4; //",
    "\u202eright to left\u202c \u200f\u2067 \u2028 \u2029",
    "&lt;b&gt; &amp; $data ${title} $",
    "long" * 250_000,
)


def hostile_corpus(directory):
    """Every word of its tokenizer is one of HOSTILE, so every text is made of nothing else."""
    write_corpus(directory)
    words = {f"{i % len(HOSTILE)}: {HOSTILE[i % len(HOSTILE)]}" + " " * i: i for i in range(100)}
    Tokenizer(models.WordLevel(words, unk_token=next(iter(words)))).save(
        str(directory / "tokenizer.json")
    )
    manifest = Manifest.read(directory)
    named = manifest.tokenizer.model_copy(update={"file": "tokenizer.json"})
    manifest.model_copy(update={"tokenizer": named}).write(directory)
    return directory


def write_run(
    folder,
    *,
    steps=60,
    total=None,
    mixer="natural",
    options=None,
    seed=0,
    corpus="nowhere",
    valid=True,
    sources=SOURCES,
    every=20,
    model="tiny",
    worse=0.0,
    **own,
):
    """A run of `steps` steps. `own` are further columns by step: name=callable.

    `worse` is added to its losses: runs with the same seed are else identical.
    """
    folder.mkdir(parents=True)
    total = steps if total is None else total
    values = {
        "seed": seed,
        "run": str(folder),
        "data": {"corpus": str(corpus), "seq_len": SEQ_LEN},
        "model": {"preset": model},
        "mixer": {"name": mixer, **(options or {})},
        "train": {"steps": max(total, 20), "batch_size": 8},
    }
    (folder / "config.yaml").write_text(RunConfig.model_validate(values).dump())
    (folder / "env.json").write_text(json.dumps({"gpus": [], "world_size": 1, "torch_threads": 1}))
    rng = np.random.default_rng(seed)
    with open(folder / "metrics.jsonl", "w") as file:
        for step in range(1, steps + 1):
            row = step_row(step, rng, mixer, sources, own)
            row = {k: v + worse if k.endswith("loss_nats") else v for k, v in row.items()}
            file.write(json.dumps(row) + "\n")
            if valid and (step % every == 0 or step == steps):
                file.write(json.dumps(valid_row(step, sources, seed, worse)) + "\n")
    if valid and steps == total:
        write_validation(folder, steps, sources, seed, worse)
    return folder


def step_row(step, rng, mixer, sources, own):
    loss = 2.0 + 4.0 / (1 + step / 20) + 0.05 * rng.standard_normal()
    row = {"step": step, "train/loss_nats": loss, "train/ppl": float(np.exp(loss))}
    row |= {f"train/{s}/loss_nats": loss + 0.1 * k for k, s in enumerate(sources)}
    row |= {"weights/effective_samples": 8.0, "optim/lr": 1e-3, "optim/grad_norm": 1.0}
    row |= {"time/forward_ms": 10.0, "time/update_ms": 2.0}
    if mixer == "dograph":
        row |= {"time/sketch_ms": 20.0, "time/weigh_ms": 1.0, "weights/solver_residual": 0.0}
        row |= {"weights/max_relative_weight": 1.5, "weights/fallback": 0.0, "domains/nmi": 0.5}
        row |= {f"domains/{j}/weight": 1 / 3 for j in range(3)}
        row |= {f"domains/{j}/share": 1 / 3 for j in range(3)}
    if step % 10 == 0:
        row |= {"time/step_seconds": 0.05, "time/tokens_per_second": 2560.0}
        row |= {f"data/{s}/epochs": 0.01 * step for s in sources}
    return row | {name: make(step) for name, make in own.items()}


def valid_row(step, sources, seed, worse=0.0):
    nats = {s: 3.0 + 0.1 * k + 1.0 / step + 0.01 * seed + worse for k, s in enumerate(sources)}
    row = {"step": step} | {f"valid/{s}/loss_nats": value for s, value in nats.items()}
    row |= {f"valid/{s}/bits_per_byte": value / 3 for s, value in nats.items()}
    mean = sum(nats.values()) / len(nats)
    summaries = {"mean": mean, "natural": mean, "worst": max(nats.values())}
    return row | {f"valid/{name}/loss_nats": value for name, value in summaries.items()}


def write_validation(folder, step, sources, seed, worse=0.0):
    """Blocks whose mean is the last validation's loss."""
    row = valid_row(step, sources, seed, worse)
    with open(folder / "validation.jsonl", "w") as file:
        for source in sources:
            middle = row[f"valid/{source}/loss_nats"]
            told = {"step": step, "source": source, "predictions": [15] * 4}
            told["loss_nats"] = [middle - 0.2, middle + 0.2, middle - 0.1, middle + 0.1]
            file.write(json.dumps(told) + "\n")


def write_probes(run, corpus, at=(0, 30, 60), rows=12, num_domains=3):
    """Probes of real rows of a corpus, whose sketches drift; the first one knows no domains."""
    opened = Corpus(corpus)
    blocks = even_blocks(opened, "validation", SEQ_LEN, rows)
    places = [block.place() for block in blocks]
    sources = [opened.sources.index(place["source"]) for place in places]
    source_N = torch.tensor(sources, dtype=torch.int32)
    rng = torch.Generator().manual_seed(3)
    centre_SK = torch.randn(len(opened.sources), 20, generator=rng)
    noise_NK = torch.randn(len(blocks), 20, generator=rng)
    (run / "probes").mkdir()
    for k, step in enumerate(at):
        label_N = torch.full_like(source_N, -1) if k == 0 else (source_N + k) % num_domains
        sketch_NK = noise_NK + 2 * k * centre_SK[source_N.long()]
        tensors = {"sketch": sketch_NK.bfloat16(), "source": source_N, "label": label_N}
        tensors["loss"] = torch.ones(len(blocks))
        stem = run / "probes" / f"step-{step:08d}"
        save_file(tensors, f"{stem}.safetensors")
        near = [
            {
                "domain": j,
                "samples": int((label_N == j).sum()),
                "nearest": [
                    {key: places[n][key] for key in ("source", "row", "document")}
                    for n in range(len(blocks))
                    if label_N[n] == j
                ],
            }
            for j in range(num_domains)
        ]
        about = {"step": step, "sources": opened.sources, "rows": places}
        stem.with_suffix(".json").write_text(json.dumps(about | {"domains": near if k else None}))


def write_graphs(run, at=(20, 40, 60), num_domains=3, sources=SOURCES):
    """Graphs of domains that become purer."""
    with open(run / "graph.jsonl", "w") as file:
        for k, step in enumerate(at):
            nodes = [
                {
                    "domain": j,
                    "share": 1 / num_domains,
                    "weight": (j + 1) / (num_domains * (num_domains + 1) / 2),
                    "norm": 1.0,
                    "gradient_norm": 2.0,
                    "spread": 3.0,
                    "samples": 10 * (k + 1),
                    "sources": {sources[j % len(sources)]: 10 * (k + 1)},
                }
                for j in range(num_domains)
            ]
            edges = [
                {"first": i, "second": j, "cosine": 0.3 - 0.2 * i, "mmd_squared": 1.0 + i + k}
                for i in range(num_domains)
                for j in range(i + 1, num_domains)
            ]
            file.write(json.dumps({"step": step, "nodes": nodes, "edges": edges}) + "\n")


def dograph_run(folder, corpus, **options):
    """A run with everything that a page can show of one."""
    mixer = {"num_domains": 3, "scope": "stream"}
    run = write_run(folder, mixer="dograph", options=mixer, corpus=corpus, **options)
    write_probes(run, corpus)
    write_graphs(run)
    return run


def texts_of(data):
    """The typical texts of a page."""
    described = [item for run in data.runs for item in run.domains.described]
    folded = [
        own for item in described if getattr(item, "id", "") == "typical" for own in item.content
    ]
    return [sample["text"] for own in folded for block in own.content for sample in block.content]


def write_eval(run, value):
    """Nine tasks and their average, as dograph eval writes them."""
    score = {"value": value, "se": 0.01}
    task = {"acc": score, "acc_norm": None, "primary": "acc", "chance": 0.5, "items": 9}
    record = {"tasks": {f"task-{k}": task for k in range(9)}, "notes": ["few <b>items</b>"]}
    record |= {"format": "dograph-eval", "provenance": {"weights": {}}}
    record["average"] = score | {"chance": 0.5}
    (run / "eval.json").write_text(json.dumps(record))


def wide_choice(folder):
    """Runs of ten methods with two seeds each, with scores of tasks."""
    runs = []
    methods = [("natural", {}), ("dograph", {"num_domains": 4}), ("dograph", {"num_domains": 7})]
    methods += [("dograph", {"objective": name}) for name in ("robust", "variance")]
    for model in ("tiny", "demo"):
        for mixer, options in methods:
            for seed in (0, 1):
                told = "-".join(map(str, [model, mixer, *options.values(), seed]))
                own = {"mixer": mixer, "options": options, "seed": seed, "model": model}
                run = write_run(folder / told, worse=0.01 * len(runs), **own)
                write_eval(run, 0.5 + 0.01 * len(runs))
                runs.append(run)
    return runs
