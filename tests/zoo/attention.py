"""Transformers, written in the styles that users know."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .case import Case, Tensor, adamw, class_loss


def tokens(vocabulary: int = 17, batch: int = 2, length: int = 12) -> Tensor:
    return torch.randint(vocabulary, (batch, length))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, 32))
        self.position = nn.Parameter(torch.randn(1, 17, 32) * 0.02)
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.encoder(x)[:, 0])


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(17, 32), nn.Embedding(17, 32)
        self.transformer = nn.Transformer(32, 4, 1, 1, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(32, 17)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1]).to(self.out.weight)
        y = self.transformer(self.source(source), self.target(target), tgt_mask=mask)
        return self.out(y)


def translate(model: nn.Module, source: Tensor, target: Tensor) -> tuple[Tensor, Any]:
    logits = model(source, target[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten()), logits


class Bert(nn.Module):
    """Padding masks, learned positions, tied output embedding, [MASK] prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(17, 32, padding_idx=0), nn.Embedding(16, 32)
        self.register_buffer("ids", torch.arange(16)[None], persistent=False)
        self.norm = nn.LayerNorm(32)
        self.qkv = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(32, 32), nn.Linear(32, 64), nn.Linear(64, 32)
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.decoder = nn.Linear(32, 17)
        self.decoder.weight = self.word.weight

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        n, length = ids.shape
        x = self.norm(self.word(ids) + self.position(self.ids[:, :length]))
        q, k, v = (f(x).view(n, length, 4, 8).permute(0, 2, 1, 3) for f in self.qkv)
        scores = q @ k.transpose(-1, -2) / math.sqrt(8)
        extended = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        context = (scores + extended).softmax(-1) @ v
        context = context.permute(0, 2, 1, 3).contiguous().view(n, length, 32)
        x = self.norm1(x + self.out(context))
        x = self.norm2(x + self.down(F.gelu(self.up(x))))
        return self.decoder(x)


def masked_batch() -> tuple[Any, ...]:
    ids = tokens()
    mask = (torch.arange(12)[None] < torch.randint(4, 13, (2, 1))).long()
    labels = torch.where(torch.rand(2, 12) < 0.5, ids, -100)
    labels[:, 0] = ids[:, 0]
    return ids * mask, mask, labels


def masked_loss(model: nn.Module, ids: Tensor, mask: Tensor, labels: Tensor) -> Any:
    logits = model(ids, mask)
    return F.cross_entropy(logits.view(-1, 17), labels.view(-1), ignore_index=-100), logits


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        kind = x.dtype
        x = x.to(torch.promote_types(kind, torch.float32))
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(kind)


