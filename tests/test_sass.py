"""The model of loops of machine code: what it reads, what it counts, and that kernels' loops do not get slower."""

from __future__ import annotations

import pytest

from benchmarks.kernels import loops
from gflow.compiler.emit.triton.toolchain.compile import triton_version
from gflow.compiler.reports.sass.instructions import Instruction, parsed
from gflow.compiler.reports.sass.kernel import KernelTime, resident
from gflow.compiler.reports.sass.loop_time import LoopTime, loop_time
from gflow.compiler.reports.sass.work import work_of
from gflow.compiler.targets.devices import DEVICES
from gflow.compiler.targets.pipes import PIPES, clock, pipes_of
from gflow.dialects.program import DeviceCode

H100, A100 = DEVICES["h100"], DEVICES["a100"]

TEXT = """
.L_x_0:
        /*0000*/                   FADD R1, R1, R2 ;            /* 0x0000000208087221 */
                                                                /* 0x010fe80000010000 */
        /*0010*/              @!PT LDS RZ, [RZ] ;               /* 0x0 */
        /*0020*/                   LDS.128 R4, [R3] ;           /* 0x0000000003047984 */
                                                                /* 0x000e680000000c00 */
        /*0030*/               @P0 BRA `(.L_x_0) ;              /* 0xfffffffc00000947 */
                                                                /* 0x000fea000383ffff */
        /*0040*/                   EXIT ;
.L_x_1:
        /*0050*/                   BRA `(.L_x_1);
"""


def plain(name: str, operands: str = "R1, R2, R3", stall: int = 1) -> Instruction:
    kind, *modifiers = name.split(".")
    return Instruction("", kind, tuple(modifiers), operands, stall)


def test_encodings_say_what_the_warp_waits_for() -> None:
    code = parsed(TEXT)
    add, _, load, jump = code.instructions[:4]
    assert (add.stall, add.waits, add.result) == (4, (4,), None)
    assert (load.stall, load.result, load.read, load.width) == (4, 1, None, 16)
    assert (jump.predicate, jump.stall) == ("P0", 5)


def test_loops_are_innermost_and_do_something() -> None:
    code = parsed(TEXT)
    assert code.loops() == [(0, 3)]
    assert [i.kind for i in code.body(0, 3)] == ["FADD", "LDS", "BRA"]


def test_parts_of_the_last_iteration_do_not_count() -> None:
    names = [".L_x_0:", "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR12], R24", "@P1 BRA `(.L_x_1)",
             "STG.E [R2], R3", ".L_x_1:", "FADD R1, R1, R2", "@P0 BRA `(.L_x_0)"]  # fmt: skip
    lines = [n if n.endswith(":") else f"/*{k:04x}*/ {n} ;" for k, n in enumerate(names)]
    code = parsed("\n".join(lines))
    assert [i.kind for i in code.body(*code.loops()[0])] == ["HGMMA", "BRA", "FADD", "BRA"]


@pytest.mark.parametrize(
    ("name", "operands", "arch", "pipe", "cycles"),
    [
        ("HGMMA.64x256x16.F32.BF16", "R24, gdesc[UR12], R24", 90, "tensor", 128),
        (
            "HGMMA.64x16x16.F32.BF16",
            "R24, gdesc[UR12], R24",
            90,
            "tensor",
            20,
        ),  # 2,560 bytes of operands
        ("HMMA.16816.F32.BF16", "R1, R2, R3, R4", 80, "tensor", 8),
        ("FFMA", "", 90, "fma", 1),
        ("FFMA", "", 80, "fma", 2),
        ("IMAD", "", 90, "fma", 2),
        ("FMNMX", "", 90, "alu", 2),
        ("MUFU.EX2", "", 90, "special", 8),
        ("LDS.128", "", 90, "shared", 4),
        ("LDSM.16.M88.4", "", 80, "shared", 4),
        ("WARPGROUP.ARRIVE", "", 90, "", 0),
    ],
)
def test_pipes(name: str, operands: str, arch: int, pipe: str, cycles: float) -> None:
    work = work_of(plain(name, operands), PIPES[arch])
    assert (work.pipe, work.cycles) == (pipe, cycles)


def run(body: list[Instruction], warps: int, blocks: int) -> LoopTime:
    return loop_time(body, warps, blocks, H100, PIPES[90])


