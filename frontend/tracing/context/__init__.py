"""The context of tracing: thread, watchers, module scopes, source locations, ranks.

checked_values        checks of values that authors give to switches
collector             pauses Python's cyclic garbage collector during compilation
debug_settings        what is printed while a graph is built, as data
deprecated_spellings  deprecated names of OneFlow: they work, and each warns once
location              source locations of recorded ops: user frame, module path, and the forward op that a
                      backward op belongs to (by the autograd node's sequence number)
missing_names         what to write for a name of OneFlow's that PyTorch's tensors, modules and functions do not have
ranks                 the default process group and its size
saved_hooks           hooks of saved tensors around a call
scopes                calls of modules with recomputation, while a graph is traced
threads               replaces names of other libraries in one thread for a while
transforms            transforms, modes and other contexts around a call that act on PyTorch's calls
user_warnings         reports warnings of PyTorch's Python code at the author's line, while a graph is traced
watch                 events while a graph is built, for observers: `Watcher`
watched_calls         detects calls by which Python code reads the time, a random number or a file
wrappers              refuses modules and tensors whose behaviour a graph would lose: those that work across processes
                      by hooks of autograd or by a tensor class, in a group of more than one rank
"""
