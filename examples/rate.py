"""A learning rate before training: a small transformer on a made-up language, three optimizers.

python examples/rate.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise

SYMBOLS, TOKENS = 16, 24


def batches(count: int = 26, size: int = 16) -> list[Tensor]:
    """Sequences in which every symbol is followed by one of two others."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(count):
        x = torch.zeros(size, TOKENS + 1, dtype=torch.long)
        x[:, 0] = torch.randint(SYMBOLS, (size,), generator=generator)
        for t in range(TOKENS):
            x[:, t + 1] = (5 * x[:, t] + 1 + torch.randint(2, (size,), generator=generator)) % SYMBOLS
        rows.append(x)
    return rows


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch[:, :-1]).reshape(-1, SYMBOLS), batch[:, 1:].reshape(-1))


def main() -> None:
    torch.manual_seed(0)
    network = edgewise.transformer(depth=3, width=32, heads=2, tokens=TOKENS, causal=True)
    model = edgewise.nets.build(network, inputs=SYMBOLS, outputs=SYMBOLS)
    momentum = lambda m: torch.optim.SGD(m.parameters(), 1.0, momentum=0.9)  # noqa: E731
    for optimizer in (torch.optim.AdamW, momentum, edgewise.rehearsal.muon_and_adamw):
        rate = edgewise.learning_rate(model, batches(), loss, optimizer=optimizer)
        print(edgewise.rehearsal.outlook(rate).sentence)
        print(f"  {rate}\n")


if __name__ == "__main__":
    main()