def test_a_loop_takes_what_its_hardest_pipe_takes() -> None:
    found = run([plain("FFMA")] * 20 + [plain("BRA")], 8, 4)
    assert (found.pipes["issue"], found.bound) == (42, "issue")
    assert 42 <= found.cycles <= 44
    found = run([plain("MUFU.EX2")] * 20 + [plain("BRA")], 8, 1)
    assert found.bound == "special"
    assert 320 <= found.cycles <= 330


def test_waits_show_with_one_block_and_hide_behind_others() -> None:
    product = plain("HGMMA.64x256x16.F32.BF16", "R24, gdesc[UR12], R24, gsb0")
    wait = plain("WARPGROUP.DEPBAR.LE", "gsb0, 0x0")
    body = [product, wait, *[plain("FFMA")] * 128, plain("BRA")]
    alone, beside = run(body, 4, 1), run(body, 4, 2)
    assert alone.tensor == 128
    assert alone.cycles >= 256  # one after the other
    assert beside.cycles <= 160  # one block's sums beside the other's product


def test_blocks_that_issue_first_do_not_leave_the_others_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    product = plain("HGMMA.64x64x16.F32.BF16", "R24, gdesc[UR12], R24, gsb0")
    wait = plain("WARPGROUP.DEPBAR.LE", "gsb0, 0x0")
    exponentials = [plain("FFMA"), plain("MUFU.EX2")] * 30
    body = [*[product] * 8, wait, *exponentials, *[plain("FFMA")] * 120, plain("BRA")]
    found = run(body, 8, 2)
    assert 1.1 * max(found.pipes.values()) < found.cycles < run(body, 8, 1).cycles
    monkeypatch.setattr("gflow.compiler.reports.sass.loop_time._TIMED", 64)
    assert run(body, 8, 2).cycles == pytest.approx(found.cycles, rel=0.02)


def test_the_main_loop_has_no_masks() -> None:
    plainer, masked = LoopTime({"tensor": 9}, 12, 20, 1), LoopTime({"tensor": 9}, 11, 30, 1)
    prologue = LoopTime({"tensor": 2}, 5, 10, 1)
    assert KernelTime(1, 1.0, (masked, prologue, plainer)).main is plainer
    assert KernelTime(1, 1.0, ()).main is None


def test_predictions_follow_from_the_loops() -> None:
    rows = {"attention_query_grad": {"of ideal": 1.0}, "attention_key_grad": {"of ideal": 1.0}}
    known = {
        "attention_128_full_grad": rows,
        "product_4096": {"matmul": {"of ideal": 2.0, "filled": 0.5}},
    }
    (name, rate, share, published, ratio), product = loops.predictions(known)
    assert (name, rate, share, published) == ("attention_128_full_grad", "564", "71%", "561")
    assert ratio == "1.01"
    assert product == ("product_4096", "198", "25%", "", "")


def test_a_barrier_waits_for_all_warps() -> None:
    body = [plain("MUFU.EX2"), plain("BAR.SYNC", "0x0"), plain("BRA")]
    assert run(body, 8, 1).cycles >= 8 + PIPES[90].latencies["barrier"]


def test_blocks_of_a_multiprocessor() -> None:
    assert resident(DeviceCode("", "", 65536, 8, registers=114), H100) == 2
    assert resident(DeviceCode("", "", 65536, 8, registers=212), H100) == 1
    assert resident(DeviceCode("", "", 100 << 10, 4, registers=32), A100) == 1


def test_the_clock_follows_from_the_table() -> None:
    pipes = pipes_of(A100)
    assert pipes is not None
    assert abs(clock(A100, pipes) / 1.41e9 - 1) < 0.01
    assert pipes_of(DEVICES["mi300x"]) is None


@pytest.mark.parametrize("name", loops.CHECKED)
def test_loops_are_not_slower(name: str) -> None:
    known = loops.recorded()
    if known["triton"] != triton_version():
        pytest.skip(f"written down with Triton {known['triton']}")
    found = loops.rows_of(loops.CASES[name])
    assert not loops.slower({name: found}, known["cases"])


def test_a_slower_loop_is_found() -> None:
    row = {"of ideal": 1.5, "spills": 0}
    known = {"a": {"k": row}}
    assert not loops.slower(known, known)
    assert "before" in loops.slower({"a": {"k": {**row, "of ideal": 1.6}}}, known)[0]
    assert "spills" in loops.slower({"a": {"k": {**row, "spills": 8}}}, known)[0]
    assert "not in" in loops.slower({"b": {"k": row}}, known)[0]
