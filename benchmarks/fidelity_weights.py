"""The domains and weights that a batch gets from sketches, and those it gets from gradients.

K-means does not agree with itself: other starts find other domains of the same gradients. So every
comparison is made with several clusterings of the exact Gram, and these are compared with each
other too: their distance is the floor that no sketch can get below.

Shapes: B samples, K sketch.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import fidelity_measures as measures
from dograph.domains.kmeans import KMeans
from dograph.domains.scopes import Scope
from dograph.mixers.dograph import DoGraph
from dograph.rng import key64
from dograph.types import Signals

REFERENCE_SEEDS = (1, 2, 3, 4)  # of the clusterings of the exact Gram
BEST_OF = 1024  # restarts of K-means from which the best objective is taken
# precision is the recipe `safe`, whose domains would outlast the batch, with domains of the batch:
# spherical K-means, and at least 0.9 effective samples.
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "paper": ("paper", {}),
    "variance": ("paper", {"objective": "variance"}),
    "precision": ("safe", {"scope": "batch"}),
}
PLAIN, SPHERICAL = "paper", "precision"  # recipes whose domains come from either K-means
FLOOR, CHANCE = "exact, other K-means seed", "equal weights, labels by chance"

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Weighed:
    """What a recipe makes of a batch."""

    weight_B: Tensor
    label_B: Tensor


class Given(KMeans):
    """Domains that are known already."""

    def __init__(self, label_B: Tensor, num_domains: int) -> None:
        super().__init__(num_domains, normalise=False, restarts=1, seed=0)
        self.label_B = label_B

    def __call__(self, point_BK: Tensor, step: int) -> Tensor:
        return self.label_B


def weigh(
    point_BK: Tensor, recipe: str, *, step: int, seed: int = 0, label_B: Tensor | None = None
) -> Weighed:
    """A recipe's weights of these points; with `label_B`, clusters are not looked for."""
    name, options = RECIPES[recipe]
    mixer = DoGraph(name, seed=seed, **options)
    if label_B is not None:
        mixer.scope = Scope(Given(label_B, mixer.options.num_domains))
    signals = Signals(step=step, num_samples=len(point_BK), sketch_BK=point_BK)
    weight_B = mixer.weigh(signals)
    assert mixer.domains is not None
    return Weighed(weight_B.double(), mixer.domains.label_B)


class Reference:
    """What the exact Gram of a batch says."""

    def __init__(self, gram_BB: Tensor, step: int) -> None:
        self.gram_BB, self.step = gram_BB, step
        point_BK = measures.embedding(gram_BB)
        self.weighed = {
            recipe: [weigh(point_BK, recipe, step=step, seed=s) for s in REFERENCE_SEEDS]
            for recipe in RECIPES
        }
        self.best = {recipe: self._best(point_BK, recipe) for recipe in (PLAIN, SPHERICAL)}

    def _best(self, point_BK: Tensor, recipe: str) -> float:
        num_domains = DoGraph(RECIPES[recipe][0]).options.num_domains
        generator = torch.Generator().manual_seed(key64(0, "best", self.step) >> 1)
        cluster = KMeans(num_domains, normalise=recipe == SPHERICAL, restarts=BEST_OF)
        label_B = cluster.cluster(point_BK, generator).label_B
        known = [label_B, *(w.label_B for w in self.weighed[recipe])]
        return min(self._objective(known_B, recipe) for known_B in known)

    def _objective(self, label_B: Tensor, recipe: str) -> float:
        return measures.clustering_objective(self.gram_BB, label_B, spherical=recipe == SPHERICAL)

    def excess(self, label_B: Tensor, recipe: str) -> float:
        """How much worse than the best known these labels are, on the exact Gram."""
        return self._objective(label_B, recipe) / self.best[recipe] - 1

    def judge(self, point_BK: Tensor) -> Metrics:
        """Everything that a sketch is compared by."""
        found = geometry(measures.gram(point_BK), self.gram_BB)
        for recipe, references in self.weighed.items():
            own = weigh(point_BK, recipe, step=self.step)
            given = [
                weigh(point_BK, recipe, step=self.step, label_B=reference.label_B).weight_B
                for reference in references
            ]
            found |= self._apart(recipe, [own.weight_B] * len(given), references)
            found |= self._apart(f"{recipe}_given", given, references)
            if recipe in (PLAIN, SPHERICAL):
                found[_excess(recipe)] = self.excess(own.label_B, recipe)
        return found

    def _apart(self, name: str, weights: list[Tensor], references: list[Weighed]) -> Metrics:
        """Means over the clusterings of the exact Gram."""
        pairs = [(w, r.weight_B) for w, r in zip(weights, references, strict=True)]
        distance = [measures.weight_distance(w, r) for w, r in pairs]
        cosine = [measures.update_cosine(w, r, self.gram_BB) for w, r in pairs]
        return {f"l1_{name}": _mean(distance), f"cosine_{name}": _mean(cosine)}

    def floor(self) -> Metrics:
        """The exact Gram against itself under other seeds of K-means."""
        found: Metrics = {}
        for recipe, references in self.weighed.items():
            # Each against the one before it: all seeds are as good as each other.
            others = [references[-1], *references[:-1]]
            found |= self._apart(recipe, [other.weight_B for other in others], references)
            if recipe in (PLAIN, SPHERICAL):
                found[_excess(recipe)] = _mean([self.excess(r.label_B, recipe) for r in references])
        return found

    def chance(self) -> Metrics:
        """Labels dealt out anew, and weights that are all alike: how bad bad is."""
        found: Metrics = {}
        order_B = torch.randperm(
            len(self.gram_BB),
            generator=torch.Generator().manual_seed(key64(0, "chance", self.step) >> 1),
        )
        equal_B = torch.full_like(self.gram_BB[0], 1 / len(self.gram_BB))
        for recipe, references in self.weighed.items():
            found |= self._apart(recipe, [equal_B] * len(references), references)
            if recipe in (PLAIN, SPHERICAL):
                dealt = [self.excess(r.label_B[order_B], recipe) for r in references]
                found[_excess(recipe)] = _mean(dealt)
        return found


