"""From what a page holds to one HTML file: script, style and data inside, nothing from elsewhere.

Whatever a run or a corpus says enters as JSON that cannot end its element, and the script turns it
into text nodes. A Content-Security-Policy names the one script and the one style by their digest
and forbids everything else, so that text could not run or fetch anything even if it became markup.
"""

import base64
import hashlib
import html
import re
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from dograph.errors import ConfigError
from dograph.files import write_text
from dograph.report.collect import PageData, collect, open_subjects
from dograph.report.sections import page_json

# In this order: later files use what earlier ones define.
PARTS = ("dom", "chart", "lines", "dots", "scatter", "graph", "domains", "blocks", "main")
SCRIPTS = [f"{part}.js" for part in PARTS]
PAGE = "page.html"  # that a run or a comparison ends with
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_BLANK = re.compile(r"\{\{(\w+)\}\}")


def asset(name: str) -> str:
    """A file of the page, as it lies in the package."""
    return files("dograph.report").joinpath("assets", name).read_text(encoding="utf-8")


def escape_json(text: str) -> str:
    """JSON that may stand in a script element: no character that HTML gives a meaning to.

    These occur in strings only, where JSON has another way to write them.
    """
    return "".join(_UNSAFE.get(character, character) for character in text)


def script() -> str:
    """All scripts as one, in a scope of their own."""
    parts = "\n".join(asset(name) for name in SCRIPTS)
    whole = f'(() => {{\n"use strict";\n{parts}\n}})();\n'
    assert "</script" not in whole.lower(), "a script must not end its own element"
    return whole


def policy(code: str, style: str, *, live: bool) -> str:
    """What the page may do: run this script, use this style, and if live ask its server."""
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
    """The page."""
    code, style = script(), asset("page.css")
    blanks = {
        "policy": html.escape(policy(code, style, live=live)),
        "title": html.escape(data.title),
        "verdict": html.escape(data.verdict),
        "made": html.escape(f"Made {data.made} by {data.program}."),
        "live": "yes" if live else "no",
        "style": style,
        "script": code,
        "data": escape_json(page_json(data)),
    }
    # One pass: what is filled in is not looked at again.
    return _BLANK.sub(lambda found: blanks[found[1]], asset("page.html"))


def write_page(paths: Sequence[Path], out: Path, benches: Sequence[Path] = ()) -> int:
    """Write the page of these runs and comparisons; return how many runs it shows."""
    if not out.parent.is_dir():
        raise ConfigError(f"{out}: the folder {out.parent} does not exist; make it first")
    data = collect(open_subjects(paths, benches))
    write_text(out, render(data))
    return len(data.runs)


def page_at_end(folder: Path) -> Path | None:
    """The page of a run or comparison that just ended, in its own folder.

    Whatever goes wrong here is a warning: training is over, and its files are whole.
    """
    out = folder / PAGE
    try:
        write_page([folder], out)
    except Exception as error:  # any of them would turn a finished run into a failed one
        print(
            f"warning: no page was made ({type(error).__name__}: {error}); "
            f"try: dograph report {folder} --out {out}",
            file=sys.stderr,
        )
        return None
    return out
