"""Loads and stores at the writer's current position, and element types in memory."""

from __future__ import annotations

from gflow.compiler.kernel.description import Access

from . import scalars as sc
from .writer import Writer

_STORAGE = {"bf16": "i16", "i1": "i8"}
_ALIGN = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "f16": 2, "i16": 2, "i8": 1}


def storage(dtype: str) -> str:
    """The MLIR type of an element in memory."""
    return _STORAGE.get(dtype, dtype.removeprefix("u"))


def _decode(w: Writer, raw: str, dtype: str, lanes: int) -> str:
    """Convert a value from its type in memory to its type in a register."""
    if dtype == "i1":
        i8 = sc.shaped("i8", lanes)
        return w(f"arith.cmpi ne, {raw}, {w.const(0, i8)} : {i8}")
    if dtype == "bf16":
        i32 = sc.shaped("i32", lanes)
        wide = w(f"arith.extui {raw} : {sc.shaped('i16', lanes)} to {i32}")
        return sc.from_bf16_bits(w, wide, lanes)
    if dtype == "f16":
        return w(f"arith.extf {raw} : {sc.shaped('f16', lanes)} to {sc.shaped('f32', lanes)}")
    return raw


def _encode(w: Writer, value: str, dtype: str, lanes: int) -> str:
    """Convert a value from its type in a register to its type in memory."""
    if dtype == "i1":
        return w(f"arith.extui {value} : {sc.shaped('i1', lanes)} to {sc.shaped('i8', lanes)}")
    if dtype == "bf16":
        bits = sc.bf16_bits(w, value, lanes)
        return w(f"arith.trunci {bits} : {sc.shaped('i32', lanes)} to {sc.shaped('i16', lanes)}")
    if dtype == "f16":
        return w(f"arith.truncf {value} : {sc.shaped('f32', lanes)} to {sc.shaped('f16', lanes)}")
    return value


def _address(w: Writer, name: str, i: int, access: Access) -> str:
    pointer = w.word("load" if name == "lstride" else "store", i)
    offset = w.linear(name, i, access.strides)
    ty = storage(access.dtype)
    if access.offset:
        pointer = w(
            f"llvm.getelementptr {pointer}[{access.offset}] : (!llvm.ptr) -> !llvm.ptr, {ty}"
        )
    if offset is None:
        return pointer
    return w(f"llvm.getelementptr {pointer}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, {ty}")


def load_address(w: Writer, i: int) -> str:
    """The address of load `i` of the kernel at the current position."""
    return _address(w, "lstride", i, w.k.loads[i])


def read(w: Writer, at: str, dtype: str, lanes: int, mask: str | None) -> str:
    """The values at consecutive addresses from `at` on, as a scalar (lanes 0) or a vector."""
    element = storage(dtype)
    raw = w.read(at, sc.shaped(element, lanes), _ALIGN[element], mask)
    return _decode(w, raw, dtype, lanes)


def load(w: Writer, i: int, lanes: int) -> str:
    """The value of load `i` of the kernel at the current position, as a scalar (lanes 0) or a vector."""
    access = w.k.loads[i]
    element = storage(access.dtype)
    if i in w.turned:
        position = w.iv[w.p.vector]
        at = w(f"llvm.getelementptr {w.turned[i]}[{position}] : (!llvm.ptr, i64) -> !llvm.ptr, f32")
        return read(w, at, "f32", lanes, w.mask)
    at = load_address(w, i)
    if not lanes or access.strides[w.p.vector] == 1:
        return read(w, at, access.dtype, lanes, w.mask if lanes else None)
    ty, stride = sc.shaped(element, lanes), w.word("lstride", i, w.p.vector)
    raw = w.gather(at, stride, ty, _ALIGN[element], w.mask)
    return _decode(w, raw, access.dtype, lanes)


def store(w: Writer, i: int, value: str, lanes: int) -> None:
    """Write store `i` of the kernel at the current position."""
    access = w.k.stores[i]
    element = storage(access.dtype)
    ty, align = sc.shaped(element, lanes), _ALIGN[element]
    value = _encode(w, value, access.dtype, lanes)
    at = _address(w, "sstride", i, access)
    if not lanes or access.strides[w.p.vector] == 1:
        w.write(value, at, ty, align, w.mask if lanes else None)
    else:
        w.scatter(value, at, w.word("sstride", i, w.p.vector), ty, align, w.mask)
