"""The package of each engine, and the error if it is missing."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from typing import NamedTuple


class EngineUnavailable(RuntimeError):
    """An engine's package is not installed, or does not fit; the message has the command that installs it."""


class Package(NamedTuple):
    """title: the engine's name. module: what is imported. distribution: what is installed. extra: of gflow. writer: the
    module that writes the engine's models."""

    title: str
    module: str
    distribution: str
    extra: str
    writer: str = ""


PACKAGES = {
    "xla": Package("XLA", "jaxlib", "jaxlib", "xla"),
    "onnxruntime": Package("ONNX Runtime", "onnxruntime", "onnxruntime", "onnx", "onnx"),
    "openvino": Package("OpenVINO", "openvino", "openvino", "openvino", "onnx"),
    "onnx": Package("ONNX", "onnx", "onnx", "onnx"),
    "tensorrt": Package("TensorRT", "tensorrt", "tensorrt", "tensorrt"),
}


def _found(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def available(engine: str) -> bool:
    """Whether an engine's package is installed, and what writes its models; imports nothing."""
    package = PACKAGES[engine]
    return all(_found(m) for m in (package.module, package.writer) if m)


def require(engine: str, writes: bool = True) -> Package:
    """The engine's package. writes: whether models are written, too, and not only run.

    Raises:
        EngineUnavailable: a package is not installed.
    """
    package = PACKAGES[engine]
    command = f"pip install 'gflow-compiler[{package.extra}]'"
    if not _found(package.module):
        raise EngineUnavailable(f"{package.title} is not installed ({package.module}): {command}")
    if writes and not available(engine):
        raise EngineUnavailable(
            f"{package.title} needs {package.writer}, which is not installed: {command}"
        )
    return package


def version(engine: str) -> str:
    """The installed version of an engine, "" without one."""
    try:
        return metadata.version(PACKAGES[engine].distribution)
    except metadata.PackageNotFoundError:
        return ""
