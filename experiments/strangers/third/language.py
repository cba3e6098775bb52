"""By hand: language models as in course homework, notebooks, translations of JAX code and research code."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..truth import TOKENS, WORDS, Truth, ids
from .entry import entry


class HomeworkAttention(nn.Module):
    """Assignment 4, part (b)."""

    def __init__(self, embed_dim, num_heads, dropout=0.1):
        super().__init__()
        self.key, self.query = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
        self.value, self.proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
        self.attn_drop, self.n_head = nn.Dropout(dropout), num_heads

    def forward(self, query, key, value, attn_mask=None):
        N, S, E = query.shape
        T, H = value.shape[1], self.n_head
        Q = self.query(query).view(N, S, H, E // H).moveaxis(1, 2)
        K = self.key(key).view(N, T, H, E // H).moveaxis(1, 2)
        V = self.value(value).view(N, T, H, E // H).moveaxis(1, 2)
        scores = torch.matmul(Q, K.transpose(2, 3)) / math.sqrt(E / H)
        if attn_mask is not None:
            scores = scores.masked_fill(torch.eq(attn_mask, 0), -1e9)
        probs = self.attn_drop(torch.softmax(scores, dim=-1))
        return self.proj(torch.matmul(probs, V).moveaxis(1, 2).reshape(N, S, E))


@entry("homework captioning decoder, blocks by setattr", Truth(3, norm="post", activation="relu"), batch=ids)
class Homework(nn.Module):
    class Layer(nn.Module):
        def __init__(self, d, h, ff):
            super().__init__()
            self.self_attn, self.norm1 = HomeworkAttention(d, h), nn.LayerNorm(d)
            self.linear1, self.linear2, self.norm2 = nn.Linear(d, ff), nn.Linear(ff, d), nn.LayerNorm(d)
            self.drop = nn.Dropout(0.1)

        def forward(self, tgt, mask):
            tgt = self.norm1(tgt + self.drop(self.self_attn(tgt, tgt, tgt, mask)))
            return self.norm2(tgt + self.drop(self.linear2(F.relu(self.linear1(tgt)))))

    def __init__(self, d=32, depth=3):
        super().__init__()
        self.depth, self.embedding, self.output = depth, nn.Embedding(WORDS, d), nn.Linear(d, WORDS)
        place = torch.arange(TOKENS)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
        self.register_buffer("pe", torch.stack([place.sin(), place.cos()], -1).flatten(1))
        for i in range(depth):
            setattr(self, f"step{i}", self.Layer(d, 4, 64))

    def forward(self, captions):
        x = self.embedding(captions) + self.pe[: captions.shape[1]]
        mask = torch.tril(torch.ones(captions.shape[1], captions.shape[1]))
        for i in range(self.depth):
            x = getattr(self, f"step{i}")(x, mask)
        return self.output(x)


def dense(params, x):
    return torch.einsum("...d,df->...f", x, params["w"]) + params["b"]


def layer_norm(params, x, eps=1e-5):
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + eps) * params["scale"] + params["offset"]


def attend(params, x):
    q, k, v = (torch.einsum("btd,dhk->bhtk", x, params[name]) for name in ("q", "k", "v"))
    logits = torch.einsum("bhtk,bhsk->bhts", q, k) / math.sqrt(q.shape[-1])
    future = torch.arange(x.shape[1])[None, :] > torch.arange(x.shape[1])[:, None]
    weights = torch.where(future, torch.tensor(-1e30), logits).softmax(-1)
    return torch.einsum("bhts,bhsk,hkd->btd", weights, v, params["o"])


@entry("translation from haiku, a tree of parameters and pure functions", Truth(3), batch=ids)
class FromHaiku(nn.Module):
    def __init__(self, d=32, heads=4, depth=3):
        super().__init__()
        weight = lambda *shape, fan: nn.Parameter(torch.randn(shape) * fan**-0.5)  # noqa: E731
        ones, zeros = lambda n: nn.Parameter(torch.ones(n)), lambda n: nn.Parameter(torch.zeros(n))
        self.params = nn.ParameterDict({"embed": weight(WORDS, d, fan=1), "pos": weight(TOKENS, d, fan=4)})
        for i in range(depth):
            for ln in ("ln_1", "ln_2"):
                self.params[f"h{i}/{ln}/scale"], self.params[f"h{i}/{ln}/offset"] = ones(d), zeros(d)
            for name in "qkv":
                self.params[f"h{i}/attn/{name}"] = weight(d, heads, d // heads, fan=d)
            self.params[f"h{i}/attn/o"] = weight(heads, d // heads, d, fan=d)
            self.params[f"h{i}/fc/w"], self.params[f"h{i}/fc/b"] = weight(d, 64, fan=d), zeros(64)
            self.params[f"h{i}/out/w"], self.params[f"h{i}/out/b"] = weight(64, d, fan=64), zeros(d)
        self.params["head/w"], self.params["head/b"] = weight(d, WORDS, fan=d), zeros(WORDS)
        self.depth = depth

    def scope(self, prefix):
        return {k[len(prefix) + 1 :]: v for k, v in self.params.items() if k.startswith(prefix + "/")}

    def forward(self, tokens):
        h = self.params["embed"][tokens] + self.params["pos"][: tokens.shape[1]]
        for i in range(self.depth):
            p = lambda name, i=i: self.scope(f"h{i}/{name}")  # noqa: E731
            h = h + attend(p("attn"), layer_norm(p("ln_1"), h))
            h = h + dense(p("out"), F.gelu(dense(p("fc"), layer_norm(p("ln_2"), h)), approximate="tanh"))
        return dense(self.scope("head"), h)


@entry(
    "layers on the second axis of every parameter, rotation matrices",
    Truth(
        4,
        heads=2,
        kv_heads=1,
        norm_kind="rms",
        gated=True,
        activation="gelu",
        positions="rotary",
        absolute=False,
    ),
    batch=ids,
)
class ScannedLayers(nn.Module):
    """As MaxText stores them: (in, layers, ...), and the layer's slice is taken in a loop."""

    def __init__(self, d=32, layers=4, heads=2, k=16, hidden=48):
        super().__init__()
        normal = lambda *s: nn.Parameter(torch.randn(s) * s[0] ** -0.5)  # noqa: E731
        self.embedding = nn.Parameter(torch.randn(WORDS, d))
        self.query, self.key, self.value = (
            normal(d, layers, heads, k),
            normal(d, layers, k),
            normal(d, layers, k),
        )
        self.out = nn.Parameter(torch.randn(heads, layers, k, d) * d**-0.5)
        self.wi_0, self.wi_1, self.wo = (
            normal(d, layers, hidden),
            normal(d, layers, hidden),
            normal(hidden, layers, d),
        )
        self.pre_scale, self.post_scale = (nn.Parameter(torch.zeros(d, layers)) for _ in range(2))
        turn = torch.arange(TOKENS)[:, None] * 10000.0 ** -(torch.arange(k // 2) / (k // 2))
        rows = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], -1)
        self.register_buffer("rotation", rows.unflatten(-1, (2, 2)), persistent=False)

    def turn(self, x):
        pairs = x.unflatten(-1, (-1, 2))
        return torch.einsum("tpij,b...tpj->b...tpi", self.rotation[: x.shape[-2]], pairs).flatten(-2)

    def norm(self, x, scale):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * (1.0 + scale)

    def forward(self, tokens):
        x = self.embedding[tokens]
        hidden = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril().logical_not()
        for layer in range(self.wo.shape[1]):
            y = self.norm(x, self.pre_scale[:, layer])
            q = self.turn(torch.einsum("btd,dhk->bhtk", y, self.query[:, layer]))
            k = self.turn(torch.einsum("btd,dk->btk", y, self.key[:, layer]))
            v = torch.einsum("btd,dk->btk", y, self.value[:, layer])
            p = (torch.einsum("bhtk,bsk->bhts", q, k) / 4).masked_fill(hidden, -torch.inf).softmax(-1)
            x = x + torch.einsum("bhts,bsk,hkd->btd", p, v, self.out[:, layer])
            y = self.norm(x, self.post_scale[:, layer])
            x = x + (F.gelu(y @ self.wi_0[:, layer]) * (y @ self.wi_1[:, layer])) @ self.wo[:, layer]
        return x @ self.embedding.T


