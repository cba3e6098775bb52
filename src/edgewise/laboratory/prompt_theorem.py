"""Linear convergence of over-parametrized prompt attention: every constant from the initialization, and a certificate.

With d >= N and independent features the value alone gives a Polyak-Lojasiewicz constant; the theorem asks that the
prompt cannot walk out of the ball where it holds. Shape of the statement [Tarmoun 2025]; the constants are derived
here from central moments of the softmax, u.grad^2(a.s).u = E_s[(a - mean)(u - mean)^2] <= range(a) Var_s(u).
One output. Shapes: model (N, n, d), p (d,), v (d, 1).
Any loss of curvature between m > 0 and M will do: |l'|^2 is between 2m and 2M times the excess over its smallest value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.errors import BadInput
from edgewise.laboratory.convex_losses import SQUARED, ConvexLoss, risk
from edgewise.laboratory.prompt_attention import PromptAttention


@dataclass(frozen=True)
class Certificate:
    """What the initialization promises under gradient descent with step 1/L, and whether the promise is valid."""

    attention_lipschitz: float  # Gamma: |Phi(p) - Phi(p')| <= Gamma |p - p'|
    feature_bound: float  # B >= |Phi(p)|_F for every p
    smallest_feature: float  # sigma_0 = sigma_min(Phi(p_0)), zero when N > d
    radius: float  # R = sigma_0 / (2 Gamma): inside, sigma_min(Phi) >= sigma_0 / 2
    polyak_lojasiewicz: float  # mu = m sigma_0^2 / 4
    residual: float  # r_0, sqrt(2 excess)
    value_bound: float  # V >= |v_t|
    smoothness: float  # L
    prompt_path: float  # bound on the length of the path of p
    largest_log_ratio: float  # bound on log(max s / min s) of every sample, at all times

    @property
    def applies(self) -> bool:
        """The path of p ends before the ball does."""
        return self.prompt_path <= self.radius

    @property
    def step(self) -> float:
        return 1 / self.smoothness

    @property
    def rate(self) -> float:
        """Loss_{t+1} <= rate Loss_t with step 1/L, where it applies: 1 - mu/L."""
        return 1 - self.polyak_lojasiewicz / self.smoothness

    def __str__(self) -> str:
        if self.applies:
            return f"certified: the loss falls by a factor {self.rate:.6f} per step of {self.step:.3g}."
        short = f"the prompt may walk {self.prompt_path:.3g}, the ball has radius {self.radius:.3g}"
        return f"not certified: {short}. The run may still converge."


def diameters(points: Tensor) -> Tensor:
    """Largest distance of two rows of each sample, points (N, n, d) to (N,)."""
    return torch.stack(
        [torch.pdist(sample).amax() if len(sample) > 1 else sample.new_zeros(()) for sample in points]
    )


def attention_slopes(model: PromptAttention) -> Tensor:
    """gamma_i = min(|X_i||K_i|/2, D^x_i D^k_i/4) >= sup_s |X_i^T J(s) K_i|, (N,)."""
    norms = torch.linalg.matrix_norm(model.tokens, 2) * torch.linalg.matrix_norm(model.keys, 2)
    return torch.minimum(norms / 2, diameters(model.tokens) * diameters(model.keys) / 4)


def output_curvatures(model: PromptAttention, value_bound: float) -> Tensor:
    """h_i = gamma_i + D^x_i V min(|K_i|^2/2, (D^k_i)^2/4) >= |grad^2 f_i| while |v| <= V, (N,)."""
    variance = torch.minimum(
        torch.linalg.matrix_norm(model.keys, 2).square() / 2, diameters(model.keys).square() / 4
    )
    return attention_slopes(model) + diameters(model.tokens) * value_bound * variance


def certificate(model: PromptAttention, p: Tensor, v: Tensor, loss: ConvexLoss = SQUARED) -> Certificate:
    """Every constant of the theorem, computed at the initialization (p, v), for the step 1/L (so that c = 1/2)."""
    if model.outputs != 1:
        raise BadInput(f"the theorem is about one output, the model has {model.outputs}.")
    c, (m, M) = 0.5, loss.curvatures
    Gamma = float(attention_slopes(model).norm())
    B = float(model.tokens.norm(dim=-1).amax(-1).norm())
    sigma = _smallest_singular(model.features(p))
    R = sigma / (2 * Gamma) if Gamma else math.inf
    mu = m * sigma**2 / 4
    r0 = math.sqrt(2 * risk(model, loss, p, v))
    path = r0 / (math.sqrt(mu) * c) if mu else math.inf
    V = float(v.norm()) + path
    bend = math.sqrt(M) * r0 * float(output_curvatures(model, V).norm()) if math.isfinite(V) else math.inf
    L = M * (V**2 * Gamma**2 + B**2) + bend if math.isfinite(V) else math.inf
    of_prompt = min(Gamma * V * math.sqrt(M) * r0 / (mu * c), path) if mu else math.inf
    bound = float(diameters(model.keys).amax()) * (float(p.norm()) + R)
    return Certificate(Gamma, B, sigma, R, mu, r0, V, L, of_prompt, bound)


def _smallest_singular(features: Tensor) -> float:
    """The N-th singular value of Phi (N, d): zero when there are more samples than coordinates."""
    samples, width = features.shape
    return float(torch.linalg.svdvals(features)[samples - 1]) if samples <= width else 0.0
