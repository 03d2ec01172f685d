"""Checks programs that work on local shards, from a `gflow.reshard` with `side = "enter"` to one with "leave".

In such a program the author's tensors are shards (PyTorch's `use_local_output`), while the trace has global values. The
two agree if each op maps shards to shards of its global result: the op is split by one factor, needs no communication,
and does not use a partial sum as if it were the sum. The same then holds for gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

from gflow.compiler.ir.errors import PassError
from gflow.compiler.ir.ssa import Body, Op
from gflow.dialects.attributes import read
from gflow.dialects.distribution.mesh import Mesh
from gflow.dialects.distribution.sharding import reduction, split_dim
from gflow.dialects.ops import OPS
from gflow.dialects.ops.sharding import RESHARD

from .choices import Choice


def check_parts(
    body: Body,
    placed: Sequence[Sequence[str]],
    chosen: Sequence[Sequence[Choice]],
    mesh: Mesh,
    stated: Sequence[int],
) -> None:
    """Check the ops between "enter" and "leave".

    Args:
        body: the function's body.
        placed: the placements of each value.
        chosen: the choices by mesh axis and op.
        mesh: the mesh.
        stated: the numbers of arguments with a stated sharding.

    Raises:
        PassError: an op on shards does not give shards, or a shard is used as a global value.
    """
    parted: dict[int, set[int]] = {}
    known = {*stated}  # DTensors of the author's program: global values, even if they are sharded
    for o in body.ops:
        if o.name == RESHARD:
            _at_edge(o, placed, parted, known, mesh)
            continue
        if not known.isdisjoint(o.operands):
            known.update(o.results)
        axes = {axis for v in o.operands for axis in parted.get(v, ())}
        if not axes or _is_backward(o):
            continue
        for axis in axes:
            choice = chosen[axis][o.index]
            moved = any(
                axis in parted.get(v, ()) and placed[v][axis] != need
                for v, need in zip(o.operands, choice.needs)
            )
            if moved or not all(split_dim(p) is not None for p in choice.gives):
                raise PassError(
                    f"is computed on this rank's shard of a tensor that is sharded along '{mesh.axes[axis]}', but its "
                    "result is not a shard of the global result. Let the preceding module return a global tensor "
                    "(use_local_output=False, or output_layouts=Replicate())",
                    o.op,
                )
        for v in o.results:
            parted[v] = axes
    for n, v in enumerate(body.returned):
        if v in parted:
            raise PassError(
                f"result {n} is this rank's shard of a tensor; return the global tensor (use_local_output=False)",
                body.terminator,
            )


def _at_edge(
    o: Op,
    placed: Sequence[Sequence[str]],
    parted: dict[int, set[int]],
    known: set[int],
    mesh: Mesh,
) -> None:
    attrs = read(OPS[RESHARD], o.op.attributes)
    axes = {n for n, p in enumerate(attrs["sharding"]) if split_dim(p) is not None}
    terms = [p for p in attrs["sharding"] if reduction(p) is not None]
    if attrs["side"] is not None and terms:
        raise PassError(f"terms of sums ({terms[0]}) are no parts that a program works on", o.op)
    (x,) = o.operands
    if attrs["side"] not in ("enter", "plain"):
        known.add(o.results[0])
    if attrs["side"] == "enter":
        parted[o.results[0]] = axes
    elif attrs["side"] == "leave":
        if x in known and x not in parted:
            return
        for axis in axes:
            if axis not in parted.get(x, ()) or placed[x][axis] != attrs["sharding"][axis]:
                raise PassError(
                    f"expects this rank's shard of a tensor that is sharded along '{mesh.axes[axis]}' "
                    f"({attrs['sharding'][axis]}), found a replicated tensor, or another sharding; pass a "
                    "DTensor, or set its input_layouts to Replicate()",
                    o.op,
                )
    elif x in parted:
        raise PassError(
            "uses a shard of a tensor as if it were the global tensor; let the preceding module return a global one "
            "(use_local_output=False)",
            o.op,
        )


def _is_backward(o: Op) -> bool:
    return str(o.op.location).startswith('loc("backward')
