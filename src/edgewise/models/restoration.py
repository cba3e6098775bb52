"""Real steps, undone: weights, gradients, optimizers, schedulers and whatever else has a state, bit for bit.

`models.state.preserved` puts modules, buffers, modes, hooks and random streams back; this adds what a training step
changes.
"""

from __future__ import annotations

import copy
import gc
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.interrupts import deferred
from edgewise.models.state import State, preserved


@contextmanager
def undone(
    model: nn.Module, optimizer: Any = None, also: Iterable[Any] = (), batches: Any = None
) -> Iterator[None]:
    """Whatever a training does inside, everything is as it was afterwards, also if it raises or is interrupted."""
    others = [*also, *schedulers_of(optimizer)]
    optimizers = [optimizer, *(o for o in others if isinstance(o, torch.optim.Optimizer))]
    modules = [o for o in others if isinstance(o, nn.Module)]
    with deferred() as interrupts, preserved(model):
        states = [State(module) for module in modules]
        records: list[Any] = [
            _Values(_parameters(model, modules, optimizers)),
            *(_OptimizerState(o) for o in optimizers if o is not None),
            *(_ObjectState(o) for o in others if not isinstance(o, (nn.Module, torch.optim.Optimizer))),
            *(_Generator(g) for g in _generators(batches)),
        ]
        try:
            torch.backends.mha.set_fastpath_enabled(False)  # the fused encoder layer hides its inside
            yield
        finally:
            with interrupts.closed():
                for record in reversed(records):
                    record.restore()
                for state in states:
                    state.restore()


def _parameters(model: nn.Module, modules: list[nn.Module], optimizers: list[Any]) -> list[Tensor]:
    held = [p for o in optimizers if o is not None for g in o.param_groups for p in g["params"]]
    every = [*model.parameters(), *(p for m in modules for p in m.parameters()), *held]
    return list({id(p): p for p in every}.values())


def schedulers_of(optimizer: Any) -> list[Any]:
    """Learning-rate schedulers that hold this optimizer: the step may call them even if they were not passed."""
    step = getattr(optimizer, "step", None)
    if not getattr(step, "_wrapped_by_lr_sched", False):  # as every scheduler marks its optimizer
        return []
    found: dict[int, Any] = {}
    for referrer in gc.get_referrers(optimizer):
        owners = gc.get_referrers(referrer) if isinstance(referrer, dict) else [referrer]
        for owner in owners:
            if isinstance(owner, torch.optim.lr_scheduler.LRScheduler):
                found[id(owner)] = owner
    return list(found.values())


def _generators(batches: Any) -> list[torch.Generator]:
    owners = (batches, getattr(batches, "sampler", None), getattr(batches, "batch_sampler", None))
    every = (getattr(owner, "generator", None) for owner in owners)
    return list({id(g): g for g in every if isinstance(g, torch.Generator)}.values())


class _Values:
    """Numbers, gradients and flags of parameters."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self._saved = [
            (p, _copy(p), p.grad, None if p.grad is None else _copy(p.grad), p.requires_grad)
            for p in parameters
        ]

    @torch.no_grad()
    def restore(self) -> None:
        for parameter, value, gradient, numbers, flag in self._saved:
            if value is not None:
                parameter.data.copy_(value)
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)
            parameter.grad = gradient
            if gradient is not None and numbers is not None:
                gradient.copy_(numbers)


def _copy(tensor: Tensor) -> Tensor | None:
    return None if tensor.is_meta else tensor.detach().clone()


class _OptimizerState:
    """State and groups of an optimizer, with the identity of its tensors and dictionaries."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._attributes = dict(vars(optimizer))
        self._state = [
            (key, state, dict(state), _tensor_values(state))
            if isinstance(state, dict)
            else (key, state, None, [])
            for key, state in optimizer.state.items()
        ]
        self._groups = [
            (group, dict(group), list(group["params"]), _tensor_values(group))
            for group in optimizer.param_groups
        ]

    @torch.no_grad()
    def restore(self) -> None:
        optimizer = self._optimizer
        vars(optimizer).clear()
        vars(optimizer).update(self._attributes)
        optimizer.state.clear()
        for key, state, items, values in self._state:
            optimizer.state[key] = state
            if items is not None:
                state.clear()
                state.update(items)
            _write(values)
        optimizer.param_groups[:] = [group for group, *_ in self._groups]
        for group, items, parameters, values in self._groups:
            group.clear()
            group.update(items)
            group["params"][:] = parameters
            _write(values)


def _tensor_values(values: dict[Any, Any]) -> list[tuple[Tensor, Tensor]]:
    return [
        (v, v.detach().clone())
        for k, v in values.items()
        if torch.is_tensor(v) and k != "params" and not v.is_meta
    ]


def _write(values: list[tuple[Tensor, Tensor]]) -> None:
    for tensor, value in values:
        tensor.copy_(value)


class _ObjectState:
    """Anything with a state: its `state_dict`, its attributes, and what its containers hold."""

    def __init__(self, target: Any) -> None:
        self._target = target
        loads = hasattr(target, "state_dict") and hasattr(target, "load_state_dict")
        scheduler = isinstance(target, torch.optim.lr_scheduler.LRScheduler)
        self._state = copy.deepcopy(target.state_dict()) if loads and not scheduler else None
        self._attributes = dict(vars(target)) if hasattr(target, "__dict__") else None
        self._inner = {
            name: copy.copy(value)
            for name, value in (self._attributes or {}).items()
            if isinstance(value, (list, dict, set, deque))
        }
        self._tensors = _tensor_values(self._attributes or {})

    @torch.no_grad()
    def restore(self) -> None:
        if self._state is not None:
            self._target.load_state_dict(self._state)
        if self._attributes is None:
            return
        vars(self._target).clear()
        vars(self._target).update(self._attributes)
        for name, value in self._inner.items():
            container = self._attributes[name]
            container.clear()
            (container.extend if isinstance(value, (list, deque)) else container.update)(value)
        _write(self._tensors)


class _Generator:
    def __init__(self, generator: torch.Generator) -> None:
        self._generator, self._state = generator, generator.get_state()

    def restore(self) -> None:
        self._generator.set_state(self._state)
