"""Who runs the step, and how the model is divided. A way's rank makes its step here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.workloads.networks import Decoder, DecoderLayer, Llama

#: by name: who runs the step, and how the model is divided
WAYS = {
    "ddp": ("eager", "ddp"),
    "fsdp2": ("eager", "fsdp"),
    "gflow-ddp": ("gflow", "ddp"),
    "gflow-zero-1": ("gflow", "zero 1"),
    "gflow-zero-2": ("gflow", "zero 2"),
    "gflow-zero-3": ("gflow", "zero 3"),
    "gflow-fsdp2": ("gflow", "fsdp"),
    "gflow-tp": ("gflow", "tensor"),
    "gflow-pipeline": ("gflow", "pipeline"),
}
#: the decoder on one rank, beside others that do the same: what its computations take; and the other model's
ALONE = {"alone": ("gflow", "alone"), "alone-tp": ("gflow", "alone tensor")}
#: micro-batches of a step in a pipeline
MICRO_BATCHES = 4


@dataclass(frozen=True)
class Size:
    """Of the decoder. batch: examples of a rank, of `length` tokens."""

    width: int
    layers: int
    length: int
    batch: int
    vocabulary: int = 1000


@dataclass(frozen=True)
class Step:
    """run: one step, to its loss. graph, inputs: of that step; None and nothing of an eager one."""

    run: Callable[[], Any]
    graph: Any = None
    inputs: tuple[Tensor, ...] = ()


def import_libraries(who: str) -> None:
    """All that any step of `who` imports, so that memory is not charged for it. FSDP2's are imported for all."""
    from torch.distributed import fsdp, tensor  # noqa: F401

    from benchmarks.harness import peers

    peers.import_libraries(who)


def make_step(who: str, how: str, size: Size, rank: int, ranks: int) -> Step:
    """A step of AdamW."""
    torch.manual_seed(0)
    if how.endswith("tensor"):
        return _tensor_step(size, ranks, how == "tensor")
    model: Any
    if how == "pipeline":
        model = _Untied(size, ranks)
    else:
        model = Decoder(size.layers, size.width, 4, size.vocabulary, size.length)
    batch = size.batch
    if how == "pipeline":
        batch = size.batch * MICRO_BATCHES  # of the whole pipeline, whose ranks have the same
        rank = 0
    x = _tokens((batch, size.length), size, rank)
    divided: Any = model
    if how == "fsdp":
        # only here: it is no part of the others
        from torch.distributed.fsdp import fully_shard

        for module in model.modules():
            if isinstance(module, DecoderLayer):
                fully_shard(module)
        divided = fully_shard(model)
    elif how not in ("alone", "pipeline"):
        divided = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(divided.parameters(), 1e-4)
    if who == "eager":

        def eager() -> Tensor:
            optimizer.zero_grad()
            loss = _loss(divided, x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Step(eager)

    def configure(config: Any) -> None:
        if how.startswith("zero"):
            config.enable_zero(True, stage=int(how[-1]))
        if how == "pipeline":
            config.set_gradient_accumulation_steps(MICRO_BATCHES)

    return _graph_step(divided, optimizer, x, _loss, configure)


def _tokens(shape: tuple[int, ...], size: Size, seed: int) -> Tensor:
    return torch.randint(size.vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def _loss(model: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = model(x)
    return nn.functional.cross_entropy(y[:, :-1].flatten(0, 1), x[:, 1:].flatten())


class _Untied(nn.Module):
    """The decoder with a head of its own: a parameter is in one stage. Layers are in as many stages as there are ranks,
    the embeddings in the first, norm and head in the last."""

    def __init__(self, size: Size, ranks: int) -> None:
        super().__init__()
        # only here: eager's processes do not load it
        import gflow

        self.token = nn.Embedding(size.vocabulary, size.width)
        self.position = nn.Embedding(size.length, size.width)
        self.layers = nn.Sequential(*(DecoderLayer(size.width, 4) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        stages: list[tuple[Any, int]] = [
            (self.token, 0),
            (self.position, 0),
            (self.norm, ranks - 1),
            (self.head, ranks - 1),
        ]
        stages += [(layer, n * ranks // size.layers) for n, layer in enumerate(self.layers)]
        for module, stage in stages:
            module.to(gflow.nn.graph.GraphModule).set_stage(stage)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        y: Tensor = self.head(self.norm(self.layers(x)))
        return y


def _tensor_step(size: Size, ranks: int, divided: bool) -> Step:
    """A Llama whose layers are divided as Megatron's, all ranks with the same batch."""
    heads = 4
    model = Llama(size.layers, size.width, heads, heads, 4 * size.width, size.vocabulary)
    if divided:
        # only here: they are no part of the others
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
        columns = {f"layers.*.{n}": ColwiseParallel() for n in ("q", "k", "v", "gate", "up")}
        rows = {f"layers.*.{n}": RowwiseParallel() for n in ("o", "down")}
        parallelize_module(model, mesh, {**columns, **rows})
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    x = _tokens((size.batch, size.length), size, 0)
    return _graph_step(model, optimizer, x, _loss, lambda _: None)


def _graph_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    loss_of: Callable[[nn.Module, Tensor], Tensor],
    configure: Callable[[Any], None],
) -> Step:
    # only here: eager's processes do not load it
    import gflow

    class Train(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)
            configure(self.config)

        def build(self, x: Tensor) -> Tensor:
            loss = loss_of(self.model, x)
            loss.backward()
            return loss

    train = Train()
    return Step(lambda: train(x), train, (x,))
