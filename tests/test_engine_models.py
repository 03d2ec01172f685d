"""Models of transformers, torchvision and timm (small, random weights) through each engine, and trained on XLA, beside
eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gflow as flow
from benchmarks.workloads.third_party import declare_torchvision_ops
from gflow import nn
from gflow.runtime.engines.load import load_code
from gflow.runtime.engines.packages import available

Make = Callable[[], torch.nn.Module]
Inputs = Callable[[], dict[str, Tensor]]

_WORDS = {
    "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
_DECODER = {
    k: v for k, v in _WORDS.items() if "dropout" not in k
} | {"num_key_value_heads": 2, "use_cache": False}  # fmt: skip
_IMAGES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32,
    "patch_size": 8, "num_labels": 3,
}  # fmt: skip


def _hf(kind: str, config: str, **options: Any) -> Make:
    def make() -> torch.nn.Module:
        declare_torchvision_ops()
        transformers = pytest.importorskip("transformers")
        return getattr(transformers, kind)(getattr(transformers, config)(**options))

    return make


def _vision(kind: str, **options: Any) -> Make:
    def make() -> torch.nn.Module:
        declare_torchvision_ops()
        models = pytest.importorskip("torchvision.models")
        return getattr(models, kind)(num_classes=5, **options)

    return make


def _timm(kind: str, **options: Any) -> Make:
    def make() -> torch.nn.Module:
        declare_torchvision_ops()
        return pytest.importorskip("timm").create_model(kind, num_classes=5, **options)

    return make


def _image() -> dict[str, Tensor]:
    return {"x": torch.randn(2, 3, 64, 64)}


def _ids() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 61, (2, 11))}


def _masked() -> dict[str, Tensor]:
    """A batch whose second row ends early."""
    return {
        **_ids(),
        "attention_mask": (torch.arange(11)[None] < torch.tensor([[11], [7]])).long(),
    }


def _both() -> dict[str, Tensor]:
    return {**_ids(), "decoder_input_ids": torch.randint(3, 61, (2, 7))}


def _pixels(size: int = 32) -> Inputs:
    return lambda: {"pixel_values": torch.randn(2, 3, size, size)}


_GPT2 = {"vocab_size": 61, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4, "use_cache": False,
         "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
_T5 = {"vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "use_cache": False,
       "decoder_start_token_id": 0}  # fmt: skip
_BART = {"vocab_size": 61, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 32,
         "use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
         "forced_eos_token_id": None}  # fmt: skip

MODELS: dict[str, tuple[Make, Inputs]] = {
    "GPT-2": (_hf("GPT2LMHeadModel", "GPT2Config", **_GPT2), _ids),
    "BERT": (_hf("BertForMaskedLM", "BertConfig", **_WORDS), _masked),
    "RoBERTa": (_hf("RobertaForMaskedLM", "RobertaConfig", **_WORDS), _masked),
    "ALBERT": (_hf("AlbertForMaskedLM", "AlbertConfig", **_WORDS, embedding_size=16), _masked),
    "DistilBERT": (_hf("DistilBertForMaskedLM", "DistilBertConfig", vocab_size=61, dim=32, n_layers=2, n_heads=4,
                       hidden_dim=48, max_position_embeddings=32), _masked),
    "Llama": (_hf("LlamaForCausalLM", "LlamaConfig", **_DECODER), _masked),
    "Mistral": (_hf("MistralForCausalLM", "MistralConfig", **_DECODER, sliding_window=5), _masked),
    "Qwen2": (_hf("Qwen2ForCausalLM", "Qwen2Config", **_DECODER), _ids),
    "Gemma": (_hf("GemmaForCausalLM", "GemmaConfig", **_DECODER, head_dim=8), _ids),
    "OPT": (_hf("OPTForCausalLM", "OPTConfig", vocab_size=61, hidden_size=32, num_hidden_layers=2,
                num_attention_heads=4, ffn_dim=48, max_position_embeddings=32, word_embed_proj_dim=32,
                use_cache=False, pad_token_id=0), _masked),
    "GPT-NeoX": (_hf("GPTNeoXForCausalLM", "GPTNeoXConfig", **{k: v for k, v in _DECODER.items()
                     if k != "num_key_value_heads"}), _ids),
    "T5": (_hf("T5ForConditionalGeneration", "T5Config", **_T5), _both),
    "BART": (_hf("BartForConditionalGeneration", "BartConfig", **_BART), _both),
    "ViT": (_hf("ViTForImageClassification", "ViTConfig", **_IMAGES), _pixels()),
    "DeiT": (_hf("DeiTForImageClassification", "DeiTConfig", **_IMAGES), _pixels()),
    "Swin": (_hf("SwinForImageClassification", "SwinConfig", image_size=32, patch_size=4, embed_dim=8, depths=[2, 2],
                 num_heads=[2, 4], window_size=4, num_labels=3), _pixels()),
    "SegFormer": (_hf("SegformerForSemanticSegmentation", "SegformerConfig", num_encoder_blocks=2, depths=[1, 1],
                      sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[7, 3], strides=[4, 2],
                      num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=16, num_labels=3), _pixels()),
    "ResNet": (_hf("ResNetForImageClassification", "ResNetConfig", num_labels=3, embedding_size=8,
                   hidden_sizes=[8, 16], depths=[1, 2], layer_type="bottleneck"), _pixels()),
    "RegNet": (_hf("RegNetForImageClassification", "RegNetConfig", num_labels=3, embedding_size=8,
                   hidden_sizes=[8, 16], depths=[1, 2], groups_width=4), _pixels()),
    "ConvNeXt": (_hf("ConvNextForImageClassification", "ConvNextConfig", num_labels=3, hidden_sizes=[8, 16],
                     depths=[1, 2], num_stages=2), _pixels()),
    "MobileNetV1": (_hf("MobileNetV1ForImageClassification", "MobileNetV1Config", num_labels=3, depth_multiplier=0.25,
                        image_size=32), _pixels()),
    "MobileNetV2": (_hf("MobileNetV2ForImageClassification", "MobileNetV2Config", num_labels=3, depth_multiplier=0.25,
                        image_size=32, output_stride=8), _pixels()),
    "PoolFormer": (_hf("PoolFormerForImageClassification", "PoolFormerConfig", num_labels=3, hidden_sizes=[8, 16],
                       depths=[1, 1], num_encoder_blocks=2, patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1]),
                   _pixels()),
    "torchvision ResNet-18": (_vision("resnet18"), _image),
    "torchvision MobileNetV3": (_vision("mobilenet_v3_small", width_mult=0.5), _image),
    "torchvision ShuffleNetV2": (_vision("shufflenet_v2_x0_5"), _image),
    "torchvision SqueezeNet": (_vision("squeezenet1_1"), _image),
    "torchvision MNASNet": (_vision("mnasnet0_5"), _image),
    "timm ViT": (_timm("vit_tiny_patch16_224", img_size=64, depth=2), _image),
    "timm GhostNet": (_timm("ghostnet_050"), _image),
    "timm RegNet": (_timm("regnetx_002"), _image),
    "timm LCNet": (_timm("lcnet_050"), _image),
    "BiT": (_hf("BitForImageClassification", "BitConfig", num_labels=3, embedding_size=8, hidden_sizes=[8, 16],
                depths=[1, 1], num_groups=4), _pixels()),
}  # fmt: skip


def first_tensor(out: Any) -> Tensor:
    """The logits."""
    return out if isinstance(out, Tensor) else out.logits


class Predict(nn.Graph):
    def __init__(self, model: torch.nn.Module, engine: str) -> None:
        super().__init__()
        self.model = model
        getattr(self.config, f"enable_{engine}")()

    def build(self, **inputs: Tensor) -> Tensor:
        return first_tensor(self.model(**inputs))


class Train(nn.Graph):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
        self.config.enable_xla_jit()

    def build(self, **inputs: Tensor) -> Tensor:
        loss = first_tensor(self.model(**inputs)).square().mean()
        loss.backward()
        return loss


def made(name: str) -> tuple[torch.nn.Module, Inputs]:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model = make()
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # running statistics are those of what it has seen
    if norms:  # with those of an untrained model, what deep ones give is next to nothing
        with torch.no_grad():
            model.train()(**inputs())
    return model, inputs


def by_engine(name: str, engine: str) -> tuple[float, Any]:
    """The largest difference to eager, of the largest element, and `explain()`."""
    model, inputs = made(name)
    x = inputs()
    graph = Predict(model.eval(), engine)
    with torch.no_grad():
        want = first_tensor(model(**x))
        error = float((graph(**x) - want).abs().max() / want.abs().max())
    return error, graph.explain()


def check_inference(name: str, engine: str) -> None:
    """Results, and that products are with the engine, but where a region is worth no call."""
    if not available(engine.removesuffix("_jit")):
        pytest.skip(f"{engine} is not installed")
    error, report = by_engine(name, engine)
    assert error < 1e-4
    assert report.engines
    kept = [s for s in report.stayed if "its region would save" not in s.why]
    assert not [s for s in kept if s.op in ("matmul", "convolution", "attention")]


def check_training(name: str, steps: int) -> None:
    """Losses and parameters, beside the same steps eagerly."""
    if not available("xla"):
        pytest.skip("jaxlib is not installed")
    model, inputs = made(name)
    model.eval()  # no dropout: eager draws other numbers
    x, eager = inputs(), copy.deepcopy(model)
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.05, momentum=0.9)
    graph = Train(model)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = first_tensor(eager(**x)).square().mean()
        loss.backward()
        optimizer.step()
        assert float(graph(**x)) == pytest.approx(loss.item(), rel=1e-4)
    for ours, theirs in zip(model.parameters(), eager.parameters()):
        # as a whole: where an activation is cut off (ReLU6), rounding may decide on an element's gradient
        allowed = 1e-3 * theirs.norm() + 1e-4 * theirs.numel() ** 0.5
        assert (ours - theirs).norm() < allowed


@pytest.mark.parametrize(
    ("name", "engine"), [("Llama", "xla_jit"), ("T5", "onnxruntime"), ("ResNet", "openvino")]
)
def test_inference(name: str, engine: str) -> None:
    check_inference(name, engine)


def test_training() -> None:
    check_training("Mistral", 3)


@pytest.mark.sweep
@pytest.mark.parametrize("engine", ["xla_jit", "onnxruntime", "openvino"])
@pytest.mark.parametrize("name", list(MODELS))
def test_inference_of_all(name: str, engine: str) -> None:
    check_inference(name, engine)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", ["GPT-2", "BERT", "Llama", "T5", "ViT", "Swin", "ConvNeXt", "MobileNetV2"]
)
def test_training_of_many(name: str) -> None:
    check_training(name, 5)


def test_file(tmp_path: Path) -> None:
    """GPT-2, whose masks are made of running sums, as files: ONNX Runtime runs the one, XLA reads the other."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model, inputs = made("GPT-2")
    x = inputs()
    graph = Predict(model.eval(), "onnxruntime")
    with torch.no_grad():
        want = graph(**x)
        flow.save(graph, tmp_path / "model.onnx", format="onnx")
        flow.save(graph, tmp_path / "model.stablehlo", format="stablehlo")
    session = onnxruntime.InferenceSession(
        tmp_path / "model.onnx", providers=["CPUExecutionProvider"]
    )
    (name,) = (i.name for i in session.get_inputs())
    (found,) = session.run(None, {name: x["input_ids"].numpy()})
    torch.testing.assert_close(torch.from_numpy(found), want, rtol=1e-4, atol=1e-5)
    if available("xla"):
        load_code("xla", (tmp_path / "model.stablehlo").read_bytes())
