"""Functions of the dialect, a few for each op, with tensors for their arguments, to test forms for engines with.

The oracle is `ir_interpreter`, which runs ops by PyTorch's eager kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from codegen_harness import CONTEXT, Arg, b, copies, full, make
from ir_interpreter import DTYPES, run_module

from gflow.dialects import builder
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.pooling import pooled_type
from gflow.dialects.types import TensorType

INF, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class EngineCase:
    """op: what it is about. special: its values are infinities, NaN and the like."""

    op: str
    name: str
    module: ir.Module
    args: list[torch.Tensor]
    rtol: float
    atol: float
    special: bool = False
    dtype: str = "f32"


CASES: list[EngineCase] = []

_ROUGH = {"f64": (1e-9, 1e-9), "f32": (2e-5, 1e-5), "f16": (4e-3, 1e-3), "bf16": (2e-2, 3e-2)}


def case(
    op: str,
    args: Sequence[Arg],
    body: Callable[..., Any],
    label: str = "",
    special: bool = False,
    rough: float = 1.0,
) -> None:
    def results(*operands: ir.Value) -> Sequence[ir.Value]:
        found = body(*operands)
        return found if isinstance(found, (list, tuple)) else [found]

    dtype = args[0].dtype if args else "f32"
    made = make(op, args, results, seed=len(CASES))
    rtol, atol = _ROUGH.get(dtype, (1e-5, 1e-5))
    name = "-".join(filter(None, [op, label, dtype]))
    CASES.append(
        EngineCase(op, name, made.module, made.args, rough * rtol, rough * atol, special, dtype)
    )


def compared(case: EngineCase, got: list[torch.Tensor], want: list[torch.Tensor]) -> str:
    """What is wrong with an engine's results; "" if they are right."""
    for n, (a, w) in enumerate(zip(got, want, strict=True)):
        try:
            torch.testing.assert_close(
                a, w, rtol=case.rtol, atol=case.atol, equal_nan=True, check_stride=False
            )
        except AssertionError as error:
            return f"{case.name}, result {n}: {error}"
    return ""


def check(cases: Sequence[EngineCase], run: Callable[[EngineCase], list[torch.Tensor]]) -> None:
    """All cases through an engine, beside eager's kernels.

    Raises:
        AssertionError: some differ; it lists them.
    """
    failures = []
    with CONTEXT:
        for one in cases:
            want = run_module(one.module, copies(one.args))
            try:
                found = compared(one, run(one), want)
            except (RuntimeError, ValueError) as error:  # an engine's own refusals
                found = f"{one.name}: {type(error).__name__}: {error}"
            if found:
                failures.append(found)
    assert not failures, f"{len(failures)} of {len(cases)}\n" + "\n".join(failures)


def several(op: str, operands: Sequence[ir.Value], **attrs: Any) -> list[ir.Value]:
    return list(builder.build_op(op, operands, attrs).results)


# -- elementwise

#: where functions are defined, if not everywhere
_DOMAIN = {
    "sqrt": (0.01, 9), "rsqrt": (0.01, 9), "log": (0.01, 9), "log2": (0.01, 9), "log10": (0.01, 9),
    "log1p": (-0.9, 9), "asin": (-1, 1), "acos": (-1, 1), "atanh": (-0.95, 0.95),
    "acosh": (1.01, 9), "erfinv": (-0.99, 0.99), "sinh": (-9, 9), "cosh": (-9, 9), "exp": (-9, 9),
    "exp2": (-9, 9), "expm1": (-9, 9), "tan": (-1.4, 1.4), "pow": (0.1, 4),
}  # fmt: skip
_SPECIAL = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, INF, -INF, NAN, 3.0, 1e-8, 1e6, -1e6]
)
#: NaN's sign is nobody's business, and what a function gives at its pole may differ in sign
_NO_SPECIAL = {"tan", "atan2", "pow", "sin", "cos"}
_DTYPES = {"float": ("f32", "f64", "bf16"), "number": ("f32", "i64", "i32", "ui8"), "integer": ("i64", "i32", "ui8"),
           "bits": ("i64", "i1", "ui8"), "any": ("f32", "i64", "i1"), "bool": ("i1",)}  # fmt: skip


