# ruff: noqa: E501 (tables)
"""Train every model of tests/zoo in a graph and eagerly, and write docs/model_coverage.md.

python scripts/zoo_report.py [--only TEXT] [--out FILE]
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from report_options import options_of  # noqa: E402
from zoo import GROUPS, Case  # noqa: E402
from zoo.harness import Verdict, check, ops  # noqa: E402
from zoo.huggingface import CASES as HUGGING_FACE  # noqa: E402

METHOD = """This page shows which models gflow runs, and whether they agree with eager. It is written by
`python scripts/zoo_report.py`. [Model families](model_families.md) shows architectures of other libraries.

**Method.** Every model of `tests/zoo` takes five training steps in a graph and eagerly, on the same inputs,
which differ in each step. The script compares outputs, parameters, buffers and optimizer state, and the outputs in
inference. Tolerances, relative to the largest element:

- float64: 1e-6.
- float32, compared with float64: 1e-4, or five times eager's own error.
- half precision: 2e-2.

**Unstable values.** Where a value exceeds its tolerance, eager runs four more times, with every parameter changed by one
unit in the last place (of the narrowest float type in the model). If eager's results then differ by a fifth of the
error or more, the value is called *unstable* and counts as agreeing. The figures are those of the graph compared with
the unchanged eager run.

**Columns.** *ops* is the number of ops of the traced training step before any pass. *through PyTorch* lists the calls
that become `gflow.aten`."""

NOT_TRACED = """\
## What a graph refuses

| program | reason |
|---|---|
| `torch.func` transforms (`vmap`, `grad`, `jvp`) in `build()` | tracing records below PyTorch's functional transforms; an error |
| gradients and updates from tensors whose shape depends on values (`nonzero`, boolean masks as an index, `unique`); `one_hot` without `num_classes` | shapes of a program do not depend on values, so only results do; the error names the line |
| `if`, `while`, `assert`, `.item()`, `float()` on tensors; `.numpy()`, `.tolist()` | tensors have no values during tracing; the error names the line |
| parameters or modules made in `build()`, `optimizer.step()` in `build()` | parameters belong to `__init__()`, and the graph calls the optimizer; the error says so |
| sparse tensors, `torch.Generator` arguments | only dense tensors, and the graph's own random seed, are supported |
| `torch.compile`d functions called in `build()` | call the function itself |
"""


@dataclass
class Row:
    """What became of one model."""

    case: Case
    ops: int = 0
    aten: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    unstable: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)


def measure(case: Case) -> Row:
    """All dtypes, training and inference."""
    row = Row(case)
    for dtype in case.dtypes:
        for train in (True, False) if case.infer else (True,):
            what = f"{str(dtype).removeprefix('torch.')} {'training' if train else 'inference'}"
            try:
                verdict, graph = check(case, dtype, train)
            except Exception as error:
                verdict = Verdict(f"{type(error).__name__}: {str(error).splitlines()[0]}")
            else:
                if train and dtype == case.dtypes[0]:
                    kinds, row.aten = ops(graph)
                    row.ops = kinds.total()
            row.runs.append(what)
            if verdict.wrong:
                row.problems.append(f"{what}: {verdict.wrong}")
            if verdict.unstable:
                row.unstable.append(f"{what}: {verdict.unstable}")
    return row


def text(groups: dict[str, list[Row]], seconds: float) -> str:
    """The document."""
    rows = [r for found in groups.values() for r in found]
    good = sum(not r.problems for r in rows)
    runs = sum(len(r.runs) for r in rows)
    free = sum(not r.aten for r in rows)
    out = [
        "# Models: coverage and agreement with eager",
        "",
        METHOD,
        "",
        f"**{good} of {len(rows)} models agree in all their runs ({runs} runs, {seconds:.0f} s); "
        f"{free} need no `gflow.aten`.**",
    ]
    for name, found in groups.items():
        out += [
            "",
            f"## {name}",
            "",
            "| model | ops | through PyTorch | agrees |",
            "|---|---|---|---|",
        ]
        for row in found:
            aten = ", ".join(f"{k} ×{n}" if n > 1 else k for k, n in sorted(row.aten.items()))
            notes = row.problems or ["yes"]
            notes = [*notes, *(f"unstable: {u}" for u in row.unstable)]
            cell = "<br>".join(n.replace("|", "\\|").replace(str(ROOT), ".") for n in notes)
            out.append(f"| {row.case.name} | {row.ops or ''} | {aten} | {cell} |")
    total: Counter[str] = Counter()
    for row in rows:
        total.update(dict.fromkeys(row.aten, 1))
    out += ["", "## Calls that run through PyTorch", "", "| overload | models |", "|---|---|"]
    out += [f"| {name} | {n} |" for name, n in total.most_common()]
    return "\n".join([*out, "", NOT_TRACED])


def main() -> int:
    options = options_of(__doc__, ROOT / "docs" / "model_coverage.md")
    groups = dict(GROUPS)
    if importlib.util.find_spec("transformers"):
        groups["transformers library"] = HUGGING_FACE
    start, found = time.perf_counter(), {}
    for name, cases in groups.items():
        chosen = [c for c in cases if options.only in c.name]
        if not chosen:
            continue
        found[name] = []
        for case in chosen:
            row = measure(case)
            found[name].append(row)
            said = [*row.problems, *(f"unstable: {u}" for u in row.unstable)]
            print(f"{case.name}: {'; '.join(said) or 'agrees'}", flush=True)
    options.out.write_text(text(found, time.perf_counter() - start))
    return int(any(r.problems for rows in found.values() for r in rows))


if __name__ == "__main__":
    sys.exit(main())
