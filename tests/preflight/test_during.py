"""The facts of check inside watch: asked once, about the first weights, and nothing of the training changes."""

from __future__ import annotations

import torch
from torch import nn

import edgewise
from tests.monitor.subjects import encoder


def trained(model: nn.Module, watching: bool, steps: int = 12) -> tuple[list[str], list[torch.Tensor]]:
    optimizer, criterion = torch.optim.AdamW(model.parameters(), 1e-3), nn.CrossEntropyLoss()
    handle = edgewise.watch(model, criterion=criterion, quiet=True) if watching else None
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        x = torch.randint(0, 64, (4, 16), generator=generator)
        optimizer.zero_grad()
        criterion(model(x).flatten(0, 1), x.flatten()).backward()
        optimizer.step()
    if handle is not None:
        handle.close()
        assert handle.error == ""
    causes = [] if handle is None else [alarm.cause for alarm in handle.alarms]
    state = [v for p in model.parameters() for v in (p, *optimizer.state[p].values())]
    return causes, [value.detach().clone() for value in state]


def test_an_error_of_check_is_an_alarm_and_nothing_changes() -> None:
    def loud() -> nn.Module:
        model = encoder(dropout=0.1)
        model[2].weight.data.mul_(200.0)  # type: ignore[index, union-attr, operator]
        torch.manual_seed(3)
        return model

    (_, bare), (causes, seen) = trained(loud(), False), trained(loud(), True)
    assert any("far above that of guessing" in cause for cause in causes), causes
    assert all(torch.equal(a, b) for a, b in zip(bare, seen, strict=True))


def test_a_healthy_start_raises_nothing() -> None:
    assert trained(encoder(), True)[0] == []
