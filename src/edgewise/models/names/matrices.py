"""The matrices of one block, before their roles are known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgewise.models.names.model_sites import Projection, Rows

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Matrix:
    """A parameter of two or three dimensions: its path in the block, its owner, and its shape as stored."""

    path: str  # without `.weight`
    parameter: str  # full name in the model
    owner: str  # path of the module in the block
    shape: tuple[int, ...]
    transposed: bool | None  # None: the owner does not say; shapes must
    bias: str | None

    @property
    def pattern(self) -> str:
        """The path with numbers blotted out: the same for all heads, or all experts."""
        return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1#", self.path)

    def sizes(self, transposed: bool) -> tuple[int, int]:
        """(out, in)."""
        first, second = self.shape[-2:]
        return (second, first) if transposed else (first, second)


def matrices_of(block: nn.Module, name: str) -> list[Matrix]:
    """All parameters of two or three dimensions, in the order of the module."""
    matrices = []
    for path, parameter in block.named_parameters():
        if parameter.ndim not in (2, 3) or 1 in parameter.shape or path.endswith("bias"):
            continue
        owner, _, last = path.rpartition(".")
        module = block.get_submodule(owner)
        short = owner if last == "weight" else path
        matrices.append(
            Matrix(
                path=short,
                parameter=f"{name}.{path}",
                owner=owner,
                shape=tuple(parameter.shape),
                transposed=_transposed(module, last, tuple(parameter.shape)),
                bias=_bias(module, name, path),
            )
        )
    return matrices


def _transposed(module: nn.Module, last: str, shape: tuple[int, ...]) -> bool | None:
    """Return how the owner says its matrix is stored: nn.Linear (out, in), Conv1D (in, out), else unknown."""
    if last != "weight":
        return False if type(module).__name__ == "MultiheadAttention" else None
    if getattr(module, "nf", None) == shape[-1] and not hasattr(module, "out_features"):
        return True
    return False if getattr(module, "out_features", None) == shape[0] else None


def _bias(module: nn.Module, name: str, path: str) -> str | None:
    stem = path.removesuffix("weight")
    for candidate in (f"{stem}bias", f"{path}_bias"):
        if module._parameters.get(candidate.rpartition(".")[2]) is not None:
            return f"{name}.{candidate}"
    return None


def container_of(matrices: Sequence[Matrix]) -> str:
    """The path of the smallest module that holds them all; indices of heads are not part of it."""
    owners = [m.owner.split(".") for m in matrices]
    # A bare parameter is owned by the attention itself; a Linear is a child of it.
    homes = [o if m.path != m.owner else o[:-1] for o, m in zip(owners, matrices, strict=True)]
    shared = _common_start(homes)
    while shared and (shared[-1].isdigit() or shared[-1].lower() in ("heads", "self")):
        shared = shared[:-1]
    return ".".join(shared)


def _common_start(paths: Sequence[list[str]]) -> list[str]:
    shared = []
    for words in zip(*paths, strict=False):
        if len(set(words)) > 1:
            break
        shared.append(words[0])
    return shared


def stream_width(matrices: Sequence[Matrix], norm_widths: Iterable[int]) -> int:
    """The width of the residual stream: that of most norms, else the size that most matrices share."""
    votes = Counter(norm_widths) or Counter(size for matrix in matrices for size in matrix.shape[-2:])
    return votes.most_common(1)[0][0]


def projection(
    role: str,
    parts: Sequence[Matrix],
    *,
    width_in: int | None = None,
    rows: Rows | None = None,
    transposed: bool | None = None,
    experts: int | None = None,
) -> Projection:
    """The Projection made of these parts (one, or one per head or expert), some of its rows or all."""
    first = parts[0]
    if transposed is None:
        transposed = first.transposed if first.transposed is not None else _by_width(first, width_in)
    out, into = first.sizes(transposed)
    expert_count = first.shape[0] if len(first.shape) == 3 else 0
    if experts is not None:
        expert_count = experts
    joined = out if expert_count else out * len(parts)
    biases = tuple(part.bias for part in parts if part.bias is not None)
    return Projection(
        role,
        tuple(part.parameter for part in parts),
        into,
        rows.count if rows else joined,
        transposed,
        rows,
        expert_count,
        biases if len(biases) == len(parts) else (),
    )


def _by_width(matrix: Matrix, width_in: int | None) -> bool:
    """Stored (in, out) when the input's width stands first and not last."""
    first, last = matrix.shape[-2:]
    return width_in is not None and first == width_in != last
