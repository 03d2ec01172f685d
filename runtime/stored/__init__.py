"""Programs, checkpoints and artifacts as files: written whole, checked whole, trusted only where signed.

artifact       saved graphs: a directory with programs, kernels and weights
aten_check     whether a call of an ATen overload that stands in a file is one that a program may make
atomic         files and directories that appear whole: written under a temporary name, synced to the disk,
               renamed
bundle         an artifact on disk: a directory with a manifest that lists every file, its size and checksum
cache          the on-disk cache of compiled programs and machine code
sharded        state dicts of many ranks as a directory: each writes what it has, any number of ranks reads it
checkpoint     state dicts as one file: nested dicts of tensors and plain data, without pickle
device_files   what a program for a GPU adds to an artifact: the source of each Triton kernel, and machine code
loaded_graph   a graph from a file: `LoadedGraph` runs it, and updates its weights
manifest       checks the manifest of a saved graph: every entry is there, of its kind, and refers to what there
               is
program_check  checks a program from a file whole before any of it runs
program_files  the files of an artifact that hold its programs: tables of steps, kernels as text and machine code
program_io     a `Program` as bytes and back: JSON, then the constants' bytes
signature      a signature of a saved graph: what a call of it is given and gives, and the programs that it runs
trust          whose files are read as code: this user's own, which nobody else may write, signed with this
               user's key
"""
