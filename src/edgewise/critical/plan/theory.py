"""A plan by theory: gains for a recognised transformer, its totals stated by the recursion before any is measured.

Each branch is to add the share s^2 of the stream's mean square: attention output gain s skip sqrt(q) / (multiplier
gain_V), MLP output gain s skip sqrt(q) / (multiplier sqrt(E phi^2)); s is the largest at which neither total exceeds
the budget. Post-norm keeps q = 1; the exponents of a block are O(s^2) either way, and vanish together only as s does
[Cowsik 2024]. Queries and keys, and with them the scale of the scores, are left alone; so are embeddings and readout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgewise.architecture import Architecture
from edgewise.critical.plan.constraints import Kept
from edgewise.critical.plan.plan import Change, Totals
from edgewise.critical.plan.recognised import Place, Recognised, with_changes
from edgewise.critical.plan.search import Search, largest_within
from edgewise.theory.activation.activations import activation
from edgewise.theory.predict import predict_transformer
from edgewise.trace import Trace

BAND = (0.25, 4.0)  # gains of matrices inside a branch are left alone within this, and set to one outside
CAP = 1.0  # a branch is never given a gain above this
EVALUATIONS = 12  # of the theory, to find s

Pairs = list[tuple[Place, Change]]


def totals_of(trace: Trace) -> Totals:
    """Log-changes from the embedding to the last block."""
    ends = trace.block_ends()
    with np.errstate(divide="ignore", invalid="ignore"):
        separation = np.log(trace.separation[:, ends])
        angle = float((separation[:, -1] - separation[:, 0]).mean())
        assert trace.log_gradient is not None
        relative = trace.log_gradient[0][:, ends] + np.log(trace.norm[:, ends])
        gradient = float((relative[:, 0] - relative[:, -1]).mean())
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
    """The changes that put the writers at the share s, and the totals the theory states for them."""
    inner = _inner(found, kept, draw)
    base = _merged(fixed, inner)
    known = with_changes(found, base, biases_off=True)
    writers = [place for place in found.places() if place.writes and allowed(place, kept)]

    def at(x: float) -> Pairs:
        return _merged(base, _written(found, known, writers, math.exp(x), start, draw))

    def totals(x: float) -> Totals:
        return stated(with_changes(found, at(x), biases_off=True), start)

    search = Search(totals, known.depth, EVALUATIONS)
    x = largest_within(search, budget, guess=math.log(1.5 * budget / known.depth) / 2)
    return at(x), search.at(x)


def allowed(place: Place, kept: Kept) -> bool:
    return all(kept.allows(name) and kept.first(name) for name in place.matrix.parameters)


def _merged(first: Pairs, second: Pairs) -> Pairs:
    by_key = {(p.matrix.parameters, p.role): (p, c) for p, c in (*first, *second)}
    return list(by_key.values())


def _inner(found: Recognised, kept: Kept, draw: str) -> Pairs:
    """Value and MLP input matrices far from gain one are set to it; others keep what they have."""
    made: Pairs = []
    for place in found.places():
        old = found.old_std(place)
        if place.role not in ("value", "mlp_in", "mlp_linear") or not old or not allowed(place, kept):
            continue
        unit = 1 / math.sqrt(place.matrix.fan_in)
        if not BAND[0] <= old / unit <= BAND[1]:
            reason = f"gain {old / unit:.3g} is far from one"
            made.append((place, Change(place.matrix, old, unit, draw, reason)))
    return made


def _written(
    found: Recognised, known: Architecture, writers: Sequence[Place], s: float, start: tuple[float, float] | None,
    draw: str,
) -> Pairs:  # fmt: skip
    """O and W_2 of every block at the share s; matrices outside the description get its first block's ratio."""
    made: Pairs = []
    for place in writers:
        old = found.old_std(place)
        if old is None or not old:
            continue
        block = place.block if place.described else min(place.block, known.depth - 1)
        present, wanted = _gains(known, place.role, block, s, start)
        if not present:
            continue
        reason = f"writes its branch into the stream: {s * s:.3g} of its mean square per branch"
        made.append((place, Change(place.matrix, old, old * wanted / present, draw, reason)))
    return made


def _gains(
    known: Architecture, role: str, block: int, s: float, start: tuple[float, float] | None
) -> tuple[float, float]:
    """(present, wanted) gain of a branch: value and output together, or the MLP's output matrix."""
    at = _At(known, block)
    q = 1.0 if known.norm == "post" else (start[0] if start else known.embedding_norm)
    entering = q if known.norm == "none" else 1.0
    kind = "attention" if role == "output" else "mlp"
    share = s * abs(at[f"{kind}_skip"] or 1.0) * math.sqrt(q) / max(abs(at[f"{kind}_branch"]), 1e-12)
    if role == "output":
        return at["value_gain"], min(share / math.sqrt(entering), CAP)
    inside = float(activation(known.activation).square(at["mlp_in_gain"] ** 2 * entering + at["mlp_bias"] ** 2))
    if known.gated:
        inside *= at["mlp_linear_gain"] ** 2 * entering
    return at["mlp_out_gain"], min(share / math.sqrt(inside), CAP / math.sqrt(inside))


class _At:
    """The knobs of one block."""

    def __init__(self, known: Architecture, block: int) -> None:
        self.known, self.block = known, block

    def __getitem__(self, name: str) -> float:
        value = getattr(self.known, name)
        return float(value[self.block]) if isinstance(value, tuple) else float(value)
