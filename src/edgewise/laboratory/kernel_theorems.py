"""Two convergence theorems for attention kernels as certificates on a user's own data [Song 2024].

One layer of multi-head attention fits a scalar per token, with softmax or Gaussian weights:

    F_ik = sum_h (S_ih X_i W^V_h W^O_h)_k ,     f = sum_ik (F_ik - y_ik)^2 / 2

Shapes: inputs X (N, n, D), targets y (N, n); query, key, value (H, D, d), trained; output W^O (H, d), fixed.

1. All of W^Q, W^K, W^V trained and H D >= N n: f_t <= (1 - eta beta)^t f_0 from some initialization, for both kernels.
2. Only W^Q trained: the Gaussian converges at a rate gamma, softmax is only promised vanishing gradients.

The constants are derived here. |grad_V f|^2 = sum_h |B_h^T r|^2 |W^O_h|^2, so beta = min_h |W^O_h|^2 sigma_min(B)^2 is
safe; the literal reading |W^O|^2 sigma_min(B)^2 is larger and does not follow. gamma = lambda_min(Theta),
Theta = (X X^T) o (u u^T), the tangent kernel of W^Q alone. Along a run that trains W^Q alone:

    gaussian:  f_t <= f_0 prod_s (1 - eta_s gamma) ,   gamma = lambda_min of the tangent kernel of W^Q at the start
    both:      f_t <= f_0 - sum_s eta_s |grad f_s|^2 / 2 ,   all that is promised to softmax

The theorem's step is fixed. Without one, every step is the first of eta, eta/2, eta/4, ... that keeps the second line,
beginning with twice the last one: where the kernel is steep a step of 1/lambda_max throws queries into the region in
which a Gaussian is dead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import jacrev

from edgewise.errors import BadInput

TRAINED = ("query", "key", "value")
DEAD = -8.0  # mean exponent of a Gaussian kernel below which nothing reaches the queries
HALVINGS = 60  # after which a step counts as impossible
KERNELS = ("softmax", "gaussian")


@dataclass(frozen=True, eq=False)
class KernelLayer:
    """The model with its data; every tensor float64."""

    inputs: Tensor
    targets: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    kernel: str = "softmax"

    def __post_init__(self) -> None:
        if self.kernel not in KERNELS:
            raise BadInput(f"kernel = {self.kernel!r} is not a kernel: expected {' or '.join(KERNELS)}.")
        (N, n, D), (H, _, d) = self.inputs.shape, self.query.shape
        shapes = {"inputs": (N, n, D), "targets": (N, n), "output": (H, d)}
        for name, shape in (shapes | dict.fromkeys(TRAINED, (H, D, d))).items():
            tensor: Tensor = getattr(self, name)
            if tensor.dtype != torch.float64:
                raise BadInput(f"{name} has dtype {tensor.dtype}; the certificates need torch.float64.")
            if not bool(tensor.isfinite().all()):
                raise BadInput(f"{name} has entries that are not finite.")
            if tuple(tensor.shape) != shape:
                raise BadInput(
                    f"{name} has shape {tuple(tensor.shape)}; expected {shape} beside these inputs."
                )

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """N samples, n tokens, D coordinates, H heads, d head width."""
        samples, tokens, width = self.inputs.shape
        heads, _, head_width = self.query.shape
        return samples, tokens, width, heads, head_width

    def logits(self) -> Tensor:
        """C (N, H, n, n): q.k/sqrt(d), or -|q - k|^2/(2 sqrt(d))."""
        q, k = (torch.einsum("ikD,hDd->ihkd", self.inputs, w) for w in (self.query, self.key))
        root = self.query.shape[-1] ** 0.5
        products = q @ k.mT / root
        if self.kernel == "softmax":
            return products
        return products - (q.square().sum(-1)[..., None] + k.square().sum(-1)[..., None, :]) / (2 * root)

    def weights(self) -> Tensor:
        """S (N, H, n, n); the Gaussian's rows are not normalized."""
        logits = self.logits()
        return logits.softmax(-1) if self.kernel == "softmax" else logits.exp()

    def value_scalars(self) -> Tensor:
        """a_ihj = X_ij W^V_h W^O_h, (N, H, n): what a head adds to a token that attends to j alone."""
        return torch.einsum("ijD,hDd,hd->ihj", self.inputs, self.value, self.output)

    def outputs(self) -> Tensor:
        """F (N, n)."""
        return torch.einsum("ihkj,ihj->ik", self.weights(), self.value_scalars())

    def residual(self) -> Tensor:
        return self.outputs() - self.targets

    def loss(self) -> float:
        return 0.5 * float(self.residual().square().sum())

    def features(self) -> Tensor:
        """B (N n, H D): row (i, k) is [(S_i1 X_i)_k, ..., (S_iH X_i)_k], so that F = B stack_h(W^V_h W^O_h)."""
        mixed = torch.einsum("ihkj,ijD->ikhD", self.weights(), self.inputs)
        return mixed.flatten(2).flatten(0, 1)

    def query_slopes(self) -> Tensor:
        """u (N n, H d) with dF_ik/dW^Q_h = X_ik (outer) u_ikh.

        softmax:  u = (1/sqrt d) sum_j P_kj (a_j - mean_k) k_j ;   gaussian:  u = (1/sqrt d) sum_j G_kj a_j (k_j - q_k).
        """
        a, S = self.value_scalars(), self.weights()
        q, k = (torch.einsum("ikD,hDd->ihkd", self.inputs, w) for w in (self.query, self.key))
        weighted = S * a[:, :, None]
        if self.kernel == "softmax":
            slopes = (weighted - S * weighted.sum(-1, keepdim=True)) @ k
        else:
            slopes = weighted @ k - weighted.sum(-1)[..., None] * q
        slopes = slopes / self.query.shape[-1] ** 0.5
        return slopes.transpose(1, 2).flatten(2).flatten(0, 1)

    def with_weights(self, **changes: Tensor) -> KernelLayer:
        return replace(self, **changes)  # type: ignore[arg-type]


