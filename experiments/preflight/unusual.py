"""Healthy trainings of unusual kinds, each small: nothing but notes may be said of them."""

# ruff: noqa: ARG001  a step has one signature

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset

V, D, T, B = 48, 32, 16, 8
Made = dict[str, Any]


class Net(nn.Module):
    """Tokens (or vectors) to states and outputs; causal or not."""

    def __init__(
        self,
        out: int = V,
        causal: bool = True,
        given: int = 0,
        layers: int = 2,
        dropout: float = 0.0,
        length: int = 4 * T,
    ) -> None:
        super().__init__()
        self.embed: nn.Module = nn.Linear(given, D) if given else nn.Embedding(V, D)
        self.place = nn.Parameter(0.1 * torch.randn(length, D))
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, dropout, F.gelu, batch_first=True, norm_first=True)
        self.body = nn.ModuleList([copy.deepcopy(layer) for _ in range(layers)])
        for block in self.body:
            for p in block.parameters():
                if p.dim() > 1:
                    nn.init.xavier_uniform_(p)
        self.norm, self.head, self.causal = nn.LayerNorm(D), nn.Linear(D, out), causal

    def states(
        self, x: Tensor, pad: Tensor | None = None, mask: Tensor | None = None, more: Tensor | None = None
    ) -> Tensor:
        h = self.embed(x) + self.place[: x.shape[1]]
        if more is not None:
            h = h + more
        if mask is None and self.causal:
            mask = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).triu(1)
        for block in self.body:
            h = block(h, src_mask=mask, src_key_padding_mask=pad)
        return self.norm(h)

    def forward(
        self, x: Tensor, pad: Tensor | None = None, mask: Tensor | None = None, more: Tensor | None = None
    ) -> Tensor:
        return self.head(self.states(x, pad, mask, more))


def text(k: int, rows: int = B, length: int = T, low: int = 3) -> Tensor:
    g = torch.Generator().manual_seed(k)
    ids = torch.randint(low, V, (rows, length), generator=g)
    for t in range(2, length):
        keep = torch.rand(rows, generator=g) < 0.2
        ids[:, t] = torch.where(keep, ids[:, t], (3 * ids[:, t - 1] + ids[:, t - 2]) % (V - low) + low)
    return ids


def texts() -> list[Tensor]:
    return [text(k) for k in range(4)]


def floats(*shape: int) -> list[Tensor]:
    return [torch.randn(*shape, generator=torch.Generator().manual_seed(k)) for k in range(4)]


