"""Third development list: mistakes of public bug reports around the loop, the data and the state, each with a twin."""

# ruff: noqa: ARG001, ARG002  a step has one signature

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

V, D, N, B = 61, 48, 20, 6
Setup = dict[str, Any]


class Block(nn.Module):
    """Pre-norm block; `memory` gives keys and values of another sequence."""

    def __init__(self, causal: bool = True, drop: float = 0.0) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.q, self.kv, self.o = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))
        self.causal, self.drop = causal, nn.Dropout(drop)

    def forward(self, x: Tensor, keep: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        h = self.n1(x)
        q, (k, v) = self.q(h), self.kv(h if memory is None else memory).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in (q, k, v))
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
        mask = mask.tril() if self.causal and memory is None else mask
        mask = mask if keep is None else mask & keep[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.drop(self.o(y.transpose(1, 2).flatten(2)))
        return x + self.drop(self.mlp(self.n2(x)))


class GPT(nn.Module):
    """Small causal language model with learned positions."""

    def __init__(self, depth: int = 3, causal: bool = True, drop: float = 0.0, out: int = V) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(64, D)
        self.blocks = nn.ModuleList([Block(causal, drop) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, out, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.05)

    def body(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, keep)
        return self.norm(x)

    def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.head(self.body(ids, keep))


def text(count: int = 4, rows: int = B, tokens: int = N + 1, low: int = 2, seed: int = 0) -> list[Tensor]:
    """Batches of words in which each word depends on the last one."""
    g = torch.Generator().manual_seed(seed)
    table = torch.randint(low, V, (V, 3), generator=g)
    batches = []
    for _ in range(count):
        ids = [torch.randint(low, V, (rows,), generator=g)]
        for _ in range(tokens - 1):
            ids.append(table[ids[-1], torch.randint(0, 3, (rows,), generator=g)])
        batches.append(torch.stack(ids, 1))
    return batches


def next_word(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def adam(model: nn.Module, rate: float = 1e-3) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=rate)


def setup(model: nn.Module, loss: Callable = next_word, batches: Any = None, **more: Any) -> Setup:
    more.setdefault("optimizer", adam(model))
    return {"model": model, "batches": text() if batches is None else batches, "loss": loss, **more}


def true(*words: str, places: list[str] | None = None, also: list[list[str]] | None = None) -> dict[str, Any]:
    return {"words": [w.split() for w in words], "places": places or [], "consequences": also or []}


def case_average_swapped(broken: bool) -> Setup:
    """Decay and its complement exchanged in an exponential average of the weights."""
    model = GPT()
    average = copy.deepcopy(model)
    decay = 0.001 if broken else 0.999

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:
        optimizer.zero_grad()
        loss = next_word(model, batch)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.mul_(decay).add_(p, alpha=1 - decay)
        return loss

    return setup(model, step=step, also=[average], truth=true("average", "ema"))


def case_average_shares(broken: bool) -> Setup:
    """The average's tensors are the model's own: it averages nothing."""
    model = GPT()
    average = copy.deepcopy(model)
    if broken:
        for (_, a), (_, p) in zip(average.named_parameters(), model.named_parameters(), strict=True):
            a.data = p.data

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:
        optimizer.zero_grad()
        loss = next_word(model, batch)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.lerp_(p, 0.001)
        return loss

    return setup(model, step=step, also=[average], truth=true("average", "ema", "same memory", "shares"))


def case_accumulation_not_divided(broken: bool) -> Setup:
    """Four parts of a batch, whose mean losses are added."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for part in batch.chunk(3):
            loss = next_word(model, part) / (1 if broken else 3)
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    return setup(GPT(), step=step, truth=true("gradient times", "divid", "accumul", "gradient 3"))


def case_schedule_by_epoch(broken: bool) -> Setup:
    """A schedule of epochs that is stepped at every batch."""
    model = GPT()
    optimizer = adam(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.1)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:
        optimizer.zero_grad()
        loss = next_word(model, batch)
        loss.backward()
        optimizer.step()
        if broken or k % 500 == 499:
            schedule.step()
        return loss

    return setup(model, step=step, optimizer=optimizer, also=[schedule], truth=true("schedul"))


def case_clip_before_unscale(broken: bool) -> Setup:
    """Gradients are clipped while the loss scale is still in them."""
    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:
        optimizer.zero_grad()
        loss = next_word(model, batch)
        (loss * 65536).backward()
        if broken:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for p in model.parameters():
            p.grad.div_(65536)
        if not broken:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return setup(model, step=step, optimizer=optimizer, truth=true("clip", "scal", "gradient small"))


def case_other_vocabulary(broken: bool) -> Setup:
    """Ids of a larger vocabulary are clamped into the table."""
    batches = [b * 5 for b in text()] if broken else text()
    return setup(
        GPT(),
        batches=[b.clamp(max=V - 1) for b in batches],
        truth=true("vocab", "same id", "most token", "one label"),
    )


def case_batch_norm_frozen(broken: bool) -> Setup:
    """A fresh network with batch norm is trained in eval mode: the statistics stay at zero and one."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2))
    model = nn.Sequential(
        *model, nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    )
    g = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(16, 3, 16, 16, generator=g), torch.randint(0, 10, (16,), generator=g)) for _ in range(3)
    ]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        model.train()
        for m in model.modules():
            if broken and isinstance(m, nn.BatchNorm2d):
                m.eval()
        return F.cross_entropy(model(batch[0]), batch[1])

    return setup(model, loss, batches, truth=true("eval", "batch norm", "batchnorm", "statistic"))


