"""The key of a timed comparison of two attention kernels on a CPU: gflow's own and PyTorch's."""

from __future__ import annotations

from dataclasses import replace

from gflow.dialects.records import record
from gflow.dialects.types import TensorType

#: the most multiplications of one run of a comparison: a few milliseconds
_MOST = 1 << 27
#: with fewer multiplications there is no comparison; the cost model decides
_LEAST = 1 << 21


@record
class AttentionContest:
    """A float32 attention that both gflow's own kernel and PyTorch's can compute.

    Attributes:
        batch: the batch size.
        heads, shared: heads of q, and heads of k and v (which divide those of q).
        rows, keys: positions of q, and positions of k and v.
        channels, values: channels of q and k, and channels of v.
        causal: whether there is a causal mask.
        bias: whether there is a float32 bias of shape [1, 1, rows, keys].
        grad: whether it computes the gradients with respect to q, k and v.
    """

    batch: int
    heads: int
    shared: int
    rows: int
    keys: int
    channels: int
    values: int
    causal: bool
    bias: bool
    grad: bool

    @property
    def kind(self) -> str:
        """ "forward" or "gradients", after "causal " with a causal mask and "biased " with a bias."""
        kind = "gradients" if self.grad else "forward"
        return ("causal " if self.causal else "") + ("biased " if self.bias else "") + kind

    @property
    def worth_while(self) -> bool:
        """Whether it takes long enough for a timed comparison to give a result."""
        return self.size >= _LEAST

    @property
    def size(self) -> int:
        """The number of multiplications; half under a causal mask."""
        d, v = self.channels, self.values
        each = 3 * d + 2 * v if self.grad else d + v
        return self.batch * self.heads * self.rows * self.keys * each // (2 if self.causal else 1)

    def shorter(self) -> AttentionContest:
        """The attention at a size that takes milliseconds: the batch is halved first, then the positions."""
        found = self
        while found.size > _MOST and found.batch > 1:
            found = replace(found, batch=-(-found.batch // 2))
        while found.size > _MOST and max(found.rows, found.keys) > 1:
            rows = -(-found.rows // 2) if found.rows >= found.keys else found.rows
            keys = -(-found.keys // 2) if found.keys >= found.rows else found.keys
            found = replace(found, rows=rows, keys=keys)
        return found

    def types(self) -> dict[str, TensorType]:
        """The types of q, k, v, the result `y`, the row-wise log-sum-exp `sums`, and `bias` where there is one."""
        b, h, s = self.batch, self.heads, self.shared
        found = {
            "q": TensorType((b, self.rows, h, self.channels), "f32"),
            "k": TensorType((b, self.keys, s, self.channels), "f32"),
            "v": TensorType((b, self.keys, s, self.values), "f32"),
            "y": TensorType((b, self.rows, h, self.values), "f32"),
            "sums": TensorType((b, h, self.rows), "f32"),
        }
        if self.bias:
            found["bias"] = TensorType((1, 1, self.rows, self.keys), "f32")
        return found

    def __str__(self) -> str:
        heads = f"{self.heads} heads" + (
            "" if self.heads == self.shared else f" over {self.shared}"
        )
        channels = f"{self.channels}" + ("" if self.channels == self.values else f"/{self.values}")
        masks = (" causal" if self.causal else "") + (" bias" if self.bias else "")
        what = "gradients of attention" if self.grad else "attention"
        return (
            f"{what} {self.batch} x {heads} x {self.rows} x {self.keys}, {channels} channels{masks}"
        )
