"""A progress bar on the terminal while a graph is built, once that takes more than a second.

Nothing is written where standard error is no terminal, nor with `GFLOW_PROGRESS=0`.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from gflow.tracing.context.watch import Watcher

#: builds that are done sooner show nothing
_PATIENCE = 1.0
#: share of the bar that is full when a phase begins
_BEGINS = {
    "trace": 0.0, "first step": 0.2, "lower": 0.25, "passes": 0.3, "codegen": 0.6, "JIT": 0.65,
}  # fmt: skip
#: passes that a pipeline has, about
_PASSES = 16


def progress_wanted() -> bool:
    """Whether someone looks on."""
    off = os.environ.get("GFLOW_PROGRESS", "1").lower() in ("0", "off", "false", "no")
    try:
        return not off and sys.stderr.isatty()
    except (AttributeError, ValueError):  # no standard error, or a closed one
        return False


class ProgressBar(Watcher):
    """Draws how far the build of a graph has come. A timer's thread draws, so that a long phase is
    seen to go on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._bar: Any = None
        self._done, self._text, self._passes = 0.0, "", 0
        self._timer = threading.Timer(_PATIENCE, self._show)
        self._timer.daemon = True
        self._timer.start()

    def phase(self, name: str, detail: str = "") -> None:
        """The bar moves."""
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
        """The build is over: the line goes."""
        self._timer.cancel()
        with self._lock:
            bar, self._bar, self.name = self._bar, None, ""
        if bar is not None:
            bar.stop()

    def _show(self) -> None:
        # start-up: loaded where a bar is shown
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        bar = Progress(
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


def _share(detail: str) -> float:
    """How far "3/20 name" is."""
    done, _, rest = detail.partition("/")
    total = rest.partition(" ")[0]
    return int(done) / int(total) if done.isdigit() and total.isdigit() and int(total) else 0.0
