"""Calls drawn from PyTorch's own samples (`op_db`): a function, a method in place, or with `out=`."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from op_db_exceptions import EXPECTED_FAILURES, EXPECTED_GRADIENT_FAILURES, NO_VALUES
from torch.utils import _pytree as pytree

from .growth import FLOATS, Growth, Rejected
from .program import Json, dtype_of

#: ops whose results are nobody's promise (signs of eigenvectors, order of equal elements), or whose
#: run time or memory is another's
_OPEN = {
    "linalg.eig", "linalg.eigh", "linalg.qr", "linalg.svd", "svd", "qr", "geqrf", "ormqr", "eig",
    "linalg.householder_product", "symeig", "linalg.ldl_factor", "linalg.ldl_factor_ex",
    "linalg.ldl_solve", "linalg.lu", "linalg.lu_factor", "linalg.lu_factor_ex", "lu", "lu_unpack",
    "linalg.lu_solve", "lu_solve", "mode", "msort", "sort", "argsort", "topk", "kthvalue", "median",
    "nanmedian", "linalg.pinv.hermitian", "linalg.matrix_rank", "linalg.matrix_rank.hermitian",
    "linalg.eigvals", "linalg.lstsq", "nn.functional.embedding_bag", "stft", "istft", "empty_like",
    "unbind_copy", "as_strided", "as_strided_copy", "as_strided_scatter", "resize_", "resize_as_",
    "linalg.cond", "linalg.tensorinv", "normal", "item", "equal", "allclose", "is_nonzero",
    "to_sparse", "jiterator_binary", "histogramdd", "rand", "randn", "randint", "tensordot",
}  # fmt: skip


#: ops that PyTorch itself writes wrongly by out=: as if what takes the result were row-major
_WRONG_OUT = ("narrow_copy",)


@functools.cache
def _ops() -> Mapping[str, Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    named = {
        (f"{o.name}.{o.variant_test_name}" if o.variant_test_name else o.name): o for o in op_db
    }
    return dict(sorted(named.items()))


def op_named(name: str) -> Callable[..., Any]:
    """The function of an op of op_db; with "_" at the end in place, with "+out" that of `out=`."""
    op = _ops()[name.removesuffix("+_")]
    return op.inplace_variant if name.endswith("+_") else op.op


@functools.cache
def _drawable(grad: bool) -> tuple[str, ...]:
    left_out = {
        *EXPECTED_FAILURES,
        *NO_VALUES,
        *_OPEN,
        *(EXPECTED_GRADIENT_FAILURES if grad else ()),
    }
    return tuple(
        n for n, o in _ops().items()
        if n not in left_out and o.name not in left_out and (o.supports_autograd or not grad)
    )  # fmt: skip


@functools.cache
def _samples(name: str, dtype: torch.dtype) -> tuple[Any, ...]:
    """A few samples, the same ones each time."""
    state = torch.get_rng_state()
    torch.manual_seed(0)
    found: list[Any] = []
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            for i, sample in enumerate(_ops()[name].sample_inputs("cpu", dtype)):
                found.append(sample)
                if i >= 15:
                    break
    except Exception as error:
        raise Rejected(f"no samples: {error}") from None
    finally:
        torch.set_rng_state(state)
    return tuple(found)


def _literal(leaf: Any) -> Json:
    if isinstance(leaf, torch.dtype):
        return {"d": str(leaf).removeprefix("torch.")}
    if isinstance(leaf, float) and not math.isfinite(leaf):
        return {"f": str(leaf)}
    if isinstance(leaf, complex):
        return {"c": [leaf.real, leaf.imag]}
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return leaf
    if isinstance(leaf, slice):
        return {"s": [leaf.start, leaf.stop, leaf.step]}
    if leaf is Ellipsis:
        return {"py": "..."}
    if isinstance(leaf, torch.memory_format):
        return {"py": str(leaf)}
    raise Rejected(f"a sample with {type(leaf).__name__}")


def _argument(g: Growth, t: torch.Tensor) -> Any:
    """A sample's tensor as an argument of the program, with other strides."""
    if t.layout != torch.strided or t.numel() > 3000 or t.is_conj() or t.is_neg():
        raise Rejected("a sample's tensor")
    dtype = str(t.dtype).removeprefix("torch.")
    made = g.argument(tuple(t.shape), dtype, role="input")
    # the sample's values, in whatever layout was drawn
    spec = g.tensors[-1]
    if any(s == 0 for s, n in zip(spec.strides, spec.shape) if n > 1) or _overlaps(made.tensor):
        plain = g.argument(tuple(t.shape), dtype, role="input", plain=True)
        g.values.remove(made)
        made, spec = plain, g.tensors[-1]
    elements = g.elements[spec.storage]
    if sum(t2.storage == spec.storage for t2 in g.tensors) == 1:
        with torch.no_grad():
            made.tensor.detach().copy_(t)
        listed = [_element(v) for v in elements.tolist()]
        from dataclasses import replace

        g.storages[spec.storage] = replace(g.storages[spec.storage], values=tuple(listed))
    return made


