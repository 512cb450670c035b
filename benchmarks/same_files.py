"""Whether two folders hold the same: what benchmarks.same_numbers asks of two versions.

Files are equal by their bytes. Where those differ, what is written in them counts: values of JSON,
YAML and CSV, without what is measured by a clock and without versions; tensors. Pages are not
compared: their data has the format of the code that made them, and its numbers are in other files.
Sentences may be reworded: the numbers in them count. Of what a command prints, those with decimals.
"""

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from dograph.records import unpacked
from dograph.renamed import RENAMED, with_new_metrics, with_new_settings

# How far numbers may be apart, by CASE/FILE pattern; whatever is not named here must be equal.
# Intervals came from a table of Student's t with four decimals; they are scipy's now.
# Laws are fitted by scipy: predictions agree to 1e-7 where the minimum is the same, losses at the
# end of a nested law to 1e-9.
TOLERANCES: dict[str, float] = {"*plan-*.yaml": 1e-5, "*compare*.json": 1e-5}
TOLERANCES |= {"plan-*.losses.csv": 1e-8}
TOLERANCES |= {
    "*metrics.jsonl": 1e-6,
    "*graph.json*": 1e-6,
    "*printed-*": 1e-6,
}  # seven digits, where they had all
ROUNDING = 1e-9  # where a tolerance holds, numbers as near as this are equal: a bias of 1e-13 is 0

# What is not compared. Values by key: clocks and memory, dates and chance, versions ...
MEASURED = ("time/", "memory/", "seconds_")
DROPPED = frozenset(
    {
        *("seconds", "peak_bytes", "speed", "ms", "step_ms", "tokens_per_second", "over_plain"),
        "costs",  # of a comparison in words, on its page; compare.json has the FLOPs
        *("time", "made", "fingerprint", "identity"),  # of a file's date; of an edit, drawn anew
        *("made_by", "program", "environment"),
        "command",  # as typed: old and new code may spell it differently
        *("mixer.safetensors", "optimizer.safetensors"),  # their digests; tensors are compared
        *("rates", "tune", "all_targets"),  # of requests; older versions had none, or one more
        "state_sha256",  # of a checkpoint, and of a file that names its folder
        "valid/worst/bits_per_byte",  # was that of the source of the worst loss
        *("transfer", "why"),  # a surrogate that went, and the scores of all in words
        *("support", "delta"),  # of a plan; older versions did not judge it, or had one delta
        "keep",  # proxies keep two checkpoints, one in case the newest is damaged
    }
)
# ... and whole files: versions again, locks, what proxies printed.
IGNORED = ("env.json", ".lock", "*.log", "*.tmp")
IGNORED += ("digests.json",)  # of a corpus: sizes and dates of its files; older versions had none
IGNORED += ("cells.csv", "methods.csv", "*.dot", "*.graphml")  # copies that are no longer written
IGNORED += ("*.html",)
# Sums of squared norms are of normalised sketches and in float64 now; float32 underflowed.
WIDENED = "scope:*/spread*"
# Tensors of a checkpoint that older versions did not write: updates that were made, the meters.
ADDED = ("updates", "meters.*")
NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)")
DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?")
# Options as name=value in a text, or as keys of what stands for a mixer's options elsewhere.
OPTIONS = {old: new for rows in RENAMED.values() for old, (new, _) in rows.items() if old != new}
OPTION = re.compile(rf"\b({'|'.join(OPTIONS)})(?==)")


def compare_folders(old: Path, new: Path, case: str, roots: Sequence[Path]) -> tuple[int, str]:
    """How many files were compared, and the first difference in words, or nothing.

    `roots`: the folders of the sides, whose names may stand in files and mean the same.
    """
    names = sorted(_files(old) | _files(new), key=_telling)
    for name in names:
        for folder, side in ((old, "old"), (new, "new")):
            if not (folder / name).is_file():
                return len(names), f"{name}: not written by {side} code"
        tolerance = _tolerance(f"{case}/{name}")
        told = _difference(old / name, new / name, roots, tolerance)
        if told:
            return len(names), f"{name}{told}"
    return len(names), ""


