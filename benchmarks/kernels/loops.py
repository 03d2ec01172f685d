"""Main loops of kernels that count, by the model of machine code, beside what was written down: a gate without a GPU.

    python -m benchmarks loops [--cases attention_64,product_4096] [--write]
    python -m benchmarks loops --predictions      # operations a second that follow from the recorded rows

Each case is an op at a size of a real model, compiled for an H100. Of each kernel: blocks of a multiprocessor,
registers, cycles of an iteration of the main loop, what tensor cores at their full rate need for its block of the op
(without padding, `ideal`), the first over the second (`of ideal`), and the pipe that needs longest. `of ideal` may
not grow by more than 2 % over `benchmarks/results/loops.json`, which `--write` writes. The numbers are predictions
(docs/cuda.md says how far they go), and those of the file hold for its version of Triton.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.harness.report import table
from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.emit.triton.toolchain.compile import triton_version
from gflow.compiler.emit.triton.toolchain.device_code import add_device_code
from gflow.compiler.kernel.sizes import cdiv
from gflow.compiler.reports.sass.kernel import kernel_time
from gflow.compiler.targets import parse_target
from gflow.compiler.targets.pipes import PIPES
from gflow.dialects import builder
from gflow.dialects.dialect import make_context
from gflow.dialects.docs import _function
from gflow.dialects.mlir import ir
from gflow.dialects.program import LaunchStep, Program

RESULTS = Path(__file__).parent.parent / "results" / "loops.json"
TARGET = "cuda:90"
#: how much longer a loop may take than what was written down
_MORE = 1.02

#: of attention's kernels, products of a block of positions of q, one of k, and channels
_PRODUCTS = {
    "attention": 2,
    "attention_query_grad": 3,
    "attention_key_grad": 4,
    "attention_value_grad": 2,
}

#: TFLOP/s of FlashAttention-3 forward and backward at 16,384 positions on an H100, by channels and causal, as in the
#: figures of its paper (arXiv:2407.08608)
_PUBLISHED: Mapping[tuple[int, bool], tuple[int | None, int | None]] = {
    (64, False): (497, None),
    (128, False): (648, 561),
    (128, True): (616, None),
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """An op: its name, the types of its operands, its attributes; of attention, channels; of a product, the rows and
    columns of its result."""

    op: str
    types: tuple[str, ...]
    attrs: Mapping[str, Any]
    channels: int = 0
    rows: int = 0
    columns: int = 0

    def ideal(self, kernel: str, constants: Mapping[str, int], kernels: Set[str]) -> float:
        """Operations of the products that a block of one of its kernels needs an iteration. kernels: all of them."""
        block = 2.0 * constants["BLOCK_M"] * (constants["BLOCK_N"] + constants.get("REST", 0))
        products = _PRODUCTS.get(kernel, 0)
        if kernel == "attention_key_grad" and "attention_value_grad" in kernels:
            products -= _PRODUCTS["attention_value_grad"]
        return block * (products * self.channels or constants["BLOCK_K"])

    def filled(self, constants: Mapping[str, int], splits: int, slots: int) -> float:
        """The share of multiprocessors that a product's tiles keep busy, in whole waves; 1 for attention."""
        if not self.rows:
            return 1.0
        tiles = cdiv(self.rows, constants["BLOCK_M"]) * cdiv(
            self.columns, constants["BLOCK_N"] + constants.get("REST", 0)
        )
        return tiles * splits / (cdiv(tiles * splits, slots) * slots)

    def program(self) -> Program:
        """It, compiled; with machine code."""
        with make_context():
            text = _function(
                [*self.types],
                lambda args: builder.build_op(self.op, args, dict(self.attrs)).results,
            )
            program = compile_module(ir.Module.parse(text), CompileOptions(target=TARGET))
        add_device_code(program)
        return program


def _attention(
    channels: int, causal: bool = True, of_keys: int = 16, mask: str = ""
) -> dict[str, Case]:
    """Attention of two times 4,096 positions and 16 heads, forward and backward. mask: the type of numbers that are
    added to scores."""
    q, k = (f"2x4096x{heads}x{channels}xbf16" for heads in (16, of_keys))
    attrs = {"causal": causal, "scale": channels**-0.5}
    plain = "" if causal else "_full"
    shared = "" if of_keys == 16 else f"_of_{of_keys}"
    masked = {"2x1x1x4096xf32": "_padded", "2x1x4096x4096xbf16": "_masked", "": ""}[mask]
    name = f"attention_{channels}{shared}{plain}{masked}"
    more = (mask,) if mask else ()
    grads = (q, q, k, k, q, "2x16x4096xf32", *more)
    return {
        name: Case("attention", (q, k, k, *more), attrs, channels),
        f"{name}_grad": Case("attention_grad", grads, attrs, channels),
    }


def _product(m: int, n: int, k: int) -> Case:
    return Case("matmul", (f"{m}x{k}xbf16", f"{k}x{n}xbf16"), {}, columns=n, rows=m)


