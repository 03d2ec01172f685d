"""Each mistake gives one clear error: the user's line, what was found, what to do."""

from __future__ import annotations

import dataclasses
import functools
import queue
import re
import types
from typing import Any

import numpy as np
import pytest
import torch
from trace_interpreter import interpret

import gflow as flow
from gflow import nn


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gflow.execution.executor.compile_trace", interpret)


class Call(nn.Graph):
    def __init__(self, function: Any, optimizer: Any = None, model: Any = None) -> None:
        super().__init__()
        self.function = function
        self.model = model
        if optimizer is not None:
            self.add_optimizer(optimizer)

    def build(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def message(graph: Any, *args: Any, error: type[Exception] = flow.GraphTraceError) -> str:
    with pytest.raises(error) as caught:
        graph(*args)
    text = str(caught.value)
    assert "\n" not in text
    return text


def line_of(marker: str) -> str:
    """`file:line` of the line in this file that ends with `# marker`."""
    from pathlib import Path

    lines = Path(__file__).read_text().splitlines()
    number = next(i for i, x in enumerate(lines, 1) if x.endswith(f"# {marker}"))
    return f"{__file__}:{number}"


def test_missing_super_init() -> None:
    class NoInit(nn.Graph):
        def __init__(self) -> None:
            self.model = torch.nn.Linear(2, 2)

        def build(self, x: Any) -> Any:
            return self.model(x)

    graph = NoInit()
    text = message(graph, torch.ones(2), error=flow.GraphError)
    assert "NoInit.__init__ does not call super().__init__()" in text
    assert __file__ in text

    class Early(nn.Graph):
        def __init__(self) -> None:
            self.add_optimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1))  # early

    with pytest.raises(flow.GraphError, match=r"super\(\).__init__") as caught:
        Early()
    assert line_of("early") in str(caught.value)


def test_build_not_overridden() -> None:
    class Empty(nn.Graph):
        pass

    text = message(Empty(), torch.ones(2), error=flow.GraphError)
    assert "Empty does not define build()" in text
    assert __file__ in text


def test_backward_without_optimizer() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).sum()
        loss.backward()  # backward-without
        return loss

    model = torch.nn.Linear(2, 2)
    text = message(Call(function, model=model), torch.ones(1, 2))
    assert line_of("backward-without") in text
    assert "add_optimizer" in text


def test_backward_on_non_scalar() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        loss = model(x)
        loss.backward()  # non-scalar
        return loss

    model = torch.nn.Linear(2, 3)
    graph = Call(function, torch.optim.SGD(model.parameters(), 0.1), model)
    text = message(graph, torch.ones(1, 2))
    assert line_of("non-scalar") in text
    assert "[1, 3]" in text
    assert ".mean()" in text


def test_backward_on_a_constant() -> None:
    model = torch.nn.Linear(2, 3)
    graph = Call(lambda x: x.sum().backward(), torch.optim.SGD(model.parameters(), 0.1), model)
    assert "requires_grad" in message(graph, torch.ones(1, 2))


def _item(x: torch.Tensor) -> Any:
    return x * x.max().item()  # item


def _float(x: torch.Tensor) -> Any:
    return x * float(x[0])  # float


def _list(x: torch.Tensor) -> Any:
    return x.tolist()  # list


def _numpy(x: torch.Tensor) -> Any:
    return x.numpy()  # numpy


def _range(x: torch.Tensor) -> Any:
    return [x * i for i in range(x.sum().int())]  # range


@pytest.mark.parametrize(
    "function",
    [_item, _float, _list, _numpy, _range],
    ids=lambda f: f.__name__,
)
def test_values_while_tracing(function: Any) -> None:
    text = message(Call(function), torch.ones(3))
    assert line_of(function.__name__.removeprefix("_")) in text
    assert "traced once, before values exist" in text
    assert "torch.where" in text


def test_module_path_in_the_message() -> None:
    class Head(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * x.sum().item()

    model = torch.nn.Sequential(torch.nn.ReLU(), Head())
    assert "'model.1'" in message(Call(lambda x: model(x), model=model), torch.ones(3))


def test_shapes_from_values() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x[x > 0])  # mask

    text = message(Call(function), torch.ones(3))
    assert line_of("mask") in text
    assert "depends on the values" in text


