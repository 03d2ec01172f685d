"""Text generation with caches as arguments: one program computes a prompt of any length, and each token after it.

    python examples/generate.py [--model gpt2|llama] [--width 256] [--layers 4] [--tokens 64] [--weights int8|int4]

The model is a small GPT-2 or Llama of `transformers` with random weights; nothing is downloaded. The caches of keys and
values are arguments of the graph, which writes the new positions over them. Tokens a second are printed for eager
PyTorch, `torch.compile` and a frozen graph, all greedy, from equal prompts; the tokens must be equal (but for
`--weights`, which rounds).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import torch
import transformers
from torch import Tensor, nn
from transformers.cache_utils import Cache, StaticLayer

import gflow as flow

#: computes one step: tokens [1, n], how many positions are taken, caches → the next token, [1, 1]
Step = Callable[..., Tensor]


def small_model(kind: str, width: int, layers: int, positions: int, words: int) -> nn.Module:
    """A causal language model of `transformers` with random weights; no word of it begins, ends or fills a text."""
    heads = width // 32
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=words, n_embd=width, n_layer=layers, n_head=heads, n_positions=positions,
            bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )  # fmt: skip
    else:
        config = transformers.LlamaConfig(
            vocab_size=words, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
            num_key_value_heads=heads // 2, intermediate_size=4 * width, max_position_embeddings=positions,
            bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config)
    return model.eval().requires_grad_(False)


def empty_caches(model: nn.Module, positions: int) -> list[Tensor]:
    """For each layer keys and values, [1, heads, positions, channels]."""
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    shape = (1, heads, positions, config.hidden_size // config.num_attention_heads)
    return [torch.zeros(shape) for _ in range(2 * config.num_hidden_layers)]


class NextToken(nn.Module):
    """A model's most likely next token, with its caches as tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, taken: Tensor, *caches: Tensor) -> Tensor:
        """tokens: [1, n], the next ones. taken: [], the positions before them. Returns [1, 1]."""
        layers = []
        for keys, values in zip(caches[::2], caches[1::2]):
            layer = StaticLayer(keys.shape[2])
            layer.keys, layer.values, layer.is_initialized = keys, values, True
            layer.dtype, layer.device = keys.dtype, keys.device
            layer.cumulative_length = taken.clone()
            layers.append(layer)
        at = torch.arange(tokens.shape[1])[None] + taken
        out = self.model(
            tokens, position_ids=at, past_key_values=Cache(layers=layers), logits_to_keep=1
        )
        return out.logits[:, -1:].argmax(-1)


class Generation(flow.nn.Graph):
    """The same as one program for a range of lengths, with what follows from weights alone computed once."""

    def __init__(self, step: NextToken, weights: str | None) -> None:
        super().__init__()
        self.step = step
        self.config.freeze(weights=weights)

    def build(self, tokens: Tensor, taken: Tensor, *caches: Tensor) -> Tensor:
        return self.step(tokens, taken, *caches)


def generate(
    step: Step, prompt: Tensor, caches: Sequence[Tensor], count: int, longest: int = 0
) -> tuple[Tensor, float]:
    """`count` tokens after a prompt [1, n], and how many a second came after the first.

    longest: mark the length of the prompt as dynamic, up to so many.
    """
    taken, tokens, found = torch.tensor(0), prompt, []
    start = time.perf_counter()
    for n in range(count):
        if longest and n == 0:
            flow.dynamic_dim(tokens, 1, min=1, max=longest)
        token = step(tokens, taken, *caches).clone()
        if n == 0:
            start = time.perf_counter()
        found.append(token)
        taken += tokens.shape[1]
        tokens = token
    return torch.cat(found, 1), (count - 1) / (time.perf_counter() - start)


def main(argv: Sequence[str] | None = None) -> None:
    """The command.

    Raises:
        AssertionError: a peer's tokens are not eager's.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", choices=("gpt2", "llama"), default="gpt2")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--words", type=int, default=4000)
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate")
    parser.add_argument("--prompts", type=int, nargs="+", default=[12, 30], help="their lengths")
    parser.add_argument("--weights", choices=("int8", "int4"), help="of the frozen graph")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    longest = max(args.prompts)
    positions = longest + args.tokens
    model = small_model(args.model, args.width, args.layers, positions, args.words)
    step = NextToken(model)
    graph = Generation(step, args.weights)
    peers: dict[str, Step] = {"eager": step}
    if not args.no_compile:
        peers["torch.compile"] = torch.compile(step, dynamic=True)
    peers["gflow"] = graph
    for n in args.prompts:
        prompt = torch.randint(args.words, (1, n))
        wanted = None
        for name, peer in peers.items():
            with torch.no_grad():
                for _ in range(2):  # the first time compiles
                    caches = empty_caches(model, positions)
                    marked = longest if name == "gflow" else 0
                    found, speed = generate(peer, prompt, caches, args.tokens, marked)
            wanted = found if wanted is None else wanted
            equal = torch.equal(found, wanted)
            assert equal or (name == "gflow" and args.weights), f"{name} found other tokens"
            print(f"prompt of {n}, {name:13} {speed:8.1f} tokens a second")
    if args.weights:
        print(graph.explain().frozen)


if __name__ == "__main__":
    main()
