"""Ops of op_db that a graph does not run like eager, each with its reason. Data only."""

from __future__ import annotations

_READS_VALUE = "its Python code needs the value of a tensor (an if, .item(), a tensor as a bound)"
_RANK = (
    "gelsd and gelss return residuals of a tall matrix only if it has full rank, which is a value"
)
_SPARSE = "an input or result is a sparse tensor"

#: op → reason; its samples are not all expected to pass.
EXPECTED_FAILURES: dict[str, str] = {
    "as_strided.partial_views": "reads memory around the tensor, which a graph does not have",
    "istft": _READS_VALUE,
    "linalg.lstsq": _RANK,
    "linalg.lstsq.grad_oriented": _RANK,
    "nn.functional.gaussian_nll_loss": _READS_VALUE,
    "nn.functional.one_hot": "without num_classes: " + _READS_VALUE,
    "sparse.mm.reduce": _SPARSE,
    "sparse.sampled_addmm": _SPARSE,
    "to_sparse": _SPARSE,
}

#: As EXPECTED_FAILURES, for gradients only.
EXPECTED_GRADIENT_FAILURES: dict[str, str] = {
    "masked_select": "a gradient is given for a result whose shape depends on values",
}

#: Random or uninitialized results: shapes and dtypes are compared, values are not.
NO_VALUES: frozenset[str] = frozenset({
    "bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "empty_strided", "exponential",
    "geometric", "log_normal", "multinomial", "new_empty", "new_empty_strided", "normal",
    "normal.in_place", "normal.number_mean", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "uniform", "nn.functional.alpha_dropout", "nn.functional.dropout",
    "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout.with_train", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.multi_head_attention_forward",
    "nn.functional.rrelu", "nn.functional.scaled_dot_product_attention", "pca_lowrank",
    "svd_lowrank",
})  # fmt: skip

#: op → (rtol, atol), where the default is too strict.
TOLERANCE: dict[str, tuple[float, float]] = {}
