"""`lower`: the walk over a trace, and the function around it."""

from __future__ import annotations

import importlib
from typing import Any

from gflow.dialects import marks
from gflow.dialects.dialect import make_context
from gflow.dialects.distribution.mesh import COPIES, MESH, PARTS, Mesh
from gflow.dialects.extents import Symbol, current, size_of_program
from gflow.dialects.mlir import func as func_dialect
from gflow.dialects.mlir import ir
from gflow.dialects.records import record
from gflow.dialects.types import row_major_strides
from gflow.tracing.data.sizes import standing
from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import TraceInput, TraceOp, TraceValue
from gflow.tracing.dispatch.failures.pruning import is_eager_draw
from gflow.tracing.dispatch.failures.refusals import name_if_refusing
from gflow.tracing.program.collectives import is_collective

from .calls import lower_call
from .collectives import copies
from .dtypes import TO_MLIR, LoweringError, Unsupported
from .emitter import Emitter, Value
from .global_view import draw_alike, mark, ranked

# Importing a family registers its rules.
_FAMILIES = (
    "elementwise", "choosing", "reductions", "shape", "scatter", "strided", "creation", "indexing",
    "randomness", "distribution", "foreach", "nn.activations", "nn.contraction", "nn.convolution", "nn.normalization",
    "nn.softmax", "nn.losses", "nn.pooling", "nn.attention", "nn.recurrent",
)  # fmt: skip
for _family in _FAMILIES:
    importlib.import_module(f"{__name__.rpartition('.')[0]}.rules.{_family}")

_NUMBER_TYPES = ("NumberType", "FloatType", "IntType", "BoolType")


def lower(
    trace: Trace,
    which: int = 0,
    target: str = "cpu",
    whole: bool = False,
    halves: bool = False,
    for_onnx: bool = False,
) -> ir.Module:
    """Lower a trace to a module with one function, in a new context.

    Args:
        which: the first or the second stand-ins of the trace's dynamic dimensions.
        target: PyTorch computes some ops in a type that depends on the kind of device: variances in float64 on the
            CPU, in float32 on a GPU.
        whole: for a trace of global tensors, make the program over global values; otherwise that of each rank.
        halves: mixed precision will run products in half precision.
        for_onnx: an engine will read the program as ONNX.

    Raises:
        LoweringError: the trace cannot be lowered.
    """
    if trace.size is not None:
        trace = standing(trace, which)
    with make_context(), ir.Location.unknown(), size_of_program(trace.size):
        module = ir.Module.create()
        types = [_input_type(i) for i in trace.inputs]
        with ir.InsertionPoint(module.body):
            function = func_dialect.FuncOp(trace.symbol, ir.FunctionType.get(types, []))
        block = ir.Block.create_at_start(function.operation.regions[0], types)
        em = Emitter(block, target == "cpu", halves, for_onnx)
        em.trace = trace
        em.mesh.update(trace.axes)
        values: dict[int, Value] = {}
        for argument, given in zip(block.arguments, trace.inputs):
            value = em.wrap(argument, tuple(given.value.shape), TO_MLIR[given.value.dtype])
            value.number = given.value.is_number
            values[given.value.id] = value
            if given.role == "size" and trace.size is not None:
                em.sizes[_size_of(trace, given).name] = value
        ops, em.needed = _live(trace)
        scoped = any(op.scope for op in ops)
        for op in ops:
            if scoped:
                em.mark(op)
            if trace.engines:
                engine = marks.engine_at(trace.engines, op.loc.phase, op.loc.module)
                em.for_onnx = for_onnx or engine not in ("", "xla")
            _lower_op(em, op, values)
        results = [values[o.value.id] for o in trace.outputs]
        unread = _unread_draw(ops, em, values)
        results += unread
        if em.order is not None:
            results.append(em.order)
        func_dialect.ReturnOp([r.ir for r in results], ip=ir.InsertionPoint(block))
        _finish(function, block, trace, em, len(unread))
        if trace.engines:
            listed = [
                ir.StringAttr.get(f"{engine}:{name}") for name, engine in trace.engines.items()
            ]
            function.operation.attributes[marks.ENGINES] = ir.ArrayAttr.get(listed)
        if em.mesh:
            mesh = Mesh(tuple(em.mesh), tuple(em.mesh.values()))
            module.operation.attributes[MESH] = mesh.mlir()
        if trace.mesh is not None:
            mark(module, function, trace)
            if not whole:
                if em.rng is not None:
                    draw_alike(function, trace)
                ranked(module)
    return module


