"""The parts of a block that have parameters: random matrices, norms, MLPs, multi-head softmax attention.

Shapes: x (B, n, d); queries (B, heads, n, head_width); keys and values (B, kv_heads, n, head_width).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgewise.activations import torch_activation
from edgewise.errors import BadInput
from edgewise.nouns import blocks


def matrix(fan_in: int, fan_out: int, gain: float, bias: float | None = None) -> nn.Linear:
    """A linear map with entries iid N(0, gain^2 / fan_in), weight (fan_out, fan_in).

    bias: the standard deviation of its bias; None for no bias.
    """
    layer = nn.Linear(fan_in, fan_out, bias=bias is not None)
    with torch.no_grad():
        layer.weight.normal_(std=gain / math.sqrt(fan_in))
        if bias is not None:
            layer.bias.normal_(std=bias)
    return layer


class ElementwiseNorm(nn.Module):
    """weight * phi(slope x) with phi = tanh or erf, in a norm's place [Zhu 2025]."""

    def __init__(self, width: int, kind: str, slope: float) -> None:
        super().__init__()
        self.function = {"tanh": torch.tanh, "erf": torch.erf}[kind]
        self.slope = nn.Parameter(torch.tensor(slope))
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * self.function(self.slope * x)


def norm(kind: str, width: int, slope: float = 1.0) -> nn.Module:
    """A norm with learned gains that start at one."""
    if kind == "layer":
        return nn.LayerNorm(width)
    if kind == "rms":
        return nn.RMSNorm(width)
    return ElementwiseNorm(width, kind, slope)


class MLP(nn.Module):
    """W_2 phi(W_1 x + b), or W_2 (phi(W_1 x + b) * W_linear x) when gated [Shazeer 2020]."""

    def __init__(self, layer: blocks.MLP, width: int) -> None:
        super().__init__()
        self.function = torch_activation(layer.activation)
        inward = matrix(width, layer.width, layer.in_gain, bias=layer.bias)
        if layer.gated:
            self.gate_proj, self.up_proj = inward, matrix(width, layer.width, layer.linear_gain)
        else:
            self.up_proj = inward
        self.gated = layer.gated
        self.down_proj = matrix(layer.width, width, layer.out_gain)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            return self.down_proj(self.function(self.gate_proj(x)) * self.up_proj(x))
        return self.down_proj(self.function(self.up_proj(x)))


class SoftmaxAttention(nn.Module):
    """concat_h softmax(q k^T / sqrt(head_width) + bias) v W_O, with grouped keys, rotation, masks and QK-norm."""

    turns: Tensor
    bias: Tensor | None

    def __init__(self, layer: blocks.Attention, width: int, tokens: int) -> None:
        super().__init__()
        if layer.kernel != "softmax":
            raise BadInput(f"kernel = {layer.kernel!r} has no network here; expected 'softmax'.")
        self.num_heads, self.num_kv_heads, self.head_width = layer.heads, layer.kv_heads, layer.head_width
        inner, shared = layer.heads * layer.head_width, layer.kv_heads * layer.head_width
        key, output = layer.key_gain, layer.output_gain
        self.q_proj = matrix(width, inner, 1.0 if layer.qk_norm else _over(layer.score_gain, key, "key_gain"))
        self.k_proj = matrix(width, shared, 1.0 if layer.qk_norm else key)
        self.v_proj = matrix(width, shared, _over(layer.value_gain, output, "output_gain"))
        self.o_proj = matrix(inner, width, output)
        self.q_norm = _unit_norm(layer.head_width, math.sqrt(layer.score_gain)) if layer.qk_norm else None
        self.k_norm = _unit_norm(layer.head_width, math.sqrt(layer.score_gain)) if layer.qk_norm else None
        self.rotated = 2 * round(layer.rope * layer.head_width / 2) if layer.rope else 0
        if self.rotated:
            frequencies = frequencies_of(self.rotated, layer.rope_base)
            turns = torch.arange(tokens, dtype=torch.float64)[:, None] * frequencies
            self.register_buffer("inv_freq", frequencies, persistent=False)
            self.register_buffer("turns", torch.stack([turns.cos(), turns.sin()]).float(), persistent=False)
        relative = (
            layer.position_bias * torch.randn(layer.heads, 2 * tokens - 1) if layer.position_bias else None
        )
        self.relative = None if relative is None else nn.Parameter(relative)
        self.causal_only = layer.causal and layer.window is None and not layer.alibi and relative is None
        plain = self.causal_only or (layer.symmetric and relative is None)
        self.register_buffer("bias", None if plain else position_bias(layer, tokens), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._split(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        if self.rotated:
            query, key = rotate(query, self.turns), rotate(key, self.turns)
        if self.num_kv_heads != self.num_heads:
            share = self.num_heads // self.num_kv_heads
            key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
        mixed = F.scaled_dot_product_attention(
            query, key, value, self._bias(x.shape[1]), is_causal=self.causal_only
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

    def _bias(self, tokens: int) -> Tensor | None:
        bias = self.bias
        if bias is None:
            return None
        if tokens > bias.shape[-1]:
            raise BadInput(f"expected at most {bias.shape[-1]} tokens, as in the description, got {tokens}.")
        if self.relative is not None:
            bias = bias + self.relative.unfold(-1, bias.shape[-1], 1).flip(
                -2
            )  # row a, column b: the entry for b - a
        return bias[..., :tokens, :tokens]


def _over(product: float, factor: float, name: str) -> float:
    """The gain of the other matrix of a pair."""
    if factor == 0 and product != 0:
        raise BadInput(f"{name} = 0 cannot be part of a product of {product:g}. Give {name} above 0.")
    return product / factor if product else 0.0


def _unit_norm(width: int, gain: float) -> nn.RMSNorm:
    norm = nn.RMSNorm(width)
    nn.init.constant_(norm.weight, gain)
    return norm


def frequencies_of(rotated: int, base: float) -> Tensor:
    """base^(-2j/r) for the r/2 pairs of coordinates that turn."""
    frequencies: Tensor = base ** (-torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)
    return frequencies


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Coordinates j and j + r/2 of the first r turn by position * frequency_j; turns (2, n, r/2) [Su 2021]."""
    cosine, sine = turns[:, : x.shape[-2]]
    half = cosine.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine, rest], -1)


def position_bias(layer: blocks.Attention, tokens: int) -> Tensor:
    """Added to the logits: -inf outside mask and window, ALiBi's -slope |a - b|; (heads or 1, n, n) [Press 2022]."""
    position = torch.arange(tokens)
    ahead = position - position[:, None]  # key - query
    reach = tokens if layer.window is None else layer.window
    hidden = (ahead.abs() >= reach) | (
        (ahead > 0) if layer.causal else torch.zeros_like(ahead, dtype=torch.bool)
    )
    bias = torch.zeros(1, tokens, tokens)
    if layer.alibi:
        if layer.heads & (layer.heads - 1):
            raise BadInput(f"alibi with {layer.heads} heads has no network here; expected a power of two.")
        slopes = 2.0 ** (-8.0 * torch.arange(1, layer.heads + 1) / layer.heads)
        bias = -slopes[:, None, None] * ahead.abs()
    return bias.masked_fill(hidden, -torch.inf)
