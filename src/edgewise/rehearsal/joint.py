"""Muon for the matrices inside a network and AdamW for the rest, as one optimizer with one first rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from edgewise.errors import BadInput
from edgewise.rehearsal.optimizers import trainable

ADAMW_SHARE = 0.15  # of Muon's rate: 3e-3 beside 0.02, as people use them


class Joint(Optimizer):
    """Several optimizers that step together; their groups are listed one after another."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = list(optimizers)
        super().__init__([p for o in self.optimizers for g in o.param_groups for p in g["params"]], {})
        self.param_groups = [group for o in self.optimizers for group in o.param_groups]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of each."""
        result = None if closure is None else closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return result


def muon_and_adamw(model: nn.Module) -> Optimizer:
    """Muon where a matrix maps a stream to a stream; AdamW for embeddings, the readout, vectors and everything else."""
    if not hasattr(torch.optim, "Muon"):
        raise BadInput(
            f"torch {torch.__version__} has no torch.optim.Muon. Use torch 2.9 or later, or adamw or sgd."
        )
    tables = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    parameters = trainable(model)
    square = [p for p in parameters if p.ndim == 2 and id(p) not in tables]
    readout = square[-1] if len(square) > 1 else None  # in the order of definition the readout comes last
    inside = [p for p in square if p is not readout]
    if not inside:
        raise BadInput(
            f"{type(model).__name__} has no matrix for Muon. Use adamw or sgd, or a function of your own."
        )
    chosen = {id(p) for p in inside}
    others = [p for p in parameters if id(p) not in chosen]
    muon = torch.optim.Muon(inside, lr=1.0, weight_decay=0.0)
    rest = [torch.optim.AdamW(others, lr=ADAMW_SHARE, betas=(0.9, 0.95), weight_decay=0.0)] if others else []
    return Joint([muon, *rest])
