"""Probes of a run, and their principal components.

Shapes: N rows, S sources.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dograph.errors import ConfigError, RunError
from dograph.records import DAMAGE, Skipped, read_record
from dograph.train.run_dir import RunDirectory

ROUNDING = 1e-12  # components with less than this share of the variance count as zero
LEAST_ROWS = 4  # of a source that is compared with others
Place = dict[str, Any]  # of a row


@dataclass(frozen=True, slots=True)
class Probe:
    """Sketches of a run's probe rows after `step` steps."""

    step: int
    sources: list[str]
    rows: list[Place]  # where each row is in the corpus
    sketch_NK: Tensor  # float32, all finite
    source_N: Tensor  # int64, index into sources
    label_N: Tensor  # int64: the mixer's domains, -1 before it has any
    nearest: dict[int, list[int]] = field(default_factory=dict)  # rows nearest each centroid


def probed_steps(run: Path) -> list[int]:
    """The steps after which a run has a complete probe, ascending; an error if it has none."""
    directory = RunDirectory.open(run)
    names = (path.stem for path in directory.probes.glob("step-*.json"))
    steps = sorted(int(name[5:]) for name in names if name[5:].isdecimal())
    if not steps:
        config = directory.config()
        raise RunError(
            f"{run} has no probes (mixer.name={config.mixer.name}, probe.rows={config.probe.rows}, "
            f"probe.at={list(config.probe.at)}). Train a run with probes: its mixer needs sketches "
            "(as dograph does), probe.rows is above 0, and the corpus has validation text"
        )
    return steps


def read_probe(run: Path, step: int) -> Probe:
    """The probe that a run made after `step` steps."""
    steps, file = probed_steps(run), RunDirectory(run).probe(step)
    if step not in steps:
        raise RunError(f"{run} has no probe of step {step}; it has those of {steps}")
    tensor_file, skipped = file.with_suffix(".safetensors"), Skipped()
    remedy = f"to continue without this probe, remove {file}"
    about = read_record(file, _probed_rows, skipped)
    if about is None:
        raise RunError(f"{'; '.join(skipped.warnings())}; {remedy}")
    sources, rows, nearest = about
    try:
        tensors = load_file(tensor_file)
        sketch_NK, source_N = tensors["sketch"].float(), tensors["source"].long()
        label_N = tensors["label"].long()
        sizes = {len(tensor) for tensor in (sketch_NK, source_N, label_N)}
        if sizes != {len(rows)} or sketch_NK.ndim != 2 or not 0 <= source_N.min() <= source_N.max():
            raise ValueError("its tensors do not have the rows of its .json file")
        sources[int(source_N.max())]
    except (OSError, SafetensorError, *DAMAGE) as error:
        raise RunError(f"{tensor_file} cannot be read ({error}); {remedy}") from error
    if num_bad := int((~sketch_NK.isfinite().all(dim=1)).sum()):
        raise RunError(
            f"{num_bad} of {len(sketch_NK)} sketches in {tensor_file} are not finite: the run had "
            f"diverged by then; {remedy}"
        )
    return Probe(step, sources, rows, sketch_NK, source_N, label_N, nearest)


def _probed_rows(values: dict[str, Any]) -> tuple[list[str], list[Place], dict[int, list[int]]]:
    """Of a probe's .json file: sources, the place of each row, the rows nearest each centroid."""
    sources, rows = values["sources"], [dict(row) for row in values["rows"]]
    if not rows or not all(isinstance(name, str) for name in sources):
        raise ValueError("it does not name its sources and rows")
    nearest, keys = dict[int, list[int]](), ("source", "row", "document")
    number = {tuple(map(row.get, keys)): n for n, row in enumerate(rows)}
    for own in values.get("domains") or []:
        nearest[int(own["domain"])] = [number[tuple(map(row.get, keys))] for row in own["nearest"]]
    return list(sources), rows, nearest


def principal(sketch_NK: Tensor, num: int = 2) -> tuple[Tensor, Tensor]:
    """Directions of sketches on their first `num` principal axes, and each axis' share of variance.

    With X the directions (sketches over their norms) centred on their mean, as in the paper's
    Figure 1, and X X' = U L U', coordinates are U sqrt(L). The sign of an axis makes its coordinate
    of largest absolute value (the first of equals) positive. An axis beyond the rank of the rows is
    zero. A random projection preserves inner products, so these components are close to those of
    the gradients themselves. Axes differ between probes, so only shapes can be compared.
    """
    most = min(sketch_NK.shape)
    if not 1 <= num <= most:
        raise ConfigError(
            f"num={num}: sketches of shape {tuple(sketch_NK.shape)} have 1 to {most} components"
        )
    direction_NK = F.normalize(sketch_NK.double())
    centred_NK = direction_NK - direction_NK.mean(dim=0)
    value_N, vector_NN = torch.linalg.eigh(centred_NK @ centred_NK.T)
    value_C, vector_NC = value_N.flip(0)[:num], vector_NN.flip(1)[:, :num]
    largest_1C = vector_NC.abs().argmax(dim=0, keepdim=True)
    vector_NC = vector_NC * vector_NC.gather(0, largest_1C).sign()
    flat_C = value_C <= ROUNDING * len(sketch_NK)  # directions have length 1
    value_C = value_C.masked_fill(flat_C, 0)
    share_C = value_C / centred_NK.square().sum().clamp_min(ROUNDING)
    return vector_NC * value_C.sqrt(), share_C
