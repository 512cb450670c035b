"""Published mixtures, and how they meet a corpus that spells its sources otherwise."""

import itertools

import pytest

from dograph.data.inputs import RECIPES
from dograph.errors import ConfigError
from dograph.mixtures.file import CANONICAL, PRESETS, find_mixture, find_preset, squash

SLIMPAJAMA = list(RECIPES["slimpajama-6b"].table)
PILE = list(RECIPES["pile"].table)
LITERATURE = ["arxiv", "book", "c4", "cc", "github", "stackexchange", "wikipedia"]
PRINTED = {  # as the papers' code lists them, in the order of LITERATURE
    "doremi-slimpajama-50k": [0.04235, 0.08201, 0.381, 0.1141, 0.0654, 0.0847, 0.2305],
    "doge-slimpajama": [0.088, 0.045, 0.269, 0.214, 0.070, 0.166, 0.148],
}
REGMIX_COLUMNS = [  # of the published tables; the prior is listed in this order
    "arxiv", "freelaw", "nih_exporter", "pubmed_central", "wikipedia_en", "dm_mathematics",
    "github", "philpapers", "stackexchange", "enron_emails", "gutenberg_pg_19", "pile_cc",
    "ubuntu_irc", "europarl", "hackernews", "pubmed_abstracts", "uspto_backgrounds",
]  # fmt: skip
PRIOR = [
    0.11328527, 0.07960865, 0.00391349, 0.1853759, 0.05108136, 0.01596293, 0.10175077, 0.00370752,
    0.06652935, 0.00175077, 0.02708548, 0.23686921, 0.01184346, 0.00792997, 0.00803296, 0.03882595,
    0.04644696,
]  # fmt: skip


def canonical(name, collection):
    return CANONICAL[collection].get(squash(name))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_says_what_it_is(name):
    preset = find_preset(name)
    assert sum(find_mixture(name)[0].weights.values()) == pytest.approx(1, abs=1e-12)
    assert set(preset.weights) <= set(CANONICAL[preset.collection].values())
    assert preset.provenance.published
    assert preset.provenance.method in ("doremi", "doge", "regmix", "natural")
    corpus = SLIMPAJAMA if preset.collection == "slimpajama" else PILE
    mixture, notes = preset.fit(corpus)
    assert set(mixture.weights) == set(corpus)
    assert bool(notes) == (len(preset.weights) > len(corpus))


@pytest.mark.parametrize("name", PRINTED)
@pytest.mark.parametrize("names", [LITERATURE, SLIMPAJAMA])
def test_no_order_of_sources_swaps_c4_and_commoncrawl(name, names):
    """The same source has the same weight whatever order a corpus lists its sources in."""
    by_letters = dict(zip(LITERATURE, PRINTED[name], strict=True))
    expected = {
        source: by_letters[source.removeprefix("RedPajama").lower().replace("commoncrawl", "cc")]
        for source in names
    }
    total = sum(expected.values())
    for order in (names, names[::-1], sorted(names)):
        mixture, notes = find_preset(name).fit(order)
        assert mixture.weights == pytest.approx({s: w / total for s, w in expected.items()})
        assert notes == []


def test_pile_prior_is_the_published_one():
    columns = [f"train_the_pile_{column}" for column in REGMIX_COLUMNS]
    mixture, _ = find_preset("pile-natural").fit(columns)
    assert [mixture.weights[column] for column in columns] == pytest.approx(PRIOR, abs=1e-8)


def test_natural_slimpajama_is_mostly_commoncrawl():
    """Per cent of bytes of SlimPajama-6B's data card."""
    shares = {
        "cc": 54.1, "c4": 28.7, "github": 4.2, "book": 3.7, "arxiv": 3.4, "wikipedia": 3.1,
        "stackexchange": 2.8,
    }  # fmt: skip
    mixture, _ = find_preset("slimpajama-natural").fit(LITERATURE)
    assert mixture.weights == pytest.approx({name: share / 100 for name, share in shares.items()})


def test_known_weights_of_the_pile():
    regmix, doremi = find_preset("regmix-pile"), find_preset("doremi-pile")
    assert round(regmix.weights["Pile-CC"], 3) == 0.870
    shown = [round(doremi.weights[n], 3) for n in ("Pile-CC", "OpenWebText2", "Wikipedia (en)")]
    assert shown == [0.138, 0.190, 0.107]
    assert round(find_preset("doremi-pile-paper").weights["Pile-CC"], 3) == 0.606


def test_names_are_matched_by_spelling():
    same = ["pile_cc", "Pile-CC", "PILE CC", "the_pile_pile_cc", "train_the_pile_pile_cc"]
    assert {canonical(name, "pile") for name in same} == {"Pile-CC"}
    crawl = ["cc", "CommonCrawl", "common_crawl", "RedPajamaCommonCrawl"]
    assert {canonical(name, "slimpajama") for name in crawl} == {"CommonCrawl"}
    assert canonical("c4", "slimpajama") == "C4"
    for unknown in ("c", "c44", "crawl", "pilecc2", "", "redpajama"):
        assert all(canonical(unknown, c) is None for c in CANONICAL)
    for collection, ours in CANONICAL.items():
        for one, two in itertools.combinations(set(ours.values()), 2):
            assert canonical(one, collection) != canonical(two, collection)


def test_two_spellings_of_one_source_are_refused():
    with pytest.raises(ConfigError, match='both "c4" and "RedPajamaC4"'):
        find_preset("doge-slimpajama").fit(["c4", "RedPajamaC4"])


def test_what_is_left_over_is_named():
    mixture, notes = find_preset("doge-slimpajama").fit(["c4", "cc", "wiki", "mine"])
    left = 0.269 + 0.214 + 0.148
    expected = {"c4": 0.269 / left, "cc": 0.214 / left, "wiki": 0.148 / left}
    assert mixture.weights == pytest.approx(expected)
    assert "no ArXiv, Book, Github, StackExchange" in notes[0]
    assert "36.9%" in notes[0]
    assert "does not name mine" in notes[1]
    with pytest.raises(ConfigError, match=r"does not fit this corpus.*the corpus has c4, mine"):
        find_preset("doge-slimpajama").fit(["c4", "mine"])
    with pytest.raises(ConfigError, match='did you mean "doge-slimpajama"'):
        find_preset("doge-slimpyjama")
