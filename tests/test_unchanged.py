"""Reading a model changes nothing of it: every verb that reads, on every model of the zoo.

Compared before and after, under all names that a tensor or module has: identity, storage, bits, how often it was
written in place, gradients, flags, modes, hooks, attributes and lists; and the random streams.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import edgewise
from edgewise import landscape
from tests.support.covering import covering
from tests.support.unchanged import differences, everything, prepared
from tests.support.zoo import ZOO, batch, loss

Verb = Callable[[nn.Module], Any]


class Still(torch.optim.Optimizer):
    """Steps that move nothing, so that what differs afterwards is the watch's doing."""

    def step(self, closure: Any = None) -> None: ...  # type: ignore[override]


def watched(model: nn.Module) -> None:
    """Open, two steps with a pass before each, close; only what the user's own passes change is left out."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = Still(trained, {})
    with edgewise.watch(model, budget=1.0, optimizer=optimizer, quiet=True):
        for seed in range(2):
            gradients = torch.autograd.grad(loss(model, batch(seed)), trained, allow_unused=True)
            own = [p.grad for p in trained]
            for parameter, gradient in zip(trained, gradients, strict=True):
                parameter.grad = gradient
            during = everything(model)
            optimizer.step()
            assert differences(during, everything(model)) == []
            for parameter, gradient in zip(trained, own, strict=True):
                parameter.grad = gradient


def rate(model: nn.Module) -> Any:
    batches = [batch(seed) for seed in range(8)]
    return edgewise.learning_rate(model, batches, loss, steps=2, rates=3, progress=False)


VERBS: dict[str, Verb] = {
    "sites": edgewise.models.sites,
    "stacks": edgewise.models.stacks,
    "structure": edgewise.structure,
    "describe": edgewise.describe,
    "predict": edgewise.predict,
    "measure": lambda model: edgewise.measure(model, batch()),
    "audit_initialization": edgewise.audit_initialization,
    "total_changes": lambda model: edgewise.total_changes(model, batch()),
    "critical_plan": lambda model: edgewise.critical_plan(model, batch()),
    "open and close a watch": lambda model: edgewise.watch(model, quiet=True).close(),
    "learning_rate": rate,
    "line": lambda model: landscape.line(model, loss, batch(), "*att*", points=5),
    "top_eigenvalue": lambda model: landscape.top_eigenvalue(
        model, loss, batch(), along="*att*", tolerance=0.5
    ),
    "rebalanced": landscape.rebalanced,
}
LONG = ("structure", "describe", "predict", "measure", "critical_plan", "learning_rate", "top_eigenvalue")
IN_TURN = ("total_changes", "open and close a watch", "rebalanced", "audit_initialization")
FEW = ("module twice, run whole", "buffers")  # the others with the slow tests
OTHERS = [name for name in ZOO if name not in FEW]
PAIRS = [
    *((verb, name) for verb in VERBS for name in FEW),
    *((verb, name) for verb in VERBS if verb not in (*LONG, *IN_TURN) for name in OTHERS),
    *covering(IN_TURN, OTHERS),
    *(pytest.param(verb, name, marks=pytest.mark.slow) for verb in LONG for name in OTHERS),
]


@pytest.mark.parametrize("verb, name", PAIRS)
def test_reading_changes_nothing(verb: str, name: str) -> None:
    model = prepared(ZOO[name]())
    before = everything(model)
    VERBS[verb](model)
    assert differences(before, everything(model)) == []


@pytest.mark.parametrize("name", [*FEW, "batch norm", "gpt2"])
def test_a_watch_changes_nothing_in_its_steps(name: str) -> None:
    watched(prepared(ZOO[name]()))


def test_a_pending_backward_pass_survives_a_reading() -> None:
    """Autograd checks that nothing it holds was written since: the passes of `measure` write into these buffers."""
    model = ZOO["buffers"]()
    kept = model.get_buffer("blocks.0.kept")
    value = loss(model, batch()) + (kept * model.get_parameter("norm.weight")).sum()
    edgewise.measure(model, batch())
    edgewise.models.sites(model)
    value.backward()
    assert model.get_parameter("norm.weight").grad is not None


@pytest.mark.parametrize("verb", ["sites", "audit_initialization", "open and close a watch"])
@pytest.mark.parametrize("name", ["module twice", "list twice, run whole"])
def test_a_module_with_two_names_still_runs_and_trains(verb: str, name: str) -> None:
    """They left random plain tensors in place of such parameters, and a model that raised AttributeError."""
    model, untouched = ZOO[name](), ZOO[name]()
    VERBS[verb](model)
    assert len(list(model.parameters())) == len(list(untouched.parameters()))
    assert torch.equal(model.eval()(batch()), untouched.eval()(batch()))
