"""`gflow-reduce`: shrinks a module that fails, as long as it still fails.

    gflow-reduce model.mlir --pipeline-for=cpu -o small.mlir
    gflow-reduce model.mlir --pass-pipeline='builtin.module(func.func(gflow-fuse))'
    gflow-reduce model.mlir --test=./is-interesting.sh

With a pipeline, a module is interesting if the pipeline fails on it in the same way as on the input: the same message
except for numbers and types, the same crash, or a time-out. With `--test`, it is interesting if the command, with the
file's name as its last argument, exits with status 1 (as for `mlir-reduce`). A reproducer contains its own pipeline:
`gflow-reduce --run-reproducer crash.mlir`.

The same input gives the same result, unless the time limit ends the search.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir

from ..driver.inputs import InputError, check_writable, parse, read_file
from ..driver.pass_manager import Pipeline, PipelineError
from ..driver.pipeline_text import PipelineSyntaxError
from ..driver.pipelines import pipeline_for
from ..driver.reproducer import ReproducerError
from ..driver.reproducer import read as read_reproducer
from ..driver.stack import with_room
from ..ir.diagnostics import Diagnostic, collect
from .shrink import REDUCTIONS, Reduction, smaller_sizes

#: whether a module's text is interesting
Interesting = Callable[[str], bool]


@dataclass
class Search:
    """A reduction in progress. text: the smallest interesting module so far."""

    text: str
    interesting: Interesting
    end: float
    tried: int = 0
    seen: set[int] = field(default_factory=set)

    def offer(self, text: str | None) -> bool:
        """Try a candidate and keep it if it is interesting."""
        if text is None or text == self.text or hash(text) in self.seen or self.over:
            return False
        self.seen.add(hash(text))
        self.tried += 1
        if not self.interesting(text):
            return False
        self.text = text
        return True

    @property
    def over(self) -> bool:
        """Whether the time limit has passed."""
        return time.monotonic() > self.end


def reduce_text(text: str, interesting: Interesting, seconds: float = 300.0) -> Search:
    """Shrink a module's text until no reduction helps or `seconds` have passed. `text` itself must be interesting."""
    search = Search(text, interesting, time.monotonic() + seconds)
    if _parsed(text) is None:
        _reduce_lines(search)
        return search
    search.offer(_printed(search.text))
    before = None
    while before != search.text and not search.over:
        before = search.text
        for reduction in REDUCTIONS:
            _reduce_parts(search, reduction)
        for candidate in smaller_sizes(search.text):
            if search.offer(candidate):
                break
    return search


def _reduce_parts(search: Search, reduction: Reduction) -> None:
    """Remove parts: half of them at a time first, then ever fewer (delta debugging)."""
    count = _count(search.text, reduction)
    chunk = count
    while chunk >= 1 and not search.over:
        at = 0
        while at < count and not search.over:
            numbers = range(at, min(at + chunk, count))
            if search.offer(_without(search.text, reduction, numbers)):
                before, count = count, _count(search.text, reduction)
                if (
                    count >= before
                ):  # the parts are others now, as when a value takes the place of one
                    at += chunk
            else:
                at += chunk
        chunk //= 2


def _reduce_lines(search: Search) -> None:
    """The same for text that is not valid IR: remove lines."""
    chunk = max(len(search.text.split("\n")) // 2, 1)
    while chunk >= 1 and not search.over:
        at = 0
        while at < len(search.text.split("\n")) and not search.over:
            lines = search.text.split("\n")
            if not search.offer("\n".join(lines[:at] + lines[at + chunk :])):
                at += chunk
        chunk //= 2


# -- modules


@cache
def _context() -> ir.Context:
    """The context of the process. Creating one takes longer than reducing a small module."""
    context = make_context()
    context.enable_multithreading(False)
    context.allow_unregistered_dialects = True
    return context


def _parsed(text: str) -> ir.Operation | None:
    root = parse(text, "-", _context(), [])
    return root if root is not None and root.name == "builtin.module" else None


def _printed(text: str) -> str | None:
    """The module without locations."""
    module = _parsed(text)
    return None if module is None else str(module) + "\n"


def _count(text: str, reduction: Reduction) -> int:
    module = _parsed(text)
    if module is None:
        return 0
    with module.context, ir.Location.unknown():
        return reduction.count(module)


def _without(text: str, reduction: Reduction, numbers: range) -> str | None:
    """The module without some parts; None if they cannot be removed or the result is not valid."""
    module = _parsed(text)
    if module is None:
        return None
    located = "loc(" in text
    try:
        with module.context, ir.Location.unknown(), collect(module.context):
            reduction.apply(module, list(numbers))
            if not module.verify():
                return None
            return module.get_asm(enable_debug_info=located) + "\n"
    except (ir.MLIRError, ValueError, IndexError, KeyError, RuntimeError):
        # what is left may lack anything that a reduction, a verifier or the bindings look at; another is tried then
        return None


# -- what is interesting


def outcome_of(text: str, pipeline: str, seconds: float) -> str:
    """The outcome of a pipeline on a module, in a separate process: "" if it succeeds, else a description of the
    failure.

    Messages are kept without numbers, names of values and types, so they do not change while the module shrinks.
    """
    _context()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            faulthandler.disable()
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)
            os.write(writer, _run(text, pipeline).encode()[:60000])
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    end = time.monotonic() + seconds
    told = b""
    with os.fdopen(reader, "rb", buffering=0) as stream:
        while True:
            ready, _, _ = select.select([stream], [], [], max(end - time.monotonic(), 0))
            if not ready:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "time-out"
            part = stream.read(65536)
            if not part:
                break
            told += part
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"crash: {signal.Signals(os.WTERMSIG(status)).name}"
    return told.decode()


