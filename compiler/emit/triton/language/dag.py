"""The expression DAG of a kernel as lines of Triton, for regions and for epilogues.

    node 3 = add(node 1, node 2), float32    →    add_3 = load_1 + load_2

This module writes nodes, constants, random numbers and rounding. A `Frame` provides the rest: addresses of the tile's
elements, the scope of a line, kernel arguments.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.kernel.constants import is_parameter, signed
from gflow.compiler.kernel.description import APART, OF_RUNS, Kernel, Node
from gflow.dialects.program import Place
from gflow.dialects.types import FLOATS, HALVES

from .expressions import (
    elementwise,
    literal,
    register_dtype,
    rounded,
    scalar_type,
    triton_type,
)


class Fours(NamedTuple):
    """Groups of four elements along the columns, each of which shares a Philox block.

    block: the number of each group's Philox block, as an expression. shape: the shape of the tile, as text.
    """

    block: str
    shape: str


class Frame(Protocol):
    """The kernel around a DAG.

    Attributes:
        used: the device functions that are called.
        coarse: the nodes that need only half precision (`precision.coarse`).
        numbers: the names of operands and constants, by kind, numbered in order of use.
    """

    k: Kernel
    used: set[str]
    coarse: frozenset[int]
    numbers: dict[str, dict[tuple[Any, ...], str]]

    def known(self, key: Any) -> str | None:
        """The variable for `key`, if there is one in an open scope; otherwise None."""

    def name(self, key: Any, wanted: str, text: str, dims: frozenset[int]) -> str:
        """A variable with the value `text`, which varies along `dims` of the index space."""

    def add(self, text: str, dims: frozenset[int]) -> None:
        """Add a line that is computed once for each position along `dims`."""

    def parameter(self, name: str, kind: str, value: int | float | Place) -> str:
        """Add a kernel argument, and return its name."""

    def numbered(self, kind: str, key: tuple[Any, ...]) -> str:
        """The name of `key`: its kind, and a number in order of use, so that equal regions have equal names."""
        own = self.numbers.setdefault(kind, {})
        return own.setdefault(key, f"{kind}{len(own)}")

    def load(self, slot: int) -> str:
        """The value of load `slot`, as an expression of the register type."""

    def position(self, slot: int) -> str:
        """The value of index `slot` at the tile's elements, as an expression; "" for 0."""

    def fours(self, slot: int, dims: frozenset[int]) -> Fours | None:
        """The groups of four elements along the columns that share a Philox block of index `slot`; None: no groups."""


def value(f: Frame, i: int) -> str:
    """Node `i`, as a variable or a literal."""
    found = f.known(i)
    if found is not None:
        return found
    node = f.k.nodes[i]
    if node.op == "const":
        return _constant(f, i, node)
    text = _expression(f, i, node)
    return text if text.isidentifier() else f.name(i, f"{node.op}_{i}", text, node.dims)


def _expression(f: Frame, i: int, node: Node) -> str:
    match node.op:
        case "load":
            return f.load(node.slot)
        case "index":
            text = f.position(node.slot)
            return f"({text}).to(tl.int64)" if text else "tl.full([], 0, tl.int64)"
        case "random":
            return _random(f, i, node)
        case op if op in ("reduce", "row") or op in APART or op in OF_RUNS:
            raise CannotLower(f"a {node.op} where none of its passes is written")
    args = [value(f, a) for a in node.args]
    dtypes = [f.k.nodes[a].dtype for a in node.args]
    return elementwise(node.op, args, dtypes, node.dtype, node.attrs, f.used, i in f.coarse)


def _constant(f: Frame, i: int, node: Node) -> str:
    given, dtype = node.attrs["value"], node.dtype
    if not is_parameter(given, dtype):
        text = literal(given, register_dtype(dtype))
        return f.name(i, f"const_{i}", text, frozenset()) if text.startswith("tl.") else text
    number = float(given) if dtype in FLOATS else int(given)
    name = f.numbered("const", (number, dtype))
    return f.parameter(name, scalar_type(dtype), number)


# -- random numbers: Philox 4x32-10, as defined in docs/random.md


def _random(f: Frame, i: int, node: Node) -> str:
    """The random numbers at the tile's positions."""
    index, seed, offset = node.args
    slot, dims, kind = f.k.nodes[index].slot, f.k.nodes[index].dims, node.attrs["kind"]
    number = signed(node.attrs["stream"])
    state = f"{value(f, seed)}, {value(f, offset)}"
    state = f"{f.parameter(f.numbered('stream', (number,)), 'i32', number)}, {state}"
    f.used.add("gf_philox")
    fours = f.fours(slot, dims)
    if fours:
        words = _words(f, i, fours.block, state, dims)
        a, b, c, d = _numbers(f, kind, words)
        text = f"tl.reshape(tl.join(tl.join({a}, {c}), tl.join({b}, {d})), {fours.shape})"
    else:
        text = _one_by_one(f, i, f.position(slot), state, kind, dims)
    if kind == "bits":
        return f"{text}.to({triton_type(register_dtype(node.dtype))})"
    if node.dtype in HALVES:
        return rounded(text, node.dtype)
    return text if node.dtype == "f32" else f"{text}.to({triton_type(node.dtype)})"


def _words(f: Frame, i: int, block: str, state: str, dims: frozenset[int]) -> list[str]:
    words = [f"word{n}_{i}" for n in range(4)]
    f.add(f"{', '.join(words)} = gf_philox({block}, {state})", dims)
    return words


def _numbers(f: Frame, kind: str, words: list[str]) -> list[str]:
    if kind == "bits":
        return words
    if kind == "uniform":
        f.used.add("gf_uniform")
        return [f"gf_uniform({x})" for x in words]
    f.used.add("gf_normal")
    pairs = (words[0], words[1]), (words[2], words[3])
    return [f"gf_normal({a}, {b}, {sine})" for a, b in pairs for sine in (False, True)]


def _one_by_one(
    f: Frame, i: int, position: str, state: str, kind: str, dims: frozenset[int]
) -> str:
    """Random numbers without groups of four: each element computes its Philox block and uses one word of it."""
    at = f"place_{i}"
    f.add(f"{at} = {position or 'tl.full([], 0, tl.int32)'}", dims)
    words = _words(f, i, f"{at} // 4", state, dims)
    if kind == "normal":
        even, odd = f"even_{i}", f"odd_{i}"
        f.add(f"{even} = tl.where({at} % 4 < 2, {words[0]}, {words[2]})", dims)
        f.add(f"{odd} = tl.where({at} % 4 < 2, {words[1]}, {words[3]})", dims)
        f.used.add("gf_normal")
        return f"gf_normal({even}, {odd}, {at} % 2 == 1)"
    low = f"tl.where({at} % 2 == 0, {words[0]}, {words[1]})"
    high = f"tl.where({at} % 2 == 0, {words[2]}, {words[3]})"
    f.add(f"word_{i} = tl.where({at} % 4 < 2, {low}, {high})", dims)
    return _numbers(f, kind, [f"word_{i}"])[0]
