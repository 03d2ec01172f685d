"""Errors of eager that tracing would miss, and ops that must stay in a trace because they may fail.

assertions  converts conditions on tensors' values that raise an error into checks of the program: `assert`,
            `if …: raise …`, and functions of PyTorch with this effect
checks      checks of dtypes and sizes that PyTorch's kernels make and its shape rules omit: without them a
            graph would compute results where eager raises
pruning     which ops and inputs of a trace are needed
refusals    ops that refuse some values at run time, so a trace keeps them even if no op reads a result
"""
