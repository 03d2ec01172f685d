"""diffusers' main classes, small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from .family import Family, fed, without_dropout

_SIZES = {"block_out_channels": (32, 32), "layers_per_block": 1, "norm_num_groups": 8}
_TEXT = {"cross_attention_dim": 32, "attention_head_dim": 8}
_DIT = {"num_attention_heads": 2, "in_channels": 4, "patch_size": 2, "num_layers": 2}


def _images(channels: int, size: int, name: str = "sample") -> dict[str, Any]:
    return {name: torch.randn(2, channels, size, size)}


def _steps() -> dict[str, Any]:
    return {"timestep": torch.tensor([3, 70])}


def _texts(width: int = 32) -> dict[str, Any]:
    return {"encoder_hidden_states": torch.randn(2, 7, width)}


#: by the class: its configuration, and what it takes
_CLASSES: dict[str, tuple[dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "UNet2DModel": (
        {
            **_SIZES, "sample_size": 16, "attention_head_dim": 8,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        lambda: _images(3, 16) | _steps(),
    ),
    "UNet2DConditionModel": (
        {
            **_SIZES, **_TEXT, "sample_size": 16,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        },
        lambda: _images(4, 16) | _steps() | _texts(),
    ),
    "UNet3DConditionModel": (
        {
            **_SIZES, **_TEXT, "sample_size": 16,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        },
        lambda: {"sample": torch.randn(2, 4, 3, 16, 16)} | _steps() | _texts(),
    ),
    "UNetMotionModel": (
        {
            **_SIZES, "cross_attention_dim": 32, "num_attention_heads": 4, "sample_size": 16,
            "motion_num_attention_heads": 4,
            "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
            "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"),
        },
        lambda: {"sample": torch.randn(2, 4, 3, 16, 16)} | _steps() | _texts(),
    ),
    "UNet1DModel": (
        {
            "block_out_channels": (8, 8, 16, 16), "in_channels": 14, "out_channels": 14,
            "time_embedding_type": "positional", "use_timestep_embedding": True,
            "flip_sin_to_cos": False, "freq_shift": 1.0, "out_block_type": "OutConv1DBlock",
            "mid_block_type": "MidResTemporalBlock1D", "act_fn": "swish",
            "down_block_types": ("DownResnetBlock1D",) * 4,
            "up_block_types": ("UpResnetBlock1D",) * 3,
        },
        lambda: {"sample": torch.randn(2, 14, 16)} | _steps(),
    ),
    "ControlNetModel": (
        {
            **_SIZES, **_TEXT, "conditioning_embedding_out_channels": (16, 32),
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        },
        lambda: _images(4, 16) | _steps() | _texts() | _images(3, 32, "controlnet_cond"),
    ),
    "AutoencoderKL": (
        {
            **_SIZES, "latent_channels": 4, "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
        },
        lambda: _images(3, 32),
    ),
    "AutoencoderTiny": (
        {
            "encoder_block_out_channels": (32, 32), "decoder_block_out_channels": (32, 32),
            "num_encoder_blocks": (1, 2), "num_decoder_blocks": (2, 1),
        },
        lambda: _images(3, 32),
    ),
    "AsymmetricAutoencoderKL": (
        {
            "down_block_types": ("DownEncoderBlock2D",) * 2, "norm_num_groups": 8,
            "down_block_out_channels": (32, 32), "layers_per_down_block": 1,
            "up_block_types": ("UpDecoderBlock2D",) * 2, "up_block_out_channels": (32, 32),
            "layers_per_up_block": 1,
        },
        lambda: _images(3, 32),
    ),
    "VQModel": (
        {
            **_SIZES, "latent_channels": 3, "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
        },
        lambda: _images(3, 32),
    ),
    "Transformer2DModel": (
        {
            "in_channels": 32, "num_attention_heads": 2, "attention_head_dim": 16,
            "norm_num_groups": 8, "cross_attention_dim": 32,
        },
        lambda: _images(32, 8, "hidden_states") | _texts(),
    ),
    "TransformerTemporalModel": (
        {
            "in_channels": 32, "num_attention_heads": 2, "attention_head_dim": 16,
            "norm_num_groups": 8,
        },
        lambda: {"hidden_states": torch.randn(6, 32, 8, 8), "num_frames": 3},
    ),
    "DiTTransformer2DModel": (
        {**_DIT, "attention_head_dim": 8, "sample_size": 8, "num_embeds_ada_norm": 100},
        lambda: _images(4, 8, "hidden_states") | _steps() | {"class_labels": torch.tensor([1, 5])},
    ),
    "PixArtTransformer2DModel": (
        {
            **_DIT, "attention_head_dim": 16, "sample_size": 8, "cross_attention_dim": 32,
            "caption_channels": 32, "use_additional_conditions": False,
        },
        lambda: _images(4, 8, "hidden_states") | _steps() | _texts(),
    ),
    "SD3Transformer2DModel": (
        {
            **_DIT, "attention_head_dim": 16, "sample_size": 16, "caption_projection_dim": 32,
            "joint_attention_dim": 32, "pooled_projection_dim": 32, "out_channels": 4,
        },
        lambda: _images(4, 16, "hidden_states") | _steps() | _texts()
        | {"pooled_projections": torch.randn(2, 32)},
    ),
    "FluxTransformer2DModel": (
        {
            "patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1,
            "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32,
            "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8),
        },
        lambda: _steps() | _texts() | {
            "hidden_states": torch.randn(2, 16, 4), "pooled_projections": torch.randn(2, 32),
            "img_ids": torch.randint(4, (16, 3)).float(), "txt_ids": torch.zeros(7, 3),
        },
    ),
    "PriorTransformer": (
        {
            "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2,
            "embedding_dim": 16, "num_embeddings": 7, "additional_embeddings": 4,
        },
        lambda: _steps() | _texts(16) | {
            "hidden_states": torch.randn(2, 16), "proj_embedding": torch.randn(2, 16),
        },
    ),
}  # fmt: skip


def found() -> Iterator[Family]:
    """The classes of the table."""
    for name, (config, inputs) in _CLASSES.items():
        yield Family(name, partial(_made, name, config, inputs))


def _made(
    name: str, config: dict[str, Any], inputs: Callable[[], dict[str, Any]]
) -> tuple[torch.nn.Module, dict[str, Any]]:
    import diffusers  # loaded by who measures it

    return fed(without_dropout(getattr(diffusers, name)(**config)), [inputs()])
