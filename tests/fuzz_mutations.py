# ruff: noqa: E501  (the list of tokens)
"""How `fuzz_opt` makes inputs: mutations of bytes, and of ops as lines of text."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

if __package__ in (None, ""):
    from fuzz_oddities import ODDITIES
else:
    from .fuzz_oddities import ODDITIES

LIT_TESTS = Path(__file__).resolve().parent.parent / "lit_tests"
TOKENS = [
    b"tensor<", b">", b"(", b")", b"{", b"}", b"[", b"]", b"-1", b"0", b"9223372036854775807",
    b"18446744073709551616", b"?", b"*", b"xf32", b"f64", b"index", b"i1", b"complex<f32>", b"vector<4xf32>",
    b"memref<4xf32>", b"none", b"tensor<0xf32>", b"tensor<4x0x5xf32>", b'"gflow.add"', b'"gflow.aten"', b"dense<",
    b"array<i64>", b"array<i64: -1>", b"array<i32: 1, 1>", b"loc(", b"unit", b"%0", b"%arg0", b"@f", b"#m", b"!t",
    b"0x7FC00000", b"0.0", b"1e400", b"\"", b"//", b"\n", b"\0", b"\xff", b"^bb0:", b"dense_resource<x>", b"affine_map<(d0) -> (d0)>",
    b"tensor<4611686018427387904x4xf32>", b"tensor<99999999999999999999xf32>", b": i64", b"true", b"sparse<[], []>",
    b"func.func @", b"builtin.module", b"return", b"scf.if", b"arith.constant", b"cf.br ^bb0",
]  # fmt: skip
SIZES = ["0", "1", "1", "2", "3", "7", "16", "33", "1024", "65536", "1048577", "2147483648"]
TYPES = ["f32", "f64", "f16", "bf16", "i64", "i32", "i8", "i1", "ui8", "complex<f32>", "index"]
VALUES = [
    "0 : i64", "-1 : i64", "9223372036854775807 : i64", "1.0 : f64", "0x7FF8000000000000 : f64",
    "true", "false", '""', '"sum"', '"f32"', "array<i64>", "array<i64: 0>", "array<i64: 0, 0>",
    "array<i64: -1, 1>", "array<i64: 1, 0>", "array<i64: 4, 4, 4, 4>", "[]", "[1]", "unit", "f32",
    "dense<0.0> : tensor<f32>", "dense<1> : tensor<4xi64>", "dense_resource<x> : tensor<4xf32>", "{}", "@f",
]  # fmt: skip


@cache
def corpus() -> list[bytes]:
    """Every function of the lit tests, without comments."""
    parts = []
    for path in sorted(LIT_TESTS.rglob("*.mlir")):
        lines = [s for s in path.read_bytes().split(b"\n") if not s.strip().startswith(b"//")]
        text = b"\n".join(lines)
        parts += [b"func.func " + part for part in text.split(b"func.func ")[1:]]
    return parts


def mutate(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """A few random edits, of bytes or of ops."""
    count = rng.choice((1, 1, 2, 3, 6))
    if rng.random() < 0.35:
        return mutate_bytes(data, rng, others, count)
    text = data.decode("utf-8", "replace")
    for _ in range(count):
        edits = ODDITIES if rng.random() < 0.2 else EDITS
        text = rng.choice(edits)(text, rng, others)
    return text.encode()


def mutate_bytes(data: bytes, rng: random.Random, others: list[bytes], count: int) -> bytes:
    """Bytes, tokens, numbers; spans moved, copied, cut; two inputs joined."""
    out = bytearray(data)
    for _ in range(count):
        at = rng.randrange(len(out) + 1)
        length = rng.choice((1, 2, 8, 40))
        kind = rng.randrange(8)
        if kind == 0 and out:
            out[at % len(out)] = rng.randrange(256)
        elif kind == 1:
            out[at:at] = rng.choice(TOKENS)
        elif kind == 2:
            out[at : at + length] = rng.choice(TOKENS)
        elif kind == 3:
            del out[at : at + length]
        elif kind == 4:
            out[at:at] = out[at : at + length] * rng.choice((1, 2, 50))
        elif kind == 5:
            other = rng.choice(others)
            start = rng.randrange(len(other))
            out[at:at] = other[start : start + length]
        elif kind == 6:
            digits = [i for i, c in enumerate(out) if 48 <= c < 58]
            if digits:
                i = rng.choice(digits)
                out[i : i + 1] = rng.choice((b"0", b"1", b"-1", b"7", b"2147483648", b"99"))
        else:
            del out[at:]
    return bytes(out)


# -- ops: a line each, `%r = "gflow.x"(%a, %b) {k = v} : (types) -> type`

_OP = re.compile(r'^( *)(?:(%\w+)(?::\d+)? = )?"([\w.]+)"\(([^()]*)\)(.*)$')
_ATTRIBUTE = re.compile(
    r"(\w[\w.]*) = ((?:array<[^>]*>|dense<.*?> : tensor<[^>]*>|\[[^\]]*\]|[^,{}\[\]]+))"
)


def _ops(lines: list[str]) -> list[int]:
    return [i for i, line in enumerate(lines) if _OP.match(line)]


def _pick(text: str, rng: random.Random) -> tuple[list[str], int, re.Match[str]] | None:
    lines = text.split("\n")
    found = _ops(lines)
    if not found:
        return None
    i = rng.choice(found)
    match = _OP.match(lines[i])
    assert match is not None
    return lines, i, match


def swap_operands(text: str, rng: random.Random, others: list[bytes]) -> str:
    picked = _pick(text, rng)
    if picked is None:
        return text
    lines, i, match = picked
    operands = [s for s in match[4].split(", ") if s]
    rng.shuffle(operands)
    lines[i] = lines[i].replace(f"({match[4]})", f"({', '.join(operands)})", 1)
    return "\n".join(lines)


def other_operand(text: str, rng: random.Random, others: list[bytes]) -> str:
    """An operand becomes another value, or goes, or is there twice."""
    picked = _pick(text, rng)
    names = re.findall(r"%\w+", text)
    if picked is None or not names:
        return text
    lines, i, match = picked
    operands = [s for s in match[4].split(", ") if s]
    if operands:
        n = rng.randrange(len(operands))
        operands[n : n + 1] = rng.choice(
            ([rng.choice(names)], [rng.choice(names)], [], [operands[n]] * 2)
        )
    lines[i] = lines[i].replace(f"({match[4]})", f"({', '.join(operands)})", 1)
    return "\n".join(lines)


def delete_op(text: str, rng: random.Random, others: list[bytes]) -> str:
    """An op goes; its first operand, or any value, stands in for its result."""
    picked = _pick(text, rng)
    if picked is None:
        return text
    lines, i, match = picked
    del lines[i]
    rest = "\n".join(lines)
    names = [s for s in match[4].split(", ") if s] or re.findall(r"%\w+", rest)
    if match[2] and names:
        rest = re.sub(rf"{match[2]}\b", rng.choice(names), rest)
    return rest


def copy_op(text: str, rng: random.Random, others: list[bytes]) -> str:
    """An op is there twice; some uses read the copy."""
    picked = _pick(text, rng)
    if picked is None:
        return text
    lines, i, match = picked
    if not match[2]:
        lines.insert(i, lines[i])
        return "\n".join(lines)
    name = f"%copy{rng.randrange(1 << 30)}"
    before, after = "\n".join(lines[: i + 1]), "\n".join(lines[i + 1 :])
    after = re.sub(rf"{match[2]}\b", lambda m: rng.choice((m[0], name)), after)
    return f"{before}\n{lines[i].replace(match[2], name, 1)}\n{after}"


def move_op(text: str, rng: random.Random, others: list[bytes]) -> str:
    picked = _pick(text, rng)
    if picked is None:
        return text
    lines, i, _ = picked
    line = lines.pop(i)
    lines.insert(rng.choice(_ops(lines) or [i]), line)
    return "\n".join(lines)


def splice(text: str, rng: random.Random, others: list[bytes]) -> str:
    """An op of another file, over values of this one, its result used here and there."""
    picked = _pick(text, rng)
    donor = _pick(rng.choice(others).decode("utf-8", "replace"), rng)
    if picked is None or donor is None:
        return text
    lines, i, _ = picked
    match = donor[2]
    names = re.findall(r"%\w+", "\n".join(lines[:i])) or ["%arg0"]
    operands = ", ".join(rng.choice(names) for s in match[4].split(", ") if s)
    name = f"%other{rng.randrange(1 << 30)}"
    result = f"{name} = " if match[2] else ""
    lines.insert(i, f'{result}"{match[3]}"({operands}){match[5]}')
    if match[2]:
        lines[i + 1] = re.sub(r"%\w+(?=[,)])", lambda m: rng.choice((m[0], name)), lines[i + 1])
    return "\n".join(lines)


def other_name(text: str, rng: random.Random, others: list[bytes]) -> str:
    """An op becomes one of another kind, with the same operands, attributes and types."""
    picked = _pick(text, rng)
    donor = _pick(rng.choice(others).decode("utf-8", "replace"), rng)
    if picked is None or donor is None:
        return text
    lines, i, match = picked
    lines[i] = lines[i].replace(f'"{match[3]}"', f'"{donor[2][3]}"', 1)
    return "\n".join(lines)


def other_attribute(text: str, rng: random.Random, others: list[bytes]) -> str:
    """An attribute's value becomes another, of this text, another, or a list of odd ones; or goes."""
    found = list(_ATTRIBUTE.finditer(text))
    if not found:
        return text
    match = rng.choice(found)
    kind = rng.randrange(4)
    if kind == 0:
        value = rng.choice(VALUES)
    elif kind == 1:
        donors = list(_ATTRIBUTE.finditer(rng.choice(others).decode("utf-8", "replace")))
        value = rng.choice(donors)[2] if donors else "unit"
    elif kind == 2:
        value = re.sub(
            r"-?\b\d+\b(?! *:? *i\d)", lambda m: rng.choice((m[0], *SIZES, "-1")), match[2]
        )
    else:
        return text[: match.start()] + "unused = 0 : i64" + text[match.end() :]
    return text[: match.start(2)] + value + text[match.end(2) :]