def _input_type(given: TraceInput) -> ir.Type:
    dtype = TO_MLIR.get(given.value.dtype)
    if dtype is None:
        raise LoweringError(
            f"{given.role} {given.name!r} has dtype {given.value.dtype}, which a graph cannot "
            f"take; convert it first (supported: {', '.join(str(d) for d in TO_MLIR)})"
        )
    symbol = current()
    # with the stand-in of a dynamic size
    if min(given.value.shape, default=0) < 0 and symbol is not None:
        text = ", ".join(map(symbol.text, given.value.shape))
        raise LoweringError(
            f"{given.role} {given.name!r} has the shape [{text}] with {symbol}, whose sizes do "
            "not all grow"
        )
    return ir.RankedTensorType.get(list(given.value.shape), ir.Type.parse(dtype))


def _live(trace: Trace) -> tuple[list[TraceOp], set[int]]:
    """The ops that the outputs need or that may raise, in order, and the values that they and the outputs read."""
    needed = {o.value.id for o in trace.outputs}
    kept = []
    for op in reversed(trace.ops):
        refuses = name_if_refusing(op.func) is not None and op not in trace.proven
        always = refuses or is_collective(op) or is_eager_draw(op)
        if always or any(r is not None and r.id in needed for r in op.results):
            kept.append(op)
            _collect(op.args, needed)
            _collect(tuple(op.kwargs.values()), needed)
    kept.reverse()
    return kept, needed


def _unread_draw(ops: list[TraceOp], em: Emitter, values: dict[int, Value]) -> list[Value]:
    """The last draw of eager's random numbers, if nothing reads it: as a result of the function it stays. Earlier ones
    stay as operands of later ones."""
    last = next(filter(is_eager_draw, reversed(ops)), None)
    read = last is None or any(r is not None and r.id in em.needed for r in last.results)
    return [] if last is None or read else [values[r.id] for r in last.results if r is not None]


def _collect(items: Any, ids: set[int]) -> None:
    for item in items:
        if isinstance(item, TraceValue):
            ids.add(item.id)
        elif isinstance(item, list | tuple):
            _collect(item, ids)


def _substitute(item: Any, values: dict[int, Value]) -> Any:
    if isinstance(item, TraceValue):
        return values[item.id]
    if isinstance(item, list | tuple):
        return [_substitute(i, values) for i in item]
    return item


def _as_number(value: Value) -> Value:
    if value.number:
        return value
    return Value(value.em, value.ir, value.shape, value.dtype, True, value.const)


def _arguments(op: TraceOp, values: dict[int, Value]) -> tuple[list[Any], dict[str, Any]]:
    """The call's arguments; values for which the schema has a number are marked as numbers."""
    args = [_substitute(a, values) for a in op.args]
    kwargs = {k: _substitute(v, values) for k, v in op.kwargs.items()}
    schema = None
    for i, a in enumerate(args):
        if isinstance(a, Value) and not a.shape:
            schema = schema or op.func._schema.arguments
            if schema[i].type.kind() in _NUMBER_TYPES:
                args[i] = _as_number(a)
    for k, v in kwargs.items():
        if isinstance(v, Value) and not v.shape:
            spec = next(s for s in op.func._schema.arguments if s.name == k)
            if spec.type.kind() in _NUMBER_TYPES:
                kwargs[k] = _as_number(v)
    return args, kwargs


