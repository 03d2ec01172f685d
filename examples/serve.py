"""An HTTP server for saved graphs: the Open Inference Protocol (KServe v2), JSON and binary tensors.

    pip install gflow-compiler[serve]
    python examples/serve.py digits=1/model --port 8000
    curl localhost:8000/v2/models/digits
    curl localhost:8000/v2/models/digits/infer -d '{"inputs": [
        {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}'

Inference runs in threads beside the server's event loop, so health checks are answered meanwhile; calls
of one graph wait for each other, each with all of PyTorch's threads.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gflow.runtime.stored.artifact import load_graph
from gflow.runtime.stored.loaded_graph import LoadedGraph
from gflow.runtime.stored.signature import TensorInfo
from gflow.runtime.stored.trust import read_key

HEADER = "inference-header-content-length"
DATATYPES = {
    "BOOL": torch.bool, "UINT8": torch.uint8, "UINT16": torch.uint16, "UINT32": torch.uint32,
    "UINT64": torch.uint64, "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32,
    "INT64": torch.int64, "FP16": torch.float16, "BF16": torch.bfloat16, "FP32": torch.float32,
    "FP64": torch.float64,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DATATYPES.items()}


class BadRequest(ValueError):
    """What the client sent is not a request of the protocol."""


def create_app(graphs: Mapping[str, LoadedGraph], largest_request: int = 1 << 30) -> Starlette:
    """The server's application."""

    def graph_of(request: Request) -> LoadedGraph:
        name = request.path_params["name"]
        if name not in graphs or request.path_params.get("version", "1") != "1":
            raise HTTPException(404, f"there is no model {name!r} of that version")
        return graphs[name]

    async def alive(_: Request) -> Response:
        return JSONResponse({})

    async def server(_: Request) -> Response:
        return JSONResponse({"name": "gflow", "version": "1", "extensions": ["binary_tensor_data"]})

    async def ready(request: Request) -> Response:
        graph_of(request)
        return JSONResponse({})

    async def metadata(request: Request) -> Response:
        graph = graph_of(request)
        return JSONResponse(
            {
                "name": request.path_params["name"],
                "versions": ["1"],
                "platform": "gflow",
                "inputs": [_listed(info) for info in graph.inputs],
                "outputs": [_listed(info) for info in graph.outputs],
            }
        )

    async def infer(request: Request) -> Response:
        graph = graph_of(request)
        body = await _body(request, largest_request)
        try:
            # JSON of many megabytes takes long, too
            asked, inputs = await run_in_threadpool(
                read_request, body, request.headers.get(HEADER), graph.inputs
            )
            results = await run_in_threadpool(_run, graph, inputs)
            head, binary = await run_in_threadpool(
                write_response, request.path_params["name"], asked, results
            )
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        if not binary:
            return Response(head, media_type="application/json")
        headers = {HEADER: str(len(head))}
        return Response(head + binary, headers=headers, media_type="application/octet-stream")

    async def failed(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    model = "/v2/models/{name}"
    routes = [
        Route("/v2", server),
        Route("/v2/health/live", alive),
        Route("/v2/health/ready", alive),  # graphs are loaded before the server starts
    ]
    for path in (model, model + "/versions/{version}"):
        routes += [
            Route(path, metadata),
            Route(path + "/ready", ready),
            Route(path + "/infer", infer, methods=["POST"]),
        ]
    return Starlette(routes=routes, exception_handlers={HTTPException: failed})


async def _body(request: Request, most: int) -> bytes:
    """A request's body; one that is sent in pieces, or announces another length, counts as it comes.

    Raises:
        HTTPException: it has more bytes than `most`, or says nonsense of its length.
    """
    too_large = HTTPException(413, f"a request may have {most} bytes", {"connection": "close"})
    announced = request.headers.get("content-length", "0")
    if not (announced.isascii() and announced.isdigit()):
        raise HTTPException(400, f"a content-length of {announced!r:.40}")
    if len(announced) > 18 or int(announced) > most:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise too_large
        parts.append(part)
    return b"".join(parts)


def _run(graph: LoadedGraph, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The results on the CPU, as they are now: the next call may write others to where they lie.

    Raises:
        BadRequest: the inputs are not what the graph takes, or beyond what it can index.
    """
    try:
        results = graph.run_named({name: x.to(graph.device) for name, x in inputs.items()})
    except (ValueError, IndexError) as error:
        raise BadRequest(str(error)) from None
    except RuntimeError as error:  # what an op on the CPU says of values, as of an index
        if graph.device.type != "cpu":
            raise
        raise BadRequest(str(error)) from None
    return {name: y.detach().to("cpu", copy=True) for name, y in results.items()}


def _listed(info: TensorInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "datatype": NAMES.get(info.dtype, str(info.dtype)),
        "shape": list(info.shape),
    }


# requests and responses


def read_request(
    body: bytes, header: str | None, known: Sequence[TensorInfo]
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A request's JSON, and its tensors by name.

    Args:
        header: bytes of the JSON, where tensors follow it. known: the graph's inputs.

    Raises:
        BadRequest: it is malformed.
    """
    if header is not None and not (header.isascii() and header.isdigit() and len(header) < 18):
        raise BadRequest(f"{HEADER} is {header!r:.40}")
    length = len(body) if header is None else int(header)
    if length > len(body):
        raise BadRequest(f"{HEADER} is {length}, and the body has {len(body)} bytes")
    try:
        asked = json.loads(body[:length], parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # also numbers of too many digits
        raise BadRequest(f"the request is not JSON: {error}") from None
    _check(asked)
    tensors: dict[str, torch.Tensor] = {}
    at = length
    wanted = {info.name: info for info in known}
    for entry in asked["inputs"]:
        name = entry["name"]
        if name not in wanted:
            raise BadRequest(f"there is no input {name!r:.80}; known: {', '.join(wanted)}")
        if name in tensors:
            raise BadRequest(f"input {name!r} is given twice")
        size = entry.get("parameters", {}).get("binary_data_size")
        data = None
        if size is not None:
            if not _is_size(size) or size > len(body) - at:
                raise BadRequest(
                    f"input {name!r} announces {size!r:.40} bytes, {len(body) - at} are left"
                )
            data, at = body[at : at + size], at + size
        tensors[name] = _tensor(entry, data)
    if at != len(body):
        raise BadRequest(f"{len(body) - length} bytes follow the JSON, {at - length} are announced")
    return asked, tensors


def _no_number(text: str) -> Any:
    """NaN and Infinity are no JSON; tensors as bytes can hold them."""
    raise ValueError(f"{text} is no number")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def _check(asked: Any) -> None:
    """The JSON has the form of an inference request.

    Raises:
        BadRequest: it hasn't.
    """

    def wanted(holds: bool, what: str) -> None:
        if not holds:
            raise BadRequest(f"not an inference request: {what}")

    def parameters(of: dict[str, Any], what: str) -> None:
        wanted(type(of.get("parameters", {})) is dict, f"the parameters of {what} are no object")

    wanted(type(asked) is dict, "it is no object")
    wanted(type(asked.get("inputs")) is list, "it has no list 'inputs'")
    wanted(type(asked.get("id", "")) is str, "its 'id' is no string")
    wanted(asked.get("outputs") is None or type(asked["outputs"]) is list, "'outputs' is no list")
    parameters(asked, "the request")
    for kind in ("inputs", "outputs"):
        for n, entry in enumerate(asked.get(kind) or ()):
            what = f"{kind}[{n}]"
            wanted(type(entry) is dict, f"{what} is no object")
            wanted(type(entry.get("name")) is str, f"{what} has no name")
            parameters(entry, what)
            if kind == "inputs":
                shape = entry.get("shape")
                sizes = type(shape) is list and len(shape) <= 64 and all(map(_is_size, shape))
                wanted(sizes, f"{what} has no shape of sizes")
                wanted(type(entry.get("datatype")) is str, f"{what} has no datatype")


def _tensor(entry: dict[str, Any], data: bytes | None) -> torch.Tensor:
    name, shape, dtype = entry["name"], entry["shape"], DATATYPES.get(entry["datatype"])
    if dtype is None:
        raise BadRequest(f"input {name!r} has datatype {entry['datatype']!r:.40}")
    count = math.prod(shape)
    if data is None:
        flat = _flat(name, entry.get("data"), dtype)
        _compare(name, len(flat), shape, count)
        try:
            found = torch.tensor(flat, dtype=dtype)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise BadRequest(f"input {name!r}: {str(error).splitlines()[0]}") from None
    elif len(data) != count * dtype.itemsize:
        raise BadRequest(
            f"input {name!r} has {len(data)} bytes, shape {shape} has {count * dtype.itemsize}"
        )
    else:
        found = torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)[: len(data)].view(
            dtype
        )
    try:
        return found.reshape(shape)
    except RuntimeError:  # without elements, and of sizes whose product is beyond 64 bits
        raise BadRequest(f"input {name!r} has a shape that no tensor has: {shape}") from None


def _compare(name: str, elements: int, shape: list[int], count: int) -> None:
    if elements != count:
        raise BadRequest(f"input {name!r} has {elements} elements, shape {shape} has {count}")


def _flat(name: str, data: Any, dtype: torch.dtype) -> list[Any]:
    """The numbers of nested lists, each of a kind that the data type takes as it is.

    Raises:
        BadRequest: there is something else, as a NaN or a fraction where an integer belongs.
    """
    if type(data) is not list:
        raise BadRequest(f"input {name!r} has no list 'data'")
    found: list[Any] = []
    waiting = [iter(data)]
    while waiting:
        for item in waiting[-1]:
            if type(item) is list:
                waiting.append(iter(item))
                break
            found.append(item)
        else:
            waiting.pop()
    if dtype == torch.bool:
        good = all(type(x) is bool for x in found)
    elif dtype.is_floating_point:
        good = all(type(x) is float or (type(x) is int and abs(x) < 1 << 64) for x in found)
    else:
        limits = torch.iinfo(dtype)
        good = all(type(x) is int and limits.min <= x <= limits.max for x in found)
    if not good:
        raise BadRequest(f"input {name!r} has data that is no {str(dtype).removeprefix('torch.')}")
    return found


def write_response(
    name: str, asked: dict[str, Any], results: Mapping[str, torch.Tensor]
) -> tuple[bytes, bytes]:
    """A response's JSON, and the bytes that follow it."""
    all_binary = asked.get("parameters", {}).get("binary_data_output", False)
    wanted = asked.get("outputs") or [{"name": n} for n in results]
    listed, binary = [], []
    if len({entry["name"] for entry in wanted}) < len(wanted):
        raise BadRequest("an output is asked for twice")
    for entry in wanted:
        tensor = results.get(entry["name"])
        if tensor is None:
            raise BadRequest(
                f"there is no output {entry['name']!r:.80}; known: {', '.join(results)}"
            )
        if tensor.dtype not in NAMES:
            raise BadRequest(
                f"the protocol has no datatype for output {entry['name']!r} ({tensor.dtype})"
            )
        tensor = tensor.detach().contiguous()
        described: dict[str, Any] = {
            "name": entry["name"],
            "datatype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
        }
        if entry.get("parameters", {}).get("binary_data", all_binary):
            data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
            described["parameters"] = {"binary_data_size": len(data)}
            binary.append(data)
        else:
            described["data"] = tensor.reshape(-1).tolist()
        listed.append(described)
    head: dict[str, Any] = {"model_name": name, "model_version": "1", "outputs": listed}
    if "id" in asked:
        head["id"] = asked["id"]
    return json.dumps(head).encode(), b"".join(binary)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve saved graphs over HTTP.")
    parser.add_argument("models", nargs="+", metavar="NAME=DIR", help="a saved graph and its name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--key", metavar="FILE", help="the key that graphs must be signed with")
    options = parser.parse_args()
    key = None if options.key is None else read_key(Path(options.key))
    graphs = {}
    for text in options.models:
        name, equals, path = text.partition("=")
        if not equals:
            parser.error(f"{text!r} is not NAME=DIR")
        graphs[name] = load_graph(Path(path), key=key)
    uvicorn.run(create_app(graphs), host=options.host, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
