"""Python that an optimizer's step reads, branches on or leaves behind: in a graph as it is eagerly."""

from __future__ import annotations

import copy
import math
import random
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Callable
from math import sqrt
from time import perf_counter
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_post_hook

import gflow

STEPS = 9
Update = Callable[[Any, dict[str, Any], torch.Tensor, dict[str, Any]], None]


def optimizer_class(update: Update, start: dict[str, Any], **attributes: Any) -> Any:
    """An optimizer that calls `update(self, group, p, state)` for each parameter, and `self.after(group)`."""

    class Custom(optim.Optimizer):
        offset = 2

        def __init__(self, params: Any, lr: float = 0.1) -> None:
            super().__init__(params, {"lr": lr, **copy.deepcopy(start)})
            for key, value in attributes.items():
                setattr(self, key, copy.deepcopy(value))

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        update(self, group, p, self.state[p])
                if "k" in group:
                    group["k"] += 1

    return Custom


def warm_up(o: Any, group: Any, p: Any, state: Any) -> None:
    rate = (group["k"] + 1) / 4 if group["k"] < 4 else 1.0
    p.sub_(p.grad, alpha=group["lr"] * rate)


def own_counter(o: Any, group: Any, p: Any, state: Any) -> None:
    state["step"] = state.get("step", 0) + 1
    p.sub_(p.grad, alpha=group["lr"] * (2 if state["step"] % 3 == 0 else 1))


def lazy(o: Any, group: Any, p: Any, state: Any) -> None:
    if len(state) == 0:
        state["step"], state["mean"] = 0, torch.zeros_like(p)
    state["step"] += 1
    state["mean"] = state["mean"] * 0.9 + p.grad
    if state["step"] > 3 and math.sqrt(state["step"]) < 2.4:
        p.sub_(state["mean"], alpha=group["lr"])
    else:
        p.sub_(p.grad, alpha=group["lr"])


def late_buffer(o: Any, group: Any, p: Any, state: Any) -> None:
    p.sub_(p.grad, alpha=group["lr"])
    if (group["k"] + 1) % 3 == 0:
        if "slow" not in state:
            state["slow"] = p.clone()
        state["slow"].lerp_(p, 0.5)
        p.copy_(state["slow"])


def flag(o: Any, group: Any, p: Any, state: Any) -> None:
    if p is group["params"][0]:
        group["odd"] = not group["odd"]
    p.sub_(p.grad, alpha=group["lr"] * (0.5 if group["odd"] else 1.0))


def phase(o: Any, group: Any, p: Any, state: Any) -> None:
    if group["phase"] == "warm" and group["k"] >= 3:
        group["phase"] = "main"
    p.sub_(p.grad, alpha=group["lr"] * {"warm": 0.1, "main": 1.0}[group["phase"]])


def none_first(o: Any, group: Any, p: Any, state: Any) -> None:
    group["best"] = group["lr"] if group["best"] is None else max(group["best"], group["lr"]) + 0.01
    p.sub_(p.grad, alpha=group["best"])


def ring(o: Any, group: Any, p: Any, state: Any) -> None:
    slot = group["ring"][int(group["k"] % 3)]
    if slot[0] is None or slot[0] != group["k"]:
        slot[0], slot[1] = group["k"], group["lr"] / (1 + group["k"])
    p.sub_(p.grad, alpha=slot[1])


def table(o: Any, group: Any, p: Any, state: Any) -> None:
    p.sub_(p.grad, alpha=group["lr"] * group["table"]["rates"][group["k"] % 4])


def own_attribute(o: Any, group: Any, p: Any, state: Any) -> None:
    o._calls += 1
    if o._calls > 5:
        o.rate = o.rate * 0.5
    p.sub_(p.grad, alpha=o.rate)


def class_attribute(o: Any, group: Any, p: Any, state: Any) -> None:
    p.sub_(p.grad, alpha=group["lr"] * (1 if group["k"] < o.offset else 2))


class Plan:
    """A helper object with state of its own."""

    def __init__(self) -> None:
        self.calls, self.rates = 0, [0.1, 0.05]

    def rate(self) -> float:
        self.calls += 1
        return self.rates[0] if self.calls < 6 else self.rates[1]


def helper(o: Any, group: Any, p: Any, state: Any) -> None:
    p.sub_(p.grad, alpha=o.plan.rate())


def swapped(o: Any, group: Any, p: Any, state: Any) -> None:
    if not state:
        state["a"], state["b"] = torch.zeros_like(p), torch.ones_like(p)
    state["a"], state["b"] = state["b"], state["a"] + p.grad
    p.sub_(state["a"], alpha=group["lr"])


