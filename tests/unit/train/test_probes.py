"""Probes: the same rows under one projection, in the mixer's domains, leaving no trace."""

import json
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from corpora import write_corpus
from dograph.config import resolve_config
from dograph.data.corpus import Corpus
from dograph.data.loader import Loader
from dograph.errors import ConfigError
from dograph.mixers.registry import build_mixer
from dograph.sketch.sketcher import Sketcher
from dograph.train.assembly import CorpusLab, open_model, open_sampler
from dograph.train.distributed import World
from dograph.train.metrics import Probes, nearest_rows
from dograph.train.run_dir import RunDirectory
from dograph.train.step import MicroBatch, TrainStep, build_optimizer
from token_corpora import span

CPU = World(rank=0, size=1, device=torch.device("cpu"))
SETTINGS = (
    "data.seq_len=16",
    "model.preset=tiny",
    "model.dropout=0.1",
    "train.steps=100",
    "train.batch_size=6",
    "optim.warmup_steps=0",
    "sketch.dim=64",
    "mixer.name=dograph",
    "mixer.recipe=safe",
    "mixer.num_domains=3",
    "mixer.kmeans_restarts=2",
    "probe.rows=14",
    "probe.at=[0, 0.01, 0.02, 0.03, 0.04, 0.06]",
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return Corpus(write_corpus(tmp_path_factory.mktemp("corpus") / "c"))


class Started:
    """A run after some steps, with its probes."""

    def __init__(self, corpus, path, *overrides, steps=0):
        path.mkdir(parents=True)
        self.config = resolve_config(
            None, [f"data.corpus={corpus.directory}", *SETTINGS, *overrides]
        )
        self.model = open_model(self.config, corpus).train()
        self.mixer = build_mixer(self.config.mixer.name, self.config.mixer.options)
        sampler = open_sampler(self.config, corpus)
        sampler.remix(0, self.mixer.plan(CorpusLab(self.config, corpus)), "plan")
        optimizer = build_optimizer(self.model, self.config.optim)
        self.step = TrainStep(self.config, CPU, self.model, optimizer, self.mixer)
        self.loader = Loader(corpus, sampler)
        for n in range(steps):
            self.step(self.loader.load(n), n)
        self.run = RunDirectory(path)
        self.probes = Probes(self.run, corpus, self.step)

    def take(self, step):
        self.probes.take(step)
        file = self.run.probe(step)
        return json.loads(file.read_text()), load_file(file.with_suffix(".safetensors"))

    def tokens(self):
        return torch.from_numpy(np.stack([block.tokens() for block in self.probes.blocks]))

    def reference(self, step, **options):
        """Sketches by one backward a sample, dropout off."""
        self.model.eval()
        sketcher = Sketcher(self.model, mode="reference", dim=64, **options)
        with sketcher.record(self.tokens(), step):
            loss_N = self.model(self.tokens())
            sketch = sketcher.sketch(loss_N)
        self.model.train()
        return loss_N.detach(), sketch.sketch_BK


def relative(got, expected):
    return float((got.float() - expected).norm() / expected.norm())


def test_steps_are_fractions_of_the_run_each_once(corpus, tmp_path):
    at = "probe.at=[1.0, 0.3, 0, 0.004, 0.125, 0.115]"
    assert Started(corpus, tmp_path / "run", at).probes.steps == {0, 12, 30, 100}
    assert resolve_config("paper-gpt2-mini", []).probe.rows == 512
    with pytest.raises(ConfigError, match=r"probe\.at\.1"):
        resolve_config(None, ["probe.at=[0, 1.5]"])


def test_a_probe_holds_the_sketches_of_held_out_rows(corpus, tmp_path):
    """Against one backward a sample; the projection is that of step 0 although the run's moves."""
    started = Started(
        corpus, tmp_path / "run", "mixer.recipe=paper", "sketch.refresh=step", steps=3
    )
    about, tensors = started.take(3)
    assert about["sources"] == corpus.sources
    assert [row["source"] for row in about["rows"]] == ["alpha"] * 5 + ["beta"] * 5 + ["gamma"] * 4
    assert tensors["source"].tolist() == [0] * 5 + [1] * 5 + [2] * 4
    for row, token_T in zip(about["rows"], started.tokens(), strict=True):
        stratum = next(s for s in corpus.validation if s.entry.stratum == row["stratum"])
        start = span(stratum, row["document"])[0] + row["offset"]
        assert np.array_equal(stratum.token_N[start : start + 16], token_T)
    loss_N, sketch_NK = started.reference(0, seed=0)
    assert torch.allclose(tensors["loss"], loss_N, rtol=1e-5)
    assert tensors["sketch"].dtype == torch.bfloat16
    assert relative(tensors["sketch"], sketch_NK) < 2**-8  # rounding to bfloat16
    # No domain outlasts its batch, so the rows are clustered among themselves.
    label_N = started.mixer.scope.assign(sketch_NK, 3, 0).label_B
    assert torch.equal(tensors["label"].long(), label_N)


def test_probing_leaves_no_trace(corpus, tmp_path):
    started = Started(corpus, tmp_path / "run", "train.activation_checkpointing=true", steps=2)
    started.model.model.transformer.h[1].eval()  # a mode that no probe would restore by accident
    modes = [module.training for module in started.model.modules()]
    values = [p.clone() for p in started.model.parameters()]
    state, random = started.mixer.state_dict(), torch.get_rng_state()
    state = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in state.items()}
    started.take(2)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in started.model.parameters())
    assert [module.training for module in started.model.modules()] == modes
    assert all(torch.equal(*pair) for pair in zip(values, started.model.parameters(), strict=True))
    for name, value in started.mixer.state_dict().items():
        same = torch.equal(value, state[name]) if torch.is_tensor(value) else value == state[name]
        assert same, name
    twin = Started(corpus, tmp_path / "twin", "train.activation_checkpointing=true", steps=2)
    twin.model.model.transformer.h[1].eval()
    batch = twin.loader.load(2)
    assert torch.equal(started.step(batch, 2).loss_B, twin.step(batch, 2).loss_B)


