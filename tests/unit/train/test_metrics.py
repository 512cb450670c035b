"""Rows of metrics.jsonl: names, units, and what a kill leaves."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dograph.config import RunConfig, resolve_config
from dograph.domains.graph import DomainGraph, Edge, Node
from dograph.eval.recorded import parse_graph
from dograph.mixers.registry import build_mixer
from dograph.records import read_metrics, unpacked
from dograph.train.metrics import (
    RunFiles,
    graph_row,
    logged,
    loss_row,
    step_rows,
    validation_row,
)
from dograph.train.run_dir import RunDirectory
from dograph.train.step import StepRecord
from dograph.types import Signals


def test_a_loss_under_its_three_names():
    row = unpacked(loss_row("valid/C4", 2.0, bytes_per_token=4.0))
    assert row["valid/C4/loss_nats"] == 2.0
    assert row["valid/C4/ppl"] == pytest.approx(math.exp(2))
    assert row["valid/C4/bits_per_byte"] == pytest.approx(2.0 / math.log(2) / 4.0)
    assert "x/bits_per_byte" not in loss_row("x", 2.0, None)


def test_step_rows_split_the_loss_by_source():
    loss_B = torch.tensor([1.0, 2.0, 3.0, 5.0])
    record = StepRecord(
        step=4,
        loss_B=loss_B,
        weight_B=torch.tensor([0.4, 0.3, 0.2, 0.1]),
        source_B=torch.tensor([0, 2, 2, 0]),
        grad_norm=torch.tensor(0.5),
        signals=Signals(step=4, num_samples=4),
        halted=torch.tensor(0.0),
        lr=1e-3,
        report={"weights/a": 0.25, "weights/b": torch.tensor(2.0), "domains/c": torch.arange(2)},
        laps=[("sketch", 1.0, 1.5), ("weigh", 1.5, 1.75), ("sketch", 1.75, 2.0)],
    )
    (row,) = step_rows([record], ["a", "b", "c"], {"a": 4.0, "b": 4.0, "c": None})
    assert row["train/*/loss_nats"].keys() == {"a", "c"}
    row = unpacked(row)
    assert row["step"] == 5
    assert (row["weights/a"], row["weights/b"]) == (0.25, 2.0)
    assert (row["domains/0/c"], row["domains/1/c"]) == (0.0, 1.0)
    assert (row["time/sketch_ms"], row["time/weigh_ms"]) == (750.0, 250.0)
    assert row["train/loss_nats"] == pytest.approx(2.75)
    assert row["train/a/loss_nats"] == pytest.approx(3.0)
    assert row["train/c/loss_nats"] == pytest.approx(2.5)
    assert row["train/c/ppl"] == pytest.approx(math.exp(2.5))
    bits = {name: x for name, x in row.items() if name.endswith("/bits_per_byte")}
    assert bits == {"train/a/bits_per_byte": pytest.approx(3.0 / 4.0 / math.log(2))}
    assert not any(name.startswith("train/b/") for name in row)
    assert row["train/weighted_loss_nats"] == pytest.approx(0.4 + 0.6 + 0.6 + 0.5)
    assert row["weights/effective_samples"] == pytest.approx(1 / 0.3)


def test_most_rows_are_short_but_a_fallback_is_in_all_of_them():
    config = resolve_config(None, ["train.steps=23", "log.every=10", "eval.every=7"])
    row = {"train/loss_nats": 2.0, "optim/grad_norm": 1 / 3}
    more = {
        "optim/lr": 1e-3,
        "weights/fallback": 0.0,
        "domains/share": [1 / 3, 2 / 3],
        "memory/peak_bytes": 2**33,
    }
    rows = [{"step": step, **row, **more} for step in range(1, 24)]
    rows[4]["weights/fallback"] = 1.0
    written = {row["step"]: logged(row, config, whole=False) for row in rows}
    assert all(own.pop("step") == step for step, own in written.items())
    assert [step for step in written if "domains/share" in written[step]] == [7, 10, 14, 20, 21, 23]
    short = {**row, "optim/grad_norm": 0.3333333}
    assert written[1] == written[22] == short
    assert written[5] == short | {"weights/fallback": 1.0}
    assert written[7]["domains/share"] == [0.3333333, 0.6666667]
    assert written[7]["memory/peak_bytes"] == 2**33
    assert all("domains/share" in logged(row, config, whole=True) for row in rows)
    never = resolve_config(None, ["train.steps=9", "log.every=10", "eval.every=0"])
    assert [len(logged(row, never, whole=False)) for row in rows[:3]] == [3] * 3


def test_rows_on_disk_and_in_a_sink_name_the_same(tmp_path):
    """On disk a list of all domains and no perplexity; a sink gets every number by its name."""
    files = RunFiles(RunConfig(), RunDirectory(tmp_path), build_mixer("natural", {}), main=True)
    files.open(0)
    seen = []
    files.sinks = [SimpleNamespace(log=lambda *own: seen.append(own), close=lambda: None)]
    row = {"step": 3, **loss_row("train", 2.0, None), "domains/share": [0.25, 0.75]}
    row |= {"data/*/epochs": {"a": 0.5, "0": 2.0}}
    files.write_metrics([row])
    files.close()
    line = (tmp_path / "metrics.jsonl").read_text()
    parts = ('"train/loss_nats":2.0', '"domains/share":[0.25,0.75]', '"a":0.5,"0":2.0}}')
    assert line == '{{"step":3,{},{},"data/*/epochs":{{{}\n'.format(*parts)
    named = {"train/loss_nats": 2.0, "train/ppl": math.exp(2.0)}
    named |= {"domains/0/share": 0.25, "domains/1/share": 0.75}
    named |= {"data/a/epochs": 0.5, "data/0/epochs": 2.0}
    assert seen == [(3, named)]
    assert list(read_metrics(tmp_path / "metrics.jsonl")) == [{"step": 3, **named}]


@pytest.mark.parametrize("num", [1, 3])
def test_a_graph_is_the_same_after_its_line(num):
    nodes = [Node(j, 1 / 3, None, 0.5, 0.25, 2.0, 7, {"a": 4, "b": 3}) for j in range(num)]
    edges = [Edge(i, j, 1 / 7, 3.0) for i in range(num) for j in range(i)]
    row = graph_row(DomainGraph(40, nodes, edges))
    assert row["nodes"]["share"] == [0.3333333] * num
    again = parse_graph(json.loads(json.dumps(row)))
    nodes = [replace(node, share=0.3333333) for node in nodes]
    assert again == DomainGraph(40, nodes, [replace(edge, cosine=0.1428571) for edge in edges])


def corpus_of(tokens, sizes):
    return SimpleNamespace(tokens_by_source=lambda: tokens, bytes_per_token=lambda split: sizes)


def test_validation_summaries():
    corpus = corpus_of({"a": 300, "b": 100}, {"a": 4.0, "b": None})
    row = validation_row(9, {"a": 2.0, "b": 4.0}, corpus)
    assert row["valid/mean/loss_nats"] == 3.0
    assert row["valid/natural/loss_nats"] == pytest.approx(2.5)
    assert row["valid/worst/loss_nats"] == 4.0
    bits = [name for name in row if name.endswith("/bits_per_byte")]
    assert bits == ["valid/a/bits_per_byte"]  # of b, the worst, nobody knows the text


def test_bits_per_byte_of_the_summaries():
    """Of all text: its bits over its bytes. Of the mean: that of the sources' own."""
    corpus = corpus_of({"a": 300, "b": 100}, {"a": 4.0, "b": 2.0})
    row = validation_row(9, {"a": 2.0, "b": 4.0}, corpus)
    bits = (2.0 / 4.0 / math.log(2), 4.0 / 2.0 / math.log(2))
    assert row["valid/mean/bits_per_byte"] == pytest.approx(sum(bits) / 2)
    assert row["valid/worst/bits_per_byte"] == pytest.approx(bits[1])
    nats, size = 300 * 2.0 + 100 * 4.0, 300 * 4.0 + 100 * 2.0
    assert row["valid/natural/bits_per_byte"] == pytest.approx(nats / size / math.log(2))
    row = validation_row(9, {"a": 3.0, "b": 4.0}, corpus_of({"a": 3, "b": 1}, {"a": 1.0, "b": 2.0}))
    assert row["valid/worst/loss_nats"] == 4.0  # of b, and in bits per byte of a
    assert row["valid/worst/bits_per_byte"] == row["valid/a/bits_per_byte"]
    assert row["valid/worst/bits_per_byte"] == pytest.approx(3.0 / math.log(2))


def test_a_line_cut_short_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    mixer = build_mixer("natural", {})
    files = RunFiles(RunConfig(), RunDirectory(tmp_path), mixer, main=True)
    files.open(0)
    files.write_metrics([{"step": 1, "x": 0.1}, {"step": 2, "x": float(np.float64(1) / 3)}])
    files.close()
    with open(path, "a") as broken:
        broken.write('{"step": 3, "x"')
    assert list(read_metrics(path)) == [{"step": 1, "x": 0.1}, {"step": 2, "x": 1 / 3}]
