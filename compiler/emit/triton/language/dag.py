"""The expression DAG of a kernel as lines of Triton, for regions and for what follows a contraction alike.

    node 3 = add(node 1, node 2), float32    →    add_3 = load_1 + load_2

Nodes, constants, random numbers and rounding are written here. A `Frame` knows the rest: where the tile's elements
lie in memory, where a line belongs, which numbers a launch passes.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.kernel.constants import is_parameter, signed
from gflow.compiler.kernel.description import Kernel, Node
from gflow.dialects.program import Place
from gflow.dialects.types import FLOATS

from .expressions import (
    HALVES,
    elementwise,
    literal,
    register_dtype,
    rounded,
    scalar_type,
    triton_type,
)


class Fours(NamedTuple):
    """block: the number of the Philox block of each four neighbours along the columns, an expression. shape: of a
    value at all of the tile's elements."""

    block: str
    shape: str


class Frame(Protocol):
    """The kernel around a DAG. used: the functions that are called. coarse: see `precision.coarse`. numbers: names of
    operands and constants, by kind, in the order in which they are met."""

    k: Kernel
    used: set[str]
    coarse: frozenset[int]
    numbers: dict[str, dict[tuple[Any, ...], str]]

    def known(self, key: Any) -> str | None:
        """The variable that was named for `key`, where it can be read from here."""

    def name(self, key: Any, wanted: str, text: str, dims: frozenset[int]) -> str:
        """A variable that holds `text`, which varies along `dims` of the index space."""

    def add(self, text: str, dims: frozenset[int]) -> None:
        """Add a line that is computed once for each position along `dims`."""

    def parameter(self, name: str, kind: str, value: int | float | Place) -> str:
        """A number that a launch passes."""

    def numbered(self, kind: str, key: tuple[Any, ...]) -> str:
        """A name for `key`: its kind, and a number in the order in which keys are met, whatever the op's."""
        own = self.numbers.setdefault(kind, {})
        return own.setdefault(key, f"{kind}{len(own)}")

    def load(self, slot: int) -> str:
        """The elements of load `slot`, as an expression of the register's type."""

    def position(self, slot: int) -> str:
        """The value of index `slot` at the tile's elements; "" for 0."""

    def fours(self, slot: int, dims: frozenset[int]) -> Fours | None:
        """Where four neighbours along the columns always share a Philox block of index `slot`: which."""


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
        case "reduce" | "partial_sums":
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


# -- random numbers: Philox 4x32-10; the definition is docs/random.md's


def _random(f: Frame, i: int, node: Node) -> str:
    """A draw's elements at the tile's positions."""
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
    """Each element computes its block, and takes its own word of it."""
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
