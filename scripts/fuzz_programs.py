"""Random programs by gflow, beside eager and float64 (`tests/oracle`).

    python scripts/fuzz_programs.py --count 20000 --seed 0 --jobs 2 --out fuzz-programs
    python scripts/fuzz_programs.py --replay 1234 [--shrink 60]      one seed: program, verdict, minimized
    python scripts/fuzz_programs.py --replay fuzz-programs/1234.json
    python scripts/fuzz_programs.py --histories --out fuzz-histories [--replay 1234]
                     sessions: what a user does between calls (`tests/oracle/histories`)
    python scripts/fuzz_programs.py --target cuda:90 …   kernels for a GPU, on Triton's interpreter; with GPU_MIRROR=1
                     in the environment on a GPU (`tests/gpu_mirror.py`)
    python scripts/fuzz_programs.py --summary --out fuzz-programs [--table benchmarks/results/random_programs.json]

Results are kept in `--out`, and a run that is started again goes on where the last ended. The exit status is
3 when anything was found.
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


def replay(what: str, shrink: float, out: Path | None) -> int:
    """Show one program, its verdict, and a minimized one."""
    from oracle.campaign import FINDS, script
    from oracle.judge import judge
    from oracle.minimize import minimize
    from oracle.program import from_json, source
    from oracle.run import program_of

    program = from_json(Path(what).read_text()) if what.endswith(".json") else program_of(int(what))
    verdict = judge(program)
    print(source(program), program.settings, verdict, sep="\n")
    if verdict.status in FINDS and shrink:
        program = minimize(program, lambda p: judge(p).status == verdict.status, shrink)
        print(
            "minimized:",
            source(program),
            *program.tensors,
            *program.storages,
            program.settings,
            sep="\n",
        )
        print(judge(program))
    if out is not None:
        out.write_text(script(program))
    return 3 if verdict.status in FINDS else 0


def replay_history(what: str, shrink: float) -> int:
    """Show one session, its verdict, and a minimized one."""
    from oracle.histories.judge import judge, minimized
    from oracle.histories.session import draw, from_json, text

    session = from_json(Path(what).read_text()) if what.endswith(".json") else draw(int(what))
    verdict = judge(session)
    print(text(session), verdict, sep="\n")
    if verdict.is_find and shrink:
        session = minimized(session, verdict, shrink)
        print("minimized:", text(session), judge(session), sep="\n")
    return 3 if verdict.is_find else 0


def main() -> int:
    from oracle.campaign import Record, judged, parser_of, run

    parser = parser_of(__doc__ or "", "fuzz-programs", "programs")
    parser.add_argument("--replay", help="a seed, or a program as JSON")
    parser.add_argument("--script", type=Path, help="with --replay: write a script of it here")
    parser.add_argument("--histories", action="store_true", help="sessions instead of programs")
    parser.add_argument("--target", help="compile for it: cuda:90")
    options = parser.parse_args()
    if options.target:
        os.environ |= {"ORACLE_TARGET": options.target, "GFLOW_CUDA_DEVICE": "interpreter"}
    if options.histories:
        from oracle.histories.judge import judged as judged_history

        if options.replay:
            return replay_history(options.replay, options.shrink)
        return run(options, Record(options.out, name="sessions"), judged_history)
    if options.replay:
        return replay(options.replay, options.shrink, options.script)
    return run(options, Record(options.out), judged)


if __name__ == "__main__":
    sys.exit(main())
