"""Models of the `transformers` library at small but realistic sizes, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.workloads.third_party import declare_torchvision_ops


@dataclass(frozen=True)
class Model:
    """A class of `transformers`, its configuration, and a batch. quick: options of a tiny one."""

    description: str
    kind: str
    config: str
    options: dict[str, Any]
    quick: dict[str, Any]
    batch: Callable[[bool], dict[str, Tensor]]


@dataclass
class Work:
    module: torch.nn.Module
    batch: dict[str, Tensor]


def make_work(name: str, quick: bool = False, training: bool = False) -> Work:
    """The same parameters and inputs at every call. No dropout: peers draw different masks."""
    import transformers

    declare_torchvision_ops()

    model = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, model.config)(
        **{**model.options, **(model.quick if quick else {})}
    )
    module = getattr(transformers, model.kind)(config).train(training)
    batch = model.batch(quick)
    if not training:
        del batch["labels"]
        if model.kind.startswith("T5"):
            batch["decoder_input_ids"] = batch["input_ids"].clone()
    return Work(module, batch)


_VOCABULARY = 8192


def _text(
    rows: int, tokens: int, mask: bool = False, vocabulary: int = _VOCABULARY
) -> Callable[[bool], dict[str, Tensor]]:
    def make(quick: bool) -> dict[str, Tensor]:
        shape = (2, 16) if quick else (rows, tokens)
        ids = torch.randint(3, 60 if quick else vocabulary, shape)
        batch = {"input_ids": ids, "labels": ids.clone()}
        if mask:
            ends = torch.linspace(shape[1] // 2, shape[1], shape[0]).long()
            batch["attention_mask"] = (torch.arange(shape[1]) < ends[:, None]).long()
        return batch

    return make


def _pictures(rows: int, size: int) -> Callable[[bool], dict[str, Tensor]]:
    def make(quick: bool) -> dict[str, Tensor]:
        shape = (2, 3, 32, 32) if quick else (rows, 3, size, size)
        return {"pixel_values": torch.randn(shape), "labels": torch.randint(10, shape[:1])}

    return make


_BERT = {
    "vocab_size": _VOCABULARY, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 1024, "max_position_embeddings": 128, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
_VIT = {k: v for k, v in _BERT.items() if k not in ("vocab_size", "max_position_embeddings")}
_TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}

#: the model whose break-even with eager is measured
CHARACTERS = "gpt2_characters"

MODELS = {
    "gpt2": Model(
        "GPT-2, 4 layers of 256, 4×128 tokens",
        "GPT2LMHeadModel", "GPT2Config",
        {"vocab_size": _VOCABULARY, "n_positions": 128, "n_embd": 256, "n_layer": 4, "n_head": 4,
         "use_cache": False, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
         "bos_token_id": 1, "eos_token_id": 2},
        {"vocab_size": 61, "n_embd": 32, "n_layer": 1, "n_head": 2},
        _text(4, 128),
    ),
    "llama": Model(
        "Llama, 4 layers of 256, 4×128 tokens",
        "LlamaForCausalLM", "LlamaConfig",
        {"vocab_size": _VOCABULARY, "hidden_size": 256, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 688,
         "max_position_embeddings": 128, "use_cache": False},
        {**_TINY, "vocab_size": 61},
        _text(4, 128),
    ),
    "bert": Model(
        "BERT, 4 layers of 256, 4×128 tokens, padded",
        "BertForMaskedLM", "BertConfig", _BERT, {**_TINY, "vocab_size": 61}, _text(4, 128, mask=True),
    ),
    "t5": Model(
        "T5, 3 + 3 layers of 256, 4×128 tokens",
        "T5ForConditionalGeneration", "T5Config",
        {"vocab_size": _VOCABULARY, "d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 3,
         "num_heads": 4, "dropout_rate": 0.0, "use_cache": False, "decoder_start_token_id": 0},
        {"vocab_size": 61, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_heads": 2},
        _text(4, 128),
    ),
    "vit": Model(
        "ViT, 4 layers of 256, 8 pictures of 96×96 in patches of 8×8",
        "ViTForImageClassification", "ViTConfig",
        {**_VIT, "image_size": 96, "patch_size": 8, "num_labels": 10},
        {**_TINY, "image_size": 32},
        _pictures(8, 96),
    ),
    "mobilenet_v2": Model(
        "MobileNetV2, 16 pictures of 96×96",
        "MobileNetV2ForImageClassification", "MobileNetV2Config",
        {"num_labels": 10, "image_size": 96, "classifier_dropout_prob": 0.0},
        {"image_size": 32, "depth_multiplier": 0.25},
        _pictures(16, 96),
    ),
    "resnet": Model(
        "ResNet, bottlenecks 2+2+2+2, 8 pictures of 96×96",
        "ResNetForImageClassification", "ResNetConfig",
        {"num_labels": 10, "depths": [2, 2, 2, 2], "hidden_sizes": [128, 256, 512, 1024],
         "embedding_size": 64},
        {"depths": [1, 1], "hidden_sizes": [16, 32], "embedding_size": 8},
        _pictures(8, 96),
    ),
    "convnext": Model(
        "ConvNeXt, 2+2+4+2 blocks, 8 pictures of 96×96",
        "ConvNextForImageClassification", "ConvNextConfig",
        {"num_labels": 10, "depths": [2, 2, 4, 2], "hidden_sizes": [48, 96, 192, 384],
         "image_size": 96, "drop_path_rate": 0.0},
        {"depths": [1, 1], "hidden_sizes": [8, 16], "num_stages": 2},
        _pictures(8, 96),
    ),
    CHARACTERS: Model(
        "GPT-2 of characters, 4 layers of 192, 16×128 tokens",
        "GPT2LMHeadModel", "GPT2Config",
        {"vocab_size": 65, "n_positions": 128, "n_embd": 192, "n_layer": 4, "n_head": 6,
         "use_cache": False, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
         "bos_token_id": 1, "eos_token_id": 2},
        {"n_embd": 32, "n_layer": 1, "n_head": 2},
        _text(16, 128, vocabulary=65),
    ),
}  # fmt: skip
