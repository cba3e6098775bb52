"""The pieces of a plan against closed forms: gains of branches, schemes, root finding, names."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import edgewise
from edgewise.models.model_map import ModelMap, sites
from edgewise.repair.by_measurement import CLOSE, GainSearch, _secant
from edgewise.repair.by_theory import BranchGains, _can_carry, _forgets
from edgewise.repair.layers import _cosine
from edgewise.repair.new_values import SCHEMES, _names
from edgewise.repair.plan import TotalChanges, counting_word, spell
from edgewise.repair.recognized import Recognized, recognize
from tests.support.models import build


def free(depth: int) -> list[Any]:
    return [SimpleNamespace(role=role, described=True) for role in ("mlp_in", "mlp_out")] * depth


@pytest.mark.parametrize(
    ("skip", "places", "carries"), [(1.0, 4, False), (0.5, 4, True), (0.5, 3, False), (1.0, 3, False)]
)
def test_an_mlp_carries_the_stream_only_where_skips_forget_it(
    skip: float, places: int, carries: bool
) -> None:
    network = edgewise.transformer(depth=4, activation="tanh", mlp_skip=skip)
    assert _forgets(network) == pytest.approx(-8 * math.log(skip))  # -2 log |skip| per block
    assert _can_carry(network, free(places)) == (places == 4)
    assert BranchGains.of(network, free(places), 1.0, None).carries == carries


@pytest.mark.parametrize("norm", ["pre", "none"])
def test_the_last_matrix_of_an_mlp_writes_the_share_that_was_asked_for(norm: str) -> None:
    """E |W_2 relu(W_1 x)|^2 = g_2^2 g_1^2 q / 2 is s^2 of a stream of mean square 3, of which q = 3 or 1 enters."""
    network, s = (
        edgewise.transformer(depth=2, activation="relu", norm=norm, mlp_in_gain=0.7, embedding_norm=3.0),
        0.2,
    )
    _, gain = BranchGains.of(network, [], 1.0, None).writer(network, "mlp_out", 1, s)
    entering = 1.0 if norm == "pre" else 3.0
    assert gain**2 * 0.7**2 * entering / 2 == pytest.approx(s**2 * 3.0)


def test_cosines() -> None:
    x, y = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([[6.0, 8.0], [0.0, 0.0]])
    assert _cosine(x, 2 * x) == pytest.approx(1) and _cosine(x, -x) == pytest.approx(-1)
    assert _cosine(x, y) == pytest.approx(18 / 50)
    assert _cosine(x, 0 * x) == 0 and _cosine(x, x[:1]) == 0


def test_torchs_scheme_is_torchs() -> None:
    for fan_in in (30, 300):
        drawn = nn.Linear(fan_in, 3000).weight.detach()
        std = SCHEMES["torch"].std(SimpleNamespace(fan_in=fan_in))  # type: ignore[arg-type]
        assert std == pytest.approx(float(drawn.std()), rel=0.02)


@pytest.mark.parametrize("root", [0.7, -1.1, 2.2])
def test_bisection_takes_over_where_secants_leave_the_bracket(root: float) -> None:
    """A step function in disguise: flat on both sides, its root found to a thousandth in 16 looks."""
    search = GainSearch(lambda x: TotalChanges(0.0, 2 * math.atan(60 * (x - root))), depth=2, most=16)
    x = _secant(search, lambda t: t.gradient, 0.0, 4.0)
    assert abs(x - root) < CLOSE / 60 and len(search.points) <= 16


def test_totals_say_which_gradient_they_mean() -> None:
    assert str(TotalChanges(0.5, -1.0, raw=True)) == "angle +0.50, gradient -1.00"
    assert str(TotalChanges(0.5, -1.0)) == "angle +0.50, relative gradient -1.00"


def test_names_are_spelled_together_where_one_number_differs() -> None:
    assert spell(["a.0.w", "a.1.w", "a.7.w"]) == "a.{0..7}.w"
    assert spell(["a.0.w", "a.0.w"]) == "a.0.w"
    assert spell(["a.0.w", "a.1.b.w"]) == "a.0.w and 1 more"
    assert _names("embed.weight", ["embed.weight"]) == "['embed.weight']"
    assert _names("a.{}.w", ["a.3.w", "a.4.w"]) == "names('a.{}.w', range(3, 5))"
    assert _names("a.{}.w", ["a.3.w", "a.5.w"]) == "names('a.{}.w', [3, 5])"
    assert _names("1.a.{}.w", ["1.a.3.w", "1.a.4.w"]) == "names('1.a.{}.w', range(3, 5))"
    assert counting_word(["1.a.3.w", "1.a.4.w"]) == 2
    assert counting_word(["a.3.experts.0.w", "a.4.experts.1.w"]) == 1
    assert counting_word(["a.3.q", "a.3.k"]) == 1
    assert counting_word(["head.weight", "embedding.weight"]) is None


def test_cross_attention_is_no_part_of_the_description() -> None:
    model = build("gpt2", add_cross_attention=True)
    found = recognize(model, 8)
    assert isinstance(found, Recognized), found
    values = [place for place in found.places() if place.role == "value" and place.block == 0]
    assert [place.described for place in values] == [True, False]
    assert "crossattention" in values[1].matrix.parameters[0]


def test_the_norm_of_the_first_stack_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the one that is described; another may end its branches in norms."""
    model = build("gpt2")
    places = sites(model)
    stack = places.stacks[0]
    both = replace(places, stacks=(stack, replace(stack, norm="sandwich")))
    monkeypatch.setattr(ModelMap, "sites", lambda *_: both)
    assert isinstance(recognize(model, 8), Recognized)
    monkeypatch.setattr(ModelMap, "sites", lambda *_: replace(places, stacks=both.stacks[::-1]))
    assert "sandwich" in str(recognize(model, 8))


