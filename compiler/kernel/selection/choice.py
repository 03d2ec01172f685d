"""What is chosen for an op, and how it stands in the IR.

    {kind = "product", tile = array<i64: 128, 256, 64>, warps = 8, stages = 3, split_k = 4, scratch = 12345}

`gflow-select-kernels` writes it as the op's `gflow.kernel`; memory planning and code generation read it. The fields
are declared in `dialects/marks.py`; what stands for nothing special is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from gflow.compiler.targets import Target
from gflow.dialects.attributes import from_mlir, to_mlir
from gflow.dialects.marks import KERNEL, KERNEL_FIELDS, TARGET
from gflow.dialects.mlir import func, ir

from ...ir.errors import CannotLower


@dataclass(frozen=True)
class Choice:
    """A kernel, or the launches, of one op; `KERNEL_FIELDS` says what each field means."""

    kind: str
    scratch: int = 0
    tile: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    warps: int = 0
    stages: int = 0
    parts: int = 1
    loads: str = "pointers"
    persistent: int = 0
    split_k: int = 1
    pieces: int = 1
    copies: tuple[str, ...] = ()

    def check(self, right: bool, what: str) -> None:
        """Refuse a choice that code cannot follow.

        Raises:
            CannotLower: it isn't right.
        """
        if not right:
            raise CannotLower(f"the choice {self.text()} {what}; run gflow-select-kernels again")

    def attribute(self) -> ir.DictAttr:
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return ir.DictAttr.get(
            {
                name: to_mlir(KERNEL_FIELDS[name], value)
                for name, value in found.items()
                if value != _DEFAULTS[name]
            }
        )

    def text(self) -> str:
        given = ((f.name, getattr(self, f.name)) for f in fields(self))
        return ", ".join(f"{name} = {value}" for name, value in given if value != _DEFAULTS[name])


_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(Choice)}


def choice_of(op: ir.Operation) -> Choice:
    """What was chosen for an op.

    Raises:
        CannotLower: nothing was.
        VerifyError: the attribute is malformed.
    """
    if KERNEL not in op.attributes:
        raise CannotLower(f"no kernel is selected for '{op.name}'; run gflow-select-kernels first")
    given = ir.DictAttr(op.attributes[KERNEL])
    values = {entry.name: from_mlir(KERNEL_FIELDS[entry.name], entry.attr) for entry in given}
    return Choice(**values)


def selected_for(function: func.FuncOp) -> str:
    """The target that a function's kernels were selected for; "" before they are."""
    attributes = function.operation.attributes
    return ir.StringAttr(attributes[TARGET]).value if TARGET in attributes else ""


def check_target(function: func.FuncOp, target: Target) -> None:
    """Refuse kernels that were selected for another target.

    Raises:
        CannotLower: they were, or none are.
    """
    found = selected_for(function) or "no target"
    if found != str(target):
        raise CannotLower(
            f"kernels are selected for {found}, not {target}; run gflow-select-kernels{{target={target}}} first"
        )
