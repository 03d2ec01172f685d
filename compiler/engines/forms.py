"""The forms that programs are written in, and the engines that read them, by name."""

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

#: the form that an engine reads
READS = {"xla": "stablehlo", "onnxruntime": "onnx", "openvino": "onnx", "tensorrt": "onnx"}


def _refuse_empty(call: Call) -> str:
    """ONNX Runtime is given memory for results, and takes none that has no address."""
    if any(ty.numel == 0 for ty in call.results):
        return "a result without elements: there is nothing to compute"
    return EXACT.refuse(call)


#: engines that have less than the form that they read, or some of it in other ways
_OF_ENGINES = {
    "onnxruntime": replace(EXACT, refuse=_refuse_empty),
    "openvino": OPENVINO,
    "xla": replace(STABLEHLO, without=ON_RANKS),
}


def form_of(engine: str) -> Form:
    """What an engine has of its form.

    Raises:
        ValueError: there is no such engine.
    """
    if engine not in READS:
        raise ValueError(f"no engine named {engine!r} (known: {', '.join(READS)})")
    return _OF_ENGINES.get(engine) or FORMS[READS[engine]]


def written_form(engine: str) -> Form:
    """What an engine's files are written in: the form that it reads, with rows of its own."""
    return EXACT if engine == "onnxruntime" else FORMS[READS[engine]]


def region_code(engine: str, op: ir.Operation) -> tuple[bytes, tuple[int, ...]]:
    """A `gflow.engine` region as a file that its engine compiles, and what is put into the file for each size: numbers
    that vary, of a text with `{k}` in the place of the k-th one.

    Raises:
        EngineError: it has ops that the form has not.
    """
    if READS[engine] == "onnx":
        # start-up: one writer is loaded
        from .onnx.write import write_region as write_onnx

        return write_onnx(op, written_form(engine), bytes_for_bools=engine == "openvino"), ()
    # start-up: one writer is loaded
    from .stablehlo.write import portable, write_region

    module = write_region(op)
    if current() is None:
        return portable(module), ()
    text, numbers = marked(str(module))
    return text.encode(), numbers