def _lower_op(em: Emitter, op: TraceOp, values: dict[int, Value]) -> None:
    em.at(op.loc)
    em.current = op
    args, kwargs = _arguments(op, values)
    try:
        results = lower_call(em, op.func, args, kwargs, op.results)
    except (Unsupported, TypeError, LoweringError) as error:
        where = f"{op.loc.file}:{op.loc.line}"
        if str(error).startswith(where):
            raise
        raise LoweringError(f"{where}: cannot compile a call of {op.func}: {error}") from error
    for want, got in zip(op.results, results):
        if want is not None and got is not None:
            values[want.id] = got


def _size_of(trace: Trace, given: TraceInput) -> Symbol:
    """The value of the dynamic dimension that an input holds."""
    assert trace.size is not None
    one, *other = trace.size.each
    return other[0] if other and given.name == other[0].name else one


def _finish(function: Any, block: ir.Block, trace: Trace, em: Emitter, unread: int) -> None:
    """Set types and attributes of arguments and results. unread: how many results nothing reads."""
    arguments = []
    for given in trace.inputs:
        attrs: dict[str, ir.Attribute] = {
            "gflow.role": ir.StringAttr.get(given.role),
            "gflow.name": ir.StringAttr.get(given.name),
        }
        if given.role == "size" and trace.size is not None:
            size, i64 = _size_of(trace, given), ir.IntegerType.get_signless(64)
            for key, number in (
                ("min", size.least),
                ("max", size.most),
                ("stand_in", size.stand_in),
            ):
                attrs[f"gflow.{key}"] = ir.IntegerAttr.get(i64, number)
            if size.forms:
                flat = [x for form in size.forms for x in form]
                attrs["gflow.forms"] = ir.DenseI64ArrayAttr.get(flat)
        shape, strides = tuple(given.value.shape), tuple(given.value.strides)
        if not _same_layout(shape, strides):
            attrs["gflow.strides"] = ir.DenseI64ArrayAttr.get(list(strides))
        if given.value.id in trace.frozen:
            attrs["gflow.frozen"] = ir.BoolAttr.get(True)
        if given.value in trace.copied:
            told = PARTS if given.value in trace.divided else COPIES
            attrs[told] = copies(em, trace, trace.copied[given.value])
        arguments.append(ir.DictAttr.get(attrs))
    if em.rng is not None:
        arguments.append(
            ir.DictAttr.get(
                {"gflow.role": ir.StringAttr.get("rng"), "gflow.name": ir.StringAttr.get("rng")}
            )
        )
    results = []
    i64 = ir.IntegerType.get_signless(64)
    for out in trace.outputs:
        attrs = {"gflow.name": ir.StringAttr.get(out.name)}
        if out.alias is not None:
            attrs["gflow.alias"] = ir.IntegerAttr.get(i64, out.alias)
        results.append(ir.DictAttr.get(attrs))
    results += [ir.DictAttr.get({"gflow.name": ir.StringAttr.get("unread")})] * unread
    if em.order is not None:
        order = ir.StringAttr.get("order")
        results.append(ir.DictAttr.get({"gflow.name": order, "gflow.role": order}))
    terminator = block.operations[-1]
    function.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get(
            [a.type for a in block.arguments], [v.type for v in terminator.operands]
        )
    )
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(arguments)
    function.attributes["res_attrs"] = ir.ArrayAttr.get(results)


def _same_layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether strides are row-major; dimensions of size 1 and empty tensors are ignored."""
    if 0 in shape:
        return True
    dense = row_major_strides(shape)
    return all(s == d or size == 1 for s, d, size in zip(strides, dense, shape))


@record
class Escaped:
    """A call that runs through PyTorch: its overload and its location."""

    overload: str
    location: str


def escaped(module: ir.Module) -> list[Escaped]:
    """All `gflow.aten` calls of a module, with the source locations that the IR holds."""
    found: list[Escaped] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "gflow.aten":
            found.append(Escaped(op.attributes["overload"].value, str(op.location)))
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(visit)
    return found
