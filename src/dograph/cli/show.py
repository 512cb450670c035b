"""dograph show: losses, domain graph, weights and samples that a run has recorded."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from dograph.cli import console
from dograph.cli.console import argument, option, print_table, warn
from dograph.errors import ConfigError
from dograph.records import Skipped

PREVIEW, SHOW_PREVIEW = 48, 60  # characters of text shown with weights, and without them
PLAIN: dict[str, Any] = {"box": None, "pad_edge": False}
What = Literal["losses", "noise", "spikes", "graph", "weights", "samples"]
OF_A_STEP = ("graph", "weights", "samples")  # views that take --step and --json


def show(
    what: What = argument(..., "losses, noise, spikes, graph, weights or samples", "WHAT"),
    runs: list[Path] = argument(..., "run directories; several for losses", "RUNS"),
    step: int | None = option(None, "a step, counted from 1; for graph by default the newest"),
    as_json: bool = option(False, "print JSON instead of tables", "--json"),
) -> None:
    """Show what a run has recorded. Nothing is trained or replayed.

    losses: last validation loss of each source. noise: the noise scale, and batch sizes by it.
    spikes: steps of unusual loss or gradient norm, the samples behind them, flagged documents.
    graph: the domains, their sources, how much their gradients agree. weights: the samples of one
    step with domain and weight (1 is an equal weight), and why. samples: the documents of one step,
    with input file and line.

    \b
    dograph show losses runs/mine                             nats, perplexity, bits per byte
    dograph show losses runs/natural runs/dograph             one column per run
    dograph show noise runs/mine                              in samples, with 95 % intervals
    dograph show spikes runs/mine                             of runs with train.on_spike
    dograph show graph runs/mine                              the newest domain graph, as tables
    dograph show graph runs/mine --step 500 --json            nodes and edges
    dograph show weights runs/mine --step 500
    dograph show weights runs/mine --step 500 --json | jq '.samples[] | select(.weight > 1.2)'
    dograph show samples runs/mine --step 100 --json          whole texts, one JSON object per line
    """  # noqa: D301
    if what not in OF_A_STEP and (as_json or step is not None):
        wrong = "--json" if step is None else "--step"
        raise ConfigError(f"{wrong} is not for `show {what}`, which takes no options")
    if what == "losses":
        print_losses(runs)
        return
    if len(runs) > 1:
        raise ConfigError(f"`show {what}` takes one run, got {len(runs)}; show them one by one")
    from dograph.eval import recorded

    run, skipped = runs[0], Skipped()
    if what == "noise":
        console.open_console().print(recorded.noise_table(run, skipped))
        print(*recorded.proposal(run, skipped), sep="\n")
    elif what == "spikes":
        print(*recorded.watched_lines(run, skipped), sep="\n")
    elif what == "graph":
        _graph(run, step, as_json, skipped)
    elif step is None:
        raise ConfigError(f"`show {what}` shows one step: add --step, as in --step 100")
    else:
        (_weights if what == "weights" else _samples)(run, step, as_json, skipped)
    warn(skipped.warnings())


def print_losses(runs: list[Path]) -> None:
    from dograph.eval.recorded import losses_table

    width, skipped = max(console.PIPE_WIDTH, 40 + 40 * len(runs)), Skipped()  # one column per run
    console.open_console(width).print(losses_table(runs, skipped))
    warn(skipped.warnings())


def _graph(run: Path, step: int | None, as_json: bool, skipped: Skipped) -> None:
    from dograph.eval import recorded
    from dograph.train.run_dir import RunDirectory

    graph = recorded.read_graph(run, step, skipped)
    if as_json:
        print(json.dumps(asdict(graph), ensure_ascii=False))
        return
    shown = console.open_console()
    shown.print(recorded.node_table(graph, f"domains after step {graph.step}"))
    _describe(run, graph.step)
    shown.print(recorded.edge_table(graph))
    print(recorded.agreement_line(graph))
    if not recorded.domains_last(RunDirectory(run).config()):
        print(f"note: {recorded.RANKED}")


def _weights(run: Path, step: int, as_json: bool, skipped: Skipped) -> None:
    """The domains of a step and its samples, with domain and weight where they are known."""
    from dograph.eval.recorded import explain_step, samples_of_step

    samples, explained = samples_of_step(run, step, skipped), explain_step(run, step, skipped)
    per_sample = {"domain": explained.domain_B, "weight": explained.weight_B}
    for i, sample in enumerate(samples):
        for name, values in per_sample.items():
            sample[name] = None if values is None else values[i]
    if as_json:
        whole = {"step": step, "why": explained.reasons, "domains": explained.domains}
        print(json.dumps(whole | {"samples": samples}, ensure_ascii=False))
        return
    for line in (f"{run}, step {step}", *(f"  {reason}" for reason in explained.reasons)):
        console.open_console().print(line, highlight=False, markup=False)
    if explained.domains:
        norms = ("gradient norm", "mean norm")
        rows = []
        for domain in explained.domains:
            ratio = domain["weight"] / domain["share"] if domain["share"] else 0.0
            shares = [f"{share:.3f}" for share in (domain["share"], domain["weight"], ratio)]
            sizes = [f"{domain[name.replace(' ', '_')]:.4g}" for name in norms]
            rows.append([str(domain["domain"]), f"{domain['samples']:.0f}", *shares, *sizes])
        columns = ("domain", "samples", "share", "weight", "weight/share", *norms)
        print_table(columns, rows, title="domains", **PLAIN)
    numbers = ["sample", *(name for name, values in per_sample.items() if values is not None)]
    numbers += ["document", "offset"]
    rows = []
    for sample in samples:
        cells = [sample[name] for name in numbers]
        shown = [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells]
        rows.append([*shown, str(sample["source"]), _preview(sample, PREVIEW)])
    words = ("source", "text")
    print_table([*numbers, *words], rows, words, title="samples", **PLAIN)
    _describe(run, step)


def _samples(run: Path, step: int, as_json: bool, skipped: Skipped) -> None:
    from dograph.eval.recorded import labels_of_step, samples_of_step
    from dograph.train.run_dir import RunDirectory

    samples, rows = samples_of_step(run, step, skipped), list[list[str]]()
    known = labels_of_step(RunDirectory(run), step, skipped)["domain"]
    if as_json:
        for sample in samples:
            print(json.dumps(sample, ensure_ascii=False))
        return
    words = ("source", "document", "offset", "input", "text")
    columns = ("sample", "source", *(["domain"] if known else []), "epoch", *words[1:])
    for i, sample in enumerate(samples):
        sample["domain"] = known[i] if known else None
        sample["input"] = f"{sample['input']}:{sample['line']}"
        sample["text"] = _preview(sample, SHOW_PREVIEW)
        rows.append([str(sample[name]) for name in columns])
    print_table(columns, rows, words, title=f"{run}, step {step}: {len(rows)} samples")
    _describe(run, step)


def _describe(run: Path, step: int) -> None:
    """Print what sets domains that last apart."""
    from dograph.eval.describe import corpus_of, describe_domains
    from dograph.eval.recorded import domains_last
    from dograph.train.run_dir import RunDirectory

    directory, rows = RunDirectory.open(run), list[list[str]]()
    if not domains_last(directory.config()):
        return
    corpus = corpus_of(directory)
    profiles = describe_domains(directory, corpus, step)
    for number, own in profiles.items():
        texts = [_preview({"text": block.text(corpus)}, PREVIEW) for block in own.typical if corpus]
        cells = (", ".join(own.words), ", ".join(own.sources), "\n".join(texts))
        rows.append([str(number), str(own.samples), *cells])
    if rows:
        title = "what sets domains apart; sources: share (of all samples); texts: typical ones"
        words = ("words", "sources", "texts")
        print_table(("domain", "samples", *words), rows, words, title=title, **PLAIN)


def _preview(sample: dict[str, Any], length: int) -> str:
    """The beginning of its text, on one line."""
    return " ".join(str(sample["text"] or "").split())[:length]