def rotate(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class LlamaBlock(nn.Module):
    """Grouped-query attention with rotary positions, SwiGLU."""

    def __init__(self, width: int = 32, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 48, bias=False), nn.Linear(width, 48, bias=False)
        self.down = nn.Linear(48, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n, length, _ = x.shape
        y = self.norm1(x)
        q = self.q(y).view(n, length, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(y).view(n, length, 2 * self.groups, self.size).transpose(1, 2).chunk(2, 1)
        q, k = q * cos + rotate(q) * sin, k * cos + rotate(k) * sin
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(n, length, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(17, 32)
        self.blocks = nn.ModuleList(LlamaBlock() for _ in range(2))
        self.norm = RMSNorm(32)
        frequencies = 1.0 / 10000 ** (torch.arange(0, 8, 2).float() / 8)
        self.register_buffer("frequencies", frequencies)

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device, dtype=self.frequencies.dtype)
        angles = torch.outer(positions, self.frequencies)
        angles = torch.cat((angles, angles), -1)
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin())
        return F.linear(self.norm(x), self.embed.weight)


def next_token(model: nn.Module, ids: Tensor) -> tuple[Tensor, Any]:
    logits = model(ids)
    return F.cross_entropy(logits[:, :-1].reshape(-1, 17), ids[:, 1:].reshape(-1)), logits


class GPT(nn.Module):
    """nanoGPT style: a causal mask buffer, masked_fill, fused qkv, flash=False."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(17, 32), nn.Embedding(16, 32)
        self.ln1, self.ln2, self.lnf = nn.LayerNorm(32), nn.LayerNorm(32), nn.LayerNorm(32)
        self.attn, self.proj = nn.Linear(32, 96), nn.Linear(32, 32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(approximate="tanh"), nn.Linear(64, 32))
        self.head = nn.Linear(32, 17, bias=False)
        self.wte.weight = self.head.weight
        self.register_buffer("bias", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

    def forward(self, ids: Tensor) -> Tensor:
        n, t = ids.size()
        x = self.wte(ids) + self.wpe(torch.arange(0, t, dtype=torch.long, device=ids.device))
        q, k, v = self.attn(self.ln1(x)).split(32, dim=2)
        q, k, v = (y.view(n, t, 4, 8).transpose(1, 2) for y in (q, k, v))
        a = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        a = a.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        y = F.softmax(a, dim=-1) @ v
        x = x + self.proj(y.transpose(1, 2).contiguous().view(n, t, 32))
        return self.head(self.lnf(x + self.mlp(self.ln2(x))))


class T5(nn.Module):
    """Relative position buckets as attention bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.bias = nn.Embedding(17, 32), nn.Embedding(8, 4)
        self.norm = RMSNorm(32)
        self.qkv, self.o = nn.Linear(32, 96, bias=False), nn.Linear(32, 32, bias=False)

    def buckets(self, length: int) -> Tensor:
        relative = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        far = -torch.min(relative, torch.zeros_like(relative))
        large = 4 + (torch.log(far.float() / 4) / math.log(16 / 4) * 4).to(torch.long)
        large = torch.min(large, torch.full_like(large, 7))
        return torch.where(far < 4, far, large)

    def forward(self, ids: Tensor) -> Tensor:
        n, t = ids.shape
        x = self.embed(ids)
        q, k, v = self.qkv(self.norm(x)).view(n, t, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (
            torch.matmul(q, k.transpose(3, 2)) + self.bias(self.buckets(t)).permute(2, 0, 1)[None]
        )
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        return F.linear(
            x + self.o((weights @ v).transpose(1, 2).reshape(n, t, 32)), self.embed.weight
        )


class CrossAttention(nn.Module):
    """nn.MultiheadAttention with other key and value widths and both masks."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, kdim=12, vdim=20, batch_first=True)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Any:
        out, weights = self.attention(q, k, v, key_padding_mask=padding)
        return {"out": out, "weights": weights}


def cross_inputs() -> tuple[Any, ...]:
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[0, 5:] = True
    return torch.randn(2, 5, 16), torch.randn(2, 7, 12), torch.randn(2, 7, 20), padding


class LinearAttention(nn.Module):
    """einsum throughout; positive features instead of softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.randn(4, 16, 8) / 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("btd,hde->bhte", x, w) for w in (self.q, self.k, self.v))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.einsum("bhtd,bhte->bhde", k, v)
        norm = 1 / torch.einsum("bhtd,bhd->bht", q, k.sum(2))
        return torch.einsum("bhtd,bhde,bht->bhte", q, state, norm)


class Windows(nn.Module):
    """Swin: windows by reshape and roll, relative bias by an index table."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.table = nn.Parameter(torch.randn(49, 2))
        grid = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"))
        flat = torch.flatten(grid, 1)
        relative = (flat[:, :, None] - flat[:, None, :]).permute(1, 2, 0) + 3
        self.register_buffer("index", relative[..., 0] * 7 + relative[..., 1])

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        x = torch.roll(x, shifts=(-2, -2), dims=(1, 2))
        x = x.view(n, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        q, k, v = self.qkv(x).reshape(-1, 16, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index.view(-1)].view(16, 16, 2).permute(2, 0, 1).contiguous()
        x = F.softmax(q @ k.transpose(-2, -1) + bias, -1) @ v
        x = x.transpose(1, 2).reshape(n, h // 4, w // 4, 4, 4, c)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        return torch.roll(x, shifts=(2, 2), dims=(1, 2))


class Experts(nn.Module):
    """Mixture of experts: top-2 gates, every expert on every token."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        scores, chosen = torch.topk(self.gate(x), 2, dim=-1)
        gates = torch.zeros(*x.shape[:-1], 4, dtype=x.dtype).scatter(-1, chosen, scores.softmax(-1))
        return sum(gates[..., i, None] * f(x) for i, f in enumerate(self.experts))


CASES: list[Case] = [
    Case(
        "ViT", ViT, lambda: (torch.randn(2, 3, 16, 16), torch.randint(5, (2,))), class_loss, adamw
    ),
    Case("nn.TransformerEncoder", encoder, lambda: (torch.randn(7, 2, 32),), slow=True),
    Case("nn.Transformer", EncoderDecoder, lambda: (tokens(), tokens(length=9)), translate, adamw),
    Case("BERT", Bert, masked_batch, masked_loss, adamw),
    Case("Llama", Llama, lambda: (tokens(),), next_token, adamw),
    Case("GPT", GPT, lambda: (tokens(),), next_token, adamw),
    Case("T5", T5, lambda: (tokens(),), next_token, adamw),
    Case("cross attention", CrossAttention, cross_inputs),
    Case("linear attention", LinearAttention, lambda: (torch.randn(2, 9, 16),)),
    Case("Swin windows", Windows, lambda: (torch.randn(2, 8, 8, 16),)),
    Case("mixture of experts", Experts, lambda: (torch.randn(3, 5, 16),)),
]
