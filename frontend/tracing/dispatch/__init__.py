"""What PyTorch calls while a graph is traced: function and dispatch modes, fake tensors, shape rules.

call_checks  what eager's kernels have against a call: asked by the tracer and by the backend of TorchDynamo
clipping    clipping gradients: by keys of parameter groups, and in `build()`
foreach     per-tensor form of `aten._foreach_*`: a graph fuses across tensors by itself
library     PyTorch's own code while a graph is traced: functions that look at the values of tensors, or take
            kernels whose shape rules are wrong, are replaced by equal ones
recorder    the recorder: a dispatch mode below autograd and functionalization
failures/   errors that eager raises where a trace would compute on, and what stays in a trace because it may fail
functions/  the function mode above autograd, and what it does with single functions of PyTorch
shapes/     shape inference of ATen ops
symbols/    numbers and sizes whose value may differ at the next call
"""
