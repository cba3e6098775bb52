"""Trainings on the host, on a fake device and on both: `python -m tests.monitor.on_fake_device` prints them as JSON."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from torch import Tensor, nn

import edgewise
from tests.monitor.subjects import encoder
from tests.support.fake_device import SYNCS, Remote, moved

STEPS, BROKEN = 45, 30  # and from which on outputs are not a number


class Spread(nn.Module):
    """The last block on the host, the others on the device, as device_map puts them."""

    def __init__(self, inner: nn.Sequential) -> None:
        super().__init__()
        self.table, self.stack, self.readout = moved(inner[0]), inner[1], moved(inner[2])
        for layer in self.stack.layers[:-1]:  # type: ignore[index, union-attr]
            moved(layer)

    def forward(self, x: Tensor) -> Tensor:
        x = self.table(x)
        for layer in self.stack.layers:  # type: ignore[union-attr]
            x = layer(_Move.apply(x, next(layer.parameters()).device))  # type: ignore[no-untyped-call]
        return self.readout(_Move.apply(x, torch.device("fakegpu:0")))  # type: ignore[no-untyped-call]


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, device):  # type: ignore[no-untyped-def]
        ctx.device = x.device
        return _on(x, device)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return _on(gradient, ctx.device), None


def _on(x: Tensor, device: torch.device) -> Tensor:
    """The loop's own transfer, which counts for nothing."""
    inner = (x.inner if isinstance(x, Remote) else x).clone()
    return inner if device.type == "cpu" else Remote(inner, device)


def train(what: str) -> dict[str, Any]:
    torch.manual_seed(0)
    remote = what != "host"
    model: nn.Module = encoder()
    if what == "two":
        model = Spread(model)  # type: ignore[arg-type]
    elif remote:
        moved(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)
    generator = torch.Generator().manual_seed(0)
    handle = edgewise.watch(model, criterion=criterion, quiet=True)
    handle.budget.restart()  # without the seconds that pay for every step of so short a run
    unsampled: list[str] = []
    for k in range(STEPS):
        x = torch.randint(0, 64, (4, 16), generator=generator)
        x = Remote(x) if remote else x
        before, sampled = len(SYNCS), handle.switch.on
        output = model(x)
        output = output * 0 + float("nan") if k >= BROKEN else output
        optimizer.zero_grad()
        criterion(output.flatten(0, 1), x.flatten()).backward()
        optimizer.step()
        unsampled += [] if sampled else SYNCS[before:]
    handle.close()
    alarms = [(alarm.kind.value, alarm.step) for alarm in handle.alarms]
    rows, losses = handle.budget.samples, handle._losses
    return {"error": handle.error, "alarms": alarms, "rows": rows, "losses": losses, "waits": unsampled}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({what: train(what) for what in ("host", "one", "two")}), flush=True)
    os._exit(
        0
    )  # autograd's thread of a device, which is torch's, now and then aborts while the interpreter ends
