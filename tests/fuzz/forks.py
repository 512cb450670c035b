"""Commands as processes of their own, without seconds of imports: forks of one that has them.

The parent imports everything and computes nothing, so that it has no threads, and forks a child
for each command. A child is a session of its own: it can be killed with its workers.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

PROGRAM = """
import json, os, sys
import torch
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast
import dograph.compare.session, dograph.report.render, dograph.train.trainer, dograph.cli.show
from dograph.cli.main import main
from dograph.data import formats, pipeline

for line in sys.stdin:
    words, log = json.loads(line)
    child = os.fork()
    if not child:
        os.setsid()
        with open(log, "ab", 0) as file:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
        # many small chunks and a commit after each, so that a kill falls between any two of them
        formats.CHUNK_BYTES, formats.READ_BYTES, pipeline.COMMIT_SECONDS = 20_000, 5_000, 0.0
        sys.argv = ["dograph", *words]
        code = 0
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code or 0
        finally:
            sys.stdout.flush()
            os._exit(code if isinstance(code, int) else 1)
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class Forks:
    """Runs commands one after the other."""

    def __init__(self, log: Path) -> None:
        self.log = log
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        environment["TOKENIZERS_PARALLELISM"] = "false"
        self.parent = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self.parent.stdin is not None
        self.parent.stdin.close()
        self.parent.wait()

    def start(self, *words: object) -> int:
        """Start a command; returns the id of its process, which leads a group of its own."""
        assert self.parent.stdin is not None
        print(json.dumps([[*map(str, words)], str(self.log)]), file=self.parent.stdin, flush=True)
        return int(self._answer())

    def wait(self) -> int:
        """The exit code of the command that was started, or minus the signal that ended it."""
        return int(self._answer())

    def run(self, *words: object) -> None:
        """Run a command to its end, which must be a good one."""
        self.start(*words)
        code = self.wait()
        assert code == 0, f"{words}: exit code {code}\n{self.log.read_text()[-3000:]}"

    def _answer(self) -> str:
        assert self.parent.stdout is not None
        return self.parent.stdout.readline()
