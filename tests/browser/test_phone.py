"""What a phone shows: nothing is cut without a hint, no word is broken; and how lines are drawn."""

import pytest

from dograph.report.figures import COLOURS
from dograph.report.render import write_page
from page_runs import dograph_run, hostile_corpus, wide_choice, write_run

pytestmark = pytest.mark.slow
DRAWN = "return [...document.querySelectorAll('.plot')].every((p) => p.firstChild)"
NAMES = ("RedPajamaStackExchange", "RedPajamaCommonCrawl", "RedPajamaWikipedia")
# What is wider or higher than the box that shows it, and neither scrolls with a hint nor shows "…".
CUT = """
  document.querySelectorAll('details').forEach((node) => { node.open = true; });
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 800)));
  const isCut = (n) => (n.scrollWidth > n.clientWidth + 1 || n.scrollHeight > n.clientHeight + 1)
    && getComputedStyle(n).overflowX !== 'visible' && n.clientWidth > 1;
  const hint = (n) => getComputedStyle(n, '::before').content.includes('scroll');
  const dots = (n) => getComputedStyle(n).textOverflow === 'ellipsis';
  const boxes = [...document.querySelectorAll('main *, header *')].filter((n) => n.clientWidth);
  const texts = [...document.querySelectorAll('svg text')]
    .map((n) => [n, n.getBoundingClientRect()]);
  return [
    boxes.filter((n) => isCut(n) && !hint(n) && !dots(n)).map((n) => n.outerHTML.slice(0, 90)),
    boxes.filter((n) => isCut(n) && hint(n)).length,
    texts.filter(([, b]) => b.left < -1 || b.right > innerWidth + 1).map(([n]) => n.textContent),
    boxes.filter((n) => hint(n) && !isCut(n)).length,
  ];
"""
# Two letters of a word on different lines.
BROKEN = """
  const found = [];
  for (const name of document.querySelectorAll('bdi')) {
    const walker = document.createTreeWalker(name, NodeFilter.SHOW_TEXT);
    let before = null;
    for (let node = walker.nextNode(); node; node = walker.nextNode())
      for (let k = 0; k < node.length; k += 1) {
        const range = document.createRange();
        range.setStart(node, k);
        range.setEnd(node, k + 1);
        const box = range.getBoundingClientRect();
        const letter = node.data[k];
        const isWord = /[A-Za-z0-9]/.test(letter);
        if (isWord && before !== null && box.height && box.top - before > box.height / 2)
          found.push(name.textContent);
        before = isWord && box.height ? box.top : null;
      }
  }
  return found;
"""
# Of every line chart: the steps of its ticks, its left end, its lowest level, lines and legend.
AXES = """
  const charts = [...document.querySelectorAll('figure')].filter((f) => f.querySelector('.line'));
  return charts.map((figure) => {
    const [levels, bottom] = figure.querySelectorAll('.axis');
    const ticks = [...bottom.querySelectorAll('text')].slice(0, -1)
      .map((n) => [Number(n.textContent), Number(n.getAttribute('x'))]);
    const lines = [...figure.querySelectorAll('.plot .line')].length;
    const first = levels.querySelector('text').textContent;
    const left = Number(levels.querySelector('.grid-line').getAttribute('x1')) + 6;
    return [figure.querySelector('figcaption').textContent, [ticks, left], first, lines,
      [...figure.querySelectorAll('.legend bdi')].map((n) => n.textContent)];
  });
"""


def opened(page, path, width=390):
    page.size(width, 6000)
    page.open(path.as_uri())
    page.until(DRAWN, 20)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A run with long names, twenty runs of ten methods, and a run with domains."""
    folder = tmp_path_factory.mktemp("phone")
    long = write_run(folder / "a-run/with_a_long=name/recommended", sources=NAMES)
    write_page([long], folder / "long.html")
    write_page(wide_choice(folder / "wide"), folder / "wide.html")
    run = dograph_run(folder / "run", hostile_corpus(folder / "corpus"))
    write_page([run], folder / "domains.html")
    return folder


@pytest.mark.parametrize("name", ["long", "wide", "domains"])
def test_nothing_is_cut_without_a_hint(page, pages, name):
    opened(page, pages / f"{name}.html")
    assert page.run("return document.documentElement.scrollWidth") <= 390
    cut, hinted, outside, needless = page.run(f"return (async () => {{{CUT}}})()")
    assert cut == []
    assert outside == []
    assert hinted > 0
    assert needless == 0


@pytest.mark.parametrize("name", ["long", "wide"])
def test_no_word_of_a_name_is_broken(page, pages, name):
    opened(page, pages / f"{name}.html")
    page.run("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    assert page.run(BROKEN) == []


def test_a_broken_word_would_be_found(page, pages):
    opened(page, pages / "long.html")
    page.run(
        "document.querySelector('#overview tbody bdi').style = 'display: block; width: 30px;"
        " word-break: break-all'"
    )
    assert page.run(BROKEN) != []


def test_all_charts_have_the_same_steps_and_shares_start_at_zero(page, pages):
    opened(page, pages / "domains.html", 1280)
    ends = set()
    for caption, (ticks, left), first, *_ in page.run(AXES):
        (step, at), (later, at_later), *_ = ticks
        ends.add(round(step - (at - left) * (later - step) / (at_later - at), 1))
        if caption.startswith(("Domain weights", "Share of samples", "Agreement")):
            assert float(first) == 0, caption
    assert ends == {1.0}  # the first validation is at step 20


def test_identical_lines_are_drawn_once_and_the_legend_says_so(page, tmp_path):
    runs = [write_run(tmp_path / f"run-{k}", mixer=m) for k, m in enumerate(["natural", "uniform"])]
    other = write_run(tmp_path / "other", mixer="natural", worse=0.5, seed=1)
    write_page([*runs, other], tmp_path / "page.html")
    opened(page, tmp_path / "page.html", 1280)
    charts = {caption: (lines, names) for caption, _, _, lines, names in page.run(AXES)}
    rates = next(value for caption, value in charts.items() if caption.startswith("Learning rate"))
    assert rates == (1, ["run-0, run-1, other (identical)"])
    losses = next(value for caption, value in charts.items() if caption.startswith("Training"))
    assert losses[0] == 2  # the third run has another seed and loss


def test_figures_have_the_colours_of_the_light_page(page, pages):
    opened(page, pages / "long.html", 1280)
    found = page.run("""
      const probe = document.body.appendChild(document.createElement('i'));
      return Array.from({ length: 8 }, (_, k) => {
        probe.style.color = `var(--c${k})`;
        return getComputedStyle(probe).color.match(/[0-9]+/g).map(Number);
      });
    """)
    assert [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in COLOURS] == found
