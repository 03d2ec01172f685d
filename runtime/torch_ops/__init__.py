"""Ops of gflow's own in PyTorch's dispatcher, which programs call like ATen's.

ctc         CTC loss with lengths in tensors
recurrent   a layer of an LSTM, a GRU or a plain RNN over a dynamic length
"""
