"""The expression DAG of an epilogue as lines of Triton."""

from __future__ import annotations

from collections.abc import Callable

from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.kernel.description import Kernel, Node

from .expressions import (
    HALVES,
    elementwise,
    is_plain,
    literal,
    loaded,
    register_dtype,
    rounded,
    scalar_type,
    triton_type,
)
from .parameters import Parameters
from .philox import signed
from .precision import coarse


def evaluate(
    k: Kernel,
    load: Callable[[Node], str],
    index: Callable[[Node], str],
    params: Parameters,
    lines: list[str],
    used: set[str],
) -> list[str]:
    """Append the lines that compute a kernel's nodes; the name, or literal, of each one's value.

    load, index: the expression of such a node. used: gets the functions that are called.
    """
    names: list[str] = []
    inexact = coarse(k)
    for n, node in enumerate(k.nodes):
        args = [names[a] for a in node.args]
        if node.op == "load":
            text = load(node)
            if not text.isidentifier():
                text = loaded(text, node.dtype)
        elif node.op == "index":
            text = index(node)
        elif node.op == "const":
            names.append(_constant(node, n, params))
            continue
        elif node.op == "random":
            text = _random(node, n, args, params, lines, used)
        elif node.op == "reduce":
            raise CannotLower("a reduction after a contraction, in one kernel")
        else:
            kinds = [k.nodes[a].dtype for a in node.args]
            text = elementwise(node.op, args, kinds, node.dtype, node.attrs, used, n in inexact)
        if text.isidentifier():
            names.append(text)
            continue
        names.append(f"v{n}")
        lines.append(f"v{n} = {text}")
    return names


def _constant(node: Node, n: int, params: Parameters) -> str:
    value = node.attrs["value"]
    if is_plain(value, node.dtype):
        return literal(value, node.dtype)
    name = f"c{n}"
    params.types[name] = scalar_type(node.dtype)
    params.values.append(value)
    return name


def _random(
    node: Node, n: int, args: list[str], params: Parameters, lines: list[str], used: set[str]
) -> str:
    """A draw's elements at the tile's positions (docs/random.md), each from its block of four words."""
    at, seed, offset = args
    kind, name = node.attrs["kind"], f"stream{n}"
    params.types[name] = "i32"
    params.values.append(signed(node.attrs["stream"]))
    w = [f"w{n}_{i}" for i in range(4)]
    used.add("gf_philox")
    lines.append(f"{', '.join(w)} = gf_philox({at} // 4, {name}, {seed}, {offset})")
    low, high = f"{at} % 2 == 0", f"{at} % 4 < 2"
    if kind == "normal":
        used.update(("gf_uniform", "gf_normal"))
        pair = [f"tl.where({high}, {w[i]}, {w[i + 2]})" for i in (0, 1)]
        text = f"gf_normal({pair[0]}, {pair[1]}, {at} % 2 == 1)"
    else:
        text = f"tl.where({high}, tl.where({low}, {w[0]}, {w[1]}), tl.where({low}, {w[2]}, {w[3]}))"
        if kind == "bits":
            return f"{text}.to({triton_type(register_dtype(node.dtype))})"
        used.add("gf_uniform")
        text = f"gf_uniform({text})"
    if node.dtype in HALVES:
        return rounded(text, node.dtype)
    return text if node.dtype == "f32" else f"{text}.to({triton_type(node.dtype)})"
