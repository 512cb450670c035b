"""What a DoGraph run keeps of its domains, exact under resume, and the commands that show it."""

import io
import json
import re
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

import pytest
import torch
from processes import rows
from safetensors.torch import load_file
from tokenizers import Tokenizer, models

from corpora import write_corpus
from dograph.cli.main import main
from dograph.data.corpus import Manifest
from dograph.eval.recorded import samples_of_step
from dograph.records import unpacked
from long_runs import SOURCES, write_long_run

SETTINGS = (
    "data.seq_len=32",
    "model.preset=tiny",
    "train.steps=24",
    "train.batch_size=12",
    "eval.every=6",
    "eval.max_samples_per_source=4",
    "checkpoint.every=8",
    "checkpoint.keep=9",
    "optim.warmup_steps=5",
    "log.every=5",
    "probe.rows=9",
    "probe.at=[0, 0.25, 0.5, 1]",
)
DOGRAPH = (
    "mixer.name=dograph",
    "mixer.recipe=safe",
    "mixer.num_domains=3",
    "mixer.kmeans_restarts=2",
    "mixer.warmup_ratio=0.5",
    "sketch.dim=64",
)


SHORT = {"step", "train/loss_nats", "train/ppl", "optim/grad_norm"}
LOGGED = [5, 6, 10, 12, 15, 18, 20, 24]  # with log.every=5 and eval.every=6


def dograph(*arguments, code=0):
    """The command in this process: what it prints, and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    given = patch.object(sys, "argv", ["dograph", *map(str, arguments)])
    with given, redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code or 0) == code, out.getvalue() + err.getvalue()
    return out.getvalue(), err.getvalue()


def lines(file):
    return [unpacked(json.loads(line)) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """With a tokenizer, whose words are w0 to w99, so that texts can be shown."""
    directory = write_corpus(tmp_path_factory.mktemp("corpus") / "c")
    words = {f"w{i}": i for i in range(100)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(directory / "tokenizer.json"))
    manifest = Manifest.read(directory)
    named = manifest.tokenizer.model_copy(update={"file": "tokenizer.json"})
    manifest.model_copy(update={"tokenizer": named}).write(directory)
    return directory


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """A run that was never stopped."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    dograph("train", f"data.corpus={corpus}", f"run={directory}", *SETTINGS, *DOGRAPH)
    return directory


@pytest.fixture(scope="module")
def detailed(corpus, tmp_path_factory):
    """The same run, with everything of every step."""
    directory, given = tmp_path_factory.mktemp("detailed") / "run", (*SETTINGS, *DOGRAPH)
    dograph("train", f"data.corpus={corpus}", f"run={directory}", *given, "log.every=1")
    return directory


def test_a_resumed_run_keeps_the_files_of_one_that_never_stopped(whole, tmp_path):
    """As after a kill behind step 24 that left the checkpoint of step 16 as the newest."""
    directory = tmp_path / "run"
    shutil.copytree(whole, directory, symlinks=True)
    shutil.rmtree(directory / "checkpoints" / "step-00000024")
    (directory / "model").unlink()
    for name in ("samples.jsonl", "graph.jsonl"):
        with open(directory / name, "a") as file:
            file.write('{"step": 24, "half')
    probes = directory / "probes"
    (probes / ".step-00000024.json.abcd.tmp").write_text("left behind")
    (probes / "step-00000024.safetensors").write_bytes(b"from the future")
    early = probes / "step-00000012.safetensors"
    early.write_bytes(early.read_bytes() + b"kept")
    dograph("train", "--resume", directory)
    assert early.read_bytes() == (whole / "probes" / early.name).read_bytes() + b"kept"
    shutil.copyfile(whole / "probes" / early.name, early)
    for name in ("samples.jsonl", "graph.jsonl"):
        assert (directory / name).read_bytes() == (whole / name).read_bytes()
    assert rows(directory) == rows(whole)
    kept = {path.name: path.read_bytes() for path in probes.iterdir()}
    assert kept == {path.name: path.read_bytes() for path in (whole / "probes").iterdir()}
    steps = (0, 6, 12, 24)
    endings = ("json", "safetensors")
    assert sorted(kept) == [f"step-{step:08d}.{ending}" for step in steps for ending in endings]


def test_samples_and_metrics_tell_the_same(whole):
    trained = [row for row in rows(whole) if "weights/effective_samples" in row]
    samples = lines(whole / "samples.jsonl")
    assert [row["step"] for row in samples] == LOGGED
    for row, sample in zip(trained, samples, strict=True):
        square = sum(weight**2 for weight in sample["weight"])
        assert sum(sample["weight"]) == pytest.approx(12, abs=1e-4)
        assert 144 / square == pytest.approx(row["weights/effective_samples"], rel=1e-5)
        if sample["step"] <= 10:
            assert sample["domain"] is None
            continue
        counts = [sample["domain"].count(j) for j in range(3)]
        assert counts == [row[f"domains/{j}/samples"] for j in range(3)]
    assert samples[LOGGED.index(12)]["weight"] == [1.0] * 12  # warm-up
    assert len(set(samples[-1]["weight"])) > 1


