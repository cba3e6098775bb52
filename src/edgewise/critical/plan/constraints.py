"""What a plan may not touch: parameters the user keeps, and ties that reach beyond the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch

from torch import nn

from edgewise.errors import BadInput


@dataclass
class Kept:
    """Names to be left alone: whole parameters, modules (all below them) or patterns with * (fnmatch)."""

    names: frozenset[str]
    tied: dict[str, tuple[str, ...]]  # parameter: all its names
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, model: nn.Module, keep: Sequence[str]) -> Kept:
        """Refuses a name that is nowhere: a typing error would silently change what was to be kept."""
        if isinstance(keep, str):
            raise BadInput(f"keep = {keep!r} is one text; expected a list of names, for example keep=[{keep!r}].")
        names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        found: set[str] = set()
        for pattern in keep:
            hit = {n for n in names if n == pattern or n.startswith(f"{pattern}.") or fnmatch(n, pattern)}
            if not hit:
                raise BadInput(f"keep names {pattern!r}, which is no parameter, module or pattern of this model.")
            found |= hit
        return cls(frozenset(found), _ties(model))

    def allows(self, name: str) -> bool:
        """Not kept under any of its names."""
        return not any(other in self.names for other in self.tied.get(name, (name,)))

    def first(self, name: str) -> bool:
        """True for the one name under which a shared parameter is listed."""
        return self.tied.get(name, (name,))[0] == name


def _ties(model: nn.Module) -> dict[str, tuple[str, ...]]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {name: tuple(group) for group in names.values() if len(group) > 1 for name in group}