def test_generator() -> None:
    generator = torch.Generator()
    graph = Call(lambda x: torch.rand(3, generator=generator) + x)
    assert "torch.Generator" in message(graph, torch.ones(3))


def test_values_of_a_literal_are_known() -> None:
    graph = Call(lambda x: x * int(torch.tensor(3)))
    assert torch.equal(graph(torch.ones(2)), torch.full((2,), 3.0))


def test_print_and_repr_while_tracing(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        print(x)
        return x

    Call(function)(torch.ones(2, 3))
    assert capsys.readouterr().out == "<traced tensor float32[2, 3]>\n"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.ones(3), "a numpy ndarray"),
        (object(), "an object of type builtins.object"),
        (torch.ones(3).to_sparse(), "a torch.sparse_coo tensor"),
        (torch.ones(3, 3).to_sparse_csr(), "a torch.sparse_csr tensor"),
        ({1, 2}, "an object of type builtins.set"),
    ],
    ids=["numpy", "object", "sparse", "sparse rows", "set"],
)
def test_wrong_input_type(value: Any, found: str) -> None:
    class Named(nn.Graph):
        def build(self, image: Any) -> Any:
            return image

    text = message(Named(), {"pixels": value}, error=flow.GraphInputError)
    assert f"input 'image.pixels' is {found}" in text
    assert __file__ in text


def test_wrong_number_of_arguments() -> None:
    class Two(nn.Graph):
        def build(self, x: Any, y: Any) -> Any:
            return x + y

    text = message(Two(), torch.ones(1), error=flow.GraphInputError)
    assert "missing a required argument: 'y'" in text
    assert __file__ in text


def test_mismatched_devices() -> None:
    model = torch.nn.Linear(2, 2)
    graph = Call(lambda x: model(x), model=model)
    text = message(graph, torch.ones(1, 2, device="meta"), error=flow.GraphInputError)
    assert "is on meta" in text
    assert "parameter 'model.weight' is on cpu" in text


def test_add_optimizer_takes_an_optimizer() -> None:
    graph = Call(lambda x: x)
    with pytest.raises(flow.GraphError, match=r"takes a torch\.optim.Optimizer, got float"):
        graph.add_optimizer(0.1)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
    with pytest.raises(flow.GraphError, match="scheduler as lr_sch, got int"):
        graph.add_optimizer(optimizer, 3)


class _Bad(torch.optim.Optimizer):
    """A step that a graph cannot hold: chosen by `update`."""

    def __init__(self, params: Any, update: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.update = update

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["count"] = torch.zeros(())
                self.update(p, state, group)


def _by_value(p: Any, state: Any, group: Any) -> None:
    state["count"] += 1
    if state["count"] > 3:  # by-value
        p.sub_(p.grad)


def _by_number(p: Any, state: Any, group: Any) -> None:
    p.sub_(p.grad * float(p.grad.norm()))


def _new_key(p: Any, state: Any, group: Any) -> None:
    state[f"key{len(state)}"] = p.grad.clone()


def _grows(p: Any, state: Any, group: Any) -> None:
    state["count"] = torch.cat([state["count"].view(-1), p.grad.view(-1)[:1]])


@pytest.mark.parametrize(
    ("update", "found"),
    [
        (_by_value, "choose by the value of a tensor"),
        (_by_number, "choose by the value of a tensor"),
        (_new_key, "creates state"),
        (_grows, "changes the shape of state 'count'"),
    ],
)
def test_untraceable_optimizer(update: Any, found: str) -> None:
    model = torch.nn.Linear(2, 1)
    graph = Call(lambda x: model(x).sum().backward(), _Bad(model.parameters(), update), model)
    text = message(graph, torch.ones(1, 2))
    assert re.search(found, text)
    assert "_Bad" in text
    if update is _by_value:
        assert text.startswith(line_of("by-value"))


def test_optimizer_with_closure() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters())
    graph = Call(lambda x: model(x).sum().backward(), optimizer, model)
    text = message(graph, torch.ones(1, 2))
    assert "LBFGS" in text
    assert "closure" in text


def test_errors_of_pytorch_pass_through() -> None:
    """A wrong shape is PyTorch's error, raised on the user's own line."""
    model = torch.nn.Linear(2, 2)
    graph = Call(lambda x: model(x), model=model)
    with pytest.raises(RuntimeError, match=r"mat1|same reduction dim"):
        graph(torch.ones(1, 3))
    assert torch.is_tensor(graph(torch.ones(1, 2)))