def _files(folder: Path) -> set[str]:
    """Every file by its name in the folder; links to folders are not followed."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder))
        for path in found
        if not any(fnmatch(path.name, pattern) for pattern in IGNORED)
    }


def _telling(name: str) -> tuple[bool, bool, str]:
    """By which to sort: metrics say most about where a difference begins, printed tables least."""
    return name.startswith("printed-"), not name.endswith("metrics.jsonl"), name


def _tolerance(name: str) -> float:
    return max((far for pattern, far in TOLERANCES.items() if fnmatch(name, pattern)), default=0.0)


def _difference(old: Path, new: Path, roots: Sequence[Path], tolerance: float) -> str:
    first, second = old.read_bytes(), new.read_bytes()
    if first == second:
        return ""
    if old.suffix == ".safetensors":
        return _tensors_apart(first, second)
    try:
        texts = with_new_metrics(first).decode(), with_new_metrics(second).decode()
    except UnicodeDecodeError:
        return f": bytes differ ({len(first)} old, {len(second)} new)"
    for root in roots:
        texts = texts[0].replace(str(root), "ROOT"), texts[1].replace(str(root), "ROOT")
    values = [_with_new_names(_values(DATE.sub("DATE", text), old.suffix)) for text in texts]
    if old.name in ("metrics.jsonl", "samples.jsonl"):
        values = _in_both(*values)
    return next(_apart(values[0], values[1], tolerance, ""), "")


def _in_both(old: list[Any], new: list[Any]) -> list[Any]:
    """Rows of steps that either side logs in full are compared by what both have of them."""

    def by_step(rows: list[Any]) -> dict[tuple[int, bool], Any]:
        return {(row["step"], "valid/mean/loss_nats" in row): row for row in rows}

    sides = [by_step(old), by_step(new)]
    shared = [key for key in sides[0] if key in sides[1]]
    names = [sides[0][key].keys() & sides[1][key].keys() for key in shared]
    return [
        [{name: side[key][name] for name in own} for key, own in zip(shared, names, strict=True)]
        for side in sides
    ]


def _values(text: str, suffix: str) -> Any:
    """What is written in a file, as far as it is compared."""
    if suffix == ".json":
        return json.loads(text)
    if suffix == ".jsonl":
        return [unpacked(json.loads(line)) for line in text.splitlines()]
    if suffix in (".yaml", ".yml"):
        return yaml.safe_load(text)
    if suffix == ".csv":
        return list(csv.DictReader(io.StringIO(text)))
    # Bits per byte in a row "worst" were those of the source of the worst loss; bars are drawn for
    # the steps that are logged in full, which were all.
    lines = (
        line
        for line in text.splitlines()
        if not line.strip().startswith("worst") and "█" not in line
    )
    return [number for line in lines for number in NUMBER.findall(line) if "." in number]


def _with_new_names(value: Any) -> Any:
    """Settings that have been renamed are the same, in configurations and in texts of them."""
    if isinstance(value, dict):
        settings = {key: part for key, part in value.items() if key in ("mixer", "eval")}
        value = value | with_new_settings(settings)
        return {OPTIONS.get(key, key): _with_new_names(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_new_names(part) for part in value]
    return OPTION.sub(lambda found: OPTIONS[found[0]], value) if isinstance(value, str) else value


def _apart(old: Any, new: Any, tolerance: float, key: str) -> Iterator[str]:
    """Where nested values differ, in words, in the order of the old ones."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            if _is_dropped(name):
                continue
            if name not in old or name not in new:
                yield f" {key}.{name}: only in {'old' if name in old else 'new'}"
            else:
                yield from _apart(old[name], new[name], tolerance, f"{key}.{name}")
    elif isinstance(old, list) and isinstance(new, list):
        for n, (first, second) in enumerate(zip(old, new, strict=False)):
            yield from _apart(first, second, tolerance, f"{key}[{n}]")
        if len(old) != len(new):
            yield f" {key}: {len(old)} entries old, {len(new)} new"
    elif not _same(old, new, tolerance):
        if isinstance(old, str) and isinstance(new, str):  # of long texts, where they part
            pairs = enumerate(zip(old, new, strict=False))
            part = next((n for n, (one, other) in pairs if one != other), 0)
            old, new = (text[max(0, part - 20) :] for text in (old, new))
        yield f" {key}: {_short(old)} old, {_short(new)} new"


def _is_dropped(name: Any) -> bool:
    return name in DROPPED or str(name).startswith(MEASURED)


def _same(old: Any, new: Any, tolerance: float) -> bool:
    if type(old) is not type(new):
        return False
    if isinstance(old, float) and math.isnan(old):
        return math.isnan(new)
    if tolerance and isinstance(old, float):
        return math.isclose(old, new, rel_tol=tolerance, abs_tol=ROUNDING)
    if isinstance(old, str) and (tolerance or " " in old):
        return _same_text(old, new, tolerance)
    return bool(old == new)


def _same_text(old: str, new: str, tolerance: float) -> bool:
    """Numbers near each other; words of a sentence may differ, a single word may not."""
    first, second = NUMBER.findall(old), NUMBER.findall(new)
    near = (
        math.isclose(float(a), float(b), rel_tol=tolerance, abs_tol=tolerance and ROUNDING)
        for a, b in zip(first, second, strict=False)
    )
    words = (NUMBER.sub("", old), NUMBER.sub("", new))
    return (" " in old or words[0] == words[1]) and len(first) == len(second) and all(near)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _tensors_apart(old: bytes, new: bytes) -> str:
    """Which tensor differs first, and by how much."""
    import torch
    from safetensors.torch import load

    both = load(old), load(new)
    first, second = ({n: x for n, x in one.items() if not _is_added(n)} for one in both)
    if first.keys() != second.keys():
        return f": tensors {sorted(first.keys() ^ second.keys())[:3]} in one alone"
    for name, tensor in first.items():
        other = second[name]
        kinds = [f"{one.dtype} {list(one.shape)}" for one in (tensor, other)]
        if fnmatch(name, WIDENED) and tensor.shape == other.shape:
            if not torch.allclose(tensor.double(), other.double(), rtol=1e-6, atol=0):
                return f" {name}: {tensor.tolist()} old, {other.tolist()} new"
            continue
        if kinds[0] != kinds[1]:
            return f" {name}: {kinds[0]} old, {kinds[1]} new"
        far = (tensor.double() - other.double()).abs().max().item() if tensor.numel() else 0.0
        if far or not tensor.equal(other):
            return f" {name}: up to {far:.3g} apart"
    explained = any(fnmatch(name, WIDENED) for name in first) or any(map(_is_added, both[1]))
    return "" if explained else ": bytes differ, tensors are equal"


def _is_added(tensor: str) -> bool:
    return any(fnmatch(tensor, pattern) for pattern in ADDED)
