"""Evidence for the tests of causes: the model, its optimizers, the last batches, and how the loss comes about."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from edgewise.models.inputs import tensors
from edgewise.models.model_map import ModelMap
from edgewise.models.state import undone
from edgewise.monitor.alarm import Detection
from edgewise.monitor.capture import Call
from edgewise.monitor.facts import RateSeries
from edgewise.monitor.hooks import IGNORED
from edgewise.monitor.run_events import BatchProfiles

COMPARED = 1 << 16  # numbers of a prediction that are compared with the output

Take = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class OutputPath:
    """How the output of the model becomes what the criterion is given."""

    take: Callable[[Tensor, torch.Size], Tensor]  # the part of the output, in the shape of the prediction
    between: str = ""  # what is applied to it: "softmax", "sigmoid", "tanh", "relu", "scale"
    apply: Take = lambda z: z
    factor: float = 1.0

    def __call__(self, output: Tensor, shape: torch.Size) -> Tensor:
        return self.apply(self.take(output, shape))


PARTS: tuple[Take, ...] = (
    lambda z: z,
    lambda z: z[:, :-1],
    lambda z: z[:, 1:],
    lambda z: z[:, -1],
    lambda z: z[:, 0],
    lambda z: z.mean(1),
)
APPLIED: dict[str, Take] = {
    "": lambda z: z,
    "softmax": lambda z: z.softmax(_classes(z)),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
}


def path_of(output: Tensor, prediction: Tensor, *, logs: bool = False) -> OutputPath | None:
    """Find how the criterion's input was made of the model's output; None if it is none of the usual ways.

    logs: the prediction is the log of a softmax, as the graph of a cross-entropy keeps it
    """
    output, prediction = output.detach().float(), prediction.detach().float()
    shape = prediction.shape
    parts = list(_parts(output, shape))
    for between, apply in APPLIED.items():
        for take in parts:
            given = apply(take(output, shape))
            if _alike(given.log_softmax(_classes(given)) if logs else given, prediction):
                return OutputPath(take, between, apply)
    for take in parts:
        given = take(output, shape)
        if logs:  # known up to a number for each row
            axis = _classes(given)
            given, log = given - given.mean(axis, True), prediction - prediction.mean(axis, True)
            factor = _ratio(given, log)
        else:
            factor = _ratio(given, prediction)
        if factor is not None:
            return OutputPath(take, "scale", partial(torch.mul, other=factor), factor)
    for picked in (output,) if output.dim() == 3 and output.numel() == prediction.numel() else ():
        mixed = picked.transpose(1, 2).reshape(-1, picked.shape[-1])
        if mixed.shape == shape and _alike(mixed.log_softmax(-1) if logs else mixed, prediction):
            return OutputPath(lambda z, given: z.transpose(1, 2).reshape(given), "reshape")
    return None


def _classes(z: Tensor) -> int:
    """The axis of the classes, as torch's losses have it."""
    return 1 if z.dim() > 2 else -1


def _parts(output: Tensor, shape: torch.Size) -> Iterator[Callable[[Tensor, torch.Size], Tensor]]:
    for part in PARTS if output.dim() > 2 else PARTS[:1]:
        picked = part(output)
        if picked.numel() != math.prod(shape):
            continue
        yield partial(_taken, part, False)
        if picked.dim() == 3 == len(shape):  # classes second
            yield partial(_taken, part, True)


def _taken(part: Take, turned: bool, output: Tensor, shape: torch.Size) -> Tensor:
    picked = part(output)
    return (picked.transpose(1, 2) if turned else picked).reshape(shape)


def _alike(a: Tensor, b: Tensor) -> bool:
    a, b = a.reshape(-1)[:COMPARED], b.reshape(-1)[:COMPARED]
    size = float(b.abs().max()) if len(b) else 0.0
    return math.isfinite(size) and bool(((a - b).abs() <= 1e-5 * size + 1e-30).all())


def _ratio(a: Tensor, b: Tensor) -> float | None:
    """The number by which a was multiplied, if it is one."""
    a, b = a.reshape(-1)[:COMPARED], b.reshape(-1)[:COMPARED]
    length = float(a @ a)
    factor = float(a @ b) / length if length > 0 and math.isfinite(length) else 0.0
    return factor if factor and _alike(factor * a, b) else None


class StartFact(NamedTuple):
    """One fact that does not hold at the start; certain: it cannot be meant, else it explains a symptom.

    waits: it is told if the loss has not beaten guessing by then
    """

    kind: str
    detection: Detection
    certain: bool
    waits: bool = False


Start = list[tuple[nn.Parameter, Tensor]]
Batch = tuple[Call, Call | None]


@contextmanager
def from_start(e: Evidence, start: Start | None) -> Iterator[None]:
    """Whatever is trained inside is undone; from the first weights and without optimizer state, if they are given."""
    optimizer = e.optimizers[0] if e.optimizers else None
    with undone(e.model, optimizer):
        if start is not None:
            with torch.no_grad():
                for parameter, value in start:
                    parameter.copy_(value)
            if optimizer is not None:
                optimizer.state.clear()
        yield


