# ruff: noqa: E501  (the list of tokens)
"""Feeds gflow-opt mutated IR until the time is up, in this process.

    python tests/fuzz_opt.py SECONDS SEED CASE_FILE

Each input is written to CASE_FILE before it is tried, so that whoever started this process can
read what killed it. Prints the number of inputs tried; exits with status 3 and the message when
gflow-opt reported a bug in itself.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import random
import sys
import time
from pathlib import Path

from gflow.compiler import opt

LIT_TESTS = Path(__file__).resolve().parent.parent / "lit_tests"
TOKENS = [
    b"tensor<", b">", b"(", b")", b"{", b"}", b"[", b"]", b"-1", b"0", b"9223372036854775807",
    b"18446744073709551616", b"?", b"*", b"xf32", b"f64", b"index", b"i1", b"complex<f32>", b"vector<4xf32>",
    b"memref<4xf32>", b"none", b"tensor<0xf32>", b"tensor<4x0x5xf32>", b'"gflow.add"', b'"gflow.aten"', b"dense<",
    b"array<i64>", b"array<i64: -1>", b"array<i32: 1, 1>", b"loc(", b"unit", b"%0", b"%arg0", b"@f", b"#m", b"!t",
    b"0x7FC00000", b"0.0", b"1e400", b"\"", b"//", b"\n", b"\0", b"\xff", b"^bb0:", b"dense_resource<x>", b"affine_map<(d0) -> (d0)>",
    b"tensor<4611686018427387904x4xf32>", b"tensor<99999999999999999999xf32>", b": i64", b"true", b"sparse<[], []>",
    b"func.func @", b"builtin.module", b"return", b"scf.if", b"arith.constant", b"cf.br ^bb0",
]  # fmt: skip
FLAGS = [
    [], ["--gflow-simplify"], ["--gflow-assign-layout"], ["--gflow-simplify", "--cse"],
    ["--canonicalize"], ["--split-input-file", "--verify-diagnostics"], ["--mlir-print-op-generic"],
    ["--gflow-simplify", "--gflow-fuse"], ["--pipeline-for=cpu"], ["--allow-unregistered-dialect"],
]  # fmt: skip


def corpus() -> list[bytes]:
    """Every function of the lit tests, without comments."""
    parts = []
    for path in sorted(LIT_TESTS.rglob("*.mlir")):
        lines = [s for s in path.read_bytes().split(b"\n") if not s.strip().startswith(b"//")]
        text = b"\n".join(lines)
        parts += [b"func.func " + part for part in text.split(b"func.func ")[1:]]
    return parts


def mutate(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """A few random edits: bytes, tokens, numbers, spans moved, copied, cut; two inputs joined."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at = rng.randrange(len(out) + 1)
        length = rng.choice((1, 2, 8, 40))
        kind = rng.randrange(8)
        if kind == 0 and out:
            out[at % len(out)] = rng.randrange(256)
        elif kind == 1:
            out[at:at] = rng.choice(TOKENS)
        elif kind == 2:
            out[at : at + length] = rng.choice(TOKENS)
        elif kind == 3:
            del out[at : at + length]
        elif kind == 4:
            out[at:at] = out[at : at + length] * rng.choice((1, 2, 50))
        elif kind == 5:
            other = rng.choice(others)
            start = rng.randrange(len(other))
            out[at:at] = other[start : start + length]
        elif kind == 6:
            digits = [i for i, c in enumerate(out) if 48 <= c < 58]
            if digits:
                i = rng.choice(digits)
                out[i : i + 1] = rng.choice((b"0", b"1", b"-1", b"7", b"2147483648", b"99"))
        else:
            del out[at:]
    return bytes(out)


def fuzz(seconds: float, seed: int, case: Path) -> int:
    # One context for all inputs: making one takes longer than all else.
    context = opt.make_context()
    opt.make_context = lambda: context
    rng = random.Random(seed)
    parts = corpus()
    tried = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data = mutate(rng.choice(parts), rng, parts)
        flags = rng.choice(FLAGS)
        case.write_bytes(data)
        case.with_suffix(".flags").write_text(" ".join(flags))
        errors = io.StringIO()
        faulthandler.dump_traceback_later(20, exit=True)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            code = opt.main([str(case), *flags])
        faulthandler.cancel_dump_traceback_later()
        message = errors.getvalue()
        if "internal error" in message or "Traceback" in message:
            print(message[-3000:])
            return 3
        if code and not message:
            print("failed without a message")
            return 3
        tried += 1
    print(tried)
    return 0


if __name__ == "__main__":
    sys.exit(fuzz(float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
