"""Errors that eager raises where a trace would compute on, and what must stay in a trace because it may fail.

assertions  conditions on the values of tensors that are there to raise an error, as checks of the program:
            `assert`, `if …: raise …`, and functions of PyTorch that do the same
checks      checks of element types that PyTorch's kernels make and its shape rules leave out: without them a
            graph would compute what eager refuses
pruning     which ops and inputs of a trace something needs
refusals    ops that refuse some values at run time, so a trace keeps them even where nothing reads a result
"""
