"""Edits of `fuzz_mutations` that no small change of valid text comes to: nesting, giant numbers, odd functions,
attributes of gflow's own where and as they should not be, resources, huge ranks."""

from __future__ import annotations

import random
import re

#: attributes that passes and code generators read, on functions, arguments, results and ops
MARKS = [
    "gflow.alias", "gflow.arena_size", "gflow.buffers", "gflow.graph", "gflow.in_place", "gflow.launch",
    "gflow.lower_bound", "gflow.max", "gflow.min", "gflow.name", "gflow.phase", "gflow.recomputed",
    "gflow.rematerialized", "gflow.role", "gflow.scope", "gflow.scratch", "gflow.stand_in", "gflow.strides",
    "gflow.tf32",
]  # fmt: skip
ODD = [
    "-1 : i64", "0 : i64", "1 : i64", "3 : i64", "7 : i8", "63 : i64", "64 : i64", "4611686018427387904 : i64",
    "-9223372036854775808 : i64", "1 : ui64", "5 : index", "1.5 : f32", "unit", "true", '""', '"arena:0"',
    '"arena:-64"', '"arena:99999999999999999999"', '"arg:0"', '"arg:-1"', '"arg:7"', '"result:0"', '"\\00\\FF"',
    "[]", "[[]]", "[unit]", '["arena:0"]', '["arg:0"]', '["arg:99"]', '["result:0"]', '["arena:64", "arena:64"]',
    '["matmul"]', '["matmul", 1]', "[1 : i64]", "[array<i64: 1>]", "array<i64>", "array<i64: -1>", "array<i64: 4, 1>",
    "array<i64: 0, 0>", "array<i32: 1>", "array<i1: true>", "{}", '{a = "b"}', "f32", "tensor<4xf32>", "@f", "@f::@g",
    "dense<1> : tensor<2xi64>", "dense<[]> : tensor<0xf32>", 'dense<"0xFF"> : tensor<1xi8>', "loc(unknown)",
    "dense_resource<blob> : tensor<4xf32>", "affine_map<(d0)[s0] -> (d0 + s0)>", "strided<[1, 2], offset: 3>",
    "distinct[0]<unit>", "opaque<\"gflow\", \"0x00\"> : tensor<4xf32>", "#gflow.odd", "sparse<0, 1.0> : tensor<4xf32>",
]  # fmt: skip
FUNCTIONS = [
    "func.func @empty() {\n  return\n}",
    "func.func private @declared(tensor<4xf32>) -> tensor<4xf32>",
    "func.func @same(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}",
    "func.func @again(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
    "  %0 = func.call @again(%x) : (tensor<4xf32>) -> tensor<4xf32>\n  return %0 : tensor<4xf32>\n}",
    "func.func @ping() {\n  func.call @pong() : () -> ()\n  return\n}\n"
    "func.func @pong() {\n  func.call @ping() : () -> ()\n  return\n}",
    "func.func @blocks(%c: i1, %x: tensor<4xf32>) -> tensor<4xf32> {\n  cf.cond_br %c, ^a, ^b\n"
    "^a:\n  cf.br ^b\n^b:\n  return %x : tensor<4xf32>\n}",
    "func.func @never() {\n  cf.br ^a\n^a:\n  cf.br ^a\n}",
    "func.func @scalars(%x: i64, %y: f32, %z: index) -> (f32, i64) {\n  return %y, %x : f32, i64\n}",
    "func.func @unknown(%x: tensor<?x4xf32>, %y: tensor<*xf32>) -> tensor<?x4xf32> {\n"
    "  return %x : tensor<?x4xf32>\n}",
    'module @inner attributes {gflow.graph = "x"} {\n  func.func @f() {\n    return\n  }\n}',
    "module @one {\n  module @two {\n    module @three {\n    }\n  }\n}",
]  # fmt: skip
_BLOB = '{-#\n  dialect_resources: {\n    builtin: {\n      blob: "0x%s"\n    }\n  }\n#-}'
RESOURCES = [
    _BLOB % ("04000000" + "00" * 16),
    _BLOB % "0400000000",
    _BLOB % "zz",
    '{-#\n  external_resources: {\n    mlir_reproducer: {\n'
    '      pipeline: "builtin.module(func.func(cse))"\n    }\n  }\n#-}',
]  # fmt: skip


def add_mark(text: str, rng: random.Random, others: list[bytes]) -> str:
    """One of gflow's attributes, with any value, on an op, an argument, a result or a function."""
    entry = f"{rng.choice(MARKS)} = {rng.choice(ODD)}"
    places = [m.end() for m in re.finditer(r"(?<=[) ])\{(?=\w[\w.]* =)", text)]
    spots = [m.end() for m in re.finditer(r"%arg\d+: tensor<[^>]*>", text)]
    kind = rng.randrange(3)
    if kind == 0 and spots:
        at = rng.choice(spots)
        return f"{text[:at]} {{{entry}}}{text[at:]}"
    if kind == 1:
        header = re.search(r"func\.func [^{]*\) -> \(?[^{]*?(?= \{\n)", text)
        if header is not None:
            return f"{text[: header.end()]} attributes {{{entry}}}{text[header.end() :]}"
    if not places:
        return text
    at = rng.choice(places)
    return f"{text[:at]}{entry}, {text[at:]}"


