"""By hand: pictures and video."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ..truth import Truth, image
from .entry import entry
from .streams import Block, D, H, K, SelfAttention, join, mlp, split


class Patches(nn.Module):
    """Pictures of 32 x 32 to 16 tokens; `body` is the stranger's."""

    def __init__(self, places=True):
        super().__init__()
        self.to_tokens, self.head = nn.Conv2d(3, D, 8, 8), nn.Linear(D, 7)
        self.pos = nn.Parameter(0.3 * torch.randn(1, 16, D)) if places else None

    def forward(self, pixels):
        x = self.to_tokens(pixels).flatten(2).mT
        x = self.body(x if self.pos is None else x + self.pos)
        return self.head(x.mean(1))


@entry(
    "picture transformer with rotations along two axes",
    Truth(3, sees="full", positions="rotary", absolute=False, norm_kind="rms", gated=True, activation="silu"),
    batch=image,
)
class AxialRotary(Patches):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(D), nn.RMSNorm(D)
            self.wqkv, self.wo = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
            self.w12, self.w3 = nn.Linear(D, 2 * 48), nn.Linear(48, D)

        def forward(self, x, cos, sin):
            q, k, v = (split(t) for t in self.wqkv(self.norm1(x)).chunk(3, -1))
            q, k = (t * cos + torch.stack((-t[..., 1::2], t[..., ::2]), -1).flatten(-2) * sin for t in (q, k))
            x = x + self.wo(join(F.scaled_dot_product_attention(q, k, v)))
            a, b = self.w12(self.norm2(x)).chunk(2, -1)
            return x + self.w3(F.silu(a) * b)

    def __init__(self):
        super().__init__(places=False)
        self.trunk = nn.ModuleList(self.Layer() for _ in range(3))

    def body(self, x):
        row, column = torch.arange(16) // 4, torch.arange(16) % 4
        speed = torch.tensor([1.0, 0.3])
        angle = torch.cat([row[:, None] * speed, column[:, None] * speed], -1).repeat_interleave(2, -1)
        for layer in self.trunk:
            x = layer(x, angle.cos(), angle.sin())
        return x