@pytest.mark.parametrize("s, gain", [(0.01, 0.25), (0.16, 0.4), (0.81, 0.9), (4.0, 1.0)])
def test_the_inner_matrix_of_a_branch_has_the_root_of_its_gain_between_a_quarter_and_one(
    s: float, gain: float
) -> None:
    """Value and W_1 beside a whole skip, from a stream of unit size; a gate that is in its band is left alone."""
    gains = BranchGains(edgewise.transformer(depth=2), 1.0, carries=False)
    assert [gains.inner(role, 0, s) for role in ("value", "mlp_in")] == pytest.approx([gain, gain])
    assert gains.inner("query", 0, s) is None
    gated = BranchGains(edgewise.transformer(depth=2, gated=True, mlp_in_gain=1.5), 1.0, carries=False)
    assert gated.inner("mlp_in", 0, s) is None and gated.inner("mlp_linear", 0, s) == pytest.approx(gain)
    silent = BranchGains(edgewise.transformer(depth=2, attention_branch=0.0), 1.0, carries=False)
    assert silent.inner("value", 0, s) == 1.0  # a branch that is switched off has no size to aim at
    strong = edgewise.transformer(depth=2, mlp_skip=0.1, mlp_branch=0.01)
    assert BranchGains(strong, 1.0, carries=True).inner("mlp_in", 0, s) == 4.0  # as much as is allowed


@pytest.mark.parametrize("bias, gated", [(0.0, False), (0.5, False), (0.5, True)])
def test_the_second_matrix_of_an_mlp_gets_what_the_first_leaves_to_it(bias: float, gated: bool) -> None:
    """s over sqrt(E phi^2), with phi linear: gain_in^2 + bias^2, times the linear half where there is a gate."""
    network = edgewise.transformer(
        depth=2,
        activation="linear",
        mlp_in_gain=1.5,
        mlp_bias=bias,
        mlp_out_gain=0.7,
        gated=gated,
        mlp_linear_gain=3.0,
    )
    present, new = BranchGains(network, 1.0, carries=False).writer(network, "mlp_out", 0, 0.2)
    inside = (1.5**2 + bias**2) * (9.0 if gated else 1.0)
    assert (present, new) == pytest.approx((0.7, 0.2 / math.sqrt(inside)))
    value = BranchGains(network, 4.0, carries=False).writer(network, "output", 0, 0.2)
    assert value == pytest.approx((network.value_gain, 0.4))  # a stream of twice the size


@pytest.mark.parametrize(
    "given, value, key, output",
    [
        ({"output_gain": 0.3}, 2.0, 0.5, 0.3),
        ({}, 0.6**0.5, 0.5, 0.6**0.5),
        ({"key_gain": 0.1}, 0.6**0.5, 0.1, 0.6**0.5),
    ],
)
def test_gains_of_single_matrices_are_those_of_their_products(
    given: dict[str, float], value: float, key: float, output: float
) -> None:
    """value_gain and score_gain are of two matrices each: what the description does not split is shared evenly."""
    network = edgewise.transformer(depth=2, value_gain=0.6, score_gain=0.25, mlp_out_gain=(0.7, 0.9), **given)
    model = SimpleNamespace(architecture=network)
    roles = ("value", "query", "key", "output")
    assert [Recognized._config_gain(model, r, 0) for r in roles] == pytest.approx([value, key, key, output])  # type: ignore[arg-type]
    assert [Recognized._config_gain(model, "mlp_out", b) for b in (0, 1)] == [0.7, 0.9]  # type: ignore[arg-type]
