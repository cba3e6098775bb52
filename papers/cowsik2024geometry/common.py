"""What the figures of this paper share: its block in the library's words, and what a figure says of its scale."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np

from edgewise.study import Result, seed_count

ABSTRACT = "[Cowsik 2024, abstract]"


def paper_block(attention: float, mlp: float, **others: Any) -> dict[str, Any]:
    """Knobs of x <- sqrt(1 - a^2) x + a branch(norm(x)): tanh, one head, unit gains, no bias; a = 0: no layer."""
    strengths = {
        "attention_skip": sqrt(1 - attention**2),
        "attention_branch": attention,
        "mlp_skip": sqrt(1 - mlp**2),
        "mlp_branch": mlp,
    }
    without = {"mlp_width": 0} if mlp == 0 else {}
    return {"activation": "tanh", "norm": "pre", "heads": 1} | strengths | without | others


def scale_of(results: Sequence[Result], per: str = "point") -> str:
    """Sizes and seeds, for the claim and the foot of the figure."""
    knobs, seeds = results[0].case["knobs"], seed_count(results)
    size = f"n = {knobs['tokens']} tokens, d = {knobs['width']}, {knobs['depth']} blocks"
    return f"{size}, {seeds} random networks per {per}"


def beyond_error(gaps: Any, errors: Any, allowed: float) -> bool:
    """True when some gap exceeds what is allowed by more than three standard errors.

    The error is pooled over all gaps: that of one point, from a handful of seeds, is hardly known.
    """
    pooled = np.sqrt(np.mean(np.square(errors)))
    return bool(np.max(np.abs(gaps)) > allowed + 3 * pooled)
