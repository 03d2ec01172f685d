"""The main job: MobileNetV2 trained on real images, the whole step one compiled graph.

    python examples/train_mobilenet.py                  scikit-learn's digits, as 3x32x32 images
    python examples/train_mobilenet.py --data FOLDER    CIFAR-10, binary version

Beside the graph an eager copy of the same model, from the same seed, takes the first steps on
the same batches: that gives seconds per step of both, and shows that the losses agree.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import peak_memory
from images import Images, load_images
from mobilenet_v2 import MobileNetV2

import gflow as flow
from gflow import Tensor

WARM_UP = 3  # steps that both run before their time counts
COMPARED_STEP = 4  # losses are compared at step 1 and here; later, training amplifies rounding


class TrainGraph(flow.nn.Graph):
    """Forward, backward and the optimizer's update: one call is one step of training."""

    def __init__(self, model: flow.nn.Module, optimizer: flow.optim.Optimizer):
        super().__init__()
        self.model = model
        self.loss = flow.nn.CrossEntropyLoss()
        self.add_optimizer(optimizer)

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.loss(self.model(x), y)
        loss.backward()
        return loss


class EvalGraph(flow.nn.Graph):
    def __init__(self, model: flow.nn.Module):
        super().__init__()
        self.model = model

    def build(self, x: Tensor) -> Tensor:
        return self.model(x)


class EagerStep:
    """What TrainGraph does, by plain PyTorch."""

    def __init__(self, model: flow.nn.Module, optimizer: flow.optim.Optimizer):
        self.model = model
        self.loss = flow.nn.CrossEntropyLoss()
        self.optimizer = optimizer

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Peer:
    """One way to train: its model, its step, its times."""

    def __init__(self, kind: str, args: argparse.Namespace, images: Images, steps: int):
        flow.manual_seed(args.seed)
        self.model = MobileNetV2(
            images.classes, dropout=args.dropout, small_images=args.small_images
        )
        optimizer = flow.optim.SGD(
            self.model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4
        )
        self.schedule = flow.optim.lr_scheduler.OneCycleLR(
            optimizer, args.lr, total_steps=max(steps, 2), cycle_momentum=False
        )
        make = TrainGraph if kind == "gflow" else EagerStep
        self.step = make(self.model, optimizer)
        self.seconds: list[float] = []

    def train(self, x: Tensor, y: Tensor) -> float:
        start = time.perf_counter()
        loss = self.step(x, y).item()
        self.seconds.append(time.perf_counter() - start)
        self.schedule.step()
        return loss


def batches(images: Images, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch in random order, without the short rest."""
    order = flow.randperm(len(images.train_x), generator=flow.Generator().manual_seed(seed))
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield images.train_x[chosen], images.train_y[chosen]


def accuracy(model: flow.nn.Module, images: Images, size: int) -> float:
    """On the held-out images, by an inference graph over the trained model."""
    model.eval()
    graph = EvalGraph(model)
    right = 0
    for start in range(0, len(images.test_x), size):
        x, y = images.test_x[start : start + size], images.test_y[start : start + size]
        filled = flow.cat([x, x.new_zeros(size - len(x), *x.shape[1:])])  # one shape, one graph
        right += int((graph(filled)[: len(x)].argmax(1) == y).sum())
    model.train()
    return right / len(images.test_x)


def measure_memory(kind: str, args: argparse.Namespace) -> None:
    """Prints the peak of a few steps over what the model, the data and the libraries take."""
    images = load_images(args.data, args.seed)
    data = list(batches(images, args.batch, args.seed))[:4]
    peer = Peer(kind, args, images, steps=10)
    peak_memory.release_unused()
    before = peak_memory.resident()
    for x, y in data[:2]:
        peer.train(x, y)
    peak_memory.release_unused()
    peak_memory.reset_peak()
    for x, y in data[2:]:
        peer.train(x, y)
    print((peak_memory.peak() - before) / peak_memory.MIB)


def memory_of(kind: str) -> float:
    """`measure_memory` in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--memory-of", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: the memory measurement of {kind} failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def train(args: argparse.Namespace) -> None:
    images = load_images(args.data, args.seed)
    per_epoch = len(images.train_x) // args.batch
    if per_epoch == 0:
        raise SystemExit(f"error: --batch {args.batch} exceeds the {len(images.train_x)} images")
    steps = args.epochs * per_epoch
    print(
        f"{images.name}: {len(images.train_x)} images to train on, {len(images.test_x)} held out; "
        f"{args.epochs} epochs of {per_epoch} steps, batch {args.batch}"
    )
    graph, eager = Peer("gflow", args, images, steps), Peer("eager", args, images, steps)

    compared, step = [], 0
    for epoch in range(args.epochs):
        losses = []
        for x, y in batches(images, args.batch, args.seed + epoch):
            losses.append(graph.train(x, y))
            if step == 0:
                print(f"first step, compilation included: {graph.seconds[0]:.2f} s", flush=True)
                write_ir(graph.step, args.ir)
            if step < args.compare_steps:
                compared.append((losses[-1], eager.train(x, y)))
            step += 1
        print(
            f"epoch {epoch + 1:2}   loss {sum(losses) / len(losses):.4f}   "
            f"{median(graph.seconds[-len(losses) :]):.3f} s a step",
            flush=True,
        )
    held_out = accuracy(graph.model, images, min(args.batch, len(images.test_x)))
    print(f"accuracy on the held-out images: {held_out:.1%}")
    report(graph, eager, compared, args)


def write_ir(graph: flow.nn.Graph, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(graph.ir())
    print(f"IR of the step: {path}", flush=True)


def report(
    graph: Peer, eager: Peer, compared: list[tuple[float, float]], args: argparse.Namespace
) -> None:
    if len(compared) > WARM_UP:
        timed = slice(WARM_UP, len(compared))
        ours, theirs = median(graph.seconds[timed]), median(eager.seconds[timed])
        print(
            f"seconds a step (median of {len(compared) - WARM_UP}, in turn): "
            f"gflow {ours:.3f}, eager {theirs:.3f}, ratio {ours / theirs:.2f}"
        )
        later = min(COMPARED_STEP, len(compared))
        first, last = compared[0], compared[later - 1]
        print(
            f"loss, gflow and eager: {first[0]:.5f} and {first[1]:.5f} at step 1, "
            f"{last[0]:.5f} and {last[1]:.5f} at step {later}"
        )
    if args.memory:
        ours, theirs = memory_of("gflow"), memory_of("eager")
        print(
            f"peak memory of a step over model and data: gflow {ours:.0f} MiB, "
            f"eager {theirs:.0f} MiB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, help="folder of CIFAR-10, binary version (default: digits)")
    add("--epochs", type=int, default=8)
    add("--batch", type=int, default=64)
    add("--lr", type=float, default=0.1, help="highest learning rate of the one-cycle schedule")
    add("--dropout", type=float, default=0.0, help="with 0, losses compare with eager's")
    add("--small-images", action="store_true", help="8-fold instead of 32-fold downsampling")
    add("--seed", type=int, default=0)
    add("--compare-steps", type=int, default=23, help="steps that eager takes too")
    add("--ir", type=Path, default=Path("runs/mobilenet_v2.mlir"), help="where to write the IR")
    add("--no-memory", dest="memory", action="store_false", help="no memory measurement")
    add("--memory-of", choices=("gflow", "eager"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        measure_memory(args.memory_of, args)
    else:
        train(args)


if __name__ == "__main__":
    main()
