"""The `gflow` dialect in the bindings: its ops in IRDL, written from the op table, with their verifiers and traits."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import Any

from .attributes import forget_attributes
from .mlir import PassManager, ir, load_irdl
from .opdef import OpDef, VerifyError
from .ops import OPS
from .ops.structure import ENGINE_YIELD
from .types import forget_types
from .verify import check, forget_accepted

#: upstream dialects of what the compiler reads and writes; others are loaded where text that is parsed names them
_UPSTREAM = ("builtin", "func")


class _NoMemoryEffect(ir.MemoryEffectsOpInterface):
    """No memory effects, so upstream cse and dce work."""

    @staticmethod
    def get_effects(op: Any, effects: Any) -> None:
        pass


class _AlwaysSpeculatable(ir.ConditionallySpeculatable):
    @staticmethod
    def get_speculatability(op: Any) -> Any:
        return ir.Speculatability.Speculatable


class _Verifier:
    """The trait that verifies one kind of op."""

    def __init__(self, definition: OpDef) -> None:
        self.definition = definition

    def verify_invariants(self, op: Any) -> bool:
        """Called by the bindings."""
        operation = op.operation
        try:
            check(self.definition, operation)
        except VerifyError as error:
            operation.location.emit_error(f"'gflow.{self.definition.name}' op {error}")
            return False
        except Exception as error:  # must not pass through the parser, which calls this
            operation.location.emit_error(
                f"'gflow.{self.definition.name}' op internal error in its verifier: "
                f"{type(error).__name__}: {error}"
            )
            return False
        return True


def _operands(definition: OpDef) -> list[str]:
    """Names of operands, or of groups of them, with IRDL's words for how many each is."""
    if definition.mixed:
        return [f"inputs{i}: variadic" for i in range(definition.groups)]
    found = []
    for name in definition.operands:
        many = (
            "variadic" if name.startswith("*") else "optional" if name.endswith("?") else "single"
        )
        found.append(f"{name.strip('*?')}_: {many}")
    return found


def _results(definition: OpDef) -> list[str]:
    if definition.results is None:
        groups = definition.groups if definition.mixed else 1
        return [f"outputs{i}: variadic" for i in range(groups)]
    return [f"result{i}: single" for i in range(definition.results)]


def _irdl_of(definition: OpDef) -> Iterator[str]:
    yield f"irdl.operation @{definition.name} {{"
    values = 0
    for kind, names, made in (
        ("operands", _operands(definition), "any"),
        ("results", _results(definition), "any"),
        ("regions", [f"region{i}:" for i in range(definition.regions)], "region"),
    ):
        if names:
            # a value of its own for each: equal values would be equal types
            numbers = range(values, values + len(names))
            yield from (f"%{n} = irdl.{made}" for n in numbers)
            yield f"irdl.{kind}({', '.join(f'{name} %{n}' for name, n in zip(names, numbers))})"
            values += len(names)
    yield "}"


@cache
def _irdl() -> str:
    """The dialect's definition."""
    lines = [line for definition in OPS.values() for line in _irdl_of(definition)]
    return "\n".join(["irdl.dialect @gflow {", *lines, "}"])


@cache
def _bytecode() -> bytes:
    """The dialect's definition as bytecode, without locations; a context is to be entered."""
    written = io.BytesIO()
    module = ir.Module.parse(_irdl())
    PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
    module.operation.write_bytecode(written)
    return written.getvalue()


#: gives how many contexts were made before
_made = count()


def _attach_traits(definition: OpDef) -> None:
    name = f"gflow.{definition.name}"
    if definition.pure:
        _NoMemoryEffect.attach(name)
        _AlwaysSpeculatable.attach(name)
    if definition.name in ("yield", ENGINE_YIELD):
        ir.IsTerminatorTrait.attach(name)
    if definition.regions:
        ir.IsIsolatedFromAboveTrait.attach(name)
    ir.DynamicOpTrait.attach(name, _Verifier(definition))


def forget_contexts() -> None:
    """Empty the look-ups of types and attributes, which keep their contexts alive."""
    forget_types()
    forget_attributes()
    forget_accepted()


def make_context() -> ir.Context:
    """A new MLIR context with the dialect and its neighbours loaded; it loads any other upstream dialect on demand."""
    forget_contexts()
    context = ir.Context(load_on_create_dialects=_UPSTREAM)
    with context, ir.Location.unknown():
        # bytecode is read in less time than text, but only the second context gains by its being written
        load_irdl(ir.Module.parse(_bytecode() if next(_made) else _irdl()))
        for definition in OPS.values():
            _attach_traits(definition)
    return context
