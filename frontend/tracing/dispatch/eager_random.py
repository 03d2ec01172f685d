"""Eager's random numbers in programs (`CompileOptions.eager_random`): ops that draw become `gflow::draw`, which calls
ATen on PyTorch's generator.

    aten.rand_like(x)                →  gflow.draw("uniform_", size and strides of an empty_like(x), float32, [], [])
    aten.native_dropout(x, p, True)  →  mask = gflow.draw("bernoulli_", …, bool, [1 - p], []);  x * (mask / (1 - p))

The recorder calls `draw_as_eager` instead of an overload, and AOTAutograd takes it as a decomposition. Other ops that
draw (`multinomial`, `poisson`) run through ATen in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch

from gflow.errors import GraphTraceError
from gflow.runtime.torch_ops.draw import draw

aten = torch.ops.aten
Tensor = torch.Tensor

#: by overload: how `gflow::draw` draws, and the numbers and tensors for it, each the name of an argument of the
#: overload, or a constant
_HOW: dict[Any, tuple[str, tuple[str | int, ...]]] = {
    aten.rand.default: ("uniform_", ()),
    aten.rand.generator: ("uniform_", ()),
    aten.rand_like.default: ("uniform_", ()),
    aten.randn.default: ("normal_", ()),
    aten.randn.generator: ("normal_", ()),
    aten.randn_like.default: ("normal_", ()),
    aten.randint.default: ("random_", (0, "high")),
    aten.randint.generator: ("random_", (0, "high")),
    aten.randint.low: ("random_", ("low", "high")),
    aten.randint.low_generator: ("random_", ("low", "high")),
    aten.randint_like.default: ("random_", (0, "high")),
    aten.randint_like.low_dtype: ("random_", ("low", "high")),
    aten.uniform.default: ("uniform_", ("from", "to")),
    aten.normal_functional.default: ("normal_", ("mean", "std")),
    aten.normal.float_float: ("normal_", ("mean", "std")),
    aten.normal.Tensor_float: ("normal_of_mean", ("std", "mean")),
    aten.normal.float_Tensor: ("normal_of_std", ("mean", "std")),
    aten.normal.Tensor_Tensor: ("normal_of_both", ("mean", "std")),
    aten.log_normal.default: ("log_normal_", ("mean", "std")),
    aten.exponential.default: ("exponential_", ("lambd",)),
    aten.cauchy.default: ("cauchy_", ("median", "sigma")),
    aten.geometric.default: ("geometric_", ("p",)),
    aten.bernoulli.default: ("bernoulli_of", ("self",)),
    aten.bernoulli.Tensor: ("bernoulli_of", ("p",)),
    aten.bernoulli.p: ("bernoulli_", ("p",)),
    aten.random.default: ("random_", ()),
    aten.random.to: ("random_", ("to",)),
    getattr(aten.random, "from"): ("random_", ("from", "to")),
}
_DROPOUT = aten.native_dropout.default
DRAWING = frozenset((*_HOW, _DROPOUT))
"""The overloads that `draw_as_eager` is for."""
#: ops without a lowering of gflow's, which draw in the order of their operands' memory
_BY_LAYOUT = frozenset(
    (
        aten._sample_dirichlet.default,
        aten._standard_gamma.default,
        aten.binomial.default,
        aten.multinomial.default,
        aten.poisson.default,
        aten.rrelu_with_noise_functional.default,
    )
)
_OPTIONS = ("dtype", "layout", "device", "pin_memory", "memory_format")


def draw_as_eager(func: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of an overload of `DRAWING`, with eager's numbers; NotImplemented where it draws none from PyTorch's
    default generator, or from a range without an end.

    Raises:
        GraphTraceError: the result is not on the CPU.
    """
    schema = func._schema.arguments
    stated = dict(zip((a.name for a in schema), args)) | kwargs
    given = {a.name: a.default_value for a in schema} | stated
    if func is _DROPOUT:
        return _dropout(given["input"], given["p"], given["train"])
    how, names = _HOW[func]
    taken = [n if isinstance(n, int) else given[n] for n in names]
    if given.get("generator") is not None or any(t is None for t in taken):
        return NotImplemented
    options = {name: stated[name] for name in _OPTIONS if stated.get(name) is not None}
    tensors = [t for t in taken if isinstance(t, Tensor)]
    if "size" in given:
        if how == "random_":
            options.setdefault("dtype", torch.int64)
        like = torch.empty(given["size"], **options)
    elif func.overloadpacket.__name__.endswith("_like"):
        like = torch.empty_like(given["self"], **options)
    elif tensors and func is not aten.bernoulli.Tensor:
        like = tensors[0].new_empty(torch.broadcast_shapes(*(t.shape for t in tensors)))
    else:
        like = given["self"]
    return _drawn(how, like, taken)


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """`draw_as_eager` for each overload, as AOTAutograd takes it."""
    return {func: partial(draw_as_eager, func) for func in DRAWING}


def _drawn(
    how: str, like: Tensor, taken: Sequence[Any], dtype: torch.dtype | None = None
) -> Tensor:
    """What is drawn into a tensor with the size, strides and type of `like`. taken: numbers and tensors."""
    if like.device.type != "cpu":
        raise GraphTraceError(
            "random numbers of eager (eager_random) are drawn on the CPU only, and a tensor of them is on "
            f"{like.device}; leave the option out, or draw them outside and pass them in"
        )
    tensors = [t for t in taken if isinstance(t, Tensor)]
    numbers = [t for t in taken if not isinstance(t, Tensor)]
    found: Tensor = draw(how, like.shape, like.stride(), dtype or like.dtype, numbers, tensors)
    return found


def _dropout(x: Tensor, p: float, train: bool | None) -> Any:
    """As eager's dropout on the CPU, which draws nothing where it keeps or drops all elements, or there are none.
    ATen's `native_dropout` would."""
    if train is False or p == 0 or x.numel() == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return x * 0.0, torch.zeros_like(x, dtype=torch.bool)
    mask = _drawn("bernoulli_", torch.empty_like(x), (1.0 - p,), torch.bool)
    noise = aten._to_copy.default(mask, dtype=x.dtype) / (1.0 - p)
    return x * noise, mask


def depends_on_layouts(func: Any) -> bool:
    """Whether an op draws numbers through ATen in an order that depends on its operands' layouts."""
    return func in _BY_LAYOUT


def check_layouts(func: Any, args: Sequence[Any]) -> None:
    """Check the operands of a drawing op that runs through ATen: a program passes them row-major, and the numbers that
    ATen draws depend on their layouts.

    Raises:
        GraphTraceError: an operand is not row-major.
    """
    if depends_on_layouts(func) and any(
        isinstance(a, Tensor) and not a.is_contiguous() for a in args
    ):
        raise GraphTraceError(
            f"{func} draws random numbers of eager (eager_random) for a tensor that is not contiguous, and a program "
            "would draw them in another order; pass a copy (.contiguous())"
        )
