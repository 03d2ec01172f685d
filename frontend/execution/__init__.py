"""From a trace to something that runs: the device, the compiler, the runtime.

device    the device that a graph is compiled for: where its tensors are, or another one that is asked for
executor  from a trace to something that runs: lowering, compiler, runtime
frozen    which tensors of a trace may be taken to be the same at each call
programs  the programs of a module as bytes and back, for the cache and for other ranks
races     how products on this processor are compared: by short runs, each contest once, the answers kept on disk
"""
