"""Programs, checkpoints and artifacts as files: written atomically, checked before use, trusted only if signed.

artifact       saved graphs: a directory with programs, kernels and weights
aten_check     checks ATen calls in files: whether a program may make them
atomic         atomic writes of files and directories: to a temporary name, synced to the disk, renamed
bundle         an artifact on disk: a directory with a manifest that lists every file, its size and checksum
cache          the on-disk cache of compiled programs and machine code
sharded        state dicts of many ranks as a directory: each writes its shards, any number of ranks reads it
checkpoint     state dicts as one file: nested dicts of tensors and plain data, without pickle
device_files   files of a program for a GPU in an artifact: sources of Triton kernels, and machine code
loaded_graph   a graph from a file: `LoadedGraph` runs it, and updates its weights
manifest       checks the manifest of a saved graph: presence, types and references of all entries
program_check  checks a program from a file before any of it runs
program_files  the files of an artifact that hold its programs: tables of steps, kernels as text and machine code
program_io     a `Program` as bytes and back: JSON, then the constants' bytes
signature      a signature of a saved graph: inputs and outputs of a call, and the programs that it runs
trust          which files are read as code: the user's own, not writable by others, signed with the user's key
"""
