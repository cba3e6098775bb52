"""Three trained networks per seed, and the plane of their queries against their keys.

kept      softmax, then more steps of softmax         swapped   the same start, then as many steps of Gaussian
gaussian  Gaussian from the first step to the last
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from edgewise import landscape
from edgewise.study import rounded
from edgewise.study.tasks import Task
from edgewise.study.train import seeded, train, trapezoid

from .encoder import Encoder, use

ARMS = ("kept", "swapped", "gaussian")
Pair = tuple[Tensor, Tensor]


def loss_of(model: nn.Module, batch: Pair) -> Tensor:
    """The network's own."""
    loss: Tensor = model(*batch)[0]
    return loss


def trained(case: dict[str, Any], task: Task) -> dict[str, Encoder]:
    """The three arms; the same start and the same batches in the same order."""
    model = seeded(Encoder, case["seed"], task.inputs, task.tokens, task.outputs)()
    alone = use(deepcopy(model), "gaussian")
    first = _stage(use(model, "softmax"), case, task, case["steps"], 0)
    made = {"kept": use(deepcopy(first), "softmax"), "swapped": use(deepcopy(first), "gaussian")}
    made["gaussian"] = _stage(alone, case, task, case["steps"], 0)
    return {arm: _stage(made[arm], case, task, case["more"], 1) for arm in ARMS}


def _stage(model: Encoder, case: dict[str, Any], task: Task, steps: int, stage: int) -> Encoder:
    def batches() -> Iterator[Pair]:
        return task.batches(case["batch"], 2 * case["seed"] + stage)

    found = train(lambda: model, batches, rates=(case["rate"],), steps=steps, schedule=trapezoid, clip=1.0)
    kept: Any = found.best.model
    return kept


def surveyed(case: dict[str, Any], model: Encoder, batch: Pair, rebalance: bool) -> dict[str, Any]:
    """Roughness for every direction seed, and the picture of the first."""
    found = landscape.survey(
        model,
        loss_of,
        batch,
        seeds=range(case["directions"]),
        points=case["points"],
        reach=1.0,
        rebalance=rebalance,
    )
    names = ("range", "residual", "minima", "sharpness")
    numbers = {name: [rounded(getattr(r, name), 5) for r in found.roughness] for name in names}
    return numbers | {"losses": rounded(found.planes[0].losses, 4), "method": found.planes[0].method}


@torch.no_grad()
def held_out_loss(model: Encoder, task: Task, size: int) -> list[float]:
    """Loss and accuracy on reviews that were not trained on."""
    inputs, labels = task.held_out(size)
    loss, logits = model(inputs, labels)
    return [float(loss), float((logits.argmax(-1) == labels).double().mean())]
