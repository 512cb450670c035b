"""Principal components against scikit-learn, alone and over the probes of a run."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.preprocessing import normalize

from dograph.errors import ConfigError, RunError
from dograph.eval.gradients import principal, read_probe
from probed_runs import write_run


def signed(coordinate_NC):
    """With our sign: the largest absolute coordinate of each axis is positive."""
    largest_C = np.abs(coordinate_NC).argmax(axis=0)
    return np.sign(coordinate_NC[largest_C, np.arange(coordinate_NC.shape[1])])


def sketches(rows, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scale_K = torch.linspace(2, 0.2, width)
    return torch.randn(rows, width, generator=generator) * scale_K + 0.5


@pytest.mark.parametrize(("rows", "width"), [(30, 80), (80, 12), (12, 12)])
def test_components_are_those_of_scikit_learn(rows, width):
    sketch_NK = sketches(rows, width)
    coordinate_NC, explained_C = principal(sketch_NK, 3)
    oracle = PCA(3, svd_solver="full")
    expected_NC = oracle.fit_transform(normalize(sketch_NK.double().numpy()))
    expected_NC = expected_NC * signed(expected_NC)
    np.testing.assert_allclose(coordinate_NC.numpy(), expected_NC, rtol=0, atol=1e-10)
    np.testing.assert_allclose(explained_C, oracle.explained_variance_ratio_, rtol=1e-10)
    assert coordinate_NC.dtype == torch.float64


def test_rotation_and_lengths_change_nothing():
    sketch_NK = sketches(20, 9).double()
    generator = torch.Generator().manual_seed(1)
    turn_KK, _ = torch.linalg.qr(torch.randn(9, 9, generator=generator, dtype=torch.float64))
    length_N1 = torch.linspace(0.01, 50, 20).double()[:, None]
    (one_NC, _), (other_NC, _) = (
        principal(own_NK) for own_NK in (sketch_NK, length_N1 * sketch_NK @ turn_KK)
    )
    torch.testing.assert_close(one_NC, other_NC, rtol=0, atol=1e-10)


def test_directions_that_rows_do_not_have_are_empty():
    """Four rows on a line of directions: one component, and no more."""
    angle_N = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    line_NK = torch.stack([1 - angle_N, angle_N, torch.zeros(4).double()], dim=1)
    line_NK = line_NK / line_NK.norm(dim=1, keepdim=True)
    coordinate_NC, explained_C = principal(line_NK, 3)
    assert explained_C[2] == 0
    assert coordinate_NC[:, 2].tolist() == [0] * 4
    assert float(explained_C.sum()) == pytest.approx(1)
    coordinate_NC, explained_C = principal(torch.ones(5, 4), 2)
    assert explained_C.tolist() == [0, 0]
    assert coordinate_NC.tolist() == [[0, 0]] * 5


def test_bad_requests_are_refused(tmp_path):
    run = write_run(tmp_path / "run", {0: 4.0, 10: 2.0})
    with pytest.raises(RunError, match="no probe of step 7"):
        read_probe(run, 7)
    with pytest.raises(ConfigError, match=r"num=28: .*\(27, 30\).* 1 to 27"):
        principal(read_probe(run, 0).sketch_NK, num=28)
    with pytest.raises(ConfigError, match="num=0"):
        principal(torch.ones(3, 4), 0)
