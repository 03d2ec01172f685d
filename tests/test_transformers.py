"""Models of the `transformers` library, beside eager: inference and training steps."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves
from zoo import Case
from zoo.harness import Train, batches, check, make
from zoo.huggingface import CASES, RANDOM

import gflow as flow
from gflow import nn

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

Tensor = torch.Tensor
BY_NAME = {case.name.removeprefix("HF "): case for case in CASES}
each = pytest.mark.parametrize("name", BY_NAME)


class Call(nn.Graph):
    """The model itself, with all arguments that it takes."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


WAYS: dict[str, Callable[[torch.nn.Module], Callable[..., Any]]] = {
    "graph": Call,
    "gflow.compile": flow.compile,
    "torch.compile": lambda model: torch.compile(model, backend="gflow"),
}


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def all_compiled(caplog: pytest.LogCaptureFixture) -> Any:
    """No graph runs through PyTorch instead."""
    with caplog.at_level(logging.WARNING, logger="gflow"):
        yield
    assert not [r for r in caplog.records if "torch.compile" in r.message]


def assert_same(found: Any, expected: Any) -> None:
    """Results of one type, with the same fields and values."""
    assert type(found) is type(expected)
    if hasattr(expected, "keys"):
        assert list(found.keys()) == list(expected.keys())
    torch.testing.assert_close(_tensors(found), _tensors(expected), rtol=1e-4, atol=1e-5)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor], rtol: float = 1e-4) -> None:
    """Errors are small beside the largest element of each tensor, and of all."""
    assert list(found) == list(expected)
    largest = max(float(want.abs().max()) for want in expected.values())
    for name, want in expected.items():
        atol = rtol * float(want.abs().max()) + 1e-6 * largest
        torch.testing.assert_close(
            found[name], want, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


# -- nn.Graph


@pytest.mark.parametrize(
    # MobileNetV2 compiles for half a minute; ResNet has convolutions and batch norm, too, and the main job trains one
    "name",
    [pytest.param(n, marks=[pytest.mark.sweep] * (n == "MobileNetV2")) for n in BY_NAME],
)
def test_training(name: str) -> None:
    """Steps of AdamW: losses, logits, parameters, buffers, and the optimizer's moments."""
    verdict, _ = check(BY_NAME[name], torch.float32, True, steps=2)
    assert not verdict.wrong


@pytest.mark.sweep
@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
@each
def test_float64(name: str, train: bool) -> None:
    verdict, _ = check(BY_NAME[name], torch.float64, train, steps=5 if train else 2)
    assert not verdict.wrong


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "T5", "ConvNeXt"])
def test_gradients(name: str) -> None:
    case = BY_NAME[name]
    model, other = make(case).train(), make(case).train()
    graph = Train(case, model, torch.optim.SGD(model.parameters(), 0.0))
    graph.config.keep_gradients()
    ((batch,),) = batches(case, 1)
    graph(batch)
    case.program(other, batch)[0].backward()
    expected = gradients(other)
    assert_near({n: graph.grad(f"model.{n}") for n in expected}, expected)


@each
def test_inference(name: str) -> None:
    """The model's own result, with its loss and without."""
    case = BY_NAME[name]
    model = make(case).eval()
    graph = Call(model)
    with torch.no_grad():
        for (batch,) in batches(case, 2):
            assert_same(graph(**batch), model(**batch))
        batch = without_labels(case, batch)
        assert_same(graph(**batch), model(**batch))


def without_labels(case: Case, batch: dict[str, Tensor]) -> dict[str, Any]:
    rest: dict[str, Any] = {**batch, "labels": None}
    if "T5" in case.name:
        rest["decoder_input_ids"] = batch["input_ids"]
    return rest


@pytest.mark.parametrize("case", RANDOM, ids=lambda case: case.name)
def test_dropout(case: Case) -> None:
    """Losses are finite, other masks are drawn in every step, and the seed repeats them all."""

    def losses() -> list[float]:
        model = make(case).train()
        graph = Train(case, model, torch.optim.SGD(model.parameters(), 0.0))
        torch.manual_seed(3)
        return [float(graph(copy.deepcopy(batch))[0]) for _ in range(4)]

    ((batch,),) = batches(case, 1)
    found = losses()
    assert all(0 < loss < 10 for loss in found)
    assert len({*found}) == 4
    assert losses() == found


