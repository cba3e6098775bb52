"""By hand: norms, feed-forward layers, experts, adapters and what is frozen."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attentions import Four, deep, hide
from .layouts import Step, Text
from .residuals import Deep, Two, feed
from .truth import HEADS, TOKENS, WIDTH, WORDS, Truth, ids, stranger


class RMSg(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale, self.g = dim**0.5, nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * self.scale * self.g


class RMSscale(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale


class RMSOnePlus(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


class OldLayerNorm(nn.Module):
    """As TensorFlow had it: gamma, beta."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        return self.gamma * (x - u) / torch.sqrt(s + 1e-5) + self.beta


class Causal(Four):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class FusedGate(nn.Module):
    def __init__(self, act: Any = F.silu) -> None:
        super().__init__()
        self.wi, self.wo, self.act = (
            nn.Linear(WIDTH, 2 * 48, bias=False),
            nn.Linear(48, WIDTH, bias=False),
            act,
        )

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.wi(x).chunk(2, -1)
        return self.wo(self.act(gate) * value)


@deep("fused gate, norm gains called g", Truth(3, gated=True, activation="silu", norm_kind="rms"))
class FusedSwiGLU(Causal):
    def __init__(self) -> None:
        super().__init__(norm=RMSg)
        self.ffn = FusedGate()


@deep("norm gains stored less one, geglu", Truth(4, gated=True, activation="gelu", norm_kind="rms"))
class GemmaLike(Causal):
    def __init__(self) -> None:
        super().__init__(norm=RMSOnePlus)
        self.ffn = FusedGate(F.gelu)


@deep("norm gains called scale", Truth(3, norm_kind="rms"), norm=RMSscale)
class ScaleNamed(Causal):
    pass


@deep("gamma and beta by hand", Truth(3), norm=OldLayerNorm)
class GammaBeta(Causal):
    pass


