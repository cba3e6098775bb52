"""structure(model): what a model's stack is, block by block, also where the theory does not cover it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgewise.errors import BadInput
from edgewise.models.behavior.describe import outside
from edgewise.models.behavior.record import Reading
from edgewise.models.behavior.structure import Structure, structure_of
from edgewise.models.model import describe_read_module
from edgewise.models.model_map import ModelMap

if TYPE_CHECKING:
    from torch import nn


def structure(model: nn.Module, batch: Any = None, *, stack: str | None = None) -> Structure:
    """What a stack of a model is: block by block its branches, what they see, norms, multipliers, positions.

    model  a built model; nothing of it is changed
    batch  as in `describe`: whatever the model accepts; default: made from its own signature
    stack  which stack of a model with several (`edgewise.models.stacks` lists them); default: the language stack

    Every fact is certain, or None with its reason in `absent`. `outside` says why the theory does not cover the stack;
    where it is empty, `describe` gives the description that `predict` takes.

    >>> from torch import nn
    >>> layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    >>> found = structure(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    >>> found.depth, [branch.kind for branch in found.blocks[0]], found.blocks[0][0].norm
    (3, ['attention', 'MLP'], 'post')
    """
    where = ModelMap(model)
    return structure_of_read(where.model, where.reading(batch, stack, closely=True), where)


def structure_of_read(model: nn.Module, reading: Reading, where: ModelMap | None = None) -> Structure:
    """Of the default stack of a model that has been read."""
    stack = reading.default
    if stack is None:
        raise BadInput(
            f"{reading.model} has no stack whose structure can be read: "
            f"{'; '.join(reading.not_read) or 'none was found'}."
        )
    try:
        description = describe_read_module(model, reading, where=where)
    except BadInput as refusal:
        return structure_of(reading, stack, tuple(outside(stack)) or (str(refusal),))
    return structure_of(reading, stack, left_out=description.unmodelled)
