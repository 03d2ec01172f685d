"""What is done between calls: to optimizers, schedules, scalers, PyTorch's settings, results, and whole networks."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import tempfile
from typing import Any

import torch
from torch import nn
from torch.optim import swa_utils

import gflow as flow

from . import programs
from .calls import Before, make_call
from .nets import WIDTH
from .session import action, number
from .world import NotThere, World

Tensor = torch.Tensor

# -- optimizers


@action("group", 3, on=number,
        what=("lr", "lr", "weight_decay", "momentum", "betas", "maximize", "foreach", "nesterov", "amsgrad", "eps",
        "clip_grad_max_norm", "tensor lr", "alpha"), value=(0.0, 0.01, 0.05, 0.3))  # fmt: skip
def group(world: World, on: int, what: str, value: float) -> None:
    """An option of a parameter group that it has."""
    options = world.group(on)
    key = "lr" if what == "tensor lr" else what
    if key not in options:
        raise NotThere
    if what == "betas":
        options[what] = (value, 0.9)
    elif what in ("maximize", "nesterov", "amsgrad"):
        if what == "nesterov" and not options["momentum"]:
            raise NotThere
        options[what] = not options[what]
    elif what == "foreach":
        options[what] = False if options[what] is None else None
    elif what == "tensor lr":
        options["lr"] = torch.tensor(value, dtype=torch.float64)
    elif what in ("eps", "clip_grad_max_norm"):
        options[what] = value + 0.01
    else:
        options[what] = value


@action("group added", 1, on=number, kind=("unused", "new parameter of the network"))
def group_added(world: World, on: int, kind: str) -> None:
    optimizer = world.optimizer(on)
    new = nn.Parameter(world.rand(on, WIDTH))
    if kind != "unused":
        known = {id(p) for o in world.optimizers for g in o.param_groups for p in g["params"]}
        missing = [p for p in world.parameters() if id(p) not in known]
        new = world.one(missing, on)
    optimizer.add_param_group({"params": [new]})


@action("parameter taken out of a group", 0.7, on=number)
def taken_out(world: World, on: int) -> None:
    params = world.group(on)["params"]
    if len(params) < 2:
        raise NotThere
    del params[on % len(params)]


@action(
    "optimizer's state",
    2.5,
    on=number,
    how=("scale", "replace", "clear", "delete", "step", "load", "load changed", "zero"),
)
def optimizer_state(world: World, on: int, how: str) -> None:
    optimizer = world.optimizer(on)
    if how in ("load", "load changed"):
        state = copy.deepcopy(optimizer.state_dict())
        if how == "load changed":
            for own in state["state"].values():
                for key, t in own.items():
                    if isinstance(t, Tensor) and t.dim():
                        own[key] = t * 0.5
            for each in state["param_groups"]:
                each["lr"] = 0.02
        optimizer.load_state_dict(state)
        return
    if how == "clear":
        optimizer.state.clear()
        return
    owner = world.one([p for p in optimizer.state if optimizer.state[p]], on)
    own = optimizer.state[owner]
    if how == "delete":
        del optimizer.state[owner]
    elif how == "step":
        if "step" not in own:
            raise NotThere
        own["step"] = own["step"] + 5
    else:
        for key, t in own.items():
            if isinstance(t, Tensor) and t.dim():
                if how == "replace":
                    own[key] = t * 0.5
                elif how == "scale":
                    t.mul_(0.5)
                else:
                    t.zero_()


@action("zero grad", 1, on=number, how=(True, False, "model"))
def zero_grad(world: World, on: int, how: Any) -> None:
    if how == "model":
        world.model.zero_grad()
    else:
        world.optimizer(on).zero_grad(set_to_none=how)


@action("optimizer made anew", 0.5)
def optimizer_anew(world: World) -> None:
    """Optimizers without state, and what is called with them."""
    world.one(world.optimizers, 0)
    world.make_optimizers()
    world.make()


@action("eager step", 1.5, seed=number, zero=(True, False))
def eager_step(world: World, seed: int, zero: bool) -> None:
    """A step of the user's without gflow, on the same network and optimizers."""
    if zero:
        for optimizer in world.optimizers:
            optimizer.zero_grad()
    with world.noise():
        world.model(world.rand(seed, 4, WIDTH)).square().mean().backward()
        for optimizer in world.optimizers:
            optimizer.step()


@action("eager call", 1, seed=number)
def eager_call(world: World, seed: int) -> None:
    with torch.no_grad(), world.noise():
        world.results = {"eager": world.model(world.rand(seed, 4, WIDTH))}


@action("optimizer hook", 0.7, on=number, when=("pre", "post"))
def optimizer_hook(world: World, on: int, when: str) -> None:
    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        for each in optimizer.param_groups:
            each["lr"] = each["lr"] * 0.5

    optimizer = world.optimizer(on)
    register = (
        optimizer.register_step_pre_hook if when == "pre" else optimizer.register_step_post_hook
    )
    world.handles.append(register(hook))


