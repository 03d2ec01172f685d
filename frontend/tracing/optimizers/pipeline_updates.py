"""The updates of each rank of a pipeline, derived from those of a step in one process.

An op belongs to the rank that keeps its operands. Single numbers (a norm, whether a gradient is finite) that other
ranks need are exchanged by an all-reduce, to which all others contribute 0. Every rank then computes their users, with
the bits of one process. Numbers that are known at the same time share an all-reduce.

    %n0 = linalg_vector_norm(%grad0)             # stage 0
    %n1 = linalg_vector_norm(%grad1)             # stage 1
    %norm = linalg_vector_norm(stack(%n0, %n1))  # both

becomes, on rank 0 (rank 1 has 0 at the first position, and then %n1):

    %n0 = linalg_vector_norm(%grad0)
    %all = wait_tensor(all_reduce(cat(view(%n0, [1]), zeros([1])), "sum"))
    %norm = linalg_vector_norm(stack(view(slice(%all, 0, 0, 1), []), view(slice(%all, 0, 1, 2), [])))
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from gflow.dialects.types import row_major_strides
from gflow.errors import GraphTraceError

from ..data.trace import Trace
from ..data.values import SourceLoc, TraceOp, TraceOutput, TraceValue, renamed_op, values_in
from ..dispatch.failures.pruning import prune
from ..program.module_stages import PIPELINE, PipelineMesh

#: maximal number of elements of an exchanged tensor, if an op reads tensors of several ranks (norms of a group)
_SMALL = 4096

aten = torch.ops.aten


def divide_updates(rest: Trace, owners: dict[TraceValue, int], mesh: PipelineMesh) -> list[Trace]:
    """The updates of each rank of a pipeline. Adds the owners of tensors that are updated with them.

    Args:
        rest: the program after the last micro-batch.
        owners: the rank that keeps an input, by its value.

    Raises:
        GraphTraceError: an op reads large tensors of several ranks.
    """
    places = _Places(rest, owners)
    while found := _kept(rest, places, owners):
        owners |= found
        places = _Places(rest, owners)
    for out in rest.outputs:
        if places.of(out.value) != _keeper(rest, out, owners):
            places.cross(out.value, rest.ops[-1].loc)
    values = [i.value for i in rest.inputs] + [r for op in rest.ops for r in op.results if r]
    new = _New(itertools.count(1 + max((v.id for v in values), default=0)), mesh.group)
    exchanged = {
        v: replace(v, id=next(new.ids), strides=row_major_strides(v.shape)) for v in places.crossing
    }
    made = []
    for rank in range(mesh.length):
        outputs = []
        for out in rest.outputs:
            keeper = _keeper(rest, out, owners)
            if keeper in (None, rank):
                here = places.of(out.value) in (None, keeper)
                outputs.append(replace(out, value=out.value if here else exchanged[out.value]))
        ops = [*_ops(places, exchanged, rank, new)]
        trace = Trace(f"{rest.name}_{rank}", list(rest.inputs), ops, outputs)
        trace.groups = {mesh.group: PIPELINE, **rest.groups}
        trace.reduced, trace.buckets = rest.reduced, rest.buckets
        trace.axes = dict(mesh.axes) if mesh.copies else {}
        prune(trace, keep_inputs=False)
        made.append(trace)
    return made


def _kept(rest: Trace, places: _Places, owners: Mapping[TraceValue, int]) -> dict[TraceValue, int]:
    """The ranks of inputs without an owner that take a tensor computed by one rank: optimizer state."""
    found = {}
    for out in rest.outputs:
        rank = places.of(out.value)
        if out.alias is not None and rank is not None and not _is_number(out.value):
            entry = rest.inputs[out.alias].value
            if entry not in owners:
                found[entry] = rank
    return found


def _keeper(rest: Trace, out: TraceOutput, owners: Mapping[TraceValue, int]) -> int | None:
    """The rank that keeps the input that an output updates; None if all ranks have it."""
    return None if out.alias is None else owners.get(rest.inputs[out.alias].value)


class _Places:
    """Which rank computes a value (None: each), how many exchanges precede it, and which values are exchanged.

    Args:
        crossing: values that one rank computes and others need, with the location of the reader.
        ops: by the number of preceding exchanges, with the rank that runs them.
    """

    def __init__(self, rest: Trace, owners: Mapping[TraceValue, int]) -> None:
        self._rank: dict[TraceValue, int] = {
            i.value: owners[i.value] for i in rest.inputs if i.value in owners
        }
        self._level: dict[TraceValue, int] = {}
        self.crossing: dict[TraceValue, SourceLoc] = {}
        self.ops: dict[int, list[tuple[TraceOp, int | None]]] = {}
        for op in rest.ops:
            self._place(op)

    def of(self, value: TraceValue) -> int | None:
        """The rank that has a value; None if all have it."""
        return self._rank.get(value)

    def level(self, value: TraceValue) -> int:
        """The number of exchanges that precede a value."""
        return self._level.get(value, 0)

    def cross(self, value: TraceValue, loc: SourceLoc) -> None:
        """Exchange a value, so that all ranks have it."""
        if self.of(value) is not None:
            self.crossing.setdefault(value, loc)

    def _place(self, op: TraceOp) -> None:
        read = {v: self.of(v) for v in values_in((op.args, op.kwargs))}
        ranks = {rank for rank in read.values() if rank is not None}
        at = next(iter(ranks), None)
        away: list[TraceValue] = []
        if len(ranks) > 1:
            large = {rank for v, rank in read.items() if rank is not None and not _is_number(v)}
            at = next(iter(large)) if len(large) == 1 else None
            away = [v for v, rank in read.items() if rank not in (None, at)]
        if any(math.prod(v.shape) > _SMALL for v in away):
            raise GraphTraceError(
                f"{op.loc}: {op.func} reads whole tensors of the stages on ranks {', '.join(map(str, sorted(ranks)))}, "
                "and an update in a pipeline reads those of one rank, and single numbers of others. Reduce each to a "
                "number first, as torch.nn.utils.clip_grad_norm_ and clip_grad_max_norm of parameter groups do."
            )
        for v in away:
            self.cross(v, op.loc)
        level = max((self.level(v) + (v in away) for v in read), default=0)
        self.ops.setdefault(level, []).append((op, at))
        for r in op.results:
            if r is not None:
                self._level[r] = level
                if at is not None:
                    self._rank[r] = at


def _ops(
    places: _Places, exchanged: Mapping[TraceValue, TraceValue], rank: int, new: _New
) -> Iterator[TraceOp]:
    """The ops of one rank."""
    levels = [*places.ops, *map(places.level, exchanged)]
    for level in range(1 + max(levels, default=0)):
        for op, at in places.ops.get(level, ()):
            if at in (None, rank):
                read = values_in((op.args, op.kwargs))
                names = {v: exchanged[v] for v in read if v in exchanged and places.of(v) != at}
                yield renamed_op(op, names)
        kinds: dict[torch.dtype, list[TraceValue]] = {}
        for v in exchanged:
            if places.level(v) == level:
                kinds.setdefault(_sent_as(v.dtype), []).append(v)
        for dtype, values in kinds.items():
            mine = [places.of(v) == rank for v in values]
            yield from _exchange(values, mine, exchanged, dtype, places.crossing[values[0]], new)


def _exchange(
    values: Sequence[TraceValue],
    mine: Sequence[bool],
    exchanged: Mapping[TraceValue, TraceValue],
    dtype: torch.dtype,
    loc: SourceLoc,
    new: _New,
) -> Iterator[TraceOp]:
    """Ops that exchange these values between all ranks. mine: whether this rank has each of them."""
    loc = replace(loc, phase="optimizer", module="")
    parts: list[TraceValue] = []
    for own, group in itertools.groupby(zip(values, mine), key=lambda pair: pair[1]):
        each = [v for v, _ in group]
        if not own:
            size = sum(math.prod(v.shape) for v in each)
            parts.append(new.value((size,), dtype))
            yield TraceOp(aten.zeros.default, ([size],), {"dtype": dtype}, [parts[-1]], loc)
            continue
        for v in each:
            if v.dtype != dtype:
                cast = new.value(v.shape, dtype)
                yield TraceOp(aten._to_copy.default, (v,), {"dtype": dtype}, [cast], loc)
                v = cast
            size = math.prod(v.shape)
            parts.append(new.value((size,), dtype))
            yield TraceOp(aten.view.default, (v, [size]), {}, [parts[-1]], loc)
    total = sum(math.prod(v.shape) for v in values)
    whole, started, ended = (new.value((total,), dtype) for _ in range(3))
    yield TraceOp(aten.cat.default, (parts,), {}, [whole], loc)
    reduce = torch.ops._c10d_functional
    yield TraceOp(reduce.all_reduce.default, (whole, "sum", new.group), {}, [started], loc)
    yield TraceOp(reduce.wait_tensor.default, (started,), {}, [ended], loc)
    start = 0
    for v in values:
        end = start + math.prod(v.shape)
        piece, result = new.value((end - start,), dtype), exchanged[v]
        yield TraceOp(aten.slice.Tensor, (ended, 0, start, end), {}, [piece], loc)
        shaped = result if v.dtype == dtype else new.value(v.shape, dtype)
        yield TraceOp(aten.view.default, (piece, list(v.shape)), {}, [shaped], loc)
        if shaped is not result:
            yield TraceOp(aten._to_copy.default, (shaped,), {"dtype": v.dtype}, [result], loc)
        start = end


@dataclass
class _New:
    """Creates values of a trace. group: the name of the process group of its exchanges."""

    ids: Iterator[int]
    group: str

    def value(self, shape: tuple[int, ...], dtype: torch.dtype) -> TraceValue:
        """A new value, with row-major strides."""
        return TraceValue(next(self.ids), shape, dtype, row_major_strides(shape))


def _sent_as(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values are exchanged: Gloo and NCCL add a value and zeros in it without rounding."""
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.int64


def _is_number(value: TraceValue) -> bool:
    return math.prod(value.shape) == 1
