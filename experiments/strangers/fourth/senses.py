"""By hand: pictures, points, sound and measured series."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..truth import BATCH, TOKENS, WORDS, Truth, image
from .entry import D, H, K, entry


class Mlp(nn.Module):
    def __init__(self, in_features=D, hidden_features=64, act_layer=nn.GELU, drop=0.0):
        super().__init__()
        self.fc1, self.act = nn.Linear(in_features, hidden_features), act_layer()
        self.fc2, self.drop = nn.Linear(hidden_features, in_features), nn.Dropout(drop)

    def forward(self, x):
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class Attention(nn.Module):
    def __init__(self, dim=D, num_heads=H, qkv_bias=True):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, dim * 3, bias=qkv_bias), nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        attn = ((q @ k.transpose(-2, -1)) * self.scale).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


class ScaledLayer(nn.Module):
    def __init__(self, init_values=0.1):
        super().__init__()
        self.norm1, self.attn, self.norm2, self.mlp = nn.LayerNorm(D), Attention(), nn.LayerNorm(D), Mlp()
        self.gamma_1, self.gamma_2 = (nn.Parameter(init_values * torch.ones(D)) for _ in range(2))

    def forward(self, x):
        x = x + self.gamma_1 * self.attn(self.norm1(x))
        return x + self.gamma_2 * self.mlp(self.norm2(x))


class ClassLayer(nn.Module):
    """The class token alone asks."""

    def __init__(self, init_values=0.1):
        super().__init__()
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(D), nn.LayerNorm(D), Mlp()
        self.q, self.k, self.v, self.proj = (nn.Linear(D, D) for _ in range(4))
        self.gamma_1, self.gamma_2 = (nn.Parameter(init_values * torch.ones(D)) for _ in range(2))

    def forward(self, x, x_cls):
        u = self.norm1(torch.cat((x_cls, x), dim=1))
        q = self.q(u[:, :1]).unflatten(-1, (H, K)).transpose(1, 2)
        k, v = (f(u).unflatten(-1, (H, K)).transpose(1, 2) for f in (self.k, self.v))
        y = ((q * K**-0.5) @ k.mT).softmax(-1) @ v
        x_cls = x_cls + self.gamma_1 * self.proj(y.transpose(1, 2).flatten(2))
        return x_cls + self.gamma_2 * self.mlp(self.norm2(x_cls))


def pixels():
    return {"x": image()}


@entry(
    "a class token that comes late and asks alone",
    Truth(
        3,
        sees="full",
        attention_branch=0.1,
        mlp_branch=0.1,
        reason=("class", "cross", "differ", "another", "queries", "other tokens"),
    ),
    Truth(5, sees=None, attention_branch=0.1, mlp_branch=0.1),
    batch=pixels,
)
class LateClass(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embed, self.cls_token = nn.Conv2d(3, D, 8, 8), nn.Parameter(torch.randn(1, 1, D) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, 16, D) * 0.5)
        self.blocks = nn.ModuleList(ScaledLayer() for _ in range(3))
        self.blocks_token_only = nn.ModuleList(ClassLayer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, 10)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2) + self.pos_embed
        cls_tokens = self.cls_token.expand(x.shape[0], -1, -1)
        for blk in self.blocks:
            x = blk(x)
        for blk in self.blocks_token_only:
            cls_tokens = blk(x, cls_tokens)
        return self.head(self.norm(torch.cat((cls_tokens, x), dim=1))[:, 0])


class WindowLayer(nn.Module):
    def __init__(self, dim, heads, window=4):
        super().__init__()
        self.window, self.heads = window, heads
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(dim), nn.LayerNorm(dim), Mlp(dim, 2 * dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.3)
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = at[:, :, None] - at[:, None] + window - 1
        self.register_buffer("relative_position_index", apart[0] * (2 * window - 1) + apart[1])

    def forward(self, x):
        B, S, _, C = x.shape
        w, n = self.window, S // self.window
        y = self.norm1(x).view(B, n, w, n, w, C).transpose(2, 3).reshape(-1, w * w, C)
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        bias = self.table[self.relative_position_index.view(-1)].view(w * w, w * w, -1).permute(2, 0, 1)
        attn = (q * (C // self.heads) ** -0.5) @ k.transpose(-2, -1) + bias.unsqueeze(0)
        y = self.proj((attn.softmax(-1) @ v).transpose(1, 2).flatten(2))
        x = x + y.view(B, n, n, w, w, C).transpose(2, 3).reshape(B, S, S, C)
        return x + self.mlp(self.norm2(x))


class Merge(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.reduction = nn.LayerNorm(4 * dim), nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x):
        x = torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1)
        return self.reduction(self.norm(x))


@entry(
    "two stages of windows, twice the width in the second",
    Truth(
        4,
        heads=(2, 2, 4, 4),
        sees=None,
        skip=None,
        positions=None,
        absolute=False,
        reason=("width", "merg", "size", "differ", "window", "shape", "sees"),
    ),
    batch=image,
)
class Stages(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 16, 4, 4)
        self.layers = nn.ModuleList(
            [
                nn.Sequential(WindowLayer(16, 2), WindowLayer(16, 2), Merge(16)),
                nn.Sequential(WindowLayer(32, 4), WindowLayer(32, 4)),
            ]
        )
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x):
        x = self.patch_embed(x).permute(0, 2, 3, 1)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean((1, 2)))


class PlaneLayer(nn.Module):
    """Channels last; in windows or over the whole picture; a bias of rows and one of columns, made from the queries."""

    def __init__(self, window, side=8):
        super().__init__()
        self.window, size = window, window or side
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(D, eps=1e-6), nn.LayerNorm(D, eps=1e-6), Mlp()
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.rel_pos_h, self.rel_pos_w = (nn.Parameter(torch.randn(2 * size - 1, K) * 0.1) for _ in range(2))

    def attend(self, x):
        B, s, _, _ = x.shape
        q, k, v = self.qkv(x).view(B, s * s, 3, H, K).permute(2, 0, 3, 1, 4)
        attn = (q * K**-0.5) @ k.transpose(-2, -1)
        index = torch.arange(s)[:, None] - torch.arange(s)[None] + s - 1
        r = q.reshape(B, H, s, s, K)
        rel_h = torch.einsum("bnhwc,hkc->bnhwk", r, self.rel_pos_h[index])
        rel_w = torch.einsum("bnhwc,wkc->bnhwk", r, self.rel_pos_w[index])
        attn = attn.view(B, H, s, s, s, s) + rel_h[..., :, None] + rel_w[..., None, :]
        y = attn.view(B, H, s * s, s * s).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(B, s, s, D))

    def forward(self, x):
        shortcut, x = x, self.norm1(x)
        if self.window:
            B, S, _, C = x.shape
            w, n = self.window, S // self.window
            x = x.view(B, n, w, n, w, C).permute(0, 1, 3, 2, 4, 5).reshape(-1, w, w, C)
            x = self.attend(x).view(B, n, n, w, w, C).permute(0, 1, 3, 2, 4, 5).reshape(B, S, S, C)
        else:
            x = self.attend(x)
        x = shortcut + x
        return x + self.mlp(self.norm2(x))


@entry(
    "a plane of features, windows and the whole in turns, biases of rows and columns",
    Truth(
        4,
        sees=None,
        positions=None,
        reason=("window", "differ", "alternat", "position", "bias", "sees", "input"),
    ),
    batch=image,
)
class Plane(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embed, self.pos_embed = nn.Conv2d(3, D, 4, 4), nn.Parameter(torch.randn(1, 8, 8, D) * 0.5)
        self.blocks = nn.ModuleList(PlaneLayer(w) for w in (4, 0, 4, 0))
        self.neck = nn.Sequential(nn.Conv2d(D, 16, 1, bias=False), nn.GroupNorm(1, 16))

    def forward(self, x):
        x = self.patch_embed(x).permute(0, 2, 3, 1) + self.pos_embed
        for blk in self.blocks:
            x = blk(x)
        return self.neck(x.permute(0, 3, 1, 2))


@entry("a learned probe pools the patches by attention of its own", Truth(3, sees="full"), batch=image)
class Probed(nn.Module):
    class Block1D(nn.Module):
        def __init__(self):
            super().__init__()
            self.LayerNorm_0, self.MultiHeadDotProductAttention_0 = nn.LayerNorm(D), Attention()
            self.LayerNorm_1, self.MlpBlock_0 = nn.LayerNorm(D), Mlp(act_layer=lambda: nn.GELU("tanh"))

        def forward(self, x):
            y = self.MultiHeadDotProductAttention_0(self.LayerNorm_0(x))
            x = x + y
            return x + self.MlpBlock_0(self.LayerNorm_1(x))

    class MAPHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.probe, self.norm, self.mlp = nn.Parameter(torch.randn(1, 1, D)), nn.LayerNorm(D), Mlp()
            self.attention = nn.MultiheadAttention(D, H, batch_first=True)

        def forward(self, x):
            x = self.attention(self.probe.expand(len(x), -1, -1), x, x)[0]
            return (x + self.mlp(self.norm(x)))[:, 0]

    def __init__(self):
        super().__init__()
        self.embedding, self.posemb = nn.Conv2d(3, D, 8, 8), nn.Parameter(torch.randn(1, 16, D) / D**0.5)
        self.Transformer, self.encoder_norm = (
            nn.Sequential(*(self.Block1D() for _ in range(3))),
            nn.LayerNorm(D),
        )
        self.head, self.t = self.MAPHead(), nn.Parameter(torch.tensor(2.3))

    def forward(self, pixels):
        x = self.embedding(pixels).flatten(2).transpose(1, 2) + self.posemb
        z = F.normalize(self.head(self.encoder_norm(self.Transformer(x))), dim=-1)
        return z @ z.T * self.t.exp()


class DetectionLayer(nn.Module):
    """Places are added to queries and keys in every layer, and not to the values."""

    def __init__(self, cross):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(D, H, dropout=0.1)
        self.multihead_attn = nn.MultiheadAttention(D, H, dropout=0.1) if cross else None
        self.linear1, self.linear2, self.dropout = nn.Linear(D, 64), nn.Linear(64, D), nn.Dropout(0.1)
        self.norm1, self.norm3 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.norm2 = nn.LayerNorm(D) if cross else None

    def forward(self, tgt, query_pos, memory=None, pos=None):
        q = k = tgt + query_pos
        tgt = self.norm1(tgt + self.dropout(self.self_attn(q, k, value=tgt)[0]))
        if self.multihead_attn is not None:
            y = self.multihead_attn(tgt + query_pos, memory + pos, memory)[0]
            tgt = self.norm2(tgt + self.dropout(y))
        y = self.linear2(self.dropout(F.relu(self.linear1(tgt))))
        return self.norm3(tgt + self.dropout(y))


@entry(
    "boxes asked by queries that start from zero",
    Truth(2, sees="full", norm="post", activation="relu", positions=None, absolute=None),
    Truth(
        3,
        sees="full",
        norm="post",
        activation="relu",
        positions=None,
        absolute=None,
        reason=("cross", "another"),
    ),
    batch=lambda: {"samples": torch.randn(BATCH, 3, 64, 64)},
)
class Boxes(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 7, 4, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, D, 3, 4, 1)
        )
        self.row_embed, self.col_embed = (
            nn.Parameter(torch.rand(4, D // 2)),
            nn.Parameter(torch.rand(4, D // 2)),
        )
        self.encoder = nn.ModuleList(DetectionLayer(False) for _ in range(2))
        self.decoder, self.norm = nn.ModuleList(DetectionLayer(True) for _ in range(3)), nn.LayerNorm(D)
        self.query_embed, self.class_embed, self.bbox_embed = (
            nn.Embedding(6, D),
            nn.Linear(D, 5),
            nn.Linear(D, 4),
        )

    def forward(self, samples):
        src = self.backbone(samples)
        rows, columns = self.row_embed[:, None].expand(4, 4, -1), self.col_embed[None].expand(4, 4, -1)
        pos = torch.cat([columns, rows], -1).flatten(0, 1)[:, None]
        memory = src.flatten(2).permute(2, 0, 1)
        for layer in self.encoder:
            memory = layer(memory, pos)
        query_pos = self.query_embed.weight[:, None].expand(-1, len(samples), -1)
        tgt, outs = torch.zeros_like(query_pos), []
        for layer in self.decoder:
            tgt = layer(tgt, query_pos, memory, pos)
            outs.append(self.norm(tgt))
        hs = torch.stack(outs).transpose(1, 2)
        out = {"pred_logits": self.class_embed(hs)[-1], "pred_boxes": self.bbox_embed(hs).sigmoid()[-1]}
        out["aux_outputs"] = [{"pred_logits": a} for a in self.class_embed(hs)[:-1]]
        return out


class MAB(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.ff = nn.MultiheadAttention(D, H, batch_first=True), Mlp(act_layer=nn.ReLU)
        self.ln0, self.ln1 = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, X, Y):
        H_ = self.ln0(X + self.attn(X, Y, Y, need_weights=False)[0])
        return self.ln1(H_ + self.ff(H_))


class ISAB(nn.Module):
    def __init__(self, points=6):
        super().__init__()
        self.I, self.mab0, self.mab1 = nn.Parameter(torch.randn(1, points, D)), MAB(), MAB()

    def forward(self, X):
        return self.mab1(X, self.mab0(self.I.expand(len(X), -1, -1), X))


@entry(
    "sets through induced points, then pooled by seeds",
    Truth(
        None,
        sees=None,
        norm=None,
        activation="relu",
        absolute=False,
        positions=None,
        reason=("cross", "induc", "latent", "another", "other tokens", "differ", "queries"),
    ),
    batch=lambda: torch.randn(BATCH, 20, 3),
)
class SetNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(3, D)
        self.enc, self.seeds = nn.Sequential(ISAB(), ISAB()), nn.Parameter(torch.randn(1, 2, D))
        self.pma, self.sab, self.out = MAB(), MAB(), nn.Linear(2 * D, 10)

    def forward(self, X):
        X = self.enc(self.lift(X))
        S = self.pma(self.seeds.expand(len(X), -1, -1), X)
        return self.out(self.sab(S, S).flatten(1))


class NeighborLayer(nn.Module):
    """Point transformer: a weight for each neighbor and channel, from differences, with what distance adds."""

    def __init__(self, k=5):
        super().__init__()
        self.k, self.w_qs, self.w_ks, self.w_vs = k, *(nn.Linear(D, D, bias=False) for _ in range(3))
        self.fc_delta = nn.Sequential(nn.Linear(3, D), nn.ReLU(), nn.Linear(D, D))
        self.fc_gamma = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D))
        self.fc1, self.fc2, self.norm = nn.Linear(D, D), nn.Linear(D, D), nn.LayerNorm(D)
        self.norm2, self.mlp = nn.LayerNorm(D), Mlp()

    def forward(self, xyz, features):
        near = torch.cdist(xyz, xyz).argsort()[:, :, : self.k]
        rows = torch.arange(len(xyz))[:, None, None]
        x = self.fc1(self.norm(features))
        q, k, v = self.w_qs(x), self.w_ks(x)[rows, near], self.w_vs(x)[rows, near]
        pos_enc = self.fc_delta(xyz[:, :, None] - xyz[rows, near])
        attn = F.softmax(self.fc_gamma(q[:, :, None] - k + pos_enc) / D**0.5, dim=-2)
        features = features + self.fc2(torch.einsum("bmnf,bmnf->bmf", attn, v + pos_enc))
        return features + self.mlp(self.norm2(features))


@entry(
    "points that weigh their neighbors channel by channel",
    Truth(
        3,
        heads=None,
        sees=None,
        positions=None,
        absolute=None,
        reason=("neighbor", "channel", "chosen", "differ", "vector", "sees", "position", "feature"),
    ),
    batch=lambda: torch.randn(BATCH, 24, 3),
)
class Points(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.transformers = (
            nn.Sequential(nn.Linear(3, D), nn.ReLU(), nn.Linear(D, D)),
            nn.ModuleList(NeighborLayer() for _ in range(3)),
        )
        self.out = nn.Linear(D, 8)

    def forward(self, points):
        x = self.fc(points)
        for block in self.transformers:
            x = block(points, x)
        return self.out(x)


class BranchMerge(nn.Module):
    """Attention beside a gated convolution, joined by a filter and a matrix; half feed-forwards around."""

    def __init__(self):
        super().__init__()
        self.ff_macaron, self.ff = Mlp(act_layer=nn.SiLU), Mlp(act_layer=nn.SiLU)
        self.norm_ff1, self.norm_ff2, self.norm_mha, self.norm_mlp = (nn.LayerNorm(D) for _ in range(4))
        self.attn, self.channel_in, self.channel_out = Attention(), nn.Linear(D, 64), nn.Linear(32, D)
        self.csgu_norm, self.csgu = nn.LayerNorm(32), nn.Conv1d(32, 32, 5, padding=2, groups=32)
        self.depthwise, self.merge = nn.Conv1d(2 * D, 2 * D, 3, padding=1, groups=2 * D), nn.Linear(2 * D, D)
        self.norm_final = nn.LayerNorm(D)

    def forward(self, x):
        x = x + 0.5 * self.ff_macaron(self.norm_ff1(x))
        x1 = self.attn(self.norm_mha(x))
        r, g = F.gelu(self.channel_in(self.norm_mlp(x))).chunk(2, -1)
        x2 = self.channel_out(r * self.csgu(self.csgu_norm(g).mT).mT)
        both = torch.cat([x1, x2], -1)
        x = x + self.merge(both + self.depthwise(both.mT).mT)
        x = x + 0.5 * self.ff(self.norm_ff2(x))
        return self.norm_final(x)


@entry(
    "speech, attention and gated convolutions beside each other",
    Truth(
        3,
        sees="full",
        norm=None,
        gated=None,
        activation=None,
        parallel=None,
        attention_branch=None,
        mlp_branch=None,
        reason=("convol", "mixer", "branches", "concat", "inside", "three", "more than"),
    ),
    batch=lambda: {"speech": torch.randn(BATCH, 64, 20), "speech_lengths": torch.tensor([64, 64])},
)
class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU())
        self.out, self.encoders = nn.Linear(8 * 4, D), nn.ModuleList(BranchMerge() for _ in range(3))
        self.after_norm, self.ctc_lo = nn.LayerNorm(D), nn.Linear(D, 30)

    def forward(self, speech, speech_lengths):
        x = self.conv(speech[:, None]).transpose(1, 2).flatten(2)
        x = self.out(x)
        t = torch.arange(x.shape[1])[:, None] * torch.exp(torch.arange(0, D, 2) * -(math.log(10000.0) / D))
        x = x * D**0.5 + torch.stack([t.sin(), t.cos()], -1).flatten(1)
        for layer in self.encoders:
            x = layer(x)
        return F.log_softmax(self.ctc_lo(self.after_norm(x)), -1), (speech_lengths - 3) // 4


@entry(
    "music, four books of codes summed at every step, a readout for each",
    Truth(3),
    batch=lambda: {"codes": torch.randint(WORDS, (BATCH, 4, TOKENS)), "style": torch.randn(BATCH, 6)},
)
class Music(nn.Module):
    class Layer(nn.TransformerEncoderLayer):
        def forward(self, x, mask):
            x = x + self._sa_block(self.norm1(x), mask, None, is_causal=True)
            return x + self._ff_block(self.norm2(x))

    def __init__(self, books=4):
        super().__init__()
        self.emb = nn.ModuleList(nn.Embedding(WORDS + 1, D) for _ in range(books))
        self.condition = nn.Linear(6, D)
        self.layers = nn.ModuleList(
            self.Layer(D, H, 64, 0.0, F.gelu, batch_first=True, norm_first=True, bias=False) for _ in range(3)
        )
        self.out_norm, self.linears = (
            nn.LayerNorm(D),
            nn.ModuleList(nn.Linear(D, WORDS, False) for _ in range(books)),
        )

    def forward(self, codes, style):
        _, books, T = codes.shape
        delayed = torch.full_like(codes, WORDS)
        for k in range(books):
            delayed[:, k, k:] = codes[:, k, : T - k]
        x = sum(self.emb[k](delayed[:, k]) for k in range(books)) + self.condition(style)[:, None]
        half = D // 2
        phase = torch.arange(T)[:, None] / 10000 ** (torch.arange(half) / (half - 1))
        x = x + torch.cat([phase.cos(), phase.sin()], -1)
        mask = torch.ones(T, T, dtype=torch.bool).triu(1)
        for layer in self.layers:
            x = layer(x, mask)
        return torch.stack([f(self.out_norm(x)) for f in self.linears], 1)


class Inverted(nn.Module):
    """Feed-forward by convolutions of width one, post-norm."""

    def __init__(self):
        super().__init__()
        self.attention = nn.ModuleDict(
            dict(query_projection=nn.Linear(D, D), key_projection=nn.Linear(D, D))
            | dict(value_projection=nn.Linear(D, D), out_projection=nn.Linear(D, D))
        )
        self.conv1, self.conv2 = nn.Conv1d(D, 64, 1), nn.Conv1d(64, D, 1)
        self.norm1, self.norm2, self.dropout = nn.LayerNorm(D), nn.LayerNorm(D), nn.Dropout(0.1)

    def forward(self, x):
        a = self.attention
        B, L, _ = x.shape
        q, k, v = (a[f"{s}_projection"](x).view(B, L, H, -1) for s in ("query", "key", "value"))
        scores = torch.einsum("blhe,bshe->bhls", q, k)
        A = self.dropout(torch.softmax(K**-0.5 * scores, dim=-1))
        y = a.out_projection(torch.einsum("bhls,bshd->blhd", A, v).contiguous().view(B, L, -1))
        y = x = self.norm1(x + self.dropout(y))
        y = self.dropout(F.gelu(self.conv1(y.transpose(-1, 1))))
        y = self.dropout(self.conv2(y).transpose(-1, 1))
        return self.norm2(x + y)


@entry(
    "measured series, variables as tokens, normed by their own mean and deviation",
    Truth(3, sees="full", norm="post", absolute=False),
    batch=lambda: (torch.randn(BATCH, 24, 7), torch.rand(BATCH, 24, 3), None, None),
)
class Variates(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc_embedding, self.projector = nn.Linear(24, D), nn.Linear(D, 12)
        self.attn_layers, self.norm = nn.ModuleList(Inverted() for _ in range(3)), nn.LayerNorm(D)

    def forward(self, x_enc, x_mark_enc, x_dec, x_mark_dec):  # noqa: ARG002
        means = x_enc.mean(1, keepdim=True).detach()
        x_enc = x_enc - means
        stdev = torch.sqrt(torch.var(x_enc, dim=1, keepdim=True, unbiased=False) + 1e-5)
        x = torch.cat([(x_enc / stdev).mT, x_mark_enc.mT], 1)
        x = self.enc_embedding(x)
        for layer in self.attn_layers:
            x = layer(x)
        out = self.projector(self.norm(x)).mT[:, :, : x_enc.shape[-1]]
        return out * stdev + means


@entry(
    "forecasts as a distribution from lags",
    Truth(3, norm_kind="rms", gated=True, activation="silu", positions="rotary", absolute=False),
    batch=lambda: {"past_target": torch.randn(BATCH, 40).cumsum(-1)},
)
class Lags(nn.Module):
    """Every step sees seven earlier values as features; the output is a mapping of three parameters."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.rms_1, self.rms_2 = nn.RMSNorm(D), nn.RMSNorm(D)
            self.q_proj, self.c_proj = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
            self.kv_proj, self.c_fc1 = nn.Linear(D, 2 * D, bias=False), nn.Linear(D, 48, bias=False)
            self.c_fc2, self.down = nn.Linear(D, 48, bias=False), nn.Linear(48, D, bias=False)

        def turn(self, x):
            angle = torch.outer(torch.arange(x.shape[-2]), 10000.0 ** (-torch.arange(0, K, 2) / K))
            a, b = x[..., ::2], x[..., 1::2]
            cos, sin = angle.cos(), angle.sin()
            return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)

        def forward(self, x):
            y = self.rms_1(x)
            q, (k, v) = self.q_proj(y), self.kv_proj(y).split(D, dim=-1)
            q, k, v = (t.view(*t.shape[:2], H, K).transpose(1, 2) for t in (q, k, v))
            y = F.scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True)
            x = x + self.c_proj(y.transpose(1, 2).flatten(2))
            y = self.rms_2(x)
            return x + self.down(F.silu(self.c_fc1(y)) * self.c_fc2(y))

    def __init__(self, lags=(1, 2, 3, 4, 7, 12, 24)):
        super().__init__()
        self.lags, self.wte = lags, nn.Linear(len(lags) + 2, D)
        self.h, self.ln_f = nn.ModuleList(self.Layer() for _ in range(3)), nn.RMSNorm(D)
        self.param_proj = nn.ModuleList(nn.Linear(D, 1) for _ in range(3))

    def forward(self, past_target):
        loc = past_target.mean(-1, keepdim=True)
        scale = past_target.std(-1, keepdim=True) + 1e-5
        z = (past_target - loc) / scale
        most = max(self.lags)
        features = [z[:, most - lag : z.shape[1] - lag] for lag in self.lags]
        n = features[0].shape[1]
        x = torch.stack([*features, loc.abs().log1p().expand(-1, n), scale.log().expand(-1, n)], -1)
        x = self.wte(x)
        for block in self.h:
            x = block(x)
        df, mean, spread = (f(self.ln_f(x))[..., 0] for f in self.param_proj)
        return {"df": 2 + F.softplus(df), "loc": mean, "scale": F.softplus(spread)}