def geometry(gram_BB: Tensor, true_BB: Tensor) -> Metrics:
    """How far one Gram is from another: distances, norms, inner products."""
    pair = measures.pair_distances(gram_BB), measures.pair_distances(true_BB)
    distance_std, distance_max = measures.ratio_error(*pair)
    norm_std, norm_max = measures.ratio_error(gram_BB.diagonal(), true_BB.diagonal())
    return {
        "distance_std": distance_std,
        "distance_max": distance_max,
        "square_norm_std": norm_std,
        "square_norm_max": norm_max,
        "scale": float(gram_BB.trace() / true_BB.trace()),
        "gram_correlation": measures.gram_correlation(gram_BB, true_BB),
    }


def same_projection(point_BK: Tensor, wide_BK: Tensor, step: int) -> Metrics:
    """A sketch against the same one in higher precision: K-means makes the same draws for both."""
    found = geometry(measures.gram(point_BK), measures.gram(wide_BK))
    for recipe in RECIPES:
        own, other = (weigh(point, recipe, step=step) for point in (point_BK, wide_BK))
        found[f"l1_{recipe}"] = measures.weight_distance(own.weight_B, other.weight_B)
        given = weigh(point_BK, recipe, step=step, label_B=other.label_B).weight_B
        found[f"l1_{recipe}_given"] = measures.weight_distance(given, other.weight_B)
    return found


def judge_batch(
    gram_BB: np.ndarray,
    sketches: list[tuple[str, np.ndarray]],
    step: int,
    precision_pair: tuple[str, np.ndarray, np.ndarray] | None,
) -> list[tuple[str, Metrics]]:
    """Every row of the table for one batch; arrays, so that it can run in another process."""
    torch.set_num_threads(1)
    reference = Reference(torch.from_numpy(gram_BB), step)
    found = [(row, reference.judge(torch.from_numpy(sketch_BK))) for row, sketch_BK in sketches]
    if precision_pair is not None:
        row, sketch_BK, wide_BK = precision_pair
        pair = torch.from_numpy(sketch_BK), torch.from_numpy(wide_BK)
        found.append((row, same_projection(*pair, step)))
    return [*found, (FLOOR, reference.floor()), (CHANCE, reference.chance())]


def _excess(recipe: str) -> str:
    return "excess" if recipe == PLAIN else "excess_spherical"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
