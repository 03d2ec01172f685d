"""The serving example, with a real client, and the layout for Triton Inference Server."""

from __future__ import annotations

import http.client
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gflow as flow

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from examples import serve, triton_repository  # noqa: E402


class Model(flow.nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def build(self, x: Tensor) -> dict[str, Tensor]:
        y = self.model(x)
        return {"y": y, "best": y.argmax(1)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    graph, path = Model(), tmp_path_factory.mktemp("saved") / "model"
    graph(torch.zeros(2, 4))
    flow.save(graph, path)
    return path, graph


@pytest.fixture(scope="module")
def port(saved: tuple[Path, Model]) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    app = serve.create_app({"m": serve.load_graph(saved[0])}, largest_request=10_000)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=number, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield number
    server.should_exit = True
    thread.join()


def ask(
    port: int, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    names = {k.replace("_", "-"): v for k, v in headers.items()}
    connection.request("GET" if body is None else "POST", path, body, names)
    answer = connection.getresponse()
    found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    connection.close()
    return found


def as_json(x: np.ndarray, **more: Any) -> bytes:
    given = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}
    return json.dumps({"inputs": [given], **more}).encode()


def test_health_and_metadata(port: int) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/m/ready", "/v2"):
        assert ask(port, path)[0] == 200
    status, _, body = ask(port, "/v2/models/m")
    assert status == 200
    assert json.loads(body) == {
        "name": "m",
        "versions": ["1"],
        "platform": "gflow",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 4]}],
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [2, 3]},
            {"name": "best", "datatype": "INT64", "shape": [2]},
        ],
    }


def test_json_and_binary(port: int, saved: tuple[Path, Model]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 4), dtype=np.float32)
    wanted = saved[1](torch.from_numpy(x))
    status, _, body = ask(port, "/v2/models/m/versions/1/infer", as_json(x, id="7"))
    assert status == 200
    answer = json.loads(body)
    assert answer["id"] == "7"
    y = torch.tensor(answer["outputs"][0]["data"]).reshape(2, 3)
    assert torch.equal(y, wanted["y"])  # JSON has the digits that a float32 needs
    assert answer["outputs"][1]["data"] == wanted["best"].tolist()

    given = {"name": "x", "shape": [2, 4], "datatype": "FP32"}
    given["parameters"] = {"binary_data_size": x.nbytes}
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": [given], "outputs": outputs}).encode()
    length = {"Inference_Header_Content_Length": str(len(head))}
    status, headers, body = ask(port, "/v2/models/m/infer", head + x.tobytes(), **length)
    assert status == 200
    at = int(headers["inference-header-content-length"])
    described = json.loads(body[:at])["outputs"]
    assert described[0]["parameters"] == {"binary_data_size": 24}
    assert body[at:] == wanted["y"].numpy().tobytes()


def test_bad_requests(port: int) -> None:
    def error(body: bytes, path: str = "/v2/models/m/infer", **headers: str) -> tuple[int, str]:
        status, _, said = ask(port, path, body, **headers)
        return status, json.loads(said)["error"]

    x = np.zeros((2, 4), np.float32)
    assert error(as_json(x), "/v2/models/none/infer") == (
        404,
        "there is no model 'none' of that version",
    )
    assert error(b"{")[0] == 400
    assert error(b"[]")[0] == 400
    status, said = error(as_json(np.zeros((3, 4), np.float32)))
    assert (status, "[3, 4], [2, 4] expected" in said) == (400, True)
    status, said = error(as_json(x).replace(b"FP32", b"FP64"))
    assert (status, "torch.float64" in said) == (400, True)
    status, said = error(as_json(x).replace(b"[2, 4]", b"[2, 5]"))
    assert (status, "8 elements, shape [2, 5] has 10" in said) == (400, True)
    status, said = error(as_json(x, outputs=[{"name": "z"}]))
    assert (status, "there is no output 'z'" in said) == (400, True)
    short = json.dumps({"inputs": [{"name": "x", "shape": [2, 4], "datatype": "FP32",
                                    "parameters": {"binary_data_size": 32}}]}).encode()  # fmt: skip
    length = str(len(short))
    assert error(short + bytes(8), Inference_Header_Content_Length=length)[0] == 400
    assert error(bytes(20_000))[0] == 413
    assert ask(port, "/v2/health/live")[0] == 200


def _request(**changes: Any) -> dict[str, Any]:
    entry = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": [0.0] * 8}
    return {"inputs": [{**entry, **changes}]}


