"""Probes read back from a run's directory.

Shapes: N rows, K sketch, S sources.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dograph.errors import RunError
from dograph.train.run_dir import RunDirectory


@dataclass(frozen=True, slots=True)
class Probe:
    """How a model perceived its probe rows after `step` steps."""

    step: int
    sources: list[str]
    rows: list[dict[str, Any]]  # where each row is in the corpus
    sketch_NK: Tensor  # float32, all finite
    source_N: Tensor  # int64, index into sources
    label_N: Tensor  # int64: the mixer's domains, -1 while it had none
    loss_N: Tensor  # nats

    def keeping(self, least: int) -> tuple["Probe", list[str]]:
        """The rows of sources with at least `least` of them, and the names of the other sources."""
        count_S = torch.bincount(self.source_N, minlength=len(self.sources))
        kept_S = count_S >= least
        row_N = kept_S[self.source_N]
        kept = Probe(
            step=self.step,
            sources=[s for s, keep in zip(self.sources, kept_S.tolist(), strict=True) if keep],
            rows=[row for row, keep in zip(self.rows, row_N.tolist(), strict=True) if keep],
            sketch_NK=self.sketch_NK[row_N],
            source_N=(kept_S.cumsum(dim=0) - 1)[self.source_N[row_N]],
            label_N=self.label_N[row_N],
            loss_N=self.loss_N[row_N],
        )
        return kept, [source for source in self.sources if source not in kept.sources]


def probed_steps(run: Path) -> list[int]:
    """After how many steps a run has a whole probe, ascending; an error where it has none."""
    directory = RunDirectory.open(run)
    names = (path.stem for path in directory.probes.glob("step-*.json"))
    steps = sorted(int(name[5:]) for name in names if name[5:].isdecimal())
    if not steps:
        config = directory.config()
        raise RunError(
            f"{run} has no probes (mixer.name={config.mixer.name}, probe.rows={config.probe.rows}, "
            f"probe.at={list(config.probe.at)}). A run is probed where its mixer needs sketches, "
            "as dograph does, probe.rows is above 0 and the corpus has validation text: train one"
        )
    return steps


def read_probe(run: Path, step: int) -> Probe:
    """The probe that a run took after `step` steps, as it lies on disk."""
    steps, file = probed_steps(run), RunDirectory(run).probe(step)
    if step not in steps:
        raise RunError(f"{run} has no probe of step {step}; it has those of {steps}")
    about, beside = json.loads(file.read_text()), file.with_suffix(".safetensors")
    try:
        tensors = load_file(beside)
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"{beside} cannot be read ({error}); to go on without this probe, remove {file}"
        ) from error
    sketch_NK = tensors["sketch"].float()
    finite_N = sketch_NK.isfinite().all(dim=1)
    if not bool(finite_N.all()):
        raise RunError(
            f"{int((~finite_N).sum())} of {len(finite_N)} sketches in {beside} are not finite: the "
            f"run had diverged by then; to go on without this probe, remove {file}"
        )
    return Probe(
        step=step,
        sources=about["sources"],
        rows=about["rows"],
        sketch_NK=sketch_NK,
        source_N=tensors["source"].long(),
        label_N=tensors["label"].long(),
        loss_N=tensors["loss"],
    )
