"""A running training held against its rehearsal: how far one step moves the last stream, and at the edge moved it.

    change = |x_after - x_before| / |x_before|

x: what the last block gives for the batch of the sample before, in evaluation mode, with the weights before and after
the optimizer's step; the rehearsal measured the same on a batch that it did not train on.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.monitor.aside import Call
from edgewise.probe.isolation import observed


@dataclass(frozen=True)
class Edge:
    """The largest rate that learned in a rehearsal, and what a step did there."""

    rate: float
    step_change: float
    separation: float | None

    def against(self, change: float, separation: float) -> dict[str, float]:
        """A step's change of the stream and the separation of its tokens, against those at the edge, by column."""
        apart = separation / self.separation if self.separation else math.nan
        return {"stream_change_of_edge": change / self.step_change, "separation_of_edge": apart}

    def json(self) -> dict[str, Any]:
        return asdict(self)


def edge_of(rate: Any) -> Edge | None:
    """The edge of what `edgewise.learning_rate` returned."""
    if rate is None:
        return None
    if not hasattr(rate, "at_edge"):
        raise BadInput(f"rate takes what edgewise.learning_rate returned, got {type(rate).__name__}.")
    edge = rate.at_edge
    if edge is None or not edge.step_change:
        raise BadInput("no rate learned in this rehearsal, so there is no edge to hold the training against.")
    return Edge(float(edge.rate), float(edge.step_change), edge.separation)


class StreamChange:
    """The stream behind the last block before and after a step, in passes of our own without gradients."""

    def __init__(self, model: nn.Module, block: str) -> None:
        self.model, self.block = model, block
        self._call: Call | None = None
        self._before: Tensor | None = None
        self._seen: Tensor | None = None

    def before(self, call: Call | None) -> None:
        """Look at the stream with the weights that the step begins with."""
        self._call = call
        self._before = None if call is None else self._look(call)

    def after(self) -> Tensor:
        """The change that the step made, on the device; not a number where there was no look before it."""
        if self._call is None or self._before is None:
            return torch.tensor(math.nan, device=next(self.model.parameters()).device)
        old, new = self._before, self._look(self._call)
        self._call = self._before = None
        return torch.linalg.vector_norm(new - old) / torch.linalg.vector_norm(old)

    def _look(self, call: Call) -> Tensor:
        inputs, named = call
        with observed(self.model) as stack, torch.no_grad():
            hook = self.model.get_submodule(self.block).register_forward_hook(self._catch)
            stack.callback(hook.remove)
            self.model(*inputs, **named)
        seen, self._seen = self._seen, None
        assert seen is not None
        return seen

    def _catch(self, module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG002
        stream = output[0] if isinstance(output, (tuple, list)) else output
        self._seen = stream.detach().float().clone()
