"""How long a direction is beside the weights it moves: by filter, by layer, by model [Li 2018].

    filter  d_i <- d_i |w_i| / |d_i| for every output row i (filter of a convolution, row of an embedding)
    layer   the same for every parameter as a whole          model   the same for all that moves

A row whose weights are zero does not move. Reach 1 then means: as far as the weights are long.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput

NORMALIZATIONS = ("filter", "layer", "model", "none")
TURNED = ("Conv1D", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")  # outputs in the second dimension


def normalized(
    model: nn.Module, direction: Mapping[str, Tensor], start: Mapping[str, Tensor], masks: Mapping[str, Tensor],
    kind: str,
) -> dict[str, Tensor]:  # fmt: skip
    """The direction (zero outside the masks) with lengths taken from the weights at the start."""
    if kind not in NORMALIZATIONS:
        raise BadInput(f"normalization = {kind!r} is not known: expected one of {', '.join(NORMALIZATIONS)}.")
    weights = {name: start[name] * masks[name] for name in direction}
    if kind == "none":
        return dict(direction)
    if kind == "model":
        factor = _ratio(_length(weights), _length(direction))
        return {name: d * factor.to(d.dtype) for name, d in direction.items()}
    kept = {name: filter_dimensions(model, name) if kind == "filter" else () for name in direction}
    return {name: d * _ratio(_norms(weights[name], kept[name]), _norms(d, kept[name])) for name, d in direction.items()}


def filter_dimensions(model: nn.Module, name: str) -> tuple[int, ...]:
    """The dimensions that number the filters of a parameter; a vector is one filter."""
    owner = model.get_submodule(name.rpartition(".")[0])
    parameter = model.get_parameter(name)
    if parameter.ndim < 2:
        return ()
    if type(owner).__name__ in TURNED:
        return (1,)
    convolution = isinstance(owner, nn.modules.conv._ConvNd)
    return (0, 1) if parameter.ndim == 3 and not convolution else (0,)  # experts: (expert, out, in)


def _norms(tensor: Tensor, kept: tuple[int, ...]) -> Tensor:
    others = [k for k in range(tensor.ndim) if k not in kept]
    return tensor.double().square().sum(others, keepdim=True).sqrt().to(tensor.dtype) if others else tensor.abs()


def _length(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([t.double().square().sum().cpu() for t in tensors.values()]).sum().sqrt()


def _ratio(wanted: Tensor, present: Tensor) -> Tensor:
    """wanted / present, zero where there is nothing to scale."""
    return torch.where(present > 0, wanted / present.clamp_min(torch.finfo(present.dtype).tiny), 0.0)
