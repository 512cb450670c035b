"""Pages as files, and the page that a run or a comparison ends with."""

import sys
from collections.abc import Sequence
from pathlib import Path

from dograph.errors import ConfigError
from dograph.files import write_text
from dograph.report.collect import collect, open_subjects
from dograph.report.render import render

PAGE = "page.html"


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
