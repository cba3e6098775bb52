"""One block of a model, taken apart: attention, MLP, norms, and what is left over.

The matrices of one block, before anybody knows what they are for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgewise.adapters.roles import names as role_names
from edgewise.adapters.roles import norm as norm_sites
from edgewise.adapters.roles import record as roles
from edgewise.adapters.roles.attention import find_attention
from edgewise.adapters.roles.mlp import find_mlp
from edgewise.adapters.roles.record import AttentionSite, BlockSite, MLPSite, NormSite, Projection, Rows
from edgewise.errors import BadInput

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
    found = []
    for path, parameter in block.named_parameters():
        if parameter.ndim not in (2, 3) or 1 in parameter.shape or path.endswith("bias"):
            continue
        owner, _, last = path.rpartition(".")
        module = block.get_submodule(owner)
        short = owner if last == "weight" else path
        found.append(
            Matrix(
                path=short, parameter=f"{name}.{path}", owner=owner, shape=tuple(parameter.shape),
                transposed=_transposed(module, last, tuple(parameter.shape)), bias=_bias(module, name, path),
            )
        )  # fmt: skip
    return found


def _transposed(module: nn.Module, last: str, shape: tuple[int, ...]) -> bool | None:
    """How the owner says its matrix is stored: nn.Linear (out, in), Conv1D (in, out), else unknown."""
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
    role: str, parts: Sequence[Matrix], *, width_in: int | None = None, rows: Rows | None = None,
    transposed: bool | None = None, experts: int | None = None,
) -> Projection:  # fmt: skip
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
        role, tuple(part.parameter for part in parts), into, rows.count if rows else joined, transposed, rows,
        expert_count, biases if len(biases) == len(parts) else (),
    )  # fmt: skip


def _by_width(matrix: Matrix, width_in: int | None) -> bool:
    """Stored (in, out) when the input's width stands first and not last."""
    first, last = matrix.shape[-2:]
    return width_in is not None and first == width_in != last


class OpenBlock:
    """A block with its matrices sorted; norms get their roles when the position is known."""

    def __init__(self, model: nn.Module, name: str, index: int, config: Any) -> None:
        self.name, self.index = name, index
        self.module = model.get_submodule(name)
        self.matrices = [m for m in matrices_of(self.module, name) if not _is_table(self.module, m)]
        self.norm_paths = norm_sites.find_norms(self.module)
        self.stream_norms = [p for p in self.norm_paths if norm_sites.inner_role(p) is None]
        self.width = stream_width(self.matrices, self._norm_widths())
        self.attention = self._attention(config, cross=False)
        self.cross = self._attention(config, cross=True)
        self.mlp = self._mlp()

    def _norm_widths(self) -> list[int]:
        vectors = (self.module.get_submodule(path)._parameters.get("weight") for path in self.stream_norms)
        return [vector.numel() for vector in vectors if vector is not None]

    def _attention(self, config: Any, cross: bool) -> AttentionSite | None:
        return find_attention(self.module, self.name, self.matrices, self.width, config, cross=cross)

    def _mlp(self) -> MLPSite | None:
        attentions = [site for site in (self.attention, self.cross) if site is not None]
        taken = {name for site in attentions for p in site.projections for name in p.parameters}
        homes = [site.name for site in attentions if site.name != self.name]
        rest = [m for m in self.matrices if m.parameter not in taken]
        rest = [m for m in rest if not any(m.parameter.startswith(f"{home}.") for home in homes)]
        return find_mlp(self.name, rest, self.width)

    def found(self) -> dict[str, Any]:
        """What has been found, by role, for the check that all blocks have the same."""
        return {"attention (query, key, value, output)": self.attention, "MLP (input, output)": self.mlp}

    def close(self, norm_roles: Mapping[str, str], parallel: bool) -> BlockSite:
        """The finished record; `norm_roles` is by path in the block."""
        if self.attention is None or self.mlp is None:
            raise BadInput(f"{self.name} has no attention or no MLP that names and shapes reveal.")
        norms = tuple(self._norm(path, norm_roles) for path in self.norm_paths if path in norm_roles or _inner(path))
        scales = tuple(f"{self.name}.{path}" for path, _ in self.module.named_parameters() if _is_scale(path))
        return BlockSite(
            self.name, self.index, self.attention, self.mlp, norms, None if parallel else self._middle(norms),
            self.cross, scales, self._left_over(norms, scales),
        )  # fmt: skip

    def _norm(self, path: str, norm_roles: Mapping[str, str]) -> NormSite:
        return norm_sites.site(self.module, self.name, path, _inner(path) or norm_roles[path])

    def _middle(self, norms: tuple[NormSite, ...]) -> str:
        """The module whose input is the stream after attention: the MLP's norm, else the MLP itself."""
        assert self.mlp is not None
        before = next((norm.name for norm in norms if norm.role == roles.BEFORE_MLP), None)
        if before is not None:
            return before
        return self.mlp.name if self.mlp.name != self.name else (self.mlp.gate or self.mlp.input).module

    def _left_over(self, norms: tuple[NormSite, ...], scales: tuple[str, ...]) -> tuple[str, ...]:
        """Parameters of the block without a role."""
        sites = [s for s in (self.attention, self.cross, self.mlp) if s is not None]
        used = {name for s in sites for p in s.projections for name in (*p.parameters, *p.biases)} | {*scales}
        homes = tuple(f"{norm.name}." for norm in norms)
        full = (f"{self.name}.{path}" for path, _ in self.module.named_parameters())
        return tuple(name for name in full if name not in used and not name.startswith(homes or ("\0",)))


def _inner(path: str) -> str | None:
    return norm_sites.inner_role(path)


def _is_scale(path: str) -> bool:
    return role_names.any_word(role_names.SCALES, path)


def _is_table(block: nn.Module, matrix: Matrix) -> bool:
    """Embeddings inside a block (relative positions) are no projections."""
    from torch import nn

    return isinstance(block.get_submodule(matrix.owner), nn.Embedding)
