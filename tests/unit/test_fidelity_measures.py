"""The measures of the fidelity benchmark, against explicit points, SVDs and gradients by hand."""

import numpy as np
import pytest
import torch
from benchmarks import fidelity_measures as measures
from benchmarks import fidelity_weights
from torch import nn

from dograph.domains.kmeans import KMeans
from dograph.domains.objectives import Uncertainty
from dograph.domains.partition import partition, sample_weights

SAMPLES = 24


def draw(seed):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=draw(seed), dtype=dtype)


@pytest.fixture
def point_BK():
    """Four groups of points, of different norms, away from the origin."""
    group_B = torch.arange(SAMPLES) % 4
    point_BK = 3 * normal(4, 30, seed=1)[group_B] + normal(SAMPLES, 30, seed=2) + 1
    return point_BK * torch.linspace(0.5, 2, SAMPLES, dtype=torch.float64)[:, None]


class TestGrams:
    @pytest.mark.parametrize("width", [3, measures.PIECE, 3 * measures.PIECE + 5])
    def test_every_column_counts_once(self, width):
        value_BN = normal(5, width, dtype=torch.float32)
        want_BB = value_BN.double() @ value_BN.double().T
        for pieces in (1, 2, 8):
            torch.testing.assert_close(measures.gram(value_BN, pieces), want_BB)

    def test_sums_are_not_rounded_to_float32(self):
        value_BN = torch.full((1, 2 * measures.PIECE), 0.01)
        value_BN[0, 0] = 1000  # beside its square a float32 sum loses the others
        want = (2 * measures.PIECE - 1) * float(value_BN[0, 1]) ** 2
        assert float(measures.gram(value_BN)) - 1e6 == pytest.approx(want, rel=1e-6)

    @pytest.mark.parametrize("hold", [0, 1500, 1 << 30])
    def test_gradients_by_hand(self, hold):
        """Loss i is |W e_i|^2 / 2, e_i the sum of its tokens' embeddings; `idle` is in no loss."""
        table, weight = nn.Parameter(normal(7, 3, seed=3)), nn.Parameter(normal(4, 3, seed=4))
        idle = nn.Parameter(normal(2))
        token_BT = torch.randint(7, (6, 5), generator=draw(5))
        calls, seen = [], {}

        def losses(token_bT):
            calls.append(len(token_bT))
            return (table[token_bT].sum(dim=1) @ weight.T).square().sum(dim=1) / 2

        grams, loss_B = measures.exact_grams(
            losses,
            token_BT,
            {"table": table, "idle": idle, "weight": weight},
            hold=hold,
            look=lambda name, gradient_BN: seen.update({name: gradient_BN.clone()}),
        )
        e, w = table.detach()[token_BT].sum(dim=1).numpy(), weight.detach().numpy()
        count = np.stack([np.bincount(row, minlength=7) for row in token_BT.numpy()])
        of_weight = np.einsum("bo,bi->boi", e @ w.T, e).reshape(6, -1)
        of_table = np.einsum("bv,bd->bvd", count, e @ w.T @ w).reshape(6, -1)
        np.testing.assert_allclose(loss_B, ((e @ w.T) ** 2).sum(axis=1) / 2)
        np.testing.assert_allclose(seen["weight"], of_weight)
        np.testing.assert_allclose(grams["weight"], of_weight @ of_weight.T)
        np.testing.assert_allclose(grams["table"], of_table @ of_table.T)
        assert not grams["idle"].any()
        assert set(calls) == {1}
        # 6 x 21, 2 and 12 numbers of 8 bytes: each alone, the last two together, all together.
        assert len(calls) == 6 * {0: 3, 1500: 2, 1 << 30: 1}[hold]

    def test_embedding_has_the_gram(self, point_BK):
        for points in (point_BK, point_BK[:, :3]):
            got_BB = measures.embedding(points @ points.T)
            assert got_BB.shape == (SAMPLES, SAMPLES)
            torch.testing.assert_close(got_BB @ got_BB.T, points @ points.T)

    def test_centred(self, point_BK):
        moved_BK = point_BK - point_BK.mean(dim=0)
        torch.testing.assert_close(measures.centred(point_BK @ point_BK.T), moved_BK @ moved_BK.T)


class TestGeometry:
    def test_distances(self, point_BK):
        got_P = measures.pair_distances(point_BK @ point_BK.T)
        torch.testing.assert_close(got_P, torch.pdist(point_BK).square())

    def test_a_common_factor_is_no_error(self):
        true = torch.tensor([1.0, 2.0, 5.0, 8.0])
        assert measures.ratio_error(3 * true, true) == (0, 0)
        # Ratios 1, 1, 1, 5 have mean 2 and variance 3.
        std, most = measures.ratio_error(true * torch.tensor([1, 1, 1, 5]), true)
        assert std == pytest.approx(3**0.5 / 2)
        assert most == pytest.approx(1.5)

    def test_correlation(self, point_BK):
        other_BK = point_BK + normal(SAMPLES, 30, seed=9)
        grams = []
        for points in (point_BK, other_BK):
            moved = (points - points.mean(dim=0)).numpy()
            grams.append((moved @ moved.T)[np.triu_indices(SAMPLES, 1)])
        want = np.corrcoef(grams[0], grams[1])[0, 1]
        got = measures.gram_correlation(point_BK @ point_BK.T, other_BK @ other_BK.T)
        assert 0 < got < 0.999
        assert got == pytest.approx(want)

    def test_participation_ratio(self):
        matrix = normal(3, 8, 5, seed=6) @ normal(5, 5, seed=7)
        s = np.linalg.svd(matrix.numpy(), compute_uv=False)
        want = (s**2).sum(axis=1) ** 2 / (s**4).sum(axis=1)
        np.testing.assert_allclose(measures.participation_ratio(matrix), want)
        np.testing.assert_allclose(measures.participation_ratio(matrix.mT), want)
        assert float(measures.participation_ratio(torch.eye(6)[:4])) == pytest.approx(4)
        assert float(measures.participation_ratio(torch.ones(6, 9))) == pytest.approx(1)

    def test_energy_shares(self):
        grams = {"a.w": torch.eye(3), "a.b": 2 * torch.eye(3), "c": 3 * torch.eye(3)}
        got = measures.energy_shares(grams, lambda name: name[0])
        assert got == {"a": pytest.approx(0.5), "c": pytest.approx(0.5)}

    def test_summary(self):
        want = {"median": 2, "low": 1, "high": 3, "min": 0, "max": 10, "count": 5}
        assert measures.summary([3.0, 0.0, 10.0, 1.0, 2.0]) == want


