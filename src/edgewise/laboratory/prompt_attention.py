"""Prompt attention: f(X) = V^T X^T softmax(X W p), one softmax between a trained prompt and a trained value.

The model of [Tarmoun 2025]; vector outputs are ours (the condition-number theorem needs them).
Shapes: tokens X and keys K = X W (N, n, d); targets Y (N, m); prompt p (d,); value V (d, m); rows s (N, n).
Every pass costs O(N n d), Hessian products too: the Jacobian J(s) = diag(s) - s s^T is applied, never formed.

Teacher and student: X ~ N(0, 1), W ~ N(0, 1/d); the teacher's direction is random and its length gives a mean ratio
max s / min s.

Over-parametrized (d >= N, independent features, one output) the value alone gives a Polyak-Lojasiewicz constant; the
theorem asks that the prompt cannot leave the ball in which it holds. Shape of the statement [Tarmoun 2025]; the
constants are derived here from central moments of the softmax, u.grad^2(a.s).u = E_s[(a - mean)(u - mean)^2] <=
range(a) Var_s(u). Any loss of curvature between m > 0 and M will do: |l'|^2 is between 2m and 2M times the excess over
its smallest value, which takes the place of the loss. Logistic and Huber have m = 0: measured, not certified.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from edgewise.errors import BadInput
from edgewise.laboratory.descent import LeastSquares
from edgewise.softmax_jacobian import product


@dataclass(frozen=True, eq=False)
class PromptAttention:
    """Data and frozen keys of the model; parameters are passed to its methods."""

    tokens: Tensor
    keys: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        X, K, Y = self.tokens, self.keys, self.targets
        if X.ndim != 3 or K.shape[:2] != X.shape[:2] or K.ndim != 3 or Y.ndim != 2 or len(Y) != len(X):
            shapes = ", ".join(str(tuple(t.shape)) for t in (X, K, Y))
            raise BadInput(
                f"tokens, keys, targets have shapes {shapes}; expected (N, n, d), (N, n, d), (N, m)."
            )
        if not all(bool(torch.isfinite(t).all()) for t in (X, K, Y)):
            raise BadInput("tokens, keys or targets hold numbers that are not finite.")

    @property
    def width(self) -> int:
        return int(self.keys.shape[-1])

    @property
    def outputs(self) -> int:
        return int(self.targets.shape[-1])

    def log_rows(self, p: Tensor) -> Tensor:
        """log s_i = log softmax(K_i p), (N, n)."""
        return torch.log_softmax(self.keys @ p, -1)

    def features(self, p: Tensor) -> Tensor:
        """phi_i = X_i^T s_i, rows of Phi (N, d)."""
        return torch.einsum("ijd,ij->id", self.tokens, self.log_rows(p).exp())

    def predictions(self, p: Tensor, V: Tensor) -> Tensor:
        """f_i = V^T phi_i, (N, m)."""
        return self.features(p) @ V

    def loss(self, p: Tensor, V: Tensor) -> float:
        """|f - y|^2 / 2, summed over samples and outputs."""
        return 0.5 * float((self.predictions(p, V) - self.targets).square().sum())

    def gradients(self, p: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        """grad_p = sum_i K_i^T J(s_i) X_i V r_i and grad_V = Phi^T r."""
        s = self.log_rows(p).exp()
        phi = torch.einsum("ijd,ij->id", self.tokens, s)
        r = phi @ V - self.targets
        a = torch.einsum("ijd,id->ij", self.tokens, r @ V.T)
        return torch.einsum("ijd,ij->d", self.keys, product(s, a)), phi.T @ r

    def prompt_jacobian(self, p: Tensor, V: Tensor) -> Tensor:
        """G: row (i, o) is d f_io / d p = K_i^T J(s_i) X_i V_o, (N m, d)."""
        s = self.log_rows(p).exp()
        a = torch.einsum("ijd,do->ioj", self.tokens, V)
        return torch.einsum("ijd,ioj->iod", self.keys, product(s[:, None], a)).reshape(-1, self.width)

    def value_jacobian(self, p: Tensor) -> Tensor:
        """d f / d vec(V), (N m, d m): Phi if there is one output."""
        return torch.kron(self.features(p), torch.eye(self.outputs, dtype=self.tokens.dtype))

    def metric(self, p: Tensor) -> Tensor:
        """sum_i K_i^T J(s_i) K_i (d, d): the Fisher information of the rows, for the natural gradient."""
        s = self.log_rows(p).exp()
        mean = torch.einsum("ij,ijd->id", s, self.keys)[:, None]
        return torch.einsum("ijd,ije->de", self.keys, s[..., None] * (self.keys - mean))

    def frozen(self, V: Tensor) -> LeastSquares:
        """Return the problem in p alone, with the value frozen."""
        return LeastSquares(
            residual=lambda p: (self.predictions(p, V) - self.targets).flatten(),
            gradient=lambda p: self.gradients(p, V)[0],
            jacobian=lambda p: self.prompt_jacobian(p, V),
            metric=self.metric,
        )

    def joint(self) -> LeastSquares:
        """Return the problem in theta = [p, vec(V)], (d + d m,)."""
        return LeastSquares(
            residual=lambda theta: (self.predictions(*self.split(theta)) - self.targets).flatten(),
            gradient=lambda theta: self.join(*self.gradients(*self.split(theta))),
            jacobian=self.jacobian,
            metric=self._joint_metric,
        )

    def jacobian(self, theta: Tensor) -> Tensor:
        """[G Phi], the Jacobian of all outputs in all parameters, (N m, d + d m)."""
        p, V = self.split(theta)
        return torch.cat([self.prompt_jacobian(p, V), self.value_jacobian(p)], -1)

    def _joint_metric(self, theta: Tensor) -> Tensor:
        """Fisher information of the rows for p, Phi^T Phi (linear regression) for V."""
        p, _ = self.split(theta)
        phi = self.features(p)
        value = torch.kron(phi.T @ phi, torch.eye(self.outputs, dtype=phi.dtype))
        return torch.block_diag(self.metric(p), value)

    def join(self, p: Tensor, V: Tensor) -> Tensor:
        """p (d,) and V (d, m) as one vector."""
        return torch.cat([p, V.reshape(-1)])

    def split(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parts of a joint vector."""
        return theta[: self.width], theta[self.width :].reshape(-1, self.outputs)


