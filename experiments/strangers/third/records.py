"""By hand: recommenders, proteins, graphs, sets, retrieval and control."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from ..truth import TOKENS, WORDS, Truth, ids
from .entry import entry
from .streams import Block, D, H, K, SelfAttention, causal, join, mlp, split


@entry(
    "next purchase, queries normed and keys not",
    Truth(
        2,
        norm=None,
        activation="relu",
        skip=None,
        positions=None,
        absolute=None,
        reason=("norm", "residual", "queries", "mask", "stream", "differ"),
    ),
    batch=lambda: ids() + 1,
)
class NextPurchase(nn.Module):
    """The sum starts from the normed queries; a padding item is zeroed after each block."""

    class PointWise(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv1d(D, D, 1), nn.Conv1d(D, D, 1)

        def forward(self, x):
            return self.conv2(F.relu(self.conv1(x.transpose(-1, -2)))).transpose(-1, -2) + x

    def __init__(self):
        super().__init__()
        self.item_emb, self.pos_emb = nn.Embedding(WORDS + 1, D, padding_idx=0), nn.Embedding(TOKENS, D)
        self.attention_layernorms, self.forward_layernorms = (
            nn.ModuleList(nn.LayerNorm(D, eps=1e-8) for _ in range(2)) for _ in range(2)
        )
        self.attention_layers = nn.ModuleList(nn.MultiheadAttention(D, H) for _ in range(2))
        self.forward_layers, self.last_layernorm = (
            nn.ModuleList(self.PointWise() for _ in range(2)),
            nn.LayerNorm(D),
        )

    def forward(self, log_seqs):
        seqs = self.item_emb(log_seqs) * D**0.5 + self.pos_emb.weight
        keep = (log_seqs != 0)[..., None]
        seqs, mask = seqs * keep, ~causal(log_seqs.shape[1])
        for i in range(2):
            seqs = seqs.transpose(0, 1)
            q = self.attention_layernorms[i](seqs)
            seqs = (q + self.attention_layers[i](q, seqs, seqs, attn_mask=mask)[0]).transpose(0, 1)
            seqs = self.forward_layers[i](self.forward_layernorms[i](seqs)) * keep
        return self.last_layernorm(seqs) @ self.item_emb.weight.T


@dataclass
class Session:
    items: torch.Tensor
    category: torch.Tensor
    mask: torch.Tensor


@entry(
    "sessions as a dataclass, masked both ways by padding that does not occur",
    Truth(3, sees="full", norm="post"),
    batch=lambda: (Session(ids(), ids() % 7, torch.ones(2, TOKENS, dtype=torch.bool)),),
)
class Sessions(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict(
            {
                "item": nn.Embedding(WORDS, D),
                "category": nn.Embedding(7, D),
                "position": nn.Embedding(TOKENS, D),
            }
        )
        self.towers = nn.ModuleDict({f"layer_{i}": nn.ModuleDict(self.layer()) for i in range(3)})
        self.score = nn.Linear(D, WORDS)

    @staticmethod
    def layer():
        return {"attn": SelfAttention(), "ln_attn": nn.LayerNorm(D), "ffn": mlp(), "ln_ffn": nn.LayerNorm(D)}

    def forward(self, session):
        x = self.tables["item"](session.items) + self.tables["category"](session.category)
        x = x + self.tables["position"].weight
        for layer in self.towers.values():
            q, k, v = (split(t) for t in layer["attn"].qkv(x).chunk(3, -1))
            bias = torch.zeros(session.mask.shape).masked_fill(~session.mask, -1e9)[:, None, None, :]
            y = join(F.scaled_dot_product_attention(q, k, v, attn_mask=bias))
            x = layer["ln_attn"](x + layer["attn"].proj(y))
            x = layer["ln_ffn"](x + layer["ffn"](x))
        return self.score(x)


@entry(
    "returns, states and actions in turns",
    Truth(3, activation="relu"),
    batch=lambda: {
        "states": torch.randn(2, 5, 6),
        "actions": torch.randn(2, 5, 2),
        "returns_to_go": torch.rand(2, 5, 1),
        "timesteps": torch.arange(5).repeat(2, 1),
    },
)
class Decisions(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_timestep, self.embed_return = nn.Embedding(8, D), nn.Linear(1, D)
        self.embed_state, self.embed_action, self.embed_ln = nn.Linear(6, D), nn.Linear(2, D), nn.LayerNorm(D)
        self.transformer = nn.ModuleList(Block(SelfAttention(), act=nn.ReLU) for _ in range(3))
        self.predict_action = nn.Sequential(nn.Linear(D, 2), nn.Tanh())

    def forward(self, *, states, actions, returns_to_go, timesteps):
        time = self.embed_timestep(timesteps)
        parts = (self.embed_return(returns_to_go), self.embed_state(states), self.embed_action(actions))
        x = self.embed_ln(torch.stack([part + time for part in parts], dim=2).flatten(1, 2))
        for block in self.transformer:
            x = block(x)
        return self.predict_action(x[:, 1::3])


class GRUGate(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.u, self.ug = (
            nn.Linear(D, 3 * D, bias=False),
            nn.Linear(D, 2 * D, bias=False),
            nn.Linear(D, D),
        )

    def forward(self, x, y):
        wr, wz, wg = self.w(y).chunk(3, -1)
        ur, uz = self.u(x).chunk(2, -1)
        r, z = torch.sigmoid(wr + ur), torch.sigmoid(wz + uz - 2)
        return (1 - z) * x + z * torch.tanh(wg + self.ug(r * x))


class Gated(Block):
    def __init__(self):
        super().__init__(SelfAttention(), act=nn.ReLU)
        self.gate1, self.gate2 = GRUGate(), GRUGate()

    def forward(self, x):
        x = self.gate1(x, F.relu(self.attn(self.ln1(x))))
        return self.gate2(x, F.relu(self.mlp(self.ln2(x))))


@entry(
    "agent's memory, gated sums as in a recurrent cell",
    Truth(
        3,
        norm=None,
        activation=None,
        skip=None,
        attention_branch=None,
        mlp_branch=None,
        reason=("gate", "input", "residual", "recurren", "depends"),
    ),
    batch=lambda: {"observation": torch.randn(2, 12, 9)},
)
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.pos = nn.Linear(9, D), nn.Parameter(torch.randn(12, D))
        self.core, self.policy, self.value = (
            nn.ModuleList(Gated() for _ in range(3)),
            nn.Linear(D, 4),
            nn.Linear(D, 1),
        )

    def forward(self, observation):
        x = self.enter(observation) + self.pos
        for layer in self.core:
            x = layer(x)
        return self.policy(x), self.value(x)


class PairBiased(nn.Module):
    """Logits get a bias from pairs of residues; what attention gives is gated."""

    def __init__(self, pairs=8):
        super().__init__()
        self.layer_norm_m, self.layer_norm_z = nn.LayerNorm(D), nn.LayerNorm(pairs)
        self.linear_z = nn.Linear(pairs, H, bias=False)
        self.linear_q, self.linear_k, self.linear_v = (nn.Linear(D, D, bias=False) for _ in range(3))
        self.linear_g, self.linear_o = nn.Linear(D, D), nn.Linear(D, D)
        self.transition = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D))

    def forward(self, m, z):
        y = self.layer_norm_m(m)
        q, k, v = split(self.linear_q(y)), split(self.linear_k(y)), split(self.linear_v(y))
        s = q @ k.mT / K**0.5 + self.linear_z(self.layer_norm_z(z)).permute(0, 3, 1, 2)
        m = m + self.linear_o(torch.sigmoid(self.linear_g(y)) * join(s.softmax(-1) @ v))
        return m + self.transition(m)


@entry(
    "residues with a bias for each pair",
    Truth(
        3,
        sees="full",
        activation="relu",
        positions=None,
        absolute=None,
        attention_branch=None,
        reason=("bias", "gate", "input", "position"),
    ),
    batch=lambda: {"aatype": torch.randint(21, (2, 12)), "pair": torch.randn(2, 12, 12, 8)},
)
class Residues(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(21, D), nn.ModuleList(PairBiased() for _ in range(3))
        self.distogram = nn.Linear(D, 10)

    def forward(self, aatype, pair):
        m = self.embed(aatype)
        for block in self.blocks:
            m = block(m, pair)
        return self.distogram(m[:, :, None] + m[:, None])


@dataclass
class Graphs:
    x: torch.Tensor
    degree: torch.Tensor
    distance: torch.Tensor


def rings():
    step = torch.arange(10)
    far = (step[:, None] - step).abs()
    far = torch.minimum(far, 10 - far)
    return Graphs(torch.randn(2, 10, 6), (far == 1).sum(-1).expand(2, -1), far.expand(2, -1, -1))


class GraphBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear_q, self.linear_k, self.linear_v, self.output = (nn.Linear(D, D) for _ in range(4))
        self.self_attention_norm, self.ffn_norm, self.ffn = nn.LayerNorm(D), nn.LayerNorm(D), mlp()

    def forward(self, x, attn_bias):
        y = self.self_attention_norm(x)
        q, k, v = split(self.linear_q(y)) * K**-0.5, split(self.linear_k(y)), split(self.linear_v(y))
        x = x + self.output(join(torch.softmax(torch.matmul(q, k.mT) + attn_bias, dim=3).matmul(v)))
        return x + self.ffn(self.ffn_norm(x))


@entry(
    "graphs with a bias by distance and a virtual node",
    Truth(3, sees="full", positions=None, absolute=None, reason=("bias", "position", "distance", "input")),
    batch=lambda: (rings(),),
)
class GraphTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.atom, self.degree, self.token = (
            nn.Linear(6, D),
            nn.Embedding(8, D),
            nn.Parameter(torch.randn(1, 1, D)),
        )
        self.spatial, self.virtual = nn.Embedding(12, H), nn.Parameter(torch.randn(H, 1, 1))
        self.layers, self.out = nn.ModuleList(GraphBias() for _ in range(3)), nn.Linear(D, 1)

    def forward(self, data):
        x = self.atom(data.x) + self.degree(data.degree)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        bias = self.virtual + torch.zeros(len(x), H, x.shape[1], x.shape[1])
        bias = bias + F.pad(self.spatial(data.distance).permute(0, 3, 1, 2), (1, 0, 1, 0))
        for layer in self.layers:
            x = layer(x, bias)
        return self.out(x[:, 0])


@entry(
    "graphs, attention along edges only",
    Truth(
        3,
        sees="other",
        norm="post",
        norm_kind="batch",
        activation="relu",
        positions=None,
        absolute=None,
        reason=("mask", "sees", "graph", "edges", "batch", "input"),
    ),
    batch=lambda: (torch.randn(2, 10, 6), (rings().distance == 1) | torch.eye(10, dtype=torch.bool)),
)
class Edges(nn.Module):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.Q, self.K, self.V, self.O = (nn.Linear(D, D, bias=False) for _ in range(4))
            self.batch_norm1, self.batch_norm2 = nn.BatchNorm1d(D), nn.BatchNorm1d(D)
            self.FFN_layer1, self.FFN_layer2 = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

        def forward(self, h, adjacency):
            q, k, v = split(self.Q(h)), split(self.K(h)), split(self.V(h))
            s = (q @ k.mT / K**0.5).masked_fill(~adjacency[:, None], -1e9)
            h = self.batch_norm1((h + self.O(join(s.softmax(-1) @ v))).mT).mT
            return self.batch_norm2((h + self.FFN_layer2(F.relu(self.FFN_layer1(h)))).mT).mT

    def __init__(self):
        super().__init__()
        self.embedding_h, self.readout = nn.Linear(6, D), nn.Linear(D, 3)
        self.layers = nn.ModuleList(self.Layer() for _ in range(3))

    def forward(self, h, adjacency):
        h = self.embedding_h(h)
        for layer in self.layers:
            h = layer(h, adjacency)
        return self.readout(h.mean(1))


@entry(
    "sets, heads folded into the batch, the sum starts from the queries",
    Truth(
        3,
        sees="full",
        norm=None,
        norm_kind="layer",
        gated=None,
        activation=None,
        skip=None,
        attention_branch=None,
        mlp_branch=None,
        absolute=False,
        reason=("residual", "skip", "output", "matrix", "repeat", "list of blocks", "queries"),
    ),
    batch=lambda: torch.randn(2, TOKENS, 3),
)
class Sets(nn.Module):
    """Deep sets by attention: O = Q + A V has no output matrix, and its feed-forward is one matrix."""

    class MAB(nn.Module):
        def __init__(self, d_in):
            super().__init__()
            self.fc_q, self.fc_k, self.fc_v = nn.Linear(d_in, D), nn.Linear(d_in, D), nn.Linear(d_in, D)
            self.ln0, self.ln1, self.fc_o = nn.LayerNorm(D), nn.LayerNorm(D), nn.Linear(D, D)

        def forward(self, X, Y):
            Q, K, V = self.fc_q(X), self.fc_k(Y), self.fc_v(Y)
            Q_, K_, V_ = (torch.cat(t.split(D // H, 2), 0) for t in (Q, K, V))
            A = torch.softmax(Q_.bmm(K_.transpose(1, 2)) / math.sqrt(D), 2)
            O = self.ln0(torch.cat((Q_ + A.bmm(V_)).split(Q.size(0), 0), 2))
            return self.ln1(O + F.relu(self.fc_o(O)))

    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.ModuleList([self.MAB(3), self.MAB(D), self.MAB(D)]), nn.Linear(D, 2)

    def forward(self, X):
        for mab in self.enc:
            X = mab(X, X)
        return self.dec(X.max(1).values)


@entry(
    "one encoder for questions and passages",
    Truth(
        3, sees="full", shared=None, allowed=("IDENTICAL_LAYERS",), reason=("twice", "towers", "two stacks")
    ),
    batch=lambda: {"question": ids()[:, :8], "passage": ids()},
)
class Retriever(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, D), nn.Embedding(TOKENS, D)
        self.encoder, self.norm = (
            nn.Sequential(*(Block(SelfAttention(causal=False)) for _ in range(3))),
            nn.LayerNorm(D),
        )

    def encode(self, tokens):
        x = self.encoder(self.words(tokens) + self.places(torch.arange(tokens.shape[1])))
        return F.normalize(self.norm(x).mean(1), dim=-1)

    def forward(self, question, passage):
        return self.encode(question) @ self.encode(passage).T / 0.05


@entry(
    "sentences first, then the document of sentences",
    Truth(2, sees="full", norm="post", activation="relu", copies=True, faults=("IDENTICAL_LAYERS",)),
    Truth(3, sees="full", copies=True, faults=("IDENTICAL_LAYERS",)),
    batch=lambda: torch.randint(1, WORDS, (2, 6, 8)),
)
class Documents(nn.Module):
    """Torch's encoder inside, which copies its layer, and a stack by hand outside."""

    def __init__(self):
        super().__init__()
        self.words, self.place = nn.Embedding(WORDS, D), nn.Parameter(torch.randn(8, D))
        layer = nn.TransformerEncoderLayer(D, H, 64, batch_first=True)
        self.sentences = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.order, self.document = (
            nn.Parameter(torch.randn(6, D)),
            nn.ModuleList(Block(SelfAttention(causal=False)) for _ in range(3)),
        )
        self.label = nn.Linear(D, 4)

    def forward(self, tokens):
        x = self.sentences((self.words(tokens) + self.place).flatten(0, 1))
        x = x.mean(1).unflatten(0, tokens.shape[:2]) + self.order
        for block in self.document:
            x = block(x)
        return self.label(x.mean(1))


