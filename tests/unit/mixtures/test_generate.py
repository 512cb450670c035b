"""RegMix's generator against a slow transcription of its description."""

import time

import numpy as np
import pytest

from dograph.errors import ConfigError
from dograph.mixtures import proposals as generate
from dograph.mixtures.proposals import distinct, draw_mixtures, generate_mixtures, rounded

PRIOR = {"web": 0.6, "code": 0.3, "books": 0.08, "law": 0.02}


def transcribed(raw_NS, prior_S, max_usage, minimum):
    """Steps 4 to 6 of the description, one draw after the other."""
    kept = []
    for weights in raw_NS.tolist():
        if any(w > min(max_usage * p, 1) for w, p in zip(weights, prior_S, strict=True)):
            continue
        weights = [0.0 if w < minimum else w for w in weights]
        total = sum(weights)
        kept.append([round(w / total / minimum) * minimum for w in weights])
    kept.sort(key=lambda weights: weights[::-1])
    result = kept[:1]
    for weights in kept[1:]:
        if sum(abs(a - b) for a, b in zip(weights, result[-1], strict=True)) > 1e-5:
            result.append(weights)
    return kept, result


def test_refusing_rounding_and_counting_once(monkeypatch):
    monkeypatch.setattr(generate, "MINIMUM", 0.01)
    prior_S = np.array(list(PRIOR.values()))
    raw_NS = np.random.default_rng(0).dirichlet(3 * prior_S, size=3000)
    kept, unlike = transcribed(raw_NS, prior_S, 4, 0.01)
    grid_NS = rounded(raw_NS, 4 * prior_S)
    assert 100 < len(unlike) < len(kept) < 3000
    assert len(grid_NS) == len(kept)
    np.testing.assert_allclose(distinct(grid_NS), unlike, atol=1e-12)


def test_the_draws_have_the_moments_of_the_description():
    """A Dirichlet of strength s has mean q and variance q (1 - q) / (s + 1); s is one of 15."""
    prior_S = np.array(list(PRIOR.values()))
    flat_S = np.sqrt(prior_S) / np.sqrt(prior_S).sum()
    strengths = np.logspace(np.log10(0.1), np.log10(5.0), 15)
    draws = np.random.default_rng(1)
    weight_NS = draw_mixtures(draws, prior_S, 200_000)
    variance_S = flat_S * (1 - flat_S) * np.mean(1 / (strengths + 1))
    np.testing.assert_allclose(weight_NS.mean(0), flat_S, atol=4e-3)
    np.testing.assert_allclose(weight_NS.var(0), variance_S, rtol=0.02)


def test_the_constants_are_the_authors(monkeypatch):
    """Seed 42, prior^0.5, 15 strengths from 0.1 to 5 by equal factors, caps of 15 times the prior
    as it is (not as flattened), multiples of 2e-4, and 100 draws for each mixture asked for."""
    seen = {}

    def drawn(draws, prior_S, number):
        seen.update(prior=prior_S, number=number)
        return draw_mixtures(draws, prior_S, number)

    def kept(weight_NS, cap_S):
        seen.update(cap=cap_S)
        return rounded(weight_NS, cap_S)

    monkeypatch.setattr(generate, "draw_mixtures", drawn)
    monkeypatch.setattr(generate, "rounded", kept)
    found = generate_mixtures(PRIOR, 4)
    np.testing.assert_allclose(seen["prior"], [0.6, 0.3, 0.08, 0.02])
    np.testing.assert_allclose(generate.STRENGTHS, 0.1 * 50 ** (np.arange(15) / 14))
    np.testing.assert_allclose(seen["cap"], [9, 4.5, 1.2, 0.3])
    assert (generate.TEMPERATURE, generate.MINIMUM, seen["number"]) == (0.5, 2e-4, 400)
    assert found == generate_mixtures(PRIOR, 4, seed=42)


def test_mixtures_one_grid_step_apart_are_two():
    near_NS = np.array([[0.5, 0.5], [0.5002, 0.4998], [0.5 + 4e-6, 0.5 - 4e-6]])
    assert len(distinct(near_NS)) == 2


def test_what_comes_out():
    mixtures = generate_mixtures(PRIOR, 64)
    weight_NS = np.array([list(mixture.weights.values()) for mixture in mixtures])
    assert all(list(mixture.weights) == list(PRIOR) for mixture in mixtures)
    np.testing.assert_allclose(weight_NS.sum(1), 1, atol=1e-12)
    assert len(np.unique(weight_NS, axis=0)) == 64
    # the cap of 15 times the prior binds law alone; rounding may pass it by one step
    assert weight_NS[:, 3].max() <= 15 * 0.02 + 2e-4
    assert weight_NS[:, 0].max() > 0.9
    # multiples of 2e-4 over their sum: k / K with whole k, and K within rounding of 5000
    for weight_S in weight_NS:
        near = (weight_S * total for total in range(4990, 5011))
        assert min(np.abs(part_S - part_S.round()).max() for part_S in near) < 1e-9
    assert (weight_NS == 0).any()
    assert weight_NS[weight_NS > 0].min() > 1.9e-4


def test_seeds():
    first, again, other = (generate_mixtures(PRIOR, 8, seed=seed) for seed in (42, 42, 43))
    assert first == again == generate_mixtures(PRIOR, 8)
    assert first != other
    tokens = {name: 1e9 * weight for name, weight in PRIOR.items()}
    assert [list(m.weights.values()) for m in generate_mixtures(tokens, 8)] == [
        pytest.approx(list(m.weights.values()), abs=1e-12) for m in first
    ]


def test_a_source_without_prior_keeps_its_name():
    mixtures = generate_mixtures({"web": 0.5, "none": 0.0, "code": 0.5}, 5)
    assert all(mixture.weights["none"] == 0 for mixture in mixtures)
    assert all(len(mixture.weights) == 3 for mixture in mixtures)


def test_too_few_survive():
    with pytest.raises(ConfigError, match=r"ask for fewer \(num_proxies\), or raise max_usage"):
        generate_mixtures(PRIOR, 10, max_usage=1.0)
    with pytest.raises(ConfigError, match="1 of these differ"):
        generate_mixtures({"web": 1.0}, 2)
    assert generate_mixtures({"web": 1.0}, 1)[0].weights == {"web": 1.0}


@pytest.mark.parametrize("prior", [{}, {"a": -1.0, "b": 2.0}, {"a": 0.0}, {"a": float("nan")}])
def test_bad_priors(prior):
    with pytest.raises(ConfigError, match="prior"):
        generate_mixtures(prior, 2)


def test_it_is_fast():
    start = time.process_time()
    generate_mixtures({f"s{n}": 1 + n for n in range(22)}, 512)
    assert time.process_time() - start < 3
