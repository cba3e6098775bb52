"""Geometry of a stream x (sequences, tokens, width): its mean square, its tokens' separation, two nearby inputs' drift.

A `mask` (sequences, tokens) is True where a token counts; None where all do.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgewise.arrays import in_double
from edgewise.errors import BadInput
from edgewise.models.inputs import tensors
from edgewise.models.names.model_sites import BlockSite, MLPSite, Projection
from edgewise.nouns.trace import READOUTS as DERIVED_READOUTS

DISTANCE = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative; 0.1 for half precisions, which is not local


@dataclass(frozen=True)
class StreamSite:
    """A place of the residual stream: `embed`, or one after a branch of a block, as `block.3.attention`."""

    name: str
    block: int | None

    @property
    def branches(self) -> list[str]:
        """The kinds of the branches that end here; a block that is read at its end only has `output`."""
        return self.name.split(".")[-1].split("+")

    @property
    def attends(self) -> bool:
        """True if the branch before it is, or contains, attention."""
        return bool({"attention", "output"} & set(self.branches))


def mean_square(x: Tensor, mask: Tensor | None = None) -> float:
    """q: the mean of x^2 over coordinates and tokens."""
    square = in_double(x.detach()).square().mean(-1)
    return float(square.mean() if mask is None else square[mask.to(square.device)].mean())


def separation(x: Tensor, mask: Tensor | None = None) -> float:
    """Mean of 1 - cosine over pairs of different tokens, mean over sequences, in O(n d).

    With unit vectors u and their mean m, the mean over pairs is sum_a |u_a - m|^2 / (n - 1): a sum of squares,
    so that nearly identical tokens lose no digits (1 - cosine itself would), and the n x n matrix is never formed.
    A token that is zero (DeiT's class token) has no direction: its cosine with every other counts as zero.
    """
    wide = in_double(x.detach())
    if mask is not None:
        mask = mask.to(wide.device)
        wide = torch.where(mask[..., None], wide, 0.0)  # padding may be NaN
    length = torch.linalg.vector_norm(wide, dim=-1)  # (sequences, tokens)
    weight = torch.ones_like(length) if mask is None else mask.to(length.dtype)
    count = weight.sum(-1)
    if bool((count < 2).any()):
        raise BadInput(
            "a sequence has fewer than two tokens: an overlap needs two. Give longer sequences, or "
            "a model that reads them at once: one that runs token by token in a loop has one in each call."
        )
    unit = wide / length.clamp_min(1e-300)[..., None]
    mean = (weight[:, None] @ unit) / count[:, None, None]
    apart = torch.linalg.vector_norm(unit - mean, dim=-1).square() * weight
    zero = ((length == 0) * weight).sum(-1) / count  # the sum of squares gives such a pair a half, not one
    return float((apart.sum(-1) / (count - 1) + zero).mean())


def pair_separation(x: Tensor, y: Tensor, mask: Tensor | None = None) -> float:
    """Mean over tokens of 1 - cos(x_a, y_a) = |u_a - w_a|^2 / 2 for the same token in two nearby runs."""
    first, second = (torch.nn.functional.normalize(in_double(t.detach()), dim=-1, eps=1e-300) for t in (x, y))
    half = 0.5 * (first - second).square().sum(-1)
    return float(half.mean() if mask is None else half[mask.to(half.device)].mean())


def pair_growth(
    streams: Sequence[Tensor], near: Sequence[Tensor], mask: Tensor | None
) -> NDArray[np.float64]:
    """log-growth of 1 - cos between the same token of two nearby inputs, site before to site; 0 at the first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log([pair_separation(a, b, mask) for a, b in zip(streams, near, strict=True)])
        return np.diff(logs, prepend=logs[:1])


def nearby_input(first: Tensor, seed: int) -> Tensor:
    """first (…, width) plus Gaussian noise of a small part of each token's length; a draw of its own per seed."""
    generator = generator_for(seed, "nearby")
    noise = torch.randn(first.shape, generator=generator, dtype=torch.float32).to(first)
    scale = first.square().mean(-1, keepdim=True).sqrt()
    return first + DISTANCE.get(first.dtype, 0.1) * scale * noise


def generator_for(seed: int, purpose: str) -> torch.Generator:
    """A random stream of its own for every seed and purpose (readout, nearby input).

    `torch.manual_seed(0); x = torch.randn(...)` is how most inputs are drawn. A readout from a generator of the
    same seed would be that input again, and its gradient not that of a random direction.
    """
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}/{purpose}".encode()))


