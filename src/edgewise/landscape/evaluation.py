"""The loss as a function of where the weights are, on a private copy: nothing of the user's model is touched.

The copy shares the parameters (they are replaced per call by torch.func.functional_call, never written) and owns its
buffers and its mode: dropout is off and batch norms use what they have learned, as in eval().
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from edgewise.errors import BadInput
from edgewise.landscape.direction import Direction

Loss = Callable[[nn.Module, Any], Tensor]


class Surface:
    """loss(theta + sum_i c_i d_i), the mean over batches, for coordinates c."""

    def __init__(
        self, model: nn.Module, loss: Loss, batches: Sequence[Any], directions: Sequence[Direction],
        start: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        self.directions = tuple(directions)
        self.batches = list(batches)
        self.module = LossOf(private_copy(model), loss)
        parameters = {name: p.detach() for name, p in model.named_parameters()} | dict(start)
        self.moved = {name: parameters[name] for d in directions for name in d.tensors}
        self.still = {name: t for name, t in start.items() if name not in self.moved}
        self._row: tuple[Any, dict[str, Tensor]] | None = None

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.moved.values())).dtype

    def weights(self, point: Sequence[float]) -> dict[str, Tensor]:
        """The parameters that differ from the model's own at a point, under their names inside `module`."""
        first, *others = point
        if self._row is None or self._row[0] != others:  # a row of the grid shares all but its first step
            row = self.moved
            for c, direction in zip(others, self.directions[1:], strict=True):
                row = _step(row, direction, c)
            self._row = (others, row)
        moved = _step(self._row[1], self.directions[0], first)
        return {f"model.{name}": t for name, t in (moved | self.still).items()}

    def loss_on(self, batch: Any, weights: dict[str, Tensor]) -> Tensor:
        """One batch; random numbers inside the loss are the same at every point, the caller's stream is left alone."""
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            value = functional_call(self.module, weights, (batch,))
        return check_loss(value)

    def at(self, point: Sequence[float]) -> float:
        weights = self.weights(point)
        return sum(float(self.loss_on(batch, weights)) for batch in self.batches) / len(self.batches)


def _step(weights: Mapping[str, Tensor], direction: Direction, c: float) -> dict[str, Tensor]:
    moved = direction.tensors
    return {name: torch.add(t, moved[name], alpha=c) if name in moved else t for name, t in weights.items()}


class LossOf(nn.Module):
    """A model and its loss as one module, so that any method of the model sees replaced weights."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.function = (loss,)  # in a tuple: a loss that is a module is not made a part of this one

    def forward(self, batch: Any) -> Tensor:
        return self.function[0](self.model, batch)


def private_copy(model: nn.Module) -> nn.Module:
    """A copy in eval mode that shares parameters and owns everything else."""
    memo: dict[int, Any] = {id(p): p for p in model.parameters()}
    for module in model.modules():  # tensors outside parameters and buffers may have a graph, which torch does not copy
        memo |= {id(value): value.detach() for value in vars(module).values() if isinstance(value, Tensor)}
    return copy.deepcopy(model, memo).eval()


def own_loss(model: nn.Module, batch: Any) -> Tensor:
    """The loss that the model computes itself when labels are in the batch (Hugging Face)."""
    several = isinstance(batch, (list, tuple))
    output = model(**batch) if isinstance(batch, Mapping) else model(*batch) if several else model(batch)
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, tuple):
        loss = output[0]
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise BadInput("the model returned no loss of its own. Give loss=..., a function of (model, batch).")
    return loss


def check_loss(value: Any) -> Tensor:
    """The loss, refused where it is not one number."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        kind = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise BadInput(f"loss(model, batch) must return one number as a tensor, got {kind}.")
    return value


def batches_of(batch: Any) -> list[Any]:
    """A list is several batches, anything else is one; an empty one is refused."""
    batches = list(batch) if isinstance(batch, list) else [batch]
    if not batches:
        raise BadInput("the list of batches is empty: there is nothing to compute a loss on.")
    for one in batches:
        tensors = [leaf for leaf in tree_leaves(plain(one)) if isinstance(leaf, Tensor)]
        if any(t.numel() == 0 for t in tensors):
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
            raise BadInput(f"a batch is empty (tensors of shape {shapes}): there is nothing to compute a loss on.")
    return batches


def plain(value: Any) -> Any:
    """Mappings that are not dicts (tokenizer outputs) as dicts."""
    return dict(value) if isinstance(value, Mapping) else value
