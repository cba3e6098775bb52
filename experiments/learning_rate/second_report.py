"""What the second blind population says: best rates of 300 steps against what a rehearsal names."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from edgewise.study import Claim, Result

from .blind import _panel, learns, score
from .truth import STEPS


def claim(results: Sequence[Result]) -> Claim:
    """The goals of `blind.py`, on the kinds of networks on which it missed them."""
    alive = [r for r in results if learns(r)]
    scale = (
        f"{len(results)} networks of images, or trained with SGD, {results[0].case['steps']} steps, one seed"
    )
    goal = "best rate within a factor of 2 in 90 %, never above the edge"
    if not alive or results[0].case["steps"] < STEPS:
        return Claim(goal, "too few steps to tell", scale, None)
    rows = {method: score(alive, method) for method in ("rehearsal", "constant")}
    words = "; ".join(
        f"{name} {row['within']:.0%} within 2 (worst {row['worst']:.1f}), {row['given']:.3f} nat given away (90 %: "
        f"{row['given90']:.3f}), {row['above']} above the edge"
        for name, row in rows.items()
    )
    ours = rows["rehearsal"]
    return Claim(goal, words, scale, ours["within"] >= 0.9 and ours["above"] == 0, rows)


def draw(results: Sequence[Result]) -> Figure:
    from edgewise.present import Sheet

    panels = tuple(_panel(results, method, lowest=3e-5) for method in ("rehearsal", "constant"))
    scale = (
        f"{len(results)} networks, {results[0].case['steps']} steps, one seed; dotted: within a factor of 2"
    )
    return Sheet("The rate named before training, against the best one", panels, scale, columns=2).draw()
