"""By hand: attention of many kinds, some of them without softmax."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from .layouts import Step
from .residuals import Deep, feed
from .truth import HEADS, TOKENS, WIDTH, WORDS, Truth, ids, stranger

HEAD = WIDTH // HEADS


def hide(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)


class Layer(nn.Module):
    """Pre-norm around `mix`, which the stranger writes."""

    def __init__(self, norm: Any = nn.LayerNorm, hidden: int = 64) -> None:
        super().__init__()
        self.before, self.between, self.ffn = norm(WIDTH), norm(WIDTH), feed(hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.before(x))
        return x + self.ffn(self.between(x))

    def mix(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Four(Layer):
    """Queries, keys, values and output as linear maps; `attend` is the stranger's."""

    def __init__(self, heads: int = HEADS, kv: int | None = None, head: int = HEAD, **options: Any) -> None:
        super().__init__(**options)
        self.heads, self.kv, self.head = heads, kv or heads, head
        self.to_q, self.to_out = nn.Linear(WIDTH, heads * head, bias=False), nn.Linear(heads * head, WIDTH)
        self.to_k, self.to_v = (nn.Linear(WIDTH, self.kv * head, bias=False) for _ in range(2))

    def mix(self, x: Tensor) -> Tensor:
        q = self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (f(x).unflatten(-1, (self.kv, -1)).transpose(1, 2) for f in (self.to_k, self.to_v))
        return self.to_out(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError


def deep(name: str, truth: Truth, **options: Any) -> Any:
    """Register a layer's class as a stack of it, as deep as the truth says."""

    def register(layer: Any) -> Any:
        stranger(name, truth, batch=ids)(
            lambda: Deep(lambda: layer(**options), truth.depth or 3, bool(truth.absolute))
        )
        return layer

    return register


@deep("fused values, keys, queries, head by head", Truth(3))
class FusedByHead(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.vkq, self.merge = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def mix(self, x: Tensor) -> Tensor:
        v, k, q = self.vkq(x).view(*x.shape[:2], HEADS, 3, HEAD).permute(3, 0, 2, 1, 4)
        y = hide(q @ k.transpose(-1, -2) / math.sqrt(HEAD)).softmax(-1) @ v
        return self.merge(y.transpose(1, 2).reshape(x.shape))


@deep("fused key, value, query in blocks", Truth(4, sees="full"))
class FusedInBlocks(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.o = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)

    def mix(self, x: Tensor) -> Tensor:
        k, v, q = (t.unflatten(-1, (HEADS, HEAD)).transpose(1, 2) for t in self.w(x).split(WIDTH, -1))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@deep("grouped keys by einsum", Truth(3, kv_heads=2))
class GroupedEinsum(Layer):
    def __init__(self) -> None:
        super().__init__()
        normal = lambda *s: nn.Parameter(torch.randn(*s) * WIDTH**-0.5)  # noqa: E731
        self.Wq, self.Wk, self.Wv = normal(WIDTH, 2, 2, HEAD), normal(WIDTH, 2, HEAD), normal(WIDTH, 2, HEAD)
        self.Wo = normal(2, 2, HEAD, WIDTH)

    def mix(self, x: Tensor) -> Tensor:
        q, k = torch.einsum("btd,dgrk->bgrtk", x, self.Wq), torch.einsum("btd,dgk->bgtk", x, self.Wk)
        v = torch.einsum("btd,dgk->bgtk", x, self.Wv)
        p = hide(torch.einsum("bgrtk,bgsk->bgrts", q, k) * HEAD**-0.5).softmax(-1)
        return torch.einsum("bgrts,bgsk,grkd->btd", p, v, self.Wo)


@deep("one key head for all queries", Truth(3, kv_heads=1), kv=1)
class MultiQuery(Four):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hide(q @ k.mT * HEAD**-0.5).softmax(-1) @ v


@deep("queries and keys normed", Truth(3, qk_norm=True))
class NormedQueries(Four):
    def __init__(self) -> None:
        super().__init__()
        self.qn, self.kn = nn.RMSNorm(HEAD), nn.RMSNorm(HEAD)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.qn(q), self.kn(k), v, is_causal=True)


def angles(tokens: int, width: int) -> Tensor:
    return torch.arange(tokens)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)


