"""Unusual but healthy trainings of 300 steps, as development material: every alarm is false here."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.mistakes.networks import TOKENS, VOCABULARY, blocks_of, network, text

ARCHITECTURES = ("encoder", "gpt", "llama", "gpt2")
Case = dict[str, Any]
Loss = Callable[[nn.Module, Tensor, int], Tensor]


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    return getattr(out, "logits", out)


def next_token(model: nn.Module, x: Tensor, k: int = 0, **options: Any) -> Tensor:  # noqa: ARG001
    return F.cross_entropy(logits_of(model, x[:, :-1]).flatten(0, 1), x[:, 1:].flatten(), **options)


def go(
    model: nn.Module,
    optimizer: Any,
    loss: Loss = next_token,
    *,
    feed: Callable[[int], Tensor] | None = None,
    before: Callable[[int], object] = lambda k: None,
    between: Callable[[int], object] = lambda k: None,
    after: Callable[[int], object] = lambda k: None,
    steps: int = 300,
    **watch: Any,
) -> Case:
    stream = text(1)
    optimizers = optimizer if isinstance(optimizer, list) else [optimizer]

    def step(k: int) -> Tensor:
        before(k)
        for each in optimizers:
            each.zero_grad()
        value = loss(model, next(stream) if feed is None else feed(k), k)
        value.backward()
        between(k)
        for each in optimizers:
            each.step()
        after(k)
        return value.detach()

    return {"model": model, "step": step, "steps": steps, "watch": watch}


def adamw(model: nn.Module, rate: float = 3e-3, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], rate, **options)


def scheduled(optimizer: Any, at: Callable[[int], float]) -> Callable[[int], None]:
    """Set the rate of the next step."""
    first = [g["lr"] for g in optimizer.param_groups]

    def after(k: int) -> None:
        for group, rate in zip(optimizer.param_groups, first, strict=True):
            group["lr"] = rate * at(k + 1)

    after(-1)
    return after


def control_cyclic_rate(architecture: str) -> Case:
    model = network(architecture)
    optimizer = adamw(model, 6e-3)
    return go(model, optimizer, after=scheduled(optimizer, lambda k: 0.05 + abs((k % 40) / 20 - 1)))


def control_rates_by_layer(architecture: str) -> Case:
    model = network(architecture)
    blocks = list(blocks_of(model))
    inside = {id(p) for b in blocks for p in b.parameters()}
    groups = [
        {"params": list(b.parameters()), "lr": 4e-3 * 0.4 ** (len(blocks) - i)} for i, b in enumerate(blocks)
    ]
    rest = [p for p in model.parameters() if id(p) not in inside]
    return go(model, torch.optim.AdamW([*groups, {"params": rest, "lr": 4e-3}]))


class Adapter(nn.Module):
    """A frozen linear map and a low-rank one that begins at zero."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(4, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.a.T @ self.b.T


def pretrained(architecture: str, steps: int = 150) -> nn.Module:
    model, stream = network(architecture), text(5)
    optimizer = adamw(model)
    for k in range(steps):
        optimizer.zero_grad()
        next_token(model, next(stream), k).backward()
        optimizer.step()
    return model


def control_adapters(architecture: str) -> Case:
    model = pretrained(architecture).requires_grad_(False)
    for block in blocks_of(model):
        block.up, block.down = Adapter(block.up), Adapter(block.down)
    stream = text(2, shift=1)
    return go(model, adamw(model, 5e-3), feed=lambda k: next(stream))


def control_dropped_layers(architecture: str) -> Case:
    model = network(architecture)
    generator = torch.Generator().manual_seed(3)
    for block in blocks_of(model):
        own = block.forward

        def forward(x: Tensor, own: Any = own) -> Tensor:
            return x if torch.rand((), generator=generator) < 0.4 else own(x)

        block.forward = forward
    return go(model, adamw(model))


