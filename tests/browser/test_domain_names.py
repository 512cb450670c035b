"""A domain has one name on the whole page, and the page says where its number is but a rank."""

import re

import pytest

from dograph.report.render import write_page
from page_runs import dograph_run, hostile_corpus, write_graphs, write_probes, write_run

pytestmark = pytest.mark.slow
DRAWN = "return [...document.querySelectorAll('.plot')].every((p) => p.firstChild)"
# Every place of the section that names domains, by what it is.
NAMES = """
  const said = (nodes) => [...nodes].map((n) => n.textContent);
  const texts = (css) => said(document.querySelectorAll(`#domains ${css}`));
  document.querySelectorAll('#domains details').forEach((n) => { n.open = true; });
  const chart = (start) => [...document.querySelectorAll('#domains figure')]
    .find((n) => n.querySelector('figcaption').textContent.startsWith(start));
  const keys = (start) => said(chart(start)?.querySelectorAll('.legend bdi') || []);
  return {
    nodes: texts('#graph .node title'),
    rows: texts('[aria-label="domains"] tbody th'),
    drawn: texts('#graph .node text').map((text) => `domain ${text}`),
    weights: keys('Domain weights'),
    shares: keys('Share of samples'),
    described: texts('#typical details summary'),
  };
"""
ROWS = "return document.querySelector('#pca-domain').closest('figure').textContent"
WORDS = """
  const chart = (start) => [...document.querySelectorAll('#domains figure')]
    .find((n) => n.querySelector('figcaption').textContent.startsWith(start));
  const caption = (start) => chart(start)?.querySelector('figcaption').textContent;
  return {
    section: document.querySelector('#domains .body > .soft')?.textContent || '',
    graph: caption('Domain graph'),
    ...(chart('Domain weights') ? { weights: caption('Domain weights') } : {}),
    ...(chart('Share of samples') ? { shares: caption('Share of samples') } : {}),
  };
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("names")


@pytest.fixture(scope="module")
def lasting(folder):
    run = dograph_run(folder / "stream", hostile_corpus(folder / "corpus"))
    write_page([run], folder / "stream.html")
    return (folder / "stream.html").as_uri()


@pytest.fixture(scope="module")
def passing(folder):
    corpus = hostile_corpus(folder / "other")
    options = {"num_domains": 3, "recipe": "recommended"}
    run = write_run(folder / "batch", mixer="dograph", options=options, corpus=corpus)
    write_probes(run, corpus)
    write_graphs(run)
    write_page([run], folder / "batch.html")
    return (folder / "batch.html").as_uri()


def opened(page, address):
    page.size(1280, 6000)
    page.open(address)
    page.until(DRAWN, 20)


@pytest.mark.parametrize("which", ["lasting", "passing"])
def test_a_domain_has_one_name(page, request, which):
    opened(page, request.getfixturevalue(which))
    named = page.run(NAMES)
    over_time = {place: named.pop(place) for place in ("weights", "shares")}
    if which == "lasting":
        named |= over_time
    else:  # domains without identity have no charts over time
        assert over_time == {"weights": [], "shares": []}
        assert all(name.startswith("cluster") for name in named.pop("described"))
    for place, names in named.items():
        assert [re.match(r"domain \d+", name.lower())[0] for name in names] == [
            "domain 0",
            "domain 1",
            "domain 2",
        ], place
    assert page.complaints() == []


def test_ranks_are_said_to_be_ranks_wherever_they_stand(page, passing):
    opened(page, passing)
    for place, words in page.run(WORDS).items():
        assert "ranks by weight in each step, 0 the" in words, place
    assert "no chart here follows a domain over steps" in page.run(WORDS)["section"]


def test_identities_are_not_called_ranks(page, lasting):
    opened(page, lasting)
    for place, words in page.run(WORDS).items():
        assert "rank" not in words, place
    assert "a number is one domain throughout the run" in page.run(WORDS)["weights"]


def test_rows_clustered_among_themselves_are_in_no_domain(page, passing, lasting):
    """A probe's clusters are not those of a batch, so they may not have their names."""
    opened(page, passing)
    rows = page.run(ROWS)
    assert "cluster 2" in rows
    assert not re.search(r"domain \d", rows)
    opened(page, lasting)
    rows = page.run(ROWS)
    assert "domain 2" in rows
    assert "cluster" not in rows
