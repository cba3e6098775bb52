"""The flow of (norm, overlap) under one block as figure data: arrows, fixed points and orbits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgewise.verdict import FixedPoint
from edgewise.view.sheet import Arrows, Curve, Marker, Panel, Sheet

if TYPE_CHECKING:
    from edgewise.critical.vector_field import VectorField


def vector_field(field: VectorField, title: str = "") -> Sheet:
    """Arrows of unit length point where one block moves (norm, overlap); their colour says how far."""
    panel = Panel(
        "", "q, mean square per coordinate", "overlap (mean cosine)", _orbits(field), _note(field),
        log_x=True, arrows=_arrows(field), markers=tuple(_marker(point) for point in field.fixed_points),
    )  # fmt: skip
    network = field.architecture
    named = f"{network.name or 'this network'}: what one block does to norm and overlap"
    return Sheet(title or named, (panel,), f"theory, n = {network.tokens:,} tokens, d = {network.width:,}")


def _arrows(field: VectorField) -> Arrows:
    """Directions in fractions of the axes, so that an arrow points where the eye sees it point."""
    u = field.d_log_norm / max(np.ptp(np.log(field.norm)), 1e-12)
    v = field.d_overlap / max(np.ptp(field.overlap), 1e-12)
    length = np.hypot(u, v)
    safe = np.where(length > 0, length, 1.0)
    speed = np.hypot(field.d_log_norm, field.d_overlap)
    label = "step of one block, |Δ(log q, overlap)|"
    return Arrows(field.norm, field.overlap, u / safe, v / safe, speed, label)


def _orbits(field: VectorField) -> tuple[Curve, ...]:
    orbits = enumerate(field.trajectories)
    return tuple(Curve(f"from overlap {o[0, 1]:.2g}", o[:, 0], o[:, 1], 1 + i, "orbit") for i, o in orbits)


def _marker(point: FixedPoint) -> Marker:
    role = "stable" if point.stable else "unstable"
    return Marker(f"{role} fixed point", point.norm, point.overlap, role)


def _note(field: VectorField) -> str:
    if not field.fixed_points:
        return "no fixed point: the stream grows for ever"
    return "\n".join(
        f"{'stable' if p.stable else 'unstable'} at q = {p.norm:.3g}, overlap {p.overlap:.4g}, "
        f"eigenvalues {p.eigenvalues[0]:.3f}, {p.eigenvalues[1]:.3f}"
        for p in field.fixed_points
    )
