"""The formats and the engines that read them, by name."""

from __future__ import annotations

from dataclasses import replace

from gflow.dialects.extents import current
from gflow.dialects.mlir import ir
from gflow.dialects.records import record

from .form import ON_RANKS, Call, Form
from .onnx.openvino import FORM as OPENVINO
from .onnx.rows import EXACT, PROBED
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


@record
class RegionCode:
    """A `gflow.engine` region as a file that its engine compiles.

    Attributes:
        code: the file. For StableHLO of dynamic dimensions it is a text template, in which `{k}` stands for the k-th of
            `numbers`. It is filled in for each size.
        numbers: the integers in it that depend on dynamic sizes.
        exact: the file to be run instead if the last output of `code`, a probe, is not finite; empty if `code` has no
            probe.
    """

    code: bytes
    numbers: tuple[int, ...] = ()
    exact: bytes = b""


def region_code(engine: str, op: ir.Operation) -> RegionCode:
    """A `gflow.engine` region as a file that its engine compiles.

    Raises:
        EngineError: the region has ops that the format does not support.
    """
    if READS[engine] == "onnx":
        # start-up: only the writer that is used is loaded
        from .onnx.write import write_region as write_onnx

        exact, _ = write_onnx(op, written_form(engine), bytes_for_bools=engine == "openvino")
        if engine == "onnxruntime":
            code, probed = write_onnx(op, PROBED)
            if probed:
                return RegionCode(code, exact=exact)
        return RegionCode(exact)
    # start-up: only the writer that is used is loaded
    from .stablehlo.write import portable, write_region

    module = write_region(op)
    if current() is None:
        return RegionCode(portable(module))
    text, numbers = marked(str(module))
    return RegionCode(text.encode(), numbers)
