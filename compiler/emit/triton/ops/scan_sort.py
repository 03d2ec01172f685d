"""Scans, sorts and top-k along short rows: calls of PyTorch that have a kernel here.

    aten.cumsum, aten.cumprod      up to 8192 elements a row
    aten.sort, aten.topk           up to 1024, of types of 32 bits or fewer

Longer rows, and other types, run through PyTorch. A sort is one of 64-bit words, a key above the position, so it is
stable, and positions come along; NaN counts as the largest, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gflow.compiler.emit import aten_ops
from gflow.compiler.ir.ssa import Op
from gflow.dialects.aten import decode_call
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.program import TritonConfig

from ..language import device_functions
from ..language.expressions import triton_type
from ..language.index_arithmetic import offsets
from ..language.parameters import Parameters, indented, is_wide
from ..program_builder import Builder, Source
from ..region.block_sizes import power_of_two

_SCANNED, _SORTED = 8192, 1024
_KEYS = ("f32", "f16", "bf16", "i32", "i16", "i8", "ui8", "i1")
_FLOATS = ("f32", "f16", "bf16")


def call(b: Builder, o: Op) -> None:
    """`gflow.aten`: by a kernel, if there is one, or through PyTorch."""
    attrs = read(OPS["aten"], o.op.attributes)
    lower = _CALLS.get(attrs["overload"])
    if lower is None or '{"s":' in attrs["args"]:
        aten_ops.call(b, o)
        return
    args, kwargs = decode_call(attrs["args"], o.operands, lambda _: 0)
    if not lower(b, o, args, kwargs):
        aten_ops.call(b, o)


def _row(
    b: Builder, o: Op, stem: str, x: int, dim: int, width: int, value: list[str], outs: list[str],
    results: list[int], words: int,
) -> None:  # fmt: skip
    """Launch a kernel over rows along `dim`: `value` are lines from `x` [ROWS, COLS], `outs` what they give.

    width: the results' size along `dim`.
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
    cols = max(2, power_of_two(shape[dim]))
    constants = {"ROWS": max(1, min(power_of_two(rows), words // cols)), "COLS": cols}
    signature = ", ".join([*p.types, "ROWS: tl.constexpr", "COLS: tl.constexpr"])
    text = "\n".join([f"def KERNEL({signature}):", *indented(lines)]) + "\n"
    way = TritonConfig(constants, 4, 1)
    source = Source(
        stem, device_functions.source(text, ()), p.types, (way,), ("cdiv(rows, ROWS)",), {}
    )
    b.launch(source, p.values, b.label(o))


def _dim(dim: int, rank: int) -> int:
    return dim % rank if rank else 0


def _scan(combine: str) -> Callable[[Builder, Op, list[Any], dict[str, Any]], bool]:
    def lower(b: Builder, o: Op, args: list[Any], kwargs: dict[str, Any]) -> bool:
        x, (r,) = args[0], o.results
        ty, out = b.body.types[x], b.body.types[r]
        dim = _dim(args[1], ty.rank)
        if not ty.numel or not ty.rank or ty.shape[dim] > _SCANNED or out.dtype == "f64":
            return False
        if out.dtype not in (*_FLOATS, "i64", "i32"):
            return False
        kind = "tl.float32" if out.dtype in _FLOATS else triton_type(out.dtype)
        line = f"total = tl.{combine}(x.to({kind}), 1)"
        _row(b, o, combine, x, dim, ty.shape[dim], [line], ["total"], [r], 4096)
        return True

    return lower


def _sort(b: Builder, o: Op, args: list[Any], kwargs: dict[str, Any]) -> bool:
    given = dict(zip(("dim", "descending"), args[1:])) | kwargs
    return _ordered(b, o, args[0], given.get("dim", -1), given.get("descending", False), 0)


def _stable_sort(b: Builder, o: Op, args: list[Any], kwargs: dict[str, Any]) -> bool:
    return _ordered(b, o, args[0], kwargs.get("dim", -1), kwargs.get("descending", False), 0)


def _topk(b: Builder, o: Op, args: list[Any], kwargs: dict[str, Any]) -> bool:
    given = dict(zip(("k", "dim", "largest", "sorted"), args[1:])) | kwargs
    return _ordered(b, o, args[0], given.get("dim", -1), given.get("largest", True), given["k"])


def _ordered(b: Builder, o: Op, x: int, dim: int, descending: bool, k: int) -> bool:
    ty = b.body.types[x]
    if not ty.rank or not ty.numel or ty.dtype not in _KEYS or len(o.results) != 2:
        return False
    dim = _dim(dim, ty.rank)
    if ty.shape[dim] > _SORTED:
        return False
    if ty.dtype in _FLOATS:
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
    width = k or ty.shape[dim]
    value = "tl.load(source + BEGIN + place * STEP, mask=inside, other=0)"
    _row(
        b, o, "topk" if k else "sort", x, dim, width, lines, [value, "place"], list(o.results), 2048
    )
    return True


_CALLS: dict[str, Callable[[Builder, Op, list[Any], dict[str, Any]], bool]] = {
    "aten.cumsum.default": _scan("cumsum"),
    "aten.cumprod.default": _scan("cumprod"),
    "aten.sort.default": _sort,
    "aten.sort.stable": _stable_sort,
    "aten.topk.default": _topk,
}
