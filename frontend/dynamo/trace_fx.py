"""Converts an FX graph of functional ATen ops, the output of AOTAutograd, to a `Trace`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gflow.dialects.extents import STAND_INS, N, Symbol
from gflow.dialects.records import record
from gflow.dialects.types import share_memory
from gflow.tracing.data.sizes import Fixed
from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import (
    SourceLoc,
    TraceInput,
    TraceOp,
    TraceOutput,
    TraceValue,
    values_in,
)
from gflow.tracing.dispatch.eager_random import depends_on_layouts
from gflow.tracing.dispatch.failures.checks import CHECKS, QUANTIZING
from gflow.tracing.dispatch.symbols.held_numbers import NUMBERS, number_problem
from gflow.tracing.dispatch.symbols.number_nodes import Number, number_of
from gflow.tracing.dispatch.symbols.numbers import wrap
from gflow.tracing.dispatch.symbols.size_expressions import Formulas

from .scalars import TAKERS, Counted, check_held, check_taken, counted

aten = torch.ops.aten
_SAME_VALUE = (aten.detach.default, aten.alias.default, aten.lift_fresh.default)
_COPY = (aten.lift_fresh_copy.default,)
#: ops whose offset counts from the beginning of the tensor's storage
_FROM_START = (
    aten.as_strided.default,
    aten.as_strided_copy.default,
    aten.as_strided_scatter.default,
)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_ROOT = re.compile(r"^L\['(?P<name>\w+)'\]\.?")
#: how AOTAutograd's descriptions of the values that a forward saves begin
_SAVED = "SavedForBackwards"
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
#: exclusive upper bound of dimensions of the IR, including stand-ins
_LARGE = 1 << 62
#: from here on, an integer may be a stand-in for a dynamic dimension
_STANDS = STAND_INS[0] // 2
#: ops whose numbers are sizes of their result
_RANGES = ("aten::arange", "prims::iota")
_NUMBERS = ("NumberType", "FloatType")


class Untraceable(Exception):
    """The graph has something that a program cannot have; the message names it."""


@dataclass
class FxTrace:
    """A trace, and how the graph's results are made from it.

    Args:
        trace: the trace.
        arguments: for each placeholder, its index among the trace's inputs; None for one that is not a tensor.
        results: for each output of the graph an `ArgumentOutput`, `ArgumentView`, `ResultOutput`, `ResultView` or
            `NumberOutput`, or a plain value; integers may depend on the trace's dynamic dimension.
        sizes: the indices of the inputs that hold the trace's dynamic dimension, or both.
        numbers: inputs that are computed from integers among the graph's arguments.
        saved: results of the trace that only the backward reads.
    """

    trace: Trace
    arguments: list[int | None]
    results: list[Any] = field(default_factory=list)
    sizes: tuple[int, ...] = ()
    numbers: dict[int, Counted] = field(default_factory=dict)
    saved: frozenset[int] = frozenset()


@record
class Reading:
    """How a tensor's elements are read from its memory: their type, and whether they are conjugated or negated."""

    dtype: torch.dtype
    conjugated: bool
    negated: bool


@record
class ArgumentOutput:
    """An output that is placeholder number `index` itself."""

    index: int


@record
class ResultOutput:
    """An output that is result number `index` of the trace, with its dimensions permuted by `order`, or copied to
    memory with `gaps`, if given. gaps: strides."""

    index: int
    order: tuple[int, ...] | None = None
    gaps: tuple[int, ...] | None = None


@record
class ResultView:
    """An output that is a view of the storage of result number `index` of the trace.

    Args:
        offset: in elements of the view.
        reading: how the view reads the memory; None if as the result does.
    """

    index: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    reading: Reading | None = None


@record
class ArgumentView:
    """An output that is a view of placeholder number `index`. AOTAutograd recreates the user's view of an argument
    from the strides and the offset of this output. offset: in elements, from the beginning of the placeholder."""

    index: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@record
class NumberOutput:
    """An output that is a number computed from the dynamic dimensions of a call."""

    formula: Callable[[N], Any]


