"""Products of three or more sizes in AOTAutograd's graphs, of which PyTorch's generated code multiplies only the first
two."""

from __future__ import annotations

import operator

import torch

#: operators that take any number of operands in sympy, and two in Python
_BINARY = (operator.mul, operator.and_, operator.or_)


def with_binary_products(module: torch.fx.GraphModule) -> None:
    """Rewrite each product of several sizes as products of two, in place.

    `make_fx` records the sympy expression `s0*s1*s2`, if no op of the graph computes it, as one node `operator.mul(s0,
    s1, s2)`. The generated code of the graph module is then `s0 * s1`, and a stride or a size is too small, without an
    error (PyTorch 2.13, `_build_proxy_for_sym_expr`).
    """
    found = [
        n for n in module.graph.nodes if n.op == "call_function" and n.target in _BINARY and len(n.args) > 2
    ]  # fmt: skip
    for node in found:
        value, *rest = node.args
        *rest, last = rest
        with module.graph.inserting_before(node):
            for factor in rest:
                made = module.graph.call_function(node.target, (value, factor))
                made.meta["val"] = node.target(_value(value), _value(factor))
                value = made
        node.args = (value, last)
    if found:
        module.recompile()


def _value(argument: object) -> object:
    return argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument
