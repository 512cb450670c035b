"""Domain weights applied to sampling: draw more from strata that contain the heavy domains.

q_s = sum_j w_j n_js / n_j, with n_js the samples of stratum s seen in domain j (they decay with
the scope's half-life), limited to `remix_min_fraction` of a stratum's initial share and to
`max_epochs` repeats. Unlike weights in the loss, sampling keeps all samples effective. Objectives
get the shares of domains under the initial mixture; otherwise weights that grow with a share would
reinforce themselves with every new mixture.

Shapes: M domains, S strata.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dograph.errors import ConfigError
from dograph.mixers.base import Lab
from dograph.mixtures.proposals import bounded
from dograph.types import Domains, Mixture

if TYPE_CHECKING:
    from dograph.mixers.dograph import DoGraphOptions


class Remixing:
    """Counts of strata in domains, and the mixtures computed from them."""

    def __init__(self, options: "DoGraphOptions") -> None:
        self.options = options
        self.decay = 0.5 ** (1 / options.half_life)
        self.tokens: dict[str, int] = {}
        self.first: dict[str, float] = {}  # share of each stratum in the initial mixture
        self.budget = 0
        self.count_MS: Tensor | None = None

    @property
    def active(self) -> bool:
        return self.options.apply_weights_to == "sampling" and bool(self.tokens)

    def open(self, lab: Lab, first: Mixture) -> None:
        self.tokens, self.first, self.budget = dict(lab.strata), {}, lab.budget
        for name, tokens in lab.strata.items():
            source = name if name in lab.tokens else name.rpartition("/")[0]
            share = first.weights.get(source, 0.0) * tokens / max(lab.tokens[source], 1)
            self.first[name] = share

    def at_first(self, domains: Domains) -> Domains:
        """The domains with the shares that they have under the initial mixture.

        An error if weights are to be applied to sampling and no mixture was planned.
        """
        if self.options.apply_weights_to == "loss":
            return domains
        if not self.tokens:
            raise ConfigError(
                "mixer.apply_weights_to=sampling changes a mixture over strata, and none was "
                "planned: call mixer.plan(lab) before the first step and draw by what "
                "mixer.remix(signals) returns, or set mixer.apply_weights_to=loss"
            )
        if self.count_MS is None:
            return domains
        first_S = torch.tensor(list(self.first.values())).to(self.count_MS)
        seen_S = self.count_MS.sum(dim=0)
        times_S = torch.where(seen_S > 0, first_S / seen_S.clamp_min(1e-12), 0.0)
        count_M = (self.count_MS @ times_S).to(domains.share_M)
        counted_M = domains.present_M & (count_M > 0)  # a new domain may have none yet
        share_M = torch.where(counted_M, count_M / count_M.sum().clamp_min(1e-12), domains.share_M)
        return replace(domains, share_M=share_M)

    def add(self, label_B: Tensor, stratum_B: Tensor | None) -> None:
        """Count a batch, if weights are applied to sampling."""
        if not self.active or stratum_B is None:
            return
        shape = (self.options.num_domains, len(self.tokens))
        domain_M, stratum_S = (torch.arange(n, device=label_B.device) for n in shape)
        member_MB = (label_B == domain_M[:, None]).float()
        added_MS = member_MB @ (stratum_B[:, None] == stratum_S).float()
        before = added_MS * 0 if self.count_MS is None else self.count_MS.to(label_B.device)
        self.count_MS = self.decay * before + added_MS

    def mixture(self, step: int, weight_M: Tensor | None) -> Mixture | None:
        """The mixture after `step`, every `remix_every` steps; counts are adjusted to it."""
        due = (step + 1) % self.options.remix_every == 0
        if not (due and self.active) or weight_M is None or self.count_MS is None:
            return None
        count_MS = self.count_MS.double()
        inside_MS = count_MS / count_MS.sum(dim=1, keepdim=True).clamp_min(1e-12)
        asked_S = (weight_M.double() @ inside_MS).cpu().numpy()
        tokens_S = np.array(list(self.tokens.values()), dtype=np.float64)
        share_S = bounded(
            asked_S / asked_S.sum(),
            low_S=self.options.remix_min_fraction * np.array(list(self.first.values())),
            high_S=self.options.max_epochs * tokens_S / max(self.budget, 1),
        )
        seen_S = count_MS.sum(dim=0).clamp_min(1e-12)
        moved_S = torch.from_numpy(share_S).to(seen_S) * seen_S.sum() / seen_S
        self.count_MS = (count_MS * moved_S).float()
        return Mixture.normalised(dict(zip(self.tokens, share_S.tolist(), strict=True)))

    def state_dict(self) -> dict[str, Any]:
        counts = {} if self.count_MS is None else {"count_MS": self.count_MS}
        return {"tokens": self.tokens, "first": self.first, "budget": self.budget, **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.tokens, self.first = dict(state["tokens"]), dict(state["first"])
        self.budget = state["budget"]
        self.count_MS = state.get("count_MS")
