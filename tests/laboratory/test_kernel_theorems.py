"""Certificates of the kernel theorems against autograd, definitions written out, and runs."""

from __future__ import annotations

import math

import pytest
import torch

from edgewise.errors import BadInput
from edgewise.laboratory.kernel_theorems import (
    KernelLayer,
    Theorem1,
    check_theorem1,
    check_theorem2,
    jacobian,
    output_range,
    random_layer,
)
from tests.support.recipes import neighbor

descend = neighbor("papers/song2024kernels/theorem1.py", "descent").descend

KERNELS = ("softmax", "gaussian")


def layer(kernel: str = "softmax", seed: int = 0, **how: float) -> KernelLayer:
    return random_layer(3, 4, 8, 4, 5, kernel, seed=seed, **how)  # N n = 12, H D = 32


@pytest.mark.parametrize("kernel", KERNELS)
def test_outputs_are_the_definition(kernel: str) -> None:
    made = layer(kernel)
    for i in range(3):
        expected = torch.zeros(4, dtype=torch.float64)
        for h in range(4):
            q, k = made.inputs[i] @ made.query[h], made.inputs[i] @ made.key[h]
            if kernel == "softmax":
                S = torch.softmax(q @ k.T / 5**0.5, -1)
            else:
                S = torch.exp(-torch.cdist(q, k).square() / (2 * 5**0.5))
            expected += S @ made.inputs[i] @ made.value[h] @ made.output[h]
        torch.testing.assert_close(made.outputs()[i], expected)
    joined = torch.einsum("hDd,hd->hD", made.value, made.output).flatten()
    torch.testing.assert_close(made.features() @ joined, made.outputs().flatten())


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_tangent_kernel_of_the_queries(kernel: str) -> None:
    made = layer(kernel)
    J = jacobian(made, ("query",))
    eigenvalues = torch.linalg.eigvalsh(J @ J.T)
    found = check_theorem2(made)
    assert found.gamma == pytest.approx(float(eigenvalues[0]), rel=1e-6, abs=1e-14)
    assert found.largest == pytest.approx(float(eigenvalues[-1]), rel=1e-10)


@pytest.mark.parametrize(("heads", "applies"), [(2, True), (1, False)])
def test_theorem_1_applies_from_as_many_features_as_equations(heads: int, applies: bool) -> None:
    """H D = N n = 16 is enough: B is square, and its smallest singular value is the inverse's norm."""
    made = random_layer(4, 4, 8, heads, 5, "gaussian", seed=0)
    found, B = check_theorem1(made), made.features()
    assert found.applies == applies
    expected = 1 / float(torch.linalg.matrix_norm(torch.linalg.inv(B), 2)) if applies else 0.0
    assert found.smallest_singular == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_safe_constant_is_a_polyak_lojasiewicz_constant(kernel: str) -> None:
    """|grad f|^2 >= 2 beta f at every point, by autograd; at 40 random points."""
    for seed in range(40):
        made = layer(kernel, seed=seed)
        gradient = jacobian(made).T @ made.residual().flatten()
        assert float(gradient.square().sum()) >= 2 * check_theorem1(made).beta_safe * made.loss()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_bound_holds_from_the_constructive_start(kernel: str, seed: int) -> None:
    """W^V = 0 and a large W^O: queries and keys hardly move, and the loss stays below the bound at every step."""
    run = descend(layer(kernel, seed, value_scale=0.0, output_scale=10.0), steps=400)
    assert run.violations == 0
    assert float(run.losses[-1]) < 0.1 * float(run.losses[0])
    assert max(run.moved.values()) < 0.2


def test_the_hypothesis_is_sufficient_and_not_necessary() -> None:
    narrow = random_layer(3, 4, 4, 2, 4, "gaussian", seed=1)  # H D = 8 < 12 = N n
    found = check_theorem1(narrow)
    assert not found.applies and found.beta_safe == 0 and found.iterations(10) == math.inf
    assert "does not apply" in str(found)
    run = descend(narrow, steps=400)
    assert float(run.losses[-1]) < 0.5 * float(run.losses[0])


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_queries_leave_the_range(kernel: str) -> None:
    made = layer(kernel)
    low, high = output_range(made)
    for seed in range(30):
        scale = 3.0 ** (seed % 5 - 2)
        other = made.with_weights(query=scale * layer(kernel, seed + 100).query)
        assert bool(((other.outputs() > low - 1e-9) & (other.outputs() < high + 1e-9)).all())


def test_softmax_queries_alone_end_on_the_floor_computed_before_training() -> None:
    made = layer("softmax", seed=3, target_scale=4.0)
    found = check_theorem2(made)
    assert found.floor > 0.05 * made.loss() and "no query weights" in str(found)
    run = descend(made, steps=600, trained=("query",))
    assert found.floor <= float(run.losses[-1]) < 2.5 * found.floor + 0.1 * float(run.losses[0])


def test_a_gaussian_of_large_queries_is_dead() -> None:
    made = layer("gaussian", query_key_scale=4.0)
    found = check_theorem2(made)
    assert found.mean_exponent < -8 and "no gradient reaches" in str(found)
    assert found.gamma < 1e-6 * check_theorem2(layer("gaussian", query_key_scale=0.3)).gamma


def test_refusals() -> None:
    with pytest.raises(BadInput, match="expected softmax or gaussian"):
        layer("cosine")
    made = layer()
    with pytest.raises(BadInput, match=r"targets has shape \(3, 3\)"):
        made.with_weights(targets=made.targets[:, :3])
    with pytest.raises(BadInput, match=r"torch\.float64"):
        made.with_weights(query=made.query.float())
    with pytest.raises(BadInput, match="not finite"):
        made.with_weights(key=made.key * math.nan)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_safe_constant_is_exact_where_heads_weigh_the_same(kernel: str) -> None:
    """The values' tangent kernel is sum_h |W^O_h|^2 B_h B_h^T: beta is its smallest eigenvalue then, else below it.

    The literal reading |W^O|^2 sigma_min(B)^2 is four times as large with four heads, and no constant at all.
    """
    made = layer(kernel)
    for output in (made.output / made.output.norm(dim=-1, keepdim=True), made.output):
        weighed = made.with_weights(output=output)
        J = jacobian(weighed, ("value",))
        smallest = float(torch.linalg.eigvalsh(J @ J.T)[0])
        assert check_theorem1(weighed).beta_safe <= smallest * (1 + 1e-6)
        if output is not made.output:
            assert check_theorem1(weighed).beta_safe == pytest.approx(smallest, rel=1e-6)


@pytest.mark.parametrize("width, beta, applies", [(8, 0.1, True), (8, 0.0, False), (7, 0.1, False)])
def test_theorem_1_needs_the_width_and_a_margin(width: int, beta: float, applies: bool) -> None:
    assert Theorem1(width, 8, 8, 0.5, beta, 1.0, 0.1).applies is applies
