"""A plan by theory: gains for a recognized transformer, and the totals that the recursion predicts for them.

Each branch is to add the share s^2 of the stream's mean square, s the largest at which neither total exceeds the
limit: the exponents of a block are O(s^2) and vanish together only as s does [Cowsik 2024]. Queries and keys, and with
them the scale of the scores, stay as they are, unless one key takes all; so do embeddings and readout.

Attention: V and O together w = s skip sqrt(q) / (multiplier sqrt(q_in)); MLP: sqrt(E phi^2) and W_2 likewise. Both
matrices of a branch get about sqrt(w), as in DeepNorm [Wang 2022]: an optimizer's step in either then moves the branch
alike, and the sum of the two is smallest for the product.

Pre-norm with skips a, b below one forgets the stream, q <- (a b)^2 q, and no small branch helps. There the MLP carries
it, W_2 phi(W_1 .) drawn in mirrored pairs so that it is linear, of such size that q stays: (1 - (a b)^2 (1 + s^2)) q.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgewise.nouns.architecture import Architecture
from edgewise.repair.by_measurement import GainSearch, largest_within
from edgewise.repair.layers import Exclusions
from edgewise.repair.new_values import LINEAR, ODD, SCHEMES
from edgewise.repair.plan import TOLERANCE, Change, Plan, TotalChanges, diagnose, exponent_of
from edgewise.repair.recognized import (
    MatrixPlace,
    Pairs,
    Recognized,
    allowed,
    bias_changes,
    embedding_changes,
    redraws_of_copies,
    scheme_changes,
    with_changes,
)
from edgewise.stability.lyapunov import growth
from edgewise.theory.averages.activation_averages import activation
from edgewise.theory.predict import at_least_zero, predict_transformer

EVALUATIONS = 12  # of the theory, to find s
CAP = 1.0  # a branch beside a whole skip is never given a gain above this
LEAST = 0.25  # nor a matrix inside one below this
MOST = 4.0  # or, if it carries the stream, above that
ALMOST_LINEAR = 0.3  # gain at which tanh changes angles by little over tens of layers
SHARP = 1.2  # times sqrt(2 ln n): scores of a wider spread are those of `check`'s sharp attention
BAND = (0.25, 4.0)  # gates are left alone within this, and set to gain one outside


def plan_by_theory(
    recognized: Recognized,
    before: TotalChanges | None,
    start: tuple[float, float] | None,
    exclusions: Exclusions,
    goal: str,
    limit: float,
    draw: str | None,
    embeddings: bool,
) -> Plan:
    """The changes of a recognized transformer, with the totals that the theory predicts for them.

    before, start  read from the model; None if it has no weights: then those of its description
    """
    architecture = recognized.architecture
    before = predicted_totals(architecture, None) if before is None else before
    notes = list(architecture.unmodelled)
    tables = embedding_changes(recognized, start, exclusions, notes) if embeddings else []
    if tables:
        start = (1.0, start[1] if start else 0.0)
    redraws = redraws_of_copies(recognized, exclusions, notes)
    softer = _soft_scores(recognized, start, exclusions) if goal == "critical" else []
    biases: tuple[Change, ...] = ()
    if goal != "critical":
        pairs = scheme_changes(recognized, exclusions, goal)
        notes.append(SCHEMES[goal].note(architecture.depth))
        expected = predicted_totals(with_changes(recognized, pairs, SCHEMES[goal].zero_biases), start)
        biases = bias_changes(recognized, exclusions) if SCHEMES[goal].zero_biases else ()
    elif before.worst <= limit + TOLERANCE and not redraws and not tables and not softer:
        pairs, expected = [], before
    else:
        pairs, expected = _critical_changes(
            recognized, _merge(redraws, softer), exclusions, limit, start, draw or "orthogonal"
        )
        biases = bias_changes(recognized, exclusions)
    changes = (*tables, *(change for _, change in pairs), *biases)
    expected = expected if changes else before
    text, findings = diagnose(before, expected, limit, changed=bool(changes))
    return Plan(
        goal,
        changes,
        before,
        expected,
        architecture.depth,
        recognized.sites.width,
        limit,
        "theory",
        reached=expected.worst <= limit + TOLERANCE,
        diagnosis=text,
        notes=tuple(filter(None, notes)),
        findings=findings,
    )


def predicted_totals(architecture: Architecture, start: tuple[float, float] | None) -> TotalChanges:
    """Predict the totals of a description from the start of the data: (norm, overlap)."""
    norm, overlap = start if start is not None else (None, 0.0)
    # Log-changes from the embedding to the last block, and the exponents that a verdict reads.
    trace = predict_transformer(architecture, None, norm, at_least_zero(overlap))
    angle, gradient = trace.total_changes(trace.readouts[0])
    spread = math.sqrt(2 * trace.depth / trace.architecture.width) if trace.architecture else 0.0
    ends = trace.block_ends()
    assert trace.log_gradient is not None
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.log(trace.separation[:, ends])
        relative = trace.log_gradient[0][:, ends] + np.log(trace.norm[:, ends])
    growths = growth(apart, None, trace.sampled), growth(-relative, None, trace.sampled)
    return TotalChanges(angle, gradient, False, spread, (exponent_of(growths[0]), exponent_of(growths[1])))


def _critical_changes(
    recognized: Recognized,
    fixed: Pairs,
    exclusions: Exclusions,
    limit: float,
    start: tuple[float, float] | None,
    draw: str,
) -> tuple[Pairs, TotalChanges]:
    """The changes that put every branch at the share s, and the totals the theory predicts for them."""
    free = [place for place in recognized.places() if allowed(place, exclusions)]
    gains = BranchGains.of(recognized.architecture, free, limit, start)

    def at(x: float) -> Pairs:
        inside = _merge(fixed, _inner(recognized, free, gains, math.exp(x), draw))
        architecture = with_changes(recognized, inside, biases_off=True)
        return _merge(inside, _writers(recognized, architecture, free, gains, math.exp(x), draw))

    def totals(x: float) -> TotalChanges:
        return predicted_totals(gains.effective(with_changes(recognized, at(x), biases_off=True)), start)

    search = GainSearch(totals, recognized.architecture.depth, EVALUATIONS)
    x = largest_within(search, limit, guess=math.log(1.5 * limit / recognized.architecture.depth) / 2)
    return at(x), search.at(x)


def _soft_scores(recognized: Recognized, start: tuple[float, float] | None, exclusions: Exclusions) -> Pairs:
    """Queries and keys of blocks whose scores are so large that one key takes all, at scores of standard deviation one.

    Beyond sqrt(2 ln n) the largest of n scores decides [Giorlandino 2025], and the gradient of what decides is zero.
    """
    architecture = recognized.architecture
    if architecture.qk_norm or architecture.tokens < 2:
        return []
    size = 1.0 if architecture.norm != "none" or start is None else start[0]
    most = SHARP * math.sqrt(2 * math.log(architecture.tokens))
    pairs: Pairs = []
    for place in recognized.places():
        if place.role not in ("query", "key") or not place.described or not allowed(place, exclusions):
            continue
        spread, old = _of_block(architecture, "score_gain", place.block) * size, recognized.old_std(place)
        if old and spread > most:
            reason = f"scores of standard deviation {spread:.2g} leave all weight to one of {architecture.tokens} keys"
            pairs.append((place, Change(place.matrix, old, old / math.sqrt(spread), "normal", reason)))
    return pairs


def _merge(first: Pairs, second: Pairs) -> Pairs:
    return list({(p.matrix.parameters, p.role): (p, c) for p, c in (*first, *second)}.values())


def _inner(
    recognized: Recognized, free: Sequence[MatrixPlace], gains: BranchGains, s: float, draw: str
) -> Pairs:
    """Value and MLP input matrices: the branch's gain is shared evenly between them and the matrix that writes."""
    pairs: Pairs = []
    for place in free:
        old = recognized.old_std(place)
        gain = gains.inner(place.role, place.block, s)
        if place.writes or not old or gain is None:
            continue
        unit = 1 / math.sqrt(place.matrix.fan_in)
        kind, reason = gains.style(place.role, draw)
        pairs.append((place, Change(place.matrix, old, gain * unit, kind, reason)))
    return pairs


