# ruff: noqa: E501 (tables)
"""Run models of transformers, torchvision and timm through each engine, beside eager, and write docs/engine_models.md.

python scripts/engine_models_report.py [--only TEXT] [--out FILE]
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from report_options import options_of  # noqa: E402
from test_engine_models import MODELS, by_engine  # noqa: E402

from gflow.runtime.engines.packages import available, version  # noqa: E402

ENGINES = {"XLA": "xla_jit", "ONNX Runtime": "onnxruntime", "OpenVINO": "openvino"}
#: of the largest element
ALLOWED = 1e-4

METHOD = """# Models through engines

This page shows how far models of transformers, torchvision and timm through each [engine](engines.md) are from eager. It is
written by `python scripts/engine_models_report.py`.

The models are small and have random weights (`tests/test_engine_models.py`); they run a forward in evaluation mode, in
float32. A number is the largest difference to eager, relative to the largest element; up to {allowed:.0e} passes. In parentheses: ops
that stay with gflow, without those whose region would be too small to pay for a call, checks of values, and what only these
need. Libraries: {versions}.

**{passed} of {runs} runs pass.**

| model | {engines} |
|---|{rules}|"""


def cell(name: str, engine: str) -> tuple[str, bool]:
    """An entry of the table, and whether it passes."""
    error, report = by_engine(name, engine)
    kept = sum(
        s.times
        for s in report.stayed
        if s.op != "check" and "a check of values" not in s.why and "would save" not in s.why
    )
    passes = error < ALLOWED and bool(report.engines)
    return f"{error:.1e}" + f" ({kept})" * bool(kept) + " **fails**" * (not passes), passes


def main() -> int:
    options = options_of(__doc__, ROOT / "docs" / "engine_models.md")
    engines = {title: e for title, e in ENGINES.items() if available(e.removesuffix("_jit"))}
    lines, passed = [], []
    for name in MODELS:
        if options.only not in name:
            continue
        cells = [cell(name, engine) for engine in engines.values()]
        passed += [passes for _, passes in cells]
        lines.append(f"| {name} | {' | '.join(text for text, _ in cells)} |")
        print(lines[-1], flush=True)
    if not passed:
        sys.exit(f"no engine is installed, or no model's name contains {options.only!r}")
    libraries = ("torch", "transformers", "torchvision", "timm")
    versions = [f"{library} {metadata.version(library)}" for library in libraries]
    versions += [f"{title} {version(e.removesuffix('_jit'))}" for title, e in engines.items()]
    head = METHOD.format(
        allowed=ALLOWED, versions=", ".join(versions), passed=sum(passed), runs=len(passed),
        engines=" | ".join(engines), rules="|".join(["---"] * len(engines)),
    )  # fmt: skip
    options.out.write_text("\n".join([head, *lines, ""]))
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
