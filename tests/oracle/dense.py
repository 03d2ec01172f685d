"""Eager on dense copies: every kernel reads row-major operands and writes row-major results.

Some of PyTorch's kernels give other numbers where operands have gaps: vector code and scalar code of one op treat
NaN in different ways (the gradient of `elu`), or a result is written as if it were row-major (`avg_pool3d(out=)`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Tensor = torch.Tensor


#: elementwise ops whose vector code and scalar code treat NaN in different ways, so that their answer depends on
#: how many elements there are
_BY_SIZE = frozenset({torch.ops.aten.hardtanh_backward})


def _repeated(func: Any, args: Any, kwargs: Any) -> Any:
    """An elementwise op on operands of one shape, on as many copies as vector code takes all of."""
    first = next(a for a in args if isinstance(a, Tensor))
    many = [a.reshape(-1).repeat(64) if isinstance(a, Tensor) else a for a in args]
    return func(*many, **kwargs)[: first.numel()].reshape(first.shape).clone()


class ChannelsLast(TorchDispatchMode):
    """Runs convolutions on channels-last operands: kernels for these leave padding out, others multiply zeros
    with the weights, which is NaN where a weight is infinite or NaN."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        if func.overloadpacket in (torch.ops.aten.convolution, torch.ops.aten.convolution_backward):
            args = [
                a.contiguous(memory_format=formats[a.dim()])
                if isinstance(a, Tensor) and a.dim() in formats
                else a
                for a in args
            ]
        return func(*args, **(kwargs or {}))


class Dense(TorchDispatchMode):
    """Runs what is no view on row-major copies of its operands; what it writes to them is copied back."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in _BY_SIZE:
            return _repeated(func, args, kwargs)
        aliases = [a.alias_info for a in func._schema.arguments if a.alias_info is not None]
        if aliases and not any(a.is_write for a in aliases):
            return func(*args, **kwargs)
        copies: dict[int, tuple[Tensor, Tensor]] = {}

        def dense(t: Tensor) -> Tensor:
            if t.is_contiguous() or t.layout != torch.strided:
                return t
            known = copies.get(id(t))
            if known is None:
                known = copies[id(t)] = (t, t.clone(memory_format=torch.contiguous_format))
            return known[1]

        args, kwargs = pytree.tree_map_only(Tensor, dense, (args, kwargs))
        out = func(*args, **kwargs)
        written = [
            a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments
        ]
        names = [a.name for a in func._schema.arguments]
        places = [a for a, w in zip(args, written) if w]
        places += [v for k, v in kwargs.items() if written[names.index(k)]]
        changed = {id(t) for t in pytree.tree_leaves(places) if isinstance(t, Tensor)}
        originals = {}
        for t, copy in copies.values():
            if id(copy) in changed:
                t.copy_(copy)
                originals[id(copy)] = t
        return pytree.tree_map_only(Tensor, lambda t: originals.get(id(t), t), out)