# -- schedules and scalers


@action("schedule", 1.5, how=("step", "load", "attribute", "plateau", "replaced lr"))
def schedule(world: World, how: str) -> None:
    if how == "plateau":
        optimizer = world.optimizer(0)
        if world.plateau is None:
            world.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, factor=0.5, patience=0
            )
        world.plateau.step(1.0)
        return
    found = world.schedule
    if found is None:
        raise NotThere
    if how == "step":
        found.step()
    elif how == "load":
        found.load_state_dict(copy.deepcopy(found.state_dict()))
    elif how == "attribute":
        for name in ("gamma", "step_size", "T_max", "factor", "power"):
            if isinstance(getattr(found, name, None), (int, float)):
                setattr(found, name, getattr(found, name) * 2)
    else:
        found.base_lrs = [0.5 * v for v in found.base_lrs]


@action("scaler", 0.5, how=("update", "interval", "load", "factor"))
def scaler(world: World, how: str) -> None:
    found = world.scaler
    if found is None or not found.state_dict():
        raise NotThere
    if how == "update":
        found.update(4.0)
    elif how == "interval":
        found.set_growth_interval(1)
    elif how == "factor":
        found.set_growth_factor(4.0)
    else:
        found.load_state_dict({**found.state_dict(), "scale": 2.0})


# -- PyTorch's settings


@action("random state", 1, how=("seed", "draw", "set", "back"), seed=number)
def random_state(world: World, how: str, seed: int) -> None:
    if how == "seed":
        torch.manual_seed(seed)
    elif how == "draw":
        torch.rand(3)
    elif how == "set":
        torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)


@action(
    "setting",
    1,
    what=("threads", "precision", "deterministic", "default dtype", "grad mode"),
    value=(0, 1),
)
def setting(world: World, what: str, value: int) -> None:
    if what == "threads":
        torch.set_num_threads(1 + value)
    elif what == "precision":
        torch.set_float32_matmul_precision(("highest", "high")[value])
    elif what == "deterministic":
        torch.use_deterministic_algorithms(bool(value))
    elif what == "default dtype":
        torch.set_default_dtype((torch.float32, torch.float64)[value])
    else:
        if world.session.entry == "train" and not value:
            raise NotThere
        torch.set_grad_enabled(bool(value))


@action("collect", 0.2)
def collect(world: World) -> None:
    gc.collect()


# -- Python state that the program reads


@action("state", 4,
        what=("scale", "options", "gains", "mode", "flag", "tensor", "tensor in place", "tensor.data", "layers",
        "layer",        "function", "global", "default", "gain"), value=(0.5, 2.0, 1.0), seed=number)  # fmt: skip
def state(world: World, what: str, value: float, seed: int) -> None:
    s = world.state
    if what == "scale":
        s.scale = value
    elif what == "options":
        s.options["shift"] = value
    elif what == "gains":
        s.gains.append(value)
    elif what == "gain":
        if not s.gains:
            raise NotThere
        s.gains[-1] = value
    elif what == "mode":
        s.mode = "plain" if s.mode == "squared" else "squared"
    elif what == "flag":
        s.flag = not s.flag
    elif what == "tensor":
        s.tensor = world.rand(seed, WIDTH).double()
    elif what == "tensor in place":
        s.tensor.mul_(value)
    elif what == "tensor.data":
        s.tensor.data = world.rand(seed, 2 * WIDTH).double()[::2]
    elif what == "layers":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            s.layers.append(
                nn.Linear(WIDTH, WIDTH).to(world.narrow).to(world.dtype) if seed % 2 else torch.sin
            )
    elif what == "layer":
        layer = world.one([x for x in s.layers if isinstance(x, nn.Linear)], seed)
        layer.requires_grad_(not layer.weight.requires_grad)
    elif what == "function":
        s.function = torch.sin if s.function is torch.cos else torch.cos
    elif what == "global":
        programs.set_shift(value)
    else:
        s.tail.__defaults__ = (value,)  # type: ignore[attr-defined]


@action("raises", 0.7, when=("first", "last", "index"))
def raises(world: World, when: str) -> None:
    """A call that the program ends with an exception, and then it is as before."""
    world.state.raises = when
    try:
        make_call(
            world,
            world.target,
            (world.rand(3, 4, WIDTH),),
            {},
            trains=world.session.entry == "train",
        )
    finally:
        world.state.raises = ""


# -- results


@action("result changed", 1.5, on=number, how=("mul", "zero", "last"))
def result_changed(world: World, on: int, how: str) -> None:
    """The user's own update of a result that is held."""
    found = [
        r["out"] for r in world.held if isinstance(r, dict) and isinstance(r.get("out"), Tensor)
    ]
    out = found[-1] if how == "last" and found else world.one(found, on)
    with torch.no_grad():
        out.zero_() if how == "zero" else out.mul_(2)


