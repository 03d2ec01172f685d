"""Optimizers of tables with sparse gradients: a step changes only the rows that were looked up (by embeddings, gather,
index_select or `w[i]`), and their state.

Gradients in a graph are dense. The rows that were looked up are found in the trace: the backward of a look-up has its
indices as an operand.
"""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from gflow.errors import GraphTraceError

from ..context.location import user_line
from ..data.values import TraceOp, TraceValue
from ..dispatch.functions.proxies import unwrap
from ..dispatch.recorder import Recorder, untraced
from .scaler import choose, values_now

aten = torch.ops.aten
#: ops that may be between an embedding's gradient and the optimizer: they keep zero rows zero
_ROWWISE = {
    aten.add.Tensor,
    aten.mul.Tensor,
    aten.mul.Scalar,
    aten.div.Tensor,
    aten.div.Scalar,
    aten.neg.default,
    aten.clone.default,
    aten._to_copy.default,
}

#: backwards of embeddings → the position of their padding index among the arguments (none: -1)
_BACKWARDS = {
    aten.embedding_dense_backward.default: 3,
    aten._embedding_bag_backward.default: 11,
}
#: backwards of gather, index_select and w[i] along dimension 0: they add to zeros
_ADDITIONS = {
    aten.scatter_add.default,
    aten.index_add.default,
    aten.index_put.default,
}
_LOOK_UPS = {
    aten.embedding.default,
    aten._embedding_bag.default,
    aten.gather.default,
    aten.index_select.default,
    aten.index.Tensor,
    aten.select.int,
}
#: look-ups along a dimension
_ALONG = {aten.gather.default, aten.index_select.default, aten.select.int}
_ZEROS = {aten.full.default, aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default}


