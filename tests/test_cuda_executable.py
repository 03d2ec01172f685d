"""Programs for CUDA as the runtime runs them: on the interpreter in the GPU's place, and the driver's calls."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

import gflow
from gflow.compiler import CompileOptions
from gflow.dialects.program import (
    Argument,
    AtenStep,
    DeviceCode,
    LaunchStep,
    Place,
    Program,
    Result,
    TensorRef,
    TritonConfig,
    TritonKernel,
)
from gflow.dialects.program.form import packed
from gflow.dialects.types import TensorType
from gflow.runtime import Executable
from gflow.runtime.arena import Arena
from gflow.runtime.cuda.binding import Arguments
from gflow.runtime.cuda.driver import Driver, KernelNode
from gflow.runtime.cuda.gpu import Gpu, runs_on
from gflow.runtime.cuda.interpreter import InterpreterDevice
from gflow.runtime.device import DeviceError

pytest.importorskip("triton")

SCALE = """import triton
import triton.language as tl


@triton.jit
def scale(x, factor, y, n, offset, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value * tl.load(factor) + tl.sum(tl.zeros_like(value)) + offset, mask=i < n)
"""
F32 = TensorType((100,), "f32")


def scale(x: Place, y: Place, offset: float = 0.0, label: str = "scale at net.py:3") -> LaunchStep:
    return LaunchStep("scale", (x, Place("arg", 1, 0), y, 100, offset), 0, (2, 1, 1), label)


def make(
    steps: list[Any], results: list[Result] | None = None, role: str = "input", source: str = SCALE
) -> Program:
    """y = x * factor + offset, as often as there are steps. Arguments: x, a factor."""
    parameters = {"x": "*fp32", "factor": "*fp32", "y": "*fp32", "n": "i32", "offset": "fp32"}
    kernel = TritonKernel(
        "scale", source, parameters, {}, ("x", "y"), (TritonConfig({"BLOCK": 64}),), ("2",)
    )
    arguments = [
        Argument(role, "x", F32, (1,)),
        Argument("scalar", "optimizer.0.lr", TensorType((), "f32"), ()),
    ]
    found = [Result("y", F32, None)] if results is None else results
    return Program(
        "p", "", arguments, found, steps, {}, {}, 512, target="cuda:90", triton={"scale": kernel}
    )


ONCE = [scale(Place("arg", 0, 0), Place("result", 0, 0), 1.0)]
TWICE = [
    scale(Place("arg", 0, 0), Place("arena", 0, 64)),
    scale(Place("arena", 0, 64), Place("result", 0, 0)),
]


class Counting(InterpreterDevice):
    """Counts what runs at once and what is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.captured = 0

    def launch(self, launch: Any) -> None:
        self.launches += 1
        super().launch(launch)

    def capture(self, run: Callable[[], None]) -> Any:
        self.captured += 1
        return super().capture(run)


class Fixing(Counting):
    """As a driver that does not tell the nodes of launches; or that refuses the `accepts`-th update of one."""

    def __init__(self, accepts: int | None = None, bytes_per_second: float = 0.0) -> None:
        super().__init__()
        self.accepts, self.rate = accepts, bytes_per_second

    def copy_seconds(self, nbytes: int) -> float:
        return 2 * nbytes / self.rate if self.rate else 0.0

    def capture(self, run: Callable[[], None]) -> Any:
        found, device = super().capture(run), self
        update = found.update

        def counted(launch: Any) -> None:
            assert device.accepts is not None
            device.accepts -= 1
            if device.accepts < 0:
                raise DeviceError("not now")
            update(launch)

        found.fixed = "no nodes" if self.accepts is None else ""
        found.update = counted
        return found


def factor(value: float) -> torch.Tensor:
    return torch.tensor(value)


def test_launches_see_arguments_results_and_the_arena():
    run = Executable(make(TWICE), InterpreterDevice())
    x = torch.randn(100)
    for value in (2.0, 3.0, 0.5):
        (y,) = run([x, factor(value)])
        torch.testing.assert_close(y, x * value * value)