def padded(count: int = 4) -> list[dict[str, Tensor]]:
    """Rows of several lengths, filled with zeros, with the mask of what is text."""
    batches = []
    for ids in text(count, tokens=N, low=2):
        lengths = torch.tensor([20, 16, 11, 9, 18, 7])
        keep = torch.arange(N) < lengths[:, None]
        batches.append({"ids": ids * keep, "keep": keep})
    return batches


def case_pad_labels(broken: bool) -> Setup:
    """Labels of the padding are not ignored."""

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        labels = batch["ids"][:, 1:]
        labels = labels if broken else labels.masked_fill(~batch["keep"][:, 1:], -100)
        return F.cross_entropy(
            model(batch["ids"][:, :-1], batch["keep"][:, :-1]).flatten(0, 1), labels.flatten()
        )

    return setup(GPT(), loss, padded(), truth=true("padding", "ignore"))


def case_mean_over_padding(broken: bool) -> Setup:
    """Losses of padding are zeroed, and the mean still counts them."""

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        keep = batch["keep"][:, 1:]
        logits = model(batch["ids"][:, :-1], batch["keep"][:, :-1])
        each = F.cross_entropy(logits.flatten(0, 1), batch["ids"][:, 1:].flatten(), reduction="none").view_as(
            keep
        )
        each = each * keep
        return each.mean() if broken else each.sum() / keep.sum()

    return setup(GPT(), loss, padded(), truth=true("padding", "mean", "counts", "divid"))


def case_detached_block(broken: bool) -> Setup:
    """What a block adds is cut from the graph before it is added."""
    model = GPT()

    class Cut(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
            y = self.inner(x, keep) - x
            return x + (y.detach() if broken else y)

    model.blocks[1] = Cut(model.blocks[1])
    return setup(model, truth=true("no gradient", "detach", places=["blocks.1"]))


def case_sum_over_tokens(broken: bool) -> Setup:
    """Sums over tokens and the mean over rows, with a rate for means and a clip."""

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        each = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        return each.view(len(ids), -1).sum(1).mean() if broken else each.mean()

    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    return setup(model, loss, optimizer=optimizer, truth=true("sum", "times"))


def case_stale_cache(broken: bool) -> Setup:
    """Keys and values of the last call are kept and used by the next one."""
    model = GPT()

    class Cached(Block):
        def __init__(self) -> None:
            super().__init__()
            self.past: Tensor | None = None

        def forward(self, x: Tensor, keep: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
            if not broken or self.past is None or self.past.shape != x.shape:
                self.past = x.detach()
                return super().forward(x)
            h, past = self.n1(x), self.past
            self.past = x.detach()
            k, v = self.kv(torch.cat([self.n1(past), h], 1)).chunk(2, -1)
            q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in (self.q(h), k, v))
            n = x.shape[1]
            mask = torch.cat([torch.ones(n, n), torch.ones(n, n).tril()], 1).bool()
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + self.o(y.transpose(1, 2).flatten(2))
            return x + self.mlp(self.n2(x))

    model.blocks[1] = Cached()
    for p in model.blocks[1].parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=0.05)
    return setup(model, truth=true("call", "cache", "state", "same input", places=[]))


