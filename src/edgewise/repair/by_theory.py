"""A plan by theory: gains for a recognised transformer, its totals stated by the recursion before any is measured.

Each branch is to add the share s^2 of the stream's mean square (`branch_gains`), s the largest at which neither total
exceeds the budget: the exponents of a block are O(s^2) and vanish together only as s does [Cowsik 2024]. Where weak
skips would let the stream die, the MLP carries it. Queries and keys, and with them the scale of the scores, are left
alone; so are embeddings and readout.

The gains of a block's branches at a share s: how strongly they write, and how the gain is divided inside them.

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

from edgewise.architecture import Architecture
from edgewise.repair.draw import LINEAR, ODD
from edgewise.repair.layers import Kept
from edgewise.repair.plan import Change, Totals
from edgewise.repair.recognised import Place, Recognised, with_changes
from edgewise.repair.search import Search, largest_within
from edgewise.theory.activation.activations import activation
from edgewise.theory.predict import predict_transformer
from edgewise.trace import Trace

CAP = 1.0  # a branch beside a whole skip is never given a gain above this
LEAST = 0.25  # nor a matrix inside one below this
MOST = 4.0  # or, where it carries the stream, above that
ALMOST_LINEAR = 0.3  # gain at which tanh changes angles by little over tens of layers
BAND = (0.25, 4.0)  # gates are left alone within this, and set to gain one outside


@dataclass(frozen=True)
class BranchGains:
    """Of one description, from a stream of mean square `norm`; `carries`: the MLP does what the skips do not."""

    known: Architecture
    norm: float
    carries: bool

    @classmethod
    def of(
        cls, known: Architecture, free: Sequence[Place], budget: float, start: tuple[float, float] | None
    ) -> BranchGains:
        norm = 1.0 if known.norm == "post" else (start[0] if start else known.embedding_norm)
        return cls(known, norm, _forgets(known) > budget and _can_carry(known, free))

    def inner(self, role: str, block: int, s: float) -> float | None:
        """The gain of a matrix inside a branch; None leaves it as it is."""
        if role == "value" or (role == "mlp_linear" and self.known.gated):
            kind = "attention" if role == "value" else "mlp"
            return min(max(math.sqrt(self._product(kind, block, s)), LEAST), 1.0)
        if role != "mlp_in":
            return None
        present = self._at("mlp_in_gain", block)
        if self.known.gated:
            return None if BAND[0] <= present <= BAND[1] else 1.0
        if self.carries and self.known.activation in ODD:
            return ALMOST_LINEAR
        return min(max(math.sqrt(self._product("mlp", block, s)), LEAST), MOST if self.carries else 1.0)

    def written(self, known: Architecture, role: str, block: int, s: float) -> tuple[float, float]:
        """(present, wanted) gain of a branch in `known`: value and output together, or the MLP's output matrix."""
        if role == "output":
            return _of_block(known, "value_gain", block), self._product("attention", block, s)
        entering, in_gain = self._entering, _of_block(known, "mlp_in_gain", block)
        phi = activation("linear" if self._exact else known.activation)
        inside = float(phi.square(in_gain**2 * entering + _of_block(known, "mlp_bias", block) ** 2))
        if known.gated:
            inside *= _of_block(known, "mlp_linear_gain", block) ** 2 * entering
        # the product is per unit of what enters; what arrives at W_2 is sqrt(E phi^2)
        wanted = self._product("mlp", block, s) * math.sqrt(entering / inside)
        return _of_block(known, "mlp_out_gain", block), wanted / self._mirror

    def drawn(self, role: str, draw: str, s: float | None = None) -> tuple[str, str]:
        """How a matrix is drawn, and why."""
        if self.carries and role in ("mlp_in", "mlp_out"):
            kind = "mirrored rows" if role == "mlp_in" else "mirrored columns"
            return kind, "weak skips: mirrored pairs make the MLP linear at the start, so that it carries the stream"
        if s is None:
            return draw, "shares the gain of its branch evenly with the matrix that writes"
        return draw, f"writes its branch into the stream: {s * s:.3g} of its mean square per branch"

    def described(self, known: Architecture) -> Architecture:
        """What the theory is to be told: mirrored pairs have the odd part of the activation only."""
        if not self.carries:
            return known
        gain = known.mlp_out_gain
        made = tuple(g * self._mirror for g in gain) if isinstance(gain, tuple) else gain * self._mirror
        return known.replace(mlp_out_gain=made, activation="linear" if self._exact else known.activation)

    def _product(self, kind: str, block: int, s: float) -> float:
        """The gain of a whole branch, size written over size entering, without its multiplier."""
        skip, branch = (self._at(f"{kind}_{part}", block) for part in ("skip", "branch"))
        ratio = math.sqrt(self.norm / self._entering) / max(abs(branch), 1e-12)
        if kind == "mlp" and self.carries:
            kept = (skip * self._at("attention_skip", block)) ** 2
            return math.sqrt(max(s * s * kept, 1 - kept * (1 + s * s))) * ratio
        return min(s * abs(skip or 1.0) * ratio, CAP)

    @property
    def _entering(self) -> float:
        return self.norm if self.known.norm == "none" else 1.0

    @property
    def _exact(self) -> bool:
        return self.carries and self.known.activation in LINEAR

    @property
    def _mirror(self) -> float:
        """The gain of W_2 in the description over that of its entries: half of the units, twice the odd part."""
        return 1.0 if not self.carries else 1 / math.sqrt(2) if self._exact else math.sqrt(2)

    def _at(self, name: str, block: int) -> float:
        return _of_block(self.known, name, min(block, self.known.depth - 1))


