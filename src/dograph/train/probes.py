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

from dograph.config import DEFAULT_DIM, TWO_SIDED, Mode, RunConfig
from dograph.data.corpus import Corpus, even_blocks
from dograph.files import write_bytes, write_json
from dograph.models.loss import PerSampleLoss, uncompiled
from dograph.sketch.projection import Projection
from dograph.sketch.sketcher import Sketcher, sketch_rows
from dograph.train.run_dir import RunDirectory
from dograph.train.step import SignalCollector

NEAREST = 8  # rows named for each domain
AT_ONCE = 16  # rows computed together where train.micro_batch_size does not say


def probe_steps(config: RunConfig) -> list[int]:
    """After how many steps a run is probed, ascending."""
    return sorted({round(fraction * config.train.steps) for fraction in config.probe.at})


class Probes:
    """Takes the probes of a run; none where the mixer needs no sketches."""

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        corpus: Corpus,
        model: PerSampleLoss,
        collector: SignalCollector,
    ) -> None:
        self.config, self.run, self.model, self.collector = config, run, model, collector
        self.sources = corpus.sources
        wanted = config.probe.rows if collector.sketcher else 0
        self.blocks = even_blocks(corpus, "validation", config.data.seq_len, wanted)
        self.steps = frozenset(probe_steps(config) if self.blocks else [])
        # Checkpointed activations are kept in full here (layers recompute in training mode only).
        saving = config.train.activation_checkpointing
        self.at_once = 1 if saving else config.train.micro_batch_size or AT_ONCE

    def take(self, step: int, *, main: bool = True) -> float:
        """Write the probe after `step` steps if one is due and not there yet; return the seconds.

        These are not training: speed is measured without them. Ranks beside the `main` one have
        nothing to do but where the model lies in shards: there all of them look.
        """
        if step not in self.steps or not (main or self.collector.world.shards):
            return 0.0
        due = int(main and not self.run.probe(step).is_file())
        if not (self.collector.world.agree(due) if self.collector.world.shards else due):
            return 0.0
        if self.collector.world.device.type == "cuda":
            torch.cuda.synchronize()  # what still runs is the last step, not the probe
        start = time.monotonic()
        self._write(step, main=main)
        return time.monotonic() - start

    def _write(self, step: int, *, main: bool) -> None:
        file = self.run.probe(step)
        token_NT = torch.from_numpy(np.stack([block.tokens() for block in self.blocks]))
        fixed = self.fixed_projection()
        loss_N, sketch_NK = self.sketches(token_NT, "twopass", fixed, 0)
        found = self.located(token_NT, sketch_NK, fixed, step)
        if not main:
            return
        label_N = torch.full((len(self.blocks),), -1) if found is None else found[0].cpu()
        places = [block.place() for block in self.blocks]
        tensors = {
            "sketch": sketch_NK.bfloat16().cpu(),
            "source": torch.tensor([block.source for block in self.blocks], dtype=torch.int32),
            "label": label_N.to(torch.int32),
            "loss": loss_N.float().cpu(),
        }
        self.run.probes.mkdir(exist_ok=True)
        write_bytes(file.with_suffix(".safetensors"), save(tensors))
        # Last: a probe whose JSON is there is whole.
        write_json(
            file,
            {
                "step": step,
                "sources": self.sources,
                "rows": places,
                "domains": None if found is None else nearest_rows(*found, places),
            },
        )

    def fixed_projection(self) -> Projection:
        """The run's kind of projection at step 0; taps cannot take dense ones."""
        how = self.config.sketch
        if how.projection not in TWO_SIDED:
            return Projection(dim=DEFAULT_DIM, seed=self.config.seed)
        return Projection(dim=how.dim, kind=how.projection, seed=self.config.seed)

    def located(
        self, token_NT: Tensor, sketch_NK: Tensor, fixed: Projection, step: int
    ) -> tuple[Tensor, Tensor] | None:
        """label_N and closeness_NM in the mixer's domains as they stand, None if it has none."""
        mixer, how = self.collector.mixer, self.config.sketch
        if not mixer.has_domains:
            return None
        if mixer.domains_last:  # its centroids are in the space of the run's own sketches
            assert self.collector.sketcher is not None
            own = self.collector.sketcher.projection
            epoch = own.epoch(max(step - 1, 0))
            if how.mode == "topdown" or epoch or replace(own, refresh="never") != fixed:
                mode: Mode = "twopass" if how.mode == "full" else how.mode
                _, sketch_NK = self.sketches(token_NT, mode, own, epoch)
        finite_N1 = torch.isfinite(sketch_NK).all(dim=1, keepdim=True)
        return mixer.locate(torch.where(finite_N1, sketch_NK, 0.0), step)

    def sketches(
        self, token_NT: Tensor, mode: Mode, projection: Projection, step: int
    ) -> tuple[Tensor, Tensor]:
        """Losses and sketches of the rows; in mode head those of the output layer alone."""
        sketcher = Sketcher(
            self.model,
            mode="head" if self.config.sketch.mode == "head" else mode,
            dim=projection.dim,
            projection=projection.kind,
            seed=projection.seed,
            refresh=projection.refresh,
            exclude=tuple(self.config.sketch.exclude),
            top_blocks=self.config.sketch.top_blocks,
            head=self.model.head,
        )
        half = self.config.train.half
        with uncompiled():
            looks = sketch_rows(sketcher, token_NT, at_once=self.at_once, step=step, half=half)
            parts = [(loss_b, sketch_bK) for loss_b, sketch_bK, _ in looks]
        return torch.cat([loss_b for loss_b, _ in parts]), torch.cat([s_bK for _, s_bK in parts])


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
