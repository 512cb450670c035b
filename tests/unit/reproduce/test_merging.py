"""Merging from probes on disk: written by hand with a known answer, and those of a real run."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import stats

from corpora import write_corpus
from dograph.config import resolve_config
from dograph.errors import ConfigError, RunError
from dograph.eval.gradients import probed_steps, read_probe
from dograph.eval.inspect import pairwise_mmd
from dograph.files import plain
from dograph.plan.jobs import Job, run_job
from dograph.reproduce.seen import _comparable, merging
from probed_runs import SOURCES, write_run

FADING = {0: 4.0, 10: 3.0, 100: 0.5}


def test_one_run_whose_sources_merge(tmp_path):
    run = write_run(tmp_path / "run", FADING)
    found = merging([run], num_domains=3)
    assert (found.steps, found.sources) == ([0, 10, 100], SOURCES)
    assert found.left_out == []
    for step, figures in zip(found.steps, found.figures, strict=True):
        probe = read_probe(run, step)
        pairs = pairwise_mmd(
            *(probe.sketch_NK, probe.source_N, 3),
            num_permutations=1,
            seed=0,
        )
        mean = sum(pair.separation for pair in pairs.values()) / 3
        assert figures.separation.value == pytest.approx(mean, rel=1e-9)
        assert figures.separation.interval is None  # of one run
        assert figures.rows == 27
    first, _, last = found.figures
    assert first.separation.value > last.separation.value
    assert first.separation_directions.value > last.separation_directions.value
    assert first.nmi.value > 0.8 > last.nmi.value
    assert first.nmi_by_chance == pytest.approx(last.nmi_by_chance, abs=0.05)


def test_several_runs_have_t_intervals(tmp_path):
    runs = [write_run(tmp_path / f"run-{seed}", FADING, seed=seed) for seed in range(3)]
    found = merging(runs, num_domains=3)
    alone = [merging([run], num_domains=3) for run in runs]
    assert found.by_run == [one.figures for one in alone]
    for name in ("separation", "separation_directions", "nmi", "purity"):
        values = [getattr(one.figures[1], name).value for one in alone]
        low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        if name in ("nmi", "purity"):
            low, high = max(low, 0), min(high, 1)
        mean = getattr(found.figures[1], name)
        assert mean.value == pytest.approx(sum(values) / 3)
        assert (mean.interval.low, mean.interval.high) == pytest.approx((low, high))
    for name in ("nmi_by_chance", "purity_by_chance"):
        values = [getattr(one.figures[1], name) for one in alone]
        assert getattr(found.figures[1], name) == pytest.approx(sum(values) / 3)


def test_intervals_over_runs_end_where_shares_do(tmp_path):
    """Two runs far apart: t of one degree of freedom reaches out of [0, 1] on both sides."""
    runs = [
        write_run(tmp_path / f"run-{seed}", {0: apart, 10: 0.0}, seed=seed)
        for seed, apart in enumerate((9.0, 0.5))
    ]
    found = merging(runs, num_domains=3)
    for name in ("nmi", "purity"):
        values = [getattr(own[0], name).value for own in found.by_run]
        reach = stats.t.ppf(0.975, 1) * stats.sem(values)
        mean = sum(values) / 2
        assert mean - reach < 0
        assert mean + reach > 1
        figure = getattr(found.figures[0], name)
        assert figure.value == pytest.approx(mean)
        assert (figure.interval.low, figure.interval.high) == (0.0, 1.0)
    separation = found.figures[0].separation
    assert separation.interval.low < 0  # it has no such end


def test_the_record_is_json(tmp_path):
    run = write_run(tmp_path / "run", FADING)
    one, again = (merging([run], num_domains=4) for _ in range(2))
    assert one == again
    record = json.loads(json.dumps(plain(one), allow_nan=False))
    assert record["runs"] == [str(run)]
    assert record["figures"][2]["separation"]["value"] == one.figures[2].separation.value


def test_what_is_not_finite_is_null(tmp_path):
    """Every row of a source the same: no spread, no separation."""
    run = write_run(tmp_path / "run", {0: 1.0, 10: 1.0})
    file = run / "probes" / "step-00000010.safetensors"
    tensors = load_file(file)
    tensors["sketch"] = torch.eye(3, 30)[tensors["source"].long()].bfloat16()
    save_file(tensors, file)
    found = merging([run], num_domains=3)
    assert plain(found)["figures"][1]["separation"]["value"] is None


def test_small_sources_are_left_out(tmp_path):
    found = merging([write_run(tmp_path / "run", FADING, rows=(9, 3, 10))], num_domains=3)
    assert (found.sources, found.left_out) == (["alpha", "gamma"], ["beta"])
    assert found.figures[0].rows == 19
    four = merging([write_run(tmp_path / "four", FADING, rows=(9, 4, 10))], num_domains=3)
    assert (four.sources, four.left_out) == (SOURCES, [])
    alone = write_run(tmp_path / "alone", FADING, rows=(9, 3, 2))
    with pytest.raises(RunError, match=r"'beta': 3, 'gamma': 2.*higher probe\.rows"):
        merging([alone])


def test_what_is_kept_of_a_probe_stays_together(tmp_path):
    run = write_run(tmp_path / "run", {0: 1.0}, rows=(3, 4, 5))
    file = run / "probes" / "step-00000000.safetensors"
    tensors = load_file(file)
    row_N = torch.arange(12)
    save_file(tensors | {"label": row_N.int()}, file)
    whole = read_probe(run, 0)
    kept, left_out = _comparable(run, 0)
    assert (kept.sources, left_out) == (["beta", "gamma"], ["alpha"])
    assert kept.source_N.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert kept.label_N.tolist() == [row["row"] for row in kept.rows] == list(range(3, 12))
    assert torch.equal(kept.sketch_NK, whole.sketch_NK[3:])


def test_runs_that_cannot_be_compared_are_refused(tmp_path):
    run = write_run(tmp_path / "run", FADING)
    with pytest.raises(ConfigError, match=r"same steps.*\[0, 10, 100\].*\[0, 50\]"):
        merging([run, write_run(tmp_path / "early", {0: 1.0, 50: 1.0})])
    others = write_run(tmp_path / "others", FADING, sources=["alpha", "beta", "delta"], seed=1)
    with pytest.raises(ConfigError, match=r"same sources.*'delta'"):
        merging([run, others])


def test_a_run_without_probes_says_why(tmp_path):
    with pytest.raises(RunError, match=r"is not a run: it has no config\.yaml"):
        probed_steps(tmp_path)
    config = resolve_config("planted", ["mixer.name=natural", "probe.rows=7"])
    (tmp_path / "config.yaml").write_text(config.dump())
    with pytest.raises(RunError, match=r"no probes \(mixer\.name=natural, probe\.rows=7"):
        merging([tmp_path])


def test_probes_that_cannot_be_read_are_named(tmp_path):
    run = write_run(tmp_path / "run", FADING)
    with pytest.raises(RunError, match=r"no probe of step 5; it has those of \[0, 10, 100\]"):
        read_probe(run, 5)
    file = run / "probes" / "step-00000010.safetensors"
    tensors = load_file(file)
    tensors["sketch"][3, 2] = float("nan")
    save_file(tensors, file)
    with pytest.raises(RunError, match=r"1 of 27 sketches in .*00000010.* not finite"):
        merging([run])
    file.write_bytes(b"torn")
    with pytest.raises(RunError, match=r"00000010\.safetensors cannot be read"):
        merging([run])
    file.unlink()
    with pytest.raises(RunError, match=r"00000010\.safetensors cannot be read"):
        merging([run])
    file.with_suffix(".json").unlink()
    assert probed_steps(run) == [0, 100]


def test_the_probes_of_a_real_run(tmp_path):
    """Sources that prefer different words are told apart by an untrained model already."""
    corpus = write_corpus(tmp_path / "corpus", {"alpha": 4000, "beta": 4000, "gamma": 4000})
    config = resolve_config(
        "planted",
        [
            f"data.corpus={corpus}",
            "data.seq_len=32",
            "train.steps=4",
            "train.batch_size=6",
            "train.device=cpu",
            "eval.every=4",
            "eval.max_samples_per_source=2",
            "mixer.kmeans_restarts=2",
            "sketch.dim=64",
            "probe.rows=24",
            "probe.at=[0, 1]",
            f"run={tmp_path / 'run'}",
        ],
    )
    run_job(Job("tiny", config))
    run = tmp_path / "run"
    probe = read_probe(run, 4)
    assert (probe.sources, probe.sketch_NK.shape) == (SOURCES, (24, 64))
    assert probe.source_N.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert [row["source"] for row in probe.rows[::8]] == SOURCES
    found = merging([run], num_domains=3)
    assert found.steps == [0, 4]
    assert all(figures.separation_directions.value > 0 for figures in found.figures)
    assert all(figures.nmi.value > figures.nmi_by_chance for figures in found.figures)