def by_parameter(o: Any, group: Any, p: Any, state: Any) -> None:
    """Counters of all parameters are equal at first, and part."""
    state["step"] = state.get("step", 0) + p.ndim
    p.sub_(p.grad, alpha=group["lr"] if state["step"] < 6 else group["lr"] / 3)


def new_tuple(o: Any, group: Any, p: Any, state: Any) -> None:
    a, b = group["betas"]
    group["betas"] = (a * 0.9, b)
    p.sub_(p.grad, alpha=group["lr"] * a if a > 0.3 else group["lr"] * b)


def taken_out(o: Any, group: Any, p: Any, state: Any) -> None:
    if group["k"] == 3:
        group.pop("hot", None)
    p.sub_(p.grad, alpha=group["lr"] * (3 if "hot" in group else 1))


def tensor_attribute(o: Any, group: Any, p: Any, state: Any) -> None:
    o.total = o.total + p.grad.abs().sum()
    p.sub_(p.grad / o.total, alpha=group["lr"])


def default(o: Any, group: Any, p: Any, state: Any) -> None:
    if group["k"] == 2:
        o.defaults["lr"] = 0.01
    p.sub_(p.grad, alpha=o.defaults["lr"])


def zero_division(o: Any, group: Any, p: Any, state: Any) -> None:
    try:
        rate = group["lr"] / group["k"]
    except ZeroDivisionError:
        rate = group["lr"]
    p.sub_(p.grad, alpha=rate)


def written_only(o: Any, group: Any, p: Any, state: Any) -> None:
    group["seen"] = group["lr"] * (group["k"] + 1)
    p.sub_(p.grad, alpha=group["lr"])


def imported(o: Any, group: Any, p: Any, state: Any) -> None:
    rate = group["lr"] / sqrt(group["k"] + 1)
    p.sub_(p.grad, alpha=rate if rate > 0.05 else 0.05)


def by_numpy(o: Any, group: Any, p: Any, state: Any) -> None:
    rate = numpy.float64(0.1) / numpy.sqrt(group["k"] + 1) + numpy.exp(-group["lr"])
    p.sub_(p.grad, alpha=rate * 0.1 if numpy.log(group["k"] + 1.0) < 1 else rate)


def numpy_number(o: Any, group: Any, p: Any, state: Any) -> None:
    p.sub_(p.grad, alpha=float(numpy.float64(0.05)) * min(1.0, group["k"] / 3))


def exponent(o: Any, group: Any, p: Any, state: Any) -> None:
    """PyTorch takes such calls apart, and computes with the numbers."""
    p.sub_(p.grad.abs().pow_(1 / (group["k"] + 1)).pow_(group["k"] + 1), alpha=group["lr"])


def shapes(o: Any, group: Any, p: Any, state: Any) -> None:
    """Numbers that say how large results are, or where elements are."""
    n, flat = group["k"] % 2 + 1, p.grad.flatten()
    found = [
        flat[::n],
        flat[n - 1 :],
        flat[None, : n - 4],
        flat.narrow(0, n - 1, 1),
        flat.split(n)[0],
    ]
    found += [flat.topk(n)[0], torch.zeros(n), torch.arange(n), flat.repeat(n), p.grad.roll(n)[0]]
    found += [flat.repeat(9).std(correction=n), nn.functional.pad(flat, (n, 0), value=n / 2)]
    p.sub_(p.grad * sum(f.sum() * (i + 1) for i, f in enumerate(found)), alpha=group["lr"])


def by_foreach(o: Any, group: Any, p: Any, state: Any) -> None:
    """The way that is taken by `foreach` rounds otherwise."""
    rate = math.sqrt(group["lr"] / 3)
    if group["foreach"] is not False:
        rate = torch.tensor([rate], dtype=torch.float32).unbind()[0]
    p.sub_(p.grad * rate)


def foreach_numbers(o: Any, group: Any, p: Any, state: Any) -> None:
    """Numbers that change as operands of `_foreach_*`, one for all tensors and one for each."""
    k, both = group["k"] / 4, [p.grad, 2 * p.grad]
    found = [
        *torch._foreach_maximum(both, k - 1),
        *torch._foreach_minimum(both, [k, group["lr"]]),
        *torch._foreach_clamp_min(both, -k),
        *torch._foreach_clamp_max(both, [k, 1.0]),
        *torch._foreach_add(both, k),
        *torch._foreach_div(both, [k + 1, 2.0]),
        *torch._foreach_pow(torch._foreach_abs(both), k + 1),
        *torch._foreach_pow(k + 1, both),
        *torch._foreach_lerp(both, both[::-1], k),
        *torch._foreach_addcmul(both, both, both, [k, 0.5]),
    ]
    p.sub_(sum(found), alpha=group["lr"] / 10)


