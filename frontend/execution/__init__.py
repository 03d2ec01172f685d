"""From a trace to an executable: the device, the compiler, the runtime.

device    the device for which a graph is compiled: that of its tensors, or another one that is requested
executor  from a trace to an executable: lowering, compiler, runtime
frozen    which tensors of a trace are constant between calls
programs  programs as bytes, for the cache and for other ranks
trace_text  a trace as text, by which a stored program is found without lowering
tuning    what is chosen by measuring on a GPU: configurations, libraries, contractions apart from their epilogues
races     timed comparisons of kernels on this processor: short runs, each comparison once, results kept on disk
"""