def case_functional_dropout(broken: bool) -> Setup:
    """F.dropout without `training`: it drops in eval mode too."""
    model = GPT()

    class Drop(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.1) if broken else F.dropout(x, 0.1, self.training)

    model.norm = nn.Sequential(model.norm, Drop())
    return setup(model, truth=true("dropout", "eval", "random"))


def case_low_precision_loss(broken: bool) -> Setup:
    """The whole model in bfloat16 with a small rate."""
    model = GPT()
    model = model.to(torch.bfloat16) if broken else model
    return setup(
        model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-5), truth=true("round", "bfloat16")
    )


def case_tie_lost(broken: bool) -> Setup:
    """Tied by reference, then the table is replaced by a longer one."""
    model = GPT()
    model.config = {"tie_word_embeddings": True}
    model.head.weight = model.tok.weight
    if broken:
        model.tok = nn.Embedding.from_pretrained(model.tok.weight.detach().clone(), freeze=False)
    return setup(model, truth=true("tie", "tied"))


def case_created_later(broken: bool) -> Setup:
    """A layer that the first call makes, after the optimizer was made."""

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.late = GPT(), None
            if not broken:
                self.late = nn.Linear(V, V)

        def forward(self, ids: Tensor) -> Tensor:
            y = self.inner(ids)
            if self.late is None:
                self.late = nn.Linear(V, V)
            return self.late(y)

    return setup(Late(), truth=true("optimizer", "later", places=["late", "optimizer", "model"]))


def case_shifted_twice(broken: bool) -> Setup:
    """The collator shifts, and the model's loss shifts."""

    def loss(model: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
        ids, labels = pair
        logits = model(ids)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    batches = [(b[:, :-1], b[:, 1:] if broken else b[:, :-1]) for b in text()]
    return setup(GPT(), loss, batches, truth=true("shift", "offset"))


def case_inputs_shuffled(broken: bool) -> Setup:
    """Every batch is drawn with the same seed."""
    batches = [text(1, seed=3 if broken else k)[0] for k in range(4)]
    return setup(GPT(), batches=batches, truth=true("same", "repeat"))


def case_log_softmax_twice(broken: bool) -> Setup:
    """Probabilities go to a loss that expects logits."""

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        logits = model(ids[:, :-1]).flatten(0, 1)
        return F.cross_entropy(logits.softmax(-1) if broken else logits, ids[:, 1:].flatten())

    return setup(GPT(), loss, truth=true("softmax", "bounded", "probabilit"))


def case_padding_mask_inverted(broken: bool) -> Setup:
    """torch's key_padding_mask is True where padding is; this one is True where text is."""
    layer = nn.TransformerEncoderLayer(D, 4, 4 * D, 0.0, batch_first=True, norm_first=True)

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(64, D)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(D, 4)

        def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
            x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
            x = self.encoder(x, src_key_padding_mask=keep if broken else ~keep)
            return self.head((x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True))

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["ids"], batch["keep"]), batch["label"])

    batches = [b | {"label": b["ids"][:, 0] % 4} for b in padded()]
    return setup(Classifier(), loss, batches, truth=true("padding", "mask"))


