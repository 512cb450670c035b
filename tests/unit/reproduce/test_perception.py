"""Domains against sources: scikit-learn's figures, chance in closed form."""

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import entropy
from sklearn.metrics import normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix, expected_mutual_information

from dograph.eval.gradients import Probe
from dograph.eval.inspect import perceived
from dograph.reproduce.seen import (
    agreement_by_chance,
    perception,
)


def drawn(generator, apart, sizes=(12, 12, 12), width=20):
    source_N = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    noise_NK = torch.randn(len(source_N), width, generator=generator, dtype=torch.float64)
    return noise_NK + apart * torch.eye(len(sizes), width).double()[source_N], source_N


def probe_of(sketch_NK, source_N):
    num = len(source_N)
    sources = [f"s{s}" for s in range(int(source_N.max()) + 1)]
    label_N = torch.full((num,), -1)
    return Probe(7, sources, [{}] * num, sketch_NK.float(), source_N, label_N)


def test_chance_is_the_expected_information_of_shuffled_sources():
    """In closed form: scikit-learn's mean over all relabellings."""
    generator = torch.Generator().manual_seed(0)
    source_N = torch.repeat_interleave(torch.arange(4), torch.tensor([30, 20, 20, 10]))
    label_N = torch.randint(6, (80,), generator=generator)
    expected = expected_mutual_information(contingency_matrix(source_N, label_N), 80)
    expected *= 2 / sum(entropy(torch.bincount(side_N)) for side_N in (source_N, label_N))
    nmi, purity = agreement_by_chance(label_N, source_N, 0).tolist()
    assert nmi == pytest.approx(expected, rel=0.03)
    assert 30 / 80 < purity < 0.6
    assert [nmi, purity] == agreement_by_chance(label_N, source_N, 0).tolist()
    assert [nmi, purity] != agreement_by_chance(label_N, source_N, 1).tolist()


def test_figures_are_those_of_the_domains_that_inspect_finds():
    sketch_NK, source_N = drawn(torch.Generator().manual_seed(2), 7.0)
    sketch_NK = sketch_NK * torch.linspace(0.1, 9, len(source_N))[:, None]  # directions count
    figures = perception(probe_of(sketch_NK, source_N), 3)
    label_N, _ = perceived(sketch_NK.float(), 3, 0)
    assert figures.nmi.value == pytest.approx(normalized_mutual_info_score(source_N, label_N))
    table = contingency_matrix(source_N, label_N)
    assert figures.purity.value == pytest.approx(table.max(axis=0).sum() / 36)
    assert figures.nmi.value > 0.8
    assert (figures.step, figures.rows) == (7, 36)


def test_far_sources_are_their_own_domains():
    figures = perception(probe_of(*drawn(torch.Generator().manual_seed(0), 40.0)), 3)
    assert (figures.nmi.value, figures.purity.value) == pytest.approx((1, 1), abs=1e-12)
    assert figures.nmi_by_chance < 0.2
    assert 1 / 3 <= figures.purity_by_chance < 0.6  # never below the largest source's share


def test_directions_leave_the_lengths_of_sketches_out():
    sketch_NK, source_N = drawn(torch.Generator().manual_seed(0), 3.0)
    length_N1 = torch.linspace(0.1, 9, 36)[torch.arange(36) * 5 % 36][:, None]
    plain = perception(probe_of(sketch_NK, source_N), 3)
    longer = perception(probe_of(sketch_NK * length_N1, source_N), 3)
    unit = perception(probe_of(F.normalize(sketch_NK), source_N), 3)
    want = plain.separation_directions
    assert longer.separation_directions.value == pytest.approx(want.value, rel=1e-5)
    assert unit.separation.value == pytest.approx(want.value, rel=1e-5)
    assert longer.separation.value < plain.separation.value - 0.1


def test_a_sketch_of_zeros_has_no_direction_and_breaks_nothing():
    sketch_NK, source_N = drawn(torch.Generator().manual_seed(0), 3.0)
    sketch_NK[5] = 0
    figures = perception(probe_of(sketch_NK, source_N), 3)
    assert figures.separation_directions.value > 0
    assert figures.nmi.value > figures.nmi_by_chance