def _overlaps(t: torch.Tensor) -> bool:
    pairs = sorted((s, n) for s, n in zip(t.stride(), t.shape) if n > 1)
    extent = 1
    for s, n in pairs:
        if s < extent:
            return True
        extent = s * (n - 1) + extent
    return False


def _element(v: Any) -> Json:
    if isinstance(v, complex):
        return [str(v.real), str(v.imag)] if not _finite(v) else [v.real, v.imag]
    return str(v) if isinstance(v, float) and not math.isfinite(v) else v


def _finite(v: complex) -> bool:
    return math.isfinite(v.real) and math.isfinite(v.imag)


def sample(g: Growth) -> None:
    """One sample of one op, as a call on new arguments."""
    names = _drawable(g.settings.grad)
    name = g.choice(names)
    op = _ops()[name]
    dtype = dtype_of(g.main)
    if dtype not in op.supported_dtypes("cpu") or g.chance(0.1):
        others = sorted((d for d in op.supported_dtypes("cpu")), key=str)
        others = [
            d
            for d in others
            if str(d).removeprefix("torch.") in (*FLOATS, "int64", "int32", "bool")
        ]
        if g.settings.grad:
            others = [d for d in others if d.is_floating_point]
        if not others:
            raise Rejected("no dtype")
        dtype = g.choice(others)
    found = _samples(name, dtype)
    if not found:
        raise Rejected("no samples")
    chosen = g.choice(found)
    leaves, spec = pytree.tree_flatten(((chosen.input, *chosen.args), dict(chosen.kwargs)))
    if not all(isinstance(x, torch.Tensor) for x in leaves):
        [_literal(x) for x in leaves if not isinstance(x, torch.Tensor)]
    given = [
        _argument(g, x) if isinstance(x, torch.Tensor) else _Literal(_literal(x)) for x in leaves
    ]
    args, kwargs = pytree.tree_unflatten(given, spec)
    if g.chance(0.15) and op.inplace_variant is not None:
        g.emit(
            f"op_db:{name}+_",
            *map(_bare, args),
            effect=True,
            **{k: _bare(v) for k, v in kwargs.items()},
        )
        return
    result = g.emit(f"op_db:{name}", *map(_bare, args), **{k: _bare(v) for k, v in kwargs.items()})
    if op.supports_out and name not in _WRONG_OUT and g.chance(0.1) and not g.settings.grad:
        out = g.argument(result.shape, result.dtype, role="input")
        named = {k: _bare(v) for k, v in kwargs.items()}
        g.emit(f"op_db:{name}", *map(_bare, args), effect=True, out=out, **named)


class _Literal:
    """JSON that is an argument already."""

    def __init__(self, json: Json) -> None:
        self.json = json


def _bare(value: Any) -> Any:
    if isinstance(value, _Literal):
        return value.json
    if isinstance(value, tuple):
        return tuple(_bare(v) for v in value)
    if isinstance(value, list):
        return [_bare(v) for v in value]
    return value


DRAWS = [(26.0, sample)]
