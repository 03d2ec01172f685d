"""The table of convolution kernels: text and arguments by name.

A convolution with groups of more than one channel is a matrix product of patches; a depthwise one has its own kernels.
All sizes are arguments, so one function serves all layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ...language.template import Template
from . import depthwise, patches

_MAKERS: dict[str, Callable[[], Template]] = {
    "pack_patches": lambda: patches.pack(False),
    "pack_patches_channel_major": lambda: patches.pack(True),
    "add_patches": lambda: patches.unpack(False),
    "add_patches_channel_major": lambda: patches.unpack(True),
    "depthwise": lambda: depthwise.forward(False),
    "depthwise_tiles": lambda: depthwise.forward(True),
    "depthwise_input_grad": depthwise.input_grad,
    "depthwise_weight_grad": depthwise.weight_grad,
}


@cache
def kernel(name: str) -> tuple[str, frozenset[str], tuple[str, ...]]:
    """A convolution kernel: its text, the external functions that it calls, and the names of its arguments in order."""
    t = _MAKERS[name]()
    return t.function(name), frozenset(t.externals), t.word_names
