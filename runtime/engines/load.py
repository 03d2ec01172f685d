"""Compiles a program by an engine, or reads its code from the disk cache."""

from __future__ import annotations

from ..stored import cache
from .base import EngineCode
from .packages import require, version


def load_code(engine: str, code: bytes) -> EngineCode:
    """Compile a program in the engine's form, or read it from the disk cache.

    Raises:
        EngineUnavailable: the engine's package is not installed.
        RuntimeError: the engine refuses the program.
    """
    require(engine, writes=False)
    kind = _kind(engine)
    if cache.directory() is None:
        return kind.compile(code)
    name = cache.key(engine, version(engine), code)
    blob = cache.read("engines", name)
    if blob is not None:
        try:
            return kind.load(blob)
        except RuntimeError as error:  # of another processor, or damaged
            cache.discard("engines", name, str(error))
    made = kind.compile(code)
    blob = made.serialized()
    if blob is not None:
        cache.write("engines", name, blob)
    return made


def _kind(engine: str) -> type[EngineCode]:
    """An engine's class; it is loaded when a program needs it."""
    if engine == "xla":
        # start-up: loaded when a program needs it
        from .xla import XlaCode

        return XlaCode
    if engine == "onnxruntime":
        # start-up: loaded when a program needs it
        from .onnx_runtime import OnnxRuntimeCode

        return OnnxRuntimeCode
    if engine == "openvino":
        # start-up: loaded when a program needs it
        from .openvino import OpenVinoCode

        return OpenVinoCode
    raise ValueError(f"no engine named {engine!r}")
