"""Each op that autocast has a policy for on the CPU, beside eager under autocast: with `enable_amp`, and with
`torch.autocast` in `build()`.

Operands are results of products, so that they are halves in memory, and sums of them are exact. What autocast computes
in float32 is float32 in a graph, too, with the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gflow as flow

Tensor = torch.Tensor
_INT = torch.tensor


def _loss(*more: Any) -> Callable[[Tensor], tuple[Any, ...]]:
    """Arguments of a loss: a matrix, another, and more."""
    return lambda m: (m, m.flip(0) * 0.5, *more)


def _matrix(m: Tensor) -> tuple[Any, ...]:
    return (m,)


def _positive(m: Tensor) -> Tensor:
    """A symmetric positive definite matrix."""
    return torch.eye(4) * 4 + (m + m.mT) * 0.5


def _definite(*more: Any) -> Callable[[Tensor], tuple[Any, ...]]:
    return lambda m: (_positive(m), *more)


def _image(dims: int, *more: Any) -> Callable[[Tensor], tuple[Any, ...]]:
    """An image of two channels."""
    return lambda m: (
        m.repeat(2, 2).reshape(1, 2, *{1: (32,), 2: (4, 8), 3: (2, 4, 4)}[dims]),
        *more,
    )


def _convolution(dims: int, *more: Any) -> Callable[[Tensor], tuple[Any, ...]]:
    return lambda m: (
        *_image(dims)(m),
        m.repeat(2, 2).reshape(-1)[: 4 * 2**dims].reshape(2, 2, *[2] * dims),
        *more,
    )


_LABELS = _INT([1, 0, 3, 2])
_GRID = torch.linspace(-0.9, 0.9, 18)

#: op → its arguments, given a 4 x 4 matrix of halves
CASES: dict[str, Callable[[Tensor], tuple[Any, ...]]] = {
    # in halves
    "_addmm_activation": lambda m: (m[0], m, m),
    "_convolution.deprecated": _convolution(2, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, False),
    "addbmm": lambda m: (m, m[None], m[None]),
    "addmm": lambda m: (m[0], m, m),
    "baddbmm": lambda m: (m[None], m[None], m[None]),
    "bmm": lambda m: (m[None], m[None]),
    "conv1d": _convolution(1),
    "conv1d.padding": _convolution(1, None, [1], "same"),
    "conv2d": _convolution(2),
    "conv2d.padding": _convolution(2, None, [1, 1], "same"),
    "conv3d": _convolution(3),
    "conv3d.padding": _convolution(3, None, [1, 1, 1], "same"),
    "conv_tbc": lambda m: (m.reshape(4, 2, 2), m.reshape(-1)[:8].reshape(2, 2, 2), m[0, :2]),
    "conv_transpose1d": _convolution(1),
    "conv_transpose2d.input": _convolution(2),
    "conv_transpose3d.input": _convolution(3),
    "linalg_vecdot": lambda m: (m, m),
    "linear": lambda m: (m, m, m[0]),
    "matmul": lambda m: (m, m),
    "mm": lambda m: (m, m),
    "prelu": lambda m: (m, m[0]),
    "scaled_dot_product_attention": lambda m: (m[None, None], m[None, None], m[None, None]),
    # in float32
    "_lu_with_info": _definite(),
    "adaptive_avg_pool3d": _image(3, [1, 2, 2]),
    "adaptive_max_pool3d": _image(3, [1, 2, 2]),
    "avg_pool3d": _image(3, [2, 2, 2]),
    "binary_cross_entropy": lambda m: (m.abs() * 0.25, m.abs() * 0.125),
    "binary_cross_entropy_with_logits": _loss(),
    "cdist": lambda m: (m, m.flip(0)),
    "cholesky": _definite(),
    "cholesky_inverse": _definite(),
    "cholesky_solve": lambda m: (m, _positive(m)),
    "cosine_embedding_loss": _loss(_INT([1, -1, 1, -1])),
    "cross_entropy_loss": lambda m: (m, _LABELS),
    "fake_quantize_per_tensor_affine": lambda m: (m, 0.1, 0, -8, 7),
    **{f"fft_{k}": _matrix for k in (
        "fft", "fft2", "fftn", "ifft", "ifft2", "ifftn", "ihfft", "rfft", "rfft2", "rfftn", "hfft", "irfft", "irfft2",
        "irfftn",
    )},
    "fractional_max_pool2d": _image(2, [2, 2], [2, 4], torch.full((1, 2, 2), 0.3)),
    "fractional_max_pool3d": _image(3, [1, 2, 2], [1, 2, 2], torch.full((1, 2, 3), 0.3)),
    "geqrf": _matrix,
    "grid_sampler": _image(2, _GRID.reshape(1, 3, 3, 2), 0, 0, False),
    "grid_sampler_2d": _image(2, _GRID.reshape(1, 3, 3, 2), 0, 0, False),
    "grid_sampler_3d": _image(3, _GRID.reshape(1, 1, 2, 3, 3), 0, 0, False),
    "hinge_embedding_loss": lambda m: (m, torch.ones(4, 4)),
    "huber_loss": _loss(),
    "inverse": _definite(),
    "kl_div": lambda m: (m, m.abs()),
    "l1_loss": _loss(),
    "linalg_cholesky": _definite(),
    "linalg_cholesky_ex": _definite(),
    "linalg_cond": _definite(),
    "linalg_cond.p_str": _definite("fro"),
    "linalg_eig": _definite(),
    "linalg_eigh": _definite(),
    "linalg_eigvals": _definite(),
    "linalg_eigvalsh": _definite(),
    "linalg_householder_product": lambda m: (m, m[0]),
    "linalg_inv": _definite(),
    "linalg_inv_ex": _definite(),
    "linalg_matrix_rank": _definite(0.1),
    "linalg_matrix_rank.atol_rtol_float": _definite(),
    "linalg_matrix_rank.atol_rtol_tensor": _definite(),
    "linalg_matrix_rank.tol_tensor": _definite(torch.tensor(0.1)),
    "linalg_qr": _definite(),
    "linalg_solve": lambda m: (_positive(m), m),
    "linalg_svd": _definite(),
    "linalg_svdvals": _definite(),
    "linalg_tensorinv": lambda m: (_positive(m).reshape(2, 2, 4), 2),
    "linalg_tensorsolve": lambda m: (_positive(m), m[0]),
    "lu_solve": lambda m: (m, _positive(m), torch.arange(1, 5, dtype=torch.int32)),
    "margin_ranking_loss": _loss(torch.ones(4, 4)),
    "max_pool3d": _image(3, [2, 2, 2]),
    "max_unpool2d": lambda m: (m[None], torch.arange(0, 64, 4).reshape(1, 4, 4), [8, 8]),
    "max_unpool3d": lambda m: (
        m[None, None], torch.arange(0, 64, 4).reshape(1, 1, 4, 4), [1, 8, 8], [1, 2, 2], [0, 0, 0]
    ),
    "mse_loss": _loss(),
    "multi_margin_loss": lambda m: (m, _LABELS),
    "multilabel_margin_loss": lambda m: (m, _INT([[1, 0, -1, 2]] * 4)),
    "multilabel_margin_loss_forward": lambda m: (m, _INT([[1, 0, -1, 2]] * 4), 1),
    "nanquantile": lambda m: (m, torch.tensor([0.3, 0.6])),
    "nanquantile.scalar": lambda m: (m, 0.3),
    "nll_loss": lambda m: (m, _LABELS),
    "nll_loss2d": lambda m: (m.reshape(1, 4, 2, 2), _LABELS.reshape(1, 2, 2)),
    "orgqr": lambda m: (m, m[0]),
    "ormqr": lambda m: (m, m[0], m),
    "pinverse": _definite(),
    "poisson_nll_loss": _loss(True, False, 1e-8, 1),
    "polar": _loss(),
    "prod": _matrix,
    "prod.dim_int": lambda m: (m, 0),
    "qr": _definite(),
    "quantile": lambda m: (m, torch.tensor([0.3, 0.6])),
    "quantile.scalar": lambda m: (m, 0.3),
    "reflection_pad1d": _image(1, [1, 2]),
    "reflection_pad2d": _image(2, [1, 2, 1, 1]),
    "replication_pad1d": _image(1, [1, 2]),
    "replication_pad2d": _image(2, [1, 2, 1, 1]),
    "replication_pad3d": _image(3, [1, 2, 1, 1, 1, 1]),
    "smooth_l1_loss": _loss(),
    "soft_margin_loss": _loss(),
    "stft": lambda m: (m.reshape(1, 16), 4, None, None, None, False, True, True),
    "stft.center": lambda m: (m.reshape(1, 16), 4, None, None, None, True, "reflect", False, True, True),
    "svd": _definite(),
    "trace": _matrix,
    "triangular_solve": lambda m: (m, _positive(m)),
    "triplet_margin_loss": lambda m: (m, m.flip(0), m.flip(1)),
    "view_as_complex": lambda m: (m.reshape(4, 2, 2),),
    # in the widest type of the operands
    "cat": lambda m: ([m, torch.ones(1, 4)],),
    "index_copy": lambda m: (m, 0, _INT([1, 0]), torch.ones(2, 4)),
    "stack": lambda m: ([m, torch.ones(4, 4)],),
}  # fmt: skip

#: kernels that PyTorch calls itself: a grid sampler's for large images, the fast path of attention in inference,
#: oneDNN's recurrent layer
INTERNAL = {"_grid_sampler_2d_cpu_fallback", "_native_multi_head_attention", "mkldnn_rnn_layer"}
#: whose results' shapes depend on values: errors in a graph
REFUSED = {"ctc_loss.IntList", "ctc_loss.Tensor", "linalg_lstsq"}


def _call(name: str, x: Tensor) -> list[Tensor]:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    result = op(*CASES[name](x @ torch.eye(4)))
    return list(result) if isinstance(result, tuple) else [result]


class _All(flow.nn.Graph):
    """Every op of the table."""

    def __init__(self, names: list[str], inside: bool) -> None:
        super().__init__()
        self.names, self.inside = names, inside
        if not inside:
            self.config.enable_amp(dtype=torch.bfloat16)

    def build(self, x: Tensor) -> dict[str, list[Tensor]]:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.inside):
            return {name: _call(name, x) for name in self.names}


def test_the_table_is_pytorchs() -> None:
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
    assert {r.removeprefix("aten::") for r in registered} == {*CASES, *INTERNAL, *REFUSED}


@pytest.mark.parametrize("inside", [False, True], ids=["enable_amp", "autocast"])
def test_every_op(inside: bool) -> None:
    x = torch.randint(-12, 13, (4, 4), generator=torch.Generator().manual_seed(0)) / 16
    with torch.autocast("cpu", torch.bfloat16):
        wanted = {name: _call(name, x) for name in CASES}
    found = _All(list(CASES), inside)(x)
    wrong = []
    for name, results in wanted.items():
        for ours, eager in zip(found[name], results, strict=True):
            if not inside and eager.dtype == torch.bfloat16:  # results keep their types
                assert ours.dtype == torch.float32, name
                eager = eager.float()
                unit = torch.finfo(torch.bfloat16).eps
            else:
                unit = torch.finfo(eager.dtype).eps if eager.is_floating_point() else 1e-7
            if ours.dtype != eager.dtype or not torch.allclose(ours, eager, 8 * unit, 8 * unit):
                wrong.append((name, ours, eager))
    assert not wrong
