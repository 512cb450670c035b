"""A mixer of somebody's own that groups samples, named by module:Class. It knows no DoGraph.

Shapes: B samples, b those of a micro-batch, K sketch, M domains.
"""

import torch

from dograph.domains.graph import build_graph
from dograph.domains.partition import partition
from dograph.mixers.base import Mixer

NUM = 4


class Quadrants(Mixer):
    """A sample's domain is the quadrant of the first two numbers of its sketch."""

    needs = frozenset({"sketch", "source"})
    has_domains = True

    def __init__(self, strength=0.5):
        self.strength = strength
        self.share_M = torch.full((NUM,), 1 / NUM)  # of the samples so far
        self.last = None

    def locate(self, sketch_BK, step):
        x_B, y_B = sketch_BK[:, 0], sketch_BK[:, 1]
        closeness_BM = torch.stack([-x_B - y_B, x_B - y_B, y_B - x_B, x_B + y_B], dim=1)
        return 2 * (y_B > 0).long() + (x_B > 0).long(), closeness_BM

    def weigh_lagged(self, signals, num_samples):
        label_b, _ = self.locate(signals.sketch_BK, signals.step)
        times_M = 1 - self.strength + self.strength / NUM / self.share_M
        return times_M[label_b] / num_samples

    def weigh(self, signals):
        weight_B = self.weigh_lagged(signals, signals.num_samples)
        weight_B = weight_B / weight_B.sum()
        self.observe(signals, weight_B)
        return weight_B

    def observe(self, signals, weight_B):
        label_B, _ = self.locate(signals.sketch_BK, signals.step)
        domains = partition(signals.sketch_BK, label_B, NUM)
        weight_M = torch.bincount(label_B, weight_B, minlength=NUM).float()
        self.last = (domains, weight_M, label_B, signals.source_B)
        self.share_M = 0.9 * self.share_M + 0.1 * domains.share_M

    def graph(self, sources, step):
        if self.last is None:
            return None
        domains, weight_M, label_B, source_B = self.last
        source_B = torch.zeros_like(label_B) if source_B is None else source_B
        return build_graph(domains, weight_M, label_B, source_B, sources, step=step)

    def report(self):
        if self.last is None:
            return {}
        domains, weight_M, label_B, _ = self.last
        return {
            "samples/domain": label_B,
            "domains/weight": weight_M,
            "domains/share": domains.share_M,
            "domains/samples": torch.bincount(label_B, minlength=NUM),
            "domains/gradient_norm": domains.square_M.sqrt(),
            "domains/mean_norm": domains.gram_MM.diagonal().clamp_min(0).sqrt(),
        }

    def state_dict(self):
        return {"share": self.share_M}

    def load_state_dict(self, state):
        self.share_M = state["share"]
