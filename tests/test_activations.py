"""A new activation by the list of CONTRIBUTING.md: its name, its torch function, and everything else follows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import edgewise
from edgewise import activations, nets
from edgewise.nouns import knobs
from edgewise.theory.averages import functions
from edgewise.theory.averages.activation_averages import activation

CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"
NAME = "softsign"


def steps() -> list[str]:
    """The numbered list under "How to add an activation"."""
    section = CONTRIBUTING.read_text().split("## How to add an activation")[1].split("## ")[0]
    return re.findall(r"^\d\. (.*(?:\n {3}.*)*)", section, re.MULTILINE)


@pytest.fixture
def softsign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps 1 and 2 of the list; the others are optional or tests."""
    first, second = steps()[:2]
    assert "`ACTIVATIONS` in `src/edgewise/nouns/knobs.py`" in first
    monkeypatch.setattr(knobs, "ACTIVATIONS", (*knobs.ACTIVATIONS, NAME))
    assert "`src/edgewise/activations.py`" in second
    monkeypatch.setitem(activations.torch_activations(), NAME, F.softsign)


@pytest.mark.usefixtures("softsign")
def test_after_two_steps_it_is_described_built_predicted_and_recognized() -> None:
    network = edgewise.transformer(depth=2, width=64, heads=2, tokens=8, activation=NAME)
    torch.manual_seed(0)
    model = nets.build(network, inputs=11, outputs=3)
    x = torch.linspace(-3, 3, 7)
    torch.testing.assert_close(model.blocks[0][1].mlp.function(x), x / (1 + x.abs()))
    assert np.isfinite(edgewise.predict(network).norm).all()
    assert nets.RandomPerceptron(edgewise.Perceptron(NAME, depth=2, width=8)).phi is F.softsign
    assert edgewise.describe(model).activation == NAME


@pytest.mark.usefixtures("softsign")
def test_theory_averages_it_from_its_torch_function() -> None:
    z = np.random.default_rng(0).standard_normal(400_000)
    phi = activation(NAME)
    assert phi.square(2.0) == pytest.approx(
        np.mean((np.sqrt(2) * z / (1 + np.abs(np.sqrt(2) * z))) ** 2), rel=5e-3
    )


def test_every_name_is_in_the_table_and_in_theory() -> None:
    assert set(activations.torch_activations()) == set(knobs.ACTIVATIONS)
    x = torch.linspace(-3, 3, 13, dtype=torch.float64)
    for name, function in activations.torch_activations().items():
        np.testing.assert_allclose(
            function(x).numpy(), activation(name).function(x.numpy()), rtol=1e-6, atol=1e-12
        )
    assert set(functions.SMOOTH) <= set(knobs.ACTIVATIONS)


@pytest.mark.parametrize("name", ["softsign", "relu:0.1", "leaky_relu:steep"])
def test_what_has_no_torch_function_is_refused(name: str) -> None:
    with pytest.raises(edgewise.BadInput, match=f"activation '{name}'"):
        activations.torch_activation(name)
