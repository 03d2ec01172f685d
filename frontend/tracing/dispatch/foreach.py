"""Per-tensor form of `aten._foreach_*`: a graph fuses across tensors by itself."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

_BASE = {"norm": "linalg_vector_norm", "max": "amax"}
_VALUE_KEYWORD = {"addcmul", "addcdiv"}
#: ops whose per-tensor form takes no numbers → the one that does
_BY_NUMBERS = {"maximum": "clamp_min", "minimum": "clamp_max"}


def split_foreach(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    """The results of one functional foreach op, computed tensor by tensor; None if the op has no per-tensor form."""
    base = func._schema.name.removeprefix("aten::_foreach_")
    name = _BASE.get(base, base)
    if func._overloadname.startswith("Scalar"):
        name = _BY_NUMBERS.get(name, name)
    if base == "zero":
        return [torch.zeros_like(t) for t in args[0]]
    op = getattr(aten, name, None)
    if op is None or not isinstance(op, torch._ops.OpOverloadPacket):
        return None
    lists = [a for a in args if isinstance(a, (list, tuple))]
    if not lists:
        return None
    count = len(lists[0])
    results = []
    for i in range(count):
        items = [a[i] if isinstance(a, (list, tuple)) and len(a) == count else a for a in args]
        words = {k: v for k, v in kwargs.items() if v is not None}
        if base in _VALUE_KEYWORD and len(items) == 4:
            words["value"] = items.pop()
        results.append(op(*items, **words))
    return results
