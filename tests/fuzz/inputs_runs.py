"""Damaged files of runs and comparisons: read by every command that reads them, and resumed."""

import json
import random
import shutil
from pathlib import Path

from fuzz import bases
from fuzz.harness import Ending, command, register

READERS = (
    ("show", "losses", "bad"),
    ("show", "graph", "bad"),
    ("show", "weights", "bad", "--step", 5),
    ("show", "samples", "bad", "--step", 5),
    ("export", "bad"),
)
REPORT = ("report", "bad", "good", "--out", "page.html")
RESUME = ("train", "--resume", "bad")
Case = tuple[str, int, str]


def records(rng: random.Random) -> Case:
    """A file of a run that is no part of a checkpoint, a seed of the damage, how it is read."""
    names = [name for name in bases.files_of(bases.run()) if not name.startswith("checkpoints/")]
    names = [name for name in names if Path(name).name not in (".lock", "page.html")]
    return rng.choice(names), rng.getrandbits(32), "resume" if rng.random() < 0.2 else "read"


def is_object(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content.decode()), dict)
    except (ValueError, RecursionError):
        return False


def told(path: Path) -> str | None:
    """What a report has to say about a file, if it is surely damaged."""
    name = path.name
    if name in ("env.json", "eval.json"):
        return None if path.is_file() and is_object(path.read_bytes()) else f"{name}: skipped"
    if name not in ("metrics.jsonl", "graph.jsonl", "validation.jsonl", "edits.jsonl"):
        return None
    if not path.is_file():
        return f"{name}: skipped" if name != "metrics.jsonl" else None
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        if not is_object(line):
            return f"line {number}: "
    return None


def read_records(case: Case, folder: Path) -> None:
    name, seed, how = case
    base = bases.run() if how == "read" else bases.stopped_run()
    bases.copied(base, folder / "bad")
    path = folder / "bad" / name
    if seed % 20 == 0 and name != "config.yaml":  # a folder where a file should be
        path.unlink()
        path.mkdir()
    else:
        bases.damage(path, seed)
    if how == "resume":
        resume(folder, name)
        return
    for reader in READERS:
        command(*reader)
    (folder / "good").symlink_to(bases.run())
    ending = command(*REPORT, allowed=(0,))  # a damaged run never spoils the others' page
    page = (folder / "page.html").read_text()
    assert '"good"' in page
    if (damage := told(path)) is not None:
        assert damage in ending.err, f"{damage!r} is not printed: {ending.err}"
        assert damage in page, f"{damage!r} is not on the page: {ending.err}"


def resume(folder: Path, name: str) -> None:
    """Resumed, a run trains as if nothing had happened, or refuses."""
    if name == "config.yaml":  # by its content it may be that of another, longer run
        command(*RESUME, "--print-config")
        return
    ending, after = command(*RESUME), bases.STOPPED
    if ending.code == 0:
        assert bases.rows(folder / "bad", after) == bases.rows(bases.run(), after), name


def checkpoints(rng: random.Random) -> Case:
    """A file of one of the last two checkpoints."""
    step = rng.choice((bases.STOPPED, bases.STOPPED, bases.EDITED))
    names = bases.files_of(bases.stopped_run() / f"checkpoints/step-{step:08d}")
    return f"checkpoints/step-{step:08d}/{rng.choice(names)}", rng.getrandbits(32), "resume"


def meaning(path: Path) -> object:
    """The content of a file; of a checkpoint's state what is read of it, whatever its layout."""
    content = path.read_bytes() if path.is_file() else None
    if path.name != "state.json" or content is None or not is_object(content):
        return content
    return [json.loads(content).get(name) for name in ("corpus", "mixer", "sha256")]


def resume_checkpoint(case: Case, folder: Path) -> None:
    """Training goes on from an intact checkpoint, or not at all; a fall-back is told of."""
    name, seed, _ = case
    bad = bases.copied(bases.stopped_run(), folder / "bad")
    if seed % 20 == 0:
        (bad / name).unlink()
    else:
        bases.damage(bad / name, seed)
    changed = meaning(bad / name) != meaning(bases.stopped_run() / name)
    is_newest = f"{bases.STOPPED:08d}" in name
    ending: Ending = command(*RESUME)
    if ending.code == 0:
        assert bases.rows(bad, bases.STOPPED) == bases.rows(bases.run(), bases.STOPPED)
        if is_newest and changed:
            assert f"step-{bases.STOPPED:08d}" in ending.err, "it fell back in silence"
    else:
        assert is_newest, ending.err
        assert "damaged" in ending.err, ending.err


def comparisons(rng: random.Random) -> Case:
    names = [name for name in bases.files_of(bases.comparison()) if "checkpoints/" not in name]
    names = [name for name in names if name.endswith(("json", "jsonl", "yaml"))]
    return rng.choice([*names, "compare.json"]), rng.getrandbits(32), "read"


def read_comparison(case: Case, folder: Path) -> None:
    name, seed, _ = case
    bases.copied(bases.comparison(), folder / "bad")
    bases.damage(folder / "bad" / name, seed)
    (folder / "good").symlink_to(bases.run())
    command(*REPORT, allowed=(0,))
    assert '"good"' in (folder / "page.html").read_text()
    shutil.rmtree(folder / "bad")


register("records", records, read_records, share=6)
register("checkpoints", checkpoints, resume_checkpoint, share=2)
register("comparisons", comparisons, read_comparison, share=2)
