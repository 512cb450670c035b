"""Tables of losses at several tokens and sizes: what was planted at the target is planned for."""

from itertools import product

import numpy as np
import pytest
import yaml

from dograph.cli.plan_table import plan_from_table
from dograph.errors import ConfigError, CorpusError
from dograph.mixtures.from_table import propose_from_table
from dograph.mixtures.tables import MixtureTable, read_table

SOURCES, TARGETS = ["web", "code", "books"], ["web", "code"]
TOKENS, SIZES = np.linspace(1e9, 4e9, 7), [1.9e7, 8.5e7, 2e8, 3e8]
GOAL = {"tokens": 2e13, "parameters": 8e8}  # more tokens than a loss may be


def loss_at(weight_S, v, tokens, size):
    """An exponential law in r, a power law in tokens and one in sizes, added up."""
    t_S = np.array([[-2.0, 0.3, 0.1], [0.2, -1.5, -0.3]])[v]
    exponential = 1.5 + 0.1 * v + np.exp(weight_S @ t_S)
    return exponential + abs(3e8 / tokens) ** 0.6 + (2e6 / size) ** 0.4


@pytest.fixture
def planted():
    weight_NS = np.random.default_rng(0).dirichlet(np.ones(3), size=9)
    runs = [f"r{n}" for n in range(9)]
    loss_NV = np.array(
        [[loss_at(weight_S, v, *GOAL.values()) for v in range(2)] for weight_S in weight_NS]
    )
    return MixtureTable(SOURCES, TARGETS, runs, weight_NS, loss_NV)


def write(folder, table, tokens=tuple(TOKENS), sizes=tuple(SIZES), *, wide=False, leave_out=()):
    """The two files; losses in a line each, or in a line for each run, tokens and size."""
    mixtures, losses = folder / "m.csv", folder / "l.csv"
    with open(mixtures, "w") as file:
        print("run", *SOURCES, sep=",", file=file)
        for run, weight_S in zip(table.runs, table.weight_NS.tolist(), strict=True):
            print(run, *weight_S, sep=",", file=file)
    point = ["tokens"] * bool(tokens) + ["parameters"] * bool(sizes)
    places = product(table.runs, tokens or [GOAL["tokens"]], sizes or [GOAL["parameters"]])
    with open(losses, "w") as file:
        print("run", *point, *(TARGETS if wide else ["target", "loss"]), sep=",", file=file)
        for run, d, n in places:
            at = [run, *[d] * bool(tokens), *[n] * bool(sizes)]
            weight_S = table.weight_NS[table.runs.index(run)]
            own = [loss_at(weight_S, v, d, n) for v in range(2)]
            for cells in [own] if wide else zip(TARGETS, own, strict=True):
                if (run, d, n) not in leave_out:
                    print(*at, *cells, sep=",", file=file)
    return mixtures, losses


@pytest.mark.parametrize("wide", [False, True])
def test_the_losses_at_the_target_are_those_planted(tmp_path, planted, wide):
    table = read_table(*write(tmp_path, planted, wide=wide), **GOAL)
    assert (table.runs, table.targets) == (planted.runs, TARGETS)
    np.testing.assert_allclose(table.loss_NV, planted.loss_NV, atol=1e-6)
    for error in ("step_in_sample", "step_held_out", "size_in_sample", "size_held_out"):
        assert table.nested[error] < 1e-6


def test_steps_alone_and_sizes_alone(tmp_path, planted):
    table = read_table(*write(tmp_path, planted, sizes=()), tokens=GOAL["tokens"])
    np.testing.assert_allclose(table.loss_NV, planted.loss_NV, atol=1e-6)
    assert table.nested["size_in_sample"] is None
    table = read_table(*write(tmp_path, planted, tokens=()), parameters=GOAL["parameters"])
    np.testing.assert_allclose(table.loss_NV, planted.loss_NV, atol=1e-6)
    assert table.nested["step_in_sample"] is None


def test_the_plan_is_that_of_runs_at_the_target(tmp_path, planted):
    files = write(tmp_path, planted)
    out = tmp_path / "plan.yaml"
    goal = [f"mixer.{name}={value!r}" for name, value in GOAL.items()]
    plan_from_table("mixing-law", ["mixer.target=web", *goal], files, out, force=False)
    expected = propose_from_table("mixing-law", planted, target="web", max_usage=15.0)
    plan = yaml.safe_load(out.read_text())
    assert plan["weights"] == pytest.approx(expected.mixture.weights, abs=1e-4)
    assert plan["findings"]["nested"]["tokens"] == GOAL["tokens"]
    assert plan["findings"]["nested"]["size_held_out"] < 1e-6
    assert plan["provenance"]["settings"]["parameters"] == GOAL["parameters"]


def test_what_is_missing_is_named(tmp_path, planted):
    alone = [("r3", d, n) for d in TOKENS for n in SIZES[1:]]
    table = read_table(*write(tmp_path, planted, leave_out=alone), **GOAL)
    assert np.isnan(table.loss_NV).any(1).tolist() == [run == "r3" for run in planted.runs]
    assert any("r3 on web: too few sizes" in note for note in table.notes)
    once = [("r3", d, SIZES[0]) for d in TOKENS[1:]]
    with pytest.raises(ConfigError, match=r"1 different x.*19000000\.0, 'r3'"):
        read_table(*write(tmp_path, planted, leave_out=once), **GOAL)


def test_columns_and_settings_go_together(tmp_path, planted):
    files = write(tmp_path, planted)
    with pytest.raises(ConfigError, match=r"columns \['tokens', 'parameters'\].*\['tokens'\]"):
        read_table(*files, tokens=1e9)
    with pytest.raises(ConfigError, match=r"columns \['tokens'\].*\['tokens', 'parameters'\]"):
        read_table(*write(tmp_path, planted, sizes=()), **GOAL)
    with pytest.raises(CorpusError, match=r"line 2: a loss needs tokens and parameters > 0"):
        read_table(*write(tmp_path, planted, tokens=(-1.0, *TOKENS)), **GOAL)
    with pytest.raises(CorpusError, match='run "r0" has "web" twice'):
        read_table(*write(tmp_path, planted, tokens=(1e9, 1e9)), **GOAL)
