"""Transformers as people write them, in classes the library has never seen; and torch's own.

HANDWRITTEN["nanogpt"]()     a model in eval mode that takes token ids (or a stream, for torch's encoder)
EXPECTED["nanogpt"]          (depth, width, heads, kv_heads, mlp width, norm position, parallel)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DEPTH, WIDTH, HEADS, HIDDEN, VOCABULARY, CONTEXT = 3, 48, 4, 80, 96, 32


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool = True) -> Tensor:
    q, k, v = (t.unflatten(-1, (-1, q.shape[-1] // heads)).transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)


class NanoAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.n_head = HEADS

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(attend(*self.c_attn(x).chunk(3, -1), self.n_head))


class NanoMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.gelu, self.c_proj = nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(self.gelu(self.c_fc(x)))


class NanoBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(WIDTH), NanoAttention()
        self.ln_2, self.mlp = nn.LayerNorm(WIDTH), NanoMLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    """After nanoGPT: a ModuleDict, fused queries, keys and values, tied readout."""

    def __init__(self) -> None:
        super().__init__()
        parts = {
            "wte": nn.Embedding(VOCABULARY, WIDTH),
            "wpe": nn.Embedding(CONTEXT, WIDTH),
            "h": nn.ModuleList([NanoBlock() for _ in range(DEPTH)]),
            "ln_f": nn.LayerNorm(WIDTH),
        }
        self.transformer = nn.ModuleDict(parts)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight
        self.apply(self._draw)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=0.02 / (2 * DEPTH) ** 0.5)

    def _draw(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, ids: Tensor) -> Tensor:
        t = self.transformer
        x = t["wte"](ids) + t["wpe"](torch.arange(ids.shape[1]))
        for block in t["h"]:
            x = block(x)
        return self.lm_head(t["ln_f"](x))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(WIDTH, WIDTH // HEADS, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return attend(self.query(x), self.key(x), self.value(x), 1)


class ManyHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([Head() for _ in range(HEADS)])
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([head(x) for head in self.heads], -1))


class LectureBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sa = ManyHeads()
        self.ffwd = nn.Sequential(
            nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH), nn.Dropout(0.1)
        )
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))


class LectureGPT(nn.Module):
    """As in lectures: one small module per head, the blocks in a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.token_embedding_table = nn.Embedding(VOCABULARY, WIDTH)
        self.position_embedding_table = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[LectureBlock() for _ in range(DEPTH)])
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        positions = self.position_embedding_table(torch.arange(ids.shape[1]))
        return self.lm_head(self.ln_f(self.blocks(self.token_embedding_table(ids) + positions)))


class Scale(nn.Module):
    """A root-mean-square norm under a name that does not say so; its attribute does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_kv = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.to_out = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.0))
        self.heads = HEADS

    def forward(self, x: Tensor) -> Tensor:
        return self.to_out(attend(self.to_q(x), *self.to_kv(x).chunk(2, -1), self.heads, causal=False))


class Thinker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.w2 = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class PostBlock(nn.Module):
    """Norms on the sums, gated MLP, half as many key heads, norms defined in an unhelpful order."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_b, self.think, self.mix, self.norm_a = Scale(), Thinker(), Mixer(), Scale()

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        assert mask is None
        x = self.norm_a(x + self.mix(x))
        return self.norm_b(x + self.think(x))


class PostNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok = nn.Embedding(VOCABULARY, WIDTH)
        self.stages = nn.ModuleList([PostBlock() for _ in range(DEPTH)])
        self.readout = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids)
        for stage in self.stages:
            x = stage(x, None)
        return self.readout(x)


class InlineBlock(nn.Module):
    """All matrices written out in the block, attention and MLP side by side, norms of the branches."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.norm = nn.RMSNorm(WIDTH)
        self.num_heads = HEADS

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        attended = self.wo(attend(self.wq(y), self.wk(y), self.wv(y), self.num_heads))
        return x + attended + self.down(torch.tanh(self.up(y)))


class InlineNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([InlineBlock() for _ in range(DEPTH)])
        self.unembed = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.unembed(x)


class VisionAttention(nn.Module):
    """As in timm: norms of queries and keys that are left out by an Identity."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.proj = HEADS, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.q_norm, self.k_norm, self.norm = nn.Identity(), nn.Identity(), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.proj(self.norm(attend(self.q_norm(q), self.k_norm(k), v, self.num_heads, causal=False)))


class VisionMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.norm, self.fc2 = (
            nn.Linear(WIDTH, HIDDEN),
            nn.GELU(),
            nn.Identity(),
            nn.Linear(HIDDEN, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.norm(self.act(self.fc1(x))))


class LayerScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((WIDTH,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class VisionBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn, self.ls1 = nn.LayerNorm(WIDTH), VisionAttention(), LayerScale()
        self.norm2, self.mlp, self.ls2 = nn.LayerNorm(WIDTH), VisionMLP(), LayerScale()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class VisionNet(nn.Module):
    """After timm: blocks in a Sequential, LayerScale, a norm inside attention, words for patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm_pre, self.blocks = nn.Identity(), nn.Sequential(*[VisionBlock() for _ in range(DEPTH)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.norm_pre(self.patch_embed(ids)))))


def torch_encoder(norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)


def torch_decoder() -> nn.Module:
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, HIDDEN, batch_first=True), DEPTH)


def _seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return make().eval()

    return build


HANDWRITTEN: dict[str, Callable[[], nn.Module]] = {
    "nanogpt": _seeded(NanoGPT),
    "lecture": _seeded(LectureGPT),
    "post": _seeded(PostNet),
    "inline": _seeded(InlineNet),
    "timm_style": _seeded(VisionNet),
    "torch_pre": _seeded(lambda: torch_encoder(True)),
    "torch_post": _seeded(lambda: torch_encoder(False)),
    "torch_decoder": _seeded(torch_decoder),
}
EXPECTED = {
    "nanogpt": (DEPTH, WIDTH, HEADS, HEADS, HIDDEN, "pre", False),
    "lecture": (DEPTH, WIDTH, HEADS, HEADS, HIDDEN, "pre", False),
    "post": (DEPTH, WIDTH, HEADS, HEADS // 2, HIDDEN, "post", False),
    "inline": (DEPTH, WIDTH, HEADS, HEADS, HIDDEN, "pre", True),
    "timm_style": (DEPTH, WIDTH, HEADS, HEADS, HIDDEN, "pre", False),
    "torch_pre": (DEPTH, WIDTH, HEADS, HEADS, HIDDEN, "pre", False),
    "torch_post": (DEPTH, WIDTH, HEADS, HEADS, HIDDEN, "post", False),
    "torch_decoder": (DEPTH, WIDTH, HEADS, HEADS, HIDDEN, "post", False),
}


def ids(seed: int = 0) -> Tensor:
    return torch.randint(0, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(seed))
