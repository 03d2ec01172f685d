"""The targets that programs are compiled for, and tables of hardware parameters.

devices     the table of devices: rates, sizes and features that passes, cost models and code generators read
host        properties of the machine that compiles
links       the table of networks between devices
pipes       throughput and latency of a multiprocessor's pipelines, for the model of GPU machine code
processors  the table of CPUs: tile sizes, cache sizes and rates for kernel selection
target      targets by name, `cpu`, `cuda:90` or `hip:gfx942`, and the device that stands for each
"""

from .devices import DEVICES, Device
from .target import CUDA_ARCHS, DEFAULT_ARCHS, KINDS, Target, parse_target, target_of_arch

__all__ = [
    "CUDA_ARCHS",
    "DEFAULT_ARCHS",
    "DEVICES",
    "KINDS",
    "Device",
    "Target",
    "parse_target",
    "target_of_arch",
]
