"""Small networks, data and the usual loop for the fifth blind list."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

Case = dict[str, Any]
Stream = Callable[[int], Any]
PAD, BEGIN, END, MASK, FIRST, WORDS = 0, 1, 2, 3, 4, 24
ROWS, LENGTH, WIDTH, HEADS, CLASSES = 16, 20, 48, 4, 6


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _tables(seed: int) -> tuple[Tensor, Tensor]:
    """Which word follows the last one, and which the third last."""
    g = generator(seed)
    drawn = [torch.randperm(WORDS - FIRST, generator=g) + FIRST for _ in range(2)]
    return drawn[0], drawn[1]


def text(
    rows: int, g: Any, *, length: int = LENGTH, language: int = 0, noise: float = 0.1, share=0.5
) -> Tensor:
    """Each word follows from the last one, or from the third last, or from nothing."""
    last, third = _tables(100 + language)
    x = torch.randint(FIRST, WORDS, (rows, length), generator=g)
    chance = torch.rand(rows, length, generator=g)
    for t in range(3, length):
        after_last, after_third = last[x[:, t - 1] - FIRST], third[x[:, t - 3] - FIRST]
        known = torch.where(chance[:, t] < noise + share * (1 - noise), after_last, after_third)
        x[:, t] = torch.where(chance[:, t] < noise, x[:, t], known)
    return x


def speech(rows: int, g: torch.Generator, **how: Any) -> tuple[Tensor, Tensor]:
    """Words and the words that follow them."""
    x = text(rows, g, **how)
    return x[:, :-1], x[:, 1:]


def ended(rows: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts of 6 to 14 words with an end, and how many words each has with it; the rest are pads."""
    x = text(rows, g)
    sizes = torch.randint(7, 15, (rows,), generator=g)
    places = torch.arange(LENGTH)
    x[places == sizes[:, None] - 1] = END
    return x.masked_fill(places >= sizes[:, None], PAD), sizes


def topics(rows: int, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Texts on one of six topics, which pads there are, and the topic; three in ten words are on the topic."""
    topic = torch.randint(0, CLASSES, (rows,), generator=g)
    x = torch.randint(FIRST, WORDS, (rows, LENGTH), generator=g)
    own = FIRST + 3 * topic[:, None] + torch.randint(0, 3, x.shape, generator=g)
    x = torch.where(torch.rand(x.shape, generator=g) < 0.3, own, x)
    x[:, 0] = BEGIN
    pads = torch.arange(LENGTH) >= torch.randint(8, LENGTH + 1, (rows, 1), generator=g)
    return x.masked_fill(pads, PAD), pads, topic


def pictures(
    g: torch.Generator, label: Tensor | None = None, middle: float = 0.5, spread: float = 0.3
) -> dict[str, Tensor]:
    """Pictures of 12 x 12, between 0 and 1 before they are normalized; odd classes mirror the class before them."""
    coarse = torch.rand(CLASSES // 2, 1, 4, 4, generator=generator(7))
    shapes = F.interpolate(coarse, 12, mode="bilinear")
    shapes = torch.stack([shapes, shapes.flip(-1)], 1).flatten(0, 1)
    label = torch.randint(0, CLASSES, (ROWS,), generator=g) if label is None else label
    x = (shapes[label] + 0.25 * torch.randn(ROWS, 1, 12, 12, generator=g)).clamp(0, 1)
    return {"pixel_values": (x - middle) / spread, "labels": label}


def pairs(rows: int, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """A source of ten words, the target so far, and the target: each word in the other language."""
    source = torch.randint(FIRST, WORDS, (rows, 10), generator=g)
    target = _tables(300)[0][source - FIRST]
    return source, torch.cat([torch.full((rows, 1), BEGIN), target[:, :-1]], 1), target


def masked(rows: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts in which every fifth word is hidden, and the hidden words."""
    x = text(rows, g, share=1.0)
    hidden = torch.rand(x.shape, generator=g) < 0.2
    return x.masked_fill(hidden, MASK), x.masked_fill(~hidden, -100)


def speeches(seed: int, **how: Any) -> Stream:
    g = generator(seed)
    return lambda k: speech(ROWS, g, **how)


def dictated(seed: int, **how: Any) -> Stream:
    """The same for models that compute their loss themselves."""
    g = generator(seed)
    return lambda k: dict.fromkeys(("input_ids", "labels"), text(ROWS, g, **how))


def shown(seed: int, **how: Any) -> Stream:
    g = generator(seed)
    return lambda k: pictures(g, **how)


class Attention(nn.Module):
    def __init__(self, rotary: bool = False) -> None:
        super().__init__()
        self.rotary, self.places = rotary, torch.arange
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def turned(self, x: Tensor) -> Tensor:
        """Turn the last dimension by an angle that grows along the one before it."""
        half = x.shape[-1] // 2
        angle = self.places(x.shape[-2])[:, None] * 100.0 ** (-torch.arange(half) / half)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        q, k, v = (self.split(part) for part in self.qkv(x).chunk(3, -1))
        if self.rotary:
            q, k = self.turned(q), self.turned(k)
        return self.out(self.mixed(q, k, v, allowed).transpose(1, 2).flatten(2))


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Mixture(nn.Module):
    """Four experts, of which each token asks the best `chosen`."""

    def __init__(self, chosen: int = 2) -> None:
        super().__init__()
        self.chosen, self.router = chosen, nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.ModuleList(Feed() for _ in range(4))

    def gates(self, scores: Tensor) -> Tensor:
        value, index = scores.softmax(-1).topk(self.chosen, -1)
        return torch.zeros_like(scores).scatter(-1, index, value)

    def forward(self, x: Tensor) -> Tensor:
        answers = torch.stack([expert(x) for expert in self.experts], -1)
        return (answers * self.gates(self.router(x)).unsqueeze(-2)).sum(-1)


class Block(nn.Module):
    def __init__(self, attention: nn.Module, feed: nn.Module, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.before_attention, self.attention = norm(WIDTH), attention
        self.before_feed, self.feed = norm(WIDTH), feed

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x), allowed)
        return x + self.feed(self.before_feed(x))


