"""What is compiled: how it reaches the network, which Python state it reads, forms of its arguments and results."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

Tensor = torch.Tensor


class Pair(NamedTuple):
    x: Tensor
    y: Tensor | None


@dataclasses.dataclass
class Batch:
    x: Tensor
    y: Tensor | None = None


class State:
    """A plain object of the user's. What a program may read of it, by the names in `READS`."""

    model: nn.Module

    def __init__(self) -> None:
        self.scale, self.mode, self.flag = 1.0, "plain", False
        self.options = {"shift": 0.0}
        self.gains: list[float] = []
        self.layers: list[Any] = []
        self.tensor = torch.linspace(-1, 1, 6, dtype=torch.float64)
        self.number: Any = None
        self.function: Callable[..., Tensor] = torch.cos
        self.raises = ""
        self.seen = 0

    def run(self, x: Tensor) -> Tensor:
        return self.model(x)


#: parts of a program beside the network
READS = ("scale", "options", "gains", "mode", "flag", "tensor", "layers", "function", "global", "default", "raises",
         "training", "grad mode", "seen", "parameter", "in place")  # fmt: skip
#: what a program returns beside "out" and "loss"
RETURNS = ("parameter", "buffer", "input", "view", "part", "twice", "number", "text", "none", "tuple", "batch",
           "tensor", "integers")  # fmt: skip
#: how a program finds the network
REACH = ("attribute", "closure", "dict", "list", "global", "object", "partial", "method", "default")
FORMS = ("tensor", "dict", "list", "tuple", "named tuple", "dataclass")

#: globals that a program reads
MODEL: Any = None
SHIFT = 0.0


def reach(
    how: str, state: State
) -> tuple[Callable[[], Callable[[Tensor], Tensor]], Callable[[nn.Module], None]]:
    """(what gives the network to a program, what exchanges the network there)."""
    model = state.model
    if how == "dict":
        held = {"models": {"main": model}}
        return lambda: held["models"]["main"], lambda new: held["models"].update(main=new)
    if how == "list":
        listed = [None, model]
        return lambda: listed[1], lambda new: listed.__setitem__(1, new)
    if how == "global":
        _set_global(model)
        return lambda: MODEL, _set_global
    if how == "object":
        return lambda: state.model, lambda new: None
    if how == "method":
        run = state.run
        return lambda: run, lambda new: None
    if how == "partial":
        call = functools.partial(lambda holder, x: holder.model(x), state)
        return lambda: call, lambda new: None
    if how == "default":

        def default(x: Tensor, held: list[Any] = [model]) -> Tensor:  # noqa: B006
            return held[0](x)

        return lambda: default, lambda new: default.__defaults__[0].__setitem__(0, new)  # type: ignore[index]

    def exchange(new: nn.Module) -> None:
        nonlocal model
        model = new

    return lambda: model, exchange


def _set_global(model: nn.Module) -> None:
    global MODEL
    MODEL = model


def set_shift(value: float) -> None:
    global SHIFT
    SHIFT = value


def make_program(
    state: State, found: Callable[[], Any], reads: frozenset[str], returns: frozenset[str]
) -> Callable[..., dict[str, Any]]:
    """A program of the user's: `program(batch, y=None, number=None)`, which gives a dict of results."""

    def tail(out: Tensor, gain: float = 1.0) -> Tensor:
        return out * gain

    state.tail = tail  # type: ignore[attr-defined]

    def program(batch: Any, y: Tensor | None = None, number: Any = None) -> dict[str, Any]:
        if isinstance(batch, dict):
            x, y = batch["x"], batch.get("y", y)
        elif isinstance(batch, (Pair, Batch)):
            x, y = batch.x, batch.y
        elif isinstance(batch, (list, tuple)):
            x = batch[0]
        else:
            x = batch
        if "raises" in reads and state.raises == "first":
            raise ValueError("as the user asked")
        if "in place" in reads:
            x.mul_(0.5)
        out = found()(x)
        if "scale" in reads:
            out = out * state.scale
        if "options" in reads:
            out = out + state.options["shift"]
        if "gains" in reads:
            for gain in state.gains:
                out = out * gain
        if "mode" in reads and state.mode == "squared":
            out = out.square()
        if "flag" in reads and state.flag:
            out = torch.tanh(out)
        if "tensor" in reads:
            out = out + state.tensor.to(out.dtype)
        if "layers" in reads:
            for layer in state.layers:
                out = layer(out)
        if "function" in reads:
            out = state.function(out)
        if "global" in reads:
            out = out + SHIFT
        if "default" in reads:
            out = tail(out)
        if "training" in reads and state.model.training:
            out = out * 1.5
        if "grad mode" in reads and torch.is_grad_enabled():
            out = out + 0.25
        if "parameter" in reads:
            out = out + state.model.head.weight.sum(0)
        if number is None:
            pass
        elif isinstance(number, bool):
            out = -out if number else out
        elif isinstance(number, str):
            out = out * len(number)
        else:
            out = out + number
        loss = out.square().mean() + 0.1 * out.sum(0)[0]
        if y is not None:
            loss = loss + functional.mse_loss(out, y)
        if "raises" in reads and state.raises == "last":
            raise ValueError("as the user asked")
        if "raises" in reads and state.raises == "index":
            loss = loss + functional.embedding(torch.tensor([9]), state.model.head.weight).sum()
        if "seen" in reads:
            state.seen += 1
        return {"loss": loss, "out": out, **more(x, out, batch, number)}

    def more(x: Tensor, out: Tensor, batch: Any, number: Any) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if "parameter" in returns:
            made["parameter"] = state.model.head.weight
        if "buffer" in returns:
            made["buffer"] = state.model.offset
        if "input" in returns:
            made["input"] = x
        if "view" in returns:
            made["view"] = x[:1]
        if "part" in returns:
            made["part"] = out[0]
        if "twice" in returns:
            made["twice"] = [out, out]
        if "number" in returns:
            made["number"] = number
        if "text" in returns:
            made["text"] = state.mode
        if "none" in returns:
            made["none"] = None
        if "tuple" in returns:
            made["tuple"] = (out.mean(), (out.amax(),))
        if "batch" in returns:
            made["batch"] = batch
        if "tensor" in returns:
            made["tensor"] = state.tensor
        if "integers" in returns:
            made["integers"] = (out > 0).sum(1)
        return made

    return program