def following(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def made(
    model: nn.Module, loss: Callable[..., Tensor] | None, batches: Any, rate: float = 1e-3, **rest: Any
) -> Made:
    trained = [p for p in model.parameters() if p.requires_grad]
    return {
        "model": model,
        "loss": loss,
        "batches": batches,
        "optimizer": torch.optim.AdamW(trained, rate),
    } | rest


def pretrained(net: nn.Module, loss: Callable[..., Tensor], batches: list[Any], steps: int = 40) -> nn.Module:
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    for k in range(steps):
        optimizer.zero_grad()
        loss(net, batches[k % len(batches)]).backward()
        optimizer.step()
    optimizer.zero_grad()
    return net


def plain(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def step(model: nn.Module, optimizer: Any, batch: Any, k: int) -> Tensor:
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        return value

    return step


# --- contrasts ---
def control_two_views_temperature_half() -> Made:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        views = torch.cat([ids, ids.roll(1, 1)])
        z = F.normalize(model(views).mean(1), dim=-1)
        scores = (z @ z.T / 0.5).masked_fill(torch.eye(2 * B, dtype=torch.bool), -1e9)
        return F.cross_entropy(scores, torch.arange(2 * B).roll(B))

    return made(Net(16, causal=False), loss, texts())


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Net(16, causal=False), Net(16, causal=False, given=12)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        a, b = (F.normalize(n(t).mean(1), dim=-1) for n, t in ((self.one, ids), (self.two, x)))
        return self.scale.exp() * a @ b.T


def control_two_towers() -> Made:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        scores, right = model(*batch), torch.arange(B)
        return (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right)) / 2

    return made(Towers(), loss, list(zip(texts(), floats(B, T, 12), strict=True)))


def control_two_towers_with_sigmoids() -> Made:
    model = Towers()
    model.bias = nn.Parameter(torch.tensor(-10.0))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        signs = 2 * torch.eye(B) - 1
        return -F.logsigmoid(signs * (model(*batch) + model.bias)).sum() / B

    return made(model, loss, list(zip(texts(), floats(B, T, 12), strict=True)))


def control_triplets() -> Made:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        a, p, n = (F.normalize(model(x).mean(1), dim=-1) for x in batch)
        return F.triplet_margin_loss(a, p, n, margin=0.3)

    batches = [(text(k), text(k).roll(1, 1), text(k + 50)) for k in range(4)]
    return made(Net(16, causal=False), loss, batches)


def control_few_shots() -> Made:
    """Prototypes of the support in the batch."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        ids, y = batch
        z = model(ids).mean(1)
        centers = torch.stack([z[:8][y[:8] == c].mean(0) for c in range(4)])
        return F.cross_entropy(-torch.cdist(z[8:], centers).square(), y[8:])

    batches = [(text(k, 16), torch.arange(4).repeat(4)) for k in range(4)]
    return made(Net(16, causal=False), loss, batches)


def control_cosine_classes() -> Made:
    class Cosines(Net):
        def forward(self, x: Tensor) -> Tensor:
            z = F.normalize(self.states(x).mean(1), dim=-1)
            return 16 * z @ F.normalize(self.head.weight, dim=-1).T

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    model = Cosines(10, causal=False)
    model.head = nn.Linear(D, 10, bias=False)
    return made(model, loss, [(x, x[:, 3] % 10) for x in texts()])


def control_momentum_target_without_negatives() -> Made:
    model = Net(16, causal=False)
    model.predict = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
    target = copy.deepcopy(model).requires_grad_(False)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        one = F.normalize(model.predict(model(ids).mean(1)), dim=-1)
        with torch.no_grad():
            two = F.normalize(target(ids.roll(1, 1)).mean(1), dim=-1)
        return (2 - 2 * (one * two).sum(-1)).mean()

    def step(model: nn.Module, optimizer: Any, batch: Any, k: int) -> Tensor:
        value = plain(loss)(model, optimizer, batch, k)
        with torch.no_grad():
            for a, b in zip(target.parameters(), model.parameters(), strict=True):
                a.lerp_(b, 0.01)
        return value

    return made(model, loss, texts(), step=step, also=[target])


def control_redundancy_reduction() -> Made:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        a, b = (model(x).mean(1) for x in (ids, ids.roll(1, 1)))
        a, b = ((x - x.mean(0)) / (x.std(0) + 1e-4) for x in (a, b))
        c = a.T @ b / len(a)
        return (c.diagonal() - 1).square().sum() + 0.005 * (c - torch.diag(c.diagonal())).square().sum()

    return made(Net(16, causal=False), loss, [text(k, 16) for k in range(4)])


# --- preferences and rewards ---
def pairs(k: int) -> dict[str, Tensor]:
    out, lengths = {}, torch.tensor([16, 12, 9, 14, 16, 10, 11, 13])
    for name, seed in (("chosen", k), ("rejected", k + 100)):
        ids = text(seed)
        mask = torch.arange(T) < lengths[:, None]
        ids = torch.where(mask, ids, 0)
        out |= {name: ids, f"{name}_mask": mask.long()}
        lengths = lengths.roll(3)
    out["rejected"][:, :4] = out["chosen"][:, :4]
    return out


def control_reward_of_the_last_token() -> Made:
    def score(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
        return model(ids)[torch.arange(len(ids)), mask.sum(1) - 1, 0]

    def loss(model: nn.Module, b: Any) -> Tensor:
        return -F.logsigmoid(
            score(model, b["chosen"], b["chosen_mask"]) - score(model, b["rejected"], b["rejected_mask"])
        ).mean()

    return made(Net(1), loss, [pairs(k) for k in range(4)])


def logp(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    out = model(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return (out * mask[:, 1:]).sum(1)


def control_preferences_with_a_reference() -> Made:
    model = pretrained(Net(), following, texts())
    reference = copy.deepcopy(model).requires_grad_(False).eval()

    def loss(model: nn.Module, b: Any) -> Tensor:
        terms = []
        for name in ("chosen", "rejected"):
            own = logp(model, b[name], b[f"{name}_mask"])
            with torch.no_grad():
                other = logp(reference, b[name], b[f"{name}_mask"])
            terms.append(own - other)
        return -F.logsigmoid(0.1 * (terms[0] - terms[1])).mean()

    return made(model, loss, [pairs(k) for k in range(4)], 1e-4)


def control_group_advantages() -> Made:
    model = pretrained(Net(), following, texts())

    def loss(model: nn.Module, b: Any) -> Tensor:
        ids, rewards, old = b
        groups = rewards.view(-1, 4)
        advantage = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
        own = model(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        ratio = (own - old).exp()
        lower = torch.minimum(ratio * advantage[:, None], ratio.clamp(0.8, 1.2) * advantage[:, None])
        return -lower.mean()

    batches = []
    for k in range(4):
        ids = text(k)
        with torch.no_grad():
            old = model(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        batches.append((ids, (ids.float().mean(1) > 24).float() + 0.1 * torch.randn(B), old))
    return made(model, loss, batches, 1e-4)


def control_policy_gradient_with_negative_returns() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        states, actions, returns = b
        return (-model(states).mean(1).log_softmax(-1).gather(1, actions[:, None])[:, 0] * returns).mean()

    batches = [(x, torch.randint(0, 4, (B,)), -torch.rand(B) - 0.1) for x in floats(B, T, 6)]
    return made(Net(4, given=6), loss, batches)


def control_values_with_a_target_network() -> Made:
    model = Net(4, given=6)
    target = copy.deepcopy(model)

    def loss(model: nn.Module, b: Any) -> Tensor:
        state, action, reward, later, done = b
        q = model(state).mean(1).gather(1, action[:, None])[:, 0]
        with torch.no_grad():
            goal = reward + 0.99 * (1 - done) * target(later).mean(1).amax(1)
        return F.smooth_l1_loss(q, goal)

    batches = [
        (x, torch.randint(0, 4, (B,)), torch.randn(B), x.roll(-1, 1), (torch.rand(B) < 0.3).float())
        for x in floats(B, T, 6)
    ]
    return made(model, loss, batches)


def control_quantiles_of_values() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        own = model(b[0]).mean(1)
        goal = b[1][:, None] + 0.5 * torch.randn(B, 8)
        level = (torch.arange(8) + 0.5) / 8
        off = goal[:, None, :] - own[:, :, None]
        huber = F.huber_loss(
            own[:, :, None].expand_as(off), goal[:, None, :].expand_as(off), reduction="none"
        )
        return ((level[None, :, None] - (off.detach() < 0).float()).abs() * huber).sum(1).mean()

    return made(Net(8, given=6), loss, [(x, x.mean((1, 2))) for x in floats(B, T, 6)])


def control_actor_and_critic() -> Made:
    class Both(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.states(x).mean(1)
            return self.head(h), self.value(h)[:, 0]

    model = Both(4, given=6)
    model.value = nn.Linear(D, 1)

    def loss(model: nn.Module, b: Any) -> Tensor:
        state, action, returns, old = b
        logits, value = model(state)
        p = torch.distributions.Categorical(logits=logits)
        advantage = returns - value.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        ratio = (p.log_prob(action) - old).exp()
        lower = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        return -lower + 0.5 * F.mse_loss(value, returns) - 0.01 * p.entropy().mean()

    batches = [
        (x, torch.randint(0, 4, (B,)), torch.randn(B), torch.full((B,), -1.386)) for x in floats(B, T, 6)
    ]
    return made(model, loss, batches)


def control_trajectories_as_tokens() -> Made:
    class Decisions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(4, given=D)
            self.give = nn.ModuleList([nn.Linear(1, D), nn.Linear(6, D), nn.Embedding(4, D)])

        def forward(self, returns: Tensor, states: Tensor, actions: Tensor) -> Tensor:
            parts = [self.give[0](returns), self.give[1](states), self.give[2](actions)]
            return self.net(torch.stack(parts, 2).flatten(1, 2))[:, 1::3]

    def loss(model: nn.Module, b: Any) -> Tensor:
        return F.cross_entropy(model(*b).flatten(0, 1), b[2].flatten())

    batches = [(torch.randn(B, 10, 1), x[:, :10], torch.randint(0, 4, (B, 10))) for x in floats(B, T, 6)]
    return made(Decisions(), loss, batches)


# --- speech, images, series ---
def control_speech() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        x, y, frames, letters = b
        return F.ctc_loss(model(x).log_softmax(-1).transpose(0, 1), y, frames, letters, zero_infinity=True)

    batches = []
    for x in floats(B, 40, 12):
        frames = torch.randint(30, 41, (B,))
        batches.append((x, torch.randint(1, 20, (B, 10)), frames, torch.randint(4, 11, (B,))))
    return made(Net(20, causal=False, given=12, length=40), loss, batches)


def control_boxes() -> Made:
    class Boxes(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.states(x)[:, :6]
            return self.head(h), self.box(h).sigmoid()

    model = Boxes(5, causal=False, given=12)
    model.box = nn.Linear(D, 4)

    def loss(model: nn.Module, b: Any) -> Tensor:
        x, kinds, boxes = b
        logits, found = model(x)
        there = kinds < 4
        weight = torch.tensor([1.0, 1, 1, 1, 0.1])
        return F.cross_entropy(logits.flatten(0, 1), kinds.flatten(), weight) + 5 * F.l1_loss(
            found[there], boxes[there]
        )

    batches = [(x, torch.randint(0, 5, (B, 6)), torch.rand(B, 6, 4)) for x in floats(B, T, 12)]
    return made(model, loss, batches)


def control_forecast_of_quantiles() -> Made:
    class Forecast(Net):
        def forward(self, x: Tensor) -> Tensor:
            mean, spread = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
            out = self.head(self.states((x - mean) / spread)[:, -1]).view(len(x), 4, 3)
            return out * spread + mean

    def loss(model: nn.Module, b: Any) -> Tensor:
        x, y = b
        off = y[..., None] - model(x)
        level = torch.tensor([0.1, 0.5, 0.9])
        return torch.maximum(level * off, (level - 1) * off).mean()

    series = [x.cumsum(1) + 5 for x in floats(B, T + 4, 1)]
    return made(Forecast(12, given=1), loss, [(x[:, :T], x[:, T:, 0]) for x in series])


class Codes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(12, D), nn.Linear(D, 12)
        self.register_buffer("book", torch.randn(32, D) / 4)
        self.register_buffer("count", torch.ones(32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.into(x)
        index = torch.cdist(z.flatten(0, 1), self.book).argmin(-1)
        code = self.book[index].view_as(z)
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(index, 32).float()
                self.count.lerp_(hot.sum(0), 0.01)
                mean = hot.T @ z.flatten(0, 1) / hot.sum(0).clamp(min=1)[:, None]
                self.book.lerp_(torch.where(hot.sum(0)[:, None] > 0, mean, self.book), 0.01)
        return self.out(z + (code - z).detach()), (z - code.detach()).square().mean()


def control_codes() -> Made:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        out, commit = model(x)
        return F.mse_loss(out, x) + 0.25 * commit

    return made(Codes(), loss, floats(B, T, 12))


class Denoise(nn.Module):
    """A block whose gates begin at zero, with a condition that is sometimes dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.kind = Net(12, causal=False, given=12), nn.Embedding(6, D)
        self.time = nn.Sequential(nn.Linear(16, D), nn.SiLU(), nn.Linear(D, 2 * D))
        nn.init.zeros_(self.time[2].weight)
        nn.init.zeros_(self.time[2].bias)
        nn.init.zeros_(self.net.head.weight)
        nn.init.zeros_(self.net.head.bias)

    def forward(self, x: Tensor, t: Tensor, kind: Tensor) -> Tensor:
        wave = torch.exp(-torch.arange(8) / 2)[None] * t[:, None] * 20
        scale, shift = self.time(torch.cat([wave.sin(), wave.cos()], -1)).chunk(2, -1)
        h = self.net.states(x, more=self.kind(kind)[:, None]) * (1 + scale[:, None]) + shift[:, None]
        return self.net.head(h)


def control_noise_with_conditions() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        x, kind = b
        t, noise = torch.rand(len(x)), torch.randn_like(x)
        kind = torch.where(torch.rand(len(x)) < 0.1, 5, kind)
        a = (math.pi / 2 * t).cos()[:, None, None]
        return F.mse_loss(model(a * x + (1 - a**2).sqrt() * noise, t, kind), noise)

    return made(Denoise(), loss, [(x, torch.randint(0, 5, (B,))) for x in floats(B, T, 12)])


def control_flow_of_patches() -> Made:
    """The target is noise minus image, cut into patches that the model's input is not."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.time = Net(16, causal=False, given=16), nn.Linear(1, D)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return self.net(cut(x), more=self.time(t[:, None])[:, None])

    def cut(x: Tensor) -> Tensor:
        return x.unfold(1, 4, 4).unfold(2, 4, 4).flatten(3).flatten(1, 2)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        t, noise = torch.rand(len(x)), torch.randn_like(x)
        mixed = (1 - t)[:, None, None] * x + t[:, None, None] * noise
        return F.mse_loss(model(mixed, t), cut(noise - x))

    return made(Patches(), loss, [x * 0.7 for x in floats(B, 16, 16)])


def control_masked_patches() -> Made:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.token = Net(12, causal=False, given=12), nn.Parameter(torch.zeros(12))

        def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
            return self.net(torch.where(hidden[..., None], self.token, x))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        hidden = torch.rand(x.shape[:2]) < 0.75
        return (model(x, hidden) - x).square().mean(-1)[hidden].mean()

    return made(Masked(), loss, floats(B, T, 12))


def control_missing_values() -> Made:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        there = ~x.isnan()
        clean = x.nan_to_num()
        shown = clean * (torch.rand(x.shape) < 0.7)
        return (model(shown) - clean).square()[there].mean()

    batches = [x.masked_fill(torch.rand(x.shape) < 0.1, math.nan) for x in floats(B, T, 12)]
    return made(Net(12, causal=False, given=12), loss, batches)


def control_additive_masks_in_the_batch() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        return F.cross_entropy(model(b["x"], mask=b["mask"])[:, :, :].flatten(0, 1), b["y"].flatten())

    mask = torch.full((T - 1, T - 1), -math.inf).triu(1)
    batches = [{"x": x[:, :-1], "y": x[:, 1:], "mask": mask} for x in texts()]
    return made(Net(), loss, batches)


def control_pointers() -> Made:
    """Begin and end of a span, as classes over the tokens."""

    def loss(model: nn.Module, b: Any) -> Tensor:
        return F.cross_entropy(model(b[0]), b[1])

    batches = [(x, torch.stack([x[:, 0] % T, x[:, 1] % T], 1)) for x in texts()]
    return made(Net(2, causal=False), loss, batches)


def control_heat_maps() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        x, goal = b
        return F.kl_div(model(x)[..., 0].log_softmax(1).view(B, 4, 4), goal, reduction="batchmean")

    batches = [(x, torch.rand(B, 16).softmax(1).view(B, 4, 4)) for x in floats(B, T, 12)]
    return made(Net(1, causal=False, given=12), loss, batches)


# --- language ---
def control_prefix_seen_from_both_sides() -> Made:
    ahead = torch.ones(T - 1, T - 1, dtype=torch.bool).triu(1)
    ahead[:, :8] = False

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        labels = ids[:, 1:].clone()
        labels[:, :7] = -100
        return F.cross_entropy(model(ids[:, :-1], mask=ahead).flatten(0, 1), labels.flatten())

    return made(Net(), loss, texts())


def control_packed_rows() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        ids, seg = b["ids"], b["segment"][:, :-1]
        mask = (seg[:, :, None] != seg[:, None]) | torch.ones(T - 1, T - 1, dtype=torch.bool).triu(1)
        return F.cross_entropy(
            model(ids[:, :-1], mask=mask.repeat_interleave(4, 0)).flatten(0, 1), ids[:, 1:].flatten()
        )

    segment = (torch.arange(T) >= 9).long().expand(B, T)
    return made(Net(), loss, [{"ids": x, "segment": segment.clone()} for x in texts()])


def control_tokens_further_ahead_on_a_frozen_body() -> Made:
    """Heads for the second and third token ahead, beside a body that stays."""
    model = pretrained(Net(), following, texts()).requires_grad_(False)
    model.ahead = nn.ModuleList([nn.Linear(D, V) for _ in range(2)])

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        h = model.states(ids)
        return sum(
            F.cross_entropy(head(h[:, : -i - 2]).flatten(0, 1), ids[:, i + 2 :].flatten())
            for i, head in enumerate(model.ahead)
        )

    return made(model, loss, texts())


def control_copy_after_a_while() -> Made:
    """A task of memory: say again what was said three tokens ago."""

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids)[:, 3:].flatten(0, 1), ids[:, :-3].flatten())

    g = torch.Generator().manual_seed(9)
    return made(Net(), loss, [torch.randint(0, V, (B, T), generator=g) for _ in range(4)])


def control_reversal() -> Made:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), ids.flip(1).flatten())

    g = torch.Generator().manual_seed(9)
    return made(Net(causal=False), loss, [torch.randint(0, V, (B, T), generator=g) for _ in range(4)])


def control_tokens_through_a_bottleneck() -> Made:
    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.narrow, self.wide = nn.Embedding(V, D), nn.Linear(D, 4), nn.Linear(4, V)

        def forward(self, ids: Tensor) -> Tensor:
            return self.wide(self.narrow(self.embed(ids)).tanh())

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    return made(Narrow(), loss, texts())


def control_words_hidden_at_random() -> Made:
    """Masked diffusion: the share that is hidden is drawn for every sample, and weighs the loss."""

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        share = torch.rand(len(ids), 1).clamp(min=0.1)
        hidden = torch.rand(ids.shape) < share
        out = model(torch.where(hidden, 0, ids))
        each = F.cross_entropy(out.flatten(0, 1), ids.flatten(), reduction="none").view_as(ids)
        return (each * hidden / share).sum() / ids.numel()

    return made(Net(causal=False), loss, texts())


def control_replaced_words() -> Made:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        swapped = torch.rand(ids.shape) < 0.15
        shown = torch.where(swapped, torch.randint(3, V, ids.shape), ids)
        return F.binary_cross_entropy_with_logits(model(shown)[..., 0], (shown != ids).float())

    return made(Net(1, causal=False), loss, texts())


class Translate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(V, D, padding_idx=0), nn.Embedding(V, D)
        self.place = nn.Parameter(0.1 * torch.randn(T, D))
        self.net = nn.Transformer(D, 4, 2, 2, 2 * D, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(D, V)

    def forward(self, source: Tensor, before: Tensor, pad: Tensor) -> Tensor:
        n = before.shape[1]
        ahead = torch.ones(n, n, dtype=torch.bool).triu(1)
        out = self.net(
            self.source(source) + self.place,
            self.target(before) + self.place[:n],
            tgt_mask=ahead,
            src_key_padding_mask=pad,
            memory_key_padding_mask=pad,
        )
        return self.head(out)


def control_translation() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        source, target, mask = b["source"], b["target"], b["mask"]
        out = model(source, target[:, :-1], mask == 0)
        return F.cross_entropy(
            out.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1
        )

    batches = []
    for k in range(4):
        mask = (torch.arange(T) < torch.tensor([16, 11, 9, 14, 12, 16, 10, 13])[:, None]).long()
        source = text(k) * mask
        target = torch.cat(
            [torch.ones(B, 1, dtype=torch.long), ((source[:, :10] + 7) % (V - 3) + 3) * mask[:, :10]], 1
        )
        batches.append({"source": source, "target": target, "mask": mask})
    return made(Translate(), loss, batches)


def control_soft_prompt() -> Made:
    model = pretrained(Net(), following, texts()).requires_grad_(False)
    model.prompt = nn.Parameter(0.1 * torch.randn(3, D))

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        h = torch.cat([model.prompt.expand(len(ids), 3, D), model.embed(ids[:, :-1])], 1)
        h = h + model.place[: h.shape[1]]
        ahead = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).triu(1)
        for block in model.body:
            h = block(h, src_mask=ahead)
        return F.cross_entropy(model.head(model.norm(h))[:, 3:].flatten(0, 1), ids[:, 1:].flatten())

    return made(model, loss, texts())


def control_one_layer_many_times() -> Made:
    class Again(Net):
        def states(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
            h = self.embed(x) + self.place[: x.shape[1]]
            ahead = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).triu(1)
            for _ in range(4):
                h = self.body[0](h, src_mask=ahead)
            return self.norm(h)

    return made(Again(layers=1), following, texts())


def control_short_windows() -> Made:
    """One output per sample, of the last token, through two windows of four."""
    near = torch.ones(T, T, dtype=torch.bool)
    near = ~(near.tril() & near.triu(-3))

    def loss(model: nn.Module, b: Any) -> Tensor:
        return F.cross_entropy(model(b[0], mask=near)[:, -1], b[1])

    return made(Net(4), loss, [(x, x[:, -2] % 4) for x in texts()])


def control_outputs_under_a_crf() -> Made:
    class Chain(Net):
        def __init__(self) -> None:
            super().__init__(5, causal=False)
            self.after = nn.Parameter(0.1 * torch.randn(5, 5))

    def loss(model: nn.Module, b: Any) -> Tensor:
        ids, y = b
        out = model(ids)
        right = out.gather(-1, y[..., None])[..., 0].sum(1) + model.after[y[:, :-1], y[:, 1:]].sum(1)
        all_ = out[:, 0]
        for t in range(1, out.shape[1]):
            all_ = torch.logsumexp(all_[:, :, None] + model.after, 1) + out[:, t]
        return (all_.logsumexp(-1) - right).mean() / T

    return made(Chain(), loss, [(x, x % 5) for x in texts()])


def control_negative_samples() -> Made:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.word, self.near = nn.Embedding(V, D), nn.Embedding(V, D)

        def forward(self, word: Tensor, others: Tensor) -> Tensor:
            return (self.word(word)[:, None] * self.near(others)).sum(-1)

    def loss(model: nn.Module, b: Any) -> Tensor:
        word, others = b
        out = model(word, others)
        return -(F.logsigmoid(out[:, 0]) + F.logsigmoid(-out[:, 1:]).sum(-1)).mean()

    batches = [(torch.randint(0, V, (64,)), torch.randint(0, V, (64, 6))) for _ in range(4)]
    return made(Pairs(), loss, batches)


# --- teachers and several losses ---
def control_distillation() -> Made:
    teacher = pretrained(Net(layers=3), following, texts()).requires_grad_(False).eval()

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        own = model(ids[:, :-1])
        with torch.no_grad():
            goal = teacher(ids[:, :-1])
        soft = (
            F.kl_div((own / 2).log_softmax(-1), (goal / 2).softmax(-1), reduction="batchmean") * 4 / (T - 1)
        )
        return 0.5 * soft + 0.5 * F.cross_entropy(own.flatten(0, 1), ids[:, 1:].flatten())

    return made(Net(), loss, texts())


def control_teacher_that_is_not_frozen() -> Made:
    """A teacher outside of the model, used without gradient only."""
    teacher = pretrained(Net(layers=3), following, texts())

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        with torch.no_grad():
            goal = teacher(ids[:, :-1]).softmax(-1)
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), goal.flatten(0, 1))

    return made(Net(), loss, texts())


def control_learned_weights_of_tasks() -> Made:
    class Tasks(Net):
        def __init__(self) -> None:
            super().__init__(6, causal=False, given=6)
            self.other, self.log = nn.Linear(D, 1), nn.Parameter(torch.zeros(2))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.states(x).mean(1)
            return self.head(h), self.other(h)[:, 0]

    def loss(model: nn.Module, b: Any) -> Tensor:
        a, c = model(b[0])
        terms = torch.stack([F.cross_entropy(a, b[1]), F.mse_loss(c, b[2])])
        return ((-model.log).exp() * terms + model.log).sum()

    return made(Tasks(), loss, [(x, (x[:, 0, 0] > 0).long() * 5, x.mean((1, 2))) for x in floats(B, T, 6)])


def control_mean_and_variance() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        mean, log = model(b[0]).mean(1).unbind(-1)
        return (0.5 * log + 0.5 * (b[1] - mean).square() * (-log).exp()).mean()

    return made(Net(2, given=6), loss, [(x, x.mean((1, 2)) * 3) for x in floats(B, T, 6)])


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, *grad: Tensor) -> Tensor:
        return -0.1 * grad[0]


class Through(torch.autograd.Function):
    """A clamp whose gradient passes."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clamp(-1, 1)

    @staticmethod
    def backward(_: Any, *grad: Tensor) -> Tensor:
        return grad[0]


def control_domains_by_hand() -> Made:
    model = Net(4, causal=False)
    model.domain = nn.Linear(D, 1)

    def loss(model: nn.Module, b: Any) -> Tensor:
        h = model.states(b[0]).mean(1)
        domain = model.domain(Reverse.apply(h))[:, 0]
        confusion = -(b[2] * F.logsigmoid(domain) + (1 - b[2]) * F.logsigmoid(-domain)).mean()
        return F.cross_entropy(model.head(h), b[1]) + confusion

    return made(model, loss, [(x, x[:, 3] % 4, (x[:, 5] % 2).float()) for x in texts()])


def control_clamp_with_a_gradient() -> Made:
    class Clamped(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(Through.apply(self.states(x)))

    return made(Clamped(), following, texts())


def control_counts() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        return F.poisson_nll_loss(model(b[0]).mean(1)[:, 0], b[1])

    return made(Net(1, given=6), loss, [(x, torch.poisson(torch.full((B,), 3.0))) for x in floats(B, T, 6)])


def control_rankings() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        scores = model(b[0]).mean(1)[:, 0]
        margin = scores[:, None] - scores[None]
        better = (b[1][:, None] > b[1][None]).float()
        return (F.softplus(-margin) * better).sum() / better.sum()

    return made(Net(1, given=6), loss, [(x, torch.randint(0, 5, (B,))) for x in floats(B, T, 6)])


def control_lists_of_documents() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        scores = model(b[0].flatten(0, 1)).mean(1)[:, 0].view(B, 5)
        return -(b[1].softmax(-1) * scores.log_softmax(-1)).sum(-1).mean()

    return made(
        Net(1, given=6),
        loss,
        [(torch.randn(B, 5, T, 6), torch.randint(0, 4, (B, 5)).float()) for _ in range(4)],
    )


def control_survival() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        x, time, seen = b
        risk = model(x).mean(1)[:, 0]
        later = (time[None] >= time[:, None]).float()
        total = (risk[None] + (later + 1e-12).log()).logsumexp(1)
        return -((risk - total) * seen).sum() / seen.sum()

    return made(
        Net(1, given=6), loss, [(x, torch.rand(B), (torch.rand(B) < 0.8).float()) for x in floats(B, T, 6)]
    )


def control_one_class() -> Made:
    """Distances to a fixed center: the target is the same for all."""
    center = torch.full((8,), 0.5)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return F.mse_loss(model(x).mean(1), center.expand(len(x), 8))

    return made(Net(8, given=6), loss, floats(B, T, 6))


def control_information() -> Made:
    """A lower bound of the mutual information: its loss has no obvious end."""

    def loss(model: nn.Module, b: Any) -> Tensor:
        x, y = b
        joint = model(torch.cat([x, y], -1)).mean(1)[:, 0]
        apart = model(torch.cat([x, y.roll(1, 0)], -1)).mean(1)[:, 0]
        return -(joint.mean() - (apart.logsumexp(0) - math.log(len(x))))

    return made(Net(1, given=12), loss, [(x, x + 0.3 * torch.randn_like(x)) for x in floats(B, T, 6)])


def control_mixed_samples() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        x, y = b
        share, order = 0.7, torch.randperm(len(x))
        out = model(share * x + (1 - share) * x[order]).mean(1)
        return share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y[order])

    return made(
        Net(4, causal=False, given=6), loss, [(x, torch.randint(0, 4, (B,))) for x in floats(B, T, 6)]
    )


def control_imitation_of_noise() -> Made:
    """Random network distillation: a fixed random network is imitated."""
    fixed = Net(8, given=6).requires_grad_(False)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return F.mse_loss(model(x), fixed(x))

    return made(Net(8, given=6), loss, floats(B, T, 6), also=[fixed])


def control_likelihood_that_is_maximized() -> Made:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return -following(model, ids)

    model = Net()
    return made(model, loss, texts()) | {
        "optimizer": torch.optim.AdamW(model.parameters(), 1e-3, maximize=True)
    }


# --- loops ---
def control_head_alone_in_the_optimizer() -> Made:
    model = pretrained(
        Net(4, causal=False, given=6), lambda m, b: m(b[0]).square().mean(), [(x,) for x in floats(B, T, 6)]
    )

    def loss(model: nn.Module, b: Any) -> Tensor:
        with torch.no_grad():
            h = model.states(b[0]).mean(1)
        return F.cross_entropy(model.head(h), b[1])

    batches = [(x, torch.randint(0, 4, (B,))) for x in floats(B, T, 6)]
    model.requires_grad_(False).head.requires_grad_(True)
    return made(model, loss, batches)


def control_two_optimizers() -> Made:
    model = Net()
    two = [p for p in model.body.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if not any(p is q for q in two)]
    first, second = torch.optim.SGD(two, 0.02, momentum=0.9, nesterov=True), torch.optim.AdamW(rest, 1e-3)

    def step(model: nn.Module, optimizer: Any, batch: Any, k: int) -> Tensor:
        value = following(model, batch)
        value.backward()
        for each in (optimizer, second):
            each.step()
            each.zero_grad()
        return value

    return {
        "model": model,
        "loss": following,
        "batches": texts(),
        "optimizer": first,
        "step": step,
        "also": [second],
    }


def adversaries(apart: bool) -> Made:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.make = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 12))
            self.judge = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 1))

        def forward(self, z: Tensor) -> Tensor:
            return self.make(z)

    model = Both()
    first, second = (
        torch.optim.Adam(model.make.parameters(), 2e-4, (0.5, 0.999)),
        torch.optim.Adam(model.judge.parameters(), 2e-4, (0.5, 0.999)),
    )
    judged = F.binary_cross_entropy_with_logits

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        out = model.judge(model(torch.randn(len(x), 8)))
        return judged(out, torch.ones_like(out))

    def step(model: nn.Module, optimizer: Any, x: Tensor, k: int) -> Tensor:
        fake = model(torch.randn(len(x), 8))
        real, made_up = model.judge(x), model.judge(fake.detach() if apart else fake)
        second.zero_grad()
        (judged(real, torch.ones_like(real)) + judged(made_up, torch.zeros_like(made_up))).backward(
            retain_graph=not apart
        )
        second.step()
        optimizer.zero_grad()
        value = loss(model, x)
        value.backward()
        optimizer.step()
        return value

    return {
        "model": model,
        "loss": loss,
        "batches": floats(16, 12),
        "optimizer": first,
        "step": step,
        "also": [second],
    }