def test_results_belong_to_the_caller_with_and_without_a_graph():
    run = Executable(make(ONCE), InterpreterDevice())
    xs = [torch.randn(100) for _ in range(5)]
    ys = [run([x, factor(2.0)])[0] for x in xs]
    assert run.no_graph == ""
    for x, y in zip(xs, ys):
        torch.testing.assert_close(y, x * 2 + 1)


def test_a_graph_is_captured_at_the_second_call_and_used_while_nothing_moves():
    device = Counting()
    run = Executable(make(TWICE), device)
    x = torch.randn(100)
    for _ in range(4):
        x.add_(1)
        torch.testing.assert_close(run([x, factor(2.0)])[0], x * 4)
    assert device.captured == 1
    assert device.launches == 4  # the first call, and the captured one


@pytest.mark.parametrize("role", ["input", "parameter"])
def test_a_graph_gets_the_addresses_of_what_has_moved(role):
    device = Counting()
    run = Executable(make(TWICE, role=role), device)
    kept = []
    for _ in range(30):
        x = torch.randn(100)
        (y,) = run([x, factor(2.0)])
        kept.append((x, x.clone(), y))
    for x, before, y in kept:  # 30 results at once, none of which a later call has written to
        assert torch.equal(x, before)
        torch.testing.assert_close(y, x * 4)
    assert device.captured == 1
    assert device.launches == 4
    assert len({y.data_ptr() for *_, y in kept}) == 30
    assert run.graph_copies == ""


def check_results_that_are_kept(run: Executable, calls: int) -> None:
    """Results of several calls are right, also after the later ones."""
    kept = []
    for _ in range(calls):
        x = torch.randn(100)
        kept.append((x, run([x, factor(2.0)])[0]))
    for x, y in kept:
        torch.testing.assert_close(y, x * 4)


def test_inputs_that_move_are_copied_and_parameters_that_move_are_captured_anew():
    """Where the launches of a graph cannot get other addresses."""
    device = Fixing()
    run = Executable(make(TWICE), device)
    check_results_that_are_kept(run, 6)
    assert device.captured == 3  # the first one is given up, and so is that with the input in place
    assert run.graph_copies == "1 of 1 results are copied out of it: no nodes"
    device = Fixing()
    run = Executable(make(TWICE, role="parameter"), device)
    kept = [torch.randn(100) for _ in range(3)]
    for x in kept:
        torch.testing.assert_close(run([x, factor(2.0)])[0], x * 4)
    assert device.captured == 3
    for x in [torch.randn(100) for _ in range(30)]:
        torch.testing.assert_close(run([x, factor(2.0)])[0], x * 4)
    assert "moved" in run.no_graph


def test_a_refused_address_costs_the_graph_and_nothing_else():
    device = Fixing(accepts=5)
    run = Executable(make(TWICE), device)
    check_results_that_are_kept(run, 9)
    assert run.no_graph == ""
    assert run.graph_copies.endswith("not now")
    assert device.captured == 2


def test_results_are_not_copied_where_launching_the_steps_takes_less_time(caplog):
    with caplog.at_level("INFO", "gflow"):
        run = Executable(make(TWICE), Fixing(bytes_per_second=1e6))
        for _ in range(4):
            x = torch.randn(100)
            torch.testing.assert_close(run([x, factor(2.0)])[0], x * 4)
    assert "copies of its results (0 KiB) take longer than its 2 launches" in run.no_graph
    assert "step by step" in caplog.text


