"""The `gflow` dialect, made from the op table over the bindings' `ext` module (IRDL)."""

from __future__ import annotations

import io
import types
from collections.abc import Sequence
from typing import Any

from .attributes import forget_attributes
from .mlir import ext, ir
from .opdef import OpDef, VerifyError
from .ops import OPS
from .ops.structure import ENGINE_YIELD
from .types import forget_types
from .verify import check


class Gflow(ext.Dialect, name="gflow"):  # type: ignore[call-arg]
    """The dialect class that the bindings know."""

    _bytecode: bytes | None = None
    """The dialect's definition in IRDL, once the first context has made it: parsing it takes a third of the time."""

    @classmethod
    def _emit_module(cls) -> ir.Module:
        with ir.Location.unknown():
            if cls._bytecode is not None:
                return ir.Module.parse(cls._bytecode)
            module = super()._emit_module()
        written = io.BytesIO()
        module.operation.write_bytecode(written)
        cls._bytecode = written.getvalue()
        return module


class _Effects:
    """No memory effects, so upstream cse and dce work."""

    class NoMemoryEffect(ir.MemoryEffectsOpInterface):
        @staticmethod
        def get_effects(op: Any, effects: Any) -> None:
            pass

    class AlwaysSpeculatable(ir.ConditionallySpeculatable):
        @staticmethod
        def get_speculatability(op: Any) -> Any:
            return ir.Speculatability.Speculatable

    @staticmethod
    def attach(op_name: str) -> None:
        _Effects.NoMemoryEffect.attach(op_name)
        _Effects.AlwaysSpeculatable.attach(op_name)


class _Isolated:
    @staticmethod
    def attach(op_name: str) -> None:
        ir.IsIsolatedFromAboveTrait.attach(op_name)


class _Terminator:
    @staticmethod
    def attach(op_name: str) -> None:
        ir.IsTerminatorTrait.attach(op_name)


def _verifier(definition: OpDef) -> Any:
    def verify_invariants(op: Any) -> bool:
        operation = op.operation
        try:
            check(definition, operation)
        except VerifyError as error:
            operation.location.emit_error(f"'gflow.{definition.name}' op {error}")
            return False
        except Exception as error:  # must not pass through the parser, which calls this
            operation.location.emit_error(
                f"'gflow.{definition.name}' op internal error in its verifier: "
                f"{type(error).__name__}: {error}"
            )
            return False
        return True

    return staticmethod(verify_invariants)


def _make_class(definition: OpDef) -> type:
    annotations: dict[str, Any] = {}
    groups = definition.groups if definition.mixed else 1
    if definition.mixed:
        for i in range(groups):
            annotations[f"inputs{i}"] = Sequence[ext.Operand[Any]]
    for name in () if definition.mixed else definition.operands:
        if name.startswith("*"):
            annotations[name[1:]] = Sequence[ext.Operand[Any]]
        elif name.endswith("?"):
            annotations[name[:-1]] = ext.Operand[Any] | None
        else:
            annotations[f"{name}_"] = ext.Operand[Any]
    if definition.results is None:
        for i in range(groups):
            annotations[f"outputs{i}"] = Sequence[ext.Result[Any]]
    else:
        for i in range(definition.results):
            annotations[f"result{i}"] = ext.Result[Any]
    for i in range(definition.regions):
        annotations[f"region{i}"] = ext.Region
    traits: list[Any] = [_Effects] if definition.pure else []
    if definition.name in ("yield", ENGINE_YIELD):
        traits.append(_Terminator)
    if definition.regions:
        traits.append(_Isolated)
    body = {
        "__annotations__": annotations,
        "verify_invariants": _verifier(definition),
        "__doc__": definition.summary,
    }
    class_name = "".join(part.capitalize() for part in definition.name.split("_")) + "Op"
    return types.new_class(
        class_name,
        (Gflow.Operation,),
        {"name": definition.name, "traits": traits},
        lambda ns: ns.update(body),
    )


OP_CLASSES: dict[str, type] = {name: _make_class(definition) for name, definition in OPS.items()}


def make_context() -> ir.Context:
    """A new MLIR context with the dialect (and all upstream ones) loaded."""
    forget_types()
    forget_attributes()
    context = ir.Context()
    with context:
        Gflow.load()
    return context