def set_by_default(o: Any, group: Any, p: Any, state: Any) -> None:
    """State entries that `setdefault`, `update` and `|=` store, also those of the optimizer itself."""
    entry = o.state.setdefault(p, {})
    entry |= {"mean": entry.get("mean", torch.zeros_like(p))}
    entry.setdefault("power", torch.ones_like(p)).mul_(0.9)
    o.state.update({p: entry})
    entry["mean"].lerp_(p.grad, 0.5)
    p.sub_(entry["mean"] * entry["power"], alpha=group["lr"])


def by_norm(o: Any, group: Any, p: Any, state: Any) -> None:
    """Python divides by what is 0 for no gradient."""
    if not state:
        state["mean"] = torch.zeros_like(p)
    state["mean"].lerp_(p.grad * (1 / p.grad.norm().item()), 0.5)
    p.sub_(state["mean"], alpha=group["lr"])


def by_text(o: Any, group: Any, p: Any, state: Any) -> None:
    rates = {f"step {k}": 1 / (k + 1) for k in range(STEPS)}
    p.sub_(
        p.grad * rates[f"step {group['k']}"] * float(str(group["lr"])) * int(f"{group['k'] + 1:03}")
    )


def by_types(o: Any, group: Any, p: Any, state: Any) -> None:
    state["k"] = state.get("k", 0) + 1
    kinds = [
        type(v)
        for v in (
            group,
            state,
            o.state,
            group["params"],
            group["lr"],
            state["k"],
            p,
            group["k"] / 2,
        )
    ]
    wanted = [dict, dict, defaultdict, list, float, int, nn.Parameter, float]
    is_class = (
        type(nn.Linear) is type
        and isinstance(nn.Linear, type)
        and type(state["k"]).__name__ == "int"
    )
    p.sub_(p.grad, alpha=group["lr"] * (1 if kinds == wanted and is_class else 0.5))


class Moments(NamedTuple):
    count: int
    mean: torch.Tensor


def named_tuple(o: Any, group: Any, p: Any, state: Any) -> None:
    last = state.get("moments", Moments(0, torch.zeros_like(p)))
    state["moments"] = now = Moments(last.count + 1, last.mean * 0.9 + p.grad)
    p.sub_(now.mean, alpha=group["lr"] / now.count)


def other_numbers(o: Any, group: Any, p: Any, state: Any) -> None:
    k = group["k"] + 1
    factor = (
        abs(k * (1 + 1j)) * pow(k, 2, 5) * numpy.float32(0.5) * float(numpy.maximum(k, 3)) / k**2
    )
    p.sub_(p.grad * float(factor), alpha=group["lr"] * 0.1)


CASES: dict[str, tuple[Any, int]] = {
    "text": (optimizer_class(by_text, {"k": 0}), STEPS),
    "types": (optimizer_class(by_types, {"k": 0}), 2),
    "named tuple": (optimizer_class(named_tuple, {}), 2),
    "complex numbers, NumPy's types": (optimizer_class(other_numbers, {"k": 0}), STEPS),
    "warm-up": (optimizer_class(warm_up, {"k": 0}), 2),
    "counter of a parameter": (optimizer_class(own_counter, {}), 2),
    "lazy state": (optimizer_class(lazy, {}), 3),
    "buffer made later": (optimizer_class(late_buffer, {"k": 0}), 3),
    "flag": (optimizer_class(flag, {"odd": False}), 2),
    "phase": (optimizer_class(phase, {"phase": "warm", "k": 0}), 3),
    "None first": (optimizer_class(none_first, {"best": None}), 2),
    "ring": (optimizer_class(ring, {"ring": [[None, None] for _ in range(3)], "k": 0}), 6),
    "table": (optimizer_class(table, {"table": {"rates": [1.0, 0.5, 0.2, 0.1]}, "k": 0}), 4),
    "attribute": (optimizer_class(own_attribute, {}, _calls=0, rate=0.1), 3),
    "class attribute": (optimizer_class(class_attribute, {"k": 0}), 2),
    "helper": (optimizer_class(helper, {}, plan=Plan()), 3),
    "swapped": (optimizer_class(swapped, {}), 2),
    "by parameter": (optimizer_class(by_parameter, {}), 4),
    "new tuple": (optimizer_class(new_tuple, {"betas": (0.9, 0.5)}), 3),
    "taken out": (optimizer_class(taken_out, {"k": 0, "hot": None}), 3),
    "tensor attribute": (optimizer_class(tensor_attribute, {}, total=torch.tensor(1.0)), 1),
    "default": (optimizer_class(default, {"k": 0}), 2),
    "division by zero": (optimizer_class(zero_division, {"k": 0}), 2),
    "written only": (optimizer_class(written_only, {"k": 0, "seen": 0.0}), 1),
    "imported names": (optimizer_class(imported, {"k": 0}), 2),
    "numpy's functions": (optimizer_class(by_numpy, {"k": 0}), 2),
    "exponent": (optimizer_class(exponent, {"k": 0}), 1),
    "shapes": (optimizer_class(shapes, {"k": 0}), 2),
    "norm": (optimizer_class(by_norm, {}), 1),
    "foreach": (optimizer_class(by_foreach, {"foreach": None}), 1),
    "numbers of foreach": (optimizer_class(foreach_numbers, {"k": 0}), 2),
    "setdefault": (optimizer_class(set_by_default, {}), 1),
    "limit": (optimizer_class(numpy_number, {"k": 0}), 1),
}


