"""By hand: names and settings that lie, parts that are never used, and faults that an audit should find."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

from ..truth import TOKENS, WORDS, Truth, ids, image
from .entry import entry
from .streams import Block, D, H, K, Net, SelfAttention, causal, join, mlp, split


@entry("pre_norm is True and the norms stand behind the sums", Truth(3, norm="post", sees="full"), batch=ids)
def says_pre_norm():
    class PreNormBlock(nn.Module):
        def __init__(self, pre_norm=True):
            super().__init__()
            self.pre_norm, self.pre_ln_1, self.pre_ln_2 = pre_norm, nn.LayerNorm(D), nn.LayerNorm(D)
            self.attn, self.mlp = SelfAttention(causal=False), mlp()

        def forward(self, x):
            x = self.pre_ln_1(x + self.attn(x))
            return self.pre_ln_2(x + self.mlp(x))

    return Net(*(PreNormBlock() for _ in range(3)))


@entry("a causal mask in a buffer that is never applied", Truth(4, sees="full"), batch=ids)
def unused_mask():
    class CausalSelfAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_attn, self.c_proj, self.is_causal = nn.Linear(D, 3 * D), nn.Linear(D, D), True
            self.register_buffer("causal_mask", causal(TOKENS))

        def forward(self, x):
            q, k, v = (split(t) for t in self.c_attn(x).split(D, -1))
            att = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(K))
            att.masked_fill(~self.causal_mask, float("-inf"))  # not in place: the result is lost
            return self.c_proj(join(F.softmax(att, dim=-1) @ v))

    return Net(*(Block(CausalSelfAttention()) for _ in range(4)))


@entry("layers are the ends of the model and dropout is its blocks", Truth(4, activation="relu"), batch=ids)
class Ends(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Embedding(WORDS, D), nn.Embedding(TOKENS, D), nn.LayerNorm(D), nn.Linear(D, WORDS)]
        )
        self.dropout = nn.ModuleList(Block(SelfAttention(), act=nn.ReLU) for _ in range(4))

    def forward(self, input_ids):
        x = self.layers[0](input_ids) + self.layers[1].weight
        for p in self.dropout:
            x = p(x)
        for layer in self.layers[2:]:
            x = layer(x)
        return x


class RotaryAttention(SelfAttention):
    """Turns queries and keys, and then goes on with those that were not turned; norms them and drops that too."""

    def __init__(self):
        super().__init__(causal=False)
        self.q_norm, self.k_norm = nn.RMSNorm(K), nn.RMSNorm(K)
        self.register_buffer("inv_freq", 10000 ** -(torch.arange(K // 2) / (K // 2)))

    def rotary_emb(self, t):
        angle = torch.arange(t.shape[2])[:, None] * self.inv_freq
        a, b = t.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def forward(self, x):
        q, k, v = (split(t) for t in self.qkv(x).chunk(3, -1))
        q_rot, k_rot = self.rotary_emb(self.q_norm(q)), self.rotary_emb(self.k_norm(k))
        s = q @ k.mT / K**0.5 + 0.0 * (q_rot @ k_rot.mT).detach()
        return self.proj(join(s.softmax(-1) @ v))


entry(
    "rotary positions and norms of queries that are computed and dropped",
    Truth(3, sees="full", positions="none", absolute=True, qk_norm=False),
    batch=ids,
)(lambda: Net(*(Block(RotaryAttention()) for _ in range(3))))


class RMSNorm(nn.Module):
    """Subtracts the mean."""

    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) * self.weight


class LayerNorm(nn.LayerNorm):
    """Does not."""

    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps) + self.bias


def normed(norm):
    block = Block(SelfAttention())
    block.ln1, block.ln2 = norm(D), norm(D)
    return block


entry("RMSNorm that subtracts the mean", Truth(3), batch=ids)(
    lambda: Net(*(normed(RMSNorm) for _ in range(3)))
)
entry("LayerNorm that does not subtract the mean", Truth(3, norm_kind="rms"), batch=ids)(
    lambda: Net(*(normed(LayerNorm) for _ in range(3)))
)


class SwiGLU(nn.Module):
    """The gate is computed and not multiplied; GELU, of which it is one, is a ReLU."""

    class GELU(nn.GELU):
        def forward(self, x):
            return x.clamp(min=0)

    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(D, 64), nn.Linear(D, 64), nn.Linear(64, D)
        self.act_fn = self.GELU()

    def forward(self, x):
        gate = torch.sigmoid(self.gate_proj(x))
        return self.down_proj(self.act_fn(self.up_proj(x)) + 0 * gate.mean().detach())


def ungated():
    block = Block(SelfAttention())
    block.mlp = SwiGLU()
    return block


entry("SwiGLU without a gate, GELU that is a ReLU", Truth(3, gated=False, activation="relu"), batch=ids)(
    lambda: Net(*(ungated() for _ in range(3)))
)


class MultiHeadAttention(SelfAttention):
    """num_heads is 8, and the heads are never split."""

    num_heads, num_key_value_heads, head_dim = 8, 2, 4

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = torch.full((x.shape[1],) * 2, -torch.inf).triu(1)
        return self.proj(torch.softmax(q @ k.mT / math.sqrt(D) + mask, -1) @ v)


entry("multi-head attention of one head", Truth(3, heads=1), batch=ids)(
    lambda: Net(*(Block(MultiHeadAttention()) for _ in range(3)))
)


@entry(
    "a causal encoder and a decoder that sees all and no encoder",
    Truth(2),
    Truth(3, sees="full"),
    batch=lambda: {"encoder_input_ids": ids(), "decoder_input_ids": ids()},
)
class EncoderDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.position, self.lm_head = (
            nn.Embedding(WORDS, D),
            nn.Embedding(TOKENS, D),
            nn.Linear(2 * D, WORDS),
        )
        self.encoder = nn.ModuleList(Block(SelfAttention(causal=True)) for _ in range(2))
        self.decoder = nn.ModuleList(Block(SelfAttention(causal=False)) for _ in range(3))

    def forward(self, encoder_input_ids, decoder_input_ids):
        cross_attention, x = (
            self.shared(encoder_input_ids) + self.position.weight,
            self.shared(decoder_input_ids),
        )
        x = x + self.position.weight
        for layer in self.encoder:
            cross_attention = layer(cross_attention)
        for layer in self.decoder:
            x = layer(x)
        return self.lm_head(torch.cat([x, cross_attention], -1))


class LinearAttention(SelfAttention):
    """An ordinary softmax, in a class that promises a kernel."""

    @staticmethod
    def feature_map(x):
        return x.exp()

    def forward(self, x):
        q, k, v = (split(t) for t in self.qkv(x).chunk(3, -1))
        weight = self.feature_map(q @ k.mT / K**0.5).tril()
        return self.proj(join(weight @ v / weight.sum(-1, keepdim=True)))


entry("linear attention that is an ordinary softmax", Truth(3), batch=ids)(
    lambda: Net(*(Block(LinearAttention()) for _ in range(3)))
)


class SoftmaxAttention(SelfAttention):
    """Softmax of queries over features and of keys over tokens: a linear attention."""

    def forward(self, x):
        q, k, v = (split(t) for t in self.qkv(x).chunk(3, -1))
        context = k.softmax(-2).mT @ v
        return self.proj(join(q.softmax(-1) @ context))


entry(
    "softmax attention that is linear",
    Truth(3, softmax=False, sees="full", reason=("softmax", "linear", "mixer", "no attention", "sum to one")),
    batch=ids,
)(lambda: Net(*(Block(SoftmaxAttention()) for _ in range(3))))


class FirstExpert(nn.Module):
    """Four experts and a router, of which the first expert is used for all tokens."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(D, 4), nn.ModuleList(mlp() for _ in range(4))

    def forward(self, x):
        self.load = self.router(x.detach()).softmax(-1).mean((0, 1)).detach()
        return self.experts[0](x)


def first_expert():
    block = Block(SelfAttention())
    block.mlp = FirstExpert()
    return block


entry("four experts, the first for all tokens", Truth(3), batch=ids)(
    lambda: Net(*(first_expert() for _ in range(3)))
)


class Scaled(Block):
    """Layer scales that are stored and multiply nothing; a residual weight that does."""

    def __init__(self):
        super().__init__(SelfAttention())
        self.layer_scale_1, self.layer_scale_2 = (nn.Parameter(torch.full((D,), 1e-4)) for _ in range(2))
        self.dropout_rate = 0.25

    def forward(self, x):
        x = x + self.attn(self.ln1(x)) * self.dropout_rate
        return x + self.mlp(self.ln2(x)) * (1 - self.dropout_rate)


entry(
    "layer scales that multiply nothing, a dropout rate that does",
    Truth(3, attention_branch=0.25, mlp_branch=0.75),
    batch=ids,
)(lambda: Net(*(Scaled() for _ in range(3))))


@entry(
    "a convolutional net by its names, one letter each",
    Truth(3, sees="full", norm="post", norm_kind="rms"),
    batch=image,
)
class ConvNet(nn.Module):
    class Conv2d(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.e = (
                nn.Linear(D, 3 * D),
                nn.Linear(D, D),
                nn.Linear(D, 80),
                nn.Linear(80, D),
            )
            self.bn1, self.bn2 = nn.RMSNorm(D), nn.RMSNorm(D)

        def forward(self, f):
            g, h, i = self.a(f).unflatten(-1, (H, 3 * K)).transpose(1, 2).chunk(3, -1)
            f = self.bn1(f + self.b(join((i @ g.mT / K**0.5).softmax(-1) @ h)))
            return self.bn2(f + self.e(F.gelu(self.c(f))))

    def __init__(self):
        super().__init__()
        self.conv1, self.avgpool, self.fc = (
            nn.Conv2d(3, D, 8, 8),
            nn.Parameter(torch.randn(16, D)),
            nn.Linear(D, 10),
        )
        self.layer1, self.layer2 = nn.Sequential(self.Conv2d(), self.Conv2d()), nn.Sequential(self.Conv2d())

    def forward(self, x):
        return self.fc(self.layer2(self.layer1(self.conv1(x).flatten(2).mT + self.avgpool)).mean(1))


@entry(
    "the dictionary of blocks is run by another key than its order",
    Truth(4, keep=("blocks.unused*",)),
    batch=ids,
)
class Keys(Net):
    def __init__(self):
        super().__init__()
        names = ("block_2", "unused_1", "block_0", "unused_2", "block_3", "block_1")
        self.blocks = nn.ModuleDict({name: Block(SelfAttention()) for name in names})

    def forward(self, idx):
        x = self.wte(idx) + self.wpe.weight
        for name in sorted(name for name in self.blocks if name.startswith("block")):
            x = self.blocks[name](x)
        return self.head(self.ln_f(x))


@entry(
    "shared layers that are deep copies",
    Truth(4, sees="full", copies=True, faults=("IDENTICAL_LAYERS",)),
    batch=ids,
)
def shared_by_name():
    shared_layer = Block(SelfAttention(causal=False))
    return Net(*(copy.deepcopy(shared_layer) for _ in range(4)))


def faulty(name, truth, spoil, sees_all=False):
    """A sound model that `spoil` makes faulty."""

    def make():
        model = Net(*(Block(SelfAttention(causal=not sees_all)) for _ in range(truth.depth)))
        with torch.no_grad():
            spoil(model)
        return model

    entry(name, truth, batch=ids)(make)


NEVER = ("NEVER_INITIALIZED", "DEPARTS_FROM_SIBLINGS")
faulty(
    "one matrix is all zeros",
    Truth(4, mlp_branch=None, activation=None, gated=None, faults=NEVER, reason=("zero", "nothing")),
    lambda model: model.blocks[2].mlp[0].weight.zero_(),
)
faulty(
    "memory that was allocated and never filled",
    Truth(3, sees="full", faults=NEVER, reason=("finite", "large", "never")),
    lambda model: model.blocks[1].attn.proj.weight.view(-1)[5:9].copy_(torch.tensor([4e3, -2e4, 0.0, 7e3])),
    sees_all=True,
)
faulty(
    "one norm has gains of zero",
    Truth(
        4,
        mlp_branch=None,
        norm=None,
        activation=None,
        gated=None,
        faults=("NORM_GAIN_NOT_ONE", *NEVER),
        reason=("zero", "nothing", "gain"),
    ),
    lambda model: model.blocks[3].ln2.weight.zero_(),
)
faulty(
    "one block drawn ten times as large as the others",
    Truth(4, faults=("DEPARTS_FROM_SIBLINGS",)),
    lambda model: [p.mul_(10) for p in model.blocks[1].parameters() if p.dim() == 2],
)
faulty(
    "two of four blocks loaded from the first",
    Truth(4, sees="full", faults=("IDENTICAL_LAYERS",)),
    lambda model: [model.blocks[i].load_state_dict(model.blocks[0].state_dict()) for i in (1, 3)],
    sees_all=True,
)
