"""Architectures of timm, torchvision and transformers with random weights, at sizes at which float64 is quick."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.workloads.third_party import declare_torchvision_ops

CLASSES, VOCABULARY = 10, 512


@dataclass(frozen=True)
class Model:
    """kind: "convolution" or "transformer". make: the module, in training mode. inputs: a batch and its labels."""

    name: str
    kind: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[dict[str, Tensor], Tensor]]


def without_dropout(module: nn.Module) -> nn.Module:
    """In training mode, with nothing random: dropout that isn't a module is switched off by a configuration."""
    for m in module.modules():
        if isinstance(m, nn.modules.dropout._DropoutNd):
            m.p = 0.0
    return module.train()


def _pictures(batch: int, size: int, key: str) -> tuple[dict[str, Tensor], Tensor]:
    return {key: torch.randn(batch, 3, size, size)}, torch.randint(CLASSES, (batch,))


def _text(batch: int, tokens: int, decoder: bool) -> tuple[dict[str, Tensor], Tensor]:
    ids = torch.randint(3, VOCABULARY, (batch, tokens))
    given = {"input_ids": ids}
    if decoder:
        given["decoder_input_ids"] = ids.flip(1)
    return given, torch.randint(VOCABULARY, (batch * tokens,))


def _timm(name: str) -> nn.Module:
    declare_torchvision_ops()
    timm = importlib.import_module("timm")
    return without_dropout(timm.create_model(name, num_classes=CLASSES))


def _torchvision(name: str) -> nn.Module:
    declare_torchvision_ops()
    models = importlib.import_module("torchvision.models")
    return without_dropout(getattr(models, name)(num_classes=CLASSES, weights=None))


def _transformers(kind: str, config: str, options: dict[str, Any]) -> nn.Module:
    declare_torchvision_ops()
    transformers = importlib.import_module("transformers")
    made = getattr(transformers, config)(**options)
    return without_dropout(getattr(transformers, kind)(made))


def _convolutional(name: str, size: int = 32, source: Callable[[str], nn.Module] = _timm) -> Model:
    return Model(name, "convolution", partial(source, name), partial(_pictures, 8, size, "x"))


def _language(name: str, kind: str, config: str, decoder: bool = False, **options: Any) -> Model:
    common = {"vocab_size": VOCABULARY, "use_cache": False}
    make = partial(_transformers, kind, config, {**common, **options})
    return Model(name, "transformer", make, partial(_text, 2, 32, decoder))


_SIZES: dict[str, Any] = {
    "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 384,
    "max_position_embeddings": 64,
}  # fmt: skip

_VIT = {k: v for k, v in _SIZES.items() if k != "max_position_embeddings"}

MODELS = (
    _convolutional("resnet18", 64),
    _convolutional("resnet50"),
    _convolutional("resnet50_gn"),
    _convolutional("resnext50_32x4d"),
    _convolutional("densenet121"),
    _convolutional("mobilenetv2_100", 64),
    _convolutional("mobilenetv3_small_100", 64),
    _convolutional("efficientnet_b0"),
    _convolutional("tf_efficientnetv2_b0"),
    _convolutional("rexnet_100"),
    _convolutional("dla34"),
    _convolutional("regnetx_002"),
    _convolutional("regnety_002"),
    _convolutional("ghostnet_100"),
    _convolutional("mnasnet_small"),
    _convolutional("repvgg_a0"),
    _convolutional("skresnet18"),
    _convolutional("convnext_atto", 64),
    _convolutional("vgg11_bn", 32, _torchvision),
    _convolutional("shufflenet_v2_x0_5", 64, _torchvision),
    _language("gpt2", "GPT2LMHeadModel", "GPT2Config", n_positions=64, n_embd=128, n_layer=4, n_head=4,
              bos_token_id=1, eos_token_id=2),
    _language("llama", "LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2, **_SIZES),
    _language("mistral", "MistralForCausalLM", "MistralConfig", num_key_value_heads=2, sliding_window=16, **_SIZES),
    _language("qwen2", "Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=2, **_SIZES),
    _language("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", bos_token_id=1, eos_token_id=2, **_SIZES),
    _language("opt", "OPTForCausalLM", "OPTConfig", ffn_dim=384, word_embed_proj_dim=128, layerdrop=0.0,
              dropout=0.0, **_SIZES),
    _language("bert", "BertForMaskedLM", "BertConfig", **_SIZES),
    _language("roberta", "RobertaForMaskedLM", "RobertaConfig", **_SIZES),
    _language("t5", "T5ForConditionalGeneration", "T5Config", decoder=True, d_model=128, d_kv=32, d_ff=384,
              num_layers=2, num_heads=4, dropout_rate=0.0, decoder_start_token_id=0),
    Model("vit", "transformer",
          partial(_transformers, "ViTForImageClassification", "ViTConfig",
                  {**_VIT, "image_size": 64, "patch_size": 8, "num_labels": CLASSES}),
          partial(_pictures, 8, 64, "pixel_values")),
)  # fmt: skip
