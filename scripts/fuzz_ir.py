"""Random IR through random pipelines, by the interpreter and by the code generators (`tests/oracle/ir.py`).

    python scripts/fuzz_ir.py --count 5000 --seed 0 --jobs 2 --out fuzz-ir
    python scripts/fuzz_ir.py --replay 1234 [--shrink 60]      one seed: module, verdict, minimized
    python scripts/fuzz_ir.py --summary --out fuzz-ir

A module is grown or is what a random program was lowered to; its pipeline for the CPU or a GPU is drawn, too. A
find is made smaller by the reductions of gflow-reduce, and kept as SEED.mlir with its pipeline. Results are kept
in `--out`, and a run that is started again goes on where the last ended. The exit status is 3 when anything was found.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT, ROOT / "tests"):
    sys.path.insert(0, str(folder))
os.environ.setdefault("GFLOW_CACHE", "0")
os.environ.setdefault("GFLOW_PROGRESS", "0")
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
)


def replay(seed: int, shrink: float) -> int:
    """Show one module, its pipeline and verdict, and a minimized one."""
    from oracle.campaign import FINDS
    from oracle.ir import drawn, judged_ir

    subject, target, pipeline = drawn(seed)
    print(f"// {target}: {pipeline}", "" if subject is None else subject.text, sep="\n")
    result, small = judged_ir(seed, shrink)
    print(result)
    if small is not None:
        print("minimized:", small, sep="\n")
    return 3 if result.status in FINDS else 0


def main() -> int:
    from oracle.campaign import Record, parser_of, run
    from oracle.ir import judged_ir

    parser = parser_of(__doc__ or "", "fuzz-ir", "modules")
    parser.add_argument("--replay", type=int, help="a seed")
    options = parser.parse_args()
    if options.replay is not None:
        return replay(options.replay, options.shrink)
    return run(options, Record(options.out, "mlir", "modules"), judged_ir)


if __name__ == "__main__":
    sys.exit(main())
