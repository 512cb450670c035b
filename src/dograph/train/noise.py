"""The gradient noise scale, from the sketches of single samples.

With s_i the sketches of B samples, m = |mean s|^2 and q = mean |s_i|^2,

    G2 = (B m - q) / (B - 1)      unbiased for |E s|^2, the squared norm of the true gradient
    S2 = (q - m) B / (B - 1)      unbiased for E |s - E s|^2, the variance of one sample's gradient

and S2 / G2 is the simple noise scale of McCandlish et al. (2018): a mean over so many samples has
as much noise as signal. Both are averaged over the run first, since G2 of one batch may be
negative. Samples count as drawn independently and with equal weights.

Shapes: B samples, K sketch, R rows: the whole batch, then each source.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dograph.config import SketchConfig
from dograph.errors import ConfigError
from dograph.mixers.base import LateReport, Metrics, Report
from dograph.stats import t_quantile
from dograph.types import Signals

# An average over n samples gives sample k the weight k^(POWER - 1): whatever the batch sizes, about
# the last quarter of all samples counts, and the noisy start of a run is forgotten.
POWER = 4
LEAST_BATCHES = 3  # effective ones, for an interval
SCALE, LOW, HIGH = "scale_samples", "scale_low_samples", "scale_high_samples"


class NoiseScale(nn.Module):
    """Averages G2 and S2 of all samples and of each source; only its report waits for the device.

    `sources` are the names of the indices in `source_B`. The state is a buffer, for a resumed run.
    """

    state_R9: Tensor

    def __init__(self, sources: Sequence[str] = ()) -> None:
        super().__init__()
        self.sources = list(sources)
        # Of each row: samples seen; averages of G2 and S2; their last values; the covariance of the
        # averages (GG, GS, SS); the sum of the squared weights of the batches.
        zero_R9 = torch.zeros(1 + len(self.sources), 9, dtype=torch.float64)
        self.register_buffer("state_R9", zero_R9)

    def observe(self, signals: Signals, source_B: Tensor | None = None) -> None:
        """Add the samples of one step; their sources are those of the signals if not given."""
        if (sketch_BK := signals.sketch_BK) is None:
            raise ConfigError("the noise scale is measured from sketches; these signals have none")
        source_B = signals.source_B if source_B is None else source_B
        if self.sources and source_B is None:
            raise ConfigError(f"give the sources of the samples, indices into {self.sources}")
        with torch.no_grad(), torch.autocast(sketch_BK.device.type, enabled=False):
            self._add(*self._moments(sketch_BK.float(), source_B))

    def _moments(self, sketch_BK: Tensor, source_B: Tensor | None) -> tuple[Tensor, Tensor]:
        """Number of samples, and G2 and S2, of the batch and of each source in it."""
        member_RB = sketch_BK.new_ones(1, len(sketch_BK))
        if source_B is not None and self.sources:
            source_S1 = torch.arange(len(self.sources), device=sketch_BK.device)[:, None]
            own_SB = source_B.to(sketch_BK.device, non_blocking=True) == source_S1
            member_RB = torch.cat([member_RB, own_SB.to(member_RB)])
        count_R = member_RB.sum(dim=1).double()
        least_R = count_R.clamp_min(2)  # of fewer samples the result is not used
        mean_square_R = (member_RB @ sketch_BK).double().square().sum(dim=1) / least_R**2
        square_R = (member_RB @ sketch_BK.square().sum(dim=1)).double() / least_R
        signal_R = (least_R * mean_square_R - square_R) / (least_R - 1)
        noise_R = (square_R - mean_square_R) * least_R / (least_R - 1)
        return count_R, torch.stack([signal_R, noise_R], dim=1)

    def _add(self, count_R: Tensor, new_R2: Tensor) -> None:
        state_R9 = self.state_R9 = self.state_R9.to(count_R.device)
        seen_R, mean_R2, last_R2 = state_R9[:, 0], state_R9[:, 1:3], state_R9[:, 3:5]
        usable_R = torch.isfinite(new_R2).all(dim=1) & (count_R >= 2)
        new_R2 = torch.where(usable_R[:, None], new_R2, last_R2)
        after_R = seen_R + count_R * usable_R
        weight_R1 = (usable_R * (1 - (seen_R / after_R.clamp_min(1)) ** POWER))[:, None]
        mean_R2 = mean_R2 + weight_R1 * (new_R2 - mean_R2)
        # Half the squared difference of successive batches: a slow change adds nothing to it.
        g_R, s_R = torch.where(seen_R[:, None] > 0, new_R2 - last_R2, 0.0).unbind(dim=1)
        product_R4 = torch.stack([g_R * g_R, g_R * s_R, s_R * s_R, 2 + 0 * g_R], dim=1) / 2
        spread_R4 = (1 - weight_R1) ** 2 * state_R9[:, 5:] + weight_R1**2 * product_R4
        self.state_R9 = torch.cat([after_R[:, None], mean_R2, new_R2, spread_R4], dim=1)

    def report(self) -> Report:
        """`noise/scale_samples` with its 95 % interval, and by source; nothing while G2 <= 0."""
        return LateReport({"state": self.state_R9}, self._metrics)

    def _metrics(self, held: dict[str, Tensor]) -> Metrics:
        rows = [noise_scale(*row) for row in held["state"].tolist()]
        metrics: dict[str, Any] = {f"noise/{name}": value for name, value in rows[0].items()}
        for name in (SCALE, LOW, HIGH):
            own = zip(self.sources, rows[1:], strict=True)
            if by_source := {source: row[name] for source, row in own if name in row}:
                metrics[f"noise/*/{name}"] = by_source
        return metrics


def measured_parameters(sketch: SketchConfig) -> str:
    """The parameters whose noise is measured, in words."""
    parts = {"head": "the output layer", "topdown": f"the top {sketch.top_blocks} blocks and above"}
    left_out = f" without {', '.join(sketch.exclude)}" if sketch.exclude else ""
    return parts.get(sketch.mode, "all parameters") + left_out


def noise_scale(
    seen: float, signal: float, noise: float, _: float, __: float, *spread: float
) -> dict[str, float]:
    """S2 / G2 with the ends of its interval by Fieller's theorem; no upper end if G2 may be 0."""
    if seen == 0 or signal <= 0:
        return {}
    scale, (gg, gs, ss, weight_square) = {SCALE: noise / signal}, spread
    batches = 1 / weight_square
    if batches < LEAST_BATCHES:
        return scale
    # All r with (S2 - r G2)^2 <= t^2 Var(S2 - r G2): a r^2 + b r + c <= 0.
    t_square = t_quantile(batches - 1) ** 2
    a, c = signal**2 - t_square * gg, noise**2 - t_square * ss
    half = signal * noise - t_square * gs  # -b / 2
    if (inside := half**2 - a * c) < 0:
        return scale
    root = half + math.sqrt(inside)
    scale[LOW] = max(c / root, 0.0) if root > 0 else 0.0
    return scale | ({HIGH: root / a} if a > 0 else {})
