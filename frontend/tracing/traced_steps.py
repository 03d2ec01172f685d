"""Optimizer steps in a trace: gradients, their reduction and scaling, micro-batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from gflow.errors import GraphTraceError

from .data.global_tensors import Layout, axes_of, common_mesh
from .data.places import OptimizerTrace
from .data.sizes import Fixed, with_forms
from .data.trace import Trace
from .data.values import TraceOutput
from .dispatch.failures.pruning import prune
from .dispatch.functions.proxies import functional
from .dispatch.recorder import describe, untraced
from .optimizers.gradients import divide_micro_batches, gradient_buffer
from .optimizers.optimizer import NewState, trace_step
from .optimizers.scaler import LossScale, prepare
from .optimizers.sparse import SparseStep, run_step
from .program.batch_rows import rows_and_axes
from .program.resharding import rows_along
from .trace_checks import (
    check_assigned,
    check_global,
)
from .trace_results import updates_of
from .trace_tail import divide_tail
from .traced_inputs import TracedInputs, parameters_of

_PARTS = ("ops", "outputs")


class TracedSteps(TracedInputs):
    """A trace in progress, with the gradients of its parameters and the steps of its optimizers."""

    def _loss_scale(self) -> None:
        self.scaling: LossScale | None = None
        parameters = [p for o in self.optimizers for g in o.param_groups for p in g["params"]]
        if self.optimizers and prepare(self.request.scaler, parameters):
            self.scaling = LossScale(self.request.scaler, self)
            self.rewrites.seed = self.scaling.seed
        if self.optimizers:
            self.rewrites.read_gradient = self._read_gradient

    def _reduce_gradients(self, in_build: bool = False) -> None:
        """Average the gradients of data-parallel modules over ranks, and sum the partial gradients of global
        tensors."""
        every = [p for o in self.optimizers for p in parameters_of(o)]
        unique = {id(p): p for p in every}
        layouts = self._layouts(unique.values())
        if self.parallel.waiting or layouts:
            self.parallel.reduce(self, [*unique.values()], layouts, in_build=in_build)

    def _layouts(self, parameters: Iterable[torch.Tensor]) -> dict[int, Layout]:
        """The layouts of parameters (by id) over the mesh of a trace of global tensors; plain parameters are
        replicated."""
        mesh = self._mesh()
        if mesh is None:
            return {}
        axes, known = axes_of(mesh), self._known_layouts
        for p in parameters:
            if id(p) not in known:
                own = self.recorder.layout_of(p, self.parameter_names.get(id(p), "a parameter"))
                along = ("B",) * len(axes) if own is None else own.along(axes)
                known[id(p)] = Layout(mesh, along)
        return known

    def _mesh(self) -> Any:
        """The mesh of a trace of global tensors; None for other traces."""
        if not self.recorder.meshes:
            return None
        with untraced():
            return common_mesh(self.recorder.meshes, self.name)

    def _data_axes(self) -> tuple[str, ...]:
        """The axes of the mesh of a trace of global tensors along which no parameter is sharded; none with modules of
        `fully_shard`, which name the axis along which ranks have batches of their own."""
        mesh = self._mesh()
        axes = () if mesh is None or self.sharded else axes_of(mesh)
        inputs = [i for i in self.recorder.inputs if i.role == "parameter"]
        layouts = [i.layout.along(axes) for i in inputs if i.layout is not None]
        return tuple(a for n, a in enumerate(axes) if all(p[n] == "B" for p in layouts))

    def _read_gradient(self, wrapper: torch.Tensor) -> None:
        """Called when `build()` reads a gradient: from here on, gradients are averaged over ranks, and unscaled.

        Raises:
            GraphTraceError: `build()` runs for micro-batches, so its gradients are not complete.
        """
        if self.micro_batches == 1:
            self._reduce_gradients(in_build=True)
            if self.scaling is None:
                return
        if self.scaling is not None and self.scaling.found:
            return
        parameters = [p for o in self.optimizers for p in parameters_of(o)]
        if not any(self.rewrites.wrapper_of(p) is wrapper for p in parameters):
            return
        if self.micro_batches > 1:
            raise GraphTraceError(
                f"{describe(self.locator.here())}: build() reads a gradient (.grad, or "
                "clip_grad_norm_), but with set_gradient_accumulation_steps() it runs for one "
                "micro-batch and gradients are complete after the last. To clip, give the "
                "optimizer's parameter groups the key clip_grad_max_norm; to read gradients after "
                "a step, use config.keep_gradients() and graph.grad()."
            )
        assert self.scaling is not None
        for i, optimizer in enumerate(self.optimizers):
            self.scaling.unscale(i, self.with_grad(optimizer), in_build=True)

    def _partial_reduced(self) -> Trace:
        """`_partial`; with micro-batches, the gradients of each are averaged over ranks in this trace only."""
        if self.micro_batches == 1 or not self.parallel.waiting:
            return self._partial()
        wrappers = [self.rewrites.wrapper_of(p) for o in self.optimizers for p in self.with_grad(o)]
        before, count = [w.grad for w in wrappers], len(self.recorder.ops)
        self._reduce_gradients()
        found = self._partial()
        del self.recorder.ops[count:]
        for wrapper, gradient in zip(wrappers, before):
            wrapper.grad = gradient
        self.parallel.forget()
        return found

    def _partial(self) -> Trace:
        """The trace up to the optimizers; its last outputs are the gradients."""
        grads: list[TraceOutput] = []
        for optimizer in self.optimizers:
            for p in self.with_grad(optimizer):
                grad: Any = self.rewrites.wrapper_of(p).grad
                value = self.recorder.value_of(self.current(grad))
                grads.append(TraceOutput(value, None, f"the gradient of {self.called(p)}"))
        trace = self.trace
        partial = Trace(trace.name, out_spec=trace.out_spec, out_leaves=trace.out_leaves)
        partial.assigned = trace.assigned
        partial.unscaled = list(self.scaling.found) if self.scaling else []
        partial.result_views = trace.result_views
        self._finish(partial, self.outputs + updates_of(self) + grads)
        return partial

    def _finish(self, trace: Trace, outputs: list[TraceOutput]) -> None:
        trace.inputs = list(self.recorder.inputs)
        trace.ops = list(self.recorder.ops)
        trace.outputs = outputs
        divide_tail(self, trace)
        trace.input_leaves = self.input_leaves
        trace.mesh = self._mesh()
        trace.data_axes = self._data_axes()
        check_global(self, trace)
        if self.recorder.sizes is not None:
            trace.size = self.recorder.sizes.size
            if trace.size is not None and trace.size.second is not None:
                try:
                    trace.size = with_forms(trace)
                except Fixed as error:
                    raise GraphTraceError(f"{self.name}: there is {error}.") from None

    def _trace_steps(self) -> None:
        """Trace the remaining optimizer steps.

        Raises:
            NewState: one creates state that only a step with real gradients can create.
        """
        scaling = self.scaling
        for i, optimizer in [*enumerate(self.optimizers)][len(self._steps) :]:
            if scaling is not None and i not in scaling.found:
                scaling.unscale(i, self.with_grad(optimizer))
            before = None if scaling is None else scaling.before()
            self._steps.append(self._sparse_or_dense(i, optimizer))
            if scaling is not None and before is not None:
                scaling.skip(i, before, self._steps[-1])
        if scaling is not None:
            scaling.update()
            self._steps.append(scaling.result)

    def _sparse_or_dense(self, index: int, optimizer: torch.optim.Optimizer) -> OptimizerTrace:
        name = f"optimizer.{index}"
        if not self.request.is_sparse(index):
            return self._optimizer(index, optimizer)
        if self.micro_batches > 1:
            raise GraphTraceError(
                f"{name} ({type(optimizer).__name__}): a sparse optimizer updates the rows that build() looks "
                "up, and these differ between micro-batches; leave set_gradient_accumulation_steps() out, or "
                "use an optimizer that is not sparse."
            )
        step = SparseStep(self, name, optimizer, self.with_grad(optimizer))
        found = self._optimizer(index, optimizer)
        step.keep_rows()
        return found

    def _optimizer(self, index: int, optimizer: torch.optim.Optimizer) -> OptimizerTrace:
        self.locator.optimizer = self.rewrites.in_optimizer = True
        prefix = f"optimizer.{index}"
        try:
            with self.locator.at_home(optimizer):
                found = trace_step(
                    self.recorder,
                    self.rewrites,
                    optimizer,
                    prefix,
                    self.parameter_names,
                    self.active,
                    run_step,
                )
        except NewState as error:
            if not self.waited:
                raise
            raise GraphTraceError(
                f"{prefix} ({type(optimizer).__name__}): step() creates state ({error}) at every call; "
                "create it once, when it is missing."
            ) from error
        finally:
            self.locator.optimizer = self.rewrites.in_optimizer = False
        self.rebound.update(found.replaced)
        wrappers = {s.index: s.wrapper for s in self.rewrites.proxies.values()}
        assigned = [n for n, new in found.replaced.items() if new is not wrappers[n]]
        check_assigned(self, assigned, f"{prefix} ({type(optimizer).__name__})")
        return found

    def _one_micro_batch(self) -> Trace:
        """The program of each micro-batch, which adds its gradients to the buffers. The optimizers read these buffers
        as gradients."""
        axes = self._place_rows()
        added = tuple(a for a in axes if a in self._data_axes())
        outputs = self.outputs + updates_of(self)
        found = []
        self.locator.optimizer = True
        for parameter in self.trained():
            fake, index, _ = self._buffer(parameter, added)
            total, wrapper = functional(fake, fake), self.rewrites.wrapper_of(parameter)
            grad: Any = wrapper.grad
            with self.active(), torch.no_grad():
                new = total + grad * (1 / self.micro_batches)
            value = self.recorder.value_of(self.current(new))
            outputs.append(TraceOutput(value, index, self.recorder.inputs[index].name))
            found.append((wrapper, functional(fake, fake)))
        self.locator.optimizer = False
        first = Trace(self.name)
        self._finish(first, outputs)
        for wrapper, gradient in found:
            wrapper.grad = gradient
        return first

    def _place_rows(self) -> tuple[str, ...]:
        """Reshard the results of a micro-batch of global tensors so that they can be concatenated.

        Returns:
            The mesh axes along which the rows of the inputs are sharded.
        """
        mesh = self._mesh()
        if mesh is None:
            return ()
        rows, axes = rows_and_axes(self.recorder.inputs, mesh, self.name)
        for n, wrapper in enumerate(self.results):
            if wrapper.ndim:
                split = wrapper.shape[0] == rows
                with self.active(), torch.no_grad():
                    wrapper = rows_along(wrapper, axes if split else axes_of(mesh), split)
                value = self.recorder.value_of(self.current(wrapper))
                self.outputs[n] = replace(self.outputs[n], value=value)
        return axes

    def _buffer(
        self, parameter: torch.Tensor, added: tuple[str, ...] = ()
    ) -> tuple[torch.Tensor, int, torch.Tensor]:
        """The gradient buffer of a parameter.

        Args:
            added: the mesh axes along which the buffer holds partial sums.

        Returns:
            Its fake tensor, the index of its input, and the buffer.
        """
        known = self._buffers.get((id(parameter), added))
        if known is None:
            name = f"grad.{self.parameter_names[id(parameter)]}"
            index = len(self.recorder.inputs)
            layout = None
            if added or (self.sharded and self._mesh() is not None):
                layout = self._layouts([parameter])[id(parameter)]
                of = ("P(sum)" if a in added else p for a, p in zip(layout.axes, layout.placements))
                layout = Layout(layout.mesh, tuple(of))
            buffer = gradient_buffer(parameter, bool(self.sharded), layout)
            fake = self.recorder.add_input(buffer, "gradient", name)
            known = self._buffers[id(parameter), added] = (fake, index, buffer)
        return known

    def _keep_gradients(self, trace: Trace) -> list[TraceOutput]:
        """The gradients that can be read after the step, as the optimizers left them, as outputs of the trace."""
        outputs = []
        for parameter in filter(self.request.kept, self.trained()):
            grad: Any = self.rewrites.wrapper_of(parameter).grad
            value = self.recorder.value_of(self.current(grad))
            _, index, buffer = self._buffer(parameter)
            entry = self.recorder.inputs[index]
            trace.kept.append((parameter, buffer))
            if value is not entry.value:
                outputs.append(TraceOutput(value, index, entry.name))
        return outputs

    def _divide(self, trace: Trace, first: Trace, updates: list[TraceOutput]) -> None:
        trace.micro_batches, trace.stacked = self.micro_batches, self.request.stacked
        trace.parts = divide_micro_batches(trace, first, updates)
        ops, outputs = ([x for part in trace.parts for x in getattr(part, a)] for a in _PARTS)
        trace.ops, trace.outputs = ops, [replace(o) for o in outputs]
        for part in trace.parts:
            prune(part, keep_inputs=part is first)
        if any(i.role == "input" for i in trace.parts[1].inputs):
            raise GraphTraceError(
                f"{trace.name}: with gradient accumulation, an update cannot read the graph's inputs."
            )
