"""A model repository for Triton Inference Server's Python backend, from a saved graph.

    python examples/triton_repository.py 1/model repository --name digits
    tritonserver --model-repository=repository

writes

    repository/digits/config.pbtxt       inputs and outputs
    repository/digits/1/model.py         loads the graph with gflow.runtime and runs it
    repository/digits/1/model/           the saved graph

The server's Python needs gflow installed. The graph is saved for fixed shapes, so the server does not batch
(`max_batch_size: 0`): the shapes in the configuration are whole ones.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch

from gflow.runtime.stored.artifact import load_graph
from gflow.runtime.stored.loaded_graph import LoadedGraph
from gflow.runtime.stored.signature import TensorInfo

TYPES = {
    torch.bool: "TYPE_BOOL", torch.uint8: "TYPE_UINT8", torch.uint16: "TYPE_UINT16",
    torch.uint32: "TYPE_UINT32", torch.uint64: "TYPE_UINT64", torch.int8: "TYPE_INT8",
    torch.int16: "TYPE_INT16", torch.int32: "TYPE_INT32", torch.int64: "TYPE_INT64",
    torch.float16: "TYPE_FP16", torch.bfloat16: "TYPE_BF16", torch.float32: "TYPE_FP32",
    torch.float64: "TYPE_FP64",
}  # fmt: skip

MODEL = '''"""Runs a graph that gflow saved; Triton's Python backend loads this file."""

import os
from pathlib import Path

import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack, to_dlpack

from gflow.runtime.stored.artifact import load_graph


class TritonPythonModel:
    def initialize(self, args):
        version = os.path.join(args["model_repository"], args["model_version"])
        self.graph = load_graph(Path(version) / "model")

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        try:
            inputs = {t.name(): from_dlpack(t.to_dlpack()) for t in request.inputs()}
            results = self.graph.run_named(inputs)
        except ValueError as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor.from_dlpack(name, to_dlpack(t)) for name, t in results.items()]
        )
'''


def config(name: str, graph: LoadedGraph) -> str:
    """The text of config.pbtxt."""
    lines = [f'name: "{name}"', 'backend: "python"', "max_batch_size: 0"]
    for kind, infos in (("input", graph.inputs), ("output", graph.outputs)):
        lines += [_tensor(kind, info) for info in infos]
    return "\n".join([*lines, "instance_group [{ kind: KIND_CPU }]", ""])


def _tensor(kind: str, info: TensorInfo) -> str:
    dims = ", ".join(map(str, info.shape or (1,)))
    scalar = "" if info.shape else ", reshape: { shape: [ ] }"
    return f'{kind} [{{ name: "{info.name}", data_type: {TYPES[info.dtype]}, dims: [ {dims} ]{scalar} }}]'


def write_repository(saved: Path, repository: Path, name: str) -> Path:
    """Write the layout; returns the model's folder."""
    graph = load_graph(saved)
    folder = repository / name
    version = folder / "1"
    version.mkdir(parents=True)
    shutil.copytree(saved, version / "model")
    (version / "model.py").write_text(MODEL, encoding="utf-8")
    (folder / "config.pbtxt").write_text(config(name, graph), encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("saved", type=Path, help="the saved graph")
    parser.add_argument("repository", type=Path)
    parser.add_argument("--name", required=True, help="the model's name in the repository")
    options = parser.parse_args()
    print(write_repository(options.saved, options.repository, options.name))


if __name__ == "__main__":
    main()
