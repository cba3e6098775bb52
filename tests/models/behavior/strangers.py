"""Models in shapes that names and class names do not give away: each is built, and what it is is known from above."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, HIDDEN, VOCABULARY, DEPTH = 32, 4, 48, 64, 3


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Mix(nn.Module):
    """Attention with everything optional: mask, window, rotation by complex numbers, sinks, norms, a gate."""

    def __init__(
        self,
        *,
        causal: bool = True,
        window: int | None = None,
        turn: bool = False,
        sink: bool = False,
        qk_norm: bool = False,
        bias: bool = False,
        gate: bool = False,
    ) -> None:
        super().__init__()
        self.a, self.z = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.causal, self.window, self.turn, self.bias = causal, window, turn, bias
        self.sink = nn.Parameter(torch.zeros(HEADS, 1, 1)) if sink else None
        self.scale = nn.Parameter(torch.full((2,), 3.0)) if qk_norm else None
        self.gate = nn.Linear(WIDTH, WIDTH) if gate else None

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        q, k, v = (heads(part) for part in self.a(x).chunk(3, -1))
        if self.scale is not None:
            q, k = (F.normalize(t, dim=-1) * s for t, s in zip((q, k), self.scale, strict=True))
        if self.turn:
            q, k = rotate(q), rotate(k)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        n = x.shape[1]
        distance = torch.arange(n)[:, None] - torch.arange(n)
        if self.bias:
            scores = scores - distance.abs() * torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None]
        keep = distance >= 0 if self.causal else torch.ones(n, n, dtype=torch.bool)
        if self.window is not None:
            keep = keep & (distance.abs() < self.window)
        scores = scores.masked_fill(~(keep if allowed is None else allowed), float("-inf"))
        if self.sink is not None:
            scores = torch.cat([scores, self.sink.expand(x.shape[0], -1, n, 1)], -1)
            weights = scores.softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        out = (weights @ v).transpose(1, 2).flatten(2)
        return self.z(out if self.gate is None else out * torch.sigmoid(self.gate(x)))


def rotate(x: Tensor) -> Tensor:
    angles = torch.arange(x.shape[-2])[:, None] * 0.3 ** torch.arange(x.shape[-1] // 2)
    turned = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


class Think(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor] = F.gelu, gated: bool = False) -> None:
        super().__init__()
        self.u, self.d = nn.Linear(WIDTH, HIDDEN * (2 if gated else 1)), nn.Linear(HIDDEN, WIDTH)
        self.activation, self.gated = activation, gated

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.u(x)
        if self.gated:
            one, other = hidden.chunk(2, -1)
            return self.d(self.activation(one) * other)
        return self.d(self.activation(hidden))


class Words(nn.Module):
    """Ids to a stream, blocks, ids again; a subclass says what a block is and how it is called."""

    def __init__(self, *blocks: nn.Module, positions: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Embedding(VOCABULARY, WIDTH) if positions else None
        self.stuff = nn.ModuleList(blocks)
        self.out = nn.Linear(WIDTH, VOCABULARY)

    def start(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        return x if self.place is None else x + self.place(torch.arange(ids.shape[1]))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.start(ids)
        for block in self.stuff:
            x = block(x)
        return self.out(x)


class Block(nn.Module):
    """A residual block: `style` says where norms stand and how the sums are written."""

    def __init__(self, mix: nn.Module, think: nn.Module, style: str = "pre", amount: float = 1.0) -> None:
        super().__init__()
        self.mix, self.think, self.style, self.amount = mix, think, style, amount
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.rms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.alpha = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        one, two, three, four = self.norms
        if self.style == "pre":
            x = x + self.amount * self.mix(one(x))
            return x + self.amount * self.think(two(x))
        if self.style == "in place":
            x += self.mix(self.rms[0](x))
            return x.add_(self.think(self.rms[1](x)))
        if self.style == "alpha":
            x = torch.add(x, self.mix(one(x)), alpha=0.5)
            return torch.add(0.25 * x, self.think(two(x)), alpha=2)
        if self.style == "sandwich":
            x = x + two(self.mix(one(x)))
            return x + four(self.think(three(x)))
        if self.style == "branch":
            x = x + self.rms[0](self.mix(x))
            return x + self.rms[1](self.think(x))
        if self.style == "post":
            x = one(3.0 * x + self.mix(x))
            return two(3.0 * x + self.think(x))
        if self.style == "parallel":
            y = one(x)
            return x + self.mix(y) + self.think(y)
        if self.style == "parallel together":
            y = one(x)
            return x + (self.mix(y) + self.think(y)) * 0.5
        if self.style == "rezero":
            x = x + self.alpha[0] * self.mix(x)
            return x + self.alpha[1] * self.think(x)
        if self.style == "rescaled":
            x = x + self.mix(one(x))
            return 0.5 * (x + self.think(two(x)))
        if self.style == "highway":
            gate = torch.sigmoid(self.think(x))
            return gate * x + (1 - gate) * self.mix(x)
        if self.style == "weighed by channel":
            x = torch.lerp(x, self.mix(one(x)), torch.linspace(0.1, 0.4, WIDTH))
            return x + self.think(two(x))
        assert self.style == "checkpoint"
        x = x + checkpoint(lambda y: self.mix(one(y)), x, use_reentrant=False)
        return x + checkpoint(lambda y: self.think(two(y)), x, use_reentrant=False)


class Pairs(Words):
    """Blocks as pairs in a list of lists, a mask made by the model, and no block module at all."""

    def __init__(self) -> None:
        super().__init__()
        self.stuff = nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(WIDTH), Mix(causal=False), nn.LayerNorm(WIDTH), Think(torch.relu)])
            for _ in range(DEPTH)
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.start(ids)
        allowed = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        for one, mix, two, think in self.stuff:
            x = mix(one(x), allowed) + x
            x = think(two(x)) + x
        return self.out(x)


class Alternating(Words):
    """Attention and MLP as entries of one list, each with its own norm."""

    def __init__(self) -> None:
        parts = [part for _ in range(DEPTH) for part in (Mix(), Think())]
        super().__init__(*(nn.Sequential(nn.LayerNorm(WIDTH), part) for part in parts))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.start(ids)
        for part in self.stuff:
            x = x + part(x)
        return self.out(x)


class Experts(nn.Module):
    """Two of four experts in a loop, weighed by a router."""

    def __init__(self) -> None:
        super().__init__()
        self.choose = nn.Linear(WIDTH, 4, bias=False)
        self.each = nn.ModuleList(Think(F.silu, gated=True) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights, chosen = self.choose(flat).softmax(-1).topk(2, -1)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.each):
            rows, place = (chosen == i).nonzero(as_tuple=True)
            if len(rows):
                out.index_add_(0, rows, expert(flat[rows]) * weights[rows, place][:, None])
        return out.view_as(x)


class Diffusion(nn.Module):
    """adaLN-zero: norms without weights, shifted, scaled and gated by what a time says; gates start at zero."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.think = Mix(causal=False), Think()
            self.modulate = nn.Linear(WIDTH, 6 * WIDTH)
            nn.init.zeros_(self.modulate.weight)
            nn.init.zeros_(self.modulate.bias)

        def forward(self, x: Tensor, c: Tensor) -> Tensor:
            a, b, g, d, e, h = self.modulate(F.silu(c))[:, None].chunk(6, -1)
            x = x + g * self.mix(F.layer_norm(x, (WIDTH,)) * (1 + b) + a)
            return x + h * self.think(F.layer_norm(x, (WIDTH,)) * (1 + e) + d)

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.when = nn.Conv2d(3, WIDTH, 4, 4), nn.Linear(1, WIDTH)
        self.where = nn.Parameter(0.1 * torch.randn(1, 64, WIDTH))
        self.parts = nn.ModuleList(self.Part() for _ in range(DEPTH))
        self.last = nn.Linear(WIDTH, 48)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x, c = x + self.where[:, : x.shape[1]], self.when(t[:, None])
        for part in self.parts:
            x = part(x, c)
        return self.last(x)