def odd_value(text: str, rng: random.Random, others: list[bytes]) -> str:
    """The value of one of gflow's attributes becomes another."""
    found = list(
        re.finditer(r"gflow\.\w+ = ((?:array<[^>]*>|\[[^\]]*\]|\"[^\"]*\"|[^,{}\[\]]+))", text)
    )
    if not found:
        return add_mark(text, rng, others)
    match = rng.choice(found)
    return text[: match.start(1)] + rng.choice(ODD) + text[match.end(1) :]


def other_index(text: str, rng: random.Random, others: list[bytes]) -> str:
    """A place of a plan, an alias, or what an array has, goes below zero or beyond the end."""
    found = list(
        re.finditer(r"(?<=[a-z]:)\d+(?=\")|(?<=alias = )-?\d+|(?<=[:,] )-?\d+(?=[,>])", text)
    )
    if not found:
        return text
    match = rng.choice(found)
    value = int(match[0][:40])
    new = rng.choice((-1, -value, value + 1, value - 1, value + 64, 2 * value, 1 << 31, 1 << 62, 0))
    return text[: match.start()] + str(new) + text[match.end() :]


def huge_rank(text: str, rng: random.Random, others: list[bytes]) -> str:
    """A type, everywhere or in one place, gets many more dimensions."""
    found = re.findall(r"tensor<(?:\d+x)*\w+>", text)
    if not found:
        return text
    old = rng.choice(found)
    new = old.replace("tensor<", "tensor<" + "1x" * rng.choice((3, 8, 33, 65, 129, 900, 1200)), 1)
    return text.replace(old, new, rng.choice((-1, -1, 1)))


def nest(text: str, rng: random.Random, others: list[bytes]) -> str:
    """Attributes, types or modules within one another."""
    depth = rng.choice((3, 30, 300, 900, 1990, 2500, 20_000))
    kind = rng.randrange(5)
    if kind == 0:
        return "module {\n" * min(depth, 900) + text + "\n}" * min(depth, 900)
    deep = ("[" * depth + "]" * depth, "{a = " * depth + "unit" + "}" * depth)[kind % 2]
    if kind == 3:
        deep = "tuple<" * depth + "i1" + ">" * depth
    if kind == 4:
        deep = f"affine_map<(d0) -> ({'(' * depth}d0{')' * depth})>"
    return re.sub(r"\{(?=\w[\w.]* =)", lambda m: f"{{gflow.deep = {deep}, ", text, count=1)


def giant_number(text: str, rng: random.Random, others: list[bytes]) -> str:
    """A number of many digits, hexadecimal, or with an exponent."""
    found = list(re.finditer(r"(?<![\w%])\d+(?:\.\d+)?", text))
    if not found:
        return text
    match = rng.choice(found)
    digits = "9" * rng.choice((12, 19, 20, 40, 400, 999, 5000))
    new = rng.choice(
        (digits, f"-{digits}", f"0x{digits}", f"{digits}.0", f"1.0e{digits[:9]}", "0x", "1e", "00")
    )
    return text[: match.start()] + new + text[match.end() :]


def odd_function(text: str, rng: random.Random, others: list[bytes]) -> str:
    """A function or module that is unusual comes along, or the same one again."""
    more = rng.choice([*FUNCTIONS, text])
    return f"{more}\n{text}" if rng.random() < 0.5 else f"{text}\n{more}"


def resource(text: str, rng: random.Random, others: list[bytes]) -> str:
    """A constant's elements come from a resource, of the right size, of another, or of none."""
    changed = re.sub(
        r"dense<[^<>]*>(?= : tensor)", "dense_resource<blob>", text, count=rng.choice((0, 1))
    )
    return f"{changed}\n{rng.choice([*RESOURCES, ''])}"


def location(text: str, rng: random.Random, others: list[bytes]) -> str:
    """Locations of all kinds, with names and numbers of all kinds."""
    odd = rng.choice((
        'loc("x.py":1:2)', 'loc("x.py":4294967295:4294967295)', 'loc(callsite("a" at "b"))', 'loc(fused["a", "b"])',
        'loc("\\0A\\00\\FF")', 'loc("model/0"("x.py":1:1))', "loc(unknown)", 'loc("")', "loc(fused<unit>[])",
        'loc("x.py":99999999999:1)',
    ))  # fmt: skip
    lines = text.split("\n")
    ops = [i for i, line in enumerate(lines) if re.match(r'^ *(%|"|return)', line)]
    for i in ops if rng.random() < 0.3 else rng.sample(ops, min(len(ops), 1)):
        lines[i] = f"{lines[i]} {odd}"
    return "\n".join(lines)


ODDITIES = [
    add_mark, add_mark, odd_value, odd_value, other_index, other_index, other_index, huge_rank, nest, giant_number,
    odd_function, resource, location,
]  # fmt: skip
