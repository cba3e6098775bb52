"""Numbers of two passes compared in double precision, as tiny initializations would underflow; spectra of matrices."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from edgewise.arrays import in_double
from edgewise.interrupts import check
from edgewise.models.behavior.record import Block

SAMPLE = 65536  # numbers kept of a tensor


def wide(value: Tensor) -> Tensor:
    """In double precision, without its history."""
    return in_double(value.detach())


def size(value: Tensor) -> float:
    return float(wide(value).norm())


def relative(value: Tensor, other: Tensor) -> float:
    """|value - other| / |other|"""
    return float((wide(value) - wide(other)).norm() / (wide(other).norm() + 1e-300))


def spread(value: Tensor) -> float:
    """Return the distance of the rows from their mean, relative to all of them."""
    return relative(value, value.mean(0, keepdim=True).expand_as(value))


def growth(after: Tensor, before: Tensor, factor: float) -> float | None:
    """Exponent g of |after| = factor^g |before|."""
    return exponent(size(after), size(before), factor)


def exponent(after: float, before: float, factor: float) -> float | None:
    known = before > 0 and after > 0 and math.isfinite(after / before)
    return math.log(after / before) / math.log(factor) if known else None


def sample(value: Tensor) -> Tensor:
    return value.detach().flatten()[:SAMPLE].clone()


MATRICES = 24  # inspected, spread over the model
STEPS = 12  # of the power iteration; a random edge is underestimated by a few percent
TRAINED = 1.2  # random matrices give 0.9 to 1; a small GPT after 150 steps 1.5


def copies(model: nn.Module, blocks: tuple[Block, ...]) -> bool | None:
    """Compare the matrices of all blocks: equal numbers in different tensors; None without a pair."""
    if len(blocks) < 2:
        return None
    owners = [_parameters(model, block) for block in blocks]
    pairs = [
        (matrix, other[name])
        for other in owners[1:]
        for name, matrix in owners[0].items()
        if matrix.dim() >= 2
        and name in other
        and other[name] is not matrix
        and other[name].shape == matrix.shape
    ]
    whole = ((_whole(one), _whole(other)) for one, other in pairs)
    equal = [torch.equal(one, other) for one, other in whole if bool(one.any())]
    return all(equal) if equal else None


def _parameters(model: nn.Module, block: Block) -> dict[str, Tensor]:
    """Of the block's module; a block that is two neighbors in one list has none, so of its branches' modules."""
    names = [block.module] if block.module is not None else [branch.module for branch in block.branches]
    modules = [(str(i), model.get_submodule(name)) for i, name in enumerate(names)]
    return {f"{i}.{name}": p for i, module in modules for name, p in module.named_parameters()}


def spectral_edge(model: nn.Module) -> float | None:
    """Median over matrices of the largest singular value over sd (sqrt m + sqrt n), its value for random entries."""
    listed = [p for p in model.parameters() if _is_matrix(p)]
    chosen = listed[:: max(1, len(listed) // MATRICES)][:MATRICES]
    edges = sorted(edge for edge in map(_edge, chosen) if edge is not None)
    return edges[len(edges) // 2] if edges else None


def _whole(parameter: Tensor) -> Tensor:
    """All of a parameter that may lie in shards."""
    check()
    return parameter.full_tensor().detach() if hasattr(parameter, "full_tensor") else parameter.detach()


def _is_matrix(parameter: Tensor) -> bool:
    plain = parameter.is_floating_point() and not parameter.is_meta and parameter.dim() == 2
    return plain and min(parameter.shape) >= 16 and max(parameter.shape) <= 65536


def _edge(matrix: Tensor) -> float | None:
    values = _whole(matrix).float()
    values = values - values.mean()
    spread = float(values.std())
    if not spread > 0:
        return None
    direction = torch.randn(values.shape[1], generator=torch.Generator().manual_seed(0)).to(values.device)
    for _ in range(STEPS):
        direction = values.T @ (values @ (direction / direction.norm()))
    largest = float(direction.norm()) ** 0.5
    return largest / (spread * (values.shape[0] ** 0.5 + values.shape[1] ** 0.5))