@deep("gates in three matrices", Truth(3, gated=True, activation="relu", norm_kind="rms"))
class ThreeMatrices(Causal):
    class Feed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w3 = nn.Linear(WIDTH, 48, bias=False), nn.Linear(WIDTH, 48, bias=False)
            self.w2 = nn.Linear(48, WIDTH, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.w2(F.relu(self.w1(x)) * self.w3(x))

    def __init__(self) -> None:
        super().__init__(norm=nn.RMSNorm)
        self.ffn = self.Feed()


class TokenBatchNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(x.transpose(1, 2)).transpose(1, 2)


@deep(
    "batch norm in the blocks",
    Truth(3, norm_kind="batch", reason=("batch norm", "batchnorm")),
    norm=TokenBatchNorm,
)
class BatchNormed(Causal):
    pass


class DyT(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.alpha, self.weight = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.alpha * x) * self.weight


@deep("tanh in place of norms", Truth(3, norm_kind="tanh", keep=("*alpha",)), norm=DyT)
class Tanhed(Causal):
    pass


class GroupNormed(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gn = nn.GroupNorm(4, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.gn(x.flatten(0, 1)).view_as(x)


@deep("group norm of each token", Truth(3, norm_kind=None, reason=("group", "norm")), norm=GroupNormed)
class GroupNorms(Causal):
    pass


@deep("attention without feed-forward", Truth(4, gated=None, activation=None, mlp_branch=None))
class AttentionOnly(Causal):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(self.before(x))

    def __init__(self) -> None:
        super().__init__()
        self.between = self.ffn = None


@deep("squared relu", Truth(3, activation=None))
class SquaredReLU(Causal):
    def __init__(self) -> None:
        super().__init__()
        self.ffn = nn.Sequential(
            nn.Linear(WIDTH, 64, bias=False), nn.ReLU(), nn.Linear(64, WIDTH, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.before(x))
        up, act, down = self.ffn
        return x + down(act(up(self.between(x))).square())


class Adapted(nn.Module):
    """LoRA by hand: the matrix stays, a product of rank two is added; the second factor starts at zero."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(2, base.in_features) * 0.1)
        self.B = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.A.T @ self.B.T


@stranger(
    "adapters of low rank by hand, the rest frozen",
    Truth(3, keep=("*base*", "words*", "read*", "places", "*.B")),
    batch=ids,
)
class LowRank(Deep):
    def __init__(self) -> None:
        super().__init__(Causal, 3)
        self.requires_grad_(False)
        for layer in self.tower:
            layer.to_q, layer.to_v = Adapted(layer.to_q), Adapted(layer.to_v)


@stranger("all frozen but the readout", Truth(3, keep=("tower*", "words*", "places")), batch=ids)
class HeadOnly(Deep):
    def __init__(self) -> None:
        super().__init__(Causal, 3)
        self.tower.requires_grad_(False)
        self.words.requires_grad_(False)
        self.places.requires_grad_(False)


class Experts(nn.Module):
    """Two of four experts for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.route, self.experts = nn.Linear(WIDTH, 4, bias=False), nn.ModuleList(feed(48) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.route(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            share = (weight * (chosen == i)).sum(-1, keepdim=True)
            out = out + share * expert(x)
        return out


@deep("two experts of four", Truth(3, mlp_branch=None, reason=("expert", "input", "route", "chosen")))
class Mixture(Causal):
    def __init__(self) -> None:
        super().__init__()
        self.ffn = Experts()


@deep("bottleneck adapters behind each branch", Truth(3, reason=("adapter", "residual", "inside")))
class Bottlenecks(Causal):
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.up(F.relu(self.down(x)))

    def __init__(self) -> None:
        super().__init__()
        self.s1, self.s2 = self.Small(), self.Small()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.s1(self.mix(self.before(x)))
        return x + self.s2(self.ffn(self.between(x)))


@stranger("heavy dropout everywhere", Truth(3), batch=ids)
class Dropped(Deep):
    class Layer(Two):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.3)

        def join(self, x: Tensor, f: Tensor) -> Tensor:
            return x + self.drop(f)

    def __init__(self) -> None:
        super().__init__(self.Layer, 3)


@stranger(
    "noise in the forward pass, also in eval",
    Truth(3, reason=("random", "twice", "determin", "noise")),
    batch=ids,
)
class Noisy(Deep):
    class Layer(Two):
        def join(self, x: Tensor, f: Tensor) -> Tensor:
            return x + f + 0.05 * torch.randn_like(f)

    def __init__(self) -> None:
        super().__init__(self.Layer, 3)


@stranger("layers copied from one", Truth(4, copies=True, faults=("IDENTICAL_LAYERS",)), batch=ids)
class Copied(Deep):
    def __init__(self) -> None:
        super().__init__(Step, 4)
        for layer in self.tower[1:]:
            layer.load_state_dict(self.tower[0].state_dict())


@stranger("half of each layer copied from the first", Truth(4, allowed=("IDENTICAL_LAYERS",)), batch=ids)
class HalfCopied(Deep):
    """Only the feed-forward starts alike, attention has values of its own: not copies of whole layers."""

    def __init__(self) -> None:
        super().__init__(Step, 4)
        for layer in self.tower[1:]:
            layer.up.load_state_dict(self.tower[0].up.state_dict())
            layer.down.load_state_dict(self.tower[0].down.state_dict())


@stranger(
    "one layer forgotten by its initialization",
    Truth(4, faults=("DEPARTS_FROM_SIBLINGS", "NEVER_INITIALIZED")),
    batch=ids,
)
class Forgotten(Deep):
    def __init__(self) -> None:
        super().__init__(Step, 4)
        for i, layer in enumerate(self.tower):
            for p in layer.parameters():
                if p.dim() == 2 and i != 2:
                    nn.init.normal_(p, std=0.02)


@stranger(
    "padding that occurs in the text",
    Truth(3, keep=("words*",)),
    batch=lambda: torch.cat([ids()[:, :10], torch.zeros(2, 6, dtype=torch.long)], 1),
)
class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.pos = (
            nn.Embedding(WORDS, WIDTH, padding_idx=0),
            nn.Parameter(torch.randn(TOKENS, WIDTH)),
        )
        self.tower, self.read = nn.ModuleList(Causal() for _ in range(3)), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.pos
        for layer in self.tower:
            x = layer(x)
        return self.read(x)


@stranger("bfloat16 weights", Truth(3), batch=ids)
class Half(Deep):
    def __init__(self) -> None:
        super().__init__(Causal, 3)
        self.bfloat16()


@stranger(
    "first layers dense, last ones with experts",
    Truth(4, mlp_branch=None, reason=("expert", "input", "route", "differ", "chosen")),
    batch=ids,
)
class Mixed(Deep):
    def __init__(self) -> None:
        kinds = iter([Causal, Causal, Mixture, Mixture])
        super().__init__(lambda: next(kinds)(), 4)


@stranger(
    "attention to memory slots besides the words",
    Truth(3, sees=None, reason=("memory", "slot", "sum to one", "other", "sees")),
    batch=ids,
)
class Memory(Text):
    """Persistent vectors: keys and values that are parameters, beside those of the tokens."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv, self.o = (
                nn.LayerNorm(WIDTH),
                nn.Linear(WIDTH, 3 * WIDTH),
                nn.Linear(WIDTH, WIDTH),
            )
            self.mk, self.mv = (nn.Parameter(torch.randn(HEADS, 6, 8)) for _ in range(2))
            self.ff, self.norm2 = feed(), nn.LayerNorm(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (
                t.unflatten(-1, (HEADS, 8)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1)
            )
            s = torch.cat([hide(q @ k.mT), q @ self.mk.mT], -1) / 8**0.5
            v = torch.cat([v, self.mv.expand(x.shape[0], -1, -1, -1)], 2)
            x = x + self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
            return x + self.ff(self.norm2(x))

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer() for _ in range(3))

    def body(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@stranger(
    "narrow middle, one wider layer",
    Truth(3, heads=(4, 4, 4), activation="gelu", reason=("width", "differ")),
    batch=ids,
)
class Uneven(Deep):
    def __init__(self) -> None:
        sizes = iter([48, 128, 48])
        super().__init__(lambda: Causal(hidden=next(sizes)), 3)
