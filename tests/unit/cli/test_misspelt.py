"""A misspelt method is refused at once: nobody waits for torch, or for a corpus, to be told."""

import json
import subprocess
import sys

import pytest

from dograph.mixers.base import Planner
from dograph.mixers.registry import MIXERS, PLANNERS, build_mixer

OPTIONS = {
    "static": {"weights": {"a": 1.0}},
    "scheduled": {"stages": {0: {"a": 1.0}}},
    "domain2vec": {"vectors": {"a": [1.0], "target": [1.0]}},
}
CODE = """
import json, sys
from dograph.cli.main import app
from dograph.errors import ConfigError
try:
    app(sys.argv[1:])
except ConfigError as error:
    heavy = [name for name in ("torch", "transformers", "tokenizers") if name in sys.modules]
    print(json.dumps([str(error), heavy]))
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "demo", "mixer.name=dogrph"], 'did you mean "dograph"?'),
        (["train", "demo", "mixer.name=dogrph", "--dry-run"], 'did you mean "dograph"?'),
        (["compare", "demo", "--mixers", "unifrom"], 'did you mean "uniform"?'),
        (["compare", "demo", "--mixers", "uniform,regmx"], 'did you mean "regmix"?'),
        (["compare", "demo", "--baseline", "natrual"], 'did you mean "natural"?'),
        (["plan", "dorem"], 'there is no method "dorem"; did you mean "doremi"?'),
        (["plan", "uniform"], "uniform makes no plan"),
    ],
)
def test_a_misspelt_method_is_refused_before_torch_is_imported(tmp_path, arguments, message):
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], cwd=tmp_path, capture_output=True, check=True
    )
    said, heavy = json.loads(done.stdout)
    assert message in said
    assert heavy == []
    assert list(tmp_path.iterdir()) == []  # no corpus was prepared for it either


def test_a_misspelt_method_is_told_before_a_file_that_is_there(tmp_path):
    (tmp_path / "mixture.yaml").write_text("weights: {a: 1}")
    done = subprocess.run(
        [sys.executable, "-c", CODE, "plan", "regmx"], cwd=tmp_path, capture_output=True, check=True
    )
    assert 'did you mean "regmix"?' in json.loads(done.stdout)[0]


@pytest.mark.parametrize("name", MIXERS)
def test_planners_are_listed_as_planners(name):
    mixer = build_mixer(name, OPTIONS.get(name, {}))
    assert isinstance(mixer, Planner) == (name in PLANNERS)