@action("input changed", 0.7, on=number)
def input_changed(world: World, on: int) -> None:
    with torch.no_grad():
        world.one(world.inputs, on).mul_(0.5)


@action("results dropped", 0.3)
def results_dropped(world: World) -> None:
    world.held.clear()
    gc.collect()


# -- whole networks, other graphs


def _exchange(world: World, new: nn.Module) -> None:
    """Go on with another network of the same kind: optimizers for it, with their state."""
    states = [copy.deepcopy(o.state_dict()) for o in world.optimizers]
    schedule = world.schedule and copy.deepcopy(world.schedule.state_dict())
    old = world.optimizers
    counts = [[len(g["params"]) for g in o.param_groups] for o in old]
    world.set_model(new)
    world.make_optimizers()
    if [[len(g["params"]) for g in o.param_groups] for o in world.optimizers] == counts:
        for optimizer, state in zip(world.optimizers, states):
            optimizer.load_state_dict(state)
        if schedule:
            world.schedule.load_state_dict(schedule)
    world.plateau = None
    world.make()


@action("copy of the network", 1, how=("deepcopy", "pickle", "torch.save"))
def copied(world: World, how: str) -> None:
    if how == "deepcopy":
        new = copy.deepcopy(world.model)
    elif how == "pickle":
        new = pickle.loads(pickle.dumps(world.model))  # noqa: S301
    else:
        data = io.BytesIO()
        torch.save(world.model, data)
        data.seek(0)
        new = torch.load(data, weights_only=False)
    _exchange(world, new)


@action("network exchanged", 1, seed=number)
def exchanged(world: World, seed: int) -> None:
    """Another network where the program finds it, without another graph or optimizer."""
    new = copy.deepcopy(world.model)
    with torch.no_grad():
        for p in new.parameters():
            p.mul_(0.9)
    world.set_model(new)
    world.exchange(new)


@action("made anew", 0.7)
def anew(world: World) -> None:
    """A second graph over the same network and optimizers."""
    world.make()


@action("checkpoint", 1)
def checkpoint(world: World) -> None:
    """State goes into a new network, optimizer, and graph."""
    new = copy.deepcopy(world.model)
    with torch.no_grad():
        for t in (*new.parameters(), *new.buffers()):
            t.zero_()
    if world.session.entry != "train" or world.session.reach != "attribute" or world.is_eager:
        new.load_state_dict(world.model.state_dict())
        return _exchange(world, new)
    saved = copy.deepcopy(world.target.state_dict())
    world.set_model(new)
    world.make_optimizers()
    world.make()
    world.target.load_state_dict(saved)
    return None


@action("other graph", 1, seed=number, training=(True, False))
def other_graph(world: World, seed: int, training: bool) -> None:
    """A second graph, without an optimizer, over the same network: evaluation between steps."""
    target = world.model if world.is_eager else _evaluation(world)
    was = world.model.training
    world.model.train(training)
    with torch.no_grad():
        make_call(
            world,
            (lambda x: {"loss": None, "out": target(x)}) if world.is_eager else target,
            (world.rand(seed, 4, WIDTH),),
            {},
            backward=False,
        )
    world.model.train(was)


class Evaluation(flow.nn.Graph):
    """The network alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, x: Tensor) -> Any:
        return {"loss": None, "out": self.model(x)}


def _evaluation(world: World) -> Any:
    kept = vars(world).setdefault("evaluations", {})
    if id(world.model) not in kept:
        kept[id(world.model)] = (world.model, Evaluation(world.model))
    return kept[id(world.model)][1]


@action("artifact", 0.7, seed=number)
def artifact(world: World, seed: int) -> None:
    """A graph of the network is saved, loaded, and called."""
    x = world.rand(seed, 4, WIDTH)
    was, before = world.model.training, Before(world)
    world.model.eval()
    try:
        with torch.no_grad():
            if world.is_eager:
                with world.noise():
                    world.model(x)  # what it keeps goes on from there in the artifact
                    world.results = {"out": copy.deepcopy(world.model)(x)}
                    return
            graph = Evaluation(world.model)
            graph(x)
            with tempfile.TemporaryDirectory() as folder:
                flow.save(graph, folder + "/artifact")
                loaded = flow.load(folder + "/artifact")
            world.results = {"out": loaded(x)["out"]}
    except Exception:
        before.restore()
        raise
    finally:
        world.model.train(was)


@action("average", 1, use=(True, False), seed=number)
def average(world: World, use: bool, seed: int) -> None:
    """An average of the parameters is updated; the average takes part in the program as a layer."""
    if world.ema is None:
        world.ema = swa_utils.AveragedModel(
            world.model,
            multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.5),
            use_buffers=bool(seed % 2),
        )
    world.ema.update_parameters(world.model)
    if use and not any(x is world.ema for x in world.state.layers):
        world.state.layers.append(world.ema)


__all__ = ["NotThere"]