class ShiftedWindows(nn.Module):
    """Windows of 2 x 2, every second block moved by one, with a table of biases by offset."""

    def __init__(self, shift):
        super().__init__()
        self.shift, self.norm1, self.norm2, self.mlp = shift, nn.LayerNorm(D), nn.LayerNorm(D), mlp()
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.relative_position_bias_table = nn.Parameter(torch.randn(9, H) * 0.5)
        spot = torch.stack([torch.arange(4) // 2, torch.arange(4) % 2], -1)
        index = (spot[:, None] - spot[None] + 1) @ torch.tensor([3, 1])
        self.register_buffer("relative_position_index", index)

    def attend(self, x):
        b = x.shape[0]
        x = x.view(b, 2, 2, 2, 2, D).transpose(2, 3).reshape(b * 4, 4, D)
        q, k, v = self.qkv(x).reshape(b * 4, 4, 3, H, K).permute(2, 0, 3, 1, 4)
        s = q * K**-0.5 @ k.mT + self.relative_position_bias_table[self.relative_position_index].permute(
            2, 0, 1
        )
        x = self.proj(join(s.softmax(-1) @ v))
        return x.view(b, 2, 2, 2, 2, D).transpose(2, 3).reshape(b, 4, 4, D)

    def forward(self, x):
        y = self.norm1(x).view(-1, 4, 4, D).roll((-self.shift, -self.shift), (1, 2))
        x = x + self.attend(y).roll((self.shift, self.shift), (1, 2)).flatten(1, 2)
        return x + self.mlp(self.norm2(x))


@entry(
    "windows of pictures that move by one in every second block",
    Truth(
        4,
        sees="other",
        positions=None,
        absolute=False,
        reason=("window", "sees", "mask", "differ", "alternat"),
    ),
    batch=image,
)
class MovedWindows(Patches):
    def __init__(self):
        super().__init__(places=False)
        self.layers = nn.ModuleList(ShiftedWindows(i % 2) for i in range(4))

    def body(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class OffsetBias(nn.Module):
    """Cosine attention, whose bias a small network makes from log offsets; norms behind the branches."""

    def __init__(self, side=4):
        super().__init__()
        self.q, self.k, self.v, self.proj = (
            nn.Linear(D, D),
            nn.Linear(D, D, bias=False),
            nn.Linear(D, D),
            nn.Linear(D, D),
        )
        self.logit_scale = nn.Parameter(torch.full((H, 1, 1), 2.0))
        self.cpb = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, H, bias=False))
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(D), nn.LayerNorm(D), mlp()
        spot = torch.cartesian_prod(torch.arange(side), torch.arange(side)).float()
        far = spot[:, None] - spot[None]
        self.register_buffer("coordinates", far.sign() * (1 + far.abs()).log2())

    def forward(self, x):
        q, k, v = (split(f(x)) for f in (self.q, self.k, self.v))
        s = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.logit_scale.exp()
        s = s + 4 * torch.sigmoid(self.cpb(self.coordinates)).permute(2, 0, 1)
        x = x + self.norm1(self.proj(join(s.softmax(-1) @ v)))
        return x + self.norm2(self.mlp(x))


@entry(
    "cosine attention with a bias network, norms behind the branches",
    Truth(3, sees="full", norm="branch", qk_norm=True, positions="relative", absolute=False),
    batch=image,
)
class BiasNetwork(Patches):
    def __init__(self):
        super().__init__(places=False)
        self.stages = nn.ModuleList([nn.Sequential(*(OffsetBias() for _ in range(3)))])

    def body(self, x):
        return self.stages[0](x)


class ConvProjection(nn.Module):
    """CvT: a depthwise filter on the picture before each matrix; the stream is (B, C, H, W)."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(D, D, 3, padding=1, groups=D, bias=False) for _ in range(3))
        self.points = nn.ModuleList(nn.Conv2d(D, D, 1) for _ in range(4))
        self.norm1, self.norm2 = nn.GroupNorm(1, D), nn.LayerNorm(D)
        self.ffn = nn.Sequential(nn.Conv2d(D, 64, 1), nn.GELU(), nn.Conv2d(64, D, 1))

    def channel_norm(self, norm, x):
        return F.layer_norm(x.permute(0, 2, 3, 1), (D,), norm.weight, norm.bias).permute(0, 3, 1, 2)

    def forward(self, x):
        y = self.channel_norm(self.norm1, x)
        q, k, v = (split(p(c(y)).flatten(2).mT) for c, p in zip(self.convs, self.points, strict=False))
        y = join(F.scaled_dot_product_attention(q, k, v))
        x = x + self.points[3](y.mT.unflatten(2, x.shape[2:]))
        return x + self.ffn(self.channel_norm(self.norm2, x))


@entry(
    "depthwise filters before queries, keys and values of a picture",
    Truth(
        3,
        sees="full",
        positions=None,
        absolute=None,
        reason=("convol", "mix", "other tokens", "axis", "position"),
    ),
    batch=image,
)
class ConvolvedPicture(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Conv2d(3, D, 7, 8, 3), nn.Linear(D, 7)
        self.stage = nn.Sequential(*(ConvProjection() for _ in range(3)))

    def forward(self, x):
        return self.head(self.stage(self.embed(x)).mean((2, 3)))


class Reduced(nn.Module):
    """Keys and values of a picture a quarter as large."""

    def __init__(self):
        super().__init__()
        self.q, self.kv, self.proj = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)
        self.sr, self.norm = nn.Conv2d(D, D, 2, 2), nn.LayerNorm(D)
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(D), nn.LayerNorm(D), mlp()

    def forward(self, x):
        y = self.norm1(x)
        small = self.norm(self.sr(y.mT.unflatten(2, (4, 4))).flatten(2).mT)
        k, v = self.kv(small).chunk(2, -1)
        x = x + self.proj(join(F.scaled_dot_product_attention(split(self.q(y)), split(k), split(v))))
        return x + self.mlp(self.norm2(x))


@entry(
    "keys and values of a smaller picture",
    Truth(3, sees=None, reason=("key", "mix", "convol", "other tokens", "project", "fewer", "pool")),
    batch=image,
)
class Pyramid(Patches):
    def __init__(self):
        super().__init__()
        self.block1 = nn.ModuleList(Reduced() for _ in range(3))

    def body(self, x):
        for blk in self.block1:
            x = blk(x)
        return x


@entry(
    "masked autoencoder with a random mask",
    Truth(3, sees="full", reason=("random", "twice", "determin", "chosen")),
    Truth(2, sees="full", reason=("random", "twice", "determin", "chosen")),
    batch=image,
)
class MaskedPatches(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.mask_token = nn.Linear(192, D), nn.Parameter(0.02 * torch.randn(D))
        self.pos = nn.Parameter(0.3 * torch.randn(16, D))
        self.encoder = nn.Sequential(*(Block(SelfAttention(causal=False)) for _ in range(3)))
        self.decoder = nn.Sequential(*(Block(SelfAttention(causal=False)) for _ in range(2)))
        self.norm, self.predict = nn.LayerNorm(D), nn.Linear(D, 192)

    def forward(self, pixels):
        x = self.patch(F.unfold(pixels, 8, stride=8).mT) + self.pos
        order = torch.rand(x.shape[:2]).argsort(1)
        kept = order[:, :8, None].expand(-1, -1, D)
        y = self.norm(self.encoder(x.gather(1, kept)))
        full = (self.mask_token + torch.zeros_like(x)).scatter(1, kept, y) + self.pos
        return self.predict(self.decoder(full))


@entry(
    "class and distillation tokens, registers, mean of the rest",
    Truth(3, sees="full"),
    batch=lambda: {"pixel_values": image()},
)
class Registers(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Unfold(8, stride=8)
        self.proj, self.special = nn.Linear(192, D), nn.Parameter(torch.randn(1, 6, D))
        self.pos, self.blocks = nn.Parameter(torch.randn(1, 16, D)), nn.ModuleList()
        for _ in range(3):
            self.blocks.append(Block(SelfAttention(causal=False)))
        self.norm, self.heads = (
            nn.LayerNorm(D),
            nn.ModuleDict({k: nn.Linear(D, 7) for k in ("cls", "dist", "mean")}),
        )

    def forward(self, **inputs):
        x = self.proj(self.embed(inputs["pixel_values"]).mT) + self.pos
        x = torch.cat((self.special.expand(len(x), -1, -1), x), dim=1)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        out = {"cls": self.heads["cls"](x[:, 0]), "dist": self.heads["dist"](x[:, 1])}
        return out | {"mean": self.heads["mean"](x[:, 6:].mean(1))}


class SpaceTime(nn.Module):
    """First over time at each place, then over places in each frame; the stream is (B, F, N, C)."""

    def __init__(self):
        super().__init__()
        self.time, self.space, self.mlp = SelfAttention(causal=False), SelfAttention(causal=False), mlp()
        self.n1, self.n2, self.n3 = (nn.LayerNorm(D) for _ in range(3))

    def forward(self, x):
        b, f, n, _ = x.shape
        y = self.time(self.n1(x).transpose(1, 2).reshape(b * n, f, D))
        x = x + y.view(b, n, f, D).transpose(1, 2)
        x = x + self.space(self.n2(x).flatten(0, 1)).view(b, f, n, D)
        return x + self.mlp(self.n3(x))


@entry(
    "video, attention over time and then over space in each block",
    Truth(
        2,
        sees=None,
        positions=None,
        reason=("axis", "axes", "branches", "sees", "mask", "more than"),
    ),
    batch=lambda: torch.randn(2, 4, 3, 16, 16),
)
class DividedVideo(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.head = nn.Conv2d(3, D, 8, 8), nn.Linear(D, 5)
        self.space, self.time = nn.Parameter(torch.randn(4, D)), nn.Parameter(torch.randn(4, 1, D))
        self.layers = nn.ModuleList(SpaceTime() for _ in range(2))

    def forward(self, clip):
        x = self.patch(clip.flatten(0, 1)).flatten(2).mT.unflatten(0, clip.shape[:2]) + self.space + self.time
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((1, 2)))
