"""Gradients at every site and of every matrix, from several readouts of one forward pass; `.grad` is never written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgewise.errors import BadInput
from edgewise.models.names.record import BlockSite, MLPSite, Projection
from edgewise.nouns.trace import READOUTS as DERIVED_READOUTS
from edgewise.probe.geometry import mean_square
from edgewise.probe.isolation import tensors

READOUTS = ("own", *DERIVED_READOUTS)  # the model's own loss first


def own_loss(output: Any) -> Tensor | None:
    """The loss that the model returned: `.loss`, or the one scalar with a gradient among its outputs."""
    named = getattr(output, "loss", None)
    if isinstance(named, Tensor):
        return named
    scalars = [t for t in tensors(output) if t.ndim == 0 and t.requires_grad]
    return scalars[0] if len(scalars) == 1 else None


def output_gradient(last: Tensor, readout: str, generator: torch.Generator, mask: Tensor | None) -> Tensor:
    """dLoss/dx at the last site (sequences, tokens, width), E|g_a|^2 = 1: one vector per token, or per sequence."""
    B, n, d = last.shape
    shape = (B, n if readout == "token" else 1, d)
    g = torch.randn(shape, generator=generator, dtype=torch.float32).to(last.device) / math.sqrt(d)
    g = g.expand(B, n, d).to(last.dtype)
    return g if mask is None else g * mask[..., None].to(g.dtype)


@dataclass(frozen=True)
class Matrix:
    """One matrix of a block under the name that theory gives its gradient."""

    name: str
    block: int
    projection: Projection


def matrices(blocks: Sequence[BlockSite]) -> list[Matrix]:
    """Every projection of every block: W_1 of a gated MLP is the one inside the activation, as in theory."""
    listed = []
    for block in blocks:
        attention = block.attention
        named = [("query", attention.query), ("key", attention.key), ("value", attention.value)]
        named += [("output", attention.output), *_of_mlp(block.feed_forward)]
        listed += [Matrix(name, block.index, projection) for name, projection in named]
    return listed


def _of_mlp(mlp: MLPSite) -> list[tuple[str, Projection]]:
    inside = (
        [("mlp_in", mlp.input)] if mlp.gate is None else [("mlp_in", mlp.gate), ("mlp_linear", mlp.input)]
    )
    return [*inside, ("mlp_out", mlp.output), *(_of_mlp(mlp.shared) if mlp.shared else [])]


def parameters_of(listed: Sequence[Matrix]) -> list[str]:
    """The parameters that hold these matrices, each once: fused ones hold several."""
    return list(dict.fromkeys(name for matrix in listed for name in matrix.projection.parameters))


def site_gradients(
    target: Tensor, streams: Sequence[Tensor], start: Tensor | None, parameters: Sequence[Tensor] = ()
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """d target / d stream and d target / d parameter, retaining the graph for the next readout."""
    unique = list({id(stream): stream for stream in streams}.values())
    gradients = torch.autograd.grad(
        target, [*unique, *parameters], start, retain_graph=True, allow_unused=True
    )
    by_id = {id(stream): gradient for stream, gradient in zip(unique, gradients, strict=False)}
    return [by_id[id(stream)] for stream in streams], list(gradients[len(unique) :])


def log_norms(gradients: Sequence[Tensor | None], names: Sequence[str], mask: Tensor | None) -> list[float]:
    """log of the mean over tokens of |g_a|^2 at every site, gradients (sequences, tokens, width)."""
    missing = [name for name, gradient in zip(names, gradients, strict=True) if gradient is None]
    if missing:
        raise BadInput(
            f"no gradient reaches {', '.join(missing[:4])}: the loss does not depend on the stream there."
        )
    squares = [mean_square(g, mask) * g.shape[-1] for g in gradients if g is not None]
    lost = [name for name, square in zip(names, squares, strict=True) if math.isnan(square)]
    if lost:
        raise BadInput(
            f"the gradient is not a number at {lost[-1]}: on the way back it leaves the range of its numbers, or "
            "divides zero by zero. Measure model.double(), or give the model smaller weights."
        )
    return [math.log(square) if square > 0 else -math.inf for square in squares]


def rows_of(stored: Tensor, projection: Projection) -> Tensor:
    """The part of a gradient, stored as its parameter is, that belongs to one matrix of a fused one."""
    own = stored if projection.index is None and projection.split == 1 else projection.flat(stored)
    matrix = own.transpose(-1, -2) if projection.transposed else own
    if projection.rows is None:
        return matrix
    rows = projection.rows
    apart = matrix.unflatten(-2, (rows.groups, rows.size))
    return apart.narrow(-2, rows.start, rows.stop - rows.start)


def square_sum(values: Tensor) -> float:
    """Sum of squares in double precision, without a double copy of the matrix."""
    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2


WeightSquares = dict[tuple[str, int], float]  # by the matrix's name and its block
WeightLogs = dict[tuple[str, int], float]


def no_squares(listed: Sequence[Matrix]) -> WeightSquares:
    """Zero for every matrix: one that no gradient reaches stays there."""
    return {(matrix.name, matrix.block): 0.0 for matrix in listed}


def add_squares(squares: WeightSquares, listed: Sequence[Matrix], parameter: str, gradient: Tensor) -> None:
    """Add |dL/dW|^2 of a parameter; fused ones are split by their rows, experts and shared parts add up."""
    for matrix in listed:
        if parameter in matrix.projection.parameters:
            squares[matrix.name, matrix.block] += square_sum(rows_of(gradient, matrix.projection))


def weight_logs(squares: WeightSquares) -> WeightLogs:
    """log |dL/dW|^2; -inf where no gradient arrived."""
    return {place: math.log(square) if square > 0 else -math.inf for place, square in squares.items()}
