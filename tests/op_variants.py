"""Calls of op_db as people write them elsewhere: operands that lie anyhow or share memory, in place, by `out=`.

Each is run eagerly and compiled; compared are the results, readers of what was written, gradients, and the memory of
all arguments with the gaps between their elements.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from op_db_exceptions import NO_VALUES
from op_db_harness import op_name
from torch._dynamo.exc import TorchDynamoException
from torch.utils import _pytree as pytree

import gflow as flow
from gflow.errors import GraphError
from gflow.lowering.dtypes import LoweringError

Tensor = torch.Tensor
Function = Callable[..., list[Tensor]]

LAYOUTS = ("transposed", "gaps", "expanded", "windows", "conjugate", "negative")
VARIANTS = ("call", "one memory", "in place", "out", "empty out", "out is an operand")
FRONTENDS: dict[str, Callable[[Function], Function]] = {
    "graph": lambda function: flow.nn.Graph.trace(with_gradients(function)),
    "compile": lambda function: with_gradients(flow.compile(function)),
    "backend": lambda function: with_gradients(torch.compile(function, backend="gflow")),
}
#: ops whose eager answer is that of no definition: (op, variant) → why
EAGER_IS_WRONG = {
    ("narrow_copy", "out"): "writes as if what takes the result were row-major",
    ("nn.functional.avg_pool3d", "out"): "writes as if what takes the result were row-major",
    ("linalg.inv", "out is an operand"): "gives the unit matrix for a transposed operand",
    ("linalg.ldl_solve", "out is an operand"): "reads what it has written",
    ("mean", "out is an operand"): "clears what it then reads",
    ("masked.median", "call"): "reads memory that nothing wrote where the operand is expanded",
    ("nn.functional.linear", "out"): "gives what takes the result other strides",
    ("nn.functional.linear", "out is an operand"): "reads what it has written",
    **{
        (
            f"{name}_scatter",
            "call",
        ): "writes into a copy whose elements share memory as the operand's do"
        for name in ("diagonal", "select", "slice")
    },
    (
        "native_group_norm",
        "call",
    ): "gives elements that nothing wrote, where the operand is expanded",
    ("resize_", "call"): "gives elements that nothing wrote",
}


@dataclass(frozen=True)
class Variant:
    """A call as a function of tensors. needs: which of them have gradients."""

    function: Function
    tensors: list[Tensor]
    needs: list[bool]

    def arguments(self) -> list[Tensor]:
        """Copies that lie alike, those of one memory in one."""
        memory: dict[int, torch.UntypedStorage] = {}
        found = []
        for t, needed in zip(self.tensors, self.needs):
            storage = t.untyped_storage()
            copy = memory.setdefault(storage._cdata, storage.clone())
            new = torch.empty(0, dtype=t.dtype)
            new.set_(copy, t.storage_offset(), t.size(), t.stride())  # type: ignore[call-overload]
            new = new.conj() if t.is_conj() else torch._neg_view(new) if t.is_neg() else new
            found.append(new.requires_grad_(needed))
        return found


def place(t: Tensor, layout: str) -> Tensor:
    """The values of a tensor, or some of them, in another layout."""
    t = t.detach().clone()
    if t.numel() == 0 or t.dim() == 0:
        return t
    if layout == "transposed" and t.dim() > 1:
        order = tuple(reversed(range(t.dim())))
        return t.permute(order).contiguous().permute(order)
    if layout in ("transposed", "gaps"):
        return torch.stack([t, t], -1).flatten(-2)[..., 1::2]
    if layout == "expanded":
        return t.narrow(0, 0, 1).clone().expand(t.shape)
    if layout == "windows":
        return t.reshape(-1).as_strided(t.shape, [1] * t.dim())
    if layout == "conjugate" and t.is_complex():
        return t.conj().resolve_conj().conj()
    if layout == "negative" and t.dtype in (torch.float32, torch.float64):
        return torch._neg_view(-t)
    return t


def variant_of(op: Any, sample: Any, variant: str, layout: str) -> Variant | None:
    """None where the op has no such variant, or the sample no dense tensors."""
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    if not at or any(leaves[i].layout != torch.strided for i in at):
        return None
    tensors = [place(leaves[i], layout) for i in at]
    needs = [leaves[i].requires_grad for i in at]
    none = [False] * len(at)

    def call(function: Callable[..., Any], given: Sequence[Tensor], **more: Any) -> list[Tensor]:
        filled = list(leaves)
        for i, t in zip(at, given):
            filled[i] = t
        args, kwargs = pytree.tree_unflatten(filled, spec)
        result = function(*args, **kwargs, **more)
        if variant in ("call", "one memory") and sample.output_process_fn_grad is not None:
            result = sample.output_process_fn_grad(result)
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]

    if variant == "call":
        return Variant(lambda *given: call(op.op, given), tensors, needs)
    if variant == "one memory":
        kinds = {t.dtype for t in tensors}
        if len(kinds) > 1 or any(t.is_conj() or t.is_neg() for t in tensors):
            return None
        base = torch.cat([t.reshape(-1) for t in tensors])

        def views(whole: Tensor) -> list[Tensor]:
            parts = torch.split(whole, [t.numel() for t in tensors])
            return call(op.op, [p.view(t.shape) for p, t in zip(parts, tensors)])

        return Variant(views, [base], [any(needs)])
    if variant == "in place":
        method = op.inplace_variant
        if method is None or at[0] != 0:
            return None
        return Variant(lambda *given: [*call(method, given), *_readers(given[0])], tensors, none)
    if not op.supports_out:
        return None
    try:
        with torch.no_grad():
            wanted = call(op.op, [t.clone() for t in tensors])
    except RuntimeError:  # of these values, or in this layout
        return None
    if variant == "out is an operand":
        like = [(t.shape, t.dtype) for t in tensors]
        if len(wanted) != 1 or (wanted[0].shape, wanted[0].dtype) not in like:
            return None
        n = like.index((wanted[0].shape, wanted[0].dtype))
        return Variant(
            lambda *given: [*call(op.op, given, out=given[n]), *_readers(given[n])], tensors, none
        )
    outs = [place(torch.ones_like(t), layout) for t in wanted]

    def written(*given: Tensor) -> list[Tensor]:
        held = list(given[len(tensors) :])
        if variant == "empty out":
            held = [t.new_empty(0) for t in held]
        result = call(op.op, given, out=held[0] if len(held) == 1 else tuple(held))
        return [*result, *(reader for t in held for reader in _readers(t))]

    return Variant(written, tensors + outs, [False] * len(tensors + outs))


def _readers(t: Tensor) -> list[Tensor]:
    """What depends on how a tensor lies, if it is read wrongly."""
    return [t.reshape(-1), t.transpose(0, -1).contiguous() if t.dim() > 1 else t.clone()]


def with_gradients(function: Function) -> Function:
    """Results, and the gradients of all that can have one."""

    def both(*given: Tensor) -> list[Tensor]:
        results = function(*given)
        sources = [t for t in given if t.requires_grad]
        targets = [r for r in results if r.requires_grad]
        found = [r.detach() for r in results]
        if not sources or not targets:
            return found
        seeds = [torch.linspace(-1, 2, r.numel()).view(r.shape).to(r.dtype) for r in targets]
        grads = torch.autograd.grad(targets, sources, seeds, allow_unused=True)
        return found + [g for g in grads if g is not None]

    return both


def run(variant: Variant, function: Function) -> list[Tensor]:
    """What a function gives, and the memory of the arguments after the call."""
    given = variant.arguments()
    torch.manual_seed(7)
    found = list(function(*given))
    for t in given:
        whole = torch.empty(0, dtype=t.dtype)
        found.append(whole.set_(t.untyped_storage()))  # type: ignore[call-overload]
    return found


def compare(op: Any, variant: Variant, frontend: str) -> str:
    """What is wrong, or an empty string. Errors that gflow names are fine, and so are those of eager."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wanted = run(variant, with_gradients(variant.function))
        except Exception:
            return ""
        try:
            found = run(variant, FRONTENDS[frontend](variant.function))
        except Exception as error:
            within = getattr(error, "inner_exception", error)  # of what TorchDynamo calls
            if isinstance(within, (GraphError, LoweringError)):
                return ""
            of_dynamo = frontend == "backend" and isinstance(error, TorchDynamoException)
            if of_dynamo and _raises_alone(variant, type(error)):
                return ""
            return f"{type(error).__name__}: {error}"[:300]
    if len(found) != len(wanted):
        return f"{len(found)} tensors, eager gives {len(wanted)}"
    for n, (a, b) in enumerate(zip(found, wanted)):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{n}: {a.dtype}{[*a.shape]}, eager {b.dtype}{[*b.shape]}"
        if NO_VALUES & {op.name, op_name(op)}:
            continue
        unit = torch.finfo(b.dtype).eps if b.is_floating_point() or b.is_complex() else 0.0
        size = b.abs()[b.isfinite()].max().item() if unit and b.isfinite().any() else 0.0
        near = {"rtol": 1000 * unit, "atol": 300 * unit * max(size, 1.0)} if unit < 1e-3 else {
            "rtol": 4 * unit, "atol": 4 * unit * max(size, 1.0)
        }  # fmt: skip
        if not torch.allclose(a, b, equal_nan=True, **near):
            return f"{n}: {a.flatten()[:8].tolist()}, eager {b.flatten()[:8].tolist()}"
    return ""


def _raises_alone(variant: Variant, kind: type[Exception]) -> bool:
    """Whether TorchDynamo and AOTAutograd refuse a call without gflow."""
    torch._dynamo.reset()
    try:
        run(variant, with_gradients(torch.compile(variant.function, backend="aot_eager")))
    except kind:
        return True
    except Exception:
        return False
    return False


def drawn(
    rng: random.Random, op: Any, samples: Sequence[Any], frontends: Sequence[str]
) -> tuple[Any, str, str, str]:
    """A sample, a variant, a layout and a way to compile."""
    variants = [v for v in VARIANTS if (op_name(op), v) not in EAGER_IS_WRONG]
    return rng.choice(samples), rng.choice(variants), rng.choice(LAYOUTS), rng.choice(frontends)
