"""`gflow.from_stablehlo`: a StableHLO program, such as JAX exports, as a PyTorch module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gflow.dialects.records import record
from gflow.errors import GraphError, GraphInputError
from gflow.lowering.dtypes import TO_TORCH
from gflow.tracing.context.location import here

from .compiled import compile
from .torch_ops import OPERATIONS


@record
class _Step:
    """One step. run: gets the tensors numbered `operands`; its results get the numbers from `first` on."""

    run: Callable[..., Any]
    operands: tuple[int, ...]
    first: int
    results: int


class Imported(torch.nn.Module):
    """A function of the dialect as PyTorch ops, so that it can be traced, differentiated and compiled like any module.
    Its constants are non-persistent buffers."""

    def __init__(self, arguments: list[tuple[tuple[int, ...], str]]) -> None:
        super().__init__()
        self._arguments = arguments
        self._steps: list[_Step] = []
        self._constants: list[tuple[int, str]] = []
        self._results: list[int] = []

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Run the function.

        Args:
            arguments: tensors of the shapes and dtypes that the text states.

        Raises:
            GraphInputError: they differ.
        """
        self._check(arguments)
        known: dict[int, torch.Tensor] = dict(enumerate(arguments))
        for number, name in self._constants:
            known[number] = getattr(self, name)
        for step in self._steps:
            found = step.run(*(known[n] for n in step.operands))
            known.update(zip(range(step.first, step.first + step.results), found))
        results = tuple(known[n] for n in self._results)
        return results[0] if len(results) == 1 else results

    def _check(self, arguments: tuple[Any, ...]) -> None:
        wanted = self._arguments
        if len(arguments) != len(wanted):
            raise GraphInputError(
                f"{here()}: the StableHLO program takes {len(wanted)} tensors, got {len(arguments)}"
            )
        for n, (x, (shape, dtype)) in enumerate(zip(arguments, wanted)):
            expected = f"a tensor of {TO_TORCH[dtype]}{list(shape)}"
            if not isinstance(x, torch.Tensor):
                raise GraphInputError(
                    f"{here()}: argument {n} of the StableHLO program is {expected}, got {type(x).__name__}"
                )
            if tuple(x.shape) != shape or x.dtype != TO_TORCH[dtype]:
                raise GraphInputError(
                    f"{here()}: argument {n} of the StableHLO program is {expected}, "
                    f"got {x.dtype}{list(x.shape)}; its sizes are fixed, export it for these"
                )


def from_stablehlo(
    text: str, /, *, shapes: Sequence[Sequence[int]] | None = None, **options: Any
) -> torch.nn.Module:
    """A StableHLO program as a module that runs compiled, like those of `gflow.compile`.

    It is called with the program's arguments, on the CPU; one result is a tensor, several are a tuple. It has
    gradients if arguments require them, and may be called in an `nn.Graph`. Weights are arguments (pass parameters) or
    constants, as in the program.

    Args:
        text: a module with one public function, such as `jax.export.export(jax.jit(f))(*shapes).mlir_module()`.
        shapes: for a program with dynamic dimensions, the shapes of all arguments. Another set of shapes needs another
            module.
        options: as of `gflow.compile`.

    Raises:
        GraphError: the text is no StableHLO, or has ops that gflow does not support; the message names each and its
            location. Or it has dynamic dimensions, and `shapes` is missing or does not fit.
    """
    return compile(read_function(text, shapes), **options)  # type: ignore[no-any-return]


def read_function(text: str, shapes: Sequence[Sequence[int]] | None = None) -> Imported:
    """A StableHLO program as a module that is not compiled.

    Raises:
        GraphError: as `from_stablehlo`.
    """
    # start-up: the compiler is loaded at its first use
    from gflow.compiler.driver.inputs import parse
    from gflow.compiler.engines.form import EngineError, call_of
    from gflow.compiler.engines.stablehlo.read import prepare, read_module
    from gflow.compiler.engines.stablehlo.refine import make_static
    from gflow.dialects.constants import element_bytes, is_splat
    from gflow.dialects.dialect import make_context
    from gflow.dialects.types import type_of

    context = make_context()
    prepare(context)
    diagnostics: list[Any] = []
    root = parse(text, "stablehlo", context, diagnostics)
    if root is None:
        raise GraphError(f"{here()}: " + "\n".join(map(str, diagnostics)))
    try:
        make_static(
            root,
            shapes,
            "the shapes of all its arguments that it is to be called with, gflow.from_stablehlo(text, shapes=[…])",
        )
        module = read_module(root)
    except EngineError as error:
        raise GraphError(f"{here()}: the program {error}") from None
    with context:
        functions = list(module.body.operations)
        if len(functions) != 1:
            raise GraphError(
                f"{here()}: the text must have one public function, it has {len(functions)}"
            )
        block = functions[0].operation.regions[0].blocks[0]
        made = Imported([tuple(type_of(a)) for a in block.arguments])  # type: ignore[misc]
        numbers = {a: n for n, a in enumerate(block.arguments)}
        for view in block.operations:
            op = view.operation
            if op.name == "func.return":
                made._results = [numbers[v] for v in op.operands]
                break
            call, first = call_of(op), len(numbers)
            for ty in (*call.operands, *call.results):
                if ty.dtype in ("ui16", "ui32", "ui64"):
                    raise GraphError(
                        f"{here()}: PyTorch does not compute in {ty.dtype}, which the program's "
                        f"gflow.{call.name} needs; gflow-opt reads it"
                    )
            numbers.update((v, first + n) for n, v in enumerate(op.results))
            if call.name == "constant":
                data = element_bytes(op.attributes["value"], call.type) if call.type.numel else b""
                dtype = TO_TORCH[call.type.dtype]
                if not data:
                    value = torch.empty(call.type.shape, dtype=dtype)
                elif is_splat(op.attributes["value"]):
                    number = torch.frombuffer(bytearray(data), dtype=dtype).item()
                    made._steps.append(_Step(_filled(call.type.shape, number, dtype), (), first, 1))
                    continue
                else:
                    value = torch.frombuffer(bytearray(data), dtype=dtype).reshape(call.type.shape)
                made.register_buffer(f"constant_{first}", value, persistent=False)
                made._constants.append((first, f"constant_{first}"))
                continue
            operands = tuple(numbers[v] for v in op.operands)
            run = OPERATIONS[call.name](call.attrs)
            made._steps.append(_Step(run, operands, first, len(op.results)))
    return made


def _filled(shape: tuple[int, ...], number: Any, dtype: torch.dtype) -> Callable[..., Any]:
    return lambda: (torch.full(shape, number, dtype=dtype),)
