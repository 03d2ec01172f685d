"""Kernels wait for their asynchronous copies; PTX from which a wait was taken is found."""

from __future__ import annotations

import re

import pytest

from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.emit.triton.toolchain.compile import assemblies
from gflow.compiler.reports.ptx_waits import unawaited
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.dialects.program import LaunchStep

#: copies of a loop with two iterations' copies on their way; `wait`, `show` and `fence` come before the reads
LOOP = """
cp.async.cg.shared.global [%r1 + 0], [%rd1 + 0], 0x10, %r2;
cp.async.commit_group;
cp.async.cg.shared.global [%r1 + 16], [%rd1 + 0], 0x10, %r2;
cp.async.commit_group;
$L__BB0_1:
{wait}
{show}
{fence}
wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {{%r3}}, %rd3, %rd4, 1, 1, 1, 0, 0;
bar.sync 0;
cp.async.cg.shared.global [%r1 + 0], [%rd1 + 0], 0x10, %r2;
cp.async.commit_group;
@%p1 bra $L__BB0_1;
cp.async.wait_group 0;
ret;
"""

#: the same by a bulk copy whose arrival a barrier in memory counts
BULK = """
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 32768;
@%p1 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {{%r2, %r3}}], [%r4];
$L__BB0_1:
{wait}
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 32768;
@%p1 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {{%r2, %r3}}], [%r4];
wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {{%r3}}, %rd3, %rd4, 1, 1, 1, 0, 0;
@%p1 bra $L__BB0_1;
ret;
"""
TRY = "waitLoop: mbarrier.try_wait.parity.shared::cta.b64 complete, [%r1], %r5;"


@pytest.mark.parametrize(
    ("wait", "show", "fence", "early"),
    [
        ("cp.async.wait_group 1;", "bar.sync 0;", "fence.proxy.async.shared::cta;", False),
        ("cp.async.wait_all;", "barrier.cta.sync 0;", "fence.proxy.async;", False),
        ("cp.async.wait_group 2;", "bar.sync 0;", "fence.proxy.async.shared::cta;", True),
        ("", "bar.sync 0;", "fence.proxy.async.shared::cta;", True),
        ("cp.async.wait_group 1;", "", "fence.proxy.async.shared::cta;", True),
        ("cp.async.wait_group 1;", "bar.sync 0;", "", True),
        ("// cp.async.wait_group 1;", "bar.sync 0;", "fence.proxy.async.shared::cta;", True),
    ],
)
def test_groups(wait: str, show: str, fence: str, early: bool) -> None:
    found = unawaited(LOOP.format(wait=wait, show=show, fence=fence))
    assert bool(found) == early
    assert all("wgmma.mma_async" in text for text in found)


def test_phases() -> None:
    assert not unawaited(BULK.format(wait=TRY))
    assert unawaited(BULK.format(wait=""))


def test_blocks_in_another_order() -> None:
    """What follows a loop may stand before it, and read what the loop's copies have nothing to do with."""
    loop, behind = (
        BULK.format(wait=TRY).split("ret;")[0],
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1}, [%r2];",
    )
    begin, header, body = loop.partition("$L__BB0_1:")
    text = (
        f"{begin}bra.uni $L__BB0_1;\n$L__BB0_2:\n{behind}\nret;\n{header}{body}bra.uni $L__BB0_2;\n"
    )
    assert not unawaited(text)
    assert unawaited(text.replace(TRY, ""))


def test_nothing_is_asynchronous() -> None:
    assert not unawaited("st.shared.b32 [%r1], %r2;\nbar.sync 0;\nld.shared.b32 %r2, [%r1];\n")
    copy = "cp.async.ca.shared.global [%r1 + 0], [%rd1 + 0], 0x4;\ncp.async.commit_group;\n"
    assert unawaited(f"{copy}bar.sync 0;\nld.shared.b32 %r2, [%r1];\n")
    assert not unawaited(f"{copy}cp.async.wait_group 0;\nbar.sync 0;\nld.shared.b32 %r2, [%r1];\n")


_WAITS = re.compile(r"cp\.async\.wait_group\s+[1-9]|mbarrier\.try_wait")


@pytest.mark.parametrize(("arch", "least"), [(80, 1), (90, 2)])
def test_products(arch: int, least: int) -> None:
    """By pointers, and on 9.0 by descriptors: as compiled, and without each of the waits of their loops."""
    pytest.importorskip("triton")
    ty = "tensor<2048x2048xbf16>"
    text = f"""
      func.func @f(%a: {ty}, %b: {ty}) -> {ty} {{
        %0 = "gflow.matmul"(%a, %b) : ({ty}, {ty}) -> {ty}
        return %0 : {ty}
      }}"""
    with make_context():
        program = compile_module(ir.Module.parse(text), CompileOptions(target=f"cuda:{arch}"))
    (step,) = program.steps
    assert isinstance(step, LaunchStep)
    kernel = program.triton[step.kernel]
    ways: dict[int, int] = {}
    for n, config in enumerate(kernel.configs):
        ways.setdefault(config.constants.get("PERSISTENT", 0), n)
    assert len(ways) == least
    for ptx in assemblies([(kernel, n) for n in ways.values()], arch):
        assert not unawaited(ptx)
        rows = ptx.split("\n")
        waits = [n for n, row in enumerate(rows) if _WAITS.search(row)]
        assert waits
        for n in waits:
            assert unawaited("\n".join([*rows[:n], *rows[n + 1 :]]))
