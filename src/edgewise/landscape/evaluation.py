"""Loss as a function of moved weights, on a private copy; what does not move is computed once.

The copy shares the parameters (they are replaced per call, never written) and owns its buffers and its mode: dropout is
off and batch norms use what they have learned, as in eval().

The short way does not compute again what does not move, once it has given the same numbers. One traced pass finds,
operation by operation, what depends on the moving weights: marks belong to storages, so views and writes in place
count. At every further point a module whose output does not depend on them gives back what it gave before: all blocks
before the first moved one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle

from edgewise.errors import BadInput
from edgewise.interrupts import check
from edgewise.landscape.direction import Direction
from edgewise.models.readable import words
from edgewise.models.state import random_streams
from edgewise.models.twin import holding, twin

Batch = Any  # what a loss takes: a tensor, a tuple, a mapping
Loss = Callable[[nn.Module, Batch], Tensor]
Evaluate = Callable[[Sequence[float]], float]
METHODS = ("auto", "direct")
TRIALS = ((0.7, -0.4), (-0.3, 0.9))  # shares of the reach at which both ways are compared
SIMPLE = (Tensor, int, float, str, bool, type(None))
aten = torch.ops.aten
# what Python may branch on
DECIDES = {
    aten._local_scalar_dense,
    aten.is_nonzero,
    aten.nonzero,
    aten.masked_select,
    aten.equal,
    aten._unique2,
    aten.unique_dim,
}


class Surface:
    """loss(theta + sum_i c_i d_i), the mean over batches, for coordinates c."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: Sequence[Batch],
        directions: Sequence[Direction],
        start: Mapping[str, Tensor],
    ) -> None:
        self.directions = tuple(directions)
        self.batches = list(batches)
        self.module = LossOf(twin(model), loss)
        parameters = {name: p.detach() for name, p in model.named_parameters()} | dict(start)
        self.moved = {name: parameters[name] for d in directions for name in d.tensors}
        self.still = {name: t for name, t in start.items() if name not in self.moved}
        self._row: tuple[Any, dict[str, Tensor]] | None = None

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.moved.values())).dtype

    def weights(self, point: Sequence[float]) -> dict[str, Tensor]:
        """Return the parameters that differ from the model's own at a point, under their names inside `module`."""
        first, *others = point
        if self._row is None or self._row[0] != others:  # a row of the grid shares all but its first step
            row = self.moved
            for c, direction in zip(others, self.directions[1:], strict=True):
                row = _step(row, direction, c)
            self._row = (others, row)
        moved = _step(self._row[1], self.directions[0], first)
        return {f"model.{name}": t for name, t in (moved | self.still).items()}

    def at(self, point: Sequence[float]) -> float:
        weights = self.weights(point)
        return sum(float(self.module.loss_on(batch, weights)) for batch in self.batches) / len(self.batches)


def _step(weights: Mapping[str, Tensor], direction: Direction, c: float) -> dict[str, Tensor]:
    moved = direction.tensors
    return {name: torch.add(t, moved[name], alpha=c) if name in moved else t for name, t in weights.items()}


class LossOf(nn.Module):
    """A model and its loss as one module, so that any method of the model sees replaced weights."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.function = (loss,)  # in a tuple: a loss that is a module is not made a part of this one

    def forward(self, batch: Batch) -> Tensor:
        return self.function[0](self.model, batch)

    def loss_on(self, batch: Batch, weights: dict[str, Tensor]) -> Tensor:
        """Return the loss of one batch; its random numbers are the same at every point, and not the caller's."""
        with random_streams(), torch.no_grad():
            torch.manual_seed(0)
            with holding(self, weights):
                return check_loss(self(batch))


def own_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss that the model computes itself when labels are in the batch (Hugging Face)."""
    several = isinstance(batch, (list, tuple))
    output = model(**batch) if isinstance(batch, Mapping) else model(*batch) if several else model(batch)
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, tuple):
        loss = output[0]
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise BadInput("the model returned no loss. Give loss= or --loss, a function of (model, batch).")
    return loss


def loss_of(loss: Loss, model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss as a scalar; whatever it raises is rejected with its words."""
    try:
        value = loss(model, batch)
    except BadInput:
        raise
    except Exception as error:
        check()  # an interrupt is not the loss's own
        raise BadInput(
            f"loss(model, batch) raised {words(error)}. Give a loss that runs on these batches; the exception that "
            "caused this one shows where."
        ) from error
    return check_loss(value)


