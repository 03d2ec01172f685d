"""Functions of PyTorch that read values on the way to a result whose shape does not depend on them. Here they compute
without reading; what PyTorch checks on the way becomes a check of the program."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F

from ..failures.assertions import fail_if
from ..recorder import untraced
from .proxies import Handler, TensorProxies, plain

Tensor = torch.Tensor


def _combinations(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """By positions, which follow from the length; PyTorch selects them by a mask."""
    given = dict(zip(("input", "r", "with_replacement"), args, strict=False)) | kwargs
    input, r = given["input"], given.get("r", 2)
    if input.dim() != 1 or type(input.shape[0]) is not int or type(r) is not int or r < 1:
        return func(*args, **kwargs)
    with untraced():
        places = torch.arange(input.shape[0])
        chosen = torch.combinations(places, r, given.get("with_replacement", False))
    return input[chosen.to(input.device)]


def _weighted(weights: Tensor, name: str, count: int) -> Tensor:
    """The weights of `cov`, checked as PyTorch checks them."""
    if weights.dim() > 1:
        raise RuntimeError(
            f"cov(): expected {name} to have one or fewer dimensions but got {name} with {weights.dim()} dimensions"
        )
    whole = not weights.is_floating_point() and not weights.is_complex()
    if name == "fweights" and (not whole or weights.dtype == torch.bool):
        raise RuntimeError(
            f"cov(): expected fweights to have integral dtype but got fweights with {weights.dtype} dtype"
        )
    if name == "aweights" and not weights.is_floating_point():
        raise RuntimeError(
            f"cov(): expected aweights to have floating point dtype but got aweights with {weights.dtype} dtype"
        )
    if weights.numel() != count:
        raise RuntimeError(
            f"cov(): expected {name} to have the same numel as there are observations in the input but got "
            f"{weights.numel()} != {count}"
        )
    fail_if(weights < 0, "RuntimeError", f"cov(): {name} cannot be negative")
    return weights


def _cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:  # fmt: skip
    """`torch.cov`, whose weights and number of degrees of freedom may be values."""
    if input.dim() > 2:
        raise RuntimeError(
            "cov(): expected input to have two or fewer dimensions but got an input with "
            f"{input.dim()} dimensions"
        )
    if input.dtype == torch.bool:
        raise RuntimeError("cov(): bool dtype is not supported for input")
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    count = rows.shape[1]
    weights = None if fweights is None else _weighted(fweights, "fweights", count)
    if aweights is not None:
        checked = _weighted(aweights, "aweights", count)
        weights = checked if weights is None else weights * checked
    if weights is None:
        average, freedom = rows.sum(1) / count, count - correction
        if freedom <= 0:
            warnings.warn(_FEW, stacklevel=2)
        rows = rows - average.unsqueeze(1)
        return (torch.mm(rows, rows.t().conj()) / max(freedom, 0)).squeeze()
    total = weights.sum()
    fail_if(total == 0, "RuntimeError", "cov(): weights sum to zero, can't be normalized")
    average = (rows * weights).sum(1) / total
    if aweights is not None and correction != 0:
        left = total - correction * (weights * aweights).sum() / total
    else:
        left = total - correction
    left = torch.where(left <= 0, torch.zeros_like(left), left)
    rows = rows - average.unsqueeze(1)
    return (torch.mm(rows, (rows * weights).t().conj()) / left).squeeze()


_FEW = (
    "cov(): degrees of freedom is <= 0. Correction should be strictly less than the number of "
    "observations."
)


def _corrcoef(input: Tensor) -> Tensor:
    if input.dim() > 2:
        raise RuntimeError(
            "corrcoef(): expected input to have two or fewer dimensions but got an input with "
            f"{input.dim()} dimensions"
        )
    found = _cov(input)
    if not found.dim():
        return found / found
    variance = found.diagonal()
    deviation = torch.sqrt(variance.real if variance.is_complex() else variance)
    found = found / deviation.view(-1, 1) / deviation.view(1, -1)
    if not found.is_complex():
        return found.clip(-1, 1)
    return torch.complex(found.real.clip(-1, 1), found.imag.clip(-1, 1))


def _index_fill(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """With a value that needs a gradient: PyTorch sums that of each position once, for which it sorts the index."""
    given = dict(zip(("input", "dim", "index", "value"), args, strict=False)) | kwargs
    value = given.get("value")
    if len(given) != 4 or not isinstance(value, Tensor) or not value.requires_grad or value.dim():
        return func(*args, **kwargs)
    input = given["input"]
    nowhere = torch.zeros(input.shape, dtype=torch.bool, device=input.device)
    filled = nowhere.index_fill(given["dim"], given["index"], True)
    return torch.where(filled, value.to(input.dtype), input)


def put_by_mask(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A call of `index_put`, `index_put_` or `x[mask] = values` by a mask, as a call whose gradient has a shape
    without reading the mask; other calls, and those without a gradient of the values, are returned as they are.

    Values that are repeated for each element of the mask are chosen by `where`. If each element has values of its own,
    there are as many elements as values, so the mask is converted to positions.
    """
    mask = _mask(args)
    accumulate = args[3] if len(args) == 4 else kwargs.get("accumulate", False)
    if mask is None or (kwargs and [*kwargs] != ["accumulate"]):
        return func, args, kwargs
    x, _, values, *rest = args
    behind = x.dim() - mask.dim()
    rows = values.shape[0] if values.dim() > behind else 1
    if rows != 1:
        if type(rows) is not int or values.dim() != behind + 1:
            return func, args, kwargs
        fail_if(
            mask.sum() != rows, "RuntimeError",
            f"shape mismatch: value tensor of shape {[*values.shape]} cannot be broadcast to the elements of a mask",
        )  # fmt: skip
        places = torch.nonzero_static(mask, size=rows, fill_value=0).unbind(1)
        return func, (x, places, values, *rest), kwargs
    if values.dim() > behind:
        values = values.reshape(values.shape[values.dim() - behind :])
    there = mask.reshape(*mask.shape, *[1] * behind)
    if accumulate:
        chosen = x + torch.where(there, values, torch.zeros_like(values))
    else:
        chosen = torch.where(there, values.to(x.dtype), x)
    if func in (torch.index_put, Tensor.index_put):
        return torch.clone, (chosen,), {}
    return Tensor.copy_, (x, chosen), {}


