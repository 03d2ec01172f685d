"""Observers of a build: the record of module calls, debug output, the progress bar."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gflow.report.debug import DebugPrinter
from gflow.report.printing import CallRecorder, Calls
from gflow.report.progress import progress
from gflow.tracing.context.debug_settings import DebugSettings
from gflow.tracing.context.watch import Watcher, Watchers, is_watched, watched_by
from gflow.tracing.program.module_config import debug_of
from gflow.tracing.program.modules import ModuleTable

#: traces replace contents of modules, so only one graph is built at a time in all threads
one_at_a_time = threading.RLock()


def is_building() -> bool:
    """Whether this is called by the `build()` of a graph that is being built."""
    return is_watched()


@contextmanager
def building(
    name: str,
    kind: str,
    settings: DebugSettings | None,
    table: ModuleTable,
    frames: Watcher | None = None,
) -> Iterator[Calls]:
    """Observe a build within. Yields the data of the listing, which is complete at the end. frames: another
    observer."""
    recorder = CallRecorder()
    if settings is not None and settings.listed_stack:
        recorder = CallRecorder(settings.max_py_stack_depth, settings.only_user_py_stack)
    watchers: list[Watcher] = [recorder] if frames is None else [recorder, frames]
    own = {table.names[id(m)]: found[0] for m in table.modules if (found := debug_of(m))}
    printer = bar = None
    if settings is not None or any(own.values()):
        printer = DebugPrinter(name, kind, settings, own)
        watchers.append(printer)
    elif (bar := progress(name)) is not None:
        watchers.append(bar)
    watcher = Watchers(watchers)
    try:
        with watched_by(watcher):
            watcher.phase("trace")
            yield recorder.calls
        if printer is not None:
            printer.done()
    except BaseException:
        if printer is not None:
            printer.failed()
        raise
    finally:
        if bar is not None:
            bar.close()
