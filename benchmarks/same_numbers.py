"""Whether this tree computes what another commit does: python -m benchmarks.same_numbers COMMIT.

Old code (the commit, in a temporary git worktree) and new code (the tree that this file lies in)
get the same commands, side by side, one thread each; then everything that they wrote is compared.

    python -m benchmarks.same_numbers HEAD~3                     all; 16 minutes of CPU time in sum
    python -m benchmarks.same_numbers HEAD~3 --only mode-head    this, and what it needs
    python -m benchmarks.same_numbers HEAD~3 --keep /tmp/both    leave both folders to look at

The exit status is 1 where anything differs. What the cases are: same_cases.py; what is compared,
and how far numbers may be apart: same_files.py; how commands are run: same_server.py.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.same_cases import CASES, Place, Side
from benchmarks.same_files import compare_folders

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Result:
    """What came of a case; `difference` is empty where there is none."""

    name: str
    files: int
    difference: str
    seconds: float
    played: bool = True  # to its end, by both sides


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """The files of a commit, for as long as they are needed."""
    with tempfile.TemporaryDirectory(prefix="same-numbers-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


@contextmanager
def room(keep: Path | None) -> Iterator[Path]:
    """A folder to work in: a temporary one, or one that stays."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="same-numbers-") as folder:
            yield Path(folder).resolve()
        return
    if keep.exists() and any(keep.iterdir()):
        sys.exit(f"{keep} is not empty; name another folder")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.resolve()


def check_side(side: Side) -> None:
    """The code that runs is the side's own, and not what happens to be installed."""
    words = [sys.executable, "-c", "import dograph; print(dograph.__file__)"]
    found = subprocess.run(
        words, cwd=side.folder, env=side.environment, check=True, capture_output=True, text=True
    ).stdout
    if not Path(found).is_relative_to(side.source):
        sys.exit(f"{side.name} code should be in {side.source}, but {found.strip()} was imported")


def wanted(only: str | None) -> list[str]:
    """Names of the cases to play, with those that they need, in order."""
    names = set(only.split(",")) if only else set(CASES)
    if unknown := names - set(CASES):
        sys.exit(f"no such case: {', '.join(sorted(unknown))}; there are: {', '.join(CASES)}")
    for name in reversed(CASES):  # what a case needs stands before it
        if name in names:
            names |= set(CASES[name].needs)
    return [name for name in CASES if name in names]


def play(name: str, sides: Sequence[Side], pool: ThreadPoolExecutor) -> Result:
    """Both sides play a case at once; then their folders are compared."""
    start, old = time.monotonic(), sides[0]
    places = [Place(side, old, side.folder / name) for side in sides]
    for place in places:
        place.folder.mkdir()
    begun = [pool.submit(CASES[name].play, place) for place in places]
    errors = [str(error) for future in begun if (error := future.exception()) is not None]
    roots = [side.folder for side in sides]
    files, told = compare_folders(places[0].folder, places[1].folder, name, roots)
    told = "; ".join(errors) or told
    return Result(name, files, told, time.monotonic() - start, played=not errors)


def play_all(names: Sequence[str], sides: Sequence[Side]) -> list[Result]:
    """Every case in turn, a line each; a case whose needs came to nothing is left out."""
    results: list[Result] = []
    with ThreadPoolExecutor(len(sides)) as pool:
        for name in names:
            missing = [r.name for r in results if not r.played and r.name in CASES[name].needs]
            if missing:
                told = f"not played: it needs {', '.join(missing)}"
                results.append(Result(name, 0, told, 0.0, played=False))
            else:
                results.append(play(name, sides, pool))
            one = results[-1]
            told = one.difference or "equal"
            print(f"{name:22} {one.files:4} files {one.seconds:6.1f} s  {told}", flush=True)
    return results


def main(commit: str, only: str | None, keep: Path | None, out: Path | None) -> bool:
    """Whether all is the same."""
    names, start = wanted(only), time.monotonic()
    with room(keep) as folder, worktree(commit) as tree:
        sides = [
            Side("old", tree / "src", folder / "old"),
            Side("new", ROOT / "src", folder / "new"),
        ]
        for side in sides:
            side.folder.mkdir()
            check_side(side)
        try:
            results = play_all(names, sides)
        finally:
            for side in sides:
                side.close()
    different = [result.name for result in results if result.difference]
    if out is not None:
        record = {"commit": commit, "cases": [asdict(result) for result in results]}
        out.write_text(json.dumps(record, indent=1) + "\n")
    files, seconds = sum(result.files for result in results), time.monotonic() - start
    summary = f"{len(different)} differ: {', '.join(different)}" if different else "all equal"
    print(f"{len(results)} cases, {files} files, {seconds:.0f} s: {summary}")
    return not different


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="compare what two versions of the code compute")
    parser.add_argument("commit", help="of the old code")
    parser.add_argument("--only", metavar="NAME,...", help="these cases and what they need")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work here, and leave it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    given = parser.parse_args()
    sys.exit(0 if main(given.commit, given.only, given.keep, given.json) else 1)
