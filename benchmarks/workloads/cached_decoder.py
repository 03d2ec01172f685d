"""GPT-2 that decodes a token at a time: the caches of keys and values are arguments, updated in place."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, cache: Tensor, at: Tensor) -> Tensor:
        """x: [1, width]. cache: [2, heads, positions, channels]. at: [1], the position."""
        q, k, v = self.qkv(self.norm1(x)).view(3, self.heads, 1, -1)
        cache.index_copy_(2, at, torch.stack([k, v]))
        seen = torch.arange(cache.shape[2]) <= at
        mixed = F.scaled_dot_product_attention(q[None], cache[:1], cache[1:], attn_mask=seen[None])
        x = x + self.out(mixed.view(1, -1))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class CachedDecoder(nn.Module):
    """layers, width, heads, words: GPT-2's sizes; small has 12, 768, 12, 50257. The table of words is also the last
    layer."""

    def __init__(self, layers: int, width: int, heads: int, words: int, positions: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.shape = (2, heads, positions, width // heads)

    def caches(self) -> list[Tensor]:
        """An empty cache for each layer."""
        return [torch.zeros(self.shape) for _ in self.blocks]

    def forward(self, token: Tensor, at: Tensor, *caches: Tensor) -> Tensor:
        """token, at: [1] of int64. Returns logits, [1, words]."""
        x = self.words(token) + self.positions(at)
        for block, cache in zip(self.blocks, caches):
            x = block(x, cache, at)
        return F.linear(self.norm(x), self.words.weight)
