"""By hand: attention of research code, whose keys, masks and weights are made in unusual ways."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..truth import HEADS, TOKENS, WIDTH, WORDS, Truth, ids
from .entry import entry

D, H, K = WIDTH, HEADS, WIDTH // HEADS


def split(x):
    return x.reshape(*x.shape[:-1], H, -1).transpose(-2, -3)


def join(x):
    return x.transpose(-2, -3).flatten(-2)


def causal(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


class Net(nn.Module):
    """Words in, logits out, a list of blocks between them."""

    def __init__(self, *blocks, places=True):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, D), nn.Embedding(TOKENS, D) if places else None
        self.blocks, self.ln_f, self.head = nn.ModuleList(blocks), nn.LayerNorm(D), nn.Linear(D, WORDS)

    def forward(self, idx):
        x = self.wte(idx)
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(idx.shape[-1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


class Block(nn.Module):
    def __init__(self, attn, hidden=64, act=nn.GELU):
        super().__init__()
        self.ln1, self.attn, self.ln2 = nn.LayerNorm(D), attn, nn.LayerNorm(D)
        self.mlp = nn.Sequential(nn.Linear(D, hidden), act(), nn.Linear(hidden, D))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class QKV(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        return self.o(join(self.weights(q, k, x) @ v))

    def weights(self, q, k, x):
        raise NotImplementedError


def nets(name, truth, attention, **options):
    """Register a net with one attention of this class in each block."""
    depth = truth.depth
    entry(name, truth, batch=ids)(
        lambda: Net(*(Block(attention(), **options) for _ in range(depth)), places=bool(truth.absolute))
    )


class RelativeShift(nn.Module):
    """Transformer-XL: content and position terms, two biases, the shift by padding and reshaping."""

    def __init__(self):
        super().__init__()
        self.qkv, self.r, self.o = (
            nn.Linear(D, 3 * D, bias=False),
            nn.Linear(D, D, bias=False),
            nn.Linear(D, D),
        )
        self.u, self.v = nn.Parameter(torch.randn(H, 1, K) * 0.3), nn.Parameter(torch.randn(H, 1, K) * 0.3)

    def forward(self, x):
        n = x.shape[1]
        angle = torch.arange(n - 1, -1, -1.0)[:, None] / 10000 ** (torch.arange(0, D, 2) / D)
        r = split(self.r(torch.cat([angle.sin(), angle.cos()], -1)))
        q, k, v = (split(t) for t in self.qkv(x).chunk(3, -1))
        bd = (q + self.v) @ r.mT
        bd = F.pad(bd, (1, 0)).reshape(*bd.shape[:2], n + 1, n)[:, :, 1:].reshape(bd.shape)
        s = ((q + self.u) @ k.mT + bd) / math.sqrt(K)
        return self.o(join(s.masked_fill(~causal(n), -1e30).softmax(-1) @ v))


class PostBlock(Block):
    def forward(self, x):
        x = self.ln1(x + self.attn(x))
        return self.ln2(x + self.mlp(x))


entry(
    "relative shift with two biases",
    Truth(
        3,
        norm="post",
        positions=None,
        absolute=False,
        activation="relu",
        reason=("position", "bias", "distance"),
    ),
    batch=ids,
)(lambda: Net(*(PostBlock(RelativeShift(), act=nn.ReLU) for _ in range(3)), places=False))


class Unfolded(QKV):
    """Keys and values of the last five tokens are gathered by unfold; the softmax has five columns."""

    def forward(self, x, size=5):
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        k, v = (F.pad(t, (0, 0, size - 1, 0)).unfold(2, size, 1) for t in (k, v))
        s = torch.einsum("bhtk,bhtkw->bhtw", q, k) / K**0.5
        before = torch.arange(q.shape[2])[:, None] + torch.arange(size) < size - 1
        return self.o(join(torch.einsum("bhtw,bhtkw->bhtk", s.masked_fill(before, -1e9).softmax(-1), v)))


nets(
    "window of five tokens by unfold",
    Truth(3, sees="causal window", window=5, reason=("window", "sum to one", "keys", "softmax")),
    Unfolded,
)


class Chunks(QKV):
    """Tokens see their own chunk of four, by a reshape and not by a mask."""

    def forward(self, x):
        b, n, _ = x.shape
        y = x.reshape(b, n // 4, 4, D)
        q, k, v = split(self.q(y)), split(self.k(y)), split(self.v(y))
        return self.o(join(F.scaled_dot_product_attention(q, k, v)).reshape(b, n, D))


nets("chunks of four by reshaping", Truth(4, sees="other", reason=("chunk", "sees", "mask")), Chunks)


class Masked(QKV):
    def __init__(self, allowed):
        super().__init__()
        self.register_buffer("allowed", allowed, persistent=False)

    def weights(self, q, k, _):
        n = q.shape[2]
        return (q @ k.mT / K**0.5).masked_fill(~self.allowed[:n, :n], -torch.inf).softmax(-1)


def strided():
    far = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    return (far >= 0) & (far % 4 == 0)


entry(
    "local and strided masks in turns",
    Truth(
        4,
        sees=("causal window", "other") * 2,
        window=4,
        reason=("mask", "gap", "sees", "differ", "alternat"),
    ),
    batch=ids,
)(lambda: Net(*(Block(Masked(causal(TOKENS).triu(-3) if i % 2 == 0 else strided())) for i in range(4))))


def with_global():
    far = (torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)).abs()
    allowed = far < 3
    allowed[0], allowed[:, 0] = True, True
    return allowed


entry(
    "windows and one global token",
    Truth(3, sees="other", reason=("mask", "sees", "global", "window")),
    batch=ids,
)(lambda: Net(*(Block(Masked(with_global())) for _ in range(3))))


class BothWays(QKV):
    """Half of the heads look back, the other half look ahead."""

    def weights(self, q, k, _):
        back = causal(q.shape[2])
        allowed = torch.stack([back, back, back.T, back.T])
        return (q @ k.mT / K**0.5).masked_fill(~allowed, -torch.inf).softmax(-1)


nets(
    "half of the heads look back, half ahead",
    Truth(3, sees=None, reason=("head", "mask", "sees", "differ")),
    BothWays,
)


class Shifted(QKV):
    """Queries, keys and values of a mix of this token and the one before."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.rand(3, D))

    def forward(self, x):
        past = F.pad(x, (0, 0, 1, -1))
        q, k, v = (
            split(f(past + m * (x - past))) for f, m in zip((self.q, self.k, self.v), self.mix, strict=True)
        )
        return self.o(join(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


nets("tokens shifted before attention", Truth(3, reason=("shift", "mix", "other tokens", "earlier")), Shifted)


class OutputGate(QKV):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(D, D)

    def forward(self, x):
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        y = join(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.o(y * torch.sigmoid(self.gate(x)))


nets(
    "a sigmoid gate on what attention gives",
    Truth(3, attention_branch=None, reason=("gate", "input", "multipl")),
    OutputGate,
)


class Forgetting(QKV):
    """Logits lose the sum of log forget gates between key and query."""

    def __init__(self):
        super().__init__()
        self.forget = nn.Linear(D, H)

    def weights(self, q, k, x):
        c = F.logsigmoid(self.forget(x)).cumsum(1).transpose(1, 2)
        s = q @ k.mT / K**0.5 + c[..., :, None] - c[..., None, :]
        return s.masked_fill(~causal(q.shape[2]), -torch.inf).softmax(-1)


nets(
    "forget gates summed in the logits",
    Truth(3, positions=None, reason=("forget", "gate", "bias", "input", "position")),
    Forgetting,
)


class OffByOne(QKV):
    """exp(s) / (1 + sum exp(s)): a head may say nothing."""

    def weights(self, q, k, _):
        s = (q @ k.mT / K**0.5).masked_fill(~causal(q.shape[2]), -torch.inf)
        top = s.amax(-1, keepdim=True).clamp(min=0).detach()
        e = (s - top).exp()
        return e / (e.sum(-1, keepdim=True) + (-top).exp())


nets("softmax off by one, by exponentials", Truth(3, reason=("sum to one", "sink", "softmax")), OffByOne)


class Sparsemax(QKV):
    """Projection onto the simplex instead of softmax."""

    def weights(self, q, k, _):
        s = (q @ k.mT / K**0.5).masked_fill(~causal(q.shape[2]), -1e4)
        z, _ = s.sort(-1, descending=True)
        rank, total = torch.arange(1, s.shape[-1] + 1), z.cumsum(-1)
        support = (1 + rank * z > total).sum(-1, keepdim=True)
        return (s - (total.gather(-1, support - 1) - 1) / support).clamp(min=0)


NONE = ("softmax", "no attention", "mixer", "attention that is not", "without")
nets("sparsemax", Truth(3, softmax=False, reason=NONE), Sparsemax)


class Retention(QKV):
    """Products of queries and keys times a decay, each head normed; no softmax."""

    def __init__(self):
        super().__init__()
        self.norm, self.gate = nn.GroupNorm(H, D), nn.Linear(D, D)

    def forward(self, x):
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        far = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        decay = (1 - 2.0 ** (-5 - torch.arange(H)))[:, None, None] ** far.clamp(min=0) * (far >= 0)
        y = join((q @ k.mT / K**0.5 * decay) @ v)
        return self.o(self.norm(y.flatten(0, 1)).view_as(y) * F.silu(self.gate(x)))


nets("retention by hand", Truth(3, softmax=False, reason=(*NONE, "retention", "decay")), Retention)


class LongConvolution(nn.Module):
    """A filter as long as the text, by Fourier transforms, and a gate."""

    def __init__(self):
        super().__init__()
        self.filter, self.into, self.out = (
            nn.Parameter(torch.randn(D, TOKENS) / 4),
            nn.Linear(D, 2 * D),
            nn.Linear(D, D),
        )

    def forward(self, x):
        u, gate = self.into(x).mT.chunk(2, 1)
        n = x.shape[1]
        y = torch.fft.irfft(torch.fft.rfft(u, 2 * n) * torch.fft.rfft(self.filter[:, :n], 2 * n), 2 * n)[
            ..., :n
        ]
        return self.out((y * gate).mT)


nets("long convolutions with gates", Truth(4, softmax=False, reason=(*NONE, "convol")), LongConvolution)


class CrossCovariance(QKV):
    """Softmax over the features of a head, not over tokens."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(H, 1, 1))

    def forward(self, x):
        q, k, v = (split(f(x)).mT for f in (self.q, self.k, self.v))
        p = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.temperature).softmax(-1)
        return self.o(join((p @ v).mT))


nets(
    "softmax over features instead of tokens",
    Truth(3, softmax=False, sees="full", reason=(*NONE, "feature", "channel", "other tokens")),
    CrossCovariance,
)


class Convolved(QKV):
    """Primer: a causal filter of three tokens behind each projection."""

    def __init__(self):
        super().__init__()
        self.filters = nn.ModuleList(nn.Conv1d(D, D, 3, groups=D) for _ in range(3))

    def forward(self, x):
        q, k, v = (
            split(c(F.pad(f(x).mT, (2, 0))).mT)
            for f, c in zip((self.q, self.k, self.v), self.filters, strict=True)
        )
        return self.o(join(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


nets(
    "filters of three tokens behind queries, keys and values",
    Truth(3, reason=("convol", "mix", "other tokens")),
    Convolved,
)


class GatedUnit(nn.Module):
    """One head of attention and the gate of a feed-forward in one branch; there is no other branch."""

    def __init__(self, hidden=64, key=16):
        super().__init__()
        self.norm, self.uv, self.z = nn.LayerNorm(D), nn.Linear(D, 2 * hidden), nn.Linear(D, key)
        self.gamma, self.beta = nn.Parameter(1 + 0.1 * torch.randn(2, key)), nn.Parameter(torch.zeros(2, key))
        self.out = nn.Linear(hidden, D)

    def forward(self, x):
        y = self.norm(x)
        u, v = F.silu(self.uv(y)).chunk(2, -1)
        q, k = (F.silu(self.z(y))[..., None, :] * self.gamma + self.beta).unbind(-2)
        p = (q @ k.mT / 4).masked_fill(~causal(x.shape[1]), -torch.inf).softmax(-1)
        return x + self.out(u * (p @ v))


entry(
    "gated attention units of one head",
    Truth(
        4,
        heads=1,
        gated=None,
        activation=None,
        attention_branch=None,
        mlp_branch=None,
        reason=("gate", "input", "shared", "one matrix", "tied", "value"),
    ),
    batch=ids,
)(lambda: Net(*(GatedUnit() for _ in range(4))))