@entry(
    "values mixed with those of the first layer",
    Truth(4, norm_kind="rms", activation="silu", reason=("value", "earlier", "residual")),
    batch=ids,
)
class ValueResidual(nn.Module):
    class Layer(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
            self.ln1, self.ln2 = nn.RMSNorm(d), nn.RMSNorm(d)
            self.mlp = nn.Sequential(nn.Linear(d, 96), nn.SiLU(), nn.Linear(96, d))

        def forward(self, x, v1=None):
            q, k, v = (
                t.view(*x.shape[:2], 4, -1).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, -1)
            )
            v = v if v1 is None else 0.5 * (v + v1)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).reshape(x.shape))
            return x + self.mlp(self.ln2(x)), v if v1 is None else v1

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, 32), nn.Embedding(TOKENS, 32)
        self.h, self.lm_head = nn.ModuleList(self.Layer() for _ in range(4)), nn.Linear(32, WORDS)

    def forward(self, idx):
        x, v1 = self.wte(idx) + self.wpe(torch.arange(idx.shape[1])), None
        for layer in self.h:
            x, v1 = layer(x, v1)
        return self.lm_head(x)


@entry(
    "speedrun: skips of a U, embedding mixed back in, no norm gains",
    Truth(
        6,
        norm_kind="rms",
        activation=None,
        qk_norm=True,
        positions="rotary",
        absolute=False,
        skip=None,
        reason=("skip", "earlier", "embedding", "input"),
    ),
    batch=ids,
)
class Speedrun(nn.Module):
    class Block(nn.Module):
        def __init__(self, d=32, heads=4):
            super().__init__()
            self.heads, self.c_q, self.c_k = heads, nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
            self.c_v, self.c_proj = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
            self.c_fc, self.c_out = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)
            self.lambdas = nn.Parameter(torch.tensor([0.9, 0.1]))

        def forward(self, x, x0, cos, sin):
            def rotary(t):
                a, b = t.chunk(2, -1)
                return torch.cat((a * cos + b * sin, b * cos - a * sin), -1)

            x = self.lambdas[0] * x + self.lambdas[1] * x0
            y = F.rms_norm(x, (x.size(-1),))
            q, k, v = (f(y).view(*y.shape[:2], self.heads, -1) for f in (self.c_q, self.c_k, self.c_v))
            q, k = (rotary(F.rms_norm(t, (t.size(-1),)).transpose(1, 2)) for t in (q, k))
            y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
            x = x + self.c_proj(y.transpose(1, 2).flatten(2))
            return x + self.c_out(F.relu(self.c_fc(F.rms_norm(x, (x.size(-1),)))).square())

    def __init__(self, depth=6):
        super().__init__()
        self.embed, self.lm_head = nn.Embedding(WORDS, 32), nn.Linear(32, WORDS, bias=False)
        self.blocks = nn.ModuleList(self.Block() for _ in range(depth))
        self.skip_weights = nn.Parameter(torch.ones(depth // 2))

    def forward(self, idx):
        angle = torch.arange(idx.shape[1])[:, None] * (1 / 1024) ** torch.linspace(0, 1, 4)
        x = x0 = F.rms_norm(self.embed(idx), (32,))
        skips, n = [], len(self.blocks) // 2
        for i, block in enumerate(self.blocks):
            if i >= n:
                x = x + self.skip_weights[i - n] * skips.pop()
            x = block(x, x0, angle.cos(), angle.sin())
            if i < n:
                skips.append(x)
        return 15 * torch.tanh(self.lm_head(F.rms_norm(x, (32,))) / 15)


@entry(
    "every second layer reuses keys and values of the one before",
    Truth(
        4,
        norm_kind="rms",
        activation="silu",
        gated=True,
        reason=("key", "value", "earlier", "share", "another"),
    ),
    batch=ids,
)
class CrossLayer(nn.Module):
    class Layer(nn.Module):
        def __init__(self, owns, d=32):
            super().__init__()
            self.q, self.o = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
            self.kv = nn.Linear(d, 2 * d, bias=False) if owns else None
            self.norm_attn, self.norm_ffn = nn.RMSNorm(d), nn.RMSNorm(d)
            self.gate, self.up, self.down = nn.Linear(d, 56), nn.Linear(d, 56), nn.Linear(56, d)

        def forward(self, x, kv):
            y = self.norm_attn(x)
            split = lambda t: t.unflatten(-1, (4, 8)).transpose(1, 2)  # noqa: E731
            kv = kv if self.kv is None else tuple(map(split, self.kv(y).chunk(2, -1)))
            x = x + self.o(
                F.scaled_dot_product_attention(split(self.q(y)), *kv, is_causal=True)
                .transpose(1, 2)
                .flatten(2)
            )
            y = self.norm_ffn(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y)), kv

    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(WORDS, 32), nn.Parameter(torch.randn(TOKENS, 32) * 0.3)
        self.decoder, self.head = (
            nn.ModuleList(self.Layer(i % 2 == 0) for i in range(4)),
            nn.Linear(32, WORDS),
        )

    def forward(self, input_ids):
        x, kv = self.tok(input_ids) + self.pos, None
        for layer in self.decoder:
            x, kv = layer(x, kv)
        return self.head(x)


@entry(
    "latent keys and values by hand, norms inside the compression",
    Truth(
        3,
        norm_kind="rms",
        qk_norm=None,
        positions="none",
        reason=("latent", "inside", "norm", "product"),
    ),
    batch=ids,
)
class LatentAttention(nn.Module):
    class MLA(nn.Module):
        def __init__(self, d=32, rank=12, heads=4, k=8):
            super().__init__()
            self.heads, self.q_down, self.q_up = (
                heads,
                nn.Linear(d, rank, bias=False),
                nn.Linear(rank, heads * k, bias=False),
            )
            self.kv_down, self.kv_up = (
                nn.Linear(d, rank, bias=False),
                nn.Linear(rank, 2 * heads * k, bias=False),
            )
            self.q_norm, self.kv_norm, self.proj = nn.RMSNorm(rank), nn.RMSNorm(rank), nn.Linear(heads * k, d)

        def forward(self, x):
            q = self.q_up(self.q_norm(self.q_down(x))).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            k, v = (
                self.kv_up(self.kv_norm(self.kv_down(x)))
                .unflatten(-1, (self.heads, -1))
                .transpose(1, 2)
                .chunk(2, -1)
            )
            scores = q @ k.mT / math.sqrt(k.shape[-1])
            scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)
            return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def __init__(self):
        super().__init__()
        self.vocab, self.where = nn.Embedding(WORDS, 32), nn.Embedding(TOKENS, 32)
        self.attn = nn.ModuleList(self.MLA() for _ in range(3))
        self.ffwd = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 80), nn.GELU(), nn.Linear(80, 32)) for _ in range(3)
        )
        self.norms = nn.ModuleDict({f"{k}{i}": nn.RMSNorm(32) for i in range(3) for k in ("attn", "ffwd")})
        self.unembed = nn.Linear(32, WORDS)

    def forward(self, t):
        x = self.vocab(t) + self.where.weight[None, : t.shape[1]]
        for i in range(3):
            x = x + self.attn[i](self.norms[f"attn{i}"](x))
            x = x + self.ffwd[i](self.norms[f"ffwd{i}"](x))
        return self.unembed(x)


