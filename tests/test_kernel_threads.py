"""Kernels are compiled in threads: what fails, is interrupted or forks leaves a state that compiles later."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch

import gflow as flow
from gflow.compiler.emit.cpu import early, program_builder
from gflow.compiler.targets.processors import host_level
from gflow.dialects import mlir
from gflow.runtime.cpu import jit, llvm

_numbers = count()


def kernel(body: str = "") -> dict[str, str]:
    name = f"test_kernel_threads_{next(_numbers)}"
    return {name: f"  llvm.func @{name}(%w: !llvm.ptr) {{\n{body}    llvm.return\n  }}"}


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFLOW_CACHE", "0")


def computed() -> torch.Tensor:
    x = torch.randn(16, 40, generator=torch.Generator().manual_seed(0))
    return flow.compile(lambda x: torch.softmax(torch.tanh(x @ x.T).cumsum(0), 1).sum(0))(x)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many kernels each engine gets from now on."""
    found: list[int] = []
    engine_of = llvm.engine_of

    def engine(kernels: Any, *rest: Any, **named: Any) -> Any:
        found.append(len(kernels))
        return engine_of(kernels, *rest, **named)

    monkeypatch.setattr(llvm, "engine_of", engine)
    return found


def test_kernels_in_pieces_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one module, in one for each op while code is generated, and by the bindings' own engine."""
    found = []
    engines = counted(monkeypatch)
    monkeypatch.setattr(program_builder, "_MANY", 1 << 30)
    monkeypatch.setattr(early, "_LEAST", 1 << 30)
    monkeypatch.setattr(jit, "_LEAST_TEXT", 1 << 30)
    for set_up in (
        lambda: None,
        lambda: monkeypatch.setattr(mlir, "_engine_functions", lambda: None),
        lambda: monkeypatch.setattr(program_builder, "_MANY", 1),
    ):
        set_up()
        monkeypatch.setattr(jit, "_addresses", {})
        engines.clear()
        found.append((computed(), [*engines]))
    (first, whole), (bound, also), (pieces, divided) = found
    assert whole == also
    assert len(whole) == 1
    assert len(divided) > 2  # not once, when all of the code is there
    assert sum(divided) == sum(whole)
    assert torch.equal(first, bound)
    assert torch.equal(first, pieces)


@pytest.mark.skipif(host_level() == "", reason="gflow has no own products for this processor")
@pytest.mark.parametrize("half", [False, True])
def test_kernels_that_passes_do_not_change_begin_early(
    monkeypatch: pytest.MonkeyPatch, half: bool
) -> None:
    """Before fusion, threads get kernels of products and of attention: those of the program, with the same text."""
    begun: dict[str, str] = {}
    monkeypatch.setattr(program_builder, "_MANY", 1 << 30)  # none begins later
    monkeypatch.setattr(jit, "begin_kernels", lambda kernels, declared: begun.update(kernels))
    torch.manual_seed(0)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).view(2, 96, 3, 2, 32).permute(2, 0, 3, 1, 4).unbind(0)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).reshape(2, 96, 64))

    class Train(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = Layer()
            self.add_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

        def build(self, x: torch.Tensor) -> torch.Tensor:
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

    graph = Train()
    if half:
        graph.config.enable_amp(True, dtype=torch.bfloat16)
    graph(torch.randn(2, 96, 64))
    program = graph._state.latest.compiled.program
    assert program is not None
    if half:  # products of bfloat16 values are chosen with their epilogues
        assert begun.items() <= program.kernels.items()
        return
    assert {"product", "attention_causal", "attention_grad_causal"} <= begun.keys()
    assert begun.items() <= program.kernels.items()


def test_a_program_is_divided_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = {k: v for _ in range(8) for k, v in kernel().items()}
    size = sum(map(len, kernels.values()))
    monkeypatch.setattr(jit, "_LEAST_TEXT", size // 4)
    monkeypatch.setattr(jit, "_most_threads", lambda: 2)
    engines = counted(monkeypatch)
    assert set(jit.compile_kernels(kernels, {})) == set(kernels)
    assert engines == [4, 4]
    again = {**kernels, **kernel()}
    jit.compile_kernels(again, {})
    assert engines == [4, 4, 1]


def test_a_failure_is_raised_by_who_needs_the_kernel() -> None:
    broken, good = kernel("    nonsense\n"), kernel()
    for _ in range(2):
        jit.begin_kernels(broken, {})
        with pytest.raises(mlir.ir.MLIRError, match="nonsense"):
            jit.compile_kernels(broken, {})
    jit.compile_kernels(good, {})
    assert not jit._jobs


def test_without_a_thread_the_caller_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while the interpreter ends."""

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    one, two = kernel(), kernel()
    jit.begin_kernels(one, {})
    assert jit.compile_kernels({**one, **two}, {})
    assert not jit._jobs


def blocked(monkeypatch: pytest.MonkeyPatch, entered: Callable[[], None]) -> threading.Event:
    """Engines wait for the event; `entered` is called first."""
    go, engine_of = threading.Event(), llvm.engine_of

    def engine(*given: Any, **named: Any) -> Any:
        entered()
        assert go.wait(60)
        return engine_of(*given, **named)

    monkeypatch.setattr(llvm, "engine_of", engine)
    return go


def test_ctrl_c_does_not_wait_for_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread goes on; who asks again waits for it, and compiles nothing twice."""
    calls: list[int] = []
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        calls.append(main)
        signal.pthread_kill(main, signal.SIGINT)

    go = blocked(monkeypatch, interrupt)
    kernels = kernel()
    # a shell's background processes ignore Ctrl-C
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            jit.compile_kernels(kernels, {})
    finally:
        signal.signal(signal.SIGINT, before)
    threading.Timer(0.05, go.set).start()
    assert set(jit.compile_kernels(kernels, {})) == set(kernels)
    assert len(calls) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_waits_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child has the kernels, no thread, and compiles others."""
    begun = threading.Event()
    go = blocked(monkeypatch, begun.set)
    first, second = kernel(), kernel()
    jit.begin_kernels(first, {})
    assert begun.wait(60)
    threading.Timer(0.05, go.set).start()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            assert all(name in {n for _, n in jit._addresses} for name in first)
            assert not jit._threads
            jit.compile_kernels(second, {})
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert jit.compile_kernels({**first, **second}, {})
