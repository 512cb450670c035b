"""The page in a browser: it draws, moves, answers clicks and keys, and runs nobody's text."""

import shutil
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from dograph.report.render import write_page
from dograph.report.server import Server
from page_runs import HOSTILE, dograph_run, hostile_corpus, wide_choice, write_run

pytestmark = pytest.mark.slow
POINTS = (
    "return [...document.querySelectorAll('#pca-source .point')]"
    ".map((p) => p.getAttribute('transform'))"
)

CONTRAST = """
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map((v) => linear(Number(v) / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const probe = document.createElement('i');
  document.body.append(probe);
  const of = (name) => {
    probe.style.color = `var(${name})`;
    return light(getComputedStyle(probe).color);
  };
  const ratio = (a, b) => (Math.max(of(a), of(b)) + 0.05) / (Math.min(of(a), of(b)) + 0.05);
  const names = ['--ink', '--soft', '--link', ...Array.from({ length: 8 }, (_, k) => `--c${k}`)];
  const found = names.map((name) => [name, ratio(name, '--paper'), ratio(name, '--panel')]);
  return [...found, ['--warn', ratio('--warn', '--warn-paper'), 21]];
"""
UNNAMED = """
  const named = (n) => n.getAttribute('aria-label') || n.textContent.trim() || n.labels?.length;
  return [...document.querySelectorAll('button, select, input, [tabindex="0"], svg[role]')]
    .filter((n) => !named(n)).map((n) => n.outerHTML.slice(0, 99));
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def run(folder):
    return dograph_run(folder / "run", hostile_corpus(folder / "corpus"))


@pytest.fixture(scope="module")
def single(run, folder):
    write_page([run], folder / "single.html")
    return (folder / "single.html").as_uri()


@pytest.fixture(scope="module")
def many(folder):
    runs = [
        write_run(folder / f"{mixer}-{seed}", mixer=mixer, seed=seed, worse=worse)
        for mixer, worse in (("natural", 0.0), ("uniform", 0.1))
        for seed in (0, 1)
    ]
    write_page(runs, folder / "many.html")
    return (folder / "many.html").as_uri()


@pytest.fixture(scope="module")
def wide(folder):
    """Everything that a comparison can show."""
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    (folder / "compared").mkdir()
    shutil.copy(results / "compare-demo-tiny.json", folder / "compared" / "compare.json")
    write_page([folder / "compared", *wide_choice(folder / "wide")], folder / "wide.html")
    return (folder / "wide.html").as_uri()


def open_whole(page, address):
    """Open, and wait until everything is drawn: what is seen at once, the rest soon after."""
    page.open(address)
    page.until("return [...document.querySelectorAll('.plot')].every((p) => p.firstChild)", 20)


def lines_drawn(page, number):
    """Wait for so many lines in the first chart of the curves."""
    page.until(
        "return document.querySelector('#curves figure').querySelectorAll('.plot .line').length"
        f" === {number}"
    )


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["single", "many", "wide"])
def test_it_loads_without_a_complaint_or_a_request(page, request, name, width):
    page.size(width, 6000)
    open_whole(page, request.getfixturevalue(name))
    assert page.complaints() == []
    assert page.requests() == []
    assert page.run("return document.documentElement.scrollWidth") <= width


def test_a_comparison_shows_all_of_its_parts(page, wide):
    page.size(1280)
    open_whole(page, wide)
    section = page.run("return document.querySelector('#comparison').textContent")
    for part in (
        "Paired differences",
        "Loss by method and source",
        "Downstream tasks",
        "few <b>items</b>",
    ):
        assert part in section, part
    claims = page.run(
        "return [...document.querySelectorAll('#comparison .claim')].map((n) => n.textContent)"
    )
    assert len(claims) == 1
    assert page.run("return document.querySelector('#verdict').textContent") == claims[0]
    tasks = page.run(
        "return [...document.querySelectorAll('[aria-label=\"downstream tasks\"] thead th')]"
        ".filter((node) => node.textContent.startsWith('task-')).length"
    )
    assert tasks == 9
    assert page.complaints() == []


def test_the_slider_moves_the_points(page, single):
    page.size(1280)
    page.open(single)
    page.run("document.querySelector('#probe-step').scrollIntoView()")
    before = page.until(f"{POINTS}.filter(Boolean).length === 12 && ({POINTS[7:]})")
    page.press("#probe-step", Keys.ARROW_LEFT)
    after = page.run(POINTS)
    assert len(after) == len(before) == 12
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert "step 30" in page.run("return document.querySelector('#pca-source svg').textContent")
    spoken = page.run("return document.querySelector('#probe-step').getAttribute('aria-valuetext')")
    assert spoken == "step 30"


def test_the_tables_below_the_graph_have_every_domain_at_the_chosen_step(page, single):
    page.size(1280)
    open_whole(page, single)
    cells = "return [...document.querySelectorAll('[aria-label=\"{}\"] tr')].map((row) => "
    cells += "row.textContent)"
    _, *domains = page.run(cells.format("domains"))
    assert [row[: len("domain 0")] for row in domains] == ["domain 0", "domain 1", "domain 2"]
    assert "gamma" in domains[2]
    for step, cosine_and_distance in ((60, "+0.3003"), (40, "+0.3002")):
        drawn = page.run("return document.querySelector('#graph svg').getAttribute('aria-label')")
        assert f"after step {step}" in drawn
        page.click("#domains figure:has(#graph) summary")
        page.until(f"{cells.format('pairs of domains')}.length === 4")
        assert page.run(cells.format("pairs of domains"))[1].endswith(cosine_and_distance)
        page.press("#graph-step", Keys.ARROW_LEFT)


def test_hostile_text_stays_text(page, single):
    page.size(390)
    open_whole(page, single)
    page.run("document.querySelectorAll('#domains details').forEach((n) => { n.open = true; })")
    found = page.run("return [...document.querySelectorAll('.sample p')].map((p) => p.textContent)")
    for part in HOSTILE[:-1]:
        assert any(part in text for text in found), part
    assert page.run("return window.hacked") is None
    assert page.run("return document.querySelectorAll('main img, main script').length") == 0
    assert page.run("return document.documentElement.scrollWidth") <= 390
    assert max(map(len, found)) < 500
    isolated = "return getComputedStyle(document.querySelector('.sample p')).unicodeBidi"
    assert "isolate" in page.run(isolated)
    assert page.complaints() == []


def test_the_policy_stops_what_escaping_let_through(page, single):
    """As if a text had become markup after all."""
    page.open(single)
    page.run(
        "const bad = document.createElement('script'); bad.textContent = 'window.hacked = 9';"
        "document.body.append(bad); document.body.insertAdjacentHTML('beforeend',"
        ' \'<img src="https://example.org/x.png" onerror="window.hacked = 8">\');'
    )
    assert page.run("return window.hacked") is None
    told = page.complaints()
    assert told
    assert all("Content Security Policy" in text for text in told)


def test_light_and_dark(page, single):
    paper = "return getComputedStyle(document.body).backgroundColor"
    page.size(1280)
    page.open(single)
    assert page.run(paper) == "rgb(255, 255, 255)"
    page.size(1280, dark=True)
    assert page.run(paper) == "rgb(20, 23, 27)"


def test_text_has_contrast_in_both_themes(page, single):
    """At least 4.5 to 1 for text, 3 to 1 for lines (WCAG 2.1)."""
    for dark in (False, True):
        page.size(1280, dark=dark)
        page.open(single)
        for name, on_paper, on_panel in page.run(CONTRAST):
            least = 3.0 if name.startswith("--c") else 4.5
            assert min(on_paper, on_panel) >= least, (name, dark, on_paper, on_panel)


def test_keyboard_and_screen_reader(page, single):
    page.size(1280)
    open_whole(page, single)
    assert page.run("return document.querySelectorAll('main, header, nav, footer').length") >= 4
    assert page.run(UNNAMED) == []
    levels = page.run(
        "return [...document.querySelectorAll('h1,h2,h3,h4')].map((h) => +h.tagName[1])"
    )
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    charts = page.run("return document.querySelectorAll('figure.chart').length")
    assert page.run("return document.querySelectorAll('figure.chart details').length") >= charts
    page.press("#curves figure svg[tabindex='0']", Keys.HOME)
    spoken = page.run("return document.querySelector('#curves [aria-live]').textContent")
    assert spoken.startswith("step 1: ")


def test_numbers_behind_a_chart(page, single):
    page.size(1280)
    page.open(single)
    page.click("#curves figure details summary")
    rows = "return document.querySelectorAll('#curves figure details table tbody tr').length"
    assert page.until(rows) == 60


def test_lines_are_switched_and_views_changed(page, many):
    page.size(1280)
    page.open(many)
    lines_drawn(page, 2)
    assert page.run("return document.querySelectorAll('#curves .plot .band').length") >= 2
    page.click("#curves figure .legend button")
    lines_drawn(page, 1)
    page.press("#curve-view", "single")
    lines_drawn(page, 4)
    assert page.run("return document.activeElement.id") == "curve-view"
    assert page.complaints() == []


def test_a_run_is_followed_while_it_goes_on(page, folder):
    going = write_run(folder / "going", steps=20, total=40)
    with Server([going], 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}/"
            page.open(address)
            page.until(
                "return document.querySelector('#verdict').textContent.startsWith('20 of 40')"
            )
            more = write_run(folder / "more", steps=30, total=40)
            (going / "metrics.jsonl").write_bytes((more / "metrics.jsonl").read_bytes())
            page.until(
                "return document.querySelector('#verdict').textContent.startsWith('30 of 40')", 20
            )
            assert all(name.startswith(address) for name in page.requests())
            assert page.complaints() == []
            page.run("window.stay = 1")  # not the whole page again
            page.until(
                "return document.querySelector('#live').textContent.includes('no new data')", 20
            )
            assert page.run("return window.stay") == 1
        finally:
            server.shutdown()
            thread.join()
            page.open("about:blank")
