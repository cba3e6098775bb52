"""Known ways to fail: each makes a function that changes a step before it is made (the rate, the weights, the batch).

Driven failures ramp something from step 100 on until training breaks; undriven ones start wrong and are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .network import Network

START = 100  # step at which a driven failure begins
BAD_BATCH = 80  # and so many steps later the bad batch comes

Step = Callable[[int, torch.optim.Optimizer, Tensor, Tensor], tuple[Tensor, Tensor]]


def none(model: Network, case: dict[str, Any]) -> Step:  # noqa: ARG001
    """A healthy run, or one whose rate, norm or depth is already wrong."""
    return lambda step, optimizer, x, y: (x, y)


def start_of(case: dict[str, Any]) -> int:
    """The step at which a driven failure of this case begins."""
    return int(case.get("start", START))


def rate_ramped(model: Network, case: dict[str, Any]) -> Step:  # noqa: ARG001
    """The learning rate grows by e every 25 steps, or as the case says."""

    def drive(step: int, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        for group in optimizer.param_groups:
            group["lr"] = case["rate"] * math.exp(max(0, step - start_of(case)) / case.get("e_fold", 25))
        return x, y

    return drive


def logits_ramped(model: Network, case: dict[str, Any]) -> Step:
    """Queries and keys grow, so that logits grow by e every 40 steps, or as the case says."""
    factor = math.exp(0.5 / case.get("e_fold", 40))

    def drive(step: int, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
        if step >= start_of(case):
            with torch.no_grad():
                for attention in model.attentions():
                    attention.in_proj_weight[: 2 * attention.embed_dim] *= factor
        return x, y

    return drive


def query_key_rate(model: Network, case: dict[str, Any]) -> Step:
    """The steps of queries and keys are larger than those of the rest, by the factor of the case, from the start."""
    matrices = [a.in_proj_weight[: 2 * a.embed_dim].detach() for a in model.attentions()]
    kept: list[Tensor] = []

    def before(*_: Any) -> None:
        kept[:] = [matrix.clone() for matrix in matrices]

    def after(*_: Any) -> None:
        for matrix, old in zip(matrices, kept, strict=True):
            matrix += (case["factor"] - 1) * (matrix - old)

    def drive(step: int, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if step == 0:
            optimizer.register_step_pre_hook(before)
            optimizer.register_step_post_hook(after)
        return x, y

    return drive


def bad_batch(model: Network, case: dict[str, Any]) -> Step:
    """One batch of noise, with its inputs blown up where they are vectors."""

    def drive(step: int, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
        if step != start_of(case) + BAD_BATCH:
            return x, y
        generator = torch.Generator().manual_seed(case["seed"])
        labels = torch.randint(0, model.data.outputs, y.shape, generator=generator)
        noise = (
            torch.randn(x.shape, generator=generator) * 10
            if model.data.vectors
            else torch.randint(0, model.data.inputs, x.shape, generator=generator)
        )
        return noise, labels

    return drive


def dead_head(model: Network, case: dict[str, Any]) -> Step:
    """The output columns of one head are set to zero and held there."""

    def drive(step: int, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
        if step >= start_of(case):
            attention = model.attentions()[case["seed"] % len(model.attentions())]
            with torch.no_grad():
                attention.out_proj.weight[:, : attention.head_dim] = 0.0
        return x, y

    return drive


def stream_ramped(model: Network, case: dict[str, Any]) -> Step:
    """What the blocks write grows by e every 40 steps, or as the case says, as it does on the way to an overflow."""
    factor = math.exp(1 / case.get("e_fold", 40))

    def drive(step: int, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
        if step >= start_of(case):
            with torch.no_grad():
                for layer in model.stack.layers:
                    for matrix in (layer.self_attn.out_proj, layer.linear2):
                        matrix.weight *= factor
        return x, y

    return drive


def sharp_start(model: Network, case: dict[str, Any]) -> Step:
    """Queries and keys six times too large from the start."""
    with torch.no_grad():
        for attention in model.attentions():
            attention.in_proj_weight[: 2 * attention.embed_dim] *= 6.0
    return none(model, case)


FAILURES: dict[str, Callable[[Network, dict[str, Any]], Step]] = {
    "none": none,
    "rate ramped": rate_ramped,
    "logits ramped": logits_ramped,
    "bad batch": bad_batch,
    "dead head": dead_head,
    "stream ramped": stream_ramped,
    "sharp start": sharp_start,
    "query-key rate": query_key_rate,
}
