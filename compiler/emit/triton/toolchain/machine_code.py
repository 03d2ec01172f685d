"""The resources of a compiled kernel, from its assembly: parameters, registers, spills; by family of GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gflow.dialects.records import record

#: matrix instructions of PTX, and of AMD's assembly
_PTX_PRODUCT = re.compile(r"\b(?:wgmma\.mma_async|mma\.sync|mma\.sp|tcgen05\.mma)[\w.:]*")
_AMD_PRODUCT = re.compile(r"\bv_s?mfmac?_\w+")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores")


@record
class Family:
    """Triton's output for a kind of target.

    Attributes:
        assembly, image: the names of assembly and machine code among the stages of a compilation.
        check_entry: checks that the assembly's entry takes the parameters (types by name) and threads of a launch;
            raises ValueError if it doesn't.
        resources: gives fields of a `DeviceCode`, from the assembly and the compiler's output.
    """

    assembly: str
    image: str
    check_entry: Callable[[str, Mapping[str, str], int], None]
    resources: Callable[[str, str], dict[str, Any]]


def check_ptx_entry(ptx: str, parameters: Mapping[str, str], threads: int) -> None:
    """Check that the entry takes what launches pass: the parameters, then two addresses of scratch.

    Raises:
        ValueError: it doesn't, possibly due to another version of Triton.
    """
    head = ptx[ptx.index(".entry") :]
    given = re.findall(r"\.param \.[a-z](\d+)", head[: head.index(")")])
    found = re.search(r"\.reqntid (\d+)", head)
    _compare([int(bits) for bits in given], parameters, found and int(found[1]), threads)


def check_amd_entry(text: str, parameters: Mapping[str, str], threads: int) -> None:
    """As `check_ptx_entry`, from the metadata at the end of AMD's assembly.

    Raises:
        ValueError: the entry takes something else, possibly due to another version of Triton.
    """
    _, _, metadata = text.rpartition(".amdgpu_metadata")
    before, _, _ = metadata.partition(".group_segment_fixed_size")
    sizes = [8 * int(size) for size in re.findall(r"\.size:\s+(\d+)", before)]
    _compare(sizes, parameters, _number(metadata, "max_flat_workgroup_size"), threads)


def _compare(
    given: Sequence[int], parameters: Mapping[str, str], limit: int | None, threads: int
) -> None:
    bits = {"i1": 8, "u1": 8}
    wanted = [
        64 if k.startswith("*") else bits.get(k) or int(k.strip("iufpb"))
        for k in parameters.values()
    ]
    if list(given) != [*wanted, 64, 64]:
        raise ValueError(
            f"the kernel takes parameters of {list(given)} bits; {[*wanted, 64, 64]} expected"
        )
    if limit and limit != threads:
        raise ValueError(f"the kernel wants {limit} threads a block; {threads} expected")


def ptx_resources(ptx: str, log: str) -> dict[str, Any]:
    """Registers and spills from the assembler's log."""
    found = set(_PTX_PRODUCT.findall(ptx))
    names = sorted(re.sub(r"\.(?:sync|aligned|row|col)\b", "", name) for name in found)
    registers, spills = _REGISTERS.search(log), _SPILLS.search(log)
    return {
        "registers": int(registers[1]) if registers else 0,
        "spills": int(spills[1]) if spills else 0,
        "instructions": names,
    }


def amd_resources(text: str, log: str) -> dict[str, Any]:
    """Registers and spills from the metadata of AMD's assembly: vector registers (with accumulators), those that spill
    into memory, and scalar registers that spill into lanes of vector registers."""
    return {
        "registers": _number(text, "vgpr_count"),
        "spills": 4 * _number(text, "vgpr_spill_count"),
        "scalar_spills": 4 * _number(text, "sgpr_spill_count"),
        "instructions": sorted(set(_AMD_PRODUCT.findall(text))),
    }


def _number(metadata: str, name: str) -> int:
    found = re.search(rf"\.{name}:\s+(\d+)", metadata)
    return int(found[1]) if found else 0


#: by kind of target
FAMILIES = {
    "cuda": Family("ptx", "cubin", check_ptx_entry, ptx_resources),
    "hip": Family("amdgcn", "hsaco", check_amd_entry, amd_resources),
}
