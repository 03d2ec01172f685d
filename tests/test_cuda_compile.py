"""Triton kernels to machine code, without a GPU: what a kernel's code says about itself, errors, the cache."""

import os
import subprocess
import sys

import pytest

from gflow.compiler.emit.triton.toolchain.compile import KernelError, compile_kernels, key_of
from gflow.compiler.emit.triton.toolchain.device_code import (
    FEW,
    MORE,
    add_device_code,
    avoid_spills,
)
from gflow.compiler.emit.triton.toolchain.machine_code import check_ptx_entry
from gflow.compiler.emit.triton.toolchain.process_pool import shared_pool
from gflow.dialects.program import DeviceCode, LaunchStep, Program, Race, TritonConfig, TritonKernel

pytest.importorskip("triton")

ADD = """import triton
import triton.language as tl


@triton.jit
def add(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.exp(tl.load(x + i, mask=i < n)), mask=i < n)
"""
DOT = """import triton
import triton.language as tl


@triton.jit
def dot(x, y, z, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = i[:, None] * BLOCK + i[None, :]
    tl.store(z + at, tl.dot(tl.load(x + at), tl.load(y + at)))
"""


def kernel(source: str = ADD, *configs: TritonConfig) -> TritonKernel:
    chosen = configs or (TritonConfig({"BLOCK": 256}, 2), TritonConfig({"BLOCK": 512}, 4))
    return TritonKernel(
        "add", source, {"x": "*fp32", "y": "*fp32", "n": "i32"}, {}, ("x", "y"), chosen, ("1",)
    )


def dot(block: int = 64) -> TritonKernel:
    parameters = {"x": "*bf16", "y": "*bf16", "z": "*fp32"}
    configs = (TritonConfig({"BLOCK": block}),)
    return TritonKernel("dot", DOT, parameters, {}, ("x", "y", "z"), configs, ("1",))


@pytest.mark.parametrize("arch", [80, 90])
def test_code_says_what_it_needs(arch):
    found = compile_kernels([(kernel(), 0), (kernel(), 1), (dot(), 0)], arch)
    assert sorted(found) == ["add/0", "add/1", "dot/0"]
    assert [found[key].warps for key in sorted(found)] == [2, 4, 4]
    assert found["add/0"].entry == "add"
    assert found["add/0"].instructions == ()
    assert 0 < found["add/0"].registers < 64
    assert found["add/0"].spills == 0
    used = {80: "mma.m16n8k16.f32.bf16.bf16.f32", 90: "wgmma.mma_async.m64n64k16.f32.bf16.bf16"}
    assert found["dot/0"].instructions == (used[arch],)
    assert found["dot/0"].shared >= 2 * 64 * 64 * 2


def test_errors_name_the_kernel_the_op_and_the_line():
    broken = kernel(ADD.replace("tl.exp", "tl.expo"))
    with pytest.raises(KernelError) as caught:
        compile_kernels([(broken, 0), (kernel(), 1)], 80, labels={"add": "fused net.py:3"})
    text = str(caught.value)
    assert "kernel add does not compile for cuda:80" in text
    assert "it is of fused net.py:3" in text
    assert "line 8: tl.store(y + i, tl.expo(" in text
    assert "no attribute 'expo'" in text


def test_errors_of_many_kernels_are_short():
    source = ADD.replace("tl.exp", "tl.expo")
    configs = [TritonConfig({"BLOCK": 64 << n}) for n in range(5)]
    with pytest.raises(KernelError) as caught:
        compile_kernels([(kernel(source, *configs), n) for n in range(5)], 80)
    assert str(caught.value).count("does not compile") == 3
    assert str(caught.value).endswith("2 more kernels do not compile")


def test_without_triton_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("gflow.compiler.emit.triton.toolchain.compile.triton_version", lambda: "")
    with pytest.raises(KernelError, match=r"install gflow-compiler\[gpu\]"):
        compile_kernels([(kernel(), 0)], 80)


def test_what_launches_give_is_what_the_entry_takes():
    other = kernel(ADD.replace("x, y, n", "y, x, n"))
    with pytest.raises(KernelError, match="come in another order"):
        compile_kernels([(other, 0)], 80)
    ptx = ".entry add(\n\t.param .u64 .ptr .global .align 1 p0,\n\t.param .u32 p1\n)\n.reqntid 64\n"
    with pytest.raises(
        ValueError, match=r"takes parameters of \[64, 32\] bits; \[64, 32, 64, 64\]"
    ):
        check_ptx_entry(ptx, {"x": "*fp32", "n": "i32"}, 64)
    whole = ptx.replace("p1", "p1,\n.param .u64 s0,\n.param .u64 s1")
    check_ptx_entry(whole, {"x": "*fp32", "n": "i32"}, 64)
    with pytest.raises(ValueError, match="wants 64 threads a block; 128 expected"):
        check_ptx_entry(whole, {"x": "*fp32", "n": "i32"}, 128)


