"""Loss of the best constant answer, the baseline of a network that ignores its input, and the least that labels allow.

For classes and tokens that is the entropy of the labels' frequencies, for numbers the variance of the targets. The
labels are those that the loss itself uses: its call of a loss of torch is caught, and given the same prediction for
every sample in place of the network's. A loss written by hand gets a constant in place of the model's output instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from edgewise.files import Document
from edgewise.landscape.evaluation import Batch, Loss, loss_of
from edgewise.rehearsal.ladder import Guess

CLASSES = (F.cross_entropy, F.nll_loss)  # their predictions have the classes in the second dimension
BINARY = (F.binary_cross_entropy_with_logits, F.binary_cross_entropy)
NUMBERS = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)
LOSSES = (*CLASSES, *BINARY, *NUMBERS)
ITERATIONS = 50
MOST_CALLS = 100  # of losses of torch, in one loss
TINY = 1e-9  # odds of what is not so, in place of zero
UNKNOWN = "it could not be compared with guessing: {}"


@dataclass(frozen=True)
class TorchLossCall:
    """One call of a loss of torch: everything but the prediction, of which the shape is kept."""

    function: Any
    prediction: Tensor
    rest: tuple[Any, ...]
    options: Document

    @property
    def dimension(self) -> int:
        """Along which a constant answer differs: classes, or the last one; -1 if there is one number per sample."""
        return min(1, self.prediction.dim() - 1) if self.function in CLASSES else self.prediction.dim() - 1

    @property
    def labels(self) -> int:
        """The number of its labels."""
        target = self.rest[0] if self.rest else self.options["target"]
        if self.function in CLASSES and not target.dtype.is_floating_point:
            return int((target != self.options.get("ignore_index", -100)).sum())
        return self.prediction.numel() // (self.prediction.shape[-1] if self.prediction.dim() > 1 else 1)

    def at(self, constant: Tensor) -> Tensor:
        """Return the loss of the same prediction for all samples."""
        value = constant
        if self.function is F.nll_loss:
            value = F.log_softmax(value, 0)
        elif self.function is F.binary_cross_entropy:
            value = torch.sigmoid(value)
        return self.of(_expanded(value, self.prediction, self.dimension))

    def of(self, prediction: Tensor) -> Tensor:
        """Return the loss of another prediction."""
        result: Tensor = self.function(prediction, *self.rest, **self.options)
        return result

    def of_labels(self) -> Tensor:
        """Return the loss of the labels themselves as the prediction: the least that any network can reach."""
        target = self.rest[0] if self.rest else self.options["target"]
        if self.function in NUMBERS:
            return self.of(target.to(self.prediction).expand(self.prediction.shape))
        if self.function is F.binary_cross_entropy:
            return self.of(target.to(self.prediction))
        if self.function is F.binary_cross_entropy_with_logits:
            return self.of(torch.logit(target.double(), eps=TINY).to(self.prediction))
        if target.dtype.is_floating_point:
            odds = target.to(self.prediction)
        else:
            classes, axis = self.prediction.shape[self.dimension], self.dimension
            known = target.clamp(0, classes - 1)
            odds = torch.zeros_like(self.prediction).scatter_(axis, known.unsqueeze(axis), 1.0)
        smooth = self.options.get("label_smoothing", 0.0)
        odds = odds * (1 - smooth) + smooth / self.prediction.shape[self.dimension]
        return self.of(odds.clamp_min(TINY).log())


Answer = Callable[[TorchLossCall], Tensor]


def _expanded(constant: Tensor, like: Tensor, dimension: int) -> Tensor:
    if constant.numel() == 1:
        return constant.reshape(()).expand(like.shape).to(like)
    shape = [1] * like.dim()
    shape[dimension] = -1
    return constant.reshape(shape).expand(like.shape).to(like)


class _Catch(TorchFunctionMode):
    """Keeps every call of a loss of torch, or answers it in turn by another prediction."""

    def __init__(self, answers: Sequence[Answer] = ()) -> None:
        super().__init__()
        self.calls: list[TorchLossCall] = []
        self.answers = answers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if func not in LOSSES:
            return func(*args, **options)
        named = "input" in options
        prediction = options.pop("input") if named else args[0]
        call = TorchLossCall(func, prediction, args if named else args[1:], options)
        self.calls.append(call)
        if len(self.calls) <= len(self.answers):
            return self.answers[len(self.calls) - 1](call)
        return func(prediction, *call.rest, **options)


def agreement(model: nn.Module, loss: Loss, batches: Sequence[Batch]) -> float:
    """Return by how many standard errors the gradients of different batches agree on what follows from the input.

    The gradient of a loss less that with its predictions shuffled among the samples: frequencies cancel, what follows
    from the input is left. Each one is multiplied by the sum of those before; if nothing follows, the mean is zero.
    """
    generator = torch.Generator().manual_seed(0)

    def shuffled(call: TorchLossCall) -> Tensor:
        order = torch.randperm(len(call.prediction), generator=generator).to(call.prediction.device)
        return call.of(call.prediction) - call.of(call.prediction[order])

    parameters = [p for p in model.parameters() if p.requires_grad]
    total, products = [torch.zeros_like(p) for p in parameters], list[float]()
    for batch in batches:
        with torch.enable_grad(), _Catch([shuffled] * MOST_CALLS) as caught:
            value = loss_of(loss, model, batch)
        if not caught.calls or not value.requires_grad:
            return 0.0
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
        pairs = [(t, g) for t, g in zip(total, gradients, strict=True) if g is not None]
        products.append(sum(float(torch.sum(t * g)) for t, g in pairs))
        for one, gradient in pairs:
            one += gradient
    size = math.hypot(*products)
    return sum(products) / size if size > 0 and math.isfinite(size) else 0.0


def guess(model: nn.Module, bare: nn.Module | None, loss: Loss, batches: Sequence[Batch]) -> Guess:
    """Return the loss of guessing on these batches.

    bare  the module that the loss calls; None if it calls none
    """
    try:
        return _by_calls(model, loss, batches) or _by_output(model, bare, loss, batches)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:  # a loss that takes no constant answer
        return Guess(None, why=" ".join(str(error).split())[:200])


def _by_calls(model: nn.Module, loss: Loss, batches: Sequence[Batch]) -> Guess | None:
    """By the losses of torch that it calls; None if it calls none."""
    calls: list[list[TorchLossCall]] = []
    for batch in batches:
        with torch.no_grad(), _Catch() as caught:
            loss(model, batch)
        calls.append(caught.calls)
    count = min(len(row) for row in calls)
    if not count:
        return None
    constants = [_best_of([row[k] for row in calls]) for k in range(count)]
    best = _answered(model, loss, batches, [partial(TorchLossCall.at, constant=c) for c in constants])
    floor = _floor(model, loss, batches, count)
    if any(call.function in NUMBERS for row in calls for call in row[:count]):
        return replace(_checked(best, "the best constant answer"), floor=floor)
    labels = sum(call.labels for call in calls[0])
    return replace(_checked(best, "guessing frequencies"), floor=floor, labels=labels)


def _floor(model: nn.Module, loss: Loss, batches: Sequence[Batch], count: int) -> float | None:
    """Return the loss of the labels themselves; None if they do not stand in for a prediction."""
    try:
        value = _answered(model, loss, batches, [TorchLossCall.of_labels] * count)
    except (RuntimeError, KeyError, AttributeError):  # labels in another shape than the predictions
        return None
    return value if math.isfinite(value) else None


def _answered(model: nn.Module, loss: Loss, batches: Sequence[Batch], answers: Sequence[Answer]) -> float:
    """Return the mean loss with these in place of the predictions, in the order of the calls."""
    total = 0.0
    for batch in batches:
        with torch.no_grad(), _Catch(answers):
            total += float(loss(model, batch))
    return total / len(batches)


def _best_of(calls: Sequence[TorchLossCall]) -> Tensor:
    """Return the constant at which the sum of these calls is lowest."""
    sizes = {call.prediction.shape[call.dimension] if call.prediction.dim() > 1 else 1 for call in calls}
    if calls[0].function in CLASSES:
        sizes = {call.prediction.shape[call.dimension] for call in calls}
    if len(sizes) > 1:
        raise ValueError("the number of answers differs from batch to batch")
    return _lowest(
        lambda c: sum((call.at(c) for call in calls), torch.zeros(())), sizes.pop(), calls[0].prediction
    )


def _by_output(model: nn.Module, bare: nn.Module | None, loss: Loss, batches: Sequence[Batch]) -> Guess:
    """Return a loss written by hand: a constant in place of what the model returns, which is not run."""
    if bare is None:
        return Guess(None, why="the loss calls no module")
    if dist.is_available() and dist.is_initialized():
        return Guess(
            None, why="a loss written by hand is not taken apart where several processes train together"
        )
    outputs = [_output(model, bare, loss, batch) for batch in batches]
    if not all(isinstance(output, Tensor) and output.is_floating_point() for output in outputs):
        return Guess(None, why="no labels were found in what the loss calls")
    sizes = {output.shape[-1] if output.dim() > 1 else 1 for output in outputs}
    if len(sizes) > 1:
        return Guess(None, why="the number of outputs differs from batch to batch")

    def total(constant: Tensor) -> Tensor:
        value = torch.zeros(())
        for batch, output in zip(batches, outputs, strict=True):
            with _answering(bare, _expanded(constant, output, output.dim() - 1)):
                value = value + loss(model, batch).reshape(()).cpu()
        return value / len(batches)

    constant = _lowest(total, sizes.pop(), outputs[0])
    with torch.no_grad():
        return _checked(float(total(constant)), "the best constant answer")


def _output(model: nn.Module, bare: nn.Module, loss: Loss, batch: Batch) -> Any:
    kept: list[Any] = []
    handle = bare.register_forward_hook(lambda _, __, output: kept.append(output))
    try:
        with torch.no_grad():
            loss(model, batch)
    finally:
        handle.remove()
    return kept[0] if len(kept) == 1 else None


@contextmanager
def _answering(bare: nn.Module, value: Tensor) -> Iterator[None]:
    """Let the module return this value, whatever it is given."""
    own = bare.__dict__.get("forward")
    bare.forward = lambda *_, **__: value
    try:
        yield
    finally:
        if own is None:
            del bare.forward
        else:
            bare.forward = own


def _lowest(total: Callable[[Tensor], Tensor], size: int, like: Tensor) -> Tensor:
    """Return where a function of a constant is lowest; the losses of torch are convex in it."""
    constant = torch.zeros(size, dtype=torch.float32, device=like.device, requires_grad=True)
    solver = torch.optim.LBFGS([constant], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        with torch.enable_grad():
            value = total(constant)
            if not value.requires_grad:
                raise ValueError("the loss does not depend on what the model returns")
            (constant.grad,) = torch.autograd.grad(value, constant)
        return value.detach()

    solver.step(closure)
    return constant.detach()


def _checked(loss: float, words: str) -> Guess:
    return (
        Guess(loss, words) if math.isfinite(loss) else Guess(None, why="no constant answer is the best one")
    )


__all__ = ["Guess", "agreement", "guess"]
