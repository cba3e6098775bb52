"""By hand: names, lists and numbers that mislead."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ..truth import TOKENS, WORDS, Truth, ids
from .entry import D, H, K, entry
from .forms import PreNorm, Text, flat, heads
from .senses import Attention, Mlp


@entry(
    "an encoder of six layers that is built and not called, a decoder of three that is",
    Truth(3, allowed=("IDENTICAL_LAYERS",)),
    batch=lambda: {"encoder_ids": ids(), "decoder_ids": ids()},
)
class OnlyDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(D, H, 64, 0.0, batch_first=True), 6, enable_nested_tensor=False
        )
        self.decoder = Text(PreNorm() for _ in range(3))

    def forward(self, encoder_ids, decoder_ids):  # noqa: ARG002
        return self.decoder(decoder_ids)


class Dropped(nn.Module):
    """Attention is computed and what it gives is not used: a causal mean mixes the tokens."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.attention, self.mlp = (
            nn.LayerNorm(D),
            nn.LayerNorm(D),
            Attention(),
            Mlp(),
        )
        self.mean_proj = nn.Linear(D, D)

    def forward(self, x):
        y = self.norm1(x)
        attended = self.attention(y)
        counts = torch.arange(1, x.shape[1] + 1)[:, None]
        attended = self.mean_proj(y.cumsum(1) / counts)
        x = x + attended
        return x + self.mlp(self.norm2(x))


entry(
    "attention whose answer is thrown away for a running mean",
    Truth(
        3,
        softmax=False,
        heads=None,
        reason=("softmax", "no attention", "without", "mixer", "mean", "not used", "unused", "sum to one"),
    ),
    batch=ids,
)(lambda: Text(Dropped() for _ in range(3)))


@entry(
    "an order of indices that skips one block and runs another twice",
    Truth(4, shared=None, allowed=("IDENTICAL_LAYERS",), reason=("twice", "shared", "same object", "reuse")),
    batch=ids,
)
class Indexed(Text):
    def __init__(self):
        super().__init__(PreNorm() for _ in range(4))
        self.order = [2, 0, 0, 3]

    def forward(self, tokens):
        x = self.enter(tokens)
        for i in self.order:
            x = self.blocks[i](x)
        return self.read(self.last(x))


class Softmax(nn.Module):
    """A layer norm."""

    def __init__(self):
        super().__init__()
        self.temperature, self.bias = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))

    def forward(self, x):
        return F.layer_norm(x, (D,), self.temperature, self.bias)


class LayerNorm(nn.Module):
    """Attention."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(3 * D, D) * 0.2),
            nn.Parameter(torch.randn(D, D) * 0.2),
        )

    def forward(self, x):
        q, k, v = (heads(t) for t in F.linear(x, self.weight).chunk(3, -1))
        return flat(F.scaled_dot_product_attention(q, k, v, is_causal=True)) @ self.bias


class Dropout(nn.Module):
    """A feed-forward."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Linear(D, 64), nn.Linear(64, D)

    def forward(self, x):
        return self.pool(F.relu(self.conv(x)))


class Embedding(nn.Module):
    """A block."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.norm, self.attention = Softmax(), Softmax(), LayerNorm(), Dropout()

    def forward(self, x):
        x = x + self.norm(self.query(x))
        return x + self.attention(self.key(x))


entry("classes named for what they are not", Truth(3, activation="relu"), batch=ids)(
    lambda: Text(Embedding() for _ in range(3))
)


class Biased(PreNorm):
    """What is called a relative bias hides all later tokens and says nothing else."""

    def __init__(self):
        super().__init__(causal=False)
        bias = torch.full((H, TOKENS, TOKENS), -1e9).triu(1)
        self.relative_position_bias = nn.Parameter(bias, requires_grad=False)
        self.is_causal, self.bidirectional = False, True

    def forward(self, x):
        return super().forward(x, self.relative_position_bias)


entry(
    "a relative bias that is a causal mask, called bidirectional",
    Truth(3, keep=("*relative_position_bias",)),
    batch=ids,
)(lambda: Text(Biased() for _ in range(3)))


class Halved(nn.Module):
    """num_heads says 4 and n_head 2; there are 8."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.n_head, self.head_dim = 4, 2, 8
        self.norm1, self.norm2, self.to_qkv = nn.LayerNorm(D), nn.LayerNorm(D), nn.Linear(D, 3 * D)
        self.to_out, self.ff = nn.Linear(D, D), Mlp()

    def forward(self, x):
        q, k, v = self.to_qkv(self.norm1(x)).unflatten(-1, (3, self.num_heads * 2, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.to_out(flat(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
        return x + self.ff(self.norm2(x))


entry("two wrong numbers of heads on every block", Truth(3, heads=8), batch=ids)(
    lambda: Text(Halved() for _ in range(3))
)


@entry(
    "blocks in a plain list, their parameters in a list of parameters, a list of modules beside",
    Truth(3, reason=("list", "register", "modules")),
    batch=ids,
)
class Unregistered(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe, self.head = nn.Embedding(WORDS, D), nn.Embedding(TOKENS, D), nn.Linear(D, WORDS)
        self.hidden = [PreNorm() for _ in range(3)]
        self.theta = nn.ParameterList(p for block in self.hidden for p in block.parameters())
        self.layers = nn.ModuleList(nn.Identity() for _ in range(12))

    def forward(self, idx):
        x = self.wte(idx) + self.wpe.weight
        for layer in self.layers[:2]:
            x = layer(x)
        for block in self.hidden:
            x = block(x)
        return self.head(x)


class OnlyExpert(nn.Module):
    """A router with one expert to choose from."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(D, 1, bias=False), nn.ModuleList([Mlp()])

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        return sum(weights[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class RoutedToOne(PreNorm):
    def __init__(self):
        super().__init__(causal=False)
        self.mlp = OnlyExpert()


entry("a mixture of one expert", Truth(3, sees="full"), batch=ids)(
    lambda: Text(RoutedToOne() for _ in range(3))
)


class Opposed(nn.Module):
    """residual_scale halves what each branch gives, and the last matrix of the branch gives it twice."""

    residual_scale = 0.5

    def __init__(self):
        super().__init__()
        self.q_norm, self.k_norm, self.gate_proj = nn.LayerNorm(D), nn.LayerNorm(D), nn.Linear(D, 3 * D)
        self.up_proj, self.down_proj, self.alibi = nn.Linear(D, D), nn.Linear(D, 64), nn.Linear(64, D)
        self.rotary_emb = nn.Parameter(torch.ones(D) / Opposed.residual_scale)

    def forward(self, x):
        q, k, v = (heads(t) for t in self.gate_proj(self.q_norm(x)).chunk(3, -1))
        logits = (q @ k.mT / K**0.5).masked_fill(
            torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), -torch.inf
        )
        y = self.up_proj(flat(logits.softmax(-1) @ v)) * self.rotary_emb
        x = x + self.residual_scale * y
        return x + self.residual_scale * (
            self.rotary_emb * self.alibi(F.gelu(self.down_proj(self.k_norm(x))))
        )


entry("a scale of a half that another undoes, rotary and linear biases by name only", Truth(3), batch=ids)(
    lambda: Text(Opposed() for _ in range(3))
)
