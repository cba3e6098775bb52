"""What belongs together stands in one order; what is given is used, and stays as it was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.preflight import unusual
from experiments.preflight.run import checked
from experiments.preflight.unusual import B, D, Made, Net, T, floats, made, plain, text, texts


def candidates(broken: bool) -> Made:
    """Four candidates of every sample, repeated one way for the inputs and another for the labels."""

    def loss(model: nn.Module, b: Any) -> Tensor:
        x, y = b
        given = x.repeat(4, 1) if broken else x.repeat_interleave(4, 0)
        return F.cross_entropy(model(given).mean(1), y.repeat_interleave(4))

    return made(Net(4, causal=False), loss, [(x, x[:, 3] % 4) for x in texts()])


def sorted_by_length(broken: bool) -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        x, y = b
        order = (x > 20).sum(1).argsort()
        return F.cross_entropy(model(x[order]).mean(1), y if broken else y[order])

    return made(Net(4, causal=False), loss, [(x, x[:, 3] % 4) for x in texts()])


def condition(broken: bool) -> Made:
    class Conditioned(Net):
        def __init__(self) -> None:
            super().__init__()
            self.kind = nn.Embedding(5, D)

        def forward(self, x: Tensor, kind: Tensor) -> Tensor:
            more = self.kind(kind)[:, None]
            return self.head(self.states(x, more=0 * more if broken else more))

    def loss(model: nn.Module, b: Any) -> Tensor:
        return F.cross_entropy(model(b[0][:, :-1], b[1]).flatten(0, 1), b[0][:, 1:].flatten())

    return made(Conditioned(), loss, [(x, torch.arange(B) % 5) for x in texts()])


def in_place(broken: bool) -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        x = b["x"].sub_(1) if broken else b["x"] - 1
        return F.cross_entropy(model(x).mean(1), b["y"])

    return made(Net(4, given=6), loss, [{"x": x, "y": torch.randint(0, 4, (B,))} for x in floats(B, T, 6)])


def second_term(broken: bool) -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        out = model(b[0]).mean(1)
        total = F.cross_entropy(out[:, :4], b[1])
        other = F.mse_loss(out[:, 4], b[2])
        return total if broken else total + 0.5 * other

    batches = [(x, torch.randint(0, 4, (B,)), x.mean((1, 2))) for x in floats(B, T, 6)]
    return made(Net(5, given=6), loss, batches)


def answers(k: int) -> dict[str, Tensor]:
    places = torch.arange(T)
    first, last = (torch.randint(*span, (B, 1)) for span in ((4, 7), (10, 13)))
    return {"ids": text(k), "answer": ((places >= first) & (places < last)).long()}


def mask_one_place_late(broken: bool) -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        scored = b["answer"][:, :-1] if broken else b["answer"][:, 1:]
        labels = b["ids"][:, 1:].masked_fill(scored == 0, -100)
        return F.cross_entropy(model(b["ids"][:, :-1]).flatten(0, 1), labels.flatten())

    return made(Net(), loss, [answers(k) for k in range(4)])


def lengths_of_others(broken: bool) -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        mask = b["mask"]
        out = model.states(b["ids"], pad=mask == 0)
        return F.cross_entropy(model.head((out * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)), b["y"])

    batches = []
    for k in range(4):
        mask = (torch.arange(T) < torch.tensor([16, 11, 7, 14, 12, 5, 10, 13])[:, None]).long()
        ids = text(k) * mask
        batches.append(
            {"ids": ids, "mask": mask[torch.arange(B).flip(0)] if broken else mask, "y": ids[:, 3] % 4}
        )
    return made(Net(4, causal=False), loss, batches)


def padded_tags(broken: bool) -> Made:
    def loss(model: nn.Module, b: Any) -> Tensor:
        out = model(b["ids"], b["mask"] == 0)
        return F.cross_entropy(out.flatten(0, 1), b["tags"].flatten())

    batches = []
    for k in range(4):
        mask = (torch.arange(T) < torch.tensor([16, 9, 7, 12, 11, 5, 10, 13])[:, None]).long()
        ids = text(k) * mask
        tags = torch.where(mask == 1, ids % 4, 0 if broken else -100)
        batches.append({"ids": ids, "mask": mask, "tags": tags})
    return made(Net(4, causal=False), loss, batches)


def second_optimizer(broken: bool) -> Made:
    model = Net()
    one = [p for n, p in model.named_parameters() if "head" not in n]
    first, second = torch.optim.AdamW(one, 1e-3), torch.optim.AdamW(model.head.parameters(), 1e-3)

    def step(model: nn.Module, optimizer: Any, batch: Any, k: int) -> Tensor:
        second.zero_grad()
        value = plain(unusual.following)(model, optimizer, batch, k)
        if not broken:
            second.step()
        return value

    return {
        "model": model,
        "loss": unusual.following,
        "batches": texts(),
        "optimizer": first,
        "step": step,
        "also": [second],
    }


def teacher_in_train_mode(broken: bool) -> Made:
    teacher = Net(dropout=0.2).requires_grad_(False).train(broken)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        with torch.no_grad():
            goal = teacher(ids).softmax(-1)
        return F.cross_entropy(model(ids).flatten(0, 1), goal.flatten(0, 1))

    return made(Net(), loss, texts(), also=[teacher])


def own_negative(broken: bool) -> Made:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        z = F.normalize(model(torch.cat([ids, ids.roll(1, 1)])).mean(1), dim=-1)
        scores = z @ z.T / 0.2
        scores = scores if broken else scores.masked_fill(torch.eye(2 * B, dtype=torch.bool), -1e9)
        return F.cross_entropy(scores, torch.arange(2 * B).roll(B))

    return made(Net(16, causal=False), loss, texts())


PAIRS: dict[str, Callable[[bool], Made]] = {
    "label of another sample": candidates,
    "label of another sample, sorted": sorted_by_length,
    "input unused": condition,
    "batch written": in_place,
    "term left out": second_term,
    "masks and lengths": mask_one_place_late,
    "masks and lengths, of others": lengths_of_others,
    "padding in the loss": padded_tags,
    "order of the step": second_optimizer,
    "mode": teacher_in_train_mode,
    "labels": own_negative,
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_broken_relation_is_named_first_and_its_twin_is_ready(name: str) -> None:
    torch.manual_seed(0)
    report = checked(PAIRS[name](True))
    assert report.problems and report.problems[0].kind == name.partition(",")[0], report
    torch.manual_seed(0)
    assert (twin := checked(PAIRS[name](False))).ok, twin


NEAR = "information whole_data_every_step"  # losses without a lower end, all data in one batch: a warning
QUICK = (
    "missing_values additive_masks_in_the_batch pointers prefix_seen_from_both_sides copy_after_a_while reversal "
    "teacher_that_is_not_frozen clamp_with_a_gradient adversaries adversaries_without_detach closure inner_optimizer "
    "rate_set_by_hand shared_grid targets_before_inputs likelihood_that_is_maximized gradient_through_a_step"
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK.split() else pytest.mark.slow)
        for case in vars(unusual)
        if (name := case.removeprefix("control_")) != case
    ],
)
def test_what_is_unusual_and_healthy_has_no_error(name: str) -> None:
    torch.manual_seed(0)
    report = checked(getattr(unusual, f"control_{name}")())
    assert report.exit_code < 2, report
    assert report.ok or name in NEAR.split(), report


class Decisions(nn.Module):
    """Returns, states and actions, in turn; an action is asked for where its state stands, or its return."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.net, self.at = Net(8, given=D), at
        self.give = nn.ModuleList([nn.Linear(1, D), nn.Linear(6, D), nn.Embedding(8, D)])

    def forward(self, returns: Tensor, states: Tensor, actions: Tensor) -> Tensor:
        parts = [self.give[0](returns), self.give[1](states), self.give[2](actions)]
        out: Tensor = self.net(torch.stack(parts, 2).flatten(1, 2))[:, self.at :: 3]
        return out


