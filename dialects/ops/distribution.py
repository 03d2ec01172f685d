"""Collectives: ops in which all ranks of a group take part, and what a rank knows of its place.

A program is the same text for every rank (SPMD). All ranks make the same collectives in the same order:
each takes the token of the one before it and gives the next one's, so no pass can drop, merge, repeat or exchange
two of them, and `sequence` numbers them, which `dialects/distribution/mesh.py` verifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..distribution.sharding import ShardingRule
from ..opdef import Attr, OpDef, VerifyError
from ..types import TensorType, tensor_type
from .factors import collective

COLLECTIVE = "collective"
#: what `gflow-split-collectives` makes of a collective
START, WAIT = "collective_start", "collective_wait"
#: this rank's piece of a value that all ranks have
SHARD = "shard"
#: ops that take part in the order of collectives
ORDERED = frozenset({COLLECTIVE, START})

KINDS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "recv",
)  # fmt: skip
REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
#: what orders collectives; it has no meaning as a number
TOKEN = TensorType((), "i8")

_ATTRS = {
    "kind": Attr("str", "the operation", choices=KINDS),
    "axes": Attr("str[]", "the mesh axes whose ranks take part (`gflow.mesh`)", optional=True),
    "group": Attr("str", "a process group by its name, instead of mesh axes", optional=True),
    "ranks": Attr("i64", "how many ranks take part"),
    "sequence": Attr("i64", "its number in the order that all ranks follow; increases in program order"),
    "reduction": Attr(
        "str", "the reduction of all_reduce and reduce_scatter", optional=True, choices=REDUCTIONS
    ),
    "dim": Attr(
        "i64",
        "the dimension that all_gather concatenates and that reduce_scatter and all_to_all split; "
"default 0",
        optional=True,
    ),
    "concat_dim": Attr(
        "i64", "the dimension that all_to_all concatenates; default `dim`", optional=True
    ),
    "sends": Attr("i64[]", "of all_to_all: the elements of `dim` sent to each rank; default equal parts", optional=True),
    "takes": Attr("i64[]", "of all_to_all: the elements received from each rank; default `sends`", optional=True),
    "root": Attr("i64", "of broadcast: the rank in the group that sends the value", optional=True),
    "peer": Attr("i64", "of send and recv: the other rank in the group", optional=True),
    "type": Attr("type", "of recv: the type of the received value", optional=True),
}  # fmt: skip


def has_token(kind: str, operands: int) -> bool:
    """Whether the last of so many operands is the token of an earlier collective."""
    return operands > (kind != "recv")


def _infer(operands: Sequence[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
    kind, ranks = attrs["kind"], attrs["ranks"]
    _group(attrs)
    wanted = int(kind != "recv")
    if len(operands) not in (wanted, wanted + 1):
        raise VerifyError(
            f"{kind} takes {wanted} operand{'s' * (wanted != 1)} and a token, found {len(operands)} operands"
        )
    if len(operands) > wanted and operands[-1] != TOKEN:
        raise VerifyError(f"operand #{wanted} must be a token, a {TOKEN}, found {operands[-1]}")
    _fields(attrs)
    if kind == "recv":
        ty = attrs["type"]  # plain data of builders, or as it stands in the IR
        return [ty if isinstance(ty, TensorType) else tensor_type(ty), TOKEN]
    x = operands[0]
    if kind == "send":  # what says that it is done
        return [TOKEN, TOKEN]
    if kind in ("all_reduce", "broadcast"):
        return [x, TOKEN]
    dim = attrs.get("dim") or 0
    if not 0 <= dim < x.rank:
        raise VerifyError(f"dim must be a dimension of the operand, a {x}, found {dim}")
    if kind == "all_to_all":
        return [_exchanged(x, dim, attrs), TOKEN]
    size = x.shape[dim]
    if kind == "reduce_scatter" and size % ranks:
        raise VerifyError(f"{ranks} ranks cannot have equal parts of dimension {dim} of a {x}")
    size = size * ranks if kind == "all_gather" else size // ranks
    return [TensorType((*x.shape[:dim], size, *x.shape[dim + 1 :]), x.dtype), TOKEN]


def _exchanged(x: TensorType, dim: int, attrs: dict[str, Any]) -> TensorType:
    ranks, sends, takes = attrs["ranks"], attrs.get("sends"), attrs.get("takes")
    other = attrs.get("concat_dim")
    other = dim if other is None else other
    if not 0 <= other < x.rank:
        raise VerifyError(f"concat_dim must be a dimension of the operand, a {x}, found {other}")
    if sends is not None or takes is not None:
        sends = sends or ()
        takes = sends if takes is None else takes
        if len(sends) != ranks or len(takes) != ranks or dim != other:
            raise VerifyError("sends and takes need a number for each rank, and one dimension")
        if sum(sends) != x.shape[dim]:
            raise VerifyError(
                f"sends add up to {sum(sends)}, and dimension {dim} has {x.shape[dim]}"
            )
        return TensorType((*x.shape[:dim], sum(takes), *x.shape[dim + 1 :]), x.dtype)
    if x.shape[dim] % ranks:
        raise VerifyError(f"{ranks} ranks cannot have equal parts of dimension {dim} of a {x}")
    shape = list(x.shape)
    shape[dim] //= ranks
    shape[other] *= ranks
    return TensorType(tuple(shape), x.dtype)


def _group(attrs: dict[str, Any]) -> None:
    if (not attrs.get("axes")) == (not attrs.get("group")):
        raise VerifyError("takes mesh axes ('axes') or a process group ('group'), one of them")
    if attrs["ranks"] < 1:
        raise VerifyError(f"ranks must be 1 or more, found {attrs['ranks']}")


#: by kind the attributes that it needs, and those that it may have
_NEEDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "all_reduce": (("reduction",), ()),
    "all_gather": ((), ("dim",)),
    "reduce_scatter": (("reduction",), ("dim",)),
    "all_to_all": ((), ("dim", "concat_dim", "sends", "takes")),
    "broadcast": (("root",), ()),
    "send": (("peer",), ()),
    "recv": (("peer", "type"), ()),
}
_OWN = ("reduction", "dim", "concat_dim", "sends", "takes", "root", "peer", "type")


def _fields(attrs: dict[str, Any]) -> None:
    kind = attrs["kind"]
    needs, may = _NEEDS[kind]
    for name in _OWN:
        given = attrs.get(name) is not None
        if name in needs and not given:
            raise VerifyError(f"{kind} needs '{name}'")
        if given and name not in needs and name not in may:
            raise VerifyError(f"{kind} has no '{name}'")
    for name in ("root", "peer"):
        if attrs.get(name) is not None and not 0 <= attrs[name] < attrs["ranks"]:
            raise VerifyError(
                f"{name} must be a rank of the group of {attrs['ranks']}, found {attrs[name]}"
            )


def _wait(operands: Sequence[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
    return [operands[0]]


def shard_size(ty: TensorType, ranks: int) -> int:
    """Elements that each of so many ranks has of a tensor, the last ones of the last rank being filled up."""
    return -(-prod(ty.shape) // ranks)


def _shard(operands: Sequence[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
    _group(attrs)
    return [TensorType((shard_size(operands[0], attrs["ranks"]),), operands[0].dtype)]


OPS: tuple[OpDef, ...] = (
    OpDef(
        COLLECTIVE,
        "distribution",
        "A collective of all ranks of a group. Its results are a value (for send a dummy) and a "
"token, which the next collective takes as an operand: tokens are data, so the order of "
"collectives is kept. all_gather, reduce_scatter and all_to_all number parts by the rank in"
" the group, row-major over `axes`",
        ("*inputs",),
        _ATTRS,
        results=None,
        infer=_infer,
        mixed=True,
        sharding=ShardingRule(collective),
    ),
    OpDef(
        START,
        "distribution",
        "Starts a collective. Until its `gflow.collective_wait` the first result is undefined, and "
"the operand must not be written. Only the wait reads that result",
        ("*inputs",),
        _ATTRS,
        results=None,
        infer=_infer,
        mixed=True,
    ),
    OpDef(
        WAIT,
        "distribution",
        "Waits for a collective. The result has the memory of the start's result. The wait also "
"reads the operand of the start, so the operand stays live and unchanged until then",
        ("started", "*operand"),
        {},
        infer=_wait,
    ),
    OpDef(
        SHARD,
        "distribution",
        "This rank's shard of a replicated value. The value is flattened row-major, padded with "
"zeros to a multiple of `ranks`, and divided into `ranks` equal shards; the result is the "
"shard of this rank",
        ("x",),
        {name: _ATTRS[name] for name in ("axes", "group", "ranks")},
        infer=_shard,
    ),
)  # fmt: skip
