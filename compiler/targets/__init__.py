"""The targets that programs are compiled for, and the devices behind them.

- `devices.py`: the table: every number of a device that a pass, a cost model or a code generator reads
- `target.py`: targets by name (`cpu`, `cuda:90`, `hip:gfx942`), and the device that stands for each
- `host.py`: what the machine at hand has

    devices     the table of devices
    host        the machine at hand
    links       the table of networks that join devices
    pipes       rates of multiprocessors' pipes, for the model of machine code
    processors  the table of processors: what kernels of products are cut by
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
