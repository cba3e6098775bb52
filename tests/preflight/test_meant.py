"""Healthy trainings that come near a fact about relations: nothing but notes may be said of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise
from edgewise.models.state import RandomStreams
from edgewise.preflight.evidence import TrainingEvidence, by_the_library

WORDS, WIDTH, LENGTH, ROWS = 40, 32, 16, 24
Made = dict[str, Any]


class Reader(nn.Module):
    """A small encoder; `constant` is added to the tokens of every sample."""

    def __init__(self, out: int = 4, dropout: float = 0.0, constant: Tensor | None = None) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout, batch_first=True, norm_first=True)
        self.body, self.head = (
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            nn.Linear(WIDTH, out),
        )
        self.register_buffer("constant", torch.zeros(LENGTH, WIDTH) if constant is None else constant)

    def states(self, words: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embed(words) + self.place + self.constant
        states: Tensor = self.body(x, mask)
        return states

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.head(self.states(words).mean(1))
        return out


def words(k: int) -> Tensor:
    return torch.randint(2, WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(k))


def training(model: nn.Module, loss: Callable[..., Tensor], batches: list[Any], **rest: Any) -> Made:
    return {
        "model": model,
        "batches": batches,
        "loss": loss,
        "optimizer": torch.optim.AdamW(model.parameters(), 1e-3),
        **rest,
    }


def labeled() -> list[tuple[Tensor, Tensor]]:
    return [(words(k), words(k)[:, 3] % 4) for k in range(4)]


def classes(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def agreement_with_itself() -> Made:
    """Two passes with other dropout, which are pulled together: gradients of equal ids are opposite."""

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        one, two = (F.normalize(model(ids), dim=-1) for _ in range(2))
        return F.mse_loss(one, two) + (torch.eye(16) - torch.corrcoef(one.T)).pow(2).mean()

    return training(Reader(16, dropout=0.1), loss, [words(k) for k in range(4)])


class Coder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.moments, self.outlet = nn.Linear(48, 32), nn.Linear(32, 16), nn.Linear(8, 48)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.moments(F.gelu(self.inlet(x))).chunk(2, -1)
        return self.outlet(mean + torch.randn_like(mean) * (0.5 * spread).exp()), mean, spread


def coded(reduced: Callable[[Tensor], Tensor]) -> Made:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        out, mean, spread = model(x)
        divergence = -0.5 * (1 + spread - mean.pow(2) - spread.exp())
        return reduced((out - x).pow(2)) + 0.01 * reduced(divergence)

    return training(Coder(), loss, [torch.randn(ROWS, 48) for _ in range(4)])


def both_terms_are_means() -> Made:
    return coded(lambda x: x.mean())


def both_terms_are_sums_over_features() -> Made:
    return coded(lambda x: x.sum(-1).mean())


def segments_beside_positions() -> Made:
    """Two halves of the text have a constant of their own: positions are learned besides."""
    halves = 0.1 * torch.randn(2, WIDTH).repeat_interleave(LENGTH // 2, 0)
    return training(Reader(constant=halves), classes, labeled())


def a_preview_from_a_fixed_seed() -> Made:
    """The step draws a preview from one seed, and puts the stream back."""
    model = Reader(dropout=0.1)

    def step(
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: tuple[Tensor, Tensor],
        k: int,  # noqa: ARG001
    ) -> Tensor:
        optimizer.zero_grad()
        value = classes(model, batch)
        value.backward()
        optimizer.step()
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            model(torch.randint(0, WORDS, (2, LENGTH)))
        return value

    return training(model, classes, labeled(), step=step)


def padding_of_any_ids() -> Made:
    """Rows end in whatever the buffer held, hidden by the mask and ignored by the labels alike."""
    model = Reader(WORDS)
    batches = []
    for k in range(4):
        real = torch.arange(LENGTH) < torch.randint(
            8, LENGTH + 1, (ROWS, 1), generator=torch.Generator().manual_seed(k)
        )
        text = (words(k)[:, :1] - 2 + 3 * torch.arange(LENGTH)) % (WORDS - 2) + 2
        ids = torch.where(real, text, words(k + 9))
        batches.append({"ids": ids, "mask": real.long(), "labels": torch.where(real, ids, -100)})

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        closed = torch.ones(LENGTH, LENGTH).triu(1).bool() | (batch["mask"] == 0)[:, None]
        closed = closed & ~torch.eye(LENGTH).bool()
        out = model.head(model.states(batch["ids"], closed.repeat_interleave(4, 0)))
        return F.cross_entropy(out[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())

    return training(model, loss, batches)


def laplace_with_a_positive_scale() -> Made:
    """Divided by a scale that softplus keeps positive, whose logarithm is taken."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        middle, raw = model(batch[0]).chunk(2, -1)
        scale = F.softplus(raw) + 1e-3
        return ((batch[1][:, None] / 2 - 1 - middle).abs() / scale + scale.log()).mean()

    return training(Reader(2), loss, labeled())


