"""A domain has one name in every figure, and figures say where its number is but a rank."""

import pytest

from dograph.report.collect import collect, open_subjects
from dograph.report.figures import STYLE, draw_run
from page_runs import hostile_corpus, write_graphs, write_probes, write_run


def data_of(folder, **options):
    corpus = hostile_corpus(folder / "corpus")
    mixer = {"num_domains": 3, **options}
    run = write_run(folder / "run", mixer="dograph", options=mixer, corpus=corpus)
    write_probes(run, corpus)
    write_graphs(run)
    return collect(open_subjects([run]))


def figures_of(folder, recipe):
    """By name, laid out as they would be on paper."""
    matplotlib = pytest.importorskip("matplotlib")
    with matplotlib.rc_context(STYLE):
        data = data_of(folder, recipe=recipe)
        drawn = dict(draw_run(data.runs[0], ""))
        for figure in drawn.values():
            figure.draw_without_rendering()
    return drawn


def labels(axis):
    return axis.get_legend_handles_labels()[1]


@pytest.mark.parametrize("recipe", ["recommended", "safe"])
def test_a_domain_has_one_name_in_all_figures(tmp_path, recipe):
    drawn = figures_of(tmp_path, recipe)
    names = ["domain 0", "domain 1", "domain 2"]
    # Domains of a batch have no identity, so no chart follows them over steps.
    assert ("weights" in drawn) == (recipe == "safe")
    if recipe == "safe":
        assert labels(drawn["weights"].axes[0]) == names
        assert drawn["weights"].axes[0].get_ylim()[0] == 0
    assert [text.get_text() for text in drawn["graph"].axes[0].texts] == ["0", "1", "2"]


@pytest.mark.parametrize(("recipe", "ranked"), [("recommended", True), ("safe", False)])
def test_figures_say_that_numbers_are_ranks(tmp_path, recipe, ranked):
    drawn = figures_of(tmp_path, recipe)
    words = [text for text in drawn["graph"].texts if "ranks by weight" in text.get_text()]
    assert bool(words) == ranked
    for text in words:  # all of it is on the paper
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= drawn["graph"].bbox.width
    kind = "cluster" if ranked else "domain"
    below = drawn["pca"].axes[-1]
    assert set(labels(below)) == {f"{kind} {j}" for j in range(3)}
    assert {axis.get_ylabel() for axis in drawn["pca"].axes} == {"", "by source", f"by {kind}"}


def test_the_page_says_what_a_number_is(tmp_path):
    ranked = data_of(tmp_path / "batch", scope="batch").runs[0].domains
    assert "ranks by weight in each step" in ranked.numbering
    assert ranked.numbering in " ".join(ranked.notes)
    assert "no chart here follows a domain over steps" in " ".join(ranked.notes)
    assert ranked.lines == []
    lasting = data_of(tmp_path / "stream", scope="stream").runs[0].domains
    assert all("one domain throughout" in chart.note for chart in lasting.lines)
    assert lasting.notes == []
    assert [chart.zero for chart in lasting.lines] == [True, True]