class Train(gflow.nn.Graph):
    def __init__(
        self, model: nn.Module, optimizer: Any, schedule: Any = None, **words: Any
    ) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer, lr_sch=schedule, **words)

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return loss


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()


def batches(count: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    options: Any = {"generator": generator, "dtype": torch.float64}
    return [(torch.randn(5, 4, **options), torch.randn(5, 2, **options)) for _ in range(count)]


def eager_step(model: nn.Module, optimizer: Any, x: Any, y: Any) -> None:
    model.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def assert_same(model: nn.Module, other: nn.Module) -> None:
    for (name, p), q in zip(model.named_parameters(), other.named_parameters()):
        torch.testing.assert_close(p, q[1], rtol=1e-9, atol=1e-12, msg=f"{name} differs")


def variants(graph: Any) -> int:
    return len(graph._state.plans)


@pytest.mark.parametrize("case", list(CASES))
def test_python_of_a_step(case: str) -> None:
    kind, most = CASES[case]
    model = make_model()
    other = copy.deepcopy(model)
    optimizer, reference = kind(model.parameters()), kind(other.parameters())
    graph = Train(model, optimizer)
    for x, y in batches():
        graph(x, y)
        eager_step(other, reference, x, y)
        assert_same(model, other)
    assert variants(graph) <= most
    for group, expected in zip(optimizer.param_groups, reference.param_groups):
        found = {k: v for k, v in group.items() if k != "params"}
        wanted = {k: v for k, v in expected.items() if k != "params"}
        assert found.keys() == wanted.keys()
        assert all(
            found[k] == pytest.approx(v) for k, v in wanted.items() if k not in ("ring", "table")
        )
    for p, q in zip(model.parameters(), other.parameters()):
        for key, value in reference.state.get(q, {}).items():
            torch.testing.assert_close(optimizer.state[p][key], value)


def test_only_the_wrong_reads_are_compiled_again() -> None:
    """An attribute or a key that the step does not read may change."""
    model = make_model()
    optimizer = CASES["warm-up"][0](model.parameters())
    graph = Train(model, optimizer)
    for i, (x, y) in enumerate(batches(4)):
        optimizer.note = optimizer.param_groups[0]["name"] = f"{i}"
        graph(x, y)
    assert variants(graph) == 1


def test_many_variants_warn_once_with_the_reason() -> None:
    def fixed(o: Any, group: Any, p: Any, state: Any) -> None:
        p.sub_(p.grad, alpha=group["lr"] / (1 + float(group["k"])))

    kind = optimizer_class(fixed, {"k": 0})
    model = make_model()
    other = copy.deepcopy(model)
    optimizer, reference = kind(model.parameters()), kind(other.parameters())
    graph = Train(model, optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x, y in batches(12):
            graph(x, y)
            eager_step(other, reference, x, y)
    assert_same(model, other)
    texts = [str(w.message) for w in caught if "was compiled" in str(w.message)]
    assert len(texts) == 1
    assert "float(optimizer.0.group0.k)" in texts[0]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: random.random(),
        lambda: time.time(),
        lambda: perf_counter(),
        lambda: numpy.random.rand(),
    ],
    ids=["random", "time", "imported by name", "numpy"],
)
def test_time_and_random_numbers_are_errors(draw: Any) -> None:
    def jitter(o: Any, group: Any, p: Any, state: Any) -> None:
        p.sub_(p.grad, alpha=group["lr"] * (1 + draw() * 0))

    model = make_model()
    graph = Train(model, optimizer_class(jitter, {})(model.parameters()))
    with pytest.raises(gflow.GraphError, match=r"step\(\) calls (random|time|numpy)"):
        graph(*batches(1)[0])