def hessian_product(
    model: PromptAttention, p: Tensor, V: Tensor, dp: Tensor, dV: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the exact Hessian of the loss applied to (dp, dV): the derivative of both gradients along it.

    d grad_p = sum_i K_i^T ( dJ a + J da ),  dJ a = ds (a - s.a) - s (ds.a),  a = X V r,  da = X (dV r + V dr)
    d grad_V = dPhi^T r + Phi^T dr
    """
    s = model.log_rows(p).exp()
    phi = torch.einsum("ijd,ij->id", model.tokens, s)
    r = phi @ V - model.targets
    ds = product(s, model.keys @ dp)
    dphi = torch.einsum("ijd,ij->id", model.tokens, ds)
    dr = phi @ dV + dphi @ V
    a = torch.einsum("ijd,id->ij", model.tokens, r @ V.T)
    da = torch.einsum("ijd,id->ij", model.tokens, r @ dV.T + dr @ V.T)
    centred = a - (s * a).sum(-1, keepdim=True)
    moved = ds * centred - s * (ds * a).sum(-1, keepdim=True) + product(s, da)
    return torch.einsum("ijd,ij->d", model.keys, moved), dphi.T @ r + phi.T @ dr


def largest_curvature(model: PromptAttention, theta: Tensor, steps: int = 100, seed: int = 0) -> float:
    """|lambda|_max of the Hessian at theta by power iteration on its products."""

    def apply(vector: Tensor) -> Tensor:
        return model.join(*hessian_product(model, *model.split(theta), *model.split(vector)))

    return power_iteration(apply, len(theta), steps, seed)


def power_iteration(apply: Callable[[Tensor], Tensor], size: int, steps: int = 100, seed: int = 0) -> float:
    """Return the eigenvalue of largest size of a symmetric map of (size,) vectors; from below."""
    vector = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    value = 0.0
    for _ in range(steps):
        vector = vector / vector.norm()
        image = apply(vector)
        before, value = value, float(image.norm())
        if value == 0 or abs(value - before) <= 1e-12 * value:
            break
        vector = image
    return value


Pairwise = Callable[[Tensor, Tensor], Tensor]  # outputs f and targets y, entry by entry


@dataclass(frozen=True)
class ConvexLoss:
    """l and dl/df; `value` is the excess over the smallest value, zero at a perfect fit."""

    name: str
    value: Pairwise
    slope: Pairwise
    curvatures: tuple[float, float] = (1.0, 1.0)  # m <= l'' <= M everywhere
    target: Callable[[Tensor], Tensor] = lambda outputs: outputs  # the y that given outputs fit perfectly


SHARE = 0.1  # of the square in `tempered`
SQUARED = ConvexLoss("squared", lambda f, y: (f - y).square() / 2, lambda f, y: f - y)
LOGISTIC = ConvexLoss(  # -y log sigma(f) - (1 - y) log(1 - sigma(f)), less the entropy of y
    "logistic",
    lambda f, y: F.softplus(f) - y * f + torch.special.xlogy(y, y) + torch.special.xlogy(1 - y, 1 - y),
    lambda f, y: torch.sigmoid(f) - y,
    (0.0, 0.25),
    torch.sigmoid,
)
HUBER = ConvexLoss(
    "huber", partial(F.huber_loss, reduction="none"), lambda f, y: (f - y).clamp(-1, 1), (0.0, 1.0)
)
TEMPERED = ConvexLoss(
    "tempered",
    lambda f, y: SHARE * (f - y).square() / 2 + (1 - SHARE) * ((1 + (f - y).square()).sqrt() - 1),
    lambda f, y: SHARE * (f - y) + (1 - SHARE) * (f - y) / (1 + (f - y).square()).sqrt(),
    (SHARE, 1.0),
)
LOSSES = {loss.name: loss for loss in (SQUARED, LOGISTIC, HUBER, TEMPERED)}


def risk(model: PromptAttention, loss: ConvexLoss, p: Tensor, V: Tensor) -> float:
    """Sum over samples and outputs of the excess."""
    return float(loss.value(model.predictions(p, V), model.targets).sum())


def risk_gradients(model: PromptAttention, loss: ConvexLoss, p: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """grad_p = G^T l' and grad_V = Phi^T l', as for the square with l' in place of the residual."""
    slope = loss.slope(model.predictions(p, V), model.targets)
    return model.prompt_jacobian(p, V).T @ slope.flatten(), model.features(p).T @ slope


def row_slope(model: PromptAttention, loss: ConvexLoss, V: Tensor) -> Callable[[Tensor], Tensor]:
    """grad l_i(s_i) = X_i V l'(V^T X_i^T s_i, y_i), for the flows of the rows."""

    def slope(s: Tensor) -> Tensor:
        outputs = torch.einsum("ijd,ij->id", model.tokens, s) @ V
        return torch.einsum("ijd,id->ij", model.tokens, loss.slope(outputs, model.targets) @ V.T)

    return slope


def fitted(model: PromptAttention, loss: ConvexLoss) -> PromptAttention:
    """Return the same data with targets that the former outputs fit perfectly under this loss."""
    return PromptAttention(model.tokens, model.keys, loss.target(model.targets))


@dataclass(frozen=True, eq=False)
class TeacherStudent:
    """A problem that the teacher solves exactly, and where the student starts."""

    model: PromptAttention
    teacher_prompt: Tensor
    teacher_value: Tensor
    prompt: Tensor
    value: Tensor


def log_ratios(model: PromptAttention, p: Tensor) -> Tensor:
    """log(max s / min s) of every sample, the range of its logits, (N,)."""
    z = model.keys @ p
    return z.amax(-1) - z.amin(-1)


def log_mean_ratio(model: PromptAttention, p: Tensor) -> float:
    """log of the mean over samples of max s / min s."""
    ratios = log_ratios(model, p)
    return float(torch.logsumexp(ratios, 0)) - math.log(len(ratios))


def teacher_student(
    samples: int, tokens: int, width: int, ratio: float, seed: int = 0, outputs: int = 1
) -> TeacherStudent:
    """N samples of n tokens; ratio: the teacher's mean max s / min s, above 1."""
    if not ratio > 1:
        raise BadInput(f"ratio = {ratio!r} is not possible: max s / min s is above 1.")
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    X, W = normal(samples, tokens, width), normal(width, width) / math.sqrt(width)
    p0, v0, v, direction = (normal(width, 1 if i in (0, 3) else outputs) / math.sqrt(width) for i in range(4))
    bare = PromptAttention(X, X @ W, torch.zeros(samples, outputs, dtype=torch.float64))
    p = prompt_of_ratio(bare, direction[:, 0], ratio)
    model = PromptAttention(X, bare.keys, bare.predictions(p, v))
    return TeacherStudent(model, p, v, p0[:, 0], v0)


def prompt_of_ratio(model: PromptAttention, direction: Tensor, ratio: float) -> Tensor:
    """Return the direction at the length where the mean ratio is as wanted; it grows with the length."""
    unit, wanted = direction / direction.norm(), math.log(ratio)
    low, high = 0.0, 1.0
    while log_mean_ratio(model, high * unit) < wanted:
        high *= 2
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if log_mean_ratio(model, middle * unit) < wanted else (low, middle)
    return 0.5 * (low + high) * unit


@dataclass(frozen=True)
class Certificate:
    """What the initialization promises under gradient descent with a step below 2/L, and whether it is valid."""

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
    share: float = 1.0  # the step in units of 1/L

    @property
    def applies(self) -> bool:
        """The path of p ends before the ball does."""
        return self.prompt_path <= self.radius

    @property
    def step(self) -> float:
        return self.share / self.smoothness

    @property
    def rate(self) -> float:
        """Loss_{t+1} <= rate Loss_t, if it applies: 1 - eta (2 - eta L) mu; 1 - mu/L for the step 1/L."""
        return 1 - self.share * (2 - self.share) * self.polyak_lojasiewicz / self.smoothness

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


def certificate(
    model: PromptAttention, p: Tensor, v: Tensor, loss: ConvexLoss = SQUARED, share: float = 1.0
) -> Certificate:
    """Return every constant of the theorem, computed at the initialization (p, v), for the step share/L.

    share: between 0 and 2, since the theorem is about steps below 2/L; c = 1 - share/2.
    """
    if not 0 < share < 2:
        raise BadInput(f"share is {share!r}. The theorem is about steps between 0 and 2 in units of 1/L.")
    if model.outputs != 1:
        raise BadInput(f"the theorem is about one output, the model has {model.outputs}.")
    c, (m, M) = 1 - share / 2, loss.curvatures
    Gamma = float(attention_slopes(model).norm())
    B = float(model.tokens.norm(dim=-1).amax(-1).norm())
    features = model.features(p)  # (N, d): more samples than coordinates have no N-th singular value
    sigma = float(torch.linalg.svdvals(features)[-1]) if len(features) <= features.shape[1] else 0.0
    R = sigma / (2 * Gamma) if Gamma else math.inf
    mu = m * sigma**2 / 4
    r0 = math.sqrt(2 * risk(model, loss, p, v))
    path = r0 / (math.sqrt(mu) * c) if mu else math.inf
    V = float(v.norm()) + path
    bend = math.sqrt(M) * r0 * float(output_curvatures(model, V).norm()) if math.isfinite(V) else math.inf
    L = M * (V**2 * Gamma**2 + B**2) + bend if math.isfinite(V) else math.inf
    of_prompt = min(Gamma * V * math.sqrt(M) * r0 / (mu * c), path) if mu else math.inf
    bound = float(diameters(model.keys).amax()) * (float(p.norm()) + R)
    return Certificate(Gamma, B, sigma, R, mu, r0, V, L, of_prompt, bound, share)