@dataclass
class Evidence:
    """What the tests check."""

    model: nn.Module  # without its wrappers; never changed
    criterion: nn.Module | None
    optimizers: Sequence[Optimizer]
    batches: Sequence[tuple[Call, Call | None]]  # the last sampled, with what the criterion was called with
    weight_norms: tuple[float, float] = (math.nan, math.nan)  # of the first row and now
    gradient_scale: float = math.nan  # of the gradient that is used, over the one that arrived
    # how much of what enters each block leaves it, in the first row; 1 with a skip
    skips: Sequence[float] = ()
    modules: Sequence[str] = ()  # of the blocks
    path: OutputPath | None = None  # from the output to the prediction, if it is known
    trials: bool = True
    start: Start | None = None  # the weights before the first step
    rates: RateSeries = field(default_factory=RateSeries)  # of the steps so far
    rewritten: tuple[int, str] | None = None  # the step before which something else than an optimizer
    # changed weights, or the state of the optimizer, lately, and which
    optimizers_made: int = 1  # that moved the whole model
    rows: int = 0
    loss_factor: float = 1.0  # by which the criterion's loss is multiplied before backward()
    undivided: int = 1  # backward passes that a step takes, if their losses are not divided by their number
    passes: int = 1  # and if they are
    clip: float = math.inf  # the norm of the gradient of now, if it was made smaller after the backward pass
    learned: bool = False  # the loss is well below the first
    least: float = math.inf  # the loss of knowing nothing: the first, or that of equal chances
    suspects: Sequence[StartFact] = ()  # facts that do not hold at the start, and only explain a symptom
    examined: bool = False  # facts about the start were asked
    divided: float = 1.0  # the constant that gradients are multiplied by before each step, if there is one
    entropy: bool = False  # the loss is a cross-entropy over the classes of the prediction
    faithful: bool = True  # the loss of a trial is that of the training, up to a factor
    extra: tuple[str, float] = ("", 0.0)  # what is added to the cross-entropy, and how much of it
    dated: Sequence[tuple[int, Batch]] = ()  # small batches with their steps
    snapshots: Sequence[tuple[int, Start]] = ()  # weights as those steps began
    profiles: BatchProfiles = field(default_factory=BatchProfiles)  # what the batches are made of
    losses: Sequence[tuple[int, float]] = ()  # of the last steps
    harmed: bool = False  # the loss has risen, or has not beaten guessing
    gradient_norm: float = math.inf  # of the last row, as it is used
    outweighed: float = (
        1.0  # where backward() begins over the criterion's loss, if that is not a constant multiple
    )
    map: ModelMap | None = None  # of the model, if it was read

    @property
    def call(self) -> Call | None:
        return self.batches[-1][0] if self.batches else None

    @property
    def prediction(self) -> Tensor | None:
        """Return the last input of the criterion."""
        return prediction_of(self.batches[-1][1]) if self.batches else None

    def labels(self) -> Tensor | None:
        """Integer labels of the last batch: of the criterion, or given to the model by that name."""
        if not self.batches:
            return None
        (_, named), seen = self.batches[-1]
        value = named.get("labels")
        if seen is not None:
            value = seen[0][1] if len(seen[0]) > 1 else seen[1].get("target")
        whole = isinstance(value, Tensor) and not value.is_floating_point()
        return value if whole else None

    def counted(self) -> Tensor | None:
        """The labels of the last batch with those that the loss ignores as -100."""
        labels, ignored = self.labels(), getattr(self.criterion, "ignore_index", IGNORED)
        return (
            labels if labels is None or ignored == IGNORED else labels.masked_fill(labels == ignored, IGNORED)
        )

    def ids(self) -> Tensor | None:
        """Token ids (sequences, tokens) of the last batch."""
        if self.call is None:
            return None
        inputs, named = self.call
        given = [named.get("input_ids"), *inputs, *named.values()]
        whole = (
            x
            for x in given
            if isinstance(x, Tensor) and x.dtype in (torch.int64, torch.int32) and x.dim() == 2
        )
        return next(whole, None)

    @property
    def shifted_inside(self) -> bool:
        """Return whether the model shifts the labels itself, as those of Hugging Face do."""
        return bool(self.batches) and "labels" in self.batches[-1][0][1]

    def loss(self, model: nn.Module, batch: tuple[Call, Call | None]) -> Tensor | None:
        """The loss of a batch, as the training computes it; None if that is not known."""
        (inputs, named), seen = batch
        output = model(*inputs, **named)
        loss = output if isinstance(output, Tensor) and output.numel() == 1 else getattr(output, "loss", None)
        if isinstance(loss, Tensor):
            return loss
        first = output_of(output)
        if self.criterion is None or seen is None or first is None or not seen[0]:
            return None
        prediction, *others = seen[0]
        if self.path is None and prediction.numel() != first.numel():
            return None
        try:
            given = (
                first.reshape(prediction.shape)
                if self.path is None
                else self.path(first.float(), prediction.shape)
            )
        except RuntimeError:  # another part of the output than in the last batch, such as masked tokens
            return None
        kind = copy.deepcopy(self.criterion)
        value = kind(given, *others, **seen[1])
        return value if isinstance(value, Tensor) else None


def output_of(output: Any) -> Tensor | None:
    """The first floating tensor that a model returns."""
    output = getattr(output, "logits", output)
    return next((t for t in tensors(output) if t.is_floating_point()), None)


def prediction_of(seen: Call | None) -> Tensor | None:
    """The floating first argument of a criterion."""
    value = None if seen is None else next(iter([*seen[0], seen[1].get("input")]), None)
    return value if isinstance(value, Tensor) and value.is_floating_point() else None