def _beside_numbers() -> None:
    """Numbers that are the same everywhere have forms of their own in extremes; NaN stays NaN."""
    given = [Arg((16,), "f32", values=_SPECIAL)]
    for name in ("maximum", "minimum"):
        case(name, given, lambda x, n=name: b(n, x, full(0.5, x)), "number", special=True)
        case(name, given, lambda x, n=name: b(n, full(-1, x), x), "number first", special=True)
    for predicate in ("lt", "le", "gt", "ge", "ne"):
        for number in (0, 6):
            case("select", given, lambda x, p=predicate, n=number: _bounded(x, x, p, n),
                 f"{predicate}-{number}", special=True)  # fmt: skip
    line = [Arg((4,), "f32", values=_SPECIAL[:4]), Arg((3, 4))]
    case("select", line, lambda x, y: _bounded(_rows(x), y, "lt", 0), "other")
    case("select", line[:1], lambda x: _bounded(_rows(x), _rows(x), "lt", 0), "expanded")


def _rows(x: ir.Value) -> ir.Value:
    return b("broadcast", x, shape=(3, 4), dims=(1,))


def _bounded(x: ir.Value, y: ir.Value, predicate: str, number: float) -> ir.Value:
    """The number where `y` lies beyond it, else `x`."""
    return b("select", b("compare", y, full(number, y), predicate=predicate), full(number, x), x)


def _between(low: float, high: float, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(CASES))
    return (torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low).to(
        DTYPES[dtype]
    )


def _elementwise() -> None:
    for name, definition in OPS.items():
        if definition.category != "elementwise" or name in ("compare", "select", "convert"):
            continue
        count = len(definition.operands)
        for dtype in _DTYPES[definition.dtypes]:
            values = None
            if name in _DOMAIN and dtype in ("f32", "f64", "bf16"):
                low, high = _DOMAIN[name]
                values = _between(low, high, (3, 40), dtype)
            elif name in ("shift_left", "shift_right"):
                values = torch.randint(0, 70, (3, 40)).to(DTYPES[dtype])
            args = [
                Arg((3, 40), dtype, values=values if i == 0 or "shift" not in name else None)
                for i in range(count)
            ]
            if "shift" in name:
                args[1] = Arg(
                    (3, 40), dtype, values=torch.randint(0, 70, (3, 40)).to(DTYPES[dtype])
                )
            if name == "pow" and dtype in ("i64", "i32", "ui8"):
                low = 0 if dtype == "ui8" else -2
                args = [Arg((3, 40), dtype, values=torch.randint(low, 4, (3, 40)).to(DTYPES[dtype])),
                        Arg((3, 40), dtype, values=torch.randint(low, 9, (3, 40)).to(DTYPES[dtype]))]  # fmt: skip
            case(name, args, lambda *xs, name=name: b(name, *xs), rough=4)
        if definition.dtypes in ("float", "number", "any") and name not in _NO_SPECIAL:
            values = [_SPECIAL, _SPECIAL.roll(1), _SPECIAL.roll(5)][:count]
            args = [Arg((16,), "f32", values=v) for v in values]
            case(name, args, lambda *xs, name=name: b(name, *xs), "special", special=True, rough=4)
    for predicate, dtype in itertools.product(
        ("eq", "ne", "lt", "le", "gt", "ge"), ("f32", "i64", "i1", "ui8")
    ):
        case(
            "compare",
            [Arg((3, 40), dtype)] * 2,
            lambda x, y, p=predicate: b("compare", x, y, predicate=p),
            predicate,
        )
    for dtype in ("f32", "i64", "i1", "bf16"):
        case(
            "select",
            [Arg((3, 40), "i1"), Arg((3, 40), dtype), Arg((3, 40), dtype)],
            lambda p, x, y: b("select", p, x, y),
            dtype,
        )
    for a, to in itertools.permutations(("f32", "f64", "bf16", "f16", "i64", "i32", "i1"), 2):
        case(
            "convert",
            [Arg((3, 40), a)],
            lambda x, to=to: b("convert", x, dtype=to),
            to,
            rough=1000 if "16" in to else 1,
        )


# -- shapes and indexing


def _index(shape: Sequence[int], size: int, dtype: str = "i64") -> Arg:
    generator = torch.Generator().manual_seed(len(CASES))
    values = torch.randint(0, size, tuple(shape), generator=generator).to(DTYPES[dtype])
    return Arg(tuple(shape), dtype, values=values)


