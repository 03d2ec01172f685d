"""PyTorch's own code made traceable: library functions that look at the values of tensors, or
take kernels whose shape rules are wrong, are replaced while a graph is traced. Each replacement
computes the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import transformer


def _is_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    """The original compares the mask's values with a causal one, to take a faster kernel."""
    return is_causal is True


_REPLACED: list[tuple[Any, str, Callable[..., Any]]] = [
    (transformer, "_detect_is_causal_mask", _is_causal),
]


@contextlib.contextmanager
def traceable_library() -> Iterator[None]:
    """Active around `build()`."""
    originals = [getattr(owner, name) for owner, name, _ in _REPLACED]
    onednn = torch._C._get_mkldnn_enabled()
    for owner, name, function in _REPLACED:
        setattr(owner, name, function)
    # oneDNN's LSTM layer hands its backward a workspace of a size that no shape rule knows;
    # without it, an LSTM is recorded as matrix products and gates. Convolutions are recorded as
    # aten.convolution either way.
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(onednn)
        for (owner, name, _), original in zip(_REPLACED, originals):
            setattr(owner, name, original)
