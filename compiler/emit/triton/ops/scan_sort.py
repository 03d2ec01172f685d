"""Scans, sorts and top-k along short rows: ATen calls that have a Triton kernel.

    aten.cumsum, aten.cumprod      up to 8192 elements a row
    aten.sort, aten.topk           up to 1024, of types of 32 bits or fewer

Longer rows and other types are ATen calls. A sort is one of 64-bit words with the key in the upper and the position in
the lower half, so it is stable and gives the positions. NaN counts as the greatest, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gflow.compiler.emit import aten_ops
from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.selection.gpu.calls import (
    SORTED_FLOATS,
    Given,
    configs_of_call,
    given_of,
    has_kernel,
)
from gflow.dialects.program import TritonConfig

from ..language import device_functions
from ..language.expressions import triton_type
from ..language.index_arithmetic import offsets
from ..language.parameters import Parameters, indented, is_wide
from ..program_builder import Builder, Source


def call(b: Builder, o: Op) -> None:
    """Add the launch of a `gflow.aten` if a kernel was chosen, otherwise the ATen call."""
    given = given_of(o, b.body)
    if b.choice.kind == "pytorch":
        aten_ops.call(b, o)
        return
    has = given is not None and has_kernel(given)
    b.choice.check(has and b.choice.kind == "kernel", "is for a call that has no such kernel")
    assert given is not None
    _CALLS[given.overload](b, o, given)


def _row(
    b: Builder, o: Op, stem: str, x: int, dim: int, width: int, value: list[str], outs: list[str],
    results: list[int], model: Sequence[TritonConfig],
) -> None:  # fmt: skip
    """Add the launch of a kernel over rows along `dim`.

    value: lines that compute from the tile `x` [ROWS, COLS]. outs: the expressions of the results. width: the results'
    size along `dim`. model: its configurations.
    """
    types, shape = b.body.types, b.body.types[x].shape
    p = Parameters()
    p.pointer("source", types[x].dtype, b.place(x))
    for i, r in enumerate(results):
        p.pointer(f"out{i}", types[r].dtype, b.place(r))
    others = [*shape[:dim], *shape[dim + 1 :]]
    rows = types[x].numel // shape[dim]
    p.number("rows", rows)
    p.number("n", shape[dim])
    p.number("width", width)
    lines = [
        "row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)",
        "col = tl.arange(0, COLS)[None, :]",
    ]
    if any(is_wide(b, v) for v in (x, *results)):
        lines.append("row = row.to(tl.int64)")
    strides = [b.strides(v) for v in (x, *results)]
    walks = [(*s[:dim], *s[dim + 1 :]) for s in strides]
    bases = offsets(p, "row", "row", others, walks, lines)
    steps = [p.stride(f"step{i}", s[dim]) for i, s in enumerate(strides)]
    begin = [f"(({base}) + row * 0)[:, None]" for base in bases]
    lines += [
        "inside = (row < rows)[:, None] & (col < n)",
        f"x = tl.load(source + {begin[0]} + col * {steps[0]}, mask=inside, other=0)",
        *value,
        "inside = (row < rows)[:, None] & (col < width)",
    ]
    for i, (r, out) in enumerate(zip(results, outs)):
        kind = triton_type(types[r].dtype)
        lines.append(
            f"tl.store(out{i} + {begin[i + 1]} + col * {steps[i + 1]}, ({out}).to({kind}), mask=inside)"
        )
        if "BEGIN" in out:
            lines[-1] = lines[-1].replace("BEGIN", begin[0]).replace("STEP", steps[0])
    ways = b.ways(model)
    b.choice.check(
        ways[0].constants["COLS"] >= shape[dim], f"needs rows of {shape[dim]} as a whole"
    )
    signature = ", ".join([*p.types, "ROWS: tl.constexpr", "COLS: tl.constexpr"])
    text = "\n".join([f"def KERNEL({signature}):", *indented(lines)]) + "\n"
    source = Source(
        stem, device_functions.source(text, ()), p.types, ways, ("cdiv(rows, ROWS)",), {}
    )
    b.launch(source, p.values, b.label(o))


def _scan(combine: str) -> Callable[[Builder, Op, Given], None]:
    def lower(b: Builder, o: Op, given: Given) -> None:
        ty, dim, out = given.type, given.dim(), given.results[0]
        kind = "tl.float32" if out.dtype in SORTED_FLOATS else triton_type(out.dtype)
        line = f"total = tl.{combine}(x.to({kind}), 1)"
        _row(
            b,
            o,
            combine,
            given.x,
            dim,
            ty.shape[dim],
            [line],
            ["total"],
            list(o.results),
            configs_of_call(given),
        )

    return lower


def _sort(b: Builder, o: Op, given: Given) -> None:
    _ordered(b, o, given, given.flag("descending", False), None)


def _topk(b: Builder, o: Op, given: Given) -> None:
    _ordered(b, o, given, given.flag("largest", True), given.number("k", None))


def _ordered(b: Builder, o: Op, given: Given, descending: bool, k: int | None) -> None:
    ty, dim = given.type, given.dim(-1)
    width = ty.shape[dim] if k is None else k
    if ty.dtype in SORTED_FLOATS:
        lines = [
            "number = x.to(tl.float32) + 0.0  # of zeros, too, there is one",
            'bits = tl.where(number != number, float("nan"), number).to(tl.int32, bitcast=True)',
            "bits = tl.where(number != number, 0x7FC00000, bits)",
            "key = bits ^ ((bits >> 31) & 0x7FFFFFFF)",
        ]
    else:
        lines = ["key = x.to(tl.int32)"]
    if descending:
        lines.append("key = ~key")
    lines += [
        "word = (key.to(tl.int64) << 32) | col.to(tl.int64)",
        "word = tl.where(col < n, word, 0x7FFFFFFFFFFFFFFF)",
        "word = tl.sort(word, 1)",
        "place = (word & 0xFFFFFFFF).to(tl.int32)",
    ]
    stem = "sort" if k is None else "topk"
    value = "tl.load(source + BEGIN + place * STEP, mask=inside, other=0)"
    _row(
        b,
        o,
        stem,
        given.x,
        dim,
        width,
        lines,
        [value, "place"],
        list(o.results),
        configs_of_call(given),
    )


_CALLS: dict[str, Callable[[Builder, Op, Given], None]] = {
    "aten.cumsum.default": _scan("cumsum"),
    "aten.cumprod.default": _scan("cumprod"),
    "aten.sort.default": _sort,
    "aten.sort.stable": _sort,
    "aten.topk.default": _topk,
}
