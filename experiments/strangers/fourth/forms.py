"""By hand: records, graphs and tables; unusual ways to hold, wrap and call the blocks."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.func import functional_call, vmap

from ..truth import BATCH, TOKENS, WORDS, Truth, ids
from .entry import D, H, K, entry
from .language import FeedForward, PlainText, apply_rope
from .senses import Attention, Mlp


def heads(x):
    return x.unflatten(-1, (H, K)).transpose(-2, -3)


def flat(x):
    return x.transpose(-2, -3).flatten(-2)


class PreNorm(nn.Module):
    """Attention and a feed-forward; a mask may be given."""

    def __init__(self, act=nn.GELU, causal=True):
        super().__init__()
        self.causal, self.norm1, self.norm2 = causal, nn.LayerNorm(D), nn.LayerNorm(D)
        self.query_key_value, self.dense, self.mlp = nn.Linear(D, 3 * D), nn.Linear(D, D), Mlp(act_layer=act)

    def attend(self, x, mask=None):
        q, k, v = (heads(t) for t in self.query_key_value(x).chunk(3, -1))
        causal = self.causal and mask is None
        return self.dense(flat(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)))

    def forward(self, x, mask=None):
        x = x + self.attend(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class Text(nn.Module):
    """A list of blocks between a table of words and a readout."""

    def __init__(self, blocks, places=True):
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS, D), nn.Embedding(TOKENS, D) if places else None
        self.blocks, self.last, self.read = nn.ModuleList(blocks), nn.LayerNorm(D), nn.Linear(D, WORDS)

    def enter(self, tokens):
        x = self.word(tokens)
        return x if self.place is None else x + self.place(torch.arange(tokens.shape[-1]))

    def forward(self, tokens):
        x = self.enter(tokens)
        for block in self.blocks:
            x = block(x)
        return self.read(self.last(x))


class Packed(NamedTuple):
    tokens: torch.Tensor
    document: torch.Tensor
    place: torch.Tensor


@entry(
    "documents packed into one row, each sees itself only",
    Truth(3, sees="other", reason=("mask", "sees", "document", "segment")),
    batch=lambda: Packed(
        ids(),
        torch.tensor([[0] * 5 + [1] * 7 + [2] * 4, [0] * 9 + [1] * 7]),
        torch.tensor([[*range(5), *range(7), *range(4)], [*range(9), *range(7)]]),
    ),
)
class PackedText(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS, D), nn.Embedding(TOKENS, D)
        self.layers, self.out = nn.ModuleList(PreNorm() for _ in range(3)), nn.Linear(D, WORDS)

    def forward(self, tokens, document, place):
        x = self.word(tokens) + self.place(place)
        mask = (document[:, :, None] == document[:, None]).tril()[:, None]
        for layer in self.layers:
            x = layer(x, mask)
        return self.out(x)


@entry(
    "rows of a table, answers are asked from the rows that have them",
    Truth(
        3, sees="other", norm="post", absolute=False, reason=("mask", "sees", "queries", "rows", "context")
    ),
    batch=lambda: {"x": torch.randn(BATCH, 14, 5), "y": torch.randint(3, (BATCH, 9))},
)
class InContext(nn.Module):
    class Layer(nn.Module):
        """The keys are those of the first rows."""

        def __init__(self):
            super().__init__()
            self.self_attn = nn.MultiheadAttention(D, H, batch_first=True)
            self.linear1, self.linear2 = nn.Linear(D, 64), nn.Linear(64, D)
            self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)

        def forward(self, src, single_eval_pos):
            known = src[:, :single_eval_pos]
            src = self.norm1(src + self.self_attn(src, known, known, need_weights=False)[0])
            return self.norm2(src + self.linear2(F.gelu(self.linear1(src))))

    def __init__(self):
        super().__init__()
        self.encoder, self.y_encoder = nn.Linear(5, D), nn.Embedding(3, D)
        self.transformer_encoder = nn.ModuleList(self.Layer() for _ in range(3))
        self.decoder = nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, 3))

    def forward(self, x, y):
        n = y.shape[1]
        src = self.encoder(x)
        src = torch.cat([src[:, :n] + self.y_encoder(y), src[:, n:]], 1)
        for layer in self.transformer_encoder:
            src = layer(src, n)
        return self.decoder(src[:, n:])


class BothWays(nn.Module):
    """Attention among the columns of a row, then among the rows of the batch."""

    def __init__(self, columns):
        super().__init__()
        self.columns, self.rows = (
            PreNorm(causal=False),
            nn.TransformerEncoderLayer(columns * D, H, 64, 0.0, "gelu", batch_first=True, norm_first=True),
        )

    def forward(self, x):
        x = self.columns(x)
        return self.rows(x.flatten(1)[None])[0].view_as(x)


@entry(
    "tables whose rows attend to the other rows of the batch",
    Truth(
        None,
        sees=None,
        positions=None,
        absolute=None,
        reason=("axis", "axes", "batch", "row", "sample", "width", "differ", "branches", "more than", "sees"),
    ),
    batch=lambda: torch.randn(6, 4),
)
class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, D)), nn.Parameter(torch.randn(4, D) * 0.3)
        self.cls = nn.Parameter(torch.randn(1, 1, D))
        self.layers, self.head = nn.Sequential(BothWays(5), BothWays(5)), nn.Linear(D, 2)

    def forward(self, x):
        x = torch.cat([self.cls.expand(len(x), 1, -1), x[..., None] * self.weight + self.bias], 1)
        return self.head(self.layers(x)[:, 0])


class LocalAndGlobal(nn.Module):
    """Messages along edges and attention over all, each with a skip and a batch norm of its own, then added."""

    def __init__(self):
        super().__init__()
        self.message, self.own = nn.Linear(D, D), nn.Linear(D, D)
        self.self_attn = nn.MultiheadAttention(D, H, batch_first=True)
        self.norm1_local, self.norm1_attn, self.norm2 = (nn.BatchNorm1d(D) for _ in range(3))
        self.ff_linear1, self.ff_linear2 = nn.Linear(D, 64), nn.Linear(64, D)

    def forward(self, h, adj):
        norm = lambda f, t: f(t.flatten(0, 1)).view_as(t)  # noqa: E731
        degree = adj.sum(-1, keepdim=True).clamp(min=1)
        local = norm(self.norm1_local, h + F.relu(self.own(h) + adj @ self.message(h) / degree))
        everywhere = norm(self.norm1_attn, h + self.self_attn(h, h, h, need_weights=False)[0])
        h = local + everywhere
        return norm(self.norm2, h + self.ff_linear2(F.relu(self.ff_linear1(h))))


def graph():
    adj = (torch.rand(BATCH, 10, 10) < 0.3).float().triu(1)
    return {"x": torch.randint(9, (BATCH, 10)), "adj": adj + adj.mT, "pe": torch.randn(BATCH, 10, 4)}


@entry(
    "graphs, messages and attention beside each other",
    Truth(
        3,
        sees="full",
        norm=None,
        norm_kind="batch",
        activation="relu",
        skip=None,
        parallel=None,
        absolute=None,
        reason=("batch", "norm", "mixer", "branches", "residual", "inside", "more than", "sum", "skip"),
    ),
    batch=graph,
)
class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.node, self.pe = nn.Embedding(9, D - 8), nn.Linear(4, 8)
        self.layers = nn.ModuleList(LocalAndGlobal() for _ in range(3))
        self.head = nn.Linear(D, 1)

    def forward(self, x, adj, pe):
        h = torch.cat([self.node(x), self.pe(pe)], -1)
        for layer in self.layers:
            h = layer(h, adj)
        return self.head(h.mean(1))


class Triangle(nn.Module):
    """Pairs of residues: along rows from one node, along columns to it, with a bias from the third side, gated."""

    class Side(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer_norm, self.linear_b = nn.LayerNorm(D), nn.Linear(D, H, bias=False)
            self.qkv, self.gate, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D), nn.Linear(D, D)

        def forward(self, z):
            z = self.layer_norm(z)
            q, k, v = (heads(t) for t in self.qkv(z).chunk(3, -1))
            a = q @ k.mT * K**-0.5 + self.linear_b(z).permute(0, 3, 1, 2)[:, None]
            return self.out(self.gate(z).sigmoid() * flat(a.softmax(-1) @ v))

    def __init__(self):
        super().__init__()
        self.start, self.end = self.Side(), self.Side()
        self.transition = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D))

    def forward(self, z):
        z = z + self.start(z)
        z = z + self.end(z.transpose(1, 2)).transpose(1, 2)
        return z + self.transition(z)


@entry(
    "pairs of residues, attention along both sides of a triangle",
    Truth(
        2,
        sees=None,
        activation="relu",
        attention_branch=None,
        positions=None,
        absolute=None,
        reason=("axis", "axes", "bias", "gate", "branches", "more than", "sees", "input"),
    ),
    batch=lambda: torch.randint(20, (BATCH, 8)),
)
class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.apart = nn.Embedding(20, D), nn.Embedding(20, D), nn.Embedding(17, D)
        self.blocks, self.bins = nn.ModuleList(Triangle() for _ in range(2)), nn.Linear(D, 10)

    def forward(self, aatype):
        t = torch.arange(aatype.shape[1])
        z = self.left(aatype)[:, :, None] + self.right(aatype)[:, None] + self.apart(t[:, None] - t[None] + 8)
        for block in self.blocks:
            z = block(z)
        return self.bins(z + z.transpose(1, 2))


@entry(
    "a feed-forward whose matrices are made from the task",
    Truth(
        3,
        sees="full",
        activation=None,
        gated=None,
        mlp_branch=None,
        reason=("generat", "condition", "input", "task", "matri", "feed"),
    ),
    batch=lambda: {"text": ids(), "task": torch.tensor([0, 2])},
)
class Hyper(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(WORDS, D), nn.Parameter(torch.randn(TOKENS, D) * 0.5)
        self.task, self.depth = nn.Embedding(4, 12), nn.Embedding(3, 12)
        self.hyper = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2 * D * 16))
        self.attn = nn.ModuleList(Attention() for _ in range(3))
        self.norms, self.out = nn.ModuleList(nn.LayerNorm(D) for _ in range(6)), nn.Linear(D, 5)

    def forward(self, text, task):
        x = self.tok(text) + self.pos
        for i, attn in enumerate(self.attn):
            x = x + attn(self.norms[2 * i](x))
            made = torch.cat([self.task(task), self.depth.weight[i].expand(len(task), -1)], -1)
            up, down = (self.hyper(made) / math.sqrt(24)).view(-1, 2, 16, D).unbind(1)
            x = x + torch.bmm(F.gelu(torch.bmm(self.norms[2 * i + 1](x), up.mT)), down)
        return self.out(x.mean(1))


class OneSequence(nn.Module):
    """Written for (tokens, channels), without a batch."""

    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Parameter(torch.randn(H, D, K) * D**-0.5) for _ in range(4))
        self.up, self.down = nn.Parameter(torch.randn(D, 64) * D**-0.5), nn.Parameter(torch.randn(64, D) / 8)
        self.g1, self.g2 = nn.Parameter(torch.ones(D)), nn.Parameter(torch.ones(D))

    def forward(self, x):
        y = F.layer_norm(x, (D,), self.g1)
        q, k, v = (torch.einsum("td,hdk->htk", y, w) for w in (self.wq, self.wk, self.wv))
        scores = torch.einsum("htk,hsk->hts", q, k) / K**0.5
        scores = torch.where(torch.ones_like(scores, dtype=torch.bool).tril(), scores, -torch.inf)
        x = x + torch.einsum("hts,hsk,hdk->td", scores.softmax(-1), v, self.wo)
        return x + F.gelu(F.layer_norm(x, (D,), self.g2) @ self.up) @ self.down


@entry("written for one sequence and mapped over the batch", Truth(3), batch=ids)
class Mapped(Text):
    def __init__(self):
        super().__init__(OneSequence() for _ in range(3))

    def single(self, tokens):
        x = self.word.weight[tokens] + self.place.weight
        for block in self.blocks:
            x = functional_call(block, dict(block.named_parameters()), (x,))
        return self.read(self.last(x))

    def forward(self, tokens):
        return vmap(self.single)(tokens)


@entry(
    "token by token in a loop, keys and values appended to a list",
    Truth(3, reason=("loop", "one token", "single token", "step", "cache", "calls", "called", "length")),
    batch=lambda: ids()[:, :8],
)
class StepByStep(Text):
    class Layer(PreNorm):
        def forward(self, x, past):
            q, k, v = (heads(t) for t in self.query_key_value(self.norm1(x)).chunk(3, -1))
            past.append((k, v))
            keys, values = (torch.cat(t, -2) for t in zip(*past, strict=True))
            x = x + self.dense(flat(F.scaled_dot_product_attention(q, keys, values)))
            return x + self.mlp(self.norm2(x))

    def __init__(self):
        super().__init__(self.Layer() for _ in range(3))

    def forward(self, tokens):
        pasts, outs = [[] for _ in self.blocks], []
        for x in self.enter(tokens).split(1, dim=1):
            for block, past in zip(self.blocks, pasts, strict=True):
                x = block(x, past)
            outs.append(self.read(self.last(x)))
        return torch.cat(outs, 1)


@entry("a forward hook adds a steering vector behind the second block", Truth(4), batch=ids)
def steered():
    model = Text(PreNorm() for _ in range(4))
    direction = torch.randn(D)
    model.blocks[1].register_forward_hook(lambda module, inputs, output: output + 0.5 * direction)
    return model


class Lit(nn.Module):
    def __init__(self, model, lr=3e-4):
        super().__init__()
        self.model, self.hparams, self.loss = nn.DataParallel(model), {"lr": lr}, nn.CrossEntropyLoss()

    def forward(self, *args, **kwargs):
        return self.training_step(dict(zip(("x", "y"), args, strict=True)) or kwargs, 0)

    def training_step(self, batch, batch_idx):  # noqa: ARG002
        logits = self.model(batch["x"])
        return {"loss": self.loss(logits.flatten(0, 1), batch["y"].flatten()), "logits": logits.detach()}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])


entry(
    "a training step as the forward pass, the model under DataParallel",
    Truth(3),
    batch=lambda: (ids(), ids()),
)(lambda: Lit(Text(PreNorm() for _ in range(3))))


entry("blocks in torch's own checkpoint wrappers", Truth(3, activation="relu"), batch=ids)(
    lambda: Text(checkpoint_wrapper(PreNorm(act=nn.ReLU)) for _ in range(3))
)


@entry("autocast to bfloat16 inside the forward pass", Truth(3, sees="full"), batch=ids)
class Autocast(Text):
    def __init__(self):
        super().__init__(PreNorm(causal=False) for _ in range(3))

    def forward(self, tokens):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = super().forward(tokens)
        return logits.float()


class LazyBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.LazyLinear(3 * D), nn.LazyLinear(D)
        self.fc, self.back = nn.LazyLinear(64), nn.LazyLinear(D)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))

    def forward(self, x):
        q, k, v = (heads(t) for t in self.qkv(self.norms[0](x)).chunk(3, -1))
        x = self.proj(flat(F.scaled_dot_product_attention(q, k, v, is_causal=True))) + x
        return self.back(F.gelu(self.fc(self.norms[1](x)))) + x


@entry("lazy layers, made by a dry run in the constructor", Truth(3), batch=ids)
class DryRun(Text):
    def __init__(self):
        super().__init__(LazyBlock() for _ in range(3))
        with torch.no_grad():
            self(torch.zeros(1, 4, dtype=torch.long))


@entry(
    "the input of each block is a weighted sum of all earlier outputs",
    Truth(4, skip=None, reason=("earlier", "sum", "weight", "residual", "skip")),
    batch=ids,
)
class WeightedDepth(Text):
    """At the start the weights pass on the last output alone."""

    def __init__(self):
        super().__init__(PreNorm() for _ in range(4))
        self.alphas = nn.ParameterList(F.one_hot(torch.tensor(i + 1), i + 2).float() for i in range(4))

    def forward(self, tokens):
        every = [self.enter(tokens)]
        x = every[0]
        for block, alpha in zip(self.blocks, self.alphas, strict=True):
            every.append(block(x))
            x = torch.tensordot(alpha, torch.stack(every), 1)
        return self.read(self.last(x))


@entry("a readout behind every block, a list of logits", Truth(4), batch=ids)
class Exits(Text):
    def __init__(self):
        super().__init__(PreNorm() for _ in range(4))
        del self.last, self.read
        self.exits = nn.ModuleList(nn.Sequential(nn.LayerNorm(D), nn.Linear(D, WORDS)) for _ in range(4))

    def forward(self, tokens):
        x, logits = self.enter(tokens), []
        for block, leave in zip(self.blocks, self.exits, strict=True):
            x = block(x)
            logits.append(leave(x))
        return logits[::-1]


class ProductKeys(nn.Module):
    """Values of the best keys, which are pairs of half keys."""

    def __init__(self, n=8, top=4):
        super().__init__()
        self.n, self.top, self.query = n, top, nn.Linear(D, D)
        self.keys, self.values = (
            nn.Parameter(torch.randn(2, n, D // 2) / 4),
            nn.EmbeddingBag(n * n, D, mode="sum"),
        )

    def forward(self, x):
        q = self.query(x).flatten(0, -2).unflatten(-1, (2, -1))
        s1, s2 = torch.einsum("bsd,snd->sbn", q, self.keys)
        (s1, i1), (s2, i2) = s1.topk(self.top), s2.topk(self.top)
        scores, where = (s1[:, :, None] + s2[:, None]).flatten(1).topk(self.top)
        index = (i1[:, :, None] * self.n + i2[:, None]).flatten(1).gather(1, where)
        return self.values(index, per_sample_weights=scores.softmax(-1)).view_as(x)


@entry(
    "a memory of product keys in place of one feed-forward",
    Truth(
        3,
        gated=None,
        activation=None,
        mlp_branch=None,
        reason=("memor", "differ", "feed", "key", "chosen", "input", "mlp", "MLP"),
    ),
    batch=ids,
)
class Memories(Text):
    def __init__(self):
        super().__init__(PreNorm() for _ in range(3))
        self.blocks[1].mlp = ProductKeys()


class ChoosingExperts(nn.Module):
    """Every expert takes the half of the tokens that it likes best."""

    def __init__(self, experts=2):
        super().__init__()
        self.gate = nn.Linear(D, experts, bias=False)
        self.w1, self.w2 = (nn.Parameter(torch.randn(experts, *s) * 0.2) for s in ((D, 32), (32, D)))

    def forward(self, x):
        scores = self.gate(x).softmax(-1).mT
        g, index = scores.topk(x.shape[1] // 2, dim=-1)
        choice = F.one_hot(index, x.shape[1]).to(x.dtype)
        hidden = F.gelu(torch.einsum("bect,btd,edf->becf", choice, x, self.w1))
        return torch.einsum("bect,bec,becf,efd->btd", choice, g, hidden, self.w2)


@entry(
    "experts that choose their tokens",
    Truth(
        3,
        gated=None,
        activation=None,
        mlp_branch=None,
        reason=("expert", "chosen", "route", "input", "other tokens", "mixes"),
    ),
    batch=ids,
)
class Choosing(Text):
    def __init__(self):
        super().__init__(PreNorm() for _ in range(3))
        for block in self.blocks:
            block.mlp = ChoosingExperts()


@entry(
    "attention twice at first, feed-forward twice at last",
    Truth(
        None, reason=("order", "pair", "branches", "differ", "altern", "list of blocks", "block", "repeat")
    ),
    batch=ids,
)
class Ordered(nn.Module):
    def __init__(self, order="aafaff"):
        super().__init__()
        self.tok, self.pos, self.order = nn.Embedding(WORDS, D), nn.Embedding(TOKENS, D), order
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(D), PreNorm() if kind == "a" else Mlp()]) for kind in order
        )
        for kind, (_, layer) in zip(order, self.layers, strict=True):
            if kind == "a":
                del layer.norm1, layer.norm2, layer.mlp
        self.out = nn.Linear(D, WORDS)

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos.weight
        for kind, (norm, layer) in zip(self.order, self.layers, strict=True):
            y = norm(x)
            x = x + (layer.attend(y) if kind == "a" else layer(y))
        return self.out(x)


@entry(
    "learned keys and values of a prefix, the model itself frozen",
    Truth(
        3,
        sees=None,
        keep=("base.*",),
        reason=("prefix", "memory", "slot", "sum to one", "sees", "mask", "key"),
    ),
    batch=ids,
)
class Tuned(nn.Module):
    def __init__(self, length=3):
        super().__init__()
        self.base = Text(PreNorm() for _ in range(3)).requires_grad_(False)
        self.prefix = nn.Parameter(torch.randn(3, 2, H, length, K) * 0.5)
        mask = torch.ones(TOKENS, length + TOKENS, dtype=torch.bool).tril(length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens):
        x = self.base.enter(tokens)
        for block, (pk, pv) in zip(self.base.blocks, self.prefix, strict=True):
            q, k, v = (heads(t) for t in block.query_key_value(block.norm1(x)).chunk(3, -1))
            k, v = (torch.cat([p.expand(len(x), -1, -1, -1), t], 2) for p, t in ((pk, k), (pv, v)))
            x = x + block.dense(flat(F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)))
            x = x + block.mlp(block.norm2(x))
        return self.base.read(self.base.last(x))


@entry(
    "torch encoder, a swish by function, padding as a mask of numbers, no biases",
    Truth(
        3,
        sees="full",
        norm="post",
        activation="silu",
        absolute=False,
        copies=True,
        faults=("IDENTICAL_LAYERS",),
    ),
    batch=lambda: {"src": torch.randn(BATCH, TOKENS, D), "src_key_padding_mask": torch.zeros(BATCH, TOKENS)},
    origin="torch",
)
def torch_encoder():
    layer = nn.TransformerEncoderLayer(D, H, 64, 0.1, F.silu, 1e-6, batch_first=True, bias=False)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False, mask_check=False)


@entry(
    "torch decoder layers whose memory is their own input",
    Truth(3, norm="pre", reason=("cross", "branches", "more than", "another", "memory")),
    batch=ids,
    origin="torch",
)
class SelfMemory(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(WORDS, D), nn.Embedding(TOKENS, D)
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(D, H, 64, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(3)
        )
        self.fc = nn.Linear(D, WORDS)

    def forward(self, tokens):
        x = memory = self.embed(tokens) + self.position.weight
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=mask, memory_mask=mask, tgt_is_causal=True)
        return self.fc(x)


class RotaryTorchLayer(nn.TransformerEncoderLayer):
    """torch's layer with another self-attention block: its matrices, turned, and RMS norms."""

    def __init__(self):
        super().__init__(D, H, 64, 0.0, F.silu, batch_first=True, norm_first=True)
        self.norm1, self.norm2 = nn.RMSNorm(D), nn.RMSNorm(D)

    def _sa_block(self, x, attn_mask, key_padding_mask, is_causal=False):  # noqa: ARG002
        q, k, v = (
            heads(t)
            for t in F.linear(x, self.self_attn.in_proj_weight, self.self_attn.in_proj_bias).chunk(3, -1)
        )
        t = torch.outer(torch.arange(x.shape[1]), 10000.0 ** (-torch.arange(0, K, 2) / K)).repeat(1, 2)
        q, k = apply_rope(q, t.cos(), t.sin()), apply_rope(k, t.cos(), t.sin())
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dropout1(self.self_attn.out_proj(flat(y)))


