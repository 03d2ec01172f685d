"""`torch.compile(model, backend="gflow")`: the programs of TorchDynamo and AOTAutograd, compiled by gflow.

backend     the backend that `torch.compile(model, backend="gflow")` finds
margin_losses   margin losses as PyTorch's kernels compute them
overlaps    writes to parts of expanded tensors in graphs of TorchDynamo's: as `tracing/overlaps.py` has them
            for `build()`
pieces      a graph that no one program holds, as programs with PyTorch's ops between them
program     one compiled FX graph: a function of a list of tensors
recompute   what a backward computes again, and what the forward keeps for it
refused_calls   calls that eager refuses: the checks of the tracer, above AOTAutograd
returned_views  results that are views of updated arguments, where sizes are symbolic
row_major   matrices that PyTorch's kernels factor
scalar_updates  updates of 0-d float64 tensors, which TorchDynamo may take for numbers
scalars     Python integers of graphs that are no sizes: inputs of a program
shared_inputs   graphs that update an argument which shares elements with another one
size_products   products of three and more sizes, as products of two
sizes       graphs with symbolic sizes: a program follows one of them over a range
trace_fx    an FX graph of functional ATen ops, as AOTAutograd makes it, as a `Trace`
"""

from __future__ import annotations

from .backend import gflow

__all__ = ["gflow"]
