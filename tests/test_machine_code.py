"""What machine code says about memory traffic."""

from __future__ import annotations

from benchmarks.kernels.machine_code import traffic

TEXT = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   I2F.RP R4, R5 ;
        /*0020*/                   LDG.E.128 R8, desc[UR4][R2.64] ;
        /*0030*/               @P0 LDG.E.128 R12, desc[UR4][R6.64] ;
        /*0040*/                   LDG.E.U16 R16, desc[UR4][R18.64] ;
        /*0050*/                   FADD R13, R13, R15 ;
        /*0060*/                   LDG.E.64 R20, desc[UR4][R2.64+0x8] ;
        /*0070*/                   STS.128 [R3], R8 ;
        /*0080*/                   FADD R21, R21, R16 ;
        /*0090*/                   STG.E desc[UR4][R2.64], R21 ;
        /*00a0*/                   EXIT ;
"""


def test_accesses_are_counted_by_width() -> None:
    found = traffic(TEXT)
    assert found.accesses == {2: 1, 4: 1, 8: 1, 16: 2}
    assert found.access == 16
    assert found.full == 32 / 46
    assert (found.on_chip, found.divisions, found.instructions) == (1, 1, 10)


def test_what_is_on_its_way_at_the_first_use() -> None:
    assert traffic(TEXT).on_way == 34  # two of 16 and one of 2, then R13 is used
    assert traffic(TEXT.replace("R13, R13, R15", "R30, R31, R32")).on_way == 42
    assert traffic("").on_way == 0 == traffic("").full


def test_tiles_on_their_way_to_shared_memory() -> None:
    names = ["LDGSTS.E.BYPASS.128 [R3], desc[UR4][R2.64]", "LDGDEPBAR"] * 2
    names += ["DEPBAR.LE SB0, 0x1", "LDS.128 R8, [R3]", *names[:2], "DEPBAR.LE SB0, 0x0"]
    text = "\n".join(f"/*{n:04x}*/ {name} ;" for n, name in enumerate(names))
    found = traffic(text)
    assert (found.on_way, found.on_chip, found.accesses) == (32, 1, {16: 3})
