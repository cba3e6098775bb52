"""What initialize_ did, and the way back: every written parameter is kept as it was and restored bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgewise.critical.plan.plan import Plan
from edgewise.errors import BadInput


def local(parameter: Tensor) -> Tensor:
    """This rank's part of a sharded parameter (DTensor), or the parameter itself."""
    part = getattr(parameter, "to_local", None)
    return part() if callable(part) else parameter


@dataclass(eq=False)
class Applied:
    """An applied plan; `undo()` restores the weights. It holds a copy of each written parameter until dropped."""

    plan: Plan
    seed: int
    model: nn.Module
    kept: Mapping[str, Tensor] | None  # None where there was nothing to keep: a model that came from the meta device

    def undo(self) -> None:
        """The weights from before, bit for bit; raises when the model had none."""
        if self.kept is None:
            raise BadInput("there is nothing to go back to: before initialize_ this model was on the meta device.")
        with torch.no_grad():
            for name, values in self.kept.items():
                local(self.model.get_parameter(name)).copy_(values)

    def __str__(self) -> str:
        written = f"Written with seed {self.seed}: {len(self.plan.parameters)} parameters."
        return f"{self.plan}\n{written if self.plan.changes else 'Nothing was written.'}"