class Experts(nn.Module):
    """The best of four, by a router."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(4)
        )
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        gates = self.router(x).softmax(-1)
        best = gates.argmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            chosen = best == i
            if chosen.any():
                out[chosen] = expert(x[chosen]) * gates[chosen][:, i : i + 1]
        share = F.one_hot(best, 4).float().mean((0, 1))
        self.balance = 4 * (share * gates.mean((0, 1))).sum()
        return out


def control_experts_of_one_choice(architecture: str) -> Case:
    model = network(architecture)
    for block in blocks_of(model):
        block.up, block.down = Experts(48), nn.Identity()

    def loss(m: nn.Module, x: Tensor, k: int) -> Tensor:
        own = next_token(m, x, k)
        return own + 0.01 * sum(b.up.balance for b in blocks_of(m))

    return go(model, adamw(model), loss)


def control_distillation(architecture: str) -> Case:
    teacher, model = pretrained("gpt").eval().requires_grad_(False), network(architecture, 1)

    def loss(m: nn.Module, x: Tensor, k: int) -> Tensor:  # noqa: ARG001
        with torch.no_grad():
            goal = (logits_of(teacher, x[:, :-1]) / 2).softmax(-1)
        return 4 * F.kl_div((logits_of(m, x[:, :-1]) / 2).log_softmax(-1), goal, reduction="batchmean") / 32

    return go(model, adamw(model), loss)


class Pair(nn.Module):
    """A generator of rows and what tells them from real ones."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True, norm_first=True)
        self.make = nn.Sequential(nn.Linear(8, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 4))
        self.tell = nn.Sequential(nn.Linear(4, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 1))

    def forward(self, z: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fake = self.make(z)
        return self.tell(real).mean(1), self.tell(fake.detach()).mean(1), self.tell(fake).mean(1)


def control_adversarial_pair(architecture: str) -> Case:  # noqa: ARG001
    torch.manual_seed(0)
    model = Pair()
    a = torch.optim.Adam(model.make.parameters(), 1e-3, betas=(0.5, 0.9))
    b = torch.optim.Adam(model.tell.parameters(), 1e-3, betas=(0.5, 0.9))
    generator = torch.Generator().manual_seed(0)

    def step(k: int) -> Tensor:  # noqa: ARG001
        real = torch.randn(16, 8, 4, generator=generator).cumsum(1)
        z = torch.randn(16, 8, 8, generator=generator)
        good, bad, _ = model(z, real)
        b.zero_grad()
        value = F.softplus(-good).mean() + F.softplus(bad).mean()
        value.backward()
        b.step()
        a.zero_grad()
        F.softplus(-model(z, real)[2]).mean().backward()
        a.step()
        return value.detach()

    return {"model": model, "step": step, "steps": 300}


def control_average_beside(architecture: str) -> Case:
    model = network(architecture)
    average = copy.deepcopy(model)

    @torch.no_grad()
    def after(k: int) -> None:
        for a, p in zip(average.parameters(), model.parameters(), strict=True):
            a.lerp_(p, 0.02)
        if k % 50 == 49:
            next_token(average, next(text(9)))

    return go(model, adamw(model), after=after)


class Towers(nn.Module):
    """Two encoders of noisy views, and a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True, norm_first=True)
        self.table, self.stack = nn.Embedding(VOCABULARY, 32), nn.TransformerEncoder(layer, 2)
        self.out, self.scale = nn.Linear(32, 16), nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.out(self.stack(self.table(x)).mean(1)), dim=-1)


def control_contrast_of_views(architecture: str) -> Case:  # noqa: ARG001
    torch.manual_seed(0)
    model, generator = Towers(), torch.Generator().manual_seed(1)

    def view(x: Tensor) -> Tensor:
        other = torch.randint(0, VOCABULARY, x.shape, generator=generator)
        return torch.where(torch.rand(x.shape, generator=generator) < 0.2, other, x)

    def loss(m: nn.Module, x: Tensor, k: int) -> Tensor:  # noqa: ARG001
        scores = m(view(x)) @ m(view(x)).T * m.scale.exp().clamp(max=50)
        goal = torch.arange(len(x))
        return (F.cross_entropy(scores, goal) + F.cross_entropy(scores.T, goal)) / 2

    def feed(k: int) -> Tensor:  # noqa: ARG001
        return torch.randint(0, VOCABULARY, (16, 12), generator=generator)

    return go(model, adamw(model, 2e-3), loss, feed=feed)


def control_noise_in_a_tenth_of_batches(architecture: str) -> Case:
    model, stream = network(architecture), text(1)
    generator = torch.Generator().manual_seed(5)

    def feed(k: int) -> Tensor:  # noqa: ARG001
        x = next(stream)
        noise = torch.rand((), generator=generator) < 0.1
        return torch.randint(0, VOCABULARY, x.shape, generator=generator) if noise else x

    return go(model, adamw(model), feed=feed)


def control_small_set_by_heart(architecture: str) -> Case:
    model = network(architecture)
    stream, generator = text(1), torch.Generator().manual_seed(0)
    data = torch.cat([next(stream) for _ in range(20)])

    def feed(k: int) -> Tensor:  # noqa: ARG001
        return data[torch.randint(0, len(data), (8,), generator=generator)]

    return go(model, adamw(model, 4e-3), feed=feed)


def control_large_momentum(architecture: str) -> Case:
    model = network(architecture)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.98, nesterov=True)
    return go(model, optimizer)


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters: Any, lr: float = 3e-4, decay: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["decay"])
                p.sub_(group["lr"] * (0.9 * m + 0.1 * p.grad).sign())
                m.lerp_(p.grad, 0.01)


def control_lion(architecture: str) -> Case:
    model = network(architecture)
    return go(model, Lion(model.parameters(), 6e-4))


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                m.mul_(0.95).add_(p.grad)
                u, _, v = torch.linalg.svd(m, full_matrices=False)
                p.sub_(group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5 * u @ v)


def control_muon_and_adam(architecture: str) -> Case:
    model = network(architecture)
    inside = [p for b in blocks_of(model) for p in b.parameters() if p.dim() == 2]
    known = {id(p) for p in inside}
    rest = [p for p in model.parameters() if id(p) not in known]
    return go(model, [Muon(inside, 0.02), torch.optim.AdamW(rest, 3e-3)])


def control_adafactor(architecture: str) -> Case:
    model = network(architecture)
    return go(model, torch.optim.Adafactor(model.parameters(), 0.02))


def control_scaled_by_hand(architecture: str) -> Case:
    """A static scale of 1024, taken out of the gradients before they are clipped."""
    model = network(architecture)

    def between(k: int) -> None:  # noqa: ARG001
        for p in model.parameters():
            if p.grad is not None:
                p.grad.div_(1024)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    return go(model, adamw(model), lambda m, x, k: 1024 * next_token(m, x, k), between=between)


class TwoHeads(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.other = body, nn.Linear(VOCABULARY, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def control_tasks_in_turn(architecture: str) -> Case:
    model = TwoHeads(network(architecture))

    def loss(m: nn.Module, x: Tensor, k: int) -> Tensor:
        if k % 3:
            return next_token(m, x, k)
        logits = m.other(m(x[:, :-1]).mean(1))
        return F.cross_entropy(logits, (x[:, :-1].float().mean(1) > 15.5).long())

    return go(model, adamw(model), loss)


class Reward(nn.Module):
    def __init__(self, architecture: str) -> None:
        super().__init__()
        self.body, self.score = network(architecture), nn.Linear(VOCABULARY, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.score(self.body(x).mean(1)).squeeze(-1)


def control_reward_of_pairs(architecture: str) -> Case:
    model, generator = Reward(architecture), torch.Generator().manual_seed(2)

    def feed(k: int) -> Tensor:  # noqa: ARG001
        return torch.randint(0, VOCABULARY, (2, 16, TOKENS), generator=generator)

    def loss(m: nn.Module, x: Tensor, k: int) -> Tensor:  # noqa: ARG001
        better = (x[0] < 8).sum(1) > (x[1] < 8).sum(1)
        a, b = torch.where(better[:, None], x[0], x[1]), torch.where(better[:, None], x[1], x[0])
        return -F.logsigmoid(m(a) - m(b)).mean()

    return go(model, adamw(model, 2e-3), loss, feed=feed)


def control_sparse_gradients(architecture: str) -> Case:
    model = network(architecture)
    model.table.sparse = True
    rest = [p for p in model.parameters() if p is not model.table.weight]
    return go(model, [torch.optim.SparseAdam([model.table.weight], 3e-3), torch.optim.AdamW(rest, 3e-3)])


def control_deep_supervision(architecture: str) -> Case:
    model = network(architecture)

    def loss(m: nn.Module, x: Tensor, k: int) -> Tensor:  # noqa: ARG001
        seen: list[Tensor] = []
        hooks = [b.register_forward_hook(lambda _, __, out: seen.append(out)) for b in blocks_of(m)]
        final = next_token(m, x)
        for hook in hooks:
            hook.remove()
        each = [F.cross_entropy(m.readout(m.norm(h)).flatten(0, 1), x[:, 1:].flatten()) for h in seen[:-1]]
        return final + 0.3 * sum(each)

    return go(model, adamw(model), loss)


def control_annealed_noise_on_gradients(architecture: str) -> Case:
    model, generator = network(architecture), torch.Generator().manual_seed(0)

    def between(k: int) -> None:
        for p in model.parameters():
            p.grad.add_(torch.randn(p.shape, generator=generator), alpha=0.002 / (1 + k) ** 0.5)

    return go(model, adamw(model), between=between)


def control_sharpness_aware(architecture: str) -> Case:
    """Two passes to a step, the second one at weights that are moved up the gradient and put back."""
    model, stream = network(architecture), text(1)
    optimizer = adamw(model)

    def step(k: int) -> Tensor:  # noqa: ARG001
        x = next(stream)
        optimizer.zero_grad()
        value = next_token(model, x)
        value.backward()
        with torch.no_grad():
            size = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            moved = [p.grad * (0.05 / size) for p in model.parameters()]
            for p, e in zip(model.parameters(), moved, strict=True):
                p.add_(e)
        optimizer.zero_grad()
        next_token(model, x).backward()
        with torch.no_grad():
            for p, e in zip(model.parameters(), moved, strict=True):
                p.sub_(e)
        optimizer.step()
        return value.detach()

    return {"model": model, "step": step, "steps": 300}


def control_lookahead(architecture: str) -> Case:
    """Every five steps the weights go back half of the way."""
    model = network(architecture)
    slow = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def after(k: int) -> None:
        if k % 5 == 4:
            for s, p in zip(slow, model.parameters(), strict=True):
                s.lerp_(p, 0.5)
                p.copy_(s)

    return go(model, adamw(model, 5e-3), after=after)


def control_lengths_by_bucket(architecture: str) -> Case:
    model, stream = network(architecture), text(1)
    generator = torch.Generator().manual_seed(4)

    def feed(k: int) -> Tensor:  # noqa: ARG001
        return next(stream)[:, : int(torch.randint(6, TOKENS + 1, (), generator=generator))]

    return go(model, adamw(model), feed=feed)


def control_hidden_tokens(architecture: str) -> Case:
    model, generator = network(architecture), torch.Generator().manual_seed(4)

    def loss(m: nn.Module, x: Tensor, k: int) -> Tensor:  # noqa: ARG001
        labels = x[:, :-1].clone()
        hidden = torch.rand(labels.shape, generator=generator) < 0.15
        return F.cross_entropy(
            logits_of(m, x[:, :-1].masked_fill(hidden, 0)).flatten(0, 1),
            labels.masked_fill(~hidden, -100).flatten(),
        )

    return go(model, adamw(model), loss)


def control_harder_from_the_middle(architecture: str) -> Case:
    model = network(architecture)
    easy, hard = text(1), text(2, shift=3)
    return go(model, adamw(model), feed=lambda k: next(easy if k < 150 or k % 2 else hard))


def control_growing_kl(architecture: str) -> Case:
    """A variational bottleneck whose second term is weighted in over 100 steps."""
    model = network(architecture)
    model.spread = nn.Linear(VOCABULARY, VOCABULARY)

    def loss(m: nn.Module, x: Tensor, k: int) -> Tensor:
        logits = logits_of(m, x[:, :-1])
        log = m.spread(logits).clamp(-4, 4)
        noisy = logits + torch.randn_like(logits) * (0.5 * log).exp()
        kl = 0.5 * (log.exp() + 0.01 * logits.square() - 1 - log).mean()
        return F.cross_entropy(noisy.flatten(0, 1), x[:, 1:].flatten()) + min(1.0, k / 100) * 0.1 * kl

    return go(model, adamw(model), loss)


class Rows(nn.Module):
    """A vector for each place in, and one out."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.into, self.stack = nn.Linear(into, 32), nn.TransformerEncoder(layer, 3)
        self.out = nn.Linear(32, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.stack(self.into(x)))


def waves(k: int) -> Tensor:
    generator = torch.Generator().manual_seed(k)
    phase = torch.rand(16, 1, 4, generator=generator) * 6
    return torch.sin(phase + torch.arange(17)[None, :, None] * torch.tensor([0.2, 0.3, 0.5, 0.7]))


def control_regression_to_a_small_error(architecture: str) -> Case:  # noqa: ARG001
    torch.manual_seed(0)
    model, criterion = Rows(4, 4), nn.MSELoss()
    optimizer = adamw(model, 2e-3)
    cosine = scheduled(optimizer, lambda k: 0.5 + 0.5 * math.cos(math.pi * min(k, 300) / 300))
    return go(
        model,
        optimizer,
        lambda m, x, k: criterion(m(x[:, :-1]), x[:, 1:]),
        feed=waves,
        after=cosine,
        criterion=criterion,
    )


def control_rebuilding_hidden_patches(architecture: str) -> Case:  # noqa: ARG001
    torch.manual_seed(0)
    model, generator = Rows(4, 4), torch.Generator().manual_seed(1)

    def loss(m: nn.Module, x: Tensor, k: int) -> Tensor:  # noqa: ARG001
        hidden = torch.rand(x.shape[:2], generator=generator) < 0.6
        return (m(x.masked_fill(hidden[..., None], 0.0)) - x)[hidden].square().mean()

    return go(model, adamw(model, 2e-3), loss, feed=waves)


class Classes(nn.Module):
    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.rows = Rows(4, 16)
        self.out = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rows(x).mean(1))


