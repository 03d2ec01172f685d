"""Attributes between MLIR and plain Python data, by the kind that an `Attr` declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .constants import as_resource
from .mlir import ir
from .opdef import Attr, OpDef, VerifyError
from .types import NO_KERNELS, TensorType, try_tensor_type

T = TypeVar("T")

KIND_NAMES = {
    "i64": "an i64 integer",
    "f64": "an f64 float",
    "bool": "a bool",
    "str": "a string",
    "i64[]": "array<i64: ...>",
    "str[]": "an array of strings",
    "elements": "a dense constant",
    "type": "a type",
    "any": "an attribute",
}


def to_mlir(spec: Attr, value: Any) -> ir.Attribute:
    """`value` as an attribute of the declared kind; an `ir.Attribute` passes through.

    Raises:
        TypeError: an attribute of this kind must be given as an `ir.Attribute`.
    """
    if isinstance(value, ir.Attribute):
        return value
    match spec.kind:
        case "i64":
            return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), int(value))
        case "f64":
            return ir.FloatAttr.get(ir.F64Type.get(), float(value))
        case "bool":
            return ir.BoolAttr.get(bool(value))
        case "str":
            return ir.StringAttr.get(value)
        case "i64[]":
            return ir.DenseI64ArrayAttr.get([int(v) for v in value])
        case "str[]":
            return ir.ArrayAttr.get([ir.StringAttr.get(v) for v in value])
        case "type":
            return ir.TypeAttr.get(value.mlir() if isinstance(value, TensorType) else value)
    raise TypeError(
        f"an attribute of kind {spec.kind} must be given as an ir.Attribute, found {value!r}"
    )


#: MLIR uniques attributes per context; reading an array costs microseconds, looking it up does not
_arrays: dict[ir.Attribute, tuple[int, ...]] = {}
#: the same for what others make of attributes, by attribute and reader
_read: dict[tuple[ir.Attribute, Any], Any] = {}


def forget_attributes() -> None:
    """Empty the look-ups: their entries keep the contexts of their attributes alive."""
    _arrays.clear()
    _read.clear()


def read_once(attr: ir.Attribute, reader: Callable[[ir.Attribute], T]) -> T:
    """What `reader`, a function that depends on nothing else, makes of an attribute. The caller must not modify it."""
    key = attr, reader
    if key not in _read:
        if len(_read) > 100_000:
            _read.clear()
        _read[key] = reader(attr)
    return _read[key]  # type: ignore[no-any-return]


def _remembered(attr: ir.Attribute, value: tuple[int, ...]) -> tuple[int, ...]:
    if len(_arrays) > 100_000:
        _arrays.clear()
    _arrays[attr] = value
    return value


def from_mlir(spec: Attr, attr: ir.Attribute) -> Any:
    """The attribute as plain data; an "elements" attribute gives its `TensorType`.

    Raises:
        VerifyError: the attribute is of another kind.
    """
    kind = spec.kind
    if kind == "i64[]" and attr in _arrays:
        return _arrays[attr]
    if kind == "i64" and isinstance(attr, ir.IntegerAttr):
        return attr.value
    if kind == "f64" and isinstance(attr, ir.FloatAttr):
        return attr.value
    if kind == "bool" and isinstance(attr, ir.BoolAttr):
        return attr.value
    if kind == "str" and isinstance(attr, ir.StringAttr):
        return attr.value
    if kind == "i64[]" and isinstance(attr, ir.DenseI64ArrayAttr):
        return _remembered(attr, tuple(attr))
    if kind == "str[]" and isinstance(attr, ir.ArrayAttr):
        items = list(attr)
        if all(isinstance(a, ir.StringAttr) for a in items):
            return tuple(a.value for a in items)
    if kind == "elements" and (isinstance(attr, ir.DenseElementsAttr) or as_resource(attr)):
        found = try_tensor_type(attr.type)
        if found is not None and found.dtype in NO_KERNELS and as_resource(attr) is None:
            raise VerifyError(
                f"must be a resource, the only form in which {found.dtype} can be read"
            )
        if found is not None:
            return found
    if kind == "type" and isinstance(attr, ir.TypeAttr):
        return attr.value
    if kind == "any":
        return attr
    raise VerifyError(f"must be {KIND_NAMES[kind]}, found {attr}")


def read(definition: OpDef, attributes: Any) -> dict[str, Any]:
    """All declared attributes of an op as plain data.

    Raises:
        VerifyError: one is missing, of another kind, or not among its choices.
    """
    values: dict[str, Any] = {}
    for name, spec in definition.attrs.items():
        if name not in attributes:
            if spec.optional:
                values[name] = None
                continue
            raise VerifyError(f"requires attribute '{name}' ({KIND_NAMES[spec.kind]}: {spec.doc})")
        try:
            value = from_mlir(spec, attributes[name])
        except VerifyError as error:
            raise VerifyError(f"attribute '{name}' {error}") from None
        except TypeError:
            # The bindings have no class for it: complex constants, arrays of odd widths.
            kind = KIND_NAMES[spec.kind]
            raise VerifyError(
                f"attribute '{name}' must be {kind}, found one that cannot be read here"
            ) from None
        if spec.choices and value not in spec.choices:
            raise VerifyError(
                f"attribute '{name}' must be one of {', '.join(spec.choices)}, found \"{value}\""
            )
        values[name] = value
    return values
