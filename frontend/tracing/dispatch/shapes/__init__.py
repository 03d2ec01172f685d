"""Shape inference of ATen ops.

dynamo_stub  fake tensors without importing all of TorchDynamo, which takes a second and a half
fakes        shape inference of ATen ops on fake tensors, cached
fills        which fake tensors hold one number everywhere
in_place_rules  shape rules of elementwise ops that update a tensor in place, for the common case
shape_rules  result metadata of the most common ops, for which PyTorch's own inference is slow (it decomposes batch norm
             into dozens of reference ops)
"""
