"""What is joined, mended and named when two files become a table."""

import numpy as np
import pytest

from dograph.errors import ConfigError, CorpusError
from dograph.mixtures.from_table import target_shares
from dograph.mixtures.tables import MixtureTable, read_table


def read(folder, mixtures, losses):
    (folder / "m.csv").write_text(mixtures)
    (folder / "l.csv").write_text(losses)
    return read_table(folder / "m.csv", folder / "l.csv")


def noted(table, *parts):
    assert any(all(part in note for part in parts) for note in table.notes), table.notes


def test_rounded_rows_are_scaled_and_the_deviation_is_said(tmp_path):
    table = read(tmp_path, "run,x,y\na,0.5,0.499\nb,0.5,0.51\nc,1,0\n", "run,x\na,1\nb,2\nc,3\n")
    np.testing.assert_allclose(table.weight_NS.sum(1), 1, atol=1e-15)
    np.testing.assert_allclose(table.weight_NS[1], [0.5 / 1.01, 0.51 / 1.01])
    noted(table, "largest deviation is 0.01", "run b")


@pytest.mark.parametrize(
    ("row", "total"),
    [
        ("40,60", "100"),
        ("0.4,0.5", "0.9"),
        ("0,0", "0"),
        ("0.5,0.511", "1.011"),
        ("0.5,0.489", "0.989"),
    ],
)
def test_rows_beyond_rounding_are_refused(tmp_path, row, total):
    with pytest.raises(CorpusError) as caught:
        read(tmp_path, f"run,x,y\na,0.5,0.5\nodd,{row}\n", "run,x\na,1\nodd,2\n")
    assert f"odd ({total})" in str(caught.value)
    assert "a (" not in str(caught.value)
    assert "divided by 100" in str(caught.value)


def test_runs_without_a_loss_are_named_and_losses_without_a_mixture_refused(tmp_path):
    mixtures = "run,x,y\na,0.5,0.5\nb,0.4,0.6\nfailed,1,0\n"
    table = read(tmp_path, mixtures, "run,x\nb,2\na,1\n")
    assert table.runs == ["a", "b"]
    np.testing.assert_array_equal(table.loss_NV[:, 0], [1, 2])
    noted(table, "1 of the 3 runs", "m.csv", "failed")
    with pytest.raises(CorpusError, match=r"2 of the 3 runs of .*l\.csv are not in .*: c, d; "):
        read(tmp_path, mixtures, "run,x\nc,9\nd,2\na,1\n")
    with pytest.raises(CorpusError, match=r"1 of the 1 runs of .*: a\.0; it has a:"):
        read(tmp_path, "run,x\na,1\n", "run,x\na.0,1\n")


def numbered(first, last, head, cells):
    return f"index,{head}\n" + "".join(f"{n},{cells}\n" for n in range(first, last + 1))


@pytest.mark.parametrize(
    ("mixed", "measured"), [((1, 512), (0, 63)), ((0, 63), (1, 512)), ((0, 2), (1, 3))]
)
def test_numbers_from_zero_and_from_one_are_refused(tmp_path, mixed, measured):
    """However many of them the two files have in common."""
    mixtures, losses = numbered(*mixed, "x,y", "0.5,0.5"), numbered(*measured, "x", "2.5")
    with pytest.raises(CorpusError, match=rf"from {mixed[0]}, .* from {measured[0]}: joined by"):
        read(tmp_path, mixtures, losses)


def test_numbers_that_two_files_share_are_joined(tmp_path):
    losses = numbered(0, 2, "x", "").replace("1,", "1,7")
    assert read(tmp_path, numbered(0, 2, "x,y", "0.5,0.5"), losses).loss_NV[1, 0] == 7
    later = numbered(2, 3, "x", "2.5")  # the first two have no losses
    assert read(tmp_path, numbered(0, 3, "x,y", "0.5,0.5"), later).runs == ["2", "3"]
    gaps = "index,x\n1,1\n3,3\n"  # does not count from anything
    assert read(tmp_path, numbered(0, 3, "x,y", "0.5,0.5"), gaps).runs == ["1", "3"]


