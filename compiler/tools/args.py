"""The command line of `gflow-opt`: options, and passes as flags in the order they are given."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from .passes.base import Pass
from .passmanager import is_pass, our_passes, pass_names
from .pipeline_text import nearest
from .upstream_passes import UPSTREAM_PASSES


class UsageError(Exception):
    """The command line is wrong; the message is what the user sees."""


@dataclass
class Options:
    """What the command line asks for. The metadata of each field is its line in `--help`."""

    input: str = "-"
    output: str = "-"
    pass_pipeline: str | None = field(
        default=None, metadata={"doc": "The passes to run: 'builtin.module(func.func(cse))'"}
    )
    passes: list[str] = field(default_factory=list)
    pipeline: str | None = field(
        default=None,
        metadata={
            "doc": "Run the default pipeline of a target",
            "flag": "pipeline-for",
        },
    )
    split_input_file: bool = field(
        default=False, metadata={"doc": "Process each part between '// -----' lines on its own"}
    )
    verify_diagnostics: bool = field(
        default=False, metadata={"doc": "Check diagnostics against expected-* comments"}
    )
    verify_each: bool = field(default=True, metadata={"doc": "Run the verifier after each pass"})
    allow_unregistered_dialect: bool = field(
        default=False, metadata={"doc": "Allow operations of unknown dialects"}
    )
    no_implicit_module: bool = field(
        default=False, metadata={"doc": "Do not wrap the input in a module"}
    )
    mlir_print_ir_before_all: bool = field(
        default=False, metadata={"doc": "Print IR before each pass"}
    )
    mlir_print_ir_after_all: bool = field(
        default=False, metadata={"doc": "Print IR after each pass"}
    )
    mlir_print_ir_before: list[str] = field(
        default_factory=list, metadata={"doc": "Print IR before these passes", "value": "pass"}
    )
    mlir_print_ir_after: list[str] = field(
        default_factory=list, metadata={"doc": "Print IR after these passes", "value": "pass"}
    )
    mlir_print_ir_after_change: bool = field(
        default=False, metadata={"doc": "Print IR after a pass only where it changed it"}
    )
    mlir_print_debuginfo: bool = field(default=False, metadata={"doc": "Print source locations"})
    mlir_pretty_debuginfo: bool = field(
        default=False, metadata={"doc": "Print source locations in a form for people"}
    )
    mlir_print_op_generic: bool = field(default=False, metadata={"doc": "Print the generic form"})
    mlir_print_local_scope: bool = field(
        default=False, metadata={"doc": "Print without aliases for attributes and locations"}
    )
    mlir_elide_elementsattrs_if_larger: int | None = field(
        default=None, metadata={"doc": "Print constants of more elements than this as '...'"}
    )
    gflow_timing: bool = field(
        default=False,
        metadata={
            "doc": "Report the seconds spent in each pass",
            "alias": "mlir-timing",
        },
    )
    dump_pass_pipeline: bool = field(default=False, metadata={"doc": "Print the pipeline first"})
    list_passes: bool = field(default=False, metadata={"doc": "Print the known passes and exit"})
    show_dialects: bool = field(default=False, metadata={"doc": "Print the dialects and exit"})
    help: bool = field(default=False, metadata={"doc": "Print this text and exit"})
    version: bool = field(default=False, metadata={"doc": "Print the version and exit"})


def _flags() -> dict[str, dataclasses.Field]:
    found = {}
    for item in dataclasses.fields(Options):
        if item.metadata:
            found[item.metadata.get("flag", item.name.replace("_", "-"))] = item
            if "alias" in item.metadata:
                found[item.metadata["alias"]] = item
    return found


def parse_args(argv: list[str]) -> Options:
    """The options that `argv` (without the program's name) asks for.

    Raises:
        UsageError: an unknown flag, a missing or wrong value, too many files.
    """
    options = Options()
    flags = _flags()
    inputs: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            inputs += rest
            break
        if word == "-" or not word.startswith("-"):
            inputs.append(word)
            continue
        name, has_value, value = word.lstrip("-").partition("=")
        given = value if has_value else None
        if name == "h":
            name = "help"
        if name == "o":
            options.output = given if given is not None else _next(rest, word)
        elif name in flags:
            _set(options, flags[name], name, given, rest)
        elif is_pass(name):
            braces = f"{{{given.strip().removeprefix('{').removesuffix('}')}}}" if given else ""
            options.passes.append(name + braces)
        else:
            known = [f"--{flag}" for flag in [*flags, *pass_names()]]
            hint = nearest(f"--{name}", known).replace("; did", "\ngflow-opt: Did")
            raise UsageError(
                f"Unknown command line argument '{word}'.  Try: 'gflow-opt --help'{hint}"
            )
    if len(inputs) > 1:
        raise UsageError(
            "Too many positional arguments specified!\n"
            f"Can specify at most 1 positional argument, found {', '.join(inputs)}"
        )
    options.input = inputs[0] if inputs else "-"
    ways = [options.pass_pipeline is not None, bool(options.passes), options.pipeline is not None]
    if sum(ways) > 1:
        raise UsageError(
            "'--pass-pipeline', '--pipeline-for' and individual passes cannot be used together"
        )
    return options


def _next(rest: list[str], word: str) -> str:
    if not rest:
        raise UsageError(f"for the {word} option: requires a value!")
    return rest.pop(0)


def _set(
    options: Options, item: dataclasses.Field, name: str, given: str | None, rest: list[str]
) -> None:
    kind = str(item.type)
    if kind == "bool":
        if given not in (None, "", "true", "false", "1", "0", "TRUE", "FALSE", "only-expected"):
            raise UsageError(
                f"for the --{name} option: '{given}' is invalid value for boolean argument! "
                "Try 0 or 1"
            )
        setattr(options, item.name, given not in ("false", "0", "FALSE"))
        return
    value = given if given is not None else _next(rest, f"--{name}")
    if kind.startswith("int"):
        try:
            setattr(options, item.name, int(value))
        except ValueError:
            raise UsageError(
                f"for the --{name} option: '{value}' value invalid for integer argument!"
            ) from None
    elif kind.startswith("list"):
        getattr(options, item.name).extend(value.split(","))
    else:
        setattr(options, item.name, value)


def option_lines(declared: Pass) -> list[tuple[str, str]]:
    """Each option of a pass as ("max-ops=<int>", "what it does (default 64)")."""
    lines = []
    for item in dataclasses.fields(declared.options):
        kind = str(item.type).replace("tuple[", "list of ").replace(", ...]", "")
        default = item.default
        if isinstance(default, bool):
            default = str(default).lower()
        doc = item.metadata.get("doc", "")
        lines.append(
            (f"{item.name.replace('_', '-')}=<{kind}>", f"{doc} (default {default})".strip())
        )
    return lines


def help_text() -> str:
    """What `--help` prints."""
    lines = [
        "OVERVIEW: gflow optimizer driver: reads MLIR, runs passes, prints MLIR",
        "",
        "USAGE: gflow-opt [options] [input file, or - for stdin]",
        "",
        "General options:",
        "",
        _line("-o <filename>", "Where to write; - (the default) is stdout"),
    ]
    for flag, item in _flags().items():
        if flag == item.metadata.get("alias"):
            continue
        kind = str(item.type)
        value = "" if kind == "bool" else "=<int>" if kind.startswith("int") else "=<string>"
        if "value" in item.metadata:
            value = f"=<{item.metadata['value']}>"
        lines.append(_line(f"--{flag}{value}", item.metadata["doc"]))
    lines += ["", "Passes of gflow, run in the order given; --NAME={a=1 b=2} sets options:", ""]
    for declared in our_passes().values():
        lines.append(_line(f"--{declared.name}", declared.summary))
        lines += [_line(f"  {name}", doc) for name, doc in option_lines(declared)]
    lines += ["", "Upstream passes are flags too; --list-passes names them.", ""]
    return "\n".join(lines)


def list_text() -> str:
    """What `--list-passes` prints."""
    lines = ["Passes of gflow:"]
    lines += [_line(f"--{p.name}", p.summary) for p in our_passes().values()]
    lines += ["", "Upstream passes:"]
    lines += [f"  --{name}" for name in UPSTREAM_PASSES]
    return "\n".join([*lines, ""])


def _line(flag: str, doc: str) -> str:
    return f"  {flag:<46} - {doc}".rstrip(" -") if not doc else f"  {flag:<46} - {doc}"
