"""Ops of op_db that a graph does not run like eager, each with its reason. Data only."""

from __future__ import annotations

#: op → reason; its samples are not expected to pass.
EXPECTED_FAILURES: dict[str, str] = {}

#: Random or uninitialized results: shapes and dtypes are compared, values are not.
NO_VALUES: frozenset[str] = frozenset()

#: op → (rtol, atol), where the default is too strict.
TOLERANCE: dict[str, tuple[float, float]] = {}
