"""Every op of op_db through a graph, against eager; all samples: scripts/op_db_report.py."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from op_db_exceptions import EXPECTED_FAILURES, EXPECTED_GRADIENT_FAILURES
from op_db_harness import Outcome, all_ops, compiled, op_name, run_sample, samples

FORWARD_SAMPLES = 1
GRADIENT_SAMPLES = 1

_OPS = all_ops()
_counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)


def _supporting(dtype: torch.dtype, grad: bool = False) -> list[Any]:
    """Ops as parameters. Where an op has gradients, their test compares its results as well, so that without them is
    part of the sweep."""
    return [
        pytest.param(
            op,
            id=op_name(op),
            marks=[pytest.mark.sweep] if op.supports_autograd and not grad else [],
        )
        for op in _OPS
        if dtype in op.supported_dtypes("cpu") and (op.supports_autograd or not grad)
    ]


def _check(op: Any, dtype: torch.dtype, grad: bool, limit: int | None, known: set[str]) -> None:
    kind = f"{str(dtype).removeprefix('torch.')} {'gradient' if grad else 'forward'}"
    problems: list[Outcome] = []
    for sample in samples(op, dtype, grad, limit):
        outcome = run_sample(op, sample, grad, compiled)
        if outcome.status == "eager":
            continue
        _counts[kind]["samples"] += 1
        _counts[kind]["passed"] += outcome.status == "pass"
        if outcome.status != "pass":
            problems.append(outcome)
    _counts[kind]["ops"] += 1
    _counts[kind]["ops passed"] += not problems
    if problems and op_name(op) not in known:
        pytest.fail(f"{len(problems)} samples: {problems[0].status}: {problems[0].detail}")


@pytest.mark.parametrize("op", _supporting(torch.float32))
def test_forward(op: Any) -> None:
    _check(op, torch.float32, False, FORWARD_SAMPLES, set(EXPECTED_FAILURES))


@pytest.mark.parametrize("op", _supporting(torch.float32, grad=True))
def test_gradient(op: Any) -> None:
    known = {*EXPECTED_FAILURES, *EXPECTED_GRADIENT_FAILURES}
    _check(op, torch.float32, True, GRADIENT_SAMPLES, known)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_other_dtypes(dtype: torch.dtype) -> None:
    """At least nine in ten samples of each other element type."""
    for op in (p.values[0] for p in _supporting(dtype)):
        _check(op, dtype, False, 2, {op_name(op)})
    counts = _counts[f"{str(dtype).removeprefix('torch.')} forward"]
    assert counts["passed"] >= 0.9 * counts["samples"], dict(counts)


def test_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints what the tests above ran in this process."""
    with capsys.disabled():
        for kind, c in _counts.items():
            print(
                f"\nop_db {kind}: {c['ops passed']} of {c['ops']} ops, "
                f"{c['passed']} of {c['samples']} samples pass"
            )
    forward = _counts["float32 forward"]
    assert forward["passed"] >= 0.9 * forward["samples"]
