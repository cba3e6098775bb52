"""Data, networks and marks of the sixth blind list: small, seeded, nothing downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

COSTS_FILE = Path(__file__).with_name("blind_six_costs.json")
COSTS: dict[str, Any] = json.loads(COSTS_FILE.read_text()) if COSTS_FILE.exists() else {}
BATCH, TRAINED, HELD = 16, 40, 4
EXAMPLES = BATCH * (TRAINED + HELD)
Setup = dict[str, Any]


def _truths() -> dict[str, list[str]]:
    """The table of truths; a name in capitals stands for what its own row says."""
    rows = [
        row.split("\t") for row in Path(__file__).with_name("blind_six_truths.tsv").read_text().splitlines()
    ]
    meant = {name: rest[0] for name, *rest in rows if name.isupper()}
    known = {}
    for name, *cells in rows[1:]:
        words = ["|".join(meant.get(one, one) for one in cell.split("|")) for cell in cells]
        known[name] = [*words, "", ""][:3]
    return known


TRUTHS = _truths()


def mistake(make: Callable[[bool], Setup]) -> Callable[[bool], Setup]:
    """The training with what is true of it; `a+b|c` in the table is both beginnings a and b, or c."""
    name = make.__name__.removeprefix("case_")
    words, places, beside = TRUTHS[name]

    @wraps(make)
    def case(broken: bool) -> Setup:
        torch.manual_seed(6)
        truth = {
            key: [one.split("+") for one in told.split("|") if one]
            for key, told in (("words", words), ("consequences", beside))
        }
        truth |= {"places": places.split(), "cost": COSTS.get(name, {}).get("cost")}
        return make(broken) | {"truth": truth}

    return case


def mean_of(loss: Callable[[Any, Any], Tensor], rows: Sequence[Any]) -> Callable[[Any], float]:
    """A judgement: the mean of a loss over the batches that are held out."""
    return lambda model: sum(float(loss(model, batch)) for batch in rows[-HELD:]) / HELD


def training(model: nn.Module, batches: list[Any], loss: Any = None, lr: float = 3e-3, **more: Any) -> Setup:
    """AdamW over what is trainable; the last batches are held out for the judgement of costs."""
    setup: Setup = {"model": model, "batches": batches[:-HELD], "held": batches[-HELD:]}
    if loss is not None:
        setup["loss"] = loss
    if "optimizer" not in more:
        setup["optimizer"] = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    return setup | more


def loop(loss: Callable[[Any, Any], Tensor], after: Callable[..., None] = lambda *_: None) -> Any:
    """A plain loop body; `after(model, optimizer, k)` runs at its end."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, k: int) -> Tensor:
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        after(model, optimizer, k)
        return value

    return step


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batched(*columns: Tensor) -> list[Any]:
    """Examples cut into batches: tensors, or tuples of them."""
    parts = [column.split(BATCH) for column in columns]
    return list(parts[0]) if len(parts) == 1 else list(zip(*parts, strict=True))


def story(length: int = 24, vocab: int = 24, seed: int = 1) -> Tensor:
    """A word has three likely followers; every fourth word repeats the one three before it. Words from 2 on."""
    g, follow = seeded(seed), torch.randint(2, vocab, (vocab, 3), generator=seeded(99))
    text = torch.randint(2, vocab, (EXAMPLES, length), generator=g)
    for t in range(1, length):
        text[:, t] = follow[text[:, t - 1], torch.randint(3, (EXAMPLES,), generator=g)]
        if t % 4 == 3:
            text[:, t] = text[:, t - 3]
    return text