def case_axis_of_torch_attention(broken: bool) -> Setup:
    """nn.MultiheadAttention takes tokens first; it is given rows first."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.n = nn.MultiheadAttention(D, 4, batch_first=not broken), nn.LayerNorm(D)

        def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
            h = self.n(x)
            return x + self.attention(h, h, h, need_weights=False)[0]

    model = GPT(causal=False)
    model.blocks = nn.ModuleList([Layer(), Layer()])
    g = torch.Generator().manual_seed(2)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        ids, hidden = batch
        logits = model(ids.masked_fill(hidden, 1))
        return F.cross_entropy(logits.flatten(0, 1), ids.masked_fill(~hidden, -100).flatten())

    batches = [(b, torch.rand(b.shape, generator=g) < 0.2) for b in text()]
    return setup(model, loss, batches, truth=true("sample", "batch"))


def case_wrong_ignored(broken: bool) -> Setup:
    """`ignore_index` is the id of a frequent word, not of the padding."""
    word = int(torch.cat(text()).flatten().mode().values)

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = model(batch["ids"][:, :-1], batch["keep"][:, :-1])
        return F.cross_entropy(
            logits.flatten(0, 1), batch["ids"][:, 1:].flatten(), ignore_index=word if broken else 0
        )

    return setup(GPT(), loss, padded(), truth=true("padding", "ignore"))


class Two(nn.Module):
    """Two encoders whose outputs are compared."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = GPT(2, False), GPT(2, False)

    def forward(self, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.a.body(one).mean(1), dim=-1), F.normalize(self.b.body(two).mean(1), dim=-1)


def pairs() -> list[tuple[Tensor, Tensor]]:
    return [(b[:, :10], b[:, 11:]) for b in text(rows=12)]


def case_temperature_multiplied(broken: bool) -> Setup:
    """Similarities are multiplied by the temperature."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        one, two = model(*batch)
        scores = one @ two.T
        return F.cross_entropy(scores * 0.05 if broken else scores / 0.05, torch.arange(len(one)))

    return setup(Two(), loss, pairs(), truth=true("temperature", "bounded", "range"))


def case_no_normalization_axis(broken: bool) -> Setup:
    """Vectors are normalized over the batch, not over their entries."""

    class Wrong(Two):
        def forward(self, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
            axis = 0 if broken else -1
            return F.normalize(self.a.body(one).mean(1), dim=axis), F.normalize(
                self.b.body(two).mean(1), dim=axis
            )

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        one, two = model(*batch)
        return F.cross_entropy(one @ two.T / 0.05, torch.arange(len(one)))

    return setup(Wrong(), loss, pairs(), truth=true("sample", "batch", "axis"))


def images(count: int = 3, seed: int = 4) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(seed)
    x = [F.interpolate(torch.rand(8, 3, 4, 4, generator=g), 16, mode="bilinear") for _ in range(count)]
    return [(a, torch.randint(0, 10, (8,), generator=g)) for a in x]


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.pos = nn.Conv2d(3, D, 4, 4), nn.Parameter(0.02 * torch.randn(1, 16, D))
        self.blocks = nn.ModuleList([Block(False) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def case_bytes_as_images(broken: bool) -> Setup:
    """Images of 0 to 255 are not divided."""
    scale = 255 if broken else 1
    return setup(
        Patches(), classify, [(x * scale, y) for x, y in images()], truth=true("scale", "255", "normaliz")
    )


def case_view_for_permute(broken: bool) -> Setup:
    """Channels last become channels first by `view`: pixels are mixed."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return F.cross_entropy(model(x.reshape(8, 3, 16, 16) if broken else x.permute(0, 3, 1, 2)), y)

    batches = [(x.permute(0, 2, 3, 1).contiguous(), y) for x, y in images()]
    return setup(Patches(), loss, batches, truth=true("reshape", "view", "permute", "mixed", "channel"))


def case_target_column(broken: bool) -> Setup:
    """Predictions (rows, 1) and targets (rows,) broadcast to a square."""
    model = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 1))
    g = torch.Generator().manual_seed(5)
    batches = [
        (x, x.sum(1) if broken else x.sum(1, keepdim=True)) for x in torch.randn(3, 16, 12, generator=g)
    ]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return ((model(batch[0]) - batch[1]) ** 2).mean()

    return setup(model, loss, batches, truth=true("broadcast", "shape"))


def case_distill_swapped(broken: bool) -> Setup:
    """kl_div takes log-probabilities first; here it gets probabilities."""
    model, teacher = GPT(), GPT().eval().requires_grad_(False)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        own, goal = model(ids), teacher(ids) * 3
        own = own.softmax(-1) if broken else own.log_softmax(-1)
        return F.kl_div(own.flatten(0, 1), goal.softmax(-1).flatten(0, 1), reduction="batchmean")

    return setup(model, loss, truth=true("log", "probabilit", "kl"))