def slopes(n):
    """Of the original code: for a number of heads that is no power of two."""
    if math.log2(n).is_integer():
        return [2 ** (-8 / n * (i + 1)) for i in range(n)]
    near = 2 ** math.floor(math.log2(n))
    return slopes(near) + slopes(2 * near)[0::2][: n - near]


@entry(
    "biases by slopes of six heads in a buffer, mask and bias in one",
    Truth(3, heads=6, positions="alibi", absolute=False, activation="relu"),
    batch=ids,
)
class SixSlopes(nn.Module):
    class Block(nn.Module):
        def __init__(self, d=48, h=6):
            super().__init__()
            self.h, self.in_proj, self.out_proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.ln_a, self.ln_b = nn.LayerNorm(d), nn.LayerNorm(d)
            self.fc1, self.fc2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

        def forward(self, x, bias):
            q, k, v = self.in_proj(self.ln_a(x)).view(*x.shape[:2], 3, self.h, -1).permute(2, 0, 3, 1, 4)
            x = x + self.out_proj(
                F.scaled_dot_product_attention(q, k, v, attn_mask=bias).permute(0, 2, 1, 3).flatten(2)
            )
            return x + self.fc2(torch.relu(self.fc1(self.ln_b(x))))

    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(WORDS, 48), nn.ModuleList(self.Block() for _ in range(3))
        far = torch.arange(TOKENS)[None, :] - torch.arange(TOKENS)[:, None]
        bias = torch.tensor(slopes(6))[:, None, None] * far
        self.register_buffer("bias", bias.masked_fill(far > 0, float("-inf")))

    def forward(self, x):
        n = x.shape[1]
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, self.bias[:, :n, :n])
        return x @ self.embed.weight.t()


