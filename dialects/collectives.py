"""Which ATen overloads are collectives: calls in which all ranks of a process group take part.

Every rank must make the same ones in the same order. A collective that `gflow.aten` holds therefore takes
one operand more than its call has, the order token of the collective before it, and gives one result
more, the token for the next; the last token is a result of the function. No pass can exchange, merge
or drop them: a token is data like any other.
"""

from __future__ import annotations

#: what moves data or waits for it; the others in these namespaces are handled where they are traced
_COLLECTIVES = frozenset(
    f"_c10d_functional.{name}"
    for name in (
        "all_reduce", "all_reduce_coalesced", "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced",
        "all_to_all_single", "broadcast",
    )
)  # fmt: skip


def is_collective(overload: str) -> bool:
    """Whether an overload (`_c10d_functional.all_reduce.default`) is a collective."""
    return overload.rpartition(".")[0] in _COLLECTIVES
