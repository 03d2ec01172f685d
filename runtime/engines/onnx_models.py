"""ONNX models with values for some of their inputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .packages import require

#: the most bytes of a protocol-buffers file
_MOST_BYTES = 2_000_000_000


def with_values(code: bytes, values: Mapping[int, torch.Tensor]) -> bytes:
    """A model with tensors for some of its inputs, by their numbers.

    Raises:
        EngineUnavailable: onnx is not installed.
        RuntimeError: they are too large for one file.
    """
    require("onnx")
    # start-up: loaded with the first program of an engine
    import onnx
    from onnx import numpy_helper

    if sum(x.nbytes for x in values.values()) + len(code) > _MOST_BYTES:
        raise RuntimeError(
            "the frozen parameters have more bytes than an ONNX model can hold; leave config.freeze() out"
        )
    model = onnx.load_from_string(code)
    inputs = list(model.graph.input)
    del model.graph.input[:]
    for n, entry in enumerate(inputs):
        x = values.get(n)
        if x is None:
            model.graph.input.append(entry)
            continue
        if x.dtype == torch.bool and entry.type.tensor_type.elem_type == onnx.TensorProto.UINT8:
            x = x.view(torch.uint8)
        array = x.detach().contiguous().numpy()
        model.graph.initializer.append(numpy_helper.from_array(array, entry.name))
    return model.SerializeToString()
