"""Recurrent networks: PyTorch's own modules through the tracer, and loops over time."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .case import Case, Tensor, adamw


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.rnn = kind(6, 8, batch_first=True, **options)
        self.head = nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Any:
        out, state = self.rnn(x)
        return self.head(out[:, -1]), state


class Given(nn.Module):
    """An LSTM with its initial state given and its last state returned."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Any:
        out, (h, c) = self.lstm(x, (h, c))
        return {"out": out, "state": [h, c]}


class Cells(nn.Module):
    """Cells in a Python loop."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(6, 8), nn.GRUCell(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h, c = x.new_zeros(2, x.shape[0], 8)
        g = torch.zeros_like(h)
        outs = []
        for step in x.unbind(1):
            h, c = self.lstm(step, (h, c))
            g = self.gru(h, g)
            outs.append(g)
        return torch.stack(outs, 1)


class Attend(nn.Module):
    """Encoder and decoder with additive attention."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.GRU(6, 8, batch_first=True, bidirectional=True)
        self.decoder = nn.GRUCell(16, 16)
        self.score = nn.Sequential(nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        memory, state = self.encoder(x)
        h = torch.cat([state[0], state[1]], -1)
        outs = []
        for _ in range(3):
            pairs = torch.cat([memory, h[:, None].expand_as(memory)], -1)
            weights = torch.softmax(self.score(pairs).squeeze(-1), -1)
            h = self.decoder(torch.bmm(weights[:, None], memory)[:, 0], h)
            outs.append(h)
        return torch.stack(outs)


class Scan(nn.Module):
    """A linear state-space recurrence (S4 style), by cumulative sums of logarithms and by loop."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        decay = torch.sigmoid(self.a)
        state = torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            state = decay * state + x[:, t]
        powers = torch.cumsum(torch.log(decay).expand(x.shape[1], 6), 0)
        return state + (x * torch.exp(powers - powers[-1:])).cumprod(1)[:, -1]


def _made(kind: Any, **options: Any) -> Any:
    def make() -> nn.Module:
        model = Recurrent(kind, **options)
        model(torch.randn(1, 4, 6))
        return model

    return make


def _sequences() -> tuple[Any, ...]:
    return (torch.randn(3, 5, 6),)


CASES: list[Case] = [
    Case("nn.LSTM", _made(nn.LSTM), _sequences, optimizer=adamw),
    Case("nn.LSTM deep, both ways", _made(nn.LSTM, num_layers=2, bidirectional=True), _sequences),
    Case("nn.LSTM projected", _made(nn.LSTM, proj_size=4), _sequences, slow=True),
    Case("nn.GRU", _made(nn.GRU), _sequences),
    Case("nn.GRU deep", _made(nn.GRU, num_layers=2, bias=False), _sequences, slow=True),
    Case("nn.RNN", _made(nn.RNN), _sequences),
    Case("nn.RNN relu", _made(nn.RNN, nonlinearity="relu"), _sequences, slow=True),
    Case("LSTM with given state", Given,
         lambda: (torch.randn(5, 3, 6), torch.randn(1, 3, 8), torch.randn(1, 3, 8))),
    Case("cells in a loop", Cells, _sequences),
    Case("attention decoder", Attend, _sequences, slow=True),
    Case("scan", Scan, _sequences),
]  # fmt: skip
