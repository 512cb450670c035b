"""Charts of a single step."""

import pytest

from dograph.report.render import write_page
from page_runs import write_run

pytestmark = pytest.mark.slow
DRAWN = "return [...document.querySelectorAll('.plot')].every((p) => p.firstChild)"
VALID = """
  const chart = [...document.querySelectorAll('#curves figure')]
    .find((f) => f.textContent.startsWith('Validation loss, mean'));
  const boxes = (name) => [...chart.querySelectorAll(`.plot ${name}`)].map((n) => n.getBBox());
  return [boxes('.band').map((b) => [b.width, b.height]),
    [...chart.querySelectorAll('.plot .dot')].map((n) => n.getAttribute('transform')),
    [...chart.querySelectorAll('.axis text')].map((n) => n.textContent)];
"""


def test_one_validation_shows_its_interval_and_no_other_step(page, tmp_path):
    runs = [
        write_run(tmp_path / f"{mixer}-{seed}", mixer=mixer, seed=seed, every=60, worse=worse)
        for mixer, worse in (("natural", 0.0), ("uniform", 0.1))
        for seed in (0, 1)
    ]
    write_page(runs, tmp_path / "page.html")
    page.size(1280, 6000)
    page.open((tmp_path / "page.html").as_uri())
    page.until(DRAWN, 20)
    bands, dots, labels = page.run(VALID)
    assert len(bands) == 2
    assert all(width > 0 and height > 0 for width, height in bands)
    assert len(set(dots)) == 2
    assert "60" in labels
    assert "61" not in labels
