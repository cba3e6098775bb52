"""Every verb on the host and on a device without double precision: `python -m tests.faults.on_fake_device`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import edgewise
from tests.support import fake_device


class Block(nn.Module):
    """Two heads by hand and an MLP, each behind its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp_norm = nn.LayerNorm(16), nn.LayerNorm(16)
        self.query, self.key, self.value, self.output = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        query, key, value = (
            f(h).unflatten(-1, (2, 8)).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        weights = torch.softmax(query @ key.transpose(-1, -2) / 8**0.5, -1)
        x = x + self.output((weights @ value).transpose(1, 2).flatten(2))
        return x + self.down(torch.relu(self.up(self.mlp_norm(x))))  # type: ignore[no-any-return]


def _make(remote: bool) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(64, 16), *(Block() for _ in range(2)), nn.Linear(16, 64))
    return fake_device.moved(model) if remote else model


def _ids(remote: bool, seed: int = 0) -> Tensor:
    ids = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(seed))
    return fake_device.Remote(ids) if remote else ids


def _loss(model: nn.Module, ids: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def _square(model: nn.Module, ids: Tensor) -> Tensor:
    """Return what check can follow here: the stand-in has no views of the labels inside its watching mode."""
    return (model(ids) - 1).square().mean()


def _trace(trace: edgewise.Trace) -> list[float]:
    values = [trace.norm, trace.separation, trace.log_gradient, *trace.statistics.values()]
    return [float(number) for value in values for number in torch.as_tensor(value).flatten()]


def _check(remote: bool) -> list[str]:
    model = _make(remote)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)
    report = edgewise.check(model, [_ids(remote, k) for k in range(3)], _square, optimizer)
    kinds = [finding.kind for finding in report.findings]
    return [
        kind for kind in kinds if kind != "constant output"
    ]  # the stand-in does not see the changed token


def _watch(remote: bool) -> list[Any]:
    model, criterion = _make(remote), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)
    handle = edgewise.watch(model, criterion=criterion, quiet=True, everything=True)
    for k in range(3):
        optimizer.zero_grad()
        criterion(model(_ids(remote, k)).flatten(0, 1), _ids(remote, k).flatten()).backward()
        optimizer.step()
    handle.close()
    return [handle.error, handle.budget.samples]


def _rate(remote: bool) -> list[float]:
    answer = edgewise.learning_rate(
        _make(remote),
        [_ids(remote, k) for k in range(8)],
        _loss,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.1, foreach=False),
        steps=2,
        rates=3,
    )
    return [answer.best or 0.0, answer.edge or 0.0]


VERBS: dict[str, Callable[[bool], Any]] = {
    "measure": lambda remote: _trace(edgewise.measure(_make(remote), _ids(remote), gain=True)),
    "audit": lambda remote: [
        str(finding) for finding in edgewise.audit_initialization(_make(remote), _ids(remote))
    ],
    "total_changes": lambda remote: str(edgewise.total_changes(_make(remote), _ids(remote))),
    "describe": lambda remote: edgewise.describe(_make(remote), _ids(remote)).to_dict(),
    "structure": lambda remote: str(edgewise.structure(_make(remote), _ids(remote))),
    "initialize_": lambda remote: str(edgewise.initialize_(_make(remote), _ids(remote), generator=0)),
    "check": _check,
    "rate": _rate,
    "watch": _watch,
}


def main() -> None:
    torch.set_num_threads(1)
    fake_device.without_double()
    for name, verb in VERBS.items():
        print(json.dumps([name, verb(False), verb(True)], default=str), flush=True)


if __name__ == "__main__":
    main()
