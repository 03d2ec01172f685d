"""The recorder: a dispatch mode below autograd and functionalization.

It receives functional ATen ops on fake tensors, appends a `TraceOp` for each and calls the fake implementation. Each
fake tensor carries its `TraceValue` in `_gflow_value`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from gflow.dialects.records import record
from gflow.dialects.types import row_major_strides
from gflow.errors import GraphTraceError, ShapeOfValues
from gflow.runtime.interrupts import deliver, waiting

from ..context.location import Locator
from ..context.wrappers import check_tensor
from ..data.global_tensors import Layout, is_divided, is_global, layout_of, local_of
from ..data.guards import Guard
from ..data.tail import Unknown
from ..data.values import SourceLoc, TraceInput, TraceOp, TraceValue, instances_in, values_in
from ..program import collectives, seeding
from .branches import Branches
from .call_checks import call_problem
from .failures.checks import QUANTIZING
from .failures.refusals import name_if_refusing
from .foreach import split_foreach
from .known_values import BY_VALUES, KnownValues
from .shapes.fakes import fake_call, same_memory
from .symbols.argument_numbers import has_number, plain, settled
from .symbols.number_nodes import Number, number_of
from .symbols.numbers import wrap

if TYPE_CHECKING:
    from .symbols.unknown_sizes import UnknownSizes

aten = torch.ops.aten
_PRIM_DEVICE = torch.ops.prim.device.default
_SAME_VALUE = {aten.detach.default, aten.alias.default, aten.lift.default}
_SCALAR = aten.scalar_tensor.default
#: types of its result (None: float32) that hold numbers of 31 bits
_WIDE = (None, torch.float32, torch.float64, torch.int64)
_LIFT_FRESH = aten.lift_fresh.default
#: ops whose numbers are sizes of their result
_RANGES = ("aten::arange", "prims::iota")
_NUMBERS = ("NumberType", "FloatType")
#: shifts, by the names of their schemas
_SHIFTS = frozenset(
    f"aten::{n}" for n in ("__lshift__", "__rshift__", "bitwise_left_shift", "bitwise_right_shift")
)
_DRAWS = torch.Tag.nondeterministic_seeded
_ITEM = aten._local_scalar_dense.default
_COPY, _META = aten._to_copy.default, torch.device("meta")
_CPU = torch.device("cpu")  # made while a graph is traced, it would be a call of its function mode


def _is_literal(number: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a tensor of a number is one on the CPU whose value is known, and that every type of it holds; what others
    cannot hold is an error with the line. kwargs: the options of the tensor."""
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    here = type(number) in (int, float, bool) and (device is None or device.type == "cpu")
    return here and dtype in _WIDE and abs(number) < 1 << 31


def describe(loc: SourceLoc) -> str:
    """`file:line (in model.head)` for messages."""
    where = f"{loc.file}:{loc.line}"
    return f"{where} (in module {loc.module!r})" if loc.module else where


@record
class Mark:
    """A position in a recording, to rewind to."""

    ops: int
    inputs: int
    guards: int
    numbers: int
    constants: dict[int, FakeTensor]


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Within, PyTorch runs without being traced."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
    with (
        torch._C.DisableTorchFunction(),
        torch._C._DisableTorchDispatch(),
        torch._C._ExcludeDispatchKeyGuard(keys),
    ):
        yield


def set_value(fake: torch.Tensor, value: TraceValue) -> TraceValue:
    """Set the value of the trace that a fake tensor holds, and return the value."""
    fake._gflow_value = value  # type: ignore[attr-defined]
    return value


class Recorder(TorchDispatchMode):
    """Records the ops of one trace."""

    supports_higher_order_operators = True  # to refuse them with their location

    def __init__(
        self, fake_mode: FakeTensorMode, locator: Locator, eager_random: bool = False
    ) -> None:
        super().__init__()
        self.fake_mode = fake_mode
        self.locator = locator
        self.eager_random = eager_random
        self.active = False  # between the functionalization's begin and end
        self.ops: list[TraceOp] = []
        self.inputs: list[TraceInput] = []
        self.guards: list[Guard] = []
        self.numbers: list[Any] = []
        self.takes_numbers = False  # whether some numbers are arguments of the call
        self.meshes: list[Any] = []  # of global tensors
        #: meshes of modules of `fully_shard`, which are sharded along the first dimension, and the names of its groups
        self.divided_over: list[tuple[Any, str]] = []
        self.divided: dict[TraceValue, str] = {}  # inputs of such modules → the group
        self.known: KnownValues | None = None
        self.branches: Branches | None = None
        self.sizes: UnknownSizes | None = None
        self.size: list[TraceValue] = []
        #: values that exist only after the program, with the op whose result's shape depends on values
        self.late: dict[TraceValue, TraceOp] = {}
        #: of these, the dimensions with a new size that depends on values, and its name
        self.unknown: dict[TraceValue, list[tuple[int, str]]] = {}
        self._made: dict[str, TraceOp] = {}  # sizes that depend on values → the op
        self._next_id = 0
        self._number_ops: dict[Any, tuple[int, TraceOp, TraceValue]] = {}
        self._constants: dict[int, FakeTensor] = {}
        #: values of tensors that `build()` has made over the memory of a NumPy array
        self.foreign: set[TraceValue] = set()
        #: the current value of a real tensor's proxy, if it has one
        self.held: Callable[[torch.Tensor], FakeTensor | None] = lambda tensor: None
        self.seed = seeding.Seed()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    # values

    def new_value(self, tensor: torch.Tensor, is_number: bool = False) -> TraceValue:
        """A value of the trace with the shape, strides, dtype and device of `tensor`. is_number: whether it represents
        a Python number.

        Raises:
            GraphTraceError: the tensor is on the device meta.
        """
        if tensor.device.type == "meta":
            raise GraphTraceError(
                f"{describe(self.locator.here())}: a tensor is created on the device meta, which has no "
                "values; a graph computes on a CPU or a GPU. Leave torch.device('meta') out, or create the "
                "tensor outside of the graph."
            )
        shape = tuple(tensor.shape)
        strides = tuple(tensor.stride()) if tensor.layout == torch.strided else ()
        if self.sizes is not None:
            shape = tuple(map(self.sizes.concrete, shape))
            strides = tuple(map(self.sizes.concrete, strides))
        value = TraceValue(self._next_id, shape, tensor.dtype, strides, tensor.device, is_number)
        self._next_id += 1
        return value

    def fake_like(
        self, tensor: torch.Tensor, dynamic: Mapping[int, int] | None = None
    ) -> FakeTensor:
        """A fake tensor with the metadata of a real one and a new value. dynamic: the dynamic dimensions, each with
        the index of its symbol; the tensor is then dense."""
        shape: Sequence[Any] = tensor.shape
        strides: Sequence[Any] = tensor.stride()
        if is_global(tensor):
            strides = row_major_strides(tuple(shape))
        if dynamic:
            assert self.sizes is not None
            shape = [
                self.sizes.symints[dynamic[d]] if d in dynamic else s for d, s in enumerate(shape)
            ]
            strides = row_major_strides(tuple(shape))
        with untraced():
            meta = torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")
            fake = FakeTensor(self.fake_mode, meta, tensor.device)
            set_value(fake, self.new_value(fake))
        return fake

    def add_input(
        self,
        tensor: torch.Tensor,
        role: str,
        name: str,
        real: bool = True,
        dynamic: Mapping[int, int] | None = None,
    ) -> FakeTensor:
        """Add an argument of the traced function.

        Args:
            real: whether the input keeps a reference to `tensor`.
            dynamic: as for `fake_like`.

        Returns:
            Its fake tensor.
        """
        with untraced():  # `check_tensor` reads a parameter's data
            check_tensor(tensor, f"{role} {name!r}")
        told = f"{describe(self.locator.here())}: {role} {name!r}"
        group = None if role == "input" else self._group_of(tensor)
        layout = layout_of(tensor, told) if group is None else self.layout_of(tensor, told)
        fake = self.fake_like(tensor, dynamic)
        own = local_of(tensor) if real else None
        if group is not None:
            self.divided[self.value_of(fake)] = group
        self.inputs.append(TraceInput(self.value_of(fake), role, name, own, layout=layout))
        if layout is not None:
            self.meshes.append(layout.mesh)
        self.locator.watcher.argument(self.inputs[-1])
        return fake

    def _group_of(self, tensor: torch.Tensor) -> str | None:
        """The group over which `fully_shard` shards a parameter or its state; None if it is not sharded so."""
        if not self.divided_over or not is_global(tensor) or not is_divided(tensor, 0):
            return None
        own = tensor.device_mesh  # type: ignore[attr-defined]
        return next((name for mesh, name in self.divided_over if mesh == own), None)

    def layout_of(self, tensor: torch.Tensor, name: str) -> Layout | None:
        """The layout of a parameter or its state, without the sharding of `fully_shard`; None if each rank would then
        have all of it."""
        if self._group_of(tensor) is None:
            return layout_of(tensor, name)
        over = tensor.device_mesh.ndim  # type: ignore[attr-defined]
        return layout_of(tensor, name, divided=0) if over > 1 else None

    def add_sizes(self, sizes: UnknownSizes) -> None:
        """Allow symbolic sizes. Those of dynamic dimensions are arguments of the program."""
        self.sizes = self.fake_mode.shape_env = sizes
        self.fake_mode.static_shapes = False
        for symbol in (sizes.size, sizes.size and sizes.size.second):
            if symbol is not None:
                tensor = torch.tensor(symbol.most, device="cpu")
                value = self.value_of(self.add_input(tensor, "size", symbol.name))
                value.is_number = True
                self.size.append(value)

    def mark(self) -> Mark:
        """A point to `rewind` to when an attempt fails."""
        return Mark(
            len(self.ops),
            len(self.inputs),
            len(self.guards),
            len(self.numbers),
            dict(self._constants),
        )

    def rewind(self, mark: Mark) -> None:
        """Drop everything that was recorded since `mark`."""
        del self.ops[mark.ops :]
        del self.inputs[mark.inputs :]
        del self.guards[mark.guards :]
        del self.numbers[mark.numbers :]
        self._constants = mark.constants

    def add_number(
        self, value: float, tensor: torch.Tensor, name: str, expr: Any, of_call: bool = False
    ) -> Number:
        """Add a scalar argument.

        Args:
            value: its value in this trace.
            expr: its host expression.
            of_call: whether it is an argument of the call.

        Returns:
            The node of the traced number.
        """
        fake = self.add_input(tensor, "scalar", name)
        self.takes_numbers |= of_call
        node = Number(self, self.value_of(fake), value, expr, of_call)
        node.value.is_number = True
        return node

    def constant(self, tensor: torch.Tensor, name: str | None = None) -> FakeTensor:
        """The input for a real tensor from outside `build()`.

        Raises:
            GraphTraceError: the tensor has a sparse layout.
        """
        fake = self.held(tensor)
        if fake is None:
            fake = self._constants.get(id(tensor))
        if fake is None:
            if tensor.layout != torch.strided:
                raise GraphTraceError(
                    f"{describe(self.locator.here())}: a {tensor.layout} tensor is used in the "
                    "graph; only dense (strided) tensors can be. Convert it with .to_dense()."
                )
            fake = self.add_input(tensor, "constant", name or f"constant.{len(self._constants)}")
            self._constants[id(tensor)] = fake
        return fake

    def value_of(self, fake: torch.Tensor) -> TraceValue:
        """The value of the trace that a tensor holds; a tensor from outside becomes a constant.

        Raises:
            GraphTraceError: it was created in another trace.
        """
        value = getattr(fake, "_gflow_value", None)
        if value is None or fake.fake_mode is not self.fake_mode:  # type: ignore[attr-defined]
            if isinstance(fake, FakeTensor):
                raise GraphTraceError(
                    f"{describe(self.locator.here())}: a tensor of another trace is used here. "
                    "Tensors made in build() live in one call; keep state in buffers."
                )
            value = self.value_of(self.constant(fake))
        return value

    # numbers

    def record_number(
        self, func: Any, args: tuple[Any, ...], dtype: torch.dtype, words: Any = None
    ) -> TraceValue:
        """Record a 0-d op on traced numbers; an equal op on equal numbers is recorded once."""
        key = (func, *((a.id, "%") if isinstance(a, TraceValue) else (repr(a), "") for a in args))
        known = self._number_ops.get(key)
        if known is not None and known[0] < len(self.ops) and known[1] is self.ops[known[0]]:
            return known[2]
        value = TraceValue(self._next_id, (), dtype, (), _CPU, True)
        self._next_id += 1
        op = TraceOp(func, args, words or {}, [value], self.locator.here())
        self._number_ops[key] = (len(self.ops), op, value)
        self.ops.append(op)
        self.locator.watcher.op(op)
        return value

    def apart(self) -> contextlib.AbstractContextManager[Any]:
        """Within, PyTorch computes without being traced, in the element types of the operands."""
        stack = contextlib.ExitStack()
        stack.enter_context(untraced())
        stack.enter_context(torch._C._DisableAutocast())
        return stack

    def _of_known(self, question: Callable[..., Any], *args: Any) -> Any:
        """What `known` answers, with the ops that it records; None if there is no answer."""
        if self.known is None:
            return None
        with self, torch._C.DisableTorchFunction():
            return question(self.known, *args)

    def truth(self, fake: torch.Tensor) -> bool | None:
        """The truth of a tensor of one bool for which the program is made; None if it can be made for none."""
        if self.branches is None or fake.dtype != torch.bool:
            return None
        with self, torch._C.DisableTorchFunction():
            return self.branches.take(fake)

    def forget_numbers(self) -> None:
        """Record all numbers anew from here on, even if they were computed before."""
        self._number_ops.clear()

    def number_from(self, fake: torch.Tensor) -> Number:
        """`tensor.item()` of a one-element tensor as a traced number."""
        value = self.value_of(fake)
        if value.shape != ():
            value = self.record_number(aten.view.default, (value, []), value.dtype)
        dtype = torch.float64 if value.dtype.is_floating_point else torch.int64
        value = self.record_number(aten._to_copy.default, (value,), dtype, {"dtype": dtype})
        return Number(self, value, 1.0, None)

    def check_seed(self, loc: SourceLoc) -> None:
        """Check that `build()` has not seeded PyTorch's generator in a way that `seeding` does not detect.

        Raises:
            GraphTraceError: it has.
        """
        if self.seed.changed():
            raise seeding.problem(describe(loc))

    # dispatch

    def control_flow(self, func: torch._ops.HigherOrderOperator) -> GraphTraceError:
        """The error for `torch.cond` and similar functions."""
        if func.name().startswith("flex_attention"):
            return self.flex_attention()
        return GraphTraceError(
            f"{describe(self.locator.here())}: {func.name()} is control flow that depends on tensor "
            "values, which a graph cannot record. Use torch.where for a choice and a Python loop of fixed "
            "length, or call the function through gflow.compile or torch.compile(backend='gflow'), which "
            "compile the code around it."
        )

    def flex_attention(self) -> GraphTraceError:
        """The error for `flex_attention` and functions that create its masks."""
        return GraphTraceError(
            f"{describe(self.locator.here())}: flex_attention and its block masks cannot be recorded in a graph. Call "
            "scaled_dot_product_attention with an attn_mask of comparisons of positions (on a GPU, sliding windows and "
            "documents then become part of its kernel) or with a bias, or call the function through gflow.compile or "
            "torch.compile(backend='gflow'), where flex_attention runs through PyTorch."
        )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if (
            torch._C._is_torch_function_mode_enabled()
        ):  # in torch.Tensor(...), torch.LongTensor(...)
            with torch._C.DisableTorchFunction():
                return self._dispatch(func, types, args, kwargs)
        return self._dispatch(func, types, args, kwargs)

    def _dispatch(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        if waiting:
            deliver()
        if func is _PRIM_DEVICE:
            return args[0].fake_device
        if (shapes := _shapes_alone(func, args, kwargs or {})) is not None:
            return shapes
        if isinstance(func, torch._ops.HigherOrderOperator):
            raise self.control_flow(func)
        if func in _SAME_VALUE:
            out: Any = same_memory(self.fake_mode, func, types, args)
            set_value(out, self.value_of(args[0]))
            return out
        kwargs = kwargs or {}
        if func is _LIFT_FRESH:
            return self._lift_fresh(args[0], types)
        if func is _SCALAR and _is_literal(args[0], kwargs):  # PyTorch's `cov` asks for its value
            with untraced():
                literal = func(*args, **kwargs)
            return self._lift_fresh(literal, types)
        if func.namespace == "profiler":
            return func(*args, **kwargs)
        if func.namespace in ("c10d", "_c10d_functional"):
            collectives.refuse(func, describe(self.locator.here()))
        name = func._schema.name
        if name.startswith("aten::_foreach_"):
            with self:
                parts = split_foreach(func, args, kwargs)
            if parts is not None:
                return parts
        if name in _SHIFTS:
            args = self._shifted(args)
        loc = self.locator.here()
        takes = self.takes_numbers or self.locator.optimizer
        if takes and (has_number(args) or has_number([*kwargs.values()])):
            args, kwargs = settled(func, args, kwargs)
        if func is _ITEM:
            constant = getattr(args[0], "constant", None)
            if constant is not None:
                return constant.item()
            if self.locator.optimizer:
                return wrap(self.number_from(args[0]))
            if (found := self._of_known(KnownValues.number, args[0])) is not None:
                return found
            if (truth := self.truth(args[0])) is not None:
                return truth
            raise item_error(loc)
        if _DRAWS in func.tags:
            self.check_seed(loc)
            if self.eager_random and (found := self._as_eager(func, args, kwargs)) is not None:
                return found
        if func in QUANTIZING:
            words = f"{func} gives a quantized tensor, which a graph does not have"
            raise GraphTraceError(
                f"{describe(loc)}: {words}. Quantize outside of the graph, or keep integers and their scale in tensors."
            ).to_eager(words)
        problem = call_problem(func, args, kwargs)
        if problem is not None:
            error = GraphTraceError(f"{describe(loc)}: {func} {problem}.")
            raise error.to_eager(f"{func} {problem}, and raises there")
        if func in BY_VALUES:
            found = self._of_known(KnownValues.call, func, args, kwargs)
            if found is not None:
                return found
        if self.sizes is not None:
            args, kwargs = self._numbers_of_sizes(func, args, kwargs)
        trace_args = tuple([self._trace_arg(a) for a in args])
        trace_kwargs = {k: self._trace_arg(a) for k, a in kwargs.items()}
        call_args, call_kwargs = self._fakes(args), self._fakes(kwargs)
        try:
            out = fake_call(self.fake_mode, func, types, call_args, call_kwargs)
        except DataDependentOutputException as error:
            raise item_error(loc) from error
        except DynamicOutputShapeException as error:
            raise shape_of_values(func, loc) from error
        except UnsupportedOperatorException as error:
            raise GraphTraceError(
                f"{describe(loc)}: {func} has no shape rule (fake implementation) in PyTorch, so "
                "it cannot be traced. For a custom op, add one with torch.library.register_fake."
            ) from error
        op = self._record(func, trace_args, trace_kwargs, out, loc)
        if self.sizes is not None and op is not None:
            self._follow(op)
        return out

    def _follow(self, op: TraceOp) -> None:
        """Take an op to the tail if its sizes depend on values, or an operand is in the tail."""
        assert self.sizes is not None
        root = next((self.late[v] for v in values_in((op.args, op.kwargs)) if v in self.late), None)
        for unknown in instances_in((op.args, op.kwargs), Unknown):
            root = root or next((self._made[n] for n in unknown.names if n in self._made), None)
        for value in (r for r in op.results if r is not None):
            for d, size in enumerate(value.shape):
                if not isinstance(size, Unknown):
                    continue
                root = root or op
                if size.text == size.names[0] and size.text not in self._made:
                    self._made[size.text] = root
                    self.sizes.origins[size.text] = (
                        f"of the result of {op.func}, {describe(op.loc)}"
                    )
                    self.unknown.setdefault(value, []).append((d, size.text))
        if root is not None:
            self.late.update((r, root) for r in op.results if r is not None)

    def _as_eager(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a drawing op with eager's random numbers; None if the op itself is recorded."""
        # start-up: few graphs ask for these numbers
        from . import eager_random

        try:
            if func in eager_random.DRAWING:
                with self:
                    found = eager_random.draw_as_eager(func, *args, **kwargs)
                return None if found is NotImplemented else found
            eager_random.check_layouts(func, args)
        except GraphTraceError as error:
            raise GraphTraceError(f"{describe(self.locator.here())}: {error}.") from None
        return None

    def _shifted(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Operands of a shift, of which PyTorch's kernels take bools as integers, and its shape rules don't."""
        dtype = torch.result_type(*plain(args[:2]))
        if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
            return args

        def integer(x: Any) -> Any:
            if isinstance(x, torch.Tensor) and x.dtype == torch.bool:
                with self:
                    return aten._to_copy.default(x, dtype=dtype)
            return int(x) if isinstance(x, bool) else x

        return (integer(args[0]), integer(args[1]), *args[2:])

    def _record(
        self, func: Any, args: Any, kwargs: Any, out: Any, loc: SourceLoc
    ) -> TraceOp | None:
        """Record an op, if it has an effect or a new result."""
        results: list[TraceValue | None] = []
        fresh = False
        for item in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(item, FakeTensor):
                value = getattr(item, "_gflow_value", None)
                if value is None:
                    value = set_value(item, self.new_value(item))
                    fresh = True
                results.append(value)
            elif isinstance(item, (list, tuple)):
                for sub in item:
                    results.append(set_value(sub, self.new_value(sub)))
                    fresh = True
            else:
                results.append(None)
        if fresh or (not any(results) and name_if_refusing(func)):
            scope = self.locator.scopes.current
            self.ops.append(TraceOp(func, args, kwargs, results, loc, scope))
            self.locator.watcher.op(self.ops[-1])
            return self.ops[-1]
        return None

    def _lift_fresh(self, tensor: torch.Tensor, types: Any) -> torch.Tensor:
        """A tensor literal: `torch.tensor(3.0)` is an `aten.full`, more is a constant."""
        out: Any = self.fake_mode.dispatch(_LIFT_FRESH, types, (tensor,))
        if getattr(out, "_gflow_value", None) is not None:
            return out
        if isinstance(tensor, FakeTensor):
            set_value(out, self.value_of(tensor))
            return out
        if tensor.numel() == 1 and not tensor.is_complex():
            value = set_value(out, self.new_value(out))
            with untraced():
                literal = tensor.item()
            self.ops.append(
                TraceOp(
                    aten.full.default,
                    (list(tensor.shape), literal),
                    {"dtype": tensor.dtype, "device": tensor.device},
                    [value],
                    self.locator.here(),
                )
            )
        else:
            value = set_value(out, self.value_of(self.constant(tensor)))
        with untraced():
            if not tensor.untyped_storage().resizable():
                self.foreign.add(value)
        return out

    def _trace_arg(self, arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            return self.value_of(arg)
        if isinstance(arg, (list, tuple)):
            return [self._trace_arg(a) for a in arg]
        if isinstance(arg, torch.Generator):
            raise GraphTraceError(
                f"{describe(self.locator.here())}: a torch.Generator is passed to a random op; "
                "a graph draws a seed from PyTorch's default generator at each call "
                "(torch.manual_seed). Leave it out."
            )
        node = number_of(arg)
        if node is not None:
            return node.value
        if hasattr(arg, "group_name") and not isinstance(arg, str):  # a process group
            return arg.group_name
        return arg if self.sizes is None else self.sizes.concrete(arg)

    def _numbers_of_sizes(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A size that an op takes as a number, not as a shape: a traced number."""

        def convert(arg: Any, kind: str) -> Any:
            floating = isinstance(arg, torch.SymFloat)
            if not floating and not (isinstance(arg, torch.SymInt) and kind in _NUMBERS):
                return arg
            assert self.sizes is not None
            if number_of(arg) is not None or self.sizes.is_unknown(arg):
                return arg
            return self.sizes.number(arg, self, self.size)

        if func._schema.name in _RANGES:
            return args, kwargs
        schema = func._schema.arguments
        kinds = {a.name: a.type.kind() for a in schema}
        return (
            tuple([convert(a, s.type.kind()) for a, s in zip(args, schema)]),
            {k: convert(a, kinds[k]) for k, a in kwargs.items()},
        )

    def _fakes(self, arg: Any) -> Any:
        """Arguments for the fake implementation: no real tensor, no traced number."""
        kind = type(arg)
        if kind is FakeTensor:
            return arg
        if kind is tuple or kind is list:
            return kind([self._fakes(a) for a in arg])
        if kind is dict:
            return {k: self._fakes(a) for k, a in arg.items()}
        if isinstance(arg, torch.Tensor) and not isinstance(arg, FakeTensor):
            return self.constant(arg)
        node = number_of(arg)
        return arg if node is None else node.hint


def _shapes_alone(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a call on the device meta, by which PyTorch finds the shapes of zero tangents in forward-mode
    derivatives; None for other calls. Other uses of such a result are errors (`new_value`)."""
    if func is _COPY and kwargs.get("device") == _META:
        with untraced():
            return torch.empty_like(args[0], dtype=kwargs.get("dtype"), device=_META)
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if tensors and all([type(t) is torch.Tensor and t.is_meta for t in tensors]):  # noqa: C419
        with untraced():
            return func(*args, **kwargs)
    return None


def shape_of_values(func: Any, loc: SourceLoc) -> ShapeOfValues:
    """The error for an op that gives a result whose shape depends on values."""
    return ShapeOfValues(f"{_shape_problem(func, loc)}.{_WAYS_OUT.get(func, _WAY_OUT)}")


def late_error(root: TraceOp, problem: str) -> GraphTraceError:
    """The error for a value that exists only after the program, and that the program needs. problem: where."""
    return GraphTraceError(
        f"{_shape_problem(root.func, root.loc)}, and {problem}. Ops on such tensors run after the program, and only "
        f"results of build() can depend on them.{_WAY_OUT}"
    )


_WAY_OUT = " Use a masked form (torch.where, multiplication by a mask) or do it outside build()."

_WAYS_OUT = {
    torch.ops.aten._pack_padded_sequence.default: (
        " A recurrent module of one direction gives the same up to each length for the padded tensor: select by the "
        "lengths. Or compile the model with gflow.compile or torch.compile(backend="
        '"gflow"), which run packed sequences through PyTorch.'
    )
}


def _shape_problem(func: Any, loc: SourceLoc) -> str:
    return (
        f"{describe(loc)}: the shape of the result of {func} depends on the values in a tensor; a static graph needs "
        "shapes that follow from the input shapes"
    )


def item_error(loc: SourceLoc, what: str = "the value of a tensor") -> GraphTraceError:
    """The error for Python code that needs a tensor's value while the graph is traced."""
    return GraphTraceError(
        f"{describe(loc)}: Python asks for {what} (an `if`, `while`, `assert` or "
        "comparison on a tensor, .item(), float(), int(), .tolist(), or a tensor as an index "
        "or size). A graph is traced once, before values exist. Use torch.where or "
        "torch.clamp for a choice by value, return the tensor and read it outside build(), or "
        "pass the number to the graph as an argument."
    )
