"""The targets that programs are compiled for, and the devices behind them.

- `devices.py`: the table: every number of a device that a pass, a cost model or a code generator reads
- `target.py`: targets by name (`cpu`, `cuda:90`), and the device that stands for each
- `host.py`: what the machine at hand has
"""

from .devices import DEVICES, Device
from .target import CUDA_ARCHS, DEFAULT_ARCH, KINDS, Target, parse_target

__all__ = [
    "CUDA_ARCHS",
    "DEFAULT_ARCH",
    "DEVICES",
    "KINDS",
    "Device",
    "Target",
    "parse_target",
]
