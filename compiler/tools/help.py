"""The texts of `gflow-opt --help` and `--list-passes`."""

from __future__ import annotations

import dataclasses
from textwrap import wrap

from ..driver.pass_manager import our_passes
from ..driver.pipeline_text import parse_pipeline
from ..driver.pipelines import DEFAULT_PIPELINES
from ..driver.upstream_passes import UPSTREAM_PASSES
from ..passes.base import Pass
from .args import GROUPS, flags

_WIDTH = 100
_FLAG = 44


def help_text() -> str:
    """The text of `--help`: options by subject, then every pass with its options, those of the targets' pipelines
    first."""
    lines = [
        "OVERVIEW: gflow optimizer driver: reads MLIR, runs passes, prints MLIR, kernels or a plan",
        "",
        "USAGE: gflow-opt [options] [input file, or - for stdin]",
    ]
    declared = flags()
    for group in GROUPS:
        lines += ["", f"{group}:", ""]
        if group == GROUPS[0]:
            lines += _entry("-o <filename>", "Where to write; - (the default) is stdout")
        for flag, item in declared.items():
            if item.metadata.get("group", GROUPS[0]) == group and flag != item.metadata.get(
                "alias"
            ):
                lines += _entry(f"--{flag}{_value(item)}", item.metadata["doc"])
    lines += ["", "Passes run in the order given; --NAME={a=1 b=2} sets options."]
    for title, passes in _grouped():
        lines += ["", f"{title}:"]
        for one in passes:
            lines += ["", *_entry(f"--{one.name}", one.summary)]
            for name, doc in option_lines(one):
                lines += _entry(f"    {name}", doc)
    lines += ["", "Upstream passes are flags too; --list-passes names them.", ""]
    return "\n".join(lines)


def _grouped() -> list[tuple[str, list[Pass]]]:
    """The passes of the targets' pipelines in pipeline order, then the others."""
    ours = our_passes()
    found: list[tuple[str, list[Pass]]] = []
    seen: set[str] = set()
    for target, text in DEFAULT_PIPELINES.items():
        names = dict.fromkeys(item.name for _, item in parse_pipeline(text).passes())
        members = [ours[n] for n in names if n in ours and n not in seen]
        seen.update(p.name for p in members)
        found.append((f"Passes of gflow, as --pipeline-for={target} runs them", members))
    rest = [p for p in ours.values() if p.name not in seen]
    if rest:
        found.append(("Further passes of gflow", rest))
    return found


def _value(item: dataclasses.Field) -> str:
    kind = str(item.type)
    if "value" in item.metadata:
        return f"=<{item.metadata['value']}>"
    return "" if kind == "bool" else "=<int>" if kind.startswith("int") else "=<string>"


def option_lines(declared: Pass) -> list[tuple[str, str]]:
    """The options of a pass as pairs: ("max-ops=<int>", "its description (default 64)")."""
    lines = []
    for item in dataclasses.fields(declared.options):
        kind = str(item.type).replace("tuple[", "list of ").replace(", ...]", "")
        kind = item.metadata.get("value", kind)
        default = item.default
        if isinstance(default, bool):
            default = str(default).lower()
        doc = item.metadata.get("doc", "")
        lines.append(
            (f"{item.name.replace('_', '-')}=<{kind}>", f"{doc} (default {default})".strip())
        )
    return lines


def list_text() -> str:
    """The text of `--list-passes`."""
    lines = ["Passes of gflow:"]
    for one in our_passes().values():
        lines += _entry(f"--{one.name}", one.summary)
    lines += ["", "Upstream passes:"]
    lines += [f"  --{name}" for name in UPSTREAM_PASSES]
    return "\n".join([*lines, ""])


def _entry(flag: str, doc: str) -> list[str]:
    """A flag and its description, wrapped to `_WIDTH` columns."""
    text = wrap(doc, _WIDTH - _FLAG - 5) or [""]
    first = f"  {flag:<{_FLAG}} - {text[0]}" if doc else f"  {flag}"
    return [first, *(f"  {'':<{_FLAG}}   {line}" for line in text[1:])]
