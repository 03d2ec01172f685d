"""`gflow.compile` of modules and functions, with and without gradients.

captured        what a function reads besides its arguments, as far as it can be seen from outside
compiled        `gflow.compile`: one line for a module or a function
differentiable  calls of a compiled module or function that need gradients: one program for the call and one for
                its backward, both from one trace
imported        `gflow.from_stablehlo`: a program in StableHLO, such as JAX exports, as a module of PyTorch
joint           a trace of a function with its gradients, divided in two: what a call runs, and what its
                backward runs
objects         arguments that hold state of their own: a model's cache of keys and values
onnx_models     `gflow.from_onnx`: a model in ONNX as a module of PyTorch
onnx_ops        ops of ONNX by PyTorch's own
partly          a backward in which some results take no part
second_order    gradients that have gradients themselves: of a call of a compiled function, with `create_graph=True`
split           a function in pieces: TorchDynamo splits it where no program can go on, and each piece is compiled
xrt             `gflow.XRTModule`: a module that another engine runs
torch_ops       ops of the dialect by PyTorch's own: those that StableHLO is read into
"""