def _shapes() -> None:
    for dtype in ("f32", "i64", "i1", "bf16", "f64"):
        x = Arg((2, 3, 4), dtype)
        case("reshape", [x], lambda x: b("reshape", x, shape=(6, 4)))
        case("transpose", [x], lambda x: b("transpose", x, permutation=(2, 0, 1)))
        case(
            "broadcast",
            [Arg((3, 1), dtype)],
            lambda x: b("broadcast", x, shape=(2, 3, 4), dims=(1, 2)),
        )
        case(
            "slice",
            [x],
            lambda x: b("slice", x, starts=(0, 1, 1), limits=(2, 3, 4), strides=(1, 1, 2)),
        )
        case("pad", [x, Arg((), dtype)], lambda x, v: b("pad", x, v, low=(1, 0, 2), high=(0, 1, 1)))
        case("concatenate", [x, Arg((2, 1, 4), dtype)], lambda x, y: b("concatenate", x, y, dim=1))
        case("reverse", [x], lambda x: b("reverse", x, dims=(0, 2)))
        case("take", [x, _index((2, 5), 3)], lambda x, i: b("take", x, i, dim=1))
        case("gather", [x, _index((2, 5, 3), 3)], lambda x, i: b("gather", x, i, dim=1))
        # of equal indices the last counts
        case(
            "index_copy",
            [x, _index((7,), 3), Arg((2, 7, 4), dtype)],
            lambda x, i, s: b("index_copy", x, i, s, dim=1),
        )
        case(
            "index_copy",
            [x, _index((1,), 2), Arg((1, 3, 4), dtype)],
            lambda x, i, s: b("index_copy", x, i, s, dim=0),
            "one",
        )
    case(
        "index_copy",
        [Arg((3, 6)), _index((64,), 6, "i32"), Arg((3, 64))],
        lambda x, i, s: b("index_copy", x, i, s, dim=1),
        "i32",
    )
    case(
        "index_copy",
        [Arg((3, 6)), _index((0,), 1), Arg((3, 0))],
        lambda x, i, s: b("index_copy", x, i, s, dim=1),
        "none",
    )
    case("take", [Arg((6, 4)), _index((7,), 6, "i32")], lambda x, i: b("take", x, i, dim=0), "i32")
    case("gather", [Arg(()), _index((), 1)], lambda x, i: b("gather", x, i, dim=0), "scalar")
    for dtype in ("f32", "f64", "i64"):
        case(
            "index_add",
            [Arg((3, 5, 2), dtype), _index((4,), 5), Arg((3, 4, 2), dtype)],
            lambda x, i, s: b("index_add", x, i, s, dim=1),
        )
        case(
            "index_add",
            [Arg((5, 2), dtype), _index((4, 3), 5), Arg((4, 3, 2), dtype)],
            lambda x, i, s: b("index_add", x, i, s, dim=0),
            "matrix",
        )
        case(
            "iota",
            [Arg((2, 3), dtype)],
            lambda x, d=dtype: b("add", x, b("iota", shape=(2, 3), dim=1, dtype=d)),
        )
        case("constant", [Arg((4,), dtype)], lambda x: b("add", x, full(3, x)), "splat")
        case(
            "optimization_barrier",
            [Arg((4,), dtype), Arg((2, 3), dtype)],
            lambda x, y: several("optimization_barrier", [x, y]),
        )
    values = torch.arange(100, dtype=torch.float32) / 7
    case(
        "constant",
        [Arg((100,))],
        lambda x: b("add", x, builder.dense(values.numpy(), TensorType((100,), "f32"))),
        "dense",
    )


# -- reductions, products and windows


