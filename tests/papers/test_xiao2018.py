"""The recipe of deep filters: its images are the digits, and each of its three statements can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edgewise.study import Result, load_recipe
from edgewise.study.tasks import task

FILTERS = load_recipe(Path(__file__).parents[2] / "papers" / "xiao2018dynamical" / "deep_filters.py").module
ENDS = {
    ("as torch draws it", "all"): 2.0,
    ("Xavier", "all"): 2.0,
    ("initialize_", "all"): 0.2,
    ("initialize_", "readout alone"): 1.0,
}


def results(ends: dict[tuple[str, str], float | None], gradient: float = 0.1) -> list[Result]:
    """100 layers, one seed, chance 2; None: the loss was not a number after one step."""
    return [
        Result(
            {"depth": 100, "start": start, "trains": trains, "seed": 0, "steps": 20},
            {
                "angle": 0.0,
                "gradient": gradient if start == "initialize_" else 20.0,
                "chance": 2.0,
                "losses": [2.0] if end is None else [end] * 20,
            },
        )
        for (start, trains), end in ends.items()
    ]


@pytest.mark.parametrize(
    ("changes", "gradient", "held"),
    [
        ({}, 0.1, [True, True, True]),
        ({}, 1.1, [False, True, True]),  # a start that loses signals
        ({("initialize_", "all"): 1.5}, 0.1, [True, False, False]),  # that does not learn
        ({("Xavier", "all"): 1.3}, 0.1, [True, False, True]),  # an ordinary start learns too
        ({("Xavier", "all"): None}, 0.1, [True, True, True]),  # one that left the range of numbers has not
        ({("initialize_", "readout alone"): 0.24}, 0.1, [True, True, False]),  # the readout does it alone
    ],
)
def test_each_statement_can_fail(changes: dict, gradient: float, held: list[bool]) -> None:
    claim = FILTERS.claim(results(ENDS | changes, gradient))
    assert [part.held for part in claim.parts] == held


def test_patches_are_put_back_in_their_places() -> None:
    rows = torch.arange(64.0).view(1, 8, 8)
    patches = rows.unfold(1, 2, 2).unfold(2, 2, 2).reshape(1, 16, 4)
    assert torch.equal(FILTERS._images(patches)[0], rows)
    assert task("digits").train[0].shape[1:] == patches.shape[1:]
