"""Writes a page as one HTML file with script, style and data inside; nothing is loaded.

Text from a run or a corpus enters as JSON that cannot close its element, and the script turns it
into text nodes. The Content-Security-Policy names the one script and the one style by their digest
and forbids everything else, so even text that became markup could not run or load anything.
"""

import base64
import hashlib
import html
from collections.abc import Sequence
from pathlib import Path
from string import Template

from dograph.errors import ConfigError
from dograph.files import package_text, write_text
from dograph.report.collect import PageData, collect, open_subjects
from dograph.report.sections import SECTIONS, page_json

# In this order: later files use what earlier ones define.
SCRIPTS = ("dom.js", "chart.js", "lines.js", "dots.js", "domains.js", "blocks.js", "main.js")
PAGE = "page.html"  # in the folder of every complete run and comparison
# Characters with a meaning in HTML: in JSON they occur only inside strings, which can escape them.
HTML_SAFE = str.maketrans({mark: f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"})
_SECTION = (
    '<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>'
    '<div class="body"></div></section>'
)


def asset(name: str) -> str:
    """The text of a file in assets/."""
    return package_text(f"report/assets/{name}")


def script() -> str:
    """All scripts as one, in their own scope."""
    parts = "\n".join(asset(name) for name in SCRIPTS)
    whole = f'(() => {{\n"use strict";\n{parts}\n}})();\n'
    assert "</script" not in whole.lower(), "a script must not close its own element"
    return whole


def policy(*, live: bool) -> str:
    """Allows the page's script and style, and requests to the live server if `live`."""
    rules = ["default-src 'none'"]
    for kind, text in (("script", script()), ("style", asset("page.css"))):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        rules.append(f"{kind}-src 'sha256-{digest}'")
    rules += ["img-src data:", "base-uri 'none'", "form-action 'none'"]
    rules += ["connect-src 'self'"] if live else []
    return "; ".join(rules)


def render(data: PageData, *, live: bool = False) -> str:
    """The HTML of a page."""
    titles = {name: title for name, (title, _) in SECTIONS.items()}
    links = [f'<li><a href="#{name}">{title}</a></li>' for name, title in titles.items()]
    blanks = {
        "policy": html.escape(policy(live=live)),
        "title": html.escape(data.title),
        "verdict": html.escape(data.verdict),
        "links": "".join(links),
        "sections": "\n".join(_SECTION.format(name=n, title=title) for n, title in titles.items()),
        "made": html.escape(data.made),
        "live": "yes" if live else "no",
        "style": asset("page.css"),
        "script": script(),
        "data": page_json(data).translate(HTML_SAFE),
    }
    # In one pass: text that was filled in is not searched for blanks.
    return Template(asset("page.html")).substitute(blanks)


def write_page(paths: Sequence[Path], out: Path) -> PageData:
    """Write the page of these runs and comparisons; return what it shows."""
    if not out.parent.is_dir():
        raise ConfigError(f"{out}: the folder {out.parent} does not exist; create it first")
    data = collect(open_subjects(paths))
    write_text(out, render(data))
    return data