@entry(
    "bucketed bias made in the first layer and passed on",
    Truth(3, norm_kind="rms", sees="full", activation="relu", positions="relative", absolute=False),
    batch=ids,
)
class PassedBias(nn.Module):
    """T5's encoder in a notebook: no scale of the logits, no biases."""

    class Layer(nn.Module):
        def __init__(self, first, d=32, h=4):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
            nn.init.normal_(self.q.weight, std=(d * d // h) ** -0.5)
            self.bias = nn.Embedding(8, h) if first else None
            self.wi, self.wo = nn.Linear(d, 64, bias=False), nn.Linear(64, d, bias=False)
            self.ln1, self.ln2 = nn.RMSNorm(d), nn.RMSNorm(d)

        def buckets(self, n):
            far = torch.arange(n)[None] - torch.arange(n)[:, None]
            near = far.abs().clamp(max=15)
            return torch.where(near < 2, near, 2 + (near / 2).log2().long()).clamp(max=3) + 4 * (far > 0)

        def forward(self, x, bias):
            if self.bias is not None:
                bias = self.bias(self.buckets(x.shape[1])).permute(2, 0, 1)
            q, k, v = (f(self.ln1(x)).unflatten(-1, (4, 8)).transpose(1, 2) for f in (self.q, self.k, self.v))
            p = F.softmax(q @ k.transpose(3, 2) + bias, dim=-1)
            x = x + self.o((p @ v).transpose(1, 2).flatten(2))
            return x + self.wo(self.wi(self.ln2(x)).relu()), bias

    def __init__(self):
        super().__init__()
        self.shared, self.final = nn.Embedding(WORDS, 32), nn.RMSNorm(32)
        self.block = nn.ModuleList(self.Layer(i == 0) for i in range(3))

    def forward(self, input_ids):
        x, bias = self.shared(input_ids), None
        for layer in self.block:
            x, bias = layer(x, bias)
        return self.final(x)
