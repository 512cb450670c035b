"""What a plan from a table says against itself."""

import numpy as np

from dograph.plans.checks import grouped
from dograph.plans.from_table import propose_from_table
from dograph.plans.table import MixtureTable


def test_a_fit_that_ranks_by_chance_is_noted_and_targets_share_their_notes():
    """Five runs whose losses have nothing to do with their mixtures."""
    weight_NS = np.array([[0.2, 0.8], [0.4, 0.6], [0.5, 0.5], [0.6, 0.4], [0.8, 0.2]])
    loss_NV = np.array([[3.0, 2.0], [2.9, 1.9], [3.3, 2.3], [2.9, 1.9], [3.0, 2.0]])
    runs = [f"r{n}" for n in range(5)]
    table = MixtureTable(["a", "b"], ["a", "b"], runs, weight_NS, loss_NV)
    notes = propose_from_table("mixing-law", table, target="mean").findings["notes"]
    assert any("no better than chance" in note for note in notes)
    assert grouped({"a": ["x", "y"], "b": ["x"]}, "law") == ["law of a, b: x", "law of a: y"]
