"""Pathfinder: images repeat from a seed, labels are what the drawing says, the distance of the dots tells little."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from edgewise.errors import BadInput
from tests.support.recipes import neighbor

_module = neighbor("papers/song2024kernels/pathfinder.py", "pathfinder_images")
Curves, Look, best_window, draw_curves = (
    _module.Curves,
    _module.Look,
    _module.best_window,
    _module.draw_curves,
)
pathfinder, render, samples = _module.pathfinder, _module.render, _module.samples


@pytest.fixture(scope="module")
def made():
    return pathfinder(800, paddles=9, seed=3)


def test_a_seed_gives_the_same_images_and_another_does_not(made) -> None:
    again, other = pathfinder(40, paddles=9, seed=3), pathfinder(40, paddles=9, seed=4)
    assert (again.images == made.images[:40]).all() and (again.labels == made.labels[:40]).all()
    assert (other.images != again.images).any()


def test_the_label_is_whether_the_dots_are_joined(made) -> None:
    """Independently of the generator: bright pieces of the picture hold both dots or not; dots lie where it says."""
    right = found = 0
    for image, label, distance in zip(made.images, made.labels, made.distances, strict=True):
        pieces, _ = ndimage.label(image > 0.15, np.ones((3, 3)))
        full, count = ndimage.label(image > 0.99)
        largest = np.argsort(ndimage.sum_labels(full > 0, full, range(1, count + 1)))[-2:] + 1
        dots = np.array(ndimage.center_of_mass(full > 0, full, largest))
        found += abs(np.linalg.norm(dots[0] - dots[1]) - distance) < 1
        right += (len({pieces[tuple(dot)] for dot in np.rint(dots).astype(int)}) == 1) == bool(label)
    assert found / len(made.labels) > 0.98
    assert right / len(made.labels) > 0.88  # curves that pass close by merge, gaps stay open now and then


def test_both_labels_have_the_same_ink_and_a_fair_distance(made) -> None:
    low, high = made.ink
    assert low == pytest.approx(high, rel=0.02)
    assert made.shortcut < 0.60  # of 800 images; the best of 2,000 windows gains about 0.03 by chance alone
    assert 0.4 < made.labels.mean() < 0.6
    assert f"{made.shortcut:.1%}" in str(made)


def test_the_audit_finds_a_shortcut_that_is_there() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 4000)
    inside = random.uniform(10, 20, 4000)
    outside = np.where(random.random(4000) < 0.5, random.uniform(0, 10, 4000), random.uniform(20, 30, 4000))
    assert best_window(np.where(labels == 1, inside, outside), labels) > 0.98
    assert best_window(np.where(labels == 0, inside, outside), labels) > 0.98
    assert best_window(random.random(4000), labels) < 0.56


def test_a_window_takes_in_the_longest_distance_of_its_last_cell() -> None:
    """16 distances in cells of four: "connected in the last cell" is wrong once, and no window leaves 15 alone out."""
    labels = np.zeros(16, np.int64)
    labels[[12, 13, 14]] = 1
    assert best_window(np.arange(16.0), labels, cuts=4) == 15 / 16


def test_sizes_and_refusals() -> None:
    small = pathfinder(20, size=20, paddles=3, distractors=0, seed=0)
    assert small.images.shape == (20, 20, 20) and 0 <= small.images.min() < small.images.max() <= 1
    with pytest.raises(BadInput, match=r"paddles must be .* got 1"):
        pathfinder(10, paddles=1)
    with pytest.raises(BadInput, match="tolerance"):
        pathfinder(10, tolerance=0.0)
    with pytest.raises(BadInput, match="hardly fit"):
        pathfinder(10, size=12, paddles=30)


def test_dashes_lie_along_their_heading_and_dots_are_discs() -> None:
    look = Look(size=16, paddles=2, distractors=0)
    curves = Curves(np.array([[[8.0, 4.0], [8.0, 12.0]]]), np.array([[0.0, np.pi / 2]]), np.ones(1, bool))
    points = samples(curves, look)[0]
    assert points[:3] == pytest.approx(np.array([[7.2, 4.0], [8.0, 4.0], [8.8, 4.0]]))
    assert points[3:] == pytest.approx(np.array([[8.0, 11.2], [8.0, 12.0], [8.0, 12.8]]))
    dots = np.array([[[4.0, 4.0], [12.0, 12.0]]])
    assert render(np.zeros((1, 0, 2)), dots, look).sum() == pytest.approx(2 * np.pi * 1.4**2, rel=0.05)


def test_curves_that_fit_stay_inside() -> None:
    look = Look(size=24, paddles=5, distractors=0)
    curves = draw_curves(look, 5, 300, np.random.default_rng(0))
    inside = samples(curves, look)[curves.fits]
    assert len(inside) > 100 and inside.min() > look.margin and inside.max() < look.size - look.margin


def test_progress_goes_from_nothing_to_all() -> None:
    told: list[float] = []
    pathfinder(20, size=20, paddles=3, distractors=0, seed=0, progress=told.append)
    assert told == sorted(told) and told[0] > 0 and told[-1] == 1.0
