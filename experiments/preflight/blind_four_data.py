"""Data of the fourth blind list, all made from seeds, and the dictionary of a training."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HELD = 10**6
COSTS = Path(__file__).with_name("blind_four_costs.json")


def truth(name: str, words: list, places: list, consequences: list = ()) -> dict[str, Any]:  # type: ignore[type-arg,assignment]
    """What a finding must say; the cost is read from the measurements made before the list was landed."""
    known = json.loads(COSTS.read_text()) if COSTS.exists() else {}
    cost = known.get(name, {}).get("cost")
    return {"words": words, "places": places, "consequences": list(consequences), "cost": cost}


def training(model: nn.Module, stream: Callable[[int], Any], held: Callable[[nn.Module], float], **rest: Any):
    """The dictionary of a list; `stream` and `held` are for measuring the cost only."""
    batches = [stream(k) for k in range(6)]
    return {"model": model, "batches": batches, "stream": stream, "held": held, **rest}


def adamw(model: nn.Module, lr: float = 2e-3, **rest: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, **rest)


def warm(model: nn.Module, loss: Callable[[nn.Module, int], Tensor], steps: int, lr: float = 3e-3) -> None:
    """Train a little, so that a body counts as pretrained."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for k in range(steps):
        optimizer.zero_grad()
        loss(model, k).backward()
        optimizer.step()
    optimizer.zero_grad()


def source(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed + 77)


def chain(seed: int, rows: int = 32, length: int = 24, vocab: int = 32, step: int = 5) -> Tensor:
    """Text: the next token is one of four successors of the last, at 70, 15, 10 and 5 %."""
    draw = source(seed)
    odds = torch.tensor([0.7, 0.15, 0.1, 0.05])
    out = torch.randint(0, vocab, (rows, length), generator=draw)
    jump = torch.multinomial(odds, rows * length, True, generator=draw).view(rows, length)
    for t in range(1, length):
        out[:, t] = (step * out[:, t - 1] + 1 + 3 * jump[:, t]) % vocab
    return out


def keyed(
    seed: int, rows: int = 32, prompt: int = 6, keys: int = 12, answer: int = 4
) -> tuple[Tensor, Tensor]:
    """Prompts with one key (ids 0 to 11) among filler (40 to 59), and the key's own answer (ids 12 to 39)."""
    draw = source(seed)
    key = torch.randint(0, keys, (rows,), generator=draw)
    ask = torch.randint(40, 60, (rows, prompt), generator=draw)
    at = torch.randint(0, prompt, (rows,), generator=draw)
    ask[torch.arange(rows), at] = key
    reply = 12 + (key[:, None] * 11 + torch.arange(answer) * 5) % 28
    return ask, reply


def marked(
    seed: int, rows: int = 32, length: int = 16, classes: int = 4, vocab: int = 40, first: int = 1
) -> tuple[Tensor, Tensor]:
    """Sentences of filler in which the word of the class (ids `first` on) stands twice; and the class."""
    draw = source(seed)
    label = torch.randint(0, classes, (rows,), generator=draw)
    words = torch.randint(first + classes, vocab, (rows, length), generator=draw)
    for _ in range(2):
        at = torch.randint(1, length, (rows,), generator=draw)
        words[torch.arange(rows), at] = first + label
    return words, label


def blobs(seed: int, rows: int = 32, size: int = 16, cells: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Noisy images (3 channels, 0 to 1) with one bright cell; its row and its column."""
    draw = source(seed)
    image = 0.25 * torch.rand(rows, 3, size, size, generator=draw)
    row = torch.randint(0, cells, (rows,), generator=draw)
    column = torch.randint(0, cells, (rows,), generator=draw)
    side = size // cells
    for n in range(rows):
        y, x = int(row[n]) * side, int(column[n]) * side
        image[n, :, y : y + side, x : x + side] += 0.7
    return image, row, column


def gratings(seed: int, rows: int = 32, size: int = 16, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Images of stripes (3 channels, 0 to 1) at one of `classes` angles, and the angle's number."""
    draw = source(seed)
    label = torch.randint(0, classes, (rows,), generator=draw)
    phase = 6.28 * torch.rand(rows, 1, 1, 1, generator=draw)
    angle = (label * math.pi / classes)[:, None, None, None]
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    wave = torch.sin(0.9 * (x * angle.cos() + y * angle.sin()) + phase)
    image = 0.5 + 0.35 * wave + 0.05 * torch.randn(rows, 3, size, size, generator=draw)
    return image.clamp(0, 1), label


def tones(seed: int, rows: int = 32, length: int = 256, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Sounds between -1 and 1 of one of four pitches in noise, and the pitch."""
    draw = source(seed)
    label = torch.randint(0, classes, (rows,), generator=draw)
    phase = 6.28 * torch.rand(rows, 1, generator=draw)
    pitch = 0.1 + 0.25 * label[:, None]
    sound = 0.4 * torch.sin(pitch * torch.arange(length) + phase)
    return sound + 0.1 * torch.randn(rows, length, generator=draw), label


def series(seed: int, rows: int = 32, length: int = 40) -> Tensor:
    """Series: two waves, a level and a little noise, of unit size."""
    draw = source(seed)
    t = torch.arange(length)
    fast = torch.sin(
        t * (0.3 + 0.3 * torch.rand(rows, 1, generator=draw)) + 6.28 * torch.rand(rows, 1, generator=draw)
    )
    slow = torch.sin(0.08 * t + 6.28 * torch.rand(rows, 1, generator=draw))
    return fast + 0.5 * slow + 0.05 * torch.randn(rows, length, generator=draw)


def patches(image: Tensor, side: int = 4) -> Tensor:
    """Cut images into flattened squares, (rows, squares, values)."""
    cut = image.unfold(2, side, side).unfold(3, side, side)
    return cut.permute(0, 2, 3, 1, 4, 5).flatten(1, 2).flatten(2)


def encoder(width: int = 32, layers: int = 2, heads: int = 4, first: bool = True) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(
        width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=first
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def later(model: Callable[[Tensor], Tensor], x: Tensor, places: tuple[int, ...] = (6, 11, 17, 22)) -> float:
    """Loss of the next token when the future is really not there."""
    parts = [nn.functional.cross_entropy(model(x[:, :t])[:, -1], x[:, t]) for t in places]
    return float(torch.stack(parts).mean())
