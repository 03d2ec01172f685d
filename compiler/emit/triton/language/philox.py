"""Random numbers in a kernel; the definition is docs/random.md's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gflow.compiler.kernel.description import Node

from .expressions import register_dtype, rounded, triton_type

if TYPE_CHECKING:
    from ..region.writer import Writer


def expression(w: Writer, i: int, node: Node) -> str:
    """A draw's elements at the tile's positions."""
    index, seed, offset = node.args
    strides = w.k.indices[w.k.nodes[index].slot]
    state = f"{w.value(seed)}, {w.value(offset)}"
    stream = w.parameter(f"stream_{i}", "i32", signed(node.attrs["stream"]))
    w.used.add("gf_philox")
    kind, dims = node.attrs["kind"], w.k.nodes[index].dims
    if _in_fours(w, strides):
        text = _fours(w, i, strides, f"{stream}, {state}", kind, dims)
    else:
        text = _one_by_one(w, i, strides, f"{stream}, {state}", kind, dims)
    if kind == "bits":
        return f"{text}.to({triton_type(register_dtype(node.dtype))})"
    if node.dtype in ("f16", "bf16"):
        return rounded(text, node.dtype)
    return text if node.dtype == "f32" else f"{text}.to({triton_type(node.dtype)})"


def signed(stream: int) -> int:
    """A stream's number as 32 bits with a sign."""
    low = stream & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low


def _in_fours(w: Writer, strides: tuple[int, ...]) -> bool:
    """Whether four neighbours along the columns are one block, so that its words are computed once."""
    cols = w.t.cols
    if cols < 0 or strides[cols] != 1:
        return False
    return all(s % 4 == 0 for d, s in enumerate(strides) if d != cols)


def _numbers(w: Writer, kind: str, words: list[str]) -> list[str]:
    if kind == "bits":
        return words
    if kind == "uniform":
        w.used.add("gf_uniform")
        return [f"gf_uniform({x})" for x in words]
    w.used.add("gf_normal")
    pairs = (words[0], words[1]), (words[2], words[3])
    return [f"gf_normal({a}, {b}, {sine})" for a, b in pairs for sine in (False, True)]


def _fours(
    w: Writer, i: int, strides: tuple[int, ...], state: str, kind: str, dims: frozenset[int]
) -> str:
    rest = w.offset(strides, without=w.t.cols)
    cols = "tl.arange(0, COLS // 4)" + ("[None, :]" if w.t.rows else "")
    start = "" if w.reduced("cols") and not w.t.loop_cols else "cols_start // 4 + "
    block = f"({rest}) // 4 + {start}{cols}" if rest else f"{start}{cols}"
    scope = w.scope_of(dims)
    words = [f"word{n}_{i}" for n in range(4)]
    w.line(f"{', '.join(words)} = gf_philox({block}, {state})", scope)
    a, b, c, d = _numbers(w, kind, words)
    return f"tl.reshape(tl.join(tl.join({a}, {c}), tl.join({b}, {d})), {_shape(w, dims)})"


def _shape(w: Writer, dims: frozenset[int]) -> str:
    if not w.t.rows:
        return "[COLS]"
    return "[ROWS, COLS]" if dims & set(w.t.rows) else "[1, COLS]"


def _one_by_one(
    w: Writer, i: int, strides: tuple[int, ...], state: str, kind: str, dims: frozenset[int]
) -> str:
    text = w.offset(strides)
    scope = w.scope_of(dims)
    at = f"place_{i}"
    w.line(f"{at} = {text or 'tl.full([], 0, tl.int32)'}", scope)
    words = [f"word{n}_{i}" for n in range(4)]
    w.line(f"{', '.join(words)} = gf_philox({at} // 4, {state})", scope)
    if kind == "normal":
        even, odd = f"even_{i}", f"odd_{i}"
        w.line(f"{even} = tl.where({at} % 4 < 2, {words[0]}, {words[2]})", scope)
        w.line(f"{odd} = tl.where({at} % 4 < 2, {words[1]}, {words[3]})", scope)
        w.used.add("gf_normal")
        return f"gf_normal({even}, {odd}, {at} % 2 == 1)"
    word = f"word_{i}"
    low = f"tl.where({at} % 2 == 0, {words[0]}, {words[1]})"
    high = f"tl.where({at} % 2 == 0, {words[2]}, {words[3]})"
    w.line(f"{word} = tl.where({at} % 4 < 2, {low}, {high})", scope)
    return _numbers(w, kind, [word])[0] if kind == "bits" else _uniform(w, word)


def _uniform(w: Writer, word: str) -> str:
    w.used.add("gf_uniform")
    return f"gf_uniform({word})"
