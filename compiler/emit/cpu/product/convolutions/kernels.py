"""The kernels of convolutions, by name: text, and the words that each takes.

A convolution with groups of more than one channel is a matrix product of patches; a depthwise one
has kernels of its own. All sizes are words, so one function serves every layer.
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
    """A convolution kernel: its text, what it calls, and its words' names in order."""
    t = _MAKERS[name]()
    return t.function(name), frozenset(t.externals), t.word_names
