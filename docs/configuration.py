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
# What each value costs, and when to use it. Times and memory are multiples of a step without a
# mixer (GPT-2 with 24 layers on an H200, cost.md); differences of losses are from results.md.
COST_AND_USE = {
    ("mixer.recipe", "recommended"): (
        "0.23 ms per step from sketches to weights",
        "the default: 0.026 nats below plain training, 5 seeds",
    ),
    ("mixer.recipe", "safe"): (
        "0.22 ms per step; 0.49 with its running averages",
        "domains over time, apply_weights_to=sampling, lagged; no lower loss than plain training",
    ),
    ("mixer.recipe", "paper"): (
        "0.28 ms per step",
        "to reproduce the paper; 0.064 nats above plain training",
    ),
    ("mixer.recipe", "inverse-norm"): (
        "about that of recommended; not measured on its own",
        "the baseline to compare a gain with; recommended is 0.003 nats lower, which may be chance",
    ),
    ("mixer.scope", "batch"): (
        "0.2 to 0.5 ms per step on a GPU, by batch size and objective",
        "the lowest loss so far; domains have no identity over time",
    ),
    ("mixer.scope", "period"): (
        "memory for period_steps x batch x sketch.dim numbers",
        "domains from more samples than a batch; no lower loss than batch in our runs",
    ),
    ("mixer.scope", "stream"): (
        "0.22 ms per step on a GPU, and a refit every 25 steps",
        "domains with an identity over time: recipe safe, sampling, lagged accumulation",
    ),
    ("mixer.objective", "precision"): (
        "0.23 ms, a formula",
        "the default; -0.025 nats against plain training (400 steps, 3 seeds)",
    ),
    ("mixer.objective", "uncertainty"): (
        "0.28 ms, a quadratic program",
        "the paper's choice; +0.044 nats",
    ),
    ("mixer.objective", "variance"): (
        "0.33 ms, a quadratic program",
        "to compare with the paper; +0.032 nats, an interval that includes 0",
    ),
    ("mixer.objective", "robust"): (
        "0.22 ms, a formula",
        "to compare with the paper; +0.76 nats",
    ),
    ("mixer.objective", "alignment"): (
        "0.23 ms, 20 iterations",
        "to compare with the paper; +0.98 nats",
    ),
    ("sketch.mode", "full"): (
        "1.09 x time, 0.95 x memory",
        "the default; distances between gradients are off by 3 to 4 %",
    ),
    ("sketch.mode", "twopass"): (
        "1.94 x time, 1.12 x memory",
        "FSDP2 (train.shard), or a backward of your own",
    ),
    ("sketch.mode", "topdown"): (
        "1.02 x time, 1.00 x memory",
        "cheaper than full, but distances are off by 8 to 14 %",
    ),
    ("sketch.mode", "head"): (
        "1.00 x time, 1.01 x memory",
        "no extra cost, FSDP2, or layers without a rule; distances are off by 11 to 14 %",
    ),
    ("sketch.mode", "exact"): (
        "1.46 x time, 2.59 x memory",
        "small models; needed by the projections gaussian and none",
    ),
    ("sketch.mode", "reference"): (
        "not measured; a similar loop took 41 x time",
        "tests: the simple definition that the other modes must agree with",
    ),
    ("sketch.projection", "hashed"): (
        "the cost of the mode",
        "the default",
    ),
    ("sketch.projection", "rademacher"): (
        "one more product with the gradient of the logits: 1.3 % of a step of GPT-2 Mini on an "
        "H200",
        "runs that began with it",
    ),
    ("sketch.projection", "gaussian"): (
        "parameters x sketch.dim operations per sample",
        "small models in mode exact: to compare with the paper",
    ),
    ("sketch.projection", "none"): (
        "all parameters per sample in memory",
        "tiny models in mode exact: no projection error",
    ),
    ("sketch.accumulation", "two_sweeps"): (
        "one more forward, and a backward for the sketches",
        "the default; exact",
    ),
    ("sketch.accumulation", "keep"): (
        "memory of the whole batch",
        "exact, if the batch fits; modes full, topdown and exact",
    ),
    ("sketch.accumulation", "lagged"): (
        "nothing (LLaMA-1.1B: 1.00 x with head, 1.02 x with topdown)",
        "large models; mixer.scope stream or period, not keep_source_shares",
    ),
}


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
        for value, does in values.items():
            texts = (does, *COST_AND_USE[setting, value])
            cells = [f"`{value}`", *(text.replace("|", "\\|") for text in texts)]
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