def control_one_class_of_most(architecture: str) -> Case:  # noqa: ARG001
    """Nineteen rows of twenty have one label."""
    torch.manual_seed(0)
    model, generator = Classes(2), torch.Generator().manual_seed(1)
    criterion = nn.CrossEntropyLoss()

    def loss(m: nn.Module, x: Tensor, k: int) -> Tensor:  # noqa: ARG001
        rare = torch.rand(len(x), generator=generator) < 0.05
        return criterion(m(x + 0.7 * rare[:, None, None]), rare.long())

    return go(model, adamw(model, 1e-3), loss, feed=waves, criterion=criterion)


def control_accumulation_of_odd_counts(architecture: str) -> Case:
    model, stream = network(architecture), text(1)
    optimizer = adamw(model)

    def step(k: int) -> Tensor:
        count = (4, 4, 4, 1)[k % 4]
        optimizer.zero_grad()
        total = 0.0
        for _ in range(count):
            value = next_token(model, next(stream)) / count
            value.backward()
            total += float(value)
        optimizer.step()
        return torch.tensor(total)

    return {"model": model, "step": step, "steps": 200}


def control_embedding_frozen_midway(architecture: str) -> Case:
    model = network(architecture)

    def before(k: int) -> None:
        if k == 120:
            model.table.requires_grad_(False)
            model.table.weight.grad = None

    return go(model, adamw(model), before=before)


