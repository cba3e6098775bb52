"""Deep copies and pickles of the wrappers: a copy goes on as the original would, and leaves the original alone."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from edgewise.optim import AttentionPreconditioner, LogitTrust
from tests.support.optim_subjects import batch, equal, loss_of, small, train, weights

MAKERS: dict[str, Callable[[nn.Module], Any]] = {
    "trust": lambda m: LogitTrust(torch.optim.Adam(m.parameters(), 0.1), m, 0.03),
    "preconditioner": lambda m: AttentionPreconditioner(torch.optim.Adam(m.parameters(), 0.01), m, 0.02),
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
}

each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
each_maker = pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)


@each_maker
@each_way
def test_a_copied_pair_goes_on_as_the_original(
    way: Callable[[Any], Any], maker: Callable[[nn.Module], Any]
) -> None:
    """Model and optimizer copied together, mid-run, with a scheduler on it: the same weights three steps later."""
    model = small()
    optimizer = maker(model)
    scheduler = StepLR(optimizer, 2, 0.5)
    for t in range(3):
        train(model, optimizer, 1, begin=t)
        scheduler.step()
    other, copied = way((model, optimizer))
    before = weights(model)
    train(other, copied, 3, begin=3)
    assert equal(before, weights(model))  # the original did not move
    assert not equal(before, weights(other))
    train(model, optimizer, 3, begin=3)
    assert equal(weights(model), weights(other))


@each_maker
@each_way
def test_a_copy_alone_takes_its_model_along(
    way: Callable[[Any], Any], maker: Callable[[nn.Module], Any]
) -> None:
    """Its parameters, its hooks and its tokens are of one model that is not the original's; remove takes them off."""
    model = small()
    optimizer = maker(model)
    train(model, optimizer, 4)  # the ring of tokens is full: no not-a-number to compare
    copied = way(optimizer)
    own = copied._model
    held = {id(p) for group in copied.param_groups for p in group["params"]}
    assert held == {id(p) for p in own.parameters()}
    seen = copied.sample.all[0].tokens.clone()
    loss_of(own, batch(7)).backward()
    assert not torch.equal(seen, copied.sample.all[0].tokens)
    assert torch.equal(seen, optimizer.sample.all[0].tokens)
    copied.remove()
    assert not any(module._forward_pre_hooks for module in own.modules())
    assert any(module._forward_pre_hooks for module in model.modules())


@each_way
def test_a_compiled_model_is_no_obstacle(way: Callable[[Any], Any]) -> None:
    """What is compiled cannot be pickled; the optimizer holds what is inside."""
    model = small()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = MAKERS["trust"](compiled)
    train(compiled, optimizer, 1)
    copied = way(optimizer)
    assert equal(weights(copied._model), weights(model))
