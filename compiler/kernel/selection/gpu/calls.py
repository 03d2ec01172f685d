"""ATen calls that have a Triton kernel.

They are scans (cumsum, cumprod) of up to 8192 elements a row, and sorts and top-k of up to 1024 elements a row of types
of 32 bits or fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gflow.dialects.aten.calls import decode_call
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.program import TritonConfig
from gflow.dialects.types import TensorType

from ....ir.errors import CannotLower
from ....ir.ssa import Body, Op
from .other_blocks import row_configs

_SCANNED, _SORTED = 8192, 1024
SORTED_FLOATS = ("f32", "f16", "bf16")
_KEYS = (*SORTED_FLOATS, "i32", "i16", "i8", "ui8", "i1")


class Given:
    """The arguments of an ATen call by their names in its schema. The first argument is the tensor `self`."""

    def __init__(self, body: Body, o: Op, overload: str, names: str, text: str) -> None:
        """Decode the arguments of a call.

        Args:
            body: the function's values.
            o: the `gflow.aten` op.
            overload: its overload.
            names: the names of positional arguments, then `*`, then those of keyword-only arguments.
            text: the encoded arguments.

        Raises:
            CannotLower: the arguments don't fit the schema.
        """
        self.overload = overload
        operands = [(v,) for v in o.operands]  # tuples, to tell values from integer arguments
        args, self.values = decode_call(text, operands, lambda _: 0, part=lambda *_: None)
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
        self.type = body.types[self.x]
        self.results = [body.types[r] for r in o.results]

    def wanted(self, holds: bool, found: str) -> None:
        """Check a condition on the call's arguments. found: the rest of the sentence "<overload> with <found>".

        Raises:
            CannotLower: `holds` is false: PyTorch has no such call.
        """
        if not holds:
            raise CannotLower(f"{self.overload} with {found}; PyTorch has no such call")

    def number(self, name: str, default: int | None) -> int:
        """An integer among the arguments."""
        value = self.values.get(name, default)
        self.wanted(type(value) is int, f"{name} = {value!r:.40}")
        return value  # type: ignore[return-value]

    def flag(self, name: str, default: bool) -> bool:
        """A bool among the arguments; None counts as False."""
        value = self.values.get(name, default)
        self.wanted(isinstance(value, bool) or value is None, f"{name} = {value!r:.40}")
        return bool(value)

    def dim(self, default: int | None = None) -> int:
        """The argument `dim`, not negative."""
        dim, rank = self.number("dim", default), max(self.type.rank, 1)
        self.wanted(-rank <= dim < rank, f"dim = {dim} of a {self.type}")
        return dim % rank

    def gives(self, *types: TensorType) -> None:
        """Check that the op's results have the types that PyTorch gives.

        Raises:
            CannotLower: they have others.
        """
        found = ", ".join(map(str, self.results))
        if self.results != list(types):
            raise CannotLower(
                f"{self.overload} gives {', '.join(map(str, types))}, and is said to give {found}"
            )


def given_of(o: Op, body: Body) -> Given | None:
    """The arguments of a call whose overload has a kernel; None for other overloads and for Python numbers that are
    read from an operand at run time.

    Raises:
        CannotLower: PyTorch has no call with these arguments.
    """
    attrs = read(OPS["aten"], o.op.attributes)
    overload, text = attrs["overload"], attrs["args"]
    if overload not in _CALLS or '{"s":' in text:
        return None
    return Given(body, o, overload, _CALLS[overload][0], text)


def has_kernel(given: Given) -> bool:
    """Whether the call has a kernel for its types and sizes.

    Raises:
        CannotLower: PyTorch has no such call.
    """
    return _CALLS[given.overload][1](given)


def configs_of_call(given: Given) -> list[TritonConfig]:
    """The configurations of a call's kernel."""
    size = given.type.shape[given.dim(-1)]
    return row_configs(given.type.numel // size, size, _CALLS[given.overload][2])


def _scan(given: Given) -> bool:
    ty, dim = given.type, given.dim()
    given.wanted(len(given.results) == 1, f"{len(given.results)} results")
    out = given.results[0]
    given.gives(TensorType(ty.shape, out.dtype))
    fits = ty.numel > 0 and ty.rank > 0 and ty.shape[dim] <= _SCANNED
    return fits and out.dtype in (*SORTED_FLOATS, "i64", "i32")


def _sort(given: Given) -> bool:
    given.flag("stable", False)  # gflow's sort is always stable
    given.flag("descending", False)
    return _ordered(given, None)


def _topk(given: Given) -> bool:
    given.flag("sorted", True)
    given.flag("largest", True)
    k, dim = given.number("k", None), given.dim(-1)
    size = given.type.shape[dim] if given.type.rank else 1
    given.wanted(0 <= k <= size, f"k = {k} of {size} elements")
    return _ordered(given, k)


def _ordered(given: Given, k: int | None) -> bool:
    ty, dim = given.type, given.dim(-1)
    width = k if k is not None else ty.shape[dim] if ty.rank else 1
    shape = (*ty.shape[:dim], width, *ty.shape[dim + 1 :]) if ty.rank else ()
    given.gives(TensorType(shape, ty.dtype), TensorType(shape, "i64"))
    fits = ty.rank > 0 and ty.numel > 0 and width > 0 and ty.shape[dim] <= _SORTED
    return fits and ty.dtype in _KEYS


#: by overload: the names of its arguments (as for `Given`), the test whether it has a kernel, and elements of a tile
_CALLS: Mapping[str, tuple[str, Callable[[Given], bool], int]] = {
    "aten.cumsum.default": ("self dim * dtype", _scan, 4096),
    "aten.cumprod.default": ("self dim * dtype", _scan, 4096),
    "aten.sort.default": ("self dim descending", _sort, 2048),
    "aten.sort.stable": ("self * stable dim descending", _sort, 2048),
    "aten.topk.default": ("self k dim largest sorted", _topk, 2048),
}
