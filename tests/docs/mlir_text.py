"""Loose ops of a page as a whole module, and the comparison of what a pass makes of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_OP = re.compile(r'"[\w.]+"\(([^()]*)\)')
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_DEFINED = re.compile(r"(%[\w$.-]+)(?::\d+)?(?:\s*,\s*(%[\w$.-]+))*\s*=")
_CLOSERS = {"(": ")", "{": "}", "<": ">", "[": "]"}


@dataclass
class _Found:
    """free: values that are not defined here, with their types. made: top-level results."""

    free: dict[str, str] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)


def wrap(text: str) -> str:
    """A module of loose ops: what they don't define are arguments, what they don't read results."""
    if "func.func" in text:
        return text
    found = _scan(text)
    made = {name: kind for name, kind in found.made.items() if name.split("#")[0] not in found.read}
    arguments = ", ".join(f"{name}: {kind}" for name, kind in found.free.items())
    results = ", ".join(made.values())
    ends = f"return {', '.join(made)} : {results}" if made else "return"
    return f"func.func @example({arguments}) -> ({results}) {{\n{text}\n{ends}\n}}\n"


def arguments(text: str) -> list[str]:
    """The arguments that `wrap` gives, or those of the function in the text."""
    if "func.func" in text:
        begin = text.index("(", text.index("func.func"))
        return re.findall(r"(%[\w$.-]+)\s*:", text[begin : _end_of_group(text, begin)])
    return list(_scan(text).free)


def _scan(text: str) -> _Found:
    text = re.sub(r"//.*", "", text)
    defined = {v for m in _DEFINED.finditer(text) for v in m.groups() if v}
    for block in re.finditer(r"\^\w+\(([^)]*)\)", text):
        defined |= set(_VALUE.findall(block[1]))
    found = _Found()
    for op in _OP.finditer(text):
        operands = [v.strip() for v in op[1].split(",") if v.strip()]
        found.read |= {v.split("#")[0] for v in operands}
        inputs, outputs = _types(text, op.end())
        for value, kind in zip(operands, inputs):
            if value.split("#")[0] not in defined:
                found.free.setdefault(value, kind)
        head = re.search(r"(%[\w$.-]+)(:\d+)?\s*=\s*$", text[: op.start()])
        if head and text[: op.start()].count("{") == text[: op.start()].count("}"):
            names = [f"{head[1]}#{i}" for i in range(len(outputs))] if head[2] else [head[1]]
            found.made |= dict(zip(names, outputs))
    return found


def _types(text: str, at: int) -> tuple[list[str], list[str]]:
    """The operand and result types of an op whose operands end at `at`."""
    while True:
        rest = text[at:].lstrip()
        at = len(text) - len(rest)
        if not rest or rest[0] == ":":
            break
        if rest[0] not in "({<[":
            raise ValueError(f"an op without types: …{text[at - 40 : at + 40]}…")
        at = _end_of_group(text, at) + 1
    at = text.index("(", at)
    end = _end_of_group(text, at)
    inputs = _split(text[at + 1 : end])
    at = text.index("->", end) + 2
    rest = text[at:].lstrip()
    if rest[0] == "(":
        return inputs, _split(rest[1 : _end_of_group(rest, 0)])
    return inputs, [re.match(r"[\w.]+<[^<>]*(?:<[^<>]*>)?[^<>]*>|\w+", rest)[0]]  # type: ignore[index]


def _end_of_group(text: str, at: int) -> int:
    depth = 0
    opener, closer = text[at], _CLOSERS[text[at]]
    for i in range(at, len(text)):
        if text[i] == opener:
            depth += 1
        elif text[i] == closer and text[i - 1] != "-":
            depth -= 1
            if depth == 0:
                return i
    raise ValueError(f"{opener} is not closed: {text[at : at + 60]}…")


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for c in text:
        depth += (c in "<({[") - (c in ">)}]")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts if p.strip()]


def difference(expected: str, names: list[str], printed: str) -> str | None:
    """None if a page's IR is what was printed, whatever the names of values.

    names: of the arguments, as the page has them. `…` stands for anything.
    """
    whole = "func.func" in expected
    body = printed if whole else _body(printed)
    pattern = _regex(_canonical(expected), {} if whole else dict(_numbered(names)))
    if re.fullmatch(pattern, _canonical(body)):
        return None
    return f"expected\n{expected.rstrip()}\n-- the pass gives\n{body.rstrip()}"


def _numbered(names: list[str]) -> list[tuple[str, str]]:
    return [(name, f"%arg{i}") for i, name in enumerate(names)]


def _body(printed: str) -> str:
    """The ops of the function, without the return."""
    begin = printed.index("{\n", printed.index("func.func")) + 2
    lines = printed[begin:].rstrip().splitlines()
    while lines and lines[-1].strip() in ("}", ""):
        lines.pop()
    return "\n".join(line for line in lines if not line.strip().startswith("return"))


def _canonical(text: str) -> str:
    """Without comments, the module around functions, and differences in spaces and floats."""
    text = re.sub(r"//.*", "", text).strip()
    text = re.sub(r"^module (?:attributes .*)?\{\n(.*)\}$", r"\1", text, flags=re.DOTALL)
    text = re.sub(r"(?<![\w.])-?\d+\.\d*(?:[eE][-+]?\d+)?", lambda m: repr(float(m[0])), text)
    text = re.sub(r"…|(?<!\w)\.\.\.(?!\w)", " … ", text)
    return "\n".join(" ".join(re.findall(r"[\w.]+|\S", line)) for line in text.splitlines())


def _regex(text: str, names: dict[str, str]) -> str:
    groups: dict[str, str] = {}
    known = "".join(rf"(?!{value[1:]}\b)" for value in names.values())  # arguments have their names
    parts = []
    text = re.sub(r": …$", ": ⋯", text, flags=re.MULTILINE)  # types, which end with the line
    tokens = text.split()
    skip = False
    for i, token in enumerate(tokens):
        if skip:
            skip = False
        elif token == "…":
            parts.append("(?s:.*?)")
        elif token == "⋯":
            parts.append(r"[^\n]*(?:$|\n)")
        elif token == "%" and i + 1 < len(tokens):
            name, skip = "%" + tokens[i + 1], True
            if name in names:
                parts.append(re.escape(f"% {names[name][1:]}"))
            elif name in groups:
                parts.append(f"(?P={groups[name]})")
            else:
                groups[name] = f"v{len(groups)}"
                parts.append(rf"(?P<{groups[name]}>% {known}[\w.]+)")
        else:
            parts.append(re.escape(token))
    return r"\s*".join(parts)