def test_a_short_row_per_step_and_what_is_in_it_is_that_of_a_detailed_run(whole, detailed):
    short, long = (
        [row for row in rows(run) if "train/loss_nats" in row] for run in (whole, detailed)
    )
    assert [row["step"] for row in short] == [row["step"] for row in long] == list(range(1, 25))
    for row, other in zip(short, long, strict=True):
        own, all_of = ({k for k in x if not k.startswith("data/")} for x in (row, other))
        assert own == (all_of if row["step"] in LOGGED else SHORT)
        assert all(row[name] == other[name] for name in own)
    dense = {row["step"]: row for row in lines(detailed / "samples.jsonl")}
    assert lines(whole / "samples.jsonl") == [dense[step] for step in LOGGED]


def test_long_runs_of_other_tests_are_written_as_a_run_writes_its_own(whole, tmp_path):
    simulated = write_long_run(tmp_path / "run", 60)

    def names(run, file, part):
        """Of the last line that has `part`, without times, sources and what is not yet known."""
        (*_, line) = (x for x in (run / file).read_text().splitlines() if part in x)
        own = {k: v for k, v in json.loads(line).items() if not k.startswith(("time/", "noise/"))}
        inner = {k: set(v) for k, v in own.items() if k in ("nodes", "edges")}
        sources = "/(alpha|beta|gamma|" + "|".join(SOURCES) + ")/"
        return {re.sub(sources, "/*/", name) for name in own}, inner

    metrics = ['{"step":4,', '"data/*/epochs"', '"valid/mean/loss_nats"']  # a short row, whole ones
    kinds = [("metrics.jsonl", part) for part in metrics]
    for file, part in [*kinds, ("samples.jsonl", ""), ("graph.jsonl", "")]:
        assert names(simulated, file, part) == names(whole, file, part), (file, part)


def test_the_graph_is_that_of_the_last_batches(detailed):
    graphs = lines(detailed / "graph.jsonl")
    assert [graph["step"] for graph in graphs] == [12, 18, 24]  # domains from the 11th step on
    last, metrics = graphs[-1], [row for row in rows(detailed) if "train/loss_nats" in row][-1]
    counts = [dict.fromkeys(("alpha", "beta", "gamma"), 0) for _ in range(3)]
    for sample in lines(detailed / "samples.jsonl")[-10:]:
        shown = samples_of_step(detailed, sample["step"])
        for domain, row in zip(sample["domain"], shown, strict=True):
            counts[domain][row["source"]] += 1
    for node in last["nodes"]:
        j = node["domain"]
        assert node["share"] == pytest.approx(metrics[f"domains/{j}/share"])
        assert node["weight"] == pytest.approx(metrics[f"domains/{j}/weight"])
        assert node["norm"] == pytest.approx(metrics[f"domains/{j}/mean_norm"], rel=1e-5)
        assert node["sources"] == {s: n for s, n in counts[j].items() if n}
    assert sum(node["samples"] for node in last["nodes"]) == 120
    assert {(edge["first"], edge["second"]) for edge in last["edges"]} == {(0, 1), (0, 2), (1, 2)}


def test_graph_shows_and_prints_json(whole):
    out, _ = dograph("show", "graph", whole)
    assert "domains after step 24" in out
    graphs = lines(whole / "graph.jsonl")
    out, _ = dograph("show", "graph", whole, "--step", 18, "--json")
    assert json.loads(out) == graphs[1]
    _, err = dograph("show", "graph", whole, "--step", 17, code=2)
    assert "the nearest is step 18. Available: 12, 18, 24" in err


def test_explain_tells_domains_weights_and_why(whole):
    shown, sample = samples_of_step(whole, 20), lines(whole / "samples.jsonl")[LOGGED.index(20)]
    out, _ = dograph("show", "weights", whole, "--step", 20, "--json")
    told = json.loads(out)
    assert [row["domain"] for row in told["samples"]] == sample["domain"]
    assert [row["weight"] for row in told["samples"]] == sample["weight"]
    for row, expected in zip(told["samples"], shown, strict=True):
        assert row == {**expected, "domain": row["domain"], "weight": row["weight"]}
        assert row["text"].startswith("w")
    metrics = next(row for row in rows(whole) if row["step"] == 20)
    for domain in told["domains"]:
        for name in ("share", "weight", "gradient_norm", "mean_norm", "samples"):
            assert domain[name] == metrics[f"domains/{domain['domain']}/{name}"]
    assert "objective precision" in told["why"][0]
    assert "residual" in told["why"][0]
    out, _ = dograph("show", "weights", whole, "--step", 20)
    assert all(row["text"][:20] in out for row in shown)
    assert f"{sample['weight'][0]:.3f}" in out
    assert "no domains were known yet" in dograph("show", "weights", whole, "--step", 5)[0]
    assert (
        "warm-up until step 12: all 12 samples"
        in dograph("show", "weights", whole, "--step", 12)[0]
    )
    _, err = dograph("show", "weights", whole, "--step", 25, code=2)
    assert "step 25 is not one of them" in err
    _, err = dograph("show", "weights", whole, "--step", 17, code=2)
    assert "no weights of step 17: they are recorded every log.every=5 steps" in err