def control_adversaries() -> Made:
    return adversaries(True)


def control_adversaries_without_detach() -> Made:
    return adversaries(False)


def control_critic_with_penalty() -> Made:
    critic = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))
    make = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 12))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            fake = make(torch.randn(len(x), 8))
        share = torch.rand(len(x), 1)
        between = (share * x + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
        return model(fake).mean() - model(x).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()

    optimizer = torch.optim.Adam(critic.parameters(), 1e-4, (0.0, 0.9))
    return {"model": critic, "loss": loss, "batches": floats(16, 12), "optimizer": optimizer, "also": [make]}


def control_accumulation_over_calls() -> Made:
    model = Net()

    def step(model: nn.Module, optimizer: Any, batch: Any, k: int) -> Tensor:
        value = following(model, batch)
        (value / 4).backward()
        if (k + 1) % 4 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return value

    return made(model, following, texts(), step=step)


def control_sharpness_aware_steps() -> Made:
    model = Net()

    def step(model: nn.Module, optimizer: Any, batch: Any, k: int) -> Tensor:
        optimizer.zero_grad()
        following(model, batch).backward()
        kept = [p.detach().clone() for p in model.parameters()]
        size = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p.add_(0.05 * p.grad / size)
        optimizer.zero_grad()
        value = following(model, batch)
        value.backward()
        with torch.no_grad():
            for p, old in zip(model.parameters(), kept, strict=True):
                p.copy_(old)
        optimizer.step()
        return value

    return made(model, following, texts(), step=step)


def control_closure() -> Made:
    model = Net(1, causal=False, given=6)

    def loss(model: nn.Module, b: Any) -> Tensor:
        return F.mse_loss(model(b[0]).mean(1)[:, 0], b[1])

    def step(model: nn.Module, optimizer: Any, batch: Any, k: int) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            return value

        return optimizer.step(closure)

    x = floats(B, T, 6)[0]
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    return {
        "model": model,
        "loss": loss,
        "batches": [(x, x.mean((1, 2)))] * 3,
        "optimizer": optimizer,
        "step": step,
    }


def control_inner_optimizer() -> Made:
    """Meta-learning: a copy is adapted in every step, and its gradient is that of the weights."""
    model = Net(1, given=6)

    def loss(model: nn.Module, b: Any) -> Tensor:
        return F.mse_loss(model(b[0]).mean(1)[:, 0], b[1])

    def step(model: nn.Module, optimizer: Any, batch: Any, k: int) -> Tensor:
        fast = copy.deepcopy(model)
        inner = torch.optim.SGD(fast.parameters(), 0.01)
        for _ in range(3):
            inner.zero_grad()
            value = loss(fast, batch)
            value.backward()
            inner.step()
        optimizer.zero_grad()
        for p, q in zip(model.parameters(), fast.parameters(), strict=True):
            p.grad = p.detach() - q.detach()
        optimizer.step()
        return value

    batches = [(x, x.mean((1, 2))) for x in floats(B, T, 6)]
    return made(model, loss, batches, step=step)


def control_gradient_through_a_step() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        weights = dict(model.named_parameters())
        first = F.mse_loss(functional_call(model, weights, (b[0],)).mean(1)[:, 0], b[1])
        slopes = torch.autograd.grad(first, list(weights.values()), create_graph=True, allow_unused=True)
        fast = {
            n: p if g is None else p - 0.01 * g for (n, p), g in zip(weights.items(), slopes, strict=True)
        }
        return F.mse_loss(functional_call(model, fast, (b[2],)).mean(1)[:, 0], b[3])

    batches = [(x, x.mean((1, 2)), -x, -x.mean((1, 2))) for x in floats(B, T, 6)]
    model = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))
    return made(model, loss, batches)