def other_type(text: str, rng: random.Random, others: list[bytes]) -> str:
    """An element type becomes another, everywhere or in one place."""
    found = list(re.finditer(r"(?<=[x<])(?:b?f\d+|u?i\d+)\b", text))
    if not found:
        return text
    match, new = rng.choice(found), rng.choice(TYPES)
    if rng.random() < 0.7:
        return re.sub(rf"(?<=[x<]){match[0]}\b", new, text).replace(f'"{match[0]}"', f'"{new}"')
    return text[: match.start()] + new + text[match.end() :]


def other_size(text: str, rng: random.Random, others: list[bytes]) -> str:
    """A size becomes another: everywhere (the program stays valid), or in one place."""
    found = list(re.finditer(r"(?<=[<x])\d+(?=x)", text))
    if not found:
        return text
    match, new = rng.choice(found), rng.choice(SIZES)
    if rng.random() < 0.8:
        everywhere = re.sub(rf"(?<=[<x]){match[0]}(?=x)", new, text)
        return re.sub(
            r"array<i64: [^>]*>",
            lambda m: re.sub(rf"\b{match[0]}\b", new, m[0]) if rng.random() < 0.8 else m[0],
            everywhere,
        )
    return text[: match.start()] + new + text[match.end() :]


def other_rank(text: str, rng: random.Random, others: list[bytes]) -> str:
    """A dimension goes or is added, in all types of one shape."""
    found = sorted(set(re.findall(r"tensor<((?:\d+x)*)\w", text)))
    if not found:
        return text
    shape = rng.choice(found)
    new = (
        shape + rng.choice(SIZES) + "x"
        if rng.random() < 0.5 or not shape
        else shape.split("x", 1)[1]
    )
    return re.sub(rf"tensor<{shape}(?=[a-z])", f"tensor<{new}", text)


def join(text: str, rng: random.Random, others: list[bytes]) -> str:
    """Two functions in one module."""
    return text + "\n" + rng.choice(others).decode("utf-8", "replace")


Edit = Callable[[str, random.Random, list[bytes]], str]
EDITS: list[Edit] = [
    swap_operands, other_operand, delete_op, copy_op, move_op, splice, other_name, other_attribute,
    other_attribute, other_type, other_size, other_size, other_size, other_rank, join,
]  # fmt: skip
