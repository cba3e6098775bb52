"""One block of a model, taken apart: attention, MLP, norms, and what is left over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgewise.errors import BadInput
from edgewise.models.names import names as role_names
from edgewise.models.names import norm as norm_sites
from edgewise.models.names import record as roles
from edgewise.models.names.attention import find_attention
from edgewise.models.names.matrices import Matrix, matrices_of, stream_width
from edgewise.models.names.mlp import find_mlp
from edgewise.models.names.record import AttentionSite, BlockSite, MLPSite, NormSite

if TYPE_CHECKING:
    from torch import nn


class OpenBlock:
    """A block with its matrices sorted; norms get their roles when the position is known."""

    def __init__(
        self,
        model: nn.Module,
        name: str,
        index: int,
        config: Any,
        known: tuple[AttentionSite, MLPSite | None] | None = None,
    ) -> None:
        self.name, self.index = name, index
        self.module = model.get_submodule(name)
        self.matrices = [m for m in matrices_of(self.module, name) if not _is_table(self.module, m)]
        self.norm_paths = norm_sites.find_norms(self.module)
        self.stream_norms = [p for p in self.norm_paths if norm_sites.inner_role(p) is None]
        self.width = stream_width(self.matrices, self._norm_widths())
        self.attention = known[0] if known else self._attention(config, cross=False)
        self.cross = None if known else self._attention(config, cross=True)
        self.mlp = known[1] if known else self._mlp()
        self.alone = known is not None and known[1] is None  # attention without an MLP

    def _norm_widths(self) -> list[int]:
        norms = (self.module.get_submodule(path) for path in self.stream_norms)
        pairs = ((norm, norm_sites.gain_name(norm)) for norm in norms)
        return [norm.get_parameter(gain).numel() for norm, gain in pairs if gain is not None]

    def _attention(self, config: Any, cross: bool) -> AttentionSite | None:
        return find_attention(self.module, self.name, self.matrices, self.width, config, cross=cross)

    def _mlp(self) -> MLPSite | None:
        attentions = [site for site in (self.attention, self.cross) if site is not None]
        taken = {name for site in attentions for p in site.projections for name in p.parameters}
        homes = [site.name for site in attentions if site.name != self.name]
        rest = [m for m in self.matrices if m.parameter not in taken]
        rest = [m for m in rest if not any(m.parameter.startswith(f"{home}.") for home in homes)]
        return find_mlp(self.name, rest, self.width)

    def parts(self) -> dict[str, Any]:
        """The parts by role, for the check that all blocks have the same."""
        return {"attention (query, key, value, output)": self.attention, "MLP (input, output)": self.mlp}

    def close(self, norm_roles: Mapping[str, str], parallel: bool) -> BlockSite:
        """The finished record; `norm_roles` is by path in the block."""
        if self.attention is None or (self.mlp is None and not self.alone):
            raise BadInput(f"{self.name} has no attention or no MLP that names and shapes reveal.")
        norms = tuple(
            self._norm(path, norm_roles) for path in self.norm_paths if path in norm_roles or _inner(path)
        )
        scales = tuple(f"{self.name}.{path}" for path, _ in self.module.named_parameters() if _is_scale(path))
        return BlockSite(
            self.name,
            self.index,
            self.attention,
            self.mlp,
            norms,
            None if parallel else self._middle(norms),
            self.cross,
            scales,
            self._left_over(norms, scales),
        )

    def _norm(self, path: str, norm_roles: Mapping[str, str]) -> NormSite:
        return norm_sites.site(self.module, self.name, path, _inner(path) or norm_roles[path])

    def _middle(self, norms: tuple[NormSite, ...]) -> str | None:
        """The module whose input is the stream after attention: the MLP's norm, else the MLP itself."""
        if self.mlp is None:
            return None
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
    """Embeddings inside a block (relative positions) are not projections."""
    from torch import nn

    return isinstance(block.get_submodule(matrix.owner), nn.Embedding)