CASES: dict[str, Case] = {
    **_attention(64), **_attention(128), **_attention(64, causal=False), **_attention(96), **_attention(192),
    **_attention(256), **_attention(128, of_keys=4), **_attention(96, causal=False), **_attention(128, causal=False),
    **_attention(64, causal=False, mask="2x1x1x4096xf32"), **_attention(64, causal=False, mask="2x1x4096x4096xbf16"),
    "product_4096": _product(4096, 4096, 4096), "product_gpt2": _product(8192, 768, 768),
    "product_gpt2_qkv": _product(8192, 2304, 768), "product_gpt2_up": _product(8192, 3072, 768),
    "product_gpt2_down": _product(8192, 768, 3072), "product_bert_out": _product(4096, 768, 768),
    "product_bert_up": _product(4096, 3072, 768), "product_bert_down": _product(4096, 768, 3072),
    "product_llama_up": _product(8192, 8192, 2048), "product_llama_down": _product(8192, 2048, 8192),
}  # fmt: skip
#: what continuous integration compiles
CHECKED = (
    "attention_64",
    "attention_64_grad",
    "attention_128",
    "attention_128_grad",
    "attention_64_full_padded",
    "product_gpt2",
)


def rows_of(case: Case) -> dict[str, Row]:
    """What the model says of a case's kernels, by their names without the digest."""
    program, device = case.program(), parse_target(TARGET).device
    rows: dict[str, Row] = {}
    steps = [s for s in program.steps if isinstance(s, LaunchStep)]
    kernels = {s.kernel.rpartition("_")[0] for s in steps}
    for step in steps:
        code = program.device_code[f"{step.kernel}/{step.config}"]
        config = program.triton[step.kernel].configs[step.config]
        time = kernel_time(code, device, prod(step.grid), config.constants)
        assert time is not None
        assert time.main is not None
        main, kernel = time.main, step.kernel.rpartition("_")[0]
        ideal = case.ideal(kernel, config.constants, kernels) / PIPES[90].tensor
        rows[kernel] = {
            "config": str(config),
            "registers": code.registers,
            "spills": code.spills,
            "blocks": time.blocks,
            "cycles": round(main.cycles),
            "ideal": round(ideal),
            "tensor": round(main.tensor),
            "issue": round(main.pipes["issue"]),
            "of ideal": round(main.cycles / ideal, 3),
            "bound": main.bound,
        }
        if case.rows:
            splits = step.grid[1] if len(step.grid) > 1 else 1
            slots = device.multiprocessors * time.blocks
            rows[kernel]["filled"] = round(case.filled(config.constants, splits, slots), 3)
    return rows


def predictions(known: Mapping[str, Mapping[str, Row]]) -> list[tuple[str, ...]]:
    """Operations a second that follow from the main loops in `known`, and FlashAttention-3's where they are published.

    Attention's are counted as usual: two products forward and five backward. What comes before and after the loops,
    launches, and blocks at the edge of a causal mask are left out.
    """
    peak = parse_target(TARGET).device.matmul["f16"] / 1e12
    found: list[tuple[str, ...]] = []
    for name, case in CASES.items():
        rows = known.get(name)
        if rows is None:
            continue
        backward = case.op == "attention_grad"
        if case.rows:
            share = min(row["filled"] / row["of ideal"] for row in rows.values())
        else:
            apart = "attention_value_grad" in rows
            taken = sum(
                row["of ideal"] * (_PRODUCTS[k] - 2 * (apart and k == "attention_key_grad"))
                for k, row in rows.items()
            )
            share = (5 if backward else 2) / taken
        published: int | None = None
        plain = len(case.types) in (3, 6) and len(set(case.types[:4])) == 1
        if plain:  # as many keys as positions, and no bias
            pair = _PUBLISHED.get((case.channels, bool(case.attrs["causal"])), (None, None))
            published = pair[int(backward)]
        found.append(
            (
                name, f"{share * peak:.0f}", f"{share:.0%}", str(published or ""),
                f"{share * peak / published:.2f}" if published else "",
            )
        )  # fmt: skip
    return found


def slower(
    found: Mapping[str, Mapping[str, Row]], known: Mapping[str, Mapping[str, Row]]
) -> list[str]:
    """Kernels whose main loop takes longer than what was written down, or that nothing was written down of."""
    problems = []
    for case, rows in found.items():
        for kernel, row in rows.items():
            before = known.get(case, {}).get(kernel)
            now = row["of ideal"]
            if before is None:
                problems.append(f"{case}, {kernel}: not in {RESULTS.name}; --write writes it")
            elif now > _MORE * before["of ideal"]:
                problems.append(
                    f"{case}, {kernel}: {now} times the ideal cycles, {before['of ideal']} before"
                )
            elif row["spills"] > before["spills"]:
                problems.append(
                    f"{case}, {kernel}: spills {row['spills']} bytes, {before['spills']} before"
                )
    return problems


def recorded() -> dict[str, Any]:
    """What was written down: `triton`, the version, and `cases`."""
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    return found


_HEAD = (
    "case",
    "kernel",
    "config",
    "registers",
    "spills",
    "blocks",
    "cycles",
    "ideal",
    "tensor",
    "issue",
    "of ideal",
    "bound",
)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks loops")
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument(
        "--predictions", action="store_true", help="operations a second, of recorded rows"
    )
    args = parser.parse_args(argv)
    if args.predictions:
        head = "case", "TFLOP/s", "of peak", "FlashAttention-3", "of it"
        print(table(head, predictions(recorded()["cases"])))
        return 0
    names = args.cases.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    found = {name: rows_of(CASES[name]) for name in names}
    lines = [
        (case, kernel, *(str(row[name]) for name in _HEAD[2:]))
        for case, rows in found.items()
        for kernel, row in rows.items()
    ]
    print(table(_HEAD, lines))
    if args.write:
        cases = (recorded()["cases"] if RESULTS.exists() else {}) | found
        RESULTS.write_text(
            json.dumps({"triton": triton_version(), "cases": cases}, indent=1) + "\n"
        )
        return 0
    problems = slower(found, recorded()["cases"])
    print("\n".join(problems))
    return 1 if problems else 0
