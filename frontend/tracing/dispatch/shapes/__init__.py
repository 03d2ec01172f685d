"""Shape inference of ATen ops.

dynamo_stub  fake tensors without the second and a half that importing all of TorchDynamo takes
fakes        shape inference of ATen ops on fake tensors, remembered
shape_rules  result metadata of the commonest ops, where PyTorch's own inference is slow (it takes batch norm
             apart into dozens of reference ops)
"""