@entry(
    "tabular rows, columns as tokens, the class token last",
    Truth(3, sees="full", gated=True, activation="relu", absolute=None, positions=None, norm_kind="layer"),
    batch=lambda: {"numbers": torch.randn(4, 5), "kinds": torch.randint(3, (4, 3))},
)
class Columns(nn.Module):
    class Layer(Block):
        def __init__(self):
            super().__init__(SelfAttention(causal=False))
            self.mlp, self.down = nn.Linear(D, 96), nn.Linear(48, D)

        def forward(self, x):
            x = x + self.attn(self.ln1(x))
            a, b = self.mlp(self.ln2(x)).chunk(2, -1)
            return x + self.down(a * F.relu(b))

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(5, D)), nn.Parameter(torch.randn(5, D))
        self.kinds, self.cls = (
            nn.ModuleList(nn.Embedding(3, D) for _ in range(3)),
            nn.Parameter(torch.randn(D)),
        )
        self.blocks, self.out = nn.Sequential(*(self.Layer() for _ in range(3))), nn.Linear(D, 2)

    def forward(self, numbers, kinds):
        x = [
            numbers[..., None] * self.scale + self.shift,
            *(f(kinds[:, i, None]) for i, f in enumerate(self.kinds)),
        ]
        x = torch.cat([*x, self.cls.expand(len(numbers), 1, -1)], 1)
        return self.out(self.blocks(x)[:, -1])
