import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score

from dograph.domains.partition import agreement, agreement_of_counts


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 80),
    num_domains=st.integers(1, 12),
    num_sources=st.integers(1, 8),
    noise=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_agrees_with_scikit_learn(seed, size, num_domains, num_sources, noise):
    rng = np.random.default_rng(seed)
    source_B = rng.integers(num_sources, size=size)
    blind_B = rng.integers(num_domains, size=size)
    label_B = np.where(rng.random(size) < noise, blind_B, source_B % num_domains)
    nmi, purity = agreement(torch.tensor(label_B), torch.tensor(source_B), num_domains, num_sources)
    expected = normalized_mutual_info_score(source_B, label_B)
    assert float(nmi) == pytest.approx(expected, abs=1e-9)
    commonest = sum(np.bincount(source_B[label_B == j]).max() for j in np.unique(label_B))
    assert float(purity) == pytest.approx(commonest / size)


@pytest.mark.parametrize(
    ("label", "source", "nmi", "purity"),
    [
        ([0, 0, 0], [0, 0, 0], 1.0, 1.0),
        ([0, 1, 2], [1, 1, 1], 0.0, 1.0),
        ([0, 0, 0, 0], [0, 1, 2, 1], 0.0, 0.5),
        ([0, 0, 1, 1], [0, 1, 0, 1], 0.0, 0.5),
        ([2, 2, 0, 0], [0, 0, 1, 1], 1.0, 1.0),
    ],
)
def test_known_cases(label, source, nmi, purity):
    got = agreement(torch.tensor(label), torch.tensor(source), 3, 3)
    assert [float(value) for value in got] == pytest.approx([nmi, purity], abs=1e-12)
    assert normalized_mutual_info_score(source, label) == pytest.approx(nmi, abs=1e-12)


def test_independent_labels_share_no_information_up_to_rounding():
    draw = np.random.default_rng(0)
    for _ in range(50):
        count_M, count_S = draw.integers(1, 9, 5), draw.integers(1, 9, 4)
        count_1MS = torch.tensor(np.outer(count_M, count_S), dtype=torch.float64)[None]
        assert float(agreement_of_counts(count_1MS)[0]) == 0.0
