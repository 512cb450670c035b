"""Tables of probes, from probes written by hand whose answer is known."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import stats

from dograph.eval.gradients import principal, read_probe
from dograph.reproduce.seen import clusters, composition, gradient_pca, merging
from dograph.reproduce.session import setup_differences
from probed_runs import SOURCES, write_run

FADING = {0: 4.0, 10: 0.5}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probed")
    return [write_run(folder / f"run-{seed}", FADING, seed=seed) for seed in range(5)]


def study(by_hand, name, runs, out, failed=()):
    cells = by_hand.levels({"equal": 5.0})
    for number, (cell, run) in enumerate(zip(cells, runs, strict=True)):
        cell["run"] = str(run)
        if number in failed:
            cell |= {"error": "it broke", "run": "nowhere"}
    return by_hand.study(name, by_hand.findings(cells, baseline="equal"), out=out)


def test_changes_are_last_less_first_run_by_run(by_hand, runs, tmp_path):
    found = gradient_pca(study(by_hand, "gradient-pca", runs, tmp_path))
    alone = [merging([run], 11) for run in runs]
    names = ("separation", "separation_directions", "nmi")
    assert len(found.verdicts) == 3
    for verdict, name in zip(found.verdicts, names, strict=True):
        first, last = ([getattr(one.figures[at], name).value for one in alone] for at in (0, -1))
        expected = stats.ttest_rel(last, first).confidence_interval(0.95)
        ends = (verdict.ours.interval.low, verdict.ours.interval.high)
        assert ends == pytest.approx(tuple(expected))
        assert (verdict.ours.num, verdict.verdict) == (5, "confirmed")
    first = principal(read_probe(runs[0], 0).sketch_NK)[1]
    assert found.data["methods"]["equal"]["pca"]["0"] == pytest.approx(first.tolist())


def test_changes_of_shares_end_at_one(by_hand, runs, tmp_path):
    """Two runs whose domains follow sources less, by unlike amounts: t reaches below -1."""
    other = write_run(tmp_path / "other", {0: 4.0, 10: 3.0}, seed=9)
    found = clusters(
        study(by_hand, "clusters", [runs[0], other, *runs[2:]], tmp_path, failed=(2, 3, 4))
    )
    alone = [merging([run], 11).figures for run in (runs[0], other)]
    for verdict, name in zip(found.verdicts, ("nmi", "purity"), strict=True):
        changes = [getattr(own[-1], name).value - getattr(own[0], name).value for own in alone]
        reach = stats.t.ppf(0.975, 1) * stats.sem(changes)
        assert np.mean(changes) - reach < -1
        assert verdict.ours.value == pytest.approx(np.mean(changes))
        assert verdict.ours.interval.low == -1
        assert verdict.ours.interval.high == pytest.approx(min(1, np.mean(changes) + reach))


def test_the_part_of_the_corpus_that_the_paper_looks_at_is_told(by_hand, runs, tmp_path):
    for name in ("gradient-pca", "clusters"):
        lines = setup_differences(study(by_hand, name, runs, tmp_path))
        assert sum("; paper: 20 % of " in line for line in lines) == 1
    cells = by_hand.levels({"uniform": 5.0})
    other = by_hand.study("validation-loss", by_hand.findings(cells))
    assert "20 %" not in "".join(setup_differences(other))


def test_a_run_that_failed_is_left_out_of_the_figures(by_hand, runs, tmp_path):
    found = clusters(study(by_hand, "clusters", runs, tmp_path, failed=(2,)))
    assert {verdict.ours.num for verdict in found.verdicts} == {4}
    assert found.tables[0].title.startswith("equal: 4 seeds, 27 held-out rows")


def test_what_domains_are_made_of(by_hand, runs, tmp_path):
    """Sources far apart on axes of their own, so that domains are sources, largest first."""
    run = write_run(tmp_path / "run", {0: 1.0, 10: 1.0})
    file = run / "probes" / "step-00000000.safetensors"
    tensors = load_file(file)
    source_N = tensors["source"].long()
    noise_NK = torch.randn(len(source_N), 30, generator=torch.Generator().manual_seed(0))
    tensors["sketch"] = (torch.eye(3, 30)[source_N] + 1e-3 * noise_NK).bfloat16()
    save_file(tensors, file)
    table = composition(run, 0, num_domains=3)
    assert table == {"sources": SOURCES, "rows": [[0, 0, 10], [9, 0, 0], [0, 8, 0]]}

    found = clusters(study(by_hand, "clusters", [run, *runs[1:]], tmp_path))
    sheet = next(sheet for sheet in found.tables if "step 10" in sheet.title)
    rows = found.data["methods"]["equal"]["composition"]["10"]["rows"]
    for shown, counts in zip(sheet.rows, rows, strict=True):
        assert shown[1] == str(sum(counts))
        shares = [f"{100 * count / sum(counts):.0f}" if count else "" for count in counts]
        assert list(shown[2:]) == shares
