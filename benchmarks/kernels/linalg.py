"""Kernels through upstream's `linalg` and transform dialects beside gflow's own.

    python -m benchmarks linalg [--rounds 31] [--quick] [--json FILE]

Both ways get the same fused region, the same polynomials for functions, the same share of rows for each of PyTorch's
threads, and LLVM at the same level. Times of compilation are CPU time, medians of five in a context of their own each;
those of kernels are medians of rounds in which all ways take turns, and of the rounds' ratios. Errors are those to
float64, relative to the largest value. Words are what a launch passes; lines are those of the text that is compiled.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import io
import json
import time
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.harness import machine
from benchmarks.harness.measure import ROOT, note
from benchmarks.harness.report import number, table
from benchmarks.kernels import linalg_kernels
from benchmarks.kernels.linalg_kernels import Variant
from gflow.compiler.emit.cpu.language.parameters import Plan, plan_of
from gflow.compiler.emit.cpu.region.render import render
from gflow.compiler.kernel.description import Kernel, describe
from gflow.compiler.kernel.selection.cpu.loops import loops_of
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ExecutionEngine, PassManager, execution_engine, ir
from gflow.dialects.program import KERNEL_LOWERING
from gflow.dialects.types import row_major_strides, type_of
from gflow.runtime.cpu.llvm import symbol_address

#: compilations, after one that loads the dialects
_COMPILED = 5

#: of a kernel of rows: what would go, and what both ways need
_OWN = (
    "emit/cpu/region/pointwise",
    "emit/cpu/region/row",
    "emit/cpu/region/reductions",
    "emit/cpu/region/render",
    "emit/cpu/language/writer",
    "emit/cpu/language/expressions",
    "emit/cpu/language/memory",
    "emit/cpu/language/row_cache",
    "kernel/selection/cpu/loops",
    "kernel/selection/cpu/row_values",
)
_SHARED = (
    "emit/cpu/language/code",
    "emit/cpu/language/scalars",
    "emit/cpu/language/parameters",
    "emit/cpu/language/ssa_text",
    "emit/cpu/language/vmath",
)

#: way → what differs; None for gflow's own
WAYS: dict[str, Variant | None] = {
    "gflow": None,
    "linalg": Variant(),
    "linalg, sizes in types": Variant(fixed=True),
    "linalg, float32 sums": Variant(wide=False),
    "linalg, libm": Variant(libm=True),
}

#: the module of a kernel that does nothing: what every compilation takes
_NOTHING = "module { llvm.func @kernel(%w: !llvm.ptr) { llvm.return } }"


def bias_gelu_residual(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    return F.gelu(x + bias) + residual


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def _biased(rows: int, columns: int, step: int = 1) -> list[Tensor]:
    """step: elements between neighbours of a row."""
    x = torch.randn(rows, step * columns)[:, ::step]
    return [x, torch.randn(columns), torch.randn(rows, columns)]


def _rows(rows: int, columns: int) -> list[Tensor]:
    return [torch.randn(rows, columns)]


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., Tensor]
    inputs: Callable[[], list[Tensor]]


CASES = (
    Case("bias, GELU, residual", bias_gelu_residual, partial(_biased, 2048, 3072)),
    Case("every other element", bias_gelu_residual, partial(_biased, 2048, 3072, 2)),
    Case("softmax", softmax, partial(_rows, 2048, 768)),
    Case("softmax of long rows", softmax, partial(_rows, 8, 50257)),
)
QUICK = (
    Case("bias, GELU, residual", bias_gelu_residual, partial(_biased, 6, 40)),
    Case("every other element", bias_gelu_residual, partial(_biased, 6, 48, 2)),
    Case("softmax", softmax, partial(_rows, 6, 40)),
    Case("softmax, whole vectors", softmax, partial(_rows, 5, 48)),
)


# -- the region


@dataclass
class Region:
    """A case's one fused region: its kernel, and the tensors of its operands and result."""

    kernel: Kernel
    plan: Plan
    operands: list[Tensor]
    expected: Tensor  # in float64


def region_of(case: Case) -> Region:
    """The region that a graph of the case's function becomes."""
    import gflow

    class Traced(gflow.nn.Graph):
        def build(self, *args: Tensor) -> Tensor:
            return case.function(*args)

    torch.manual_seed(0)
    inputs = case.inputs()
    graph = Traced()
    graph(*inputs)
    with make_context():
        module = ir.Module.parse(graph.ir(generic=True))
        block = module.body.operations[0].operation.regions[0].blocks[0]
        (op,) = [o.operation for o in block.operations if o.operation.name == "gflow.fused"]
        order = [ir.BlockArgument(v).arg_number for v in op.operands]
        operands = [inputs[n] for n in order]
        own = [row_major_strides(type_of(v).shape) for v in op.results]
        kernel = describe(op, [tuple(x.stride()) for x in operands], own)
    expected = case.function(*(x.double() for x in inputs))
    return Region(kernel, plan_of(kernel, loops_of(kernel)), operands, expected)


