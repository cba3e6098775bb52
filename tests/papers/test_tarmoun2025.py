"""The recipes of the softmax talk compute with: tail exponents of known laws, self-attention as prompt attention."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch

from edgewise.laboratory import descent
from edgewise.laboratory.prompt_attention import teacher_student
from edgewise.study import load_recipe
from edgewise.study.train import descend_stack

FOLDER = Path(__file__).parents[2] / "papers" / "tarmoun2025softmax"


def module(name: str) -> ModuleType:
    return load_recipe(FOLDER / f"{name}.py").module


def test_tail_exponents_of_known_laws() -> None:
    """Pareto of exponent 2.5 by Hill's estimate (error alpha / sqrt k); Cauchy 1 and Gauss 2 by the stable one."""
    noise, generator = module("gradient_noise"), torch.Generator().manual_seed(0)
    uniform = torch.rand(20_000, generator=generator, dtype=torch.float64)
    assert noise.hill(uniform ** (-1 / 2.5)) == pytest.approx(2.5, abs=4 * 2.5 / 2000**0.5)
    normal = torch.randn(320, 2000, generator=generator)
    cauchy = torch.tan(torch.pi * (torch.rand(320, 2000, generator=generator) - 0.5))
    assert noise.stable_exponent(normal) == pytest.approx(2.0, abs=0.05)
    assert noise.stable_exponent(cauchy) == pytest.approx(1.0, abs=0.05)


def test_self_attention_is_prompt_attention_with_one_sample_per_row() -> None:
    case = {"samples": 3, "tokens": 4, "width": 3, "ratio": 50.0, "seed": 1}
    model, teacher, value, start, _ = module("self_attention").problem(case)
    X, W = model.tokens.reshape(3, 4, 4, 3)[:, 0], start.reshape(3, 3)
    direct = torch.softmax(torch.einsum("ije,ed,ikd->ikj", X, W, X), -1) @ X @ value
    torch.testing.assert_close(model.predictions(start, value), direct.reshape(12, 1))
    assert model.loss(teacher, value) == pytest.approx(0.0, abs=1e-20)


def test_one_layer_that_asks_once_is_prompt_attention() -> None:
    made, layers = teacher_student(5, 4, 6, 30.0), module("width_layers")
    once = layers.outputs(made.model, made.prompt, made.value, 1)
    torch.testing.assert_close(once, made.model.predictions(made.prompt, made.value))
    assert not torch.allclose(once, layers.outputs(made.model, made.prompt, made.value, 2))


def test_the_smallest_value_on_a_face() -> None:
    """A plain square: the target's excess is shared among the entries of the face; outside there is no point."""
    faces = module("stationary_points")
    H, c = torch.eye(3, dtype=torch.float64), torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    torch.testing.assert_close(
        faces.face_point(H, c, (0, 1)), torch.tensor([0.65, 0.35, 0.0], dtype=torch.float64)
    )
    assert faces.face_point(H, torch.tensor([3.0, 0.0, 0.0], dtype=torch.float64), (0, 1)) is None


def test_sharp_examples_that_are_few_do_not_matter() -> None:
    """Rows of the Jacobian that fade to nothing leave the condition number of the others."""
    several = module("condition_bound")
    case = several.SEVERAL | {"seed": 3}
    alone = several._several(case | {"sharp": 20}, 1e-9)
    assert alone == pytest.approx(several._several(case | {"sharp": 20}, 1e-12), abs=1e-6)
    assert several._several(case | {"sharp": 35}, 1e-4) - several._several(
        case | {"sharp": 35}, 1e-3
    ) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("value", ["frozen", "joint"])
@pytest.mark.parametrize("method", ["gradient descent", "adam"])
def test_steps_of_a_grid_together_are_the_ones_run_apart(method: str, value: str) -> None:
    """The best step and its losses, against the laboratory's own descent."""
    recipe = module("sign_descent")
    case = recipe.cases()[0] | {"method": method, "value": value, "steps": 40, "ratio": 10.0}
    found = recipe.measure(case)
    made = teacher_student(case["samples"], case["tokens"], case["width"], case["ratio"], case["seed"])
    joint = value == "joint"
    problem = made.model.joint() if joint else made.model.frozen(made.teacher_value)
    start = made.model.join(made.prompt, made.value) if joint else made.prompt
    unit = 1 / float(torch.linalg.matrix_norm(problem.jacobian(start), 2)) ** 2 if method != "adam" else 1.0
    single = {"gradient descent": descent.gradient_descent, "adam": descent.adam}[method]
    grid = [unit * share for share in recipe.GRID[method]]
    step, run = descent.tuned(problem, start, lambda s: single(problem, s), grid, 40, until=recipe.UNTIL)
    assert found["step"] == pytest.approx(step)
    assert found["losses"] == pytest.approx([float(run.losses[t]) for t in found["steps"]], rel=1e-5)


@pytest.mark.parametrize("method", ["sign", "normalized"])
def test_steps_of_equal_length_shrink_to_nothing(method: str) -> None:
    """eta, then eta (1 - t/T), in units of the root of the number of coordinates; downhill."""
    recipe = module("sign_descent")
    start, points = torch.tensor([[[3.0, -1.0]]], dtype=torch.float64), []
    losses, _ = descend_stack(
        lambda weights: weights["theta"].square().sum(-1),
        {"theta": start},
        lambda _: (),
        optimizer=recipe.DIRECTIONS[method],
        rates=torch.tensor([[0.1]], dtype=torch.float64),
        steps=4,
        schedule=recipe.SCHEDULES[method],
        look=lambda _, now: points.append(now["theta"].detach().clone()),
    )
    lengths = [float((b - a).norm()) / math.sqrt(2) for a, b in pairwise(points)]
    assert lengths == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert losses[-1] < losses[0]
    if method == "sign":
        assert (points[1] - start).abs().max() == pytest.approx(0.1)


def test_clipped_gradients_are_a_tenth_of_the_first_at_most() -> None:
    recipe = module("sign_descent")
    memory: dict[str, list[torch.Tensor]] = {}
    first = torch.tensor([[[3.0, 4.0], [0.0, 1.0]]])
    assert recipe.clipped([first], memory, 1)[0].flatten().tolist() == pytest.approx([0.3, 0.4, 0.0, 0.1])
    short = torch.tensor([[[0.1, 0.0], [2.0, 0.0]]])
    assert recipe.clipped([short], memory, 2)[0].flatten().tolist() == pytest.approx([0.1, 0.0, 0.1, 0.0])
    assert [recipe.warm(40)(t / 40) for t in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
