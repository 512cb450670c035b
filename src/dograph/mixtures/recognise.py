"""Which layout a file has, told from its header."""

from pathlib import Path

from dograph.errors import CorpusError
from dograph.mixtures.long import EXAMPLE_LONG, read_long, recognises_long
from dograph.mixtures.olmix import EXAMPLE_OLMIX, read_olmix, recognises_olmix
from dograph.mixtures.regmix import EXAMPLE_REGMIX, read_regmix, recognises_regmix
from dograph.mixtures.sheet import Grid, Kind, Sheet, read_sheet
from dograph.mixtures.wide import is_loss_column, is_source_column

OTHER: dict[Kind, Kind] = {"mixtures": "losses", "losses": "mixtures"}


def read_grid(path: Path, kind: Kind) -> Grid:
    """The numbers of a file of mixtures, or of one of losses, in any of the three layouts."""
    sheet = read_sheet(path)
    _refuse_swapped(sheet, kind)
    if recognises_long(sheet.header, kind):
        return read_long(sheet, kind)
    if recognises_olmix(sheet.header):
        return read_olmix(sheet, kind)
    if recognises_regmix(sheet.header):
        return read_regmix(sheet, kind)
    examples = (*EXAMPLE_REGMIX, *EXAMPLE_OLMIX, *EXAMPLE_LONG)
    layouts = "\n".join(f"  {line}" for line in examples)
    start = ", ".join(sheet.header[:4]) + (", ..." if len(sheet.header) > 4 else "")
    raise CorpusError(
        f"{path}: no column says which run a line is about; its header starts with: {start}\n"
        f"Three layouts are read (first line: mixtures, second: losses):\n{layouts}"
    )


def _refuse_swapped(sheet: Sheet, kind: Kind) -> None:
    foreign = is_loss_column if kind == "mixtures" else is_source_column
    swapped = recognises_long(sheet.header, OTHER[kind]) and not recognises_long(sheet.header, kind)
    if swapped or any(foreign(column) for column in sheet.header):
        raise CorpusError(
            f"{sheet.path} was given as the file of {kind} and has {OTHER[kind]}; "
            "name the mixtures first, then the losses"
        )