def _reductions() -> None:
    for kind in ("sum", "prod", "max", "min", "argmax", "argmin"):
        for dtype in ("f32", "f64", "bf16", "i64"):
            for dims in ((1,), (0, 2)):
                if kind.startswith("arg") and len(dims) > 1:
                    continue
                case(
                    "reduce",
                    [Arg((3, 4, 5), dtype)],
                    lambda x, k=kind, d=dims: b("reduce", x, kind=k, dims=d),
                    f"{kind}{len(dims)}",
                )
        if kind not in ("sum", "prod"):
            ties = torch.tensor(
                [[1.0, 3, 3, 2], [NAN, 1, NAN, 5], [-INF, -INF, -INF, -INF], [2, 2, 1, 1]]
            )
            case(
                "reduce",
                [Arg((4, 4), values=ties)],
                lambda x, k=kind: b("reduce", x, kind=k, dims=(1,)),
                f"{kind}-special",
                special=True,
            )
    for kind in ("any", "all"):
        case(
            "reduce",
            [Arg((3, 4, 5), "i1")],
            lambda x, k=kind: b("reduce", x, kind=k, dims=(0, 2)),
            kind,
        )
    case(
        "reduce",
        [Arg((3, 50))],
        lambda x: b("reduce", x, kind="sum", dims=(1,), dtype="f64"),
        "exact",
    )
    case("reduce", [Arg((3, 50))], lambda x: b("reduce", x, kind="sum", dims=()), "none")
    case("partial_sums", [Arg((2, 7, 5))], lambda x: b("partial_sums", x, run=4))


def _contractions() -> None:
    for dtype in ("f32", "f64", "bf16"):
        case("matmul", [Arg((5, 7), dtype), Arg((7, 3), dtype)], lambda x, y: b("matmul", x, y))
        case(
            "matmul",
            [Arg((2, 3, 5, 7), dtype), Arg((2, 3, 7, 4), dtype)],
            lambda x, y: b("matmul", x, y),
            "batch",
        )
    shapes = [
        # spatial sizes, kernel, stride, padding, dilation, groups, inputs, outputs
        ((9,), (3,), (2,), (1,), (1,), 1, 4, 6),
        ((9, 8), (3, 3), (1, 1), (1, 1), (1, 1), 1, 4, 6),
        ((9, 8), (3, 2), (2, 3), (1, 0), (2, 1), 2, 4, 6),
        ((8, 8), (3, 3), (2, 2), (1, 1), (1, 1), 4, 4, 4),
        ((7, 6), (1, 1), (2, 2), (0, 0), (1, 1), 1, 3, 5),
        ((5, 6, 4), (3, 2, 2), (2, 1, 1), (1, 1, 0), (1, 2, 1), 1, 2, 3),
    ]
    for number, (size, kernel, stride, padding, dilation, groups, i, o) in enumerate(shapes):
        for layout in ("NC*", "N*C"):
            attrs = {
                "stride": stride,
                "padding": padding,
                "dilation": dilation,
                "groups": groups,
                "layout": layout,
            }
            x = (2, i, *size) if layout == "NC*" else (2, *size, i)
            w = (o, i // groups, *kernel) if layout == "NC*" else (o, *kernel, i // groups)
            out = [
                (s + 2 * p - d * (k - 1) - 1) // t + 1
                for s, k, t, p, d in zip(size, kernel, stride, padding, dilation)
            ]
            y = (2, o, *out) if layout == "NC*" else (2, *out, o)
            label = f"{number}{'first' if layout == 'NC*' else 'last'}"
            for dtype in ("f32", "f64", "bf16") if number == 2 else ("f32",):
                case(
                    "convolution",
                    [Arg(x, dtype), Arg(w, dtype)],
                    lambda x, w, a=attrs: b("convolution", x, w, **a),
                    label,
                )
                case("convolution_input_grad", [Arg(y, dtype), Arg(w, dtype)],
                     lambda dy, w, a=attrs, s=x: b("convolution_input_grad", dy, w, **a, shape=s), label)  # fmt: skip
                case("convolution_weight_grad", [Arg(x, dtype), Arg(y, dtype)],
                     lambda x, dy, a=attrs, s=w: b("convolution_weight_grad", x, dy, **a, shape=s), label)  # fmt: skip


def _packed() -> None:
    """Strips of 4 outputs, the last of which are not used."""
    ways = [
        ((2, 3, 5), (2, 20), 7, (), (), (), ()),
        ((2, 6, 5, 3), (2, 72), 6, (3, 2), (2, 1), (1, 0), (1, 2)),
        ((1, 6, 5, 6), (2, 36), 6, (3, 3), (1, 1), (1, 1), (1, 1)),
    ]
    for number, (x, weight, columns, kernel, stride, padding, dilation) in enumerate(ways):
        attrs = {"columns": columns, "kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation,
                 "depthwise": number == 2}  # fmt: skip
        case("packed_product", [Arg(x), Arg(weight)],
             lambda x, w, a=attrs: b("packed_product", x, w, **a), str(number))  # fmt: skip


_WINDOWS: list[dict[str, Any]] = [
    {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)},
    {"kernel": (2, 3), "stride": (2, 1), "padding": (0, 1), "ceil_mode": True},
    {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)},
    {"kernel": (3, 2), "stride": (3, 3), "padding": (1, 1), "ceil_mode": True},
    {"size": (3, 4)},
    {"size": (1, 1)},
    {"size": (10, 3)},
]


