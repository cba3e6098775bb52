"""Networks built from the same description that the theory reads, and simulated: transformers, random perceptrons.

Shapes: B sequences, n tokens, d width; the stream x is (B, n, d). Of a perceptron: B inputs, N units per layer, L
layers; preactivations of all layers are (L + 1, B, N), the start first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgewise.activations import torch_activation
from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.nouns import blocks
from edgewise.nouns.architecture import Architecture, Perceptron
from edgewise.nouns.blocks import Attention, ResidualBranch


def matrix(fan_in: int, fan_out: int, gain: float, bias: float | None = None) -> nn.Linear:
    """Return a linear map with entries iid N(0, gain^2 / fan_in), weight (fan_out, fan_in).

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
    """Return a norm with learned gains that start at one."""
    if kind == "layer":
        return nn.LayerNorm(width)
    if kind == "rms":
        return nn.RMSNorm(width)
    return ElementwiseNorm(width, kind, slope)


class MLPNet(nn.Module):
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
        query, key, value = (
            p(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
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

    def _bias(self, tokens: int) -> Tensor | None:
        bias = self.bias
        if bias is None:
            return None
        if tokens > bias.shape[-1]:
            raise BadInput(f"expected at most {bias.shape[-1]} tokens, as in the description, got {tokens}.")
        if self.relative is not None:
            # row a, column b: the entry for b - a
            bias = bias + self.relative.unfold(-1, bias.shape[-1], 1).flip(-2)
        return bias[..., :tokens, :tokens]


def _over(product: float, factor: float, name: str) -> float:
    """Return the gain of the other matrix of a pair."""
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
    """Return what logits get: -inf outside mask and window; ALiBi -slope |a - b| (heads or 1, n, n) [Press 2022]."""
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


class BranchNet(nn.Module):
    """x <- outside( skip x + sum over layers of multiplier after(layer(before(x))) )."""

    def __init__(self, branch: ResidualBranch, width: int, tokens: int) -> None:
        super().__init__()
        self.skip, self.multipliers = branch.skip, [layer.branch for layer in branch.layers]
        self.names = [layer.name for layer in branch.layers]
        for layer in branch.layers:
            if isinstance(layer, Attention):
                self.add_module(layer.name, SoftmaxAttention(layer, width, tokens))
            else:
                self.add_module(layer.name, MLPNet(layer, width))
        kind, where, slope = branch.norm.kind, branch.norm, branch.norm.slope
        self.norm_before = norm(kind, width, slope) if where.before else None
        self.norm_after = nn.ModuleList(norm(kind, width, slope) for _ in self.names if where.after)
        self.norm_outside = norm(kind, width, slope) if where.outside else None

    def forward(self, x: Tensor) -> Tensor:
        entering = x if self.norm_before is None else self.norm_before(x)
        total = x if self.skip == 1 else self.skip * x
        for i, (name, multiplier) in enumerate(zip(self.names, self.multipliers, strict=True)):
            out = self.get_submodule(name)(entering)
            out = self.norm_after[i](out) if len(self.norm_after) else out
            total = torch.add(total, out, alpha=multiplier)
        return total if self.norm_outside is None else self.norm_outside(total)


def _blocks(architecture: Architecture) -> nn.ModuleList:
    """Return the blocks of a description, weights drawn from torch's global stream, in order."""
    d, n = architecture.width, architecture.tokens
    branches = [[BranchNet(branch, d, n) for branch in block] for block in architecture.blocks]
    return nn.ModuleList(nn.Sequential(*parts) for parts in branches)


class Transformer(nn.Module):
    """Embedding, blocks, last norm and readout; `architecture` is the description it was built from."""

    def __init__(
        self,
        architecture: Architecture,
        inputs: int,
        outputs: int,
        vectors: bool,
        pooled: bool,
        readout_gain: float,
    ) -> None:
        super().__init__()
        self.architecture, self.pooled = architecture, pooled
        d, n = architecture.width, architecture.tokens
        share = math.sqrt(architecture.embedding_norm / 2)  # half of the first stream's square from positions
        self.embed: nn.Module = matrix(inputs, d, share) if vectors else nn.Embedding(inputs, d)
        self.positions = nn.Embedding(n, d)
        for table in (self.embed, self.positions):
            if isinstance(table, nn.Embedding):
                nn.init.normal_(table.weight, std=share)
        self.blocks = _blocks(architecture)
        after = architecture.norm != "post"  # a post-norm stream is normalized already
        self.final_norm = norm(architecture.norm_kind, d, architecture.norm_slope) if after else None
        self.readout = matrix(d, outputs, readout_gain, bias=0.0)

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Logits (B, n, outputs), or (B, outputs) when pooled; with labels (loss, logits)."""
        logits = self.readout(self.features(inputs))
        if labels is None:
            return logits
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten()), logits

    def features(self, inputs: Tensor) -> Tensor:
        """Return the stream that the readout reads."""
        tokens = inputs.shape[1]
        if tokens > self.architecture.tokens:
            raise BadInput(
                f"expected at most {self.architecture.tokens} tokens, as in the description, got {tokens}."
            )
        x = self.embed(inputs) + self.positions.weight[:tokens]
        for block in self.blocks:
            x = block(x)
        x = x if self.final_norm is None else self.final_norm(x)
        return x.mean(1) if self.pooled else x


class BlockStack(nn.Module):
    """Random blocks of a description, without embedding, last norm and readout."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.blocks = _blocks(architecture)

    def forward(self, x: Tensor) -> Tensor:
        return self.streams(x)[-1]

    def streams(self, x: Tensor) -> list[Tensor]:
        """Return the stream that enters, and the one after every block."""
        streams = [x]
        for block in self.blocks:
            streams.append(block(streams[-1]))
        return streams


def random_tokens(
    architecture: Architecture, overlap: float = 0.0, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Gaussian tokens x_a = sqrt(q) (sqrt(c) common + sqrt(1 - c) own_a), q = embedding_norm; (1, n, d)."""
    if not 0 <= overlap <= 1:
        raise BadInput(f"overlap must be a mean cosine from 0 to 1, got {overlap!r}.")
    n, d = architecture.tokens, architecture.width
    common, own = torch.randn(1, 1, d, dtype=dtype), torch.randn(1, n, d, dtype=dtype)
    return math.sqrt(architecture.embedding_norm) * (
        math.sqrt(overlap) * common + math.sqrt(1 - overlap) * own
    )


def build(
    architecture: Architecture,
    *,
    inputs: int,
    outputs: int,
    vectors: bool = False,
    pooled: bool = False,
    readout_gain: float = 1.0,
) -> Transformer:
    """Return the network of a description, weights drawn from torch's global stream.

    inputs: size of the vocabulary, or of an input vector where `vectors` (of unit mean square per coordinate).
    outputs: classes, per token, or per sequence where `pooled` (the mean over tokens is read).
    """
    if not isinstance(architecture, Architecture):
        kind = type(architecture).__name__
        raise BadInput(f"nets.build takes an edgewise.Architecture, got {kind}. Call describe first.")
    if architecture.unmodelled:
        raise BadInput(
            f"this description leaves out what the network has: {'; '.join(architecture.unmodelled)}."
        )
    return Transformer(architecture, inputs, outputs, vectors, pooled, readout_gain)


@dataclass(frozen=True)
class RandomOrbit:
    """Mean square, 1 - mean cosine, and log |g|^2 over its last for a loss per token and for a pooled one."""

    norm: Array
    separation: Array
    token_gradient: Array
    pooled_gradient: Array


def simulated(architecture: Architecture, *, seed: int, start_overlap: float = 0.0) -> RandomOrbit:
    """Return the orbit of one random network that starts from Gaussian tokens of the given overlap.

    No formula of the theory enters, and no probe: a forward pass, two backward passes, sums of squares, all in double
    precision, so that tokens which have merged to ten digits are still told apart. A row is (L + 1,), embedding first.
    """
    with torch.random.fork_rng():
        streams = _streams(architecture, seed, start_overlap)
        directions = torch.randn_like(streams[-1])  # of the last block, one row per token
        gradients = [_log_squares(streams, g) for g in (directions, directions[:, :1].expand_as(directions))]
    with torch.no_grad():
        norm = np.array([stream.square().mean().item() for stream in streams])
        return RandomOrbit(norm, np.array([_separation(stream[0]) for stream in streams]), *gradients)


def simulated_streams(architecture: Architecture, *, seed: int, start_overlap: float = 0.0) -> list[Tensor]:
    """Return the tokens of the same network at the embedding and after every block, each (n, d)."""
    with torch.random.fork_rng(), torch.no_grad():
        return [stream[0] for stream in _streams(architecture, seed, start_overlap)]


def _streams(architecture: Architecture, seed: int, start_overlap: float) -> list[Tensor]:
    torch.manual_seed(seed)
    tokens, network = random_tokens(architecture, start_overlap), BlockStack(architecture).double()
    return network.requires_grad_(False).streams(tokens.requires_grad_(torch.is_grad_enabled()))


def _separation(tokens: Tensor) -> float:
    """Mean of 1 - cosine over pairs, as sum_a |u_a - mean u|^2 / (n - 1) of unit tokens: nothing cancels."""
    unit = tokens / tokens.norm(dim=-1, keepdim=True)
    return float((unit - unit.mean(0)).square().sum() / (len(unit) - 1))


def _log_squares(streams: list[Tensor], output_gradient: Tensor) -> Array:
    """log of |g|^2 at every stream over that at the last one."""
    gradients = torch.autograd.grad(streams[-1], streams[:-1], output_gradient, retain_graph=True)
    squares = np.array([float(g.square().sum()) for g in (*gradients, output_gradient)])
    return np.asarray(np.log(squares / squares[-1]))


class RandomPerceptron(nn.Module):
    """h^l = W^l phi(h^(l-1)) + b^l with weights N(0, sw2 / fan_in) and biases N(0, sb2)  [Poole 2016, eq. 1].

    Without `inputs` the start h^0 (B, width) is given. With it, data x (B, inputs) enter as h^0 = W x + b. With
    `outputs` the network ends in a readout W phi(h^L) of weight variance 1 / width.
    """

    def __init__(
        self, perceptron: Perceptron, *, inputs: int | None = None, outputs: int | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        gain, bias = math.sqrt(perceptron.weight_variance), math.sqrt(perceptron.bias_variance)
        self.perceptron, self.phi = perceptron, torch_activation(perceptron.activation)
        n = perceptron.width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.entrance = matrix(inputs, n, gain, bias) if inputs else nn.Identity()
            self.layers = nn.ModuleList(matrix(n, n, gain, bias) for _ in range(perceptron.depth))
            self.readout = matrix(n, outputs, 1.0) if outputs else None

    def preactivations(self, start: Tensor) -> Tensor:
        """h of every layer, (L + 1, B, N)."""
        h = [self.entrance(start)]
        for layer in self.layers:
            h.append(layer(self.phi(h[-1])))
        return torch.stack(h)

    def forward(self, start: Tensor) -> Tensor:
        h = self.entrance(start)
        for layer in self.layers:
            h = layer(self.phi(h))
        return h if self.readout is None else self.readout(self.phi(h))


def circle(angles: Sequence[float] | Tensor, width: int, length: float = 1.0, seed: int = 0) -> Tensor:
    """Draw sqrt(N q)(u0 cos t + u1 sin t) on a random plane circle (B, N): mean square q, overlap q cos(t - t').

    Two of them at angles 0 and arccos(c) are a pair of correlation c. Differentiable in the angles.
    """
    if width < 2 or length < 0:
        raise BadInput(
            f"a circle of width {width} and length {length}: expected a width >= 2 and a length >= 0"
        )
    t = torch.as_tensor(angles, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    plane = torch.linalg.qr(torch.randn(width, 2, generator=generator, dtype=torch.float64))[0]
    return math.sqrt(width * length) * torch.stack([torch.cos(t), torch.sin(t)], dim=-1) @ plane.T


def circle_derivatives(
    network: RandomPerceptron, angles: Sequence[float] | Tensor, length: float, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Position h, velocity dh/dt and acceleration d2h/dt2 of a circle at every layer, each (L + 1, B, N).

    Exact, by differentiating twice in forward mode: a finely folded curve needs no finely sampled angles.
    """
    t = torch.as_tensor(angles, dtype=torch.float64)
    width, ones = network.perceptron.width, torch.ones_like(t)

    def position(t: Tensor) -> Tensor:
        return network.preactivations(circle(t, width, length, seed))

    def moving(t: Tensor) -> Any:
        return torch.func.jvp(position, (t,), (ones,))

    with torch.no_grad():
        twice: Any = torch.func.jvp(moving, (t,), (ones,))
    (h, v), (_, a) = twice
    return h, v, a
