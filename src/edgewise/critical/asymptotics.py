"""What happens at infinite depth: fixed points, the collapse exponent, gradient modes, power laws."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import SearchBudget
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.blocks import Block, attentions
from edgewise.nouns.verdict import FixedPoint
from edgewise.stability.fixed_points import Map, crossings, eigenvalues, fixed_point
from edgewise.theory.simplex.state import Gradient, Setting, SimplexState, SimplexStep
from edgewise.theory.simplex.step import step

TINY = 1e-12  # a separation at which the map is linear to rounding
# steps in which a norm comes to rest, and the relative change that counts as rest
RELAXED, AT_REST = 200, 1e-14
TABULATED = 128.0  # logit variance: the table reaches 256, and a query may be longer than the mean
_LOG_NORMS = np.linspace(math.log(1e-10), math.log(1e10), 161)
_LOG_SEPARATIONS = np.linspace(math.log(1e-5), math.log(0.999), 80)


_OPEN = (
    "no asymptotic exponents: with a mask, window, RoPE or ALiBi the exponent at collapse is an open problem"
)
_EXPONENTIAL = "no asymptotic exponents: the stream itself grows or shrinks exponentially with depth"


@dataclass(frozen=True)
class BlockMap:
    """The last block of a network, repeated without end."""

    block: Block
    setting: Setting

    @classmethod
    def of(cls, architecture: Architecture, budget: SearchBudget | None = None) -> BlockMap:
        """Return the map of a network's last block."""
        setting = Setting(architecture.tokens, architecture.width, budget=budget)
        return cls(architecture.blocks[-1], setting)

    def steps(self, norm: Array, separation: Array) -> list[SimplexStep]:
        state, steps = SimplexState(np.asarray(norm), np.asarray(norm * separation)), []
        for branch in self.block:
            steps.append(step(state, branch, self.setting))
            state = steps[-1].state
        return steps

    def __call__(self, norm: Array, separation: Array) -> tuple[Array, Array]:
        """(q, 1 - c) after the block."""
        state = self.steps(norm, separation)[-1].state
        return state.norm, state.separation

    def tabulated_norms(self, separation: Array, largest: float) -> Array:
        """Return the largest norm at which the logits of a separation stay within the moment table; 0 if none does.

        Beyond it every state costs a quadrature, and attention is condensed on few keys anyway.
        """
        norms = np.full_like(separation, largest)
        for branch in self.block:
            for layer in attentions((branch,)):
                bound = TABULATED / np.maximum(np.asarray(layer.score_gain) ** 2 * separation, 1e-300)
                free = layer.qk_norm or branch.norm.before or branch.norm.outside
                norms = np.minimum(norms, np.where(bound >= 1, largest, 0.0) if free else np.sqrt(bound))
        return norms

    def gradient_matrix(self, norm: float, separation: float) -> Array:
        """Return the 2 x 2 matrix that takes (gq, gp) at the block's output to its input."""
        steps = self.steps(np.array([norm, norm]), np.array([separation, separation]))
        gradient = Gradient(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
        for after in reversed(steps):
            gradient = after.pull(gradient)
        return np.stack([gradient.own, gradient.cross])


@dataclass(frozen=True)
class Asymptotics:
    """angle: log-rate of the difference of near tokens at the collapsed state, lambda_a.

    gradient: log of the top eigenvalue of the two-mode gradient matrix at the stable fixed point, raw and relative to
    the stream alike; `modes` has both.
    power_law: zeta with 1 - c ~ depth^zeta if the norm has no fixed point (both exponents are then 0).
    """

    angle: float | None
    gradient: float | None
    modes: tuple[float, float] | None
    power_law: float | None
    fixed_points: tuple[FixedPoint, ...]
    notes: tuple[str, ...] = ()


def asymptotics(architecture: Architecture, budget: SearchBudget | None = None) -> Asymptotics:
    """Compute the limits of the last block repeated without end [Cowsik 2024, at finite length]."""
    block = BlockMap.of(architecture, budget)
    norms = collapsed_norms(block)
    if not norms:  # a norm that grows linearly: every branch fades, and both exponents vanish
        far = np.array([1e8])
        with np.errstate(divide="ignore"):  # a block that leaves nothing: the stream ends, infinitely fast
            growth = float(np.log(block(far, _collapsed(block, far))[0] / far)[0])
        if abs(growth) > 1e-6:
            return Asymptotics(None, None, None, None, (), (_EXPONENTIAL,))
        return Asymptotics(0.0, 0.0, None, power_law(block) if _alike(architecture) else None, (), ())
    if not _alike(architecture):
        return Asymptotics(None, None, None, None, (), (_OPEN,))
    stable = norms[-1] if len(norms) == 1 else _reached(block, architecture.embedding_norm, norms)
    collapsed = _point(block, stable, 0.0)
    points = (collapsed, *interior_points(block))
    angle = collapse_exponent(block, stable)
    attracting = next((p for p in points if p.stable), collapsed)
    modes = gradient_modes(block, attracting)
    return Asymptotics(angle, modes[0], modes, None, points, _notes(architecture))


def _alike(architecture: Architecture) -> bool:
    """No position is special in the last block; else rows average different tokens and collapse is another problem."""
    return all(layer.symmetric for layer in attentions(architecture.blocks[-1]))


def _notes(architecture: Architecture) -> tuple[str, ...]:
    lists = [name for name, value in architecture.knobs().items() if isinstance(value, tuple)]
    return (f"asymptotic values repeat the last block; {', '.join(lists)} vary with depth",) if lists else ()


def collapsed_norms(block: BlockMap) -> list[float]:
    """Norms q* with q' = q at overlap 1, smallest first; none if the stream grows without bound (pre-norm)."""

    def displacement(logs: Array) -> Array:
        after, _ = block(np.exp(logs), _collapsed(block, np.exp(logs)))
        with np.errstate(divide="ignore"):
            change = np.log(after) - logs
        return np.where(np.abs(change) < 1e-15, 0.0, change)

    values = displacement(_LOG_NORMS)
    if (values == 0).all():
        return []  # nothing moves: every norm is fixed, none is special
    norms = [math.exp(x) for x in crossings(displacement, _LOG_NORMS)]
    return [q for q in norms if abs(math.log(q)) < _LOG_NORMS[-1] - 1]


def _collapsed(block: BlockMap, norm: Array) -> Array:
    """Return a separation at which even an unnormalized stream has flat attention, v = sA^2 q^2 (1 - c) << 1."""
    sharpest = max(
        (float(np.max(np.abs(layer.score_gain))) for layer in attentions(block.block)), default=1.0
    )
    return TINY / np.maximum(norm, 1.0) ** 2 / max(sharpest, 1.0) ** 2


def _reached(block: BlockMap, start: float, norms: list[float]) -> float:
    """Return the fixed norm that a stream starting at `start` runs into."""
    q = np.array([start])
    for _ in range(RELAXED):
        before = q
        q, _unused = block(np.clip(q, 1e-10, 1e10), _collapsed(block, q))
        if abs(q - before) <= AT_REST * q:
            break
    return min(norms, key=lambda norm: abs(math.log(norm / float(q[0]))))


def collapse_exponent(block: BlockMap, norm: float) -> float:
    """lambda_a = log of the factor of 1 - c per block near c = 1; depends neither on length nor on score gain."""
    norms = np.array([norm, norm])
    before = _collapsed(block, norms) * np.array([1.0, 1e-3])
    _, after = block(norms, before)
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = np.log(after / before)
    # A factor that still falls with the separation belongs to a collapse faster than any exponential.
    return float(rates[0]) if abs(rates[0] - rates[1]) < 0.1 else -math.inf


def power_law(block: BlockMap) -> float | None:
    """zeta = d log(1 - c) / d log q on the growing stream, (B - sV^2 - q_m)/(sV^2 + q_m) for pre-norm."""
    if any(branch.norm.kind in ("tanh", "erf") and branch.norm.before for branch in block.block):
        return None  # the slope of such a norm fades with the norm: a stretched exponential, not a power
    norm = np.array([1e7])
    before = _collapsed(block, norm)
    after, separation = block(norm, before)
    growth = math.log(float(after[0] / norm[0]))
    return (
        math.log(float(separation[0] / before[0])) / growth if growth > 1e-14 and separation[0] > 0 else None
    )


def gradient_modes(block: BlockMap, point: FixedPoint) -> tuple[float, float]:
    """log of the eigenvalues of the (gq, gp) matrix: token-mean mode and difference mode, larger first."""
    separation = max(1 - point.overlap, float(_collapsed(block, np.array(point.norm))))
    values = np.linalg.eigvals(block.gradient_matrix(point.norm, separation))
    with np.errstate(divide="ignore"):
        logs = np.log(np.sort(np.abs(values))[::-1])
    return float(logs[0]), float(logs[1])


def interior_points(block: BlockMap) -> list[FixedPoint]:
    """Return fixed points with overlap below 1: norms relaxed on a grid of separations, sign changes, Newton."""
    separations = np.exp(_LOG_SEPARATIONS)
    largest = block.tabulated_norms(separations, 1e3)
    separations, largest = separations[largest > 1e-3], largest[largest > 1e-3]
    if not len(separations):
        return []
    norms = np.minimum(1.0, largest)
    # A stream that leaves the range has no fixed point; attention sharper than the moment table is not searched.
    for _ in range(RELAXED):
        before = np.clip(norms, 1e-3, largest)
        norms, after = block(before, separations)
        if np.all(np.abs(np.clip(norms, 1e-3, largest) - before) <= AT_REST * before):
            break
    change = np.log(np.maximum(after, 1e-300) / separations)
    guesses = np.flatnonzero(change[:-1] * change[1:] < 0)
    points = [fixed_point(_logarithmic(block), np.log([norms[i], separations[i]])) for i in guesses]
    inside = [x for x in points if x is not None and -20 < x[1] < 0]
    return [_point(block, math.exp(x[0]), math.exp(x[1])) for x in inside]


def _logarithmic(block: BlockMap) -> Map:
    """Return the block as a map of (log norm, log separation)."""

    def after(logs: Array) -> Array:
        norm, separation = block(np.exp(logs[:1]), np.minimum(np.exp(logs[1:]), 1.0))
        return np.log([norm[0], max(separation[0], 1e-300)])

    return after


def _point(block: BlockMap, norm: float, separation: float) -> FixedPoint:
    at = np.log([norm, max(separation, TINY)])
    if separation > 0:
        values = eigenvalues(_logarithmic(block), at)
        return FixedPoint(norm, 1 - separation, (float(np.real(values[0])), float(np.real(values[1]))))
    # At collapse the map is linear in 1 - c: its eigenvalue is the factor itself, apart from the norm's own slope.
    nearby = norm * np.exp(np.array([-1e-5, 1e-5]))
    slope = float(np.diff(np.log(block(nearby, _collapsed(block, nearby))[0]))[0] / 2e-5)
    return FixedPoint(norm, 1.0, (slope, math.exp(collapse_exponent(block, norm))))
