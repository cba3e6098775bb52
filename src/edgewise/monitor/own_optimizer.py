"""Where a step begins and ends: with the optimizer that was named, or with all that move the model, in their order.

    one optimizer             its own step
    several (Muon and AdamW)  from the first one's beginning to the last one's end, as the round before has shown

Before the first round is over, a step ends once those that stepped move more than half of what trains.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary, ref

from torch import nn
from torch.optim.optimizer import Optimizer


class OwnOptimizer:
    """Whose steps count; optimizers are known weakly, since a new one may stand where a freed one stood.

    tell(kind, sentence): where what does not train is said, once.
    """

    def __init__(self, model: nn.Module, named: Optimizer | None, tell: Callable[[str, str], None]) -> None:
        self.model, self.named, self.tell = model, named, tell
        self._known: WeakKeyDictionary[Optimizer, tuple[float, frozenset[int]]] = WeakKeyDictionary()
        self._begun: list[ref[Optimizer]] = []  # of this round, in order
        self._ended: list[ref[Optimizer]] = []
        self._last: ref[Optimizer] | None = None  # which ends a round; None until one has shown it
        self._open = self._told = False

    def begins(self, optimizer: Optimizer) -> tuple[bool, bool]:
        """Whether a step begins with this one, and whether the step before has not ended yet."""
        if not self._share(optimizer):
            return False, False
        self._begun, self._ended = (
            [o for o in these if o() is not None] for these in (self._begun, self._ended)
        )
        again, instead = ref(optimizer) in self._begun, self._replaces(optimizer)
        if self._begun and not (again or instead):
            self._begun.append(ref(optimizer))
            return False, False
        if self._ended:
            self._last = None if instead and not again else self._ended[-1]
            self._complain()
        self._begun, self._ended = [ref(optimizer)], []
        late, self._open = self._open, True
        return True, late

    def ends(self, optimizer: Optimizer) -> bool:
        """Whether a step ends with this one."""
        if not self._share(optimizer):
            return False
        self._ended.append(ref(optimizer))
        last = None if self._last is None else self._last()
        over = self._moved() > 0.5 if last is None else optimizer is last
        closes, self._open = self._open and over, self._open and not over
        return closes

    def _replaces(self, optimizer: Optimizer) -> bool:
        """Whether it moves what another one has moved in this round: it then stands in its place from now on."""
        done = (
            self._known[o][1]
            for o in {each() for each in self._ended}
            if o is not None and o is not optimizer
        )
        return any(not self._known[optimizer][1].isdisjoint(parameters) for parameters in done)

    def _moved(self) -> float:
        """How much of what trains was moved in this round."""
        return sum(self._share(o) for o in {each() for each in self._ended} if o is not None)

    def _share(self, optimizer: Optimizer) -> float:
        """Which part of the parameters that train it moves; all of them, where it is the one that was named."""
        if optimizer not in self._known:
            self._known[optimizer] = self._measure(optimizer)
        return self._known[optimizer][0]

    def _measure(self, optimizer: Optimizer) -> tuple[float, frozenset[int]]:
        moved = frozenset(id(p) for group in optimizer.param_groups for p in group["params"])
        if self.named is not None:
            return float(
                optimizer is self.named or optimizer is getattr(self.named, "optimizer", None)
            ), moved
        mine = {id(p): p.numel() for p in self.model.parameters() if p.requires_grad}
        return sum(size for key, size in mine.items() if key in moved) / max(sum(mine.values()), 1), moved

    def _complain(self) -> None:
        """A round is over: say so where much of what could train was not moved in it."""
        moved = self._moved()
        if moved < 0.5 and not self._told:
            self._told = True
            self.tell(
                "optimizer",
                f"the optimizer moves {moved:.1%} of the parameters that require a gradient; "
                "the others keep their values. Was that meant?",
            )
