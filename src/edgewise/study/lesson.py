"""Something to learn for a module that brings no data: digits for streams, vectors and images, bytes for token ids.

A module that takes (inputs, labels) is trained as it is. Any other gets an entrance (one matrix) where its input is not
the task's, and a readout (one matrix) where its output has no logits; both are the same in both arms of a proof.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgewise.errors import BadInput
from edgewise.probe.isolation import call, observed, tensors
from edgewise.repair.meter import batch_for
from edgewise.study.tasks import Task, task

Pair = tuple[Tensor, Tensor]


class Learner(nn.Module):
    """entrance, core, readout: (inputs, labels) to (loss,), whatever the core takes and gives."""

    def __init__(self, core: nn.Module, entrance: nn.Module, readout: nn.Module | None, per_token: bool) -> None:
        super().__init__()
        self.core, self.entrance, self.readout, self.per_token = core, entrance, readout, per_token

    def features(self, inputs: Tensor) -> Tensor:
        """What the readout reads: (B, f), or (B, n, f) where every token has a label."""
        out = first_output(call(self.core, self.core_input(inputs)))
        if out.ndim > 3:
            return out.flatten(2).mean(-1)
        return out if self.per_token or out.ndim == 2 else out.mean(1)

    def core_input(self, inputs: Tensor) -> Any:
        """The task's inputs as the core takes them."""
        stream = self.entrance(inputs)
        return {"pixel_values": stream} if _takes(self.core, "pixel_values") else stream

    def forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor]:
        logits = self.features(inputs)
        logits = logits if self.readout is None else self.readout(logits)
        return (F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten()),)


class _Fold(nn.Module):
    """Bytes folded into a smaller vocabulary."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def forward(self, ids: Tensor) -> Tensor:
        return ids % self.vocabulary


class _Positioned(nn.Module):
    """Patches (B, 16, 4) to a stream (B, 16, d) of unit mean square, half of it from positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patch, self.position = _matrix(4, width), nn.Parameter(torch.randn(16, width))

    def forward(self, patches: Tensor) -> Tensor:
        return (self.patch(patches) + self.position) / math.sqrt(2)


class _Image(nn.Module):
    """Patches (B, 16, 4) back to one 8 x 8 image, repeated over channels and enlarged to a side."""

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        self.channels, self.side = channels, side

    def forward(self, patches: Tensor) -> Tensor:
        image = patches.reshape(-1, 4, 4, 2, 2).transpose(2, 3).reshape(-1, 1, 8, 8)
        return F.interpolate(image, size=(self.side, self.side)).expand(-1, self.channels, -1, -1)


@dataclass(frozen=True)
class Lesson:
    """A task and the way a core becomes a Learner of it."""

    task: Task
    wrap: Callable[[nn.Module], nn.Module]

    def batches(self, size: int) -> Callable[[int], Iterator[Pair]]:
        return lambda seed: self.task.batches(size, seed)


def lesson(model: nn.Module) -> Lesson:
    """What this module can learn here; refused when no kind of input fits it."""
    if _takes(model, "labels") and not hasattr(model, "config"):
        return Lesson(task("digits"), lambda core: core)
    try:
        batch = batch_for(model)
    except BadInput as refusal:
        raise BadInput(f"no built-in task fits {type(model).__name__}: {refusal} Give batches.") from refusal
    with observed(model), torch.no_grad():
        out = first_output(call(model, batch))
    inputs = next(tensors(batch))
    if not inputs.is_floating_point():
        return _text(int(_vocabulary(model)), out)
    return _digits(inputs, out)


def _text(vocabulary: int, out: Tensor) -> Lesson:
    logits = out.ndim == 3 and out.shape[-1] >= 256

    def wrap(core: nn.Module) -> nn.Module:
        readout = None if logits else _matrix(out.shape[-1], 256)
        return Learner(core, _Fold(vocabulary), readout, per_token=True)

    return Lesson(task("bytes", tokens=32), wrap)


def _digits(inputs: Tensor, out: Tensor) -> Lesson:
    """Streams take 16 patches of 4 numbers, vectors all 64, images 8 x 8."""
    width = out.shape[1] if out.ndim > 3 else out.shape[-1]

    def entrance() -> nn.Module:
        if inputs.ndim == 4:
            return _Image(inputs.shape[1], inputs.shape[-1] if inputs.shape[-1] > 8 else 8)
        if inputs.ndim == 3:
            return _Positioned(inputs.shape[-1])
        return nn.Sequential(nn.Flatten(1), _matrix(64, inputs.shape[-1]))

    return Lesson(task("digits"), lambda core: Learner(core, entrance(), _matrix(width, 10), per_token=False))


def _matrix(fan_in: int, fan_out: int) -> nn.Linear:
    layer = nn.Linear(fan_in, fan_out)
    nn.init.normal_(layer.weight, std=1 / math.sqrt(fan_in))
    nn.init.zeros_(layer.bias)
    return layer


def first_output(output: Any) -> Tensor:
    """Logits, the last hidden state, or the first tensor of an output."""
    for name in ("logits", "last_hidden_state"):
        tensor = getattr(output, name, None)
        if isinstance(tensor, Tensor):
            return tensor
    return next(tensors(output))


def _vocabulary(model: nn.Module) -> int:
    config = getattr(model, "config", None)
    size = getattr(config, "vocab_size", None)
    return size or max(m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding))


def _takes(model: nn.Module, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters
