"""PyTorch's own decompositions, lowered op by op.

A decomposition is recorded once for each kind of call on fake tensors. It is used only where every
op in it can be lowered: a call that runs through PyTorch anyway stays one call.

With dynamic dimensions, the sizes of the fakes are stand-ins, and PyTorch's Python may compare and divide them. So a
call is also recorded for sizes at the ends of the range: the recording is used only if it is the same there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from gflow.dialects import extents
from gflow.dialects.records import record
from gflow.tracing.data.values import TraceValue

from .dtypes import TO_TORCH
from .emitter import Emitter, Value

_log = logging.getLogger("gflow")
_MAX_OPS = 160
#: excluded decompositions: PyTorch's kernels are faster, or the decomposition depends on memory layout, or gives other
#: values (those of margin losses count labels after a -1, and refuse no target)
_KEEP = (
    "aten.as_strided", "aten.cumsum", "aten.cumprod", "aten.upsample_", "aten._upsample_",
    "aten.adaptive_", "aten._adaptive_", "aten.max_pool", "aten.max_unpool", "aten.im2col",
    "aten.col2im", "aten.grid_sampler", "aten.affine_grid", "aten.linalg_", "aten._linalg_",
    "aten._scaled_dot_product", "aten.lu_unpack", "aten.searchsorted", "aten.bucketize",
    "aten.multi_margin_loss", "aten.multilabel_margin_loss",
)  # fmt: skip


@record
class _Ref:
    """A tensor of a recording, by number."""

    number: int


@dataclass
class _Step:
    func: Any
    args: Any
    kwargs: Any
    results: list[TraceValue | None]


@dataclass
class _Recording:
    steps: list[_Step]
    results: list[_Ref | None]


class _Abort(Exception):
    """The call cannot be recorded."""


class _Calls(TorchDispatchMode):
    """The calls of a decomposition: function, arguments, results, which are kept alive."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.namespace != "prim":  # a question about metadata
            if len(self.made) >= _MAX_OPS:
                raise _Abort(f"more than {_MAX_OPS} ops")
            self.made.append((func, list(args), kwargs, out))
        return out


class _Recorder:
    """Numbers tensors by their ids; they are all alive until the recording is complete."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.count = 0

    def add(self, tensor: torch.Tensor) -> _Ref:
        number = self.numbers[id(tensor)] = self.count
        self.count += 1
        return _Ref(number)

    def ref(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            number = self.numbers.get(id(item))
            if number is None:
                raise _Abort(f"a tensor from elsewhere: {item}")
            return _Ref(number)
        if isinstance(item, list | tuple):
            return [self.ref(i) for i in item]
        return item

    def step(self, func: Any, args: Any, kwargs: Any, out: Any) -> _Step:
        if func._schema.is_mutable or func.namespace not in ("aten", "prims"):
            raise _Abort(str(func))
        step_args = self.ref(args)
        step_kwargs = {k: self.ref(v) for k, v in kwargs.items()}
        results: list[TraceValue | None] = []
        for leaf in out if isinstance(out, list | tuple) else [out]:
            if isinstance(leaf, torch.Tensor):
                ref = self.add(leaf)
                results.append(
                    TraceValue(ref.number, tuple(leaf.shape), leaf.dtype, tuple(leaf.stride()))
                )
            elif leaf is None:
                results.append(None)
            else:
                raise _Abort(f"{func} gives a {type(leaf).__name__}")
        return _Step(func, step_args, step_kwargs, results)


_recordings: dict[Any, _Recording | None] = {}


def _key(item: Any) -> Any:
    if isinstance(item, Value):
        return ("value", item.shape, item.dtype, item.number)
    if isinstance(item, list | tuple):
        return tuple(_key(i) for i in item)
    return (type(item).__name__, repr(item))


def _record(func: Any, args: list[Any], kwargs: dict[str, Any]) -> _Recording | None:
    """The steps of a call's decomposition; None if it has none in which all ops are functional."""
    recorder, calls = _Recorder(), _Calls()
    given: list[torch.Tensor] = []

    def fake(item: Any) -> Any:
        if isinstance(item, Value):
            if item.number:
                raise _Abort("a traced number")
            try:
                given.append(torch.empty(item.shape, dtype=TO_TORCH[item.dtype]))
            except (
                RuntimeError
            ) as error:  # with stand-ins of dynamic dimensions, n² exceeds 64 bits
                raise _Abort(str(error)) from error
            recorder.add(given[-1])
            return given[-1]
        if isinstance(item, list):
            return [fake(i) for i in item]
        return item

    try:
        with (
            torch.no_grad(),
            torch._C._DisableAutocast(),  # of the call: it applies to the op already
            FakeTensorMode(allow_non_fake_inputs=False),
        ):
            fake_args = fake(list(args))
            fake_kwargs = {k: fake(v) for k, v in kwargs.items()}
            with calls:
                try:
                    out = _table()[func](*fake_args, **fake_kwargs)
                except Exception as error:
                    # any kind of exception: PyTorch's function does not support these arguments
                    raise _Abort(str(error)) from error
        steps = [recorder.step(*call) for call in calls.made]
        leaves = list(out) if isinstance(out, list | tuple) else [out]
        results = [None if leaf is None else recorder.ref(leaf) for leaf in leaves]
    except _Abort as error:
        _log.debug("the decomposition of %s is not used: %s", func, error)
        return None
    if any(r is not None and not isinstance(r, _Ref) for r in results):
        return None
    return _Recording(steps, results)


