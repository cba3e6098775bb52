"""Points of a plane without computing again what does not move.

One traced pass finds, exactly, what does not depend on the moving weights (`dataflow`). At every further point
- a module whose output does not depend on them gives back what it gave before: all blocks before the first moved one;
- a linear layer that moves, at an input that does not, gives y_0 + a y_1 + b y_2;
- the first attention whose logits are affine in each direction is read from four matrices (`four_matrices`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from edgewise.landscape.dataflow import NONE, Dataflow, Mark, tensors_in
from edgewise.landscape.evaluation import LossOf, Surface, checked_loss, private_copy
from edgewise.landscape.four_matrices import FourMatrices, SeenAttention
from edgewise.landscape.linear_layers import applied, linear_in_weights

SIMPLE = (Tensor, int, float, str, bool, type(None))


@dataclass
class Call:
    """One finished call of a module; `kept` is its output as it was then, should somebody write into it later."""

    output: Any
    left: Mark
    decided: bool
    kept: Any = None
    versions: tuple[int, ...] = ()
    parts: dict[int, Tensor] | None = None  # of a linear layer: its output for the direction's own weights

    @property
    def constant(self) -> bool:
        simple = all(isinstance(leaf, SIMPLE) for leaf in tree_leaves(self.output))
        return simple and not self.decided and not self.left.directions and bool(tensors_in(self.output))

    def answer(self) -> Callable[..., Any]:
        """What a constant module says from now on; a copy each time where the network writes into what it gets."""
        kept = self.kept
        if _versions(self.output) == self.versions:
            return lambda *_, **__: kept
        return lambda *_, **__: tree_map(_copied, kept)


class Replay:
    """One batch on its own private copy, in which what is constant answers from memory."""

    def __init__(self, surface: Surface, batch: Any, reach: float) -> None:
        self.surface, self.batch, self.reach = surface, batch, reach
        self.point: Sequence[float] = (0.0,) * len(surface.directions)
        self.module = LossOf(private_copy(surface.module.model), surface.module.function[0])
        self.names = {module: name for name, module in self.module.named_modules()}
        self.calls: dict[nn.Module, list[Call]] = {}
        self.linear: frozenset[str] = frozenset()  # parameters that need not be made any more
        self.constants = 0
        self.logits: FourMatrices | None = None
        self._trace()

    def at(self, point: Sequence[float]) -> Tensor:
        """The loss of this batch at a point."""
        self.point = tuple(point)
        return self._run(self.surface.weights(point, self.linear))

    def _run(self, weights: dict[str, Tensor]) -> Tensor:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            return checked_loss(functional_call(self.module, weights, (self.batch,)))

    def _trace(self) -> None:
        weights = {name: t.clone() for name, t in self.surface.weights(self.point).items()}
        flow = Dataflow(self._sources(weights))
        seen = SeenAttention(flow)
        hooks = [h for module in self.module.model.modules() for h in self._hooks(module, flow, seen)]
        with flow, seen:
            self._run(weights)
        for hook in hooks:
            hook.remove()
        self._install()
        site = seen.usable()
        if site is not None:
            made = FourMatrices(site, self)
            self.logits = made if made.terms else None
        self.calls.clear()  # what is replayed is held by its replacement

    def _sources(self, weights: dict[str, Tensor]) -> list[tuple[Tensor, Mark]]:
        moved: dict[str, Mark] = {}
        for number, direction in enumerate(self.surface.directions):
            for name in direction.tensors:
                key = f"model.{name}"
                moved[key] = moved.get(key, NONE) | Mark(frozenset([number]))
        return [(weights[key], mark) for key, mark in moved.items()]

    def _hooks(self, module: nn.Module, flow: Dataflow, seen: SeenAttention) -> list[Any]:
        def enter(_: nn.Module, __: Any) -> None:
            seen.stack.append(module)

        def leave(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            seen.stack.pop()
            call = Call(output, flow.of(output), flow.decided)
            if call.constant:
                call.kept, call.versions = tree_map(_copied, output), _versions(output)
                for below in list(module.modules())[1:]:
                    self.calls.pop(below, None)  # never reached again
            elif len(args) == 1 and not kwargs and linear_in_weights(module) and not flow.of(args).directions:
                call.parts = None if flow.decided else self._parts(module, args[0])
            self.calls.setdefault(module, []).append(call)

        return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave, with_kwargs=True)]

    def _parts(self, module: Any, inputs: Tensor) -> dict[int, Tensor]:
        """The layer's output for each direction's own weights."""
        prefix, parts = self.names[module].removeprefix("model."), {}
        for number, direction in enumerate(self.surface.directions):
            weight, bias = (direction.tensors.get(f"{prefix}.{kind}".lstrip(".")) for kind in ("weight", "bias"))
            if weight is not None or bias is not None:
                weight = torch.zeros_like(module.weight) if weight is None else weight
                parts[number] = applied(module, weight, bias, inputs)
        return parts

    def _install(self) -> None:
        """Replace forwards in the copy; what lies inside a constant module is never reached."""
        tied = _tied(self.module.model)  # a matrix used in two places moves in both: it is made as before
        for module, calls in self.calls.items():
            name = self.names[module]
            if len(calls) != 1:
                continue
            if calls[0].constant:
                module.forward = calls[0].answer()
                self.constants += 1
            elif calls[0].parts:
                module.forward = self._moving(calls[0].output, calls[0].parts)
                self.linear |= {f"{name}.{kind}".removeprefix("model.") for kind in ("weight", "bias")} - tied

    def _moving(self, base: Tensor, parts: dict[int, Tensor]) -> Callable[..., Tensor]:
        def forward(*_: Any) -> Tensor:
            made = base
            for number, part in parts.items():
                made = torch.add(made, part, alpha=self.point[number])
            return made

        return forward


def _versions(output: Any) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in tensors_in(output))


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _tied(module: nn.Module) -> set[str]:
    """Names of parameters that have several."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {name for group in names.values() if len(group) > 1 for name in group}