def test_a_run_without_domains_is_explained_too(corpus, tmp_path):
    directory = tmp_path / "run"
    settings = [*SETTINGS, "mixer.name=natural", "train.steps=2", "optim.warmup_steps=0"]
    dograph("train", f"data.corpus={corpus}", f"run={directory}", *settings)
    assert not (directory / "samples.jsonl").exists()
    assert not (directory / "probes").exists()
    out, _ = dograph("show", "weights", directory, "--step", 2)
    assert "natural has no domains: all 12 samples had the same weight" in out
    assert samples_of_step(directory, 2)[0]["text"][:20] in out
    _, err = dograph("show", "graph", directory, code=2)
    assert "natural, has no domains" in err


def test_domains_of_one_batch_are_numbered_alike_everywhere(corpus, tmp_path):
    """Recipe paper: no identity over time, so they are listed by falling weight."""
    directory = tmp_path / "run"
    own = ("mixer.recipe=paper", "mixer.warmup_ratio=0", "train.steps=3", "optim.warmup_steps=0")
    own += ("log.every=1",)
    dograph("train", f"data.corpus={corpus}", f"run={directory}", *SETTINGS, *DOGRAPH, *own)
    trained = [row for row in rows(directory) if "train/loss_nats" in row]
    for row, sample in zip(trained, lines(directory / "samples.jsonl"), strict=True):
        counts = [sample["domain"].count(j) for j in range(3)]
        assert counts == [row[f"domains/{j}/samples"] for j in range(3)]
        for j, weight in zip(sample["domain"], sample["weight"], strict=True):
            each = row[f"domains/{j}/weight"] / row[f"domains/{j}/share"]
            assert weight == pytest.approx(each, abs=1e-5)
    (graph,) = lines(directory / "graph.jsonl")
    for node in graph["nodes"]:
        assert node["weight"] == pytest.approx(trained[-1][f"domains/{node['domain']}/weight"])
        assert node["samples"] == counts[node["domain"]]


def test_inspect_tells_what_the_model_perceives(whole, corpus, tmp_path):
    out, err = dograph(
        "inspect", whole, f"data.corpus={corpus}", "data.seq_len=32", "--rows", 36, "--domains", 4,
        "--out", tmp_path / "found",
    )  # fmt: skip
    assert "sketching: 36/36 rows" in err
    for words in ("told apart: ", "nearest each domain", "NMI", "w5"):
        assert words in out
    found = json.loads((tmp_path / "found" / "inspection.json").read_text())
    assert found["split"] == "validation"
    assert sum(found["rows"].values()) == 36
    assert f"NMI {found['nmi']:.3f}, purity {found['purity']:.3f}" in out
    assert sum(node["samples"] for node in found["graph"]["nodes"]) == 36
    for example in found["examples"]:
        assert example["text"].startswith("w")
        assert len(example["text"]) <= 80


def test_probes_of_the_command_line_can_be_read(whole):
    about = json.loads((whole / "probes" / "step-00000024.json").read_text())
    tensors = load_file(whole / "probes" / "step-00000024.safetensors")
    assert tensors["sketch"].shape == (9, 64)
    assert sum(domain["samples"] for domain in about["domains"]) == 9
    first = load_file(whole / "probes" / "step-00000000.safetensors")
    assert not torch.equal(first["sketch"], tensors["sketch"])
    assert torch.equal(first["source"], tensors["source"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny", "data.corpus=nowhere"], "nowhere is not a prepared corpus"),
        (["./nowhere", "C"], "there is no folder ./nowhere"),
        (["tiny", "C", "data.seq_len=32", "--rows", 5], "too few for 3 sources"),
        (["tiny", "C", "data.seq_len=32", "--rows", 9], "give 1 to 9"),
        (["tiny", "C", "data.seq_len=9000"], "smaller data.seq_len"),
        (["RUN", "LARGER"], "a vocabulary of 100, smaller than the corpus' 200"),
        (["RUN", "C", "data.seq_len=513"], "has 512 positions"),
        (["tiny"], "give the corpus to inspect, as in data.corpus=data/mine"),
        (["tiny", "C", "train.steps=3"], "the settings of this command are data.corpus, "),
    ],
)
def test_mistakes_are_answered_in_words(whole, corpus, tmp_path, arguments, message):
    if "LARGER" in arguments:
        write_corpus(tmp_path / "larger", vocab=200)
    names = {"C": f"data.corpus={corpus}", "RUN": whole}
    names |= {"LARGER": f"data.corpus={tmp_path / 'larger'}"}
    arguments = [names.get(argument, argument) for argument in arguments]
    _, err = dograph("inspect", *arguments, "--out", tmp_path / "found", code=2)
    assert message in " ".join(err.split())
    assert not (tmp_path / "found").exists()
