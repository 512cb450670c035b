"""Domains of one batch are shown by the samples that were in them."""

import json

import numpy as np
import pytest

from dograph.data.corpus import Corpus
from dograph.eval.recorded import samples_of_step
from dograph.report.collect import collect, open_subjects
from dograph.train.assembly import open_sampler
from dograph.train.run_dir import RunDirectory
from dograph.types import Mixture
from page_runs import hostile_corpus, write_graphs, write_run

STEPS = (10, 20, 30, 40, 50, 60)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batch")
    corpus = hostile_corpus(folder / "corpus")
    run = write_run(folder / "run", mixer="dograph", options={"scope": "batch"}, corpus=corpus)
    write_graphs(run, at=STEPS)
    sampler = open_sampler(RunDirectory(run).config(), Corpus(corpus))
    sampler.remix(0, Mixture({"alpha": 0.25, "beta": 0.5, "gamma": 0.25}), reason="plan")
    (run / "weights.jsonl").write_text(sampler.log.dump())
    rng = np.random.default_rng(0)
    with open(run / "samples.jsonl", "w") as file:
        for step in range(1, 61):
            domain = rng.integers(0, 3, 8).tolist() if step > 15 else None
            file.write(json.dumps({"step": step, "weight": [1.0] * 8, "domain": domain}) + "\n")
    return run


def test_texts_are_those_of_the_samples_in_the_domain(run):
    """`samples_of_step` returns the samples of a step, the file which domain each was in."""
    data = collect(open_subjects([run]))
    graphs = {graph.step: graph for graph in data.runs[0].domains.graphs}
    assert [step for step, graph in graphs.items() if graph.examples] == [30, 40, 60]
    kept = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    for step in (30, 40, 60):
        rows = samples_of_step(run, step)
        for domain, examples in graphs[step].examples.items():
            own = [
                row
                for row, j in zip(rows, kept[step - 1]["domain"], strict=True)
                if j == int(domain)
            ]
            assert [(e.source, e.document) for e in examples] == [
                (row["source"], row["document"]) for row in own[:3]
            ]
            for example, row in zip(examples, own[:3], strict=True):
                text, whole = data.texts[example.text], row["text"]
                assert whole.strip("\n").startswith(text.removesuffix(" …"))
                assert text.endswith(" …") or text == whole.strip("\n")


def test_a_run_without_its_weight_log_shows_no_samples(run, tmp_path):
    log = run / "weights.jsonl"
    log.rename(tmp_path / "kept")
    graphs = collect(open_subjects([run])).runs[0].domains.graphs
    (tmp_path / "kept").rename(log)
    assert all(graph.examples is None for graph in graphs)
