"""A plan by theory: gains for a recognised transformer, its totals stated by the recursion before any is measured.

Each branch is to add the share s^2 of the stream's mean square (`branch_gains`), s the largest at which neither total
exceeds the budget: the exponents of a block are O(s^2) and vanish together only as s does [Cowsik 2024]. Where weak
skips would let the stream die, the MLP carries it. Queries and keys, and with them the scale of the scores, are left
alone; so are embeddings and readout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgewise.architecture import Architecture
from edgewise.critical.exponents import changes
from edgewise.critical.plan.branch_gains import BranchGains
from edgewise.critical.plan.constraints import Kept
from edgewise.critical.plan.plan import Change, Totals
from edgewise.critical.plan.recognised import Place, Recognised, with_changes
from edgewise.critical.plan.search import Search, largest_within
from edgewise.theory.predict import predict_transformer
from edgewise.trace import Trace

EVALUATIONS = 12  # of the theory, to find s

Pairs = list[tuple[Place, Change]]


def totals_of(trace: Trace) -> Totals:
    """Log-changes from the embedding to the last block."""
    angle, gradient = changes(trace, trace.readouts[0])
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
