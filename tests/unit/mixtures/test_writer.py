"""A table that was written is read back as it was."""

import numpy as np

from dograph.mixtures.tables import MixtureTable, read_table, write_table


def test_round_trip(tmp_path):
    rng = np.random.default_rng(0)
    loss_NV = rng.uniform(2, 5, (5, 2))
    loss_NV[1, 0] = np.nan
    table = MixtureTable(
        sources=["C4", 'odd, "name"', "Book"],
        targets=["C4", "Book"],
        runs=[f"mixture {n}" for n in range(5)],
        weight_NS=rng.dirichlet(np.ones(3), 5),
        loss_NV=loss_NV,
    )
    files = tmp_path / "mixtures.csv", tmp_path / "losses.csv"
    write_table(table, *files)
    again = read_table(*files)
    assert (again.sources, again.targets, again.runs) == (table.sources, table.targets, table.runs)
    np.testing.assert_array_equal(again.loss_NV, table.loss_NV)
    np.testing.assert_allclose(again.weight_NS, table.weight_NS, rtol=1e-15)