def test_a_kernel_that_takes_too_long_is_an_error_and_others_go_on():
    failures = []
    found = compile_kernels(
        [(dot(1024), 0), (kernel(), 0)], 80, patience=2,
        failed=lambda k, config, why: failures.append((k.name, config, why)),
    )  # fmt: skip
    assert list(found) == ["add/0"]
    assert [f[:2] for f in failures] == [("dot", 0)]
    assert "not done after 2 seconds" in failures[0][2]


def test_what_was_compiled_is_kept():
    files: dict[tuple[str, str], bytes] = {}
    store = (lambda *name: files.get(name), lambda kind, name, data: files.update({(kind, name): data}))  # fmt: skip
    first = compile_kernels([(kernel(), 0)], 80, store=store)
    told = []
    tell = lambda *args: told.append(args)  # noqa: E731
    again = compile_kernels([(kernel(), 0)], 80, store=store, tell=tell)
    assert again == first
    assert not told
    assert len(files) == 1
    compile_kernels([(kernel(), 0)], 90, store=store, tell=tell)
    assert told == [("triton", "1/1 add")]
    assert len(files) == 2
    files[next(iter(files))] = b"damaged"
    assert compile_kernels([(kernel(), 0)], 80, store=store)["add/0"].entry == "add"


def test_a_program_gets_the_code_that_it_launches():
    program = Program("p", "", [], [], [], {}, {}, 0, target="cuda:80", triton={"add": kernel()})
    program.steps = [LaunchStep("add", (), n, (1, 1, 1), f"op {n}") for n in (1, 1)]
    timing: dict[str, float] = {}
    add_device_code(program, timing=timing)
    assert list(program.device_code) == [key_of("add", 1)]
    assert timing["triton"] > 0
    program.triton["add"] = kernel("")
    add_device_code(program)  # it is there


def test_where_the_first_config_spills_another_runs():
    def code(spills, shared=0):
        return DeviceCode("", "k", shared, 4, spills=spills)

    def run(*spills, configs=8, shared=0, races=()):
        grid = ("cdiv(n, BLOCK)",)
        ways = tuple(TritonConfig({"BLOCK": 1 << n}, 4, 2) for n in range(configs))
        k = TritonKernel("k", "", {"n": "i32"}, {}, (), ways, grid)
        p = Program("p", "", [], [], [], {}, {}, 0, target="cuda:90", triton={"k": k})
        p.steps = [LaunchStep("k", (n,), 0, (n, 1, 1), "op") for n in (100, 7)]
        p.races = [Race(n, "op", "a GPU", {"BLOCK=1": 1.0}) for n in races]
        p.device_code = {key_of("k", 0): code(spills[0], shared)}
        asked = []

        def compiled(jobs):
            asked.extend(c for _, c in jobs)
            known = [(c, code(spills[c])) for _, c in jobs if spills[c] is not None]
            return {key_of("k", c): found for c, found in known}

        avoid_spills(p, ["k"], compiled)
        return p, asked

    program, asked = run(FEW)
    assert not asked
    program, asked = run(80, 40, FEW)
    assert asked == [1, 2]
    assert [(s.config, s.grid) for s in program.steps] == [(2, (25, 1, 1)), (2, (2, 1, 1))]
    assert list(program.device_code) == [key_of("k", 2)]
    program, asked = run(80, None, 40, 90, 0)  # one does not compile, all others spill
    assert len(asked) == MORE
    assert program.steps[0].config == 2
    assert run(80, 90, configs=2)[0].steps[0].config == 0
    assert run(0, 40, 40, 40, shared=1 << 20)[0].steps[0].config == 1
    measured, asked = run(80, 0, races=[0])
    assert [s.config for s in measured.steps] == [0, 1]
    assert list(measured.device_code) == [key_of("k", n) for n in (0, 1)]


def test_workers_do_not_outlive_their_process():
    code = (
        "from gflow.compiler.emit.triton.toolchain.process_pool import shared_pool\n"
        "p = shared_pool(); p.start(1); print(p._idle[0].process.pid)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_kernels_are_compiled_where_kernels_are_interpreted(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    shared_pool().close()
    assert compile_kernels([(kernel(), 0)], 80)["add/0"].registers
    shared_pool().close()
