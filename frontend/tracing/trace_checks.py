"""Checks that refuse a trace, and its warnings."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence

import torch

from gflow.errors import GraphTraceError

from .data.branches import Branch
from .data.global_tensors import axes_of
from .data.trace import Trace
from .data.values import TraceInput, TraceOutput, values_in
from .dispatch.functions.proxies import TensorProxy, unwrap
from .dispatch.recorder import describe, item_error
from .program.aliases import check_ends, describe_input
from .program.collectives import is_collective
from .program.module_stages import has_stages
from .program.shared import Shared, conflicts, storage_of
from .traced_inputs import TracedInputs, parameters_of


def check_global(tracing: TracedInputs, trace: Trace) -> None:
    """Check a trace of global tensors.

    Raises:
        GraphTraceError: it uses a feature that ranks cannot share.
    """
    if trace.mesh is None:
        return
    what, own = None, {*tracing.parallel.axes.values()}
    if trace.size is not None:
        what = "a dimension marked with dynamic_dim() cannot be shared evenly for every size"
    elif any(map(tracing.request.is_sparse, range(len(tracing.optimizers)))):
        what = "a sparse optimizer works on rows that ranks hold parts of"
    elif not own.issubset(axes_of(trace.mesh)):
        what = "a data-parallel module works on each rank's own batch"
    elif (split := _split_along(tracing, own)) is not None:
        what = (
            f"input {split!r} is split over the ranks that each have a batch of their own (fully_shard): pass this "
            "rank's part, x.to_local(), or a DTensor over the other dimension of the mesh (mesh['tp'])"
        )
    elif tracing.storages:
        what = "parameters or buffers share memory in part, which ranks hold parts of"
    if what is not None:
        raise GraphTraceError(
            f"{tracing.name}: the graph has global tensors (DTensor), and {what}. Leave one of the two out."
        )


def _split_along(tracing: TracedInputs, axes: Collection[str]) -> str | None:
    """The name of an input that is sharded along one of some axes; None if there is none, or inputs have no
    placements."""
    for i in tracing.recorder.inputs:
        if i.role == "input" and i.layout is not None:
            along = dict(zip(i.layout.axes, i.layout.placements))
            if any(along.get(axis, "B") != "B" for axis in axes):
                return i.name
    return None


def check_begins(tracing: TracedInputs) -> None:
    """Check that micro-batches do not use offsets in the storage of an input.

    Raises:
        GraphTraceError: `as_strided` with an offset is applied to an input, of which each micro-batch is a slice.
    """
    found = next((i for i in tracing.recorder.inputs if i.from_start), None)
    if found is not None and tracing.micro_batches > 1:
        raise GraphTraceError(
            f"build() calls as_strided with a storage_offset on input {found.name!r}, but each micro-batch "
            "is a part of that input with another offset. Leave storage_offset out, or call .clone() "
            "first."
        )


def check_parted(tracing: TracedInputs) -> None:
    """Check that `build()` does not replace one of two tensors that share memory.

    Raises:
        GraphTraceError: it does. In eager the two would be separate from then on.
    """
    inputs, shared = tracing.recorder.inputs, {*tracing.views, *tracing.views.values()}
    for index in shared.intersection(tracing.rebound):
        entry = inputs[index]
        pairs = [p for p in tracing.views.items() if index in p]
        (other,) = {*pairs[0]} - {index}
        raise GraphTraceError(
            f"{tracing.name}: build() assigns a new tensor to {describe_input(entry)}. A program writes it "
            f"into the old tensor, which shares memory with {describe_input(inputs[other])}. Make them two "
            "tensors (.clone()) before the call."
        )


def check_arrays(tracing: TracedInputs) -> None:
    """Check that `build()` does not update NumPy arrays that exist without it, through tensors over their memory.

    Raises:
        GraphTraceError: it does.
    """
    for array, tensor, begin, place in tracing.rewrites.arrays:
        with tracing.recorder.fake_mode, tracing.recorder:
            now = tracing.recorder.value_of(unwrap(tensor))
        if now is not begin and array() is not None:
            raise GraphTraceError(
                f"{describe(place)}: build() of {tracing.name} updates a NumPy array through a tensor over its "
                "memory. A program has a constant in its place. Make the tensor before the call, and use it in "
                "build(): its updates reach the array."
            )


def check_selected(tracing: TracedInputs, results: Sequence[torch.Tensor]) -> None:
    """Check that nothing depends on memory that `x[i]` by a tensor i shares with x in eager.

    Raises:
        GraphTraceError: one of the two is updated; or x[i] is a result, and x is an argument, a parameter or a result
            too.
    """
    rewrites = tracing.rewrites
    outside = {
        s.wrapper.untyped_storage()._cdata for s in (*tracing.leaves, *rewrites.proxies.values())
    }
    returned = [r.untyped_storage()._cdata for r in results]
    for tensor, row, begin, place in rewrites.selected:
        with tracing.recorder.fake_mode, tracing.recorder:
            now = tuple(tracing.recorder.value_of(unwrap(t)) for t in (tensor, row))
        if now != begin:
            raise GraphTraceError(
                f"{describe(place)}: x[i] by a tensor i is a copy in a graph, a view in eager, and build() of "
                f"{tracing.name} updates x or the view. Write x.index_select(0, i.reshape(1)), a copy in both, or pass "
                "i as a Python number."
            )
        memory = tensor.untyped_storage()._cdata
        shared = memory in outside or memory in returned
        if shared and row.untyped_storage()._cdata in returned:
            raise GraphTraceError(
                f"{describe(place)}: build() of {tracing.name} returns x[i] by a tensor i, which is a view of x in "
                "eager, and a copy in a graph. Return x[i].clone(), or pass i as a Python number."
            )


def check_hooks(tracing: TracedInputs) -> None:
    """Check that no hook of a gradient that `build()` registers on a tensor from outside stays after it.

    Raises:
        GraphTraceError: one does. In eager each call would add another one.
    """
    for handle, name, place in tracing.rewrites.hooked:
        if handle.id in (handle.hooks_dict_ref() or ()):
            raise GraphTraceError(
                f"{describe(place)}: build() of {tracing.name} calls {name}() of a tensor from outside, and the hook "
                "stays there. build() runs once for each program, not at every call. Register it before the call, or "
                "remove it in build() (handle.remove())."
            )


def changed_flags(tracing: TracedInputs) -> list[tuple[str, tuple[str, int]]]:
    """Of which tensors that stay `build()` leaves `requires_grad` changed, with the lines."""
    found = []
    for real, proxy, place in tracing.rewrites.flagged.values():
        with torch._C.DisableTorchFunction():
            if real.requires_grad == proxy.requires_grad:
                continue
            entry = tracing.recorder.inputs[tracing.rewrites.proxies[id(real)].index]
            text = f"requires_grad of {describe_input(entry)} ({real.requires_grad} to {proxy.requires_grad})"
        found.append((text, (place.file, place.line)))
    return found


def check_assigned(tracing: TracedInputs, assigned: Collection[int], where: str) -> None:
    """Check inputs whose data the call replaced (`x.data = y`).

    Args:
        assigned: the indices of these inputs.
        where: the beginning of the error message.

    Raises:
        GraphTraceError: as `check_ends` does.
    """
    if assigned:
        ends = {
            s.index: tracing.rebound.get(s.index, s.wrapper)
            for s in tracing.rewrites.proxies.values()
            if s.index not in tracing.views
        }
        check_ends(ends, assigned, tracing.recorder.inputs, where)


def check_state(tracing: TracedInputs, updates: Sequence[TraceOutput]) -> None:
    """Check that an optimizer's state shares no memory with other tensors if one of them is updated.

    Raises:
        GraphTraceError: it does.
    """
    inputs = tracing.recorder.inputs
    state = {
        storage_of(i.tensor) for i in inputs if i.role == "optimizer_state" and i.tensor is not None
    }
    entries = {
        n: i
        for n, i in enumerate(inputs)
        if i.tensor is not None and n not in tracing.views and storage_of(i.tensor) in state
    }
    written = {o.alias for o in updates if o.alias is not None}
    for a, b in _conflicts(tracing, entries, written):
        raise GraphTraceError(
            f"{tracing.name}: {describe_input(entries[a])} is updated, and it shares memory with "
            f"{describe_input(entries[b])}. Make one of them a copy (.clone())."
        )


def _conflicts(
    tracing: TracedInputs, entries: Mapping[int, TraceInput], written: set[int]
) -> list[tuple[int, int]]:
    """`conflicts` of some inputs of a trace that are different tensors."""
    tensors = {n: entry.tensor for n, entry in entries.items()}
    storages = [storage_of(t) for t in tensors.values() if t is not None]
    if len(set(storages)) == len(storages):
        return []
    read = {v for op in tracing.recorder.ops for v in values_in((op.args, op.kwargs))}
    used = {n for n, entry in entries.items() if entry.value in read}
    found = conflicts(tensors, written, used)
    return [(a, b) for a, b in found if entries[a].tensor is not entries[b].tensor]


def check_memory(tracing: TracedInputs) -> None:
    """Check that no updated tensor shares memory with another one.

    Raises:
        Shared: one does, and is to be traced again as a view.
        GraphTraceError: one does, and cannot be traced as a view.
    """
    proxies = tracing.rewrites.proxies
    written = {
        s.index
        for s in proxies.values()
        if s.index in tracing.rebound
        or tracing.recorder.value_of(tracing.current(s.wrapper))
        is not (s.begin or tracing.recorder.inputs[s.index].value)
    }
    written |= {proxies[id(p)].index for p in tracing.trained()}
    entries = {i: e for i, e in enumerate(tracing.recorder.inputs) if i not in tracing.views}
    written = {tracing.views.get(i, i) for i in written}
    found = _conflicts(tracing, entries, written)
    tensors = [(entries[a].tensor, entries[b].tensor) for a, b in found]
    storages = {storage_of(a) for a, _ in tensors if a is not None}
    if storages - {*tracing.storages}:
        raise Shared({*tracing.storages, *storages})
    for a, b in found:
        raise GraphTraceError(
            f"{tracing.name}: {entries[a].role} {entries[a].name!r} is updated, and it shares a part of "
            f"its memory with {entries[b].role} {entries[b].name!r}. Make one of them a copy "
            "(.clone()), or a view of all of the other."
        )


def check_strides(tracing: TracedInputs, proxy: TensorProxy) -> None:
    """Check that `build()` keeps the strides and the storage of a tensor from outside.

    Raises:
        GraphTraceError: it changes the strides in place, or gives an argument another storage.
    """
    entry = tracing.recorder.inputs[proxy.index]
    if entry.role == "input" and torch._functionalize_was_storage_changed(proxy.wrapper):  # type: ignore[attr-defined]
        raise GraphTraceError(
            f"{tracing.name}: build() replaces the memory of {entry.role} {entry.name!r} (.set_()), which "
            "a program cannot do: it can only write into that memory. Write x.copy_(y), or return the new "
            "tensor."
        )
    known = tracing.rewrites.restrided.get(id(proxy.wrapper))
    if known is None:
        return
    with torch._C.DisableTorchFunction():
        real, now = proxy.real, proxy.wrapper
        old, new = [
            [s for n, s in zip(t.shape, t.stride()) if tracing.rewrites.concrete(n) != 1]
            for t in (real, now)
        ]
    if tuple(map(tracing.rewrites.concrete, new)) == tuple(old) or now.shape != real.shape:
        return  # the shape differs: `check_update` raises
    raise GraphTraceError(
        f"{known[1]}: build() changes the strides of {entry.role} {entry.name!r} in place; a program can only "
        "change the values of a tensor from outside, so other views of its memory would differ. Use a view: "
        "x = x.transpose(0, 1)."
    )


def warn_of_no_gradients(tracing: TracedInputs) -> None:
    """Warn of a training graph in which no parameter gets a gradient."""
    file, line = tracing.locator.home
    own = [tracing.called(p) for o in tracing.optimizers for p in parameters_of(o)]
    others = [
        tracing.parameter_names.get(id(s.real), "a tensor of no module")
        for s in tracing.rewrites.proxies.values()
        if s.wrapper.requires_grad and s.wrapper.is_leaf and s.wrapper.grad is not None
    ]
    text = (
        f"{tracing.name} has an optimizer, but none of its parameters has a gradient after build(): a call "
        "updates nothing. "
    )
    if others:
        text += (
            f"backward() gave gradients to {_some(others)}; the optimizer has {_some(own)}, which the loss "
            "does not depend on. Make the optimizer from the parameters of the modules that build() calls."
        )
    else:
        text += "Call backward() on the loss in build()."
    warnings.warn_explicit(text, UserWarning, file, line)


def histories(tracing: TracedInputs) -> list[TraceInput]:
    """Arguments and kept tensors to which `build()` has given an autograd history."""
    return [
        tracing.recorder.inputs[s.index]
        for s in (*tracing.leaves, *tracing.rewrites.proxies.values())
        if s.wrapper.requires_grad and not s.real.requires_grad
    ]


def warn_of_histories(tracing: TracedInputs, inputs: Sequence[TraceInput]) -> None:
    """Warn of kept tensors whose autograd history eager's next backward would continue through."""
    kept = [f"{i.role} {i.name!r}" for i in inputs if i.tensor is not None]
    if not kept:
        return
    file, line = tracing.locator.home
    text = (
        f"{tracing.name} updates {', '.join(kept[:4])} with values that have a gradient. In a graph their history "
        "ends with the call; in eager, the next backward() would go on through it, or raise. Write "
        ".detach() or torch.no_grad() around the update."
    )
    warnings.warn_explicit(text, UserWarning, file, line)


def _some(names: Sequence[str], most: int = 3) -> str:
    """The first `most` of some names, and how many more there are, as text."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def check_branches(tracing: TracedInputs) -> list[Branch]:
    """The conditions for whose truths the trace is made.

    Raises:
        GraphTraceError: there are some, and ranks could take different branches, which then wait for each other; or a
            GPU is in use, which updates arguments before the host reads what a check has found.
    """
    branches = tracing.recorder.branches
    if branches is None or not branches.taken:
        return []
    several = (
        bool(tracing.parallel.axes or tracing.recorder.meshes or tracing.sharded)
        or has_stages(tracing.table)
        or any(map(is_collective, tracing.recorder.ops))
    )
    if several:
        raise item_error(branches.taken[0].loc, "a condition on which ranks may not agree")
    if any(i.value.device.type != "cpu" for i in tracing.recorder.inputs):
        raise item_error(branches.taken[0].loc)
    return branches.taken
