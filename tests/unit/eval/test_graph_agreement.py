"""How far domains are the sources, from the samples that a graph counts."""

from math import log

import pytest

from dograph.eval.recorded import agreement_line, parse_graph


def graph_of(*counts):
    about = {"share": 0.5, "weight": 0.5, "norm": 1.0, "gradient_norm": 1.0, "spread": 1.0}
    nodes = [
        {"domain": j, "samples": sum(own.values()), "sources": own} | about
        for j, own in enumerate(counts)
    ]
    return parse_graph({"step": 1, "nodes": nodes, "edges": []})


def by_hand():
    """Three samples of a in domain 0; of domain 1, one of a and two of b."""
    both = {(0, "a"): 3 / 6, (1, "a"): 1 / 6, (1, "b"): 2 / 6}
    domain, source = {0: 1 / 2, 1: 1 / 2}, {"a": 4 / 6, "b": 2 / 6}
    shared = sum(p * log(p / (domain[j] * source[s])) for (j, s), p in both.items())
    return -2 * shared / sum(p * log(p) for side in (domain, source) for p in side.values())


@pytest.mark.parametrize(
    ("counts", "nmi", "purity"),
    [
        (({"a": 4}, {"b": 2}), 1.0, 1.0),
        (({"a": 2, "b": 2}, {"a": 1, "b": 1}), 0.0, 0.5),
        (({"a": 3}, {"a": 1, "b": 2}), by_hand(), 5 / 6),
    ],
)
def test_agreement_is_that_of_the_counted_samples(counts, nmi, purity):
    assert agreement_line(graph_of(*counts)).endswith(f"NMI {nmi:.3f}, purity {purity:.3f}")


def test_without_samples_it_is_not_known():
    assert "not known" in agreement_line(graph_of({}, {}))
