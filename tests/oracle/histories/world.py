"""One run of a session, eagerly or by gflow: what stays between its actions, and what can be seen of it."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import gflow as flow

from . import programs
from .nets import Net, make_net
from .programs import State, make_program, reach
from .session import KINDS, Action, Session

Tensor = torch.Tensor


class NotThere(Exception):
    """What an action is about is not there: it is left out, in both runs."""


@dataclass
class Seen:
    """What a run left. steps: by action, by name, copies of tensors and plain values. errors: by action, what it
    raised. warned: what gflow warned of."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    errors: dict[int, BaseException] = field(default_factory=dict)
    warned: list[str] = field(default_factory=list)


class Outer(nn.Module):
    """The program as a module's forward, with the network as a submodule."""

    model: nn.Module
    program: Callable[..., Any]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.program(*args, **kwargs)


class Training(flow.nn.Graph):
    """The program as a graph."""

    def __init__(self, world: World) -> None:
        super().__init__()
        if world.session.reach == "attribute":
            self.model = world.model
        self.program: Callable[..., Any] = lambda: None
        for i, optimizer in enumerate(world.optimizers):
            self.add_optimizer(optimizer, world.schedule if i == 0 else None)
        if world.scaler is not None:
            self.set_grad_scaler(world.scaler)

    def build(self, batch: Any, y: Any = None, number: Any = None) -> Any:
        results = self.program(batch, y, number)
        if self.training:
            results["loss"].backward()
        return results


