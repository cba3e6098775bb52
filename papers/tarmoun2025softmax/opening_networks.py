"""The networks of the talk's opening figure, with their tasks: LeNet-5, ResNet-18, transformers for images and text.

Fashion-MNIST in place of the talk's images; ResNet-18 with 8 filters where the published one has 64; transformers of
two blocks of width 32 on 49 patches, and on 64 bytes of English text, each byte predicted from those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgewise.study import tasks
from edgewise.study.tasks import Task

WIDTH, HEADS, BYTES = 32, 4, 64
Pair = tuple[Tensor, Tensor]


def lenet() -> nn.Module:
    """61,706 weights, with ReLU and largest values in place of the original's sigmoids and means [LeCun 1998]."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


class BasicBlock(nn.Module):
    """relu(x + norm(conv(relu(norm(conv(x)))))) [He 2016]; groups are normalized, so that a batch of one works too."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.GroupNorm(4, after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.GroupNorm(4, after),
        )
        plain = stride == 1 and before == after
        self.skip = nn.Identity() if plain else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.skip(x) + self.inside(x))


def resnet18(width: int = 8) -> nn.Module:
    """Four stages of two blocks, the filters doubled and the image halved from stage to stage."""
    sizes = [width, width, 2 * width, 4 * width, 8 * width]
    blocks: list[nn.Module] = []
    for k in range(4):
        blocks += [
            BasicBlock(sizes[k], sizes[k + 1], 1 if k == 0 else 2),
            BasicBlock(sizes[k + 1], sizes[k + 1], 1),
        ]
    return nn.Sequential(
        nn.Conv2d(1, width, 3, 1, 1, bias=False),
        nn.GroupNorm(4, width),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, 10),
    )


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal, self.first, self.second = causal, nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h, parts = self.first(x), (self.query, self.key, self.value)
        q, k, v = (part(h).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.output(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.second(x))


class Transformer(nn.Module):
    """Two blocks; the mean of all tokens is read for images, every token for text."""

    def __init__(self, embed: nn.Module, tokens: int, outputs: int, causal: bool) -> None:
        super().__init__()
        self.embed, self.causal = embed, causal
        self.positions = nn.Parameter(0.02 * torch.randn(tokens, WIDTH))
        self.blocks = nn.Sequential(Block(causal), Block(causal))
        self.readout = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, outputs))

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(self.embed(x) + self.positions[: x.shape[1]])
        return self.readout(h if self.causal else h.mean(1))


def _images_transformer() -> nn.Module:
    return Transformer(nn.Linear(16, WIDTH), 49, 10, causal=False)


def _byte_transformer() -> nn.Module:
    return Transformer(nn.Embedding(256, WIDTH), BYTES, 256, causal=True)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "LeNet-5": lenet,
    "ResNet-18": resnet18,
    "image transformer": _images_transformer,
    "text transformer": _byte_transformer,
}
TRANSFORMERS = ("image transformer", "text transformer")


def make(name: str, seed: int) -> nn.Module:
    """The network with the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[name]()


@lru_cache(maxsize=2)
def data(name: str, images: str) -> Task:
    """The task of a network; images: fashion, or digits where its files are absent (they are enlarged to 28x28)."""
    if name == "text transformer":
        return tasks.byte_text(BYTES)
    return tasks.fashion() if images == "fashion" else _enlarged()


def _enlarged() -> Task:
    """The 8x8 digits, 28x28 in 49 patches of 4x4 as the others."""
    small = tasks.digits()

    def pair(part: Pair) -> Pair:
        pixels = F.fold(part[0].transpose(1, 2), 8, 2, stride=2)
        large = F.interpolate(pixels, (28, 28), mode="bilinear")
        return F.unfold(large, 4, stride=4).transpose(1, 2).contiguous(), part[1]

    return Task("digits", 16, 10, True, True, pair(small.train), pair(small.validation))


def batches(name: str, images: str, size: int, seed: int) -> Iterator[Pair]:
    """Endless; convolutional networks see pixels, transformers the patches."""
    for inputs, labels in data(name, images).batches(size, seed):
        yield as_seen(name, inputs), labels


def as_seen(name: str, inputs: Tensor) -> Tensor:
    return inputs if name in TRANSFORMERS else F.fold(inputs.transpose(1, 2), 28, 4, stride=4)


def loss_of(model: nn.Module, batch: Pair) -> Tensor:
    """Cross-entropy per image, or per byte."""
    logits = model(batch[0])
    return F.cross_entropy(logits.flatten(0, -2), batch[1].flatten())