def test_several_results_and_one_that_is_an_argument():
    """x is updated in place; two results, of which a step of PyTorch's writes one."""
    ref, flipped = (TensorRef(Place(s, n, 0), F32, (1,)) for s, n in (("result", 0), ("result", 1)))
    steps = [
        scale(Place("arg", 0, 0), Place("result", 0, 0), 1.0),
        AtenStep("aten.flip.default", '[[{"t": 0}, [0]], {}]', (ref,), (flipped,), "flip"),
        scale(Place("arg", 0, 0), Place("arg", 0, 0), 0.5),
    ]
    results = [Result("y", F32, None), Result("z", F32, None), Result("x", F32, 0)]
    device = Counting()
    run = Executable(make(steps, results), device)
    kept = []
    for n in range(8):
        x = torch.randn(100) if n % 3 else torch.randn(101)[1:]  # a misaligned one
        was = x.clone()
        y, z, updated = run.timed([x, factor(2.0)])[0] if n == 5 else run([x, factor(2.0)])
        assert updated is x
        torch.testing.assert_close(x, was * 2 + 0.5)
        kept.append((was, y[10:20], z))
        del y
    for was, part, z in kept:
        torch.testing.assert_close(part, (was * 2 + 1)[10:20])
        torch.testing.assert_close(z, (was * 2 + 1).flip(0))
    assert run.graph_copies == "2 of 3 results are copied out of it: steps of PyTorch access them"
    assert device.captured == 1


@pytest.mark.parametrize("device", [Counting, Fixing])
def test_a_call_step_by_step_between_launches_of_the_graph(device):
    run = Executable(make(TWICE), device())
    for n in range(8):
        x = torch.randn(100)
        results = run.timed([x, factor(2.0)])[0] if n in (3, 5) else run([x, factor(2.0)])
        torch.testing.assert_close(results[0], x * 4)
    assert run.no_graph == ""


def test_ctrl_c_waits_for_the_last_launch(request: pytest.FixtureRequest) -> None:
    class Interrupted(Counting):
        at = 0

        def launch(self, launch: Any) -> None:
            super().launch(launch)
            if self.launches == self.at:
                signal.raise_signal(signal.SIGINT)

    # a shell that starts tests in the background has them ignore the signal
    started_with = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, started_with))
    step = scale(Place("arg", 0, 0), Place("arg", 0, 0), 1.0)
    device = Interrupted()
    run = Executable(make([step, step], [Result("x", F32, 0)]), device)
    x, before = torch.zeros(100), signal.getsignal(signal.SIGINT)
    for n in range(1, 5):  # step by step, captured, a launch of the graph
        device.at = device.launches + 1 if n < 3 else 0
        with pytest.raises(KeyboardInterrupt) if device.at else nullcontext():
            run([x, factor(2.0)])
        assert run.done
        assert signal.getsignal(signal.SIGINT) is before
        assert x.unique().item() == 4**n - 1
    assert run.no_graph == ""


def test_tensors_on_another_device_are_an_error_but_for_numbers():
    class Elsewhere(InterpreterDevice):
        where = torch.device("meta")

    binding = Arguments(make(ONCE), Elsewhere())
    found = binding.bind([torch.randn(100, device="meta"), factor(2.0)])
    assert [t.device.type for t in found] == ["meta", "meta"]
    with pytest.raises(DeviceError) as caught:
        binding.bind([torch.randn(100), factor(2.0)])
    assert "input 'x' is on cpu: move it there (.to('meta'))" in str(caught.value)
    assert "'p' is compiled for cuda:90 and runs on meta" in str(caught.value)


def test_numbers_are_sent_when_they_change():
    marks = 0

    class Marking(InterpreterDevice):
        def mark(self) -> float:
            nonlocal marks
            marks += 1
            return super().mark()

    run = Executable(make(ONCE), Marking(), graphs=False)
    for value in (1.0, 1.0, 2.0, 2.0, 2.0, 1.0):
        x = torch.randn(100)
        torch.testing.assert_close(run([x, factor(value)])[0], x * value + 1)
    assert marks == 3


def test_an_arena_that_grows_makes_the_graph_anew():
    device, arena = Counting(), Arena()
    run = Executable(make(TWICE), device, arena)
    x = torch.randn(100)
    for _ in range(3):
        run([x, factor(2.0)])
    larger = make(TWICE)
    larger.arena_bytes = 1 << 20
    other = Executable(larger, device, arena)
    torch.testing.assert_close(other([x, factor(3.0)])[0], x * 9)
    torch.testing.assert_close(run([x, factor(2.0)])[0], x * 4)
    assert arena.nbytes == 1 << 20
    assert device.captured == 2
    run.close()
    other.close()
    assert arena.nbytes == 0


