"""Parameters that are one and the same under two names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgewise.audit.finding import AuditFinding, Kind, Severity
from edgewise.models.model_map import ModelMap
from edgewise.models.names.record import ModelSites

if TYPE_CHECKING:
    from torch import nn


def tied_weights(where: ModelMap, sites: ModelSites) -> Iterator[AuditFinding]:
    """A tie of embedding and readout is a note; a tie that reaches into the blocks is a warning."""
    inside = tuple(f"{block.name}." for stack in sites.stacks for block in stack.blocks)
    for group in where.ties:
        yield _finding(where.model, group, blocks=any(name.startswith(inside) for name in group))


def _finding(model: nn.Module, names: tuple[str, ...], blocks: bool) -> AuditFinding:
    return AuditFinding(
        Kind.TIED,
        Severity.WARNING if blocks else Severity.NOTE,
        names,
        f"{' and '.join(names[:3])} are one parameter",
        "a parameter for each block"
        if blocks
        else "often intended; the readout then has the embedding's standard deviation",
        _repair(model, names),
    )


def _repair(model: nn.Module, names: tuple[str, ...]) -> str:
    """Its own copy for the last name: of the parameter, or of the module where the whole module is shared."""
    (first, _, _), (owner, _, last) = names[0].rpartition("."), names[-1].rpartition(".")
    if first != owner and model.get_submodule(first) is model.get_submodule(owner):
        return f"model.set_submodule({owner!r}, __import__('copy').deepcopy(model.get_submodule({first!r})))"
    copy = f"torch.nn.Parameter(model.get_parameter({names[0]!r}).detach().clone())"
    return f"model.get_submodule({owner!r}).{last} = {copy}"
