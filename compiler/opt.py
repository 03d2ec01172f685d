"""`gflow-opt`: reads MLIR text, runs passes, prints MLIR text; as `mlir-opt`, for our dialect too.

    gflow-opt model.mlir --pass-pipeline='builtin.module(func.func(gflow-simplify,cse))'
    gflow-opt - --gflow-simplify --cse -o out.mlir

Exit status 0 when everything parsed, ran and verified (or, under --verify-diagnostics, when the
diagnostics were the expected ones), else 1. Input of any kind gives diagnostics, not a traceback.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from gflow.dialects.constants import externalize
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS

from .diagnostics import Diagnostic, Sources, collect
from .opt_args import Options, UsageError, help_text, list_text, parse_args
from .opt_expected import compare
from .passmanager import Pipeline, PipelineError
from .pipeline import DEFAULT_PIPELINES
from .pipeline_text import PipelineSyntaxError, nearest

# MLIR parses and prints nested constructs by recursion. Nesting is bounded before parsing, and
# the work runs on a thread whose stack holds that much of it.
_MAX_NESTING = 2000
_STACK_BYTES = 512 << 20

_SPLIT = re.compile(r"^// -----[ \t-]*\r?$", re.MULTILINE)
_SINGLE_OP = "source must contain a single top-level operation"


class InputError(Exception):
    """The input or output cannot be used at all; the message is what the user sees."""


def main(argv: list[str] | None = None) -> int:
    """Run `gflow-opt` and return its exit status."""
    results: list[int] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            results.append(_main(sys.argv[1:] if argv is None else argv))
        except BaseException as error:
            failures.append(error)

    before = threading.stack_size(_STACK_BYTES)
    try:
        thread = threading.Thread(target=work, name="gflow-opt")
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    if failures:
        return _internal_error(failures[0])
    return results[0]


def _internal_error(error: BaseException) -> int:
    if isinstance(error, BrokenPipeError):
        # The reader of our output went away, as `| head` does.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if os.environ.get("GFLOW_DEBUG"):
        raise error
    print(
        f"gflow-opt: internal error: {type(error).__name__}: {error}\n"
        "This is a bug in gflow; set GFLOW_DEBUG=1 for the traceback.",
        file=sys.stderr,
    )
    return 1


def _main(argv: list[str]) -> int:
    try:
        options = parse_args(argv)
        if options.help or options.version or options.list_passes or options.show_dialects:
            print(_information(options))
            return 0
        text = _read(options.input)
        context = make_context()
        context.enable_multithreading(False)
        context.allow_unregistered_dialects = options.allow_unregistered_dialect
        with context:
            pipeline = _pipeline(options)
        _check_writable(options.output)
    except (UsageError, InputError) as error:
        return _fail(f"gflow-opt: {error}")
    except PipelineSyntaxError as error:
        return _fail(f"<pass-pipeline>:1:{error.position + 1}: error: {error}")
    if options.dump_pass_pipeline:
        print(f"Pass Manager with {len(pipeline.steps)} passes:\n{pipeline}", file=sys.stderr)
    runner = _Runner(options, pipeline, context)
    name = "<stdin>" if options.input == "-" else options.input
    good = runner.run_all(text, name)
    if options.gflow_timing:
        print(_timing_report(runner.seconds), file=sys.stderr)
    output = "// -----\n".join(runner.outputs)
    if options.output == "-":
        sys.stdout.write(output)
        sys.stdout.flush()
    elif good:
        try:
            Path(options.output).write_text(output, encoding="utf-8")
        except OSError as error:
            return _fail(f"gflow-opt: cannot write '{options.output}': {error.strerror}")
    return 0 if good else 1


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 1


def _information(options: Options) -> str:
    if options.version:
        return f"gflow-opt {metadata.version('gflow')}"
    if options.list_passes:
        return list_text()
    if options.show_dialects:
        return "Available Dialects: gflow and all upstream dialects of the MLIR bindings"
    return help_text()


def _read(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise InputError(f"cannot open input file '{name}': {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"cannot open input file {name!r}: {error}") from None
    if data.startswith(b"ML\xefR"):
        raise InputError(f"'{name}' holds MLIR bytecode; only MLIR text is read")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        shown = "<stdin>" if name == "-" else name
        raise InputError(
            f"{shown}:{line}:{column}: error: the input is not UTF-8 text: "
            f"byte 0x{data[error.start]:02x}"
        ) from None


def _check_writable(name: str) -> None:
    if name == "-":
        return
    path = Path(name)
    reason = ""
    if path.is_dir():
        reason = "Is a directory"
    elif not path.parent.is_dir():
        reason = "No such file or directory"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = "Permission denied"
    if reason:
        raise InputError(f"cannot open output file '{name}': {reason}")


def _pipeline(options: Options) -> Pipeline:
    if options.pipeline is not None:
        if options.pipeline not in DEFAULT_PIPELINES:
            hint = nearest(options.pipeline, DEFAULT_PIPELINES)
            known = ", ".join(DEFAULT_PIPELINES)
            raise UsageError(f"no pipeline for target '{options.pipeline}'{hint} (known: {known})")
        return Pipeline(DEFAULT_PIPELINES[options.pipeline])
    if options.pass_pipeline is not None:
        return Pipeline(options.pass_pipeline)
    return Pipeline(f"any({','.join(options.passes)})")


def _nesting_error(text: str) -> tuple[int, int] | None:
    """Line and column where brackets nest too deeply, if they do."""
    if sum(map(text.count, "([{<")) <= _MAX_NESTING:
        return None
    depth = 0
    for match in re.finditer(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->|[(\[{<]|[)\]}>]', text):
        token = match.group()
        if token in ")]}>":
            depth = max(depth - 1, 0)
        elif token in "([{<":
            depth += 1
            if depth > _MAX_NESTING:
                start = match.start()
                return text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
    return None


def _silent_failure(text: str, name: str) -> Diagnostic:
    """What to say where the parser fails and says nothing, as for `gflow.add %x, %y`."""
    for match in re.finditer(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|[%@#!^]?[\w.$]+(?!\s*=)', text):
        token = match.group()
        if token.startswith("gflow.") and token[6:] in OPS:
            start = match.start()
            line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
            message = f"'{token}' has only the generic form: write \"{token}\"(%x) {{...}} : ..."
            return Diagnostic("error", message, name, line, column)
    return Diagnostic("error", "the input is not valid MLIR", name, 1, 1)


class _Runner:
    """Processes the parts of one input with one pipeline."""

    def __init__(self, options: Options, pipeline: Pipeline, context: ir.Context) -> None:
        self.options = options
        self.pipeline = pipeline
        self.context = context
        self.sources = Sources()
        self.outputs: list[str] = []
        self.seconds: dict[str, float] = {}

    def run_all(self, text: str, name: str) -> bool:
        """Process every part of `text`; whether all were good."""
        self.sources.add(name, text)
        if not self.options.split_input_file:
            return self._run_part(text, name, 0)
        good, start = True, 0
        for match in [*_SPLIT.finditer(text), None]:
            end = len(text) if match is None else match.start()
            good &= self._run_part(text[start:end], name, text.count("\n", 0, start))
            start = end if match is None else match.end()
        return good

    def _run_part(self, text: str, name: str, first_line: int) -> bool:
        # Blank lines in front keep the line numbers those of the whole file.
        text = "\n" * first_line + text
        diagnostics: list[Diagnostic] = []
        output = self._process(text, name, diagnostics)
        if output is not None:
            self.outputs.append(output)
        elif self.options.split_input_file:
            self.outputs.append("")
        if self.options.verify_diagnostics:
            diagnostics = compare(text, name, diagnostics)
            good = not diagnostics
        else:
            good = output is not None
        for diagnostic in diagnostics:
            print(self.sources.show(diagnostic), file=sys.stderr)
        return good

    def _process(self, text: str, name: str, diagnostics: list[Diagnostic]) -> str | None:
        """The resulting IR as text; None (and diagnostics) where something failed."""
        place = _nesting_error(text)
        if place is not None:
            message = f"brackets nest more than {_MAX_NESTING} deep"
            diagnostics.append(Diagnostic("error", message, name, *place))
            return None
        root = self._parse(text, name, diagnostics)
        if root is None:
            return None
        try:
            self.pipeline.run(
                root,
                verify_each=self.options.verify_each,
                timing=self.seconds,
                instrument=self._instrument(),
                diagnostics=diagnostics,
            )
        except PipelineError:
            return None
        externalize(root)
        return self._print(root)

    def _parse(self, text: str, name: str, diagnostics: list[Diagnostic]) -> ir.Operation | None:
        with self.context:
            with collect(self.context) as found:
                try:
                    op = ir.Operation.parse(text, source_name=name)
                except ir.MLIRError:
                    op = None
            if op is not None:
                diagnostics += found
                if self.options.no_implicit_module or op.operation.name == "builtin.module":
                    return op.operation
                module = ir.Module.create(loc=ir.Location.file(name, 1, 1))
                module.body.append(op)
                return module.operation
            if not found:
                found.append(_silent_failure(text, name))
            several = len(found) == 1 and found[0].message.startswith(_SINGLE_OP)
            if not several or self.options.no_implicit_module:
                diagnostics += found
                return None
            # Several operations (or none): the implicit module. Places then read "-".
            with collect(self.context) as found:
                try:
                    parsed = ir.Module.parse(text).operation
                except ir.MLIRError:
                    parsed = None
            diagnostics += found
            return parsed

    def _print(self, op: ir.Operation) -> str:
        options = self.options
        limit = options.mlir_elide_elementsattrs_if_larger
        text = op.get_asm(
            enable_debug_info=options.mlir_print_debuginfo,
            pretty_debug_info=options.mlir_pretty_debuginfo,
            print_generic_op_form=options.mlir_print_op_generic,
            use_local_scope=options.mlir_print_local_scope,
            large_elements_limit=limit,
            large_resource_limit=None if limit is None else 2 * limit + 10,  # in hexadecimal digits
            assume_verified=True,
        )
        return text if text.endswith("\n") else text + "\n"

    def _instrument(self) -> Callable[[str, str, ir.Operation], None] | None:
        options = self.options
        wanted = {
            "before": (options.mlir_print_ir_before_all, options.mlir_print_ir_before),
            "after": (options.mlir_print_ir_after_all, options.mlir_print_ir_after),
        }
        if not (any(a or n for a, n in wanted.values()) or options.mlir_print_ir_after_change):
            return None
        last = ""

        def dump(event: str, name: str, op: ir.Operation) -> None:
            nonlocal last
            if event == "failed":
                every = options.mlir_print_ir_after_all
                if every or name in options.mlir_print_ir_after:
                    text = op.get_asm(print_generic_op_form=True, assume_verified=True)
                    print(_dump_header("After", f"{name} Failed") + text, file=sys.stderr)
                return
            every, names = wanted[event]
            if options.mlir_print_ir_after_change:
                text = self._print(op)
                changed, last = text != last, text
                if event == "after" and not changed and (every or name in names):
                    print(_dump_header("After", f"{name} (no change)"), file=sys.stderr)
                    return
                if event == "after" and changed:
                    every = True
            if every or name in names:
                print(_dump_header(event.capitalize(), name) + self._print(op), file=sys.stderr)

        return dump


def _dump_header(event: str, name: str) -> str:
    return f"// -----// IR Dump {event} {name} //----- //\n"


def _timing_report(seconds: dict[str, float]) -> str:
    total = sum(seconds.values())
    bar = "===" + "-" * 73 + "==="
    lines = [
        bar, "Execution time report".center(79).rstrip(), bar,
        f"  Total Execution Time: {total:.4f} seconds", "", "  ----Wall Time----  ----Name----",
    ]  # fmt: skip
    rows = [*sorted(seconds.items(), key=lambda item: -item[1]), ("Total", total)]
    for name, spent in rows:
        share = f"({spent / total * 100 if total else 0:.1f}%)"
        lines.append(f"  {spent:8.4f} {share:>8}  {name}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
