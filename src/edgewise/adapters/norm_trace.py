"""Where the norms of a block stand, found by watching it work: for classes that nobody has described.

What a norm is for follows from which tensor it was given and where its result went.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgewise.adapters import site_types as roles
from edgewise.adapters.site_types import AttentionSite, MLPSite
from edgewise.adapters.watching import Seen, random_stream, run_block, same

if TYPE_CHECKING:
    from torch import Tensor, nn


def trace_norms(
    model: nn.Module, block: str, norms: Sequence[str], attention: AttentionSite, mlp: MLPSite, width: int
) -> tuple[dict[str, str], bool] | str:
    """(role of every norm, whether the block is parallel), or a sentence why the block could not be run."""
    first = (mlp.gate or mlp.input).module
    homes = {attention.name, attention.output.module, mlp.name, mlp.output.module, first}
    seen = run_block(model, block, random_stream(model, width), {*norms, *homes} - {""})
    return seen if isinstance(seen, str) else _read(seen, block, norms, attention, mlp)


def _read(
    seen: Seen, block: str, norms: Sequence[str], attention: AttentionSite, mlp: MLPSite
) -> tuple[dict[str, str], bool]:
    x, y = seen.inputs.get(block), seen.outputs.get(block)
    attended = seen.outputs.get(attention.output.module, seen.outputs.get(attention.name))
    thought = seen.outputs.get(mlp.output.module, seen.outputs.get(mlp.name))
    fed = seen.inputs.get((mlp.gate or mlp.input).module, seen.inputs.get(mlp.name))
    found: dict[str, str] = {}
    for name in norms:
        into, out = seen.inputs.get(name), seen.outputs.get(name)
        role = _inside(seen, out, attention, mlp) or _role(into, out, x, y, attended, thought)
        if role == roles.BEFORE_ATTENTION and role in found.values() and same(out, fed):
            role = roles.BEFORE_MLP  # two norms of one input: a parallel block
        if role is not None:
            found[name] = role
    return _with_the_middle(seen, norms, found), _parallel(seen, found, x, fed)


def _inside(seen: Seen, out: Tensor | None, attention: AttentionSite, mlp: MLPSite) -> str | None:
    """A norm whose result enters an output matrix stands inside its branch [Wang 2022, sub-norm]."""
    if same(out, seen.inputs.get(attention.output.module)) and attention.output.module != attention.query.module:
        return roles.INSIDE_ATTENTION
    apart = mlp.output.module != mlp.input.module  # experts in one module show their common input only
    return roles.INSIDE_MLP if apart and same(out, seen.inputs.get(mlp.output.module)) else None


def _role(
    into: Tensor | None, out: Tensor | None, x: Tensor | None, y: Tensor | None, attended: Tensor | None,
    thought: Tensor | None,
) -> str | None:  # fmt: skip
    """The role that one norm's input and output prove; None for those of the stream between the branches."""
    for tensor, role in ((attended, roles.AFTER_ATTENTION), (thought, roles.AFTER_MLP), (x, roles.BEFORE_ATTENTION)):
        if same(into, tensor):
            return role
    return roles.OUTSIDE_MLP if same(out, y) else None


def _with_the_middle(seen: Seen, norms: Sequence[str], found: dict[str, str]) -> dict[str, str]:
    """The norms in the middle see x + attention: outside if the block ends in a norm too, else the MLP's."""
    rest = [name for name in norms if name not in found and name in seen.inputs]
    middle = roles.OUTSIDE_ATTENTION if roles.OUTSIDE_MLP in found.values() else roles.BEFORE_MLP
    return found | dict.fromkeys(rest, middle)


def _parallel(seen: Seen, found: dict[str, str], x: Tensor | None, fed: Tensor | None) -> bool:
    """Whether the MLP reads the block's input, or a norm of it."""
    early = [seen.outputs[name] for name in found if same(seen.inputs.get(name), x)]
    return any(same(fed, tensor) for tensor in (x, *early))
