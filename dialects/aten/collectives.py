"""Which ATen overloads are collectives: calls in which all ranks of a process group take part.

Every rank must make the same ones in the same order; they become `gflow.collective`, which has it.
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
