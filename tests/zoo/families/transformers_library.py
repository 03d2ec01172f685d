"""The architectures of transformers, from small configurations with random weights.

Configurations and inputs are those of the library's own tests, where a checkout of them is at hand
(`transformers_tests`). Otherwise a configuration's sizes are known by their names, and what an architecture takes is
found by trying: token ids, images, sounds, and their combinations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .family import LARGEST, Family, fed, without_dropout
from .transformers_tests import tested

_SIZES: dict[str, Any] = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "embed_dim": 32, "dim": 32, "hidden_dim": 32,
    "embedding_size": 32, "word_embed_proj_dim": 32, "projection_dim": 32, "hidden_act_dim": 32,
    "intermediate_size": 64, "ffn_dim": 64, "n_inner": 64, "d_ff": 64, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2,
    "decoder_layers": 2, "num_decoder_layers": 2, "num_encoder_layers": 2, "depth": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8,
    "kv_channels": 8, "rotary_dim": 8, "vocab_size": 99, "max_position_embeddings": 64, "n_positions": 64,
    "n_ctx": 64, "image_size": 32, "patch_size": 8, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "kv_lora_rank": 8, "q_lora_rank": 16,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "state_size": 8, "mamba_d_state": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "type_vocab_size": 2,
    "hidden_sizes": [16, 32], "embedding_dim": 32, "bottleneck_dim": 16, "num_channels": 3,
    "conv_dim": [16, 16], "conv_stride": [4, 2], "conv_kernel": [8, 4], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip


def found() -> Iterator[Family]:
    """The base model of each configuration."""
    import transformers  # loaded by who measures it
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    seen: set[str] = set()
    for kind, config in sorted(CONFIG_MAPPING_NAMES.items()):
        names = MODEL_MAPPING_NAMES.get(kind)
        name = names[0] if isinstance(names, (tuple, list)) else names
        if name and name not in seen:
            seen.add(name)
            yield Family(
                kind, lambda name=name, config=config: _from_config(transformers, name, config)
            )


def _small(config: Any) -> Any:
    """A configuration with small sizes, its parts too."""
    computed = {
        k for kind in type(config).__mro__ for k, v in vars(kind).items() if isinstance(v, property)
    }
    for key, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            _small(value)
        elif key in _SIZES and value is not None and type(value) is type(_SIZES[key]):
            wanted = _SIZES[key]
            if (
                not isinstance(wanted, int)
                or isinstance(value, bool)
                or wanted < value
                or "token" in key
            ):
                setattr(config, key, wanted)
    kinds = getattr(config, "layer_types", None)
    name = getattr(config, "attribute_map", {}).get("layer_types", "layer_types")
    if isinstance(kinds, list) and name not in computed:
        layers = getattr(config, "num_hidden_layers", len(kinds))
        config.layer_types = [*dict.fromkeys(kinds), *kinds][
            :layers
        ]  # one of each, if there are as many
    return config


def _from_config(
    library: Any, name: str, config_name: str
) -> tuple[torch.nn.Module, dict[str, Any]]:
    kind = getattr(library, name)
    found = tested(kind)
    if found is not None:
        config, inputs = found
        try:
            return fed(_made(kind, _without_draws(config)), [inputs])
        except Exception:  # the tests may be of another version of the library
            pass
    config = _small(_without_draws(getattr(library, config_name)()))
    return fed(_made(kind, config), _candidates(config))


def _made(kind: Any, config: Any) -> torch.nn.Module:
    """A model without dropout.

    Raises:
        ValueError: it is larger than `LARGEST`.
    """
    with torch.device("meta"):
        size = sum(p.numel() for p in kind(config).parameters())
    if size > LARGEST:
        raise ValueError(f"no small configuration: {size / 1e6:.0f} million parameters")
    return without_dropout(kind(config))


def _without_draws(config: Any) -> Any:
    """A configuration without dropout and random masks, its parts too."""
    for key, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            _without_draws(value)
        elif "drop" in key and isinstance(value, float):
            setattr(config, key, 0.0)
        elif key == "apply_spec_augment":
            setattr(config, key, False)
    return config


def _candidates(config: Any) -> Iterator[dict[str, Any]]:
    """What a model may take."""
    vision = getattr(config, "vision_config", config)
    channels = getattr(vision, "num_channels", 3)
    size = getattr(vision, "image_size", 64)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    ids = torch.randint(3, 90, (2, 12))
    text: dict[str, Any] = {"input_ids": ids}
    image = {"pixel_values": torch.randn(2, channels, height, width)}
    yield text
    yield {**text, "decoder_input_ids": ids[:, :7]}
    yield image
    yield {"pixel_values": torch.randn(2, channels, 64, 64)}
    yield {"pixel_values": torch.randn(2, channels, 224, 224)}
    yield {**text, **image}
    yield {"input_values": torch.randn(2, 2000)}
    yield {
        "input_features": torch.randn(2, getattr(config, "num_mel_bins", 80), 3000),
        "decoder_input_ids": ids[:, :7],
    }
    yield {
        "input_features": torch.randn(2, 100, getattr(config, "feature_projection_input_dim", 160))
    }
    yield {"input_values": torch.randn(2, 1024, 128)}
    yield {
        "pixel_values": torch.randn(2, getattr(config, "num_frames", 8), channels, height, width)
    }
    yield {"inputs": torch.randn(2, 16, getattr(config, "d_model", 32))}
