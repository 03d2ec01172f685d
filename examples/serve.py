"""An HTTP server for saved graphs: the Open Inference Protocol (KServe v2), JSON and binary tensors.

    pip install gflow[serve]
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
from collections.abc import Mapping
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

from gflow.runtime.artifact import LoadedGraph, TensorInfo, load_graph

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
        if int(request.headers.get("content-length", 0)) > largest_request:
            raise HTTPException(413, f"a request may have {largest_request} bytes")
        body = await request.body()
        try:
            asked, inputs = read_request(body, request.headers.get(HEADER))
            results = await run_in_threadpool(graph.run_named, inputs)
            head, binary = write_response(request.path_params["name"], asked, results)
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        if not binary:
            return Response(head, media_type="application/json")
        headers = {HEADER: str(len(head))}
        return Response(head + binary, headers=headers, media_type="application/octet-stream")

    async def failed(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": error.detail}, error.status_code)

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


def _listed(info: TensorInfo) -> dict[str, Any]:
    return {"name": info.name, "datatype": NAMES[info.dtype], "shape": list(info.shape)}


# requests and responses


def read_request(body: bytes, header: str | None) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A request's JSON, and its tensors by name.

    Raises:
        BadRequest: it is malformed.
    """
    try:
        length = len(body) if header is None else int(header)
        asked = json.loads(body[:length])
        tensors, at = {}, length
        for entry in asked["inputs"]:
            size = entry.get("parameters", {}).get("binary_data_size")
            data = None
            if size is not None:
                data, at = body[at : at + size], at + size
            tensors[entry["name"]] = _tensor(entry, data)
    except BadRequest:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRequest(f"not an inference request: {error!r}") from None
    if at != len(body):
        raise BadRequest(f"{len(body) - length} bytes follow the JSON, {at - length} are announced")
    return asked, tensors


def _tensor(entry: dict[str, Any], data: bytes | None) -> torch.Tensor:
    name, shape = entry["name"], [int(s) for s in entry["shape"]]
    dtype = DATATYPES.get(entry["datatype"])
    if dtype is None or any(s < 0 for s in shape):
        raise BadRequest(f"input {name!r} has datatype {entry['datatype']} and shape {shape}")
    count = math.prod(shape)
    if data is None:
        found = torch.tensor(entry["data"], dtype=dtype).reshape(-1)
    elif len(data) % dtype.itemsize or not data:
        found = torch.empty(len(data) // dtype.itemsize, dtype=dtype)
    else:
        found = torch.frombuffer(bytearray(data), dtype=dtype)
    if found.numel() != count:
        raise BadRequest(f"input {name!r} has {found.numel()} elements, shape {shape} has {count}")
    return found.reshape(shape)


def write_response(
    name: str, asked: dict[str, Any], results: Mapping[str, torch.Tensor]
) -> tuple[bytes, bytes]:
    """A response's JSON, and the bytes that follow it."""
    all_binary = asked.get("parameters", {}).get("binary_data_output", False)
    wanted = asked.get("outputs") or [{"name": n} for n in results]
    listed, binary = [], []
    for entry in wanted:
        tensor = results.get(entry["name"])
        if tensor is None:
            raise BadRequest(f"there is no output {entry['name']!r}; known: {', '.join(results)}")
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
    options = parser.parse_args()
    graphs = {}
    for text in options.models:
        name, equals, path = text.partition("=")
        if not equals:
            parser.error(f"{text!r} is not NAME=DIR")
        graphs[name] = load_graph(Path(path))
    uvicorn.run(create_app(graphs), host=options.host, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