def control_new_head_midway(architecture: str) -> Case:
    model = network(architecture)
    optimizer = adamw(model)
    other = text(6, shift=2)
    stream = text(1)

    def before(k: int) -> None:
        if k == 150:
            nn.init.normal_(model.readout.weight, std=0.02)
            optimizer.state.pop(model.readout.weight, None)

    return go(model, optimizer, before=before, feed=lambda k: next(stream if k < 150 else other))


def control_one_row_a_batch(architecture: str) -> Case:
    model, stream = network(architecture), text(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    return go(
        model,
        optimizer,
        feed=lambda k: next(stream)[:1],
        between=lambda k: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    )


def control_policy_on_batches_used_four_times(architecture: str) -> Case:
    """Clipped ratios, four passes over each batch, an entropy bonus; the loss is about zero and may be negative."""
    model = network(architecture)
    optimizer = adamw(model, 5e-4)
    generator = torch.Generator().manual_seed(0)
    kept: dict[str, Tensor] = {}

    def loss(m: nn.Module, x: Tensor, k: int) -> Tensor:
        logs = logits_of(m, x if k % 4 == 0 else kept["x"]).log_softmax(-1)
        if k % 4 == 0:
            drawn = torch.multinomial(logs.detach().exp().flatten(0, 1), 1, generator=generator).view(x.shape)
            gain = (drawn == (x + 1) % VOCABULARY).float()
            kept.update(x=x, drawn=drawn, gain=(gain - gain.mean()) / (gain.std() + 1e-3))
            kept["old"] = logs.detach().gather(-1, drawn[..., None])[..., 0]
        own = logs.gather(-1, kept["drawn"][..., None])[..., 0]
        ratio = (own - kept["old"]).exp()
        gain = kept["gain"]
        entropy = -(logs.exp() * logs).sum(-1).mean()
        return -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean() - 0.01 * entropy

    def feed(k: int) -> Tensor:  # noqa: ARG001
        return torch.randint(0, VOCABULARY, (8, 16), generator=generator)

    return go(model, optimizer, loss, feed=feed)


def control_target_of_an_average(architecture: str) -> Case:  # noqa: ARG001
    """A network predicts the features of its own average for another view."""
    torch.manual_seed(0)
    model = Classes(16)
    model.guess = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    goal = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)

    def loss(m: nn.Module, x: Tensor, k: int) -> Tensor:  # noqa: ARG001
        one, two = (x + 0.3 * torch.randn(x.shape, generator=generator) for _ in range(2))
        with torch.no_grad():
            target = F.normalize(goal(two), dim=-1)
        return 2 - 2 * (F.normalize(m.guess(m(one)), dim=-1) * target).sum(-1).mean()

    @torch.no_grad()
    def after(k: int) -> None:  # noqa: ARG001
        for a, p in zip(goal.parameters(), model.parameters(), strict=True):
            a.lerp_(p, 0.01)

    return go(model, adamw(model, 1e-3), loss, feed=waves, after=after)


