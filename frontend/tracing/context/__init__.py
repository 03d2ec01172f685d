"""What is known while a graph is traced: the thread, who watches, module scopes, source locations, ranks.

checked_values        checks of values that authors give to switches
collector             python's cyclic garbage collector, out of the way of compilation
debug_settings        what is printed while a graph is built, as data
deprecated_spellings  spellings of OneFlow's earlier documents: they work, and each warns once
location              source locations of recorded ops: user frame, module path, and the forward op that a
                      backward op comes from (by the autograd node's sequence number)
missing_names         what to write for a name of OneFlow's that PyTorch's tensors, modules and functions do not have
ranks                 how many processes work together
saved_hooks           hooks of saved tensors around a call
scopes                calls of modules whose activations are recomputed, while a graph is traced
threads               names of other libraries that mean something else in one thread for a while
user_warnings         warnings of PyTorch's Python code, while a graph is traced, at the author's line
watch                 what happens while a graph is built, for whoever wants to know of it: `Watcher`
watched_calls         calls by which Python code asks for the time, a random number or a file
wrappers              modules and tensors that work across processes by hooks of autograd or by a tensor class:
                      a graph would lose what they do, so in a group of more than one rank they are refused
"""