class TestDomainsAndWeights:
    @pytest.mark.parametrize("spherical", [False, True])
    def test_objective_is_that_of_kmeans(self, point_BK, spherical):
        found = KMeans(4, spherical).cluster(point_BK, draw(0))
        got = measures.clustering_objective(
            point_BK @ point_BK.T, found.label_B, spherical=spherical
        )
        assert got == pytest.approx(float(found.inertia), rel=1e-9)

    def test_objective_of_any_labels(self, point_BK):
        label_B = torch.randint(5, (SAMPLES,), generator=draw(3)) * 2
        parts = [point_BK[label_B == label] for label in label_B.unique()]
        want = sum(float((part - part.mean(dim=0)).square().sum()) for part in parts)
        gram_BB = point_BK @ point_BK.T
        assert measures.clustering_objective(gram_BB, label_B) == pytest.approx(want)

    def test_weights_and_updates(self, point_BK):
        first_B, second_B = (normal(SAMPLES, seed=seed).softmax(dim=0) for seed in (1, 2))
        update = [weight_B @ point_BK for weight_B in (first_B, second_B)]
        want = torch.nn.functional.cosine_similarity(*update, dim=0)
        got = measures.update_cosine(first_B, second_B, point_BK @ point_BK.T)
        assert got == pytest.approx(float(want))
        corner_2B = torch.eye(SAMPLES)[:2]
        assert measures.weight_distance(*corner_2B) == 2
        assert measures.weight_distance(first_B, first_B) == 0

    def test_given_domains_are_used(self, point_BK):
        label_B = torch.arange(SAMPLES) // 3
        got = fidelity_weights.weigh(point_BK, "paper", step=0, label_B=label_B)
        domains = partition(point_BK, label_B, 11)
        want_B = sample_weights(domains, Uncertainty()(domains))
        torch.testing.assert_close(got.weight_B, want_B)
        assert torch.equal(got.label_B, label_B)
        assert float((want_B - 1 / SAMPLES).abs().sum()) > 0.1


class TestReference:
    @pytest.fixture
    def reference(self, point_BK, monkeypatch):
        monkeypatch.setattr(fidelity_weights, "BEST_OF", 64)
        return fidelity_weights.Reference(point_BK @ point_BK.T, step=3)

    def test_the_gradients_themselves_are_faithful(self, reference, point_BK):
        turn_KK = torch.linalg.qr(normal(30, 30, seed=8)).Q
        got = reference.judge(5 * point_BK @ turn_KK)
        assert got["scale"] == pytest.approx(25)
        assert got["gram_correlation"] == pytest.approx(1)
        for name in ("distance_std", "distance_max", "square_norm_std"):
            assert got[name] == pytest.approx(0, abs=1e-9)
        for recipe in fidelity_weights.RECIPES:
            assert got[f"l1_{recipe}_given"] == pytest.approx(0, abs=1e-5)
            assert got[f"cosine_{recipe}_given"] == pytest.approx(1, abs=1e-6)

    def test_a_bad_sketch_lies_between_the_floor_and_chance(self, reference, point_BK):
        noise_BK = 2 * point_BK.std() * normal(SAMPLES, 30, seed=5)
        bad = reference.judge(point_BK + noise_BK)
        floor, chance = reference.floor(), reference.chance()
        for name in ("excess", "excess_spherical", "l1_paper", "l1_variance", "l1_precision"):
            assert -1e-9 <= floor[name] < bad[name]
            assert floor[name] < chance[name]
        assert bad["excess"] < chance["excess"]
        assert bad["l1_paper_given"] > 0
        assert bad["cosine_paper"] < floor["cosine_paper"] <= 1

    def test_rows_of_a_batch(self, reference, point_BK):
        gram_BB, sketch_BK = (point_BK @ point_BK.T).numpy(), point_BK.float().numpy()
        pair = ("pair", sketch_BK, sketch_BK.copy())
        rows = fidelity_weights.judge_batch(gram_BB, [("a", sketch_BK)], 3, pair)
        assert [row for row, _ in rows] == [
            "a",
            "pair",
            fidelity_weights.FLOOR,
            fidelity_weights.CHANCE,
        ]
        found = dict(rows)
        assert found["a"] == reference.judge(torch.from_numpy(sketch_BK))
        assert found[fidelity_weights.FLOOR] == reference.floor()
        assert found["pair"]["l1_paper"] == found["pair"]["distance_max"] == 0
