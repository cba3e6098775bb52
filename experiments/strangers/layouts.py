"""By hand: how blocks are held, called and laid out in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .truth import HEADS, TOKENS, WIDTH, WORDS, Truth, ids, image, stranger


@dataclass
class GPTConfig:
    block_size: int = TOKENS
    vocab_size: int = WORDS
    n_layer: int = 4
    n_head: int = HEADS
    n_embd: int = WIDTH


class CausalSelfAttention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.n_head = config.n_head

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(c, dim=2)
        q, k, v = (y.view(b, t, self.n_head, c // self.n_head).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class NanoBlock(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd),
            nn.GELU(),
            nn.Linear(4 * config.n_embd, config.n_embd),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


@stranger("nanogpt", Truth(4, tied=True), batch=ids)
class NanoGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        c = self.config = GPTConfig()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(c.vocab_size, c.n_embd),
                "wpe": nn.Embedding(c.block_size, c.n_embd),
                "h": nn.ModuleList(NanoBlock(c) for _ in range(c.n_layer)),
                "ln_f": nn.LayerNorm(c.n_embd),
            }
        )
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        for name, p in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(p)
            elif p.dim() == 2:
                deep = name.endswith(("c_proj.weight", "mlp.2.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * c.n_layer) if deep else 0.02)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        x = self.transformer.wte(idx) + self.transformer.wpe(torch.arange(idx.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


@stranger("mingpt with its mask in a buffer", Truth(3, activation="gelu"), batch=ids)
class MinGPT(nn.Module):
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key, self.query, self.value, self.proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.register_buffer("mask", torch.tril(torch.ones(TOKENS, TOKENS))[None, None])
            self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.mlp = nn.ModuleDict(
                {"c_fc": nn.Linear(WIDTH, 96), "act": nn.GELU("tanh"), "c_proj": nn.Linear(96, WIDTH)}
            )

        def forward(self, x: Tensor) -> Tensor:
            b, t, c = x.shape
            y = self.ln1(x)
            q, k, v = (f(y).view(b, t, HEADS, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = F.softmax(att.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf")), dim=-1)
            x = x + self.proj((att @ v).transpose(1, 2).reshape(b, t, c))
            m = self.mlp
            return x + m["c_proj"](m["act"](m["c_fc"](self.ln2(x))))

    def __init__(self) -> None:
        super().__init__()
        self.tok_emb, self.pos_emb = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.zeros(1, TOKENS, WIDTH))
        self.drop, self.blocks = nn.Dropout(0.1), nn.Sequential(*(self.Block() for _ in range(3)))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        nn.init.normal_(self.pos_emb, std=0.02)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.drop(self.tok_emb(idx) + self.pos_emb[:, : idx.shape[1]])
        return self.head(self.ln_f(self.blocks(x)))


class Mixing(nn.Module):
    """One head's worth of habits: four matrices, softmax by hand."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS, causal: bool = True) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.h, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.h, -1)).transpose(-2, -3) for f in (self.a, self.b, self.c))
        s = q @ k.mT / q.shape[-1] ** 0.5
        if self.causal:
            s = s + torch.full(s.shape[-2:], float("-inf")).triu(1)
        return self.d((s.softmax(-1) @ v).transpose(-2, -3).flatten(-2))


