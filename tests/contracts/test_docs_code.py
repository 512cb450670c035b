"""Code in the documentation runs: Python blocks page by page, commands as far as they parse."""

import json
import re
import shlex
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.main import get_command

from corpora import write_corpus
from dograph.cli.main import app
from dograph.domains.graph import DomainGraph, Edge, Node

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Blocks that need runs, tables or plans that take minutes to make; other tests call the same
# functions (tests/unit/eval/test_merging.py, tests/unit/plan, tests/unit/mixtures). The blocks of
# nanogpt.md belong into loops that tests/unit/integrations/test_nano_loops.py has.
NOT_RUN = {"analyses.md", "nanogpt.md", "plan.md", "tables.md"}


def blocks(page, language):
    text = page.read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def surroundings():
    """Names that fragments take from the reader's own program."""
    torch.manual_seed(0)

    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.lm_head = nn.Embedding(32, 16), nn.Linear(16, 32)

        def forward(self, token_BT):
            return self.lm_head(self.table(token_BT))

    model = Bare()
    token_BT = torch.randint(32, (12, 9))
    pairs = [(token_BT[:, :-1], token_BT[:, 1:])] * 2
    return {
        "__name__": "page",
        "torch": torch,
        "F": F,
        "model": model,
        "lm_head": model.lm_head,
        "hidden_BTD": torch.randn(12, 8, 16, requires_grad=True),
        "target_BT": token_BT[:, 1:],
        "loader": pairs,
        "optimizer": torch.optim.AdamW(model.parameters()),
    }


PYTHON = [page for page in PAGES if page.name not in NOT_RUN and blocks(page, "python")]


@pytest.mark.parametrize("page", PYTHON, ids=lambda page: page.name)
def test_python_blocks_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "data" / "mine", {"web": 3000, "code": 3000})
    nodes = [Node(j, 0.5, None, 1.0, 2.0, 3.0, 4, {"web": 3, "code": 1}) for j in (0, 2)]
    graph = DomainGraph(9, nodes, [Edge(0, 2, 0.25, 1.75)])
    (tmp_path / "graph.json").write_text(json.dumps(asdict(graph)))
    names = surroundings()
    for block in blocks(page, "python"):
        if block.startswith(" "):  # a fragment of the loop before it
            continue
        exec(compile(block, str(page), "exec"), names)


def commands():
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line.split("  #")[0].split(" # ")[0], comments=True)
                if "dograph" in words[:1] or words[:1] == [".venv/bin/dograph"]:
                    yield pytest.param(words[1:], id=f"{page.name}: {' '.join(words)[:60]}")


@pytest.mark.parametrize("words", list(commands()))
def test_commands_exist_with_their_options(words):
    """Names of commands and options; what they do is tested elsewhere."""
    command = get_command(app)
    while hasattr(command, "commands") and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    assert not hasattr(command, "commands"), f"{words[:1]} is no command"
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    used = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert used <= known | {"--help"}