def trace_fx(
    module: torch.fx.GraphModule,
    name: str,
    phase: str,
    views: bool = False,
    formulas: Formulas | None = None,
    numbers: Mapping[Any, int] | None = None,
) -> FxTrace:
    """Convert a graph of ATen calls to a trace.

    Args:
        module: the graph, of TorchDynamo or AOTAutograd.
        name: the name of the trace.
        phase: the phase of its ops, "forward" or "backward".
        views: whether outputs that share memory must still share it, so that an update of one in place changes the
            others.
        formulas: the symbolic sizes, in terms of the program's dynamic dimensions.
        numbers: symbols that are inputs but not sizes, with the indices of their arguments.

    Raises:
        Untraceable: the graph has nested graphs, tensors or calls that no program can have.
        Fixed: a symbolic size cannot be dynamic.
        Narrower: it can be dynamic in a part of its range.
    """
    formulas = formulas or Formulas(None, None, {})
    return _Converter(module, name, phase, views, formulas, numbers or {}).run()


class _Converter:
    def __init__(
        self,
        module: torch.fx.GraphModule,
        name: str,
        phase: str,
        views: bool,
        formulas: Formulas,
        numbers: Mapping[Any, int],
    ) -> None:
        self.numbers, self.counted = numbers, dict[Any, TraceValue]()
        self.module, self.phase, self.views = module, phase, views
        self.formulas, self.guards = formulas, list[Any]()
        self.size: list[Any] = []
        self.takes = False  # the current op reads a number of the call
        self.now: torch.fx.Node | None = None
        self.bases: dict[torch.fx.Node, torch.fx.Node] = {}
        self.trace = Trace(name)
        self.values: dict[torch.fx.Node, Any] = {}
        self.updates: dict[int, TraceValue] = {}
        self.placeholders: dict[torch.fx.Node, int] = {}
        self.given: dict[torch.fx.Node, ResultOutput] = {}
        self.found = FxTrace(self.trace, [])
        self.count = 0

    def run(self) -> FxTrace:
        if self.formulas.domain is not None:
            self._add_sizes(self.formulas.symbol)
        for node in self.module.graph.nodes:
            self.now = node
            try:
                getattr(self, f"_{node.op}")(node)
            except (Fixed, Untraceable) as error:
                raise type(error)(f"{error} ({_place(node, self.phase)})") from error
        for index, value in self.updates.items():
            entry = self.trace.inputs[index]
            self.trace.outputs.append(TraceOutput(value, index, entry.name))
        return self.found

    def _add_sizes(self, symbol: Symbol) -> None:
        self.trace.size = symbol
        for own in (symbol, symbol.second):
            if own is None:
                continue
            self.found.sizes += (len(self.trace.inputs),)
            tensor = torch.tensor(own.most, device="cpu")
            self.count += 1
            value = TraceValue(self.count, (), torch.int64, (), tensor.device, is_number=True)
            self.trace.inputs.append(TraceInput(value, "size", own.name, tensor))
            self.size.append(wrap(Number(self, value, own.most, None)))

    def _number(self, expr: Any, floating: bool) -> TraceValue:
        """The input for a number of the call, created at its first use."""
        known = self.counted.get(expr)
        if known is None:
            dtype = torch.float64 if floating else torch.int64
            self.count += 1
            known = TraceValue(self.count, (), dtype, (), torch.device("cpu"), is_number=True)
            self.counted[expr] = known
            self.found.numbers[len(self.trace.inputs)] = counted(expr, self.numbers)
            tensor = torch.ones((), dtype=dtype, device="cpu")
            self.trace.inputs.append(TraceInput(known, "scalar", str(expr), tensor))
        return known

    def _follows_numbers(self, value: Any) -> bool:
        """Whether a symbolic number depends on numbers of the call that are inputs."""
        return isinstance(value, _SYMBOLIC) and not value.node.expr.free_symbols.isdisjoint(
            self.numbers
        )

    def record_number(
        self, func: Any, args: tuple[Any, ...], dtype: torch.dtype, words: Any = None
    ) -> TraceValue:
        """Record a 0-d op on numbers that are computed from sizes."""
        assert self.now is not None
        self.count += 1
        value = TraceValue(self.count, (), dtype, (), torch.device("cpu"), is_number=True)
        loc = location(self.now.meta, self.phase)
        self.trace.ops.append(TraceOp(func, args, words or {}, [value], loc))
        return value

    def _sizes(self, sizes: Sequence[Any]) -> tuple[int, ...]:
        found = tuple([s if type(s) is int else self.formulas.concrete(s) for s in sizes])
        symbol = self.trace.size
        for size in found:
            if abs(size) >= _LARGE:
                raise Fixed(str(size))
            if symbol is not None and type(size) is int and size >= _STANDS:
                raise Fixed(f"{size}, which a size could be taken for")
        return found

    def _value(self, like: torch.Tensor, strides: Sequence[int] | None = None) -> TraceValue:
        if (
            type(like) is not FakeTensor
            and type(like) is not torch.Tensor
            and not isinstance(like, torch.nn.Parameter)
        ):
            raise Untraceable(f"a tensor of type {type(like).__name__}")
        if like.layout != torch.strided:
            raise Untraceable(f"a {like.layout} tensor")
        if like.device.type == "meta":
            raise Untraceable("a tensor on the device meta")
        shape = self._sizes(like.shape)
        self.count += 1
        strides = self._sizes(like.stride() if strides is None else strides)
        if self.formulas.second is not None and math.prod(shape) >= _LARGE:
            raise Fixed(f"{math.prod(shape)} elements")  # with the stand-ins as sizes
        return TraceValue(self.count, shape, like.dtype, strides, like.device)

    def _input(self, like: torch.Tensor, role: str, name: str, tensor: Any) -> int:
        shape, own = self._sizes(like.shape), self._sizes(like.stride())
        # computed from the symbolic sizes: products of the results of `_sizes` would be plain integers
        strides = None if tensor is not None or _is_dense(shape, own) else _row_major(like.shape)
        entry = TraceInput(self._value(like, strides), role, name, tensor)
        self.trace.inputs.append(entry)
        return len(self.trace.inputs) - 1

    # one method for each kind of node

    def _placeholder(self, node: torch.fx.Node) -> None:
        like = node.meta.get("val")
        self.placeholders[node] = len(self.found.arguments)
        if not isinstance(like, torch.Tensor):
            if not isinstance(like, (int, float, bool, str, type(None), *_SYMBOLIC)):
                raise Untraceable(f"an argument of type {type(like).__name__}")
            self.values[node] = like
            self.found.arguments.append(None)
            return
        index = self._input(like, "input", node.name, None)
        self.values[node] = self.trace.inputs[index].value
        self.found.arguments.append(index)

    def _get_attr(self, node: torch.fx.Node) -> None:
        found = operator.attrgetter(str(node.target))(self.module)
        if isinstance(found, torch.Tensor):
            if isinstance(found, FakeTensor):
                raise Untraceable(f"a constant without a value ({node.target})")
            index = self._input(found, "constant", str(node.target), found)
            found = self.trace.inputs[index].value
        elif isinstance(found, torch.nn.Module):
            raise Untraceable("a nested graph (control flow or a higher-order op)")
        self.values[node] = found

    def _call_function(self, node: torch.fx.Node) -> None:
        target: Any = node.target
        if target is operator.getitem:
            source, index = node.args
            self.values[node] = self.values[source][index]  # type: ignore[index]
            return
        result = node.meta.get("val")
        if isinstance(result, _SYMBOLIC):
            self.values[node] = result
            return
        if not isinstance(target, torch._ops.OpOverload):
            raise Untraceable(f"a call of {getattr(target, '__name__', target)}")
        schema = target._schema
        kinds = {a.name: a.type.kind() for a in schema.arguments}
        if schema.name in _RANGES:
            kinds = dict.fromkeys(kinds, "")
        given = zip(node.args, schema.arguments)
        self.takes = False
        args = tuple([self._resolve(a, kinds[s.name]) for a, s in given])
        if target in _SAME_VALUE or target in _COPY:
            self.values[node] = args[0]
            return
        if target is aten.copy_.default and node.args[0] in self.placeholders:
            self._update(node, args)
            return
        if target in QUANTIZING:
            raise Untraceable(f"{target}, which gives a quantized tensor")
        if target._schema.is_mutable:
            raise Untraceable(f"{target}, which writes into its argument")
        if target is aten.pow.Tensor_Scalar and type(node.args[1]) is bool:
            raise Untraceable(
                f"{target} by a bool, which is a bool where the base is one, and an int64 by the rule that PyTorch "
                "traces by; write the exponent as an integer"
            )
        if target in _FROM_START and self._counts_in_argument(node):
            raise Untraceable(
                f"{target} with a storage_offset, which counts from where the memory begins that an argument lies in"
            )
        kwargs = {k: self._resolve(v, kinds[k]) for k, v in node.kwargs.items()}
        if depends_on_layouts(target) and not all(map(_is_row_major, values_in(args))):
            raise Untraceable(
                f"{target} of a tensor that is not contiguous, which draws numbers in another order"
            )
        if self.takes:
            check_taken(target, args, kwargs)
        self._check_numbers(node, args, kwargs)
        parts = self._parts(result)
        self.values[node] = parts
        op = TraceOp(target, args, kwargs, list(_flat(parts)), location(node.meta, self.phase))
        self.trace.ops.append(op)

    def _check_numbers(
        self, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Check the operands of an op.

        Raises:
            Fixed: a number that depends on a size is combined with tensors of a dtype that does not represent all its
                values.
            Untraceable: a constant number is not representable in that dtype, or PyTorch's kernel refuses the
                operands.
        """
        target: Any = node.target
        refused = CHECKS.get(target)
        values = torch.fx.map_arg(node.args, lambda n: n.meta.get("val"))
        if refused is not None and (reason := refused(values)) is not None:
            raise Untraceable(f"{target}, which {reason}")  # PyTorch's kernel then raises it
        if target not in NUMBERS:
            return
        if any(isinstance(a, TraceValue) and a.is_number for a in (*args, *kwargs.values())):
            check_held(target, args, kwargs)
        tensors = tuple(
            [n.meta["val"] if isinstance(n, torch.fx.Node) and isinstance(a, TraceValue) else a
             for n, a in zip(node.args, args)]
        )  # fmt: skip
        problem = number_problem(target, tensors, kwargs)
        if problem is not None:
            raise Untraceable(f"{target}, which {problem}")

    def _counts_in_argument(self, node: torch.fx.Node) -> bool:
        """Whether a node is an `as_strided` (or a copy or scatter of this kind) with an offset, in the storage of an
        argument. The argument's offset in its storage differs between calls, and no guard depends on it."""
        words = dict(zip((a.name for a in node.target._schema.arguments), node.args)) | node.kwargs  # type: ignore[union-attr]
        if words.get("storage_offset") is None:
            return False
        place = _storage(words["self"])  # type: ignore[arg-type]
        return any(_storage(p) == place for p in self.placeholders if "val" in p.meta)

    def _update(self, node: torch.fx.Node, args: tuple[Any, ...]) -> None:
        """Record that a placeholder gets a new value at the end of the graph.

        Raises:
            Untraceable: the new value has another shape or dtype.
        """
        target: Any = node.args[0]
        index = self.found.arguments[self.placeholders[target]]
        old, new = args[0], args[1]
        assert index is not None
        if (new.shape, new.dtype) != (old.shape, old.dtype):
            raise Untraceable("an update of an input by a tensor of another shape or type")
        self.updates[index] = self.values[node] = new

    def _output(self, node: torch.fx.Node) -> None:
        outputs: Any = node.args[0]
        single = not isinstance(outputs, (list, tuple))
        if single:
            raise Untraceable("a graph whose output is no tuple")
        kinds = saved_ones(node)
        self._find_bases(outputs, [o for o, saved in zip(outputs, kinds) if not saved])
        self.found.results = [self._result(out) for out in outputs]
        places = [
            (o.index, saved)
            for o, saved in zip(self.found.results, kinds)
            if isinstance(o, (ResultOutput, ResultView))
        ]
        self.found.saved = frozenset(
            {i for i, _ in places} - {i for i, saved in places if not saved}
        )

    def _find_bases(self, outputs: Sequence[Any], returned: Sequence[Any]) -> None:
        """Find, for outputs that share storage with each other or with the new value of an argument, the node that
        fills the storage.

        AOTAutograd recreates the user's views from the strides and offsets of these outputs, where they require a
        gradient. It leaves the others to the compiler.

        Args:
            returned: those of the outputs that the caller of the graph gets.

        Raises:
            Untraceable: there is no such node for results that must share memory, or for a view of an updated
                argument, and sizes are symbolic.
        """
        groups = self._by_storage(outputs)
        new = {id(value) for value in self.updates.values()}
        updated = {_storage(node) for node, value in self.values.items() if id(value) in new}
        together = {k for k, g in self._by_storage(returned).items() if self.views and len(g) > 1}
        shared = {
            k: g
            for k, g in groups.items()
            if k in together
            or (
                (len(g) > 1 or k in updated)
                and not all(id(self.values[o]) in new or self._fills_its_storage(o) for o in g)
            )
        }
        if not shared:
            return
        own = together - {_storage(node) for node in self.placeholders if "val" in node.meta}
        # a result that requires a gradient comes before those that are detached from it, and may be no view of them
        given = [*filter(set(returned).__contains__, self.values)]
        for node in [*given, *self.values]:
            group = shared.get(_storage(node)) if "val" in node.meta else None
            if not group or node in self.placeholders:
                continue
            if _storage(node) in own:
                if self._is_whole(node):
                    del shared[_storage(node)]
                    self.bases |= dict.fromkeys(group, node)
            elif self._fills_its_storage(node):
                del shared[_storage(node)]
                self.bases |= {o: node for o in group if _reading(o) == _reading(node)}
        if not own.isdisjoint(shared):
            raise Untraceable("results that are views of one tensor with gaps")
        symbolic = self.formulas.domain is not None or self.formulas.others
        # with static sizes AOTAutograd repeats the calls that made the view; otherwise it uses the result's offset
        if symbolic and any(
            id(self.values[o]) not in new for key in shared if key in updated for o in shared[key]
        ):
            raise Untraceable(
                "a view of an updated argument that is not row-major, with symbolic sizes"
            )

    def _by_storage(self, outputs: Sequence[Any]) -> dict[int, list[torch.fx.Node]]:
        """The outputs that are tensors and no arguments, by their storages."""
        found: dict[int, list[torch.fx.Node]] = {}
        for out in dict.fromkeys(o for o in outputs if isinstance(o, torch.fx.Node)):
            if isinstance(self.values[out], TraceValue) and out not in self.placeholders:
                found.setdefault(_storage(out), []).append(out)
        return found

    def _result(self, out: Any) -> Any:
        if not isinstance(out, torch.fx.Node):
            return out
        value = self.values[out]
        if self._follows_numbers(value):
            return counted(value.node.expr, self.numbers)
        if isinstance(value, torch.SymInt):
            return self.formulas.concrete(value)
        if isinstance(value, _SYMBOLIC):
            return NumberOutput(partial(self.formulas.value, value.node.expr))
        if not isinstance(value, TraceValue):
            return value
        if out in self.placeholders:
            return ArgumentOutput(self.placeholders[out])
        viewed = self._viewed(out, value)
        if viewed is not None:
            return viewed
        base = self.bases.get(out, out)
        known = self.given.get(base)
        if known is None:
            known = self.given[base] = self._give(self.values[base], base)
        if base is out:
            return known
        like = out.meta["val"]
        (offset,) = self._sizes([like.storage_offset()])
        reading = None if _reading(out) == _reading(base) else _reading(out)
        return ResultView(known.index, value.shape, self._strides_of(out), offset, reading)

    def _viewed(self, out: torch.fx.Node, value: TraceValue) -> ArgumentView | None:
        """An output as a view of an argument that is not updated; None if it is none."""
        like = out.meta["val"]
        same = [p for p in self.placeholders if "val" in p.meta and _storage(p) == _storage(out)]
        if not same or like.is_conj() or like.is_neg():
            return None
        numbers = [self.found.arguments[self.placeholders[p]] for p in same]
        viewed = self._viewed_argument(out) or same[0]
        first = viewed.meta["val"]
        if first.dtype != like.dtype or any(n in self.updates for n in numbers):
            return None
        (offset,) = self._sizes([like.storage_offset() - first.storage_offset()])
        return ArgumentView(self.placeholders[viewed], value.shape, self._strides_of(out), offset)

    def _viewed_argument(self, out: torch.fx.Node) -> torch.fx.Node | None:
        """The argument that an output is a view of. AOTAutograd repeats the view, and the gradient of what lies outside
        of another argument in the same storage would be lost."""
        node: torch.fx.Node | None = out
        while node is not None and node not in self.placeholders:
            inputs = [
                n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)
            ]
            node = next((n for n in inputs if _storage(n) == _storage(out)), None)
        return node

    def _strides_of(self, node: torch.fx.Node) -> tuple[int, ...]:
        return self._sizes(node.meta["val"].stride())

    def _fills_its_storage(self, node: torch.fx.Node) -> bool:
        """Whether a node's tensor is row-major (strides of dimensions of 1 are ignored) and covers its whole
        storage."""
        like = node.meta["val"]
        shape = self._sizes(like.shape)
        offset, nbytes = self._sizes([like.storage_offset(), like.untyped_storage().nbytes()])
        strides = zip(shape, self._strides_of(node), _row_major(shape), strict=True)
        return (
            offset == 0
            and all(n == 1 or stride == dense for n, stride, dense in strides)
            and nbytes == math.prod(shape) * like.element_size()
        )

    def _is_whole(self, node: torch.fx.Node) -> bool:
        """Whether a node's tensor is dense in any order of dimensions, and its elements are all of its storage."""
        value, like = self.values[node], node.meta["val"]
        if not isinstance(value, TraceValue) or like.is_conj() or like.is_neg():
            return False
        offset, nbytes = self._sizes([like.storage_offset(), like.untyped_storage().nbytes()])
        return (
            offset == 0
            and nbytes == math.prod(value.shape) * like.element_size()
            and _is_dense(value.shape, self._strides_of(node))
        )

    def _give(self, value: TraceValue, node: torch.fx.Node) -> ResultOutput:
        """Add a result to the trace. Results are row-major: of a result with another dense layout, the dimensions are
        returned in the order of memory, and the caller permutes them back."""
        strides = self._strides_of(node)
        order = _memory_order(value.shape, strides)
        outputs = self.trace.outputs
        gaps = strides if self._has_gaps(node) else None
        if order is not None:
            like = node.meta["val"].permute(order)
            permuted = self._value(like)
            loc = location(node.meta, self.phase)
            args = (value, list(order))
            self.trace.ops.append(TraceOp(aten.permute.default, args, {}, [permuted], loc))
            value = permuted
            order = tuple(order.index(d) for d in range(len(order)))
        outputs.append(TraceOutput(value, None, f"output.{len(outputs)}"))
        return ResultOutput(len(outputs) - 1, order, gaps)

    def _has_gaps(self, node: torch.fx.Node) -> bool:
        """Whether a node's tensor has memory of its own with gaps between elements (`empty_strided`), which its caller
        may look at. A part of a larger tensor is returned without the rest."""
        like = node.meta["val"]
        shape, strides = self._sizes(like.shape), self._strides_of(node)
        if math.prod(shape) >= _extent(shape, strides) or share_memory(shape, strides):
            return False
        nbytes = _extent(like.shape, like.stride()) * like.element_size()
        whole = like.storage_offset() == 0, like.untyped_storage().nbytes() == nbytes
        return all(map(statically_known_true, whole))

    # values

    def _parts(self, result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            return self._value(result)
        if isinstance(result, (list, tuple)):
            return [self._parts(r) for r in result]
        if result is None:
            return None
        raise Untraceable(f"an op that gives a {type(result).__name__}")

    def _resolve(self, arg: Any, kind: str = "") -> Any:
        """The value of an argument of a node. kind: the kind of the parameter in the op's schema.

        Raises:
            Fixed: a symbolic number cannot be an input of the program.
        """
        if isinstance(arg, torch.fx.Node):
            arg = self.values[arg]
        elif isinstance(arg, tuple):
            return tuple(self._resolve(a) for a in arg)
        elif isinstance(arg, (list, torch.fx.immutable_collections.immutable_list)):
            return [self._resolve(a) for a in arg]
        if isinstance(arg, torch.SymBool):
            raise Fixed(str(arg.node.expr))
        if self._follows_numbers(arg):
            if kind not in TAKERS:
                raise Fixed(str(arg.node.expr))
            self.takes = True
            return self._number(arg.node.expr, isinstance(arg, torch.SymFloat))
        if isinstance(arg, torch.SymFloat) or (isinstance(arg, torch.SymInt) and kind in _NUMBERS):
            number = self.formulas.number(arg.node.expr, self.size)
            found = number_of(number)
            return number if found is None else found.value
        return self.formulas.concrete(arg)


def saved_ones(output: torch.fx.Node) -> list[bool]:
    """For each output of a graph, whether only the backward reads it."""
    described = output.meta.get("desc")
    if described is None:
        return [False] * len(output.args[0])  # type: ignore[arg-type]
    return [type(desc).__name__.startswith(_SAVED) for desc in described]


def _flat(parts: Any) -> Iterator[TraceValue | None]:
    if isinstance(parts, list):
        for part in parts:
            yield from _flat(part)
    else:
        yield parts


def _row_major(shape: Sequence[Any]) -> list[Any]:
    """Row-major strides in elements. shape: integers, or symbolic sizes."""
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (size if isinstance(size, torch.SymInt) else max(size, 1))
    return strides[::-1]


def _extent(shape: Sequence[Any], strides: Sequence[Any]) -> Any:
    """The number of elements from the first to the last in memory, if there are any."""
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides))