@pytest.mark.parametrize("at, ok", [(1, True), (2, False)])
def test_a_label_at_its_own_place_is_an_error_only_if_it_is_seen(at: int, ok: bool) -> None:
    def loss(model: nn.Module, b: Any) -> Tensor:
        return F.cross_entropy(model(*b).flatten(0, 1), b[2].flatten())

    batches = [(torch.randn(B, 10, 1), x[:, :10], torch.randint(0, 8, (B, 10))) for x in floats(B, T, 6)]
    report = checked(made(Decisions(at), loss, batches))
    assert report.ok is ok, report
    assert ok or {"label offset", "own label seen"} & {f.kind for f in report.findings}, report


def test_no_fact_fails_where_the_batch_is_one_tensor_and_a_query_has_no_key() -> None:
    """A tensor has `values`, which are those of a sparse one."""
    blind = torch.zeros(T, T, dtype=torch.bool)
    blind[0] = True

    class Masked(Net):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            h = self.embed(x)
            scores = (h @ h.mT)[:, None].masked_fill(blind, -1e9)
            return self.head((scores.softmax(-1) @ h[:, None])[:, 0])

    report = checked(made(Masked(1, given=6), lambda m, x: m(x).square().mean(), floats(B, T, 6)))
    assert not [why for _, why in report.undecided if "the fact itself failed" in why], report
    assert "empty attention row" in {f.kind for f in report.findings}, report