@deep("rotary halves", Truth(3, positions="rotary", absolute=False))
class RotaryHalves(Four):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        a = angles(q.shape[2], HEAD)

        def turn(t: Tensor) -> Tensor:
            one, two = t[..., : HEAD // 2], t[..., HEAD // 2 :]
            return torch.cat([one * a.cos() - two * a.sin(), two * a.cos() + one * a.sin()], -1)

        return F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)


@deep(
    "rotary pairs of half a head, as complex numbers",
    Truth(4, positions="rotary", absolute=False, sees="full"),
    head=16,
)
class RotaryComplex(Four):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        unit = torch.polar(torch.ones(()), angles(q.shape[2], 8))

        def turn(t: Tensor) -> Tensor:
            c = torch.view_as_complex(t[..., :8].reshape(*t.shape[:-1], 4, 2)) * unit
            return torch.cat([torch.view_as_real(c).flatten(-2), t[..., 8:]], -1)

        s = turn(q) @ turn(k).transpose(2, 3) / math.sqrt(16)
        return s.softmax(-1) @ v


@deep("linear biases by hand", Truth(3, positions="alibi", absolute=False))
class Alibi(Four):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        far = torch.arange(k.shape[2])[None] - torch.arange(q.shape[2])[:, None]
        bias = 2.0 ** -torch.arange(2.0, 10.0, 2.0)[:, None, None] * far
        return hide(q @ k.mT / HEAD**0.5 + bias).softmax(-1) @ v


@deep("learned bias by distance", Truth(3, positions="relative", absolute=False, sees="full"))
class RelativeBias(Four):
    def __init__(self) -> None:
        super().__init__()
        self.rel = nn.Parameter(torch.randn(HEADS, 2 * TOKENS - 1) * 0.5)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[2]
        index = torch.arange(n)[None] - torch.arange(n)[:, None] + TOKENS - 1
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.rel[:, index])


@deep(
    "prefix of four tokens seen by all", Truth(3, sees="prefix", reason=("prefix", "mask", "sees", "first"))
)
class Prefix(Four):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[2]
        allowed = torch.ones(n, n, dtype=torch.bool).tril()
        allowed[:, :4] = True
        return (q @ k.mT * HEAD**-0.5).masked_fill(~allowed, -1e9).softmax(-1) @ v


@deep("causal window of five", Truth(3, sees="causal window", window=5))
class Window(Four):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[2]
        allowed = torch.ones(n, n, dtype=torch.bool).tril().triu(-4)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


@deep("neighbors on both sides", Truth(4, sees="window", window=4))
class Neighbors(Four):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        far = (torch.arange(q.shape[2])[None] - torch.arange(q.shape[2])[:, None]).abs()
        return (q @ k.mT * HEAD**-0.5 + torch.where(far < 4, 0.0, -torch.inf)).softmax(-1) @ v


@deep("dilated holes in the mask", Truth(3, sees="other", reason=("mask", "gap", "sees", "block")))
class Dilated(Four):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        far = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])[None]
        return (q @ k.mT * HEAD**-0.5).masked_fill((far < 0) | (far % 3 != 0), -torch.inf).softmax(-1) @ v


@deep("cosine attention with a temperature", Truth(3, qk_norm=True))
class Cosine(Four):
    def __init__(self) -> None:
        super().__init__()
        self.tau = nn.Parameter(torch.tensor(10.0))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hide(self.tau * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).softmax(-1) @ v


NO_SOFTMAX = ("softmax", "sum to one", "kernel", "linear attention", "no attention")


@deep("sigmoid instead of softmax", Truth(3, softmax=False, reason=NO_SOFTMAX))
class Sigmoid(Four):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = q @ k.mT * HEAD**-0.5 - math.log(TOKENS)
        return torch.sigmoid(s).tril() @ v


