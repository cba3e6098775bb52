"""What `edgewise.structure` says, in the words of labels.json, and which of the facts that matter it states."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import Any

PLAIN_POSITIONS = {"linear bias": "alibi", "bias": "relative"}
MATTER = ("depth", "heads", "what attention sees", "place of norms", "multipliers")
# Facts that may be left open, by words of what `outside` names: what is outside is then the fact itself.
MAY_BE_OPEN = {
    "not joined by residual sums": ("place of norms", "multipliers"),
    "which no residual sums join": ("depth", "place of norms", "multipliers"),
    "residual streams of their own inside": ("place of norms", "multipliers"),
    "weighs stream and branch by a vector": ("multipliers",),
    "its skip is not the stream times a number": ("multipliers",),
    "not act on a product of queries and keys": ("heads",),
    "it covers ": ("depth",),
}


def claims(structure: Any) -> dict[str, Any]:
    """The stated facts; lists have one entry for each block, None where a block does not state it."""
    blocks = structure.blocks
    mixing = [next((b for b in block if b.kind in ("attention", "mixer")), None) for block in blocks]
    mlps = [next((b for b in block if b.kind == "MLP"), None) for block in blocks]
    attention = [b for b in mixing if b is not None and b.kind == "attention"]
    pairs = [[b.kind for b in block] == ["attention", "MLP"] for block in blocks]
    return {
        "depth": structure.depth,
        "heads": _agreed(b.heads for b in attention),
        "causal": [None if b is None or b.sees is None else _causal(b.sees) for b in mixing],
        "window": [_window(b) for b in mixing],
        "norm": [_place(block) for block in blocks],
        "gated": _agreed(b.gated for b in mlps if b is not None),
        "qk_norm": _agreed(b.qk_norm for b in attention),
        "parallel": _agreed(_parallel(block) for block in blocks),
        "positions": [None if b is None or b.positions is None else _positions(b.positions) for b in mixing],
        "attention": [_kind(b) for b in mixing],
        "skip": [_skip(block) for block in blocks],
        "branch": {
            "attention": [_strength(b) if two else None for b, two in zip(mixing, pairs, strict=True)],
            "mlp": [_strength(b) if two else None for b, two in zip(mlps, pairs, strict=True)],
        },
        "mlp_skip": [
            1.0 if b is None or _parallel(block) else b.skip for b, block in zip(mlps, blocks, strict=True)
        ],
    }


def masked(said: dict[str, Any], truth: dict[str, Any]) -> dict[str, Any]:
    """The truth about what is stated only."""
    kept: dict[str, Any] = dict(truth)
    for fact, value in said.items():
        if fact in ("branch", "mlp_skip") or kept.get(fact) is None:
            continue
        if value is None:
            kept[fact] = None
        elif isinstance(value, list) and isinstance(kept[fact], list):
            kept[fact] = [t if s is not None else None for s, t in zip_longest(value, kept[fact])][
                : len(kept[fact])
            ]
    return kept


def open_facts(structure: Any, attends: bool) -> list[str]:
    """Facts that matter and are not stated of every block, without those that what is outside explains."""
    branches = [branch for block in structure.blocks for branch in block]
    attention = [b for b in branches if b.kind in ("attention", "cross-attention")]
    stated = {
        "depth": structure.depth is not None,
        "heads": all(b.heads for b in attention) and (bool(attention) or not attends),
        "what attention sees": all(
            b.kind and (b.sees or b.kind in ("MLP", "cross-attention")) for b in branches
        ),
        "place of norms": all(b.norm for b in branches),
        "multipliers": all(b.skip is not None and b.multiplier is not None for b in branches),
    }
    allowed = {
        fact for words, facts in MAY_BE_OPEN.items() if words in " ".join(structure.outside) for fact in facts
    }
    return [fact for fact in MATTER if not stated[fact] and fact not in allowed]


def _agreed(values: Any) -> Any:
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _causal(sees: str) -> bool | None:
    return None if sees == "chosen by the input" else sees.startswith("causal")


def _window(branch: Any) -> Any:
    if branch is None or branch.kind != "attention" or branch.sees in (None, "chosen by the input"):
        return None
    if branch.window is not None:
        return "sparse" if branch.sees == "uneven window" else branch.window
    return "full" if branch.sees in ("full", "causal") else "sparse"


def _place(block: Any) -> str | None:
    """Of a whole block, as the checker names it: post where its last sum is normed, else where all branches have it."""
    places = [branch.norm for branch in block]
    if None in places or not places:
        return None
    return "post" if "post" in places[-1] else _agreed(places)


def _parallel(block: Any) -> bool | None:
    kinds = {branch.kind: branch.step for branch in block if branch.kind in ("attention", "MLP", "mixer")}
    if "MLP" not in kinds or len(kinds) < 2:
        return None
    return any(step == kinds["MLP"] for kind, step in kinds.items() if kind != "MLP")


def _positions(text: str) -> str:
    first = text.partition(" and ")[0]
    return PLAIN_POSITIONS.get(first, first)


def _kind(branch: Any) -> str | None:
    if branch is None or branch.kind is None:
        return None
    if branch.kind == "mixer":
        return "mixer"
    odd = ("do not sum to one", "products of queries", "not a product", "no mean of values")
    return (
        "softmax, changed"
        if any(words in remark for remark in branch.remarks for words in odd)
        else "softmax"
    )


def _skip(block: Any) -> float | None:
    steps = {branch.step: branch.skip for branch in block}
    return None if None in steps.values() else math.prod(steps.values())


def _strength(branch: Any) -> float | None:
    if branch is None or branch.multiplier is None:
        return None
    silent = "gives nothing at this initialization" in branch.remarks
    return (
        0.0
        if silent
        else abs(branch.multiplier) * (1.0 if branch.layer_scale is None else branch.layer_scale)
    )
