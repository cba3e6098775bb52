"""The recipes of the softmax talk compute with: tail exponents of known laws, self-attention as prompt attention."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from edgewise.laboratory.prompt_attention import teacher_student
from edgewise.study import load_recipe

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