def control_rate_set_by_hand() -> Made:
    model = Net()

    def step(model: nn.Module, optimizer: Any, batch: Any, k: int) -> Tensor:
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, (k + 1) / 100)
        return plain(following)(model, optimizer, batch, k)

    return made(model, following, texts(), 0.0, step=step)


def control_clipped_critic() -> Made:
    model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))

    def loss(model: nn.Module, b: Any) -> Tensor:
        return model(b[1]).mean() - model(b[0]).mean()

    def step(model: nn.Module, optimizer: Any, batch: Any, k: int) -> Tensor:
        value = plain(loss)(model, optimizer, batch, k)
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(-0.05, 0.05)
        return value

    batches = [(x, x.roll(1, 1) + 0.5) for x in floats(16, 12)]
    optimizer = torch.optim.RMSprop(model.parameters(), 5e-5)
    return {"model": model, "loss": loss, "batches": batches, "optimizer": optimizer, "step": step}


def control_average_in_the_step() -> Made:
    model = Net()
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999)
    )

    def step(model: nn.Module, optimizer: Any, batch: Any, k: int) -> Tensor:
        value = plain(following)(model, optimizer, batch, k)
        average.update_parameters(model)
        return value

    return made(model, following, texts(), step=step, also=[average])


def control_recomputed_blocks() -> Made:
    class Recomputed(Net):
        def states(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
            h = self.embed(x) + self.place[: x.shape[1]]
            ahead = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).triu(1)
            for block in self.body:
                h = checkpoint(block, h, ahead, use_reentrant=False)
            return self.norm(h)

    return made(Recomputed(dropout=0.1), following, texts())


