"""inspect --toward: intervals that cover known products, and planted text that helps."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dograph.cli.main import main
from dograph.data.embedded import planted_documents
from dograph.errors import CorpusError
from dograph.eval.inspect import InspectRequest, TrustedText, inspect_model
from text_inputs import prepare, write_jsonl, write_tokenizer


def made_up(strata):
    """A TrustedText of rows in these strata, one of each name in turn."""
    entries = [SimpleNamespace(source=name.partition("/")[0], stratum=name) for name in strata]
    own = TrustedText.__new__(TrustedText)
    own.blocks = [SimpleNamespace(stratum=SimpleNamespace(entry=entry)) for entry in entries]
    own.score_N = np.linspace(0, 1, len(strata), dtype=np.float32)
    return own


def test_intervals_cover_known_products():
    """Rows are normal around known means; the squared norm of the trusted mean is 1."""
    generator = torch.Generator().manual_seed(0)
    trusted_K = torch.zeros(30).double()
    trusted_K[0] = 1.0
    truth = {"a": 0.5, "b": -0.5, "c": 0.0, "d": 2.0}
    means = [0.5 * trusted_K, -0.5 * trusted_K, trusted_K.roll(1), 2 * trusted_K]
    covered, values = {name: [] for name in truth}, {name: [] for name in truth}
    for _ in range(200):
        noise_NK, noise_MK = torch.randn((2, 320, 30), generator=generator).double()
        mean_NK = torch.stack(means).repeat(80, 1)
        groups, _ = made_up(list("abcd") * 80).groups(mean_NK + noise_NK, trusted_K + noise_MK)
        for group in groups:
            values[group.name].append(group.help)
            low, high = group.interval.low, group.interval.high
            covered[group.name].append(low <= truth[group.name] <= high)
    for name, true in truth.items():
        assert 0.92 <= np.mean(covered[name]) <= 0.995
        assert np.mean(values[name]) == pytest.approx(true, abs=0.05)


def test_a_stratum_is_part_of_its_source_and_figures_are_those_of_plain_sums():
    generator = torch.Generator().manual_seed(1)
    sketch_NK = torch.randn((9, 5), generator=generator) + 1
    trusted_MK = torch.randn((8, 5), generator=generator) + 1
    names = ["a/0", "a/1", "b"] * 3
    groups, notes = made_up(names).groups(sketch_NK, trusted_MK)
    assert [group.name for group in groups[:2]] in (["a", "b"], ["b", "a"])  # sources first
    assert {group.name: group.rows for group in groups} == {"a": 6, "b": 3, "a/0": 3, "a/1": 3}
    pairs = [(i, j) for i in range(8) for j in range(8) if i != j]
    square = np.mean([float(trusted_MK[i] @ trusted_MK[j]) for i, j in pairs])
    for group in groups:
        own = [n for n, name in enumerate(names) if name.startswith(group.name)]
        product = np.array([[float(sketch_NK[n] @ t) for t in trusted_MK] for n in own]) / square
        assert group.help == pytest.approx(product.mean(), rel=1e-5)
        # the infinitesimal jackknife: the derivative of the ratio by the weight of each row
        derivative = [
            product[:, m].mean()
            - 2 * group.help * np.mean([float(trusted_MK[m] @ t) for t in rest]) / square
            for m in range(8)
            for rest in [[trusted_MK[i] for i in range(8) if i != m]]
        ]
        variance = product.mean(1).var(ddof=1) / len(own) + np.var(derivative, ddof=1) / 8
        reach = group.interval.high - group.help
        quantile = {6: 2.5706, 3: 4.3027}[len(own)]  # Student's t for 5 and 2 degrees of freedom
        assert reach == pytest.approx(quantile * variance**0.5, rel=1e-4)
    assert "groups of fewer than 100 rows say little; give more --rows" in notes


def test_trusted_rows_without_a_common_gradient_are_not_compared_with():
    opposite_MK = torch.eye(4).repeat(2, 1) * torch.tensor([1.0] * 4 + [-1.0] * 4)[:, None]
    groups, (note,) = made_up(["a", "a", "b", "b"]).groups(torch.randn(4, 4), opposite_MK)
    assert groups == []
    assert "show no common gradient" in note


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Sources alpha to delta, and trusted text of alpha's kind that the corpus does not have."""
    folder = tmp_path_factory.mktemp("planted")
    documents = list(planted_documents("unigram", num_documents=40, num_words=120))
    by_source = {name: [t for own, t in documents if own == name] for name, _ in documents}
    files = [write_jsonl(folder / f"{name}.jsonl", texts[:25]) for name, texts in by_source.items()]
    trusted = write_jsonl(folder / "trusted.txt.jsonl", by_source["alpha"][25:])
    tokenizer = write_tokenizer(folder / "tokenizer.json")
    prepare(folder / "out", *files, tokenizer=str(tokenizer), validation_fraction=0.2)
    return folder / "out", str(trusted)


def test_text_of_the_trusted_kind_helps_most(planted):
    corpus, trusted = planted
    request = {"model": "tiny", "corpus": corpus, "domains": 4, "seq_len": 32, "rows": 64}
    found = inspect_model(InspectRequest(**request, toward=(trusted,)))
    best, *others = found.toward
    assert best.name == "alpha"
    assert best.text_score > max(group.text_score for group in others)
    assert {group.rows for group in found.toward} == {16}
    assert [row.stratum for row in found.scored[:5]] == ["alpha"] * 5
    assert "alpha" not in [row.stratum for row in found.scored[5:]]
    assert [row.score for row in found.scored] == sorted(
        (row.score for row in found.scored), reverse=True
    )
    assert found.split == "train"


def test_the_command_prints_and_stores_what_would_help(planted, tmp_path, monkeypatch, capsys):
    corpus, trusted = planted
    settings = [f"data.corpus={corpus}", "data.seq_len=32", "--rows", "64", "--domains", "4"]
    command = ["dograph", "inspect", "tiny", *settings, "--toward", trusted, "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    out, found = capsys.readouterr().out, json.loads((tmp_path / "inspection.json").read_text())
    best = found["toward"][0]
    interval = f"[{best['interval']['low']:+.3f},{best['interval']['high']:+.3f}]"
    for words in ("help for the trusted text", f"{best['help']:+.3f}", interval, "least like it"):
        assert words in out
    assert f"{found['scored'][0]['score']:+.3f}" in out


def test_too_little_trusted_text_is_refused(planted, tmp_path):
    corpus, _ = planted
    short = write_jsonl(tmp_path / "short.jsonl", [f"w{n}" for n in range(12)])
    request = InspectRequest(
        model="tiny", corpus=corpus, rows=40, domains=4, seq_len=64, toward=(str(short),)
    )
    with pytest.raises(CorpusError, match="at least two rows of 64 are needed"):
        inspect_model(request)