def test_missing_losses_are_named_by_run_and_target(tmp_path):
    table = read(
        tmp_path,
        "run,x,y\na,0.5,0.5\nb,0.4,0.6\nc,1,0\nd,0.3,0.7\n",
        "run,x,y,z\na,1,,\nb,2,3,\nc,,,\nd,4,nan,\n",
    )
    noted(table, "no loss at all", "c")
    noted(table, "loss of y is missing in 2 runs: a, d")
    noted(table, "no run has a loss of z")


def test_constant_columns_are_named(tmp_path):
    table = read(
        tmp_path,
        "run,x,y,idle\na,0.3,0.4,0.3\nb,0.2,0.5,0.3\nc,0.5,0.2,0.3\n",
        "run,x,flat\na,1,7\nb,2,7\nc,3,7\n",
    )
    noted(table, "weight never changes", "idle (0.3)")
    noted(table, "loss of flat is 7 in every run")
    assert not any("x (" in note for note in table.notes)


def test_losses_below_zero_are_named(tmp_path):
    table = read(tmp_path, "run,x,y\na,0.5,0.5\nb,0.4,0.6\n", "run,acc\na,-1\nb,2\n")
    noted(table, "below 0", "a (acc)")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": ["x", "x"]}, "source twice: x"),
        ({"runs": ["a", "a"]}, "run twice: a"),
        ({"targets": []}, "no target"),
        ({"weight_NS": np.ones((2, 3)) / 3}, r"got \(2, 3\)"),
        ({"loss_NV": np.ones((3, 1))}, r"got \(3, 1\)"),
        ({"weight_NS": np.array([[0.5, 0.5], [0.5, 0.6]])}, "not so: b"),
        ({"weight_NS": np.array([[1.5, -0.5], [0.5, 0.5]])}, "not so: a"),
        ({"weight_NS": np.array([[np.nan, 0.5], [0.5, 0.5]])}, "not so: a"),
        ({"loss_NV": np.array([[1.0], [np.inf]])}, "not so: b"),
    ],
)
def test_a_table_made_in_memory_is_checked(change, message):
    good = {
        "sources": ["x", "y"],
        "targets": ["x"],
        "runs": ["a", "b"],
        "weight_NS": np.array([[0.5, 0.5], [0.2, 0.8]]),
        "loss_NV": np.array([[1.0], [np.nan]]),
    }
    MixtureTable(**good)
    with pytest.raises(ConfigError, match=message):
        MixtureTable(**good | change)


@pytest.fixture
def pile():
    return MixtureTable(
        ["cc", "code"],
        ["pile_cc", "github", "arxiv"],
        ["a"],
        np.array([[0.5, 0.5]]),
        np.ones((1, 3)),
        aliases={"metric/the_pile_pile_cc_val_loss": "pile_cc"},
    )


def test_targets_by_name(pile):
    assert target_shares(pile, "github") == {"github": 1}
    assert target_shares(pile, "metric/the_pile_pile_cc_val_loss") == {"pile_cc": 1}
    assert target_shares(pile, "mean") == dict.fromkeys(pile.targets, pytest.approx(1 / 3))
    assert target_shares(pile, ["arxiv", "github"]) == {"arxiv": 0.5, "github": 0.5}
    weighted = {"github": 3.0, "metric/the_pile_pile_cc_val_loss": 1.0, "arxiv": 0.0}
    assert target_shares(pile, weighted) == {"github": 0.75, "pile_cc": 0.25}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("pile-cc", 'did you mean "pile_cc"'),
        ("Pile-CC", 'did you mean "pile_cc"'),
        ("GitHub", 'did you mean "github"'),
        ("8", "allowed: arxiv, github, pile_cc"),
        ("8", '"mean"'),
        ({"github": -1.0}, "must be >= 0"),
        ({"github": 0.0}, "above 0"),
        ([], "above 0"),
        ({"pile_cc": 1, "metric/the_pile_pile_cc_val_loss": 1}, "named twice"),
    ],
)
def test_targets_that_cannot_be(pile, target, message):
    with pytest.raises(ConfigError, match=message):
        target_shares(pile, target)


def test_a_target_called_mean_is_not_guessed_at():
    table = MixtureTable(["x", "y"], ["mean", "x"], ["a"], np.array([[0.5, 0.5]]), np.ones((1, 2)))
    with pytest.raises(ConfigError, match="rename"):
        target_shares(table, "mean")
    assert target_shares(table, {"mean": 1.0}) == {"mean": 1}
