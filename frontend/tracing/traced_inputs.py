"""The inputs of a trace in progress, and the traced tensors that represent them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode

from gflow.errors import GraphTraceError

from .context.location import Locator
from .context.threads import here_only
from .data.global_tensors import Layout
from .data.guards import Leaf
from .data.places import NumberSource, OptimizerTrace, Place
from .data.trace import Trace
from .data.updates import ONCE, kind
from .data.values import TraceOutput, TraceValue
from .dispatch.branches import Branches
from .dispatch.functions.proxies import TensorProxy, functional, unwrap
from .dispatch.functions.rewrites import Rewrites
from .dispatch.known_values import KnownValues
from .dispatch.recorder import Recorder, describe
from .dispatch.symbols.numbers import wrap
from .program.data_parallel import DataParallel
from .program.modules import Slot
from .program.sharded_modules import sharded_modules
from .program.shared import base_of, storage_of, view_in
from .request import TraceRequest


class TracedInputs:
    """The state that all stages of a trace share: the recorder, the inputs, and the assignments of `build()`.

    Args:
        request: what to trace.
        storages: the storages whose tensors are traced as views of each other.
        outside: code of the functions that call `build()` and optimizers.
    """

    def __init__(
        self, request: TraceRequest, storages: Collection[int], outside: Collection[CodeType]
    ) -> None:
        self.request, self.storages = request, storages
        self.name, self.optimizers = request.name, request.optimizers
        self.micro_batches, self.build = request.micro_batches, request.call.build
        self.table = request.table.with_modules(request.reached.modules)
        self.locator = Locator(self.table.names, outside)
        if (code := getattr(self.build, "__code__", None)) is not None:
            self.locator.home = (code.co_filename, code.co_firstlineno)
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        mode.cache_enabled = False  # `fake_call` caches more calls, by shorter keys
        self.recorder = Recorder(mode, self.locator, request.eager_random)
        trained = frozenset(id(p) for o in self.optimizers for p in parameters_of(o))
        self.rewrites = Rewrites(self.recorder, bool(self.optimizers), trained)
        self.rewrites.view_of = self._view if storages else None
        self.rewrites.active = self.recording
        self.views: dict[int, int] = {}  # input that is a view → its base
        self.rebound: dict[int, torch.Tensor] = {}
        self.leaves: list[TensorProxy] = []
        self._buffers: dict[Any, tuple[torch.Tensor, int, torch.Tensor]] = {}
        self.input_leaves: dict[TraceValue, int] = {}
        self.parameter_names = {id(s.tensor): s.name for s in self.table.slots}
        self.trace = Trace(self.name)
        self.outputs: list[TraceOutput] = []
        self.results: list[
            torch.Tensor
        ] = []  # the tensors of `outputs`, as `build()` returned them
        self.late_results: list[TraceValue] = []  # results that are computed after the program
        self.parallel = DataParallel()
        self.sharded = sharded_modules(self.table.modules)
        self.waited = False  # whether a first step has been requested
        self._first: Trace | None = None
        self._known_layouts: dict[int, Layout] = {}  # of parameters, by id
        self._steps: list[OptimizerTrace] = []
        if request.known and request.call.dynamic is None and self.micro_batches == 1:
            self.recorder.known = KnownValues(self.recorder, self._leaf)
            if request.truths is not None:
                self.recorder.branches = Branches(self.recorder, self._leaf, request.truths)
        self.has_sizes = request.call.dynamic is not None or request.tail
        if self.has_sizes:
            # only here: it loads all of PyTorch's symbolic shapes
            from .dispatch.symbols.size_env import SizeEnv
            from .dispatch.symbols.unknown_sizes import UnknownSizes

            where = partial(describe_here, self.locator)
            dynamic = request.call.dynamic
            self.recorder.add_sizes(
                UnknownSizes(where)
                if dynamic is None
                else SizeEnv([d.sizes for d in dynamic.each], where, request.tail)
            )

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        log = logging.getLogger("torch._subclasses.fake_tensor")
        silence = here_only(lambda record: True, lambda record: False)
        log.addFilter(silence)
        try:
            with self.recorder, self.rewrites, contextlib.ExitStack() as with_sizes:
                if self.has_sizes:
                    # only here: it loads all of PyTorch's symbolic shapes
                    from .dispatch.symbols.size_protocol import sizes_as_numbers

                    # PyTorch's C++ decompositions need static sizes; its Python decompositions do not
                    with_sizes.enter_context(enable_python_dispatcher())
                    with_sizes.enter_context(sizes_as_numbers())
                torch._enable_functionalization(reapply_views=True)
                self.recorder.active = True
                try:
                    yield
                finally:
                    self.recorder.active = False
                    torch._disable_functionalization()
        finally:
            log.removeFilter(silence)

    def recording(self) -> contextlib.AbstractContextManager[None]:
        """`active()`, or nothing if it is active already."""
        return contextlib.nullcontext() if self.recorder.active else self.active()

    def _inputs(self) -> list[Any]:
        call = self.request.call
        traced: list[Any] = []
        seen: dict[int, TensorProxy] = {}
        for position, (leaf, name) in enumerate(zip(call.leaves, call.names, strict=True)):
            if not isinstance(leaf, torch.Tensor):
                traced.append(self._number(position, name) if position in call.numbers else leaf)
                continue
            known = seen.get(id(leaf))
            if known is None:
                index = len(self.recorder.inputs)
                dims = call.dynamic.which(position) if call.dynamic else {}
                fake = self.recorder.add_input(leaf, "input", name, False, dims)
                wrapper = functional(fake, leaf)
                known = seen[id(leaf)] = self.rewrites.proxy(leaf, wrapper, index)
                self.leaves.append(known)
                self.rewrites.given.append(known)
                self.input_leaves[self.recorder.inputs[index].value] = position
                if isinstance(leaf, torch.nn.Parameter):
                    self.rewrites.proxies[id(leaf)] = known
            traced.append(known.wrapper)
        return traced

    def _leaf(self, value: TraceValue) -> torch.Tensor | None:
        """The tensor of the call that an input stands for."""
        position = self.input_leaves.get(value)
        return None if position is None else self.request.call.leaves[position]

    def _number(self, position: int, name: str) -> Any:
        """A traced number for a number of the call."""
        values, recorder = self.request.call.values, self.recorder
        dtype = torch.int64 if type(values[position]) is int else torch.float64
        tensor = torch.tensor(values[position], dtype=dtype, device="cpu")
        leaf = Leaf(len(recorder.numbers))
        node = recorder.add_number(values[position], tensor, name, leaf, of_call=True)
        place = Place(None, "call", None, values)
        source = NumberSource(place, position, (), node.value, tensor, values[position], name)
        recorder.numbers.append(source)
        return wrap(node)

    def proxy(self, slot: Slot) -> torch.Tensor:
        """The traced tensor that the author's code gets instead of a slot's tensor; the same for each use."""
        known = self.rewrites.proxies.get(id(slot.tensor))
        if known is None:
            index = len(self.recorder.inputs)
            fake = self.recorder.add_input(slot.tensor, slot.role, slot.name)
            wrapper = self._view(slot.tensor, index)
            if wrapper is None:
                wrapper = functional(fake, slot.tensor)
            wrapper = self.rewrites.register(slot.tensor, wrapper, index).wrapper
            if self.optimizers:
                _take_hooks(slot, wrapper)
            return wrapper
        entry = self.recorder.inputs[known.index]
        if entry.tensor is None:
            entry.role, entry.name, entry.tensor = slot.role, slot.name, slot.tensor
        return known.wrapper

    def _view(self, tensor: torch.Tensor, index: int) -> torch.Tensor | None:
        """Input `index` as a view of the tensor with which it shares memory; None if it shares none."""
        with torch._C.DisableTorchFunction():
            if not self.storages or storage_of(tensor) not in self.storages:
                return None
            slots = {id(s.tensor): s for s in self.table.slots}
            base = base_of(tensor, [s.tensor for s in slots.values()])
            first = next((s.tensor for s in slots.values() if _same_place(s.tensor, base)), base)
        if first is tensor:
            return None
        wrapper = self.proxy(slots[id(first)])
        self.rewrites.bases[id(tensor)] = (tensor, first)
        self.views[index] = self.rewrites.proxies[id(first)].index
        with self.recording():
            return view_in(wrapper, first, tensor)

    def _optimizer_parameters(self) -> None:
        for i, optimizer in enumerate(self.optimizers):
            for g, group in enumerate(optimizer.param_groups):
                for k, tensor in enumerate(group["params"]):
                    if id(tensor) not in self.rewrites.proxies:
                        name = f"optimizer.{i}.group{g}.param{k}"
                        slot = Slot({}, "", tensor, name, "parameter")
                        self.parameter_names[id(tensor)] = name
                        self.proxy(slot)

    def _rebound(self, name: str, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor | None:
        """Record that a buffer or tensor attribute `old` was rebound to the traced `new`.

        Returns:
            A tensor with memory of its own for an attribute that `build()` has not read and that shares memory with
                another
            input, as in eager; None otherwise.
        """
        own = None
        if not torch._is_functional_tensor(new):
            return None
        if new.shape != old.shape or new.dtype != old.dtype:
            text = (
                f"gives {name} a tensor of another shape or dtype, {kind(new)} after {kind(old)}, and a program "
                "updates tensors that stay as they are. Make it as large as it gets at first, and write into a "
                f"part of it; or pass it as an argument and return the new one. {ONCE}"
            )
            self.request.reached.refused.append((name, text))
            return None
        if id(old) not in self.rewrites.met and self._shares_storage(old):
            old = own = old.detach().clone()
        with self.active():
            if id(old) not in self.rewrites.met:
                self.rewrites.wrapper_of(old)
                self.rewrites.met.discard(id(old))
        self.rebound[self.rewrites.proxies[id(old)].index] = new
        return own

    def _shares_storage(self, old: torch.Tensor) -> bool:
        """Whether a tensor that is no parameter or buffer shares its storage with an input."""
        if any(s.tensor is old for s in self.table.slots):
            return False
        places = {storage_of(i.tensor) for i in self.recorder.inputs if i.tensor is not None}
        return storage_of(old) in places

    def called(self, parameter: torch.Tensor) -> str:
        """The name of an optimizer's parameter in messages."""
        name = self.parameter_names[id(parameter)]
        foreign = name.startswith("optimizer.")
        return (
            f"{name} of shape {list(parameter.shape)} (of no module of the graph)"
            if foreign
            else name
        )

    def with_grad(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """The parameters that the optimizer will update: those with a gradient."""
        return [
            p
            for group in optimizer.param_groups
            for p in group["params"]
            if self.rewrites.wrapper_of(p).grad is not None
        ]

    def trained(self) -> list[torch.Tensor]:
        """The parameters that a step updates, each once."""
        found = {id(p): p for o in self.optimizers for p in self.with_grad(o)}
        return list(found.values())

    def value_of(self, wrapper: torch.Tensor) -> TraceValue:
        """The value of a traced tensor."""
        return self.recorder.value_of(unwrap(wrapper))

    def detached(self, wrapper: torch.Tensor) -> torch.Tensor:
        """A traced tensor without autograd history."""
        return functional(unwrap(wrapper), wrapper)

    def current(self, wrapper: torch.Tensor) -> torch.Tensor:
        """The current fake tensor of `wrapper`; pending writes through views are recorded as ops."""
        with self.recorder.fake_mode, self.recorder:
            return unwrap(wrapper)


def _take_hooks(slot: Slot, wrapper: torch.Tensor) -> None:
    """Register a parameter's gradient hooks on its proxy.

    Raises:
        GraphTraceError: it has hooks that run after the gradient is accumulated.
    """
    with torch._C.DisableTorchFunction():
        if getattr(slot.tensor, "_post_accumulate_grad_hooks", None):
            raise GraphTraceError(
                f"{slot.role} {slot.name!r} has a hook from register_post_accumulate_grad_hook(), which a "
                "graph cannot call: its gradients go to the optimizer without accumulation. Remove the hook, "
                "or use register_hook()."
            )
        if wrapper.requires_grad:
            for hook in (slot.tensor._backward_hooks or {}).values():
                wrapper.register_hook(hook)


def _same_place(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.data_ptr(), a.shape, a.stride(), a.dtype) == (
        b.data_ptr(),
        b.shape,
        b.stride(),
        b.dtype,
    )


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters of all groups, in order."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def describe_here(locator: Locator) -> str:
    """The current line of the author's code, as text."""
    return describe(locator.here())


def is_unusable(tensor: torch.Tensor) -> bool:
    """Whether no program can have a tensor as an argument. This is no error for a module that is reached but not
    used."""
    lazy = torch.nn.parameter.is_lazy(tensor)
    return lazy or tensor.layout != torch.strided or tensor.is_quantized