def case_teacher_trained(broken: bool) -> Setup:
    """The teacher's outputs carry gradients, so that both run toward each other."""
    model = nn.ModuleDict({"student": GPT(), "teacher": GPT()})
    model["teacher"].requires_grad_(broken)

    def loss(model: nn.ModuleDict, ids: Tensor) -> Tensor:
        own, goal = model["student"](ids), model["teacher"](ids)
        return F.kl_div(
            own.log_softmax(-1).flatten(0, 1), goal.softmax(-1).flatten(0, 1), reduction="batchmean"
        )

    return setup(
        model, loss, optimizer=adam(model["student"]), truth=true("target", "teacher", "not in the optimizer")
    )


def case_item_in_sum(broken: bool) -> Setup:
    """One of two losses is added as a number: it trains nothing."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.second = GPT(), nn.Linear(D, 5)

    def loss(model: Heads, ids: Tensor) -> Tensor:
        h = model.body.body(ids[:, :-1])
        first = F.cross_entropy(model.body.head(h).flatten(0, 1), ids[:, 1:].flatten())
        second = F.cross_entropy(model.second(h).flatten(0, 1), (ids[:, 1:] % 5).flatten())
        return first + (second.item() if broken else second)

    return setup(Heads(), loss, truth=true("no gradient", "loss", places=["second"]))


def case_source_not_used(broken: bool) -> Setup:
    """Cross-attention takes its keys and values from the decoder itself."""

    class Translate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder, self.cross = GPT(2, False), GPT(2), Block(False)

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            memory, x = self.encoder.body(source), self.decoder.body(target)
            if broken:
                n = x.shape[1]
                x = torch.stack([self.cross(x[:, : i + 1])[:, -1] for i in range(n)], 1) + 0 * memory.mean()
            else:
                x = self.cross(x, memory=memory)
            return self.decoder.head(x)

    def loss(model: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(pair[0], pair[1][:, :-1]).flatten(0, 1), pair[1][:, 1:].flatten())

    return setup(
        Translate(),
        loss,
        [(b[:, :10], b[:, 10:]) for b in text()],
        truth=true("source", "input", "gradient", "reach"),
    )


def case_zero_grad_in_parts(broken: bool) -> Setup:
    """Gradients are cleared before every part of an accumulated batch."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for part in batch.chunk(3):
            if broken:
                optimizer.zero_grad()
            loss = next_word(model, part) / 3
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    return setup(GPT(), step=step, truth=true("zero_grad", "cleared"))


def case_rotary_by_head(broken: bool) -> Setup:
    """Rotary angles run over heads, not over tokens."""

    class Rotary(Block):
        def forward(self, x: Tensor, keep: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
            h = self.n1(x)
            q, (k, v) = self.q(h), self.kv(h).chunk(2, -1)
            q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in (q, k, v))
            steps = torch.arange(q.shape[1 if broken else 2])
            angle = steps[:, None] * 100.0 ** (-torch.arange(6) / 6)
            angle = angle[:, None] if broken else angle
            q, k = (
                torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
                for a, b in (t.chunk(2, -1) for t in (q, k))
            )
            y = F.scaled_dot_product_attention(q, k, v)
            x = x + self.o(y.transpose(1, 2).flatten(2))
            return x + self.mlp(self.n2(x))

    class Encoder(GPT):
        def body(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
            x = self.tok(ids)
            for block in self.blocks:
                x = block(x)
            return self.norm(x)

    model = Encoder(causal=False)
    model.blocks = nn.ModuleList([Rotary() for _ in range(3)])
    g = torch.Generator().manual_seed(2)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        ids, hidden = batch
        return F.cross_entropy(
            model(ids.masked_fill(hidden, 1)).flatten(0, 1), ids.masked_fill(~hidden, -100).flatten()
        )

    return setup(
        model,
        loss,
        [(b, torch.rand(b.shape, generator=g) < 0.2) for b in text()],
        truth=true("order", "position"),
    )


def case_half_without_scaler(broken: bool) -> Setup:
    """float16 outputs whose gradients underflow: the mean over many tokens, no scaler."""
    model = GPT()
    model.half() if broken else model

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return next_word(model, ids) * 1e-4

    return setup(
        model,
        loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e3),
        truth=true("underflow", "half", "float16", "no gradient", "zero gradient"),
    )


