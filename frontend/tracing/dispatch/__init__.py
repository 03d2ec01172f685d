"""What PyTorch calls while a graph is traced: function and dispatch modes, fake tensors, shape rules.

assertions   conditions on the values of tensors that are there to raise an error, as checks of the program:
             `assert`, `if …: raise …`, and functions of PyTorch that do the same
checks       checks of element types that PyTorch's kernels make and its shape rules leave out: without them a
             graph would compute what eager refuses
clipping     clipping gradients: by keys of parameter groups, and in `build()`
dynamo_stub  fake tensors without the second and a half that importing all of TorchDynamo takes
fakes        shape inference of ATen ops on fake tensors, remembered
foreach      per-tensor form of `aten._foreach_*`: a graph fuses across tensors by itself
held_numbers  numbers beside tensors that the dtype in which a kernel computes cannot hold
in_place     what an elementwise op may write into a tensor in place, or by `out=`
layouts      what an update in place leaves of a traced tensor's strides: all of them
library      PyTorch's own code while a graph is traced: functions that look at the values of tensors, or take
             kernels whose shape rules are wrong, are replaced by equal ones
numbers      traced numbers: Python numbers whose value may differ at the next call
overlaps     writes to parts of views whose elements are one in memory: of an expanded tensor, of overlapping
             windows
pruning      which ops and inputs of a trace something needs
recorder     the recorder: a dispatch mode below autograd and functionalization
recurrent    LSTMs, GRUs and plain RNNs
refusals     ops that refuse some values at run time, so a trace keeps them even where nothing reads a result
rewrites     what happens above autograd while tracing: a function mode that
shape_rules  result metadata of the commonest ops, where PyTorch's own inference is slow (it takes batch norm
             apart into dozens of reference ops)
size_env     symbolic sizes while tracing: PyTorch's own, with one symbol and no guards
size_expressions  formulas of sizes as polynomials in one size, and the part of its range where they are
size_functions  expressions of a size as Python functions
"""
