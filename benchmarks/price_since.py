"""What every mode costs at two states of the source, measured in turns by `dograph bench`.

    python -m benchmarks.price_since OLD_SRC --out benchmarks/results/price-old-new-h200.json

OLD_SRC is the `src` folder of another commit (`git worktree add ../old COMMIT`). The two states
take turns (old, new, new, old), so that a drift of the machine falls on both. A mode's price is
its step over a plain step of the same state, both from one process. Results are written after every
turn. An old commit whose bench has no --model is given `--old-model model.preset={model}`.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

TURNS = ("old", "new", "new", "old")


def measure(source: Path, arguments: list[str], out: Path) -> dict[str, Any]:
    """One `dograph bench` of the code in `source`."""
    path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    # By its name alone: the file holds the command, and is to name no folder of a machine.
    command = [sys.executable, "-m", "dograph", "bench", *arguments, "--out", out.name]
    environment = os.environ | {"PYTHONPATH": path}
    subprocess.run(command, check=True, env=environment, cwd=out.resolve().parent)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def prices(turns: list[dict[str, Any]], state: str) -> dict[str, list[float]]:
    """Price of every mode in each turn of a state."""
    own = [turn["arms"] for turn in turns if turn["state"] == state]
    modes = [mode for mode in own[0] if "ratio" in own[0][mode]] if own else []
    return {mode: [float(arms[mode]["ratio"]["median"]) for arms in own] for mode in modes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old_src", type=Path)
    parser.add_argument("--model", default="gpt2-mini")
    parser.add_argument("--modes", default="full,topdown,head,twopass,exact")
    parser.add_argument("--steps", default="60")
    parser.add_argument(
        "--old-model", default="--model {model}", help="how the old code is given its model"
    )
    parser.add_argument("--old-options", default="", help='such as "--no-rivals --no-hand"')
    parser.add_argument("--turns", type=int, default=len(TURNS))
    parser.add_argument("--out", type=Path, default=Path("price-old-new.json"))
    given = parser.parse_args()
    sources = {"old": given.old_src.resolve(), "new": Path(__file__).parents[1] / "src"}
    arguments = ["--modes", given.modes, "--steps", given.steps]
    more = {
        "old": [*given.old_model.format(model=given.model).split(), *given.old_options.split()],
        "new": [f"model.preset={given.model}"],
    }
    turns: list[dict[str, Any]] = []
    for state in TURNS[: given.turns]:
        asked = [*arguments, *more[state]]
        found = measure(sources[state], asked, given.out.with_suffix(".turn.json"))
        turns.append({"state": state, **found})
        old, new = prices(turns, "old"), prices(turns, "new")
        both = {
            mode: {
                "old": old[mode],
                "new": new[mode],
                "difference": mean(new[mode]) - mean(old[mode]),
            }
            for mode in old
            if mode in new
        }
        given.out.write_text(json.dumps({"price": both, "turns": turns}, indent=1) + "\n")
        print(json.dumps(both, indent=1), flush=True)
    given.out.with_suffix(".turn.json").unlink()


if __name__ == "__main__":
    main()
