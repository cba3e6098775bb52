"""Tiny descent loops on flat vectors: gradient descent, flow, natural gradient, damped Gauss-Newton, Adam.

Shapes: parameters theta (P,), residuals (M,), Jacobian of the residuals (M, P); the loss is |residual|^2 / 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from edgewise.errors import BadInput

Field = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """min |r(theta)|^2 / 2; `metric` (P, P) is what the natural gradient measures lengths with."""

    residual: Field
    gradient: Field
    jacobian: Field
    metric: Field

    def loss(self, theta: Tensor) -> float:
        return 0.5 * float(self.residual(theta).square().sum())


@dataclass(frozen=True, eq=False)
class Descent:
    """Losses before every step and after the last, the last parameters, and some points on the way, by step."""

    losses: Tensor
    last: Tensor
    points: dict[int, Tensor]

    def first_below(self, limit: float) -> int | None:
        """Return steps until the loss was below a limit."""
        below = (self.losses < limit).nonzero()
        return int(below[0]) if len(below) else None


def descend(
    problem: LeastSquares,
    start: Tensor,
    update: Callable[[Tensor], Tensor],
    steps: int,
    until: float = 0.0,
    keep: Iterable[int] = (),
) -> Descent:
    """Apply `update` until the loss is below `until`, leaves the numbers, or the steps are used up."""
    if steps < 0:
        raise BadInput(f"steps = {steps} is not possible: expected at least 0.")
    wanted, theta = set(keep), start.clone()
    losses, points = [problem.loss(theta)], {0: theta}
    for t in range(1, steps + 1):
        if not losses[-1] > until or not math.isfinite(losses[-1]):
            break
        theta = update(theta)
        losses.append(problem.loss(theta))
        if t in wanted:
            points[t] = theta
    return Descent(torch.tensor(losses, dtype=torch.float64), theta, points)


def gradient_descent(problem: LeastSquares, step: float) -> Field:
    """theta - eta grad."""
    return lambda theta: theta - step * problem.gradient(theta)


def natural_gradient(problem: LeastSquares, step: float, damping: float = 1e-8) -> Field:
    """theta - eta (F + epsilon tr F/P)^{-1} grad, F the metric of the problem [Amari 1998]."""

    def update(theta: Tensor) -> Tensor:
        F = problem.metric(theta)
        return theta - step * torch.linalg.solve(_damped(F, damping), problem.gradient(theta))

    return update


def _damped(matrix: Tensor, share: float) -> Tensor:
    size = matrix.diagonal().mean().clamp_min(1e-300)
    return matrix + share * size * torch.eye(len(matrix), dtype=matrix.dtype)


def damped_gauss_newton(problem: LeastSquares, damping: float = 1e-2) -> Field:
    """theta - (G^T G + epsilon)^{-1} G^T r, epsilon divided by 3 after a success and doubled until one
    [Levenberg 1944, Marquardt 1963]; if no step lowers the loss the point stays.
    """
    state = {"damping": damping}

    def update(theta: Tensor) -> Tensor:
        G, r = problem.jacobian(theta), problem.residual(theta)
        curvature, slope, loss = G.T @ G, G.T @ r, problem.loss(theta)
        while state["damping"] < 1e12:
            new = theta - torch.linalg.solve(_damped(curvature, state["damping"]), slope)
            if problem.loss(new) < loss:
                state["damping"] = max(state["damping"] / 3, 1e-15)
                return new
            state["damping"] *= 2
        return theta

    return update


def adam(
    problem: LeastSquares, step: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
) -> Field:
    """m and v the running means of g and g^2, theta - eta m_hat / (sqrt(v_hat) + epsilon) [Kingma 2015]."""
    moments: list[Tensor] = []
    count = 0

    def update(theta: Tensor) -> Tensor:
        nonlocal count
        count += 1
        if not moments:
            moments.extend((torch.zeros_like(theta), torch.zeros_like(theta)))
        g = problem.gradient(theta)
        moments[0] = beta1 * moments[0] + (1 - beta1) * g
        moments[1] = beta2 * moments[1] + (1 - beta2) * g.square()
        first, second = moments[0] / (1 - beta1**count), moments[1] / (1 - beta2**count)
        return theta - step * first / (second.sqrt() + epsilon)

    return update


def tuned(
    problem: LeastSquares,
    start: Tensor,
    method: Callable[[float], Field],
    grid: Sequence[float],
    steps: int,
    until: float = 0.0,
) -> tuple[float, Descent]:
    """Return the step of a grid that ends lowest (fewest steps among those that reached `until`), and its run."""
    runs = [(step, descend(problem, start, method(step), steps, until)) for step in grid]

    def rank(run: tuple[float, Descent]) -> tuple[float, int]:
        last = float(run[1].losses[-1])
        return (max(last, until) if math.isfinite(last) else math.inf, len(run[1].losses))

    return min(runs, key=rank)


def flow(field: Field, start: Tensor, times: Sequence[float], tolerance: float = 1e-10) -> Tensor:
    """Solution of theta' = field(theta) at the given times, (times, *start.shape); adaptive, stiff or not."""

    def slope(_: float, y: np.ndarray) -> np.ndarray:
        return np.asarray(field(torch.from_numpy(y).reshape(start.shape)).reshape(-1))

    y0 = start.detach().double().reshape(-1).numpy()
    solution = solve_ivp(
        slope,
        (0.0, max(times)),
        y0,
        method="LSODA",
        t_eval=list(times),
        rtol=tolerance,
        atol=tolerance * 1e-3,
    )
    if not solution.success:
        raise BadInput(f"the flow could not be followed to t = {max(times):g}: {solution.message}")
    return torch.from_numpy(solution.y.T.copy()).reshape(len(times), *start.shape)
