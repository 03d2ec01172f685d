"""`torch.lstm`, `torch.gru` and plain RNNs in a trace.

Over a static length a layer is recorded as matrix products and gates, step by step. Over a dynamic length it is one op
for each layer (`gflow.runtime.torch_ops.recurrent`), which the program calls in PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ..recorder import Recorder

Tensor = torch.Tensor


def recurrent(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a recurrent layer for the function mode of `rewrites`, without oneDNN and cuDNN. Their layers pass
    their backward a workspace whose size no shape rule has; without them, a layer is recorded as matrix products
    and gates."""
    if not kwargs and len(args) == 9 and _has_length_that_varies(mode.recorder, args):
        return _layers(func.__name__, *args)
    onednn, cudnn = torch._C._get_mkldnn_enabled(), torch._C._get_cudnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    torch._C._set_cudnn_enabled(False)
    try:
        return func(*args, **kwargs)
    finally:
        torch._C._set_mkldnn_enabled(onednn)
        torch._C._set_cudnn_enabled(cudnn)


def _has_length_that_varies(recorder: Recorder, args: tuple[Any, ...]) -> bool:
    """Whether a layer runs over a dynamic length. args: (input, state, weights, has biases, layers, dropout, train,
    bidirectional, batch first); those of packed sequences differ."""
    input, state, biased = args[0], args[1], args[3]
    if recorder.sizes is None or type(biased) is not bool:
        return False
    states = state if isinstance(state, (list, tuple)) else [state]
    if torch.is_autocast_enabled(input.device.type) or input.dim() != 3:
        return False
    if any(t.dtype != input.dtype for t in (*states, *args[2])):
        return False
    return isinstance(input.shape[1 if args[8] else 0], torch.SymInt)


def _layers(
    kind: str,
    input: Tensor,
    state: Any,
    weights: Sequence[Tensor],
    biased: bool,
    count: int,
    dropout: float,
    train: bool,
    both_ways: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    # imported here for start-up time: few programs have such a layer
    from gflow.runtime.torch_ops.recurrent import layer

    x = input.transpose(0, 1) if batch_first else input
    states = [*state] if kind == "lstm" else [state]
    directions = 2 if both_ways else 1
    each = len(weights) // count
    hidden, cells = [], []
    for n in range(count):
        mine = [s[n * directions : (n + 1) * directions] for s in states]
        if n and dropout and train:
            x = F.dropout(x, dropout, True)
        x, h, c = layer(x, mine, weights[n * each : (n + 1) * each], kind, biased, both_ways)
        hidden.append(h)
        cells.append(c)
    output = x.transpose(0, 1) if batch_first else x
    last = torch.cat(hidden)
    return (output, last, torch.cat(cells)) if kind == "lstm" else (output, last)