def check_loss(value: object) -> Tensor:
    """Return the loss as a scalar; raise `BadInput` if it is not one number."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        kind = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise BadInput(f"loss(model, batch) must return one number as a tensor, got {kind}.")
    return value.reshape(())


def batches_of(batch: Batch) -> list[Batch]:
    """Return a list is several batches, anything else is one; an empty one is rejected."""
    batches = list(batch) if isinstance(batch, list) else [batch]
    if not batches:
        raise BadInput("the list of batches is empty: there is nothing to compute a loss on.")
    for one in batches:
        tensors = [leaf for leaf in tree_leaves(plain(one)) if isinstance(leaf, Tensor)]
        if any(t.numel() == 0 for t in tensors):
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
            raise BadInput(
                f"a batch is empty (tensors of shape {shapes}): there is nothing to compute a loss on."
            )
    return batches


def plain(value: object) -> object:
    """Return mappings that are not dicts (tokenizer outputs) as dicts."""
    return dict(value) if isinstance(value, Mapping) else value


def shortest_way(surface: Surface, reach: float, method: str) -> tuple[Evaluate, str]:
    """Return how to evaluate a point, and its name.

    The short way only if it agrees with the direct one off the center.
    """
    if method not in METHODS:
        raise BadInput(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    compiled = any("_orig_mod" in module._modules for module in surface.module.modules())
    if method == "direct" or compiled:  # what is compiled cannot be traced
        return surface.at, "direct"
    passes = [CachedPass(surface, batch) for batch in surface.batches]
    if not passes[0].constants:
        return surface.at, "direct"

    def at(point: Sequence[float]) -> float:
        return sum(float(replay.at(point)) for replay in passes) / len(passes)

    for trial in TRIALS:
        point = [share * reach for share in trial[: len(surface.directions)]]
        if not agree(at(point), surface.at(point), surface.dtype):
            return surface.at, "direct: the short way gave another loss"
    return at, f"{passes[0].constants} modules from memory"


def agree(one: float, other: float, dtype: torch.dtype) -> bool:
    """Return equal up to rounding; two losses that overflow agree."""
    return one == other or abs(one - other) <= 100 * torch.finfo(dtype).eps * max(1.0, abs(other))


class CachedPass:
    """One batch on its own private copy, in which what is constant answers from memory."""

    def __init__(self, surface: Surface, batch: Batch) -> None:
        self.surface, self.batch = surface, batch
        self.module = LossOf(twin(surface.module.model), surface.module.function[0])
        self.calls: dict[nn.Module, list[CachedCall]] = {}
        self.constants = 0
        self._trace()

    def at(self, point: Sequence[float]) -> Tensor:
        """Return the loss of this batch at a point."""
        return self.module.loss_on(self.batch, self.surface.weights(point))

    def _trace(self) -> None:
        centre = [0.0] * len(self.surface.directions)
        weights = {name: t.clone() for name, t in self.surface.weights(centre).items()}
        flow = Dataflow(weights[f"model.{name}"] for name in self.surface.moved)
        hooks = [self._watch(module, flow) for module in self.module.model.modules()]
        with flow:
            self.module.loss_on(self.batch, weights)
        for hook in hooks:
            hook.remove()
        for module, calls in self.calls.items():  # what lies inside a constant module is never reached
            if len(calls) == 1 and calls[0].constant:
                module.forward = calls[0].answer()
                self.constants += 1
        self.calls.clear()  # what is replayed is held by its replacement

    def _watch(self, module: nn.Module, flow: Dataflow) -> RemovableHandle:
        def leave(_: nn.Module, __: object, output: object) -> None:
            call = CachedCall(output, flow.depends(output) or flow.decided)
            if call.constant:
                call.copy, call.versions = tree_map(_clone, output), _versions(output)
                for below in list(module.modules())[1:]:
                    self.calls.pop(below, None)  # never reached again
            self.calls.setdefault(module, []).append(call)

        return module.register_forward_hook(leave)


@dataclass
class CachedCall:
    """One finished call of a module; `copy` is its output as it was then, should somebody write into it later."""

    output: Any
    moves: bool
    copy: Any = None
    versions: tuple[int, ...] = ()

    @property
    def constant(self) -> bool:
        simple = all(isinstance(leaf, SIMPLE) for leaf in tree_leaves(self.output))
        return simple and not self.moves and bool(tensors_in(self.output))

    def answer(self) -> Callable[..., Any]:
        """Return what a constant module says from now on.

        A copy each time if the network writes into what it gets.
        """
        copy = self.copy
        if _versions(self.output) == self.versions:
            return lambda *_, **__: copy
        return lambda *_, **__: tree_map(_clone, copy)


class Dataflow(TorchDispatchMode):
    """Marks what depends on some tensors while it is active; `decided` once Python has inspected a marked value."""

    def __init__(self, sources: Iterable[Tensor]) -> None:
        super().__init__()
        self.marks: set[int] = set()
        self.alive: list[Tensor] = []  # a marked storage must not be freed: its address would be given away
        self.decided = False
        for tensor in sources:
            self.mark(tensor)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would import its compiler (seconds) to keep it out of here; nothing is compiled during the pass."""
        return False

    def mark(self, tensor: Tensor) -> None:
        if tensor.numel():
            self.marks.add(tensor.untyped_storage().data_ptr())
            self.alive.append(tensor)

    def depends(self, value: object) -> bool:
        """Return whether a tensor, or any tensor in a nested value, is marked."""
        return any(t.numel() and t.untyped_storage().data_ptr() in self.marks for t in tensors_in(value))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        depends = self.depends((args, kwargs))
        result = func(*args, **kwargs)
        if depends:
            self.decided |= func.overloadpacket in DECIDES
            for tensor in tensors_in(result):
                self.mark(tensor)
        return result


def tensors_in(value: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _versions(output: object) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in tensors_in(output))


def _clone(leaf: object) -> object:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf
