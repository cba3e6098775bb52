"""Planes and lines against closed forms, and the short way against the long one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from edgewise import landscape
from edgewise.landscape import Along
from edgewise.landscape.loss_grid import _automatic_reach
from tests.support import landscape_networks as networks
from tests.support.landscape_networks import cross_entropy, own, seeded


def quadratic_form(model: networks.Quadratic, one: landscape.Direction, other: landscape.Direction) -> float:
    return float(one.tensors["weight"].flatten() @ model.A @ other.tensors["weight"].flatten())


def test_a_quadratic_is_drawn_exactly() -> None:
    model = networks.Quadratic(offset=2.0)
    found = landscape.plane(model, own, None, ("*", "weight"), points=9, reach=0.5, seed=3)
    one, other = (landscape.random_direction(model, seed=3000 + k) for k in (0, 1))
    curved = [[quadratic_form(model, a, b) for b in (one, other)] for a in (one, other)]
    x, y = np.meshgrid(found.x, found.y)
    expected = 2.0 + (curved[0][0] * x**2 + 2 * curved[0][1] * x * y + curved[1][1] * y**2) / 2
    np.testing.assert_allclose(found.losses, expected, rtol=1e-12)
    np.testing.assert_allclose(found.roughness.curvature, curved, rtol=1e-8)
    assert found.roughness.residual < 1e-10
    assert found.roughness.minima == 1
    assert found.centre == 2.0


def test_a_line_through_a_slope() -> None:
    model = networks.Quadratic(shift=1.0)
    found = landscape.line(model, own, None, points=11, reach=0.25)
    d = landscape.random_direction(model)
    slope = float((model.A @ torch.ones(12, dtype=torch.float64)) @ d.tensors["weight"].flatten())
    expected = found.centre + slope * found.x + quadratic_form(model, d, d) * found.x**2 / 2
    np.testing.assert_allclose(found.losses, expected, rtol=1e-10)
    np.testing.assert_allclose(found.roughness.sharpness, quadratic_form(model, d, d), rtol=1e-6)


def test_toward_another_model() -> None:
    model, goal = seeded(networks.convolutions), networks.convolutions()
    batch = networks.images()
    found = landscape.line(model, cross_entropy, batch, landscape.toward(model, goal.state_dict()), points=5)
    with torch.no_grad():
        assert found.losses[-1] == pytest.approx(float(cross_entropy(goal.eval(), batch)), rel=1e-5)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_automatic_reach_finds_where_the_loss_has_risen_by_half(share: float) -> None:
    """L = 4 + k r^2/2 along the steepest of the eight compass points; the answer is within its two digits."""
    model = networks.Quadratic(offset=4.0 * share)
    found = landscape.plane(model, own, None, ("*", "*"), points=5, reach="auto")
    largest = max(abs(loss / found.centre - 1) for loss in found.losses.flat)
    assert 0.3 < largest < 0.8


@pytest.mark.parametrize("width", [0.003, 0.01, 0.2])
def test_an_automatic_reach_ends_before_the_loss_has_risen_by_more(width: float) -> None:
    """L = 1 + (r/w)^2 / 2 rises by half at r = w, here from valleys as narrow as 0.003 of the weights."""
    found = _automatic_reach(lambda at: 1 + 0.5 * max(abs(x) / width for x in at) ** 2, 2, 1.0, 1.0)
    assert 0.5 * width < found <= 1.05 * width


SUBJECTS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], tuple[Any, Any]]] = {
    "library": (networks.library_net, networks.tokens, ("queries", "keys")),
    "library, last block": (
        networks.library_net,
        networks.tokens,
        (Along("queries", [2]), Along("keys", [2])),
    ),
    "library, one head": (
        networks.library_net,
        networks.tokens,
        (Along("queries", [1], [0]), Along("keys", [1], [1])),
    ),
    "library, causal, grouped": (
        lambda: networks.library_net(causal=True, kv_heads=1, rope=1.0, qk_norm=True),
        networks.tokens,
        ("queries", "keys"),
    ),
    "library, one direction moves both": (
        networks.library_net,
        networks.tokens,
        ("blocks.2.*", "blocks.2.*k_proj*"),
    ),
    "library, values": (networks.library_net, networks.tokens, ("values", "outputs")),
    "library, all": (networks.library_net, networks.tokens, ("*", Along("*", vectors=True))),
    "torch encoder": (networks.encoder, networks.tokens, ("queries", "keys")),
    "torch encoder, last block": (
        networks.encoder,
        networks.tokens,
        (Along("queries", [2]), Along("keys", [2])),
    ),
    "torch encoder, post": (
        lambda: networks.encoder(False),
        networks.tokens,
        (Along("keys", [1]), "readout.weight"),
    ),
    "convolutions": (networks.convolutions, networks.images, ("4.weight", "7.weight")),
    "in place": (lambda: networks.Pooled(networks.WritesInPlace()), networks.tokens, ("*second*", "*third*")),
    "branches": (lambda: networks.Pooled(networks.Branches()), networks.tokens, ("*gate*", "*gate*")),
    "twice": (lambda: networks.Pooled(networks.Twice()), networks.tokens, ("*layer*", "readout.weight")),
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_short_way_gives_the_numbers_of_the_long_one(name: str) -> None:
    """In training mode, with dropout and batch norm; nothing of the model or of the random stream changes."""
    make, data, directions = SUBJECTS[name]
    model, batch = seeded(make).train(), data()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    found = landscape.plane(model, cross_entropy, batch, directions, points=5)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())
    expected = _reference(model, batch, directions, found)
    np.testing.assert_allclose(
        found.losses, expected, rtol=2e-6, atol=0
    )  # float32: rounding follows the processor
    assert np.ptp(expected) > 1e-4


def _reference(
    model: nn.Module, batch: Any, directions: tuple[Any, Any], found: landscape.Plane
) -> np.ndarray:
    """Weights written into the model itself, point by point."""
    drawn = [landscape.random_direction(model, d, seed=k) for k, d in enumerate(directions)]
    kept = {name: p.detach().clone() for name, p in model.named_parameters()}
    expected = np.empty_like(found.losses)
    model.eval()
    with torch.no_grad():
        for i, y in enumerate(found.y):
            for j, x in enumerate(found.x):
                for name, p in model.named_parameters():
                    steps = [
                        c * d.tensors.get(name, torch.zeros(())) for c, d in zip((x, y), drawn, strict=True)
                    ]
                    p.copy_(kept[name] + sum(steps))
                expected[i, j] = float(cross_entropy(model, batch))
        for name, p in model.named_parameters():
            p.copy_(kept[name])
    return expected


METHODS = {
    "library": "modules from memory",
    "library, last block": "modules from memory",
    "torch encoder, last block": "modules from memory",
    "convolutions": "modules from memory",
    "library, all": "direct",
    "branches": "direct",
}


@pytest.mark.parametrize("name", METHODS)
def test_the_short_way_is_taken_where_there_is_one(name: str) -> None:
    make, data, directions = SUBJECTS[name]
    found = landscape.plane(seeded(make), cross_entropy, data(), directions, points=5)
    assert METHODS[name] in found.method


def test_blocks_before_the_first_moved_one_are_run_once() -> None:
    model = seeded(networks.library_net)
    runs = [0, 0]

    def counted(place: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            runs[place] += 1

        return hook

    for place in (0, 2):
        model.blocks[place][1].mlp.up_proj.register_forward_hook(counted(place // 2))
    landscape.plane(
        model, cross_entropy, networks.tokens(), (Along("queries", [2]), Along("keys", [2])), points=11
    )
    assert runs[0] < 10 < 121 <= runs[1]


def test_several_batches_are_averaged() -> None:
    model = seeded(networks.library_net)
    one, other = networks.tokens(3), networks.tokens(5)
    how = {"points": 5, "seed": 1}
    both = landscape.plane(model, cross_entropy, [one, other], **how)
    apart = [landscape.plane(model, cross_entropy, batch, **how).losses for batch in (one, other)]
    np.testing.assert_allclose(both.losses, (apart[0] + apart[1]) / 2, atol=1e-6)


def test_a_survey_tells_the_scatter_over_seeds() -> None:
    model = networks.Quadratic()
    found = landscape.survey(model, own, None, directions=("*", "*"), seeds=range(3), points=5)
    sharp = [plane.roughness.sharpness for plane in found.planes]
    assert len(set(sharp)) == 3
    assert found.mean("sharpness") == pytest.approx((np.mean(sharp), np.std(sharp, ddof=1) / 3**0.5))
    assert "3 direction seeds" in str(found)
