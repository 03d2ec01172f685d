"""The package of each engine, and the error if it is missing."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from typing import NamedTuple


class EngineUnavailable(RuntimeError):
    """An engine's package is not installed, or does not fit; the message has the command that installs it."""


class Package(NamedTuple):
    """title: the engine's name. module: what is imported. distribution: what is installed. extra: of gflow."""

    title: str
    module: str
    distribution: str
    extra: str


PACKAGES = {
    "xla": Package("XLA", "jaxlib", "jaxlib", "xla"),
    "onnxruntime": Package("ONNX Runtime", "onnxruntime", "onnxruntime", "onnx"),
    "openvino": Package("OpenVINO", "openvino", "openvino", "openvino"),
    "tensorrt": Package("TensorRT", "tensorrt", "tensorrt", "tensorrt"),
}


def available(engine: str) -> bool:
    """Whether an engine's package is installed; imports nothing."""
    return importlib.util.find_spec(PACKAGES[engine].module) is not None


def require(engine: str) -> Package:
    """The engine's package.

    Raises:
        EngineUnavailable: the package is not installed.
    """
    package = PACKAGES[engine]
    if not available(engine):
        raise EngineUnavailable(
            f"{package.title} is not installed ({package.module}): pip install 'gflow-compiler[{package.extra}]'"
        )
    return package


def version(engine: str) -> str:
    """The installed version of an engine, "" without one."""
    try:
        return metadata.version(PACKAGES[engine].distribution)
    except metadata.PackageNotFoundError:
        return ""
