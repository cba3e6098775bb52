"""The activations of the knobs as torch functions: the one table that networks and adapters read.

`knobs.ACTIVATIONS` has the names; torch is imported when a function is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

from edgewise.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

Function = Callable[["Tensor"], "Tensor"]
LEAKY_SLOPE = 0.01  # of "leaky_relu"; "leaky_relu:0.2" sets another


@cache
def torch_activations() -> dict[str, Function]:
    """Return every named activation as a function of a tensor, the commonest first: adapters try them in this order."""
    import torch
    from torch.nn import functional as F

    return {
        "gelu": F.gelu,
        "gelu_tanh": partial(F.gelu, approximate="tanh"),
        "relu": F.relu,
        "silu": F.silu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
        "relu2": lambda x: F.relu(x).square(),
        "leaky_relu": _leaky_relu(LEAKY_SLOPE),
        "softplus": F.softplus,
        "erf": torch.erf,
        "sin": torch.sin,
        "linear": lambda x: x,
    }


def torch_activation(kind: str | Function) -> Function:
    """Return the function of a name ("leaky_relu:0.2" sets the slope), or the callable itself."""
    if callable(kind):
        return kind
    name, _, parameter = kind.partition(":")
    if name == "leaky_relu" and parameter:
        return _leaky_relu(leaky_slope(kind))
    if parameter or name not in torch_activations():
        raise BadInput(
            f"activation {kind!r} has no torch function; expected a callable, 'leaky_relu:SLOPE' or one of "
            f"{', '.join(torch_activations())}."
        )
    return torch_activations()[name]


def _leaky_relu(slope: float) -> Function:
    from torch.nn import functional as F

    return partial(F.leaky_relu, negative_slope=slope)


def leaky_slope(kind: str) -> float:
    """Return the number after the colon of "leaky_relu:0.2"."""
    try:
        return float(kind.partition(":")[2])
    except ValueError:
        raise BadInput(
            f"activation {kind!r}: expected a number after the colon, as in 'leaky_relu:0.2'"
        ) from None
