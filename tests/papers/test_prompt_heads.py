"""Several prompts: gradients and the block-diagonal Jacobian against autograd, and heads that do not meet."""

from __future__ import annotations

import pytest
import torch

from edgewise.errors import BadInput
from edgewise.study import load_recipe
from tests.support.recipes import neighbor

FILE = "papers/tarmoun2025softmax/heads.py"
_module = neighbor(FILE, "prompt_heads")
PromptHeads, block_jacobian = _module.PromptHeads, _module.block_jacobian
interaction, row_values = _module.interaction, _module.row_values


def problem(
    heads: int = 3, outputs: int = 2, seed: int = 0
) -> tuple[PromptHeads, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    model = PromptHeads(normal(5, 4, 6), normal(heads, 5, 4, 6), normal(5, outputs))
    return model, normal(heads, 6), normal(heads, 6, outputs)


def test_the_gradient_is_that_of_autograd() -> None:
    model, P, V = problem()
    P.requires_grad_()
    loss = 0.5 * (model.predictions(P, V) - model.targets).square().sum()
    torch.testing.assert_close(model.prompt_gradient(P.detach(), V), torch.autograd.grad(loss, P)[0])


def test_the_softmax_by_rows_has_a_block_diagonal_jacobian() -> None:
    logits = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    exact = torch.autograd.functional.jacobian(lambda z: torch.softmax(z, -1), logits).reshape(12, 12)
    torch.testing.assert_close(block_jacobian(torch.softmax(logits, -1)), exact, rtol=0, atol=1e-15)
    assert bool((exact[:4, 4:] == 0).all())


def test_the_columns_of_a_matrix_prompt_are_prompts_of_their_own() -> None:
    model, P, _ = problem(outputs=3)
    V = row_values(torch.linspace(-1, 1, 6, dtype=torch.float64), 3)
    assert interaction(V) == 0
    for head in range(3):
        alone = model.alone(head, model.targets[:, head : head + 1])
        gradient = alone.gradients(P[head], V[head][:, head : head + 1])[0]
        torch.testing.assert_close(model.prompt_gradient(P, V)[head], gradient)


def test_the_field_is_the_motion_of_the_rows() -> None:
    """s(P - h grad) - s(P) over h, for small h."""
    model, P, V = problem()
    assert interaction(V) > 0.1
    moved = (model.rows(P - 1e-6 * model.prompt_gradient(P, V)) - model.rows(P)) / 1e-6
    torch.testing.assert_close(model.field(V)(model.rows(P)), moved, rtol=1e-3, atol=1e-3)


def test_refusal() -> None:
    with pytest.raises(BadInput, match=r"expected \(N, n, d\), \(H, N, n, k\), \(N, m\)"):
        PromptHeads(torch.zeros(2, 3, 4), torch.zeros(2, 3, 4), torch.zeros(2, 1))


@pytest.mark.parametrize("shared", [0.0, 1.0])
def test_steps_of_a_grid_together_are_the_ones_run_apart(shared: float) -> None:
    """Against descent with the written gradient, one step of the grid after another."""
    recipe = load_recipe(FILE).module
    case = {
        "heads": 2,
        "samples": 6,
        "tokens": 4,
        "width": 4,
        "ratio": 10.0,
        "shared": shared,
        "seed": 2,
        "steps": 30,
    }
    found = recipe._descent(case)
    model, P, _, V = recipe._problem(case, case["ratio"])
    first, ends = model.loss(P, V), {}
    for share in recipe.GRID:
        now = P
        for _ in range(case["steps"]):
            now = now - share / model.curvature(P, V) * model.prompt_gradient(now, V)
        ends[share] = model.loss(now, V) / first
    assert found["share"] == min(ends, key=lambda share: ends[share])
    assert found["final"] == pytest.approx(ends[found["share"]], rel=1e-6)
    assert found["steps"][-1] == case["steps"]