class Decoder(nn.Module):
    """A decoder as people write it: learned positions, or rotary ones."""

    def __init__(
        self,
        attention: Any = Attention,
        feed: Any = Feed,
        norm: Any = nn.LayerNorm,
        places: bool = True,
        depth: int = 2,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.randn(32, WIDTH)) if places else None
        self.blocks = nn.ModuleList(Block(attention(), feed(), norm) for _ in range(depth))
        self.norm, self.head = norm(WIDTH), nn.Linear(WIDTH, WORDS)

    def allowed(self, tokens: Tensor) -> Tensor:
        return torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        if self.places is not None:
            x = x + self.places[: tokens.shape[1]]
        allowed = self.allowed(tokens)
        for block in self.blocks:
            x = block(x, allowed)
        return self.head(self.norm(x))


def rotary(attention: Callable[[bool], nn.Module] = Attention) -> Decoder:
    return Decoder(lambda: attention(True), norm=nn.RMSNorm, places=False)


class Reader(nn.Module):
    """torch's encoder with a readout of the first token, or of every token."""

    def __init__(self, outputs: int, *, every: bool = False, first: bool = True) -> None:
        super().__init__()
        self.every, self.words = every, nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, 0.0, "gelu", batch_first=first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, tokens: Tensor, pads: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        x = self.encoder(self.words(tokens) + self.places[: tokens.shape[1]], mask, pads)
        return self.head(x if self.every else x[:, 0])


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.randn(10, WIDTH))
        self.body = nn.Transformer(WIDTH, HEADS, 1, 1, 96, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.body.encoder(self.source(source) + self.places)
        size = target.shape[1]
        later = torch.ones(size, size, dtype=torch.bool).triu(1)
        return self.head(self.decoded(self.target(target) + self.places[:size], memory, later))

    def decoded(self, x: Tensor, memory: Tensor, later: Tensor) -> Tensor:
        return self.body.decoder(x, memory, tgt_mask=later)


QUIET = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1)
SQUARE = QUIET | dict(image_size=12, patch_size=3, num_channels=1)
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)),
    "llama": ("LlamaConfig", "LlamaForCausalLM", dict(num_key_value_heads=2)),
    "neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {}),
    "bert": ("BertConfig", "BertForMaskedLM", QUIET),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", dict(num_key_value_heads=2, num_local_experts=4)),
    "vit": ("ViTConfig", "ViTForImageClassification", SQUARE),
}


