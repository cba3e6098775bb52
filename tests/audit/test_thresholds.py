"""What counts as a departure, on summaries made by hand: on both sides of every limit."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from edgewise.audit.checks import (
    _spell,
    norm_gains_not_one,
    recipe_of,
    residual_scaling,
    tied_weights,
    unlike_siblings,
    useless_truncation,
)
from edgewise.audit.finding import AuditKind, MatrixSummary, _summary
from edgewise.audit.inspect import _published_norm_gain
from edgewise.models.model_map import ModelMap
from edgewise.models.names.model_sites import Projection

COUNT = 2**17  # one sampling error is 1/512


class NoSites:
    stacks = ()


def summary(
    rms: float = 0.02, block: int = 0, role: str = "attention.query", **values: float
) -> MatrixSummary:
    matrix = Projection(role.split(".")[1], (f"{block}.{role}",), 512, 256)
    measured = {"spread": rms, "largest": 4 * rms, "count": COUNT} | values
    return MatrixSummary("blocks", block, role, matrix, rms, **measured)  # type: ignore[arg-type]


def test_five_sampling_errors_and_two_per_cent_are_needed() -> None:
    few = summary(count=200)  # an error of 5 %
    assert few.error == pytest.approx(0.05)
    assert few.departs_from(0.02 * math.exp(0.26)) and not few.departs_from(0.02 * math.exp(0.24))
    many = summary(count=10**8)
    assert many.departs_from(0.02 * math.exp(-0.021)) and not many.departs_from(0.02 * math.exp(-0.019))


def test_random_is_finite_and_not_constant() -> None:
    assert summary().random
    assert not summary(largest=math.inf).random and not summary(rms=math.nan).random
    assert not summary(spread=0.0).random
    assert not summary(rms=1e-13, spread=1e-13, largest=1e-13).random


@pytest.mark.parametrize("odd, found", [(0, 0), (1, 1), (2, 2), (3, 0)])
def test_up_to_a_third_of_the_layers_can_be_odd(odd: int, found: int) -> None:
    """More than that is a schedule over depth."""
    layers = [summary(0.03 if block < odd else 0.02, block) for block in range(6)]
    assert [finding.kind for finding in unlike_siblings(layers)] == [AuditKind.DEPARTS_FROM_SIBLINGS] * found


def test_a_factor_on_one_output_is_missed_on_the_other() -> None:
    """1/sqrt(2 depth) on attention's output alone: the MLP's is named, and no other."""
    depth, small = 8, 0.02 / 4
    roles = {
        "attention.query": 0.02,
        "attention.key": 0.02,
        "attention.value": 0.02,
        "mlp.input": 0.02,
        "attention.output": small,
        "mlp.output": 0.02,
    }
    layers = [summary(std, block, role) for role, std in roles.items() for block in range(depth)]
    (finding,) = residual_scaling(None, depth, layers)
    assert finding.kind is AuditKind.RESIDUAL_SCALING_MISSING and finding.observation.startswith("mlp.output")
    assert "std=0.005" in finding.repair
    misplaced = [summary(small if s.role == "mlp.input" else s.rms, s.block, s.role) for s in layers]
    kinds = [f.kind for f in residual_scaling(None, depth, misplaced)]
    assert kinds == [AuditKind.RESIDUAL_SCALING_MISPLACED, AuditKind.RESIDUAL_SCALING_MISSING]


@pytest.mark.parametrize("cutoff, reach, found", [(4.0, 2.0, 1), (3.9, 3.0, 0), (2.0, 2.2, 0), (2.0, 2.4, 1)])
def test_a_cut_at_four_sigma_or_beyond_it_is_none(cutoff: float, reach: float, found: int) -> None:
    """A normal cut at 2 sigma has the standard deviation 0.88, so that its entries reach 2.27 of them."""
    layers = [summary(largest=0.02 * reach)]
    assert len(list(useless_truncation({}, layers, cutoff))) == found


def test_a_module_under_two_names_gets_a_copy_of_the_module() -> None:
    shared = nn.Linear(3, 3)
    model = nn.ModuleDict({"one": shared, "other": shared})
    for finding in tied_weights(ModelMap(model), NoSites()):  # type: ignore[arg-type]
        exec(finding.repair, {"model": model, "torch": torch})
    assert model["one"] is not model["other"] and type(model["other"]) is nn.Linear
    assert torch.equal(model["one"].weight, model["other"].weight)
    assert model["one"].weight is not model["other"].weight


def test_a_summary_holds_size_spread_and_the_largest_entry() -> None:
    model = nn.Linear(2, 2)
    model.weight.data = torch.tensor([[1.0, -3.0], [0.0, 2.0]])
    found = _summary(model, "blocks", 0, "attention.query", Projection("query", ("weight",), 2, 2))
    assert (found.rms, found.largest, found.count) == pytest.approx((math.sqrt(14 / 4), 3.0, 4))
    assert found.spread == pytest.approx(math.sqrt(14 / 3))


def test_t5_without_a_factor_has_the_factor_one() -> None:
    """Queries are smaller by sqrt(d_kv), and norms start at the factor, which the gains hold."""
    network = SimpleNamespace(
        head_width=4, value_gain=1.0, output_gain=1.0, mlp_in_gain=1.0, mlp_out_gain=1.0
    )
    matrix = SimpleNamespace(fan_in=16)
    block = SimpleNamespace(
        attention=SimpleNamespace(value=matrix, output=matrix),
        feed_forward=SimpleNamespace(input=matrix, output=matrix),
    )
    bare, one, two = (
        recipe_of({"model_type": "t5"} | given, network, SimpleNamespace(blocks=[block]))  # type: ignore[arg-type]
        for given in ({}, {"initializer_factor": 1.0}, {"initializer_factor": 2.0})
    )
    assert bare == one and bare["attention.key", 0] == pytest.approx(1 / 4)
    assert bare["attention.query", 0] == pytest.approx(1 / 8) and two["attention.key", 0] == pytest.approx(
        1 / 8
    )


def test_the_scaling_of_outputs_is_looked_for_from_three_blocks_on() -> None:
    """With two, 1/sqrt(2 depth) is one half, which other recipes have too."""
    for depth, found in ((2, 0), (3, 1)):
        roles = {
            "attention.query": 0.02,
            "mlp.input": 0.02,
            "attention.output": 0.02 / math.sqrt(2 * depth),
            "mlp.output": 0.02,
        }
        layers = [summary(std, block, role) for role, std in roles.items() for block in range(depth)]
        assert len(list(residual_scaling(None, depth, layers))) == found


@pytest.mark.parametrize(
    "blocks, text",
    [([1], "1"), ([1, 2], "1, 2"), ([2, 3, 4], "2 to 4"), ([0, 1, 2, 3], "0 to 3"), ([1, 2, 4], "1, 2, 4")],
)
def test_blocks_in_a_row_are_named_by_their_ends(blocks: list[int], text: str) -> None:
    assert _spell(blocks) == text


@pytest.mark.parametrize(
    "config, gain",
    [
        ({}, 1.0),
        ({"model_type": "t5"}, 1.0),
        ({"model_type": "t5", "initializer_factor": 0.5}, 0.5),
        ({"model_type": "bert", "initializer_factor": 0.5}, 1.0),
    ],
)
def test_norms_start_at_one_but_those_of_t5_at_its_factor(config: dict[str, object], gain: float) -> None:
    assert _published_norm_gain(config) == gain


@pytest.mark.parametrize(
    "expected, off, found",
    [(1.0, 9e-4, 0), (1.0, 1.5e-3, 1), (0.5, 9e-4, 0), (4.0, 3e-3, 0), (4.0, 5e-3, 1), (1.0, math.nan, 1)],
)
def test_a_gain_of_a_norm_may_be_off_by_a_thousandth(expected: float, off: float, found: int) -> None:
    """Of one, or of the gain itself where that is larger; one entry is enough."""
    model = nn.Sequential(nn.LayerNorm(8, dtype=torch.float64))
    nn.init.constant_(model[0].weight, expected)
    model[0].weight.data[3] += off
    assert len(list(norm_gains_not_one(model, expected))) == found