def test_aten_steps_run_between_launches_and_in_graphs():
    ref = TensorRef(Place("arena", 0, 64), F32, (1,))
    out = TensorRef(Place("result", 0, 0), F32, (1,))
    flip = AtenStep("aten.flip.default", '[[{"t": 0}, [0]], {}]', (ref,), (out,), "flip")
    program = make([TWICE[0], flip])
    device = Counting()
    run = Executable(program, device)
    for _ in range(4):
        x = torch.randn(100)
        torch.testing.assert_close(run([x, factor(2.0)])[0], (x * 2).flip(0))
    assert device.captured == 1


def test_a_step_that_reads_a_number_keeps_the_program_from_being_a_graph(caplog):
    ref = TensorRef(Place("arena", 0, 64), F32, (1,))
    number = TensorRef(Place("arg", 1, 0), TensorType((), "f32"), ())
    out = TensorRef(Place("result", 0, 0), F32, (1,))
    args = '[[{"t": 0}, {"s": 1}], {}]'
    add = AtenStep("aten.add.Scalar", args, (ref, number), (out,), "add at net.py:9")
    with caplog.at_level("INFO", "gflow"):
        run = Executable(make([TWICE[0], add]), InterpreterDevice())
    assert "reads a number from the device (add at net.py:9)" in run.no_graph
    assert "step by step" in caplog.text
    for value in (2.0, 3.0, 4.0):
        x = torch.randn(100)
        torch.testing.assert_close(run([x, factor(value)])[0], x * value + value)


def test_what_is_misaligned_is_copied_there_and_back():
    step = scale(Place("arg", 0, 0), Place("arg", 0, 0), 1.0)
    run = Executable(make([step], [Result("x", F32, 0)]), InterpreterDevice())
    base = torch.zeros(101)
    x = base[1:]
    assert x.data_ptr() % 16
    for n in range(1, 5):
        (y,) = run([x, factor(2.0)])
        assert y is x
        assert base[1:].unique().item() == 2**n - 1
    assert base[0] == 0


def test_streams_follow_each_other():
    class Streams(InterpreterDevice):
        now, waited = 5, ()

        def stream(self) -> int:
            return self.now

        def wait_for(self, stream: int) -> None:
            self.waited += (stream,)

    device = Streams()
    run = Executable(make(ONCE), device)
    for device.now in (5, 5, 7, 7, 0, 5):
        run([torch.randn(100), factor(1.0)])
    assert device.waited == (5, 7, 0)


def test_errors_name_the_step(monkeypatch):
    source = SCALE.replace("    value =", "    nothing\n    value =")
    bad = make(TWICE, source=source)
    with pytest.raises(DeviceError) as caught:
        Executable(bad, InterpreterDevice())([torch.randn(100), factor(1.0)])
    assert "scale at 'nothing': NameError: name 'nothing' is not defined" in str(caught.value)
    assert "kernel scale, scale at net.py:3" in str(caught.value)
    assert "GFLOW_CUDA_SYNC=1" in str(caught.value)
    monkeypatch.setenv("GFLOW_CUDA_SYNC", "1")
    run = Executable(bad, InterpreterDevice())
    assert run.no_graph == "it is switched off"
    with pytest.raises(DeviceError, match="in kernel scale"):
        run([torch.randn(100), factor(1.0)])
    with pytest.raises(ValueError, match="takes 2 arguments, 1 were given"):
        run([torch.randn(100)])
    cpu = make(ONCE)
    cpu.target = "cpu"
    with pytest.raises(DeviceError, match="compiled for cpu, not for a GPU"):
        Executable(cpu, InterpreterDevice())


