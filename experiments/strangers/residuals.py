"""By hand: how branches come back to the stream, and where the norms stand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layouts import Mixing, Step, Text
from .truth import WIDTH, Truth, ids, stranger


def feed(hidden: int = 64, act: type[nn.Module] = nn.GELU) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, hidden), act(), nn.Linear(hidden, WIDTH))


class Deep(Text):
    """`depth` layers of the stranger's class."""

    def __init__(self, layer: Callable[[], nn.Module], depth: int, places: bool = True) -> None:
        super().__init__(places)
        self.tower = nn.ModuleList(layer() for _ in range(depth))

    def body(self, x: Tensor) -> Tensor:
        for layer in self.tower:
            x = layer(x)
        return x


class Two(nn.Module):
    """Attention, feed-forward and two norms; `join` writes the sum."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.LayerNorm, causal: bool = True) -> None:
        super().__init__()
        self.attend, self.think = Mixing(causal=causal), feed()
        self.one, self.two = norm(WIDTH), norm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.join(x, self.attend(self.one(x)))
        return self.join(x, self.think(self.two(x)))

    def join(self, x: Tensor, f: Tensor) -> Tensor:
        raise NotImplementedError


def joined(how: Callable[[Tensor, Tensor], Tensor], depth: int, **options: Any) -> Callable[[], nn.Module]:
    class Joined(Two):
        def join(self, x: Tensor, f: Tensor) -> Tensor:
            return how(x, f)

    return lambda: Deep(lambda: Joined(**options), depth)


class Post(Two):
    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x + self.attend(x))
        return self.two(x + self.think(x))


class Sandwich(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a0, self.a1, self.b0, self.b1 = (nn.RMSNorm(WIDTH) for _ in range(4))
        self.attend, self.think = Mixing(), feed(act=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.a1(self.attend(self.a0(x)))
        return x + self.b1(self.think(self.b0(x)))


class After(Two):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.one(self.attend(x))
        return x + self.two(self.think(x))


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend, self.think = Mixing(), feed(act=nn.Tanh)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.25 * self.attend(x)
        return x + 0.25 * self.think(x)


class OneNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln, self.attend, self.think = nn.LayerNorm(WIDTH), Mixing(), feed()

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln(x)
        return x + self.attend(y) + self.think(y)


class TwoNorms(Two):
    def forward(self, x: Tensor) -> Tensor:
        return x + (self.attend(self.one(x)) + self.think(self.two(x)))


class ReZero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend, self.think, self.resweight = (
            Mixing(causal=False),
            feed(act=nn.ReLU),
            nn.Parameter(torch.zeros(1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.resweight * self.attend(x)
        return x + self.resweight * self.think(x)


class LayerScale(Two):
    def __init__(self) -> None:
        super().__init__(causal=False)
        self.gamma_1, self.gamma_2 = (nn.Parameter(torch.full((WIDTH,), 0.1)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gamma_1 * self.attend(self.one(x))
        return x + self.gamma_2 * self.think(self.two(x))


class DeepNorm(Two):
    alpha = (2 * 4) ** 0.25

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x * self.alpha + self.attend(x))
        return self.two(x * self.alpha + self.think(x))


stranger("post-norm by hand", Truth(3, norm="post"), batch=ids)(lambda: Deep(Post, 3))
stranger("sandwich of RMS norms", Truth(4, norm="sandwich", norm_kind="rms", activation="silu"), batch=ids)(
    lambda: Deep(Sandwich, 4)
)
stranger("norms after the branch only", Truth(3, norm="branch"), batch=ids)(lambda: Deep(After, 3))
stranger(
    "no norm, branches times a quarter",
    Truth(4, norm="none", norm_kind=None, activation="tanh", attention_branch=0.25, mlp_branch=0.25),
    batch=ids,
)(lambda: Deep(Bare, 4))
stranger("parallel with one norm", Truth(3, parallel=True), batch=ids)(lambda: Deep(OneNorm, 3))
stranger("parallel with two norms", Truth(3, parallel=True), batch=ids)(lambda: Deep(TwoNorms, 3))
stranger(
    "rezero gates of zero",
    Truth(
        5,
        sees="full",
        norm="none",
        norm_kind=None,
        activation="relu",
        attention_branch=0.0,
        mlp_branch=0.0,
        keep=("*resweight",),
    ),
    batch=ids,
)(lambda: Deep(ReZero, 5))
stranger(
    "layer scale of a tenth",
    Truth(3, sees="full", attention_branch=0.1, mlp_branch=0.1, keep=("*gamma_*",)),
    batch=ids,
)(lambda: Deep(LayerScale, 3))
stranger("deepnorm multipliers", Truth(4, norm="post", skip=DeepNorm.alpha), batch=ids)(
    lambda: Deep(DeepNorm, 4)
)
stranger("sum by torch.add", Truth(3), batch=ids)(joined(torch.add, 3))
stranger("sum in place", Truth(4), batch=ids)(joined(lambda x, f: x.clone().add_(f), 4))
stranger("sum times 0.7", Truth(3, skip=0.7, attention_branch=0.7, mlp_branch=0.7), batch=ids)(
    joined(lambda x, f: (x + f) * 0.7, 3)
)
stranger("lerp toward the branch", Truth(3, skip=0.7, attention_branch=0.3, mlp_branch=0.3), batch=ids)(
    joined(lambda x, f: torch.lerp(x, f, 0.3), 3)
)
stranger(
    "norm-keeping mix of stream and branch",
    Truth(4, skip=0.8, attention_branch=0.6, mlp_branch=0.6),
    batch=ids,
)(joined(lambda x, f: x.mul(0.8).add(f, alpha=0.6), 4))
stranger("sum of a stack", Truth(3, sees="full"), batch=ids)(
    joined(lambda x, f: torch.stack([x, f]).sum(0), 3, causal=False)
)
stranger("subtracted branch", Truth(3, attention_branch=-1.0, mlp_branch=-1.0), batch=ids)(
    joined(lambda x, f: x - f, 3)
)
stranger(
    "root mean of stream and branch",
    Truth(3, skip=0.5**0.5, attention_branch=0.5**0.5, mlp_branch=0.5**0.5),
    batch=ids,
)(joined(lambda x, f: (x + f) / math.sqrt(2), 3))


class ScaledSum(torch.autograd.Function):
    """x + f, with the gradient of the branch halved."""

    @staticmethod
    def forward(_: Any, x: Tensor, f: Tensor) -> Tensor:
        return x + f

    @staticmethod
    def backward(_: Any, g: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return g, 0.5 * g


stranger("sum by an autograd function", Truth(3), batch=ids)(joined(ScaledSum.apply, 3))


@stranger("gate by addcmul", Truth(3, attention_branch=0.5, mlp_branch=0.5, keep=("*gate",)), batch=ids)
class Addcmul(Deep):
    class Layer(Two):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Parameter(torch.tensor(0.5))

        def join(self, x: Tensor, f: Tensor) -> Tensor:
            return torch.addcmul(x, self.gate, f)

    def __init__(self) -> None:
        super().__init__(self.Layer, 3)


@stranger(
    "conditioned by adaptive norms",
    Truth(
        3,
        sees="full",
        attention_branch=None,
        mlp_branch=None,
        reason=("condition", "gate", "input", "modulat"),
    ),
    batch=lambda: (torch.randn(2, 16, WIDTH), torch.tensor([3, 7])),
)
class Adaptive(nn.Module):
    """A diffusion transformer's blocks: shift, scale and gate from the time."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in range(2))
            self.attn, self.mlp = Mixing(causal=False), feed()
            self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))

        def forward(self, x: Tensor, c: Tensor) -> Tensor:
            a, b, g, d, e, h = self.modulation(c)[:, None].chunk(6, -1)
            x = x + g * self.attn(self.norm1(x) * (1 + b) + a)
            return x + h * self.mlp(self.norm2(x) * (1 + e) + d)

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.time = nn.Linear(WIDTH, WIDTH), nn.Embedding(10, WIDTH)
        self.pos = nn.Parameter(torch.randn(16, WIDTH))
        self.blocks, self.leave = nn.ModuleList(self.Layer() for _ in range(3)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x, c = self.enter(x) + self.pos, self.time(t)
        for block in self.blocks:
            x = block(x, c)
        return self.leave(x)


@stranger(
    "conditioned with gates of zero",
    Truth(
        4,
        sees="full",
        attention_branch=0.0,
        mlp_branch=0.0,
        reason=("condition", "gate", "input", "modulat", "nothing"),
        keep=("*modulation*",),
    ),
    batch=lambda: (torch.randn(2, 16, WIDTH), torch.tensor([3, 7])),
)
class AdaptiveZero(Adaptive):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.Layer() for _ in range(4))
        for block in self.blocks:
            nn.init.zeros_(block.modulation[1].weight)
            nn.init.zeros_(block.modulation[1].bias)


