"""The nineteen kinds of x-transformers and vit-pytorch that the goal of 17 counts.

The goal was set as a number, nine kinds and ten, without their names. These were written down after the census had been
run: the plain kinds, and those that the notes on the method mention (linear biases, normed queries; parallel and
normalized blocks, class attention).
"""

from __future__ import annotations

from typing import Any

from .causes import count
from .overruled import OUTSIDE, OVERRULED, RIGHTLY

NAMES = {
    "x-transformers": (
        "decoder",
        "encoder",
        "decoder, rotary",
        "decoder, ALiBi",
        "decoder, relative bias",
        "decoder, qk-norm",
        "decoder, llama-like",
        "decoder, post-norm",
        "decoder, sandwich norm",
    ),
    "vit-pytorch": (
        "vit",
        "simple_vit",
        "vit_1d",
        "vit_3d",
        "simple_vit_with_qk_norm",
        "simple_vit_with_register_tokens",
        "deepvit",
        "parallel_vit",
        "normalized_vit",
        "cait",
    ),
}


def row(records: list[dict[str, Any]]) -> str:
    """The line of the table of goals."""
    chosen = [r for r in records if r.get("model") in NAMES.get(str(r.get("package")), ())]
    right, outside = count(chosen, "right", OVERRULED), count(chosen, OUTSIDE)
    return (
        f"| nineteen kinds of x-transformers and vit-pytorch (goal 17) | {right} right, {outside} of the right "
        f"structure outside the theory, {count(chosen, RIGHTLY)} refused for a true reason only, of {len(chosen)} |"
    )
