"""The element types of values in registers of a GPU: half precision is widened to float32."""

from __future__ import annotations

from gflow.dialects.types import HALVES


def register_dtype(dtype: str) -> str:
    """The element type that holds a `dtype` value in a register of a GPU."""
    return "f32" if dtype in HALVES else dtype