#: by the key of a call and the range of the sizes: whether its recording is that of all sizes
_compared: dict[Any, bool] = {}


def _holds_for_all(
    key: Any, recording: _Recording, func: Any, args: list[Any], kwargs: dict[str, Any]
) -> bool:
    """Whether a recording made with the stand-ins of dynamic dimensions is that of every size: whether it is the same
    at the ends of the range. `(n - 5) % n` is n - 5 for a stand-in, and not for n = 4."""
    symbol = extents.current()
    if symbol is None:
        return True
    known = _compared.get((key, symbol))
    if known is None:
        known = all(
            _agree(recording, _record(func, *_at((args, kwargs), symbol, n)), symbol, n)
            for n in symbol.samples
        )
        _compared[key, symbol] = known
        if not known:
            _log.debug("the decomposition of %s differs between sizes of %s", func, symbol)
    return known


def _at(item: Any, symbol: extents.Symbol, n: extents.N) -> Any:
    """Arguments of a call for sizes of `n`."""
    if isinstance(item, Value):
        shape = tuple(symbol.at(s, n) for s in item.shape)
        return Value(item.em, item.ir, shape, item.dtype, item.number)
    if isinstance(item, list | tuple):
        return type(item)(_at(i, symbol, n) for i in item)
    if isinstance(item, dict):
        return {k: _at(v, symbol, n) for k, v in item.items()}
    return symbol.at(item, n) if isinstance(item, int) and not isinstance(item, bool) else item


def _agree(
    recording: _Recording, other: _Recording | None, symbol: extents.Symbol, n: extents.N
) -> bool:
    """Whether the steps of a recording with stand-ins are those of one for sizes of `n`."""

    def plain(found: _Recording, at: Callable[[int], int]) -> Any:
        def shown(item: Any) -> Any:
            if isinstance(item, TraceValue):
                return item.id, item.dtype, shown(item.shape)
            if isinstance(item, list | tuple):
                return [shown(i) for i in item]
            if isinstance(item, dict):
                return {k: shown(v) for k, v in item.items()}
            return at(item) if isinstance(item, int) and not isinstance(item, bool) else item

        steps = [[s.func, shown(s.args), shown(s.kwargs), shown(s.results)] for s in found.steps]
        return steps, found.results

    return other is not None and plain(recording, lambda i: symbol.at(i, n)) == plain(
        other, lambda i: i
    )


@cache
def _table() -> Any:
    """PyTorch's decompositions; their import takes a third of a second, and few programs need it."""
    # start-up: PyTorch's decompositions are loaded by the first op that has no rule
    from torch._decomp import decomposition_table

    return decomposition_table


def _rounds_bounds(func: Any, kwargs: dict[str, Any]) -> bool:
    """Whether PyTorch's kernel rounds bounds to integers before it divides the range, and refuses those that are out of
    range; its decomposition does neither."""
    dtype = kwargs.get("dtype")
    return (
        str(func).startswith(("aten.linspace", "aten.logspace"))
        and dtype is not None
        and not (dtype.is_floating_point or dtype.is_complex)
    )


def decompose(
    em: Emitter,
    func: Any,
    args: list[Any],
    kwargs: dict[str, Any],
    lower_one: Callable[..., list[Value | None] | None],
) -> list[Value | None] | None:
    """Lower a call by its decomposition; None if it has none whose ops can all be lowered."""
    if func not in _table() or str(func).startswith(_KEEP) or _rounds_bounds(func, kwargs):
        return None
    if torch.Tag.nondeterministic_seeded in func.tags:
        return None
    words = tuple(
        [(k, _key(v)) for k, v in kwargs.items()]
    )  # in order, since operands are numbered by it
    settings = (torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled())
    key = (func, _key(args), words, settings)
    if key not in _recordings:
        _recordings[key] = _record(func, args, kwargs)
    recording = _recordings[key]
    if recording is None or not _holds_for_all(key, recording, func, args, kwargs):
        return None
    values: dict[int, Value] = {}
    for leaf in pytree.arg_tree_leaves(*args, **kwargs):
        if isinstance(leaf, Value):
            values[len(values)] = leaf

    def substitute(item: Any) -> Any:
        if isinstance(item, _Ref):
            return values[item.number]
        if isinstance(item, list):
            return [substitute(i) for i in item]
        return item

    outer, em.current = em.current, None
    try:
        for step in recording.steps:
            step_kwargs = {k: substitute(v) for k, v in step.kwargs.items()}
            lowered = lower_one(em, step.func, substitute(step.args), step_kwargs, step.results)
            if lowered is None:
                _recordings[key] = None
                return None
            for want, got in zip(step.results, lowered):
                if want is not None and got is not None:
                    values[want.id] = got
    finally:
        em.current = outer
    return [None if r is None else values[r.number] for r in recording.results]
