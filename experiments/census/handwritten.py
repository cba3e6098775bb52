"""Transformers as strangers write them: in none of the names or layouts of a known family, with what is true of each.

model, batch = MODELS["pairs"].build()
MODELS["pairs"].label        in the words of labels.json
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from .handwritten_parts import (
    BATCH,
    HEADS,
    HIDDEN,
    LAYERS,
    TOKENS,
    VOCABULARY,
    WIDTH,
    Add,
    Convolution,
    Experts,
    Feed,
    Gated,
    Linear,
    Mix,
    Torch,
    attend,
    causal,
    heads_of,
)

Label = dict[str, Any]
PLAIN: Label = {
    "depth": LAYERS,
    "causal": False,
    "window": None,
    "norm": "pre",
    "positions": "absolute",
    "gated": False,
    "qk_norm": False,
    "parallel": False,
    "attention": "softmax",
    "skip": 1.0,
    "branch": 1.0,
}


@dataclass(frozen=True)
class Handwritten:
    """A way to make a model and its batch, and what a reader should say about its stacks."""

    make: Callable[[], nn.Module]
    label: tuple[Label, ...]
    inputs: str = "ids"
    train: bool = False

    def build(self) -> tuple[nn.Module, dict[str, Tensor]]:
        torch.manual_seed(0)
        return self.make().train(self.train), batch(self.inputs)


def batch(kind: str) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(VOCABULARY, (BATCH, TOKENS), generator=draw)
    stream = torch.randn(BATCH, TOKENS, WIDTH, generator=draw)
    kinds = {
        "ids": {"ids": ids},
        "stream": {"src": stream},
        "sequence first": {"src": stream.transpose(0, 1)},
        "two streams": {"src": stream, "tgt": stream.roll(1, 0)},
        "masked": {"src": stream, "mask": causal(TOKENS)},
    }
    return kinds[kind]


class Language(nn.Module):
    """Ids to logits around `body`, which subclasses write."""

    def __init__(self, positions: bool = True) -> None:
        super().__init__()
        self.tokens, self.out = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.places = nn.Parameter(torch.randn(TOKENS, WIDTH)) if positions else None

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        x = x if self.places is None else x + self.places[: ids.shape[1]]
        return self.out(self.body(x))

    def body(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Pairs(Language):
    """Attention and feed-forward as pairs in a ModuleList, norms inside the parts."""

    def __init__(self) -> None:
        super().__init__()
        mix = [
            nn.ModuleList(
                [nn.Sequential(nn.LayerNorm(WIDTH), Mix()), nn.Sequential(nn.LayerNorm(WIDTH), Feed())]
            )
            for _ in range(LAYERS)
        ]
        self.stages = nn.ModuleList(mix)

    def body(self, x: Tensor) -> Tensor:
        for mix, feed in self.stages:  # type: ignore[misc]
            x = mix(x) + x
            x = feed(x) + x
        return x


class Alternating(Language):
    """One Sequential in which attention and feed-forward take turns, each with its own skip."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Sequential(*(Add(Feed() if i % 2 else Mix()) for i in range(2 * LAYERS)))

    def body(self, x: Tensor) -> Tensor:
        return self.line(x)


class Nested(Language):
    """Blocks that are Sequentials of wrapped parts."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.Sequential(*(nn.Sequential(Add(Mix()), Add(Feed())) for _ in range(LAYERS)))

    def body(self, x: Tensor) -> Tensor:
        return self.all(x)


class ComplexRotation(Language):
    """Rotary positions as complex numbers, causal mask made by the model, gated feed-forward."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
            self.n1, self.n2, self.feed = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH), Gated()

        def forward(self, x: Tensor, turn: Tensor, mask: Tensor) -> Tensor:
            y = self.n1(x)
            q, k, v = heads_of(self.wq(y)), heads_of(self.wk(y)), heads_of(self.wv(y))
            q, k = (self.rotate(t, turn) for t in (q, k))
            x = x + self.wo(attend(q, k, v, mask))
            return x + self.feed(self.n2(x))

        @staticmethod
        def rotate(x: Tensor, turn: Tensor) -> Tensor:
            pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
            return torch.view_as_real(pairs * turn).flatten(-2)

    def __init__(self) -> None:
        super().__init__(positions=False)
        self.layers = nn.ModuleList([self.Layer() for _ in range(LAYERS)])

    def body(self, x: Tensor) -> Tensor:
        half = WIDTH // HEADS // 2
        angles = torch.outer(torch.arange(x.shape[1]), 10000.0 ** (-torch.arange(half) / half))
        turn, mask = torch.polar(torch.ones_like(angles), angles), causal(x.shape[1])
        for layer in self.layers:
            x = layer(x, turn, mask)
        return x