# -- gflow.compile and torch.compile


@pytest.mark.usefixtures("all_compiled")
@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("BERT", "gflow.compile"),
        ("ResNet", "gflow.compile"),
        ("GPT-2", "torch.compile"),
        ("ConvNeXt", "torch.compile"),
    ],
)
def test_loop(name: str, way: str) -> None:
    """A plain training loop, and inference with what it learnt."""
    case = BY_NAME[name]
    model, other = make(case).train(), make(case).train()
    fast = WAYS[way](model)
    optimizers = [torch.optim.AdamW(m.parameters(), 1e-4) for m in (model, other)]
    for (batch,) in batches(case, 2):
        found, expected = fast(**batch), other(**batch)
        assert_same(found, expected)
        for result, optimizer in zip((found, expected), optimizers):
            optimizer.zero_grad()
            result.loss.backward()
            optimizer.step()
        assert_near(gradients(model), gradients(other), 1e-3)
    other.load_state_dict(model.state_dict())
    model.eval(), other.eval()
    with torch.no_grad():
        batch = without_labels(case, batch)
        assert_same(fast(**batch), other(**batch))


# -- arguments and results


@pytest.mark.parametrize(
    ("name", "way"),
    [("GPT-2", "graph"), ("Llama", "gflow.compile"), ("T5", "graph"), ("GPT-2", "torch.compile")],
)
def test_caches(name: str, way: str) -> None:
    """Keys and values come back as the library's cache, which eager steps go on with."""
    case = BY_NAME[name]
    model = make(case).eval()
    fast = WAYS[way](model)
    batch = without_labels(case, batches(case, 1)[0][0])
    with torch.no_grad():
        assert_same(fast(**batch, use_cache=False), model(**batch, use_cache=False))
        first, found = (fast(**batch, past_key_values=None, use_cache=True) for _ in range(2))
        expected = model(**batch, past_key_values=None, use_cache=True)
        assert_same(found, expected)
        assert first.past_key_values is not found.past_key_values
        token = {"decoder_input_ids" if name == "T5" else "input_ids": torch.tensor([[5], [7]])}
        if name == "T5":
            token["encoder_outputs"] = (expected.encoder_last_hidden_state,)
        if "attention_mask" in batch:
            token["attention_mask"] = torch.cat(
                [batch["attention_mask"], torch.ones(2, 1).long()], 1
            )
        one, other = (
            model(**token, past_key_values=r.past_key_values).logits for r in (found, expected)
        )
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["GPT-2", "BERT", "T5", "ViT"])
def test_tuples_and_hidden_states(name: str) -> None:
    case = BY_NAME[name]
    model = make(case).eval()
    ((batch,),) = batches(case, 1)
    options = {"output_hidden_states": True, "return_dict": False}
    with torch.no_grad():
        assert_same(Call(model)(**batch, **options), model(**batch, **options))


@pytest.mark.parametrize("name", ["GPT-2", "BERT", "Llama", "T5"])
def test_masks(name: str) -> None:
    """Padding as an argument: its values change between calls of one program."""
    case = BY_NAME[name]
    model = make(case).eval()
    graph = Call(model)
    with torch.no_grad():
        for ends in ([11, 11], [11, 7], [3, 5]):
            ((batch,),) = batches(case, 1)
            batch["attention_mask"] = (torch.arange(11) < torch.tensor(ends)[:, None]).long()
            assert_same(graph(**batch), model(**batch))
    assert len(graph.__dict__["_state"].plans) == 1


@pytest.mark.parametrize("name", ["GPT-2", "BERT", "T5"])
def test_tied_weights_stay_tied(name: str) -> None:
    case = BY_NAME[name]
    model = make(case).train()
    before = model.get_input_embeddings().weight
    assert model.get_output_embeddings().weight is before
    old = before.detach().clone()
    graph = Train(case, model, torch.optim.AdamW(model.parameters(), 1e-2))
    graph(batches(case, 1)[0][0])
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight is before
    assert not torch.equal(before, old)
