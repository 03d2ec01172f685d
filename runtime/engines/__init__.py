"""Other engines, which run parts of a program or all of it. Their packages are imported when they are switched on.

base          the interface of an engine's compiled code
handed        results that stay in an engine's memory
load          compiles a program by an engine, or reads its code from the disk cache
onnx_runtime  ONNX Runtime on the CPU
onnx_models   ONNX models with values for some of their inputs
openvino      OpenVINO on the CPU
packages      the package of each engine, and the error if it is missing
step          runs a part of a program that another engine compiled, on tensors in the program's memory
xla           XLA on the CPU, through jaxlib
"""