class Fused(nn.Module):
    """Attention and MLP share their first and last matrices: one branch that is not attention alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH + HIDDEN)
        self.last = nn.Linear(WIDTH + HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        both = self.first(self.norm(x))
        q, k, v = (heads(t) for t in both[..., : 3 * WIDTH].chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return x + self.last(torch.cat([mixed, F.gelu(both[..., 3 * WIDTH :])], -1))


class Decay(nn.Module):
    """A state space: a decaying sum of what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.i, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y, state, out = self.i(x), torch.zeros(x.shape[0], WIDTH), []
        for t in range(x.shape[1]):
            state = 0.9 * state + y[:, t]
            out.append(state)
        return self.o(torch.stack(out, 1))


class HyperConnected(Words):
    """Two streams that matrices mix between blocks: there is no one residual stream."""

    def __init__(self) -> None:
        super().__init__(*(Think() for _ in range(DEPTH)))
        self.between = nn.ParameterList(nn.Parameter(torch.eye(2) + 0.1) for _ in range(DEPTH))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.start(ids)
        x = torch.stack([x, x], -1)
        for mixing, block in zip(self.between, self.stuff, strict=True):
            x = x @ mixing
            x = torch.stack([x[..., 0] + block(x[..., 1]), x[..., 1]], -1)
        return self.out(x.sum(-1))


class Shared(Words):
    """One block, called again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.same = Block(Mix(causal=False), Think())

    def forward(self, ids: Tensor) -> Tensor:
        x = self.start(ids)
        for _ in range(DEPTH):
            x = self.same(x)
        return self.out(x)


class ByCaller(Words):
    """Torch's own attention; the causal mask is made outside and handed to it."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.mix, self.think = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), Think(F.silu)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            y = self.one(x)
            x = (
                x + self.mix(y, y, y, attn_mask=mask)[0]
            )  # its weights are handed out too, and nobody reads them
            return x + self.think(self.two(x))

    def __init__(self) -> None:
        super().__init__(*(self.Part() for _ in range(DEPTH)))

    def forward(self, ids: Tensor) -> Tensor:
        x, n = self.start(ids), ids.shape[1]
        for part in self.stuff:
            x = part(x, torch.ones(n, n, dtype=torch.bool).triu(1))
        return self.out(x)


def blocks(
    style: str = "pre", amount: float = 1.0, think: Callable[[], nn.Module] = Think, **mix: object
) -> nn.Module:
    return Words(*(Block(Mix(**mix), think(), style, amount) for _ in range(DEPTH)))  # type: ignore[arg-type]


def ids(tokens: int = 20, entries: int = 2) -> Tensor:
    return torch.randint(VOCABULARY, (entries, tokens), generator=torch.Generator().manual_seed(3))
