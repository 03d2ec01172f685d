"""A process that compiles Triton kernels: `python -m gflow.compiler.emit.triton.toolchain.worker`.

Requests and answers are lines of JSON on stdin and stdout; the process ends when stdin is closed. It is a separate
process because Triton decides at import whether kernels are compiled or interpreted, and so that several kernels can be
compiled at the same time.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import sys
import tempfile
import traceback
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .machine_code import FAMILIES
from .source_module import load_text


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of compilers must not be part of an answer
    with tempfile.TemporaryDirectory(prefix="gflow-triton-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        with contextlib.suppress(ImportError):  # the answer to the first request reports the error
            _prepare()
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = compile_kernel(request)
            except Exception as error:
                answer = {"error": _reason(error), "line": _line(error, request)}
            print(json.dumps(answer), file=answers, flush=True)


def _prepare() -> None:
    """Import Triton, and switch on its reports about kernels."""
    # Triton need not be installed to emit its source
    import triton
    from triton.compiler import compiler

    triton.knobs.nvidia.dump_ptxas_log = True
    triton.knobs.compilation.always_compile = True
    if hasattr(compiler, "get_cache_key"):
        # files are temporary; Triton would otherwise hash all of its own files for the cache key
        compiler.get_cache_key = lambda *args, **kwargs: "kernel"


def compile_kernel(request: dict[str, Any]) -> dict[str, Any]:
    """Compile a kernel: the fields of a `DeviceCode` and, on request, the assembly.

    request: name, source, parameters, constants, multiples, num_warps, num_stages, target (what `GPUTarget` takes);
    assembly: whether that is wanted.

    Raises:
        ValueError: parameters are missing, or in another order than in the source.
    """
    # Triton need not be installed to emit its source
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    name, parameters = request["name"], request["parameters"]
    module = load_text(name, request["source"])
    function = getattr(module, name)
    signature = {n: parameters.get(n, "constexpr") for n in function.arg_names}
    constants = {n: v for n, v in request["constants"].items() if n in function.arg_names}
    if [n for n in function.arg_names if n in parameters] != list(parameters):
        raise ValueError(f"the parameters {list(parameters)} come in another order in {name}()")
    missing = [n for n in function.arg_names if n not in parameters and n not in constants]
    if missing:
        raise ValueError(f"no value for the parameters {', '.join(missing)}")
    attributes: Any = {
        (i,): [["tt.divisibility", 16]]
        for i, n in enumerate(function.arg_names)
        if n in request["multiples"]
    }
    source = ASTSource(function, signature, constants, attributes)
    options = {"num_warps": request["num_warps"], "num_stages": request["num_stages"]}
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            found = triton.compile(source, target=GPUTarget(*request["target"]), options=options)  # fmt: skip
    except Exception as error:
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(printed.getvalue())
        raise
    finally:
        _empty(Path(os.environ["TRITON_CACHE_DIR"]))
    metadata, family = found.metadata, FAMILIES[request["target"][0]]
    family.check_entry(
        found.asm[family.assembly], parameters, metadata.warp_size * metadata.num_warps
    )
    return {
        "image": base64.b64encode(zlib.compress(found.asm[family.image], 6)).decode(),
        "entry": metadata.name,
        "shared": metadata.shared,
        "warps": metadata.num_warps,
        "scratch": getattr(metadata, "global_scratch_size", 0),
        **family.resources(found.asm[family.assembly], printed.getvalue()),
        **({"assembly": found.asm[family.assembly]} if request.get("assembly") else {}),
    }


def _reason(error: BaseException) -> str:
    """The reason of an error, from its first cause."""
    texts = []
    current: BaseException | None = error
    while current is not None:
        text = str(current) or type(current).__name__
        if text not in texts:
            texts.append(text)
        current = current.__cause__
    return "\n".join([*texts, *getattr(error, "__notes__", ())]).strip()


def _line(error: BaseException, request: dict[str, Any]) -> int:
    """The line of the source to which an error refers; 0 if it is unknown."""
    lines: Sequence[int] = ()
    current: BaseException | None = error
    while current is not None:
        node, source = getattr(current, "node", None), getattr(current, "src", None)
        if node is not None and isinstance(source, str):
            head = source.split("\n", 1)[0]
            texts = request["source"].split("\n")
            first = texts.index(head) if head in texts else 0
            lines = (first + node.lineno,)
        for frame in traceback.extract_tb(current.__traceback__):
            if frame.filename == f"<{request['name']}.py>" and not lines:
                lines = (frame.lineno or 0,)
        if isinstance(current, SyntaxError) and current.filename == f"<{request['name']}.py>":
            lines = (current.lineno or 0,)
        current = current.__cause__
    return lines[0] if lines else 0


def _empty(folder: Path) -> None:
    """Remove Triton's files of a compilation."""
    for path in sorted(folder.rglob("*"), reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink()


if __name__ == "__main__":
    main()