def reviews(length: int = 20, seed: int = 2, other: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Padded ids (0 is padding), which of them are real, and one of four labels that three words tell."""
    g = seeded(seed)
    label = torch.randint(4, (EXAMPLES,), generator=g)
    ids = torch.randint(20, 40, (EXAMPLES, length), generator=g)
    size = torch.randint(8, length - 1, (EXAMPLES,), generator=g)
    for _ in range(3):
        at = (torch.rand(EXAMPLES, generator=g) * size).long()
        any_ = torch.randint(4, (EXAMPLES,), generator=g)
        ids[torch.arange(EXAMPLES), at] = 2 + (label + 4 * any_ if other else 4 * label + any_)
    real = torch.arange(length) < size[:, None]
    return ids * real, real, label


def forms(seed: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Ten fields of ids; the seventh field alone decides which of four labels: order matters."""
    ids = torch.randint(2, 18, (EXAMPLES, 10), generator=seeded(seed))
    return ids, torch.ones_like(ids, dtype=torch.bool), ids[:, 6] % 4


def blobs(seed: int = 4) -> tuple[Tensor, Tensor]:
    """Images of 0 to 255 with a red or green blob in one of four corners: eight labels."""
    g = seeded(seed)
    label = torch.randint(8, (EXAMPLES,), generator=g)
    shift = torch.randint(-1, 2, (2, EXAMPLES), generator=g)
    y, x = 4 + 8 * (label % 2) + shift[0], 4 + 8 * (label // 2 % 2) + shift[1]
    grid = torch.arange(16)
    near = (-((grid[None, :, None] - y[:, None, None]) ** 2 + (grid - x[:, None, None]) ** 2) / 6).exp()
    images = 110 + 30 * torch.randn(EXAMPLES, 3, 16, 16, generator=g)
    images[torch.arange(EXAMPLES), label // 4] += 120 * near
    return images.clamp(0, 255), label


def level(images: Tensor) -> Tensor:
    return (images - 115) / 35


def tones(seed: int = 5) -> tuple[Tensor, Tensor]:
    """Spectra (36 frames of 12 bands) of six tones in a row, and the tones, 1 to 8."""
    g = seeded(seed)
    tone = torch.randint(1, 9, (EXAMPLES, 6), generator=g)
    frames = F.one_hot(tone.repeat_interleave(6, dim=1), 12) * 2.0
    return frames + 0.4 * torch.randn(EXAMPLES, 36, 12, generator=g), tone


def waves(length: int = 40, seed: int = 6) -> Tensor:
    """Two sines of random phase and height, and a little noise."""
    g, t = seeded(seed), torch.arange(length)
    phase, height = (torch.rand(EXAMPLES, 2, 1, generator=g) for _ in range(2))
    speed = torch.tensor([0.35, 0.9])[:, None]
    clean = ((0.5 + height) * (t * speed + 6.28 * phase).sin()).sum(1)
    return clean + 0.05 * torch.randn(EXAMPLES, length, generator=g)


def table(seed: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """Five columns of six categories, four of numbers, and one of three labels."""
    g = seeded(seed)
    codes = torch.randint(6, (EXAMPLES, 5), generator=g)
    numbers = torch.randn(EXAMPLES, 4, generator=g)
    effect = torch.randn(5, 6, 3, generator=seeded(98))
    score = sum(effect[c][codes[:, c]] for c in range(5)) + numbers[:, :3]
    return codes, numbers, score.argmax(-1)


def views(seed: int = 8) -> tuple[Tensor, Tensor]:
    """Two noisy views (six tokens of eight numbers) of one hidden thing."""
    g, turn = seeded(seed), seeded(97)
    hidden = torch.randn(EXAMPLES, 8, generator=g)
    one, two = (hidden @ torch.randn(8, 48, generator=turn) / 3 for _ in range(2))
    noise = 0.5 * torch.randn(2, EXAMPLES, 48, generator=g)
    return (one + noise[0]).view(-1, 6, 8), (two + noise[1]).view(-1, 6, 8)


class Attention(nn.Module):
    """Attention written by hand, of which a mistake replaces one method."""

    def __init__(self, width: int, causal: bool, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width) for _ in range(4))

    def headed(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def turn(self, x: Tensor) -> Tensor:
        return x

    def compare(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5

    def hide(self, scores: Tensor) -> Tensor:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, float("-inf")) if self.causal else scores

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        q, k, v = (self.headed(part(x)) for part in (self.to_q, self.to_k, self.to_v))
        scores = self.hide(self.compare(self.turn(q), self.turn(k)))
        if real is not None:
            scores = scores.masked_fill(~real[:, None, None], -1e9)
        return self.to_out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Rotary(Attention):
    """With rotary positions along the second last dimension of a headed tensor."""

    def __init__(self, width: int, causal: bool, heads: int = 4) -> None:
        super().__init__(width, causal, heads)
        half = width // heads // 2
        self.register_buffer("speeds", 100.0 ** (-torch.arange(half) / half), persistent=False)

    def turn(self, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[-2])[:, None] * self.speeds
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)


class Layer(nn.Module):
    """Pre-norm; `mlp` and the norms may be replaced."""

    def __init__(self, width: int, mix: nn.Module, mlp: nn.Module | None = None, drop: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.norm2, self.mix = nn.LayerNorm(width), nn.LayerNorm(width), mix
        self.mlp = mlp or nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        mixed = self.mix(self.norm1(x)) if real is None else self.mix(self.norm1(x), real)
        x = x + self.drop(mixed)
        return x + self.drop(self.mlp(self.norm2(x)))


Make = Callable[[], nn.Module]


class Writer(nn.Module):
    """A decoder of text; `layer()` makes one of its layers."""

    def __init__(
        self, layer: Make | None = None, vocab: int = 24, width: int = 48, depth: int = 2, places: bool = True
    ) -> None:
        super().__init__()
        layer = layer or (lambda: Layer(width, Attention(width, causal=True)))
        self.tokens = nn.Embedding(vocab, width)
        self.places = nn.Embedding(64, width) if places else None
        self.layers = nn.ModuleList(layer() for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        for table_ in (self.tokens, self.places):
            if table_ is not None:
                nn.init.normal_(table_.weight, std=0.1)

    def states(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        if self.places is not None:
            x = x + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.states(ids))


def following(model: nn.Module, ids: Tensor) -> Tensor:
    """Cross-entropy of every next token."""
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def from_before(held: Sequence[Tensor], last: Callable[..., Tensor] | None = None) -> Callable[[Any], float]:
    """Cross-entropy of a next token when nothing after its predecessor is given, as a model that writes meets it."""
    last = last or (lambda model, ids: model(ids)[:, -1])

    def judge(model: nn.Module) -> float:
        ids = torch.cat(list(held))
        return sum(float(F.cross_entropy(last(model, ids[:, :n]), ids[:, n])) for n in (7, 12, 19, 22)) / 4

    return judge


class Reader(nn.Module):
    """A classifier on `nn.TransformerEncoder`: the mean over real tokens, then a head."""

    def __init__(self, classes: int = 4, width: int = 48, vocab: int = 40, depth: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.places = nn.Parameter(0.1 * torch.randn(32, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, 0.0, F.silu, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.places[: ids.shape[1]]

    def states(self, ids: Tensor, real: Tensor) -> Tensor:
        return self.encoder(self.embed(ids), src_key_padding_mask=~real)

    def pool(self, states: Tensor, real: Tensor) -> Tensor:
        return (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        return self.head(self.pool(self.states(ids, real), real))


def sorted_right(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Cross-entropy; the last of a batch is the label, the others go in."""
    return F.cross_entropy(model(*batch[:-1]), batch[-1])


class Eye(nn.Module):
    """A small vision transformer: patches of four by four, a class token."""

    def __init__(self, layer: Make | None = None, classes: int = 8, width: int = 48, depth: int = 2) -> None:
        super().__init__()
        layer = layer or (lambda: Layer(width, Attention(width, causal=False)))
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.cls = nn.Parameter(0.1 * torch.randn(1, 1, width))
        self.places = nn.Parameter(0.1 * torch.randn(17, width))
        self.layers = nn.ModuleList(layer() for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def states(self, images: Tensor) -> Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.states(images)[:, 0])


class Tower(nn.Module):
    """Tokens of numbers in, one vector (or one for each token) out."""

    def __init__(self, inputs: int, outputs: int, width: int = 32, pooled: bool = True) -> None:
        super().__init__()
        self.pooled, self.lift = pooled, nn.Linear(inputs, width)
        self.places = nn.Parameter(0.1 * torch.randn(64, width))
        self.layer, self.norm = Layer(width, Attention(width, causal=False)), nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.layer(self.lift(x) + self.places[: x.shape[1]]))
        return self.head(x.mean(1) if self.pooled else x)


class LoRA(nn.Module):
    """A frozen linear map and a trained one of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 4, scale: float = 2.0) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), scale
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * (x @ self.lora_a.T @ self.lora_b.T)


@cache
def taught() -> dict[str, Tensor]:
    """Weights of a `Reader` after 120 steps on reviews; what a user would download."""
    batches = batched(*reviews(seed=12))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = Reader()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for k in range(120):
            optimizer.zero_grad()
            sorted_right(model, batches[k % TRAINED]).backward()
            optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def with_lora(model: Reader) -> Reader:
    """Frozen but for the head, and LoRA in both maps of every feed-forward."""
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    for layer in model.encoder.layers:
        layer.linear1, layer.linear2 = LoRA(layer.linear1), LoRA(layer.linear2)
    return model


def downloaded(kind: type[Reader] = Reader) -> Any:
    """A taught `Reader` with a new head."""
    model = kind()
    model.load_state_dict(taught(), strict=kind is Reader)
    model.head.reset_parameters()
    return model