def control_stream_of_batches() -> Made:
    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[Tensor]:
            for k in range(64):
                yield text(k, 1)[0]

    return made(Net(), following, DataLoader(Stream(), batch_size=B))


def control_lengths_that_grow() -> Made:
    batches = [text(k, B, 6 + 3 * k) for k in range(4)]
    return made(Net(), following, [*batches, text(9, 3, 15)])


def control_whole_data_every_step() -> Made:
    x = text(0, 32)
    return made(Net(), following, [x, x.clone(), x.clone()])


def control_state_carried_on() -> Made:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.body, self.head = (
                nn.Embedding(V, D),
                nn.GRU(D, D, batch_first=True),
                nn.Linear(D, V),
            )

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.body(self.embed(ids))[0])

    return made(Recurrent(), following, texts())


def control_experts() -> Made:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(D, 4, bias=False)
            self.experts = nn.ModuleList(
                [nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D)) for _ in range(4)]
            )
            self.balance = torch.zeros(())

        def forward(self, x: Tensor) -> Tensor:
            flat = x.flatten(0, 1)
            share = self.router(flat).softmax(-1)
            top, index = share.topk(2, -1)
            top = top / top.sum(-1, keepdim=True)
            out = torch.zeros_like(flat)
            for i, expert in enumerate(self.experts):
                rows, slot = (index == i).nonzero(as_tuple=True)
                out = out.index_add(0, rows, expert(flat[rows]) * top[rows, slot][:, None])
            self.balance = 4 * (F.one_hot(index[:, 0], 4).float().mean(0) * share.mean(0)).sum()
            return x + out.view_as(x)

    class Mixed(Net):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.ModuleList([Experts() for _ in range(2)])

        def states(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
            h = self.embed(x) + self.place[: x.shape[1]]
            ahead = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).triu(1)
            for block, mix in zip(self.body, self.mix, strict=True):
                h = mix(block(h, src_mask=ahead))
            return self.norm(h)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return following(model, ids) + 0.01 * sum(m.balance for m in model.mix)

    return made(Mixed(), loss, texts())


