"""Names of OneFlow that gflow lacks, each with a sentence that says what to use instead."""

from __future__ import annotations

import torch

_READERS = "is a reader of OneFlow's record files; load data with torch.utils.data.DataLoader"
_QUANTIZED = "is a part of OneFlow's quantization, which graphs do not compile; torch.ao.quantization prepares modules"
_FUSED = (
    "is a plain module and an activation in one; write the plain modules, which the compiler fuses"
)
_RDMA = "is not there: torch.distributed's backend chooses the transport"

#: flow.X
FLOW = {
    "nms": "is a function of torchvision: torchvision.ops.nms(boxes, scores, iou_threshold)",
    "roc_auc_score": "is a function of scikit-learn: sklearn.metrics.roc_auc_score(label, score)",
    "one_embedding": "(embedding tables beyond a device's memory) is not there; use flow.nn.Embedding, with "
    "is_sparse=True of add_optimizer for tables of which a step looks up few rows",
    "comm": "is torch.distributed here: flow.distributed.all_reduce(x), and so on; in build() as well",
    "boxing": "is not there: docs/many_devices.md says how collectives are chosen",
    "mock_torch": "is not needed: gflow's tensors and modules are PyTorch's",
}

#: flow.env.X
ENV = {
    "init_rdma": _RDMA,
    "rdma_is_initialized": _RDMA,
    "all_device_placement": "is not there; write flow.placement(kind, ranks=range(flow.env.get_world_size()))",
}

_READER_NAMES = (
    "COCOReader", "CoinFlip", "CropMirrorNormalize", "OFRecordBytesDecoder", "OFRecordImageDecoder",
    "OFRecordImageDecoderRandomCrop", "OFRecordRawDecoder", "OFRecordReader",
)  # fmt: skip
_QUANTIZED_NAMES = (
    "FakeQuantization", "MinMaxObserver", "MovingAverageMinMaxObserver", "QatConv1d", "QatConv2d", "QatConv3d",
    "Quantization",
)  # fmt: skip

#: flow.nn.X
NN = {
    **dict.fromkeys(_READER_NAMES, _READERS),
    **dict.fromkeys(_QUANTIZED_NAMES, _QUANTIZED),
    **dict.fromkeys(
        ("FusedBatchNorm1d", "FusedBatchNorm2d", "FusedBatchNorm3d", "FusedMLP"), _FUSED
    ),
    "CombinedMarginLoss": "is not there; write the margin in build(), with flow.nn.functional.cross_entropy behind it",
}

_MODULE = "is a method of modules, and a graph has none of its own"

#: graph.X: attributes that authors look for on a graph
GRAPH = {
    "eval": f"{_MODULE}: call eval() on the graph's modules (graph.model.eval()), and the next call of the graph runs "
    "the program for that mode",
    "train": f"{_MODULE}: call train() on the graph's modules (graph.model.train()); graph.training says whether it "
    "has an optimizer",
    "parameters": f"{_MODULE}: graph.model.parameters() are those of the module graph.model",
    "named_parameters": f"{_MODULE}: graph.model.named_parameters() are those of the module graph.model",
    "buffers": f"{_MODULE}: graph.model.buffers() are those of the module graph.model",
    "modules": f"{_MODULE}: graph.model.modules() are those of the module graph.model",
    "to": f"{_MODULE}: call to() on the graph's modules (graph.model.to(nn.Module).to('cuda')) before the graph is "
    "called",
    "cuda": f"{_MODULE}: call cuda() on the graph's modules before the graph is called",
    "cpu": f"{_MODULE}: call cpu() on the graph's modules",
    "half": f"{_MODULE}: graph.config.enable_amp() computes in half precision and keeps parameters in float32",
    "forward": "is build() in a graph: define build(), and call the graph itself",
    "zero_grad": "is not needed: gradients of a graph live for one call",
    "backward": "is a method of tensors: call loss.backward() in build()",
    "step": "is done by each call of a training graph; graph.state_dict()['graph.step'] counts them",
    "requires_grad_": f"{_MODULE}: graph.model.requires_grad_(False) freezes the parameters of graph.model",
    "apply": f"{_MODULE}: graph.model.apply(function) goes through the module graph.model",
    "optimizers": "are known to who added them; graph.learning_rates() has their learning rates",
}


def of_graph(name: str) -> str | None:
    """The sentence for an attribute that a graph lacks; None if there is none."""
    if name in GRAPH:
        return GRAPH[name]
    if not name.startswith("_") and hasattr(torch.nn.Module, name):
        return f"{_MODULE}: graph.model.{name} is that of the module graph.model"
    return None
