"""Runs `python -m dograph` many times, with torch and transformers imported once.

Importing them takes several times as long as a small run. So this process imports them, and for
each order, a line of JSON, forks one that goes on as `python -m dograph` does; the answer is its
exit status. Nothing of dograph is imported before the fork.
"""

import json
import os
import runpy
import sys
from importlib import import_module

IMPORTED = (
    "pydantic",
    "rich.console",
    "rich.progress",
    "rich.table",
    "torch.distributed.fsdp",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "typer",
)


def become(order: dict[str, str | list[str]]) -> None:
    """In a process of its own: the command, in its folder, printing to its files."""
    os.chdir(str(order["folder"]))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(str(order[name]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    sys.argv = ["dograph", *order["arguments"]]
    runpy.run_module("dograph", run_name="__main__", alter_sys=True)
    sys.exit()


def main() -> None:
    sys.path[0] = ""  # as with -m; not this file's folder, whose modules have everyday names
    for name in IMPORTED:
        import_module(name)
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            become(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