def test_a_note_names_the_line_of_any_other_error() -> None:
    def function(x: torch.Tensor) -> Any:
        return model(x)

    class Inner(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.ones(5, 5)  # inner

    model = torch.nn.Sequential(Inner())
    with pytest.raises(RuntimeError) as caught:
        Call(function, model=model)(torch.ones(2, 3))
    if hasattr(caught.value, "__notes__"):  # Python 3.11
        assert caught.value.__notes__[0].startswith(line_of("inner"))


def test_mixed_dtypes() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    graph = Call(lambda x: model(x.double()), model=model)
    text = message(graph, torch.ones(1, 2))
    assert "'model.0'" in text
    assert "takes tensors of one dtype, got float32, float64, float32" in text


def test_step_in_build() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def function(x: torch.Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()  # step

    text = message(Call(function, optimizer, model), torch.ones(1, 2))
    assert text.startswith(line_of("step"))
    assert "Leave step() out" in text
    optimizer.step()


def test_new_parameters_in_build() -> None:
    text = message(Call(lambda x: torch.nn.Linear(2, 2)(x)), torch.ones(1, 2))
    assert "Make it in __init__" in text
    assert torch.nn.Linear(2, 2).weight.is_leaf


def test_flex_attention() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    x = torch.randn(1, 1, 128, 16)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")
    for function in (
        lambda x: flex_attention(x, x, x),
        lambda x: flex_attention(x, x, x, block_mask=mask),
    ):
        text = message(Call(function), x)
        assert "flex_attention and its block masks cannot be recorded" in text
        assert "gflow.compile" in text


def test_control_flow_by_values() -> None:
    """Loops and branches of PyTorch's own, which it compiles where it is not traced."""
    from torch._higher_order_ops import while_loop

    for function in (
        lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
        lambda x: torch.ops.higher_order.cond(
            x.sum() > 0, lambda y: (y * 1).mul_(2), torch.cos, (x,)
        ),
        lambda x: while_loop(lambda y: y.sum() < 9, lambda y: (y + 1,), (x,))[0],
    ):
        found = message(Call(function), torch.ones(3))
        assert "control flow" in found
        assert "test_errors.py:" in found


def test_number_of_classes() -> None:
    one_hot = torch.nn.functional.one_hot
    assert "Pass num_classes" in message(Call(lambda x: one_hot(x.long())), torch.tensor([1.0, 2]))
    found = Call(lambda x: one_hot(x, num_classes=4))(torch.tensor([1, 2]))
    assert torch.equal(found, one_hot(torch.tensor([1, 2]), 4))


def test_formatting_a_traced_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        print(f"{x} {x.sum()}")
        return x

    Call(function)(torch.ones(2))
    assert capsys.readouterr().out == "<traced tensor float32[2]> <traced tensor float32[]>\n"
    assert "to format it" in message(Call(lambda x: f"{x.sum():.3f}"), torch.ones(2))


def test_deepcopy_names_the_users_line() -> None:
    import copy

    model = torch.nn.Linear(2, 2)
    text = message(Call(lambda x: copy.deepcopy(model)(x), model=model), torch.ones(1, 2))
    assert text.startswith(__file__)


@pytest.mark.parametrize("error", [ValueError("mine"), None], ids=["own", "pytorch"])
def test_the_model_is_usable_after_an_error(error: Exception | None) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def function(x: torch.Tensor, bad: bool) -> Any:
        loss = model(x).sum()
        loss.backward()
        if bad and error is not None:
            raise error
        return model(x[:, :2]) if bad else loss

    graph = Call(function, optimizer, model)
    with pytest.raises((ValueError, RuntimeError)):
        graph(torch.randn(4, 3), True)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None and isinstance(p, torch.nn.Parameter) for p in model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    assert graph(torch.randn(4, 3), False).shape == ()


def test_optimizer_over_parameters_that_the_model_lacks() -> None:
    """As in eager: they get no gradient, so they stay."""
    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    before = other.weight.detach().clone()
    optimizer = torch.optim.AdamW([*model.parameters(), *other.parameters()], 0.1)
    graph = Call(lambda x: model(x).sum().backward(), optimizer, model)
    graph(torch.ones(1, 2))
    assert torch.equal(other.weight, before)


def test_optimizer_added_after_the_first_call() -> None:
    model = torch.nn.Linear(2, 1)
    graph = Call(lambda x: model(x).sum().backward(), model=model)
    assert "add_optimizer" in message(graph, torch.ones(1, 2))
    before = model.weight.detach().clone()
    graph.add_optimizer(torch.optim.SGD(model.parameters(), 0.1))
    graph(torch.ones(1, 2))
    assert not torch.equal(model.weight, before)


def test_dtypes_that_no_graph_takes() -> None:
    values = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    text = message(Call(lambda x: x.view(torch.uint8)), values, error=flow.GraphInputError)
    assert text.startswith(__file__)
    assert "has dtype torch.float4_e2m1fn_x2" in text


@dataclasses.dataclass
class _Pair:
    a: Any


class _Slot:
    __slots__ = ("a",)

    def __init__(self, a: Any) -> None:
        self.a = a


async def _later(x: Any) -> Any:
    return x


class _Callback(functools.partial):
    """An object that is more than its attributes."""

    def __new__(cls, a: Any) -> _Callback:
        made = super().__new__(cls, print)
        made.a = a
        return made


@pytest.mark.parametrize(
    "wrap",
    [
        _Callback, lambda x: (i for i in [x]), lambda x: {x}, lambda x: map(abs, [x]), lambda x: iter([1]),
        lambda x: enumerate([x]), lambda x: {"a": x}.values(), lambda x: lambda: x, lambda x: [x].__iter__,
        lambda x: functools.partial(torch.add, x), lambda x: x.sum, _Slot, lambda x: types.SimpleNamespace(a=[x]),
        lambda x: type("Items", (list,), {})([x]), lambda x: KeyError(x), _later,
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:coroutine")
def test_outputs_that_hide_tensors(wrap: Any) -> None:
    text = message(Call(lambda x: [3, wrap(x * 2)]), torch.ones(3))
    assert "with traced tensors inside" in text
    assert Call(lambda x: (x, _Pair(3)))(torch.ones(3))[1] == _Pair(3)


def test_tensors_of_another_trace() -> None:
    kept: Any = queue.SimpleQueue()
    Call(lambda x: kept.put(x * 2))(torch.ones(3))
    text = message(Call(lambda x: x + kept.get()), torch.ones(3))
    assert "a tensor of another trace" in text


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.complex64])
def test_writes_of_another_kind(dtype: torch.dtype) -> None:
    """An elementwise result that is wider than the tensor it is written to, or of another shape, is refused
    where eager refuses it, and only there."""
    other = {
        "number": 3, "float": 1.5, "complex": 1j, "ints": torch.ones(2, 3, dtype=torch.int64),
        "floats": torch.ones(2, 3), "vector": torch.ones(3), "0-d": torch.tensor(1.5), "larger": torch.ones(4, 2, 3),
    }  # fmt: skip

    def in_place(name: str) -> Any:
        return lambda x, y: (getattr(x, name)(y), x)[1]

    def out(name: str) -> Any:
        return lambda x, y: (
            getattr(torch, name)(x.clone() if name == "add" else x.to(torch.int64), y, out=x),
            x,
        )[1]

    methods = ("add_", "mul_", "div_", "pow_", "maximum_", "atan2_", "remainder_", "bitwise_and_", "logical_or_", "eq_",
               "__imul__", "__iadd__", "multiply_", "copysign_", "clamp_max_")  # fmt: skip
    calls = {m: in_place(m) for m in methods if hasattr(torch.Tensor, m)} | {
        "out": out("add"),
        "out mul": out("mul"),
    }
    for name, call in calls.items():
        for kind, y in other.items():
            x = torch.ones(2, 3).to(dtype)
            try:
                want = call(x.clone(), y)
            except (RuntimeError, NotImplementedError, TypeError) as error:
                if "not implemented" in str(error):
                    continue  # PyTorch has no kernel
                with pytest.raises((RuntimeError, TypeError)):
                    Call(call)(x.clone(), y)
                continue
            if want.shape == x.shape:  # `out=` of another shape is resized by eager
                assert torch.equal(Call(call)(x.clone(), y), want), (name, kind)