def _run(text: str, pipeline: str) -> str:
    context = _context()  # this process's own copy
    context.allow_unregistered_dialects = False
    diagnostics: list[Diagnostic] = []
    root = parse(text, "-", context, diagnostics)
    if root is None:
        return "invalid input: " + _told(diagnostics)
    try:
        with context:
            parsed = Pipeline(pipeline)
        parsed.run(root, verify_each=True, diagnostics=diagnostics)
    except PipelineError as error:
        return f"pass {error.pass_name}: {_told(diagnostics)}"
    return ""


def _told(diagnostics: list[Diagnostic]) -> str:
    errors = [d.message for d in diagnostics if d.severity == "error"]
    text = errors[0] if errors else ""
    text = re.sub(r"(tensor|memref|vector|array)<[^>]*>", r"\1", text)
    return re.sub(r"-?\d+|%\w+|\[[^\]]*\]|'@?[\w.]*'", "…", text)


def pipeline_test(pipeline: str, wanted: str, seconds: float) -> Interesting:
    """A test: the pipeline has the outcome `wanted`."""
    return lambda text: outcome_of(text, pipeline, seconds) == wanted


def command_test(command: list[str], seconds: float) -> Interesting:
    """A test: the command exits with status 1 on a file with the text."""

    def interesting(text: str) -> bool:
        with tempfile.NamedTemporaryFile("w", suffix=".mlir", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            try:
                done = subprocess.run(
                    [*command, file.name],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=False,
                    timeout=seconds,
                )
            except subprocess.TimeoutExpired:
                return False
        return done.returncode == 1

    return interesting


# -- the command line


def main(argv: list[str] | None = None) -> int:
    """Run `gflow-reduce`. Returns its exit status: 0 if the module was reduced."""
    given = sys.argv[1:] if argv is None else argv
    return with_room(lambda: _main(given), "gflow-reduce")


def _main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="gflow-reduce",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("input", nargs="?", default="-", help="a file, or - for stdin")
    parser.add_argument("-o", dest="output", default="-", help="where to write; - is stdout")
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--test", help="a command that exits with status 1 on what is interesting")
    ways.add_argument("--pass-pipeline", help="passes that fail")
    ways.add_argument("--pipeline-for", help="a target's passes (cpu, cuda:90)")
    ways.add_argument(
        "--run-reproducer", action="store_true", help="the pipeline in a reproducer's file"
    )
    parser.add_argument("--test-arg", action="append", default=[], help="an argument for the test")
    parser.add_argument("--seconds", type=float, default=300.0, help="time for all (300)")
    parser.add_argument("--test-seconds", type=float, default=30.0, help="time for a test (30)")
    options = parser.parse_args(argv)
    try:
        check_writable(options.output)
        text = read_file(options.input)
        interesting = _interesting(options, text)
    except (InputError, ReproducerError, PipelineSyntaxError) as error:
        print(f"gflow-reduce: {error}", file=sys.stderr)
        return 1
    if interesting is None or not interesting(text):
        print(f"gflow-reduce: the input is not interesting: {_why(options)}", file=sys.stderr)
        return 1
    search = reduce_text(text, interesting, options.seconds)
    lines = [len(t.strip().split("\n")) for t in (text, search.text)]
    over = ", stopped by the time limit" if search.over else ""
    print(
        f"gflow-reduce: {lines[0]} lines to {lines[1]} in {search.tried} tests{over}",
        file=sys.stderr,
    )
    if options.output == "-":
        sys.stdout.write(search.text)
    else:
        Path(options.output).write_text(search.text, encoding="utf-8")
    return 0


def _interesting(options: argparse.Namespace, text: str) -> Interesting | None:
    """The test that the options ask for; None if the pipeline succeeds on the input."""
    if options.test:
        return command_test([*shlex.split(options.test), *options.test_arg], options.test_seconds)
    pipeline = options.pass_pipeline
    if options.pipeline_for:
        try:
            pipeline = pipeline_for(options.pipeline_for)
        except ValueError as error:
            raise InputError(str(error)) from None
    elif options.run_reproducer:
        pipeline = read_reproducer(text).pipeline
    Pipeline(pipeline)
    wanted = outcome_of(text, pipeline, options.test_seconds)
    if not wanted:
        return None
    print(f"gflow-reduce: looking for: {wanted}", file=sys.stderr)
    return pipeline_test(pipeline, wanted, options.test_seconds)


def _why(options: argparse.Namespace) -> str:
    if options.test:
        return "the test does not exit with status 1 on it"
    return "the pipeline goes well on it"


if __name__ == "__main__":
    sys.exit(main())
