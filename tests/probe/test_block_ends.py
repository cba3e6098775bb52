"""Streams whose residual sums cannot be followed, or whose axes change, are measured where that is certain."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise

WIDTH, BLOCKS, STREAMS = 16, 3, 4


class Mixed(nn.Module):
    """Several streams for every token, which a softmax of their own content mixes: nothing is added to a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.inner = nn.Linear(WIDTH, STREAMS), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x).softmax(-1) @ torch.tanh(self.inner(x))


class Streams(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(60, STREAMS * WIDTH)
        self.layers = nn.ModuleList(Mixed() for _ in range(BLOCKS))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).unflatten(-1, (STREAMS, WIDTH))
        for layer in self.layers:
            x = layer(x)
        return x.mean(2)


def test_streams_side_by_side_are_read_at_the_ends_of_blocks() -> None:
    torch.manual_seed(0)
    model, ids = Streams(), torch.stack([torch.randperm(60)[:20] for _ in range(3)])
    ends: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _, __, out: ends.append(out.detach())) for layer in model.layers
    ]
    model(ids)
    for hook in hooks:
        hook.remove()
    trace = edgewise.measure(model, ids)
    whole = [F.normalize(end.flatten(2), dim=-1) for end in ends]
    overlaps = [float(((x @ x.mT).sum((1, 2)) - 20).mean() / (20 * 19)) for x in whole]
    assert trace.depth == BLOCKS
    assert trace.blocks("norm")[1:] == pytest.approx([float(end.square().mean()) for end in ends], rel=1e-5)
    assert trace.blocks("overlap")[1:] == pytest.approx(overlaps, rel=1e-4)
    with pytest.raises(
        edgewise.BadInput, match=r"can be measured but not described.*not joined by residual sums"
    ):
        edgewise.describe(model, ids)


class Image(nn.Module):
    """Blocks whose second sum is taken over (batch, tokens, features), or as the first over (batch, h, w, features)."""

    def __init__(self, flat: bool) -> None:
        super().__init__()
        self.flat, self.patch = flat, nn.Conv2d(3, WIDTH, 4, 4)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 24, batch_first=True) for _ in range(BLOCKS)
        )

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patch(pixels).permute(0, 2, 3, 1)
        for layer in self.layers:
            tokens = layer.norm1(x).flatten(1, 2)
            x = x + layer.self_attn(tokens, tokens, tokens, need_weights=False)[0].view_as(x)
            y = x.flatten(1, 2) if self.flat else x
            x = (y + layer.linear2(F.gelu(layer.linear1(layer.norm2(y))))).view_as(x)
        return x.mean((1, 2))


def test_a_stream_with_other_axes_inside_a_block() -> None:
    pixels = torch.randn(3, 3, 24, 20)
    flat, image = Image(True), Image(False)
    image.load_state_dict(flat.state_dict())
    measured, expected = (edgewise.measure(model, (pixels,)) for model in (flat, image))
    assert measured.blocks("norm") == pytest.approx(expected.blocks("norm"), rel=1e-5)
    assert measured.blocks("overlap") == pytest.approx(expected.blocks("overlap"), rel=1e-5)
