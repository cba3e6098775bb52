"""Where the streams of a model from a config are, as a narrow twin of the same class and depth shows them.

A reading names operations by module, call and count, which do not depend on widths: what is read in the twin holds in
the model itself, and costs less than one of its own passes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from edgewise.adapters.config.translate import described_by_config
from edgewise.adapters.from_config.sizes import Scale
from edgewise.adapters.from_config.small_model import blueprint
from edgewise.adapters.reading.read import read
from edgewise.adapters.reading.record import Reading, Stack
from edgewise.adapters.unwrap import unwrap
from edgewise.architecture import Architecture
from edgewise.errors import BadInput


def read_twin(config: Any, model: nn.Module, tokens: int | None) -> tuple[Reading, Stack, Architecture] | None:
    """The reading of a narrow twin, its stack, and the description by the config's family.

    None where the family is not listed, or the twin is not alike: then the model itself has to be read.
    """
    described = described_by_config(unwrap(model), tokens)
    if described is None:
        return None
    try:
        plan = blueprint(config, type(model))
        if not plan.narrow:  # a twin as wide as the model would cost as much
            return None
        twin = plan.build(Scale(depth=plan.full_depth))
        reading = read(twin)
    except BadInput:
        return None
    stack = reading.default
    if stack is None or len(reading.stacks) > 1 or stack.depth != described.depth or not _certain(stack, twin, model):
        return None
    return reading, replace(stack, width=described.width), described


def _certain(stack: Stack, twin: nn.Module, model: nn.Module) -> bool:
    """All of the stack was read, and both have the same modules."""
    names, own = ([name for name, _ in each.named_modules()] for each in (twin, model))
    return not stack.not_read and stack.layout is not None and names == own