def control_weights_of_tokens() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        ids, weight = b
        each = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        weight = weight[:, 1:].flatten()
        return (each * weight).sum() / weight.sum()

    return made(Net(), loss, [(x, 0.5 + torch.rand(x.shape)) for x in texts()])


def control_shared_grid() -> Made:
    """A field that is asked at the same places for every sample; a code tells which one."""

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(2 + 6, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)
            )

        def forward(self, grid: Tensor, code: Tensor) -> Tensor:
            return self.net(torch.cat([grid, code[:, None].expand(-1, grid.shape[1], -1)], -1))[..., 0]

    def loss(model: nn.Module, b: Any) -> Tensor:
        return F.mse_loss(model(b["grid"], b["code"]), b["values"])

    grid, batches = torch.rand(1, 64, 2).expand(B, 64, 2).clone(), []
    for code in floats(B, 6):
        batches.append({"grid": grid, "code": code, "values": (grid @ code[:, :2, None])[..., 0].sin()})
    return made(Field(), loss, batches)


def control_targets_before_inputs() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        return -(b["a_target"] * model(b["x"]).mean(1).log_softmax(-1)).sum(-1).mean()

    batches = [{"a_target": torch.rand(B, 4).softmax(-1), "x": x} for x in floats(B, T, 6)]
    return made(Net(4, causal=False, given=6), loss, batches)


