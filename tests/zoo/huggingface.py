"""Models of the `transformers` library from small configurations with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.workloads.third_party import declare_torchvision_ops

from .case import Case, Tensor, adamw


def _model(kind: str, config: str, **options: Any) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        import transformers

        declare_torchvision_ops()

        words = {"return_dict": True, **options}
        return getattr(transformers, kind)(getattr(transformers, config)(**words))

    return make


def _ids(**extra: Any) -> Callable[[], tuple[Any, ...]]:
    def inputs() -> tuple[Any, ...]:
        ids = torch.randint(3, 61, (2, 11))
        batch = {"input_ids": ids, "labels": ids.clone()}
        if extra.get("mask"):
            batch["attention_mask"] = (torch.arange(11)[None] < torch.tensor([[11], [7]])).long()
        return (batch,)

    return inputs


def _pixels(size: int = 32, batch: int = 2) -> Callable[[], tuple[Any, ...]]:
    return lambda: (
        {"pixel_values": torch.randn(batch, 3, size, size), "labels": torch.randint(3, (batch,))},
    )


def _loss(model: torch.nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Any]:
    out = model(**batch)
    return out.loss, out.logits


_TEXT = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
}
_GPT2 = {
    "vocab_size": 61, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4, "use_cache": False,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_LLAMA = {
    "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 32,
    "use_cache": False,
}  # fmt: skip
_T5 = {
    "vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
    "dropout_rate": 0.0, "use_cache": False, "decoder_start_token_id": 0,
}  # fmt: skip
_VIT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8, "num_labels": 3, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip

_DROPOUT = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}

#: the same with dropout of every kind that they have
RANDOM: list[Case] = [
    Case("GPT-2", _model("GPT2LMHeadModel", "GPT2Config", **{**_GPT2, "resid_pdrop": 0.2,
         "embd_pdrop": 0.2, "attn_pdrop": 0.2}), _ids(), _loss, adamw),
    Case("BERT", _model("BertForMaskedLM", "BertConfig", **{**_TEXT, **_DROPOUT}), _ids(mask=True),
         _loss, adamw),
    Case("T5", _model("T5ForConditionalGeneration", "T5Config", **{**_T5, "dropout_rate": 0.2}),
         _ids(), _loss, adamw),
    Case("ConvNeXt", _model("ConvNextForImageClassification", "ConvNextConfig", num_labels=3,
         hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, drop_path_rate=0.5,
         layer_scale_init_value=1.0), _pixels(batch=8),
         _loss, adamw),
]  # fmt: skip

CASES: list[Case] = [
    Case("HF GPT-2", _model("GPT2LMHeadModel", "GPT2Config", **_GPT2), _ids(), _loss, adamw),
    Case("HF BERT", _model("BertForMaskedLM", "BertConfig", **_TEXT), _ids(mask=True), _loss, adamw),
    Case("HF Llama", _model("LlamaForCausalLM", "LlamaConfig", **_LLAMA), _ids(mask=True), _loss,
         adamw),
    Case("HF T5", _model("T5ForConditionalGeneration", "T5Config", **_T5), _ids(), _loss, adamw),
    Case("HF ViT", _model("ViTForImageClassification", "ViTConfig", **_VIT), _pixels(), _loss, adamw),
    Case("HF MobileNetV2", _model("MobileNetV2ForImageClassification", "MobileNetV2Config",
         num_labels=3, depth_multiplier=0.25, image_size=32, classifier_dropout_prob=0.0,
         output_stride=8), _pixels(32, 4), _loss, adamw),
    Case("HF ResNet", _model("ResNetForImageClassification", "ResNetConfig", num_labels=3,
         embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="bottleneck"),
         _pixels(), _loss, adamw),
    Case("HF ConvNeXt", _model("ConvNextForImageClassification", "ConvNextConfig", num_labels=3,
         hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, drop_path_rate=0.0),
         _pixels(), _loss, adamw),
]  # fmt: skip