def cosines_by_hand() -> Made:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        one, two = model(batch[0]), model(batch[0].roll(1, 1))
        one, two = (x / x.pow(2).sum(-1, keepdim=True).sqrt() for x in (one, two))
        return F.cross_entropy(one @ two.T / 0.1, torch.arange(len(one)))

    return training(Reader(16), loss, labeled())


def rare_classes_weigh_more() -> Made:
    batches = [(w, (w[:, 3] > 30).long()) for w in (words(k) for k in range(4))]
    weight = torch.tensor([0.3, 0.7])
    return training(Reader(2), lambda m, b: F.cross_entropy(m(b[0]), b[1], weight=weight), batches)


def adapters_of_layers_that_run() -> Made:
    """Low-rank additions that are called, beside a list of heads of which one is used."""

    class Low(nn.Module):
        def __init__(self, inner: nn.Linear) -> None:
            super().__init__()
            self.inner, self.down = inner.requires_grad_(False), nn.Linear(inner.in_features, 2, bias=False)
            self.up = nn.Linear(2, inner.out_features, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x) + self.up(self.down(x))
            return out

    model = Reader()
    for layer in model.body.layers:
        layer.linear1 = Low(layer.linear1)
    model.head = nn.ModuleList(nn.Linear(WIDTH, 4) for _ in range(2))
    return training(model, lambda m, b: F.cross_entropy(m.head[0](m.states(b[0]).mean(1)), b[1]), labeled())


def places_on_a_page_without_boxes() -> Made:
    """Every word is at the same place of the page, and counted by a table of its own."""

    class Page(Reader):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleDict(
                {name: nn.Embedding(64, WIDTH) for name in ("position", "x_position", "y_position")}
            )

        def states(self, words: Tensor, mask: Tensor | None = None) -> Tensor:
            count, none = torch.arange(LENGTH).expand_as(words), torch.zeros_like(words)
            places = (self.tables[n](ids) for n, ids in zip(self.tables, (count, none, none), strict=True))
            states: Tensor = self.body(self.embed(words) + sum(places), mask)
            return states

    return training(Page(), classes, labeled())


def a_softmax_that_is_a_module_and_dropout_after_it() -> Made:
    class Mix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.soft, self.drop = (
                nn.Linear(WIDTH, WIDTH),
                nn.Linear(WIDTH, WIDTH),
                nn.Softmax(-1),
                nn.Dropout(0.2),
            )

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in (self.query(x), self.key(x), x))
            out: Tensor = x + (self.drop(self.soft(q @ k.mT / 8**0.5)) @ v).transpose(1, 2).flatten(2)
            return out

    model = Reader()
    model.body = nn.Sequential(Mix(), Mix())
    return training(
        model, lambda m, b: F.cross_entropy(m.head(m.body(m.embed(b[0])).mean(1)), b[1]), labeled()
    )


def adam_whose_decay_is_larger_than_a_small_gradient() -> Made:
    class Gated(Reader):
        def __init__(self) -> None:
            super().__init__()
            self.gates = nn.Parameter(torch.ones(WIDTH))

        def states(self, words: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().states(words, mask) * self.gates.sigmoid()

    made = training(Gated(), lambda m, b: classes(m, b) + (-m.gates).sigmoid().mean(), labeled())
    made["optimizer"] = torch.optim.Adam(made["model"].parameters(), 1e-3, weight_decay=0.04)
    return made


HEALTHY = [
    places_on_a_page_without_boxes,
    a_softmax_that_is_a_module_and_dropout_after_it,
    adam_whose_decay_is_larger_than_a_small_gradient,
    agreement_with_itself,
    both_terms_are_means,
    both_terms_are_sums_over_features,
    segments_beside_positions,
    a_preview_from_a_fixed_seed,
    padding_of_any_ids,
    laplace_with_a_positive_scale,
    cosines_by_hand,
    rare_classes_weigh_more,
    adapters_of_layers_that_run,
]


@pytest.mark.parametrize("make", HEALTHY, ids=lambda make: make.__name__)
def test_what_is_meant_is_no_finding(make: Callable[[], Made]) -> None:
    torch.manual_seed(0)
    made = make()
    report = edgewise.check(made.pop("model"), **made)
    assert report.ok, str(report)
    assert not [reason for _, reason in report.undecided if "failed" in reason]


class WithARule(nn.Linear):
    """A layer whose library draws weights from streams of numpy and Python, as a few do."""

    def _init_weights(self, module: nn.Module) -> None:
        scale = np.random.rand() + random.random()  # noqa: NPY002
        nn.init.normal_(module.weight, std=1 + scale)


def test_a_librarys_rule_that_is_tried_draws_from_no_stream_of_the_user() -> None:
    evidence = TrainingEvidence(WithARule(8, 8, bias=False))
    streams = RandomStreams(all_devices=False)
    assert by_the_library(evidence, "weight") in (True, False)
    assert not streams.moved()
