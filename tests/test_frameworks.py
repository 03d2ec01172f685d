"""Training frameworks and libraries of others, with gflow inside: the recipes of docs/frameworks.md."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gflow as flow

pytestmark = pytest.mark.filterwarnings("ignore")
torch.manual_seed(0)
INPUTS, TARGETS = torch.randn(32, 6), torch.randn(32, 1)


@pytest.fixture(autouse=True)
def _all_compiled(caplog: pytest.LogCaptureFixture) -> Any:
    """What does not run compiled is said by the logger "gflow": here nothing may be."""
    torch._dynamo.reset()
    with caplog.at_level(logging.WARNING, logger="gflow"):
        yield
    assert not [r.getMessage() for r in caplog.records if r.name == "gflow"]


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 1))


def trained_eagerly(steps: int = 8, rate: float = 0.05) -> nn.Module:
    """The network after an epoch of SGD."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for x, y in list(DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=4))[:steps]:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


def assert_same(mine: nn.Module, theirs: nn.Module) -> None:
    pairs = zip(mine.parameters(), theirs.parameters(), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def lightning_trainer(folder: Any) -> Any:
    lightning = pytest.importorskip("lightning")
    return lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip


@pytest.mark.parametrize("whole_step", [False, True])
def test_lightning(whole_step: bool, tmp_path: Any) -> None:
    """A network compiled inside of a LightningModule; and the whole step, update included, as a graph."""
    from benchmarks.workloads.third_party import declare_torchvision_ops

    declare_torchvision_ops()
    lightning = pytest.importorskip("lightning")

    class Step(flow.nn.Graph):
        def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.backward()
            return loss

    class Compiled(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = flow.compile(network())

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            return nn.functional.mse_loss(self.model(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.model.parameters(), lr=0.05)

    class Whole(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.model = network()

        def on_train_start(self) -> None:
            optimizer = self.optimizers(use_pl_optimizer=False)
            self.step = [Step(self.model, optimizer)]  # in a list: its modules are the model's own

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.step[0](*batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.model.parameters(), lr=0.05)

    module = (Whole if whole_step else Compiled)()
    lightning_trainer(tmp_path).fit(
        module, DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=4)
    )
    assert_same(module.model, trained_eagerly())


def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = flow.compile(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=4)
    runner = accelerate.Accelerator(cpu=True)
    model, optimizer, loader = runner.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        runner.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
    assert_same(model, trained_eagerly())


def tiny_gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **drop))


def test_transformers_trainer(tmp_path: Any) -> None:
    """`Trainer` with a model that was compiled in place."""
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    ids = torch.randint(0, 50, (8, 10))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    found = []
    for compiled in (True, False):
        model = tiny_gpt2()
        if compiled:
            model.compile(backend="gflow")
        given = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=4, use_cpu=True,
            report_to=[], save_strategy="no", disable_tqdm=True, seed=3, optim="sgd",
        )  # fmt: skip
        transformers.Trainer(model, given, train_dataset=rows).train()
        found.append(model)
    assert_same(*found)


def test_peft() -> None:
    """LoRA: only the adapters are trained."""
    peft = pytest.importorskip("peft")
    ids = torch.randint(0, 50, (2, 10))
    found = []
    for compiled in (True, False):
        model = peft.get_peft_model(
            tiny_gpt2(), peft.LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.0)
        )
        run = flow.compile(model) if compiled else model
        adapters = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(adapters, lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            run(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
        found.append(model)
    assert_same(*found)


def test_einops() -> None:
    einops = pytest.importorskip("einops")
    weight = torch.randn(8, 12, requires_grad=True)

    def patches(x: torch.Tensor) -> torch.Tensor:
        rows = einops.rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2)
        mixed = einops.einsum(rows, weight, "b n d, o d -> b n o")
        return einops.reduce(mixed.tanh(), "b n o -> b o", "mean")

    x = torch.randn(2, 3, 4, 4)
    mine, theirs = flow.compile(patches)(x), patches(x)
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), weight) for y in (mine, theirs)))


def test_torchmetrics() -> None:
    """Around a step: a metric that takes what a graph returns, and its functional form in the graph."""
    from benchmarks.workloads.third_party import declare_torchvision_ops

    declare_torchvision_ops()
    torchmetrics = pytest.importorskip("torchmetrics")
    model = nn.Linear(6, 3)

    class Evaluate(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def build(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            logits = self.model(x)
            error = torchmetrics.functional.mean_squared_error(logits, nn.functional.one_hot(y, 3))
            return logits, error

    metric = torchmetrics.classification.MulticlassAccuracy(num_classes=3, average="micro")
    other = copy.deepcopy(metric)
    graph, labels = Evaluate(), torch.arange(32) % 3
    for x, y in zip(INPUTS.split(8), labels.split(8)):
        logits, error = graph(x, y)
        metric.update(logits, y)
        other.update(model(x), y)
        expected = nn.functional.mse_loss(model(x), nn.functional.one_hot(y, 3).float())
        torch.testing.assert_close(error, expected)
    assert metric.compute() == other.compute()
