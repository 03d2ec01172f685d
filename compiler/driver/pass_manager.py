"""Runs textual pass pipelines that mix upstream passes and ours.

Passes of ours are found in the folders of `compiler/passes/`; each works on one `func.func`. Every other name in
a pipeline goes to the bindings as it stands. Passes run one after the other, so that verification,
timing and instrumentation are the same for both kinds; an upstream pass costs about 0.1 ms of
set-up each.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from gflow.dialects.distribution import mesh
from gflow.dialects.extents import size_of_program
from gflow.dialects.mlir import PassManager, func, ir
from gflow.dialects.opdef import VerifyError

from .. import passes as passes_package
from ..ir.diagnostics import Diagnostic, at_operation, collect
from ..ir.dynamic_sizes import symbol_of
from ..ir.errors import CompileError, PassError
from ..memory.analyses import analyses_kept, forget
from ..passes.base import Pass
from .internal import blamed, debugging, internal_error
from .pipeline_text import PassItem, PipelineSyntaxError, nearest, parse_options, parse_pipeline
from .reproducer import Writer
from .upstream_passes import UPSTREAM_PASSES

#: Called as `instrument("before" | "after" | "failed", pass name, operation)`.
Instrument = Callable[[str, str, ir.Operation], None]


#: used in place of a pass's name in errors after all passes
CODE_GENERATION = "code generation"


class PipelineError(CompileError):
    """A pipeline failed. The error has the pass, the diagnostics, and the reproducer if one was asked for."""

    def __init__(self, pass_name: str, diagnostics: list[Diagnostic]) -> None:
        self.pass_name = pass_name
        self.diagnostics = diagnostics
        self.reproducer: Path | None = None
        super().__init__()

    def __str__(self) -> str:
        if not self.pass_name:
            head = "the IR is not valid"
        elif self.pass_name == CODE_GENERATION:
            head = f"{CODE_GENERATION} failed"
        else:
            head = f"pass '{self.pass_name}' failed"
        return "\n".join([head, *map(str, self.diagnostics)])


class _Passes(Mapping[str, Pass]):
    """The passes of `compiler/passes/` by name. A pass's file is imported when the pass is asked for: `gflow-fuse` is
    in `fuse.py`; only for a name that no file has, or to list them, all files are."""

    def __init__(self) -> None:
        found = pkgutil.walk_packages(passes_package.__path__, f"{passes_package.__name__}.")
        self._modules = [info.name for info in found]
        self._by_file = {name.rpartition(".")[2]: name for name in self._modules}

    def __getitem__(self, name: str) -> Pass:
        if not name.startswith("gflow-"):
            raise KeyError(name)
        module = self._by_file.get(name.removeprefix("gflow-").replace("-", "_"))
        declared = None if module is None else _pass_of(module)
        if declared is not None and declared.name == name:
            return declared
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _all(self) -> dict[str, Pass]:
        declared = [found for name in self._modules if (found := _pass_of(name)) is not None]
        return {found.name: found for found in sorted(declared, key=lambda p: p.name)}


def _pass_of(module: str) -> Pass | None:
    """The pass that a module defines."""
    declared = getattr(importlib.import_module(module), "PASS", None)
    return declared if isinstance(declared, Pass) else None


@cache
def our_passes() -> Mapping[str, Pass]:
    """All passes of `compiler/passes/`, by name."""
    return _Passes()


def pass_names() -> list[str]:
    """Names of all passes known here: ours, then the upstream ones."""
    return [*our_passes(), *UPSTREAM_PASSES]


def is_pass(name: str) -> bool:
    """Whether `name` is a pass, ours or any that the bindings carry."""
    if name in our_passes() or name in UPSTREAM_PASSES:
        return True
    with ir.Context(load_on_create_dialects=()):
        try:
            PassManager.parse(f"any({name})")
        except ValueError:
            return False
    return True


class Step:
    """One pass of a pipeline, ready to run on any module."""

    def __init__(self, anchors: tuple[str, ...], item: PassItem, text: str) -> None:
        self.anchors = anchors
        self.item = item
        self.name = item.name
        self.ours = our_passes().get(item.name)
        self.options: Any = None
        self.upstream = ""
        try:
            if self.ours is not None:
                self.options = parse_options(self.name, self.ours.options, item.options)
            else:
                self.upstream = self.text()
                self._parse_upstream()
        except PipelineSyntaxError as error:
            raise PipelineSyntaxError(error.message, text, item.position) from None

    def _parse_upstream(self) -> PassManager:
        try:
            return PassManager.parse(self.upstream)
        except ValueError as error:
            message = str(error)
        if "does not refer to a registered pass" in message:
            hint = nearest(self.name, pass_names())
            raise PipelineSyntaxError(
                f"'{self.name}' does not refer to a registered pass or pass pipeline{hint}"
            )
        lines = [s for s in message.splitlines() if s and "to inner pipeline" not in s]
        reason = lines[0].removeprefix("<Pass-Options-Parser>: ") if lines else message
        raise PipelineSyntaxError(f"pass '{self.name}': {reason}")

    def text(self) -> str:
        """A pipeline of this pass alone."""
        return "(".join([*self.anchors, str(self.item)]) + ")" * len(self.anchors)

    def run(self, root: ir.Operation) -> bool:
        """Run the pass on the ops at its anchors in `root`; returns whether analyses of `root` remain valid.

        Raises:
            PassError: the pass is for another kind of op, or has failed.
        """
        if self.anchors[0] not in ("any", root.name):
            message = f"can't run '{self.anchors[0]}' pass manager on '{root.name}' op"
            raise PassError(message, root)
        if self.ours is None:
            manager = self._parse_upstream()
            manager.enable_verifier(False)
            manager.run(root)
            return False
        kept = True
        for target in _functions(root, self.anchors):
            try:
                kept = self.ours.run(target, self.options) is not None and kept
            except PassError as error:
                error.op = error.op or target
                raise
            except VerifyError as error:
                message = f"pass '{self.name}' built an op that is not valid: {error}"
                raise PassError(message, target) from error
        return kept


def _functions(root: ir.Operation, anchors: tuple[str, ...]) -> Iterator[func.FuncOp]:
    """The functions with a body that a pass at `anchors` works on.

    At an anchor that is not `func.func` itself, these are the functions directly inside it.
    """
    level = [root]
    for anchor in anchors[1:]:
        level = [op for outer in level for op in _children(outer) if anchor in ("any", op.name)]
    for op in level:
        inside = [op] if op.name == "func.func" else _children(op)
        for candidate in inside:
            view = candidate.opview
            if isinstance(view, func.FuncOp) and len(candidate.regions[0].blocks) > 0:
                yield view


def _children(op: ir.Operation) -> list[ir.Operation]:
    return [
        inner.operation for region in op.regions for block in region for inner in block.operations
    ]


class Pipeline:
    """A parsed pipeline. Parse once, run on many modules of the same context or another."""

    def __init__(self, text: str) -> None:
        """
        Raises:
            PipelineSyntaxError: malformed text, an unknown pass or option.
        """
        self.tree = parse_pipeline(text)
        with nullcontext() if ir.Context.current else ir.Context(load_on_create_dialects=()):
            self.steps = [Step(anchors, item, text) for anchors, item in self.tree.passes()]

    def __str__(self) -> str:
        return str(self.tree)

    def run(
        self,
        module: ir.Module | ir.Operation,
        *,
        verify: bool = True,
        verify_each: bool = False,
        verify_last: bool = True,
        timing: dict[str, float] | None = None,
        instrument: Instrument | None = None,
        diagnostics: list[Diagnostic] | None = None,
        reproducer: Writer | None = None,
    ) -> None:
        """Run every pass; the module is verified before the first and after the last.

        verify_each: verify after every pass, so that the pass at fault is named.
        verify_last: verify after the last pass; otherwise the caller does.
        timing: seconds are added under each pass's name, and under "verify".
        diagnostics: all diagnostics are added here, warnings and remarks included.
        reproducer: keeps what a failing pass fails on.

        Raises:
            PipelineError: a pass failed, or left (or got) IR that is not valid.
        """
        root = module.operation
        seconds: dict[str, float] = {} if timing is None else timing
        context = root.context
        with (
            context,
            size_of_program(symbol_of(root)),
            collect(context, diagnostics) as found,
            analyses_kept(),
        ):
            if verify:
                _verify(root, "", found, seconds)
            for i, step in enumerate(self.steps):
                if instrument is not None:
                    instrument("before", step.name, root)
                if reproducer is not None:
                    reproducer.before(root, step.text(), verify_each)
                try:
                    _run_step(step, root, found, seconds)
                    if verify_each or (verify and verify_last and i + 1 == len(self.steps)):
                        _verify(root, step.name, found, seconds)
                except PipelineError as error:
                    if instrument is not None:
                        instrument("failed", step.name, root)
                    if reproducer is not None:
                        error.reproducer = reproducer.path
                        found.append(kept(reproducer.path))
                    raise
                if reproducer is not None:
                    reproducer.succeeded()
                if instrument is not None:
                    instrument("after", step.name, root)


def _run_step(
    step: Step, root: ir.Operation, diagnostics: list[Diagnostic], seconds: dict[str, float]
) -> None:
    start = time.perf_counter()
    kept = False
    try:
        with ir.Location.unknown():
            kept = step.run(root)
    except PassError as error:
        op = error.op.operation if error.op is not None else root
        diagnostics.append(at_operation(op, "error", str(error)))
        raise PipelineError(step.name, diagnostics) from error
    except CompileError as error:
        diagnostics.append(at_operation(blamed(error, root), "error", str(error)))
        raise PipelineError(step.name, diagnostics) from error
    except ir.MLIRError as error:
        if not any(d.severity == "error" for d in diagnostics):
            message = f"pass '{step.name}' failed without saying why"
            diagnostics.append(at_operation(root, "error", message))
        raise PipelineError(step.name, diagnostics) from error
    except Exception as error:
        if debugging():
            raise
        diagnostics.append(internal_error(error, f"pass '{step.name}'", root))
        raise PipelineError(step.name, diagnostics) from None
    finally:
        if not kept:
            forget()
        elapsed = time.perf_counter() - start
        seconds[step.name] = seconds.get(step.name, 0.0) + elapsed


def kept(path: Path) -> Diagnostic:
    """The note with the path of a reproducer."""
    message = f"reproducer: {path} (run gflow-opt --run-reproducer {path})"
    return Diagnostic("note", message)


def _verify(
    root: ir.Operation, name: str, diagnostics: list[Diagnostic], seconds: dict[str, float]
) -> None:
    start = time.perf_counter()
    try:
        valid = root.verify()
    except ir.MLIRError:
        valid = False
    seconds["verify"] = seconds.get("verify", 0.0) + time.perf_counter() - start
    if valid:
        wrong = [at_operation(op, "error", message) for message, op in mesh.problems(root)]
        diagnostics.extend(wrong)
        valid = not wrong
    if not valid:
        raise PipelineError(name, diagnostics)


def run_pipeline(
    module: ir.Module | ir.Operation,
    pipeline: str,
    *,
    verify: bool = True,
    verify_each: bool = False,
    verify_last: bool = True,
    timing: dict[str, float] | None = None,
    instrument: Instrument | None = None,
    reproducer: Writer | None = None,
) -> None:
    """Parse and run a textual pipeline on a module; see `Pipeline.run`.

    Raises:
        PipelineSyntaxError: the text is malformed or names an unknown pass or option.
        PipelineError: a pass failed, or the IR is not valid.
    """
    with module.operation.context:
        parsed = Pipeline(pipeline)
    parsed.run(
        module,
        verify=verify,
        verify_each=verify_each,
        verify_last=verify_last,
        timing=timing,
        instrument=instrument,
        reproducer=reproducer,
    )
