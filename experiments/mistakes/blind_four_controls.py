"""Unusual but healthy runs of 300 steps for the fourth blind list."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.mistakes.blind_four_kit import Batch, Bench, Case, set_rate, usual
from experiments.preflight.blind_five_kit import generator

ONLY = {
    "texts_grow_longer": ["llama"],
    "harder_data_as_planned": ["gpt"],
    "warm_restarts": ["encoder"],
    "blocks_thawed_at_a_third": ["gpt", "encoder"],
    "accumulation_of_eight": ["vit"],
    "tied_embedding": ["gpt"],
    "light_smoothing": ["translator"],
    "autocast": ["gpt"],
    "fine_tuning": ["llama"],
    "nesterov": ["vit"],
    "cooldown_at_the_end": ["gpt"],
    "batch_grows": ["llama"],
    "average_kept_aside": ["vit"],
    "labels_of_annotators": ["encoder"],
    "tight_clipping": ["translator"],
    "long_warmup": ["vit"],
    "resumed_as_it_was": ["llama"],
    "strong_dropout": ["encoder"],
    "epochs_of_forty_batches": ["vit"],
    "two_tasks_in_turn": ["gpt"],
    "rates_by_depth": ["gpt"],
    "lion": ["llama"],
    "heavy_decay_small_rate": ["gpt"],
    "ends_with_small_rate": ["translator"],
    "mixup": ["vit"],
    "rare_classes": ["encoder"],
}


def _run(bench: Bench, optimizer: torch.optim.Optimizer | None = None, **more: object) -> Case:
    return usual(bench, optimizer, steps=300, **more)


def control_texts_grow_longer(architecture: str) -> Case:
    """8 tokens, then 16, then 24."""
    bench = Bench(architecture)

    def data(k: int) -> Batch:
        (ids,), target = bench.batch(k)
        end = 8 * (1 + min(k // 100, 2))
        return (ids[:, :end],), target[:, :end]

    return _run(bench, data=data)


def control_harder_data_as_planned(architecture: str) -> Case:
    """A curriculum: for 120 steps half of the tokens is one word, then all of the language."""
    bench = Bench(architecture)

    def data(k: int) -> Batch:
        (ids,), target = bench.batch(k)
        if k < 120:
            easy = torch.cat([ids, target[:, -1:]], 1).clone()
            easy[:, ::2] = 3
            return (easy[:, :-1],), easy[:, 1:]
        return (ids,), target

    return _run(bench, data=data)


def control_warm_restarts(architecture: str) -> Case:
    bench = Bench(architecture)
    optimizer = bench.adam()
    return _run(
        bench,
        optimizer,
        before=lambda k: set_rate(
            optimizer, bench.rate * (0.02 + 0.49 * (1 + math.cos(math.pi * (k % 75) / 75)))
        ),
    )


def control_blocks_thawed_at_a_third(architecture: str) -> Case:
    """The head and the embedding first, at step 100 the rest, at half of the rate."""
    bench = Bench(architecture)
    bench.blocks.requires_grad_(False)
    optimizer = bench.adam()

    def before(k: int) -> None:
        if k == 100:
            bench.blocks.requires_grad_(True)
            optimizer.add_param_group({"params": list(bench.blocks.parameters()), "lr": bench.rate / 2})

    return _run(bench, optimizer, before=before)


def control_accumulation_of_eight(architecture: str) -> Case:
    bench = Bench(architecture)
    optimizer = bench.adam(lr=2 * bench.rate)

    def step(k: int) -> Tensor:
        value = bench.loss(*bench.batch(k))
        (value / 8).backward()
        if k % 8 == 7:
            nn.utils.clip_grad_norm_(bench.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return value.detach()

    return {"model": bench.model, "step": step, "steps": 300, "bench": bench}


def control_tied_embedding(architecture: str) -> Case:
    return _run(Bench(architecture, tied=True))


def control_light_smoothing(architecture: str) -> Case:
    bench = Bench(architecture)

    def loss(inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
        return F.cross_entropy(bench.scores(inputs).flatten(0, -2), target.flatten(), label_smoothing=0.1)

    return _run(bench, loss=loss)


def control_autocast(architecture: str) -> Case:
    bench = Bench(architecture)

    def loss(inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return bench.loss(inputs, target)

    return _run(bench, loss=loss)


def control_fine_tuning(architecture: str) -> Case:
    """A fitted model on a task that differs a little, at a small rate."""
    bench = Bench(architecture)
    optimizer = bench.adam(lr=2 * bench.rate)
    for k in range(60):
        optimizer.zero_grad()
        bench.loss(*bench.batch(k + 240)).backward()
        optimizer.step()
    optimizer.zero_grad()
    other = torch.arange(bench.classes)
    other[:4] = torch.tensor([1, 0, 3, 2])

    def data(k: int) -> Batch:
        inputs, target = bench.batch(k)
        return inputs, other[target]

    return _run(bench, bench.adam(lr=bench.rate / 5), data=data)


def control_nesterov(architecture: str) -> Case:
    bench = Bench(architecture)
    optimizer = torch.optim.SGD(bench.model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
    return _run(bench, optimizer)


def control_cooldown_at_the_end(architecture: str) -> Case:
    """Warmup, a long plateau, and a fall to zero in the last quarter."""
    bench = Bench(architecture)
    optimizer = bench.adam()
    return _run(
        bench,
        optimizer,
        before=lambda k: set_rate(optimizer, bench.rate * min(1.0, (k + 1) / 30, (301 - k) / 75)),
    )


def control_batch_grows(architecture: str) -> Case:
    """From 4 rows to 16."""
    bench = Bench(architecture)

    def data(k: int) -> Batch:
        (ids,), target = bench.batch(k)
        rows = 4 if k < 100 else 8 if k < 200 else 16
        return (ids[:rows],), target[:rows]

    return _run(bench, data=data)


def control_average_kept_aside(architecture: str) -> Case:
    """An average of the weights in a copy of its own, judged every 50 steps."""
    bench = Bench(architecture)
    other = copy.deepcopy(bench.model)

    def after(k: int) -> None:
        with torch.no_grad():
            for old, new in zip(other.parameters(), bench.model.parameters(), strict=True):
                old.lerp_(new, 0.01)
            if (k + 1) % 50 == 0:
                bench.loss(*bench.batch(k), model=other)

    return _run(bench, after=after)


def control_labels_of_annotators(architecture: str) -> Case:
    """Every tenth label is another, as people disagree."""
    bench = Bench(architecture)
    g = generator(50)

    def data(k: int) -> Batch:
        inputs, target = bench.batch(k)
        wrong = torch.rand(len(target), generator=g) < 0.1
        return inputs, torch.where(wrong, torch.randint(bench.classes, target.shape, generator=g), target)

    return _run(bench, data=data)


def control_tight_clipping(architecture: str) -> Case:
    """A norm of 0.1 under Adam, which does not mind."""
    return _run(Bench(architecture), clip=0.1)


def control_long_warmup(architecture: str) -> Case:
    bench = Bench(architecture)
    optimizer = bench.adam()
    return _run(bench, optimizer, before=lambda k: set_rate(optimizer, bench.rate * min(1.0, (k + 1) / 150)))


def control_resumed_as_it_was(architecture: str) -> Case:
    """Model and optimizer are saved and loaded again at step 150."""
    bench = Bench(architecture)
    optimizer = bench.adam()

    def before(k: int) -> None:
        if k == 150:
            bench.model.load_state_dict(copy.deepcopy(bench.model.state_dict()))
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    return _run(bench, optimizer, before=before)


def control_strong_dropout(architecture: str) -> Case:
    return _run(Bench(architecture, dropout=0.3))


def control_epochs_of_forty_batches(architecture: str) -> Case:
    """A small data set, seen seven times in orders of its own."""
    bench = Bench(architecture)
    orders = [torch.randperm(640, generator=generator(60 + e)) for e in range(8)]

    def data(k: int) -> Batch:
        rows = orders[k // 40][16 * (k % 40) : 16 * (k % 40) + 16]
        *inputs, target = (t[rows] for t in bench.data)
        return tuple(inputs), target

    return _run(bench, data=data)


def control_two_tasks_in_turn(architecture: str) -> Case:
    """Even batches are the language, odd ones the language backwards, behind a token that says so."""
    bench = Bench(architecture)

    def data(k: int) -> Batch:
        (ids,), target = bench.batch(k)
        text = torch.cat([ids, target[:, -1:]], 1)
        text = (text.flip(1) if k % 2 else text).clone()
        text[:, 0] = 0 if k % 2 else 1
        return (text[:, :-1],), text[:, 1:]

    return _run(bench, data=data)


def control_rates_by_depth(architecture: str) -> Case:
    bench = Bench(architecture, depth=4)
    groups = [
        {"params": list(b.parameters()), "lr": bench.rate * 0.7 ** (3 - i)}
        for i, b in enumerate(bench.blocks)
    ]
    own = {id(p) for b in bench.blocks for p in b.parameters()}
    groups.append({"params": [p for p in bench.model.parameters() if id(p) not in own], "lr": bench.rate})
    return _run(bench, torch.optim.AdamW(groups))


class Lion(torch.optim.Optimizer):
    """Steps of one size, by the sign of the momentum."""

    def __init__(self, params: object, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # noqa: ARG002
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.add_(m.lerp(p.grad, 0.1).sign(), alpha=-group["lr"])
                m.lerp_(p.grad, 0.01)


def control_lion(architecture: str) -> Case:
    bench = Bench(architecture)
    return _run(bench, Lion(bench.model.parameters(), lr=4e-4))


def control_heavy_decay_small_rate(architecture: str) -> Case:
    """Weight decay 0.3 of the decoupled kind."""
    bench = Bench(architecture)
    return _run(bench, bench.adam(weight_decay=0.3))


def control_ends_with_small_rate(architecture: str) -> Case:
    """A cosine to a hundredth of the rate."""
    bench = Bench(architecture)
    optimizer = bench.adam()
    return _run(
        bench,
        optimizer,
        before=lambda k: set_rate(optimizer, bench.rate * (0.01 + 0.495 * (1 + math.cos(math.pi * k / 300)))),
    )


def control_mixup(architecture: str) -> Case:
    """Pictures and labels are laid over each other."""
    bench = Bench(architecture)
    g = generator(51)

    def loss(inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
        part = 0.6 + 0.4 * torch.rand(len(target), 1, generator=g)
        soft = F.one_hot(target, bench.classes).float()
        soft = part * soft + (1 - part) * soft.roll(1, 0)
        images = part[..., None, None] * inputs[0] + (1 - part[..., None, None]) * inputs[0].roll(1, 0)
        return F.cross_entropy(bench.scores((images,)), soft)

    return _run(bench, loss=loss)


def control_rare_classes(architecture: str) -> Case:
    """Rows of the first class are four fifths of every batch."""
    bench = Bench(architecture)
    label = bench.data[-1]
    first, rest = (label == 0).nonzero().flatten(), (label > 0).nonzero().flatten()

    def data(k: int) -> Batch:
        g = generator(7000 + k)
        rows = torch.cat(
            [
                first[torch.randint(len(first), (13,), generator=g)],
                rest[torch.randint(len(rest), (3,), generator=g)],
            ]
        )
        *inputs, target = (t[rows] for t in bench.data)
        return tuple(inputs), target

    return _run(bench, data=data)
