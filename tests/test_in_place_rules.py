"""Shape rules of in-place ops: what they accept, they accept as PyTorch's do; all else is PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gflow.tracing.dispatch.shapes import in_place_rules
from gflow.tracing.dispatch.shapes.in_place_rules import quick_rules

aten = torch.ops.aten
NUMBERS = {
    "hardtanh_": (0.0, 6.0), "leaky_relu_": (0.1,), "elu_": (1.0, 1, 1), "clamp_": (0.0, 1.0), "clamp_min_": (0.5,),
}  # fmt: skip
OPERANDS = {"addcmul_": 2, "addcdiv_": 2, "lerp_": 1, "add_": 1, "sub_": 1, "mul_": 1, "div_": 1}  # fmt: skip


def arguments(op: Any, other: Tensor) -> tuple[Any, ...]:
    name = op._schema.name.removeprefix("aten::")
    numbers = (0.5,) if name == "lerp_" else NUMBERS.get(name, ())
    return (*[other] * OPERANDS.get(name, 0), *numbers)


def outcome(op: Any, target: Tensor, args: tuple[Any, ...]) -> Any:
    """The result's type, or that of the error."""
    try:
        made = op(target, *args)
    except (RuntimeError, TypeError, ValueError) as error:
        return type(error)
    return made is target, made.shape, made.stride(), made.dtype


@pytest.mark.parametrize("op", in_place_rules.ELEMENTWISE, ids=str)
def test_rules_are_pytorchs(op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def original(found: Any) -> Any:
        rule = kept(found)
        return lambda *args, **kwargs: (asked.append(found), rule(*args, **kwargs))[1]

    kept = in_place_rules._original
    monkeypatch.setattr(in_place_rules, "_original", original)
    meta = [
        (torch.empty(shape, dtype=dtype, device="meta"), torch.empty(other, dtype=kind, device="meta"))
        for shape, other in (((3, 4), (3, 4)), ((3, 4), (4,)), ((4,), (3, 4)), ((3, 4), ()))
        for dtype, kind in (
            (torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.int64, torch.int64),
            (torch.bool, torch.bool), (torch.float32, torch.complex64),
        )
    ]  # fmt: skip
    wanted = [outcome(op, target, arguments(op, other)) for target, other in meta]
    with quick_rules():
        assert [outcome(op, target, arguments(op, other)) for target, other in meta] == wanted
        asked.clear()
        outcome(op, *meta[0][:1], arguments(op, meta[0][1]))
        assert not asked
    assert outcome(op, meta[0][0], arguments(op, meta[0][1])) == wanted[0]
    assert not asked
