"""Small modules of every habit that has to be left as it was: norms with buffers, parametrizations, ties, faults."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

VOCABULARY, CONTEXT = 32, 40


class Features(nn.BatchNorm1d):
    """Batch norm of (batch, tokens, width), which torch's own takes the other way round."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class Channels(nn.Module):
    """The same with gains of its own, as many libraries write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.batch_norm(x.transpose(1, 2), None, None, self.weight, self.bias, training=True)
        return y.transpose(1, 2)


NORMS: dict[str, Any] = {"batch_norm": nn.BatchNorm1d, "features": Features, "channels": Channels}


class Block(nn.Module):
    """x + f(norm x), with the norm and the branch of the habit that is tried."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.norm: nn.Module = NORMS.get(kind, nn.LayerNorm)(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.in_place = kind == "in_place"
        if kind == "spectral":
            parametrizations.spectral_norm(self.up)
        if kind == "weight_norm":
            parametrizations.weight_norm(self.down)

    def forward(self, x: Tensor) -> Tensor:
        flat = type(self.norm) is nn.BatchNorm1d
        normed = self.norm(x.flatten(0, 1)).view_as(x) if flat else self.norm(x)
        branch = self.down(torch.relu(self.up(normed)))
        return x.clone().add_(branch) if self.in_place else x + branch


class Tokens(nn.Module):
    """Ids to logits through such blocks and one attention; `tied` shares the table, `shared` the blocks."""

    def __init__(self, width: int, depth: int, kind: str) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        blocks = [Block(width, kind) for _ in range(depth)]
        self.blocks = nn.ModuleList([blocks[0]] * depth if kind == "shared" else blocks)
        self.readout = nn.Linear(width, VOCABULARY, bias=False)
        if kind == "tied":
            self.readout.weight = self.table.weight
        self.kind = kind

    def forward(self, ids: Tensor) -> Any:
        x = self.table(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        if self.kind == "raises":
            raise ValueError("no such size")
        return {"logits": self.readout(x)} if self.kind == "dictionary" else self.readout(x)


def _encoder(width: int, depth: int, norm_first: bool) -> nn.Module:
    heads = 2 if width % 2 == 0 else 1
    layer = nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


def build(kind: str, width: int, depth: int) -> nn.Module:
    """A module of a kind, with the same weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind in ("encoder", "post"):
            return _encoder(width, depth, kind == "encoder")
        if kind == "gru":
            return nn.GRU(width, width, depth, batch_first=True)
        if kind == "convolution":
            return nn.Sequential(*[nn.Conv1d(width, width, 3, padding=1) for _ in range(depth)])
        if kind == "linear":
            return nn.Linear(width, width)
        if kind == "no_parameters":
            return nn.Sequential(nn.ReLU(), nn.Identity())
        if kind == "parallel":
            return nn.DataParallel(Tokens(width, depth, "tokens"))
        return Tokens(width, depth, kind)


WEIGHTS = {"zero": 0.0, "huge": 3e4, "nan": float("nan"), "inf": float("inf"), "constant": 0.5}


def with_weights(model: nn.Module, weights: str, dtype: str) -> nn.Module:
    """The module in another precision, with weights that are drawn or are not."""
    if weights == "meta":
        return model.to("meta")
    model = model.to(getattr(torch, dtype))
    for parameter in model.parameters():
        if weights in WEIGHTS:
            nn.init.constant_(parameter, WEIGHTS[weights])
        parameter.requires_grad_(weights != "frozen")
    return model
