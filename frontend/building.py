"""Who watches a build: the record of module calls, debug output, the progress bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .blocks import debug_of
from .debug import DebugPrinter, DebugSettings
from .printing import CallRecorder, ModuleCall
from .progress import ProgressBar, progress_wanted
from .tracing.modules import ModuleTable
from .tracing.watch import Watcher, Watchers, watched_by


@contextmanager
def building(
    name: str, kind: str, settings: DebugSettings | None, table: ModuleTable
) -> Iterator[dict[str, ModuleCall]]:
    """Watch what is built inside; gives the calls of modules, which are all known at the end."""
    recorder = CallRecorder()
    watchers: list[Watcher] = [recorder]
    own = {table.names[id(m)]: found[0] for m in table.modules if (found := debug_of(m))}
    printer = bar = None
    if settings is not None or any(own.values()):
        printer = DebugPrinter(name, kind, settings, own)
        watchers.append(printer)
    elif progress_wanted():
        bar = ProgressBar(name)
        watchers.append(bar)
    watcher = Watchers(watchers)
    try:
        with watched_by(watcher):
            watcher.phase("trace")
            yield recorder.calls
        if printer is not None:
            printer.done()
    finally:
        if bar is not None:
            bar.close()
