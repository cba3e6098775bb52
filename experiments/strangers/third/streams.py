"""By hand: how blocks are repeated, called, split and joined."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..truth import TOKENS, WORDS, Truth, ids, image
from .entry import entry
from .variants import QKV, Block, D, H, K, Net, causal, join, split


class SelfAttention(nn.Module):
    def __init__(self, causal=True, d=D, heads=H):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.proj(y.transpose(1, 2).flatten(2))


def mlp(hidden=64, act=nn.GELU, d=D):
    return nn.Sequential(nn.Linear(d, hidden), act(), nn.Linear(hidden, d))


class Macaron(nn.Module):
    def __init__(self):
        super().__init__()
        self.ff1, self.attn, self.ff2 = mlp(act=nn.SiLU), SelfAttention(), mlp(act=nn.SiLU)
        self.n1, self.n2, self.n3 = (nn.LayerNorm(D) for _ in range(3))

    def forward(self, x):
        x = x + 0.5 * self.ff1(self.n1(x))
        x = x + self.attn(self.n2(x))
        return x + 0.5 * self.ff2(self.n3(x))


entry(
    "macaron, half a feed-forward on both sides",
    Truth(3, activation="silu", mlp_branch=0.5, reason=("branches", "three", "more than", "two MLP")),
    batch=ids,
)(lambda: Net(*(Macaron() for _ in range(3))))


class SubNorm(nn.Module):
    """A norm at the entrance of each branch and another before its last matrix."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(D, 64), nn.Linear(64, D)
        self.attn_norm, self.inner_attn_ln, self.ffn_norm = (nn.LayerNorm(D) for _ in range(3))
        self.ffn_layernorm = nn.LayerNorm(64)

    def forward(self, x):
        y = self.attn_norm(x)
        q, k, v = split(self.q(y)), split(self.k(y)), split(self.v(y))
        x = x + self.o(self.inner_attn_ln(join(F.scaled_dot_product_attention(q, k, v, is_causal=True))))
        return x + self.fc2(self.ffn_layernorm(F.gelu(self.fc1(self.ffn_norm(x)))))


entry("norms before the last matrix of each branch", Truth(3, reason=("norm", "inside")), batch=ids)(
    lambda: Net(*(SubNorm() for _ in range(3)))
)


class Rooted(Block):
    def forward(self, x):
        x = x + self.attn(self.ln1(x)) / math.sqrt(8)
        return torch.addcmul(x, self.mlp(self.ln2(x)), torch.full((), 8**-0.5))


entry(
    "branches divided by the root of their number",
    Truth(4, sees="full", attention_branch=8**-0.5, mlp_branch=8**-0.5),
    batch=ids,
)(lambda: Net(*(Rooted(SelfAttention(causal=False)) for _ in range(4))))


@entry(
    "one block in a loop, a step's vector added each time",
    Truth(4, sees="full", shared=True, activation="relu", reason=("added", "shared")),
    batch=ids,
)
class Universal(nn.Module):
    def __init__(self, steps=4):
        super().__init__()
        self.vocab, self.place = nn.Embedding(WORDS, D), nn.Parameter(torch.randn(TOKENS, D) * 0.5)
        self.transition, self.times = Block(SelfAttention(causal=False), act=nn.ReLU), nn.Embedding(steps, D)
        self.out = nn.Linear(D, WORDS)

    def forward(self, tokens):
        state = self.vocab(tokens) + self.place
        for step in range(self.times.num_embeddings):
            state = self.transition(state + self.times.weight[step])
        return self.out(state)


