"""How a call is made: arguments, contexts, threads; and the eager step that a graph's call stands for."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from torch.utils import _pytree as pytree

from .nets import WIDTH
from .programs import FORMS, Batch, Pair
from .session import action, number
from .world import NotThere, World

Tensor = torch.Tensor

#: contexts around a call; those without gradients are for entries that have none in the call itself
WITHOUT_GRADIENTS = ("no_grad", "inference", "grad off")
CONTEXTS = (
    *("",) * 24, *WITHOUT_GRADIENTS, "grad on", "autocast", "default float64", "deterministic", "one thread", "device",
    "precision",
)  # fmt: skip
NUMBERS = (None, None, None, 0.5, 0.25, 2, 3, True, False, "ab", "abc", 0, 1)


@contextmanager
def _setting(get: Callable[[], Any], put: Callable[[Any], None], value: Any) -> Iterator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def _context(name: str) -> AbstractContextManager[Any]:
    made: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
        "grad off": lambda: torch.set_grad_enabled(False),
        "grad on": torch.enable_grad,
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "default float64": lambda: _setting(
            torch.get_default_dtype, torch.set_default_dtype, torch.float64
        ),
        "deterministic": lambda: _setting(
            torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
        ),
        "one thread": lambda: _setting(torch.get_num_threads, torch.set_num_threads, 1),
        "device": lambda: torch.device("cpu"),
        "precision": lambda: _setting(
            torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
        ),
    }
    return made[name]()


# -- arguments


def _input(world: World, values: int, size: int, layout: str, share: str) -> Tensor:
    """The features of a call. share: what memory they lie in."""
    if share == "again" and world.inputs:
        return world.inputs[-1]
    if share == "result":
        found = [
            r["out"] for r in world.held if isinstance(r, dict) and isinstance(r.get("out"), Tensor)
        ]
        if found:
            return found[-1].detach()
    if share == "parameter":
        return world.model.head.weight.detach()
    if layout == "transposed":
        return world.rand(values, WIDTH, size).t()
    if layout == "sliced":
        return world.rand(values, size, 2 * WIDTH)[:, ::2]
    if layout == "expanded":
        return world.rand(values, 1, WIDTH).expand(size, WIDTH)
    if layout == "offset":
        return world.rand(values, size + 1, WIDTH)[1:]
    return world.rand(values, size, WIDTH)


def _formed(form: str, x: Tensor, y: Tensor | None) -> tuple[Any, Tensor | None]:
    """(first argument, second) in a form."""
    if form == "dict":
        return {"x": x, "y": y}, None
    if form == "list":
        return [x], y
    if form == "tuple":
        return (x, 1), y
    if form == "named tuple":
        return Pair(x, y), None
    if form == "dataclass":
        return Batch(x, y), None
    return x, y


@action(
    "call", 0,
    values=number, size=(1, 2, 4, 4, 4, 5, 6),
    layout=("plain",) * 6 + ("transposed", "sliced", "expanded", "offset"),
    share=("",) * 12 + ("again", "result", "parameter"), form=("tensor",) * 5 + FORMS,
    target=("",) * 3 + ("plain", "same"),
    how=("by position", "by position", "by keyword"), number=NUMBERS, dtype=("",) * 12 + ("float32", "float64"),
    requires_grad=(False,) * 5 + (True,), context=CONTEXTS,
    thread=(False,) * 12 + (True,), backward=(True, True, False),
)  # fmt: skip
def call(
    world: World, values: int, size: int, layout: str, share: str, form: str, target: str, how: str, number: Any,
    dtype: str, requires_grad: bool, context: str, thread: bool, backward: bool,
) -> None:  # fmt: skip
    """A call of what is compiled, or in eager the step that it stands for."""
    x = _input(world, values, size, layout, share)
    if dtype and not world.wide:
        x = x.to(getattr(torch, dtype))
    y = {"": None, "plain": world.rand(values + 1, *x.shape), "same": x}[target]
    if requires_grad and x.is_leaf and not x.is_inference():
        x.requires_grad_()
    world.inputs.append(x)
    batch, y = _formed(form, x, y)
    trains = world.session.entry == "train"
    if trains and context in WITHOUT_GRADIENTS:
        context = ""
    args, kwargs = (
        ((batch, y, number), {})
        if how == "by position"
        else ((), {"number": number, "batch": batch, "y": y})
    )
    make_call(world, world.target, args, kwargs, context, thread, backward, trains)


def make_call(
    world: World, target: Any, args: Any, kwargs: Any, context: str = "", thread: bool = False, backward: bool = False,
    trains: bool = False,
) -> None:  # fmt: skip
    """Call, in these contexts, and keep the results."""

    def made() -> Any:
        with ExitStack() as around:
            if context and not (world.wide and context == "autocast"):
                around.enter_context(_context(context))
            if not world.is_eager:
                return target(*args, **kwargs)
            around.enter_context(world.noise())
            return eager_step(world, target, args, kwargs, trains)

    step = (
        world.session.entry in ("compile", "dynamo")
        and backward
        and context not in WITHOUT_GRADIENTS
    )

    def whole() -> None:
        results = _in_thread(made) if thread else made()
        loss = results["loss"]
        if world.session.entry in ("train", "graph"):
            results = pytree.tree_map_only(Tensor, _without_history, results)
        world.note_results(results)
        if step:
            with world.noise():
                loss.backward()
                for optimizer in world.optimizers:
                    optimizer.step()
            if world.schedule is not None:
                world.schedule.step()

    if not world.is_eager:
        return whole()
    before = Before(world)
    try:
        whole()
    except Unscheduled as error:
        before.restore_schedule()
        raise error.__cause__ or error from None
    except Exception:
        before.restore()
        raise
    if world.at in world.refused:
        before.restore()
        world.held.pop()
        world.results, world.shares = None, {}
    return None


def _without_history(t: Tensor) -> Tensor:
    return t.detach() if t.grad_fn is not None else t


def _in_thread(made: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(made())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


class Unscheduled(Exception):
    """A schedule failed after the optimizers' steps, which have taken place, in a graph, too."""


