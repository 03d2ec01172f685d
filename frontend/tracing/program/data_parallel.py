"""Data-parallel modules in `build()`: records the effect of the hooks of `DistributedDataParallel` as ops.

The wrapped module is traced instead. Its buffers are broadcast from rank 0 at each call (`broadcast_buffers`), and the
gradients of its parameters are averaged over its process group before anything reads them: clipping, a scaler, an
optimizer. Under gradient accumulation this happens once a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gflow.errors import GraphTraceError
from gflow.runtime.distributed.groups import use

from ..data.global_tensors import Layout, axes_of
from ..data.values import TraceValue
from . import collectives
from .resharding import placed_as
from .sharded_modules import ShardedModule

Tensor = torch.Tensor


def is_data_parallel(module: torch.nn.Module) -> bool:
    """Whether a module is a `DistributedDataParallel`."""
    return isinstance(module, DistributedDataParallel)


class DataParallel:
    """The data-parallel modules of one trace.

    Args:
        axes: by the name of a process group, its mesh axis in the program.
        reduced: results of the collectives that average gradients, with the parameters' names.
        buckets: for these, the maximal bytes of a message, if the module limits them.
        copied: by the id of a parameter, the group over which it is replicated.
    """

    def __init__(self) -> None:
        self.axes: dict[str, str] = {}
        self.groups: dict[str, Any] = {}
        self.reduced: dict[TraceValue, str] = {}
        self.buckets: dict[TraceValue, tuple[int, ...]] = {}
        self.copied: dict[int, str] = {}
        self._group_of: dict[int, Any] = {}  # by parameter
        self._limits: dict[int, tuple[int, ...]] = {}  # by parameter
        self._done: set[int] = set()

    def enter(self, module: torch.nn.Module, here: str, training: bool) -> torch.nn.Module | None:
        """The module to call instead of a data-parallel one; None for others.

        Args:
            here: file and line of the call.
            training: whether the graph itself computes and uses gradients.

        Raises:
            GraphTraceError: the module does something that a graph would lose.
        """
        if not isinstance(module, DistributedDataParallel):
            return None
        group = module.process_group
        if dist.get_world_size(group) == 1:
            return None
        problem = _problem(module, training)
        if problem:
            raise GraphTraceError(
                f"{here}: a DistributedDataParallel module of {dist.get_world_size(group)} ranks {problem}"
            )
        name = self._named(group)
        ignored = module.parameters_to_ignore
        named = [(k, p) for k, p in module.module.named_parameters() if k not in ignored]
        self.copied |= {id(p): name for _, p in named}
        if training and torch.is_grad_enabled():
            for _, p in named:
                if p.requires_grad:
                    self._group_of[id(p)] = group
                    self._limits[id(p)] = _limits(module)
        if module.broadcast_buffers:
            with torch.no_grad():
                for buffer in module.modules_buffers:
                    collectives.broadcast(buffer, group=group, group_src=0)
        return module.module

    def _named(self, group: Any) -> str:
        """The name of a group, which becomes an axis of the mesh."""
        name: str = group.group_name
        self.axes[name] = "dp" if group is dist.group.WORLD else f"dp_{name}"
        self.groups[name] = group
        return name

    def divide(self, modules: Sequence[ShardedModule], training: bool) -> list[tuple[Any, str]]:
        """Treat modules of `fully_shard` as data-parallel. Returns the mesh of each, and the name of its group."""
        found: dict[tuple[str, int], Any] = {}
        for module in modules:
            for p, group in module.parameters:
                mesh = p.device_mesh  # type: ignore[attr-defined]
                name = self._named(group)
                found[name, mesh.ndim] = mesh
                if training and p.requires_grad:
                    self._group_of[id(p)], self._limits[id(p)] = group, ()
        for (name, dims), mesh in found.items():
            if dims > 1:  # the other dimensions are for tensor parallelism
                self.axes[name] = axes_of(mesh)[0]
        return [(mesh, name) for (name, _), mesh in found.items()]

    @property
    def waiting(self) -> bool:
        """Whether gradients remain to be averaged."""
        return bool(self._group_of)

    def averages(self, parameter: Tensor) -> bool:
        """Whether a parameter's gradient is averaged over ranks."""
        return id(parameter) in self._group_of

    def reduce(
        self, session: Any, parameters: list[Tensor], layouts: dict[int, Layout], *, in_build: bool
    ) -> None:
        """Average the gradients of these parameters, each once. Gradients in a program of global tensors get the
        sharding of their parameters, which reduces partial sums.

        Args:
            session: the trace in progress.
            layouts: of global parameters, by id.
            in_build: whether `build()` is running, and reads the gradients.
        """
        due = [p for p in parameters if id(p) in {**self._group_of, **layouts}]
        due = [p for p in due if id(p) not in self._done]
        due = [p for p in due if session.rewrites.wrapper_of(p).grad is not None]
        if not due:
            return
        self._done |= {id(p) for p in due}
        with _recording(session, in_build):
            for p in due:
                wrapper = session.rewrites.wrapper_of(p)
                group: Any = self._group_of.get(id(p))
                parameter = session.parameter_names.get(id(p), "")
                if id(p) in layouts:
                    placed = placed_as(wrapper.grad, layouts[id(p)])
                    wrapper.grad = session.detached(placed)
                    if group is None:
                        self.reduced[session.value_of(placed)] = parameter
                        continue
                scaled = wrapper.grad * (1 / dist.get_world_size(group))
                name = group.group_name
                ops = torch.ops._c10d_functional
                started = ops.all_reduce(scaled, "sum", name)
                self.reduced[session.value_of(started)] = parameter
                if self._limits[id(p)]:
                    self.buckets[session.value_of(started)] = self._limits[id(p)]
                wrapper.grad = session.detached(ops.wait_tensor(started))

    def use(self) -> None:
        """Register the process groups, so that programs find them by name."""
        for name, group in self.groups.items():
            axis = self.axes[name]
            use({axis: dist.get_world_size(group)}, (axis,), group)

    def forget(self) -> None:
        """Undo `reduce`."""
        self._done.clear()
        self.reduced.clear()
        self.buckets.clear()