def _of_block(known: Architecture, name: str, block: int) -> float:
    value: Any = getattr(known, name)
    return float(value[block]) if isinstance(value, tuple) else float(value)


def _forgets(known: Architecture) -> float:
    """-log of the share of the first stream that the skips alone would leave; none where a norm follows the sum."""
    if known.norm not in ("pre", "none"):
        return 0.0
    skips = np.abs([np.broadcast_to(getattr(known, name), known.depth) for name in ("attention_skip", "mlp_skip")])
    return float(-2 * np.log(np.maximum(skips, 1e-300)).sum())


def _can_carry(known: Architecture, free: Sequence[Place]) -> bool:
    """A two-matrix MLP of an activation whose odd part is known, all of whose matrices may be written."""
    if known.gated or known.parallel or not known.mlp_width or known.activation not in (*LINEAR, *ODD):
        return False
    places = [place.role for place in free if place.described]
    return all(places.count(role) == known.depth for role in ("mlp_in", "mlp_out"))


EVALUATIONS = 12  # of the theory, to find s

Pairs = list[tuple[Place, Change]]


def totals_of(trace: Trace) -> Totals:
    """Log-changes from the embedding to the last block."""
    angle, gradient = trace.total_changes(trace.readouts[0])
    spread = math.sqrt(2 * trace.depth / trace.architecture.width) if trace.architecture else 0.0
    return Totals(angle, gradient, False, spread)


def stated(architecture: Architecture, start: tuple[float, float] | None) -> Totals:
    """What the theory says of this description, from where the data starts."""
    norm, overlap = start if start is not None else (None, 0.0)
    overlap = 0.0 if -0.05 < overlap < 0 else overlap  # independent tokens scatter around zero
    return totals_of(predict_transformer(architecture, None, norm, overlap))


def critical_changes(
    found: Recognised, fixed: Pairs, kept: Kept, budget: float, start: tuple[float, float] | None, draw: str
) -> tuple[Pairs, Totals]:
    """The changes that put every branch at the share s, and the totals the theory states for them."""
    free = [place for place in found.places() if allowed(place, kept)]
    gains = BranchGains.of(found.architecture, free, budget, start)

    def at(x: float) -> Pairs:
        inside = _merged(fixed, _inner(found, free, gains, math.exp(x), draw))
        known = with_changes(found, inside, biases_off=True)
        return _merged(inside, _written(found, known, free, gains, math.exp(x), draw))

    def totals(x: float) -> Totals:
        return stated(gains.described(with_changes(found, at(x), biases_off=True)), start)

    search = Search(totals, found.architecture.depth, EVALUATIONS)
    x = largest_within(search, budget, guess=math.log(1.5 * budget / found.architecture.depth) / 2)
    return at(x), search.at(x)


def allowed(place: Place, kept: Kept) -> bool:
    return all(kept.allows(name) and kept.first(name) for name in place.matrix.parameters)


def _merged(first: Pairs, second: Pairs) -> Pairs:
    by_key = {(p.matrix.parameters, p.role): (p, c) for p, c in (*first, *second)}
    return list(by_key.values())


def _inner(found: Recognised, free: Sequence[Place], gains: BranchGains, s: float, draw: str) -> Pairs:
    """Value and MLP input matrices: the branch's gain is shared evenly between them and the matrix that writes."""
    made: Pairs = []
    for place in free:
        old = found.old_std(place)
        wanted = gains.inner(place.role, place.block, s)
        if place.writes or not old or wanted is None:
            continue
        unit = 1 / math.sqrt(place.matrix.fan_in)
        kind, reason = gains.drawn(place.role, draw)
        made.append((place, Change(place.matrix, old, wanted * unit, kind, reason)))
    return made


def _written(
    found: Recognised, known: Architecture, free: Sequence[Place], gains: BranchGains, s: float, draw: str
) -> Pairs:
    """O and W_2 of every block at the share s; matrices outside the description get its first block's ratio."""
    made: Pairs = []
    for place in free:
        old = found.old_std(place)
        if not place.writes or old is None or not old:
            continue
        block = place.block if place.described else min(place.block, known.depth - 1)
        present, wanted = gains.written(known, place.role, block, s)
        if not present:
            continue
        kind, reason = gains.drawn(place.role, draw, s)
        made.append((place, Change(place.matrix, old, old * wanted / present, kind, reason)))
    return made