_GOOD = json.dumps(_request())
MALFORMED: dict[str, str | bytes] = {
    "nothing": "",
    "no UTF-8": b'{"inputs": "\xff\xfe"}',
    "deep": "[" * 4000 + "]" * 4000,
    "deep data": _GOOD.replace("0.0, ", "[" * 500 + "]" * 500 + ", ", 1),
    "digits": _GOOD.replace("0.0", "9" * 5000, 1),
    "huge integer": _GOOD.replace("0.0", "9" * 400, 1),
    "NaN": _GOOD.replace("0.0", "NaN", 1),
    "infinity": _GOOD.replace("0.0", "-Infinity", 1),
    "text as a number": json.dumps(_request(data=["0"] * 8)),
    "truth as a number": json.dumps(_request(data=[True] * 8)),
    "null": json.dumps(_request(data=[None] * 8)),
    "no data": json.dumps(_request(data=None)),
    "data of another kind": json.dumps(_request(data={"0": 1})),
    "few data": json.dumps(_request(data=[0.0] * 7)),
    "shape as text": json.dumps(_request(shape="24")),
    "shape of fractions": json.dumps(_request(shape=[2.0, 4.0])),
    "negative shape": json.dumps(_request(shape=[-2, -4])),
    "endless shape": json.dumps(_request(shape=[1 << 62, 1 << 62])),
    "strides beyond 64 bits": json.dumps(_request(shape=[1 << 47] * 60 + [0], data=[])),
    "many dimensions": json.dumps(_request(shape=[1] * 1000)),
    "datatype": json.dumps(_request(datatype="FP33")),
    "datatype of another kind": json.dumps(_request(datatype=["FP32"])),
    "another datatype": json.dumps(_request(datatype="INT64", data=[0] * 8)),
    "fraction as an integer": json.dumps(_request(datatype="INT32", data=[0.5] * 8)),
    "integer out of range": json.dumps(_request(datatype="UINT8", data=[256] * 8)),
    "name of another kind": json.dumps(_request(name=7)),
    "another name": json.dumps(_request(name="y")),
    "twice": json.dumps({"inputs": _request()["inputs"] * 2}),
    "inputs of another kind": '{"inputs": {"x": 1}}',
    "no inputs": "{}",
    "input of another kind": '{"inputs": [7]}',
    "parameters of another kind": json.dumps(_request(parameters=[1])),
    "announced bytes": json.dumps(_request(parameters={"binary_data_size": -1})),
    "announced text": json.dumps(_request(parameters={"binary_data_size": "8"})),
    "outputs of another kind": json.dumps({**_request(), "outputs": 5}),
    "output of another kind": json.dumps({**_request(), "outputs": ["y"]}),
    "output twice": json.dumps({**_request(), "outputs": [{"name": "output"}] * 2}),
    "id of another kind": json.dumps({**_request(), "id": {}}),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_requests(port: int, what: str) -> None:
    given = MALFORMED[what]
    body = given if isinstance(given, bytes) else given.encode()
    status, _, said = ask(port, "/v2/models/m/infer", body)
    assert status in (400, 413) if len(body) > 10_000 else status == 400, said
    assert json.loads(said)["error"]


@pytest.mark.parametrize("length", ["-1", "x", "99999999999999999999", "²"])
def test_malformed_headers(port: int, length: str) -> None:
    header = {"Inference_Header_Content_Length": length}
    try:
        status, _, said = ask(port, "/v2/models/m/infer", _GOOD.encode(), **header)
    except UnicodeEncodeError:
        return  # no client sends it
    assert (status, "inference-header" in said.decode()) == (400, True)


def test_bodies_count_as_they_come(port: int) -> None:
    """A body in chunks announces no length."""

    def pieces() -> Iterator[bytes]:
        for _ in range(100):
            yield bytes(1000)

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", "/v2/models/m/infer", pieces(), encode_chunked=True,
                           headers={"Transfer-Encoding": "chunked"})  # fmt: skip
        status = connection.getresponse().status
    except (BrokenPipeError, ConnectionResetError):
        status = 413  # the server had heard enough
    finally:
        connection.close()
    assert status == 413
    assert ask(port, "/v2/models/m/infer", _GOOD.encode())[0] == 200


def test_concurrent_clients(port: int, saved: tuple[Path, Model]) -> None:
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal((2, 4), dtype=np.float32) for _ in range(120)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda x: ask(port, "/v2/models/m/infer", as_json(x)), inputs))
    assert {status for status, _, _ in answers} == {200}
    for x, (_, _, body) in zip(inputs, answers):
        found = torch.tensor(json.loads(body)["outputs"][0]["data"]).reshape(2, 3)
        assert torch.equal(found, saved[1](torch.from_numpy(x))["y"])


def test_triton_repository(
    saved: tuple[Path, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layout, and its model.py with a stand-in for the module that the server provides."""
    folder = triton_repository.write_repository(saved[0], tmp_path, "m")
    text = (folder / "config.pbtxt").read_text()
    assert 'name: "m"\nbackend: "python"\nmax_batch_size: 0\n' in text
    assert 'input [{ name: "x", data_type: TYPE_FP32, dims: [ 2, 4 ] }]' in text
    assert re.findall(r'output \[\{ name: "(\w+)", data_type: (\w+)', text) == [
        ("y", "TYPE_FP32"),
        ("best", "TYPE_INT64"),
    ]

    class Held:
        def __init__(self, name: str, tensor: Tensor) -> None:
            self._name, self.tensor = name, tensor

        def name(self) -> str:
            return self._name

        def to_dlpack(self) -> Any:
            return torch.utils.dlpack.to_dlpack(self.tensor)

        @staticmethod
        def from_dlpack(name: str, capsule: Any) -> Held:
            return Held(name, torch.utils.dlpack.from_dlpack(capsule))

    class Request:
        def __init__(self, x: Tensor) -> None:
            self.x = x

        def inputs(self) -> list[Held]:
            return [Held("x", self.x)]

    class Answer:
        def __init__(self, outputs: Any = (), error: Any = None) -> None:
            self.outputs, self.error = outputs, error

    utils: Any = ModuleType("triton_python_backend_utils")
    utils.Tensor, utils.InferenceResponse, utils.TritonError = Held, Answer, str
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    space: dict[str, Any] = {}
    exec((folder / "1" / "model.py").read_text(), space)
    model = space["TritonPythonModel"]()
    model.initialize({"model_repository": str(folder), "model_version": "1"})
    x = torch.randn(2, 4)
    good, bad = model.execute([Request(x), Request(x[:1])])
    assert torch.equal(good.outputs[0].tensor, saved[1](x)["y"])
    assert "has shape [1, 4]" in bad.error
