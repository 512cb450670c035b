"""Fill the tables of docs/configuration.md from the code: `python docs/configuration.py`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dograph.choices import CHOICES
from dograph.config import RunConfig
from dograph.domains.objectives import OBJECTIVES
from dograph.mixers.dograph import RECIPES, DoGraphOptions
from dograph.renamed import RENAMED

PAGE = Path(__file__).with_suffix(".md")


def shown(value: Any) -> str:
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value)}`"


def settings(section: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[str]:
    """Every setting with its default and meaning."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from settings(kind, f"{prefix}{name}.")
        else:
            default = shown(field.get_default(call_default_factory=True))
            yield f"| `{prefix}{name}` | {default} | {field.description} |"


def choices() -> Iterator[str]:
    """Every value of a choice: what it does, what it costs, when to use it."""
    for setting, values in CHOICES.items():
        yield from ("", f"### {setting}", "", "| value | what it does | cost | when to use it |")
        yield "|---|---|---|---|"
        for value, choice in values.items():
            cells = [f"`{value}`", *(text.replace("|", "\\|") for text in choice)]
            yield f"| {' | '.join(cells)} |"


def options() -> Iterator[str]:
    """Options of DoGraph under each recipe."""
    recipes = {name: DoGraphOptions(recipe=name) for name in CHOICES["mixer.recipe"]}
    assert set(recipes) == set(RECIPES)
    yield f"| option | {' | '.join(f'`{name}`' for name in recipes)} | meaning |"
    yield f"|---{'|---' * len(recipes)}|---|"
    for name, field in DoGraphOptions.model_fields.items():
        if name != "recipe":
            values = " | ".join(shown(getattr(recipe, name)) for recipe in recipes.values())
            yield f"| `mixer.{name}` | {values} | {field.description} |"


def objectives() -> Iterator[str]:
    """Options of the objectives with their defaults."""
    for name, kind in OBJECTIVES.items():
        own = {n: field for n, field in kind.model_fields.items() if n != "graph_penalty"}
        given = ", ".join(f"`{option}` ({shown(f.default)[1:-1]})" for option, f in own.items())
        yield f"- `{name}`: {given}"


def renamed() -> Iterator[str]:
    """Old names of settings, and the new ones."""
    yield from ("| old | new |", "|---|---|")
    for owner, rows in RENAMED.items():
        section = {"objective": "mixer.objective."}.get(owner, owner)
        prefix = section if section.endswith(".") else "mixer."
        of = "" if section.endswith(".") else f" ({owner})"
        for old, (new, values) in rows.items():
            pairs = ", ".join(f"`{a}` is `{json.dumps(b)}`" for a, b in values.items())
            yield f"| `{prefix}{old}`{of} | `{prefix}{new}`{f': {pairs}' if pairs else ''} |"


def filled(text: str) -> str:
    """The page with every table between its marks replaced."""
    for table in (settings, choices, options, objectives, renamed):
        name = table.__name__
        head = ["| setting | default | meaning |", "|---|---|---|"] if table is settings else []
        body = "\n".join([*head, *table()]).strip("\n")
        marks = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text, times = re.subn(
            marks, lambda m, body=body: f"{m[1]}\n{body}\n\n{m[2]}", text, flags=re.DOTALL
        )
        assert times == 1, f"the page needs <!-- {name} --> and <!-- /{name} -->"
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
