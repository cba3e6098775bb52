"""A panel with one row of dots per method: its seeds, and a stroke at their median."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgewise.arrays import Array
from edgewise.present import Curve, Panel


def strips(title: str, rows: Sequence[tuple[str, int, Array]], level: float) -> Panel:
    """Rows of (name, colour, losses); `level` is dotted for comparison."""
    dots = [
        Curve("", loss, np.full(len(loss), float(k)), group, "points")
        for k, (_, group, loss) in enumerate(rows)
    ]
    strokes = [
        Curve("", np.array([np.median(loss)]), np.array([float(k)]), group, "median")
        for k, (_, group, loss) in enumerate(rows)
    ]
    every = np.concatenate([loss for _, _, loss in rows])
    return Panel(
        title,
        "held-out loss at the end",
        "",
        (*dots, *strokes),
        legend=False,
        places=(level,),
        log_x=bool(every.max() > 3 * every.min()),
        y_names=tuple(name for name, _, _ in rows),
    )
