"""The lowering: form of the function, numerics of what op_db does not reach, escape hatch, cost."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from call_count import lines
from function_trace import trace_graph
from ir_interpreter import philox, random_numbers, run_module

from gflow import compile as compiled
from gflow.dialects.aten import calls as aten
from gflow.dialects.mlir import ir
from gflow.lowering import escaped, lower
from gflow.tracing.data.trace import Trace

Tensor = torch.Tensor


def trace(
    build: Callable[..., Any], *args: Any, modules: Any = None, optimizers: Any = ()
) -> Trace:
    return trace_graph("g", build, args, {}, modules or {}, optimizers)


def run(traced: Trace, module: ir.Module, *inputs: Tensor) -> list[Tensor]:
    """Runs a module on inputs and on the tensors that the trace refers to."""
    given = iter(inputs)
    args = [next(given) if i.tensor is None else i.tensor.detach() for i in traced.inputs]
    function = next(iter(module.body.operations))
    if len(function.arguments) > len(args):
        args.append(torch.tensor([3, 4]))
    return run_module(module, args)


def check(build: Callable[..., Any], *args: Tensor, rtol: float = 1e-5, atol: float = 1e-6) -> str:
    """Compares with eager; gives the module's text."""
    traced = trace(build, *args)
    module = lower(traced)
    assert module.operation.verify()
    assert not escaped(module)
    wanted = build(*args)
    for a, b in zip(
        run(traced, module, *args), wanted if isinstance(wanted, tuple) else (wanted,), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
    return str(module)


# -- the function


def test_conversions_and_broadcasts_of_a_call_are_not_repeated() -> None:
    norm = torch.nn.BatchNorm2d(3)

    def build(x: Tensor) -> Any:
        x = x.requires_grad_()
        return torch.autograd.grad(norm(x).square().sum(), [x, norm.weight, norm.bias])

    module = lower(trace(build, torch.randn(2, 3, 4, 4), modules={"norm": norm}))
    text = module.operation.get_asm(enable_debug_info=True, use_local_scope=True)
    ops = re.findall(r'"gflow.((?:convert|broadcast)".*)', text)
    assert len(ops) > 20
    assert len(ops) == len(set(ops))


def test_function_form() -> None:
    """Roles, names, aliases, strides and locations, as the passes and the runtime read them."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def build(x: Tensor) -> Tensor:
        loss = model(x).sum()
        loss.backward()
        return loss

    x = torch.randn(3, 4).t()
    traced = trace(build, x, modules={"model": model}, optimizers=[optimizer])
    module = lower(traced)
    text = str(module)
    assert '%arg0: tensor<4x3xf32> {gflow.name = "x", gflow.role = "input"' in text
    assert "gflow.strides = array<i64: 1, 4>" in text
    assert 'gflow.name = "model.weight", gflow.role = "parameter"' in text
    assert 'gflow.role = "scalar"' in text
    assert 'gflow.role = "optimizer_state"' in text
    assert re.search(r'-> \(tensor<f32> \{gflow.name = "[^"]+"\}, tensor<', text)
    weight = next(i for i, g in enumerate(traced.inputs) if g.name == "model.weight")
    assert f'gflow.alias = {weight} : i64, gflow.name = "model.weight"' in text
    located = module.operation.get_asm(enable_debug_info=True)
    assert '"forward:model"' in located
    assert '"backward:model"' in located
    assert "test_lowering.py" in located
    assert "optimizer:" in located
    with module.context:
        assert str(ir.Module.parse(text)) == text


def test_dead_calls_are_not_lowered() -> None:
    def build(x: Tensor) -> Tensor:
        torch.sort(x)
        return x + 1

    text = check(build, torch.randn(3))
    assert "aten" not in text


# -- numerics beyond op_db


def test_batch_norm_statistics_are_two_sibling_sums() -> None:
    model = torch.nn.BatchNorm2d(3)
    x = torch.randn(4, 3, 5, 5) * 0.01 + 300  # a plain sum of squares would lose all digits
    traced = trace(lambda x: model(x), x, modules={"model": model})
    module = lower(traced)
    text = str(module)
    assert text.count('kind = "sum"') == 2
    results = run(traced, module, x)
    wanted = model(x)
    exact = torch.nn.functional.batch_norm(x.double(), None, None, training=True)
    assert (results[0] - exact).norm() <= (wanted - exact).norm()
    torch.testing.assert_close(results[0].double(), exact.detach(), rtol=1e-3, atol=1e-3)
    by_name = {o.name: r for o, r in zip(traced.outputs, results)}
    torch.testing.assert_close(by_name["model.running_var"], model.running_var)
    torch.testing.assert_close(by_name["model.running_mean"], model.running_mean)


def test_cross_entropy_ignores_and_weighs() -> None:
    target = torch.tensor([1, -100, 3, 0])
    weight = torch.tensor([0.5, 2.0, 1.0, 3.0])

    def build(x: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(x, target, weight)

    check(build, torch.randn(4, 4), target, weight)


def test_traced_numbers_promote_like_python_numbers() -> None:
    model = torch.nn.Linear(2, 2).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def build(x: Tensor) -> Tensor:
        loss = model(x).float().pow(2).mean()
        loss.backward()
        return loss

    x = torch.randn(4, 2, dtype=torch.bfloat16)
    traced = trace(build, x, modules={"model": model}, optimizers=[optimizer])
    module = lower(traced)
    results = run(traced, module, x)
    loss = model(x).float().pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    by_name = {o.name: r for o, r in zip(traced.outputs, results)}
    assert by_name["model.weight"].dtype == torch.bfloat16
    torch.testing.assert_close(by_name["model.weight"], model.weight.detach(), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_compute_in_float32(dtype: torch.dtype) -> None:
    text = check(lambda x: torch.exp(x), torch.randn(8).to(dtype), rtol=1e-2, atol=1e-2)
    assert '"gflow.exp"' in text
    assert ": (tensor<8xf32>) -> tensor<8xf32>" in text


def test_integer_semantics() -> None:
    a = torch.tensor([7, -7, 6, -6])
    b = torch.tensor([2, 2, -4, -4])
    check(lambda a, b: (a // b, a % b, torch.fmod(a, b), a / b), a, b)
    check(lambda a, b: torch.div(a, b, rounding_mode="trunc"), a, b)
    check(lambda x: (x.sum(), x.to(torch.bool).sum(), (x > 0).any()), a)
    check(lambda x: (x + 250, x.sum(), x.float().mean()), torch.tensor([1, 200], dtype=torch.uint8))


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("target", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_floats_as_unsigned_integers(source: torch.dtype, target: torch.dtype) -> None:
    ends = [2.0**n for n in range(8 * target.itemsize)]
    x = torch.tensor([-1.0, -200.0, 0.7, *ends, *(1.9 * end for end in ends)]).to(source)

    @compiled(fullgraph=True)
    def casts(x: Tensor, made: Tensor) -> list[Tensor]:
        return [x.to(target), made.copy_(x), x[-1].to(target) + torch.zeros(1, dtype=target)]

    made = torch.zeros(len(x), dtype=target)
    first, copied, last = casts(x, made)
    for found in (first, copied, made):
        assert found.equal(x.to(target))
    assert last.equal(first[-1:])


def test_special_float_values() -> None:
    x = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1.5])
    y = torch.tensor([2.0, -3.0, 1.0, 0.0, 5.0, 0.0])
    check(lambda x, y: (torch.maximum(x, y), torch.fmax(x, y)), x, y)
    check(lambda x: (x.clamp(-1, 1), torch.nan_to_num(x)), x)
    check(lambda x, y: (x // y, torch.remainder(x, y), torch.sign(x), torch.relu(x)), x, y)
    check(lambda x: (torch.logsumexp(x[:2], 0), torch.softmax(x, 0)), x)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_writes_through_slices(step: int) -> None:
    def build(x: Tensor, y: Tensor) -> Tensor:
        z = x.clone()
        z[1:6:step] = y[: len(range(1, 6, step))]
        z[:, 0] = 5
        return z

    check(build, torch.randn(7, 3), torch.randn(7, 3))


def test_indexing_by_tensors() -> None:
    x, i, j = torch.randn(4, 5, 6), torch.tensor([0, -1, 2]), torch.tensor([1, 1, -2])
    check(lambda x, i, j: (x[i], x[:, i], x[i, j], x[i, :, j], x[:, i, j], x[i, None, j]), x, i, j)


def test_convolutions() -> None:
    x, w = torch.randn(2, 4, 9), torch.randn(6, 2, 3)
    conv = torch.nn.functional.conv1d
    check(lambda x, w: conv(x, w, stride=2, padding=1, dilation=2, groups=2), x, w, rtol=1e-4)
    x, w, b = torch.randn(2, 4, 5, 5), torch.randn(4, 3, 3, 3), torch.randn(6)
    up = torch.nn.functional.conv_transpose2d
    check(
        lambda x, w, b: up(x, w, b, stride=2, padding=1, output_padding=1, groups=2),
        x, w, b, rtol=1e-4, atol=1e-5,
    )  # fmt: skip


# -- random numbers


def test_philox_known_answers() -> None:
    """The vectors that come with the Random123 library."""
    zero = philox(0, 0, 0, 4)[0]
    assert [hex(int(w)) for w in zero] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


def test_random_ops_take_the_rng_argument() -> None:
    def build(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.rand_like(x), torch.nn.functional.dropout(x, 0.25), torch.randint(5, (4, 100))

    x = torch.ones(4, 100)
    traced = trace(build, x)
    module = lower(traced)
    text = str(module)
    assert 'tensor<2xi64> {gflow.name = "rng", gflow.role = "rng"}' in text
    assert sorted(int(s) for s in re.findall(r"stream = (\d+)", text)) == [0, 1, 2]
    uniform, dropped, integers = run(traced, module, x)
    assert torch.equal(uniform, random_numbers("uniform", 3, 4, 0, (4, 100), "f32"))
    assert 0 <= uniform.min() < 0.05
    assert 0.95 < uniform.max() < 1
    torch.testing.assert_close(dropped.unique(), torch.tensor([0.0, 1 / 0.75]))
    assert 0.15 < (dropped == 0).float().mean() < 0.35
    assert set(integers.unique().tolist()) == set(range(5))


def test_no_rng_argument_without_random_ops() -> None:
    assert "rng" not in check(
        lambda x: torch.nn.functional.dropout(x, 0.5, False) + 1, torch.ones(3)
    )


def test_normal_numbers() -> None:
    numbers = random_numbers("normal", 1, 2, 3, (100_000,), "f32")
    assert abs(numbers.mean()) < 0.02
    assert abs(numbers.std() - 1) < 0.02
    assert torch.isfinite(numbers).all()


# -- the escape hatch


def test_escaped_calls_are_listed_with_their_lines(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(10)
    traced = trace(lambda x: torch.topk(x, 3, sorted=True)[0] * 2, x)
    with caplog.at_level(logging.DEBUG, logger="gflow"):
        module = lower(traced)
    (found,) = escaped(module)
    assert found.overload == "aten.topk.default"
    assert "test_lowering.py" in found.location
    assert "aten.topk.default runs through PyTorch" in caplog.text
    assert torch.equal(run(traced, module, x)[0], torch.topk(x, 3)[0] * 2)


def test_decompositions_that_would_escape_stay_one_call() -> None:
    traced = trace(lambda x: torch.cumsum(x, 0), torch.randn(5))
    assert [e.overload for e in escaped(lower(traced))] == ["aten.cumsum.default"]


def test_calls_of_tensors_of_any_number_of_types() -> None:
    """24 shapes and element types in one call; an op has eight groups of operands of one type."""
    dtypes = (
        torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64
    )  # fmt: skip
    given = [torch.randn(n, 2 * n).to(dtype) for n in range(1, 5) for dtype in dtypes]
    for tensors in (given, [x for x in given if x.is_complex()] * 2 + given[:12]):
        found = compiled(torch.block_diag, fullgraph=True)(*tensors)
        torch.testing.assert_close(found, torch.block_diag(*tensors))


def test_random_calls_that_escape_are_told_apart() -> None:
    traced = trace(lambda: (torch.randperm(5), torch.randperm(5)))
    text = str(lower(traced))
    assert "unique = 0" in text
    assert "unique = 1" in text


def _operand(leaf: Any) -> dict[str, int] | None:
    return {"t": 0} if isinstance(leaf, Tensor) else None


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 2.5, float("inf"), float("-inf"), 1 + 2j, "mean", [1, [2.0, None]],
     torch.float32, torch.device("cpu"), torch.strided, torch.channels_last],
)  # fmt: skip
def test_argument_encoding_round_trips(value: Any) -> None:
    text = aten.encode_call([value], {"k": value}, _operand)
    json.loads(text)
    args, kwargs = aten.decode_call(text, [], lambda t: t)
    assert args == [value]
    assert kwargs == {"k": value}
    assert type(args[0]) is type(value)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "[1, 2]", "[[], []]", '[[{"t": 0}], {}]', '[[{"t": "x"}], {}]', "[[{}], {}]",
     '[[{"t": -1}], {}]', '[[{"t": true}], {}]', '[[{"dtype": "Tensor"}], {}]',
     '[[{"dtype": "nope"}], {}]', '[[{"float": 1}], {}]', '[[{"complex": [1, "a"]}], {}]',
     '[[{"device": "?"}], {}]', '[[{"os": "system"}], {}]', '[[{"a": 1, "b": 2}], {}]',
     "[" * 100_000],
)  # fmt: skip
def test_malformed_arguments_give_one_clear_error(text: str) -> None:
    with pytest.raises(aten.AtenError):
        aten.check_call(text, 0)


@pytest.mark.parametrize("name", ["", "aten", "aten.nope.default", "aten.add.nope", "os.system.x"])
def test_unknown_overloads(name: str) -> None:
    with pytest.raises(aten.AtenError, match="no such overload"):
        aten.find_overload(name)


# -- errors and cost


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.as_strided((4, 3), (1, 4)),
        lambda x: x.as_strided((2, 3), (1, 2), 3),
        lambda x: x.t().clone().as_strided((3, 4), (4, 1)),
        lambda x: x.reshape(3, 4, 1, 1).clone().as_strided_((3, 4, 1, 1), (4, 1, 4, 4)) * 2,
        lambda x: torch.as_strided_scatter(x, torch.ones(2, 3), (2, 3), (1, 2), 3),
        lambda x: torch.as_strided_scatter(x, torch.ones(4, 3), (4, 3), (1, 4)),
    ],
)
def test_strided_views_of_whole_pieces_of_memory_move_no_element_alone(view: Any) -> None:
    text = check(view, torch.randn(3, 4))
    assert "gflow.take" not in text
    assert "iota" not in text


def test_strided_view_of_a_view_is_an_error() -> None:
    with pytest.raises(Exception, match=r"test_lowering.py:\d+: as_strided on a view"):
        lower(trace(lambda x: x[2:].as_strided((2, 2), (1, 1)), torch.randn(8)))


def test_lowering_is_cheap_and_linear() -> None:
    """Work of a call grows with the number of ops, not faster."""

    def build(depth: int) -> Callable[[Tensor], Tensor]:
        def body(x: Tensor) -> Tensor:
            for _ in range(depth):
                x = torch.nn.functional.layer_norm(torch.tanh(x) * 2 + x, (8,))
            return x

        return body

    def work(traced: Trace) -> int:
        return lines(lambda: lower(traced))

    small, large = (trace(build(d), torch.randn(4, 8)) for d in (100, 400))
    assert len(large.ops) > 1500
    work(small)  # what only the first lowering does
    assert work(large) < 5 * work(small)