class Step(nn.Module):
    def __init__(self, causal: bool = True, act: type[nn.Module] = nn.GELU) -> None:
        super().__init__()
        self.n, self.m = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixing = Mixing(causal=causal)
        self.up, self.act, self.down = nn.Linear(WIDTH, 80), act(), nn.Linear(80, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mixing(self.n(x)) + x
        return self.down(self.act(self.up(self.m(x)))) + x


class Text(nn.Module):
    """Ids in, logits out; `body` is the stranger's."""

    def __init__(self, places: bool = True) -> None:
        super().__init__()
        self.words, self.read = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.places = nn.Parameter(torch.randn(TOKENS, WIDTH)) if places else None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        return self.read(self.body(x if self.places is None else x + self.places[: tokens.shape[1]]))

    def body(self, x: Tensor) -> Tensor:
        raise NotImplementedError


@stranger("named blocks in a dictionary", Truth(3), batch=ids)
class WordKeys(Text):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({key: Step() for key in ("lower", "middle", "upper")})

    def body(self, x: Tensor) -> Tensor:
        for key in ("lower", "middle", "upper"):
            x = self.parts[key](x)
        return x


@stranger("blocks as plain attributes", Truth(4, sees="full", activation="relu"), batch=ids)
class Attributes(Text):
    def __init__(self) -> None:
        super().__init__()
        self.block_a, self.block_b, self.block_c, self.block_d = (
            Step(causal=False, act=nn.ReLU) for _ in range(4)
        )

    def body(self, x: Tensor) -> Tensor:
        return self.block_d(self.block_c(self.block_b(self.block_a(x))))


@stranger("pairs of attention and feed-forward, norms in a list of their own", Truth(3), batch=ids)
class Pairs(Text):
    def __init__(self) -> None:
        super().__init__()
        feed = lambda: nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))  # noqa: E731
        self.layers = nn.ModuleList(nn.ModuleList([Mixing(), feed()]) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(6))

    def body(self, x: Tensor) -> Tensor:
        for i, (attn, ff) in enumerate(self.layers):
            x = x + attn(self.norms[2 * i](x))
            x = x + ff(self.norms[2 * i + 1](x))
        return x


