"""Decompositions of ops that engines lack into ops that they have; one table for all formats.

calls      ATen calls, by overload
functions  elementwise ops
networks   attention, gradients of convolutions, reductions and random numbers
terms      values of the dialect with Python's operators, so that decompositions read as formulas
windows    pooling
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gflow.dialects.mlir import ir

from . import calls, functions, networks, windows
from .terms import Term

#: takes operands and attributes, returns results
Decomposition = Callable[[list[Term], dict[str, Any]], list[Term]]


def _one(function: Callable[..., Term]) -> Decomposition:
    return lambda terms, attrs: [function(*terms, attrs)]


DECOMPOSITIONS: dict[str, Decomposition] = {
    **{name: _one(function) for name, function in functions.FUNCTIONS.items()},
    "aten": calls.decompose,
    "attention": networks.attention,
    "attention_grad": networks.attention_grad,
    "avg_pool": _one(windows.avg_pool),
    "avg_pool_grad": _one(windows.avg_pool_grad),
    "convolution_weight_grad": _one(networks.weight_grad),
    "max_pool": lambda terms, attrs: windows.max_pool(terms[0], attrs),
    "max_pool_grad": _one(windows.max_pool_grad),
    "packed_product": _one(networks.packed_product),
    "partial_sums": _one(networks.partial_sums),
    "random": _one(networks.random),
    "reduce": _one(networks.reduce),
}


def decompose(name: str, operands: Sequence[ir.Value], attrs: dict[str, Any]) -> list[ir.Value]:
    """Build the decomposition of an op at the current insertion point; returns its results."""
    return [t.value for t in DECOMPOSITIONS[name]([Term(v) for v in operands], attrs)]