def eager_step(world: World, program: Any, args: Any, kwargs: Any, trains: bool) -> Any:
    """What a call of a graph means: with optimizers, a whole step, which leaves `.grad` as it was."""
    if not trains:
        return program(*args, **kwargs)
    everything = {p for o in world.optimizers for g in o.param_groups for p in g["params"]}
    everything |= set(world.parameters()) | {
        t for t in world.inputs if t.requires_grad and t.is_leaf
    }
    kept = [(p, p.grad) for p in everything]
    for p in everything:
        p.grad = None
    try:
        results = program(*args, **kwargs)
        loss = results["loss"]
        scaler = world.scaler
        (loss if scaler is None else scaler.scale(loss)).backward()
        results = pytree.tree_map_only(Tensor, _without_history, results)
        for optimizer in world.optimizers:
            _clip(optimizer, scaler)
            if scaler is None:
                optimizer.step()
            elif any(p.grad is not None for g in optimizer.param_groups for p in g["params"]):
                scaler.step(optimizer)  # which asserts that there are gradients
        if scaler is not None:
            scaler.update()
        if world.schedule is not None:
            try:
                world.schedule.step()
            except Exception as error:
                raise Unscheduled from error
        return results
    finally:
        for p, grad in kept:
            p.grad = grad


def _clip(optimizer: torch.optim.Optimizer, scaler: Any) -> None:
    for group in optimizer.param_groups:
        norm = group.get("clip_grad_max_norm")
        if norm is None or not any(p.grad is not None for p in group["params"]):
            continue
        if scaler is not None:
            scaler.unscale_(optimizer)
        clip_grad_norm_(group["params"], norm, group.get("clip_grad_norm_type", 2.0))


class Before:
    """All state before a call, which is as it was where the call fails."""

    def __init__(self, world: World) -> None:
        modules = [
            m
            for root in (world.model, *world.state.layers)
            if isinstance(root, torch.nn.Module)
            for m in root.modules()
        ]
        self.modules = [(m, dict(vars(m)), dict(m._parameters), dict(m._buffers)) for m in modules]
        slots = [
            t for _, _, p, b in self.modules for t in (*p.values(), *b.values()) if t is not None
        ]
        own = [t for _, v, _, _ in self.modules for t in v.values() if isinstance(t, Tensor)]
        states = [
            t
            for o in world.optimizers
            for s in o.state.values()
            for t in s.values()
            if isinstance(t, Tensor)
        ]
        trained = [p for o in world.optimizers for g in o.param_groups for p in g["params"]]
        tensors = [*slots, *own, *states, *trained, *world.inputs, world.state.tensor]
        tensors = [
            t for t in tensors if not isinstance(t, torch.nn.parameter.UninitializedTensorMixin)
        ]
        tensors = list({id(t): t for t in tensors}.values())
        self.values = [
            (t, t.detach().clone(), t.grad, None if t.grad is None else t.grad.clone())
            for t in tensors
        ]
        self.optimizers = [
            (o, {p: dict(s) for p, s in o.state.items()}, [dict(g) for g in o.param_groups])
            for o in world.optimizers
        ]
        self.schedule, self.scaler = (
            o and (o, copy.deepcopy(o.state_dict())) for o in (world.schedule, world.scaler)
        )
        self.rng, self.state = torch.get_rng_state(), (world.state, dict(vars(world.state)))

    def restore_schedule(self) -> None:
        """Put back the schedule, and the groups' options."""
        if self.schedule is not None:
            self.schedule[0].load_state_dict(self.schedule[1])
        for optimizer, _, groups in self.optimizers:
            for live, saved in zip(optimizer.param_groups, groups):
                live.update(saved)

    def restore(self) -> None:
        for m, own, parameters, buffers in self.modules:
            for name, t in own.items():
                if isinstance(t, Tensor):
                    vars(m)[name] = t
            m._parameters.update(parameters)
            m._buffers.update(buffers)
        for t, value, grad, elements in self.values:
            with torch.no_grad():
                if not torch.equal(t, value):
                    t.data.copy_(value)
            t.grad = grad
            if grad is not None:
                grad.data.copy_(elements)
        for optimizer, states, _ in self.optimizers:
            optimizer.state.clear()
            optimizer.state.update(states)
        self.restore_schedule()
        if self.scaler is not None:
            self.scaler[0].load_state_dict(self.scaler[1])
        state, values = self.state
        vars(state).update(values)
        torch.set_rng_state(self.rng)


__all__ = ["Before", "NotThere", "make_call"]
