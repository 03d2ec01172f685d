"""A mutation fuzzer for gflow-opt over the lit corpus.

    python -m tests.fuzz_opt --minutes 20 --seed 1 --keep fuzz-finds

Inputs are made from the functions of the lit tests: bytes and tokens changed, or (as every op of the
generic form is a line) operands swapped, ops deleted, copied, spliced in from other files, attributes
and types exchanged, one size replaced everywhere. Each goes through passes drawn at random. A child
process does the work, so that a crash or a hang costs one input and is put down to it.

What is found is written to `--keep`: the input (`<n>.mlir`), its flags and what happened
(`<n>.txt`). Prints the number of inputs tried; the exit status is 3 when anything was found.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests import fuzz_mutations

#: seconds that one input may take, and bytes of address space that a child may
LIMIT = 20
MEMORY = 8 << 30


@dataclass
class Find:
    """One input that gflow-opt did not survive. kind: "crash", "hang", "bug" or "silent"."""

    kind: str
    flags: str
    data: bytes
    message: str

    @property
    def signature(self) -> str:
        """What finds of one cause have in common: the last frame of the traceback, or the message."""
        frames = re.findall(r'File "[^"]*?([\w/]+\.py)", line (\d+)', self.message)
        if self.kind == "hang":
            frames.reverse()  # a hang's traceback starts at the innermost frame
        lines = [s for s in self.message.splitlines() if s.strip()]
        told = re.sub(r"[\d'\"x%#<>-]+", "", lines[-1]) if lines else ""
        return f"{self.kind} {frames[-2:]} {told[:40] if not frames else ''}"


# -- the child: tries inputs until told to stop


def flags(rng: random.Random) -> list[str]:
    """Passes and options for one run."""
    from gflow.compiler.driver.pass_manager import our_passes

    ours = [f"--{name}" for name in our_passes()]
    upstream = ["--cse", "--canonicalize", "--symbol-dce", "--inline", "--sccp", "--trivial-dce"]
    printed = [
        "--mlir-print-op-generic",
        "--pretty",
        "--mlir-print-debuginfo",
        "--mlir-print-local-scope",
    ]
    kind = rng.randrange(14)
    if kind == 12:
        return [_pipeline(rng, ours)]
    if kind == 13:
        ways = ["--pipeline-for=cpu", "--pipeline-for=cuda", rng.choice(ours)]
        target = rng.choice(("cpu", "cuda:75", "cuda:80", "cuda:90", "cuda:100", "cuda:120"))
        return [rng.choice(ways), f"--target={target}", rng.choice(OUTPUTS)]
    if kind < 2:
        return [rng.choice(("--pipeline-for=cpu", "--pipeline-for=cpu", "--pipeline-for=cuda"))]
    if kind < 5:
        return [rng.choice(ours)]
    if kind == 5:
        return [rng.choice([*ours, *upstream]) for _ in range(rng.randrange(2, 6))]
    if kind == 6:
        return ["--split-input-file", "--verify-diagnostics"]
    if kind == 7:
        return rng.sample(printed, 1)
    if kind == 8:
        return ["--allow-unregistered-dialect", rng.choice([*ours, *upstream])]
    if rng.random() < 0.3:  # the input may be planned as it is, or badly
        return [rng.choice(PLANNED)]
    if rng.random() < 0.3:
        return ["--pipeline-for=cuda", "--target=cuda:90", rng.choice(PLANNED_CUDA)]
    return ["--pipeline-for=cpu", rng.choice(PLANNED[:-1])]


def _pipeline(rng: random.Random, ours: list[str]) -> str:
    """A pipeline as text: passes with options, some of them odd, nested, some badly."""
    names = [n.removeprefix("--") for n in rng.sample(ours, rng.randrange(1, 5))]
    options = [
        "", "{}", "{max-ops=0}", "{max-ops=-1}", "{max-ops=999999999999999999999}", "{x=1}", "{budget=1}",
        "{target=cuda:90}", "{target=cuda:0}", "{target=}", "{threads=0}", "{compress=maybe}", "{memory=1}",
    ]  # fmt: skip
    text = ",".join(name + rng.choice(options) * (rng.random() < 0.4) for name in names)
    if rng.random() < 0.7:
        text = f"func.func({text})"
    if rng.random() < 0.9:
        text = f"builtin.module({text})"
    if rng.random() < 0.1:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(("(", ")", "{", "}", ",", "=", "x")) + text[at + 1 :]
    return f"--pass-pipeline={text}"


#: what is done with a planned program
PLANNED = [
    "--emit=plan", "--emit=kernels", "--emit=kernels", "--emit=llvm", "--emit=dot", "--gflow-report",
    "--emit=llvm-dialect", "--gflow-verify-memory",
]  # fmt: skip
#: any output, planned or not, for any target
OUTPUTS = [
    *PLANNED, "--emit=triton", "--emit=launches", "--gflow-report=cuda:90", "--gflow-report=cuda:80",
    "--mlir-elide-elementsattrs-if-larger=1", "--mlir-elide-resource-strings-if-larger=1", "--run-reproducer",
    "--mlir-print-ir-after-change", "--no-implicit-module", "--view-graph=/dev/null", "--view-memory=/dev/null",
    "--mlir-pretty-debuginfo", "--mlir-print-ir-before-all", "--verify-diagnostics", "--split-input-file",
]  # fmt: skip
PLANNED_CUDA = ["--emit=triton", "--emit=launches", "--emit=plan"]


def work(seed: int, case: Path) -> int:
    """Try inputs for ever; prints a line after each. Returns 3 at the first bug, told on stdout."""
    from gflow.compiler.tools import opt

    os.environ["GFLOW_DEBUG"] = "1"  # unexpected exceptions as they are
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    # One context for all inputs: making one takes longer than all else.
    context = opt.make_context()
    opt.make_context = lambda: context
    rng = random.Random(seed)
    parts = fuzz_mutations.corpus()
    while True:
        data = fuzz_mutations.mutate(rng.choice(parts), rng, parts)
        found = attempt(data, flags(rng), case)
        print(found or ".", flush=True)
        if found:
            return 3


def attempt(data: bytes, chosen: list[str], case: Path) -> str:
    """Run one input; returns what is wrong, "" if nothing."""
    from gflow.compiler.tools import opt

    case.write_bytes(data)
    case.with_suffix(".flags").write_text(" ".join(chosen))
    errors = io.StringIO()
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            code = opt.main([str(case), *chosen])
    except Exception:
        return "bug\n" + traceback.format_exc()[-6000:]
    finally:
        faulthandler.cancel_dump_traceback_later()
    message = errors.getvalue()
    if "internal error" in message or "Traceback" in message:
        return "bug\n" + message[-6000:]
    if code and not message:
        return "silent\nfailed without a message"
    return ""


# -- the parent: starts children, tells what killed them


def fuzz(seconds: float, seed: int, most: int = 50) -> tuple[int, list[Find]]:
    """Fuzz for a while; the number of inputs tried, and what was found, one for each cause."""
    found: dict[str, Find] = {}
    tried = 0
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        case = Path(folder) / "case.mlir"
        while time.monotonic() < end and len(found) < most:
            count, find = _child(seed, case, end)
            tried += count
            if find is not None and find.signature not in found:
                found[find.signature] = find
            seed += 1000
    return tried, list(found.values())


def _child(seed: int, case: Path, end: float) -> tuple[int, Find | None]:
    command = [sys.executable, __file__, "--child", str(seed), str(case)]
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace"
        )
        assert process.stdout is not None
        count, told = 0, ""
        for line in process.stdout:
            if line != ".\n":
                told = line + process.stdout.read()
                break
            count += 1
            if time.monotonic() > end:
                process.kill()
                process.wait()
                return count, None
        code = process.wait()
        errors.seek(0)
        stderr = errors.read()
    if told:
        kind, _, message = told.partition("\n")
        return count, _find(kind, case, message)
    if "Timeout (" in stderr:
        find = _find("hang", case, stderr)
        return count, find if _hangs_again(find, case) else None
    name = signal.Signals(-code).name if code < 0 else f"status {code}"
    return count, _find("crash", case, f"{stderr[-6000:]}\n{name}")


def _hangs_again(find: Find, case: Path) -> bool:
    """Whether an input takes too long a second time: the machine may have been busy, or stopped."""
    again = case.with_name("again.mlir")
    again.write_bytes(find.data)
    command = [sys.executable, __file__, "--again", str(again), f"--flags={find.flags}"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=6 * LIMIT)
    except subprocess.TimeoutExpired:
        return True
    return b"Timeout (" in done.stderr


def _find(kind: str, case: Path, message: str) -> Find:
    if not case.exists():
        return Find(kind, "", b"", message)
    return Find(kind, case.with_suffix(".flags").read_text(), case.read_bytes(), message)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="where to write what is found")
    parser.add_argument("--child", nargs=2, metavar=("SEED", "CASE"), help=argparse.SUPPRESS)
    parser.add_argument("--again", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--flags", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        return work(int(options.child[0]), Path(options.child[1]))
    if options.again:
        print(attempt(options.again.read_bytes(), options.flags.split(), options.again))
        return 0
    tried, finds = fuzz(options.minutes * 60, options.seed)
    for n, find in enumerate(finds):
        print(f"--- {find.kind}: gflow-opt {find.flags}\n{find.message[-3000:]}")
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{n}.mlir").write_bytes(find.data)
            told = f"{find.kind}\n{find.flags}\n{find.message}"
            (options.keep / f"{n}.txt").write_text(told, encoding="utf-8")
    print(f"{tried} inputs, {len(finds)} finds")
    return 3 if finds else 0


if __name__ == "__main__":
    sys.exit(main())