def _reading(node: torch.fx.Node) -> Reading:
    like = node.meta["val"]
    return Reading(like.dtype, like.is_conj(), like.is_neg())


def _storage(node: torch.fx.Node) -> int:
    like = node.meta["val"]
    return like.untyped_storage()._cdata if isinstance(like, torch.Tensor) else 0


def _memory_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The dimensions in the order of memory, outermost first; None if they are row-major already, or if the strides
    are not those of a dense tensor."""
    if 0 in shape:
        return None
    order = tuple(sorted(range(len(shape)), key=lambda d: (-strides[d], shape[d] == 1, d)))
    dense = _row_major([shape[d] for d in order])
    own = _row_major(shape)
    if all(strides[d] == own[d] or shape[d] == 1 for d in range(len(shape))):
        return None
    if all(strides[d] == s or shape[d] == 1 for d, s in zip(order, dense)):
        return order
    return None


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    return _are_row_major(shape, strides) or _memory_order(shape, strides) is not None


def _are_row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether strides are row-major."""
    return all(s == o or n == 1 for s, o, n in zip(strides, _row_major(shape), shape))


def _is_row_major(value: TraceValue) -> bool:
    return _are_row_major(value.shape, value.strides)


def _place(node: torch.fx.Node, phase: str) -> str:
    """Where a node is from, in messages: its line, or its name without one."""
    loc = location(node.meta, phase)
    return str(loc) if loc.line else f"{'argument ' if node.op == 'placeholder' else ''}{node.name}"


def location(meta: Mapping[str, Any], phase: str) -> SourceLoc:
    """The location of a node by its metadata: the innermost line of its stack trace, and the module path. Line 0 means
    unknown."""
    file, line = "<unknown>", 0
    frames = list(_FRAME.finditer(meta.get("stack_trace") or ""))
    if frames:
        file, line = frames[-1]["file"], int(frames[-1]["line"])
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
    path = ""
    if stack:
        path = str(next(reversed(stack.values()))[0])
        path = _ROOT.sub("", path).replace("_modules['", "").replace("']", "")
    return SourceLoc(file, line, path, phase)