@stranger("lists of lists of blocks", Truth(4), batch=ids)
class Stages(Text):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.ModuleList(Step() for _ in range(2)) for _ in range(2))

    def body(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            for block in stage:
                x = block(x)
        return x


@stranger("one block called five times", Truth(5, shared=True), batch=ids)
class Loop(Text):
    def __init__(self) -> None:
        super().__init__()
        self.block = Step()

    def body(self, x: Tensor) -> Tensor:
        for _ in range(5):
            x = self.block(x)
        return x


@stranger("two blocks called in turns", Truth(6, shared=True), batch=ids)
class Turns(Text):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.ModuleList([Step(), Step()])

    def body(self, x: Tensor) -> Tensor:
        for i in range(6):
            x = self.pool[i % 2](x)
        return x


@stranger(
    "stacked parameters, one tensor for all layers", Truth(4, norm_kind="rms", activation="silu"), batch=ids
)
class Stacked(Text):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        normal = lambda *s: nn.Parameter(torch.randn(*s) / s[-2] ** 0.5)  # noqa: E731
        self.qkv, self.out = normal(layers, WIDTH, 3 * WIDTH), normal(layers, WIDTH, WIDTH)
        self.w1, self.w2 = normal(layers, WIDTH, 64), normal(layers, 64, WIDTH)
        self.g1, self.g2 = nn.Parameter(torch.ones(layers, WIDTH)), nn.Parameter(torch.ones(layers, WIDTH))

    def body(self, x: Tensor) -> Tensor:
        for i in range(len(self.qkv)):
            y = F.rms_norm(x, (WIDTH,)) * self.g1[i]
            q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (y @ self.qkv[i]).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + y @ self.out[i]
            x = x + F.silu(F.rms_norm(x, (WIDTH,)) * self.g2[i] @ self.w1[i]) @ self.w2[i]
        return x


@stranger("stacked state called by functional_call", Truth(3, sees="full"), batch=ids)
class Functional(Text):
    def __init__(self) -> None:
        super().__init__()
        steps = [Step(causal=False) for _ in range(3)]
        parameters, _ = torch.func.stack_module_state(steps)
        self.stack = nn.ParameterDict(
            {k.replace(".", "__"): nn.Parameter(v.detach()) for k, v in parameters.items()}
        )
        object.__setattr__(self, "skeleton", Step(causal=False).to("meta"))

    def body(self, x: Tensor) -> Tensor:
        for i in range(3):
            weights = {k.replace("__", "."): v[i] for k, v in self.stack.items()}
            x = torch.func.functional_call(self.skeleton, weights, (x,))
        return x


@stranger(
    "everything in one module, matrices by number", Truth(3, norm_kind="layer", activation="relu"), batch=ids
)
class OneModule(Text):
    def __init__(self) -> None:
        super().__init__()
        for i in range(3):
            for name in ("query", "key", "value", "output"):
                setattr(self, f"{name}_{i}", nn.Linear(WIDTH, WIDTH))
            setattr(self, f"first_{i}", nn.Linear(WIDTH, 64))
            setattr(self, f"second_{i}", nn.Linear(64, WIDTH))
            setattr(self, f"norm_a_{i}", nn.LayerNorm(WIDTH))
            setattr(self, f"norm_b_{i}", nn.LayerNorm(WIDTH))

    def body(self, x: Tensor) -> Tensor:
        for i in range(3):
            part = lambda name, i=i: getattr(self, f"{name}_{i}")  # noqa: E731
            y = part("norm_a")(x)
            q, k, v = (
                part(n)(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for n in ("query", "key", "value")
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + part("output")(y)
            x = x + part("second")(F.relu(part("first")(part("norm_b")(x))))
        return x


@stranger(
    "sequence first by hand", Truth(3, sees="full", activation="relu", norm="post"), batch=lambda: ids().T
)
class SequenceFirst(nn.Module):
    """Tokens in the first axis, as in old translation code: (T, B, C)."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.in_proj, self.out_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.fc1, self.fc2 = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
            self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            t, b, c = x.shape
            q, k, v = (
                y.reshape(t, b * HEADS, c // HEADS).transpose(0, 1) for y in self.in_proj(x).chunk(3, -1)
            )
            w = torch.softmax(torch.bmm(q * (c // HEADS) ** -0.5, k.transpose(1, 2)), -1)
            x = self.ln1(x + self.out_proj(torch.bmm(w, v).transpose(0, 1).reshape(t, b, c)))
            return self.ln2(x + self.fc2(F.relu(self.fc1(x))))

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(TOKENS, 1, WIDTH))
        self.layers, self.out = nn.ModuleList(self.Layer() for _ in range(3)), nn.Linear(WIDTH, WORDS)

    def forward(self, source: Tensor) -> Tensor:
        x = self.embed(source) + self.position[: source.shape[0]]
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


@stranger(
    "channels-last image transformer",
    Truth(3, sees="full", absolute=True),
    batch=lambda: image().permute(0, 2, 3, 1).contiguous(),
)
class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.cls = nn.Linear(8 * 8 * 3, WIDTH), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.pos, self.trunk = (
            nn.Parameter(torch.randn(1, 17, WIDTH)),
            nn.Sequential(*(Step(causal=False) for _ in range(3))),
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, picture: Tensor) -> Tensor:
        b, h, w, c = picture.shape
        x = picture.view(b, h // 8, 8, w // 8, 8, c).permute(0, 1, 3, 2, 4, 5).reshape(b, -1, 64 * c)
        x = torch.cat([self.cls.expand(b, -1, -1), self.patch(x)], 1) + self.pos
        return self.head(self.norm(self.trunk(x))[:, 0])


@stranger("channels first, projections are convolutions", Truth(3, sees="full", norm_kind="layer"), batch=ids)
class ChannelsFirst(Text):
    """The stream is (B, C, T)."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.proj = nn.Conv1d(WIDTH, 3 * WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)
            self.grow, self.shrink = nn.Conv1d(WIDTH, 64, 1), nn.Conv1d(64, WIDTH, 1)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(self.norm1(x.mT).mT).unflatten(1, (3, HEADS, -1)).unbind(1)
            w = torch.einsum("bhci,bhcj->bhij", q, k).div(q.shape[2] ** 0.5).softmax(-1)
            x = x + self.proj(torch.einsum("bhij,bhcj->bhci", w, v).flatten(1, 2))
            return x + self.shrink(F.gelu(self.grow(self.norm2(x.mT).mT)))

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.ModuleList(self.Layer() for _ in range(3))

    def body(self, x: Tensor) -> Tensor:
        x = x.mT
        for layer in self.net:
            x = layer(x)
        return x.mT


@stranger("linked blocks, each holds the next", Truth(4), batch=ids)
class Linked(Text):
    class Link(nn.Module):
        def __init__(self, left: int) -> None:
            super().__init__()
            self.here, self.after = Step(), type(self)(left - 1) if left > 1 else None

        def forward(self, x: Tensor) -> Tensor:
            x = self.here(x)
            return x if self.after is None else self.after(x)

    def __init__(self) -> None:
        super().__init__()
        self.chain = self.Link(4)

    def body(self, x: Tensor) -> Tensor:
        return self.chain(x)


class PreNorm(nn.Module):
    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(WIDTH), fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(self.norm(x))


class Residual(nn.Module):
    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x) + x


@stranger("residual and pre-norm wrappers in one sequential", Truth(3), batch=ids)
class Wrappers(Text):
    def __init__(self) -> None:
        super().__init__()
        feed = lambda: nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))  # noqa: E731
        self.net = nn.Sequential(*(Residual(PreNorm(f)) for _ in range(3) for f in (Mixing(), feed())))

    def body(self, x: Tensor) -> Tensor:
        return self.net(x)


