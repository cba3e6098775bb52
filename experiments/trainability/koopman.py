"""The residual Koopman score [Kim 2026]: how many modes of the map from block to block lie near the unit circle.

Shapes: M snapshots (tokens of all sequences), d width, r modes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

RANK = 32
NEAR = 0.1
RIDGE = 1e-6


@torch.no_grad()
def streams_of(model: nn.Module, blocks: nn.ModuleList, inputs: Tensor) -> list[Tensor]:
    """The stream before the first block and after every one, as snapshots (M, d)."""
    caught: list[Tensor] = []
    hooks = [blocks[0].register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))]
    hooks += [block.register_forward_hook(lambda _, __, out: caught.append(out)) for block in blocks]
    try:
        model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return [stream.detach().flatten(0, -2).double() for stream in caught]


def near_unit_share(
    streams: Sequence[Tensor], own: bool = False, rank: int = RANK, near: float = NEAR
) -> float:
    """Mean over blocks of the share of modes with | |lambda| - 1 | < near [Kim 2026].

    Whitening is read in two ways: both neighbours by the first one's scales, or (`own`) each by its own.
    """
    modes = [eigenvalues(x, y, own, rank).abs() for x, y in pairwise(streams)]
    return float(torch.stack([(m - 1).abs().lt(near).double().mean() for m in modes]).mean())


def eigenvalues(before: Tensor, after: Tensor, own: bool = False, rank: int = RANK) -> Tensor:
    """Whitened dynamic mode decomposition: modes of the least-squares map between centred snapshots (M, d).

    X = U S V^T cut to `rank`; in coordinates V S^-1 the map is A = (X^T X + ridge)^-1 X^T Y.
    """
    x, y = before - before.mean(0), after - after.mean(0)
    _, scales, modes = torch.linalg.svd(x, full_matrices=False)
    large = scales > RIDGE * scales[0]
    scales, modes = scales[large][:rank], modes[large][:rank]
    size = len(x) ** 0.5
    ahead = (y @ modes.T).square().sum(0).sqrt().clamp_min(RIDGE) if own else scales
    x, y = x @ modes.T / scales * size, y @ modes.T / ahead * size
    gram = x.T @ x / len(x) + RIDGE * torch.eye(len(scales), dtype=x.dtype)
    operator = torch.linalg.solve(gram, x.T @ y / len(x))
    return torch.linalg.eigvals(operator)
