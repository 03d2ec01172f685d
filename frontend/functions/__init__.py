"""`gflow.compile` of modules and functions, with and without gradients.

captured        the modules and tensors that a function reads besides its arguments
compiled        `gflow.compile`: one line for a module or a function
differentiable  calls of a compiled module or function that need gradients: one program for the call and one for
                its backward, both from one trace
imported        `gflow.from_stablehlo`: a StableHLO program, such as JAX exports, as a PyTorch module
joint           partitions a trace of a function with its gradients into a forward and a backward
objects         arguments with state of their own: a model's cache of keys and values
onnx_models     `gflow.from_onnx`: an ONNX model as a PyTorch module
onnx_ops        ops of ONNX by PyTorch's ops
partly          a backward in which some results are not used
second_order    gradients of gradients: of a call of a compiled function, with `create_graph=True`
split           a function in pieces: TorchDynamo splits it where no program can continue, and each piece is compiled
xrt             `gflow.XRTModule`: a module that another engine runs
torch_ops       ops of the dialect by PyTorch's ops, for programs read from StableHLO
"""