def control_weights_of_bounded_norm(architecture: str) -> Case:
    model = network(architecture)

    @torch.no_grad()
    def after(k: int) -> None:  # noqa: ARG001
        for p in model.parameters():
            if p.dim() == 2:
                p.mul_((2.0 / p.norm(dim=1, keepdim=True).clamp_min(1e-6)).clamp(max=1.0))

    return go(model, adamw(model), after=after)


def control_branches_that_begin_at_zero(architecture: str) -> Case:
    model = network(architecture)
    for block in blocks_of(model):
        nn.init.zeros_(block.attention.out.weight)
        nn.init.zeros_(block.down.weight)
    return go(model, adamw(model))


def control_decay_by_hand(architecture: str) -> Case:
    model = network(architecture)

    @torch.no_grad()
    def after(k: int) -> None:  # noqa: ARG001
        for p in model.parameters():
            p.mul_(1 - 3e-3 * 0.05)

    return go(model, torch.optim.Adam(model.parameters(), 3e-3), after=after)


def control_prompts_masked(architecture: str) -> Case:
    """Only the last quarter of each row counts."""
    model = pretrained(architecture)

    def loss(m: nn.Module, x: Tensor, k: int) -> Tensor:  # noqa: ARG001
        labels = x[:, 1:].clone()
        labels[:, :24] = -100
        return F.cross_entropy(logits_of(m, x[:, :-1]).flatten(0, 1), labels.flatten())

    return go(model, adamw(model, 5e-4, weight_decay=0.1), loss)


