"""The formats and the engines that read them, by name."""

from __future__ import annotations

from dataclasses import replace

from gflow.dialects.extents import current
from gflow.dialects.mlir import ir

from .form import ON_RANKS, Call, Form
from .onnx.openvino import FORM as OPENVINO
from .onnx.rows import EXACT
from .onnx.rows import FORM as ONNX
from .sizes import marked
from .stablehlo.rows import FORM as STABLEHLO

FORMS: dict[str, Form] = {"stablehlo": STABLEHLO, "onnx": ONNX}

#: the format that an engine reads
READS = {"xla": "stablehlo", "onnxruntime": "onnx", "openvino": "onnx", "tensorrt": "onnx"}


def _refuse_empty(call: Call) -> str:
    """Refuse results without elements: ONNX Runtime rejects memory for a result whose address is null."""
    if any(ty.numel == 0 for ty in call.results):
        return "a result without elements: there is nothing to compute"
    return EXACT.refuse(call)


#: engines that support only a part of their format, or write some ops differently
_OF_ENGINES = {
    "onnxruntime": replace(EXACT, refuse=_refuse_empty),
    "openvino": OPENVINO,
    "xla": replace(STABLEHLO, without=ON_RANKS),
}


def form_of(engine: str) -> Form:
    """The part of its format that an engine supports.

    Raises:
        ValueError: there is no such engine.
    """
    if engine not in READS:
        raise ValueError(f"no engine named {engine!r} (known: {', '.join(READS)})")
    return _OF_ENGINES.get(engine) or FORMS[READS[engine]]


def written_form(engine: str) -> Form:
    """The format in which files for an engine are written, with the engine's own rows."""
    return EXACT if engine == "onnxruntime" else FORMS[READS[engine]]


def region_code(engine: str, op: ir.Operation) -> tuple[bytes, tuple[int, ...]]:
    """A `gflow.engine` region as a file that its engine compiles, and the integers in it that depend on dynamic sizes.

    For StableHLO the file is a text template, in which `{k}` stands for the k-th of these integers. It is filled in for
    each size.

    Raises:
        EngineError: the region has ops that the format does not support.
    """
    if READS[engine] == "onnx":
        # start-up: only the writer that is used is loaded
        from .onnx.write import write_region as write_onnx

        return write_onnx(op, written_form(engine), bytes_for_bools=engine == "openvino"), ()
    # start-up: only the writer that is used is loaded
    from .stablehlo.write import portable, write_region

    module = write_region(op)
    if current() is None:
        return portable(module), ()
    text, numbers = marked(str(module))
    return text.encode(), numbers
