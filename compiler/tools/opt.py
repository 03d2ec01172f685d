"""`gflow-opt`: reads MLIR text, runs passes, prints MLIR text. It is `mlir-opt` with the gflow dialect and its passes.

    gflow-opt model.mlir --pass-pipeline='builtin.module(func.func(gflow-simplify,cse))'
    gflow-opt - --gflow-simplify --cse -o out.mlir
    gflow-opt model.mlir --pipeline-for=cpu --emit=plan --gflow-report --view-memory memory.html

The exit status is 0 if everything parsed, ran and verified, or, with --verify-diagnostics, if the diagnostics are the
expected ones. Otherwise it is 1. Any input gives diagnostics, never a traceback.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from importlib import metadata
from pathlib import Path

from gflow.dialects import limits
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir

from ..driver.inputs import InputError, check_writable, parse, read_file
from ..driver.internal import debugging
from ..driver.pass_manager import Pipeline, PipelineError
from ..driver.pipeline_text import PipelineSyntaxError, nearest
from ..driver.pipelines import DEFAULT_PIPELINES, pipeline_for
from ..driver.reproducer import ReproducerError, Writer
from ..driver.reproducer import read as read_reproducer
from ..driver.stack import with_room
from ..ir.diagnostics import Diagnostic, Sources
from .args import Options, UsageError, parse_args
from .dumps import instrument, module_text, timing_report
from .expected import compare
from .help import help_text, list_text
from .imports import check_import, import_op, prepare_import
from .results import Results, ResultsError

_SPLIT = re.compile(r"^// -----[ \t-]*\r?$", re.MULTILINE)


def main(argv: list[str] | None = None) -> int:
    """Run `gflow-opt` and return its exit status."""
    given = sys.argv[1:] if argv is None else argv
    try:
        return with_room(lambda: _main(given), "gflow-opt")
    except BaseException as error:
        return _internal_error(error)


def _internal_error(error: BaseException) -> int:
    if isinstance(error, BrokenPipeError):
        # The reader of our output went away, as `| head` does.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if debugging():
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
        check_import(options.import_form, options.import_shapes)
        results = Results(options)
        text = read_file(options.input)
        context = make_context()
        context.enable_multithreading(False)
        prepare_import(options.import_form, context)
        context.allow_unregistered_dialects = options.allow_unregistered_dialect
        with context:
            pipeline = _pipeline(options, text)
        for file in (
            options.output,
            options.view_memory,
            options.view_graph,
            options.view_timeline,
        ):
            check_writable(file or "-")
    except (UsageError, InputError, ResultsError, ReproducerError) as error:
        return _fail(f"gflow-opt: {error}")
    except PipelineSyntaxError as error:
        return _fail(f"<pass-pipeline>:1:{error.position + 1}: error: {error}")
    if options.dump_pass_pipeline:
        print(f"Pass Manager with {len(pipeline.steps)} passes:\n{pipeline}", file=sys.stderr)
    runner = _Runner(options, pipeline, context, results)
    name = "<stdin>" if options.input == "-" else options.input
    good = runner.run_all(text, name)
    if options.gflow_timing:
        print(timing_report(runner.seconds), file=sys.stderr)
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
        return f"gflow-opt {metadata.version('gflow-compiler')}"
    if options.list_passes:
        return list_text()
    if options.show_dialects:
        return "Available Dialects: gflow and all upstream dialects of the MLIR bindings"
    return help_text()


def _pipeline(options: Options, text: str) -> Pipeline:
    if options.run_reproducer:
        wanted = read_reproducer(text)
        options.verify_each = wanted.verify_each
        return Pipeline(wanted.pipeline)
    if options.pipeline is not None:
        try:
            return Pipeline(pipeline_for(options.pipeline))
        except ValueError as error:
            hint = nearest(options.pipeline, DEFAULT_PIPELINES)
            raise UsageError(
                f"no pipeline for target '{options.pipeline}'{hint}: {error}"
            ) from None
    if options.pass_pipeline is not None:
        return Pipeline(options.pass_pipeline)
    return Pipeline(f"any({','.join(options.passes)})")


class _Runner:
    """Runs one pipeline on the parts of an input."""

    def __init__(
        self, options: Options, pipeline: Pipeline, context: ir.Context, results: Results
    ) -> None:
        self.options = options
        self.pipeline = pipeline
        self.context = context
        self.results = results
        self.sources = Sources()
        self.outputs: list[str] = []
        self.seconds: dict[str, float] = {}
        keep = options.mlir_pass_pipeline_crash_reproducer
        self.reproducer = Writer(Path(keep)) if keep else None

    def run_all(self, text: str, name: str) -> bool:
        """Process every part of `text`. Returns whether all succeeded."""
        self.sources.add(name, text)
        if not self.options.split_input_file:
            return self._run_part(text, name, 0)
        parts, start, line = list[tuple[int, int, int]](), 0, 0
        for match in [*_SPLIT.finditer(text), None]:
            end = len(text) if match is None else match.start()
            parts.append((start, end, line))
            if match is not None:
                line += text.count("\n", start, match.end())
                start = match.end()
        # a part is parsed with as many blank lines in front
        if sum(line + end - start for start, end, line in parts) > limits.MAX_BYTES:
            message = f"{name}: its parts, each with the lines before it, have more than"
            _fail(f"gflow-opt: {message} {limits.MAX_BYTES:,} characters")
            return False
        runs = [self._run_part(text[start:end], name, line) for start, end, line in parts]
        return all(runs)

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
        """The text to print. Returns None and adds diagnostics if something failed."""
        options = self.options
        start = time.perf_counter()
        implicit = not options.no_implicit_module
        root = parse(text, name, self.context, diagnostics, implicit)
        if root is not None:
            root = import_op(options.import_form, options.import_shapes, root, diagnostics)
        self.seconds["parse"] = self.seconds.get("parse", 0.0) + time.perf_counter() - start
        if root is None:
            return None
        try:
            self.results.before(root)
            self.pipeline.run(
                root,
                verify_each=options.verify_each,
                timing=self.seconds,
                instrument=instrument(options),
                diagnostics=diagnostics,
                reproducer=self.reproducer,
            )
        except PipelineError:
            return None
        except (ReproducerError, ResultsError) as error:
            diagnostics.append(Diagnostic("error", str(error), where="gflow-opt"))
            return None
        start = time.perf_counter()
        try:
            output = self.results.after(root, self.seconds, diagnostics)
        except ResultsError as error:
            diagnostics.append(Diagnostic("error", str(error), where="gflow-opt"))
            return None
        if output is None and options.emit == "mlir":
            output = module_text(root, options)
        phase = "print" if options.emit == "mlir" else f"emit {options.emit}"
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start
        return output


if __name__ == "__main__":
    sys.exit(main())