def _pooled(attrs: dict[str, Any], shape: tuple[int, ...], dtype: str) -> tuple[int, ...]:
    return pooled_type(TensorType(shape, dtype), attrs).shape


def _pooling() -> None:
    for number, window in enumerate(_WINDOWS):
        for layout in ("NC*", "N*C"):
            shape = (2, 3, 9, 8) if layout == "NC*" else (2, 9, 8, 3)
            attrs = {**window, "layout": layout}
            label = f"{number}{'first' if layout == 'NC*' else 'last'}"
            values = torch.randint(-3, 4, shape).float()  # equal ones
            kinds = ["none", "plane"] + ["window"] * ("kernel" in window)
            for positions in kinds:
                case(
                    "max_pool",
                    [Arg(shape, values=values)],
                    lambda x, a=attrs, p=positions: several("max_pool", [x], **a, positions=p),
                    f"{label}-{positions}",
                )
                if positions == "none":
                    continue
                y = _pooled({**attrs, "positions": positions}, shape, "f32")

                def grad(
                    x: ir.Value, dy: ir.Value, a: Any = attrs, p: str = positions, s: Any = shape
                ) -> ir.Value:
                    at = several("max_pool", [x], **a, positions=p)[1]
                    return b("max_pool_grad", dy, at, **a, shape=s)

                case(
                    "max_pool_grad",
                    [Arg(shape, values=values), Arg(y)],
                    grad,
                    f"{label}-{positions}",
                )
            for more in ({}, {"count_padding": True}, {"divisor": 5})[
                : 1 if "size" in window else 3
            ]:
                named = f"{label}{'-' if more else ''}{''.join(more)}"
                both = {**attrs, **more}
                case("avg_pool", [Arg(shape)], lambda x, a=both: b("avg_pool", x, **a), named)
                y = _pooled(both, shape, "f32")
                case(
                    "avg_pool_grad",
                    [Arg(y)],
                    lambda dy, a=both, s=shape: b("avg_pool_grad", dy, **a, shape=s),
                    named,
                )
    dilated = {
        "kernel": (3, 2),
        "stride": (1, 2),
        "padding": (1, 1),
        "dilation": (2, 3),
        "layout": "NC*",
    }
    for positions in ("none", "plane", "window"):
        case(
            "max_pool",
            [Arg((2, 3, 9, 8))],
            lambda x, p=positions: several("max_pool", [x], **dilated, positions=p),
            f"dilated-{positions}",
        )
    special = torch.randn(2, 3, 6, 6)
    special[0, 0, 1, 1], special[0, 1, 2, 2], special[1, 2] = NAN, INF, -INF
    for positions in ("none", "plane", "window"):
        case(
            "max_pool",
            [Arg((2, 3, 6, 6), values=special)],
            lambda x, p=positions: several(
                "max_pool", [x], **_WINDOWS[0], layout="NC*", positions=p
            ),
            f"special-{positions}",
            special=True,
        )
    case(
        "avg_pool",
        [Arg((2, 3, 6, 6), values=special)],
        lambda x: b("avg_pool", x, **_WINDOWS[0], layout="NC*"),
        "special",
        special=True,
    )
    for spatial in (1, 3):
        attrs = {
            "kernel": (2,) * spatial,
            "stride": (2,) * spatial,
            "padding": (1,) * spatial,
            "layout": "NC*",
        }
        case(
            "max_pool",
            [Arg((2, 3, *[6] * spatial))],
            lambda x, a=attrs: several("max_pool", [x], **a, positions="plane"),
            f"{spatial}d",
        )
        case(
            "avg_pool",
            [Arg((2, 3, *[6] * spatial))],
            lambda x, a=attrs: b("avg_pool", x, **a),
            f"{spatial}d",
        )


RNG = Arg((2,), "i64", values=torch.tensor([-(1 << 62) + 12345, 3]))