def control_hard_task_on_a_plateau(architecture: str) -> Case:  # noqa: ARG001
    """The parity of three of twelve bits: nothing for a while, then all of it."""
    torch.manual_seed(0)
    model = Rows(2, 2)
    generator = torch.Generator().manual_seed(0)

    def feed(k: int) -> Tensor:  # noqa: ARG001
        return torch.randint(0, 2, (32, 12), generator=generator)

    def loss(m: nn.Module, x: Tensor, k: int) -> Tensor:  # noqa: ARG001
        places = torch.linspace(-1, 1, 12).expand(len(x), 12)
        logits = m(torch.stack([x.float(), places], -1)).mean(1)
        return F.cross_entropy(logits, x[:, :3].sum(1) % 2)

    return go(model, adamw(model, 1e-3), loss, feed=feed)


def control_constant_then_cooled(architecture: str) -> Case:
    model = network(architecture)
    optimizer = adamw(model)
    cool = scheduled(optimizer, lambda k: min(1.0, (k + 1) / 20, max(0.0, (300 - k) / 60)))
    return go(model, optimizer, after=cool)


def control_signs_of_gradients(architecture: str) -> Case:
    model = network(architecture)

    def between(k: int) -> None:  # noqa: ARG001
        for p in model.parameters():
            p.grad.sign_()

    return go(model, torch.optim.SGD(model.parameters(), 1e-3), between=between)


