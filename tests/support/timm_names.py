"""A vision transformer written here with the module names of timm's VisionTransformer, one by one.

timm itself needs torchvision, whose wheel may not fit the torch that is installed (research/families.md); where timm
imports, tests/models/test_timm.py asks the same of its own classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DEPTH, WIDTH, HEADS, HIDDEN, SIDE, PATCH = 3, 48, 4, 192, 16, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim = HEADS, WIDTH // HEADS
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.q_norm, self.k_norm = nn.Identity(), nn.Identity()
        self.attn_drop = nn.Dropout(0.0)
        self.norm = nn.Identity()
        self.proj, self.proj_drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        B, n, d = x.shape
        q, k, v = self.qkv(x).reshape(B, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return self.proj_drop(self.proj(self.norm(x.transpose(1, 2).reshape(B, n, d))))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.drop1 = nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Dropout(0.0)
        self.norm, self.fc2, self.drop2 = nn.Identity(), nn.Linear(HIDDEN, WIDTH), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop2(self.fc2(self.norm(self.drop1(self.act(self.fc1(x))))))


class LayerScale(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((WIDTH,), value))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    def __init__(self, scale: float | None) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(WIDTH, eps=1e-6), Attention()
        self.ls1, self.drop_path1 = LayerScale(scale) if scale else nn.Identity(), nn.Identity()
        self.norm2, self.mlp = nn.LayerNorm(WIDTH, eps=1e-6), Mlp()
        self.ls2, self.drop_path2 = LayerScale(scale) if scale else nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x))))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


class PatchEmbed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj, self.norm = nn.Conv2d(3, WIDTH, PATCH, PATCH), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.proj(x).flatten(2).transpose(1, 2))


class VisionTransformer(nn.Module):
    """Matrices truncated normal 0.02, biases zero, class token 1e-6, positions 0.02: timm's own initialization."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed()
        self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH) * 1e-6)
        self.pos_embed = nn.Parameter(torch.randn(1, (SIDE // PATCH) ** 2 + 1, WIDTH) * 0.02)
        self.pos_drop, self.patch_drop, self.norm_pre = nn.Dropout(0.0), nn.Identity(), nn.Identity()
        self.blocks = nn.Sequential(*[Block(scale) for _ in range(DEPTH)])
        self.norm, self.fc_norm = nn.LayerNorm(WIDTH, eps=1e-6), nn.Identity()
        self.head_drop, self.head = nn.Dropout(0.0), nn.Linear(WIDTH, 10)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embed(images)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        x = self.blocks(self.norm_pre(self.patch_drop(self.pos_drop(x))))
        return self.head(self.head_drop(self.fc_norm(self.norm(x)[:, 0])))
