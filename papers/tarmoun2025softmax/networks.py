"""Three small networks of about equal size on the same 8x8 digits: convolutional, residual, transformer."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TRAIN = 1437


@lru_cache(maxsize=1)
def digits() -> tuple[Tensor, Tensor]:
    """1,437 scanned digits of scikit-learn (1, 8, 8) with zero mean and unit variance, and their labels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:TRAIN]
    x = torch.tensor(images, dtype=torch.float32)[order].reshape(-1, 1, 8, 8)
    return (x - x.mean()) / x.std(), torch.tensor(labels)[order]


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


class ResidualBlock(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x))))))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inside(x)


def residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 20, 3, 2, 1),
        ResidualBlock(20),
        ResidualBlock(20),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(20, 10),
    )


class AttentionBlock(nn.Module):
    """Pre-norm attention and MLP; the softmax is written out, so that it can be differentiated twice."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def attend(self, h: Tensor) -> Tensor:
        parts = (self.query, self.key, self.value)
        q, k, v = (part(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        s = F.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
        return self.output((s @ v).transpose(1, 2).flatten(-2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.first(x))
        return x + self.mlp(self.second(x))


class Transformer(nn.Module):
    """16 patches of 2x2, two blocks of width 32 with 4 heads, mean over tokens."""

    def __init__(self, width: int = 32, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, 2, 2)
        self.positions = nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.Sequential(*(AttentionBlock(width, heads) for _ in range(depth)))
        self.readout = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.positions
        return self.readout(self.blocks(tokens).mean(1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "convolutional": convolutional,
    "residual": residual,
    "transformer": Transformer,
}


def make(name: str, seed: int) -> nn.Module:
    """The network with the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[name]()


def geometry(
    model: nn.Module, batch: tuple[Tensor, Tensor], update: list[Tensor], probes: int
) -> dict[str, Any]:
    """What the explanations are about, at one point of a run: imbalance, curvature, and sharpness along the update.

    imbalance    largest over smallest RMS gradient among the weight matrices
    condition    largest over median size of the Hessian's diagonal (Hutchinson) [Jiang 2022]
    top          largest Hessian eigenvalue by power iteration
    along_update, along_gradient   u.H.u / u.u [Pan 2023]
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradient = torch.autograd.grad(F.cross_entropy(model(batch[0]), batch[1]), parameters, create_graph=True)

    def product(vectors: list[Tensor]) -> list[Tensor]:
        return list(torch.autograd.grad(gradient, parameters, vectors, retain_graph=True))

    plain = [g.detach() for g in gradient]
    sizes = torch.stack(
        [g.square().mean().sqrt() for g, p in zip(plain, parameters, strict=True) if p.ndim > 1]
    )
    generator = torch.Generator().manual_seed(0)
    diagonal = [torch.zeros_like(p) for p in parameters]
    for _ in range(probes):
        signs = [torch.randint(0, 2, p.shape, generator=generator).float() * 2 - 1 for p in parameters]
        for total, z, Hz in zip(diagonal, signs, product(signs), strict=True):
            total += z * Hz / probes
    flat = torch.cat([d.flatten() for d in diagonal]).abs()
    return {
        "imbalance": float(sizes.max() / sizes.min()),
        "condition": float(flat.max() / flat.median()),
        "top": _top(product, parameters, generator, probes),
        "along_update": _along(product, update),
        "along_gradient": _along(product, plain),
    }


def _top(product: Any, parameters: list[Tensor], generator: torch.Generator, steps: int) -> float:
    vector = [torch.randn(p.shape, generator=generator) for p in parameters]
    size = 0.0
    for _ in range(steps):
        norm = _norm(vector)
        vector = product([v / norm for v in vector])
        size = _norm(vector)
    return size


def _along(product: Any, direction: list[Tensor]) -> float:
    norm = _norm(direction)
    unit = [d / norm for d in direction]
    return float(sum((u * h).sum() for u, h in zip(unit, product(unit), strict=True)))


def _norm(vectors: list[Tensor]) -> float:
    return max(float(torch.stack([v.square().sum() for v in vectors]).sum().sqrt()), 1e-30)