# -- the ways


@dataclass
class Compiled:
    """A kernel that runs. keep: what its addresses point into."""

    run: Callable[[int], None]
    output: Tensor
    keep: Any


def ways_of(region: Region) -> Iterator[tuple[str, Variant | None]]:
    sums = any(n.op == "reduce" and n.attrs["kind"] == "sum" for n in region.kernel.nodes)
    return ((name, v) for name, v in WAYS.items() if sums or v is None or v.wide)


def _symbol(name: str) -> int:
    found = symbol_address(name)
    if found is None:
        raise RuntimeError(f"PyTorch's libraries have no function {name}")
    return found


def text_of(region: Region, variant: Variant | None) -> str:
    """The module that is compiled."""
    if variant is not None:
        return linalg_kernels.text_of(region.kernel, region.plan, variant)
    text, externals = render(region.kernel, region.plan, "kernel")
    declared = [f"  llvm.func @{name}() -> i32" for name in sorted(externals)]
    return "\n".join(["module {", *declared, text, "}"])


def compile_text(text: str, scheduled: bool) -> tuple[ExecutionEngine, int, dict[str, float]]:
    """The engine, the address of `kernel` (it takes an array of pointers to its arguments), and seconds by phase."""
    seconds: dict[str, float] = {}
    start = time.process_time()

    def done(phase: str) -> None:
        nonlocal start
        now = time.process_time()
        seconds[phase], start = now - start, now

    with ir.Context():
        module = ir.Module.parse(text)
        done("parse")
        if scheduled:
            PassManager.parse("builtin.module(transform-interpreter)").run(module.operation)
            for op in list(module.body.operations):
                if op.operation.name == "transform.named_sequence":
                    op.operation.erase()
        done("schedule")
        lowering = f"builtin.module({linalg_kernels.LOWERING})" if scheduled else KERNEL_LOWERING
        manager = PassManager.parse(lowering)
        manager.enable_verifier(False)
        manager.run(module.operation)
        for op in module.body.operations:
            # else LLVM copies the kernel into the engine's wrapper of it
            op.operation.attributes["no_inline"] = ir.UnitAttr.get()
        done("lower")
        engine = execution_engine(module, opt_level=1)
        for name in ("omp_get_thread_num", "omp_get_num_threads"):
            engine.raw_register_runtime(name, ctypes.c_void_p(_symbol(name)))
        address = engine.raw_lookup("kernel")
        assert address is not None
        done("LLVM")
    return engine, address, seconds


def arguments(
    region: Region, variant: Variant | None, output: Tensor, scratch: np.ndarray
) -> list[int]:
    """The words of a launch."""
    k = region.kernel
    operands = [region.operands[access.operand] for access in k.loads]
    if variant is not None:
        return linalg_kernels.words([*operands, output])
    found = []
    for w in region.plan.words:
        if w.kind == "load":
            found.append(operands[w.value].data_ptr())
        elif w.kind in ("store", "scratch"):
            found.append(output.data_ptr() if w.kind == "store" else scratch.ctypes.data)
        else:
            found.append(w.bits())
    return found


def prepare(
    region: Region, variant: Variant | None, engine: ExecutionEngine, address: int
) -> Compiled:
    """A compiled kernel with its arguments."""
    output = torch.empty(region.expected.shape)
    cells = region.plan.scratch_rows * region.plan.scratch_width
    scratch = np.zeros(2 * cells + 1, dtype=np.int64)  # of two threads
    words = np.array(arguments(region, variant, output, scratch), dtype=np.int64)
    at = words.ctypes.data
    if variant is not None:  # each word is an argument
        pointers = at + 8 * np.arange(len(words), dtype=np.int64)
        keep: tuple[Any, ...] = (pointers,)
    else:  # the words' address is the one argument
        only = np.array([at], dtype=np.int64)
        pointers = np.array([only.ctypes.data], dtype=np.int64)
        keep = (only, pointers)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
    fork_type = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
    )
    fork, data = fork_type(_symbol("GOMP_parallel")), pointers.ctypes.data

    def run(threads: int) -> None:
        if threads == 1:
            function(data)
        else:
            fork(address, data, threads, 0)

    return Compiled(run, output, (engine, region, scratch, words, *keep))


# -- the measurement


