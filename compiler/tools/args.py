"""The command line of `gflow-opt`: options, and passes as flags in the order they are given."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ..driver.pass_manager import is_pass, pass_names
from ..driver.pipeline_text import nearest


class UsageError(Exception):
    """The command line is wrong; the message is what the user sees."""


#: of options, in the order of `--help`
GROUPS = (
    "General options",
    "Output options",
    "Printing options",
    "Diagnostics and reports",
)


def _option(doc: str, default: Any = None, *, group: int = 0, **more: str) -> Any:
    """A field of `Options` with its line in `--help`.

    more: flag (the option's name, if it is not the field's), alias, value (its placeholder in `--help`), bare (the
    value of the option when it is given without one).
    """
    metadata = {"doc": doc, "group": GROUPS[group], **more}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class Options:
    """The options of the command line. The metadata of each field holds its line in `--help`."""

    input: str = "-"
    output: str = "-"
    passes: list[str] = field(default_factory=list)

    pass_pipeline: str | None = _option("The passes to run: 'builtin.module(func.func(cse))'")
    pipeline: str | None = _option(
        "Run the default pipeline of a target", flag="pipeline-for", value="target"
    )
    import_form: str = _option(
        "What the input is written in: mlir, or stablehlo (as JAX exports it)",
        "mlir",
        flag="import",
        value="form",
    )
    import_shapes: str | None = _option(
        "The shapes of all arguments for which a StableHLO program with dynamic dimensions is read: 8x4,4,scalar",
        value="shape,...",
    )
    run_reproducer: bool = _option("Run the pipeline that stands in a reproducer", False)
    split_input_file: bool = _option("Process each part between '// -----' lines on its own", False)
    verify_each: bool = _option("Run the verifier after each pass", True)
    allow_unregistered_dialect: bool = _option("Allow operations of unknown dialects", False)
    no_implicit_module: bool = _option("Do not wrap the input in a module", False)
    list_passes: bool = _option("Print the known passes and exit", False)
    show_dialects: bool = _option("Print the dialects and exit", False)
    help: bool = _option("Print this text and exit", False)
    version: bool = _option("Print the version and exit", False)

    emit: str = _option(
        "What to print: mlir (the IR after the passes), kernels (the MLIR text of its kernels), "
        "llvm-dialect and llvm (these lowered), plan (steps and memory), dot (a graph for "
        "Graphviz), triton, launches (what they move, and the floor of their times), timeline (a step on the "
        "ranks of the mesh, simulated), stablehlo, onnx",
        "mlir",
        group=1,
        value="form",
    )
    target: str = _option("Whose kernels to print", "cpu", group=1, value="target")
    view_memory: str | None = _option(
        "Write a page that draws the arena over time", group=1, value="file.html"
    )
    view_graph: str | None = _option(
        "Write a drawing of the graph, grouped by module", group=1, value="file.html|file.svg"
    )
    view_timeline: str | None = _option(
        "Write a page that draws what the ranks of the mesh do over time, simulated",
        group=1,
        value="file.html",
    )
    mesh: str = _option(
        "How many ranks there are along axes of the mesh for --emit=timeline and --view-timeline, as dp=64,tp=8; "
        "without it, or for other axes, as the module says. What a rank computes stays as it is",
        "",
        group=1,
        value="mesh",
    )
    network: str = _option(
        "How the ranks of --emit=timeline and --view-timeline are joined; by default as the target's devices are",
        "",
        group=1,
        value="network",
    )

    mlir_print_debuginfo: bool = _option("Print source locations", False, group=2)
    mlir_pretty_debuginfo: bool = _option(
        "Print source locations in a form for people", False, group=2
    )
    pretty: bool = _option("Print the dialect's assembly (docs/assembly.md)", False, group=2)
    mlir_print_op_generic: bool = _option("Print the generic form", False, group=2)
    mlir_print_local_scope: bool = _option(
        "Print without aliases for attributes and locations", False, group=2
    )
    mlir_elide_elementsattrs_if_larger: int | None = _option(
        "Print constants of more elements than this without them", group=2
    )
    mlir_elide_resource_strings_if_larger: int | None = _option(
        "Print no resources of more characters than this", group=2
    )
    mlir_print_ir_before_all: bool = _option("Print IR before each pass", False, group=2)
    mlir_print_ir_after_all: bool = _option("Print IR after each pass", False, group=2)
    mlir_print_ir_before: list[str] = _option(  # noqa: RUF009
        "Print IR before these passes", [], group=2, value="pass,..."
    )
    mlir_print_ir_after: list[str] = _option(  # noqa: RUF009
        "Print IR after these passes", [], group=2, value="pass,..."
    )
    mlir_print_ir_after_change: bool = _option(
        "Print IR after a pass only where it changed it", False, group=2
    )

    gflow_timing: bool = _option(
        "Report the seconds spent in each pass and in code generation",
        False,
        group=3,
        alias="mlir-timing",
    )
    gflow_report: str | None = _option(
        "Report kernels, bytes moved, operations and the least time on a device, before and after "
        "the passes",
        group=3,
        value="device",
        bare="cpu",
    )
    verify_diagnostics: bool = _option(
        "Check diagnostics against expected-* comments", False, group=3
    )
    dump_pass_pipeline: bool = _option("Print the pipeline first", False, group=3)
    mlir_pass_pipeline_crash_reproducer: str | None = _option(
        "Where to keep the IR and the pipeline of a pass that fails or crashes",
        group=3,
        value="file",
    )


def flags() -> dict[str, dataclasses.Field]:
    """Every option, by its flag and by its alias."""
    found = {}
    for item in dataclasses.fields(Options):
        if item.metadata:
            found[item.metadata.get("flag", item.name.replace("_", "-"))] = item
            if "alias" in item.metadata:
                found[item.metadata["alias"]] = item
    return found


def parse_args(argv: list[str]) -> Options:
    """Parse `argv` (without the program's name).

    Raises:
        UsageError: an unknown flag, a missing or wrong value, too many files.
    """
    options = Options()
    known_flags = flags()
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
        elif name in known_flags:
            _set(options, known_flags[name], name, given, rest)
        elif is_pass(name):
            inner = given.strip() if given else ""
            if inner.startswith("{"):
                inner = inner.removeprefix("{").removesuffix("}")
            braces = f"{{{inner}}}" if given else ""
            options.passes.append(name + braces)
        else:
            known = [f"--{flag}" for flag in [*known_flags, *pass_names()]]
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
    ways = [
        options.pass_pipeline is not None,
        bool(options.passes),
        options.pipeline is not None,
        options.run_reproducer,
    ]
    if sum(ways) > 1:
        raise UsageError(
            "'--pass-pipeline', '--pipeline-for', '--run-reproducer' and individual passes cannot "
            "be used together"
        )
    if options.pretty and options.mlir_print_op_generic:
        raise UsageError("'--pretty' and '--mlir-print-op-generic' are two forms; give one")
    if options.split_input_file and (
        options.view_memory or options.view_graph or options.view_timeline
    ):
        raise UsageError(
            "'--view-memory', '--view-graph' and '--view-timeline' draw one module; leave '--split-input-file' out"
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
    if given is None and "bare" in item.metadata:
        given = item.metadata["bare"]
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
