"""PyTorch's hooks while a graph is traced: function and dispatch modes, fake tensors, shape rules.

branches    conditions on values that a program computes: it is made for their truths, and checks them
call_checks  checks of a call that eager's kernels make: used by the tracer and by the backend of TorchDynamo
clipping    clipping of gradients: by keys of parameter groups, and in `build()`
eager_random  eager's random numbers: ops that draw call ATen's methods on PyTorch's generator
foreach     per-tensor form of `aten._foreach_*`: a graph fuses across tensors by itself
known_values  values that follow from integers and masks from outside: a program is made for them
library     replaces functions of PyTorch that read the values of tensors, or use kernels whose shape rules are wrong,
            by equivalent ones while a graph is traced
recorder    the recorder: a dispatch mode below autograd and functionalization
failures/   errors of eager that tracing would miss, and ops that must stay in a trace because they may fail
functions/  the function mode above autograd, and its handlers for single functions of PyTorch
shapes/     shape inference of ATen ops
symbols/    numbers and sizes whose value may differ at the next call
"""
