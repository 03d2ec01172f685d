"""The reference interpreter of N ranks in lock step: `ir_interpreter` for each, and collectives by their definition.

Every rank runs until it comes to a collective; one takes place once all ranks of its group are there with the same
one. Nothing is shared with the runtime: values are tensors of PyTorch's, sums go in the order of ranks.

    results = run_ranks(module, [[x0, w], [x1, w]])      # by rank, in the order of the function's results
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import ir_interpreter as single
import torch
from torch.nn import functional as F

from gflow.dialects.attributes import read
from gflow.dialects.distribution.mesh import MESH, Mesh, read_mesh
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.types import tensor_type

Tensor = torch.Tensor
_TOKEN = torch.zeros((), dtype=torch.int8)
_REDUCTIONS = {
    "sum": torch.add, "avg": torch.add, "product": torch.mul, "min": torch.minimum, "max": torch.maximum,
    "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor,
}  # fmt: skip


class OutOfStepError(AssertionError):
    """Ranks wait for each other: they do not make the same collectives in the same order."""


@dataclass(frozen=True)
class Call:
    """A collective that a rank has come to. alike: whether all ranks run one program."""

    attrs: dict[str, Any]
    group: tuple[int, ...]
    operands: list[Tensor]
    alike: bool = True

    @property
    def name(self) -> str:
        return f"{self.attrs['kind']} (number {self.attrs['sequence']}) of ranks {list(self.group)}"


@dataclass
class Traffic:
    """Bytes that each rank sends, by the ring algorithms' count, and its collectives in order."""

    sent: float = 0.0
    made: list[str] = field(default_factory=list)


def run_ranks(
    modules: ir.Module | Sequence[ir.Module],
    args: Sequence[Sequence[Tensor]],
    traffic: list[Traffic] | None = None,
) -> list[list[Tensor]]:
    """The results of each rank.

    modules: one for all ranks, or each rank's own. args: by rank, not changed. traffic: is filled, by rank.

    Raises:
        OutOfStepError: ranks would wait for each other for ever.
    """
    world = len(args)
    alike = isinstance(modules, ir.Module)
    each = [modules] * world if isinstance(modules, ir.Module) else list(modules)
    runs = [
        _run(module, rank, world, given, alike)
        for rank, (module, given) in enumerate(zip(each, args))
    ]
    results: dict[int, list[Tensor]] = {}
    waiting: dict[int, Call] = {}
    mail: dict[tuple[int, int], list[Tensor]] = {}
    answers: dict[int, list[Tensor] | None] = dict.fromkeys(range(world))
    traffic = [Traffic() for _ in args] if traffic is None else traffic
    traffic.extend(Traffic() for _ in range(world - len(traffic)))
    while len(results) < world:
        for rank, answer in sorted(answers.items()):
            try:
                waiting[rank] = runs[rank].send(answer)
                _count(traffic[rank], waiting[rank])
            except StopIteration as done:
                results[rank] = done.value
        answers = _meet(waiting, mail)
        for rank in answers:
            del waiting[rank]
        if not answers and len(results) < world:
            told = "; ".join(f"rank {r} at {c.name}" for r, c in sorted(waiting.items()))
            ended = f"; ended: {sorted(results)}" if results else ""
            raise OutOfStepError(f"{told}{ended}")
    return [results[rank] for rank in range(world)]


def _count(traffic: Traffic, call: Call) -> None:
    kind, ranks = call.attrs["kind"], len(call.group)
    size = sum(x.nbytes for x in call.operands)
    share = (ranks - 1) / ranks
    factor = {
        "all_reduce": 2 * share, "reduce_scatter": share, "all_gather": ranks - 1, "all_to_all": share,
        "broadcast": share, "send": 1.0,
    }.get(kind, 0.0)  # fmt: skip
    traffic.sent += size * factor
    traffic.made.append(kind)


def _meet(
    waiting: dict[int, Call], mail: dict[tuple[int, int], list[Tensor]]
) -> dict[int, list[Tensor] | None]:
    """What the collectives give that can take place now."""
    found: dict[int, list[Tensor] | None] = {}
    for rank, call in sorted(waiting.items()):
        kind = call.attrs["kind"]
        if rank in found:
            continue
        if kind == "send":
            mail.setdefault((rank, call.group[call.attrs["peer"]]), []).append(call.operands[0])
            found[rank] = [_TOKEN, _TOKEN]
        elif kind == "recv":
            letters = mail.get((call.group[call.attrs["peer"]], rank), [])
            if letters:
                found[rank] = [letters.pop(0), _TOKEN]
        elif all(r in waiting for r in call.group):
            calls = [waiting[r] for r in call.group]
            if any((_compared(c), c.group) != (_compared(call), call.group) for c in calls):
                continue
            values = collective(call.attrs, [c.operands[0] for c in calls])
            found.update({r: [v, _TOKEN] for r, v in zip(call.group, values)})
    return found