class Modulated(nn.Module):
    """A diffusion transformer's blocks: shift, scale and gate from a condition, all zero at the start."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mix, self.feed = nn.LayerNorm(WIDTH, elementwise_affine=False), Mix(), Feed()
            self.knobs = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))
            nn.init.zeros_(self.knobs[1].weight)
            nn.init.zeros_(self.knobs[1].bias)

        def forward(self, x: Tensor, condition: Tensor) -> Tensor:
            s1, t1, g1, s2, t2, g2 = self.knobs(condition)[:, None].chunk(6, -1)
            x = x + g1 * self.mix(self.norm(x) * (1 + s1) + t1)
            return x + g2 * self.feed(self.norm(x) * (1 + s2) + t2)

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([self.Layer() for _ in range(LAYERS)])
        self.time, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, src: Tensor) -> Tensor:
        condition, x = self.time(src.mean(1)), src
        for block in self.blocks:
            x = block(x, condition)
        return self.last(x)


class Blocks(Language):
    """A list of blocks of one class that take the stream and a bias on the scores."""

    def __init__(
        self,
        block: Callable[[], nn.Module],
        bias: Callable[[int], Tensor] | None = None,
        positions: bool = True,
        shared: bool = False,
    ) -> None:
        super().__init__(positions)
        self.bias = bias
        one = block()
        self.chain = nn.ModuleList([one if shared else block() for _ in range(1 if shared else LAYERS)])
        self.repeats = LAYERS if shared else 1

    def body(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias(x.shape[1])
        for _ in range(self.repeats):
            for block in self.chain:
                x = block(x, bias)
        return x


class Pre(nn.Module):
    """x + branch * f(norm x), with `skip` and `branch` as plain numbers; `after` stands behind each branch."""

    def __init__(
        self,
        mix: nn.Module | None = None,
        feed: nn.Module | None = None,
        skip: float = 1.0,
        branch: float = 1.0,
        after: Callable[[], nn.Module] = nn.Identity,
    ) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.feed, self.after_mix, self.after_feed = mix or Mix(), feed or Feed(), after(), after()
        self.skip, self.branch = skip, branch

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        x = self.skip * x + self.branch * self.after_mix(self.mix(self.first(x), bias))
        return self.skip * x + self.branch * self.after_feed(self.feed(self.second(x)))


class Post(Pre):
    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        x = self.first(x + self.mix(x, bias))
        return self.second(x + self.feed(x))


class Parallel(Pre):
    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        y = self.first(x)
        return x + self.mix(y, bias) + self.feed(y)


class ReZero(nn.Module):
    """x + a f(x) without norms, a = 0 at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.feed, self.a = Mix(), Feed(), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        x = x + self.a[0] * self.mix(x, bias)
        return x + self.a[1] * self.feed(x)


