"""A twin gives the numbers of its model, shares its parameters, and owns all that a pass can write."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import edgewise
from edgewise.models.twin import holding, twin
from tests.support.unchanged import differences, everything
from tests.support.zoo import ZOO, batch, loss


@pytest.mark.parametrize("name", ZOO)
def test_the_same_numbers_from_the_same_parameters(name: str) -> None:
    model = ZOO[name]()
    loss(model, batch()).backward()  # buffers that have seen something, attributes that have a graph
    before, other = everything(model), twin(model)
    with torch.no_grad():
        value = loss(other, batch())
        other.train()
        loss(other, batch())
        torch.manual_seed(0)
    torch.set_rng_state(before["torch"])
    assert differences(before, everything(model)) == []
    assert [id(p) for p in other.parameters()] == [id(p) for p in model.parameters()]
    assert {id(m) for m in other.modules()}.isdisjoint(map(id, model.modules()))
    assert {b.data_ptr() for b in other.buffers()}.isdisjoint(b.data_ptr() for b in model.buffers())
    with torch.no_grad():
        assert torch.equal(value, loss(model.eval(), batch()))


@pytest.mark.parametrize(
    "name", ["module twice", "block twice", "tied readout", "tied q and k", "parametrized"]
)
def test_other_values_are_held_under_every_name(name: str) -> None:
    """Against a deep copy into which the same values are written."""
    model = ZOO[name]()
    values = {key: torch.randn_like(p) for key, p in model.named_parameters()}
    written, other = copy.deepcopy(model).eval(), twin(model)
    with torch.no_grad():
        for key, parameter in written.named_parameters():
            parameter.copy_(values[key])
        plain = loss(other, batch())
        with holding(other, values):
            assert torch.equal(loss(other, batch()), loss(written, batch()))
        assert torch.equal(loss(other, batch()), plain)


class Stranger(nn.Module):
    """Attributes that deepcopy does not take, beside some that a copy must own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.lock, self.seen, self.aside = threading.Lock(), [], {"linear": self.linear}

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            y = self.aside["linear"](x)
        self.seen.append(y)  # with its graph
        return y


def test_what_cannot_be_copied_is_shared_and_the_rest_is_owned() -> None:
    model, x = Stranger(), torch.ones(1, 4)
    model(x)
    other = twin(model)
    assert other.lock is model.lock and other.aside["linear"] is other.linear
    other(x)
    assert len(model.seen) == 1 and len(other.seen) == 2 and other.seen[0].grad_fn is None


def test_a_compiled_block_runs_in_the_copy() -> None:
    model = ZOO["plain"]()
    model.blocks[0].compile(backend="eager")
    model.blocks[1] = torch.compile(model.blocks[1], backend="eager")
    other = twin(model)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        plain = loss(other, batch())
        with holding(
            other.blocks[0], {key: torch.zeros_like(p) for key, p in other.blocks[0].named_parameters()}
        ):
            assert not torch.equal(loss(other, batch()), plain)
        assert torch.equal(plain, loss(model.eval(), batch()))


def test_a_module_that_cannot_be_copied_is_an_error_that_says_so() -> None:
    class Single(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Single:
            raise TypeError("there is one of me")

    model = ZOO["plain"]()
    model.blocks[0].mlp[0] = Single(16, 24)
    before = everything(model)
    with pytest.raises(
        edgewise.BadInput, match=r"cannot be copied.*Single raised TypeError: there is one of me"
    ):
        edgewise.total_changes(model, batch())
    assert (
        edgewise.models.sites(model)
        .assumed[0]
        .startswith("norm: pre, assumed because a module of the model cannot be")
    )
    assert differences(before, everything(model)) == []


def test_a_norm_that_does_not_take_a_stream_has_the_name_of_its_class() -> None:
    """The name reader cannot run a batch norm on a stream; the roles are the right ones."""
    found = edgewise.models.sites(ZOO["batch norm"]())
    assert {norm.kind for block in found.blocks for norm in block.norms} >= {"BatchNorm1d"}
    for index, block in enumerate(found.blocks):
        roles = [block.attention.query, block.attention.key, block.attention.value, block.attention.output]
        names = [f"blocks.{index}.attn.{letter}_proj.weight" for letter in "qkvo"]
        assert [role.parameters for role in roles] == [(name,) for name in names]
        ends = (block.mlp.input.parameters, block.mlp.output.parameters)
        assert ends == ((f"blocks.{index}.mlp.0.weight",), (f"blocks.{index}.mlp.3.weight",))
