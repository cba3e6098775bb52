"""Optimizers of a rehearsal: the user's settings on the copy, one rate for all groups.

Parameter groups with different rates keep their ratios: the rate that is rehearsed is that of the first group, and the
others follow it.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from edgewise.errors import BadInput
from edgewise.optim.wrapper import OptimizerWrapper

Factory = Callable[[nn.Module], Optimizer]
OptimizerSource = Optimizer | type[Optimizer] | Callable[..., Optimizer]  # of the model, or of its parameters
ADAMW_SHARE = 0.15  # of Muon's rate: 3e-3 beside 0.02, as people use them


def factory_of(optimizer: Any) -> Factory:
    """Return a function of the model that makes the optimizer, from a class of torch.optim or such a function."""
    if optimizer is None:
        return lambda model: torch.optim.AdamW(trainable(model), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    inner = optimizer
    while isinstance(inner, functools.partial):
        inner = inner.func
    if isinstance(inner, type) and issubclass(inner, Optimizer):
        return lambda model: optimizer(trainable(model))
    if callable(optimizer):
        return lambda model: _checked(optimizer(model))
    raise BadInput(
        f"optimizer must be a torch.optim class, an optimizer, or a function of the model that returns one, got a "
        f"{type(optimizer).__name__}. For example torch.optim.AdamW, or lambda model: torch.optim.SGD(...)."
    )


def _checked(optimizer: object) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise BadInput(f"the function must return a torch.optim.Optimizer, got a {type(optimizer).__name__}.")
    return optimizer


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that require a gradient; raise `BadInput` if there is none."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        total = sum(1 for _ in model.parameters())
        why = f"all {total} are frozen (requires_grad=False)" if total else "it has no parameters"
        raise BadInput(
            f"{type(model).__name__} has no trainable parameter: {why}. Unfreeze what is to be trained."
        )
    return parameters


def without_state(optimizer: Optimizer) -> dict[int, object]:
    """Return what a copy of an optimizer is to find in place of its state: nothing yet, so that it is not copied
    either.
    """
    inner = innermost(optimizer)
    return {id(inner.state): defaultdict(dict)}


def innermost(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer inside wrappers such as `edgewise.optim.LogitTrust`."""
    while isinstance(optimizer, OptimizerWrapper):
        optimizer = optimizer.optimizer
    return optimizer


def refuse_optimizer(optimizer: Optimizer, model: nn.Module) -> None:
    """Reject an optimizer of other or frozen parameters, or one that evaluates the loss several times a step."""
    own = {id(p) for p in model.parameters()}
    listed = [p for group in optimizer.param_groups for p in group["params"]]
    foreign = sum(id(p) not in own for p in listed)
    if foreign:
        raise BadInput(
            f"{foreign} of the {len(listed)} parameters of this {type(optimizer).__name__} are not parameters of the "
            "model. Give the optimizer that was made for it, or a function of the model that makes one."
        )
    if not any(p.requires_grad for p in listed):
        raise BadInput(
            f"every parameter of this {type(optimizer).__name__} is frozen: there is nothing to train."
        )
    _, *parameters = inspect.signature(type(innermost(optimizer)).step).parameters.values()
    if parameters and parameters[0].default is inspect.Parameter.empty:
        raise BadInput(
            f"{type(optimizer).__name__} evaluates the loss several times within one step, which a rehearsal does "
            "not do. Give an optimizer that steps once per gradient, such as AdamW."
        )


class Rates:
    """The rates of an optimizer's groups as one number, times the ratios that the user gave them."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        if any("lr" not in group for group in optimizer.param_groups):
            raise BadInput(
                f"{type(optimizer).__name__} has no learning rate: every group of its param_groups must have one under "
                "'lr'. Give an optimizer with a rate, such as torch.optim.AdamW."
            )
        # Under a scheduler the base rate is the one that counts: with a warm-up the present one may be zero.
        rates = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
        first = next((rate for rate in rates if rate > 0), None)
        if first is None:
            raise BadInput(
                f"every group of this {type(optimizer).__name__} has the rate 0. Give one that moves."
            )
        self.first, self.ratios = first, tuple(rate / first for rate in rates)

    def set(self, rate: float) -> None:
        for group, ratio in zip(self.optimizer.param_groups, self.ratios, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * ratio)
            else:
                group["lr"] = rate * ratio


def is_sgd(optimizer: Optimizer) -> bool:
    """Return whether steps are proportional to the gradient."""
    return isinstance(innermost(optimizer), torch.optim.SGD)


def describe_optimizer(optimizer: Optimizer) -> str:
    """Return "AdamW (0.9, 0.95)", "SGD, momentum 0.9"."""
    inner = innermost(optimizer)
    group, name = inner.param_groups[0], type(inner).__name__
    if "betas" in group:
        name += f" ({', '.join(f'{float(beta):g}' for beta in group['betas'])})"
    elif group.get("momentum"):
        name += f", momentum {group['momentum']:g}" + (" (Nesterov)" if group.get("nesterov") else "")
    wrapper = "" if inner is optimizer else f"{type(optimizer).__name__} around "
    return wrapper + name


def copied(optimizer: Optimizer, memo: dict[int, object]) -> Optimizer:
    """Return the same settings for the parameters that `memo` names, without any state."""
    return copy.deepcopy(optimizer, memo | without_state(optimizer))


class Joint(Optimizer):
    """Several optimizers that step together; their groups are listed one after another."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = list(optimizers)
        super().__init__([p for o in self.optimizers for g in o.param_groups for p in g["params"]], {})
        self.param_groups = [group for o in self.optimizers for group in o.param_groups]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Return one step of each."""
        result = None if closure is None else closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return result


def muon_and_adamw(model: nn.Module) -> Optimizer:
    """Return Muon where a matrix maps a stream to a stream.

    AdamW for embeddings, the readout, vectors and everything else.
    """
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
