"""How far results may lie from one another: by the type that they were computed in, not the one they are given in.

A float32 product that is cast to float64 is as exact as float32, and processors differ in the order in which their
libraries sum.
"""

from __future__ import annotations

import re
from typing import Any

import torch

#: element type → relative and absolute tolerance of a sum of some hundred terms near 1
_CLOSE = {"f64": (1e-9, 1e-9), "f32": (2e-5, 1e-5), "f16": (4e-3, 1e-3), "bf16": (2e-2, 1e-2)}

_NAMES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.complex128: "f64", torch.complex64: "f32", torch.complex32: "f16",
}  # fmt: skip


def tolerances(dtype: str | torch.dtype, factor: float = 1.0) -> dict[str, float]:
    """`rtol` and `atol` of values computed in `dtype`, "f32" or `torch.float32`; exact for integers.

    factor: how much more than usual is rounded.
    """
    name = dtype if isinstance(dtype, str) else _NAMES.get(dtype, "")
    rtol, atol = _CLOSE.get(name, (0.0, 0.0))
    return {"rtol": factor * rtol, "atol": factor * atol}


def narrowest(text: str) -> torch.dtype:
    """The roughest float type that a program's IR computes in; float64 without floats."""
    types = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
    for name, dtype in types.items():
        if re.search(rf"[<x]{name}>", text):
            return dtype
    return torch.float64


def of_graph(graph: Any, factor: float = 1.0) -> dict[str, float]:
    """`rtol` and `atol` of a graph's results."""
    return tolerances(narrowest(graph.ir("traced", generic=True)), factor)
