"""What PyTorch calls while a graph is traced: function and dispatch modes, fake tensors, shape rules."""
