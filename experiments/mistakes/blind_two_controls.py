"""Unusual but healthy trainings of 300 steps: the controls of the blind list `blind_two.py`."""

import copy
import functools
import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.mistakes.blind_two_benches import (
    FIRST,
    IGNORED,
    PAD,
    UNKNOWN,
    WORDS,
    Batch,
    Bench,
    Bert,
    Experts,
    Vit,
    adam,
    bench,
    brackets,
    loop,
    loss_of,
    said,
    sgd,
    sortings,
    warm,
)

STEPS = 300
Case = dict[str, Any]

ONLY: dict[str, list[str]] = {
    "curriculum_jump": ["llama", "sorter"],
    "warm_restarts": ["llama", "vit"],
    "unfreezing": ["vit", "sorter"],
    "accumulation": ["gpt2", "sorter"],
    "tied_and_smoothed": ["llama", "gpt2"],
    "bfloat16_autocast": ["vit", "sorter"],
    "fine_tuning": ["vit", "llama"],
    "batch_size_changes": ["bert", "llama"],
    "source_changes": ["bert", "vit"],
    "cosine_to_zero": ["gpt2", "bert"],
    "plateau_of_a_hard_task": ["llama"],
    "known_label_noise": ["vit", "bert"],
    "tiny_batches": ["vit", "llama"],
    "experts": ["llama", "vit"],
    "dropout_and_decay": ["bert", "sorter"],
    "contrastive": ["vit"],
    "regression": ["vit", "llama"],
    "policy_gradient": ["vit", "bert"],
    "momentum_and_drops_of_the_rate": ["vit", "llama"],
    "average_beside_and_validation": ["llama", "sorter"],
    "groups_of_parameters": ["gpt2", "bert"],
    "hidden_words": ["bert"],
    "skipped_layers": ["vit"],
    "epochs_with_noise": ["vit"],
    "long_warmup": ["sorter"],
    "distillation": ["vit"],
}


def _bench(name: str, architecture: str, **options: Any) -> Bench:
    return bench(architecture, zlib.crc32(name.encode()) % 1000, **options)


def _control(model: nn.Module, step: Callable[[int], Tensor]) -> Case:
    return {"model": model, "step": step, "steps": STEPS}


def control_curriculum_jump(architecture: str) -> Case:
    """Short rows first; full length from step 150."""
    own = _bench("curriculum_jump", architecture)
    short: Callable[..., Batch] = (
        functools.partial(brackets, length=10)
        if architecture == "llama"
        else functools.partial(sortings, longest=5)
    )

    def feed(k: int) -> Batch:
        return short(own.rng, own.rows) if k < 150 else own.batch()

    return _control(own.model, loop(own, adam(own), feed))


def control_warm_restarts(architecture: str) -> Case:
    """A cosine to zero, four times."""
    own = _bench("warm_restarts", architecture)
    step = loop(own, adam(own), rate=lambda k: warm(k) * (0.5 + 0.5 * math.cos(math.pi * (k % 75) / 75)))
    return _control(own.model, step)


def control_unfreezing(architecture: str) -> Case:
    """Head first, then one layer more every 40 steps, all of them in the optimizer from the start."""
    own = _bench("unfreezing", architecture)
    layers = list(own.model.layers if architecture == "vit" else own.model.encoder)
    for layer in layers:
        layer.requires_grad_(False)

    def thaw(k: int) -> None:
        if k and k % 40 == 0 and layers:
            layers.pop().requires_grad_(True)

    return _control(own.model, loop(own, adam(own), before=thaw))


def control_accumulation(architecture: str) -> Case:
    """Four micro-batches, their mean."""
    own = _bench("accumulation", architecture)
    own.rows //= 4
    optimizer = adam(own)

    def step(_: int) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for _ in range(4):
            loss = loss_of(own.model, own.batch()) / 4
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(own.model.parameters(), 1.0)
        optimizer.step()
        return total

    return _control(own.model, step)