def case_double_scale(broken: bool) -> Setup:
    """Scores are divided by the root of the width twice: once by hand, once inside."""
    model = GPT()

    class Twice(Block):
        def forward(self, x: Tensor, keep: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
            h = self.n1(x)
            q, (k, v) = self.q(h), self.kv(h).chunk(2, -1)
            q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in (q, k, v))
            q = q / math.sqrt(q.shape[-1]) if broken else q
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(y.transpose(1, 2).flatten(2))
            return x + self.mlp(self.n2(x))

    model.blocks = nn.ModuleList([Twice() for _ in range(3)])
    return setup(model, truth=true("scale", "attention"))


def case_old_moments(broken: bool) -> Setup:
    """Resumed: the optimizer's state belongs to other parameters of the same shapes."""
    model = GPT()
    optimizer = adam(model)
    for batch in text(30, seed=9):
        optimizer.zero_grad()
        next_word(model, batch).backward()
        optimizer.step()
    groups = list(model.parameters())
    fresh = torch.optim.AdamW(groups[::-1] if broken else groups, lr=1e-3)
    state = optimizer.state_dict()
    if broken:
        shapes = [p.shape for p in groups[::-1]]
        old = dict(state["state"])
        new = {}
        for i, shape in enumerate(shapes):
            j = next(
                (
                    j
                    for j, s in old.items()
                    if s["exp_avg"].shape == shape and j not in [x[0] for x in new.values()]
                ),
                None,
            )
            new[i] = (j, old[j])
        state["state"] = {i: s for i, (_, s) in new.items()}
    fresh.load_state_dict(state)
    return setup(model, optimizer=fresh, truth=true("state optimizer", "moment"))


def case_recurrent_last(broken: bool) -> Setup:
    """The state after padding is read, not the one at the last word."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tok, self.rnn, self.head = (
                nn.Embedding(V, D),
                nn.GRU(D, D, batch_first=True),
                nn.Linear(D, 4),
            )

        def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
            y = self.rnn(self.tok(ids))[0]
            last = torch.full((len(ids),), N - 1) if broken else keep.sum(1) - 1
            return self.head(y[torch.arange(len(ids)), last])

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["ids"], batch["keep"]), batch["label"])

    batches = [b | {"label": b["ids"][:, 0] % 4} for b in padded()]
    return setup(Tagger(), loss, batches, truth=true("padding"))


def case_weights_clamped(broken: bool) -> Setup:
    """The optimizer holds copies of the weights (a dictionary of clones)."""
    model = GPT()
    held = (
        [p.detach().clone().requires_grad_() for p in model.parameters()]
        if broken
        else list(model.parameters())
    )
    return setup(model, optimizer=torch.optim.AdamW(held, lr=1e-3), truth=true("optimizer"))


@functools.cache
def trained() -> dict[str, Tensor]:
    """Weights after a few hundred steps."""
    torch.manual_seed(1)
    model = GPT()
    optimizer = adam(model, 3e-3)
    for batch in text(200, seed=0):
        optimizer.zero_grad()
        next_word(model, batch).backward()
        optimizer.step()
    return {k: v.clone() for k, v in model.state_dict().items()}


def case_prefix_not_loaded(broken: bool) -> Setup:
    """A checkpoint whose names have a prefix is loaded with strict=False: half of it is ignored."""
    model = GPT()
    state = {("module." + k if broken and k.startswith("blocks") else k): v for k, v in trained().items()}
    model.load_state_dict(state, strict=False)
    return setup(model, optimizer=adam(model, 1e-4), truth=true("loaded", "fresh", "untrained"))


def case_rows_of_other_vocabulary(broken: bool) -> Setup:
    """A trained model is fed ids of another tokenizer: its words are permuted."""
    model = GPT()
    model.load_state_dict(trained())
    order = torch.randperm(V, generator=torch.Generator().manual_seed(8)) if broken else torch.arange(V)
    return setup(
        model, batches=[order[b] for b in text()], optimizer=adam(model, 1e-4), truth=true("loss", "vocab")
    )