def control_dual_variables() -> Made:
    """A constraint whose multipliers are raised while the weights go down."""

    class Constrained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.price = Net(4, causal=False), nn.Parameter(torch.zeros(32))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x).mean(1)

    model = Constrained()

    def loss(model: nn.Module, b: Any) -> Tensor:
        out = model(b[0])
        over = torch.cat([out.square().mean(0) - 0.1] * 8)
        return (
            F.cross_entropy(out, b[1]) + (model.price.relu() * over).sum() + (model.price * over).sum() * 0.01
        )

    groups = [{"params": list(model.net.parameters())}, {"params": [model.price], "maximize": True}]
    batches = [(x, x[:, 3] % 4) for x in texts()]
    return {"model": model, "loss": loss, "batches": batches, "optimizer": torch.optim.SGD(groups, 0.01)}


def control_targets_weighted_by_advantage() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        x, action, advantage = b
        return F.cross_entropy(model(x).mean(1), F.one_hot(action, 4).float() * advantage[:, None])

    batches = [(x, torch.randint(0, 4, (B,)), torch.randn(B)) for x in floats(B, T, 6)]
    return made(Net(4, given=6), loss, batches)


def control_actions_weighted_in_nll() -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        x, action, advantage = b
        return F.nll_loss(model(x).mean(1).log_softmax(-1) * advantage[:, None], action)

    batches = [(x, torch.randint(0, 4, (B,)), torch.randn(B)) for x in floats(B, T, 6)]
    return made(Net(4, given=6), loss, batches)


def control_own_initialization() -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=V, n_embd=D, n_layer=4, n_head=4, n_positions=T))
    for name, p in model.named_parameters():
        if p.dim() == 2 and "wte" not in name and "wpe" not in name:
            nn.init.orthogonal_(p, 0.7)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return model(input_ids=ids, labels=ids).loss

    return made(model, loss, texts())