def control_tied_and_smoothed(architecture: str) -> Case:
    """One matrix for embedding and readout, labels smoothed by 0.1."""
    own = _bench("tied_and_smoothed", architecture)
    if architecture == "llama":
        own.model.head.weight = own.model.tokens.weight
    return _control(own.model, loop(own, adam(own), loss=functools.partial(loss_of, label_smoothing=0.1)))


def control_bfloat16_autocast(architecture: str) -> Case:
    """Weights in float32, products in bfloat16."""
    own = _bench("bfloat16_autocast", architecture)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = said(model, batch)
        return F.cross_entropy(logits.float().flatten(0, -2), batch.labels.flatten())

    return _control(own.model, loop(own, adam(own), loss=loss))


@functools.cache
def _pretrained(architecture: str) -> dict[str, Tensor]:
    own = _bench("pretrained", architecture)
    step = loop(own, adam(own))
    for k in range(150):
        step(k)
    return own.model.state_dict()


def control_fine_tuning(architecture: str) -> Case:
    """Trained weights and a new head learn a related task at a tenth of the rate: odd digits, two kinds of brackets."""
    own = _bench("fine_tuning", architecture)
    own.model.load_state_dict(_pretrained(architecture))
    few = torch.tensor([0, 1, 2, 1, 2, 5, 6, 5, 6])

    def feed(_: int) -> Batch:
        batch = own.batch()
        if architecture == "llama":
            return Batch((few[batch.inputs[0]],), few[batch.labels])
        return Batch(batch.inputs, batch.labels % 2)

    if architecture == "vit":
        own.model.head = nn.Linear(48, 2)
        nn.init.zeros_(own.model.head.weight)
    return _control(own.model, loop(own, adam(own, own.rate / 10), feed))


def control_batch_size_changes(architecture: str) -> Case:
    """8 rows, then 64, then 16."""
    own = _bench("batch_size_changes", architecture)

    def feed(k: int) -> Batch:
        return own.draw(own.rng, 8 if k < 100 else 64 if k < 200 else 16)

    return _control(own.model, loop(own, adam(own), feed))