READOUTS = ("own", *DERIVED_READOUTS)  # the model's own loss first


def own_loss(output: object) -> Tensor | None:
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
class NamedMatrix:
    """One matrix of a block under the name that theory gives its gradient."""

    name: str
    block: int
    projection: Projection


def matrices(blocks: Sequence[BlockSite]) -> list[NamedMatrix]:
    """Every projection of every block: W_1 of a gated MLP is the one inside the activation, as in theory."""
    listed = []
    for block in blocks:
        attention = block.attention
        named = [("query", attention.query), ("key", attention.key), ("value", attention.value)]
        named += [("output", attention.output), *_of_mlp(block.feed_forward)]
        listed += [NamedMatrix(name, block.index, projection) for name, projection in named]
    return listed


def _of_mlp(mlp: MLPSite) -> list[tuple[str, Projection]]:
    inside = (
        [("mlp_in", mlp.input)] if mlp.gate is None else [("mlp_in", mlp.gate), ("mlp_linear", mlp.input)]
    )
    return [*inside, ("mlp_out", mlp.output), *(_of_mlp(mlp.shared) if mlp.shared else [])]


def parameters_of(listed: Sequence[NamedMatrix]) -> list[str]:
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


class Unreached(BadInput):
    """A loss that does not depend on the stream at some site."""


def log_norms(gradients: Sequence[Tensor | None], names: Sequence[str], mask: Tensor | None) -> list[float]:
    """log of the mean over tokens of |g_a|^2 at every site, gradients (sequences, tokens, width)."""
    missing = [name for name, gradient in zip(names, gradients, strict=True) if gradient is None]
    if missing:
        raise Unreached(
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
    rows = projection.rows  # filters of a convolution stay filters, unless they are joined
    own = projection.flat(stored) if rows or projection.index is not None or projection.split > 1 else stored
    matrix = own.transpose(-1, -2) if projection.transposed else own
    if rows is None:
        return matrix
    apart = matrix.unflatten(-2, (rows.groups, rows.size))
    return apart.narrow(-2, rows.start, rows.stop - rows.start)


def square_sum(values: Tensor) -> float:
    """Sum of squares in double precision, without a double copy of the matrix."""
    return float(torch.linalg.vector_norm(in_double(values))) ** 2


WeightSquares = dict[tuple[str, int], float]  # by the matrix's name and its block
WeightLogs = dict[tuple[str, int], float]


def no_squares(listed: Sequence[NamedMatrix]) -> WeightSquares:
    """Zero for every matrix: one that no gradient reaches stays there."""
    return {(matrix.name, matrix.block): 0.0 for matrix in listed}


def add_squares(
    squares: WeightSquares, listed: Sequence[NamedMatrix], parameter: str, gradient: Tensor
) -> None:
    """Add |dL/dW|^2 of a parameter; fused ones are split by their rows, experts and shared parts add up."""
    for matrix in listed:
        if parameter in matrix.projection.parameters:
            squares[matrix.name, matrix.block] += square_sum(rows_of(gradient, matrix.projection))


def weight_logs(squares: WeightSquares) -> WeightLogs:
    """log |dL/dW|^2; -inf if no gradient arrived."""
    return {place: math.log(square) if square > 0 else -math.inf for place, square in squares.items()}
