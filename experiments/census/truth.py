"""What is true of a stack, from its label or else from the checker, in one form; None is no opinion."""

from __future__ import annotations

from typing import Any

from .checker import Facts
from .handwritten import Label

ANY = (
    "depth",
    "heads",
    "causal",
    "window",
    "norm",
    "positions",
    "gated",
    "qk_norm",
    "parallel",
    "skip",
    "branch",
    "attention",
    "copies",
)


def from_label(label: Label) -> Label:
    """The label with lists of one entry for each layer."""
    depths = label.get("depth")
    depth = depths if isinstance(depths, int) else (depths or [4])[-1]
    known = {fact: label.get(fact) for fact in ANY} | {"window": None}
    for fact in ("causal", "norm", "qk_norm", "positions", "attention", "skip"):
        if known[fact] is not None and not isinstance(known[fact], (list, dict)):
            known[fact] = [known[fact]] * depth
    if "window" in label:  # a mixer that is no attention has no window, however little it remembers
        windows = label["window"] if isinstance(label["window"], list) else [label["window"]] * depth
        kinds = known["attention"] or ["softmax"] * depth
        pairs = zip(windows, kinds, strict=True)
        known["window"] = [_side(window) if "softmax" in kind else None for window, kind in pairs]
    if known["branch"] is not None and not isinstance(known["branch"], dict):
        known["branch"] = {"attention": [known["branch"]] * depth, "mlp": [known["branch"]] * depth}
    if known["skip"] is not None and isinstance(known["skip"], dict):
        pairs = zip(known["skip"]["attention"], known["skip"]["mlp"], strict=True)
        known["skip"] = [a * m for a, m in pairs]
    elif known["skip"] is not None:
        known["skip"] = [value if label.get("parallel") else value**2 for value in known["skip"]]
    return known


def _side(window: Any) -> Any:
    """ "8 on each side" is nine keys to one side with the token itself."""
    words = window.split() if isinstance(window, str) else []
    if words[1:] == ["on", "each", "side"]:
        return int(words[0]) + 1
    return "sparse" if words else {None: "full"}.get(window, window)


def from_checker(facts: Facts) -> Label:
    """The checker's facts of one stack; what it could not decide is None."""
    decided = any(x is not None for x in facts.causal)
    pairs = zip(facts.causal, facts.window, strict=True)
    places = {True: "in the branch", False: "not in the branch", None: None}
    return {
        "depth": facts.depth,
        "heads": facts.heads,
        "causal": facts.causal if decided else None,
        "window": ["full" if causal is not None and window is None else window for causal, window in pairs],
        "norm": facts.norm or None,
        "gated": None,
        "qk_norm": facts.qk_norm or None,
        "parallel": facts.parallel,
        "positions": [places[order] for order in facts.order] or None,
        "skip": facts.skip or None,
        "columns": facts.branch,
        "attention": None,
        "softmax": facts.softmax > 0,
        "name": facts.name,
    }
