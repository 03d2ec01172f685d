"""Train with every optimizer of PyTorch and four libraries (`optimizer_harness`), in a graph and eagerly, and
write the table of docs/optimizers.md.

    python scripts/optimizer_report.py [--steps 30] [--only NAME] [--check]

--check: write nothing, and fail where one is neither equal to eager nor refused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

PAGE = ROOT / "docs" / "optimizers.md"
BEGIN, END = "<!-- written by scripts/optimizer_report.py -->", "<!-- end of the table -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--only", default="", help="those with this in their name")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    from benchmarks.workloads.third_party import declare_torchvision_ops

    declare_torchvision_ops()
    from optimizer_harness import Case, Result, cases, run, tolerance

    rows: list[tuple[Case, Result]] = []
    wrong = []
    for case in cases():
        if options.only in case.id:
            try:
                result = run(case, options.steps)
            except Exception as error:  # neither equal nor refused: reported with the rest
                wrong.append(f"{case.id}: {type(error).__name__}: {error}")
                continue
            rows.append((case, result))
            print(f"{case.id}: {_state(case, result)}", flush=True)
            if result.error is not None and not result.error <= tolerance(case, result):
                wrong.append(f"{case.id}: {result.error:.1e}")
    if wrong:
        print("NOT EQUAL TO EAGER", *wrong, sep="\n")
        return 1
    if not options.check and not options.only:
        text = PAGE.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{_table(rows, options.steps)}\n{END}{after}")
    return 0


def _state(case: object, result: object) -> str:
    narrow, error = getattr(case, "narrow", ""), getattr(result, "error", None)
    if getattr(result, "absent", ""):
        return f"not here: {getattr(result, 'absent', '')}"
    if error is None:
        return f"refused: {getattr(result, 'refused', '')}"
    less = f" but for rounding ({narrow}: {error:.0e})" if narrow else ""
    count = getattr(result, "variants", 1)
    return f"exact{less}" + (f" ({count} programs)" if count > 1 else "")


def _table(rows: Sequence[tuple[object, object]], steps: int) -> str:
    lines = []
    for library in dict.fromkeys(getattr(case, "library", "") for case, _ in rows):
        package = "torch" if library == "torch.optim" else library
        name = package.replace("_", "-")
        lines += [
            f"## {library} {version(name).partition('+')[0]}",
            "",
            "| optimizer | state |",
            "|---|---|",
        ]
        by_state: dict[str, list[str]] = {}
        for case, result in rows:
            if getattr(case, "library", "") == library:
                text = _state(case, result).replace("|", "\\|")
                by_state.setdefault(text, []).append(f"`{getattr(case, 'name', '')}`")
        lines += [f"| {', '.join(names)} | {state} |" for state, names in by_state.items()]
        lines.append("")
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    raise SystemExit(main())