@dataclass
class Reply:
    logits: Tensor
    hidden: tuple[Tensor, ...]


@stranger(
    "dictionary batch, dataclass output",
    Truth(3, sees="full"),
    batch=lambda: {"tokens": ids(), "segment": ids() % 2},
)
class DataclassOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.kind = nn.Embedding(WORDS, WIDTH), nn.Embedding(2, WIDTH)
        self.place, self.body = (
            nn.Embedding(TOKENS, WIDTH),
            nn.ModuleList(Step(causal=False) for _ in range(3)),
        )
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, *, tokens: Tensor, segment: Tensor) -> Reply:
        x = self.table(tokens) + self.kind(segment) + self.place.weight[: tokens.shape[1]]
        kept = []
        for block in self.body:
            x = block(x)
            kept.append(x)
        return Reply(self.out(x), tuple(kept))


@stranger(
    "one mapping as the only argument",
    Truth(2),
    batch=lambda: ({"input": ids(), "valid": torch.ones(2, TOKENS)},),
)
class MappingBatch(Text):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Step() for _ in range(2))

    def forward(self, sample: dict[str, Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        return {"scores": super().forward(sample["input"]) * sample["valid"][..., None]}

    def body(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@stranger(
    "two towers, pictures and words",
    Truth(3, sees="full"),
    Truth(2, sees="causal"),
    batch=lambda: {"pixels": image(), "caption": ids()},
)
class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.spots = nn.Conv2d(3, WIDTH, 8, 8), nn.Parameter(torch.randn(16, WIDTH))
        self.seeing = nn.ModuleList(Step(causal=False) for _ in range(3))
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.reading = nn.ModuleList(Step() for _ in range(2))
        self.image_head, self.text_head = nn.Linear(WIDTH, 16), nn.Linear(WIDTH, 16)

    def forward(self, pixels: Tensor, caption: Tensor) -> Tensor:
        x, y = self.patches(pixels).flatten(2).mT + self.spots, self.words(caption) + self.places
        for block in self.seeing:
            x = block(x)
        for block in self.reading:
            y = block(y)
        return (
            F.normalize(self.image_head(x.mean(1)), dim=-1) @ F.normalize(self.text_head(y[:, -1]), dim=-1).T
        )