def test_a_generator_of_its_own_is_an_error() -> None:
    def jitter(o: Any, group: Any, p: Any, state: Any) -> None:
        p.sub_(p.grad, alpha=group["lr"] * o.generator.random())

    kind = optimizer_class(jitter, {}, generator=random.Random(0))
    model = make_model()
    with pytest.raises(gflow.GraphError, match=r"random\.Random"):
        Train(model, kind(model.parameters()))(*batches(1)[0])


BRANCHY = ["warm-up", "lazy state", "buffer made later", "by parameter", "helper"]


def both(case: str) -> tuple[Any, Any, Any, Any]:
    kind, _ = CASES[case]
    model = make_model()
    other = copy.deepcopy(model)
    return model, kind(model.parameters()), other, kind(other.parameters())


@pytest.mark.parametrize("case", BRANCHY)
def test_steps_of_a_graph_and_eager_ones_mix(case: str) -> None:
    """State that eager steps have changed, and tensors that they put anew, are honoured."""
    model, optimizer, other, reference = both(case)
    graph = Train(model, optimizer)
    for i, (x, y) in enumerate(batches()):
        if i in (2, 3, 6):
            eager_step(model, optimizer, x, y)
        else:
            graph(x, y)
        eager_step(other, reference, x, y)
        assert_same(model, other)


@pytest.mark.parametrize("case", BRANCHY)
def test_two_graphs_share_an_optimizer(case: str) -> None:
    model, optimizer, other, reference = both(case)
    graphs = [Train(model, optimizer), Train(model, optimizer)]
    for i, (x, y) in enumerate(batches()):
        graphs[(i // 2) % 2](x, y)
        eager_step(other, reference, x, y)
        assert_same(model, other)


@pytest.mark.parametrize("case", BRANCHY[:4])
def test_loading_between_calls(case: str) -> None:
    """Back to the state after two steps, in the middle of the branches."""
    model, optimizer, other, reference = both(case)
    graph = Train(model, optimizer)
    data = batches()
    for x, y in data[:2]:
        graph(x, y)
        eager_step(other, reference, x, y)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for x, y in data[2:7]:
        graph(x, y)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    for x, y in data[2:]:
        graph(x, y)
        eager_step(other, reference, x, y)
        assert_same(model, other)


@pytest.mark.parametrize("case", BRANCHY[:4])
def test_a_checkpoint_goes_on_in_a_new_graph(case: str) -> None:
    model, optimizer, other, reference = both(case)
    data = batches()
    graph = Train(model, optimizer)
    for x, y in data[:4]:
        graph(x, y)
    saved = copy.deepcopy(graph.state_dict())
    new = make_model()
    again = Train(new, CASES[case][0](new.parameters()))
    again.load_state_dict(saved)
    for i, (x, y) in enumerate(data):
        eager_step(other, reference, x, y)
        if i >= 4:
            again(x, y)
            assert_same(new, other)


def test_hyperparameters_set_by_hand_between_branches() -> None:
    model, optimizer, other, reference = both("lazy state")
    graph = Train(model, optimizer)
    for i, (x, y) in enumerate(batches()):
        for o in (optimizer, reference):
            o.param_groups[0]["lr"] = 0.1 / (1 + i)
            if i == 5:
                for entry in o.state.values():
                    entry["step"] = 1
        graph(x, y)
        eager_step(other, reference, x, y)
        assert_same(model, other)


def test_hyperparameters_that_are_equal_and_differ() -> None:
    """0.0 equals -0.0, and 1 equals 1.0 and True."""

    def update(o: Any, group: Any, p: Any, state: Any) -> None:
        number = group["z"]
        sign = math.copysign(1.0, number) * (2 if type(number) is int else 3)
        p.add_(p.grad, alpha=group["lr"] * sign)
        state["seen"] = p.grad * number

    numbers = (0.0, -0.0, 0, 0.0, -0.0, 1, 1.0, 1)
    found = []
    for compiled in (False, True):
        layer = nn.Linear(2, 2).double()
        with torch.no_grad():
            layer.weight.fill_(0.5)
        optimizer = optimizer_class(update, {"z": 0.0})([layer.weight])

        def step(x: torch.Tensor, layer: Any = layer) -> torch.Tensor:
            loss = layer(x).square().mean()
            loss.backward()
            return loss

        graph = gflow.nn.Graph.trace(step)
        graph.add_optimizer(optimizer)
        layer.bias.requires_grad_(False).zero_()
        for k, number in enumerate(numbers):
            optimizer.param_groups[0]["z"] = number
            x = torch.full((3, 2), k + 1.0, dtype=torch.float64)
            if compiled:
                graph(x)
            else:
                optimizer.zero_grad()
                step(x)
                optimizer.step()
            seen = optimizer.state[layer.weight]["seen"]
            found.append((layer.weight.detach().clone(), seen.clone(), seen.signbit()))
    torch.testing.assert_close(found[: len(numbers)], found[len(numbers) :])


def test_a_group_that_is_added_later() -> None:
    kind = CASES["counter of a parameter"][0]
    model = make_model()
    other = copy.deepcopy(model)
    optimizer, reference = (kind(m[0].parameters()) for m in (model, other))
    graph = Train(model, optimizer)
    for i, (x, y) in enumerate(batches()):
        if i == 4:
            optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.05})
            reference.add_param_group({"params": list(other[2].parameters()), "lr": 0.05})
        graph(x, y)
        eager_step(other, reference, x, y)
        assert_same(model, other)


