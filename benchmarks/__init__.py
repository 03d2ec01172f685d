"""Measurements, each a file with a command of its own: `python -m benchmarks --help`.

__main__               the main table (gflow beside eager PyTorch and torch.compile), and the commands
amp                    mixed precision on and off
break_even             after how many steps a first call has paid for itself
checkpointing          memory and time of a decoder's step, with activations computed again
child                  one measurement in a process of its own
dynamic                one program for a range of batches, beside one for each
engines                XLA, ONNX Runtime and OpenVINO beside gflow's own code
frozen                 frozen inference, and decoding with weights of 8 and 4 bits
fusion                 what fusion saves: kernels, bytes moved, time
memory                 planned memory against eager's
numerics               rounding errors of training steps beside eager's
recomputation_bound    the least time that recomputation must add, by a solver
recomputation_optimum  the search for a memory budget beside that bound and beside marks
shapes                 shapes that change at each call, and caches that grow
transformers           models of the transformers library
compile_time/          the first call against depth, each pass against the number of ops, planning for many ranks
distributed/           steps on several ranks beside DDP and FSDP2, and their simulation
gpu/                   everything that is measured on a GPU
harness/               how it is measured: processes, rounds in turn, peers, tables
kernels/               single kernels beside other libraries, and by their machine code
workloads/             what is measured: models and training steps from fixed seeds
"""
