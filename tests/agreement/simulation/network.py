"""One block of a random transformer, written plainly: draw the weights, apply them.

Shapes: x (n, d); queries (heads, n, head_width); weights (fan_out, fan_in).
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.agreement.simulation.knobs import Knobs

ACTIVATIONS = {
    "linear": lambda x: x,
    "relu": torch.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.01),
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "erf": torch.erf,
}

Weights = dict[str, Tensor]


def gaussian(
    generator: np.random.Generator, *shape: int, std: float = 1.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Independent N(0, std^2) entries; numpy's generator because it is several times faster than torch's."""
    return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32)).to(dtype).mul_(std)


def draw_weights(knobs: Knobs, generator: np.random.Generator, dtype: torch.dtype = torch.float32) -> Weights:
    """One block's matrices (`knobs` from `Knobs.at`): iid N(0, gain^2 / fan_in), none where a branch is 0."""
    weights: Weights = {}

    def draw(name: str, gain: float, fan_out: int, fan_in: int) -> None:
        weights[name] = gaussian(generator, fan_out, fan_in, std=gain / sqrt(fan_in), dtype=dtype)

    d, inner, shared = knobs.width, knobs.heads * knobs.head_width, knobs.kv_heads * knobs.head_width
    if knobs.attention_branch != 0:
        query_gain = knobs.score_gain / knobs.key_gain if knobs.score_gain else 0.0
        draw("W_Q", 1.0 if knobs.qk_norm else query_gain, inner, d)
        draw("W_K", 1.0 if knobs.qk_norm else knobs.key_gain, shared, d)
        draw("W_V", knobs.value_gain / knobs.output_gain if knobs.value_gain else 0.0, shared, d)
        draw("W_O", knobs.output_gain, d, inner)
        if knobs.position_bias:
            size = (knobs.heads, 2 * knobs.tokens - 1)
            weights["distances"] = gaussian(generator, *size, std=knobs.position_bias, dtype=dtype)
    if knobs.mlp_branch != 0:
        draw("W_1", knobs.mlp_in_gain, knobs.mlp_width, d)
        if knobs.gated:
            draw("W_linear", knobs.mlp_linear_gain, knobs.mlp_width, d)
        draw("W_2", knobs.mlp_out_gain, d, knobs.mlp_width)
        weights["bias"] = gaussian(generator, knobs.mlp_width, std=knobs.mlp_bias, dtype=dtype)
    return weights


def normalize(x: Tensor, knobs: Knobs) -> Tensor:
    """LayerNorm or RMSNorm without learned gains, or tanh / erf of norm_slope x in its place."""
    if knobs.norm_kind == "tanh":
        return torch.tanh(knobs.norm_slope * x)
    if knobs.norm_kind == "erf":
        return torch.erf(knobs.norm_slope * x)
    if knobs.norm_kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    return x * x.square().mean(-1, keepdim=True).rsqrt()


def rotate(x: Tensor, fraction: float, base: float) -> Tensor:
    """Rotary embedding: coordinates j and j + r/2 of the first r turn by position * base^(-2j/r)."""
    rotated = 2 * round(fraction * x.shape[-1] / 2)
    frequency = base ** (-torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * frequency
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second, rest = x[..., : rotated // 2], x[..., rotated // 2 : rotated], x[..., rotated:]
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine, rest], -1)


def logit_offset(knobs: Knobs, dtype: torch.dtype) -> Tensor:
    """Added to the logits: -inf outside the mask, and ALiBi's -2^(-8h/heads) |a - b|; (heads or 1, n, n)."""
    position = torch.arange(knobs.tokens)
    ahead = position[None, :] - position[:, None]  # b - a
    hidden = torch.zeros_like(ahead, dtype=torch.bool)
    if knobs.causal:
        hidden |= ahead > 0
    if knobs.window is not None:
        hidden |= ahead.abs() >= knobs.window
    offset = torch.zeros(1, knobs.tokens, knobs.tokens, dtype=dtype)
    if knobs.alibi:
        slope = 2.0 ** (-8.0 * torch.arange(1, knobs.heads + 1) / knobs.heads)
        offset = -slope[:, None, None].to(dtype) * ahead.abs()
    return offset.masked_fill(hidden, -torch.inf)


def attention(u: Tensor, weights: Weights, knobs: Knobs) -> Tensor:
    """Softmax attention with grouped keys: concat_h(softmax(q k^T / sqrt(head_width)) v) W_O^T."""

    def split(name: str) -> Tensor:
        return (u @ weights[name].T).unflatten(-1, (-1, knobs.head_width)).transpose(0, 1)

    query, key, value = split("W_Q"), split("W_K"), split("W_V")
    if knobs.qk_norm:
        query = query * query.square().mean(-1, keepdim=True).rsqrt() * knobs.score_gain
        key = key * key.square().mean(-1, keepdim=True).rsqrt()
    if knobs.rope:
        query, key = (rotate(side, float(knobs.rope), knobs.rope_base) for side in (query, key))
    share = knobs.heads // knobs.kv_heads
    key, value = key.repeat_interleave(share, 0), value.repeat_interleave(share, 0)
    logits = query @ key.transpose(-1, -2) / sqrt(knobs.head_width) + logit_offset(knobs, u.dtype)
    if "distances" in weights:
        position = torch.arange(len(u))
        logits = logits + weights["distances"][:, position[None, :] - position[:, None] + knobs.tokens - 1]
    mixed = logits.softmax(-1) @ value
    return mixed.transpose(0, 1).flatten(1) @ weights["W_O"].T


def mlp(u: Tensor, weights: Weights, knobs: Knobs) -> Tensor:
    """W_2 phi(W_1 u + b), or W_2 (phi(W_1 u + b) * W_linear u) when gated."""
    hidden = ACTIVATIONS[knobs.activation](u @ weights["W_1"].T + weights["bias"])
    if knobs.gated:
        hidden = hidden * (u @ weights["W_linear"].T)
    return hidden @ weights["W_2"].T


def block(x: Tensor, weights: Weights, knobs: Knobs) -> Tensor:
    """x <- skip x + branch layer(x), attention then MLP (or both at once), norms where `knobs.norm` says."""
    layers = {"attention": attention, "mlp": mlp}
    skips = {"attention": knobs.attention_skip, "mlp": knobs.mlp_skip}
    multipliers = {"attention": knobs.attention_branch, "mlp": knobs.mlp_branch}

    def enter(x: Tensor) -> Tensor:
        return normalize(x, knobs) if knobs.norm in ("pre", "sandwich") else x

    def branch(name: str, u: Tensor) -> Tensor | float:
        if multipliers[name] == 0:
            return 0.0
        out = layers[name](u, weights, knobs)
        return multipliers[name] * (normalize(out, knobs) if knobs.norm in ("sandwich", "branch") else out)

    def leave(x: Tensor) -> Tensor:
        return normalize(x, knobs) if knobs.norm == "post" else x

    if knobs.parallel:
        u = enter(x)
        return leave(knobs.attention_skip * x + branch("attention", u) + branch("mlp", u))
    for name in layers:
        x = leave(skips[name] * x + branch(name, enter(x)))
    return x
