"""What two ways to make an attention are compared by."""

from __future__ import annotations

from dataclasses import replace

from gflow.dialects.records import record
from gflow.dialects.types import TensorType

#: products of one run of a race: some milliseconds
_MOST = 1 << 27
#: products of which there are fewer are not raced: the model chooses
_LEAST = 1 << 21


@record
class AttentionContest:
    """An attention of float32 that our own kernel and PyTorch's can make.

    Attributes:
        batch, heads, shared: of q, and heads of k and v.
        rows, keys: positions of q, and of k and v.
        channels, values: of q and k, and of v.
        causal, bias: whether there is such a mask, and a bias of float32 [1, 1, row, key].
        grad: whether it is the gradients by q, k and v.
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
    def worth_while(self) -> bool:
        """Whether it takes long enough for a race to tell who is faster."""
        return self.size >= _LEAST

    @property
    def size(self) -> int:
        """How many multiplications it takes."""
        d, v = self.channels, self.values
        each = 3 * d + 2 * v if self.grad else d + v
        return self.batch * self.heads * self.rows * self.keys * each // (2 if self.causal else 1)

    def shorter(self) -> AttentionContest:
        """The same at a size that takes milliseconds: of fewer batches, then of fewer positions."""
        found = self
        while found.size > _MOST and found.batch > 1:
            found = replace(found, batch=-(-found.batch // 2))
        while found.size > _MOST and max(found.rows, found.keys) > 1:
            rows = -(-found.rows // 2) if found.rows >= found.keys else found.rows
            keys = -(-found.keys // 2) if found.keys >= found.rows else found.keys
            found = replace(found, rows=rows, keys=keys)
        return found

    def types(self) -> dict[str, TensorType]:
        """The types of q, k, v, the result and the logarithms of sums, and of the bias where there is one."""
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
