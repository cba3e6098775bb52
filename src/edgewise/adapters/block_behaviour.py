"""What a block of an unknown class does: its activation, whether it looks ahead, whether position matters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgewise.adapters.site_types import BlockSite
from edgewise.adapters.watching import TOKENS, Seen, random_stream, run_block

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Behaviour:
    """What was seen; None where it could not be."""

    activation: str | None
    causal: bool | None
    positions: bool | None  # attention itself tells positions apart (rotary, relative bias)
    reason: str = ""  # why not, if the block did not run


def behaviour_of(model: nn.Module, block: BlockSite, width: int) -> Behaviour:
    """Run the block on random streams with random weights and compare."""
    first, last = block.mlp.gate or block.mlp.input, block.mlp.output
    watched = {name for name in (first.module, block.mlp.input.module, last.module) if name}
    x = random_stream(model, width)
    seen = run_block(model, block.name, x, watched)
    if isinstance(seen, str):
        return Behaviour(None, None, None, seen)
    activation, causal = _activation(seen, block), _is_causal(model, block.name, x, seen)
    if not seen.alone:
        return Behaviour(activation, causal, None, "it ran only inside its model")
    return Behaviour(activation, causal, _tells_positions(model, block.name, x, seen, causal))


def _activation(seen: Seen, block: BlockSite) -> str | None:
    """The function between the two matrices: every candidate is tried on the numbers that went through."""
    import torch

    mlp = block.mlp
    before = seen.outputs.get((mlp.gate or mlp.input).module)
    after = seen.inputs.get(mlp.output.module)
    if before is None or after is None or mlp.output.experts:
        return None
    factor: Tensor | float = 1.0
    if mlp.gate is not None and mlp.gate.module != mlp.input.module:
        factor = seen.outputs[mlp.input.module]
    elif mlp.gate is not None:  # fused: halves of one output
        before, factor = before.chunk(2, -1)
    for name, function in _candidates().items():
        if torch.allclose(function(before) * factor, after, rtol=1e-4, atol=1e-5):
            return name
    return None


def _candidates() -> dict[str, Callable[[Tensor], Tensor]]:
    import torch
    from torch.nn import functional as F

    return {
        "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu, "silu": F.silu,
        "tanh": torch.tanh, "sigmoid": torch.sigmoid, "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
        "relu2": lambda x: F.relu(x) ** 2, "leaky_relu": F.leaky_relu, "softplus": F.softplus,
        "erf": torch.erf, "sin": torch.sin, "linear": lambda x: x,
    }  # fmt: skip


def _is_causal(model: nn.Module, block: str, x: Tensor, seen: Seen) -> bool | None:
    """Whether the first token's result stays when the last token changes."""
    other = x.clone()
    other[:, -1] = other[:, -1].flip(-1)
    return _unmoved(model, block, other, seen, 0, (*range(TOKENS - 1), 0))


def _tells_positions(model: nn.Module, block: str, x: Tensor, seen: Seen, causal: bool | None) -> bool | None:
    """Whether swapping two earlier tokens changes what the last one gets; a mask alone does not."""
    if causal is None:
        return None
    order = (1, 0, *range(2, TOKENS))
    unmoved = _unmoved(model, block, x[:, order], seen, TOKENS - 1, order)
    return None if unmoved is None else not unmoved


def _unmoved(
    model: nn.Module, block: str, x: Tensor, seen: Seen, token: int, ids: tuple[int, ...]
) -> bool | None:
    """Whether the result at one token is the same for another stream (or other ids)."""
    import torch

    again = run_block(model, block, x, set(), ids)
    if isinstance(again, str) or again.outputs[block].ndim != 3:
        return None
    new, old = again.outputs[block][:, token], seen.outputs[block][:, token]
    return torch.allclose(new, old, rtol=1e-4, atol=1e-5 * math.sqrt(x.shape[-1]))
