"""A plugin of pytest, `-p tell_failures`: prints why a test failed at once, for runs that may be ended."""

from __future__ import annotations

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print the last lines of a failure."""
    if report.failed:
        lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")]
        print(f"\nFAILED {report.nodeid}: {' '.join(lines)[:1500]}", flush=True)