def random_layer(
    samples: int,
    tokens: int,
    width: int,
    heads: int,
    head_width: int,
    kernel: str = "softmax",
    *,
    query_key_scale: float = 1.0,
    value_scale: float = 1.0,
    output_scale: float = 1.0,
    target_scale: float = 1.0,
    seed: int = 0,
) -> KernelLayer:
    """Gaussian data, targets and weights; weights of variance scale^2 / fan-in.

    Theorem 1 is realized by value_scale = 0 and a large output_scale: queries and keys then hardly move.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs, targets = normal(samples, tokens, width), target_scale * normal(samples, tokens)
    query, key = (normal(heads, width, head_width) * query_key_scale / width**0.5 for _ in range(2))
    value = normal(heads, width, head_width) * value_scale / width**0.5
    output = normal(heads, head_width) * output_scale / head_width**0.5
    return KernelLayer(inputs, targets, query, key, value, output, kernel)


@dataclass(frozen=True)
class Theorem1:
    """What the initialization promises when queries, keys and values are trained with step `step`."""

    heads_times_width: int  # H D
    samples_times_tokens: int  # N n
    rank: int  # of B_0
    smallest_singular: float  # sigma_min(B_0), zero when H D < N n
    beta_safe: float
    beta_literal: float
    step: float  # 1 / lambda_max of the tangent kernel of all trained weights

    @property
    def applies(self) -> bool:
        return self.heads_times_width >= self.samples_times_tokens and self.beta_safe > 0

    def iterations(self, factor: float) -> float:
        """Return steps after which the loss has fallen by this factor, as promised; infinite when nothing is."""
        per_step = -math.log1p(-min(self.step * self.beta_safe, 1.0 - 1e-16))
        return math.log(factor) / per_step if self.applies else math.inf

    def __str__(self) -> str:
        sizes = f"H D = {self.heads_times_width}, N n = {self.samples_times_tokens}, rank of B {self.rank}"
        if not self.applies:
            return f"Theorem 1 does not apply ({sizes}): it needs H D >= N n and independent rows. A run may still fit."
        return (
            f"Theorem 1 applies ({sizes}): with step {self.step:.3g} the loss falls at least by 1 - "
            f"{self.step * self.beta_safe:.3g} per step, a million times in {self.iterations(1e6):.3g} steps, while "
            f"sigma_min(B) = {self.smallest_singular:.3g} does not fall below its start."
        )


def check_theorem1(layer: KernelLayer) -> Theorem1:
    """Constants of theorem 1 at the weights of `layer`."""
    samples, tokens, width, heads, _ = layer.sizes
    singular = torch.linalg.svdvals(layer.features())
    enough = heads * width >= samples * tokens
    smallest = float(singular[samples * tokens - 1]) if enough else 0.0
    rank = int((singular > singular[0] * max(layer.features().shape) * torch.finfo(torch.float64).eps).sum())
    norms = layer.output.square().sum(-1)
    beta = float(norms.min()) * smallest**2
    return Theorem1(
        heads * width,
        samples * tokens,
        rank,
        smallest,
        beta,
        float(norms.sum()) * smallest**2,
        largest_step(layer),
    )


def largest_step(layer: KernelLayer, trained: tuple[str, ...] = TRAINED) -> float:
    """1 / lambda_max(J J^T), J the Jacobian of the outputs in the trained weights; infinite where J is zero."""
    largest = float(torch.linalg.matrix_norm(jacobian(layer, trained), 2) ** 2)
    return 1 / largest if largest > 0 else math.inf


def jacobian(layer: KernelLayer, trained: tuple[str, ...] = TRAINED) -> Tensor:
    """dF/dW (N n, P) for the trained weights, flattened in order."""

    def outputs(*weights: Tensor) -> Tensor:
        return layer.with_weights(**dict(zip(trained, weights, strict=True))).outputs().flatten()

    start = tuple(getattr(layer, name) for name in trained)
    parts = jacrev(outputs, argnums=tuple(range(len(trained))))(*start)
    return torch.cat([part.flatten(1) for part in parts], -1)


@dataclass(frozen=True)
class Theorem2:
    """What is known beforehand when only the queries are trained."""

    gamma: float  # smallest eigenvalue of the tangent kernel of W^Q
    largest: float  # its largest
    floor: float  # loss that no W^Q can go below
    outside: float  # share of targets outside the range of the outputs
    mean_exponent: float  # of a Gaussian's weights, or nan

    @property
    def step(self) -> float:
        return 1 / self.largest if self.largest > 0 else math.inf

    @property
    def condition(self) -> float:
        return self.largest / self.gamma if self.gamma > 0 else math.inf

    def __str__(self) -> str:
        sentences = [f"gamma = {self.gamma:.3g} (condition {self.condition:.3g})."]
        if self.floor > 0:
            sentences.append(
                f"{self.outside:.0%} of the targets lie outside the range of the outputs: no query weights bring the "
                f"loss below {self.floor:.3g}. Larger values (W^V W^O) would."
            )
        if self.mean_exponent < DEAD:
            sentences.append(
                f"The Gaussian's weights are e^{self.mean_exponent:.1f} on average: no gradient reaches the queries. "
                "Scale queries and keys to |q|, |k| of order d^(1/4)."
            )
        return " ".join(sentences)


def check_theorem2(layer: KernelLayer) -> Theorem2:
    """Constants of theorem 2 at the weights of `layer`; the tangent kernel is (N n)^2, no Jacobian is formed."""
    rows = layer.inputs.flatten(0, 1)
    slopes = layer.query_slopes()
    eigenvalues = torch.linalg.eigvalsh((rows @ rows.T) * (slopes @ slopes.T))
    low, high = output_range(layer)
    short = torch.clamp(low - layer.targets, min=0) + torch.clamp(layer.targets - high, min=0)
    exponent = float(layer.logits().mean()) if layer.kernel == "gaussian" else math.nan
    return Theorem2(
        gamma=max(float(eigenvalues[0]), 0.0),
        largest=float(eigenvalues[-1]),
        floor=0.5 * float(short.square().sum()),
        outside=float((short > 0).double().mean()),
        mean_exponent=exponent,
    )


def output_range(layer: KernelLayer) -> tuple[Tensor, Tensor]:
    """Return what F_ik can be whatever the queries are, (N, n) each.

    Softmax: convex weights, sum_h [min_j a, max_j a].  Gaussian: weights in (0, 1], sum_h sum_j of the negative and of
    the positive scalars. Necessary, not sufficient: heads share one W^Q over all tokens.
    """
    a = layer.value_scalars()
    if layer.kernel == "softmax":
        low, high = a.amin(-1).sum(-1), a.amax(-1).sum(-1)
    else:
        low, high = a.clamp(max=0).sum((-2, -1)), a.clamp(min=0).sum((-2, -1))
    return low[:, None].expand_as(layer.targets), high[:, None].expand_as(layer.targets)


@dataclass(frozen=True, eq=False)
class QueryRun:
    """Losses before every step and after the last, steps taken, gammas on the way, and the last weights."""

    start: Theorem2
    losses: Tensor  # (t + 1,)
    steps: Tensor  # (t,)
    gammas: Tensor  # (t,), as they were when last inspected
    squared_gradients: Tensor  # (t,)
    last: KernelLayer

    @property
    def rate_bound(self) -> Tensor:
        """f_0 prod (1 - eta_s gamma_0): the promise from the start."""
        return self._product(torch.full_like(self.gammas, self.start.gamma))

    @property
    def path_bound(self) -> Tensor:
        """The same with gamma as it was on the way: exact up to the curvature that a step meets."""
        return self._product(self.gammas)

    @property
    def violations(self) -> int:
        """Steps at which the loss is above the promise from the start."""
        return int((self.losses > self.rate_bound * (1 + 1e-9) + 1e-300).sum())

    def descent_violations(self, share: float = 0.5) -> int:
        """Return steps at which the loss is above f_0 - share sum_s eta_s |grad f_s|^2."""
        fallen = torch.cat(
            [torch.zeros(1, dtype=torch.float64), (self.steps * self.squared_gradients).cumsum(0)]
        )
        return int((self.losses > self.losses[0] * (1 + 1e-9) - share * fallen).sum())

    @property
    def slopes(self) -> Tensor:
        """|grad f|^2 / 2f before every step: at least gamma as it is there, and zero where a run rests above zero."""
        return self.squared_gradients / (2 * self.losses[:-1]).clamp_min(1e-300)

    @property
    def fell_to(self) -> float:
        return float(self.losses[-1] / self.losses[0])

    def _product(self, gammas: Tensor) -> Tensor:
        logs = torch.log1p(-(self.steps * gammas).clamp(max=1 - 1e-16)).cumsum(0)
        return self.losses[0] * torch.cat([torch.zeros(1, dtype=torch.float64), logs]).exp()


def descend_queries(
    layer: KernelLayer, steps: int, refresh: int = 25, until: float = 1e-24, step: float | None = None
) -> QueryRun:
    """Gradient descent on W^Q alone, with a fixed step, or else with steps that keep the descent lemma."""
    if steps < 1 or refresh < 1:
        raise BadInput(f"steps = {steps} and refresh = {refresh} must be at least 1.")
    start = constants = check_theorem2(layer)
    eta = start.step if math.isfinite(start.step) else 1.0
    losses, rows, now = [layer.loss()], [], layer
    for t in range(steps):
        if t and t % refresh == 0:
            constants = check_theorem2(now)
        gradient = query_gradient(now)
        squared = float(gradient.square().sum())
        if step is None:
            taken = _step(now, gradient, squared, losses[-1], 2 * eta)
        else:  # whatever the loss does, while the weights are finite
            moved = now.query - step * gradient
            taken = (step, now.with_weights(query=moved)) if bool(moved.isfinite().all()) else None
        if taken is None or losses[-1] < until * losses[0]:
            break
        eta, now = taken
        losses.append(now.loss())
        rows.append((eta, constants.gamma, squared))
    etas, gammas, squares = torch.tensor(rows, dtype=torch.float64).reshape(-1, 3).unbind(1)
    return QueryRun(start, torch.tensor(losses, dtype=torch.float64), etas, gammas, squares, now)


def query_gradient(layer: KernelLayer) -> Tensor:
    """sum_ik r_ik X_ik (outer) u_ikh, shaped like W^Q (H, D, d)."""
    _, _, width, heads, head_width = layer.sizes
    slopes = layer.query_slopes().unflatten(-1, (heads, head_width))
    weighted = layer.residual().flatten()[:, None] * layer.inputs.reshape(-1, width)
    return torch.einsum("rD,rhd->hDd", weighted, slopes)


def _step(
    layer: KernelLayer, gradient: Tensor, squared: float, loss: float, eta: float
) -> tuple[float, KernelLayer] | None:
    """Return the first of eta, eta/2, ... after which the loss fell by at least eta |grad|^2 / 2; None at rest."""
    for _ in range(HALVINGS):
        moved = layer.with_weights(query=layer.query - eta * gradient)
        if squared > 0 and moved.loss() <= loss - eta * squared / 2:
            return eta, moved
        eta /= 2
    return None
