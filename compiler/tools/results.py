"""Outputs of gflow-opt besides IR: other forms of the program, reports, drawings."""

from __future__ import annotations

import sys
from pathlib import Path

from gflow.dialects.mlir import ir

from ..driver.internal import blamed, debugging, internal_error
from ..ir.diagnostics import Diagnostic, at_operation
from ..ir.errors import CompileError, PassError
from .args import Options


class ResultsError(ValueError):
    """A requested output cannot be produced; the message is for the user."""


class Results:
    """The outputs that the options ask for, besides running passes and printing IR."""

    def __init__(self, options: Options) -> None:
        """
        Raises:
            ResultsError: an unknown form, device or kind of file.
        """
        self.options = options
        if options.emit != "mlir":
            # start-up of gflow-opt: what is printed loads what it needs
            from .emit import EmitError, check_form

            try:
                check_form(options.emit)
            except EmitError as error:
                raise ResultsError(str(error)) from None
        if options.gflow_report is not None:
            # start-up of gflow-opt: what is printed loads what it needs
            from ..reports.costs import device_named

            try:
                device_named(options.gflow_report)
            except ValueError as error:
                raise ResultsError(str(error)) from None
        for file, endings in (
            (options.view_memory, (".html",)),
            (options.view_graph, (".html", ".svg")),
            (options.view_timeline, (".html",)),
        ):
            if file is not None and not file.endswith(endings):
                raise ResultsError(f"'{file}' must end in {' or '.join(endings)}")

    def before(self, root: ir.Operation) -> None:
        """Measure the module before the passes, if a report is requested.

        Raises:
            ResultsError: its costs cannot be counted.
        """
        if self.options.gflow_report is not None:
            # start-up of gflow-opt: what is printed loads what it needs
            from ..reports.costs import measure

            try:
                self._measured = self._guarded(root, lambda: measure(root, self._device()))
            except CompileError as error:
                raise ResultsError(str(error)) from None

    def after(
        self, root: ir.Operation, seconds: dict[str, float], diagnostics: list[Diagnostic]
    ) -> str | None:
        """Write reports and drawings of the module after the passes. Returns its text in the requested form.

        Raises:
            ResultsError: the module has no such form.
        """
        try:
            return self._guarded(root, lambda: self._after(root, seconds))
        except CompileError as error:
            op = error.op.operation if isinstance(error, PassError) and error.op else None
            diagnostics.append(at_operation(op or blamed(error, root), "error", str(error)))
            return None

    def _device(self) -> str:
        assert self.options.gflow_report is not None
        return self.options.gflow_report

    def _guarded(self, root, work):  # type: ignore[no-untyped-def]
        """Run `work`. An unexpected exception becomes a `ResultsError` that reports an internal error.

        Raises:
            ResultsError, CompileError: what `work` raises.
        """
        try:
            with root.context:
                return work()
        except (ResultsError, CompileError):
            raise
        except Exception as error:
            if debugging():
                raise
            found = internal_error(error, "gflow-opt", root)
            raise ResultsError(f"{found.message}\n{found.notes[0].message}") from None

    def _after(self, root: ir.Operation, seconds: dict[str, float]) -> str | None:
        options = self.options
        if options.gflow_report is not None:
            # start-up of gflow-opt: what is printed loads what it needs
            from ..reports.costs import report

            print(report(self._measured, root, self._device()), file=sys.stderr)
        if options.view_memory or options.view_graph or options.view_timeline:
            self._draw(root)
        if options.emit == "mlir":
            return None
        # start-up of gflow-opt: what is printed loads what it needs
        from .emit import EmitError, EmitOptions, emit

        try:
            chosen = EmitOptions(options.target, seconds, options.network, options.mesh)
            return emit(options.emit, root, chosen)
        except EmitError as error:
            raise ResultsError(str(error)) from None

    def _draw(self, root: ir.Operation) -> None:
        # start-up of gflow-opt: what is printed loads what it needs
        from ..memory.planned import NotPlanned, read_plan
        from ..reports.visual.graph import graph_page
        from ..reports.visual.memory import memory_page
        from ..reports.visual.picture import graph_picture
        from ..reports.visual.timeline import timeline_page
        from .emit import EmitError, EmitOptions, functions, simulated

        try:
            function = functions(root)[0]
            if self.options.view_memory:
                _write(self.options.view_memory, memory_page(read_plan(function)))
            if self.options.view_timeline:
                step = simulated(
                    function,
                    EmitOptions(
                        self.options.target,
                        network=self.options.network,
                        mesh=self.options.mesh,
                    ),
                )
                _write(self.options.view_timeline, timeline_page(step.name, step.line))
        except (EmitError, NotPlanned) as error:
            raise ResultsError(str(error)) from None
        name = self.options.view_graph
        if name:
            _write(name, (graph_page if name.endswith(".html") else graph_picture)(function))


def _write(name: str, text: str) -> None:
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResultsError(f"cannot write '{name}': {error.strerror}") from None