def hugging(name: str) -> nn.Module:
    """A model of transformers, built small from its config."""
    config, model, more = KINDS[name]
    size = dict(hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=96)
    tokens = dict(vocab_size=WORDS, max_position_embeddings=32, pad_token_id=PAD, bos_token_id=BEGIN)
    size |= dict(num_labels=CLASSES) if name == "vit" else tokens | dict(eos_token_id=END)
    return getattr(transformers, model)(getattr(transformers, config)(**size, **more))


class Adapted(nn.Module):
    """A linear layer that stands, and a product of two small matrices that learns beside it."""

    def __init__(self, frozen: nn.Linear, *, scale: float = 2.0, zero: bool = False) -> None:
        super().__init__()
        self.frozen, self.scale = frozen, scale
        self.down = nn.Parameter(torch.randn(8, frozen.in_features) * (0.0 if zero else 0.15))
        self.up = nn.Parameter(torch.zeros(frozen.out_features, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.scale * (x @ self.down.T @ self.up.T)


@lru_cache(maxsize=4)
def _learned(name: str) -> dict[str, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Decoder() if name == "decoder" else hugging(name)
        batch = {"decoder": speeches, "gpt2": dictated, "vit": shown}[name](11)
        step = trained(model, batch, 1e-3 if name == "vit" else 4e-3)["step"]
        for k in range(150):
            step(k)
    return model.state_dict()


def learned(name: str) -> Any:
    """A model that knows the first language, or the pictures."""
    model = Decoder() if name == "decoder" else hugging(name)
    model.load_state_dict(_learned(name))
    return model


def adapted(**how: Any) -> Decoder:
    """The learned decoder with all weights frozen and an adapter on each linear layer of its blocks."""
    model: Decoder = learned("decoder").requires_grad_(False)
    for block in model.blocks:
        for owner, names in ((block.attention, ("qkv", "out")), (block.feed, ("up", "down"))):
            for name in names:
                setattr(owner, name, Adapted(getattr(owner, name), **how))
    return model


def spoken(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def adam(model: nn.Module, rate: float = 4e-3) -> torch.optim.AdamW:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], rate)


def trained(
    model: nn.Module,
    batch: Stream,
    optimizer: torch.optim.Optimizer | float = 4e-3,
    *,
    loss_of: Callable[[Tensor, Any], Tensor] = spoken,
    before: Callable[[int], Any] = lambda k: None,
    after: Callable[[int], Any] = lambda k: None,
    many: Callable[[int], int] = lambda k: 1,
    forgets: bool = False,
    **more: Any,
) -> Case:
    """The loop that everybody writes; a batch is inputs and labels, or what the model takes by name."""
    chosen = adam(model, optimizer) if isinstance(optimizer, float) else optimizer

    def step(k: int) -> float:
        before(k)
        drawn = batch(k)
        if forgets or k % many(k) == 0:
            chosen.zero_grad()
        loss = model(**drawn).loss if isinstance(drawn, dict) else loss_of(model(*drawn[:-1]), drawn[-1])
        (loss / many(k) if many(k) > 1 else loss).backward()
        if k % many(k) == many(k) - 1:
            chosen.step()
        after(k)
        return loss.item()

    return done(step, model, **more)


def done(step: Callable[[int], float], model: nn.Module, **more: Any) -> Case:
    return {"model": model, "step": step, "steps": 220} | more


def asked(model: nn.Module, batch: Any = None, whole: bool = True) -> Callable[[], float]:
    """The loss on new data; if not `whole`, of the last word alone, so that nothing after it can be seen."""

    @torch.no_grad()
    def judge() -> float:
        losses, g = [], generator(999)
        for drawn in (batch(g) if batch else speech(64, g) for _ in range(8)):
            if isinstance(drawn, dict):
                losses.append(model(**drawn).loss)
            else:
                logits, labels = model(*drawn[:-1]), drawn[-1]
                losses.append(spoken(logits, labels) if whole else spoken(logits[:, -1], labels[:, -1]))
        return float(torch.stack(losses).mean())

    return judge
