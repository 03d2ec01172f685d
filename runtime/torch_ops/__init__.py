"""Ops of gflow's own in PyTorch's dispatcher, which programs call like ATen's.

ctc         CTC loss with lengths in tensors
draw        a tensor of random numbers from PyTorch's default generator
recurrent   a layer of an LSTM, a GRU or a plain RNN over a dynamic length
"""
