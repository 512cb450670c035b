"""DoGraph in a training loop of your own, in one forward and one backward.

    python examples/one_backward.py
    torchrun --nproc-per-node 2 examples/one_backward.py

`sketcher.backward` takes the place of `loss.backward()`. `two_passes.py` shows the other ending,
which keeps your own backward.

Shapes: B samples of this rank, T tokens, D width, V vocabulary.
"""

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dograph import DoGraph, Sketcher

VOCABULARY, WIDTH, LENGTH, WORLD_BATCH, STEPS = 64, 64, 24, 20, 40


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
    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, token_BT: Tensor) -> Tensor:
        place_T = torch.arange(token_BT.shape[1], device=token_BT.device)
        return self.head(self.blocks(self.token(token_BT) + self.position(place_T)))


def batches(rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's rows of each world batch: four permutations of the vocabulary, one noisier."""
    draw = torch.Generator().manual_seed(0)
    permutation_SV = torch.stack([torch.randperm(VOCABULARY, generator=draw) for _ in range(4)])
    noise_S = torch.tensor([0.0, 0.0, 0.1, 0.5])
    for _ in range(STEPS):
        source_B = torch.randint(4, (WORLD_BATCH,), generator=draw)
        rows = [torch.randint(VOCABULARY, (WORLD_BATCH,), generator=draw)]
        for _ in range(LENGTH):
            chance_B = torch.rand(WORLD_BATCH, generator=draw)
            other_B = torch.randint(VOCABULARY, (WORLD_BATCH,), generator=draw)
            next_B = permutation_SV[source_B, rows[-1]]
            rows.append(torch.where(chance_B < noise_S[source_B], other_B, next_B))
        token_BT = torch.stack(rows, dim=1).chunk(world)[rank]
        yield token_BT[:, :-1], token_BT[:, 1:]


def main() -> None:
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(0)
    model: nn.Module = LanguageModel()
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sketcher = Sketcher(model, mode="full")
    mixer = DoGraph("safe", num_domains=4)  # domains that persist, to look at

    # --- the loop
    for step, (input_BT, target_BT) in enumerate(batches(rank, world)):
        with sketcher.record(input_BT, step):
            logits_BTV = model(input_BT)
            loss_B = F.cross_entropy(logits_BTV.mT, target_BT, reduction="none").mean(dim=1)
            weight_B = sketcher.backward(loss_B, mixer)  # in place of loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9 and rank == 0:
            most = len(loss_B) * weight_B.max().item()  # 1 for equal weights
            print(f"step {step + 1} loss {loss_B.mean().item():.6f} most {most:.6f}")
    # ---

    if rank == 0:
        report = mixer.report()
        for name in ("share", "weight"):
            print(f"domains/{name}:", [round(x, 3) for x in report[f"domains/{name}"].tolist()])
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