def test_an_access_outside_of_every_tensor_is_an_error():
    x, y = torch.randn(100), torch.zeros(50)
    step = scale(Place("arg", 0, 0), Place("arg", 2, 0))
    program = make([step], [])
    program.arguments.append(Argument("input", "y", TensorType((50,), "f32"), (1,)))
    run = Executable(program, InterpreterDevice())
    with pytest.raises(
        DeviceError, match=r"a store of 4 bytes at address \d+ in program \(\d, 0, 0\)"
    ):
        run([x, factor(1.0), y])


def test_times_by_step():
    run = Executable(make(TWICE), InterpreterDevice())
    x = torch.randn(100)
    results, times, _ = run.timed([x, factor(2.0)])
    torch.testing.assert_close(results[0], x * 4)
    assert len(times) == 2
    assert all(begin <= end for begin, end in times)
    assert [step.label for step, _ in run.profile([x, factor(2.0)])] == ["scale at net.py:3"] * 2


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = (torch.nn.Parameter(torch.randn(20)) for _ in range(2))

    def forward(self, x):
        return torch.softmax(torch.tanh(x * self.weight + self.bias), -1)


def test_a_training_graph_on_the_interpreter(monkeypatch):
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    model, other = Net(), Net()
    other.load_state_dict(model.state_dict())

    class Train(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.Adam(model.parameters(), lr=0.1))
            self.config.compile_options = CompileOptions(target="cuda:90")

        def build(self, x):
            loss = (self.model(x) ** 2).sum()
            loss.backward()
            return loss

    graph, optimizer = Train(), torch.optim.Adam(other.parameters(), lr=0.1)
    for _ in range(4):
        x = torch.randn(6, 20)
        loss = graph(x)
        optimizer.zero_grad()
        want = (other(x) ** 2).sum()
        want.backward()
        optimizer.step()
        torch.testing.assert_close(loss, want.detach())
    torch.testing.assert_close(model.state_dict(), other.state_dict())


# -- the driver


