"""One watched training of the study: a small network on real text or images, healthy or failing in a known way.

Driven failures ramp something until training breaks; undriven ones start wrong and are left alone. The loss turns
where its smoothed value (mean of 10 steps) is 0.5 above its minimum for 5 steps, or is not a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from edgewise import watch
from edgewise.study.tasks import task
from edgewise.study.tasks.base import Task

START = 100  # step at which a driven failure begins
SMOOTH, TURN, LASTS = 10, 0.5, 5


class Network(nn.Module):
    """torch's encoder on a task: a table or a matrix in front, a matrix behind, causal where the task is text."""

    def __init__(self, data: Task, depth: int, width: int, heads: int, pre: bool) -> None:
        super().__init__()
        self.data = data
        self.front: nn.Module = nn.Linear(data.inputs, width) if data.vectors else nn.Embedding(data.inputs, width)
        self.places = nn.Parameter(0.02 * torch.randn(data.tokens, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=pre)
        self.stack = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        for parameter in self.stack.parameters():  # torch copies one layer; here each is drawn
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        self.norm, self.back = nn.LayerNorm(width), nn.Linear(width, data.outputs)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        mask = None if self.data.pooled else nn.Transformer.generate_square_subsequent_mask(n)
        hidden = self.stack(self.front(x) + self.places[:n], mask=mask, is_causal=mask is not None)
        hidden = self.norm(hidden)
        return self.back(hidden.mean(1) if self.data.pooled else hidden)

    def attentions(self) -> list[nn.MultiheadAttention]:
        return [layer.self_attn for layer in self.stack.layers]


def trained(case: dict[str, Any], on_step: Callable[[int, Any], None] | None = None) -> dict[str, Any]:
    """Train one case under watch: alarms by kind and step, the step at which the loss turned, the losses."""
    torch.manual_seed(case["seed"])
    data = task(case["task"])
    model = Network(data, case["depth"], case["width"], case["heads"], case["norm"] == "pre")
    failure = FAILURES[case["failure"]](model, case)
    optimizer = torch.optim.Adam(model.parameters(), case["rate"])
    criterion, losses = nn.CrossEntropyLoss(), []
    batches = data.batches(case["batch"], case["seed"])
    with watch(model, everything=True, loss=criterion, quiet=True, optimizer=optimizer) as handle:
        for step in range(case["steps"]):
            x, y = failure(step, optimizer, *next(batches))
            optimizer.zero_grad()
            loss = criterion(model(x).reshape(-1, data.outputs), y.reshape(-1))
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            if on_step is not None:
                on_step(step, handle)
            if not math.isfinite(losses[-1]):
                break
    return {
        "alarms": [{"kind": a.kind.value, "step": a.step, "place": a.place, "since": a.since} for a in handle.alarms],
        "turn": turned(losses), "steps": len(losses), "end": sum(losses[-10:]) / len(losses[-10:]),
        "error": handle.error,
    }  # fmt: skip


def turned(losses: list[float]) -> int | None:
    """The first step of the rise, or None."""
    means = [sum(losses[max(0, i - SMOOTH + 1) : i + 1]) / min(i + 1, SMOOTH) for i in range(len(losses))]
    lowest, away = math.inf, 0
    for step, mean in enumerate(means):
        if not math.isfinite(mean):
            return step
        lowest = min(lowest, mean)
        away = away + 1 if mean > lowest + TURN else 0
        if away == LASTS:
            return step - LASTS + 1
    return None


Step = Callable[[int, torch.optim.Optimizer, Tensor, Tensor], tuple[Tensor, Tensor]]


def none(model: Network, case: dict[str, Any]) -> Step:  # noqa: ARG001
    """A healthy run, or one whose rate, norm or depth is already wrong."""
    return lambda step, optimizer, x, y: (x, y)


def rate_ramped(model: Network, case: dict[str, Any]) -> Step:  # noqa: ARG001
    """The learning rate grows by e every 25 steps."""

    def drive(step: int, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        for group in optimizer.param_groups:
            group["lr"] = case["rate"] * math.exp(max(0, step - START) / 25)
        return x, y

    return drive


def logits_ramped(model: Network, case: dict[str, Any]) -> Step:  # noqa: ARG001
    """Queries and keys grow, so that logits grow by e every 40 steps."""

    def drive(step: int, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
        if step >= START:
            with torch.no_grad():
                for attention in model.attentions():
                    attention.in_proj_weight[: 2 * attention.embed_dim] *= math.exp(1 / 80)
        return x, y

    return drive


def bad_batch(model: Network, case: dict[str, Any]) -> Step:
    """One batch of noise, with its inputs blown up where they are vectors."""

    def drive(step: int, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
        if step != START + 80:
            return x, y
        generator = torch.Generator().manual_seed(case["seed"])
        labels = torch.randint(0, model.data.outputs, y.shape, generator=generator)
        noise = torch.randn(x.shape, generator=generator) * 10 if model.data.vectors else torch.randint(
            0, model.data.inputs, x.shape, generator=generator
        )
        return noise, labels

    return drive


def dead_head(model: Network, case: dict[str, Any]) -> Step:
    """The output columns of one head are set to zero and held there."""

    def drive(step: int, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
        if step >= START:
            attention = model.attentions()[case["seed"] % len(model.attentions())]
            with torch.no_grad():
                attention.out_proj.weight[:, : attention.head_dim] = 0.0
        return x, y

    return drive


def stream_ramped(model: Network, case: dict[str, Any]) -> Step:  # noqa: ARG001
    """What the blocks write grows by e every 40 steps, as it does on the way to an overflow."""

    def drive(step: int, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
        if step >= START:
            with torch.no_grad():
                for layer in model.stack.layers:
                    for matrix in (layer.self_attn.out_proj, layer.linear2):
                        matrix.weight *= math.exp(1 / 40)
        return x, y

    return drive


def sharp_start(model: Network, case: dict[str, Any]) -> Step:
    """Queries and keys six times too large from the start."""
    with torch.no_grad():
        for attention in model.attentions():
            attention.in_proj_weight[: 2 * attention.embed_dim] *= 6.0
    return none(model, case)


FAILURES: dict[str, Callable[[Network, dict[str, Any]], Step]] = {
    "none": none, "rate ramped": rate_ramped, "logits ramped": logits_ramped, "bad batch": bad_batch,
    "dead head": dead_head, "stream ramped": stream_ramped, "sharp start": sharp_start,
}  # fmt: skip
