"""Tensors that lie in shards on the ranks (FSDP2), and the same whole, as files hold them."""

from collections.abc import Mapping

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """The tensors with every shard in its place; those that are not sharded are left as they are.

    All ranks must ask. One tensor at a time is gathered, and goes to the host of the rank that is
    to `keep` it; the others get none, so nobody's device holds more than one. Tied tensors stay so.
    """
    found: dict[str, Tensor] = {}
    first: dict[int, str] = {}  # the first name of a tensor that may have two
    for name, tensor in tensors.items():
        if not isinstance(tensor, DTensor):
            found[name] = tensor.detach()
        elif (same := first.setdefault(id(tensor), name)) == name:
            full = tensor.full_tensor().detach()
            if keep:
                found[name] = full.cpu()
        elif keep:
            found[name] = found[same]
    return found


def laid_out_like(target: Tensor, full: Tensor) -> Tensor:
    """`full`, which this rank has, cut into shards where `target` is; no rank sends anything."""
    if not isinstance(target, DTensor):
        return full
    full = full.to(target.device)
    return distribute_tensor(full, target.device_mesh, target.placements, src_data_rank=None)
