"""ONNX, which ONNX Runtime, OpenVINO and TensorRT read.

openvino  the part of the format that OpenVINO computes correctly
patterns  recognition of functions for which ONNX has one op, such as LayerNormalization
rows      the table of ops in ONNX (opset 21)
write     a function, or a region, as an ONNX model
writer    the writer of ONNX nodes and initializers, which the rows use
"""
