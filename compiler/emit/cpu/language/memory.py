"""Loads and stores at the writer's current position, and how element types lie in memory."""

from __future__ import annotations

from gflow.compiler.kernel.description import Access

from . import scalars as sc
from .writer import Writer

_STORAGE = {"bf16": "i16", "i1": "i8"}
_ALIGN = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "f16": 2, "i16": 2, "i8": 1}


def storage(dtype: str) -> str:
    """The element type that memory holds."""
    return _STORAGE.get(dtype, dtype.removeprefix("u"))


def _decode(w: Writer, raw: str, dtype: str, lanes: int) -> str:
    """A value as stored → as held in a register."""
    e = w.e
    if dtype == "i1":
        i8 = sc.shaped("i8", lanes)
        return e(f"arith.cmpi ne, {raw}, {e.const(0, i8)} : {i8}")
    if dtype == "bf16":
        i32 = sc.shaped("i32", lanes)
        wide = e(f"arith.extui {raw} : {sc.shaped('i16', lanes)} to {i32}")
        high = e(f"arith.shli {wide}, {e.const(16, i32)} : {i32}")
        return e(f"arith.bitcast {high} : {i32} to {sc.shaped('f32', lanes)}")
    if dtype == "f16":
        return e(f"arith.extf {raw} : {sc.shaped('f16', lanes)} to {sc.shaped('f32', lanes)}")
    return raw


def _encode(w: Writer, value: str, dtype: str, lanes: int) -> str:
    """A value as held in a register → as stored."""
    e = w.e
    if dtype == "i1":
        return e(f"arith.extui {value} : {sc.shaped('i1', lanes)} to {sc.shaped('i8', lanes)}")
    if dtype == "bf16":
        bits = sc.bf16_bits(e, value, lanes)
        return e(f"arith.trunci {bits} : {sc.shaped('i32', lanes)} to {sc.shaped('i16', lanes)}")
    if dtype == "f16":
        return e(f"arith.truncf {value} : {sc.shaped('f32', lanes)} to {sc.shaped('f16', lanes)}")
    return value


def _address(w: Writer, name: str, i: int, access: Access) -> str:
    pointer = w.word("load" if name == "lstride" else "store", i)
    offset = w.linear(name, i, access.strides)
    ty = storage(access.dtype)
    if access.offset:
        pointer = w.e(
            f"llvm.getelementptr {pointer}[{access.offset}] : (!llvm.ptr) -> !llvm.ptr, {ty}"
        )
    if offset is None:
        return pointer
    return w.e(f"llvm.getelementptr {pointer}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, {ty}")


def lane_offsets(w: Writer, stride: str) -> str:
    """0, stride, 2·stride, … as i64 lanes."""
    e, n = w.e, w.lanes
    i64 = f"vector<{n}xi64>"
    wide = e(f"vector.broadcast {stride} : i64 to {i64}")
    return e(f"arith.muli {e.steps(n, 'i64')}, {wide} : {i64}")


def _lane_pointers(w: Writer, name: str, i: int, at: str, ty: str) -> tuple[str, str]:
    """Pointers to the elements of a vector that does not lie in one piece, and its mask."""
    n = w.lanes
    offsets = lane_offsets(w, w.word(name, i, w.p.vector))
    pointers = w.e(
        f"llvm.getelementptr {at}[{offsets}] : (!llvm.ptr, vector<{n}xi64>) -> vector<{n}x!llvm.ptr>, {ty}"
    )
    return pointers, w.mask or w.e.const(True, f"vector<{n}xi1>")


def read(w: Writer, at: str, ty: str, align: int, mask: str | None) -> str:
    """`ty` from address `at`; lanes that the mask excludes are 0."""
    e = w.e
    if mask is None:
        return e(f"llvm.load {at} {{alignment = {align} : i64}} : !llvm.ptr -> {ty}")
    lanes = ty[: ty.rindex("x")]
    return e(
        f"llvm.intr.masked.load {at}, {mask}, {e.const(0, ty)} {{alignment = {align} : i32}} : "
        f"(!llvm.ptr, {lanes}xi1>, {ty}) -> {ty}"
    )


def write(w: Writer, value: str, at: str, ty: str, align: int, mask: str | None) -> None:
    """`value` to address `at`, but for lanes that the mask excludes."""
    if mask is None:
        w.e.line(f"llvm.store {value}, {at} {{alignment = {align} : i64}} : {ty}, !llvm.ptr")
        return
    lanes = ty[: ty.rindex("x")]
    w.e.line(
        f"llvm.intr.masked.store {value}, {at}, {mask} {{alignment = {align} : i32}} : {ty}, {lanes}xi1> into !llvm.ptr"
    )


def load(w: Writer, i: int, lanes: int) -> str:
    """Load `i` of the kernel."""
    e, access = w.e, w.k.loads[i]
    element = storage(access.dtype)
    ty, align = sc.shaped(element, lanes), _ALIGN[element]
    at = _address(w, "lstride", i, access)
    if not lanes or access.strides[w.p.vector] == 1:
        raw = read(w, at, ty, align, w.mask if lanes else None)
    else:
        pointers, mask = _lane_pointers(w, "lstride", i, at, element)
        raw = e(
            f"llvm.intr.masked.gather {pointers}, {mask}, {e.const(0, ty)} {{alignment = {align} : i32}} : "
            f"(vector<{lanes}x!llvm.ptr>, vector<{lanes}xi1>, {ty}) -> {ty}"
        )
    return _decode(w, raw, access.dtype, lanes)


def store(w: Writer, i: int, value: str, lanes: int) -> None:
    """Store `i` of the kernel."""
    access = w.k.stores[i]
    element = storage(access.dtype)
    ty, align = sc.shaped(element, lanes), _ALIGN[element]
    value = _encode(w, value, access.dtype, lanes)
    at = _address(w, "sstride", i, access)
    if not lanes or access.strides[w.p.vector] == 1:
        write(w, value, at, ty, align, w.mask if lanes else None)
        return
    pointers, mask = _lane_pointers(w, "sstride", i, at, element)
    w.e.line(
        f"llvm.intr.masked.scatter {value}, {pointers}, {mask} {{alignment = {align} : i32}} : "
        f"{ty}, vector<{lanes}xi1> into vector<{lanes}x!llvm.ptr>"
    )