@deep("linear attention by feature maps", Truth(4, softmax=False, sees="full", reason=NO_SOFTMAX))
class Linear(Four):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.elu(q) + 1, F.elu(k) + 1
        return q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT)


@deep("scores squared, no softmax", Truth(3, softmax=False, reason=NO_SOFTMAX))
class ReluSquared(Four):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (F.relu(q @ k.mT * HEAD**-0.5) ** 2).tril() @ v / TOKENS


@deep("sinks, a learned logit for nothing", Truth(3, reason=("sink", "sum to one")))
class Sinks(Four):
    def __init__(self) -> None:
        super().__init__()
        self.sink = nn.Parameter(torch.zeros(HEADS))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = hide(q @ k.mT * HEAD**-0.5)
        s = torch.cat([s, self.sink[:, None, None].expand(*s.shape[:3], 1)], -1)
        return s.softmax(-1)[..., :-1] @ v


@deep("queries are the keys", Truth(3, sees="full", reason=("tied", "same matrix", "queries and keys")))
class TiedKeys(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.qk, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def mix(self, x: Tensor) -> Tensor:
        q, v = (f(x).unflatten(-1, (HEADS, HEAD)).transpose(1, 2) for f in (self.qk, self.v))
        return self.o(((q @ q.mT / HEAD**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


@deep("weight norm on every matrix", Truth(3))
class WeightNorm(Four):
    def __init__(self) -> None:
        super().__init__()
        for part in (self.to_q, self.to_k, self.to_v, self.to_out, self.ffn[0], self.ffn[2]):
            parametrizations.weight_norm(part)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@deep("spectral norm on queries and keys", Truth(3, sees="full"))
class SpectralNorm(Four):
    def __init__(self) -> None:
        super().__init__()
        parametrizations.spectral_norm(self.to_q)
        parametrizations.spectral_norm(self.to_k)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


@deep("matrices as parameters, x @ W", Truth(4))
class Matrices(Layer):
    def __init__(self) -> None:
        super().__init__()
        for name in ("wq", "wk", "wv", "wo"):
            setattr(self, name, nn.Parameter(nn.init.xavier_uniform_(torch.empty(WIDTH, WIDTH))))

    def mix(self, x: Tensor) -> Tensor:
        q, k, v = ((x @ w).unflatten(-1, (HEADS, HEAD)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2) @ self.wo


class Head(nn.Module):
    """One head of a lecture's model."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(WIDTH, HEAD, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(TOKENS, TOKENS)))

    def forward(self, x: Tensor) -> Tensor:
        t, k, q = x.shape[1], self.key(x), self.query(x)
        w = (q @ k.transpose(-2, -1) * HEAD**-0.5).masked_fill(self.tril[:t, :t] == 0, float("-inf"))
        return F.softmax(w, dim=-1) @ self.value(x)


@deep("a module for every head", Truth(3))
class HeadByHead(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.proj = nn.ModuleList(Head() for _ in range(HEADS)), nn.Linear(WIDTH, WIDTH)

    def mix(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([h(x) for h in self.heads], -1))


@deep("talking heads", Truth(3, reason=("heads", "mix")))
class TalkingHeads(Four):
    def __init__(self) -> None:
        super().__init__()
        self.talk = nn.Parameter(torch.eye(HEADS) + 0.3 * torch.randn(HEADS, HEADS))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hide(torch.einsum("bhij,hg->bgij", q @ k.mT / HEAD**0.5, self.talk)).softmax(-1) @ v


@deep(
    "difference of two softmaxes",
    Truth(3, heads=None, reason=("differ", "sum to one", "softmax", "mean of values")),
)
class Differential(Four):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
        one, two = (hide(a @ b.mT / math.sqrt(HEAD / 2)).softmax(-1) for a, b in ((q1, k1), (q2, k2)))
        return (one - 0.4 * two) @ v


@deep("softmax written as exponentials over their sum", Truth(3))
class ByHandSoftmax(Four):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = hide(q @ k.mT / HEAD**0.5)
        e = torch.exp(s - s.amax(-1, keepdim=True))
        return (e / e.sum(-1, keepdim=True)) @ v


@deep("softmax online, chunk by chunk of keys", Truth(3, sees="full"))
class Online(Four):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        top, total, out = (
            torch.full((*q.shape[:3], 1), -1e9),
            torch.zeros(*q.shape[:3], 1),
            torch.zeros_like(q),
        )
        for kc, vc in zip(k.split(4, 2), v.split(4, 2), strict=True):
            s = q @ kc.mT / HEAD**0.5
            new = torch.maximum(top, s.amax(-1, keepdim=True))
            fade, e = (top - new).exp(), (s - new).exp()
            top, total, out = new, total * fade + e.sum(-1, keepdim=True), out * fade + e @ vc
        return out / total


@deep("heads wider than the stream", Truth(3, sees="full"), head=24)
class WideHeads(Four):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


@deep("capped logits", Truth(3, reason=("cap",)))
class Capped(Four):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hide(5 * torch.tanh(q @ k.mT / HEAD**0.5 / 5)).softmax(-1) @ v


@stranger(
    "heads and windows that alternate",
    Truth(
        4,
        heads=(4, 2, 4, 2),
        sees=("causal", "causal window") * 2,
        window=5,
        reason=("heads", "alternat", "differ"),
    ),
    batch=ids,
)
class Alternating(Deep):
    class Wide(Four):
        def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return hide(q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v

    def __init__(self) -> None:
        kinds = iter([lambda: self.Wide(), lambda: Window(2, head=16)] * 2)
        super().__init__(lambda: next(kinds)(), 4)


@stranger(
    "encoder and decoder with cross-attention",
    Truth(2, sees="full"),
    Truth(3, sees="causal", reason=("cross",)),
    batch=lambda: {"source": ids(), "target": ids()},
)
class Translator(nn.Module):
    class Decoder(Step):
        def __init__(self) -> None:
            super().__init__()
            self.o = nn.LayerNorm(WIDTH)
            self.look, self.of, self.merge = (
                nn.Linear(WIDTH, WIDTH),
                nn.Linear(WIDTH, 2 * WIDTH),
                nn.Linear(WIDTH, WIDTH),
            )

        def forward(self, x: Tensor, memory: Tensor) -> Tensor:  # type: ignore[override]
            x = x + self.mixing(self.n(x))
            q, k, v = (
                t.unflatten(-1, (HEADS, HEAD)).transpose(1, 2)
                for t in (self.look(self.o(x)), *self.of(memory).chunk(2, -1))
            )
            x = x + self.merge(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            return x + self.down(self.act(self.up(self.m(x))))

    def __init__(self) -> None:
        super().__init__()
        self.table, self.pos = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.enc = nn.ModuleList(Step(causal=False) for _ in range(2))
        self.dec, self.out = nn.ModuleList(self.Decoder() for _ in range(3)), nn.Linear(WIDTH, WORDS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        m, x = self.table(source) + self.pos, self.table(target) + self.pos
        for layer in self.enc:
            m = layer(m)
        for layer in self.dec:
            x = layer(x, m)
        return self.out(x)


@stranger(
    "latents read by cross-attention only",
    Truth(3, sees=None, reason=("cross", "another stream", "latent", "own tokens")),
    batch=ids,
)
class Latents(nn.Module):
    """Perceiver's reading: eight learned latents look at the words again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.latents = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(8, WIDTH))
        self.pos = nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.look = nn.ModuleList(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) for _ in range(3))
        self.n1, self.n2 = (nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3)) for _ in range(2))
        self.ff, self.out = nn.ModuleList(feed() for _ in range(3)), nn.Linear(WIDTH, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        seen, x = self.words(tokens) + self.pos, self.latents.expand(tokens.shape[0], -1, -1)
        for look, n1, n2, ff in zip(self.look, self.n1, self.n2, self.ff, strict=True):
            x = x + look(n1(x), seen, seen, need_weights=False)[0]
            x = x + ff(n2(x))
        return self.out(x.mean(1))