entry(
    "torch encoder layers with another attention inside",
    Truth(3, norm_kind="rms", activation="silu", positions="rotary", absolute=False),
    batch=ids,
    origin="torch",
)(lambda: PlainText(*(RotaryTorchLayer() for _ in range(3)), places=False))


def scanned(x, decay):
    """The states of a linear recurrence, one after the other."""
    state, states = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = decay[:, t] * state + x[:, t]
        states.append(state)
    return torch.stack(states, 1)


class MinimalGates(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.ff_norm, self.to_both = nn.RMSNorm(D), nn.RMSNorm(D), nn.Linear(D, 2 * D, bias=False)
        self.ff = FeedForward()

    def forward(self, x):
        hidden, gate = self.to_both(self.norm(x)).chunk(2, -1)
        z = gate.sigmoid()
        x = x + scanned(z * hidden, 1 - z)
        return x + self.ff(self.ff_norm(x))


NONE = ("softmax", "no attention", "without", "mixer", "recurren", "state", "sum to one", "linear attention")


def without(name, block, **facts):
    truth = Truth(3, softmax=False, heads=None, reason=NONE, **facts)
    entry(name, truth, batch=ids)(lambda: PlainText(*(block() for _ in range(3))))


without(
    "gates of the input alone, states in a loop", MinimalGates, norm_kind="rms", gated=True, activation="silu"
)


class DeltaRule(PreNorm):
    """A matrix of values by keys, corrected at every token toward the new value."""

    def attend(self, x, mask=None):  # noqa: ARG002
        q, k, v = (heads(t) for t in self.query_key_value(x).chunk(3, -1))
        q, k = F.normalize(F.silu(q), dim=-1), F.normalize(F.silu(k), dim=-1)
        memory, outs = torch.zeros(*q.shape[:2], K, K), []
        for t in range(x.shape[1]):
            key, value = k[:, :, t], v[:, :, t]
            old = torch.einsum("bhkv,bhk->bhv", memory, key)
            memory = memory + torch.einsum("bhk,bhv->bhkv", key, 0.5 * (value - old))
            outs.append(torch.einsum("bhkv,bhk->bhv", memory, q[:, :, t]))
        return self.dense(torch.stack(outs, 1).flatten(2))


without("a memory corrected by the delta rule", DeltaRule)


class Sticks(PreNorm):
    """Every key breaks its part from what later keys have left of a stick."""

    def attend(self, x, mask=None):  # noqa: ARG002
        q, k, v = (heads(t) for t in self.query_key_value(x).chunk(3, -1))
        n = x.shape[1]
        logits = q @ k.mT / K**0.5
        before = torch.ones(n, n, dtype=torch.bool).tril(-1)
        log_left = F.logsigmoid(-logits).masked_fill(~before, 0.0)
        later = log_left.flip(-1).cumsum(-1).flip(-1) - log_left
        weights = (F.logsigmoid(logits) + later).exp().masked_fill(~before, 0.0)
        return self.dense(flat(weights @ v))


without("keys that break their parts from a stick", Sticks)
