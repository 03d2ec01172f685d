"""The sharding of a tensor over one dimension of a placement: OneFlow's names for PyTorch's placements."""

from __future__ import annotations

from torch.distributed.tensor import Partial, Replicate, Shard

#: every rank has the whole
broadcast = Replicate()
#: the whole is the sum of what ranks have
partial_sum = Partial("sum")


def split(dim: int) -> Shard:
    """Each rank has an equal part of dimension `dim`."""
    return Shard(dim)
