"""Run every sample of PyTorch's op_db through a graph and write docs/op_coverage.md.

python scripts/op_db_report.py [--limit N] [--engine interpreter|compiled|gpu] [--out FILE]

"gpu": kernels for a GPU, on Triton's interpreter; with GPU_MIRROR=1 in the environment on a GPU
(`tests/gpu_mirror.py`).
"""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from op_db_exceptions import EXPECTED_FAILURES, EXPECTED_GRADIENT_FAILURES  # noqa: E402
from op_db_harness import all_ops, compiled, interpret, on_gpu, op_name, run_sample, samples  # noqa: E402

ENGINES = {"interpreter": interpret, "compiled": compiled, "gpu": on_gpu}
#: gflow's errors
_REFUSALS = ("GraphError", "GraphInputError", "GraphTraceError", "LoweringError", "Unsupported")


@dataclass
class Tally:
    """Counts of one sweep."""

    title: str
    limit: int | None
    status: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: dict[str, list[str]] = field(default_factory=dict)
    passed_ops: int = 0
    ops: int = 0
    escaped_samples: int = 0
    escapes: collections.Counter[str] = field(default_factory=collections.Counter)
    lowering: float = 0.0
    seconds: float = 0.0

    @property
    def samples(self) -> int:
        return sum(n for s, n in self.status.items() if s != "eager")

    @property
    def refused(self) -> int:
        """Samples that an error of gflow's refuses, which names the op."""
        return sum(map(_is_refusal, itertools.chain(*self.failures.values())))

    @property
    def rate(self) -> float:
        return self.status["pass"] / max(self.samples, 1)


def _is_refusal(problem: str) -> bool:
    """Whether a problem of `sweep` is an error of gflow's, not a wrong result or another error."""
    status, kind, *_ = problem.split(": ")
    return status in ("trace", "lower") and kind in _REFUSALS


def sweep(
    title: str, dtype: torch.dtype, grad: bool, limit: int | None, run: Any, share: str = "0/1",
    progress: bool = False,
) -> Tally:  # fmt: skip
    """All samples of all ops in one element type. share: "2/16", every sixteenth op from the third on. progress: print
    what does not pass at once."""
    first, step = map(int, share.split("/"))
    tally = Tally(title, limit)
    start = time.perf_counter()
    for op in all_ops()[first::step]:
        if dtype not in op.supported_dtypes("cpu") or (grad and not op.supports_autograd):
            continue
        tried = 0
        problems: list[str] = []
        try:
            for sample in samples(op, dtype, grad, limit):
                outcome = run_sample(op, sample, grad, run)
                tally.status[outcome.status] += 1
                if outcome.status == "eager":
                    continue
                tried += 1
                tally.lowering += outcome.lowering_seconds
                tally.escaped_samples += bool(outcome.escaped)
                tally.escapes.update(set(outcome.escaped))
                if outcome.status != "pass":
                    problems.append(f"{outcome.status}: {outcome.detail}")
        except Exception as error:
            if not tried:
                continue  # op_db itself has no samples here
            problems.append(f"samples: {error}")
        if tried:
            tally.ops += 1
            tally.passed_ops += not problems
        if problems:
            tally.failures[op_name(op)] = problems
            if progress:
                print(title, op_name(op), problems, flush=True)
    tally.seconds = time.perf_counter() - start
    return tally


def report(tallies: list[Tally], engine: str) -> str:
    """The page."""
    lines = [
        "# Op coverage",
        "",
        "This page shows which ops of PyTorch gflow runs. It is written by `scripts/op_db_report.py`.",
        "",
        "**Method.** The inputs are PyTorch's own samples (`torch.testing._internal.common_methods_invocations.op_db`,",
        f"torch {torch.__version__}), of each op so many as the table says. Each sample is traced as a graph, lowered,",
        f"run ({engine}) and compared with eager; in half precision also with float64, from which a result may be at",
        "most twice as far as eager's.",
        "",
        "**Columns.** *samples with `gflow.aten`* counts the samples in which at least one op of the program runs",
        "through PyTorch; ops that run after it, since the shapes of their results depend on values, are not counted.",
        "The reasons of all failures are listed below the table.",
        "",
        "| sweep | samples an op | ops | ops that pass whole | samples | pass | rate "
        "| refused with the op's name | neither | samples with `gflow.aten` | lowering, ms a sample |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for t in tallies:
        neither = t.samples - t.status["pass"] - t.refused
        lowering = 1000 * t.lowering / max(t.samples, 1)
        lines.append(
            f"| {t.title} | {t.limit or 'all'} | {t.ops} | {t.passed_ops} | {t.samples} | {t.status['pass']} "
            f"| {t.rate:.1%} | {t.refused} | {neither} | {t.escaped_samples} | {lowering:.0f} |"
        )
    lines += ["", "## Failures", ""]
    for t in tallies:
        lines += [f"### {t.title}", "", "| op | samples | reason |", "|---|---|---|"]
        for name, problems in sorted(t.failures.items()):
            reasons = EXPECTED_GRADIENT_FAILURES | EXPECTED_FAILURES
            reason = reasons.get(name, "unexpected: " + _one_line(problems[0]))
            lines.append(f"| {name} | {len(problems)} | {reason} |")
        lines.append("")
    lines += ["## Calls that run through PyTorch", "", "| overload | samples |", "|---|---|"]
    escapes: collections.Counter[str] = sum((t.escapes for t in tallies), collections.Counter())
    lines += [f"| {name} | {n} |" for name, n in sorted(escapes.items())]
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    return text.replace("|", "/").replace(str(ROOT) + "/", "")[:160]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, help="at most so many samples of each op")
    parser.add_argument("--engine", choices=tuple(ENGINES), default="interpreter")
    parser.add_argument(
        "--share",
        default="0/1",
        help="a part of the ops: 2/16 is every sixteenth from the third on",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "op_coverage.md")
    parser.add_argument(
        "--sweep",
        action="append",
        help="only these, e.g. float32-forward, or float32-forward:3 for at most three samples of each op",
    )
    parser.add_argument("--progress", action="store_true", help="print what does not pass at once")
    options = parser.parse_args()
    if os.environ.get("GPU_MIRROR"):
        import gpu_mirror  # noqa: F401
    run = ENGINES[options.engine]
    plans = [
        ("float32-forward", torch.float32, False), ("float32-gradient", torch.float32, True),
        ("float64-forward", torch.float64, False), ("bfloat16-forward", torch.bfloat16, False),
        ("int64-forward", torch.int64, False), ("uint8-forward", torch.uint8, False),
        ("bool-forward", torch.bool, False), ("complex64-forward", torch.complex64, False),
    ]  # fmt: skip
    tallies = []
    chosen = dict(str(s).partition(":")[::2] for s in options.sweep or ())
    for title, dtype, grad in plans:
        if chosen and title not in chosen:
            continue
        limit = int(chosen.get(title) or options.limit or 0) or None
        tally = sweep(title, dtype, grad, limit, run, options.share, options.progress)
        print(
            f"{title}: {tally.passed_ops}/{tally.ops} ops, {tally.status['pass']}/{tally.samples} "
            f"samples ({tally.rate:.1%}), {tally.refused} refused, {tally.seconds:.0f} s",
            flush=True,
        )
        tallies.append(tally)
    options.out.write_text(report(tallies, options.engine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
