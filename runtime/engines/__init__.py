"""Other engines that run parts of a program, or all of it: imported when they are switched on, never before.

base          what an engine's compiled code is to the runtime: tensors in, tensors into places
load          an engine's compiled code by the engine's name, kept in the disk cache where the engine can write it
onnx_runtime  ONNX Runtime on the CPU
onnx_models   ONNX models whose inputs are in part constants
openvino      OpenVINO on the CPU
packages      which package an engine needs, and what to say where it is missing
step          running a part of a program that another engine compiled, on tensors in the program's memory
xla           XLA on the CPU, through jaxlib
"""
