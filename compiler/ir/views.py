"""Which values are views, and their layouts: base value, offset and strides, in elements.

Reshapes, transposes, broadcasts and slices move no data if strides can express them. Copies, memory planning and code
generation take the layout of a value from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import NamedTuple

from gflow.dialects.attributes import read
from gflow.dialects.constants import is_splat
from gflow.dialects.extents import at_most
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.distribution import WAIT
from gflow.dialects.ops.structure import BARRIER
from gflow.dialects.types import TensorType, row_major_strides

from .errors import PassError
from .ssa import Body, Op, aliases

VIEW_OPS = frozenset({"reshape", "transpose", "broadcast", "slice"})

#: attribute of a concatenation or a copy: its producers write into its result, so it does nothing itself
IN_PLACE = "gflow.in_place"

#: attribute of an op: for each result, the distance of its rows in elements; 0 for contiguous rows
PADDED = "gflow.padded"

#: padded rows begin at multiples of this number of elements, which kernels rely on
STEP = 16

#: a program has far fewer shapes than values
_dense = lru_cache(4096)(row_major_strides)


class Layout(NamedTuple):
    """The layout of a value: elements of `base` (a value number) from `offset` on, with `strides`, in elements."""

    base: int
    offset: int
    strides: tuple[int, ...]


class Row(NamedTuple):
    """The elements of a row and the distance of rows, where rows are padded so that kernels move whole vectors.

    The padding has no defined contents: a kernel may write to it, and may read it if it does not use the values.
    """

    size: int
    width: int


def readers(body: Body, at: Sequence[Layout]) -> dict[int, list[int]]:
    """For each value that is no view: the ops that read its memory, also through views, in order."""
    found: dict[int, list[int]] = {}
    for o in body.ops:
        for v in o.operands:
            found.setdefault(at[v].base, []).append(o.index)
    return found


def reshape_strides(
    shape: Sequence[int], strides: Sequence[int], target: Sequence[int]
) -> tuple[int, ...] | None:
    """The strides of a reshape without a copy; None if it needs a copy.

    Neighbouring dimensions that are contiguous to each other form a group, which may be split and merged. Each target
    dimension must fall into one group (the rule of PyTorch's `computeStride`).
    """
    if 0 in shape:
        return row_major_strides(tuple(target))
    chunks: list[
        tuple[int, int]
    ] = []  # (elements, innermost stride) of dimensions that merge into one
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size == 1:
            continue
        if chunks and chunks[-1][0] * chunks[-1][1] == stride:
            chunks[-1] = (chunks[-1][0] * size, chunks[-1][1])
        else:
            chunks.append((size, stride))
    out = [0] * len(target)
    chunk, used = 0, 1
    for d in range(len(target) - 1, -1, -1):
        size = target[d]
        if size == 1:  # no step is made: what a row-major tensor has there
            out[d] = out[d + 1] * max(target[d + 1], 1) if d + 1 < len(target) else 1
            continue
        if chunk < len(chunks) and used == chunks[chunk][0]:
            chunk, used = chunk + 1, 1
        if chunk >= len(chunks) or chunks[chunk][0] % (used * size):
            return None
        out[d] = chunks[chunk][1] * used
        used *= size
    return tuple(out)


def view_layout(o: Op, x: Layout, x_type: TensorType) -> Layout | None:
    """The layout of a view op's result, from its operand's layout; None if the result needs a copy."""
    attrs = read(OPS[o.name], o.op.attributes)
    if o.name == "reshape":
        strides = reshape_strides(x_type.shape, x.strides, attrs["shape"])
        return None if strides is None else Layout(x.base, x.offset, strides)
    if o.name == "transpose":
        return Layout(x.base, x.offset, tuple(x.strides[p] for p in attrs["permutation"]))
    if o.name == "broadcast":
        out = [0] * len(attrs["shape"])
        for size, stride, d in zip(x_type.shape, x.strides, attrs["dims"]):
            out[d] = stride if size == attrs["shape"][d] and size != 1 else 0
        return Layout(x.base, x.offset, tuple(out))
    offset = sum(lo * s for lo, s in zip(attrs["starts"], x.strides))
    return Layout(
        x.base, x.offset + offset, tuple(s * t for s, t in zip(x.strides, attrs["strides"]))
    )


def _strides(attribute: ir.Attribute, ty: TensorType, function: func.FuncOp) -> tuple[int, ...]:
    if isinstance(attribute, ir.DenseI64ArrayAttr):
        strides = tuple(attribute)
        if len(strides) == ty.rank and all(s >= 0 for s in strides):
            return strides
    raise PassError(
        f"'gflow.strides' of a {ty} must be array<i64: ...> with {ty.rank} strides, found {attribute}",
        function,
    )


def argument_strides(function: func.FuncOp, body: Body) -> list[tuple[int, ...]]:
    """Each argument's strides: its `gflow.strides` attribute, else row-major.

    Raises:
        PassError: the attribute is malformed.
    """
    out = []
    attrs = list(function.arg_attrs) if "arg_attrs" in function.attributes else []
    for i, v in enumerate(body.arguments):
        given = attrs[i] if i < len(attrs) else {}
        if "gflow.strides" in given:
            try:
                attribute = given["gflow.strides"]
            except TypeError as error:  # an array of a type that the bindings have no class for
                raise PassError(
                    f"'gflow.strides' must be array<i64: ...>: {error}", function
                ) from None
            out.append(_strides(attribute, body.types[v], function))
        else:
            out.append(_dense(body.types[v].shape))
    return out


def written_to_arguments(function: func.FuncOp, body: Body) -> dict[int, int]:
    """The values that their producers write directly into the argument that they update, with the argument's number.

    A view, and a value that another result returns first, is copied into the argument instead (by gflow-materialize).
    """
    found: dict[int, int] = {}
    seen: set[int] = set()
    for v, alias in zip(body.returned, aliases(function, body)):
        if alias is not None and v not in seen and body.producer[v] >= 0:
            o = body.ops[body.producer[v]]
            if o.name == WAIT:  # it has the buffer of the start's result
                found[o.operands[0]] = alias
            elif o.name not in VIEW_OPS and o.name not in ("constant", BARRIER):
                found[v] = alias
        seen.add(v)
    return found


def layouts(
    function: func.FuncOp, body: Body, written: Mapping[int, int] | None = None
) -> list[Layout]:
    """The layout of every value. A view op that strides cannot express copies: its result is its own base.

    A value that is written into an argument has the argument's strides.

    Args:
        written: these values with the numbers of the arguments; `written_to_arguments` if None.
    """
    found: list[Layout | None] = [None] * len(body.values)
    parts = parts_in_place(body)
    own = argument_strides(function, body)
    if written is None:
        written = written_to_arguments(function, body)
    for v, strides in zip(body.arguments, own):
        found[v] = Layout(v, 0, strides)
    for o in body.ops:
        if o.name in VIEW_OPS:
            source = found[o.operands[0]]
            assert source is not None
            found[o.results[0]] = view_layout(o, source, body.types[o.operands[0]])
        elif o.name == BARRIER:
            for r, v in zip(o.results, o.operands):
                found[r] = found[v]
        elif o.name == WAIT:
            found[o.results[0]] = found[o.operands[0]]
        elif o.name == "constant" and is_splat(o.op.attributes["value"]):
            # one element in memory, read everywhere
            found[o.results[0]] = Layout(o.results[0], 0, (0,) * body.types[o.results[0]].rank)
        widths = widths_of(o, body) if PADDED in o.op.attributes else None
        for n, r in enumerate(o.results):
            if widths is not None and widths[n]:
                if found[r] is not None or r in parts or r in written or r in body.returned:
                    raise PassError(
                        f"'{PADDED}' is for values of the arena with a place of their own", o.op
                    )
                found[r] = Layout(r, 0, padded_strides(body.types[r].shape, widths[n]))
            elif r in parts:
                found[r] = parts[r]
            elif found[r] is None:
                there = own[written[r]] if r in written else None
                found[r] = Layout(r, 0, there or _dense(body.types[r].shape))
    return found  # type: ignore[return-value]


def parts_in_place(body: Body) -> dict[int, Layout]:
    """The values that are stored in the result of a later concatenation or copy (`IN_PLACE`).

    Raises:
        PassError: a value cannot be stored there.
    """
    found: dict[int, Layout] = {}
    for o in reversed(body.ops):
        if o.name not in ("concatenate", "fused") or IN_PLACE not in o.op.attributes:
            continue
        if o.name == "fused" and (len(o.operands), len(o.results)) != (1, 1):
            raise PassError(f"{IN_PLACE} is for copies", o.op)
        if o.results[0] in body.returned:
            raise PassError(
                f"{IN_PLACE} is for values of the arena, and this one is returned", o.op
            )
        for v, layout in zip(o.operands, part_layouts(body, o, found)):
            part = source_layout(body, v, layout)
            if part is None or part[0] in found or body.producer[part[0]] < 0:
                raise PassError("an operand cannot lie in the result", o.op)
            found[part[0]] = part[1]
    return found


def part_layouts(body: Body, o: Op, parts: Mapping[int, Layout]) -> list[Layout]:
    """The layouts of the operands of a concatenation or a copy within its result."""
    (r,) = o.results
    whole = parts.get(r) or Layout(r, 0, row_major_strides(body.types[r].shape))
    if o.name != "concatenate":
        return [whole]
    dim = read(OPS["concatenate"], o.op.attributes)["dim"]
    starts = accumulate((body.types[v].shape[dim] for v in o.operands), initial=0)
    step = whole.strides[dim]
    return [whole._replace(offset=whole.offset + start * step) for start in starts][:-1]


def source_layout(body: Body, value: int, layout: Layout) -> tuple[int, Layout] | None:
    """The value that `value` is a reshape or transpose of, and the layout that it needs so that `value` has
    `layout`."""
    while (p := body.producer[value]) >= 0 and body.ops[p].name in ("reshape", "transpose"):
        shape, (x,) = body.types[value].shape, body.ops[p].operands
        if body.ops[p].name == "reshape":
            strides = reshape_strides(shape, layout.strides, body.types[x].shape)
        else:
            permutation = read(OPS["transpose"], body.ops[p].op.attributes)["permutation"]
            places = sorted(range(len(permutation)), key=permutation.__getitem__)
            strides = tuple(layout.strides[d] for d in places)
        if strides is None:
            return None
        value, layout = x, layout._replace(strides=strides)
    return value, layout


def padded_strides(shape: Sequence[int], width: int) -> tuple[int, ...]:
    """The strides of a tensor whose rows are `width` elements apart."""
    return row_major_strides((*shape[:-1], width))


def widths_of(o: Op, body: Body) -> list[int]:
    """For each result of an op, the distance of its rows in elements; 0 for dense results.

    Raises:
        PassError: the attribute is malformed.
    """
    if PADDED not in o.op.attributes:
        return [0] * len(o.results)
    attribute = o.op.attributes[PADDED]
    widths = list(attribute) if isinstance(attribute, ir.DenseI64ArrayAttr) else []
    fits = [
        w == 0 or (w % STEP == 0 and ty.rank > 1 and ty.shape[-1] <= w)
        for w, ty in zip(widths, (body.types[r] for r in o.results))
    ]
    if len(widths) != len(o.results) or not all(fits):
        raise PassError(
            f"'{PADDED}' must be array<i64: …> with a number for each result: 0, or a multiple of {STEP} that is no "
            f"less than a row of a matrix, found {attribute}",
            o.op,
        )
    return widths


def extent_bytes(ty: TensorType, strides: Sequence[int]) -> int:
    """The bytes of a value in the arena, with the padding of its last row. strides: those of the value."""
    if ty.numel == 0 or not is_padded(ty, strides):
        return ty.nbytes
    return at_most(prod(ty.shape[:-1]) * strides[-2]) * ty.itemsize


def is_padded(ty: TensorType, strides: Sequence[int]) -> bool:
    """Whether the rows of a value are padded and its other dimensions are row-major."""
    if ty.rank < 2 or strides[-1] != 1 or strides[-2] <= ty.shape[-1]:
        return False
    return tuple(strides) == padded_strides(ty.shape, strides[-2])


def row_of(body: Body, at: Sequence[Layout], value: int) -> Row | None:
    """The rows of a padded value, or of a view of whole rows of one, along any of its dimensions; else None."""
    layout = at[value]
    p = body.producer[layout.base]
    if p < 0 or PADDED not in body.ops[p].op.attributes or layout.offset:
        return None
    width = widths_of(body.ops[p], body)[body.ops[p].results.index(layout.base)]
    if not width:
        return None
    row = body.types[layout.base].shape[-1]
    whole = (row, 1) in zip(body.types[value].shape, layout.strides)
    return Row(row, width) if whole else None


def is_view(o: Op, at: Sequence[Layout]) -> bool:
    """Whether an op needs no memory of its own."""
    return o.name in (BARRIER, WAIT) or (
        o.name in VIEW_OPS and at[o.results[0]].base != o.results[0]
    )