@entry(
    "prelude, a core that is run three times with the input, coda",
    Truth(
        5,
        norm_kind="rms",
        activation="silu",
        gated=True,
        skip=None,
        shared=None,
        allowed=("IDENTICAL_LAYERS",),
        reason=("shared", "loop", "input", "concat", "residual", "differ"),
    ),
    batch=ids,
)
class Recurrent(nn.Module):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2, self.attn = nn.RMSNorm(D), nn.RMSNorm(D), SelfAttention()
            self.fc, self.proj = nn.Linear(D, 96, bias=False), nn.Linear(48, D, bias=False)

        def forward(self, x):
            x = self.attn(self.norm_1(x)) + x
            gate, up = self.fc(self.norm_2(x)).chunk(2, dim=-1)
            return self.proj(F.silu(gate) * up) + x

    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(WORDS, D),
                wpe=nn.Embedding(TOKENS, D),
                prelude=self.Layer(),
                core=self.Layer(),
            )
        )
        self.transformer["adapter"], self.transformer["coda"] = nn.Linear(2 * D, D), self.Layer()
        self.head = nn.Linear(D, WORDS)

    def forward(self, input_ids):
        t = self.transformer
        e = t.prelude(t.wte(input_ids) + t.wpe.weight[: input_ids.shape[1]])
        x = torch.zeros_like(e)
        for _ in range(3):
            x = t.core(t.adapter(torch.cat([x, e], dim=-1)))
        return self.head(t.coda(x))


class Routed(nn.Module):
    """A router takes half of the tokens through a block; the others go around it."""

    def __init__(self):
        super().__init__()
        self.router, self.block = nn.Linear(D, 1), Block(QKVCausal())

    def forward(self, x):
        score = self.router(x)[..., 0]
        top, where = score.topk(x.shape[1] // 2, dim=-1)
        where, order = where.sort(-1)
        index = where[..., None].expand(-1, -1, D)
        some = x.gather(1, index)
        change = (self.block(some) - some) * torch.sigmoid(top.gather(1, order))[..., None]
        return x.scatter_add(1, index, change)


class QKVCausal(QKV):
    def weights(self, q, k, _):
        return (q @ k.mT / K**0.5).masked_fill(~causal(q.shape[2]), -torch.inf).softmax(-1)


entry(
    "half of the tokens take every block, by a router",
    Truth(
        3,
        sees=None,
        positions=None,
        absolute=None,
        norm=None,
        skip=None,
        attention_branch=None,
        mlp_branch=None,
        reason=("chosen", "route", "input", "gate", "inside", "residual"),
    ),
    batch=ids,
)(lambda: Net(*(Routed() for _ in range(3))))


class Switch(nn.Module):
    """One expert for each token, by index_select and index_add."""

    def __init__(self, experts=4):
        super().__init__()
        self.gate, self.experts = (
            nn.Linear(D, experts, bias=False),
            nn.ModuleList(mlp(48) for _ in range(experts)),
        )

    def forward(self, x):
        flat = x.reshape(-1, D)
        probability, expert = self.gate(flat).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for i, f in enumerate(self.experts):
            rows = (expert == i).nonzero()[:, 0]
            out = out.index_add(0, rows, f(flat[rows]) * probability[rows, None])
        return out.view_as(x)


def switched(every):
    block = Block(SelfAttention())
    block.mlp = Switch() if every else block.mlp
    return block


entry(
    "one expert for each token, tokens sorted by index",
    Truth(
        3,
        mlp_branch=None,
        activation=None,
        gated=None,
        reason=("expert", "route", "input", "chosen", "gate", "depends"),
    ),
    batch=ids,
)(lambda: Net(*(switched(True) for _ in range(3))))


class Shard(nn.Module):
    """A column of the first matrices and a row of the last: one process's part of a block."""

    def __init__(self, ranks=2):
        super().__init__()
        self.heads = H // ranks
        self.query_key_value, self.dense = nn.Linear(D, 3 * D // ranks), nn.Linear(D // ranks, D, bias=False)
        self.dense_h_to_4h, self.dense_4h_to_h = (
            nn.Linear(D, 128 // ranks),
            nn.Linear(128 // ranks, D, bias=False),
        )

    def attend(self, x):
        q, k, v = self.query_key_value(x).unflatten(-1, (self.heads, 3, K)).permute(3, 0, 2, 1, 4)
        p = (q @ k.mT / K**0.5 + torch.full((x.shape[1],) * 2, -1e4).triu(1)).softmax(-1)
        return self.dense((p @ v).transpose(1, 2).flatten(2))

    def think(self, x):
        return self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x), approximate="tanh"))


class Parallel(nn.Module):
    def __init__(self):
        super().__init__()
        self.ranks = nn.ModuleList(Shard() for _ in range(2))
        self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(D), nn.LayerNorm(D)
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(D)) for _ in range(2))

    def forward(self, x):
        y = self.input_layernorm(x)
        x = x + (sum(r.attend(y) for r in self.ranks) + self.bias[0])
        y = self.post_attention_layernorm(x)
        return x + (sum(r.think(y) for r in self.ranks) + self.bias[1])


