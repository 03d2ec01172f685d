"""Which tensors of a trace are constant between calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gflow.errors import GraphTraceError
from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import TraceInput
from gflow.tracing.program.shared import storage_of

if TYPE_CHECKING:
    from gflow.compiler.driver.pipelines import PipelineOptions

#: roles of tensors that a graph reads between calls
_LASTING = ("parameter", "buffer", "constant")


def freeze(trace: Trace, passes: PipelineOptions, target: str) -> None:
    """Mark the frozen inputs: parameters, buffers and captured tensors that the program does not update.

    Raises:
        GraphTraceError: the graph trains, or runs on several ranks or by XLA; or weights are to be quantized, on a GPU
            or under mixed precision.
    """
    engine = passes.engine
    if passes.weight_bits and engine:
        raise GraphTraceError(
            f"{trace.name}: config.freeze(weights=…) is for gflow's own kernels, and {engine} runs this graph; leave "
            "weights= out."
        )
    if passes.weight_bits and (target != "cpu" or passes.amp):
        where = "mixed precision" if passes.amp else target
        raise GraphTraceError(
            f"{trace.name}: config.freeze(weights=…) is for float32 on the CPU so far, and this graph is compiled for "
            f"{where}; leave weights= out."
        )
    if engine == "xla":
        raise GraphTraceError(
            f"{trace.name}: config.freeze() is not for {engine}, which reads parameters where they lie; leave one of "
            "the two out."
        )
    if trace.steps or trace.micro_batches > 1:
        raise GraphTraceError(
            f"{trace.name}: config.freeze() is for inference, and this graph has an optimizer, which changes the "
            "parameters at each call; use a graph without one beside it, or call config.freeze(False)."
        )
    if trace.mesh is not None or trace.stages is not None or trace.copied or trace.divided:
        raise GraphTraceError(
            f"{trace.name}: config.freeze() is for graphs of one process so far, and tensors of this one are shared "
            "among ranks; call config.freeze(False)."
        )
    if trace.engines:
        raise GraphTraceError(
            f"{trace.name}: config.freeze() is for graphs whose modules gflow runs, and {next(iter(trace.engines))} is "
            "an XRTModule; use the module itself and the graph's own switch, or call config.freeze(False)."
        )
    updated = written(trace)
    trace.frozen = frozenset(i.value.id for i in trace.inputs if not unfrozen(i, updated))


def written(trace: Trace) -> set[int]:
    """The addresses of the storages that a program updates."""
    given = (trace.inputs[out.alias].tensor for out in trace.outputs if out.alias is not None)
    return {storage_of(tensor) for tensor in given if tensor is not None}


def unfrozen(given: TraceInput, updated: set[int]) -> str:
    """Why an input is read at each call; "" if it is frozen. updated: addresses of storages that the program
    writes."""
    tensor = given.tensor
    if given.role not in _LASTING or tensor is None:
        return "it is given at each call"
    if storage_of(tensor) in updated and tensor.numel():
        return "the graph updates it"
    if tensor.is_inference():
        return "tensors of torch.inference_mode() do not tell whether they have changed"
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return f"it is a {type(tensor).__name__}"
    return ""