class Library:
    """libcuda, as far as a program notices."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.status: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*args: Any) -> int:
            self.calls.append((name, *args))
            handles = {
                "cuDevicePrimaryCtxRetain": 11,
                "cuModuleLoadData": 22,
                "cuModuleGetFunction": 33,
            }
            texts = {"cuGetErrorName": b"CUDA_ERROR_X", "cuGetErrorString": b"it broke"}
            if name in handles:
                args[0]._obj.value = handles[name]
            if name in texts:
                args[1]._obj.value = texts[name]
            return self.status.get(name, 0)

        setattr(self, name, call)
        return call


def test_the_driver_loads_and_launches():
    library = Library()
    driver = Driver(library)
    context = driver.context(1)
    assert context == 11
    driver.enter(context)
    assert library.calls[-1] == ("cuCtxSetCurrent", 11)
    assert driver.load(b"image", "scale", 1000) == (22, 33)
    assert not [c for c in library.calls if c[0] == "cuFuncSetAttribute"]
    driver.load(b"image", "scale", 99_000)
    assert library.calls[-1][2:] == (8, 99_000)
    driver.launch(33, (2, 3, 4), 128, 512, 77, 1234)
    assert library.calls[-1] == ("cuLaunchKernel", 33, 2, 3, 4, 128, 1, 1, 512, 77, 1234, None)
    library.status["cuLaunchKernel"] = 700
    with pytest.raises(DeviceError, match="CUDA_ERROR_X: it broke"):
        driver.launch(33, (1, 1, 1), 128, 0, 0, 0)
    assert driver.captured_node(77) is None  # the stream is not captured
    driver.set_kernel_node(1, 2, KernelNode(33, (2, 1, 1), (64, 1, 1)))
    assert library.calls[-1][:3] == ("cuGraphExecKernelNodeSetParams_v2", 1, 2)
    library.status["cuGraphExecKernelNodeSetParams_v2"] = 1
    with pytest.raises(DeviceError, match="CUDA_ERROR_X: it broke"):
        driver.set_kernel_node(1, 2, KernelNode())
    library.status["cuModuleLoadData"] = 209
    with pytest.raises(DeviceError, match="cuModuleLoadData: CUDA_ERROR_X"):
        driver.load(b"", "scale", 0)


def test_a_driver_that_does_not_set_nodes_of_graphs():
    class Older(Library):
        def __getattr__(self, name: str) -> Any:
            if name.endswith("_v2"):
                raise AttributeError(name)
            return super().__getattr__(name)

    library = Older()
    assert Driver(library).captured_node(77) is None
    assert library.calls == [("cuInit", 0)]


def gpu(monkeypatch, library: Library) -> Gpu:
    for name, value in {
        "is_available": True, "init": None, "get_device_capability": (9, 0),
        "get_device_name": "NVIDIA H100",
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *args, value=value: value)
    properties = type("P", (), {"shared_memory_per_block_optin": 232_448})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *args: properties)
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda index: 70 + index, raising=False
    )
    for name in ("_exchange_device", "_maybe_exchange_device"):
        monkeypatch.setattr(torch.cuda, name, lambda index: index)
    return Gpu(torch.device("cuda", 1), Driver(library))


def test_a_gpu_launches_what_a_step_says(monkeypatch):
    library = Library()
    device = gpu(monkeypatch, library)
    program = make(TWICE)
    device.check(program)
    image = packed(b"image")
    program.device_code["scale/0"] = DeviceCode(image, "scale", 60_000, 2)
    code = program.device_code["scale/0"]
    function = device.load(program.triton["scale"], 0, code)
    assert device.load(program.triton["scale"], 0, code) is function
    assert [c[0] for c in library.calls].count("cuModuleLoadData") == 1
    # the words and their addresses, as the driver reads them
    from gflow.runtime.cuda.launches import LaunchTable

    device.where = torch.device("cpu")
    device.load = lambda kernel, config, code: function
    table = LaunchTable(program, device, lambda place: None, lambda: None)
    table.patch("arg", 0, 4096)
    table.patch("arena", 0, 8192)
    device.where = torch.device("cuda", 1)
    device.launch(table.launches[0])
    call = library.calls[-1]
    assert call[:-2] == ("cuLaunchKernel", 33, 2, 1, 1, 64, 1, 1, 60_000, 71)
    addresses = np.ctypeslib.as_array((ctypes.c_int64 * 7).from_address(call[-2]))
    words = [ctypes.c_int64.from_address(int(a)).value for a in addresses]
    assert words == [4096, 0, 8192 + 64, 100, 0, 0, 0]
    assert ctypes.c_float.from_address(int(addresses[4])).value == 0.0


def test_a_gpu_refuses_what_is_for_others(monkeypatch):
    device = gpu(monkeypatch, Library())
    program = make(ONCE)
    program.target = "cuda:80"
    with pytest.raises(DeviceError) as caught:
        device.check(program)
    assert "compute capability 8.0; NVIDIA H100 has 9.0" in str(caught.value)
    assert "target='cuda:90'" in str(caught.value)
    with pytest.raises(DeviceError, match="no machine code for kernel scale"):
        device.load(program.triton["scale"], 0, None)
    with pytest.raises(DeviceError, match="wants 300000 bytes of shared memory"):
        device.load(program.triton["scale"], 0, DeviceCode("", "scale", 300_000, 4))
    assert runs_on(80, (8, 6))
    assert not runs_on(86, (8, 0))
    assert not runs_on(90, (10, 0))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(monkeypatch):
    from gflow.runtime import load_program

    with pytest.raises(DeviceError, match=r"no CUDA driver here|finds no GPU"):
        load_program(make(ONCE))
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "toaster")
    with pytest.raises(DeviceError, match="'interpreter' is the one that is known"):
        load_program(make(ONCE))


def test_running_needs_neither_triton_nor_mlir():
    code = (
        "import sys, gflow.runtime, gflow.runtime.cuda.gpu, gflow.runtime.stored.artifact\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('triton', 'torch_mlir', 'mlir')\n"
        "       or m.startswith(('gflow.compiler', 'gflow.tracing', 'gflow.graph'))]\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