entry(
    "heads on two ranks whose parts are summed",
    Truth(3, reason=("several", "shard", "more than")),
    batch=ids,
)(lambda: Net(*(Parallel() for _ in range(3))))


@entry("blocks under checkpoints, weights in a list of parameters", Truth(3, norm_kind="rms"), batch=ids)
class Checkpointed(nn.Module):
    SHAPES = ((3 * D, D), (D, D), (64, D), (D, 64))

    def __init__(self, depth=3):
        super().__init__()
        self.weights = nn.ParameterList(
            nn.Parameter(nn.init.kaiming_uniform_(torch.empty(shape), a=5**0.5))
            for _ in range(depth)
            for shape in self.SHAPES
        )
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(D)) for _ in range(2 * depth))
        self.emb, self.pos = nn.Embedding(WORDS, D), nn.Embedding(TOKENS, D)

    @staticmethod
    def block(x, g1, g2, qkv, out, up, down):
        q, k, v = (split(t) for t in F.linear(F.rms_norm(x, (D,), g1), qkv).chunk(3, -1))
        x = x + F.linear(join(F.scaled_dot_product_attention(q, k, v, is_causal=True)), out)
        return x + F.linear(F.gelu(F.linear(F.rms_norm(x, (D,), g2), up)), down)

    def forward(self, tokens):
        x = self.emb(tokens) + self.pos.weight
        for i in range(len(self.gains) // 2):
            weights = [*self.gains[2 * i : 2 * i + 2], *self.weights[4 * i : 4 * i + 4]]
            x = checkpoint(self.block, x, *weights, use_reentrant=False)
        return F.linear(x, self.emb.weight)


class Recurrence(nn.Module):
    """A gated linear recurrence behind a short filter, times a branch of gelu."""

    def __init__(self):
        super().__init__()
        self.x, self.y, self.out = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.conv, self.gates = nn.Conv1d(D, D, 4, groups=D), nn.Linear(D, 2 * D)
        self.a = nn.Parameter(torch.linspace(2.0, 6.0, D))

    def forward(self, u):
        x = self.conv(F.pad(self.x(u).mT, (3, 0))).mT
        r, i = torch.sigmoid(self.gates(x)).chunk(2, -1)
        a = torch.exp(-8 * r * F.softplus(-self.a))
        h, states = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = a[:, t] * h + (1 - a[:, t] ** 2).clamp(min=1e-6).sqrt() * (i * x)[:, t]
            states.append(h)
        return self.out(torch.stack(states, 1) * F.gelu(self.y(u)))


class LocalAttention(QKV):
    def weights(self, q, k, _):
        near = causal(q.shape[2]).triu(-5)
        return (q @ k.mT / K**0.5).masked_fill(~near, -torch.inf).softmax(-1)


entry(
    "recurrences and local attention in turns",
    Truth(
        4,
        heads=(None, 4, None, 4),
        sees=None,
        positions=None,
        absolute=None,
        qk_norm=None,
        attention_branch=None,
        attends=2,
        keep=("*attn.a",),
        reason=("recurren", "mixer", "without softmax", "gate"),
    ),
    batch=ids,
)(
    lambda: Net(
        *(Block(f(), act=nn.GELU) for f in (Recurrence, LocalAttention, Recurrence, LocalAttention)),
        places=False,
    )
)


class FusedParallel(nn.Module):
    """Queries, keys, values and the hidden layer by one matrix, both branches home by another."""

    def __init__(self, d=D, hidden=96):
        super().__init__()
        self.sizes, self.norm = (d, d, d, hidden), nn.LayerNorm(d)
        self.fused_in, self.fused_out = nn.Linear(d, 3 * d + hidden), nn.Linear(d + hidden, d)
        self.q_norm, self.k_norm = nn.LayerNorm(K), nn.LayerNorm(K)

    def forward(self, x):
        q, k, v, h = self.fused_in(self.norm(x)).split(self.sizes, -1)
        q, k, v = self.q_norm(split(q)), self.k_norm(split(k)), split(v)
        y = join(F.scaled_dot_product_attention(q, k, v))
        return x + self.fused_out(torch.cat([y, F.gelu(h)], -1))


@entry(
    "both branches by one matrix in and one matrix out",
    Truth(3, sees="full", parallel=True, qk_norm=True, reason=("parallel", "fused", "one matrix", "shared")),
    batch=image,
)
class BigVision(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.pos = nn.Conv2d(3, D, 8, 8), nn.Parameter(0.3 * torch.randn(16, D))
        self.encoder, self.map = nn.Sequential(*(FusedParallel() for _ in range(3))), nn.Linear(D, 10)

    def forward(self, img):
        return self.map(self.encoder(self.stem(img).flatten(2).transpose(1, 2) + self.pos).mean(1))


class Batch(NamedTuple):
    src: torch.Tensor
    tgt: torch.Tensor


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)

    def forward(self, x, memory, mask=None):
        q, (k, v) = split(self.q(x)), (split(t) for t in self.kv(memory).chunk(2, -1))
        s = q @ k.mT / K**0.5
        p = (s if mask is None else s.masked_fill(mask, -1e9)).softmax(-1)
        return self.o(join(p @ v)), p.mean(1)


@entry(
    "summarizer that copies words by its last attention",
    Truth(2, norm="post", sees="full", activation="relu"),
    Truth(2, norm="post", activation="relu", reason=("cross", "copies")),
    batch=lambda: (Batch(ids(), ids()),),
)
class Copying(nn.Module):
    class Encoder(nn.Module):
        def __init__(self, cross=False):
            super().__init__()
            self.attn, self.cross = Attention(), Attention() if cross else None
            self.ff, self.norms = (
                mlp(act=nn.ReLU),
                nn.ModuleList(nn.LayerNorm(D) for _ in range(3 if cross else 2)),
            )

        def forward(self, x, mask=None, memory=None):
            x, copy = self.norms[0](x + self.attn(x, x, mask)[0]), None
            if self.cross is not None:
                y, copy = self.cross(x, memory)
                x = self.norms[1](x + y)
            return self.norms[-1](x + self.ff(x)), copy

    def __init__(self):
        super().__init__()
        self.embed, self.pos = nn.Embedding(WORDS, D), nn.Parameter(torch.randn(TOKENS, D))
        self.encoder = nn.ModuleList(self.Encoder() for _ in range(2))
        self.decoder = nn.ModuleList(self.Encoder(cross=True) for _ in range(2))
        self.generate, self.switch = nn.Linear(D, WORDS), nn.Linear(D, 1)

    def forward(self, batch):
        memory, x = self.embed(batch.src) + self.pos, self.embed(batch.tgt) + self.pos
        for layer in self.encoder:
            memory, _ = layer(memory)
        for layer in self.decoder:
            x, copy = layer(x, ~causal(x.shape[1]), memory)
        p = torch.sigmoid(self.switch(x))
        copied = torch.zeros(*copy.shape[:2], WORDS).scatter_add(2, batch.src[:, None].expand_as(copy), copy)
        return (p * self.generate(x).softmax(-1) + (1 - p) * copied + 1e-9).log()
