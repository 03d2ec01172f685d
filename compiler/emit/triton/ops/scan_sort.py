"""Scans, sorts and top-k along short rows: calls of PyTorch that have a kernel here.

    aten.cumsum, aten.cumprod      up to 8192 elements a row
    aten.sort, aten.topk           up to 1024, of types of 32 bits or fewer

Longer rows, and other types, run through PyTorch. A sort is one of 64-bit words, a key above the position, so it is
stable, and positions come along; NaN counts as the largest, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable

from gflow.compiler.emit import aten_ops
from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.ir.ssa import Op
from gflow.dialects.aten import decode_call
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.program import TritonConfig
from gflow.dialects.types import TensorType

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
    overload, text = attrs["overload"], attrs["args"]
    if overload in _CALLS and '{"s":' not in text:
        names, lower = _CALLS[overload]
        if lower(b, o, _Given(b, o, overload, names, text)):
            return
    aten_ops.call(b, o)


class _Given:
    """The arguments of a call by their names in its schema, all of which start with the tensor `self`."""

    def __init__(self, b: Builder, o: Op, overload: str, names: str, text: str) -> None:
        """names: of what may be given by position, then `*`, then of what may not.

        Raises:
            CannotLower: the call does not fit them.
        """
        self.overload = overload
        operands = [(v,) for v in o.operands]  # apart from integers
        args, self.values = decode_call(text, operands, lambda _: 0)
        positional, _, keyword = names.partition("*")
        order = positional.split()
        self.wanted(len(args) <= len(order), f"{len(args)} arguments by position")
        for name, value in zip(order, args):
            self.wanted(name not in self.values, f"two of {name!r}")
            self.values[name] = value
        odd = self.values.keys() - {*order, *keyword.split()}
        self.wanted(not odd, f"an argument {min(odd, default='')!r}")
        x = self.values.get("self")
        self.wanted(isinstance(x, tuple), "no tensor as its first argument")
        self.x: int = x[0]  # type: ignore[index]
        self.type = b.body.types[self.x]
        self.results = [b.body.types[r] for r in o.results]

    def wanted(self, holds: bool, found: str) -> None:
        if not holds:
            raise CannotLower(f"{self.overload} with {found}; PyTorch has no such call")

    def number(self, name: str, default: int | None) -> int:
        value = self.values.get(name, default)
        self.wanted(type(value) is int, f"{name} = {value!r:.40}")
        return value  # type: ignore[return-value]

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name, default)
        self.wanted(isinstance(value, bool) or value is None, f"{name} = {value!r:.40}")
        return bool(value)

    def dim(self, default: int | None = None) -> int:
        """The dimension, from the first on."""
        dim, rank = self.number("dim", default), max(self.type.rank, 1)
        self.wanted(-rank <= dim < rank, f"dim = {dim} of a {self.type}")
        return dim % rank

    def gives(self, *types: TensorType) -> None:
        """The op's results are what PyTorch gives."""
        found = ", ".join(map(str, self.results))
        if self.results != list(types):
            raise CannotLower(
                f"{self.overload} gives {', '.join(map(str, types))}, and is said to give {found}"
            )


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


def _scan(combine: str) -> Callable[[Builder, Op, _Given], bool]:
    def lower(b: Builder, o: Op, given: _Given) -> bool:
        ty, dim = given.type, given.dim()
        given.wanted(len(given.results) == 1, f"{len(given.results)} results")
        out = given.results[0]
        given.gives(TensorType(ty.shape, out.dtype))
        if not ty.numel or not ty.rank or ty.shape[dim] > _SCANNED or out.dtype == "f64":
            return False
        if out.dtype not in (*_FLOATS, "i64", "i32"):
            return False
        kind = "tl.float32" if out.dtype in _FLOATS else triton_type(out.dtype)
        line = f"total = tl.{combine}(x.to({kind}), 1)"
        _row(b, o, combine, given.x, dim, ty.shape[dim], [line], ["total"], list(o.results), 4096)
        return True

    return lower


def _sort(b: Builder, o: Op, given: _Given) -> bool:
    given.flag("stable", False)  # it always is
    return _ordered(b, o, given, given.flag("descending", False), None)


def _topk(b: Builder, o: Op, given: _Given) -> bool:
    given.flag("sorted", True)
    k, dim = given.number("k", None), given.dim(-1)
    size = given.type.shape[dim] if given.type.rank else 1
    given.wanted(0 <= k <= size, f"k = {k} of {size} elements")
    return _ordered(b, o, given, given.flag("largest", True), k)


def _ordered(b: Builder, o: Op, given: _Given, descending: bool, k: int | None) -> bool:
    ty, dim = given.type, given.dim(-1)
    width = k if k is not None else ty.shape[dim] if ty.rank else 1
    shape = (*ty.shape[:dim], width, *ty.shape[dim + 1 :]) if ty.rank else ()
    given.gives(TensorType(shape, ty.dtype), TensorType(shape, "i64"))
    if not ty.rank or not ty.numel or not width or ty.dtype not in _KEYS:
        return False
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
    stem = "sort" if k is None else "topk"
    value = "tl.load(source + BEGIN + place * STEP, mask=inside, other=0)"
    _row(b, o, stem, given.x, dim, width, lines, [value, "place"], list(o.results), 2048)
    return True


#: overload → names of its arguments, as `_Given` takes them, and what writes the kernel
_CALLS: dict[str, tuple[str, Callable[[Builder, Op, _Given], bool]]] = {
    "aten.cumsum.default": ("self dim * dtype", _scan("cumsum")),
    "aten.cumprod.default": ("self dim * dtype", _scan("cumprod")),
    "aten.sort.default": ("self dim descending", _sort),
    "aten.sort.stable": ("self * stable dim descending", _sort),
    "aten.topk.default": ("self k dim largest sorted", _topk),
}
