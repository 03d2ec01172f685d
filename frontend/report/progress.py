"""Progress on standard error while a graph is built: a bar on a terminal if that takes more than a second; elsewhere
(notebooks, log files) plain lines, one every ten seconds. `GFLOW_PROGRESS=0` disables it."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from typing import Any

from gflow.dialects.program.environment import switch
from gflow.tracing.context.threads import BESIDE
from gflow.tracing.context.watch import Watcher

#: shorter builds show nothing
_PATIENCE = 1.0
#: seconds between two lines
_PATIENCE_OF_LINES = 10.0
#: the filled share of the bar at the beginning of a phase
_BEGINS = {
    "trace": 0.0, "first step": 0.2, "lower": 0.25, "passes": 0.3, "codegen": 0.6, "JIT": 0.65,
}  # fmt: skip
#: the approximate number of passes of a pipeline
_PASSES = 16


def progress(name: str) -> Progress | None:
    """The observer that shows the progress of a build; None if it is disabled."""
    if not switch("GFLOW_PROGRESS", True):
        return None
    try:
        return ProgressBar(name) if sys.stderr.isatty() else ProgressLines(name)
    except (AttributeError, ValueError):  # no standard error, or a closed one
        return None


class Progress(Watcher):
    """The progress of a build. A timer thread updates the display during long phases."""

    patience = _PATIENCE

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._done, self._text, self._passes = 0.0, "", 0
        self._start_timer(self.patience)

    def _start_timer(self, seconds: float) -> None:
        # an interrupted build may not come to `close`
        self._timer = threading.Timer(seconds, _show_of, [weakref.ref(self)])
        self._timer.name, self._timer.daemon = BESIDE, True
        self._timer.start()

    def phase(self, name: str, detail: str = "") -> None:
        """Record a new phase."""
        with self._lock:
            done = _BEGINS.get(name, self._done)
            if name == "passes":
                done += min(self._passes / _PASSES, 1.0) * (_BEGINS["codegen"] - done)
                self._passes += 1
            if name == "triton":
                done = _BEGINS["codegen"] + 0.35 * _share(detail)
            self._done = max(self._done, done)
            self._text = f"{name} {detail}".strip()
            self._update()

    def close(self) -> None:
        """End the display."""
        with self._lock:
            self.name = ""
            self._timer.cancel()

    def _show(self) -> None:
        raise NotImplementedError

    def _update(self) -> None:
        """Update the display at once, if it supports that."""


class ProgressLines(Progress):
    """A line every ten seconds."""

    patience = _PATIENCE_OF_LINES

    def __init__(self, name: str) -> None:
        self._began = time.monotonic()
        super().__init__(name)

    def _show(self) -> None:
        with self._lock:
            if not self.name:
                return
            seconds = time.monotonic() - self._began
            text = f"gflow: compiling {self.name}: {self._text}, {seconds:.0f} s, about {self._done:.0%}"
            self._start_timer(self.patience)
        with contextlib.suppress(
            AttributeError, ValueError, OSError
        ):  # standard error may be closed
            print(text, file=sys.stderr, flush=True)


class ProgressBar(Progress):
    """A bar on a terminal."""

    def __init__(self, name: str) -> None:
        self._bar: Any = None
        super().__init__(name)

    def close(self) -> None:
        """Remove the line."""
        super().close()
        with self._lock:
            bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def _show(self) -> None:
        # start-up: loaded where a bar is shown
        import rich.progress
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

        bar = rich.progress.Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[name]}"),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            TextColumn("{task.fields[phase]}"),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with self._lock:
            if not self.name:
                return
            bar.add_task("build", total=1.0, name=f"compiling {self.name}", phase="")
            self._bar = bar
            self._update()
            bar.start()

    def _update(self) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done, phase=self._text)


def _show_of(progress: weakref.ref[Progress]) -> None:
    """Update the display of a build that goes on."""
    if (found := progress()) is not None:
        found._show()


def _share(detail: str) -> float:
    """The share of "3/20 name" that is complete."""
    done, _, rest = detail.partition("/")
    total = rest.partition(" ")[0]
    return int(done) / int(total) if done.isdigit() and total.isdigit() and int(total) else 0.0
