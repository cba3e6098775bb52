"""How a model reads its last stream, found by behaviour: an output per token, of one token, or of many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgewise.probe.isolation import tensors

ALONE = 0.99  # share of the squared gradient at one token from which the others do not count


def readout_of(output: Any, stream: Tensor, shaped: Callable[[Tensor], Tensor]) -> str:
    """"token", "class" or "pooled"; empty where the output is the stream itself, so that no readout is there yet.

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
    squares = shaped(gradient).double().square().sum((0, 2))
    return "class" if float(squares.max()) > ALONE * float(squares.sum()) else "pooled"


def _values(output: Any) -> Tensor | None:
    """The logits by name, else the first output with a gradient that is not a scalar."""
    named = getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named if named.requires_grad else None
    vectors = [t for t in tensors(output) if t.ndim > 1 and t.is_floating_point() and t.requires_grad]
    return vectors[0] if vectors else None
