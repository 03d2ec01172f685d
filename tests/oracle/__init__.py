"""The standing oracle: random programs run by gflow beside eager and float64.

program.py    a program as data: tensors, calls of PyTorch, how it is run; JSON and Python text of it
tensors.py    the tensors of a program: storages, strides, overlaps, values
growth.py     grows a program call by call, on real tensors
ops_*.py      tables: an op → how to draw a call of it
structures.py what surrounds ops: contexts, checkpoints, functions of the author's, torch.func, control flow
op_db.py      calls drawn from PyTorch's own samples
settings.py   how a program is run: entry point, switches, optimizer, AMP
run.py        runs a program eagerly, or by gflow
dense.py      eager on row-major copies of all operands
judge.py      what is a mismatch, and what is rounding
minimize.py   shrinks a program that fails
campaign.py   many seeds in child processes with time-outs, records on disk
ir.py         the same for random IR: pipelines, interpreter and code generators
"""
