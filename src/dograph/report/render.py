"""Writes a page as one HTML file with script, style and data inside; nothing is loaded.

Text from a run or a corpus enters as JSON that cannot close its element, and the script turns it
into text nodes. The Content-Security-Policy names the one script and the one style by their digest
and forbids everything else, so even text that became markup could not run or load anything.
"""

import base64
import hashlib
import html
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from dograph.errors import ConfigError
from dograph.files import package_text, write_text
from dograph.report.collect import PageData, collect, open_subjects
from dograph.report.sections import SECTIONS, page_json

# In this order: later files use what earlier ones define.
SCRIPTS = ("dom.js", "chart.js", "lines.js", "dots.js", "domains.js", "blocks.js", "main.js")
PAGE = "page.html"  # in the folder of every complete run and comparison
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_SECTION = (
    '<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>'
    '<div class="body"></div></section>'
)
_BLANK = re.compile(r"\{\{(\w+)\}\}")


def asset(name: str) -> str:
    """The text of a file in assets/."""
    return package_text(f"report/assets/{name}")


def escape_json(text: str) -> str:
    """JSON for a script element: characters with a meaning in HTML are escaped.

    They occur only inside strings, where JSON can escape them.
    """
    return "".join(_UNSAFE.get(character, character) for character in text)


def script() -> str:
    """All scripts as one, in their own scope."""
    parts = "\n".join(asset(name) for name in SCRIPTS)
    whole = f'(() => {{\n"use strict";\n{parts}\n}})();\n'
    assert "</script" not in whole.lower(), "a script must not close its own element"
    return whole


def policy(code: str, style: str, *, live: bool) -> str:
    """Allows this script and this style, and requests to the live server if `live`."""
    rules = [
        "default-src 'none'",
        f"script-src '{_digest(code)}'",
        f"style-src '{_digest(style)}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        *(["connect-src 'self'"] if live else []),
    ]
    return "; ".join(rules)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def render(data: PageData, *, live: bool = False) -> str:
    """The HTML of a page."""
    code, style = script(), asset("page.css")
    titles = {name: title for name, (title, _) in SECTIONS.items()}
    links = [f'<li><a href="#{name}">{title}</a></li>' for name, title in titles.items()]
    blanks = {
        "policy": html.escape(policy(code, style, live=live)),
        "title": html.escape(data.title),
        "verdict": html.escape(data.verdict),
        "links": "".join(links),
        "sections": "\n".join(_SECTION.format(name=n, title=title) for n, title in titles.items()),
        "made": html.escape(data.made),
        "live": "yes" if live else "no",
        "style": style,
        "script": code,
        "data": escape_json(page_json(data)),
    }
    # In one pass: text that was filled in is not searched for blanks.
    return _BLANK.sub(lambda match: blanks[match[1]], asset("page.html"))


def write_page(paths: Sequence[Path], out: Path) -> PageData:
    """Write the page of these runs and comparisons; return what it shows."""
    if not out.parent.is_dir():
        raise ConfigError(f"{out}: the folder {out.parent} does not exist; create it first")
    data = collect(open_subjects(paths))
    write_text(out, render(data))
    return data


def page_at_end(folder: Path) -> Path | None:
    """Writes the page of a run or comparison that just ended into its folder.

    An error here is only a warning: training is complete, and its files are written.
    """
    out = folder / PAGE
    try:
        write_page([folder], out)
    except Exception as error:  # must not turn a finished run into a failed one
        print(
            f"warning: the page could not be written ({type(error).__name__}: {error}); "
            f"try: dograph report {folder} --out {out}",
            file=sys.stderr,
        )
        return None
    return out
