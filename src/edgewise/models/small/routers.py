"""Routers of experts in a small model, made as decided as those of the full width.

How the chosen experts are weighed follows no power of the width: the logits of a router spread with the square root
of its fan-in, and a softmax bends that. So the small router is drawn wider until its logits spread as in the full one.
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import nn

from edgewise.errors import BadInput
from edgewise.models.behavior.record import Stack
from edgewise.models.small.power_law import TOLERANCE, UNIT
from edgewise.models.small.sizes import EXPERTS, configs


def router_weights(model: nn.Module, config: Any, stack: Stack, width: int) -> list[nn.Parameter]:
    """The matrices from the stream to one logit per expert: by their shape, outside attention."""
    counts = {
        v
        for _, values in configs(config)
        for k, v in values.items()
        if EXPERTS.match(k) and isinstance(v, int)
    }
    layer = re.compile(rf"^{re.escape(stack.name)}\.\d+\.")
    attention = tuple(layer.sub("", branch.module) for branch in stack.attentions)
    places: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        place = layer.sub("", name)
        shape = set(parameter.shape) if parameter.dim() == 2 else set()
        if place != name and width in shape and shape & counts - {width} and not place.startswith(attention):
            places.setdefault(place, []).append(parameter)
    if len(places) != 1:
        raise BadInput(
            f"the routers of {stack.name} could not be told from its other matrices, so that the weights of experts at "
            "full width are unknown. Build the model and describe that."
        )
    return next(iter(places.values()))


def draw_exponent(narrow: list[nn.Parameter], wide: list[nn.Parameter], factor: int) -> float:
    """The power of the width that the standard deviation of routers goes with: 0, or -1/2 where fan-in is counted."""
    small, large = (math.sqrt(sum(float(w.detach().var()) for w in ws) / len(ws)) for ws in (narrow, wide))
    slope = math.log(large / small) / math.log(factor) if small and large else 0.0
    exponent = UNIT * round(slope / UNIT)
    if abs(slope - exponent) > TOLERANCE:
        raise BadInput(
            f"the routers' weights grow as the width to the power {slope:.2f}. Expected a multiple of 1/2, so how much "
            "each expert weighs at full width is not known. Build the model and describe that."
        )
    return exponent


def spread_as(weights: list[nn.Parameter], ratio: float, exponent: float) -> None:
    """Multiply routers so that their logits spread as at `ratio` times the width."""
    with torch.no_grad():
        for weight in weights:
            weight.mul_(ratio ** (exponent + 0.5))