def run_step(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer.step()` on dense gradients. `SparseAdam`'s own step requires sparse ones, so another implementation
    runs."""
    adam = torch.optim.SparseAdam
    if isinstance(optimizer, adam) and type(optimizer).step is adam.step:
        _sparse_adam(optimizer)
    else:
        optimizer.step()


def _calls_none(error: TypeError) -> bool:
    """Whether the error is that a step has called its closure, which is None."""
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    takes = any(code.co_name == "step" and "closure" in code.co_varnames for code in frames)
    return takes and "'NoneType' object is not callable" in str(error)


@contextlib.contextmanager
def one_update(where: str) -> Iterator[None]:
    """While active, report a step that runs the model again, forward or backward, as an error.

    Raises:
        GraphTraceError: on leaving: step() needed a closure, or the autograd history of gradients.
    """
    try:
        yield
    except TypeError as error:
        if "closure" not in str(error) and not _calls_none(error):
            raise
        raise GraphTraceError(
            f"{where}: step() needs a closure, so it runs the model several times; a graph holds one update "
            "per call. Use an optimizer whose step() takes no closure."
        ) from error
    except RuntimeError as error:
        if "does not require grad" not in str(error) and "does not have grad_fn" not in str(error):
            raise
        raise GraphTraceError(
            f"{user_line(error)}{where}: step() differentiates gradients (it needs "
            "backward(create_graph=True)); in a graph, gradients have no history in step(). Compute "
            "second derivatives in build(), with torch.autograd.grad(..., create_graph=True)."
        ) from error


@torch.no_grad()
def _sparse_adam(optimizer: torch.optim.SparseAdam) -> None:
    """The step of `SparseAdam` for all rows; `keep_rows` undoes it for those that were not looked up."""
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        lr = group["lr"]
        for p in group["params"]:
            if p.grad is None:
                continue
            state = optimizer.state[p]
            if len(state) == 0:
                state["step"] = 0
                state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state["step"] += 1
            gradient = -p.grad if group.get("maximize", False) else p.grad
            mean, square = state["exp_avg"], state["exp_avg_sq"]
            mean.add_((gradient - mean) * (1 - beta1))
            square.add_((gradient * gradient - square) * (1 - beta2))
            scale = math.sqrt(1 - beta2 ** state["step"]) / (1 - beta1 ** state["step"])
            p.add_(mean / (square.sqrt() + group["eps"]) * (-lr * scale))


class SparseStep:
    """The step of a sparse optimizer in one trace; created before the step is traced.

    Raises:
        GraphTraceError: the optimizer has no table, or a gradient is dense.
    """

    def __init__(
        self, session: Any, name: str, optimizer: torch.optim.Optimizer, trained: Sequence[Any]
    ) -> None:
        self.session, self.optimizer = session, optimizer
        recorder: Recorder = session.recorder
        self.before = values_now(session)
        made = {r: op for op in recorder.ops for r in op.results if r is not None}
        self.lookups: list[tuple[torch.Tensor, list[TraceOp]]] = []
        tables = _tables(session)
        if trained and not any(
            id(p) in tables for g in optimizer.param_groups for p in g["params"]
        ):
            names = [session.parameter_names[id(p)] for p in trained]
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise GraphTraceError(
                f"{name} ({type(optimizer).__name__}) is a sparse optimizer: it updates the rows of "
                f"embeddings that a step looks up, but none of its parameters ({names[0]}{more}) is looked "
                "up. Leave is_sparse out, or give it the weights that nn.Embedding, gather, index_select or "
                "weight[index] read rows of."
            )
        for parameter in trained:
            gradient: Any = session.rewrites.wrapper_of(parameter).grad
            ops = _lookups(made, recorder.value_of(unwrap(gradient)))
            if ops is not None:
                self.lookups.append((parameter, ops))
            elif isinstance(optimizer, torch.optim.SparseAdam):
                raise GraphTraceError(
                    f"{name} (SparseAdam): the gradient of {session.parameter_names[id(parameter)]} "
                    "is dense: the parameter is used for more than look-ups of rows. Use "
                    "Adam for it."
                )

    def keep_rows(self) -> None:
        """Select the old values of rows that were not looked up, and of their state."""
        session = self.session
        after = values_now(session)
        for parameter, ops in self.lookups:
            rows = parameter.shape[0]
            session.locator.optimizer = True
            looked_up = _rows(session, ops, rows)
            mask = _emit(
                session, aten.view.default, (looked_up, [rows] + [1] * (parameter.ndim - 1)),
                (rows, *[1] * (parameter.ndim - 1)), torch.bool,
            )  # fmt: skip
            state = self.optimizer.state.get(parameter, {}).values()
            like = [t for t in state if isinstance(t, torch.Tensor) and t.shape == parameter.shape]
            for real in (parameter, *like):
                proxy = session.rewrites.proxies[id(real)]
                old = session.recorder.inputs[proxy.index].value
                old, new = self.before.get(proxy.index, old), after[proxy.index]
                if new is not old:
                    choose(session, proxy, mask, new, old)
            session.locator.optimizer = False


def _tables(session: Any) -> set[int]:
    """The ids of weights of embedding modules, and of parameters whose rows this trace looks up."""
    found = {
        id(module.weight)
        for module in session.table.modules
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))
    }
    looked_up = {
        op.args[0]
        for op in session.recorder.ops
        if op.func in _LOOK_UPS and (op.func not in _ALONG or op.args[1] == 0)
    }
    inputs = session.recorder.inputs
    return found | {id(i.tensor) for i in inputs if i.tensor is not None and i.value in looked_up}


def _lookups(made: dict[TraceValue, TraceOp], gradient: TraceValue) -> list[TraceOp] | None:
    """The backwards of look-ups whose sum a gradient is; None if it is no such sum."""
    op = made.get(gradient)
    if op is None:
        return None
    if op.func in _BACKWARDS or _adds_rows(made, op):
        return [op]
    if op.func not in _ROWWISE:
        return None
    found: list[TraceOp] = []
    for arg in op.args:
        if op.func is not aten.add.Tensor and (not isinstance(arg, TraceValue) or not arg.shape):
            continue  # a factor
        if not isinstance(arg, TraceValue):
            return None
        more = _lookups(made, arg) if arg.shape == gradient.shape else None
        if more is None:
            return None
        found += more
    return found


def _adds_rows(made: dict[TraceValue, TraceOp], op: TraceOp) -> bool:
    """Whether an op is the backward of a look-up of rows that belongs to no embedding."""
    if op.func is aten.select_backward.default:
        return bool(op.args[2] == 0)
    base = made.get(op.args[0]) if op.func in _ADDITIONS else None
    if base is None or base.func not in _ZEROS:
        return False
    if base.func is aten.full.default and base.args[1] != 0:
        return False
    if op.func is aten.index_put.default:
        first = op.args[1][0]
        return first is not None and first.dtype != torch.bool
    return bool(op.args[1] == 0)


def _index(session: Any, op: TraceOp, rows: int) -> tuple[Any, int]:
    """The indices of the rows to which an op's gradient belongs, and the padding index (none: -1)."""
    if op.func in _BACKWARDS:
        at = _BACKWARDS[op.func]
        return op.args[1], op.args[at] if len(op.args) > at else -1
    if op.func is aten.select_backward.default:
        row = op.args[3] % rows
        return _emit(session, aten.full.default, ([1], row), (1,), torch.int64), -1
    index = op.args[1][0] if op.func is aten.index_put.default else op.args[2]
    # w[-1] is the last row
    return _emit(session, aten.remainder.Scalar, (index, rows), index.shape, index.dtype), -1


def _rows(session: Any, ops: Sequence[TraceOp], rows: int) -> TraceValue:
    """A boolean mask of the rows that were looked up."""
    counts = _emit(session, aten.full.default, ([rows], 0.0), (rows,), torch.float32)
    for op in ops:
        index, padding = _index(session, op, rows)
        count = math.prod(index.shape)
        flat = _emit(session, aten.view.default, (index, [count]), (count,), index.dtype)
        used = _emit(session, aten.ne.Scalar, (flat, padding), (count,), torch.bool)
        ones = _emit(session, aten._to_copy.default, (used,), (count,), torch.float32)
        args = (counts, 0, flat, ones)
        counts = _emit(session, aten.index_add.default, args, (rows,), torch.float32)
    return _emit(session, aten.gt.Scalar, (counts, 0.0), (rows,), torch.bool)


def _emit(
    session: Any, func: Any, args: Any, shape: Sequence[int], dtype: torch.dtype
) -> TraceValue:
    """Append one op to the trace."""
    with untraced():
        like = torch.empty(tuple(shape), dtype=dtype)
    value = session.recorder.value_of(session.recorder.fake_like(like))
    kwargs = {"dtype": dtype} if func in (aten.full.default, aten._to_copy.default) else {}
    loc = session.locator.here()
    session.recorder.ops.append(TraceOp(func, args, kwargs, [value], loc))
    return value
