"""DoGraph from the output layer alone: a cross entropy that also sketches, then a stock backward.

    python examples/head_loop.py

The sketch is known before the backward, so this one fits anywhere: no tap, no second pass, and
the logits are never held all at once.

Shapes: B samples, T tokens, D width, K sketch, V vocabulary.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dograph import DoGraph, Signals, sketched_cross_entropy
from dograph.sketch.head import head_projection

VOCABULARY, WIDTH, LENGTH, BATCH, STEPS = 64, 64, 24, 20, 40


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(hidden_BTD)).unflatten(2, (3, 2, -1)).unbind(2)
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True
        )
        hidden_BTD = hidden_BTD + self.out(mixed.transpose(1, 2).flatten(2))
        return hidden_BTD + self.mlp(hidden_BTD)


class LanguageModel(nn.Module):
    """Tokens to hidden states: the output layer is left to the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, token_BT: Tensor) -> Tensor:
        place_T = torch.arange(token_BT.shape[1], device=token_BT.device)
        return self.blocks(self.token(token_BT) + self.position(place_T))


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of four permutations of the vocabulary, one noisier."""
    draw = torch.Generator().manual_seed(0)
    permutation_SV = torch.stack([torch.randperm(VOCABULARY, generator=draw) for _ in range(4)])
    noise_S = torch.tensor([0.0, 0.0, 0.1, 0.5])
    for _ in range(STEPS):
        source_B = torch.randint(4, (BATCH,), generator=draw)
        rows = [torch.randint(VOCABULARY, (BATCH,), generator=draw)]
        for _ in range(LENGTH):
            chance_B = torch.rand(BATCH, generator=draw)
            other_B = torch.randint(VOCABULARY, (BATCH,), generator=draw)
            next_B = permutation_SV[source_B, rows[-1]]
            rows.append(torch.where(chance_B < noise_S[source_B], other_B, next_B))
        token_BT = torch.stack(rows, dim=1)
        yield token_BT[:, :-1], token_BT[:, 1:]


def main() -> None:
    torch.manual_seed(0)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    projection = head_projection(model.head.weight)
    mixer = DoGraph("safe", num_domains=4)  # domains that persist, to look at

    # --- the loop
    for step, (input_BT, target_BT) in enumerate(batches()):
        loss_B, sketch_BK = sketched_cross_entropy(
            model(input_BT), model.head.weight, target_BT, projection
        )
        signals = Signals(
            step=step, num_samples=len(loss_B), device=loss_B.device, sketch_BK=sketch_BK
        )
        weight_B = mixer.weigh(signals)
        (weight_B * loss_B).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9:
            most = len(loss_B) * weight_B.max().item()  # 1 for equal weights
            print(f"step {step + 1} loss {loss_B.mean().item():.6f} most {most:.6f}")
    # ---

    report = mixer.report()
    for name in ("share", "weight"):
        print(f"domains/{name}:", [round(x, 3) for x in report[f"domains/{name}"].tolist()])


if __name__ == "__main__":
    main()