def _compared(call: Call) -> dict[str, Any]:
    """What must be equal on all ranks of a group. A number counts a program's collectives of all groups: programs that
    differ in other groups' may differ in it."""
    return {k: v for k, v in call.attrs.items() if k != "sequence" or call.alike}


def collective(attrs: dict[str, Any], xs: list[Tensor]) -> list[Tensor]:
    """What each rank of a group gets."""
    kind, ranks = attrs["kind"], len(xs)
    dim = attrs.get("dim") or 0
    if kind == "broadcast":
        return [xs[attrs["root"]].clone() for _ in xs]
    if kind == "all_gather":
        whole = torch.cat(xs, dim)
        return [whole.clone() for _ in xs]
    if kind == "all_to_all":
        other = attrs.get("concat_dim")
        other = dim if other is None else other
        sends = attrs.get("sends")
        cut = [x.split(list(sends) if sends else x.shape[dim] // ranks, dim) for x in xs]
        if sends and (attrs.get("takes") or sends) != sends:
            raise NotImplementedError("ranks with sizes of their own have programs of their own")
        return [torch.cat([c[r] for c in cut], other) for r in range(ranks)]
    total = reduce(_REDUCTIONS[attrs["reduction"]], xs)
    if attrs["reduction"] == "avg":
        total = total / ranks
    if kind == "all_reduce":
        return [total.clone() for _ in xs]
    return [part.clone() for part in total.chunk(ranks, dim)]


def _run(
    module: ir.Module, rank: int, world: int, args: Sequence[Tensor], alike: bool
) -> Generator[Call, list[Tensor] | None, list[Tensor]]:
    with module.context:
        attributes = module.operation.attributes
        mesh = read_mesh(attributes[MESH]) if MESH in attributes else None
        (function,) = [op for op in module.body.operations if op.operation.name == "func.func"]
        block = function.operation.regions[0].blocks[0]
    values: dict[ir.Value, Tensor] = {}
    for argument, given in zip(block.arguments, args, strict=True):
        single._check(argument, given)
        values[argument] = given
    for view in block.operations:
        op = view.operation
        operands = [values[v] for v in op.operands]
        name = op.name.removeprefix("gflow.")
        if name == "func.return":
            return operands
        if name in ("collective", "collective_start"):
            attrs = read(OPS[name], op.attributes)
            data = operands[: int(attrs["kind"] != "recv")]
            group = ranks_of(mesh, attrs, rank, world)
            assert len(group) == attrs["ranks"], (group, attrs)
            if attrs.get("type") is not None:
                attrs["type"] = str(tensor_type(attrs["type"]))
            got = yield Call(attrs, group, data, alike)
            assert got is not None
        elif name == "collective_wait":
            got = [operands[0]]
        elif name == "shard":
            attrs = read(OPS[name], op.attributes)
            group = ranks_of(mesh, attrs, rank, world)
            got = [piece(operands[0], len(group), group.index(rank))]
        else:
            got = single.run_op(op, operands)
        for result, value in zip(op.results, got, strict=True):
            single._check(result, value)
            values[result] = value
    raise ValueError("a block without a terminator")


def piece(x: Tensor, ranks: int, rank: int) -> Tensor:
    """`gflow.shard`."""
    flat = x.reshape(-1)
    size = -(-flat.numel() // ranks)
    return F.pad(flat, (0, size * ranks - flat.numel()))[rank * size : (rank + 1) * size].clone()


def ranks_of(mesh: Mesh | None, attrs: dict[str, Any], rank: int, world: int) -> tuple[int, ...]:
    """The ranks of the group that a rank is in; a group by name is all of them."""
    axes = attrs.get("axes")
    if not axes:
        return tuple(range(world))
    assert mesh is not None
    assert prod(mesh.sizes) == world
    place = []
    rest = rank
    for size in reversed(mesh.sizes):
        place.insert(0, rest % size)
        rest //= size
    numbers = [mesh.axes.index(a) for a in axes]
    found = []
    for along in product(*(range(mesh.sizes[n]) for n in numbers)):
        there = list(place)
        for n, at in zip(numbers, along):
            there[n] = at
        number = 0
        for at, size in zip(there, mesh.sizes):
            number = number * size + at
        found.append(number)
    return tuple(found)