@contextlib.contextmanager
def _recording(session: Any, in_build: bool) -> Iterator[None]:
    """Within, ops are recorded as part of the optimizer phase."""
    before = session.locator.optimizer
    session.locator.optimizer = True
    try:
        with contextlib.ExitStack() as stack:
            if not in_build:
                stack.enter_context(session.active())
            stack.enter_context(torch.no_grad())
            reading, session.rewrites.read_gradient = session.rewrites.read_gradient, None
            stack.callback(setattr, session.rewrites, "read_gradient", reading)
            yield
    finally:
        session.locator.optimizer = before


def _limits(module: DistributedDataParallel) -> tuple[int, ...]:
    """The bytes of `bucket_cap_mb`, or of each in `bucket_cap_mb_list`; () if neither was given."""
    if module.bucket_bytes_cap_default:
        return ()
    return tuple(getattr(module, "bucket_bytes_cap_list", ())) or (module.bucket_bytes_cap,)


def _problem(module: DistributedDataParallel, training: bool) -> str:
    checks: list[tuple[Callable[[], bool], str]] = [
        (
            lambda: bool(getattr(module, "_comm_hooks", None)),
            "has a communication hook, which a graph does not run: it averages gradients itself. Leave "
            "register_comm_hook() out.",
        ),
        (
            lambda: getattr(module, "mixed_precision", None) is not None,
            "has mixed_precision=…: use config.enable_amp() instead.",
        ),
        (
            lambda: bool(getattr(module._join_config, "enable", False)),
            "is in join(): a graph's ranks all make the same steps. Leave join() out.",
        ),
        (
            lambda: training and torch.is_grad_enabled() and not module.require_backward_grad_sync,
            "is in no_sync(): a call of a graph makes a whole step, and its ranks would go apart. To accumulate "
            "gradients, leave no_sync() out, and use config.set_gradient_accumulation_steps().",
        ),
        (
            lambda: not training and torch.is_grad_enabled() and module.training,
            "is called in a graph without an optimizer, whose gradients leave it unaveraged: hooks of autograd would "
            "average them, and a graph has none. Add the optimizer to the graph (add_optimizer), call it under "
            "torch.no_grad(), or wrap the compiled module: DistributedDataParallel(gflow.compile(module)).",
        ),
    ]
    return next((text for holds, text in checks if holds()), "")