@entry(
    "pooling in the place of attention",
    Truth(
        3,
        softmax=False,
        sees=None,
        norm_kind=None,
        attention_branch=None,
        mlp_branch=None,
        absolute=None,
        reason=("pool", "mixer", "no attention", "without", "softmax"),
    ),
    batch=image,
)
class Pooling(nn.Module):
    class PoolFormerBlock(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.GroupNorm(1, D), nn.GroupNorm(1, D)
            self.token_mixer = nn.AvgPool2d(3, 1, 1, count_include_pad=False)
            self.mlp = nn.Sequential(nn.Conv2d(D, 64, 1), nn.GELU(), nn.Conv2d(64, D, 1))
            self.layer_scale_1, self.layer_scale_2 = (
                nn.Parameter(1e-2 * torch.ones(D, 1, 1)) for _ in range(2)
            )

        def forward(self, x):
            y = self.norm1(x)
            x = x + self.layer_scale_1 * (self.token_mixer(y) - y)
            return x + self.layer_scale_2 * self.mlp(self.norm2(x))

    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, D, 7, 4, 2)
        self.network, self.head = (
            nn.Sequential(*(self.PoolFormerBlock() for _ in range(3))),
            nn.Linear(D, 10),
        )

    def forward(self, x):
        return self.head(self.network(self.patch_embed(x)).mean((2, 3)))
