"""Domains against sources: scikit-learn's figures, chance in closed form, errors by simulation."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from scipy.stats import entropy
from sklearn.metrics import normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix, expected_mutual_information

from dograph.domains.partition import agreement
from dograph.eval import merging as perceiving
from dograph.eval.gradients import Probe
from dograph.eval.inspect import perceived
from dograph.eval.merging import (
    agreement_by_chance,
    agreement_error,
    over_rows,
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
    return Probe(7, sources, [{}] * num, sketch_NK.float(), source_N, label_N, torch.zeros(num))


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
    figures = perception(probe_of(sketch_NK, source_N), 3, 0).figures
    label_N, _ = perceived(sketch_NK.float(), 3, 0)
    assert figures.nmi.value == pytest.approx(normalized_mutual_info_score(source_N, label_N))
    table = contingency_matrix(source_N, label_N)
    assert figures.purity.value == pytest.approx(table.max(axis=0).sum() / 36)
    assert figures.nmi.value > 0.8
    assert (figures.step, figures.rows) == (7, 36)


def test_far_sources_are_their_own_domains():
    figures = perception(probe_of(*drawn(torch.Generator().manual_seed(0), 40.0)), 3, 0).figures
    assert (figures.nmi.value, figures.purity.value) == pytest.approx((1, 1), abs=1e-12)
    assert figures.nmi_by_chance < 0.2
    assert 1 / 3 <= figures.purity_by_chance < 0.6  # never below the largest source's share


def test_directions_leave_the_lengths_of_sketches_out():
    sketch_NK, source_N = drawn(torch.Generator().manual_seed(0), 3.0)
    length_N1 = torch.linspace(0.1, 9, 36)[torch.arange(36) * 5 % 36][:, None]
    plain = perception(probe_of(sketch_NK, source_N), 3, 0).figures
    longer = perception(probe_of(sketch_NK * length_N1, source_N), 3, 0).figures
    unit = perception(probe_of(F.normalize(sketch_NK), source_N), 3, 0).figures
    want = plain.separation_directions
    assert longer.separation_directions.value == pytest.approx(want.value, rel=1e-5)
    assert unit.separation.value == pytest.approx(want.value, rel=1e-5)
    assert unit.separation.interval.low == pytest.approx(want.interval.low, rel=1e-4)
    assert longer.separation.value < plain.separation.value - 0.1


def test_intervals_are_those_of_student_with_the_freedom_there_is(monkeypatch):
    """n - 1 of the smallest source for separations; four splits for what is taken by halves."""
    errors = torch.tensor([0.05, 0.2])
    monkeypatch.setattr(perceiving, "agreement_error", lambda *_: errors)
    sketch_NK, source_N = drawn(torch.Generator().manual_seed(4), 1.5, (6, 14, 9))
    found = perception(probe_of(sketch_NK, source_N), 4, 0)
    for separation, told in (
        (found.whole, found.figures.separation),
        (found.directions, found.figures.separation_directions),
    ):
        reach = stats.t.ppf(0.975, 5) * separation.standard_error()
        ends = (told.interval.low, told.interval.high)
        assert ends == pytest.approx((told.value - reach, told.value + reach))
        assert over_rows(separation) == told
    nmi, purity = found.figures.nmi, found.figures.purity
    reach = stats.t.ppf(0.975, 4) * 0.05
    ends = (nmi.interval.low, nmi.interval.high)
    assert ends == pytest.approx((nmi.value - reach, nmi.value + reach))
    assert purity.interval.low == pytest.approx(purity.value - 4 * reach)
    assert (purity.interval.high, purity.value + 4 * reach > 1) == (1.0, True)  # a share
    errors[0] = 5.0
    assert perception(probe_of(sketch_NK, source_N), 4, 0).figures.nmi.interval.low == 0


def test_a_sketch_of_zeros_has_no_direction_and_breaks_nothing():
    sketch_NK, source_N = drawn(torch.Generator().manual_seed(0), 3.0)
    sketch_NK[5] = 0
    figures = perception(probe_of(sketch_NK, source_N), 3, 0).figures
    assert figures.separation_directions.interval is not None
    assert figures.nmi.value > figures.nmi_by_chance


def test_domains_are_found_in_coordinates_with_the_same_inner_products(monkeypatch):
    seen = []

    def watched(unit_NK, *options):
        seen.append(unit_NK)
        return perceived(unit_NK, *options)

    monkeypatch.setattr(perceiving, "perceived", watched)
    sketch_NK, source_N = drawn(torch.Generator().manual_seed(1), 2.0)
    perception(probe_of(sketch_NK, source_N), 3, 0)
    direction_NK = F.normalize(sketch_NK.float().double())
    torch.testing.assert_close(seen[0] @ seen[0].T, direction_NK @ direction_NK.T)


def test_halves_are_centred_before_they_are_clustered():
    """So a shift of all directions changes nothing."""
    unit_NK, source_N = drawn(torch.Generator().manual_seed(1), 2.0)
    errors = agreement_error(unit_NK, source_N, 3, 0)
    assert errors.min() > 0
    torch.testing.assert_close(agreement_error(unit_NK + 50, source_N, 3, 0), errors)


def test_halves_have_every_source_in_equal_parts(monkeypatch):
    seen = []

    def watched(label_H, source_H, *sizes):
        seen.append(torch.bincount(source_H).tolist())
        return agreement(label_H, source_H, *sizes)

    monkeypatch.setattr(perceiving, "agreement", watched)
    sketch_NK, source_N = drawn(torch.Generator().manual_seed(0), 2.5, (12, 6, 8))
    agreement_error(sketch_NK, source_N, 3, 0)
    assert seen == [[6, 3, 4]] * 8  # four splits


@pytest.mark.slow
def test_errors_by_halves_are_of_the_size_of_what_happens():
    generator, values, errors = torch.Generator().manual_seed(0), [], []
    for draw in range(40):
        sketch_NK, source_N = drawn(generator, 2.5, (16, 16, 16))
        unit_NK = F.normalize(sketch_NK)
        label_N, _ = perceived(unit_NK, 4, 0)
        values.append([float(part) for part in agreement(label_N, source_N, 4, 3)])
        errors.append(agreement_error(unit_NK, source_N, 4, draw).tolist())
    ratio_2 = np.sqrt(np.square(errors).mean(axis=0)) / np.std(values, axis=0, ddof=1)
    assert (ratio_2 > 0.75).all()
    assert (ratio_2 < 1.4).all()
