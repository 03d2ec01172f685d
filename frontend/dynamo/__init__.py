"""`torch.compile(model, backend="gflow")`: graphs of TorchDynamo and AOTAutograd, compiled by gflow.

backend         the backend function of `torch.compile(model, backend="gflow")`
margin_losses   margin losses as PyTorch's kernels compute them
overlaps        updates through views whose elements share memory (expanded tensors, overlapping windows)
pieces          partitions a graph that cannot be one program into programs with PyTorch's ops between them
program         one compiled FX graph: a function of a list of tensors
recompute       which values the backward recomputes, and which the forward saves
refused_calls   calls that eager refuses: the checks of the tracer, run above AOTAutograd
returned_views  results that are views of updated arguments, in graphs with symbolic sizes
row_major       row-major operands for kernels that factor matrices
scalar_updates  Python floats and 0-d float64 tensors, which TorchDynamo takes for one another
scalars         Python integers of graphs that are not sizes: inputs of a program
shared_inputs   graphs that update an argument which shares elements with another one
size_products   products of three or more sizes, rewritten as products of two
sizes           graphs with symbolic sizes: programs for ranges of one or two dynamic dimensions
trace_fx        converts an FX graph of functional ATen ops (AOTAutograd's output) to a `Trace`
"""

from __future__ import annotations

from .backend import gflow

__all__ = ["gflow"]