class Interpolated(Pre):
    """x moves towards f(x) by a learned share, as in normalized transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.full((WIDTH,), 0.25))

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        x = torch.lerp(x, self.mix(self.first(x), bias), self.share)
        return torch.lerp(x, self.feed(self.second(x)), self.share)


class Recomputed(Pre):
    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        out: Tensor = checkpoint(super().forward, x, bias, use_reentrant=False)
        return out


class Hybrid(Blocks):
    """Three blocks that mix by convolution and one by attention."""

    def __init__(self) -> None:
        super().__init__(Pre, causal)
        for place in range(LAYERS - 1):
            self.chain[place] = Pre(Convolution())


def window(tokens: int, width: int = 8) -> Tensor:
    far = torch.arange(tokens)[:, None] - torch.arange(tokens) >= width
    return causal(tokens).masked_fill(far, float("-inf"))


def strided(tokens: int) -> Tensor:
    """Causal, and of the earlier tokens only the two nearest and every eighth."""
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
    return causal(tokens).masked_fill((distance > 2) & (distance % 8 != 0), float("-inf"))


def slopes(tokens: int) -> Tensor:
    distance = (torch.arange(tokens)[:, None] - torch.arange(tokens)).clamp(min=0)
    return causal(tokens) - 2.0 ** -torch.arange(1.0, HEADS + 1)[:, None, None] * distance


def encoder(first: bool = False, batch_first: bool = True) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, HIDDEN, 0.1, "gelu", batch_first=batch_first, norm_first=first
    )
    return nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)


def parametrized() -> nn.Module:
    """Output matrices under weight normalization: `weight` is computed, not a parameter."""
    model = Blocks(Pre)
    for block in model.chain:
        weight_norm(block.mix.back)
        weight_norm(block.feed[2])
    return model


def copies() -> nn.Module:
    model = Blocks(Pre)
    model.chain = nn.ModuleList([copy.deepcopy(model.chain[0]) for _ in range(LAYERS)])
    return model


def case(
    make: Callable[[], nn.Module], inputs: str = "ids", train: bool = False, **facts: Any
) -> Handwritten:
    return Handwritten(make, ({**PLAIN, **facts},), inputs, train)


# torch's own stacks: blocks are copies of one, queries and keys are not seen apart, nothing knows of positions.
TORCH: Label = {"positions": "none", "qk_norm": None, "copies": True}

MODELS = {
    "pairs": case(Pairs),
    "alternating": case(Alternating, depth=[LAYERS, 2 * LAYERS]),
    "nested sequential": case(Nested),
    "complex rotation": case(ComplexRotation, causal=True, positions="rotary", gated=True),
    "adaLN-zero": case(Modulated, "stream", positions="none", branch=0.0),
    "expert loop": case(lambda: Blocks(lambda: Pre(feed=Experts())), gated=True),
    "caller's mask": case(lambda: Blocks(lambda: Pre(Torch()), causal), causal=True, qk_norm=None),
    "no mask": case(lambda: Blocks(lambda: Pre(Torch())), qk_norm=None),
    "torch encoder, post": case(encoder, "stream", norm="post", **TORCH),
    "torch encoder, pre": case(lambda: encoder(True), "stream", **TORCH),
    "torch encoder, train mode": case(lambda: encoder(True), "stream", True, **TORCH),
    "torch encoder, sequence first": case(lambda: encoder(True, False), "sequence first", **TORCH),
    "torch encoder, causal": case(encoder, "masked", norm="post", causal=True, **TORCH),
    "torch transformer": Handwritten(
        lambda: nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, HIDDEN, batch_first=True),
        (
            {
                **PLAIN,
                "name": "encoder.layers",
                "norm": "post",
                **TORCH,
                "copies": False,
            },  # it draws every matrix anew
            {**PLAIN, "name": "decoder.layers", "norm": "post", **TORCH, "copies": False},
        ),
        "two streams",
    ),
    "causal bias": case(lambda: Blocks(Pre, causal), causal=True),
    "window": case(lambda: Blocks(Pre, window), causal=True, window=8),
    "strided mask": case(lambda: Blocks(Pre, strided), causal=True, window="sparse"),
    "ALiBi": case(lambda: Blocks(Pre, slopes, positions=False), causal=True, positions="alibi"),
    "post": case(lambda: Blocks(Post), norm="post"),
    "gated post": case(lambda: Blocks(lambda: Post(feed=Gated())), norm="post", gated=True),
    "sandwich": case(lambda: Blocks(lambda: Pre(after=lambda: nn.LayerNorm(WIDTH))), norm="sandwich"),
    "identity after": case(lambda: Blocks(lambda: Pre(after=nn.Identity), causal), causal=True),
    "queries and keys normed": case(lambda: Blocks(lambda: Pre(Mix(norm=True))), qk_norm=True),
    "multipliers": case(lambda: Blocks(lambda: Pre(skip=0.9, branch=0.25)), skip=0.9, branch=0.25),
    "parallel": case(lambda: Blocks(Parallel, causal), causal=True, parallel=True),
    "ReZero": case(lambda: Blocks(ReZero), norm="none", branch=0.0),
    "interpolated": case(lambda: Blocks(Interpolated), skip=0.75, branch=0.25),
    "relu": case(lambda: Blocks(lambda: Pre(feed=Feed(nn.ReLU)))),
    "shared block": case(lambda: Blocks(Pre, shared=True)),
    "copied blocks": case(copies, copies=True),
    "recomputed": case(lambda: Blocks(Recomputed)),
    "weight norm": case(parametrized),
    "bfloat16": case(lambda: Blocks(Pre, causal).bfloat16(), causal=True),
    "linear attention": case(lambda: Blocks(lambda: Pre(Linear())), causal=True, attention="linear"),
    "convolution": case(lambda: Blocks(lambda: Pre(Convolution())), causal=True, attention="none"),
    "hybrid": case(Hybrid, causal=True, attention="hybrid"),
}
