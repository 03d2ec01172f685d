"""The reductions of `gflow-reduce`.

A reduction counts the parts of a module that it can remove, and removes some of them. The result need not be valid: the
caller tests it and keeps it only if it is still interesting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from gflow.compiler.ir.fused import narrow_fused
from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.records import record
from gflow.dialects.types import try_tensor_type


@record
class Reduction:
    """A reduction. count: the number of removable parts. apply: remove the parts with these numbers, in place."""

    name: str
    count: Callable[[ir.Operation], int]
    apply: Callable[[ir.Operation, Sequence[int]], None]


def _functions(module: ir.Operation) -> list[func.FuncOp]:
    views = [op.operation.opview for op in module.regions[0].blocks[0].operations]
    found = [v for v in views if isinstance(v, func.FuncOp)]
    return [f for f in found if len(f.regions[0].blocks) == 1]


def _block(function: func.FuncOp) -> ir.Block:
    return function.regions[0].blocks[0]


# -- whole functions


def _erase_functions(module: ir.Operation, numbers: Sequence[int]) -> None:
    ops = list(module.regions[0].blocks[0].operations)
    for n in reversed(numbers):
        ops[n].operation.erase()


# -- ops of functions; their used results become arguments


def _body_ops(module: ir.Operation) -> list[tuple[func.FuncOp, ir.Operation]]:
    return [(f, op.operation) for f in _functions(module) for op in list(_block(f).operations)[:-1]]


def _erase_ops(module: ir.Operation, numbers: Sequence[int]) -> None:
    ops = _body_ops(module)
    gone = [ops[n] for n in numbers]
    erased = {op for _, op in gone}
    touched: dict[func.FuncOp, None] = {}
    for function, op in gone:
        for result in op.results:
            if any(use.owner.operation not in erased for use in result.uses):
                argument = _block(function).add_argument(result.type, ir.Location.unknown())
                result.replace_all_uses_with(argument)
        touched[function] = None
    for _, op in reversed(gone):
        op.erase()
    for function in touched:
        _retype(function)


def _retype(function: func.FuncOp) -> None:
    """Set a function's type from its block's arguments and its return."""
    block = _block(function)
    inputs = [a.type for a in block.arguments]
    results = [v.type for v in block.operations[-1].operation.operands]
    attributes = function.operation.attributes
    attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))
    for name, count in (("arg_attrs", len(inputs)), ("res_attrs", len(results))):
        if name in attributes:
            have = list(ir.ArrayAttr(attributes[name]))[:count]
            have += [ir.DictAttr.get({})] * (count - len(have))
            attributes[name] = ir.ArrayAttr.get(have)


# -- operands that become an argument of the same type, so that their producers can be removed


def _operands(module: ir.Operation) -> list[tuple[ir.Operation, int, ir.Value]]:
    """Each operand that is not an argument, with an argument that can replace it."""
    found = []
    for function, op in [
        (f, o.operation) for f in _functions(module) for o in _block(f).operations
    ]:
        by_type: dict[ir.Type, ir.Value] = {}
        for argument in _block(function).arguments:
            by_type.setdefault(argument.type, argument)
        for i, value in enumerate(op.operands):
            if not isinstance(value.owner, ir.Block) and value.type in by_type:
                found.append((op, i, by_type[value.type]))
    return found


def _replace_operands(module: ir.Operation, numbers: Sequence[int]) -> None:
    operands = _operands(module)
    for n in numbers:
        op, i, value = operands[n]
        op.operands[i] = value


# -- results and arguments of functions


def _results(module: ir.Operation) -> list[tuple[func.FuncOp, int]]:
    return [
        (f, i)
        for f in _functions(module)
        for i in range(len(_block(f).operations[-1].operation.operands))
    ]


def _by_function(
    entries: Sequence[tuple[func.FuncOp, int]], numbers: Sequence[int]
) -> Iterable[tuple[func.FuncOp, set[int]]]:
    """The selected entries, grouped by function."""
    found: dict[func.FuncOp, set[int]] = {}
    for n in numbers:
        found.setdefault(entries[n][0], set()).add(entries[n][1])
    return found.items()


def _drop_results(module: ir.Operation, numbers: Sequence[int]) -> None:
    for function, which in _by_function(_results(module), numbers):
        last = _block(function).operations[-1].operation
        kept = [i for i in range(len(last.operands)) if i not in which]
        _keep_entries(function, "res_attrs", kept)
        with ir.InsertionPoint(last), last.location:
            ir.Operation.create("func.return", operands=[last.operands[i] for i in kept])
        last.erase()
        _retype(function)


def _keep_entries(function: func.FuncOp, name: str, kept: Sequence[int]) -> None:
    attributes = function.operation.attributes
    if name in attributes:
        entries = list(ir.ArrayAttr(attributes[name]))
        attributes[name] = ir.ArrayAttr.get([entries[i] for i in kept])


def _arguments(module: ir.Operation) -> list[tuple[func.FuncOp, int]]:
    """The arguments without uses."""
    return [
        (f, i)
        for f in _functions(module)
        for i, a in enumerate(_block(f).arguments)
        if next(iter(a.uses), None) is None
    ]


def _drop_arguments(module: ir.Operation, numbers: Sequence[int]) -> None:
    for function, which in _by_function(_arguments(module), numbers):
        block = _block(function)
        kept = [i for i in range(len(block.arguments)) if i not in which]
        _keep_entries(function, "arg_attrs", kept)
        _renumber_aliases(function, {old: new for new, old in enumerate(kept)})
        for i in sorted(which, reverse=True):
            block.erase_argument(i)
        _retype(function)


def _renumber_aliases(function: func.FuncOp, number: dict[int, int]) -> None:
    attributes = function.operation.attributes
    if "res_attrs" not in attributes:
        return
    entries = []
    for entry in ir.ArrayAttr(attributes["res_attrs"]):
        named = {a.name: a.attr for a in ir.DictAttr(entry)}
        alias = named.get("gflow.alias")
        if isinstance(alias, ir.IntegerAttr):
            if alias.value in number:
                named["gflow.alias"] = ir.IntegerAttr.get(alias.type, number[alias.value])
            else:
                del named["gflow.alias"]
        entries.append(ir.DictAttr.get(named))
    attributes["res_attrs"] = ir.ArrayAttr.get(entries)


# -- regions: inner ops become constants, operands that a region does not read are removed


def _inner_ops(module: ir.Operation) -> list[tuple[ir.Operation, ir.Value | None]]:
    """Each op of a `gflow.fused` region, and a value of its type that stands before it, if any."""
    found = []
    for _, outer in _body_ops(module):
        if outer.name != "gflow.fused":
            continue
        for block in outer.regions[0].blocks:
            by_type: dict[ir.Type, ir.Value] = {a.type: a for a in reversed(block.arguments)}
            for view in list(block.operations)[:-1]:
                op = view.operation
                if len(op.results) == 1:
                    ty = op.results[0].type
                    found.append((op, by_type.get(ty)))
                    by_type.setdefault(ty, op.results[0])
    return found


def _replace_inner(module: ir.Operation, numbers: Sequence[int]) -> None:
    inner = _inner_ops(module)
    for n in numbers:
        op, value = inner[n]
        ty = try_tensor_type(op.results[0].type)
        if value is None and (ty is None or op.name == "gflow.constant"):
            continue
        if value is None and ty is not None:
            with ir.InsertionPoint(op), op.location:
                value = builder.splat(0, ty)
        op.results[0].replace_all_uses_with(value)
    for n in reversed(numbers):
        op, _ = inner[n]
        if next(iter(op.results[0].uses), None) is None:
            op.erase()


def _fused(module: ir.Operation) -> list[ir.Operation]:
    return [op for _, op in _body_ops(module) if op.name == "gflow.fused"]


def _narrow_fused(module: ir.Operation, numbers: Sequence[int]) -> None:
    """Rebuild kernels without operands that their regions do not read and without unused results."""
    kernels = _fused(module)
    for n in reversed(numbers):
        narrow_fused(kernels[n])


# -- attributes


def _attributes(module: ir.Operation) -> list[tuple[ir.Operation, str]]:
    ops: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        ops.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    required = ("function_type", "sym_name", "operandSegmentSizes", "resultSegmentSizes", "value")
    return [(op, name) for op in ops for name in op.attributes if name not in required]


def _drop_attributes(module: ir.Operation, numbers: Sequence[int]) -> None:
    attributes = _attributes(module)
    for n in numbers:
        op, name = attributes[n]
        del op.attributes[name]


#: in the order of a round: reductions that remove most come first
REDUCTIONS = (
    Reduction(
        "functions", lambda m: len(list(m.regions[0].blocks[0].operations)), _erase_functions
    ),
    Reduction("ops", lambda m: len(_body_ops(m)), _erase_ops),
    Reduction("results", lambda m: len(_results(m)), _drop_results),
    Reduction("operands", lambda m: len(_operands(m)), _replace_operands),
    Reduction("ops of regions", lambda m: len(_inner_ops(m)), _replace_inner),
    Reduction("operands of regions", lambda m: len(_fused(m)), _narrow_fused),
    Reduction("arguments", lambda m: len(_arguments(m)), _drop_arguments),
    Reduction("attributes", lambda m: len(_attributes(m)), _drop_attributes),
)


# -- text


def smaller_sizes(text: str) -> list[str]:
    """Variants of the text: for each size and a few smaller sizes, one in which the smaller replaces it everywhere."""
    sizes = sorted({int(s) for s in re.findall(r"(?<=[<x])\d+(?=x)", text)}, reverse=True)
    made = []
    for size in sizes:
        for new in (1, 2, 4):
            if new < size:
                made.append(_resized(text, size, new))
    return made


def _resized(text: str, size: int, new: int) -> str:
    text = re.sub(rf"(?<=[<x]){size}(?=x)", str(new), text)
    return re.sub(
        r"array<i64: [^>]*>", lambda m: re.sub(rf"(?<= ){size}\b", str(new), m.group()), text
    )