@pytest.mark.parametrize(
    ("overrides", "kind", "step"),
    [
        (["mixer.scope=period", "mixer.period_steps=2"], {}, 0),
        (["mixer.scope=period", "mixer.period_steps=2", "sketch.refresh=3"], {"refresh": 3}, 3),
        (
            [
                "mixer.scope=period",
                "mixer.period_steps=2",
                "sketch.mode=exact",
                "sketch.projection=gaussian",
            ],
            {"projection": "gaussian"},
            0,
        ),
    ],
    ids=["fixed", "refreshed", "gaussian"],
)
def test_labels_are_those_of_the_scope_in_the_runs_own_space(
    corpus, tmp_path, overrides, kind, step
):
    started = Started(corpus, tmp_path / "run", *overrides, steps=6)
    about, tensors = started.take(6)
    sketch_NK = started.reference(step, seed=0, **kind)[1]
    epoch = started.mixer.scope.projection
    assert epoch == step
    found = started.mixer.scope.assign(sketch_NK, 6, epoch)
    assert torch.equal(tensors["label"].long(), found.label_B)
    assert [domain["samples"] for domain in about["domains"]] == [
        int((found.label_B == j).sum()) for j in range(3)
    ]
    assert sum(domain["samples"] for domain in about["domains"]) == 14


@pytest.mark.parametrize("mode", ["head", "topdown"])
def test_modes_that_sketch_a_part_label_by_that_part(corpus, tmp_path, mode):
    overrides = [
        "mixer.scope=period",
        "mixer.period_steps=2",
        "sketch.top_blocks=1",
        "model.dropout=0",
    ]
    started = Started(corpus, tmp_path / "run", f"sketch.mode={mode}", *overrides, steps=4)
    _, tensors = started.take(4)
    loss_N, whole_NK = started.reference(0, seed=0)
    with ExitStack() as taps:
        micro = MicroBatch(started.tokens(), 4, 0, last=True)
        result = started.step.collect(taps, micro, keep=True)
    expected = started.mixer.scope.assign(result.sketch_BK.detach(), 4, 0).label_B
    assert torch.equal(tensors["label"].long(), expected)
    assert torch.allclose(tensors["loss"], loss_N, rtol=1e-5)
    kept = whole_NK if mode == "topdown" else result.sketch_BK.detach()
    assert relative(tensors["sketch"], kept) < 2**-8


def test_the_seconds_of_a_probe_are_told_and_of_none_are_none(corpus, tmp_path):
    started = Started(corpus, tmp_path / "run")
    assert started.probes.take(0) > 0
    assert started.probes.take(0) == started.probes.take(5) == 0


def test_before_there_are_domains_labels_say_so(corpus, tmp_path):
    about, tensors = Started(corpus, tmp_path / "run").take(0)
    assert tensors["label"].tolist() == [-1] * 14
    assert about["domains"] is None


def test_a_probe_that_is_there_is_kept(corpus, tmp_path):
    started = Started(corpus, tmp_path / "run", steps=1)
    started.take(1)
    file = started.run.probe(1)
    before = file.with_suffix(".safetensors").read_bytes()
    started.step(started.loader.load(1), 1)
    started.take(1)
    assert file.with_suffix(".safetensors").read_bytes() == before
    file.unlink()  # the tensors alone are half a probe
    started.take(1)
    assert file.with_suffix(".safetensors").read_bytes() != before


@pytest.mark.parametrize(("override", "step"), [("mixer=natural", 0), ("probe.rows=0", 0), ("", 5)])
def test_none_are_taken_where_none_are_wanted(corpus, tmp_path, override, step):
    started = Started(corpus, tmp_path / "run", *([override] if "rows" in override else []))
    if override == "mixer=natural":
        natural = build_mixer("natural", {})
        optimizer = started.step.optimizer
        started.step = TrainStep(started.config, CPU, started.model, optimizer, natural)
    probes = Probes(started.run, corpus, started.step)
    probes.take(step)
    assert not (tmp_path / "run" / "probes").exists()


def test_nearest_rows_are_members_by_falling_closeness():
    generator = torch.Generator().manual_seed(0)
    near_NM = torch.rand(60, 3, generator=generator)
    label_N = torch.randint(2, (60,), generator=generator)
    places = [{"source": f"s{n % 4}", "row": n, "document": n // 2, "offset": 0} for n in range(60)]
    domains = nearest_rows(label_N, near_NM, places)
    for j in range(3):
        own = sorted((n for n in range(60) if label_N[n] == j), key=lambda n: -near_NM[n, j])
        assert domains[j]["samples"] == len(own)
        assert [row["row"] for row in domains[j]["nearest"]] == own[:8]
        assert all(row["source"] == f"s{row['row'] % 4}" for row in domains[j]["nearest"])
    assert domains[2]["nearest"] == []
