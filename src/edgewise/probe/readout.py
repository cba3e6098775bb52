"""How a model reads its last stream, by behavior: an output per token, of one token, or of many; its first loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeGuard

import torch
from torch import Tensor, nn

from edgewise.arrays import in_double
from edgewise.models.inputs import is_ids, tensors
from edgewise.nouns.trace import FirstLoss
from edgewise.probe.batches import arguments

ALONE = 0.99  # share of the squared gradient at one token from which the others do not count


def readout_of(output: object, stream: Tensor, shaped: Callable[[Tensor], Tensor]) -> str:
    """ "token", "class" or "pooled"; empty if the output is the stream itself, so that no readout is there yet.

    stream: the last one, in the graph; shaped: brings it to (sequences, tokens, width)
    """
    values = _values(output)
    if values is None:
        return ""
    sequences, tokens, width = shaped(stream).shape
    if values.ndim > 2 and width in values.shape[1:]:
        return ""
    if values.ndim > 2 or len(values) == sequences * tokens:
        return "token"
    weights = torch.randn(values.shape, generator=torch.Generator().manual_seed(0)).to(values)
    gradient = torch.autograd.grad(values, stream, weights, retain_graph=True, allow_unused=True)[0]
    if gradient is None:
        return ""
    squares = in_double(shaped(gradient)).square().sum((0, 2))
    return "class" if float(squares.max()) > ALONE * float(squares.sum()) else "pooled"


def first_loss(
    model: nn.Module, batch: object, output: object, own: Tensor | None, mask: Tensor | None, causal: bool
) -> FirstLoss | None:
    """The cross-entropy of the logits before training, beside that of chance; None without logits.

    By the model's own loss if the batch has labels, else by the ids of the input (the next ones where `causal`), and
    by labels drawn at random: the smallest counts, so that neither a few unlikely labels nor trained weights raise it.
    own: the loss that the model returned; mask: the tokens (sequences, tokens) that count.
    """
    named = arguments(model, batch)
    logits = _logits(model, named, output)
    if logits is None:
        return None
    with torch.no_grad():
        values = [_of_random_labels(logits, mask)]
        values += [float(own)] if own is not None and _whole(named.get("labels")) else []
        values += [] if own is not None else _of_ids(logits, named, mask, causal)
    finite = [value for value in values if math.isfinite(value)]
    return FirstLoss(min(finite), math.log(logits.shape[-1])) if finite else None


def _logits(model: nn.Module, named: dict[str, object], output: object) -> Tensor | None:
    """(..., classes): what a model calls its logits, or an output over as many words as the table of its ids has."""
    config = getattr(model, "config", None)
    if getattr(config, "problem_type", None) in ("regression", "multi_label_classification"):
        return None
    values = getattr(output, "logits", None)
    if not isinstance(values, Tensor):
        rows = {module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)}
        read = any(isinstance(value, Tensor) and is_ids(value) for value in named.values())
        vectors = [t for t in tensors(output) if t.ndim > 1 and t.is_floating_point()] if read else []
        values = next((t for t in vectors if t.shape[-1] in rows), None)
    return values if values is not None and values.ndim in (2, 3) and values.shape[-1] > 1 else None


def _rows(logits: Tensor, mask: Tensor | None) -> Iterator[tuple[int, Tensor, Tensor | None]]:
    """(sequence, logits (tokens, classes) in single precision at least, which of them count), one at a time."""
    for number, sequence in enumerate(logits.unsqueeze(1) if logits.ndim == 2 else logits):
        wide = sequence.detach().to(torch.promote_types(sequence.dtype, torch.float32))
        yield (
            number,
            wide,
            mask[number] if mask is not None and tuple(mask.shape) == logits.shape[:-1] else None,
        )


def _of_random_labels(logits: Tensor, mask: Tensor | None) -> float:
    """The mean over tokens of log sum exp z - mean z."""
    total, count = 0.0, 0
    for _, sequence, counts in _rows(logits, mask):
        losses = torch.logsumexp(sequence, -1) - sequence.mean(-1)
        losses = losses if counts is None else losses[counts]
        total, count = total + float(in_double(losses).sum()), count + losses.numel()
    return total / count if count else math.nan


def _of_ids(logits: Tensor, named: dict[str, object], mask: Tensor | None, causal: bool) -> list[float]:
    """With the ids of the input as labels, if there is one for each row of logits."""
    ids = next((v for v in named.values() if _whole(v) and v.shape == logits.shape[:-1]), None)
    if ids is None or logits.ndim != 3 or int(ids.max()) >= logits.shape[-1]:
        return []
    shift = 1 if causal else 0
    losses = []
    for number, sequence, counts in _rows(logits, mask):
        rows = torch.nn.functional.cross_entropy(
            sequence[: len(sequence) - shift], ids[number, shift:].to(sequence.device), reduction="none"
        )
        losses.append(rows if counts is None else rows[counts[: len(rows)] & counts[shift:]])
    return [float(in_double(torch.cat(losses)).mean())]


def _whole(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and not value.is_floating_point() and value.dtype != torch.bool


def _values(output: object) -> Tensor | None:
    """The logits by name, else the first output with a gradient that is not a scalar."""
    named = getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named if named.requires_grad else None
    vectors = [t for t in tensors(output) if t.ndim > 1 and t.is_floating_point() and t.requires_grad]
    return vectors[0] if vectors else None