def _mask(args: tuple[Any, ...]) -> Tensor | None:
    """The mask of a call with the arguments (x, mask, values, ..) whose values need a gradient."""
    if len(args) < 3 or not isinstance(args[2], Tensor) or not args[2].requires_grad:
        return None
    x, mask, values = args[:3]
    if isinstance(mask, (list, tuple)) and len(mask) == 1:
        (mask,) = mask
    fits = isinstance(mask, Tensor) and mask.dtype == torch.bool and 0 < mask.dim() <= x.dim()
    if not fits or mask.shape != x.shape[: mask.dim()] or values.dtype != x.dtype:
        return None
    return mask


def _ctc_loss(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """With lengths in tensors, by an op of the losses alone: the table that PyTorch's op also returns has a width that
    is a value. PyTorch's mean writes lengths that are numbers into a tensor's memory, which a trace does not have."""
    names = (
        "log_probs",
        "targets",
        "input_lengths",
        "target_lengths",
        "blank",
        "reduction",
        "zero_infinity",
    )
    given: dict[str, Any] = {"blank": 0, "reduction": "mean", "zero_infinity": False}
    given |= dict(zip(names, args, strict=False)) | kwargs
    log_probs, inputs, labels = (given[n] for n in ("log_probs", "input_lengths", "target_lengths"))
    many = log_probs.dim() == 3
    rest = (given["blank"], given["zero_infinity"])
    columns = (log_probs if many else log_probs.unsqueeze(1), given["targets"])
    if isinstance(inputs, Tensor) and isinstance(labels, Tensor):
        # imported here for start-up time: few programs have this loss
        from gflow.runtime.torch_ops.ctc import losses

        for lengths in (inputs, labels):
            if lengths.is_floating_point() or lengths.is_complex():
                raise RuntimeError("ctc_loss(): lengths must be integral")
        found = losses(*columns, inputs.reshape(-1), labels.reshape(-1), *rest)
    else:
        found = torch._ctc_loss(*columns, inputs, labels, *rest)[0]
        labels = torch.tensor(labels, device=log_probs.device)
    found = found if many else found.squeeze(0)
    if given["zero_infinity"]:
        found = torch.where(found == float("inf"), torch.zeros_like(found), found)
    if given["reduction"] in ("mean", 1):
        return (found / labels.clamp(min=1).to(found.device, found.dtype)).mean()
    return found.sum() if given["reduction"] in ("sum", 2) else found


HANDLERS: dict[Any, Handler] = {
    torch.combinations: _combinations,
    torch.cov: plain(_cov),
    Tensor.cov: plain(_cov),
    torch.corrcoef: plain(_corrcoef),
    Tensor.corrcoef: plain(_corrcoef),
    torch.index_fill: _index_fill,
    Tensor.index_fill: _index_fill,
    torch.ctc_loss: _ctc_loss,
    F.ctc_loss: _ctc_loss,
}