class Reverse(torch.autograd.Function):
    """y1 = x1 + f(x2), y2 = x2 + g(y1); inputs are recomputed from outputs in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x1: Tensor, x2: Tensor, block: Any, *weights: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            y1 = x1 + block.f(x2)
            y2 = x2 + block.g(y1)
        ctx.block, ctx.outputs, ctx.count = block, (y1.detach(), y2.detach()), len(weights)
        return y1, y2

    @staticmethod
    def backward(ctx: Any, d1: Tensor, d2: Tensor) -> Any:  # type: ignore[override]
        (y1, y2), block = ctx.outputs, ctx.block
        with torch.no_grad():
            x2 = y2 - block.g(y1)
            x1 = y1 - block.f(x2)
        with torch.enable_grad():
            a, b = x1.detach().requires_grad_(), x2.detach().requires_grad_()
            z1 = a + block.f(b)
            z2 = b + block.g(z1)
            grads = torch.autograd.grad((z1, z2), (a, b, *block.parameters()), (d1, d2), allow_unused=True)
        return grads[0], grads[1], None, *grads[2:]


@stranger(
    "reversible blocks by an autograd function",
    Truth(3, sees="full", reason=("reversib", "two streams", "autograd", "streams", "custom")),
    batch=ids,
)
class Reversible(Text):
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = nn.Sequential(nn.LayerNorm(WIDTH), Mixing(causal=False))
            self.g = nn.Sequential(nn.LayerNorm(WIDTH), feed())

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.Block() for _ in range(3))

    def body(self, x: Tensor) -> Tensor:
        a = b = x
        for block in self.blocks:
            a, b = Reverse.apply(a, b, block, *block.parameters())
        return (a + b) / 2


@stranger(
    "reversible blocks in plain code", Truth(4, reason=("reversib", "two streams", "streams")), batch=ids
)
class PlainReversible(Reversible):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.Block() for _ in range(4))
        for block in self.blocks:
            block.f[1].causal = True

    def body(self, x: Tensor) -> Tensor:
        a = b = x
        for block in self.blocks:
            a = a + block.f(b)
            b = b + block.g(a)
        return (a + b) / 2


@stranger(
    "highway gates",
    Truth(
        3,
        skip=None,
        attention_branch=None,
        mlp_branch=None,
        reason=("gate", "input", "highway", "depends", "number"),
    ),
    batch=ids,
)
class Highway(Deep):
    class Layer(Two):
        def __init__(self) -> None:
            super().__init__()
            self.t1, self.t2 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            g = torch.sigmoid(self.t1(x))
            x = g * self.attend(self.one(x)) + (1 - g) * x
            g = torch.sigmoid(self.t2(x))
            return g * self.think(self.two(x)) + (1 - g) * x

    def __init__(self) -> None:
        super().__init__(self.Layer, 3)


@stranger(
    "long skips of a U", Truth(5, skip=None, reason=("skip", "join", "concat", "earlier", "long")), batch=ids
)
class LongSkips(Text):
    """U-ViT: the second half reads the first half's outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.mid, self.up = (
            nn.ModuleList([Step(), Step()]),
            Step(),
            nn.ModuleList([Step(), Step()]),
        )
        self.merge = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(2))

    def body(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
        x = self.mid(x)
        for merge, block in zip(self.merge, self.up, strict=True):
            x = block(merge(torch.cat([x, kept.pop()], -1)))
        return x


@stranger(
    "hyper-connections of two streams",
    Truth(
        3, skip=None, attention_branch=None, mlp_branch=None, reason=("stream", "mix", "connection", "sum")
    ),
    batch=ids,
)
class HyperConnections(Text):
    class Layer(nn.Module):
        def __init__(self, f: nn.Module, n: int = 2) -> None:
            super().__init__()
            self.f, self.norm = f, nn.LayerNorm(WIDTH)
            self.take, self.give = nn.Parameter(torch.eye(n)[0].clone()), nn.Parameter(torch.ones(n))
            self.mix = nn.Parameter(torch.eye(n) + 0.1)

        def forward(self, s: Tensor) -> Tensor:
            y = self.f(self.norm(torch.einsum("n,nbtd->btd", self.take, s)))
            return torch.einsum("mn,nbtd->mbtd", self.mix, s) + torch.einsum("n,btd->nbtd", self.give, y)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer(f) for _ in range(3) for f in (Mixing(), feed()))

    def body(self, x: Tensor) -> Tensor:
        s = torch.stack([x, x])
        for layer in self.layers:
            s = layer(s)
        return s.sum(0)


@stranger("stochastic depth in train mode", Truth(4), batch=ids)
class DropPath(Deep):
    class Layer(Two):
        def join(self, x: Tensor, f: Tensor) -> Tensor:
            if not self.training:
                return x + f
            keep = (torch.rand(x.shape[0], 1, 1) < 0.8).float() / 0.8
            return x + keep * f

    def __init__(self) -> None:
        super().__init__(self.Layer, 4)


@stranger(
    "no residual at all", Truth(3, skip=0.0, sees="full", reason=("residual", "skip", "sum")), batch=ids
)
class NoSkip(Deep):
    class Layer(Two):
        def forward(self, x: Tensor) -> Tensor:
            return self.think(self.two(self.attend(self.one(x))))

    def __init__(self) -> None:
        super().__init__(lambda: self.Layer(causal=False), 3)


@stranger("embeddings scaled, readout tied by hand", Truth(3, tied=True), batch=ids)
class TiedByHand(Deep):
    def __init__(self) -> None:
        super().__init__(lambda: joined(torch.add, 1)().tower[0], 3)
        self.read = None
        self.final = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) * math.sqrt(WIDTH) + self.places[: tokens.shape[1]]
        return F.linear(self.final(self.body(x)), self.words.weight)