def control_source_changes(architecture: str) -> Case:
    """From step 150 on most rows come from another source: other sites, or images with noise."""
    own = _bench("source_changes", architecture)

    def feed(k: int) -> Batch:
        batch = own.draw(own.rng, 2 * own.rows)
        if architecture == "vit":
            images = batch.inputs[0]
            noisy = images + 0.4 * torch.from_numpy(own.rng.standard_normal(images.shape)).float()
            return Batch((noisy if k >= 150 else images,), batch.labels).rows(slice(own.rows))
        chance = torch.from_numpy(own.rng.random(len(batch.labels)))
        wanted = chance + (batch.labels // 2 == (k >= 150)).float()
        return batch.rows(wanted.topk(own.rows).indices)

    return _control(own.model, loop(own, adam(own), feed))


def control_cosine_to_zero(architecture: str) -> Case:
    """The rate is 0 at the last step."""
    own = _bench("cosine_to_zero", architecture)
    step = loop(own, adam(own), rate=lambda k: warm(k) * (0.5 + 0.5 * math.cos(math.pi * k / (STEPS - 1))))
    return _control(own.model, step)


def control_plateau_of_a_hard_task(architecture: str) -> Case:
    """Sums modulo 53: the loss stays near chance for a hundred steps, then falls."""
    own = _bench("plateau_of_a_hard_task", architecture, vocabulary=54, width=64, depth=1)

    def feed(_: int) -> Batch:
        a, b = torch.from_numpy(own.rng.integers(0, 53, (2, 64)))
        ids = torch.stack((a, b, torch.full_like(a, 53)), 1)
        labels = torch.full_like(ids, IGNORED)
        labels[:, 2] = (a + b) % 53
        return Batch((ids,), labels)

    return _control(own.model, loop(own, adam(own, 1.5e-3), feed))


def control_known_label_noise(architecture: str) -> Case:
    """A fifth of the labels is random, by the nature of the task."""
    own = _bench("known_label_noise", architecture)
    classes = 10 if architecture == "vit" else 4

    def feed(_: int) -> Batch:
        batch = own.batch()
        other = torch.from_numpy(own.rng.integers(0, classes, own.rows))
        wrong = torch.from_numpy(own.rng.random(own.rows)) < 0.2
        return Batch(batch.inputs, torch.where(wrong, other, batch.labels))

    return _control(own.model, loop(own, adam(own), feed))


def control_tiny_batches(architecture: str) -> Case:
    """Two rows, a low rate."""
    own = _bench("tiny_batches", architecture)
    own.rows = 2
    return _control(own.model, loop(own, adam(own, own.rate / 3)))


def control_experts(architecture: str) -> Case:
    """Four experts, balanced by a second loss."""
    own = _bench("experts", architecture, experts=True)
    experts = [m for m in own.model.modules() if isinstance(m, Experts)]

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return loss_of(model, batch) + 0.02 * torch.stack([e.balance for e in experts]).mean()

    return _control(own.model, loop(own, adam(own), loss=loss))


def control_dropout_and_decay(architecture: str) -> Case:
    """Dropout 0.3 and decay 0.3."""
    own = _bench("dropout_and_decay", architecture)
    for module in own.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
    return _control(own.model, loop(own, adam(own, weight_decay=0.3)))


class Pairs(nn.Module):
    """Scaled cosines of two views of every image, with a learned scale."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale = Vit(classes=32), nn.Parameter(torch.tensor(math.log(1 / 0.2)))

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        a, b = (F.normalize(self.body(x), dim=-1) for x in (one, two))
        return self.scale.exp().clamp(max=100) * a @ b.T


def control_contrastive(architecture: str) -> Case:
    """Two views of an image among those of 31 others."""
    own = _bench("contrastive", architecture)
    own.model = Pairs()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        views = (batch.inputs[0] + 0.5 * torch.randn_like(batch.inputs[0]) for _ in range(2))
        scores, same = model(*views), torch.arange(len(batch.labels))
        return (F.cross_entropy(scores, same) + F.cross_entropy(scores.T, same)) / 2

    return _control(own.model, loop(own, adam(own, 1e-3), loss=loss))


def control_regression(architecture: str) -> Case:
    """Squared error: where the ink is, or how many brackets are open after each token."""
    one = {"make": lambda: Vit(classes=1)} if architecture == "vit" else {}
    own = _bench("regression", architecture, **one)
    if architecture == "llama":
        own.model.head = nn.Linear(48, 1)
    columns = torch.arange(8.0)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        answer, x = said(model, batch).squeeze(-1), batch.inputs[0]
        if architecture == "vit":
            ink = x + 0.8
            return F.mse_loss(answer, 2 * ((ink.sum(1) * columns).sum(1) / ink.sum((1, 2)) - 3.5))
        opened = ((x > 0) & (x < 5)).float() - (x > 4).float()
        return F.mse_loss(answer, opened.cumsum(1) / 3)

    return _control(own.model, loop(own, adam(own, own.rate / 2), loss=loss))


def control_policy_gradient(architecture: str) -> Case:
    """REINFORCE: a class is drawn, right ones are rewarded against a running mean; the loss is noise around zero."""
    own = _bench("policy_gradient", architecture)
    mean = 0.0

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        nonlocal mean
        policy = torch.distributions.Categorical(logits=said(model, batch))
        actions = policy.sample()
        reward = (actions == batch.labels).float()
        value = -((reward - mean) * policy.log_prob(actions)).mean() - 0.01 * policy.entropy().mean()
        mean = 0.9 * mean + 0.1 * float(reward.mean())
        return value

    return _control(own.model, loop(own, adam(own, 1e-3), loss=loss))


def control_momentum_and_drops_of_the_rate(architecture: str) -> Case:
    """SGD with Nesterov's momentum; the rate falls tenfold at 150 and 250."""
    own = _bench("momentum_and_drops_of_the_rate", architecture)
    step = loop(own, sgd(own, 0.1, nesterov=True), rate=lambda k: warm(k) * 0.1 ** ((k >= 150) + (k >= 250)))
    return _control(own.model, step)


def control_average_beside_and_validation(architecture: str) -> Case:
    """An average of weights in a copy, validated in eval mode every 50 steps."""
    own = _bench("average_beside_and_validation", architecture)
    average = copy.deepcopy(own.model).requires_grad_(False)

    def follow(k: int) -> None:
        with torch.no_grad():
            for a, p in zip(average.parameters(), own.model.parameters(), strict=True):
                a.lerp_(p, 0.02)
        if k % 50 == 49:
            own.score(average)
            own.score(own.model)

    return _control(own.model, loop(own, adam(own), after=follow))


def control_groups_of_parameters(architecture: str) -> Case:
    """Decay for matrices only, three times the rate for vectors."""
    own = _bench("groups_of_parameters", architecture)
    groups = [
        {"params": [p for p in own.model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {
            "params": [p for p in own.model.parameters() if p.ndim < 2],
            "weight_decay": 0.0,
            "lr": 3 * own.rate,
        },
    ]
    return _control(own.model, loop(own, torch.optim.AdamW(groups, lr=own.rate)))


class Words(Bert):
    """Says a word at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(48, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, ids == PAD)
        return self.head(x)


def control_hidden_words(architecture: str) -> Case:
    """A fifth of the words of reviews is hidden and guessed."""
    own = _bench("hidden_words", architecture, make=Words)

    def feed(_: int) -> Batch:
        ids = own.batch().inputs[0]
        hidden = (torch.from_numpy(own.rng.random(ids.shape)) < 0.2) & (ids > FIRST)
        return Batch((ids.masked_fill(hidden, UNKNOWN),), ids.masked_fill(~hidden, IGNORED))

    return _control(own.model, loop(own, adam(own, 2e-3), feed))


def control_skipped_layers(architecture: str) -> Case:
    """Stochastic depth: each layer is left out with probability 0.2."""
    own = _bench("skipped_layers", architecture)

    class Perhaps(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor, *more: Any) -> Tensor:
            return x if self.training and float(torch.rand(())) < 0.2 else self.layer(x, *more)

    own.model.layers = nn.ModuleList(Perhaps(layer) for layer in own.model.layers)
    return _control(own.model, loop(own, adam(own)))


def control_epochs_with_noise(architecture: str) -> Case:
    """Ten epochs of 960 images, shuffled, with noise and shifts."""
    own = _bench("epochs_with_noise", architecture)
    few = own.draw(own.rng, 960)
    order = np.concatenate([own.rng.permutation(960) for _ in range(10)])

    def feed(k: int) -> Batch:
        part = few.rows(torch.from_numpy(order[32 * k : 32 * k + 32]))
        images = part.inputs[0] + 0.3 * torch.from_numpy(own.rng.standard_normal((32, 8, 8))).float()
        return Batch((images.roll(int(own.rng.integers(-1, 2)), 1),), part.labels)

    return _control(own.model, loop(own, adam(own), feed))


def control_long_warmup(architecture: str) -> Case:
    """Half of the run is warm-up."""
    own = _bench("long_warmup", architecture)
    return _control(own.model, loop(own, adam(own), rate=lambda k: warm(k, 150)))


def control_distillation(architecture: str) -> Case:
    """A smaller network learns the soft answers of a trained one, at temperature 2."""
    own = _bench("distillation", architecture, depth=2, width=32)
    teacher = Vit()
    teacher.load_state_dict(_pretrained("vit"))
    teacher.eval()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with torch.no_grad():
            soft = (said(teacher, batch) / 2).log_softmax(-1)
        return 4 * F.kl_div(
            (said(model, batch) / 2).log_softmax(-1), soft, log_target=True, reduction="batchmean"
        )

    return _control(own.model, loop(own, adam(own), loss=loss))
