"""ONNX: what ONNX Runtime, OpenVINO and TensorRT read.

openvino  what of it OpenVINO computes as the dialect says
patterns  functions that ONNX has one op for, found in the ops that they are made of
rows      how each op of the dialect is written in ONNX (opset 21)
write     a function of the dialect, or a region, as an ONNX model
writer    collects ONNX nodes and initializers: what all rows of the table do alike
"""