def _writers(
    recognized: Recognized,
    architecture: Architecture,
    free: Sequence[MatrixPlace],
    gains: BranchGains,
    s: float,
    draw: str,
) -> Pairs:
    """O and W_2 of every block at the share s; matrices outside the description get its first block's ratio."""
    pairs: Pairs = []
    for place in free:
        old = recognized.old_std(place)
        if not place.writes or old is None or not old:
            continue
        block = place.block if place.described else min(place.block, architecture.depth - 1)
        present, gain = gains.writer(architecture, place.role, block, s)
        if not present:
            continue
        kind, reason = gains.style(place.role, draw, s)
        pairs.append((place, Change(place.matrix, old, old * gain / present, kind, reason)))
    return pairs


@dataclass(frozen=True)
class BranchGains:
    """Of one description, from a stream of mean square `norm`; `carries`: the MLP does what the skips do not."""

    architecture: Architecture
    norm: float
    carries: bool

    @classmethod
    def of(
        cls,
        architecture: Architecture,
        free: Sequence[MatrixPlace],
        limit: float,
        start: tuple[float, float] | None,
    ) -> BranchGains:
        norm = 1.0 if architecture.norm == "post" else (start[0] if start else architecture.embedding_norm)
        return cls(architecture, norm, _forgets(architecture) > limit and _can_carry(architecture, free))

    def inner(self, role: str, block: int, s: float) -> float | None:
        """The gain of a matrix inside a branch; None leaves it as it is."""
        if role == "value" or (role == "mlp_linear" and self.architecture.gated):
            kind = "attention" if role == "value" else "mlp"
            return min(max(math.sqrt(self._product(kind, block, s)), LEAST), 1.0)
        if role != "mlp_in":
            return None
        present = self._at("mlp_in_gain", block)
        if self.architecture.gated:
            return None if BAND[0] <= present <= BAND[1] else 1.0
        if self.carries and self.architecture.activation in ODD:
            return ALMOST_LINEAR
        return min(max(math.sqrt(self._product("mlp", block, s)), LEAST), MOST if self.carries else 1.0)

    def writer(self, architecture: Architecture, role: str, block: int, s: float) -> tuple[float, float]:
        """(present, new) gain of a branch of this description: value and output together, or W_2 of the MLP."""
        if role == "output":
            return _of_block(architecture, "value_gain", block), self._product("attention", block, s)
        entering, in_gain = self._entering, _of_block(architecture, "mlp_in_gain", block)
        phi = activation("linear" if self._exact else architecture.activation)
        inside = float(phi.square(in_gain**2 * entering + _of_block(architecture, "mlp_bias", block) ** 2))
        if architecture.gated:
            inside *= _of_block(architecture, "mlp_linear_gain", block) ** 2 * entering
        # the product is per unit of what enters; what arrives at W_2 is sqrt(E phi^2)
        gain = self._product("mlp", block, s) * math.sqrt(entering / inside)
        return _of_block(architecture, "mlp_out_gain", block), gain / self._mirror

    def style(self, role: str, draw: str, s: float | None = None) -> tuple[str, str]:
        """Return how a matrix is drawn, and why."""
        if self.carries and role in ("mlp_in", "mlp_out"):
            kind = "mirrored rows" if role == "mlp_in" else "mirrored columns"
            return (
                kind,
                "weak skips: mirrored pairs make the MLP linear at the start, so that it carries the stream",
            )
        if s is None:
            return draw, "shares the gain of its branch evenly with the matrix that writes"
        return draw, f"writes its branch into the stream: {s * s:.3g} of its mean square per branch"

    def effective(self, architecture: Architecture) -> Architecture:
        """The description that the theory gets: mirrored pairs have the odd part of the activation only."""
        if not self.carries:
            return architecture
        gain = architecture.mlp_out_gain
        odd = tuple(g * self._mirror for g in gain) if isinstance(gain, tuple) else gain * self._mirror
        return architecture.replace(
            mlp_out_gain=odd, activation="linear" if self._exact else architecture.activation
        )

    def _product(self, kind: str, block: int, s: float) -> float:
        """The gain of a whole branch, size written over size entering, without its multiplier."""
        skip, branch = (self._at(f"{kind}_{part}", block) for part in ("skip", "branch"))
        ratio = math.sqrt(self.norm / self._entering) / max(abs(branch), 1e-12)
        if kind == "mlp" and self.carries:
            rest = (skip * self._at("attention_skip", block)) ** 2  # of the stream, that the skips leave
            return math.sqrt(max(s * s * rest, 1 - rest * (1 + s * s))) * ratio
        return min(s * abs(skip or 1.0) * ratio, CAP)

    @property
    def _entering(self) -> float:
        return self.norm if self.architecture.norm == "none" else 1.0

    @property
    def _exact(self) -> bool:
        return self.carries and self.architecture.activation in LINEAR

    @property
    def _mirror(self) -> float:
        """The gain of W_2 in the description over that of its entries: half of the units, twice the odd part."""
        return 1.0 if not self.carries else 1 / math.sqrt(2) if self._exact else math.sqrt(2)

    def _at(self, name: str, block: int) -> float:
        return _of_block(self.architecture, name, min(block, self.architecture.depth - 1))


def _of_block(architecture: Architecture, name: str, block: int) -> float:
    value: Any = getattr(architecture, name)
    return float(value[block]) if isinstance(value, tuple) else float(value)


def _forgets(architecture: Architecture) -> float:
    """-log of the share of the first stream that the skips alone would leave; none where a norm follows the sum."""
    if architecture.norm not in ("pre", "none"):
        return 0.0
    names = ("attention_skip", "mlp_skip")
    skips = np.abs([np.broadcast_to(getattr(architecture, name), architecture.depth) for name in names])
    return float(-2 * np.log(np.maximum(skips, 1e-300)).sum())


def _can_carry(architecture: Architecture, free: Sequence[MatrixPlace]) -> bool:
    """A two-matrix MLP of an activation with a known odd part, all of whose matrices may be written."""
    if architecture.gated or architecture.parallel or not architecture.mlp_width:
        return False
    if architecture.activation not in (*LINEAR, *ODD):
        return False
    places = [place.role for place in free if place.described]
    return all(places.count(role) == architecture.depth for role in ("mlp_in", "mlp_out"))