def _networks() -> None:
    for kind, dtype in (
        ("uniform", "f32"),
        ("normal", "f32"),
        ("bits", "i64"),
        ("bits", "i32"),
        ("uniform", "bf16"),
    ):
        case(
            "random",
            [RNG],
            lambda r, k=kind, d=dtype: b("random", r, kind=k, stream=7, shape=(5, 9), dtype=d),
            f"{kind}-{dtype}",
            rough=10,
        )
    for name, dtype, more in (
        ("cumsum", "f32", ""), ("cumsum", "f64", ""), ("cumsum", "bf16", ""), ("cumsum", "i64", ""),
        ("cumsum", "i32", ""), ("cumsum", "i1", ""), ("cumprod", "f32", ""),
        ("cumsum", "i32", '"dtype": {"dtype": "float32"}'),
    ):  # fmt: skip
        for dim in (0, -1):
            text = f'[[{{"t": 0}}, {dim}], {{{more}}}]'
            given = {"overload": f"aten.{name}.default", "args": text}
            made = "f32" if more else "i64" if dtype[0] == "i" else dtype

            def call(x: ir.Value, given: Any = given, made: str = made) -> list[ir.Value]:
                result = TensorType((5, 13), made)
                return list(builder.build_op("aten", [x], given, [result]).results)

            case("aten", [Arg((5, 13), dtype)], call, f"{name}{dim}{'-as' if more else ''}")
    q, k, v = Arg((2, 6, 4, 8)), Arg((2, 5, 2, 8)), Arg((2, 5, 2, 3))
    flags = torch.rand(2, 1, 6, 5) < 0.6
    flags[0, 0, 2] = False
    documents = [
        Arg((2, n), "i64", values=torch.randint(3, (2, n)).sort(-1).values) for n in (6, 5)
    ]
    extras = {
        "plain": ([], {}), "causal": ([], {"causal": True}), "bias": ([Arg((1, 4, 6, 5))], {}),
        "flags": ([Arg((2, 1, 6, 5), "i1", values=flags)], {}), "dropout": ([RNG], {"dropout": 0.3, "stream": 2}),
        "all": ([Arg((2, 4, 1, 5)), RNG], {"dropout": 0.5, "stream": 1, "causal": True}),
        "window": ([], {"window": (1, 2)}), "documents": (documents, {"causal": True, "window": (3, 0)}),
    }  # fmt: skip
    for label, (more, attrs) in extras.items():
        full_ = {"scale": 0.3, "causal": False, **attrs}
        case(
            "attention", [q, k, v, *more], lambda *xs, a=full_: several("attention", xs, **a), label
        )
        grad = {**full_, "bias_grad": True} if more and more[0].dtype == "f32" else full_

        def backward(dy: ir.Value, *xs: ir.Value, a: Any = full_, g: Any = grad) -> list[ir.Value]:
            y, sums = several("attention", xs, **a)
            inputs = [dy, *xs[:3], y, sums, *xs[3:]]
            types = [builder.type_of(x) for x in xs[: 4 if g.get("bias_grad") else 3]]
            return list(builder.build_op("attention_grad", inputs, g, types).results)

        case("attention_grad", [Arg((2, 6, 4, 3)), q, k, v, *more], backward, label, rough=3)


def _regions() -> None:
    def region(x: ir.Value, y: ir.Value, name: str, attrs: dict[str, str]) -> list[ir.Value]:
        op = builder.build_op(name, [x, y], attrs, [builder.type_of(x)])
        block = op.regions[0].blocks.append(x.type, y.type)
        with ir.InsertionPoint(block):
            found = b("tanh", b("add", *block.arguments))
            end = "yield" if name == "fused" else "engine_yield"
            builder.build_op(end, [found], None, [])
        return list(op.results)

    kinds = {"fused": {"kind": "pointwise"}, "engine": {"engine": "xla"}}
    for name, attrs in kinds.items():
        for op in (name, "yield" if name == "fused" else "engine_yield"):
            case(op, [Arg((3, 4)), Arg((3, 4))], lambda x, y, n=name, a=attrs: region(x, y, n, a))


def all_cases() -> list[EngineCase]:
    """The cases, made once."""
    if not CASES:
        torch.manual_seed(0)
        for build in (
            _elementwise,
            _beside_numbers,
            _shapes,
            _reductions,
            _contractions,
            _packed,
            _pooling,
            _networks,
            _regions,
        ):
            build()
    return CASES
