"""ATen overloads as the dialect knows them, without importing PyTorch.

calls        how `gflow.aten` holds a call of any ATen overload as text: encoder and decoder
collectives  which ATen overloads are collectives: calls in which all ranks of a process group take part
written      custom ops that write into arguments, as ops that return what they would write
"""
