"""Functions of the dialect run as machine code and by the reference interpreter, many at a time.

    case = make("softmax", [Arg((4, 100))], lambda x: [...])
    run_cases([case, ...])        # raises with a list of all that differ

Kernels of all cases are compiled in one go, which is far cheaper than one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from ir_interpreter import DTYPES, run_module

from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.dialects import builder
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import func, ir
from gflow.dialects.program import Program
from gflow.dialects.types import TensorType
from gflow.runtime import Executable
from gflow.runtime.cpu import jit

SELECT = "gflow-select-kernels{target=cpu}"
PIPELINE = f"builtin.module(func.func(gflow-fuse,gflow-materialize,{SELECT},gflow-plan-memory))"

CONTEXT = make_context()

FLOATS = ("f32", "f64", "bf16", "f16")
INTEGERS = ("i64", "i32", "i16", "i8", "ui8")


@dataclass
class Arg:
    """A function argument. strides: in memory, row-major if None. values: what to pass; random if None."""

    shape: tuple[int, ...]
    dtype: str = "f32"
    strides: tuple[int, ...] | None = None
    values: torch.Tensor | None = None


@dataclass
class Case:
    """A module, tensors for its arguments, and how close results must be (None: by element type)."""

    name: str
    module: ir.Module
    args: list[torch.Tensor]
    rtol: float | None = None
    atol: float | None = None
    alias: dict[int, int] = field(default_factory=dict)
    program: Program | None = None


def random_tensor(
    shape: Sequence[int], dtype: str, generator: torch.Generator, low: float = -20
) -> torch.Tensor:
    ty = DTYPES[dtype]
    if ty.is_floating_point:
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(ty)
    if dtype == "i1":
        return torch.rand(tuple(shape), generator=generator) < 0.5
    low = 0 if dtype.startswith("u") else low
    return torch.randint(int(low), 21, tuple(shape), generator=generator).to(ty)


def strided(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The same values (the last written where elements overlap) with these strides."""
    if tensor.numel() == 0:
        return torch.empty_strided(tuple(tensor.shape), tuple(strides), dtype=tensor.dtype)
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, strides))
    memory = torch.zeros(extent, dtype=tensor.dtype)
    view = memory.as_strided(tuple(tensor.shape), tuple(strides))
    if all(s for n, s in zip(tensor.shape, strides) if n > 1):
        view.copy_(tensor)
    else:
        chosen = tensor
        for d, (n, s) in enumerate(zip(tensor.shape, strides)):
            if n > 1 and s == 0:
                chosen = chosen.narrow(d, 0, 1)
        memory.as_strided(tuple(chosen.shape), tuple(strides)).copy_(chosen)
    return view


def make(
    name: str,
    args: Sequence[Arg],
    body: Callable[..., Sequence[ir.Value]],
    *,
    alias: Mapping[int, int] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
) -> Case:
    """A case of one function. `alias`: result number → the argument that it updates."""
    alias = dict(alias or {})
    with CONTEXT, ir.Location.unknown():
        module = ir.Module.create()
        types = [TensorType(tuple(a.shape), a.dtype).mlir() for a in args]
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("f", ir.FunctionType.get(types, []))
            block = function.add_entry_block()
        with ir.InsertionPoint(block):
            results = list(body(*block.arguments))
            func.ReturnOp(results)
        kind = ir.FunctionType.get(types, [v.type for v in results])
        function.attributes["function_type"] = ir.TypeAttr.get(kind)
        attrs = [
            {} if a.strides is None else {"gflow.strides": ir.DenseI64ArrayAttr.get(a.strides)}
            for a in args
        ]
        function.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in attrs])
        i64 = ir.IntegerType.get_signless(64)
        function.attributes["res_attrs"] = ir.ArrayAttr.get(
            [
                ir.DictAttr.get(
                    {"gflow.alias": ir.IntegerAttr.get(i64, alias[n])} if n in alias else {}
                )
                for n in range(len(results))
            ]
        )
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for a in args:
        t = random_tensor(a.shape, a.dtype, generator) if a.values is None else a.values
        tensors.append(t if a.strides is None else strided(t, a.strides))
    return Case(name, module, tensors, rtol, atol, alias)


def compile_case(case: Case, threads: int = 2) -> Program:
    """The program of a case; its module becomes the planned one."""
    if case.program is None:
        options = CompileOptions(pipeline=PIPELINE, threads=threads)
        case.program = compile_module(case.module, options)
    return case.program


def copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies with the same strides, overlaps included."""
    out = []
    for t in tensors:
        if t.numel() == 0:
            out.append(t.clone())
            continue
        extent = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))
        memory = t.as_strided((extent,), (1,)).clone()
        out.append(memory.as_strided(t.shape, t.stride()))
    return out


def difference(case: Case, n: int, got: torch.Tensor, want: torch.Tensor) -> str | None:
    """What is wrong with result `n`; None if it is right."""
    try:
        torch.testing.assert_close(
            got, want, rtol=case.rtol, atol=case.atol, equal_nan=True, check_stride=False
        )
    except AssertionError as error:
        return f"{case.name}, result {n} {tuple(want.shape)} {want.dtype}: {error}"
    return None


def run_cases(
    cases: Sequence[Case], threads: Sequence[int] = (2,), repeat: bool = False
) -> list[list[torch.Tensor]]:
    """Run every case on each number of threads (twice with `repeat`: the bits must agree).

    Returns the results of the last runs.
    """
    expected = [run_module(case.module, copies(case.args)) for case in cases]
    programs = [compile_case(case, max(threads)) for case in cases]
    kernels: dict[str, str] = {}
    declarations: dict[str, str] = {}
    for p in programs:
        kernels |= p.kernels
        for text in p.declarations.values():
            declarations[text.split("@")[1].split("(")[0]] = text
    jit.compile_kernels(kernels, declarations)
    failures: list[str] = []
    all_results = []
    before = torch.get_num_threads()
    try:
        for case, program, want in zip(cases, programs, expected):
            executable = Executable(program)
            for count in threads:
                torch.set_num_threads(count)
                runs = []
                for _ in range(1 + repeat):
                    args = copies(case.args)
                    runs.append(executable(args))
                    for i, (given, now) in enumerate(zip(case.args, args)):
                        changed = not torch.equal(given.nan_to_num(), now.nan_to_num())
                        if changed and i not in case.alias.values():
                            failures.append(f"{case.name}: argument {i} was changed")
                for n, w in enumerate(want):
                    found = difference(case, n, runs[0][n], w)
                    if found:
                        failures.append(f"[{count} threads] {found}")
                    if repeat and not same_bits(runs[0][n], runs[1][n]):
                        failures.append(f"{case.name}, result {n}: two runs differ")
            all_results.append(runs[0])
    finally:
        torch.set_num_threads(before)
    assert not failures, f"{len(failures)} differences\n" + "\n".join(failures[:20])
    return all_results


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


# -- short names for building


def b(name: str, *operands: ir.Value, **attrs: object) -> ir.Value:
    """`gflow.<name>` of the operands."""
    return builder.build(name, list(operands), attrs)


def full(value: float, like: ir.Value) -> ir.Value:
    return builder.splat(value, builder.type_of(like))


def reduce(kind: str, x: ir.Value, *dims: int) -> ir.Value:
    return b("reduce", x, kind=kind, dims=dims)


def spread(x: ir.Value, shape: Sequence[int], *dims: int) -> ir.Value:
    """A broadcast: dimension i of `x` is dimension dims[i] of the result."""
    return b("broadcast", x, shape=tuple(shape), dims=dims)
