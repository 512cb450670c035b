"""The watch: names samples with far too large gradients, and steps in which training spikes.

A sample is flagged if |s_i| > TIMES m, with s_i its sketch and m the running median of |s|. Text of
repeated n-grams is found by this and not by its loss. Its share of the step's gradient,

    <s_i, mean s> / (B |mean s|^2),

sums to 1 over the batch. A step is a spike if its loss or its gradient norm has a robust z-score
above SPIKE: (x - median) / (1.4826 MAD) over the steps before. Nothing here waits for the device.

Shapes: B samples, K sketch, W recent steps.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dograph.data.corpus import Corpus
from dograph.data.sampler import sample_place, sample_text
from dograph.errors import ConfigError
from dograph.records import checked_step
from dograph.types import SampleIds, Signals

TIMES = 3.0  # of the running median
SPIKE = 6.0  # robust standard deviations
RECENT, LEAST = 50, 20  # steps of medians and z-scores, and those needed for a z-score
MOST_IN_A_ROW = 5  # updates skipped: if spikes go on, they are the new state of things
KEPT = 200  # steps whose samples are kept
NAMED, SHOWN = 10, 5  # samples of a spike that are recorded, and that are shown
PREVIEW = 60  # characters of a sample's text
CAUSES, COLUMNS = ("loss", "gradient norm"), ("norm", "share", "loss_nats")


@dataclass(frozen=True, slots=True)
class WatchedStep:
    """What was seen in one step, still on the device."""

    step: int
    table_B3: Tensor  # |s_i| over the running median; share of the gradient; loss
    z_2: Tensor  # robust z-scores of the loss and of the gradient norm
    skip: Tensor  # (): 1.0 if the update is to be skipped, else 0.0
    ids: Sequence[Any] | Tensor  # of the samples, as given

    @property
    def flagged_B(self) -> Tensor:
        """Which samples have far too large gradients."""
        return self.table_B3[:, 0] > TIMES

    def row(self) -> dict[str, Any] | None:
        """What is recorded of the step, None if nothing; this waits for the device.

        The samples are those flagged and, of a spike, those of the largest shares; largest first.
        """
        table, z_2 = self.table_B3.tolist(), self.z_2.tolist()
        causes = {cause: round(z, 2) for cause, z in zip(CAUSES, z_2, strict=True) if z > SPIKE}
        order = sorted(range(len(table)), key=lambda i: -table[i][1])
        kept = [i for n, i in enumerate(order) if table[i][0] > TIMES or (causes and n < NAMED)]
        samples = [{"sample": i, **dict(zip(COLUMNS, table[i], strict=True))} for i in kept]
        facts = {"step": self.step + 1, "spike": causes, "skipped": bool(self.skip)}
        return facts | {"samples": samples} if samples else None


class SampleWatch(nn.Module):
    """Watches the samples of a run; `ring` has its last 200 steps.

    The other state is in buffers, for a resumed run; the ring starts anew.
    """

    recent_3W: Tensor  # of recent steps, the newest last: loss, gradient norm, median sketch norm
    in_a_row: Tensor  # spikes without a calm step between them

    def __init__(self, *, skips: bool = False) -> None:
        """`skips`: whether updates of spikes are to be skipped."""
        super().__init__()
        self.skips, self.ring = skips, deque[WatchedStep](maxlen=KEPT)
        self.register_buffer("recent_3W", torch.full((3, RECENT), torch.nan, dtype=torch.float64))
        self.register_buffer("in_a_row", torch.zeros(()))

    def observe(
        self,
        signals: Signals,
        loss_B: Tensor | None = None,
        grad_norm: Tensor | None = None,
        ids: Sequence[Any] | Tensor = (),
    ) -> WatchedStep:
        """Look at the samples of a step, between its backward and its update.

        Losses are those of the signals if not given, and the gradient norm that of the mean sketch.
        """
        loss_B = signals.loss_B if loss_B is None else loss_B
        if signals.sketch_BK is None or loss_B is None:
            raise ConfigError("the watch needs the sketches and losses of the samples")
        device = signals.sketch_BK.device
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            sketch_BK = signals.sketch_BK.float()
            norm_B, mean_K = sketch_BK.norm(dim=1), sketch_BK.mean(dim=0)
            share_B = sketch_BK @ mean_K / (len(sketch_BK) * mean_K.square().sum())
            grad_norm = mean_K.norm() if grad_norm is None else grad_norm
            past_3W, self.in_a_row = self.recent_3W.to(device), self.in_a_row.to(device)
            now_3 = torch.stack([loss_B.mean(), grad_norm, middle(norm_B)]).double()
            z_2 = robust_z(now_3[:2], past_3W[:2])
            self.recent_3W = torch.cat([past_3W[:, 1:], now_3[:, None]], dim=1)
            ratio_B = norm_B / middle(self.recent_3W[2]).float()
            self.in_a_row = torch.where((z_2 > SPIKE).any(), self.in_a_row + 1, 0.0)
            is_skipped = (self.in_a_row > 0) & (self.in_a_row <= MOST_IN_A_ROW)
            skip = is_skipped.float() if self.skips else torch.zeros_like(self.in_a_row)
            table_B3 = torch.stack([ratio_B, share_B, loss_B.float()], dim=1).nan_to_num()
        self.ring.append(WatchedStep(signals.step, table_B3, z_2, skip, ids))
        return self.ring[-1]


def middle(value_XW: Tensor) -> Tensor:
    """The lower median of the finite values of the last axis; NaN if there are none."""
    known_XW = torch.where(torch.isfinite(value_XW), value_XW, torch.nan)
    return known_XW.nanquantile(0.5, dim=-1, interpolation="lower")


def robust_z(now_X: Tensor, past_XW: Tensor) -> Tensor:
    """How many robust standard deviations above the median of the past; 0 while that is short."""
    median_X = middle(past_XW)
    deviation_X = 1.4826 * middle((past_XW - median_X[:, None]).abs())
    z_X = (now_X - median_X) / deviation_X.clamp_min(1e-3 * median_X.abs())
    known_X = torch.isfinite(past_XW).sum(dim=1) >= LEAST
    return torch.where(known_X & torch.isfinite(z_X), z_X, 0.0)


def watched_row(row: dict[str, Any]) -> dict[str, Any]:
    """A line of watch.jsonl; a value that is missing or no number raises an error."""
    samples = [
        {"sample": int(own["sample"])} | {name: float(own[name]) for name in COLUMNS}
        for own in row["samples"]
    ]
    facts = {"step": checked_step(row), "spike": dict(row["spike"])}
    return facts | {"skipped": bool(row["skipped"]), "samples": samples}


def spike_lines(row: Mapping[str, Any], corpus: Corpus, ids: SampleIds, seq_len: int) -> list[str]:
    """A recorded spike in words, and its samples by share, with their document and text."""
    causes = ", ".join(f"{cause} (z {z:.1f})" for cause, z in row["spike"].items())
    done = "; its update was skipped" if row["skipped"] else ""
    lines = [f"step {row['step']}: spike of {causes}{done}. Samples by share of the gradient:"]
    for sample in row["samples"][:SHOWN]:
        place = sample_place(corpus, ids, sample["sample"])
        text = " ".join((sample_text(corpus, ids, sample["sample"], seq_len) or "").split())
        size = f"{sample['share']:.0%}, norm {sample['norm']:.1f} medians"
        lines.append(f"  {size}, loss {sample['loss_nats']:.2f}, {place}: {text[:PREVIEW]}")
    return lines
