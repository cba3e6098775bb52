"""Whose steps count: those of the optimizer that was named, or of the one that moves most of the model."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import nn
from torch.optim.optimizer import Optimizer


class OwnOptimizer:
    """Remembers of every optimizer whether it is ours; weakly, since a new one may stand where a freed one stood."""

    def __init__(self, model: nn.Module, named: Optimizer | None) -> None:
        self.model, self.named = model, named
        self._known: WeakKeyDictionary[Optimizer, bool] = WeakKeyDictionary()

    def counts(self, optimizer: Optimizer) -> bool:
        if optimizer not in self._known:
            self._known[optimizer] = self._is_ours(optimizer)
        return self._known[optimizer]

    def _is_ours(self, optimizer: Optimizer) -> bool:
        """Whether it moves most of the matrices (or is the one that was named)."""
        if self.named is not None:
            return optimizer is self.named or optimizer is getattr(self.named, "optimizer", None)
        mine = {id(p): p.numel() for p in self.model.parameters() if p.requires_grad}
        moved = sum(mine.get(id(p), 0) for group in optimizer.param_groups for p in group["params"])
        return 2 * moved > sum(mine.values())
