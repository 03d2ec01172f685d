"""Files of a program for a GPU in an artifact: the sources of its Triton kernels, and machine code.

kernels/NAME.py          the source, to be read; not used
kernels/NAME.0.cubin     the machine code of its config 0; for AMD's GPUs kernels/NAME.0.hsaco
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gflow.dialects.program import DeviceCode, Program, TritonKernel
from gflow.dialects.program.form import ProgramError, decode, encode, packed, unpacked


def device_files(program: Program) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Values for the program's JSON, and files."""
    files = {f"kernels/{name}.py": k.source.encode() for name, k in program.triton.items()}
    code = {}
    for key, value in program.device_code.items():
        files[_image(key, program.target)] = unpacked(value.image)
        code[key] = encode(replace(value, image=""))
    kernels = {name: encode(replace(k, source="")) for name, k in program.triton.items()}
    return {"triton": kernels, "device_code": code}, files


def read_device(values: dict[str, Any], files: Mapping[str, bytes]) -> dict[str, Any]:
    """The fields of a `Program` that `device_files` wrote; they are taken from `values`.

    Raises:
        LookupError, TypeError, AttributeError, ValueError: they are malformed.
    """
    triton, code = values.pop("triton"), values.pop("device_code")
    return {
        "triton": {
            name: replace(_of(TritonKernel, k), source=files[f"kernels/{name}.py"].decode())
            for name, k in triton.items()
        },
        "device_code": {
            key: replace(_of(DeviceCode, value), image=packed(files[_image(key, values["target"])]))
            for key, value in code.items()
        },
    }


def _of(kind: Any, value: Any) -> Any:
    found = decode(value)
    if type(found) is not kind:
        raise ProgramError(f"a {kind.__name__} was expected, found {type(found).__name__}")
    return found


def _image(key: str, target: str) -> str:
    suffix = "hsaco" if target.startswith("hip") else "cubin"
    return f"kernels/{key.replace('/', '.')}.{suffix}"
