"""Why the samples of a step counted what they did, from what the run kept."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dograph.data.corpus import Corpus
from dograph.data.sampler import WeightLog
from dograph.errors import RunError
from dograph.mixers.registry import build_mixer
from dograph.train.assembly import open_sampler
from dograph.train.metrics import read_metrics
from dograph.train.run_dir import RunDirectory


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known of one step's weights."""

    reasons: list[str]  # sentences
    domains: list[dict[str, float]]  # domain, samples, share, weight, gradient_norm, mean_norm
    weight_B: list[float] | None  # equal weights are 1; None where they were not kept
    domain_B: list[int] | None  # None while no domains are known


def explain_step(path: Path, step: int) -> Explanation:
    """The explanation of a step, counted from 1."""
    run = RunDirectory.open(path)
    config = run.config()
    rows = [row for row in read_metrics(run.metrics_file) if "optim/lr" in row]
    row = next((row for row in rows if row["step"] == step), None)
    if row is None:
        raise RunError(f"{path} has made steps 1 to {len(rows)}; step {step} is not one of them")
    sample = labels_of_steps(run, {step}).get(step, {"weight": None, "domain": None})
    quantities = ("samples", "share", "weight", "gradient_norm", "mean_norm")
    domains: list[dict[str, float]] = []
    while f"domains/{(number := len(domains))}/mean_norm" in row:
        values = {name: row[f"domains/{number}/{name}"] for name in quantities}
        domains.append({"domain": number, **values})
    name, size = config.mixer.name, config.train.batch_size
    if domains or run.graph_file.is_file():  # kept of every mixer that has domains
        reasons = build_mixer(name, config.mixer.options).explain(row, step, config)
    elif abs((effective := row["weights/effective_samples"]) - size) < 1e-3:
        reasons = [f"{name} knows no domains: all {size} samples counted alike"]
    else:
        kept = "" if sample["weight"] is not None else "; the weights themselves were not kept"
        reasons = [
            f"{name} knows no domains; it weighed the samples itself: {effective:.1f} of {size} "
            f"effective{kept}"
        ]
    return Explanation(reasons, domains, sample["weight"], sample["domain"])


def labels_of_steps(run: RunDirectory, steps: Collection[int]) -> dict[int, dict[str, Any]]:
    """What was kept of the samples of some steps (samples.jsonl); only their lines are parsed."""
    found: dict[int, dict[str, Any]] = {}
    if not run.samples_file.is_file():
        return found
    with open(run.samples_file, encoding="utf-8") as file:
        for line in file:
            number = line[len('{"step": ') : line.find(",")]
            if number.isdecimal() and int(number) in steps and line.endswith("\n"):
                found[int(number)] = json.loads(line)
                if len(found) == len(steps):
                    break
    return found


# Which samples a step saw, from the weight log and the seed.


def samples_of_step(run_path: Path, step: int) -> list[dict[str, object]]:
    """Every sample of a step, in its order in the world batch."""
    run = RunDirectory.open(run_path)
    config = run.config()
    made = max((int(row["step"]) for row in read_metrics(run.metrics_file)), default=0)
    if not 1 <= step <= made:
        raise RunError(f"{run_path} has made steps 1 to {made}; step {step} is not one of them")
    corpus = Corpus(config.data.corpus)
    sampler = open_sampler(config, corpus)
    sampler.log = WeightLog.load(run.weights_file, sampler.names)
    ids = sampler.draw(step - 1)
    has_text = corpus.manifest.tokenizer.file is not None
    rows: list[dict[str, object]] = []
    for i in range(len(ids)):
        stratum = corpus.train[ids.stratum_B[i]]
        document = stratum.document(int(ids.document_B[i]))
        start = int(ids.block_B[i]) * config.data.seq_len
        text = corpus.text(stratum, start, start + config.data.seq_len) if has_text else None
        rows.append(
            {
                "sample": i,
                "source": stratum.entry.source,
                "stratum": stratum.entry.stratum,
                "epoch": int(ids.epoch_B[i]),
                "document": document.index,
                "offset": int(ids.offset_B[i]),
                "input": corpus.manifest.inputs[document.input],
                "line": document.record + 1,
                "text": text,
            }
        )
    return rows
