"""What is done between calls: to modules, parameters, buffers and hooks."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from ..tensors import default_dtype
from .nets import (
    BLOCKS,
    WIDTH,
    Centred,
    Chosen,
    Dropped,
    Own,
    Plain,
    Recurrent,
    Statistics,
    Style,
)
from .session import action, number
from .world import NotThere, World

Tensor = torch.Tensor
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.InstanceNorm1d)


# -- modes


@action("mode", 2, on=number, whole=(True, False), training=(True, False))
def mode(world: World, on: int, whole: bool, training: bool) -> None:
    module = world.model if whole else world.module(on)
    module.train(training)


@action("training by assignment", 0.5, on=number, training=(True, False))
def training_by_assignment(world: World, on: int, training: bool) -> None:
    world.module(on).training = training


# -- values of parameters and buffers


@action("load state", 1.5, seed=number, assign=(True, False))
def load_state(world: World, seed: int, assign: bool) -> None:
    state = {}
    for i, (name, t) in enumerate(world.model.state_dict().items()):
        wanted = isinstance(t, Tensor) and t.is_floating_point()
        state[name] = 0.9 * t.detach() + world.rand(seed + i, *t.shape, scale=0.1) if wanted else t
    world.model.load_state_dict(state, assign=assign)


@action("load state of a module", 0.7, on=number, assign=(True, False))
def load_state_of_module(world: World, on: int, assign: bool) -> None:
    module = world.module(on)
    state = {
        k: t.clone() * 0.5 if isinstance(t, Tensor) and t.is_floating_point() else t
        for k, t in module.state_dict().items()
    }
    module.load_state_dict(state, assign=assign)


@action(
    "parameter replaced",
    1.5,
    on=number,
    seed=number,
    how=("new", "trained too", "shared", "frozen", "transposed"),
)
def parameter_replaced(world: World, on: int, seed: int, how: str) -> None:
    module, name, old = world.slot(on)
    elements = world.rand(seed, *old.shape, scale=0.3)
    if how == "transposed" and elements.dim() == 2:
        elements = elements.t().contiguous().t()
    new = nn.Parameter(elements, requires_grad=how != "frozen")
    if how == "shared":
        alike = [p for p in world.parameters() if p.shape == old.shape and p is not old]
        new = world.one(alike, seed)
    setattr(module, name, new)
    if how == "trained too":
        for group in (g for o in world.optimizers for g in o.param_groups):
            group["params"] = [new if p is old else p for p in group["params"]]


@action(
    "data replaced",
    1.5,
    on=number,
    seed=number,
    how=("new", "transposed", "shared", "slice"),
    buffers=(False, False, True),
)
def data_replaced(world: World, on: int, seed: int, how: str, buffers: bool) -> None:
    _, _, t = world.slot(on, buffers)
    if not t.is_floating_point():
        raise NotThere
    new = world.rand(seed, *t.shape, scale=0.3).abs()
    if how == "transposed" and t.dim() == 2:
        new = new.t().contiguous().t()
    elif how == "shared":
        new = world.one(
            [p for p in world.parameters() if p.shape == t.shape and p is not t], seed
        ).data
    elif how == "slice":
        new = world.rand(seed, *t.shape, 2).abs()[..., 0]
    t.data = new


@action(
    "in place",
    2.5,
    on=number,
    seed=number,
    how=("mul", "copy", "data", "numpy", "element", "zero", "set", "swap"),
    buffers=(False, False, True),
)
def in_place(world: World, on: int, seed: int, how: str, buffers: bool) -> None:
    _, _, t = world.slot(on, buffers)
    if not t.is_floating_point():
        with torch.no_grad():
            t.add_(1)
        return
    new = world.rand(seed, *t.shape, scale=0.5).abs()
    with torch.no_grad():
        if how == "mul":
            t.mul_(0.75).add_(0.125)
        elif how == "copy":
            t.copy_(new)
        elif how == "data":
            t.data.mul_(0.5)
        elif how == "numpy":
            if t.dtype == torch.bfloat16:
                raise NotThere
            t.detach().numpy()[...] = new.numpy()
        elif how == "element":
            t.view(-1)[0] = 0.25
        elif how == "zero":
            t.zero_()
        elif how == "set":
            t.set_(new)
        else:
            torch.utils.swap_tensors(
                t, nn.Parameter(new, t.requires_grad) if isinstance(t, nn.Parameter) else new
            )


@action("initialize", 0.5, on=number, value=(0.25, 0.5))
def initialize(world: World, on: int, value: float) -> None:
    for p in world.module(on).parameters():
        nn.init.constant_(p, value)


@action("buffer replaced", 1, on=number, seed=number, how=("attribute", "register", "none"))
def buffer_replaced(world: World, on: int, seed: int, how: str) -> None:
    module, name, old = world.slot(on, buffers=True)
    new = world.rand(seed, *old.shape).abs().to(old.dtype)
    if how == "register":
        module.register_buffer(name, new, persistent=name not in module._non_persistent_buffers_set)
    else:
        setattr(module, name, None if how == "none" else new)


@action("requires grad", 2, on=number, what=("parameter", "module", "whole"), value=(False, True))
def requires_grad(world: World, on: int, what: str, value: bool) -> None:
    found = {"parameter": world.parameter, "module": world.module, "whole": lambda _: world.model}[
        what
    ](on)
    found.requires_grad_(value)


@action("gradient by hand", 0.7, on=number, how=("none", "ones", "scaled"))
def gradient_by_hand(world: World, on: int, how: str) -> None:
    p = world.parameter(on)
    if how == "scaled":
        if p.grad is None:
            raise NotThere
        p.grad.mul_(0.5)
    else:
        p.grad = None if how == "none" else torch.ones_like(p)


@action("bias gone or back", 0.5, on=number)
def bias_gone(world: World, on: int) -> None:
    layer = world.module(on, nn.Linear)
    layer.bias = nn.Parameter(torch.zeros_like(layer.weight[:, 0])) if layer.bias is None else None


@action("tie", 0.7, one=number, two=number)
def tie(world: World, one: int, two: int) -> None:
    world.module(one, nn.Linear).weight = world.module(two, nn.Linear).weight


@action("type", 0.4, on=number, dtype=("float32", "float64"), whole=(True, False))
def other_type(world: World, on: int, dtype: str, whole: bool) -> None:
    (world.model if whole else world.module(on)).to(
        world.dtype if world.wide else getattr(torch, dtype)
    )


# -- hooks


def _scaling(world: World, factor: float) -> Any:
    """A hook of any kind, which multiplies what it may change."""

    def scaled(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(v if v is None else v * factor for v in value)
        return value * factor

    return scaled


@action(
    "module hook",
    2,
    on=number,
    kind=("forward", "pre", "backward", "backward pre", "reads"),
    factor=(0.5, 2.0),
)
def module_hook(world: World, on: int, kind: str, factor: float) -> None:
    module, scaled = world.module(on), _scaling(world, factor)
    state = world.state
    if kind == "forward":
        handle = module.register_forward_hook(lambda m, a, out: scaled(out))
    elif kind == "pre":
        handle = module.register_forward_pre_hook(lambda m, a: scaled(a))
    elif kind == "backward":
        handle = module.register_full_backward_hook(lambda m, gi, go: scaled(gi))
    elif kind == "backward pre":
        handle = module.register_full_backward_pre_hook(lambda m, go: scaled(go))
    else:  # what a hook reads is state as well
        handle = module.register_forward_hook(
            lambda m, a, out: out * state.scale if isinstance(out, Tensor) else None
        )
    world.handles.append(handle)


@action(
    "tensor hook",
    1.5,
    on=number,
    kind=("plain", "plain", "reads", "accumulated"),
    factor=(0.5, 2.0),
)
def tensor_hook(world: World, on: int, kind: str, factor: float) -> None:
    p = world.parameter(on)
    if kind == "plain":
        world.handles.append(p.register_hook(lambda g: g * factor))
    elif kind == "reads":
        state = world.state
        world.handles.append(p.register_hook(lambda g: g * state.scale))
    else:
        world.handles.append(p.register_post_accumulate_grad_hook(lambda q: q.grad.mul_(factor)))


@action("hook removed", 1.5, on=number)
def hook_removed(world: World, on: int) -> None:
    handle = world.one(world.handles, on)
    world.handles.remove(handle)
    handle.remove()


# -- parametrizations


@action(
    "parametrize",
    1,
    on=number,
    kind=("centred", "weight norm", "spectral norm", "prune", "old weight norm", "gain"),
    train=(True, False),
)
def parametrized(world: World, on: int, kind: str, train: bool) -> None:
    if kind == "gain":
        world.module(on, Centred).gain = 0.5
        return
    layer = world.module(on, nn.Linear)
    known = {id(p) for p in world.parameters()}
    with torch.random.fork_rng(devices=[]):
        if kind == "centred":
            parametrize.register_parametrization(layer, "weight", Centred(0.5))
        elif kind == "prune":
            prune.l1_unstructured(layer, "weight", 0.25)
        else:
            make = {"weight norm": parametrizations.weight_norm, "spectral norm": parametrizations.spectral_norm,
                    "old weight norm": nn.utils.weight_norm}  # fmt: skip
            make[kind](layer)
    new = [p for p in world.parameters() if id(p) not in known]
    if train and new and world.optimizers:
        world.optimizers[0].add_param_group({"params": new})


@action("parametrization removed", 1, on=number)
def unparametrized(world: World, on: int) -> None:
    layer = world.module(on, nn.Linear)
    if parametrize.is_parametrized(layer):
        parametrize.remove_parametrizations(layer, "weight")
    elif prune.is_pruned(layer) and hasattr(layer, "weight_mask"):
        prune.remove(layer, "weight")
    elif hasattr(layer, "weight_g"):
        nn.utils.remove_weight_norm(layer)
    else:
        raise NotThere


# -- structure


def _block(world: World, kind: str, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with default_dtype(world.narrow):
            return BLOCKS[kind]().to(world.dtype)


SIMPLE = (
    "linear",
    "mlp",
    "batch norm",
    "layer norm",
    "plain",
    "statistics",
    "dropped",
    "chosen",
    "tied",
    "weight norm",
)


@action(
    "blocks",
    2,
    how=("append", "replace", "insert", "remove", "swap", "again", "extend"),
    on=number,
    kind=SIMPLE,
    seed=number,
    train=(True, False),
)
def blocks(world: World, how: str, on: int, kind: str, seed: int, train: bool) -> None:
    held = world.model.blocks
    new = _block(world, kind, seed)
    if how == "append":
        held.append(new)
    elif how == "extend":
        held.extend([new, nn.Tanh()])
    elif how == "insert":
        held.insert(on % (len(held) + 1), new)
    elif how == "again":
        held.append(world.one(list(held), on))
    elif how == "swap" and len(held) > 1:
        held[0], held[-1] = held[-1], held[0]
    elif how == "remove" and len(held) > 1:
        del held[on % len(held)]
    else:
        held[on % len(held)] = new
    if train and world.optimizers and any(m is new for m in held):
        world.optimizers[0].add_param_group({"params": list(new.parameters())})


@action(
    "head replaced", 1, how=("attribute", "set_submodule", "deleted", "add_module"), seed=number
)
def head_replaced(world: World, how: str, seed: int) -> None:
    new = _block(world, "linear", seed)
    if how == "attribute":
        world.model.head = new
    elif how == "set_submodule":
        world.model.set_submodule("head", new)
    elif how == "add_module":
        world.model.add_module("head", new)
    else:
        del world.model.head
        world.model.head = new


@action(
    "chosen changed",
    1.5,
    what=("which", "depth", "scale", "shift", "named", "loop", "branch"),
    seed=number,
)
def chosen_changed(world: World, what: str, seed: int) -> None:
    block = world.module(seed, Chosen)
    if what == "which":
        block.which = "b" if block.which == "a" else "a"
    elif what == "depth":
        block.depth = 1 if block.depth > 1 else 9
    elif what == "scale":
        block.scale = nn.Parameter(world.rand(seed, WIDTH))
    elif what == "shift":
        block.shifts.append(nn.Parameter(world.rand(seed, WIDTH)))
    elif what == "named":
        block.named["bias"] = nn.Parameter(world.rand(seed, 1))
    elif what == "loop":
        block.loop.append(nn.Sigmoid())
    else:
        block.branches["a"] = _block(world, "linear", seed)


# -- attributes


@action("attribute of a library's module", 2.5, on=number, how=(0, 1, 2, 3))
def attribute(world: World, on: int, how: int) -> None:
    """An attribute that its forward reads."""
    kinds = (
        *BATCH_NORMS,
        nn.LayerNorm,
        nn.GroupNorm,
        nn.LeakyReLU,
        nn.Dropout,
        nn.Embedding,
        nn.Conv1d,
        nn.ReLU,
    )
    module = world.module(on, *kinds)
    if isinstance(module, BATCH_NORMS):
        if how == 0:
            module.momentum = 0.5
        elif how == 1:
            module.momentum = None
        elif how == 2:
            module.eps = 0.1
        else:
            module.track_running_stats = not module.track_running_stats
    elif isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
        module.eps = 0.5 * (how + 1)
    elif isinstance(module, nn.LeakyReLU):
        module.negative_slope = 0.2 * (how + 1)
    elif isinstance(module, nn.Dropout):
        module.p = float(how % 2)
    elif isinstance(module, nn.ReLU):
        module.inplace = not module.inplace
    elif isinstance(module, nn.Embedding):
        if how == 0:
            module.padding_idx = 0
        elif how == 1:
            module.max_norm = 0.25
        elif how == 2:
            module.scale_grad_by_freq = True
        else:
            module.padding_idx = None
    elif how == 0:
        module.padding_mode, module._reversed_padding_repeated_twice = "circular", [1, 1]
    else:
        module.padding_mode = "zeros"


@action("running statistics", 0.7, on=number, how=("reset", "none", "momentum"))
def running_statistics(world: World, on: int, how: str) -> None:
    norm = world.module(on, *BATCH_NORMS)
    if how == "reset":
        norm.reset_running_stats()
    elif how == "none":
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    else:
        norm.momentum = 0.3


@action(
    "attribute of the author's module", 4, on=number, how=tuple(range(14)), value=(0.5, 1.0, 2.0)
)
def own_attribute(world: World, on: int, how: int, value: float) -> None:
    module = world.module(on, Plain, Statistics, Recurrent, Own, Dropped)
    if isinstance(module, Statistics):
        if how % 2:
            module.momentum = value / 4
        else:
            module.peak = torch.ones_like(module.peak) * value
    elif isinstance(module, Recurrent):
        module.keep = not module.keep
    elif isinstance(module, Own):
        module.factor = value
    elif isinstance(module, Dropped):
        module.p = 0.0 if module.p else 1.0
    else:
        _plain_changed(world, module, how, value, on)


def _plain_changed(world: World, module: Any, how: int, value: float, seed: int) -> None:
    if how == 0:
        module.factor = value
    elif how == 1:
        module.power = 2 if module.power == 1 else 1
    elif how == 2:
        module.flag = not module.flag
    elif how == 3:
        module.kind = "none" if module.kind == "tanh" else "tanh"
    elif how == 4:
        module.style = Style.SINE if module.style is Style.TANH else Style.TANH
    elif how == 5:
        module.options["shift"] = value
    elif how == 6:
        module.options["deep"]["gain"] = value
    elif how == 7:
        module.items.append(value)
    elif how == 8:
        module.items[0] = value
    elif how == 9:
        module.pair = (value, 2)
    elif how == 10:
        module.extra = world.rand(seed, WIDTH)
    elif how == 11:
        module.hidden.append(nn.Linear(WIDTH, WIDTH, bias=False))
        with torch.no_grad():
            module.hidden[-1].weight.fill_(value / 8)
    elif how == 12:
        module.function = torch.cos if module.function is torch.sin else torch.sin
    else:
        module.options = {"shift": value, "deep": {"gain": value}}


@action(
    "attribute of the network",
    1.5,
    how=("gain", "residual", "offset", "offset in place"),
    value=(0.5, 1.5),
)
def net_attribute(world: World, how: str, value: float) -> None:
    net = world.model
    if how == "gain":
        net.gain = value
    elif how == "residual":
        net.residual = not net.residual
    elif how == "offset":
        net.offset = torch.full_like(net.head.bias, value).detach()
    else:
        net.offset.fill_(value)


def _doubled(self: Any, x: Tensor) -> Tensor:
    return 2 * nn.functional.linear(x, self.weight, self.bias)


class Halved(nn.Linear):
    """A class that a module may get instead of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * super().forward(x)


@action("forward replaced", 1, on=number, how=("method", "class", "back"))
def forward_replaced(world: World, on: int, how: str) -> None:
    layer = world.module(on, nn.Linear)
    if how == "method":
        layer.forward = types.MethodType(_doubled, layer)
    elif how == "class":
        if type(layer) is not nn.Linear:
            raise NotThere
        layer.__class__ = Halved
    elif "forward" in vars(layer):
        del layer.forward
    else:
        raise NotThere
