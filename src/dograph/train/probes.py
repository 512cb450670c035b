"""Probes: how the model perceives the same held-out rows at a few points of a run.

A probe holds the sketches of a fixed choice of validation rows under one projection, that of
(seed, step 0), whatever the run's own sketches do: probes of a run, and of runs with one seed and
model shape, can be compared. Beside them the domain of each row, and for each domain the rows
nearest its centroid. Probing changes nothing: no random number, no gradient, no mode.

Shapes: N probe rows, b rows at once, T tokens, K sketch, M domains.
"""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from dograph.choices import TWO_SIDED, Mode
from dograph.config import DEFAULT_DIM
from dograph.data.corpus import Corpus, even_blocks
from dograph.files import write_bytes, write_json
from dograph.models.loss import PerSampleLoss, uncompiled
from dograph.sketch.projection import Projection
from dograph.sketch.sketcher import Sketcher, sketch_rows
from dograph.train.run_dir import RunDirectory
from dograph.train.step import TrainStep

NEAREST = 8  # rows named for each domain
AT_ONCE = 16  # rows computed together where train.micro_batch_size does not say


class Probes:
    """Takes the probes of a run; none where the mixer needs no sketches."""

    def __init__(
        self, run: RunDirectory, corpus: Corpus, model: PerSampleLoss, step: TrainStep
    ) -> None:
        self.run, self.model, self.sources = run, model, corpus.sources
        self.config, self.world, self.mixer = step.config, step.world, step.mixer
        self.sketcher, train, probe = step.sketcher, step.config.train, step.config.probe
        wanted = probe.rows if self.sketcher else 0
        self.blocks = even_blocks(corpus, "validation", self.config.data.seq_len, wanted)
        fractions = probe.at if self.blocks else []
        self.steps = frozenset(round(fraction * train.steps) for fraction in fractions)
        # Checkpointed activations are kept in full here (layers recompute in training mode only).
        saving = train.activation_checkpointing
        self.at_once = 1 if saving else train.micro_batch_size or AT_ONCE

    def take(self, step: int) -> float:
        """Write the probe after `step` steps if one is due and not there yet; return the seconds.

        These are not training: speed is measured without them. Ranks beside the first one have
        nothing to do but where the model lies in shards: there all of them look.
        """
        main, shards = self.world.is_main, self.world.shards
        if step not in self.steps or not (main or shards):
            return 0.0
        due = int(main and not self.run.probe(step).is_file())
        if not (self.world.agree(due) if shards else due):
            return 0.0
        if self.world.device.type == "cuda":
            torch.cuda.synchronize()  # what still runs is the last step, not the probe
        start, how = time.monotonic(), self.config.sketch
        token_NT = torch.from_numpy(np.stack([block.tokens() for block in self.blocks]))
        # The run's kind of projection at step 0; taps cannot take dense ones.
        fixed = Projection(dim=DEFAULT_DIM, seed=self.config.seed)
        if how.projection in TWO_SIDED:
            fixed = Projection(dim=how.dim, kind=how.projection, seed=self.config.seed)
        loss_N, sketch_NK = self.sketches(token_NT, "twopass", fixed, 0)
        located = self.located(token_NT, sketch_NK, fixed, step)
        if main:
            file, places = self.run.probe(step), [block.place() for block in self.blocks]
            label_N = torch.full((len(places),), -1) if located is None else located[0].cpu()
            tensors = {
                "sketch": sketch_NK.bfloat16().cpu(),
                "source": torch.tensor([block.source for block in self.blocks], dtype=torch.int32),
                "label": label_N.to(torch.int32),
                "loss": loss_N.float().cpu(),
            }
            domains = None if located is None else nearest_rows(*located, places)
            about = {"step": step, "sources": self.sources, "rows": places, "domains": domains}
            self.run.probes.mkdir(exist_ok=True)
            write_bytes(file.with_suffix(".safetensors"), save(tensors))
            write_json(file, about)  # last: a probe whose JSON is there is whole
        return time.monotonic() - start

    def located(
        self, token_NT: Tensor, sketch_NK: Tensor, fixed: Projection, step: int
    ) -> tuple[Tensor, Tensor] | None:
        """label_N and closeness_NM in the mixer's domains as they stand, None if it has none."""
        if not self.mixer.has_domains:
            return None
        if self.mixer.domains_last:  # its centroids are in the space of the run's own sketches
            assert self.sketcher is not None
            own, run_mode = self.sketcher.projection, self.config.sketch.mode
            epoch = own.epoch(max(step - 1, 0))
            if run_mode == "topdown" or epoch or replace(own, refresh="never") != fixed:
                mode: Mode = "twopass" if run_mode == "full" else run_mode
                _, sketch_NK = self.sketches(token_NT, mode, own, epoch)
        finite_N1 = torch.isfinite(sketch_NK).all(dim=1, keepdim=True)
        return self.mixer.locate(torch.where(finite_N1, sketch_NK, 0.0), step)

    def sketches(
        self, token_NT: Tensor, mode: Mode, projection: Projection, step: int
    ) -> tuple[Tensor, Tensor]:
        """Losses and sketches of the rows; in mode head those of the output layer alone."""
        how, half = self.config.sketch, self.config.train.half
        sketcher = Sketcher(
            self.model,
            mode="head" if how.mode == "head" else mode,
            dim=projection.dim,
            projection=projection.kind,
            seed=projection.seed,
            refresh=projection.refresh,
            exclude=tuple(how.exclude),
            top_blocks=how.top_blocks,
            head=self.model.head,
        )
        with uncompiled():
            looks = sketch_rows(sketcher, token_NT, at_once=self.at_once, step=step, half=half)
            losses, sketches, _ = zip(*looks, strict=True)
        return torch.cat(losses), torch.cat(sketches)


def nearest_rows(
    label_N: Tensor, closeness_NM: Tensor, places: list[dict[str, str | int]]
) -> list[dict[str, Any]]:
    """For each domain, how many rows it has and which of them are nearest its centroid."""
    labels, domains = label_N.tolist(), []
    for domain, closeness_N in enumerate(closeness_NM.T.tolist()):
        own = [n for n, label in enumerate(labels) if label == domain]
        near = sorted(own, key=lambda n: (-closeness_N[n], n))[:NEAREST]
        ids = [{k: places[n][k] for k in ("source", "row", "document")} for n in near]
        domains.append({"domain": domain, "samples": len(own), "nearest": ids})
    return domains