def control_gradients_of_two_tasks_projected(architecture: str) -> Case:
    """What of the second task's gradient goes against the first one's is taken out."""
    model, one, two = network(architecture), text(1), text(2, shift=1)
    optimizer = adamw(model)

    def step(k: int) -> Tensor:  # noqa: ARG001
        each, values = [], []
        for x in (next(one), next(two)):
            optimizer.zero_grad()
            value = next_token(model, x)
            value.backward()
            each.append([p.grad.clone() for p in model.parameters()])
            values.append(float(value))
        for p, a, b in zip(model.parameters(), *each, strict=True):
            dot = (a * b).sum()
            p.grad = a + b - (a * (dot / a.square().sum().clamp_min(1e-12)) if dot < 0 else 0)
        optimizer.step()
        return torch.tensor(sum(values))

    return {"model": model, "step": step, "steps": 200}


def control_batches_of_four_domains(architecture: str) -> Case:
    model = network(architecture)
    sources = [text(i, shift=i) for i in range(4)]
    return go(model, adamw(model), feed=lambda k: next(sources[(k // 10) % 4]))


def control_bfloat16_weights_and_a_large_rate(architecture: str) -> Case:
    model = network(architecture).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    return go(model, optimizer, lambda m, x, k: next_token(m, x, k).float())


def control_criterion_and_warm_restarts(architecture: str) -> Case:
    model, criterion = network(architecture), nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = adamw(model, 5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 60)

    def loss(m: nn.Module, x: Tensor, k: int) -> Tensor:  # noqa: ARG001
        return criterion(logits_of(m, x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    return go(model, optimizer, loss, after=lambda k: schedule.step(), criterion=criterion)


OWN = ["gpt", "llama"]  # whose parts are named as here
ONE = ["gpt"]
ONLY: dict[str, list[str]] = {
    "adapters": OWN,
    "experts_of_one_choice": OWN,
    "deep_supervision": OWN,
    "branches_that_begin_at_zero": OWN,
    "new_head_midway": OWN,
    "embedding_frozen_midway": OWN,
    "sparse_gradients": OWN,
    "dropped_layers": OWN,
    "tasks_in_turn": ["encoder", *OWN],
    "reward_of_pairs": ["encoder", *OWN],
    "growing_kl": ["encoder", *OWN],
    "bfloat16_weights_and_a_large_rate": ["gpt", "llama"],
    "adversarial_pair": ONE,
    "contrast_of_views": ONE,
    "regression_to_a_small_error": ONE,
    "rebuilding_hidden_patches": ONE,
    "one_class_of_most": ONE,
    "target_of_an_average": ONE,
    "hard_task_on_a_plateau": ONE,
}
