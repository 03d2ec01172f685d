"""Winograd's transforms of F(2×2, 3×3): a 2×2 tile of results from a 4×4 tile of the input by 16 multiplications.

    Y = Aᵀ [(G g Gᵀ) ∘ (Bᵀ d B)] A

Each function takes rows of vectors, and transforms both dimensions. (Winograd: Arithmetic complexity of computations,
1980; Lavin and Gray: Fast algorithms for convolutional neural networks, CVPR 2016.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..function import VECTOR, Function

#: a matrix of vectors
Matrix = Sequence[Sequence[str]]
_Along = Callable[[Function, Sequence[str]], list[str]]


def of_input(e: Function, d: Matrix) -> list[list[str]]:
    """Bᵀ d B of a 4×4 matrix: 4×4."""
    return _both(e, d, along_input)


def of_weight(e: Function, g: Matrix) -> list[list[str]]:
    """G g Gᵀ of a 3×3 matrix: 4×4."""
    return _both(e, g, _weight)


def of_result(e: Function, m: Matrix) -> list[list[str]]:
    """Aᵀ m A of a 4×4 matrix: 2×2."""
    return _both(e, m, _result)


def along_gradient(e: Function, y: Sequence[str]) -> list[str]:
    """A y of a vector of 2, a gradient of results: 4."""
    return [y[0], e.plus(y[0], y[1]), _minus(e, y[0], y[1]), e(f"arith.negf {y[1]} : {VECTOR}")]


def of_gradient(e: Function, m: Matrix) -> list[list[str]]:
    """Gᵀ m G of a 4×4 matrix, a gradient with respect to `of_weight`: 3×3."""
    return _both(e, m, _gradient)


def _both(e: Function, m: Matrix, along: _Along) -> list[list[str]]:
    columns = [along(e, column) for column in zip(*m)]
    return [along(e, row) for row in zip(*columns)]


def along_input(e: Function, d: Sequence[str]) -> list[str]:
    """Bᵀ d of a vector of 4: 4."""
    return [_minus(e, d[0], d[2]), e.plus(d[1], d[2]), _minus(e, d[2], d[1]), _minus(e, d[1], d[3])]


def _weight(e: Function, g: Sequence[str]) -> list[str]:
    half = e.const(0.5, VECTOR)
    ends = e.plus(g[0], g[2])
    return [
        g[0],
        *(e(f"arith.mulf {x}, {half} : {VECTOR}") for x in (e.plus(ends, g[1]), _minus(e, ends, g[1]))),
        g[2],
    ]  # fmt: skip


def _result(e: Function, m: Sequence[str]) -> list[str]:
    return [e.plus(m[0], e.plus(m[1], m[2])), _minus(e, _minus(e, m[1], m[2]), m[3])]


def _gradient(e: Function, m: Sequence[str]) -> list[str]:
    half = e.const(0.5, VECTOR)
    sum_, difference = (
        e(f"arith.mulf {x}, {half} : {VECTOR}") for x in (e.plus(m[1], m[2]), _minus(e, m[1], m[2]))
    )
    return [e.plus(m[0], sum_), difference, e.plus(sum_, m[3])]


def _minus(e: Function, a: str, b: str) -> str:
    return e(f"arith.subf {a}, {b} : {VECTOR}")