class World:
    """engine: "gflow", "eager", or "aot", in which torch.compile's backend is "aot_eager"."""

    def __init__(
        self,
        session: Session,
        engine: str,
        wide: bool,
        noise: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.session, self.engine, self.noise = session, engine, noise
        narrow: torch.dtype = getattr(torch, session.dtype)
        self.narrow = narrow
        self.dtype = torch.float64 if wide else narrow
        self.wide = wide
        self.state = State()
        self.optimizers: list[torch.optim.Optimizer] = []
        self.schedule: Any = None
        self.plateau: Any = None
        self.scaler = (
            torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
            if session.scaler
            else None
        )
        self.handles: list[Any] = []
        self.held: list[Any] = []
        self.inputs: list[Tensor] = []
        self.results: Any = None
        self.ema: Any = None
        self.refused: frozenset[int] = frozenset()
        self.at = 0
        self.set_model(make_net(session.blocks, session.seed, narrow).to(self.dtype))
        self.make_optimizers()
        self.make()

    # -- what is made

    @property
    def is_eager(self) -> bool:
        return self.engine == "eager"

    def set_model(self, model: nn.Module) -> None:
        """A network in the place of the one there is, for what is made from now on."""
        self.model: Any = model
        self.state.model = model

    def make_optimizers(self) -> None:
        """Optimizers and a schedule for the parameters as they are."""
        self.optimizers, self.schedule = [], None
        wanted = self.session.optimizers
        own = [p for p in self.model.parameters() if p.is_floating_point()]
        for i, (name, kwargs) in enumerate(wanted):
            group = {"params": own[i :: len(wanted)]}
            if self.session.clip is not None:
                group["clip_grad_max_norm"] = self.session.clip
            self.optimizers.append(getattr(torch.optim, name)([group], **kwargs))
        if self.optimizers and self.session.schedule is not None:
            kind, more = self.session.schedule
            if kind == "OneCycleLR" and not {"momentum", "betas"} & {*self.optimizers[0].defaults}:
                more = {**more, "cycle_momentum": False}
            self.schedule = getattr(torch.optim.lr_scheduler, kind)(self.optimizers[0], **more)

    def make(self) -> None:
        """What is called: a graph, a compiled function, or the program itself."""
        self.target, self.exchange = self.made(self.session.reads, trains=True)

    def made(self, reads: Sequence[str], trains: bool) -> tuple[Any, Callable[[nn.Module], None]]:
        """(what is called for a program that reads this, what exchanges its network)."""
        session = self.session
        found, exchange = reach(session.reach, self.state)
        graph = session.entry in ("train", "graph") and not self.is_eager
        outer: Any = None
        if session.reach == "attribute":
            outer = Training(self) if graph else Outer()
            outer.model = self.model
            holder = [outer]
            found = lambda: holder[0].model  # noqa: E731
            exchange = lambda new: setattr(outer, "model", new)  # noqa: E731
        program = make_program(self.state, found, frozenset(reads), frozenset(session.returns))
        if outer is not None:
            outer.program = program
        elif graph:
            outer = Training(self)
            outer.program = program
        target = outer or program
        if self.is_eager or graph:
            return target, exchange
        if session.entry == "compile":
            return flow.compile(target), exchange
        return torch.compile(
            target, backend="gflow" if self.engine == "gflow" else "aot_eager"
        ), exchange

    # -- what actions use

    def rand(self, seed: int, *shape: int, scale: float = 1.0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        made = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        return made.to(self.narrow).to(self.dtype)

    def modules(self, *kinds: type) -> list[Any]:
        return [m for m in self.model.modules() if not kinds or isinstance(m, kinds)]

    def module(self, i: int, *kinds: type) -> Any:
        return self.one(self.modules(*kinds), i)

    def parameters(self) -> list[Tensor]:
        return list(self.model.parameters())

    def parameter(self, i: int) -> Any:
        return self.one(self.parameters(), i)

    def slot(self, i: int, buffers: bool = False) -> tuple[nn.Module, str, Any]:
        """(module, name, tensor) of a parameter or buffer."""
        kept = [
            (m, n, t)
            for m in self.model.modules()
            for n, t in (m._buffers if buffers else m._parameters).items()
            if t is not None
        ]
        return self.one(kept, i)

    def optimizer(self, i: int) -> torch.optim.Optimizer:
        return self.one(self.optimizers, i)

    def group(self, i: int) -> dict[str, Any]:
        return self.one([g for o in self.optimizers for g in o.param_groups], i)

    @staticmethod
    def one(items: Sequence[Any], i: int) -> Any:
        if not items:
            raise NotThere
        return items[i % len(items)]

    # -- what can be seen

    def look(self) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for name, m in self.model.named_modules():
            seen[f"{name}.training"] = m.training
            for key, value in vars(m).items():
                if isinstance(value, (int, float, str)) and not key.startswith("_"):
                    seen[f"{name}.{key}"] = value
                elif isinstance(value, Tensor):
                    seen[f"{name}.{key}"] = _copy(value)
        for name, p in self.model.named_parameters():
            seen[f"parameter {name}"] = _copy(p)
            seen[f"{name}.requires_grad"] = p.requires_grad
            if p.grad is not None:
                seen[f"gradient of {name}"] = _copy(p.grad)
        for name, b in self.model.named_buffers():
            seen[f"buffer {name}"] = _copy(b)
        for i, optimizer in enumerate(self.optimizers):
            for j, group in enumerate(optimizer.param_groups):
                options = {k: v for k, v in group.items() if k != "params"}
                _flatten(seen, f"optimizer {i}, group {j}", options)
                for n, p in enumerate(group["params"]):
                    if p in optimizer.state:
                        _flatten(seen, f"optimizer {i}, group {j}, state {n}", optimizer.state[p])
        if self.schedule is not None:
            _flatten(
                seen,
                "schedule",
                {k: v for k, v in self.schedule.state_dict().items() if not callable(v)},
            )
        if self.scaler is not None:
            _flatten(seen, "scaler", self.scaler.state_dict())
        if self.ema is not None:
            _flatten(seen, "average", dict(self.ema.state_dict()))
        _flatten(seen, "state", {"tensor": self.state.tensor, "seen": self.state.seen})
        _flatten(seen, "inputs", self.inputs[-4:])
        grads = [t.grad if t.is_leaf else None for t in self.inputs[-4:]]
        _flatten(seen, "gradients of inputs", grads)
        _flatten(seen, "results", self.results)
        _flatten(seen, "earlier results", self.held[-6:])
        seen["random state"] = zlib.crc32(torch.get_rng_state().numpy().tobytes())
        return seen

    def note_results(self, results: Any) -> None:
        """Keep the results of a call, and what memory they share."""
        self.results = results
        known: dict[int, str] = {}
        for name, t in [
            *self.model.named_parameters(), *self.model.named_buffers(), ("state's tensor", self.state.tensor),
            *((f"input {i}", t) for i, t in enumerate(self.inputs)),
            *((f"earlier {i}", t) for i, t in enumerate(_tensors(self.held))),
        ]:  # fmt: skip
            if t.numel():
                known.setdefault(t.untyped_storage().data_ptr(), name)
        shares = {}
        for path, t in pytree.tree_leaves_with_path(results):
            if isinstance(t, Tensor) and t.numel():
                where = t.untyped_storage().data_ptr()
                shares[pytree.keystr(path)] = known.setdefault(
                    where, f"result {pytree.keystr(path)}"
                )
        self.shares = shares
        self.held.append(results)


def _tensors(tree: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)]


def _copy(t: Tensor) -> Any:
    if isinstance(t, torch.nn.parameter.UninitializedTensorMixin):
        return "uninitialized"
    with torch.no_grad(), torch.inference_mode(False):
        t = t.detach()
        if t.layout != torch.strided:
            t = t.to_dense()
        return t.clone()


def _flatten(into: dict[str, Any], name: str, tree: Any) -> None:
    for path, leaf in pytree.tree_leaves_with_path(tree):
        where = name + pytree.keystr(path)
        if isinstance(leaf, Tensor):
            into[where] = _copy(leaf)
        elif leaf is None or isinstance(leaf, (bool, int, float, str)):
            into[where] = leaf


# -- runs


@contextmanager
def _as_before() -> Iterator[None]:
    """Whatever a session sets of PyTorch is as it was, afterwards."""
    rng, default = torch.get_rng_state(), torch.get_default_dtype()
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    deterministic, grad = torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled()
    programs.set_shift(0.0)
    torch.manual_seed(7)
    try:
        yield
    finally:
        torch.set_rng_state(rng)
        torch.set_default_dtype(default)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic)
        torch.set_grad_enabled(grad)
        programs._set_global(None)


def _ours(message: warnings.WarningMessage) -> str | None:
    text = str(message.message)
    return (
        text
        if "gflow" in text or "build()" in text or "graph" in text.lower() or "compile" in text
        else None
    )


def run(
    session: Session, engine: str = "gflow", wide: bool = False, refused: frozenset[int] = frozenset(),
    noise: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Seen:  # fmt: skip
    """All actions. refused: the calls that gflow refuses, which are undone in eager."""
    seen = Seen()
    with _as_before(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if session.entry in ("compile", "dynamo"):
            torch._dynamo.reset()
        world = World(session, engine, wide, noise)
        world.refused = refused
        try:
            for i, step in enumerate(session.actions):
                world.at, world.results, world.shares = i, None, {}
                try:
                    KINDS[step.name].do(world, **step.args)
                except Exception as error:
                    seen.errors[i] = error
                seen.steps.append({**world.look(), "shares": world.shares})
        finally:
            for handle in world.handles:
                handle.remove()
        seen.warned = [t for m in caught if (t := _ours(m))]
    return seen


__all__ = ["Action", "Net", "NotThere", "Seen", "World", "run"]
