"""Products of three and more sizes in AOTAutograd's graphs, which PyTorch writes down with the first two alone."""

from __future__ import annotations

import operator

import torch

#: what sympy takes of any number of operands, and Python's operators of two
_BINARY = (operator.mul, operator.and_, operator.or_)


def with_binary_products(module: torch.fx.GraphModule) -> None:
    """Write each product of several sizes as products of two.

    `make_fx` records the sympy expression `s0*s1*s2`, where it meets one that no op of the graph has made, as one node
    `operator.mul(s0, s1, s2)`. The code of a graph module is `s0 * s1` then, so that a stride or a size is too small,
    without an error (PyTorch 2.13, `_build_proxy_for_sym_expr`).
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
