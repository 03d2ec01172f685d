"""IR that gflow-opt prints between passes, and the report of times."""

from __future__ import annotations

import sys
from collections.abc import Callable

from gflow.dialects.assembly import to_assembly
from gflow.dialects.constants import externalize
from gflow.dialects.mlir import ir

from .args import Options


def module_text(op: ir.Operation, options: Options) -> str:
    """A module as text, in the form that the options ask for. Large constants become resources."""
    externalize(op)
    limit = options.mlir_elide_elementsattrs_if_larger
    resources = options.mlir_elide_resource_strings_if_larger
    if resources is None and limit is not None:
        resources = 2 * limit + 10  # of hexadecimal digits
    text = op.get_asm(
        enable_debug_info=options.mlir_print_debuginfo,
        pretty_debug_info=options.mlir_pretty_debuginfo,
        print_generic_op_form=options.mlir_print_op_generic,
        use_local_scope=options.mlir_print_local_scope,
        large_elements_limit=limit,
        large_resource_limit=resources,
        assume_verified=True,
    )
    if options.pretty:
        text = to_assembly(text)
    return text if text.endswith("\n") else text + "\n"


def instrument(options: Options) -> Callable[[str, str, ir.Operation], None] | None:
    """An instrumentation that prints IR around passes, if the options ask for it."""
    wanted = {
        "before": (options.mlir_print_ir_before_all, options.mlir_print_ir_before),
        "after": (options.mlir_print_ir_after_all, options.mlir_print_ir_after),
    }
    if not (any(a or n for a, n in wanted.values()) or options.mlir_print_ir_after_change):
        return None
    last = ""

    def dump(event: str, name: str, op: ir.Operation) -> None:
        nonlocal last
        if event == "failed":
            every = options.mlir_print_ir_after_all
            if every or name in options.mlir_print_ir_after:
                text = op.get_asm(print_generic_op_form=True, assume_verified=True)
                print(_header("After", f"{name} Failed") + text, file=sys.stderr)
            return
        every, names = wanted[event]
        if options.mlir_print_ir_after_change:
            text = module_text(op, options)
            changed, last = text != last, text
            if event == "after" and not changed and (every or name in names):
                print(_header("After", f"{name} (no change)"), file=sys.stderr)
                return
            if event == "after" and changed:
                every = True
        if every or name in names:
            print(_header(event.capitalize(), name) + module_text(op, options), file=sys.stderr)

    return dump


def _header(event: str, name: str) -> str:
    return f"// -----// IR Dump {event} {name} //----- //\n"


def timing_report(seconds: dict[str, float]) -> str:
    """Seconds by pass and phase, the longest first."""
    total = sum(seconds.values())
    bar = "===" + "-" * 73 + "==="
    lines = [
        bar, "Execution time report".center(79).rstrip(), bar,
        f"  Total Execution Time: {total:.4f} seconds", "", "  ----Wall Time----  ----Name----",
    ]  # fmt: skip
    rows = [*sorted(seconds.items(), key=lambda item: -item[1]), ("Total", total)]
    for name, spent in rows:
        share = f"({spent / total * 100 if total else 0:.1f}%)"
        lines.append(f"  {spent:8.4f} {share:>8}  {name}")
    return "\n".join(lines)
