"""Exports to trainers that are not installed, against what their documentation and code accept.

Each model below is the relevant part of the trainer's own configuration, written from it.
"""

import json
import subprocess
from typing import Annotated

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dograph.errors import ConfigError
from dograph.mixtures.export import FORMATS, export_mixture
from dograph.mixtures.file import read_mixture_file

MIXTURE = {"C4": 0.61, "Pile-CC": 0.2999, 'it\'s: "#odd"': 0.0901, "none": 0.0}
PLACES = {"C4": "/data/c4", "Pile-CC": "/data/pile cc/x"}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class OlmoSource(Strict):
    source_name: str
    target_ratio: Annotated[float, Field(gt=0, le=1)]
    paths: Annotated[list[str], Field(min_length=1)]
    max_repetition_ratio: Annotated[float, Field(ge=1)] = 1.0
    max_source_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0


class OlmoList(Strict):
    sources: Annotated[list[OlmoSource], Field(min_length=1)]

    @model_validator(mode="after")
    def ratios(self):
        assert sum(source.target_ratio for source in self.sources) == pytest.approx(1, rel=1e-5)
        return self


def exported(name, mixture=MIXTURE, places=PLACES):
    return export_mixture(name, mixture, places)


def test_olmo_core():
    sources = OlmoList.model_validate(yaml.safe_load(exported("olmo-core"))).sources
    assert {s.source_name: s.target_ratio for s in sources} == {
        name: weight for name, weight in MIXTURE.items() if weight
    }
    assert [s.paths for s in sources] == [
        ["/data/c4"],
        ["/data/pile cc/x"],
        ["data/it_s____odd_/*.npy"],
    ]


def blend_of(arguments):
    """How Megatron-LM reads --data-path: weight and prefix in turn, or prefixes alone."""
    assert len(arguments) % 2 == 0
    return {prefix.strip(): float(w) for w, prefix in zip(*[iter(arguments)] * 2, strict=True)}


def test_megatron():
    script = exported("megatron") + '\nprintf "%s\\0" "${DATA_ARGS[@]}"'
    shown = subprocess.run(["bash", "-euc", script], capture_output=True, check=True, text=True)
    option, *rest = shown.stdout.rstrip("\0").split("\0")
    assert option == "--data-path"
    assert blend_of(rest) == {
        "/data/c4": 0.61,
        "/data/pile cc/x": 0.2999,
        "data/it_s____odd__text_document": 0.0901,
    }


def test_yaml_is_a_mixture_file_and_json_the_same(tmp_path):
    path = tmp_path / "mixture.yaml"
    path.write_text(exported("yaml"))
    assert read_mixture_file(path).weights == pytest.approx(MIXTURE, abs=0)
    assert json.loads(exported("json")) == {"weights": MIXTURE}


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("yaml", "json")])
def test_each_says_what_its_weights_are_and_what_is_left_out(name):
    text = exported(name)
    comment = " ".join(line[2:] for line in text.splitlines() if line.startswith("# "))
    assert "tokens" in comment
    assert "left out, weight 0: none" in comment
    assert "put the real places here: it's" in comment


def test_names_that_do_not_exist():
    with pytest.raises(ConfigError, match='did you mean "megatron"'):
        exported("megatrom")
    with pytest.raises(ConfigError, match='"c4", which the mixture does not have'):
        export_mixture("hf", MIXTURE, {"c4": "/x"})
    for name in ("olmo-core", "megatron"):
        with pytest.raises(ConfigError, match="hub; give the path"):
            exported(name, places={"C4": "hf:allenai/c4"})