def test_state_taken_away() -> None:
    model, optimizer, other, reference = both("lazy state")
    graph = Train(model, optimizer)
    for i, (x, y) in enumerate(batches()):
        for o, m in ((optimizer, model), (reference, other)):
            if i == 4:
                o.state.clear()
            if i == 6:
                o.state[m[0].weight]["mean"] = torch.ones_like(m[0].weight)
            if i == 7:
                del o.state[m[2].bias]
        graph(x, y)
        eager_step(other, reference, x, y)
        assert_same(model, other)


@pytest.mark.parametrize("case", BRANCHY[:3])
def test_accumulation_and_clipping(case: str) -> None:
    model, optimizer, other, reference = both(case)
    optimizer.param_groups[0]["clip_grad_max_norm"] = 0.3
    graph = Train(model, optimizer)
    graph.config.set_gradient_accumulation_steps(2)
    for x, y in batches():
        x, y = torch.cat([x, x + 1]), torch.cat([y, y - 1])
        graph(x, y)
        reference.zero_grad()
        nn.functional.mse_loss(other(x), y).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.3)
        reference.step()
        assert_same(model, other)


def test_a_scaler_skips_a_step_of_a_branch() -> None:
    """Counters stand still in a step that is skipped, so its branch is taken later."""
    model, optimizer, other, reference = both("lazy state")
    graph = Train(model, optimizer)
    graph.set_grad_scaler(torch.amp.GradScaler("cpu", init_scale=4.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for i, (x, y) in enumerate(batches()):
        if i == 3:
            y = y * float("inf")
        graph(x, y)
        reference.zero_grad()
        scaler.scale(nn.functional.mse_loss(other(x), y)).backward()
        scaler.step(reference)
        scaler.update()
        for p, q in zip(model.parameters(), other.parameters()):
            torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)  # gradients pass in float32
    assert optimizer.state[model[0].weight]["step"] == STEPS - 1


@pytest.mark.parametrize("case", ["flag", "None first"])
def test_what_is_no_number_cannot_be_skipped(case: str) -> None:
    model, optimizer, *_ = both(case)
    graph = Train(model, optimizer)
    graph.set_grad_scaler(torch.amp.GradScaler("cpu"))
    with pytest.raises(gflow.GraphError, match=r"(odd|best)'.*gradient scaler"):
        graph(*batches(1)[0])


def test_rows_of_an_embedding() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table(x).sum(1)

    torch.manual_seed(0)
    model = Words().double()
    other = copy.deepcopy(model)
    kind = CASES["warm-up"][0]
    optimizer, reference = kind(model.parameters()), kind(other.parameters())
    graph = Train(model, optimizer, is_sparse=True)
    for i in range(STEPS):
        x, y = torch.tensor([[i % 7, 2], [1, (3 * i) % 7]]), torch.ones(2, 3).double()
        graph(x, y)
        eager_step(other, reference, x, y)
        assert_same(model, other)


# hooks


def test_hooks_run_at_each_step() -> None:
    """In eager order, with the state as it is then; what they set is taken in the same step."""
    seen: dict[bool, list[Any]] = {True: [], False: []}
    model, optimizer, other, reference = both("warm-up")
    for compiled, o in ((True, optimizer), (False, reference)):

        def before(o: Any, args: Any, kwargs: Any, log: Any = seen[compiled]) -> None:
            o.param_groups[0]["lr"] *= 0.9
            log.append(("before", o.param_groups[0]["k"], args == (o,)))

        def after(o: Any, args: Any, kwargs: Any, log: Any = seen[compiled]) -> None:
            log.append(("after", o.param_groups[0]["k"]))
            o.param_groups[0]["params"][0].data.mul_(0.99)
            o.zero_grad()

        o.register_step_pre_hook(before)
        o.register_step_post_hook(after)
    handle = register_optimizer_step_post_hook(lambda o, a, k: seen[o is optimizer].append("all"))
    try:
        graph = Train(model, optimizer)
        for x, y in batches(6):
            graph(x, y)
            eager_step(other, reference, x, y)
            assert_same(model, other)
    finally:
        handle.remove()
    assert seen[True] == seen[False]
    assert len(seen[True]) == 18


def clip(o: Any, args: Any, kwargs: Any) -> None:
    nn.utils.clip_grad_norm_(o.param_groups[0]["params"], 1.0)


@pytest.mark.parametrize(
    ("hook", "match"),
    [(clip, "uses a gradient"), (lambda o, a, k: (a, k), "changes the arguments")],
    ids=["gradients", "arguments"],
)
def test_hooks_that_cannot_run_outside(hook: Any, match: str) -> None:
    model, optimizer, *_ = both("warm-up")
    before = copy.deepcopy(model.state_dict())
    optimizer.register_step_pre_hook(hook)
    with pytest.raises(gflow.GraphError, match=match):
        Train(model, optimizer)(*batches(1)[0])
    torch.testing.assert_close(model.state_dict(), before)


def test_a_call_that_fails_undoes_hooks() -> None:
    """Those before the step run before the program; in eager mode, what fails in the forward ends before them."""
    model = make_model()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    graph = Train(model, optimizer)
    x, y = batches(1)[0]
    optimizer.register_step_pre_hook(lambda o, a, k: o.param_groups[0].update(lr=0.5))
    with pytest.raises(RuntimeError):
        graph(x, y[:1, :1].expand(7, 7))
    assert optimizer.param_groups[0]["lr"] == 0.1
    graph(x, y)
    assert optimizer.param_groups[0]["lr"] == 0.5


# keys of groups


def test_a_key_that_nothing_reads_is_an_error() -> None:
    model = make_model()
    optimizer = optim.SGD([{"params": model.parameters(), "wd_mult": 0.5}], lr=0.1)
    with pytest.raises(gflow.GraphError, match=r"parameter group 0 has the key 'wd_mult' \(0.5\)"):
        Train(model, optimizer)(*batches(1)[0])


def test_a_key_that_the_class_names_is_its_own() -> None:
    """It is for other groups, or was read when state was made."""

    class Named(optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                if "rank" in group:
                    super().step()
                else:
                    group["lr"] *= group["wd_mult"]

    model = make_model()
    other = copy.deepcopy(model)
    optimizers = [
        Named([{"params": m.parameters(), "wd_mult": 0.5, "rank": 1}], lr=0.1)
        for m in (model, other)
    ]
    x, y = batches(1)[0]
    Train(model, optimizers[0])(x, y)
    eager_step(other, optimizers[1], x, y)
    assert_same(model, other)


@pytest.mark.parametrize("scheduled", [False, True])
def test_lr_scale(scheduled: bool) -> None:
    model = make_model()
    other = copy.deepcopy(model)

    def make(m: nn.Module, factor: bool) -> Any:
        first = {"params": m[0].parameters(), "lr": 0.1 if factor else 0.05}
        groups = [first | ({"lr_scale": 0.5} if factor else {}), {"params": m[2].parameters()}]
        optimizer = optim.AdamW(groups, lr=0.1)
        return optimizer, optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if scheduled else None

    (optimizer, schedule), (reference, expected) = make(model, True), make(other, False)
    graph = Train(model, optimizer, schedule)
    for x, y in batches(5):
        graph(x, y)
        eager_step(other, reference, x, y)
        if expected is not None:
            expected.step()
        assert_same(model, other)
    assert variants(graph) == 1
    assert optimizer.param_groups[0]["lr"] == optimizer.param_groups[1]["lr"]


def test_lr_scale_and_a_rate_set_by_hand() -> None:
    model = make_model()
    optimizer = optim.SGD([{"params": model.parameters(), "lr_scale": 0.5}], lr=0.1)
    graph = Train(model, optimizer)
    data = batches(2)
    graph(*data[0])
    optimizer.param_groups[0]["lr"] = 0.05
    with pytest.raises(gflow.GraphError, match=r"assigned directly.*lr_scale"):
        graph(*data[1])


def test_an_option_of_autograd_that_is_set_later() -> None:
    model = make_model()
    optimizer = optim.Adam(model.parameters())
    graph = Train(model, optimizer)
    data = batches(2)
    graph(*data[0])
    optimizer.param_groups[0]["differentiable"] = True
    with pytest.raises(gflow.GraphTraceError, match="group 0 has differentiable=True"):
        graph(*data[1])


# what an optimizer holds


class Several(optim.Optimizer):
    """Steps one optimizer at each call, and another at every second."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        first, *rest = params
        super().__init__([first, *rest], {})
        self.parts = [optim.SGD([first], lr=lr, momentum=0.9), optim.RAdam(rest, lr=0.01)]
        self.calls = 0

    def step(self, closure: Any = None) -> None:
        self.calls += 1
        self.parts[0].step()
        if self.calls % 2 == 0:
            self.parts[1].step()


def test_optimizers_inside_of_one() -> None:
    model = make_model()
    other = copy.deepcopy(model)
    graph = Train(model, Several(model.parameters()))
    reference = Several(other.parameters())
    for x, y in batches():
        graph(x, y)
        eager_step(other, reference, x, y)
        assert_same(model, other)


class Slotted:
    __slots__ = ("rate",)

    def __init__(self) -> None:
        self.rate = 0.1


@pytest.mark.parametrize(
    ("held", "use", "match"),
    [
        (deque([1.0]), lambda held: held.append(1.0), "a deque"),
        ({1}, lambda held: held.add(2), "a set"),
        (Slotted(), lambda held: held.rate, "__slots__"),
        (numpy.ones(2), lambda held: held[0], "numpy.ndarray"),
    ],
    ids=["deque", "set", "slots", "array"],
)
def test_what_a_trace_cannot_follow_is_an_error(held: Any, use: Any, match: str) -> None:
    def update(o: Any, group: Any, p: Any, state: Any) -> None:
        use(o.held)
        p.sub_(p.grad, alpha=group["lr"])

    model = make_model()
    kind = optimizer_class(update, {}, held=held)
    with pytest.raises(gflow.GraphError, match=match):
        Train(model, kind(model.parameters()))(*batches(1)[0])


@pytest.mark.parametrize("ask", [vars, lambda o: o.__dict__], ids=["vars", "__dict__"])
def test_attributes_that_a_step_takes_all_at_once_are_an_error(ask: Any) -> None:
    """What it reads and puts there goes by no name."""

    def update(o: Any, group: Any, p: Any, state: Any) -> None:
        ask(o)["steps"] = ask(o).get("steps", 0) + 1
        p.sub_(p.grad, alpha=group["lr"] / ask(o)["steps"])

    model = make_model()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        gflow.GraphError, match=r"all attributes of Custom at once .*Use self\.name"
    ):
        Train(model, optimizer_class(update, {})(model.parameters()))(*batches(1)[0])
    torch.testing.assert_close(model.state_dict(), before)


def _loaded(optimizer: optim.Optimizer) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def _cleared(optimizer: optim.Optimizer) -> None:
    optimizer.state.clear()


@pytest.mark.parametrize("change", [_loaded, _cleared])
@pytest.mark.parametrize("between", [False, True])
def test_strides_of_parameters_change_beside_the_state(
    change: Callable[[optim.Optimizer], None], between: bool
) -> None:
    """A program that takes the optimizer's new tensors still reads parameters by the strides of its compilation.
    between: whether a call lies between the two changes."""
    torch.manual_seed(0)
    mine = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    theirs = copy.deepcopy(mine)
    made = [optim.Adam(m.parameters(), lr=0.01) for m in (mine, theirs)]

    class Step(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = mine
            self.add_optimizer(made[0])

        def build(self, x: torch.Tensor) -> torch.Tensor:
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

    graph = Step()

    def step() -> None:
        x = torch.randn(2, 3, 8, 8)
        made[1].zero_grad()
        loss = theirs(x).square().mean()
        loss.backward()
        made[1].step()
        torch.testing.assert_close(graph(x), loss.detach())

    step()
    for optimizer in made:
        change(optimizer)
    if between:
        step()
    for model in (mine, theirs):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for _ in range(2):
        step()
    for a, b in zip(mine.parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b)
