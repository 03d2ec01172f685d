"""The frame of every elementwise rule: promotion, broadcast, compute in opmath, round once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .dtypes import default_float, is_float, opmath, result_dtype
from .emitter import Emitter, Value, broadcast_shapes


def pointwise(
    em: Emitter,
    operands: Sequence[Any],
    body: Callable[..., Value],
    *,
    float_result: bool = False,
    dtype: str | None = None,
    rounded: bool = False,
) -> Value:
    """`body` over operands (values or Python numbers) in their common type and shape.

    float_result: integers and bools are computed as the default float (PyTorch's true division).
    dtype: overrides the common type.
    rounded: operands of a wider type, 0-d ones and numbers, are rounded to the common type first, as PyTorch does where
        an op is not computed in a wider one (comparisons, remainders).
    The body's result is converted back to the common type unless it is i1 (a comparison).
    """
    common = dtype or result_dtype(operands)
    shape: tuple[int, ...] = ()
    numbers = True
    for x in operands:
        if isinstance(x, Value):
            shape = broadcast_shapes(shape, x.shape)
            numbers = numbers and x.number
    if float_result and not is_float(common):
        common = "f64" if numbers else default_float()
    compute = opmath(common)
    first = common if rounded else compute
    values = [
        em.broadcast(em.convert(x, first), shape)
        if isinstance(x, Value)
        else em.full(x, shape, first)
        for x in operands
    ]
    result = body(*[em.convert(v, compute) for v in values] if rounded else values)
    if result.dtype == compute:
        result = em.convert(result, common)
    return result