def compile_way(
    region: Region, variant: Variant | None, repeats: int
) -> tuple[Compiled, dict[str, Any]]:
    phases: dict[str, list[float]] = {}
    for _ in range(1 + repeats):
        start = time.process_time()
        text = text_of(region, variant)
        written = time.process_time() - start
        engine, address, seconds = compile_text(text, variant is not None)
        for phase, value in {"write": written, **seconds}.items():
            phases.setdefault(phase, []).append(value)
    compiled = prepare(region, variant, engine, address)
    return compiled, {
        "lines": text.count("\n") + 1,
        "words": len(arguments(region, variant, compiled.output, np.zeros(1))),
        "compile_ms": {name: 1e3 * median(values[1:] or values) for name, values in phases.items()},
    }


def error(region: Region, found: Tensor) -> float:
    """The largest difference to float64, relative to the largest value."""
    return ((found - region.expected).abs().max() / region.expected.abs().max()).item()


def measure(case: Case, rounds: int, repeats: int) -> dict[str, Any]:
    """Each way's numbers.

    Raises:
        RuntimeError: a result is wrong.
    """
    region = region_of(case)
    rows: dict[str, Any] = {}
    compiled: dict[str, Compiled] = {}
    for name, variant in ways_of(region):
        compiled[name], rows[name] = compile_way(region, variant, repeats)
    names = list(compiled)
    for threads in (1, 2):
        for name, way in compiled.items():
            way.output.fill_(torch.nan)
            way.run(threads)
            found = rows[name]["error"] = error(region, way.output)
            if not found < 1e-5:
                raise RuntimeError(f"{case.name}, {name}, {threads} threads: {found} from float64")
        samples: dict[str, list[float]] = {name: [] for name in names}
        for n in range(rounds):
            first = n % len(names)
            for name in names[first:] + names[:first]:
                start = time.perf_counter()
                compiled[name].run(threads)
                samples[name].append(1e3 * (time.perf_counter() - start))
        for name, values in samples.items():
            ratio = median(a / b for a, b in zip(values, samples["gflow"]))
            readings = {"ms": median(values), "least_ms": min(values), "ratio": ratio}
            rows[name].setdefault("threads", {})[str(threads)] = readings
    return rows


def code_lines(path: Path) -> int:
    """Lines of code in a file or folder, without docstrings, comments and empty ones."""
    if path.is_dir():
        return sum(map(code_lines, path.glob("*.py")))
    text = path.read_text()
    skip = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
            tokenize.ENDMARKER, tokenize.ENCODING)  # fmt: skip
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skip:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def count_code() -> dict[str, int]:
    """Lines of code of each way."""
    folder = ROOT / "compiler"

    def total(names: tuple[str, ...]) -> int:
        paths = [folder / name for name in names]
        return sum(code_lines(p if p.is_dir() else p.with_suffix(".py")) for p in paths)

    upstream = code_lines(ROOT / "benchmarks" / "kernels" / "linalg_kernels.py")
    return {"gflow": total(_OWN), "linalg": upstream, "shared": total(_SHARED)}


HEAD = ("kernel", "way", "lines", "words", "write, parse", "schedule", "lower", "LLVM", "compile ms", "1 thread, ms",
        "/ gflow", "2 threads, ms", "/ gflow", "error")  # fmt: skip


def show(case: str, rows: dict[str, Any]) -> list[tuple[str, ...]]:
    out: list[tuple[str, ...]] = []
    for name, row in rows.items():
        ms = row["compile_ms"]
        phases = (
            ms["write"] + ms["parse"],
            ms["schedule"],
            ms["lower"],
            ms["LLVM"],
            sum(ms.values()),
        )
        times = [
            number(reading[key], digits)
            for reading in row["threads"].values()
            for key, digits in (("ms", 3), ("ratio", 2))
        ]
        counts = (str(row["lines"]), str(row["words"]))
        spent = [number(phase, 1) for phase in phases]
        out.append((case, name, *counts, *spent, *times, f"{row['error']:.0e}"))
    return out


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks linalg")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rounds, repeats = (2, 0) if args.quick else (args.rounds, _COMPILED)
    code = count_code()
    floor = [sum(compile_text(_NOTHING, False)[2].values()) for _ in range(1 + _COMPILED)]
    result: dict[str, Any] = {"machine": machine.describe(), "code_lines": code, "rows": {}}
    result["nothing_ms"] = 1e3 * median(floor[1:])
    lines: list[tuple[str, ...]] = []
    for case in QUICK if args.quick else CASES:
        note(case.name)
        found = result["rows"][case.name] = measure(case, rounds, repeats)
        lines += show(case.name, found)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(HEAD, lines))
    print(f"a kernel that does nothing: {result['nothing_ms']:.1f} ms to compile")
    print("lines of code: " + ", ".join(f"{name} {count}" for name, count in code.items()))
    return 0
